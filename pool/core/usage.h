// SPDX-License-Identifier: Apache-2.0
// Usage: the blocks and bytes of each namespace on this host, and how often it was hit, missed and
// evicted, in counters of the host's region, so that they need no walk over all headers.
//
// The host that has a block counts it; the host that looks for one counts the hit or the miss. An
// entry of the table is found by the namespace, and has a line in each of several shards, so that
// few processes add to one line. If there is no place for a namespace it is counted in entry 0, by
// all processes.
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
  void hit(uint64_t ns, uint64_t times = 1) { count(ns, offsetof(bh_usage, hits), times); }
  void missed(uint64_t ns) { count(ns, offsetof(bh_usage, misses)); }
  void evicted(uint64_t ns) { count(ns, offsetof(bh_usage, evictions)); }

  /// A count may be wrong (U3).
  void doubt() { c_.access.store(doubt_at(), 1); }
  bool doubted() const { return c_.access.load(doubt_at()) != 0; }
  /// Counts the blocks anew by allocator words and headers. No other process of the host is alive.
  void recount();
  /// Forgets all, hits and names too: some of it may be damaged. The same.
  void clear();
  /// Writes the counters back, for readers on other hosts.
  void flush();
  /// Calls visit(const bh_usage&) for each line of a host that is in use, acquired.
  template <class Visit>
  void for_each(uint32_t host, Visit visit) const;

 private:
  static constexpr uint64_t kProbes = 16;

  uint64_t doubt_at() const { return c_.private_word(offsetof(bh_host_private, usage_doubt)); }
  uint64_t entries() const {
    return c_.layout.geometry().parts[BH_PART_USAGE].bytes / sizeof(bh_usage) / BH_USAGE_SHARDS;
  }
  uint64_t shard_at(uint32_t host, uint64_t shard) const {
    return c_.layout.part(host, BH_PART_USAGE) + shard * entries() * sizeof(bh_usage);
  }
  uint64_t line_of(uint64_t ns);
  template <class Accept>
  uint64_t probe(uint64_t ns, Accept accept) const;
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
  void count(uint64_t ns, size_t counter, uint64_t times = 1) {
    if (!c_.observing()) c_.access.fetch_add(line_of(ns) + counter, times);
  }

  Context<A>& c_;
  Extents<A>& extents_;
  Allocator<A>& allocator_;
  Lookup<A>& lookup_;
};

/// The first entry of those where a namespace may be that is accepted; else entry 0.
template <class A>
template <class Accept>
uint64_t Usage<A>::probe(uint64_t ns, Accept accept) const {
  const uint64_t others = entries() - 1;
  // Ids are hashes.
  for (uint64_t n = 0, i = (ns >> 32) * others >> 32; n < std::min(kProbes, others); ++n) {
    if (accept(i + 1)) return i + 1;
    if (++i == others) i = 0;
  }
  return 0;
}

/// The line of a namespace in this process's shard. Shard 0 gives a namespace its entry, once for
/// all shards: else one of them could count the put of a block, and entry 0 its end.
template <class A>
uint64_t Usage<A>::line_of(uint64_t ns) {
  const uint64_t shard = shard_at(c_.host, c_.process % BH_USAGE_SHARDS);
  const auto line_at = [](uint64_t in, uint64_t entry) { return in + entry * sizeof(bh_usage); };
  const uint64_t known =
      probe(ns, [&](uint64_t entry) { return c_.access.load(line_at(shard, entry)) == ns; });
  if (known != 0) return line_at(shard, known);
  const uint64_t first = shard_at(c_.host, 0);
  const uint64_t given = probe(ns, [&](uint64_t entry) {
    uint64_t id = c_.access.load(line_at(first, entry));
    return id == ns || (id == 0 && (c_.access.cas(line_at(first, entry), id, ns) || id == ns));
  });
  // All processes store the same, or did; another value is damage.
  if (given != 0 && shard != first) c_.access.store(line_at(shard, given), ns);
  return line_at(shard, given);
}

template <class A>
void Usage<A>::clear() {
  for (uint64_t i = 0; i < c_.layout.geometry().parts[BH_PART_USAGE].bytes / 8; ++i)
    c_.access.store(c_.own(BH_PART_USAGE, i), 0);
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
  const uint64_t begin = shard_at(host, 0), lines = entries() * BH_USAGE_SHARDS;
  c_.acquire_from(host, begin, lines * sizeof(bh_usage));
  for (uint64_t i = 0; i < lines; ++i) {
    const auto usage = from_line<bh_usage>(c_.access.load_line(begin + i * sizeof(bh_usage)));
    if (usage.namespace_id != 0 || i % entries() == 0) visit(usage);
  }
}

}  // namespace bowhead::core
