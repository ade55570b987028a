// SPDX-License-Identifier: Apache-2.0
#include "ndp/plane_tile.h"

#include <bowhead/format/frame.h>

#include <algorithm>
#include <bit>
#include <cmath>

#include "compression/planes.h"
#include "ndp/numbers.h"

namespace bowhead::ndp {

using namespace compression;

namespace {

constexpr uint32_t kStateTokens = 8;

}  // namespace

Status PlaneTile::open(const PlaneKeys& keys, const PlaneKeys::Tile& tile) {
  shape_ = keys.shape();
  number_ = number_of(shape_.number);
  tokens_ = tile.tokens;
  bytes_ = keys.frame().subspan(tile.begin, tile.bytes);
  ByteReader from(bytes_);
  if (const Status status = read_tile_parameters(from, shape_, bytes_, tokens_, head_, parameters_);
      status != Status::OK)
    return status;
  head_bytes_ = from.at();
  for (uint32_t s = 0; s < stream_count(*number_); ++s)
    coded_[s] = from.bytes(head_.streams[s].coded_bytes);
  if (!from.good() || from.at() != bytes_.size() || !head_.searchable) return Status::DAMAGED;
  note_steps();

  units_.resize(shape_.channels);
  const int bias = number_->is_float() ? (1 << (number_->exponent_bits - 1)) - 1 : 0;
  for (uint32_t c = 0; c < shape_.channels; ++c)
    units_[c] = std::ldexp(1.0, parameters_.exponents[c] - bias - number_->mantissa_bits);
  centre_ = centres_.make(*number_, {parameters_.exponents.data(), shape_.channels},
                          parameters_.amplitudes, head_.centre_shift,
                          head_.centre_turns ? shape_.rotary : Rotary{});
  note_states();
  return Status::OK;
}

double PlaneTile::most_centre(uint32_t channel) const {
  return std::ldexp(1.0, 15 - centre_.right[channel]);
}

void PlaneTile::note_steps() {
  steps_ = Steps::of(tokens_, shape_.channels);
  begins_.clear();
  if (!number_->is_float()) return;
  read_steps(head_, shape_.channels, parameters_.directory, counts_);
  RestBegin at;
  begins_.push_back(at);
  for (const StepCount& count : counts_) {
    at.bits += count.bits;
    at.exceptions += count.exceptions;
    begins_.push_back(at);
  }
}

void PlaneTile::note_states() {
  const uint32_t channels = shape_.channels;
  states_.clear();
  centre_rows_.resize(size_t{kStateTokens} * padded_channels(channels));
  for (uint32_t token = 0; token < (turns() ? tokens_ : 1); token += kStateTokens) {
    states_.insert(states_.end(), centre_.state, centre_.state + channels);
    plane_kernels().centres(centre_, kStateTokens, centre_rows_.data());
  }
}

void PlaneTile::centres(uint32_t first, uint32_t count, int16_t* rows) {
  const uint32_t channels = shape_.channels, group = turns() ? first / kStateTokens : 0;
  const uint32_t before = turns() ? first % kStateTokens : 0;
  std::copy_n(&states_[size_t{group} * channels], channels, centre_.state);
  if (before > 0) plane_kernels().centres(centre_, before, centre_rows_.data());
  plane_kernels().centres(centre_, count, rows);
}

bool PlaneTile::is_coded(uint32_t stream) const {
  return head_.streams[stream].codec >= StreamCodec::LZ4;
}

ConstBytes PlaneTile::bytes_of(uint32_t stream, uint64_t begin, uint64_t bytes) const {
  const ConstBytes all = coded_[stream];
  if (is_coded(stream)) return all;
  begin = std::min<uint64_t>(begin, all.size());
  return all.subspan(begin, std::min<uint64_t>(bytes, all.size() - begin));
}

ConstBytes PlaneTile::rows_of(uint32_t plane, uint32_t first, uint32_t count) const {
  const uint64_t row = plane_bytes(shape_.channels, 1);
  return bytes_of(plane, first * row, count * row);
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

void PlaneTile::differences(uint32_t first, uint32_t count, uint32_t planes, int16_t* twice) const {
  const uint8_t* from[kMaxPlanes + 1] = {};
  for (uint32_t p = 0; p < planes; ++p)
    from[p] = plain_[p].data() + first * plane_bytes(shape_.channels, 1);
  plane_kernels().differences(*number_, from, planes, count, shape_.channels, twice);
}

uint32_t PlaneTile::verified_with(uint32_t planes) const {
  const Groups groups(*number_, head_.streams[0].plain_bytes);
  uint32_t all = planes;
  while (all < number_->planes() && groups.of(all) == groups.of(planes - 1)) ++all;
  return all;
}

ConstBytes PlaneTile::planes_verified_with(uint32_t planes) const {
  uint64_t bytes = 0;
  for (uint32_t p = 0; p < verified_with(planes); ++p) bytes += coded_[p].size();
  return bytes_.subspan(head_bytes_, bytes);
}

Status PlaneTile::verify(uint32_t planes) const {
  const Groups groups(*number_, head_.streams[0].plain_bytes);
  const uint32_t end = verified_with(planes);
  size_t at = head_bytes_;
  for (uint32_t p = 0; p < end;) {
    const uint32_t group = groups.of(p);
    size_t bytes = 0;
    for (; p < end && groups.of(p) == group; ++p) bytes += coded_[p].size();
    if (checksum32(bytes_.subspan(at, bytes)) != head_.checksums[group]) return Status::DAMAGED;
    at += bytes;
  }
  return Status::OK;
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
double PlaneTile::value_of_exact(int32_t q, uint32_t channel, RestBegin& at, bool wanted) const {
  if (!number_->is_float()) return static_cast<int8_t>(q);
  const uint32_t magnitude = number_->magnitude_bits;
  const uint32_t t = static_cast<uint32_t>(q < 0 ? ~q : q) & ((1u << magnitude) - 1);
  const uint32_t count = magnitude - static_cast<uint32_t>(std::bit_width(t | 1));
  const RestBegin here = at;
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

void PlaneTile::exact(uint32_t token, RestBegin& at, RestBegin& end, double* row) {
  const uint32_t first = step_first(token);
  const uint32_t count = token - first + 1, padded = padded_channels(shape_.channels);
  rows_.resize(std::max(rows_.size(), 2 * size_t{count} * padded));
  int16_t *twice = rows_.data(), *centre = twice + size_t{count} * padded;
  differences(first, count, number_->planes(), twice);
  centres(first, count, centre);
  end = step_begin(token);
  for (uint32_t i = first; i <= token; ++i, twice += padded, centre += padded) {
    at = end;
    for (uint32_t c = 0; c < shape_.channels; ++c) {
      const auto q = static_cast<int16_t>(centre[c] + (twice[c] >> 1));
      row[c] = value_of_exact(q, c, end, i == token);
    }
  }
}

}  // namespace bowhead::ndp
