// SPDX-License-Identifier: Apache-2.0
#include "gpu/attend.h"
#include "gpu/merge_parts.h"
#include "gpu/twin_kernels.h"

namespace bowhead::gpu {

void run_on_cpu(const Attend& work) {
  const auto units = static_cast<uint32_t>(attend_units(work));
  with_attend_shape(
      work, [&]<FloatKind kNumber, uint32_t kRowLanes, uint32_t kVectors, uint32_t kHeads>() {
        for (uint32_t unit = 0; unit < units; ++unit)
          RunAttender<kNumber, kRowLanes, kVectors, kHeads>(work, unit).attend();
      });
}

void run_on_cpu(const MergeParts& work) {
  for (uint32_t unit = 0; unit < work.sequences * work.heads; ++unit)
    PartsMerger(work, unit).merge();
}

}  // namespace bowhead::gpu
