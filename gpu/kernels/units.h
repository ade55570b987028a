// SPDX-License-Identifier: Apache-2.0
// Kernels that are compiled for each size of units.
#pragma once

#include <cstdint>

#include "base/assert.h"
#include "gpu/kernels/warp.h"

namespace bowhead::gpu {

/// Returns f.template operator()<Unit>() with a Unit of so many bytes: 16, 8, 4, 2 or 1 (asserted).
template <class F>
auto with_unit(uint32_t unit_bytes, F f) {
  switch (unit_bytes) {
    case 16:
      return f.template operator()<Bytes16>();
    case 8:
      return f.template operator()<uint64_t>();
    case 4:
      return f.template operator()<uint32_t>();
    case 2:
      return f.template operator()<uint16_t>();
    default:
      BOWHEAD_ASSERT(unit_bytes == 1);
      return f.template operator()<uint8_t>();
  }
}

}  // namespace bowhead::gpu
