// SPDX-License-Identifier: Apache-2.0
// The definition of the planes, one value at a time.
#include <algorithm>
#include <bit>
#include <cstring>

#include "base/assert.h"
#include "compression/planes.h"

namespace bowhead::compression {
namespace {

uint32_t load_value(const Number& number, const void* values, size_t index) {
  const auto* bytes = static_cast<const uint8_t*>(values) + index * number.element_bytes;
  return number.element_bytes == 1 ? bytes[0] : bytes[0] | uint32_t{bytes[1]} << 8;
}

void store_value(const Number& number, void* values, size_t index, uint32_t bits) {
  auto* bytes = static_cast<uint8_t*>(values) + index * number.element_bytes;
  bytes[0] = static_cast<uint8_t>(bits);
  if (number.element_bytes == 2) bytes[1] = static_cast<uint8_t>(bits >> 8);
}

uint32_t exponent_of(const Number& number, uint32_t bits) {
  return bits >> number.mantissa_bits & ((1u << number.exponent_bits) - 1);
}

/// The shift of the sign: the number of the other bits of a value.
uint32_t sign_shift(const Number& number) { return number.element_bytes * 8u - 1; }

/// A value in fixed point.
struct Fixed {
  int32_t q;
  uint32_t significand;
  uint32_t below;  ///< e
};

Fixed fixed_of(const Number& number, uint32_t bits, uint32_t largest) {
  if (!number.is_float()) return {static_cast<int8_t>(bits), 0, 0};
  const uint32_t one = 1u << number.mantissa_bits;
  Fixed fixed{0, (bits & (one - 1)) | one, largest - exponent_of(number, bits)};
  const auto t = static_cast<int32_t>(fixed.below < 32 ? fixed.significand >> fixed.below : 0);
  fixed.q = bits >> sign_shift(number) != 0 ? ~t : t;
  return fixed;
}

/// The number of bits of a value in the remainder.
uint32_t remainder_bits(const Number& number, uint32_t t) {
  return number.magnitude_bits - static_cast<uint32_t>(std::bit_width(t | 1));
}

class BitWriter {
 public:
  explicit BitWriter(uint8_t* to) : to_(to) {}
  void add(uint32_t bits, uint32_t count) {
    for (uint32_t i = 0; i < count; ++i, ++count_) {
      if (count_ % 8 == 0) to_[count_ / 8] = 0;
      to_[count_ / 8] = static_cast<uint8_t>(to_[count_ / 8] | (bits >> i & 1) << count_ % 8);
    }
  }
  uint64_t count() const { return count_; }

 private:
  uint8_t* to_;
  uint64_t count_ = 0;
};

class BitReader {
 public:
  BitReader(std::span<const uint8_t> from, uint64_t begin) : from_(from), count_(begin) {}
  /// Zero after the end.
  uint32_t take(uint32_t count) {
    uint32_t bits = 0;
    for (uint32_t i = 0; i < count; ++i, ++count_) {
      if (count_ / 8 < from_.size()) bits |= (from_[count_ / 8] >> count_ % 8 & 1u) << i;
    }
    return bits;
  }
  bool at_end() const { return (count_ + 7) / 8 == from_.size(); }

 private:
  std::span<const uint8_t> from_;
  uint64_t count_ = 0;
};

void largest_exponents(const Number& number, const void* values, uint32_t tokens, uint32_t channels,
                       uint16_t* exponents) {
  std::fill_n(exponents, channels, uint16_t{0});
  for (size_t i = 0; i < size_t{tokens} * channels; ++i) {
    uint16_t& largest = exponents[i % channels];
    const uint32_t exponent = exponent_of(number, load_value(number, values, i));
    largest = std::max(largest, static_cast<uint16_t>(exponent));
  }
}

void split(const TileFrame& tile, const void* values, Split& out) {
  const Number& number = tile.number;
  BitWriter remainder(out.remainder);
  std::fill_n(out.beyond, tile.channels, uint8_t{0});
  for (uint32_t p = 0; p < number.planes(); ++p) std::memset(out.planes[p], 0, tile.plane_bytes());
  const int32_t limit = 1 << number.magnitude_bits;
  out.exception_count = 0;
  for (uint32_t token = 0; token < tile.tokens; ++token) {
    if (token > 0) turn(tile.centre);
    for (uint32_t c = 0; c < tile.channels; ++c) {
      const uint32_t bits = load_value(number, values, size_t{token} * tile.channels + c);
      const Fixed fixed = fixed_of(number, bits, number.is_float() ? tile.exponents[c] : 0u);
      const int32_t d = fixed.q - tile.centre.at(c);
      if (d >= limit || d < -limit) out.beyond[c] = 1;
      const uint32_t magnitude = static_cast<uint32_t>(d < 0 ? ~d : d);
      const size_t at = token * tile.row_bytes() + c / 8;
      const auto set = [&](uint32_t plane, uint32_t bit) {
        out.planes[plane][at] = static_cast<uint8_t>(out.planes[plane][at] | bit << c % 8);
      };
      set(0, d < 0);
      for (uint32_t p = 1; p < number.planes(); ++p)
        set(p, magnitude >> (number.magnitude_bits - p) & 1u);
      if (!number.is_float()) continue;
      const auto t = static_cast<uint32_t>(fixed.q < 0 ? ~fixed.q : fixed.q);
      remainder.add(fixed.significand, remainder_bits(number, t));
      if (t == 0)
        out.exceptions[out.exception_count++] =
            static_cast<uint8_t>(fixed.below - number.magnitude_bits);
    }
  }
  out.remainder_bits = remainder.count();
}

StepCount count_rests(const Number& number, const void* values, size_t row_bytes, uint32_t tokens,
                      uint32_t channels, const uint16_t* exponents) {
  StepCount count;
  for (uint32_t token = 0; token < tokens; ++token) {
    const uint8_t* row = static_cast<const uint8_t*>(values) + token * row_bytes;
    for (uint32_t c = 0; c < channels; ++c) {
      const uint32_t below = exponents[c] - exponent_of(number, load_value(number, row, c));
      count.bits =
          static_cast<uint16_t>(count.bits + std::min<uint32_t>(below, number.mantissa_bits));
      count.exceptions = static_cast<uint16_t>(count.exceptions + (below > number.mantissa_bits));
    }
  }
  return count;
}

/// The middle of a value's interval after the first planes, as a number of the format, truncated.
uint32_t middle(const Number& number, int32_t twice, uint32_t largest) {
  if (!number.is_float()) return static_cast<uint8_t>(std::clamp(twice >> 1, -128, 127));
  const uint32_t sign = twice < 0;
  const uint32_t magnitude = static_cast<uint32_t>(std::abs(twice));
  if (magnitude == 0) return sign << sign_shift(number);
  // twice = magnitude * 2^-1 of the unit, whose significand has mantissa_bits + 1 bits.
  const int width = std::bit_width(magnitude);
  const int exponent = static_cast<int>(largest) + width - 2 - number.mantissa_bits;
  const int shift = width - 1 - number.mantissa_bits;
  const uint32_t significand = shift > 0 ? magnitude >> shift : magnitude << -shift;
  if (exponent < 0) return sign << sign_shift(number);
  const uint32_t bits = static_cast<uint32_t>(exponent) << number.mantissa_bits |
                        (significand & ((1u << number.mantissa_bits) - 1));
  return sign << sign_shift(number) | std::min<uint32_t>(bits, number.largest_finite);
}

/// The value whose fixed point is q.
uint32_t exact(const Number& number, int32_t q, uint32_t largest, BitReader& remainder,
               std::span<const uint8_t> exceptions, size_t& taken) {
  if (!number.is_float()) return static_cast<uint8_t>(q);
  const uint32_t sign = q < 0;
  const uint32_t t = static_cast<uint32_t>(q < 0 ? ~q : q) & ((1u << number.magnitude_bits) - 1);
  const uint32_t count = remainder_bits(number, t);
  const uint32_t significand = t << count | remainder.take(count);
  uint32_t below = count;
  if (t == 0) {
    below = number.magnitude_bits + (taken < exceptions.size() ? exceptions[taken] : 0u);
    ++taken;
  }
  const uint32_t one = 1u << number.mantissa_bits;
  const uint32_t bits = ((largest - below) << number.mantissa_bits) + (significand & (one - 1));
  return sign << sign_shift(number) | (bits & ((1u << sign_shift(number)) - 1));
}

bool merge(const TileFrame& tile, const Merge& in, void* values) {
  const Number& number = tile.number;
  BitReader remainder(in.remainder, in.remainder_begin);
  size_t exceptions = 0;
  const uint32_t missing = number.planes() - in.plane_count;
  for (uint32_t token = 0; token < tile.tokens; ++token) {
    if (token > 0) turn(tile.centre);
    for (uint32_t c = 0; c < tile.channels; ++c) {
      const size_t at = token * tile.row_bytes() + c / 8;
      const auto bit = [&](uint32_t plane) { return in.planes[plane][at] >> c % 8 & 1u; };
      uint32_t magnitude = 0;
      for (uint32_t p = 1; p < in.plane_count; ++p) magnitude = magnitude << 1 | bit(p);
      magnitude <<= missing;
      const int32_t centre = tile.centre.at(c);
      const uint32_t largest = number.is_float() ? tile.exponents[c] : 0u;
      uint32_t bits;
      if (in.exact) {
        const auto d = static_cast<int32_t>(magnitude);
        bits = exact(number, static_cast<int16_t>(centre + (bit(0) ? ~d : d)), largest, remainder,
                     in.exceptions, exceptions);
      } else {
        const auto twice = static_cast<int32_t>(2 * magnitude + (1u << missing));
        bits =
            middle(number, static_cast<int16_t>(2 * centre + (bit(0) ? -twice : twice)), largest);
      }
      store_value(number, values, size_t{token} * tile.channels + c, bits);
    }
  }
  return !in.exact || (remainder.at_end() && exceptions == in.exceptions.size());
}

// ---- rows for searches ----

void differences(const Number& number, const uint8_t* const* planes, uint32_t plane_count,
                 uint32_t tokens, uint32_t channels, int16_t* twice) {
  const uint32_t missing = number.planes() - plane_count, row_bytes = (channels + 7) / 8;
  for (uint32_t token = 0; token < tokens; ++token, twice += padded_channels(channels)) {
    for (uint32_t c = 0; c < channels; ++c) {
      const size_t at = size_t{token} * row_bytes + c / 8;
      const auto bit = [&](uint32_t plane) { return planes[plane][at] >> c % 8 & 1; };
      int32_t magnitude = 0;
      for (uint32_t p = 1; p < plane_count; ++p) magnitude = magnitude << 1 | bit(p);
      const int32_t middle = (2 * magnitude + 1) << missing;
      twice[c] = static_cast<int16_t>(bit(0) != 0 ? -middle : middle);
    }
  }
}

void centres(const TurningCentre& centre, uint32_t tokens, int16_t* rows) {
  for (uint32_t token = 0; token < tokens; ++token, rows += padded_channels(centre.channels)) {
    for (uint32_t c = 0; c < centre.channels; ++c) rows[c] = centre.at(c);
    turn(centre);
  }
}

void middles(const TileFrame& tile, const uint8_t* const* planes, uint32_t plane_count,
             const int16_t* scales, int16_t* rows, int16_t* states) {
  const size_t row_bytes = tile.row_bytes();
  for (uint32_t token = 0; token < tile.tokens; ++token, rows += padded_channels(tile.channels)) {
    if (token % kStateTokens == 0) states = std::copy_n(tile.centre.state, tile.channels, states);
    const uint8_t* from[kMaxPlanes + 1];
    for (uint32_t p = 0; p < plane_count; ++p) from[p] = planes[p] + token * row_bytes;
    differences(tile.number, from, plane_count, 1, tile.channels, rows);
    for (uint32_t c = 0; c < tile.channels; ++c) {
      const int difference = scales ? (rows[c] * scales[c] + 0x4000) >> 15 : rows[c];
      rows[c] = static_cast<int16_t>(difference + 2 * tile.centre.at(c));
    }
    turn(tile.centre);
  }
}

// ---- nibbles ----

constexpr uint64_t kLowBits = 0x1111111111111111;

uint64_t load_word(std::span<const uint8_t> bytes, size_t at) {
  uint64_t word = 0;
  std::memcpy(&word, bytes.data() + at, std::min<size_t>(bytes.size() - at, 8));
  return word;
}

/// The lowest bit of each nibble that is not zero.
uint64_t some_of(uint64_t word) { return (word | word >> 1 | word >> 2 | word >> 3) & kLowBits; }

size_t nibbles_size(std::span<const uint8_t> in) {
  size_t count = 0;
  for (size_t at = 0; at < in.size(); at += 8)
    count += static_cast<size_t>(std::popcount(some_of(load_word(in, at))));
  return (in.size() * 2 + 7) / 8 + (count + 1) / 2;
}

void pack_nibbles(std::span<const uint8_t> in, uint8_t* out) {
  uint8_t* map = out;
  uint8_t* to = out + (in.size() * 2 + 7) / 8;
  std::memset(map, 0, static_cast<size_t>(to - map));
  bool high = false;
  for (size_t at = 0; at < in.size(); at += 8) {
    const uint64_t word = load_word(in, at);
    for (uint64_t some = some_of(word); some != 0; some &= some - 1) {
      const auto bit = static_cast<uint32_t>(std::countr_zero(some));
      const size_t nibble = at * 2 + bit / 4;
      map[nibble / 8] = static_cast<uint8_t>(map[nibble / 8] | 1u << nibble % 8);
      const auto value = static_cast<uint8_t>(word >> bit & 0xF);
      if (high)
        *to++ |= static_cast<uint8_t>(value << 4);
      else
        *to = value;
      high = !high;
    }
  }
}

bool unpack_nibbles(std::span<const uint8_t> in, std::span<uint8_t> out) {
  const size_t map_bytes = (out.size() * 2 + 7) / 8;
  if (in.size() < map_bytes) return false;
  const std::span<const uint8_t> map = in.first(map_bytes), nibbles = in.subspan(map_bytes);
  size_t count = 0;
  for (size_t at = 0; at < map.size(); at += 8)
    count += static_cast<size_t>(std::popcount(load_word(map, at)));
  if (nibbles.size() != (count + 1) / 2) return false;
  std::fill(out.begin(), out.end(), uint8_t{0});
  size_t taken = 0;
  for (size_t at = 0; at < map.size(); at += 8) {
    for (uint64_t some = load_word(map, at); some != 0; some &= some - 1, ++taken) {
      const size_t nibble = at * 8 + static_cast<size_t>(std::countr_zero(some));
      // The bytes may be those of another block by now.
      if (nibble >= out.size() * 2 || taken / 2 >= nibbles.size()) return false;
      const uint32_t value = nibbles[taken / 2] >> taken % 2 * 4 & 0xFu;
      out[nibble / 2] = static_cast<uint8_t>(out[nibble / 2] | value << nibble % 2 * 4);
    }
  }
  return true;
}

}  // namespace

const PlaneKernels kPlaneKernelsScalar = {
    largest_exponents, split,   count_rests,  merge,        differences,
    centres,           middles, nibbles_size, pack_nibbles, unpack_nibbles};

}  // namespace bowhead::compression
