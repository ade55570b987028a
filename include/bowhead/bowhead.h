/* SPDX-License-Identifier: Apache-2.0 */
/** @file bowhead/bowhead.h
 * The C ABI of Bowhead: pools, blocks, queues, events. With bowhead_gpu.h and bowhead_ndp.h these
 * are the only symbols that libbowhead.so exports.
 *
 * A pool holds blocks: values of 1 byte to 1 GiB under keys of 1 to 512 opaque bytes, in memory
 * that all processes and hosts of the pool map. A first program:
 *
 * @code{.c}
 * bh_create_options options = {.struct_bytes = sizeof options, .size_bytes = 1ull << 30};
 * bh_pool* pool;
 * bh_namespace_id ns;
 * if (bh_pool_create("shm:cache", &options) != BH_OK ||
 *     bh_pool_open("shm:cache", BH_ANY_HOST, &pool) != BH_OK ||
 *     bh_namespace_open(pool, "llama-3-8b", "bf16, 32 layers", &ns) != BH_OK)
 *   return fprintf(stderr, "%s\n", bh_last_error()), 1;
 * bh_key key = {"prefix 1", 8};
 * bh_const_iovec value = {kv, kv_bytes};
 * if (bh_put(pool, ns, key, &value, 1) != BH_OK) fprintf(stderr, "%s\n", bh_last_error());
 * bh_iovec room = {buffer, buffer_bytes};
 * uint64_t length_bytes;
 * if (bh_get(pool, ns, key, &room, 1, &length_bytes) == BH_OK) use(buffer, length_bytes);
 * bh_pool_close(pool);
 * @endcode
 *
 * Threads: every function may be called from any thread at any time, except that closing a handle
 * or leaving must not overlap another call on that handle.
 *
 * Several hosts: look-ups miss the blocks of a host that has just joined, until the next heartbeat
 * of this one (heartbeat_ms).
 *
 * Structs that the caller allocates begin with `struct_bytes`. Set it to sizeof before the call:
 * later versions append members, and the library reads and writes only the members that the caller
 * has. In options, zero means the default. Members that this library does not know must be zero in
 * options (BH_NOT_SUPPORTED), and become zero in outputs. No struct is longer than 4096 bytes.
 * bh_key, bh_iovec, bh_const_iovec, bh_put_item, bh_get_item, bh_completion and bh_kv_layout never
 * grow.
 *
 * Outputs are written only on success, unless a function says otherwise.
 *
 * Statuses: each function lists its own. In addition, any function may return
 * - BH_INVALID_ARGUMENT: NULL where an object, or the bytes of a key or a buffer, are required, a
 *   count that no array can have, a namespace that no process has registered in the pool, a
 *   `struct_bytes` that is too small or above 4096. Each function lists its other reasons, such as
 *   a number out of range;
 * - BH_FORKED: the handle was opened before fork(). The child must open the pool again; it may
 *   close the handle, which leaves the parent's reservations and leases open;
 * - BH_MEDIA_ERROR: the medium of the pool failed (its file was truncated, its filesystem is full,
 *   its device returned an error, or the hardware reported a memory error in the pool's metadata).
 *   From then on every function that reads or stores in the pool returns this status;
 *   bh_pool_mapping() still works, and queues and readers of events can still be opened. The
 *   process continues: the library handles SIGBUS for the mappings of its pools, and passes any
 *   other SIGBUS to the handler that was installed before the first pool was opened; a program that
 *   installs one later must call the previous one. Close the handle, repair the medium, open the
 *   pool again. A memory error under a block costs that block only: it is dropped as one that is
 *   damaged, and this handle stores nothing there any more;
 * - BH_HOST_FENCED: the handle has left (bh_pool_leave). It may only be closed, and
 *   bh_pool_mapping() still works;
 * - BH_SYSTEM: the operating system refused a request, such as for memory.
 *
 * Functions that take a namespace may also return
 * - BH_NAMESPACE_GONE: it was removed (bh_namespace_remove); open it again, under another id.
 *
 * Functions that store, lease or remove may also return
 * - BH_CLOSED: the pool was destroyed or replaced; close the handle and open the pool again;
 * - BH_READ_ONLY: the handle is an observer (bh_pool_observe);
 * - BH_HOST_FENCED, BH_HOST_ID_CONFLICT: the other hosts declared this one dead; close the pool and
 *   open it again.
 *
 * Memory: handles, and the memory that they give pointers to, belong to the library; all other
 * memory is the caller's. */
#ifndef BOWHEAD_BOWHEAD_H
#define BOWHEAD_BOWHEAD_H

#include <bowhead/format/block.h>
#include <bowhead/format/tensor.h>
#include <bowhead/status.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/** ABI version of this header; bh_abi_version() returns that of the library. */
#define BH_ABI_VERSION 1u

/** @name Errors
 * @{ */

/** The ABI version of the loaded library. */
uint32_t bh_abi_version(void);

/** The name of a status without its prefix, such as "NO_SPACE"; "UNKNOWN" for any other number. */
const char* bh_status_name(bh_status status);

/** The meaning of a status, in a sentence. */
const char* bh_status_text(bh_status status);

/** The error of this thread's last failed call: a sentence that names the thing, says what is wrong
 * and what to do. Valid until the thread's next call. */
const char* bh_last_error(void);

/** @}
 * @name Pools
 * @{ */

/** An open pool. */
typedef struct bh_pool bh_pool;

/** Settings of a new pool. */
typedef struct bh_create_options {
  uint32_t struct_bytes;        /**< sizeof */
  uint32_t hosts;               /**< host slots, 1 to 64; default 1 */
  uint64_t size_bytes;          /**< size of the whole pool, at least 16 MiB; 0, with devices
                                     only: all of them */
  uint64_t extent_bytes;        /**< default: size / 1024, within 2 MiB and 64 MiB */
  uint64_t min_block_bytes;     /**< smaller values occupy as much; default 16 KiB */
  uint32_t evict_high_permille; /**< eviction begins above this share of use; default 980 */
  uint32_t evict_low_permille;  /**< eviction ends below this share of use; default: 20 less than
                                     evict_high_permille, but at least half of it */
  uint32_t no_eviction;         /**< 1: a full pool answers BH_NO_SPACE */
  uint32_t replace;             /**< 1: the new pool takes the place of the object at the locator */
  uint32_t mode;                /**< permission bits, whatever the umask; default 0600 */
  uint32_t heartbeat_ms;        /**< time between two heartbeats of a host; default 100 */
  uint32_t dead_ms;    /**< time without a heartbeat after which a host may be declared dead, at
                            least 5 heartbeat_ms and 10 settle_ms; default 3,000 */
  uint32_t grace_ms;   /**< time for which leases of a dead host are honoured; default 1,000 */
  uint32_t settle_ms;  /**< time after which a flushed line is in the memory; default 20 */
  uint32_t reclaim_ms; /**< time after which space of a dead host is reused, even if no operator
                            confirms that it has stopped writing; default 60,000 */
  uint32_t no_reclaim; /**< 1: no reuse without that confirmation */
  uint32_t reserved;   /**< zero */
  uint64_t max_bytes;  /**< size to which the pool can grow later (`bowhead pool grow`), for which
                            its metadata keep space; default: it cannot grow */
} bh_create_options;

/** Creates a pool. It appears at its locator complete or not at all.
 * @param locator `shm:NAME`, `numa:NODE/NAME`, `dax:/dev/daxX.Y` or `file:/PATH` (absolute), or
 *                several of these joined by `+`: the pool lies on all of them in stripes
 * @param options size and settings
 * @retval BH_BAD_LOCATOR the locator is malformed
 * @retval BH_INVALID_ARGUMENT an option is out of its range, or does not fit the others
 * @retval BH_TOO_SMALL the size is below 16 MiB, or too small for these hosts or extents
 * @retval BH_POOL_EXISTS something exists at the locator, and `replace` is 0
 * @retval BH_IN_USE `replace` is 1, but processes have the old pool open
 * @retval BH_MEDIUM_FULL the medium has no space for it
 * @retval BH_NOT_SUPPORTED this build has no such medium, or `options` has a member set that this
 *     library does not know */
bh_status bh_pool_create(const char* locator, const bh_create_options* options);

/** Any host slot: the one of this machine, or a free one. */
#define BH_ANY_HOST UINT32_MAX

/** Opens a pool. Undoes what dead processes left half done, and after a reboot rebuilds the
 * allocator, which takes seconds for a pool of terabytes. In a pool of several hosts two threads
 * run while it is open: one for the host's heartbeat, one for its duties towards the others. In one
 * of a single host there is a thread that looks for changes of the media, if it can grow
 * (max_bytes), and one that shows that this process lives, if it lies on a device.
 * @param locator as for bh_pool_create()
 * @param host a host slot, or BH_ANY_HOST
 * @param out the handle, for bh_pool_close()
 * @retval BH_BAD_LOCATOR the locator is malformed
 * @retval BH_INVALID_ARGUMENT the pool has no such host slot
 * @retval BH_NO_SUCH_POOL nothing exists at the locator
 * @retval BH_NOT_A_POOL the object at the locator is not a pool
 * @retval BH_VERSION_UNKNOWN it has features that this library does not know; if it may be read
 *     without them, bh_pool_observe() opens it
 * @retval BH_DAMAGED both copies of its superblock are damaged
 * @retval BH_BUSY another process takes long to open or replace it, or the hosts do not agree yet:
 *     try again
 * @retval BH_LIMIT_REACHED too many processes have it open, or no host slot is free
 * @retval BH_HOST_ID_IN_USE another machine uses this slot, or used it and did not leave
 * @retval BH_IN_USE processes of this machine have it open by another device node, as in another
 *     container: let them share one
 * @retval BH_HOST_FENCED this host was declared dead, and its processes still have the pool open
 * @retval BH_NOT_SUPPORTED this build has no such medium */
bh_status bh_pool_open(const char* locator, uint32_t host, bh_pool** out);

/** Options of a handle. */
typedef struct bh_open_options {
  uint32_t struct_bytes; /**< sizeof */
  /** 1: no memory for mirrors of other hosts' indexes, which make batches of look-ups faster. */
  uint32_t no_mirror;
  /** Memory that they may take; default 1 GiB. Taken when the first batch is looked up in a pool of
   * several hosts, and only as much as is needed (docs/sharing.md). */
  uint64_t mirror_bytes;
  /** 1: pages of the pool are not touched in the background. By default they are, except by
   * observers and in files on a disk: a page of memory is zeroed at its first use on the machine,
   * and mapped at the first use of each process, which else a put or a get pays for. */
  uint32_t no_prefault;
  uint32_t reserved; /**< zero */
} bh_open_options;

/** bh_pool_open() with options.
 * @param locator as for bh_pool_create()
 * @param host a host slot, or BH_ANY_HOST
 * @param options options
 * @param out the handle, for bh_pool_close()
 * @retval BH_INVALID_ARGUMENT the pool has no such host slot, no_mirror or no_prefault is neither 0
 *     nor 1, or no_mirror and mirror_bytes are both set
 * @retval BH_NOT_SUPPORTED this build has no such medium, or `options` has a member set that this
 *     library does not know. Other statuses as for bh_pool_open() */
bh_status bh_pool_open_with(const char* locator, uint32_t host, const bh_open_options* options,
                            bh_pool** out);

/** Opens a pool as an observer: read permission suffices, and nothing is stored, not even a lock or
 * a count. Functions that store, lease or remove return BH_READ_ONLY. For a damaged block bh_get()
 * returns BH_DAMAGED and drops nothing. Media by which the pool has grown, and that cannot be used,
 * are passed over: their blocks are absent (`bowhead pool info` names them). Statuses as for
 * bh_pool_open(). */
bh_status bh_pool_observe(const char* locator, bh_pool** out);

/** Closes a handle and ends its reservations and leases, and its transfers (bowhead_gpu.h), whose
 * jobs end as cancelled. NULL is allowed. */
void bh_pool_close(bh_pool* pool);

/** Removes a pool.
 * @param locator as for bh_pool_create()
 * @param force 1: even if it is not a pool, or processes have it open. They can continue to read;
 *     functions that store, lease or remove through their handles return BH_CLOSED
 * @retval BH_BAD_LOCATOR the locator is malformed
 * @retval BH_NO_SUCH_POOL nothing exists at the locator
 * @retval BH_NOT_A_POOL the object at the locator is not a pool
 * @retval BH_IN_USE processes have it open */
bh_status bh_pool_destroy(const char* locator, int force);

/** @}
 * @name Namespaces
 * @{ */

/** Fingerprint of a namespace's name, description and layout. Keys of two namespaces never meet. */
typedef uint64_t bh_namespace_id;

/** The layout of a namespace's values, and the profile that puts use. */
typedef struct bh_namespace_options {
  uint32_t struct_bytes; /**< sizeof */
  uint32_t profile;      /**< BH_PROFILE_*: how puts compress values; bh_get() returns every bit.
                              Default: that of the namespace; for a new one, none */
  bh_kv_layout layout;   /**< of a value; a value whose length fits no number of tokens is opaque.
                              Default: that of the namespace; for a new one, opaque values */
  uint32_t wipe;         /**< 1: the pool overwrites values, keys and user metadata before their
                              memory is free for others, whether they are removed or evicted, or
                              their put fails or its process dies. If a machine dies: when it opens
                              the pool again, or another host takes over. Default: as the namespace
                              is; a new one does not */
  uint32_t reserved;     /**< zero */
} bh_namespace_options;

/** The number of tokens in a value.
 * @param layout as in bh_lease or bh_namespace_options
 * @param length_bytes of the value
 * @return 0 if no number of tokens takes so many bytes, or no block can have the layout; for opaque
 *     values as many as bytes */
uint64_t bh_layout_tokens(const bh_kv_layout* layout, uint64_t length_bytes);

/** The bytes of a row, which is one token of one head, without its scale.
 * @param layout as in bh_lease or bh_namespace_options
 * @param part 0: keys; 1: values, also where they are the first channels of the keys
 * @return 0 if the layout has no such part, or no block can have the layout; for opaque values 0 */
uint32_t bh_layout_row_bytes(const bh_kv_layout* layout, uint32_t part);

/** Registers a namespace, or finds a registered one.
 * @param pool the pool
 * @param name 1 to 63 bytes
 * @param description up to 383 bytes: model, parallel rank, all that distinguishes its keys
 * @param out its id
 * @retval BH_INVALID_ARGUMENT the name is empty, or the name or the description too long
 * @retval BH_NAMESPACE_MISMATCH it is registered with another description
 * @retval BH_NOT_FOUND the handle is an observer, and there is no such namespace
 * @retval BH_LIMIT_REACHED this host's table of namespaces is full: it has 64 entries, or about one
 *     for every 256 MiB of the pool, up to 4,096; those of removed namespaces count
 * @retval BH_BUSY another process holds the table, or another host is registering the name: try
 *     again
 * @retval BH_HOST_FENCED the other hosts declared this one dead */
