// SPDX-License-Identifier: Apache-2.0
// What moving a job costs by the kernel and by copies, as it was measured on this device: which is
// faster depends on how long runs are, how many bytes there are, and on the machine.
//
// A job takes a fixed time, and the kernel's a time for each byte, which is more the smaller the
// units are that it moves; copies take a time for each run, which is looked up between measured
// lengths.
#pragma once

#include <array>
#include <cstdint>
#include <string>

#include "base/status.h"
#include "gpu/device.h"

namespace bowhead::gpu {

enum class Path {
  CHOOSE,  ///< what is expected to be faster
  KERNEL,
  COPIES
};

struct PathCosts {
  static constexpr std::array<uint64_t, 8> kRunBytes = {128,      512,       2 << 10,   8 << 10,
                                                        32 << 10, 128 << 10, 512 << 10, 2 << 20};
  struct Direction {
    double kernel_ns = 0;
    std::array<double, 5> kernel_byte_ns = {};  ///< in units of 1, 2, 4, 8, 16 bytes
    double copies_ns = 0;
    std::array<double, kRunBytes.size()> copy_ns = {};  ///< of a run that is so long
  };
  Direction spill, restore;

  /// KERNEL or COPIES, for so many bytes in runs of about so many.
  Path faster(bool spills, uint32_t unit_bytes, uint64_t run_bytes, uint64_t bytes) const;

  std::string to_json() const;
  /// DAMAGED: not what to_json() gave.
  static Result<PathCosts> from_json(const std::string& text);
};

/// Takes a few hundred milliseconds of the device's, and 64 MiB of its memory and of pinned memory
/// for that long. NO_SPACE, GPU_LOST, SYSTEM.
Result<PathCosts> measure_path_costs(Device& device);

/// Measured once per kind of GPU and driver on this machine, and kept in a file:
/// $XDG_CACHE_HOME/bowhead/gpu-paths-NAME-DRIVER.json, or under $HOME/.cache. Without a place to
/// keep it, once per process. To measure anew, delete it. The same statuses.
Result<PathCosts> path_costs(Device& device);

}  // namespace bowhead::gpu
