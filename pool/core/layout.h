// SPDX-License-Identifier: Apache-2.0
// Layout: where everything in a pool lies, from the geometry in its superblock. Arithmetic only.
#pragma once

#include <bowhead/format/block.h>
#include <bowhead/format/host.h>
#include <bowhead/format/index.h>
#include <bowhead/format/superblock.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "base/assert.h"
#include "base/status.h"
#include "pool/core/words.h"
#include "pool/media/stripes.h"
#include "pool/types.h"

namespace bowhead::core {

/// The choices from which the rest of a geometry follows.
struct GeometryChoice {
  uint64_t total_bytes = 0;
  uint64_t align_bytes = 4096;  ///< grain of the mapping
  uint32_t hosts = 1;
  uint64_t extent_bytes = 0;  ///< 0: total / 1024 within 2 MiB and 64 MiB; larger for coarse grains
  uint64_t min_block_bytes = 16384;
  uint64_t max_bytes = 0;  ///< to which the pool can grow; 0: total_bytes
  bool grows = false;      ///< BH_FEATURE_GROWTH
};

inline constexpr uint64_t kPoolBytesMin = uint64_t{16} << 20;
/// The reach of a hazard word. Also keeps every sum and product of a geometry far from overflow.
inline constexpr uint64_t kPoolBytesMax = uint64_t{BH_PAYLOAD_ALIGN} << BH_HAZARD_PAGE_BITS;
inline constexpr uint64_t kExtentBytesMin = uint64_t{2} << 20;
inline constexpr uint64_t kExtentBytesMax = uint64_t{64} << 20;

/// The geometry for a choice. Errors TOO_SMALL, INVALID_ARGUMENT, MISALIGNED state what to change.
Result<bh_geometry> plan_geometry(const GeometryChoice& choice);

/// Sets word_count and words_per_group: words for `extents` extents.
void plan_words(bh_geometry& geometry, uint64_t extents);

/// Places the parts of each region, then tables and payload behind the regions. `geometry` has all
/// counts, sizes of extents, blocks and rings, range_bytes and regions_offset; total_bytes is not
/// changed. Returns how many bytes set 0 takes. Besides plan_geometry() only tests call it.
uint64_t place_parts(bh_geometry& geometry, uint64_t payload_align_bytes);

/// Check the settings of a pool, by the same rule when it is created and when it is opened. Each
/// returns INVALID_ARGUMENT for settings that no pool may have.
Result<void> check_watermarks(uint32_t high_permille, uint32_t low_permille);
Result<void> check_times(const SharingTimes& times);

/// The times that a superblock states; the defaults if it states none, as in a pool of one host.
inline bool states_times(const bh_superblock& sb) {
  return (sb.heartbeat_ms | sb.dead_ms | sb.grace_ms | sb.settle_ms | sb.reclaim_ms) != 0;
}
inline SharingTimes times_of(const bh_superblock& sb) {
  if (!states_times(sb)) return {};
  return {sb.heartbeat_ms, sb.dead_ms, sb.grace_ms, sb.settle_ms, sb.reclaim_ms};
}

/// The pool has features that this version does not know, but may at least read: what is zero in
/// version 2 may have a meaning.
inline bool has_newer_features(const bh_superblock& sb) {
  return (sb.compat & ~BH_FEATURES_COMPAT) != 0 || (sb.ro_compat & ~BH_FEATURES_RO_COMPAT) != 0;
}
/// VERSION_UNKNOWN for a pool that this version may read, but not write to.
Result<void> check_writable(const bh_superblock& sb);

/// The pool can have further sets of media.
inline bool grows(const bh_superblock& sb) { return (sb.incompat & BH_FEATURE_GROWTH) != 0; }

/// The media of set 0: one, unless the pool was made on joined ones.
inline uint32_t media_count(const bh_superblock& sb) {
  return (sb.incompat & BH_FEATURE_JOINED) != 0 ? sb.media_count : 1;
}

/// The media on which a superblock was found.
struct MediaFound {
  uint64_t bytes = 0;
  size_t count = 1;
  std::array<uint64_t, 2> pool_id = {};  ///< by the labels of the further ones
};

/// Reads a superblock from the two copies (any bytes; one that is too short counts as missing).
/// `second_used`: the first copy is damaged. The superblock returned has a planned geometry and
/// settings that a pool may have, and lies on these media. Returns NOT_A_POOL (also: another medium
/// of a pool, or not all of its media), VERSION_UNKNOWN, DAMAGED (also: the media are shorter than
/// the pool). Before it writes to the pool the caller asks check_writable().
Result<bh_superblock> read_superblock(std::span<const std::byte> first,
                                      std::span<const std::byte> second, const MediaFound& media,
                                      bool* second_used);

/// Fills in copy number and checksum.
void seal_superblock(bh_superblock& superblock, uint32_t copy);

/// The extents, buckets and words that lie on a set of media (format/medium.h). Buckets and words
/// are of each host.
struct Set {
  uint64_t first_extent = 0, extent_count = 0;
  uint64_t first_bucket = 0, bucket_count = 0;
  uint64_t first_word = 0, word_count = 0;
  bool open = true;     ///< takes new blocks
  bool drains = false;  ///< blocks move off it

