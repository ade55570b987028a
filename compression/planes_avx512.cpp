// SPDX-License-Identifier: Apache-2.0
// The planes with AVX-512 (F, BW, DQ, VL): 64 channels at a time.

// All headers come before the target is set: what they define inline, other files share.
#include <immintrin.h>
#include <string.h>

#include <algorithm>

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

inline __m512i bytes_of_words(Words words) {
  const __m256i low = _mm512_cvtepi16_epi8(words.a), high = _mm512_cvtepi16_epi8(words.b);
  return _mm512_inserti64x4(_mm512_castsi256_si512(low), high, 1);
}

inline uint64_t join(__mmask32 a, __mmask32 b) { return uint64_t{b} << 32 | a; }

inline Words load_values(const uint8_t* from, uint32_t element_bytes, uint64_t valid) {
  if (element_bytes == 1) return words_of_bytes(_mm512_maskz_loadu_epi8(valid, from));
  return {_mm512_maskz_loadu_epi16(static_cast<__mmask32>(valid), from),
          _mm512_maskz_loadu_epi16(static_cast<__mmask32>(valid >> 32), from + 64)};
}

inline void store_values(uint8_t* to, uint32_t element_bytes, uint64_t valid, Words values) {
  if (element_bytes == 1) {
    _mm512_mask_storeu_epi8(to, valid, bytes_of_words(values));
    return;
  }
  _mm512_mask_storeu_epi16(to, static_cast<__mmask32>(valid), values.a);
  _mm512_mask_storeu_epi16(to + 64, static_cast<__mmask32>(valid >> 32), values.b);
}

inline Words load_centre(const int16_t* row) {
  return {_mm512_loadu_si512(row), _mm512_loadu_si512(row + 32)};
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
                       uint8_t* exponents) {
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
    _mm512_storeu_si512(exponents + first,
                        bytes_of_words({_mm512_srl_epi16(a, shift), _mm512_srl_epi16(b, shift)}));
  }
}

// ---- split ----

class BitSink {
 public:
  explicit BitSink(uint8_t* to) : to_(to), begin_(to) {}
  void add(uint64_t bits, uint32_t count) {
    pending_ |= bits << fill_;
    fill_ += count;
    if (fill_ < 64) return;
    memcpy(to_, &pending_, 8);
    to_ += 8;
    fill_ -= 64;
    pending_ = fill_ == 0 ? 0 : bits >> (count - fill_);
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

inline Half fixed_of(const Constants& k, __m512i v, __m512i largest, bool is_float) {
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

void store_planes(const Number& number, Words d, uint64_t valid, size_t at, Split& out) {
  const size_t bytes = (static_cast<size_t>(_mm_popcnt_u64(valid)) + 7) / 8;
  const auto put = [&](uint32_t plane, uint64_t bits) {
    bits &= valid;
    memcpy(out.planes[plane] + at, &bits, bytes);
  };
  put(0, join(_mm512_movepi16_mask(d.a), _mm512_movepi16_mask(d.b)));
  const Words m = {_mm512_xor_si512(d.a, _mm512_srai_epi16(d.a, 15)),
                   _mm512_xor_si512(d.b, _mm512_srai_epi16(d.b, 15))};
  if (number.magnitude_bits <= 8) {
    const __m128i up = _mm_cvtsi32_si128(8 - number.magnitude_bits);
    __m512i bits = bytes_of_words({_mm512_sll_epi16(m.a, up), _mm512_sll_epi16(m.b, up)});
    for (uint32_t p = 1; p < number.planes(); ++p) {
      put(p, _mm512_movepi8_mask(bits));
      bits = _mm512_add_epi8(bits, bits);
    }
    return;
  }
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

void split_remainder(const Number& number, const Constants& c, const Half& a, const Half& b,
                     uint64_t valid, uint64_t exceptions, BitSink& sink) {
  const __m512i sixteen = _mm512_set1_epi16(16);
  __m512i low_a = _mm512_sllv_epi16(a.significand, _mm512_sub_epi16(sixteen, a.below));
  __m512i low_b = _mm512_sllv_epi16(b.significand, _mm512_sub_epi16(sixteen, b.below));
  for (uint32_t k = 1; k <= number.remainder_bits; ++k) {
    const __m512i least = _mm512_set1_epi16(static_cast<short>(k));
    uint64_t has =
        join(_mm512_cmpge_epu16_mask(a.below, least), _mm512_cmpge_epu16_mask(b.below, least)) &
        valid;
    if (k > c.telling) has &= ~exceptions;
    const uint64_t bits = join(_mm512_movepi16_mask(low_a), _mm512_movepi16_mask(low_b));
    sink.add(_pext_u64(bits, has), static_cast<uint32_t>(_mm_popcnt_u64(has)));
    low_a = _mm512_add_epi16(low_a, low_a);
    low_b = _mm512_add_epi16(low_b, low_b);
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

void split(const TileFrame& tile, const void* values, Split& out) {
  const Number& number = tile.number;
  const Constants k(number);
  const auto* bytes = static_cast<const uint8_t*>(values);
  BitSink sink(out.remainder);
  memset(out.beyond, 0, tile.channels);
  out.exception_count = 0;
  for (uint32_t token = 0; token < tile.tokens; ++token) {
    if (token > 0) tile.centre.next();
    for (uint32_t first = 0; first < tile.channels; first += kLanes) {
      const uint32_t count = std::min(kLanes, tile.channels - first);
      const uint64_t valid = lanes_mask(count);
      const size_t at = (size_t{token} * tile.channels + first) * number.element_bytes;
      const Words v = load_values(bytes + at, number.element_bytes, valid);
      Words largest = {_mm512_setzero_si512(), _mm512_setzero_si512()};
      if (number.is_float())
        largest = words_of_bytes(_mm512_maskz_loadu_epi8(valid, tile.exponents + first));
      const Half a = fixed_of(k, v.a, largest.a, number.is_float());
      const Half b = fixed_of(k, v.b, largest.b, number.is_float());
      const Words centre = load_centre(tile.centre.row() + first);
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
  /// The next bits; those behind the end are zero.
  uint64_t take(uint32_t count) {
    const uint64_t at = at_ / 8;
    const uint32_t shift = at_ % 8;
    at_ += count;
    if (at + 9 > size_) return near_end(at, shift);
    uint64_t bits;
    memcpy(&bits, from_ + at, 8);
    return bits >> shift | (uint64_t{from_[at + 8]} << 1) << (63 - shift);
  }
  bool at_end() const { return (at_ + 7) / 8 == size_; }

 private:
  uint64_t near_end(uint64_t at, uint32_t shift) const {
    uint64_t bits = 0, more = 0;
    if (at < size_) memcpy(&bits, from_ + at, std::min<uint64_t>(size_ - at, 8));
    if (at + 8 < size_) more = from_[at + 8];
    return bits >> shift | (more << 1) << (63 - shift);
  }

  const uint8_t* from_;
  uint64_t size_;
  uint64_t at_ = 0;
};

// Lanes as bytes where magnitudes have at most 8 bits, else as words: the same operations.
struct ByteLanes {
  __m512i v;
};
inline void clear(ByteLanes& x) { x.v = _mm512_setzero_si512(); }
inline void clear(Words& x) { x.a = x.b = _mm512_setzero_si512(); }
inline uint64_t less(ByteLanes x, uint32_t bound) {
  return _mm512_cmplt_epu8_mask(x.v, _mm512_set1_epi8(static_cast<char>(bound)));
}
inline uint64_t less(Words x, uint32_t bound) {
  const __m512i most = _mm512_set1_epi16(static_cast<short>(bound));
  return join(_mm512_cmplt_epu16_mask(x.a, most), _mm512_cmplt_epu16_mask(x.b, most));
}
/// x + x in `which`, and 1 more in `bits`, a part of it.
inline void push(ByteLanes& x, uint64_t which, uint64_t bits) {
  x.v = _mm512_mask_add_epi8(x.v, which, x.v, x.v);
  x.v = _mm512_mask_sub_epi8(x.v, bits, x.v, _mm512_set1_epi8(-1));
}
inline void push(Words& x, uint64_t which, uint64_t bits) {
  const __m512i minus = _mm512_set1_epi16(-1);
  const auto wa = static_cast<__mmask32>(which), wb = static_cast<__mmask32>(which >> 32);
  x.a = _mm512_mask_add_epi16(x.a, wa, x.a, x.a);
  x.b = _mm512_mask_add_epi16(x.b, wb, x.b, x.b);
  x.a = _mm512_mask_sub_epi16(x.a, static_cast<__mmask32>(bits), x.a, minus);
  x.b = _mm512_mask_sub_epi16(x.b, static_cast<__mmask32>(bits >> 32), x.b, minus);
}
inline void count(ByteLanes& x, uint64_t which) {
  x.v = _mm512_mask_sub_epi8(x.v, which, x.v, _mm512_set1_epi8(-1));
}
inline void count(Words& x, uint64_t which) {
  const __m512i minus = _mm512_set1_epi16(-1);
  x.a = _mm512_mask_sub_epi16(x.a, static_cast<__mmask32>(which), x.a, minus);
  x.b = _mm512_mask_sub_epi16(x.b, static_cast<__mmask32>(which >> 32), x.b, minus);
}
inline Words widen(ByteLanes x) { return words_of_bytes(x.v); }
inline Words widen(Words x) { return x; }
inline void narrow(Words x, ByteLanes& to) { to.v = bytes_of_words(x); }
inline void narrow(Words x, Words& to) { to = x; }

/// low and below of 64 values, whose exceptions it returns.
template <class Lanes>
inline uint64_t merge_remainder(const Number& number, uint32_t telling, Lanes t, uint64_t valid,
                                BitSource& source, Lanes& low, Lanes& below) {
  const uint32_t bits = number.magnitude_bits;
  clear(low);
  clear(below);
  const uint64_t zero = less(t, 1) & valid;
  uint64_t exceptions = 0, zero_so_far = zero;
  for (uint32_t k = 1; k <= number.remainder_bits; ++k) {
    const uint64_t has =
        (k <= bits ? less(t, 1u << (bits - k)) & valid : zero_so_far) & ~exceptions;
    const uint64_t taken = source.take(static_cast<uint32_t>(_mm_popcnt_u64(has)));
    push(low, has, _pdep_u64(taken, has));
    count(below, has);
    if (k + 1 > bits) zero_so_far = zero & less(low, 1u << (bits - 1));
    if (k == telling) exceptions = zero & less(low, 1);
  }
  return exceptions;
}

inline __m512i assemble(const Constants& k, const Number& number, __m512i t, __m512i low,
                        __m512i below, __m512i largest, __m512i sign) {
  const __m512i significand = _mm512_or_si512(_mm512_sllv_epi16(t, below), low);
  const __m512i exponent = _mm512_and_si512(_mm512_sub_epi16(largest, below), k.exponent);
  const __m512i top =
      _mm512_set1_epi16(static_cast<short>(number.element_bytes == 1 ? 0x80 : 0x8000));
  return _mm512_or_si512(
      _mm512_or_si512(_mm512_and_si512(sign, top), _mm512_sll_epi16(exponent, k.shift)),
      _mm512_and_si512(significand, k.mantissa));
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

template <class Lanes>
bool merge_exact(const TileFrame& tile, const Merge& in, uint8_t* values) {
  const Number& number = tile.number;
  const Constants k(number);
  BitSource source(in.remainder);
  size_t exceptions = 0;
  for (uint32_t token = 0; token < tile.tokens; ++token) {
    if (token > 0) tile.centre.next();
    for (uint32_t first = 0; first < tile.channels; first += kLanes) {
      const uint32_t lanes = std::min(kLanes, tile.channels - first);
      const uint64_t valid = lanes_mask(lanes);
      const size_t at = token * tile.row_bytes() + first / 8;
      Lanes magnitude;
      clear(magnitude);
      for (uint32_t p = 1; p < number.planes(); ++p)
        push(magnitude, ~0ull, load_bits(in.planes[p] + at, lanes));
      const uint64_t signs = load_bits(in.planes[0] + at, lanes);
      const Words m = widen(magnitude), centre = load_centre(tile.centre.row() + first);
      const __m512i da = _mm512_xor_si512(m.a, _mm512_movm_epi16(static_cast<__mmask32>(signs)));
      const __m512i db =
          _mm512_xor_si512(m.b, _mm512_movm_epi16(static_cast<__mmask32>(signs >> 32)));
      const __m512i qa = _mm512_add_epi16(da, centre.a), qb = _mm512_add_epi16(db, centre.b);
      const Words sign = {_mm512_srai_epi16(qa, 15), _mm512_srai_epi16(qb, 15)};
      const Words t = {_mm512_and_si512(_mm512_xor_si512(qa, sign.a), k.magnitude),
                       _mm512_and_si512(_mm512_xor_si512(qb, sign.b), k.magnitude)};
      uint8_t* to = values + (size_t{token} * tile.channels + first) * number.element_bytes;
      if (!number.is_float()) {
        store_values(to, number.element_bytes, valid,
                     {_mm512_xor_si512(t.a, sign.a), _mm512_xor_si512(t.b, sign.b)});
        continue;
      }
      Lanes narrow_t, low, below;
      narrow(t, narrow_t);
      const uint64_t odd = merge_remainder(number, k.telling, narrow_t, valid, source, low, below);
      const Words largest = words_of_bytes(_mm512_maskz_loadu_epi8(valid, tile.exponents + first));
      const Words wide_low = widen(low), e = widen(below);
      store_values(to, number.element_bytes, valid,
                   {assemble(k, number, t.a, wide_low.a, e.a, largest.a, sign.a),
                    assemble(k, number, t.b, wide_low.b, e.b, largest.b, sign.b)});
      if (odd != 0 && !take_exceptions(number, odd, in.exceptions, exceptions, to)) return false;
    }
  }
  return source.at_end() && exceptions * number.element_bytes == in.exceptions.size();
}

bool merge(const TileFrame& tile, const Merge& in, void* values) {
  if (!in.exact) return kPlaneKernelsScalar.merge(tile, in, values);
  auto* bytes = static_cast<uint8_t*>(values);
  return tile.number.magnitude_bits <= 8 ? merge_exact<ByteLanes>(tile, in, bytes)
                                         : merge_exact<Words>(tile, in, bytes);
}

}  // namespace

const PlaneKernels kPlaneKernelsAvx512 = {largest_exponents, split, merge};

}  // namespace bowhead::compression

#if defined(__clang__)
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif
