// SPDX-License-Identifier: Apache-2.0
// Attributes of blocks: words beside the header slots of a table that change while the block stays
// (block.h, bh_block_words). A put writes them only if it is given some.
//
// Invariants
//   M2 The words describe the block whose stamp they state, and no other block ever has that stamp:
//      words that state another one mean "no attributes". So neither a put nor a removal clears
//      them.
//   M3 Only the owner of the extent writes them, under the lock of the block's key, for one that
//      is COMMITTED, or that it holds RESERVED and is about to commit: a process that would retire
//      the block takes that lock too.
//   M4 Stamp 0, then the other words, then the stamp, all in one line. Memory and caches get the
//      stores of a line in their order, so a reader that loads the stamp, the words, and the same
//      stamp again has words that were all set for this block, if perhaps not at one time: each is
//      complete in itself. A process that dies in between leaves the block without attributes.
//
// They are advice, which no invariant of the pool relies on: no seal covers them, so damage may
// change them, and in custody a late store of the former owner may set them back.
//
// Owns: the blocks of this process whose time to live will end. Calls: KeyLocks, Lookup.
#pragma once

#include <atomic>
#include <compare>
#include <mutex>
#include <new>
#include <set>
#include <vector>

#include "pool/core/key_locks.h"

namespace bowhead::core {

template <class A>
class Attributes {
 public:
  explicit Attributes(const Rooms<A>& rooms)
      : c_(rooms.context), extents_(rooms.extents), locks_(rooms.locks), lookup_(rooms.lookup) {}
  Attributes(const Attributes&) = delete;
  Attributes& operator=(const Attributes&) = delete;

