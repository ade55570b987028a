// SPDX-License-Identifier: Apache-2.0
// A leased block as operations and engines take it.
#pragma once

#include <cstdint>

#include "ndp/blocks.h"
#include "pool/types.h"

namespace bowhead::driver {

/// Valid as long as the lease. `first_token`: its position in the sequence.
inline ndp::StoredBlock stored_block(const Lease& lease, uint32_t first_token) {
  ndp::StoredBlock block;
  block.layout = lease.layout;
  block.bytes = {reinterpret_cast<const uint8_t*>(lease.data), lease.stored_bytes};
  block.framed = lease.codec == BH_CODEC_FRAME;
  block.value_bytes = lease.length_bytes;
  block.first_token = first_token;
  block.offset = lease.offset;
  block.stamp = lease.stamp;
  return block;
}

}  // namespace bowhead::driver
