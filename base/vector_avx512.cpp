// SPDX-License-Identifier: Apache-2.0
// The kernels for AVX-512 (F, BW, DQ, VL).

// All headers come before the target is set: other files share their inline functions.
#include <immintrin.h>
#include <limits.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/race.h"
#include "base/vector_kernels.h"

#if defined(__clang__)
#pragma clang attribute push( \
    __attribute__((target("avx2,bmi2,avx512f,avx512bw,avx512dq,avx512vl"))), apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx2,bmi2,avx512f,avx512bw,avx512dq,avx512vl")
// gcc 12 warns of its own intrinsics' "undefined" operands (gcc bug 105593).
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC diagnostic ignored "-Wuninitialized"
#endif

#define XXH_INLINE_ALL
#define XXH_VECTOR XXH_AVX512
#include <xxhash.h>

namespace bowhead {
namespace {

struct Line {
  __m512i bytes;
};

BOWHEAD_RACY inline Line load_line(const std::byte* source) {
  Line line{_mm512_loadu_si512(source)};
  asm volatile("" : "+v"(line.bytes));
  return line;
}

inline void store_line(std::byte* destination, Line line) {
  _mm512_storeu_si512(destination, line.bytes);
}

inline void stream_line(std::byte* destination, Line line) {
  _mm512_stream_si512(reinterpret_cast<__m512i*>(destination), line.bytes);
}

inline void leave_vectors() { _mm256_zeroupper(); }

}  // namespace
}  // namespace bowhead

#define BOWHEAD_VECTOR_KERNELS kVectorKernelsAvx512
#include "base/vector_kernels.inc"

#if defined(__clang__)
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif
