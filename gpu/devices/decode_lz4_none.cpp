// SPDX-License-Identifier: Apache-2.0
// Where there was no nvCOMP at build time.
#include "gpu/kernels/launch.h"

namespace bowhead::gpu {

bool decodes_lz4() { return false; }

cudaError_t launch_kernel(const DecodeLz4& /*work*/, cudaStream_t /*stream*/) {
  return cudaErrorNotSupported;
}

}  // namespace bowhead::gpu
