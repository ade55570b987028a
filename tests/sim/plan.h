// SPDX-License-Identifier: Apache-2.0
// Plan: everything that a seed decides beforehand. The steps are drawn from the same seed during
// the run, but not from the plan: so a plan can be reduced and run again.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "pool/pool.h"
#include "tests/sim/geometry.h"

namespace bowhead::sim {

enum class FaultKind : uint8_t {
  KILL,          ///< of a process; its host continues
  CRASH,         ///< of a host; the content of its cache is lost
  PAUSE,         ///< of a host: its processes are paused, its cache is not
  STOP_PROCESS,  ///< SIGSTOP, SIGCONT: its host continues
  STALL,         ///< of a worker
  LEAVE          ///< of a host, in order, after its operation
};
inline constexpr uint64_t kForever = UINT64_MAX;

/// The stores of a process from which a fault may count.
enum class Since : uint8_t {
  START,
  GIVEN,     ///< of an extent
  CLAIM,     ///< the same
  ACCEPTED,  ///< of a value, in a decision about another host
  KEY,       ///< of a block
  RETIRED,   ///< of a header
  LEASE,     ///< not a store: it requests one
  REPLACES,  ///< the same: it begins to replace a content
  VIEW,      ///< that some life is over
  LOGGED     ///< a change of its index
};

struct Fault {
  FaultKind kind;
  uint32_t process;      ///< after `after_steps` steps the fault hits it or its host
  uint64_t after_steps;  ///< counted over its lives
  uint64_t duration_ns;  ///< until it is back; CRASH: kForever if it never comes back
  bool clock_stops;      ///< PAUSE that the host's clock does not show (a virtual machine)
  Since since = Since::START;
  uint32_t by = 0;         ///< the process that stores it, if `since` is not START
  bool each_time = false;  ///< not the first time only
};

/// The operations of the workers.
enum class Work : uint8_t {
  ANYTHING,
  LEASES,    ///< leases, and operations that can break them
  KEEP,      ///< no removals or evictions: every put must be found in the end
  GREEDY,    ///< the last host puts all it can, and needs extents that others can spare
  CONTENTS,  ///< contents are replaced and read in pieces, keys are removed and put again
  CUSTODY,   ///< the first host reads much and stores little, the others put and remove
  SPACES,    ///< namespaces are registered with several layouts, filled, and removed
  BATCHES,   ///< puts, replacements and removals, and batches of look-ups
  GROWTH     ///< sets of media come and go
};

/// A second machine that is to run as the same host as the last one.
enum class Twin : uint8_t {
  NONE,
  SAME_ID,  ///< from the same disk image: its machine id is the same, nothing else is
  CLONE     ///< a copy of the machine as it ran: all ids are the same
};

struct Plan {
  uint64_t seed = 0;
  Shape shape;
  std::vector<uint32_t> slots;  ///< host slots that have a machine; empty: all
  Twin twin = Twin::NONE;
  uint32_t processes_per_host = 1;
  uint32_t workers = 1;       ///< threads of each process that put and get
  bool slow_duties = false;   ///< duties other than the heartbeat may take longer than dead_ms
  bool flushes = true;        ///< false: one coherence domain, nothing is ever written back
  bool keeps_lines = false;   ///< a flush keeps the line in the cache, clean, as CLWB does
  bool weak = false;          ///< memory.h
  uint32_t store_buffer = 0;  ///< depth of a thread's store buffer (x86-TSO)
  uint32_t step_ns = 50;
  uint32_t steps_per_event = 8;                                 ///< mean
  uint32_t cache_share = 4, switch_share = 4, stall_share = 1;  ///< share of the events
  uint64_t stall_ns = 1;           ///< maximum pause of a thread, or 4 times that, see event()
  uint32_t stall_magnitudes = 10;  ///< magnitudes below that, equally likely
  uint32_t operations = 0;         ///< of each worker
  uint32_t keys = 4;
  uint32_t batch = 1;  ///< keys that one put, get or removal takes at most
  Work work = Work::ANYTHING;
  bool some_without_sum = false;  ///< share of the reservations
  bool long_keys = false;         ///< of two lines, all but the first
  uint64_t think_ns = 0;          ///< mean time between two operations
  bool eviction = false;
  uint32_t larger_share = 4;          ///< one in this many values takes a block of the next size
  uint32_t larger_from = UINT32_MAX;  ///< from this key on, all values do
  std::vector<Fault> faults;

