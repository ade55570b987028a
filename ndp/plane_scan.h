// SPDX-License-Identifier: Apache-2.0
// The exact search of plane_keys.h in one pass: the first eight planes of all tokens bound the
// scores of all queries together, and tokens that may be among the best are scored exactly.
#pragma once

#include <span>

#include "ndp/plane_keys.h"

namespace bowhead::ndp {

/// Of valid input. DAMAGED: names the block.
Result<PlaneAnswer> scan_planes(const Queries& queries, std::span<const PlaneKeys* const> blocks,
                                const Views& views, uint32_t k, uint32_t* damaged_block);

/// The error of a search that could not read this block.
Error unreadable_frame(Status status, uint32_t block, uint32_t* damaged_block);

}  // namespace bowhead::ndp
