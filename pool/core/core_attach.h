// SPDX-License-Identifier: Apache-2.0
// Core, coming and going: joining a host slot, undoing what dead processes left, rebuilding after a
// reboot. Included by core.h.
//
// A process is known by its process slot, and alive while it holds that slot's lock (access.h). Its
// half-done work is found by its number in allocator, extent, lease, lock and directory words, and
// is finished or undone by one scavenger, named in the process word; if that one dies too, the next
// takes over. Every step can be repeated. The process slot is free again only when all is done, so
// that a number in a word always means the same process.
//
// Invariants
//   J1 A life is taken up or followed in its own slot only by a machine that knows that no other
//      one writes there: the slot was left in order, after which nothing was stored; or its life
//      is over and fenced; or it is of this very boot, or of this very hardware before it booted
//      again; and its beat stands still, unless a process of this kernel has the pool open as that
//      host. What a disk image carries (the machine id) proves nothing.
//   J2 A life beats from the moment that somebody can take it for dead: from the decision that it
//      follows the last one, before it is published.
//   J3 Of machines that find this in the same instant one goes on at most: before it asks the
//      others to agree that its life is next, it claims the slot (Hosts::claim_slot). A claim that
//      does not become a life is passed over when it has stood for dead_ms without a beat.
#pragma once

#include <algorithm>

#include "pool/core/core.h"

