// SPDX-License-Identifier: Apache-2.0
// Allocator: extents of the own host cut into slabs of equal blocks, of whatever size comes.
//
// Truth: one allocator word per block slot (host.h, BH_PART_BLOCKS). A block belongs to whoever
// moved its word by CAS from FREE to RESERVED; every change raises the word's sequence, so a late
// CAS fails. Everything else (free counts, preferences, thread-local magazines) is a hint: losing
// it loses nothing.
//
// Invariants
//   A1 A slot's word is not NONE only while its extent is part of a slab (or is being cut or
//      joined) and the slot begins a block of it.
//   A2 An extent is joined (slab -> free) only after every block word went FREE -> NONE by CAS, so
//      no block of it can be taken meanwhile. Who holds a block of a slab therefore sees its cut
//      unchanged.
//   A3 A word that names a process is changed by that process or, after its death, by whoever
//      scavenges it; or by another machine that took this one for dead, which ends this life.
//
// Lock-free within the host. All methods may be called from any thread.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "pool/core/context.h"

namespace bowhead::core {

struct Block {
  uint64_t slot = 0;
  uint64_t offset = 0;       ///< of the payload
  uint64_t block_bytes = 0;  ///< room
};

/// On what terms a block is wanted.
struct Terms {
  bool may_cut = true;     ///< an extent may be cut for it
  bool in_custody = true;  ///< it may be where a stale writer may still store
};

/// How an extent is cut, as read from its state. `head` is the first extent of the slab. One
/// without blocks (block_bytes 0) stands for what is no cut, also for damage.
struct Cut {
  uint64_t head = 0;
  uint64_t block_bytes = 0;
  uint64_t block_count = 0;
  uint64_t extent_span = 1;
};

template <class A>
class Allocator {
 public:
  explicit Allocator(Context<A>& context)
      : c_(context), exposed_(c_.alone() ? 0 : c_.layout.geometry().extent_count) {}

  /// FREE -> RESERVED for this process. Empty if no block of that size is free and no extent can
  /// (or, for who empties extents, may) be cut; the caller makes room and tries again.
  std::optional<Block> reserve(uint64_t block_bytes, Terms terms = {}) {
    Magazine& magazine = magazine_of(block_bytes);
    do {
      while (magazine.count > 0) {
        const uint64_t slot = magazine.slots[--magazine.count];
        if (!suits(c_.layout.extent_of_slot(slot), terms)) continue;
        if (auto block = try_reserve(slot, block_bytes)) return block;
      }
    } while (refill(magazine, terms));
    return std::nullopt;
  }

  /// The same from the slabs there are, in the smallest block that is larger than `block_bytes` and
  /// no larger than `most_bytes`: for pools of very many sizes, where most have no extent of their
  /// own.
  std::optional<Block> reserve_larger(uint64_t block_bytes, uint64_t most_bytes);

  /// RESERVED (ours) -> FREE. The header must not show a committed stamp (I2). A plain store:
  /// nobody else may change a word that names a live process (A3).
  void release(const Block& block) {
    if (!leave(block.slot, BH_BLOCK_RESERVED, BH_BLOCK_FREE)) return;
    add_free(c_.layout.extent_of_slot(block.slot), 1);
    Magazine& magazine = magazine_of(block.block_bytes);
    if (magazine.count < magazine.slots.size()) magazine.slots[magazine.count++] = block.slot;
  }

  /// RESERVED (ours) -> RESERVED (ours), from exactly the word that `seen` was: of many who saw it
  /// one goes on with the block. A CAS, for these are threads of one process.
  bool hold_on(uint64_t slot, StateWord seen) {
    return c_.change(c_.block_word(slot), seen, seen.next(BH_BLOCK_RESERVED, c_.process));
  }

  /// RESERVED (ours) -> COMMITTED. False if this life is over, and the word another one's.
  bool commit(const Block& block) {
    return leave(block.slot, BH_BLOCK_RESERVED, BH_BLOCK_COMMITTED);
  }

  /// COMMITTED -> RETIRING (ours). False if it is not committed (any more).
  bool begin_retire(uint64_t slot) {
    const uint64_t at = c_.block_word(slot);
    const StateWord word = c_.load_state(at);
    return word.state == BH_BLOCK_COMMITTED &&
           c_.change(at, word, word.next(BH_BLOCK_RETIRING, c_.process));
  }
  /// RETIRING (ours) -> RETIRED, once the retired header is published.
  void finish_retire(uint64_t slot) { leave(slot, BH_BLOCK_RETIRING, BH_BLOCK_RETIRED); }

