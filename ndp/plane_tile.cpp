// SPDX-License-Identifier: Apache-2.0
#include "ndp/plane_tile.h"

#include <bowhead/format/frame.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "ndp/numbers.h"

namespace bowhead::ndp {

using namespace compression;

namespace {

constexpr uint32_t kStateTokens = 8;

/// The bits of a byte, each as a byte.
constexpr std::array<uint64_t, 256> make_spread() {
  std::array<uint64_t, 256> table{};
  for (uint32_t byte = 0; byte < 256; ++byte) {
    for (uint32_t bit = 0; bit < 8; ++bit) table[byte] |= uint64_t{byte >> bit & 1} << 8 * bit;
  }
  return table;
}
constexpr std::array<uint64_t, 256> kSpread = make_spread();

}  // namespace

Status PlaneTile::open(const PlaneKeys& keys, const PlaneKeys::Tile& tile) {
  shape_ = keys.shape();
  number_ = number_of(shape_.number);
  tokens_ = tile.tokens;
  bytes_ = keys.frame().subspan(tile.begin, tile.bytes);
  ByteReader from(bytes_);
  if (from.u8() != BH_TILE_PLANES) return Status::DAMAGED;
  if (const Status status = read_tile_parameters(from, shape_, bytes_, tokens_, head_, parameters_);
      status != Status::OK)
    return status;
  head_bytes_ = from.at();
  for (uint32_t s = 0; s < stream_count(*number_); ++s)
    coded_[s] = from.bytes(head_.streams[s].coded_bytes);
  if (!from.good()) return Status::DAMAGED;

  units_.assign(padded_channels(shape_.channels), 0);
  const int bias = number_->is_float() ? (1 << (number_->exponent_bits - 1)) - 1 : 0;
  for (uint32_t c = 0; c < shape_.channels; ++c)
    units_[c] = std::ldexp(1.0, parameters_.exponents[c] - bias - number_->mantissa_bits);
  magnitudes_.resize(units_.size());
  negatives_.resize(units_.size());
  centre_ = centres_.make(*number_, {parameters_.exponents.data(), shape_.channels},
                          parameters_.amplitudes, head_.centre_shift,
                          head_.centre_turns ? shape_.rotary : Rotary{});
  note_states();
  return Status::OK;
}

void PlaneTile::note_states() {
  const uint32_t channels = shape_.channels;
  states_.clear();
  for (uint32_t token = 0; token < tokens_; ++token) {
    if (token % kStateTokens == 0)
      states_.insert(states_.end(), centre_.state, centre_.state + channels);
    if (centre_.half == 0) break;
    turn(centre_);
  }
  states_.resize(states_.size() + channels);
}

TurningCentre PlaneTile::centre_of(uint32_t token) {
  const uint32_t channels = shape_.channels, group = token / kStateTokens;
  TurningCentre centre = centre_;
  centre.state = &states_[states_.size() - channels];
  std::copy_n(&states_[centre_.half == 0 ? 0 : size_t{group} * channels], channels, centre.state);
  for (uint32_t before = group * kStateTokens; before < token; ++before) turn(centre);
  return centre;
}

bool PlaneTile::is_coded(uint32_t stream) const {
  return head_.streams[stream].codec >= StreamCodec::LZ4;
}

ConstBytes PlaneTile::part_of(uint32_t stream, uint64_t begin, uint64_t bytes) const {
  const ConstBytes all = coded_[stream];
  if (is_coded(stream)) return all;
  begin = std::min<uint64_t>(begin, all.size());
  return all.subspan(begin, std::min<uint64_t>(bytes, all.size() - begin));
}

ConstBytes PlaneTile::rows_of(uint32_t plane, uint32_t first, uint32_t count) const {
  const uint64_t row = plane_bytes(shape_.channels, 1);
  return part_of(plane, first * row, count * row);
}

Status PlaneTile::load(uint32_t stream, StreamCoder& coder) {
  const StreamSize& size = head_.streams[stream];
  if (!plain_[stream].empty() || size.plain_bytes == 0) return Status::OK;
  if (size.codec == StreamCodec::STORED) {
    plain_[stream] = coded_[stream];
    return Status::OK;
  }
  decoded_[stream].resize(size.plain_bytes);
  if (!coder.decode(size.codec, coded_[stream], decoded_[stream])) return Status::DAMAGED;
  plain_[stream] = decoded_[stream];
  return Status::OK;
}

/// Magnitudes of a row from the first planes, and which are negative.
void PlaneTile::unpack(uint32_t token, uint32_t planes) {
  const size_t row = plane_bytes(shape_.channels, 1), at = token * row;
  for (size_t byte = 0; byte < row; ++byte) {
    // Eight channels in a word, a byte each: of the first eight bits, and of what is behind them.
    uint64_t high = 0, low = 0;
    uint32_t behind = 0;
    for (uint32_t p = 1; p < planes; ++p) {
      const uint64_t bits = kSpread[plain_[p][at + byte]];
      if (p <= 8) {
        high = high << 1 | bits;
      } else {
        low = low << 1 | bits;
        ++behind;
      }
    }
    const uint64_t negative = kSpread[plain_[0][at + byte]];
    std::memcpy(&negatives_[byte * 8], &negative, 8);
    for (uint32_t i = 0; i < 8; ++i)
      magnitudes_[byte * 8 + i] =
          static_cast<uint16_t>((high >> 8 * i & 0xFF) << behind | (low >> 8 * i & 0xFF));
  }
}

void PlaneTile::middles(uint32_t first, uint32_t count, uint32_t planes,
                        std::span<const uint8_t> scales, double* rows) {
  const uint32_t missing = number_->planes() - planes;
  const double step = std::ldexp(1.0, static_cast<int>(missing));
  const TurningCentre centre = centre_of(first);
  const auto padded = static_cast<uint32_t>(units_.size());
  for (uint32_t token = first; token < first + count; ++token, rows += padded) {
    unpack(token, planes);
    for (uint32_t c = 0; c < padded; ++c) {
      const double middle = (magnitudes_[c] + 0.5) * step;
      rows[c] = negatives_[c] != 0 ? -middle : middle;
    }
    for (uint32_t c = 0; c < scales.size(); ++c) rows[c] *= scales[c] * kScaleUnit;
    for (uint32_t c = 0; c < shape_.channels; ++c) rows[c] += centre.at(c);
    turn(centre);
  }
}

/// Zero behind the end.
uint32_t PlaneTile::remainder_of(uint64_t bit, uint32_t count) const {
  const ConstBytes from = plain_[number_->planes()];
  uint32_t bits = 0;
  for (uint64_t byte = (bit + count + 7) / 8; byte > bit / 8; --byte)
    bits = bits << 8 | (byte - 1 < from.size() ? from[byte - 1] : 0u);
  return bits >> bit % 8 & ((1u << count) - 1);
}

/// The value whose fixed point is q; 0 if it is not wanted.
double PlaneTile::value_of_exact(int32_t q, uint32_t channel, PlaneKeys::RestBegin& at,
                                 bool wanted) const {
  if (!number_->is_float()) return static_cast<int8_t>(q);
  const uint32_t magnitude = number_->magnitude_bits;
  const uint32_t t = static_cast<uint32_t>(q < 0 ? ~q : q) & ((1u << magnitude) - 1);
  const uint32_t count = magnitude - static_cast<uint32_t>(std::bit_width(t | 1));
  const PlaneKeys::RestBegin here = at;
  at.bits += count;
  at.exceptions += t == 0 ? 1 : 0;
  if (!wanted) return 0;
  uint32_t below = count;
  if (t == 0) {
    const ConstBytes exceptions = plain_[number_->planes() + 1];
    below = magnitude + (here.exceptions < exceptions.size() ? exceptions[here.exceptions] : 0u);
  }
  const uint32_t one = 1u << number_->mantissa_bits, sign_shift = number_->element_bytes * 8u - 1;
  const uint32_t significand = t << count | remainder_of(here.bits, count);
  const uint32_t exponent = parameters_.exponents[channel] - below;
  const uint32_t bits = (exponent << number_->mantissa_bits) + (significand & (one - 1));
  const auto word =
      static_cast<uint16_t>((q < 0 ? 1u << sign_shift : 0u) | (bits & ((1u << sign_shift) - 1)));
  const uint8_t bytes[] = {static_cast<uint8_t>(word), static_cast<uint8_t>(word >> 8)};
  return load_number(shape_.number, bytes);
}

void PlaneTile::exact(uint32_t first, uint32_t token, PlaneKeys::RestBegin& at,
                      PlaneKeys::RestBegin& end, double* row) {
  const TurningCentre centre = centre_of(first);
  end = at;
  for (uint32_t i = first; i <= token; ++i) {
    at = end;
    unpack(i, number_->planes());
    for (uint32_t c = 0; c < shape_.channels; ++c) {
      const auto d = static_cast<int32_t>(magnitudes_[c]);
      const auto q = static_cast<int16_t>(centre.at(c) + (negatives_[c] != 0 ? ~d : d));
      row[c] = value_of_exact(q, c, end, i == token);
    }
    turn(centre);
  }
}

}  // namespace bowhead::ndp
