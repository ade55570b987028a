// SPDX-License-Identifier: Apache-2.0
// By the library itself, not by StreamCoder, which refuses a stream that is too short: the CPU
// device has to say how long it is, as nvCOMP does.
#include <lz4.h>

#include "gpu/devices/cpu_kernels.h"

namespace bowhead::gpu {
inline namespace BOWHEAD_LANES {

void run_on_cpu(const DecodeLz4& work) {
  for (uint32_t i = 0; i < work.stream_count; ++i) {
    const int size = LZ4_decompress_safe(
        reinterpret_cast<const char*>(work.from[i]), reinterpret_cast<char*>(work.to[i]),
        static_cast<int>(work.from_bytes[i]), static_cast<int>(work.to_bytes[i]));
    work.faults[i] = size < 0;
    work.decoded_bytes[i] = size < 0 ? 0 : static_cast<size_t>(size);
  }
}

}  // namespace BOWHEAD_LANES
}  // namespace bowhead::gpu
