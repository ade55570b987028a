// SPDX-License-Identifier: Apache-2.0
// The limits with AVX2 and FMA.

// All headers come before the target is set: other files share their inline functions.
#include <string.h>

#include "bench/ndp_limits.h"

#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx2,fma"))), apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx2,fma")
#endif

#define BOWHEAD_VECTOR_BYTES 32
#include "bench/ndp_limits.inc"

namespace bowhead::bench {

const LimitKernels kLimitKernelsAvx2 = {read,
                                        {"float products", multiply_add<FloatUnit>},
                                        {"float products", multiply_add<FloatUnit>},
                                        {"float products", multiply_add<FloatUnit>}};

}  // namespace bowhead::bench

#if defined(__clang__)
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif
