// SPDX-License-Identifier: Apache-2.0
#include "firmware-sim/pool_device.h"

#include <bowhead/format/pci.h>
#include <fmt/format.h>
#include <unistd.h>

#include <system_error>
#include <utility>

#include "base/assert.h"

namespace bowhead::device {

PoolDevice::PoolDevice(uint32_t host, const Options& options) : host_(host), options_(options) {
  options_.completed = [this] {
    // Relaxed: a thread that sees the request late misses one signal, and the driver looks for
    // completions every 2 ms without one.
    if (signals_.load(std::memory_order_relaxed) && signals_.exchange(false)) interrupt();
  };
}

void PoolDevice::set_interrupt(UniqueFd event) {
  const std::lock_guard lock(event_mutex_);
  event_ = std::move(event);
}

void PoolDevice::interrupt() {
  const std::lock_guard lock(event_mutex_);
  const uint64_t one = 1;
  // If it cannot count further, it is signalled already.
  if (event_.get() >= 0) (void)!write(event_.get(), &one, sizeof one);
}

void PoolDevice::start(UniqueFd memory, uint64_t bytes) {
  BOWHEAD_ASSERT(!thread_.joinable());
  stopped_ = signals_ = false;
  set({BH_PCI_STARTING, {}});
  try {
    thread_ = std::thread([this, memory = std::move(memory), bytes] {
      if (auto served = serve(memory, bytes); !served) set({BH_PCI_FAILED, served.error()});
    });
  } catch (const std::system_error& error) {
    set({BH_PCI_FAILED, {Status::SYSTEM, error.what()}});
  }
}

void PoolDevice::stop() {
  stopped_ = true;
  ring();
  if (thread_.joinable()) thread_.join();
  set({BH_PCI_DISABLED, {}});
}

/// Until stop().
Result<void> PoolDevice::serve(const UniqueFd& memory, uint64_t bytes) {
  OpenOptions open;
  open.host = host_;
  auto pool = Pool::open(fmt::format("fd:{}", memory.get()), open);
  if (!pool) return pool.error();
  const auto info = pool->info();
  if (!info) return info.error();
  if (info->size_bytes > bytes)
    return Error{Status::INVALID_ARGUMENT,
                 fmt::format("the pool has {} bytes, and the window {}", info->size_bytes, bytes)};
  const auto device = Device::make(*pool, options_);
  if (!device) return device.error();
  {
    const std::lock_guard lock(mutex_);
    standing_ = {BH_PCI_READY, {}};
    device_ = device->get();
  }
  auto served = (*device)->serve([this] { return stopped_.load(std::memory_order_relaxed); });
  const std::lock_guard lock(mutex_);
  device_ = nullptr;
  return served;
}

void PoolDevice::set(const Standing& standing) {
  const std::lock_guard lock(mutex_);
  standing_ = standing;
}

WindowDevice::Standing PoolDevice::standing() {
  const std::lock_guard lock(mutex_);
  return standing_;
}

void PoolDevice::ring() {
  const std::lock_guard lock(mutex_);
  if (device_ != nullptr) device_->ring();
}

}  // namespace bowhead::device
