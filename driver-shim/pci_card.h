// SPDX-License-Identifier: Apache-2.0
// PciCard: the device of a pool as a PCI function of this machine (bowhead/format/pci.h), where
// there is one: finds it, has it serve the pool, rings its doorbell. A pool that it can serve lies
// on one dax device, which is the window of its memory.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "base/status.h"
#include "base/unique_fd.h"
#include "driver-shim/host_files.h"
#include "pool/media/fault_guard.h"
#include "pool/types.h"

namespace bowhead::driver {

/// One thread at a time. A function can be unplugged at any moment; then there is none.
class PciCard {
 public:
  PciCard(const shim::HostFiles& files, const PoolInfo& pool);
  ~PciCard() { unmap(); }
  PciCard(const PciCard&) = delete;
  PciCard& operator=(const PciCard&) = delete;

  /// Looks for the function, unless it is known. With `may_enable` it is enabled for this pool, if
  /// it serves none. Does not wait until it is up.
  void seek(bool may_enable);
  bool is_starting() const;  ///< this pool
  bool serves() const;       ///< this pool
  /// If it serves this pool: there are commands.
  void ring();
  /// Why the function of this machine does not serve, as far as that is known; "" if there is none.
  const std::string& trouble() const { return trouble_; }

 private:
  struct Window {
    uint64_t address, bytes;
  };

  static std::optional<Window> window_of(const shim::HostFiles& files, const PoolInfo& pool);
  Result<void> find();
  Result<void> map(const std::string& folder);
  void unmap();
  uint32_t read(uint32_t offset) const;
  void write(uint32_t offset, uint32_t value) const;
  void write_long(uint32_t offset, uint64_t value) const;
  bool is_for_window() const;
  Result<void> enable();
  std::string text() const;

  const shim::HostFiles files_;
  const std::optional<Window> window_;
  UniqueFd file_;
  void* registers_ = nullptr;
  FaultGuard guard_;  // an unplugged function faults; then zeros are in its place
  std::string trouble_;
};

}  // namespace bowhead::driver
