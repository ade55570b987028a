/* SPDX-License-Identifier: Apache-2.0 */
/** @file bowhead/bowhead_ndp.h
 * The C ABI of Bowhead for computations on leased blocks, where they lie in the pool: scores, the
 * best keys, attention, rows, and bounds of pages. Blocks may be compressed: the best keys are then
 * found from the first bits of most of them. Exported by libbowhead.so, like bowhead/bowhead.h,
 * whose rules on structs, outputs and memory hold here as well.
 *
 * @code{.c}
 * bh_prefix prefix = {.struct_bytes = sizeof prefix};
 * for (size_t i = 0; i < key_count; ++i) leases[i].struct_bytes = sizeof(bh_lease);
 * if (bh_acquire_prefix(pool, ns, keys, key_count, 1, 5000, leases, &prefix) != BH_OK)
 *   return fprintf(stderr, "%s\n", bh_last_error()), 1;
 * bh_ndp_request request = {.struct_bytes = sizeof request, .leases = leases,
 *                           .lease_count = prefix.blocks, .layer = 3, .first_head = 0,
 *                           .head_count = kv_heads, .queries = queries, .query_count = group};
 * bh_status status = bh_ndp_topk(pool, &request, 64, 0, hits, counts, NULL);
 * @endcode
 *
 * A request is about some heads of one layer and, for each of them, some queries; the layout of the
 * leased blocks must say so (bh_kv_layout), and be the same for all. The operations of a request
 * run in the calling thread, or on a device (bh_ndp_use_engine()), with the same answers. Positions
 * in a sequence are 32 bits.
 *
 * What is trusted. What is decoded of a compressed block is verified by checksums of the frame:
 * everything, but in bh_ndp_topk(), for blocks of 256 tokens or more, the first bits of numbers
 * only, or with a budget or BH_NDP_FEWEST_BYTES some of these (docs/ndp-topk.md). The first
 * bytes of all compressed blocks are verified, also of those that no query sees. An uncompressed
 * block is read as it lies.
 * When the operation is through, every lease is checked: an answer is given only if all blocks
 * stayed in place. After any other status than BH_OK the outputs are undefined.
 *
 * Numbers. Keys and values are bf16, fp16, fp8 or int8, times the scales that the block has for its
 * tokens or rows. A score is the sum of
 * products of a query and a key, times the scale; it is off by at most 2^-14 of the same sum of
 * their sizes, where for int8 each number of a query counts as its largest. That holds in the range
 * of floats: where these sums of sizes are below 2^120, before the scale and behind it (above,
 * scores may be infinite or NaN), and but for errors of 2^-110. NaN in a query or a key
 * makes the scores that it takes part in NaN; so does an infinity in a query for int8. Keys have up
 * to 1,024 channels.
 *
 * Statuses. Besides those that a function lists, any may return BH_INVALID_ARGUMENT (also: blocks
 * of unlike layouts, of other lengths than their layout allows or that hold the same position; a
 * layer, heads or a size that the blocks do not have), BH_FORKED and BH_SYSTEM, for the reasons in
 * bowhead/bowhead.h, and
 * - BH_LAPSED: a lease did not last; nothing of the answer is good. bh_ndp_request::states says
 *   which.
 * - BH_CLOSED: a lease has ended, or is of another handle, or the pool was destroyed
 * - BH_HOST_FENCED: the handle has left the pool, or the other hosts declared this one dead
 * - BH_NOT_SUPPORTED: opaque values, fp32, and scales that are not in the block or are those of
 *   channels
 * - BH_DAMAGED, BH_UNSUPPORTED_CODEC: a compressed block cannot be read, and the request does not
 *   say that it is to be left out. The text of the error names it by its number.
 * - BH_DEVICE_LOST, with BH_NDP_DEVICE only: the device does not answer
 * - BH_LIMIT_REACHED, likewise: the request or its answer does not fit the memory of the queue
 * - BH_READ_ONLY: the handle only observes
 * - BH_MEDIA_ERROR: as for all functions of the pool. */
