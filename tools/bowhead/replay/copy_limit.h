// SPDX-License-Identifier: Apache-2.0
// The machine's copy limit: the speed of plain copies of blocks by as many cores as there are
// workers. No pool can exceed it, so it is measured beside the pool.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "base/copy.h"
#include "base/status.h"

namespace bowhead::replay {

struct CopyLimit {
  struct Kind {
    CopyKind kind;
    double gb_per_s;  ///< bytes copied (not read plus written) by all workers, best round
  };
  std::vector<Kind> kinds;
  double best_gb_per_s = 0;
  uint32_t rounds = 0;
  uint64_t footprint_bytes = 0;  ///< sources and destinations together
  bool beyond_cache = false;     ///< at least twice the last-level cache
};

/// Copies block by block from one end to the other of memory larger than the caches: all kinds in
/// turn, `rounds` times. Uses at most a quarter of the free memory and not much more than
/// `moved_bytes`: a replay that moves little stays in the caches, and so must its limit. Starts and
/// ends threads. Calls `stop` now and then, on the calling thread, and returns early if it returns
/// true. Returns SYSTEM if a thread cannot be started.
Result<CopyLimit> measure_copy_limit(uint32_t workers, uint64_t block_bytes, uint64_t moved_bytes,
                                     uint32_t rounds, const std::function<bool()>& stop);

}  // namespace bowhead::replay
