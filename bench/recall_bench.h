// SPDX-License-Identifier: Apache-2.0
// The share of a query's highest-scoring keys that are found from the first planes of the keys'
// frames, and the speed. Only speeds depend on the machine. docs/bench.md describes the counts.
#pragma once

#include <string>

namespace bowhead::bench {

struct RecallBenchOptions {
  std::string data;     ///< folder of captured tensors (tools/program/kv_data.h), with queries
  bool json = false;    ///< one JSON line per number of planes instead of the table
  std::string command;  ///< as typed, for the report
};

/// Prints to stdout. Returns an exit code: 0 measured; 1 frames do not decode; 2 no set in the
/// folder has keys with queries, or a file does not match its description; 3 environment.
int run_recall_bench(const RecallBenchOptions& options);

}  // namespace bowhead::bench
