// SPDX-License-Identifier: Apache-2.0
#include "compression/number.h"

#include <cmath>

#include "base/assert.h"

namespace bowhead::compression {

double value_of(NumberFormat kind, uint32_t bits) {
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
