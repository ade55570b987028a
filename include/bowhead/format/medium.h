/* SPDX-License-Identifier: Apache-2.0 */
/* The media of a pool. Medium 0 starts with the superblock; a further medium starts with a label,
 * by which it is found, and which says which range of the pool lies on it. Version 2 has pools of
 * one medium only: the label and the words of media are places kept for pools that grow. */
#ifndef BOWHEAD_FORMAT_MEDIUM_H
#define BOWHEAD_FORMAT_MEDIUM_H

#include <bowhead/format/common.h>

#define BH_MEDIA_MAX 64u
#define BH_MEDIUM_MAGIC 0x314D444548574F42ull /* "BOWHEDM1" as stored */

/* Two copies, at the places of the copies of the superblock. The fields up to pool_id keep their
 * places in every version. */
typedef struct bh_medium_label {
  uint64_t magic;
  uint32_t version; /* BH_FORMAT_VERSION */
  uint32_t copy;    /* 0 or 1: a copy at the wrong place is damage */
  uint32_t medium;  /* 1 to BH_MEDIA_MAX - 1 */
  uint32_t reserved0;
  uint64_t pool_id[2];
  uint64_t pool_offset; /* of the first byte of the medium, which is the first of this label */
  uint64_t bytes;       /* of the pool on this medium; the medium may be longer */
  uint64_t first_extent;
  uint64_t extent_count;
  uint8_t reserved[4008]; /* zero */
  uint64_t checksum;      /* XXH3-64 of all bytes before */
  uint64_t magic_end;     /* BH_MEDIUM_MAGIC again: a truncated page is damage */
} bh_medium_label;
BH_FORMAT_SIZE(bh_medium_label, 4096);
BH_FORMAT_OFFSET(bh_medium_label, medium, 16);
BH_FORMAT_OFFSET(bh_medium_label, pool_id, 24);
BH_FORMAT_OFFSET(bh_medium_label, pool_offset, 40);
BH_FORMAT_OFFSET(bh_medium_label, checksum, 4080);

/* Word of a medium, media[h][m]: what host h says about medium m. The superblock has no single
 * writer, so each host says for itself from when on it uses a medium. High to low:
 * state:8 | epoch:56. Zero, which says nothing, is the only value in version 2. */

#endif
