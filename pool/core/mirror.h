// SPDX-License-Identifier: Apache-2.0
// What this process knows of the indexes of the other hosts: which entries of a bucket may have a
// key, of all hosts in one line of memory. A batch of look-ups catches up from the change logs
// (protocol 5.14), which costs one line per host and one for each change since the last batch, and
// then finds in its own memory which hosts may have a key.
//
// All hosts have as many buckets, so a key has the same bucket at each. The mirror has a row of
// lines for each bucket; bits of the tag choose the line in the row. A line:
//
//   word 0     hosts, a bit each, where entries of the bucket lie further on: in the next bucket of
//              the key's probe set, which has a row too
//   word 1     hosts whose directory line must be read itself: it has changed and may not have
//              settled (it is marked), or its entries found no room here
//   words 2-7  three items of 21 bits: entry + 1 (0: no item), host, and as many bits of the tag as
//              are left
//
// Invariants
//   M1 A hit leads to an entry and a header, which are read afresh: nothing is believed that only
//      the mirror says. So an old item costs a line, and no more.
//   M2 A put that returned before a batch began is found by it, unless the block was removed or
//      moved meanwhile: its word was published after its tag (G2), and the batch reads words
//      until one is not written yet. Where a fence does not wait for the memory this holds
//      settle_ms after the put; until a line that a word names has settled, the line itself is
//      read.
//   M3 The position in a log is stored after the lines of all words before it were read or marked.
//   M4 A host is mirrored whole or not at all. One whose log ran over, or said that all has
//      changed, is not, until its whole index has been read again: from a word that stood before,
//      and following the log meanwhile, so that a host that stores all the time is mirrored too.
//   M5 Lines change under the mutex, and a reader without it never misses an entry that stays: its
//      item stays where it is, and a bit that is to be cleared is cleared after the items are
//      there.
//
// Each set of media has rows of its own, which stay. A set that comes or goes begins the walks over
// all indexes anew: until then the mirror knows no host.
//
// The memory belongs to the process, not to its host: no process can leave it half-written for
// others by its death, and it lies on huge pages where the system has them.
//
// Owns: the lines, the positions in the logs, and the walks over the indexes. Calls: no other room.
#pragma once

#include <deque>

#include "base/prefetch.h"
#include "base/private_memory.h"
#include "pool/core/rooms.h"

namespace bowhead::core {

template <class A>
class Mirror {
 public:
  explicit Mirror(const Rooms<A>& rooms)
      : c_(rooms.context),
        index_(rooms.index),
        log_(rooms.index.log()),
        most_bytes_(rooms.settings.mirror_bytes),
        row_lines_(std::max<uint64_t>(1, std::bit_ceil(host_count()) / 4)),
        tag_bits_(kEntryShift - static_cast<uint32_t>(std::bit_width(host_count() - 1))) {}
  Mirror(const Mirror&) = delete;
  Mirror& operator=(const Mirror&) = delete;

  /// Hosts, a bit each, for which the items of a line are not enough.
  struct Exceptions {
    uint64_t further;  ///< look in the next bucket of the probe set too
    uint64_t unread;   ///< read the directory line itself
  };

  /// Of `hosts` (a bit each) those that the mirror knows: for the batch that begins now. Called
  /// after the set of hosts was read. Any thread.
  uint64_t catch_up(uint64_t hosts);
  /// Calls visit(host, entry) for entries that may have the tag, of any host. Any thread.
  template <class Visit>
  Exceptions match(uint64_t bucket, uint64_t tag, Visit visit) const;
  /// The bits of a tag that match() compares.
  uint64_t known_tag() const { return (row_lines_ << tag_bits_) - 1; }
  /// Of a batch that has caught up with a host.
  void prefetch(uint64_t bucket, uint64_t tag) const {
    if (const Rows* rows = rows_of(bucket)) prefetch_line(line_at(*rows, bucket, line_of(tag)));
  }
  /// Goes on reading the indexes of those of `hosts` that are not mirrored, and follows the logs of
  /// the others, so that the next batch has little to read; unless there was no batch for long. One
  /// thread.
  void keep_up(uint64_t hosts, uint64_t until_ns);

 private:
  using Word = std::atomic<uint64_t>;

