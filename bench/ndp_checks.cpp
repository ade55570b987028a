// SPDX-License-Identifier: Apache-2.0
#include "bench/ndp_checks.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "ndp/kernels.h"
#include "ndp/numbers.h"

namespace bowhead::bench {
namespace {

using ndp::Hit;
using ndp::KeySpan;
using ndp::Queries;

/// A score by the definition, and the allowed error of another answer.
struct Exact {
  float score;
  float tolerance;
};

float number_at(const ndp::Rows& rows, uint32_t token, uint32_t channel) {
  const float scale = rows.scales == nullptr ? 1 : rows.scales[token];
  return scale * ndp::load_number(rows.number,
                                  rows.row(token) + size_t{channel} * element_bytes(rows.number));
}

Exact exact_score(const Queries& queries, uint32_t query, const KeySpan& span, uint32_t token) {
  std::vector<float> scores(size_t{queries.count()} * ndp::kTileTokens);
  ndp::kernels_here().front()->score(queries, span.keys, token, 1, scores.data());
  const std::span<const float> q(queries.floats(query), queries.channels());
  float largest = 0;
  for (const float value : q) largest = std::max(largest, std::abs(value));
  const bool int8 = span.keys.number == NumberFormat::INT8;
  float reach = 0;
  for (uint32_t c = 0; c < queries.channels(); ++c)
    reach += std::abs(number_at(span.keys, token, c)) * (int8 ? largest : std::abs(q[c]));
  return {scores[size_t{query} * ndp::kTileTokens],
          2 * ndp::kScoreTolerance * reach * queries.scale()};
}

Error wrong_answer(std::string what) { return {Status::DAMAGED, std::move(what)}; }

}  // namespace

Result<void> check_score(const Queries& queries, uint32_t query, const KeySpan& span,
                         uint32_t token, float score) {
  const Exact exact = exact_score(queries, query, span, token);
  if (std::abs(score - exact.score) <= exact.tolerance) return {};
  return wrong_answer(fmt::format("{} keys: query {} scores token {} of a span {}, not {}",
                                  number_name(span.keys.number), query, token, score, exact.score));
}

Result<void> check_scores(const Queries& queries, std::span<const KeySpan> spans,
                          std::span<const float> scores) {
  const size_t all = spans.size() * kSpanTokens;
  const uint32_t step = kSpanTokens - 1;  // the first and the last
  for (size_t i = 0; i < spans.size(); i += 1 + spans.size() / 16) {
    for (uint32_t token = 0; token < kSpanTokens; token += step) {
      for (uint32_t q = 0; q < queries.count(); ++q) {
        const float score = scores[q * all + i * kSpanTokens + token];
        if (auto good = check_score(queries, q, spans[i], token, score); !good) return good;
      }
    }
  }
  return {};
}

Result<void> check_hits(const Queries& queries, std::span<const KeySpan> spans,
                        std::span<const float> scores, uint32_t query, std::span<const Hit> hits) {
  const size_t all = spans.size() * kSpanTokens;
  std::vector<bool> hit(all);
  for (const Hit& it : hits) {
    if (it.token >= all || hit[it.token])
      return wrong_answer(fmt::format("token {} is unknown, or twice among the best", it.token));
    hit[it.token] = true;
    const KeySpan& span = spans[it.token / kSpanTokens];
    if (auto good = check_score(queries, query, span, it.token % kSpanTokens, it.score); !good)
      return good;
  }
  if (!std::is_sorted(hits.begin(), hits.end(), ndp::better))
    return wrong_answer("the best are not in order");
  for (uint32_t token = 0; token < all; ++token) {
    const float score = scores[query * all + token];
    if (hit[token] || score <= hits.back().score) continue;
    const Exact exact =
        exact_score(queries, query, spans[token / kSpanTokens], token % kSpanTokens);
    if (exact.score > hits.back().score + 2 * exact.tolerance)
      return wrong_answer(fmt::format("token {} with score {} is not among the best of query {}",
                                      token, exact.score, query));
  }
  return {};
}

Result<void> check_attention(const Queries& queries, std::span<const ndp::KvSpan> spans,
                             const ndp::Attention& attention) {
  const uint32_t channels = spans.front().values.channels;
  for (uint32_t q = 0; q < queries.count(); ++q) {
    std::vector<double> sums(channels), reaches(channels);
    double weights = 0, error = 0;
    for (const ndp::KvSpan& span : spans) {
      for (uint32_t token = 0; token < span.keys.tokens; ++token) {
        const Exact exact = exact_score(queries, q, {span.first_token, span.keys}, token);
        const double weight = std::exp(exact.score);
        error = std::max(error, double{exact.tolerance});
        weights += weight;
        for (uint32_t c = 0; c < channels; ++c) {
          const double value = number_at(span.values, token, c);
          sums[c] += weight * value;
          reaches[c] += weight * std::abs(value);
        }
      }
    }
    std::vector<float> out(channels);
    if (attention.output(q, out) != Status::OK) return wrong_answer("no output of attention");
    for (uint32_t c = 0; c < channels; ++c) {
      const double tolerance = 2 * (ndp::kWeightTolerance + error) * reaches[c] / weights;
      if (!(std::abs(out[c] - sums[c] / weights) <= tolerance))
        return wrong_answer(fmt::format("attention of query {} to channel {} is {}, not {}", q, c,
                                        out[c], sums[c] / weights));
    }
  }
  return {};
}

Result<void> check_digests(const KeySpan& span, const ndp::Digests& digests) {
  const uint32_t channels = span.keys.channels;
  std::vector<float> least(channels), largest(channels);
  for (uint32_t page = 0; page < digests.pages(); ++page) {
    ndp::kernels_here().front()->bounds(span.keys, page * digests.page_tokens, digests.page_tokens,
                                        least.data(), largest.data());
    const size_t at = size_t{page} * channels;
    if (!std::equal(least.begin(), least.end(), digests.least.begin() + static_cast<long>(at)) ||
        !std::equal(largest.begin(), largest.end(),
                    digests.largest.begin() + static_cast<long>(at)))
      return wrong_answer(fmt::format("page {} of a span has wrong bounds", page));
  }
  return {};
}

}  // namespace bowhead::bench
