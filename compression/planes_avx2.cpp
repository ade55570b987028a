// SPDX-License-Identifier: Apache-2.0
// The planes with AVX2 and BMI2: 32 channels at a time.

// All headers come before the target is set: other files share their inline functions.
#include <immintrin.h>
#include <string.h>

#include <algorithm>
#include <utility>

#include "compression/planes.h"

#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx2,bmi,bmi2,popcnt"))), apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx2,bmi,bmi2,popcnt")
#endif

#define BOWHEAD_VECTOR_BYTES 32
#include "compression/bit_sink.h"
#include "compression/planes_lanes.h"

namespace bowhead::compression {
namespace {

uint32_t top_bits(U8 bytes) { return static_cast<uint32_t>(_mm256_movemask_epi8(__m256i(bytes))); }
U8 looked_up(U8 table, U8 index) { return U8(_mm256_shuffle_epi8(__m256i(table), __m256i(index))); }
I16 product(I16 a, I16 b) { return I16(_mm256_mulhrs_epi16(__m256i(a), __m256i(b))); }
I16 saturated_sum(I16 a, I16 b) { return I16(_mm256_adds_epi16(__m256i(a), __m256i(b))); }
I16 saturated_difference(I16 a, I16 b) { return I16(_mm256_subs_epi16(__m256i(a), __m256i(b))); }

U16 sign_extended(const uint8_t* bytes) { return U16(_mm256_cvtepi8_epi16(load<__m128i>(bytes))); }
/// For signed words, by at most 15.
BOWHEAD_INLINE U16 shifted_right_signed(U16 words, U16 by) {
  const U32 w = U32(words), n = U32(by);
  return U16(U32(I32(w << 16) >> I32(n & 0xFFFF)) >> 16 |
             (U32(I32(w) >> I32(n >> 16)) & 0xFFFF0000));
}
/// By a product, which rounds: so half is taken off before. (Saturation changes nothing: what would
/// be below the least number is rounded to the same.)
U16 centre_at(const TurningCentre& t, uint32_t channel) {
  const I16 state = load<I16>(t.state + channel);
  if (t.factors == nullptr) return shifted_right_signed(U16(state), load<U16>(t.right + channel));
  return U16(product(saturated_difference(state, load<I16>(t.halves + channel)),
                     load<I16>(t.factors + channel)));
}

uint32_t ones_in(uint64_t bits) { return static_cast<uint32_t>(_mm_popcnt_u64(bits)); }

template <uint32_t kMost>
U16 take_fields(U16 masks, BitSource& from) {
  constexpr uint32_t kAtOnce = 8 * kMost <= 57 ? 2 : 1;
  const U64 fields = U64(masks);
  U64 words{};
  from.take<kRuns / kAtOnce, 4 * kMost * kAtOnce>([&](uint32_t i, uint64_t run) {
    uint32_t count = ones_in(fields[i * kAtOnce]);
    words[i * kAtOnce] = _pdep_u64(run, fields[i * kAtOnce]);
    if constexpr (kAtOnce == 2) {
      words[i * kAtOnce + 1] = _pdep_u64(run >> count, fields[i * kAtOnce + 1]);
      count += ones_in(fields[i * kAtOnce + 1]);
    }
    return count;
  });
  return U16(words);
}

template <uint32_t kMost>
void put_fields(U16 words, U16 masks, BitSink& to) {
  constexpr uint32_t kAtOnce = 8 * kMost <= 56 ? 2 : 1;
  const U64 from = U64(words), fields = U64(masks);
#pragma GCC unroll 4
  for (uint32_t i = 0; i < kRuns; i += kAtOnce) {
    uint64_t bits = _pext_u64(from[i], fields[i]);
    uint32_t count = ones_in(fields[i]);
    if constexpr (kAtOnce == 2) {
      bits |= _pext_u64(from[i + 1], fields[i + 1]) << count;
      count += ones_in(fields[i + 1]);
    }
    to.add(bits, count);
  }
}

constexpr uint64_t kEachNibble = 0x1111111111111111;

void put_nibbles(U8 bytes, BitSink& to) {
  const U64 words = U64(bytes);
#pragma GCC unroll 4
  for (uint32_t i = 0; i < kRuns; ++i) {
    const uint64_t word = words[i];
    const uint64_t some = (word | word >> 1 | word >> 2 | word >> 3) & kEachNibble;
    const uint64_t bits = _pext_u64(word, some * 15);
    const uint32_t count = 4 * ones_in(some), low = std::min(count, 32u);
    to.add(bits & 0xFFFFFFFF, low);
    to.add(bits >> 32, count - low);
  }
}

U8 take_nibbles(const uint8_t* map, BitSource& from) {
  U64 words{};
  from.take<kRuns, 64>([&](uint32_t i, uint64_t run) {
    uint16_t some;
    memcpy(&some, map + size_t{i} * 2, 2);
    words[i] = _pdep_u64(run, _pdep_u64(some, kEachNibble) * 15);
    return 4 * ones_in(some);
  });
  return U8(words);
}

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
