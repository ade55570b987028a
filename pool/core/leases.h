// SPDX-License-Identifier: Apache-2.0
// Leases: promises of this host's processes that a block stays where it is.
//
// Lease i has two parts: hazard word i, published, which owners read before they reuse a block; and
// lease line i, host-private, which names its holder and its deadline.
//
// Invariants
//   L1 The holder of a lease sets its hazard word after it filled the lease line. A process clears
//      the word by CAS of exactly that value, which contains the lease's sequence: a late clear
//      changes nothing.
//   L2 The holder reads the block's stamp only after hazard word and fence; an owner that reuses a
//      block reads the hazards only after retired stamp and fence. So one of the two sees the
//      other's store (store-load on both sides), and a block that is named and passed its second
//      check is not reused (I4).
//   L3 Hazard words at and beyond `hazard_limit` were never set: the limit is raised before the
//      word is set, and reaches the memory no later than the word. Each holder flushes the limit
//      itself, since the process that raised it may not have flushed it yet.
//   L4 A lease slot is FREE, or names the process that took it. ACTIVE ends by one CAS from exactly
//      the word that the holder's token names: the holder's (FREE) or a revoker's (REVOKED), so
//      that the holder learns which. A REVOKED lease can only end as LAPSED, so its slot may be
//      taken again (by CAS) before its release: a lease that is never released does not keep its
//      slot for ever. The token names the sequence; a late release finds a later one and changes
//      nothing.
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

  /// Takes a lease slot and sets its hazard; fenced. The token never names another lease. Free
  /// slots come first, then revoked ones, so that a late release can mostly tell how its lease
  /// ended. Empty if all slots are ACTIVE.
  std::optional<uint64_t> take(uint64_t block_offset, uint64_t stamp, uint64_t deadline_ns);

  /// The state of the lease that a token names.
  enum class State {
    HELD,    ///< active, or revoked and its slot not taken again
    LAPSED,  ///< probably revoked; its slot was taken again and no longer says who ended it
    ENDED    ///< ended by its holder, or no token of this process
  };
  struct Held {
    State state = State::ENDED;
    bool active = false;        ///< HELD, and not revoked
    uint64_t block_offset = 0;  ///< HELD
    uint64_t stamp = 0;         ///< HELD
  };
  Held held(uint64_t token) const;

  /// Ends a lease. False if it was revoked. The caller has checked the stamp before.
  bool end(uint64_t token);

  /// The number of lease slots.
  uint64_t count() const { return c_.layout.geometry().lease_count; }

  /// Block offsets that the hazards of `hosts` (a bit each) name, sorted. The caller has fenced
  /// after those of its stores that must come before (L2).
  std::vector<uint64_t> named_blocks(uint64_t hosts) const;
  /// The number of hazard words of the own host that named_blocks() looks at.
  uint64_t hazard_limit() const {
    return std::min<uint64_t>(c_.access.load(limit_at(c_.host)), count());
  }

  /// Revokes leases of this host that have expired. Returns how many.
  uint64_t revoke_expired(uint64_t now_ns);

  /// Ends all leases of a dead process. Returns how many.
  uint64_t scavenge(const Processes& dead);

  uint64_t active(uint32_t host) const;

  /// Flushes the hazards of this host: a process may have died before it did. The caller fences.
  void flush() const {
    const uint64_t limit = std::min<uint64_t>(c_.access.load(limit_at(c_.host)), count());
    if (limit > 0) c_.access.flush(c_.own(BH_PART_HAZARDS, 0), limit * 8);
  }

  /// For a rebuild: no other process of this host is running.
  void reset();

 private:
  static constexpr uint64_t kIndexBits = 16;
  static constexpr uint64_t kSequenceMask = (uint64_t{1} << 28) - 1;

  uint64_t line(uint64_t index) const { return c_.layout.lease(c_.host, index); }
  uint64_t limit_at(uint32_t host) const {
    return c_.layout.part(host, BH_PART_HEARTBEAT) + offsetof(bh_host_heartbeat, hazard_limit);
  }
  uint64_t hazard_of(uint64_t index, uint64_t sequence) const {
    return make_hazard(sequence & kSequenceMask,
                       c_.access.load(line(index) + offsetof(bh_lease_slot, block_offset)));
  }
  void clear_hazard(uint64_t index, uint64_t sequence) {
    uint64_t mine = hazard_of(index, sequence);
    c_.access.cas(c_.own(BH_PART_HAZARDS, index), mine, 0);
    // Not fenced: a late clear only delays reuse, until the next heartbeat at most.
    c_.access.flush(c_.own(BH_PART_HAZARDS, index), 8);
  }
  std::optional<uint64_t> take_in(uint32_t state, uint64_t block_offset, uint64_t stamp,
                                  uint64_t deadline_ns);
  void raise_limit(uint64_t index);

  Context<A>& c_;
};

