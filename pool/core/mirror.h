// SPDX-License-Identifier: Apache-2.0
// What this process knows of the indexes of the other hosts: for each bucket seven tags of 16 bits
// and whether entries lie further on. A batch of look-ups catches up from the change logs (protocol
// 5.14), which costs one line per host and one for each change since the last batch, and then finds
// in its own memory which hosts may have a key.
//
// Invariants
//   M1 A hit leads to an entry and a header, which are read afresh: nothing is believed that only
//      the mirror says. So an old tag costs a line, and no more.
//   M2 A put that returned before a batch began is found by it, unless the block was removed or
//      moved meanwhile: its word was published after its directory line (G2), and the batch reads
//      words until one is not written yet. Where a fence does not wait for the memory this holds
//      settle_ms after the put; until a line that a word names has settled, the line itself is
//      read.
//   M3 The position in a log is stored after the lines of all words before it were read or marked.
//   M4 A host is mirrored whole or not at all. One whose log ran over, or said that all has
//      changed, is not, until its whole index has been read again, from a word that stood before.
//
// Owns: the tags, the positions in the logs, and the walks over the indexes. Calls: no other room.
#pragma once

#include <deque>

#include "pool/core/rooms.h"

namespace bowhead::core {

template <class A>
class Mirror {
 public:
  explicit Mirror(const Rooms<A>& rooms)
      : c_(rooms.context), index_(rooms.index), log_(rooms.index.log()) {}
  Mirror(const Mirror&) = delete;
  Mirror& operator=(const Mirror&) = delete;

  /// What the mirror knows of a bucket: entry i has tag word[i / 4] >> 16 * (i % 4).
  struct Tags {
    uint64_t words[2];

    bool further() const { return (words[1] & kFurther) != 0; }
    /// The directory line has changed and may not have settled: it must be read itself.
    bool marked() const { return words[1] / kOneMark != 0; }
    template <class Visit>
    void for_each_match(uint64_t tag, Visit visit) const {
      for (uint32_t i = 0; i < BH_INDEX_ENTRIES; ++i) {
        if ((words[i / 4] >> 16 * (i % 4) & 0xFFFF) == tag) visit(i);
      }
    }
  };
  static uint64_t tag_of(const Hash128& hash) { return short_tag(directory_tag(hash)); }

  /// Of `hosts` (a bit each) those whose tags are up to date: for the batch that begins now. Called
  /// after the set of hosts was read. Any thread.
  uint64_t catch_up(uint64_t hosts);
  /// Relaxed: what this batch must see was stored before catch_up() released the mutex; later
  /// stores are newer tags, and any mixture of both is a hint (M1).
  Tags tags(uint32_t host, uint64_t bucket) const {
    const std::atomic<uint64_t>* at = tags_at(host, bucket);
    return {{at[0].load(std::memory_order_relaxed), at[1].load(std::memory_order_relaxed)}};
  }
  void prefetch(uint64_t bucket) const {
    const auto* at = reinterpret_cast<const char*>(tags_at(0, bucket));
    for (size_t line = 0; line < 16 * hosts_; line += BH_LINE_BYTES) __builtin_prefetch(at + line);
  }
  /// Goes on reading the indexes of those of `hosts` that are not mirrored, if there was a batch.
  /// One thread, the one that does the duties of the host.
  void read_indexes(uint64_t hosts, uint64_t until_ns);

 private:
  // The last 16 bits of a bucket: a flag, and how many marks it has.
  static constexpr uint64_t kFurther = uint64_t{1} << 48, kOneMark = uint64_t{2} << 48;
  static constexpr uint64_t kMostWords = 4096;  ///< that a batch reads of one log
  static constexpr uint64_t kMostMemory = uint64_t{1} << 30;

  struct Mark {
    uint64_t bucket;
    uint64_t marked_at_ns;
  };
  struct Peer {
    uint64_t position = 0;   ///< in its log: the last word read
    std::deque<Mark> marks;  ///< oldest first
  };
  /// A walk over the index of a host that is not mirrored.
  struct Walk {
    bool begun = false;
    uint64_t position = 0;  ///< in its log, before the walk
    uint64_t began_ns = 0;
    uint64_t bucket = 0;
  };

