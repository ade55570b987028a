// SPDX-License-Identifier: Apache-2.0
#include "base/backoff.h"

#include <linux/futex.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>

#include "base/clock.h"

namespace bowhead {
namespace {

constexpr uint32_t kSpins = 128;  // some microseconds
constexpr uint64_t kAwakeNs = 2'000'000, kSleepNsMax = 200'000;

}  // namespace

void cpu_relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// Both exchanges are sequentially consistent: what a thread stored before it rang is visible to the
// sleeper that finds the bell rung, and a ring between that exchange and the wait changes the word
// that the kernel compares, so none is missed.
void Bell::ring() {
  if (rung_.exchange(1) == 0)
    syscall(SYS_futex, &rung_, FUTEX_WAKE_PRIVATE, 1, nullptr, nullptr, 0);
}

bool Bell::sleep(uint64_t ns) {
  const timespec most{0, static_cast<long>(ns)};
  // Returns at once if it was rung since it was looked at last.
  syscall(SYS_futex, &rung_, FUTEX_WAIT_PRIVATE, 0, &most, nullptr, 0);
  return rung_.exchange(0) != 0;
}

void Backoff::pause(bool may_sleep, Bell* bell) {
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
  const uint64_t sleep_ns = std::min(waited_ns / 16, kSleepNsMax);
  if (bell != nullptr) {
    if (bell->sleep(sleep_ns)) reset();
    return;
  }
  const timespec some{0, static_cast<long>(sleep_ns)};
  nanosleep(&some, nullptr);
}

}  // namespace bowhead