template <class A>
std::optional<uint64_t> Leases<A>::take(uint64_t block_offset, uint64_t stamp,
                                        uint64_t deadline_ns) {
  if (auto token = take_in(BH_LEASE_FREE, block_offset, stamp, deadline_ns)) return token;
  return take_in(BH_LEASE_REVOKED, block_offset, stamp, deadline_ns);
}

/// Takes a slot in one state. A hazard that a revoker has not cleared yet belongs to a lease that
/// is over: the new hazard replaces it, and a late clear fails (L1).
template <class A>
std::optional<uint64_t> Leases<A>::take_in(uint32_t state, uint64_t block_offset, uint64_t stamp,
                                           uint64_t deadline_ns) {
  const uint64_t start = uint64_t{c_.process} * 64 % count();
  for (uint64_t i = 0; i < count(); ++i) {
    const uint64_t index = (start + i) % count();
    const StateWord word = c_.load_state(line(index));
    if (word.state != state) continue;
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
auto Leases<A>::held(uint64_t token) const -> Held {
  const uint64_t index = token & ((1u << kIndexBits) - 1);
  if (index >= count()) return {};
  const StateWord word = c_.load_state(line(index));
  const uint64_t sequence = token >> kIndexBits;
  const bool active = word.state == BH_LEASE_ACTIVE && word.sequence == sequence;
  const bool revoked = word.state == BH_LEASE_REVOKED && word.sequence == sequence + 1;
  if (active || revoked) {
    if (word.process != c_.process) return {};
    return {State::HELD, active,
            c_.access.load(line(index) + offsetof(bh_lease_slot, block_offset)),
            c_.access.load(line(index) + offsetof(bh_lease_slot, stamp))};
  }
  const bool released = word.state == BH_LEASE_FREE && word.sequence == sequence + 1;
  return {word.sequence <= sequence || released ? State::ENDED : State::LAPSED};
}

template <class A>
bool Leases<A>::end(uint64_t token) {
  const uint64_t index = token & ((1u << kIndexBits) - 1);
  const StateWord active{BH_LEASE_ACTIVE, c_.process, token >> kIndexBits};
  clear_hazard(index, active.sequence);
  if (c_.change(line(index), active, active.next(BH_LEASE_FREE))) return true;
  const StateWord revoked = active.next(BH_LEASE_REVOKED, c_.process);
  c_.change(line(index), revoked, revoked.next(BH_LEASE_FREE));  // or it was taken again
  return false;
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
      clear_hazard(i, word.sequence - 1);  // its revoker died before this
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
uint64_t Leases<A>::scavenge(const Processes& dead) {
  uint64_t found = 0;
  for (uint64_t i = 0; i < count(); ++i) {
    const StateWord word = c_.load_state(line(i));
    if (word.state == BH_LEASE_FREE || !dead.has(word.process)) continue;
    // The hazard of a revoked lease has the previous sequence.
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
