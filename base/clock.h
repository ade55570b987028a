// SPDX-License-Identifier: Apache-2.0
// The clock of this machine that never goes back.
#pragma once

#include <time.h>

#include <cstdint>

namespace bowhead {

/// CLOCK_MONOTONIC, as std::chrono::steady_clock has it: the same in all processes.
inline uint64_t now_ns() {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<uint64_t>(now.tv_sec) * 1'000'000'000 + static_cast<uint64_t>(now.tv_nsec);
}

}  // namespace bowhead
