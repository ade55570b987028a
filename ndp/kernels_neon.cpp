// SPDX-License-Identifier: Apache-2.0
// With Neon.

#include <string.h>

#include <algorithm>
#include <limits>

#include "ndp/kernels.h"

#define BOWHEAD_VECTOR_BYTES 16
#include "ndp/kernels_lanes.h"

namespace bowhead::ndp {
namespace {

bool any_of(Integers lanes) {
  uint64_t halves[2];
  memcpy(halves, &lanes, sizeof halves);
  return (halves[0] | halves[1]) != 0;
}

BOWHEAD_INLINE Words whole(const int16_t* at) {
  return Words(__builtin_convertvector(load<Shorts>(at), Integers));
}

/// In as many lanes as floats.
void products(const Products& in, int32_t* sums) {
  for (uint32_t i = 0; i < in.count; ++i, sums += kProductQueries) {
    const int16_t* row = in.rows + size_t{i} * in.channels;
    Words lanes[kProductQueries] = {};
    for (uint32_t c = 0; c < in.channels; c += kLanes) {
      const Words key = whole(row + c);
      for (uint32_t q = 0; q < kProductQueries; ++q)
        lanes[q] += key * whole(in.queries + size_t{q} * in.channels + c);
    }
    for (uint32_t q = 0; q < kProductQueries; ++q) {
      uint32_t sum = 0;
      for (uint32_t lane = 0; lane < kLanes; ++lane) sum += lanes[q][lane];
      sums[q] = static_cast<int32_t>(sum);
    }
  }
}

}  // namespace

const Kernels kKernelsNeon = {"neon",        score,       weigh, largest,  exponentials,
                              soft_cap,      select,      dots,  products, count_reaching,
                              rows_reaching, count_ranks, exact, bounds};

}  // namespace bowhead::ndp
