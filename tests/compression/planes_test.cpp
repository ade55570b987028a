// SPDX-License-Identifier: Apache-2.0
// Every instruction set makes the same planes of the same values, and the same values of them.
#include "compression/planes.h"

#include <gtest/gtest.h>

#include <vector>

#include "tests/compression/planes_check.h"

namespace bowhead::compression {
namespace {

/// Those of this CPU, the definition among them.
std::vector<const PlaneKernels*> all_sets() {
  std::vector<const PlaneKernels*> sets = {&kPlaneKernelsScalar};
  for (const IsaLevel level : {IsaLevel::SCALAR, IsaLevel::AVX2, IsaLevel::AVX512}) {
    if (level > cpu_features().isa) continue;
    if (&plane_kernels(level) != sets.back()) sets.push_back(&plane_kernels(level));
  }
  return sets;
}

class Kernels : public ::testing::TestWithParam<NumberKind> {
 protected:
  void SetUp() override {
    if (all_sets().size() < 2) GTEST_SKIP() << "this CPU has the scalar code only";
  }
};

TEST_P(Kernels, AgreeWithTheDefinition) {
  for (const PlaneKernels* kernels : all_sets())
    EXPECT_EQ(fault_in_agreement(*kernels, GetParam()), "");
}

TEST_P(Kernels, AgreeOnWhatNobodySplit) {
  for (const PlaneKernels* kernels : all_sets()) EXPECT_EQ(fault_in_lies(*kernels, GetParam()), "");
}

class KernelsOfFloats : public ::testing::TestWithParam<NumberKind> {};

TEST_P(KernelsOfFloats, RefuseOtherLengths) {
  for (const PlaneKernels* kernels : all_sets())
    EXPECT_EQ(fault_in_lengths(*kernels, GetParam()), "");
}

INSTANTIATE_TEST_SUITE_P(Numbers, Kernels,
                         ::testing::Values(NumberKind::BF16, NumberKind::FP16, NumberKind::FP8_E4M3,
                                           NumberKind::FP8_E5M2, NumberKind::INT8),
                         name_of_param);
INSTANTIATE_TEST_SUITE_P(Numbers, KernelsOfFloats,
                         ::testing::Values(NumberKind::BF16, NumberKind::FP16, NumberKind::FP8_E4M3,
                                           NumberKind::FP8_E5M2),
                         name_of_param);

TEST(Nibbles, AgreeWithTheDefinition) {
  for (const PlaneKernels* kernels : all_sets()) EXPECT_EQ(fault_in_nibbles(*kernels), "");
}

}  // namespace
}  // namespace bowhead::compression