  static constexpr uint64_t kMostWords = 1024;    ///< that are read of a log under one lock
  static constexpr uint32_t kRoundsWanted = 600;  ///< of keep_up(), one each heartbeat
  static constexpr uint32_t kFurther = 0, kUnread = 1, kItems = 2;  ///< words of a line
  static constexpr uint32_t kItemBits = 21, kEntryShift = 18;       ///< of an item: its upper bits
  static constexpr uint64_t kItemMask = (uint64_t{1} << kItemBits) - 1;
  static constexpr uint64_t kLanes =  ///< the lowest bit of each item of a word
      uint64_t{1} | uint64_t{1} << kItemBits | uint64_t{1} << 2 * kItemBits;

  /// Of the buckets of a set.
  struct Rows {
    uint64_t first_bucket = 0, bucket_count = 0;
    PrivateMemory lines, marks;
  };
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
    uint64_t began_ns = 0;
    uint64_t bucket = 0;  ///< the next one
  };
  enum class Caught {
    UP,      ///< with all words that are written
    BEHIND,  ///< there are more of them
    LOST     ///< the whole index must be read again
  };

  uint32_t host_count() const { return c_.layout.geometry().host_count; }
  uint64_t tag_mask() const { return (uint64_t{1} << tag_bits_) - 1; }
  uint32_t item(uint32_t host, uint32_t entry, uint64_t tag) const {
    return (entry + 1) << kEntryShift | host << tag_bits_ | static_cast<uint32_t>(tag & tag_mask());
  }
  /// Of the item of a word that has this bit: the place of its lowest bit.
  static uint32_t shift_of(int bit) { return static_cast<uint32_t>(bit) / kItemBits * kItemBits; }
  static uint32_t item_at(uint64_t word, uint32_t shift) {
    return static_cast<uint32_t>(word >> shift & kItemMask);
  }
  uint32_t host_of(uint32_t item) const { return (item & ((1u << kEntryShift) - 1)) >> tag_bits_; }
  uint64_t line_of(uint64_t tag) const { return tag >> tag_bits_ & (row_lines_ - 1); }
  /// Null: the bucket is in no set that the mirror has rows for.
  const Rows* rows_of(uint64_t bucket) const {
    // Those of set 0 come first, and were there before any host was mirrored.
    if (bucket < rows_[0].bucket_count) return &rows_[0];
    const uint32_t count = rows_count_.load(std::memory_order_acquire);
    for (uint32_t i = 1; i < count; ++i) {
      if (bucket - rows_[i].first_bucket < rows_[i].bucket_count) return &rows_[i];
    }
    return nullptr;
  }
  Word* line_at(const Rows& rows, uint64_t bucket, uint64_t line) const {
    return reinterpret_cast<Word*>(rows.lines.data()) +
           8 * ((bucket - rows.first_bucket) * row_lines_ + line);
  }
  /// For `pool info`.
  void tell(size_t member, uint64_t value) {
    c_.access.store(c_.layout.process(c_.host, c_.process) + member, value);
  }
  void set_whole(uint64_t hosts) {
    whole_ = hosts;
    tell(offsetof(bh_process, mirrored), hosts);
  }
  /// How often a bucket of a host is marked.
  uint16_t& marks_of(const Rows& rows, uint32_t host, uint64_t bucket) const {
    return reinterpret_cast<uint16_t*>(
        rows.marks.data())[host * rows.bucket_count + bucket - rows.first_bucket];
  }
  void prefetch_row(uint64_t bucket) const {
    const Rows* rows = rows_of(bucket);
    for (uint64_t i = 0; rows != nullptr && i < row_lines_; ++i)
      prefetch_line(line_at(*rows, bucket, i));
  }
  /// The lanes of a word whose bits under `mask` are those of `value`: for each the bit `top`,
  /// which is the first above the mask.
  static uint64_t equal_lanes(uint64_t word, uint64_t value, uint64_t mask, uint64_t top) {
    // In each lane the sum reaches the bit unless the difference is 0.
    return ~(((word ^ value * kLanes) & mask * kLanes) + mask * kLanes) & top * kLanes;
  }
  static void set_bit(Word& word, uint64_t bit, bool set) {
    const uint64_t old = word.load(std::memory_order_relaxed);
    word.store(set ? old | bit : old & ~bit, std::memory_order_release);  // M5
  }
  void copy_line(uint32_t host, uint64_t bucket);
  bool store_items(Word* line, uint32_t host, std::span<const uint32_t> items);
  bool mark(uint32_t host, std::span<const uint64_t> buckets, uint64_t now_ns);
  Caught catch_up_with(uint32_t host);
  void look_again(uint32_t host);
  bool follow(uint32_t host, uint64_t until_ns);
  bool walk(uint32_t host, uint64_t until_ns);
  bool have_memory();
  bool add_rows(const Set& set);
  bool knows_all_sets();
  uint64_t settle_ns() const { return uint64_t{c_.times.settle_ms} * 1'000'000; }

