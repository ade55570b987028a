// SPDX-License-Identifier: Apache-2.0
// Replay: worker processes serve the requests of a trace from one pool, each as an engine would.
//
// Requests are dealt in the order of the trace; the next free worker takes the next one. Workers
// are forked before the pool is opened and share only the pool and a page of counters. For decode
// steps one more process is the device of the pool, unless another one is. If the parent dies, they
// die with it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/status.h"
#include "pool/pool.h"
#include "tools/bowhead/replay/content.h"
#include "tools/bowhead/replay/copy_limit.h"
#include "tools/bowhead/replay/decode_steps.h"
#include "tools/bowhead/replay/engine.h"
#include "tools/bowhead/replay/model_data.h"
#include "tools/bowhead/replay/trace.h"

namespace bowhead::replay {

struct ReplayOptions {
  std::string locator;
  uint32_t workers = 1;
  uint32_t hosts = 0;  ///< worker w acts as host w modulo this; 0: all as `host`
  uint32_t host = kAnyHost;
  uint64_t block_bytes = 65536;
  ValueFormat values = {};  ///< of the namespace
  uint64_t seed = 1;        ///< of the self-test's random choices
  bool self_test = false;
  bool prefault = true;
  const ModelData* model = nullptr;  ///< not null: decode steps too; content is its blocks
  StepOptions decode;                ///< then
  Progress progress;
};

/// The faults that the self-test injected and those that were found.
struct SelfTestReport {
  uint64_t flipped_injected = 0;  ///< blocks with a byte changed behind the pool's back
  uint64_t flipped_found = 0;  ///< of them: counted as damaged by the pool, a miss for the engine
  uint64_t foreign_injected = 0;  ///< blocks with wrong content, stored under a good key
  uint64_t foreign_found = 0;     ///< of them: wrong bytes for the engine
  uint64_t delivered_wrong = 0;   ///< flipped blocks that were returned: must be 0
  bool passed() const {
    return flipped_injected > 0 && flipped_found == flipped_injected && delivered_wrong == 0 &&
           foreign_injected > 0 && foreign_found == foreign_injected;
  }
};

struct ReplayReport {
  int interrupted_by = 0;  ///< a signal, or 0; the report then covers the work until it came
  double wall_s = 0;       ///< from the first request of the workers to the end of the last
  EngineStats total;
  std::vector<EngineStats> workers;
  StepStats steps{};  ///< of all workers
  PoolInfo before, after;
  uint64_t warm_blocks = 0;      ///< of this content, stored before the run
  uint64_t footprint_bytes = 0;  ///< bytes that a block occupies in the pool
  uint64_t capacity_blocks = 0;  ///< how many the pool holds; the capacity of the models
  uint64_t infinite_hits = 0, lru_hits = 0, best_hits = 0;
  CopyLimit copy_limit;
  SelfTestReport self_test;
};

/// Runs a trace. The pool must exist. Must be called by a single-threaded process with
/// ending_signals() blocked: the parent takes them from the queue of pending signals, ends the
/// workers cleanly within 2 s, and names the signal in the report. Returns the statuses of
/// Pool::open() and its operations, of device::Device for decode steps, and SYSTEM if a worker
/// cannot be started or ends by itself.
Result<ReplayReport> run_replay(const Trace& trace, const Content& content,
                                const ReplayOptions& options);

/// Flips stored bytes, stores wrong content, and serves the blocks concerned as an engine would.
/// Removes all injected faults afterwards. The pool must hold blocks of this content, which no
/// other process may use meanwhile; every host that owns some must have the pool open, to answer
/// when they are removed. Returns INVALID_ARGUMENT if the pool holds too few, and the statuses of
/// operations.
Result<SelfTestReport> run_self_test(Pool& pool, NamespaceId namespace_id, const Content& content,
                                     uint64_t block_bytes, uint64_t seed);

}  // namespace bowhead::replay
