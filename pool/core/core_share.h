// SPDX-License-Identifier: Apache-2.0
// Core, sharing the pool with other hosts: beats, succession, custody and transfer of extents, mail
// (docs/sharing.md). Included by core.h. A pool of one host needs none of it.
//
// Who holds an extent follows from the `own` words of all hosts, each written by its host alone:
// the word of the highest transfer epoch says it, where CLAIM, OWN and ABANDONED of the recipient
// come before GIVEN of the grantor. If that life of the holder is over, its successor holds the
// extent (protocol 5.8) and says so with a word of the next epoch. Words of lives that are over
// stay where they are: they tell who may still be writing (predecessors).
//
// Invariants
//   S1 A word of a higher epoch is written only by the one host that the words and decisions before
//      it name: the holder, its successor, or the recipient of a grant. So two hosts never write
//      one epoch (I5).
//   S2 A recipient that sees CLAIM through to OWN has looked, after its CLAIM settled, for a
//      decision that is as much as begun about the grantor's life or its own; whoever takes the
//      extent by such a decision looks at the CLAIM after the decision settled. One sees the other.
//   S3 An extent that a word of this host makes its own comes into use only after the word has
//      settled and, after that, no decision about this life had begun: so whoever succeeds this
//      life, and looks after its decision has settled, finds the word among the predecessors'.
//   S4 Nothing is written into an extent in READ_ONLY custody. It ends when every live host has
//      acked that the lives before it are over and no hazard names a block of it; it ends in FULL
//      only if all those lives are known to have stopped writing.
//   S5 An extent that was inherited, or taken back from a recipient, comes into use only if, after
//      its word had settled, the words and decisions of the others still led to this life: words of
//      a decision that was a link may have been used again while it was followed, and a late
//      recipient may have written. Who looks later finds the word of a living host.
//   S6 What a host says it has removed is removed for all only if its life stood after that
//      (Hosts::stands): then whoever succeeds it reads an index that has no entry of it.
#pragma once

#include <algorithm>
#include <map>
#include <vector>

#include "pool/core/core.h"

namespace bowhead::core {

inline constexpr uint64_t kSweepBeats = 50;
inline constexpr uint64_t kTransferBytes = uint64_t{256} << 20;

template <class A>
Result<void> Core<A>::beat() {
  if (c_.alone()) return {};
  if (ended()) return fenced_error();
  const uint64_t now_ns = c_.access.now_ns();
  hosts_.sample(now_ns);
  if (!hosts_.take_beat(now_ns)) return {};
  const bool live = live_.load(std::memory_order_acquire);
  if (live) {
    if (auto ok = check_own_slot(); !ok) return ok;
  }
  if (hosts_.beat_is_foreign()) return end_by_conflict();
  hosts_.observe(now_ns);
  if (ended()) return fenced_error();
  if (live) leases_.flush();
  hosts_.publish_beat(now_ns, live);
  if (live) leases_.revoke_expired(now_ns);
  return {};
}

template <class A>
Result<void> Core<A>::work() {
  if (c_.alone()) return {};
  if (ended()) return fenced_error();
  reap(/*wait=*/false);
  allocator_.cover();
  const uint64_t now_ns = c_.access.now_ns();
  if (!hosts_.take_duties(now_ns)) return {};
  hosts_.observe(now_ns);
  const uint64_t wanted_at = c_.private_word(offsetof(bh_host_private, wanted_extents));
  wanted_ = c_.access.load(wanted_at) != 0;
  if (wanted_) c_.access.store(wanted_at, 0);
  take_touches(now_ns);
  read_mail();
  succeed_the_dead();
  if (settle_extents(now_ns, /*locked=*/false)) hosts_.note_duties_done(c_.access.now_ns());
  return ended() ? fenced_error() : Result<void>{};
}

template <class A>
Error Core<A>::fenced_error() const {
  if (c_.access.media_failed()) return Error{Status::MEDIA_ERROR, {}};
  const std::string host = "host " + std::to_string(c_.host);
  if (gone() == Status::HOST_ID_CONFLICT)
    return Error{Status::HOST_ID_CONFLICT, "another machine, or a copy of this one, runs as " +
                                               host + " too; give each its own --host"};
  return Error{Status::HOST_FENCED,
               host +
                   " stood still too long and was declared dead by the others; close the pool "
                   "and open it again to rejoin"};
}

/// The slot line is ours alone: another nonce in it means that another machine, or a copy of this
/// one, runs as the same host. But a claim is no life yet, and who comes late with one writes what
/// the slot was before this life.
template <class A>
Result<void> Core<A>::check_own_slot() {
  const auto slot = hosts_.read_slot(c_.host);
  const bool ours = slot && slot->nonce == own_slot_.nonce && slot->incarnation == c_.incarnation;
  if (ours && (slot->state == BH_HOST_LEFT || (slot->state == BH_HOST_LIVE && slot->claim == 0))) {
    own_slot_ = *slot;
    return {};
  }
  if (!slot || ours || slot->incarnation < c_.incarnation) {  // or damaged
    if (slot) own_slot_.turn = std::max(own_slot_.turn, slot->turn);
    own_slot_.claim = 0;
    own_slot_ = hosts_.write_slot(own_slot_, BH_HOST_LIVE);
    return {};
  }
  if (hosts_.decided({c_.host, c_.incarnation})) return {};  // observe() sees it too
  hosts_.end_own_life(/*conflict=*/true);
  return fenced_error();
}

/// A copy of this machine beats as this host. Both must end: what they share, their private part,
/// is as good as damaged. The copy learns it from the slot line.
template <class A>
Error Core<A>::end_by_conflict() {
  if (live_.load(std::memory_order_acquire)) {
    own_slot_.nonce = c_.access.random() ^ c_.access.now_ns();
    hosts_.write_slot(own_slot_, own_slot_.state);
  }
  hosts_.end_own_life(/*conflict=*/true);
  return fenced_error();
}

template <class A>
uint64_t Core<A>::hazard_hosts() const {
  return hosts_.hazard_hosts(c_.access.now_ns());
}

template <class A>
void Core<A>::want_extents(uint64_t count) {
  if (c_.alone()) return;
  const uint64_t at = c_.private_word(offsetof(bh_host_private, wanted_extents));
  if (c_.access.load_relaxed(at) < count) c_.access.store_relaxed(at, count);
}

// ---- succession ----

/// Proposes this host as the successor of hosts that are suspected, the host with the lowest slot
/// first; and, if it needs room, of slots that nobody ever used. `locked`: under the host lock.
template <class A>
void Core<A>::succeed_the_dead(bool locked) {
  uint64_t before = 0;  // live hosts that should propose first
  for (uint32_t h = 0; h < c_.host; ++h) {
    const auto slot = hosts_.read_slot(h);
    before +=
        slot && slot->incarnation != 0 && !c_.ended({h, slot->incarnation}) && !hosts_.suspect(h);
  }
  const uint64_t wait_ms = before * 2 * uint64_t{c_.times.beat_ms};
  for (uint32_t h = 0; h < hosts_.count(); ++h) {
    if (h == c_.host) continue;
    const auto slot = hosts_.read_slot(h);
    const bool unused = slot && slot->incarnation == 0 && wanted_ && !c_.ended({h, 0});
    const auto suspect = unused ? Life{h, 0} : hosts_.suspect(h, wait_ms);
    if (!suspect) continue;
    if (ended()) return;  // who is over decides nothing
    // Two who propose in step would overtake each other for ever.
    if (hosts_.begun(*suspect) && c_.access.random() % 4 != 0) continue;
    if (!locked && c_.access.lock_host(c_.host, 0) == LockResult::HELD) return;
    hosts_.decide(*suspect, Life{c_.host, c_.incarnation}.value());
    if (!locked) c_.access.unlock_host(c_.host);
    hosts_.observe(c_.access.now_ns());
    if (unused || ended()) return;  // one at a time
  }
}

/// Somebody has at least begun to decide that this life is over. One who dies in the middle of that
/// leaves the question open; then this host answers it itself, and begins a new life.
template <class A>
bool Core<A>::doubted() {
  const Life self{c_.host, c_.incarnation};
  if (!hosts_.begun(self)) {
    doubted_since_ns_ = 0;
    return false;
  }
  const uint64_t now_ns = c_.access.now_ns();
  if (doubted_since_ns_ == 0) doubted_since_ns_ = now_ns;
  if (now_ns - doubted_since_ns_ > uint64_t{c_.times.dead_ms} * 1'000'000) {
    hosts_.decide(self, Life{c_.host, c_.incarnation + 1}.value());
    hosts_.observe(c_.access.now_ns());
  }
  return true;
}

// ---- who holds what ----

template <class A>
OwnWord Core<A>::own_of(uint32_t host, uint64_t extent) const {
  return OwnWord::unpack(c_.access.load(c_.layout.word(host, BH_PART_OWN, extent)));
}

template <class A>
void Core<A>::refresh_own_words() const {
  for (uint32_t h = 0; h < hosts_.count(); ++h)
    c_.invalidate_from(h, c_.layout.part(h, BH_PART_OWN), 8 * c_.layout.geometry().extent_count);
  c_.access.coherence_fence();
}

template <class A>
void Core<A>::write_own(uint64_t extent, const OwnWord& word) {
  c_.access.store(c_.own(BH_PART_OWN, extent), word.pack());
  c_.access.publish(c_.own(BH_PART_OWN, extent), 8);
}

/// After refresh_own_words().
template <class A>
auto Core<A>::holding_of(uint64_t extent, std::optional<uint64_t> others_since) const -> Holding {
  Holding best;
  uint64_t highest = 0;
  for (uint32_t h = 0; h < hosts_.count(); ++h) {
    const OwnWord word = own_of(h, extent);
    if (word.state == BH_OWN_NONE) continue;
    if (others_since && (h == c_.host || word.epoch < *others_since)) continue;
    // Of two that say OWN, one is late: its life is over, and the other succeeded it. Where it was
    // over before it was certain, the words before it tell, unless there is none.
    const bool late = word.state == BH_OWN_OWN && c_.ended({h, word.incarnation});
    const uint64_t order = late && word.slot == BH_OWN_UNCONFIRMED
                               ? 0
                               : word.epoch * 4 + (word.state == BH_OWN_GIVEN ? 0
                                                   : late                     ? 1
                                                                              : 2);
    if (order < highest) continue;
    highest = order;
    best.word = word;
    best.writer = h;
  }
  best.life = {best.writer, best.word.incarnation};
  // A grant that was not claimed, or given up, is the grantor's.
  const uint32_t grantor = best.word.state == BH_OWN_GIVEN       ? best.writer
                           : best.word.state == BH_OWN_ABANDONED ? best.word.slot
                                                                 : UINT32_MAX;
  if (grantor < hosts_.count()) {
    const OwnWord given = own_of(grantor, extent);
    const auto slot = hosts_.read_slot(grantor);
    const uint32_t now = slot ? slot->incarnation : 0;
    best.life = {grantor, now - ((now - given.custody) & 0xFFu)};
  }
  return best;
}

/// Lives that held the extent before this one and are not known to have given it away: they may
/// still write to it.
template <class A>
std::vector<Life> Core<A>::predecessors(uint64_t extent) const {
  std::vector<Life> found;
  for (uint32_t h = 0; h < hosts_.count(); ++h) {
    const OwnWord word = own_of(h, extent);
    if (h != c_.host && (word.state == BH_OWN_OWN || word.state == BH_OWN_CLAIM))
      found.push_back({h, word.incarnation});
  }
  return found;
}

/// A host that did not know yet that its life is over said OWN in the same epoch.
template <class A>
bool Core<A>::has_rival(uint64_t extent, uint64_t epoch) const {
  for (uint32_t h = 0; h < hosts_.count(); ++h) {
    const OwnWord word = own_of(h, extent);
    if (h != c_.host && word.state == BH_OWN_OWN && word.epoch >= epoch) return true;
  }
  return false;
}

/// What a host does about extents: claims what was given to it, takes back what nobody claimed,
/// adopts what it inherited, and opens what it has in custody.
/// What grows with the pool is a job, done in slices. False if there was something to do and
/// another process is at it, or should be.
template <class A>
bool Core<A>::settle_extents(uint64_t now_ns, bool locked) {
  // A slice in any case, however slow all else was.
  const uint64_t until_ns = c_.access.now_ns() + uint64_t{c_.times.beat_ms} * 1'000'000;
  for (;;) {
    while (has_job()) {
      if (!run_job(locked)) return false;
      if (c_.access.now_ns() >= until_ns || ended()) return true;
    }
    uint64_t views = 0;
    for (uint32_t h = 0; h < hosts_.count(); ++h) views += c_.view(h).ended;
    if (views == surveyed_views_ && !custody_pending_ && !wanted_ &&
        now_ns - surveyed_at_ns_ < uint64_t{c_.times.beat_ms} * 5'000'000)
      return true;
    // One process of the host at a time, also if it takes longer than a beat: what one has opened
    // another must not close.
    if (!locked && c_.access.lock_host(c_.host, 0) == LockResult::HELD) return false;
    const bool may = may_take_extents(now_ns);
    if (may) {
      surveyed_at_ns_ = now_ns;
      surveyed_views_ = views;
      survey(now_ns);
    }
    if (!locked) c_.access.unlock_host(c_.host);
    if (!may || !has_job()) return may;
  }
}

/// Under the host lock. Another process that is in the middle of a job has the extents to itself
/// while it lives and goes on with it. One that stood still for too long is passed over, and learns
/// it when it goes on: all that counts is done under the lock, by whoever the word names.
template <class A>
bool Core<A>::may_take_extents(uint64_t now_ns) const {
  const uint64_t word = c_.access.load(c_.private_word(offsetof(bh_host_private, extents_busy)));
  const auto process = static_cast<uint32_t>(word >> 48);
  if (word == 0 || process == c_.process + 1 || !c_.alive(process - 1)) return true;
  const uint64_t since_ms = word & ((uint64_t{1} << 48) - 1);
  return now_ns / 1'000'000 - since_ms >
         std::max<uint64_t>(10 * c_.times.beat_ms, c_.times.dead_ms);
}

/// Under the host lock.
template <class A>
void Core<A>::note_extents_busy(bool busy) {
  const uint64_t now_ms = c_.access.now_ns() / 1'000'000;
  c_.access.store(c_.private_word(offsetof(bh_host_private, extents_busy)),
                  busy ? uint64_t{c_.process + 1} << 48 | now_ms : 0);
}

/// One slice of the job. Short, as it holds the host lock, for which processes wait that open the
/// pool. False if the lock is held.
template <class A>
bool Core<A>::run_job(bool locked) {
  if (!locked && c_.access.lock_host(c_.host, 0) == LockResult::HELD) return false;
  const uint64_t busy = c_.access.load(c_.private_word(offsetof(bh_host_private, extents_busy)));
  bool done = busy >> 48 != c_.process + 1;  // another process has begun anew
  if (!done) {
    const uint64_t until_ns = c_.access.now_ns() + uint64_t{c_.times.beat_ms} * 1'000'000 / 16;
    if (auto* adoption = std::get_if<Adoption>(&job_)) done = continue_job(*adoption, until_ns);
    if (auto* opening = std::get_if<Opening>(&job_)) done = continue_job(*opening, until_ns);
    note_extents_busy(!done);
  }
  if (done) {
    job_ = std::monostate{};
    custody_pending_ = true;  // the next survey says what is left
  }
  if (!locked) c_.access.unlock_host(c_.host);
  return true;
}

/// Calls visit(Found) for the entries of an index from where the walk is; true at its end.
template <class A>
template <class Visit>
bool Core<A>::walk_index(Walk& walk, uint64_t until_ns, Visit visit) {
  const uint64_t buckets = c_.layout.geometry().index_bucket_count;
  while (walk.bucket < buckets) {
    index_.for_each_in(walk.host, walk.bucket++, visit);
    if (walk.bucket % 16 == 0 && c_.access.now_ns() >= until_ns) break;
  }
  return walk.bucket == buckets;
}

template <class A>
void Core<A>::survey(uint64_t now_ns) {
  const Life self{c_.host, c_.incarnation};
  std::vector<std::pair<uint64_t, Holding>> claims, inherited;
  std::map<std::pair<uint32_t, uint32_t>, bool> mine;  // lives that this host succeeds
  uint64_t holders = own_bit();
  refresh_own_words();
  for (uint64_t e = 0; e < c_.layout.geometry().extent_count; ++e) {
    const Holding now = holding_of(e);
    if (now.life.incarnation != 0) holders |= uint64_t{1} << now.life.host;
    if (now.life == self) {
      const bool to_ended =
          now.word.state == BH_OWN_GIVEN && c_.ended({now.word.slot, now.word.incarnation});
      if (now.word.state == BH_OWN_CLAIM) claims.emplace_back(e, now);
      if (now.word.state == BH_OWN_ABANDONED || to_ended) {
        write_own(e, {BH_OWN_OWN, now.word.epoch + 1, BH_OWN_UNCONFIRMED, c_.incarnation,
                      BH_CUSTODY_READ_ONLY});
        custody_pending_ = true;
      } else if (now.word.state == BH_OWN_OWN && has_rival(e, now.word.epoch)) {
        OwnWord word = now.word;
        word.epoch += 1;
        write_own(e, word);
      }
    } else if (now.word.state == BH_OWN_GIVEN && now.word.slot == c_.host &&
               now.word.incarnation == c_.incarnation && !c_.ended(now.life)) {
      claims.emplace_back(e, now);
    } else if (c_.ended(now.life)) {
      const auto [at, fresh] = mine.try_emplace({now.life.host, now.life.incarnation}, false);
      if (fresh) at->second = hosts_.successor(now.life) == self;
      if (!at->second) continue;
      OwnWord own = allocator_.own_word(e);
      if (own.state != BH_OWN_OWN || own.incarnation != c_.incarnation) {
        inherited.emplace_back(e, now);
        continue;
      }
      // Held already: one of the lives between wrote late that it had inherited it.
      own.epoch = now.word.epoch + 1;
      write_own(e, own);
    }
  }
  hosts_.forget_hosts_but(holders);
  // Others that look for room see how much there is here (room_of()).
  c_.access.flush(c_.layout.part(c_.host, BH_PART_EXTENTS),
                  sizeof(bh_extent_state) * c_.layout.geometry().extent_count);
  if (wanted_ && claims.empty() && inherited.empty()) ask_for_extents();
  if (!claims.empty()) claim(claims);
  if (!has_job() && !inherited.empty()) adopt(std::move(inherited));
  confirm_adopted();
  if (ended()) return;
  if (!has_job()) open_custody(now_ns);
  custody_pending_ |= has_job() || claims.size() > transfer_extents();
}

// ---- grants ----

/// How many extents change hands at once: all their lines are written back or invalidated.
template <class A>
uint64_t Core<A>::transfer_extents() const {
  return std::max<uint64_t>(1, kTransferBytes / c_.layout.geometry().extent_bytes);
}

/// Gives up to `count` extents away (protocol 5.13 (1), (2)), and no more than it can spare: free
/// ones. Where blocks are evicted for room and none is free, one that eviction empties. Where none
/// is evicted, what was removed leaves holes everywhere: there those that moves can empty within
/// two heartbeats, the rest when it is asked again.
template <class A>
void Core<A>::give(uint64_t count, Life to) {
  count = std::min(count, transfer_extents());
  allocator_.join_empty_slabs();
  count = std::min(count, spare_extents());
  if (free_extents() < count && clear_by() == Clear::BY_EVICTION) {
    make_room(c_.layout.geometry().extent_bytes, clear_by());
  } else if (free_extents() < count) {
    scavenge_dead();  // what a dead process holds cannot be moved
    compact(count - free_extents(),
            c_.access.now_ns() + 2 * uint64_t{c_.times.beat_ms} * 1'000'000);
  }
  if (c_.access.lock_host(c_.host, 0) == LockResult::HELD) return;
  std::vector<uint64_t> given;
  const uint64_t extents = c_.layout.geometry().extent_count;
  for (uint64_t e = 0; e < extents && given.size() < count; ++e) {
    if (allocator_.copy_only(e) || !allocator_.claim_extent(e)) continue;
    c_.access.flush(c_.layout.descriptor(e), c_.layout.geometry().table_bytes);
    c_.access.flush(c_.layout.extent_offset(e), c_.layout.geometry().extent_bytes);
    given.push_back(e);
  }
  if (!given.empty()) c_.settle();
  for (const uint64_t e : given) {
    write_own(e, {BH_OWN_GIVEN, allocator_.own_word(e).epoch + 1, to.host, to.incarnation,
                  c_.incarnation & 0xFFu});
    allocator_.unclaim_extent(e);
  }
  c_.access.unlock_host(c_.host);
}

/// Before an extent comes from another host. False: a process of this one still holds a word of
/// it; the next survey tries again.
template <class A>
bool Core<A>::forget(uint64_t extent) {
  return allocator_.forget(extent) || (scavenge_dead() > 0 && allocator_.forget(extent));
}

/// Protocol 5.13 (3). Also after this host died in the middle and came back. The CLAIM has the
/// epoch of the grant that the survey saw: whoever has taken the extent since wrote a higher one,
/// in which only that host may write (S1).
template <class A>
void Core<A>::claim(const std::vector<std::pair<uint64_t, Holding>>& granted) {
  std::vector<std::pair<uint64_t, Holding>> claimed;
  for (auto [e, now] : granted) {
    if (claimed.size() == transfer_extents()) break;  // the rest at the next survey
    if (!forget(e)) continue;
    const uint32_t grantor = now.word.state == BH_OWN_GIVEN ? now.writer : now.word.slot;
    write_own(e, {BH_OWN_CLAIM, now.word.epoch, grantor, c_.incarnation, BH_CUSTODY_FULL});
    now.word = allocator_.own_word(e);
    claimed.emplace_back(e, now);
  }
  c_.settle();
  const bool self_doubted = doubted();
  std::map<uint32_t, bool> doubtful;  // grantors
  for (const auto& [e, now] : claimed) {
    const uint32_t grantor = now.word.slot;
    if (grantor >= hosts_.count()) continue;
    const auto [at, fresh] = doubtful.try_emplace(grantor, false);
    if (fresh) {
      const auto slot = hosts_.read_slot(grantor);
      const OwnWord given = own_of(grantor, e);
      const Life life{grantor, slot ? slot->incarnation : 0u};
      at->second = !slot || (life.incarnation & 0xFFu) != given.custody || hosts_.begun(life) ||
                   self_doubted;
    }
    OwnWord word = now.word;
    word.state = at->second ? BH_OWN_ABANDONED : BH_OWN_OWN;
    if (!at->second) {
      c_.access.acquire(c_.layout.descriptor(e), c_.layout.geometry().table_bytes);
      c_.access.acquire(c_.layout.extent_offset(e), c_.layout.geometry().extent_bytes);
    }
    write_own(e, word);
  }
}

// ---- custody ----

/// Protocol 5.11 (1): the blocks of a host that is gone are served at once. They come into this
/// host's index before its `own` words say so, so that a host that rejoins does not clear its index
/// before. Until then they are found in the index of the dead host.
template <class A>
void Core<A>::adopt(std::vector<std::pair<uint64_t, Holding>> inherited) {
  Adoption job;
  job.inherited = std::move(inherited);
  job.extents.resize(c_.layout.geometry().extent_count);
  for (const auto& [e, was] : job.inherited) {
    if (!forget(e)) {
      custody_pending_ = true;
      return;
    }
    job.extents[e] = true;
    allocator_.close(e);
    if (was.life.incarnation != 0) job.sources.push_back(was.life.host);
  }
  restore_cuts([&](uint64_t e) { return job.extents[e]; });
  std::sort(job.sources.begin(), job.sources.end());
  job.sources.erase(std::unique(job.sources.begin(), job.sources.end()), job.sources.end());
  if (!job.sources.empty()) job.walk.host = job.sources.back();
  job_ = std::move(job);
  note_extents_busy(true);
}

template <class A>
bool Core<A>::continue_job(Adoption& job, uint64_t until_ns) {
  while (!job.sources.empty()) {
    const bool all = walk_index(job.walk, until_ns, [&](const Found& found) {
      const bh_index_entry& entry = found.entry;
      if (c_.layout.valid_block(entry.block_offset, entry.stored_bytes) &&
          job.extents[c_.layout.extent_of_slot(c_.layout.slot_of(entry.block_offset))] &&
          !import_entry(entry))
        job.waiting.push_back(entry);
    });
    if (!all) return false;
    job.sources.pop_back();
    if (!job.sources.empty()) job.walk = {.host = job.sources.back()};
    job.walked_at_ns = c_.access.now_ns();
  }
  // A process that hangs with the lock of a key is not waited for: its block is lost.
  std::erase_if(job.waiting, [&](const bh_index_entry& entry) { return import_entry(entry); });
  if (!job.waiting.empty() && c_.access.now_ns() < job.walked_at_ns + kLockWaitNs) return false;
  // It took a while: only what still is as it was then. The next survey finds the rest.
  refresh_own_words();
  for (const auto& [e, was] : job.inherited) {
    const Holding now = holding_of(e);
    if (now.life == was.life && now.word.epoch == was.word.epoch)
      write_own(e, {BH_OWN_OWN, now.word.epoch + 1, BH_OWN_UNCONFIRMED, c_.incarnation,
                    BH_CUSTODY_READ_ONLY});
  }
  return true;
}

/// S5. A life that the decisions contradict gives up all that it holds: who succeeds it knows more.
template <class A>
void Core<A>::confirm_adopted() {
  std::vector<uint64_t> adopted;
  for (uint64_t e = 0; e < c_.layout.geometry().extent_count; ++e) {
    const OwnWord word = allocator_.own_word(e);
    if (word.state == BH_OWN_OWN && word.slot == BH_OWN_UNCONFIRMED &&
        word.incarnation == c_.incarnation)
      adopted.push_back(e);
  }
  if (adopted.empty()) return;
  c_.settle();
  refresh_own_words();
  const Life self{c_.host, c_.incarnation};
  std::map<std::pair<uint32_t, uint32_t>, bool> heir;
  for (const uint64_t e : adopted) {
    OwnWord word = allocator_.own_word(e);
    const Holding other = holding_of(e, word.epoch - 1);
    // Its own where the recipient of a grant gave it up, or no other host says anything.
    const Life life = other.word.state == BH_OWN_NONE ? self : other.life;
    const auto [at, fresh] = heir.try_emplace({life.host, life.incarnation}, life == self);
    if (fresh && life != self) at->second = c_.ended(life) && hosts_.successor(life) == self;
    if (at->second) {
      word.slot = 0;
      write_own(e, word);
      continue;
    }
    hosts_.decide(self, Life{c_.host, c_.incarnation + 1}.value());
    hosts_.observe(c_.access.now_ns());
    return;
  }
}

/// False if the key's lock is held: try again.
template <class A>
bool Core<A>::import_entry(bh_index_entry entry) {
  const uint64_t slot = c_.layout.slot_of(entry.block_offset);
  c_.access.acquire(c_.layout.header(slot), BH_LINE_BYTES);
  const Cut cut = allocator_.held_cut(c_.layout.extent_of_slot(slot));
  bh_block_header header;
  // Without a checksum nobody could tell what a zombie may do to it.
  if (!read_header(slot, header) || header.stamp != entry.stamp ||
      stamp_state(header.stamp) != BH_STAMP_COMMITTED || header.checksum_kind == BH_CHECKSUM_NONE ||
      header.key_hash[0] != entry.key_hash[0] || header.key_hash[1] != entry.key_hash[1] ||
      cut.block_bytes == 0 || allocator_.block_of(slot, cut).offset != entry.block_offset ||
      entry.stored_bytes > cut.block_bytes)
    return true;
  const Hash128 hash{entry.key_hash[0], entry.key_hash[1]};
  const KeyLock lock(*this, hash, kShortLockWaitNs);
  if (!lock.held()) return false;
  const bool there =
      index_
          .find_if(c_.host, hash,
                   [&](const bh_index_entry& own) {
                     return own.stamp == entry.stamp && own.block_offset == entry.block_offset;
                   })
          .has_value();
  entry.incarnation = static_cast<uint16_t>(c_.incarnation);
  entry.flags = BH_ENTRY_COPY_ONLY;
  if ((there || index_.insert(hash, entry)) && allocator_.word(slot).state == BH_BLOCK_NONE)
    allocator_.restore_committed(slot);
  return true;
}

/// Protocol 5.11 (2) to (4). Begins a job if there is something to open or to sweep.
template <class A>
void Core<A>::open_custody(uint64_t now_ns) {
  custody_pending_ = false;
  retry_overwritten();
  Opening job{.began_ns = now_ns, .walk = {.host = c_.host}};
  job.swept.resize(c_.layout.geometry().extent_count);
  bool sweeps = false;
  std::map<std::pair<uint32_t, uint32_t>, std::pair<bool, bool>> known;  // acked, fenced
  for (uint64_t e = 0; e < c_.layout.geometry().extent_count; ++e) {
    if (!allocator_.holds(e)) continue;
    const OwnWord word = allocator_.own_word(e);
    if (word.slot == BH_OWN_UNCONFIRMED) continue;  // S5
    if (word.custody == BH_CUSTODY_FULL && !allocator_.closed(e)) continue;
    bool acked = true, fenced = true;
    uint64_t since_ms = 0;
    for (const Life life : predecessors(e)) {
      const auto [at, fresh] = known.try_emplace({life.host, life.incarnation});
      if (fresh) at->second = {hosts_.acked(life), hosts_.fenced(life)};
      acked &= at->second.first;
      fenced &= at->second.second;
      since_ms = std::max(since_ms, c_.view(life.host).since_ms);
    }
    const bool timed_out =
        c_.times.reclaim_ms != 0 && now_ns / 1'000'000 >= since_ms + c_.times.reclaim_ms;
    const uint32_t custody = fenced ? BH_CUSTODY_FULL
                             : timed_out || word.custody == BH_CUSTODY_COPY_ONLY
                                 ? BH_CUSTODY_COPY_ONLY
                                 : BH_CUSTODY_READ_ONLY;
    custody_pending_ |= custody != BH_CUSTODY_FULL || !acked;
    const bool opens = (word.custody != BH_CUSTODY_READ_ONLY || acked) &&
                       (custody != word.custody || allocator_.closed(e)) &&
                       custody != BH_CUSTODY_READ_ONLY;
    if (opens) job.extents.emplace_back(e, custody);
    // As long as the old owner may write, it may retire blocks that came along.
    const bool swept = word.custody == BH_CUSTODY_COPY_ONLY && now_ns >= sweep_due_ns_;
    job.swept[e] = opens || swept;
    sweeps |= swept;
  }
  if (!job.extents.empty() && !may_open(job)) job.extents.clear();
  if (job.extents.empty() && !sweeps) return;
  job_ = std::move(job);
  note_extents_busy(true);
}

/// After a settle: nobody doubts this life (S3); and of the extents in READ_ONLY custody those stay
/// that no hazard names (S4).
template <class A>
bool Core<A>::may_open(Opening& job) {
  c_.settle();
  if (doubted()) {
    custody_pending_ = true;
    return false;
  }
  const std::vector<uint64_t> named = named_blocks();
  std::erase_if(job.extents, [&](const auto& extent) {
    const uint64_t begin = c_.layout.extent_offset(extent.first);
    const auto first = std::lower_bound(named.begin(), named.end(), begin);
    const bool leased = first != named.end() && *first < begin + c_.layout.geometry().extent_bytes;
    const bool waits = leased && allocator_.own_word(extent.first).custody == BH_CUSTODY_READ_ONLY;
    job.swept[extent.first] = !waits;
    custody_pending_ |= waits;
    return waits;
  });
  return true;
}

/// First what was READ_ONLY is made writable; then blocks are dropped that their old owner
/// overwrote; then free blocks come into use. An extent is `closed`, or COPY_ONLY, to the end, so
/// that another process begins anew where this one dies.
template <class A>
bool Core<A>::continue_job(Opening& job, uint64_t until_ns) {
  const auto late = [&] { return c_.access.now_ns() >= until_ns; };
  for (; job.acquired < job.extents.size(); ++job.acquired) {
    if (late()) return false;
    const auto [e, custody] = job.extents[job.acquired];
    const uint32_t before = allocator_.own_word(e).custody;
    if (custody == BH_CUSTODY_FULL && before != BH_CUSTODY_FULL) {
      c_.access.acquire(c_.layout.descriptor(e), c_.layout.geometry().table_bytes);
      c_.access.acquire(c_.layout.extent_offset(e), c_.layout.geometry().extent_bytes);
    }
    if (before == BH_CUSTODY_READ_ONLY) set_custody(e, custody);
  }
  const bool walked = walk_index(job.walk, until_ns, [&](const Found& found) {
    if (is_overwritten(found.entry, job.swept)) job.overwritten.push_back(found.entry);
  });
  for (const bh_index_entry& entry : job.overwritten) {
    if (!retire_entry(entry, BH_COUNTER_REMOVALS)) unswept_.push_back(entry);
  }
  job.overwritten.clear();
  if (!walked) return false;
  for (; job.opened < job.extents.size(); ++job.opened) {
    if (late()) return false;
    const auto [e, custody] = job.extents[job.opened];
    if (allocator_.own_word(e).custody != custody) set_custody(e, custody);
    open_extent(e);
  }
  const uint64_t now_ns = c_.access.now_ns();
  sweep_due_ns_ = now_ns + kSweepBeats * c_.times.beat_ms * 1'000'000 + 4 * (now_ns - job.began_ns);
  return true;
}

template <class A>
void Core<A>::set_custody(uint64_t extent, uint32_t custody) {
  OwnWord word = allocator_.own_word(extent);
  word.custody = custody;
  write_own(extent, word);
}

/// A block that came along when the extents were adopted, or was stored there since, and whose
/// header or key its old owner, only slow, retired or overwrote: nobody finds it under its key, so
/// nobody could remove it.
template <class A>
bool Core<A>::is_overwritten(const bh_index_entry& entry, const std::vector<bool>& extents) const {
  if ((entry.flags & BH_ENTRY_COPY_ONLY) == 0 || !c_.layout.valid_block(entry.block_offset, 1))
    return false;
  const uint64_t slot = c_.layout.slot_of(entry.block_offset);
  if (!extents[c_.layout.extent_of_slot(slot)]) return false;
  c_.access.acquire(c_.layout.header(slot), BH_LINE_BYTES);
  bh_block_header header;
  return !read_header(slot, header) || header.stamp != entry.stamp ||
         key_hash(slot, header) != Hash128{entry.key_hash[0], entry.key_hash[1]};
}

/// Those whose lock somebody held, until they can be retired or are gone.
template <class A>
void Core<A>::retry_overwritten() {
  std::erase_if(unswept_, [&](const bh_index_entry& entry) {
    if (retire_entry(entry, BH_COUNTER_REMOVALS)) return true;
    const Hash128 hash{entry.key_hash[0], entry.key_hash[1]};
    return !index_.find_if(c_.host, hash, [&](const bh_index_entry& own) {
      return own.stamp == entry.stamp && own.block_offset == entry.block_offset;
    });
  });
  custody_pending_ |= !unswept_.empty();
}

/// The free blocks of an extent that this host may write to come into use, once all extents of its
/// slab may be written. Headers of blocks that did not come along must not show a committed stamp
/// (C2).
template <class A>
void Core<A>::open_extent(uint64_t extent) {
  if (!allocator_.closed(extent)) return;
  const auto cut = allocator_.cut_of(extent);
  const uint64_t first = cut ? cut->head : extent;
  const uint64_t span = cut ? cut->extent_span : 1;
  for (uint64_t e = first; e < first + span; ++e) {
    if (!allocator_.writable(e)) {
      custody_pending_ = true;
      return;
    }
  }
  for (uint64_t slot = c_.layout.first_slot(first); slot < c_.layout.first_slot(first + span);
       ++slot) {
    if (allocator_.word(slot).state != BH_BLOCK_NONE) continue;
    const uint64_t stamp = c_.access.load(c_.layout.header(slot));
    if (stamp != 0 && stamp_state(stamp) == BH_STAMP_COMMITTED) retire_header(slot);
  }
  allocator_.open(first, span);
}

// ---- hints and mail ----

/// A hint for the owner of the block: it was used. Many blocks share a word, and the last one wins.
template <class A>
void Core<A>::touch_elsewhere(uint64_t slot) {
  const uint64_t at =
      c_.own(BH_PART_TOUCH, slot * 0x9E3779B97F4A7C15u % c_.layout.geometry().touch_count);
  c_.access.store_relaxed(at, make_touch(slot, c_.access.recency_ns()));
  c_.access.flush(at, 8);
}

template <class A>
void Core<A>::take_touches(uint64_t now_ns) {
  if (now_ns - touches_at_ns_ < uint64_t{c_.times.beat_ms} * 5'000'000) return;
  touches_at_ns_ = now_ns;
  const uint64_t count = c_.layout.geometry().touch_count;
  touches_.resize(count * hosts_.count());
  for (uint64_t left = other_hosts(); left != 0; left &= left - 1) {
    const auto host = static_cast<uint32_t>(std::countr_zero(left));
    c_.access.acquire(c_.layout.part(host, BH_PART_TOUCH), 8 * count);
    for (uint64_t i = 0; i < count; ++i) {
      const uint64_t word = c_.access.load_relaxed(c_.layout.word(host, BH_PART_TOUCH, i));
      uint64_t& seen = touches_[host * count + i];
      if (word == seen) continue;
      seen = word;
      const uint64_t slot = touch_slot(word);
      if (slot < c_.layout.slot_count() && allocator_.holds(c_.layout.extent_of_slot(slot)))
        c_.access.store_relaxed(c_.own(BH_PART_RECENCY, slot), c_.access.recency_ns());
    }
  }
}

/// Waits for the answer. OK: the host has removed what it had of the key, and its life stood then
/// (S6). BUSY: it may yet do so.
template <class A>
Status Core<A>::ask_to_remove(Life owner, const Hash128& hash) {
  if (c_.ended(owner)) return Status::BUSY;  // its successor is about to take over
  bh_mail mail{};
  mail.kind = BH_MAIL_REMOVE;
  mail.key_hash[0] = hash.low;
  mail.key_hash[1] = hash.high;
  const auto line = post(owner.host, mail);
  if (!line) return Status::BUSY;
  const uint64_t answer_at = c_.layout.mail(owner.host, c_.host, *line);
  const uint64_t deadline_ns = c_.access.now_ns() + kLockWaitNs;
  for (;;) {
    c_.access.acquire(answer_at, BH_LINE_BYTES);
    const bool answered = read_mail_line(owner.host, c_.host, *line).answered == mail.sequence;
    const bool given_up = c_.ended(owner) || ended() || c_.access.now_ns() > deadline_ns;
    if (answered || given_up) withdraw(owner.host, *line, mail.sequence);
    if (answered) return hosts_.stands(owner) ? Status::OK : Status::BUSY;
    if (given_up) return ended() ? gone() : Status::BUSY;
    c_.access.sleep_ns(uint64_t{c_.times.beat_ms} * 50'000);
  }
}

/// Returns the line that the request stands in; none if all lines to that host are taken.
template <class A>
std::optional<uint64_t> Core<A>::post(uint32_t peer, bh_mail& mail) {
  const KeyLock lock(*this, mail_lock(peer), kShortLockWaitNs);
  if (!lock.held()) return std::nullopt;
  for (uint64_t i = 0; i < kMailLines; ++i) {
    const bh_mail old = read_mail_line(c_.host, peer, i);
    if (asks(old)) continue;
    mail.incarnation = c_.incarnation;
    mail.sequence = c_.access.random();
    mail.answered = old.answered;
    c_.write_sealed(c_.layout.mail(c_.host, peer, i), to_line(mail));
    return i;
  }
  return std::nullopt;
}

/// One that is not sealed asks for nothing, and answers nothing.
template <class A>
bh_mail Core<A>::read_mail_line(uint32_t host, uint32_t peer, uint64_t index) const {
  Line line;
  return c_.read_sealed(c_.layout.mail(host, peer, index), line) ? from_line<bh_mail>(line)
                                                                 : bh_mail{};
}

/// An own line is written under its lock: what it asks and what it answers come from two sides.
/// Without the lock it may be seen half written. False if somebody hangs with the lock: the next
/// beat tries again. change(line) says whether it did so.
template <class A>
template <class Change>
bool Core<A>::change_mail_line(uint32_t peer, uint64_t index, Change change) {
  const KeyLock lock(*this, mail_lock(peer), kShortLockWaitNs);
  if (!lock.held()) return false;
  bh_mail mail = read_mail_line(c_.host, peer, index);
  if (change(mail)) c_.write_sealed(c_.layout.mail(c_.host, peer, index), to_line(mail));
  return true;
}

template <class A>
void Core<A>::withdraw(uint32_t peer, uint64_t index, uint64_t sequence) {
  change_mail_line(peer, index, [&](bh_mail& mail) {
    if (mail.sequence != sequence) return false;
    const uint64_t answered = mail.answered;
    mail = {};
    mail.answered = answered;
    return true;
  });
}

/// Takes back own requests that were answered, or never will be, and does what others ask for.
template <class A>
void Core<A>::read_mail() {
  const bool want_is_old =
      c_.access.now_ns() - asked_at_ns_ > uint64_t{c_.times.beat_ms} * 10'000'000;
  for (uint32_t h = 0; h < hosts_.count(); ++h) {
    if (h == c_.host) continue;
    const auto slot = hosts_.read_slot(h);
    const bool over = !slot || c_.ended({h, slot->incarnation});
    c_.access.acquire(c_.layout.mail(h, c_.host, 0), BH_MAIL_AREA_BYTES);
    for (uint64_t i = 0; i < kMailLines; ++i) {
      const bh_mail ours = read_mail_line(c_.host, h, i);
      const bh_mail theirs = read_mail_line(h, c_.host, i);
      if (asks(ours) &&
          (over || ours.incarnation != c_.incarnation || ours.sequence == theirs.answered ||
           (ours.kind == BH_MAIL_WANT && want_is_old)))
        withdraw(h, i, ours.sequence);
      if (asks(theirs) && theirs.sequence != ours.answered && !c_.ended({h, theirs.incarnation}))
        do_request(h, i, theirs);
    }
  }
}

/// Another process of this host may be at the same request. Once that has answered, the key may
/// have been put again; so a block is only taken away that was found while there was no answer.
template <class A>
void Core<A>::do_request(uint32_t peer, uint64_t index, const bh_mail& request) {
  uint64_t last = 0;
  const bool read = change_mail_line(peer, index, [&](const bh_mail& mail) {
    last = mail.answered;
    return false;
  });
  if (!read || last == request.sequence) return;
  const auto not_answered = [&] {
    bool same = false;
    change_mail_line(peer, index, [&](const bh_mail& mail) {
      same = mail.answered == last;
      return false;
    });
    return same;
  };
  if (request.kind == BH_MAIL_REMOVE) {
    const Status removed =
        remove_own({request.key_hash[0], request.key_hash[1]}, kShortLockWaitNs, not_answered);
    if (removed != Status::OK && removed != Status::NOT_FOUND) return;  // the next beat again
  } else {
    give(request.count, {peer, request.incarnation});
  }
  change_mail_line(peer, index, [&](bh_mail& mail) {
    if (mail.answered != last) return false;
    mail.answered = request.sequence;
    return true;
  });
}

template <class A>
uint64_t Core<A>::free_extents() const {
  uint64_t free = 0;
  for (uint64_t e = 0; e < c_.layout.geometry().extent_count; ++e)
    free += allocator_.extent_free(e);
  return free;
}

/// Half of what is free, so that two hosts do not pass it to and fro: of all room, rounded up (who
/// has an extent of it can spare one); where blocks are evicted, of the free extents, and at least
/// one, since what lies in holes there the next puts take.
template <class A>
uint64_t Core<A>::spare_extents() const {
  if (clear_by() == Clear::BY_EVICTION) return std::max<uint64_t>(1, free_extents() / 2);
  const uint64_t extent_bytes = c_.layout.geometry().extent_bytes;
  uint64_t free_bytes = free_extents() * extent_bytes;
  for (const auto& [block_bytes, blocks] : free_blocks()) free_bytes += blocks * block_bytes;
  return (free_bytes + extent_bytes) / 2 / extent_bytes;
}

/// What another host holds, and how much of it is free (of what it could spare: see above), by its
/// private part: a hint, as good as the free counts there and as new as its last survey.
template <class A>
auto Core<A>::room_of(uint32_t host, uint32_t incarnation) const -> Room {
  const auto& g = c_.layout.geometry();
  c_.access.acquire(c_.layout.part(host, BH_PART_EXTENTS),
                    sizeof(bh_extent_state) * g.extent_count);
  Room room;
  for (uint64_t e = 0; e < g.extent_count; ++e) {
    const OwnWord own = own_of(host, e);
    if (own.state != BH_OWN_OWN || own.incarnation != incarnation) continue;
    room.extents += 1;
    const uint64_t at = c_.layout.extent_state(host, e);
    const uint32_t state = c_.load_state(at).state;
    if (state == BH_EXTENT_FREE) room.free_bytes += g.extent_bytes;
    if (state != BH_EXTENT_SLAB || clear_by() == Clear::BY_EVICTION) continue;
    const uint64_t blocks = c_.access.load(at + offsetof(bh_extent_state, free_blocks));
    const uint64_t block_bytes = c_.access.load(at + offsetof(bh_extent_state, block_bytes));
    const uint64_t most = g.extent_count * g.extent_bytes;  // whatever the bytes say
    if (block_bytes != 0 && blocks <= most / block_bytes) room.free_bytes += blocks * block_bytes;
  }
  return room;
}

/// Asks another host for extents, if one seems to have room, or more than its share where this one
/// has less: the one that seems to have most, and every other time the next one in turn, since what
/// is known of their room is a hint and may be old. Whoever is asked decides.
template <class A>
void Core<A>::ask_for_extents() {
  const uint64_t now_ns = c_.access.now_ns();
  if (now_ns - asked_at_ns_ < uint64_t{c_.times.beat_ms} * 10'000'000) return;
  asked_at_ns_ = now_ns;
  const auto& g = c_.layout.geometry();
  uint64_t live = 1, held = 0;
  for (uint64_t e = 0; e < g.extent_count; ++e) held += allocator_.holds(e);
  Room most;
  uint32_t richest = c_.host, next = c_.host;
  for (uint32_t i = 1; i <= hosts_.count(); ++i) {
    const uint32_t h = (asked_in_turn_ + i) % hosts_.count();
    const auto slot = hosts_.read_slot(h);
    if (h == c_.host || !slot || slot->incarnation == 0 || c_.ended({h, slot->incarnation}))
      continue;
    ++live;
    if (next == c_.host) next = h;
    const Room room = room_of(h, slot->incarnation);
    if (room <= most) continue;
    most = room;
    richest = h;
  }
  const bool poor = (held + 1) * live <= g.extent_count && most.extents > held + 1;
  if (richest == c_.host || (most.free_bytes < 2 * g.extent_bytes && !poor)) return;
  const bool in_turn = ++asked_ % 2 == 0;
  if (in_turn) asked_in_turn_ = next;
  const uint32_t to = in_turn ? next : richest;
  for (uint64_t i = 0; i < kMailLines; ++i) {
    if (read_mail_line(c_.host, to, i).kind == BH_MAIL_WANT) return;
  }
  bh_mail mail{};
  mail.kind = BH_MAIL_WANT;
  mail.count = g.extent_count;  // it gives half of its room at most
  post(to, mail);
}

}  // namespace bowhead::core
