// SPDX-License-Identifier: Apache-2.0
// The kernels, on the CPU in place of a GPU: the same code, on the lanes of a CPU (warp.h).
#pragma once

#include "gpu/kernels/kernels.h"
#include "gpu/kernels/warp.h"

namespace bowhead::gpu {
inline namespace BOWHEAD_LANES {

/// Does `work`, which check() (check.h) has accepted, before it returns.
void run_on_cpu(const MovePieces& work);
void run_on_cpu(const MoveFewPieces& work);
void run_on_cpu(const Attend& work);
void run_on_cpu(const MergePartials& work);
void run_on_cpu(const FetchTokens& work);
void run_on_cpu(const RebuildTiles& work);
void run_on_cpu(const DecodeLz4& work);

}  // namespace BOWHEAD_LANES
}  // namespace bowhead::gpu
