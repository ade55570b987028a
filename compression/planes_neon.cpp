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
U8 looked_up(U8 table, U8 index) { return U8(vqtbl1q_u8(uint8x16_t(table), uint8x16_t(index))); }
I16 product(I16 a, I16 b) { return I16(vqrdmulhq_s16(int16x8_t(a), int16x8_t(b))); }
I16 saturated_sum(I16 a, I16 b) { return I16(vqaddq_s16(int16x8_t(a), int16x8_t(b))); }
I16 saturated_difference(I16 a, I16 b) { return I16(vqsubq_s16(int16x8_t(a), int16x8_t(b))); }

U16 sign_extended(const uint8_t* bytes) { return U16(vmovl_s8(load<int8x8_t>(bytes))); }
U16 centre_at(const TurningCentre& t, uint32_t channel) {
  const int16x8_t right = int16x8_t(load<I16>(t.right + channel));
  return U16(vshlq_s16(int16x8_t(load<I16>(t.state + channel)), vnegq_s16(right)));
}

/// The bits of four words, side by side, and their number.
struct Runs {
  U64 bits, counts;
};

U32 sums_of_pairs(U16 counts) { return (U32(counts) & 0xFFFF) + (U32(counts) >> 16); }
U64 sums_of_fours(U16 counts) {
  const U64 pairs = U64(sums_of_pairs(counts));
  return (pairs & 0xFFFFFFFF) + (pairs >> 32);
}

/// The lowest bits of words, side by side; the words have no other bits.
Runs join(U16 bits, U16 counts) {
  const U32 words = U32(bits);
  const U64 pairs = U64((words & 0xFFFF) | words >> 16 << (U32(counts) & 0xFFFF));
  const U64 count = U64(sums_of_pairs(counts));
  return {(pairs & 0xFFFFFFFF) | pairs >> 32 << (count & 0xFFFFFFFF), sums_of_fours(counts)};
}

/// The inverse, from a stream, of at most kMost bits for each four: words have other bits above
/// theirs.
template <uint32_t kMost>
U16 deal(U16 counts, BitSource& from) {
  const U64 run_counts = sums_of_fours(counts), count = U64(sums_of_pairs(counts));
  U64 runs{};
  from.take<kRuns, kMost>([&](uint32_t i, uint64_t run) {
    runs[i] = run;
    return run_counts[i];
  });
  const U32 pairs = U32((runs & 0xFFFFFFFF) | runs >> (count & 0xFFFFFFFF) << 32);
  return U16((pairs & 0xFFFF) | pairs >> (U32(counts) & 0xFFFF) << 16);
}

U16 ones_in(U16 words) { return U16(vpaddlq_u8(vcntq_u8(uint8x16_t(words)))); }

template <uint32_t kMost>
U16 take_fields(U16 masks, BitSource& from) {
  return deal<4 * kMost>(ones_in(masks), from) & masks;
}

template <uint32_t kMost>
void put_fields(U16 words, U16 masks, BitSink& to) {
  const Runs runs = join(words & masks, ones_in(masks));
  for (uint32_t i = 0; i < kRuns; ++i) to.add(runs.bits[i], static_cast<uint32_t>(runs.counts[i]));
}

U16 shifted_left(U16 words, U16 by) {
  const U32 w = U32(words), n = U32(by);
  return U16((w << (n & 0xFFFF) & 0xFFFF) | (w & 0xFFFF0000) << (n >> 16));
}
/// The number of bits of the nibbles that are not zero, for each pair of bytes.
U16 counts_of_pairs(U8 bits) { return (U16(bits) & 0xFF) + (U16(bits) >> 8); }

void put_nibbles(U8 bytes, BitSink& to) {
  const Nibbles nibbles = nibbles_of(bytes);
  const U8 count_low = nibbles.some_low() & 4;
  const U8 count = count_low + (nibbles.some_high() & 4);
  const U16 joined = U16(count_low == 0 ? nibbles.high : bytes);
  const U16 first = U16(count) & 0xFF;
  const Runs runs =
      join((joined & 0xFF) | shifted_left(joined >> 8, first), counts_of_pairs(count));
  for (uint32_t i = 0; i < kRuns; ++i) {
    const auto bits = static_cast<uint32_t>(runs.counts[i]), low = std::min(bits, 32u);
    to.add(runs.bits[i] & 0xFFFFFFFF, low);
    to.add(runs.bits[i] >> 32, bits - low);
  }
}

U8 take_nibbles(const uint8_t* map, BitSource& from) {
  uint32_t rows[2] = {};
  memcpy(&rows[0], map, kRuns);
  memcpy(&rows[1], map + kRuns, kRuns);
  const Words some = {U16(spread(rows[0])), U16(spread(rows[1]))};
  const U8 some_low = narrow(some), some_high = narrow({some.a >> 8, some.b >> 8});
  const U8 count = (some_low & 4) + (some_high & 4);
  const U16 pairs = deal<64>(counts_of_pairs(count), from);
  const U8 bytes = U8((pairs & 0xFF) | shifted_right(pairs, U16(count) & 0xFF) << 8);
  const Nibbles both = nibbles_of(bytes);
  const U8 high = some_low == 0 ? both.low : both.high;
  return (both.low & some_low) | (U8(U16(high) << 4) & some_high);
}

}  // namespace

const PlaneKernels kPlaneKernelsNeon = {largest_exponents, split,         count_rests, merge,
                                        differences,       centres,       middles,     nibbles_size,
                                        pack_nibbles,      unpack_nibbles};

}  // namespace bowhead::compression
