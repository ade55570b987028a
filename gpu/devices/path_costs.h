// SPDX-License-Identifier: Apache-2.0
// The costs of moving a job by the kernel and by copies, as measured on this device: which is
// faster depends on how long runs are, how many bytes there are, and on the machine.
//
// A job takes a fixed time, and the kernel's a time for each byte, which is more the smaller the
// units are that it moves; copies take a time for each run, which is looked up between measured
// lengths.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <filesystem>
#include <string>

#include "base/status.h"
#include "gpu/devices/device.h"

namespace bowhead::gpu {

enum class Path {
  CHOOSE,  ///< the path that is expected to be faster
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
  /// Empty: measured on such a device, now or earlier. Else these are assumed_path_costs(), and
  /// this is a sentence that says why nothing could be measured.
  std::string assumed_because;

  /// KERNEL or COPIES, for so many bytes in runs of about so many.
  Path faster(bool spills, uint32_t unit_bytes, uint64_t run_bytes, uint64_t bytes) const;

  std::string to_json() const;
  /// DAMAGED: not an output of to_json().
  static Result<PathCosts> from_json(const std::string& text);
};

/// Takes a few hundred milliseconds of the device's, and 64 MiB of its memory and 32 MiB of pinned
/// memory for that long. NO_SPACE, GPU_LOST, SYSTEM.
Result<PathCosts> measure_path_costs(Device& device);

/// An assumption for when nothing can be measured: a GPU on PCIe 5 x16 whose kernel moves 50 GB/s
/// in units of 8 or 16 bytes, and whose copies take 1 us each. `because` says why.
PathCosts assumed_path_costs(std::string because);

/// Where measured costs are kept, for all processes of a host.
struct PathCostsCache {
  std::filesystem::path folder;  ///< empty: nowhere
  /// How long a process waits for another one that measures: a few times as long as that takes.
  std::chrono::milliseconds wait = std::chrono::seconds(10);

  /// $XDG_CACHE_HOME/bowhead, or $HOME/.cache/bowhead; without either, nowhere.
  static PathCostsCache of_user();
  /// The file that costs on this host and on such a device are in: other costs are to be expected
  /// where host, kind of GPU, its link, or the driver differ.
  std::filesystem::path file_for(const DeviceInfo& info) const;
};

/// Costs as they are kept, or else measured and kept. One process of a host measures; others that
/// ask meanwhile wait for it, so that ranks that start together do not slow down each other's
/// measurement. It holds a lock on FILE.lock, which ends with the process. Assumed costs, which are
/// not kept, are returned where the device has no memory left to measure with, and where another
/// process measures for longer than `cache.wait`. GPU_LOST, SYSTEM.
Result<PathCosts> path_costs(Device& device, const PathCostsCache& cache);

/// The same with of_user(), looked up once per process; costs of the CPU device are not kept.
/// To measure anew, delete the file.
Result<PathCosts> path_costs(Device& device);

}  // namespace bowhead::gpu
