// SPDX-License-Identifier: Apache-2.0
// Plan: everything that a seed decides beforehand. What happens step by step is drawn from the same
// seed as the run goes on, but not from the plan: so a plan can be made smaller and run again.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "pool/pool.h"
#include "tests/sim/geometry.h"

namespace bowhead::sim {

enum class FaultKind : uint8_t {
  KILL,          ///< of a process; its host goes on
  CRASH,         ///< of a host; what its cache had is lost
  PAUSE,         ///< of a host: its processes stand still, its cache does not
  STOP_PROCESS,  ///< SIGSTOP, SIGCONT: its host goes on
  LEAVE          ///< of a host, in order, after its operation
};
inline constexpr uint64_t kForever = UINT64_MAX;

struct Fault {
  FaultKind kind;
  uint32_t process;      ///< that has taken `after_steps` steps: it, or its host, is hit
  uint64_t after_steps;  ///< counted over its lives
  uint64_t duration_ns;  ///< until it is back; CRASH: kForever if it is gone for good
  bool clock_stops;      ///< PAUSE that the host's clock does not show (a virtual machine)
};

struct Plan {
  uint64_t seed = 0;
  Shape shape;
  uint32_t processes_per_host = 1;
  bool flushes = true;        ///< false: one coherence domain, nothing is ever written back
  bool weak = false;          ///< memory.h
  uint32_t store_buffer = 0;  ///< stores that a thread may be behind with (x86-TSO)
  uint32_t step_ns = 50;
  uint32_t steps_per_event = 8;                                 ///< mean
  uint32_t cache_share = 4, switch_share = 4, stall_share = 1;  ///< of the events
  uint64_t stall_ns = 1;    ///< a thread stands still for up to so long, or 4 times, see event()
  uint32_t operations = 0;  ///< of each worker
  uint32_t keys = 4;
  uint64_t think_ns = 0;  ///< mean time between two operations
  bool eviction = false;
  std::vector<Fault> faults;

  uint32_t processes() const { return shape.hosts * processes_per_host; }
  std::string describe() const;
};

/// Lengths of time in the simulated pool: those of a real one, divided so that a run is short.
inline constexpr SharingTimes kTimes{
    .beat_ms = 4, .dead_ms = 40, .grace_ms = 12, .settle_ms = 2, .reclaim_ms = 60};
inline constexpr uint64_t kMs = 1'000'000;
inline constexpr uint64_t kBeatNs = kTimes.beat_ms * kMs, kSettleNs = kTimes.settle_ms * kMs;
/// How long a line may take to memory on weak memory: just within the time that settling takes.
inline constexpr uint64_t kDrainNs = kSettleNs - 1;

Plan make_plan(uint64_t seed);

/// Smaller plans to try, those that take most away first.
std::vector<Plan> smaller(const Plan& plan);

}  // namespace bowhead::sim
