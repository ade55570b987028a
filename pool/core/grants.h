// SPDX-License-Identifier: Apache-2.0
// Extents that change hands between live hosts: who needs room asks, who has some gives, who was
// given claims (protocol 5.13).
//
// Invariant
//   S2 A recipient that sees CLAIM through to OWN has looked, after its CLAIM settled, for a
//      decision that is as much as begun about the grantor's life or its own; whoever takes the
//      extent by such a decision looks at the CLAIM after the decision settled. One sees the other.
//
// Owns: whether extents are wanted, and when and whom this process asked. Calls: Holdings, Mail,
// Membership (suspicion), Recovery and Space (what stands in the way of giving).
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
  /// Some process of this host wants extents: take note, and let them say it anew.
  void note_wanted();
  bool wanted() const { return wanted_; }
  /// A request for extents that is this old is taken back.
  bool want_is_old() const {
    return c_.access.now_ns() - asked_at_ns_ > uint64_t{c_.times.heartbeat_ms} * 10'000'000;
  }
  /// Asks another host for extents, if one seems to have room, or more than its share where this
  /// one has less: the one that seems to have most, and every other time the next one in turn,
  /// since what is known of their room is a hint and may be old. Whoever is asked decides.
  void ask_for_extents();
  /// Gives up to `count` extents away (protocol 5.13 (1), (2)), and no more than it can spare: free
  /// ones. Where blocks are evicted for room and none is free, one that eviction empties. Where
  /// none is evicted, what was removed leaves holes everywhere: there those that moves can empty
  /// within two heartbeats, the rest when it is asked again.
  void give(uint64_t count, Life to);
  /// Protocol 5.13 (3). Also after this host died in the middle and came back. The CLAIM has the
  /// epoch of the grant that the survey saw: whoever has taken the extent since wrote a higher one,
  /// in which only that host may write (S1).
  void claim(const std::vector<std::pair<uint64_t, Holding>>& granted);
  /// Before an extent comes from another host. False: a process of this one still holds a word of
  /// it; the next survey tries again.
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
  uint32_t asked_ = 0;          ///< how often
  uint32_t asked_in_turn_ = 0;  ///< the host
};

template <class A>
void Grants<A>::want_extents(uint64_t count) {
  if (c_.alone()) return;
  const uint64_t at = c_.private_word(offsetof(bh_host_private, wanted_extents));
  if (c_.access.load_relaxed(at) < count) c_.access.store_relaxed(at, count);
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
  for (uint64_t e = 0; e < g.extent_count; ++e) held += extents_.holds(e);
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
  const bool poor = (held + 1) * live <= g.extent_count && most.extents > held + 1;
  if (richest == c_.host || (most.free_bytes < 2 * g.extent_bytes && !poor)) return;
  const bool in_turn = ++asked_ % 2 == 0;
  if (in_turn) asked_in_turn_ = next;
  const uint32_t to = in_turn ? next : richest;
  mail_.ask_for_extents(to, g.extent_count);  // it gives half of its room at most
}

template <class A>
void Grants<A>::give(uint64_t count, Life to) {
  count = std::min(count, transfer_extents());
  extents_.coalesce_empty_slabs();
  count = std::min(count, spare_extents());
  if (free_extents() < count && space_.clear_by() == Clear::BY_EVICTION) {
    space_.make_room(c_.layout.geometry().extent_bytes, space_.clear_by());
  } else if (free_extents() < count) {
    recovery_.scavenge_dead();  // what a dead process holds cannot be moved
    space_.compact(count - free_extents(),
                   c_.access.now_ns() + 2 * uint64_t{c_.times.heartbeat_ms} * 1'000'000);
  }
  if (c_.access.lock_host(c_.host, 0) == LockResult::HELD) return;
  std::vector<uint64_t> given;
  const uint64_t extents = c_.layout.geometry().extent_count;
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
  c_.access.unlock_host(c_.host);
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
  for (uint64_t e = 0; e < c_.layout.geometry().extent_count; ++e) free += extents_.is_free(e);
  return free;
}

/// Half of what is free, so that two hosts do not pass it to and fro: of all room, rounded up (who
/// has an extent of it can spare one); where blocks are evicted, of the free extents, and at least
/// one, since what lies in holes there the next puts take.
template <class A>
uint64_t Grants<A>::spare_extents() const {
  if (space_.clear_by() == Clear::BY_EVICTION) return std::max<uint64_t>(1, free_extents() / 2);
  const uint64_t extent_bytes = c_.layout.geometry().extent_bytes;
  uint64_t free_bytes = free_extents() * extent_bytes;
  for (const auto& [block_bytes, blocks] : space_.free_blocks()) free_bytes += blocks * block_bytes;
  return (free_bytes + extent_bytes) / 2 / extent_bytes;
}

/// What another host holds, and how much of it is free (of what it could spare: see above), by its
/// private part: a hint, as good as the free counts there and as new as its last survey.
template <class A>
auto Grants<A>::room_of(uint32_t host, uint32_t incarnation) const -> Room {
  const auto& g = c_.layout.geometry();
  c_.access.acquire(c_.layout.part(host, BH_PART_EXTENTS),
                    sizeof(bh_extent_state) * g.extent_count);
  Room room;
  for (uint64_t e = 0; e < g.extent_count; ++e) {
    const OwnWord own = holdings_.own_of(host, e);
    if (own.state != BH_OWN_OWN || own.incarnation != incarnation) continue;
    room.extents += 1;
    const uint64_t at = c_.layout.extent_state(host, e);
    const uint32_t state = c_.load_state(at).state;
    if (state == BH_EXTENT_FREE) room.free_bytes += g.extent_bytes;
    if (state != BH_EXTENT_SLAB || space_.clear_by() == Clear::BY_EVICTION) continue;
    const uint64_t blocks = c_.access.load(at + offsetof(bh_extent_state, free_blocks));
    const uint64_t block_bytes = c_.access.load(at + offsetof(bh_extent_state, block_bytes));
    const uint64_t most = g.extent_count * g.extent_bytes;  // whatever the bytes say
    if (block_bytes != 0 && blocks <= most / block_bytes) room.free_bytes += blocks * block_bytes;
  }
  return room;
}

}  // namespace bowhead::core
