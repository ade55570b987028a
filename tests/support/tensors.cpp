// SPDX-License-Identifier: Apache-2.0
#include "tests/support/tensors.h"

#include <algorithm>
#include <cmath>

#include "base/random.h"

namespace bowhead::compression {
namespace {

double uniform(Random& random) { return static_cast<double>(random.next() >> 11) * 0x1p-53; }

double normal(Random& random) {
  return std::sqrt(-2 * std::log(1 - uniform(random))) * std::cos(6.283185307 * uniform(random));
}

/// Nearest below, finite; integers are 100 times the value.
uint32_t bits_of(NumberFormat kind, double value) {
  const Number& number = *number_of(kind);
  if (!number.is_float())
    return static_cast<uint8_t>(static_cast<int>(std::clamp(value * 4, -128.0, 127.0)));
  const uint32_t sign = std::signbit(value) ? 1u << (number.element_bytes * 8 - 1) : 0;
  const int bias = (1 << (number.exponent_bits - 1)) - 1;
  int exponent = 0;
  const double fraction = std::frexp(std::abs(value), &exponent);  // 0.5 .. 1
  const int field = exponent - 1 + bias;
  if (fraction == 0 || field <= 0) return sign;
  if (field >= (1 << number.exponent_bits) - 1) return sign;
  const auto mantissa = static_cast<uint32_t>(std::ldexp(fraction * 2 - 1, number.mantissa_bits));
  return sign | static_cast<uint32_t>(field) << number.mantissa_bits | mantissa;
}

uint32_t special_bits(NumberFormat kind, Random& random) {
  const Number& number = *number_of(kind);
  const uint32_t any = static_cast<uint32_t>(random.next());
  const uint32_t exponents = ((1u << number.exponent_bits) - 1) << number.mantissa_bits;
  switch (random.below(5)) {
    case 0:
      return any & ~exponents;  // denormal
    case 1:
      return any | exponents;  // NaN
    case 2:
      return exponents | (any & 1) << 15;  // infinity, some
    case 3:
      return (any & 1) << (number.element_bytes * 8 - 1);
    default:
      return bits_of(kind, normal(random));
  }
}

double model_value(const Shape& shape, Content content, uint32_t token, uint32_t channel,
                   Random& random) {
  Random of_channel(channel + 1);
  const double size = std::exp(2 * normal(of_channel)), centre = size * normal(of_channel);
  if (content == Content::NORMAL || shape.rotary.dim == 0) return centre + size * normal(random);
  const Rotary& rotary = shape.rotary;
  const uint32_t at = channel % rotary.head - rotary.first, half = rotary.pairs();
  if (at >= rotary.dim) return centre + size * normal(random);
  const uint32_t i = rotary.interleaved ? at / 2 : at % half;
  const bool is_second = rotary.interleaved ? at % 2 != 0 : at >= half;
  const double first = static_cast<double>(rotary.step) / kTurnOfOneRadian;
  const double step = first * std::pow(std::ldexp(rotary.ratio, -32), i);
  const double phase = token * step + (is_second ? -1.5707963 : 0);
  return 3 * std::exp(i % 5) * std::cos(phase) + std::exp(i % 5) * normal(random);
}

}  // namespace

std::vector<uint8_t> make_tensor(const Shape& shape, Content content, uint64_t seed) {
  Random random(seed);
  std::vector<uint8_t> tensor(shape.size_bytes());
  if (shape.number == NumberFormat::BYTES) {
    for (uint8_t& byte : tensor)
      byte = content == Content::RANDOM ? static_cast<uint8_t>(random.next())
             : content == Content::ZERO ? uint8_t{0}
                                        : static_cast<uint8_t>(random.below(7));
    return tensor;
  }
  const Number& number = *number_of(shape.number);
  const auto constant = static_cast<uint32_t>(random.next());
  for (size_t i = 0; i < tensor.size() / number.element_bytes; ++i) {
    const auto channel = static_cast<uint32_t>(i % shape.channels);
    const auto token = static_cast<uint32_t>(i / shape.channels % shape.tokens);
    uint32_t bits = 0;
    switch (content) {
      case Content::NORMAL:
      case Content::ROTATED:
        bits = bits_of(shape.number, model_value(shape, content, token, channel, random));
        break;
      case Content::REPEATED: {
        Random of_token(seed + token % 3 * 1000 + channel);
        bits = bits_of(shape.number, normal(of_token));
        break;
      }
      case Content::RANDOM:
        bits = static_cast<uint32_t>(random.next());
        break;
      case Content::CONSTANT:
        bits = constant;
        break;
      case Content::ZERO:
        bits = bits_of(shape.number, random.below(9) == 0 ? -0.0 : 0.0);
        break;
      case Content::SPARSE:
        bits = random.below(20) == 0 ? bits_of(shape.number, 50 * normal(random)) : 0;
        break;
      case Content::SPECIAL:
        bits = special_bits(shape.number, random);
        break;
      case Content::SMALL:
        bits = bits_of(shape.number, token == 0 ? 1.0 : 0.001 * normal(random));
        break;
    }
    tensor[i * number.element_bytes] = static_cast<uint8_t>(bits);
    if (number.element_bytes == 2) tensor[i * 2 + 1] = static_cast<uint8_t>(bits >> 8);
  }
  return tensor;
}

uint32_t load_element(NumberFormat kind, const std::vector<uint8_t>& tensor, size_t index) {
  if (element_bytes(kind) == 1) return tensor[index];
  return tensor[index * 2] | uint32_t{tensor[index * 2 + 1]} << 8;
}

std::string describe(const Shape& shape, Content content) {
  const auto text = [](auto number) { return std::to_string(static_cast<uint32_t>(number)); };
  return "kind " + text(shape.number) + " [" + text(shape.outer) + "][" + text(shape.tokens) +
         "][" + text(shape.channels) + "] rotary " + text(shape.rotary.dim) + " of " +
         text(shape.rotary.head) + " from " + text(shape.rotary.first) +
         (shape.rotary.interleaved ? ", interleaved" : "") + ", content " + text(content);
}

}  // namespace bowhead::compression
