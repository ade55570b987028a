// SPDX-License-Identifier: Apache-2.0
#include "driver-shim/doctor.h"

#include <fmt/format.h>
#include <sys/resource.h>
#include <sys/statvfs.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "driver-shim/advice.h"

namespace bowhead::shim {
namespace {

using Findings = std::vector<Finding>;

constexpr uint64_t kGib = 1 << 30;
constexpr const char* kUdevRule =
    R"(for the group that the engines run in, such as kv: )"
    R"(echo 'SUBSYSTEM=="dax", KERNEL=="dax*", GROUP="kv", MODE="0660"' )"
    ">/etc/udev/rules.d/70-bowhead.rules && udevadm control --reload && udevadm trigger "
    "--subsystem-match=dax";

void ok(Findings& findings, std::string subject, std::string what) {
  findings.push_back({Level::OK, std::move(subject), std::move(what), "", ""});
}

void not_known(Findings& findings, std::string subject, std::string what, std::string why) {
  findings.push_back({Level::UNKNOWN, std::move(subject), std::move(what), std::move(why), ""});
}

bool has_volatile_memory(const Inventory& inventory) {
  return std::any_of(inventory.memory_devices.begin(), inventory.memory_devices.end(),
                     [](const MemoryDevice& device) { return device.volatile_bytes > 0; });
}

// --- Kernel and drivers --------------------------------------------------------------------------

/// "6.12.3-amd64" as 6012; 0: not known.
uint64_t kernel_version(const HostFiles& files) {
  const std::string release = files.text("/proc/sys/kernel/osrelease").value_or("");
  const size_t dot = release.find('.');
  if (dot == std::string::npos) return 0;
  return parse_number(release).value_or(0) * 1000 +
         parse_number(release.substr(dot + 1)).value_or(0);
}

void examine_kernel(const Examination& host, Findings& findings) {
  const std::string release = host.files.text("/proc/sys/kernel/osrelease").value_or("");
  const uint64_t version = kernel_version(host.files);
  if (version == 0)
    return not_known(findings, "kernel", "its version cannot be read",
                     "regions of volatile CXL memory need Linux 6.3");
  if (version >= 6003) return ok(findings, "kernel", "Linux " + release);
  findings.push_back(
      {has_volatile_memory(host.inventory) ? Level::PROBLEM : Level::HINT, "kernel",
       fmt::format("Linux {} is older than 6.3", release),
       "it cannot make regions of volatile CXL memory; only those that the firmware made work",
       "install a newer kernel (Debian 12: apt install -t bookworm-backports linux-image-amd64)"});
}

struct Driver {
  const char* folder;
  const char* module;
  const char* purpose;
};

constexpr Driver kCxlDrivers[] = {
    {"/sys/bus/pci/drivers/cxl_pci", "cxl_pci", "CXL memory devices are not found"},
    {"/sys/bus/platform/drivers/cxl_acpi", "cxl_acpi", "host bridges are not found"},
    {"/sys/bus/cxl/drivers/cxl_port", "cxl_port", "devices are not linked to host bridges"},
    {"/sys/bus/cxl/drivers/cxl_mem", "cxl_mem", "devices are not linked to host bridges"},
    {"/sys/bus/cxl/drivers/cxl_region", "cxl_core", "the kernel is built without CXL_REGION"},
    {"/sys/bus/dax/drivers/device_dax", "device_dax", "dax devices cannot be opened"},
};
constexpr Driver kVolatileDriver = {"/sys/bus/cxl/drivers/cxl_dax_region", "dax_cxl",
                                    "regions of volatile memory get no dax device"};

void examine_driver(const Examination& host, const Driver& driver, Findings& findings) {
  if (host.files.exists(driver.folder)) return;
  findings.push_back({Level::PROBLEM, "drivers",
                      fmt::format("the kernel module {} is not loaded", driver.module),
                      driver.purpose, fmt::format("modprobe {}", driver.module)});
}

void examine_drivers(const Examination& host, Findings& findings) {
  const size_t before = findings.size();
  uint64_t functions = 0;
  for (const std::string& name : host.files.names("/sys/bus/pci/devices")) {
    const std::string folder = "/sys/bus/pci/devices/" + name;
    if (!host.files.text(folder + "/class").value_or("").starts_with("0x0502")) continue;
    ++functions;
    if (host.files.exists(folder + "/driver")) continue;
    findings.push_back({Level::PROBLEM, name,
                        fmt::format("the CXL memory device at PCI {} has no driver", name),
                        "its memory cannot be used",
                        "modprobe cxl_pci; if it stays so, `dmesg | grep cxl_pci` has the reason"});
  }
  if (functions == 0 && host.inventory.memory_devices.empty()) {
    findings.push_back({Level::HINT, "devices", "the PCI bus shows no CXL memory device",
                        "without one, pools lie in shm:, file: or numa:",
                        "if this host has one: CXL and its memory (also: \"SPM\") must be enabled "
                        "in the BIOS, see "
                        "docs/real-hosts.md"});
    return;
  }
  for (const Driver& driver : kCxlDrivers) examine_driver(host, driver, findings);
  if (has_volatile_memory(host.inventory)) examine_driver(host, kVolatileDriver, findings);
  if (findings.size() == before) ok(findings, "drivers", "all CXL drivers are loaded");
}

// --- CXL memory ----------------------------------------------------------------------------------

/// Of one kind of memory of a device, whether a region has it.
void examine_part(const Examination& host, const MemoryDevice& device, MemoryKind kind,
                  uint64_t part_bytes, Findings& findings) {
  if (part_bytes == 0) return;
  uint64_t bytes = 0;
  std::vector<std::string> regions;
  bool of_device = false;  // a region has memory of the other kind
  for (const Decoder& decoder : host.inventory.decoders) {
    if (decoder.device != device.name || decoder.region.empty()) continue;
    of_device = true;
    if (decoder.mode != kind) continue;
    bytes += decoder.device_bytes;
    regions.push_back(decoder.region);
  }
  const std::string memory = device.volatile_bytes > 0 && device.persistent_bytes > 0
                                 ? fmt::format("the {} memory of {}", name_of(kind), device.name)
                                 : device.name;
  if (!regions.empty())
    ok(findings, device.name, fmt::format("{} is in {}", memory, fmt::join(regions, ", ")));
  // No region can be made of less.
  if (bytes + kRegionUnitBytes > part_bytes) return;
  const std::string mend = kind == MemoryKind::PERSISTENT
                               ? using_persistent(host.files, host.inventory, device)
                           : of_device ? "its regions have to be made anew, the volatile one first"
                                       : "bowhead devices setup " + device.name;
  if (bytes > 0)
    findings.push_back(
        {Level::HINT, device.name,
         fmt::format("{} MiB of {} are in no region", (part_bytes - bytes) >> 20, memory),
         "no program can use them", mend});
  else
    findings.push_back({of_device ? Level::HINT : Level::PROBLEM, device.name,
                        memory + " is in no region", "no program can use its memory", mend});
}

void examine_memory_device(const Examination& host, const MemoryDevice& device,
                           Findings& findings) {
  const std::string& name = device.name;
  if (device.endpoint.empty()) {
    findings.push_back({Level::PROBLEM, name, name + " is not linked to a host bridge",
                        "no region can be made of its memory",
                        "modprobe -a cxl_acpi cxl_port cxl_mem; `dmesg | grep cxl` has the reason "
                        "if it stays so"});
    return;
  }
  if (device.security == "locked")
    findings.push_back({Level::PROBLEM, name, name + " is locked by a passphrase",
                        "its persistent memory cannot be read", "ndctl load-keys"});
  if (device.volatile_bytes + device.persistent_bytes == 0) {
    findings.push_back({Level::PROBLEM, name, name + " reports no memory",
                        "no region can be made of it",
                        "look at its maker's manual: its memory may have to be divided first; "
                        "`dmesg | grep cxl` may have the reason"});
    return;
  }
  examine_part(host, device, MemoryKind::VOLATILE, device.volatile_bytes, findings);
  examine_part(host, device, MemoryKind::PERSISTENT, device.persistent_bytes, findings);
}

void examine_region(const Examination& host, const Region& region, Findings& findings) {
  const std::string& name = region.name;
  if (!region.committed) {
    findings.push_back({Level::PROBLEM, name, name + " was begun and not completed",
                        "its devices are occupied, and no program can use them",
                        completing(region)});
    return;
  }
  if (region.driver.empty()) {
    findings.push_back({Level::PROBLEM, name, name + " has no driver",
                        "no program can use its memory", completing(region)});
    return;
  }
  if (region.system_memory)
    return ok(
        findings, name,
        fmt::format("the firmware made {} system memory: {}", name, pools_of_node(region.node)));
  const auto has_dax = [&](const DaxDevice& dax) { return dax.region == region.name; };
  const auto& dax = host.inventory.dax_devices;
  if (std::any_of(dax.begin(), dax.end(), has_dax)) return;
  findings.push_back({Level::PROBLEM, name, name + " has no dax device",
                      "no pool can lie in its memory",
                      region.kind == MemoryKind::PERSISTENT
                          ? "ndctl create-namespace --mode=devdax --region=" + name
                          : "modprobe dax_cxl; then bowhead devices setup"});
}

/// Who may open the node of a devdax.
void examine_access(const DaxDevice& dax, Findings& findings) {
  if (!dax.can_open) {
    // A container that was not given the device has no node, or may not use it.
    const bool not_given =
        dax.why_not == std::strerror(ENOENT) || dax.why_not == std::strerror(EPERM);
    findings.push_back({Level::PROBLEM, dax.path, "it cannot be opened: " + dax.why_not,
                        "no pool can lie there for this user",
                        dax.why_not == std::strerror(EACCES) ? kUdevRule
                        : not_given ? "in a container: --device " + dax.path +
                                          "; elsewhere: udevadm trigger --subsystem-match=dax"
                                    : "`fuser " + dax.path + "` and `dmesg` may have the reason"});
    return;
  }
  const uint32_t permissions = dax.permissions.value_or(0);
  if ((permissions & 02) != 0) {
    findings.push_back({Level::PROBLEM, dax.path, "every user may write to it",
                        "any user could change the blocks of a pool, so pools there are refused",
                        kUdevRule});
  } else if (dax.owner == 0u && (permissions & 020) == 0) {
    findings.push_back({Level::HINT, dax.path, "only root may open it",
                        "engines that run as another user cannot use a pool there", kUdevRule});
  } else {
    ok(findings, dax.path, "it can be opened, and not by every user");
  }
}

void examine_dax(const DaxDevice& dax, Findings& findings) {
  switch (dax.mode) {
    case DaxMode::SYSTEM:
      return ok(findings, dax.path,
                fmt::format("it is memory of NUMA node {}: {}", dax.node, pools_of_node(dax.node)));
    case DaxMode::NONE:
      findings.push_back(
          {Level::PROBLEM, dax.path, dax.name + " has no driver", "it cannot be opened",
           dax.persistent ? "daxctl enable-device " + dax.name : "bowhead devices setup"});
      return;
    case DaxMode::UNKNOWN:
      return not_known(findings, dax.path, fmt::format("its driver is {}", dax.driver),
                       "pools lie on devices in mode devdax, whose driver is device_dax");
    case DaxMode::DEVICE:
      break;
  }
  const std::string pages = fmt::format("it maps in pages of {} bytes", dax.align_bytes);
  // The memory stays as it is; of a namespace, the alignment is a part of it.
  const std::string align =
      dax.persistent
          ? "make its namespace anew, with a copy of its data elsewhere: `ndctl create-namespace "
            "-f -e NAMESPACE --mode=devdax --align=2M`; `ndctl list -X` names it"
          : fmt::format(
                "daxctl disable-device {0} && echo 2097152 >{1}/{0}/align && daxctl enable-device "
                "{0}",
                dax.name, kDaxDevices);
  if (dax.align_bytes < 4096 || (2 << 20) % dax.align_bytes != 0) {
    findings.push_back({Level::PROBLEM, dax.path, pages, "pools need 2 MiB or less", align});
  } else if (dax.align_bytes < 2 << 20) {
    findings.push_back(
        {Level::HINT, dax.path, pages, "pages of 2 MiB need fewer entries of the TLB", align});
  }
  examine_access(dax, findings);
}

/// Whether a list such as "0-1,3" has the number.
bool list_has(const std::string& list, int number) {
  for (size_t at = 0; at < list.size();) {
    const size_t comma = std::min(list.find(',', at), list.size());
    const std::string part = list.substr(at, comma - at);
    const size_t dash = part.find('-');
    const auto first = parse_number(part);
    const auto last = dash == std::string::npos ? first : parse_number(part.substr(dash + 1));
    if (first && last && uint64_t(number) >= *first && uint64_t(number) <= *last) return true;
    at = comma + 1;
  }
  return false;
}

/// "0-1" of "Mems_allowed_list:	0-1"; "" not known.
std::string allowed_nodes(const HostFiles& files) {
  const std::string status = files.text("/proc/self/status").value_or("");
  const std::string_view name = "Mems_allowed_list:";
  const size_t at = status.find(name);
  if (at == std::string::npos) return "";
  const size_t begin = status.find_first_of("0123456789", at + name.size());
  return begin == std::string::npos ? "" : status.substr(begin, status.find('\n', begin) - begin);
}

void examine_node(const Examination& host, const NumaNode& node, Findings& findings) {
  if (!node.cpus.empty() || node.size_bytes == 0) return;
  const std::string subject = fmt::format("node {}", node.number);
  const std::string allowed = allowed_nodes(host.files);
  if (allowed.empty()) {
    not_known(findings, subject, "the nodes that this process may use cannot be read",
              "a cpuset may forbid the node");
  } else if (!list_has(allowed, node.number)) {
    findings.push_back(
        {Level::PROBLEM, subject, "a cpuset forbids it to this process",
         "pools at numa:" + std::to_string(node.number) + "/NAME are refused",
         "allow it in cpuset.mems of the control group (containers: --cpuset-mems)"});
  }
  if (node.blocks_movable < node.blocks) {
    findings.push_back({Level::HINT, subject,
                        fmt::format("{} of its {} memory blocks are not movable",
                                    node.blocks - node.blocks_movable, node.blocks),
                        "the kernel may keep data of its own there: the memory cannot be taken "
                        "back, and its region must not be destroyed",
                        "at the next boot: bowhead devices setup --node"});
  } else {
    ok(findings, subject, "memory without CPUs, online as movable");
  }
}

void examine_online_policy(const Examination& host, Findings& findings) {
  const char* path = "/sys/devices/system/memory/auto_online_blocks";
  const auto policy = host.files.text(path);
  if (!policy || !has_volatile_memory(host.inventory)) return;
  if (*policy == "online_movable" || *policy == "offline")
    return ok(findings, "node mode", fmt::format("new memory becomes {}", *policy));
  findings.push_back(
      {Level::HINT, "node mode", fmt::format("new memory becomes {}", *policy),
       "memory that becomes a node without `bowhead devices setup --node` is not movable, and "
       "cannot be taken back",
       fmt::format("echo online_movable >{}", path)});
}

void examine_health(const Examination& host, Findings& findings) {
  for (size_t i = 0; i < host.health.size(); ++i) {
    const std::string& name = host.inventory.memory_devices[i].name;
    const Result<Health>& health = host.health[i];
    if (!health) {
      not_known(findings, name, "its health is not known: " + health.error().message(),
                "a device that fails announces it there");
    } else if (health->warnings.empty()) {
      ok(findings, name, "it reports no warning of its health");
    } else {
      findings.push_back({Level::PROBLEM, name,
                          fmt::format("it reports: {}", fmt::join(health->warnings, "; ")),
                          "its memory may fail", "look at its maker's manual; replace it in time"});
    }
  }
}

void examine_media(const Examination& host, Findings& findings) {
  for (const MediaErrors::Gap& gap : host.errors.not_known)
    not_known(findings, gap.device.empty() ? "media errors" : gap.device, gap.why,
              "damaged memory is listed there");
  for (const MemoryDevice& device : host.inventory.memory_devices) {
    const auto count =
        std::count_if(host.errors.found.begin(), host.errors.found.end(),
                      [&](const MediaError& error) { return error.device == device.name; });
    if (count > 0) {
      findings.push_back(
          {Level::PROBLEM, device.name, fmt::format("it lists {} damaged ranges of memory", count),
           "reading them fails or ends the process; blocks there are lost",
           "bowhead devices names the bytes; `bowhead pool check` ends at the first of "
           "them that it reads"});
    } else if (host.errors.is_known(device.name)) {
      ok(findings, device.name, "it lists no damaged memory");
    }
  }
}

// --- The rest of the host ------------------------------------------------------------------------

/// "never" of "always within_size advise [never] deny force".
std::string chosen_of(const std::string& text) {
  const size_t open = text.find('['), close = text.find(']');
  return open == std::string::npos || close == std::string::npos
             ? ""
             : text.substr(open + 1, close - open - 1);
}

void examine_huge_pages(const Examination& host, Findings& findings) {
  const uint64_t free_pages =
      host.files.number("/sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages").value_or(0);
  const bool mounted =
      host.files.text("/proc/self/mounts").value_or("").find(" hugetlbfs ") != std::string::npos;
  if (free_pages > 0 && !mounted) {
    findings.push_back(
        {Level::HINT, "huge pages",
         fmt::format("{} pages of 2 MiB are free, and no hugetlbfs is mounted", free_pages),
         "shm: pools use these pages only through a mount",
         "mount -t hugetlbfs -o pagesize=2M,mode=1777 hugetlbfs /dev/hugepages"});
  } else if (free_pages > 0) {
    ok(findings, "huge pages", fmt::format("{} pages of 2 MiB are free", free_pages));
  }
  const char* path = "/sys/kernel/mm/transparent_hugepage/shmem_enabled";
  const std::string policy = chosen_of(host.files.text(path).value_or(""));
  const uint64_t version = kernel_version(host.files);
  if (policy.empty() || version == 0)
    return not_known(findings, "huge pages", "the policy for shared memory cannot be read",
                     "without huge pages, access to large pools costs more");
  // From Linux 6.1 on a process can ask for them whatever the policy is, unless it is `deny`.
  if (policy != "deny" && (version >= 6001 || policy != "never"))
    return ok(findings, "huge pages",
              fmt::format("shm: pools can have them (shmem_enabled: {})", policy));
  findings.push_back({Level::HINT, "huge pages",
                      fmt::format("shared memory gets none (shmem_enabled: {})", policy),
                      "access to large shm: pools costs more entries of the TLB",
                      fmt::format("echo advise >{}", path)});
}

void examine_shm(const Examination& host, Findings& findings) {
  const uint64_t bytes = host.limits.shm_bytes;
  if (bytes == 0)
    return not_known(findings, "/dev/shm", "its size cannot be read", "shm: pools lie there");
  const std::string what = fmt::format("it has {} MiB", bytes >> 20);
  if (bytes >= kGib) return ok(findings, "/dev/shm", what);
  findings.push_back({Level::HINT, "/dev/shm", what, "shm: pools cannot be larger",
                      "mount -o remount,size=SIZE /dev/shm (containers: --shm-size)"});
}

void examine_locked_memory(const Examination& host, Findings& findings) {
  if (!host.limits.locked_bytes)
    return ok(findings, "locked memory", "this process may lock all of its memory");
  findings.push_back(
      {Level::HINT, "locked memory",
       fmt::format("a process may lock {} KiB", *host.limits.locked_bytes >> 10),
       "libraries that pin a pool for DMA, such as RDMA's, count against this limit",
       "ulimit -l unlimited (systemd: LimitMEMLOCK=infinity; containers: --ulimit memlock=-1)"});
}

void examine_gpu(const Examination& host, Findings& findings) {
  uint64_t with_driver = 0, without = 0;
  for (const std::string& name : host.files.names("/sys/bus/pci/devices")) {
    const std::string folder = "/sys/bus/pci/devices/" + name;
    if (!host.files.text(folder + "/class").value_or("").starts_with("0x03") ||
        host.files.text(folder + "/vendor") != "0x10de")
      continue;
    ++(host.files.link_name(folder + "/driver") == "nvidia" ? with_driver : without);
  }
  if (without > 0)
    findings.push_back({Level::HINT, "GPU",
                        fmt::format("{} NVIDIA GPUs are without the driver nvidia", without),
                        "blocks cannot be moved between these GPUs and a pool",
                        "install NVIDIA's driver (Debian: apt install nvidia-driver)"});
  if (with_driver > 0)
    ok(findings, "GPU", fmt::format("{} NVIDIA GPUs with their driver", with_driver));
  if (with_driver + without == 0) ok(findings, "GPU", "the PCI bus shows no NVIDIA GPU");
}

void examine_clock(const Examination& host, Findings& findings) {
  const std::string folder = "/sys/devices/system/clocksource/clocksource0/";
  const std::string source = host.files.text(folder + "current_clocksource").value_or("");
  if (source.empty())
    return not_known(findings, "clock", "its source cannot be read",
                     "a slow clock makes short operations longer");
  const bool fast = source == "tsc" || source == "kvm-clock" || source == "arch_sys_counter" ||
                    source.starts_with("hyperv");
  if (fast) return ok(findings, "clock", "its source is " + source);
  findings.push_back({Level::HINT, "clock", "its source is " + source,
                      "each look at the clock is a system call, and pools look often",
                      "`dmesg | grep -i tsc` has the reason; if the TSC is sound, boot with "
                      "tsc=reliable"});
}

void examine_write_path(const Examination& host, Findings& findings) {
  if (host.inventory.memory_devices.empty()) return;
  not_known(findings, "DDIO", "whether DMA of devices writes to the caches of this host",
            "the kernel does not report it. If it does, other hosts see what a GPU or a network "
            "card wrote to a shared pool only after a flush; see docs/real-hosts.md");
}

}  // namespace

const char* name_of(Level level) {
  switch (level) {
    case Level::OK:
      return "ok";
    case Level::HINT:
      return "hint";
    case Level::PROBLEM:
      return "problem";
    case Level::UNKNOWN:
      break;
  }
  return "unknown";
}

ProcessLimits read_limits() {
  ProcessLimits limits;
  rlimit locked{};
  if (getrlimit(RLIMIT_MEMLOCK, &locked) == 0 && locked.rlim_cur != RLIM_INFINITY)
    limits.locked_bytes = locked.rlim_cur;
  struct statvfs shm {};
  if (statvfs("/dev/shm", &shm) == 0) limits.shm_bytes = shm.f_blocks * shm.f_frsize;
  return limits;
}

std::vector<Finding> examine(const Examination& host) {
  Findings findings;
  examine_kernel(host, findings);
  examine_drivers(host, findings);
  for (const MemoryDevice& device : host.inventory.memory_devices)
    examine_memory_device(host, device, findings);
  for (const Region& region : host.inventory.regions) examine_region(host, region, findings);
  for (const DaxDevice& dax : host.inventory.dax_devices) examine_dax(dax, findings);
  for (const NumaNode& node : host.inventory.nodes) examine_node(host, node, findings);
  examine_online_policy(host, findings);
  examine_health(host, findings);
  examine_media(host, findings);
  examine_huge_pages(host, findings);
  examine_shm(host, findings);
  examine_locked_memory(host, findings);
  examine_gpu(host, findings);
  examine_clock(host, findings);
  examine_write_path(host, findings);
  sort_by_urgency(findings);
  return findings;
}

void sort_by_urgency(std::vector<Finding>& findings) {
  const auto urgency = [](const Finding& finding) {
    switch (finding.level) {
      case Level::PROBLEM:
        return 0;
      case Level::HINT:
        return 1;
      case Level::UNKNOWN:
        return 2;
      case Level::OK:
        break;
    }
    return 3;
  };
  std::stable_sort(findings.begin(), findings.end(),
                   [&](const Finding& a, const Finding& b) { return urgency(a) < urgency(b); });
}

}  // namespace bowhead::shim
