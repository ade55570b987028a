// SPDX-License-Identifier: Apache-2.0
// Backoff: how a thread waits for memory that another process stores to.
#pragma once

#include <atomic>
#include <cstdint>

namespace bowhead {

/// Wakes the thread that sleeps in a pause, or has its next pause end at once. Thread-safe.
class Bell {
 public:
  void ring();

 private:
  friend class Backoff;
  /// Returns whether it was rung, now or since the last call.
  bool sleep(uint64_t ns);

  std::atomic<uint32_t> rung_{0};
};

/// Awake for two milliseconds, giving the CPU to others that want it. Then asleep for a 16th of the
/// time that it has waited, 200 us at most, so it notices that much late.
class Backoff {
 public:
  void pause() { pause(/*may_sleep=*/true, nullptr); }
  /// The same; once the bell is rung, it is awake again.
  void pause(Bell& bell) { pause(/*may_sleep=*/true, &bell); }
  /// The same without sleeping, while another thread waits for this one.
  void pause_awake() { pause(/*may_sleep=*/false, nullptr); }
  /// What it waited for came.
  void reset() { round_ = 0; }

 private:
  void pause(bool may_sleep, Bell* bell);

  uint32_t round_ = 0;
  uint64_t begun_ns_ = 0;  // of the rounds that yield
};

/// Inside a loop that waits: the other thread of the core runs better.
void cpu_relax();

}  // namespace bowhead
