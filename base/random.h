// SPDX-License-Identifier: Apache-2.0
// Random numbers: a small generator that gives the same numbers for the same seed everywhere, for
// tests, workloads and backoff; and the system's, for numbers that must differ between processes.
#pragma once

#include <cstdint>

namespace bowhead {

/// xoshiro256** seeded through splitmix64. Not for secrets. Not thread-safe.
class Random {
 public:
  explicit Random(uint64_t seed);

  uint64_t next();

  /// Each of 0 .. n-1 is equally likely; n > 0 (asserted).
  uint64_t below(uint64_t n);

 private:
  uint64_t state_[4];
};

/// 64 bits from the kernel (getrandom).
uint64_t random_u64_from_os();

}  // namespace bowhead
