/* SPDX-License-Identifier: Apache-2.0 */
/* The region of a host slot, except the index (index.h). Every line here has one writing host: the
 * slot's. superblock.h gives the parts and their places. */
#ifndef BOWHEAD_FORMAT_HOST_H
#define BOWHEAD_FORMAT_HOST_H

#include <bowhead/format/common.h>
#include <bowhead/format/tensor.h>

/* States of a host slot. */
enum {
  BH_HOST_FREE = 0,
  BH_HOST_JOINING = 1,
  BH_HOST_LIVE = 2,
  BH_HOST_LEFT = 3 /* stopped cleanly: everything it wrote is in the memory */
};

/* Sealed; two copies, written alternately; the copy with the higher `turn` is valid. So a writer
 * that dies in the middle leaves the other copy. */
typedef struct bh_host_slot {
  uint32_t state;       /* BH_HOST_* */
  uint16_t incarnation; /* number of this life of the slot; 0: never used */
  uint16_t fenced;      /* highest own incarnation known to have stopped writing */
  uint64_t machine_id;
  uint64_t boot_id;
  uint64_t nonce;
  uint64_t turn;
  uint64_t hardware_id; /* an id that no disk image carries; 0: unknown */
  uint64_t claim; /* not 0: a machine is about to begin the next life; other fields unchanged */
  uint64_t seal;
} bh_host_slot;
BH_FORMAT_SIZE(bh_host_slot, 64);
BH_FORMAT_OFFSET(bh_host_slot, machine_id, 8);
BH_FORMAT_OFFSET(bh_host_slot, turn, 32);
BH_FORMAT_OFFSET(bh_host_slot, seal, 56);

/* Words, each complete in itself. */
typedef struct bh_host_heartbeat {
  uint64_t heartbeat;      /* increases while the host lives, by a different amount each time */
  uint64_t duties_late_ms; /* at this heartbeat: time since all other duties were done */
  uint64_t settled;      /* incarnation:16 | sequence:40: own stamps of this incarnation up to this
                            sequence are in the memory for good */
  uint64_t hazard_limit; /* hazard words at and beyond this index were never used */
  uint64_t namespaces_used;    /* low half: entries of the table at and beyond this index were never
                               used; high half: the complement of that. Other words are damaged */
  uint64_t namespaces_removed; /* raised after an entry that says REMOVED is in the memory */
  uint64_t known; /* what every process of this life knows: highest format version:8 | features:56
                     (bits of the masks of the superblock), high to low; 0: not stated yet */
  uint64_t sets;  /* with GROWTH: version of the table of sets (medium.h) that every operation that
                     begins on this host heeds */
} bh_host_heartbeat;
#define BH_KNOWN_VERSION_SHIFT 56u
BH_FORMAT_SIZE(bh_host_heartbeat, 64);
BH_FORMAT_OFFSET(bh_host_heartbeat, namespaces_used, 32);
BH_FORMAT_OFFSET(bh_host_heartbeat, known, 48);

/* How often the host has written words of a kind. Each count is raised after the words were
 * published, so that other hosts need not read them all at each heartbeat. A hint (pool/core/
 * counts.h). The line is not that of the heartbeat, since a host that joins decides and takes
 * extents before it may write to that one. */
typedef struct bh_host_counts {
  uint64_t decisions; /* words of BH_PART_DECIDE */
  uint64_t owns;      /* words of BH_PART_OWN */
  uint64_t touches;   /* words of BH_PART_TOUCH; raised once for many */
  uint64_t mails;     /* lines of BH_PART_MAIL */
  uint64_t growing;   /* no count: the incarnation of this host in which it wants to write the next
                         table of sets; 0: it does not */
  uint64_t device;    /* no count: heartbeats << 2 | state of this host's device; 0: it has none
                         (pool/core/device_place.h) */
  uint64_t reserved[2];
} bh_host_counts;
BH_FORMAT_SIZE(bh_host_counts, 64);
BH_FORMAT_OFFSET(bh_host_counts, mails, 24);

/* Decision word, decide[h][d]: the register of host h for the agreement on who succeeds incarnation
 * `inst` of slot d (Disk Paxos: Gafni and Lamport 2003, with one disk). High to low:
 * inst:16 | mbal:15 | bal:15 | val:16 | done:1. Ballot: round:9 | host:6. Value: slot:6 | low bits
 * of its incarnation:10. Zero: no statement about incarnation 0, before a slot was ever used. */
#define BH_DECIDE_INST_SHIFT 47u
#define BH_DECIDE_MBAL_SHIFT 32u
#define BH_DECIDE_BAL_SHIFT 17u
#define BH_DECIDE_VAL_SHIFT 1u
#define BH_DECIDE_ROUND_MAX 511u

/* Ack word, ack[h][d], high to low: incarnation of d that an operator at h has confirmed to have
 * stopped writing, plus 1:32 | incarnation of d that every process of h treats as ended, plus 1:32.
 * */
#define BH_ACK_FENCED_SHIFT 32u

/* Ownership word of an extent, own[h][e], high to low:
 * state:4 | transfer epoch:28 | slot:8 | incarnation:16 | custody:8.
 * OWN: the incarnation is that of h; the slot BH_OWN_UNCONFIRMED until an adoption is certain.
 * CLAIM, ABANDONED: slot of the grantor, incarnation of h.
 * GIVEN: slot and incarnation of the recipient, low bits of h's own incarnation for custody. */
enum { BH_OWN_NONE = 0, BH_OWN_OWN = 1, BH_OWN_GIVEN = 2, BH_OWN_CLAIM = 3, BH_OWN_ABANDONED = 4 };
#define BH_OWN_UNCONFIRMED 0xFFu
#define BH_OWN_STATE_SHIFT 60u
#define BH_OWN_EPOCH_SHIFT 32u
#define BH_OWN_SLOT_SHIFT 24u
#define BH_OWN_INCARNATION_SHIFT 8u

/* What the owner may do with an extent. */
enum {
  BH_CUSTODY_FULL = 0,
  BH_CUSTODY_READ_ONLY = 1, /* from a dead host: blocks are served, no space is reused */
  BH_CUSTODY_COPY_ONLY = 2  /* reused, but that host may still write: verified copies only */
};

/* Hazard word: lease sequence:28 | block offset / 4096:36, high to low; 0: none. The sequence makes
 * every use of the word distinct, so that a late clear cannot hit a later lease. */
#define BH_HAZARD_PAGE_BITS 36u

/* A request of one host to another, mail[h][p][i]: a sealed line in the 4 KiB that host h has for
 * host p. It stays until p has answered, or h no longer wants it: to do a request twice is
 * harmless. The answer is `answered` of mail[p][h][i], which is independent of the request in that
 * line. A line that is not sealed, or is of an unknown kind, requests nothing. */
enum {
  BH_MAIL_NONE = 0,
  /* 1: was a request to remove a block; unused since blocks can move */
  BH_MAIL_WANT = 2,  /* give `count` free extents, if there are any */
  BH_MAIL_REMOVE = 3 /* remove the block of the key with this hash */
};
#define BH_MAIL_AREA_BYTES 4096u
typedef struct bh_mail {
  uint32_t kind;
  uint32_t incarnation; /* of the writer */
  uint64_t sequence;    /* a different number for each request */
  uint64_t key_hash[2];
  uint64_t count;
  uint64_t answered; /* sequence of the last request in mail[p][h][i] that h has handled */
  uint64_t reserved;
  uint64_t seal;
} bh_mail;
BH_FORMAT_SIZE(bh_mail, 64);
BH_FORMAT_OFFSET(bh_mail, answered, 40);
BH_FORMAT_OFFSET(bh_mail, seal, 56);

/* States of an entry in a host's table of namespaces. The state word is one of these xor the id:
 * complete in itself, and two states differ in 30 bits or more, so that damage makes no other one.
 * 0: the entry is not used. */
#define BH_NAMESPACE_NONE 0ull
#define BH_NAMESPACE_TENTATIVE \
  0x6caf76a5703598aeull /* its host asks whether another one registers
                                                        the same name */
