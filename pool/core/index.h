// SPDX-License-Identifier: Apache-2.0
// Index: from the hash of a key to its block, in the index segments of all hosts (format/index.h).
//
// Invariants
//   X1 An entry is only written or cleared by a process of the segment's host, which has set its
//      claim in the entry's directory word by CAS before.
//   X2 A word that is neither empty nor claimed has a sealed entry, and no word is ever empty while
//      its entry is sealed: an entry is cleared before its word.
//   X3 Word 7 of a bucket is at least the number of live entries that passed it by: it is raised
//      before such an entry is written, and lowered after it is cleared. Deaths can leave it too
//      high, which costs a probe.
//   X4 Two inserts, or an insert and a removal, of one key exclude each other by the key's lock.
//      Readers take no lock: a half-written line has a bad seal and means "nothing here".
//   X5 A tag is published, in a claimed word, before the change log names its bucket, and an entry
//      before its insertion returns. The word without the claim need not be: only processes of the
//      segment's host heed claims, and a rebuild makes the words anew.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <optional>
#include <span>
#include <vector>

#include "pool/core/change_log.h"

namespace bowhead::core {

/// Which lines of another host's segment were invalidated just now, in a batch.
enum class Fresh { NOTHING, FIRST_LINE };

/// An entry, copied to private memory, and where it was.
struct Found {
  bh_index_entry entry{};
  uint32_t host = 0;
  uint64_t bucket = 0;
  uint32_t index = 0;  ///< of the entry in its bucket
  uint32_t probe = 0;  ///< how many buckets of the key's probe set come before
};

/// Where an entry of the own segment is to be written: its word is claimed.
struct IndexPlace {
  uint64_t bucket;
  uint32_t index, probe;  ///< as in Found
};

template <class A>
class Index {
 public:
  explicit Index(Context<A>& context) : c_(context), log_(context) {}

  /// Buckets of a probe set: double hashing in the segment of a set of media.
  class Probes {
   public:
    Probes(const Hash128& hash, uint64_t buckets, uint64_t first_bucket = 0)
        : first_(first_bucket),
          buckets_(buckets),
          bucket_(mul_high(hash.low, buckets)),
          step_(1 + mul_high(hash.high, buckets - 1)) {}
    uint64_t bucket() const { return first_ + bucket_; }
    void next() {
      bucket_ += step_;
      if (bucket_ >= buckets_) bucket_ -= buckets_;
    }

   private:
    uint64_t first_, buckets_, bucket_, step_;
  };
  Probes probes(const Hash128& hash, const Set& set) const {
    return Probes(hash, set.bucket_count, set.first_bucket);
  }
  /// The probe sets of a key in all segments, one after the other. An entry lies in the segment of
  /// the set that its block lies on, so that a set can go with all that leads to it.
  class Search {
   public:
    Search(const Hash128& hash, std::span<const Set> sets)
        : hash_(hash), sets_(sets), probes_(begin()) {}
    bool more() const { return !sets_.empty(); }
    uint64_t bucket() const { return probes_.bucket(); }
    /// Buckets of the probe set that come before this one.
    uint32_t number() const { return number_; }
    void next() {
      if (++number_ < BH_INDEX_PROBES)
        probes_.next();
      else
        leave_segment();
    }
    /// No entry of the key lies further on in this segment.
    void leave_segment() {
      sets_ = sets_.subspan(1);
      number_ = 0;
      if (more()) probes_ = begin();
    }

   private:
    Probes begin() const {
      return Probes(hash_, sets_.front().bucket_count, sets_.front().first_bucket);
    }

    Hash128 hash_;
    std::span<const Set> sets_;
    Probes probes_;
    uint32_t number_ = 0;
  };
  Search search(const Hash128& hash) const { return Search(hash, c_.layout.sets().list); }
  uint64_t primary_bucket(const Hash128& hash) const {
    return mul_high(hash.low, c_.layout.geometry().index_bucket_count);
  }
  uint64_t entry_at(uint32_t host, uint64_t bucket, uint32_t index) const {
    return c_.layout.bucket(host, bucket) + offsetof(bh_index_bucket, entries) +
           index * sizeof(bh_index_entry);
  }
  uint64_t line_at(uint32_t host, uint64_t bucket) const { return c_.layout.bucket(host, bucket); }
  /// The directory line that a look-up of `hash` begins with.
  uint64_t first_line(uint32_t host, const Hash128& hash) const {
    return line_at(host, primary_bucket(hash));
  }

