// SPDX-License-Identifier: Apache-2.0
// An engine's paged KV cache in GPU memory, by raw pointers and strides: this is all that gpu/
// knows of an engine.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "base/status.h"
#include "gpu/device.h"
#include "gpu/kernels.h"

namespace bowhead::gpu {

inline constexpr uint64_t kMostPayloadBytes = uint64_t{1} << 31;  ///< of a block

struct KvCache {
  /// [layer][part], K before V; latent attention (MLA) has one part with one head.
  std::vector<PagedPart> parts;
  uint32_t layers = 0, layer_parts = 2, heads = 0;
  uint32_t page_tokens = 0;
  uint32_t pages = 0;                              ///< numbers in block tables are below
  uint32_t row_bytes = 0;                          ///< of one token of one head
  PayloadOrder order = PayloadOrder::HEADS_FIRST;  ///< of what is stored; the same wherever it is
                                                   ///< read

  /// Bytes of a layer's K or V, and of all, of so many tokens.
  uint64_t part_bytes(uint32_t tokens) const { return uint64_t{tokens} * heads * row_bytes; }
  uint64_t payload_bytes(uint32_t tokens) const {
    return part_bytes(tokens) * layer_parts * layers;
  }
  /// 16, 8, 4, 2 or 1: bases, strides and rows are multiples of it.
  uint32_t unit_bytes() const;
};

/// INVALID_ARGUMENT: nothing of something, more than two parts of a layer, a token that is longer
/// than any payload, parts that are not layers * layer_parts, pages, tokens or heads that overlap.
Result<void> check_cache(const KvCache& cache);

/// INVALID_ARGUMENT: a part begins or ends where the device does not reach it. GPU_LOST, SYSTEM.
Result<void> check_memory(Device& device, const KvCache& cache);

/// Some tokens of a sequence: token t is in page pages[t / page_tokens].
struct TokenRange {
  std::span<const uint32_t> pages;  ///< the block table, from token 0 on
  uint32_t first_token = 0, tokens = 0;
};
/// INVALID_ARGUMENT: no tokens, a payload of more than kMostPayloadBytes, a table that ends before
/// them, a page that the cache does not have.
Result<void> check_tokens(const KvCache& cache, const TokenRange& range);

/// Calls each(offset in the payload, address in the cache, bytes) for runs that are contiguous in
/// both, in the payload's order, of some layers. None goes from one part to another, unless these
/// share their pages: each of them may be an allocation of its own.
void for_runs(const KvCache& cache, const TokenRange& range, uint32_t first_layer,
              uint32_t some_layers,
              const std::function<void(uint64_t offset, uint8_t* address, uint64_t bytes)>& each);
/// How long these runs are in general: what the choice of a path goes by.
uint64_t run_bytes(const KvCache& cache, uint32_t tokens);

}  // namespace bowhead::gpu
