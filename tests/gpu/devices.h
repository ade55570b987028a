// SPDX-License-Identifier: Apache-2.0
// What the tests of devices share: which there are, host memory to register, and a gate in front of
// the twin's work.
#pragma once

#include <gtest/gtest.h>
#include <sys/mman.h>

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "gpu/device.h"

namespace bowhead::gpu {

#define ASSERT_DONE(result) ASSERT_EQ(message_of(result), "")
#define EXPECT_DONE(result) EXPECT_EQ(message_of(result), "")

template <class T>
std::string message_of(const Result<T>& result) {
  return result ? "" : std::string(status_name(result.status())) + ": " + result.error().message();
}

/// Anonymous memory, page-aligned, zero.
class Mapping {
 public:
  explicit Mapping(size_t size_bytes) : size_bytes_(size_bytes) {
    void* const data = mmap(nullptr, size_bytes, PROT_READ | PROT_WRITE,
                            MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    EXPECT_NE(data, MAP_FAILED);
    data_ = static_cast<std::byte*>(data);
  }
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;
  ~Mapping() { munmap(data_, size_bytes_); }

  std::byte* data() const { return data_; }
  size_t size_bytes() const { return size_bytes_; }

 private:
  std::byte* data_ = nullptr;
  size_t size_bytes_;
};

/// TwinOptions::before_work that counts who comes, and holds or loses whom a test wants held or
/// lost. Shared with the twin, since its threads may outlive a test's locals.
class Gate {
 public:
  bool pass() {
    std::unique_lock lock(mutex_);
    const size_t number = callers_.size();
    callers_.push_back(std::this_thread::get_id());
    changed_.notify_all();
    changed_.wait(lock, [&] { return number < held_from_ || number >= held_to_; });
    return number < lost_from_;
  }

  /// The next `count` that come are held until let_go(). Returns the number of the first.
  size_t hold_next(size_t count) {
    const std::lock_guard lock(mutex_);
    held_from_ = callers_.size();
    held_to_ = held_from_ + count;
    return held_from_;
  }
  /// Lets go the first `count` of those that are held.
  void let_go(size_t count = SIZE_MAX) {
    const std::lock_guard lock(mutex_);
    held_from_ = count < held_to_ - held_from_ ? held_from_ + count : held_to_;
    changed_.notify_all();
  }
  /// Whoever comes as that number, or later, meets a lost device.
  void lose_from(size_t number) {
    const std::lock_guard lock(mutex_);
    lost_from_ = number;
  }
  /// Until so many have come at all.
  void wait_for(size_t count) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return callers_.size() >= count; });
  }
  std::vector<std::thread::id> callers() {
    const std::lock_guard lock(mutex_);
    return callers_;
  }
  size_t count() { return callers().size(); }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::thread::id> callers_;
  size_t held_from_ = 0, held_to_ = 0, lost_from_ = SIZE_MAX;
};

inline std::unique_ptr<Device> gated_twin(const std::shared_ptr<Gate>& gate,
                                          TwinOptions options = {}) {
  options.before_work = [gate] { return gate->pass(); };
  return Device::twin(std::move(options));
}

/// Tests that hold for the twin and for a GPU; without one, its are skipped.
class EveryDevice : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    if (std::string(GetParam()) == "twin") {
      device_ = gated_twin(gate_);
      return;
    }
    auto opened = Device::open(0);
    if (!opened) GTEST_SKIP() << opened.error().message();
    device_ = std::move(*opened);
  }

  Device& device() { return *device_; }

  const std::shared_ptr<Gate> gate_ = std::make_shared<Gate>();  ///< of the twin
  std::unique_ptr<Device> device_;
};

inline std::string device_name(const testing::TestParamInfo<const char*>& info) {
  return info.param;
}

inline const auto kEveryDevice = testing::Values("twin", "gpu0");

}  // namespace bowhead::gpu