  /// RETIRED -> FREE, after the hazards were looked at. `seen` is the word from before that look:
  /// false if it changed.
  bool free_retired(uint64_t slot, StateWord seen) {
    BOWHEAD_ASSERT(seen.state == BH_BLOCK_RETIRED);
    if (!c_.change(c_.block_word(slot), seen, seen.next(BH_BLOCK_FREE))) return false;
    add_free(c_.layout.extent_of_slot(slot), 1);
    return true;
  }

  StateWord word(uint64_t slot) const { return c_.load_state(c_.block_word(slot)); }

  /// The cut that covers an extent; empty if it is no slab, or one that is being cut or joined.
  std::optional<Cut> cut_of(uint64_t extent) const {
    const uint32_t kind = c_.load_state(state(extent)).state;
    if (kind != BH_EXTENT_SLAB && kind != BH_EXTENT_PART) return std::nullopt;
    const Cut cut = held_cut(extent);
    if (cut.block_bytes == 0 || c_.load_state(state(cut.head)).state != BH_EXTENT_SLAB)
      return std::nullopt;
    return cut;
  }
  /// The same for somebody who holds a block of it, so that it cannot change (A2).
  Cut held_cut(uint64_t extent) const {
    const Cut cut = read_cut(field(extent, offsetof(bh_extent_state, head)));
    return extent - cut.head < cut.extent_span ? cut : Cut{};
  }

  /// The block of a slot whose word is not NONE and cannot become so (the caller holds it, or only
  /// looks). Offset 0 if the cut has no blocks.
  Block block_of(uint64_t slot, const Cut& cut) const {
    if (cut.block_bytes == 0) return {slot, 0, 0};
    const uint64_t relative = slot - c_.layout.first_slot(cut.head);
    const uint64_t index =
        (relative * c_.layout.geometry().min_block_bytes + cut.block_bytes - 1) / cut.block_bytes;
    return {slot, c_.layout.extent_offset(cut.head) + index * cut.block_bytes, cut.block_bytes};
  }
  uint64_t slot_of(const Cut& cut, uint64_t index) const {
    return c_.layout.first_slot(cut.head) +
           index * cut.block_bytes / c_.layout.geometry().min_block_bytes;
  }

  /// Calls visit(cut) for every slab of the own host.
  template <class Visit>
  void for_each_slab(Visit visit) const {
    const uint64_t extents = c_.layout.geometry().extent_count;
    for (uint64_t e = 0; e < extents; ++e) {
      if (c_.load_state(state(e)).state != BH_EXTENT_SLAB) continue;
      if (const Cut cut = read_cut(e); cut.block_bytes != 0) visit(cut);
    }
  }

  uint64_t free_blocks_hint(uint64_t head) const {
    const auto free = static_cast<int64_t>(field(head, offsetof(bh_extent_state, free_blocks)));
    return free > 0 ? static_cast<uint64_t>(free) : 0;
  }

  /// The extent is this host's: by its own word, in this life of the host.
  bool holds(uint64_t extent) const {
    const auto word = own_word(extent);
    return word.state == BH_OWN_OWN && (c_.alone() || word.incarnation == c_.incarnation);
  }
  /// And its lines may be written: it is not in READ_ONLY custody.
  bool writable(uint64_t extent) const {
    return holds(extent) && own_word(extent).custody != BH_CUSTODY_READ_ONLY;
  }
  /// A stale writer may still store into it: verified copies only.
  bool copy_only(uint64_t extent) const { return own_word(extent).custody != BH_CUSTODY_FULL; }
  OwnWord own_word(uint64_t extent) const {
    return OwnWord::unpack(c_.access.load(c_.own(BH_PART_OWN, extent)));
  }

  /// Before this process stores into an extent that the host holds, and after the host gave extents
  /// away: the mapping lets nobody else's be written (rule R1). An extent that comes back does so
  /// in a later epoch, so that whoever covers it late and whoever exposes it meet at the lock.
  void expose(uint64_t first, uint64_t span) {
    if (c_.alone()) return;
    for (uint64_t e = first; e < first + span; ++e) {
      const uint64_t epoch = own_word(e).epoch;
      if (exposed_[e].load(std::memory_order_acquire) == epoch) continue;
      const std::lock_guard guard(exposed_mutex_);
      set_writable(e, true);
      exposed_[e].store(epoch, std::memory_order_release);
    }
  }
  void cover() {
    for (uint64_t e = 0; e < exposed_.size(); ++e) {
      const uint64_t epoch = exposed_[e].load(std::memory_order_acquire);
      if (epoch == 0 || holds(e)) continue;
      const std::lock_guard guard(exposed_mutex_);
      if (exposed_[e].load(std::memory_order_relaxed) != epoch) continue;
      exposed_[e].store(0, std::memory_order_release);
      set_writable(e, false);
    }
  }

