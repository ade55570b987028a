// SPDX-License-Identifier: Apache-2.0
// With Neon.

#include <string.h>

#include <algorithm>
#include <limits>

#include "ndp/kernels.h"

#define BOWHEAD_VECTOR_BYTES 16
#include "ndp/kernels_lanes.h"

namespace bowhead::ndp {

const Kernels kKernelsNeon = {"neon", score, weigh,    largest, exponentials,
                              select, dots,  products, exact,   bounds};

}  // namespace bowhead::ndp
