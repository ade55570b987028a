// SPDX-License-Identifier: Apache-2.0
#include "tests/sim/run.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

namespace bowhead::sim {
namespace {

/// No phase takes longer in simulated time, whatever fails and comes back.
constexpr uint64_t kPhaseNs = 60'000 * kMs;
/// After this time everything that waits for time has happened.
constexpr uint64_t kRestNs =
    2 * (kTimes.dead_ms + kTimes.grace_ms + kTimes.reclaim_ms + 40 * kTimes.heartbeat_ms) * kMs;
/// Work that waits for a heartbeat or two is done: reuse, and a zombie's leftovers.
constexpr uint64_t kSweepNs = 6 * kHeartbeatNs;
constexpr int kRemovals = 4;
constexpr size_t kShrinkRuns = 2000;

}  // namespace

Outcome Simulator::run(const Plan& plan, const SeededBug* bug, bool print_steps) {
  users_.clear();
  world_.reset(plan, bug, print_steps);
  model_.reset(plan);
  rules_.reset(world_, model_);
  stage_ = std::make_unique<Stage>(Stage{.world = world_, .model = model_, .rules = rules_});
  write_new_pool(plan);
  for (uint32_t i = 0; i < plan.processes(); ++i) {
    users_.push_back(std::make_unique<User>(*stage_, plan.operations));
    world_.add_process(*users_.back(), i / plan.processes_per_host);
  }
  world_.run(world_.start_thread(
      nullptr, [](void* self) { static_cast<Simulator*>(self)->direct(); }, this));
  Outcome outcome;
  outcome.hash = world_.hash();
  outcome.bug_acts = world_.bug_acts();
  outcome.counts = stage_->counts;
  outcome.counts.runs = 1;
  outcome.counts.steps = world_.steps();
  if (const Failure* failure = world_.failure()) {
    outcome.failure = *failure;
    outcome.last_steps = world_.last_steps(40);
  }
  return outcome;
}

/// The state after Pool::create(): each host owns its share of the extents.
void Simulator::write_new_pool(const Plan& plan) {
  bh_superblock& superblock = stage_->superblock;
  superblock.pool_id[0] = plan.seed;
  superblock.pool_id[1] = 1;
  superblock.geometry = small_geometry(plan.shape);
  superblock.heartbeat_ms = kTimes.heartbeat_ms;
  superblock.dead_ms = kTimes.dead_ms;
  superblock.grace_ms = kTimes.grace_ms;
  superblock.settle_ms = kTimes.settle_ms;
  if (world_.bug(Lie::NO_SETTLE) != nullptr) {
    superblock.settle_ms = 0;
    world_.note_bug();
  }
  superblock.reclaim_ms = kTimes.reclaim_ms;
  superblock.evict_high_permille = plan.eviction ? 800 : 0;
  superblock.evict_low_permille = plan.eviction ? 600 : 0;
  const core::Layout& layout = world_.map().layout();
  core::write_new_regions(
      layout, core::Sealer(superblock.pool_id),
      [&](uint64_t at, uint64_t word) { world_.memory().write_word(at, word); });
}

// ---- the director ----

void Simulator::direct() {
  do_phase(Phase::WORK);
  const bool slow = world_.plan().slow_duties || world_.plan().shape.hosts > 8;
  world_.cancel_faults();
  // Slow duties are done, and each host has looked for the others again.
  if (slow) world_.sleep(4 * kTimes.dead_ms * kMs);
  if (world_.cloned()) {
    check_conflict_found();
    world_.end_thread();
  }
  rest();
  if (all_in_full_custody()) do_phase(Phase::CHECK);
  // Who adopts an extent without words for it, or blocks without room in its index, drops blocks.
  const auto& shape = world_.plan().shape;
  const bool room =
      world_.map().layout().has_all_words(core::set_0(world_.map().layout().geometry())) &&
      shape.buckets * BH_INDEX_ENTRIES >= world_.plan().keys;
  // A look-up may pass over a block that is being moved.
  const bool moves =
      std::any_of(users_.begin(), users_.end(), [](const auto& user) { return user->drains(); });
  if (!world_.plan().eviction && !rules_.zombies() && !moves && (room || shape.hosts == 1)) {
    stage_->must_find = true;
    do_phase(Phase::LOOK);
    stage_->must_find = false;
  }
  // The asked host may die, or not answer yet.
  for (int n = 0; n == 0 || stage_->keys_found != 0; ++n) {
    if (n ==
        std::max(kRemovals, static_cast<int>(world_.plan().keys)))  // requested a few at a time
      world_.fail("gone", fmt::format("all removed all keys {} times, and some are there", n));
    do_phase(Phase::REMOVE);
    world_.sleep(kSweepNs);
    stage_->keys_found = 0;
    do_phase(Phase::LOOK);
  }
  // A small reservation may take a larger block while its slab is in use: not the second time.
  for (int n = 0; n < 2 && !is_full(); ++n) {
    stage_->blocks_reserved = 0;
    stage_->blocks_wanted = most_blocks();
    do_phase(Phase::FILL);
    if (n == 1) check_space();
    do_phase(Phase::EMPTY);
  }
  do_phase(Phase::LEAVE);
  world_.end_thread();
}

/// Of two machines that ran as one host, at most one continues.
void Simulator::check_conflict_found() {
  world_.sleep_until(std::max(world_.now_ns(), world_.all_go_on_ns()) + kSweepNs);
  const User* runs = nullptr;
  for (const auto& user : users_) {
    if (!user->alive || !user->joined || user->machine->host != users_.back()->machine->host)
      continue;
    if (runs != nullptr && runs->machine != user->machine)
      world_.fail("identity", fmt::format("processes {} and {} still run as host {}, on two "
                                          "machines",
                                          runs->index, user->index, user->machine->host));
    runs = user.get();
  }
}

void Simulator::do_phase(Phase phase) {
  stage_->phase = phase;
  stage_->phase_number += 1;
  const uint64_t deadline_ns = world_.now_ns() + kPhaseNs;
  while (!all_ready()) {
    if (world_.now_ns() > deadline_ns)
      world_.fail("progress", fmt::format("phase {} does not end", static_cast<int>(phase)));
    world_.sleep(kHeartbeatNs);
  }
}

bool Simulator::all_ready() const {
  return std::all_of(users_.begin(), users_.end(),
                     [](const auto& user) { return user->ready() || user->gone(); });
}

/// Until all paused threads run again, every extent has one owner that may write to it, this has
/// not changed for a while, and each process has since looked for the indexes of the others.
void Simulator::rest() {
  const uint64_t deadline_ns = std::max(world_.now_ns(), world_.all_go_on_ns()) + kRestNs;
  uint64_t lives = 0;
  uint64_t since_ns = 0;
  const auto has_looked = [&](const auto& user) {
    return world_.plan().shape.hosts == 1 || user->gone() || user->looked_at_ns >= since_ns;
  };
  while (since_ns == 0 || world_.now_ns() < since_ns + kSweepNs ||
         !std::all_of(users_.begin(), users_.end(), has_looked)) {
    const bool settled = all_ready() && world_.all_go_on_ns() <= world_.now_ns() &&
                         lives == stage_->counts.lives && !anybody_ended() && extents_have_owners();
    lives = stage_->counts.lives;
    if (!settled) since_ns = 0;
    if (settled && since_ns == 0) since_ns = world_.now_ns();
    if (world_.now_ns() > deadline_ns)
      world_.fail("owner", fmt::format("an extent has no owner, or two:{}", owners()));
    world_.sleep(kHeartbeatNs);
  }
}

/// There is a decision about the life of a host that has not noticed it.
bool Simulator::anybody_ended() {
  const core::Layout& layout = world_.map().layout();
  for (const auto& user : users_) {
    if (user->incarnation() == 0) continue;
    for (uint32_t host = 0; host < layout.geometry().host_count; ++host) {
      const auto word = core::DecideWord::unpack(
          world_.peek(host, layout.word(host, BH_PART_DECIDE, user->machine->host)));
      if (word.done && word.inst >= user->incarnation()) return true;
    }
  }
  return false;
}

/// Its first owner never joined: it is taken when it is needed.
bool Simulator::never_owned(uint64_t extent) {
  const core::Layout& layout = world_.map().layout();
  for (uint32_t host = 0; host < layout.geometry().host_count; ++host) {
    const auto own =
        core::OwnWord::unpack(world_.peek(host, layout.word(host, BH_PART_OWN, extent)));
    const uint64_t slot_line = world_.peek(host, layout.slot_line(host, 1));
    if (own.state == BH_OWN_OWN && (own.epoch > 1 || own.incarnation != 0 || slot_line != 0))
      return false;
  }
  return true;
}

bool Simulator::extents_have_owners() {
  const core::Layout& layout = world_.map().layout();
  for (uint64_t e = 0; e < layout.geometry().extent_count; ++e) {
    uint32_t found = never_owned(e);
    for (const auto& user : users_) {
      if (user->index % world_.plan().processes_per_host != 0 || user->incarnation() == 0) continue;
      const uint32_t host = user->machine->host;
      const auto own =
          core::OwnWord::unpack(user->machine->cache.peek(layout.word(host, BH_PART_OWN, e)));
      if (own.state == BH_OWN_OWN && own.custody != BH_CUSTODY_READ_ONLY &&
          (layout.geometry().host_count == 1 || own.incarnation == user->incarnation()))
        ++found;
    }
    if (found != 1) return false;
  }
  return true;
}

/// In all others a host whose life is over may still write.
bool Simulator::all_in_full_custody() {
  const core::Layout& layout = world_.map().layout();
  for (const auto& user : users_) {
    if (user->gone()) continue;
    for (uint64_t e = 0; e < layout.geometry().extent_count; ++e) {
      const uint32_t host = user->machine->host;
      const auto own = core::OwnWord::unpack(world_.peek(host, layout.word(host, BH_PART_OWN, e)));
      if (own.state == BH_OWN_OWN && own.custody != BH_CUSTODY_FULL) return false;
    }
  }
  return true;
}

/// The ownership words of all hosts, as each wrote them, for messages.
std::string Simulator::owners() {
  const core::Layout& layout = world_.map().layout();
  std::string text;
  for (uint64_t e = 0; e < layout.geometry().extent_count; ++e) {
    text += fmt::format("\n  extent {}:", e);
    for (uint32_t host = 0; host < layout.geometry().host_count; ++host) {
      const auto peek = [&](uint64_t at) { return world_.peek(host, at); };
      const auto own = core::OwnWord::unpack(peek(layout.word(host, BH_PART_OWN, e)));
      if (own.state == BH_OWN_NONE) continue;
      std::string blocks;
      const auto run = core::RunWord::unpack(peek(layout.word(host, BH_PART_RUNS, e)));
      for (uint64_t slot = layout.first_slot(e); slot < layout.first_slot(e + 1); ++slot) {
        if (const uint64_t word = layout.word_index(run, slot); word != core::Layout::kNoWord)
          blocks += fmt::format(" {:#x}", peek(layout.word(host, BH_PART_BLOCKS, word)));
      }
      static constexpr const char* kStates[] = {"none", "own", "given", "claim", "abandoned"};
      text += fmt::format(" host {} {} epoch {} slot {} life {} custody {}, state {:#x}, blocks{};",
                          host, kStates[own.state % 5], own.epoch, own.slot, own.incarnation,
                          own.custody, peek(layout.extent_state(host, e)), blocks);
    }
  }
  return text;
}

bool Simulator::is_full() const {
  return stage_->blocks_wanted != 0 && stage_->blocks_reserved >= stage_->blocks_wanted;
}

/// All slots, as far as the hosts that are left have words for them. No host asks another for its
/// last free extent, which that one may have no words for, and none gives away an extent that it
/// has in custody.
uint64_t Simulator::most_blocks() const {
  std::set<uint32_t> hosts;
  for (const auto& user : users_) {
    if (!user->gone()) hosts.insert(user->machine->host);
  }
  const core::Layout& layout = world_.map().layout();
  const uint64_t extents = layout.geometry().extent_count;
  const uint64_t worded = layout.geometry().word_count / layout.slots_per_extent();
  uint64_t usable = extents;
  if (!layout.has_all_words(core::set_0(layout.geometry()))) {
    for (const uint32_t host : hosts) {
      uint64_t owned = 0, in_custody = 0;
      for (uint64_t e = 0; e < extents; ++e) {
        const auto own =
            core::OwnWord::unpack(world_.peek(host, layout.word(host, BH_PART_OWN, e)));
        owned += own.state == BH_OWN_OWN;
        in_custody += own.state == BH_OWN_OWN && own.custody != BH_CUSTODY_FULL;
      }
      usable -= std::min(usable, 1 + (owned > worded ? std::min(in_custody, owned - worded) : 0));
    }
    usable += hosts.empty() ? 0 : 1;  // one host alone keeps none for others
  }
  return std::min(usable, hosts.size() * worded) * layout.slots_per_extent();
}

void Simulator::check_space() {
  if (!is_full())
    world_.fail("space", fmt::format("{} blocks can be reserved in the empty pool, of {}:{}",
                                     stage_->blocks_reserved, stage_->blocks_wanted, owners()));
}

// ---- shrinking ----

Plan Simulator::shrink(const Plan& plan, const SeededBug* bug, const Failure& failure) {
  Plan smallest = plan;
  size_t runs = 0;
  for (bool found = true; found && runs < kShrinkRuns;) {
    found = false;
    for (const Plan& candidate : smaller(smallest)) {
      ++runs;
      const Outcome outcome = run(candidate, bug);
      if (!outcome.failure || outcome.failure->kind != failure.kind) continue;
      smallest = candidate;
      found = true;
      break;
    }
  }
  return smallest;
}

}  // namespace bowhead::sim
