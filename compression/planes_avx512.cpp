// SPDX-License-Identifier: Apache-2.0
// The planes with AVX-512 (F, BW, CD, DQ, VL, VBMI, VBMI2, GFNI): 64 channels at a time.

// All headers come before the target is set: other files share their inline functions.
#include <immintrin.h>
#include <string.h>

#include <algorithm>
#include <bit>

#include "compression/planes.h"

#if defined(__clang__)
#pragma clang attribute push(                                                             \
    __attribute__((target("avx2,bmi,bmi2,popcnt,gfni,avx512f,avx512bw,avx512cd,avx512dq," \
                          "avx512vl,avx512vbmi,avx512vbmi2"))),                           \
    apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target( \
    "avx2,bmi,bmi2,popcnt,gfni,avx512f,avx512bw,avx512cd,avx512dq,avx512vl,avx512vbmi,avx512vbmi2")
// gcc 12 warns of its own intrinsics' "undefined" operands (gcc bug 105593).
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC diagnostic ignored "-Wuninitialized"
#endif

#include "compression/bit_sink.h"

namespace bowhead::compression {
namespace {

// Functions of a Number are inlined where it is a constant, and their loops are unrolled there.
#define BOWHEAD_INLINE inline __attribute__((always_inline))

constexpr uint32_t kLanes = 64;

inline uint64_t lanes_mask(uint32_t count) { return count >= 64 ? ~0ull : (1ull << count) - 1; }

/// 64 lanes of 16 bits.
struct Words {
  __m512i a, b;
};

// Within the kernels words are in the order of unpack: `a` has the first 8 of each 16 channels, `b`
// the others. So bytes become words, and words bytes, within each quarter of a register.

inline Words unpack(__m512i low, __m512i high) {
  return {_mm512_unpacklo_epi8(low, high), _mm512_unpackhi_epi8(low, high)};
}
/// For words below 256.
inline __m512i pack(Words words) { return _mm512_packus_epi16(words.a, words.b); }
inline Words unpacked_order(Words words) {
  return {_mm512_shuffle_i64x2(words.a, words.b, 0x88),
          _mm512_shuffle_i64x2(words.a, words.b, 0xDD)};
}
inline Words channel_order(Words words) {
  const __m512i low = _mm512_setr_epi64(0, 1, 8, 9, 2, 3, 10, 11);
  const __m512i high = _mm512_setr_epi64(4, 5, 12, 13, 6, 7, 14, 15);
  return {_mm512_permutex2var_epi64(words.a, low, words.b),
          _mm512_permutex2var_epi64(words.a, high, words.b)};
}

inline uint64_t join(__mmask32 a, __mmask32 b) { return uint64_t{b} << 32 | a; }

BOWHEAD_INLINE Words load_values(const uint8_t* from, uint32_t element_bytes, uint64_t valid) {
  if (element_bytes == 1)
    return unpack(_mm512_maskz_loadu_epi8(valid, from), _mm512_setzero_si512());
  if (valid == ~0ull)
    return unpacked_order({_mm512_loadu_si512(from), _mm512_loadu_si512(from + 64)});
  return unpacked_order({_mm512_maskz_loadu_epi16(static_cast<__mmask32>(valid), from),
                         _mm512_maskz_loadu_epi16(static_cast<__mmask32>(valid >> 32), from + 64)});
}

BOWHEAD_INLINE void store_values(uint8_t* to, uint32_t element_bytes, uint64_t valid,
                                 Words values) {
  if (element_bytes == 1) {
    _mm512_mask_storeu_epi8(to, valid, pack(values));
    return;
  }
  values = channel_order(values);
  if (valid == ~0ull) {
    _mm512_storeu_si512(to, values.a);
    _mm512_storeu_si512(to + 64, values.b);
    return;
  }
  _mm512_mask_storeu_epi16(to, static_cast<__mmask32>(valid), values.a);
  _mm512_mask_storeu_epi16(to + 64, static_cast<__mmask32>(valid >> 32), values.b);
}

/// Permutes bytes like the transposition of an 8 by 8 matrix.
inline __m512i transposed(__m512i bytes) {
  return _mm512_permutexvar_epi8(
      _mm512_set_epi64(0x3F372F271F170F07, 0x3E362E261E160E06, 0x3D352D251D150D05,
                       0x3C342C241C140C04, 0x3B332B231B130B03, 0x3A322A221A120A02,
                       0x3931292119110901, 0x3830282018100800),
      bytes);
}

/// The columns of each matrix of 8 by 8 bits: byte i has bit i of each byte, with that of the last
/// byte lowest.
inline __m512i columns_of(__m512i matrices) {
  const __m512i unit_vectors = _mm512_set1_epi64(static_cast<long long>(0x8040201008040201));
  return _mm512_gf2p8affine_epi64_epi8(unit_vectors, matrices, 0);
}

/// Loads exponents in memory order.
inline Words load_words(const uint16_t* words) {
  return unpacked_order({_mm512_loadu_si512(words), _mm512_loadu_si512(words + 32)});
}

BOWHEAD_INLINE uint64_t load_bits(const uint8_t* from, uint32_t count) {
  uint64_t bits = 0;
  if (count == kLanes) {
    memcpy(&bits, from, 8);
  } else {
    memcpy(&bits, from, (count + 7) / 8);
  }
  return bits;
}

// ---- exponents ----

void largest_exponents(const Number& number, const void* values, uint32_t tokens, uint32_t channels,
                       uint16_t* exponents) {
  const auto* bytes = static_cast<const uint8_t*>(values);
  const size_t row_bytes = size_t{channels} * number.element_bytes;
  const __m512i rest = _mm512_set1_epi16(number.element_bytes == 1 ? 0x7F : 0x7FFF);
  for (uint32_t first = 0; first < channels; first += kLanes) {
    const uint64_t valid = lanes_mask(channels - first);
    __m512i a = _mm512_setzero_si512(), b = a;
    for (uint32_t token = 0; token < tokens; ++token) {
      const Words v = load_values(bytes + token * row_bytes + size_t{first} * number.element_bytes,
                                  number.element_bytes, valid);
      a = _mm512_max_epu16(a, _mm512_and_si512(v.a, rest));
      b = _mm512_max_epu16(b, _mm512_and_si512(v.b, rest));
    }
    const __m128i shift = _mm_cvtsi32_si128(number.mantissa_bits);
    const Words largest = channel_order({_mm512_srl_epi16(a, shift), _mm512_srl_epi16(b, shift)});
    _mm512_storeu_si512(exponents + first, largest.a);
    _mm512_storeu_si512(exponents + first + 32, largest.b);
  }
}

/// Values that are not there have the exponent 0, and so has their channel.
StepCount count_rests(const Number& number, const void* values, size_t row_bytes, uint32_t tokens,
                      uint32_t channels, const uint16_t* exponents) {
  const auto* bytes = static_cast<const uint8_t*>(values);
  const __m512i most = _mm512_set1_epi16(number.mantissa_bits);
  const __m512i field = _mm512_set1_epi16(static_cast<short>((1 << number.exponent_bits) - 1));
  const __m128i shift = _mm_cvtsi32_si128(number.mantissa_bits);
  __m512i bits = _mm512_setzero_si512();
  int exceptions = 0;
  for (uint32_t first = 0; first < channels; first += kLanes) {
    const uint64_t valid = lanes_mask(channels - first);
    const Words largest = unpacked_order(
        {_mm512_maskz_loadu_epi16(static_cast<__mmask32>(valid), exponents + first),
         _mm512_maskz_loadu_epi16(static_cast<__mmask32>(valid >> 32), exponents + first + 32)});
    for (uint32_t token = 0; token < tokens; ++token) {
      const Words v = load_values(bytes + token * row_bytes + size_t{first} * number.element_bytes,
                                  number.element_bytes, valid);
      const auto below = [&](__m512i from, __m512i value) {
        return _mm512_sub_epi16(from, _mm512_and_si512(_mm512_srl_epi16(value, shift), field));
      };
      const __m512i a = below(largest.a, v.a), b = below(largest.b, v.b);
      bits = _mm512_add_epi16(
          bits, _mm512_add_epi16(_mm512_min_epu16(a, most), _mm512_min_epu16(b, most)));
      exceptions +=
          std::popcount(join(_mm512_cmpgt_epu16_mask(a, most), _mm512_cmpgt_epu16_mask(b, most)));
    }
  }
  const int sum = _mm512_reduce_add_epi32(_mm512_madd_epi16(bits, _mm512_set1_epi16(1)));
  return {static_cast<uint16_t>(sum), static_cast<uint16_t>(exceptions)};
}

// ---- centres ----

BOWHEAD_INLINE void turn_interleaved(int16_t* at, __m512i cosines, __m512i sines) {
  constexpr __mmask32 kSeconds = 0xAAAAAAAA;
  const __m512i all = _mm512_loadu_si512(at), others = _mm512_rol_epi32(all, 16);
  const __m512i own = _mm512_mulhrs_epi16(all, cosines);
  const __m512i other = _mm512_mulhrs_epi16(others, sines);
  _mm512_storeu_si512(at,
                      _mm512_mask_adds_epi16(_mm512_subs_epi16(own, other), kSeconds, own, other));
}

BOWHEAD_INLINE void turn_vectors(const TurningCentre& t) {
  const uint32_t count = t.rotary.interleaved ? t.rotary.dim : t.rotary.pairs();
  if (count == 0) return;
  if (count % 32 != 0) return turn(t);
  for (uint32_t head = t.rotary.first; head < t.channels; head += t.rotary.head) {
    for (uint32_t i = 0; i < count; i += 32) {
      int16_t* at_x = t.state + head + i;
      if (t.rotary.interleaved) {
        turn_interleaved(at_x, _mm512_loadu_si512(t.cosines + i), _mm512_loadu_si512(t.sines + i));
        continue;
      }
      int16_t* at_y = at_x + count;
      const __m512i cosine = _mm512_loadu_si512(t.cosines + i);
      const __m512i sine = _mm512_loadu_si512(t.sines + i);
      const __m512i x = _mm512_loadu_si512(at_x), y = _mm512_loadu_si512(at_y);
      _mm512_storeu_si512(
          at_x, _mm512_subs_epi16(_mm512_mulhrs_epi16(x, cosine), _mm512_mulhrs_epi16(y, sine)));
      _mm512_storeu_si512(
          at_y, _mm512_adds_epi16(_mm512_mulhrs_epi16(x, sine), _mm512_mulhrs_epi16(y, cosine)));
    }
  }
}

BOWHEAD_INLINE Words load_centre(const TurningCentre& t, uint32_t first) {
  const auto of = [&](uint32_t channel) {
    return _mm512_srav_epi16(_mm512_loadu_si512(t.state + channel),
                             _mm512_loadu_si512(t.right + channel));
  };
  return unpacked_order({of(first), of(first + 32)});
}

// ---- samples ----

/// 16 numbers of bf16 as floats.
inline __m512 load_floats(const uint8_t* from) {
  const __m256i words = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(words), 16));
}

