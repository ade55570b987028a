// SPDX-License-Identifier: Apache-2.0
#include "compression/number.h"

#include <cmath>

#include "base/assert.h"

namespace bowhead::compression {
namespace {

constexpr const char* kNames[] = {"bf16", "fp16", "fp8_e4m3", "fp8_e5m2", "int8", "bytes"};

}  // namespace

const char* number_name(NumberKind kind) {
  const size_t at = static_cast<size_t>(kind) - 1;
  return at < std::size(kNames) ? kNames[at] : "unknown";
}

std::optional<NumberKind> number_named(std::string_view name) {
  for (size_t at = 0; at < std::size(kNames); ++at) {
    if (name == kNames[at]) return static_cast<NumberKind>(at + 1);
  }
  return std::nullopt;
}

double value_of(NumberKind kind, uint32_t bits) {
  const Number* number = number_of(kind);
  BOWHEAD_ASSERT(number != nullptr);
  if (!number->is_float()) return static_cast<int8_t>(bits);
  const int bias = (1 << (number->exponent_bits - 1)) - 1;
  const auto field =
      static_cast<int>(bits >> number->mantissa_bits & ((1u << number->exponent_bits) - 1));
  const double mantissa = bits & ((1u << number->mantissa_bits) - 1);
  const double one = field == 0 ? 0 : 1 << number->mantissa_bits;
  const double magnitude =
      std::ldexp(mantissa + one, (field == 0 ? 1 : field) - bias - number->mantissa_bits);
  return bits >> (number->element_bytes * 8 - 1) & 1 ? -magnitude : magnitude;
}

}  // namespace bowhead::compression
