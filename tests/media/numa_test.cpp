// SPDX-License-Identifier: Apache-2.0
// numa: the contract, and tests of its own, on node 0.
#include <numaif.h>
#include <unistd.h>

#include <fstream>

#include "tests/media/contract.h"

namespace bowhead {
namespace {

constexpr uint64_t kMiB = 1 << 20;

std::string numa_locator(const std::string& tag) { return "numa:0/" + tag; }

/// Containers may forbid to bind memory.
std::string missing() {
  const ScopedLocator object(numa_locator(fresh_tag()));
  const auto media = create_media(object.text(), {.size_bytes = 2 * kMiB});
  return media ? std::string() : media.error().message();
}

INSTANTIATE_TEST_SUITE_P(Numa, MediaContract,
                         testing::Values(MediaUnderTest{"numa", numa_locator, missing}),
                         [](const auto& media) { return media.param.name; });

class Numa : public testing::Test {
 protected:
  void SetUp() override {
    if (const std::string why = missing(); !why.empty()) GTEST_SKIP() << why;
  }
};

TEST_F(Numa, LocatorsAreChecked) {
  for (const std::string rest :
       {"", "0", "0/", "/x", "x/y", "-1/x", "0x0/y", "0/a/b", "0/a b", "99999999999/x", "4095/x"}) {
    const std::string locator = "numa:" + rest;
    EXPECT_EQ(create_media(locator, {.size_bytes = 2 * kMiB}).status(), Status::BAD_LOCATOR)
        << rest;
    EXPECT_EQ(open_media(locator).status(), Status::BAD_LOCATOR) << rest;
    EXPECT_EQ(remove_media(locator).status(), Status::BAD_LOCATOR) << rest;
  }
  const auto none = open_media("numa:4095/x");
  EXPECT_NE(none.error().message().find("nodes with memory: 0"), std::string::npos)
      << none.error().message();
}

TEST_F(Numa, NamesAreNotThoseOfShm) {
  const std::string tag = fresh_tag();
  const ScopedLocator object(numa_locator(tag));
  ASSERT_TRUE(create_media(object.text(), {.size_bytes = 2 * kMiB}));
  EXPECT_EQ(open_media("shm:" + tag).status(), Status::NO_SUCH_POOL);
}

/// Also pages that another process gets, through a mapping that it did not bind.
TEST_F(Numa, TheBindingStaysWithTheFile) {
  const ScopedLocator object(numa_locator(fresh_tag()));
  ASSERT_TRUE(create_media(object.text(), {.size_bytes = 4 * kMiB}));
  const auto media = open_media(object.text());
  ASSERT_TRUE(media) << media.error().message();
  int mode = -1;
  unsigned long mask[16] = {};
  ASSERT_EQ(get_mempolicy(&mode, mask, sizeof mask * 8, (*media)->base(), MPOL_F_ADDR), 0);
  EXPECT_EQ(mode, MPOL_BIND);
  EXPECT_EQ(mask[0], 1u);
}

}  // namespace
}  // namespace bowhead
