// SPDX-License-Identifier: Apache-2.0
#include "tests/sim/plan.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "tests/sim/dice.h"

namespace bowhead::sim {
namespace {

const char* fault_name(FaultKind kind) {
  switch (kind) {
    case FaultKind::KILL:
      return "kill";
    case FaultKind::CRASH:
      return "crash";
    case FaultKind::PAUSE:
      return "pause";
    case FaultKind::STOP_PROCESS:
      return "stop";
    case FaultKind::STALL:
      return "stall";
    case FaultKind::LEAVE:
      return "leave";
  }
  return "";
}

const char* since_name(Since since) {
  switch (since) {
    case Since::START:
      return "";
    case Since::GIVEN:
      return " since it gave an extent away";
    case Since::CLAIM:
      return " since it claimed one";
    case Since::ACCEPTED:
      return " since it accepted a value";
    case Since::KEY:
      return " since it wrote a key";
    case Since::RETIRED:
      return " since it retired a block";
    case Since::LEASE:
      return " since it asked for a lease";
    case Since::REPLACES:
      return " since it began to replace a content";
    case Since::VIEW:
      return " since it noted that a life is over";
    case Since::LOGGED:
      return " since it logged a change";
  }
  return "";
}

constexpr std::string_view kFocusNames[] = {
    "anything",  "leases",  "slow",    "weak",   "alone",     "retires", "pairs",
    "long-keys", "stopped", "zombies", "lapsed", "decisions", "keep",    "grants",
    "contents",  "custody", "twins",   "late",   "returns",   "words",   "many",
    "spaces",    "logs",    "batches", "growth"};
static_assert(std::size(kFocusNames) == static_cast<size_t>(Focus::GROWTH) + 1);

/// 1 to 2^bits - 1, all magnitudes equally likely.
uint64_t any_magnitude(Dice& random, uint64_t bits) {
  return 1 + random.below(uint64_t{1} << random.below(bits));
}

Fault make_fault(Dice& random, const Plan& plan) {
  Fault fault{};
  fault.process = static_cast<uint32_t>(random.below(plan.processes()));
  fault.after_steps = any_magnitude(random, 16);
  static constexpr FaultKind kKinds[] = {
      FaultKind::KILL,  FaultKind::KILL,  FaultKind::KILL,  FaultKind::STOP_PROCESS,
      FaultKind::PAUSE, FaultKind::CRASH, FaultKind::CRASH, FaultKind::LEAVE};
  fault.kind = kKinds[random.below(std::size(kKinds))];
  // Lines that are never flushed are lost with the machine, and the pool with them.
  if (fault.kind == FaultKind::CRASH && !plan.flushes) fault.kind = FaultKind::KILL;
  // Some hosts are back before they are missed, some after all is decided and done.
  const uint64_t longest = 2 * (kTimes.dead_ms + kTimes.grace_ms + kTimes.reclaim_ms) * kMs;
  fault.duration_ns = kSettleNs + random.below(longest >> random.below(6));
  fault.clock_stops = random.below(4) == 0;
  // Of several hosts the first one never dies for good.
  if (fault.kind == FaultKind::CRASH && fault.process >= plan.processes_per_host &&
      random.below(4) == 0)
    fault.duration_ns = kForever;
  return fault;
}

Fault crash(uint32_t process, uint64_t after_steps, uint64_t duration_ns) {
  return {.kind = FaultKind::CRASH,
          .process = process,
          .after_steps = after_steps,
          .duration_ns = duration_ns,
          .clock_stops = false};
}
Fault pause(uint32_t process, uint64_t after_steps, uint64_t duration_ns) {
  Fault fault = crash(process, after_steps, duration_ns);
  fault.kind = FaultKind::PAUSE;
  return fault;
}
Fault since(Since what, uint32_t by, Fault fault) {
  fault.since = what;
  fault.by = by;
  return fault;
}

/// Every time, not only once.
Fault stall(Since what, uint32_t process, uint64_t after_steps, uint64_t duration_ns) {
  Fault fault = since(what, process, crash(process, after_steps, duration_ns));
  fault.kind = FaultKind::STALL;
  fault.each_time = true;
  return fault;
}

void aim_at_leases(Dice& random, Plan& plan, Focus focus) {
  const bool slow = focus == Focus::SLOW || focus == Focus::WEAK;
  plan.work = Work::LEASES;
  plan.some_without_sum = true;
  plan.long_keys = focus == Focus::LONG_KEYS;
  plan.operations = 60;
  plan.think_ns = slow ? kHeartbeatNs >> random.below(5) : 0;
  plan.stall_share = 2;
  plan.stall_magnitudes = 6;
  plan.stall_ns = focus == Focus::WEAK ? kMs : 16 * kMs;
  // Lines in flight stay there while few events happen.
  if (slow) plan.steps_per_event = 8u << random.below(3);
  plan.shape.hosts = 2;
  plan.shape.leases = 5;
  plan.weak = plan.weak || focus == Focus::WEAK;
  if (focus == Focus::RETIRES) {
    plan.steps_per_event = 32;
    plan.faults = {stall(Since::RETIRED, 0, 14 + random.below(14), (8 + random.below(16)) * kMs),
                   stall(Since::LEASE, 1, 40 + random.below(30), (10 + random.below(20)) * kMs)};
  }
  if (focus != Focus::ALONE && focus != Focus::PAIRS) return;
  plan.processes_per_host = 2;
  plan.store_buffer = 4;
  plan.operations = 200;
  plan.stall_magnitudes = 12;
  plan.shape.hosts = 1;
  plan.weak = false;
  plan.flushes = focus == Focus::PAIRS;
}

/// The last host dies. The host that decides about it is paused after it has accepted a value; or
/// the dead host is back at the moment when it would be missed, and decides too.
void aim_at_decisions(Dice& random, Plan& plan) {
  plan.operations = 4;
  plan.think_ns = kHeartbeatNs;
  plan.shape.hosts = 3;
  const bool is_back = random.below(2) == 0;
  // One of them for longer and earlier: the other one is back first.
  const bool in_turn = random.below(2) == 0;
  plan.faults.push_back(crash(2, 1000 + any_magnitude(random, in_turn ? 6 : 12),
                              is_back ? (kTimes.dead_ms - 2 + random.below(12)) * kMs : kForever));
  for (uint32_t process = 0; process < 2 && !is_back; ++process) {
    Fault fault = pause(process, random.below(40), (8 + random.below(28)) * kMs);
    if (in_turn)
      fault = process == 0 ? pause(0, 10 + random.below(8), (26 + random.below(10)) * kMs)
                           : pause(1, 20 + random.below(14), (9 + random.below(13)) * kMs);
    plan.faults.push_back(since(Since::ACCEPTED, process, fault));
  }
}

void aim_at_grants(Dice& random, Plan& plan) {
  plan.work = Work::GREEDY;
  plan.operations = 40;
  plan.think_ns = kHeartbeatNs;
  plan.keys = 20;
  plan.shape.hosts = 3;
  plan.shape.leases = 5;
  plan.stall_ns = kMs;  // a heartbeat takes long enough here
  plan.steps_per_event = 2u << random.below(5);
  plan.cache_share = 16;
  const auto crash_of_grantor = since(Since::GIVEN, 1, crash(1, random.below(400), kForever));
  switch (random.below(3)) {
    case 0:  // the claimant is paused until others have decided about the grantor
      plan.faults = {crash_of_grantor,
                     since(Since::CLAIM, 2,
                           pause(2, any_magnitude(random, 10), (38 + random.below(5)) * kMs))};
      return;
    case 1:  // or claims just before they do
      plan.faults = {crash_of_grantor,
                     since(Since::GIVEN, 1, pause(2, 0, (24 + random.below(14)) * kMs))};
      return;
    default:  // the grantors die while they put
      for (uint32_t process = 0; process < 2; ++process)
        plan.faults.push_back(since(Since::KEY, process,
                                    {.kind = FaultKind::KILL,
                                     .process = process,
                                     .after_steps = random.below(12),
                                     .duration_ns = kMs,
                                     .clock_stops = false}));
  }
}

/// Replacements among all other work. Or the first one of process 0 is paused in the middle, the
/// other process of its host continues, and the host crashes meanwhile. Or a host becomes a zombie.
void aim_at_contents(Dice& random, Plan& plan) {
  plan.work = Work::CONTENTS;
  plan.operations = 60;
  plan.larger_share = 2;
  plan.shape.hosts = 2;
  plan.shape.leases = 5;
  plan.processes_per_host = 1 + static_cast<uint32_t>(random.below(2));
  plan.think_ns = random.below(2) == 0 ? 0 : kHeartbeatNs >> random.below(5);
  plan.stall_share = 2;
  plan.stall_magnitudes = 6;
  if (plan.processes_per_host == 1) return;
  switch (random.below(3)) {
    case 0:
      plan.think_ns = 0;
      plan.keys = 1;
      plan.faults = {
          stall(Since::REPLACES, 0, 50 + random.below(64), 16 * kMs),
          since(Since::REPLACES, 0, crash(1, 200 + any_magnitude(random, 12), 10 * kMs))};
      return;
    case 1:
      plan.think_ns = kHeartbeatNs / 8;
      plan.larger_share = 1;
      plan.faults = {pause(static_cast<uint32_t>(random.below(4)), 1000 + any_magnitude(random, 13),
                           (100 + random.below(150)) * kMs)};
      return;
    default:
      return;
  }
}

/// A host stores and keeps; the last one crashes.
void aim_at_keeping(Dice& random, Plan& plan) {
  plan.work = Work::KEEP;
  plan.operations = 12;
  plan.keys = 4;
  plan.stall_share = 0;
  plan.faults.push_back(crash(plan.shape.hosts - 1, 3000 + any_magnitude(random, 13),
                              random.below(2) == 0 ? 10 * kMs : kForever));
}

/// Values of several sizes take turns in the extents, whose words go from one to the other.
void aim_at_words(Dice& random, Plan& plan) {
  plan.operations = 100 + static_cast<uint32_t>(random.below(200));
  plan.think_ns = 0;
  plan.keys = 3 + static_cast<uint32_t>(random.below(6));
  plan.larger_share = 2;
  plan.eviction = random.below(4) != 0;
  plan.shape.hosts = 1;
  plan.shape.worded = 1 + random.below(2);
  plan.processes_per_host = 2;
  plan.stall_share = 2;
  plan.stall_magnitudes = 12;
  if (random.below(2) == 0) plan.faults.push_back(make_fault(random, plan));
}

/// The last host puts and removes until it crashes; the first one has read much of that, and then
/// moves the blocks that it has in custody, to make space for larger values.
void aim_at_custody(Dice& random, Plan& plan) {
  plan.work = Work::CUSTODY;
  plan.operations = 120 + static_cast<uint32_t>(random.below(100));
  plan.think_ns = kHeartbeatNs / 4;
  plan.shape.hosts = 2;
  plan.shape.buckets = 5;
  plan.keys = 12 + static_cast<uint32_t>(random.below(5));
  plan.larger_share = 64;
  plan.larger_from = 8;
  plan.some_without_sum = random.below(2) == 0;
  plan.stall_share = 0;
  plan.faults = {
      crash(1, 20'000 + random.below(80'000), random.below(4) == 0 ? 150 * kMs : kForever)};
}

/// The second machine tries to join again and again. A clone gets in only while the first one is
/// paused.
void aim_at_twins(Dice& random, Plan& plan) {
  plan.operations = 30;
  plan.think_ns = kHeartbeatNs;
  plan.twin = random.below(2) == 0 ? Twin::SAME_ID : Twin::CLONE;
  const uint32_t last = plan.shape.hosts - 1;
  if (plan.twin == Twin::CLONE)
    plan.faults = {pause(last, 3000 + any_magnitude(random, 13), (24 + random.below(60)) * kMs)};
  else if (random.below(2) == 0)
    plan.faults = {{.kind = random.below(2) == 0 ? FaultKind::LEAVE : FaultKind::CRASH,
                    .process = last,
                    .after_steps = 3000 + any_magnitude(random, 13),
                    .duration_ns = (10 + random.below(100)) * kMs,
                    .clock_stops = false}};
}

/// Deaths give late hosts some work.
void aim_at_duties(Dice& random, Plan& plan) {
  plan.slow_duties = true;
  plan.operations = 20;
  plan.keys = 6;
  plan.think_ns = 2 * kHeartbeatNs;
  plan.stall_share = 1;
  plan.steps_per_event = 8;
  if (random.below(2) == 0)
    plan.faults = {crash(plan.shape.hosts - 1, 3000 + any_magnitude(random, 12),
                         random.below(2) == 0 ? 10 * kMs : kForever)};
}

/// A host that has seen that a life is over, and is paused before it notes that, is overtaken by
/// hosts that have seen that the next life is over too.
void aim_at_returns(Dice& random, Plan& plan) {
  plan.operations = 60;
  plan.think_ns = kHeartbeatNs;
  plan.shape.hosts = 2;
  for (uint64_t n = 1; n < 7; ++n) plan.faults.push_back(crash(1, n * 4000, 4 * kMs));
  plan.faults.push_back(stall(Since::VIEW, 0, random.below(3), (20 + random.below(80)) * kMs));
}

void aim_at_many(Dice& random, Plan& plan) {
  plan.shape.hosts = BH_HOSTS_MAX;
  plan.shape.extents = BH_HOSTS_MAX;
  plan.work = Work::ANYTHING;
  plan.operations = 3;
  plan.steps_per_event = 64;
  plan.think_ns = kHeartbeatNs;
  if (random.below(16) == 0) return;
  plan.slots = {static_cast<uint32_t>(random.below(8))};
  for (uint64_t n = 1 + random.below(3); n > 0; --n)
    plan.slots.push_back(plan.slots.back() + 1 + static_cast<uint32_t>(random.below(18)));
  if (random.below(2) == 0)
    plan.faults = {
        crash(1, 1000 + any_magnitude(random, 16), random.below(2) == 0 ? 10 * kMs : kForever)};
}

/// Half of the runs have a fault, of any kind.
void aim_at_spaces(Dice& random, Plan& plan) {
  plan.work = Work::SPACES;
  plan.operations = 24;
  plan.shape.namespaces = 128;
  plan.processes_per_host = 1 + static_cast<uint32_t>(random.below(2));
  plan.think_ns = random.below(2) == 0 ? 0 : kHeartbeatNs >> random.below(4);
  if (random.below(2) == 0) plan.faults = {make_fault(random, plan)};
}

/// The first host puts much; the last one looks up batches, now and then or all the time. Some
/// processes of the first host are stopped or killed with a word of the log written, and no more.
/// Or another host dies, and then a process of the host that adopts its blocks.
void aim_at_logs(Dice& random, Plan& plan) {
  plan.work = Work::BATCHES;
  plan.operations = 60;
  plan.keys = 6;
  plan.shape.hosts = 2;
  plan.processes_per_host = 1 + static_cast<uint32_t>(random.below(2));
  plan.think_ns = random.below(2) == 0 ? 0 : kHeartbeatNs >> random.below(5);
  plan.stall_share = static_cast<uint32_t>(random.below(2));
  const auto lasts_ns = (1 + random.below(100)) * kMs;
  switch (random.below(5)) {
    case 0:
      return;
    case 2:
      plan.shape.hosts = 3;
      plan.processes_per_host = 2;
      plan.faults = {crash(2, 3000 + any_magnitude(random, 14), kForever)};
      for (const uint32_t process : {0u, 1u}) {
        Fault fault = since(Since::VIEW, process, crash(process, any_magnitude(random, 13), kMs));
        fault.kind = FaultKind::KILL;
        plan.faults.push_back(fault);
      }
      return;
    case 1:
      plan.faults = {crash(0, 3000 + any_magnitude(random, 14), 4 * kMs + random.below(20 * kMs))};
      return;
    default: {
      Fault fault = since(Since::LOGGED, 0, crash(0, random.below(4), lasts_ns));
      fault.kind = random.below(2) == 0 ? FaultKind::STOP_PROCESS : FaultKind::KILL;
      fault.each_time = fault.kind == FaultKind::STOP_PROCESS && random.below(2) == 0;
      plan.faults = {fault};
    }
  }
}

/// A host or a process may be hit, in the middle of a change or of the moves that it leads to.
void aim_at_growth(Dice& random, Plan& plan) {
  plan.work = Work::GROWTH;
  plan.operations = 30 + static_cast<uint32_t>(random.below(40));
  plan.keys = 4 + static_cast<uint32_t>(random.below(8));
  plan.shape.hosts = 1 + static_cast<uint32_t>(random.below(3));
  plan.shape.growth = plan.shape.hosts + random.below(3);
  plan.processes_per_host = 1 + static_cast<uint32_t>(random.below(2));
  plan.think_ns = random.below(3) == 0 ? 0 : kHeartbeatNs >> random.below(4);
  plan.eviction = random.below(3) == 0;
  plan.steps_per_event = 8u << random.below(4);
  for (uint64_t n = random.below(3); n > 0; --n) plan.faults.push_back(make_fault(random, plan));
}

void aim_at_hosts(Dice& random, Plan& plan, Focus focus) {
  if (focus == Focus::GROWTH) aim_at_growth(random, plan);
  if (focus == Focus::LOGS) aim_at_logs(random, plan);
  if (focus == Focus::SPACES) aim_at_spaces(random, plan);
  if (focus == Focus::CUSTODY) aim_at_custody(random, plan);
  if (focus == Focus::TWINS) aim_at_twins(random, plan);
  if (focus == Focus::LATE) aim_at_duties(random, plan);
  if (focus == Focus::RETURNS) aim_at_returns(random, plan);
}

void make_small(Dice& random, Plan& plan) {
  plan.flushes = true;
  plan.processes_per_host = 1;
  plan.keys = 2;
  plan.eviction = false;
  plan.faults.clear();
  plan.steps_per_event = std::min(plan.steps_per_event, 8u);
  plan.cache_share = std::max(plan.cache_share, 4u);
  plan.shape.hosts = 2 + static_cast<uint32_t>(random.below(2));
}

void aim(Dice& random, Plan& plan, Focus focus) {
  const auto any_process = [&] { return static_cast<uint32_t>(random.below(plan.processes())); };
  make_small(random, plan);
  uint64_t extents_each = 1;
  switch (focus) {
    case Focus::ANYTHING:
      return;
    case Focus::STOPPED:
      plan.shape.hosts = 1;
      plan.processes_per_host = 2;
      plan.operations = 30;
      plan.faults.push_back({.kind = FaultKind::STOP_PROCESS,
                             .process = any_process(),
                             .after_steps = 1000 + random.below(4000),
                             .duration_ns = 200 * kMs,
                             .clock_stops = false});
      break;
    case Focus::ZOMBIES:
    case Focus::LAPSED:
      if (focus == Focus::LAPSED) plan.work = Work::LEASES;
      plan.operations = 60;
      plan.think_ns = kHeartbeatNs;
      // Leases lapse late.
      plan.faults.push_back(focus == Focus::LAPSED
                                ? pause(any_process(), 2000 + any_magnitude(random, 14),
                                        (170 + random.below(80)) * kMs)
                                : pause(any_process(), 2000 + any_magnitude(random, 16),
                                        (100 + random.below(150)) * kMs));
      break;
    case Focus::DECISIONS:
      aim_at_decisions(random, plan);
      break;
    case Focus::KEEP:
      aim_at_keeping(random, plan);
      extents_each = 2;
      break;
    case Focus::CONTENTS:
      aim_at_contents(random, plan);
      extents_each = 3;
      break;
    case Focus::CUSTODY:
    case Focus::TWINS:
    case Focus::LATE:
    case Focus::RETURNS:
    case Focus::SPACES:
    case Focus::LOGS:
    case Focus::GROWTH:
      aim_at_hosts(random, plan, focus);
      extents_each = 2;
      break;
    case Focus::MANY:
      return aim_at_many(random, plan);
    case Focus::WORDS:
      aim_at_words(random, plan);
      extents_each = 3 + random.below(2);
      break;
    case Focus::GRANTS:
      aim_at_grants(random, plan);
      extents_each = 3;
      break;
    default:
      aim_at_leases(random, plan, focus);
  }
  plan.shape.extents = plan.shape.hosts * extents_each;
  // If caches do nothing by themselves, stale lines stay stale.
  const bool settles = focus == Focus::ZOMBIES || focus == Focus::DECISIONS;
  if (!settles && random.below(2) == 0) plan.cache_share = 0;
}

}  // namespace

