// SPDX-License-Identifier: Apache-2.0
// With AVX2 and FMA.

// All headers come before the target is set: other files share their inline functions.
#include <string.h>

#include <algorithm>
#include <limits>

#include "ndp/kernels.h"

#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx2,fma"))), apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx2,fma")
#endif

#define BOWHEAD_VECTOR_BYTES 32
#include "ndp/kernels_lanes.h"

namespace bowhead::ndp {

const Kernels kKernelsAvx2 = {"avx2", score, weigh,    largest, exponentials,
                              select, dots,  products, exact,   bounds};

}  // namespace bowhead::ndp

#if defined(__clang__)
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif
