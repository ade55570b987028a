// SPDX-License-Identifier: Apache-2.0
// Common to all operations on spans: they refuse invalid ones, and go over visible tokens.
#pragma once

#include <algorithm>
#include <limits>
#include <span>
#include <vector>

#include "ndp/checkpoint.h"
#include "ndp/kernels.h"

namespace bowhead::ndp {

/// The score of no token.
inline constexpr float kNever = -std::numeric_limits<float>::infinity();

/// Tokens of the sequence that a span or a block holds, and which one it is.
struct HeldTokens {
  uint32_t first, count;
  size_t holder;
};
/// INVALID_ARGUMENT: two of these "span"s or "block"s hold the same token, or one is beyond 32
/// bits.
Result<void> check_apart(const char* holder, std::vector<HeldTokens> held);

/// INVALID_ARGUMENT: they are summed, which an operation does not know.
inline Result<void> check_single(const Queries& queries) {
  if (!queries.are_summed()) return {};
  return Error{Status::INVALID_ARGUMENT,
               "sums of queries: scores and the best keys alone have them"};
}

/// INVALID_ARGUMENT as operations.h says. `queries`: those that keys have to fit; null: any.
template <class Span>
Result<void> check_spans(std::span<const Span> spans, const Queries* queries);

/// Brings rows that are soon to be read to a cache, of spans as small as pages of an engine's
/// cache: scattered over memory, each ends before the CPU reads ahead. `at`: the span that is next.
void fetch_ahead(const Rows& rows);
inline void fetch_ahead(const KeySpan& span) { fetch_ahead(span.keys); }
inline void fetch_ahead(const KvSpan& span) {
  fetch_ahead(span.keys);
  fetch_ahead(span.values);
}
template <class Span>
void fetch_ahead(std::span<const Span> spans, size_t at) {
  constexpr size_t kSpansAhead = 2;
  if (at + kSpansAhead < spans.size()) fetch_ahead(spans[at + kSpansAhead]);
}

/// Calls each(first, count) for the visible tokens of a span, by their number in it: once, or
/// twice where there are sinks.
template <class Each>
void for_visible(uint32_t first_token, uint32_t tokens, const Visible& visible, const Each& each) {
  const uint64_t end = std::min<uint64_t>(uint64_t{first_token} + tokens, visible.end);
  const auto run = [&](uint64_t from, uint64_t to) {
    from = std::max<uint64_t>(from, first_token);
    to = std::min(to, end);
    if (from < to)
      each(static_cast<uint32_t>(from - first_token), static_cast<uint32_t>(to - from));
  };
  run(0, std::min(visible.sinks, visible.begin));
  run(visible.begin, end);
}

/// The same, at most kTileTokens at a time, with a checkpoint before each.
template <class Each>
void for_tiles(uint32_t first_token, uint32_t tokens, const Visible& visible, const Each& each) {
  for_visible(first_token, tokens, visible, [&](uint32_t first, uint32_t left) {
    for (uint32_t count; left > 0; first += count, left -= count) {
      count = std::min(left, kTileTokens);
      if (!pass_checkpoint(count)) return;
      each(first, count);
    }
  });
}

/// Space for the scores of a tile.
size_t tile_floats(const Queries& queries);
/// scores[q * kTileTokens + i]: of query q and token first + i of a span, without a soft cap.
void score_rows(const Queries& queries, const Rows& keys, uint32_t first, uint32_t count,
                float* scores);
/// scores[a * kTileTokens + i]: of answer a and token first + i of a span, with the soft cap; that
/// of no token where the answer's view does not have it, and for i from `count` to before
/// kTileTokens.
void score_tile(const Queries& queries, const Views& views, uint32_t first_token, const Rows& keys,
                uint32_t first, uint32_t count, float* scores);

}  // namespace bowhead::ndp
