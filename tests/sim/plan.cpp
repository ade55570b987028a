// SPDX-License-Identifier: Apache-2.0
#include "tests/sim/plan.h"

#include <fmt/format.h>

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
    case FaultKind::LEAVE:
      return "leave";
  }
  return "";
}

/// 1 to 2^bits - 1, every magnitude as likely as any other.
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
  // What nobody flushes is lost with the machine, and the pool with it.
  if (fault.kind == FaultKind::CRASH && !plan.flushes) fault.kind = FaultKind::KILL;
  // Some are back before anybody misses them, some after all is decided and done.
  const uint64_t longest = 2 * (kTimes.dead_ms + kTimes.grace_ms + kTimes.reclaim_ms) * kMs;
  fault.duration_ns = kSettleNs + random.below(longest >> random.below(6));
  fault.clock_stops = random.below(4) == 0;
  // Of several hosts the first one never goes for good.
  if (fault.kind == FaultKind::CRASH && fault.process >= plan.processes_per_host &&
      random.below(4) == 0)
    fault.duration_ns = kForever;
  return fault;
}

}  // namespace

Plan make_plan(uint64_t seed) {
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
  plan.think_ns = random.below(3) == 0 ? 0 : kBeatNs >> random.below(8);
  plan.eviction = random.below(2) == 0;
  if (random.below(4) != 0) {
    for (uint64_t n = 1 + random.below(4); n > 0; --n)
      plan.faults.push_back(make_fault(random, plan));
  }
  return plan;
}

std::string Plan::describe() const {
  std::string text = fmt::format(
      "seed {}: {} host(s) of {} process(es), {} extents, {} buckets, {} leases, {} locks; {}{}, "
      "store buffer of {}; an event in {} steps (caches {}, switches {}, stalls {}); {} operations "
      "each on {} keys{}\n",
      seed, shape.hosts, processes_per_host, shape.extents, shape.buckets, shape.leases,
      shape.locks, flushes ? "" : "no flushes, ", weak ? "weak memory" : "strong memory",
      store_buffer, steps_per_event, cache_share, switch_share, stall_share, operations, keys,
      eviction ? ", eviction" : "");
  for (const Fault& fault : faults)
    text += fmt::format(
        "  fault: {} process {} after {} steps, {}{}\n", fault_name(fault.kind), fault.process,
        fault.after_steps,
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
  if (plan.shape.hosts > 1) add([](Plan& p) { p.shape.hosts -= 1; });
  if (plan.processes_per_host > 1) add([](Plan& p) { p.processes_per_host -= 1; });
  for (const uint32_t most : {plan.operations / 2, plan.operations - plan.operations / 8 - 1}) {
    if (plan.operations > 1) add([&](Plan& p) { p.operations = std::max(1u, most); });
  }
  if (plan.keys > 1) add([](Plan& p) { p.keys -= 1; });
  if (plan.weak) add([](Plan& p) { p.weak = false; });
  if (plan.store_buffer > 0) add([](Plan& p) { p.store_buffer = 0; });
  if (plan.eviction) add([](Plan& p) { p.eviction = false; });
  if (plan.stall_share > 0) add([](Plan& p) { p.stall_share = 0; });
  if (plan.cache_share > 0) add([](Plan& p) { p.cache_share = 0; });
  if (plan.think_ns > 0) add([](Plan& p) { p.think_ns = 0; });
  if (plan.steps_per_event < 64) add([](Plan& p) { p.steps_per_event *= 2; });
  // A fault's process may have gone with its host.
  for (Plan& p : plans)
    std::erase_if(p.faults, [&](const Fault& fault) { return fault.process >= p.processes(); });
  return plans;
}

}  // namespace bowhead::sim
