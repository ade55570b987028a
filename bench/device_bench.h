// SPDX-License-Identifier: Apache-2.0
// The device beside the calling process: what a command costs without its work, what a request
// costs more than in the process, how long a small one waits for large ones, and how long a device
// that was killed is missing. docs/bench.md describes the rows.
#pragma once

#include <cstdint>
#include <string>

namespace bowhead::bench {

struct DeviceBenchOptions {
  std::string locator;  ///< of the pools made for it, one after another; empty: shm:bench-PID
  uint32_t rounds = 7;  ///< at least 5
  bool quick = false;   ///< few and small requests, as a smoke test: no result
  bool json = false;    ///< one JSON line per figure instead of the table
  std::string command;  ///< as typed, for the report
};

/// The device is a process of its own, pinned to one CPU, the client to another one. Prints to
/// stdout, removes its pools. Returns an exit code as run_pool_bench().
int run_device_bench(const DeviceBenchOptions& options);

}  // namespace bowhead::bench
