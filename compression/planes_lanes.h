// SPDX-License-Identifier: Apache-2.0
// The planes with the compiler's vectors, for instruction sets without masks: as many channels at a
// time as a vector has bytes, with their words in two vectors.
//
// planes_avx2.cpp and planes_neon.cpp include it after their headers and target, and define
// BOWHEAD_VECTOR_BYTES. It includes nothing, so that no shared code is compiled for that target.
#pragma once

namespace bowhead::compression {
namespace {

// Functions of a Number are inlined where it is a constant, and their loops are unrolled there.
#define BOWHEAD_INLINE inline __attribute__((always_inline))
#define BOWHEAD_INLINE_LAMBDA __attribute__((always_inline))

constexpr uint32_t kBlock = BOWHEAD_VECTOR_BYTES;
constexpr uint32_t kWords = kBlock / 2, kRuns = kBlock / 8;

typedef uint8_t U8 __attribute__((vector_size(kBlock)));
typedef uint16_t U16 __attribute__((vector_size(kBlock)));
typedef int16_t I16 __attribute__((vector_size(kBlock)));
typedef uint32_t U32 __attribute__((vector_size(kBlock)));
typedef int32_t I32 __attribute__((vector_size(kBlock)));
typedef uint64_t U64 __attribute__((vector_size(kBlock)));
typedef float F32 __attribute__((vector_size(kBlock)));

// ---- not expressible by the compiler's vectors: defined by the including file ----

/// The highest bit of each byte.
BOWHEAD_INLINE uint32_t top_bits(U8 bytes);
/// Elements of a table that each 16 bytes repeat; 0 for an index whose highest bit is set. The
/// others are below 16.
BOWHEAD_INLINE U8 looked_up(U8 table, U8 index);
/// a x b / 2^15, rounded; a + b and a - b, saturated.
BOWHEAD_INLINE I16 product(I16 a, I16 b);
BOWHEAD_INLINE I16 saturated_sum(I16 a, I16 b);
BOWHEAD_INLINE I16 saturated_difference(I16 a, I16 b);
/// As many bytes as there are words.
BOWHEAD_INLINE U16 sign_extended(const uint8_t* bytes);
/// Of channels from this one on, as TurningCentre::at().
BOWHEAD_INLINE U16 centre_at(const TurningCentre& t, uint32_t channel);

// ---- lanes ----

/// The words of a block of channels.
struct Words {
  U16 a, b;
};

template <class Lanes>
BOWHEAD_INLINE Lanes load(const void* from) {
  Lanes lanes;
  memcpy(&lanes, from, sizeof(lanes));
  return lanes;
}
template <class Lanes>
BOWHEAD_INLINE void store(void* to, Lanes lanes) {
  memcpy(to, &lanes, sizeof(lanes));
}

template <size_t... i>
BOWHEAD_INLINE U8 even_bytes(U8 a, U8 b, std::index_sequence<i...>) {
  return __builtin_shufflevector(a, b, (2 * i)...);
}
template <size_t kFrom, size_t... i>
BOWHEAD_INLINE U8 interleaved(U8 low, U8 high, std::index_sequence<i...>) {
  return __builtin_shufflevector(low, high, (kFrom + i / 2 + i % 2 * kBlock)...);
}
/// Repeats each byte 8 times, for the next two of each 16 bytes: so no byte crosses the halves.
template <size_t... i>
BOWHEAD_INLINE U8 each_by_8(U8 bytes, std::index_sequence<i...>) {
  return __builtin_shufflevector(bytes, bytes, (i / 16 * 16 + i / 8)...);
}
template <size_t... i>
BOWHEAD_INLINE U8 bit_of_byte(std::index_sequence<i...>) {
  return U8{(1 << i % 8)...};
}
template <class Lanes, size_t... i>
BOWHEAD_INLINE Lanes counted(std::index_sequence<i...>) {
  return Lanes{i...};
}
using EachByte = std::make_index_sequence<kBlock>;

/// The low bytes.
BOWHEAD_INLINE U8 narrow(Words words) { return even_bytes(U8(words.a), U8(words.b), EachByte{}); }
BOWHEAD_INLINE Words widen(U8 low, U8 high) {
  return {U16(interleaved<0>(low, high, EachByte{})),
          U16(interleaved<kWords>(low, high, EachByte{}))};
}

/// A byte of ones for each bit that is set.
BOWHEAD_INLINE U8 spread(uint32_t bits) {
  const U8 bit = bit_of_byte(EachByte{});
  return U8((each_by_8(U8(U32{} + bits), EachByte{}) & bit) == bit);
}

BOWHEAD_INLINE uint32_t lanes_mask(uint32_t count) {
  return static_cast<uint32_t>((uint64_t{1} << count) - 1);
}
BOWHEAD_INLINE U8 valid_bytes(uint32_t lanes) {
  return U8(counted<U8>(EachByte{}) < static_cast<uint8_t>(lanes));
}

BOWHEAD_INLINE U16 smaller(U16 a, U16 b) { return a < b ? a : b; }
BOWHEAD_INLINE U16 larger(U16 a, U16 b) { return a > b ? a : b; }
BOWHEAD_INLINE U16 all_of(uint32_t word) { return U16{} + static_cast<uint16_t>(word); }
BOWHEAD_INLINE U16 signs_of(U16 words) { return U16(I16(words) >> 15); }

// Shifts by lane use lanes of 32 bits, as AVX2 has none of 16. By at most 16.

BOWHEAD_INLINE U16 shifted_right(U16 words, U16 by) {
  const U32 w = U32(words), n = U32(by);
  return U16((w & 0xFFFF) >> (n & 0xFFFF) | (w >> (n >> 16) & 0xFFFF0000));
}

/// For words below 16: byte(i) of each word i, as the low byte; the high one is 0.
template <class Byte, size_t... i>
BOWHEAD_INLINE U8 table_of(const Byte& byte, std::index_sequence<i...>) {
  return U8{static_cast<uint8_t>(byte(i % 16))...};
}
template <class Byte>
BOWHEAD_INLINE U16 low_bytes_of(U16 words, const Byte& byte) {
  return U16(looked_up(table_of(byte, EachByte{}), U8(words | 0x8000)));
}
/// The words with so many lowest bits, counts(i) of each word i.
template <uint32_t kMost, class Counts>
BOWHEAD_INLINE U16 ones_of(U16 words, const Counts& counts) {
  const U16 low = low_bytes_of(words, [&](size_t i) { return (1u << counts(i)) - 1; });
  if constexpr (kMost <= 8) return low;
  return low | low_bytes_of(words, [&](size_t i) { return ((1u << counts(i)) - 1) >> 8; }) << 8;
}

/// A stream of bits; zero after its end.
class BitSource {
 public:
  BitSource(std::span<const uint8_t> from, uint64_t begin)
      : from_(from.data()), size_(from.size()), at_(begin) {}
  /// Calls use(i, run) kTimes, each time with the next kBits bits or more. It returns how many of
  /// the lowest it takes: in all calls no more than a block has.
  template <uint32_t kTimes, uint32_t kBits, class Use>
  BOWHEAD_INLINE void take(const Use& use) {
    uint8_t edge[kMostRead];
    const uint64_t at = at_ / 8;
    const uint8_t* from = at + kMostRead <= size_ ? from_ + at : copy_edge(at, edge);
    uint64_t bit = at_ % 8;
#pragma GCC unroll 4
    for (uint32_t i = 0; i < kTimes; ++i) {
      uint64_t low;
      memcpy(&low, from + bit / 8, 8);
      low >>= bit % 8;
      if constexpr (kBits > 57) low |= uint64_t{from[bit / 8 + 8]} << 1 << (63 - bit % 8);
      bit += use(i, low);
    }
    at_ = at * 8 + bit;
  }
  bool at_end() const { return (at_ + 7) / 8 == size_; }

