// SPDX-License-Identifier: Apache-2.0
#include "compression/planes.h"

#include "base/assert.h"

namespace bowhead::compression {

const PlaneKernels& plane_kernels(IsaLevel level) {
  BOWHEAD_ASSERT(level <= cpu_features().isa);
#if defined(__x86_64__)
  if (level == IsaLevel::AVX512) return kPlaneKernelsAvx512;
#endif
  return kPlaneKernelsScalar;
}

const PlaneKernels& plane_kernels() { return plane_kernels(cpu_features().isa); }

}  // namespace bowhead::compression
