// SPDX-License-Identifier: Apache-2.0
// Shared by encoder and decoder: headers of frames and tiles (docs/frame.md).
#pragma once

#include <bowhead/format/frame.h>

#include "compression/frame.h"
#include "compression/tile_header.h"

namespace bowhead::compression {

/// Sizes of streams within a tile, and offsets in a frame, stay far below 2^32.
inline constexpr uint64_t kMaxValuesBytes = uint64_t{1} << 31;
/// A row of the most channels is far smaller. This bounds the memory that a decoder needs for a
/// tile.
inline constexpr uint64_t kMaxTileValuesBytes = uint64_t{1} << 20;
inline constexpr size_t kStoredTileHeaderBytes = 1 + 4;  // layout, checksum
inline constexpr size_t kBytesTileHeaderBytes = 2 + 4;   // layout, codec, checksum

bool valid_shape(const Shape& shape);

/// Whether a frame needs a bh_frame_rotation behind its header.
inline bool has_rotation(const Rotary& rotary) {
  return rotary.dim != 0 && !(rotary.is_of_halves() && rotary.step == kTurnOfOneRadian);
}
/// Of the header, and what lies between it and the tiles.
inline uint64_t head_bytes_of(const Shape& shape, const Tiling& tiling) {
  return sizeof(bh_frame_header) + (has_rotation(shape.rotary) ? sizeof(bh_frame_rotation) : 0) +
         tiling.table_bytes();
}

/// The number of tokens in a tile of a new frame.
uint32_t tile_tokens_of(const Shape& shape);

/// A frame with a verified header.
struct Frame {
  Shape shape;
  Tiling tiling;
  ConstBytes bytes;
  ConstBytes table;  ///< sizes of the tiles; empty if there is one

  uint64_t head_bytes() const { return head_bytes_of(shape, tiling); }

  uint64_t table_entry(uint64_t tile) const {
    uint32_t size;
    std::memcpy(&size, table.data() + tile * 4, 4);
    return size;
  }
  uint64_t offset_of(uint64_t tile) const {
    uint64_t at = head_bytes();
    for (uint64_t before = 0; before < tile; ++before) at += table_entry(before);
    return at;
  }
  /// The bytes of a tile that begins at `at`; empty if the frame ends before the tile does (a tile
  /// itself is never empty).
  ConstBytes tile_at(uint64_t tile, uint64_t at) const {
    if (at > bytes.size()) return {};
    const uint64_t left = bytes.size() - at, size = table.empty() ? left : table_entry(tile);
    return size <= left ? bytes.subspan(at, size) : ConstBytes{};
  }
};

/// DAMAGED, UNSUPPORTED_CODEC.
Result<Frame> open_frame(ConstBytes bytes);

uint32_t checksum32(ConstBytes bytes, uint64_t seed = 0);
/// Checksum of the bytes after the header of a tile that is not in planes.
inline uint32_t rest_checksum(uint32_t layout, uint32_t codec, ConstBytes rest) {
  return checksum32(rest, layout | codec << 8);
}
/// Checksum of a header and the bytes between it and the tiles.
uint32_t head_checksum(const bh_frame_header& header, ConstBytes behind);

/// Writes and reads the header of a tile in planes up to the parameters, the layout included.
void write_tile_header(ByteWriter& to, const Number& number, const TileHeader& header);
Status read_tile_header(ByteReader& from, const Shape& shape, uint32_t tokens, TileHeader& header);

/// The parameters that the planes of a tile are relative to.
struct TileParameters {
  Lines<uint16_t> exponents;        ///< by channel, with 64 more elements
  std::vector<int16_t> amplitudes;  ///< by channel; empty: no centre
  ConstBytes directory;             ///< in the frame; of a searchable tile
};
/// Reads and verifies all that precedes the streams, from the layout on.
Status read_tile_parameters(ByteReader& from, const Shape& shape, ConstBytes tile, uint32_t tokens,
                            TileHeader& header, TileParameters& parameters);
/// The steps that a directory notes.
void read_steps(const TileHeader& header, uint32_t channels, ConstBytes directory,
                std::vector<StepCount>& steps);

/// The most bytes that write_tile_header() writes, plus the checksum after the parameters.
inline constexpr size_t kMaxTileHeaderBytes =
    4 + kMaxStreams / 2 + 1 + (kMaxStreams + 2) * 6 + (kMaxPlanes + 2) * 4 + 8;

}  // namespace bowhead::compression
