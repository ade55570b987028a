// SPDX-License-Identifier: Apache-2.0
// The table of near-data operations: their speed beside the read and multiply speed of the same
// cores in the same rounds. docs/bench.md describes the rows.
#pragma once

#include <cstdint>
#include <string>

namespace bowhead::bench {

struct NdpBenchOptions {
  uint32_t rounds = 7;  ///< at least 5, so that a median and a spread mean something
  bool quick = false;   ///< small and short smoke test: no result
  bool json = false;    ///< one JSON line per figure instead of the table
  std::string command;  ///< as typed, for the report
};

/// Measures with threads of this process; prints to stdout. Returns an exit code: 0 measured,
/// whatever the figures; 1 a wrong answer, and figures after it do not count; 2 usage; 3
/// environment.
int run_ndp_bench(const NdpBenchOptions& options);

}  // namespace bowhead::bench
