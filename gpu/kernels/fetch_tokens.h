// SPDX-License-Identifier: Apache-2.0
// A warp fetches chosen tokens: of one list and one part of a layer it takes a chunk of the units,
// kFetchSteps for each lane, side by side within rows and from row to row.
//
// Three waits make a fetch: for the tokens' numbers, for where their blocks lie, and for the rows,
// which come over the link. Each is for all steps of a lane at once: 4 KiB of a warp are under way.
#pragma once

#include <cstddef>
#include <cstdint>

#include "gpu/kernels/kernels.h"
#include "gpu/kernels/warp.h"

namespace bowhead::gpu {
inline namespace BOWHEAD_LANES {

inline constexpr uint32_t kFetchSteps = 8;
inline constexpr uint32_t kFetchChunkUnits = kFetchSteps * kWarpLanes;

/// Each list's rows of a part are cut into so many chunks, of which those behind its count are
/// empty.
inline uint32_t chunks_per_list(const FetchTokens& work) {
  const uint64_t units = uint64_t{work.lists.most_tokens} * (work.row_bytes / work.unit_bytes);
  return static_cast<uint32_t>((units + kFetchChunkUnits - 1) / kFetchChunkUnits);
}
/// Chunks of all lists, parts and layers.
inline uint64_t fetch_slots(const FetchTokens& work) {
  return uint64_t{work.some_layers} * work.layer_parts * work.heads * chunks_per_list(work);
}

/// `Unit` has unit_bytes.
template <class Unit>
class TokenFetcher {
 public:
  /// A head of a layer's part, and the list of its tokens.
  BOWHEAD_WARP_CODE TokenFetcher(const FetchTokens& work, uint32_t layer, uint32_t part,
                                 uint32_t head)
      : work_(work),
        part_(part),
        head_(head),
        layer_part_((work.first_layer + layer) * work.layer_parts + part),
        row_units_(work.row_bytes / sizeof(Unit)) {
    const uint32_t list = layer * work.lists.layer_lists + head * work.lists.head_lists;
    tokens_ = work.lists.tokens + list * work.lists.list_stride_bytes;
    count_ = work.lists.most_tokens;
    if (work.lists.counts != nullptr) {
      const uint32_t said = load_constant(work.lists.counts + list);
      count_ = said < count_ ? said : count_;
    }
    const PagedPart* to = work.parts + layer_part_;
    page_stride_bytes_ = load_constant(&to->page_stride_bytes);
    token_stride_bytes_ = load_constant(&to->token_stride_bytes);
    base_ = load_constant(&to->base) + head * load_constant(&to->head_stride_bytes);
  }

  /// No step branches on a value that another one loaded: then their loads are under way together.
  BOWHEAD_WARP_CODE void fetch(uint32_t chunk) const {
    if (chunk * kFetchChunkUnits >= count_ * row_units_) return;
    Lanes<uint32_t> tokens[kFetchSteps], pages[kFetchSteps];
    walk(chunk, [&](uint32_t step, uint32_t lane, Place at) {
      // Behind the list, its last token again, which can be read.
      const uint32_t entry = at.entry < count_ ? at.entry : count_ - 1;
      const uint8_t* token = tokens_ + size_t{entry} * work_.lists.token_stride_bytes;
      tokens[step][lane] = load_constant(reinterpret_cast<const uint32_t*>(token));
      pages[step][lane] = load_constant(work_.pages + entry / work_.page_tokens);
    });
    Lanes<const uint8_t*> payloads[kFetchSteps];
    each_step([&](uint32_t step, uint32_t lane) {
      payloads[step][lane] = load_constant(work_.payloads + block_of(tokens[step][lane]));
    });
    Lanes<const Unit*> from[kFetchSteps];
    walk(chunk, [&](uint32_t step, uint32_t lane, Place at) {
      from[step][lane] = in_payload(payloads[step][lane], tokens[step][lane], at);
    });
    Lanes<Unit> units[kFetchSteps];
    each_step([&](uint32_t step, uint32_t lane) {
      const Unit* there = from[step][lane];
      units[step][lane] = there == nullptr ? Unit{} : load_streaming(there);
    });
    walk(chunk, [&](uint32_t step, uint32_t lane, Place at) {
      if (at.entry >= count_) return;
      store(in_page(pages[step][lane], at), units[step][lane]);
      if (from[step][lane] == nullptr && at.column == 0 && part_ == 0) add(work_.absent, 1);
    });
  }

 private:
  /// A unit of a list's rows.
  struct Place {
    uint32_t entry;   ///< in the list; may be behind it
    uint32_t column;  ///< in the row
  };

  template <class F>  // f(step, lane)
  static BOWHEAD_WARP_CODE void each_step(F f) {
    BOWHEAD_UNROLL
    for (uint32_t step = 0; step < kFetchSteps; ++step) {
      Warp::each([&](uint32_t lane) { f(step, lane); });
    }
  }

  // f(step, lane, place). From step to step by carrying, not by dividing.
  template <class F>
  BOWHEAD_WARP_CODE void walk(uint32_t chunk, F f) const {
    const Place stride = {kWarpLanes / row_units_, kWarpLanes % row_units_};
    Lanes<Place> at;
    Warp::each([&](uint32_t lane) {
      const uint32_t unit = chunk * kFetchChunkUnits + lane;
      at[lane] = {unit / row_units_, unit % row_units_};
    });
    each_step([&](uint32_t step, uint32_t lane) {
      f(step, lane, at[lane]);
      Place& next = at[lane];
      next.column += stride.column;
      const bool is_full = next.column >= row_units_;
      next.column -= is_full ? row_units_ : 0;
      next.entry += stride.entry + is_full;
    });
  }

  // For a token that no block has, the last block.
  BOWHEAD_WARP_CODE uint32_t block_of(uint32_t token) const {
    return (token < work_.tokens ? token : work_.tokens - 1) / work_.block_tokens;
  }

  // Null: there is nothing to be fetched.
  BOWHEAD_WARP_CODE const Unit* in_payload(const uint8_t* payload, uint32_t token, Place at) const {
    const bool is_there = payload != nullptr && token < work_.tokens && at.entry < count_;
    const uint32_t first = block_of(token) * work_.block_tokens, rest = work_.tokens - first;
    const uint32_t block_tokens = rest < work_.block_tokens ? rest : work_.block_tokens;
    const bool heads_first = work_.order == RowOrder::HEADS_FIRST;
    const uint32_t row = layer_part_ * work_.heads * block_tokens +
                         head_ * (heads_first ? block_tokens : 1) +
                         (token - first) * (heads_first ? 1 : work_.heads);
    const size_t offset = is_there ? size_t{row} * work_.row_bytes : 0;
    return is_there ? reinterpret_cast<const Unit*>(payload + offset) + at.column : nullptr;
  }

  BOWHEAD_WARP_CODE Unit* in_page(size_t page, Place at) const {
    uint8_t* row =
        base_ + page * page_stride_bytes_ + at.entry % work_.page_tokens * token_stride_bytes_;
    return reinterpret_cast<Unit*>(row) + at.column;
  }

  const FetchTokens& work_;
  const uint32_t part_, head_;
  const uint32_t layer_part_;  ///< of all layers'
  const uint32_t row_units_;
  const uint8_t* tokens_;
  uint32_t count_;
  uint8_t* base_;  ///< of the part, for this head
  size_t page_stride_bytes_, token_stride_bytes_;
};

/// Slot `slot` of fetch_slots(work).
template <class Unit>
BOWHEAD_WARP_CODE void fetch_slot(const FetchTokens& work, uint32_t list_chunks, uint32_t slot) {
  const uint32_t of_head = slot / list_chunks, of_part = of_head / work.heads;
  const TokenFetcher<Unit> fetcher(work, of_part / work.layer_parts, of_part % work.layer_parts,
                                   of_head % work.heads);
  fetcher.fetch(slot % list_chunks);
}

}  // namespace BOWHEAD_LANES
}  // namespace bowhead::gpu
