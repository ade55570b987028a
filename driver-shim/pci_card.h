// SPDX-License-Identifier: Apache-2.0
// PciCard: the device of a pool as a PCI function of this machine (bowhead/format/pci.h), where
// there is one: finds it, has it serve the pool, rings its doorbell. A pool that it can serve lies
// on one dax device, which is the window of its memory.
//
// A function without a driver is every process's that may open its files in sysfs. One that is
// bound to vfio-pci is the first process's that takes it, which then has its interrupts; the device
// serves the others too, as long as that process lives.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>

#include "base/status.h"
#include "base/unique_fd.h"
#include "driver-shim/host_files.h"
#include "driver-shim/vfio_device.h"
#include "pool/media/fault_guard.h"
#include "pool/types.h"

namespace bowhead::driver {

/// Shared memory of a file, mapped.
class MemoryMap {
 public:
  MemoryMap() = default;
  /// SYSTEM.
  static Result<MemoryMap> map(const UniqueFd& file, uint64_t bytes);
  MemoryMap(MemoryMap&& other) noexcept : bytes_(std::exchange(other.bytes_, {})) {}
  MemoryMap& operator=(MemoryMap&& other) noexcept {
    std::swap(bytes_, other.bytes_);
    return *this;
  }
  ~MemoryMap();

  std::span<std::byte> bytes() const { return bytes_; }

 private:
  std::span<std::byte> bytes_;
};

/// One thread at a time. A function can be unplugged at any moment; then there is none.
class PciCard {
 public:
  PciCard(const shim::HostFiles& files, const PoolInfo& pool);
  PciCard(const PciCard&) = delete;
  PciCard& operator=(const PciCard&) = delete;

  /// Looks for the function, unless it is known: the one that has this pool, or the first that has
  /// none. With `may_enable` it is enabled for this pool. Does not wait until it is up.
  void seek(bool may_enable);
  bool is_starting() const;  ///< this pool
  bool serves() const;       ///< this pool
  /// If it serves this pool: there are commands.
  void ring();
  /// Readable when there are completions, once signal_completion() asked for that; to be read
  /// without waiting. Null: there are no interrupts.
  std::shared_ptr<const UniqueFd> event() const { return event_; }
  void signal_completion();  ///< the next one
  /// Why the function of this machine does not serve, as far as that is known; "" if there is none.
  const std::string& trouble() const { return trouble_; }
  /// After is_starting(): if it failed, trouble() says why.
  void note_failure();

 private:
  struct Window {
    uint64_t address, bytes;
  };

  static std::optional<Window> window_of(const shim::HostFiles& files, const PoolInfo& pool);
  Result<void> find();
  Result<void> map(const std::string& folder);
  Result<void> take(const std::string& name);
  Result<void> greet() const;
  bool is_open() const { return !registers_.bytes().empty() || vfio_ != nullptr; }
  void let_go();
  uint32_t read(uint32_t offset) const;
  void write(uint32_t offset, uint32_t value) const;
  void write_long(uint32_t offset, uint64_t value) const;
  bool is_for_window() const;
  bool is_free() const;  ///< for this pool
  Result<void> enable();
  Result<void> let_reach_memory() const;
  std::string text() const;

  const shim::HostFiles files_;
  const std::optional<Window> window_;
  const std::string memory_;  // the path of the dax device
  std::string folder_;        // of the function that is mapped, in sysfs
  UniqueFd file_;
  MemoryMap registers_;
  FaultGuard guard_;       // an unplugged function faults; then zeros are in its place
  MemoryMap pool_memory_;  // for vfio_, which goes before it
  std::unique_ptr<VfioDevice> vfio_;
  std::shared_ptr<const UniqueFd> event_;
  std::string trouble_;
};

}  // namespace bowhead::driver
