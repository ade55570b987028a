// SPDX-License-Identifier: Apache-2.0
// The mail of the other hosts is read where a line was written, not at each heartbeat from all. The
// access policy of this test counts the lines of mail that are loaded.
#include <gtest/gtest.h>

#include <utility>

#include "pool/core/core.h"
#include "tests/support/hosts.h"

namespace bowhead::test {
namespace {

class CountingAccess : public core::NativeAccess {
 public:
  using NativeAccess::NativeAccess;
  core::Line load_line(uint64_t offset) const {
    loads_ += offset - first_ < bytes_;
    return NativeAccess::load_line(offset);
  }
  void watch(uint64_t offset, uint64_t bytes) { first_ = offset, bytes_ = bytes; }
  uint64_t take_loads() { return std::exchange(loads_, 0); }

 private:
  uint64_t first_ = 0, bytes_ = 0;
  mutable uint64_t loads_ = 0;
};

/// No host is declared dead, however loaded the machine is.
constexpr SharingTimes kPatient{.heartbeat_ms = 10, .dead_ms = 600'000, .settle_ms = 1};

/// A host whose duties are done when the test says so.
class Member {
 public:
  Member(const SharedPool& pool, uint32_t host) {
    auto media = open_media(pool.locator());
    EXPECT_TRUE(media);
    media_ = std::move(media).value();
    access_.emplace(*media_, FlushKind::NONE);
    core_.emplace(*access_, pool.superblock(), host);
    EXPECT_TRUE(core_->joining.attach({}));
  }
  ~Member() { core_->joining.detach(); }
  Member(const Member&) = delete;
  Member& operator=(const Member&) = delete;

  core::Core<CountingAccess>& core() { return *core_; }
  CountingAccess& access() { return *access_; }
  void work() {
    sleep_ms(kPatient.heartbeat_ms + 2);  // else it is not yet due
    EXPECT_TRUE(core_->membership.work());
  }

 private:
  std::unique_ptr<Media> media_;
  std::optional<CountingAccess> access_;
  std::optional<core::Core<CountingAccess>> core_;
};

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
  Member reader_{pool_, 0};
  Member writer_{pool_, 1};
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
