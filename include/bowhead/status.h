/* SPDX-License-Identifier: Apache-2.0 */
/* Every status that Bowhead can return: one number, one name, one sentence for people.
 *
 * Numbers are part of the ABI: append only, never reuse. C and C++ share this list; the C++ enum
 * bowhead::Status (base/status.h) and bh_status_text() are generated from it. */
#ifndef BOWHEAD_STATUS_H
#define BOWHEAD_STATUS_H

/* X(number, NAME, "sentence") */
#define BH_STATUS_LIST(X)                                                                         \
  X(0, OK, "the operation succeeded")                                                             \
  X(1, NOT_FOUND, "no block is stored under this key")                                            \
  X(2, NO_SPACE, "the pool has no room for this block; committed blocks are intact")              \
  X(3, INVALID_ARGUMENT, "an argument is outside its allowed range")                              \
  X(4, KEY_TOO_LONG, "the key is empty or longer than 512 bytes")                                 \
  X(5, VALUE_TOO_LARGE, "the value is empty or larger than the pool can hold in one block")       \
  X(6, BUFFER_TOO_SMALL, "the buffers given are smaller than the stored value")                   \
  X(7, LAPSED, "the lease ended before its release; discard what was computed from it")           \
  X(8, BUSY, "another process holds what this needs and has not let go in time; try again")       \
  X(9, FORKED, "this handle was opened before fork(); open the pool again in the child")          \
  X(10, NO_SUCH_POOL, "nothing exists at this locator")                                           \
  X(11, NOT_A_POOL, "what lies at this locator is not a Bowhead pool")                            \
  X(12, POOL_EXISTS, "a pool exists at this locator already; --force replaces it")                \
  X(13, TOO_SMALL, "the size is too small for a pool")                                            \
  X(14, MISALIGNED, "a size or an offset is not aligned as it must be")                           \
  X(15, VERSION_UNKNOWN, "the pool was written by a newer version; upgrade Bowhead to open it")   \
  X(16, DAMAGED, "stored bytes do not match their checksum")                                      \
  X(17, NAMESPACE_MISMATCH, "a namespace of this name or fingerprint has another description")    \
  X(18, LIMIT_REACHED, "a table or counter of fixed size is used up")                             \
  X(19, HOST_ID_IN_USE, "another machine uses this host id, or did and has not left")             \
  X(20, HOST_FENCED, "the host left, or was declared dead by others; open the pool again")        \
  X(21, HOST_ID_CONFLICT, "two machines run with one host id")                                    \
  X(22, NOT_SUPPORTED, "this build or this medium cannot do that")                                \
  X(23, SYSTEM, "the operating system refused")                                                   \
  X(24, BAD_LOCATOR, "the locator is malformed")                                                  \
  X(25, BAD_TRACE, "the trace is malformed")                                                      \
  X(26, IN_USE, "processes have this pool open")                                                  \
  X(27, CLOSED, "this handle, lease or reservation was ended already")                            \
  X(28, UNSUPPORTED_CODEC, "the block uses a codec that this build does not know")                \
  X(29, COPY_ONLY, "the block is in custody for a host that died: get() copies it, no lease")     \
  X(30, GPU_LOST, "the GPU or its driver does not answer any more; the pool is intact")           \
  X(31, CANCELLED, "the request was cancelled before it was done")                                \
  X(32, CODED, "the block is compressed: get() decodes it; it cannot be leased")                  \
  X(33, INDEX_FULL, "the index has no room for this key; remove blocks, or make a larger pool")   \
  X(34, MEDIA_ERROR, "the medium of the pool failed; close the pool, mend it, and open it again") \
  X(35, READ_ONLY, "this handle only looks at the pool; open it as a host to store")              \
  X(36, MEDIUM_FULL, "the medium has no room for a pool of this size")                            \
  X(37, LAYOUT_MISMATCH, "the blocks of this namespace hold tensors of another layout")

typedef enum bh_status {
#define BH_STATUS_ENUM(number, name, text) BH_##name = number,
  BH_STATUS_LIST(BH_STATUS_ENUM)
#undef BH_STATUS_ENUM
} bh_status;

#endif