bh_status bh_namespace_open(bh_pool* pool, const char* name, const char* description,
                            bh_namespace_id* out);

/** bh_namespace_open() with a layout and a profile. The process that registers the namespace
 * decides both.
 * @param pool the pool
 * @param name 1 to 63 bytes
 * @param description up to 383 bytes
 * @param options layout, profile and wiping
 * @param out its id
 * @retval BH_INVALID_ARGUMENT the name is empty, the name or the description is too long, no value
 *     can have this layout (bh_last_error() names the field), the profile is unknown, or `wipe` is
 *     neither 0 nor 1
 * @retval BH_LAYOUT_MISMATCH it is registered with another layout; bh_last_error() names the field
 * @retval BH_NAMESPACE_MISMATCH it is registered with another description or profile, or without
 *     `wipe`
 * @retval BH_NOT_FOUND the handle is an observer, and there is no such namespace
 * @retval BH_NOT_SUPPORTED values of this layout cannot be compressed, the pool was made by an
 *     earlier version and cannot wipe, or `options` has a member set that this library does not
 *     know, a reserved byte of the layout included
 * @retval BH_LIMIT_REACHED this host's table of namespaces is full: it has 64 entries, or about one
 *     for every 256 MiB of the pool, up to 4,096; those of removed namespaces count
 * @retval BH_BUSY another process holds the table, or another host is registering the name: try
 *     again
 * @retval BH_HOST_FENCED the other hosts declared this one dead */
bh_status bh_namespace_open_with(bh_pool* pool, const char* name, const char* description,
                                 const bh_namespace_options* options, bh_namespace_id* out);

/** Removes a namespace with all its blocks, whichever host has them. The name can be registered
 * anew, with any description and layout, and gets another id and another entry of the host's table
 * of namespaces: removed ones keep theirs for the life of the pool. Calls with the old id return
 * BH_NAMESPACE_GONE, on this host at once, on others within some heartbeats; until then they can
 * still read its blocks. Each host frees its blocks of the namespace in the background; a pool of
 * one host has freed them on return, but for those in use.
 * @param pool the pool
 * @param name of the namespace
 * @retval BH_NOT_FOUND no namespace has this name
 * @retval BH_INVALID_ARGUMENT the name is empty or too long
 * @retval BH_LIMIT_REACHED the namespace was registered by another host, and this host's table of
 *     namespaces is full
 * @retval BH_BUSY another process holds the table: try again
 * @retval BH_HOST_FENCED the other hosts declared this one dead
 * @retval BH_READ_ONLY the handle is an observer */
bh_status bh_namespace_remove(bh_pool* pool, const char* name);

/** The layout and profile that a namespace was registered with. */
bh_status bh_namespace_get_options(bh_pool* pool, bh_namespace_id ns, bh_namespace_options* out);

/** @}
 * @name Values
 * @{ */

/** A key: 1 to 512 opaque bytes. */
typedef struct bh_key {
  const void* data;  /**< read during the call */
  size_t size_bytes; /**< of data */
} bh_key;

/** A part of a caller's buffer. */
typedef struct bh_iovec {
  void* data;        /**< written during the call */
  size_t size_bytes; /**< of data */
} bh_iovec;

/** A part of a caller's value. */
typedef struct bh_const_iovec {
  const void* data;  /**< read during the call */
  size_t size_bytes; /**< of data */
} bh_const_iovec;

/** Stores a value, the concatenation of `value`, under a key. If the key is already stored, its
 * value stays and the call succeeds. Does not wait for other hosts.
 * @param pool the pool
 * @param ns its namespace
 * @param key its key
 * @param value its parts
 * @param value_count number of parts
 * @retval BH_KEY_TOO_LONG the key is empty or longer than 512 bytes
 * @retval BH_VALUE_TOO_LARGE the value is empty, or larger than 1 GiB or than the pool can hold
 * @retval BH_NO_SPACE this host has no space now. In a pool of several hosts it requests some from
 *     another host, which takes some heartbeats: try again then.
 *     Where nearly all blocks have hard pins or leases, an eviction may also miss the few others
 * @retval BH_INDEX_FULL the index of this host has no space for the key
 * @retval BH_LIMIT_REACHED this host has used up its 2^40 stamps
 * @retval BH_BUSY another process holds the key: try again */
bh_status bh_put(bh_pool* pool, bh_namespace_id ns, bh_key key, const bh_const_iovec* value,
                 size_t value_count);

/** What can be changed about a block while it is stored: advice of its users to each other and to
 * the pool. Eviction heeds pins and the time to live; the rest is kept for readers. It stays with a
 * block that is moved or recompressed, and may be lost when a process or a host dies. */
typedef struct bh_attributes {
  uint32_t struct_bytes;    /**< sizeof */
  uint32_t priority;        /**< 0 to 255; higher: to be kept longer */
  uint32_t pins;            /**< BH_PIN_HARD: not to be evicted; BH_PIN_SOFT: only if no other is
                                found, among some thousand at a time */
  uint32_t forks;           /**< sequences that refer to the block, at most 65,535 */
  uint32_t parity_group;    /**< blocks that one parity protects; 0: none */
  uint32_t expires_unix_s;  /**< when its time to live ends; 0: never. The next put of the process
                                that set it, or has moved the block since, then evicts it, pinned
                                or not, unless it is leased; if that process has ended, it is
                                evicted like any other block */
  uint32_t next_use_unix_s; /**< when it is expected to be used next; 0: unknown */
  uint32_t reserved;        /**< zero */
  uint64_t group;           /**< blocks that belong together, as a session; 0: none */
} bh_attributes;

/** What may be stored with a value. */
typedef struct bh_put_options {
  uint32_t struct_bytes;     /**< sizeof */
  uint32_t reserved;         /**< zero */
  const void* user_metadata; /**< bytes that the pool keeps with the block and does not interpret;
                                  default: none */
  uint64_t user_bytes;       /**< of user_metadata, at most 512 */
  const bh_attributes* attributes; /**< of the block; default: none */
} bh_put_options;

/** bh_put() with user metadata and attributes. If the key is already stored, its own stay.
 * @param pool the pool
 * @param ns its namespace
 * @param key its key
 * @param value its parts
 * @param value_count number of parts
 * @param options user metadata and attributes
 * @retval BH_INVALID_ARGUMENT the user metadata are longer than 512 bytes, or an attribute is out
 *     of its range
 * @retval BH_NOT_SUPPORTED `options` has a member set that this library does not know
 * @retval BH_KEY_TOO_LONG, BH_VALUE_TOO_LARGE, BH_NO_SPACE, BH_INDEX_FULL, BH_LIMIT_REACHED,
 *     BH_BUSY as for bh_put() */
bh_status bh_put_with(bh_pool* pool, bh_namespace_id ns, bh_key key, const bh_const_iovec* value,
                      size_t value_count, const bh_put_options* options);

/** Copies a value into `buffers` and verifies it. On failure the content of the buffers is
 * undefined.
 * @param pool the pool
 * @param ns its namespace
 * @param key under which it is stored
 * @param buffers the destination, filled in order
 * @param buffer_count number of buffers
 * @param length_bytes of the value, also with BH_BUFFER_TOO_SMALL
 * @retval BH_NOT_FOUND nothing is stored under the key, or its block was damaged and was dropped
 * @retval BH_BUFFER_TOO_SMALL the buffers are smaller than the value
 * @retval BH_KEY_TOO_LONG the key is empty or longer than 512 bytes
 * @retval BH_UNSUPPORTED_CODEC a newer version of Bowhead compressed it
 * @retval BH_DAMAGED the block is damaged, and the handle is an observer */
