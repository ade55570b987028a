/* SPDX-License-Identifier: Apache-2.0 */
/* Frames: compressed tensors. docs/frame.md describes the data after the header. Numbers are
 * append-only.
 */
#ifndef BOWHEAD_FORMAT_FRAME_H
#define BOWHEAD_FORMAT_FRAME_H

#include <bowhead/format/common.h>
#include <bowhead/format/tensor.h>

#define BH_FRAME_MAGIC 0x31464842u /* "BHF1" */
#define BH_FRAME_VERSION 1u
#define BH_FRAME_VERSION_ROTATION 2u /* with a bh_frame_rotation */

/* Layouts of a tile. */
enum {
  BH_TILE_STORED = 0,    /* the values, not coded */
  BH_TILE_PLANES = 1,    /* bit-planes of fixed-point numbers, and the remainder */
  BH_TILE_BYTES = 2,     /* the values as one stream */
  BH_TILE_SEARCHABLE = 3 /* as BH_TILE_PLANES, with a directory; all values are finite */
};

/* The directory of a tile counts what every so many values need. */
#define BH_FRAME_STEP_VALUES 256u

/* Codes of the bytes of one stream. */
enum {
  BH_STREAM_STORED = 0,
  BH_STREAM_ZERO = 1,   /* all zero: no bytes */
  BH_STREAM_LZ4 = 2,    /* one LZ4 block */
  BH_STREAM_ZSTD = 3,   /* one ZSTD frame */
  BH_STREAM_NIBBLES = 4 /* a bit for each nibble that is not zero, then those nibbles */
};

/* A tensor [outer][tokens][channels], divided into tiles of tile_tokens tokens of one outer index;
 * the last tile of each index may be shorter. The header is followed by the rotation, in version 2,
 * and by the size of each tile in bytes (uint32_t), if there are several; then come the tiles. */
typedef struct bh_frame_header {
  uint32_t magic;
  uint8_t version;
  uint8_t number; /* BH_NUMBER_* */
  uint16_t channels;
  uint32_t outer;
  uint32_t tokens;
  uint16_t tile_tokens;
  uint16_t rotary_dim;     /* channels that rotary position embedding covers; 0: none */
  uint32_t rotary_ratio;   /* base^(-2 / rotary_dim) in units of 2^-32; 0: none */
  uint32_t table_checksum; /* low half of XXH3-64 of the bytes above and those up to the tiles */
} bh_frame_header;
BH_FORMAT_SIZE(bh_frame_header, 28);
BH_FORMAT_OFFSET(bh_frame_header, channels, 6);
BH_FORMAT_OFFSET(bh_frame_header, outer, 8);
BH_FORMAT_OFFSET(bh_frame_header, tile_tokens, 16);
BH_FORMAT_OFFSET(bh_frame_header, rotary_ratio, 20);
BH_FORMAT_OFFSET(bh_frame_header, table_checksum, 24);

/* Rotary position embedding other than that of version 1: the halves of whole heads, whose first
 * pair rotates by one radian for a token. */
typedef struct bh_frame_rotation {
  uint16_t head;       /* channels of a head: the frame's are a multiple */
  uint16_t first;      /* of a head that rotates, as rotary_dim channels do */
  uint32_t step;       /* rotation of the first pair for a token, in units of 2^-32 turns; not 0 */
  uint8_t pairs;       /* BH_ROTARY_HALVES, BH_ROTARY_INTERLEAVED */
  uint8_t reserved[3]; /* zero */
} bh_frame_rotation;
BH_FORMAT_SIZE(bh_frame_rotation, 12);
BH_FORMAT_OFFSET(bh_frame_rotation, step, 4);
BH_FORMAT_OFFSET(bh_frame_rotation, pairs, 8);

#endif
