/* SPDX-License-Identifier: Apache-2.0 */
/* The superblock: the settings of a pool and the places of its parts. Two copies, at offset 0 and
 * at BH_SUPERBLOCK_COPY_OFFSET, written only when the pool is created, repaired or destroyed. Every
 * other offset in the pool follows from it.
 *
 *   0                      superblock, first copy
 *   64 KiB                 superblock, second copy
 *   regions_offset         host_count regions of region_bytes, one per host slot (host.h)
 *   tables_offset          extent_count tables of table_bytes: block headers and keys (block.h)
 *   payload_offset         extent_count extents of extent_bytes: payload and nothing else
 *
 * Offsets in a pool that can grow (BH_FEATURE_GROWTH) leave room for what its sets to come have,
 * behind what set 0 has: in INDEX, GROUPS, BLOCKS and RECENCY of each region, in the tables and in
 * the payload (medium.h). The room takes no memory: a set has its ranges one after the other.
 */
#ifndef BOWHEAD_FORMAT_SUPERBLOCK_H
#define BOWHEAD_FORMAT_SUPERBLOCK_H

#include <bowhead/format/common.h>
#include <bowhead/format/medium.h>

#define BH_SUPERBLOCK_MAGIC 0x3144414548574F42ull /* "BOWHEAD1" as stored */
/* Replaces the magic of both copies when the pool is destroyed: "DESTROYD" as stored. It shows
 * processes that still map the pool that their stores are lost. */
#define BH_SUPERBLOCK_DESTROYED 0x44594F5254534544ull
#define BH_FORMAT_VERSION 2u
#define BH_SUPERBLOCK_COPY_OFFSET 65536u
#define BH_SUPERBLOCK_COPIES 2u

/* Feature masks. A reader of an unknown bit: compat: ignores it; incompat: refuses to open;
 * ro_compat: may read, refuses to write. A number is given to one feature only, whichever mask it
 * is in, and is below 56, so that one word can state all features that a host knows
 * (bh_host_heartbeat.known). Incompat bit 0 is reserved for redundancy inside a block.
 * docs/format.md has the rules for new ones.
 * WIPING (ro_compat): writers overwrite the blocks of namespaces that ask for it before these are
 * free (BH_HEADER_WIPE, BH_NAMESPACE_WIPE).
 * JOINED (incompat): the pool lies on media_count media, in stripes (medium.h).
 * GROWTH (incompat): the pool can have further sets of media (medium.h), up to max_bytes. Without
 * it, max_bytes only keeps room for the words of extents.
 * RINGS (compat): devices and the processes that ask them may store to BH_PART_RINGS (device.h),
 * which else is zero. */
#define BH_FEATURE_WIPING (1ull << 1)
#define BH_FEATURE_JOINED (1ull << 2)
#define BH_FEATURE_GROWTH (1ull << 3)
#define BH_FEATURE_RINGS (1ull << 4)
#define BH_FEATURES_COMPAT BH_FEATURE_RINGS
#define BH_FEATURES_INCOMPAT (BH_FEATURE_JOINED | BH_FEATURE_GROWTH)
#define BH_FEATURES_RO_COMPAT BH_FEATURE_WIPING

/* Kinds of payload checksums. Append only. */
enum {
  BH_CHECKSUM_NONE = 0,        /* no checksum: damage is not detected */
  BH_CHECKSUM_XXH3_TREE_4K = 1 /* XXH3-64 of the XXH3-64 sums of 4 KiB pieces (base/checksum.h) */
};

/* The parts of a host region, in order. Parts up to BH_PART_RINGS are published: only the host
 * writes them, all hosts read them. The other parts are host-private: the processes of the host
 * share them through ordinary atomics, and no other host bases a decision on them. */
enum {
  BH_PART_SLOT = 0,   /* bh_host_slot x2: identity of the host */
  BH_PART_HEARTBEAT,  /* bh_host_heartbeat: heartbeat and other words that change */
  BH_PART_DECIDE,     /* u64 x BH_HOSTS_MAX: registers of the agreement on successors */
  BH_PART_ACK,        /* u64 x BH_HOSTS_MAX: incarnations treated as ended */
  BH_PART_OWN,        /* u64 x extents_max: ownership of extents (BH_OWN_*) */
  BH_PART_NAMESPACES, /* bh_namespace x namespace_count */
  BH_PART_HAZARDS,    /* u64 x lease_count: blocks that this host's leases hold */
  BH_PART_TOUCH,      /* u64 x touch_count: recency hints for other owners */
  BH_PART_MAIL,       /* 4 KiB x host_count: requests to each other host */
  BH_PART_INDEX,      /* bh_index_bucket x index_bucket_count */
  BH_PART_LOG,        /* u64 x log_count: buckets of the index that changed (index.h) */
  BH_PART_COUNTS,     /* bh_host_counts: how often words of the other parts were written */
  BH_PART_USAGE,      /* bh_usage x BH_USAGE_SHARDS x lines of a shard: counters of namespaces */
  BH_PART_MEDIA,     /* u64 x BH_MEDIA_MAX, zero; with GROWTH bh_set_table x2 (medium.h), then u64 x
                         process_count: the version that each process heeds, then u64 x BH_SETS_MAX:
                         id + since of the drained set on which this host has no blocks, and will
                         have none; by place in the table */
  BH_PART_RINGS,     /* ring_bytes, aligned to 4 KiB: queue pairs (device.h); zero without RINGS */
  BH_PART_PRIVATE,   /* bh_host_private: counters of the host */
  BH_PART_PROCESSES, /* bh_process x process_count */
  BH_PART_LEASES,    /* bh_lease_slot x lease_count */
  BH_PART_VIEW,      /* u64 x BH_HOSTS_MAX: which incarnations this host treats as ended */
  BH_PART_LOCKS,     /* u64 x lock_count: index locks */
  BH_PART_EXTENTS,   /* bh_extent_state x extents_max: how extents are carved */
  BH_PART_RUNS,      /* u64 x extents_max: the words of an extent's blocks (BH_RUN_*, host.h) */
  BH_PART_GROUPS,  /* u64 x word_count / words_per_group: extent + 1 that has the group; 0: free */
  BH_PART_BLOCKS,  /* u64 x word_count: allocator words */
  BH_PART_RECENCY, /* u64 x word_count: when the block was last used */
  BH_PART_COUNT    /* 25 */
};
#define BH_PART_PLACES 32u /* in a superblock; those of parts to come are zero */

