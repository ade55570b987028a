// SPDX-License-Identifier: Apache-2.0
// The planes with Neon, which every 64-bit Arm CPU has: 16 channels at a time.
#include <arm_neon.h>
#include <string.h>

#include <algorithm>
#include <utility>

#include "compression/planes.h"

#define BOWHEAD_VECTOR_BYTES 16
#include "compression/bit_sink.h"
#include "compression/planes_lanes.h"

namespace bowhead::compression {
namespace {

uint32_t top_bits(U8 bytes) {
  const U8 bits = (bytes >> 7) << (counted<U8>(EachByte{}) & 7);
  return vaddv_u8(vget_low_u8(uint8x16_t(bits))) |
         static_cast<uint32_t>(vaddv_u8(vget_high_u8(uint8x16_t(bits)))) << 8;
}
I16 product(I16 a, I16 b) { return I16(vqrdmulhq_s16(int16x8_t(a), int16x8_t(b))); }
I16 saturated_sum(I16 a, I16 b) { return I16(vqaddq_s16(int16x8_t(a), int16x8_t(b))); }
I16 saturated_difference(I16 a, I16 b) { return I16(vqsubq_s16(int16x8_t(a), int16x8_t(b))); }

}  // namespace

const PlaneKernels kPlaneKernelsNeon = {largest_exponents, split,         count_rests, merge,
                                        differences,       centres,       middles,     nibbles_size,
                                        pack_nibbles,      unpack_nibbles};

}  // namespace bowhead::compression
