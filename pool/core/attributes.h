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

#include <algorithm>
#include <atomic>
#include <mutex>
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
  /// A block of this process whose time to live is over, or was when it was set; each once.
  struct Expired {
    uint64_t slot, stamp;
  };
  std::optional<Expired> next_expired();
  /// For a block that is about to replace another one. The caller holds both, and the key's lock.
  void carry(uint64_t from_slot, uint64_t from_stamp, uint64_t to_slot, uint64_t to_stamp) {
    const BlockAttributes attributes = read(from_slot, from_stamp);
    if (attributes != BlockAttributes{}) write(to_slot, to_stamp, attributes);
  }

 private:
  void write(uint64_t slot, uint64_t stamp, const BlockAttributes& attributes);
  void note_expiry(uint64_t slot, uint64_t stamp, uint32_t expires_unix_s);
  bool stands(const auto& expiry) const {
    return read(expiry.slot, expiry.stamp).expires_unix_s == expiry.expires_unix_s;
  }

  /// The time to live of a block; the earliest is on top of the heap.
  struct Expiry {
    uint32_t expires_unix_s;
    uint64_t slot, stamp;
    bool operator<(const Expiry& other) const { return expires_unix_s > other.expires_unix_s; }
  };
  static constexpr size_t kPurgeAtLeast = 65'536;
  typename A::Mutex expiries_mutex_;
  std::vector<Expiry> expiries_;                          ///< a heap
  size_t purge_at_ = kPurgeAtLeast;                       ///< its size when stale entries go
  std::atomic<uint32_t> next_expiry_unix_s_{UINT32_MAX};  ///< UINT32_MAX: there is none

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
  if (attributes.expires_unix_s != 0) note_expiry(slot, stamp, attributes.expires_unix_s);
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

template <class A>
void Attributes<A>::note_expiry(uint64_t slot, uint64_t stamp, uint32_t expires_unix_s) {
  const std::lock_guard lock(expiries_mutex_);
  expiries_.push_back({expires_unix_s, slot, stamp});
  std::push_heap(expiries_.begin(), expiries_.end());
  if (expiries_.size() >= purge_at_) {  // most are of blocks that are gone, or the next is far off
    std::erase_if(expiries_, [&](const Expiry& one) { return !stands(one); });
    std::make_heap(expiries_.begin(), expiries_.end());
    purge_at_ = std::max(kPurgeAtLeast, 2 * expiries_.size());
    if (expiries_.empty()) return next_expiry_unix_s_.store(UINT32_MAX, std::memory_order_relaxed);
  }
  next_expiry_unix_s_.store(expiries_.front().expires_unix_s, std::memory_order_relaxed);
}

/// Entries whose block has another time by now, or none, are passed over.
template <class A>
auto Attributes<A>::next_expired() -> std::optional<Expired> {
  const uint32_t next = next_expiry_unix_s_.load(std::memory_order_relaxed);
  if (next == UINT32_MAX) return std::nullopt;
  const uint64_t now_s = c_.access.unix_ns() / 1'000'000'000;
  if (next > now_s) return std::nullopt;
  const std::lock_guard lock(expiries_mutex_);
  while (!expiries_.empty() && expiries_.front().expires_unix_s <= now_s) {
    std::pop_heap(expiries_.begin(), expiries_.end());
    const Expiry one = expiries_.back();
    expiries_.pop_back();
    next_expiry_unix_s_.store(expiries_.empty() ? UINT32_MAX : expiries_.front().expires_unix_s,
                              std::memory_order_relaxed);
    if (stands(one)) return Expired{one.slot, one.stamp};
  }
  return std::nullopt;
}

}  // namespace bowhead::core
