// SPDX-License-Identifier: Apache-2.0
#include "ndp/plane_keys.h"

#include <bowhead/format/frame.h>
#include <fmt/format.h>

#include <bit>
#include <cmath>
#include <limits>

#include "compression/frame_parts.h"
#include "ndp/numbers.h"

namespace bowhead::ndp {
namespace {

using namespace compression;

Result<void> check_open(const Shape& shape, uint32_t outer, uint32_t first_token) {
  const auto refuse = [](std::string why) {
    return Error{Status::INVALID_ARGUMENT, std::move(why)};
  };
  if (number_of(shape.number) == nullptr) return refuse("a frame of bytes holds no keys");
  if (shape.channels > kMaxChannels)
    return refuse(fmt::format("a frame of keys of {} channels: {} are possible", shape.channels,
                              kMaxChannels));
  if (outer >= shape.outer)
    return refuse(fmt::format("outer index {} of a frame that has {}", outer, shape.outer));
  if (uint64_t{first_token} + shape.tokens > std::numeric_limits<uint32_t>::max())
    return refuse(fmt::format("a frame of {} tokens from {} on: positions have 32 bits",
                              shape.tokens, first_token));
  return {};
}

}  // namespace

Result<PlaneKeys> PlaneKeys::open(ConstBytes bytes, uint32_t outer, uint32_t first_token) {
  const auto info = frame_info(bytes);
  if (!info) return info.error();
  const Shape& shape = info->shape;
  if (auto good = check_open(shape, outer, first_token); !good) return good.error();
  const auto frame = open_frame(bytes);
  if (!frame) return frame.error();

  PlaneKeys keys;
  keys.frame_ = bytes;
  keys.shape_ = shape;
  keys.outer_ = outer;
  keys.first_token_ = first_token;
  const Tiling& tiling = frame->tiling;
  std::vector<uint8_t> room(tiling.tile_tokens * shape.row_bytes());
  Decoder decoder;
  TileHead head;
  TileParameters parameters;
  uint64_t index = tiling.tile_of(outer, 0), at = frame->offset_of(index);
  for (uint32_t first = 0; first < shape.tokens; first += tiling.tile_tokens, ++index) {
    const ConstBytes coded = frame->tile_at(index, at);
    const uint32_t tokens = tiling.tokens_of(shape.tokens, index);
    const Bytes values = Bytes(room).first(tokens * shape.row_bytes());
    if (const Status status = decoder.decode_tokens(bytes, outer, first, tokens, values);
        status != Status::OK)
      return status;
    ByteReader from(coded);
    const bool in_planes = from.u8() == BH_TILE_PLANES;
    if (in_planes) {
      const Status status =
          read_tile_parameters(from, frame->shape, coded, tokens, head, parameters);
      if (status != Status::OK) return status;
    }
    keys.add_tile({at, coded.size(), first, tokens, in_planes}, values, parameters.exponents);
    at += coded.size();
  }
  return keys;
}

/// Where a frame with right checksums holds planes that no encoder writes, what is noted here may
/// be beyond its streams: readers look where they read.
void PlaneKeys::add_tile(const Tile& tile, std::span<const uint8_t> values,
                         std::span<const uint16_t> exponents) {
  tiles_.push_back(tile);
  tiles_.back().rests_at = static_cast<uint32_t>(rests_.size());
  if (!tile.bounded) return;
  const Number& number = *number_of(shape_.number);
  const uint32_t one = 1u << number.mantissa_bits, most = (1u << number.exponent_bits) - 1;
  RestBegin at;
  const uint8_t* value = values.data();
  for (uint32_t token = 0; token < tile.tokens; ++token) {
    if (token % group_tokens() == 0) rests_.push_back(at);
    for (uint32_t c = 0; c < shape_.channels && number.is_float(); ++c) {
      uint32_t bits = value[0];
      if (number.element_bytes == 2) bits |= uint32_t{value[1]} << 8;
      if (!std::isfinite(load_number(shape_.number, value))) tiles_.back().bounded = false;
      value += number.element_bytes;
      const uint32_t below = exponents[c] - (bits >> number.mantissa_bits & most);
      const uint32_t t = below < 32 ? ((bits & (one - 1)) | one) >> below : 0;
      at.bits += number.magnitude_bits - static_cast<uint32_t>(std::bit_width(t | 1));
      at.exceptions += t == 0 ? 1 : 0;
    }
  }
  if (!tiles_.back().bounded) rests_.resize(tiles_.back().rests_at);
}

size_t PlaneKeys::kept_bytes() const {
  return tiles_.size() * sizeof(Tile) + rests_.size() * sizeof(RestBegin);
}

}  // namespace bowhead::ndp
