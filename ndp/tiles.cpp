// SPDX-License-Identifier: Apache-2.0
#include "ndp/tiles.h"

#include <fmt/format.h>

#include <array>
#include <vector>

namespace bowhead::ndp {

namespace {

Result<void> check_part(const Rows& rows, const char* what, size_t span, const Queries* queries) {
  const auto refuse = [&](const std::string& why) {
    return Error{Status::INVALID_ARGUMENT, fmt::format("{} of span {}: {}", what, span, why)};
  };
  if (compression::number_of(rows.number) == nullptr)
    return refuse(fmt::format("number kind {}: it has to be one with a value, such as bf16",
                              static_cast<int>(rows.number)));
  if (rows.channels == 0 || rows.channels > kMaxChannels)
    return refuse(fmt::format("{} channels: 1 to {} are possible", rows.channels, kMaxChannels));
  if (queries != nullptr && rows.channels != queries->channels())
    return refuse(
        fmt::format("{} channels, while the queries have {}", rows.channels, queries->channels()));
  if (queries != nullptr && rows.number != queries->keys())
    return refuse(fmt::format("they are {}, while the queries are for {}", number_name(rows.number),
                              number_name(queries->keys())));
  if (rows.tokens == 0) return {};
  if (rows.data == nullptr) return refuse(fmt::format("{} tokens at a null pointer", rows.tokens));
  if (rows.stride_bytes < rows.row_bytes())
    return refuse(fmt::format("rows of {} bytes overlap at a stride of {}", rows.row_bytes(),
                              rows.stride_bytes));
  return {};
}

/// In any number of parts.
Result<void> check_rows(const Rows& rows, const char* what, size_t span, const Queries* queries) {
  const auto refuse = [&](const std::string& why) {
    return Error{Status::INVALID_ARGUMENT, fmt::format("{} of span {}: {}", what, span, why)};
  };
  const bool for_queries = queries != nullptr;
  uint32_t all = 0;
  for (const Rows* part = &rows; part != nullptr; part = part->more) {
    if (auto good = check_part(*part, what, span, queries); !good) return good;
    if (part->tokens != rows.tokens)
      return refuse(
          fmt::format("a part has {} tokens, and the first one {}", part->tokens, rows.tokens));
    all += part->channels;
    if (all > kMaxChannels)
      return refuse(
          fmt::format("parts of {} channels together: up to {} are possible", all, kMaxChannels));
    if (!for_queries) continue;
    queries = queries->more();
    if ((queries == nullptr) != (part->more == nullptr))
      return refuse(fmt::format("they come in {} parts than the queries",
                                queries == nullptr ? "more" : "fewer"));
  }
  return {};
}

Result<void> check_span(const KeySpan& span, size_t at, const Queries* queries) {
  return check_rows(span.keys, "keys", at, queries);
}
Result<void> check_span(const KvSpan& span, size_t at, const Queries* queries) {
  if (auto good = check_rows(span.keys, "keys", at, queries); !good) return good;
  if (auto good = check_rows(span.values, "values", at, nullptr); !good) return good;
  if (span.keys.tokens == span.values.tokens) return {};
  return Error{Status::INVALID_ARGUMENT,
               fmt::format("span {} has keys of {} tokens and values of {}", at, span.keys.tokens,
                           span.values.tokens)};
}

}  // namespace

Result<void> check_apart(const char* holder, std::vector<HeldTokens> held) {
  std::erase_if(held, [](const HeldTokens& tokens) { return tokens.count == 0; });
  std::sort(held.begin(), held.end(), [](const HeldTokens& a, const HeldTokens& b) {
    return a.first != b.first ? a.first < b.first : a.count < b.count;
  });
  uint64_t before = 0;  // where the one before ends
  for (size_t i = 0; i < held.size(); ++i) {
    const HeldTokens& tokens = held[i];
    if (tokens.first < before)
      return Error{Status::INVALID_ARGUMENT,
                   fmt::format("{0}s {1} and {2} both hold token {3}", holder, held[i - 1].holder,
                               tokens.holder, tokens.first)};
    before = uint64_t{tokens.first} + tokens.count;
    if (before > std::numeric_limits<uint32_t>::max())
      return Error{Status::INVALID_ARGUMENT,
                   fmt::format("{} {} ends at token {}: positions have 32 bits", holder,
                               tokens.holder, before)};
  }
  return {};
}

namespace {

/// Each group's scores become their sum, in the first tiles.
void sum_groups(const Queries& queries, float* scores) {
  for (uint32_t answer = 0; answer < queries.answers(); ++answer) {
    std::array<float, kTileTokens> sums{};
    for (uint32_t q = answer * queries.group(); q < (answer + 1) * queries.group(); ++q) {
      const float weight = queries.weights()[q], least = queries.are_rectified() ? 0 : kNever;
      const float* __restrict of = scores + size_t{q} * kTileTokens;
      for (uint32_t i = 0; i < kTileTokens; ++i)
        sums[i] += weight * (of[i] < least ? least : of[i]);  // NaN stays
    }
    std::copy(sums.begin(), sums.end(), scores + size_t{answer} * kTileTokens);
  }
}

}  // namespace

size_t tile_floats(const Queries& queries) {
  return size_t{queries.count()} * kTileTokens * (queries.more() == nullptr ? 1 : 2);
}

void score_rows(const Queries& queries, const Rows& keys, uint32_t first, uint32_t count,
                float* scores) {
  const Kernels& use = kernels();
  use.score(queries, keys, first, count, scores);
  const size_t all = size_t{queries.count()} * kTileTokens;
  float* of_part = scores + all;
  const Rows* rows = keys.more;
  for (const Queries* of = queries.more(); of != nullptr; of = of->more(), rows = rows->more) {
    use.score(*of, *rows, first, count, of_part);
    for (size_t i = 0; i < all; ++i) scores[i] += of_part[i];
  }
}

void score_tile(const Queries& queries, const Views& views, uint32_t first_token, const Rows& keys,
                uint32_t first, uint32_t count, float* scores) {
  const Kernels& use = kernels();
  score_rows(queries, keys, first, count, scores);
  for (uint32_t q = 0; queries.soft_cap() != 0 && q < queries.count(); ++q)
    use.soft_cap(scores + size_t{q} * kTileTokens, queries.soft_cap());
  if (queries.are_summed()) sum_groups(queries, scores);
  const bool seen = views.have_all(queries.answers(), first_token + first, count);
  for (uint32_t a = 0; a < queries.answers(); ++a, scores += kTileTokens) {
    for (uint32_t i = 0; !seen && i < count; ++i) {
      if (!views.of(a).has(first_token + first + i)) scores[i] = kNever;
    }
    std::fill(scores + count, scores + kTileTokens, kNever);
  }
}

void fetch_ahead(const Rows& rows) {
  if (rows.more != nullptr) fetch_ahead(*rows.more);
  constexpr size_t kMostBytes = 8192;
  const size_t bytes = rows.tokens * rows.stride_bytes;
  if (bytes > kMostBytes) return;
  const auto* data = static_cast<const uint8_t*>(rows.data);
  for (size_t byte = 0; byte < bytes; byte += 64) __builtin_prefetch(data + byte, 0, 2);
}

template <class Span>
Result<void> check_spans(std::span<const Span> spans, const Queries* queries) {
  std::vector<HeldTokens> held;
  held.reserve(spans.size());
  for (size_t i = 0; i < spans.size(); ++i) {
    if (auto good = check_span(spans[i], i, queries); !good) return good;
    held.push_back({spans[i].first_token, spans[i].keys.tokens, i});
  }
  return check_apart("span", std::move(held));
}

template Result<void> check_spans(std::span<const KeySpan>, const Queries*);
template Result<void> check_spans(std::span<const KvSpan>, const Queries*);

}  // namespace bowhead::ndp