  /// Finds an entry of host `host` for which accept(entry) holds.
  template <class Accept>
  std::optional<Found> find_if(uint32_t host, const Hash128& hash, Accept accept,
                               Fresh fresh = Fresh::NOTHING) const;

  std::optional<Found> find(uint32_t host, const Hash128& hash, uint64_t namespace_id) const {
    return find_if(host, hash,
                   [&](const bh_index_entry& entry) { return entry.namespace_id == namespace_id; });
  }

  /// Finds the entry that names this offset and this stamp.
  std::optional<Found> find_block(uint32_t host, const Hash128& hash, uint64_t offset,
                                  uint64_t stamp) const {
    return find_if(host, hash, [&](const bh_index_entry& entry) {
      return entry.block_offset == offset && entry.stamp == stamp;
    });
  }

  /// Publishes an own entry and the words that lead to it: their writer may have died before. In
  /// any order under one fence, as the entry is sealed: a word that comes first leads to nothing.
  void publish(const Found& found) {
    const Set* set = c_.layout.set_of_bucket(found.bucket);
    if (set == nullptr) return;  // it is gone
    Probes probe = probes(hash_of(found.entry), *set);
    for (uint32_t n = 0; n <= found.probe; ++n, probe.next())
      c_.access.flush(c_.layout.bucket(c_.host, probe.bucket()), BH_LINE_BYTES);
    c_.access.publish(entry_at(c_.host, found.bucket, found.index), BH_LINE_BYTES);
    log_.publish(log_buckets(hash_of(found.entry), *set, found.probe + 1));
  }

  /// Calls visit(entry) for each tag that matches in a directory line. True if entries of the
  /// bucket lie further on in their probe sets.
  template <class Visit>
  static bool for_each_match(uint64_t tag, const Line& words, Visit visit) {
    for (uint32_t i = 0; i < BH_INDEX_ENTRIES; ++i) {
      if (directory_tag_of(words[i]) == tag) visit(i);
    }
    return words[BH_INDEX_ENTRIES] != 0;
  }
  /// The entry in an acquired line, if it is sealed and has this hash.
  std::optional<bh_index_entry> read_entry(uint64_t at, const Hash128& hash) const {
    Line line;
    if (!c_.read_sealed(at, line)) return std::nullopt;
    const auto entry = from_line<bh_index_entry>(line);
    if (hash_of(entry) != hash) return std::nullopt;
    return entry;
  }

  /// Inserts an entry for the block of a slot into the own index, in two steps, under the key's
  /// lock. First claims a place and flushes the tag, which a fence of the caller publishes; nothing
  /// if the whole probe set is full. Then writes the entry there, with a full fence at the end:
  /// loads after it come after the entry (N4).
  std::optional<IndexPlace> claim(const Hash128& hash, uint64_t slot);
  void fill(const IndexPlace& place, const bh_index_entry& entry);
  /// Asks for the lines that an insertion writes, and for that of the key's lock, some time before.
  void expect_insert(const Hash128& hash) const;
  /// Both steps at once. False if the whole probe set is full.
  bool insert(const bh_index_entry& entry);

  /// Clears an entry of the own segment that find() saw. False if it changed since. Under the key's
  /// lock.
  bool erase(const Found& found);

  /// Tries once to take the lock of a key; on failure `holder` is the process that had it.
  bool try_lock(const Hash128& hash, uint32_t* holder);
  void unlock(const Hash128& hash);

  /// Calls visit(Found) for every sealed entry of a host.
  template <class Visit>
  void for_each(uint32_t host, Visit visit) const {
    for_each_bucket([&](uint64_t b) { for_each_in(host, b, visit); });
  }
  /// The same for one bucket.
  template <class Visit>
  void for_each_in(uint32_t host, uint64_t bucket, Visit visit) const;

  /// Finishes or clears entries that a dead process was writing or clearing. Only after that, and
  /// after its blocks are scavenged, may release_locks() free its locks.
  uint64_t scavenge_claims(const Processes& dead);
  void release_locks(const Processes& dead);

  ChangeLog<A>& log() { return log_; }

  /// For a rebuild, with no other process running: clears entries that `keep(entry)` refuses and
  /// counts word 7 anew. Some entries earlier, expect(offset) hears which block an entry names, and
  /// may ask for lines that keep() will read; the offset may be damaged. Returns the buckets, in
  /// order, that had a damaged entry: a line with a seal that is wrong.
  template <class Expect, class Keep>
  std::vector<uint64_t> rebuild(Expect expect, Keep keep);
  /// A probe set of a key has one of these buckets, which are in order.
  bool probes_any(const Hash128& hash, std::span<const uint64_t> buckets) const {
    for (Search probe = search(hash); probe.more(); probe.next()) {
      if (std::binary_search(buckets.begin(), buckets.end(), probe.bucket())) return true;
    }
    return false;
  }

