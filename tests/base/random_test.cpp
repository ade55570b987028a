// SPDX-License-Identifier: Apache-2.0
#include "base/random.h"

#include <gtest/gtest.h>

#include <array>

namespace bowhead {
namespace {

TEST(Random, NumbersAreFrozen) {
  // Computed independently, from the definitions of xoshiro256** and splitmix64.
  Random random(0);
  EXPECT_EQ(random.next(), 0x99EC5F36CB75F2B4u);
  EXPECT_EQ(random.next(), 0xBF6E1F784956452Au);
  EXPECT_EQ(random.next(), 0x1A5F849D4933E6E0u);
}

TEST(Random, SameSeedSameNumbers) {
  Random first(42), second(42), other(43);
  bool differs = false;
  for (int i = 0; i < 1000; ++i) {
    const uint64_t number = first.next();
    EXPECT_EQ(number, second.next());
    differs |= number != other.next();
  }
  EXPECT_TRUE(differs);
}

TEST(Random, BelowStaysBelowAndIsEven) {
  Random random(7);
  std::array<int, 10> counts{};
  for (int i = 0; i < 100'000; ++i) {
    const uint64_t number = random.below(counts.size());
    ASSERT_LT(number, counts.size());
    ++counts[number];
  }
  for (const int count : counts) EXPECT_NEAR(count, 10'000, 500);  // over five sigma
  EXPECT_EQ(random.below(1), 0u);
}

// Just over 2^63: a plain remainder would give the lower half of the numbers twice as often.
TEST(Random, BelowIsUnbiasedForHugeRanges) {
  Random random(8);
  constexpr uint64_t kRange = (uint64_t{3} << 62);
  int low = 0;
  for (int i = 0; i < 30'000; ++i) low += random.below(kRange) < kRange / 3;
  EXPECT_NEAR(low, 10'000, 500);
}

TEST(Random, TheSystemsNumbersDiffer) { EXPECT_NE(random_u64_from_os(), random_u64_from_os()); }

}  // namespace
}  // namespace bowhead
