// SPDX-License-Identifier: Apache-2.0
// Answers beside the definition, the scalar kernels, of what was asked.
#pragma once

#include <span>

#include "bench/ndp_data.h"

namespace bowhead::bench {

/// DAMAGED, naming the token, where a score is further from the definition than twice what
/// ndp/operations.h allows.
Result<void> check_score(const ndp::Queries& queries, uint32_t query, const ndp::KeySpan& span,
                         uint32_t token, float score);

/// Some scores of each span, as ndp::score() leaves them.
Result<void> check_scores(const ndp::Queries& queries, std::span<const ndp::KeySpan> spans,
                          std::span<const float> scores);

/// All hits, and that they are the best by `scores`, as ndp::score() leaves them. Tokens of the
/// spans are numbered through.
Result<void> check_hits(const ndp::Queries& queries, std::span<const ndp::KeySpan> spans,
                        std::span<const float> scores, uint32_t query,
                        std::span<const ndp::Hit> hits);

/// Outputs of attention to just these spans.
Result<void> check_attention(const ndp::Queries& queries, std::span<const ndp::KvSpan> spans,
                             const ndp::Attention& attention);

/// Digests of a span, page by page.
Result<void> check_digests(const ndp::KeySpan& span, const ndp::Digests& digests);

}  // namespace bowhead::bench
