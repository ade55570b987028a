// SPDX-License-Identifier: Apache-2.0
// The benchmark of transfers runs on the CPU device and reports what docs/bench.md promises. No
// figure is asserted.
#include "bench/gpu_bench.h"

#include <set>

#include "tests/bench/captured_run.h"

namespace bowhead::bench {
namespace {

TEST(GpuBench, PrintsEveryRowAsDocumented) {
  CapturedRun run("gpu-bench-test");
  ASSERT_EQ(
      run([] {
        return run_gpu_bench(
            {.cpu_device = true, .rounds = 5, .quick = true, .json = true, .command = "the test"});
      }),
      0);
  std::set<std::string> rows;
  for (const auto& line : run.lines()) {
    rows.insert(line.at("row"));
    EXPECT_EQ(line.at("bench"), "gpu");
    EXPECT_EQ(line.at("parameters").at("cpu_device"), true);
    EXPECT_EQ(line.at("parameters").at("device"), "cpu");
    EXPECT_FALSE(line.contains("target")) << "a CPU has nothing to reach";
    EXPECT_EQ(line.at("value").at("rounds"), 5);
    EXPECT_GT(line.at("value").at("min"), 0);
    EXPECT_GT(line.at("ratio").at("median"), 0);
  }
  EXPECT_EQ(rows, (std::set<std::string>{"spill", "restore", "spill_loop", "restore_loop",
                                         "spill_path", "restore_path", "fetch_tokens",
                                         "attend_direct", "rebuild_bf16", "frames_bf16"}));
}

TEST(GpuBench, RefusesTooFewRounds) {
  CapturedRun run("gpu-bench-test");
  EXPECT_EQ(run([] { return run_gpu_bench({.cpu_device = true, .rounds = 4}); }), 2);
}

}  // namespace
}  // namespace bowhead::bench