  /// Of the block that has this stamp; all zero if none were set.
  BlockAttributes read(uint64_t slot, uint64_t stamp) const;
  /// Sets those of a block of this host. NOT_FOUND: this host does not have the block. BUSY:
  /// another process holds the key's lock, or the block is in READ_ONLY custody. HOST_FENCED.
  Status set(const Key& key, const BlockAttributes& attributes);
  /// For a block that is about to be committed (M3).
  void set_new(uint64_t slot, uint64_t stamp, const BlockAttributes& attributes) {
    if (attributes != BlockAttributes{}) write(slot, stamp, attributes);
  }
  /// The BH_PIN_* of the block of a slot of this host, whichever it is.
  uint32_t pins(uint64_t slot) const;
  /// Some blocks of this process whose time to live is over. The caller evicts them, or puts that
  /// off.
  struct Expired {
    uint64_t slot, stamp;
  };
  std::vector<Expired> take_expired(size_t most);
  void put_off(uint64_t slot, uint64_t stamp) {
    const auto next_s = static_cast<uint32_t>(c_.access.unix_ns() / 1'000'000'000) + 1;
    note_expiry({next_s, slot, stamp});
  }
  /// For a block that is about to replace another one. The caller holds both, and the key's lock.
  void carry(uint64_t from_slot, uint64_t from_stamp, uint64_t to_slot, uint64_t to_stamp) {
    const BlockAttributes attributes = read(from_slot, from_stamp);
    if (attributes != BlockAttributes{}) write(to_slot, to_stamp, attributes);
  }

 private:
  void write(uint64_t slot, uint64_t stamp, const BlockAttributes& attributes);

  /// The time at which a block is to be evicted.
  struct Expiry {
    uint32_t unix_s = 0;
    uint64_t slot = 0, stamp = 0;
    auto operator<=>(const Expiry&) const = default;
  };
  void note_expiry(const Expiry& expiry);
  bool stands(const Expiry& expiry) const;

  typename A::Mutex expiries_mutex_;
  std::set<Expiry> expiries_;
  Expiry purged_;  ///< the last one that was looked at
  /// The first; UINT32_MAX: there is none. Relaxed: it only says whether to look at the set, which
  /// is read under the mutex; a put that sees an old value leaves the eviction to the next.
  std::atomic<uint32_t> next_unix_s_{UINT32_MAX};

  Context<A>& c_;
  Extents<A>& extents_;
  KeyLocks<A>& locks_;
  Lookup<A>& lookup_;
};

template <class A>
BlockAttributes Attributes<A>::read(uint64_t slot, uint64_t stamp) const {
  const uint64_t at = c_.layout.block_words(slot);
  c_.access.acquire(at, sizeof(bh_block_words));
  if (c_.access.load(at) != stamp) return {};
  const bh_block_words words{.stamp = stamp,
                             .pins = c_.access.load(at + offsetof(bh_block_words, pins)),
                             .times = c_.access.load(at + offsetof(bh_block_words, times)),
                             .group = c_.access.load(at + offsetof(bh_block_words, group))};
  // M4: the line may have been fetched anew since the first load, but never an older state of it.
  return c_.access.load(at) == stamp ? attributes_in(words) : BlockAttributes{};
}

template <class A>
Status Attributes<A>::set(const Key& key, const BlockAttributes& attributes) {
  if (c_.ended()) return c_.gone();
  const KeyLock lock(locks_, key.hash);
  if (!lock.held()) return Status::BUSY;
  const auto located = lookup_.locate_at(c_.host, key, Fresh::NOTHING);
  if (!located) return Status::NOT_FOUND;
  const uint64_t extent = c_.layout.extent_of_slot(located->slot);
  if (c_.ended()) return c_.gone();
  if (!extents_.writable(extent)) return Status::BUSY;
  extents_.map_writable(extent, 1);
  write(located->slot, located->header.stamp, attributes);
  return c_.ended() ? c_.gone() : Status::OK;
}

template <class A>
void Attributes<A>::write(uint64_t slot, uint64_t stamp, const BlockAttributes& attributes) {
  const uint64_t at = c_.layout.block_words(slot);
  const bh_block_words words = words_of(attributes);
  c_.access.store(at, 0);
  c_.access.store(at + offsetof(bh_block_words, pins), words.pins);
  c_.access.store(at + offsetof(bh_block_words, times), words.times);
  c_.access.store(at + offsetof(bh_block_words, group), words.group);
  c_.access.store(at, stamp);
  c_.access.publish(at, sizeof words);
  if (attributes.expires_unix_s != 0) note_expiry({attributes.expires_unix_s, slot, stamp});
}

/// Most blocks have no pins: one load shows that. Words of an earlier block say nothing (M2).
template <class A>
uint32_t Attributes<A>::pins(uint64_t slot) const {
  const uint64_t at = c_.layout.block_words(slot);
  const auto pins = static_cast<uint32_t>(
      c_.access.load(at + offsetof(bh_block_words, pins)) >> BH_PIN_SHIFT & 0xFF);
  if (pins == 0) return 0;
  bh_block_header header;
  return lookup_.read_header(slot, header) && c_.access.load(at) == header.stamp ? pins : 0;
}

/// Of a block that is gone, or whose time is another by now or none, the time does not stand.
template <class A>
bool Attributes<A>::stands(const Expiry& expiry) const {
  const uint32_t set_unix_s = read(expiry.slot, expiry.stamp).expires_unix_s;
  return set_unix_s != 0 && set_unix_s <= expiry.unix_s &&
         c_.access.load(c_.layout.header(expiry.slot)) == expiry.stamp;
}

/// For each time that is noted, looks at two others: so at most half of all are stale. The one just
/// noted may be among them, and even that one may not stand, if the memory lost what was stored.
/// Puts and moves come here in the middle, where they must not fail: without memory, the time to
/// live is stored with the block, but no put of this process evicts it then.
template <class A>
void Attributes<A>::note_expiry(const Expiry& expiry) {
  const std::lock_guard lock(expiries_mutex_);
  try {
    if (!expiries_.insert(expiry).second) return;
  } catch (const std::bad_alloc&) {
    return;
  }
  for (int n = 0; n < 2 && !expiries_.empty(); ++n) {
    auto one = expiries_.upper_bound(purged_);
    if (one == expiries_.end()) one = expiries_.begin();
    purged_ = *one;
    if (!stands(*one)) expiries_.erase(one);
  }
  next_unix_s_.store(expiries_.empty() ? UINT32_MAX : expiries_.begin()->unix_s,
                     std::memory_order_relaxed);
}

template <class A>
auto Attributes<A>::take_expired(size_t most) -> std::vector<Expired> {
  std::vector<Expired> expired;
  const uint32_t next_unix_s = next_unix_s_.load(std::memory_order_relaxed);
  if (next_unix_s == UINT32_MAX) return expired;
  const uint64_t now_s = c_.access.unix_ns() / 1'000'000'000;
  if (next_unix_s > now_s) return expired;
  const std::lock_guard lock(expiries_mutex_);
  for (size_t n = 0; n < most && !expiries_.empty() && expiries_.begin()->unix_s <= now_s; ++n) {
    const auto one = expiries_.extract(expiries_.begin()).value();
    if (stands(one)) expired.push_back({one.slot, one.stamp});
  }
  next_unix_s_.store(expiries_.empty() ? UINT32_MAX : expiries_.begin()->unix_s,
                     std::memory_order_relaxed);
  return expired;
}

}  // namespace bowhead::core
