// SPDX-License-Identifier: Apache-2.0
// Computations next to the memory: scores, the best keys, attention in partials, tokens by number,
// digests of pages. Pure functions: they read the spans where they lie, write to the memory they
// are given, and start no threads. Copies and checksums are those of base/, compression that of
// compression/.
//
// Every operation refuses, with INVALID_ARGUMENT and a sentence that names the span, rows that
// rows.h does not allow, keys of other parts or channels than the queries have, views of other
// queries (of sums: other answers), sums where there are none, and spans of which two hold the same
// token.
// Where no token is visible there is no answer, and that is not an error.
//
// How exact answers are. With exact scores s = scale * sum over channels of q k, capped softly if
// the queries say so, and with reach
// being scale * sum of |q k|, where for int8 keys each |q| is the largest of its query:
//
//   |score - s| <= kScoreTolerance * reach
//   |weight / sum of weights - its exact value| <= kWeightTolerance of it, given the scores
//   |output - exact| <= (kWeightTolerance + 2 * largest error of a score) * sum of p |value|
//   |log-sum-exp - exact| <= kExpTolerance * max(1, |log-sum-exp|) + largest error of a score
//
// so that answers of any two instruction sets lie within twice that. That holds in the range of
// floats: sums of |q k| are below 2^120, before the scale and behind it, and sizes down to 2^-110
// are of no matter (float sums overflow to infinity and NaN, and lose small numbers). NaN, in a
// query or a key, makes the scores it takes part in NaN, and so does an infinity in a query for
// int8; other infinities make them infinite as IEEE arithmetic does, or, where queries are not
// bf16, NaN. A score that is NaN or positive infinity makes its query's output and log-sum-exp NaN.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "ndp/best.h"
#include "ndp/rows.h"

namespace bowhead::ndp {

inline constexpr float kScoreTolerance = 0x1p-14f;
inline constexpr float kWeightTolerance = 0x1p-8f;
inline constexpr float kExpTolerance = 0x1p-16f;

/// scores[a * n + i] of answer a and token i, counted through the spans in their order, which have
/// n tokens together; negative infinity where it is not visible. INVALID_ARGUMENT also: `scores` is
/// not queries.answers() * n.
Result<void> score(const Queries& queries, std::span<const KeySpan> spans, const Views& views,
                   std::span<float> scores);

/// The best keys of each query, or of each sum of queries, so far: a partial. Not thread-safe:
/// threads and devices have one each, which are merged.
class TopK {
 public:
  static constexpr uint32_t kMaxK = 1u << 20;
  static constexpr uint64_t kMaxHits = 1u << 24;  ///< k times queries: 256 MiB
  /// INVALID_ARGUMENT: none or more than kMaxQueries; k is zero or above kMaxK; more than kMaxHits.
  static Result<TopK> of(uint32_t queries, uint32_t k);

  /// Looks at more tokens: none that was looked at before.
  Result<void> add(const Queries& queries, std::span<const KeySpan> spans, const Views& views);
  /// Takes over the hits of another partial, which looked at other tokens. INVALID_ARGUMENT: of
  /// another shape.
  Result<void> merge(const TopK& other);
  /// Takes over hits of a query, of tokens that were not looked at before.
  void add(uint32_t query, std::span<const Hit> hits);
  /// Hits of a query, the best first: k, or fewer if no more were visible. Valid until the next
  /// call of any other member.
  std::span<const Hit> hits(uint32_t query);

 private:
  struct Best {
    std::vector<Hit> hits;  ///< k of which count, and room for those that come
    uint32_t count = 0;
    float least = 0;  ///< of the k best; NaN if there are fewer
  };
  TopK(uint32_t queries, uint32_t k);
  void shrink(Best& best);
  void take(Best& best, uint32_t more);

  uint32_t k_;
  std::vector<Best> best_;
  BestHits chooser_;
  std::vector<float> scores_;
};

/// Softmax-weighted sums of values: a partial, with the state that merging it with others needs.
class Attention {
 public:
  /// Of so many queries and channels of values. INVALID_ARGUMENT: as in rows.h.
  static Result<Attention> of(uint32_t queries, uint32_t channels);

  /// Looks at more tokens: none that was looked at before.
  Result<void> add(const Queries& queries, std::span<const KvSpan> spans, const Views& views);
  /// As if `other`'s tokens had been added here, to rounding. INVALID_ARGUMENT: another shape.
  Result<void> merge(const Attention& other);
  /// A partial that was computed elsewhere: outputs as [query][channel], and log-sum-exps. Negative
  /// infinity: of no token. INVALID_ARGUMENT: other sizes.
  Result<void> merge(std::span<const float> outputs, std::span<const float> log_sum_exps);

  /// [channel] of a query; zeros if it has looked at no token. INVALID_ARGUMENT: `out` has another
  /// size.
  Status output(uint32_t query, std::span<float> out) const;
  /// Of the scores; negative infinity if it has looked at no token.
  float log_sum_exp(uint32_t query) const;

 private:
  Attention(uint32_t queries, uint32_t channels);
  void add_tile(const Queries& queries, const KvSpan& span, uint32_t first, uint32_t count,
                const Views& views);
  void weigh_tile(const Rows& values, uint32_t position, uint32_t first, uint32_t count,
                  const Views& views, float* sums);

  uint32_t queries_, channels_;
  std::vector<float> largest_, weights_;  ///< by query: of the scores; sum of exp(score - largest)
  std::vector<float> sums_;               ///< [query][channels]: of values by these weights
  std::vector<float> tile_, scaled_;
};

/// Adds to mass[i], for token i counted through the spans, the attention that all queries together
/// pay it: exp(score - log_sum_exp), with the log-sum-exp of each over the whole sequence. So
/// policies that evict by accumulated attention need no scores. INVALID_ARGUMENT also: `mass` or
/// `log_sum_exps` of another size.
Result<void> add_mass(const Queries& queries, std::span<const KeySpan> spans, const Views& views,
                      std::span<const float> log_sum_exps, std::span<float> mass);

/// Rows of some tokens, one behind the other, as they are: `tokens` are positions in the sequence,
/// in any order, also more than once. INVALID_ARGUMENT also: a token that no span has; `out` is
/// not tokens.size() rows, or the spans' rows are not of one kind and size, or come in parts: each
/// part is gathered by itself. Scales, if `scales` is
/// not empty: as many.
Result<void> gather(std::span<const KeySpan> spans, std::span<const uint32_t> tokens,
                    std::span<std::byte> out, std::span<float> scales = {});

/// The bounds of the keys in each page of a span, by channel: they bound every score in it.
struct Digests {
  uint32_t first_token = 0, tokens = 0;
  uint32_t page_tokens = 0, channels = 0;
  std::vector<float> least, largest;  ///< [page][channel]

  uint32_t pages() const { return (tokens + page_tokens - 1) / page_tokens; }
};
/// The digests of a span in pages of so many tokens, the last one shorter. INVALID_ARGUMENT also:
/// pages of no token.
Result<Digests> digest(const KeySpan& span, uint32_t page_tokens);

/// The k pages of all spans that can hold the highest scores, by the sum over channels of the
/// largest q k that a page allows, the maximum over the queries that see a token of it. Hits name
/// first tokens of pages; pages without a visible token have none. INVALID_ARGUMENT also: k is 0.
Result<std::vector<Hit>> select_pages(const Queries& queries, std::span<const Digests> digests,
                                      const Views& views, uint32_t k);

}  // namespace bowhead::ndp
