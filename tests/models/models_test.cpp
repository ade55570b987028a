// SPDX-License-Identifier: Apache-2.0
// Every model holds as specified and finds each wrong variant; and the explorer itself
// distinguishes weak from strong memory.
#include <gtest/gtest.h>

#include <cctype>

#include "tests/models/models.h"

namespace bowhead::models {
namespace {

class Models : public testing::TestWithParam<Case> {};

TEST_P(Models, ComeOutAsTheyMust) {
  const Verdict verdict = explore(GetParam().make());
  std::string steps;
  for (const std::string& step : verdict.trace) steps += "\n  " + step;
  ASSERT_TRUE(verdict.complete) << "stopped at " << verdict.states << " states";
  if (GetParam().finds.empty()) {
    EXPECT_EQ(verdict.failure, "") << steps;
  } else {
    EXPECT_NE(verdict.failure.find(GetParam().finds), std::string::npos)
        << "found: " << verdict.failure << steps;
  }
}

std::vector<Case> ordinary_cases() {
  std::vector<Case> cases;
  for (Case& one : all_cases()) {
    if (!one.large) cases.push_back(std::move(one));
  }
  return cases;
}

std::string name_of(const testing::TestParamInfo<Case>& param) {
  std::string name;
  bool begins = true;
  for (const char c : param.param.model + " " + param.param.variant) {
    const auto u = static_cast<unsigned char>(c);
    if (std::isalnum(u) != 0) name += begins ? static_cast<char>(std::toupper(u)) : c;
    begins = std::isalnum(u) == 0;
  }
  return name;
}

INSTANTIATE_TEST_SUITE_P(All, Models, testing::ValuesIn(ordinary_cases()), name_of);

// ---- the explorer ----

/// A writer publishes two lines, and a reader reads first one and then the other.
Model two_lines(bool weak, bool settle, bool acquire) {
  Model m;
  m.weak = weak;
  const uint32_t a = m.line({"a", 0, 1u << 1}), b = m.line({"b", 0, 1u << 1});
  m.process("writer", 0, [=](Process& p, Args) -> Program {
    co_await p.store(a, 1);
    co_await p.publish(a);
    if (settle) co_await p.settle();
    co_await p.store(b, 1);
    co_await p.publish(b);
    co_return kDone;
  });
  m.process("reader", 1, [=](Process& p, Args) -> Program {
    const int second = co_await p.load(b);
    if (acquire) co_await p.acquire(a);
    const int first = co_await p.load(a);
    if (second && !first) co_await p.fail("second before first");
    co_return kDone;
  });
  return m;
}

TEST(Explorer, DistinguishesFencesFromSettling) {
  EXPECT_EQ(explore(two_lines(false, false, true)).failure, "");
  EXPECT_EQ(explore(two_lines(false, false, false)).failure, "reader: second before first");
  EXPECT_EQ(explore(two_lines(true, false, true)).failure, "reader: second before first");
  EXPECT_EQ(explore(two_lines(true, true, true)).failure, "");
  EXPECT_EQ(explore(two_lines(true, true, false)).failure, "reader: second before first");
}

TEST(Explorer, PrintsAShortestTrace) {
  const Verdict verdict = explore(two_lines(false, false, false));
  ASSERT_EQ(verdict.trace.size(), 7u);
  EXPECT_EQ(verdict.trace.back(), "reader loads a[0]: 0");
}

TEST(Explorer, StopsAtItsLimit) {
  Model m = two_lines(false, false, true);
  m.states_max = 3;
  EXPECT_FALSE(explore(m).complete);
}

TEST(Explorer, FindsProcessesThatWaitForEver) {
  Model m;
  const uint32_t lock = m.word("lock", 1);
  m.process("waiter", 0, [=](Process& p, Args) -> Program {
    co_await p.until(lock, 0, 1);
    co_return kDone;
  });
  EXPECT_EQ(explore(m).failure, "no process can continue: waiter waits for ever");
}

/// Two words of a dirty line are written back between the two stores.
TEST(Explorer, WritesBackBetweenTwoStores) {
  Model m;
  const uint32_t a = m.line({"a", 0, 1u << 1, 2});
  m.crashes = 1;
  m.crashable = 1;
  m.process("writer", 0, [=](Process& p, Args) -> Program {
    co_await p.store(a, 0, 1);
    co_await p.store(a, 1, 1);
    co_return kDone;
  });
  m.at_rest = [=](const Rest& rest) {
    return rest.line(a, 0) != rest.line(a, 1) ? std::string("half a line") : std::string();
  };
  EXPECT_EQ(explore(m).failure, "half a line");
}

}  // namespace
}  // namespace bowhead::models
