// SPDX-License-Identifier: Apache-2.0
// Every instruction set makes the same planes of the same values, and the same values of them.
#include "compression/planes.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "base/random.h"
#include "tests/compression/tensors.h"

namespace bowhead::compression {
namespace {

struct Planes {
  std::vector<uint16_t> exponents;
  std::vector<uint8_t> remainder, exceptions, beyond;
  std::vector<std::vector<uint8_t>> planes;
  uint64_t remainder_bits = 0;
};

Planes split(const PlaneKernels& kernels, const Shape& shape, const std::vector<uint8_t>& values,
             const std::vector<int16_t>& amplitudes, uint32_t shift) {
  const Number& number = *number_of(shape.number);
  Planes out;
  out.exponents.resize(shape.channels + 64);
  if (number.is_float())
    kernels.largest_exponents(number, values.data(), shape.tokens, shape.channels,
                              out.exponents.data());
  std::fill(out.exponents.begin() + shape.channels, out.exponents.end(), uint16_t{0});
  CentreMaker centres;
  const TileFrame tile{number, shape.tokens, shape.channels, out.exponents.data(),
                       centres.make(number, {out.exponents.data(), shape.channels}, amplitudes,
                                    shift, shape.rotary)};
  Split split{};
  out.planes.assign(number.planes(), std::vector<uint8_t>(tile.plane_bytes() + 8));
  for (uint32_t p = 0; p < number.planes(); ++p) split.planes[p] = out.planes[p].data();
  out.remainder.resize(remainder_room(number, size_t{shape.tokens} * shape.channels));
  out.exceptions.resize(size_t{shape.tokens} * shape.channels + 64);
  out.beyond.resize(shape.channels + 64);
  split.remainder = out.remainder.data();
  split.exceptions = out.exceptions.data();
  split.beyond = out.beyond.data();
  kernels.split(tile, values.data(), split);
  out.remainder_bits = split.remainder_bits;
  out.remainder.resize((split.remainder_bits + 7) / 8);
  out.exceptions.resize(split.exception_count);
  out.beyond.resize(shape.channels);
  for (auto& plane : out.planes) plane.resize(tile.plane_bytes());
  return out;
}

bool merge(const PlaneKernels& kernels, const Shape& shape, const Planes& planes,
           const std::vector<int16_t>& amplitudes, uint32_t shift, uint32_t count,
           std::vector<uint8_t>& values) {
  const Number& number = *number_of(shape.number);
  CentreMaker centres;
  const TileFrame tile{number, shape.tokens, shape.channels, planes.exponents.data(),
                       centres.make(number, {planes.exponents.data(), shape.channels}, amplitudes,
                                    shift, shape.rotary)};
  Merge in{.plane_count = count == 0 ? number.planes() : count,
           .exact = count == 0,
           .remainder = planes.remainder,
           .exceptions = planes.exceptions};
  for (uint32_t p = 0; p < number.planes(); ++p) in.planes[p] = planes.planes[p].data();
  values.assign(shape.size_bytes(), 0xEE);
  return kernels.merge(tile, in, values.data());
}

/// Those of this CPU, besides the definition.
std::vector<const PlaneKernels*> other_sets() {
  std::vector<const PlaneKernels*> sets;
  for (const IsaLevel level : {IsaLevel::SCALAR, IsaLevel::AVX2, IsaLevel::AVX512}) {
    if (level > cpu_features().isa) continue;
    const PlaneKernels* kernels = &plane_kernels(level);
    if (kernels != &kPlaneKernelsScalar) sets.push_back(kernels);
  }
  return sets;
}

class Kernels : public ::testing::TestWithParam<NumberKind> {
 protected:
  void SetUp() override {
    if (other_sets().empty()) GTEST_SKIP() << "this CPU has the scalar code only";
  }
};

void expect_agreement(const PlaneKernels& kernels, const Shape& shape,
                      const std::vector<uint8_t>& values, const std::vector<int16_t>& amplitudes) {
  const Number& number = *number_of(shape.number);
  const uint32_t shift = number.magnitude_bits / 2;
  const Planes right = split(kPlaneKernelsScalar, shape, values, amplitudes, shift);
  const Planes other = split(kernels, shape, values, amplitudes, shift);
  ASSERT_EQ(right.exponents, other.exponents);
  ASSERT_EQ(right.beyond, other.beyond);
  if (*std::max_element(right.beyond.begin(), right.beyond.end()) != 0) return;
  ASSERT_EQ(right.planes, other.planes);
  ASSERT_EQ(right.remainder_bits, other.remainder_bits);
  ASSERT_EQ(right.remainder, other.remainder);
  ASSERT_EQ(right.exceptions, other.exceptions);
  for (uint32_t count = 0; count <= number.planes(); ++count) {
    std::vector<uint8_t> a, b;
    ASSERT_TRUE(merge(kPlaneKernelsScalar, shape, right, amplitudes, shift, count, a));
    ASSERT_TRUE(merge(kernels, shape, right, amplitudes, shift, count, b));
    if (count == 0) {
      ASSERT_EQ(a, values);
    }
    ASSERT_EQ(a, b) << "planes " << count;
  }
}

TEST_P(Kernels, AgreeWithTheDefinition) {
  const NumberKind kind = GetParam();
  for (const Shape& shape :
       {Shape{kind, 1, 65, 64, rotary_of(1e4, 64)}, Shape{kind, 1, 33, 128, rotary_of(5e5, 128)},
        Shape{kind, 1, 10, 72}, Shape{kind, 1, 40, 8, rotary_of(1e4, 8)}, Shape{kind, 1, 5, 1},
        Shape{kind, 1, 7, 191}}) {
    for (const Content content : kContents) {
      const auto values = make_tensor(shape, content, 7);
      for (const bool centred : {false, true}) {
        std::vector<int16_t> amplitudes;
        for (uint32_t c = 0; centred && c < shape.channels; ++c)
          amplitudes.push_back(static_cast<int16_t>(c * 37 % 11) - 5);
        for (const PlaneKernels* kernels : other_sets()) {
          SCOPED_TRACE(describe(shape, content));
          ASSERT_NO_FATAL_FAILURE(expect_agreement(*kernels, shape, values, amplitudes));
        }
      }
    }
  }
}

class KernelsOfFloats : public Kernels {};

TEST_P(KernelsOfFloats, AgreeOnWhatDoesNotFit) {
  const NumberKind kind = GetParam();
  const Shape shape{kind, 1, 20, 72};
  const auto values = make_tensor(shape, Content::SPARSE, 8);
  std::vector<const PlaneKernels*> sets = other_sets();
  sets.push_back(&kPlaneKernelsScalar);
  for (const PlaneKernels* set : sets) {
    const PlaneKernels& kernels = *set;
    const Planes good = split(kernels, shape, values, {}, 0);
    std::vector<uint8_t> out;
    ASSERT_TRUE(merge(kernels, shape, good, {}, 0, 0, out));
    Planes bad = good;
    bad.remainder.pop_back();
    EXPECT_FALSE(merge(kernels, shape, bad, {}, 0, 0, out));
    bad = good;
    bad.remainder.push_back(0);
    EXPECT_FALSE(merge(kernels, shape, bad, {}, 0, 0, out));
    bad = good;
    bad.exceptions.push_back(0);
    bad.exceptions.push_back(0);
    EXPECT_FALSE(merge(kernels, shape, bad, {}, 0, 0, out));
    ASSERT_FALSE(good.exceptions.empty());
    bad = good;
    bad.exceptions.clear();
    EXPECT_FALSE(merge(kernels, shape, bad, {}, 0, 0, out));
  }
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
  std::vector<const PlaneKernels*> all = other_sets();
  all.insert(all.begin(), &kPlaneKernelsScalar);
  Random random(5);
  for (size_t size = 0; size < 300; ++size) {
    for (const uint64_t rarity : {1, 2, 20}) {
      std::vector<uint8_t> bytes(size);
      for (uint8_t& byte : bytes) {
        if (random.next() % rarity == 0) byte |= static_cast<uint8_t>(random.next() & 0xF0);
        if (random.next() % rarity == 0) byte |= static_cast<uint8_t>(random.next() & 0x0F);
      }
      std::vector<uint8_t> right, out(size);
      for (const PlaneKernels* kernels : all) {
        std::vector<uint8_t> packed(kernels->nibbles_size(bytes) + 8);
        kernels->pack_nibbles(bytes, packed.data());
        packed.resize(packed.size() - 8);
        if (kernels == all[0]) right = packed;
        ASSERT_EQ(packed, right) << size;
      }
      for (const PlaneKernels* kernels : all) {
        std::fill(out.begin(), out.end(), uint8_t{0xEE});
        ASSERT_TRUE(kernels->unpack_nibbles(right, out)) << size;
        ASSERT_EQ(out, bytes);
        std::vector<uint8_t> bad = right;
        bad.push_back(0);
        ASSERT_FALSE(kernels->unpack_nibbles(bad, out)) << size;
        if (size == 0) continue;
        bad.resize(right.size() - 1);
        ASSERT_FALSE(kernels->unpack_nibbles(bad, out)) << size;
        if (size % 4 == 0) continue;
        bad = right;
        bad[(size * 2 + 7) / 8 - 1] |= 0x80;  // says that there is a nibble behind the end
        ASSERT_FALSE(kernels->unpack_nibbles(bad, out)) << size;
      }
    }
  }
}

}  // namespace
}  // namespace bowhead::compression
