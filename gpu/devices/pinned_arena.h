// SPDX-License-Identifier: Apache-2.0
// Memory that jobs borrow, and give back for the next: pinned, and with the descriptors of kernels,
// as much of the device's own. Memory in which a copy may still arrive, when a device was lost or
// does not say that it is through, is not given back: it is in quarantine until the process ends,
// neither used again nor freed.
//
// Thread-safety: none.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/status.h"
#include "gpu/devices/device.h"

namespace bowhead::gpu {

struct PinnedRoom {
  std::byte* pinned = nullptr;  ///< null: none
  uint8_t* address = nullptr;   ///< of the same for kernels
  std::byte* device = nullptr;  ///< null: it was not asked for
  size_t size_bytes = 0;        ///< of each
};

class PinnedArena {
 public:
  /// Pinned memory takes so many bytes at most, lent or not.
  PinnedArena(Device& device, uint64_t most_pinned_bytes)
      : device_(device), most_pinned_bytes_(most_pinned_bytes) {}
  PinnedArena(const PinnedArena&) = delete;
  PinnedArena& operator=(const PinnedArena&) = delete;
  ~PinnedArena();  ///< frees the memory that was given back

  /// 256-byte-aligned. NO_SPACE: jobs have all that pinned memory may take, or the machine or the
  /// device has no more; GPU_LOST, SYSTEM.
  Result<PinnedRoom> take(size_t size_bytes, bool on_device);
  /// When no queued work uses it. Does nothing if `room` is empty; then it is.
  void give_back(PinnedRoom& room);

 private:
  void free(const PinnedRoom& room);

  Device& device_;
  const uint64_t most_pinned_bytes_;
  uint64_t pinned_bytes_ = 0;  ///< lent or not
  std::vector<PinnedRoom> idle_;
};

}  // namespace bowhead::gpu
