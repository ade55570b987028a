// SPDX-License-Identifier: Apache-2.0
// The planes with AVX-512 (F, BW, DQ, VL): 64 channels at a time.

// All headers come before the target is set: what they define inline, other files share.
#include <immintrin.h>
#include <string.h>

#include <algorithm>
#include <type_traits>

#include "compression/planes.h"

#if defined(__clang__)
#pragma clang attribute push(                                                           \
    __attribute__((target("avx2,bmi,bmi2,popcnt,avx512f,avx512bw,avx512dq,avx512vl"))), \
    apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx2,bmi,bmi2,popcnt,avx512f,avx512bw,avx512dq,avx512vl")
// gcc 12 warns of its own intrinsics' "undefined" operands (gcc bug 105593).
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC diagnostic ignored "-Wuninitialized"
#endif

namespace bowhead::compression {
namespace {

// What takes a Number is inlined where it is a constant, and its loops are unrolled there.
#define BOWHEAD_INLINE inline __attribute__((always_inline))

constexpr uint32_t kLanes = 64;

inline uint64_t lanes_mask(uint32_t count) { return count >= 64 ? ~0ull : (1ull << count) - 1; }

/// 64 lanes of 16 bits.
struct Words {
  __m512i a, b;
};

inline Words words_of_bytes(__m512i bytes) {
  return {_mm512_cvtepu8_epi16(_mm512_castsi512_si256(bytes)),
          _mm512_cvtepu8_epi16(_mm512_extracti64x4_epi64(bytes, 1))};
}

/// Of words below 256.
inline __m512i bytes_of_words(Words words) {
  const __m512i order = _mm512_setr_epi64(0, 2, 4, 6, 1, 3, 5, 7);
  return _mm512_permutexvar_epi64(order, _mm512_packus_epi16(words.a, words.b));
}

inline uint64_t join(__mmask32 a, __mmask32 b) { return uint64_t{b} << 32 | a; }

BOWHEAD_INLINE Words load_values(const uint8_t* from, uint32_t element_bytes, uint64_t valid) {
  if (element_bytes == 1) return words_of_bytes(_mm512_maskz_loadu_epi8(valid, from));
  if (valid == ~0ull) return {_mm512_loadu_si512(from), _mm512_loadu_si512(from + 64)};
  return {_mm512_maskz_loadu_epi16(static_cast<__mmask32>(valid), from),
          _mm512_maskz_loadu_epi16(static_cast<__mmask32>(valid >> 32), from + 64)};
}

BOWHEAD_INLINE void store_values(uint8_t* to, uint32_t element_bytes, uint64_t valid,
                                 Words values) {
  if (element_bytes == 1) {
    _mm512_mask_storeu_epi8(to, valid, bytes_of_words(values));
    return;
  }
  if (valid == ~0ull) {
    _mm512_storeu_si512(to, values.a);
    _mm512_storeu_si512(to + 64, values.b);
    return;
  }
  _mm512_mask_storeu_epi16(to, static_cast<__mmask32>(valid), values.a);
  _mm512_mask_storeu_epi16(to + 64, static_cast<__mmask32>(valid >> 32), values.b);
}

inline Words load_words(const void* from) {
  const auto* words = static_cast<const uint16_t*>(from);
  return {_mm512_loadu_si512(words), _mm512_loadu_si512(words + 32)};
}

inline uint64_t load_bits(const uint8_t* from, uint32_t count) {
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
    _mm512_storeu_si512(exponents + first, _mm512_srl_epi16(a, shift));
    _mm512_storeu_si512(exponents + first + 32, _mm512_srl_epi16(b, shift));
  }
}

// ---- centres ----

inline __m512i row_of(const TurningRow& t, __m512i state, uint32_t at) {
  const __m512i right = _mm512_loadu_si512(t.right + at);
  const __mmask32 some = _mm512_cmplt_epi16_mask(right, _mm512_set1_epi16(16));
  const __m512i row = _mm512_maskz_srav_epi16(some, state, right);
  return _mm512_min_epi16(_mm512_max_epi16(row, _mm512_set1_epi16(t.least)),
                          _mm512_set1_epi16(t.most));
}

void turn(const TurningRow& t) {
  if (t.half % 32 != 0) return turn_row(t);
  for (uint32_t head = 0; head < t.channels; head += 2 * t.half) {
    for (uint32_t i = 0; i < t.half; i += 32) {
      const uint32_t at_x = head + i, at_y = at_x + t.half;
      const __m512i cosine = _mm512_loadu_si512(t.cosines + i);
      const __m512i sine = _mm512_loadu_si512(t.sines + i);
      const __m512i x = _mm512_loadu_si512(t.state + at_x);
      const __m512i y = _mm512_loadu_si512(t.state + at_y);
      const __m512i new_x =
          _mm512_subs_epi16(_mm512_mulhrs_epi16(x, cosine), _mm512_mulhrs_epi16(y, sine));
      const __m512i new_y =
          _mm512_adds_epi16(_mm512_mulhrs_epi16(x, sine), _mm512_mulhrs_epi16(y, cosine));
      _mm512_storeu_si512(t.state + at_x, new_x);
      _mm512_storeu_si512(t.state + at_y, new_y);
      _mm512_storeu_si512(t.row + at_x, row_of(t, new_x, at_x));
      _mm512_storeu_si512(t.row + at_y, row_of(t, new_y, at_y));
    }
  }
}

// ---- split ----

class BitSink {
 public:
  explicit BitSink(uint8_t* to) : to_(to), begin_(to) {}
  /// Without branches: how full a word is cannot be foreseen.
  void add(uint64_t bits, uint32_t count) {
    pending_ |= bits << fill_;
    memcpy(to_, &pending_, 8);
    const uint64_t rest = (bits >> 1) >> (63 - fill_);
    const uint32_t total = fill_ + count;
    to_ += total / 64 * 8;
    pending_ = total >= 64 ? rest : pending_;
    fill_ = total % 64;
  }
  uint64_t finish() {
    memcpy(to_, &pending_, 8);
    return static_cast<uint64_t>(to_ - begin_) * 8 + fill_;
  }

