// SPDX-License-Identifier: Apache-2.0
// Health of memory devices: the answer to the mailbox command Get Health Info, through libcxl,
// since sysfs does not have it. In a build without libcxl everything is NOT_SUPPORTED.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "base/status.h"

namespace bowhead::shim {

struct Health {
  std::vector<std::string> warnings;       ///< sentences; empty: the device reports none
  std::optional<int> life_used_percent;    ///< nullopt: not implemented by the device
  std::optional<int> temperature_celsius;  ///< of the device
  int dirty_shutdowns = 0;
  int volatile_errors = 0;    ///< corrected, since the last reset
  int persistent_errors = 0;  ///< corrected, since the last reset
};

/// Asks a device of this host, such as mem0. Returns NOT_SUPPORTED (this build, or the device does
/// not implement the command), SYSTEM (no such device, no permission for /dev/cxl/memN).
Result<Health> read_health(const std::string& memory_device);

}  // namespace bowhead::shim
