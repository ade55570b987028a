// SPDX-License-Identifier: Apache-2.0
// Checks of answers against the definition, the scalar kernels.
#pragma once

#include <span>

#include "bench/ndp_data.h"

namespace bowhead::bench {

/// DAMAGED, naming the token, if a score differs from the definition by more than twice the error
/// that ndp/operations.h allows.
Result<void> check_score(const ndp::Queries& queries, uint32_t query, const ndp::KeySpan& span,
                         uint32_t token, float score);

/// Checks some scores of each span, in the format of ndp::score().
Result<void> check_scores(const ndp::Queries& queries, std::span<const ndp::KeySpan> spans,
                          std::span<const float> scores);

/// Checks all hits, and that they are the best by `scores`, in the format of ndp::score(). Tokens
/// are numbered across the spans.
Result<void> check_hits(const ndp::Queries& queries, std::span<const ndp::KeySpan> spans,
                        std::span<const float> scores, uint32_t query,
                        std::span<const ndp::Hit> hits);

/// Checks outputs of attention to exactly these spans.
Result<void> check_attention(const ndp::Queries& queries, std::span<const ndp::KvSpan> spans,
                             const ndp::Attention& attention);

/// Checks the digests of a span, page by page.
Result<void> check_digests(const ndp::KeySpan& span, const ndp::Digests& digests);

}  // namespace bowhead::bench
