// SPDX-License-Identifier: Apache-2.0
#include "base/coherence.h"

#include <gtest/gtest.h>
#include <stdlib.h>

#include <algorithm>
#include <cstddef>
#include <set>
#include <string>
#include <vector>

#include "base/cpu.h"
#include "base/random.h"

namespace bowhead {
namespace {

constexpr FlushKind kAllKinds[] = {FlushKind::NONE, FlushKind::CLWB, FlushKind::CLFLUSHOPT,
                                   FlushKind::CLFLUSH};

TEST(Coherence, NamesRoundTrip) {
  std::set<std::string> names;
  for (const FlushKind kind : kAllKinds) {
    names.insert(flush_kind_name(kind));
    EXPECT_EQ(flush_kind_from_name(flush_kind_name(kind)), kind);
  }
  EXPECT_EQ(names.size(), std::size(kAllKinds));
  EXPECT_EQ(flush_kind_from_name("CLWB"), std::nullopt);
  EXPECT_EQ(flush_kind_from_name(""), std::nullopt);
}

TEST(Coherence, SupportedKindsAreTheCpus) {
  const std::vector<FlushKind>& kinds = supported_flush_kinds();
  const auto has = [&](FlushKind kind) {
    return std::find(kinds.begin(), kinds.end(), kind) != kinds.end();
  };
  EXPECT_TRUE(has(FlushKind::NONE));
  EXPECT_EQ(has(FlushKind::CLWB), cpu_features().clwb);
  EXPECT_EQ(has(FlushKind::CLFLUSHOPT), cpu_features().clflushopt);
  EXPECT_EQ(has(FlushKind::CLFLUSH), cpu_features().clflush);
}

// On memory of one coherence domain no flush may change a byte, whatever the ends of the range.
TEST(Coherence, FlushesKeepTheBytes) {
  constexpr size_t kSize = 4096;
  alignas(64) static std::byte memory[kSize + 128];
  Random random(1);
  for (const FlushKind kind : supported_flush_kinds()) {
    for (int round = 0; round < 200; ++round) {
      std::vector<std::byte> expected(sizeof(memory));
      for (std::byte& byte : expected) byte = static_cast<std::byte>(random.next());
      std::copy(expected.begin(), expected.end(), memory);
      const size_t first = random.below(kSize);
      const size_t size = random.below(kSize - first + 1);
      flush_lines(kind, memory + first, size);
      full_fence();
      invalidate_lines(kind, memory + first, size);
      full_fence();
      ASSERT_TRUE(std::equal(expected.begin(), expected.end(), memory)) << flush_kind_name(kind);
    }
  }
}

class FlushEnvironment : public testing::Test {
 protected:
  void TearDown() override { unsetenv("BOWHEAD_FLUSH"); }
};

TEST_F(FlushEnvironment, ChoosesByMedium) {
  unsetenv("BOWHEAD_FLUSH");
  EXPECT_EQ(choose_flush_kind(false), FlushKind::NONE);
  EXPECT_EQ(choose_flush_kind(true), supported_flush_kinds().front());
}

TEST_F(FlushEnvironment, OverridesTheChoice) {
  for (const FlushKind kind : supported_flush_kinds()) {
    setenv("BOWHEAD_FLUSH", flush_kind_name(kind), 1);
    EXPECT_EQ(choose_flush_kind(false), kind);
    EXPECT_EQ(choose_flush_kind(true), kind);
  }
}

TEST_F(FlushEnvironment, IgnoresUnknownKindsWithAMessage) {
  setenv("BOWHEAD_FLUSH", "wbinvd", 1);
  testing::internal::CaptureStderr();
  EXPECT_EQ(choose_flush_kind(true), supported_flush_kinds().front());
  EXPECT_NE(testing::internal::GetCapturedStderr().find("wbinvd"), std::string::npos);
}

TEST_F(FlushEnvironment, IgnoresUnsupportedKindsWithAMessage) {
  const std::vector<FlushKind>& kinds = supported_flush_kinds();
  for (const FlushKind kind : kAllKinds) {
    if (std::find(kinds.begin(), kinds.end(), kind) != kinds.end()) continue;
    setenv("BOWHEAD_FLUSH", flush_kind_name(kind), 1);
    testing::internal::CaptureStderr();
    EXPECT_EQ(choose_flush_kind(false), FlushKind::NONE);
    EXPECT_NE(testing::internal::GetCapturedStderr().find("lacks"), std::string::npos);
  }
}

}  // namespace
}  // namespace bowhead
