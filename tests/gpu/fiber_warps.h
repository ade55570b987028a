// SPDX-License-Identifier: Apache-2.0
// Warps whose lanes are fibers: each lane runs on its own until it reaches a call that all 32 must
// reach, and a seed decides which lane of which warp continues at a load or store. So code that
// lacks a sync behaves as it might on a GPU, and is found twice: its results differ from those of a
// loop over lanes, and accesses that no sync orders are reported whatever their outcome.
//
// Reported as a fault, by the rules of CUDA for a kernel without block-wide syncs:
// - bytes that one lane stores and another one of its warp loads or stores without a Warp::sync()
//   between; of two warps, at any time. Exchanges of values (sums and the like) order no memory;
// - bytes that are loaded as constant and stored in the same launch;
// - bytes that a lane stores as one type and loads as another without keep_order() between;
// - lanes of a warp that wait at different calls, or for lanes that have ended.
//
// fiber_lanes.h makes kernels of it. For one thread at a time per launch; threads do not share.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <set>
#include <source_location>
#include <string>
#include <vector>

namespace bowhead::gpu::fibers {

/// The way in which the kernels of this thread run.
struct Plan {
  uint64_t seed = 0;
  /// The site of a call of Warp or of keep_order() that does nothing: an exchange gives each lane
  /// its own value. Empty: no call is left out.
  std::string omitted = {};
};

struct Outcome {
  std::vector<std::string> faults;  ///< of each launch the first ones
  std::set<std::string> sites;      ///< of calls that were reached, "rebuild_tiles.h:172:5"
  uint64_t switches = 0;            ///< from one lane to another
};

/// Runs the kernels of `work` in this thread, by the plan.
Outcome run(const Plan& plan, const std::function<void()>& work);

// ---- for fiber_lanes.h, from inside a kernel ----

enum class Access { LOAD, LOAD_CONSTANT, STORE, ADD };

void run_warps(uint32_t units, const std::function<void(uint32_t, uint32_t)>& body);
uint32_t lane();
void access(Access kind, const void* at, size_t size_bytes);
void sync(std::source_location where);
void keep_order(std::source_location where);
/// The values of all lanes; null: the call is left out. Valid until the lane's next exchange.
const uint64_t* exchange(uint64_t own, std::source_location where);

}  // namespace bowhead::gpu::fibers
