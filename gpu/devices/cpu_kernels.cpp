// SPDX-License-Identifier: Apache-2.0
#include "gpu/devices/cpu_kernels.h"

#include "base/checksum.h"
#include "gpu/kernels/move_pieces.h"
#include "gpu/kernels/units.h"

namespace bowhead::gpu {
inline namespace BOWHEAD_LANES {
namespace {

static_assert(kPieceBytes == kChecksumPieceBytes);

template <class Unit, MoveKind kKind, class Descriptor>
void run(const Descriptor& descriptor) {
  const MovePieces& work = pieces_of(descriptor);
  const uint32_t block_slots = slots_per_block(work);
  run_warps(work.block_count * block_slots, [&](uint32_t slot, uint32_t) {
    move_slot<Unit, kKind>(descriptor, block_slots, slot);
  });
}

template <class Unit, class Descriptor>
void run(const Descriptor& descriptor) {
  switch (pieces_of(descriptor).kind) {
    case MoveKind::TO_PAYLOAD:
      return run<Unit, MoveKind::TO_PAYLOAD>(descriptor);
    case MoveKind::FROM_PAYLOAD:
      return run<Unit, MoveKind::FROM_PAYLOAD>(descriptor);
    case MoveKind::SUM_ONLY:
      return run<Unit, MoveKind::SUM_ONLY>(descriptor);
  }
}

}  // namespace

void run_on_cpu(const MovePieces& work) {
  with_unit(work.unit_bytes, [&]<class Unit>() { run<Unit>(work); });
}

void run_on_cpu(const MoveFewPieces& work) {
  with_unit(work.pieces.unit_bytes, [&]<class Unit>() { run<Unit>(work); });
}

}  // namespace BOWHEAD_LANES
}  // namespace bowhead::gpu
