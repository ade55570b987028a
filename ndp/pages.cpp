// SPDX-License-Identifier: Apache-2.0
// Tokens by number, and pages by their digests.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "base/prefetch.h"
#include "ndp/operations.h"
#include "ndp/tiles.h"

namespace bowhead::ndp {

namespace {

constexpr size_t kEarly = 8;  // rows that are fetched before they are copied

struct Place {
  const Rows* rows;
  uint32_t token;

  const uint8_t* row() const { return rows->row(token); }
  void fetch() const {
    for (size_t at = 0; at < rows->row_bytes(); at += 64) prefetch_line(row() + at);
  }
};

}  // namespace

Result<void> gather(std::span<const KeySpan> spans, std::span<const uint32_t> tokens,
                    std::span<std::byte> out, std::span<float> scales) {
  if (auto good = check_spans(spans, nullptr); !good) return good;
  std::vector<const KeySpan*> order;
  for (const KeySpan& span : spans) {
    if (span.keys.tokens != 0) order.push_back(&span);
  }
  std::sort(order.begin(), order.end(),
            [](const KeySpan* a, const KeySpan* b) { return a->first_token < b->first_token; });
  const size_t row_bytes = order.empty() ? 0 : order.front()->keys.row_bytes();
  for (const KeySpan* span : order) {
    if (span->keys.number != order.front()->keys.number || span->keys.row_bytes() != row_bytes)
      return Error{Status::INVALID_ARGUMENT, "the spans' rows differ in kind or size"};
    if (span->keys.more != nullptr)
      return Error{Status::INVALID_ARGUMENT, "rows in parts: gather each part by itself"};
  }
  if (out.size() != tokens.size() * row_bytes ||
      (!scales.empty() && scales.size() != tokens.size()))
    return Error{Status::INVALID_ARGUMENT,
                 fmt::format("room for {} bytes and {} scales, while {} rows have {} bytes",
                             out.size(), scales.size(), tokens.size(), tokens.size() * row_bytes)};
  // All places first: so there is something to fetch early, and nothing is written if one is wrong.
  std::vector<Place> places;
  places.reserve(tokens.size());
  for (const uint32_t token : tokens) {
    const auto behind =
        std::upper_bound(order.begin(), order.end(), token,
                         [](uint32_t one, const KeySpan* span) { return one < span->first_token; });
    const KeySpan* span = behind == order.begin() ? nullptr : *(behind - 1);
    if (span == nullptr || token - span->first_token >= span->keys.tokens)
      return Error{Status::INVALID_ARGUMENT, fmt::format("no span has token {}", token)};
    places.push_back({&span->keys, token - span->first_token});
  }
  for (size_t i = 0; i < places.size(); ++i) {
    if (i + kEarly < places.size()) places[i + kEarly].fetch();
    std::memcpy(&out[i * row_bytes], places[i].row(), row_bytes);
    if (scales.empty()) continue;
    const float* of_rows = places[i].rows->scales;
    scales[i] = of_rows == nullptr ? 1 : of_rows[places[i].token];
  }
  return {};
}

Result<Digests> digest(const KeySpan& span, uint32_t page_tokens) {
  if (auto good = check_spans(std::span(&span, 1), nullptr); !good) return good.error();
  if (page_tokens == 0) return Error{Status::INVALID_ARGUMENT, "digests of pages of no token"};
  const uint32_t channels = span.keys.all_channels();
  Digests digests{span.first_token, span.keys.tokens, page_tokens, channels, {}, {}};
  const size_t all = size_t{digests.pages()} * digests.channels;
  digests.least.resize(all);
  digests.largest.resize(all);
  for (uint32_t page = 0; page < digests.pages(); ++page) {
    const uint32_t first = page * page_tokens,
                   count = std::min(page_tokens, digests.tokens - first);
    size_t at = size_t{page} * channels;
    for (const Rows* part = &span.keys; part != nullptr; at += part->channels, part = part->more)
      kernels().bounds(*part, first, count, &digests.least[at], &digests.largest[at]);
  }
  return digests;
}

namespace {

/// No score in the page is higher, except by rounding of either.
float bound_of(const Queries& queries, uint32_t q, const float* least, const float* largest) {
  float bound = 0;
  for (const Queries* part = &queries; part != nullptr; part = part->more()) {
    const float* query = part->floats(q);
    for (uint32_t c = 0; c < part->channels(); ++c) {
      if (query[c] != 0) bound += query[c] * (query[c] > 0 ? largest[c] : least[c]);
    }
    least += part->channels();
    largest += part->channels();
  }
  return std::isnan(bound) ? std::numeric_limits<float>::infinity() : bound;
}

}  // namespace

Result<std::vector<Hit>> select_pages(const Queries& queries, std::span<const Digests> digests,
                                      const Views& views, uint32_t k) {
  if (k == 0) return Error{Status::INVALID_ARGUMENT, "the best 0 pages"};
  if (auto good = check_single(queries); !good) return good.error();
  if (auto good = views.check(queries.count()); !good) return good.error();
  std::vector<Hit> hits;
  for (size_t i = 0; i < digests.size(); ++i) {
    const Digests& d = digests[i];
    const size_t all = d.page_tokens == 0 ? 0 : size_t{d.pages()} * d.channels;
    if (d.channels != queries.all_channels() || d.page_tokens == 0 || d.least.size() != all ||
        d.largest.size() != all)
      return Error{
          Status::INVALID_ARGUMENT,
          fmt::format("digests {}: {} bounds of pages of {} tokens and {} channels, while "
                      "the queries have {} channels",
                      i, d.least.size(), d.page_tokens, d.channels, queries.all_channels())};
    for (uint32_t page = 0; page < d.pages(); ++page) {
      const uint32_t first = d.first_token + page * d.page_tokens;
      const uint32_t tokens = std::min(d.page_tokens, d.tokens - page * d.page_tokens);
      float most = -std::numeric_limits<float>::infinity();
      bool seen = false;
      for (uint32_t q = 0; q < queries.count(); ++q) {
        if (!views.of(q).has_some(first, tokens)) continue;
        seen = true;
        const size_t at = size_t{page} * d.channels;
        most = std::max(most, bound_of(queries, q, &d.least[at], &d.largest[at]));
      }
      if (seen) hits.push_back({most * queries.scale(), first});
    }
  }
  const size_t some = std::min<size_t>(k, hits.size());
  std::partial_sort(hits.begin(), hits.begin() + static_cast<long>(some), hits.end(), better);
  hits.resize(some);
  return hits;
}

}  // namespace bowhead::ndp
