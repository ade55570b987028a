// SPDX-License-Identifier: Apache-2.0
// Memory whose pages the kernel holds in place, as it does for the driver of a device. The CPU
// device (Device::cpu()) pins registered host memory so, and is refused the same memory that a
// driver would be refused.
#pragma once

#include <cstddef>
#include <string>

#include "base/status.h"
#include "gpu/devices/device.h"

namespace bowhead::gpu {

/// Held until the object goes. The pages may be unmapped before.
class PinnedRange {
 public:
  /// Why this process cannot pin for writing, without a limit: the kernel offers no io_uring to it,
  /// or its locked memory is limited. "": it can.
  static std::string fault();

  /// Pins page-aligned memory for a device's reads and writes. Returns NOT_SUPPORTED: the mapping
  /// is read-only, or of a file whose filesystem has to know of each write; LIMIT_REACHED: no more
  /// memory or descriptors for it; SYSTEM.
  /// READ: keeps the pages in memory (mlock()), since Linux has no call for processes that pins
  /// without write permission. So two of those may not overlap.
  static Result<PinnedRange> pin(void* memory, size_t size_bytes, DeviceAccess access);

  PinnedRange() = default;
  PinnedRange(PinnedRange&& other) noexcept;
  PinnedRange& operator=(PinnedRange&& other) noexcept;
  ~PinnedRange();

 private:
  int ring_ = -1;           ///< an io_uring that has the pages as fixed buffers
  void* locked_ = nullptr;  ///< or they are locked
  size_t locked_bytes_ = 0;
};

}  // namespace bowhead::gpu