bh_status bh_get(bh_pool* pool, bh_namespace_id ns, bh_key key, const bh_iovec* buffers,
                 size_t buffer_count, uint64_t* length_bytes);

/** Reports which keys are stored. Does not count as use. A key of an invalid length is absent.
 * @param pool the pool
 * @param ns its namespace
 * @param keys the keys
 * @param key_count number of keys
 * @param present for each key: 1 if it is stored, else 0 */
bh_status bh_exists(bh_pool* pool, bh_namespace_id ns, const bh_key* keys, size_t key_count,
                    uint8_t* present);

/** Counts the leading keys that are stored without a gap. They count as used, the first most
 * recently, so that the tail of a prefix is evicted before its head.
 * @param pool the pool
 * @param ns its namespace
 * @param keys the keys, from the head of the prefix on
 * @param key_count number of keys
 * @param length number of leading keys that are stored */
bh_status bh_longest_prefix(bh_pool* pool, bh_namespace_id ns, const bh_key* keys, size_t key_count,
                            size_t* length);

/** Marks blocks as used now, the first most recently. Absent keys are skipped. */
bh_status bh_touch(bh_pool* pool, bh_namespace_id ns, const bh_key* keys, size_t key_count);

/** Removes a block. Its leases keep their bytes until they are released or expire, but bh_release()
 * returns BH_LAPSED for them.
 * @param pool the pool
 * @param ns its namespace
 * @param key under which it is stored
 * @retval BH_NOT_FOUND nothing is stored under the key
 * @retval BH_KEY_TOO_LONG the key is empty or longer than 512 bytes
 * @retval BH_BUSY it may still be stored: try again */
bh_status bh_remove(bh_pool* pool, bh_namespace_id ns, bh_key key);

/** @}
 * @name Batches
 * Calls for many keys. The memory accesses of a batch overlap, which makes small values faster than
 * a call for each.
 *
 * Each item has a status of its own. A batch returns BH_OK once every item has been tried, however
 * many failed. Any other status is that of the whole batch, and the outputs of the items are
 * undefined. If an argument or an item is malformed (BH_INVALID_ARGUMENT, BH_NOT_SUPPORTED),
 * nothing was done. A key may be repeated within a batch.
 * @{ */

/** An item of bh_put_batch(). */
typedef struct bh_put_item {
  bh_key key;                    /**< under which the value is stored */
  const bh_const_iovec* value;   /**< its parts */
  size_t value_count;            /**< number of parts */
  const bh_put_options* options; /**< NULL: none */
  bh_status status;              /**< output: as bh_put_with() returns */
  uint32_t reserved;             /**< not used */
} bh_put_item;

/** An item of bh_get_batch(). */
typedef struct bh_get_item {
  bh_key key;              /**< under which the value is stored */
  const bh_iovec* buffers; /**< the destination, filled in order */
  size_t buffer_count;     /**< number of buffers */
  uint64_t length_bytes;   /**< output: of the value, with BH_OK and BH_BUFFER_TOO_SMALL; else 0 */
  bh_status status;        /**< output: as bh_get() returns */
  uint32_t reserved;       /**< not used */
} bh_get_item;

/** Stores values. Each item gets a status as for bh_put_with().
 * @param pool the pool
 * @param ns its namespace
 * @param items keys, values and options; gets the statuses
 * @param item_count number of items */
bh_status bh_put_batch(bh_pool* pool, bh_namespace_id ns, bh_put_item* items, size_t item_count);

/** Copies and verifies values. Each item gets a status as for bh_get().
 * @param pool the pool
 * @param ns its namespace
 * @param items keys and buffers; gets lengths and statuses
 * @param item_count number of items */
bh_status bh_get_batch(bh_pool* pool, bh_namespace_id ns, bh_get_item* items, size_t item_count);

/** Removes blocks. Each key gets a status as for bh_remove(). For blocks of other hosts, some keys
 * at a time take a heartbeat, as bh_remove() takes for one.
 * @param pool the pool
 * @param ns its namespace
 * @param keys the keys
 * @param key_count number of keys
 * @param statuses for each key */
bh_status bh_remove_batch(bh_pool* pool, bh_namespace_id ns, const bh_key* keys, size_t key_count,
                          bh_status* statuses);

/** @}
 * @name Queues
 * A queue executes jobs on threads of its own: batches whose caller does not wait. A pool can have
 * several queues. All functions of a queue may be called from any thread, except bh_queue_close(),
 * which must overlap no other call on the queue. Close the queues of a pool before the pool.
 * @{ */

/** An open queue. */
typedef struct bh_queue bh_queue;

/** Settings of a queue. */
typedef struct bh_queue_options {
  uint32_t struct_bytes; /**< sizeof */
  uint32_t threads;      /**< that execute jobs, 1 to 64; default 1 */
  uint32_t jobs_max;     /**< jobs that may be submitted and not yet reported, 1 to 1,048,576;
                              default 1,024 */
  uint32_t reserved;     /**< zero */
} bh_queue_options;

/** @name Operations of a job
 * @{ */
#define BH_JOB_PUT 1u    /**< as bh_put_batch() */
#define BH_JOB_GET 2u    /**< as bh_get_batch() */
#define BH_JOB_REMOVE 3u /**< as bh_remove_batch() */
#define BH_JOB_EXISTS 4u /**< as bh_exists() */
/** @} */

/** A batch for a queue. All memory that it points to belongs to the job from bh_queue_submit()
 * until bh_queue_poll() has reported it; the struct itself is free after bh_queue_submit(). */
typedef struct bh_job {
  uint32_t struct_bytes;        /**< sizeof */
  uint32_t operation;           /**< BH_JOB_* */
  bh_namespace_id namespace_id; /**< of all keys */
  uint32_t priority;            /**< 0 to 255; jobs of a higher priority are started first, those of
                                     the same priority in the order of submission */
  uint32_t reserved;            /**< zero */
  size_t count;                 /**< number of items or keys, at least 1 */
  bh_put_item* puts;            /**< BH_JOB_PUT: the items; else NULL */
  bh_get_item* gets;            /**< BH_JOB_GET: the items; else NULL */
  const bh_key* keys;           /**< BH_JOB_REMOVE, BH_JOB_EXISTS: the keys; else NULL */
  bh_status* statuses;          /**< BH_JOB_REMOVE: output for each key; else NULL */
  uint8_t* present;             /**< BH_JOB_EXISTS: output for each key; else NULL */
  void* context;                /**< returned in the completion */
} bh_job;

/** A job that has ended. */
typedef struct bh_completion {
  uint64_t job;       /**< its number */
  void* context;      /**< as in bh_job */
  size_t failed;      /**< if the status is BH_OK: items whose status is not, or keys that are not
                           stored */
  bh_status status;   /**< of the batch; BH_CANCELLED: nothing was done */
  uint32_t operation; /**< as in bh_job */
} bh_completion;

/** Opens a queue.
 * @param pool the pool, which must be closed after the queue
 * @param options settings; NULL: the defaults
 * @param out the queue, for bh_queue_close()
 * @retval BH_INVALID_ARGUMENT an option is out of its range
 * @retval BH_NOT_SUPPORTED `options` has a member set that this library does not know */
bh_status bh_queue_open(bh_pool* pool, const bh_queue_options* options, bh_queue** out);

/** The queue's eventfd: readable while jobs have ended that bh_queue_poll() has not reported; of
 * small jobs that follow each other, up to 16 may become readable together. Wait for it with poll()
 * or epoll; do not read, write or close it. -1 if `queue` is NULL. */