  uint64_t extent_end() const { return first_extent + extent_count; }
  uint64_t bucket_end() const { return first_bucket + bucket_count; }
  uint64_t word_end() const { return first_word + word_count; }
  bool operator==(const Set&) const = default;
};

Set set_0(const bh_geometry& geometry);
/// A further set on media of so many bytes, beside these. Returns TOO_SMALL: fewer extents than
/// hosts would fit; LIMIT_REACHED: the pool was made for less.
Result<Set> plan_set(const bh_geometry& geometry, std::span<const Set> sets, uint64_t bytes);
/// The same set, from what a table of sets says of it; nothing if no set can be so.
std::optional<Set> place_set(const bh_geometry& geometry, const bh_set& stored);
/// What lies on the media of a set, in this order.
std::vector<Range> ranges_of(const bh_geometry& geometry, const Set& set);
/// Above the numbers of all extents that there may ever be.
inline uint64_t extent_limit(const bh_geometry& geometry) {
  return geometry.range_bytes == 0 ? geometry.extent_count : geometry.extents_max;
}
/// Above all offsets of the pool, those of sets to come included.
uint64_t offset_end(const bh_geometry& geometry);

class Layout {
 public:
  /// Extents and smallest blocks are powers of two in size, which saves divisions in each look-up.
  explicit Layout(const bh_geometry& geometry)
      : g_(geometry),
        min_block_shift_(std::countr_zero(geometry.min_block_bytes)),
        extent_shift_(std::countr_zero(geometry.extent_bytes) - min_block_shift_) {
    BOWHEAD_ASSERT(std::has_single_bit(geometry.min_block_bytes) &&
                   std::has_single_bit(geometry.extent_bytes) &&
                   geometry.extent_bytes >= geometry.min_block_bytes);
    BOWHEAD_ASSERT(std::has_single_bit(geometry.words_per_group) &&
                   geometry.words_per_group <= slots_per_extent() &&
                   geometry.word_count % slots_per_extent() == 0);
    BOWHEAD_ASSERT(geometry.host_count == 1 || std::has_single_bit(geometry.log_count));
    use_sets({});
  }
  /// With the sets that there are now.
  Layout(const Layout& other) : Layout(other.g_) { use_sets(other.further_sets()); }
  Layout& operator=(const Layout&) = delete;

  const bh_geometry& geometry() const { return g_; }

