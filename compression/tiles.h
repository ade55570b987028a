// SPDX-License-Identifier: Apache-2.0
// The parts of a frame: where each stream of a tile lies in its frame, verified. For decoders of
// tiles: the one here (frame.h), and those of other devices.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "compression/frame_parts.h"

namespace bowhead::compression {

/// The parts of a tile for some planes or for its exact values. Can be reused for one tile after
/// another: allocates when it meets a larger one than before.
struct TileParts {
  uint32_t tokens = 0;
  uint64_t values_offset = 0, values_bytes = 0;  ///< of all values

  /// False: the values are one stream, and most members below are not used.
  bool in_planes = false;
  TileHeader header;               ///< in planes
  TileParameters parameters;       ///< in planes, as
  uint64_t parameters_offset = 0;  ///< exponents and amplitudes are in the frame

  /// The streams that are needed; in planes the first planes, or all, the remainder and the
  /// exceptions.
  uint32_t stream_count = 0;
  std::array<StreamSize, kMaxStreams> streams;
  std::array<uint64_t, kMaxStreams> offsets;  ///< in the frame
  uint64_t bytes_read = 0;  ///< bytes of the frame that were read to verify this tile

  ConstBytes stream(ConstBytes frame, uint32_t index) const {
    return frame.subspan(offsets[index], streams[index].coded_bytes);
  }
};

/// Reads tile `index` of a frame, which begins at `begin`; 0 planes: exact values. DAMAGED,
/// UNSUPPORTED_CODEC. Streams are checked to lie in the frame and to be at most as long as such
/// streams can be when decoded; their content is only checked by a decoder.
Status read_tile(const Frame& frame, uint64_t index, uint64_t begin, uint32_t planes,
                 TileParts& parts);

/// Reads one tile of a frame after another.
class TileReader {
 public:
  /// The frame must outlive the reader. INVALID_ARGUMENT: more planes than the frame has; DAMAGED,
  /// UNSUPPORTED_CODEC.
  Status open(ConstBytes frame, uint32_t planes);
  const Frame& frame() const { return frame_; }

  bool at_end() const { return next_ == frame_.tiling.tiles; }
  /// The next tile, if there is one. As read_tile(); DAMAGED also if bytes follow the last tile.
  Status next(TileParts& parts);

 private:
  Frame frame_;
  uint32_t planes_ = 0;
  uint64_t next_ = 0, offset_ = 0;
};

}  // namespace bowhead::compression
