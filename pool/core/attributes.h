// SPDX-License-Identifier: Apache-2.0
// Attributes of blocks: words beside the header slots of a table that change while the block stays
// (block.h, bh_block_words). A put does not touch them.
//
// Invariants
//   M2 The words describe the block whose stamp they state, and no other block ever has that stamp:
//      words that state another one mean "no attributes". So neither a put nor a removal clears
//      them.
//   M3 Only the owner of the extent writes them, for a block that is COMMITTED, under the lock of
//      its key: a process that would retire the block takes that lock too.
//   M4 Stamp 0, then the other words, then the stamp, all in one line. Memory and caches get the
//      stores of a line in their order, so a reader that loads the stamp, the words, and the same
//      stamp again has words that were all set for this block, if perhaps not at one time: each is
//      complete in itself. A process that dies in between leaves the block without attributes.
//
// They are advice, which no invariant of the pool relies on: no seal covers them, so damage may
// change them, and in custody a late store of the former owner may set them back.
//
// Owns: nothing. Calls: KeyLocks, Lookup.
#pragma once

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
  /// For a block that is about to replace another one. The caller holds both, and the key's lock.
  void carry(uint64_t from_slot, uint64_t from_stamp, uint64_t to_slot, uint64_t to_stamp) {
    const BlockAttributes attributes = read(from_slot, from_stamp);
    if (attributes != BlockAttributes{}) write(to_slot, to_stamp, attributes);
  }

 private:
  void write(uint64_t slot, uint64_t stamp, const BlockAttributes& attributes);

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
}

}  // namespace bowhead::core
