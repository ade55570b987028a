// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "ndp/numbers.h"
#include "ndp/rows.h"

namespace bowhead::ndp {
namespace {

/// A finite number stays so: what its word lacks is in the second term.
uint16_t word_of(float value) {
  constexpr uint16_t kInfinite = 0x7F80;
  const uint16_t word = to_bf16(value);
  const bool rounded_up = (word & 0x7FFF) == kInfinite && std::isfinite(value);
  return static_cast<uint16_t>(word - (rounded_up ? 1 : 0));
}

}  // namespace

Result<Queries> Queries::of(std::span<const float> values, uint32_t count, uint32_t channels,
                            float scale, NumberFormat keys, float soft_cap) {
  const auto refuse = [](std::string why) {
    return Error{Status::INVALID_ARGUMENT, std::move(why)};
  };
  if (count == 0 || count > kMaxQueries || channels == 0 || channels > kMaxChannels)
    return refuse(fmt::format("{} queries of {} channels: give 1 to {} of 1 to {}", count, channels,
                              kMaxQueries, kMaxChannels));
  if (values.size() != size_t{count} * channels)
    return refuse(fmt::format("{} queries of {} channels are {} numbers, and not {}", count,
                              channels, size_t{count} * channels, values.size()));
  if (!(scale > 0) || !std::isfinite(scale))
    return refuse(
        fmt::format("scores times {}: give a scale above 0, as 1 / sqrt(channels)", scale));
  if (!(soft_cap >= 0) || !std::isfinite(soft_cap))
    return refuse(fmt::format("scores capped at {}: give a cap above 0, or 0 for none", soft_cap));
  if (compression::number_of(keys) == nullptr)
    return refuse(
        fmt::format("queries for keys of number kind {}: it has to be one with a value, "
                    "such as bf16",
                    static_cast<int>(keys)));
  Queries queries;
  queries.count_ = count;
  queries.channels_ = channels;
  queries.scale_ = scale;
  queries.soft_cap_ = soft_cap;
  queries.keys_ = keys;
  queries.factors_.assign(count, scale);
  queries.floats_.resize(size_t{count} * queries.padded());
  for (uint32_t q = 0; q < count; ++q) {
    const auto query = values.subspan(size_t{q} * channels, channels);
    std::copy(query.begin(), query.end(), queries.floats_.begin() + q * queries.padded());
    queries.finite_.push_back(
        std::all_of(query.begin(), query.end(), [](float x) { return std::isfinite(x); }));
    // Whole numbers have no infinity: such a query is NaN wherever its scores are computed.
    if (keys == NumberFormat::INT8 && !queries.finite_.back())
      std::fill_n(queries.floats_.begin() + q * queries.padded(), channels,
                  std::numeric_limits<float>::quiet_NaN());
  }
  if (keys == NumberFormat::FP16)
    queries.set_floats();
  else if (keys == NumberFormat::INT8)
    queries.set_integers();
  else
    queries.set_bf16();
  return queries;
}

Result<Queries> Queries::with(const Queries& more) const {
  const auto refuse = [](std::string why) {
    return Error{Status::INVALID_ARGUMENT, std::move(why)};
  };
  if (more.count_ != count_)
    return refuse(
        fmt::format("queries of rows in parts: {} of the first channels, {} of the others", count_,
                    more.count_));
  if (more.scale_ != scale_ || more.soft_cap_ != soft_cap_)
    return refuse(
        fmt::format("queries of rows in parts: scores times {} and {}, capped at {} and "
                    "{}: give all parts the same",
                    scale_, more.scale_, soft_cap_, more.soft_cap_));
  if (are_summed() || more.are_summed())
    return refuse("queries of rows in parts: sum them when all parts are together");
  if (more_ != nullptr)
    return refuse(
        "queries of rows in parts: the first ones have more channels already: begin with "
        "the last two parts");
  if (channels_ + more.all_channels() > kMaxChannels)
    return refuse(
        fmt::format("queries of rows in parts: {} channels together, up to {} are possible",
                    channels_ + more.all_channels(), kMaxChannels));
  Queries queries = *this;
  queries.more_ = std::make_shared<const Queries>(more);
  for (uint32_t q = 0; q < count_; ++q) queries.finite_[q] = finite_[q] && more.finite_[q];
  return queries;
}

Result<Queries> Queries::summed(std::span<const float> weights, uint32_t group,
                                bool rectified) const {
  if (group == 0 || count_ % group != 0 || weights.size() != count_)
    return Error{
        Status::INVALID_ARGUMENT,
        fmt::format("{} weights for {} queries in groups of {}: give each query a weight, and "
                    "groups a size that divides the number of queries",
                    weights.size(), count_, group)};
  if (!std::all_of(weights.begin(), weights.end(), [](float x) { return std::isfinite(x); }))
    return Error{Status::INVALID_ARGUMENT, "a weight of a sum is infinite or no number"};
  Queries queries = *this;
  queries.group_ = group;
  queries.rectified_ = rectified;
  queries.weights_.assign(weights.begin(), weights.end());
  return queries;
}

Queries Queries::some(std::span<const uint32_t> which) const {
  std::vector<float> values;
  for (const uint32_t query : which)
    values.insert(values.end(), floats(query), floats(query) + channels_);
  Queries queries =
      of(values, static_cast<uint32_t>(which.size()), channels_, scale_, keys_, soft_cap_).value();
  return more_ == nullptr ? queries : queries.with(more_->some(which)).value();
}

void Queries::set_floats() {
  std::vector<uint32_t> units;
  for (const float value : floats_) units.push_back(std::bit_cast<uint32_t>(value));
  group_units(units);
}

void Queries::set_bf16() {
  const bool exact = std::all_of(floats_.begin(), floats_.end(), [](float x) {
    return (std::bit_cast<uint32_t>(x) & 0xFFFF) == 0;
  });
  terms_ = exact ? 1 : 2;
  const size_t all = floats_.size();
  std::vector<uint16_t> words(all * terms_);
  const bool unpacked = keys_ != NumberFormat::BF16;
  for (size_t i = 0; i < all; ++i) {
    const size_t within = i % 64, quarter = within / 16, second = within / 8 % 2;
    const size_t to = unpacked ? i - within + second * 32 + quarter * 8 + within % 8 : i;
    words[to] = word_of(floats_[i]);
    if (exact) continue;
    const float rest = floats_[i] - from_bf16(words[to]);
    words[all + to] = std::isfinite(rest) ? to_bf16(rest) : uint16_t{0};
  }
  std::vector<uint32_t> units;
  for (size_t i = 0; i < words.size(); i += 2)
    units.push_back(words[i] | uint32_t{words[i + 1]} << 16);
  group_units(units);
}

/// As whole numbers of two bytes, each with a sign. No sum overflows: a lane has at most a quarter
/// of the channels.
void Queries::set_integers() {
  constexpr int32_t kMost = 127 * 256 + 127;
  static_assert(int64_t{kMaxChannels} / 4 * 128 * kMost < std::numeric_limits<int32_t>::max());
  terms_ = 2;
  const size_t all = floats_.size();
  std::vector<uint8_t> bytes(all * terms_);
  for (uint32_t q = 0; q < count_; ++q) {
    const float* from = floats(q);
    float largest = 0;
    for (uint32_t c = 0; c < channels_; ++c) {
      const float size = std::abs(from[c]);  // NaN stays, whatever comes behind it
      largest = std::isnan(largest) || size <= largest ? largest : size;
    }
    // If the largest is NaN, every score is. The unit of a small one would be a denormal float.
    const double unit = static_cast<double>(largest) / kMost;
    factors_[q] = static_cast<float>(static_cast<double>(scale_) * unit);
    if (!(unit > 0)) continue;
    for (uint32_t c = 0; c < channels_; ++c) {
      const auto whole = static_cast<int32_t>(std::lround(static_cast<double>(from[c]) / unit));
      const int32_t high = (whole + 128) >> 8;
      bytes[q * size_t{padded()} + c] = static_cast<uint8_t>(high);
      bytes[all + q * size_t{padded()} + c] = static_cast<uint8_t>(whole - high * 256);
    }
  }
  std::vector<uint32_t> units(bytes.size() / 4);
  for (size_t i = 0; i < bytes.size(); ++i) units[i / 4] |= uint32_t{bytes[i]} << i % 4 * 8;
  group_units(units);
  set_starts();
}

void Queries::set_starts() {
  starts_.assign(size_t{count_} * terms_ * 16, 0);
  for (uint32_t term = 0; term < terms_; ++term) {
    for (uint32_t first = 0; first < count_;) {
      const uint32_t queries = queries_of_group(first), lines = queries == 8 ? 2 : 1;
      const uint32_t* units = group(first, term);
      for (size_t i = 0; i < size_t{queries} * this->units(); ++i) {
        const size_t line = i / 16 % lines, query = first + line * 4;
        int32_t& start = starts_[(size_t{term} * count_ + query) * 16 + i % 16];
        for (uint32_t byte = 0; byte < 4; ++byte)
          start -= 128 * static_cast<int8_t>(units[i] >> byte * 8);
      }
      first += queries;
    }
  }
}

uint32_t Queries::queries_of_group(uint32_t first_query) const {
  const uint32_t left = count_ - first_query;
  return left >= 8 ? 8 : std::bit_floor(left);
}

void Queries::group_units(std::span<const uint32_t> by_query) {
  units_.resize(by_query.size());
  for (uint32_t term = 0; term < terms_; ++term) {
    for (uint32_t first = 0; first < count_;) {
      const uint32_t queries = queries_of_group(first);
      const uint32_t each = 16 / std::min(queries, 4u);  // of a query in a line
      const size_t from = (size_t{term} * count_ + first) * units();
      uint32_t* to = &units_[from];
      for (uint32_t unit = 0; unit < units(); unit += each) {
        for (uint32_t q = 0; q < queries; ++q, to += each)
          std::copy_n(&by_query[from + size_t{q} * units() + unit], each, to);
      }
      first += queries;
    }
  }
}

}  // namespace bowhead::ndp
