// SPDX-License-Identifier: Apache-2.0
// Grants of extents between live hosts: a host that is short of space asks, a host that can spare
// extents gives, and the recipient claims (protocol 5.13).
//
// Invariant
//   S2 A recipient that goes from CLAIM to OWN has looked, after its CLAIM settled, for a decision,
//      even one only begun, about the grantor's life or its own; a host that takes the extent by
//      such a decision looks at the CLAIM after the decision settled. One sees the other.
//
// Owns: whether extents are wanted, and when and which hosts this process asked. Calls: Holdings,
// Mail, Membership (suspicion), Recovery and Space (to free extents before it gives them).
#pragma once

#include "pool/core/holdings.h"
#include "pool/core/mail.h"
#include "pool/core/space.h"

namespace bowhead::core {

inline constexpr uint64_t kTransferBytes = uint64_t{256} << 20;

template <class A>
class Grants {
 public:
  explicit Grants(const Rooms<A>& rooms)
      : c_(rooms.context),
        extents_(rooms.extents),
        hosts_(rooms.hosts),
        space_(rooms.space),
        holdings_(rooms.holdings),
        mail_(rooms.mail),
        membership_(rooms.membership),
        recovery_(rooms.recovery) {}
  Grants(const Grants&) = delete;
  Grants& operator=(const Grants&) = delete;

  void want_extents(uint64_t count);
  /// Lets hosts that look for space see how much this one has (room_of()).
  void show_room();
  /// Notes whether a process of this host wants extents, and clears the word that said so.
  void note_wanted();
  bool wanted() const { return wanted_; }
  /// The last request for extents is so old that it is to be withdrawn.
  bool want_is_old() const {
    return c_.access.now_ns() - asked_at_ns_ > uint64_t{c_.times.heartbeat_ms} * 10'000'000;
  }
  /// Asks another host for extents, if one seems to have free space, or more than its share while
  /// this one has less: the host that seems to have most and, every other time, the next in turn,
  /// since the free space of others is known only by hints that may be old. The host asked decides.
  void ask_for_extents();
  /// Gives up to `count` free extents away (protocol 5.13 (1), (2)), and no more than it can spare.
  /// If too few are free: with eviction, one that eviction empties; without eviction, since removed
  /// blocks leave holes everywhere, those that moves can empty within two heartbeats, and the rest
  /// at the next request.
  void give(uint64_t count, Life to);
  /// Protocol 5.13 (3). Also after this host died in the middle and came back. The CLAIM has the
  /// epoch of the grant that the survey saw: a host that has taken the extent since wrote a higher
  /// one, in which only that host may write (S1).
  void claim(const std::vector<std::pair<uint64_t, Holding>>& granted);
  /// Called before an extent comes from another host. False if a process of this host still holds a
  /// word of it; the next survey tries again.
  bool forget(uint64_t extent);
  /// How many extents change hands at once: all their lines are written back or invalidated.
  uint64_t transfer_extents() const;

 private:
  struct Room {
    uint64_t free_bytes = 0;
    uint64_t extents = 0;
    auto operator<=>(const Room&) const = default;
  };
  Room room_of(uint32_t host, uint32_t incarnation) const;
  uint64_t free_extents() const;
  uint64_t spare_extents() const;

  Context<A>& c_;
  Extents<A>& extents_;
  Hosts<A>& hosts_;
  Space<A>& space_;
  Holdings<A>& holdings_;
  Mail<A>& mail_;
  Membership<A>& membership_;
  Recovery<A>& recovery_;

