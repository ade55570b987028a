// SPDX-License-Identifier: Apache-2.0
// Whether the descriptor of a kernel makes sense: a kernel itself has no way to say so.
#pragma once

#include "base/status.h"
#include "gpu/kernels/kernels.h"

namespace bowhead::gpu {

/// INVALID_ARGUMENT, with a sentence that names the fault. Reads the arrays of parts and of blocks,
/// which the CPU must reach here, and not the memory that those point to: page numbers beyond the
/// cache are not found.
Result<void> check(const MovePieces& work);
/// The same, and that the pages of all blocks are in the table.
Result<void> check(const MoveFewPieces& work);
/// The same of spans and splits, and of `first_partials`.
Result<void> check(const Attend& work);
Result<void> check(const MergePartials& work);
/// The same. Reads the array of tiles, which the CPU must reach here.
Result<void> check(const RebuildTiles& work);
/// The same of addresses and lengths of streams.
Result<void> check(const DecodeLz4& work);

/// The same, in two parts: the members that fetches from one source share, of which payloads are
/// read too, and pages are not; and lists and layers, of which no array is read.
Result<void> check(const FetchTokens& work);
Result<void> check_source(const FetchTokens& work);
Result<void> check_lists(const FetchTokens& work);

}  // namespace bowhead::gpu
