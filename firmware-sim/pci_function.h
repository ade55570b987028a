// SPDX-License-Identifier: Apache-2.0
// PciFunction: the device as a PCI function: its configuration space, and the registers by which a
// driver enables it for the pool in some memory of its machine (bowhead/format/pci.h).
#pragma once

#include <array>
#include <optional>
#include <string>
#include <utility>

#include "base/status.h"
#include "base/unique_fd.h"
#include "firmware-sim/vfio_user.h"

namespace bowhead::device {

/// Runs the device of a pool that lies in memory of another process.
class WindowDevice {
 public:
  struct Standing {
    uint32_t state = 0;  ///< BH_PCI_DISABLED, ...
    Error why = {};      ///< of BH_PCI_FAILED
  };

  virtual ~WindowDevice() = default;
  /// Begins, for the pool that starts with the file and has so many bytes at most. Does not wait
  /// until it is up. It does not run.
  virtual void start(UniqueFd memory, uint64_t bytes) = 0;
  /// Nothing of it uses the memory any more when this returns.
  virtual void stop() = 0;
  virtual Standing standing() = 0;
  virtual void ring() = 0;  ///< there are commands
  /// The eventfd to signal, whether it runs or not; negative: there is none.
  virtual void set_interrupt(UniqueFd event) = 0;
  virtual void interrupt() = 0;          ///< now
  virtual void signal_completion() = 0;  ///< the next one, once
};

/// Not thread-safe.
class PciFunction final : public VfioFunction {
 public:
  /// Both must outlive it. `has_interrupt`: MSI-X.
  PciFunction(const DmaMappings& mappings, WindowDevice& device, bool has_interrupt);

  uint64_t region_bytes(uint32_t region) const override;
  void read(uint32_t region, uint64_t offset, std::span<std::byte> to) override;
  void write(uint32_t region, uint64_t offset, std::span<const std::byte> from) override;
  void reset() override;
  void release(const DmaMapping& mapping) override;
  bool has_interrupt() const override { return has_interrupt_; }
  void set_interrupt(UniqueFd event) override { device_.set_interrupt(std::move(event)); }
  void interrupt() override { device_.interrupt(); }

  static constexpr uint64_t kConfigBytes = 256;

 private:
  void reset_config();
  /// By Bus Master of its command register: else a function reaches no memory.
  bool may_reach_memory() const;
  WindowDevice::Standing standing();
  void write_config(uint64_t offset, std::span<const std::byte> from);
  void write_register(uint64_t offset, uint32_t value);
  void enable();
  Result<UniqueFd> window_file() const;
  void disable();

  const DmaMappings& mappings_;
  WindowDevice& device_;
  const bool has_interrupt_;
  std::array<std::byte, kConfigBytes> config_{};
  uint64_t window_ = 0, bytes_ = 0;
  bool is_started_ = false;       // the device, for the window
  std::optional<Error> refused_;  // why it was not started, or was stopped
};

}  // namespace bowhead::device