int bh_queue_fd(const bh_queue* queue);

/** Submits a job. Never waits.
 * @param queue the queue
 * @param job the job
 * @param number its number, from 1 on, never used again by the queue; may be NULL
 * @retval BH_INVALID_ARGUMENT the operation is unknown, a number is out of its range, or a pointer
 *     is NULL that the operation needs, or set that it does not use
 * @retval BH_LIMIT_REACHED `jobs_max` jobs are submitted and not reported: poll, then try again
 * @retval BH_NOT_SUPPORTED `job` has a member set that this library does not know */
bh_status bh_queue_submit(bh_queue* queue, const bh_job* job, uint64_t* number);

/** Reports jobs that have ended, in the order in which they ended. Never waits. The statuses of the
 * items are as for bh_put_batch(), bh_get_batch(), bh_remove_batch(); a batch that fails as a whole
 * has its status in the completion.
 * @param queue the queue
 * @param out gets them
 * @param room number of elements of out
 * @param count number of jobs reported */
bh_status bh_queue_poll(bh_queue* queue, bh_completion* out, size_t room, size_t* count);

/** Cancels a job that has not started: it ends with BH_CANCELLED, and is reported like any other.
 * @param queue the queue
 * @param number of the job
 * @retval BH_NOT_FOUND it has started or ended, or there is no such job */
bh_status bh_queue_cancel(bh_queue* queue, uint64_t number);

/** Waits until all jobs submitted so far have ended; they stay to be reported.
 * @param queue the queue
 * @param timeout_ms the longest wait
 * @retval BH_BUSY some had not ended after that time; they continue */
bh_status bh_queue_drain(bh_queue* queue, uint64_t timeout_ms);

/** Cancels the jobs that have not started, waits for the others, and closes the queue. Nothing is
 * reported any more; afterwards the memory of all jobs is the caller's again. NULL is allowed. */
void bh_queue_close(bh_queue* queue);

/** @}
 * @name Events
 * Blocks that this handle stored, and blocks of this host that this handle removed, evicted or
 * found damaged, in its calls or in its duties for the host. Other processes and hosts report their
 * own; so a resident host (`bowhead host`), which does duties for engines, evicts unreported. The
 * events of a key come in the order of its blocks. A move gives a block another stamp, and is no
 * event. A reader that is slow loses events, and is told how many; no put waits for it. All
 * functions of a reader may be called from any thread, except bh_events_close(), which must overlap
 * no other call on it.
 * @{ */

/** A reader of events. */
typedef struct bh_events bh_events;

/** Settings of a reader. */
typedef struct bh_events_options {
  uint32_t struct_bytes;   /**< sizeof */
  uint32_t reserved;       /**< zero */
  uint64_t capacity_bytes; /**< of its buffer, 4 KiB to 1 GiB; default 4 MiB. An event takes 40
                                bytes, its key and its user metadata */
} bh_events_options;

/** @name Kinds of events
 * @{ */
#define BH_EVENT_STORED 1u  /**< a put stored the block */
#define BH_EVENT_REMOVED 2u /**< it was removed, alone or with its namespace */
#define BH_EVENT_EVICTED 3u /**< it was evicted */
#define BH_EVENT_DAMAGED 4u /**< it was found damaged, and was dropped */
/** @} */

/** An event. */
typedef struct bh_event {
  uint32_t struct_bytes;        /**< size of the struct that is passed */
  uint32_t kind;                /**< BH_EVENT_* */
  bh_namespace_id namespace_id; /**< of the key */
  bh_key key;                   /**< valid during the call */
  const void* user_metadata;    /**< of the block, as it was put; valid during the call */
  uint64_t user_bytes;          /**< of user_metadata; 0: the block has none */
  uint64_t length_bytes;        /**< of the value */
  uint64_t stamp;               /**< of the block */
} bh_event;

/** Opens a reader, which gets the events from now on.
 * @param pool the pool; close it after the reader
 * @param options settings; NULL: the defaults
 * @param out the reader, for bh_events_close()
 * @retval BH_INVALID_ARGUMENT the capacity is out of its range
 * @retval BH_NOT_SUPPORTED `options` has a member set that this library does not know */
bh_status bh_events_open(bh_pool* pool, const bh_events_options* options, bh_events** out);

/** The reader's eventfd: readable while there are events, or some were lost. Wait for it with
 * poll() or epoll; do not read, write or close it. -1 if `events` is NULL. */
int bh_events_fd(const bh_events* events);

/** Calls `visit` for events, oldest first; a result other than 0 ends the call. Never waits for
 * events.
 * @param events the reader
 * @param most number of events after which it ends
 * @param visit its argument is valid during the call; must not call functions on this reader
 * @param context passed to `visit`
 * @param count number of events visited; may be NULL
 * @param lost events that came after those visited and did not fit into the buffer; then the
 *     router's picture is incomplete, and must be made anew (bh_pool_list_blocks()) */
bh_status bh_events_read(bh_events* events, size_t most,
                         int (*visit)(void* context, const bh_event* event), void* context,
                         size_t* count, uint64_t* lost);

/** Closes a reader. NULL is allowed. */
void bh_events_close(bh_events* events);

/** @}
 * @name Blocks in place
 * @{ */

/** Space for a block that the caller fills in place, between bh_reserve() and bh_commit() or
 * bh_abort(). A copy of the struct denotes the same reservation. */
typedef struct bh_reservation {
  uint32_t struct_bytes; /**< sizeof */
  uint32_t present; /**< 1: the key is already stored; nothing was reserved, nothing needs to end */
  void* data;       /**< the space, 4 KiB-aligned; NULL after the reservation has ended */
  uint64_t length_bytes; /**< of data */
  uint64_t offset;       /**< of data in the mapping (bh_pool_mapping) */
  void* internal;        /**< must not be changed */
} bh_reservation;

/** Reserves space for a value. Its bytes are stored uncompressed, in compressed namespaces too.
 * @param pool the pool
 * @param ns its namespace
 * @param key under which it will be stored
 * @param length_bytes of the value
 * @param out the reservation
 * @retval BH_KEY_TOO_LONG the key is empty or longer than 512 bytes
 * @retval BH_VALUE_TOO_LARGE the length is 0, or more than 1 GiB or than the pool can hold
 * @retval BH_NO_SPACE as for bh_put()
 * @retval BH_BUSY all free space is space that a dead host may still write to: try again */
bh_status bh_reserve(bh_pool* pool, bh_namespace_id ns, bh_key key, uint64_t length_bytes,
                     bh_reservation* out);

/** bh_reserve() with user metadata and attributes, which bh_commit() stores with the block.
 * @param pool the pool
 * @param ns its namespace
 * @param key under which it will be stored
 * @param length_bytes of the value
 * @param options the user metadata, read during the call
 * @param out the reservation
 * @retval BH_INVALID_ARGUMENT the user metadata are longer than 512 bytes, or an attribute is out
 *     of its range
 * @retval BH_NOT_SUPPORTED `options` has a member set that this library does not know
 * @retval BH_KEY_TOO_LONG, BH_VALUE_TOO_LARGE, BH_NO_SPACE, BH_BUSY as for bh_reserve() */
bh_status bh_reserve_with(bh_pool* pool, bh_namespace_id ns, bh_key key, uint64_t length_bytes,
                          const bh_put_options* options, bh_reservation* out);