std::span<const std::string_view> focus_names() { return kFocusNames; }

std::optional<Focus> find_focus(std::string_view name) {
  const auto* const found = std::find(std::begin(kFocusNames), std::end(kFocusNames), name);
  if (found == std::end(kFocusNames)) return std::nullopt;
  return static_cast<Focus>(found - std::begin(kFocusNames));
}

Plan make_plan(uint64_t seed, Focus focus) {
  Dice random(seed * 2 + 1);
  Plan plan;
  plan.seed = seed;
  Shape& shape = plan.shape;
  shape.hosts = 1 + static_cast<uint32_t>(random.below(4));
  shape.extents = std::max<uint64_t>(shape.hosts, 4) + random.below(4);
  shape.buckets = 2 + random.below(4);
  shape.leases = 2 + static_cast<uint32_t>(random.below(4));
  shape.locks = 1u << random.below(3);
  plan.processes_per_host = 1 + static_cast<uint32_t>(random.below(2));
  plan.flushes = shape.hosts > 1 || random.below(2) == 0;
  plan.weak = random.below(3) == 0 && plan.flushes;
  plan.store_buffer = random.below(2) == 0 ? 0 : 1 + static_cast<uint32_t>(random.below(4));
  plan.step_ns = 10 + static_cast<uint32_t>(random.below(90));
  plan.steps_per_event = 1u << random.below(6);
  plan.cache_share = static_cast<uint32_t>(random.below(8));
  plan.switch_share = 1 + static_cast<uint32_t>(random.below(8));
  plan.stall_share = static_cast<uint32_t>(random.below(3));
  plan.stall_ns = kMs << random.below(4);
  plan.operations = 4 + static_cast<uint32_t>(random.below(24));
  plan.keys = 2 + static_cast<uint32_t>(random.below(7));
  plan.think_ns = random.below(3) == 0 ? 0 : kHeartbeatNs >> random.below(8);
  plan.eviction = random.below(2) == 0;
  if (random.below(4) != 0) {
    for (uint64_t n = 1 + random.below(4); n > 0; --n)
      plan.faults.push_back(make_fault(random, plan));
  }
  const Focus asked = focus;
  Dice more(seed * 2);
  plan.keeps_lines = more.below(2) == 0;
  plan.workers = focus == Focus::ANYTHING && more.below(3) == 0 ? 2 : 1;
  if (focus == Focus::ANYTHING && shape.hosts > 1) plan.slow_duties = more.below(8) == 0;
  // Plans without a focus include some of each, but few of those that take long, and none of TWINS,
  // of which some still fail (docs/simulator.md).
  if (focus == Focus::ANYTHING && more.below(8) == 0)
    focus = static_cast<Focus>(1 + more.below(static_cast<uint64_t>(Focus::MANY)));
  if (focus == Focus::TWINS) focus = asked;
  if (focus == Focus::ANYTHING && more.below(256) == 0) focus = Focus::MANY;
  if (focus == Focus::BATCHES)
    plan.batch = 2 + static_cast<uint32_t>(more.below(5));
  else if (focus != Focus::ANYTHING)
    aim(random, plan, focus);
  Dice words(~seed);
  if (focus == Focus::ANYTHING && words.below(3) == 0) {
    const uint64_t share = (shape.extents + shape.hosts - 1) / shape.hosts;
    shape.worded = share + words.below(shape.extents - share + 1);
  }
  plan.keeps_lines &= plan.flushes;
  return plan;
}

