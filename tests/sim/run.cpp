// SPDX-License-Identifier: Apache-2.0
#include "tests/sim/run.h"

#include <fmt/format.h>

#include <algorithm>

namespace bowhead::sim {
namespace {

constexpr uint64_t kMs = 1'000'000;
/// No phase takes longer in simulated time, whatever fails and comes back.
constexpr uint64_t kPhaseNs = 60'000 * kMs;
constexpr size_t kShrinkRuns = 2000;

}  // namespace

Outcome Simulator::run(const Plan& plan, bool print_steps) {
  users_.clear();
  world_.reset(plan, print_steps);
  model_.reset(plan);
  stage_ = std::make_unique<Stage>(Stage{.world = world_, .model = model_});
  write_new_pool(plan);
  for (uint32_t i = 0; i < plan.processes(); ++i) {
    users_.push_back(std::make_unique<User>(*stage_, plan.operations));
    world_.add_process(*users_.back(), i / plan.processes_per_host);
  }
  world_.run(world_.start_thread(
      nullptr, [](void* self) { static_cast<Simulator*>(self)->direct(); }, this));
  Outcome outcome;
  outcome.hash = world_.hash();
  outcome.counts = stage_->counts;
  outcome.counts.runs = 1;
  outcome.counts.steps = world_.steps();
  if (const Failure* failure = world_.failure()) {
    outcome.failure = *failure;
    outcome.last_steps = world_.last_steps(40);
  }
  return outcome;
}

/// As Pool::create() leaves it: each host owns its share of the extents.
void Simulator::write_new_pool(const Plan& plan) {
  bh_superblock& superblock = stage_->superblock;
  superblock.pool_id[0] = plan.seed;
  superblock.pool_id[1] = 1;
  superblock.geometry = small_geometry(plan.shape);
  superblock.evict_high_permille = plan.eviction ? 800 : 0;
  superblock.evict_low_permille = plan.eviction ? 600 : 0;
  const core::Layout& layout = world_.map().layout();
  for (uint32_t host = 0; host < plan.shape.hosts; ++host) {
    for (uint64_t e = layout.first_extent_of(host); e < layout.first_extent_of(host + 1); ++e)
      world_.memory().write_word(layout.word(host, BH_PART_OWN, e), core::make_own(BH_OWN_OWN, 1));
  }
}

bool Simulator::all_ready() const {
  return std::all_of(users_.begin(), users_.end(), [](const auto& user) { return user->ready(); });
}

// ---- the director ----

void Simulator::direct() {
  direct_phase(Phase::WORK);
  world_.cancel_faults();
  rest();
  // Two hosts that put a key at once each have a block of it: more than one removal.
  for (uint32_t n = 0; n < world_.plan().shape.hosts; ++n) {
    direct_phase(Phase::REMOVE);
    rest();
  }
  direct_phase(Phase::GONE);
  direct_phase(Phase::FILL);
  check_space();
  direct_phase(Phase::EMPTY);
  direct_phase(Phase::LEAVE);
  world_.end_thread();
}

void Simulator::direct_phase(Phase phase) {
  stage_->phase = phase;
  stage_->phase_number += 1;
  const uint64_t deadline_ns = world_.now_ns() + kPhaseNs;
  while (!all_ready()) {
    if (world_.now_ns() > deadline_ns)
      world_.fail("progress", fmt::format("phase {} does not end", static_cast<int>(phase)));
    world_.sleep(kBeatMs * kMs);
  }
}

/// Long enough for everything that waits for time.
void Simulator::rest() { world_.sleep((kDeadMs + kGraceMs + kReclaimMs + 20 * kBeatMs) * kMs); }

void Simulator::check_space() {
  const auto& g = world_.map().layout().geometry();
  const uint64_t blocks = g.extent_count * (g.extent_bytes / g.min_block_bytes);
  if (stage_->blocks_reserved != blocks)
    world_.fail("space", fmt::format("{} blocks can be reserved in the empty pool, of {}",
                                     stage_->blocks_reserved, blocks));
}

// ---- shrinking ----

Plan Simulator::shrink(const Plan& plan, const Failure& failure) {
  Plan smallest = plan;
  size_t runs = 0;
  for (bool found = true; found && runs < kShrinkRuns;) {
    found = false;
    for (const Plan& candidate : smaller(smallest)) {
      ++runs;
      const Outcome outcome = run(candidate);
      if (!outcome.failure || outcome.failure->kind != failure.kind) continue;
      smallest = candidate;
      found = true;
      break;
    }
  }
  return smallest;
}

}  // namespace bowhead::sim
