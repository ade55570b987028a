// SPDX-License-Identifier: Apache-2.0
// The limits with AVX-512 and its dot products of bf16 and of int16.

// All headers come before the target is set: other files share their inline functions.
#include <immintrin.h>
#include <string.h>

#include "bench/ndp_limits.h"

#if defined(__clang__)
#pragma clang attribute push(                                                                     \
    __attribute__((target("avx2,fma,avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,avx512vnni"))), \
    apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx2,fma,avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,avx512vnni")
#endif

#define BOWHEAD_VECTOR_BYTES 64
#include "bench/ndp_limits.inc"

namespace bowhead::bench {
namespace {

struct Bf16Unit {
  using Sum = __m512;
  using Factor = __m512i;
  static constexpr uint32_t kProducts = 32;
  static BOWHEAD_INLINE __m512i first() { return _mm512_set1_epi16(0x3F80); }  // 1
  static BOWHEAD_INLINE __m512i second() { return first(); }
  static BOWHEAD_INLINE __m512 add(__m512 sum, __m512i a, __m512i b) {
    return _mm512_dpbf16_ps(sum, (__m512bh)a, (__m512bh)b);
  }
};

struct Int16Unit {
  using Sum = __m512i;
  using Factor = __m512i;
  static constexpr uint32_t kProducts = 32;
  static BOWHEAD_INLINE __m512i first() { return _mm512_set1_epi16(1); }
  static BOWHEAD_INLINE __m512i second() { return first(); }
  static BOWHEAD_INLINE __m512i add(__m512i sum, __m512i a, __m512i b) {
    return _mm512_dpwssd_epi32(sum, a, b);
  }
};

}  // namespace

const LimitKernels kLimitKernelsAvx512 = {read,
                                          {"bf16 dot products", multiply_add<Bf16Unit>},
                                          {"int16 dot products", multiply_add<Int16Unit>},
                                          {"float products", multiply_add<FloatUnit>}};

}  // namespace bowhead::bench

#if defined(__clang__)
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif
