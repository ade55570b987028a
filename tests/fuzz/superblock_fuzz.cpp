// SPDX-License-Identifier: Apache-2.0
// read_superblock() on anything: raw bytes, or a superblock made from choices in the input and
// changed before or after it is sealed, so that the checks after the checksum are reached too.
//
// An accepted superblock must describe parts that lie inside the pool and do not overlap: the other
// code computes addresses from it without further checks.
#include <set>

#include "base/assert.h"
#include "pool/core/layout.h"
#include "pool/pool.h"
#include "tests/fuzz/input.h"

namespace bowhead {
namespace {

using fuzz::Input;
using Wide = unsigned __int128;  // sums and products of any 64-bit fields, without overflow

struct Copies {
  std::string first, second;
};

void check_parts(const bh_geometry& g) {
  const uint64_t slots_per_extent = g.extent_bytes / g.min_block_bytes;
  BOWHEAD_ASSERT(g.words_per_group >= 1 && g.words_per_group <= slots_per_extent &&
                 slots_per_extent % g.words_per_group == 0);
  BOWHEAD_ASSERT(g.word_count >= slots_per_extent && g.word_count % slots_per_extent == 0 &&
                 g.word_count <= g.extent_count * slots_per_extent);
  BOWHEAD_ASSERT(g.max_bytes >= g.total_bytes && g.extents_max >= g.extent_count &&
                 (g.extents_max - g.extent_count) * g.extent_bytes <= g.max_bytes - g.total_bytes);
  const Wide needed[BH_PART_COUNT] = {
      2 * sizeof(bh_host_slot),
      sizeof(bh_host_heartbeat),
      8 * BH_HOSTS_MAX,
      8 * BH_HOSTS_MAX,
      Wide{8} * g.extents_max,
      Wide{sizeof(bh_namespace)} * g.namespace_count,
      Wide{8} * g.lease_count,
      Wide{8} * g.touch_count,
      Wide{4096} * g.host_count,
      Wide{sizeof(bh_index_bucket)} * g.index_bucket_count,
      Wide{8} * g.log_count,
      sizeof(bh_host_counts),
      Wide{sizeof(bh_usage)} * BH_USAGE_SHARDS *
          std::clamp<Wide>(Wide{2} * g.namespace_count, 2u, BH_USAGE_ENTRIES_MAX),
      g.range_bytes == 0 ? Wide{8 * BH_MEDIA_MAX} : Wide{2 * sizeof(bh_set_table)},
      g.ring_bytes,
      sizeof(bh_host_private),
      Wide{sizeof(bh_process)} * g.process_count,
      Wide{sizeof(bh_lease_slot)} * g.lease_count,
      8 * BH_HOSTS_MAX,
      Wide{8} * g.lock_count,
      Wide{sizeof(bh_extent_state)} * g.extents_max,
      Wide{8} * g.extents_max,
      Wide{8} * (g.word_count / g.words_per_group),
      Wide{8} * g.word_count,
      Wide{8} * g.word_count,
  };
  Wide end = 0;
  for (uint32_t i = 0; i < BH_PART_COUNT; ++i) {
    BOWHEAD_ASSERT(g.parts[i].offset >= end && g.parts[i].offset % BH_LINE_BYTES == 0);
    // Where the pool can grow there is room for more.
    BOWHEAD_ASSERT(g.range_bytes == 0 ? g.parts[i].bytes == needed[i]
                                      : g.parts[i].bytes >= needed[i]);
    end = Wide{g.parts[i].offset} + g.parts[i].bytes;
  }
  BOWHEAD_ASSERT(end <= g.region_bytes);
  BOWHEAD_ASSERT(g.parts[BH_PART_RINGS].offset % 4096 == 0 && g.ring_bytes % 4096 == 0);
  for (uint32_t i = BH_PART_COUNT; i < BH_PART_PLACES; ++i)
    BOWHEAD_ASSERT(g.parts[i].offset == 0 && g.parts[i].bytes == 0);
}

void check_geometry(const bh_geometry& g) {
  const uint64_t align = g.region_align_bytes;
  BOWHEAD_ASSERT(align != 0 && g.min_block_bytes != 0 && g.extent_bytes != 0);
  BOWHEAD_ASSERT(g.host_count >= 1 && g.host_count <= BH_HOSTS_MAX);
  BOWHEAD_ASSERT(g.extent_count >= g.host_count && g.index_bucket_count > BH_INDEX_PROBES);
  BOWHEAD_ASSERT(g.extent_bytes % g.min_block_bytes == 0);
  BOWHEAD_ASSERT(g.min_block_bytes % BH_PAYLOAD_ALIGN == 0);
  BOWHEAD_ASSERT(g.lock_count != 0 && (g.lock_count & (g.lock_count - 1)) == 0);
  BOWHEAD_ASSERT(g.process_count < 4096 && g.lease_count <= 65536);  // words have 12 and 16 bits
  check_parts(g);

  BOWHEAD_ASSERT(g.regions_offset >= BH_SUPERBLOCK_COPY_OFFSET + sizeof(bh_superblock));
  BOWHEAD_ASSERT(Wide{g.regions_offset} + Wide{g.region_bytes} * g.host_count <= g.tables_offset);
  const uint64_t slots = g.extent_bytes / g.min_block_bytes;
  BOWHEAD_ASSERT(g.table_bytes >=
                 (slots + 1) * sizeof(bh_block_slot) + slots * sizeof(bh_block_words));
  BOWHEAD_ASSERT(Wide{g.tables_offset} + Wide{g.table_bytes} * g.extent_count <= g.payload_offset);
  BOWHEAD_ASSERT(Wide{g.payload_offset} + Wide{g.extent_bytes} * g.extent_count <=
                 core::offset_end(g));
  Wide taken = 0, end = 0;
  for (const Range& range : core::ranges_of(g, core::set_0(g))) {
    BOWHEAD_ASSERT(range.offset >= end);
    end = Wide{range.offset} + range.bytes;
    taken += range.bytes;
  }
  BOWHEAD_ASSERT(taken <= g.total_bytes && end <= core::offset_end(g));
  // Parts that can be made read-only separately must not share a grain (rule R1). With one host,
  // tables never change owners.
  for (const uint64_t at :
       {g.regions_offset, g.region_bytes, g.tables_offset, g.payload_offset, g.extent_bytes})
    BOWHEAD_ASSERT(at % align == 0);
  BOWHEAD_ASSERT(g.host_count == 1 || g.table_bytes % align == 0);
  // Hazard words have 36 bits for a page.
  BOWHEAD_ASSERT(core::offset_end(g) / BH_PAYLOAD_ALIGN <= uint64_t{1} << BH_HAZARD_PAGE_BITS);
}

/// Settings that the core divides by, waits for or compares with, without further checks.
void check_settings(const bh_superblock& sb) {
  BOWHEAD_ASSERT(sb.evict_high_permille <= 1000 && sb.evict_low_permille <= sb.evict_high_permille);
  const bool stated = sb.heartbeat_ms != 0 || sb.dead_ms != 0 || sb.settle_ms != 0;
  BOWHEAD_ASSERT(!stated || sb.geometry.host_count > 1);
  const SharingTimes times = core::times_of(sb);
  BOWHEAD_ASSERT(times.heartbeat_ms != 0 && times.settle_ms != 0);
  BOWHEAD_ASSERT(times.dead_ms / 5 >= times.heartbeat_ms && times.dead_ms / 10 >= times.settle_ms);
}

bh_superblock plausible(Input& input) {
  bh_superblock sb{};
  sb.magic = sb.magic_end = BH_SUPERBLOCK_MAGIC;
  sb.version = BH_FORMAT_VERSION;
  sb.checksum_kind = BH_CHECKSUM_XXH3_TREE_4K;
  sb.seal_kind = 1;
  core::GeometryChoice choice{.total_bytes = input.take<uint64_t>(),
                              .align_bytes = input.take<uint64_t>(),
                              .hosts = input.take<uint32_t>(),
                              .extent_bytes = input.take<uint64_t>(),
                              .min_block_bytes = input.take<uint64_t>(),
                              .max_bytes = input.take<uint64_t>()};
  choice.grows = choice.max_bytes % 4096 == 1;
  if (choice.grows) sb.incompat = BH_FEATURE_GROWTH;
  if (auto planned = core::plan_geometry(choice)) {
    check_geometry(*planned);
    sb.geometry = *planned;
  }
  sb.evict_high_permille = 980;
  sb.evict_low_permille = 960;
  if (choice.hosts > 1) {
    const SharingTimes times;
    sb.heartbeat_ms = times.heartbeat_ms;
    sb.dead_ms = times.dead_ms;
    sb.grace_ms = times.grace_ms;
    sb.settle_ms = times.settle_ms;
    sb.reclaim_ms = times.reclaim_ms;
  }
  return sb;
}

void patch(char* bytes, uint32_t at, uint64_t value) {
  at %= sizeof(bh_superblock);
  std::memcpy(bytes + at, &value, std::min<size_t>(sizeof value, sizeof(bh_superblock) - at));
}

/// Records {what: u8, at: u16, value: u64}. Bit 0: first copy, bit 1: second, bit 2: after sealing.
Copies made_copies(Input& input) {
  bh_superblock copies[2];
  copies[0] = copies[1] = plausible(input);
  bool sealed = false;
  while (!input.empty()) {
    const auto what = input.take<uint8_t>();
    const auto at = input.take<uint16_t>();
    const auto value = input.take<uint64_t>();
    if ((what & 4) != 0 && !sealed) {
      for (uint32_t i = 0; i < 2; ++i) core::seal_superblock(copies[i], i);
      sealed = true;
    }
    for (uint32_t i = 0; i < 2; ++i) {
      if ((what >> i & 1) != 0) patch(reinterpret_cast<char*>(&copies[i]), at, value);
    }
  }
  if (!sealed) {
    for (uint32_t i = 0; i < 2; ++i) core::seal_superblock(copies[i], i);
  }
  return {std::string(reinterpret_cast<const char*>(&copies[0]), sizeof copies[0]),
          std::string(reinterpret_cast<const char*>(&copies[1]), sizeof copies[1])};
}

void check_read(const Copies& copies, uint64_t media_bytes) {
  const auto bytes = [](const std::string& text) {
    return std::as_bytes(std::span(text.data(), text.size()));
  };
  bool second_used = false;
  const auto read = core::read_superblock(bytes(copies.first), bytes(copies.second),
                                          {.bytes = media_bytes}, &second_used);
  if (!read) {
    const std::set<Status> possible = {Status::NOT_A_POOL, Status::VERSION_UNKNOWN,
                                       Status::DAMAGED};
    BOWHEAD_ASSERT(possible.contains(read.status()) && !read.error().detail.empty());
    return;
  }
  BOWHEAD_ASSERT(read->version == BH_FORMAT_VERSION && read->incompat == 0);
  const uint64_t unknown = read->ro_compat & ~BH_FEATURES_RO_COMPAT;
  const bool newer = read->compat != 0 || unknown != 0;
  BOWHEAD_ASSERT(newer == core::has_newer_features(*read));
  BOWHEAD_ASSERT(static_cast<bool>(core::check_writable(*read)) == (unknown == 0));
  const auto* reserved = std::begin(read->reserved);
  BOWHEAD_ASSERT(newer || std::all_of(reserved, std::end(read->reserved),
                                      [](uint8_t byte) { return byte == 0; }));
  BOWHEAD_ASSERT(read->geometry.total_bytes <= media_bytes);
  const std::string& copy = read->copy == 0 ? copies.first : copies.second;
  BOWHEAD_ASSERT(std::memcmp(&read.value(), copy.data(), sizeof(bh_superblock)) == 0);
  BOWHEAD_ASSERT(!second_used || read->copy == 1);
  check_geometry(read->geometry);
  check_settings(read.value());
}

}  // namespace
}  // namespace bowhead

/// {mode: u8, medium's size: u64}, then raw copies (mode 0: the first 4 KiB are the first copy) or
/// choices of a geometry {u64, u64, u32, u64, u64, u64} and records of patches.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  bowhead::fuzz::Input input(data, size);
  const bool raw = input.take<uint8_t>() == 0;
  const auto media_bytes = input.take<uint64_t>();
  bowhead::Copies copies;
  if (raw) {
    copies.first = input.take_bytes(sizeof(bh_superblock));
    copies.second = input.take_bytes(sizeof(bh_superblock));
  } else {
    copies = bowhead::made_copies(input);
  }
  bowhead::check_read(copies, media_bytes);
  return 0;
}
