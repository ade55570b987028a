/* SPDX-License-Identifier: Apache-2.0 */
/* Shared by all format headers: static checks of the sizes and offsets of structs.
 *
 * All stored integers are little-endian and fixed-width; structs hold no padding, no pointers and
 * no bit-fields. "Offset" always means bytes from the start of the pool. */
#ifndef BOWHEAD_FORMAT_COMMON_H
#define BOWHEAD_FORMAT_COMMON_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
#define BH_STATIC_ASSERT(condition, text) static_assert(condition, text)
#else
#define BH_STATIC_ASSERT(condition, text) _Static_assert(condition, text)
#endif

/* A changed size or offset is a changed format: raise BH_FORMAT_VERSION and keep reading old pools.
 */
#define BH_FORMAT_SIZE(type, bytes) \
  BH_STATIC_ASSERT(sizeof(type) == (bytes), "format changed: raise BH_FORMAT_VERSION")
#define BH_FORMAT_OFFSET(type, member, bytes) \
  BH_STATIC_ASSERT(offsetof(type, member) == (bytes), "format changed: raise BH_FORMAT_VERSION")

#define BH_LINE_BYTES 64u             /* the unit of coherence: one writing host per line */
#define BH_PAYLOAD_ALIGN 4096u        /* every payload starts at a multiple of this */
#define BH_KEY_BYTES_MAX 512u         /* longest key */
#define BH_VALUE_BYTES_MAX (1u << 30) /* longest value */
#define BH_HOSTS_MAX 64u              /* stamps have 6 bits for the host slot */

#endif
