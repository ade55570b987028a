// SPDX-License-Identifier: Apache-2.0
// The error of attention if few tokens of a head are kept, chosen by the attention that they got so
// far: the mass that the memory accumulates (ndp/operations.h), so that no score leaves it. A
// worked example; nothing is timed. docs/bench.md describes the comparison.
#pragma once

#include <string>

namespace bowhead::bench {

struct KeepBenchOptions {
  std::string data;     ///< folder of captured tensors (tools/program/kv_data.h), with queries
  bool json = false;    ///< one JSON line per way of choosing instead of the table
  std::string command;  ///< as typed, for the report
};

/// Prints to stdout. Returns an exit code: 0 measured; 2 no set in the folder has keys and values
/// with queries, or a file does not match its description; 3 environment.
int run_keep_bench(const KeepBenchOptions& options);

}  // namespace bowhead::bench
