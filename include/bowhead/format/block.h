/* SPDX-License-Identifier: Apache-2.0 */
/* Blocks: the payload of a block lies in an extent, its metadata in the table of that extent.
 *
 * A table is an array of bh_block_slot, one for every min_block_bytes of the extent, after one
 * line-sized bh_extent_descriptor. A block that starts at byte o of its extent is described by slot
 * o / min_block_bytes. Blocks are never smaller than min_block_bytes, so no two share a slot,
 * however the extent is carved, and payload never lies where a stale reference expects a header.
 * After the block slots the table has one bh_block_words for each of them.
 *
 * A key lies in the key lines of the block's own slots, 64 bytes in each; user metadata, if the
 * block has any, follow the last byte of the key, and their check follows them. A block that spans
 * n slots has space for 64 n such bytes. More of them make the block as large as they need.
 */
#ifndef BOWHEAD_FORMAT_BLOCK_H
#define BOWHEAD_FORMAT_BLOCK_H

#include <bowhead/format/common.h>
#include <bowhead/format/tensor.h>

/* A stamp identifies one stored block and is never used twice in a pool:
 * slot:6 | incarnation:16 | sequence:40 | state:2, high to low. */
#define BH_STAMP_STATE_BITS 2u
#define BH_STAMP_SEQUENCE_BITS 40u
#define BH_STAMP_INCARNATION_BITS 16u
#define BH_STAMP_COMMITTED 0u
#define BH_STAMP_RETIRED 1u

/* Codecs: how the stored bytes encode the value. Append only. */
enum {
  BH_CODEC_RAW = 0,  /* the stored bytes are the value */
  BH_CODEC_FRAME = 1 /* the stored bytes are one frame (docs/frame.md), which describes the value */
};

#define BH_USER_BYTES_MAX 512u /* longest user metadata */
/* The check of user metadata: XXH3-64 of them, seeded with the seed of seals without an offset xor
 * the stamp of the block. So they are known to be those of this block, as a key is by key_hash. */
#define BH_USER_CHECK_BYTES 8u

/* Flags of a header. With BH_FEATURE_WIPING.
 * WIPE: the block has, or had, bytes of a namespace that wants freed blocks overwritten: it is free
 * only after that. Set before the first byte of a payload is stored. */
#define BH_HEADER_WIPE 1u

/* A sealed line (docs/format.md). The extent's owner writes all of it; it is immutable until the
 * block is retired. Before the first write it is all zero, which matches no seal. */
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
  uint8_t flags;       /* BH_HEADER_* */
  uint16_t user_bytes; /* of the user metadata; 0: there are none, and no check of them */
  uint64_t seal;
} bh_block_header;
BH_FORMAT_SIZE(bh_block_header, 64);
BH_FORMAT_OFFSET(bh_block_header, key_hash, 8);
BH_FORMAT_OFFSET(bh_block_header, payload_checksum, 24);
BH_FORMAT_OFFSET(bh_block_header, namespace_id, 32);
BH_FORMAT_OFFSET(bh_block_header, length_bytes, 40);
BH_FORMAT_OFFSET(bh_block_header, key_bytes, 48);
BH_FORMAT_OFFSET(bh_block_header, user_bytes, 54);
BH_FORMAT_OFFSET(bh_block_header, seal, 56);

typedef struct bh_block_slot {
  bh_block_header header;
  uint8_t key[64]; /* key, user metadata, check, zeros; the key is verified by header.key_hash */
} bh_block_slot;
BH_FORMAT_SIZE(bh_block_slot, 128);

/* Attributes of a block, which change while its sealed lines do not. Written by the owner of the
 * extent; each word is complete in itself. They are those of the block that has this stamp; for any
 * other block they say nothing. */
typedef struct bh_block_words {
  uint64_t stamp; /* stored first as 0, and last */
  uint64_t pins;  /* priority:8 | BH_PIN_*:8 | forks:16 | parity group:32, high to low */
  uint64_t times; /* expires:32 | next use:32, high to low: seconds since 1970; 0: unknown */
  uint64_t group;
} bh_block_words;
BH_FORMAT_SIZE(bh_block_words, 32);
BH_FORMAT_OFFSET(bh_block_words, pins, 8);
BH_FORMAT_OFFSET(bh_block_words, times, 16);
BH_FORMAT_OFFSET(bh_block_words, group, 24);
enum { BH_PIN_SOFT = 1, BH_PIN_HARD = 2 };
#define BH_PRIORITY_SHIFT 56u
#define BH_PIN_SHIFT 48u
#define BH_FORKS_SHIFT 32u
#define BH_EXPIRES_SHIFT 32u

/* How an extent is carved, for `check` and for an adopter that rebuilds; the owner itself uses only
 * its bh_extent_state. Sealed. A slab of several extents is described in the first. */
typedef struct bh_extent_descriptor {
  uint64_t carvings;    /* number of times that this extent was carved */
  uint64_t block_bytes; /* 0: not carved */
  uint32_t block_count;
  uint32_t extent_span; /* contiguous extents of this slab */
  uint32_t owner;       /* host slot | incarnation << 16, of the writer */
  uint32_t reserved0;
  uint64_t reserved[3];
  uint64_t seal;
} bh_extent_descriptor;
BH_FORMAT_SIZE(bh_extent_descriptor, 64);
BH_FORMAT_OFFSET(bh_extent_descriptor, seal, 56);

#endif