void add_to(float* sums, __m512 more) {
  _mm512_storeu_ps(sums, _mm512_add_ps(_mm512_loadu_ps(sums), more));
}

/// 16 channels.
void sum_channels(const SampleSums& s, uint32_t first) {
  const __m512 scale = _mm512_loadu_ps(s.scale + first);
  __m512 energy = _mm512_setzero_ps(), mean = energy;
  for (uint32_t i = 0; i < s.samples; ++i) {
    const __m512 x = _mm512_mul_ps(load_floats(s.values + i * s.stride_bytes + first * 2), scale);
    energy = _mm512_fmadd_ps(x, x, energy);
    mean = _mm512_add_ps(mean, x);
  }
  add_to(s.energy + first, energy);
  add_to(s.mean + first, mean);
}

/// 16 pairs, rotated back.
void sum_pairs(const SampleSums& s, uint32_t head, uint32_t pair) {
  const uint32_t half = s.rotary.pairs(), first = head + pair, second = first + half;
  const __m512 scale_x = _mm512_loadu_ps(s.scale + first);
  const __m512 scale_y = _mm512_loadu_ps(s.scale + second);
  __m512 u = _mm512_setzero_ps(), v = u;
  for (uint32_t i = 0; i < s.samples; ++i) {
    const uint8_t* token = s.values + i * s.stride_bytes;
    const __m512 x = _mm512_mul_ps(load_floats(token + first * 2), scale_x);
    const __m512 y = _mm512_mul_ps(load_floats(token + second * 2), scale_y);
    const __m512 cosine = _mm512_loadu_ps(s.cosines + size_t{i} * half + pair);
    const __m512 sine = _mm512_loadu_ps(s.sines + size_t{i} * half + pair);
    u = _mm512_fmadd_ps(x, cosine, _mm512_fmadd_ps(y, sine, u));
    v = _mm512_fmadd_ps(y, cosine, _mm512_fnmadd_ps(x, sine, v));
  }
  add_to(s.vector + first, u);
  add_to(s.vector + second, v);
}

