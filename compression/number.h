// SPDX-License-Identifier: Apache-2.0
// Number formats as the planes use them: sign, exponent, mantissa.
#pragma once

#include <cstdint>
#include <iterator>

#include "base/number_format.h"

namespace bowhead::compression {

/// The fields of a format. Exponents are used as stored and every mantissa gets a leading one, so
/// that each bit pattern, denormal, infinity or NaN included, is just a number.
struct Number {
  uint8_t element_bytes;
  uint8_t exponent_bits;  ///< 0: an integer
  uint8_t mantissa_bits;
  uint8_t
      magnitude_bits;  ///< planes below the sign: the mantissa and its leading one, or an integer's
  uint16_t largest_finite;  ///< bit pattern

  bool is_float() const { return exponent_bits != 0; }
  uint32_t planes() const { return magnitude_bits + 1u; }
};

inline constexpr uint32_t kMaxPlanes = 12;

inline constexpr Number kNumbers[] = {{2, 8, 7, 8, 0x7F7F},
                                      {2, 5, 10, 11, 0x7BFF},
                                      {1, 4, 3, 4, 0x7E},
                                      {1, 5, 2, 3, 0x7B},
                                      {1, 0, 0, 7, 0}};

/// Null if the format is never coded as planes: BYTES, FP32.
constexpr const Number* number_of(NumberFormat kind) {
  const auto index = static_cast<uint8_t>(kind) - 1u;
  return index < std::size(kNumbers) ? &kNumbers[index] : nullptr;
}

/// The value of a bit pattern; infinities and NaN as if they were the next exponent.
double value_of(NumberFormat kind, uint32_t bits);

}  // namespace bowhead::compression
