// SPDX-License-Identifier: Apache-2.0
// VfioDevice: a PCI function that the kernel gives to this process alone (linux/vfio.h). It needs
// an IOMMU, which lets the function reach the memory that this process maps for it and no other;
// and it is the way in which interrupts come to a process.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "base/status.h"
#include "base/unique_fd.h"

namespace bowhead::driver {

/// Sets Memory Space and Bus Master in the command register of a configuration space, which begins
/// at `at` of the file: without the latter a function reaches no memory. Returns SYSTEM.
Result<void> let_reach_memory(int file, uint64_t at);

class VfioDevice {
 public:
  /// `name`: 0000:01:00.0, bound to the driver vfio-pci; `group`: the number of its IOMMU group.
  /// Returns IN_USE (another process has it), SYSTEM.
  static Result<std::unique_ptr<VfioDevice>> open(const std::string& name,
                                                  const std::string& group);

  /// Lets the function reach this memory, which must outlive the object, by this address. Returns
  /// SYSTEM.
  Result<void> map(std::span<std::byte> memory, uint64_t address);
  /// let_reach_memory() of this function.
  Result<void> let_reach() const { return let_reach_memory(device_.get(), config_); }
  /// Readable once the function has signalled; to be read without waiting. SYSTEM: it has no
  /// interrupts.
  Result<std::shared_ptr<const UniqueFd>> interrupts();

  /// Registers of BAR 0. All bits are set where the function does not answer.
  uint32_t read(uint32_t offset) const;
  void write(uint32_t offset, uint32_t value) const;

 private:
  VfioDevice() = default;
  Result<uint64_t> place_of(uint32_t region) const;

  // Closed the last one first.
  UniqueFd container_, group_, device_;
  uint64_t registers_ = 0, config_ = 0;  // where they lie in the device's file: BAR 0; the space
};

}  // namespace bowhead::driver
