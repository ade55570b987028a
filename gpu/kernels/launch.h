// SPDX-License-Identifier: Apache-2.0
// The kernels, queued in a CUDA stream. Only where CUDA is.
#pragma once

#include <cuda_runtime_api.h>

#include "gpu/kernels/kernels.h"

namespace bowhead::gpu {

/// Queues `work`, which check() (check.h) has accepted; `work` itself is copied. An error of the
/// driver may be one of earlier work, which it reports late.
cudaError_t launch_kernel(const MovePieces& work, cudaStream_t stream);
cudaError_t launch_kernel(const MoveFewPieces& work, cudaStream_t stream);
cudaError_t launch_kernel(const Attend& work, cudaStream_t stream);
cudaError_t launch_kernel(const MergePartials& work, cudaStream_t stream);
cudaError_t launch_kernel(const FetchTokens& work, cudaStream_t stream);
cudaError_t launch_kernel(const RebuildTiles& work, cudaStream_t stream);
cudaError_t launch_kernel(const DecodeLz4& work, cudaStream_t stream);

/// Whether DecodeLz4 works, or is cudaErrorNotSupported.
bool decodes_lz4();

}  // namespace bowhead::gpu
