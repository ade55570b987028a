/* SPDX-License-Identifier: Apache-2.0 */
/* The one description of a block's tensor: namespaces store it; the ABI, compression, near-data
 * operations and GPUs take it. Numbers are append-only. */
#ifndef BOWHEAD_FORMAT_TENSOR_H
#define BOWHEAD_FORMAT_TENSOR_H

#include <bowhead/format/common.h>

/* Number formats. */
enum {
  BH_NUMBER_BF16 = 1,
  BH_NUMBER_FP16 = 2,
  BH_NUMBER_FP8_E4M3 = 3,
  BH_NUMBER_FP8_E5M2 = 4,
  BH_NUMBER_INT8 = 5,
  BH_NUMBER_BYTES = 6, /* no numbers: an opaque value, never coded as planes */
  BH_NUMBER_FP32 = 7   /* never coded as planes */
};

/* The encoder's effort: a larger number takes more time and saves more bytes. */
enum { BH_PROFILE_NONE = 0, BH_PROFILE_FAST = 1, BH_PROFILE_BALANCED = 2, BH_PROFILE_DENSE = 3 };

/* The order of the rows of a layer's K or V. A row is one token of one head. */
enum {
  BH_ORDER_HEADS_FIRST = 0, /* [head][token]: all tokens of a head, then the next head */
  BH_ORDER_TOKENS_FIRST = 1 /* [token][head]: all heads of a token, then the next token */
};

/* The numbers that one scale applies to. They are to be multiplied by it. */
enum {
  BH_SCALES_NONE = 0,
  BH_SCALES_PER_TOKEN = 1,  /* [token] of each layer and part */
  BH_SCALES_PER_ROW = 2,    /* one for each token of each head, in the order of the rows */
  BH_SCALES_PER_CHANNEL = 3 /* [head][channel] of each layer and part */
};
enum {
  BH_SCALES_ELSEWHERE = 0,  /* not in the block */
  BH_SCALES_BEHIND_ROW = 1, /* each after its row; BH_SCALES_PER_ROW only */
  BH_SCALES_BEHIND_PART = 2 /* all scales of a layer's part, after its rows */
};

/* Pairs of channels that rotary position embedding turns together. */
enum {
  BH_ROTARY_NONE = 0,       /* none, or unknown */
  BH_ROTARY_HALVES = 1,     /* of those that rotate, c with c + rotary_channels / 2 */
  BH_ROTARY_INTERLEAVED = 2 /* of those that rotate, 2 c with 2 c + 1 */
};

/* The layout of the tensor in a block: layer after layer; in each layer its parts, K before V; in
 * each part its rows, in `order`; each row contiguous, little-endian. Blocks of a namespace may
 * have fewer tokens than block_tokens, and then are shorter. number_format = BH_NUMBER_BYTES and
 * all else zero: opaque values. */
typedef struct bh_kv_layout {
  uint8_t number_format; /* BH_NUMBER_* of keys and values */
  uint8_t order;         /* BH_ORDER_* */
  uint8_t parts;         /* 2: K and V. 1: keys only, of which the first value_channels are the
                            values, as of latent attention (MLA) */
  uint8_t scales;        /* BH_SCALES_* */
  uint8_t scale_format;  /* BH_NUMBER_* of a scale; 0 without scales */
  uint8_t scale_place;   /* BH_SCALES_ELSEWHERE, _BEHIND_ROW or _BEHIND_PART */
  uint8_t rotary;        /* BH_ROTARY_* of keys */
  uint8_t reserved0;
  uint16_t layers;                  /* in a block */
  uint16_t heads;                   /* KV heads in a block */
  uint16_t key_channels;            /* of a row of K */
  uint16_t value_channels;          /* of a row of V */
  uint32_t block_tokens;            /* of a full block; 0: unspecified */
  uint16_t rotary_first;            /* first channel of a key that is rotated */
  uint16_t rotary_channels;         /* number of rotated channels, even */
  uint64_t rotary_base_thousandths; /* of the base, such as 500,000,000: the first pair turns by 1
                                       radian a token, pair i by base^(-2 i / rotary_channels). Also
                                       where a model scales slow pairs (Llama 3, YaRN) */
  /* The block's share of the model, for tensor or pipeline parallel ranks: layers
   * first_layer to first_layer + layers - 1 of model_layers, heads likewise. 0 in all: all. */
  uint16_t first_layer;
  uint16_t model_layers;
  uint16_t first_head;
  uint16_t model_heads;
  uint8_t reserved[24]; /* zero */
} bh_kv_layout;
BH_FORMAT_SIZE(bh_kv_layout, 64);
BH_FORMAT_OFFSET(bh_kv_layout, layers, 8);
BH_FORMAT_OFFSET(bh_kv_layout, block_tokens, 16);
BH_FORMAT_OFFSET(bh_kv_layout, rotary_base_thousandths, 24);
BH_FORMAT_OFFSET(bh_kv_layout, first_layer, 32);
BH_FORMAT_OFFSET(bh_kv_layout, reserved, 40);

#endif
