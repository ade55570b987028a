// SPDX-License-Identifier: Apache-2.0
// What an ideal cache would have hit on the same requests: the yardsticks beside a measured hit
// rate.
//
// A block hits if it and all blocks before it in its request are there when the request comes.
// After a request all its blocks have been stored. Capacity is counted in blocks; nothing else
// takes room.
#pragma once

#include <cstdint>

#include "tools/bowhead/replay/trace.h"

namespace bowhead::replay {

/// Hits with an endless cache.
uint64_t infinite_hits(const Trace& trace);

/// Hits with exact LRU. Within a request the first block is the most recent and the last the
/// oldest, so that a prefix is eaten from its end.
uint64_t lru_hits(const Trace& trace, uint64_t capacity_blocks);

/// Hits of the best that any policy can do that knows the future (Belady's MIN; it may also decline
/// to store). Exact for prefix caches too: a block is never needed sooner than the one before it,
/// so MIN never keeps it longer, and what it keeps is always a prefix.
uint64_t best_hits(const Trace& trace, uint64_t capacity_blocks);

}  // namespace bowhead::replay
