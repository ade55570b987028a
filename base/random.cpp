// SPDX-License-Identifier: Apache-2.0
#include "base/random.h"

#include <sys/random.h>

#include <bit>
#include <cerrno>

#include "base/assert.h"

namespace bowhead {
namespace {

uint64_t splitmix64(uint64_t& state) {
  state += 0x9E3779B97F4A7C15;
  uint64_t mixed = state;
  mixed = (mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9;
  mixed = (mixed ^ (mixed >> 27)) * 0x94D049BB133111EB;
  return mixed ^ (mixed >> 31);
}

}  // namespace

Random::Random(uint64_t seed) {
  for (uint64_t& word : state_) word = splitmix64(seed);
}

uint64_t Random::next() {
  const uint64_t result = std::rotl(state_[1] * 5, 7) * 9;
  const uint64_t shifted = state_[1] << 17;
  state_[2] ^= state_[0];
  state_[3] ^= state_[1];
  state_[1] ^= state_[2];
  state_[0] ^= state_[3];
  state_[2] ^= shifted;
  state_[3] = std::rotl(state_[3], 45);
  return result;
}

uint64_t Random::below(uint64_t n) {
  BOWHEAD_ASSERT(n > 0);
  // Numbers below 2^64 mod n are drawn again: the remaining ones are a whole multiple of n.
  const uint64_t uneven = -n % n;
  for (;;) {
    const uint64_t number = next();
    if (number >= uneven) return number % n;
  }
}

uint64_t random_u64_from_os() {
  uint64_t number;
  ssize_t got;
  do {
    got = getrandom(&number, sizeof(number), 0);
  } while (got < 0 && errno == EINTR);
  BOWHEAD_ASSERT(got == sizeof(number));
  return number;
}

}  // namespace bowhead