  Context<A>& c_;
  Index<A>& index_;
  ChangeLog<A>& log_;
  const uint64_t most_bytes_;
  /// A power of two. A line has room for 18 items; the index of a full pool has two per bucket and
  /// host, more where a host has more than its share.
  const uint64_t row_lines_;
  const uint32_t tag_bits_;  ///< of the tag, in an item

  std::atomic<uint32_t> rounds_wanted_{0};  ///< of keep_up(), since a batch has asked
  std::array<Rows, 2 * (BH_SETS_MAX + 1)> rows_;
  std::atomic<uint32_t> rows_count_{0};
  uint64_t bytes_ = 0;                  ///< of all rows
  const Layout::Sets* sets_ = nullptr;  ///< those that the walks began with
  typename A::Mutex mutex_;             ///< guards what follows, and stores to the lines
  uint64_t whole_ = 0;                  ///< hosts, a bit each, that are mirrored
  std::array<Peer, BH_HOSTS_MAX> peers_;
  // Of the thread that reads indexes.
  std::array<Walk, BH_HOSTS_MAX> walks_;
  uint32_t next_host_ = 0;  ///< whose turn it is
  bool no_memory_ = false;
};

template <class A>
template <class Visit>
auto Mirror<A>::match(uint64_t bucket, uint64_t tag, Visit visit) const -> Exceptions {
  const Rows* rows = rows_of(bucket);
  if (rows == nullptr) return {0, ~uint64_t{0}};  // a set that came just now
  const Word* line = line_at(*rows, bucket, line_of(tag));
  // Acquire: a bit that was cleared is read before the items that made it needless (M5). What this
  // batch must see was stored before catch_up() released the mutex.
  const Exceptions exceptions{line[kFurther].load(std::memory_order_acquire),
                              line[kUnread].load(std::memory_order_acquire)};
  for (uint32_t w = kItems; w < 8; ++w) {
    const uint64_t word = line[w].load(std::memory_order_relaxed);
    uint64_t equal = equal_lanes(word, tag & tag_mask(), tag_mask(), tag_mask() + 1);
    for (; equal != 0; equal &= equal - 1) {
      const uint32_t item = item_at(word, shift_of(std::countr_zero(equal)));
      if (item != 0) visit(host_of(item), (item >> kEntryShift) - 1);
    }
  }
  return exceptions;
}

template <class A>
uint64_t Mirror<A>::catch_up(uint64_t hosts) {
  // A hint: it orders nothing.
  if (rounds_wanted_.load(std::memory_order_relaxed) != kRoundsWanted)
    rounds_wanted_.store(kRoundsWanted, std::memory_order_relaxed);
  const std::lock_guard guard(mutex_);
  if (whole_ != 0 && !knows_all_sets()) set_whole(0);
  hosts &= whole_;
  if (hosts == 0) return 0;
  std::array<uint64_t, BH_HOSTS_MAX> next_at;  // the places of their next words
  size_t count = 0;
  for (uint64_t left = hosts; left != 0; left &= left - 1) {
    const auto host = static_cast<uint32_t>(std::countr_zero(left));
    next_at[count] = log_.word_at(host, peers_[host].position + 1);
    c_.access.invalidate(next_at[count++], 8);
  }
  c_.access.coherence_fence();
  // Some lines ahead: of many that are asked for at once, a core drops most.
  constexpr size_t kAhead = 12;
  for (size_t i = 0; i < std::min(kAhead, count); ++i) c_.access.prefetch(next_at[i]);
  uint64_t caught_up = 0;
  for (uint64_t left = hosts, ahead = kAhead; left != 0; left &= left - 1, ++ahead) {
    const auto host = static_cast<uint32_t>(std::countr_zero(left));
    if (ahead < count) c_.access.prefetch(next_at[ahead]);
    const Caught caught = catch_up_with(host);
    // One that is behind is read by its index this time.
    if (caught == Caught::UP) caught_up |= uint64_t{1} << host;
    if (caught == Caught::LOST) set_whole(whole_ & ~(uint64_t{1} << host));
  }
  return caught_up;
}

/// The line of the next word was acquired. Reads no more words than kMostWords, or half a ring.
template <class A>
auto Mirror<A>::catch_up_with(uint32_t host) -> Caught {
  constexpr size_t kAtOnce = 64;
  Peer& peer = peers_[host];
  const uint64_t buckets =
      c_.layout.geometry().parts[BH_PART_INDEX].bytes / sizeof(bh_index_bucket);
  const uint64_t most = std::min(kMostWords, log_.count() / 2);
  std::array<uint64_t, kAtOnce> changed;
  for (uint64_t next = peer.position + 1, read = 0;;) {
    size_t count = 0;
    const size_t at_once = std::min(kAtOnce, most - read);
    bool more = true;
    for (; more && count < at_once; ++next) {
      const uint64_t word = c_.access.load(log_.word_at(host, next));
      const uint64_t there = log_sequence(word, log_.place_of(next), log_.count(), next);
      if (there < next) {
        more = false;
        break;
      }
      const uint64_t bucket = word & BH_LOG_ALL;
      if (there > next || bucket >= buckets) return Caught::LOST;
      changed[count++] = bucket;
      prefetch_row(bucket);
      if ((next + 1) % log_.kLineWords == 0) c_.access.acquire(log_.word_at(host, next + 1), 8);
    }
    const std::span known(changed.data(), count);
    if (c_.incoherent()) {
      // The time after the words were seen: the lines that they name settle from then on.
      if (count != 0 && !mark(host, known, c_.access.now_ns())) return Caught::LOST;
    } else {
      for (const uint64_t bucket : known) copy_line(host, bucket);
    }
    peer.position = next - 1;  // M3
    read += count;
    if (more && read < most) continue;
    look_again(host);
    return more ? Caught::BEHIND : Caught::UP;
  }
}

/// False if a bucket has as many marks as can be counted.
template <class A>
bool Mirror<A>::mark(uint32_t host, std::span<const uint64_t> buckets, uint64_t now_ns) {
  for (const uint64_t bucket : buckets) {
    const Rows* rows = rows_of(bucket);
    if (rows == nullptr) continue;  // of a set that this process does not know yet, or any more
    uint16_t& marks = marks_of(*rows, host, bucket);
    if (marks == UINT16_MAX) return false;
    peers_[host].marks.push_back({bucket, now_ns});
    if (++marks > 1) continue;
    for (uint64_t i = 0; i < row_lines_; ++i)
      set_bit(line_at(*rows, bucket, i)[kUnread], uint64_t{1} << host, true);
  }
  return true;
}

/// Copies the marked lines that have settled, and takes the marks off.
template <class A>
void Mirror<A>::look_again(uint32_t host) {
  constexpr size_t kAtOnce = 64, kAhead = 8;
  std::deque<Mark>& marks = peers_[host].marks;
  if (marks.empty()) return;
  const uint64_t now_ns = c_.access.now_ns();
  for (;;) {
    size_t ripe = 0;
    while (ripe < std::min(marks.size(), kAtOnce) &&
           now_ns - marks[ripe].marked_at_ns > settle_ns())
      c_.access.invalidate(c_.layout.bucket(host, marks[ripe++].bucket), BH_LINE_BYTES);
    if (ripe == 0) return;
    c_.access.coherence_fence();
    for (size_t i = 0; i < ripe + kAhead; ++i) {
      if (i < ripe) {
        c_.access.prefetch(c_.layout.bucket(host, marks[i].bucket));
        prefetch_row(marks[i].bucket);
      }
      // A bucket that was marked again is copied later.
      if (i < kAhead) continue;
      const uint64_t bucket = marks[i - kAhead].bucket;
      if (--marks_of(*rows_of(bucket), host, bucket) == 0) copy_line(host, bucket);
    }
    marks.erase(marks.begin(), marks.begin() + static_cast<ptrdiff_t>(ripe));
  }
}

/// Copies what an acquired directory line says to the row of its bucket. While the bucket is marked
/// the line is read all the same.
template <class A>
void Mirror<A>::copy_line(uint32_t host, uint64_t bucket) {
  const Rows* rows = rows_of(bucket);
  if (rows == nullptr) return;
  const Line words = c_.access.load_line(c_.layout.bucket(host, bucket));
  const uint64_t bit = uint64_t{1} << host;
  const bool marked = marks_of(*rows, host, bucket) != 0;
  for (uint64_t i = 0; i < row_lines_; ++i) {
    std::array<uint32_t, BH_INDEX_ENTRIES> items;
    size_t count = 0;
    for (uint32_t entry = 0; entry < BH_INDEX_ENTRIES; ++entry) {
      const uint64_t tag = directory_tag_of(words[entry]);
      if (words[entry] != 0 && line_of(tag) == i) items[count++] = item(host, entry, tag);
    }
    Word* line = line_at(*rows, bucket, i);
    const bool whole = store_items(line, host, {items.data(), count});
    set_bit(line[kFurther], bit, words[BH_INDEX_ENTRIES] != 0);
    set_bit(line[kUnread], bit, marked || !whole);
  }
}

/// Makes `items` those of the host in a line. False if they do not all find room.
template <class A>
bool Mirror<A>::store_items(Word* line, uint32_t host, std::span<const uint32_t> items) {
  const uint64_t host_mask = (uint64_t{1} << kEntryShift) - 1 - tag_mask();
  uint32_t there = 0;  // of `items`, a bit each
  for (uint32_t w = kItems; w < 8; ++w) {
    const uint64_t old = line[w].load(std::memory_order_relaxed);
    // Shifted, so that the bits of the host are the lowest under the mask.
    uint64_t equal = equal_lanes(old >> tag_bits_, host, host_mask >> tag_bits_,
                                 uint64_t{1} << (kEntryShift - tag_bits_));
    uint64_t word = old;
    for (; equal != 0; equal &= equal - 1) {
      const uint32_t shift = shift_of(std::countr_zero(equal));
      const uint32_t one = item_at(old, shift);
      if (one == 0) continue;
      const auto same = std::find(items.begin(), items.end(), one);
      if (same != items.end())
        there |= 1u << (same - items.begin());
      else
        word &= ~(kItemMask << shift);
    }
    if (word != old) line[w].store(word, std::memory_order_release);
  }
  uint32_t w = kItems;
  for (size_t n = 0; n < items.size(); ++n) {
    if ((there >> n & 1) != 0) continue;
    for (;; ++w) {
      if (w == 8) return false;
      const uint64_t word = line[w].load(std::memory_order_relaxed);
      // Every item has a bit above its host: a lane without is empty.
      const uint64_t empty = ~(word | word << 1 | word << 2) & (kLanes << (kItemBits - 1));
      if (empty == 0) continue;
      line[w].store(word | uint64_t{items[n]} << shift_of(std::countr_zero(empty)),
                    std::memory_order_release);
      break;
    }
  }
  return true;
}

template <class A>
bool Mirror<A>::have_memory() {
  const Layout::Sets& sets = c_.layout.sets();
  if (sets_ == &sets) return !no_memory_;
  const std::lock_guard guard(mutex_);
  sets_ = &sets;
  if (whole_ != 0) set_whole(0);
  for (Walk& walk : walks_) walk.begun = false;
  no_memory_ = !std::all_of(sets.list.begin(), sets.list.end(),
                            [&](const Set& set) { return add_rows(set); });
  // Look-ups go on reading the indexes.
  tell(offsetof(bh_process, mirror_bytes), no_memory_ ? uint64_t{BH_MIRROR_REFUSED} : bytes_);
  return !no_memory_;
}

/// False if there is no memory for them. A set that was there before may have had the same buckets.
template <class A>
bool Mirror<A>::add_rows(const Set& set) {
  const uint32_t count = rows_count_.load(std::memory_order_relaxed);
  for (uint32_t i = 0; i < count; ++i) {
    if (rows_[i].first_bucket == set.first_bucket) return rows_[i].bucket_count == set.bucket_count;
  }
  const uint64_t row_bytes = BH_LINE_BYTES * row_lines_ * set.bucket_count;
  const uint64_t mark_bytes = sizeof(uint16_t) * host_count() * set.bucket_count;
  if (count == rows_.size() || bytes_ + row_bytes + mark_bytes > most_bytes_) return false;
  Rows& rows = rows_[count];
  rows.marks = PrivateMemory(mark_bytes);
  if (rows.marks.data() != nullptr) rows.lines = PrivateMemory(row_bytes);
  if (rows.lines.data() == nullptr) return false;
  rows.first_bucket = set.first_bucket;
  rows.bucket_count = set.bucket_count;
  bytes_ += row_bytes + mark_bytes;
  rows_count_.store(count + 1, std::memory_order_release);
  return true;
}

/// Under the mutex.
template <class A>
bool Mirror<A>::knows_all_sets() {
  return sets_ == &c_.layout.sets();
}

template <class A>
void Mirror<A>::keep_up(uint64_t hosts, uint64_t until_ns) {
  const uint32_t rounds = rounds_wanted_.load(std::memory_order_relaxed);
  if (rounds == 0 || (hosts != 0 && !have_memory())) return;
  rounds_wanted_.store(rounds - 1, std::memory_order_relaxed);
  uint64_t whole = 0;
  {
    const std::lock_guard guard(mutex_);
    if ((whole_ & ~hosts) != 0) set_whole(whole_ & hosts);  // the others are gone
    whole = whole_;
  }
  // In turn, so that no host keeps the others from it. A walk goes on to its end.
  const uint32_t count = host_count();
  for (uint32_t n = 0; n < count; ++n) {
    const uint32_t host = next_host_;
    const bool mirrored = (whole >> host & 1) != 0;
    const bool in_time =
        (hosts >> host & 1) == 0 || (mirrored ? follow(host, until_ns) : walk(host, until_ns));
    if (in_time || mirrored) next_host_ = (host + 1) % count;
    if (!in_time) return;
  }
}

/// Reads what is new in the log of a mirrored host. False if the time is over.
template <class A>
bool Mirror<A>::follow(uint32_t host, uint64_t until_ns) {
  for (Caught caught = Caught::BEHIND; caught == Caught::BEHIND;) {
    if (c_.access.now_ns() >= until_ns) return false;
    const std::lock_guard guard(mutex_);
    if ((whole_ >> host & 1) == 0) return true;
    c_.access.invalidate(log_.word_at(host, peers_[host].position + 1), 8);
    c_.access.coherence_fence();
    caught = catch_up_with(host);
    if (caught == Caught::LOST) set_whole(whole_ & ~(uint64_t{1} << host));
  }
  return true;
}

/// One slice of a walk. False if the time is over.
template <class A>
bool Mirror<A>::walk(uint32_t host, uint64_t until_ns) {
  constexpr uint64_t kAtOnce = 16;  // buckets, for which batches may wait
  Walk& walk = walks_[host];
  const uint64_t buckets = c_.layout.bucket_end();
  if (!walk.begun) {
    c_.access.acquire(log_.word_at(host, 0), 8 * log_.count());
    const uint64_t position = log_.highest(host);
    walk = {true, c_.access.now_ns(), 0};
    const std::lock_guard guard(mutex_);
    for (const Mark& mark : peers_[host].marks)
      marks_of(*rows_of(mark.bucket), host, mark.bucket) = 0;
    peers_[host] = {position, {}};
  }
  // The lines of all words up to the first position have settled by then (M2).
  const bool settled = !c_.incoherent() || c_.access.now_ns() - walk.began_ns > settle_ns();
  for (;;) {
    if (c_.access.now_ns() >= until_ns) return false;
    walk.bucket = c_.layout.next_bucket(walk.bucket);
    const uint64_t end = settled ? std::min(walk.bucket + kAtOnce, buckets) : walk.bucket;
    for (uint64_t b = walk.bucket; b < end; ++b)
      c_.access.invalidate(c_.layout.bucket(host, b), BH_LINE_BYTES);
    // Read without the mutex: batches leave the position of a host alone that is not mirrored.
    c_.access.invalidate(log_.word_at(host, peers_[host].position + 1), 8);
    c_.access.coherence_fence();
    const std::lock_guard guard(mutex_);
    for (; walk.bucket < end; ++walk.bucket) copy_line(host, walk.bucket);
    const Caught caught = catch_up_with(host);
    if (caught == Caught::LOST) {
      walk.begun = false;  // from the beginning, when it is this host's turn again
      return true;
    }
    if (caught == Caught::BEHIND) continue;
    if (!settled) return true;
    if (walk.bucket == buckets) {
      walk.begun = false;
      set_whole(whole_ | uint64_t{1} << host);
      return true;
    }
  }
}

}  // namespace bowhead::core
