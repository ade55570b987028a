// SPDX-License-Identifier: Apache-2.0
#include "gpu/devices/cpu_kernels.h"
#include "gpu/kernels/fetch_tokens.h"
#include "gpu/kernels/units.h"

namespace bowhead::gpu {
inline namespace BOWHEAD_LANES {
namespace {

template <class Unit>
void run(const FetchTokens& work) {
  const uint32_t list_chunks = chunks_per_list(work);
  const auto slots = static_cast<uint32_t>(fetch_slots(work));
  run_warps(slots, [&](uint32_t slot, uint32_t) { fetch_slot<Unit>(work, list_chunks, slot); });
}

}  // namespace

void run_on_cpu(const FetchTokens& work) {
  with_unit(work.unit_bytes, [&]<class Unit>() { run<Unit>(work); });
}

}  // namespace BOWHEAD_LANES
}  // namespace bowhead::gpu
