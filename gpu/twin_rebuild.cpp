// SPDX-License-Identifier: Apache-2.0
#include <array>

#include "base/assert.h"
#include "gpu/rebuild_tiles.h"
#include "gpu/twin_kernels.h"

namespace bowhead::gpu {
namespace {

template <uint32_t kIndex>
void run(const RebuildTiles& work) {
  std::array<float, kStepValues> centres;
  for (uint32_t tile = 0; tile < work.tile_count; ++tile) {
    if (work.exact) {
      TileRebuilder<kIndex, true>(work, tile, 0, centres.data()).rebuild();
    } else {
      TileRebuilder<kIndex, false>(work, tile, 0, centres.data()).rebuild();
    }
  }
}

}  // namespace

void run_on_cpu(const RebuildTiles& work) {
  switch (work.number) {
    case compression::NumberKind::BF16:
      return run<0>(work);
    case compression::NumberKind::FP16:
      return run<1>(work);
    case compression::NumberKind::FP8_E4M3:
      return run<2>(work);
    case compression::NumberKind::FP8_E5M2:
      return run<3>(work);
    case compression::NumberKind::INT8:
      return run<4>(work);
    default:
      BOWHEAD_ASSERT(false);
  }
}

}  // namespace bowhead::gpu
