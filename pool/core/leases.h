// SPDX-License-Identifier: Apache-2.0
// Leases: promises of this host's processes that a block stays where it is.
//
// Lease i has two faces: the hazard word i, published, which owners look at before they reuse a
// block; and the lease line i, host-private, which says whose it is and until when.
//
// Invariants
//   L1 A hazard word is set by the lease's holder, after the lease line is filled; whoever clears
//      it does so by CAS of exactly that value, which contains the lease's sequence: a late clear
//      hits nothing.
//   L2 The holder reads the block's stamp only after hazard word and fence; who reuses a block
//      reads the hazards only after retired stamp and fence. So one of the two sees the other
//      (store-load on both sides), and a block that is named and passed its re-check is not reused
//      (I4).
//   L3 Hazard words at and beyond `hazard_limit` were never set: the limit is raised before the
//      word is, and in the memory no later than the word. Each holder flushes it for itself, for
//      whoever raised it may not have come to it yet.
#pragma once

#include <algorithm>
#include <bit>
#include <optional>
#include <vector>

#include "pool/core/context.h"

namespace bowhead::core {

template <class A>
class Leases {
 public:
  explicit Leases(Context<A>& context) : c_(context) {}

  /// Takes a lease slot and sets its hazard; fenced. The token names this lease for good. Empty if
  /// all slots are taken.
  std::optional<uint64_t> take(uint64_t block_offset, uint64_t stamp, uint64_t deadline_ns);

  /// What a token names, if it is still held by this process: its block and stamp.
  struct Held {
    uint64_t block_offset = 0;
    uint64_t stamp = 0;
    bool revoked = false;
  };
  std::optional<Held> held(uint64_t token) const;

  /// Ends a lease. False if it was revoked. The caller has checked the stamp before.
  bool end(uint64_t token);

  /// Block offsets that the hazards of `hosts` (a bit each) name, sorted. The caller has fenced
  /// after the stores that it wants ordered before (L2).
  std::vector<uint64_t> named_blocks(uint64_t hosts) const;

  /// Revokes own leases whose time is over. Returns how many.
  uint64_t revoke_expired(uint64_t now_ns);

  /// Ends all leases of a process that is gone.
  uint64_t scavenge(uint32_t dead);

  uint64_t active(uint32_t host) const;

  /// Flushes what this host says: whoever was to may have died before. The caller fences.
  void flush() const {
    const uint64_t limit = std::min<uint64_t>(c_.access.load(limit_at(c_.host)), count());
    if (limit > 0) c_.access.flush(c_.own(BH_PART_HAZARDS, 0), limit * 8);
  }

  /// Rebuild, nobody else running.
  void reset();

 private:
  static constexpr uint64_t kIndexBits = 16;
  static constexpr uint64_t kSequenceMask = (uint64_t{1} << 28) - 1;

  uint64_t line(uint64_t index) const { return c_.layout.lease(c_.host, index); }
  uint64_t limit_at(uint32_t host) const {
    return c_.layout.part(host, BH_PART_BEAT) + offsetof(bh_host_beat, hazard_limit);
  }
  uint64_t count() const { return c_.layout.geometry().lease_count; }
  uint64_t hazard_of(uint64_t index, uint64_t sequence) const {
    return make_hazard(sequence & kSequenceMask,
                       c_.access.load(line(index) + offsetof(bh_lease_slot, block_offset)));
  }
  void clear_hazard(uint64_t index, uint64_t sequence) {
    uint64_t mine = hazard_of(index, sequence);
    c_.access.cas(c_.own(BH_PART_HAZARDS, index), mine, 0);
    // Not fenced: a late clear only delays reuse, until the next beat at most.
    c_.access.flush(c_.own(BH_PART_HAZARDS, index), 8);
  }
  void raise_limit(uint64_t index);

  Context<A>& c_;
};

template <class A>
std::optional<uint64_t> Leases<A>::take(uint64_t block_offset, uint64_t stamp,
                                        uint64_t deadline_ns) {
  const uint64_t start = uint64_t{c_.process} * 64 % count();
  for (uint64_t i = 0; i < count(); ++i) {
    const uint64_t index = (start + i) % count();
    const StateWord word = c_.load_state(line(index));
    if (word.state != BH_LEASE_FREE) continue;
    const StateWord taken = word.next(BH_LEASE_ACTIVE, c_.process);
    if (!c_.change(line(index), word, taken)) continue;
    c_.access.store(line(index) + offsetof(bh_lease_slot, deadline_ns), deadline_ns);
    c_.access.store(line(index) + offsetof(bh_lease_slot, stamp), stamp);
    c_.access.store(line(index) + offsetof(bh_lease_slot, block_offset), block_offset);
    raise_limit(index);
    const uint64_t hazard = c_.own(BH_PART_HAZARDS, index);
    c_.access.store(hazard, hazard_of(index, taken.sequence));
    c_.access.publish(hazard, 8);
    c_.access.fence();  // L2
    return taken.sequence << kIndexBits | index;
  }
  return std::nullopt;
}

template <class A>
void Leases<A>::raise_limit(uint64_t index) {
  const uint64_t at = limit_at(c_.host);
  uint64_t limit = c_.access.load(at);
  while (limit <= index && !c_.access.cas(at, limit, index + 1)) {
  }
  c_.access.flush(at, 8);  // fenced with the hazard
}

template <class A>
auto Leases<A>::held(uint64_t token) const -> std::optional<Held> {
  const uint64_t index = token & ((1u << kIndexBits) - 1);
  if (index >= count()) return std::nullopt;
  const StateWord word = c_.load_state(line(index));
  const bool ours = word.process == c_.process;
  const uint64_t sequence = token >> kIndexBits;
  const bool active = word.state == BH_LEASE_ACTIVE && word.sequence == sequence;
  const bool revoked = word.state == BH_LEASE_REVOKED && word.sequence == sequence + 1;
  if (!ours || (!active && !revoked)) return std::nullopt;
  return Held{c_.access.load(line(index) + offsetof(bh_lease_slot, block_offset)),
              c_.access.load(line(index) + offsetof(bh_lease_slot, stamp)), revoked};
}

template <class A>
bool Leases<A>::end(uint64_t token) {
  const uint64_t index = token & ((1u << kIndexBits) - 1);
  StateWord word = c_.load_state(line(index));
  bool valid = word.state == BH_LEASE_ACTIVE;
  clear_hazard(index, token >> kIndexBits);
  if (valid && !c_.change(line(index), word, word.next(BH_LEASE_FREE))) {
    valid = false;  // revoked this instant
    word = c_.load_state(line(index));
  }
  if (!valid) c_.store_state(line(index), word.next(BH_LEASE_FREE));
  return valid;
}

template <class A>
std::vector<uint64_t> Leases<A>::named_blocks(uint64_t hosts) const {
  std::vector<uint64_t> named;
  for (; hosts != 0; hosts &= hosts - 1) {
    const auto host = static_cast<uint32_t>(std::countr_zero(hosts));
    c_.acquire_from(host, limit_at(host), 8);
    const uint64_t limit = std::min<uint64_t>(c_.access.load(limit_at(host)), count());
    c_.acquire_from(host, c_.layout.word(host, BH_PART_HAZARDS, 0), limit * 8);
    for (uint64_t i = 0; i < limit; ++i) {
      const uint64_t hazard = c_.access.load(c_.layout.word(host, BH_PART_HAZARDS, i));
      if (hazard != 0) named.push_back(hazard_block(hazard));
    }
  }
  std::sort(named.begin(), named.end());
  return named;
}

template <class A>
uint64_t Leases<A>::revoke_expired(uint64_t now_ns) {
  uint64_t revoked = 0;
  const uint64_t limit = std::min<uint64_t>(c_.access.load(limit_at(c_.host)), count());
  for (uint64_t i = 0; i < limit; ++i) {
    const uint64_t hazard = c_.access.load(c_.own(BH_PART_HAZARDS, i));
    if (hazard == 0) continue;
    const StateWord word = c_.load_state(line(i));
    if (word.state == BH_LEASE_REVOKED && hazard_of(i, word.sequence - 1) == hazard) {
      clear_hazard(i, word.sequence - 1);  // whoever revoked it died before this
      ++revoked;
      continue;
    }
    // The fields belong to this lease only if its hazard is there already (L1).
    if (word.state != BH_LEASE_ACTIVE || hazard_of(i, word.sequence) != hazard ||
        c_.access.load(line(i) + offsetof(bh_lease_slot, deadline_ns)) > now_ns)
      continue;
    if (!c_.change(line(i), word, word.next(BH_LEASE_REVOKED, word.process))) continue;
    c_.access.fence();  // the holder must be able to see REVOKED before the block can change
    clear_hazard(i, word.sequence);
    ++revoked;
  }
  return revoked;
}

template <class A>
uint64_t Leases<A>::scavenge(uint32_t dead) {
  uint64_t found = 0;
  for (uint64_t i = 0; i < count(); ++i) {
    const StateWord word = c_.load_state(line(i));
    if (word.state == BH_LEASE_FREE || word.process != dead) continue;
    // A revoked lease's hazard carries the sequence before.
    clear_hazard(i, word.state == BH_LEASE_ACTIVE ? word.sequence : word.sequence - 1);
    c_.change(line(i), word, word.next(BH_LEASE_FREE));
    ++found;
  }
  return found;
}

template <class A>
uint64_t Leases<A>::active(uint32_t host) const {
  uint64_t active = 0;
  for (uint64_t i = 0; i < count(); ++i)
    active += c_.access.load(c_.layout.word(host, BH_PART_HAZARDS, i)) != 0;
  return active;
}

template <class A>
void Leases<A>::reset() {
  for (uint64_t i = 0; i < count(); ++i) {
    const StateWord word = c_.load_state(line(i));
    if (word.pack() != 0) c_.store_state(line(i), word.next(BH_LEASE_FREE));
    c_.access.store(c_.own(BH_PART_HAZARDS, i), 0);
  }
  c_.access.publish(c_.own(BH_PART_HAZARDS, 0), count() * 8);
}

}  // namespace bowhead::core
