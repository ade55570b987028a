// SPDX-License-Identifier: Apache-2.0
// Hits, and the best of many. These are found by looks at all, which vectors take; a branch for
// each comparison, as partial sorting has them, costs several times as much.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <span>
#include <vector>

namespace bowhead::ndp {

/// A token in the answer of a search.
struct Hit {
  float score = 0;
  uint32_t token = 0;

  bool operator==(const Hit&) const = default;
};
/// A hit as a number: of two hits the better one has the higher rank. The one with the higher score
/// is better, of equal ones (as zeros of either sign are) the earlier token; NaN is worse than all
/// numbers, and taken only where there is nothing else.
inline uint64_t rank_of(const Hit& hit) {
  const auto bits = std::bit_cast<uint32_t>(hit.score + 0.0f);  // of both zeros the same
  const uint32_t ordered = bits >> 31 != 0 ? ~bits : bits | 1u << 31;
  return uint64_t{std::isnan(hit.score) ? 0 : ordered} << 32 | ~hit.token;
}
/// The order of hits.
inline bool better(const Hit& a, const Hit& b) { return rank_of(a) > rank_of(b); }

/// A number that k of these reach, and no more if no two are equal; 1 <= k <= ranks.size().
uint64_t cut_of_best(std::span<const uint64_t> ranks, size_t k);

/// Chooses the k best; keeps its memory.
class BestHits {
 public:
  /// Moves them to the front, in their order, of equal hits the first ones; returns the worst of
  /// them. 1 <= k <= hits.size().
  Hit keep(std::span<Hit> hits, size_t k);

 private:
  std::vector<uint64_t> ranks_;
};

}  // namespace bowhead::ndp
