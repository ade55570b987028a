// SPDX-License-Identifier: Apache-2.0
#include "pool/core/layout.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <iterator>
#include <optional>

#include "base/checksum.h"
#include "pool/media/label.h"

namespace bowhead::core {
namespace {

constexpr uint64_t kPage = 4096;
constexpr uint32_t kProcesses = 256;
constexpr uint32_t kLocks = 4096;
constexpr uint32_t kTouches = 4096;
// Eight pairs of queues: 4 KiB for 64 commands of a line each, and 4 KiB for their completions,
// which the device writes and which can be mapped for it alone.
constexpr uint64_t kRingBytes = 8 * 2 * kPage;
/// What an extent takes of each region even before the medium that it will lie on is there.
constexpr uint64_t kExtentBytesPerRegion = 8 + sizeof(bh_extent_state) + 8;
constexpr const char* kRestore =
    "; restore it from a copy, or make it anew with `bowhead pool create --force`";

uint64_t round_up(uint64_t value, uint64_t unit) { return (value + unit - 1) / unit * unit; }

/// At least `count` buckets, a number without divisors up to BH_INDEX_PROBES: only then all buckets
/// of a probe set are different, whatever its step. In 1104 buckets, say, a step of 552 leads to
/// two, and a put of such a key fails in an index that is half empty.
uint64_t bucket_count_for(uint64_t count) {
  const auto divides = [&](uint64_t divisor) { return count % divisor == 0; };
  while (divides(2) || divides(3) || divides(5) || divides(7)) ++count;
  return count;
}
static_assert(BH_INDEX_PROBES < 11, "the primes below it are 2, 3, 5 and 7");

/// A host may come to own more than its share, so with several hosts each index has room for twice
/// that.
uint64_t blocks_of_host(const bh_geometry& g, uint64_t extents) {
  const uint64_t slots = extents * (g.extent_bytes / g.min_block_bytes);
  return std::min(slots, slots / g.host_count * (g.host_count > 1 ? 2 : 1));
}

/// Of each host, for so many extents. 1.75 entries per block keep probe sets short
/// (docs/format.md).
uint64_t buckets_for(const bh_geometry& g, uint64_t extents) {
  return bucket_count_for((blocks_of_host(g, extents) * 7 / 4) / BH_INDEX_ENTRIES + 16);
}

/// Of each host, for so many extents: four times its share. So a host that has adopted or been
/// given that many extents can still carve them all, whatever the sizes of their blocks.
uint64_t words_for(const bh_geometry& g, uint64_t extents) {
  const uint64_t most = (4 * extents + g.host_count - 1) / g.host_count;
  return std::min(extents, most) * (g.extent_bytes / g.min_block_bytes);
}

/// The first numbers of buckets and words of a set are multiples of these, so that what it has of
/// each part begins with a range.
uint64_t bucket_unit(const bh_geometry& g) { return g.range_bytes / sizeof(bh_index_bucket); }
uint64_t word_unit(const bh_geometry& g) { return g.range_bytes / 8 * g.words_per_group; }

/// Numbers of extents that lie between two sets at most: their tables lie in different ranges.
uint64_t extents_between(const bh_geometry& g) { return g.range_bytes / g.table_bytes + 2; }

/// Extents change owners one by one, so each table must be mapped on its own. With one host none
/// changes its owner, and a coarse grain (2 MiB on huge pages) would waste most of each table.
uint64_t table_bytes_of(const bh_geometry& g) {
  const uint64_t slots_per_extent = g.extent_bytes / g.min_block_bytes;
  return round_up(
      sizeof(bh_block_slot) * (slots_per_extent + 1) + sizeof(bh_block_words) * slots_per_extent,
      g.host_count > 1 ? g.region_align_bytes : kPage);
}

/// Fills in everything that depends on the number of extents; returns how many bytes set 0 takes.
uint64_t place(bh_geometry& g) {
  g.table_bytes = table_bytes_of(g);
  g.extents_max = g.extent_count + (g.max_bytes - g.total_bytes) / g.extent_bytes +
                  (g.range_bytes == 0 ? 0 : BH_SETS_MAX * extents_between(g));
  g.ring_bytes = kRingBytes;
  const uint64_t slots = g.extent_count * (g.extent_bytes / g.min_block_bytes);
  g.index_bucket_count = buckets_for(g, g.extent_count);
  g.process_count = kProcesses;
  // One for each 256 MiB: less than 0.02 % of the largest pools with 64 hosts.
  g.namespace_count =
      static_cast<uint32_t>(std::clamp<uint64_t>(std::bit_floor(g.total_bytes >> 28), 64, 4096));
  g.lock_count = kLocks;
  g.touch_count = kTouches;
  // One word for each put since a reader's last look: enough for 1/64 of the blocks.
  g.log_count = g.host_count == 1
                    ? 0
                    : static_cast<uint32_t>(std::clamp<uint64_t>(
                          std::bit_ceil(blocks_of_host(g, g.extent_count) / 64), 1024, 65536));
  g.lease_count = static_cast<uint32_t>(std::clamp<uint64_t>(slots / 16, 1024, 65536));
  plan_words(g, (4 * g.extent_count + g.host_count - 1) / g.host_count);
  g.regions_offset = round_up(BH_SUPERBLOCK_COPIES * BH_SUPERBLOCK_COPY_OFFSET,
                              std::max(g.region_align_bytes, g.range_bytes));
  return place_parts(g, kExtentBytesMin);
}

Error bad(Status status, std::string text) { return Error{status, std::move(text)}; }

/// The words of extents to come take space from the beginning, whether the pool ever grows or not.
/// A tenth of the pool leaves room for any growth that makes sense: with extents of 64 MiB, 64
/// hosts reach it at 1,300 times the size, and with extents of 2 MiB at 40 times.
Result<void> check_growth(const GeometryChoice& c) {
  const uint64_t extents = (c.max_bytes - c.total_bytes) / c.extent_bytes;
  const uint64_t bytes = extents * kExtentBytesPerRegion * c.hosts;
  if (bytes <= c.total_bytes / 10) return {};
  return bad(Status::INVALID_ARGUMENT,
             fmt::format("a maximum size of {} bytes takes {} bytes of metadata in a pool of {} "
                         "bytes, of which it may take a tenth: give a smaller maximum or larger "
                         "extents than {} bytes",
                         c.max_bytes, bytes, c.total_bytes, c.extent_bytes));
}

/// With several hosts each extent has whole grains for its table. Where these are coarse (2 MiB on
/// devices and on huge pages), small extents would leave half of the pool to tables; but each host
/// needs some extents, since each size of blocks needs one.
uint64_t default_extent_bytes(const GeometryChoice& c) {
  const uint64_t by_size =
      std::clamp(std::bit_floor(c.total_bytes / 1024), kExtentBytesMin, kExtentBytesMax);
  if (c.hosts <= 1 || c.align_bytes <= kPage) return by_size;
  const uint64_t sixteen_each = std::bit_floor(c.total_bytes / c.hosts / 16);
  return std::clamp(std::min(sixteen_each, 16 * c.align_bytes), by_size, kExtentBytesMax);
}

Result<void> check_choice(const GeometryChoice& c) {
  if (c.total_bytes < kPoolBytesMin)
    return bad(Status::TOO_SMALL,
               fmt::format("a pool of {} bytes is too small: 16 MiB at least", c.total_bytes));
  if (c.max_bytes < c.total_bytes)
    return bad(Status::INVALID_ARGUMENT,
               fmt::format("the maximum size of {} bytes is less than the size of {} bytes",
                           c.max_bytes, c.total_bytes));
  if (c.max_bytes > kPoolBytesMax)
    return bad(Status::INVALID_ARGUMENT,
               fmt::format("a pool of {} bytes is too large: 256 TiB at most", c.max_bytes));
  if (c.hosts < 1 || c.hosts > BH_HOSTS_MAX)
    return bad(Status::INVALID_ARGUMENT,
               fmt::format("{} host slots: 1 to 64 are possible", c.hosts));
  if (!std::has_single_bit(c.extent_bytes) || c.extent_bytes < kExtentBytesMin ||
      c.extent_bytes > kExtentBytesMax)
    return bad(Status::INVALID_ARGUMENT,
               fmt::format("extents of {} bytes: give a power of two from 2 MiB to 64 MiB",
                           c.extent_bytes));
  if (!std::has_single_bit(c.min_block_bytes) || c.min_block_bytes < 4096 ||
      c.min_block_bytes > (1u << 20))
    return bad(Status::INVALID_ARGUMENT,
               fmt::format("smallest blocks of {} bytes: give a power of two from 4 KiB to 1 MiB",
                           c.min_block_bytes));
  if (!std::has_single_bit(c.align_bytes) || c.align_bytes < kPage ||
      c.align_bytes > kExtentBytesMin)
    return bad(Status::MISALIGNED, fmt::format("the medium maps in grains of {} bytes, which is "
                                               "no power of two from 4 KiB to 2 MiB",
                                               c.align_bytes));
  return check_growth(c);
}

bool copy_is_good(const bh_superblock& sb, uint32_t copy) {
  return sb.magic == BH_SUPERBLOCK_MAGIC && sb.magic_end == BH_SUPERBLOCK_MAGIC &&
         sb.copy == copy && sb.checksum == hash64(&sb, offsetof(bh_superblock, checksum));
}

bool is_readable(const bh_superblock& sb) {
  return sb.version == BH_FORMAT_VERSION && (sb.incompat & ~BH_FEATURES_INCOMPAT) == 0;
}

/// The numbers of the bits of a feature mask, such as "3, 17".
std::string bits_text(uint64_t mask) {
  std::string text;
  for (; mask != 0; mask &= mask - 1)
    text += fmt::format("{}{}", text.empty() ? "" : ", ", std::countr_zero(mask));
  return text;
}

Error unreadable(const bh_superblock& sb) {
  if (sb.version < BH_FORMAT_VERSION)
    return bad(
        Status::VERSION_UNKNOWN,
        fmt::format("the pool has format version {}, made by a Bowhead before 0.2, which "
                    "this one does not read: make it anew with `bowhead pool create --force`",
                    sb.version));
  if (sb.version > BH_FORMAT_VERSION)
    return bad(Status::VERSION_UNKNOWN,
               fmt::format("the pool has format version {} and this build knows version {}: "
                           "upgrade Bowhead",
                           sb.version, BH_FORMAT_VERSION));
  return bad(Status::VERSION_UNKNOWN,
             fmt::format("the pool has features that this build does not know and without which "
                         "it cannot be read (incompat, bit {}): upgrade Bowhead",
                         bits_text(sb.incompat & ~BH_FEATURES_INCOMPAT)));
}

/// If a further medium of a pool starts with these bytes: what it is.
std::optional<Error> refuse_medium(std::span<const std::byte> first,
                                   std::span<const std::byte> second) {
  const Result<bh_medium_label> label = parse_label(first, second);
  if (!label && label.status() == Status::NOT_A_POOL) return std::nullopt;
  if (!label) return label.error();
  return bad(Status::NOT_A_POOL,
             fmt::format("this is medium {} of pool {:016x}{:016x}, not a pool of its own: give "
                         "the locator of the pool's first medium",
                         label->medium, label->pool_id[0], label->pool_id[1]));
}

template <class T, size_t kSize>
bool is_zero(const T (&bytes)[kSize]) {
  return std::all_of(std::begin(bytes), std::end(bytes), [](T byte) { return byte == 0; });
}

/// Space kept for features to come is zero unless the pool has one.
bool reserved_is_zero(const bh_superblock& sb) {
  return has_newer_features(sb) || is_zero(sb.reserved);
}

bool media_are_stated(const bh_superblock& sb) {
  if ((sb.incompat & BH_FEATURE_JOINED) == 0)
    return has_newer_features(sb) || (sb.media_count == 0 && is_zero(sb.joined_as));
  return sb.media_count >= 2 && sb.media_count <= BH_MEDIA_MAX &&
         sb.joined_as[sizeof sb.joined_as - 1] == '\0';
}

/// The pool lies on exactly the media that were opened for it.
Result<void> check_media(const bh_superblock& sb, const MediaFound& found) {
  const uint64_t stated = media_count(sb);
  if (stated == found.count &&
      (stated == 1 || (found.pool_id[0] == sb.pool_id[0] && found.pool_id[1] == sb.pool_id[1])))
    return {};
  if (stated == found.count)
    return bad(Status::NOT_A_POOL,
               fmt::format("the first medium is of pool {:016x}{:016x}, and the others are of pool "
                           "{:016x}{:016x}: give media of one pool",
                           sb.pool_id[0], sb.pool_id[1], found.pool_id[0], found.pool_id[1]));
  const std::string_view created_as = sb.joined_as;
  return bad(
      Status::NOT_A_POOL,
      fmt::format("the pool lies on {} {}, and the locator names {}: give all of them, in "
                  "the order of `pool create`{}",
                  stated, stated == 1 ? "medium" : "media", found.count,
                  created_as.empty() ? "" : fmt::format(", which was told '{}'", created_as)));
}

/// The geometry must be exactly the one planned from its own choices; no other is accepted.
bool geometry_is_planned(const bh_geometry& g) {
  auto planned = plan_geometry(GeometryChoice{.total_bytes = g.total_bytes,
                                              .align_bytes = g.region_align_bytes,
                                              .hosts = g.host_count,
                                              .extent_bytes = g.extent_bytes,
                                              .min_block_bytes = g.min_block_bytes,
                                              .max_bytes = g.max_bytes,
                                              .grows = g.range_bytes != 0});
  return planned && std::memcmp(&planned.value(), &g, sizeof g) == 0;
}

Result<void> check_settings(const bh_superblock& sb) {
  if (auto ok = check_watermarks(sb.evict_high_permille, sb.evict_low_permille); !ok) return ok;
  if (sb.geometry.host_count > 1) return check_times(times_of(sb));
  if (states_times(sb))
    return bad(Status::INVALID_ARGUMENT, "a pool of one host has no times between hosts");
  return {};
}

}  // namespace

Result<void> check_watermarks(uint32_t high_permille, uint32_t low_permille) {
  if (high_permille <= 1000 && low_permille <= high_permille) return {};
  return bad(Status::INVALID_ARGUMENT,
             "the eviction watermarks must be 0 <= low <= high <= 1000 permille");
}

Result<void> check_times(const SharingTimes& t) {
  if (t.heartbeat_ms != 0 && t.settle_ms != 0 && t.dead_ms >= 5 * uint64_t{t.heartbeat_ms} &&
      t.dead_ms >= 10 * uint64_t{t.settle_ms})
    return {};
  return bad(
      Status::INVALID_ARGUMENT,
      fmt::format(
          "a host that is silent for {} ms cannot be called dead when hosts write a heartbeat "
          "each {} ms and stores settle in {} ms: give at least 5 heartbeats and 10 "
          "settles",
          t.dead_ms, t.heartbeat_ms, t.settle_ms));
}

void plan_words(bh_geometry& g, uint64_t extents) {
  const uint64_t slots_per_extent = g.extent_bytes / g.min_block_bytes;
  g.words_per_group = std::min<uint64_t>(64, slots_per_extent);
  g.word_count = std::min(g.extent_count, extents) * slots_per_extent;
}

namespace {

/// What each region has of a part: for set 0, and with room for the sets to come.
struct PartBytes {
  uint64_t set_0 = 0, all = 0;
};

std::array<PartBytes, BH_PART_COUNT> part_bytes(const bh_geometry& g) {
  std::array<PartBytes, BH_PART_COUNT> parts;
  const uint64_t bytes[BH_PART_COUNT] = {
      2 * sizeof(bh_host_slot),
      sizeof(bh_host_heartbeat),
      8 * BH_HOSTS_MAX,
      8 * BH_HOSTS_MAX,
      8 * g.extents_max,
      sizeof(bh_namespace) * g.namespace_count,
      8 * uint64_t{g.lease_count},
      8 * uint64_t{g.touch_count},
      uint64_t{BH_MAIL_AREA_BYTES} * g.host_count,
      sizeof(bh_index_bucket) * g.index_bucket_count,
      8 * uint64_t{g.log_count},
      sizeof(bh_host_counts),
      sizeof(bh_usage) * BH_USAGE_SHARDS *
          std::clamp(2 * g.namespace_count, 2u, BH_USAGE_ENTRIES_MAX),
      g.range_bytes == 0 ? 8 * uint64_t{BH_MEDIA_MAX}
                         : 2 * sizeof(bh_set_table) + 8 * (uint64_t{g.process_count} + BH_SETS_MAX),
      g.ring_bytes,
      sizeof(bh_host_private),
      sizeof(bh_process) * g.process_count,
      sizeof(bh_lease_slot) * g.lease_count,
      8 * BH_HOSTS_MAX,
      8 * uint64_t{g.lock_count},
      sizeof(bh_extent_state) * g.extents_max,
      8 * g.extents_max,
      8 * (g.word_count / g.words_per_group),
      8 * g.word_count,
      8 * g.word_count,
  };
  for (uint32_t i = 0; i < BH_PART_COUNT; ++i) parts[i] = {bytes[i], bytes[i]};
  if (g.range_bytes == 0) return parts;
  const uint64_t extents = g.extents_max - g.extent_count;
  const uint64_t buckets =
      g.index_bucket_count + buckets_for(g, extents) + BH_SETS_MAX * (bucket_unit(g) + 32);
  const uint64_t words =
      round_up(g.word_count + words_for(g, extents) +
                   BH_SETS_MAX * (word_unit(g) + g.extent_bytes / g.min_block_bytes),
               word_unit(g));
  parts[BH_PART_INDEX].all = sizeof(bh_index_bucket) * buckets;
  parts[BH_PART_GROUPS].all = 8 * (words / g.words_per_group);
  parts[BH_PART_BLOCKS].all = parts[BH_PART_RECENCY].all = 8 * words;
  return parts;
}

constexpr uint32_t kPartsOfSets[] = {BH_PART_INDEX, BH_PART_GROUPS, BH_PART_BLOCKS,
                                     BH_PART_RECENCY};

}  // namespace

uint64_t place_parts(bh_geometry& g, uint64_t payload_align_bytes) {
  uint64_t offset = 0;
  g.table_bytes = table_bytes_of(g);
  const auto parts = part_bytes(g);
  for (uint32_t i = 0; i < BH_PART_COUNT; ++i) {
    const bool in_sets = parts[i].all != parts[i].set_0;
    if (i == BH_PART_RINGS) offset = round_up(offset, kPage);
    if (in_sets) offset = round_up(offset, g.range_bytes);
    g.parts[i] = {offset, parts[i].all};
    offset += round_up(parts[i].all, in_sets ? g.range_bytes : BH_LINE_BYTES * 2);
  }
  const uint64_t tables = g.table_bytes * (g.range_bytes == 0 ? g.extent_count : g.extents_max);
  g.region_bytes = round_up(offset, std::max(g.region_align_bytes, g.range_bytes));
  g.tables_offset = g.regions_offset + g.region_bytes * g.host_count;
  g.payload_offset = round_up(g.tables_offset + tables, payload_align_bytes);
  if (g.range_bytes == 0) return g.payload_offset + g.extent_count * g.extent_bytes;
  return bytes_of(ranges_of(g, set_0(g)));
}

uint64_t offset_end(const bh_geometry& g) {
  if (g.range_bytes == 0) return g.total_bytes;
  return g.payload_offset + g.extents_max * g.extent_bytes;
}

Set set_0(const bh_geometry& g) {
  return {.extent_count = g.extent_count,
          .bucket_count = g.index_bucket_count,
          .word_count = g.word_count};
}

std::vector<Range> ranges_of(const bh_geometry& g, const Set& set) {
  if (g.range_bytes == 0) return {{0, g.total_bytes}};
  std::vector<Range> ranges;
  const auto add = [&](uint64_t begin, uint64_t end) {
    begin = begin / g.range_bytes * g.range_bytes;
    end = round_up(end, g.range_bytes);
    if (!ranges.empty() && begin <= ranges.back().end())
      ranges.back().bytes = end - ranges.back().offset;
    else
      ranges.push_back({begin, end - begin});
  };
  const bool first = set.first_extent == 0;
  if (first) add(0, g.regions_offset);
  for (uint32_t host = 0; host < g.host_count; ++host) {
    const uint64_t region = g.regions_offset + host * g.region_bytes;
    for (uint32_t i = 0; i < BH_PART_COUNT; ++i) {
      const uint64_t at = region + g.parts[i].offset;
      const auto add_part = [&](uint64_t element_bytes, uint64_t from, uint64_t count) {
        add(at + element_bytes * from, at + element_bytes * (from + count));
      };
      const uint64_t group = g.words_per_group;
      if (i == BH_PART_INDEX)
        add_part(sizeof(bh_index_bucket), set.first_bucket, set.bucket_count);
      else if (i == BH_PART_GROUPS)
        add_part(8, set.first_word / group, (set.word_count + group - 1) / group);
      else if (i == BH_PART_BLOCKS || i == BH_PART_RECENCY)
        add_part(8, set.first_word, set.word_count);
      else if (first)
        add(at, at + g.parts[i].bytes);
    }
  }
  const uint64_t tables = g.tables_offset + g.table_bytes * set.first_extent;
  add(tables, tables + g.table_bytes * set.extent_count);
  const uint64_t payload = g.payload_offset + g.extent_bytes * set.first_extent;
  add(payload, payload + g.extent_bytes * set.extent_count);
  return ranges;
}

namespace {

/// What a set of so many extents has besides them.
Set set_of(const bh_geometry& g, uint64_t extents) {
  return {.extent_count = extents,
          .bucket_count = buckets_for(g, extents),
          .word_count = words_for(g, extents)};
}

/// The lowest multiple of `unit` from which on `count` numbers are of none of the others, which lie
/// apart by the whole unit.
uint64_t first_free(std::vector<std::pair<uint64_t, uint64_t>> others, uint64_t count,
                    uint64_t unit) {
  std::sort(others.begin(), others.end());
  uint64_t first = 0;
  for (const auto& [begin, end] : others) {
    if (round_up(first + count, unit) <= begin) break;
    first = std::max(first, round_up(end, unit));
  }
  return first;
}

/// Gives a set numbers that none of the others has.
void number(const bh_geometry& g, std::span<const Set> others, Set& set) {
  std::vector<std::pair<uint64_t, uint64_t>> extents, buckets, words;
  for (const Set& other : others) {
    extents.emplace_back(other.first_extent, other.extent_end() + extents_between(g));
    buckets.emplace_back(other.first_bucket, other.bucket_end());
    words.emplace_back(other.first_word, other.word_end());
  }
  set.first_extent = first_free(extents, set.extent_count + extents_between(g), 1);
  set.first_bucket = first_free(buckets, set.bucket_count, bucket_unit(g));
  set.first_word = first_free(words, set.word_count, word_unit(g));
}

bool has_room(const bh_geometry& g, const Set& set) {
  return set.extent_end() <= g.extents_max &&
         set.bucket_end() * sizeof(bh_index_bucket) <= g.parts[BH_PART_INDEX].bytes &&
         set.word_end() * 8 <= g.parts[BH_PART_BLOCKS].bytes;
}

}  // namespace

Result<Set> plan_set(const bh_geometry& g, std::span<const Set> sets, uint64_t bytes) {
  const auto planned = [&](uint64_t extents) {
    Set set = set_of(g, extents);
    number(g, sets, set);
    return set;
  };
  const auto fits = [&](uint64_t extents) {
    return bytes_of(ranges_of(g, planned(extents))) <= bytes;
  };
  uint64_t low = 0, high = bytes / g.extent_bytes + 1;  // low fits, high does not
  while (high - low > 1) {
    const uint64_t middle = low + (high - low) / 2;
    (fits(middle) ? low : high) = middle;
  }
  // Where the first extent gets its number, its table may lie worse.
  while (low > 0 && !fits(low)) --low;
  if (low < g.host_count)
    return bad(Status::TOO_SMALL,
               fmt::format("{} bytes leave room for {} extents of {} bytes; {} host(s) need one "
                           "each: give at least {} bytes",
                           bytes, low, g.extent_bytes, g.host_count,
                           bytes_of(ranges_of(g, planned(g.host_count)))));
  uint64_t extents = low;
  for (const Set& set : sets) extents += set.extent_count;
  const Set set = planned(low);
  if (sets.size() <= BH_SETS_MAX && has_room(g, set)) return set;
  return bad(Status::LIMIT_REACHED,
             fmt::format("the pool was made to grow to {} bytes on {} sets of media at most, and "
                         "would have {} extents of {} bytes on {} sets",
                         g.max_bytes, BH_SETS_MAX + 1, extents, g.extent_bytes, sets.size() + 1));
}

std::optional<Set> place_set(const bh_geometry& g, const bh_set& stored) {
  const uint64_t most = g.extents_max;
  if (stored.extent_count == 0 || stored.extent_count > most || stored.first_extent > most ||
      stored.first_extent <= g.extent_count || stored.first_bucket % bucket_unit(g) != 0 ||
      stored.first_word % word_unit(g) != 0 || stored.first_bucket > g.parts[BH_PART_INDEX].bytes ||
      stored.first_word > g.parts[BH_PART_BLOCKS].bytes)
    return std::nullopt;
  Set set = set_of(g, stored.extent_count);
  set.first_extent = stored.first_extent;
  set.first_bucket = stored.first_bucket;
  set.first_word = stored.first_word;
  set.open = stored.state == BH_SET_USED;
  set.drains = stored.state == BH_SET_DRAINING;
  if (!has_room(g, set) || bytes_of(ranges_of(g, set)) > stored.bytes) return std::nullopt;
  return set;
}

void Layout::use_sets(std::vector<Set> further) const {
  auto sets = std::make_unique<Sets>();
  sets->list = std::move(further);
  sets->list.push_back(set_0(g_));
  std::sort(sets->list.begin(), sets->list.end(),
            [](const Set& a, const Set& b) { return a.first_extent < b.first_extent; });
  for (const Set& set : sets->list) {
    sets->extent_count += set.extent_count;
    sets->bucket_count += set.bucket_count;
    sets->extent_end = std::max(sets->extent_end, set.extent_end());
    sets->bucket_end = std::max(sets->bucket_end, set.bucket_end());
  }
  sets_.store(sets.get(), std::memory_order_release);
  all_sets_.push_back(std::move(sets));
}

Result<bh_geometry> plan_geometry(const GeometryChoice& choice) {
  GeometryChoice c = choice;
  if (c.extent_bytes == 0) c.extent_bytes = default_extent_bytes(c);
  if (c.max_bytes == 0) c.max_bytes = c.total_bytes;
  if (auto ok = check_choice(c); !ok) return ok.error();

  bh_geometry g{};
  g.total_bytes = c.total_bytes;
  g.region_align_bytes = c.align_bytes;
  g.extent_bytes = c.extent_bytes;
  g.min_block_bytes = c.min_block_bytes;
  g.host_count = c.hosts;
  g.max_bytes = c.max_bytes;
  g.range_bytes = c.grows ? BH_RANGE_BYTES : 0;
  uint64_t low = 0, high = c.total_bytes / c.extent_bytes + 1;  // low fits, high does not
  while (high - low > 1) {
    g.extent_count = low + (high - low) / 2;
    (place(g) <= c.total_bytes ? low : high) = g.extent_count;
  }
  if (low < c.hosts) {
    g.extent_count = c.hosts;
    return bad(Status::TOO_SMALL,
               fmt::format("{} bytes leave room for {} extents of {} bytes; {} host(s) need one "
                           "each: give at least {} bytes, or smaller extents",
                           c.total_bytes, low, c.extent_bytes, c.hosts, place(g)));
  }
  g.extent_count = low;
  place(g);
  if (offset_end(g) > kPoolBytesMax)
    return bad(
        Status::INVALID_ARGUMENT,
        fmt::format("a pool that can grow to {} bytes would need offsets beyond 256 TiB: give "
                    "a smaller maximum size",
                    g.max_bytes));
  return g;
}

Result<void> check_writable(const bh_superblock& sb) {
  const uint64_t unknown = sb.ro_compat & ~BH_FEATURES_RO_COMPAT;
  if (unknown == 0) return {};
  return bad(Status::VERSION_UNKNOWN,
             fmt::format("the pool has features that this build does not know and without which "
                         "it must not be written to (ro_compat, bit {}): upgrade Bowhead, or only "
                         "look at it, as `bowhead pool info` does",
                         bits_text(unknown)));
}

Result<bh_superblock> read_superblock(std::span<const std::byte> first,
                                      std::span<const std::byte> second, const MediaFound& media,
                                      bool* second_used) {
  bh_superblock copies[BH_SUPERBLOCK_COPIES] = {};
  const std::span<const std::byte> sources[] = {first, second};
  bool looks_like_pool = false;
  const bh_superblock *chosen = nullptr, *newer = nullptr;
  for (uint32_t i = 0; i < BH_SUPERBLOCK_COPIES; ++i) {
    if (sources[i].size() < sizeof(bh_superblock)) continue;
    std::memcpy(&copies[i], sources[i].data(), sizeof(bh_superblock));
    looks_like_pool |= copies[i].magic == BH_SUPERBLOCK_MAGIC;
    if (!copy_is_good(copies[i], i)) continue;
    // One copy with an unknown feature is enough: an upgrade was interrupted.
    if (!is_readable(copies[i])) newer = &copies[i];
    if (chosen == nullptr || !check_writable(copies[i])) chosen = &copies[i];
  }
  if (chosen == nullptr && !looks_like_pool) {
    if (auto medium = refuse_medium(first, second)) return *std::move(medium);
    return bad(Status::NOT_A_POOL,
               "no Bowhead superblock at offset 0 or 64 KiB: check the locator");
  }
  if (chosen == nullptr)
    return bad(Status::DAMAGED,
               std::string("both copies of the superblock are damaged") + kRestore);
  if (newer != nullptr) return unreadable(*newer);
  if (!geometry_is_planned(chosen->geometry) ||
      grows(*chosen) != (chosen->geometry.range_bytes != 0) ||
      chosen->checksum_kind != BH_CHECKSUM_XXH3_TREE_4K || chosen->seal_kind != 1 ||
      !reserved_is_zero(*chosen) || !media_are_stated(*chosen))
    return bad(Status::DAMAGED, std::string("the superblock is sealed but contradicts itself: not "
                                            "written by this program") +
                                    kRestore);
  if (auto ok = check_settings(*chosen); !ok)
    return bad(Status::DAMAGED, "the superblock is sealed but states settings that no pool has (" +
                                    ok.error().message() + "): not written by this program" +
                                    kRestore);
  if (auto ok = check_media(*chosen, media); !ok) return ok.error();
  if (media.bytes < chosen->geometry.total_bytes)
    return bad(Status::DAMAGED, fmt::format("the pool has {} bytes but the medium only {}: it "
                                            "was cut short{}",
                                            chosen->geometry.total_bytes, media.bytes, kRestore));
  *second_used = !copy_is_good(copies[0], 0);
  return *chosen;
}

void seal_superblock(bh_superblock& superblock, uint32_t copy) {
  superblock.copy = copy;
  superblock.checksum = hash64(&superblock, offsetof(bh_superblock, checksum));
}

}  // namespace bowhead::core
