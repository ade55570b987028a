// SPDX-License-Identifier: Apache-2.0
// Usage: the blocks and bytes of each namespace on this host, and how often it was hit, missed and
// evicted, in counters of the host's region, so that they need no walk over all headers.
//
// The host that has a block counts it; the host that looks for one counts the hit or the miss. An
// entry of the table is found by the namespace, and has a line in each of several shards, so that
// few processes add to one line. If there is no place for a namespace it is counted in entry 0.
//
// Invariants
//   U1 A block is counted by the process that its allocator word names, just before the word ceases
//      to name it: on the way to COMMITTED, or from RETIRING to RETIRED. So the scavenger of a
//      process counts what it finishes, and is wrong only about a death between these two stores.
//   U2 What was counted is what the header says. A block whose header cannot be read when it goes
//      is not subtracted.
//   U3 `usage_doubt` is raised before a scavenger changes the word of a block that the dead process
//      may have counted or not, and when U2 comes true. It is cleared by a recount only, which runs
//      while no other process of the host is alive: when the host is rebuilt, and when its first
//      process opens the pool.
//
// Counts are statistics: no invariant of the pool relies on them.
//
// Owns: nothing. Calls: Lookup (headers).
#pragma once

#include "pool/core/rooms.h"

namespace bowhead::core {

template <class A>
class Usage {
 public:
  explicit Usage(const Rooms<A>& rooms)
      : c_(rooms.context),
        extents_(rooms.extents),
        allocator_(rooms.allocator),
        lookup_(rooms.lookup) {}
  Usage(const Usage&) = delete;
  Usage& operator=(const Usage&) = delete;

  /// A block with this header becomes COMMITTED, or RETIRED (U1).
  void add(const bh_block_header& header) { change(header, 1); }
  void subtract(const bh_block_header& header) { change(header, uint64_t{0} - 1); }
  void hit(uint64_t ns) { count(ns, offsetof(bh_usage, hits)); }
  void missed(uint64_t ns) { count(ns, offsetof(bh_usage, misses)); }
  void evicted(uint64_t ns) { count(ns, offsetof(bh_usage, evictions)); }

  /// A count may be wrong (U3).
  void doubt() { c_.access.store(doubt_at(), 1); }
  bool doubted() const { return c_.access.load(doubt_at()) != 0; }
  /// Counts the blocks anew by allocator words and headers. No other process of the host is alive.
  void recount();
  /// Writes the counters back, for readers on other hosts.
  void flush();
  /// Calls visit(const bh_usage&) for each line of a host that is in use, acquired.
  template <class Visit>
  void for_each(uint32_t host, Visit visit) const;

 private:
  static constexpr uint64_t kProbes = 8;

  uint64_t doubt_at() const { return c_.private_word(offsetof(bh_host_private, usage_doubt)); }
  uint64_t entries() const {
    return c_.layout.geometry().parts[BH_PART_USAGE].bytes / sizeof(bh_usage) / BH_USAGE_SHARDS;
  }
  uint64_t line_of(uint64_t ns);
  void change(const bh_block_header& header, uint64_t times) {
    const uint64_t at = line_of(header.namespace_id);
    const uint64_t stored_bytes = header.stored_bytes;
    const uint64_t saved_bytes = header.length_bytes - stored_bytes;
    const uint64_t slack_bytes = core::room_for(c_.layout, header) - stored_bytes;
    c_.access.fetch_add(at + offsetof(bh_usage, blocks), times);
    c_.access.fetch_add(at + offsetof(bh_usage, stored_bytes), times * stored_bytes);
    if (saved_bytes != 0)
      c_.access.fetch_add(at + offsetof(bh_usage, saved_bytes), times * saved_bytes);
    if (slack_bytes != 0)
      c_.access.fetch_add(at + offsetof(bh_usage, slack_bytes), times * slack_bytes);
  }
  void count(uint64_t ns, size_t counter) {
    if (!c_.observing()) c_.access.fetch_add(line_of(ns) + counter, 1);
  }

  Context<A>& c_;
  Extents<A>& extents_;
  Allocator<A>& allocator_;
  Lookup<A>& lookup_;
};

/// The line of a namespace in this process's shard; claims one if it has none. Two processes may
/// claim two lines for one namespace: readers add them up.
template <class A>
uint64_t Usage<A>::line_of(uint64_t ns) {
  const uint64_t count = entries();
  const uint64_t shard =
      c_.own(BH_PART_USAGE, 0) + c_.process % BH_USAGE_SHARDS * count * sizeof(bh_usage);
  // Ids are hashes.
  for (uint64_t n = 0, i = (ns >> 32) * (count - 1) >> 32; n < std::min(kProbes, count - 1); ++n) {
    const uint64_t at = shard + (i + 1) * sizeof(bh_usage);
    uint64_t id = c_.access.load(at);
    if (id == ns || (id == 0 && (c_.access.cas(at, id, ns) || id == ns))) return at;
    if (++i == count - 1) i = 0;
  }
  return shard;
}

template <class A>
void Usage<A>::recount() {
  const uint64_t lines = entries() * BH_USAGE_SHARDS;
  for (uint64_t i = 0; i < lines; ++i) {
    const uint64_t at = c_.own(BH_PART_USAGE, 0) + i * sizeof(bh_usage);
    for (const size_t counter : {offsetof(bh_usage, blocks), offsetof(bh_usage, stored_bytes),
                                 offsetof(bh_usage, saved_bytes), offsetof(bh_usage, slack_bytes)})
      c_.access.store(at + counter, 0);
  }
  extents_.for_each_slab([&](const Slab& slab) {
    for (uint64_t i = 0; i < slab.block_count; ++i) {
      const uint64_t slot = extents_.slot_of(slab, i);
      bh_block_header header;
      if (allocator_.word(slot).state == BH_BLOCK_COMMITTED && lookup_.read_header(slot, header) &&
          stamp_state(header.stamp) == BH_STAMP_COMMITTED)
        add(header);
    }
  });
  c_.access.store(doubt_at(), 0);
}

template <class A>
void Usage<A>::flush() {
  const uint64_t lines = entries() * BH_USAGE_SHARDS;
  for (uint64_t i = 0; i < lines; ++i) {
    const uint64_t at = c_.own(BH_PART_USAGE, 0) + i * sizeof(bh_usage);
    if (i % entries() == 0 || c_.access.load_relaxed(at) != 0)
      c_.access.flush(at, sizeof(bh_usage));
  }
}

template <class A>
template <class Visit>
void Usage<A>::for_each(uint32_t host, Visit visit) const {
  const uint64_t begin = c_.layout.part(host, BH_PART_USAGE);
  const uint64_t lines = entries() * BH_USAGE_SHARDS;
  c_.acquire_from(host, begin, lines * sizeof(bh_usage));
  for (uint64_t i = 0; i < lines; ++i) {
    const auto usage = from_line<bh_usage>(c_.access.load_line(begin + i * sizeof(bh_usage)));
    if (usage.namespace_id != 0 || i % entries() == 0) visit(usage);
  }
}

}  // namespace bowhead::core
