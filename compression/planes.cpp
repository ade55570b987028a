// SPDX-License-Identifier: Apache-2.0
#include "compression/planes.h"

#include "base/assert.h"

namespace bowhead::compression {

const PlaneKernels& plane_kernels(IsaLevel level) {
  BOWHEAD_ASSERT(level <= cpu_features().isa);
#if defined(__aarch64__)
  return kPlaneKernelsNeon;
#else
  switch (level) {
    case IsaLevel::AVX512:
      return kPlaneKernelsAvx512;
    case IsaLevel::AVX2:
      return kPlaneKernelsAvx2;
    case IsaLevel::SCALAR:
      break;
  }
  return kPlaneKernelsScalar;
#endif
}

const PlaneKernels& plane_kernels() { return plane_kernels(cpu_features().isa); }

}  // namespace bowhead::compression
