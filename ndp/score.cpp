// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "ndp/operations.h"
#include "ndp/tiles.h"

namespace bowhead::ndp {
namespace {

constexpr uint32_t kFewHits = 256;

/// As Kernels::select, of the tokens of a view.
uint32_t select_seen(const Visible& visible, const float* scores, uint32_t count, float least,
                     uint32_t first_token, Hit* out) {
  uint32_t taken = 0;
  for (uint32_t i = 0; i < count; ++i) {
    if (visible.has(first_token + i) && (std::isnan(least) || scores[i] >= least))
      out[taken++] = {scores[i], first_token + i};
  }
  return taken;
}

}  // namespace

Result<void> score(const Queries& queries, std::span<const KeySpan> spans, const Views& views,
                   std::span<float> scores) {
  if (auto good = check_spans(spans, &queries); !good) return good;
  if (auto good = views.check(queries.answers()); !good) return good;
  size_t all = 0;
  for (const KeySpan& span : spans) all += span.keys.tokens;
  if (scores.size() != all * queries.answers())
    return Error{Status::INVALID_ARGUMENT,
                 fmt::format("room for {} scores, while {} queries of {} tokens have {}",
                             scores.size(), queries.answers(), all, all * queries.answers())};
  std::fill(scores.begin(), scores.end(), kNever);
  std::vector<float> tile(tile_floats(queries));
  size_t at = 0;
  for (size_t i = 0; i < spans.size(); ++i) {
    const KeySpan& span = spans[i];
    fetch_ahead(spans, i);
    for_tiles(span.first_token, span.keys.tokens, views.any(), [&](uint32_t first, uint32_t count) {
      score_tile(queries, views, span.first_token, span.keys, first, count, tile.data());
      for (uint32_t q = 0; q < queries.answers(); ++q)
        std::copy_n(&tile[size_t{q} * kTileTokens], count, &scores[q * all + at + first]);
    });
    at += span.keys.tokens;
  }
  return {};
}

// ---- the best ----

TopK::TopK(uint32_t queries, uint32_t k) : k_(k), best_(queries) {
  // Hits are put in order only now and then; a tile of them may be written behind the last.
  const uint32_t room = std::max(2 * k, kFewHits) + kTileTokens;
  for (Best& best : best_) {
    best.hits.resize(room);
    best.least = std::numeric_limits<float>::quiet_NaN();
  }
  scores_.resize(size_t{queries} * kTileTokens);
}

Result<TopK> TopK::of(uint32_t queries, uint32_t k) {
  if (queries == 0 || queries > kMaxQueries || k == 0 || k > kMaxK ||
      uint64_t{queries} * k > kMaxHits)
    return Error{
        Status::INVALID_ARGUMENT,
        fmt::format("the {} best of {} queries: 1 to {} of 1 to {} are possible, {} in all", k,
                    queries, kMaxK, kMaxQueries, kMaxHits)};
  return TopK(queries, k);
}

/// Keeps the k best.
void TopK::shrink(Best& best) {
  if (best.count <= k_) return;
  best.least = chooser_.keep(std::span(best.hits).first(best.count), k_).score;
  best.count = k_;
}

void TopK::take(Best& best, uint32_t more) {
  best.count += more;
  if (best.count + kTileTokens > best.hits.size()) shrink(best);
}

Result<void> TopK::add(const Queries& queries, std::span<const KeySpan> spans, const Views& views) {
  if (queries.answers() != best_.size())
    return Error{Status::INVALID_ARGUMENT, fmt::format("{} queries, while this has the best of {}",
                                                       queries.answers(), best_.size())};
  if (auto good = check_spans(spans, &queries); !good) return good;
  if (auto good = views.check(queries.answers()); !good) return good;
  scores_.resize(std::max(scores_.size(), tile_floats(queries)));
  const Kernels& use = kernels();
  for (size_t i = 0; i < spans.size(); ++i) {
    const KeySpan& span = spans[i];
    fetch_ahead(spans, i);
    for_tiles(span.first_token, span.keys.tokens, views.any(), [&](uint32_t first, uint32_t count) {
      if (queries.are_summed())
        score_tile(queries, views.any(), span.first_token, span.keys, first, count, scores_.data());
      else
        score_rows(queries, span.keys, first, count, scores_.data());
      const uint32_t position = span.first_token + first;
      for (uint32_t q = 0; q < queries.answers(); ++q) {
        Best& best = best_[q];
        const float* scores = &scores_[size_t{q} * kTileTokens];
        Hit* to = &best.hits[best.count];
        take(best, views.of(q).has_all(position, count)
                       ? use.select(scores, count, best.least, position, to)
                       : select_seen(views.of(q), scores, count, best.least, position, to));
      }
    });
  }
  return {};
}

Result<void> TopK::merge(const TopK& other) {
  if (other.best_.size() != best_.size() || other.k_ != k_)
    return Error{Status::INVALID_ARGUMENT,
                 fmt::format("the {} best of {} queries do not merge with the {} best of {}",
                             other.k_, other.best_.size(), k_, best_.size())};
  for (uint32_t q = 0; q < best_.size(); ++q)
    add(q, {other.best_[q].hits.data(), other.best_[q].count});
  return {};
}

void TopK::add(uint32_t query, std::span<const Hit> hits) {
  Best& best = best_[query];
  for (const Hit& hit : hits) {
    best.hits[best.count] = hit;
    take(best, 1);
  }
}

std::span<const Hit> TopK::hits(uint32_t query) {
  Best& best = best_[query];
  shrink(best);
  std::sort(best.hits.begin(), best.hits.begin() + best.count, better);
  return {best.hits.data(), best.count};
}

}  // namespace bowhead::ndp
