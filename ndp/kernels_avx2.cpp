// SPDX-License-Identifier: Apache-2.0
// With AVX2 and FMA.

// All headers come before the target is set: other files share their inline functions.
#include <immintrin.h>
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
namespace {

bool any_of(Integers lanes) { return !_mm256_testz_si256(__m256i(lanes), __m256i(lanes)); }

/// Queries as pairs of channels, which one instruction multiplies: [pair][query].
BOWHEAD_INLINE void lay_in_pairs(const Products& in, uint32_t (*pairs)[kProductQueries]) {
  for (uint32_t q = 0; q < kProductQueries; ++q) {
    const int16_t* query = in.queries + size_t{q} * in.channels;
    for (uint32_t pair = 0; pair < in.channels / 2; ++pair)
      memcpy(&pairs[pair][q], query + pair * 2, 4);
  }
}

/// A lane for each query.
template <uint32_t kRows>
BOWHEAD_INLINE void multiply_rows(const uint32_t (*pairs)[kProductQueries], const int16_t* rows,
                                  uint32_t channels, int32_t* sums) {
  static_assert(kProductQueries == 8);
  __m256i all[kRows] = {};
#pragma GCC unroll 8
  for (uint32_t pair = 0; pair < channels / 2; ++pair) {
    const __m256i of_queries = load<__m256i>(pairs[pair]);
#pragma GCC unroll 4
    for (uint32_t i = 0; i < kRows; ++i) {
      int both;
      memcpy(&both, rows + size_t{i} * channels + pair * 2, sizeof both);
      all[i] = _mm256_add_epi32(all[i], _mm256_madd_epi16(of_queries, _mm256_set1_epi32(both)));
    }
  }
  memcpy(sums, all, sizeof all);
}

void products(const Products& in, int32_t* sums) {
  alignas(32) uint32_t pairs[kMaxChannels / 2][kProductQueries];
  lay_in_pairs(in, pairs);
  uint32_t i = 0;
  for (; i + 4 <= in.count; i += 4)
    multiply_rows<4>(pairs, in.rows + size_t{i} * in.channels, in.channels,
                     sums + size_t{i} * kProductQueries);
  for (; i < in.count; ++i)
    multiply_rows<1>(pairs, in.rows + size_t{i} * in.channels, in.channels,
                     sums + size_t{i} * kProductQueries);
}

}  // namespace

const Kernels kKernelsAvx2 = {"avx2",        score,       weigh, largest,  exponentials,
                              soft_cap,      select,      dots,  products, count_reaching,
                              rows_reaching, count_ranks, exact, bounds};

}  // namespace bowhead::ndp

#if defined(__clang__)
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif
