// SPDX-License-Identifier: Apache-2.0
// The end of a block: its entry is cleared and its header says retired, then it waits until no
// lease names it, then it is free.
//
// Invariants (docs/invariants.md has the argument for each)
//   C2 A block is FREE only after its header shows no committed stamp (I2).
//   C3 A block goes RETIRED -> FREE only after a look at all hazards that began after its retired
//      stamp was published and fenced (I4).
//   C5 A block whose header has BH_HEADER_WIPE is not FREE. So each process that would free a block
//      looks at its header, and wipes the block first if the flag is there; the flag is published
//      before the first byte of a payload that must not stay, and goes only with wipe(). If the
//      process dies in between, the block is scavenged as any block that was held, becomes RETIRED,
//      and is freed by the same way. A rebuild, and the host that adopts the extents of a dead one,
//      make what they do not take over RETIRED, too.
//
// Owns: the retired blocks that this process has yet to free; stamps. Calls: KeyLocks, Lookup,
// Usage.
#pragma once

#include "pool/core/key_locks.h"
#include "pool/core/usage.h"

namespace bowhead::core {

template <class A>
class Retirement {
 public:
  explicit Retirement(const Rooms<A>& rooms)
      : c_(rooms.context),
        extents_(rooms.extents),
        allocator_(rooms.allocator),
        index_(rooms.index),
        leases_(rooms.leases),
        hosts_(rooms.hosts),
        locks_(rooms.locks),
        lookup_(rooms.lookup),
        usage_(rooms.usage) {}
  Retirement(const Retirement&) = delete;
  Retirement& operator=(const Retirement&) = delete;

  /// Which copy of the stamp proves that a block is the one meant.
  enum class Proof { HEADER, ENTRY };

  bool stamps_left() { return c_.access.load(sequence_at()) < kStampSequenceMax; }
  uint64_t sequence_at() const { return c_.layout.part(c_.host, BH_PART_PRIVATE); }
  /// The last sequence stands for "none left".
  uint64_t next_stamp() {
    const uint64_t sequence =
        stamps_left() ? c_.access.fetch_add(sequence_at(), 1) + 1 : kStampSequenceMax;
    return make_stamp(c_.host, c_.incarnation, std::min(sequence, kStampSequenceMax));
  }
  /// Removes this host's blocks of a key. NOT_FOUND: there are none. BUSY: another process holds
  /// the key's lock or is retiring the block, the block is in READ_ONLY custody, or wanted(), which
  /// is asked about each block found, returned false.
  template <class Wanted>
  Status remove_own(const Hash128& hash, uint64_t wait_ns, Wanted wanted);
  /// COMMITTED -> RETIRED, entry cleared, stamp retired and published (protocol 5.5 (1) to (3)).
  /// False if the block is not (any more) the one of `stamp`, or its key's lock cannot be had.
  bool retire(uint64_t slot, const Hash128& hash, uint64_t stamp, uint32_t counter,
              uint64_t lock_wait_ns = kLockWaitNs, Proof proof = Proof::HEADER);
  /// This life stored a block with that stamp: then no zombie wrote it.
  bool is_of_this_life(uint64_t stamp) const {
    return stamp_state(stamp) == BH_STAMP_COMMITTED && stamp_host(stamp) == c_.host &&
           stamp_incarnation(stamp) == c_.incarnation;
  }
  /// Retires the block of an own entry, whatever its header says: in custody a zombie may have
  /// written the header. False also if this life has stored another block there.
  bool retire_entry(const bh_index_entry& entry, uint32_t counter) {
    const uint64_t slot = c_.layout.slot_of(entry.block_offset);
    const bool retired =
        retire(slot, hash_of(entry), entry.stamp, counter, kShortLockWaitNs, Proof::ENTRY);
    if (retired) reclaim({&slot, 1});
    return retired;
  }
  /// Stamp -> retired, sealed and published (C2). An unreadable header is replaced.
  void retire_header(uint64_t slot);
  /// RETIRED -> FREE for blocks that no hazard names (protocol 5.5 (5), (6)): at once where stores
  /// are seen at once, else when they have settled (reap()). Returns how many were freed. Without
  /// memory for that, they stay RETIRED, and reclaim_some() frees them.
  uint64_t reclaim(std::span<const uint64_t> slots);
  /// Reclaims RETIRED blocks that no process waits for, since a lease named them when they were
  /// retired or the process that retired them ended. Looks at some of them at a time.
  uint64_t reclaim_some();
  /// Frees the blocks that reclaim() put off and that have settled; `wait`: waits until all have.
  uint64_t reap(bool wait);
  /// For a block that this process has reserved and will write to, if that must not stay (C5).
  void promise_wipe(const Block& block) {
    bh_block_header header{};
    header.stamp = stamp_retired(0);  // of no block
    header.flags = BH_HEADER_WIPE;
    c_.write_sealed(c_.layout.header(block.slot), to_line(header));
  }
  bool must_wipe(uint64_t slot) const {
    bh_block_header header;
    return lookup_.read_header(slot, header) && (header.flags & BH_HEADER_WIPE) != 0;
  }
  /// Frees a block that this process has reserved, and may have written to. If its memory failed,
  /// and it must be wiped, the block is held until this process ends, and the next one tries (C5);
  /// but not on media that go. False: it is held.
  bool give_back(const Block& block) {
    if (must_wipe(block.slot) && !c_.ended() && !wipe(block) &&
        c_.layout.takes_blocks(c_.layout.extent_of_slot(block.slot)))
      return false;
    allocator_.release(block);
    return true;
  }
  /// Blocks named by leases of this host, and of every host whose life is not over, or was not a
  /// moment ago (protocol 5.5 (5)).
  std::vector<uint64_t> named_blocks();
  uint64_t hazard_limit() const { return leases_.hazard_limit(); }

 private:
  /// A block that waits until no hazard names it.
  struct Retired {
    uint64_t slot, offset;
    SeenWord seen;
    uint64_t retired_at_ns;
  };
  std::optional<Found> find_own(const Hash128& hash, uint64_t wait_ns, bool* unsure);
  void publish_end(uint64_t slot, const bh_block_header* header, uint32_t counter);
  uint64_t free_or_note(std::span<const uint64_t> slots);
  uint64_t free_unnamed(const std::vector<Retired>& retired);
  bool free_retired(const Retired& block);
  bool wipe(const Block& block);
  uint64_t hazard_hosts() const;

  Context<A>& c_;
  Extents<A>& extents_;
  Allocator<A>& allocator_;
  Index<A>& index_;
  Leases<A>& leases_;
  Hosts<A>& hosts_;
  KeyLocks<A>& locks_;
  Lookup<A>& lookup_;
  Usage<A>& usage_;

  typename A::Mutex retired_mutex_;
  std::vector<Retired> retired_;           ///< by this process; the allocator words decide
  std::atomic<uint64_t> reclaim_next_{0};  ///< extent at which reclaim_some() goes on
};

/// Searches the own index. It misses no entry that is there unless `unsure` is set. A search
/// without the lock can pass over a key whose block is being moved: it reads the place of the new
/// entry before that is written, and the place of the old one after that is cleared. The process
/// that moves a block holds the lock from the one to the other.
template <class A>
std::optional<Found> Retirement<A>::find_own(const Hash128& hash, uint64_t wait_ns, bool* unsure) {
  const auto accept = [&](const bh_index_entry& entry) {
    if (!c_.layout.valid_block(entry.block_offset, 1)) return false;
    const uint64_t slot = c_.layout.slot_of(entry.block_offset);
    c_.acquire_from(writer_of(c_.host, entry), c_.layout.header(slot), BH_LINE_BYTES);
    bh_block_header header;
    return lookup_.read_header(slot, header) && header.stamp == entry.stamp &&
           stamp_state(header.stamp) == BH_STAMP_COMMITTED;
  };
  if (auto found = index_.find_if(c_.host, hash, accept)) return found;
  const KeyLock lock(locks_, hash, wait_ns);
  *unsure = !lock.held();
  return index_.find_if(c_.host, hash, accept);
}

template <class A>
template <class Wanted>
Status Retirement<A>::remove_own(const Hash128& hash, uint64_t wait_ns, Wanted wanted) {
  bool removed = false, unsure = false;
  const uint64_t deadline_ns = c_.access.now_ns() + wait_ns;
  // There is more than one entry if a process died while it moved the block.
  for (uint32_t round = 0; const auto found = find_own(hash, wait_ns, &unsure);) {
    const uint64_t slot = c_.layout.slot_of(found->entry.block_offset);
    if (!wanted()) return Status::BUSY;
    if (retire(slot, hash, found->entry.stamp, BH_COUNTER_REMOVALS, wait_ns)) {
      reclaim({&slot, 1});
      removed = true;
      continue;
    }
    if (c_.ended()) return c_.gone();
    if (!extents_.writable(c_.layout.extent_of_slot(slot)) || c_.access.now_ns() > deadline_ns)
      return Status::BUSY;
    c_.access.relax(round++);
  }
  return unsure ? Status::BUSY : removed ? Status::OK : Status::NOT_FOUND;
}

template <class A>
bool Retirement<A>::retire(uint64_t slot, const Hash128& hash, uint64_t stamp, uint32_t counter,
                           uint64_t lock_wait_ns, Proof proof) {
  bh_block_header header;
  bool is_read = false;
  {
    if (c_.ended() || !extents_.writable(c_.layout.extent_of_slot(slot))) return false;
    const KeyLock lock(locks_, hash, lock_wait_ns);
    if (!lock.held() || !allocator_.begin_retire(slot)) return false;
    // The block is ours now and its slab cannot change. Is it the block that was meant? A damaged
    // header cannot tell.
    is_read = lookup_.read_header(slot, header);
    const bool another = is_read && header.stamp != stamp;
    if (another && (proof == Proof::HEADER || is_of_this_life(header.stamp))) {
      allocator_.cancel_retire(slot);
      return false;
    }
    const auto found = index_.find_if(c_.host, hash, [&](const bh_index_entry& entry) {
      return entry.stamp == stamp && c_.layout.valid_block(entry.block_offset, 1) &&
             c_.layout.slot_of(entry.block_offset) == slot;
    });
    if (!found && proof == Proof::ENTRY) {
      allocator_.cancel_retire(slot);
      return false;
    }
    if (found) index_.erase(*found);
    // Before the lock is free: a removal that finds no entry says that the block is gone, and a
    // batch of look-ups may have a copy of the entry in its cache.
    retire_header(slot);
    is_read = is_read && header.stamp == stamp;
    // Under the lock too: so the events of a key come in the order of its blocks.
    if (c_.events != nullptr && c_.events->wanted())
      publish_end(slot, is_read ? &header : nullptr, counter);
  }
  if (is_read)
    usage_.subtract(header);
  else
    usage_.doubt();
  allocator_.finish_retire(slot);
  c_.count(counter);
  if (counter == BH_COUNTER_EVICTIONS && is_read) usage_.evicted(header.namespace_id);
  return true;
}

/// While the block is still held: its key lines are those of the header, unless they are damaged or
/// a zombie wrote them. Without a header (null) nothing can say which block ended: a lost event, as
/// without memory.
template <class A>
void Retirement<A>::publish_end(uint64_t slot, const bh_block_header* of, uint32_t counter) {
  const EventKind kind = counter == BH_COUNTER_EVICTIONS  ? EventKind::EVICTED
                         : counter == BH_COUNTER_REMOVALS ? EventKind::REMOVED
                                                          : EventKind::DAMAGED;
  const auto publish = [&](std::string_view key, std::string_view user) {
    c_.events->publish({kind, of->namespace_id, key, user, of->length_bytes, of->stamp});
  };
  // The block is between its states: an exception would leave it there.
  const auto is_published = [&] {
    try {
      return of != nullptr && lookup_.with_key_lines(slot, *of, publish);
    } catch (const std::bad_alloc&) {
      return false;
    }
  };
  if (!is_published()) c_.events->lose();
}

template <class A>
void Retirement<A>::retire_header(uint64_t slot) {
  extents_.map_writable(c_.layout.extent_of_slot(slot), 1);
  Line line;
  bh_block_header header{};
  if (c_.read_sealed(c_.layout.header(slot), line)) {
    header = from_line<bh_block_header>(line);
  } else {
    header.stamp = next_stamp();
    // A damaged header cannot tell whether the block must be wiped, so it is. A header of zeros was
    // never written, so no wipe was promised.
    if (line != Line{}) header.flags = BH_HEADER_WIPE;
  }
  if (stamp_state(header.stamp) == BH_STAMP_RETIRED) {
    // The process that retired it may have died before it published this.
    c_.access.publish(c_.layout.header(slot), BH_LINE_BYTES);
    return;
  }
  header.stamp = stamp_retired(header.stamp);
  c_.write_sealed(c_.layout.header(slot), to_line(header));
}

template <class A>
uint64_t Retirement<A>::reclaim(std::span<const uint64_t> slots) {
  try {
    return free_or_note(slots);
  } catch (const std::bad_alloc&) {
    return 0;  // reclaim_some() finds them again
  }
}

template <class A>
uint64_t Retirement<A>::free_or_note(std::span<const uint64_t> slots) {
  std::vector<Retired> retired;
  for (const uint64_t slot : slots) {
    const SeenWord seen = c_.see(slot);
    // If the word is still the same when it is freed, the slab is too (A2).
    const Slab slab = extents_.held_slab(c_.layout.extent_of_slot(slot));
    if (seen.word.state == BH_BLOCK_RETIRED && extents_.begins_at(slot, slab))
      retired.push_back({slot, extents_.block_of(slot, slab).offset, seen, 0});
  }
  if (!c_.incoherent()) return free_unnamed(retired);
  // After the words were seen: the stamps were retired before that.
  const uint64_t now_ns = c_.access.now_ns();
  for (Retired& block : retired) block.retired_at_ns = now_ns;
  const std::lock_guard guard(retired_mutex_);
  retired_.insert(retired_.end(), retired.begin(), retired.end());
  return 0;
}

template <class A>
uint64_t Retirement<A>::reclaim_some() {
  constexpr uint64_t kMostBlocks = 65536;
  const uint64_t extents = c_.layout.extent_end();
  std::vector<uint64_t> retired;
  uint64_t e = reclaim_next_ % extents, blocks = 0;
  for (uint64_t i = 0; i < extents && blocks < kMostBlocks; ++i) {
    if (extents_.retired_blocks_hint(e) > 0) {
      const Slab slab = extents_.read_slab(e);
      for (uint64_t block = 0; block < slab.block_count; ++block) {
        const uint64_t slot = extents_.slot_of(slab, block);
        if (allocator_.word(slot).state == BH_BLOCK_RETIRED) retired.push_back(slot);
      }
      blocks += slab.block_count;
    }
    if (++e == extents) e = 0;
  }
  reclaim_next_ = e;
  return reclaim(retired) + (retired.empty() ? 0 : reap(/*wait=*/true));
}

template <class A>
uint64_t Retirement<A>::reap(bool wait) {
  // Twice: just before the retired stamp reaches the memory, a reader may still see the old one,
  // and its hazard, published before, takes as long again.
  const uint64_t settle_ns = 2 * uint64_t{c_.times.settle_ms} * 1'000'000;
  std::vector<Retired> ripe;
  uint64_t last_ns = 0;
  {
    const uint64_t now_ns = c_.access.now_ns();
    const std::lock_guard guard(retired_mutex_);
    const auto unripe = std::partition(retired_.begin(), retired_.end(), [&](const Retired& block) {
      return wait || block.retired_at_ns + settle_ns <= now_ns;
    });
    ripe.assign(retired_.begin(), unripe);
    retired_.erase(retired_.begin(), unripe);
    for (const Retired& block : ripe) last_ns = std::max(last_ns, block.retired_at_ns);
  }
  // reclaim_some() finds those again that wait for the end of a lease.
  std::sort(ripe.begin(), ripe.end(), [](const Retired& a, const Retired& b) {
    return std::pair(a.slot, a.seen.word.sequence) < std::pair(b.slot, b.seen.word.sequence);
  });
  ripe.erase(std::unique(ripe.begin(), ripe.end(),
                         [](const Retired& a, const Retired& b) {
                           return a.slot == b.slot && a.seen.word.sequence == b.seen.word.sequence;
                         }),
             ripe.end());
  const uint64_t settled_at_ns = last_ns + settle_ns;
  if (const uint64_t now_ns = c_.access.now_ns(); !ripe.empty() && settled_at_ns > now_ns)
    c_.access.sleep_ns(settled_at_ns - now_ns);
  return free_unnamed(ripe);
}

/// A block that a lease names is freed later: by reap() (several hosts), by reclaim_some(), or by
/// the release of the lease.
template <class A>
uint64_t Retirement<A>::free_unnamed(const std::vector<Retired>& retired) {
  if (retired.empty() || c_.ended()) return 0;
  c_.access.fence();  // retired stamps before the look at the hazards (C3, L2)
  const std::vector<uint64_t> named = named_blocks();
  uint64_t freed = 0;
  std::vector<Retired> waiting;
  for (const Retired& block : retired) {
    // The word is from before the look: if the block was reused since, the CAS fails.
    if (!std::binary_search(named.begin(), named.end(), block.offset))
      freed += free_retired(block);
    else if (!c_.alone())
      waiting.push_back(block);
  }
  if (!waiting.empty()) {
    const std::lock_guard guard(retired_mutex_);
    retired_.insert(retired_.end(), waiting.begin(), waiting.end());
  }
  return freed;
}

template <class A>
bool Retirement<A>::free_retired(const Retired& block) {
  if (!must_wipe(block.slot)) return allocator_.free_retired(block.slot, block.seen);
  // Reserved meanwhile: else another process could free it, and a third store there.
  const auto held = allocator_.hold_retired(block.slot, block.seen);
  return held && give_back(*held);
}

/// Overwrites payload, key and user metadata, and then the header. The caller holds the block.
/// False: its memory failed, and may still have what was to go.
template <class A>
bool Retirement<A>::wipe(const Block& block) {
  constexpr uint64_t kMostKeyBytes = BH_KEY_BYTES_MAX + BH_USER_BYTES_MAX + BH_USER_CHECK_BYTES;
  constexpr uint64_t kMostKeyLines = (kMostKeyBytes + BH_LINE_BYTES - 1) / BH_LINE_BYTES;
  // Another process of this host may have stored it: not only the header is written here.
  const Slab slab = extents_.held_slab(c_.layout.extent_of_slot(block.slot));
  extents_.map_writable(slab.head, slab.extent_span);
  c_.access.zero(block.offset, block.block_bytes);
  const uint64_t slots = std::min(kMostKeyLines, c_.layout.slots_in(block.block_bytes));
  for (uint64_t slot = block.slot; slot < block.slot + slots; ++slot) {
    const uint64_t at = c_.layout.header(slot) + offsetof(bh_block_slot, key);
    c_.access.store_line(at, Line{});
    c_.access.flush(at, BH_LINE_BYTES);
  }
  c_.access.fence();
  if (c_.access.payload_lost(block.offset, block.block_bytes)) return false;
  bh_block_header header{};
  header.stamp = stamp_retired(0);
  c_.write_sealed(c_.layout.header(block.slot), to_line(header));
  return true;
}

template <class A>
std::vector<uint64_t> Retirement<A>::named_blocks() {
  const uint64_t hosts = c_.alone() ? 1 : hazard_hosts() | lookup_.own_bit();
  std::vector<uint64_t> named = leases_.named_blocks(hosts);
  // Expired leases of this host must not keep blocks: a pool of one host has no heartbeat.
  if (!named.empty() && leases_.revoke_expired(c_.access.now_ns()) > 0)
    named = leases_.named_blocks(hosts);
  return named;
}

template <class A>
uint64_t Retirement<A>::hazard_hosts() const {
  return hosts_.hazard_hosts(c_.access.now_ns());
}

}  // namespace bowhead::core