/** Ends a reservation and stores its block, with a checksum that this call computes. If the key was
 * stored meanwhile, that block stays: BH_OK. Any status except BH_CLOSED and BH_FORKED ends the
 * reservation; to try again, reserve and fill again.
 * @param pool the pool
 * @param reservation the reservation; its data is NULL afterwards
 * @retval BH_CLOSED the reservation, or a copy of it, has ended, it belongs to another handle, or
 *     its key was present
 * @retval BH_BUSY nothing is stored: another process holds the key
 * @retval BH_INDEX_FULL nothing is stored: the index of this host has no space for the key
 * @retval BH_LIMIT_REACHED nothing is stored: this host has used up its 2^40 stamps
 * @retval BH_DAMAGED nothing is stored: memory of the block failed: reserve again */
bh_status bh_commit(bh_pool* pool, bh_reservation* reservation);

/** bh_commit() with a checksum that the writer computed while it wrote the bytes, as GPUs do. If it
 * is wrong, readers find the block damaged.
 * @param pool the pool
 * @param reservation the reservation
 * @param checksum bh_checksum() of the whole value
 * @retval BH_CLOSED, BH_BUSY, BH_INDEX_FULL, BH_LIMIT_REACHED, BH_DAMAGED as for bh_commit() */
bh_status bh_commit_summed(bh_pool* pool, bh_reservation* reservation, uint64_t checksum);

/** bh_commit() without a checksum, for bytes that this CPU cannot read back: damage goes
 * undetected, and other hosts find the block some heartbeats later.
 * @param pool the pool
 * @param reservation the reservation
 * @retval BH_CLOSED, BH_BUSY, BH_INDEX_FULL, BH_LIMIT_REACHED, BH_DAMAGED as for bh_commit() */
bh_status bh_commit_unverified(bh_pool* pool, bh_reservation* reservation);

/** Ends a reservation and stores nothing.
 * @param pool the pool
 * @param reservation the reservation
 * @retval BH_CLOSED as for bh_commit() */
bh_status bh_abort(bh_pool* pool, bh_reservation* reservation);

/** The checksum of a value (docs/format.md): XXH3-64 of the XXH3-64 sums of its 4 KiB pieces. */
uint64_t bh_checksum(const void* data, size_t size_bytes);

/** A promise that a block stays in place, unchanged, until bh_release() or the time limit. */
typedef struct bh_lease {
  uint32_t struct_bytes;      /**< sizeof */
  uint32_t codec;             /**< BH_CODEC_RAW: data is the value; BH_CODEC_FRAME: docs/frame.md */
  const void* data;           /**< the stored bytes; must not be written */
  uint64_t stored_bytes;      /**< of data */
  uint64_t length_bytes;      /**< of the value; equals stored_bytes if it is not compressed */
  uint64_t offset;            /**< of data in the mapping */
  uint64_t stamp;             /**< of the block: no other block ever has the same stamp */
  const bh_kv_layout* layout; /**< of the value; valid until the pool is closed */
  uint64_t checksum;          /**< bh_checksum() of the stored bytes, if has_checksum */
  uint32_t has_checksum;      /**< 0: the block was committed without a checksum */
  uint32_t reserved;          /**< zero */
  uint64_t internal;          /**< must not be changed */
} bh_lease;

/** Takes a lease of an uncompressed value.
 * @param pool the pool
 * @param ns its namespace
 * @param key under which it is stored
 * @param ttl_ms time limit, 1 to 600,000
 * @param out the lease
 * @retval BH_INVALID_ARGUMENT the time limit is out of its range
 * @retval BH_NOT_FOUND nothing is stored under the key
 * @retval BH_CODED the block is compressed, as any block of a compressed namespace may be: bh_get()
 *     decodes it, bh_acquire_stored() leases its frame
 * @retval BH_UNSUPPORTED_CODEC a newer version of Bowhead compressed it
 * @retval BH_COPY_ONLY the block's host died: bh_get() copies it
 * @retval BH_KEY_TOO_LONG the key is empty or longer than 512 bytes
 * @retval BH_LIMIT_REACHED the lease table of this host is full */
bh_status bh_acquire(bh_pool* pool, bh_namespace_id ns, bh_key key, uint64_t ttl_ms, bh_lease* out);

/** bh_acquire() for a block of any codec, given by out->codec.
 * @param pool the pool
 * @param ns its namespace
 * @param key under which it is stored
 * @param ttl_ms time limit, 1 to 600,000
 * @param out the lease
 * @retval BH_INVALID_ARGUMENT, BH_NOT_FOUND, BH_UNSUPPORTED_CODEC, BH_COPY_ONLY, BH_KEY_TOO_LONG,
 *     BH_LIMIT_REACHED as for bh_acquire() */
bh_status bh_acquire_stored(bh_pool* pool, bh_namespace_id ns, bh_key key, uint64_t ttl_ms,
                            bh_lease* out);

/** Reports whether all that was read through a lease so far was the block's; the lease goes on.
 * @param pool the pool
 * @param lease the lease
 * @retval BH_LAPSED it is not known to be: as for bh_release(). The lease is still to be released
 * @retval BH_HOST_FENCED, BH_CLOSED as for bh_release() */
bh_status bh_check_lease(bh_pool* pool, const bh_lease* lease);

/** Ends a lease and reports whether the block is known to have been intact for the whole lease.
 * @param pool the pool
 * @param lease the lease
 * @retval BH_LAPSED it is not: the block was removed, evicted or moved, its memory failed, the
 *     lease expired and another process needed the block or the place in the lease table, or the
 *     other hosts declared this one dead. Discard all results computed from it. Also for a copy of
 *     a lease that has ended, after a later lease took its place in the table
 * @retval BH_HOST_FENCED as BH_LAPSED, because the handle has left the pool
 * @retval BH_CLOSED the lease, or a copy of it, has ended, or it belongs to another handle */
bh_status bh_release(bh_pool* pool, bh_lease* lease);

/** The blocks that bh_acquire_prefix() leased. */
typedef struct bh_prefix {
  uint32_t struct_bytes; /**< sizeof */
  uint32_t reserved;     /**< zero */
  uint64_t blocks;       /**< leases taken, of the first keys */
  uint64_t length_bytes; /**< of their values together */
  uint64_t stored_bytes; /**< the same as they are stored */
  uint64_t restore_ns;   /**< estimated time to get the values, by the gets of this handle so far */
} bh_prefix;

/** Leases the leading keys that are stored without a gap, as bh_acquire_stored() does each. They
 * count as used, the first most recently. Ends before a block that cannot be leased.
 * @param pool the pool
 * @param ns its namespace
 * @param keys the keys, from the head of the prefix on
 * @param key_count number of keys
 * @param group_keys consecutive keys that belong together, such as the shares of several ranks:
 *     only whole groups are leased. 1: each key alone
 * @param ttl_ms time limit of the leases, 1 to 600,000
 * @param leases key_count structs, of which the first out->blocks are leases afterwards, for
 *     bh_release(). All have the struct_bytes of the first
 * @param out what was leased
 * @retval BH_INVALID_ARGUMENT the time limit is out of its range, or group_keys is 0 or does not
 *     divide key_count
 * @retval BH_LIMIT_REACHED the lease table of this host has no space for the first group */
bh_status bh_acquire_prefix(bh_pool* pool, bh_namespace_id ns, const bh_key* keys, size_t key_count,
                            size_t group_keys, uint64_t ttl_ms, bh_lease* leases, bh_prefix* out);

/** @}
 * @name Compressed values
 * @{ */

