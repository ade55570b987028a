// SPDX-License-Identifier: Apache-2.0
// An engine's paged KV cache in GPU memory, by raw pointers and strides: this is all that gpu/
// knows of an engine.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "base/kv_layout.h"
#include "base/status.h"
#include "gpu/devices/device.h"
#include "gpu/kernels/kernels.h"
#include "pool/pool.h"

namespace bowhead::gpu {

inline constexpr uint64_t kMostPayloadBytes = uint64_t{1} << 31;  ///< of a block

struct KvCache {
  KvLayout layout = {};          ///< of the blocks: that of their namespace
  std::vector<PagedPart> parts;  ///< [layer][part], as of the layout
  uint32_t page_tokens = 0;
  uint32_t pages = 0;  ///< numbers in block tables are below this

  /// Of one token of one head, of K and of V.
  uint32_t row_bytes() const { return bowhead::row_bytes(layout, 0); }
  /// Bytes of a layer's K or V, and of all, of so many tokens.
  uint64_t part_bytes(uint32_t tokens) const {
    return uint64_t{tokens} * layout.heads * row_bytes();
  }
  uint64_t payload_bytes(uint32_t tokens) const { return bowhead::payload_bytes(layout, tokens); }
  /// 16, 8, 4, 2 or 1: bases, strides and rows are multiples of it.
  uint32_t unit_bytes() const;
  /// For kernels: all but the choice of layers and the address of the parts.
  PagedLayers paged_layers() const;
};

/// NOT_SUPPORTED: a layout that kernels cannot move: opaque values, K and V of different lengths,
/// scales in the block. Also the statuses of check_layout().
Result<void> check_rows(const KvLayout& layout);

/// The statuses of check_rows(); INVALID_ARGUMENT: no pages, parts that are not those of the
/// layout, pages, tokens or heads that overlap.
Result<void> check_cache(const KvCache& cache);

/// LAYOUT_MISMATCH, with the field that differs: blocks of the namespace have another layout.
/// INVALID_ARGUMENT: there is no such namespace.
Result<void> check_stored_layout(Pool& pool, NamespaceId ns, const KvLayout& layout);

/// INVALID_ARGUMENT: a part begins or ends where the device does not reach it. GPU_LOST, SYSTEM.
Result<void> check_memory(Device& device, const KvCache& cache);

/// Some tokens of a sequence in the cache: token t is in page pages[t / page_tokens].
struct PagedTokens {
  std::span<const uint32_t> pages;  ///< the block table, from token 0 on
  uint32_t first_token = 0, tokens = 0;
};
/// INVALID_ARGUMENT: no tokens, a payload of more than kMostPayloadBytes, a table that ends before
/// them, a page that the cache does not have.
Result<void> check_tokens(const KvCache& cache, const PagedTokens& range);

/// Calls each(offset in the payload, address in the cache, bytes) for runs that are contiguous in
/// both, in the payload's order, of some layers. None goes from one part to another, unless these
/// share their pages: each of them may be an allocation of its own.
void for_runs(const KvCache& cache, const PagedTokens& range, uint32_t first_layer,
              uint32_t some_layers,
              const std::function<void(uint64_t offset, uint8_t* address, uint64_t bytes)>& each);
/// The usual length of these runs, by which a path is chosen.
uint64_t run_bytes(const KvCache& cache, uint32_t tokens);

}  // namespace bowhead::gpu