#ifndef BOWHEAD_BOWHEAD_NDP_H
#define BOWHEAD_BOWHEAD_NDP_H

#include <bowhead/bowhead.h>

#ifdef __cplusplus
extern "C" {
#endif

/** @name Requests
 * @{ */

/** @name States of a block after an operation
 * @{ */
#define BH_NDP_READ 0u /**< it is in the answer */
/** A part of it that was wanted, or its first bytes, cannot be read: it is in no answer. Tokens
 * between two views may count as wanted. */
#define BH_NDP_LEFT_OUT 1u
#define BH_NDP_LAPSED 2u /**< its lease did not last */
/** @} */

/** A flag of a request: a block that cannot be read is left out, and is no error. */
#define BH_NDP_SKIP 1u
/** A flag of a request with weights: scores below 0 count as 0. */
#define BH_NDP_RECTIFY 2u
/** A flag of a request to bh_ndp_topk(): compressed blocks are read in small steps, only where it
 * helps, and not in one pass. Exactly, that reads fewer bytes for the queries of one view; within a
 * budget, it finds more of the best keys. It takes many times as long. Other operations take no
 * notice of it. */
#define BH_NDP_FEWEST_BYTES 4u

/** The positions that a query sees. Never grows. */
typedef struct bh_ndp_view {
  uint32_t begin; /**< none before it, but for the first ones */
  uint32_t end;   /**< none from here on; 0: the end of the last block */
  uint32_t sinks; /**< so many first positions, unless they are beyond the end */
} bh_ndp_view;

/** Blocks, heads and queries. Members of queries are not used by bh_ndp_gather() and
 * bh_ndp_digest(). */
typedef struct bh_ndp_request {
  uint32_t struct_bytes;        /**< sizeof */
  uint32_t layer;               /**< of the blocks, the first is 0 */
  uint32_t first_head;          /**< of the blocks, the first is 0 */
  uint32_t head_count;          /**< 1 or more */
  const bh_lease* leases;       /**< of bh_acquire_stored() or bh_acquire_prefix(), in any order;
                                     all have the struct_bytes of the first */
  uint64_t lease_count;         /**< 1 or more */
  const uint32_t* first_tokens; /**< position of each block's first token; NULL: one block begins
                                     where the one before it ends, the first at 0 */
  uint8_t* states;              /**< by lease: set to BH_NDP_READ, _LEFT_OUT or _LAPSED; may be
                                     NULL */
  const float* queries;         /**< [head][query][channels of keys] */
  uint32_t query_count;         /**< for each head, 1 to 1,024 */
  float scale;                  /**< of scores, finite and above 0; 0: 1 / sqrt(channels of
                                     keys) */
  const bh_ndp_view* views;     /**< of queries, in every head alike: they may be those of several
                                     positions; NULL: all see everything */
  uint32_t view_count;          /**< 1: all queries have the same; query_count: each has its own;
                                     0: `views` is NULL */
  float soft_cap;               /**< makes a score cap * tanh(score / cap); 0: none. It changes no
                                     order: bh_ndp_topk() finds the same keys, with their scores
                                     before it */
  const float* weights; /**< [head][query], finite: each `group` queries have one answer, the
                                     sum of weights times scores, as indexers of sparse attention
                                     choose tokens. For bh_ndp_topk() and bh_ndp_score(): where they
                                     have [query], they have query_count / group sums then, and so
                                     have views. Compressed blocks are decoded. NULL: no sums */
  uint32_t group;       /**< a divisor of query_count; 0: all queries of a head */
  uint32_t flags;       /**< BH_NDP_SKIP, BH_NDP_RECTIFY, BH_NDP_FEWEST_BYTES, or none: 0 */
} bh_ndp_request;

/** What an operation did. */
typedef struct bh_ndp_report {
  uint32_t struct_bytes; /**< sizeof */
  uint32_t left_out;     /**< blocks */
  uint64_t stored_bytes; /**< of the leased blocks together, with all of their layers */
  uint64_t read_bytes;   /**< bytes of them that were read, but for the first ones of blocks that no
                              query sees. What is read again counts again: when a block was left
                              out, of a compressed block what sinks and a window share, and by
                              bh_ndp_topk() what heads share, but in one pass with tokens first, for
                              as many heads of finite queries as have up to 2^20 tokens */
  uint32_t engine;       /**< that carried it out: BH_NDP_PROCESS or BH_NDP_DEVICE */
  uint32_t reserved;     /**< 0 */
  uint64_t engine_ns;    /**< time that this took, without the way there and back */
  uint64_t modelled_ns;  /**< time that it would take on the hardware that the device models; 0: it
                              models none */
} bh_ndp_report;

/** @}
 * @name Engines
 * @{ */

/** @name Kinds of engines
 * @{ */
#define BH_NDP_PROCESS 0u /**< the calling thread */
#define BH_NDP_DEVICE 1u  /**< the device of the pool (`bowhead device serve`) */
/** The device; and the calling thread for what the device cannot do, because it does not answer, or
 * the request does not fit its queue. */
#define BH_NDP_DEVICE_OR_PROCESS 2u
/** @} */

/** Where operations run. */
typedef struct bh_ndp_engine_options {
  uint32_t struct_bytes;  /**< sizeof */
  uint32_t engine;        /**< BH_NDP_PROCESS, BH_NDP_DEVICE or BH_NDP_DEVICE_OR_PROCESS */
  uint64_t request_bytes; /**< memory of the pool for requests that are under way; 0: 1 MiB. A
                               request has 192 bytes, 32 for each block, queries and positions */
  uint64_t answer_bytes;  /**< likewise for their answers; 0: 4 MiB */
  uint64_t timeout_ms;    /**< until a device that does not answer is lost; 0: 10,000 */
} bh_ndp_engine_options;

/** Chooses the engine of all operations of this handle, from now on. Several threads may have
 * operations on a device under way. A device takes one of eight queues of this host, until another
 * engine is chosen or the pool is closed. It need not run yet.
 * @param pool the pool
 * @param options NULL: BH_NDP_PROCESS
 * @retval BH_INVALID_ARGUMENT there is no such engine
 * @retval BH_LIMIT_REACHED all queues of this host are taken
 * @retval BH_NOT_SUPPORTED an earlier version created the pool
 * @retval BH_NO_SPACE the pool has no space for the memory of the queue */
bh_status bh_ndp_use_engine(bh_pool* pool, const bh_ndp_engine_options* options);

/** @}
 * @name Operations
 * @{ */

/** A key among the best. Never grows. */
typedef struct bh_ndp_hit {
  float score;    /**< of the key */
  uint32_t token; /**< its position */
} bh_ndp_hit;

/** The best keys of each query, by their scores; of equal ones the first comes first, and NaN last.
 * Scores of compressed blocks of 256 tokens or more are those of double precision, rounded once;
 * others are off as above, so that keys whose scores are nearer to each other may change places.
 * There are exceptions, with scores that are off as above: requests with weights; and, of blocks
 * whose tokens have their heads side by side (BH_ORDER_TOKENS_FIRST), those whose keys cannot be
 * searched head by head, because the channels of a head are no multiple of 8, or because a part of
 * the block has no first bits (it holds infinities or NaN, did not compress, or was stored by an
 * earlier version), and all of them for heads with a query that is not finite.
 * @param pool the pool
 * @param request blocks, heads and queries
 * @param k number of keys for each query, 1 to 2^20; at most 2^24 for all queries of all heads,
 *     each of which counts as 256 or more
 * @param budget_bytes 0: exact. Above: from about so many bytes for each visible token, where
 *     blocks are compressed and have 256 tokens or more; scores are estimates then. The queries of
 *     a head, and with tokens first those of heads that are read together, share what is read: as
 *     many first bits of all numbers as the budget allows. With BH_NDP_FEWEST_BYTES each has the
 *     budget for itself. It changes nothing in the exceptions above, in parts of any block that
 *     have no first bits, and for queries that are not finite
 * @param hits [head][query][k], the best first; behind those that were found undefined
 * @param counts [head][query]: the number that was found; k, or of all that are visible
 * @param report may be NULL
 * @retval BH_INVALID_ARGUMENT k or the budget is out of its range */
bh_status bh_ndp_topk(bh_pool* pool, const bh_ndp_request* request, uint32_t k, double budget_bytes,
                      bh_ndp_hit* hits, uint32_t* counts, bh_ndp_report* report);

/** Every score.
 * @param pool the pool
 * @param request blocks, heads and queries
 * @param scores [head][query][token]: the tokens of all blocks in the order of the leases; negative
 *     infinity for those that are not visible or left out
 * @param score_count room in `scores`: heads x queries x tokens
 * @param report may be NULL
 * @retval BH_INVALID_ARGUMENT `score_count` is another number */
bh_status bh_ndp_score(bh_pool* pool, const bh_ndp_request* request, float* scores,
                       size_t score_count, bh_ndp_report* report);

/** Attention to these blocks: values weighted by the softmax of the scores. Answers about parts of
 * a sequence, from several calls, machines or a GPU, are merged by their log-sum-exps: outputs o of
 * parts with log-sum-exps l give sum(exp(l - L) o), where L = log(sum(exp(l))).
 * @param pool the pool
 * @param request blocks, heads and queries
 * @param outputs [head][query][channels of values]; zeros where no token is visible
 * @param output_count room in `outputs`: heads x queries x channels
 * @param log_sum_exps [head][query], of the scores; negative infinity where no token is visible
 * @param report may be NULL
 * @retval BH_INVALID_ARGUMENT `output_count` is another number, or the blocks have no values */
bh_status bh_ndp_attend(bh_pool* pool, const bh_ndp_request* request, float* outputs,
                        size_t output_count, float* log_sum_exps, bh_ndp_report* report);

/** Rows of some tokens, as they were put, without scales.
 * @param pool the pool
 * @param request blocks and heads
 * @param part 0: keys; 1: values
 * @param tokens their positions, in any order, also more than once
 * @param token_count number of `tokens`
 * @param rows [head][token]; zeros where the block was left out
 * @param row_bytes room in `rows`: heads x tokens x the bytes of a row
 * @param report may be NULL
 * @retval BH_INVALID_ARGUMENT `row_bytes` is another number, no block has one of the tokens, or the
 *     blocks do not have the part */
bh_status bh_ndp_gather(bh_pool* pool, const bh_ndp_request* request, uint32_t part,
                        const uint32_t* tokens, size_t token_count, void* rows, size_t row_bytes,
                        bh_ndp_report* report);

/** The least and the largest number of each channel of keys in pages of so many tokens: they bound
 * every score in a page. Pages begin anew with each block, whose last page may be shorter.
 * @param pool the pool
 * @param request blocks and heads
 * @param page_tokens tokens of a page, 1 or more
 * @param least [head][page][channel], pages in the order of the leases; NaN where the block was
 *     left out
 * @param largest likewise
 * @param bound_count room in each of both: heads x pages x channels
 * @param report may be NULL
 * @retval BH_INVALID_ARGUMENT `page_tokens` is 0 or `bound_count` another number */
bh_status bh_ndp_digest(bh_pool* pool, const bh_ndp_request* request, uint32_t page_tokens,
                        float* least, float* largest, size_t bound_count, bh_ndp_report* report);

/** @} */

#ifdef __cplusplus
}
#endif

#endif
