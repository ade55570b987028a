// SPDX-License-Identifier: Apache-2.0
// The pool's code over simulated hosts, for a fixed range of seeds; and with seeded bugs, which
// must be found. `sim --seeds N --shrink` prints more about a seed that fails.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <string>

#include "tests/sim/run.h"
#include "tests/support/thinning.h"

namespace bowhead::sim {
namespace {

constexpr uint64_t kSeedsPerTest = 1000;
constexpr uint64_t kSeedsPerPlant = 20000;  // every change of the pool moves the seeds
constexpr uint64_t kSeedsPerHarmless = 100;

std::string text(const Plan& plan, const Outcome& outcome) {
  return fmt::format("{}{}{}: {}\n", plan.describe(), outcome.last_steps, outcome.failure->kind,
                     outcome.failure->text);
}

// ---- the seeds ----

class Seeds : public testing::TestWithParam<uint64_t> {};

/// No seed fails; and the events that a run is about do happen.
TEST_P(Seeds, Pass) {
  Simulator simulator;
  Counts counts{};
  const uint64_t first = GetParam() * kSeedsPerTest;
  for (uint64_t seed = first; seed < first + kSeedsPerTest && !HasFailure(); ++seed) {
    const Plan plan = make_plan(seed);
    const Outcome outcome = simulator.run(plan);
    counts.add(outcome.counts);
    if (outcome.failure) ADD_FAILURE() << text(plan, outcome);
  }
  fmt::print("{}\n", counts.text());
  for (const uint64_t count :
       {counts.puts, counts.no_space, counts.hits, counts.remote_hits, counts.misses,
        counts.removals, counts.leases_valid, counts.leases_lapsed, counts.reservations,
        counts.parts, counts.parts_refused})
    EXPECT_GT(count, kSeedsPerTest / 4);
  for (const uint64_t count : {counts.replacements, counts.not_replaced})
    EXPECT_GT(count, kSeedsPerTest / 20);
  EXPECT_GT(counts.lives, kSeedsPerTest * 4);
  EXPECT_GT(counts.fenced, kSeedsPerTest / 100);  // pauses: work does not make a host late
  EXPECT_GT(counts.left, kSeedsPerTest);
}

INSTANTIATE_TEST_SUITE_P(Ordinary, Seeds, testing::Range<uint64_t>(0, 20 / test::kThinning));

/// The same while sets of media come and go.
class Growing : public testing::TestWithParam<uint64_t> {};

TEST_P(Growing, Pass) {
  Simulator simulator;
  Counts counts{};
  const uint64_t first = GetParam() * kSeedsPerTest;
  for (uint64_t seed = first; seed < first + kSeedsPerTest && !HasFailure(); ++seed) {
    const Plan plan = make_plan(seed, Focus::GROWTH);
    const Outcome outcome = simulator.run(plan);
    counts.add(outcome.counts);
    if (outcome.failure) ADD_FAILURE() << text(plan, outcome);
  }
  fmt::print("{}\n", counts.text());
  for (const uint64_t count : {counts.grown, counts.drained, counts.shrunk, counts.not_changed})
    EXPECT_GT(count, kSeedsPerTest / 4);
}

INSTANTIATE_TEST_SUITE_P(Sets, Growing, testing::Range<uint64_t>(0, 4 / test::kThinning));

// ---- a run is a function of its seed ----

TEST(Determinism, TheSameSeedTakesTheSameSteps) {
  Simulator one, other;
  std::vector<uint64_t> hashes;
  for (uint64_t seed = 0; seed < 100; ++seed) hashes.push_back(one.run(make_plan(seed)).hash);
  for (uint64_t seed = 100; seed-- > 0;)
    EXPECT_EQ(other.run(make_plan(seed)).hash, hashes[seed]) << "seed " << seed;
  const std::set<uint64_t> different(hashes.begin(), hashes.end());
  EXPECT_EQ(different.size(), hashes.size());
}

/// Also of a run that fails; and a smaller plan fails in the same way.
TEST(Determinism, AFailureRepeatsAndShrinks) {
  const SeededBug* bug = find_seeded_bug("reuse-without-hazards");
  Simulator simulator;
  uint64_t seed = 0;
  Outcome outcome = simulator.run(make_plan(seed, bug->focus), bug);
  while (!outcome.failure) outcome = simulator.run(make_plan(++seed, bug->focus), bug);
  Simulator other;
  const Plan plan = make_plan(seed, bug->focus);
  EXPECT_EQ(other.run(plan, bug).failure->text, outcome.failure->text);
  const Plan small = other.shrink(plan, bug, *outcome.failure);
  EXPECT_LT(small.operations * small.processes() + small.faults.size(),
            plan.operations * plan.processes() + plan.faults.size());
  EXPECT_EQ(simulator.run(small, bug).failure->kind, outcome.failure->kind);
}

// ---- seeded bugs ----

class SeededBugs : public testing::TestWithParam<SeededBug> {};

/// A seeded bug is found, by a failure that it causes; or it is harmless, and the table says why.
/// In both cases it must have acted.
TEST_P(SeededBugs, AreFound) {
  const SeededBug bug = GetParam();
  Simulator simulator;
  const bool harmless = bug.harmless_because != nullptr;
  uint64_t acts = 0;
  const uint64_t seeds = harmless ? kSeedsPerHarmless : kSeedsPerPlant;
  for (uint64_t seed = bug.first_seed; seed < bug.first_seed + seeds; ++seed) {
    const Plan plan = make_plan(seed, bug.focus);
    const Outcome outcome = simulator.run(plan, &bug);
    acts += outcome.bug_acts;
    if (!outcome.failure || simulator.run(plan).failure) continue;
    fmt::print("found by seed {}: {}: {}\n", seed, outcome.failure->kind, outcome.failure->text);
    EXPECT_FALSE(harmless) << "not harmless, although declared so because " << bug.harmless_because
                           << "\n"
                           << text(plan, outcome);
    return;
  }
  EXPECT_GT(acts, 0u);
  EXPECT_TRUE(harmless) << "not found in " << seeds << " seeds";
}

std::string bug_name(const testing::TestParamInfo<SeededBug>& info) {
  std::string name = info.param.name;
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
}

INSTANTIATE_TEST_SUITE_P(Table, SeededBugs,
                         testing::ValuesIn(all_seeded_bugs().begin(), all_seeded_bugs().end()),
                         bug_name);

}  // namespace

void PrintTo(const SeededBug& bug, std::ostream* out) { *out << bug.name; }

}  // namespace bowhead::sim
