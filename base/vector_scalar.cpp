// SPDX-License-Identifier: Apache-2.0
// The kernels for every CPU of the architecture: SSE2 on x86-64, which always has it.
#if defined(__x86_64__)
#include <immintrin.h>
#define XXH_VECTOR XXH_SSE2
#endif

#include "base/race.h"
#include "base/vector_kernels.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

namespace bowhead {
namespace {

#if defined(__x86_64__)

struct Line {
  __m128i parts[4];
};

BOWHEAD_RACY inline Line load_line(const std::byte* source) {
  auto* from = reinterpret_cast<const __m128i*>(source);
  __m128i a = _mm_loadu_si128(from), b = _mm_loadu_si128(from + 1);
  __m128i c = _mm_loadu_si128(from + 2), d = _mm_loadu_si128(from + 3);
  asm volatile("" : "+x"(a), "+x"(b), "+x"(c), "+x"(d));
  return {{a, b, c, d}};
}

inline void store_line(std::byte* destination, const Line& line) {
  auto* to = reinterpret_cast<__m128i*>(destination);
  for (int i = 0; i < 4; ++i) _mm_storeu_si128(to + i, line.parts[i]);
}

inline void stream_line(std::byte* destination, const Line& line) {
  auto* to = reinterpret_cast<__m128i*>(destination);
  for (int i = 0; i < 4; ++i) _mm_stream_si128(to + i, line.parts[i]);
}

#else

struct Line {
  uint64_t words[8];
};

BOWHEAD_RACY inline Line load_line(const std::byte* source) {
  Line line;
  __builtin_memcpy(&line, source, sizeof(line));
  asm volatile("" : "+m"(line));
  return line;
}

inline void store_line(std::byte* destination, const Line& line) {
  __builtin_memcpy(destination, &line, sizeof(line));
}

inline void stream_line(std::byte* destination, const Line& line) { store_line(destination, line); }

#endif

inline void leave_vectors() {}

}  // namespace
}  // namespace bowhead

#define BOWHEAD_VECTOR_KERNELS kVectorKernelsScalar
#include "base/vector_kernels.inc"
