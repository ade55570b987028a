// SPDX-License-Identifier: Apache-2.0
// Every instruction set makes the same planes of the same values, and the same values of the same
// planes.
#include "compression/planes.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "tests/compression/planes_check.h"

namespace bowhead::compression {
namespace {

/// The sets of this CPU, including the definition.
std::vector<const PlaneKernels*> all_sets() {
  std::vector<const PlaneKernels*> sets = {&kPlaneKernelsScalar};
  for (const IsaLevel level : {IsaLevel::SCALAR, IsaLevel::AVX2, IsaLevel::AVX512}) {
    if (level > cpu_features().isa) continue;
    if (&plane_kernels(level) != sets.back()) sets.push_back(&plane_kernels(level));
  }
  return sets;
}

class Kernels : public ::testing::TestWithParam<NumberFormat> {
 protected:
  void SetUp() override {
    if (all_sets().size() < 2) GTEST_SKIP() << "this CPU has the scalar code only";
  }
};

TEST_P(Kernels, AgreeWithTheDefinition) {
  for (const PlaneKernels* kernels : all_sets())
    EXPECT_EQ(fault_in_agreement(*kernels, GetParam()), "");
}

TEST_P(Kernels, AgreeOnStreamsThatNoEncoderMade) {
  for (const PlaneKernels* kernels : all_sets()) EXPECT_EQ(fault_in_lies(*kernels, GetParam()), "");
}

class KernelsOfFloats : public ::testing::TestWithParam<NumberFormat> {};

TEST_P(KernelsOfFloats, RefuseOtherLengths) {
  for (const PlaneKernels* kernels : all_sets())
    EXPECT_EQ(fault_in_lengths(*kernels, GetParam()), "");
}

INSTANTIATE_TEST_SUITE_P(Numbers, Kernels,
                         ::testing::Values(NumberFormat::BF16, NumberFormat::FP16,
                                           NumberFormat::FP8_E4M3, NumberFormat::FP8_E5M2,
                                           NumberFormat::INT8),
                         name_of_param);
INSTANTIATE_TEST_SUITE_P(Numbers, KernelsOfFloats,
                         ::testing::Values(NumberFormat::BF16, NumberFormat::FP16,
                                           NumberFormat::FP8_E4M3, NumberFormat::FP8_E5M2),
                         name_of_param);

TEST(Nibbles, AgreeWithTheDefinition) {
  for (const PlaneKernels* kernels : all_sets()) EXPECT_EQ(fault_in_nibbles(*kernels), "");
}

TEST(Samples, AreSummedAsTheFormulasSay) {
  const auto sum_samples = plane_kernels().sum_samples;
  if (sum_samples == nullptr) GTEST_SKIP() << "this CPU has the general way only";
  const Number& bf16 = *number_of(NumberFormat::BF16);
  const Rotary rotations[] = {
      {}, {.dim = 32, .head = 32}, {.dim = 128, .head = 128}, {.dim = 32, .head = 64, .first = 32}};
  for (const Rotary& rotary : rotations) {
    const Shape shape{NumberFormat::BF16, 1, 40, 128};
    const auto values = make_tensor(shape, Content::NORMAL, 3);
    std::vector<float> scale(128), cosines(13 * 64), sines(13 * 64), sums[3];
    for (size_t c = 0; c < scale.size(); ++c) scale[c] = 1.0f / static_cast<float>(1 + c % 5);
    for (size_t i = 0; i < cosines.size(); ++i) {
      cosines[i] = std::cos(static_cast<float>(i));
      sines[i] = std::sin(static_cast<float>(i));
    }
    for (auto& sum : sums) sum.assign(128, 0);
    ASSERT_TRUE(
        sum_samples({bf16, values.data(), 3 * 256, 13, 128, rotary, scale.data(), cosines.data(),
                     sines.data(), sums[0].data(), sums[1].data(), sums[2].data()}));
    const auto value = [&](uint32_t sample, uint32_t c) {
      const size_t at = (sample * 3 * 128 + c) * 2;
      return value_of(NumberFormat::BF16, values[at] | uint32_t{values[at + 1]} << 8) *
             double{scale[c]};
    };
    std::vector<double> vector(128), bounds(128);
    for (uint32_t c = 0; c < 128; ++c) {
      double energy = 0, mean = 0;
      for (uint32_t s = 0; s < 13; ++s) {
        energy += value(s, c) * value(s, c);
        mean += value(s, c);
      }
      bounds[c] = 1e-4 * std::sqrt(13 * energy);
      EXPECT_NEAR(sums[0][c], energy, 1e-4 * energy) << c;
      EXPECT_NEAR(sums[1][c], mean, bounds[c]) << c;
    }
    for_pairs(rotary, 128, [&](uint32_t x, uint32_t y, uint32_t pair) {
      for (uint32_t s = 0; s < 13; ++s) {
        const size_t turn = size_t{s} * rotary.pairs() + pair;
        const double cosine = cosines[turn], sine = sines[turn];
        vector[x] += value(s, x) * cosine + value(s, y) * sine;
        vector[y] += value(s, y) * cosine - value(s, x) * sine;
      }
    });
    for (uint32_t c = 0; c < 128; ++c)
      EXPECT_NEAR(sums[2][c], vector[c], 2 * bounds[c] + 1e-3) << c;
  }
}

}  // namespace
}  // namespace bowhead::compression
