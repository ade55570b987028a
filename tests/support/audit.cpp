// SPDX-License-Identifier: Apache-2.0
#include "tests/support/audit.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>
#include <set>

namespace bowhead::test {
namespace {

using core::from_line;
using core::Line;
using core::NativeAccess;
using core::StateWord;

class Auditor {
 public:
  Auditor(core::Core<NativeAccess>& core, const AuditOptions& options)
      : c_(core.context()), g_(c_.layout.geometry()), options_(options) {}

  AuditResult run() {
    extents();
    blocks();
    runs();
    entries();
    headers();
    for (uint64_t i = 0; i < g_.lock_count; ++i) {
      if (state_at(c_.own(BH_PART_LOCKS, i)).state != 0) fault("index lock {} is held", i);
    }
    leases();
    processes();
    usage();
    return result_;
  }

 private:
  template <class... Args>
  void fault(fmt::format_string<Args...> text, Args&&... args) {
    if (result_.faults.size() < 20)
      result_.faults.push_back(fmt::format(text, std::forward<Args>(args)...));
  }
  uint64_t load(uint64_t offset) const { return c_.access.load(offset); }
  StateWord state_at(uint64_t offset) const { return StateWord::unpack(load(offset)); }
  StateWord extent_state(uint64_t e) const { return state_at(c_.layout.extent_state(0, e)); }
  uint64_t extent_field(uint64_t e, size_t at) const {
    return load(c_.layout.extent_state(0, e) + at);
  }

  /// The slots at which a block begins, by the extents' states.
  void extents() {
    for (uint64_t e = 0; e < g_.extent_count; ++e) {
      const StateWord word = extent_state(e);
      const uint64_t head = extent_field(e, offsetof(bh_extent_state, head));
      if (word.state == BH_EXTENT_SLAB) {
        slab(e);
      } else if (word.state == BH_EXTENT_PART) {
        const uint64_t span = extent_field(head, offsetof(bh_extent_state, block_count)) >> 32;
        if (head >= e || extent_state(head).state != BH_EXTENT_SLAB || head + span <= e)
          fault("extent {} is part of {}, which is no slab over it", e, head);
      } else if (word.state != BH_EXTENT_FREE) {
        fault("extent {} is left in state {} of process {}", e, word.state, word.process);
      }
    }
  }

  void slab(uint64_t head) {
    const uint64_t bytes = extent_field(head, offsetof(bh_extent_state, block_bytes));
    const uint64_t counts = extent_field(head, offsetof(bh_extent_state, block_count));
    const uint64_t count = counts & 0xFFFFFFFFu, span = counts >> 32;
    const uint64_t preferred = extent_field(head, offsetof(bh_extent_state, preferred));
    if (preferred != 0 && !process_live(preferred - 1))
      fault("slab {} is preferred by process {}, which is gone", head, preferred - 1);
    if (bytes == 0 || count != span * g_.extent_bytes / bytes) {
      fault("slab {} has {} blocks of {} bytes in {} extents", head, count, bytes, span);
      return;
    }
    for (uint64_t e = head + 1; e < head + span; ++e) {
      if (extent_state(e).state != BH_EXTENT_PART ||
          extent_field(e, offsetof(bh_extent_state, head)) != head)
        fault("extent {} is not part of the slab {}", e, head);
    }
    uint64_t free = 0;
    for (uint64_t i = 0; i < count; ++i) {
      const uint64_t at = head * g_.extent_bytes + i * bytes;
      const uint64_t slot = at / g_.min_block_bytes;
      begins_[slot] = g_.payload_offset + at;
      free += c_.see(slot).word.state == BH_BLOCK_FREE;
    }
    const uint64_t hint = extent_field(head, offsetof(bh_extent_state, free_blocks));
    if (hint != free) fault("slab {} has {} free blocks, and counts {}", head, free, hint);
  }

  void blocks() {
    std::set<uint64_t> used;  // words of blocks
    for (const auto& [slot, offset] : begins_) {
      const core::SeenWord seen = c_.see(slot);
      if (!used.insert(seen.at).second) fault("block {} shares its word", slot);
      if (seen.word.state == BH_BLOCK_COMMITTED) {
        ++result_.committed;
        committed_.insert(offset);
      } else if (seen.word.state == BH_BLOCK_FREE) {
        core::Line line;
        if (c_.read_sealed(c_.layout.header(slot), line) &&
            (core::from_line<bh_block_header>(line).flags & BH_HEADER_WIPE) != 0)
          fault("block {} is free and was not wiped", slot);
      } else {
        fault("the word of block {} is left in state {} of process {}", slot, seen.word.state,
              seen.word.process);
      }
    }
    for (uint64_t i = 0; i < g_.word_count; ++i) {
      const uint64_t at = c_.own(BH_PART_BLOCKS, i);
      const StateWord word = state_at(at);
      if (word.state != BH_BLOCK_NONE && !used.contains(at))
        fault("block word {}, of no block, is left in state {} of process {}", i, word.state,
              word.process);
    }
  }

