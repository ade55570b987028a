/* SPDX-License-Identifier: Apache-2.0 */
/* What a device and the processes that ask it share: queue pairs in the rings of a host
 * (BH_PART_RINGS), the words of commands and completions, and requests (docs/device.md).
 *
 * A pair is a channel (pool/core/channel.h): BH_DEVICE_QUEUE_BYTES that its process writes, with a
 * command in each line but the first, then as many that the device writes, with completions. */
#ifndef BOWHEAD_FORMAT_DEVICE_H
#define BOWHEAD_FORMAT_DEVICE_H

#include <bowhead/format/common.h>
#include <bowhead/format/tensor.h>

#define BH_DEVICE_PAIRS 8u          /* of a host */
#define BH_DEVICE_QUEUE_BYTES 4096u /* of the commands of a pair, and of its completions */

/* Opcodes. Append only. Those below 64 are operations, whose input is a request. */
enum {
  BH_DEVICE_SCORE = 1,
  BH_DEVICE_TOP_K = 2,
  BH_DEVICE_ATTEND = 3,
  BH_DEVICE_GATHER = 4,
  BH_DEVICE_DIGEST = 5,
  BH_DEVICE_NOTHING = 64, /* is completed at once */
  BH_DEVICE_ATTACH = 65, /* asks for an area for answers, of as many bytes as the command's room; an
                             area that the pair has already goes */
  BH_DEVICE_DETACH = 66, /* the device lets go of the area */
  BH_DEVICE_CANCEL = 67, /* the command of this pair whose id is in word 2 ends soon, if it has not:
                            with CANCELLED, or as it would */
  BH_DEVICE_MAILBOX = 68 /* a mailbox command: input and answer are a bh_device_mail, then the bytes
                            of its payload (docs/device-mailbox.md) */
};

/* The words of a command. The eighth is the tag of the channel.
 *   0  id: the completion has the same
 *   1  opcode, low 32 bits; high 32 bits: the session of the device's side of the channel that the
 *      command is sent to; every other session drops it
 *   2  offset of the input in the pool
 *   3  input bytes
 *   4  where the answer goes in the area of the pair, a multiple of 64
 *   5  room there
 *   6  deadline, in ms from when the device takes the command; 0: none */
enum {
  BH_COMMAND_ID = 0,
  BH_COMMAND_OPCODE = 1,
  BH_COMMAND_INPUT = 2,
  BH_COMMAND_INPUT_BYTES = 3,
  BH_COMMAND_ANSWER = 4,
  BH_COMMAND_ROOM = 5,
  BH_COMMAND_DEADLINE_MS = 6
};

/* The words of a completion.
 *   0  id
 *   1  status (bowhead/status.h), low 32 bits; number of blocks that were left out, high 32 bits
 *   2  bytes of the answer; of ATTACH the offset of the area in the pool
 *   3  XXH3-64 of the answer
 *   4  bytes of blocks that were read
 *   5  time that the device took, ns
 *   6  time that the modelled device takes, ns; 0: there is no model
 * CLOSED: the pair has no area, or has it no more (docs/device.md): nothing was done.
 * An answer has two parts (ndp/request.h), then the numbers of the blocks that were left out, as
 * uint32_t; each begins at a multiple of 64 bytes. After another status than OK it is a sentence.
 */
enum {
  BH_COMPLETION_ID = 0,
  BH_COMPLETION_STATUS = 1,
  BH_COMPLETION_BYTES = 2,
  BH_COMPLETION_SUM = 3,
  BH_COMPLETION_READ_BYTES = 4,
  BH_COMPLETION_TIME_NS = 5,
  BH_COMPLETION_MODELLED_NS = 6
};

/* A leased block. */
typedef struct bh_device_block {
  uint64_t offset; /* of its payload in the pool */
  uint64_t stamp;  /* of its header */
  uint32_t stored_bytes;
  uint32_t length_bytes; /* of the value */
  uint32_t first_token;  /* position in the sequence */
  uint8_t codec;         /* BH_CODEC_* */
  uint8_t reserved[3];   /* zero */
} bh_device_block;
BH_FORMAT_SIZE(bh_device_block, 32);

/* The positions that a query sees: from `begin` to before `end`, and the first `sinks`. */
typedef struct bh_device_view {
  uint32_t begin;
  uint32_t end;
  uint32_t sinks;
} bh_device_view;
BH_FORMAT_SIZE(bh_device_view, 12);

/* A mailbox command, or its reply. */
typedef struct bh_device_mail {
  uint16_t code;       /* the opcode; of a reply its return code */
  uint8_t reserved[6]; /* zero */
} bh_device_mail;
BH_FORMAT_SIZE(bh_device_mail, 8);

#define BH_DEVICE_SKIP 1u         /* blocks that cannot be read are left out */
#define BH_DEVICE_RECTIFY 2u      /* scores below 0 count as 0 in a sum */
#define BH_DEVICE_FEWEST_BYTES 4u /* of TOP_K */

/* A request. Behind it, each without a gap: bh_device_block x block_count, bh_device_view x
 * view_count, then float [head][query][channels of keys] (SCORE, TOP_K, ATTEND), float x
 * weight_count, uint32_t x token_count (GATHER). Members that the operation does not use are
 * zero. */
typedef struct bh_device_request {
  uint32_t request_bytes; /* with all that is behind it */
  uint8_t operation;      /* an opcode below 64 */
  uint8_t flags;          /* BH_DEVICE_SKIP, _RECTIFY, _FEWEST_BYTES */
  uint8_t reserved0[2];   /* zero */
  uint32_t layer;
  uint32_t first_head;
  uint32_t head_count;
  uint32_t block_count;
  uint32_t query_count;  /* for each head */
  uint32_t view_count;   /* 0: all see everything; 1: all see this; else one for each answer */
  uint32_t weight_count; /* [head][query], or none */
  uint32_t group;        /* queries of a sum */
  uint32_t k;            /* TOP_K */
  uint32_t part;         /* GATHER */
  uint32_t token_count;  /* GATHER: positions */
  uint32_t page_tokens;  /* DIGEST */
  uint32_t scale;        /* bits of a float */
  uint32_t soft_cap;     /* bits of a float */
  uint64_t token_budget; /* bits of a double: bytes for each visible token; TOP_K; 0: exactly */
  bh_kv_layout layout;   /* of the blocks */
  uint8_t reserved[56];  /* zero */
} bh_device_request;
BH_FORMAT_SIZE(bh_device_request, 192);
BH_FORMAT_OFFSET(bh_device_request, layer, 8);
BH_FORMAT_OFFSET(bh_device_request, token_budget, 64);
BH_FORMAT_OFFSET(bh_device_request, layout, 72);
BH_FORMAT_OFFSET(bh_device_request, reserved, 136);

#endif