bool sum_samples(const SampleSums& s) {
  const bool bf16 = s.number.exponent_bits == 8;
  const uint32_t half = s.rotary.pairs();
  if (!bf16 || s.channels % 16 != 0 || half % 16 != 0 || s.rotary.interleaved) return false;
  for (uint32_t first = 0; first < s.channels; first += 16) sum_channels(s, first);
  for (uint32_t head = s.rotary.first; half != 0 && head < s.channels; head += s.rotary.head) {
    for (uint32_t pair = 0; pair < half; pair += 16) sum_pairs(s, head, pair);
  }
  return true;
}

// ---- split ----

struct Constants {
  explicit Constants(const Number& n)
      : mantissa(_mm512_set1_epi16(static_cast<short>((1 << n.mantissa_bits) - 1))),
        one(_mm512_set1_epi16(static_cast<short>(1 << n.mantissa_bits))),
        exponent(_mm512_set1_epi16(static_cast<short>((1 << n.exponent_bits) - 1))),
        magnitude(_mm512_set1_epi16(static_cast<short>((1 << n.magnitude_bits) - 1))),
        shift(_mm_cvtsi32_si128(n.mantissa_bits)),
        to_top(_mm_cvtsi32_si128(16 - 8 * n.element_bytes)) {}
  __m512i mantissa, one, exponent, magnitude;
  __m128i shift, to_top;
};

/// 32 lanes in fixed point.
struct Half {
  __m512i q, significand, below;
};

BOWHEAD_INLINE Half fixed_of(const Constants& k, __m512i v, __m512i largest, bool is_float) {
  const __m512i sign = _mm512_srai_epi16(_mm512_sll_epi16(v, k.to_top), 15);
  const __m512i zero = _mm512_setzero_si512();
  if (!is_float) return {_mm512_srai_epi16(_mm512_slli_epi16(v, 8), 8), zero, zero};
  Half half;
  const __m512i exponent = _mm512_and_si512(_mm512_srl_epi16(v, k.shift), k.exponent);
  half.significand = _mm512_ternarylogic_epi32(v, k.mantissa, k.one, 0xEA);  // v & m | one
  half.below = _mm512_sub_epi16(largest, exponent);
  half.q = _mm512_xor_si512(_mm512_srlv_epi16(half.significand, half.below), sign);
  return half;
}

/// The planes of 64 bytes: plane p of `count` is their bit count - 1 - p.
BOWHEAD_INLINE void scatter_planes(__m512i bytes, uint8_t* const* planes, uint32_t count,
                                   size_t at) {
  const __m512i backwards = _mm512_set4_epi32(0x08090A0B, 0x0C0D0E0F, 0x00010203, 0x04050607);
  const __m512i rows = transposed(columns_of(_mm512_shuffle_epi8(bytes, backwards)));
  alignas(64) uint64_t bits[8];
  _mm512_store_si512(bits, rows);
#pragma GCC unroll 8
  for (uint32_t p = 0; p < count; ++p) memcpy(planes[p] + at, &bits[count - 1 - p], 8);
}

/// Bits after the valid channels are zero; the next row overwrites surplus bytes.
BOWHEAD_INLINE void scatter_differences(const Number& number, Words d, Words m, uint64_t valid,
                                        size_t at, Split& out) {
  const uint64_t signs = valid & _mm512_movepi8_mask(_mm512_packs_epi16(d.a, d.b));
  memcpy(out.planes[0] + at, &signs, 8);
  const uint32_t above = number.magnitude_bits > 8 ? number.magnitude_bits - 8u : 0;
  if (above > 0) {
    const Words high = {_mm512_srli_epi16(m.a, 8), _mm512_srli_epi16(m.b, 8)};
    scatter_planes(_mm512_maskz_mov_epi8(valid, pack(high)), out.planes + 1, above, at);
    const __m512i byte = _mm512_set1_epi16(0xFF);
    m = {_mm512_and_si512(m.a, byte), _mm512_and_si512(m.b, byte)};
  }
  scatter_planes(_mm512_maskz_mov_epi8(valid, pack(m)), out.planes + 1 + above,
                 number.magnitude_bits - above, at);
}

/// Marks channels whose d has too many bits; false if there is none.
BOWHEAD_INLINE bool mark_beyond(const Constants& k, Words m, uint64_t valid, uint8_t* beyond) {
  if (!((_mm512_cmpgt_epi16_mask(m.a, k.magnitude) | _mm512_cmpgt_epi16_mask(m.b, k.magnitude))))
    return false;
  const Words in_order = channel_order(m);
  const uint64_t over = valid & join(_mm512_cmpgt_epi16_mask(in_order.a, k.magnitude),
                                     _mm512_cmpgt_epi16_mask(in_order.b, k.magnitude));
  _mm512_mask_storeu_epi8(beyond, over, _mm512_set1_epi8(1));
  return over != 0;
}

/// Appends the bits of each significand that belong to the remainder; `below` are bytes in the
/// order of the channels.
BOWHEAD_INLINE void put_remainders(const Number& number, Words significand, __m512i below,
                                   uint64_t valid, BitSink& sink) {
  const __m512i zero = _mm512_setzero_si512();
  const __m512i count = _mm512_maskz_min_epu8(
      valid, below, _mm512_set1_epi8(static_cast<char>(number.mantissa_bits)));
  alignas(64) uint64_t masks[16], bits[16];
  if (number.magnitude_bits <= 8) {
    const __m512i ones = _mm512_set1_epi64(static_cast<long long>(0x7F3F1F0F07030100));
    _mm512_store_si512(masks, _mm512_shuffle_epi8(ones, count));
    _mm512_store_si512(bits, pack(significand));
#pragma GCC unroll 8
    for (int i = 0; i < 8; ++i)
      sink.add(_pext_u64(bits[i], masks[i]), static_cast<uint32_t>(_mm_popcnt_u64(masks[i])));
    return;
  }
  const Words counts = channel_order(unpack(count, zero));
  const Words in_order = channel_order(significand);
  const __m512i ones = _mm512_set1_epi16(-1);
  _mm512_store_si512(masks, _mm512_andnot_si512(_mm512_sllv_epi16(ones, counts.a), ones));
  _mm512_store_si512(masks + 8, _mm512_andnot_si512(_mm512_sllv_epi16(ones, counts.b), ones));
  _mm512_store_si512(bits, in_order.a);
  _mm512_store_si512(bits + 8, in_order.b);
#pragma GCC unroll 16
  for (int i = 0; i < 16; ++i)
    sink.add(_pext_u64(bits[i], masks[i]), static_cast<uint32_t>(_mm_popcnt_u64(masks[i])));
}

/// Appends e - magnitude_bits of the values whose t is zero.
BOWHEAD_INLINE void put_exceptions(const Number& number, __m512i below, uint64_t valid,
                                   Split& out) {
  const __m512i least = _mm512_set1_epi8(static_cast<char>(number.magnitude_bits));
  const uint64_t which = valid & _mm512_cmpge_epu8_mask(below, least);
  _mm512_storeu_si512(out.exceptions + out.exception_count,
                      _mm512_maskz_compress_epi8(which, _mm512_sub_epi8(below, least)));
  out.exception_count += static_cast<uint32_t>(_mm_popcnt_u64(which));
}

/// Rows of a multiple of 64 channels need no masks.
template <size_t kNumber, bool kFull>
void split_rows(const TileFrame& tile, const void* values, Split& out) {
  constexpr const Number& number = kNumbers[kNumber];
  const Constants k(number);
  const auto* bytes = static_cast<const uint8_t*>(values);
  BitSink sink(out.remainder);
  memset(out.beyond, 0, tile.channels);
  out.exception_count = 0;
  bool any_beyond = false;  // then the remaining rows are only searched for others
  for (uint32_t token = 0; token < tile.tokens; ++token) {
    if (token > 0) turn_vectors(tile.centre);
    for (uint32_t first = 0; first < tile.channels; first += kLanes) {
      const uint64_t valid = kFull ? ~0ull : lanes_mask(tile.channels - first);
      const size_t at = (size_t{token} * tile.channels + first) * number.element_bytes;
      const Words v = load_values(bytes + at, number.element_bytes, valid);
      Words largest = {_mm512_setzero_si512(), _mm512_setzero_si512()};
      if (number.is_float()) largest = load_words(tile.exponents + first);
      const Half a = fixed_of(k, v.a, largest.a, number.is_float());
      const Half b = fixed_of(k, v.b, largest.b, number.is_float());
      const Words centre = load_centre(tile.centre, first);
      const Words d = {_mm512_sub_epi16(a.q, centre.a), _mm512_sub_epi16(b.q, centre.b)};
      const Words m = {_mm512_xor_si512(d.a, _mm512_srai_epi16(d.a, 15)),
                       _mm512_xor_si512(d.b, _mm512_srai_epi16(d.b, 15))};
      any_beyond |= mark_beyond(k, m, valid, out.beyond + first);
      if (any_beyond) continue;
      scatter_differences(number, d, m, valid, token * tile.row_bytes() + first / 8, out);
      if (!number.is_float()) continue;
      const __m512i below = pack({a.below, b.below});
      put_remainders(number, {a.significand, b.significand}, below, valid, sink);
      put_exceptions(number, below, valid, out);
    }
  }
  out.remainder_bits = sink.count();
}

// ---- merge ----

/// 64 bytes of a stream, and the same 16 bits further on.
struct Window {
  __m512i early, late;
};

/// The words whose highest bits are those before each `end`, counted from the window's bit 16 on.
BOWHEAD_INLINE __m512i words_before(const Window& window, __m512i end) {
  const __m512i word = _mm512_srli_epi16(end, 4);
  return _mm512_shrdv_epi16(_mm512_permutexvar_epi16(word, window.early),
                            _mm512_permutexvar_epi16(word, window.late), end);
}

/// A source of bits of the remainder.
class WindowSource {
 public:
  WindowSource(std::span<const uint8_t> from, uint64_t begin)
      : from_(from.data()), size_(from.size()), at_(begin) {}
  /// From the byte of the next bit; zero after the end of the stream.
  BOWHEAD_INLINE Window window() const {
    const uint64_t at = at_ / 8;
    if (at >= 2 && at + 64 <= size_)
      return {_mm512_loadu_si512(from_ + at - 2), _mm512_loadu_si512(from_ + at)};
    return window_at_edge(at);
  }
  uint32_t shift() const { return at_ % 8; }
  void skip(uint32_t count) { at_ += count; }
  bool at_end() const { return (at_ + 7) / 8 == size_; }

 private:
  __attribute__((noinline)) Window window_at_edge(uint64_t at) const {
    uint8_t bytes[2 + 64] = {};
    const uint64_t begin = at >= 2 ? at - 2 : 0, end = std::min(at + 64, size_);
    if (begin < end) memcpy(bytes + 2 + begin - at, from_ + begin, end - begin);
    return {_mm512_loadu_si512(bytes), _mm512_loadu_si512(bytes + 2)};
  }

  const uint8_t* from_;
  uint64_t size_;
  uint64_t at_;
};

/// Leading zeros of words.
inline __m512i leading_zeros(__m512i words) {
  const __m512i low = _mm512_set1_epi32(0xFFFF);
  const __m512i even = _mm512_lzcnt_epi32(_mm512_and_si512(words, low));  // 16 too many
  const __m512i odd = _mm512_lzcnt_epi32(_mm512_andnot_si512(low, words));
  const __m512i clamped = _mm512_min_epu32(odd, _mm512_set1_epi32(16));
  return _mm512_or_si512(_mm512_sub_epi32(even, _mm512_set1_epi32(16)),
                         _mm512_slli_epi32(clamped, 16));
}

/// By magnitude_bits and nibble: the number of bits below the highest one of a magnitude's low and
/// high nibble; 255 where the high nibble does not determine it.
struct CountTables {
  alignas(16) uint8_t low[9][16], high[9][16];
};
constexpr CountTables kCountTables = [] {
  CountTables tables{};
  for (uint32_t bits = 0; bits <= 8; ++bits) {
    for (uint32_t nibble = 0; nibble < 16; ++nibble) {
      const auto width = static_cast<uint32_t>(std::bit_width(nibble | 1));
      tables.low[bits][nibble] = static_cast<uint8_t>(bits - width);
      tables.high[bits][nibble] = static_cast<uint8_t>(nibble == 0 ? 255 : bits - width - 4);
    }
  }
  return tables;
}();

inline __m512i broadcast_table(const uint8_t* bytes) {
  return _mm512_broadcast_i32x4(_mm_load_si128(reinterpret_cast<const __m128i*>(bytes)));
}

/// The number of bits in the remainder for each of 64 magnitudes of up to 8 bits.
BOWHEAD_INLINE __m512i counts_of(const Number& number, __m512i t, uint64_t valid) {
  const __m512i nibble = _mm512_set1_epi8(15);
  const __m512i low = _mm512_shuffle_epi8(broadcast_table(kCountTables.low[number.magnitude_bits]),
                                          _mm512_and_si512(t, nibble));
  const __m512i high =
      _mm512_shuffle_epi8(broadcast_table(kCountTables.high[number.magnitude_bits]),
                          _mm512_and_si512(_mm512_srli_epi16(t, 4), nibble));
  return _mm512_maskz_min_epu8(valid, low, high);
}

/// For each lane of 64 bits the sum of the highest bytes of the lanes before it, plus `from`. Sets
/// `sum` to the sum of all eight.
BOWHEAD_INLINE __m512i sums_before(__m512i lanes, uint32_t from, uint32_t& sum) {
  const __m512i zero = _mm512_setzero_si512();
  // Lane n gets the bytes of lanes 0 .. n - 1, and in its last byte, which is free, `from`.
  const __m512i tops = _mm512_set1_epi64(0x3F372F271F170F07);
  const __mmask64 earlier = 0x7F3F1F0F07030100;
  const __m512i first = _mm512_set1_epi64(static_cast<long long>(uint64_t{from} << 56));
  const __m512i all = _mm512_permutexvar_epi8(tops, lanes);
  sum = static_cast<uint32_t>(
      _mm_cvtsi128_si32(_mm_sad_epu8(_mm512_castsi512_si128(all), _mm_setzero_si128())));
  return _mm512_sad_epu8(_mm512_mask_mov_epi8(first, earlier, all), zero);
}

/// The remainders of 64 values of bytes, in the highest bits of words in the order of unpack().
BOWHEAD_INLINE Words take_remainders(__m512i counts, WindowSource& source) {
  const __m512i within = _mm512_mullo_epi64(counts, _mm512_set1_epi8(1));  // sums of 8 lanes
  uint32_t sum;
  const __m512i before = sums_before(within, source.shift(), sum);
  const Window window = source.window();
  source.skip(sum);
  const Words ends = unpack(within, _mm512_setzero_si512());
  const __m512i of_a = _mm512_shuffle_epi8(before, _mm512_set1_epi16(0x0100));
  const __m512i of_b = _mm512_shuffle_epi8(before, _mm512_set1_epi16(0x0908));
  return {words_before(window, _mm512_add_epi16(ends.a, of_a)),
          words_before(window, _mm512_add_epi16(ends.b, of_b))};
}

/// As take_remainders(), for 32 numbers of any magnitude, in the order of the channels.
BOWHEAD_INLINE void take_remainders_of_words(const Number& number, __m512i t, __mmask32 valid,
                                             WindowSource& source, __m512i& count, __m512i& high) {
  count = _mm512_maskz_sub_epi16(valid, leading_zeros(_mm512_or_si512(t, _mm512_set1_epi16(1))),
                                 _mm512_set1_epi16(static_cast<short>(16 - number.magnitude_bits)));
  const __m512i within = _mm512_mullo_epi64(count, _mm512_set1_epi16(1));  // sums of 4 lanes
  uint32_t sum;
  const __m512i before = sums_before(_mm512_slli_epi64(within, 8), source.shift(), sum);
  const Window window = source.window();
  source.skip(sum);
  const __m512i by_fours = _mm512_set_epi64(
      0x001C001C001C001C, 0x0018001800180018, 0x0014001400140014, 0x0010001000100010,
      0x000C000C000C000C, 0x0008000800080008, 0x0004000400040004, 0);
  high = words_before(window, _mm512_add_epi16(within, _mm512_permutexvar_epi16(by_fours, before)));
}

class ByteSource {
 public:
  explicit ByteSource(std::span<const uint8_t> from) : from_(from) {}
  /// The next bytes, at most 64, in the lanes that are set; zero after the end.
  BOWHEAD_INLINE __m512i take(uint64_t lanes) {
    const size_t left = from_.size() - std::min(taken_, from_.size());
    const __m512i bytes = left >= 64
                              ? _mm512_loadu_si512(from_.data() + taken_)
                              : _mm512_maskz_loadu_epi8(lanes_mask(static_cast<uint32_t>(left)),
                                                        from_.data() + (from_.size() - left));
    taken_ += static_cast<size_t>(_mm_popcnt_u64(lanes));
    return _mm512_maskz_expand_epi8(lanes, bytes);
  }
  bool at_end() const { return taken_ == from_.size(); }

 private:
  std::span<const uint8_t> from_;
  size_t taken_ = 0;
};

/// Magnitudes of 64 channels from `count` planes, at most 8, the highest first.
BOWHEAD_INLINE __m512i gather_planes(const uint8_t* const* planes, uint32_t count, size_t at,
                                     uint32_t lanes) {
  const auto row = [&](uint32_t bit) {
    return bit < count ? static_cast<long long>(load_bits(planes[count - 1 - bit] + at, lanes)) : 0;
  };
  const __m512i rows =
      _mm512_set_epi64(row(0), row(1), row(2), row(3), row(4), row(5), row(6), row(7));
  return columns_of(transposed(rows));
}

/// d of 64 channels in the order of unpack().
BOWHEAD_INLINE Words gather_differences(const Number& number, const uint8_t* const* planes,
                                        size_t at, uint32_t lanes) {
  const uint32_t bits = number.magnitude_bits, above = bits > 8 ? bits - 8 : 0;
  const __m512i signs = _mm512_movm_epi8(load_bits(planes[0] + at, lanes));
  const __m512i low = gather_planes(planes + 1 + above, bits - above, at, lanes);
  __m512i high = signs;
  if (above > 0) high = _mm512_xor_si512(signs, gather_planes(planes + 1, above, at, lanes));
  return unpack(_mm512_xor_si512(signs, low), high);
}

/// Values with the sign of q; `below` is e - 1.
BOWHEAD_INLINE __m512i assemble(const Number& number, const Constants& k, __m512i significand,
                                __m512i below, __m512i largest, __m512i q) {
  // The exponent is one too low: the significand's leading one compensates, or e where t is zero.
  const __m512i exponent = _mm512_sub_epi16(_mm512_sub_epi16(largest, below), _mm512_set1_epi16(1));
  const __m512i bits = _mm512_add_epi16(_mm512_sll_epi16(exponent, k.shift), significand);
  if (number.element_bytes == 1) q = _mm512_srli_epi16(q, 8);
  const __m512i rest = _mm512_set1_epi16(number.element_bytes == 1 ? 0x7F : 0x7FFF);
  return _mm512_ternarylogic_epi32(rest, bits, q, 0xCA);  // rest ? bits : q
}

BOWHEAD_INLINE __m512i magnitude_of(const Constants& k, __m512i q) {
  return _mm512_and_si512(_mm512_xor_si512(q, _mm512_srai_epi16(q, 15)), k.magnitude);
}

