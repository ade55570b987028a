// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "ndp/operations.h"
#include "ndp/tiles.h"

namespace bowhead::ndp {
namespace {

/// Kernels write whole registers.
size_t padded(uint32_t channels) { return (size_t{channels} + 63) / 64 * 64; }

}  // namespace

Attention::Attention(uint32_t queries, uint32_t channels)
    : queries_(queries),
      channels_(channels),
      largest_(queries, kNever),
      weights_(queries, 0),
      sums_(queries * padded(channels), 0),
      tile_(size_t{queries} * kTileTokens) {}

Result<Attention> Attention::of(uint32_t queries, uint32_t channels) {
  if (queries == 0 || queries > kMaxQueries || channels == 0 || channels > kMaxChannels)
    return Error{
        Status::INVALID_ARGUMENT,
        fmt::format("attention of {} queries to values of {} channels: 1 to {} and 1 to {} "
                    "are possible",
                    queries, channels, kMaxQueries, kMaxChannels)};
  return Attention(queries, channels);
}

Result<void> Attention::add(const Queries& queries, std::span<const KvSpan> spans,
                            const Views& views) {
  if (queries.count() != queries_)
    return Error{Status::INVALID_ARGUMENT, fmt::format("{} queries, while this is attention of {}",
                                                       queries.count(), queries_)};
  if (auto good = check_spans(spans, &queries); !good) return good;
  if (auto good = check_single(queries); !good) return good;
  if (auto good = views.check(queries_); !good) return good;
  for (size_t i = 0; i < spans.size(); ++i) {
    const Rows& values = spans[i].values;
    if (values.all_channels() != channels_)
      return Error{Status::INVALID_ARGUMENT,
                   fmt::format("values of span {}: {} channels, while this is attention to {}", i,
                               values.all_channels(), channels_)};
    for (const Rows* part = &values; part->more != nullptr; part = part->more) {
      if (part->channels % 64 != 0)
        return Error{
            Status::INVALID_ARGUMENT,
            fmt::format("values of span {}: a part of {} channels that is not the last one: "
                        "give it a multiple of 64",
                        i, part->channels)};
    }
  }
  tile_.resize(std::max(tile_.size(), tile_floats(queries)));
  for (size_t i = 0; i < spans.size(); ++i) {
    fetch_ahead(spans, i);
    for_tiles(
        spans[i].first_token, spans[i].keys.tokens, views.any(),
        [&](uint32_t first, uint32_t count) { add_tile(queries, spans[i], first, count, views); });
  }
  return {};
}

/// Sums are relative to the largest score so far: where a tile has a larger one, earlier sums are
/// scaled down.
void Attention::add_tile(const Queries& queries, const KvSpan& span, uint32_t first, uint32_t count,
                         const Views& views) {
  const Kernels& use = kernels();
  const size_t stride = padded(channels_);
  const uint32_t position = span.first_token + first;
  score_tile(queries, views, span.first_token, span.keys, first, count, tile_.data());
  for (uint32_t q = 0; q < queries_; ++q) {
    float* scores = &tile_[size_t{q} * kTileTokens];
    const float largest = use.largest(scores);
    if (largest > largest_[q]) {
      const float less = std::exp(largest_[q] - largest);
      largest_[q] = largest;
      weights_[q] *= less;
      if (less != 1)
        for (size_t c = 0; c < stride; ++c) sums_[q * stride + c] *= less;
    }
    // Nothing but negative infinity so far: no weight, instead of infinity less infinity.
    weights_[q] +=
        use.exponentials(scores, std::max(largest_[q], std::numeric_limits<float>::lowest()));
  }
  size_t channel = 0;
  for (const Rows* part = &span.values; part != nullptr; part = part->more) {
    weigh_tile(*part, position, first, count, views, &sums_[channel]);
    channel += part->channels;
  }
}

/// Adds values by the weights in tile_ to sums that are those of the first query.
void Attention::weigh_tile(const Rows& values, uint32_t position, uint32_t first, uint32_t count,
                           const Views& views, float* sums) {
  const Kernels& use = kernels();
  const size_t stride = padded(channels_);
  const float* weights = tile_.data();
  if (values.scales != nullptr) {
    scaled_.resize(size_t{queries_} * kTileTokens);
    for (uint32_t q = 0; q < queries_; ++q) {
      const float* from = weights + size_t{q} * kTileTokens;
      float* to = &scaled_[size_t{q} * kTileTokens];
      for (uint32_t i = 0; i < count; ++i) to[i] = from[i] * values.scales[first + i];
      std::fill(to + count, to + kTileTokens, 0.0f);
    }
    weights = scaled_.data();
  }
  if (views.have_all(queries_, position, count)) {
    use.weigh(weights, queries_, values, first, count, sums, stride);
    return;
  }
  // Values that a query does not see may be infinite or NaN, which no weight makes zero.
  for (uint32_t q = 0; q < queries_; ++q) {
    for_visible(position, count, views.of(q), [&](uint32_t from, uint32_t some) {
      std::array<float, kTileTokens> seen{};
      std::copy_n(weights + size_t{q} * kTileTokens + from, some, seen.begin());
      use.weigh(seen.data(), 1, values, first + from, some, sums + q * stride, stride);
    });
  }
}

Result<void> Attention::merge(const Attention& other) {
  if (other.queries_ != queries_ || other.channels_ != channels_)
    return Error{Status::INVALID_ARGUMENT,
                 fmt::format("attention of {} queries to {} channels does not merge with {} to {}",
                             other.queries_, other.channels_, queries_, channels_)};
  const size_t stride = padded(channels_);
  for (uint32_t q = 0; q < queries_; ++q) {
    const float largest = std::max(largest_[q], other.largest_[q]);
    if (largest == kNever) continue;
    const float own = std::exp(largest_[q] - largest);
    const float others = std::exp(other.largest_[q] - largest);
    largest_[q] = largest;
    weights_[q] = weights_[q] * own + other.weights_[q] * others;
    for (size_t c = q * stride; c < (q + 1) * stride; ++c)
      sums_[c] = sums_[c] * own + other.sums_[c] * others;
  }
  return {};
}

Result<void> Attention::merge(std::span<const float> outputs, std::span<const float> log_sum_exps) {
  if (outputs.size() != size_t{queries_} * channels_ || log_sum_exps.size() != queries_)
    return Error{Status::INVALID_ARGUMENT,
                 fmt::format("{} outputs and {} log-sum-exps, while {} queries have {} and {}",
                             outputs.size(), log_sum_exps.size(), queries_,
                             size_t{queries_} * channels_, queries_)};
  // Weights that sum to 1, relative to the log-sum-exp.
  Attention other(queries_, channels_);
  for (uint32_t q = 0; q < queries_; ++q) {
    if (log_sum_exps[q] == kNever) continue;
    other.largest_[q] = log_sum_exps[q];
    other.weights_[q] = 1;
    std::copy_n(outputs.begin() + q * channels_, channels_,
                other.sums_.begin() + static_cast<long>(q * padded(channels_)));
  }
  return merge(other);
}

Status Attention::output(uint32_t query, std::span<float> out) const {
  if (query >= queries_ || out.size() != channels_) return Status::INVALID_ARGUMENT;
  const float weight = weights_[query];
  for (uint32_t c = 0; c < channels_; ++c)
    out[c] = weight == 0 ? 0 : sums_[query * padded(channels_) + c] / weight;
  return Status::OK;
}

float Attention::log_sum_exp(uint32_t query) const {
  return weights_[query] == 0 ? kNever : largest_[query] + std::log(weights_[query]);
}

Result<void> add_mass(const Queries& queries, std::span<const KeySpan> spans, const Views& views,
                      std::span<const float> log_sum_exps, std::span<float> mass) {
  if (auto good = check_spans(spans, &queries); !good) return good;
  if (auto good = check_single(queries); !good) return good;
  if (auto good = views.check(queries.count()); !good) return good;
  size_t all = 0;
  for (const KeySpan& span : spans) all += span.keys.tokens;
  if (mass.size() != all || log_sum_exps.size() != queries.count())
    return Error{Status::INVALID_ARGUMENT,
                 fmt::format("masses of {} tokens and {} log-sum-exps, while there are {} and {}",
                             mass.size(), log_sum_exps.size(), all, queries.count())};
  const Kernels& use = kernels();
  std::vector<float> tile(tile_floats(queries));
  size_t at = 0;
  for (const KeySpan& span : spans) {
    for_tiles(span.first_token, span.keys.tokens, views.any(), [&](uint32_t first, uint32_t count) {
      score_tile(queries, views, span.first_token, span.keys, first, count, tile.data());
      for (uint32_t q = 0; q < queries.count(); ++q) {
        if (log_sum_exps[q] == kNever) continue;
        float* weights = &tile[size_t{q} * kTileTokens];
        use.exponentials(weights, log_sum_exps[q]);
        for (uint32_t i = 0; i < count; ++i) mass[at + first + i] += weights[i];
      }
    });
    at += span.keys.tokens;
  }
  return {};
}

}  // namespace bowhead::ndp
