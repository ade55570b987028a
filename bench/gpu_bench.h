// SPDX-License-Identifier: Apache-2.0
// The speed of transfers of blocks from a paged cache in GPU memory to a pool and back, beside one
// copy of as many bytes between that memory and pinned memory. docs/bench.md describes what is
// timed.
#pragma once

#include <cstdint>
#include <string>

namespace bowhead::bench {

struct GpuBenchOptions {
  bool cpu_device = false;  ///< the CPU device instead of a GPU, as a smoke test
  uint32_t rounds = 9;      ///< at least 5
  bool quick = false;       ///< small: no result
  bool json = false;
  std::string command;  ///< as typed, for the report
};

/// Prints to stdout. Returns an exit code: 0 measured, whether or not targets are met; 1 wrong
/// bytes; 2 invalid options; 3 environment, also if there is no GPU.
int run_gpu_bench(const GpuBenchOptions& options);

}  // namespace bowhead::bench