  // ---- sets ----
  // Threads may look while another one calls use_sets(). A list stays where it is for the life of
  // this object, so that an operation goes on with the one that it began with.
  struct Sets {
    std::vector<Set> list;  ///< set 0 first, then by their numbers of extents
    uint64_t extent_count = 0, bucket_count = 0;
    uint64_t extent_end = 0, bucket_end = 0;  ///< above the highest number
  };
  const Sets& sets() const { return *sets_.load(std::memory_order_acquire); }
  /// From now on these are there besides set 0. One thread at a time.
  void use_sets(std::vector<Set> further) const;
  std::vector<Set> further_sets() const {
    std::vector<Set> further = sets().list;
    further.erase(further.begin());  // set 0 has the lowest numbers
    return further;
  }
  /// Above the numbers of all extents: some below it are in no set, and have zeros for words.
  uint64_t extent_end() const { return sets().extent_end; }
  uint64_t extent_count() const { return sets().extent_count; }
  uint64_t payload_bytes() const { return extent_count() * g_.extent_bytes; }
  /// The set that has an extent; null if none does.
  const Set* set_of(uint64_t extent) const {
    for (const Set& set : sets().list) {
      if (extent - set.first_extent < set.extent_count) return &set;
    }
    return nullptr;
  }
  /// Whether one of these sets has it: a bit for each, in the order of the list.
  bool is_in(uint64_t extent, uint64_t sets_by_place) const {
    const std::vector<Set>& list = sets().list;
    for (size_t i = 0; i < list.size(); ++i) {
      if (extent - list[i].first_extent < list[i].extent_count)
        return (sets_by_place >> i & 1) != 0;
    }
    return false;
  }
  /// Of a number below extent_end().
  bool has_extent(uint64_t extent) const {
    return sets().list.size() == 1 || set_of(extent) != nullptr;
  }
  /// New blocks may be stored in the extent, if a host holds it.
  bool takes_blocks(uint64_t extent) const {
    if (sets().list.size() == 1) return true;
    const Set* set = set_of(extent);
    return set != nullptr && set->open;
  }
  /// The set that has a bucket; null if none does.
  const Set* set_of_bucket(uint64_t bucket) const {
    for (const Set& set : sets().list) {
      if (bucket - set.first_bucket < set.bucket_count) return &set;
    }
    return nullptr;
  }
  uint64_t bucket_count() const { return sets().bucket_count; }
  /// The first bucket that a set has, from this number on; bucket_end() if none does.
  uint64_t next_bucket(uint64_t from) const {
    uint64_t next = bucket_end();
    for (const Set& set : sets().list) {
      if (from < set.bucket_end()) next = std::min(next, std::max(from, set.first_bucket));
    }
    return next;
  }
  uint64_t bucket_end() const { return sets().bucket_end; }

  uint64_t slots_per_extent() const { return uint64_t{1} << extent_shift_; }
  /// Above the numbers of all extents and block slots that there may ever be. What is in no set
  /// reads as zeros.
  uint64_t extent_limit() const { return core::extent_limit(g_); }
  uint64_t slot_limit() const { return extent_limit() << extent_shift_; }

