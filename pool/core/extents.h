// SPDX-License-Identifier: Apache-2.0
// Extents of the own host: which it holds and may write to, and how they are carved into slabs of
// blocks of any one size.
//
// Truth: the `own` word of an extent, which Holdings writes, names its owner. Its state says how it
// is used: FREE; CARVING or COALESCING by a process; SLAB, the first of a slab; PART, a further
// one. Extents moves the words of block slots from NONE to FREE when it carves, and from FREE to
// NONE when it coalesces; in between they are the allocator's. Free counts and preferences are
// hints for the allocator: losing one does no harm.
//
// Invariants
//   A1 The words of an extent's run (runs.h) differ from NONE only while the extent is part of a
//      slab, or is being carved or coalesced, and a block of it begins in the slots of the word.
//   A2 An extent is coalesced (slab -> free) only after every block word went FREE -> NONE by CAS,
//      so no block of it can be taken meanwhile. A slab therefore does not change while a process
//      holds a block of it.
//   A3 A word, of an extent or of a block, that names a process is changed by that process or,
//      after its death, by the process that scavenges it; or by another machine that took this one
//      for dead, which ends this life.
//
// Owns in this process: the note of which extents are mapped writable (rule R1). Lock-free within
// the host but for that. All methods may be called from any thread.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <mutex>
#include <optional>
#include <vector>

#include "pool/core/context.h"
#include "pool/core/runs.h"

namespace bowhead::core {

struct Block {
  uint64_t slot = 0;
  uint64_t offset = 0;       ///< of the payload
  uint64_t block_bytes = 0;  ///< size of the block
  uint64_t word_at = 0;      ///< its allocator word, if this process has reserved it
};

/// Conditions for the reservation of a block.
struct Terms {
  bool may_carve = true;   ///< an extent may be carved for it
  bool in_custody = true;  ///< a stale writer may still be able to store there
};
inline constexpr Terms kSafe{.in_custody = false};

/// The states of an allocator word in which it names a process.
inline bool names_process(uint32_t block_state) {
  return block_state == BH_BLOCK_RESERVED || block_state == BH_BLOCK_RETIRING ||
         block_state == BH_BLOCK_CLEANING;
}

/// A slab, as read from the state of its first extent, `head`. One without blocks (block_bytes 0)
/// stands for no slab, also for damage.
struct Slab {
  uint64_t head = 0;
  uint64_t block_bytes = 0;
  uint64_t block_count = 0;
  uint64_t extent_span = 1;
};

/// Where a search for a single free extent begins: a hint, it wraps around.
struct FreeFrom {
  std::atomic<uint64_t> at{0};

  void lower(uint64_t extent) {
    uint64_t from = at;
    while (extent < from && !at.compare_exchange_weak(from, extent)) {
    }
  }
};

template <class A>
class Extents {
 public:
  explicit Extents(Context<A>& context)
      : c_(context),
        runs_(context),
        writable_since_(c_.alone() ? 0 : c_.layout.geometry().extents_max) {}
  Extents(const Extents&) = delete;
  Extents& operator=(const Extents&) = delete;

  // ---- ownership ----
  OwnWord own_word(uint64_t extent) const {
    return OwnWord::unpack(c_.access.load(c_.own(BH_PART_OWN, extent)));
  }
  /// This host holds the extent, by its own word, in this life. A word may be left of a set that is
  /// gone.
  bool holds(uint64_t extent) const {
    const auto word = own_word(extent);
    return word.state == BH_OWN_OWN && (c_.alone() || word.incarnation == c_.incarnation) &&
           c_.layout.has_extent(extent);
  }
  /// The same, and its lines may be written: it is not in READ_ONLY custody.
  bool writable(uint64_t extent) const {
    return holds(extent) && own_word(extent).custody != BH_CUSTODY_READ_ONLY;
  }
  /// A stale writer may still store into it: verified copies only.
  bool copy_only(uint64_t extent) const { return own_word(extent).custody != BH_CUSTODY_FULL; }
  bool suits(uint64_t extent, Terms terms) const {
    return (terms.in_custody || !copy_only(extent)) && c_.layout.takes_blocks(extent);
  }

