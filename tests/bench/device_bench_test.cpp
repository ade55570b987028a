// SPDX-License-Identifier: Apache-2.0
// The benchmark of the device runs and reports what docs/bench.md promises. No figure is asserted.
#include "bench/device_bench.h"

#include <set>

#include "tests/bench/captured_run.h"
#include "tools/program/machine.h"

namespace bowhead::bench {
namespace {

TEST(DeviceBench, PrintsEveryRowAsDocumented) {
  if (this_machine().cpus.size() < 2) GTEST_SKIP() << "one CPU";
  CapturedRun run("device-bench-test");
  ASSERT_EQ(
      run([] {
        return run_device_bench({.rounds = 5, .quick = true, .json = true, .command = "the test"});
      }),
      0);
  std::set<std::string> rows;
  for (const auto& line : run.lines()) {
    rows.insert(line.at("row"));
    EXPECT_EQ(line.at("bench"), "device");
    EXPECT_EQ(line.at("quick"), true);
    EXPECT_EQ(line.at("value").at("rounds"), 5);
    EXPECT_GT(line.at("value").at("min"), 0);
    EXPECT_EQ(line.contains("target"), line.at("row") != "hotness");
  }
  EXPECT_EQ(rows, (std::set<std::string>{"empty", "empty_depth", "topk", "small", "hotness",
                                         "restart", "empty_flushed", "empty_depth_flushed"}));
}

TEST(DeviceBench, RefusesTooFewRounds) {
  CapturedRun run("device-bench-test");
  EXPECT_EQ(run([] { return run_device_bench({.rounds = 4}); }), 2);
}

}  // namespace
}  // namespace bowhead::bench
