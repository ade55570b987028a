// SPDX-License-Identifier: Apache-2.0
// From the values of a tile to its planes and back: the code that exists once per instruction set.
//
// With E the largest exponent of a channel and a value's significand (mantissa with its leading
// one) s, exponent E - e and sign: t = s >> e, of magnitude_bits bits, is the value truncated to a
// multiple of the channel's unit; q = t or ~t adds the sign; d = q - centre. Plane 0 is the sign of
// d, planes 1.. the bits of d or ~d, the highest first.
//
// The remainder is the low e bits of s, or the mantissa if t is zero and so does not give e: values
// one after the other, the lowest bit first. The number of its bits follows from t alone, so that
// positions are prefix sums. A value whose t is zero is an exception: a separate byte holds e -
// magnitude_bits.
//
// Rows of planes are whole bytes, one bit per channel, the first channel lowest. Integers are their
// own q; they have neither remainder nor exceptions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <iterator>
#include <span>
#include <type_traits>

#include "base/assert.h"
#include "base/cpu.h"
#include "compression/centre.h"
#include "compression/directory.h"
#include "compression/number.h"

namespace bowhead::compression {

inline size_t plane_bytes(uint32_t channels, uint32_t tokens) {
  return (channels + 7) / 8 * size_t{tokens};
}

inline constexpr uint32_t kStateTokens = 8;

/// The length of a row for searches.
constexpr uint32_t padded_channels(uint32_t channels) { return (channels + 63) / 64 * 64; }

/// A tile's shape and the parameters of its planes.
struct TileFrame {
  const Number& number;
  uint32_t tokens;
  uint32_t channels;
  const uint16_t* exponents;  ///< by channel, 64 more may be read; null for integers
  TurningCentre centre;       ///< at the first token; the call changes it

  size_t row_bytes() const { return (channels + 7) / 8; }
  size_t plane_bytes() const { return compression::plane_bytes(channels, tokens); }
};

struct Split {
  uint8_t* planes[kMaxPlanes + 1];  ///< out: each plane_bytes(), 8 more may be written
  uint8_t* remainder;               ///< out: remainder_room() bytes
  uint64_t remainder_bits = 0;      ///< out
  uint8_t* exceptions;              ///< out: space for every value and 64 more
  uint32_t exception_count = 0;     ///< out
  uint8_t* beyond;  ///< out, by channel, 64 more that may be written: not 0 if some d has too many
                    ///< bits; then all else means nothing
};

struct Merge {
  const uint8_t* planes[kMaxPlanes + 1];  ///< each plane_bytes()
  uint32_t plane_count;                   ///< available planes, 1 or more
  bool exact;  ///< all planes, the remainder and the exceptions are available
  std::span<const uint8_t> remainder;   ///< if exact
  std::span<const uint8_t> exceptions;  ///< if exact
  uint64_t remainder_begin = 0;         ///< bit at which that of the first value begins
};

/// Some tokens of a tile, for the fit of a centre (fit.h): sums by channel, initially zero.
struct SampleSums {
  const Number& number;
  const uint8_t* values;  ///< of the first sample
  size_t stride_bytes;    ///< from sample to sample
  uint32_t samples;
  uint32_t channels;
  const Rotary& rotary;
  const float* scale;             ///< by channel: factor of the values
  const float *cosines, *sines;   ///< by sample and pair: of the rotation up to that sample
  float *energy, *mean, *vector;  ///< sums of squares; of values; of pairs rotated back
};

struct PlaneKernels {
  /// Largest exponent per channel. 64 more may be written.
  void (*largest_exponents)(const Number& number, const void* values, uint32_t tokens,
                            uint32_t channels, uint16_t* exponents);
  void (*split)(const TileFrame& tile, const void* values, Split& out);
  /// What the first channels of some tokens, `row_bytes` apart, take of remainder and exceptions if
  /// these are the largest exponents. At most kStepValues values, of a float.
  StepCount (*count_rests)(const Number& number, const void* values, size_t row_bytes,
                           uint32_t tokens, uint32_t channels, const uint16_t* exponents);
  /// False: the remainder or the exceptions do not end with the last value, or zeros had to be read
  /// behind their ends.
  bool (*merge)(const TileFrame& tile, const Merge& in, void* values);

  /// Rows for searches, each of padded_channels(); the surplus elements are undefined. The first
  /// row: twice the middle of the interval of d after the first planes; it fits 16 bits. The other:
  /// the centre, for each of the tokens; on return `tile` has that of the next token.
  void (*differences)(const Number& number, const uint8_t* const* planes, uint32_t plane_count,
                      uint32_t tokens, uint32_t channels, int16_t* twice);
  void (*centres)(const TurningCentre& centre, uint32_t tokens, int16_t* rows);
  /// Their sum, the centre taken twice: twice the middles of the values' intervals. They must fit
  /// 16 bits. `scales`, if given: differences times these, by channel, in units of 2^-15, not
  /// negative; 64 more may be read. They are rounded: (difference * scale + 2^14) / 2^15, floored.
  /// `states` gets the state of the centre, by channel, at each kStateTokens-th token from the
  /// first one on. On return `tile` has the centre of the next token.
  void (*middles)(const TileFrame& tile, const uint8_t* const* planes, uint32_t plane_count,
                  const int16_t* scales, int16_t* rows, int16_t* states);

  /// Codes bytes as nibbles, the low one first: one bit for each, the first lowest, says whether it
  /// is not zero; then, again in whole bytes, the nibbles that are not. For planes with few ones:
  /// where they are short, a table of frequencies would cost more than it saves. Writes
  /// nibbles_size() bytes, and may write 8 more.
  size_t (*nibbles_size)(std::span<const uint8_t> in);
  void (*pack_nibbles)(std::span<const uint8_t> in, uint8_t* out);
  /// False unless `in` is exactly the code of out.size() bytes.
  bool (*unpack_nibbles)(std::span<const uint8_t> in, std::span<uint8_t> out);

  /// Returns false and does nothing where the general code must be used. Null: always.
  bool (*sum_samples)(const SampleSums& sums) = nullptr;
};

/// The most bytes of a remainder of so many values.
inline size_t most_remainder_bytes(const Number& number, size_t values) {
  return (values * number.mantissa_bits + 7) / 8;
}
/// The size of its buffer, with the bytes that are written after it.
inline size_t remainder_room(const Number& number, size_t values) {
  return most_remainder_bytes(number, values) + 16;
}

/// The set of a level that this CPU has (asserted); the set of cpu_features().isa. On Arm always
/// Neon's.
const PlaneKernels& plane_kernels(IsaLevel level);
const PlaneKernels& plane_kernels();

/// Returns call(index of the format in kNumbers, as a constant): kernels are compiled for each
/// format. (By index: clang 14 does not accept an element of an array as a template argument.)
template <class Call>
auto with_number(const Number& number, const Call& call) {
  static_assert(std::size(kNumbers) == 5);
  switch (&number - kNumbers) {
    case 0:
      return call(std::integral_constant<size_t, 0>());
    case 1:
      return call(std::integral_constant<size_t, 1>());
    case 2:
      return call(std::integral_constant<size_t, 2>());
    case 3:
      return call(std::integral_constant<size_t, 3>());
    default:
      BOWHEAD_ASSERT(&number == &kNumbers[4]);
      return call(std::integral_constant<size_t, 4>());
  }
}

extern const PlaneKernels kPlaneKernelsScalar;  ///< the definition
extern const PlaneKernels kPlaneKernelsAvx2;
extern const PlaneKernels kPlaneKernelsAvx512;
extern const PlaneKernels kPlaneKernelsNeon;

}  // namespace bowhead::compression