  /// E1: carved extents have the groups of their runs, and no other extent has any.
  void runs() {
    std::vector<uint64_t> owners(c_.layout.group_limit(), 0);
    for (uint64_t e = 0; e < g_.extent_count; ++e) {
      const core::RunWord run = c_.load_run(e);
      const bool carved = extent_state(e).state != BH_EXTENT_FREE;
      if (run.state != (carved ? BH_RUN_READY : BH_RUN_NONE))
        fault("extent {} is {}, and its run is in state {}", e, carved ? "carved" : "free",
              run.state);
      if (run.state != BH_RUN_READY) continue;
      for (uint64_t w = run.first; w < run.first + c_.layout.run_words(run.shift); ++w) {
        if (w < g_.word_count) owners[w / g_.words_per_group] = e + 1;
      }
    }
    for (uint64_t i = 0; i < owners.size(); ++i) {
      const uint64_t owner = load(c_.own(BH_PART_GROUPS, i));
      if (owner != owners[i])
        fault("group {} is owned by {}, and in the run of {}", i, owner, owners[i]);
    }
  }

  /// Blocks and entries match one to one.
  void entries() {
    const IndexAudit index = audit_index(c_, /*exact=*/!options_.deaths);
    for (const std::string& text : index.faults) fault("{}", text);
    result_.entries = index.entries.size();
    if (result_.entries != result_.committed)
      fault("{} entries, {} committed blocks", result_.entries, result_.committed);
    std::set<std::pair<uint64_t, uint64_t>> keys;
    for (const bh_index_entry& entry : index.entries) {
      if (!keys.emplace(entry.key_hash[0], entry.key_hash[1]).second)
        fault("key {:#x} has two entries", entry.key_hash[0]);
      if (!committed_.contains(entry.block_offset))
        fault("an entry names {:#x}, where no committed block is", entry.block_offset);
    }
  }

  /// C2: no header but that of a committed block shows a committed stamp.
  void headers() {
    for (uint64_t slot = 0; slot < c_.layout.slot_limit(); ++slot) {
      if (begins_.contains(slot) && committed_.contains(begins_[slot])) continue;
      const uint64_t stamp = load(c_.layout.header(slot));
      if (stamp != 0 && core::stamp_state(stamp) == BH_STAMP_COMMITTED)
        fault("slot {} has no committed block, and a header with the stamp {:#x}", slot, stamp);
    }
  }

  void leases() {
    uint64_t held = 0, hazards = 0;
    for (uint64_t i = 0; i < g_.lease_count; ++i) {
      held += state_at(c_.layout.lease(0, i)).state != BH_LEASE_FREE;
      hazards += load(c_.own(BH_PART_HAZARDS, i)) != 0;
    }
    if (held != options_.leases || hazards != options_.leases)
      fault("{} leases and {} hazards are left, {} are held", held, hazards, options_.leases);
  }

  /// The counters of namespaces are those of the blocks, unless a death left a doubt (U3).
  void usage() {
    const uint64_t doubt = c_.own(BH_PART_PRIVATE, offsetof(bh_host_private, usage_doubt) / 8);
    result_.usage_doubted = load(doubt) != 0;
    if (result_.usage_doubted) return;
    using Sums = std::array<uint64_t, 4>;  // blocks; bytes stored, saved, slack
    std::map<uint64_t, Sums> counted, present;
    for (uint64_t at = 0; at < g_.parts[BH_PART_USAGE].bytes; at += sizeof(bh_usage)) {
      const uint64_t line = c_.own(BH_PART_USAGE, at / 8);
      for (uint64_t i = 0; i < 4; ++i) counted[load(line)][i] += load(line + 8 + i * 8);
    }
    for (const uint64_t offset : committed_) {
      Line line;
      const uint64_t slot = c_.layout.slot_of(offset);
      if (!c_.read_sealed(c_.layout.header(slot), line)) continue;
      const auto header = from_line<bh_block_header>(line);
      // One with a line of its own, or one of those that are counted together.
      const bool named = counted.contains(header.namespace_id);
      Sums& sums = present[named ? header.namespace_id : 0];
      sums[0] += 1;
      sums[1] += header.stored_bytes;
      sums[2] += uint64_t{header.length_bytes} - header.stored_bytes;
      sums[3] += core::room_for(c_.layout, header) - header.stored_bytes;
    }
    for (const auto& [id, sums] : counted) {
      if (sums != present[id])
        fault("namespace {:#x} counts {} blocks, {} + {} + {} bytes; it has {}, {} + {} + {}", id,
              sums[0], sums[1], sums[2], sums[3], present[id][0], present[id][1], present[id][2],
              present[id][3]);
    }
  }