std::string Plan::describe() const {
  std::string text = fmt::format(
      "seed {}: {} of {} process(es) with {} worker(s), {} extents, words for {}, {} buckets, {} "
      "leases, {} locks; {}, {}, "
      "store buffer of {}; an event in {} steps (caches {}, switches {}, stalls {}); {} operations "
      "each on {} keys, {} at once{}{}\n",
      seed,
      slots.empty() ? fmt::format("{} host(s)", shape.hosts)
                    : fmt::format("hosts {} of {}", fmt::join(slots, ", "), shape.hosts),
      processes_per_host, workers, shape.extents, std::min(shape.extents, shape.worded),
      shape.buckets, shape.leases, shape.locks,
      !flushes      ? "no flushes"
      : keeps_lines ? "flushes that keep lines"
                    : "flushes that drop lines",
      weak ? "weak memory" : "strong memory", store_buffer, steps_per_event, cache_share,
      switch_share, stall_share, operations, keys, batch, eviction ? ", eviction" : "",
      slow_duties ? ", slow duties" : "");
  if (shape.growth != 0) text += fmt::format("  grows by sets of {} extents\n", shape.growth);
  if (twin != Twin::NONE)
    text += fmt::format("  {} of the last host's machine\n",
                        twin == Twin::CLONE ? "a clone" : "a machine from the image");
  for (const Fault& fault : faults)
    text += fmt::format(
        "  fault: {} process {} after {} steps{}, {}{}\n", fault_name(fault.kind), fault.process,
        fault.after_steps, since_name(fault.since),
        fault.duration_ns == kForever
            ? "for good"
            : fmt::format("back after {:.3f} ms", static_cast<double>(fault.duration_ns) / kMs),
        fault.kind == FaultKind::PAUSE && fault.clock_stops ? ", its clock stands still" : "");
  return text;
}

