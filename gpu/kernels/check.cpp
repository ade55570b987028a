// SPDX-License-Identifier: Apache-2.0
#include "gpu/kernels/check.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <limits>
#include <utility>

#include "gpu/kernels/fetch_tokens.h"
#include "gpu/kernels/move_pieces.h"

namespace bowhead::gpu {
namespace {

template <class... Args>
Error wrong(fmt::format_string<Args...> format, Args&&... args) {
  return Error{Status::INVALID_ARGUMENT, fmt::format(format, std::forward<Args>(args)...)};
}

// Kernels count in 32 bits: tokens of a sequence, and, with a step beyond the last, bytes of a
// payload and slots.
constexpr uint32_t kMostTokens = std::numeric_limits<uint32_t>::max();
constexpr uint64_t kMost = uint64_t{1} << 31;

Result<void> check_layers(const PagedLayers& work) {
  if (work.first_layer > work.layers || work.some_layers > work.layers - work.first_layer) {
    return wrong("layers {} to {} of {}", work.first_layer,
                 uint64_t{work.first_layer} + work.some_layers, work.layers);
  }
  return {};
}

Result<void> check_shape(const PagedLayers& work) {
  if (work.layers == 0) return wrong("layers is 0");
  if (work.layer_parts != 1 && work.layer_parts != 2) {
    return wrong("layer_parts is {}: K and V make 2, latent attention has 1", work.layer_parts);
  }
  if (work.heads == 0) return wrong("heads is 0: latent attention has 1");
  if (work.page_tokens == 0) return wrong("page_tokens is 0");
  if (work.row_bytes == 0) return wrong("row_bytes is 0");
  if (work.order != RowOrder::HEADS_FIRST && work.order != RowOrder::TOKENS_FIRST) {
    return wrong("order {} is unknown", static_cast<uint32_t>(work.order));
  }
  return check_layers(work);
}

Result<void> check_units(const PagedLayers& work) {
  const uint32_t unit = work.unit_bytes;
  if (unit != 16 && unit != 8 && unit != 4 && unit != 2 && unit != 1) {
    return wrong("unit_bytes is {}: 16, 8, 4, 2 or 1", unit);
  }
  if (work.row_bytes % unit != 0) {
    return wrong("row_bytes is {}, no multiple of unit_bytes {}", work.row_bytes, unit);
  }
  if (work.parts == nullptr) return wrong("parts is null");
  for (uint64_t i = 0; i < uint64_t{work.layers} * work.layer_parts; ++i) {
    const PagedPart& part = work.parts[i];
    const auto fault = [&](const char* name, uint64_t value) {
      return wrong("{} of part {} of layer {} is {:#x}, no multiple of unit_bytes {}", name,
                   i % work.layer_parts, i / work.layer_parts, value, unit);
    };
    const auto base = reinterpret_cast<uintptr_t>(part.base);
    if (base == 0) {
      return wrong("base of part {} of layer {} is null", i % work.layer_parts,
                   i / work.layer_parts);
    }
    if (base % unit != 0) return fault("base", base);
    if (part.page_stride_bytes % unit != 0) {
      return fault("page_stride_bytes", part.page_stride_bytes);
    }
    if (part.token_stride_bytes % unit != 0) {
      return fault("token_stride_bytes", part.token_stride_bytes);
    }
    if (part.head_stride_bytes % unit != 0) {
      return fault("head_stride_bytes", part.head_stride_bytes);
    }
  }
  return {};
}

/// Of so many tokens.
Result<void> check_length(const PagedLayers& work, uint32_t tokens) {
  // One factor after the other: no product of two 32-bit numbers passes 64 bits.
  uint64_t bytes = tokens;
  for (const uint32_t factor : {work.row_bytes, work.heads, work.layer_parts, work.layers}) {
    bytes *= factor;
    if (bytes > kMost) {
      return wrong(
          "{} tokens of {} layers, {} parts, {} heads, {} bytes make a payload of more than 2 GiB",
          tokens, work.layers, work.layer_parts, work.heads, work.row_bytes);
    }
  }
  return {};
}

Result<void> check_block(const MovePieces& work, uint32_t index) {
  const MoveBlock& block = work.blocks[index];
  if (block.tokens == 0) return wrong("block {} has 0 tokens", index);
  if (block.tokens > work.most_tokens) {
    return wrong("block {} has {} tokens, more than most_tokens {}", index, block.tokens,
                 work.most_tokens);
  }
  if (block.tokens > kMostTokens - block.first_token) {
    return wrong("block {}: tokens {} and on, {} of them, do not fit 32 bits", index,
                 block.first_token, block.tokens);
  }
  if (reinterpret_cast<uintptr_t>(block.payload) % 16 != 0) {
    return wrong("payload of block {} is at {:#x}, no multiple of 16", index,
                 reinterpret_cast<uintptr_t>(block.payload));
  }
  if (block.payload == nullptr) return wrong("payload of block {} is null", index);
  if (block.sums == nullptr) return wrong("sums of block {} is null", index);
  if (block.pages == nullptr) return wrong("pages of block {} is null", index);
  return {};
}

}  // namespace

Result<void> check(const MovePieces& work) {
  if (work.kind > MoveKind::SUM_ONLY) {
    return wrong("kind {} is unknown", static_cast<uint32_t>(work.kind));
  }
  if (Result<void> shape = check_shape(work); !shape) return shape;
  if (Result<void> units = check_units(work); !units) return units;
  if (Result<void> length = check_length(work, work.most_tokens); !length) return length;
  if (uint64_t{work.block_count} * slots_per_block(work) > kMost) {
    return wrong("{} blocks of {} tokens are more than one launch can move", work.block_count,
                 work.most_tokens);
  }
  if (work.blocks == nullptr && work.block_count != 0) return wrong("blocks is null");
  for (uint32_t i = 0; i < work.block_count; ++i) {
    if (Result<void> block = check_block(work, i); !block) return block;
  }
  return {};
}

Result<void> check(const MoveFewPieces& work) {
  MovePieces pieces = work.pieces;
  if (pieces.block_count > MoveFewPieces::kMostBlocks) {
    return wrong("{} blocks, while a kernel's arguments hold {}", pieces.block_count,
                 MoveFewPieces::kMostBlocks);
  }
  auto blocks = std::to_array(work.blocks);
  for (uint32_t i = 0; i < pieces.block_count; ++i) {
    blocks[i].pages = work.pages + std::min(work.first_pages[i], MoveFewPieces::kMostPages);
  }
  pieces.blocks = blocks.data();
  if (Result<void> good = check(pieces); !good) return good;
  for (uint32_t i = 0; i < pieces.block_count; ++i) {
    const uint32_t pages = (blocks[i].first_token + blocks[i].tokens - 1) / pieces.page_tokens + 1;
    if (uint64_t{work.first_pages[i]} + pages <= MoveFewPieces::kMostPages) continue;
    return wrong("block {} has {} pages from {} on, while a kernel's arguments hold {}", i, pages,
                 work.first_pages[i], MoveFewPieces::kMostPages);
  }
  return {};
}

// ---- FetchTokens ----

Result<void> check_lists(const FetchTokens& work) {
  if (Result<void> layers = check_layers(work); !layers) return layers;
  const TokenLists& lists = work.lists;
  if (lists.tokens == nullptr) return wrong("tokens of lists is null");
  const auto fault = [&](const char* name, uint64_t value) {
    return wrong("{} of lists is {:#x}, no multiple of 4", name, value);
  };
  const auto tokens = reinterpret_cast<uintptr_t>(lists.tokens);
  const auto counts = reinterpret_cast<uintptr_t>(lists.counts);
  if (tokens % sizeof(uint32_t) != 0) return fault("tokens", tokens);
  if (lists.token_stride_bytes == 0) return wrong("token_stride_bytes of lists is 0");
  if (lists.token_stride_bytes % sizeof(uint32_t) != 0) {
    return fault("token_stride_bytes", lists.token_stride_bytes);
  }
  if (lists.list_stride_bytes % sizeof(uint32_t) != 0) {
    return fault("list_stride_bytes", lists.list_stride_bytes);
  }
  if (counts % sizeof(uint32_t) != 0) return fault("counts", counts);
  // Counted in 32 bits: lists, units of a list's rows, chunks of all.
  const uint64_t units = uint64_t{lists.most_tokens} * (work.row_bytes / work.unit_bytes);
  const uint64_t heads = uint64_t{work.some_layers} * work.layer_parts * work.heads;
  if (uint64_t{work.some_layers} * lists.layer_lists > kMost ||
      uint64_t{work.heads} * lists.head_lists > kMost || units > kMost ||
      fetch_slots(work) > kMost) {
    return wrong("{} lists of {} tokens are more than one launch can fetch", heads,
                 lists.most_tokens);
  }
  return {};
}

Result<void> check_source(const FetchTokens& work) {
  if (Result<void> shape = check_shape(work); !shape) return shape;
  if (Result<void> units = check_units(work); !units) return units;
  if (work.tokens == 0) return wrong("tokens is 0");
  if (work.block_tokens == 0) return wrong("block_tokens is 0");
  const uint32_t most_tokens = std::min(work.tokens, work.block_tokens);
  if (Result<void> length = check_length(work, most_tokens); !length) return length;
  if (work.pages == nullptr) return wrong("pages is null");
  if (work.absent == nullptr) return wrong("absent is null");
  if (work.payloads == nullptr) return wrong("payloads is null");
  for (uint32_t i = 0; i <= (work.tokens - 1) / work.block_tokens; ++i) {
    const auto payload = reinterpret_cast<uintptr_t>(work.payloads[i]);
    if (payload % 16 != 0) {
      return wrong("payload of block {} is at {:#x}, no multiple of 16", i, payload);
    }
  }
  return {};
}

Result<void> check(const FetchTokens& work) {
  if (Result<void> source = check_source(work); !source) return source;
  return check_lists(work);
}

}  // namespace bowhead::gpu
