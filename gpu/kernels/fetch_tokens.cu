// SPDX-License-Identifier: Apache-2.0
#include "gpu/kernels/fetch_tokens.h"

#include <algorithm>

#include "gpu/kernels/launch.h"
#include "gpu/kernels/units.h"

namespace bowhead::gpu {
namespace {

constexpr uint32_t kBlockThreads = 256;
constexpr uint32_t kBlockWarps = kBlockThreads / kWarpLanes;

// The next work in the stream waits for these rows, so they may take more of the GPU than the
// moving of blocks (move_pieces.cu): a warp has 4 KiB under way, 512 warps 2 MiB.
constexpr uint32_t kMostBlocks = 64;

template <class Unit>
__global__ void __launch_bounds__(kBlockThreads, 2)
    fetch_tokens(const __grid_constant__ FetchTokens work, uint32_t list_chunks, uint32_t slots) {
  uint32_t slot = blockIdx.x * kBlockWarps + threadIdx.x / kWarpLanes;
  for (; slot < slots; slot += gridDim.x * kBlockWarps) fetch_slot<Unit>(work, list_chunks, slot);
}

using Kernel = void (*)(FetchTokens, uint32_t, uint32_t);

}  // namespace

cudaError_t launch_kernel(const FetchTokens& work, cudaStream_t stream) {
  FetchTokens copy = work;
  uint32_t list_chunks = chunks_per_list(work);
  auto slots = static_cast<uint32_t>(fetch_slots(work));
  if (slots == 0) return cudaSuccess;
  const dim3 grid(std::min((slots + kBlockWarps - 1) / kBlockWarps, kMostBlocks));
  void* arguments[] = {&copy, &list_chunks, &slots};
  const auto kernel =
      with_unit(work.unit_bytes, [&]<class Unit>() { return Kernel{fetch_tokens<Unit>}; });
  return cudaLaunchKernel(kernel, grid, dim3(kBlockThreads), arguments, 0, stream);
}

}  // namespace bowhead::gpu
