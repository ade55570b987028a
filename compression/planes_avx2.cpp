// SPDX-License-Identifier: Apache-2.0
// The planes with AVX2: 32 channels at a time.

// All headers come before the target is set: other files share their inline functions.
#include <immintrin.h>
#include <string.h>

#include <algorithm>
#include <utility>

#include "compression/planes.h"

#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx2"))), apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx2")
#endif

#define BOWHEAD_VECTOR_BYTES 32
#include "compression/bit_sink.h"
#include "compression/planes_lanes.h"

namespace bowhead::compression {
namespace {

uint32_t top_bits(U8 bytes) { return static_cast<uint32_t>(_mm256_movemask_epi8(__m256i(bytes))); }
I16 product(I16 a, I16 b) { return I16(_mm256_mulhrs_epi16(__m256i(a), __m256i(b))); }
I16 saturated_sum(I16 a, I16 b) { return I16(_mm256_adds_epi16(__m256i(a), __m256i(b))); }
I16 saturated_difference(I16 a, I16 b) { return I16(_mm256_subs_epi16(__m256i(a), __m256i(b))); }

}  // namespace

const PlaneKernels kPlaneKernelsAvx2 = {largest_exponents, split,         count_rests, merge,
                                        differences,       centres,       middles,     nibbles_size,
                                        pack_nibbles,      unpack_nibbles};

}  // namespace bowhead::compression

#if defined(__clang__)
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif
