// SPDX-License-Identifier: Apache-2.0
// By nvCOMP's own kernels. Not by the hardware engine of newer GPUs: its behaviour on a damaged
// stream is undefined. So is nvCOMP's on a damaged ZSTD frame: those are left to the CPU.
#include <nvcomp/lz4.h>

#include "gpu/kernels/launch.h"

namespace bowhead::gpu {
namespace {

nvcompBatchedLZ4DecompressOpts_t options() {
  nvcompBatchedLZ4DecompressOpts_t options = nvcompBatchedLZ4DecompressDefaultOpts;
  options.backend = NVCOMP_DECOMPRESS_BACKEND_CUDA;
  return options;
}

cudaError_t cuda_error(nvcompStatus_t status) {
  switch (status) {
    case nvcompSuccess:
      return cudaSuccess;
    case nvcompErrorNotSupported:
      return cudaErrorNotSupported;
    case nvcompErrorCudaError:  // and it does not say which
      return cudaErrorUnknown;
    default:
      return cudaErrorInvalidValue;
  }
}

}  // namespace

// Streams lie at any address in a frame, and a launch has no temporary memory for nvCOMP.
bool decodes_lz4() {
  constexpr size_t kStreams = size_t{1} << 20, kStreamBytes = size_t{1} << 20;
  nvcompAlignmentRequirements_t wanted = {};
  size_t temporary_bytes = 1;
  return nvcompBatchedLZ4DecompressGetRequiredAlignments(options(), &wanted) == nvcompSuccess &&
         wanted.input == 1 && wanted.output == 1 &&
         nvcompBatchedLZ4DecompressGetTempSize(kStreams, kStreamBytes, options(), &temporary_bytes,
                                               kStreams * kStreamBytes, nullptr) == nvcompSuccess &&
         temporary_bytes == 0;
}

cudaError_t launch_kernel(const DecodeLz4& work, cudaStream_t stream) {
  if (work.stream_count == 0) return cudaSuccess;
  static_assert(nvcompSuccess == 0 && sizeof(nvcompStatus_t) == sizeof *work.faults);
  return cuda_error(nvcompBatchedLZ4DecompressAsync(
      reinterpret_cast<const void* const*>(work.from), work.from_bytes, work.to_bytes,
      work.decoded_bytes, work.stream_count, nullptr, 0, reinterpret_cast<void* const*>(work.to),
      options(), reinterpret_cast<nvcompStatus_t*>(work.faults), stream));
}

}  // namespace bowhead::gpu