/// 64 values of q in the order of unpack(), for a format of at most 8 bits of magnitude.
BOWHEAD_INLINE Words exact_by_bytes(const Number& number, const Constants& k, Words q,
                                    Words largest, uint64_t valid, WindowSource& remainder,
                                    ByteSource& exceptions) {
  const Words t = {magnitude_of(k, q.a), magnitude_of(k, q.b)};
  const __m512i bytes = pack(t), zero = _mm512_setzero_si512();
  const __m512i counts = counts_of(number, bytes, valid);
  const Words high = take_remainders(counts, remainder), count = unpack(counts, zero);
  const __m512i far = exceptions.take(_mm512_testn_epi8_mask(bytes, bytes) & valid);
  const Words below = unpack(_mm512_add_epi8(counts, far), zero);
  const Words values = {
      assemble(number, k, _mm512_shldv_epi16(t.a, high.a, count.a), below.a, largest.a, q.a),
      assemble(number, k, _mm512_shldv_epi16(t.b, high.b, count.b), below.b, largest.b, q.b)};
  return values;
}

/// As exact_by_bytes(), for any format.
BOWHEAD_INLINE Words exact_by_words(const Number& number, const Constants& k, Words q,
                                    Words largest, uint64_t valid, WindowSource& remainder,
                                    ByteSource& exceptions) {
  const Words t = {magnitude_of(k, q.a), magnitude_of(k, q.b)};
  const Words in_order = channel_order(t);
  const uint64_t zero = valid & join(_mm512_testn_epi16_mask(in_order.a, in_order.a),
                                     _mm512_testn_epi16_mask(in_order.b, in_order.b));
  Words count, high;
  take_remainders_of_words(number, in_order.a, static_cast<__mmask32>(valid), remainder, count.a,
                           high.a);
  take_remainders_of_words(number, in_order.b, static_cast<__mmask32>(valid >> 32), remainder,
                           count.b, high.b);
  count = unpacked_order(count);
  high = unpacked_order(high);
  const Words far = unpack(exceptions.take(zero), _mm512_setzero_si512());
  return {assemble(number, k, _mm512_shldv_epi16(t.a, high.a, count.a),
                   _mm512_add_epi16(count.a, far.a), largest.a, q.a),
          assemble(number, k, _mm512_shldv_epi16(t.b, high.b, count.b),
                   _mm512_add_epi16(count.b, far.b), largest.b, q.b)};
}

template <size_t kNumber, bool kFull>
bool merge_rows(const TileFrame& tile, const Merge& in, uint8_t* values) {
  constexpr const Number& number = kNumbers[kNumber];
  const Constants k(number);
  WindowSource remainder(in.remainder, in.remainder_begin);
  ByteSource exceptions(in.exceptions);
  for (uint32_t token = 0; token < tile.tokens; ++token) {
    if (token > 0) turn_vectors(tile.centre);
    for (uint32_t first = 0; first < tile.channels; first += kLanes) {
      const uint32_t lanes = kFull ? kLanes : std::min(kLanes, tile.channels - first);
      const uint64_t valid = kFull ? ~0ull : lanes_mask(lanes);
      const size_t at = token * tile.row_bytes() + first / 8;
      const Words d = gather_differences(number, in.planes, at, lanes);
      const Words centre = load_centre(tile.centre, first);
      const Words q = {_mm512_add_epi16(d.a, centre.a), _mm512_add_epi16(d.b, centre.b)};
      uint8_t* to = values + (size_t{token} * tile.channels + first) * number.element_bytes;
      if (!number.is_float()) {
        const __m512i byte = _mm512_set1_epi16(0xFF);
        store_values(to, number.element_bytes, valid,
                     {_mm512_and_si512(q.a, byte), _mm512_and_si512(q.b, byte)});
        continue;
      }
      const Words largest = load_words(tile.exponents + first);
      const Words exact = number.magnitude_bits <= 8
                              ? exact_by_bytes(number, k, q, largest, valid, remainder, exceptions)
                              : exact_by_words(number, k, q, largest, valid, remainder, exceptions);
      store_values(to, number.element_bytes, valid, exact);
    }
  }
  return remainder.at_end() && exceptions.at_end();
}

/// The function middle() of the scalar code: half units as a number, truncated.
BOWHEAD_INLINE __m512i middle(const Number& number, const Constants& k, __m512i twice,
                              __m512i largest) {
  const __m512i magnitude = _mm512_abs_epi16(twice);
  const __m512i zeros = leading_zeros(magnitude);
  const __m512i exponent = _mm512_sub_epi16(
      _mm512_add_epi16(largest, _mm512_set1_epi16(14 - number.mantissa_bits)), zeros);
  const __mmask32 some = _mm512_cmpge_epi16_mask(exponent, _mm512_setzero_si512()) &
                         _mm512_test_epi16_mask(magnitude, magnitude);
  const __m512i significand = _mm512_srli_epi16(_mm512_sllv_epi16(magnitude, zeros),
                                                static_cast<unsigned>(15 - number.mantissa_bits));
  const __m512i bits = _mm512_add_epi16(
      _mm512_sll_epi16(_mm512_sub_epi16(exponent, _mm512_set1_epi16(1)), k.shift), significand);
  const __m512i value = _mm512_maskz_min_epu16(
      some, bits, _mm512_set1_epi16(static_cast<short>(number.largest_finite)));
  if (number.element_bytes == 1) twice = _mm512_srli_epi16(twice, 8);
  const __m512i rest = _mm512_set1_epi16(number.element_bytes == 1 ? 0x7F : 0x7FFF);
  return _mm512_ternarylogic_epi32(rest, value, twice, 0xCA);
}

