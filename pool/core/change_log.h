// SPDX-License-Identifier: Apache-2.0
// The change log of a host: a ring of words, each of which names a bucket of the host's index whose
// directory line has changed. Other hosts keep the tags of the index in memory of their own
// (mirror.h) and read, for each batch of look-ups, only the words that came since.
//
// A word of the ring (index.h) says its own sequence number, by its lap and its place. There is no
// word for the head: the reader goes on until it meets a word that is not written yet.
//
// Invariants
//   G1 Word s is written by one compare-and-swap, which takes the sequence number too, and only
//      where word s - 1 stands. So no death and no stop leaves a gap.
//   G2 A word is written after the tags in the directory line that it names were published;
//      publish() returns after it and all words before it were published. So a reader that finds
//      word s finds the tags of all words up to s.
//   G3 A host's next life, and a rebuild, write ALL into every word of the lap after the highest:
//      readers read the whole index again, however far behind they are.
//
// Owns: nothing in this process. Calls: nothing.
#pragma once

#include <algorithm>
#include <bit>

#include "pool/core/context.h"

namespace bowhead::core {

/// The sequence number of the word at a place of a ring of `count` words, a power of two: of those
/// that the lap of the word allows, the nearest to `near`. Laps are counted in 30 bits; readers and
/// writers are never so far apart that two come near.
inline uint64_t log_sequence(uint64_t word, uint64_t place, uint64_t count, uint64_t near) {
  const int shift = std::countr_zero(count);  // a batch of look-ups divides for each host
  const auto near_lap = static_cast<int64_t>(near >> shift);
  const uint64_t difference = (word >> BH_LOG_BUCKET_BITS) - static_cast<uint64_t>(near_lap);
  const int64_t lap =
      near_lap + (static_cast<int64_t>(difference << BH_LOG_BUCKET_BITS) >> BH_LOG_BUCKET_BITS);
  return (static_cast<uint64_t>(std::max<int64_t>(lap, 0)) << shift) + place;
}
inline uint64_t log_word(uint64_t sequence, uint64_t count, uint64_t bucket) {
  return sequence / count << BH_LOG_BUCKET_BITS | bucket;
}

template <class A>
class ChangeLog {
 public:
  explicit ChangeLog(Context<A>& context) : c_(context) {}
  ChangeLog(const ChangeLog&) = delete;
  ChangeLog& operator=(const ChangeLog&) = delete;

  static constexpr uint64_t kLineWords = BH_LINE_BYTES / 8;  ///< count() is a multiple of it

  uint64_t count() const { return c_.layout.geometry().log_count; }
  uint64_t word_at(uint32_t host, uint64_t sequence) const {
    return c_.layout.word(host, BH_PART_LOG, place_of(sequence));
  }
  uint64_t place_of(uint64_t sequence) const { return sequence & (count() - 1); }
  /// The sequence number of the word at the place of `near`.
  uint64_t sequence_at(uint32_t host, uint64_t near) const {
    return log_sequence(c_.access.load(word_at(host, near)), place_of(near), count(), near);
  }

  /// Notes that the directory line of an own bucket has a new tag, which was published. Returns the
  /// sequence number of the word; 0 in a pool of one host, where nobody reads a log.
  uint64_t append(uint64_t bucket);
  /// Publishes all words up to this one, and whatever this thread flushed before: a full fence.
  void publish(uint64_t sequence);
  /// For a rebuild, with no other process of this host running (G3). The index is published.
  void restart();
  /// The highest sequence number in a ring whose lines were acquired.
  uint64_t highest(uint32_t host) const;

 private:
  uint64_t tail_at() const { return c_.private_word(offsetof(bh_host_private, log_tail)); }
  uint64_t flushed_at() const { return c_.private_word(offsetof(bh_host_private, log_flushed)); }
  void raise(uint64_t at, uint64_t to) {
    uint64_t value = c_.access.load(at);
    while (value < to && !c_.access.cas(at, value, to)) {
    }
  }

  Context<A>& c_;
};

template <class A>
uint64_t ChangeLog<A>::append(uint64_t bucket) {
  if (c_.alone()) return 0;
  // The tail is a hint: too low after a death or beside other processes, anything after damage.
  bool searched = false;
  for (uint64_t tail = c_.access.load(tail_at());;) {
    const uint64_t next = tail + 1, at = word_at(c_.host, next);
    uint64_t word = c_.access.load(at);
    const uint64_t there = log_sequence(word, place_of(next), count(), next);
    if (there >= next) {
      tail = there;
      continue;
    }
    if (!searched && (there + count() != next || sequence_at(c_.host, tail) < tail)) {
      tail = highest(c_.host);
      searched = true;
      continue;
    }
    // Sequentially consistent: after the store of the tag, which was published (G2).
    if (!c_.access.cas(at, word, log_word(next, count(), bucket))) continue;
    c_.access.store(tail_at(), next);
    return next;
  }
}

/// Publishes the words of other processes too: they may have died or been stopped before they did.
template <class A>
void ChangeLog<A>::publish(uint64_t sequence) {
  if (c_.alone()) return c_.access.fence();
  uint64_t flushed = c_.access.load(flushed_at());
  if (flushed > sequence && flushed - sequence > count()) {
    // Damaged, or from before another round of laps.
    if (!c_.access.cas(flushed_at(), flushed, 0)) return publish(sequence);
    flushed = 0;
  }
  if (flushed < sequence) {
    const uint64_t first = sequence - std::min(sequence - flushed, count()) + 1;
    for (uint64_t s = first; s <= sequence; s = (s / kLineWords + 1) * kLineWords)
      c_.access.flush(word_at(c_.host, s), 8);
  }
  c_.access.fence();
  raise(flushed_at(), sequence);
}

template <class A>
void ChangeLog<A>::restart() {
  if (c_.alone()) return;
  const uint64_t lap = highest(c_.host) / count() + 1;
  for (uint64_t place = 0; place < count(); ++place)
    c_.access.store(word_at(c_.host, place), log_word(lap * count(), count(), BH_LOG_ALL));
  c_.access.publish(word_at(c_.host, 0), 8 * count());
  const uint64_t last = lap * count() + count() - 1;
  c_.access.store(tail_at(), last);
  c_.access.store(flushed_at(), last);
}

template <class A>
uint64_t ChangeLog<A>::highest(uint32_t host) const {
  // Laps are counted from a whole round of their 30 bits on: none before another is below 0.
  uint64_t highest = ((c_.access.load(word_at(host, 0)) >> BH_LOG_BUCKET_BITS) +
                      (uint64_t{1} << (64 - BH_LOG_BUCKET_BITS))) *
                     count();
  for (uint64_t place = 1; place < count(); ++place) {
    const uint64_t near = highest / count() * count() + place;
    highest =
        std::max(highest, log_sequence(c_.access.load(word_at(host, place)), place, count(), near));
  }
  return highest;
}

}  // namespace bowhead::core
