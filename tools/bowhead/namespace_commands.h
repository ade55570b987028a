// SPDX-License-Identifier: Apache-2.0
// Namespaces as `pool info` and `ns list` show them.
#pragma once

#include <string>
#include <vector>

#include "pool/pool.h"
#include "tools/bowhead/json.h"

namespace bowhead::cli {

using Usage = std::vector<NamespaceUsage>;

Json namespace_json(const PoolInfo::Namespace& ns, const Usage& all);
/// A table.
Json other_usage_json(const Usage& all);
std::string namespaces_text(const PoolInfo& info, const Usage& usage);

}  // namespace bowhead::cli