template <size_t kNumber, bool kFull>
bool merge_prefix(const TileFrame& tile, const Merge& in, uint8_t* values) {
  constexpr const Number& number = kNumbers[kNumber];
  const Constants k(number);
  // Bits read for missing planes are masked off.
  const uint8_t* planes[kMaxPlanes + 1];
  for (uint32_t p = 0; p < number.planes(); ++p) planes[p] = in.planes[p < in.plane_count ? p : 0];
  const int half_unit = 1 << (number.planes() - in.plane_count);
  const __m512i half = _mm512_set1_epi16(static_cast<short>(half_unit)),
                known = _mm512_set1_epi16(static_cast<short>(-2 * half_unit));
  for (uint32_t token = 0; token < tile.tokens; ++token) {
    if (token > 0) turn_vectors(tile.centre);
    for (uint32_t first = 0; first < tile.channels; first += kLanes) {
      const uint32_t lanes = kFull ? kLanes : std::min(kLanes, tile.channels - first);
      const uint64_t valid = kFull ? ~0ull : lanes_mask(lanes);
      const size_t at = token * tile.row_bytes() + first / 8;
      const Words d = gather_differences(number, planes, at, lanes);
      const Words centre = load_centre(tile.centre, first);
      // Twice d, with a one and then zeros for the unknown bits: the middle, whatever the sign.
      const auto twice = [&](__m512i some, __m512i around) {
        return _mm512_add_epi16(
            _mm512_ternarylogic_epi32(_mm512_slli_epi16(some, 1), known, half, 0xEA),
            _mm512_slli_epi16(around, 1));
      };
      const Words x = {twice(d.a, centre.a), twice(d.b, centre.b)};
      uint8_t* to = values + (size_t{token} * tile.channels + first) * number.element_bytes;
      if (!number.is_float()) {
        const __m512i least = _mm512_set1_epi16(-128), most = _mm512_set1_epi16(127);
        const __m512i byte = _mm512_set1_epi16(0xFF);
        const auto cut = [&](__m512i two) {
          return _mm512_and_si512(
              _mm512_min_epi16(_mm512_max_epi16(_mm512_srai_epi16(two, 1), least), most), byte);
        };
        store_values(to, number.element_bytes, valid, {cut(x.a), cut(x.b)});
        continue;
      }
      const Words largest = load_words(tile.exponents + first);
      store_values(to, number.element_bytes, valid,
                   {middle(number, k, x.a, largest.a), middle(number, k, x.b, largest.b)});
    }
  }
  return true;
}

template <size_t kNumber>
bool merge_as(const TileFrame& tile, const Merge& in, uint8_t* values) {
  const bool full = tile.channels % kLanes == 0;
  if (in.exact)
    return full ? merge_rows<kNumber, true>(tile, in, values)
                : merge_rows<kNumber, false>(tile, in, values);
  return full ? merge_prefix<kNumber, true>(tile, in, values)
              : merge_prefix<kNumber, false>(tile, in, values);
}

template <size_t kNumber>
void split_as(const TileFrame& tile, const void* values, Split& out) {
  tile.channels % kLanes == 0 ? split_rows<kNumber, true>(tile, values, out)
                              : split_rows<kNumber, false>(tile, values, out);
}

bool merge(const TileFrame& tile, const Merge& in, void* values) {
  return with_number(tile.number, [&](auto kind) {
    return merge_as<kind.value>(tile, in, static_cast<uint8_t*>(values));
  });
}

void split(const TileFrame& tile, const void* values, Split& out) {
  with_number(tile.number, [&](auto kind) { split_as<kind.value>(tile, values, out); });
}

// ---- rows for searches ----

inline void store_row(int16_t* to, Words words) {
  words = channel_order(words);
  _mm512_storeu_si512(to, words.a);
  _mm512_storeu_si512(to + 32, words.b);
}

template <size_t kNumber>
void differences_as(const uint8_t* const* shown, uint32_t plane_count, uint32_t tokens,
                    uint32_t channels, int16_t* twice) {
  constexpr const Number& number = kNumbers[kNumber];
  // As in merge_prefix().
  const uint8_t* planes[kMaxPlanes + 1];
  for (uint32_t p = 0; p < number.planes(); ++p) planes[p] = shown[p < plane_count ? p : 0];
  const int half_unit = 1 << (number.planes() - plane_count);
  const __m512i half = _mm512_set1_epi16(static_cast<short>(half_unit)),
                known = _mm512_set1_epi16(static_cast<short>(-2 * half_unit));
  const size_t row_bytes = (channels + 7) / 8;
  for (uint32_t token = 0; token < tokens; ++token) {
    for (uint32_t first = 0; first < channels; first += kLanes, twice += kLanes) {
      const uint32_t lanes = std::min(kLanes, channels - first);
      const Words d = gather_differences(number, planes, token * row_bytes + first / 8, lanes);
      const auto doubled = [&](__m512i some) {
        return _mm512_ternarylogic_epi32(_mm512_slli_epi16(some, 1), known, half, 0xEA);
      };
      store_row(twice, {doubled(d.a), doubled(d.b)});
    }
  }
}

void differences(const Number& number, const uint8_t* const* planes, uint32_t plane_count,
                 uint32_t tokens, uint32_t channels, int16_t* twice) {
  with_number(number, [&](auto kind) {
    differences_as<kind.value>(planes, plane_count, tokens, channels, twice);
  });
}

template <size_t kNumber, bool kFull, bool kScaled>
void middles_as(const TileFrame& tile, const uint8_t* const* shown, uint32_t plane_count,
                const int16_t* scales, int16_t* rows, int16_t* states) {
  constexpr const Number& number = kNumbers[kNumber];
  // As in merge_prefix().
  const uint8_t* planes[kMaxPlanes + 1];
  for (uint32_t p = 0; p < number.planes(); ++p) planes[p] = shown[p < plane_count ? p : 0];
  const int half_unit = 1 << (number.planes() - plane_count);
  const __m512i half = _mm512_set1_epi16(static_cast<short>(half_unit)),
                known = _mm512_set1_epi16(static_cast<short>(-2 * half_unit));
  for (uint32_t token = 0; token < tile.tokens; ++token) {
    if (token % kStateTokens == 0) {
      memcpy(states, tile.centre.state, tile.channels * sizeof *states);
      states += tile.channels;
    }
    for (uint32_t first = 0; first < tile.channels; first += kLanes, rows += kLanes) {
      const uint32_t lanes = kFull ? kLanes : std::min(kLanes, tile.channels - first);
      const Words d =
          gather_differences(number, planes, token * tile.row_bytes() + first / 8, lanes);
      const Words centre = load_centre(tile.centre, first);
      const auto twice = [&](__m512i some) {
        return _mm512_ternarylogic_epi32(_mm512_slli_epi16(some, 1), known, half, 0xEA);
      };
      Words middle = {twice(d.a), twice(d.b)};
      if constexpr (kScaled) {
        const Words scale = unpacked_order(
            {_mm512_loadu_si512(scales + first), _mm512_loadu_si512(scales + first + 32)});
        middle.a = _mm512_mulhrs_epi16(middle.a, scale.a);
        middle.b = _mm512_mulhrs_epi16(middle.b, scale.b);
      }
      store_row(rows, {_mm512_add_epi16(middle.a, _mm512_slli_epi16(centre.a, 1)),
                       _mm512_add_epi16(middle.b, _mm512_slli_epi16(centre.b, 1))});
    }
    turn_vectors(tile.centre);
  }
}

