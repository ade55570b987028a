// SPDX-License-Identifier: Apache-2.0
// The machine on which a figure was measured, as far as the system reports it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace bowhead {

struct Machine {
  std::string cpu;
  std::vector<int> cpus;                ///< the CPUs that this process may use, in order
  uint64_t last_level_cache_bytes = 0;  ///< 0: unknown
  uint64_t memory_bytes = 0;
  std::string kernel;
  std::string hugepages;  ///< the system's settings, in words
  std::string commit;     ///< built_commit()
};

Machine this_machine();

/// Memory that can be allocated now without swapping.
uint64_t available_memory_bytes();

}  // namespace bowhead
