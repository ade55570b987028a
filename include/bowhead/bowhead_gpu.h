/* SPDX-License-Identifier: Apache-2.0 */
/** @file bowhead/bowhead_gpu.h
 * The C ABI of Bowhead for GPUs: moves KV blocks between an engine's paged cache in GPU memory and
 * a pool. Exported by libbowhead.so, like bowhead/bowhead.h, whose rules on structs, outputs, keys
 * and memory hold here as well.
 *
 * @code{.c}
 * bh_gpu* gpu;
 * bh_gpu_memory* memory;
 * bh_gpu_transfers* transfers;
 * bh_gpu_job* job;
 * bh_gpu_cache cache = {.struct_bytes = sizeof cache, .page_tokens = 16, .pages = 4096,
 *                       .parts = parts, .part_count = 2 * layers, .layout = layout};
 * if (bh_gpu_open(0, &gpu) != BH_OK ||
 *     bh_gpu_register_pool(gpu, pool, 0, &memory) != BH_OK ||
 *     bh_gpu_memory_register_rest(memory) != BH_OK ||
 *     bh_gpu_transfers_open(pool, gpu, memory, &cache, NULL, &transfers) != BH_OK ||
 *     bh_gpu_restore(transfers, ns, blocks, block_count, NULL, &job) != BH_OK)
 *   return fprintf(stderr, "%s\n", bh_last_error()), 1;
 * bh_status status = bh_gpu_job_wait(job, 1000);
 * if (status == BH_OK) status = bh_gpu_job_results(job, results, block_count);
 * for (size_t i = 0; status == BH_OK && i < block_count; ++i)
 *   if (results[i].status != BH_OK) recompute(&blocks[i]);
 * bh_gpu_job_free(job);
 * @endcode
 *
 * A job moves some blocks, such as all that a request spills or restores. Starting one queues its
 * work on the GPU and does not wait for that work; it takes the time of the CPU's part: leases,
 * reservations, and copies of blocks that the GPU does not reach or that are compressed. When the
 * GPU is through, bh_gpu_poll() or bh_gpu_job_wait() finishes the job: verifies, commits, ends
 * leases. A spilled block is visible in the pool only when all of it has been stored. A restored
 * block is valid only if its status is BH_OK; until then the content of its pages is undefined, and
 * whatever was computed from them layer by layer is void if the block fails.
 *
 * Streams are those of CUDA: a cudaStream_t is passed as void*, and NULL is CUDA's default stream.
 * The CPU device has the default stream only.
 *
 * Threads: every function may be called from any thread at any time, except that closing a handle
 * must not overlap another call on it, nor closing a pool a call on its bh_gpu_transfers. It may
 * overlap calls on their jobs. Calls on a bh_gpu_transfers and its jobs take turns; a wait does not
 * hold up the others.
 *
 * Order of closing: any order is allowed. A bh_gpu or bh_gpu_memory that others were opened with
 * stays open inside them. Closing the pool, or a bh_gpu_transfers, cancels its jobs and waits until
 * the GPU is through with them: all are done then, and their handles are still to be freed. After
 * the pool was closed, calls on the transfers return BH_CLOSED.
 *
 * Statuses: besides those that a function lists, any function may return BH_INVALID_ARGUMENT,
 * BH_FORKED and BH_SYSTEM, for the reasons in bowhead/bowhead.h, and
 * - BH_GPU_LOST: the GPU or its driver no longer answers. Nothing works on it any more in this
 *   process, and queued work is not done, but copies that were under way may still arrive until
 *   the process ends: end it soon. The pool is intact.
 *
 * In the child of a fork no handle can be used; closing one there leaves the parent's alone. */
#ifndef BOWHEAD_BOWHEAD_GPU_H
#define BOWHEAD_BOWHEAD_GPU_H

#include <bowhead/bowhead.h>