void middles(const TileFrame& tile, const uint8_t* const* planes, uint32_t plane_count,
             const int16_t* scales, int16_t* rows, int16_t* states) {
  with_number(tile.number, [&](auto kind) {
    const bool full = tile.channels % kLanes == 0;
    if (scales == nullptr)
      full ? middles_as<kind.value, true, false>(tile, planes, plane_count, scales, rows, states)
           : middles_as<kind.value, false, false>(tile, planes, plane_count, scales, rows, states);
    else
      full ? middles_as<kind.value, true, true>(tile, planes, plane_count, scales, rows, states)
           : middles_as<kind.value, false, true>(tile, planes, plane_count, scales, rows, states);
  });
}

void centres(const TurningCentre& centre, uint32_t tokens, int16_t* rows) {
  for (uint32_t token = 0; token < tokens; ++token) {
    for (uint32_t first = 0; first < centre.channels; first += kLanes, rows += kLanes)
      store_row(rows, load_centre(centre, first));
    turn_vectors(centre);
  }
}

// ---- nibbles ----

/// The nibbles of 32 bytes in order, a byte each.
inline __m512i nibbles_of(__m256i bytes) {
  const __m512i words = _mm512_cvtepu8_epi16(bytes);
  return _mm512_and_si512(_mm512_or_si512(words, _mm512_slli_epi16(words, 4)),
                          _mm512_set1_epi8(15));
}

/// Calls each(bytes, at, count) for all bytes, 32 at a time; the last are padded with zeros.
template <class Each>
inline void for_bytes(std::span<const uint8_t> in, const Each& each) {
  size_t at = 0;
  for (; at + 32 <= in.size(); at += 32)
    each(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(in.data() + at)), at, size_t{32});
  const size_t left = in.size() - at;
  if (left != 0) each(_mm256_maskz_loadu_epi8((1u << left) - 1, in.data() + at), at, left);
}

size_t nibbles_size(std::span<const uint8_t> in) {
  size_t count = 0;
  for_bytes(in, [&](__m256i bytes, size_t, size_t) {
    const __m512i nibbles = nibbles_of(bytes);
    count += static_cast<size_t>(_mm_popcnt_u64(_mm512_test_epi8_mask(nibbles, nibbles)));
  });
  return (in.size() * 2 + 7) / 8 + (count + 1) / 2;
}

void pack_nibbles(std::span<const uint8_t> in, uint8_t* out) {
  const size_t map_bytes = (in.size() * 2 + 7) / 8;
  // The map first: its last word may extend into the nibbles.
  for_bytes(in, [&](__m256i bytes, size_t at, size_t) {
    const __m512i nibbles = nibbles_of(bytes);
    const uint64_t map = _mm512_test_epi8_mask(nibbles, nibbles);
    memcpy(out + at / 4, &map, 8);
  });
  BitSink sink(out + map_bytes);
  for_bytes(in, [&](__m256i bytes, size_t, size_t) {
    alignas(32) uint64_t words[4];
    _mm256_store_si256(reinterpret_cast<__m256i*>(words), bytes);
    for (const uint64_t word : words) {
      const uint64_t some =
          (word | word >> 1 | word >> 2 | word >> 3) & 0x1111111111111111;  // for each nibble
      const uint64_t bits = _pext_u64(word, some * 15);
      const auto count = static_cast<uint32_t>(_mm_popcnt_u64(some)) * 4;
      sink.add(bits & 0xFFFFFFFF, std::min(count, 32u));
      sink.add(bits >> 32, count - std::min(count, 32u));
    }
  });
}

/// The next 64 nibbles from nibble `at` on, one per byte; zero after the end.
inline __m512i load_nibbles(std::span<const uint8_t> from, size_t at) {
  const size_t first = at / 2, left = from.size() - std::min(first, from.size());
  const __m512i bytes = left >= 64
                            ? _mm512_loadu_si512(from.data() + first)
                            : _mm512_maskz_loadu_epi8(lanes_mask(static_cast<uint32_t>(left)),
                                                      from.data() + (from.size() - left));
  // Lane n of 64 bits gets bytes 4 n .. 4 n + 7, and extracts eight nibbles from them.
  const __m512i spread = _mm512_permutexvar_epi8(
      _mm512_set_epi64(0x232221201F1E1D1C, 0x1F1E1D1C1B1A1918, 0x1B1A191817161514,
                       0x1716151413121110, 0x131211100F0E0D0C, 0x0F0E0D0C0B0A0908,
                       0x0B0A090807060504, 0x0706050403020100),
      bytes);
  const __m512i begin = _mm512_add_epi8(_mm512_set1_epi64(0x1C1814100C080400),
                                        _mm512_set1_epi8(static_cast<char>(at % 2 * 4)));
  return _mm512_and_si512(_mm512_multishift_epi64_epi8(begin, spread), _mm512_set1_epi8(15));
}

bool unpack_nibbles(std::span<const uint8_t> in, std::span<uint8_t> out) {
  const size_t map_bytes = (out.size() * 2 + 7) / 8;
  if (in.size() < map_bytes) return false;
  const std::span<const uint8_t> nibbles = in.subspan(map_bytes);
  const __m512i pair = _mm512_set1_epi16(0x1001);  // the low one and 16 times the high one
  size_t taken = 0;
  for (size_t at = 0; at < out.size(); at += 32) {
    const size_t bytes = std::min<size_t>(out.size() - at, 32);
    uint64_t map = 0;
    if (bytes == 32) {
      memcpy(&map, in.data() + at / 4, 8);
    } else {
      memcpy(&map, in.data() + at / 4, (bytes * 2 + 7) / 8);
      if (map >> bytes * 2 != 0) return false;
    }
    const __m512i expanded = _mm512_maskz_expand_epi8(map, load_nibbles(nibbles, taken));
    const __m256i joined = _mm512_cvtepi16_epi8(_mm512_maddubs_epi16(expanded, pair));
    taken += static_cast<size_t>(_mm_popcnt_u64(map));
    _mm256_mask_storeu_epi8(
        out.data() + at, static_cast<__mmask32>(lanes_mask(static_cast<uint32_t>(bytes))), joined);
  }
  return (taken + 1) / 2 == nibbles.size();
}

}  // namespace

const PlaneKernels kPlaneKernelsAvx512 = {
    largest_exponents, split,        count_rests,  merge,          differences, centres,
    middles,           nibbles_size, pack_nibbles, unpack_nibbles, sum_samples};

}  // namespace bowhead::compression

#if defined(__clang__)
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif
