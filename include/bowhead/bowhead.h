/* SPDX-License-Identifier: Apache-2.0 */
/* The C ABI of Bowhead: the only symbols that libbowhead.so exports.
 *
 * Every function may be called from any thread; closing a handle may not overlap a call on it.
 * After fork() the child must open the pool anew: a handle from before answers BH_FORKED, and
 * closing it gives back the child's share and leaves the parent's reservations and leases open.
 * If the medium of a pool fails (its file is cut short, its filesystem is full, its device returns
 * an error), every function of its handles answers BH_MEDIA_ERROR from then on, and the process
 * lives: the library handles SIGBUS for the mappings of its pools and passes on any other to the
 * handler that was installed before the first pool was opened. A program that installs one later
 * must call the previous one. Close the handle, mend the medium, and open the pool anew.
 * Functions return bh_status (status.h); bh_last_error() has a sentence for the calling thread's
 * last failure. Keys are opaque bytes, 1 to 512. Values are 1 byte to 1 GiB, given and taken as
 * scattered pieces. Nothing is written to an output on failure unless said. */
#ifndef BOWHEAD_BOWHEAD_H
#define BOWHEAD_BOWHEAD_H

#include <bowhead/format/tensor.h>
#include <bowhead/status.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define BH_ABI_VERSION 1u

typedef struct bh_pool bh_pool; /* an open pool */
/* Fingerprint of a namespace's description. Every function answers BH_INVALID_ARGUMENT to one that
 * no process has registered in the pool. */
typedef uint64_t bh_namespace_id;

typedef struct bh_key {
  const void* data;
  size_t size_bytes;
} bh_key;

typedef struct bh_iovec {
  void* data;
  size_t size_bytes;
} bh_iovec;

typedef struct bh_const_iovec {
  const void* data;
  size_t size_bytes;
} bh_const_iovec;

/* Set struct_bytes to sizeof before use; later versions append members. Zero means the default. */
typedef struct bh_create_options {
  uint32_t struct_bytes;
  uint32_t hosts;               /* host slots, 1 to 64; default 1 */
  uint64_t size_bytes;          /* of the whole pool; required; at least 16 MiB */
  uint64_t extent_bytes;        /* default: size / 1024, within 2 MiB and 64 MiB */
  uint64_t min_block_bytes;     /* default 16 KiB */
  uint32_t evict_high_permille; /* default 980 */
  uint32_t evict_low_permille;  /* default 960 */
  uint32_t no_eviction;         /* 1: a full pool answers BH_NO_SPACE */
  uint32_t replace;             /* 1: overwrite what lies at the locator */
  uint32_t mode; /* permission bits, such as 0660, whatever the umask; default 0600 */
  uint32_t reserved;
} bh_create_options;

/* What the values of a namespace look like, [outer][tokens][channels] tensors, contiguous and
 * little-endian, and how hard puts press them. The tokens follow from a value's length; a value
 * whose length does not divide is pressed as plain bytes. Set struct_bytes to sizeof before use;
 * later versions append members. Zero means the default. */
typedef struct bh_compression {
  uint32_t struct_bytes;
  uint32_t profile;    /* BH_PROFILE_*; default NONE: values are stored as they are */
  uint32_t number;     /* BH_NUMBER_*; default BYTES */
  uint32_t channels;   /* 1 to 65,535; default 1 */
  uint32_t outer;      /* layers, K and V, heads: whatever lies around the tokens; default 1 */
  uint32_t rotary_dim; /* channels of a head that rotary position embedding turned together */
  double rotary_base; /* its base, such as 500000; default: values are not turned, or unknown how */
} bh_compression;

/* Room for a block, filled in place between bh_reserve and bh_commit or bh_abort. A copy of the
 * struct stands for the same reservation. */
typedef struct bh_reservation {
  void* data;
  uint64_t length_bytes;
  uint64_t offset; /* of data in the mapping */
  uint32_t
      present; /* 1: the key is stored already, nothing was reserved and nothing is to be ended */
  uint32_t reserved;
  void* internal;
} bh_reservation;

/* A block held in place. data must not be written. */
typedef struct bh_lease {
  const void* data;
  uint64_t length_bytes;
  uint64_t offset;
  uint64_t stamp; /* generation of the block */
  uint64_t internal;
} bh_lease;

uint32_t bh_abi_version(void);
const char* bh_status_name(bh_status status); /* "NO_SPACE" */
const char* bh_status_text(bh_status status); /* a sentence */
const char* bh_last_error(void);              /* valid until the thread's next call */

bh_status bh_pool_create(const char* locator, const bh_create_options* options);
/* As which host: a slot of the pool, or BH_ANY_HOST: the slot that this machine has, or a free one.
 * With several hosts two threads run while the pool is open: the host's heartbeat, and its duties
 * towards the others. */
