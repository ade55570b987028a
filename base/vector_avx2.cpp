// SPDX-License-Identifier: Apache-2.0
// The kernels for AVX2.

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
#pragma clang attribute push(__attribute__((target("avx2"))), apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx2")
#endif

#define XXH_INLINE_ALL
#define XXH_VECTOR XXH_AVX2
#include <xxhash.h>

namespace bowhead {
namespace {

struct Line {
  __m256i low, high;
};

BOWHEAD_RACY inline Line load_line(const std::byte* source) {
  auto* from = reinterpret_cast<const __m256i*>(source);
  Line line{_mm256_loadu_si256(from), _mm256_loadu_si256(from + 1)};
  asm volatile("" : "+x"(line.low), "+x"(line.high));
  return line;
}

inline void store_line(std::byte* destination, Line line) {
  auto* to = reinterpret_cast<__m256i*>(destination);
  _mm256_storeu_si256(to, line.low);
  _mm256_storeu_si256(to + 1, line.high);
}

inline void stream_line(std::byte* destination, Line line) {
  auto* to = reinterpret_cast<__m256i*>(destination);
  _mm256_stream_si256(to, line.low);
  _mm256_stream_si256(to + 1, line.high);
}

inline void leave_vectors() { _mm256_zeroupper(); }

}  // namespace
}  // namespace bowhead

#define BOWHEAD_VECTOR_KERNELS kVectorKernelsAvx2
#include "base/vector_kernels.inc"

#if defined(__clang__)
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif
