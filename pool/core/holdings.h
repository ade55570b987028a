// SPDX-License-Identifier: Apache-2.0
// Holdings: which host holds an extent. The `own` words of all hosts decide, each written by its
// host alone: the word of the highest transfer epoch counts, where CLAIM, OWN and ABANDONED of the
// recipient come before GIVEN of the grantor. If that life of the holder is over, its successor
// holds the extent (protocol 5.8) and writes a word of the next epoch. Words of lives that are over
// stay where they are: they show which hosts may still be writing (predecessors).
//
// Invariant
//   S1 A word of a higher epoch is written only by the one host that the words and decisions before
//      it name: the holder, its successor, or the recipient of a grant. The recipient's CLAIM has
//      the epoch of the grantor's GIVEN; no other epoch is written by two hosts (I5).
//
// Owns: the counts of `own` words seen; the host's `own` words. Calls: no other room.
#pragma once

#include "pool/core/rooms.h"

namespace bowhead::core {

/// The holder of an extent, by the words of all hosts.
struct Holding {
  OwnWord word;         ///< the one that counts
  uint32_t writer = 0;  ///< the host that wrote it
  Life life;            ///< the holder
};

/// Lives that a process knew to be over at some time: what a host wrote before its life ended is
/// judged by words that were read after that.
struct LivesOver {
  std::array<uint64_t, BH_HOSTS_MAX> below{};  ///< by host: all lives of lower incarnations

  bool has(Life life) const { return life.incarnation < below[life.host]; }
  bool operator==(const LivesOver&) const = default;
};

template <class A>
class Holdings {
 public:
  explicit Holdings(const Rooms<A>& rooms)
      : c_(rooms.context),
        hosts_(rooms.hosts),
        owns_(rooms.context, offsetof(bh_host_counts, owns)) {}
  Holdings(const Holdings&) = delete;
  Holdings& operator=(const Holdings&) = delete;

  OwnWord own_of(uint32_t host, uint64_t extent) const;
  /// The hosts, a bit each, that may have written a word since the last call. One thread at a time.
  uint64_t moved() { return owns_.moved(); }
  /// Those known now.
  LivesOver lives_over() const;
  /// Reads the words of all hosts anew; the lives that were over before.
  LivesOver refresh_own_words() const;
  /// Those of these hosts, a bit each.
  void reread_own_words(uint64_t hosts) const;
  /// By words that were read since those lives were known to be over.
  Holding holding_of(uint64_t extent, const LivesOver& over,
                     std::optional<uint64_t> others_since = {}) const;
  /// Lives that held the extent before this one and are not known to have given it away: they may
  /// still write to it.
  std::vector<Life> predecessors(uint64_t extent) const;
  /// A host that did not know yet that its life is over wrote OWN in this epoch, or a later one.
  bool has_rival(uint64_t extent, uint64_t epoch) const;
  /// By the word of some host it owns the extent, or a grant of the extent is under way.
  bool has_owner(uint64_t extent) const;
  /// For each extent, the host whose index names its blocks. The entries of a host that lost the
  /// extent, since its life is over, are in its successor's index too.
  std::vector<uint32_t> writers_of_extents() const;
  /// The same for one extent.
  uint32_t writer_of_extent(uint64_t extent) const;
  void write_own(uint64_t extent, const OwnWord& word);

 private:
  Context<A>& c_;
  Hosts<A>& hosts_;
  Counts<A> owns_;
};

template <class A>
OwnWord Holdings<A>::own_of(uint32_t host, uint64_t extent) const {
  return OwnWord::unpack(c_.access.load(c_.layout.word(host, BH_PART_OWN, extent)));
}

template <class A>
LivesOver Holdings<A>::lives_over() const {
  LivesOver over;
  for (uint32_t h = 0; h < hosts_.count(); ++h) over.below[h] = c_.view(h).ended;
  return over;
}

template <class A>
LivesOver Holdings<A>::refresh_own_words() const {
  const LivesOver over = lives_over();
  reread_own_words(~uint64_t{0});
  return over;
}

template <class A>
void Holdings<A>::reread_own_words(uint64_t hosts) const {
  for (uint32_t h = 0; h < hosts_.count(); ++h) {
    if ((hosts >> h & 1) != 0)
      c_.invalidate_from(h, c_.layout.part(h, BH_PART_OWN), 8 * c_.layout.extent_end());
  }
  c_.access.coherence_fence();
}

template <class A>
auto Holdings<A>::holding_of(uint64_t extent, const LivesOver& over,
                             std::optional<uint64_t> others_since) const -> Holding {
  Holding best;
  uint64_t highest = 0;
  for (uint32_t h = 0; h < hosts_.count(); ++h) {
    const OwnWord word = own_of(h, extent);
    if (word.state == BH_OWN_NONE) continue;
    if (others_since && (h == c_.host || word.epoch < *others_since)) continue;
    // Of two words that say OWN, one is late: its life is over, and the other host succeeded it. If
    // that life ended before it confirmed the word, earlier words count, unless there is none.
    const bool late = word.state == BH_OWN_OWN && over.has({h, word.incarnation});
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
  // A grant that was not claimed, or was abandoned, belongs to the grantor.
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

template <class A>
std::vector<Life> Holdings<A>::predecessors(uint64_t extent) const {
  std::vector<Life> found;
  for (uint32_t h = 0; h < hosts_.count(); ++h) {
    const OwnWord word = own_of(h, extent);
    if (h != c_.host && (word.state == BH_OWN_OWN || word.state == BH_OWN_CLAIM))
      found.push_back({h, word.incarnation});
  }
  return found;
}

template <class A>
bool Holdings<A>::has_rival(uint64_t extent, uint64_t epoch) const {
  for (uint32_t h = 0; h < hosts_.count(); ++h) {
    const OwnWord word = own_of(h, extent);
    if (h != c_.host && word.state == BH_OWN_OWN && word.epoch >= epoch) return true;
  }
  return false;
}

template <class A>
bool Holdings<A>::has_owner(uint64_t extent) const {
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

template <class A>
std::vector<uint32_t> Holdings<A>::writers_of_extents() const {
  std::vector<uint32_t> writers(c_.layout.extent_end(), 0);
  if (c_.alone()) return writers;
  const LivesOver over = refresh_own_words();
  for (uint64_t e = 0; e < writers.size(); ++e) writers[e] = holding_of(e, over).writer;
  return writers;
}

template <class A>
uint32_t Holdings<A>::writer_of_extent(uint64_t extent) const {
  if (c_.alone()) return 0;
  const LivesOver over = lives_over();
  for (uint32_t h = 0; h < hosts_.count(); ++h)
    c_.invalidate_from(h, c_.layout.word(h, BH_PART_OWN, extent), 8);
  c_.access.coherence_fence();
  return holding_of(extent, over).writer;
}

template <class A>
void Holdings<A>::write_own(uint64_t extent, const OwnWord& word) {
  c_.access.store(c_.own(BH_PART_OWN, extent), word.pack());
  c_.access.publish(c_.own(BH_PART_OWN, extent), 8);
  owns_.raise();
}

}  // namespace bowhead::core
