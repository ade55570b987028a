// SPDX-License-Identifier: Apache-2.0
// Runs: which words a carved extent has for its blocks. A host has words for part of the pool's
// slots only; an extent gets some when it is carved, and they are free again when it is coalesced.
//
// The words lie in groups. A group's owner word names the extent that has it; the run word of an
// extent names its groups (host.h). No run, no words: the extent cannot be carved.
//
// Invariants
//   E1 While the run word of an extent is READY, the owner words of all groups of the run name that
//      extent. An owner word that names an extent is in the run that the extent's run word names.
//      So a run is READY only after all its groups were claimed, each by compare-and-swap from 0;
//      before the first, and until the last is released, it is CHANGING.
//   E2 A run is released only when every word in it is NONE. So a word that is not NONE stays a
//      word of the same extent: while a process holds a block, the block's word does not change
//      its place.
//   E3 A process that looks at the word of a slot reads the run word before and after the word
//      (Context::see). If both agree and a compare-and-swap from the value seen succeeds, the word
//      is the slot's: its sequence only rises, so it did not change in between; it was not NONE, so
//      its group kept its owner (E2); and that was the slot's extent when the run was read again
//      (E1). A process that knows the place from before (Allocator's hints) takes the word first,
//      by compare-and-swap from FREE, and then reads the run word: if it names the word, the word
//      is the slot's and remains so (E2), and if not, the process gives the word back. No fence is
//      needed between these loads: a process that gives the word to another extent stores first
//      the run word, then the owner word, then the allocator word, each with release; so a process
//      that sees a new allocator word sees the change of the run word too.
//   E4 Only the process that has the extent CARVING or COALESCING, or its scavenger, changes the
//      run; or the process that restores slabs, before the extent is in use.
//
// A damaged owner word costs its group until the next rebuild, or lets two extents share words.
// Then each word still stands for one block at a time: a block that is not the one that the word is
// committed for has another stamp in its header, and is not touched.
//
// Owns: the host's run words and owner words. Calls: nothing.
#pragma once

#include <algorithm>
#include <atomic>

#include "pool/core/context.h"

namespace bowhead::core {

template <class A>
class Runs {
 public:
  explicit Runs(Context<A>& context) : c_(context) {}
  Runs(const Runs&) = delete;
  Runs& operator=(const Runs&) = delete;

  /// Gives an extent without words a run for blocks of that size; all its words are NONE. False if
  /// no run is free.
  bool claim(uint64_t extent, uint64_t block_bytes) {
    const uint32_t shift = c_.layout.run_shift(block_bytes);
    const Set* set = c_.layout.set_of(extent);
    return set != nullptr && find(*set, extent, shift,
                                  [&](uint64_t first) { return claim_at(extent, shift, first); });
  }
  /// A run for blocks of that size is free at this instant. Looks first where one was before, since
  /// puts ask.
  bool has_room_for(uint64_t block_bytes) const {
    const uint32_t shift = c_.layout.run_shift(block_bytes);
    const uint64_t words = c_.layout.run_words(shift);
    const uint64_t seen = free_seen_.load(std::memory_order_relaxed) / words * words;
    if (is_free({BH_RUN_CHANGING, shift, seen})) return true;
    for (const Set& set : c_.layout.sets().list) {
      const bool found = find(set, set.first_extent, shift, [&](uint64_t first) {
        free_seen_.store(first, std::memory_order_relaxed);
        return true;
      });
      if (found) return true;
    }
    return false;
  }
  /// Gives the run back; the words are NONE (E2). Can be repeated, and continues a claim or a
  /// release that a dead process began.
  void release(uint64_t extent) {
    RunWord run = c_.load_run(extent);
    if (run.pack() == 0) return;
    run.state = BH_RUN_CHANGING;
    c_.access.store(run_at(extent), run.pack());
    for_each_group_of(run, [&](uint64_t at) {
      if (c_.access.load(at) == extent + 1) c_.access.store(at, 0);
    });
    c_.access.store(run_at(extent), 0);
  }
  /// The host has words for all slots of the pool at one time.
  bool has_all_words() const {
    const auto& sets = c_.layout.sets().list;
    return std::all_of(sets.begin(), sets.end(),
                       [&](const Set& set) { return c_.layout.has_all_words(set); });
  }
  /// The run of the extent serves blocks of that size, and is all its own (E1).
  bool serves(uint64_t extent, uint64_t block_bytes) const {
    const RunWord run = c_.load_run(extent);
    const uint64_t last_slot = c_.layout.first_slot(extent + 1) - 1;
    bool own = run.shift == c_.layout.run_shift(block_bytes) &&
               c_.layout.word_index(run, last_slot) != Layout::kNoWord;
    for_each_group_of(run, [&](uint64_t at) { own = own && c_.access.load(at) == extent + 1; });
    return own;
  }
  /// Groups that no extent can claim, though none has them in its run (E1). Changes during the call
  /// may count as well.
  uint64_t count_lost() const {
    const auto& g = c_.layout.geometry();
    uint64_t lost = 0;
    for_each_group([&](uint64_t i) {
      const uint64_t owner = c_.access.load(c_.own(BH_PART_GROUPS, i));
      if (owner == 0) return;
      const RunWord run = owner <= c_.layout.extent_end() ? c_.load_run(owner - 1) : RunWord{};
      const uint64_t first = run.first / g.words_per_group;
      const uint64_t groups = c_.layout.run_words(run.shift) / g.words_per_group;
      lost += run.state == BH_RUN_NONE || i - first >= groups;
    });
    return lost;
  }
  /// For a rebuild: no extent has words.
  void reset() {
    for (uint64_t e = 0; e < c_.layout.extent_end(); ++e) c_.access.store(run_at(e), 0);
    for_each_group([&](uint64_t i) { c_.access.store(c_.own(BH_PART_GROUPS, i), 0); });
  }
  /// Calls visit(offset of the allocator word, slot of the extent that it begins with) for each
  /// word of an extent.
  template <class Visit>
  void for_each_word(uint64_t extent, Visit visit) const {
    const RunWord run = c_.load_run(extent);
    const uint64_t step = uint64_t{1} << std::min<uint32_t>(run.shift, 63);
    for (uint64_t slot = 0; slot < c_.layout.slots_per_extent(); slot += step) {
      const uint64_t index = c_.layout.word_index(run, slot);
      if (index == Layout::kNoWord) return;
      visit(c_.own(BH_PART_BLOCKS, index), c_.layout.first_slot(extent) + slot);
    }
  }

 private:
  uint64_t run_at(uint64_t extent) const { return c_.own(BH_PART_RUNS, extent); }
  /// Calls visit(number) for each group of all sets.
  template <class Visit>
  void for_each_group(Visit visit) const {
    const uint64_t words = c_.layout.geometry().words_per_group;
    for (const Set& set : c_.layout.sets().list) {
      for (uint64_t i = set.first_word / words; i < set.word_end() / words; ++i) visit(i);
    }
  }
  /// Calls visit(offset of the owner word) for each group of a run, whatever the run word says.
  template <class Visit>
  void for_each_group_of(RunWord run, Visit visit) const {
    const uint64_t groups = c_.layout.group_limit(), group = c_.layout.geometry().words_per_group;
    const uint64_t first = run.first / group;
    const uint64_t end = std::min(groups, first + c_.layout.run_words(run.shift) / group);
    for (uint64_t i = first; i < end; ++i) visit(c_.own(BH_PART_GROUPS, i));
  }
  bool is_free(RunWord run) const {
    bool free = true;
    for_each_group_of(run, [&](uint64_t at) { free = free && c_.access.load(at) == 0; });
    return free;
  }
  /// Calls take(first word) for the free runs of a set until it returns true; false if it never
  /// does. Where there are words for all slots, every extent has a place of its own, which is
  /// looked at first. Else the first fit: so a rebuild, which frees nothing in between, loses none
  /// to gaps.
  template <class Take>
  bool find(const Set& set, uint64_t extent, uint32_t shift, Take take) const {
    const uint64_t words = c_.layout.run_words(shift);
    uint64_t first = set.first_word;
    if (c_.layout.has_all_words(set)) first += c_.layout.first_slot(extent - set.first_extent);
    for (uint64_t seen = 0; seen < set.word_count; seen += words) {
      if (is_free({BH_RUN_CHANGING, shift, first}) && take(first)) return true;
      first = first + words == set.word_end() ? set.first_word : first + words;
    }
    return false;
  }
  bool claim_at(uint64_t extent, uint32_t shift, uint64_t first) {
    RunWord run{BH_RUN_CHANGING, shift, first};
    c_.access.store(run_at(extent), run.pack());
    bool claimed = true;
    for_each_group_of(run, [&](uint64_t at) {
      uint64_t free = 0;
      claimed = claimed && c_.access.cas(at, free, extent + 1);
    });
    if (!claimed) {
      release(extent);
      return false;
    }
    run.state = BH_RUN_READY;
    c_.access.store(run_at(extent), run.pack());
    return true;
  }

  Context<A>& c_;
  mutable std::atomic<uint64_t> free_seen_{0};  ///< word at which a free run began
};

}  // namespace bowhead::core
