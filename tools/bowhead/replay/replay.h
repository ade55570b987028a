// SPDX-License-Identifier: Apache-2.0
// Replay: worker processes serve the requests of a trace from one pool, each as an engine would.
//
// Requests are dealt in the order of the trace, whichever worker is free takes the next. Workers
// are forked before the pool is opened and share nothing but the pool and a page of counters. If
// the caller dies, they die with it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/status.h"
#include "pool/pool.h"
#include "tools/bowhead/replay/content.h"
#include "tools/bowhead/replay/copy_limit.h"
#include "tools/bowhead/replay/engine.h"
#include "tools/bowhead/replay/trace.h"

namespace bowhead::replay {

struct ReplayOptions {
  std::string locator;
  uint32_t workers = 1;
  uint32_t hosts = 0;  ///< worker w acts as host w modulo this; 0: all as `host`
  uint32_t host = kAnyHost;
  uint64_t block_bytes = 65536;
  ValueFormat values = {};  ///< of the namespace
  uint64_t seed = 1;        ///< of the self-test's choices
  bool self_test = false;
  Progress progress;
};

/// What the self-test planted and what came to light.
struct SelfTestReport {
  uint64_t flipped_planted = 0;  ///< blocks with a byte changed behind the pool's back
  uint64_t flipped_found = 0;    ///< of them: counted as damaged by the pool, a miss to the engine
  uint64_t foreign_planted = 0;  ///< blocks with wrong content under a good key, well stored
  uint64_t foreign_found = 0;    ///< of them: wrong bytes to the engine
  uint64_t delivered_wrong = 0;  ///< flipped blocks that were returned: must be 0
  bool passed() const {
    return flipped_planted > 0 && flipped_found == flipped_planted && delivered_wrong == 0 &&
           foreign_planted > 0 && foreign_found == foreign_planted;
  }
};

struct ReplayReport {
  int interrupted_by = 0;  ///< a signal; then only what was done until then is here
  double wall_s = 0;       ///< of the workers, from the first request to the end of the last
  EngineStats total;
  std::vector<EngineStats> workers;
  PoolInfo before, after;
  uint64_t warm_blocks = 0;      ///< of this content, stored before the run
  uint64_t footprint_bytes = 0;  ///< what a block takes in the pool
  uint64_t capacity_blocks = 0;  ///< what the pool holds of them; what the models are given
  uint64_t infinite_hits = 0, lru_hits = 0, best_hits = 0;
  CopyLimit copy_limit;
  SelfTestReport self_test;
};

/// Runs a trace. The pool must exist. Must be called by a single-threaded process, with SIGINT,
/// SIGTERM and SIGHUP blocked: they are taken from the queue of pending signals, end the workers in
/// good order within 2 s, and are named in the report. Returns what Pool::open() and its operations
/// return, SYSTEM if a worker cannot be started or ends by itself.
Result<ReplayReport> run_replay(const Trace& trace, const Content& content,
                                const ReplayOptions& options);

/// Flips stored bytes and stores wrong content, and serves the blocks concerned as an engine would.
/// Everything planted is gone afterwards. The pool must hold blocks of this content, and nobody
/// else may use them meanwhile; every host that owns some must have the pool open, to answer when
/// they are removed. Returns INVALID_ARGUMENT if it holds too few, and what operations
/// return.
Result<SelfTestReport> run_self_test(Pool& pool, NamespaceId namespace_id, const Content& content,
                                     uint64_t block_bytes, uint64_t seed);

}  // namespace bowhead::replay