#ifdef __cplusplus
extern "C" {
#endif

/** @name GPUs
 * @{ */

/** A GPU, or the CPU in its place. */
typedef struct bh_gpu bh_gpu;

/** Opens a GPU. Uses the primary context that the CUDA runtime of the process uses, and changes
 * neither the current device of a thread nor its last error.
 * @param ordinal of CUDA: 0 for the first GPU that is visible to the process
 * @param out the GPU, for bh_gpu_close()
 * @retval BH_NOT_SUPPORTED this build has no CUDA, or there is no driver, or it is too old
 * @retval BH_NOT_FOUND there is no such GPU */
bh_status bh_gpu_open(uint32_t ordinal, bh_gpu** out);

/** Opens the CPU in place of a GPU, for development and tests without one: the same kernels and
 * copies, executed by threads. A cache for it lies in memory that bh_gpu_register_memory()
 * registered.
 * @param out the device, for bh_gpu_close() */
bh_status bh_gpu_open_cpu(bh_gpu** out);

/** A description of a GPU. The texts are zero-terminated, and cut if they are longer. */
typedef struct bh_gpu_info {
  uint32_t struct_bytes; /**< sizeof */
  uint32_t is_cpu;       /**< 1: the CPU device */
  uint64_t memory_bytes; /**< of its own memory */
  uint32_t decodes_lz4;  /**< 1: it decodes LZ4 streams of compressed blocks; 0: the CPU does */
  uint32_t registers_read_only; /**< 1: memory that cannot be pinned for writing can be registered
                                     for restores */
  char name[128];               /**< "NVIDIA H200"; "cpu" */
  char link[64];                /**< to the host, as "32.0 GT/s x16"; "unknown"; "none" of the CPU
                                     device */
  char driver[32];              /**< the newest CUDA that it knows, as "13.0"; "none" */
  char pin_fault[256];          /**< of the CPU device: why memory that it registers is not pinned;
                                     empty: it is */
} bh_gpu_info;

/** Describes a GPU. */
bh_status bh_gpu_get_info(bh_gpu* gpu, bh_gpu_info* out);

/** Waits until the work that is queued in a stream now is done.
 * @param gpu the GPU
 * @param stream a stream of it
 * @retval BH_INVALID_ARGUMENT the stream is of another GPU, or a graph is being recorded from it */
bh_status bh_gpu_synchronize(bh_gpu* gpu, void* stream);

/** Closes a GPU. NULL is allowed. */
void bh_gpu_close(bh_gpu* gpu);

/** @}
 * @name Registered memory
 * A GPU reads and writes host memory at full speed once it is registered: its pages are pinned,
 * which takes about a second for each GiB. Blocks in memory that is not registered, or not yet,
 * are moved all the same, through a pinned buffer.
 * @{ */

/** Memory of a pool or of the caller that is registered for GPUs, chunk by chunk. */
typedef struct bh_gpu_memory bh_gpu_memory;

/** Prepares a pool's memory for registration, and registers nothing yet: a chunk is registered in
 * the background when a job first needs it, or as bh_gpu_memory_ensure() and
 * bh_gpu_memory_register_rest() ask. One is enough for all GPUs of a process. Of a pool that can
 * grow, it is the payload on the media on which the pool was made: others may go.
 * @param gpu the GPU whose driver pins
 * @param pool the pool
 * @param chunk_bytes of memory that is registered at once, a multiple of 2 MiB; 0: 64 GiB
 * @param out for bh_gpu_memory_close()
 * @retval BH_INVALID_ARGUMENT chunk_bytes is not such a multiple */
bh_status bh_gpu_register_pool(bh_gpu* gpu, bh_pool* pool, uint64_t chunk_bytes,
                               bh_gpu_memory** out);

/** Registers memory of the caller, such as a paged cache for the CPU device. Waits until it is
 * registered.
 * @param gpu the GPU whose driver pins
 * @param data its first byte, 4 KiB-aligned; it stays mapped until it is closed
 * @param size_bytes its size, a multiple of 4 KiB
 * @param out for bh_gpu_memory_close()
 * @retval BH_MISALIGNED the address or the size is not such a multiple
 * @retval BH_INVALID_ARGUMENT some of it is not mapped, or is registered already
 * @retval BH_LIMIT_REACHED, BH_NOT_SUPPORTED as for bh_gpu_memory_ensure() */
bh_status bh_gpu_register_memory(bh_gpu* gpu, void* data, uint64_t size_bytes, bh_gpu_memory** out);

/** Waits until some of the memory is registered.
 * @param memory the memory
 * @param offset of the first byte
 * @param size_bytes number of bytes
 * @retval BH_INVALID_ARGUMENT the bytes are not all in the memory; or they are unmapped, or
 *     registered by another caller
 * @retval BH_LIMIT_REACHED the driver has no more room for it
 * @retval BH_NOT_SUPPORTED the driver does not register this kind of memory */
bh_status bh_gpu_memory_ensure(bh_gpu_memory* memory, uint64_t offset, uint64_t size_bytes);

/** Registers all of the memory in the background, in order, behind chunks that jobs need. Ends
 * early where the driver has no more room. Does not wait. */
bh_status bh_gpu_memory_register_rest(bh_gpu_memory* memory);

/** Lets chunks that were refused with BH_LIMIT_REACHED be tried again, after other memory was
 * unregistered. */
bh_status bh_gpu_memory_retry(bh_gpu_memory* memory);

/** How much of the memory is registered. */
typedef struct bh_gpu_memory_info {
  uint32_t struct_bytes;     /**< sizeof */
  uint32_t reserved;         /**< zero */
  uint64_t size_bytes;       /**< of the memory */
  uint64_t registered_bytes; /**< of that, now */
} bh_gpu_memory_info;

/** Reports how much of the memory is registered. To learn why some is not, use
 * bh_gpu_memory_ensure(). */
bh_status bh_gpu_memory_get_info(bh_gpu_memory* memory, bh_gpu_memory_info* out);

/** Unregisters memory, once all bh_gpu_transfers that use it are closed. Close memory of the caller
 * after the transfers of caches in it. NULL is allowed. */
void bh_gpu_memory_close(bh_gpu_memory* memory);

/** @}
 * @name Transfers
 * @{ */

/** K or V of one layer of a paged cache. Token t of a sequence whose block table is `pages` lies in
 * page pages[t / page_tokens], as its (t % page_tokens)-th. Pages, tokens and heads may be nested
 * in any order, and K and V, or all layers, may share their pages. */
typedef struct bh_gpu_part {
  void* base;                /**< the first row of page 0, in memory that the GPU reaches */
  size_t page_stride_bytes;  /**< from a page to the next */
  size_t token_stride_bytes; /**< from a token of a page to the next */
  size_t head_stride_bytes;  /**< from a head of a token to the next */
} bh_gpu_part;

/** An engine's paged cache in GPU memory. */
typedef struct bh_gpu_cache {
  uint32_t struct_bytes;    /**< sizeof */
  uint32_t page_tokens;     /**< tokens in a page, at least 1 */
  uint32_t pages;           /**< page numbers are below this, at least 1 */
  uint32_t reserved;        /**< zero */
  const bh_gpu_part* parts; /**< [layer][part], as the layout has them; read during the call */
  size_t part_count;        /**< layers * parts of the layout */
  bh_kv_layout layout;      /**< of a block: that of its namespace */
} bh_gpu_cache;

/** Settings of transfers. */
typedef struct bh_gpu_transfers_options {
  uint32_t struct_bytes;     /**< sizeof */
  uint32_t reserved;         /**< zero */
  uint64_t pinned_bytes_max; /**< pinned memory for jobs, apart from decoding; default 1 GiB */
} bh_gpu_transfers_options;

/** Transfers between a pool and a paged cache. */
typedef struct bh_gpu_transfers bh_gpu_transfers;

/** Opens transfers. For the first time on a machine it measures the costs of kernels and copies,
 * which takes some hundred milliseconds; they are kept in the user's cache folder.
 * @param pool the pool
 * @param gpu the GPU
 * @param memory the pool's memory, registered by any GPU of the process
 * @param cache the engine's cache, which stays where it is until the transfers are closed
 * @param options settings; NULL: the defaults
 * @param out the transfers, for bh_gpu_transfers_close()
 * @retval BH_INVALID_ARGUMENT no block can have the layout; the cache has no pages, other parts
 *     than the layout, or parts whose pages, tokens or heads overlap; or a part lies in memory that
 *     the GPU does not reach; or `memory` is not that of the pool
 * @retval BH_NOT_SUPPORTED the layout has opaque values, K and V of different lengths, or scales
 *     in the block; or a struct has a member set that this library does not know
 * @retval BH_NO_SPACE neither pinned memory nor memory of the GPU is left */
bh_status bh_gpu_transfers_open(bh_pool* pool, bh_gpu* gpu, bh_gpu_memory* memory,
                                const bh_gpu_cache* cache, const bh_gpu_transfers_options* options,
                                bh_gpu_transfers** out);

/** Blocks that were moved so far, by the way that they took. */
typedef struct bh_gpu_transfers_info {
  uint32_t struct_bytes;       /**< sizeof */
  uint32_t reserved;           /**< zero */
  uint64_t straight_blocks;    /**< BH_GPU_STAGING_NONE */
  uint64_t not_yet_blocks;     /**< BH_GPU_STAGING_NOT_YET */
  uint64_t not_reached_blocks; /**< BH_GPU_STAGING_NOT_REACHED */
  uint64_t no_lease_blocks;    /**< BH_GPU_STAGING_NO_LEASE */
  uint64_t compressed_blocks;  /**< BH_GPU_STAGING_COMPRESSED */
  char refusal[512];           /**< why the memory of the last block of BH_GPU_STAGING_NOT_REACHED
                                    is not registered; zero-terminated; empty: there was none */
  char costs_assumed[256];     /**< why the costs of kernels and copies could not be measured;
                                    zero-terminated; empty: they were */
} bh_gpu_transfers_info;

/** Reports what the transfers have done so far.
 * @param transfers the transfers
 * @param out the answer
 * @retval BH_CLOSED the pool was closed */
bh_status bh_gpu_transfers_get_info(bh_gpu_transfers* transfers, bh_gpu_transfers_info* out);

/** Cancels all jobs, waits until the GPU is through with them, and closes the transfers. NULL is
 * allowed. */
void bh_gpu_transfers_close(bh_gpu_transfers* transfers);

/** @}
 * @name Jobs
 * @{ */

/** A block of a job: tokens of a sequence, and the key of their value. Its pages belong to the job
 * until it is done: they are read by a spill and written by a restore. */
typedef struct bh_gpu_block {
  bh_key key;            /**< read during the call */
  const uint32_t* pages; /**< the block table of the sequence, from token 0 on; read during the
                              call */
  size_t page_count;     /**< entries of the table */
  uint32_t first_token;  /**< of the block, in the sequence */
  uint32_t tokens;       /**< in the block, at least 1 */
  const bh_put_options* options; /**< of a spill: what is stored with the value, read during the
                                      call; NULL: nothing. NULL in a restore */
} bh_gpu_block;

/** @name How bytes are moved
 * @{ */
#define BH_GPU_PATH_CHOOSE 0u /**< the one that is expected to be faster */
#define BH_GPU_PATH_KERNEL 1u /**< by a kernel */
#define BH_GPU_PATH_COPIES 2u /**< by the copy engines */
/** @} */

/** Settings of a job. */
typedef struct bh_gpu_job_options {
  uint32_t struct_bytes;   /**< sizeof */
  uint32_t path;           /**< BH_GPU_PATH_*; default: BH_GPU_PATH_CHOOSE */
  uint32_t urgent;         /**< 1: goes before jobs that are not */
  uint32_t layers_at_once; /**< not 0: a restore brings so many layers at a time, for
                                bh_gpu_job_wait_layer(); a spill waits until
                                bh_gpu_job_layer_ready() has named them. 0: all at once */
  uint32_t after_stream; /**< 1: the job waits for the work that is queued in `stream` now, such as
                                the kernels that write the pages of a spill */
  uint32_t reserved;     /**< zero */
  void* stream;          /**< with after_stream: a stream of the GPU; else NULL */
  uint64_t lease_ms;     /**< time limit of the leases of a restore, at most 600,000: longer than
                                the restore takes; default 30,000 */
  void* context;         /**< returned by bh_gpu_poll() */
} bh_gpu_job_options;

/** Blocks that are spilled or restored together. */
typedef struct bh_gpu_job bh_gpu_job;

/** Starts to store blocks under their keys. A block whose key is stored already is done, and
 * BH_OK.
 * @param transfers the transfers
 * @param ns namespace of the keys, with the layout of the cache
 * @param blocks the blocks
 * @param block_count number of blocks
 * @param options settings; NULL: the defaults
 * @param out the job, for bh_gpu_job_free()
 * @retval BH_INVALID_ARGUMENT a block has no tokens, is longer than 2 GiB, has tokens behind the
 *     end of its block table, or a page that the cache does not have; an option of the job or of a
 *     block is out of its range; the stream is of another GPU, or a graph is being recorded from it
 * @retval BH_LAYOUT_MISMATCH blocks of the namespace have another layout; bh_last_error() names
 *     the field
 * @retval BH_NAMESPACE_GONE the namespace was removed
 * @retval BH_NO_SPACE no memory is left for the job; other jobs may have it
 * @retval BH_NOT_SUPPORTED a struct has a member set that this library does not know
 * @retval BH_CLOSED the pool was closed */
bh_status bh_gpu_spill(bh_gpu_transfers* transfers, bh_namespace_id ns, const bh_gpu_block* blocks,
                       size_t block_count, const bh_gpu_job_options* options, bh_gpu_job** out);

/** Starts to fetch blocks into their pages.
 * @param transfers the transfers
 * @param ns namespace of the keys, with the layout of the cache
 * @param blocks the blocks
 * @param block_count number of blocks
 * @param options settings; NULL: the defaults
 * @param out the job, for bh_gpu_job_free()
 * @retval BH_INVALID_ARGUMENT, BH_LAYOUT_MISMATCH, BH_NAMESPACE_GONE, BH_NO_SPACE,
 *     BH_NOT_SUPPORTED, BH_CLOSED as for bh_gpu_spill() */
bh_status bh_gpu_restore(bh_gpu_transfers* transfers, bh_namespace_id ns,
                         const bh_gpu_block* blocks, size_t block_count,
                         const bh_gpu_job_options* options, bh_gpu_job** out);

/** Work that is queued in `stream` from here on waits until a layer has been restored. Does not
 * wait itself. For a job that is done it does nothing.
 * @param job a restore
 * @param layer below the layers of the layout
 * @param stream of the engine
 * @retval BH_INVALID_ARGUMENT there is no such layer, the job is a spill, the stream is of another
 *     GPU, or a graph is being recorded from it */
bh_status bh_gpu_job_wait_layer(bh_gpu_job* job, uint32_t layer, void* stream);

/** Reports that this layer and those before it are in the pages when the work that is queued in
 * `stream` now is done. They are stored then, as soon as they make up layers_at_once or are the
 * last. For a job that is done, and for layers that were reported before, it does nothing.
 * @param job a spill with layers_at_once
 * @param layer below the layers of the layout
 * @param stream of the engine
 * @retval BH_INVALID_ARGUMENT there is no such layer, the job does not wait for layers, the stream
 *     is of another GPU, or a graph is being recorded from it
 * @retval BH_NO_SPACE no memory is left for it: the job ends with that */
bh_status bh_gpu_job_layer_ready(bh_gpu_job* job, uint32_t layer, void* stream);

/** A job that is done. */
typedef struct bh_gpu_completion {
  bh_gpu_job* job; /**< still to be freed */
  void* context;   /**< as in bh_gpu_job_options */
  size_t failed;   /**< blocks whose status is not BH_OK */
} bh_gpu_completion;

/** Finishes jobs that the GPU is through with, and reports jobs that are done, each once, also if
 * bh_gpu_job_wait() has found it done before. Jobs on a lost GPU are done. Never waits.
 * @param transfers the transfers
 * @param out gets them
 * @param room number of elements of out
 * @param count number of jobs reported
 * @retval BH_CLOSED the pool was closed */
bh_status bh_gpu_poll(bh_gpu_transfers* transfers, bh_gpu_completion* out, size_t room,
                      size_t* count);

/** The transfers' eventfd: readable when there may be jobs to report, also when the GPU is lost.
 * bh_gpu_poll() clears it once it has reported them all. It may stay readable after the pool was
 * closed: do not wait for it once bh_gpu_poll() has returned BH_CLOSED. Wait with poll() or epoll;
 * do not read, write or close it. -1 if `transfers` is NULL. */
int bh_gpu_transfers_fd(const bh_gpu_transfers* transfers);

/** Waits until a job is done. A spill with layers_at_once is not done before its last layer was
 * reported.
 * @param job the job
 * @param timeout_ms the longest wait; 0: only looks
 * @retval BH_BUSY it was not done after that time; it continues */
bh_status bh_gpu_job_wait(bh_gpu_job* job, uint64_t timeout_ms);

/** Cancels a job that is not done: its blocks end with BH_CANCELLED, and the job is done once the
 * GPU is through with the work that was queued. Its pages are in use until then. For a job that is
 * done it does nothing. */
bh_status bh_gpu_job_cancel(bh_gpu_job* job);

/** @name Why a block went through a pinned buffer
 * @{ */
#define BH_GPU_STAGING_NONE 0u        /**< it did not; or it was not moved at all */
#define BH_GPU_STAGING_NOT_YET 1u     /**< its memory is being registered */
#define BH_GPU_STAGING_NOT_REACHED 2u /**< its memory cannot be registered */
#define BH_GPU_STAGING_NO_LEASE 3u    /**< its host died, or the lease table is full */
#define BH_GPU_STAGING_COMPRESSED 4u  /**< it is compressed */
/** @} */

/** The result of a block of a job. */
typedef struct bh_gpu_result {
  bh_status status; /**< see bh_gpu_job_results() */
  uint32_t staging; /**< BH_GPU_STAGING_* */
} bh_gpu_result;

/** The result of each block of a job that is done. A block's status is BH_OK or
 * - BH_CANCELLED: the job was cancelled;
 * - of a spill those of bh_reserve() and bh_commit(): nothing is stored;
 * - of a restore those of bh_acquire_stored() and bh_get(), and BH_BUFFER_TOO_SMALL or
 *   BH_INVALID_ARGUMENT: the value is longer or shorter than its tokens; BH_DAMAGED: its bytes do
 *   not match their checksum; BH_LAPSED: its lease ended before the last byte was read;
 * - BH_NO_SPACE: it needed pinned memory, and none was left;
 * - BH_GPU_LOST; BH_SYSTEM: the driver does not say whether the GPU is through with the job. Copies
 *   may still arrive in the pages until the process ends: do not use them again.
 * @param job the job
 * @param out gets them, in the order of the blocks
 * @param count number of blocks of the job
 * @retval BH_INVALID_ARGUMENT the job has another number of blocks
 * @retval BH_BUSY the job is not done: bh_gpu_poll() or bh_gpu_job_wait() comes first */
bh_status bh_gpu_job_results(bh_gpu_job* job, bh_gpu_result* out, size_t count);

/** Frees the handle of a job, which bh_gpu_poll() does not report any more. A job that is not done
 * is cancelled, and the call waits until the GPU is through with it, so that its pages are the
 * caller's again. NULL is allowed. */
void bh_gpu_job_free(bh_gpu_job* job);

/** @} */

#ifdef __cplusplus
}
#endif

#endif
