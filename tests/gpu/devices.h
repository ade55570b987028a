// SPDX-License-Identifier: Apache-2.0
// Shared by the tests of devices: the list of devices, host memory to register, and a gate in front
// of the CPU device's work.
#pragma once

#include <gtest/gtest.h>
#include <sys/mman.h>

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "gpu/devices/device.h"

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

/// CpuDeviceOptions::before_work that counts pieces of work, and holds or loses those that a test
/// selects. Shared with the CPU device, since its threads may outlive a test's locals.
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

  /// The next `count` pieces of work are held until let_go(). Returns the number of the first.
  size_t hold_next(size_t count) {
    const std::lock_guard lock(mutex_);
    held_from_ = callers_.size();
    held_to_ = held_from_ + count;
    return held_from_;
  }
  /// Releases the first `count` of the held pieces.
  void let_go(size_t count = SIZE_MAX) {
    const std::lock_guard lock(mutex_);
    held_from_ = count < held_to_ - held_from_ ? held_from_ + count : held_to_;
    changed_.notify_all();
  }
  /// Work with this number, or a later one, meets a lost device.
  void lose_from(size_t number) {
    const std::lock_guard lock(mutex_);
    lost_from_ = number;
  }
  /// Waits until this many pieces have arrived in total.
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

inline std::unique_ptr<Device> gated_cpu_device(const std::shared_ptr<Gate>& gate,
                                                CpuDeviceOptions options = {}) {
  options.before_work = [gate] { return gate->pass(); };
  return Device::cpu(std::move(options));
}

/// Another device, some of whose answers a test changes.
class WrappedDevice : public Device {
 public:
  explicit WrappedDevice(Device& device) : device_(device) {}

  const DeviceInfo& info() const override { return device_.info(); }
  Result<void*> allocate(size_t size_bytes) override { return device_.allocate(size_bytes); }
  Result<void*> allocate_pinned(size_t size_bytes) override {
    return device_.allocate_pinned(size_bytes);
  }
  void free(void* memory) override { device_.free(memory); }
  Result<PointerKind> classify(const void* pointer) override { return device_.classify(pointer); }
  Result<void> register_host(void* memory, size_t size_bytes, DeviceAccess access) override {
    return device_.register_host(memory, size_bytes, access);
  }
  Result<void> unregister_host(void* memory) override { return device_.unregister_host(memory); }
  Result<void*> device_address(void* registered) override {
    return device_.device_address(registered);
  }
  Result<Stream> make_stream(int priority) override { return device_.make_stream(priority); }
  void destroy_stream(Stream stream) override { device_.destroy_stream(stream); }
  Result<void> check_stream(Stream stream) override { return device_.check_stream(stream); }
  Result<Event> make_event() override { return device_.make_event(); }
  void destroy_event(Event event) override { device_.destroy_event(event); }
  Result<void> record(Event event, Stream stream) override { return device_.record(event, stream); }
  Result<void> wait(Stream stream, Event event) override { return device_.wait(stream, event); }
  Result<bool> is_done(Event event) override { return device_.is_done(event); }
  Result<void> synchronize(Event event) override { return device_.synchronize(event); }
  Result<void> notify(Stream stream, std::function<void()> callee) override {
    return device_.notify(stream, std::move(callee));
  }
  Result<void> copy(void* to, const void* from, size_t size_bytes, Stream stream) override {
    return device_.copy(to, from, size_bytes, stream);
  }
  Result<void> copy_batch(std::span<const CopyRun> runs, Stream stream) override {
    return device_.copy_batch(runs, stream);
  }
  Result<void> launch(const Work& work, Stream stream) override {
    return device_.launch(work, stream);
  }

 protected:
  Device& device_;
};

/// Tests that hold for the CPU device and for a GPU; without a GPU, its tests are skipped.
class EveryDevice : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    if (std::string(GetParam()) == "cpu") {
      device_ = gated_cpu_device(gate_);
      return;
    }
    auto opened = Device::open(0);
    if (!opened) GTEST_SKIP() << opened.error().message();
    device_ = std::move(*opened);
  }

  Device& device() { return *device_; }

  const std::shared_ptr<Gate> gate_ = std::make_shared<Gate>();  ///< of the CPU device
  std::unique_ptr<Device> device_;
};

inline std::string device_name(const testing::TestParamInfo<const char*>& info) {
  return info.param;
}

inline const auto kEveryDevice = testing::Values("cpu", "gpu0");

}  // namespace bowhead::gpu
