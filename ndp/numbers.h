// SPDX-License-Identifier: Apache-2.0
// Numbers of keys and values as floats. All kinds but int8 are floats of fewer bits.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>

#include "compression/number.h"

namespace bowhead::ndp {

/// A float of so many bits behind its sign. `has_infinity`: the largest exponent is that of
/// infinities and NaN; else (e4m3) only all ones are NaN.
constexpr float small_float(uint32_t bits, uint32_t exponent_bits, uint32_t mantissa_bits,
                            bool has_infinity) {
  const uint32_t mantissa = bits & ((1u << mantissa_bits) - 1);
  const uint32_t exponent = bits >> mantissa_bits & ((1u << exponent_bits) - 1);
  const uint32_t sign = (bits >> (exponent_bits + mantissa_bits) & 1) << 31;
  const uint32_t most = (1u << exponent_bits) - 1;
  const int bias = static_cast<int>(most >> 1);
  const bool special = exponent == most && (has_infinity || mantissa == (1u << mantissa_bits) - 1);
  if (special) {
    const bool infinite = has_infinity && mantissa == 0;
    return std::bit_cast<float>(sign | 0x7F800000u | (infinite ? 0 : 0x400000u));
  }
  float value = static_cast<float>(exponent == 0 ? mantissa : mantissa | 1u << mantissa_bits);
  int power =
      (exponent == 0 ? 1 : static_cast<int>(exponent)) - bias - static_cast<int>(mantissa_bits);
  for (; power > 0; --power) value *= 2;
  for (; power < 0; ++power) value /= 2;
  return std::bit_cast<float>(std::bit_cast<uint32_t>(value) | sign);
}

constexpr float from_bf16(uint32_t bits) { return std::bit_cast<float>(bits << 16); }

/// The nearest bf16, of two the even one; NaN stays NaN.
constexpr uint16_t to_bf16(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  if ((bits & 0x7FFFFFFF) > 0x7F800000) return static_cast<uint16_t>(bits >> 16 | 0x40);
  return static_cast<uint16_t>((bits + 0x7FFF + (bits >> 16 & 1)) >> 16);
}

/// Of a kind but BYTES.
inline float load_number(NumberFormat number, const uint8_t* at) {
  uint16_t word = at[0];
  if (element_bytes(number) == 2) std::memcpy(&word, at, 2);
  switch (number) {
    case NumberFormat::BF16:
      return from_bf16(word);
    case NumberFormat::FP16:
      return small_float(word, 5, 10, true);
    case NumberFormat::FP8_E4M3:
      return small_float(word, 4, 3, false);
    case NumberFormat::FP8_E5M2:
      return small_float(word, 5, 2, true);
    default:
      return static_cast<int8_t>(word);
  }
}

}  // namespace bowhead::ndp
