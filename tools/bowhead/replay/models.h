// SPDX-License-Identifier: Apache-2.0
// The hits of ideal caches on the same requests, to compare a measured hit rate with.
//
// A block hits if it and all blocks before it in its request are cached when the request comes.
// After a request all its blocks are stored. Capacity is counted in blocks; nothing else takes
// space.
#pragma once

#include <cstdint>

#include "tools/bowhead/replay/trace.h"

namespace bowhead::replay {

/// Hits of an endless cache.
uint64_t infinite_hits(const Trace& trace);

/// Hits of exact LRU. Within a request the first block is the most recent and the last the oldest,
/// so that a prefix is evicted from its end.
uint64_t lru_hits(const Trace& trace, uint64_t capacity_blocks);

/// Hits of the best policy that knows the future (Belady's MIN; it may also decline to store).
/// Exact for prefix caches too: a block is never needed sooner than the one before it, so MIN never
/// keeps it longer, and the cached blocks always form a prefix.
uint64_t best_hits(const Trace& trace, uint64_t capacity_blocks);

}  // namespace bowhead::replay