#define BH_NAMESPACE_CONFIRMED 0xd670c342c6cce996ull
#define BH_NAMESPACE_REMOVED \
  0x3f0c9931918c40bfull /* so is every namespace of the name and of this
                                                      or a lower epoch */

/* A namespace: its description, whose fingerprint is the id. The description is written first, then
 * the line with the seal, then the state, which alone changes while the entry is in use. */
#define BH_NAMESPACE_NAME_BYTES 64u
#define BH_NAMESPACE_TEXT_BYTES 384u
#define BH_NAMESPACE_CONTENT_BYTES (64u + BH_NAMESPACE_NAME_BYTES + BH_NAMESPACE_TEXT_BYTES)
#define BH_NAMESPACE_WIPE 1u
typedef struct bh_namespace {
  uint64_t id;               /* XXH3-64 of layout, name and description, with epoch + 1 as seed; the
                                lowest bit is set */
  uint64_t content_checksum; /* XXH3-64 of layout, name and description */
  uint32_t incarnation;      /* of the writer */
  uint8_t profile;           /* BH_PROFILE_* (tensor.h) of puts. No part of the id: what is stored
                                says itself how to read it */
  uint8_t flags; /* BH_NAMESPACE_WIPE: freed blocks are overwritten (block.h). No part of the id */
  uint8_t reserved0[2];
  uint32_t epoch; /* higher than that of every namespace of the name that was removed */
  uint32_t reserved1;
  uint64_t reserved[3];
  uint64_t seal;                      /* of this first line */
  bh_kv_layout layout;                /* of the values */
  char name[BH_NAMESPACE_NAME_BYTES]; /* zero-filled */
  char
      description[BH_NAMESPACE_TEXT_BYTES]; /* zero-filled: model, dtype, layout, ranks, as given */
  uint64_t state;                           /* the id xor BH_NAMESPACE_*, or 0 */
  uint64_t reserved2[7];
} bh_namespace;
BH_FORMAT_SIZE(bh_namespace, 640);
BH_FORMAT_OFFSET(bh_namespace, profile, 20);
BH_FORMAT_OFFSET(bh_namespace, epoch, 24);
BH_FORMAT_OFFSET(bh_namespace, seal, 56);
BH_FORMAT_OFFSET(bh_namespace, layout, 64);
BH_FORMAT_OFFSET(bh_namespace, name, 128);
BH_FORMAT_OFFSET(bh_namespace, state, 576);

/* Counters of a namespace in a shard of BH_PART_USAGE: BH_USAGE_SHARDS times the same number of
 * lines. Line 0 of a shard counts, under id 0, the namespaces for which no line was left. Sums over
 * shards are the host's; each word is complete in itself. The first four are those of the blocks
 * that the host has; added to and subtracted from by several processes, one may be below 0. */
#define BH_USAGE_SHARDS 8u
#define BH_USAGE_ENTRIES_MAX 512u /* lines of a shard: two for each namespace of the table */
typedef struct bh_usage {
  uint64_t namespace_id; /* 0, but in line 0: not used */
  uint64_t blocks;
  uint64_t stored_bytes; /* of their payloads */
  /* The bytes that their values have, and that their blocks have, beyond stored_bytes: both are 0
   * for a plain value of whole pages, so that most puts add to two words only. */
  uint64_t saved_bytes;
  uint64_t slack_bytes;
  uint64_t hits; /* of this host's processes, whichever host has the block */
  uint64_t misses;
  uint64_t evictions; /* of blocks of this host */
} bh_usage;
BH_FORMAT_SIZE(bh_usage, 64);
BH_FORMAT_OFFSET(bh_usage, hits, 40);

/* ---- host-private from here: shared by the processes of one host, by ordinary atomics ---- */

/* The first line holds words to which several processes add at each put, and words that seldom
 * change. */
