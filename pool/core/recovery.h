// SPDX-License-Identifier: Apache-2.0
// Recovery: scavenging the half-done work of dead processes, and rebuilding the private metadata of
// a host after a reboot.
//
// A process is known by its process slot, and alive while it holds that slot's lock (access.h). Its
// half-done work is found by its number in allocator, extent, lease, lock and directory words, and
// is finished or undone by one scavenger, named in the process word; if that one dies too, the next
// takes over. Every step can be repeated. The process slot is free again only when all is done, so
// that a number in a word always means the same process.
//
// Owns: nothing. Calls: Holdings, Lookup, Namespaces, Retirement, Usage, Writing (entries).
#pragma once

#include "pool/core/usage.h"

namespace bowhead::core {

template <class A>
class Recovery {
 public:
  explicit Recovery(const Rooms<A>& rooms)
      : c_(rooms.context),
        extents_(rooms.extents),
        allocator_(rooms.allocator),
        index_(rooms.index),
        leases_(rooms.leases),
        lookup_(rooms.lookup),
        usage_(rooms.usage),
        retirement_(rooms.retirement),
        namespaces_(rooms.namespaces),
        writing_(rooms.writing),
        holdings_(rooms.holdings),
        growth_(rooms.growth) {}
  Recovery(const Recovery&) = delete;
  Recovery& operator=(const Recovery&) = delete;

  /// All that are dead together: a walk over the pool is as long for one. Returns how many.
  uint64_t scavenge_dead();
  /// False if another live process scavenges it. The caller has seen that `dead` does not hold its
  /// lock.
  bool scavenge_process(uint32_t dead);
  /// Of a dead process whose number this one has just taken.
  void undo_work_before();
  /// First the entries that they were writing, then their blocks, by what the entries say.
  uint64_t scavenge_blocks(const Processes& dead);
  /// The caller has the host lock; no other process of the host is alive. Makes allocator, leases
  /// and locks again from published metadata: slabs from extent descriptors, blocks from index
  /// entries whose header agrees. In the first life of a host, which owns the extents that it got
  /// with the pool, nothing was ever stored in its region and extents, and they are not read.
  void rebuild(bool first_life, const Progress& progress);
  /// Restores, by their descriptors, the slabs of which every extent is ours(extent), as far as
  /// there are words for their blocks.
  template <class Ours>
  void restore_slabs(Ours ours);
  /// For a host slot whose lines are lost: the highest incarnation in any stamp of that slot.
  uint32_t highest_incarnation() const;

 private:
  bool begin_scavenging(uint32_t dead);
  void finish_scavenging(Processes dead);
  uint64_t undo_work_of(Processes& dead);
  void free_process_slots(const Processes& dead);
  bool scavenge_block(uint64_t slot, const Slab& slab, const SeenWord& seen);
  bool clean_block(uint64_t slot, const SeenWord& seen, const std::optional<Found>& entry);
  void restore_blocks(const std::function<void()>& half_done);
  void hold_leased();
  void take_back_extents();
  void restore_slab_privately(const Slab& slab);
  bool restore_entry(const bh_index_entry& entry);
  bool restored_elsewhere(const bh_index_entry& entry) const;
  bool restore_unnamed(uint64_t slot, std::span<const uint64_t> damaged);

  Context<A>& c_;
  Extents<A>& extents_;
  Allocator<A>& allocator_;
  Index<A>& index_;
  Leases<A>& leases_;
  Lookup<A>& lookup_;
  Usage<A>& usage_;
  Retirement<A>& retirement_;
  Namespaces<A>& namespaces_;
  Writing<A>& writing_;
  Holdings<A>& holdings_;
  Growth<A>& growth_;
};

template <class A>
uint64_t Recovery<A>::scavenge_dead() {
  const uint32_t count = c_.layout.geometry().process_count;
  Processes dead(count);
  uint64_t found = 0;
  for (uint32_t p = 0; p < count; ++p) {
    const auto word = ProcessWord::unpack(c_.access.load(c_.layout.process(c_.host, p)));
    if (p == c_.process || word.state == BH_PROCESS_FREE || c_.access.process_alive(c_.host, p) ||
        !begin_scavenging(p))
      continue;
    dead.add(p);
    ++found;
  }
  if (found > 0) finish_scavenging(std::move(dead));
  return found;
}

template <class A>
bool Recovery<A>::scavenge_process(uint32_t dead) {
  Processes one(c_.layout.geometry().process_count, dead);
  if (!begin_scavenging(dead)) return false;
  finish_scavenging(std::move(one));
  return true;
}

template <class A>
void Recovery<A>::undo_work_before() {
  Processes dead(c_.layout.geometry().process_count, c_.process);
  undo_work_of(dead);
  dead.remove(c_.process);
  free_process_slots(dead);
}

template <class A>
bool Recovery<A>::begin_scavenging(uint32_t dead) {
  const uint64_t at = c_.layout.process(c_.host, dead);
  uint64_t seen = c_.access.load(at);
  const auto word = ProcessWord::unpack(seen);
  if (word.state == BH_PROCESS_FREE) return false;
  if (word.state == BH_PROCESS_SCAVENGING && word.scavenger != 0 && c_.alive(word.scavenger - 1))
    return false;
  // Between the load and here its slot may have been scavenged and taken anew: then the word
  // changed.
  return !c_.access.process_alive(c_.host, dead) &&
         c_.access.cas(at, seen, word.next(BH_PROCESS_SCAVENGING, c_.process + 1).pack());
}

template <class A>
void Recovery<A>::finish_scavenging(Processes dead) {
  growth_.refresh();  // a dead one may have stored in a set that came just now
  c_.count(BH_COUNTER_SCAVENGED, undo_work_of(dead));
  free_process_slots(dead);
}

template <class A>
void Recovery<A>::free_process_slots(const Processes& dead) {
  dead.for_each([&](uint32_t p) {
    const uint64_t at = c_.layout.process(c_.host, p);
    c_.access.store(at, ProcessWord::unpack(c_.access.load(at)).next(BH_PROCESS_FREE).pack());
  });
}

/// Returns how much was half done. Adds those that the dead ones were scavenging.
template <class A>
uint64_t Recovery<A>::undo_work_of(Processes& dead) {
  const uint32_t count = c_.layout.geometry().process_count;
  for (bool added = true; added;) {
    added = false;
    for (uint32_t p = 0; p < count; ++p) {
      const uint64_t at = c_.layout.process(c_.host, p);
      uint64_t seen = c_.access.load(at);
      const auto other = ProcessWord::unpack(seen);
      if (dead.has(p) || other.state != BH_PROCESS_SCAVENGING || other.scavenger == 0 ||
          !dead.has(other.scavenger - 1) ||
          !c_.access.cas(at, seen, other.next(BH_PROCESS_SCAVENGING).pack()) ||
          !begin_scavenging(p))
        continue;
      dead.add(p);
      added = true;
    }
  }
  uint64_t found = leases_.scavenge(dead);
  // It may have died while it counted a block that it imported, whose word names no process.
  const uint64_t busy = c_.access.load(c_.private_word(offsetof(bh_host_private, extents_busy)));
  if (busy >> 48 != 0 && dead.has((busy >> 48) - 1)) usage_.doubt();
  found += scavenge_blocks(dead);
  found += extents_.scavenge(dead);
  index_.release_locks(dead);
  dead.for_each([&](uint32_t p) {
    for (const uint64_t parity : {0, 1}) c_.access.store(Publishing<A>::count_at(c_, p, parity), 0);
  });
  extents_.recount();
  return found;
}

template <class A>
uint64_t Recovery<A>::scavenge_blocks(const Processes& dead) {
  uint64_t found = index_.scavenge_claims(dead);
  std::vector<uint64_t> retired;
  extents_.for_each_word([&](uint64_t slot, const SeenWord& seen) {
    // Names no process: the one that retired it may have died before it looked at the hazards.
    if (seen.word.state == BH_BLOCK_RETIRED) retired.push_back(slot);
    if (!names_process(seen.word.state) || !dead.has(seen.word.process)) return;
    ++found;
    if (scavenge_block(slot, extents_.held_slab(c_.layout.extent_of_slot(slot)), seen))
      retired.push_back(slot);
  });
  retirement_.reclaim(retired);
  return found;
}

/// Protocol 5.12. True if the block is RETIRED now, false if it stays committed.
template <class A>
bool Recovery<A>::scavenge_block(uint64_t slot, const Slab& slab, const SeenWord& seen) {
  bh_block_header header;
  std::optional<Found> own_entry, other_entry;
  const bool stands = slab.block_bytes != 0 && lookup_.read_header(slot, header) &&
                      stamp_state(header.stamp) == BH_STAMP_COMMITTED;
  if (stands) {
    const uint64_t offset = extents_.block_of(slot, slab).offset;
    const Hash128 hash = hash_of(header);
    const auto is_own = [&](const bh_index_entry& entry) {
      return entry.block_offset == offset && entry.stamp == header.stamp;
    };
    own_entry = index_.find_if(c_.host, hash, is_own);
    const std::string text = lookup_.read_key(slot, header.key_bytes);
    other_entry = index_.find_if(c_.host, hash, [&](const bh_index_entry& entry) {
      // CLEANING by a scavenger that died too: that block is the one to go.
      return !is_own(entry) &&
             lookup_.verify(Found{entry, c_.host, 0, 0, 0}, Key(header.namespace_id, text, hash)) &&
             allocator_.word(c_.layout.slot_of(entry.block_offset)).state != BH_BLOCK_CLEANING;
    });
  }
  // Once the entry stands, or the header is retired, the block may have been counted (U1, U3).
  if (seen.word.state == BH_BLOCK_RESERVED   ? own_entry.has_value()
      : seen.word.state == BH_BLOCK_RETIRING ? !stands
                                             : true)
    usage_.doubt();
  // RETIRING with its entry in place: a removal that had not become visible. RESERVED with its
  // entry in place: a put whose success was visible already. If another entry has the key too, they
  // are the two blocks of a move, and the other one is enough. A length that the block cannot have,
  // or that the entry contradicts, is damage: no reader would accept the block, and no bytes beyond
  // it may be touched.
  const bool whole = own_entry && header.stored_bytes == own_entry->entry.stored_bytes &&
                     header.stored_bytes <= slab.block_bytes;
  const bool keep = whole && seen.word.state != BH_BLOCK_CLEANING && !other_entry;
  if (keep) {
    // The dead process may not have published them.
    c_.access.publish(own_entry->entry.block_offset, header.stored_bytes);
    c_.access.publish(c_.layout.header(slot), sizeof(bh_block_slot));
    index_.publish(*own_entry);
    namespaces_.gone_after_store(header.namespace_id);  // N4
    if (seen.word.state == BH_BLOCK_RESERVED) usage_.add(header);
    c_.change(seen, seen.word.next(BH_BLOCK_COMMITTED));
    return false;
  }
  return clean_block(slot, seen, own_entry);
}

template <class A>
bool Recovery<A>::clean_block(uint64_t slot, const SeenWord& seen,
                              const std::optional<Found>& entry) {
  const StateWord cleaning = seen.word.next(BH_BLOCK_CLEANING, c_.process);
  if (!c_.change(seen, cleaning)) return false;
  if (entry) index_.erase(*entry);
  bh_block_header header;
  const bool counted = seen.word.state == BH_BLOCK_RETIRING && lookup_.read_header(slot, header);
  retirement_.retire_header(slot);
  if (counted) usage_.subtract(header);
  c_.store_state(seen.at, cleaning.next(BH_BLOCK_RETIRED));
  return true;
}

template <class A>
void Recovery<A>::rebuild(bool first_life, const Progress& progress) {
  const auto& g = c_.layout.geometry();
  const auto step = [&](uint64_t done) {
    if (progress) progress(done, 4, "rebuilding the allocator from the index");
  };
  step(0);
  leases_.reset();
  if (c_.alone()) {  // no other host can have declared it dead: a value there is damage
    for (uint32_t host = 0; host < BH_HOSTS_MAX; ++host)
      c_.access.store(c_.own(BH_PART_VIEW, host), 0);
  }
  for (const size_t at :
       {offsetof(bh_host_private, probed_hosts), offsetof(bh_host_private, publish_phase),
        offsetof(bh_host_private, wanted_extents), offsetof(bh_host_private, extents_busy),
        offsetof(bh_host_private, asked_hosts)})
    c_.access.store(c_.private_word(at), 0);
  for (uint64_t i = 0; i < g.lock_count; ++i) c_.access.store(c_.own(BH_PART_LOCKS, i), 0);
  for (uint32_t p = 0; p < g.process_count; ++p) {
    const uint64_t at = c_.layout.process(c_.host, p);
    c_.access.store(at, ProcessWord::unpack(c_.access.load(at)).next(BH_PROCESS_FREE).pack());
    for (const uint64_t parity : {0, 1}) c_.access.store(Publishing<A>::count_at(c_, p, parity), 0);
  }
  c_.access.store(retirement_.sequence_at(), 0);
  if (!first_life) {
    // The clock of recency started again with the boot.
    for (const Set& set : c_.layout.sets().list) {
      for (uint64_t i = set.first_word; i < set.word_end(); ++i)
        c_.access.store_relaxed(c_.own(BH_PART_RECENCY, i), 0);
    }
  }
  std::vector<Slab> private_slabs;
  extents_.for_each_slab([&](const Slab& slab) { private_slabs.push_back(slab); });
  extents_.reset(/*words_used=*/!first_life);
  take_back_extents();
  step(1);
  restore_slabs([&](uint64_t e) { return extents_.holds(e); });
  for (const Slab& slab : private_slabs) restore_slab_privately(slab);
  step(2);
  if (first_life)
    index_.log().restart();
  else
    restore_blocks([&] { step(3); });
  extents_.recount();
  usage_.recount();
  step(4);
}

template <class A>
void Recovery<A>::restore_blocks(const std::function<void()>& half_done) {
  const std::vector<uint64_t> damaged = index_.rebuild(
      [&](uint64_t offset) {
        if (c_.layout.valid_block(offset, 1)) c_.prefetch_slot(c_.layout.slot_of(offset));
      },
      [&](const bh_index_entry& entry) { return restore_entry(entry); });
  half_done();
  // A header whose block does not come back must not show a committed stamp (C2).
  for (uint64_t extent = 0; extent < c_.layout.extent_end(); ++extent) {
    if (!extents_.writable(extent) || extents_.closed(extent)) continue;
    const Slab slab = extents_.held_slab(extent);
    // Never carved, so no header was ever written there.
    if (c_.access.load_line(c_.layout.descriptor(extent)) == Line{} && slab.block_bytes == 0)
      continue;
    const uint64_t end = c_.layout.first_slot(extent + 1);
    for (uint64_t slot = c_.layout.first_slot(extent); slot < end; ++slot) {
      const uint64_t stamp = c_.access.load(c_.layout.header(slot));
      if (stamp == 0) continue;
      const bool begins = extents_.begins_at(slot, slab);
      if (stamp_state(stamp) == BH_STAMP_COMMITTED) {
        if ((begins && allocator_.word(slot).state == BH_BLOCK_COMMITTED) ||
            restore_unnamed(slot, damaged))
          continue;
        retirement_.retire_header(slot);
      }
      if (!begins || allocator_.word(slot).state != BH_BLOCK_FREE) continue;
      bh_block_header header;
      if (!lookup_.read_header(slot, header)) retirement_.retire_header(slot);
      if (retirement_.must_wipe(slot)) allocator_.restore_retired(slot);  // C5
    }
  }
  if (!c_.alone()) hold_leased();
}

/// Blocks that are free by the published metadata, but that leases of other hosts still name: they
/// become RETIRED, and are freed like any retired block (I4).
template <class A>
void Recovery<A>::hold_leased() {
  c_.settle();
  c_.settle();  // twice, as in Retirement::reap()
  for (const uint64_t offset : retirement_.named_blocks()) {
    if (!c_.layout.valid_block(offset, 1)) continue;
    const uint64_t slot = c_.layout.slot_of(offset);
    if (allocator_.word(slot).state == BH_BLOCK_FREE &&
        extents_.begins_at(slot, extents_.held_slab(c_.layout.extent_of_slot(slot))))
      allocator_.restore_retired(slot);
  }
}

/// Every extent has an owner (I5): if one has none, its word was lost; its first owner takes it.
template <class A>
void Recovery<A>::take_back_extents() {
  for (const Set& set : c_.layout.sets().list) {
    const uint64_t end = c_.layout.first_extent_of(set, c_.host + 1);
    for (uint64_t e = c_.layout.first_extent_of(set, c_.host); e < end; ++e) {
      if (holdings_.has_owner(e)) continue;
      holdings_.write_own(e, {BH_OWN_OWN, 1});
    }
  }
}

template <class A>
template <class Ours>
void Recovery<A>::restore_slabs(Ours ours) {
  const auto& g = c_.layout.geometry();
  for (uint64_t e = 0; e < c_.layout.extent_end();) {
    const Set* set = c_.layout.set_of(e);
    if (set == nullptr) {
      ++e;
      continue;
    }
    Line line;
    const uint64_t at = c_.layout.descriptor(e);
    c_.access.acquire(at, BH_LINE_BYTES);
    const bool sealed = c_.read_sealed(at, line);
    const auto d = from_line<bh_extent_descriptor>(line);
    bool good = sealed && d.block_bytes >= g.min_block_bytes &&
                d.block_bytes % BH_PAYLOAD_ALIGN == 0 && d.extent_span >= 1 &&
                d.extent_span <= set->extent_end() - e && d.block_count >= 1 &&
                d.block_count == d.extent_span * g.extent_bytes / d.block_bytes;
    for (uint64_t part = e; good && part < e + d.extent_span; ++part) good = ours(part);
    if (good && !extents_.restore_slab(Slab{e, d.block_bytes, d.block_count, d.extent_span}) &&
        extents_.writable(e))
      extents_.write_descriptor(e, Slab{e, 0, 0, 0});
    e += good ? d.extent_span : 1;
  }
}

/// Where a descriptor is damaged: restores the slab from the private part, if all of it is free.
template <class A>
void Recovery<A>::restore_slab_privately(const Slab& slab) {
  Line line;
  if (c_.read_sealed(c_.layout.descriptor(slab.head), line)) return;
  for (uint64_t e = slab.head; e < slab.head + slab.extent_span; ++e) {
    if (!extents_.is_free(e)) return;
  }
  if (extents_.restore_slab(slab)) extents_.write_descriptor(slab.head, slab);
}

/// True if the block that an entry names is there; it is COMMITTED then. Also true if its header is
/// damaged: the entry stays, so that `pool check` can report the loss.
template <class A>
bool Recovery<A>::restore_entry(const bh_index_entry& entry) {
  if (!c_.layout.valid_block(entry.block_offset, entry.stored_bytes)) return false;
  const uint64_t slot = c_.layout.slot_of(entry.block_offset);
  bh_block_header header;
  if (lookup_.read_header(slot, header) &&
      (header.stamp != entry.stamp || stamp_state(header.stamp) != BH_STAMP_COMMITTED ||
       hash_of(header) != hash_of(entry) || header.stored_bytes != entry.stored_bytes))
    return false;
  const Slab slab = extents_.held_slab(c_.layout.extent_of_slot(slot));
  const uint32_t usable =
      extents_.closed(c_.layout.extent_of_slot(slot)) ? BH_BLOCK_NONE : BH_BLOCK_FREE;
  if (allocator_.word(slot).state != usable || slab.block_bytes == 0 ||
      extents_.block_of(slot, slab).offset != entry.block_offset ||
      entry.stored_bytes > slab.block_bytes || restored_elsewhere(entry))
    return false;
  allocator_.restore_committed(slot);
  return true;
}

/// A death in the middle of a move left two blocks of one key, and the other one is restored.
template <class A>
bool Recovery<A>::restored_elsewhere(const bh_index_entry& entry) const {
  const Hash128 hash = hash_of(entry);
  const auto other = index_.find_if(c_.host, hash, [&](const bh_index_entry& e) {
    if (e.namespace_id != entry.namespace_id || e.block_offset == entry.block_offset ||
        !c_.layout.valid_block(e.block_offset, e.stored_bytes))
      return false;
    bh_block_header header;
    const uint64_t slot = c_.layout.slot_of(e.block_offset);
    return allocator_.word(slot).state == BH_BLOCK_COMMITTED && lookup_.read_header(slot, header) &&
           header.stamp == e.stamp;
  });
  return other.has_value();
}

/// Gives an entry to a whole block whose entry was damaged, if its bytes can be verified. A block
/// without a trace of an entry is not restored: either its put had not returned, or its removal had
/// begun and another host may have reported the key as removed.
template <class A>
bool Recovery<A>::restore_unnamed(uint64_t slot, std::span<const uint64_t> damaged) {
  bh_block_header header;
  const Slab slab = extents_.held_slab(c_.layout.extent_of_slot(slot));
  if (!extents_.begins_at(slot, slab) || allocator_.word(slot).state != BH_BLOCK_FREE ||
      !lookup_.read_header(slot, header) || header.checksum_kind == BH_CHECKSUM_NONE)
    return false;
  const Block block = extents_.block_of(slot, slab);
  const std::string text = lookup_.read_key(slot, header.key_bytes);
  const Key key(header.namespace_id, text);
  if (!Key::valid(text) || key.hash != hash_of(header) || !index_.probes_any(key.hash, damaged) ||
      c_.layout.block_bytes(header.stored_bytes, Layout::key_line_bytes(header)) >
          block.block_bytes ||
      lookup_.locate(key) || !index_.insert(writing_.entry_for(block, header)))
    return false;
  allocator_.restore_committed(slot);
  return true;
}

template <class A>
uint32_t Recovery<A>::highest_incarnation() const {
  uint32_t highest = 0;
  for (uint64_t slot = 0; slot < c_.layout.slot_limit(); ++slot) {
    bh_block_header header;
    if (!lookup_.read_header(slot, header) || header.stamp >> 58 != c_.host) continue;
    highest = std::max(highest, static_cast<uint32_t>(header.stamp >> 42) & 0xFFFFu);
  }
  return highest;
}

}  // namespace bowhead::core
