// SPDX-License-Identifier: Apache-2.0
// PoolDevice: serves the pool in memory that another process handed over, in a thread of its own.
//
// It serves as long as another host of the pool is up: when no process of the machine has the pool
// open any more, the machine may use the memory for something else, and a device that went on would
// write into it. It also leaves the pool then, before it could declare a host dead that is only
// between two processes, and keep its space.
#pragma once

#include <atomic>
#include <functional>
#include <mutex>
#include <string>
#include <thread>

#include "firmware-sim/device.h"
#include "firmware-sim/pci_function.h"

namespace bowhead::device {

/// Methods are called by one thread.
class PoolDevice final : public WindowDevice {
 public:
  using Say = std::function<void(const std::string&)>;
  /// `host`: the slot that the device takes in each pool. `say` is told, by any thread, when it
  /// serves, and when and why it does not.
  PoolDevice(uint32_t host, const Options& options, Say say = {});
  ~PoolDevice() override { stop(); }

  void start(UniqueFd memory, uint64_t bytes) override;
  void stop() override;
  Standing standing() override;
  void ring() override;
  void set_interrupt(UniqueFd event) override;
  void interrupt() override;
  void signal_completion() override { signals_ = true; }

 private:
  Result<void> serve(const UniqueFd& memory, uint64_t bytes);
  Result<bool> serve(Pool& pool, const PoolInfo& info);
  void set(const Standing& standing);
  void tell(const std::string& text) const {
    if (say_) say_(text);
  }

  const uint32_t host_;
  Options options_;
  const Say say_;
  std::thread thread_;
  std::atomic<bool> stopped_{false};
  std::mutex mutex_;
  // Under the mutex.
  Standing standing_;
  Device* device_ = nullptr;  // while it serves

  std::atomic<bool> signals_{false};  // the next completion
  std::mutex event_mutex_;
  UniqueFd event_;  // under it
};

}  // namespace bowhead::device
