// SPDX-License-Identifier: Apache-2.0
// A thread that does one thing again and again.
#pragma once

#include <chrono>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <new>
#include <thread>
#include <utility>

#include "base/thread.h"

namespace bowhead {

class Periodic {
 public:
  /// A thread that waits for resume(). SYSTEM: the system gives no thread. The caller makes it
  /// before it changes anything that it would have to undo.
  static Result<std::unique_ptr<Periodic>> make(std::chrono::milliseconds period,
                                                std::function<bool()> call) {
    std::unique_ptr<Periodic> made(new Periodic(period, std::move(call)));
    auto thread = start_thread([self = made.get()] { self->run(); });
    if (!thread) return thread.error();
    made->thread_ = std::move(*thread);
    return made;
  }
  ~Periodic() {
    {
      const std::lock_guard lock(mutex_);
      stop_ = true;
    }
    wake_.notify_all();
    if (thread_.joinable()) thread_.join();
  }
  Periodic(const Periodic&) = delete;
  Periodic& operator=(const Periodic&) = delete;

  /// Calls at once, and again `period` after each return, until one returns false, pause(), or the
  /// end of this object.
  void resume() {
    const std::lock_guard lock(mutex_);
    going_ = true;
    wake_.notify_all();
  }
  /// Returns when no call runs; none follows.
  void pause() {
    std::unique_lock lock(mutex_);
    going_ = false;
    wake_.notify_all();
    wake_.wait(lock, [this] { return !calling_; });
  }

 private:
  Periodic(std::chrono::milliseconds period, std::function<bool()> call)
      : period_(period), call_(std::move(call)) {}

  void run() {
    std::unique_lock lock(mutex_);
    for (;;) {
      wake_.wait(lock, [this] { return stop_ || going_; });
      if (stop_) return;
      calling_ = true;
      lock.unlock();
      const bool again = call();
      lock.lock();
      calling_ = false;
      wake_.notify_all();
      if (!again) return;
      wake_.wait_for(lock, period_, [this] { return stop_ || !going_; });
    }
  }

  /// A call that gets no memory ends early, and the next one goes on. It has let go of all locks;
  /// blocks and slabs that it was moving may stay held until this process ends.
  bool call() {
    try {
      return call_();
    } catch (const std::bad_alloc&) {
      return true;
    }
  }

  const std::chrono::milliseconds period_;
  const std::function<bool()> call_;
  std::mutex mutex_;
  std::condition_variable wake_;
  bool going_ = false, calling_ = false, stop_ = false;
  std::thread thread_;
};

}  // namespace bowhead