  bool wanted_ = false;
  uint64_t asked_at_ns_ = 0;
  uint32_t asked_ = 0;          ///< number of requests
  uint32_t asked_in_turn_ = 0;  ///< the host last asked in turn
};

template <class A>
void Grants<A>::want_extents(uint64_t count) {
  if (c_.alone()) return;
  const uint64_t at = c_.private_word(offsetof(bh_host_private, wanted_extents));
  if (c_.access.load_relaxed(at) < count) c_.access.store_relaxed(at, count);
}

template <class A>
void Grants<A>::show_room() {
  c_.access.flush(c_.layout.part(c_.host, BH_PART_EXTENTS),
                  sizeof(bh_extent_state) * c_.layout.extent_end());
}

template <class A>
void Grants<A>::note_wanted() {
  const uint64_t at = c_.private_word(offsetof(bh_host_private, wanted_extents));
  wanted_ = c_.access.load(at) != 0;
  if (wanted_) c_.access.store(at, 0);
}

template <class A>
void Grants<A>::ask_for_extents() {
  const uint64_t now_ns = c_.access.now_ns();
  if (now_ns - asked_at_ns_ < uint64_t{c_.times.heartbeat_ms} * 10'000'000) return;
  asked_at_ns_ = now_ns;
  const auto& g = c_.layout.geometry();
  uint64_t live = 1, held = 0;
  for (uint64_t e = 0; e < c_.layout.extent_end(); ++e) held += extents_.holds(e);
  Room most;
  uint32_t richest = c_.host, next = c_.host;
  for (uint32_t i = 1; i <= hosts_.count(); ++i) {
    const uint32_t h = (asked_in_turn_ + i) % hosts_.count();
    const auto slot = hosts_.read_slot(h);
    if (h == c_.host || !slot || !hosts_.goes_on({h, slot->incarnation})) continue;
    ++live;
    if (next == c_.host) next = h;
    const Room room = room_of(h, slot->incarnation);
    if (room <= most) continue;
    most = room;
    richest = h;
  }
  const bool poor = (held + 1) * live <= c_.layout.extent_count() && most.extents > held + 1;
  if (richest == c_.host || (most.free_bytes < 2 * g.extent_bytes && !poor)) return;
  const bool in_turn = ++asked_ % 2 == 0;
  if (in_turn) asked_in_turn_ = next;
  const uint32_t to = in_turn ? next : richest;
  mail_.ask_for_extents(to, c_.layout.extent_count());  // it gives half of its space at most
}

template <class A>
void Grants<A>::give(uint64_t count, Life to) {
  count = std::min(count, transfer_extents());
  extents_.coalesce_empty_slabs();
  count = std::min(count, spare_extents());
  if (free_extents() < count && space_.clear_by() == Clear::BY_EVICTION) {
    space_.make_room(c_.layout.geometry().extent_bytes, space_.clear_by());
  } else if (free_extents() < count) {
    recovery_.scavenge_dead();  // blocks that a dead process holds cannot be moved
    space_.compact(count - free_extents(),
                   c_.access.now_ns() + 2 * uint64_t{c_.times.heartbeat_ms} * 1'000'000);
  }
  std::vector<uint64_t> given;
  given.reserve(count);  // what is claimed below must be given, or come free again
  const HostLock lock(c_);
  if (!lock.held()) return;
  const uint64_t extents = c_.layout.extent_end();
  for (uint64_t e = 0; e < extents && given.size() < count; ++e) {
    if (extents_.copy_only(e) || !extents_.claim(e)) continue;
    c_.access.flush(c_.layout.descriptor(e), c_.layout.geometry().table_bytes);
    c_.access.flush(c_.layout.extent_offset(e), c_.layout.geometry().extent_bytes);
    given.push_back(e);
  }
  if (!given.empty()) c_.settle();
  for (const uint64_t e : given) {
    holdings_.write_own(e, {BH_OWN_GIVEN, extents_.own_word(e).epoch + 1, to.host, to.incarnation,
                            c_.incarnation & 0xFFu});
    extents_.unclaim(e);
  }
}

template <class A>
void Grants<A>::claim(const std::vector<std::pair<uint64_t, Holding>>& granted) {
  std::vector<std::pair<uint64_t, Holding>> claimed;
  for (auto [e, now] : granted) {
    if (claimed.size() == transfer_extents()) break;  // the rest at the next survey
    if (!forget(e)) continue;
    const uint32_t grantor = now.word.state == BH_OWN_GIVEN ? now.writer : now.word.slot;
    holdings_.write_own(e,
                        {BH_OWN_CLAIM, now.word.epoch, grantor, c_.incarnation, BH_CUSTODY_FULL});
    now.word = extents_.own_word(e);
    claimed.emplace_back(e, now);
  }
  c_.settle();
  const bool self_suspected = membership_.suspected();
  std::map<uint32_t, bool> suspected;  // grantors
  for (const auto& [e, now] : claimed) {
    const uint32_t grantor = now.word.slot;
    if (grantor >= hosts_.count()) continue;
    const auto [at, fresh] = suspected.try_emplace(grantor, false);
    if (fresh) {
      const auto slot = hosts_.read_slot(grantor);
      const OwnWord given = holdings_.own_of(grantor, e);
      const Life life{grantor, slot ? slot->incarnation : 0u};
      at->second = !slot || (life.incarnation & 0xFFu) != given.custody || hosts_.begun(life) ||
                   self_suspected;
    }
    OwnWord word = now.word;
    word.state = at->second ? BH_OWN_ABANDONED : BH_OWN_OWN;
    if (!at->second) {
      c_.access.acquire(c_.layout.descriptor(e), c_.layout.geometry().table_bytes);
      c_.access.acquire(c_.layout.extent_offset(e), c_.layout.geometry().extent_bytes);
    }
    holdings_.write_own(e, word);
  }
}

template <class A>
bool Grants<A>::forget(uint64_t extent) {
  return extents_.forget(extent) || (recovery_.scavenge_dead() > 0 && extents_.forget(extent));
}

template <class A>
uint64_t Grants<A>::transfer_extents() const {
  return std::max<uint64_t>(1, kTransferBytes / c_.layout.geometry().extent_bytes);
}

template <class A>
uint64_t Grants<A>::free_extents() const {
  uint64_t free = 0;
  for (uint64_t e = 0; e < c_.layout.extent_end(); ++e) free += extents_.is_free(e);
  return free;
}

/// Half of what is free, so that two hosts do not pass it to and fro. Without eviction, half of all
/// free space, rounded up (a host with space for one extent can spare one); with eviction, half of
/// the free extents, and at least one, since the next puts take the space in holes.
template <class A>
uint64_t Grants<A>::spare_extents() const {
  if (space_.clear_by() == Clear::BY_EVICTION) return std::max<uint64_t>(1, free_extents() / 2);
  const uint64_t extent_bytes = c_.layout.geometry().extent_bytes;
  uint64_t free_bytes = free_extents() * extent_bytes;
  for (const auto& [block_bytes, blocks] : space_.free_blocks()) free_bytes += blocks * block_bytes;
  return (free_bytes + extent_bytes) / 2 / extent_bytes;
}

/// The extents of another host and their free space (as spare_extents() counts it), by its private
/// part: a hint, as good as the free counts there and as old as its last show_room().
template <class A>
auto Grants<A>::room_of(uint32_t host, uint32_t incarnation) const -> Room {
  const auto& g = c_.layout.geometry();
  const uint64_t extents = c_.layout.extent_end();
  c_.access.acquire(c_.layout.part(host, BH_PART_EXTENTS), sizeof(bh_extent_state) * extents);
  Room room;
  for (uint64_t e = 0; e < extents; ++e) {
    const OwnWord own = holdings_.own_of(host, e);
    if (own.state != BH_OWN_OWN || own.incarnation != incarnation) continue;
    room.extents += 1;
    const uint64_t at = c_.layout.extent_state(host, e);
    const uint32_t state = c_.load_state(at).state;
    if (state == BH_EXTENT_FREE) room.free_bytes += g.extent_bytes;
    if (state != BH_EXTENT_SLAB) continue;
    const uint64_t blocks = c_.access.load(at + offsetof(bh_extent_state, free_blocks));
    const uint64_t block_bytes = c_.access.load(at + offsetof(bh_extent_state, block_bytes));
    const auto of =
        static_cast<uint32_t>(c_.access.load(at + offsetof(bh_extent_state, block_count)));
    // With eviction, holes are not to spare; a slab without any block is: give() coalesces it.
    if (space_.clear_by() == Clear::BY_EVICTION && blocks < of) continue;
    const uint64_t most = c_.layout.payload_bytes();  // even if the words are damaged
    if (block_bytes != 0 && blocks <= most / block_bytes) room.free_bytes += blocks * block_bytes;
  }
  return room;
}

}  // namespace bowhead::core
