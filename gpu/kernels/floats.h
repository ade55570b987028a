// SPDX-License-Identifier: Apache-2.0
// Numbers of 16 bits as floats, and back, by a lane.
#pragma once

#include <bit>
#include <cstdint>

#include "gpu/kernels/kernels.h"
#include "gpu/kernels/warp.h"

#ifdef __CUDACC__
#include <cuda_fp16.h>
#endif

namespace bowhead::gpu {

BOWHEAD_WARP_CODE float float_from_fp16(uint32_t bits) {
#ifdef __CUDACC__
  return __half2float(__ushort_as_half(static_cast<unsigned short>(bits)));
#else
  // Shifted to where a float has them, exponents are 112 too low, which a product corrects, also
  // for numbers without a leading one. The largest exponent stays the largest.
  const uint32_t shifted = (bits & 0x7FFF) << 13;
  const bool is_special = (bits & 0x7C00) == 0x7C00;
  const float value = is_special ? std::bit_cast<float>(shifted | 0x7F800000)
                                 : std::bit_cast<float>(shifted) * 0x1p112f;
  return std::bit_cast<float>(std::bit_cast<uint32_t>(value) | (bits & 0x8000) << 16);
#endif
}

/// The nearest bf16, of two the even one; NaN stays NaN.
BOWHEAD_WARP_CODE uint32_t bf16_from_float(float value) {
  const auto bits = __builtin_bit_cast(uint32_t, value);
  if ((bits & 0x7FFFFFFF) > 0x7F800000) return bits >> 16 | 0x40;
  return (bits + 0x7FFF + (bits >> 16 & 1)) >> 16;
}
BOWHEAD_WARP_CODE uint32_t fp16_from_float(float value) {
#ifdef __CUDACC__
  return __half_as_ushort(__float2half_rn(value));
#else
  const uint32_t sign = std::bit_cast<uint32_t>(value) >> 16 & 0x8000;
  const float size = std::fabs(value);
  if (!(size < 65520)) return sign | (std::isnan(value) ? 0x7E00 : 0x7C00);
  // In the sum a float's unit is an fp16's last place: it is rounded there, as all sums are.
  const float least = 0x1p-14f;
  int exponent = 0;
  std::frexp(size < least ? least : size, &exponent);
  const float magic = std::ldexp(1.5f, exponent - 11 + 23);
  const float rounded = (size + magic) - magic;
  const auto bits = std::bit_cast<uint32_t>(rounded * 0x1p-112f);
  return sign | bits >> 13;
#endif
}

/// 16 bytes as floats.
struct FourFloats {
  float at[4];
};

/// Eight numbers, BF16 or FP16.
template <NumberFormat kNumber>
BOWHEAD_WARP_CODE void unpack(Bytes16 from, float (&to)[8]) {
  BOWHEAD_UNROLL
  for (uint32_t i = 0; i < 8; ++i) {
    const auto word = static_cast<uint32_t>((i < 4 ? from.low : from.high) >> (i % 4 / 2 * 32));
    if constexpr (kNumber == NumberFormat::BF16) {
      to[i] = __builtin_bit_cast(float, i % 2 == 0 ? word << 16 : word & 0xFFFF0000);
    } else {
      to[i] = float_from_fp16(i % 2 == 0 ? word & 0xFFFF : word >> 16);
    }
  }
}

}  // namespace bowhead::gpu
