// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "gpu/kernels/launch.h"
#include "gpu/kernels/rebuild_tiles.h"

namespace bowhead::gpu {
namespace {

constexpr uint32_t kBlockThreads = 128;
constexpr uint32_t kBlockWarps = kBlockThreads / kWarpLanes;
constexpr uint32_t kMostBlocks = kMostRebuilders / kBlockWarps;

// A lane keeps 32 values, and the missing bits of exact ones: 128 registers do not hold those.
constexpr int blocks_at_once(bool exact) { return exact ? 3 : 4; }

template <uint32_t kIndex, bool kExact>
__global__ void __launch_bounds__(kBlockThreads, blocks_at_once(kExact))
    rebuild_tiles(const __grid_constant__ RebuildTiles work) {
  __shared__ alignas(16) float centres[kBlockWarps][kStepValues];
  const uint32_t warp = threadIdx.x / kWarpLanes, slot = blockIdx.x * kBlockWarps + warp;
  for (uint32_t tile = slot; tile < work.tile_count; tile += gridDim.x * kBlockWarps) {
    TileRebuilder<kIndex, kExact>(work, tile, slot, centres[warp]).rebuild();
  }
}

using Kernel = void (*)(RebuildTiles);

template <uint32_t kIndex>
Kernel kernel_for(bool exact) {
  return exact ? Kernel{rebuild_tiles<kIndex, true>} : Kernel{rebuild_tiles<kIndex, false>};
}

Kernel kernel_for(const RebuildTiles& work) {
  switch (work.number) {
    case NumberFormat::BF16:
      return kernel_for<0>(work.exact);
    case NumberFormat::FP16:
      return kernel_for<1>(work.exact);
    case NumberFormat::FP8_E4M3:
      return kernel_for<2>(work.exact);
    case NumberFormat::FP8_E5M2:
      return kernel_for<3>(work.exact);
    default:
      return kernel_for<4>(work.exact);
  }
}

}  // namespace

cudaError_t launch_kernel(const RebuildTiles& work, cudaStream_t stream) {
  RebuildTiles copy = work;
  if (work.tile_count == 0) return cudaSuccess;
  const dim3 grid(std::min((work.tile_count - 1) / kBlockWarps + 1, kMostBlocks));
  void* arguments[] = {&copy};
  return cudaLaunchKernel(kernel_for(work), grid, dim3(kBlockThreads), arguments, 0, stream);
}

}  // namespace bowhead::gpu
