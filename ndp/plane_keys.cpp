// SPDX-License-Identifier: Apache-2.0
#include "ndp/plane_keys.h"

#include <bowhead/format/frame.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "compression/frame_parts.h"
#include "compression/planes.h"
#include "ndp/kernels.h"
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

constexpr uint32_t kFitEvery = 4;  // tokens, for scales

uint32_t word_at(ConstBytes values, size_t index) {
  uint16_t word;
  std::memcpy(&word, &values[2 * index], 2);
  return word;
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
  std::vector<uint8_t> values;
  Decoder decoder;
  StreamCoder coder;
  // Some tiles at a time: each call reads the table, and all at once may be large.
  const uint32_t many = std::max<uint32_t>(
      static_cast<uint32_t>(kMaxTileValuesBytes / (tiling.tile_tokens * shape.row_bytes())), 1);
  uint64_t index = tiling.tile_of(outer, 0), at = frame->offset_of(index);
  for (uint32_t begin = 0; begin < shape.tokens;) {
    const uint64_t most = uint64_t{many} * tiling.tile_tokens;
    const auto count = static_cast<uint32_t>(std::min<uint64_t>(most, shape.tokens - begin));
    values.resize(count * shape.row_bytes());
    Status status = decoder.decode_tokens(bytes, outer, begin, count, values);
    if (status != Status::OK) return status;
    ConstBytes left = values;
    for (const uint32_t end = begin + count; begin < end; ++index) {
      const ConstBytes coded = frame->tile_at(index, at);
      const uint32_t tokens = tiling.tokens_of(shape.tokens, index);
      const bool in_planes = !coded.empty() && coded[0] == BH_TILE_PLANES;
      status = keys.add_tile({at, coded.size(), begin, tokens, in_planes},
                             left.first(tokens * shape.row_bytes()), coder);
      if (status != Status::OK) return status;
      left = left.subspan(tokens * shape.row_bytes());
      at += coded.size();
      begin += tokens;
    }
  }
  return keys;
}

Status PlaneKeys::add_tile(Tile tile, std::span<const uint8_t> values, StreamCoder& coder) {
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
    for (uint32_t p = 0; p < number_of(shape_.number)->planes(); ++p) {
      if (const Status status = planes.load(p, coder); status != Status::OK) return status;
    }
    tile.bounded = all_finite(tile, values) && planes.are_of(values);
    if (tile.bounded) {
      add_rests(tile, values, planes.parameters().exponents);
      add_scales(tile, planes);
    }
  }
  tiles_.push_back(tile);
  return Status::OK;
}

bool PlaneKeys::all_finite(const Tile& tile, std::span<const uint8_t> values) const {
  const Number& number = *number_of(shape_.number);
  const size_t count = size_t{tile.tokens} * shape_.channels;
  if (!number.is_float()) return true;
  uint32_t most = 0;
  if (number.element_bytes == 1) {
    for (size_t i = 0; i < count; ++i) most = std::max(most, values[i] & 0x7Fu);
  } else {
    for (size_t i = 0; i < count; ++i) most = std::max(most, word_at(values, i) & 0x7FFF);
  }
  return most <= number.largest_finite;
}

/// By the exponents: a value has its e lowest bits in the remainder, or, where that are all (it is
/// an exception), its mantissa.
void PlaneKeys::add_rests(const Tile& tile, std::span<const uint8_t> values,
                          std::span<const uint16_t> exponents) {
  const Number& number = *number_of(shape_.number);
  const uint32_t mantissa = number.mantissa_bits, most = (1u << number.exponent_bits) - 1;
  RestBegin at;
  for (uint32_t token = 0; token < tile.tokens; ++token) {
    if (first_of(tile, group_of(tile, token)) == token) rests_.push_back(at);
    if (!number.is_float()) continue;
    const auto row = values.subspan(token * shape_.row_bytes(), shape_.row_bytes());
    const auto add = [&](uint32_t c, uint32_t bits) {
      const uint32_t e = exponents[c] - (bits >> mantissa & most);
      at.bits += std::min(e, mantissa);
      at.exceptions += e > mantissa ? 1 : 0;
    };
    if (number.element_bytes == 1) {
      for (uint32_t c = 0; c < shape_.channels; ++c) add(c, row[c]);
    } else {
      for (uint32_t c = 0; c < shape_.channels; ++c) add(c, word_at(row, c));
    }
  }
}

/// The scale with the least squared error is sum(apart * middle) / sum(middle^2), with `apart` the
/// distance of values from the centre, which all planes show precisely enough.
void PlaneKeys::add_scales(const Tile& tile, const PlaneTile& planes) {
  const Number& number = *number_of(shape_.number);
  const uint32_t padded = padded_channels(shape_.channels);
  const uint32_t levels = std::min(kScaledPlanes, number.planes());
  std::vector<int16_t> apart(size_t{kTileTokens} * padded);
  std::vector<float> products(size_t{levels} * padded), squares(products.size());
  for (uint32_t first = 0; first < tile.tokens; first += kTileTokens) {
    const uint32_t count = std::min(kTileTokens, tile.tokens - first);
    planes.differences(first, count, number.planes(), apart.data());
    for (uint32_t level = 0; level < levels; ++level) {
      const int half = 1 << (number.planes() - level - 1), known = -2 * half;
      float *product = &products[size_t{level} * padded],
            *square = &squares[size_t{level} * padded];
      for (uint32_t i = 0; i < count; i += kFitEvery) {
        const int16_t* row = &apart[size_t{i} * padded];
        for (uint32_t c = 0; c < shape_.channels; ++c) {
          const auto middle = static_cast<float>((row[c] & known) | half);
          product[c] += middle * static_cast<float>(row[c]);
          square[c] += middle * middle;
        }
      }
    }
  }
  for (uint32_t level = 0; level < levels; ++level) {
    for (uint32_t c = 0; c < shape_.channels; ++c) {
      const size_t i = size_t{level} * padded + c;
      const float scale = products[i] / squares[i] / static_cast<float>(kScaleUnit);
      scales_.push_back(static_cast<uint8_t>(std::clamp(std::round(scale), 0.0f, 255.0f)));
    }
  }
}

size_t PlaneKeys::kept_bytes() const {
  return tiles_.size() * sizeof(Tile) + rests_.size() * sizeof(RestBegin) + scales_.size();
}

}  // namespace bowhead::ndp
