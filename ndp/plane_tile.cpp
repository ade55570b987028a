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

/// 2^exponent, of those that channels have. (ldexp() is a call.)
double power_of_two(int exponent) {
  return std::bit_cast<double>(static_cast<uint64_t>(1023 + exponent) << 52);
}

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
    units_[c] = power_of_two(parameters_.exponents[c] - bias - number_->mantissa_bits);
  centre_ = centres_.make(*number_, {parameters_.exponents.data(), shape_.channels},
                          parameters_.amplitudes, head_.centre_shift,
                          head_.centre_turns ? shape_.rotary : Rotary{});
  note_most_centres();
  states_.assign(centre_.state, centre_.state + shape_.channels);
  return Status::OK;
}

/// A pair turns by a number whose size is at most 1 + 4.4e-5, as cosine and sine are off by 2^-15
/// at most, and each turn rounds twice in either channel.
void PlaneTile::note_most_centres() {
  most_centres_.resize(shape_.channels);
  const double longer = turns() ? std::exp(4.4e-5 * tokens_) : 1;
  for (uint32_t c = 0; c < shape_.channels; ++c) {
    double most = std::abs(centre_.state[c]);
    if (turns()) {
      const bool second = c / centre_.half % 2 != 0;
      const double partner = centre_.state[second ? c - centre_.half : c + centre_.half];
      most = (std::sqrt(most * most + partner * partner) + 1.5 * tokens_) * longer;
    }
    most_centres_[c] = std::min(most, 0x1p15) * power_of_two(-centre_.right[c]) + 1;
  }
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

/// Notes the states up to that of a token's group.
void PlaneTile::note_states(uint32_t token) {
  const uint32_t channels = shape_.channels, group = token / kStateTokens;
  auto noted = static_cast<uint32_t>(states_.size() / channels);
  if (noted > group) return;
  centre_rows_.resize(size_t{kStateTokens} * padded_channels(channels));
  std::copy_n(states_.end() - channels, channels, centre_.state);
  for (; noted <= group; ++noted) {
    plane_kernels().centres(centre_, kStateTokens, centre_rows_.data());
    states_.insert(states_.end(), centre_.state, centre_.state + channels);
  }
}

void PlaneTile::turn_to(uint32_t token) {
  const uint32_t channels = shape_.channels, before = turns() ? token % kStateTokens : 0;
  if (turns()) note_states(token);
  std::copy_n(&states_[turns() ? size_t{token / kStateTokens} * channels : 0], channels,
              centre_.state);
  if (before == 0) return;
  centre_rows_.resize(size_t{kStateTokens} * padded_channels(channels));
  plane_kernels().centres(centre_, before, centre_rows_.data());
}

/// Group by group, so that the states of the next ones are noted on the way.
void PlaneTile::centres(uint32_t first, uint32_t count, int16_t* rows) {
  const uint32_t channels = shape_.channels, padded = padded_channels(channels);
  turn_to(first);
  for (uint32_t token = first, end = first + count; token < end;) {
    const uint32_t some =
        turns() ? std::min(kStateTokens - token % kStateTokens, end - token) : end - token;
    plane_kernels().centres(centre_, some, rows);
    rows += size_t{some} * padded;
    token += some;
    if (turns() && token % kStateTokens == 0 &&
        states_.size() == size_t{token / kStateTokens} * channels)
      states_.insert(states_.end(), centre_.state, centre_.state + channels);
  }
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

std::array<ConstBytes, 2> PlaneTile::rests_of(uint32_t first, uint32_t end) const {
  if (begins_.empty()) return {};
  const uint32_t planes = number_->planes(), next = steps_.of_token(end - 1) + steps_.per_token;
  const RestBegin from = step_begin(first);
  const RestBegin to = next < begins_.size() ? begins_[next] : RestBegin{UINT32_MAX, UINT32_MAX};
  return {bytes_of(planes, from.bits / 8, to.bits / 8 + 1 - from.bits / 8),
          bytes_of(planes + 1, from.exceptions, to.exceptions - from.exceptions)};
}

void PlaneTile::exact_rows(uint32_t first, uint32_t count, uint8_t* values) {
  const uint32_t planes = number_->planes();
  const RestBegin begin = step_begin(first);
  const ConstBytes exceptions = plain_[planes + 1];
  Merge in{.plane_count = planes,
           .exact = true,
           .remainder = plain_[planes],
           .exceptions = exceptions.subspan(std::min<size_t>(begin.exceptions, exceptions.size())),
           .remainder_begin = begin.bits};
  for (uint32_t p = 0; p < planes; ++p)
    in.planes[p] = plain_[p].data() + first * plane_bytes(shape_.channels, 1);
  turn_to(first);
  plane_kernels().merge({*number_, count, shape_.channels, parameters_.exponents.data(), centre_},
                        in, values);
}

}  // namespace bowhead::ndp
