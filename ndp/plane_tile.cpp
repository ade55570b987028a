// SPDX-License-Identifier: Apache-2.0
#include "ndp/plane_tile.h"

#include <bowhead/format/frame.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <type_traits>

#include "base/assert.h"
#include "compression/planes.h"

namespace bowhead::ndp {

using namespace compression;

namespace {

/// 2^exponent, of those that channels have. (ldexp() is a call.)
double power_of_two(int exponent) {
  return std::bit_cast<double>(static_cast<uint64_t>(1023 + exponent) << 52);
}

/// No centre of a channel is further from zero, in units. A pair turns by a number whose size is at
/// most 1 + 4.4e-5, as cosine and sine are off by 2^-15 at most, and each turn rounds twice in
/// either channel.
std::vector<double> most_centres_of(const TurningCentre& centre, uint32_t tokens) {
  std::vector<double> all(centre.state, centre.state + centre.channels);
  for (double& most : all) most = std::abs(most);
  const double longer = centre.rotary.dim != 0 ? std::exp(4.4e-5 * tokens) : 1;
  for_pairs(centre.rotary, centre.channels, [&](uint32_t x, uint32_t y, uint32_t) {
    all[x] = all[y] = (std::sqrt(all[x] * all[x] + all[y] * all[y]) + 1.5 * tokens) * longer;
  });
  for (uint32_t c = 0; c < centre.channels; ++c)
    all[c] = std::min(all[c], 0x1p15) * power_of_two(-centre.right[c]) + 1;
  return all;
}

std::vector<RestBegin> rest_begins(const TileParts& parts) {
  std::vector<RestBegin> begins;
  if (!parts.number->is_float()) return begins;
  std::vector<StepCount> counts;
  read_steps(parts.head, parts.shape.channels, parts.parameters.directory, counts);
  begins.reserve(counts.size() + 1);
  RestBegin at;
  begins.push_back(at);
  for (const StepCount& count : counts) {
    at.bits += count.bits;
    at.exceptions += count.exceptions;
    begins.push_back(at);
  }
  return begins;
}

}  // namespace

Result<PlaneTile> PlaneTile::open(const Shape& shape, ConstBytes tile, uint32_t tokens) {
  auto made = std::make_shared<TileParts>();
  TileParts& parts = *made;
  parts.number = number_of(shape.number);
  parts.shape = shape;
  parts.tokens = tokens;
  parts.bytes = tile;
  ByteReader from(tile);
  const Status status =
      read_tile_parameters(from, shape, tile, tokens, parts.head, parts.parameters);
  if (status != Status::OK) return status;
  parts.head_bytes = from.at();
  for (uint32_t s = 0; s < stream_count(*parts.number); ++s)
    parts.coded[s] = from.bytes(parts.head.streams[s].coded_bytes);
  if (!from.good() || from.at() != tile.size() || !parts.head.searchable) return Status::DAMAGED;
  parts.steps = Steps::of(tokens, shape.channels);
  parts.begins = rest_begins(parts);

  const auto& exponents = parts.parameters.exponents;
  parts.units.resize(shape.channels);
  const int bias = parts.number->is_float() ? (1 << (parts.number->exponent_bits - 1)) - 1 : 0;
  for (uint32_t c = 0; c < shape.channels; ++c)
    parts.units[c] = power_of_two(exponents[c] - bias - parts.number->mantissa_bits);
  parts.centre = parts.centres.make(*parts.number, {exponents.data(), shape.channels},
                                    parts.parameters.amplitudes, parts.head.centre_shift,
                                    parts.head.centre_turns ? shape.rotary : Rotary{});
  parts.most_centres = most_centres_of(parts.centre, tokens);
  return PlaneTile(std::move(made));
}

std::optional<PlaneTile> PlaneTile::cut(uint32_t first_channel, uint32_t channels) const {
  const uint32_t head = turns() ? parts_->centre.rotary.head : 1;
  first_channel += first_channel_;
  if (first_channel % 8 != 0 || first_channel % head != 0 || channels % head != 0)
    return std::nullopt;
  PlaneTile tile(parts_);
  tile.first_channel_ = first_channel;
  tile.channels_ = channels;
  return tile;
}

PlaneTile PlaneTile::led() const {
  PlaneTile tile(parts_);
  if (!has_parted_tokens()) return tile;
  const uint32_t lead = lead_channel();
  tile.first_channel_ = turns() ? lead - lead % parts_->centre.rotary.head : lead;
  tile.channels_ = first_channel_ + channels_ - tile.first_channel_;
  return tile;
}

ConstBytes PlaneTile::bytes_of(uint32_t stream, uint64_t begin, uint64_t bytes) const {
  const ConstBytes all = coded(stream);
  if (is_coded(stream)) return all;
  begin = std::min<uint64_t>(begin, all.size());
  return all.subspan(begin, std::min<uint64_t>(bytes, all.size() - begin));
}

uint32_t PlaneTile::verified_with(uint32_t planes) const {
  const Groups groups(number(), stream(0).plain_bytes);
  uint32_t all = planes;
  while (all < number().planes() && groups.of(all) == groups.of(planes - 1)) ++all;
  return all;
}

ConstBytes PlaneTile::planes_verified_with(uint32_t planes) const {
  uint64_t bytes = 0;
  for (uint32_t p = 0; p < verified_with(planes); ++p) bytes += coded(p).size();
  return parts_->bytes.subspan(parts_->head_bytes, bytes);
}

Status PlaneTile::verify(uint32_t planes) const {
  const Groups groups(number(), stream(0).plain_bytes);
  const uint32_t end = verified_with(planes);
  size_t at = parts_->head_bytes;
  for (uint32_t p = 0; p < end;) {
    const uint32_t group = groups.of(p);
    size_t bytes = 0;
    for (; p < end && groups.of(p) == group; ++p) bytes += coded(p).size();
    if (checksum32(parts_->bytes.subspan(at, bytes)) != parts_->head.checksums[group])
      return Status::DAMAGED;
    at += bytes;
  }
  return Status::OK;
}

std::array<ConstBytes, 2> PlaneTile::rests_of_steps(uint32_t first, uint32_t end) const {
  const std::vector<RestBegin>& begins = parts_->begins;
  if (begins.empty()) return {};
  const uint32_t planes = number().planes();
  const RestBegin from = first < begins.size() ? begins[first] : RestBegin{};
  const RestBegin to = end < begins.size() ? begins[end] : RestBegin{UINT32_MAX, UINT32_MAX};
  return {bytes_of(planes, from.bits / 8, to.bits / 8 + 1 - from.bits / 8),
          bytes_of(planes + 1, from.exceptions, to.exceptions - from.exceptions)};
}

SharedStreams::Plain SharedStreams::decoded(uint32_t stream, const StreamSize& size,
                                            ConstBytes coded, StreamCoder& coder) {
  const std::lock_guard lock(mutex_);
  if (Plain plain = streams_[stream].lock()) return plain;
  auto plain = std::make_shared<std::vector<uint8_t>>(size.plain_bytes);
  if (!coder.decode(size.codec, coded, *plain)) return nullptr;
  streams_[stream] = plain;
  return plain;
}

// ---- CentreReader ----

CentreReader::CentreReader(const PlaneTile& tile)
    : tokens_(tile.tokens()),
      state_(tile.channels() + 64),
      centre_(tile.centre()),
      states_(size_t{(tokens_ + kStateTokens - 1) / kStateTokens} * tile.channels()) {
  std::copy_n(centre_.state, tile.channels(), state_.begin());
  std::copy_n(centre_.state, tile.channels(), states_.begin());
  centre_.state = state_.data();
}

const TurningCentre& CentreReader::at(uint32_t token) {
  const bool turns = centre_.rotary.dim != 0;
  const uint32_t group = turns ? std::min(token / kStateTokens, noted_ - 1) : 0;
  std::copy_n(states_from(group * kStateTokens), centre_.channels, centre_.state);
  if (!turns) return centre_;
  rows_.resize(size_t{kStateTokens} * padded_channels(centre_.channels));
  for (uint32_t at = group * kStateTokens; at < token;) {
    const uint32_t some = std::min(kStateTokens, token - at);
    plane_kernels().centres(centre_, some, rows_.data());
    at += some;
    if (at % kStateTokens == 0 && at < tokens_ && at / kStateTokens == noted_) {
      std::copy_n(centre_.state, centre_.channels, states_from(at));
      ++noted_;
    }
  }
  return centre_;
}

void CentreReader::note_states(uint32_t token, uint32_t count) {
  noted_ = std::max(noted_, (token + count + kStateTokens - 1) / kStateTokens);
}

// ---- PlaneReader ----

PlaneReader::PlaneReader(const PlaneTile& tile) : tile_(tile), centre_(tile) {
  if (tile.is_cut()) led_centre_.emplace(tile.led());
}

Status PlaneReader::load(uint32_t streams, StreamCoder& coder) {
  for (uint32_t stream = 0; stream < streams; ++stream) {
    if (const Status status = load_one(stream, coder); status != Status::OK) return status;
  }
  return Status::OK;
}

Status PlaneReader::load_one(uint32_t stream, StreamCoder& coder) {
  const StreamSize& size = tile_.stream(stream);
  if (!plain_[stream].empty() || size.plain_bytes == 0) return Status::OK;
  if (size.codec == StreamCodec::STORED) {
    plain_[stream] = tile_.coded(stream);
    return Status::OK;
  }
  if (tile_.is_cut()) {
    shared_[stream] = tile_.shared(stream, coder);
    if (shared_[stream] == nullptr) return Status::DAMAGED;
    plain_[stream] = *shared_[stream];
    return Status::OK;
  }
  if (decoded_.empty()) {
    uint64_t all = 0;
    for (uint32_t s = 0; s < stream_count(tile_.number()); ++s)
      all += tile_.stream(s).codec == StreamCodec::STORED ? 0 : tile_.stream(s).plain_bytes;
    decoded_.resize(all);
  }
  const Bytes room = Bytes(decoded_).subspan(decoded_bytes_, size.plain_bytes);
  if (!coder.decode(size.codec, tile_.coded(stream), room)) return Status::DAMAGED;
  decoded_bytes_ += room.size();
  plain_[stream] = room;
  return Status::OK;
}

namespace {

/// Returns the end of the copy. A row of 64 or 128 channels is a move or two.
uint8_t* copy_rows(const uint8_t* from, size_t stride, uint32_t count, size_t bytes, uint8_t* to) {
  const auto copy = [&](auto size) {
    for (uint32_t i = 0; i < count; ++i, from += stride, to += size) std::memcpy(to, from, size);
    return to;
  };
  if (bytes == 8) return copy(std::integral_constant<size_t, 8>());
  if (bytes == 16) return copy(std::integral_constant<size_t, 16>());
  return copy(bytes);
}

}  // namespace

/// Rows of these channels, one behind the other.
PlaneReader::Planes PlaneReader::rows_from(uint32_t first, uint32_t count, uint32_t planes) {
  Planes rows{};
  const size_t stride = tile_.row_stride(), bytes = tile_.row_bytes();
  for (uint32_t p = 0; p < planes; ++p) rows[p] = plain_[p].data() + first * stride;
  if (!tile_.is_cut()) return rows;
  rows_.resize(std::max(rows_.size(), planes * count * bytes));
  uint8_t* to = rows_.data();
  for (uint32_t p = 0; p < planes; ++p) {
    const uint8_t* from = rows[p] + tile_.row_begin();
    rows[p] = to;
    to = copy_rows(from, stride, count, bytes, to);
  }
  return rows;
}

void PlaneReader::differences(uint32_t first, uint32_t count, uint32_t planes, int16_t* twice) {
  plane_kernels().differences(tile_.number(), rows_from(first, count, planes).data(), planes, count,
                              tile_.channels(), twice);
}

void PlaneReader::centres(uint32_t first, uint32_t count, int16_t* rows) {
  plane_kernels().centres(centre_.at(first), count, rows);
}

void PlaneReader::middles(uint32_t first, uint32_t count, uint32_t planes, const int16_t* scales,
                          int16_t* rows) {
  BOWHEAD_ASSERT(first % kStateTokens == 0);
  plane_kernels().middles(
      {tile_.number(), count, tile_.channels(), tile_.exponents(), centre_.at(first)},
      rows_from(first, count, planes).data(), planes, scales, rows, centre_.states_from(first));
  centre_.note_states(first, count);
}

void PlaneReader::exact_rows(uint32_t first, uint32_t count, uint8_t* values) {
  if (tile_.is_cut()) return exact_rows_of_cut(first, count, values);
  merge({tile_.number(), count, tile_.channels(), tile_.exponents(), centre_.at(first)}, first, 0,
        values);
}

/// With all channels, or, where steps are parts of a token, each token from the lead channel on.
void PlaneReader::exact_rows_of_cut(uint32_t first, uint32_t count, uint8_t* values) {
  const PlaneTile led = tile_.led();
  const bool parted = tile_.has_parted_tokens();
  const uint32_t lead = tile_.lead_channel(), more = lead - led.first_channel();
  const uint32_t channels = led.channels() - more;
  const size_t number_bytes = tile_.number().element_bytes;
  const size_t stride = channels * number_bytes, row_bytes = tile_.channels() * number_bytes;
  const uint32_t together = parted ? 1 : count;
  values_.resize(std::max(values_.size(), together * stride));
  for (uint32_t token = first; token < first + count; token += together) {
    TurningCentre centre = some_channels(led_centre_->at(token), more, channels);
    if (parted) centre.rotary = {};  // not to be turned
    merge({tile_.number(), together, channels, led.exponents() + more, centre}, token, lead,
          values_.data());
    const uint8_t* from = values_.data() + (tile_.first_channel() - lead) * number_bytes;
    for (uint32_t i = 0; i < together; ++i, from += stride, values += row_bytes)
      std::memcpy(values, from, row_bytes);
  }
}

void PlaneReader::merge(const TileFrame& rows, uint32_t first, uint32_t first_channel,
                        uint8_t* values) {
  const uint32_t planes = tile_.number().planes();
  const RestBegin begin = tile_.rest_begin(first);
  const ConstBytes exceptions = plain_[planes + 1];
  Merge in{.plane_count = planes,
           .exact = true,
           .remainder = plain_[planes],
           .exceptions = exceptions.subspan(std::min<size_t>(begin.exceptions, exceptions.size())),
           .remainder_begin = begin.bits};
  for (uint32_t p = 0; p < planes; ++p)
    in.planes[p] = plain_[p].data() + first * size_t{tile_.row_stride()} + first_channel / 8;
  plane_kernels().merge(rows, in, values);
}

}  // namespace bowhead::ndp