  bool extent_free(uint64_t extent) const {
    return writable(extent) && !closed(extent) &&
           c_.load_state(state(extent)).state == BH_EXTENT_FREE;
  }

  bool holds(uint64_t first, uint64_t span) const {
    for (uint64_t e = first; e < first + span; ++e) {
      if (!holds(e)) return false;
    }
    return true;
  }

  /// Slab -> free extents, if every block is free. False if one is not.
  bool join(uint64_t head) {
    const auto cut = begin_join(head);
    return cut && end_join(*cut);
  }
  /// Closes a slab: nothing is reserved in it until end_join(). The cut stands still. Empty if it
  /// is no slab or somebody else closes it.
  std::optional<Cut> begin_join(uint64_t head);
  /// Joins a closed slab, or opens it again if a block of it is not free (false).
  bool end_join(const Cut& cut);

  /// Finishes or undoes what a dead process was doing to extents.
  uint64_t scavenge(uint32_t dead);

  /// Sets the free counts to what the words say (after a death; the counts are hints).
  void recount();

  /// Rebuild, nobody else running: forgets all; cuts one slab as it was.
  void reset();
  void restore_cut(const Cut& cut);
  /// Slabs with no block in use, but for those of a size -> free extents.
  bool join_empty_slabs(uint64_t but_block_bytes = 0);

  /// Takes a free extent out of use, to give it away, and puts it back.
  bool claim_extent(uint64_t extent) { return extent_free(extent) && claim_at(extent, 1); }
  void unclaim_extent(uint64_t extent) {
    c_.store_state(state(extent), c_.load_state(state(extent)).next(BH_EXTENT_FREE));
  }
  /// An extent that comes from another host is free and not cut. False if it may not be used yet:
  /// a process that took it for free when this host gave it away holds its word (A3), and would go
  /// on to cut it if the extent came back under it.
  bool forget(uint64_t extent);
  /// An adopted extent: restore_cut() gives none of its blocks free until open().
  /// After forget().
  void close(uint64_t extent) { set_field(extent, offsetof(bh_extent_state, closed), 1); }
  bool closed(uint64_t extent) const {
    return field(extent, offsetof(bh_extent_state, closed)) != 0;
  }
  void open(uint64_t first, uint64_t span) {
    for (uint64_t e = first; e < first + span; ++e)
      set_field(e, offsetof(bh_extent_state, closed), 0);
    const auto cut = cut_of(first);
    if (!cut) return;
    restore_words(*cut);
    set_field(first, offsetof(bh_extent_state, free_blocks), count_free(*cut));
  }

  /// Publishes how an extent is cut, for the next rebuild.
  void write_descriptor(uint64_t extent, const Cut& cut);
  void restore_committed(uint64_t slot) {
    c_.store_state(c_.block_word(slot), word(slot).next(BH_BLOCK_COMMITTED));
  }

  /// The spans to try for blocks of a size, best first.
  std::array<uint64_t, 2> spans_for(uint64_t block_bytes) const;

 private:
  /// Slots that looked free a moment ago, for one handle, size and thread. Only hints.
  struct Magazine {
    uint64_t instance = 0;
    uint64_t block_bytes = 0;
    uint64_t head = 0;   ///< slab looked at last
    uint64_t index = 0;  ///< block of it to look at next
    uint32_t count = 0;
    std::array<uint64_t, 64> slots{};
  };

  /// What a walk over the extents found for one size.
  struct Candidates {
    std::optional<uint64_t> shared;   ///< slab that no process prefers
    std::optional<uint64_t> foreign;  ///< slab that another process prefers
  };

  Magazine& magazine_of(uint64_t block_bytes) {
    static thread_local std::array<Magazine, 32> magazines;
    const uint64_t hash = (c_.instance * 31 + block_bytes / BH_PAYLOAD_ALIGN) * 0x9E3779B97F4A7C15u;
    Magazine& magazine = magazines[hash >> 59];
    if (magazine.instance != c_.instance || magazine.block_bytes != block_bytes)
      magazine = Magazine{.instance = c_.instance, .block_bytes = block_bytes};
    return magazine;
  }

