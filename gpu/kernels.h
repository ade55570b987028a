// SPDX-License-Identifier: Apache-2.0
// What kernels are told: plain structs of addresses and strides, the same for CUDA and for the CPU
// in its place. Everything that they point to has to be reachable for the device, and to stay until
// the kernel is done; parts, blocks and pages, which are read again and again, in its own memory if
// it has one. check() (check.h) says what is wrong with them.
//
// A payload is cut into the pieces of 4 KiB whose sums make its checksum (base/checksum.h): a piece
// is what a warp moves, and sums on the way.
#pragma once

#include <cstddef>
#include <cstdint>
#include <variant>

namespace bowhead::gpu {

inline constexpr uint32_t kPieceBytes = 4096;

/// In which order a payload holds the rows of a layer's K or V, layer after layer, K before V.
enum class PayloadOrder : uint32_t {
  HEADS_FIRST,  ///< all tokens of a head, then the next head: what ndp/ scores best
  TOKENS_FIRST  ///< all heads of a token, then the next token
};

/// K or V of one layer in an engine's paged cache: token t of a sequence is in page pages[t /
/// page_tokens], as its t % page_tokens-th. Any nesting of pages, tokens and heads is a matter of
/// strides, and so is whether K and V, or all layers, share their pages.
struct PagedPart {
  uint8_t* base = nullptr;
  size_t page_stride_bytes = 0, token_stride_bytes = 0, head_stride_bytes = 0;
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
  SUM_ONLY       ///< only summed, where the pages have it: what copy engines moved
};

/// From the pages to the payloads or back, of some layers.
struct MovePieces {
  const PagedPart* parts = nullptr;  ///< [layer][part], of all layers
  uint32_t layers = 0;
  uint32_t layer_parts = 2;  ///< K and V; latent attention has one
  uint32_t heads = 0, page_tokens = 0;
  uint32_t row_bytes = 0;   ///< of one token of one head
  uint32_t unit_bytes = 0;  ///< 16, 8, 4, 2 or 1: bases, strides and rows are multiples of it
  PayloadOrder order = PayloadOrder::HEADS_FIRST;
  MoveKind kind = MoveKind::FROM_PAYLOAD;

  const MoveBlock* blocks = nullptr;
  uint32_t block_count = 0;
  uint32_t most_tokens = 0;  ///< of a block

  /// Pieces that have bytes of a layer before these are done already, or wait for later ones: of
  /// those that share layers, a piece is moved back with the first of them, and else with the last.
  uint32_t first_layer = 0, some_layers = 0;
};

/// What a kernel is told, any of them.
using Work = std::variant<MovePieces>;

}  // namespace bowhead::gpu
