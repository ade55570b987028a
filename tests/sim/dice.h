// SPDX-License-Identifier: Apache-2.0
// Dice: random numbers for the frequent draws of a run, hence without a call and without a division
// (splitmix64). The same numbers for the same seed everywhere.
#pragma once

#include <cstdint>

namespace bowhead::sim {

class Dice {
 public:
  explicit Dice(uint64_t seed) : state_(seed) {}

  uint64_t next() {
    uint64_t z = state_ += 0x9E3779B97F4A7C15u;
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
    z = (z ^ z >> 27) * 0x94D049BB133111EBu;
    return z ^ z >> 31;
  }
  /// 0 .. n-1, equally likely to within n / 2^64; n > 0.
  uint64_t below(uint64_t n) {
    return static_cast<uint64_t>(static_cast<unsigned __int128>(next()) * n >> 64);
  }

 private:
  uint64_t state_;
};

}  // namespace bowhead::sim
