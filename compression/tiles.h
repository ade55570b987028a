// SPDX-License-Identifier: Apache-2.0
// Frames taken apart: where in its frame each stream of a tile lies, verified, for whoever decodes
// tiles: the decoder here (frame.h), and other devices.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "compression/frame_parts.h"

namespace bowhead::compression {

/// What some planes of a tile, or its exact values, are made of. May be used for tile after tile:
/// it allocates when it meets a larger one than before.
struct TileParts {
  uint32_t tokens = 0;
  uint64_t values_offset = 0, values_bytes = 0;  ///< of all values

  /// Else the values are one stream, and most below means nothing.
  bool in_planes = false;
  TileHead head;                   ///< in planes
  TileParameters parameters;       ///< in planes, as
  uint64_t parameters_offset = 0;  ///< exponents and amplitudes are in the frame

  /// Those that are needed; in planes the first planes, or all, the remainder and the exceptions.
  uint32_t stream_count = 0;
  std::array<StreamSize, kMaxStreams> streams;
  std::array<uint64_t, kMaxStreams> offsets;  ///< in the frame
  uint64_t bytes_read = 0;                    ///< of the frame, to verify this tile

  ConstBytes stream(ConstBytes frame, uint32_t index) const {
    return frame.subspan(offsets[index], streams[index].coded_bytes);
  }
};

/// Tile `index` of a frame, which begins at `begin`; 0 planes: exact values. DAMAGED,
/// UNSUPPORTED_CODEC. Streams lie in the frame, and when decoded have at most the length of such
/// streams; what they hold only a decoder finds out.
Status read_tile(const Frame& frame, uint64_t index, uint64_t begin, uint32_t planes,
                 TileParts& parts);

/// One tile of a frame after the other.
class TileReader {
 public:
  /// The frame has to stay. INVALID_ARGUMENT: more planes than there are; DAMAGED,
  /// UNSUPPORTED_CODEC.
  Status open(ConstBytes frame, uint32_t planes);
  const Frame& frame() const { return frame_; }

  bool at_end() const { return next_ == frame_.tiling.tiles; }
  /// The next one, if there is one. As read_tile(); DAMAGED also if bytes follow the last one.
  Status next(TileParts& parts);

 private:
  Frame frame_;
  uint32_t planes_ = 0;
  uint64_t next_ = 0, offset_ = 0;
};

}  // namespace bowhead::compression