  /// What there is of a host's region.
  std::vector<Range> region(uint32_t host) const {
    const uint64_t begin = g_.regions_offset + host * g_.region_bytes;
    std::vector<Range> found;
    for (const Set& set : sets().list) {
      for (const Range& range : ranges_of(g_, set)) {
        const uint64_t first = std::max(range.offset, begin);
        const uint64_t end = std::min(range.end(), begin + g_.region_bytes);
        if (first < end) found.push_back({first, end - first});
      }
    }
    return found;
  }
  uint64_t part(uint32_t host, uint32_t part) const {
    return g_.regions_offset + host * g_.region_bytes + g_.parts[part].offset;
  }
  uint64_t slot_line(uint32_t host, uint32_t copy) const {
    return part(host, BH_PART_SLOT) + copy * sizeof(bh_host_slot);
  }
  uint64_t word(uint32_t host, uint32_t part_id, uint64_t index) const {
    return part(host, part_id) + index * 8;
  }
  uint64_t process(uint32_t host, uint64_t index) const {
    return part(host, BH_PART_PROCESSES) + index * sizeof(bh_process);
  }
  uint64_t lease(uint32_t host, uint64_t index) const {
    return part(host, BH_PART_LEASES) + index * sizeof(bh_lease_slot);
  }
  uint64_t extent_state(uint32_t host, uint64_t extent) const {
    return part(host, BH_PART_EXTENTS) + extent * sizeof(bh_extent_state);
  }
  uint64_t set_table(uint32_t host, uint64_t copy) const {
    return part(host, BH_PART_MEDIA) + copy * sizeof(bh_set_table);
  }
  /// Above the numbers of words that there may ever be.
  uint64_t word_limit() const { return g_.parts[BH_PART_BLOCKS].bytes / 8; }
  uint64_t group_limit() const { return word_limit() / g_.words_per_group; }
  /// The host has words for all slots of a set at one time.
  bool has_all_words(const Set& set) const {
    return set.word_count == set.extent_count << extent_shift_;
  }
  /// A word covers 2^run_shift() slots: no block of the slab has fewer.
  uint32_t run_shift(uint64_t block_bytes) const {
    const int shift = static_cast<int>(std::bit_width(slots_in(block_bytes))) - 1;
    return static_cast<uint32_t>(std::clamp(shift, 0, extent_shift_));
  }
  /// Words of the run of an extent. Any shift may be passed.
  uint64_t run_words(uint32_t shift) const {
    return std::max(slots_per_extent() >> std::min<uint32_t>(shift, 63), g_.words_per_group);
  }
  /// The number of a slot's word; kNoWord if the run of its extent has none for it. The run comes
  /// from shared memory and can be anything: a word that is in no set reads as zero.
  uint64_t word_index(RunWord run, uint64_t slot) const {
    const uint64_t index = run.first + ((slot & (slots_per_extent() - 1)) >> (run.shift & 63));
    return run.state == BH_RUN_READY && index < word_limit() ? index : kNoWord;
  }
  static constexpr uint64_t kNoWord = UINT64_MAX;
  uint64_t bucket(uint32_t host, uint64_t index) const {
    return part(host, BH_PART_INDEX) + index * sizeof(bh_index_bucket);
  }
  /// Line of a request of `host` to `peer`.
  uint64_t mail(uint32_t host, uint32_t peer, uint64_t index) const {
    return part(host, BH_PART_MAIL) + peer * uint64_t{BH_MAIL_AREA_BYTES} + index * sizeof(bh_mail);
  }
  uint64_t name_space(uint32_t host, uint64_t index) const {
    return part(host, BH_PART_NAMESPACES) + index * sizeof(bh_namespace);
  }

  // Extents and blocks.
  uint64_t extent_offset(uint64_t extent) const {
    return g_.payload_offset + extent * g_.extent_bytes;
  }
  uint64_t extent_of_slot(uint64_t slot) const { return slot >> extent_shift_; }
  uint64_t first_slot(uint64_t extent) const { return extent << extent_shift_; }
  uint64_t descriptor(uint64_t extent) const { return g_.tables_offset + extent * g_.table_bytes; }
  /// Offset of the bh_block_slot of a slot: header line, then key line.
  uint64_t header(uint64_t slot) const {
    return g_.tables_offset + extent_of_slot(slot) * g_.table_bytes +
           ((slot & (slots_per_extent() - 1)) + 1) * sizeof(bh_block_slot);
  }
  /// Offset of the bh_block_words of a slot.
  uint64_t block_words(uint64_t slot) const {
    const uint64_t extent = extent_of_slot(slot);
    return descriptor(extent) + (slots_per_extent() + 1) * sizeof(bh_block_slot) +
           (slot & (slots_per_extent() - 1)) * sizeof(bh_block_words);
  }
  /// True if a block may lie there. The arguments come from shared memory and can be anything.
  bool valid_block(uint64_t offset, uint64_t bytes) const {
    const uint64_t end = g_.payload_offset + extent_limit() * g_.extent_bytes;
    return offset >= g_.payload_offset && offset < end && offset % BH_PAYLOAD_ALIGN == 0 &&
           bytes <= end - offset;
  }
  uint64_t slot_of(uint64_t block_offset) const {
    return slots_in(block_offset - g_.payload_offset);
  }
  /// Whole slots in so many bytes.
  uint64_t slots_in(uint64_t bytes) const { return bytes >> min_block_shift_; }

