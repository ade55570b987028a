// SPDX-License-Identifier: Apache-2.0
// PoolDevice: serves the pool in memory that another process handed over, in a thread of its own.
#pragma once

#include <atomic>
#include <mutex>
#include <thread>

#include "firmware-sim/device.h"
#include "firmware-sim/pci_function.h"

namespace bowhead::device {

/// Methods are called by one thread.
class PoolDevice final : public WindowDevice {
 public:
  /// `host`: the slot that the device takes in each pool.
  PoolDevice(uint32_t host, const Options& options);
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
  void set(const Standing& standing);

  const uint32_t host_;
  Options options_;
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
