// SPDX-License-Identifier: Apache-2.0
#include "compression/tiles.h"

namespace bowhead::compression {
namespace {

/// A tile whose values are one stream; `from` is after the layout.
Status read_bytes(ByteReader& from, uint32_t layout, ConstBytes tile, uint64_t begin,
                  TileParts& parts) {
  const uint32_t codec = layout == BH_TILE_BYTES ? from.u8() : uint32_t{BH_STREAM_STORED};
  if (codec > kLastStreamCodec) return Status::UNSUPPORTED_CODEC;
  const uint32_t checksum = from.u32();
  if (!from.good()) return Status::DAMAGED;
  const ConstBytes coded = tile.subspan(from.at());
  if (rest_checksum(layout, codec, coded) != checksum) return Status::DAMAGED;
  parts.stream_count = 1;
  parts.streams[0] = {static_cast<StreamCodec>(codec), coded.size(), parts.values_bytes};
  parts.offsets[0] = begin + from.at();
  parts.bytes_read = tile.size();
  return Status::OK;
}

/// Finds and verifies the streams of a tile in planes; `from` is at the first one.
Status read_streams(ByteReader& from, const Number& number, uint32_t channels, uint32_t planes,
                    ConstBytes tile, uint64_t begin, TileParts& parts) {
  const uint32_t streams = stream_count(number);
  const Groups groups(number, plane_bytes(channels, parts.tokens));
  size_t begins[kMaxPlanes + 2];  // of the groups, then of the bytes after them
  std::fill(std::begin(begins), std::end(begins), from.at());
  for (uint32_t s = 0; s < streams; ++s) {
    const StreamSize& stream = parts.header.streams[s];
    parts.streams[s] = stream;
    parts.offsets[s] = begin + from.at();
    from.bytes(stream.coded_bytes);
    if (!from.good()) return Status::DAMAGED;
    for (uint32_t next = groups.of(s) + 1; next <= groups.count(); ++next) begins[next] = from.at();
  }
  if (from.at() != tile.size()) return Status::DAMAGED;
  parts.stream_count = planes == 0 ? streams : planes;
  for (uint32_t group = 0; group <= groups.of(parts.stream_count - 1); ++group) {
    const ConstBytes covered = tile.subspan(begins[group], begins[group + 1] - begins[group]);
    if (checksum32(covered) != parts.header.checksums[group]) return Status::DAMAGED;
    parts.bytes_read += covered.size();
  }
  return Status::OK;
}

}  // namespace

Status read_tile(const Frame& frame, uint64_t index, uint64_t begin, uint32_t planes,
                 TileParts& parts) {
  const Shape& shape = frame.shape;
  const ConstBytes tile = frame.tile_at(index, begin);
  const Tiling& tiling = frame.tiling;
  parts.tokens = tiling.tokens_of(shape.tokens, index);
  const uint64_t first_token = index / tiling.tiles_per_outer * shape.tokens +
                               index % tiling.tiles_per_outer * tiling.tile_tokens;
  parts.values_offset = first_token * shape.row_bytes();
  parts.values_bytes = parts.tokens * shape.row_bytes();
  ByteReader from(tile);
  const uint32_t layout = from.u8();
  if (!from.good()) return Status::DAMAGED;
  const Number* number = number_of(shape.number);
  parts.in_planes = is_in_planes(layout) && number != nullptr;
  if (!parts.in_planes) {
    if (layout != BH_TILE_STORED && layout != BH_TILE_BYTES) return Status::UNSUPPORTED_CODEC;
    return read_bytes(from, layout, tile, begin, parts);
  }
  from = ByteReader(tile);
  if (const Status status =
          read_tile_parameters(from, shape, tile, parts.tokens, parts.header, parts.parameters);
      status != Status::OK)
    return status;
  parts.parameters_offset = begin + from.at() - 4 - parameter_bytes(parts.header, shape.channels);
  parts.bytes_read = from.at();
  return read_streams(from, *number, shape.channels, planes, tile, begin, parts);
}

Status TileReader::open(ConstBytes frame, uint32_t planes) {
  auto opened = open_frame(frame);
  if (!opened) return opened.status();
  const Number* number = number_of(opened->shape.number);
  if (planes > (number == nullptr ? 0 : number->planes())) return Status::INVALID_ARGUMENT;
  frame_ = *opened;
  planes_ = planes;
  next_ = 0;
  offset_ = frame_.head_bytes();
  return Status::OK;
}

Status TileReader::next(TileParts& parts) {
  if (const Status status = read_tile(frame_, next_, offset_, planes_, parts); status != Status::OK)
    return status;
  offset_ += frame_.tile_at(next_, offset_).size();
  ++next_;
  return at_end() && offset_ != frame_.bytes.size() ? Status::DAMAGED : Status::OK;
}

}  // namespace bowhead::compression
