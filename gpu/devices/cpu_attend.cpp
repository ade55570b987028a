// SPDX-License-Identifier: Apache-2.0
#include "gpu/devices/cpu_kernels.h"
#include "gpu/kernels/attend.h"
#include "gpu/kernels/merge_partials.h"

namespace bowhead::gpu {
inline namespace BOWHEAD_LANES {

void run_on_cpu(const Attend& work) {
  const auto units = static_cast<uint32_t>(attend_units(work));
  with_attend_shape(
      work, [&]<NumberFormat kNumber, uint32_t kRowLanes, uint32_t kVectors, uint32_t kHeads>() {
        run_warps(units, [&](uint32_t unit, uint32_t) {
          SplitAttender<kNumber, kRowLanes, kVectors, kHeads>(work, unit).attend();
        });
      });
}

void run_on_cpu(const MergePartials& work) {
  run_warps(work.sequences * work.heads,
            [&](uint32_t unit, uint32_t) { PartialsMerger(work, unit).merge(); });
}

}  // namespace BOWHEAD_LANES
}  // namespace bowhead::gpu
