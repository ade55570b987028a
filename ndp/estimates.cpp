// SPDX-License-Identifier: Apache-2.0
#include "ndp/estimates.h"

#include <array>
#include <cmath>
#include <numbers>

#include "ndp/plane_tile.h"

namespace bowhead::ndp {
namespace {

/// `spread`: the mean distance of values from the centre, in units of half of the most:
/// sum(value * middle) / sum(middle^2).
double normal_scale(double spread, uint32_t planes) {
  const double deviation = spread / 2 * std::sqrt(std::numbers::pi / 2);  // of at most 1
  if (deviation <= 0) return 1;
  const uint32_t intervals = 1u << (planes - 1);
  const auto density = [&](double x) { return std::exp(-x * x / (2 * deviation * deviation)); };
  double products = 0, squares = 0;
  for (uint32_t i = 0; i < intervals; ++i) {
    const double begin = static_cast<double>(i) / intervals, end = begin + 1.0 / intervals;
    const double middle = (begin + end) / 2;
    // Of a normal distribution, but for a factor that both have.
    const double sum = deviation * deviation * (density(begin) - density(end));
    const double share = deviation * std::sqrt(std::numbers::pi / 2) *
                         (std::erf(end / deviation / std::numbers::sqrt2) -
                          std::erf(begin / deviation / std::numbers::sqrt2));
    products += middle * sum;
    squares += middle * middle * share;
  }
  return squares > 0 ? products / squares : 1;
}

}  // namespace

float scale_of_differences(uint8_t spread, uint32_t planes) {
  static const auto table = [] {
    std::array<std::array<float, 256>, kScaledPlanes> scales{};
    for (uint32_t p = 0; p < kScaledPlanes; ++p) {
      for (uint32_t s = 0; s < 256; ++s)
        scales[p][s] = static_cast<float>(normal_scale(s * kSpreadUnit, p + 1));
    }
    return scales;
  }();
  return table[planes - 1][spread];
}

}  // namespace bowhead::ndp
