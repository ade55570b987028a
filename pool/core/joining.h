// SPDX-License-Identifier: Apache-2.0
// Joining a host slot, leaving it, and repair of damage that keeps a host from joining.
//
// Invariants
//   J1 A machine continues a life, or begins the next one in its slot, only if it knows that no
//      other machine writes there: the slot was left cleanly, after which nothing was stored; or
//      its life is over and fenced; or the life is of this very boot, or of this very hardware
//      before it booted again; and its heartbeat stands still, unless a process of this kernel has
//      the pool open as that host. An id that a disk image carries (the machine id) proves nothing,
//      and counts only in a pool of one host.
//   J2 A life has a heartbeat from the moment that another host can take it for dead: from the
//      decision that it follows the last one, before the slot shows it.
//   J3 Of machines that find this in the same instant at most one goes on: before it asks the
//      others to agree that its life is next, it claims the slot (Hosts::claim_slot). A claim that
//      does not become a life is passed over when it has stood for dead_ms without a heartbeat.
//
// Owns: how to start the heartbeat, and whether this process has left or repairs. Calls: Custody,
// Growth, Holdings, Membership, Namespaces, Recovery, Retirement; for repair Inspection.
#pragma once

#include "pool/core/rooms.h"

namespace bowhead::core {

inline constexpr uint64_t kHostLockWaitMs = 10'000;
inline constexpr uint64_t kJoinWaitNs = 20'000'000'000;

template <class A>
class Joining {
 public:
  explicit Joining(const Rooms<A>& rooms)
      : c_(rooms.context),
        extents_(rooms.extents),
        index_(rooms.index),
        leases_(rooms.leases),
        hosts_(rooms.hosts),
        settings_(rooms.settings),
        usage_(rooms.usage),
        retirement_(rooms.retirement),
        namespaces_(rooms.namespaces),
        holdings_(rooms.holdings),
        growth_(rooms.growth),
        custody_(rooms.custody),
        membership_(rooms.membership),
        recovery_(rooms.recovery),
        inspection_(rooms.inspection) {}
  Joining(const Joining&) = delete;
  Joining& operator=(const Joining&) = delete;

  /// Called once, in the middle of attach() or repair(), if the pool has several hosts: from then
  /// on heartbeat() must be called by another thread, though the rest is still under way. Also if
  /// locks belong to device nodes: then, in a pool of one host, Hosts::take_heartbeat().
  using StartHeartbeat = std::function<void()>;
  /// Asked whenever it waits for others; true: it ends, as if the process had died there.
  using Cancelled = std::function<bool()>;
  /// BUSY, HOST_ID_IN_USE, HOST_FENCED, DAMAGED, LIMIT_REACHED, SYSTEM: each with a sentence; and
  /// CANCELLED.
  Result<void> attach(const Progress& progress, const StartHeartbeat& start_heartbeat = {},
                      const Cancelled& cancelled = {});
  void detach();
  /// Ends this life of the host cleanly, so that others may take over at once. No other process of
  /// the host may have the pool open (IN_USE). Calls `stop_heartbeat` once no other process can
  /// prevent it: until then the heartbeat goes on, however long this waits for a process that opens
  /// the pool (BUSY).
  Result<void> leave(const std::function<void()>& stop_heartbeat = {});
  /// Exclusive: no process may have the pool open. Rebuilds as after a reboot. `missing`: sets of
  /// media; given up only once all hosts but this one were repaired.
  using Missing = typename Growth<A>::Missing;
  Result<std::vector<std::string>> repair(bool take_over, const Progress& progress,
                                          const StartHeartbeat& start_heartbeat = {},
                                          Missing missing = Missing::REFUSED);

 private:
  bool is_cancelled() const { return cancelled_ && cancelled_(); }
  Result<void> lock_host();
  bool anybody_alive();
  Result<void> take_ticket(const bh_host_slot& slot);
  Result<void> check_ticket();
  bool somebody_moves(uint32_t heartbeats) const;
  Error opened_by_another_node() const;
  bool others_alive();
  void undo_own_work();
  void forget_own_process();
  Result<bh_host_slot> read_slot_line();
  Result<void> join_host(bool take_over, const Progress& progress);
  Result<void> check_nobody_runs_as_this_host(const bh_host_slot& slot, bool take_over);
  Error taken_in_this_moment() const;
  Result<void> begin_life(bh_host_slot slot, bool same_boot, const Progress& progress);
  Result<void> follow_last_life(bh_host_slot& slot, bool same_boot);
  Error declared_dead_while_joining() const;
  void look_around();
  Result<void> succeed_myself(Life& old);
  Result<void> take_over_extents(Life old);
  void relabel_extents(const LivesOver& over);
  void flush_own();
  void clear_unused_parts();
  Result<void> take_process_slot();
  uint64_t drop_all_damaged(const Progress& progress);