typedef struct bh_part {
  uint64_t offset; /* from the start of the region */
  uint64_t bytes;
} bh_part;
BH_FORMAT_SIZE(bh_part, 16);

typedef struct bh_geometry {
  uint64_t total_bytes;        /* of the pool; the medium may be longer */
  uint64_t region_align_bytes; /* regions, tables and extents start at multiples of it: the grain in
                                  which a mapping can be made read-only */
  uint64_t regions_offset;
  uint64_t region_bytes;
  uint64_t tables_offset;
  uint64_t table_bytes; /* per extent; with several hosts a multiple of region_align_bytes */
  uint64_t payload_offset;
  uint64_t extent_bytes; /* a power of two, 2 MiB to 64 MiB */
  uint64_t extent_count;
  uint64_t min_block_bytes;    /* a power of two: the smallest block; one block slot for each */
  uint64_t index_bucket_count; /* per host */
  uint32_t host_count;
  uint32_t process_count;      /* per host */
  uint32_t lease_count;        /* per host */
  uint32_t namespace_count;    /* per host */
  uint32_t lock_count;         /* per host; a power of two */
  uint32_t touch_count;        /* per host */
  uint32_t block_parity_bytes; /* reserved for redundancy inside a block: 0 in version 2 */
  uint32_t log_count;          /* per host; a power of two; 0 in a pool of one host */
  uint64_t word_count;         /* per host: block slots that can have words at one time; a multiple
                                  of the slots of an extent */
  uint64_t words_per_group;    /* words are claimed in runs of groups; a power of two */
  uint64_t max_bytes;          /* size to which the pool can grow by further media */
  uint64_t extents_max;        /* extents that it then has at most */
  uint64_t ring_bytes;         /* per host; whole 4 KiB */
  uint64_t range_bytes;        /* with GROWTH: BH_RANGE_BYTES; else 0 */
  uint64_t reserved[4];        /* zero */
  bh_part parts[BH_PART_PLACES];
} bh_geometry;
BH_FORMAT_SIZE(bh_geometry, 712);
BH_FORMAT_OFFSET(bh_geometry, host_count, 88);
BH_FORMAT_OFFSET(bh_geometry, word_count, 120);
BH_FORMAT_OFFSET(bh_geometry, max_bytes, 136);
BH_FORMAT_OFFSET(bh_geometry, parts, 200);

typedef struct bh_superblock {
  uint64_t magic;
  uint32_t version;
  uint32_t copy; /* 0 or 1: a copy at the wrong place is damage */
  uint64_t compat;
  uint64_t incompat;
  uint64_t ro_compat;
  uint64_t pool_id[2]; /* random; part of every seal */
  uint64_t created_unix_ns;
  uint32_t checksum_kind;       /* BH_CHECKSUM_* of new payloads */
  uint32_t seal_kind;           /* 1: XXH3-64 (format/seal rule in docs/format.md) */
  uint32_t evict_high_permille; /* eviction starts above this share of used payload; 0: never */
  uint32_t evict_low_permille;  /* eviction ends below this share */
  bh_geometry geometry;
  /* Time limits between hosts, in ms (docs/sharing.md). All 0: a pool of one host, or of several
   * with the defaults. Else dead_ms is at least 5 heartbeat_ms and 10 settle_ms, none of them 0. */
  uint32_t heartbeat_ms;
  uint32_t dead_ms;
  uint32_t grace_ms;
  uint32_t settle_ms;
  uint32_t reclaim_ms;    /* 0: never */
  uint32_t media_count;   /* with JOINED: of set 0, two or more; else 0 */
  char joined_as[512];    /* with JOINED: the locator at creation, for people; zero-filled; empty if
                             it is longer */
  uint8_t reserved[2752]; /* zero */
  uint64_t checksum;      /* XXH3-64 of all bytes before */
  uint64_t magic_end;     /* BH_SUPERBLOCK_MAGIC again: a truncated page is damage */
} bh_superblock;
BH_FORMAT_SIZE(bh_superblock, 4096);
BH_FORMAT_OFFSET(bh_superblock, pool_id, 40);
BH_FORMAT_OFFSET(bh_superblock, checksum_kind, 64);
BH_FORMAT_OFFSET(bh_superblock, geometry, 80);
BH_FORMAT_OFFSET(bh_superblock, joined_as, 816);
BH_FORMAT_OFFSET(bh_superblock, checksum, 4080);

#endif
