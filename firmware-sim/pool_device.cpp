// SPDX-License-Identifier: Apache-2.0
#include "firmware-sim/pool_device.h"

#include <bowhead/format/pci.h>
#include <fmt/format.h>
#include <unistd.h>

#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include "base/assert.h"
#include "base/clock.h"

namespace bowhead::device {
namespace {

/// Whether other hosts of a pool are up.
class OtherHosts {
 public:
  OtherHosts(Pool& pool, uint32_t host, const SharingTimes& times)
      : pool_(pool), host_(host), times_(times) {}

  /// No heartbeat but that of this host has moved for limit_ms(). To be asked often.
  bool are_gone() {
    const uint64_t now = now_ns();
    if (now - looked_ns_ < times_.heartbeat_ms * kNsOfMs) return false;
    // A process that stood still itself has seen nothing.
    if (now - looked_ns_ > limit_ms() * kNsOfMs / 2) moved_ns_ = now;
    looked_ns_ = now;
    auto seen = pool_.heartbeats();
    if (!seen) return false;  // why it cannot be read ends the device
    (*seen)[host_] = 0;
    if (*seen != seen_) {
      seen_ = std::move(*seen);
      moved_ns_ = now;
    }
    return now - moved_ns_ > limit_ms() * kNsOfMs;
  }
  /// Sooner than a host can be declared dead.
  uint64_t limit_ms() const { return uint64_t{times_.dead_ms} * 3 / 4; }

 private:
  static constexpr uint64_t kNsOfMs = 1'000'000;

  Pool& pool_;
  const uint32_t host_;
  const SharingTimes times_;
  std::vector<uint64_t> seen_;
  uint64_t looked_ns_ = 0, moved_ns_ = 0;
};

/// The descriptor means something in this process alone.
Error about_memory(Error error, const std::string& locator) {
  std::string text = error.message();
  constexpr std::string_view kMemory = "the memory of the window";
  for (size_t at = 0; (at = text.find(locator, at)) != std::string::npos; at += kMemory.size())
    text.replace(at, locator.size(), kMemory);
  return {error.status, std::move(text)};
}

}  // namespace

PoolDevice::PoolDevice(uint32_t host, const Options& options, Say say)
    : host_(host), options_(options), say_(std::move(say)) {
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
      if (auto served = serve(memory, bytes); !served) {
        set({BH_PCI_FAILED, served.error()});
        if (!stopped_) tell(served.error().message());
      }
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

Result<void> PoolDevice::serve(const UniqueFd& memory, uint64_t bytes) {
  const std::string locator = fmt::format("fd:{}", memory.get());
  OpenOptions open;
  open.host = host_;
  open.cancelled = [this] { return stopped_.load(std::memory_order_relaxed); };
  auto pool = Pool::open(locator, open);
  if (!pool) return about_memory(pool.error(), locator);
  const auto info = pool->info();
  if (!info) return about_memory(info.error(), locator);
  if (info->size_bytes > bytes)
    return Error{Status::INVALID_ARGUMENT,
                 fmt::format("the pool has {} bytes, and the window {}", info->size_bytes, bytes)};
  if (info->hosts.size() == 1)
    return Error{Status::NOT_SUPPORTED,
                 "the pool was made for one host, and the device would be another: make it by "
                 "`bowhead pool create --hosts 2`"};
  const auto is_alone = serve(*pool, *info);
  if (!is_alone) return about_memory(is_alone.error(), locator);
  if (!*is_alone) return {};
  (void)pool->leave();  // refused if another process of this machine is the host, too
  return Error{Status::CLOSED,
               "no process of this machine has the pool open: the device let go of its memory"};
}

/// Until stop(), or until it is alone in the pool: then true.
Result<bool> PoolDevice::serve(Pool& pool, const PoolInfo& info) {
  const auto device = Device::make(pool, options_);
  if (!device) return device.error();
  OtherHosts others(pool, host_, info.times);
  {
    const std::lock_guard lock(mutex_);
    standing_ = {BH_PCI_READY, {}};
    device_ = device->get();
  }
  tell(fmt::format("serves pool {} as host {}", info.pool_id, host_));
  bool is_alone = false;
  const auto served = (*device)->serve([&] {
    is_alone = others.are_gone();
    return is_alone || stopped_.load(std::memory_order_relaxed);
  });
  const std::lock_guard lock(mutex_);
  device_ = nullptr;
  return served ? Result<bool>(is_alone) : served.error();
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
