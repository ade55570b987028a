// SPDX-License-Identifier: Apache-2.0
// The table of the pool's speed, space and recovery, each figure beside the limit of this machine
// measured in the same run. docs/bench.md describes the rows.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace bowhead::bench {

struct PoolBenchOptions {
  std::string locator;      ///< of the pools made for it, one after another; empty: shm:bench-PID
  uint64_t walk_bytes = 0;  ///< memory that a pass of the copy rows walks over; 0: 1 GiB, or four
                            ///< times the last-level cache
  std::vector<std::string> rows;  ///< of pool_bench_rows(); empty: all
  uint32_t rounds = 7;            ///< at least 5, so that a median and a spread mean something
  bool quick = false;             ///< small pools, few figures, as a smoke test: no result
  bool json = false;              ///< one JSON line per figure instead of the table
  std::string command;            ///< as typed, for the report
};

/// "copy", "queue", "alloc", "space", "rpc", "share", "exists", "open".
const std::vector<std::string>& pool_bench_rows();

/// Runs in child processes, prints to stdout, shows progress on stderr if that is a terminal, and
/// removes its pools even if it is interrupted. Returns an exit code: 0 measured, whatever the
/// figures; 1 wrong bytes or a wrong answer, and figures after it do not count; 2 usage; 3
/// environment; 128 + the number of the signal that interrupted it. The caller should be
/// single-threaded.
int run_pool_bench(const PoolBenchOptions& options);

}  // namespace bowhead::bench
