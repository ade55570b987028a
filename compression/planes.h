// SPDX-License-Identifier: Apache-2.0
// Between the values of a tile and its planes: what exists once per instruction set.
//
// With E the largest exponent of a channel and a value's significand (mantissa with its one) s,
// exponent E - e and sign: t = s >> e, of magnitude_bits bits, is the value cut to a multiple of
// the channel's unit; q = t or ~t is that with the sign; d = q - centre. Plane 0 is the sign of d,
// planes 1.. the bits of d or ~d, the highest first.
//
// What is left are the low e bits of s, or the mantissa if t is zero and so does not tell e: the
// remainder, values one after the other, the lowest bit first. How many a value has, t alone says,
// so that positions are prefix sums. Where t is zero the value is an exception: a byte apart holds
// e - magnitude_bits.
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
#include "compression/number.h"

namespace bowhead::compression {

inline size_t plane_bytes(uint32_t channels, uint32_t tokens) {
  return (channels + 7) / 8 * size_t{tokens};
}

/// Of a row for searches.
constexpr uint32_t padded_channels(uint32_t channels) { return (channels + 63) / 64 * 64; }

/// A tile's shape and what its planes are relative to.
struct TileFrame {
  const Number& number;
  uint32_t tokens;
  uint32_t channels;
  const uint16_t* exponents;  ///< by channel, 64 more may be read; null for integers
  TurningCentre centre;       ///< at the first token; it is used up

  size_t row_bytes() const { return (channels + 7) / 8; }
  size_t plane_bytes() const { return compression::plane_bytes(channels, tokens); }
};

struct Split {
  uint8_t* planes[kMaxPlanes + 1];  ///< out: each plane_bytes() and 8 more that may be written
  uint8_t* remainder;               ///< out: remainder_room() bytes
  uint64_t remainder_bits = 0;      ///< out
  uint8_t* exceptions;              ///< out: room for every value, and 64 more
  uint32_t exception_count = 0;     ///< out
  uint8_t* beyond;  ///< out, by channel, 64 more that may be written: not 0 if some d has too many
                    ///< bits; then all else means nothing
};

struct Merge {
  const uint8_t* planes[kMaxPlanes + 1];  ///< each plane_bytes()
  uint32_t plane_count;                   ///< those that there are, 1 or more
  bool exact;                             ///< all planes, remainder and exceptions are there
  std::span<const uint8_t> remainder;     ///< if exact
  std::span<const uint8_t> exceptions;    ///< if exact
};

/// Some tokens of a tile, for the fit of a centre (fit.h): sums by channel, which begin at zero.
struct SampleSums {
  const Number& number;
  const uint8_t* values;  ///< of the first sample
  size_t stride_bytes;    ///< from sample to sample
  uint32_t samples;
  uint32_t channels;
  uint32_t half;                  ///< as in TurningCentre
  const float* scale;             ///< by channel: of the values
  const float *cosines, *sines;   ///< by sample and pair: of the turn up to there
  float *energy, *mean, *vector;  ///< of squares; of values; of pairs turned back
};

struct PlaneKernels {
  /// Largest exponent per channel. 64 more may be written.
  void (*largest_exponents)(const Number& number, const void* values, uint32_t tokens,
                            uint32_t channels, uint16_t* exponents);
  void (*split)(const TileFrame& tile, const void* values, Split& out);
  /// False: the remainder or the exceptions are not as long as the planes say.
  bool (*merge)(const TileFrame& tile, const Merge& in, void* values);

  /// Rows for searches, each of padded_channels(), of which the surplus ones hold anything. The
  /// first: twice the middle of what d can be after the first planes; it fits 16 bits. The other:
  /// the centre, at so many tokens; on return it is that of the next one.
  void (*differences)(const Number& number, const uint8_t* const* planes, uint32_t plane_count,
                      uint32_t tokens, uint32_t channels, int16_t* twice);
  void (*centres)(const TurningCentre& centre, uint32_t tokens, int16_t* rows);

  /// Bytes as nibbles, the low one first; a bit for each, the first lowest, says whether it is not
  /// zero; then, in whole bytes again, those that are not. For planes of few ones: a table of
  /// frequencies would cost more than it saves where they are short. Writes nibbles_size() bytes,
  /// and may write 8 more.
  size_t (*nibbles_size)(std::span<const uint8_t> in);
  void (*pack_nibbles)(std::span<const uint8_t> in, uint8_t* out);
  /// False unless `in` is exactly that of out.size() bytes.
  bool (*unpack_nibbles)(std::span<const uint8_t> in, std::span<uint8_t> out);

  /// False, and nothing is done, where the general way is meant. Null: always.
  bool (*sum_samples)(const SampleSums& sums) = nullptr;
};

/// Of the remainder of so many values, at most.
inline size_t most_remainder_bytes(const Number& number, size_t values) {
  return (values * number.mantissa_bits + 7) / 8;
}
/// For it, and what is written behind it.
inline size_t remainder_room(const Number& number, size_t values) {
  return most_remainder_bytes(number, values) + 16;
}

/// The set of a level that this CPU has (asserted); of cpu_features().isa. On Arm always Neon's.
const PlaneKernels& plane_kernels(IsaLevel level);
const PlaneKernels& plane_kernels();

/// Returns call(index of the kind in kNumbers, as a constant): kernels are compiled for each kind.
/// (By its index: clang 14 takes no element of an array for a template.)
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