  uint64_t state(uint64_t extent) const { return c_.layout.extent_state(c_.host, extent); }
  uint64_t field(uint64_t extent, size_t at) const { return c_.access.load(state(extent) + at); }
  void set_field(uint64_t extent, size_t at, uint64_t value) {
    c_.access.store(state(extent) + at, value);
  }

  /// Every slot and offset made from what it returns lies inside the pool, whatever the bytes say.
  Cut read_cut(uint64_t head) const {
    const auto& g = c_.layout.geometry();
    if (head >= g.extent_count) return {};
    const uint64_t counts = field(head, offsetof(bh_extent_state, block_count));
    const Cut cut{head, field(head, offsetof(bh_extent_state, block_bytes)), counts & 0xFFFFFFFFu,
                  counts >> 32};
    if (cut.extent_span < 1 || cut.extent_span > g.extent_count - head) return {head, 0, 0, 1};
    const uint64_t room = cut.extent_span * g.extent_bytes;
    if (cut.block_bytes < g.min_block_bytes || cut.block_bytes % BH_PAYLOAD_ALIGN != 0 ||
        static_cast<unsigned __int128>(cut.block_count) * cut.block_bytes > room)
      return {head, 0, 0, cut.extent_span};
    return cut;
  }
  /// The extent is part of this slab, by its own state too.
  bool covers(const Cut& cut, uint64_t extent) const {
    const auto own = cut_of(extent);
    return own && own->head == cut.head && own->block_bytes == cut.block_bytes;
  }

  uint64_t count_free(const Cut& cut, bool all = false) const;

  /// A plain store, as nobody else changes a word that names a live process (A3).
  bool leave(uint64_t slot, uint32_t from, uint32_t to) {
    const uint64_t at = c_.block_word(slot);
    const StateWord word = c_.load_state(at);
    if (word.state != from || word.process != c_.process) {
      expect_displaced(c_);
      return false;
    }
    c_.store_state(at, word.next(to));
    return true;
  }

  void add_free(uint64_t extent, int64_t delta) {
    const uint64_t head = field(extent, offsetof(bh_extent_state, head));
    if (head >= c_.layout.geometry().extent_count) return;
    c_.access.fetch_add(state(head) + offsetof(bh_extent_state, free_blocks),
                        static_cast<uint64_t>(delta));
  }

  std::optional<Block> try_reserve(uint64_t slot, uint64_t block_bytes) {
    const uint64_t at = c_.block_word(slot);
    const StateWord word = c_.load_state(at);
    if (word.state != BH_BLOCK_FREE ||
        !c_.change(at, word, word.next(BH_BLOCK_RESERVED, c_.process)))
      return std::nullopt;
    // The hint may be older than the last cut. From here on the cut cannot change (A2).
    const uint64_t extent = c_.layout.extent_of_slot(slot);
    const auto cut = cut_of(extent);
    if (!cut || cut->block_bytes != block_bytes) {
      leave(slot, BH_BLOCK_RESERVED, BH_BLOCK_FREE);
      return std::nullopt;
    }
    add_free(extent, -1);
    expose(cut->head, cut->extent_span);
    return block_of(slot, *cut);
  }

  bool suits(uint64_t extent, Terms terms) const { return terms.in_custody || !copy_only(extent); }

  bool refill(Magazine& magazine, Terms terms);
  bool refill_from_slabs(Magazine& magazine, Terms terms, Candidates& candidates);
  bool refill_by_truth(Magazine& magazine, Terms terms);
  bool collect(Magazine& magazine, uint64_t head);
  std::optional<uint64_t> cut(uint64_t block_bytes, Terms terms);
  std::optional<uint64_t> claim_run(uint64_t span, Terms terms);
  bool claim_at(uint64_t first, uint64_t span);
  void write_cut(const Cut& cut);
  bool clear_words(uint64_t extent);
  void restore_words(const Cut& cut);
  void undo_cutting(uint64_t extent);
  void finish_joining(const Cut& cut);
  void undo_joining(const Cut& cut);

  void set_writable(uint64_t extent, bool writable) {
    const auto& g = c_.layout.geometry();
    c_.access.set_writable(c_.layout.descriptor(extent), g.table_bytes, writable);
    c_.access.set_writable(c_.layout.extent_offset(extent), g.extent_bytes, writable);
  }

  Context<A>& c_;
  typename A::Mutex exposed_mutex_;
  /// Epoch for which the mapping lets this process store into an extent; 0: it does not.
  std::vector<std::atomic<uint64_t>> exposed_;
};

// ---- finding blocks ----

template <class A>
bool Allocator<A>::refill(Magazine& magazine, Terms terms) {
  Candidates candidates;
  if (refill_from_slabs(magazine, terms, candidates)) return true;
  if (candidates.shared) {
    uint64_t nobody = 0;
    c_.access.cas(state(*candidates.shared) + offsetof(bh_extent_state, preferred), nobody,
                  c_.process + 1);
    if (collect(magazine, *candidates.shared)) return true;
  }
  // A fresh extent before another process's slab: sharing one makes both slower.
  if (terms.may_cut) {
    if (auto head = cut(magazine.block_bytes, terms)) return collect(magazine, *head);
  }
  if (candidates.foreign && collect(magazine, *candidates.foreign)) return true;
  if (terms.may_cut && join_empty_slabs(magazine.block_bytes)) {
    if (auto head = cut(magazine.block_bytes, terms)) return collect(magazine, *head);
  }
  return refill_by_truth(magazine, terms);
}

template <class A>
bool Allocator<A>::refill_from_slabs(Magazine& magazine, Terms terms, Candidates& candidates) {
  const uint64_t extents = c_.layout.geometry().extent_count;
  for (uint64_t i = 0; i < extents; ++i) {
    uint64_t e = magazine.head + i;
    if (e >= extents) e -= extents;
    if (field(e, offsetof(bh_extent_state, block_bytes)) != magazine.block_bytes ||
        c_.load_state(state(e)).state != BH_EXTENT_SLAB || free_blocks_hint(e) == 0 ||
        !suits(e, terms))
      continue;
    const uint64_t preferred = field(e, offsetof(bh_extent_state, preferred));
    if (preferred == c_.process + 1) {
      if (collect(magazine, e)) return true;
    } else if (preferred == 0) {
      if (!candidates.shared) candidates.shared = e;
    } else if (!candidates.foreign) {
      candidates.foreign = e;
    }
  }
  return false;
}

/// The free counts may have lost track when somebody died: look at every word before giving up.
template <class A>
bool Allocator<A>::refill_by_truth(Magazine& magazine, Terms terms) {
  bool found = false;
  for_each_slab([&](const Cut& cut) {
    if (!found && cut.block_bytes == magazine.block_bytes && suits(cut.head, terms))
      found = collect(magazine, cut.head);
  });
  return found;
}

template <class A>
std::optional<Block> Allocator<A>::reserve_larger(uint64_t block_bytes, uint64_t most_bytes) {
  std::vector<std::pair<uint64_t, uint64_t>> slabs;  // size, head
  for_each_slab([&](const Cut& cut) {
    if (cut.block_bytes > block_bytes && cut.block_bytes <= most_bytes &&
        free_blocks_hint(cut.head) > 0)
      slabs.emplace_back(cut.block_bytes, cut.head);
  });
  std::sort(slabs.begin(), slabs.end());
  for (const auto& [size, head] : slabs) {
    Magazine& magazine = magazine_of(size);
    if (!collect(magazine, head)) continue;
    while (magazine.count > 0) {
      if (auto block = try_reserve(magazine.slots[--magazine.count], size)) return block;
    }
  }
  return std::nullopt;
}

template <class A>
bool Allocator<A>::join_empty_slabs(uint64_t but_block_bytes) {
  bool joined = false;
  for_each_slab([&](const Cut& cut) {
    if (cut.block_bytes != but_block_bytes && count_free(cut, /*all=*/true) == cut.block_count)
      joined |= join(cut.head);
  });
  return joined;
}

template <class A>
bool Allocator<A>::collect(Magazine& magazine, uint64_t head) {
  const Cut cut = read_cut(head);
  if (cut.block_bytes != magazine.block_bytes) return false;
  if (magazine.head != head) {
    magazine.head = head;
    magazine.index = 0;
  }
  magazine.count = 0;
  uint64_t index = magazine.index < cut.block_count ? magazine.index : 0;
  uint64_t extent = UINT64_MAX;  // looked at last
  bool covered = false;
  for (uint64_t seen = 0; seen < cut.block_count && magazine.count < magazine.slots.size();
       ++seen) {
    const uint64_t slot = slot_of(cut, index);
    if (word(slot).state == BH_BLOCK_FREE) {
      // Where the two disagree, try_reserve() would give every block back, and again.
      if (c_.layout.extent_of_slot(slot) != extent) {
        extent = c_.layout.extent_of_slot(slot);
        covered = covers(cut, extent);
      }
      if (covered) magazine.slots[magazine.count++] = slot;
    }
    if (++index == cut.block_count) index = 0;
  }
  magazine.index = index;
  // Taken from the end: ascending addresses come out.
  std::reverse(magazine.slots.begin(), magazine.slots.begin() + magazine.count);
  return magazine.count > 0;
}

// ---- cutting and joining extents ----

template <class A>
std::array<uint64_t, 2> Allocator<A>::spans_for(uint64_t block_bytes) const {
  const uint64_t extent = c_.layout.geometry().extent_bytes;
  const uint64_t least = (block_bytes + extent - 1) / extent;
  // A size that few blocks have so far gets few extents: what it has already, and one.
  uint64_t cut_already = 0;
  for_each_slab([&](const Cut& cut) {
    if (cut.block_bytes == block_bytes) cut_already += cut.extent_span;
  });
  const uint64_t most = std::max(
      least, std::min({uint64_t{16}, c_.layout.geometry().extent_count / 16, cut_already + 1}));
  uint64_t best = least;
  for (uint64_t span = least; span <= most; ++span) {
    const uint64_t waste = span * extent % block_bytes;
    if (waste * best < best * extent % block_bytes * span) best = span;
    if (waste * 64 <= span * extent) break;
  }
  return {best, least};
}

template <class A>
std::optional<uint64_t> Allocator<A>::cut(uint64_t block_bytes, Terms terms) {
  for (const uint64_t span : spans_for(block_bytes)) {
    const auto head = claim_run(span, terms);
    if (!head) continue;
    const Cut cut{*head, block_bytes, span * c_.layout.geometry().extent_bytes / block_bytes, span};
    write_cut(cut);
    for (uint64_t e = cut.head + 1; e < cut.head + span; ++e)
      c_.store_state(state(e), c_.load_state(state(e)).next(BH_EXTENT_PART));
    c_.store_state(state(cut.head), c_.load_state(state(cut.head)).next(BH_EXTENT_SLAB));
    return head;
  }
  return std::nullopt;
}

/// Single extents from the low end, runs from the high end, so that runs find room. No run has an
/// extent that a late host may write to: its blocks would be as good as their first extent.
template <class A>
std::optional<uint64_t> Allocator<A>::claim_run(uint64_t span, Terms terms) {
  const uint64_t extents = c_.layout.geometry().extent_count;
  if (span > extents) return std::nullopt;
  uint64_t run = 0;
  for (uint64_t i = 0; i < extents; ++i) {
    const uint64_t e = span == 1 ? i : extents - 1 - i;
    const bool fits = span == 1 ? suits(e, terms) : !copy_only(e);
    run = extent_free(e) && fits ? run + 1 : 0;
    if (run < span) continue;
    if (claim_at(e, span)) return e;
    run = 0;
  }
  return std::nullopt;
}

template <class A>
bool Allocator<A>::claim_at(uint64_t first, uint64_t span) {
  for (uint64_t e = first; e < first + span; ++e) {
    const StateWord word = c_.load_state(state(e));
    const bool claimed = word.state == BH_EXTENT_FREE &&
                         c_.change(state(e), word, word.next(BH_EXTENT_CUTTING, c_.process));
    // Nobody gives it away from here on; it may have been just before.
    if (claimed && writable(e) && !closed(e)) continue;
    for (uint64_t back = first; back < e + (claimed ? 1 : 0); ++back)
      c_.store_state(state(back), c_.load_state(state(back)).next(BH_EXTENT_FREE));
    return false;
  }
  return true;
}

/// Describes the cut and frees its blocks; the extents are still CUTTING (ours).
template <class A>
void Allocator<A>::write_cut(const Cut& cut) {
  for (uint64_t e = cut.head; e < cut.head + cut.extent_span; ++e) {
    set_field(e, offsetof(bh_extent_state, head), cut.head);
    set_field(e, offsetof(bh_extent_state, block_bytes), e == cut.head ? cut.block_bytes : 0);
    set_field(e, offsetof(bh_extent_state, block_count), cut.block_count | cut.extent_span << 32);
    set_field(e, offsetof(bh_extent_state, free_blocks), e == cut.head ? cut.block_count : 0);
    set_field(e, offsetof(bh_extent_state, preferred), c_.process + 1);
    write_descriptor(e, e == cut.head ? cut : Cut{e, 0, 0, 0});
  }
  restore_words(cut);
}

template <class A>
bool Allocator<A>::forget(uint64_t extent) {
  // Given away, or never this host's, it is FREE, but for who claims it by an old look at its owner
  // and is about to see that (claim_at). Who does so after this load sees the new owner.
  const StateWord word = c_.load_state(state(extent));
  if (word.state == BH_EXTENT_CUTTING || word.state == BH_EXTENT_JOINING) return false;
  set_field(extent, offsetof(bh_extent_state, block_bytes), 0);
  set_field(extent, offsetof(bh_extent_state, head), extent);
  set_field(extent, offsetof(bh_extent_state, preferred), 0);
  // By compare-and-swap: it may be claimed this instant.
  return word.state == BH_EXTENT_FREE || c_.change(state(extent), word, word.next(BH_EXTENT_FREE));
}

template <class A>
void Allocator<A>::restore_words(const Cut& cut) {
  for (uint64_t e = cut.head; e < cut.head + cut.extent_span; ++e) {
    if (closed(e)) return;
  }
  for (uint64_t i = 0; i < cut.block_count; ++i) {
    const uint64_t slot = slot_of(cut, i);
    const StateWord old = word(slot);
    if (old.state == BH_BLOCK_NONE) c_.store_state(c_.block_word(slot), old.next(BH_BLOCK_FREE));
  }
}

template <class A>
void Allocator<A>::write_descriptor(uint64_t extent, const Cut& cut) {
  expose(extent, 1);
  const uint64_t at = c_.layout.descriptor(extent);
  bh_extent_descriptor old = from_line<bh_extent_descriptor>(c_.access.load_line(at));
  bh_extent_descriptor descriptor{};
  descriptor.cut = old.cut + 1;
  descriptor.block_bytes = cut.block_bytes;
  descriptor.block_count = static_cast<uint32_t>(cut.block_count);
  descriptor.extent_span = static_cast<uint32_t>(cut.extent_span);
  descriptor.owner = c_.host | c_.incarnation << 16;
  c_.write_sealed(at, to_line(descriptor));
}

template <class A>
std::optional<Cut> Allocator<A>::begin_join(uint64_t head) {
  const StateWord word = c_.load_state(state(head));
  if (word.state != BH_EXTENT_SLAB ||
      !c_.change(state(head), word, word.next(BH_EXTENT_JOINING, c_.process)))
    return std::nullopt;
  const Cut cut = read_cut(head);
  if (cut.block_bytes != 0) return cut;
  undo_joining(cut);
  return std::nullopt;
}

template <class A>
bool Allocator<A>::end_join(const Cut& cut) {
  for (uint64_t i = 0; i < cut.block_count; ++i) {
    const uint64_t at = c_.block_word(slot_of(cut, i));
    const StateWord word = c_.load_state(at);
    if (word.state != BH_BLOCK_FREE || !c_.change(at, word, word.next(BH_BLOCK_NONE))) {
      undo_joining(cut);
      return false;
    }
  }
  finish_joining(cut);
  return true;
}

/// All words are NONE: from block_bytes = 0 on, the join can only be finished. The head goes last,
/// since it says for whom the parts wait.
template <class A>
void Allocator<A>::finish_joining(const Cut& cut) {
  set_field(cut.head, offsetof(bh_extent_state, block_bytes), 0);
  write_descriptor(cut.head, Cut{cut.head, 0, 0, 0});
  for (uint64_t e = cut.head + 1; e < cut.head + cut.extent_span; ++e) {
    const StateWord word = c_.load_state(state(e));
    if (word.state == BH_EXTENT_PART && field(e, offsetof(bh_extent_state, head)) == cut.head)
      c_.store_state(state(e), word.next(BH_EXTENT_FREE));
  }
  c_.store_state(state(cut.head), c_.load_state(state(cut.head)).next(BH_EXTENT_FREE));
}

template <class A>
void Allocator<A>::undo_joining(const Cut& cut) {
  restore_words(cut);
  c_.store_state(state(cut.head), c_.load_state(state(cut.head)).next(BH_EXTENT_SLAB));
}

// ---- after deaths ----

/// All words of an extent that is no slab -> NONE. False if somebody does not give back what he
/// holds.
template <class A>
bool Allocator<A>::clear_words(uint64_t extent) {
  constexpr uint32_t kRounds = 2000;  // most of them sleep 0.2 ms
  const uint64_t first = c_.layout.first_slot(extent);
  uint32_t round = 0;
  for (uint64_t slot = first; slot < first + c_.layout.slots_per_extent();) {
    const uint64_t at = c_.block_word(slot);
    const StateWord word = c_.load_state(at);
    // Somebody with an old hint may hold it for an instant (try_reserve gives it back). No other
    // state can be rightful here (A1).
    const bool held = word.state == BH_BLOCK_RESERVED && c_.alive(word.process);
    if (word.state == BH_BLOCK_NONE || (!held && c_.change(at, word, word.next(BH_BLOCK_NONE)))) {
      ++slot;
      continue;
    }
    if (++round == kRounds) return false;
    c_.access.relax(round);
  }
  return true;
}

/// CUTTING of a dead process -> FREE, with parts that were already marked. Stays as it is, until
/// the next rebuild, if a word of it is held.
template <class A>
void Allocator<A>::undo_cutting(uint64_t extent) {
  const Cut cut = read_cut(extent);
  const uint64_t extents = c_.layout.geometry().extent_count;
  if (field(extent, offsetof(bh_extent_state, head)) == extent) {
    for (uint64_t e = extent + 1; e < std::min(extent + cut.extent_span, extents); ++e) {
      const StateWord word = c_.load_state(state(e));
      if (word.state != BH_EXTENT_PART || field(e, offsetof(bh_extent_state, head)) != extent)
        continue;
      if (!clear_words(e)) return;
      c_.store_state(state(e), word.next(BH_EXTENT_FREE));
    }
  }
  if (!clear_words(extent)) return;
  set_field(extent, offsetof(bh_extent_state, block_bytes), 0);
  // It may have been given away in that moment.
  if (writable(extent)) write_descriptor(extent, Cut{extent, 0, 0, 0});
  c_.store_state(state(extent), c_.load_state(state(extent)).next(BH_EXTENT_FREE));
}

template <class A>
uint64_t Allocator<A>::scavenge(uint32_t dead) {
  uint64_t found = 0;
  for (uint64_t e = 0; e < c_.layout.geometry().extent_count; ++e) {
    uint64_t preferring = dead + 1;
    c_.access.cas(state(e) + offsetof(bh_extent_state, preferred), preferring, 0);
    const StateWord word = c_.load_state(state(e));
    if (word.process != dead) continue;
    if (word.state == BH_EXTENT_CUTTING) {
      undo_cutting(e);
      ++found;
    } else if (word.state == BH_EXTENT_JOINING) {
      const Cut cut = read_cut(e);
      const bool joined = field(e, offsetof(bh_extent_state, block_bytes)) == 0;
      joined ? finish_joining(cut) : undo_joining(cut);
      ++found;
    }
  }
  return found;
}

/// By the words. `all`: no further than to the first that is not free.
template <class A>
uint64_t Allocator<A>::count_free(const Cut& cut, bool all) const {
  uint64_t free = 0;
  for (uint64_t i = 0; i < cut.block_count; ++i) {
    if (word(slot_of(cut, i)).state == BH_BLOCK_FREE)
      ++free;
    else if (all)
      break;
  }
  return free;
}

template <class A>
void Allocator<A>::recount() {
  for_each_slab([&](const Cut& cut) {
    const uint64_t at = state(cut.head) + offsetof(bh_extent_state, free_blocks);
    uint64_t before = c_.access.load(at);
    const uint64_t free = count_free(cut);
    // Only if nothing moved meanwhile; a count that somebody is changing is left alone.
    if (free != before) c_.access.cas(at, before, free);
  });
}

// ---- rebuild ----

template <class A>
void Allocator<A>::reset() {
  for (uint64_t slot = 0; slot < c_.layout.slot_count(); ++slot) {
    const StateWord old = word(slot);
    if (old.pack() != 0) c_.store_state(c_.block_word(slot), old.next(BH_BLOCK_NONE));
  }
  for (uint64_t e = 0; e < c_.layout.geometry().extent_count; ++e) {
    c_.store_state(state(e), c_.load_state(state(e)).next(BH_EXTENT_FREE));
    forget(e);
    set_field(e, offsetof(bh_extent_state, closed),
              holds(e) && own_word(e).custody == BH_CUSTODY_READ_ONLY);
  }
}

template <class A>
void Allocator<A>::restore_cut(const Cut& cut) {
  for (uint64_t e = cut.head; e < cut.head + cut.extent_span; ++e) {
    set_field(e, offsetof(bh_extent_state, head), cut.head);
    set_field(e, offsetof(bh_extent_state, block_bytes), e == cut.head ? cut.block_bytes : 0);
    set_field(e, offsetof(bh_extent_state, block_count), cut.block_count | cut.extent_span << 32);
    const bool counts = e == cut.head && !closed(e);
    set_field(e, offsetof(bh_extent_state, free_blocks), counts ? cut.block_count : 0);
    c_.store_state(state(e),
                   c_.load_state(state(e)).next(e == cut.head ? BH_EXTENT_SLAB : BH_EXTENT_PART));
  }
  restore_words(cut);
}

}  // namespace bowhead::core
