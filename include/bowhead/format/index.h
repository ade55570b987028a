/* SPDX-License-Identifier: Apache-2.0 */
/* The index segment of a host: where each committed block of its extents is found by key.
 *
 * A bucket is one directory line and seven entry lines. Directory word i (0..6) belongs to entry i:
 *   bits  0..31  tag: low 32 bits of the key hash's high half, 0 replaced by 1; word 0: empty
 *   bits 32..47  process slot + 1 that is writing the entry; 0: written
 *   bits 48..63  zero
 * Word 7 counts the entries that belong here, found the bucket full, and lie further on.
 * A key's probe set is fixed: BH_INDEX_PROBES buckets by double hashing; a reader stops at the
 * first whose word 7 is zero. Words are independent of each other; entries are sealed; an
 * unreadable entry means "nothing here". */
#ifndef BOWHEAD_FORMAT_INDEX_H
#define BOWHEAD_FORMAT_INDEX_H

#include <bowhead/format/common.h>

#define BH_INDEX_ENTRIES 7u /* per bucket */
#define BH_INDEX_PROBES 8u  /* buckets per key at most */

#define BH_ENTRY_COPY_ONLY 1u /* written in custody: leased only if its bytes were verified */

/* A sealed line, immutable while its directory word is set, except when the block moves. */
typedef struct bh_index_entry {
  uint64_t key_hash[2];
  uint64_t block_offset; /* of the payload */
  uint64_t stamp;
  uint64_t payload_checksum;
  uint64_t namespace_id;
  uint32_t stored_bytes; /* of the payload; the header has the length of the value */
  uint16_t incarnation;  /* of the writer, whose slot is the region's: part of the seal */
  uint16_t flags;        /* BH_ENTRY_* */
  uint64_t seal;
} bh_index_entry;
BH_FORMAT_SIZE(bh_index_entry, 64);
BH_FORMAT_OFFSET(bh_index_entry, block_offset, 16);
BH_FORMAT_OFFSET(bh_index_entry, stamp, 24);
BH_FORMAT_OFFSET(bh_index_entry, payload_checksum, 32);
BH_FORMAT_OFFSET(bh_index_entry, namespace_id, 40);
BH_FORMAT_OFFSET(bh_index_entry, stored_bytes, 48);
BH_FORMAT_OFFSET(bh_index_entry, incarnation, 52);
BH_FORMAT_OFFSET(bh_index_entry, flags, 54);
BH_FORMAT_OFFSET(bh_index_entry, seal, 56);

/* A word of the change log, high to low: lap:30 | bucket:34. The word at place i of a ring of n
 * words has the sequence number lap * n + i; laps are counted modulo 2^30. BH_LOG_ALL: every
 * bucket may have changed. Lap 0: never written. */
#define BH_LOG_BUCKET_BITS 34u
#define BH_LOG_ALL ((1ull << BH_LOG_BUCKET_BITS) - 1)

typedef struct bh_index_bucket {
  uint64_t words[8];
  bh_index_entry entries[BH_INDEX_ENTRIES];
} bh_index_bucket;
BH_FORMAT_SIZE(bh_index_bucket, 512);
BH_FORMAT_OFFSET(bh_index_bucket, entries, 64);

#endif