std::vector<Plan> smaller(const Plan& plan) {
  std::vector<Plan> plans;
  const auto add = [&](auto change) {
    plans.push_back(plan);
    change(plans.back());
  };
  for (size_t i = 0; i < plan.faults.size(); ++i)
    add([&](Plan& p) { p.faults.erase(p.faults.begin() + static_cast<std::ptrdiff_t>(i)); });
  if (plan.shape.hosts > 1 && plan.slots.empty()) add([](Plan& p) { p.shape.hosts -= 1; });
  if (plan.slots.size() > 1) add([](Plan& p) { p.slots.pop_back(); });
  if (plan.twin != Twin::NONE) add([](Plan& p) { p.twin = Twin::NONE; });
  if (plan.workers > 1) add([](Plan& p) { p.workers = 1; });
  if (plan.slow_duties) add([](Plan& p) { p.slow_duties = false; });
  if (plan.processes_per_host > 1) add([](Plan& p) { p.processes_per_host -= 1; });
  for (const uint32_t most : {plan.operations / 2, plan.operations - plan.operations / 8 - 1}) {
    if (plan.operations > 1) add([&](Plan& p) { p.operations = std::max(1u, most); });
  }
  if (plan.keys > 1) add([](Plan& p) { p.keys -= 1; });
  if (plan.batch > 1) add([](Plan& p) { p.batch -= 1; });
  if (plan.weak) add([](Plan& p) { p.weak = false; });
  if (plan.keeps_lines) add([](Plan& p) { p.keeps_lines = false; });
  if (plan.store_buffer > 0) add([](Plan& p) { p.store_buffer = 0; });
  if (plan.eviction) add([](Plan& p) { p.eviction = false; });
  if (plan.stall_share > 0) add([](Plan& p) { p.stall_share = 0; });
  if (plan.cache_share > 0) add([](Plan& p) { p.cache_share = 0; });
  if (plan.think_ns > 0) add([](Plan& p) { p.think_ns = 0; });
  if (plan.steps_per_event < 64) add([](Plan& p) { p.steps_per_event *= 2; });
  // A fault's process may have been removed with its host.
  for (Plan& p : plans)
    std::erase_if(p.faults, [&](const Fault& fault) { return fault.process >= p.processes(); });
  return plans;
}

}  // namespace bowhead::sim
