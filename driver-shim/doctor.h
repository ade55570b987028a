// SPDX-License-Identifier: Apache-2.0
// What is missing or set wrongly on this host for pools in CXL memory and in shared memory.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "driver-shim/health.h"
#include "driver-shim/inventory.h"
#include "driver-shim/media_errors.h"

namespace bowhead::shim {

enum class Level {
  OK,
  HINT,     ///< works, and could work better or for more users
  PROBLEM,  ///< something cannot work
  UNKNOWN,  ///< could not be found out
};

const char* name_of(Level level);  ///< ok, hint, problem, unknown

struct Finding {
  Level level = Level::OK;
  std::string subject;  ///< mem0, /dev/dax0.0, kernel, clock, ...
  std::string what;     ///< a sentence
  std::string why;      ///< why it matters; "" if `level` is OK
  std::string mend;     ///< a command for root, or what to do; "" if there is nothing to do
};

/// What files of the kernel do not tell.
struct ProcessLimits {
  std::optional<uint64_t> locked_bytes;  ///< that a process may lock; nullopt: no limit
  uint64_t shm_bytes = 0;                ///< size of the file system at /dev/shm; 0: not known
};
ProcessLimits read_limits();

struct Examination {
  const HostFiles& files;
  const Inventory& inventory;
  const MediaErrors& errors;
  const std::vector<Result<Health>>& health;  ///< of each memory device
  ProcessLimits limits;
};

/// The findings, problems first.
std::vector<Finding> examine(const Examination& host);

/// Problems first, then hints, what could not be found out, and what is good.
void sort_by_urgency(std::vector<Finding>& findings);

}  // namespace bowhead::shim
