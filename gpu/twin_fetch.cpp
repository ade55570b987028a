// SPDX-License-Identifier: Apache-2.0
#include "base/assert.h"
#include "gpu/fetch_tokens.h"
#include "gpu/twin_kernels.h"

namespace bowhead::gpu {
namespace {

template <class Unit>
void run(const FetchTokens& work) {
  const uint32_t list_chunks = chunks_per_list(work);
  const auto slots = static_cast<uint32_t>(fetch_slots(work));
  for (uint32_t slot = 0; slot < slots; ++slot) fetch_slot<Unit>(work, list_chunks, slot);
}

}  // namespace

void run_on_cpu(const FetchTokens& work) {
  switch (work.unit_bytes) {
    case 16:
      return run<Bytes16>(work);
    case 8:
      return run<uint64_t>(work);
    case 4:
      return run<uint32_t>(work);
    case 2:
      return run<uint16_t>(work);
    case 1:
      return run<uint8_t>(work);
    default:
      BOWHEAD_ASSERT(false);
  }
}

}  // namespace bowhead::gpu
