/* SPDX-License-Identifier: Apache-2.0 */
/* Every public header is C11: this file compiles them as C11, with padding as an error. */
#include <bowhead/bowhead.h>
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
#include <stddef.h>

/* In the order of frozen_sizes() of layout_freeze_test.cpp. */
extern const size_t kSizesInC[];
extern const size_t kSizesInCCount;
const size_t kSizesInC[] = {
    sizeof(bh_part),
    sizeof(bh_geometry),
    sizeof(bh_superblock),
    sizeof(bh_medium_label),
    sizeof(bh_set),
    sizeof(bh_set_table),
    sizeof(bh_host_slot),
    sizeof(bh_host_heartbeat),
    sizeof(bh_host_counts),
    sizeof(bh_namespace),
    sizeof(bh_host_private),
    sizeof(bh_process),
    sizeof(bh_lease_slot),
    sizeof(bh_extent_state),
    sizeof(bh_block_header),
    sizeof(bh_block_slot),
    sizeof(bh_block_words),
    sizeof(bh_usage),
    sizeof(bh_extent_descriptor),
    sizeof(bh_index_entry),
    sizeof(bh_index_bucket),
    sizeof(bh_frame_header),
    sizeof(bh_frame_rotation),
    sizeof(bh_device_block),
    sizeof(bh_device_view),
    sizeof(bh_device_mail),
    sizeof(bh_device_request),
};
const size_t kSizesInCCount = sizeof(kSizesInC) / sizeof(kSizesInC[0]);
