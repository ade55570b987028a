// SPDX-License-Identifier: Apache-2.0
// How fast blocks go from a paged cache in GPU memory to a pool and back, beside one copy of as
// many bytes between that memory and pinned memory. docs/bench.md says what is timed.
#pragma once

#include <cstdint>
#include <string>

namespace bowhead::bench {

struct GpuBenchOptions {
  bool cpu_device = false;  ///< instead of a GPU: to see that it runs
  uint32_t rounds = 9;      ///< at least 5
  bool quick = false;       ///< small: no result
  bool json = false;
  std::string command;  ///< as typed, for the report
};

/// Prints to stdout. Returns an exit code: 0 measured, whether or not targets are met; 1 wrong
/// bytes; 2 what was asked for makes no sense; 3 environment, also if there is no GPU.
int run_gpu_bench(const GpuBenchOptions& options);

}  // namespace bowhead::bench