typedef struct bh_host_private {
  uint64_t stamp_sequence; /* last sequence taken */
  uint64_t duties_done_ns; /* CLOCK_BOOTTIME of the last time when all the duties below were done */
  uint64_t extents_busy;   /* process slot + 1:16 | ms of CLOCK_BOOTTIME:48: which process takes
                              extents over, in slices, and when it did the last; 0: none */
  uint64_t asked_hosts;    /* bit h: a request to host h may stand */
  uint64_t log_tail;       /* highest sequence number in the change log, or a lower one: a hint */
  uint64_t log_flushed;    /* words up to it were published */
  uint64_t pad0[2];
  uint64_t recovered_boot_id; /* boot for which the private parts below were rebuilt */
  uint64_t recovered_incarnation;
  uint64_t heartbeat_at_ns;  /* CLOCK_BOOTTIME of the last heartbeat; changed by compare-and-swap;
                                also in pools of one host on devices (joining.h) */
  uint64_t probed_hosts;     /* bit h: look-ups read the index of host h */
  uint64_t publish_phase;    /* parity: which counter of bh_process.publishing is in use */
  uint64_t wanted_extents;   /* a process found no space */
  uint64_t heartbeats_taken; /* highest value of bh_host_heartbeat.heartbeat that a process of
                                this machine stored, or is about to store */
  uint64_t duties_at_ns;     /* CLOCK_BOOTTIME: when a process last began what a host does for the
                              others besides its heartbeat; moved by compare-and-swap */
  uint64_t namespaces_heard; /* sum of namespaces_removed of all hosts when it was last looked at */
  uint64_t namespaces_gone;  /* raised when a removal was heard of, and when a block of a removed
                                namespace was stored after that */
  uint64_t namespaces_swept; /* value of namespaces_gone for which no block of a removed namespace
                                is left in the index */
  uint64_t namespace_open;   /* index + 1 of the entry that a process is registering or removing,
                                under the lock of the namespaces; 0: none */
  uint64_t touched; /* 1: a process touched a block of another host since the count of touches was
                            last raised */
  uint64_t usage_doubt; /* not 0: a count of blocks in BH_PART_USAGE may be wrong */
  uint64_t sets;        /* version of the table of sets in this region (medium.h); raised before
                           bh_host_heartbeat.sets */
  uint64_t opener;      /* where locks belong to device nodes: the ticket of the last process that
                           opened the pool and saw no other one (joining.h) */
} bh_host_private;
BH_FORMAT_SIZE(bh_host_private, 192);
BH_FORMAT_OFFSET(bh_host_private, namespaces_gone, 136);
BH_FORMAT_OFFSET(bh_host_private, recovered_boot_id, 64);

/* Counters of a process slot; the slot's next process continues them. Sums over slots are
 * the host's, sums over hosts the pool's. */
enum {
  BH_COUNTER_PUTS = 0,     /* blocks stored */
  BH_COUNTER_PUTS_PRESENT, /* puts of a key that was already stored */
  BH_COUNTER_HITS,
  BH_COUNTER_MISSES,
  BH_COUNTER_EVICTIONS,
  BH_COUNTER_REMOVALS,
  BH_COUNTER_MOVES,   /* blocks moved to free an extent */
  BH_COUNTER_DAMAGED, /* blocks that a reader found damaged and dropped */
  BH_COUNTER_BYTES_IN,
  BH_COUNTER_BYTES_OUT,
  BH_COUNTER_NO_SPACE,
  BH_COUNTER_SCAVENGED,      /* unfinished operations of dead processes, finished or undone */
  BH_COUNTER_HITS_ELSEWHERE, /* hits on blocks of other hosts */
  BH_COUNTER_RECOMPRESSED,   /* blocks stored again in fewer bytes */
  BH_COUNTER_COUNT,
  BH_COUNTER_ROOM = 16
};

/* Process word: state:8 | scavenger's process slot + 1:16 | sequence:40, high to low. */
enum { BH_PROCESS_FREE = 0, BH_PROCESS_LIVE = 1, BH_PROCESS_SCAVENGING = 2 };

/* bh_process.mirror_bytes */
enum {
  BH_MIRROR_NONE = 0,   /* it looked nothing up in batches */
  BH_MIRROR_REFUSED = 1 /* there was no memory for a mirror, or less than one needs was allowed */
};

