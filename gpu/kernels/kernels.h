// SPDX-License-Identifier: Apache-2.0
// Descriptors of kernels: plain structs of addresses and strides, the same for CUDA and for the CPU
// in its place. The device must reach all that they point to, which must stay until the kernel is
// done; parts, blocks and pages, which are read again and again, lie in its own memory if it has
// one. check() (check.h) finds their faults.
//
// A payload is divided into the pieces of 4 KiB whose sums make its checksum (base/checksum.h): a
// warp moves a piece at a time, and sums it on the way.
#pragma once

#include <cstddef>
#include <cstdint>
#include <variant>

#include "base/kv_layout.h"
#include "compression/centre.h"
#include "compression/number.h"

namespace bowhead::gpu {

inline constexpr uint32_t kPieceBytes = 4096;

/// K or V of one layer in an engine's paged cache: token t of a sequence is in page pages[t /
/// page_tokens], as its t % page_tokens-th. Any nesting of pages, tokens and heads is a matter of
/// strides, and so is whether K and V, or all layers, share their pages.
struct PagedPart {
  uint8_t* base = nullptr;
  size_t page_stride_bytes = 0, token_stride_bytes = 0, head_stride_bytes = 0;
};

/// Some layers of such a cache, and the order of rows that blocks have.
struct PagedLayers {
  const PagedPart* parts = nullptr;  ///< [layer][part], of all layers
  uint32_t layers = 0;
  uint32_t layer_parts = 2;  ///< K and V; latent attention has one
  uint32_t heads = 0, page_tokens = 0;
  uint32_t row_bytes = 0;   ///< of one token of one head
  uint32_t unit_bytes = 0;  ///< 16, 8, 4, 2 or 1: bases, strides and rows are multiples of it
  RowOrder order = RowOrder::HEADS_FIRST;
  uint32_t first_layer = 0, some_layers = 0;
};

/// Tokens of one sequence, and the payload that has them.
struct MoveBlock {
  uint8_t* payload = nullptr;  ///< a multiple of 16, and up to 2 GiB long
  uint64_t* sums = nullptr;    ///< by piece; of a last piece that is shorter nothing is written
  const uint32_t* pages = nullptr;  ///< of the sequence, from its first token on
  uint32_t first_token = 0, tokens = 0;
};

enum class MoveKind : uint32_t {
  TO_PAYLOAD,    ///< from the pages
  FROM_PAYLOAD,  ///< to the pages
  SUM_ONLY       ///< only summed, in the pages, where copy engines moved them
};

/// From the pages to the payloads or back. Pieces that have bytes of a layer before `first_layer`
/// are done already, or wait for later ones: a piece that several layers share is moved back with
/// the first of them, and else with the last.
struct MovePieces : PagedLayers {
  MoveKind kind = MoveKind::FROM_PAYLOAD;

  const MoveBlock* blocks = nullptr;
  uint32_t block_count = 0;
  uint32_t most_tokens = 0;  ///< of a block
};

/// The same of few blocks, whose descriptions and pages go with the kernel's arguments, which a
/// driver takes by value: nothing has to be copied to the device before the kernel.
struct MoveFewPieces {
  static constexpr uint32_t kMostBlocks = 16, kMostPages = 768;

  MovePieces pieces;                       ///< its `blocks` is not read
  MoveBlock blocks[kMostBlocks];           ///< the first block_count; their `pages` are not read
  uint32_t first_pages[kMostBlocks] = {};  ///< of each block, in `pages`
  uint32_t pages[kMostPages] = {};
};
// With one more number they have the size that every driver takes as arguments.
static_assert(sizeof(MoveFewPieces) + sizeof(uint64_t) <= 4096);

/// A span of a sequence in all layers and heads, in a block of the pool or in a page of a cache:
/// the key of `layer`, `head` and `token` is at keys + layer * layer_stride_bytes + ..., and its
/// value as far from `values`.
struct AttendSpan {
  const uint8_t* keys = nullptr;
  const uint8_t* values = nullptr;  ///< latent attention: equal to `keys`
  size_t layer_stride_bytes = 0, token_stride_bytes = 0, head_stride_bytes = 0;
  uint32_t tokens = 0;
};

/// Consecutive tokens in the spans from `first_span` on: a warp attends to them for each head, and
/// answers with a partial.
struct AttendSplit {
  uint32_t sequence = 0;     ///< of the queries
  uint32_t first_span = 0;   ///< may have tokens before the split's first,
  uint32_t first_token = 0;  ///< so many
  uint32_t tokens = 0;       ///< at least one; the spans have that many from first_token on
};

/// Attention of one query in each head to the tokens of its sequence, by splits, which
/// MergePartials merges. Query heads in a row share a head of keys and values: each byte of these
/// is read once, unless they are more than AttendShape::heads (attend.h).
struct Attend {
  const uint8_t* queries = nullptr;  ///< [sequence][query head][key channel]
  size_t query_stride_bytes = 0, query_head_stride_bytes = 0;
  uint32_t sequences = 0;
  const AttendSpan* spans = nullptr;
  const AttendSplit* splits = nullptr;
  uint32_t span_count = 0, split_count = 0;
  uint32_t layer = 0;
  uint32_t heads = 0;                             ///< of keys and values
  uint32_t queries_per_head = 0;                  ///< that share one of these
  uint32_t key_channels = 0, value_channels = 0;  ///< multiples of 8; addresses are of 16 bytes
  NumberFormat number = NumberFormat::BF16;       ///< of queries, keys and values: BF16 or FP16
  float scale = 0;                                ///< of scores, in general 1 / sqrt(key_channels)