namespace bowhead::core {

inline constexpr uint64_t kHostLockWaitMs = 10'000;
inline constexpr uint64_t kJoinWaitNs = 20'000'000'000;

// ---- joining and leaving ----

template <class A>
Result<void> Core<A>::attach(const Progress& progress, const StartBeating& start_beating) {
  start_beating_ = start_beating;
  // A process that rebuilds a large pool beats, and is worth waiting for.
  while (c_.access.lock_host(c_.host, kHostLockWaitMs) == LockResult::HELD) {
    if (!c_.alone() && hosts_.beats(c_.host, uint64_t{c_.times.dead_ms} * 1'000'000)) continue;
    return Error{Status::BUSY,
                 "another process has been opening or replacing this pool for 10 seconds; "
                 "if it hangs, end it and try again"};
  }
  Result<void> joined = join_host(/*take_over=*/false, progress);
  if (joined) joined = take_process_slot();
  c_.access.unlock_host(c_.host);
  if (joined) scavenge_dead();
  return joined;
}

template <class A>
void Core<A>::detach() {
  if (left_ || hosts_.region_lost()) {
    c_.access.unlock_process(c_.host, c_.process);
    return;
  }
  leases_.scavenge(c_.process);
  scavenge_blocks(c_.process);
  reap(/*wait=*/true);
  const bool locked = c_.access.lock_host(c_.host, kHostLockWaitMs) == LockResult::TAKEN;
  forget_own_process();
  c_.access.unlock_process(c_.host, c_.process);
  if (!locked) return;
  // With several hosts that is leave(): a new life costs an agreement, and there are only so many.
  if (c_.alone() && !anybody_alive()) {
    if (auto line = read_slot_line()) {
      line->fenced = line->incarnation;
      hosts_.write_slot(*line, BH_HOST_LEFT);
    }
  }
  c_.access.unlock_host(c_.host);
}

/// Of which nothing is left but that.
template <class A>
void Core<A>::forget_own_process() {
  allocator_.scavenge(c_.process);  // gives up preferences
  const uint64_t at = c_.layout.process(c_.host, c_.process);
  c_.access.store(at, ProcessWord::unpack(c_.access.load(at)).next(BH_PROCESS_FREE).pack());
}

template <class A>
bool Core<A>::anybody_alive() {
  for (uint32_t p = 0; p < c_.layout.geometry().process_count; ++p) {
    const auto word = ProcessWord::unpack(c_.access.load(c_.layout.process(c_.host, p)));
    if (word.state != BH_PROCESS_FREE && c_.access.process_alive(c_.host, p)) return true;
  }
  return false;
}

template <class A>
Result<bh_host_slot> Core<A>::read_slot_line() {
  if (const auto slot = hosts_.read_slot(c_.host)) return *slot;
  return Error{Status::DAMAGED, "both copies of host slot " + std::to_string(c_.host) +
                                    " are damaged; `bowhead pool repair` writes them anew"};
}

/// Under the host lock. Continues the host's life while its private parts are those of this boot
/// and nobody declared it dead; begins a new one, and rebuilds them, otherwise.
template <class A>
Result<void> Core<A>::join_host(bool take_over, const Progress& progress) {
  auto slot = read_slot_line();
  if (!slot) return slot.error();
  const uint64_t boot = c_.access.boot_id();
  const uint64_t recovered = c_.private_word(offsetof(bh_host_private, recovered_boot_id));
  const bool same_boot = slot->incarnation != 0 && slot->boot_id == boot &&
                         c_.access.load(recovered) == boot &&
                         c_.access.load(recovered + 8) == slot->incarnation;
  c_.incarnation = slot->incarnation;
  const bool here = slot->boot_id == boot && anybody_alive();
  if (!here) {
    if (auto ok = check_nobody_runs_as_this_host(*slot, take_over); !ok) return ok;
  }
  const bool over =
      !c_.alone() && same_boot &&
      (slot->state != BH_HOST_LIVE || ended() || hosts_.decided({c_.host, c_.incarnation}) ||
       hosts_.fenced({c_.host, c_.incarnation}));
  if (over && here)
    return Error{Status::HOST_FENCED,
                 "host " + std::to_string(c_.host) +
                     " was declared dead by the others, and processes of it still have the pool "
                     "open; end them, then open it again"};
  if (!same_boot || over) return begin_life(*slot, same_boot, progress);
  if (slot->state != BH_HOST_LIVE) hosts_.write_slot(*slot, BH_HOST_LIVE);
  if (!here && !c_.alone()) hosts_.begin_beating(c_.access.now_ns());
  go_live(*slot);
  if (!c_.alone()) {
    if (start_beating_) start_beating_();
    look_around();
  }
  return {};
}

/// J1. No process of this kernel has the pool open as this host.
template <class A>
Result<void> Core<A>::check_nobody_runs_as_this_host(const bh_host_slot& slot, bool take_over) {
  const bool claimed = slot.claim != 0;
  if (slot.incarnation == 0 && !claimed) return {};
  const Life life{c_.host, slot.incarnation};
  const uint64_t machine = c_.access.machine_id(), hardware = c_.access.hardware_id();
  const bool left = slot.state == BH_HOST_LEFT;
  const bool this_boot = slot.boot_id == c_.access.boot_id();
  const std::string host = "host slot " + std::to_string(c_.host);
  // A machine that just booted can afford to look as long as those who suspect a host.
  const uint64_t watch_ms = this_boot && !claimed ? 3 * c_.times.beat_ms : c_.times.dead_ms;
  if (!c_.alone() && (!left || claimed) && hosts_.beats(c_.host, watch_ms * 1'000'000))
    return Error{Status::HOST_ID_IN_USE, "another machine, or a copy of this one, runs as " + host +
                                             "; give each machine its own --host"};
  // What says that the last life has ended may be the next one, which another machine began
  // meanwhile.
  const auto now = read_slot_line();
  if (!now) return now.error();
  if (now->turn != slot.turn || now->nonce != slot.nonce) return taken_in_this_moment();
  const bool unused = slot.incarnation == 0;
  const bool ours = this_boot || (hardware != 0 && slot.hardware_id == hardware) ||
                    (c_.alone() && slot.machine_id == machine);
  const bool over = !c_.alone() && hosts_.fenced(life) && hosts_.decided(life);
  if (unused || ours || take_over || left || over) return {};
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
Error Core<A>::taken_in_this_moment() const {
  return Error{Status::HOST_ID_IN_USE, "another machine takes host slot " +
                                           std::to_string(c_.host) +
                                           " in this moment; give each its own --host"};
}

/// From here on this process knows whose slot line it must find (Core::beat).
template <class A>
void Core<A>::go_live(const bh_host_slot& slot) {
  own_slot_ = slot;
  live_.store(true, std::memory_order_release);
}

template <class A>
Result<void> Core<A>::begin_life(bh_host_slot slot, bool same_boot, const Progress& progress) {
  if (!c_.alone()) {
    const auto claimed = hosts_.claim_slot(slot);
    if (!claimed) return taken_in_this_moment();
    slot = *claimed;
    slot.claim = 0;
    // What decides about this host is read from here on as its own, that is, from the caches.
    const auto& g = c_.layout.geometry();
    c_.access.acquire(g.regions_offset + c_.host * g.region_bytes, g.region_bytes);
  }
  // Blank though there are blocks: it was lost. Stamps must not begin anew (R3).
  if (slot.incarnation == 0) slot.incarnation = static_cast<uint16_t>(highest_incarnation());
  if (slot.incarnation == UINT16_MAX)
    return Error{Status::LIMIT_REACHED,
                 "host slot " + std::to_string(c_.host) +
                     " has used up its 65,535 incarnations; `bowhead pool create --force` makes "
                     "the pool anew, empty"};
  Life old{c_.host, slot.incarnation};
  if (!c_.alone()) {
    if (!same_boot) {  // the private part is of another boot
      for (uint32_t h = 0; h < BH_HOSTS_MAX; ++h) c_.access.store(c_.own(BH_PART_VIEW, h), 0);
    }
    if (auto ok = succeed_myself(old); !ok) return ok;
    slot.incarnation = static_cast<uint16_t>(old.incarnation);
    c_.incarnation = old.incarnation + 1;
    hosts_.begin_beating(c_.access.now_ns());
    if (start_beating_) start_beating_();  // J2
    flush_own();
    // Before the slot says that the new life has begun: who dies until then finds the old one
    // again, and its decision, next time.
    if (auto ok = take_over_extents(old); !ok) return ok;
    const auto now = read_slot_line();
    if (!now) return now.error();
    if (now->turn != slot.turn)
      return taken_in_this_moment();  // the claim seemed to be a dead one's
  }
  slot.fenced = slot.incarnation;
  slot.incarnation += 1;
  slot.machine_id = c_.access.machine_id();
  slot.hardware_id = c_.access.hardware_id();
  slot.boot_id = c_.access.boot_id();
  slot.nonce = c_.access.random();
  slot = hosts_.write_slot(slot, BH_HOST_JOINING);
  if (c_.alone()) {
    c_.incarnation = slot.incarnation;
  } else {
    // Whoever judges leases by the lives it knows of sees this one, before decisions are read.
    c_.settle();
    hosts_.observe(c_.access.now_ns());
    if (ended()) return declared_dead_while_joining();
  }
  rebuild(progress);
  const uint64_t settled_at =
      c_.layout.part(c_.host, BH_PART_BEAT) + offsetof(bh_host_beat, settled);
  c_.access.store(settled_at, uint64_t{c_.incarnation} << BH_STAMP_SEQUENCE_BITS);
  c_.access.publish(settled_at, 8);
  const uint64_t recovered = c_.private_word(offsetof(bh_host_private, recovered_boot_id));
  c_.access.store(recovered + 8, slot.incarnation);
  c_.access.store(recovered, slot.boot_id);
  if (ended()) return declared_dead_while_joining();
  go_live(hosts_.write_slot(slot, BH_HOST_LIVE));
  if (c_.alone()) return {};
  hosts_.note_duties_done(c_.access.now_ns());
  look_around();
  return {};
}

/// Its successor may already use what it was to rebuild.
template <class A>
Error Core<A>::declared_dead_while_joining() const {
  return Error{Status::BUSY, "host " + std::to_string(c_.host) +
                                 " was declared dead while it was joining; open the pool again"};
}

/// So that the first look-up after joining knows whose indexes to read.
template <class A>
void Core<A>::look_around() {
  const uint64_t now_ns = c_.access.now_ns();
  hosts_.observe(now_ns);
  hosts_.sample(now_ns);
  settle_extents(now_ns, /*locked=*/true);
}

/// Waits for a decision about the old life; proposes the new one of this host. A life that was to
/// follow and never began, because whoever joined then died, may be over too: then it is the old
/// one.
template <class A>
Result<void> Core<A>::succeed_myself(Life& old) {
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
    c_.access.sleep_ns((1 + c_.access.random() % round) * c_.times.beat_ms * 1'000'000);
  }
}

/// What the old life held is this one's if it succeeded itself; else it waits until the successor
/// has it all, since the index of this host may be cleared only then.
template <class A>
Result<void> Core<A>::take_over_extents(Life old) {
  const uint64_t deadline_ns = c_.access.now_ns() + kJoinWaitNs;
  const uint64_t extents = c_.layout.geometry().extent_count;
  for (;;) {
    refresh_own_words();
    if (hosts_.successor(old) == Life{c_.host, c_.incarnation}) {
      relabel_extents(extents);
      return {};
    }
    bool held = false;
    for (uint64_t e = 0; e < extents && !held; ++e) held = holding_of(e).life.host == c_.host;
    if (!held) return {};
    if (c_.access.now_ns() > deadline_ns || c_.ended())
      return Error{Status::BUSY, "another host is to take over what host " +
                                     std::to_string(c_.host) +
                                     " held before and has not done so yet; try again"};
    c_.access.sleep_ns(uint64_t{c_.times.beat_ms} * 1'000'000);
    hosts_.observe(c_.access.now_ns());
    succeed_the_dead(/*locked=*/true);
  }
}

/// After refresh_own_words(): what the words say this host holds, it holds in its new life.
template <class A>
void Core<A>::relabel_extents(uint64_t extents) {
  for (uint64_t e = 0; e < extents; ++e) {
    OwnWord word = allocator_.own_word(e);
    if ((word.state != BH_OWN_OWN && word.state != BH_OWN_CLAIM) || holding_of(e).writer != c_.host)
      continue;
    word.incarnation = c_.incarnation;
    // Whoever else inherited it in the meantime sees this word of a living host, and gives it up.
    if (word.slot == BH_OWN_UNCONFIRMED) word.slot = 0;
    write_own(e, word);
  }
}

/// Everything that this host can have left in the caches of this boot goes out; and nothing stays
/// in them, since another machine may have had the slot after this one, or have it next.
template <class A>
void Core<A>::flush_own() {
  const auto& g = c_.layout.geometry();
  c_.access.acquire(g.regions_offset + c_.host * g.region_bytes, g.region_bytes);
  for (uint64_t e = 0; e < g.extent_count; ++e) {
    const uint32_t state = allocator_.own_word(e).state;
    if (state == BH_OWN_NONE || state == BH_OWN_GIVEN) continue;
    c_.access.invalidate(c_.layout.descriptor(e), g.table_bytes);
    c_.access.invalidate(c_.layout.extent_offset(e), g.extent_bytes);
  }
  c_.settle();
}

template <class A>
Result<void> Core<A>::leave() {
  if (c_.alone()) return {};
  if (c_.access.lock_host(c_.host, kHostLockWaitMs) == LockResult::HELD)
    return Error{Status::BUSY, "another process is opening this pool"};
  for (uint32_t p = 0; p < c_.layout.geometry().process_count; ++p) {
    if (p == c_.process || !c_.access.process_alive(c_.host, p)) continue;
    c_.access.unlock_host(c_.host);
    return Error{Status::IN_USE, "other processes of this host have the pool open; end them first"};
  }
  scavenge_dead();
  scavenge_blocks(c_.process);
  leases_.scavenge(c_.process);
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
  c_.access.unlock_host(c_.host);
  return slot ? Result<void>{} : slot.error();
}

template <class A>
Result<void> Core<A>::vouch_fenced(uint32_t host) {
  if (host >= hosts_.count() || host == c_.host)
    return Error{Status::INVALID_ARGUMENT,
                 "host " + std::to_string(host) + " is " +
                     (host == c_.host ? "this host itself" : "out of range")};
  const auto slot = hosts_.read_slot(host);
  hosts_.observe(c_.access.now_ns());
  // Of a host that died while it joined, a life may be over that its slot never showed; and lines
  // of the slot may be damaged.
  const uint64_t ended = c_.view(host).ended;
  Life life{host, slot ? slot->incarnation : 0u};
  if (ended > life.incarnation) life.incarnation = static_cast<uint32_t>(ended - 1);
  if (life.incarnation == 0)
    return Error{
        Status::INVALID_ARGUMENT,
        "host slot " + std::to_string(host) +
            (slot ? " was never used" : " cannot be read; `bowhead pool repair` mends it")};
  if (!c_.ended(life) && slot->state != BH_HOST_LEFT)
    return Error{Status::BUSY, "host " + std::to_string(host) +
                                   " has not been declared dead; if its machine is off, the other "
                                   "hosts do so within seconds: try again then"};
  hosts_.vouch_fenced(life);
  return {};
}

template <class A>
Result<void> Core<A>::take_process_slot() {
  const auto& g = c_.layout.geometry();
  // Free slots first; else that of a dead process (or what damage looks like one), whose leftovers
  // then count as ours.
  for (const bool take_dead : {false, true}) {
    for (uint32_t p = 0; p < g.process_count; ++p) {
      const uint64_t at = c_.layout.process(c_.host, p);
      uint64_t seen = c_.access.load(at);
      const auto word = ProcessWord::unpack(seen);
      const bool suits =
          take_dead ? word.state != BH_PROCESS_SCAVENGING : word.state == BH_PROCESS_FREE;
      if (!suits || c_.access.lock_process(c_.host, p) == LockResult::HELD) continue;
      // By CAS: a scavenger that saw it dead may be at it this instant.
      if (!c_.access.cas(at, seen, word.next(BH_PROCESS_LIVE).pack())) {
        c_.access.unlock_process(c_.host, p);
        continue;
      }
      c_.process = p;
      c_.access.store(at + offsetof(bh_process, pid), c_.access.pid());
      c_.access.store(at + offsetof(bh_process, pid_namespace), c_.access.pid_namespace());
      c_.access.store(at + offsetof(bh_process, opened_unix_ns), c_.access.unix_ns());
      if (take_dead) undo_work_of(p);
      return {};
    }
  }
  return Error{Status::LIMIT_REACHED,
               "all " + std::to_string(g.process_count) +
                   " process slots of this host are taken; close the pool in some process"};
}

// ---- what dead processes left ----

template <class A>
uint64_t Core<A>::scavenge_dead() {
  uint64_t dead = 0;
  for (uint32_t p = 0; p < c_.layout.geometry().process_count; ++p) {
    const auto word = ProcessWord::unpack(c_.access.load(c_.layout.process(c_.host, p)));
    if (p != c_.process && word.state != BH_PROCESS_FREE && !c_.access.process_alive(c_.host, p))
      dead += scavenge_process(p);
  }
  return dead;
}

/// False if another live process is at it. The caller has seen that `dead` does not hold its lock.
template <class A>
bool Core<A>::scavenge_process(uint32_t dead) {
  const uint64_t at = c_.layout.process(c_.host, dead);
  uint64_t seen = c_.access.load(at);
  const auto word = ProcessWord::unpack(seen);
  if (word.state == BH_PROCESS_FREE) return false;
  if (word.state == BH_PROCESS_SCAVENGING && word.scavenger != 0 && c_.alive(word.scavenger - 1))
    return false;
  // Between the load and here its slot may have been scavenged and taken anew: then the word
  // changed.
  if (c_.access.process_alive(c_.host, dead) ||
      !c_.access.cas(at, seen, word.next(BH_PROCESS_SCAVENGING, c_.process + 1).pack()))
    return false;

  c_.count(BH_COUNTER_SCAVENGED, undo_work_of(dead));
  c_.access.store(at, ProcessWord::unpack(c_.access.load(at)).next(BH_PROCESS_FREE).pack());
  return true;
}

/// `dead` is a number that we scavenge, or that is ours since this instant. Returns how much was
/// half done.
template <class A>
uint64_t Core<A>::undo_work_of(uint32_t dead) {
  // What it was scavenging itself comes first: its number stands in their process words.
  for (uint32_t p = 0; p < c_.layout.geometry().process_count; ++p) {
    const uint64_t at = c_.layout.process(c_.host, p);
    uint64_t seen = c_.access.load(at);
    const auto other = ProcessWord::unpack(seen);
    if (p != dead && other.state == BH_PROCESS_SCAVENGING && other.scavenger == dead + 1 &&
        c_.access.cas(at, seen, other.next(BH_PROCESS_SCAVENGING).pack()))
      scavenge_process(p);
  }
  uint64_t found = leases_.scavenge(dead);
  found += scavenge_blocks(dead);
  found += allocator_.scavenge(dead);
  index_.release_locks(dead);
  for (const uint64_t parity : {0, 1})
    c_.access.store(Publishing<A>::count_at(c_, dead, parity), 0);
  allocator_.recount();
  return found;
}

/// Entries that it was writing, then its blocks, by what the entries say.
template <class A>
uint64_t Core<A>::scavenge_blocks(uint32_t dead) {
  uint64_t found = index_.scavenge_claims(dead);
  std::vector<uint64_t> retired;
  for (uint64_t slot = 0; slot < c_.layout.slot_count(); ++slot) {
    const StateWord word = allocator_.word(slot);
    // Nobody's: who retired it may have died before it could look at the hazards.
    if (word.state == BH_BLOCK_RETIRED) retired.push_back(slot);
    if (word.process != dead ||
        (word.state != BH_BLOCK_RESERVED && word.state != BH_BLOCK_RETIRING &&
         word.state != BH_BLOCK_CLEANING))
      continue;
    ++found;
    if (scavenge_block(slot, allocator_.held_cut(c_.layout.extent_of_slot(slot)), word))
      retired.push_back(slot);
  }
  reclaim(retired);
  return found;
}

/// Protocol 5.12. True if the block is RETIRED now, false if it stays committed.
template <class A>
bool Core<A>::scavenge_block(uint64_t slot, const Cut& cut, StateWord word) {
  bh_block_header header;
  std::optional<Found> own_entry, other_entry;
  if (cut.block_bytes != 0 && read_header(slot, header) &&
      stamp_state(header.stamp) == BH_STAMP_COMMITTED) {
    const uint64_t offset = allocator_.block_of(slot, cut).offset;
    const Hash128 hash{header.key_hash[0], header.key_hash[1]};
    const auto is_own = [&](const bh_index_entry& entry) {
      return entry.block_offset == offset && entry.stamp == header.stamp;
    };
    own_entry = index_.find_if(c_.host, hash, is_own);
    const std::string text = read_key(slot, header.key_bytes);
    other_entry = index_.find_if(c_.host, hash, [&](const bh_index_entry& entry) {
      // CLEANING by a scavenger that died too: that block is the one to go.
      return !is_own(entry) &&
             verify(Found{entry, c_.host, 0, 0, 0}, Key(header.namespace_id, text, hash)) &&
             allocator_.word(c_.layout.slot_of(entry.block_offset)).state != BH_BLOCK_CLEANING;
    });
  }
  // RETIRING with its entry in place: a removal that had not begun to show. RESERVED with its entry
  // in place: a put whose success was visible already. If another entry has the key too, they are
  // the two blocks of a move, and the other one is enough. A length that the block cannot have, or
  // that the entry contradicts, is damage: no reader would accept the block, and nothing that lies
  // behind it may be touched.
  const bool whole = own_entry && header.stored_bytes == own_entry->entry.stored_bytes &&
                     header.stored_bytes <= cut.block_bytes;
  const bool keep = whole && word.state != BH_BLOCK_CLEANING && !other_entry;
  if (keep) {
    // It may have died before it published them.
    c_.access.publish(own_entry->entry.block_offset, header.stored_bytes);
    c_.access.publish(c_.layout.header(slot), sizeof(bh_block_slot));
    index_.publish(*own_entry);
    c_.change(c_.block_word(slot), word, word.next(BH_BLOCK_COMMITTED));
    return false;
  }
  return clean_block(slot, word, own_entry);
}

template <class A>
bool Core<A>::clean_block(uint64_t slot, StateWord word, const std::optional<Found>& entry) {
  const StateWord cleaning = word.next(BH_BLOCK_CLEANING, c_.process);
  if (!c_.change(c_.block_word(slot), word, cleaning)) return false;
  if (entry) index_.erase(*entry);
  retire_header(slot);
  c_.store_state(c_.block_word(slot), cleaning.next(BH_BLOCK_RETIRED));
  return true;
}

// ---- rebuilding ----

/// Under the host lock, nobody else of the host alive. Allocator, leases and locks are made anew
/// from what is published: cuts from extent descriptors, blocks from index entries whose header
/// agrees.
template <class A>
void Core<A>::rebuild(const Progress& progress) {
  const auto& g = c_.layout.geometry();
  const auto step = [&](uint64_t done) {
    if (progress) progress(done, 4, "rebuilding the allocator from the index");
  };
  step(0);
  leases_.reset();
  if (c_.alone()) {  // nobody can have declared it dead: whatever stands there is damage
    for (uint32_t host = 0; host < BH_HOSTS_MAX; ++host)
      c_.access.store(c_.own(BH_PART_VIEW, host), 0);
  }
  for (const size_t at :
       {offsetof(bh_host_private, probed_hosts), offsetof(bh_host_private, publish_phase),
        offsetof(bh_host_private, wanted_extents), offsetof(bh_host_private, extents_busy)})
    c_.access.store(c_.private_word(at), 0);
  for (uint64_t i = 0; i < g.lock_count; ++i) c_.access.store(c_.own(BH_PART_LOCKS, i), 0);
  for (uint32_t p = 0; p < g.process_count; ++p) {
    const uint64_t at = c_.layout.process(c_.host, p);
    c_.access.store(at, ProcessWord::unpack(c_.access.load(at)).next(BH_PROCESS_FREE).pack());
    for (const uint64_t parity : {0, 1}) c_.access.store(Publishing<A>::count_at(c_, p, parity), 0);
  }
  c_.access.store(sequence_at(), 0);
  // The clock of recency began anew with the boot.
  for (uint64_t slot = 0; slot < c_.layout.slot_count(); ++slot)
    c_.access.store_relaxed(c_.own(BH_PART_RECENCY, slot), 0);
  std::vector<Cut> private_cuts;
  allocator_.for_each_slab([&](const Cut& cut) { private_cuts.push_back(cut); });
  allocator_.reset();
  take_back_extents();
  step(1);
  restore_cuts([&](uint64_t e) { return allocator_.holds(e); });
  for (const Cut& cut : private_cuts) restore_cut_privately(cut);
  step(2);
  index_.rebuild([&](const bh_index_entry& entry) { return restore_entry(entry); });
  step(3);
  // A header whose block does not come back must not show a committed stamp (C2).
  for (uint64_t slot = 0; slot < c_.layout.slot_count(); ++slot) {
    const uint64_t extent = c_.layout.extent_of_slot(slot);
    if (!allocator_.writable(extent) || allocator_.closed(extent) ||
        allocator_.word(slot).state == BH_BLOCK_COMMITTED)
      continue;
    const uint64_t stamp = c_.access.load(c_.layout.header(slot));
    if (stamp != 0 && stamp_state(stamp) == BH_STAMP_COMMITTED && !restore_unnamed(slot))
      retire_header(slot);
  }
  if (!c_.alone()) hold_leased();
  allocator_.recount();
  step(4);
}

/// Blocks that are free by what was stored, but that leases of other hosts still name: they are
/// freed like any that was retired (I4).
template <class A>
void Core<A>::hold_leased() {
  c_.settle();
  c_.settle();  // twice, as in reap()
  for (const uint64_t offset : named_blocks()) {
    if (!c_.layout.valid_block(offset, 1)) continue;
    const uint64_t slot = c_.layout.slot_of(offset);
    const StateWord word = allocator_.word(slot);
    if (word.state == BH_BLOCK_FREE)
      c_.store_state(c_.block_word(slot), word.next(BH_BLOCK_RETIRED));
  }
}

/// Some host says that the extent is its own, or on its way.
template <class A>
bool Core<A>::has_owner(uint64_t extent) const {
  const uint32_t hosts = c_.layout.geometry().host_count;
  for (uint32_t host = 0; host < hosts; ++host) {
    const uint64_t at = c_.layout.word(host, BH_PART_OWN, extent);
    c_.access.acquire(at, 8);
    const uint32_t state = own_state(c_.access.load(at));
    if (state == BH_OWN_OWN || (hosts > 1 && (state == BH_OWN_GIVEN || state == BH_OWN_CLAIM)))
      return true;
  }
  return false;
}

/// Every extent has an owner (I5): one that has none lost its word, and is its first owner's again.
template <class A>
void Core<A>::take_back_extents() {
  for (uint64_t e = c_.layout.first_extent_of(c_.host); e < c_.layout.first_extent_of(c_.host + 1);
       ++e) {
    if (has_owner(e)) continue;
    const uint64_t at = c_.own(BH_PART_OWN, e);
    c_.access.store(at, make_own(BH_OWN_OWN, 1));
    c_.access.publish(at, 8);
  }
}

/// Cuts of which all extents are ours(extent), by their descriptors.
template <class A>
template <class Ours>
void Core<A>::restore_cuts(Ours ours) {
  const auto& g = c_.layout.geometry();
  for (uint64_t e = 0; e < g.extent_count;) {
    Line line;
    const uint64_t at = c_.layout.descriptor(e);
    c_.access.acquire(at, BH_LINE_BYTES);
    const bool sealed = c_.read_sealed(at, line);
    const auto d = from_line<bh_extent_descriptor>(line);
    bool good = sealed && d.block_bytes >= g.min_block_bytes &&
                d.block_bytes % BH_PAYLOAD_ALIGN == 0 && d.extent_span >= 1 &&
                d.extent_span <= g.extent_count - e && d.block_count >= 1 &&
                d.block_count == d.extent_span * g.extent_bytes / d.block_bytes;
    for (uint64_t part = e; good && part < e + d.extent_span; ++part) good = ours(part);
    if (good) allocator_.restore_cut(Cut{e, d.block_bytes, d.block_count, d.extent_span});
    e += good ? d.extent_span : 1;
  }
}

/// Where a descriptor is damaged, the cut that the host's private part had, if all of it is free.
template <class A>
void Core<A>::restore_cut_privately(const Cut& cut) {
  Line line;
  if (c_.read_sealed(c_.layout.descriptor(cut.head), line)) return;
  for (uint64_t e = cut.head; e < cut.head + cut.extent_span; ++e) {
    if (!allocator_.extent_free(e)) return;
  }
  allocator_.restore_cut(cut);
  allocator_.write_descriptor(cut.head, cut);
}

/// True if the block that an entry names is really there; it is COMMITTED then. Also if its header
/// is damaged: the entry stays, so that check can name the loss.
template <class A>
bool Core<A>::restore_entry(const bh_index_entry& entry) {
  if (!c_.layout.valid_block(entry.block_offset, entry.stored_bytes)) return false;
  const uint64_t slot = c_.layout.slot_of(entry.block_offset);
  bh_block_header header;
  if (read_header(slot, header) &&
      (header.stamp != entry.stamp || stamp_state(header.stamp) != BH_STAMP_COMMITTED ||
       header.key_hash[0] != entry.key_hash[0] || header.key_hash[1] != entry.key_hash[1] ||
       header.stored_bytes != entry.stored_bytes))
    return false;
  const Cut cut = allocator_.held_cut(c_.layout.extent_of_slot(slot));
  const uint32_t usable =
      allocator_.closed(c_.layout.extent_of_slot(slot)) ? BH_BLOCK_NONE : BH_BLOCK_FREE;
  if (allocator_.word(slot).state != usable || cut.block_bytes == 0 ||
      allocator_.block_of(slot, cut).offset != entry.block_offset ||
      entry.stored_bytes > cut.block_bytes || restored_elsewhere(entry))
    return false;
  allocator_.restore_committed(slot);
  return true;
}

/// A death in the middle of a move left two blocks of one key, and the other one is back already.
template <class A>
bool Core<A>::restored_elsewhere(const bh_index_entry& entry) const {
  const Hash128 hash{entry.key_hash[0], entry.key_hash[1]};
  const auto other = index_.find_if(c_.host, hash, [&](const bh_index_entry& e) {
    if (e.namespace_id != entry.namespace_id || e.block_offset == entry.block_offset ||
        !c_.layout.valid_block(e.block_offset, e.stored_bytes))
      return false;
    bh_block_header header;
    const uint64_t slot = c_.layout.slot_of(e.block_offset);
    return allocator_.word(slot).state == BH_BLOCK_COMMITTED && read_header(slot, header) &&
           header.stamp == e.stamp;
  });
  return other.has_value();
}

/// A whole block that no entry names, because its entry was damaged or its writer died just before:
/// it gets an entry. Only one whose bytes can be verified.
template <class A>
bool Core<A>::restore_unnamed(uint64_t slot) {
  bh_block_header header;
  const Cut cut = allocator_.held_cut(c_.layout.extent_of_slot(slot));
  if (cut.block_bytes == 0 || allocator_.word(slot).state != BH_BLOCK_FREE ||
      !read_header(slot, header) || header.checksum_kind == BH_CHECKSUM_NONE)
    return false;
  const Block block = allocator_.block_of(slot, cut);
  const std::string text = read_key(slot, header.key_bytes);
  const Key key(header.namespace_id, text);
  if (!Key::valid(text) || key.hash.low != header.key_hash[0] ||
      key.hash.high != header.key_hash[1] ||
      c_.layout.block_bytes(header.stored_bytes, text.size()) > block.block_bytes || locate(key) ||
      !index_.insert(key.hash, entry_for(block, header)))
    return false;
  allocator_.restore_committed(slot);
  return true;
}

/// For a host slot whose lines are lost: the highest incarnation that any stamp of it shows.
template <class A>
uint32_t Core<A>::highest_incarnation() const {
  uint32_t highest = 0;
  for (uint64_t slot = 0; slot < c_.layout.slot_count(); ++slot) {
    bh_block_header header;
    if (!read_header(slot, header) || header.stamp >> 58 != c_.host) continue;
    highest = std::max(highest, static_cast<uint32_t>(header.stamp >> 42) & 0xFFFFu);
  }
  return highest;
}

template <class A>
Result<std::vector<std::string>> Core<A>::repair(bool take_over, const Progress& progress,
                                                 const StartBeating& start_beating) {
  std::vector<std::string> done;
  if (c_.access.lock_host(c_.host, kHostLockWaitMs) == LockResult::HELD)
    return Error{Status::BUSY, "another process is opening this pool"};
  if (anybody_alive()) {
    c_.access.unlock_host(c_.host);
    return Error{Status::IN_USE, "processes have this pool open; end them first"};
  }
  if (!hosts_.read_slot(c_.host)) {
    bh_host_slot line{};
    line.incarnation = static_cast<uint16_t>(highest_incarnation());
    line.machine_id = c_.access.machine_id();
    line.hardware_id = c_.access.hardware_id();
    hosts_.write_slot(line, BH_HOST_LEFT);
    line.turn += 1;  // and the other copy
    hosts_.write_slot(line, BH_HOST_LEFT);
    done.push_back("wrote host slot " + std::to_string(c_.host) + " anew");
  }
  // Forgetting the boot makes join_host() rebuild.
  c_.access.store(
      c_.layout.part(c_.host, BH_PART_PRIVATE) + offsetof(bh_host_private, recovered_boot_id), 0);
  start_beating_ = start_beating;
  Result<void> joined = join_host(take_over, progress);
  if (joined) joined = take_process_slot();
  c_.access.unlock_host(c_.host);
  if (!joined) return joined.error();
  done.push_back("rebuilt the allocator and the index directory from the stored blocks");
  const uint64_t dropped = drop_all_damaged(progress);
  if (dropped != 0) done.push_back("dropped " + std::to_string(dropped) + " damaged block(s)");
  const uint64_t forgotten = drop_damaged_namespaces();
  if (forgotten != 0)
    done.push_back("dropped " + std::to_string(forgotten) +
                   " damaged description(s) of namespaces; open the namespaces to write them anew");
  detach();
  return done;
}

template <class A>
uint64_t Core<A>::drop_all_damaged(const Progress& progress) {
  std::vector<Found> damaged;
  CheckReport unused;
  uint64_t seen = 0;
  index_.for_each(c_.host, [&](const Found& found) {
    if (progress && ++seen % 64 == 0) progress(seen, 0, "verifying blocks");
    if (entry_fault(found, /*payload=*/true, unused)) damaged.push_back(found);
  });
  uint64_t dropped = 0;
  for (const Found& found : damaged) {
    const Hash128 hash{found.entry.key_hash[0], found.entry.key_hash[1]};
    const uint64_t slot = c_.layout.slot_of(found.entry.block_offset);
    dropped += retire(slot, hash, found.entry.stamp, BH_COUNTER_DAMAGED);
    reclaim({&slot, 1});
  }
  return dropped;
}

template <class A>
uint64_t Core<A>::drop_damaged_namespaces() {
  uint64_t dropped = 0;
  for (uint64_t i = 0; i < c_.layout.geometry().namespace_count; ++i) {
    if (!namespace_damaged(c_.host, i)) continue;
    c_.access.store_line(c_.layout.name_space(c_.host, i), Line{});
    c_.access.publish(c_.layout.name_space(c_.host, i), BH_LINE_BYTES);
    ++dropped;
  }
  return dropped;
}

}  // namespace bowhead::core