 private:
  template <class Visit>
  void for_each_bucket(Visit visit) const {
    for (const Set& set : c_.layout.sets().list) {
      for (uint64_t b = set.first_bucket; b < set.bucket_end(); ++b) visit(b);
    }
  }
  static uint64_t mul_high(uint64_t a, uint64_t b) {
    return static_cast<uint64_t>(static_cast<unsigned __int128>(a) * b >> 64);
  }
  uint64_t word_at(uint32_t host, uint64_t bucket, uint32_t index) const {
    return c_.layout.bucket(host, bucket) + index * 8;
  }
  uint64_t lock_at(const Hash128& hash) const {
    return c_.own(BH_PART_LOCKS, primary_bucket(hash) & (c_.layout.geometry().lock_count - 1));
  }
  void add_overflow(const Hash128& hash, const Set& set, uint32_t probe_count, int64_t delta);
  /// Notes that the first buckets of a probe set changed, so that all hosts see the entry. Returns
  /// what log_.publish() takes.
  uint64_t log_buckets(const Hash128& hash, const Set& set, uint32_t probe_count) {
    uint64_t sequence = 0;
    Probes probe = probes(hash, set);
    for (uint32_t n = 0; n < probe_count; ++n, probe.next()) sequence = log_.append(probe.bucket());
    return sequence;
  }
  void clear_at(uint64_t bucket, uint32_t index);
  template <class Expect, class Keep>
  void rebuild(const Set& set, Expect expect, Keep keep, std::vector<uint64_t>& damaged);

