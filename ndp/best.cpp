// SPDX-License-Identifier: Apache-2.0
#include "ndp/best.h"

#include <algorithm>

#include "base/assert.h"
#include "ndp/kernels.h"

namespace bowhead::ndp {

/// By halves of the range that it lies in. Scores are spread, so that some dozen looks find it; 64
/// do in any case.
uint64_t cut_of_best(std::span<const uint64_t> ranks, size_t k) {
  BOWHEAD_ASSERT(k >= 1 && k <= ranks.size());
  uint64_t least = ranks[0], most = ranks[0];
  for (const uint64_t rank : ranks) {
    least = std::min(least, rank);
    most = std::max(most, rank);
  }
  const Kernels& use = kernels();
  // k or more reach `least`, and fewer what is above `most`.
  while (least < most) {
    const uint64_t middle = least + (most - least) / 2 + 1;
    const size_t reaching = use.count_ranks(ranks.data(), ranks.size(), middle);
    if (reaching == k) return middle;
    if (reaching > k)
      least = middle;
    else
      most = middle - 1;
  }
  return least;
}

Hit BestHits::keep(std::span<Hit> hits, size_t k) {
  ranks_.resize(std::max(ranks_.size(), hits.size()));
  const std::span<uint64_t> ranks = std::span(ranks_).first(hits.size());
  for (size_t i = 0; i < hits.size(); ++i) ranks[i] = rank_of(hits[i]);
  const uint64_t cut = cut_of_best(ranks, k);
  size_t equal = k - kernels().count_ranks(ranks.data(), ranks.size(), cut + 1);
  Hit worst;
  uint64_t least = ~uint64_t{0};
  for (size_t i = 0, kept = 0; kept < k; ++i) {
    if (ranks[i] < cut || (ranks[i] == cut && equal == 0)) continue;
    equal -= ranks[i] == cut ? 1 : 0;
    hits[kept++] = hits[i];
    if (ranks[i] > least) continue;
    least = ranks[i];
    worst = hits[i];
  }
  return worst;
}

}  // namespace bowhead::ndp
