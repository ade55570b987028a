// SPDX-License-Identifier: Apache-2.0
// A second copy, by hand, of every size, offset and number that is stored in pools, and of the
// status numbers.
//
// If a test here fails, a layout or a number has changed, and with it every pool in the field. If
// that is intended: raise BH_FORMAT_VERSION, keep reading old pools, and change this file as well.
// Statuses and enums are append-only.
#include <bowhead/format/block.h>
#include <bowhead/format/common.h>
#include <bowhead/format/device.h>
#include <bowhead/format/frame.h>
#include <bowhead/format/host.h>
#include <bowhead/format/index.h>
#include <bowhead/format/medium.h>
#include <bowhead/format/pci.h>
#include <bowhead/format/superblock.h>
#include <bowhead/status.h>
#include <gtest/gtest.h>

#include <cstring>
#include <type_traits>
#include <utility>
#include <vector>

extern "C" {
// c11_headers.c: sizes as the C compiler sees them, in the order of frozen_sizes() below.
extern const size_t kSizesInC[];
extern const size_t kSizesInCCount;
}

namespace {

struct Field {
  const char* name;
  size_t offset, size;                // as compiled
  size_t frozen_offset, frozen_size;  // as written here
};

struct Number {
  const char* name;
  uint64_t value, frozen;
};

// clang-format takes these braces for blocks.
// clang-format off
#define FIELD(type, member, offset, size) \
  { #member, offsetof(type, member), sizeof(type::member), offset, size }
#define NUMBER(name, value) \
  { #name, uint64_t{name}, value }
// clang-format on

// Checks a struct against its frozen fields, which must cover it without gap or overlap.
template <class T>
void expect_layout(size_t frozen_size, const std::vector<Field>& fields) {
  static_assert(std::has_unique_object_representations_v<T>, "padding, or a member not an integer");
  static_assert(std::is_trivial_v<T> && std::is_standard_layout_v<T>);
  EXPECT_EQ(sizeof(T), frozen_size);
  size_t end = 0;
  for (const Field& field : fields) {
    EXPECT_EQ(field.offset, field.frozen_offset) << field.name;
    EXPECT_EQ(field.size, field.frozen_size) << field.name;
    EXPECT_EQ(field.frozen_offset, end) << "a field before " << field.name << " is not listed";
    end = field.frozen_offset + field.frozen_size;
  }
  EXPECT_EQ(end, frozen_size) << "a field at the end is not listed";
}

void expect_numbers(const std::vector<Number>& numbers) {
  for (const Number& number : numbers) EXPECT_EQ(number.value, number.frozen) << number.name;
}

TEST(LayoutFreeze, Part) {
  const std::vector<Field> fields = {
      FIELD(bh_part, offset, 0, 8),
      FIELD(bh_part, bytes, 8, 8),
  };
  expect_layout<bh_part>(16, fields);
}

TEST(LayoutFreeze, Geometry) {
  const std::vector<Field> fields = {
      FIELD(bh_geometry, total_bytes, 0, 8),         FIELD(bh_geometry, region_align_bytes, 8, 8),
      FIELD(bh_geometry, regions_offset, 16, 8),     FIELD(bh_geometry, region_bytes, 24, 8),
      FIELD(bh_geometry, tables_offset, 32, 8),      FIELD(bh_geometry, table_bytes, 40, 8),
      FIELD(bh_geometry, payload_offset, 48, 8),     FIELD(bh_geometry, extent_bytes, 56, 8),
      FIELD(bh_geometry, extent_count, 64, 8),       FIELD(bh_geometry, min_block_bytes, 72, 8),
      FIELD(bh_geometry, index_bucket_count, 80, 8), FIELD(bh_geometry, host_count, 88, 4),
      FIELD(bh_geometry, process_count, 92, 4),      FIELD(bh_geometry, lease_count, 96, 4),
      FIELD(bh_geometry, namespace_count, 100, 4),   FIELD(bh_geometry, lock_count, 104, 4),
      FIELD(bh_geometry, touch_count, 108, 4),       FIELD(bh_geometry, block_parity_bytes, 112, 4),
      FIELD(bh_geometry, log_count, 116, 4),         FIELD(bh_geometry, word_count, 120, 8),
      FIELD(bh_geometry, words_per_group, 128, 8),   FIELD(bh_geometry, max_bytes, 136, 8),
      FIELD(bh_geometry, extents_max, 144, 8),       FIELD(bh_geometry, ring_bytes, 152, 8),
      FIELD(bh_geometry, range_bytes, 160, 8),       FIELD(bh_geometry, reserved, 168, 32),
      FIELD(bh_geometry, parts, 200, 512),
  };
  expect_layout<bh_geometry>(712, fields);
}

TEST(LayoutFreeze, Superblock) {
  const std::vector<Field> fields = {
      FIELD(bh_superblock, magic, 0, 8),
      FIELD(bh_superblock, version, 8, 4),
      FIELD(bh_superblock, copy, 12, 4),
      FIELD(bh_superblock, compat, 16, 8),
      FIELD(bh_superblock, incompat, 24, 8),
      FIELD(bh_superblock, ro_compat, 32, 8),
      FIELD(bh_superblock, pool_id, 40, 16),
      FIELD(bh_superblock, created_unix_ns, 56, 8),
      FIELD(bh_superblock, checksum_kind, 64, 4),
      FIELD(bh_superblock, seal_kind, 68, 4),
      FIELD(bh_superblock, evict_high_permille, 72, 4),
      FIELD(bh_superblock, evict_low_permille, 76, 4),
      FIELD(bh_superblock, geometry, 80, 712),
      FIELD(bh_superblock, heartbeat_ms, 792, 4),
      FIELD(bh_superblock, dead_ms, 796, 4),
      FIELD(bh_superblock, grace_ms, 800, 4),
      FIELD(bh_superblock, settle_ms, 804, 4),
      FIELD(bh_superblock, reclaim_ms, 808, 4),
      FIELD(bh_superblock, media_count, 812, 4),
      FIELD(bh_superblock, joined_as, 816, 512),
      FIELD(bh_superblock, reserved, 1328, 2752),
      FIELD(bh_superblock, checksum, 4080, 8),
      FIELD(bh_superblock, magic_end, 4088, 8),
  };
  expect_layout<bh_superblock>(4096, fields);
}

TEST(LayoutFreeze, MediumLabel) {
  const std::vector<Field> fields = {
      FIELD(bh_medium_label, magic, 0, 8),         FIELD(bh_medium_label, version, 8, 4),
      FIELD(bh_medium_label, copy, 12, 4),         FIELD(bh_medium_label, medium, 16, 4),
      FIELD(bh_medium_label, set, 20, 4),          FIELD(bh_medium_label, pool_id, 24, 16),
      FIELD(bh_medium_label, pool_offset, 40, 8),  FIELD(bh_medium_label, bytes, 48, 8),
      FIELD(bh_medium_label, first_extent, 56, 8), FIELD(bh_medium_label, extent_count, 64, 8),
      FIELD(bh_medium_label, stripe_bytes, 72, 8), FIELD(bh_medium_label, set_bytes, 80, 8),
      FIELD(bh_medium_label, set_media, 88, 4),    FIELD(bh_medium_label, reserved0, 92, 4),
      FIELD(bh_medium_label, set_id, 96, 8),       FIELD(bh_medium_label, reserved, 104, 3976),
      FIELD(bh_medium_label, checksum, 4080, 8),   FIELD(bh_medium_label, magic_end, 4088, 8),
  };
  expect_layout<bh_medium_label>(4096, fields);
}

TEST(LayoutFreeze, Set) {
  const std::vector<Field> fields = {
      FIELD(bh_set, state, 0, 4),         FIELD(bh_set, number, 4, 4),
      FIELD(bh_set, bytes, 8, 8),         FIELD(bh_set, first_extent, 16, 8),
      FIELD(bh_set, extent_count, 24, 8), FIELD(bh_set, first_bucket, 32, 8),
      FIELD(bh_set, first_word, 40, 8),   FIELD(bh_set, id, 48, 8),
      FIELD(bh_set, since, 56, 8),        FIELD(bh_set, locator, 64, 448),
  };
  expect_layout<bh_set>(512, fields);
}

TEST(LayoutFreeze, SetTable) {
  const std::vector<Field> fields = {
      FIELD(bh_set_table, version, 0, 8),       FIELD(bh_set_table, highest_number, 8, 4),
      FIELD(bh_set_table, reserved0, 12, 4),    FIELD(bh_set_table, versions_used, 16, 8),
      FIELD(bh_set_table, reserved, 24, 40),    FIELD(bh_set_table, sets, 64, 8192),
      FIELD(bh_set_table, reserved1, 8256, 56), FIELD(bh_set_table, checksum, 8312, 8),
  };
  expect_layout<bh_set_table>(8320, fields);
}

TEST(LayoutFreeze, HostSlot) {
  const std::vector<Field> fields = {
      FIELD(bh_host_slot, state, 0, 4),    FIELD(bh_host_slot, incarnation, 4, 2),
      FIELD(bh_host_slot, fenced, 6, 2),   FIELD(bh_host_slot, machine_id, 8, 8),
      FIELD(bh_host_slot, boot_id, 16, 8), FIELD(bh_host_slot, nonce, 24, 8),
      FIELD(bh_host_slot, turn, 32, 8),    FIELD(bh_host_slot, hardware_id, 40, 8),
      FIELD(bh_host_slot, claim, 48, 8),   FIELD(bh_host_slot, seal, 56, 8),
  };
  expect_layout<bh_host_slot>(64, fields);
}

TEST(LayoutFreeze, HostHeartbeat) {
  const std::vector<Field> fields = {
      FIELD(bh_host_heartbeat, heartbeat, 0, 8),
      FIELD(bh_host_heartbeat, duties_late_ms, 8, 8),
      FIELD(bh_host_heartbeat, settled, 16, 8),
      FIELD(bh_host_heartbeat, hazard_limit, 24, 8),
      FIELD(bh_host_heartbeat, namespaces_used, 32, 8),
      FIELD(bh_host_heartbeat, namespaces_removed, 40, 8),
      FIELD(bh_host_heartbeat, known, 48, 8),
      FIELD(bh_host_heartbeat, sets, 56, 8),
  };
  expect_layout<bh_host_heartbeat>(64, fields);
}

TEST(LayoutFreeze, HostCounts) {
  const std::vector<Field> fields = {
      FIELD(bh_host_counts, decisions, 0, 8),  FIELD(bh_host_counts, owns, 8, 8),
      FIELD(bh_host_counts, touches, 16, 8),   FIELD(bh_host_counts, mails, 24, 8),
      FIELD(bh_host_counts, growing, 32, 8),   FIELD(bh_host_counts, device, 40, 8),
      FIELD(bh_host_counts, reserved, 48, 16),
  };
  expect_layout<bh_host_counts>(64, fields);
}

TEST(LayoutFreeze, Namespace) {
  const std::vector<Field> fields = {
      FIELD(bh_namespace, id, 0, 8),
      FIELD(bh_namespace, content_checksum, 8, 8),
      FIELD(bh_namespace, incarnation, 16, 4),
      FIELD(bh_namespace, profile, 20, 1),
      FIELD(bh_namespace, flags, 21, 1),
      FIELD(bh_namespace, reserved0, 22, 2),
      FIELD(bh_namespace, epoch, 24, 4),
      FIELD(bh_namespace, reserved1, 28, 4),
      FIELD(bh_namespace, reserved, 32, 24),
      FIELD(bh_namespace, seal, 56, 8),
      FIELD(bh_namespace, layout, 64, 64),
      FIELD(bh_namespace, name, 128, 64),
      FIELD(bh_namespace, description, 192, 384),
      FIELD(bh_namespace, state, 576, 8),
      FIELD(bh_namespace, reserved2, 584, 56),
  };
  expect_layout<bh_namespace>(640, fields);
}

TEST(LayoutFreeze, Device) {
  expect_layout<bh_device_mail>(
      8, {FIELD(bh_device_mail, code, 0, 2), FIELD(bh_device_mail, reserved, 2, 6)});
  expect_layout<bh_device_block>(32, {
                                         FIELD(bh_device_block, offset, 0, 8),
                                         FIELD(bh_device_block, stamp, 8, 8),
                                         FIELD(bh_device_block, stored_bytes, 16, 4),
                                         FIELD(bh_device_block, length_bytes, 20, 4),
                                         FIELD(bh_device_block, first_token, 24, 4),
                                         FIELD(bh_device_block, codec, 28, 1),
                                         FIELD(bh_device_block, reserved, 29, 3),
                                     });
  expect_layout<bh_device_view>(12, {
                                        FIELD(bh_device_view, begin, 0, 4),
                                        FIELD(bh_device_view, end, 4, 4),
                                        FIELD(bh_device_view, sinks, 8, 4),
                                    });
  const std::vector<Field> fields = {
      FIELD(bh_device_request, request_bytes, 0, 4),
      FIELD(bh_device_request, operation, 4, 1),
      FIELD(bh_device_request, flags, 5, 1),
      FIELD(bh_device_request, reserved0, 6, 2),
      FIELD(bh_device_request, layer, 8, 4),
      FIELD(bh_device_request, first_head, 12, 4),
      FIELD(bh_device_request, head_count, 16, 4),
      FIELD(bh_device_request, block_count, 20, 4),
      FIELD(bh_device_request, query_count, 24, 4),
      FIELD(bh_device_request, view_count, 28, 4),
      FIELD(bh_device_request, weight_count, 32, 4),
      FIELD(bh_device_request, group, 36, 4),
      FIELD(bh_device_request, k, 40, 4),
      FIELD(bh_device_request, part, 44, 4),
      FIELD(bh_device_request, token_count, 48, 4),
      FIELD(bh_device_request, page_tokens, 52, 4),
      FIELD(bh_device_request, scale, 56, 4),
      FIELD(bh_device_request, soft_cap, 60, 4),
      FIELD(bh_device_request, token_budget, 64, 8),
      FIELD(bh_device_request, layout, 72, 64),
      FIELD(bh_device_request, reserved, 136, 56),
  };
  expect_layout<bh_device_request>(192, fields);
}

TEST(LayoutFreeze, KvLayout) {
  const std::vector<Field> fields = {
      FIELD(bh_kv_layout, number_format, 0, 1),
      FIELD(bh_kv_layout, order, 1, 1),
      FIELD(bh_kv_layout, parts, 2, 1),
      FIELD(bh_kv_layout, scales, 3, 1),
      FIELD(bh_kv_layout, scale_format, 4, 1),
      FIELD(bh_kv_layout, scale_place, 5, 1),
      FIELD(bh_kv_layout, rotary, 6, 1),
      FIELD(bh_kv_layout, reserved0, 7, 1),
      FIELD(bh_kv_layout, layers, 8, 2),
      FIELD(bh_kv_layout, heads, 10, 2),
      FIELD(bh_kv_layout, key_channels, 12, 2),
      FIELD(bh_kv_layout, value_channels, 14, 2),
      FIELD(bh_kv_layout, block_tokens, 16, 4),
      FIELD(bh_kv_layout, rotary_first, 20, 2),
      FIELD(bh_kv_layout, rotary_channels, 22, 2),
      FIELD(bh_kv_layout, rotary_base_thousandths, 24, 8),
      FIELD(bh_kv_layout, first_layer, 32, 2),
      FIELD(bh_kv_layout, model_layers, 34, 2),
      FIELD(bh_kv_layout, first_head, 36, 2),
      FIELD(bh_kv_layout, model_heads, 38, 2),
      FIELD(bh_kv_layout, reserved, 40, 24),
  };
  expect_layout<bh_kv_layout>(64, fields);
}

TEST(LayoutFreeze, HostPrivate) {
  const std::vector<Field> fields = {
      FIELD(bh_host_private, stamp_sequence, 0, 8),
      FIELD(bh_host_private, duties_done_ns, 8, 8),
      FIELD(bh_host_private, extents_busy, 16, 8),
      FIELD(bh_host_private, asked_hosts, 24, 8),
      FIELD(bh_host_private, log_tail, 32, 8),
      FIELD(bh_host_private, log_flushed, 40, 8),
      FIELD(bh_host_private, pad0, 48, 16),
      FIELD(bh_host_private, recovered_boot_id, 64, 8),
      FIELD(bh_host_private, recovered_incarnation, 72, 8),
      FIELD(bh_host_private, heartbeat_at_ns, 80, 8),
      FIELD(bh_host_private, probed_hosts, 88, 8),
      FIELD(bh_host_private, publish_phase, 96, 8),
      FIELD(bh_host_private, wanted_extents, 104, 8),
      FIELD(bh_host_private, heartbeats_taken, 112, 8),
      FIELD(bh_host_private, duties_at_ns, 120, 8),
      FIELD(bh_host_private, namespaces_heard, 128, 8),
      FIELD(bh_host_private, namespaces_gone, 136, 8),
      FIELD(bh_host_private, namespaces_swept, 144, 8),
      FIELD(bh_host_private, namespace_open, 152, 8),
      FIELD(bh_host_private, touched, 160, 8),
      FIELD(bh_host_private, usage_doubt, 168, 8),
      FIELD(bh_host_private, sets, 176, 8),
      FIELD(bh_host_private, opener, 184, 8),
  };
  expect_layout<bh_host_private>(192, fields);
}

TEST(LayoutFreeze, Process) {
  const std::vector<Field> fields = {
      FIELD(bh_process, word, 0, 8),           FIELD(bh_process, pid, 8, 8),
      FIELD(bh_process, pid_namespace, 16, 8), FIELD(bh_process, opened_unix_ns, 24, 8),
      FIELD(bh_process, publishing, 32, 16),   FIELD(bh_process, mirror_bytes, 48, 8),
      FIELD(bh_process, mirrored, 56, 8),      FIELD(bh_process, counters, 64, 128),
  };
  expect_layout<bh_process>(192, fields);
}

TEST(LayoutFreeze, LeaseSlot) {
  const std::vector<Field> fields = {
      FIELD(bh_lease_slot, word, 0, 8),
      FIELD(bh_lease_slot, deadline_ns, 8, 8),
      FIELD(bh_lease_slot, stamp, 16, 8),
      FIELD(bh_lease_slot, block_offset, 24, 8),
  };
  expect_layout<bh_lease_slot>(32, fields);
}

TEST(LayoutFreeze, ExtentState) {
  const std::vector<Field> fields = {
      FIELD(bh_extent_state, word, 0, 8),
      FIELD(bh_extent_state, block_bytes, 8, 8),
      FIELD(bh_extent_state, block_count, 16, 4),
      FIELD(bh_extent_state, extent_span, 20, 4),
      FIELD(bh_extent_state, head, 24, 8),
      FIELD(bh_extent_state, free_blocks, 32, 8),
      FIELD(bh_extent_state, preferred, 40, 8),
      FIELD(bh_extent_state, closed, 48, 8),
      FIELD(bh_extent_state, retired_blocks, 56, 8),
  };
  expect_layout<bh_extent_state>(64, fields);
}

TEST(LayoutFreeze, Mail) {
  const std::vector<Field> fields = {
      FIELD(bh_mail, kind, 0, 4),      FIELD(bh_mail, incarnation, 4, 4),
      FIELD(bh_mail, sequence, 8, 8),  FIELD(bh_mail, key_hash, 16, 16),
      FIELD(bh_mail, count, 32, 8),    FIELD(bh_mail, answered, 40, 8),
      FIELD(bh_mail, reserved, 48, 8), FIELD(bh_mail, seal, 56, 8),
  };
  expect_layout<bh_mail>(64, fields);
}

TEST(LayoutFreeze, BlockHeader) {
  const std::vector<Field> fields = {
      FIELD(bh_block_header, stamp, 0, 8),
      FIELD(bh_block_header, key_hash, 8, 16),
      FIELD(bh_block_header, payload_checksum, 24, 8),
      FIELD(bh_block_header, namespace_id, 32, 8),
      FIELD(bh_block_header, length_bytes, 40, 4),
      FIELD(bh_block_header, stored_bytes, 44, 4),
      FIELD(bh_block_header, key_bytes, 48, 2),
      FIELD(bh_block_header, codec, 50, 1),
      FIELD(bh_block_header, checksum_kind, 51, 1),
      FIELD(bh_block_header, profile, 52, 1),
      FIELD(bh_block_header, flags, 53, 1),
      FIELD(bh_block_header, user_bytes, 54, 2),
      FIELD(bh_block_header, seal, 56, 8),
  };
  expect_layout<bh_block_header>(64, fields);
}

TEST(LayoutFreeze, Usage) {
  const std::vector<Field> fields = {
      FIELD(bh_usage, namespace_id, 0, 8),  FIELD(bh_usage, blocks, 8, 8),
      FIELD(bh_usage, stored_bytes, 16, 8), FIELD(bh_usage, saved_bytes, 24, 8),
      FIELD(bh_usage, slack_bytes, 32, 8),  FIELD(bh_usage, hits, 40, 8),
      FIELD(bh_usage, misses, 48, 8),       FIELD(bh_usage, evictions, 56, 8),
  };
  expect_layout<bh_usage>(64, fields);
}

TEST(LayoutFreeze, BlockWords) {
  const std::vector<Field> fields = {
      FIELD(bh_block_words, stamp, 0, 8),
      FIELD(bh_block_words, pins, 8, 8),
      FIELD(bh_block_words, times, 16, 8),
      FIELD(bh_block_words, group, 24, 8),
  };
  expect_layout<bh_block_words>(32, fields);
}

TEST(LayoutFreeze, BlockSlot) {
  const std::vector<Field> fields = {
      FIELD(bh_block_slot, header, 0, 64),
      FIELD(bh_block_slot, key, 64, 64),
  };
  expect_layout<bh_block_slot>(128, fields);
}

TEST(LayoutFreeze, ExtentDescriptor) {
  const std::vector<Field> fields = {
      FIELD(bh_extent_descriptor, carvings, 0, 8),
      FIELD(bh_extent_descriptor, block_bytes, 8, 8),
      FIELD(bh_extent_descriptor, block_count, 16, 4),
      FIELD(bh_extent_descriptor, extent_span, 20, 4),
      FIELD(bh_extent_descriptor, owner, 24, 4),
      FIELD(bh_extent_descriptor, reserved0, 28, 4),
      FIELD(bh_extent_descriptor, reserved, 32, 24),
      FIELD(bh_extent_descriptor, seal, 56, 8),
  };
  expect_layout<bh_extent_descriptor>(64, fields);
}

TEST(LayoutFreeze, IndexEntry) {
  const std::vector<Field> fields = {
      FIELD(bh_index_entry, key_hash, 0, 16),     FIELD(bh_index_entry, block_offset, 16, 8),
      FIELD(bh_index_entry, stamp, 24, 8),        FIELD(bh_index_entry, payload_checksum, 32, 8),
      FIELD(bh_index_entry, namespace_id, 40, 8), FIELD(bh_index_entry, stored_bytes, 48, 4),
      FIELD(bh_index_entry, incarnation, 52, 2),  FIELD(bh_index_entry, flags, 54, 2),
      FIELD(bh_index_entry, seal, 56, 8),
  };
  expect_layout<bh_index_entry>(64, fields);
}

TEST(LayoutFreeze, IndexBucket) {
  const std::vector<Field> fields = {
      FIELD(bh_index_bucket, words, 0, 64),
      FIELD(bh_index_bucket, entries, 64, 448),
  };
  expect_layout<bh_index_bucket>(512, fields);
}

TEST(LayoutFreeze, FrameHeader) {
  const std::vector<Field> fields = {
      FIELD(bh_frame_header, magic, 0, 4),         FIELD(bh_frame_header, version, 4, 1),
      FIELD(bh_frame_header, number, 5, 1),        FIELD(bh_frame_header, channels, 6, 2),
      FIELD(bh_frame_header, outer, 8, 4),         FIELD(bh_frame_header, tokens, 12, 4),
      FIELD(bh_frame_header, tile_tokens, 16, 2),  FIELD(bh_frame_header, rotary_dim, 18, 2),
      FIELD(bh_frame_header, rotary_ratio, 20, 4), FIELD(bh_frame_header, table_checksum, 24, 4),
  };
  expect_layout<bh_frame_header>(28, fields);
}

TEST(LayoutFreeze, FrameRotation) {
  const std::vector<Field> fields = {
      FIELD(bh_frame_rotation, head, 0, 2),     FIELD(bh_frame_rotation, first, 2, 2),
      FIELD(bh_frame_rotation, step, 4, 4),     FIELD(bh_frame_rotation, pairs, 8, 1),
      FIELD(bh_frame_rotation, reserved, 9, 3),
  };
  expect_layout<bh_frame_rotation>(12, fields);
}

std::vector<std::pair<size_t, size_t>> frozen_sizes() {
  return {
      {sizeof(bh_part), 16},
      {sizeof(bh_geometry), 712},
      {sizeof(bh_superblock), 4096},
      {sizeof(bh_medium_label), 4096},
      {sizeof(bh_set), 512},
      {sizeof(bh_set_table), 8320},
      {sizeof(bh_host_slot), 64},
      {sizeof(bh_host_heartbeat), 64},
      {sizeof(bh_host_counts), 64},
      {sizeof(bh_namespace), 640},
      {sizeof(bh_host_private), 192},
      {sizeof(bh_process), 192},
      {sizeof(bh_lease_slot), 32},
      {sizeof(bh_extent_state), 64},
      {sizeof(bh_block_header), 64},
      {sizeof(bh_block_slot), 128},
      {sizeof(bh_block_words), 32},
      {sizeof(bh_usage), 64},
      {sizeof(bh_extent_descriptor), 64},
      {sizeof(bh_index_entry), 64},
      {sizeof(bh_index_bucket), 512},
      {sizeof(bh_frame_header), 28},
      {sizeof(bh_frame_rotation), 12},
      {sizeof(bh_device_block), 32},
      {sizeof(bh_device_view), 12},
      {sizeof(bh_device_mail), 8},
      {sizeof(bh_device_request), 192},
  };
}

TEST(LayoutFreeze, CAndCxxAgree) {
  const auto sizes = frozen_sizes();
  ASSERT_EQ(kSizesInCCount, sizes.size());
  for (size_t i = 0; i < sizes.size(); ++i) {
    EXPECT_EQ(sizes[i].first, sizes[i].second) << i;
    EXPECT_EQ(kSizesInC[i], sizes[i].second) << i;
  }
}

TEST(NumberFreeze, Common) {
  const std::vector<Number> numbers = {
      NUMBER(BH_LINE_BYTES, 64),      NUMBER(BH_PAYLOAD_ALIGN, 4096),
      NUMBER(BH_KEY_BYTES_MAX, 512),  NUMBER(BH_USER_BYTES_MAX, 512),
      NUMBER(BH_USER_CHECK_BYTES, 8), NUMBER(BH_VALUE_BYTES_MAX, 1073741824),
      NUMBER(BH_HOSTS_MAX, 64),
  };
  expect_numbers(numbers);
}

TEST(NumberFreeze, BlockWordsAndUsage) {
  const std::vector<Number> numbers = {
      NUMBER(BH_USAGE_SHARDS, 8), NUMBER(BH_USAGE_ENTRIES_MAX, 512), NUMBER(BH_PIN_SOFT, 1),
      NUMBER(BH_PIN_HARD, 2),     NUMBER(BH_PRIORITY_SHIFT, 56),     NUMBER(BH_PIN_SHIFT, 48),
      NUMBER(BH_FORKS_SHIFT, 32), NUMBER(BH_EXPIRES_SHIFT, 32),
  };
  expect_numbers(numbers);
}

TEST(NumberFreeze, Superblock) {
  const std::vector<Number> numbers = {
      NUMBER(BH_SUPERBLOCK_MAGIC, 0x3144414548574F42),
      NUMBER(BH_SUPERBLOCK_DESTROYED, 0x44594F5254534544),
      NUMBER(BH_FORMAT_VERSION, 2),
      NUMBER(BH_SUPERBLOCK_COPY_OFFSET, 65536),
      NUMBER(BH_SUPERBLOCK_COPIES, 2),
      NUMBER(BH_FEATURES_COMPAT, 16),
      NUMBER(BH_FEATURES_INCOMPAT, 12),
      NUMBER(BH_FEATURES_RO_COMPAT, 2),
      NUMBER(BH_FEATURE_WIPING, 2),
      NUMBER(BH_FEATURE_JOINED, 4),
      NUMBER(BH_FEATURE_GROWTH, 8),
      NUMBER(BH_FEATURE_RINGS, 16),
      NUMBER(BH_HEADER_WIPE, 1),
      NUMBER(BH_NAMESPACE_WIPE, 1),
      NUMBER(BH_CHECKSUM_NONE, 0),
      NUMBER(BH_CHECKSUM_XXH3_TREE_4K, 1),
      NUMBER(BH_PART_SLOT, 0),
      NUMBER(BH_PART_HEARTBEAT, 1),
      NUMBER(BH_PART_DECIDE, 2),
      NUMBER(BH_PART_ACK, 3),
      NUMBER(BH_PART_OWN, 4),
      NUMBER(BH_PART_NAMESPACES, 5),
      NUMBER(BH_PART_HAZARDS, 6),
      NUMBER(BH_PART_TOUCH, 7),
      NUMBER(BH_PART_MAIL, 8),
      NUMBER(BH_PART_INDEX, 9),
      NUMBER(BH_PART_LOG, 10),
      NUMBER(BH_PART_COUNTS, 11),
      NUMBER(BH_PART_USAGE, 12),
      NUMBER(BH_PART_MEDIA, 13),
      NUMBER(BH_PART_RINGS, 14),
      NUMBER(BH_PART_PRIVATE, 15),
      NUMBER(BH_PART_PROCESSES, 16),
      NUMBER(BH_PART_LEASES, 17),
      NUMBER(BH_PART_VIEW, 18),
      NUMBER(BH_PART_LOCKS, 19),
      NUMBER(BH_PART_EXTENTS, 20),
      NUMBER(BH_PART_RUNS, 21),
      NUMBER(BH_PART_GROUPS, 22),
      NUMBER(BH_PART_BLOCKS, 23),
      NUMBER(BH_PART_RECENCY, 24),
      NUMBER(BH_PART_COUNT, 25),
      NUMBER(BH_PART_PLACES, 32),
      NUMBER(BH_MEDIA_MAX, 64),
      NUMBER(BH_SETS_MAX, 16),
      NUMBER(BH_RANGE_BYTES, 2097152),
      NUMBER(BH_SET_NONE, 0),
      NUMBER(BH_SET_ADDED, 1),
      NUMBER(BH_SET_USED, 2),
      NUMBER(BH_SET_DRAINING, 3),
      NUMBER(BH_LABEL_BYTES, 2097152),
      NUMBER(BH_MEDIUM_MAGIC, 0x314D444548574F42),
  };
  expect_numbers(numbers);
}

TEST(NumberFreeze, Frame) {
  const std::vector<Number> numbers = {
      NUMBER(BH_FRAME_MAGIC, 0x31464842),
      NUMBER(BH_FRAME_VERSION, 1),
      NUMBER(BH_FRAME_VERSION_ROTATION, 2),
      NUMBER(BH_NUMBER_BF16, 1),
      NUMBER(BH_NUMBER_FP16, 2),
      NUMBER(BH_NUMBER_FP8_E4M3, 3),
      NUMBER(BH_NUMBER_FP8_E5M2, 4),
      NUMBER(BH_NUMBER_INT8, 5),
      NUMBER(BH_NUMBER_BYTES, 6),
      NUMBER(BH_NUMBER_FP32, 7),
      NUMBER(BH_TILE_STORED, 0),
      NUMBER(BH_TILE_PLANES, 1),
      NUMBER(BH_TILE_BYTES, 2),
      NUMBER(BH_TILE_SEARCHABLE, 3),
      NUMBER(BH_FRAME_STEP_VALUES, 256),
      NUMBER(BH_STREAM_STORED, 0),
      NUMBER(BH_STREAM_ZERO, 1),
      NUMBER(BH_STREAM_LZ4, 2),
      NUMBER(BH_STREAM_ZSTD, 3),
      NUMBER(BH_STREAM_NIBBLES, 4),
  };
  expect_numbers(numbers);
}

TEST(NumberFreeze, Device) {
  const std::vector<Number> numbers = {
      NUMBER(BH_DEVICE_PAIRS, 8),         NUMBER(BH_DEVICE_QUEUE_BYTES, 4096),
      NUMBER(BH_DEVICE_SCORE, 1),         NUMBER(BH_DEVICE_TOP_K, 2),
      NUMBER(BH_DEVICE_ATTEND, 3),        NUMBER(BH_DEVICE_GATHER, 4),
      NUMBER(BH_DEVICE_DIGEST, 5),        NUMBER(BH_DEVICE_NOTHING, 64),
      NUMBER(BH_DEVICE_ATTACH, 65),       NUMBER(BH_DEVICE_DETACH, 66),
      NUMBER(BH_DEVICE_CANCEL, 67),       NUMBER(BH_DEVICE_MAILBOX, 68),
      NUMBER(BH_PCI_VENDOR, 0x1AF4),      NUMBER(BH_PCI_DEVICE, 0x10F8),
      NUMBER(BH_PCI_CLASS, 0x120000),     NUMBER(BH_PCI_BAR_BYTES, 4096),
      NUMBER(BH_PCI_MAGIC, 0x56444842),   NUMBER(BH_PCI_VERSION, 1),
      NUMBER(BH_PCI_REG_MAGIC, 0),        NUMBER(BH_PCI_REG_VERSION, 4),
      NUMBER(BH_PCI_REG_STATE, 8),        NUMBER(BH_PCI_REG_STATUS, 12),
      NUMBER(BH_PCI_REG_WINDOW, 16),      NUMBER(BH_PCI_REG_BYTES, 24),
      NUMBER(BH_PCI_REG_CONTROL, 32),     NUMBER(BH_PCI_REG_DOORBELL, 36),
      NUMBER(BH_PCI_REG_SIGNAL, 40),      NUMBER(BH_PCI_REG_TEXT, 256),
      NUMBER(BH_PCI_TEXT_BYTES, 256),     NUMBER(BH_PCI_MSIX_TABLE, 0x800),
      NUMBER(BH_PCI_MSIX_PENDING, 0xC00), NUMBER(BH_PCI_DISABLED, 0),
      NUMBER(BH_PCI_STARTING, 1),         NUMBER(BH_PCI_READY, 2),
      NUMBER(BH_PCI_FAILED, 3),           NUMBER(BH_DEVICE_SKIP, 1),
      NUMBER(BH_DEVICE_RECTIFY, 2),       NUMBER(BH_DEVICE_FEWEST_BYTES, 4),
      NUMBER(BH_COMMAND_ID, 0),           NUMBER(BH_COMMAND_OPCODE, 1),
      NUMBER(BH_COMMAND_INPUT, 2),        NUMBER(BH_COMMAND_INPUT_BYTES, 3),
      NUMBER(BH_COMMAND_ANSWER, 4),       NUMBER(BH_COMMAND_ROOM, 5),
      NUMBER(BH_COMMAND_DEADLINE_MS, 6),  NUMBER(BH_COMPLETION_ID, 0),
      NUMBER(BH_COMPLETION_STATUS, 1),    NUMBER(BH_COMPLETION_BYTES, 2),
      NUMBER(BH_COMPLETION_SUM, 3),       NUMBER(BH_COMPLETION_READ_BYTES, 4),
      NUMBER(BH_COMPLETION_TIME_NS, 5),   NUMBER(BH_COMPLETION_MODELLED_NS, 6),
  };
  expect_numbers(numbers);
}

TEST(NumberFreeze, Namespace) {
  const std::vector<Number> numbers = {
      NUMBER(BH_NAMESPACE_NONE, 0),
      NUMBER(BH_NAMESPACE_TENTATIVE, 0x6caf76a5703598ae),
      NUMBER(BH_NAMESPACE_CONFIRMED, 0xd670c342c6cce996),
      NUMBER(BH_NAMESPACE_REMOVED, 0x3f0c9931918c40bf),
      NUMBER(BH_NAMESPACE_NAME_BYTES, 64),
      NUMBER(BH_NAMESPACE_TEXT_BYTES, 384),
      NUMBER(BH_NAMESPACE_CONTENT_BYTES, 512),
  };
  expect_numbers(numbers);
}

TEST(NumberFreeze, Host) {
  const std::vector<Number> numbers = {
      NUMBER(BH_KNOWN_VERSION_SHIFT, 56),
      NUMBER(BH_OWN_UNCONFIRMED, 255),
      NUMBER(BH_OWN_STATE_SHIFT, 60),
      NUMBER(BH_OWN_EPOCH_SHIFT, 32),
      NUMBER(BH_OWN_SLOT_SHIFT, 24),
      NUMBER(BH_OWN_INCARNATION_SHIFT, 8),
      NUMBER(BH_CUSTODY_FULL, 0),
      NUMBER(BH_CUSTODY_READ_ONLY, 1),
      NUMBER(BH_CUSTODY_COPY_ONLY, 2),
      NUMBER(BH_DECIDE_INST_SHIFT, 47),
      NUMBER(BH_DECIDE_MBAL_SHIFT, 32),
      NUMBER(BH_DECIDE_BAL_SHIFT, 17),
      NUMBER(BH_DECIDE_VAL_SHIFT, 1),
      NUMBER(BH_DECIDE_ROUND_MAX, 511),
      NUMBER(BH_ACK_FENCED_SHIFT, 32),
      NUMBER(BH_MAIL_NONE, 0),
      NUMBER(BH_MAIL_WANT, 2),
      NUMBER(BH_MAIL_REMOVE, 3),
      NUMBER(BH_MAIL_AREA_BYTES, 4096),
      NUMBER(BH_HAZARD_PAGE_BITS, 36),
      NUMBER(BH_ORDER_HEADS_FIRST, 0),
      NUMBER(BH_ORDER_TOKENS_FIRST, 1),
      NUMBER(BH_SCALES_NONE, 0),
      NUMBER(BH_SCALES_PER_TOKEN, 1),
      NUMBER(BH_SCALES_PER_ROW, 2),
      NUMBER(BH_SCALES_PER_CHANNEL, 3),
      NUMBER(BH_SCALES_ELSEWHERE, 0),
      NUMBER(BH_SCALES_BEHIND_ROW, 1),
      NUMBER(BH_SCALES_BEHIND_PART, 2),
      NUMBER(BH_ROTARY_NONE, 0),
      NUMBER(BH_ROTARY_HALVES, 1),
      NUMBER(BH_ROTARY_INTERLEAVED, 2),
      NUMBER(BH_WORD_STATE_SHIFT, 60),
      NUMBER(BH_WORD_PROCESS_SHIFT, 48),
      NUMBER(BH_HOST_FREE, 0),
      NUMBER(BH_HOST_JOINING, 1),
      NUMBER(BH_HOST_LIVE, 2),
      NUMBER(BH_HOST_LEFT, 3),
      NUMBER(BH_OWN_NONE, 0),
      NUMBER(BH_OWN_OWN, 1),
      NUMBER(BH_OWN_GIVEN, 2),
      NUMBER(BH_OWN_CLAIM, 3),
      NUMBER(BH_OWN_ABANDONED, 4),
      NUMBER(BH_MIRROR_NONE, 0),
      NUMBER(BH_MIRROR_REFUSED, 1),
      NUMBER(BH_PROCESS_FREE, 0),
      NUMBER(BH_PROCESS_LIVE, 1),
      NUMBER(BH_PROCESS_SCAVENGING, 2),
      NUMBER(BH_LEASE_FREE, 0),
      NUMBER(BH_LEASE_ACTIVE, 1),
      NUMBER(BH_LEASE_REVOKED, 2),
      NUMBER(BH_BLOCK_NONE, 0),
      NUMBER(BH_BLOCK_FREE, 1),
      NUMBER(BH_BLOCK_RESERVED, 2),
      NUMBER(BH_BLOCK_COMMITTED, 3),
      NUMBER(BH_BLOCK_RETIRING, 4),
      NUMBER(BH_BLOCK_RETIRED, 5),
      NUMBER(BH_BLOCK_CLEANING, 6),
      NUMBER(BH_EXTENT_FREE, 0),
      NUMBER(BH_EXTENT_CARVING, 1),
      NUMBER(BH_EXTENT_SLAB, 2),
      NUMBER(BH_EXTENT_PART, 3),
      NUMBER(BH_EXTENT_COALESCING, 4),
  };
  expect_numbers(numbers);
}

TEST(NumberFreeze, Runs) {
  const std::vector<Number> numbers = {
      NUMBER(BH_RUN_NONE, 0),         NUMBER(BH_RUN_CHANGING, 1),     NUMBER(BH_RUN_READY, 2),
      NUMBER(BH_RUN_STATE_SHIFT, 56), NUMBER(BH_RUN_SHIFT_SHIFT, 48),
  };
  expect_numbers(numbers);
}

TEST(NumberFreeze, Counters) {
  const std::vector<Number> numbers = {
      NUMBER(BH_COUNTER_PUTS, 0),
      NUMBER(BH_COUNTER_PUTS_PRESENT, 1),
      NUMBER(BH_COUNTER_HITS, 2),
      NUMBER(BH_COUNTER_MISSES, 3),
      NUMBER(BH_COUNTER_EVICTIONS, 4),
      NUMBER(BH_COUNTER_REMOVALS, 5),
      NUMBER(BH_COUNTER_MOVES, 6),
      NUMBER(BH_COUNTER_DAMAGED, 7),
      NUMBER(BH_COUNTER_BYTES_IN, 8),
      NUMBER(BH_COUNTER_BYTES_OUT, 9),
      NUMBER(BH_COUNTER_NO_SPACE, 10),
      NUMBER(BH_COUNTER_SCAVENGED, 11),
      NUMBER(BH_COUNTER_HITS_ELSEWHERE, 12),
      NUMBER(BH_COUNTER_RECOMPRESSED, 13),
      NUMBER(BH_COUNTER_COUNT, 14),
      NUMBER(BH_COUNTER_ROOM, 16),
  };
  expect_numbers(numbers);
}

TEST(NumberFreeze, BlockAndIndex) {
  const std::vector<Number> numbers = {
      NUMBER(BH_STAMP_STATE_BITS, 2),
      NUMBER(BH_STAMP_SEQUENCE_BITS, 40),
      NUMBER(BH_STAMP_INCARNATION_BITS, 16),
      NUMBER(BH_STAMP_COMMITTED, 0),
      NUMBER(BH_STAMP_RETIRED, 1),
      NUMBER(BH_CODEC_RAW, 0),
      NUMBER(BH_CODEC_FRAME, 1),
      NUMBER(BH_PROFILE_NONE, 0),
      NUMBER(BH_PROFILE_FAST, 1),
      NUMBER(BH_PROFILE_BALANCED, 2),
      NUMBER(BH_PROFILE_DENSE, 3),
      NUMBER(BH_INDEX_ENTRIES, 7),
      NUMBER(BH_INDEX_PROBES, 8),
      NUMBER(BH_ENTRY_COPY_ONLY, 1),
      NUMBER(BH_LOG_BUCKET_BITS, 34),
      NUMBER(BH_LOG_ALL, (1ull << 34) - 1),
  };
  expect_numbers(numbers);
}

TEST(NumberFreeze, MagicReadsAsText) {
  const uint64_t magic = BH_SUPERBLOCK_MAGIC;
  EXPECT_EQ(std::memcmp(&magic, "BOWHEAD1", sizeof(magic)), 0);
  const uint64_t medium = BH_MEDIUM_MAGIC;
  EXPECT_EQ(std::memcmp(&medium, "BOWHEDM1", sizeof(medium)), 0);
}

TEST(NumberFreeze, Status) {
  const std::vector<std::pair<int, const char*>> frozen = {
      {0, "OK"},
      {1, "NOT_FOUND"},
      {2, "NO_SPACE"},
      {3, "INVALID_ARGUMENT"},
      {4, "KEY_TOO_LONG"},
      {5, "VALUE_TOO_LARGE"},
      {6, "BUFFER_TOO_SMALL"},
      {7, "LAPSED"},
      {8, "BUSY"},
      {9, "FORKED"},
      {10, "NO_SUCH_POOL"},
      {11, "NOT_A_POOL"},
      {12, "POOL_EXISTS"},
      {13, "TOO_SMALL"},
      {14, "MISALIGNED"},
      {15, "VERSION_UNKNOWN"},
      {16, "DAMAGED"},
      {17, "NAMESPACE_MISMATCH"},
      {18, "LIMIT_REACHED"},
      {19, "HOST_ID_IN_USE"},
      {20, "HOST_FENCED"},
      {21, "HOST_ID_CONFLICT"},
      {22, "NOT_SUPPORTED"},
      {23, "SYSTEM"},
      {24, "BAD_LOCATOR"},
      {25, "BAD_TRACE"},
      {26, "IN_USE"},
      {27, "CLOSED"},
      {28, "UNSUPPORTED_CODEC"},
      {29, "COPY_ONLY"},
      {30, "GPU_LOST"},
      {31, "CANCELLED"},
      {32, "CODED"},
      {33, "INDEX_FULL"},
      {34, "MEDIA_ERROR"},
      {35, "READ_ONLY"},
      {36, "MEDIUM_FULL"},
      {37, "LAYOUT_MISMATCH"},
      {38, "NAMESPACE_GONE"},
      {39, "DEVICE_LOST"},
      {40, "TIMED_OUT"},
  };
  const std::vector<std::pair<int, const char*>> actual = {
#define ROW(number, name, text) {BH_##name, #name},
      BH_STATUS_LIST(ROW)
#undef ROW
  };
  ASSERT_EQ(actual.size(), frozen.size());
  for (size_t i = 0; i < frozen.size(); ++i) {
    EXPECT_EQ(actual[i].first, frozen[i].first) << frozen[i].second;
    EXPECT_STREQ(actual[i].second, frozen[i].second);
  }
}

}  // namespace
