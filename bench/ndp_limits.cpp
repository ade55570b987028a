// SPDX-License-Identifier: Apache-2.0
#include "bench/ndp_limits.h"

#include <string.h>

#include "ndp/kernels.h"

// The vectors that every CPU of the architecture has.
#define BOWHEAD_VECTOR_BYTES 16
#include "bench/ndp_limits.inc"

namespace bowhead::bench {

const LimitKernels kLimitKernelsScalar = {read,
                                          {"float products", multiply_add<FloatUnit>},
                                          {"float products", multiply_add<FloatUnit>},
                                          {"float products", multiply_add<FloatUnit>}};

const LimitKernels& limit_kernels() {
#if defined(__x86_64__)
  if (&ndp::kernels() == &ndp::kKernelsAvx512) return kLimitKernelsAvx512;
  if (&ndp::kernels() == &ndp::kKernelsAvx2) return kLimitKernelsAvx2;
#endif
  return kLimitKernelsScalar;
}

void read_memory(const void* data, size_t bytes) {
  const uint64_t all = limit_kernels().read(data, bytes);
  asm volatile("" : : "r"(all));  // keeps the loads
}

const Multiplication& multiplication(NumberFormat keys) {
  const LimitKernels& kernels = limit_kernels();
  if (keys == NumberFormat::FP16) return kernels.floats;
  return keys == NumberFormat::INT8 ? kernels.int16 : kernels.bf16;
}

}  // namespace bowhead::bench