  /// map_writable() comes before a store into an extent of this host, map_read_only() after it gave
  /// extents away: no other host's extent stays writable (rule R1). An extent comes back in a later
  /// epoch, so a late map_read_only() and a map_writable() of it meet at the lock.
  void map_writable(uint64_t first, uint64_t span) {
    if (c_.alone()) return;
    for (uint64_t e = first; e < first + span; ++e) {
      const uint64_t epoch = own_word(e).epoch;
      if (writable_since_[e].load(std::memory_order_acquire) == epoch) continue;
      const std::lock_guard guard(mapping_mutex_);
      set_writable(e, true);
      writable_since_[e].store(epoch, std::memory_order_release);
    }
  }
  void map_read_only() {
    for (uint64_t e = 0; e < writable_since_.size(); ++e) {
      const uint64_t epoch = writable_since_[e].load(std::memory_order_acquire);
      if (epoch == 0 || holds(e)) continue;
      const std::lock_guard guard(mapping_mutex_);
      if (writable_since_[e].load(std::memory_order_relaxed) != epoch) continue;
      writable_since_[e].store(0, std::memory_order_release);
      set_writable(e, false);
    }
  }

  // ---- how they are carved ----
  bool is_free(uint64_t extent) const {
    return writable(extent) && !closed(extent) && c_.layout.takes_blocks(extent) &&
           c_.load_state(state(extent)).state == BH_EXTENT_FREE;
  }
  bool carved(uint64_t extent) const {
    return c_.load_state(state(extent)).state != BH_EXTENT_FREE;
  }
  /// The first extent of a slab of blocks of this size.
  bool begins_slab_of(uint64_t extent, uint64_t block_bytes) const {
    return field(extent, offsetof(bh_extent_state, block_bytes)) == block_bytes &&
           c_.load_state(state(extent)).state == BH_EXTENT_SLAB;
  }
  /// The slab that an extent is part of; empty if there is none, or it is being carved or
  /// coalesced.
  std::optional<Slab> slab_of(uint64_t extent) const {
    const uint32_t kind = c_.load_state(state(extent)).state;
    if (kind != BH_EXTENT_SLAB && kind != BH_EXTENT_PART) return std::nullopt;
    const Slab slab = held_slab(extent);
    if (slab.block_bytes == 0 || c_.load_state(state(slab.head)).state != BH_EXTENT_SLAB)
      return std::nullopt;
    return slab;
  }
  /// The same for a caller that holds a block of it, so that it cannot change (A2).
  Slab held_slab(uint64_t extent) const {
    const Slab slab = read_slab(field(extent, offsetof(bh_extent_state, head)));
    return extent - slab.head < slab.extent_span ? slab : Slab{};
  }
  /// The slab that the state of an extent describes, whether or not a slab begins there. Every slot
  /// and offset made from the result lies inside the pool, whatever the bytes say.
  Slab read_slab(uint64_t head) const;
  /// The extent is part of this slab, by its own state too.
  bool is_part_of(const Slab& slab, uint64_t extent) const {
    const auto own = slab_of(extent);
    return own && own->head == slab.head && own->block_bytes == slab.block_bytes;
  }
  /// Calls visit(slab) for every slab of the own host.
  template <class Visit>
  void for_each_slab(Visit visit) const {
    const uint64_t extents = c_.layout.extent_end();
    for (uint64_t e = 0; e < extents; ++e) {
      if (c_.load_state(state(e)).state != BH_EXTENT_SLAB) continue;
      if (const Slab slab = read_slab(e); slab.block_bytes != 0) visit(slab);
    }
  }
  /// The block of a slot whose word is not NONE and cannot become so (the caller holds it, or only
  /// looks). Offset 0 if the slab has no blocks.
  Block block_of(uint64_t slot, const Slab& slab) const {
    if (slab.block_bytes == 0) return {slot};
    const uint64_t relative = slot - c_.layout.first_slot(slab.head);
    const uint64_t index =
        (relative * c_.layout.geometry().min_block_bytes + slab.block_bytes - 1) / slab.block_bytes;
    return {.slot = slot,
            .offset = c_.layout.extent_offset(slab.head) + index * slab.block_bytes,
            .block_bytes = slab.block_bytes};
  }
  /// A block of the slab begins at the slot. Several slots may have one word: only the one at which
  /// the block begins stands for it.
  bool begins_at(uint64_t slot, const Slab& slab) const {
    return slab.block_bytes != 0 && c_.layout.slot_of(block_of(slot, slab).offset) == slot;
  }
  /// Calls visit(slot, SeenWord) for every word that this host has in use; the slot is the one at
  /// which the block of the word begins, if the extent is part of a slab.
  template <class Visit>
  void for_each_word(Visit visit) const {
    for (uint64_t e = 0; e < c_.layout.extent_end(); ++e) {
      const Slab slab = held_slab(e);
      runs_.for_each_word(e, [&](uint64_t at, uint64_t slot) {
        if (slab.block_bytes != 0) {
          const uint64_t begin = c_.layout.slot_of(block_of(slot, slab).offset);
          if (c_.layout.extent_of_slot(begin) == e && c_.see(begin).at == at) slot = begin;
        }
        visit(slot, SeenWord{at, c_.load_state(at)});
      });
    }
  }
  uint64_t slot_of(const Slab& slab, uint64_t index) const {
    return c_.layout.first_slot(slab.head) + c_.layout.slots_in(index * slab.block_bytes);
  }

