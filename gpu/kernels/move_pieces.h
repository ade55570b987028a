// SPDX-License-Identifier: Apache-2.0
// A warp moves one piece of a payload between the payload and the pages of a cache, and sums on the
// way the bytes that it stores to the payload, or has read from it.
//
// Payloads are the far side, in the pool: lanes load and store them side by side, 16 bytes each,
// every byte once; all of a piece is under way before any of it is waited for. Pages are the near
// side: there a lane goes from unit to unit, and where its next one lies is found by carrying, as
// with the digits of a clock, not by dividing.
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "gpu/kernels/kernels.h"
#include "gpu/kernels/piece_sum.h"
#include "gpu/kernels/warp.h"

namespace bowhead::gpu {
inline namespace BOWHEAD_LANES {

/// The descriptors of the blocks of a kernel, in memory of the device or in its arguments.
BOWHEAD_WARP_CODE const MovePieces& pieces_of(const MovePieces& work) { return work; }
BOWHEAD_WARP_CODE const MovePieces& pieces_of(const MoveFewPieces& work) { return work.pieces; }
BOWHEAD_WARP_CODE MoveBlock block_of(const MovePieces& work, uint32_t number) {
  return work.blocks[number];
}
BOWHEAD_WARP_CODE MoveBlock block_of(const MoveFewPieces& work, uint32_t number) {
  MoveBlock block = work.blocks[number];
  block.pages = work.pages + work.first_pages[number];
  return block;
}

/// Work of any block is cut into this many slots, of which those behind its pieces are empty.
inline uint32_t slots_per_block(const MovePieces& work) {
  const uint64_t bytes = uint64_t{work.some_layers} * work.layer_parts * work.heads *
                         work.most_tokens * work.row_bytes;
  return static_cast<uint32_t>(bytes / kPieceBytes) + 2;  // one more at either end
}

/// Digits of a unit's number in a payload, lowest first.
struct UnitPlace {
  uint32_t column;  ///< in its row
  uint32_t inner;   ///< token, or head if tokens come first
  uint32_t outer;   ///< head, or token
  uint32_t part;    ///< layer * layer_parts + part
};

/// The pieces of one block; `Unit` has unit_bytes. `kInArguments`: the kernel has its pages there.
template <class Unit, MoveKind kKind, bool kInArguments = false>
class PieceMover {
 public:
  BOWHEAD_WARP_CODE PieceMover(const MovePieces& work, const MoveBlock& block)
      : work_(work),
        block_(block),
        tokens_are_inner_(work.order == RowOrder::HEADS_FIRST),
        row_units_(work.row_bytes / kUnitBytes),
        inner_count_(tokens_are_inner_ ? block.tokens : work.heads),
        outer_count_(tokens_are_inner_ ? work.heads : block.tokens),
        layer_bytes_(work.layer_parts * work.heads * block.tokens * work.row_bytes) {}

  /// The first piece that waits for this layer or a later one.
  BOWHEAD_WARP_CODE uint32_t first_piece(uint32_t layer) const {
    const uint32_t bytes = layer * layer_bytes_;
    // The piece in which a layer begins has to wait for that layer, if the pages are its source.
    const bool takes_part = !kGathers || layer == work_.layers;
    return bytes / kPieceBytes + (takes_part && bytes % kPieceBytes != 0);
  }

  BOWHEAD_WARP_CODE void move(uint32_t piece) const {
    const uint32_t end = work_.layers * layer_bytes_;
    if (end - piece * kPieceBytes >= kPieceBytes) {
      move_whole(piece);
    } else if constexpr (kKind != MoveKind::SUM_ONLY) {
      move_short(piece, end);
    }
  }

 private:
  static constexpr uint32_t kUnitBytes = sizeof(Unit);
  static constexpr bool kGathers = kKind != MoveKind::FROM_PAYLOAD;

  BOWHEAD_WARP_CODE void move_whole(uint32_t piece) const {
    auto* payload = reinterpret_cast<Bytes16*>(block_.payload + size_t{piece} * kPieceBytes);
    PieceData data;
    if constexpr (kGathers) {
      walk(piece,
           [&](uint32_t step, uint32_t lane, UnitPlace at) { data[step][lane] = gather(at); });
    }
    BOWHEAD_UNROLL
    for (uint32_t step = 0; step < kPieceSteps; ++step) {
      Warp::each([&](uint32_t lane) {
        Bytes16* there = payload + step * kWarpLanes + lane;
        if constexpr (kKind == MoveKind::TO_PAYLOAD) {
          store_streaming(there, data[step][lane]);
        } else if constexpr (kKind == MoveKind::FROM_PAYLOAD) {
          data[step][lane] = load_streaming(there);
        }
      });
    }
    if constexpr (kKind == MoveKind::FROM_PAYLOAD) {
      walk(piece,
           [&](uint32_t step, uint32_t lane, UnitPlace at) { scatter(at, data[step][lane]); });
    }
    const Lanes<uint64_t> sum = piece_sum(data);
    Warp::each([&](uint32_t lane) {
      if (lane == 0) store(block_.sums + piece, sum[lane]);
    });
  }

  // f(step, lane, place of the first of its units).
  template <class F>
  BOWHEAD_WARP_CODE void walk(uint32_t piece, F f) const {
    const UnitPlace stride = place_of(kStepBytes / kUnitBytes);
    Lanes<UnitPlace> at;
    Warp::each([&](uint32_t lane) {
      at[lane] = place_of((piece * kPieceBytes + lane * kLaneBytes) / kUnitBytes);
    });
    BOWHEAD_UNROLL
    for (uint32_t step = 0; step < kPieceSteps; ++step) {
      Warp::each([&](uint32_t lane) {
        f(step, lane, at[lane]);
        at[lane] = plus(at[lane], stride);
      });
    }
  }

  // Up to `end`, the end of the payload: by units, as no more may be written.
  BOWHEAD_WARP_CODE void move_short(uint32_t piece, uint32_t end) const {
    const UnitPlace stride = place_of(kWarpLanes);
    auto* payload = reinterpret_cast<Unit*>(block_.payload);
    Warp::each([&](uint32_t lane) {
      uint32_t unit = piece * (kPieceBytes / kUnitBytes) + lane;
      UnitPlace at = place_of(unit);
      BOWHEAD_NO_UNROLL
      for (; unit < end / kUnitBytes; unit += kWarpLanes) {
        if constexpr (kKind == MoveKind::TO_PAYLOAD) {
          store_streaming(payload + unit, load(in_pages(at)));
        } else {
          store(in_pages(at), load_streaming(payload + unit));
        }
        at = plus(at, stride);
      }
    });
  }

  BOWHEAD_WARP_CODE Bytes16 gather(UnitPlace at) const {
    if constexpr (kUnitBytes == kLaneBytes) {
      return load(in_pages(at));
    } else {
      return {gather_word(at), gather_word(at)};
    }
  }

  BOWHEAD_WARP_CODE uint64_t gather_word(UnitPlace& at) const {
    uint64_t word = 0;
    BOWHEAD_NO_UNROLL
    for (uint32_t bits = 0; bits < 64; bits += 8 * kUnitBytes) {
      word |= static_cast<uint64_t>(load(in_pages(at))) << bits;
      at = plus(at, {.column = 1});
    }
    return word;
  }

  BOWHEAD_WARP_CODE void scatter(UnitPlace at, Bytes16 bytes) const {
    if constexpr (kUnitBytes == kLaneBytes) {
      store(in_pages(at), bytes);
    } else {
      scatter_word(at, bytes.low);
      scatter_word(at, bytes.high);
    }
  }

  BOWHEAD_WARP_CODE void scatter_word(UnitPlace& at, uint64_t word) const {
    BOWHEAD_NO_UNROLL
    for (uint32_t bits = 0; bits < 64; bits += 8 * kUnitBytes) {
      store(in_pages(at), static_cast<Unit>(word >> bits));
      at = plus(at, {.column = 1});
    }
  }

  BOWHEAD_WARP_CODE UnitPlace place_of(uint32_t unit) const {
    const uint32_t row = unit / row_units_, rows = row / inner_count_;
    return {unit % row_units_, row % inner_count_, rows % outer_count_, rows / outer_count_};
  }

  // Digits are below their counts, so that none carries more than one.
  BOWHEAD_WARP_CODE UnitPlace plus(UnitPlace a, UnitPlace b) const {
    UnitPlace sum = {a.column + b.column, a.inner + b.inner, a.outer + b.outer, a.part + b.part};
    carry(sum.column, row_units_, sum.inner);
    carry(sum.inner, inner_count_, sum.outer);
    carry(sum.outer, outer_count_, sum.part);
    return sum;
  }

  static BOWHEAD_WARP_CODE void carry(uint32_t& digit, uint32_t count, uint32_t& next) {
    const bool is_full = digit >= count;
    digit -= is_full ? count : 0;
    next += is_full;
  }

  BOWHEAD_WARP_CODE Unit* in_pages(UnitPlace at) const {
    const uint32_t token = block_.first_token + (tokens_are_inner_ ? at.inner : at.outer);
    const uint32_t head = tokens_are_inner_ ? at.outer : at.inner;
    const size_t page = page_at(token / work_.page_tokens);
    const PagedPart* part = work_.parts + at.part;
    uint8_t* row = load_constant(&part->base) + page * load_constant(&part->page_stride_bytes) +
                   token % work_.page_tokens * load_constant(&part->token_stride_bytes) +
                   head * load_constant(&part->head_stride_bytes);
    return reinterpret_cast<Unit*>(row) + at.column;
  }

  // Arguments of a kernel are not in global memory.
  BOWHEAD_WARP_CODE uint32_t page_at(uint32_t number) const {
    if constexpr (kInArguments) {
      return block_.pages[number];
    } else {
      return load_constant(block_.pages + number);
    }
  }

  const MovePieces& work_;
  const MoveBlock block_;
  const bool tokens_are_inner_;
  const uint32_t row_units_, inner_count_, outer_count_;
  const uint32_t layer_bytes_;
};

/// Slot `slot` of block_count * slots_per_block(); `Descriptor` is MovePieces or MoveFewPieces.
template <class Unit, MoveKind kKind, class Descriptor>
BOWHEAD_WARP_CODE void move_slot(const Descriptor& descriptor, uint32_t block_slots,
                                 uint32_t slot) {
  const MovePieces& work = pieces_of(descriptor);
  const PieceMover<Unit, kKind, std::is_same_v<Descriptor, MoveFewPieces>> mover(
      work, block_of(descriptor, slot / block_slots));
  const uint32_t piece = mover.first_piece(work.first_layer) + slot % block_slots;
  if (piece < mover.first_piece(work.first_layer + work.some_layers)) mover.move(piece);
}

}  // namespace BOWHEAD_LANES
}  // namespace bowhead::gpu