  float* outputs = nullptr;       ///< [split][query head][value channel]
  float* log_sum_exps = nullptr;  ///< [split][query head]: of the scores, base e
};

/// Partials: outputs and log-sum-exps of attention to some tokens, computed by Attend, by an engine
/// or by ndp/. Negative infinity: of no token, and its outputs are not read.
struct MergeSource {
  const float* outputs = nullptr;       ///< [partial][head][channel]
  const float* log_sum_exps = nullptr;  ///< [partial][head]
  /// [sequence], and one more: partials of a sequence are those from its number here to before the
  /// next one's. Null: one partial of each.
  const uint32_t* first_partials = nullptr;
};

/// Attention to all of the partials' tokens. Without any: zeros, and negative infinity.
struct MergePartials {
  static constexpr uint32_t kMostSources = 4;

  MergeSource sources[kMostSources];
  uint32_t source_count = 0;
  uint32_t sequences = 0, heads = 0, channels = 0;  ///< channels: a multiple of 4
  NumberFormat number = NumberFormat::FP32;         ///< of the outputs
  void* outputs = nullptr;                          ///< [sequence][head][channel]
  float* log_sum_exps = nullptr;                    ///< [sequence][head]; null: not wanted
};

/// Chosen tokens of a sequence, by their positions in it, as a selection on the device stores them:
/// list by list, of a layer's head, or of all heads of a layer, or of all layers.
struct TokenLists {
  /// The first token of the first list, a uint32_t like all; for lists of ndp::Hit, its member.
  const uint8_t* tokens = nullptr;
  uint32_t token_stride_bytes = sizeof(uint32_t);
  size_t list_stride_bytes = 0;
  /// Lists from one layer's, or head's, to the next one's; 0: all share.
  uint32_t layer_lists = 0, head_lists = 0;
  const uint32_t* counts = nullptr;  ///< by list; null: all have most_tokens
  uint32_t most_tokens = 0;          ///< of a list: entries behind are not read
};

/// Rows of chosen tokens from the payloads of a sequence's blocks to a paged cache. The i-th of a
/// head's list goes where a sequence of the cache has its i-th token; of an area that is
/// [head][token], one page holds all. Lists may have any number in them: the row of a token that no
/// block has is stored as zeros, and counted.
struct FetchTokens : PagedLayers {
  /// By block, multiples of 16; null: an absent block. All have as many tokens, but the last, which
  /// has the rest: so that one division finds a token.
  const uint8_t* const* payloads = nullptr;
  uint32_t tokens = 0, block_tokens = 0;

  const uint32_t* pages = nullptr;
  TokenLists lists;            ///< from first_layer on
  uint32_t* absent = nullptr;  ///< grows by one for each token that no block has, by layer and head
};

/// A tile in planes (docs/frame.md). Its streams are decoded, and lie in RebuildTiles::bytes at
/// these offsets.
struct RebuildTile {
  static constexpr uint32_t kAllZero = UINT32_MAX;

  uint32_t planes[compression::kMaxPlanes] = {};  ///< the first plane_count, or kAllZero
  uint32_t remainder = 0, remainder_bytes = 0;    ///< if exact, as are
  uint32_t exceptions = 0, exception_bytes = 0;
  uint32_t parameters = 0;  ///< exponents and amplitudes, as the tile's header has them
  uint8_t exponent_base = 0, exponent_width = 0, centre_width = 0, centre_shift = 0;
  bool centre_turns = false;
  uint32_t tokens = 0;
  uint8_t* values = nullptr;  ///< a multiple of an element's bytes
};

/// Tiles to values; to any values for tiles that are not valid, or whose remainder or exceptions
/// have a wrong length. Reads nothing but `bytes` and its slack.
struct RebuildTiles {
  static constexpr uint32_t kSlackBytes = 16;  ///< that can be read behind `bytes`

  NumberFormat number = NumberFormat::BF16;
  uint32_t channels = 0;
  uint32_t plane_count = 0;       ///< of each value, from the first on
  bool exact = false;             ///< all planes, remainder and exceptions; else the middle
  uint32_t turning_channels = 0;  ///< of a head whose centre turns; 0: none does
  const compression::Turn* turns = nullptr;  ///< by pair of a head

  const uint8_t* bytes = nullptr;  ///< a multiple of 4, as is its size
  uint64_t size_bytes = 0;         ///< below 4 GiB
  /// rebuild_scratch_bytes() (rebuild_tiles.h), a multiple of 16. Undefined before and after.
  uint8_t* scratch = nullptr;

  const RebuildTile* tiles = nullptr;
  uint32_t tile_count = 0;
  uint32_t* faults = nullptr;  ///< by tile: 1 if a length was seen to be wrong, else 0
};

/// LZ4 blocks to their plain bytes, by a library, where DeviceInfo::decodes_lz4 says that there is
/// one. Whatever the blocks hold, it reads only `from` and writes only `to`.
struct DecodeLz4 {
  const uint8_t* const* from = nullptr;  ///< by stream, as are all arrays
  const size_t* from_bytes = nullptr;    ///< 1 to 2 GiB - 1, as is the next
  uint8_t* const* to = nullptr;          ///< no two overlap
  const size_t* to_bytes = nullptr;
  uint32_t stream_count = 0;
  /// For a stream whose plain bytes fit `to`: their number, and fault 0. For any other: undefined,
  /// and a fault that is not 0; its `to` is undefined as well.
  size_t* decoded_bytes = nullptr;
  uint32_t* faults = nullptr;
};

/// The descriptor of any kernel.
using Work = std::variant<MovePieces, MoveFewPieces, FetchTokens, Attend, MergePartials,
                          RebuildTiles, DecodeLz4>;

}  // namespace bowhead::gpu