  /// Without the second machine of a host.
  uint32_t hosts_used() const {
    return slots.empty() ? shape.hosts : static_cast<uint32_t>(slots.size());
  }
  uint32_t machines() const { return hosts_used() + (twin == Twin::NONE ? 0 : 1); }
  /// The second machine of a host comes last and has the slot of the machine before it.
  uint32_t slot_of(uint32_t machine) const {
    const uint32_t n = std::min(machine, hosts_used() - 1);
    return slots.empty() ? n : slots[n];
  }
  uint32_t processes() const { return machines() * processes_per_host; }
  std::string describe() const;
};

/// Times of the simulated pool: those of a real one, divided so that a run is short.
inline constexpr SharingTimes kTimes{
    .heartbeat_ms = 4, .dead_ms = 40, .grace_ms = 12, .settle_ms = 2, .reclaim_ms = 60};
inline constexpr uint64_t kMs = 1'000'000;
inline constexpr uint64_t kHeartbeatNs = kTimes.heartbeat_ms * kMs,
                          kSettleNs = kTimes.settle_ms * kMs;
/// The time that a line may take to the memory on weak memory: just within the settling time.
inline constexpr uint64_t kDrainNs = kSettleNs - 1;

/// The purpose of a plan. Seeded bugs that show rarely are searched for where they can show.
enum class Focus : uint8_t {
  ANYTHING,
  LEASES,     ///< two hosts on eight blocks and two keys, stalled often
  SLOW,       ///< the same, spread over more heartbeats: puts settle
  WEAK,       ///< the same on weak memory
  ALONE,      ///< the same of two processes of one host, in one coherence domain
  RETIRES,    ///< the same of two hosts, one of which is paused when it retires a block
  PAIRS,      ///< the same of two hosts of two processes, with delayed stores
  LONG_KEYS,  ///< keys that take more than one line
  STOPPED,    ///< one of two processes of a host is stopped while the other continues
  ZOMBIES,    ///< a host is paused until the others have reused its space
  LAPSED,     ///< the same, and all have leases
  DECISIONS,  ///< a host dies, and then the host that decides about it is hit
  KEEP,       ///< a host dies, and its blocks must still be found
  GRANTS,     ///< extents change owners, and the owners are hit
  CONTENTS,   ///< contents are replaced, some by hosts that crash meanwhile or are over
  CUSTODY,    ///< a host dies for good; a host that read other blocks there moves its blocks
  TWINS,      ///< two machines run as one host, or try to
  LATE,       ///< duties and joins that take longer than dead_ms
  RETURNS,    ///< a host dies and comes back, again and again; one thread is late each time
  WORDS,      ///< extents are carved and coalesced, and there are words for one or two of them
  MANY,       ///< all host slots there can be, few of them or all in use
  SPACES,     ///< namespaces are registered and removed, and a host dies
  LOGS,       ///< indexes change fast, and others follow by the change log
  BATCHES,    ///< any plan, with puts, gets and removals of several keys at once
  GROWTH      ///< the pool grows by sets of media, which are drained and removed
};

/// By name, in lower case; none if there is no such focus.
std::optional<Focus> find_focus(std::string_view name);
std::span<const std::string_view> focus_names();

Plan make_plan(uint64_t seed, Focus focus = Focus::ANYTHING);

/// Smaller plans to try, the largest reductions first.
std::vector<Plan> smaller(const Plan& plan);

}  // namespace bowhead::sim