  bool process_live(uint64_t p) const {
    return p < g_.process_count &&
           core::ProcessWord::unpack(load(c_.layout.process(0, p))).state == BH_PROCESS_LIVE &&
           (p == c_.process || c_.access.process_alive(0, static_cast<uint32_t>(p)));
  }
  void processes() {
    uint64_t live = 0;
    for (uint32_t p = 0; p < g_.process_count; ++p) {
      const auto word = core::ProcessWord::unpack(load(c_.layout.process(0, p)));
      live += process_live(p);
      if (word.state != BH_PROCESS_FREE && !process_live(p))
        fault("process slot {} is left in state {}", p, word.state);
    }
    if (live != options_.processes) fault("{} processes, not {}", live, options_.processes);
  }

  core::Context<NativeAccess>& c_;
  const bh_geometry& g_;
  const AuditOptions options_;
  AuditResult result_;
  std::map<uint64_t, uint64_t> begins_;  ///< slot -> offset of the block that begins there
  std::set<uint64_t> committed_;         ///< offsets
};

/// The buckets where a key may lie, in order: double hashing, written out independently.
std::vector<uint64_t> probe_set(const bh_index_entry& entry, uint64_t buckets) {
  using u128 = unsigned __int128;
  uint64_t at = static_cast<uint64_t>(u128{entry.key_hash[0]} * buckets >> 64);
  const uint64_t step = 1 + static_cast<uint64_t>(u128{entry.key_hash[1]} * (buckets - 1) >> 64);
  std::vector<uint64_t> set;
  for (uint32_t i = 0; i < BH_INDEX_PROBES; ++i, at = (at + step) % buckets) set.push_back(at);
  return set;
}

}  // namespace

IndexAudit audit_index(const core::Context<NativeAccess>& c, bool exact) {
  const uint64_t buckets = c.layout.geometry().index_bucket_count;
  IndexAudit result;
  std::vector<uint64_t> passed_by(buckets);
  for (uint64_t b = 0; b < buckets; ++b) {
    const uint64_t bucket = c.layout.bucket(0, b);
    for (uint32_t i = 0; i < BH_INDEX_ENTRIES; ++i) {
      const auto fault = [&](const std::string& text) {
        result.faults.push_back(fmt::format("entry {} of bucket {} {}", i, b, text));
      };
      const uint64_t word = c.access.load(bucket + i * 8);
      Line line;
      const bool sealed = c.read_sealed(
          bucket + offsetof(bh_index_bucket, entries) + i * sizeof(bh_index_entry), line);
      if (word >> 32 != 0) fault(fmt::format("is claimed: {:#x}", word));
      if (sealed != (word != 0))
        fault(fmt::format("is {}, its word is {:#x}", sealed ? "sealed" : "not sealed", word));
      if (!sealed) continue;
      const auto entry = from_line<bh_index_entry>(line);
      result.entries.push_back(entry);
      if ((word & 0xFFFFFFFFu) != std::max<uint64_t>(1, entry.key_hash[1] & 0xFFFFFFFFu))
        fault("has a wrong tag");
      const auto set = probe_set(entry, buckets);
      const auto place = std::find(set.begin(), set.end(), b);
      if (place == set.end()) fault("is outside its key's probe set");
      for (auto at = set.begin(); at != place; ++at) ++passed_by[*at];
    }
  }
  for (uint64_t b = 0; b < buckets; ++b) {
    const uint64_t count = c.access.load(c.layout.bucket(0, b) + BH_INDEX_ENTRIES * 8);
    if (exact ? count != passed_by[b] : count < passed_by[b] || count > passed_by[b] + 1000)
      result.faults.push_back(fmt::format("bucket {} counts {} entries further on, there are {}", b,
                                          count, passed_by[b]));
  }
  return result;
}

AuditResult audit(core::Core<NativeAccess>& core, const AuditOptions& options) {
  return Auditor(core, options).run();
}

}  // namespace bowhead::test
