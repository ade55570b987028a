// SPDX-License-Identifier: Apache-2.0
#include "tools/program/machine.h"

#include <fmt/format.h>
#include <sched.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <sstream>

#include "base/cpu.h"
#include "tools/program/version.h"

namespace bowhead {
namespace {

/// The first line of a file; "" if there is none.
std::string first_line(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

/// A field of /proc/meminfo; 0 if it is missing.
uint64_t meminfo_kib(const std::string& name) {
  std::ifstream file("/proc/meminfo");
  std::string line;
  while (std::getline(file, line)) {
    if (line.rfind(name + ":", 0) == 0) {
      return std::strtoull(line.c_str() + name.size() + 1, nullptr, 10);
    }
  }
  return 0;
}

/// The word in brackets, e.g. "madvise" of "always [madvise] never".
std::string chosen(const std::string& setting) {
  const size_t begin = setting.find('[');
  const size_t end = setting.find(']');
  if (begin == std::string::npos || end == std::string::npos) return "unknown";
  return setting.substr(begin + 1, end - begin - 1);
}

std::vector<int> usable_cpus() {
  cpu_set_t set;
  std::vector<int> cpus;
  if (sched_getaffinity(0, sizeof set, &set) == 0) {
    for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
      if (CPU_ISSET(cpu, &set)) cpus.push_back(cpu);
    }
  }
  if (cpus.empty()) cpus.push_back(0);
  return cpus;
}

}  // namespace

Machine this_machine() {
  Machine machine;
  machine.cpu = cpu_features().model;
  machine.cpus = usable_cpus();
  const long cache = sysconf(_SC_LEVEL3_CACHE_SIZE);
  machine.last_level_cache_bytes = cache > 0 ? static_cast<uint64_t>(cache) : 0;
  machine.memory_bytes = meminfo_kib("MemTotal") * 1024;
  utsname name{};
  if (uname(&name) == 0) machine.kernel = fmt::format("{} {}", name.sysname, name.release);
  const std::string thp = "/sys/kernel/mm/transparent_hugepage/";
  machine.hugepages = fmt::format(
      "{} reserved; transparent: {}, for shared memory: {}", meminfo_kib("HugePages_Total"),
      chosen(first_line(thp + "enabled")), chosen(first_line(thp + "shmem_enabled")));
  machine.commit = built_commit();
  return machine;
}

uint64_t available_memory_bytes() { return meminfo_kib("MemAvailable") * 1024; }

}  // namespace bowhead