  // ---- hints for the allocator ----
  uint64_t free_blocks_hint(uint64_t head) const {
    const auto free = static_cast<int64_t>(field(head, offsetof(bh_extent_state, free_blocks)));
    return free > 0 ? static_cast<uint64_t>(free) : 0;
  }
  uint64_t retired_blocks_hint(uint64_t head) const {
    const auto retired =
        static_cast<int64_t>(field(head, offsetof(bh_extent_state, retired_blocks)));
    return retired > 0 ? static_cast<uint64_t>(retired) : 0;
  }
  /// Adds to the counts of the slab that the extent is part of.
  void add_free(uint64_t extent, int64_t delta) {
    add(extent, offsetof(bh_extent_state, free_blocks), delta);
  }
  void add_retired(uint64_t extent, int64_t delta) {
    add(extent, offsetof(bh_extent_state, retired_blocks), delta);
  }
  /// Sets the counts of all slabs by the words of their blocks (after a death: the counts are
  /// hints).
  void recount();
  /// The same for the next few slabs: a count that a death, or a recount during a change, left
  /// wrong is right again after some calls, none of which looks at all slots. True if one was
  /// wrong.
  bool recount_some();
  /// The process that takes blocks from this slab before others, plus 1; 0: none.
  uint64_t preferred(uint64_t head) const {
    return field(head, offsetof(bh_extent_state, preferred));
  }
  /// Makes this process the preferring one, unless there is one already.
  void prefer(uint64_t head) {
    uint64_t none = 0;
    c_.access.cas(state(head) + offsetof(bh_extent_state, preferred), none, c_.process + 1);
  }

  // ---- carving and coalescing ----
  /// The spans to try for blocks of a size, best first.
  std::array<uint64_t, 2> spans_for(uint64_t block_bytes) const;
  /// Free extents -> slab of such blocks. Returns its first extent. Empty if no such extents are
  /// free, or no words for their blocks.
  std::optional<uint64_t> carve(uint64_t block_bytes, Terms terms);
  /// Slab -> free extents, if every block is free. False if one is not.
  bool coalesce(uint64_t head) {
    const auto slab = begin_coalescing(head);
    return slab && end_coalescing(*slab);
  }
  /// Closes a slab: nothing is reserved in it until end_coalescing(). The slab cannot change. Empty
  /// if it is not a slab, or another process is closing it.
  std::optional<Slab> begin_coalescing(uint64_t head);
  void undo_coalescing(const Slab& slab);
  /// Coalesces a closed slab, or opens it again if a block of it is not free (false).
  bool end_coalescing(const Slab& slab);
  /// An extent can be carved into such blocks once it is free, as far as words go.
  bool has_words_for(uint64_t block_bytes) const { return runs_.has_room_for(block_bytes); }
  /// A slab of the one size leaves, when it is coalesced, words for blocks of the other.
  bool leaves_words_for(uint64_t old_block_bytes, uint64_t block_bytes) const {
    const auto words = [&](uint64_t bytes) {
      return c_.layout.run_words(c_.layout.run_shift(bytes));
    };
    return runs_.has_all_words() || words(old_block_bytes) >= words(block_bytes);
  }
  /// The words of the slab's blocks are its own.
  bool has_its_words(const Slab& slab) const {
    bool own = true;
    for (uint64_t e = slab.head; e < slab.head + slab.extent_span; ++e)
      own = own && runs_.serves(e, slab.block_bytes);
    return own;
  }
  uint64_t count_lost_groups() const { return runs_.count_lost(); }
  /// Slabs with no block in use -> free extents, except slabs of `but_block_bytes`.
  bool coalesce_empty_slabs(uint64_t but_block_bytes = 0);

