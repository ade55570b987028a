// SPDX-License-Identifier: Apache-2.0
#include "ndp/plane_keys.h"

#include <bowhead/format/frame.h>
#include <fmt/format.h>

#include <bit>
#include <cmath>
#include <limits>

#include "compression/frame_parts.h"
#include "ndp/numbers.h"
#include "ndp/plane_tile.h"

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
  uint64_t index = tiling.tile_of(outer, 0), at = frame->offset_of(index);
  for (uint32_t first = 0; first < shape.tokens; first += tiling.tile_tokens, ++index) {
    const ConstBytes coded = frame->tile_at(index, at);
    const uint32_t tokens = tiling.tokens_of(shape.tokens, index);
    const Bytes values = Bytes(room).first(tokens * shape.row_bytes());
    Status status = decoder.decode_tokens(bytes, outer, first, tokens, values);
    if (status != Status::OK) return status;
    const bool in_planes = !coded.empty() && coded[0] == BH_TILE_PLANES;
    status = keys.add_tile({at, coded.size(), first, tokens, in_planes}, values);
    if (status != Status::OK) return status;
    at += coded.size();
  }
  return keys;
}

Status PlaneKeys::add_tile(Tile tile, std::span<const uint8_t> values) {
  tile.rests_at = static_cast<uint32_t>(rests_.size());
  tile.scales_at = static_cast<uint32_t>(scales_.size());
  if (tile.bounded) {
    PlaneTile planes;
    if (const Status status = planes.open(*this, tile); status != Status::OK) return status;
    const ConstBytes row = planes.rows_of(number_of(shape_.number)->magnitude_bits, 0, 1);
    if (!row.empty()) {
      const auto in_line = static_cast<uint32_t>(reinterpret_cast<uintptr_t>(row.data()) % 64);
      const auto bytes = static_cast<uint32_t>(plane_bytes(shape_.channels, 1));
      tile.skew = group_tokens() - std::min(group_tokens(), (64 - in_line + bytes - 1) / bytes);
    }
    tile.bounded = add_rests(tile, values, planes.parameters().exponents);
    if (tile.bounded) {
      const Status status = add_scales(tile, planes, values);
      if (status != Status::OK) return status;
    }
  }
  tiles_.push_back(tile);
  return Status::OK;
}

/// False, and none are added, if not all values are finite. Where a frame with right checksums has
/// planes that no encoder writes, what is noted here may be beyond its streams: readers look where
/// they read.
bool PlaneKeys::add_rests(Tile& tile, std::span<const uint8_t> values,
                          std::span<const uint16_t> exponents) {
  const Number& number = *number_of(shape_.number);
  const uint32_t one = 1u << number.mantissa_bits, most = (1u << number.exponent_bits) - 1;
  RestBegin at;
  bool finite = true;
  const uint8_t* value = values.data();
  for (uint32_t token = 0; token < tile.tokens; ++token) {
    if (first_of(tile, group_of(tile, token)) == token) rests_.push_back(at);
    for (uint32_t c = 0; c < shape_.channels && number.is_float(); ++c) {
      uint32_t bits = value[0];
      if (number.element_bytes == 2) bits |= uint32_t{value[1]} << 8;
      finite &= std::isfinite(load_number(shape_.number, value));
      value += number.element_bytes;
      const uint32_t below = exponents[c] - (bits >> number.mantissa_bits & most);
      const uint32_t t = below < 32 ? ((bits & (one - 1)) | one) >> below : 0;
      at.bits += number.magnitude_bits - static_cast<uint32_t>(std::bit_width(t | 1));
      at.exceptions += t == 0 ? 1 : 0;
    }
  }
  if (!finite) rests_.resize(tile.rests_at);
  return finite;
}

/// The scale with the least squares of what is off is sum(apart * middle) / sum(middle^2), of what
/// lies apart from the centre.
Status PlaneKeys::add_scales(Tile& tile, PlaneTile& planes, std::span<const uint8_t> values) {
  StreamCoder coder;
  const uint32_t all = std::min(kScaledPlanes, number_of(shape_.number)->planes());
  const auto padded = static_cast<uint32_t>(planes.units().size());
  std::vector<double> middles(size_t{group_tokens()} * padded), centres(middles.size());
  std::vector<double> products(padded), squares(padded);
  const std::vector<uint8_t> nothing(shape_.channels);
  for (uint32_t n = 1; n <= all; ++n) {
    if (const Status status = planes.load(n - 1, coder); status != Status::OK) return status;
    std::fill(products.begin(), products.end(), 0);
    std::fill(squares.begin(), squares.end(), 0);
    const uint8_t* value = values.data();
    for (uint32_t first = 0; first < tile.tokens; first += group_tokens()) {
      const uint32_t count = std::min(group_tokens(), tile.tokens - first);
      planes.middles(first, count, n, {}, middles.data());
      planes.middles(first, count, n, nothing, centres.data());
      for (uint32_t i = 0; i < count; ++i) {
        for (uint32_t c = 0; c < shape_.channels; ++c, value += element_bytes(shape_.number)) {
          const double centre = centres[i * padded + c], middle = middles[i * padded + c] - centre;
          const double key = static_cast<double>(load_number(shape_.number, value));
          products[c] += middle * (key / planes.units()[c] - centre);
          squares[c] += middle * middle;
        }
      }
    }
    for (uint32_t c = 0; c < shape_.channels; ++c)
      scales_.push_back(static_cast<uint8_t>(
          std::clamp(std::round(products[c] / squares[c] / kScaleUnit), 0.0, 255.0)));
  }
  return Status::OK;
}

size_t PlaneKeys::kept_bytes() const {
  return tiles_.size() * sizeof(Tile) + rests_.size() * sizeof(RestBegin) + scales_.size();
}

}  // namespace bowhead::ndp
