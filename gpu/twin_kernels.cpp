// SPDX-License-Identifier: Apache-2.0
#include "gpu/twin_kernels.h"

#include "base/checksum.h"
#include "gpu/move_pieces.h"
#include "gpu/units.h"

namespace bowhead::gpu {
inline namespace BOWHEAD_LANES {
namespace {

static_assert(kPieceBytes == kChecksumPieceBytes);

template <class Unit, MoveKind kKind>
void run(const MovePieces& work) {
  const uint32_t block_slots = slots_per_block(work);
  run_warps(work.block_count * block_slots,
            [&](uint32_t slot, uint32_t) { move_slot<Unit, kKind>(work, block_slots, slot); });
}

template <class Unit>
void run(const MovePieces& work) {
  switch (work.kind) {
    case MoveKind::TO_PAYLOAD:
      return run<Unit, MoveKind::TO_PAYLOAD>(work);
    case MoveKind::FROM_PAYLOAD:
      return run<Unit, MoveKind::FROM_PAYLOAD>(work);
    case MoveKind::SUM_ONLY:
      return run<Unit, MoveKind::SUM_ONLY>(work);
  }
}

}  // namespace

void run_on_cpu(const MovePieces& work) {
  with_unit(work.unit_bytes, [&]<class Unit>() { run<Unit>(work); });
}

}  // namespace BOWHEAD_LANES
}  // namespace bowhead::gpu