 private:
  static constexpr uint32_t kMostRead = kBlock + 9;
  __attribute__((noinline)) const uint8_t* copy_edge(uint64_t at, uint8_t* edge) const {
    memset(edge, 0, kMostRead);
    if (at < size_) memcpy(edge, from_ + at, size_ - at < kMostRead ? size_ - at : kMostRead);
    return edge;
  }

  const uint8_t* from_;
  uint64_t size_;
  uint64_t at_;
};

/// The bits of words where `masks` have ones, side by side: from a stream, and into one. Also
/// defined by the including file. Masks have ones in their lowest bits only, at most kMost.
template <uint32_t kMost>
BOWHEAD_INLINE U16 take_fields(U16 masks, BitSource& from);
template <uint32_t kMost>
BOWHEAD_INLINE void put_fields(U16 words, U16 masks, BitSink& to);

class ByteSource {
 public:
  explicit ByteSource(std::span<const uint8_t> from) : from_(from.data()), size_(from.size()) {}
  /// The next bytes in the lanes that are set; the other lanes, and those after the end, are zero.
  BOWHEAD_INLINE U8 take(uint32_t lanes) {
    uint8_t bytes[kBlock] = {};
    for (; lanes != 0; lanes &= lanes - 1, ++taken_)
      if (taken_ < size_) bytes[__builtin_ctz(lanes)] = from_[taken_];
    return load<U8>(bytes);
  }
  bool at_end() const { return taken_ == size_; }

