// SPDX-License-Identifier: Apache-2.0
// Allocator: blocks of the own host's slabs, from free to committed to retired and free again.
//
// Truth: one allocator word per block (host.h, BH_PART_BLOCKS), found by the run of its extent
// (runs.h). A block belongs to the process that moved its word by CAS from FREE to RESERVED; every
// change raises the word's sequence, so a late CAS fails. Everything else (free counts,
// preferences, thread-local magazines) is a hint: losing it does no harm.
//
// extents.h says how slabs come and go, and why a held block keeps its slab as it is (A1 to A3).
//
// Owns in this process: the magazines, thread by thread, and the count of blocks that it freed.
// Calls: Extents. Lock-free within the host. All methods may be called from any thread.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <optional>
#include <utility>
#include <vector>

#include "pool/core/extents.h"

namespace bowhead::core {

template <class A>
class Allocator {
 public:
  Allocator(Context<A>& context, Extents<A>& extents) : c_(context), extents_(extents) {}
  Allocator(const Allocator&) = delete;
  Allocator& operator=(const Allocator&) = delete;

  /// FREE -> RESERVED for this process. Empty if no block of that size is free and no extent can be
  /// carved (or may be, by `terms`); the caller makes room and tries again.
  std::optional<Block> reserve(uint64_t block_bytes, Terms terms = {}) {
    Magazine& magazine = magazine_of(block_bytes);
    do {
      while (magazine.count > 0) {
        const Hint hint = magazine.hints[--magazine.count];
        if (!extents_.suits(c_.layout.extent_of_slot(hint.slot), terms)) continue;
        if (auto block = try_reserve(hint, block_bytes)) return block;
      }
    } while (refill(magazine, terms));
    return std::nullopt;
  }

  /// The same from existing slabs, in the smallest block that is larger than `block_bytes` and no
  /// larger than `most_bytes`: for pools of so many sizes that most have no extent of their own.
  std::optional<Block> reserve_larger(uint64_t block_bytes, uint64_t most_bytes, Terms terms);

  /// RESERVED (ours) -> FREE. The header must not show a committed stamp (I2). A plain store:
  /// no other process may change a word that names a live process (A3).
  void release(const Block& block) {
    if (!leave(block, BH_BLOCK_FREE)) return;
    extents_.add_free(c_.layout.extent_of_slot(block.slot), 1);
    Magazine& magazine = magazine_of(block.block_bytes);
    if (magazine.count < magazine.hints.size())
      magazine.hints[magazine.count++] = {block.slot, block.word_at};
    else
      frees_.fetch_add(1, std::memory_order_relaxed);
  }

  /// RESERVED (ours) -> RESERVED (ours), from exactly the word `seen`, of this slot: of all threads
  /// that saw it, one goes on with the block. A CAS, since these are threads of one process.
  bool hold_on(uint64_t slot, const SeenWord& seen) {
    return c_.see(slot).at == seen.at &&
           c_.change(seen, seen.word.next(BH_BLOCK_RESERVED, c_.process));
  }

  /// RESERVED (ours) -> COMMITTED. False if this life is over and the word belongs to another one.
  bool commit(const Block& block) { return leave(block, BH_BLOCK_COMMITTED); }

  /// COMMITTED -> RETIRING (ours). False if no committed block begins there (any more).
  bool begin_retire(uint64_t slot) {
    const SeenWord seen = c_.see(slot);
    if (seen.word.state != BH_BLOCK_COMMITTED ||
        !c_.change(seen, seen.word.next(BH_BLOCK_RETIRING, c_.process)))
      return false;
    if (extents_.begins_at(slot, extents_.held_slab(c_.layout.extent_of_slot(slot)))) return true;
    cancel_retire(slot);
    return false;
  }
  /// RETIRING (ours) -> COMMITTED: it stays after all.
  void cancel_retire(uint64_t slot) {
    leave(c_.see_held(slot), BH_BLOCK_RETIRING, BH_BLOCK_COMMITTED);
  }
  /// RETIRING (ours) -> RETIRED, once the retired header is published.
  void finish_retire(uint64_t slot) {
    if (leave(c_.see_held(slot), BH_BLOCK_RETIRING, BH_BLOCK_RETIRED))
      extents_.add_retired(c_.layout.extent_of_slot(slot), 1);
  }

  /// RETIRED -> FREE, after the hazards were looked at. `seen` is the word from before that look:
  /// false if it changed.
  bool free_retired(uint64_t slot, const SeenWord& seen) {
    BOWHEAD_ASSERT(seen.word.state == BH_BLOCK_RETIRED);
    if (!c_.change(seen, seen.word.next(BH_BLOCK_FREE))) return false;
    extents_.add_retired(c_.layout.extent_of_slot(slot), -1);
    extents_.add_free(c_.layout.extent_of_slot(slot), 1);
    frees_.fetch_add(1, std::memory_order_relaxed);
    return true;
  }

  /// RETIRED -> RESERVED (ours), on the same terms as free_retired(), for a block that is not to be
  /// free yet.
  std::optional<Block> hold_retired(uint64_t slot, const SeenWord& seen) {
    BOWHEAD_ASSERT(seen.word.state == BH_BLOCK_RETIRED);
    if (!c_.change(seen, seen.word.next(BH_BLOCK_RESERVED, c_.process))) return std::nullopt;
    extents_.add_retired(c_.layout.extent_of_slot(slot), -1);
    Block block = extents_.block_of(slot, extents_.held_slab(c_.layout.extent_of_slot(slot)));
    block.word_at = seen.at;
    return block;
  }

  /// The word of the block that begins at the slot, or a smaller one before it has (begins_at()).
  StateWord word(uint64_t slot) const { return c_.see(slot).word; }
  /// Rebuild and adoption: FREE, or NONE while the extent is closed -> COMMITTED.
  void restore_committed(uint64_t slot) { set(slot, BH_BLOCK_COMMITTED); }
  /// Rebuild: FREE -> RETIRED.
  void restore_retired(uint64_t slot) { set(slot, BH_BLOCK_RETIRED); }

 private:
  /// A slot that looked free a moment ago, and its word.
  struct Hint {
    uint64_t slot, word_at;
  };
  /// Hints for one handle, size and thread.
  struct Magazine {
    uint64_t instance = 0;
    uint64_t block_bytes = 0;
    uint64_t head = 0;   ///< slab looked at last
    uint64_t index = 0;  ///< block of it to look at next
    uint64_t frees = 0;  ///< frees_ at the last walk
    uint64_t carve = 0;  ///< extents to carve before the next walk
    uint32_t count = 0;
    std::array<Hint, 64> hints{};
  };

  /// The slabs that a walk over the extents found for one size.
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

  /// A plain store, since no other process changes a word that names a live process (A3).
  bool leave(const SeenWord& seen, uint32_t from, uint32_t to) {
    if (seen.word.state != from || seen.word.process != c_.process) {
      expect_displaced(c_);
      return false;
    }
    c_.store_state(seen.at, seen.word.next(to));
    return true;
  }
  /// Of a block that this process has reserved.
  bool leave(const Block& block, uint32_t to) {
    BOWHEAD_ASSERT(block.word_at != 0);
    return leave({block.word_at, c_.load_state(block.word_at)}, BH_BLOCK_RESERVED, to);
  }
  void set(uint64_t slot, uint32_t to) {
    const SeenWord seen = c_.see(slot);
    if (seen.at != 0) c_.store_state(seen.at, seen.word.next(to));
  }

  std::optional<Block> try_reserve(Hint hint, uint64_t block_bytes) {
    const auto [slot, word_at] = hint;
    const StateWord word = c_.load_state(word_at);
    if (word.state != BH_BLOCK_FREE ||
        !c_.change(word_at, word, word.next(BH_BLOCK_RESERVED, c_.process)))
      return std::nullopt;
    // The hint may be older than the slab, and than the run. If the word is the slot's now, neither
    // changes from here on (A2, E3).
    const uint64_t extent = c_.layout.extent_of_slot(slot);
    const auto slab = extents_.slab_of(extent);
    Block block = slab && slab->block_bytes == block_bytes && c_.word_at(slot) == word_at
                      ? extents_.block_of(slot, *slab)
                      : Block{};
    block.word_at = word_at;
    if (block.block_bytes == 0 || c_.layout.slot_of(block.offset) != slot ||
        c_.access.payload_lost(block.offset, block.block_bytes)) {
      leave(block, BH_BLOCK_FREE);
      return std::nullopt;
    }
    extents_.add_free(extent, -1);
    extents_.map_writable(slab->head, slab->extent_span);
    return block;
  }

  bool has_space(uint64_t extent, uint64_t block_bytes, Terms terms) const {
    return extents_.begins_slab_of(extent, block_bytes) && extents_.free_blocks_hint(extent) > 0 &&
           extents_.suits(extent, terms);
  }
  bool refill(Magazine& magazine, Terms terms);
  bool refill_from_slabs(Magazine& magazine, Terms terms, Candidates& candidates);
  bool collect(Magazine& magazine, uint64_t head);

  Context<A>& c_;
  Extents<A>& extents_;
  std::atomic<uint64_t> frees_{0};  ///< blocks freed by this process that no magazine knows
};

/// Goes on in the slab of the last refill, if it can. Otherwise a walk looks at all extents; in a
/// pool of one host, after a walk that found nothing, and while this process frees no block,
/// refills carve 1/64 of the pool before the next walk, which would find only blocks that other
/// threads left or other processes freed. (With several hosts each has few extents: it looks at
/// all of them before it carves one.) frees_ is relaxed: an old value makes a walk early or late,
/// no more.
template <class A>
bool Allocator<A>::refill(Magazine& magazine, Terms terms) {
  if (has_space(magazine.head, magazine.block_bytes, terms) &&
      extents_.preferred(magazine.head) == c_.process + 1 && collect(magazine, magazine.head))
    return true;
  const uint64_t frees = frees_.load(std::memory_order_relaxed);
  if (terms.may_carve && magazine.carve > 0 && magazine.frees == frees) {
    --magazine.carve;
    const auto head = extents_.carve(magazine.block_bytes, terms);
    if (head && collect(magazine, *head)) return true;
  }
  magazine.carve = 0;
  Candidates candidates;
  if (refill_from_slabs(magazine, terms, candidates)) return true;
  if (candidates.shared) {
    extents_.prefer(*candidates.shared);
    if (collect(magazine, *candidates.shared)) return true;
  }
  // A fresh extent before another process's slab: sharing one makes both slower.
  if (terms.may_carve) {
    if (auto head = extents_.carve(magazine.block_bytes, terms)) {
      magazine.frees = frees;
      magazine.carve = c_.alone() ? c_.layout.extent_end() / 64 : 0;
      return collect(magazine, *head);
    }
  }
  if (candidates.foreign && collect(magazine, *candidates.foreign)) return true;
  if (terms.may_carve && extents_.coalesce_empty_slabs(magazine.block_bytes)) {
    if (auto head = extents_.carve(magazine.block_bytes, terms)) return collect(magazine, *head);
  }
  // A free count may be wrong after a death.
  if (!extents_.recount_some()) return false;
  candidates = {};
  if (refill_from_slabs(magazine, terms, candidates)) return true;
  if (candidates.shared && collect(magazine, *candidates.shared)) return true;
  return candidates.foreign && collect(magazine, *candidates.foreign);
}

template <class A>
bool Allocator<A>::refill_from_slabs(Magazine& magazine, Terms terms, Candidates& candidates) {
  const uint64_t extents = c_.layout.extent_end();
  for (uint64_t i = 0; i < extents; ++i) {
    uint64_t e = magazine.head + i;
    if (e >= extents) e -= extents;
    if (!has_space(e, magazine.block_bytes, terms)) continue;
    const uint64_t preferred = extents_.preferred(e);
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

template <class A>
std::optional<Block> Allocator<A>::reserve_larger(uint64_t block_bytes, uint64_t most_bytes,
                                                  Terms terms) {
  std::vector<std::pair<uint64_t, uint64_t>> slabs;  // size, head
  extents_.for_each_slab([&](const Slab& slab) {
    if (slab.block_bytes > block_bytes && slab.block_bytes <= most_bytes &&
        extents_.free_blocks_hint(slab.head) > 0 && extents_.suits(slab.head, terms))
      slabs.emplace_back(slab.block_bytes, slab.head);
  });
  std::sort(slabs.begin(), slabs.end());
  for (const auto& [size, head] : slabs) {
    Magazine& magazine = magazine_of(size);
    if (!collect(magazine, head)) continue;
    while (magazine.count > 0) {
      const Hint hint = magazine.hints[--magazine.count];
      if (!extents_.suits(c_.layout.extent_of_slot(hint.slot), terms)) continue;
      if (auto block = try_reserve(hint, size)) return block;
    }
  }
  return std::nullopt;
}

template <class A>
bool Allocator<A>::collect(Magazine& magazine, uint64_t head) {
  const Slab slab = extents_.read_slab(head);
  if (slab.block_bytes != magazine.block_bytes) return false;
  if (magazine.head != head) {
    magazine.head = head;
    magazine.index = 0;
  }
  magazine.count = 0;
  uint64_t index = magazine.index < slab.block_count ? magazine.index : 0;
  uint64_t extent = UINT64_MAX;  // looked at last
  bool is_part = false;
  RunWord run;
  for (uint64_t seen = 0; seen < slab.block_count && magazine.count < magazine.hints.size();
       ++seen) {
    const uint64_t slot = extents_.slot_of(slab, index);
    if (c_.layout.extent_of_slot(slot) != extent) {
      extent = c_.layout.extent_of_slot(slot);
      // If slab and extent disagree, try_reserve() would give every block back, again and again.
      is_part = extents_.is_part_of(slab, extent);
      run = c_.load_run(extent);  // may change: try_reserve() reads it again
    }
    // A block whose memory failed stays free: another process may find its memory well.
    const uint64_t offset = c_.layout.extent_offset(slab.head) + index * slab.block_bytes;
    const bool usable = is_part && !c_.access.payload_lost(offset, slab.block_bytes);
    const uint64_t word = usable ? c_.layout.word_index(run, slot) : Layout::kNoWord;
    if (word != Layout::kNoWord) {
      const uint64_t at = c_.own(BH_PART_BLOCKS, word);
      if (c_.load_state(at).state == BH_BLOCK_FREE) magazine.hints[magazine.count++] = {slot, at};
    }
    if (++index == slab.block_count) index = 0;
  }
  magazine.index = index;
  // Taken from the end: ascending addresses come out.
  std::reverse(magazine.hints.begin(), magazine.hints.begin() + magazine.count);
  return magazine.count > 0;
}

}  // namespace bowhead::core
