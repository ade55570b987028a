// SPDX-License-Identifier: Apache-2.0
// The kernels, on the CPU in place of a GPU: the same code, lane by lane.
#pragma once

#include "gpu/kernels.h"

namespace bowhead::gpu {

/// Does what `work` says, which check() (check.h) has found right, before it returns.
void run_on_cpu(const MovePieces& work);
void run_on_cpu(const Attend& work);
void run_on_cpu(const MergeParts& work);
void run_on_cpu(const FetchTokens& work);
void run_on_cpu(const RebuildTiles& work);
void run_on_cpu(const DecodeLz4& work);

}  // namespace bowhead::gpu