 private:
  const uint8_t* from_;
  uint64_t size_;
  uint64_t taken_ = 0;
};

// ---- values ----

/// Zero after the last of `lanes`.
BOWHEAD_INLINE Words load_values(const uint8_t* from, uint32_t element_bytes, uint32_t lanes) {
  uint8_t padded[2 * kBlock] = {};
  if (lanes != kBlock) from = static_cast<uint8_t*>(memcpy(padded, from, lanes * element_bytes));
  if (element_bytes == 1) return widen(load<U8>(from), U8{});
  return {load<U16>(from), load<U16>(from + kBlock)};
}

BOWHEAD_INLINE void store_values(uint8_t* to, uint32_t element_bytes, uint32_t lanes,
                                 Words values) {
  uint8_t padded[2 * kBlock];
  uint8_t* all = lanes == kBlock ? to : padded;
  if (element_bytes == 1) {
    store(all, narrow(values));
  } else {
    store(all, values.a);
    store(all + kBlock, values.b);
  }
  if (lanes != kBlock) memcpy(to, padded, lanes * element_bytes);
}

BOWHEAD_INLINE Words load_words(const uint16_t* words) {
  return {load<U16>(words), load<U16>(words + kWords)};
}

void largest_exponents(const Number& number, const void* values, uint32_t tokens, uint32_t channels,
                       uint16_t* exponents) {
  const auto* bytes = static_cast<const uint8_t*>(values);
  const size_t row_bytes = size_t{channels} * number.element_bytes;
  const U16 rest = all_of(number.element_bytes == 1 ? 0x7F : 0x7FFF);
  for (uint32_t first = 0; first < channels; first += kBlock) {
    const uint32_t lanes = std::min(kBlock, channels - first);
    U16 a{}, b{};
    for (uint32_t token = 0; token < tokens; ++token) {
      const Words v = load_values(bytes + token * row_bytes + size_t{first} * number.element_bytes,
                                  number.element_bytes, lanes);
      a = larger(a, v.a & rest);
      b = larger(b, v.b & rest);
    }
    store(exponents + first, a >> number.mantissa_bits);
    store(exponents + first + kWords, b >> number.mantissa_bits);
  }
}

/// Values that are not there have the exponent 0, and so has their channel.
StepCount count_rests(const Number& number, const void* values, size_t row_bytes, uint32_t tokens,
                      uint32_t channels, const uint16_t* exponents) {
  using EachWord = std::make_index_sequence<kWords>;
  const auto* bytes = static_cast<const uint8_t*>(values);
  const U16 most = all_of(number.mantissa_bits), field = all_of((1u << number.exponent_bits) - 1);
  const U16 index = counted<U16>(EachWord{});
  U16 bits{}, exceptions{};
  for (uint32_t first = 0; first < channels; first += kBlock) {
    const uint32_t lanes = std::min(kBlock, channels - first);
    Words largest = load_words(exponents + first);
    largest.a &= U16(index < all_of(lanes));
    largest.b &= U16(index + all_of(kWords) < all_of(lanes));
    for (uint32_t token = 0; token < tokens; ++token) {
      const Words v = load_values(bytes + token * row_bytes + size_t{first} * number.element_bytes,
                                  number.element_bytes, lanes);
      const U16 a = largest.a - (v.a >> number.mantissa_bits & field);
      const U16 b = largest.b - (v.b >> number.mantissa_bits & field);
      bits += smaller(a, most) + smaller(b, most);
      exceptions -= U16(a > most) + U16(b > most);
    }
  }
  StepCount count;
  for (uint32_t i = 0; i < kWords; ++i) {
    count.bits = static_cast<uint16_t>(count.bits + bits[i]);
    count.exceptions = static_cast<uint16_t>(count.exceptions + exceptions[i]);
  }
  return count;
}

// ---- centres ----

BOWHEAD_INLINE void turn_interleaved(int16_t* at, I16 cosines, I16 sines) {
  const I16 all = load<I16>(at), others = I16(U32(all) << 16 | U32(all) >> 16);
  const I16 own = product(all, cosines), other = product(others, sines);
  const U32 less = U32(saturated_difference(own, other)), more = U32(saturated_sum(own, other));
  store(at, (less & 0xFFFF) | (more & 0xFFFF0000));
}

BOWHEAD_INLINE void turn_vectors(const TurningCentre& t) {
  const uint32_t count = t.rotary.interleaved ? t.rotary.dim : t.rotary.pairs();
  if (count == 0) return;
  // A copy, so that the caller's stays in registers.
  if (count % kWords != 0) return turn(TurningCentre(t));
  for (uint32_t head = t.rotary.first; head < t.channels; head += t.rotary.head) {
    for (uint32_t i = 0; i < count; i += kWords) {
      int16_t* at_x = t.state + head + i;
      if (t.rotary.interleaved) {
        turn_interleaved(at_x, load<I16>(t.cosines + i), load<I16>(t.sines + i));
        continue;
      }
      int16_t* at_y = at_x + count;
      const I16 cosine = load<I16>(t.cosines + i), sine = load<I16>(t.sines + i);
      const I16 x = load<I16>(at_x), y = load<I16>(at_y);
      store(at_x, saturated_difference(product(x, cosine), product(y, sine)));
      store(at_y, saturated_sum(product(x, sine), product(y, cosine)));
    }
  }
}

BOWHEAD_INLINE Words load_centre(const TurningCentre& t, uint32_t first) {
  return {centre_at(t, first), centre_at(t, first + kWords)};
}

// ---- split ----

/// Words in fixed point.
struct Fixed {
  U16 q, significand, below;
};

BOWHEAD_INLINE Fixed fixed_of(const Number& number, U16 v, U16 largest) {
  if (!number.is_float()) return {U16(I16(v << 8) >> 8), U16{}, U16{}};
  const U16 one = all_of(1u << number.mantissa_bits);
  const U16 exponent = v >> number.mantissa_bits & all_of((1u << number.exponent_bits) - 1);
  Fixed fixed;
  fixed.significand = (v & (one - 1)) | one;
  fixed.below = largest - exponent;
  const U16 below = smaller(fixed.below, all_of(15));
  U16 t;
  if (number.magnitude_bits <= 8) {  // by a product with 2^(8 - below)
    const auto half_power = [](size_t i) { return 128u >> i; };
    t = (fixed.significand << 1) * low_bytes_of(below, half_power) >> 8;
  } else {
    t = shifted_right(fixed.significand, below);
  }
  fixed.q = t ^ signs_of(v << (16 - 8 * number.element_bytes));
  return fixed;
}

/// Plane p of `count` is bit count - 1 - p of the bytes.
BOWHEAD_INLINE void scatter_planes(U8 bytes, uint8_t* const* planes, uint32_t count, size_t at) {
  bytes = U8(U16(bytes) << (8 - count));  // bits from the other byte end up below them
#pragma GCC unroll 8
  for (uint32_t p = 0; p < count; ++p) {
    const uint32_t row = top_bits(bytes);
    memcpy(planes[p] + at, &row, kRuns);
    bytes += bytes;
  }
}

/// Bits after the valid channels are zero; the next row overwrites surplus bytes.
BOWHEAD_INLINE void scatter_differences(const Number& number, Words d, Words m, U8 valid, size_t at,
                                        Split& out) {
  scatter_planes(narrow({d.a >> 15, d.b >> 15}) & valid, out.planes, 1, at);
  const uint32_t above = number.magnitude_bits > 8 ? number.magnitude_bits - 8u : 0;
  if (above > 0) scatter_planes(narrow({m.a >> 8, m.b >> 8}) & valid, out.planes + 1, above, at);
  scatter_planes(narrow(m) & valid, out.planes + 1 + above, number.magnitude_bits - above, at);
}

/// Marks channels whose d has too many bits; false if there is none.
BOWHEAD_INLINE bool mark_beyond(const Number& number, Words m, U8 valid, uint8_t* beyond) {
  const U16 most = all_of((1u << number.magnitude_bits) - 1);
  uint32_t over = top_bits(narrow({U16(m.a > most), U16(m.b > most)}) & valid);
  if (over == 0) return false;
  for (; over != 0; over &= over - 1) beyond[__builtin_ctz(over)] = 1;
  return true;
}

/// Appends the bits of each significand that belong to the remainder.
template <uint32_t kMantissaBits>
BOWHEAD_INLINE void put_remainders(const Fixed& fixed, U16 valid, BitSink& sink) {
  const U16 counts = smaller(fixed.below, all_of(kMantissaBits));
  const U16 masks = ones_of<kMantissaBits>(counts, [](size_t i) { return i; });
  put_fields<kMantissaBits>(fixed.significand, masks & valid, sink);
}

/// Appends e - magnitude_bits of the values whose t is zero.
BOWHEAD_INLINE void put_exceptions(const Number& number, const Fixed& a, const Fixed& b, U8 valid,
                                   Split& out) {
  const U16 least = all_of(number.magnitude_bits);
  uint32_t which = top_bits(narrow({U16(a.below >= least), U16(b.below >= least)}) & valid);
  if (which == 0) return;
  uint8_t far[kBlock];
  store(far, narrow({a.below - least, b.below - least}));
  for (; which != 0; which &= which - 1)
    out.exceptions[out.exception_count++] = far[__builtin_ctz(which)];
}

template <size_t kNumber>
void split_as(const TileFrame& tile, const void* values, Split& out) {
  constexpr const Number& number = kNumbers[kNumber];
  const auto* bytes = static_cast<const uint8_t*>(values);
  BitSink sink(out.remainder);
  memset(out.beyond, 0, tile.channels);
  out.exception_count = 0;
  bool any_beyond = false;  // then the remaining rows are only searched for others
  for (uint32_t token = 0; token < tile.tokens; ++token) {
    if (token > 0) turn_vectors(tile.centre);
    for (uint32_t first = 0; first < tile.channels; first += kBlock) {
      const uint32_t lanes = std::min(kBlock, tile.channels - first);
      const U8 valid = valid_bytes(lanes);
      const size_t at = (size_t{token} * tile.channels + first) * number.element_bytes;
      const Words v = load_values(bytes + at, number.element_bytes, lanes);
      Words largest{};
      if (number.is_float()) largest = load_words(tile.exponents + first);
      const Fixed a = fixed_of(number, v.a, largest.a), b = fixed_of(number, v.b, largest.b);
      const Words centre = load_centre(tile.centre, first);
      const Words d = {a.q - centre.a, b.q - centre.b};
      const Words m = {d.a ^ signs_of(d.a), d.b ^ signs_of(d.b)};
      any_beyond |= mark_beyond(number, m, valid, out.beyond + first);
      if (any_beyond) continue;
      scatter_differences(number, d, m, valid, token * tile.row_bytes() + first / 8, out);
      if (!number.is_float()) continue;
      const Words valid_words = widen(valid, valid);
      put_remainders<number.mantissa_bits>(a, valid_words.a, sink);
      put_remainders<number.mantissa_bits>(b, valid_words.b, sink);
      put_exceptions(number, a, b, valid, out);
    }
  }
  out.remainder_bits = sink.count();
}

// ---- merge ----

/// Magnitudes from `count` planes, at most 8, the highest first.
BOWHEAD_INLINE U8 gather_planes(const uint8_t* const* planes, uint32_t count, size_t at,
                                uint32_t lanes) {
  U8 bytes{};
#pragma GCC unroll 8
  for (uint32_t p = 0; p < count; ++p) {
    uint32_t row = 0;
    if (lanes == kBlock) {
      memcpy(&row, planes[p] + at, kRuns);
    } else {
      memcpy(&row, planes[p] + at, (lanes + 7) / 8);
    }
    bytes += bytes;
    bytes -= spread(row);
  }
  return bytes;
}

/// Elements of kBytes bytes from the low or the high half of each 16 bytes, a's and b's in turn.
template <size_t kBytes, size_t kHalf, size_t... i>
BOWHEAD_INLINE U8 zipped(U8 a, U8 b, std::index_sequence<i...>) {
  return __builtin_shufflevector(
      a, b,
      (i / 16 * 16 + (kHalf * 8 / kBytes + i % 16 / kBytes / 2) * kBytes + i % kBytes +
       i / kBytes % 2 * kBlock)...);
}

/// Exchanges the upper kBy bits of each 2 kBy in `a` with the lower kBy in `b`.
template <uint32_t kBy>
BOWHEAD_INLINE void exchange_bits(U8& a, U8& b) {
  constexpr uint8_t kLow = kBy == 4 ? 0x0F : kBy == 2 ? 0x33 : 0x55;
  const U8 other = (U8(U16(a) >> kBy) ^ b) & (U8{} + kLow);
  b ^= other;
  a ^= U8(U16(other) << kBy);
}

/// Stores each 16 bytes of a vector 128 bytes behind the ones before.
BOWHEAD_INLINE void store_parts(uint8_t* to, U8 bytes) {
  typedef uint8_t Part __attribute__((vector_size(16)));
  Part parts[kBlock / 16];
  memcpy(parts, &bytes, sizeof parts);
  for (uint32_t i = 0; i < kBlock / 16; ++i) store(to + size_t{128} * i, parts[i]);
}

/// A byte of each channel, whose bit i is that of row(i): rows of kBlock bytes are a matrix of bits
/// that is transposed, 8 channels and 8 rows at a time, then bytes are brought in their order.
template <class Row>
BOWHEAD_INLINE void transpose(const Row& row, uint8_t* bytes) {
  U8 r[8];
#pragma GCC unroll 8
  for (uint32_t i = 0; i < 8; ++i) r[i] = row(i);
#pragma GCC unroll 4
  for (uint32_t i = 0; i < 4; ++i) exchange_bits<4>(r[i], r[i + 4]);
#pragma GCC unroll 4
  for (uint32_t i = 0; i < 4; ++i) exchange_bits<2>(r[i / 2 * 4 + i % 2], r[i / 2 * 4 + i % 2 + 2]);
#pragma GCC unroll 4
  for (uint32_t i = 0; i < 4; ++i) exchange_bits<1>(r[2 * i], r[2 * i + 1]);
  // r[j]: channel j of every 8.
  U8 pairs[8], fours[8];
#pragma GCC unroll 4
  for (uint32_t i = 0; i < 4; ++i) {
    pairs[2 * i] = zipped<1, 0>(r[2 * i], r[2 * i + 1], EachByte{});
    pairs[2 * i + 1] = zipped<1, 1>(r[2 * i], r[2 * i + 1], EachByte{});
  }
#pragma GCC unroll 4
  for (uint32_t i = 0; i < 4; ++i) {
    const uint32_t from = i / 2 * 4 + i % 2;
    fours[i / 2 * 4 + i % 2 * 2] = zipped<2, 0>(pairs[from], pairs[from + 2], EachByte{});
    fours[i / 2 * 4 + i % 2 * 2 + 1] = zipped<2, 1>(pairs[from], pairs[from + 2], EachByte{});
  }
#pragma GCC unroll 4
  for (uint32_t i = 0; i < 4; ++i) {
    // Of each 16 bytes of the rows.
    store_parts(bytes + 32 * i, zipped<4, 0>(fours[i], fours[i + 4], EachByte{}));
    store_parts(bytes + 32 * i + 16, zipped<4, 1>(fours[i], fours[i + 4], EachByte{}));
  }
}

/// Where a plane is read, one block of channels after the other: chunks of 8 blocks are transposed
/// together, as long as there are whole ones, where rows are whole blocks.
class PlanePosition {
 public:
  BOWHEAD_INLINE PlanePosition(uint32_t tokens, uint32_t channels)
      : whole_(channels % kBlock == 0 ? size_t{tokens} * channels / (8 * kBlock) * kBlock : 0) {}
  BOWHEAD_INLINE size_t next(uint32_t lanes) {
    const size_t at = at_;
    at_ += (lanes + 7) / 8;
    return at;
  }
  BOWHEAD_INLINE bool is_in_chunk(size_t at) const { return at < whole_; }

 private:
  size_t at_ = 0, whole_;
};

BOWHEAD_INLINE Words gather_differences(const Number& number, const uint8_t* const* planes,
                                        size_t at, uint32_t lanes) {
  const uint32_t bits = number.magnitude_bits, above = bits > 8 ? bits - 8 : 0;
  const U8 signs = -gather_planes(planes, 1, at, lanes);
  const U8 low = gather_planes(planes + 1 + above, bits - above, at, lanes);
  const U8 high = gather_planes(planes + 1, above, at, lanes);
  return widen(low ^ signs, high ^ signs);
}

/// d, of one block after the other.
template <size_t kNumber>
class Differences {
 public:
  BOWHEAD_INLINE Differences(const uint8_t* const* planes, uint32_t tokens, uint32_t channels)
      : planes_(planes), position_(tokens, channels) {}
  BOWHEAD_INLINE Words take(uint32_t lanes) {
    const size_t at = position_.next(lanes);
    if (!position_.is_in_chunk(at))
      return gather_differences(kNumbers[kNumber], planes_, at, lanes);
    if (at % kBlock == 0) fill(at);
    return of_chunk(at);
  }

 private:
  static constexpr uint32_t kBits = kNumbers[kNumber].magnitude_bits;
  static constexpr uint32_t kAbove = kBits > 8 ? kBits - 8 : 0, kLow = kBits - kAbove;

