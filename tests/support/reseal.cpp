// SPDX-License-Identifier: Apache-2.0
#include "tests/support/reseal.h"

#include <algorithm>
#include <cstring>

#include "compression/frame_parts.h"

namespace bowhead::compression {
namespace {

void store32(uint8_t* to, uint32_t value) { std::memcpy(to, &value, sizeof value); }

/// For a tile whose checksum is at `at` and covers the bytes after it.
void seal_rest(Bytes tile, size_t at) {
  if (tile.size() < at + 4) return;
  const uint32_t codec = tile[0] == BH_TILE_BYTES ? tile[1] : uint32_t{BH_STREAM_STORED};
  store32(tile.data() + at, rest_checksum(tile[0], codec, tile.subspan(at + 4)));
}

void seal_planes(Bytes tile, const Shape& shape, uint32_t tokens) {
  const Number* number = number_of(shape.number);
  if (number == nullptr) return;
  ByteReader from(tile);
  TileHeader header;
  if (read_tile_header(from, shape, tokens, header) != Status::OK) return;
  const Groups groups(*number, plane_bytes(shape.channels, tokens));
  const size_t checksums = header.checksums_at,
               covered = from.at() + parameter_bytes(header, shape.channels);
  if (tile.size() < covered + 4) return;
  uint64_t begin = covered + 4, end = begin;
  for (uint32_t group = 0; group < groups.count(); ++group, begin = end) {
    for (uint32_t s = 0; s < stream_count(*number); ++s) {
      if (groups.of(s) == group) end += header.streams[s].coded_bytes;
    }
    end = std::min<uint64_t>(end, tile.size());
    store32(tile.data() + checksums + group * 4, checksum32(tile.subspan(begin, end - begin)));
  }
  store32(tile.data() + covered, checksum32(tile.first(covered)));
}

void seal_tile(Bytes tile, const Shape& shape, uint32_t tokens) {
  if (tile.empty()) return;
  if (tile[0] == BH_TILE_STORED) seal_rest(tile, 1);
  if (tile[0] == BH_TILE_BYTES) seal_rest(tile, 2);
  if (is_in_planes(tile[0])) seal_planes(tile, shape, tokens);
}

}  // namespace

void reseal(std::vector<uint8_t>& frame) {
  bh_frame_header header;
  if (frame.size() < sizeof header) return;
  std::memcpy(&header, frame.data(), sizeof header);
  Shape shape{static_cast<NumberFormat>(header.number),
              header.outer,
              header.tokens,
              header.channels,
              {.dim = header.rotary_dim, .ratio = header.rotary_ratio, .head = header.rotary_dim}};
  if (header.tile_tokens == 0) return;
  const Tiling tiling = tiling_of(shape.outer, shape.tokens, header.tile_tokens);
  Bytes rest = Bytes(frame).subspan(sizeof header);
  const bool rotated = header.version == BH_FRAME_VERSION_ROTATION;
  bh_frame_rotation rotation{};
  const size_t rotation_bytes = std::min(rotated ? sizeof rotation : 0, rest.size());
  std::memcpy(&rotation, rest.data(), rotation_bytes);
  if (rotated) {
    shape.rotary.head = rotation.head;
    shape.rotary.first = rotation.first;
    shape.rotary.step = rotation.step;
    shape.rotary.interleaved = rotation.pairs == BH_ROTARY_INTERLEAVED;
  }
  const uint64_t table_bytes = tiling.tiles > 1 ? tiling.tiles * 4 : 0;
  const ConstBytes behind =
      rest.first(std::min<uint64_t>(rotation_bytes + table_bytes, rest.size()));
  const ConstBytes table = behind.subspan(rotation_bytes);
  store32(frame.data() + offsetof(bh_frame_header, table_checksum), head_checksum(header, behind));
  if (!valid_shape(shape) || table.size() < table_bytes) return;
  rest = rest.subspan(behind.size());
  for (uint64_t tile = 0; tile < tiling.tiles; ++tile) {
    uint32_t size = static_cast<uint32_t>(rest.size());
    if (!table.empty()) std::memcpy(&size, table.data() + tile * 4, 4);
    const Bytes bytes = rest.first(std::min<size_t>(size, rest.size()));
    seal_tile(bytes, shape, tiling.tokens_of(shape.tokens, tile));
    rest = rest.subspan(bytes.size());
  }
}

}  // namespace bowhead::compression