typedef struct bh_process {
  uint64_t word;
  uint64_t pid;           /* for information: liveness is the lock, see docs/invariants.md */
  uint64_t pid_namespace; /* inode of the pid namespace that pid belongs to */
  uint64_t opened_unix_ns;
  uint64_t publishing[2]; /* puts between taking a stamp and being published, by phase */
  uint64_t mirror_bytes;  /* memory in which it mirrors indexes of other hosts; see the enum */
  uint64_t mirrored;      /* the hosts whose index it mirrors, a bit each */
  uint64_t counters[BH_COUNTER_ROOM];
} bh_process;
BH_FORMAT_SIZE(bh_process, 192);
BH_FORMAT_OFFSET(bh_process, counters, 64);

/* Lease word: state:4 | process slot:12 | sequence:48, high to low. */
enum {
  BH_LEASE_FREE = 0,
  BH_LEASE_ACTIVE = 1,
  BH_LEASE_REVOKED = 2 /* it had expired; the holder learns it at release, or, if another lease
                          has taken the slot by then, by the sequence of its word */
};
typedef struct bh_lease_slot {
  uint64_t word;
  uint64_t deadline_ns; /* CLOCK_BOOTTIME of this host */
  uint64_t stamp;
  uint64_t block_offset;
} bh_lease_slot;
BH_FORMAT_SIZE(bh_lease_slot, 32);

/* Allocator word of a block: state:4 | process slot:12 | sequence:48, high to low. The sequence
 * increases with every change of state. */
enum {
  BH_BLOCK_NONE = 0, /* no block begins here */
  BH_BLOCK_FREE = 1,
  BH_BLOCK_RESERVED = 2, /* process */
  BH_BLOCK_COMMITTED = 3,
  BH_BLOCK_RETIRING = 4, /* process */
  BH_BLOCK_RETIRED = 5,  /* header retired and published; free once no hazard names it */
  BH_BLOCK_CLEANING = 6  /* process: undoes RESERVED or RETIRING of a dead process */
};
#define BH_WORD_STATE_SHIFT 60u
#define BH_WORD_PROCESS_SHIFT 48u

/* Run word of an extent: state:8 | shift:8 | first:48, high to low. The word of slot s of the
 * extent (counted from 0) is number first + (s >> shift) of BH_PART_BLOCKS and of BH_PART_RECENCY:
 * one word for 2^shift slots, so that no two blocks of the slab share one. The run has as many
 * words as that needs for all slots, and one group at least, and begins at a multiple of its
 * length. */
enum {
  BH_RUN_NONE = 0,     /* no words */
  BH_RUN_CHANGING = 1, /* being claimed or released: its groups may be this extent's or not */
  BH_RUN_READY = 2     /* all its groups are this extent's */
};
#define BH_RUN_STATE_SHIFT 56u
#define BH_RUN_SHIFT_SHIFT 48u

/* Extent word: the format of an allocator word. */
enum {
  BH_EXTENT_FREE = 0,
  BH_EXTENT_CARVING = 1, /* process: FREE -> SLAB */
  BH_EXTENT_SLAB = 2,
  BH_EXTENT_PART = 3,      /* belongs to the slab that begins at extent `head` */
  BH_EXTENT_COALESCING = 4 /* process: SLAB -> FREE */
};
typedef struct bh_extent_state {
  uint64_t word;
  uint64_t block_bytes;
  uint32_t block_count;
  uint32_t extent_span;
  uint64_t head;
  uint64_t free_blocks;    /* of the slab that begins here; a hint: the allocator words decide */
  uint64_t preferred;      /* process slot + 1 that allocates here; a hint */
  uint64_t closed;         /* adopted, and its free blocks are not in use yet */
  uint64_t retired_blocks; /* as free_blocks */
} bh_extent_state;
BH_FORMAT_SIZE(bh_extent_state, 64);
BH_FORMAT_OFFSET(bh_extent_state, free_blocks, 32);

#endif
