// SPDX-License-Identifier: Apache-2.0
// The pool's code over simulated hosts, for a fixed range of seeds. `sim --seeds N --shrink` says
// more about one that fails.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "tests/sim/run.h"

namespace bowhead::sim {
namespace {

constexpr uint64_t kSeedsPerTest = 2000;

class Seeds : public testing::TestWithParam<uint64_t> {};

/// No seed fails; and what a run is about does happen.
TEST_P(Seeds, Pass) {
  Simulator simulator;
  Counts counts{};
  const uint64_t first = GetParam() * kSeedsPerTest;
  for (uint64_t seed = first; seed < first + kSeedsPerTest && !HasFailure(); ++seed) {
    const Plan plan = make_plan(seed);
    const Outcome outcome = simulator.run(plan);
    counts.add(outcome.counts);
    if (outcome.failure)
      ADD_FAILURE() << plan.describe() << outcome.last_steps << outcome.failure->kind << ": "
                    << outcome.failure->text;
  }
  fmt::print("{}\n", counts.text());
  for (const uint64_t count :
       {counts.puts, counts.no_space, counts.hits, counts.remote_hits, counts.misses,
        counts.removals, counts.leases_valid, counts.leases_lapsed, counts.reservations})
    EXPECT_GT(count, kSeedsPerTest / 20);
  EXPECT_GT(counts.lives, kSeedsPerTest * 2);
}

INSTANTIATE_TEST_SUITE_P(Ordinary, Seeds, testing::Range<uint64_t>(0, 10));

/// A run depends on its seed and on nothing else, so not on the runs before it.
TEST(Determinism, TheSameSeedTakesTheSameSteps) {
  Simulator one, other;
  std::vector<uint64_t> hashes;
  for (uint64_t seed = 0; seed < 100; ++seed) hashes.push_back(one.run(make_plan(seed)).hash);
  for (uint64_t seed = 100; seed-- > 0;)
    EXPECT_EQ(other.run(make_plan(seed)).hash, hashes[seed]) << "seed " << seed;
  std::sort(hashes.begin(), hashes.end());
  EXPECT_EQ(std::unique(hashes.begin(), hashes.end()), hashes.end());
}

}  // namespace
}  // namespace bowhead::sim
