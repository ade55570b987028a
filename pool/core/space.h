// SPDX-License-Identifier: Apache-2.0
// Making space: eviction of the blocks used longest ago, and emptying of extents by moves.
//
// Recency is one word per block: a time, stored without order, which may be lost. Victims are
// the oldest 1/32 of a sample of the committed blocks; a victim that was used since is skipped. So
// there is no list to keep and none to repair, and no put looks at all slots.
//
// Invariant
//   C4 A move inserts the new entry before it clears the old one, so that a death in between leaves
//      two good entries and never none. A scavenger or a rebuild keeps one of them.
//
// Owns: the chosen victims, the sample and the slabs to choose from, and the bytes put since the
// last look at the watermarks. Calls: Attributes, KeyLocks, Lookup, Namespaces, Retirement, Writing
// (headers and entries), Grants (extents wanted), Recovery, Usage.
#pragma once

#include "pool/core/attributes.h"
#include "pool/core/namespaces.h"

namespace bowhead::core {

/// How blocks that are in the way may be cleared.
enum class Clear { BY_MOVES, BY_EVICTION, BY_EVICTION_OF_PINNED };

template <class A>
class Space {
 public:
  explicit Space(const Rooms<A>& rooms)
      : c_(rooms.context),
        extents_(rooms.extents),
        allocator_(rooms.allocator),
        index_(rooms.index),
        settings_(rooms.settings),
        locks_(rooms.locks),
        lookup_(rooms.lookup),
        attributes_(rooms.attributes),
        usage_(rooms.usage),
        retirement_(rooms.retirement),
        namespaces_(rooms.namespaces),
        writing_(rooms.writing),
        grants_(rooms.grants),
        recovery_(rooms.recovery) {}
  Space(const Space&) = delete;
  Space& operator=(const Space&) = delete;

  using FreeBlocks = std::map<uint64_t, uint64_t>;  ///< free blocks by block_bytes
  std::optional<Block> reserve_block(uint64_t block_bytes, Terms terms = {});
  /// Looks at the watermarks each time 1/1024 of the pool was put; in a pool of one host, far below
  /// them, after a small part of what is left. While evicting, evicts four times the bytes
  /// that were put, a few blocks at a time, so that no put pays for many.
  void evict_by_watermark(uint64_t bytes_put);
  /// Replaces a block of this host by a smaller one with other content for the same value; its user
  /// metadata are those of the content, which the caller read from the block. BUSY:
  /// the block is leased or has changed, or the new one is not smaller; NO_SPACE: no block can be
  /// had without eviction; HOST_FENCED.
  Status replace(const Located& old, const Content& content);
  /// Calls visit(located) for committed blocks of this host that were not used for `unused_ns`.
  template <class Visit>
  void for_each_cold(uint64_t unused_ns, Visit visit);
  /// Frees a run of extents for blocks of a size by moving the blocks in it to holes of other
  /// slabs, or evicting those that find none. Tries the runs with the fewest bytes in use first.
  bool make_room(uint64_t block_bytes, Clear by, Terms terms = {});
  /// Frees up to `count` extents by moving blocks of the emptiest slabs, of whatever span, to holes
  /// of others. Evicts nothing. Waits once, for all moved blocks together.
  void compact(uint64_t count, uint64_t until_ns);
  /// Moves, or evicts, blocks off a set that takes no new ones. True if this host has none there
  /// any more, of the extents that it may write to.
  bool drain(const Set& set, uint64_t until_ns);
  FreeBlocks free_blocks() const;
  /// Of the extents of this host, and of the index entries that it can use: of the set of media
  /// whose segment is fullest.
  struct Used {
    uint64_t space_permille = 0, index_permille = 0;
    uint64_t crowded = 0;  ///< a bit for each set with few entries left, in the order of the list
  };
  Used used() const;
  Clear clear_by() const {
    return settings_.evict_high_permille == 0 ? Clear::BY_MOVES : Clear::BY_EVICTION;
  }

 private:
  struct Victim {
    uint64_t recency;
    uint64_t slot;
  };
  struct Evicted {
    uint64_t blocks, bytes;  ///< blocks: that are free, or, of several hosts, will be
  };
  Evicted evict(uint64_t bytes, Terms terms = {});
  void evict_in_passing(uint64_t bytes_put);
  void stop_evicting() {
    evicting_ = false;
    unevicted_bytes_ = 0;
  }
  bool leases_are_few() const { return retirement_.hazard_limit() <= kFewLeases; }
  bool evict_block(uint64_t slot);
  uint64_t evict_expired();
  /// Without words for its blocks an extent is of no use here, and others may need it.
  void want_extent(uint64_t block_bytes) {
    if (!c_.alone() && extents_.has_words_for(block_bytes)) grants_.want_extents(1);
  }
  bool choose_victims();
  void forget_sample();
  void gather(uint64_t groups);
  void choose_from_sample(uint32_t except_pins);
  void list_slabs();
  static uint64_t groups_in(const Slab& slab) { return (slab.block_count + kGroup - 1) / kGroup; }
  uint64_t used_blocks(const Slab& slab) const {
    return slab.block_count - std::min(slab.block_count, extents_.free_blocks_hint(slab.head));
  }
  std::optional<uint64_t> window_cost(uint64_t first, uint64_t span, const FreeBlocks& free,
                                      Clear by) const;
  bool window_suits(uint64_t first, uint64_t span, Terms terms) const;
  bool has_named(const std::vector<uint64_t>& named, uint64_t first, uint64_t span) const;
  bool window_leaves_words(uint64_t first, uint64_t span, uint64_t block_bytes) const;
  bool empty_window(uint64_t first, uint64_t span, Clear by);
  bool empty_slab(const Slab& slab, const std::vector<uint64_t>& named, Clear by);
  /// Where blocks are moved to.
  enum class Into {
    HOLES,   ///< an extent carved for them would be one of those that are being emptied
    EXTENTS  ///< also those
  };
  bool clear_slab(const Slab& slab, const std::vector<uint64_t>& named, Clear by, Into into,
                  std::vector<uint64_t>& retired);
  bool move(const Block& block, Into into);
  bool supersede(const Block& old, uint64_t old_stamp, const Block& target, bh_block_header header,
                 std::string_view user_metadata);
  std::optional<Block> reserve_in_passing(uint64_t block_bytes);

  Context<A>& c_;
  Extents<A>& extents_;
  Allocator<A>& allocator_;
  Index<A>& index_;
  const Settings& settings_;
  KeyLocks<A>& locks_;
  Lookup<A>& lookup_;
  Attributes<A>& attributes_;
  Usage<A>& usage_;
  Retirement<A>& retirement_;
  Namespaces<A>& namespaces_;
  Writing<A>& writing_;
  Grants<A>& grants_;
  Recovery<A>& recovery_;

  static constexpr uint64_t kGroup = 8;    ///< neighbours in a sample, whose words share lines
  static constexpr uint64_t kOldest = 32;  ///< one of so many in a sample is a victim
  static constexpr uint64_t kBatch = 64;   ///< blocks evicted at a time
  static constexpr uint64_t kPassing = 4;  ///< by a put that has its space, in a pool of one host
  static constexpr uint64_t kFewLeases = 1024;  ///< that are looked at in passing
  static constexpr uint64_t kCrowdedPermille = 900;

  typename A::Mutex victims_mutex_;
  std::vector<Victim> victims_;  ///< oldest last
  uint32_t kept_pins_ = 0;       ///< blocks with these pins are no victims
  std::vector<Victim> sample_;   ///< from which the next victims are chosen
  bool gathering_ = false;       ///< the sample is begun
  bool fresh_list_ = false;      ///< with slabs that were listed for it
  std::vector<Slab> slabs_;      ///< that had blocks in use a few samples ago
  uint64_t slab_groups_ = 0;
  uint32_t slab_list_uses_ = 0;
  uint64_t next_slab_ = 0, next_group_ = 0, stride_ = 1;  ///< where the sample goes on
  std::atomic<uint64_t> unwatched_bytes_{0};  ///< put since the last look at the watermarks
  /// 1/1024ths of the pool until the next look. A hint: an old value makes a look early or late.
  std::atomic<uint64_t> watch_after_{1};
  std::atomic<int64_t> unevicted_bytes_{0};  ///< to evict for puts; below 0: evicted ahead
  std::atomic<bool> evicting_{false};  ///< above the high watermark, not yet below the low one
};

template <class A>
std::optional<Block> Space<A>::reserve_block(uint64_t block_bytes, Terms terms) {
  if (c_.ended()) return std::nullopt;
  if (auto block = allocator_.reserve(block_bytes, terms)) return block;
  if (auto block = allocator_.reserve_larger(block_bytes, block_bytes * 9 / 8, terms)) return block;
  want_extent(block_bytes);
  // Where evicted blocks are free only once they have settled, many wait for that together.
  const uint64_t pool_step = c_.layout.payload_bytes() / 512;
  const uint64_t step = std::max(
      4 * block_bytes, c_.incoherent() ? pool_step : std::min(pool_step, kBatch * block_bytes));
  // Evicted blocks may leave no hole of this size; then whole extents are emptied instead.
  int evictions_left = settings_.evict_high_permille == 0 ? 0 : c_.incoherent() ? 2 : 4;
  bool scavenges = true;
  for (int round = 0; round < 64; ++round) {
    bool made = retirement_.reclaim_some() > 0;
    const bool expired = !made && evict_expired() > 0;
    // Those that expired may lie anywhere: a hole of this size need not come of them soon.
    if (!made && (!expired || round >= 8)) {
      if (std::exchange(scavenges, false)) {
        made = recovery_.scavenge_dead() > 0;
        // A pool of one host has no duties: a process that removed a namespace may have died.
        if (!made && c_.alone()) made = namespaces_.sweep() > 0;
      }
      if (!made && evictions_left-- > 0) made = evict(step, terms).blocks > 0;
      if (!made) made = make_room(block_bytes, clear_by(), terms);
      if (!made && settings_.evict_high_permille != 0)
        made = make_room(block_bytes, Clear::BY_EVICTION_OF_PINNED, terms);
    }
    if (auto block = allocator_.reserve(block_bytes, terms)) return block;
    if (!made && !expired) break;
  }
  if (auto block = allocator_.reserve_larger(block_bytes, block_bytes * 2, terms)) return block;
  c_.count(BH_COUNTER_NO_SPACE);
  return std::nullopt;
}

template <class A>
void Space<A>::evict_by_watermark(uint64_t bytes_put) {
  evict_expired();
  const bool evicts = settings_.evict_high_permille != 0;
  if (!evicts && c_.layout.sets().list.size() == 1) return;
  const auto& g = c_.layout.geometry();
  if (evicting_) evict_in_passing(bytes_put);
  const uint64_t put = unwatched_bytes_.fetch_add(bytes_put) + bytes_put;
  if (put < watch_after_ * (c_.layout.payload_bytes() / 1024)) return;
  unwatched_bytes_ = 0;
  const Used now = used();
  c_.crowded_sets.store(now.crowded, std::memory_order_relaxed);
  if (!evicts) return;
  const uint64_t most = std::max(now.space_permille, now.index_permille);
  // Other processes put, too: each may put as much until it looks.
  const uint64_t left =
      settings_.evict_high_permille - std::min<uint64_t>(most, settings_.evict_high_permille);
  watch_after_ = c_.alone() ? std::max<uint64_t>(1, left / 32) : 1;
  if (most >= settings_.evict_high_permille) evicting_ = true;
  if (most < settings_.evict_low_permille) stop_evicting();
  // Extents are of no use without entries for their blocks.
  if (now.space_permille >= settings_.evict_low_permille &&
      now.index_permille < settings_.evict_low_permille)
    want_extent(g.min_block_bytes);
  if (!c_.alone()) retirement_.reap(/*wait=*/false);
}

/// Four times what was put. A victim may be larger than that: then the next puts evict less, or
/// nothing. If nothing can be evicted, that is tried again after the next look at the watermarks.
template <class A>
void Space<A>::evict_in_passing(uint64_t bytes_put) {
  // A batch reads all leases, of other hosts too: where there may be many, many blocks share that.
  const uint64_t blocks = c_.alone() && leases_are_few() ? kPassing : kBatch;
  const auto put = static_cast<int64_t>(4 * bytes_put);
  if (unevicted_bytes_.fetch_add(put) + put < static_cast<int64_t>(blocks * bytes_put)) return;
  const int64_t due = unevicted_bytes_.exchange(0);  // of several threads one gets it
  const uint64_t evicted = due > 0 ? evict(static_cast<uint64_t>(due)).bytes : 0;
  if (due > 0 && evicted == 0) return stop_evicting();
  unevicted_bytes_ += due - static_cast<int64_t>(evicted);
}

template <class A>
Status Space<A>::replace(const Located& old, const Content& content) {
  bh_block_header header = writing_.header_for(content);
  header.key_hash[0] = old.header.key_hash[0];
  header.key_hash[1] = old.header.key_hash[1];
  header.namespace_id = old.header.namespace_id;
  header.key_bytes = old.header.key_bytes;
  const auto slab = extents_.slab_of(c_.layout.extent_of_slot(old.slot));
  const uint64_t room = core::room_for(c_.layout, header);
  if (c_.ended()) return c_.gone();
  if (!retirement_.stamps_left() || !slab || room >= slab->block_bytes) return Status::BUSY;
  const auto target = reserve_in_passing(room);
  if (!target) return c_.ended() ? c_.gone() : Status::NO_SPACE;
  header.flags = old.header.flags;
  if ((header.flags & BH_HEADER_WIPE) != 0) retirement_.promise_wipe(*target);
  header.payload_checksum = c_.access.write_payload(target->offset, content.stored);
  c_.access.fence();
  if (c_.access.payload_lost(target->offset, header.stored_bytes)) {
    retirement_.give_back(*target);
    return Status::BUSY;
  }
  const Block block{old.slot, old.found.entry.block_offset, slab->block_bytes};
  // A lease taken after this look lapses, as it would by an eviction.
  const std::vector<uint64_t> named = retirement_.named_blocks();
  if (std::binary_search(named.begin(), named.end(), block.offset)) {
    retirement_.give_back(*target);
    return Status::BUSY;
  }
  if (!supersede(block, old.header.stamp, *target, header, content.user_metadata))
    return c_.ended() ? c_.gone() : Status::BUSY;
  c_.count(BH_COUNTER_RECOMPRESSED);
  retirement_.reclaim({&old.slot, 1});
  return Status::OK;
}

template <class A>
template <class Visit>
void Space<A>::for_each_cold(uint64_t unused_ns, Visit visit) {
  index_.for_each(c_.host, [&](const Found& found) {
    const bh_index_entry& entry = found.entry;
    if (!c_.layout.valid_block(entry.block_offset, entry.stored_bytes)) return;
    Located located{found, {}, c_.layout.slot_of(entry.block_offset)};
    const uint64_t used_ns = c_.load_recency(located.slot);
    const uint64_t now_ns = c_.access.recency_ns();
    if (used_ns <= now_ns && now_ns - used_ns >= unused_ns &&
        lookup_.read_header(located.slot, located.header) && located.header.stamp == entry.stamp &&
        located.header.stored_bytes == entry.stored_bytes && lengths_agree(located.header) &&
        extents_.writable(c_.layout.extent_of_slot(located.slot)))
      visit(located);
  });
}

template <class A>
bool Space<A>::make_room(uint64_t block_bytes, Clear by, Terms terms) {
  const FreeBlocks free = free_blocks();
  const std::vector<uint64_t> named = retirement_.named_blocks();
  const uint64_t extents = c_.layout.extent_end();
  const auto spans = extents_.spans_for(block_bytes);
  for (size_t i = 0; i < spans.size(); ++i) {
    const uint64_t span = spans[i];
    if (span > extents || (i > 0 && span == spans[0])) continue;
    std::vector<std::pair<uint64_t, uint64_t>> windows;  // cost, first extent
    const bool words = extents_.has_words_for(block_bytes);
    for (uint64_t first = 0; first + span <= extents; ++first) {
      if (!window_suits(first, span, terms) || has_named(named, first, span)) continue;
      if (!words && !window_leaves_words(first, span, block_bytes)) continue;
      if (const auto cost = window_cost(first, span, free, by)) windows.emplace_back(*cost, first);
    }
    std::sort(windows.begin(), windows.end());
    if (windows.size() > 4) windows.resize(4);
    for (const auto& [cost, first] : windows) {
      if (empty_window(first, span, by)) return true;
    }
  }
  return false;
}

template <class A>
void Space<A>::compact(uint64_t count, uint64_t until_ns) {
  const uint64_t extent_bytes = c_.layout.geometry().extent_bytes;
  FreeBlocks free = free_blocks();
  std::vector<std::pair<uint64_t, Slab>> slabs;  // bytes to move for each extent freed
  extents_.for_each_slab([&](const Slab& slab) {
    if (!extents_.copy_only(slab.head) &&
        window_cost(slab.head, slab.extent_span, free, Clear::BY_MOVES))
      slabs.emplace_back(used_blocks(slab) * slab.block_bytes / slab.extent_span, slab);
  });
  std::sort(slabs.begin(), slabs.end(),
            [](const auto& a, const auto& b) { return a.first < b.first; });
  const std::vector<uint64_t> named = retirement_.named_blocks();
  std::vector<uint64_t> retired;
  std::vector<Slab> closed;
  uint64_t emptied = 0;
  for (const auto& [cost, slab] : slabs) {
    if (emptied >= count || c_.access.now_ns() >= until_ns || cost >= extent_bytes) break;
    uint64_t& holes = free[slab.block_bytes];  // its own holes go, others are filled
    if (holes < slab.block_count) continue;
    const auto closing = extents_.begin_coalescing(slab.head);
    if (!closing) continue;
    holes -= slab.block_count;
    if (clear_slab(*closing, named, Clear::BY_MOVES, Into::HOLES, retired))
      emptied += closing->extent_span;
    closed.push_back(*closing);
  }
  retirement_.reclaim(retired);
  if (c_.incoherent() && !retired.empty()) retirement_.reap(/*wait=*/true);
  for (const Slab& slab : closed) extents_.end_coalescing(slab);  // or opens it again
}

/// All that a slice of time allows is retired first: then one wait is enough for it.
template <class A>
bool Space<A>::drain(const Set& set, uint64_t until_ns) {
  const std::vector<uint64_t> named = retirement_.named_blocks();
  std::vector<uint64_t> retired;
  std::vector<Slab> closed;
  bool empty = true;
  for (uint64_t e = set.first_extent; e < set.extent_end(); ++e) {
    if (!extents_.holds(e)) continue;
    const bool unused = extents_.writable(e) && !extents_.closed(e) && !extents_.carved(e);
    empty = empty && unused;
    if (unused || c_.access.now_ns() >= until_ns) continue;
    const auto closing = extents_.writable(e) ? extents_.begin_coalescing(e) : std::nullopt;
    if (!closing) continue;
    if (!clear_slab(*closing, named, clear_by(), Into::EXTENTS, retired))
      want_extent(closing->block_bytes);
    closed.push_back(*closing);
  }
  retirement_.reclaim(retired);
  if (c_.incoherent() && !retired.empty()) retirement_.reap(/*wait=*/true);
  for (const Slab& slab : closed) extents_.end_coalescing(slab);  // or opens it again
  return empty;
}

template <class A>
auto Space<A>::free_blocks() const -> FreeBlocks {
  FreeBlocks free;
  extents_.for_each_slab(
      [&](const Slab& slab) { free[slab.block_bytes] += extents_.free_blocks_hint(slab.head); });
  return free;
}

template <class A>
auto Space<A>::evict(uint64_t bytes, Terms terms) -> Evicted {
  const std::vector<uint64_t> named = retirement_.named_blocks();
  std::vector<uint64_t> retired;
  uint64_t freed_bytes = 0;
  const std::lock_guard guard(victims_mutex_);
  uint32_t choices = 0;  // some per call: that bounds the work
  uint64_t taken = 0;
  while (freed_bytes < bytes) {
    if (victims_.empty()) {
      if (choices > 0 && retired.empty()) forget_sample();  // all of its blocks have gone
      if (choices++ == 4 || !choose_victims()) break;
    }
    const Victim victim = victims_.back();
    victims_.pop_back();
    ++taken;
    if (allocator_.word(victim.slot).state != BH_BLOCK_COMMITTED ||
        c_.load_recency(victim.slot) != victim.recency)
      continue;
    const auto slab = extents_.slab_of(c_.layout.extent_of_slot(victim.slot));
    if (!slab || slab->block_bytes == 0) continue;
    if (!terms.in_custody && extents_.copy_only(slab->head)) continue;  // of no use then
    const Block block = extents_.block_of(victim.slot, *slab);
    if (std::binary_search(named.begin(), named.end(), block.offset)) continue;
    // It may have been pinned since it was chosen.
    if ((attributes_.pins(victim.slot) & kept_pins_) != 0) continue;
    if (!evict_block(victim.slot)) continue;
    retired.push_back(victim.slot);
    freed_bytes += block.block_bytes;
  }
  const uint64_t freed = retirement_.reclaim(retired);
  // So the next sample is there when these victims are used up, and no put pays for all of it.
  gather(taken * kOldest / kGroup);
  return {c_.incoherent() ? retired.size() : freed, freed_bytes};
}

template <class A>
auto Space<A>::used() const -> Used {
  const std::vector<Set>& sets = c_.layout.sets().list;
  std::vector<uint64_t> blocks(sets.size());
  uint64_t used = 0;
  extents_.for_each_slab([&](const Slab& slab) {
    used += used_blocks(slab) * slab.block_bytes;
    for (size_t i = 0; i < sets.size(); ++i) {
      if (slab.head - sets[i].first_extent < sets[i].extent_count) blocks[i] += used_blocks(slab);
    }
  });
  uint64_t extents = 0;
  for (const Set& set : sets) {
    if (!set.open || set.drains) continue;  // its blocks need space elsewhere
    if (c_.alone()) extents += set.extent_count;
    for (uint64_t e = set.first_extent; !c_.alone() && e < set.extent_end(); ++e)
      extents += extents_.holds(e);
  }
  // Not later than evict_by_watermark() evicts for entries.
  const uint64_t crowded = settings_.evict_high_permille == 0
                               ? kCrowdedPermille
                               : std::min<uint64_t>(kCrowdedPermille, settings_.evict_low_permille);
  Used now{};
  now.space_permille =
      extents == 0 ? 1000 : used / (extents * c_.layout.geometry().extent_bytes / 1000);
  for (size_t i = 0; i < sets.size(); ++i) {
    // The entry of a block lies with it, in the host's segment of the set. About as many as twice
    // the host's share of blocks need, for which it is planned: with more in use, the probe sets of
    // some keys are full.
    const uint64_t entries = sets[i].bucket_count * BH_INDEX_ENTRIES * 3 / 5;
    const uint64_t permille = blocks[i] * 1000 / std::max<uint64_t>(entries, 1);
    now.index_permille = std::max(now.index_permille, permille);
    if (permille >= crowded) now.crowded |= uint64_t{1} << i;
  }
  return now;
}

template <class A>
bool Space<A>::evict_block(uint64_t slot) {
  bh_block_header header;
  if (lookup_.read_header(slot, header) && stamp_state(header.stamp) == BH_STAMP_COMMITTED &&
      retirement_.retire(slot, hash_of(header), header.stamp, BH_COUNTER_EVICTIONS,
                         kShortLockWaitNs))
    return true;
  if (!extents_.copy_only(c_.layout.extent_of_slot(slot))) return false;
  // In custody a zombie may have written the header.
  std::optional<bh_index_entry> named;
  index_.for_each(c_.host, [&](const Found& found) {
    if (c_.layout.valid_block(found.entry.block_offset, 1) &&
        c_.layout.slot_of(found.entry.block_offset) == slot)
      named = found.entry;
  });
  return named && retirement_.retire_entry(*named, BH_COUNTER_EVICTIONS);
}

/// Evicts some blocks whose time to live is over; returns how many. Those that cannot be evicted
/// now have their turn again a second later.
template <class A>
uint64_t Space<A>::evict_expired() {
  const auto expired = attributes_.take_expired(kBatch);
  if (expired.empty()) return 0;
  const std::vector<uint64_t> named = retirement_.named_blocks();
  std::vector<uint64_t> retired;
  for (const auto& [slot, stamp] : expired) {
    bh_block_header header;
    if (!lookup_.read_header(slot, header) || header.stamp != stamp) continue;
    const auto slab = extents_.slab_of(c_.layout.extent_of_slot(slot));
    const bool leased =
        !slab || slab->block_bytes == 0 ||
        std::binary_search(named.begin(), named.end(), extents_.block_of(slot, *slab).offset);
    if (!leased &&
        retirement_.retire(slot, hash_of(header), stamp, BH_COUNTER_EVICTIONS, kShortLockWaitNs))
      retired.push_back(slot);
    else
      attributes_.put_off(slot, stamp);
  }
  if (!retired.empty()) retirement_.reclaim(retired);
  return retired.size();
}

/// Fills victims_ with the oldest 1/32 of a sample, oldest last, without blocks that are pinned;
/// with soft pins only if there are no others. The sample has all blocks if they are few, else
/// groups of neighbours, whose words share lines. Of a sample, since blocks that were stored
/// together lie together: a walk from one place to the next would look at nearly all blocks before
/// it comes to the old ones.
template <class A>
bool Space<A>::choose_victims() {
  for (int tries = 0; tries < 2; ++tries) {
    gather(UINT64_MAX);
    choose_from_sample(BH_PIN_SOFT | BH_PIN_HARD);
    // By an old list there may be others that it does not know.
    if (victims_.empty() && fresh_list_) choose_from_sample(BH_PIN_HARD);
    sample_.clear();
    gathering_ = false;
    if (!victims_.empty()) return true;
    slab_list_uses_ = 0;
  }
  return false;
}

/// Begins anew, with a new list of slabs.
template <class A>
void Space<A>::forget_sample() {
  sample_.clear();
  gathering_ = false;
  slab_list_uses_ = 0;
}

/// Adds some groups to the sample, if it is not complete.
template <class A>
void Space<A>::gather(uint64_t groups) {
  if (groups == 0) return;
  if (!gathering_) {
    // Where there are other hosts, one look at their leases serves as many victims as can be.
    const uint64_t most = c_.alone() ? 256 : 512;
    fresh_list_ = slab_list_uses_ == 0;
    if (fresh_list_) list_slabs();
    slab_list_uses_ = (slab_list_uses_ + 1) % 32;
    stride_ = std::max<uint64_t>(1, slab_groups_ / most);
    next_slab_ = 0;
    next_group_ = c_.access.random() % stride_;
    gathering_ = true;
  }
  // Nearly all of their words come from memory: all are asked for before the first is read.
  std::vector<std::pair<const Slab*, uint64_t>> firsts;
  while (firsts.size() < groups && next_slab_ < slabs_.size()) {
    const Slab& slab = slabs_[next_slab_];
    if (next_group_ < groups_in(slab)) {
      firsts.emplace_back(&slab, next_group_ * kGroup);
      c_.prefetch_recency(extents_.slot_of(slab, firsts.back().second));
      next_group_ += stride_;
    } else {
      next_group_ -= groups_in(slab);
      ++next_slab_;
    }
  }
  for (const auto& [slab, first] : firsts) {
    for (uint64_t i = first; i < std::min(first + kGroup, slab->block_count); ++i) {
      const uint64_t slot = extents_.slot_of(*slab, i);
      if (allocator_.word(slot).state == BH_BLOCK_COMMITTED)
        sample_.push_back({c_.load_recency(slot), slot});
    }
  }
}

/// The oldest of the sample; of others only if all of those have the pins.
template <class A>
void Space<A>::choose_from_sample(uint32_t except_pins) {
  const auto older = [](const Victim& a, const Victim& b) { return a.recency < b.recency; };
  kept_pins_ = except_pins;
  const size_t part = sample_.size() > 2 * kOldest ? sample_.size() / kOldest : sample_.size();
  victims_.clear();
  for (auto from = sample_.begin(); from != sample_.end() && victims_.empty();) {
    const auto to =
        from + std::min<std::ptrdiff_t>(static_cast<std::ptrdiff_t>(part), sample_.end() - from);
    if (to != sample_.end()) std::nth_element(from, to, sample_.end(), older);
    std::copy_if(from, to, std::back_inserter(victims_), [&](const Victim& victim) {
      return (attributes_.pins(victim.slot) & except_pins) == 0;
    });
    from = to;
  }
  std::sort(victims_.rbegin(), victims_.rend(), older);
}

/// Lists the slabs with blocks that may be evicted; where it is entries that are short, those of
/// sets that have few left. The list may be out of date: evict() skips a slot whose word is not
/// COMMITTED.
template <class A>
void Space<A>::list_slabs() {
  slabs_.clear();
  slab_groups_ = 0;
  const Used now = used();
  const uint64_t low = settings_.evict_low_permille;
  const bool entries_are_short = now.space_permille < low && now.index_permille >= low;
  extents_.for_each_slab([&](const Slab& slab) {
    if (used_blocks(slab) == 0 || !extents_.writable(slab.head)) return;
    if (entries_are_short && now.crowded != 0 && !c_.layout.is_in(slab.head, now.crowded)) return;
    slabs_.push_back(slab);
    slab_groups_ += groups_in(slab);
  });
}

/// Bytes to move or evict to free extents [first, first + span); empty if they cannot be freed.
template <class A>
std::optional<uint64_t> Space<A>::window_cost(uint64_t first, uint64_t span, const FreeBlocks& free,
                                              Clear by) const {
  uint64_t cost = 0;
  for (uint64_t e = first; e < first + span;) {
    if (extents_.is_free(e)) {
      ++e;
      continue;
    }
    const auto slab = extents_.slab_of(e);
    if (!slab || slab->head != e || e + slab->extent_span > first + span || !extents_.writable(e))
      return std::nullopt;
    const uint64_t used = used_blocks(*slab), free_here = slab->block_count - used;
    const auto all = free.find(slab->block_bytes);
    const uint64_t elsewhere =
        all == free.end() ? 0 : all->second - std::min(all->second, free_here);
    if (elsewhere < used && by == Clear::BY_MOVES) return std::nullopt;
    cost += used * slab->block_bytes;
    e += slab->extent_span;
  }
  return cost;
}

/// A leased block, of those named: it stays where it is, so the extents cannot be freed.
template <class A>
bool Space<A>::has_named(const std::vector<uint64_t>& named, uint64_t first, uint64_t span) const {
  const auto next = std::lower_bound(named.begin(), named.end(), c_.layout.extent_offset(first));
  return next != named.end() &&
         *next < c_.layout.extent_offset(first + span - 1) + c_.layout.geometry().extent_bytes;
}

template <class A>
bool Space<A>::window_suits(uint64_t first, uint64_t span, Terms terms) const {
  for (uint64_t e = first; e < first + span; ++e) {
    if (!extents_.suits(e, terms)) return false;
  }
  return true;
}

/// Each extent is part of a slab whose words serve for blocks of the size: where none are left, to
/// have extents is not enough to carve them.
template <class A>
bool Space<A>::window_leaves_words(uint64_t first, uint64_t span, uint64_t block_bytes) const {
  for (uint64_t e = first; e < first + span; ++e) {
    const auto slab = extents_.slab_of(e);
    if (!slab || !extents_.leaves_words_for(slab->block_bytes, block_bytes)) return false;
  }
  return true;
}

template <class A>
bool Space<A>::empty_window(uint64_t first, uint64_t span, Clear by) {
  const std::vector<uint64_t> named = retirement_.named_blocks();
  for (uint64_t e = first; e < first + span;) {
    if (extents_.is_free(e)) {
      ++e;
      continue;
    }
    // Close the slab first: the blocks moved out of it must not land in it again.
    const auto slab = extents_.begin_coalescing(e);
    if (!slab) return false;
    const bool emptied = empty_slab(*slab, named, by);
    if (!extents_.end_coalescing(*slab) || !emptied) return false;
    e += slab->extent_span;
  }
  return true;
}

/// Moves or evicts every block of a closed slab.
template <class A>
bool Space<A>::empty_slab(const Slab& slab, const std::vector<uint64_t>& named, Clear by) {
  std::vector<uint64_t> retired;
  const bool emptied = clear_slab(slab, named, by, Into::HOLES, retired);
  retirement_.reclaim(retired);
  if (c_.incoherent() && !retired.empty()) retirement_.reap(/*wait=*/true);
  return emptied;
}

/// The same, but does not free the retired blocks: it adds their slots to `retired`.
template <class A>
bool Space<A>::clear_slab(const Slab& slab, const std::vector<uint64_t>& named, Clear by, Into into,
                          std::vector<uint64_t>& retired) {
  const uint32_t kept =
      by == Clear::BY_EVICTION_OF_PINNED ? BH_PIN_HARD : BH_PIN_SOFT | BH_PIN_HARD;
  bool emptied = true;
  for (uint64_t i = 0; i < slab.block_count && emptied; ++i) {
    const Block block = extents_.block_of(extents_.slot_of(slab, i), slab);
    const uint32_t state = allocator_.word(block.slot).state;
    if (state == BH_BLOCK_FREE) continue;
    if (state == BH_BLOCK_COMMITTED) {
      emptied = !std::binary_search(named.begin(), named.end(), block.offset) &&
                (move(block, into) ||
                 (by != Clear::BY_MOVES && (attributes_.pins(block.slot) & kept) == 0 &&
                  evict_block(block.slot)));
    } else {
      emptied = state == BH_BLOCK_RETIRED;
    }
    retired.push_back(block.slot);
  }
  return emptied;
}

/// Copies a block of a closed slab to another slab of its size, then retires the old one (C4).
template <class A>
bool Space<A>::move(const Block& block, Into into) {
  bh_block_header header;
  if (!lookup_.read_header(block.slot, header) || stamp_state(header.stamp) != BH_STAMP_COMMITTED)
    return false;
  const uint64_t old_stamp = header.stamp;
  const Hash128 hash = hash_of(header);
  // Those that are damaged must not get a check that makes them look whole.
  const auto user_metadata = lookup_.read_user(block.slot, header);
  if (!user_metadata || c_.layout.block_bytes(header.stored_bytes, Layout::key_line_bytes(header)) >
                            block.block_bytes)
    return retirement_.retire(block.slot, hash, old_stamp, BH_COUNTER_DAMAGED);
  const bool checked = header.checksum_kind != BH_CHECKSUM_NONE;
  const Terms terms{.may_carve = into == Into::EXTENTS, .in_custody = checked};
  const auto target =
      retirement_.stamps_left() ? allocator_.reserve(block.block_bytes, terms) : std::nullopt;
  if (!target) return false;
  if ((header.flags & BH_HEADER_WIPE) != 0) retirement_.promise_wipe(*target);
  uint64_t checksum = c_.access.move_payload(target->offset, block.offset, header.stored_bytes);
  if (checked && checksum != header.payload_checksum && !c_.alone()) {
    // As in Reading::copy_out(): if the block was adopted, this host may have lines of an earlier
    // block in its caches, from when it was a reader.
    c_.access.acquire(block.offset, header.stored_bytes);
    checksum = c_.access.move_payload(target->offset, block.offset, header.stored_bytes);
  }
  const bool whole = checked ? checksum == header.payload_checksum
                             : !c_.access.payload_lost(block.offset, header.stored_bytes);
  if (!whole) {
    retirement_.give_back(*target);
    return retirement_.retire(block.slot, hash, old_stamp, BH_COUNTER_DAMAGED);
  }
  if (c_.access.payload_lost(target->offset, header.stored_bytes)) {
    retirement_.give_back(*target);
    return move(block, into);  // to another one: this one is passed over now
  }
  if (!supersede(block, old_stamp, *target, header, *user_metadata)) return false;
  c_.count(BH_COUNTER_MOVES);
  return true;
}

/// Replaces a block of a key by `target`, whose payload is published: writes its header and entry,
/// and only then clears the old entry (C4). `header` has no stamp yet. False if `old` is not (any
/// more) the block of that stamp, the index is full, or this life is over; `target` is free then.
///
/// All under the key's lock, which a process that removes the old block holds too: no committed
/// header of the new block may be in the memory before it is known that the old block stands. A
/// removal would not see that header, and if the host crashed then, a rebuild that finds a damaged
/// entry could restore the block. And a life that is over publishes nothing.
template <class A>
bool Space<A>::supersede(const Block& old, uint64_t old_stamp, const Block& target,
                         bh_block_header header, std::string_view user_metadata) {
  const Hash128 hash = hash_of(header);
  const KeyLock lock(locks_, hash);
  const auto entry = !lock.held() || c_.ended()
                         ? std::nullopt
                         : index_.find_block(c_.host, hash, old.offset, old_stamp);
  const std::string key = lookup_.read_key(old.slot, header.key_bytes);  // may get no memory
  // Retire before there are two entries: a scavenger then sees which block is to go.
  if (!entry || !allocator_.begin_retire(old.slot)) {
    retirement_.give_back(target);
    return false;
  }
  const Publishing publishing(c_);
  const auto place = index_.claim(hash, target.slot);
  if (!place) {
    allocator_.cancel_retire(old.slot);
    retirement_.give_back(target);
    return false;
  }
  bh_block_header old_header{};
  const bool counted = lookup_.read_header(old.slot, old_header) && old_header.stamp == old_stamp;
  header.stamp = retirement_.next_stamp();
  writing_.write_key_lines(target.slot, key, user_metadata, header.stamp);
  c_.write_sealed(c_.layout.header(target.slot), to_line(header));  // with the tag
  attributes_.carry(old.slot, old_stamp, target.slot, header.stamp);
  c_.store_recency(target.slot, c_.load_recency(old.slot));
  index_.fill(*place, writing_.entry_for(target, header));
  namespaces_.gone_after_store(header.namespace_id);  // N4
  usage_.add(header);
  allocator_.commit(target);
  index_.erase(*entry);
  retirement_.retire_header(old.slot);
  if (counted)
    usage_.subtract(old_header);
  else
    usage_.doubt();
  allocator_.finish_retire(old.slot);
  return true;
}

/// For callers that save space but need not: evicts nothing.
template <class A>
std::optional<Block> Space<A>::reserve_in_passing(uint64_t block_bytes) {
  if (auto block = allocator_.reserve(block_bytes)) return block;
  if (retirement_.reclaim_some() == 0 && !make_room(block_bytes, Clear::BY_MOVES))
    return std::nullopt;
  return allocator_.reserve(block_bytes);
}

}  // namespace bowhead::core