  /// The low byte of d; above its bits the sign.
  BOWHEAD_INLINE void fill(size_t at) {
    const U8 sign = load<U8>(planes_[0] + at);
    const auto row = [&](uint32_t i) BOWHEAD_INLINE_LAMBDA {
      return i < kLow ? load<U8>(planes_[kBits - i] + at) ^ sign : sign;
    };
    transpose(row, low_);
  }
  BOWHEAD_INLINE Words of_chunk(size_t at) const {
    const uint8_t* low = low_ + at % kBlock * 8;
    if constexpr (kBits < 8) {
      return {sign_extended(low), sign_extended(low + kWords)};
    } else {
      const U8 high =
          gather_planes(planes_ + 1, kAbove, at, kBlock) ^ -gather_planes(planes_, 1, at, kBlock);
      return widen(load<U8>(low), high);
    }
  }

  const uint8_t* const* planes_;
  PlanePosition position_;
  uint8_t low_[8 * kBlock];
};

/// Lanes of 32 bits for the even and the odd words: numbers as floats, of which the exponent and
/// the first bits are used.
BOWHEAD_INLINE U32 even_as_float(U16 words) {
  return U32(__builtin_convertvector(I32(U32(words) & 0xFFFF), F32));
}
BOWHEAD_INLINE U32 odd_as_float(U16 words) {
  return U32(__builtin_convertvector(I32(U32(words) >> 16), F32));
}

/// Value bits with the sign of q.
BOWHEAD_INLINE U16 with_sign(const Number& number, U16 bits, U16 q) {
  if (number.element_bytes == 1) return (bits & 0x7F) | (q >> 8 & 0x80);
  return (bits & 0x7FFF) | (q & 0x8000);
}

/// `far`: e - magnitude_bits of the values whose t is zero, else zero.
///
/// As a float, t has the first bits of the mantissa behind its exponent: of that, added to the
/// channel's exponent, the remainder has the other bits. t = 0 does as 1 does, with an exponent
/// that is less by 1 and `far`.
template <size_t kNumber>
BOWHEAD_INLINE U16 exact(U16 q, U16 t, U16 largest, U16 valid, U16 far, BitSource& remainder) {
  constexpr const Number& number = kNumbers[kNumber];
  constexpr uint32_t kBits = number.mantissa_bits;
  const U16 zero = U16(t == 0), some = t - zero;
  const U16 known = U16((even_as_float(some) >> (23 - kBits) & 0xFFFF) |
                        odd_as_float(some) >> (23 - kBits) << 16) -
                    all_of(127u << kBits);
  const U16 masks =
      ones_of<kBits>(known >> kBits, [](size_t i) { return i < kBits ? kBits - i : 0; });
  const U16 bits = known + take_fields<kBits>(masks & valid, remainder) +
                   ((largest - all_of(kBits) - (far - zero)) << kBits);
  return with_sign(number, bits, q);
}

template <size_t kNumber>
bool merge_exact(const TileFrame& tile, const Merge& in, uint8_t* values) {
  constexpr const Number& number = kNumbers[kNumber];
  const U16 magnitude = all_of((1u << number.magnitude_bits) - 1);
  Differences<kNumber> differences(in.planes, tile.tokens, tile.channels);
  BitSource remainder(in.remainder, in.remainder_begin);
  ByteSource exceptions(in.exceptions);
  for (uint32_t token = 0; token < tile.tokens; ++token) {
    if (token > 0) turn_vectors(tile.centre);
    for (uint32_t first = 0; first < tile.channels; first += kBlock) {
      const uint32_t lanes = std::min(kBlock, tile.channels - first);
      const Words d = differences.take(lanes);
      const Words centre = load_centre(tile.centre, first);
      const Words q = {d.a + centre.a, d.b + centre.b};
      uint8_t* to = values + (size_t{token} * tile.channels + first) * number.element_bytes;
      if (!number.is_float()) {
        store_values(to, number.element_bytes, lanes, q);
        continue;
      }
      const Words t = {(q.a ^ signs_of(q.a)) & magnitude, (q.b ^ signs_of(q.b)) & magnitude};
      const U8 valid_byte = valid_bytes(lanes);
      const uint32_t zeros = top_bits(narrow({U16(t.a == 0), U16(t.b == 0)}) & valid_byte);
      Words far{};
      if (zeros != 0) far = widen(exceptions.take(zeros), U8{});
      const Words largest = load_words(tile.exponents + first);
      const Words valid = widen(valid_byte, valid_byte);
      const U16 a = exact<kNumber>(q.a, t.a, largest.a, valid.a, far.a, remainder);
      const U16 b = exact<kNumber>(q.b, t.b, largest.b, valid.b, far.b, remainder);
      store_values(to, number.element_bytes, lanes, {a, b});
    }
  }
  return remainder.at_end() && exceptions.at_end();
}

/// Value bits of half units, given as floats: their first bits are the mantissa.
BOWHEAD_INLINE U32 middle_of(const Number& number, U32 half_units, U32 largest) {
  const int mantissa_bits = number.mantissa_bits;
  const U32 bits = (half_units >> (23 - mantissa_bits)) +
                   ((largest - (128u + number.mantissa_bits)) << mantissa_bits);
  const I32 most = I32{} + number.largest_finite;
  const I32 cut = I32(bits) < most ? I32(bits) : most;
  return U32(cut) & U32(cut > 0) & U32(half_units != 0);
}

/// The function middle() of the scalar code: half units as a number, truncated.
BOWHEAD_INLINE U16 middle(const Number& number, U16 twice, U16 largest) {
  const U16 sign = signs_of(twice), magnitude = (twice ^ sign) - sign;
  const U32 e = U32(largest);
  const U32 even = middle_of(number, even_as_float(magnitude), e & 0xFFFF);
  const U32 odd = middle_of(number, odd_as_float(magnitude), e >> 16);
  return with_sign(number, U16(even | odd << 16), twice);
}

template <size_t kNumber>
bool merge_prefix(const TileFrame& tile, const Merge& in, uint8_t* values) {
  constexpr const Number& number = kNumbers[kNumber];
  // Bits read for missing planes are masked off.
  const uint8_t* planes[kMaxPlanes + 1];
  for (uint32_t p = 0; p < number.planes(); ++p) planes[p] = in.planes[p < in.plane_count ? p : 0];
  const uint32_t half_unit = 1u << (number.planes() - in.plane_count);
  const U16 half = all_of(half_unit), known = all_of(0u - 2 * half_unit);
  Differences<kNumber> differences(planes, tile.tokens, tile.channels);
  for (uint32_t token = 0; token < tile.tokens; ++token) {
    if (token > 0) turn_vectors(tile.centre);
    for (uint32_t first = 0; first < tile.channels; first += kBlock) {
      const uint32_t lanes = std::min(kBlock, tile.channels - first);
      const Words d = differences.take(lanes);
      const Words centre = load_centre(tile.centre, first);
      // Twice d, with a one and then zeros for the unknown bits: the middle, whatever the sign.
      const Words twice = {((d.a << 1 & known) | half) + (centre.a << 1),
                           ((d.b << 1 & known) | half) + (centre.b << 1)};
      uint8_t* to = values + (size_t{token} * tile.channels + first) * number.element_bytes;
      if (!number.is_float()) {
        const I16 least = I16{} - int16_t{128}, most = I16{} + int16_t{127};
        const auto cut = [&](U16 two) {
          const I16 value = I16(two) >> 1;
          return U16(value < least ? least : value > most ? most : value);
        };
        store_values(to, number.element_bytes, lanes, {cut(twice.a), cut(twice.b)});
        continue;
      }
      const Words largest = load_words(tile.exponents + first);
      store_values(to, number.element_bytes, lanes,
                   {middle(number, twice.a, largest.a), middle(number, twice.b, largest.b)});
    }
  }
  return true;
}

template <size_t kNumber>
bool merge_as(const TileFrame& tile, const Merge& in, uint8_t* values) {
  return in.exact ? merge_exact<kNumber>(tile, in, values)
                  : merge_prefix<kNumber>(tile, in, values);
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

BOWHEAD_INLINE void store_row(int16_t* to, Words words) {
  store(to, words.a);
  store(to + kWords, words.b);
}

/// Twice the middles of the intervals of d that the first planes show, of one block after the
/// other.
template <size_t kNumber>
class FirstPlanes {
 public:
  BOWHEAD_INLINE FirstPlanes(const uint8_t* const* shown, uint32_t count, uint32_t tokens,
                             uint32_t channels)
      : count_(count), position_(count <= 8 ? tokens : 0, channels) {
    for (uint32_t p = 0; p < number.planes(); ++p) planes_[p] = shown[p < count ? p : 0];
    const uint32_t missing = number.planes() - count;
    half_ = all_of(1u << missing);
    known_ = all_of(0u - (2u << missing));
  }
  BOWHEAD_INLINE Words take(uint32_t lanes) {
    const size_t at = position_.next(lanes);
    if (position_.is_in_chunk(at)) {
      if (at % kBlock == 0) fill(at);
      const uint8_t* bits = first_bits_ + at % kBlock * 8;
      return {middles_of(bits), middles_of(bits + kWords)};
    }
    // Bits of missing planes are masked off.
    const Words d = gather_differences(number, planes_, at, lanes);
    return {(d.a << 1 & known_) | half_, (d.b << 1 & known_) | half_};
  }

 private:
  static constexpr const Number& number = kNumbers[kNumber];

  /// The first bits of d, the sign the highest.
  BOWHEAD_INLINE void fill(size_t at) {
    const U8 sign = load<U8>(planes_[0] + at);
    const auto row = [&](uint32_t i) BOWHEAD_INLINE_LAMBDA {
      const uint32_t p = 7 - i;
      return p == 0 ? sign : p < count_ ? load<U8>(planes_[p] + at) ^ sign : U8{};
    };
    transpose(row, first_bits_);
  }
  BOWHEAD_INLINE U16 middles_of(const uint8_t* bits) const {
    constexpr int kLeft = number.magnitude_bits - 6;
    const U16 d = sign_extended(bits);
    return (kLeft >= 0 ? d << std::max(kLeft, 0) : U16(I16(d) >> std::max(-kLeft, 0))) | half_;
  }

  uint32_t count_;
  PlanePosition position_;
  const uint8_t* planes_[kMaxPlanes + 1];
  U16 half_, known_;
  uint8_t first_bits_[8 * kBlock];
};

template <size_t kNumber>
void differences_as(const uint8_t* const* shown, uint32_t plane_count, uint32_t tokens,
                    uint32_t channels, int16_t* twice) {
  FirstPlanes<kNumber> planes(shown, plane_count, tokens, channels);
  for (uint32_t token = 0; token < tokens; ++token, twice += padded_channels(channels)) {
    for (uint32_t first = 0; first < channels; first += kBlock)
      store_row(twice + first, planes.take(std::min(kBlock, channels - first)));
  }
}

void differences(const Number& number, const uint8_t* const* planes, uint32_t plane_count,
                 uint32_t tokens, uint32_t channels, int16_t* twice) {
  with_number(number, [&](auto kind) {
    differences_as<kind.value>(planes, plane_count, tokens, channels, twice);
  });
}

template <size_t kNumber, bool kScaled>
void middles_as(const TileFrame& tile, const uint8_t* const* shown, uint32_t plane_count,
                const int16_t* scales, int16_t* rows, int16_t* states) {
  const TurningCentre centre = tile.centre;
  const uint32_t channels = tile.channels, tokens = tile.tokens;
  FirstPlanes<kNumber> planes(shown, plane_count, tokens, channels);
  for (uint32_t token = 0; token < tokens; ++token, rows += padded_channels(channels)) {
    if (token % kStateTokens == 0) {
      memcpy(states, centre.state, channels * sizeof *states);
      states += channels;
    }
    for (uint32_t first = 0; first < channels; first += kBlock) {
      Words twice = planes.take(std::min(kBlock, channels - first));
      if constexpr (kScaled) {
        twice.a = U16(product(I16(twice.a), load<I16>(scales + first)));
        twice.b = U16(product(I16(twice.b), load<I16>(scales + first + kWords)));
      }
      const Words at = load_centre(centre, first);
      store_row(rows + first, {twice.a + (at.a << 1), twice.b + (at.b << 1)});
    }
    turn_vectors(centre);
  }
}

void middles(const TileFrame& tile, const uint8_t* const* planes, uint32_t plane_count,
             const int16_t* scales, int16_t* rows, int16_t* states) {
  with_number(tile.number, [&](auto kind) {
    scales != nullptr
        ? middles_as<kind.value, true>(tile, planes, plane_count, scales, rows, states)
        : middles_as<kind.value, false>(tile, planes, plane_count, nullptr, rows, states);
  });
}

void centres(const TurningCentre& centre, uint32_t tokens, int16_t* rows) {
  for (uint32_t token = 0; token < tokens; ++token, rows += padded_channels(centre.channels)) {
    for (uint32_t first = 0; first < centre.channels; first += kBlock)
      store_row(rows + first, load_centre(centre, first));
    turn_vectors(centre);
  }
}

// ---- nibbles ----

/// The nibbles of a block of bytes; `some` has ones where they are not zero.
struct Nibbles {
  U8 low, high;
  U8 some_low() const { return U8(low != 0); }
  U8 some_high() const { return U8(high != 0); }
};

BOWHEAD_INLINE Nibbles nibbles_of(U8 bytes) { return {bytes & 15, U8(U16(bytes) >> 4) & 15}; }

/// Calls each(bytes, at) for all bytes, a block at a time; the last are padded with zeros.
template <class Each>
BOWHEAD_INLINE void for_blocks(std::span<const uint8_t> in, const Each& each) {
  size_t at = 0;
  for (; at + kBlock <= in.size(); at += kBlock) each(load<U8>(in.data() + at), at);
  if (at == in.size()) return;
  uint8_t padded[kBlock] = {};
  memcpy(padded, in.data() + at, in.size() - at);
  each(load<U8>(padded), at);
}

size_t nibbles_size(std::span<const uint8_t> in) {
  size_t count = 0;
  for_blocks(in, [&](U8 bytes, size_t) {
    const Nibbles nibbles = nibbles_of(bytes);
    count += static_cast<size_t>(__builtin_popcount(top_bits(nibbles.some_low())) +
                                 __builtin_popcount(top_bits(nibbles.some_high())));
  });
  return (in.size() * 2 + 7) / 8 + (count + 1) / 2;
}

/// The nibbles of a block that are not zero, side by side: into a stream, and from one, to where a
/// map of one bit for each says. Also defined by the including file.
BOWHEAD_INLINE void put_nibbles(U8 bytes, BitSink& to);
BOWHEAD_INLINE U8 take_nibbles(const uint8_t* map, BitSource& from);

void pack_nibbles(std::span<const uint8_t> in, uint8_t* out) {
  // The map first: its last word may extend into the nibbles.
  for_blocks(in, [&](U8 bytes, size_t at) {
    const Nibbles nibbles = nibbles_of(bytes);
    const Words some = widen(nibbles.some_low(), nibbles.some_high());
    const uint32_t map[2] = {top_bits(U8(some.a)), top_bits(U8(some.b))};
    memcpy(out + at / 4, &map[0], kRuns);
    memcpy(out + at / 4 + kRuns, &map[1], kRuns);
  });
  BitSink sink(out + (in.size() * 2 + 7) / 8);
  for_blocks(in, [&](U8 bytes, size_t) { put_nibbles(bytes, sink); });
}

bool unpack_nibbles(std::span<const uint8_t> in, std::span<uint8_t> out) {
  const size_t map_bytes = (out.size() * 2 + 7) / 8;
  if (in.size() < map_bytes) return false;
  if (out.size() % 4 != 0 && in[map_bytes - 1] >> out.size() % 4 * 2 != 0) return false;
  const uint8_t* map = in.data();
  BitSource nibbles(in.subspan(map_bytes), 0);
  size_t at = 0;
  for (; at + kBlock <= out.size(); at += kBlock)
    store(out.data() + at, take_nibbles(map + at / 4, nibbles));
  if (at < out.size()) {
    uint8_t padded_map[2 * kRuns] = {}, padded[kBlock];
    memcpy(padded_map, map + at / 4, map_bytes - at / 4);
    store(padded, take_nibbles(padded_map, nibbles));
    memcpy(out.data() + at, padded, out.size() - at);
  }
  return nibbles.at_end();
}

}  // namespace
}  // namespace bowhead::compression