  // ---- changes of owner ----
  /// Takes a free extent out of use, to give it away, and puts it back.
  bool claim(uint64_t extent) { return is_free(extent) && claim_at(extent, 1); }
  void unclaim(uint64_t extent) {
    c_.store_state(state(extent), c_.load_state(state(extent)).next(BH_EXTENT_FREE));
    free_from_.lower(extent);
  }
  /// Makes an extent that comes from another host free and not carved. False if it may not be used
  /// yet: a process that took it for free when this host gave it away holds its word (A3), and
  /// would go on to carve it if the extent came back under it.
  bool forget(uint64_t extent);
  /// For an adopted extent, after forget(): restore_slab() frees none of its blocks until open().
  void close(uint64_t extent) { set_field(extent, offsetof(bh_extent_state, closed), 1); }
  bool closed(uint64_t extent) const {
    return field(extent, offsetof(bh_extent_state, closed)) != 0;
  }
  void open(uint64_t first, uint64_t span) {
    for (uint64_t e = first; e < first + span; ++e)
      set_field(e, offsetof(bh_extent_state, closed), 0);
    const auto slab = slab_of(first);
    if (!slab) return;
    restore_words(*slab);
    recount(*slab);
  }

  // ---- after deaths ----
  /// Finishes or undoes what dead processes were doing to extents.
  uint64_t scavenge(const Processes& dead);
  /// For a rebuild, with no other process running: forgets all slabs and, unless their words were
  /// never used, all blocks.
  void reset(bool words_used);
  /// For a rebuild or an adoption: restores one slab as it was. False if there are no words for its
  /// blocks: then its extents stay free, and its blocks are lost.
  bool restore_slab(const Slab& slab);
  /// Publishes how an extent is carved, for the next rebuild.
  void write_descriptor(uint64_t extent, const Slab& slab);

 private:
  uint64_t state(uint64_t extent) const { return c_.layout.extent_state(c_.host, extent); }
  uint64_t field(uint64_t extent, size_t at) const { return c_.access.load(state(extent) + at); }
  void set_field(uint64_t extent, size_t at, uint64_t value) {
    c_.access.store(state(extent) + at, value);
  }
  void set_writable(uint64_t extent, bool writable) {
    const auto& g = c_.layout.geometry();
    c_.access.set_writable(c_.layout.descriptor(extent), g.table_bytes, writable);
    c_.access.set_writable(c_.layout.extent_offset(extent), g.extent_bytes, writable);
  }
  std::optional<uint64_t> claim_run(uint64_t span, Terms terms, uint64_t but_sets);
  bool claim_at(uint64_t first, uint64_t span);
  bool claim_words(const Slab& slab);
  void write_slab(const Slab& slab);
  void undo_carving(uint64_t extent);
  void finish_coalescing(const Slab& slab);
  void restore_words(const Slab& slab);
  bool clear_words(uint64_t extent);
  void add(uint64_t extent, size_t count, int64_t delta) {
    const uint64_t head = field(extent, offsetof(bh_extent_state, head));
    if (head >= c_.layout.extent_end()) return;
    c_.access.fetch_add(state(head) + count, static_cast<uint64_t>(delta));
  }
  bool recount(const Slab& slab);
  bool all_free(const Slab& slab) const;

  Context<A>& c_;
  Runs<A> runs_;
  typename A::Mutex mapping_mutex_;
  /// Epoch for which the mapping lets this process store into an extent; 0: it does not.
  std::vector<std::atomic<uint64_t>> writable_since_;
  std::atomic<uint64_t> recount_next_{0};  ///< extent at which recount_some() goes on
  FreeFrom free_from_;
};

template <class A>
Slab Extents<A>::read_slab(uint64_t head) const {
  const auto& g = c_.layout.geometry();
  const Set* set = c_.layout.set_of(head);
  if (set == nullptr) return {};
  const uint64_t counts = field(head, offsetof(bh_extent_state, block_count));
  const Slab slab{head, field(head, offsetof(bh_extent_state, block_bytes)), counts & 0xFFFFFFFFu,
                  counts >> 32};
  if (slab.extent_span < 1 || slab.extent_span > set->extent_end() - head) return {head, 0, 0, 1};
  const uint64_t room = slab.extent_span * g.extent_bytes;
  if (slab.block_bytes < g.min_block_bytes || slab.block_bytes % BH_PAYLOAD_ALIGN != 0 ||
      static_cast<unsigned __int128>(slab.block_count) * slab.block_bytes > room)
    return {head, 0, 0, slab.extent_span};
  return slab;
}

// ---- carving and coalescing ----

template <class A>
std::array<uint64_t, 2> Extents<A>::spans_for(uint64_t block_bytes) const {
  const uint64_t extent = c_.layout.geometry().extent_bytes;
  const uint64_t least = (block_bytes + extent - 1) / extent;
  const auto waste = [&](uint64_t span) { return span * extent % block_bytes; };
  const auto wastes_little = [&](uint64_t span) { return waste(span) * 64 <= span * extent; };
  if (wastes_little(least)) return {least, least};
  // A size with few extents so far gets few more: as many as it has already, and one.
  uint64_t carved_already = 0;
  for_each_slab([&](const Slab& slab) {
    if (slab.block_bytes == block_bytes) carved_already += slab.extent_span;
  });
  const uint64_t most =
      std::max(least, std::min({uint64_t{16}, c_.layout.extent_count() / 16, carved_already + 1}));
  uint64_t best = least;
  for (uint64_t span = least + 1; span <= most; ++span) {
    if (waste(span) * best < waste(best) * span) best = span;
    if (wastes_little(span)) break;
  }
  return {best, least};
}

template <class A>
std::optional<uint64_t> Extents<A>::carve(uint64_t block_bytes, Terms terms) {
  for (const uint64_t span : spans_for(block_bytes)) {
    const uint64_t last = c_.crowded_sets.load(std::memory_order_relaxed);
    auto head = claim_run(span, terms, last);
    if (!head && last != 0) head = claim_run(span, terms, 0);
    if (!head) continue;
    const Slab slab{*head, block_bytes, span * c_.layout.geometry().extent_bytes / block_bytes,
                    span};
    if (!claim_words(slab)) {
      for (uint64_t e = slab.head; e < slab.head + span; ++e) unclaim(e);
      continue;
    }
    write_slab(slab);
    for (uint64_t e = slab.head + 1; e < slab.head + span; ++e)
      c_.store_state(state(e), c_.load_state(state(e)).next(BH_EXTENT_PART));
    c_.store_state(state(slab.head), c_.load_state(state(slab.head)).next(BH_EXTENT_SLAB));
    if (span == 1) free_from_.at = slab.head + 1;
    return head;
  }
  return std::nullopt;
}

/// Single extents from the low end, runs from the high end, so that runs find room. No run has an
/// extent that a late host may write to: its blocks are judged by the extent of their first slot.
template <class A>
std::optional<uint64_t> Extents<A>::claim_run(uint64_t span, Terms terms, uint64_t but_sets) {
  const uint64_t extents = c_.layout.extent_end();
  if (span > extents) return std::nullopt;
  uint64_t run = 0;
  const uint64_t from = span == 1 ? free_from_.at % extents : 0;
  for (uint64_t i = 0; i < extents; ++i) {
    const uint64_t e = span == 1 ? (from + i) % extents : extents - 1 - i;
    const bool fits = span == 1 ? suits(e, terms) : !copy_only(e);
    run = is_free(e) && fits && (but_sets == 0 || !c_.layout.is_in(e, but_sets)) ? run + 1 : 0;
    if (run < span) continue;
    if (claim_at(e, span)) return e;
    run = 0;
  }
  return std::nullopt;
}

template <class A>
bool Extents<A>::claim_at(uint64_t first, uint64_t span) {
  for (uint64_t e = first; e < first + span; ++e) {
    const StateWord word = c_.load_state(state(e));
    const bool claimed = word.state == BH_EXTENT_FREE &&
                         c_.change(state(e), word, word.next(BH_EXTENT_CARVING, c_.process));
    // It is not given away from here on; it may have been just before.
    if (claimed && writable(e) && !closed(e) && c_.layout.takes_blocks(e)) continue;
    for (uint64_t back = first; back < e + (claimed ? 1 : 0); ++back)
      c_.store_state(state(back), c_.load_state(state(back)).next(BH_EXTENT_FREE));
    return false;
  }
  return true;
}

/// A run for each extent of the slab, or for none.
template <class A>
bool Extents<A>::claim_words(const Slab& slab) {
  for (uint64_t e = slab.head; e < slab.head + slab.extent_span; ++e) {
    if (runs_.claim(e, slab.block_bytes)) continue;
    for (uint64_t back = slab.head; back < e; ++back) runs_.release(back);
    return false;
  }
  return true;
}

/// Describes the slab and frees its blocks; the extents are still CARVING (ours).
template <class A>
void Extents<A>::write_slab(const Slab& slab) {
  for (uint64_t e = slab.head; e < slab.head + slab.extent_span; ++e) {
    set_field(e, offsetof(bh_extent_state, head), slab.head);
    set_field(e, offsetof(bh_extent_state, block_bytes), e == slab.head ? slab.block_bytes : 0);
    set_field(e, offsetof(bh_extent_state, block_count), slab.block_count | slab.extent_span << 32);
    set_field(e, offsetof(bh_extent_state, free_blocks), e == slab.head ? slab.block_count : 0);
    set_field(e, offsetof(bh_extent_state, retired_blocks), 0);
    set_field(e, offsetof(bh_extent_state, preferred), c_.process + 1);
    write_descriptor(e, e == slab.head ? slab : Slab{e, 0, 0, 0});
  }
  restore_words(slab);
}

template <class A>
void Extents<A>::restore_words(const Slab& slab) {
  for (uint64_t e = slab.head; e < slab.head + slab.extent_span; ++e) {
    if (closed(e)) return;
  }
  for (uint64_t i = 0; i < slab.block_count; ++i) {
    const SeenWord old = c_.see(slot_of(slab, i));
    if (old.at != 0 && old.word.state == BH_BLOCK_NONE)
      c_.store_state(old.at, old.word.next(BH_BLOCK_FREE));
  }
}

template <class A>
void Extents<A>::write_descriptor(uint64_t extent, const Slab& slab) {
  map_writable(extent, 1);
  const uint64_t at = c_.layout.descriptor(extent);
  bh_extent_descriptor old = from_line<bh_extent_descriptor>(c_.access.load_line(at));
  bh_extent_descriptor descriptor{};
  descriptor.carvings = old.carvings + 1;
  descriptor.block_bytes = slab.block_bytes;
  descriptor.block_count = static_cast<uint32_t>(slab.block_count);
  descriptor.extent_span = static_cast<uint32_t>(slab.extent_span);
  descriptor.owner = c_.host | c_.incarnation << 16;
  c_.write_sealed(at, to_line(descriptor));
}

template <class A>
std::optional<Slab> Extents<A>::begin_coalescing(uint64_t head) {
  const StateWord word = c_.load_state(state(head));
  if (word.state != BH_EXTENT_SLAB ||
      !c_.change(state(head), word, word.next(BH_EXTENT_COALESCING, c_.process)))
    return std::nullopt;
  const Slab slab = read_slab(head);
  if (slab.block_bytes != 0) return slab;
  undo_coalescing(slab);
  return std::nullopt;
}

template <class A>
bool Extents<A>::end_coalescing(const Slab& slab) {
  for (uint64_t i = 0; i < slab.block_count; ++i) {
    const SeenWord seen = c_.see(slot_of(slab, i));
    if (seen.word.state != BH_BLOCK_FREE || !c_.change(seen, seen.word.next(BH_BLOCK_NONE))) {
      undo_coalescing(slab);
      return false;
    }
  }
  finish_coalescing(slab);
  return true;
}

/// All words are NONE: once block_bytes is 0, coalescing can only be finished. The head becomes
/// FREE last, since it shows a scavenger that parts are left.
template <class A>
void Extents<A>::finish_coalescing(const Slab& slab) {
  set_field(slab.head, offsetof(bh_extent_state, block_bytes), 0);
  write_descriptor(slab.head, Slab{slab.head, 0, 0, 0});
  for (uint64_t e = slab.head + 1; e < slab.head + slab.extent_span; ++e) {
    const StateWord word = c_.load_state(state(e));
    if (word.state != BH_EXTENT_PART || field(e, offsetof(bh_extent_state, head)) != slab.head)
      continue;
    runs_.release(e);
    c_.store_state(state(e), word.next(BH_EXTENT_FREE));
  }
  runs_.release(slab.head);
  c_.store_state(state(slab.head), c_.load_state(state(slab.head)).next(BH_EXTENT_FREE));
  free_from_.lower(slab.head);
}

template <class A>
void Extents<A>::undo_coalescing(const Slab& slab) {
  restore_words(slab);
  c_.store_state(state(slab.head), c_.load_state(state(slab.head)).next(BH_EXTENT_SLAB));
}

template <class A>
bool Extents<A>::coalesce_empty_slabs(uint64_t but_block_bytes) {
  bool coalesced = false;
  for_each_slab([&](const Slab& slab) {
    if (slab.block_bytes != but_block_bytes && free_blocks_hint(slab.head) >= slab.block_count &&
        all_free(slab))
      coalesced |= coalesce(slab.head);
  });
  return coalesced;
}

template <class A>
bool Extents<A>::all_free(const Slab& slab) const {
  for (uint64_t i = 0; i < slab.block_count; ++i) {
    if (c_.see(slot_of(slab, i)).word.state != BH_BLOCK_FREE) return false;
  }
  return true;
}

template <class A>
void Extents<A>::recount() {
  for_each_slab([&](const Slab& slab) { recount(slab); });
}

template <class A>
bool Extents<A>::recount(const Slab& slab) {
  const size_t counts[] = {offsetof(bh_extent_state, free_blocks),
                           offsetof(bh_extent_state, retired_blocks)};
  uint64_t before[2], found[2] = {0, 0};
  for (size_t i = 0; i < 2; ++i) before[i] = field(slab.head, counts[i]);
  for (uint64_t i = 0; i < slab.block_count; ++i) {
    const uint32_t kind = c_.see(slot_of(slab, i)).word.state;
    found[0] += kind == BH_BLOCK_FREE;
    found[1] += kind == BH_BLOCK_RETIRED;
  }
  bool wrong = false;
  // Only if nothing moved meanwhile; a count that a process is changing is left alone.
  for (size_t i = 0; i < 2; ++i)
    wrong |=
        found[i] != before[i] && c_.access.cas(state(slab.head) + counts[i], before[i], found[i]);
  return wrong;
}

template <class A>
bool Extents<A>::recount_some() {
  constexpr uint64_t kMostExtents = 1024, kMostBlocks = 8192;
  const uint64_t extents = c_.layout.extent_end();
  bool wrong = false;
  uint64_t e = recount_next_ % extents, blocks = 0;
  for (uint64_t i = 0; i < std::min(extents, kMostExtents) && blocks < kMostBlocks; ++i) {
    if (c_.load_state(state(e)).state == BH_EXTENT_SLAB) {
      const Slab slab = read_slab(e);
      wrong |= recount(slab);
      blocks += slab.block_count;
    }
    if (++e == extents) e = 0;
  }
  recount_next_ = e;
  return wrong;
}

// ---- changes of owner ----

template <class A>
bool Extents<A>::forget(uint64_t extent) {
  // Given away, or never this host's, it is FREE, unless a process claims it by an old look at its
  // owner and is about to see that (claim_at). A claim after this load sees the new owner.
  const StateWord word = c_.load_state(state(extent));
  if (word.state == BH_EXTENT_CARVING || word.state == BH_EXTENT_COALESCING) return false;
  set_field(extent, offsetof(bh_extent_state, block_bytes), 0);
  set_field(extent, offsetof(bh_extent_state, head), extent);
  set_field(extent, offsetof(bh_extent_state, preferred), 0);
  // By compare-and-swap: it may be claimed this instant.
  if (word.state != BH_EXTENT_FREE && !c_.change(state(extent), word, word.next(BH_EXTENT_FREE)))
    return false;
  // An adoption that was begun and not finished leaves words; the next one imports the blocks anew.
  if (!clear_words(extent)) return false;
  runs_.release(extent);
  free_from_.lower(extent);
  return true;
}

// ---- after deaths ----

/// All words of the run of an extent that is no slab -> NONE. False if a process does not release a
/// block.
template <class A>
bool Extents<A>::clear_words(uint64_t extent) {
  constexpr uint32_t kRounds = 2000;  // most of them sleep 0.2 ms
  uint32_t round = 0;
  bool cleared = true;
  runs_.for_each_word(extent, [&](uint64_t at, uint64_t) {
    while (cleared) {
      const StateWord word = c_.load_state(at);
      // A process with an old hint may hold it for an instant (try_reserve gives it back).
      const bool held = names_process(word.state) && c_.alive(word.process);
      if (word.state == BH_BLOCK_NONE || (!held && c_.change(at, word, word.next(BH_BLOCK_NONE))))
        return;
      cleared = ++round < kRounds;
      if (cleared) c_.access.relax(round);
    }
  });
  return cleared;
}

/// CARVING of a dead process -> FREE, with parts that were already marked. The extent stays as it
/// is, until the next rebuild, if a process holds one of its words.
template <class A>
void Extents<A>::undo_carving(uint64_t extent) {
  const Slab slab = read_slab(extent);
  const uint64_t extents = c_.layout.extent_end();
  if (field(extent, offsetof(bh_extent_state, head)) == extent) {
    for (uint64_t e = extent + 1; e < std::min(extent + slab.extent_span, extents); ++e) {
      const StateWord word = c_.load_state(state(e));
      if (word.state != BH_EXTENT_PART || field(e, offsetof(bh_extent_state, head)) != extent)
        continue;
      if (!clear_words(e)) return;
      runs_.release(e);
      c_.store_state(state(e), word.next(BH_EXTENT_FREE));
    }
  }
  if (!clear_words(extent)) return;
  runs_.release(extent);
  set_field(extent, offsetof(bh_extent_state, block_bytes), 0);
  // It may have been given away just before the claim.
  if (writable(extent)) write_descriptor(extent, Slab{extent, 0, 0, 0});
  c_.store_state(state(extent), c_.load_state(state(extent)).next(BH_EXTENT_FREE));
  free_from_.lower(extent);
}

template <class A>
uint64_t Extents<A>::scavenge(const Processes& dead) {
  uint64_t found = 0;
  for (uint64_t e = 0; e < c_.layout.extent_end(); ++e) {
    uint64_t preferring = preferred(e);
    if (preferring != 0 && dead.has(preferring - 1))
      c_.access.cas(state(e) + offsetof(bh_extent_state, preferred), preferring, 0);
    const StateWord word = c_.load_state(state(e));
    if (!dead.has(word.process)) continue;
    if (word.state == BH_EXTENT_CARVING) {
      undo_carving(e);
      ++found;
    } else if (word.state == BH_EXTENT_COALESCING) {
      const Slab slab = read_slab(e);
      const bool coalesced = field(e, offsetof(bh_extent_state, block_bytes)) == 0;
      coalesced ? finish_coalescing(slab) : undo_coalescing(slab);
      ++found;
    }
  }
  return found;
}

template <class A>
void Extents<A>::reset(bool words_used) {
  for (const Set& set : c_.layout.sets().list) {
    for (uint64_t i = set.first_word; words_used && i < set.word_end(); ++i) {
      const uint64_t at = c_.own(BH_PART_BLOCKS, i);
      const StateWord old = c_.load_state(at);
      if (old.pack() != 0) c_.store_state(at, old.next(BH_BLOCK_NONE));
    }
  }
  runs_.reset();
  for (uint64_t e = 0; e < c_.layout.extent_end(); ++e) {
    c_.store_state(state(e), c_.load_state(state(e)).next(BH_EXTENT_FREE));
    forget(e);
    set_field(e, offsetof(bh_extent_state, closed),
              holds(e) && own_word(e).custody == BH_CUSTODY_READ_ONLY);
  }
}

template <class A>
bool Extents<A>::restore_slab(const Slab& slab) {
  if (!claim_words(slab)) return false;
  for (uint64_t e = slab.head; e < slab.head + slab.extent_span; ++e) {
    set_field(e, offsetof(bh_extent_state, head), slab.head);
    set_field(e, offsetof(bh_extent_state, block_bytes), e == slab.head ? slab.block_bytes : 0);
    set_field(e, offsetof(bh_extent_state, block_count), slab.block_count | slab.extent_span << 32);
    const bool counts = e == slab.head && !closed(e);
    set_field(e, offsetof(bh_extent_state, free_blocks), counts ? slab.block_count : 0);
    set_field(e, offsetof(bh_extent_state, retired_blocks), 0);
    c_.store_state(state(e),
                   c_.load_state(state(e)).next(e == slab.head ? BH_EXTENT_SLAB : BH_EXTENT_PART));
  }
  restore_words(slab);
  return true;
}

}  // namespace bowhead::core
