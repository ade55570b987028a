// SPDX-License-Identifier: Apache-2.0
// A warp computes the same sum that pools store.
#include "gpu/kernels/piece_sum.h"

#include <gtest/gtest.h>

#include <cstring>
#include <vector>

#include "base/checksum.h"
#include "base/random.h"

namespace bowhead::gpu {
namespace {

void expect_sum(const std::vector<uint8_t>& piece) {
  PieceData data;
  for (uint32_t step = 0; step < kPieceSteps; ++step) {
    Warp::each([&](uint32_t lane) {
      std::memcpy(&data[step][lane], piece.data() + step * kStepBytes + lane * kLaneBytes,
                  kLaneBytes);
    });
  }
  const Lanes<uint64_t> sum = piece_sum(data);
  const uint64_t expected = hash64(piece.data(), piece.size());
  Warp::each([&](uint32_t lane) { EXPECT_EQ(sum[lane], expected) << "lane " << lane; });
}

TEST(PieceSum, IsHash64OfRandomPieces) {
  Random random(1);
  std::vector<uint8_t> piece(kPieceBytes);
  for (int i = 0; i < 200; ++i) {
    for (uint8_t& byte : piece) byte = static_cast<uint8_t>(random.next());
    expect_sum(piece);
  }
}

TEST(PieceSum, SeesEveryByte) {
  std::vector<uint8_t> piece(kPieceBytes);
  expect_sum(piece);
  for (size_t i = 0; i < kPieceBytes; i += 7) {
    piece[i] = 0xFF;
    expect_sum(piece);
  }
}

TEST(Warp, SumsOverLanesThatDifferInTheBits) {
  Lanes<uint64_t> ones;
  Warp::each([&](uint32_t lane) { ones[lane] = uint64_t{1} << lane; });
  for (uint32_t bits = 0; bits < kWarpLanes; ++bits) {
    const Lanes<uint64_t> sums = Warp::sum(ones, bits);
    Warp::each([&](uint32_t lane) {
      uint64_t expected = 0;
      for (uint32_t other = 0; other < kWarpLanes; ++other) {
        if (((lane ^ other) & ~bits) == 0) expected += uint64_t{1} << other;
      }
      EXPECT_EQ(sums[lane], expected) << "lane " << lane << " bits " << bits;
    });
  }
}

}  // namespace
}  // namespace bowhead::gpu