  /// The bytes in the key lines of a block: its key, and its user metadata with their check.
  static uint64_t key_line_bytes(uint64_t key_bytes, uint64_t user_bytes) {
    return key_bytes + (user_bytes == 0 ? 0 : user_bytes + BH_USER_CHECK_BYTES);
  }
  static uint64_t key_line_bytes(const bh_block_header& header) {
    return key_line_bytes(header.key_bytes, header.user_bytes);
  }
  /// The size of a block for a value of `value_bytes` and so many bytes in key lines: whole 4 KiB,
  /// at least min_block_bytes, and enough slots for the key lines.
  uint64_t block_bytes(uint64_t value_bytes, uint64_t key_line_bytes) const {
    const uint64_t key_slots = (key_line_bytes + BH_LINE_BYTES - 1) / BH_LINE_BYTES;
    const uint64_t rounded =
        (value_bytes + BH_PAYLOAD_ALIGN - 1) / BH_PAYLOAD_ALIGN * BH_PAYLOAD_ALIGN;
    const uint64_t least = g_.min_block_bytes * (key_slots > 1 ? key_slots : 1);
    return rounded > least ? rounded : least;
  }
  /// The same for a coded value. Frames come in all sizes, and every block size needs slabs of its
  /// own: in steps of 4 KiB, large values would need so many slabs that most of each stays empty.
  /// Steps of 1/32 to 1/16 of the value give at most 32 sizes, and waste half a step.
  uint64_t coded_block_bytes(uint64_t stored_bytes, uint64_t value_bytes,
                             uint64_t key_line_bytes) const {
    const uint64_t step = std::max<uint64_t>(BH_PAYLOAD_ALIGN, std::bit_ceil(value_bytes) / 32);
    return block_bytes((stored_bytes + step - 1) / step * step, key_line_bytes);
  }
  /// The first of a host's share of the extents of a set. Those of set 0 are its own at creation.
  uint64_t first_extent_of(const Set& set, uint32_t host) const {
    return set.first_extent + set.extent_count * host / g_.host_count;
  }

 private:
  bh_geometry g_;
  int min_block_shift_;
  int extent_shift_;                                           ///< of slots per extent
  mutable std::vector<std::unique_ptr<const Sets>> all_sets_;  ///< kept for those who read them
  mutable std::atomic<const Sets*> sets_{nullptr};
};

/// The first of a host's extents in set 0 at creation.
inline uint64_t first_extent_of(const Layout& layout, uint32_t host) {
  return layout.first_extent_of(layout.sets().list.front(), host);
}

/// bh_host_heartbeat::namespaces_used.
inline uint64_t namespaces_used_word(uint64_t used) { return ~used << 32 | used; }
/// Of `count` entries all, if the word is damaged.
inline uint64_t namespaces_used(uint64_t word, uint64_t count) {
  const uint64_t used = word & 0xFFFFFFFFu;
  return word == namespaces_used_word(used) ? std::min(used, count) : count;
}

/// Calls store(offset, word) for the words of the regions of a new pool that are not zero. Each
/// host owns its share of the extents, and its slot was never used: a slot line that is all zero is
/// damaged, so that no host takes a lost one for that, and reads all stamps to tell them apart.
template <class Store>
void write_new_regions(const Layout& layout, const Sealer& sealer, Store store) {
  for (uint32_t host = 0; host < layout.geometry().host_count; ++host) {
    for (uint64_t e = first_extent_of(layout, host); e < first_extent_of(layout, host + 1); ++e)
      store(layout.word(host, BH_PART_OWN, e), make_own(BH_OWN_OWN, 1));
    store(layout.part(host, BH_PART_HEARTBEAT) + offsetof(bh_host_heartbeat, namespaces_used),
          namespaces_used_word(0));
    const uint64_t at = layout.slot_line(host, 0);
    store(at + offsetof(bh_host_slot, seal), sealer.seal_of(to_line(bh_host_slot{}), at));
  }
}

}  // namespace bowhead::core
