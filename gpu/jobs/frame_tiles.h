// SPDX-License-Identifier: Apache-2.0
// Frames as descriptors of the kernel that rebuilds values from planes: the one place that turns
// the description of a frame (compression/) into that of its kernel (kernels.h).
#pragma once

#include <cstdint>
#include <optional>

#include "compression/frame.h"
#include "compression/number.h"
#include "compression/tiles.h"
#include "gpu/kernels/kernels.h"

namespace bowhead::gpu {

/// The parameters that tiles of frames of a shape have in common: all but addresses and tiles. 0
/// planes: exact values.
inline RebuildTiles rebuild_tiles_of(const compression::Shape& shape, uint32_t planes) {
  RebuildTiles work;
  work.number = shape.number;
  work.channels = shape.channels;
  work.exact = planes == 0;
  work.plane_count = work.exact ? compression::number_of(shape.number)->planes() : planes;
  work.turning_channels = shape.rotary.dim;
  return work;
}

/// The descriptor of a tile in planes of such a frame, but for the address of its values. Both
/// functions return an offset in RebuildTiles::bytes: `place(offset, bytes)` that of some of the
/// frame's bytes, `place_stream(index, is_plane)`, an optional, that of a stream in plain form, or
/// kAllZero for a plane. Returns nothing if a stream has no place.
template <class Place, class PlaceStream>
std::optional<RebuildTile> rebuild_tile_of(const compression::Shape& shape,
                                           const compression::TileParts& parts, const Place& place,
                                           const PlaceStream& place_stream) {
  const compression::TileHeader& head = parts.header;
  const uint32_t planes = compression::number_of(shape.number)->planes();
  RebuildTile tile;
  tile.exponent_base = head.exponent_base;
  tile.exponent_width = head.exponent_width;
  tile.centre_width = head.centre_width;
  tile.centre_shift = head.centre_shift;
  tile.centre_turns = head.centre_turns && head.centre_width != 0;
  tile.tokens = parts.tokens;
  tile.parameters =
      place(parts.parameters_offset, compression::channel_bytes(head, shape.channels));
  for (uint32_t s = 0; s < parts.stream_count; ++s) {
    const std::optional<uint32_t> at = place_stream(s, s < planes);
    if (!at) return std::nullopt;
    const auto bytes = static_cast<uint32_t>(parts.streams[s].plain_bytes);
    if (s < planes) {
      tile.planes[s] = *at;
    } else if (s == planes) {
      tile.remainder = *at;
      tile.remainder_bytes = bytes;
    } else {
      tile.exceptions = *at;
      tile.exception_bytes = bytes;
    }
  }
  return tile;
}

}  // namespace bowhead::gpu
