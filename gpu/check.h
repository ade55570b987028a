// SPDX-License-Identifier: Apache-2.0
// Whether what a kernel is told makes sense: a kernel itself has no way to say so.
#pragma once

#include "base/status.h"
#include "gpu/kernels.h"

namespace bowhead::gpu {

/// INVALID_ARGUMENT, with a sentence that names what is wrong. Reads the arrays of parts and of
/// blocks, so they have to be readable for the CPU here, and not what those point to: page numbers
/// beyond the cache are not found.
Result<void> check(const MovePieces& work);
/// The same of spans and runs, and of `first_parts`.
Result<void> check(const Attend& work);
Result<void> check(const MergeParts& work);

/// The same; `payloads` are read too, and neither pages nor lists.
Result<void> check(const FetchTokens& work);
/// The part of it that one fetch may have otherwise than the one before: lists and layers. Reads no
/// arrays.
Result<void> check_lists(const FetchTokens& work);

}  // namespace bowhead::gpu
