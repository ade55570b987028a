// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "ndp/numbers.h"
#include "ndp/rows.h"

namespace bowhead::ndp {

Result<Queries> Queries::of(std::span<const float> values, uint32_t count, uint32_t channels,
                            float scale, NumberKind keys) {
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
  if (compression::number_of(keys) == nullptr)
    return refuse(
        fmt::format("queries for keys of number kind {}: it has to be one with a value, "
                    "such as bf16",
                    static_cast<int>(keys)));
  Queries queries;
  queries.count_ = count;
  queries.channels_ = channels;
  queries.scale_ = scale;
  queries.keys_ = keys;
  queries.factors_.assign(count, scale);
  queries.floats_.resize(size_t{count} * queries.padded());
  for (uint32_t q = 0; q < count; ++q)
    std::copy_n(values.begin() + q * channels, channels,
                queries.floats_.begin() + q * queries.padded());
  if (keys == NumberKind::FP16)
    queries.set_floats();
  else if (keys == NumberKind::INT8)
    queries.set_integers();
  else
    queries.set_bf16();
  return queries;
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
  parts_ = exact ? 1 : 2;
  const size_t all = floats_.size();
  std::vector<uint16_t> words(all * parts_);
  const bool unpacked = keys_ != NumberKind::BF16;
  for (size_t i = 0; i < all; ++i) {
    const size_t within = i % 64, quarter = within / 16, second = within / 8 % 2;
    const size_t to = unpacked ? i - within + second * 32 + quarter * 8 + within % 8 : i;
    words[to] = to_bf16(floats_[i]);
    if (exact) continue;
    const float rest = floats_[i] - from_bf16(words[to]);
    words[all + to] = std::isfinite(rest) ? to_bf16(rest) : uint16_t{0};
  }
  std::vector<uint32_t> units;
  for (size_t i = 0; i < words.size(); i += 2)
    units.push_back(words[i] | uint32_t{words[i + 1]} << 16);
  group_units(units);
}

/// As so small whole numbers that no sum of products with int8 overflows.
void Queries::set_integers() {
  const uint32_t most = std::min(32767u, 0x7FFFFFFFu / (128 * padded()));
  std::vector<uint32_t> units(size_t{count_} * padded() / 2);
  for (uint32_t q = 0; q < count_; ++q) {
    const float* from = floats(q);
    float largest = 0;
    for (uint32_t c = 0; c < channels_; ++c)  // this way round what is not a number stays
      largest = std::abs(from[c]) <= largest ? largest : std::abs(from[c]);
    // Without a number to go by every score is not one.
    const float unit = std::isfinite(largest) ? largest / static_cast<float>(most)
                                              : std::numeric_limits<float>::quiet_NaN();
    factors_[q] *= unit;
    if (!(unit > 0)) continue;
    for (uint32_t c = 0; c < channels_; ++c) {
      const float whole =
          std::clamp(from[c] / unit, -static_cast<float>(most), static_cast<float>(most));
      const auto word = static_cast<uint16_t>(std::lround(whole));
      units[(q * size_t{padded()} + c) / 2] |= uint32_t{word} << c % 2 * 16;
    }
  }
  group_units(units);
}

void Queries::group_units(std::span<const uint32_t> by_query) {
  units_.resize(by_query.size());
  const uint32_t rows = count_ * parts_;
  for (uint32_t row = 0; row < rows;) {
    const uint32_t left = count_ - row % count_;
    const uint32_t queries = left >= 8 ? 8 : std::bit_floor(left);
    const uint32_t each = queries == 1 ? 16 : 32 / queries;  // of a query in a line
    uint32_t* to = &units_[size_t{row} * units()];
    for (uint32_t unit = 0; unit < units(); unit += each) {
      for (uint32_t q = 0; q < queries; ++q, to += each)
        std::copy_n(&by_query[size_t{row + q} * units() + unit], each, to);
    }
    row += queries;
  }
}

}  // namespace bowhead::ndp
