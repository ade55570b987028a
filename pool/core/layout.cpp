// SPDX-License-Identifier: Apache-2.0
#include "pool/core/layout.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <iterator>
#include <optional>

#include "base/checksum.h"

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

/// Fills in everything that depends on the number of extents; returns the end of the payload.
uint64_t place(bh_geometry& g) {
  g.extents_max = g.extent_count + (g.max_bytes - g.total_bytes) / g.extent_bytes;
  g.ring_bytes = kRingBytes;
  const uint64_t slots = g.extent_count * (g.extent_bytes / g.min_block_bytes);
  // A host may come to own more than its share, so with several hosts each index has room for twice
  // that. 1.75 entries per block keep probe sets short (docs/format.md).
  const uint64_t blocks_of_host =
      std::min(slots, slots / g.host_count * (g.host_count > 1 ? 2 : 1));
  g.index_bucket_count = bucket_count_for((blocks_of_host * 7 / 4) / BH_INDEX_ENTRIES + 16);
  g.process_count = kProcesses;
  // One for each 256 MiB: less than 0.02 % of the largest pools with 64 hosts.
  g.namespace_count =
      static_cast<uint32_t>(std::clamp<uint64_t>(std::bit_floor(g.total_bytes >> 28), 64, 4096));
  g.lock_count = kLocks;
  g.touch_count = kTouches;
  // One word for each put since a reader's last look: enough for 1/64 of the blocks.
  g.log_count = g.host_count == 1 ? 0
                                  : static_cast<uint32_t>(std::clamp<uint64_t>(
                                        std::bit_ceil(blocks_of_host / 64), 1024, 65536));
  g.lease_count = static_cast<uint32_t>(std::clamp<uint64_t>(slots / 16, 1024, 65536));
  // Four times its share: a host that has adopted or been given that many extents can still carve
  // them all, whatever the sizes of their blocks.
  plan_words(g, (4 * g.extent_count + g.host_count - 1) / g.host_count);
  g.regions_offset =
      round_up(BH_SUPERBLOCK_COPIES * BH_SUPERBLOCK_COPY_OFFSET, g.region_align_bytes);
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
std::optional<Error> refuse_medium(std::span<const std::span<const std::byte>> copies) {
  bool looks_like_label = false;
  for (uint32_t i = 0; i < copies.size(); ++i) {
    bh_medium_label label;
    if (copies[i].size() < sizeof label) continue;
    std::memcpy(&label, copies[i].data(), sizeof label);
    if (label.magic != BH_MEDIUM_MAGIC) continue;
    looks_like_label = true;
    if (label.magic_end != BH_MEDIUM_MAGIC || label.copy != i || label.medium == 0 ||
        label.medium >= BH_MEDIA_MAX ||
        label.checksum != hash64(&label, offsetof(bh_medium_label, checksum)))
      continue;
    return bad(Status::NOT_A_POOL,
               fmt::format("this is medium {} of pool {:016x}{:016x}, not a pool of its own: give "
                           "the locator of the pool's first medium",
                           label.medium, label.pool_id[0], label.pool_id[1]));
  }
  if (!looks_like_label) return std::nullopt;
  return bad(Status::DAMAGED,
             "this is a medium of a pool, but both copies of its label are damaged: restore it "
             "from a copy");
}

template <size_t kSize>
bool is_zero(const uint8_t (&bytes)[kSize]) {
  return std::all_of(std::begin(bytes), std::end(bytes), [](uint8_t byte) { return byte == 0; });
}

/// Space kept for features to come is zero unless the pool has one.
bool reserved_is_zero(const bh_superblock& sb) {
  return has_newer_features(sb) || (sb.reserved0 == 0 && is_zero(sb.reserved));
}

/// The geometry must be exactly the one planned from its own choices; no other is accepted.
bool geometry_is_planned(const bh_geometry& g) {
  auto planned = plan_geometry(GeometryChoice{.total_bytes = g.total_bytes,
                                              .align_bytes = g.region_align_bytes,
                                              .hosts = g.host_count,
                                              .extent_bytes = g.extent_bytes,
                                              .min_block_bytes = g.min_block_bytes,
                                              .max_bytes = g.max_bytes});
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

uint64_t place_parts(bh_geometry& g, uint64_t payload_align_bytes) {
  const uint64_t slots_per_extent = g.extent_bytes / g.min_block_bytes;
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
      8 * BH_MEDIA_MAX,
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
  uint64_t offset = 0;
  for (uint32_t i = 0; i < BH_PART_COUNT; ++i) {
    if (i == BH_PART_RINGS) offset = round_up(offset, kPage);
    g.parts[i] = {offset, bytes[i]};
    offset += round_up(bytes[i], BH_LINE_BYTES * 2);
  }
  g.region_bytes = round_up(offset, g.region_align_bytes);
  // Extents change owners one by one, so each table must be mapped on its own. With one host none
  // changes its owner, and a coarse grain (2 MiB on huge pages) would waste most of each table.
  g.table_bytes = round_up(
      sizeof(bh_block_slot) * (slots_per_extent + 1) + sizeof(bh_block_words) * slots_per_extent,
      g.host_count > 1 ? g.region_align_bytes : kPage);
  g.tables_offset = g.regions_offset + g.region_bytes * g.host_count;
  g.payload_offset =
      round_up(g.tables_offset + g.table_bytes * g.extent_count, payload_align_bytes);
  return g.payload_offset + g.extent_count * g.extent_bytes;
}

Result<bh_geometry> plan_geometry(const GeometryChoice& choice) {
  GeometryChoice c = choice;
  if (c.extent_bytes == 0)
    c.extent_bytes =
        std::clamp(std::bit_floor(c.total_bytes / 1024), kExtentBytesMin, kExtentBytesMax);
  if (c.max_bytes == 0) c.max_bytes = c.total_bytes;
  if (auto ok = check_choice(c); !ok) return ok.error();

  bh_geometry g{};
  g.total_bytes = c.total_bytes;
  g.region_align_bytes = c.align_bytes;
  g.extent_bytes = c.extent_bytes;
  g.min_block_bytes = c.min_block_bytes;
  g.host_count = c.hosts;
  g.max_bytes = c.max_bytes;
  uint64_t low = 0, high = c.total_bytes / c.extent_bytes + 1;  // low fits, high does not
  while (high - low > 1) {
    g.extent_count = low + (high - low) / 2;
    (place(g) <= c.total_bytes ? low : high) = g.extent_count;
  }
  if (low < c.hosts)
    return bad(Status::TOO_SMALL,
               fmt::format("{} bytes leave room for {} extents of {} bytes; {} host(s) need one "
                           "each: give a larger size or smaller extents",
                           c.total_bytes, low, c.extent_bytes, c.hosts));
  g.extent_count = low;
  place(g);
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
                                      std::span<const std::byte> second, uint64_t media_bytes,
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
    if (auto medium = refuse_medium(sources)) return *std::move(medium);
    return bad(Status::NOT_A_POOL,
               "no Bowhead superblock at offset 0 or 64 KiB: check the locator");
  }
  if (chosen == nullptr)
    return bad(Status::DAMAGED,
               std::string("both copies of the superblock are damaged") + kRestore);
  if (newer != nullptr) return unreadable(*newer);
  if (!geometry_is_planned(chosen->geometry) || chosen->checksum_kind != BH_CHECKSUM_XXH3_TREE_4K ||
      chosen->seal_kind != 1 || !reserved_is_zero(*chosen))
    return bad(Status::DAMAGED, std::string("the superblock is sealed but contradicts itself: not "
                                            "written by this program") +
                                    kRestore);
  if (auto ok = check_settings(*chosen); !ok)
    return bad(Status::DAMAGED, "the superblock is sealed but states settings that no pool has (" +
                                    ok.error().message() + "): not written by this program" +
                                    kRestore);
  if (media_bytes < chosen->geometry.total_bytes)
    return bad(Status::DAMAGED, fmt::format("the pool has {} bytes but the medium only {}: it "
                                            "was cut short{}",
                                            chosen->geometry.total_bytes, media_bytes, kRestore));
  *second_used = !copy_is_good(copies[0], 0);
  return *chosen;
}

void seal_superblock(bh_superblock& superblock, uint32_t copy) {
  superblock.copy = copy;
  superblock.checksum = hash64(&superblock, offsetof(bh_superblock, checksum));
}

}  // namespace bowhead::core
