// SPDX-License-Identifier: Apache-2.0
// How many of the keys that a query scores highest are found from the first planes of the keys'
// frames, and how fast. All but speeds is the same everywhere. docs/bench.md says what is counted.
#pragma once

#include <string>

namespace bowhead::bench {

struct RecallBenchOptions {
  std::string data;     ///< folder of captured tensors (bench/kv_data.h), with queries
  bool json = false;    ///< one JSON line per number of planes instead of the table
  std::string command;  ///< as typed, for the report
};

/// Prints to stdout. Returns an exit code: 0 measured; 1 frames do not decode; 2 no set in the
/// folder has keys with queries, or a file is not what it says; 3 environment.
int run_recall_bench(const RecallBenchOptions& options);

}  // namespace bowhead::bench