 private:
  uint8_t* to_;
  uint8_t* begin_;
  uint64_t pending_ = 0;
  uint32_t fill_ = 0;
};

struct Constants {
  explicit Constants(const Number& n)
      : mantissa(_mm512_set1_epi16(static_cast<short>((1 << n.mantissa_bits) - 1))),
        one(_mm512_set1_epi16(static_cast<short>(1 << n.mantissa_bits))),
        exponent(_mm512_set1_epi16(static_cast<short>((1 << n.exponent_bits) - 1))),
        magnitude(_mm512_set1_epi16(static_cast<short>((1 << n.magnitude_bits) - 1))),
        shift(_mm_cvtsi32_si128(n.mantissa_bits)),
        to_top(_mm_cvtsi32_si128(16 - 8 * n.element_bytes)),
        telling(n.remainder_bits + 1u - n.magnitude_bits) {}
  __m512i mantissa, one, exponent, magnitude;
  __m128i shift, to_top;
  uint32_t telling;  // see planes_scalar.cpp
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
  half.significand = _mm512_or_si512(_mm512_and_si512(v, k.mantissa), k.one);
  half.below = _mm512_sub_epi16(largest, exponent);
  half.q = _mm512_xor_si512(_mm512_srlv_epi16(half.significand, half.below), sign);
  return half;
}

BOWHEAD_INLINE void store_planes(const Number& number, Words d, uint64_t valid, size_t at,
                                 Split& out) {
  const auto put = [&](uint32_t plane, uint64_t bits) {
    bits &= valid;
    memcpy(out.planes[plane] + at, &bits, 8);  // what is too much, the next row overwrites
  };
  put(0, join(_mm512_movepi16_mask(d.a), _mm512_movepi16_mask(d.b)));
  const Words m = {_mm512_xor_si512(d.a, _mm512_srai_epi16(d.a, 15)),
                   _mm512_xor_si512(d.b, _mm512_srai_epi16(d.b, 15))};
  if (number.magnitude_bits <= 8) {
    const __m128i up = _mm_cvtsi32_si128(8 - number.magnitude_bits);
    __m512i bits = bytes_of_words({_mm512_sll_epi16(m.a, up), _mm512_sll_epi16(m.b, up)});
#pragma GCC unroll 12
    for (uint32_t p = 1; p < number.planes(); ++p) {
      put(p, _mm512_movepi8_mask(bits));
      bits = _mm512_add_epi8(bits, bits);
    }
    return;
  }
#pragma GCC unroll 12
  for (uint32_t p = 1; p < number.planes(); ++p) {
    const __m512i bit = _mm512_set1_epi16(static_cast<short>(1 << (number.magnitude_bits - p)));
    put(p, join(_mm512_test_epi16_mask(m.a, bit), _mm512_test_epi16_mask(m.b, bit)));
  }
}

/// Marks channels whose d has too many bits.
inline void mark_beyond(const Constants& k, Words d, uint64_t valid, uint8_t* beyond) {
  const __m512i a = _mm512_xor_si512(d.a, _mm512_srai_epi16(d.a, 15));
  const __m512i b = _mm512_xor_si512(d.b, _mm512_srai_epi16(d.b, 15));
  const uint64_t over =
      join(_mm512_cmpgt_epi16_mask(a, k.magnitude), _mm512_cmpgt_epi16_mask(b, k.magnitude)) &
      valid;
  if (over != 0) _mm512_mask_storeu_epi8(beyond, over, _mm512_set1_epi8(1));
}

BOWHEAD_INLINE void split_remainder(const Number& number, const Constants& c, const Half& a,
                                    const Half& b, uint64_t valid, uint64_t exceptions,
                                    BitSink& sink) {
  constexpr int kTop = 16;
  const bool in_bytes = number.remainder_bits <= 8;
  const __m512i top = _mm512_set1_epi16(in_bytes ? 8 : kTop);
  Words low = {_mm512_sllv_epi16(a.significand, _mm512_sub_epi16(top, a.below)),
               _mm512_sllv_epi16(b.significand, _mm512_sub_epi16(top, b.below))};
  const auto put = [&](uint32_t k, uint64_t has, uint64_t bits) {
    has &= k > c.telling ? valid & ~exceptions : valid;
    sink.add(_pext_u64(bits, has), static_cast<uint32_t>(_mm_popcnt_u64(has)));
  };
  if (in_bytes) {
    const __m512i byte = _mm512_set1_epi16(0xFF);
    __m512i bits = bytes_of_words({_mm512_and_si512(low.a, byte), _mm512_and_si512(low.b, byte)});
    const __m512i below = bytes_of_words({a.below, b.below});
#pragma GCC unroll 8
    for (uint32_t k = 1; k <= number.remainder_bits; ++k) {
      put(k, _mm512_cmpge_epu8_mask(below, _mm512_set1_epi8(static_cast<char>(k))),
          _mm512_movepi8_mask(bits));
      bits = _mm512_add_epi8(bits, bits);
    }
    return;
  }
#pragma GCC unroll 12
  for (uint32_t k = 1; k <= number.remainder_bits; ++k) {
    const __m512i least = _mm512_set1_epi16(static_cast<short>(k));
    put(k, join(_mm512_cmpge_epu16_mask(a.below, least), _mm512_cmpge_epu16_mask(b.below, least)),
        join(_mm512_movepi16_mask(low.a), _mm512_movepi16_mask(low.b)));
    low = {_mm512_add_epi16(low.a, low.a), _mm512_add_epi16(low.b, low.b)};
  }
}

/// Without signs, in order.
void put_exceptions(const Number& number, Words values, uint64_t which, Split& out) {
  uint16_t lanes[kLanes];
  _mm512_storeu_si512(lanes, values.a);
  _mm512_storeu_si512(lanes + 32, values.b);
  for (; which != 0; which &= which - 1) {
    const uint16_t bits = lanes[_tzcnt_u64(which)];
    uint8_t* to = out.exceptions + size_t{out.exception_count++} * number.element_bytes;
    if (number.element_bytes == 1) {
      to[0] = bits & 0x7F;
    } else {
      to[0] = static_cast<uint8_t>(bits);
      to[1] = static_cast<uint8_t>(bits >> 8 & 0x7F);
    }
  }
}

/// Rows of a multiple of 64 channels need no masks. (The number by its index: clang 14 takes no
/// element of an array for a template.)
template <size_t kNumber, bool kFull>
void split_rows(const TileFrame& tile, const void* values, Split& out) {
  constexpr const Number& number = kNumbers[kNumber];
  const Constants k(number);
  const auto* bytes = static_cast<const uint8_t*>(values);
  BitSink sink(out.remainder);
  memset(out.beyond, 0, tile.channels);
  out.exception_count = 0;
  for (uint32_t token = 0; token < tile.tokens; ++token) {
    if (token > 0) tile.centre.next(turn);
    for (uint32_t first = 0; first < tile.channels; first += kLanes) {
      const uint64_t valid = kFull ? ~0ull : lanes_mask(tile.channels - first);
      const size_t at = (size_t{token} * tile.channels + first) * number.element_bytes;
      const Words v = load_values(bytes + at, number.element_bytes, valid);
      Words largest = {_mm512_setzero_si512(), _mm512_setzero_si512()};
      if (number.is_float()) largest = load_words(tile.exponents + first);
      const Half a = fixed_of(k, v.a, largest.a, number.is_float());
      const Half b = fixed_of(k, v.b, largest.b, number.is_float());
      const Words centre = load_words(tile.centre.row() + first);
      const Words d = {_mm512_sub_epi16(a.q, centre.a), _mm512_sub_epi16(b.q, centre.b)};
      mark_beyond(k, d, valid, out.beyond + first);
      store_planes(number, d, valid, token * tile.row_bytes() + first / 8, out);
      if (!number.is_float()) continue;
      const __m512i most = _mm512_set1_epi16(number.remainder_bits);
      const uint64_t exceptions =
          join(_mm512_cmpgt_epu16_mask(a.below, most), _mm512_cmpgt_epu16_mask(b.below, most)) &
          valid;
      split_remainder(number, k, a, b, valid, exceptions, sink);
      if (exceptions != 0) put_exceptions(number, v, exceptions, out);
    }
  }
  out.remainder_bits = sink.finish();
}

// ---- merge ----

class BitSource {
 public:
  explicit BitSource(std::span<const uint8_t> from) : from_(from.data()), size_(from.size()) {}
  /// So many bytes from here on, and 16 more, are there.
  bool has(uint64_t bytes) const { return at_ / 8 + bytes + 16 <= size_; }
  /// The next bits; the caller has asked has().
  uint64_t take(uint32_t count) {
    const uint8_t* from = from_ + at_ / 8;
    const uint32_t shift = at_ % 8;
    at_ += count;
    uint64_t low, high;
    memcpy(&low, from, 8);
    memcpy(&high, from + 7, 8);
    return low >> shift | high << (56 - shift);
  }
  /// The next bits; those behind the end are zero.
  uint64_t take_near_end(uint32_t count) {
    if (has(0)) return take(count);
    const uint64_t at = at_ / 8;
    const uint32_t shift = at_ % 8;
    at_ += count;
    uint64_t bits = 0, more = 0;
    if (at < size_) memcpy(&bits, from_ + at, std::min<uint64_t>(size_ - at, 8));
    if (at + 8 < size_) more = from_[at + 8];
    return bits >> shift | (more << 1) << (63 - shift);
  }
  bool at_end() const { return (at_ + 7) / 8 == size_; }

