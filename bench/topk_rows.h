// SPDX-License-Identifier: Apache-2.0
// What finding the best keys takes by ndp/plane_keys.h: part of `bowhead-bench recall`.
#pragma once

#include <string>
#include <vector>

#include "base/status.h"
#include "bench/kv_data.h"

namespace bowhead::bench {

/// Looks at the queries of all heads at these positions, at every so many-th one if they are many,
/// and prints. Exact answers are compared with scores of the keys themselves: DAMAGED if one
/// differs. Sets whose positions are too early are left out.
Result<void> measure_top_k(const KvTensor& keys, const KvTensor& queries,
                           const std::vector<uint32_t>& positions, bool json,
                           const std::string& command);

}  // namespace bowhead::bench
