// SPDX-License-Identifier: Apache-2.0
// Kinds of numbers, as the planes see them: sign, exponent, mantissa.
#pragma once

#include <cstdint>
#include <iterator>
#include <optional>
#include <string_view>

namespace bowhead::compression {

/// Numbers of frames (bowhead/format/frame.h).
enum class NumberKind : uint8_t {
  BF16 = 1,
  FP16 = 2,
  FP8_E4M3 = 3,
  FP8_E5M2 = 4,
  INT8 = 5,
  BYTES = 6
};

/// How a kind is cut. Exponents are taken as they are stored and every mantissa gets a one in
/// front, so that each bit pattern, denormal, infinite or not a number, is just a number.
struct Number {
  uint8_t element_bytes;
  uint8_t exponent_bits;  ///< 0: an integer
  uint8_t mantissa_bits;
  uint8_t magnitude_bits;   ///< planes below the sign: the mantissa and its one, or an integer's
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

/// Null if there is no such kind, or for BYTES.
constexpr const Number* number_of(NumberKind kind) {
  const auto index = static_cast<uint8_t>(kind) - 1u;
  return index < std::size(kNumbers) ? &kNumbers[index] : nullptr;
}

/// "bf16", "fp16", "fp8_e4m3", "fp8_e5m2", "int8", "bytes".
const char* number_name(NumberKind kind);
std::optional<NumberKind> number_named(std::string_view name);

/// What a bit pattern stands for; infinities and what is not a number as if the exponent went on.
double value_of(NumberKind kind, uint32_t bits);

constexpr uint32_t element_bytes(NumberKind kind) {
  const Number* number = number_of(kind);
  return number == nullptr ? 1 : number->element_bytes;
}

}  // namespace bowhead::compression