  static uint64_t short_tag(uint64_t tag) { return (tag & 0xFFFF) == 0 ? 1 : tag & 0xFFFF; }
  const std::atomic<uint64_t>* tags_at(uint32_t host, uint64_t bucket) const {
    return &tags_[2 * (bucket * hosts_ + host)];
  }
  std::atomic<uint64_t>* tags_at(uint32_t host, uint64_t bucket) {
    return &tags_[2 * (bucket * hosts_ + host)];
  }
  void store_tags(uint32_t host, uint64_t bucket, uint64_t marks);
  bool catch_up_with(uint32_t host, uint64_t now_ns);
  void look_again(uint32_t host, uint64_t now_ns);
  bool walk(uint32_t host, uint64_t until_ns);
  bool have_memory();
  uint64_t settle_ns() const { return uint64_t{c_.times.settle_ms} * 1'000'000; }

  Context<A>& c_;
  Index<A>& index_;
  ChangeLog<A>& log_;

  std::atomic<bool> wanted_{false};  ///< a batch has asked
  uint64_t hosts_ = 0;               ///< columns: 0 until there is memory
  std::vector<std::atomic<uint64_t>> tags_;
  typename A::Mutex mutex_;  ///< guards what follows
  uint64_t whole_ = 0;       ///< hosts, a bit each, that are mirrored
  std::array<Peer, BH_HOSTS_MAX> peers_;
  // Of the thread that reads indexes.
  std::array<Walk, BH_HOSTS_MAX> walks_;
  bool no_memory_ = false;
};

template <class A>
uint64_t Mirror<A>::catch_up(uint64_t hosts) {
  wanted_.store(true, std::memory_order_relaxed);  // a hint: it orders nothing
  const std::lock_guard guard(mutex_);
  hosts &= whole_;
  if (hosts == 0) return 0;
  const auto next_at = [&](uint32_t host) { return log_.word_at(host, peers_[host].position + 1); };
  for (uint64_t left = hosts; left != 0; left &= left - 1) {
    const auto host = static_cast<uint32_t>(std::countr_zero(left));
    c_.access.invalidate(next_at(host), 8);
  }
  c_.access.coherence_fence();
  const uint64_t now_ns = c_.incoherent() ? c_.access.now_ns() : 0;
  uint64_t caught_up = 0;
  for (uint64_t left = hosts; left != 0; left &= left - 1) {
    const auto host = static_cast<uint32_t>(std::countr_zero(left));
    if (catch_up_with(host, now_ns))
      caught_up |= uint64_t{1} << host;
    else
      whole_ &= ~(uint64_t{1} << host);
  }
  return caught_up;
}

/// The line of the next word was acquired. False if the whole index must be read again.
template <class A>
bool Mirror<A>::catch_up_with(uint32_t host, uint64_t now_ns) {
  Peer& peer = peers_[host];
  const uint64_t buckets = c_.layout.geometry().index_bucket_count;
  uint64_t position = peer.position;
  for (uint64_t read = 0;; ++read) {
    const uint64_t next = position + 1;
    const uint64_t word = c_.access.load(log_.word_at(host, next));
    const uint64_t there = log_sequence(word, next % log_.count(), log_.count(), next);
    if (there < next) break;
    const uint64_t bucket = word & BH_LOG_ALL;
    if (there > next || bucket >= buckets || read == kMostWords) return false;
    if (c_.incoherent()) {  // M3
      std::atomic<uint64_t>& last = tags_at(host, bucket)[1];
      const uint64_t value = last.load(std::memory_order_relaxed);
      if (value + kOneMark < value) return false;  // as many marks as can be counted
      last.store(value + kOneMark, std::memory_order_relaxed);
      peer.marks.push_back({bucket, now_ns});
    } else {
      c_.access.acquire(c_.layout.bucket(host, bucket), BH_LINE_BYTES);
      store_tags(host, bucket, 0);
    }
    position = next;
    if ((next + 1) % log_.kLineWords == 0) c_.access.acquire(log_.word_at(host, next + 1), 8);
  }
  peer.position = position;
  look_again(host, now_ns);
  return true;
}

/// Copies the marked lines that have settled, and takes the marks off.
template <class A>
void Mirror<A>::look_again(uint32_t host, uint64_t now_ns) {
  constexpr size_t kAtOnce = 64;
  std::deque<Mark>& marks = peers_[host].marks;
  for (;;) {
    size_t ripe = 0;
    while (ripe < std::min(marks.size(), kAtOnce) &&
           now_ns - marks[ripe].marked_at_ns > settle_ns())
      c_.access.invalidate(c_.layout.bucket(host, marks[ripe++].bucket), BH_LINE_BYTES);
    if (ripe == 0) return;
    c_.access.coherence_fence();
    for (; ripe > 0; --ripe) {
      const uint64_t bucket = marks.front().bucket;
      marks.pop_front();
      // Later marks of the bucket stay.
      const uint64_t marked = tags(host, bucket).words[1] / kOneMark;
      store_tags(host, bucket, marked - 1);
    }
  }
}

/// Copies the tags of an acquired directory line.
template <class A>
void Mirror<A>::store_tags(uint32_t host, uint64_t bucket, uint64_t marks) {
  const Line words = c_.access.load_line(c_.layout.bucket(host, bucket));
  uint64_t packed[2] = {0, marks * kOneMark};
  for (uint32_t i = 0; i < BH_INDEX_ENTRIES; ++i) {
    if (words[i] != 0) packed[i / 4] |= short_tag(directory_tag_of(words[i])) << 16 * (i % 4);
  }
  if (words[BH_INDEX_ENTRIES] != 0) packed[1] |= kFurther;
  std::atomic<uint64_t>* at = tags_at(host, bucket);
  at[0].store(packed[0], std::memory_order_relaxed);
  at[1].store(packed[1], std::memory_order_relaxed);
}

template <class A>
bool Mirror<A>::have_memory() {
  if (hosts_ != 0) return true;
  const auto& g = c_.layout.geometry();
  const uint64_t words = 2 * g.index_bucket_count * g.host_count;
  if (no_memory_ || 8 * words > kMostMemory) return false;
  try {
    tags_ = std::vector<std::atomic<uint64_t>>(words);
  } catch (const std::bad_alloc&) {
    no_memory_ = true;  // look-ups go on probing
    return false;
  }
  hosts_ = g.host_count;
  return true;
}

template <class A>
void Mirror<A>::read_indexes(uint64_t hosts, uint64_t until_ns) {
  if (!wanted_.load(std::memory_order_relaxed)) return;
  uint64_t whole = 0;
  {
    const std::lock_guard guard(mutex_);
    whole = whole_;
  }
  for (uint64_t left = hosts & ~whole; left != 0; left &= left - 1) {
    if (!have_memory() || !walk(static_cast<uint32_t>(std::countr_zero(left)), until_ns)) return;
  }
}

/// One slice of a walk. False if the time is over.
template <class A>
bool Mirror<A>::walk(uint32_t host, uint64_t until_ns) {
  Walk& walk = walks_[host];
  if (!walk.begun) {
    c_.access.acquire(log_.word_at(host, 0), 8 * log_.count());
    walk = {true, log_.highest(host), c_.access.now_ns(), 0};
  }
  // The lines of all words up to the position have settled by then (M2).
  if (c_.incoherent() && c_.access.now_ns() - walk.began_ns <= settle_ns()) return true;
  const uint64_t buckets = c_.layout.geometry().index_bucket_count;
  for (; walk.bucket < buckets; ++walk.bucket) {
    if (walk.bucket % 64 == 0 && c_.access.now_ns() >= until_ns) return false;
    c_.access.acquire(c_.layout.bucket(host, walk.bucket), BH_LINE_BYTES);
    store_tags(host, walk.bucket, 0);
  }
  walk.begun = false;
  const std::lock_guard guard(mutex_);
  peers_[host] = {walk.position, {}};
  whole_ |= uint64_t{1} << host;
  return true;
}

}  // namespace bowhead::core
