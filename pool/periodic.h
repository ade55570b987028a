// SPDX-License-Identifier: Apache-2.0
// A thread that does one thing again and again.
#pragma once

#include <chrono>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <thread>

namespace bowhead {

class Periodic {
 public:
  /// Calls `call` at once, and again `period` after each return, until it returns false or this
  /// object goes.
  Periodic(std::chrono::milliseconds period, std::function<bool()> call)
      : period_(period), call_(std::move(call)), thread_([this] { run(); }) {}
  ~Periodic() {
    {
      const std::lock_guard lock(mutex_);
      stop_ = true;
    }
    wake_.notify_all();
    thread_.join();
  }
  Periodic(const Periodic&) = delete;
  Periodic& operator=(const Periodic&) = delete;

 private:
  void run() {
    std::unique_lock lock(mutex_);
    while (!stop_) {
      lock.unlock();
      const bool again = call_();
      lock.lock();
      if (!again) return;
      wake_.wait_for(lock, period_, [this] { return stop_; });
    }
  }

  const std::chrono::milliseconds period_;
  const std::function<bool()> call_;
  std::mutex mutex_;
  std::condition_variable wake_;
  bool stop_ = false;
  std::thread thread_;  ///< last: it uses all the rest
};

}  // namespace bowhead
