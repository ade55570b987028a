// SPDX-License-Identifier: Apache-2.0
// The searches of plane_keys.h in one pass. The exact one: the first eight planes of all tokens
// bound the scores of all queries together, and tokens that may be among the best are scored
// exactly. Within a budget: as many first planes as it allows give estimates, and that is all.
#pragma once

#include <optional>
#include <span>

#include "ndp/line_set.h"
#include "ndp/plane_keys.h"

namespace bowhead::ndp {

/// Of valid input; within so many bytes for each visible token and head, if given. As
/// top_k_of_heads().
Result<HeadsAnswer> scan_heads(std::span<const HeadKeys> heads, const Views& views, uint32_t k,
                               std::optional<double> bytes_per_token, UnreadableKeys* unreadable);

/// The lines of keys; if some of them are seen, the head of their frame was read.
LineSet lines_of(const PlaneKeys& keys, bool are_seen);

/// The error of a search that ended there; it is noted in `to`, if that is not null.
Error unreadable_frame(Status status, const UnreadableKeys& at, UnreadableKeys* to);

}  // namespace bowhead::ndp
