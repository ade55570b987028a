// SPDX-License-Identifier: Apache-2.0
// The exact search of plane_keys.h in one pass: the first eight planes of all tokens bound the
// scores of all queries together, and tokens that may be among the best are scored exactly.
#pragma once

#include <span>

#include "ndp/plane_keys.h"

namespace bowhead::ndp {

/// Of valid input. DAMAGED, UNSUPPORTED_CODEC: as exact_top_k().
Result<PlaneAnswer> scan_planes(const Queries& queries, std::span<const PlaneKeys* const> blocks,
                                const Views& views, uint32_t k, UnreadableKeys* unreadable);

/// The error of a search that ended there; it is noted in `to`, if that is not null.
Error unreadable_frame(Status status, const UnreadableKeys& at, UnreadableKeys* to);

}  // namespace bowhead::ndp
