// SPDX-License-Identifier: Apache-2.0
#include "base/backoff.h"

#include <sched.h>
#include <time.h>

#include <algorithm>

namespace bowhead {
namespace {

constexpr uint32_t kSpins = 128;  // some microseconds
constexpr uint64_t kAwakeNs = 2'000'000, kSleepNsMax = 200'000;

uint64_t now_ns() {
  timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return static_cast<uint64_t>(t.tv_sec) * 1'000'000'000u + static_cast<uint64_t>(t.tv_nsec);
}

}  // namespace

void cpu_relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

void Backoff::pause(bool may_sleep) {
  if (round_ < kSpins) {
    if (++round_ == kSpins) begun_ns_ = now_ns();
    cpu_relax();
    return;
  }
  const uint64_t waited_ns = may_sleep ? now_ns() - begun_ns_ : 0;
  if (waited_ns < kAwakeNs) {
    sched_yield();
    return;
  }
  const timespec some{0, static_cast<long>(std::min(waited_ns / 16, kSleepNsMax))};
  nanosleep(&some, nullptr);
}

}  // namespace bowhead