#define BH_ANY_HOST UINT32_MAX
bh_status bh_pool_open(const char* locator, uint32_t host, bh_pool** out);
void bh_pool_close(bh_pool* pool); /* NULL is allowed */
/* Ends this host's membership in order; then close. May not overlap a call on the handle, and ends
 * its reservations and leases: nothing may be stored through their pointers any more. BH_IN_USE:
 * other processes of it go on, and so does the membership. */
bh_status bh_pool_leave(bh_pool* pool);
/* Vouches that a host which was declared dead has stopped writing to the memory for good. */
bh_status bh_pool_fence(bh_pool* pool, uint32_t host);
/* Removes a pool; `force`: also one that processes have open. They can read on; what stores, leases
 * or removes through their handles answers BH_CLOSED: close it and open the pool anew. */
bh_status bh_pool_destroy(const char* locator, int force);

/* Base and length of the pool's mapping. What this host does not own is read-only in it, so that a
 * driver pins it as read-only memory or not at all (cudaHostRegisterReadOnly). */
bh_status bh_pool_mapping(bh_pool* pool, const void** base, uint64_t* size_bytes);

/* Registers or finds a namespace. BH_NAMESPACE_MISMATCH: same name, other description. */
bh_status bh_namespace_open(bh_pool* pool, const char* name, const char* description,
                            bh_namespace_id* out);
/* The same, of which whoever registers it decides the compression: bh_put then takes fewer bytes of
 * the pool, bh_get returns every bit, and whoever opens it by bh_namespace_open need not know.
 * BH_NAMESPACE_MISMATCH also if it is registered with another compression. */
bh_status bh_namespace_open_compressed(bh_pool* pool, const char* name, const char* description,
                                       const bh_compression* compression, bh_namespace_id* out);

bh_status bh_put(bh_pool* pool, bh_namespace_id ns, bh_key key, const bh_const_iovec* value,
                 size_t value_count);
/* The value's length goes to *length_bytes, also with BH_BUFFER_TOO_SMALL. */
bh_status bh_get(bh_pool* pool, bh_namespace_id ns, bh_key key, const bh_iovec* buffers,
                 size_t buffer_count, uint64_t* length_bytes);

/* present[i] = 1 or 0. */
bh_status bh_exists(bh_pool* pool, bh_namespace_id ns, const bh_key* keys, size_t key_count,
                    uint8_t* present);
bh_status bh_longest_prefix(bh_pool* pool, bh_namespace_id ns, const bh_key* keys, size_t key_count,
                            size_t* length);

/* What is filled in place stays as it is, in compressed namespaces too. */
bh_status bh_reserve(bh_pool* pool, bh_namespace_id ns, bh_key key, uint64_t length_bytes,
                     bh_reservation* out);
/* Ends a reservation and stores its block; if the key was stored meanwhile, that block stays:
 * BH_OK. The reservation is over whatever the answer is, and data is NULL: after BH_BUSY,
 * BH_INDEX_FULL, BH_LIMIT_REACHED, BH_HOST_FENCED and BH_HOST_ID_CONFLICT nothing is stored and the
 * room is free again; reserve and fill anew to try again. Nothing is changed by BH_CLOSED (this or
 * a copy was ended before, it is of another handle, or its key was present) and by BH_FORKED (it
 * is the parent's, where it stays open). */
bh_status bh_commit(bh_pool* pool, bh_reservation* reservation);
/* Commits without a checksum, for bytes that this CPU cannot read back: damage goes unnoticed, and
 * other hosts find the block some heartbeats later. */
bh_status bh_commit_unverified(bh_pool* pool, bh_reservation* reservation);
/* Ends a reservation and stores nothing. BH_CLOSED, BH_FORKED: as of bh_commit. */
bh_status bh_abort(bh_pool* pool, bh_reservation* reservation);

/* BH_CODED: it is compressed, as any block of a compressed namespace may be: bh_get decodes it. */
bh_status bh_acquire(bh_pool* pool, bh_namespace_id ns, bh_key key, uint64_t ttl_ms, bh_lease* out);
/* BH_OK: was valid throughout; BH_LAPSED: discard what was computed from it; BH_HOST_FENCED: the
 * same, since the handle left the pool. */
bh_status bh_release(bh_pool* pool, bh_lease* lease);

bh_status bh_remove(bh_pool* pool, bh_namespace_id ns, bh_key key);
bh_status bh_touch(bh_pool* pool, bh_namespace_id ns, const bh_key* keys, size_t key_count);

#ifdef __cplusplus
}
#endif

#endif
