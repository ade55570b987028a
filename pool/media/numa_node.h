// SPDX-License-Identifier: Apache-2.0
// Memory of one NUMA node, through libnuma. In a build without it everything is NOT_SUPPORTED.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "base/status.h"

namespace bowhead {

/// The number of a node that has memory which this process may use. Returns BAD_LOCATOR (no number,
/// no such node, or one without memory), NOT_SUPPORTED, SYSTEM (a cpuset forbids the node).
Result<int> parse_node(const std::string& text);

/// Memory that the node has free, or holds as cache of files. Returns SYSTEM.
Result<uint64_t> free_bytes_of_node(int node);

/// Binds [base, base + bytes), a shared mapping of a file, to the node: pages that the file gets
/// from now on, through whatever mapping or call, come from there. Returns SYSTEM.
Result<void> bind_to_node(std::byte* base, uint64_t bytes, int node);

/// Looks where every page of the range lies. Returns SYSTEM: one lies on another node, or where
/// they lie cannot be learned.
Result<void> check_is_on_node(std::byte* base, uint64_t bytes, int node);

}  // namespace bowhead
