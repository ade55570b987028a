// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "gpu/kernels/launch.h"
#include "gpu/kernels/move_pieces.h"
#include "gpu/kernels/units.h"

namespace bowhead::gpu {
namespace {

constexpr uint32_t kBlockThreads = 256;
constexpr uint32_t kBlockWarps = kBlockThreads / kWarpLanes;

// A link of 64 GB/s and an assumed 2 us is full with 128 KiB under way; 32 blocks of 8 pieces are
// 1 MiB, and leave most of a GPU's 100 or so multiprocessors to kernels that compute.
constexpr uint32_t kMostBlocks = 32;

template <class Unit, MoveKind kKind, class Descriptor>
__global__ void __launch_bounds__(kBlockThreads, 2)
    move_pieces(const __grid_constant__ Descriptor descriptor, uint32_t block_slots) {
  const uint32_t slots = pieces_of(descriptor).block_count * block_slots;
  uint32_t slot = blockIdx.x * kBlockWarps + threadIdx.x / kWarpLanes;
  for (; slot < slots; slot += gridDim.x * kBlockWarps) {
    move_slot<Unit, kKind>(descriptor, block_slots, slot);
  }
}

template <class Descriptor>
using Kernel = void (*)(Descriptor, uint32_t);

template <class Unit, class Descriptor>
Kernel<Descriptor> kernel_for(MoveKind kind) {
  switch (kind) {
    case MoveKind::TO_PAYLOAD:
      return move_pieces<Unit, MoveKind::TO_PAYLOAD, Descriptor>;
    case MoveKind::FROM_PAYLOAD:
      return move_pieces<Unit, MoveKind::FROM_PAYLOAD, Descriptor>;
    default:
      return move_pieces<Unit, MoveKind::SUM_ONLY, Descriptor>;
  }
}

template <class Descriptor>
cudaError_t launch_pieces(const Descriptor& descriptor, const MovePieces& work,
                          cudaStream_t stream) {
  Descriptor copy = descriptor;
  uint32_t block_slots = slots_per_block(work);
  const uint32_t slots = work.block_count * block_slots;
  if (slots == 0) return cudaSuccess;
  const dim3 grid(std::min((slots + kBlockWarps - 1) / kBlockWarps, kMostBlocks));
  void* arguments[] = {&copy, &block_slots};
  const auto kernel = with_unit(
      work.unit_bytes, [&]<class Unit>() { return kernel_for<Unit, Descriptor>(work.kind); });
  return cudaLaunchKernel(kernel, grid, dim3(kBlockThreads), arguments, 0, stream);
}

}  // namespace

cudaError_t launch_kernel(const MovePieces& work, cudaStream_t stream) {
  return launch_pieces(work, work, stream);
}

cudaError_t launch_kernel(const MoveFewPieces& work, cudaStream_t stream) {
  return launch_pieces(work, work.pieces, stream);
}

}  // namespace bowhead::gpu
