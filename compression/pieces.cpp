// SPDX-License-Identifier: Apache-2.0
#include <cstring>

#include "compression/frame_parts.h"

namespace bowhead::compression {
namespace {

/// Large enough for the header of any tile, and mostly for its parameters.
constexpr uint64_t kFirstPieceBytes = 256;
static_assert(kFirstPieceBytes >= 1 + kMaxTileHeaderBytes);

/// The size of the head that begins with a header that is not verified yet; more than is available
/// if the header is invalid.
uint64_t head_bytes_of(const bh_frame_header& header) {
  if (header.tile_tokens == 0) return UINT64_MAX;
  return sizeof header +
         (header.version == BH_FRAME_VERSION_ROTATION ? sizeof(bh_frame_rotation) : 0) +
         tiling_of(header.outer, header.tokens, header.tile_tokens).table_bytes();
}

/// The end of the last stream that is verified together with the first planes. `tile` is the first
/// part of a tile in planes, with its header.
Result<uint64_t> end_of_planes(const Frame& frame, ConstBytes tile, uint32_t tokens,
                               uint32_t planes) {
  const Number& number = *number_of(frame.shape.number);
  const uint32_t channels = frame.shape.channels;
  ByteReader from(tile);
  TileHeader header;
  if (const Status status = read_tile_header(from, frame.shape, tokens, header);
      status != Status::OK)
    return status;
  const Groups groups(number, plane_bytes(channels, tokens));
  uint64_t end = from.at() + parameter_bytes(header, channels) + 4;
  for (uint32_t s = 0; s < number.planes() && groups.of(s) <= groups.of(planes - 1); ++s)
    end += header.streams[s].coded_bytes;
  return end;
}

}  // namespace

Status FramePieces::fetch(uint32_t planes, const Read& read, Bytes frame) {
  const auto extend = [&](uint64_t& end, uint64_t begin, uint64_t wanted) {
    if (wanted <= end) return Status::OK;
    const uint64_t at = begin + end, size = wanted - end;
    end = wanted;
    bytes_fetched_ += size;
    return read(at, frame.subspan(at, size));
  };
  bh_frame_header header;
  if (frame.size() < sizeof header) return Status::DAMAGED;
  if (const Status status =
          extend(header_end_, 0, std::min<uint64_t>(frame.size(), kFirstPieceBytes));
      status != Status::OK)
    return status;
  std::memcpy(&header, frame.data(), sizeof header);
  const uint64_t head_bytes = head_bytes_of(header);
  if (head_bytes > frame.size()) return Status::DAMAGED;
  if (const Status status = extend(header_end_, 0, head_bytes); status != Status::OK) return status;
  const auto opened = open_frame(frame);
  if (!opened) return opened.status();
  const Number* number = number_of(opened->shape.number);
  if (planes > (number == nullptr ? 0 : number->planes())) return Status::INVALID_ARGUMENT;

  uint64_t begin = head_bytes;
  if (ends_.empty()) {
    ends_.resize(opened->tiling.tiles);
    if (ends_.size() == 1) ends_[0] = header_end_ - begin;  // was read with the header
  }
  for (uint64_t tile = 0; tile < opened->tiling.tiles; ++tile) {
    const ConstBytes part = opened->tile_at(tile, begin);
    if (part.empty()) return Status::DAMAGED;
    uint64_t& end = ends_[tile];
    if (const Status status = extend(end, begin, std::min<uint64_t>(part.size(), kFirstPieceBytes));
        status != Status::OK)
      return status;
    uint64_t wanted = part.size();
    if (planes != 0 && is_in_planes(part[0])) {
      const uint32_t tokens = opened->tiling.tokens_of(opened->shape.tokens, tile);
      const auto planes_end = end_of_planes(*opened, part, tokens, planes);
      if (!planes_end) return planes_end.status();
      wanted = std::min(wanted, *planes_end);
    }
    if (const Status status = extend(end, begin, wanted); status != Status::OK) return status;
    begin += part.size();
  }
  return begin == frame.size() ? Status::OK : Status::DAMAGED;
}

}  // namespace bowhead::compression
