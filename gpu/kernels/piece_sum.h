// SPDX-License-Identifier: Apache-2.0
// The sum of a piece of a payload (base/checksum.h) by a warp that has it in its registers.
//
// It is XXH3-64 as doc/xxhash_spec.md of the repository Cyan4973/xxHash has it, for 4096 bytes, the
// seed 0 and the default secret: eight accumulators take stripes of 64 bytes, each word with a key
// that depends on the stripe. Of the 16 stripes between two scrambles it does not matter which
// comes first, so lanes take them side by side and add up what they have before each scramble.
#pragma once

#include <cstdint>

#include "gpu/kernels/kernels.h"
#include "gpu/kernels/warp.h"

namespace bowhead::gpu {
inline namespace BOWHEAD_LANES {

/// A piece in the registers of a warp: [step][lane] has its bytes from step * 512 + lane * 16 on.
inline constexpr uint32_t kStepBytes = kWarpLanes * kLaneBytes;
inline constexpr uint32_t kPieceSteps = kPieceBytes / kStepBytes;
using PieceData = Lanes<Bytes16>[kPieceSteps];

namespace xxh3 {

inline constexpr uint64_t kPrime32_1 = 0x9E3779B1, kPrime32_2 = 0x85EBCA77, kPrime32_3 = 0xC2B2AE3D;
inline constexpr uint64_t kPrime64_1 = 0x9E3779B185EBCA87, kPrime64_2 = 0xC2B2AE3D27D4EB4F,
                          kPrime64_3 = 0x165667B19E3779F9, kPrime64_4 = 0x85EBCA77C2B2AE63,
                          kPrime64_5 = 0x27D4EB2F165667C5;

/// The eight bytes of the secret from `offset` on.
BOWHEAD_WARP_CODE uint64_t secret_at(uint32_t offset) {
  // clang-format off
  static constexpr uint64_t kWords[] = {
      0xbe4ba423396cfeb8, 0x1cad21f72c81017c, 0xdb979083e96dd4de, 0x1f67b3b7a4a44072,
      0x78e5c0cc4ee679cb, 0x2172ffcc7dd05a82, 0x8e2443f7744608b8, 0x4c263a81e69035e0,
      0xcb00c391bb52283c, 0xa32e531b8b65d088, 0x4ef90da297486471, 0xd8acdea946ef1938,
      0x3f349ce33f76faa8, 0x1d4f0bc7c7bbdcf9, 0x3159b4cd4be0518a, 0x647378d9c97e9fc8,
      0xc3ebd33483acc5ea, 0xeb6313faffa081c5, 0x49daf0b751dd0d17, 0x9e68d429265516d3,
      0xfca1477d58be162b, 0xce31d07ad1b8f88f, 0x280416958f3acb45, 0x7e404bbbcafbd7af,
      0};
  // clang-format on
  const uint32_t bits = 8 * (offset % 8);
  return (kWords[offset / 8] >> bits) | (kWords[offset / 8 + 1] << 1 << (63 - bits));
}

BOWHEAD_WARP_CODE Bytes16 secret_pair_at(uint32_t offset) {
  return {secret_at(offset), secret_at(offset + 8)};
}

/// The initial values of the accumulators 2 * `pair` and 2 * `pair` + 1.
BOWHEAD_WARP_CODE Bytes16 initial(uint32_t pair) {
  switch (pair) {
    case 0:
      return {kPrime32_3, kPrime64_1};
    case 1:
      return {kPrime64_2, kPrime64_3};
    case 2:
      return {kPrime64_4, kPrime32_2};
    default:
      return {kPrime64_5, kPrime32_1};
  }
}

BOWHEAD_WARP_CODE uint64_t product_of_halves(uint64_t word) {
  return (word & 0xFFFFFFFF) * (word >> 32);
}

BOWHEAD_WARP_CODE uint64_t scrambled(uint64_t word, uint64_t key) {
  return (word ^ (word >> 47) ^ key) * kPrime32_1;
}

BOWHEAD_WARP_CODE uint64_t folded_product(uint64_t a, uint64_t b) {
  const unsigned __int128 product = static_cast<unsigned __int128>(a) * b;
  return static_cast<uint64_t>(product) ^ static_cast<uint64_t>(product >> 64);
}

BOWHEAD_WARP_CODE uint64_t avalanche(uint64_t word) {
  word = (word ^ (word >> 37)) * 0x165667919E3779F9;
  return word ^ (word >> 32);
}

}  // namespace xxh3

/// hash64() of the piece, in all lanes.
BOWHEAD_WARP_CODE Lanes<uint64_t> piece_sum(const PieceData& data) {
  // A lane has 16 bytes of every eighth stripe, and the pair of accumulators that these go to.
  constexpr uint32_t kPairs = 4, kStepsToScramble = 2;
  constexpr uint32_t kScrambles = kPieceSteps / kStepsToScramble - 1;
  Lanes<uint64_t> low, high;
  Warp::each([&](uint32_t lane) {
    const Bytes16 begin = xxh3::initial(lane % kPairs);
    low[lane] = begin.low;
    high[lane] = begin.high;
  });
  BOWHEAD_UNROLL
  for (uint32_t round = 0; round <= kScrambles; ++round) {
    Lanes<uint64_t> more_low, more_high;
    Warp::each([&](uint32_t lane) {
      more_low[lane] = more_high[lane] = 0;
      BOWHEAD_UNROLL
      for (uint32_t i = 0; i < kStepsToScramble; ++i) {
        const uint32_t step = round * kStepsToScramble + i;
        const uint32_t stripe = (i * kWarpLanes + lane) / kPairs;
        // The last stripe of all has a key of its own, one byte further on.
        const uint32_t is_last = step == kPieceSteps - 1 && lane >= kWarpLanes - kPairs;
        const Bytes16 key = xxh3::secret_pair_at(stripe * 8 + lane % kPairs * 16 + is_last);
        const Bytes16 words = data[step][lane];
        more_low[lane] += words.high + xxh3::product_of_halves(words.low ^ key.low);
        more_high[lane] += words.low + xxh3::product_of_halves(words.high ^ key.high);
      }
    });
    more_low = Warp::sum(more_low, kWarpLanes - kPairs);
    more_high = Warp::sum(more_high, kWarpLanes - kPairs);
    Warp::each([&](uint32_t lane) {
      low[lane] += more_low[lane];
      high[lane] += more_high[lane];
      if (round == kScrambles) return;
      const Bytes16 key = xxh3::secret_pair_at(128 + lane % kPairs * 16);
      low[lane] = xxh3::scrambled(low[lane], key.low);
      high[lane] = xxh3::scrambled(high[lane], key.high);
    });
  }
  Lanes<uint64_t> result;
  Warp::each([&](uint32_t lane) {
    const Bytes16 key = xxh3::secret_pair_at(11 + lane % kPairs * 16);
    result[lane] = xxh3::folded_product(low[lane] ^ key.low, high[lane] ^ key.high);
  });
  result = Warp::sum(result, kPairs - 1);
  Warp::each([&](uint32_t lane) {
    result[lane] = xxh3::avalanche(result[lane] + kPieceBytes * xxh3::kPrime64_1);
  });
  return result;
}

}  // namespace BOWHEAD_LANES
}  // namespace bowhead::gpu
