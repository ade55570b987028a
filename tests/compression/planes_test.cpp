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

class Kernels : public ::testing::TestWithParam<NumberKind> {
 protected:
  void SetUp() override {
    if (cpu_features().isa < IsaLevel::AVX512) GTEST_SKIP() << "this CPU has the scalar code only";
  }
};

TEST_P(Kernels, AgreeWithTheDefinition) {
  const NumberKind kind = GetParam();
  const PlaneKernels& scalar = plane_kernels(IsaLevel::SCALAR);
  const PlaneKernels& vector = plane_kernels(IsaLevel::AVX512);
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
        const uint32_t shift = number_of(kind)->magnitude_bits / 2;
        const Planes right = split(scalar, shape, values, amplitudes, shift);
        const Planes other = split(vector, shape, values, amplitudes, shift);
        ASSERT_EQ(right.exponents, other.exponents) << describe(shape, content);
        ASSERT_EQ(right.beyond, other.beyond) << describe(shape, content);
        const bool whole = *std::max_element(right.beyond.begin(), right.beyond.end()) == 0;
        if (whole) {
          ASSERT_EQ(right.planes, other.planes) << describe(shape, content);
          ASSERT_EQ(right.remainder_bits, other.remainder_bits) << describe(shape, content);
          ASSERT_EQ(right.remainder, other.remainder) << describe(shape, content);
          ASSERT_EQ(right.exceptions, other.exceptions) << describe(shape, content);
        }
        for (uint32_t count = 0; whole && count <= number_of(kind)->planes(); ++count) {
          std::vector<uint8_t> a, b;
          ASSERT_TRUE(merge(scalar, shape, right, amplitudes, shift, count, a));
          ASSERT_TRUE(merge(vector, shape, right, amplitudes, shift, count, b));
          if (count == 0) {
            ASSERT_EQ(a, values) << describe(shape, content);
          }
          ASSERT_EQ(a, b) << describe(shape, content) << " planes " << count;
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
  for (const IsaLevel level : {IsaLevel::SCALAR, IsaLevel::AVX512}) {
    const PlaneKernels& kernels = plane_kernels(level);
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
  std::vector<const PlaneKernels*> all = {&plane_kernels(IsaLevel::SCALAR), &plane_kernels()};
  Random random(5);
  for (size_t size = 0; size < 300; ++size) {
    for (const uint64_t rarity : {1, 2, 20}) {
      std::vector<uint8_t> bytes(size);
      for (uint8_t& byte : bytes) {
        if (random.next() % rarity == 0) byte |= static_cast<uint8_t>(random.next() & 0xF0);
        if (random.next() % rarity == 0) byte |= static_cast<uint8_t>(random.next() & 0x0F);
      }
      std::vector<uint8_t> packed[2], out(size);
      for (size_t i = 0; i < 2; ++i) {
        packed[i].resize(all[i]->nibbles_size(bytes) + 8);
        all[i]->pack_nibbles(bytes, packed[i].data());
        packed[i].resize(packed[i].size() - 8);
      }
      ASSERT_EQ(packed[0], packed[1]) << size;
      for (const PlaneKernels* kernels : all) {
        std::fill(out.begin(), out.end(), uint8_t{0xEE});
        ASSERT_TRUE(kernels->unpack_nibbles(packed[0], out)) << size;
        ASSERT_EQ(out, bytes);
        std::vector<uint8_t> bad = packed[0];
        bad.push_back(0);
        ASSERT_FALSE(kernels->unpack_nibbles(bad, out)) << size;
        if (size == 0) continue;
        bad.resize(packed[0].size() - 1);
        ASSERT_FALSE(kernels->unpack_nibbles(bad, out)) << size;
        if (size % 4 == 0) continue;
        bad = packed[0];
        bad[(size * 2 + 7) / 8 - 1] |= 0x80;  // says that there is a nibble behind the end
        ASSERT_FALSE(kernels->unpack_nibbles(bad, out)) << size;
      }
    }
  }
}

}  // namespace
}  // namespace bowhead::compression
