/* SPDX-License-Identifier: Apache-2.0 */
/* The media of a pool. Medium 0 starts with the superblock; a further medium starts with a label,
 * by which it is found, and which says which range of the pool lies on it.
 *
 * Media that were joined when the pool was made (BH_FEATURE_JOINED) are set 0: one range, from
 * offset 0 on, which lies on them in stripes, in turn. Stripe 0 is on medium 0, the next on the
 * medium with the next number, and so on; a medium without a stripe left is passed over. The
 * stripes of medium 0 start at its first byte, those of a further one at BH_LABEL_BYTES. */
#ifndef BOWHEAD_FORMAT_MEDIUM_H
#define BOWHEAD_FORMAT_MEDIUM_H

#include <bowhead/format/common.h>

#define BH_MEDIA_MAX 64u
#define BH_MEDIUM_MAGIC 0x314D444548574F42ull /* "BOWHEDM1" as stored */
#define BH_LABEL_BYTES 2097152u /* of a further medium, before what the pool has of it */

/* Two copies, at the places of the copies of the superblock. The fields up to pool_id keep their
 * places in every version. */
typedef struct bh_medium_label {
  uint64_t magic;
  uint32_t version; /* BH_FORMAT_VERSION */
  uint32_t copy;    /* 0 or 1: a copy at the wrong place is damage */
  uint32_t medium;  /* set 0: 1 to BH_MEDIA_MAX - 1; others: from 1 on */
  uint32_t set;     /* 0: joined with medium 0; 1: of the further set with set_id */
  uint64_t pool_id[2];
  uint64_t pool_offset;   /* of the range of its set */
  uint64_t bytes;         /* of the pool on this medium: whole stripes; the medium may be longer */
  uint64_t first_extent;  /* 0 in set 0 */
  uint64_t extent_count;  /* 0 in set 0 */
  uint64_t stripe_bytes;  /* a power of two, 2 MiB or more */
  uint64_t set_bytes;     /* of the pool on all media of its set */
  uint32_t set_media;     /* how many these are */
  uint32_t reserved0;     /* zero */
  uint64_t set_id;        /* bh_set.id; 0 in set 0 */
  uint8_t reserved[3976]; /* zero */
  uint64_t checksum;      /* XXH3-64 of all bytes before */
  uint64_t magic_end;     /* BH_MEDIUM_MAGIC again: a truncated page is damage */
} bh_medium_label;
BH_FORMAT_SIZE(bh_medium_label, 4096);
BH_FORMAT_OFFSET(bh_medium_label, medium, 16);
BH_FORMAT_OFFSET(bh_medium_label, pool_id, 24);
BH_FORMAT_OFFSET(bh_medium_label, pool_offset, 40);
BH_FORMAT_OFFSET(bh_medium_label, stripe_bytes, 72);
BH_FORMAT_OFFSET(bh_medium_label, checksum, 4080);

/* Sets (BH_FEATURE_GROWTH). Set 0 is what the pool was made with; each growth adds a set: media of
 * their own, with extents, and what the hosts need for these. Extents, buckets of an index and
 * words of blocks have one numbering through all sets, with gaps between them, so that the place of
 * each follows from its number as in a pool of one set. Set 0 has the first of each.
 *
 * On its media a set has these ranges of the pool one after the other, each rounded outwards to
 * whole BH_RANGE_BYTES: for each host its buckets, owner words of groups, block words, recency
 * words; then the tables and the extents. Set 0: all that is not room for further sets.
 *
 * The table of sets is a register that any host may write, each in its own region, in turns: the
 * table with the highest version counts (docs/sharing.md, "Growth"). Version 0 is no table: the
 * pool has set 0 only. Version v is in copy v % 2. bh_host_heartbeat.sets says which one the host
 * heeds, bh_host_counts.growing that it wants to write the next one. */
#define BH_SETS_MAX 16u /* besides set 0 */
#define BH_RANGE_BYTES 2097152u

enum {
  BH_SET_NONE = 0,
  BH_SET_ADDED = 1, /* hosts map it; nothing is stored there before all of them have */
  BH_SET_USED = 2,
  BH_SET_DRAINING = 3 /* nothing new is stored there, and blocks move off it */
};

typedef struct bh_set {
  uint32_t state;
  uint32_t number; /* for people: 1 and up; not used again in this pool */
  uint64_t bytes;  /* on its media, without labels */
  uint64_t first_extent;
  uint64_t extent_count;
  uint64_t first_bucket;
  uint64_t first_word;
  uint64_t id;       /* random; in its labels too */
  uint64_t since;    /* version of the table that first said this state */
  char locator[448]; /* as the host that grew the pool names its media; zero-filled */
} bh_set;
BH_FORMAT_SIZE(bh_set, 512);

typedef struct bh_set_table {
  uint64_t version;
  uint32_t highest_number; /* of a set there ever was */
  uint32_t reserved0;      /* zero */
  uint64_t versions_used;  /* no version up to this one may be given again: the highest that the
                              host of this copy found when it wrote it */
  uint64_t reserved[5];    /* zero */
  bh_set sets[BH_SETS_MAX];
  uint64_t reserved1[7]; /* zero */
  uint64_t checksum;     /* XXH3-64 of all bytes before, seeded by the pool id */
} bh_set_table;
BH_FORMAT_SIZE(bh_set_table, 8320);
BH_FORMAT_OFFSET(bh_set_table, sets, 64);
BH_FORMAT_OFFSET(bh_set_table, checksum, 8312);

#endif
