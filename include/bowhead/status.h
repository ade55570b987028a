/* SPDX-License-Identifier: Apache-2.0 */
/* Every status that Bowhead can return: one number, one name, one sentence.
 *
 * Numbers are part of the ABI: append only, never reuse. C and C++ share this list; the C++ enum
 * bowhead::Status (base/status.h) and bh_status_text() are generated from it. */
#ifndef BOWHEAD_STATUS_H
#define BOWHEAD_STATUS_H

/* X(number, NAME, "sentence") */
#define BH_STATUS_LIST(X)                                                                          \
  X(0, OK, "the operation succeeded")                                                              \
  X(1, NOT_FOUND, "no block is stored under this key")                                             \
  X(2, NO_SPACE, "this host has no space for this block; committed blocks are intact")             \
  X(3, INVALID_ARGUMENT, "an argument is outside its allowed range")                               \
  X(4, KEY_TOO_LONG, "the key is empty or longer than 512 bytes")                                  \
  X(5, VALUE_TOO_LARGE, "the value is empty or larger than the pool can hold in one block")        \
  X(6, BUFFER_TOO_SMALL, "the buffers given are smaller than the stored value")                    \
  X(7, LAPSED, "the lease ended before its release; discard what was computed from it")            \
  X(8, BUSY, "another process held a needed resource for too long; try again")                     \
  X(9, FORKED, "this handle was opened before fork(); open the pool again in the child")           \
  X(10, NO_SUCH_POOL, "nothing exists at this locator")                                            \
  X(11, NOT_A_POOL, "what exists at this locator is not a Bowhead pool")                           \
  X(12, POOL_EXISTS, "a pool already exists at this locator; --force replaces it")                 \
  X(13, TOO_SMALL, "the size is too small for a pool")                                             \
  X(14, MISALIGNED, "a size or an offset is misaligned")                                           \
  X(15, VERSION_UNKNOWN, "the pool was written by a newer version; upgrade Bowhead to open it")    \
  X(16, DAMAGED, "stored bytes do not match their checksum")                                       \
  X(17, NAMESPACE_MISMATCH, "a namespace of this name or fingerprint has another description")     \
  X(18, LIMIT_REACHED, "a table of fixed size is full, or a counter is used up")                   \
  X(19, HOST_ID_IN_USE, "another machine uses this host id, or used it and did not leave")         \
  X(20, HOST_FENCED, "the host left, or was declared dead; open the pool again")                   \
  X(21, HOST_ID_CONFLICT, "two machines use one host id")                                          \
  X(22, NOT_SUPPORTED, "this build or this medium cannot do that")                                 \
  X(23, SYSTEM, "the operating system refused")                                                    \
  X(24, BAD_LOCATOR, "the locator is malformed")                                                   \
  X(25, BAD_TRACE, "the trace is malformed")                                                       \
  X(26, IN_USE, "processes have this pool open")                                                   \
  X(27, CLOSED, "the pool was destroyed or replaced, or this handle, lease or reservation ended")  \
  X(28, UNSUPPORTED_CODEC, "the block uses a codec that this build does not know")                 \
  X(29, COPY_ONLY, "the block's host died: get() copies the block, but it cannot be leased")       \
  X(30, GPU_LOST, "the GPU or its driver no longer answers; the pool is intact")                   \
  X(31, CANCELLED, "the request was cancelled before it was done")                                 \
  X(32, CODED, "the block is compressed: get() decodes it; it cannot be leased")                   \
  X(33, INDEX_FULL, "the index has no space for this key; remove blocks, or create a larger pool") \
  X(34, MEDIA_ERROR, "the pool's medium failed; close the pool, repair the medium, open it again") \
  X(35, READ_ONLY, "this handle is an observer; open the pool as a host to store")                 \
  X(36, MEDIUM_FULL, "the medium has no space for a pool of this size")                            \
  X(37, LAYOUT_MISMATCH, "the blocks of this namespace hold tensors of another layout")            \
  X(38, NAMESPACE_GONE, "the namespace was removed; open it again to use its name")                \
  X(39, DEVICE_LOST, "the device no longer answers; the pool is intact")                           \
  X(40, TIMED_OUT, "the request took longer than its time limit")

typedef enum bh_status {
#define BH_STATUS_ENUM(number, name, text) BH_##name = number,
  BH_STATUS_LIST(BH_STATUS_ENUM)
#undef BH_STATUS_ENUM
} bh_status;

#endif
