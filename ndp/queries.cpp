// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "ndp/numbers.h"
#include "ndp/rows.h"

namespace bowhead::ndp {

Result<Queries> Queries::of(std::span<const float> values, uint32_t count, uint32_t channels,
                            float scale) {
  if (count == 0 || count > kMaxQueries || channels == 0 || channels > kMaxChannels)
    return Error{Status::INVALID_ARGUMENT,
                 fmt::format("{} queries of {} channels: give 1 to {} of 1 to {}", count, channels,
                             kMaxQueries, kMaxChannels)};
  if (values.size() != size_t{count} * channels)
    return Error{Status::INVALID_ARGUMENT,
                 fmt::format("{} queries of {} channels are {} numbers, and not {}", count,
                             channels, size_t{count} * channels, values.size())};
  if (!(scale > 0) || !std::isfinite(scale))
    return Error{
        Status::INVALID_ARGUMENT,
        fmt::format("scores times {}: give a scale above 0, as 1 / sqrt(channels)", scale)};
  Queries queries;
  queries.count_ = count;
  queries.channels_ = channels;
  queries.scale_ = scale;
  queries.floats_.resize(size_t{count} * queries.padded());
  for (uint32_t q = 0; q < count; ++q)
    std::copy_n(values.begin() + q * channels, channels,
                queries.floats_.begin() + q * queries.padded());
  queries.set_bf16();
  queries.set_integers();
  return queries;
}

void Queries::set_bf16() {
  const size_t all = floats_.size();
  exact_bf16_ = std::all_of(floats_.begin(), floats_.end(),
                            [](float x) { return (std::bit_cast<uint32_t>(x) & 0xFFFF) == 0; });
  bf16_.resize(all * bf16_parts());
  bf16_unpacked_.resize(bf16_.size());
  for (size_t i = 0; i < all; ++i) {
    bf16_[i] = to_bf16(floats_[i]);
    if (exact_bf16_) continue;
    const float rest = floats_[i] - from_bf16(bf16_[i]);
    bf16_[all + i] = std::isfinite(rest) ? to_bf16(rest) : uint16_t{0};
  }
  for (size_t i = 0; i < bf16_.size(); ++i) {
    const size_t within = i % 64, quarter = within / 16, second = within / 8 % 2;
    bf16_unpacked_[i - within + second * 32 + quarter * 8 + within % 8] = bf16_[i];
  }
}

void Queries::set_integers() {
  const uint32_t most = std::min(32767u, 0x7FFFFFFFu / (128 * channels_));
  integers_.resize(floats_.size());
  units_.resize(count_);
  for (uint32_t q = 0; q < count_; ++q) {
    const float* from = floats(q);
    float largest = 0;
    for (uint32_t c = 0; c < channels_; ++c)  // this way round what is not a number stays
      largest = std::abs(from[c]) <= largest ? largest : std::abs(from[c]);
    // Without a number to go by every score is not one.
    units_[q] = std::isfinite(largest) ? largest / static_cast<float>(most)
                                       : std::numeric_limits<float>::quiet_NaN();
    if (!(units_[q] > 0)) continue;
    for (uint32_t c = 0; c < channels_; ++c)
      integers_[size_t{q} * padded() + c] = static_cast<int16_t>(std::lround(
          std::clamp(from[c] / units_[q], -static_cast<float>(most), static_cast<float>(most))));
  }
}

}  // namespace bowhead::ndp
