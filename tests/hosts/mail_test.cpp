// SPDX-License-Identifier: Apache-2.0
// The mail of the other hosts is read where a line was written, not at each heartbeat from all. The
// lines of mail that are loaded are counted.
#include <gtest/gtest.h>

#include "tests/support/counted_hosts.h"

namespace bowhead::test {
namespace {

class MailBetweenHosts : public testing::Test {
 protected:
  MailBetweenHosts() {
    // The mail that host 1 wrote to host 0.
    reader_.access().watch(pool_.layout().mail(1, 0, 0), BH_MAIL_AREA_BYTES);
    for (uint32_t i = 0; i < kHosts; ++i) reader_.work();
    reader_.access().take_loads();
  }

  static constexpr uint32_t kHosts = 8;
  const SharedPool pool_{kHosts, {.evict_high_permille = 0}, kPatient};
  CountedHost reader_{pool_, 0};
  CountedHost writer_{pool_, 1};
};

TEST_F(MailBetweenHosts, IsNotReadWhileThereIsNone) {
  for (uint32_t i = 0; i < kHosts; ++i) reader_.work();
  EXPECT_EQ(reader_.access().take_loads(), BH_MAIL_AREA_BYTES / sizeof(bh_mail)) << "once, in turn";
}

TEST_F(MailBetweenHosts, IsReadAtOnceAndNoMoreOnceItIsAnswered) {
  for (uint32_t i = 0; i < 3; ++i) {
    bh_mail answer{};
    writer_.core().mail.ask_for_extents(0, 1);
    reader_.work();
    EXPECT_GT(reader_.access().take_loads(), 0u) << i;
    const auto asked = pool_.read<bh_mail>(pool_.layout().mail(1, 0, 0));
    answer = pool_.read<bh_mail>(pool_.layout().mail(0, 1, 0));
    EXPECT_EQ(asked.kind, BH_MAIL_WANT);
    EXPECT_EQ(answer.answered, asked.sequence);
    // The writer sees the answer as soon, and withdraws its request.
    writer_.work();
    EXPECT_EQ(pool_.read<bh_mail>(pool_.layout().mail(1, 0, 0)).kind, BH_MAIL_NONE);
    reader_.work();
    reader_.access().take_loads();
  }
}

}  // namespace
}  // namespace bowhead::test