/** bh_get() at the precision of the first bit-planes: 1 reads only the signs; a number has at most
 * 12, and more than it has means all. Values without planes are returned exactly. If the block's
 * host is alive, only the bytes of those planes are read.
 * @param pool the pool
 * @param ns its namespace
 * @param key under which it is stored
 * @param planes number of planes, at least 1
 * @param buffers the destination, filled in order
 * @param buffer_count number of buffers
 * @param length_bytes of the value, also with BH_BUFFER_TOO_SMALL
 * @param read_bytes bytes read from the pool; may be NULL
 * @retval BH_INVALID_ARGUMENT `planes` is 0
 * @retval BH_NOT_FOUND, BH_BUFFER_TOO_SMALL, BH_KEY_TOO_LONG, BH_UNSUPPORTED_CODEC, BH_DAMAGED as
 *     for bh_get() */
bh_status bh_get_planes(bh_pool* pool, bh_namespace_id ns, bh_key key, uint32_t planes,
                        const bh_iovec* buffers, size_t buffer_count, uint64_t* length_bytes,
                        uint64_t* read_bytes);

/** Copies the stored bytes, a frame if the value is compressed, for a reader that decodes them
 * elsewhere.
 * @param pool the pool
 * @param ns its namespace
 * @param key under which it is stored
 * @param buffer the destination; the length of the value always suffices
 * @param buffer_bytes of buffer
 * @param stored_bytes bytes copied
 * @param length_bytes of the value, also with BH_BUFFER_TOO_SMALL
 * @param codec BH_CODEC_*
 * @retval BH_NOT_FOUND, BH_BUFFER_TOO_SMALL, BH_KEY_TOO_LONG, BH_UNSUPPORTED_CODEC, BH_DAMAGED as
 *     for bh_get() */
bh_status bh_get_stored(bh_pool* pool, bh_namespace_id ns, bh_key key, void* buffer,
                        size_t buffer_bytes, uint64_t* stored_bytes, uint64_t* length_bytes,
                        uint32_t* codec);

/** The result of a pass of bh_pool_recompress(). */
typedef struct bh_recompress_report {
  uint32_t struct_bytes; /**< sizeof */
  uint32_t reserved;     /**< zero */
  uint64_t cold_blocks;  /**< blocks that were tried */
  uint64_t recompressed; /**< of those: stored again in fewer bytes */
  uint64_t before_bytes; /**< stored bytes of the recompressed blocks, before */
  uint64_t after_bytes;  /**< stored bytes of the recompressed blocks, after */
} bh_recompress_report;

/** Recompresses cold blocks of this host, in compressed namespaces, into as few bytes as the codec
 * can. Call it again until it recompresses nothing. Evicts nothing and skips leased blocks.
 * @param pool the pool
 * @param cold_ms time without use after which a block is cold
 * @param out the result */
bh_status bh_pool_recompress(bh_pool* pool, uint64_t cold_ms, bh_recompress_report* out);

/** @}
 * @name Inspection
 * @{ */

/** A pool's settings, and sums over all its hosts since it was created. */
typedef struct bh_pool_info {
  uint32_t struct_bytes;        /**< sizeof */
  uint32_t format_version;      /**< of the pool */
  char pool_id[40];             /**< unique; zero-terminated */
  uint64_t created_unix_ns;     /**< time of creation */
  uint64_t size_bytes;          /**< of the whole pool, with media by which it has grown */
  uint64_t payload_bytes;       /**< space for blocks */
  uint64_t metadata_bytes;      /**< all other space */
  uint64_t extent_bytes;        /**< of one extent */
  uint64_t extent_count;        /**< of all hosts */
  uint64_t min_block_bytes;     /**< the least space that a value occupies */
  uint32_t evict_high_permille; /**< 0: no eviction */
  uint32_t evict_low_permille;  /**< 0: no eviction */
  uint32_t hosts;               /**< host slots */
  uint32_t
      second_superblock;   /**< 1: the first copy is damaged; `bowhead pool repair` restores it */
  uint64_t used_bytes;     /**< occupied by blocks now */
  uint64_t blocks;         /**< stored now */
  uint64_t puts;           /**< that stored a block */
  uint64_t puts_present;   /**< whose key was already stored */
  uint64_t hits;           /**< gets and leases that found their block */
  uint64_t hits_elsewhere; /**< of those, in the memory of another host */
  uint64_t misses;         /**< gets and leases that did not find it */
  uint64_t bytes_in;       /**< of the values that were put */
  uint64_t bytes_out;      /**< of the values that were got */
  uint64_t evictions;      /**< blocks */
  uint64_t removals;       /**< blocks */
  uint64_t moves;          /**< blocks, to empty extents */
  uint64_t recompressed;   /**< blocks */
  uint64_t damaged;        /**< blocks that were found damaged and dropped */
  uint64_t scavenged;      /**< unfinished operations of dead processes that were undone */
  uint64_t no_space;       /**< number of BH_NO_SPACE */
  uint32_t heartbeat_ms; /**< as bh_create_options.heartbeat_ms; this and the next four are 0 for a
                                pool of one host */
  uint32_t dead_ms;      /**< as bh_create_options.dead_ms */
  uint32_t grace_ms;     /**< as bh_create_options.grace_ms */
  uint32_t settle_ms;    /**< as bh_create_options.settle_ms */
  uint32_t reclaim_ms;   /**< as bh_create_options.reclaim_ms; 0: not without a confirmation */
  uint32_t reserved;     /**< zero */
  uint64_t max_bytes;    /**< size to which it can grow; size_bytes if it cannot */
  uint64_t compat;       /**< features that other versions of Bowhead may ignore, a bit each */
  uint64_t incompat;     /**< features without which it cannot be opened */
  uint64_t ro_compat;    /**< features without which only an observer can open it */
} bh_pool_info;

/** Describes a pool. */
bh_status bh_pool_get_info(bh_pool* pool, bh_pool_info* out);

/** How full the pool is for this host. */
typedef struct bh_pressure {
  uint32_t struct_bytes;   /**< sizeof */
  uint32_t saturated;      /**< 1: within the last second a put of this handle found no space
                                (BH_NO_SPACE, BH_INDEX_FULL); stop offering values for a while */
  uint32_t used_permille;  /**< of the space of this host */
  uint32_t index_permille; /**< of the index entries that this host can use */
} bh_pressure;

/** Reports how full the pool is for this host. Costs a look at each extent.
 * @param pool the pool
 * @param out the answer
 * @retval BH_READ_ONLY the handle is an observer
 * @retval BH_CLOSED, BH_HOST_FENCED, BH_HOST_ID_CONFLICT as of functions that store */
bh_status bh_pool_get_pressure(bh_pool* pool, bh_pressure* out);

/** A host slot, as reported by bh_pool_list_hosts(). */
typedef struct bh_host_info {
  uint32_t struct_bytes;    /**< size of the struct that is passed */
  uint32_t slot;            /**< 0 to 63 */
  char state[16];           /**< "free", "joining", "live", "left", "ended" or "damaged" */
  uint32_t incarnation;     /**< lives so far */
  uint32_t processes_live;  /**< on this machine */
  uint64_t extents_owned;   /**< by it */
  uint64_t extents_free;    /**< of those */
  uint64_t extents_custody; /**< of those: from a dead host that may still write */
  uint64_t leases_active;   /**< of its processes */
  uint64_t duties_late_ms;  /**< age of its other duties at its last heartbeat */
  uint64_t heartbeat;       /**< changes every heartbeat_ms while a process of the host runs: a live
                                 host whose heartbeat stands still for longer has stopped */
  uint64_t features;       /**< that all processes of a live host know: bits of bh_pool_info.compat,
                                 incompat and ro_compat */
  uint32_t format_version; /**< the highest that they know; 0: it is not live */
  uint32_t reserved;       /**< zero */
} bh_host_info;

