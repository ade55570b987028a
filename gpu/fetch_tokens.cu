// SPDX-License-Identifier: Apache-2.0
#include "gpu/fetch_tokens.h"

#include <algorithm>

#include "gpu/launch.h"

namespace bowhead::gpu {
namespace {

constexpr uint32_t kBlockThreads = 256;
constexpr uint32_t kBlockWarps = kBlockThreads / kWarpLanes;

// What comes next waits for these rows, so more of the GPU may be taken than by those that move
// blocks (move_pieces.cu): a warp has 4 KiB under way, 512 warps 2 MiB.
constexpr uint32_t kMostBlocks = 64;

template <class Unit>
__global__ void __launch_bounds__(kBlockThreads, 2)
    fetch_tokens(const __grid_constant__ FetchTokens work, uint32_t list_chunks, uint32_t slots) {
  uint32_t slot = blockIdx.x * kBlockWarps + threadIdx.x / kWarpLanes;
  for (; slot < slots; slot += gridDim.x * kBlockWarps) fetch_slot<Unit>(work, list_chunks, slot);
}

using Kernel = void (*)(FetchTokens, uint32_t, uint32_t);

Kernel kernel_for(uint32_t unit_bytes) {
  switch (unit_bytes) {
    case 16:
      return fetch_tokens<Bytes16>;
    case 8:
      return fetch_tokens<uint64_t>;
    case 4:
      return fetch_tokens<uint32_t>;
    case 2:
      return fetch_tokens<uint16_t>;
    default:
      return fetch_tokens<uint8_t>;
  }
}

}  // namespace

cudaError_t launch_kernel(const FetchTokens& work, cudaStream_t stream) {
  FetchTokens copy = work;
  uint32_t list_chunks = chunks_per_list(work);
  auto slots = static_cast<uint32_t>(fetch_slots(work));
  if (slots == 0) return cudaSuccess;
  const dim3 grid(std::min((slots + kBlockWarps - 1) / kBlockWarps, kMostBlocks));
  void* arguments[] = {&copy, &list_chunks, &slots};
  return cudaLaunchKernel(kernel_for(work.unit_bytes), grid, dim3(kBlockThreads), arguments, 0,
                          stream);
}

}  // namespace bowhead::gpu
