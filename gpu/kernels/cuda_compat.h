// SPDX-License-Identifier: Apache-2.0
// Differences between versions of CUDA. The oldest one with all calls that are needed is 12.8, and
// gpu/CMakeLists.txt leaves CUDA out where nvcc is older.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <vector>

static_assert(CUDART_VERSION >= 12080, "CUDA 12.8 is the first with batches of copies");

namespace bowhead::gpu {

/// Copies of one kind, by one call.
struct CopyBatch {
  std::vector<void*> to;
  std::vector<const void*> from;
  std::vector<size_t> sizes;
  cudaMemcpyAttributes attributes = {};
};

/// cudaMemcpyBatchAsync(), which takes no default stream. CUDA 12 also names a copy that it found
/// wrong, and has sources that are not const.
inline cudaError_t copy_batch_async(CopyBatch& batch, cudaStream_t stream) {
  size_t first = 0;  // from which copy on the attributes count
#if CUDART_VERSION >= 13000
  return cudaMemcpyBatchAsync(batch.to.data(), batch.from.data(), batch.sizes.data(),
                              batch.sizes.size(), &batch.attributes, &first, 1, stream);
#else
  size_t failed = 0;
  return cudaMemcpyBatchAsync(batch.to.data(), const_cast<void**>(batch.from.data()),
                              batch.sizes.data(), batch.sizes.size(), &batch.attributes, &first, 1,
                              &failed, stream);
#endif
}

}  // namespace bowhead::gpu