  Context<A>& c_;
  Extents<A>& extents_;
  Index<A>& index_;
  Leases<A>& leases_;
  Hosts<A>& hosts_;
  const Settings& settings_;
  Usage<A>& usage_;
  Retirement<A>& retirement_;
  Namespaces<A>& namespaces_;
  Holdings<A>& holdings_;
  Growth<A>& growth_;
  Custody<A>& custody_;
  Membership<A>& membership_;
  Recovery<A>& recovery_;
  Inspection<A>& inspection_;

  StartHeartbeat start_heartbeat_;
  Cancelled cancelled_;
  bool left_ = false;     ///< nothing may be stored any more
  bool repairs_ = false;  ///< rebuilds, and reads what was never used too
  Missing missing_ = Missing::REFUSED;
  uint64_t ticket_ = 0;  ///< take_ticket(); 0: none
  uint32_t dropped_tables_ = 0;
};

template <class A>
Result<void> Joining<A>::attach(const Progress& progress, const StartHeartbeat& start_heartbeat,
                                const Cancelled& cancelled) {
  start_heartbeat_ = start_heartbeat;
  cancelled_ = cancelled;
  if (auto locked = lock_host(); !locked) return locked;
  Result<void> joined = growth_.heed_newest(Missing::REFUSED);
  if (joined) joined = join_host(/*take_over=*/false, progress);
  if (joined) joined = take_process_slot();
  const bool first = joined && !others_alive();
  if (first) {
    recovery_.scavenge_dead();
    if (usage_.doubted()) usage_.recount();  // U3
  }
  c_.access.unlock_host(c_.host);
  if (joined) recovery_.scavenge_dead();
  if (first) retirement_.reclaim_some();  // no other process waits for what a rebuild retired
  if (joined && c_.alone()) namespaces_.sweep();  // no duties do so
  return joined;
}

/// A process that rebuilds a large pool keeps its heartbeat: this one waits for it.
template <class A>
Result<void> Joining<A>::lock_host() {
  const uint64_t slice_ms = cancelled_ ? kHostLockWaitMs / 100 : kHostLockWaitMs;
  uint64_t left_ms = kHostLockWaitMs;
  while (c_.access.lock_host(c_.host, slice_ms) == LockResult::HELD) {
    if (is_cancelled()) return Status::CANCELLED;
    left_ms -= slice_ms;
    if (left_ms != 0) continue;
    const uint64_t watch_ns = uint64_t{c_.times.dead_ms} * 1'000'000;
    const bool waits = !c_.alone() && hosts_.heartbeat_moves(c_.host, watch_ns, cancelled_);
    if (is_cancelled()) return Status::CANCELLED;
    if (!waits)
      return Error{Status::BUSY,
                   "another process has been opening or replacing this pool for 10 seconds; "
                   "if it hangs, end it and try again"};
    left_ms = kHostLockWaitMs;
  }
  return {};
}

template <class A>
void Joining<A>::detach() {
  if (left_ || hosts_.region_lost()) {
    c_.access.unlock_process(c_.host, c_.process);
    return;
  }
  try {
    undo_own_work();
    retirement_.reap(/*wait=*/true);
  } catch (const std::bad_alloc&) {
    // As after a death: another process of the host, or the next one, does it.
    c_.access.unlock_process(c_.host, c_.process);
    return;
  }
  const bool locked = c_.access.lock_host(c_.host, kHostLockWaitMs) == LockResult::TAKEN;
  forget_own_process();
  c_.access.unlock_process(c_.host, c_.process);
  if (!locked) return;
  // With several hosts leave() does so: a new life costs an agreement, and incarnations are few.
  if (c_.alone() && !anybody_alive()) {
    if (auto line = read_slot_line()) {
      line->fenced = line->incarnation;
      hosts_.write_slot(*line, BH_HOST_LEFT);
    }
  }
  c_.access.unlock_host(c_.host);
}

template <class A>
Result<void> Joining<A>::leave(const std::function<void()>& stop_heartbeat) {
  if (c_.alone()) return {};
  const HostLock<A> lock(c_, /*locked=*/false, kHostLockWaitMs);
  if (!lock.held())
    return Error{Status::BUSY,
                 "another process of this host has been opening the pool for 10 "
                 "seconds; if it hangs, end it and try again"};
  if (others_alive())
    return Error{Status::IN_USE, "other processes of this host have the pool open; end them first"};
  if (stop_heartbeat) stop_heartbeat();
  recovery_.scavenge_dead();
  undo_own_work();
  forget_own_process();
  hosts_.end_own_life(/*conflict=*/false);
  left_ = true;
  const auto slot = read_slot_line();
  if (slot && slot->incarnation == c_.incarnation) {
    flush_own();
    bh_host_slot line = *slot;
    line.fenced = line.incarnation;
    hosts_.write_slot(line, BH_HOST_LEFT);  // nothing is stored after this (J1)
  }
  return slot ? Result<void>{} : slot.error();
}

template <class A>
Result<std::vector<std::string>> Joining<A>::repair(bool take_over, const Progress& progress,
                                                    const StartHeartbeat& start_heartbeat,
                                                    Missing missing) {
  std::vector<std::string> done;
  if (c_.access.lock_host(c_.host, kHostLockWaitMs) == LockResult::HELD)
    return Error{Status::BUSY, "another process is opening this pool"};
  if (anybody_alive()) {
    c_.access.unlock_host(c_.host);
    return Error{Status::IN_USE, "processes have this pool open; end them first"};
  }
  if (!hosts_.read_slot(c_.host)) {
    bh_host_slot line{};
    // Stamps must not start over (R3), and the slot may have been used.
    line.incarnation = static_cast<uint16_t>(std::max(1u, recovery_.highest_incarnation()));
    line.machine_id = c_.access.machine_id();
    line.hardware_id = c_.access.hardware_id();
    hosts_.write_slot(line, BH_HOST_LEFT);
    line.turn += 1;  // and the other copy
    hosts_.write_slot(line, BH_HOST_LEFT);
    done.push_back("wrote host slot " + std::to_string(c_.host) + " anew");
  }
  start_heartbeat_ = start_heartbeat;
  repairs_ = true;
  missing_ = missing;
  Result<void> joined = growth_.heed_newest(missing);
  const auto passed_over = growth_.passed_over();
  if (joined) joined = join_host(take_over, progress);
  if (joined) joined = take_process_slot();
  c_.access.unlock_host(c_.host);
  if (!joined) return joined.error();
  for (const auto& lost : passed_over) {
    if (missing == Missing::GIVEN_UP)
      done.push_back("gave up " + Growth<A>::describe(lost.set) +
                     " with all blocks there: " + lost.why.message());
  }
  if (dropped_tables_ != 0)
    done.push_back("dropped " + std::to_string(dropped_tables_) +
                   " damaged table(s) of sets of media");
  done.push_back("rebuilt the allocator and the index directory from the stored blocks");
  const uint64_t dropped = drop_all_damaged(progress);
  if (dropped != 0) done.push_back("dropped " + std::to_string(dropped) + " damaged block(s)");
  if (const uint64_t forgotten = namespaces_.drop_damaged(); forgotten != 0)
    done.push_back("dropped " + std::to_string(forgotten) +
                   " damaged description(s) of namespaces; open the namespaces to write them anew");
  // A life that went on would keep the slot for this machine.
  if (c_.alone()) {
    detach();
  } else if (auto left = leave(); !left) {
    return left.error();
  }
  return done;
}

template <class A>
bool Joining<A>::anybody_alive() {
  for (uint32_t p = 0; p < c_.layout.geometry().process_count; ++p) {
    const auto word = ProcessWord::unpack(c_.access.load(c_.layout.process(c_.host, p)));
    if (word.state != BH_PROCESS_FREE && c_.access.process_alive(c_.host, p)) return true;
  }
  return false;
}

/// Besides this process, which has a process slot.
template <class A>
bool Joining<A>::others_alive() {
  for (uint32_t p = 0; p < c_.layout.geometry().process_count; ++p) {
    if (p != c_.process && c_.access.process_alive(c_.host, p)) return true;
  }
  return false;
}

template <class A>
void Joining<A>::undo_own_work() {
  const Processes self(c_.layout.geometry().process_count, c_.process);
  leases_.scavenge(self);
  recovery_.scavenge_blocks(self);
  extents_.scavenge(self);  // gives up preferences
}

/// Frees the process slot, after undo_own_work().
template <class A>
void Joining<A>::forget_own_process() {
  const uint64_t at = c_.layout.process(c_.host, c_.process);
  c_.access.store(at, ProcessWord::unpack(c_.access.load(at)).next(BH_PROCESS_FREE).pack());
}

template <class A>
Result<bh_host_slot> Joining<A>::read_slot_line() {
  if (const auto slot = hosts_.read_slot(c_.host)) return *slot;
  return Error{Status::DAMAGED, "both copies of host slot " + std::to_string(c_.host) +
                                    " are damaged; `bowhead pool repair` writes them anew"};
}

/// Under the host lock. Continues the host's life if its private part is of this boot and no host
/// declared it dead; otherwise begins a new life and rebuilds the private part.
template <class A>
Result<void> Joining<A>::join_host(bool take_over, const Progress& progress) {
  auto slot = read_slot_line();
  if (!slot) return slot.error();
  const uint64_t boot = c_.access.boot_id();
  if (boot == 0)
    return Error{Status::SYSTEM,
                 "cannot read /proc/sys/kernel/random/boot_id, which tells a reboot from processes "
                 "that died: mount /proc so that this process sees it"};
  const uint64_t recovered = c_.private_word(offsetof(bh_host_private, recovered_boot_id));
  // A repair rebuilds, and stores nothing until it knows that no other machine runs as this host.
  const bool same_boot = !repairs_ && slot->incarnation != 0 && slot->boot_id == boot &&
                         c_.access.load(recovered) == boot &&
                         c_.access.load(recovered + 8) == slot->incarnation;
  c_.incarnation = slot->incarnation;
  const bool here = slot->boot_id == boot && anybody_alive();
  if (!here) {
    if (auto ok = check_nobody_runs_as_this_host(*slot, take_over); !ok) return ok;
  }
  const bool over =
      !c_.alone() && same_boot &&
      (slot->state != BH_HOST_LIVE || c_.ended() || hosts_.decided({c_.host, c_.incarnation}) ||
       hosts_.fenced({c_.host, c_.incarnation}));
  if (over && here)
    return Error{Status::HOST_FENCED,
                 "host " + std::to_string(c_.host) +
                     " was declared dead by the others, and processes of it still have the pool "
                     "open; end them, then open it again"};
  // Of machines that begin a life, claim_slot() takes one, and nobody stores here before that.
  if (!here && (c_.alone() || (same_boot && !over))) {
    if (auto ok = take_ticket(*slot); !ok) return ok;
  }
  if (!same_boot || over) return begin_life(*slot, same_boot, progress);
  if (slot->state != BH_HOST_LIVE) hosts_.write_slot(*slot, BH_HOST_LIVE);
  if (auto ok = check_ticket(); !ok) return ok;
  if (!here && !c_.alone()) hosts_.begin_heartbeat(c_.access.now_ns());
  hosts_.state_known(/*others=*/here);
  membership_.go_live(*slot);
  if (!c_.alone()) {
    if (start_heartbeat_) start_heartbeat_();
    look_around();
  }
  return {};
}

/// Where locks belong to device nodes, processes with nodes of their own do not see each other. Of
/// two that see nobody, each shows a ticket, looks at the slot and for a heartbeat, shows that the
/// slot is taken, and looks whether its ticket still stands (check_ticket()). If the other one's
/// ticket came before that last look, this one gives up. Else that one looks when this one has
/// taken the slot, if it was left, and else for so long that it sees this one's heartbeat.
template <class A>
Result<void> Joining<A>::take_ticket(const bh_host_slot& slot) {
  if (!c_.access.locks_by_node()) return {};
  ticket_ = c_.access.random() | 1;
  c_.access.store(c_.private_word(offsetof(bh_host_private, opener)), ticket_);
  c_.access.fence();
  const auto now = read_slot_line();
  if (!now) return now.error();
  const bool left = slot.incarnation == 0 || slot.state == BH_HOST_LEFT;
  if (now->turn != slot.turn || (!left && somebody_moves(3))) return opened_by_another_node();
  return {};
}

template <class A>
Result<void> Joining<A>::check_ticket() {
  c_.access.fence();
  if (ticket_ != 0 && c_.access.load(c_.private_word(offsetof(bh_host_private, opener))) != ticket_)
    return opened_by_another_node();
  if (c_.alone() && c_.access.locks_by_node() && start_heartbeat_) start_heartbeat_();
  return {};
}

/// Whether the heartbeat of this host moves, though this process has not begun it.
template <class A>
bool Joining<A>::somebody_moves(uint32_t heartbeats) const {
  const uint64_t watch_ns = uint64_t{heartbeats} * c_.times.heartbeat_ms * 1'000'000;
  return c_.alone() ? hosts_.local_heartbeat_moves(watch_ns)
                    : hosts_.heartbeat_moves(c_.host, watch_ns);
}

template <class A>
Error Joining<A>::opened_by_another_node() const {
  if (!c_.alone()) return taken_in_this_moment();
  return Error{Status::IN_USE,
               "processes have this pool open by another node of the device, such as that of "
               "another container, and would not see this one: let all containers share one node, "
               "or make the pool for several hosts (`bowhead pool create --hosts`)"};
}

/// J1, where no process of this kernel has the pool open as this host.
template <class A>
Result<void> Joining<A>::check_nobody_runs_as_this_host(const bh_host_slot& slot, bool take_over) {
  const bool claimed = slot.claim != 0;
  if (slot.incarnation == 0 && !claimed) return {};
  const Life life{c_.host, slot.incarnation};
  const uint64_t machine = c_.access.machine_id(), hardware = c_.access.hardware_id();
  const bool left = slot.state == BH_HOST_LEFT;
  const bool this_boot = slot.boot_id == c_.access.boot_id();
  const std::string host = "host slot " + std::to_string(c_.host);
  const bool unused = slot.incarnation == 0;
  const bool ours = this_boot || (hardware != 0 && slot.hardware_id == hardware) ||
                    (c_.alone() && slot.machine_id == machine);
  const bool over = !c_.alone() && hosts_.fenced(life) && hosts_.decided(life);
  const bool may_take = unused || ours || take_over || left || over;
  // After a reboot a machine watches for as long as a host that suspects another. In the same boot
  // it need not, and if it is refused anyway it watches only to give the reason.
  const bool briefly = (this_boot && !claimed) || !may_take;
  const uint64_t watch_ms = briefly ? 3 * c_.times.heartbeat_ms : c_.times.dead_ms;
  if (!c_.alone() && (!left || claimed) &&
      hosts_.heartbeat_moves(c_.host, watch_ms * 1'000'000, cancelled_))
    return Error{Status::HOST_ID_IN_USE, "another machine, or a copy of this one, runs as " + host +
                                             "; give each machine its own --host"};
  if (is_cancelled()) return Status::CANCELLED;  // it may not have watched for long enough
  // Longer, since nobody else notices that the process lives.
  if (c_.alone() && !left && this_boot && c_.access.locks_by_node() && somebody_moves(10))
    return opened_by_another_node();
  // The evidence that the last life has ended may come from the next one, which another machine
  // began meanwhile.
  const auto now = read_slot_line();
  if (!now) return now.error();
  if (now->turn != slot.turn || now->nonce != slot.nonce) return taken_in_this_moment();
  if (may_take) return {};
  return Error{Status::HOST_ID_IN_USE,
               "another machine has " + host +
                   ", or this one had it before it booted, and it has "
                   "not left it; if that machine has stopped for good, " +
                   (c_.alone() ? "`bowhead pool repair --take-over` makes the pool yours"
                               : "say so by `bowhead pool fence` as another host, or, with the "
                                 "pool closed everywhere, by `bowhead pool repair --take-over`; "
                                 "else choose another --host")};
}

template <class A>
Error Joining<A>::taken_in_this_moment() const {
  return Error{Status::HOST_ID_IN_USE, "another machine takes host slot " +
                                           std::to_string(c_.host) +
                                           " in this moment; give each its own --host"};
}

template <class A>
Result<void> Joining<A>::begin_life(bh_host_slot slot, bool same_boot, const Progress& progress) {
  if (c_.alone()) {
    if (repairs_) dropped_tables_ = growth_.drop_damaged_copies();
    growth_.forget_heeded();
  }
  if (!c_.alone()) {
    const auto claimed = hosts_.claim_slot(slot);
    if (!claimed) return taken_in_this_moment();
    slot = *claimed;
    slot.claim = 0;
    // From here on this host's region is read as its own, that is, from the caches.
    for (const Range& range : c_.layout.region(c_.host))
      c_.access.acquire(range.offset, range.bytes);
    if (repairs_) dropped_tables_ = growth_.drop_damaged_copies();
    growth_.forget_heeded();
    growth_.take_part();
  }
  if (slot.incarnation == UINT16_MAX)
    return Error{Status::LIMIT_REACHED,
                 "host slot " + std::to_string(c_.host) +
                     " has used up its 65,535 incarnations; `bowhead pool create --force` makes "
                     "the pool anew, empty"};
  if (!c_.alone()) {
    if (auto ok = follow_last_life(slot, same_boot); !ok) return ok;
  }
  // Otherwise another host had the extents, and possibly stored blocks there; or there is damage.
  const bool first = slot.incarnation == 0 && !repairs_ &&
                     (c_.alone() || hosts_.successor({c_.host, 0}) == Life{c_.host, 1});
  slot.fenced = slot.incarnation;
  slot.incarnation += 1;
  slot.machine_id = c_.access.machine_id();
  slot.hardware_id = c_.access.hardware_id();
  slot.boot_id = c_.access.boot_id();
  slot.nonce = c_.access.random();
  hosts_.state_known(/*others=*/false);
  slot = hosts_.write_slot(slot, BH_HOST_JOINING);
  if (auto ok = check_ticket(); !ok) return ok;
  if (c_.alone()) {
    c_.incarnation = slot.incarnation;
  } else {
    // Hosts that judge leases by the lives they know see this one, before it reads decisions.
    c_.settle();
    hosts_.observe(c_.access.now_ns());
    if (c_.ended()) return declared_dead_while_joining();
    // Sets may have been removed, with their media, before other hosts saw this life.
    if (auto heeds = growth_.heed_newest(missing_); !heeds) return heeds;
    growth_.take_part();
  }
  if (repairs_) usage_.clear();
  recovery_.rebuild(first, progress);
  namespaces_.restart();
  clear_unused_parts();
  const uint64_t settled_at =
      c_.layout.part(c_.host, BH_PART_HEARTBEAT) + offsetof(bh_host_heartbeat, settled);
  c_.access.store(settled_at, uint64_t{c_.incarnation} << BH_STAMP_SEQUENCE_BITS);
  c_.access.publish(settled_at, 8);
  const uint64_t recovered = c_.private_word(offsetof(bh_host_private, recovered_boot_id));
  c_.access.store(recovered + 8, slot.incarnation);
  c_.access.store(recovered, slot.boot_id);
  if (c_.ended()) return declared_dead_while_joining();
  membership_.go_live(hosts_.write_slot(slot, BH_HOST_LIVE));
  if (c_.alone()) return {};
  hosts_.note_duties_done(c_.access.now_ns());
  look_around();
  return {};
}

/// On success the other hosts agree that a life of this host follows the one that the slot shows,
/// and the extents of that one have a holder. The slot does not say so yet: `slot` is its line,
/// with the incarnation of the life before the new one.
template <class A>
Result<void> Joining<A>::follow_last_life(bh_host_slot& slot, bool same_boot) {
  Life old{c_.host, slot.incarnation};
  if (!same_boot) {  // the private part is of another boot
    for (uint32_t h = 0; h < BH_HOSTS_MAX; ++h) c_.access.store(c_.own(BH_PART_VIEW, h), 0);
  }
  if (auto ok = succeed_myself(old); !ok) return ok;
  slot.incarnation = static_cast<uint16_t>(old.incarnation);
  c_.incarnation = old.incarnation + 1;
  hosts_.begin_heartbeat(c_.access.now_ns());
  if (start_heartbeat_) start_heartbeat_();  // J2
  flush_own();
  // Before the slot says that the new life has begun: if this process dies before that, the next
  // one that joins finds the old life again, and its decision.
  if (auto ok = take_over_extents(old); !ok) return ok;
  const auto now = read_slot_line();
  if (!now) return now.error();
  if (now->turn != slot.turn) return taken_in_this_moment();  // it took this claim for a dead one's
  return {};
}

/// The successor may already use the extents that this host was to rebuild.
template <class A>
Error Joining<A>::declared_dead_while_joining() const {
  return Error{Status::BUSY, "host " + std::to_string(c_.host) +
                                 " was declared dead while it was joining; open the pool again"};
}

/// Ensures that the first look-up after joining knows which indexes to read.
template <class A>
void Joining<A>::look_around() {
  const uint64_t now_ns = c_.access.now_ns();
  hosts_.observe(now_ns);
  hosts_.sample(now_ns);
  custody_.settle_extents(now_ns, /*locked=*/true);
}

/// Proposes the new life of this host, and waits for a decision about the old one. A life that was
/// to follow and never began, because the process that joined died, may be over too: then it is the
/// old one.
template <class A>
Result<void> Joining<A>::succeed_myself(Life& old) {
  const uint64_t deadline_ns = c_.access.now_ns() + kJoinWaitNs;
  for (uint32_t round = 1;; ++round) {
    const Life next{c_.host, old.incarnation + 1};
    const Outcome outcome =
        hosts_.decided(old) ? Outcome::DECIDED : hosts_.decide(old, next.value());
    if (outcome == Outcome::DECIDED) {
      hosts_.observe(c_.access.now_ns());
      if (!c_.ended(next)) return {};
    }
    if (outcome == Outcome::DECIDED || outcome == Outcome::OVER) {
      old = next;
      continue;
    }
    if (outcome == Outcome::EXHAUSTED || c_.access.now_ns() > deadline_ns)
      return Error{Status::BUSY, "the hosts of this pool do not agree on who succeeds host " +
                                     std::to_string(c_.host) + "; try again"};
    if (is_cancelled()) return Status::CANCELLED;
    c_.access.sleep_ns((1 + c_.access.random() % round) * c_.times.heartbeat_ms * 1'000'000);
  }
}

/// The extents of the old life are this one's if the host succeeded itself; else it waits until the
/// successor has them all, since the index of this host may be cleared only then.
template <class A>
Result<void> Joining<A>::take_over_extents(Life old) {
  const uint64_t deadline_ns = c_.access.now_ns() + kJoinWaitNs;
  const uint64_t extents = c_.layout.extent_end();
  for (;;) {
    const LivesOver over = holdings_.refresh_own_words();
    if (hosts_.successor(old) == Life{c_.host, c_.incarnation}) {
      relabel_extents(over);
      return {};
    }
    bool held = false;
    for (uint64_t e = 0; e < extents && !held; ++e)
      held = c_.layout.has_extent(e) && holdings_.holding_of(e, over).life.host == c_.host;
    if (!held) return {};
    if (c_.access.now_ns() > deadline_ns || c_.ended())
      return Error{Status::BUSY, "another host is to take over what host " +
                                     std::to_string(c_.host) +
                                     " held before and has not done so yet; try again"};
    if (is_cancelled()) return Status::CANCELLED;
    c_.access.sleep_ns(uint64_t{c_.times.heartbeat_ms} * 1'000'000);
    hosts_.observe(c_.access.now_ns());
    membership_.succeed_the_dead(/*locked=*/true);
  }
}

/// After Holdings::refresh_own_words(): writes the new life into the words by which this host holds
/// an extent.
template <class A>
void Joining<A>::relabel_extents(const LivesOver& over) {
  for (uint64_t e = 0; e < c_.layout.extent_end(); ++e) {
    OwnWord word = extents_.own_word(e);
    if ((word.state != BH_OWN_OWN && word.state != BH_OWN_CLAIM) ||
        holdings_.holding_of(e, over).writer != c_.host)
      continue;
    word.incarnation = c_.incarnation;
    // A host that inherited it in the meantime sees this word of a live host, and gives it up.
    if (word.slot == BH_OWN_UNCONFIRMED) word.slot = 0;
    holdings_.write_own(e, word);
  }
}

/// Writes back and drops all lines that this host can have left in the caches of this boot: another
/// machine may have had the slot after this one, or have it next. Of an extent that was never
/// carved no host ever stored a payload; its descriptor, which is published before its blocks are
/// in use, shows that once it comes from the memory.
template <class A>
void Joining<A>::flush_own() {
  const auto& g = c_.layout.geometry();
  for (const Range& range : c_.layout.region(c_.host)) c_.access.acquire(range.offset, range.bytes);
  std::vector<uint64_t> own;
  for (uint64_t e = 0; e < c_.layout.extent_end(); ++e) {
    const uint32_t state = extents_.own_word(e).state;
    if (state != BH_OWN_NONE && state != BH_OWN_GIVEN) own.push_back(e);
  }
  for (const uint64_t e : own) c_.access.invalidate(c_.layout.descriptor(e), g.table_bytes);
  c_.access.fence();
  for (const uint64_t e : own) {
    if (c_.access.load_line(c_.layout.descriptor(e)) != Line{})
      c_.access.invalidate(c_.layout.extent_offset(e), g.extent_bytes);
  }
  c_.settle();
}

/// Nothing is stored there yet: what is there is damage, and `pool check` reports it.
template <class A>
void Joining<A>::clear_unused_parts() {
  if (settings_.newer_features) return;
  for (const uint32_t part : {BH_PART_MEDIA, BH_PART_RINGS}) {
    if (part == BH_PART_MEDIA && growth_.possible()) continue;
    if (part == BH_PART_RINGS && settings_.has_rings) continue;
    for (uint64_t i = 0; i < c_.layout.geometry().parts[part].bytes / 8; ++i) {
      const uint64_t at = c_.own(part, i);
      if (c_.access.load(at) == 0) continue;
      c_.access.store(at, 0);
      c_.access.publish(at, 8);
    }
  }
}

template <class A>
Result<void> Joining<A>::take_process_slot() {
  const auto& g = c_.layout.geometry();
  // Free slots first; else that of a dead process (or one that damage makes look dead), whose
  // unfinished work then counts as this process's.
  for (const bool take_dead : {false, true}) {
    for (uint32_t p = 0; p < g.process_count; ++p) {
      const uint64_t at = c_.layout.process(c_.host, p);
      uint64_t seen = c_.access.load(at);
      const auto word = ProcessWord::unpack(seen);
      const bool suits =
          take_dead ? word.state != BH_PROCESS_SCAVENGING : word.state == BH_PROCESS_FREE;
      if (!suits || c_.access.lock_process(c_.host, p) == LockResult::HELD) continue;
      // By CAS: a scavenger that saw it dead may be at work on it this instant.
      if (!c_.access.cas(at, seen, word.next(BH_PROCESS_LIVE).pack())) {
        c_.access.unlock_process(c_.host, p);
        continue;
      }
      c_.process = p;
      c_.access.store(at + offsetof(bh_process, pid), c_.access.pid());
      c_.access.store(at + offsetof(bh_process, pid_namespace), c_.access.pid_namespace());
      c_.access.store(at + offsetof(bh_process, opened_unix_ns), c_.access.unix_ns());
      c_.access.store(at + offsetof(bh_process, mirror_bytes), BH_MIRROR_NONE);
      c_.access.store(at + offsetof(bh_process, mirrored), 0);
      if (take_dead) recovery_.undo_work_before();
      growth_.take_part();
      growth_.say_process_heeds();
      return {};
    }
  }
  return Error{Status::LIMIT_REACHED,
               "all " + std::to_string(g.process_count) +
                   " process slots of this host are taken; close the pool in some process"};
}

template <class A>
uint64_t Joining<A>::drop_all_damaged(const Progress& progress) {
  std::vector<Found> damaged;
  CheckReport unused;
  uint64_t seen = 0;
  index_.for_each(c_.host, [&](const Found& found) {
    if (progress && ++seen % 64 == 0) progress(seen, 0, "verifying blocks");
    if (inspection_.entry_fault(found, /*payload=*/true, unused)) damaged.push_back(found);
  });
  uint64_t dropped = 0;
  for (const Found& found : damaged) {
    const Hash128 hash = hash_of(found.entry);
    const uint64_t slot = c_.layout.slot_of(found.entry.block_offset);
    dropped += retirement_.retire(slot, hash, found.entry.stamp, BH_COUNTER_DAMAGED);
    retirement_.reclaim({&slot, 1});
  }
  return dropped;
}

}  // namespace bowhead::core
