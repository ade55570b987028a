/* SPDX-License-Identifier: Apache-2.0 */
/* Blocks: the payload lies in an extent, all that describes it in the table of that extent.
 *
 * A table is an array of bh_block_slot, one for every min_block_bytes of the extent, after one
 * line-sized bh_extent_descriptor. A block that starts at byte o of its extent is described by slot
 * o / min_block_bytes. Blocks are never smaller than min_block_bytes, so no two share a slot,
 * however the extent is cut, and no cut ever puts payload where a stale reference expects a header.
 *
 * A key lies in the key lines of the block's own slots, 64 bytes in each: a block that spans n
 * slots has room for a key of 64 n bytes. A longer key makes the block as large as its key needs.
 */
#ifndef BOWHEAD_FORMAT_BLOCK_H
#define BOWHEAD_FORMAT_BLOCK_H

#include <bowhead/format/common.h>
#include <bowhead/format/tensor.h>

/* A stamp names one life of one block and is never used twice in the life of the pool:
 * slot:6 | incarnation:16 | sequence:40 | state:2, high to low. */
#define BH_STAMP_STATE_BITS 2u
#define BH_STAMP_SEQUENCE_BITS 40u
#define BH_STAMP_INCARNATION_BITS 16u
#define BH_STAMP_COMMITTED 0u
#define BH_STAMP_RETIRED 1u

/* Codecs: how the stored bytes encode the value. Append only. */
enum {
  BH_CODEC_RAW = 0,  /* they are the value */
  BH_CODEC_FRAME = 1 /* they are one frame (docs/frame.md), which says what the value looks like */
};

/* A sealed line (docs/format.md). Written whole by the extent's owner, immutable until retired.
 * Never written: all zero, which no seal matches. */
typedef struct bh_block_header {
  uint64_t stamp;
  uint64_t key_hash[2];      /* XXH3-128 of the key, seeded with the namespace (low, high) */
  uint64_t payload_checksum; /* of the stored bytes, by checksum_kind */
  uint64_t namespace_id;     /* fingerprint of the namespace's description */
  uint32_t length_bytes;     /* of the value */
  uint32_t stored_bytes;     /* of the payload; equal to length_bytes for BH_CODEC_RAW */
  uint16_t key_bytes;
  uint8_t codec;
  uint8_t checksum_kind;
  uint8_t profile;     /* BH_PROFILE_* that made the frame; NONE for BH_CODEC_RAW */
  uint8_t reserved[3]; /* zero */
  uint64_t seal;
} bh_block_header;
BH_FORMAT_SIZE(bh_block_header, 64);
BH_FORMAT_OFFSET(bh_block_header, key_hash, 8);
BH_FORMAT_OFFSET(bh_block_header, payload_checksum, 24);
BH_FORMAT_OFFSET(bh_block_header, namespace_id, 32);
BH_FORMAT_OFFSET(bh_block_header, length_bytes, 40);
BH_FORMAT_OFFSET(bh_block_header, key_bytes, 48);
BH_FORMAT_OFFSET(bh_block_header, seal, 56);

typedef struct bh_block_slot {
  bh_block_header header;
  uint8_t key[64]; /* zero-filled behind the key's end; vouched for by header.key_hash */
} bh_block_slot;
BH_FORMAT_SIZE(bh_block_slot, 128);

/* How an extent is cut, for people, `check`, and an adopter that rebuilds; the owner decides from
 * its own bh_extent_state only. Sealed. A cut over several extents is described in the first. */
typedef struct bh_extent_descriptor {
  uint64_t cut;         /* counts the cuts of this extent */
  uint64_t block_bytes; /* 0: not cut */
  uint32_t block_count;
  uint32_t extent_span; /* contiguous extents of this cut */
  uint32_t owner;       /* host slot | incarnation << 16, of the writer */
  uint32_t reserved0;
  uint64_t reserved[3];
  uint64_t seal;
} bh_extent_descriptor;
BH_FORMAT_SIZE(bh_extent_descriptor, 64);
BH_FORMAT_OFFSET(bh_extent_descriptor, seal, 56);

#endif
