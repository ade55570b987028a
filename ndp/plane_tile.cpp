// SPDX-License-Identifier: Apache-2.0
#include "ndp/plane_tile.h"

#include <bowhead/format/frame.h>

#include <algorithm>
#include <bit>
#include <cmath>

#include "base/assert.h"
#include "compression/planes.h"

namespace bowhead::ndp {

using namespace compression;

namespace {

/// 2^exponent, of those that channels have. (ldexp() is a call.)
double power_of_two(int exponent) {
  return std::bit_cast<double>(static_cast<uint64_t>(1023 + exponent) << 52);
}

}  // namespace

Status PlaneTile::open(const Shape& shape, ConstBytes tile, uint32_t tokens) {
  shape_ = shape;
  number_ = number_of(shape_.number);
  tokens_ = tokens;
  bytes_ = tile;
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
  std::vector<StepCount> counts;
  read_steps(head_, shape_.channels, parameters_.directory, counts);
  begins_.reserve(counts.size() + 1);
  RestBegin at;
  begins_.push_back(at);
  for (const StepCount& count : counts) {
    at.bits += count.bits;
    at.exceptions += count.exceptions;
    begins_.push_back(at);
  }
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

std::array<ConstBytes, 2> PlaneTile::rests_of(uint32_t first, uint32_t end) const {
  if (begins_.empty()) return {};
  const uint32_t planes = number_->planes(), next = steps_.of_token(end - 1) + steps_.per_token;
  const RestBegin from = step_begin(first);
  const RestBegin to = next < begins_.size() ? begins_[next] : RestBegin{UINT32_MAX, UINT32_MAX};
  return {bytes_of(planes, from.bits / 8, to.bits / 8 + 1 - from.bits / 8),
          bytes_of(planes + 1, from.exceptions, to.exceptions - from.exceptions)};
}

// ---- PlaneReader ----

PlaneReader::PlaneReader(const PlaneTile& tile)
    : tile_(&tile),
      state_(tile.centre().state, tile.centre().state + tile.channels() + 64),
      centre_(tile.centre()),
      states_(size_t{(tile.tokens() + kStateTokens - 1) / kStateTokens} * tile.channels()) {
  centre_.state = state_.data();
  std::copy_n(state_.begin(), tile.channels(), states_.begin());
}

/// Brings centre_ to a token, by the last state before it that is known.
void PlaneReader::turn_to(uint32_t token) {
  const uint32_t channels = tile_->channels();
  const uint32_t group = tile_->turns() ? std::min(token / kStateTokens, noted_ - 1) : 0;
  std::copy_n(states_.begin() + static_cast<ptrdiff_t>(size_t{group} * channels), channels,
              centre_.state);
  if (!tile_->turns()) return;
  centre_rows_.resize(size_t{kStateTokens} * padded_channels(channels));
  for (uint32_t at = group * kStateTokens; at < token;) {
    const uint32_t some = std::min(kStateTokens, token - at);
    plane_kernels().centres(centre_, some, centre_rows_.data());
    at += some;
    if (at % kStateTokens == 0 && at < tile_->tokens() && at / kStateTokens == noted_) {
      std::copy_n(centre_.state, channels,
                  states_.begin() + static_cast<ptrdiff_t>(size_t{noted_} * channels));
      ++noted_;
    }
  }
}

void PlaneReader::centres(uint32_t first, uint32_t count, int16_t* rows) {
  turn_to(first);
  plane_kernels().centres(centre_, count, rows);
}

void PlaneReader::middles(uint32_t first, uint32_t count, uint32_t planes, int16_t* rows) {
  BOWHEAD_ASSERT(first % kStateTokens == 0);
  const uint32_t channels = tile_->channels(), group = first / kStateTokens;
  const uint8_t* from[kMaxPlanes + 1] = {};
  for (uint32_t p = 0; p < planes; ++p)
    from[p] = plain_[p].data() + first * plane_bytes(channels, 1);
  turn_to(first);
  plane_kernels().middles({tile_->number(), count, channels, tile_->exponents(), centre_}, from,
                          planes, rows, &states_[size_t{group} * channels]);
  noted_ = std::max(noted_, group + (count + kStateTokens - 1) / kStateTokens);
}

Status PlaneReader::load(uint32_t streams, StreamCoder& coder) {
  for (uint32_t stream = 0; stream < streams; ++stream) {
    if (const Status status = load_one(stream, coder); status != Status::OK) return status;
  }
  return Status::OK;
}

Status PlaneReader::load_one(uint32_t stream, StreamCoder& coder) {
  const StreamSize& size = tile_->stream(stream);
  if (!plain_[stream].empty() || size.plain_bytes == 0) return Status::OK;
  if (size.codec == StreamCodec::STORED) {
    plain_[stream] = tile_->coded(stream);
    return Status::OK;
  }
  if (decoded_.empty()) {
    uint64_t all = 0;
    for (uint32_t s = 0; s < stream_count(tile_->number()); ++s)
      all += tile_->stream(s).codec == StreamCodec::STORED ? 0 : tile_->stream(s).plain_bytes;
    decoded_.resize(all);
  }
  const Bytes room = Bytes(decoded_).subspan(decoded_bytes_, size.plain_bytes);
  if (!coder.decode(size.codec, tile_->coded(stream), room)) return Status::DAMAGED;
  decoded_bytes_ += room.size();
  plain_[stream] = room;
  return Status::OK;
}

void PlaneReader::differences(uint32_t first, uint32_t count, uint32_t planes,
                              int16_t* twice) const {
  const uint8_t* from[kMaxPlanes + 1] = {};
  for (uint32_t p = 0; p < planes; ++p)
    from[p] = plain_[p].data() + first * plane_bytes(tile_->channels(), 1);
  plane_kernels().differences(tile_->number(), from, planes, count, tile_->channels(), twice);
}

void PlaneReader::exact_rows(uint32_t first, uint32_t count, uint8_t* values) {
  const uint32_t planes = tile_->number().planes(), channels = tile_->channels();
  const RestBegin begin = tile_->step_begin(first);
  const ConstBytes exceptions = plain_[planes + 1];
  Merge in{.plane_count = planes,
           .exact = true,
           .remainder = plain_[planes],
           .exceptions = exceptions.subspan(std::min<size_t>(begin.exceptions, exceptions.size())),
           .remainder_begin = begin.bits};
  for (uint32_t p = 0; p < planes; ++p)
    in.planes[p] = plain_[p].data() + first * plane_bytes(channels, 1);
  turn_to(first);
  plane_kernels().merge({tile_->number(), count, channels, tile_->exponents(), centre_}, in,
                        values);
}

}  // namespace bowhead::ndp