  Context<A>& c_;
  ChangeLog<A> log_;
};

template <class A>
template <class Accept>
std::optional<Found> Index<A>::find_if(uint32_t host, const Hash128& hash, Accept accept,
                                       Fresh fresh) const {
  const uint64_t tag = directory_tag(hash);
  for (Search probe = search(hash); probe.more();) {
    const uint64_t line_at = c_.layout.bucket(host, probe.bucket());
    if (fresh == Fresh::NOTHING) c_.acquire_from(host, line_at, BH_LINE_BYTES);
    fresh = Fresh::NOTHING;
    const Line words = c_.access.load_line(line_at);
    for (uint32_t i = 0; i < BH_INDEX_ENTRIES; ++i) {
      if (directory_tag_of(words[i]) != tag) continue;
      const uint64_t at = entry_at(host, probe.bucket(), i);
      c_.acquire_from(host, at, BH_LINE_BYTES);
      const auto entry = read_entry(at, hash);
      if (entry && accept(*entry)) return Found{*entry, host, probe.bucket(), i, probe.number()};
    }
    if (words[7] == 0)
      probe.leave_segment();
    else
      probe.next();
  }
  return std::nullopt;
}

template <class A>
std::optional<IndexPlace> Index<A>::claim(const Hash128& hash, uint64_t slot) {
  const uint64_t claimed = directory_word(directory_tag(hash), c_.process + 1);
  const Set* set = c_.layout.set_of(c_.layout.extent_of_slot(slot));
  if (set == nullptr) return std::nullopt;
  Probes probe = probes(hash, *set);
  for (uint32_t n = 0; n < BH_INDEX_PROBES; ++n, probe.next()) {
    for (uint32_t i = 0; i < BH_INDEX_ENTRIES; ++i) {
      const uint64_t word = word_at(c_.host, probe.bucket(), i);
      uint64_t empty = 0;
      if (c_.access.load(word) != 0 || !c_.access.cas(word, empty, claimed)) continue;
      c_.access.flush(word, 8);
      return IndexPlace{probe.bucket(), i, n};
    }
    // Published before the entry is written further on, so that no reader stops short of it (X3).
    const uint64_t overflow = word_at(c_.host, probe.bucket(), BH_INDEX_ENTRIES);
    c_.access.fetch_add(overflow, 1);
    c_.access.publish(overflow, 8);
  }
  add_overflow(hash, *set, BH_INDEX_PROBES, -1);
  return std::nullopt;
}

template <class A>
void Index<A>::expect_insert(const Hash128& hash) const {
  c_.access.prefetch_own(lock_at(hash));
  const uint64_t bucket = primary_bucket(hash);
  const Line words = c_.access.load_line(line_at(c_.host, bucket));
  const auto empty = std::find(words.begin(), words.begin() + BH_INDEX_ENTRIES, 0u);
  const auto index = static_cast<uint32_t>(empty - words.begin());
  if (index < BH_INDEX_ENTRIES) c_.access.prefetch_own(entry_at(c_.host, bucket, index));
}

/// Entry and log under one fence: a reader that finds the log first finds the tag (X5) and, until
/// the entry is there, nothing under it. The flush comes last, as locked instructions, of which
/// append() has some, wait for what was flushed.
template <class A>
void Index<A>::fill(const IndexPlace& place, const bh_index_entry& entry) {
  const Hash128 hash = hash_of(entry);
  const uint64_t at = entry_at(c_.host, place.bucket, place.index);
  Line line = to_line(entry);
  c_.sealer.seal(line, at);
  c_.access.store_line(at, line);
  c_.access.store(word_at(c_.host, place.bucket, place.index),
                  directory_word(directory_tag(hash), 0));
  const Set* set = c_.layout.set_of_bucket(place.bucket);
  BOWHEAD_ASSERT(set != nullptr);
  const uint64_t sequence = log_buckets(hash, *set, place.probe + 1);
  c_.access.flush(at, BH_LINE_BYTES);
  log_.publish(sequence);
}

template <class A>
bool Index<A>::insert(const bh_index_entry& entry) {
  const auto place = claim(hash_of(entry), c_.layout.slot_of(entry.block_offset));
  if (!place) return false;
  c_.access.coherence_fence();  // the tag, before the log
  fill(*place, entry);
  return true;
}

template <class A>
bool Index<A>::erase(const Found& found) {
  const uint64_t word = word_at(c_.host, found.bucket, found.index);
  const Hash128 hash = hash_of(found.entry);
  const uint64_t tag = directory_tag(hash);
  uint64_t expected = directory_word(tag, 0);
  if (!c_.access.cas(word, expected, directory_word(tag, c_.process + 1))) return false;
  Line line;
  if (!c_.read_sealed(entry_at(c_.host, found.bucket, found.index), line) ||
      line != to_line(found.entry)) {
    c_.access.store(word, directory_word(tag, 0));
    return false;
  }
  clear_at(found.bucket, found.index);
  if (const Set* set = c_.layout.set_of_bucket(found.bucket); set != nullptr)
    add_overflow(hash, *set, found.probe, -1);
  return true;
}

/// Clears the entry first, then its word (X2). The word is claimed by this process, or by a dead
/// one that this process scavenges.
template <class A>
void Index<A>::clear_at(uint64_t bucket, uint32_t index) {
  const uint64_t at = entry_at(c_.host, bucket, index);
  // The seal first: so a line whose clearing was begun is not taken for a damaged entry
  // (rebuild()).
  c_.access.store(at + offsetof(bh_index_entry, seal), 0);
  c_.access.store_line(at, Line{});
  c_.access.publish(at, BH_LINE_BYTES);
  const uint64_t word = word_at(c_.host, bucket, index);
  c_.access.store(word, 0);
  c_.access.publish(word, 8);
}

template <class A>
void Index<A>::add_overflow(const Hash128& hash, const Set& set, uint32_t probe_count,
                            int64_t delta) {
  Probes probe = probes(hash, set);
  for (uint32_t n = 0; n < probe_count; ++n, probe.next()) {
    const uint64_t overflow = word_at(c_.host, probe.bucket(), BH_INDEX_ENTRIES);
    c_.access.fetch_add(overflow, static_cast<uint64_t>(delta));
    c_.access.publish(overflow, 8);
  }
}

template <class A>
bool Index<A>::try_lock(const Hash128& hash, uint32_t* holder) {
  const uint64_t at = lock_at(hash);
  const StateWord word = c_.load_state(at);
  *holder = word.process;
  // A word that no process can have written is no lock.
  const bool taken = word.state == 1 && word.process < c_.layout.geometry().process_count;
  return !taken && c_.change(at, word, word.next(1, c_.process));
}

template <class A>
void Index<A>::unlock(const Hash128& hash) {
  const uint64_t at = lock_at(hash);
  const StateWord word = c_.load_state(at);
  if (word.state == 1 && word.process == c_.process)
    c_.store_state(at, word.next(0));
  else
    expect_displaced(c_);
}

template <class A>
template <class Visit>
void Index<A>::for_each_in(uint32_t host, uint64_t bucket, Visit visit) const {
  const uint64_t line_at = c_.layout.bucket(host, bucket);
  c_.acquire_from(host, line_at, sizeof(bh_index_bucket));
  const Line words = c_.access.load_line(line_at);
  for (uint32_t i = 0; i < BH_INDEX_ENTRIES; ++i) {
    Line line;
    if (words[i] != 0 && c_.read_sealed(entry_at(host, bucket, i), line))
      visit(Found{from_line<bh_index_entry>(line), host, bucket, i, 0});
  }
}

template <class A>
uint64_t Index<A>::scavenge_claims(const Processes& dead) {
  uint64_t found = 0;
  for (const Set& set : c_.layout.sets().list) {
    for (uint64_t b = set.first_bucket; b < set.bucket_end(); ++b) {
      const Line words = c_.access.load_line(c_.layout.bucket(c_.host, b));
      for (uint32_t i = 0; i < BH_INDEX_ENTRIES; ++i) {
        const uint64_t claimant = directory_claimant(words[i]);
        if (claimant == 0 || !dead.has(claimant - 1)) continue;
        ++found;
        Line line;
        if (c_.read_sealed(entry_at(c_.host, b, i), line)) {
          c_.access.publish(entry_at(c_.host, b, i), BH_LINE_BYTES);  // the dead one may not have
          c_.access.store(word_at(c_.host, b, i), directory_word(directory_tag_of(words[i]), 0));
          c_.access.publish(word_at(c_.host, b, i), 8);
          log_.publish(log_buckets(hash_of(from_line<bh_index_entry>(line)), set, BH_INDEX_PROBES));
        } else {
          clear_at(b, i);
        }
      }
    }
  }
  return found;
}

template <class A>
void Index<A>::release_locks(const Processes& dead) {
  for (uint64_t i = 0; i < c_.layout.geometry().lock_count; ++i) {
    const uint64_t at = c_.own(BH_PART_LOCKS, i);
    const StateWord word = c_.load_state(at);
    if (word.state == 1 && dead.has(word.process)) c_.change(at, word, word.next(0));
  }
}

template <class A>
template <class Expect, class Keep>
std::vector<uint64_t> Index<A>::rebuild(Expect expect, Keep keep) {
  std::vector<uint64_t> damaged;
  for_each_bucket([&](uint64_t b) {
    const uint64_t passed_by = word_at(c_.host, b, BH_INDEX_ENTRIES);
    if (c_.access.load(passed_by) != 0) c_.access.store(passed_by, 0);
  });
  for (const Set& set : c_.layout.sets().list) rebuild(set, expect, keep, damaged);
  for (const Set& set : c_.layout.sets().list)
    c_.access.publish(c_.layout.bucket(c_.host, set.first_bucket),
                      set.bucket_count * sizeof(bh_index_bucket));
  log_.restart();
  return damaged;
}

template <class A>
template <class Expect, class Keep>
void Index<A>::rebuild(const Set& set, Expect expect, Keep keep, std::vector<uint64_t>& damaged) {
  constexpr uint64_t kBucketsAhead = 8;
  for (uint64_t b = set.first_bucket; b < set.bucket_end(); ++b) {
    for (uint32_t i = 0; b + kBucketsAhead < set.bucket_end() && i < BH_INDEX_ENTRIES; ++i) {
      const uint64_t offset = c_.access.load(entry_at(c_.host, b + kBucketsAhead, i) +
                                             offsetof(bh_index_entry, block_offset));
      if (offset != 0) expect(offset);
    }
    for (uint32_t i = 0; i < BH_INDEX_ENTRIES; ++i) {
      const uint64_t word = word_at(c_.host, b, i);
      const uint64_t old = c_.access.load(word);
      Line line;
      const bool sealed = c_.read_sealed(entry_at(c_.host, b, i), line);
      if (!sealed && line[7] != 0 && (damaged.empty() || damaged.back() != b)) damaged.push_back(b);
      const auto entry = from_line<bh_index_entry>(line);
      const Hash128 hash = hash_of(entry);
      Probes probe = probes(hash, set);
      uint32_t n = 0;
      while (sealed && n < BH_INDEX_PROBES && probe.bucket() != b) ++n, probe.next();
      if (sealed && n < BH_INDEX_PROBES && keep(entry)) {
        c_.access.store(word, directory_word(directory_tag(hash), 0));
        add_overflow(hash, set, n, 1);
      } else if (old != 0 || line != Line{}) {
        clear_at(b, i);
      }
    }
  }
}

}  // namespace bowhead::core
