// SPDX-License-Identifier: Apache-2.0
#include "gpu/twin_kernels.h"

#include "base/assert.h"
#include "base/checksum.h"
#include "gpu/move_pieces.h"

namespace bowhead::gpu {
namespace {

static_assert(kPieceBytes == kChecksumPieceBytes);

template <class Unit, MoveKind kKind>
void run(const MovePieces& work) {
  const uint32_t block_slots = slots_per_block(work);
  for (uint32_t slot = 0; slot < work.block_count * block_slots; ++slot) {
    move_slot<Unit, kKind>(work, block_slots, slot);
  }
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
