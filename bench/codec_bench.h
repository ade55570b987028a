// SPDX-License-Identifier: Apache-2.0
// The table of compression: ratio and speed of every codec on the same blocks, beside plain copies
// of them in the same rounds. docs/bench.md describes the rows.
#pragma once

#include <cstdint>
#include <string>

namespace bowhead::bench {

struct CodecBenchOptions {
  std::string
      data;  ///< folder of captured tensors (tools/program/kv_data.h); empty: synthetic ones
  uint32_t rounds = 7;  ///< at least 5, so that a median and a spread mean something
  bool quick = false;   ///< small and short smoke test: no result
  bool json = false;    ///< one JSON line per figure instead of the table
  std::string command;  ///< as typed, for the report
};

/// Measures on one core, in a child process; prints to stdout. Returns an exit code: 0 measured; 1
/// a block was not restored exactly, and figures after it do not count; 2 usage; 3 environment.
int run_codec_bench(const CodecBenchOptions& options);

}  // namespace bowhead::bench