/** Calls `visit` for every host slot, in order; a result other than 0 ends the list.
 * @param pool the pool
 * @param visit its argument is valid during the call; must not call functions on this pool
 * @param context passed to `visit` */
bh_status bh_pool_list_hosts(bh_pool* pool, int (*visit)(void* context, const bh_host_info* host),
                             void* context);

/** A namespace and the space of its blocks, as reported by bh_pool_list_namespaces(). */
typedef struct bh_namespace_info {
  uint32_t struct_bytes;   /**< size of the struct that is passed */
  uint32_t profile;        /**< BH_PROFILE_* of puts */
  bh_namespace_id id;      /**< the id that operations take */
  const char* name;        /**< valid during the call */
  const char* description; /**< valid during the call */
  bh_kv_layout layout;     /**< of its values */
  uint64_t blocks;         /**< of all hosts */
  uint64_t value_bytes;    /**< of the values as they were put */
  uint64_t stored_bytes;   /**< of the values as they are stored */
  uint64_t block_bytes;    /**< space that they need: stored_bytes rounded up to blocks */
  uint64_t hits;           /**< gets and leases that found their block */
  uint64_t misses;         /**< gets and leases that did not find it */
  uint64_t evictions;      /**< of blocks */
  uint32_t wipe;           /**< 1: freed blocks are overwritten (bh_namespace_options) */
  uint32_t reserved;       /**< zero */
} bh_namespace_info;

/** Calls `visit` for every registered namespace; a result other than 0 ends the list. The counts
 * may be wrong by the operations that were under way in processes that died, until the first
 * process of their host opens the pool. A host has counters for 127 namespaces or more, twice as
 * many as its table has entries up to 511; what it does with others is not counted here.
 * @param pool the pool
 * @param visit its argument is valid during the call; must not call functions on this pool
 * @param context passed to `visit` */
bh_status bh_pool_list_namespaces(bh_pool* pool,
                                  int (*visit)(void* context, const bh_namespace_info* ns),
                                  void* context);

/** Sets the attributes of a stored block, all of them.
 * @param pool the pool
 * @param ns its namespace
 * @param key under which it is stored
 * @param attributes the attributes
 * @retval BH_INVALID_ARGUMENT a number is out of its range
 * @retval BH_NOT_FOUND nothing is stored under the key
 * @retval BH_KEY_TOO_LONG the key is empty or longer than 512 bytes
 * @retval BH_NOT_SUPPORTED another host has the block, and only its processes can set them; or
 *     `attributes` has a member set that this library does not know
 * @retval BH_BUSY another process holds the key, or the block's host died and may still write to
 *     it: try again */
bh_status bh_set_attributes(bh_pool* pool, bh_namespace_id ns, bh_key key,
                            const bh_attributes* attributes);

/** A block, as reported by bh_pool_list_blocks() and bh_describe(). */
typedef struct bh_block_info {
  uint32_t struct_bytes;        /**< size of the struct that is passed */
  uint32_t reserved;            /**< zero */
  bh_namespace_id namespace_id; /**< of the key */
  bh_key key;                   /**< in a list valid during the call, else the caller's */
  uint64_t length_bytes;        /**< of the value */
  uint64_t stored_bytes;        /**< fewer than length_bytes if the block is compressed */
  uint64_t offset;              /**< of the stored bytes in the mapping */
  uint64_t stamp;               /**< of the block */
  const void* user_metadata;    /**< in a list valid during the call, else the caller's buffer */
  uint64_t user_bytes;          /**< of user_metadata; 0: the block has none */
  bh_attributes attributes;     /**< all 0 if none were set */
} bh_block_info;

/** Describes the block of a key. Does not count as use.
 * @param pool the pool
 * @param ns its namespace
 * @param key under which it is stored
 * @param user_metadata gets the user metadata: BH_USER_BYTES_MAX bytes of space, or NULL
 * @param out the block; its user_metadata is the argument
 * @retval BH_NOT_FOUND nothing is stored under the key
 * @retval BH_DAMAGED its user metadata are damaged; its value is not: get it, remove the block, and
 *     put it anew
 * @retval BH_KEY_TOO_LONG the key is empty or longer than 512 bytes */
bh_status bh_describe(bh_pool* pool, bh_namespace_id ns, bh_key key, void* user_metadata,
                      bh_block_info* out);

/** Calls `visit` for every block of every host, in no order; a result other than 0 ends the list.
 * @param pool the pool
 * @param visit its argument is valid during the call; must not call functions on this pool
 * @param context passed to `visit` */
bh_status bh_pool_list_blocks(bh_pool* pool,
                              int (*visit)(void* context, const bh_block_info* block),
                              void* context);

/** The counts of bh_pool_check(). */
typedef struct bh_check_report {
  uint32_t struct_bytes;      /**< sizeof */
  uint32_t reserved;          /**< zero */
  uint64_t findings;          /**< faults found */
  uint64_t data_lost;         /**< of those: stored blocks that cannot be returned */
  uint64_t not_checked;       /**< parts that could not be checked from this process */
  uint64_t blocks_checked;    /**< blocks */
  uint64_t bytes_checked;     /**< of their payloads */
  uint64_t blocks_unverified; /**< committed without a checksum */
} bh_check_report;

/** Checks all metadata and reports each fault; changes nothing. The pool may be in use meanwhile.
 * @param pool the pool
 * @param payloads 1: also verifies every block, which takes as long as reading the pool
 * @param visit called with a sentence for each finding (is_finding 1) and for each part that was
 *     not checked (is_finding 0); may be NULL
 * @param context passed to `visit`
 * @param out the counts */
bh_status bh_pool_check(bh_pool* pool, int payloads,
                        void (*visit)(void* context, int is_finding, const char* sentence),
                        void* context, bh_check_report* out);

/** Finishes or undoes now what dead processes left half done, instead of when it is needed.
 * @param pool the pool
 * @param found number of dead processes; may be NULL */
bh_status bh_pool_scavenge(bh_pool* pool, uint64_t* found);

/** @}
 * @name Several hosts
 * @{ */

/** Ends this host's membership cleanly, so that the others can take over its blocks at once; close
 * the handle afterwards. Ends the handle's reservations and leases: their pointers must not be used
 * for stores any more. In a pool of one host it does nothing: BH_OK.
 * @param pool the pool; no other call on it may overlap
 * @retval BH_IN_USE other processes of this host have the pool open; the membership continues
 * @retval BH_BUSY another process has been opening it for 10 seconds; the membership continues */
bh_status bh_pool_leave(bh_pool* pool);

/** Confirms that a host that was declared dead will not write to the memory again: its machine is
 * powered off or disconnected from the memory. Bowhead cannot check this. Until the call, the
 * host's space serves verified copies only.
 * @param pool the pool
 * @param host its slot
 * @retval BH_INVALID_ARGUMENT there is no such slot, it was never used, or it is this host's own
 * @retval BH_BUSY the hosts have not declared it dead, or not yet
 * @retval BH_IN_USE a process of it runs on this machine */
bh_status bh_pool_fence(bh_pool* pool, uint32_t host);

/** @}
 * @name Devices
 * @{ */

/** Returns the mapping of the pool, valid until the handle is closed. Memory that this host does
 * not own is mapped read-only, so a driver must pin it as read-only memory
 * (cudaHostRegisterReadOnly) or not at all.
 * @param pool the pool
 * @param base its first byte
 * @param size_bytes its size */
bh_status bh_pool_mapping(bh_pool* pool, const void** base, uint64_t* size_bytes);

/** @} */

#ifdef __cplusplus
}
#endif

#endif
