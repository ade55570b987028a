// SPDX-License-Identifier: Apache-2.0
#include "gpu/kernels/attend.h"

#include "gpu/kernels/launch.h"

namespace bowhead::gpu {
namespace {

constexpr uint32_t kBlockThreads = 128;
constexpr uint32_t kBlockWarps = kBlockThreads / kWarpLanes;

template <NumberFormat kNumber, uint32_t kRowLanes, uint32_t kVectors, uint32_t kHeads>
__global__ void __launch_bounds__(kBlockThreads, 2)
    attend(const __grid_constant__ Attend work, uint32_t units) {
  const uint32_t unit = blockIdx.x * kBlockWarps + threadIdx.x / kWarpLanes;
  if (unit >= units) return;
  SplitAttender<kNumber, kRowLanes, kVectors, kHeads>(work, unit).attend();
}

using Kernel = void (*)(Attend, uint32_t);

}  // namespace

cudaError_t launch_kernel(const Attend& work, cudaStream_t stream) {
  Attend copy = work;
  auto units = static_cast<uint32_t>(attend_units(work));
  if (units == 0) return cudaSuccess;
  Kernel kernel = nullptr;
  with_attend_shape(
      work, [&]<NumberFormat kNumber, uint32_t kRowLanes, uint32_t kVectors, uint32_t kHeads>() {
        kernel = attend<kNumber, kRowLanes, kVectors, kHeads>;
      });
  const dim3 grid((units + kBlockWarps - 1) / kBlockWarps);
  void* arguments[] = {&copy, &units};
  return cudaLaunchKernel(kernel, grid, dim3(kBlockThreads), arguments, 0, stream);
}

}  // namespace bowhead::gpu
