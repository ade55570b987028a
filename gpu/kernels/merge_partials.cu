// SPDX-License-Identifier: Apache-2.0
#include "gpu/kernels/merge_partials.h"

#include "gpu/kernels/launch.h"

namespace bowhead::gpu {
namespace {

constexpr uint32_t kBlockThreads = 128;
constexpr uint32_t kBlockWarps = kBlockThreads / kWarpLanes;

__global__ void __launch_bounds__(kBlockThreads)
    merge_partials(const __grid_constant__ MergePartials work) {
  const uint32_t unit = blockIdx.x * kBlockWarps + threadIdx.x / kWarpLanes;
  if (unit < work.sequences * work.heads) PartialsMerger(work, unit).merge();
}

}  // namespace

cudaError_t launch_kernel(const MergePartials& work, cudaStream_t stream) {
  MergePartials copy = work;
  const uint32_t units = work.sequences * work.heads;
  if (units == 0) return cudaSuccess;
  const dim3 grid((units + kBlockWarps - 1) / kBlockWarps);
  void* arguments[] = {&copy};
  return cudaLaunchKernel(merge_partials, grid, dim3(kBlockThreads), arguments, 0, stream);
}

}  // namespace bowhead::gpu
