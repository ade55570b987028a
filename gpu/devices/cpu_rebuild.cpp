// SPDX-License-Identifier: Apache-2.0
#include <array>

#include "base/assert.h"
#include "gpu/devices/cpu_kernels.h"
#include "gpu/kernels/rebuild_tiles.h"

namespace bowhead::gpu {
inline namespace BOWHEAD_LANES {
namespace {

template <uint32_t kIndex>
void run(const RebuildTiles& work) {
  std::array<std::array<float, kStepValues>, kMostCpuWarps> centres;  // what warps share on a GPU
  run_warps(work.tile_count, [&](uint32_t tile, uint32_t warp) {
    if (work.exact) {
      TileRebuilder<kIndex, true>(work, tile, warp, centres[warp].data()).rebuild();
    } else {
      TileRebuilder<kIndex, false>(work, tile, warp, centres[warp].data()).rebuild();
    }
  });
}

}  // namespace

void run_on_cpu(const RebuildTiles& work) {
  switch (work.number) {
    case NumberFormat::BF16:
      return run<0>(work);
    case NumberFormat::FP16:
      return run<1>(work);
    case NumberFormat::FP8_E4M3:
      return run<2>(work);
    case NumberFormat::FP8_E5M2:
      return run<3>(work);
    case NumberFormat::INT8:
      return run<4>(work);
    default:
      BOWHEAD_ASSERT(false);
  }
}

}  // namespace BOWHEAD_LANES
}  // namespace bowhead::gpu