 private:
  const uint8_t* from_;
  uint64_t size_;
  uint64_t at_ = 0;
};

// Lanes as bytes where magnitude and remainder have at most 8 bits, else as words: the same
// operations.
struct ByteLanes {
  __m512i v;
};
struct WordMask {
  __mmask32 a, b;
};
inline void clear(ByteLanes& x) { x.v = _mm512_setzero_si512(); }
inline void clear(Words& x) { x.a = x.b = _mm512_setzero_si512(); }
inline __mmask64 less(ByteLanes x, uint32_t bound) {
  return _mm512_cmplt_epu8_mask(x.v, _mm512_set1_epi8(static_cast<char>(bound)));
}
inline WordMask less(Words x, uint32_t bound) {
  const __m512i most = _mm512_set1_epi16(static_cast<short>(bound));
  return {_mm512_cmplt_epu16_mask(x.a, most), _mm512_cmplt_epu16_mask(x.b, most)};
}
inline uint64_t bits_of(__mmask64 mask) { return mask; }
inline uint64_t bits_of(WordMask mask) { return join(mask.a, mask.b); }
inline void to_mask(uint64_t bits, __mmask64& mask) { mask = bits; }
inline void to_mask(uint64_t bits, WordMask& mask) {
  mask = {static_cast<__mmask32>(bits), static_cast<__mmask32>(bits >> 32)};
}
/// x + amount in `which`.
inline void add(ByteLanes& x, __mmask64 which, uint32_t amount) {
  x.v = _mm512_mask_add_epi8(x.v, which, x.v, _mm512_set1_epi8(static_cast<char>(amount)));
}
inline void add(Words& x, WordMask which, uint32_t amount) {
  const __m512i more = _mm512_set1_epi16(static_cast<short>(amount));
  x.a = _mm512_mask_add_epi16(x.a, which.a, x.a, more);
  x.b = _mm512_mask_add_epi16(x.b, which.b, x.b, more);
}
inline Words widen(ByteLanes x) { return words_of_bytes(x.v); }
inline Words widen(Words x) { return x; }
inline void narrow(Words x, ByteLanes& to) { to.v = bytes_of_words(x); }
inline void narrow(Words x, Words& to) { to = x; }

/// Of 64 values: `below`, and `low`, the remainder's bits, the first as bit remainder_bits - 1.
/// Returns the exceptions; what they get means nothing.
template <bool kNearEnd, class Lanes>
BOWHEAD_INLINE uint64_t merge_remainder(const Number& number, uint32_t telling, Lanes t,
                                        uint64_t valid, BitSource& source, Lanes& low,
                                        Lanes& below) {
  const uint32_t bits = number.magnitude_bits, most = number.remainder_bits;
  clear(low);
  clear(below);
  auto mask = less(t, 1);
  const uint64_t zero = bits_of(mask) & valid;
  uint64_t exceptions = 0, zero_so_far = zero;
#pragma GCC unroll 12
  for (uint32_t k = 1; k <= most; ++k) {
    if (k <= bits)
      mask = less(t, 1u << (bits - k));
    else
      to_mask(zero_so_far, mask);
    add(below, mask, 1);
    const uint64_t has = bits_of(mask) & valid & ~exceptions;
    const auto count = static_cast<uint32_t>(_mm_popcnt_u64(has));
    const uint64_t taken = kNearEnd ? source.take_near_end(count) : source.take(count);
    to_mask(_pdep_u64(taken, has), mask);
    add(low, mask, 1u << (most - k));
    if (k >= bits && k < most) zero_so_far = zero & bits_of(less(low, 1u << (most + bits - 1 - k)));
    if (k == telling) exceptions = zero & bits_of(less(low, 1));
  }
  return exceptions;
}

BOWHEAD_INLINE __m512i assemble(const Constants& k, const Number& number, __m512i t, __m512i low,
                                __m512i below, __m512i largest, __m512i sign) {
  const __m512i rest = _mm512_sub_epi16(_mm512_set1_epi16(number.remainder_bits), below);
  const __m512i significand =
      number.magnitude_bits + number.remainder_bits <= 16
          ? _mm512_srlv_epi16(_mm512_or_si512(_mm512_slli_epi16(t, number.remainder_bits), low),
                              rest)
          : _mm512_or_si512(_mm512_sllv_epi16(t, below), _mm512_srlv_epi16(low, rest));
  const __m512i exponent = _mm512_and_si512(_mm512_sub_epi16(largest, below), k.exponent);
  const __m512i top =
      _mm512_set1_epi16(static_cast<short>(number.element_bytes == 1 ? 0x80 : 0x8000));
  // (sign & top) | exponent << shift | (significand & mantissa)
  return _mm512_ternarylogic_epi32(
      _mm512_ternarylogic_epi32(sign, top, _mm512_sll_epi16(exponent, k.shift), 0xEA), significand,
      k.mantissa, 0xF8);
}

/// Puts exceptions into values that were stored; false if there are not so many.
bool take_exceptions(const Number& number, uint64_t which, std::span<const uint8_t> from,
                     size_t& taken, uint8_t* values) {
  for (; which != 0; which &= which - 1) {
    const size_t at = taken++ * number.element_bytes;
    if (at + number.element_bytes > from.size()) return false;
    uint8_t* to = values + _tzcnt_u64(which) * number.element_bytes;
    uint8_t& top = to[number.element_bytes - 1];
    top = static_cast<uint8_t>((top & 0x80) | (from[at + number.element_bytes - 1] & 0x7F));
    if (number.element_bytes == 2) to[0] = from[at];
  }
  return true;
}

template <size_t kNumber, bool kFull>
bool merge_rows(const TileFrame& tile, const Merge& in, uint8_t* values) {
  constexpr const Number& number = kNumbers[kNumber];
  constexpr bool kBytes = number.magnitude_bits <= 8 && number.remainder_bits <= 8;
  using Lanes = std::conditional_t<kBytes, ByteLanes, Words>;
  const Constants k(number);
  BitSource source(in.remainder);
  size_t exceptions = 0;
  for (uint32_t token = 0; token < tile.tokens; ++token) {
    if (token > 0) tile.centre.next(turn);
    for (uint32_t first = 0; first < tile.channels; first += kLanes) {
      const uint32_t lanes = kFull ? kLanes : std::min(kLanes, tile.channels - first);
      const uint64_t valid = kFull ? ~0ull : lanes_mask(lanes);
      const size_t at = token * tile.row_bytes() + first / 8;
      Lanes magnitude;
      clear(magnitude);
      decltype(less(magnitude, 1)) mask;
#pragma GCC unroll 12
      for (uint32_t p = 1; p < number.magnitude_bits + 1u; ++p) {
        to_mask(load_bits(in.planes[p] + at, lanes), mask);
        add(magnitude, mask, 1u << (number.magnitude_bits - p));
      }
      const uint64_t signs = load_bits(in.planes[0] + at, lanes);
      const Words m = widen(magnitude), centre = load_words(tile.centre.row() + first);
      const __m512i da = _mm512_xor_si512(m.a, _mm512_movm_epi16(static_cast<__mmask32>(signs)));
      const __m512i db =
          _mm512_xor_si512(m.b, _mm512_movm_epi16(static_cast<__mmask32>(signs >> 32)));
      const __m512i qa = _mm512_add_epi16(da, centre.a), qb = _mm512_add_epi16(db, centre.b);
      const Words sign = {_mm512_srai_epi16(qa, 15), _mm512_srai_epi16(qb, 15)};
      const Words t = {_mm512_and_si512(_mm512_xor_si512(qa, sign.a), k.magnitude),
                       _mm512_and_si512(_mm512_xor_si512(qb, sign.b), k.magnitude)};
      uint8_t* to = values + (size_t{token} * tile.channels + first) * number.element_bytes;
      if (!number.is_float()) {
        const __m512i byte = _mm512_set1_epi16(0xFF);
        store_values(to, number.element_bytes, valid,
                     {_mm512_and_si512(_mm512_xor_si512(t.a, sign.a), byte),
                      _mm512_and_si512(_mm512_xor_si512(t.b, sign.b), byte)});
        continue;
      }
      Lanes narrow_t, low, below;
      narrow(t, narrow_t);
      const uint64_t odd =
          source.has(kLanes / 8 * number.remainder_bits)
              ? merge_remainder<false>(number, k.telling, narrow_t, valid, source, low, below)
              : merge_remainder<true>(number, k.telling, narrow_t, valid, source, low, below);
      const Words largest = load_words(tile.exponents + first);
      const Words wide_low = widen(low), e = widen(below);
      store_values(to, number.element_bytes, valid,
                   {assemble(k, number, t.a, wide_low.a, e.a, largest.a, sign.a),
                    assemble(k, number, t.b, wide_low.b, e.b, largest.b, sign.b)});
      if (odd != 0 && !take_exceptions(number, odd, in.exceptions, exceptions, to)) return false;
    }
  }
  return source.at_end() && exceptions * number.element_bytes == in.exceptions.size();
}

/// 16 of what scalar code calls middle(): half units as a number, cut.
BOWHEAD_INLINE __m512i middle(const Number& number, __m512i twice, __m512i largest) {
  const __m512i zero = _mm512_setzero_si512();
  const __m512i sign =
      _mm512_slli_epi32(_mm512_srli_epi32(twice, 31), number.element_bytes * 8 - 1);
  const __m512i magnitude = _mm512_abs_epi32(twice);
  // Exponent and mantissa of a float, cut to those of the kind, and its bias moved.
  const __m512i bits = _mm512_srli_epi32(_mm512_castps_si512(_mm512_cvtepi32_ps(magnitude)),
                                         23 - number.mantissa_bits);
  const __m512i moved = _mm512_slli_epi32(
      _mm512_sub_epi32(largest, _mm512_set1_epi32(number.mantissa_bits + 1 + 127)),
      number.mantissa_bits);
  __m512i value = _mm512_add_epi32(bits, moved);
  value = _mm512_min_epi32(value, _mm512_set1_epi32(number.largest_finite));
  const __mmask16 some =
      _mm512_cmpge_epi32_mask(value, zero) & _mm512_test_epi32_mask(magnitude, magnitude);
  return _mm512_or_si512(_mm512_maskz_mov_epi32(some, value), sign);
}

template <size_t kNumber, bool kFull>
bool merge_prefix(const TileFrame& tile, const Merge& in, uint8_t* values) {
  constexpr const Number& number = kNumbers[kNumber];
  const uint32_t missing = number.planes() - in.plane_count;
  for (uint32_t token = 0; token < tile.tokens; ++token) {
    if (token > 0) tile.centre.next(turn);
    for (uint32_t first = 0; first < tile.channels; first += kLanes) {
      const uint32_t lanes = kFull ? kLanes : std::min(kLanes, tile.channels - first);
      const uint64_t valid = kFull ? ~0ull : lanes_mask(lanes);
      const size_t at = token * tile.row_bytes() + first / 8;
      const __m512i half = _mm512_set1_epi16(static_cast<short>(1 << missing));
      Words m = {half, half};  // twice the magnitude and a half of what is not known
      for (uint32_t p = 1; p < in.plane_count; ++p) {
        WordMask mask;
        to_mask(load_bits(in.planes[p] + at, lanes), mask);
        add(m, mask, 2u << (number.magnitude_bits - p));
      }
      const uint64_t signs = load_bits(in.planes[0] + at, lanes);
      const __m512i zero = _mm512_setzero_si512();
      const Words centre = load_words(tile.centre.row() + first);
      const __m512i a =
          _mm512_add_epi16(_mm512_mask_sub_epi16(m.a, static_cast<__mmask32>(signs), zero, m.a),
                           _mm512_slli_epi16(centre.a, 1));
      const __m512i b = _mm512_add_epi16(
          _mm512_mask_sub_epi16(m.b, static_cast<__mmask32>(signs >> 32), zero, m.b),
          _mm512_slli_epi16(centre.b, 1));
      uint8_t* to = values + (size_t{token} * tile.channels + first) * number.element_bytes;
      Words out;
      if (!number.is_float()) {
        const __m512i least = _mm512_set1_epi16(-128), most = _mm512_set1_epi16(127);
        const __m512i byte = _mm512_set1_epi16(0xFF);
        const auto cut = [&](__m512i twice) {
          return _mm512_and_si512(
              _mm512_min_epi16(_mm512_max_epi16(_mm512_srai_epi16(twice, 1), least), most), byte);
        };
        out = {cut(a), cut(b)};
      } else {
        const auto convert = [&](__m512i twice, const uint16_t* exponents) {
          const __m512i low = middle(number, _mm512_cvtepi16_epi32(_mm512_castsi512_si256(twice)),
                                     _mm512_cvtepu16_epi32(_mm256_loadu_si256(
                                         reinterpret_cast<const __m256i*>(exponents))));
          const __m512i high =
              middle(number, _mm512_cvtepi16_epi32(_mm512_extracti64x4_epi64(twice, 1)),
                     _mm512_cvtepu16_epi32(
                         _mm256_loadu_si256(reinterpret_cast<const __m256i*>(exponents + 16))));
          return _mm512_inserti64x4(_mm512_castsi256_si512(_mm512_cvtepi32_epi16(low)),
                                    _mm512_cvtepi32_epi16(high), 1);
        };
        out = {convert(a, tile.exponents + first), convert(b, tile.exponents + first + 32)};
      }
      store_values(to, number.element_bytes, valid, out);
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
  auto* bytes = static_cast<uint8_t*>(values);
  switch (&tile.number - kNumbers) {
    case 0:
      return merge_as<0>(tile, in, bytes);
    case 1:
      return merge_as<1>(tile, in, bytes);
    case 2:
      return merge_as<2>(tile, in, bytes);
    case 3:
      return merge_as<3>(tile, in, bytes);
    case 4:
      return merge_as<4>(tile, in, bytes);
    default:
      return kPlaneKernelsScalar.merge(tile, in, values);
  }
}

void split(const TileFrame& tile, const void* values, Split& out) {
  switch (&tile.number - kNumbers) {
    case 0:
      return split_as<0>(tile, values, out);
    case 1:
      return split_as<1>(tile, values, out);
    case 2:
      return split_as<2>(tile, values, out);
    case 3:
      return split_as<3>(tile, values, out);
    case 4:
      return split_as<4>(tile, values, out);
    default:
      return kPlaneKernelsScalar.split(tile, values, out);
  }
}

// ---- nibbles ----

constexpr uint64_t kLowBits = 0x1111111111111111;

/// The lowest bit of each nibble that is not zero.
inline uint64_t some_of(uint64_t word) {
  return (word | word >> 1 | word >> 2 | word >> 3) & kLowBits;
}

/// Calls each(word, at) for all bytes, eight at a time; the last may be fewer.
template <class Each>
inline void for_words(std::span<const uint8_t> bytes, const Each& each) {
  size_t at = 0;
  uint64_t word;
  for (; at + 8 <= bytes.size(); at += 8) {
    memcpy(&word, bytes.data() + at, 8);
    each(word, at);
  }
  if (at == bytes.size()) return;
  word = 0;
  memcpy(&word, bytes.data() + at, bytes.size() - at);
  each(word, at);
}

size_t nibbles_size(std::span<const uint8_t> in) {
  size_t count = 0;
  for_words(in, [&](uint64_t word, size_t) {
    count += static_cast<size_t>(_mm_popcnt_u64(some_of(word)));
  });
  return (in.size() * 2 + 7) / 8 + (count + 1) / 2;
}

void pack_nibbles(std::span<const uint8_t> in, uint8_t* out) {
  BitSink map(out), nibbles(out + (in.size() * 2 + 7) / 8);
  // The map first: its last word may run into the nibbles.
  for_words(in, [&](uint64_t word, size_t) { map.add(_pext_u64(some_of(word), kLowBits), 16); });
  (void)map.finish();
  for_words(in, [&](uint64_t word, size_t) {
    const uint64_t some = some_of(word);
    nibbles.add(_pext_u64(word, some * 15), static_cast<uint32_t>(_mm_popcnt_u64(some)) * 4);
  });
  (void)nibbles.finish();
}

bool unpack_nibbles(std::span<const uint8_t> in, std::span<uint8_t> out) {
  const size_t map_bytes = (out.size() * 2 + 7) / 8;
  if (in.size() < map_bytes) return false;
  BitSource source(in.subspan(map_bytes));
  const auto word_of = [&](uint64_t map) {
    const uint64_t some = _pdep_u64(map, kLowBits);
    const auto count = static_cast<uint32_t>(_mm_popcnt_u64(some)) * 4;
    return _pdep_u64(source.take_near_end(count), some * 15);
  };
  size_t at = 0;
  for (; at + 8 <= out.size(); at += 8) {
    uint16_t map;
    memcpy(&map, in.data() + at / 4, 2);
    const uint64_t word = word_of(map);
    memcpy(out.data() + at, &word, 8);
  }
  if (const size_t bytes = out.size() - at; bytes != 0) {
    uint64_t map = 0;
    memcpy(&map, in.data() + at / 4, (bytes * 2 + 7) / 8);
    if (map >> bytes * 2 != 0) return false;
    const uint64_t word = word_of(map);
    memcpy(out.data() + at, &word, bytes);
  }
  return source.at_end();
}

}  // namespace

const PlaneKernels kPlaneKernelsAvx512 = {largest_exponents, split,        merge,
                                          nibbles_size,      pack_nibbles, unpack_nibbles};

}  // namespace bowhead::compression

#if defined(__clang__)
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif
