// SPDX-License-Identifier: Apache-2.0
// Inspection of the pool: info, list, check. It stores nothing into the pool, so a process that has
// the pool mapped read-only may use it.
//
// Owns: nothing. Calls: Attributes, Usage, Holdings, Lookup, Namespaces.
#pragma once

#include <fmt/format.h>

#include <unordered_set>

#include "base/coherence.h"
#include "pool/core/attributes.h"
#include "pool/core/namespaces.h"
#include "pool/core/usage.h"

namespace bowhead::core {

/// A key in readable form: text in quotes, or hex.
inline std::string printable_key(std::string_view key) {
  bool text = true;
  for (const char c : key) text &= c >= 0x20 && c < 0x7F;
  if (text) return fmt::format("'{}'", key);
  std::string hex = "0x";
  for (const char c : key) hex += fmt::format("{:02x}", static_cast<unsigned char>(c));
  return hex;
}

template <class A>
class Inspection {
 public:
  explicit Inspection(const Rooms<A>& rooms)
      : c_(rooms.context),
        index_(rooms.index),
        leases_(rooms.leases),
        hosts_(rooms.hosts),
        settings_(rooms.settings),
        lookup_(rooms.lookup),
        attributes_(rooms.attributes),
        usage_(rooms.usage),
        namespaces_(rooms.namespaces),
        holdings_(rooms.holdings),
        growth_(rooms.growth) {}
  Inspection(const Inspection&) = delete;
  Inspection& operator=(const Inspection&) = delete;

  /// The heartbeat word of a host, acquired.
  uint64_t heartbeat_of(uint32_t host) const;
  /// Whom a change of a block waits for.
  struct Writer {
    uint32_t host;  ///< it alone writes to the block's extent
    /// A host that was declared dead and not fenced: `host` must not write there before it is.
    std::optional<uint32_t> may_still_write;
  };
  /// Nothing if the pool does not have the key.
  std::optional<Writer> writer_of(const Key& key);
  void fill_info(PoolInfo& info);
  /// Of all hosts, as the counts of others were some heartbeats ago.
  uint64_t used_bytes_on(const Set& set) const;
  /// The pool may be in use. So a suspected fault is checked again when stores under way have
  /// arrived, and is a finding only if it is still there.
  CheckReport check(bool payload, const Progress& progress);
  void list(const std::function<bool(const BlockInfo&)>& visit);
  /// The block of a key. NOT_FOUND, also for one whose user metadata are damaged.
  Result<BlockInfo> describe(const Key& key);
  std::vector<NamespaceUsage> usage();
  /// The fault of the block that an entry names; empty if there is none. If the entry may have
  /// vanished or moved meanwhile, the caller must look whether it is still there.
  std::optional<std::string> entry_fault(const Found& found, bool payload, CheckReport& report);

 private:
  /// Calls visit(entry, header, slot) for every committed block of every host until it returns
  /// false.
  template <class Visit>
  void for_each_block(Visit visit) const;
  /// The same for one host, for blocks in the extents that it writes; false if visit() was false.
  template <class Visit>
  bool for_each_block_of(uint32_t host, const std::vector<uint32_t>& writers, Visit visit) const;
  PoolInfo::Host host_info(uint32_t host);
  void add_mirror(uint64_t process_at, PoolInfo::Host& host) const;
  struct PrivateView;
  std::unique_ptr<PrivateView> view_of(uint32_t host, std::string* why_not) const;
  void check_entries(const std::vector<std::unique_ptr<PrivateView>>& views, CheckReport& report,
                     bool payload, const Progress& progress);
  void check_blocks(const PrivateView& view, CheckReport& report);
  void check_slabs(const PrivateView& view, CheckReport& report);
  void check_words(const PrivateView& view, CheckReport& report);
  void check_sets(CheckReport& report);
  void check_slots_and_extents(CheckReport& report);
  void check_namespaces(CheckReport& report);
  void check_unused_parts(CheckReport& report);
  void count_blocks(PoolInfo& info) const;
  bool has_blocks(uint32_t host) const;
  void sum_counters(PoolInfo& info) const;
  const char* housekeeping_fault(const Found& found, const PrivateView* view) const;
  bool descriptor_says(const Slab& slab) const;

  Context<A>& c_;
  Index<A>& index_;
  Leases<A>& leases_;
  Hosts<A>& hosts_;
  const Settings& settings_;
  Lookup<A>& lookup_;
  Attributes<A>& attributes_;
  Usage<A>& usage_;
  Namespaces<A>& namespaces_;
  Holdings<A>& holdings_;
  Growth<A>& growth_;
};

template <class A>
std::optional<typename Inspection<A>::Writer> Inspection<A>::writer_of(const Key& key) {
  const auto located = lookup_.locate(key);
  if (!located) return std::nullopt;
  const uint64_t extent = c_.layout.extent_of_slot(located->slot);
  Writer writer{.host = holdings_.writer_of_extent(extent), .may_still_write = std::nullopt};
  if (holdings_.own_of(writer.host, extent).custody == BH_CUSTODY_READ_ONLY) {
    for (const Life life : holdings_.predecessors(extent)) {
      if (life.host == writer.host || hosts_.fenced(life)) continue;
      writer.may_still_write = life.host;
      break;
    }
  }
  return writer;
}

template <class A>
uint64_t Inspection<A>::used_bytes_on(const Set& set) const {
  const LivesOver over = c_.alone() ? LivesOver{} : holdings_.refresh_own_words();
  uint64_t used_bytes = 0;
  for (uint64_t e = set.first_extent; e < set.extent_end(); ++e) {
    const uint32_t host = c_.alone() ? 0 : holdings_.holding_of(e, over).life.host;
    const uint64_t at = c_.layout.extent_state(host, e);
    c_.acquire_from(host, at, sizeof(bh_extent_state));
    if (c_.load_state(at).state != BH_EXTENT_SLAB) continue;
    const uint64_t free_blocks = c_.access.load(at + offsetof(bh_extent_state, free_blocks));
    const uint64_t blocks =
        static_cast<uint32_t>(c_.access.load(at + offsetof(bh_extent_state, block_count)));
    used_bytes += (blocks - std::min(blocks, free_blocks)) *
                  c_.access.load(at + offsetof(bh_extent_state, block_bytes));
  }
  return std::min(used_bytes, set.extent_count * c_.layout.geometry().extent_bytes);
}

template <class A>
void Inspection<A>::fill_info(PoolInfo& info) {
  const auto& g = c_.layout.geometry();
  info.size_bytes = g.total_bytes;
  info.payload_bytes = c_.layout.payload_bytes();
  for (const bh_set& set : growth_.table().sets) {
    if (set.state == BH_SET_NONE) continue;
    static constexpr const char* kStates[] = {"", "added", "used", "draining"};
    info.size_bytes += set.bytes;
    info.sets.push_back({.number = set.number,
                         .state = set.state < 4 ? kStates[set.state] : "damaged",
                         .locator = {set.locator, strnlen(set.locator, sizeof set.locator)},
                         .bytes = set.bytes,
                         .payload_bytes = set.extent_count * g.extent_bytes});
  }
  for (const auto& lost : growth_.passed_over()) {
    for (PoolInfo::MediaSet& set : info.sets) {
      if (set.number != lost.set.number) continue;
      set.state = "missing";
      set.why_missing = lost.why.message();
      info.payload_bytes += set.payload_bytes;
    }
  }
  info.max_bytes = g.max_bytes;
  info.metadata_bytes = info.size_bytes - info.payload_bytes;
  info.extent_bytes = g.extent_bytes;
  info.extent_count = c_.layout.extent_count();
  info.min_block_bytes = g.min_block_bytes;
  info.evict_high_permille = settings_.evict_high_permille;
  info.evict_low_permille = settings_.evict_low_permille;
  info.times = c_.alone() ? SharingTimes{0, 0, 0, 0, 0} : c_.times;
  info.flush = flush_kind_name(c_.access.flush_kind());
  count_blocks(info);
  sum_counters(info);
  for (uint32_t host = 0; host < g.host_count; ++host) info.hosts.push_back(host_info(host));
  for (const bh_namespace& entry : namespaces_.live_namespaces())
    info.namespaces.push_back({entry.id, entry.name, entry.description, format_in(entry)});
}

template <class A>
void Inspection<A>::count_blocks(PoolInfo& info) const {
  const auto& g = c_.layout.geometry();
  std::string why_not;
  // By the allocator words where this process can read them: they include blocks being stored.
  const uint32_t near = c_.alone() ? 0 : c_.host;
  const auto view = near < g.host_count ? view_of(near, &why_not) : nullptr;
  if (view) {
    view->extents.for_each_slab([&](const Slab& slab) {
      for (uint64_t i = 0; i < slab.block_count; ++i) {
        const uint32_t state = view->allocator.word(view->extents.slot_of(slab, i)).state;
        info.blocks += state == BH_BLOCK_COMMITTED;
        if (state != BH_BLOCK_FREE && state != BH_BLOCK_NONE)
          info.used_bytes += static_cast<int64_t>(slab.block_bytes);
      }
    });
  }
  for (uint32_t host = 0; host < g.host_count; ++host) {
    if ((view && host == near) || !has_blocks(host)) continue;
    usage_.for_each(host, [&](const bh_usage& line) {
      info.blocks += static_cast<int64_t>(line.blocks);
      info.used_bytes += static_cast<int64_t>(line.stored_bytes + line.slack_bytes);
    });
  }
}

/// The blocks of a life that is over are counted by its successor, as it imports them.
template <class A>
bool Inspection<A>::has_blocks(uint32_t host) const {
  const auto slot = hosts_.read_slot(host);
  return slot &&
         (c_.layout.geometry().host_count == 1 || !hosts_.decided({host, slot->incarnation}));
}

template <class A>
void Inspection<A>::sum_counters(PoolInfo& info) const {
  const auto& g = c_.layout.geometry();
  uint64_t sums[BH_COUNTER_ROOM] = {};
  for (uint32_t host = 0; host < g.host_count; ++host) {
    c_.acquire_from(host, c_.layout.part(host, BH_PART_PROCESSES),
                    sizeof(bh_process) * g.process_count);
    for (uint32_t p = 0; p < g.process_count; ++p) {
      for (uint32_t i = 0; i < BH_COUNTER_ROOM; ++i)
        sums[i] +=
            c_.access.load(c_.layout.process(host, p) + offsetof(bh_process, counters) + i * 8);
    }
  }
  info.puts = sums[BH_COUNTER_PUTS];
  info.puts_present = sums[BH_COUNTER_PUTS_PRESENT];
  info.hits = sums[BH_COUNTER_HITS];
  info.misses = sums[BH_COUNTER_MISSES];
  info.evictions = sums[BH_COUNTER_EVICTIONS];
  info.removals = sums[BH_COUNTER_REMOVALS];
  info.moves = sums[BH_COUNTER_MOVES];
  info.damaged = sums[BH_COUNTER_DAMAGED];
  info.bytes_in = sums[BH_COUNTER_BYTES_IN];
  info.bytes_out = sums[BH_COUNTER_BYTES_OUT];
  info.no_space = sums[BH_COUNTER_NO_SPACE];
  info.scavenged = sums[BH_COUNTER_SCAVENGED];
  info.hits_elsewhere = sums[BH_COUNTER_HITS_ELSEWHERE];
  info.recompressed = sums[BH_COUNTER_RECOMPRESSED];
}

template <class A>
CheckReport Inspection<A>::check(bool payload, const Progress& progress) {
  CheckReport report;
  std::vector<std::unique_ptr<PrivateView>> views;
  for (uint32_t host = 0; host < hosts_.count(); ++host) {
    std::string why_not;
    views.push_back(view_of(host, &why_not));
    if (!why_not.empty())
      report.not_checked.push_back(fmt::format("the allocator of host {}: {}", host, why_not));
  }
  check_sets(report);
  check_entries(views, report, payload, progress);
  for (const auto& view : views) {
    if (!view) continue;
    check_blocks(*view, report);
    check_slabs(*view, report);
    check_words(*view, report);
  }
  check_slots_and_extents(report);
  check_namespaces(report);
  check_unused_parts(report);
  return report;
}

template <class A>
void Inspection<A>::list(const std::function<bool(const BlockInfo&)>& visit) {
  for_each_block([&](const bh_index_entry& entry, const bh_block_header& header, uint64_t slot) {
    if (namespaces_.gone(entry.namespace_id)) return true;
    std::string key = lookup_.read_key(slot, header.key_bytes);
    // The block slot may have another block by now, whose key was then read in whole or in part.
    const Hash128 hash = hash128(key.data(), key.size(), header.namespace_id);
    if (hash != Hash128{header.key_hash[0], header.key_hash[1]}) return true;
    auto user = lookup_.read_user(slot, header);
    if (!user) user.emplace();  // damaged: describe() says so
    return visit(BlockInfo{entry.namespace_id, std::move(key), header.length_bytes,
                           header.stored_bytes, entry.block_offset, entry.stamp, std::move(*user),
                           attributes_.read(slot, entry.stamp)});
  });
}

template <class A>
Result<BlockInfo> Inspection<A>::describe(const Key& key) {
  Status status = Status::NOT_FOUND;
  for (int attempt = 0; attempt < 3; ++attempt) {
    status = Status::NOT_FOUND;
    const auto located = lookup_.locate(key);
    if (!located) break;
    const bh_block_header& header = located->header;
    auto user = lookup_.read_user(located->slot, header);
    status = Status::DAMAGED;  // unless the block was going
    if (!user) continue;
    return BlockInfo{key.namespace_id,
                     std::string(key.bytes),
                     header.length_bytes,
                     header.stored_bytes,
                     located->found.entry.block_offset,
                     header.stamp,
                     std::move(*user),
                     attributes_.read(located->slot, header.stamp)};
  }
  if (status != Status::DAMAGED) return status;
  return Error{
      Status::DAMAGED,
      "the user metadata of the block are damaged, its value is not: get the value, remove "
      "the block, and put it anew"};
}

template <class A>
std::vector<NamespaceUsage> Inspection<A>::usage() {
  const std::vector<bh_namespace> live = namespaces_.live_namespaces();
  std::map<uint64_t, NamespaceUsage> usage;
  for (const bh_namespace& entry : live) usage[entry.id].id = entry.id;
  for (uint32_t host = 0; host < c_.layout.geometry().host_count; ++host) {
    const bool counts = has_blocks(host);
    usage_.for_each(host, [&](const bh_usage& line) {
      const auto named = usage.find(line.namespace_id);
      if (named == usage.end() && to_line(line) == Line{}) return;
      NamespaceUsage& of = named == usage.end() ? usage[0] : named->second;
      if (counts) {
        of.blocks += static_cast<int64_t>(line.blocks);
        of.value_bytes += static_cast<int64_t>(line.stored_bytes + line.saved_bytes);
        of.stored_bytes += static_cast<int64_t>(line.stored_bytes);
        of.block_bytes += static_cast<int64_t>(line.stored_bytes + line.slack_bytes);
      }
      of.hits += line.hits;
      of.misses += line.misses;
      of.evictions += line.evictions;
    });
  }
  std::vector<NamespaceUsage> result;
  for (const auto& [id, of] : usage) result.push_back(of);
  return result;
}

template <class A>
template <class Visit>
void Inspection<A>::for_each_block(Visit visit) const {
  const std::vector<uint32_t> writers = holdings_.writers_of_extents();
  for (uint32_t host = 0; host < c_.layout.geometry().host_count; ++host) {
    if (!for_each_block_of(host, writers, visit)) return;
  }
}

template <class A>
template <class Visit>
bool Inspection<A>::for_each_block_of(uint32_t host, const std::vector<uint32_t>& writers,
                                      Visit visit) const {
  bool more = true;
  index_.for_each(host, [&](const Found& found) {
    const bh_index_entry& entry = found.entry;
    if (!more || !c_.layout.valid_block(entry.block_offset, entry.stored_bytes)) return;
    const uint64_t slot = c_.layout.slot_of(entry.block_offset);
    if (writers[c_.layout.extent_of_slot(slot)] != host) return;
    bh_block_header header;
    c_.acquire_from(host, c_.layout.header(slot), BH_LINE_BYTES);
    if (lookup_.read_header(slot, header) && header.stamp == entry.stamp)
      more = visit(entry, header, slot);
  });
  return more;
}

template <class A>
uint64_t Inspection<A>::heartbeat_of(uint32_t host) const {
  const uint64_t at = c_.layout.part(host, BH_PART_HEARTBEAT);
  c_.acquire_from(host, at, sizeof(bh_host_heartbeat));
  return c_.access.load(at + offsetof(bh_host_heartbeat, heartbeat));
}

template <class A>
void Inspection<A>::add_mirror(uint64_t process_at, PoolInfo::Host& host) const {
  const uint64_t bytes = c_.access.load(process_at + offsetof(bh_process, mirror_bytes));
  if (bytes == BH_MIRROR_NONE) return;
  if (bytes == BH_MIRROR_REFUSED) {
    ++host.mirrors_refused;
    return;
  }
  const uint64_t mirrored = static_cast<uint64_t>(
      std::popcount(c_.access.load(process_at + offsetof(bh_process, mirrored))));
  host.mirrored_hosts = host.mirrors == 0 ? mirrored : std::min(host.mirrored_hosts, mirrored);
  host.mirror_bytes += bytes;
  ++host.mirrors;
}

template <class A>
PoolInfo::Host Inspection<A>::host_info(uint32_t host) {
  const auto& g = c_.layout.geometry();
  PoolInfo::Host result{.slot = host,
                        .state = "free",
                        .incarnation = 0,
                        .extents_owned = 0,
                        .extents_free = 0,
                        .extents_custody = 0,
                        .processes_live = 0,
                        .leases_active = 0,
                        .duties_late_ms = 0,
                        .heartbeat = 0,
                        .mirrors = 0,
                        .mirror_bytes = 0,
                        .mirrored_hosts = 0,
                        .mirrors_refused = 0,
                        .format_version = 0,
                        .features = 0};
  const auto slot = hosts_.read_slot(host);
  static constexpr const char* kStates[] = {"free", "joining", "live", "left"};
  result.state = slot && slot->state < 4 ? kStates[slot->state] : "damaged";
  if (slot) {
    result.incarnation = slot->incarnation;
    if (!c_.alone() && slot->incarnation != 0 && hosts_.decided({host, slot->incarnation}))
      result.state = "ended";
  }
  c_.acquire_from(host, c_.layout.part(host, BH_PART_OWN), 8 * c_.layout.extent_end());
  c_.acquire_from(host, c_.layout.part(host, BH_PART_EXTENTS),
                  sizeof(bh_extent_state) * c_.layout.extent_end());
  const LivesOver over = c_.alone() ? LivesOver{} : holdings_.refresh_own_words();
  for (uint64_t e = 0; e < c_.layout.extent_end(); ++e) {
    if (!c_.layout.has_extent(e)) continue;  // a word may be left of a set that is gone
    const OwnWord own = holdings_.own_of(host, e);
    if (own.state != BH_OWN_OWN || (!c_.alone() && holdings_.holding_of(e, over).writer != host))
      continue;
    ++result.extents_owned;
    result.extents_custody += own.custody != BH_CUSTODY_FULL;
    result.extents_free +=
        StateWord::unpack(c_.access.load(c_.layout.extent_state(host, e))).state == BH_EXTENT_FREE;
  }
  for (uint32_t p = 0; p < g.process_count; ++p) {
    const auto word = ProcessWord::unpack(c_.access.load(c_.layout.process(host, p)));
    const bool self = host == c_.host && p == c_.process;
    if (word.state != BH_PROCESS_LIVE || !(self || c_.access.process_alive(host, p))) continue;
    ++result.processes_live;
    add_mirror(c_.layout.process(host, p), result);
  }
  result.leases_active = leases_.active(host);
  if (result.state == "live") {
    const uint64_t at = c_.layout.part(host, BH_PART_HEARTBEAT);
    c_.acquire_from(host, at, sizeof(bh_host_heartbeat));
    const auto known = KnownWord::unpack(c_.access.load(at + offsetof(bh_host_heartbeat, known)));
    result.format_version = known.version;
    result.features = known.features;
  }
  if (!c_.alone() && (result.state == "live" || result.state == "joining")) {
    result.heartbeat = heartbeat_of(host);
    result.duties_late_ms = c_.access.load(c_.layout.part(host, BH_PART_HEARTBEAT) +
                                           offsetof(bh_host_heartbeat, duties_late_ms));
  }
  return result;
}

/// The private part of a host, read by a process that may belong to another host: stores nothing.
template <class A>
struct Inspection<A>::PrivateView {
  PrivateView(const Context<A>& from, uint32_t host)
      : context{from.access, from.layout, from.sealer, from.instance, from.times, host, 0, 0},
        extents(context),
        allocator(context, extents) {}
  Context<A> context;
  Extents<A> extents;
  Allocator<A> allocator;
};

/// The processes of one host share its private part, on one machine: this machine sees its true
/// contents only if the host has run here since the last boot, and they count only while the host's
/// life goes on. `why_not` is set if nothing is returned, unless the slot was never used.
template <class A>
std::unique_ptr<typename Inspection<A>::PrivateView> Inspection<A>::view_of(
    uint32_t host, std::string* why_not) const {
  const auto slot = hosts_.read_slot(host);
  if (!slot) {
    *why_not = "its host slot cannot be read";
    return nullptr;
  }
  if (slot->incarnation == 0) return nullptr;
  const bool over =
      !c_.alone() && (slot->state != BH_HOST_LIVE || hosts_.decided({host, slot->incarnation}));
  const uint64_t boot = c_.access.boot_id();
  const uint64_t recovered =
      c_.layout.part(host, BH_PART_PRIVATE) + offsetof(bh_host_private, recovered_boot_id);
  const bool here = boot != 0 && slot->boot_id == boot && c_.access.load(recovered) == boot &&
                    c_.access.load(recovered + 8) == slot->incarnation;
  if (!over && here) return std::make_unique<PrivateView>(c_, host);
  // The machine id proves nothing here: images and containers share it with hosts that run.
  *why_not = over || slot->state == BH_HOST_LEFT
                 ? "it is not in use, and rebuilt when the host opens the pool"
                 : "only the machine that runs as this host can read it; check the pool there too";
  return nullptr;
}

template <class A>
void Inspection<A>::check_entries(const std::vector<std::unique_ptr<PrivateView>>& views,
                                  CheckReport& report, bool payload, const Progress& progress) {
  uint64_t seen = 0;
  std::vector<Found> unconfirmed;
  std::vector<uint32_t> writers = holdings_.writers_of_extents();
  const auto counts = [&](const Found& found) {
    const uint64_t offset = found.entry.block_offset;
    return !c_.layout.valid_block(offset, found.entry.stored_bytes) ||
           writers[c_.layout.extent_of_slot(c_.layout.slot_of(offset))] == found.host;
  };
  for (uint32_t host = 0; host < hosts_.count(); ++host) {
    index_.for_each(host, [&](const Found& found) {
      if (!counts(found)) return;
      if (progress && ++seen % 64 == 0) progress(seen, 0, "checking blocks");
      if (entry_fault(found, payload, report) || housekeeping_fault(found, views[host].get()))
        unconfirmed.push_back(found);
    });
  }
  if (unconfirmed.empty()) return;
  c_.settle();
  writers = holdings_.writers_of_extents();
  for (const Found& found : unconfirmed) {
    if (!counts(found)) continue;
    CheckReport counted_before;
    const auto fault = entry_fault(found, payload, counted_before);
    const char* housekeeping = housekeeping_fault(found, views[found.host].get());
    // A block that was retired or moved lost its entry first.
    const uint64_t at = index_.entry_at(found.host, found.bucket, found.index);
    c_.access.acquire(at, BH_LINE_BYTES);
    if (c_.access.load_line(at) != to_line(found.entry)) continue;
    if (fault) report.findings.push_back({*fault, true, found.entry.block_offset});
    if (housekeeping != nullptr)
      report.findings.push_back({housekeeping, false, found.entry.block_offset});
  }
}

/// Finds committed blocks that no entry names: no key leads to their space.
template <class A>
void Inspection<A>::check_blocks(const PrivateView& view, CheckReport& report) {
  std::unordered_set<uint64_t> named;
  const auto collect = [&] {
    index_.for_each(view.context.host,
                    [&](const Found& found) { named.insert(found.entry.block_offset); });
  };
  collect();
  std::vector<std::pair<Block, uint64_t>> unnamed;
  view.extents.for_each_slab([&](const Slab& slab) {
    for (uint64_t i = 0; i < slab.block_count; ++i) {
      const Block block = view.extents.block_of(view.extents.slot_of(slab, i), slab);
      const StateWord word = view.allocator.word(block.slot);
      if (word.state == BH_BLOCK_COMMITTED && !named.contains(block.offset))
        unnamed.emplace_back(block, word.pack());
    }
  });
  if (unnamed.empty()) return;
  c_.settle();
  collect();  // blocks that were put or moved during the first walk
  for (const auto& [block, word] : unnamed) {
    if (named.contains(block.offset) || view.allocator.word(block.slot).pack() != word) continue;
    report.findings.push_back(
        {"a committed block is in no index entry: its space is lost until "
         "`bowhead pool repair`",
         false, block.offset});
  }
}

/// Finds slabs that a rebuild would miss.
template <class A>
void Inspection<A>::check_slabs(const PrivateView& view, CheckReport& report) {
  std::vector<Slab> unconfirmed;
  view.extents.for_each_slab([&](const Slab& slab) {
    if (!descriptor_says(slab)) unconfirmed.push_back(slab);
  });
  if (!unconfirmed.empty()) c_.settle();
  for (const Slab& slab : unconfirmed) {
    // It may have been carved or coalesced meanwhile.
    const auto now = view.extents.slab_of(slab.head);
    if (!now || now->block_bytes != slab.block_bytes || descriptor_says(*now)) continue;
    report.findings.push_back({fmt::format("the description of extent {}, which is carved into {} "
                                           "blocks, is damaged; `bowhead pool repair` writes it "
                                           "anew",
                                           slab.head, slab.block_count),
                               false, c_.layout.descriptor(slab.head)});
  }
}

/// Finds slabs whose blocks share words with others, and words that nothing can use (E1).
template <class A>
void Inspection<A>::check_words(const PrivateView& view, CheckReport& report) {
  const auto agree = [&](uint64_t head) {
    const auto slab = view.extents.slab_of(head);
    return !slab || view.extents.has_its_words(*slab);
  };
  std::vector<uint64_t> unconfirmed;
  view.extents.for_each_slab([&](const Slab& slab) {
    if (!agree(slab.head)) unconfirmed.push_back(slab.head);
  });
  const uint64_t lost = view.extents.count_lost_groups();
  if (!unconfirmed.empty() || lost != 0) c_.settle();
  for (const uint64_t head : unconfirmed) {
    if (agree(head)) continue;  // it was being carved or coalesced
    report.findings.push_back({fmt::format("the allocator words of extent {} may be those of "
                                           "another extent too: run `bowhead pool repair`",
                                           head),
                               false, c_.layout.extent_offset(head)});
  }
  if (lost == 0 || view.extents.count_lost_groups() == 0) return;
  report.findings.push_back(
      {"allocator words belong to no extent: fewer extents can be carved "
       "until `bowhead pool repair`",
       false, c_.layout.part(view.context.host, BH_PART_GROUPS)});
}

/// Checks the slot of every host, and that every extent has an owner.
template <class A>
void Inspection<A>::check_sets(CheckReport& report) {
  for (const auto& lost : growth_.passed_over())
    report.findings.push_back({fmt::format("{} is missing, and all blocks there: {}",
                                           Growth<A>::describe(lost.set), lost.why.message()),
                               true, c_.layout.set_table(0, 0)});
  if (!growth_.possible()) return;
  std::vector<std::pair<uint32_t, uint64_t>> unconfirmed;
  for (uint32_t host = 0; host < hosts_.count(); ++host) {
    for (const uint64_t copy : {0, 1}) {
      if (growth_.copy_damaged(host, copy)) unconfirmed.emplace_back(host, copy);
    }
  }
  if (!unconfirmed.empty()) c_.settle();
  for (const auto& [host, copy] : unconfirmed) {
    if (!growth_.copy_damaged(host, copy)) continue;  // it was being written
    report.findings.push_back({fmt::format("a table of the sets of media, of host {}, is damaged; "
                                           "`bowhead pool repair` drops it",
                                           host),
                               false, c_.layout.set_table(host, copy)});
  }
}

template <class A>
void Inspection<A>::check_slots_and_extents(CheckReport& report) {
  std::vector<uint32_t> unread;
  for (uint32_t host = 0; host < hosts_.count(); ++host) {
    if (!hosts_.read_slot(host)) unread.push_back(host);
  }
  std::vector<uint64_t> unowned;
  for (uint64_t e = 0; e < c_.layout.extent_end(); ++e) {
    if (c_.layout.set_of(e) != nullptr && !holdings_.has_owner(e)) unowned.push_back(e);
  }
  if (!unread.empty() || !unowned.empty()) c_.settle();
  for (const uint32_t host : unread) {
    if (hosts_.read_slot(host)) continue;
    report.findings.push_back({fmt::format("both copies of host slot {} are damaged; `bowhead pool "
                                           "repair` writes them anew",
                                           host),
                               false, c_.layout.slot_line(host, 0)});
  }
  for (const uint64_t e : unowned) {
    if (holdings_.has_owner(e)) continue;  // it was going from one host to another
    report.findings.push_back({fmt::format("extent {} belongs to no host: nothing new can be "
                                           "stored in it until `bowhead pool repair`",
                                           e),
                               false, c_.layout.extent_offset(e)});
  }
}

template <class A>
void Inspection<A>::check_namespaces(CheckReport& report) {
  std::vector<std::pair<uint32_t, uint64_t>> unconfirmed;
  for (uint32_t host = 0; host < hosts_.count(); ++host) {
    for (uint64_t i = 0; i < c_.layout.geometry().namespace_count; ++i) {
      if (namespaces_.namespace_damaged(host, i)) unconfirmed.emplace_back(host, i);
    }
  }
  if (!unconfirmed.empty()) c_.settle();
  for (const auto& [host, i] : unconfirmed) {
    if (!namespaces_.namespace_damaged(host, i)) continue;  // it was being written
    report.findings.push_back(
        {"the description of a namespace is damaged; its blocks are not, and the next process that "
         "opens the namespace writes it anew",
         false, c_.layout.name_space(host, i)});
  }
}

/// Finds what cannot have been stored: no process stores anything to these parts yet.
template <class A>
void Inspection<A>::check_unused_parts(CheckReport& report) {
  if (settings_.newer_features) return;
  for (uint32_t host = 0; host < hosts_.count(); ++host) {
    for (const auto& [part, name] :
         {std::pair{BH_PART_MEDIA, "words of media"}, std::pair{BH_PART_RINGS, "rings"}}) {
      if (part == BH_PART_MEDIA && c_.layout.geometry().range_bytes != 0) continue;
      if (part == BH_PART_RINGS && settings_.has_rings) continue;
      const uint64_t bytes = c_.layout.geometry().parts[part].bytes;
      c_.acquire_from(host, c_.layout.part(host, part), bytes);
      for (uint64_t i = 0; i < bytes / 8; ++i) {
        const uint64_t at = c_.layout.word(host, part, i);
        if (c_.access.load(at) == 0) continue;
        report.findings.push_back(
            {fmt::format("the {} of host {}, which must be zero, are damaged; the next life of the "
                         "host, or `bowhead pool repair`, clears them",
                         name, host),
             false, at});
        break;
      }
    }
  }
}

/// The fault in the index directory or the allocator about a good block, which a repair mends; null
/// if there is none. `view`: that of the entry's host, or null.
template <class A>
const char* Inspection<A>::housekeeping_fault(const Found& found, const PrivateView* view) const {
  const bh_index_entry& entry = found.entry;
  if (!index_.find_block(found.host, hash_of(entry), entry.block_offset, entry.stamp))
    return "the index directory does not lead to a stored block: its key is not found until "
           "`bowhead pool repair`";
  if (view == nullptr || !c_.layout.valid_block(entry.block_offset, 1)) return nullptr;
  const uint64_t slot = c_.layout.slot_of(entry.block_offset);
  const uint32_t state = view->allocator.word(slot).state;
  const Slab slab = view->extents.held_slab(c_.layout.extent_of_slot(slot));
  const bool known = state == BH_BLOCK_COMMITTED || state == BH_BLOCK_RESERVED ||
                     state == BH_BLOCK_RETIRING || state == BH_BLOCK_CLEANING;
  if (!known || view->extents.block_of(slot, slab).offset != entry.block_offset)
    return "the allocator does not know of a stored block: run `bowhead pool repair` before "
           "anything is stored over it";
  return nullptr;
}

template <class A>
bool Inspection<A>::descriptor_says(const Slab& slab) const {
  Line line;
  c_.access.acquire(c_.layout.descriptor(slab.head), BH_LINE_BYTES);
  if (!c_.read_sealed(c_.layout.descriptor(slab.head), line)) return false;
  const auto d = from_line<bh_extent_descriptor>(line);
  return d.block_bytes == slab.block_bytes && d.block_count == slab.block_count &&
         d.extent_span == slab.extent_span;
}

template <class A>
std::optional<std::string> Inspection<A>::entry_fault(const Found& found, bool payload,
                                                      CheckReport& report) {
  const bh_index_entry& entry = found.entry;
  if (!c_.layout.valid_block(entry.block_offset, entry.stored_bytes))
    return "an index entry names a block outside the payload";
  const uint64_t slot = c_.layout.slot_of(entry.block_offset);
  bh_block_header header;
  c_.access.acquire(c_.layout.header(slot), BH_LINE_BYTES);
  if (!lookup_.read_header(slot, header))
    return "the header of a block is damaged; its key is lost";
  if (header.stamp != entry.stamp) return "an index entry names a block that has another stamp";
  if (header.stored_bytes != entry.stored_bytes || header.namespace_id != entry.namespace_id ||
      header.payload_checksum != entry.payload_checksum || !lengths_agree(header))
    return "the header of a block and its index entry contradict each other";
  if (lookup_.key_hash(slot, header) != hash_of(entry))
    return "the stored key of a block is damaged";
  if (!lookup_.read_user(slot, header)) return "the user metadata of a block are damaged";
  ++report.blocks_checked;
  if (header.checksum_kind == BH_CHECKSUM_NONE) ++report.blocks_unverified;
  if (!payload) return std::nullopt;
  c_.access.acquire(entry.block_offset, header.stored_bytes);
  // Also of a block without a checksum: whether its memory can be read.
  const uint64_t sum = c_.access.sum_payload(entry.block_offset, header.stored_bytes);
  if (c_.access.payload_lost(entry.block_offset, header.stored_bytes))
    return fmt::format(
        "the memory of block {} ({} bytes) failed: the hardware reports an "
        "uncorrectable error there",
        printable_key(lookup_.read_key(slot, header.key_bytes)), header.stored_bytes);
  if (header.checksum_kind == BH_CHECKSUM_NONE) return std::nullopt;
  report.bytes_checked += header.stored_bytes;
  if (sum == entry.payload_checksum) return std::nullopt;
  return fmt::format("the payload of block {} ({} bytes) does not match its checksum",
                     printable_key(lookup_.read_key(slot, header.key_bytes)), header.stored_bytes);
}

}  // namespace bowhead::core
