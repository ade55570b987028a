// SPDX-License-Identifier: Apache-2.0
// The cost of finding the best keys by ndp/plane_keys.h: part of `bowhead-bench recall`.
#pragma once

#include <string>
#include <vector>

#include "base/status.h"
#include "tools/program/kv_data.h"

namespace bowhead::bench {

/// Searches with the queries of all heads at these positions, or at every n-th position if there
/// are many, and prints. Exact answers are compared with scores of the keys themselves: DAMAGED if
/// one differs. Sets whose positions are too early are skipped.
Result<void> measure_top_k(const tensors::KvTensor& keys, const tensors::KvTensor& queries,
                           const std::vector<uint32_t>& positions, bool json,
                           const std::string& command);

}  // namespace bowhead::bench
