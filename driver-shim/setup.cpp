// SPDX-License-Identifier: Apache-2.0
#include "driver-shim/setup.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <map>
#include <thread>

#include "driver-shim/advice.h"

namespace bowhead::shim {
namespace {

constexpr auto kWaitMost = std::chrono::seconds(10);
constexpr auto kWaitStep = std::chrono::milliseconds(20);
constexpr auto kBindAgain = std::chrono::seconds(1);
constexpr int kMostNames = 10;
constexpr const char* kAutoOnline = "/sys/devices/system/memory/auto_online_blocks";
constexpr const char* kAutoProbe = "/sys/bus/dax/drivers_autoprobe";

Error refuse(Status status, std::string text) { return Error{status, std::move(text)}; }

std::string dax_driver(const std::string& driver) { return "/sys/bus/dax/drivers/" + driver; }

Step write(std::string path, std::string value) {
  return {Step::Kind::WRITE, std::move(path), std::move(value), {}};
}

// --- What can be set up --------------------------------------------------------------------------

/// The dax device in words: "dax0.0 in mode devdax".
std::string dax_text(const DaxDevice& dax) {
  if (dax.mode == DaxMode::SYSTEM)
    return fmt::format("{} is memory of NUMA node {}: {}", dax.name, dax.node,
                       pools_of_node(dax.node));
  if (dax.mode == DaxMode::DEVICE)
    return fmt::format("{0} is a devdax: pools can lie there as dax:/dev/{0}", dax.name);
  if (dax.mode == DaxMode::NONE)
    return fmt::format("{0} has no driver: `daxctl enable-device {0}`", dax.name);
  return fmt::format("{} has the driver {}", dax.name, dax.driver);
}

/// Why a memory device that is in a region is left alone; "" if only its dax device lacks a driver.
std::string why_region_stays(const Inventory& inventory, const std::string& device,
                             const std::string& name) {
  const Region* region = inventory.region(name);
  if (region == nullptr)
    return fmt::format("{} is in {}, which comes or goes at this moment", device, name);
  if (!region->ready())
    return fmt::format("{} is in {}, which is not ready; {}", device, name, completing(*region));
  if (region->system_memory)
    return fmt::format("{} is in {}, which the firmware made and the kernel has as its memory: {}",
                       device, name, pools_of_node(region->node));
  for (const DaxDevice& dax : inventory.dax_devices) {
    if (dax.region != name) continue;
    if (dax.mode == DaxMode::NONE && !dax.persistent) return "";
    return fmt::format("{} is in {} already; {}", device, name, dax_text(dax));
  }
  return fmt::format("{} is in {}, which has no dax device: `{}` makes one", device, name,
                     region->kind == MemoryKind::PERSISTENT
                         ? "ndctl create-namespace --mode=devdax --region=" + name
                         : "modprobe dax_cxl");
}

/// What a region of a device is made from.
struct Parts {
  const Decoder* window = nullptr;
  const Decoder* decoder = nullptr;  ///< of the endpoint
  uint64_t size_bytes = 0;
};

/// By the name of a window.
using PlannedBytes = std::map<std::string, uint64_t>;

/// The parts, or IN_USE with the reason why there is nothing to make. `planned`: for other devices.
Result<Parts> parts_for(const HostFiles& files, const Inventory& inventory,
                        const MemoryDevice& device, const PlannedBytes& planned) {
  const std::string& name = device.name;
  const auto stays = [&](std::string why) { return refuse(Status::IN_USE, std::move(why)); };
  if (device.endpoint.empty())
    return stays(
        fmt::format("{} is not linked to a host bridge: load cxl_acpi, cxl_port and "
                    "cxl_mem (`modprobe cxl_acpi cxl_port cxl_mem`)",
                    name));
  Parts parts;
  for (const Decoder& decoder : inventory.decoders) {
    if (decoder.device != name) continue;
    if (!decoder.region.empty()) {
      if (std::string why = why_region_stays(inventory, name, decoder.region); !why.empty())
        return stays(std::move(why));
      return stays("");  // a plan for its dax device exists
    }
    if (decoder.device_bytes != 0)
      return stays(
          fmt::format("{} of {} holds {} MiB without a region: another program may be "
                      "making one. If none is, `cxl free-dpa {}` releases them",
                      decoder.name, name, decoder.device_bytes >> 20, name));
    if (parts.decoder == nullptr && decoder.size_bytes == 0) parts.decoder = &decoder;
  }
  if (device.volatile_bytes == 0 && device.persistent_bytes == 0)
    return stays(name + " reports no memory: its maker's tool may have to divide it first");
  if (device.volatile_bytes == 0)
    return stays(fmt::format("{} has persistent memory only, whose labels and data stay: {}", name,
                             using_persistent(files, inventory, device)));
  if (parts.decoder == nullptr) return stays(name + " has no free decoder");
  parts.size_bytes = device.volatile_bytes / kRegionUnitBytes * kRegionUnitBytes;
  if (parts.size_bytes == 0)
    return stays(fmt::format("{} has {} MiB of volatile memory, and a region needs 256", name,
                             device.volatile_bytes >> 20));
  const auto windows = windows_for(files, inventory, device, MemoryKind::VOLATILE);
  if (windows.empty())
    return stays(fmt::format(
        "no root decoder takes volatile memory of {} alone: the firmware has to describe a window "
        "for its host bridge (CFMWS; look for CXL memory in the BIOS), and the kernel must be "
        "Linux 6.3 or newer",
        name));
  const auto room = [&](const Decoder* window) {
    const auto taken = planned.find(window->name);
    const uint64_t free = free_bytes(inventory, *window);
    return free - std::min(free, taken == planned.end() ? 0 : taken->second);
  };
  parts.window =
      *std::max_element(windows.begin(), windows.end(),
                        [&](const Decoder* a, const Decoder* b) { return room(a) < room(b); });
  if (room(parts.window) < parts.size_bytes)
    return stays(fmt::format(
        "no window of physical addresses has room for the {} MiB of {}: {} has {} MiB free",
        parts.size_bytes >> 20, name, parts.window->name, room(parts.window) >> 20));
  return parts;
}

// --- Plans ---------------------------------------------------------------------------------------

/// Steps from a dax device without a driver to the mode.
void add_dax_steps(SetupPlan& plan, bool as_node) {
  const auto bind = [&](const std::string& driver) {
    plan.steps.push_back({Step::Kind::BIND, driver, "$dax", ""});
  };
  const std::string devdax = dax_driver("device_dax");
  plan.steps.push_back({Step::Kind::WAIT, fmt::format("{}/$dax", kDaxDevices), "", ""});
  bind(devdax);
  if (!as_node) return;
  // Memory that hosts share may hold a pool of another one.
  plan.steps.push_back({Step::Kind::WAIT, "/dev/$dax", "", ""});
  plan.steps.push_back({Step::Kind::FIND_NO_POOL, "/dev/$dax", "", ""});
  plan.steps.push_back(write(devdax + "/unbind", "$dax"));
  plan.steps.push_back(write(devdax + "/remove_id", "$dax"));
  bind(dax_driver("kmem"));
}

/// A setting of the kernel for the time of the plan.
void add_setting(SetupPlan& plan, const HostFiles& files, const char* path, const char* value) {
  const auto former = files.text(path);
  if (!former || *former == value) return;
  plan.steps.push_back(write(path, value));
  plan.at_end.push_back(write(path, *former));
}

/// New dax devices wait for the driver that is chosen: kmem, once loaded, would take them at once.
/// Memory of a node is online as movable: otherwise it could never be taken back.
void add_settings(SetupPlan& plan, const HostFiles& files, bool as_node) {
  add_setting(plan, files, kAutoProbe, "0");
  if (as_node) add_setting(plan, files, kAutoOnline, "online_movable");
}

SetupPlan plan_region(const HostFiles& files, const MemoryDevice& device, const Parts& parts,
                      bool as_node) {
  SetupPlan plan;
  plan.what = fmt::format("{}: a region of {} MiB, and its dax device as {}", device.name,
                          parts.size_bytes >> 20, as_node ? "memory of a NUMA node" : "a devdax");
  const std::string create = cxl(parts.window->name) + "/create_ram_region";
  const std::string region = cxl("$region");
  const std::string decoder = cxl(parts.decoder->name);
  const std::string size = fmt::format("0x{:x}", parts.size_bytes);
  const auto granularity = files.text(cxl(parts.window->name) + "/interleave_granularity");
  add_settings(plan, files, as_node);
  // A region that goes leaves its decoder first.
  plan.undo.push_back(
      {plan.steps.size(),
       {Step::Kind::WRITE_IF, cxl(parts.window->name) + "/delete_region", "$region", region}});
  plan.steps.push_back({Step::Kind::MAKE_REGION, create, "", ""});
  plan.steps.push_back(write(region + "/interleave_granularity", granularity.value_or("256")));
  plan.steps.push_back(write(region + "/interleave_ways", "1"));
  plan.steps.push_back(write(decoder + "/mode", "ram"));
  plan.undo.push_back({plan.steps.size(), write(decoder + "/dpa_size", "0")});
  plan.steps.push_back(write(decoder + "/dpa_size", size));
  plan.steps.push_back(write(region + "/size", size));
  plan.steps.push_back(write(region + "/target0", parts.decoder->name));
  plan.steps.push_back(write(region + "/commit", "1"));
  plan.keep = plan.steps.size();
  plan.steps.push_back(write("/sys/bus/cxl/drivers/cxl_region/bind", "$region"));
  add_dax_steps(plan, as_node);
  return plan;
}

SetupPlan plan_dax(const HostFiles& files, const DaxDevice& dax, bool as_node) {
  SetupPlan plan;
  plan.what = fmt::format("{}: {}", dax.name, as_node ? "memory of a NUMA node" : "a devdax");
  plan.dax = dax.name;
  add_settings(plan, files, as_node);
  add_dax_steps(plan, as_node);
  return plan;
}

/// The drivers that the steps need.
Result<void> check_drivers(const HostFiles& files, const SetupPlans& plans, bool as_node) {
  struct Driver {
    const char* folder;
    const char* module;
  };
  const bool makes_regions = std::any_of(plans.plans.begin(), plans.plans.end(),
                                         [](const SetupPlan& plan) { return plan.dax.empty(); });
  std::vector<Driver> drivers;
  if (makes_regions) drivers.push_back({"/sys/bus/cxl/drivers/cxl_dax_region", "dax_cxl"});
  drivers.push_back({"/sys/bus/dax/drivers/device_dax", "device_dax"});
  if (as_node) drivers.push_back({"/sys/bus/dax/drivers/kmem", "kmem"});
  for (const Driver& driver : drivers) {
    if (!files.exists(driver.folder))
      return refuse(Status::SYSTEM, fmt::format("the kernel module {0} is not loaded, or the "
                                                "kernel has none: run `modprobe {0}`",
                                                driver.module));
  }
  return {};
}

/// Memory devices in the order of their serial numbers, since their names change between boots.
std::vector<const MemoryDevice*> by_serial(const Inventory& inventory) {
  std::vector<const MemoryDevice*> devices;
  for (const MemoryDevice& device : inventory.memory_devices) devices.push_back(&device);
  std::stable_sort(devices.begin(), devices.end(), [](const auto* a, const auto* b) {
    return a->serial.value_or(~0ull) < b->serial.value_or(~0ull);
  });
  return devices;
}

bool is_chosen(const SetupChoice& choice, const std::string& device) {
  return choice.devices.empty() ||
         std::find(choice.devices.begin(), choice.devices.end(), device) != choice.devices.end();
}

/// A dax device of a region with a chosen device; any if none is chosen, also of memory that the
/// firmware reserved.
bool is_chosen(const SetupChoice& choice, const Inventory& inventory, const DaxDevice& dax) {
  if (choice.devices.empty()) return true;
  const Region* region = inventory.region(dax.region);
  return region != nullptr &&
         std::any_of(region->devices.begin(), region->devices.end(),
                     [&](const std::string& device) { return is_chosen(choice, device); });
}

// --- Execution -----------------------------------------------------------------------------------

/// The values of $region and $dax.
struct Names {
  std::string region, dax;

  std::string in(std::string text) const {
    for (const auto& [variable, value] : {std::pair("$region", region), std::pair("$dax", dax)}) {
      const size_t at = text.find(variable);
      if (at != std::string::npos) text.replace(at, std::string_view(variable).size(), value);
    }
    return text;
  }
};

Error interrupted(const std::string& what) {
  return refuse(Status::CANCELLED, "interrupted before: " + what);
}

/// Whether `path` appears within `most`.
Result<bool> appears(const HostFiles& files, const std::string& path, const SetupHooks& hooks,
                     std::chrono::seconds most) {
  const auto end = std::chrono::steady_clock::now() + most;
  while (!files.exists(path)) {
    if (hooks.interrupted()) return interrupted(path + " appeared");
    if (std::chrono::steady_clock::now() > end) return false;
    std::this_thread::sleep_for(kWaitStep);
  }
  return true;
}

Error absent(const std::string& path) {
  return refuse(Status::SYSTEM, path + " did not appear within 10 s");
}

Result<void> wait_for(const HostFiles& files, const std::string& path, const SetupHooks& hooks) {
  const Result<bool> there = appears(files, path, hooks, kWaitMost);
  if (!there) return there.error();
  return *there ? Result<void>() : absent(path);
}

/// A device has its name in sysfs a moment before the kernel's list of the bus has it, which a
/// driver with a new name goes through: then nothing is bound. The name is written again, which
/// has the driver go through the list again.
Result<void> bind_driver(const HostFiles& files, const std::string& driver, const std::string& dax,
                         const SetupHooks& hooks) {
  const std::string bound = driver + "/" + dax;
  for (auto waited = std::chrono::seconds(0); waited < kWaitMost; waited += kBindAgain) {
    if (auto written = files.write(driver + "/new_id", dax); !written) return written;
    const Result<bool> there = appears(files, bound, hooks, kBindAgain);
    if (!there) return there.error();
    if (*there) return {};
  }
  return absent(bound);
}

/// Another program may take the name between the two calls: then there is another.
Result<void> make_region(const HostFiles& files, const std::string& path, Names& names) {
  for (int attempt = 0;; ++attempt) {
    const auto name = files.text(path);
    if (!name || !name->starts_with("region"))
      return refuse(Status::SYSTEM, path + " does not name the next region");
    const Result<void> made = files.write(path, *name);
    if (made) {
      names = {*name, fmt::format("dax{}.0", name->substr(6))};
      return {};
    }
    if (attempt == kMostNames || files.text(path) == name) return made;
  }
}

Result<void> find_no_pool(const std::string& path, const std::string& dax,
                          const SetupHooks& hooks) {
  const Result<bool> found = hooks.holds_pool(path);
  if (!found) return found.error();
  if (!*found) return {};
  return refuse(
      Status::IN_USE,
      fmt::format("{0} holds a pool, or a part of one, which a node would overwrite, so it "
                  "stays a devdax. To give the pool up: `bowhead pool destroy "
                  "dax:/dev/{0}`, then `daxctl reconfigure-device --mode=system-ram {0}`",
                  dax));
}

Result<void> take(const HostFiles& files, const Step& step, Names& names, const SetupHooks& hooks) {
  const std::string path = names.in(step.path);
  switch (step.kind) {
    case Step::Kind::MAKE_REGION:
      return make_region(files, path, names);
    case Step::Kind::WAIT:
      return wait_for(files, path, hooks);
    case Step::Kind::BIND:
      return bind_driver(files, path, names.in(step.value), hooks);
    case Step::Kind::FIND_NO_POOL:
      return find_no_pool(path, names.dax, hooks);
    case Step::Kind::WRITE_IF:
      if (!files.exists(names.in(step.condition))) return {};
      break;
    case Step::Kind::WRITE:
      break;
  }
  return files.write(path, names.in(step.value));
}

std::string line_of(const Step& step) {
  switch (step.kind) {
    case Step::Kind::MAKE_REGION:
      return fmt::format(
          "  region=$(cat {0})\n  echo $region >{0}\n  dax=dax${{region#region}}.0\n", step.path);
    case Step::Kind::WAIT:
      return fmt::format("  wait_for {}\n", step.path);
    case Step::Kind::BIND:
      return fmt::format("  bind_driver {} {}\n", step.path, step.value);
    case Step::Kind::FIND_NO_POOL:
      return fmt::format(
          "  # A part of a pool on joined media is not found here.\n"
          "  if bowhead pool info dax:{0} >/dev/null 2>&1; then\n"
          "    echo \"{0} holds a pool\" >&2\n    exit 3\n  fi\n",
          step.path);
    case Step::Kind::WRITE_IF:
      return fmt::format("  [ ! -e {} ] || echo {} >{}\n", step.condition, step.value, step.path);
    case Step::Kind::WRITE:
      break;
  }
  return fmt::format("  echo {} >{}\n", step.value, step.path);
}

/// All CXL functions that have their driver are linked.
bool is_probed(const HostFiles& files) {
  const auto functions = files.names("/sys/bus/pci/drivers/cxl_pci");
  const auto endpoints = files.names(kCxlDevices, "endpoint");
  return std::count_if(functions.begin(), functions.end(), [](const std::string& name) {
           return name.find(':') != name.npos;
         }) <= std::count_if(endpoints.begin(), endpoints.end(), [&](const std::string& name) {
           return files.exists(cxl(name) + "/driver");
         });
}

}  // namespace

void wait_for_probing(const HostFiles& files) {
  const auto end = std::chrono::steady_clock::now() + kWaitMost;
  while (!is_probed(files) && std::chrono::steady_clock::now() < end)
    std::this_thread::sleep_for(kWaitStep);
}

Result<UniqueFd> lock_setup(const HostFiles& files) {
  UniqueFd fd = open_file(files.at(kDaxDevices), O_RDONLY | O_DIRECTORY);
  if (fd.get() < 0)
    return refuse(Status::SYSTEM, fmt::format("cannot open {}: {}: the kernel has no dax devices",
                                              kDaxDevices, std::strerror(errno)));
  if (flock(fd.get(), LOCK_EX | LOCK_NB) == 0) return fd;
  if (errno == EWOULDBLOCK)
    return refuse(Status::IN_USE, "another `bowhead devices setup` runs: wait until it has ended");
  return refuse(Status::SYSTEM,
                fmt::format("cannot lock {}: {}", kDaxDevices, std::strerror(errno)));
}

Result<SetupPlans> plan_setup(const HostFiles& files, const Inventory& inventory,
                              const SetupChoice& choice) {
  for (const std::string& name : choice.devices) {
    if (inventory.memory_device(name) == nullptr)
      return refuse(
          Status::INVALID_ARGUMENT,
          fmt::format("there is no CXL memory device '{}'; `bowhead devices` lists them", name));
  }
  SetupPlans plans;
  for (const DaxDevice& dax : inventory.dax_devices) {
    if (dax.mode == DaxMode::NONE && !dax.persistent && is_chosen(choice, inventory, dax))
      plans.plans.push_back(plan_dax(files, dax, choice.as_node));
  }
  PlannedBytes planned;
  for (const MemoryDevice* device : by_serial(inventory)) {
    if (!is_chosen(choice, device->name)) continue;
    const Result<Parts> parts = parts_for(files, inventory, *device, planned);
    if (parts) {
      planned[parts->window->name] += parts->size_bytes;
      plans.plans.push_back(plan_region(files, *device, *parts, choice.as_node));
    } else if (!parts.error().detail.empty()) {
      if (!choice.devices.empty()) return parts.error();
      plans.left_alone.push_back(parts.error().detail);
    }
  }
  if (plans.plans.empty()) return plans;
  if (auto drivers = check_drivers(files, plans, choice.as_node); !drivers) return drivers.error();
  return plans;
}

std::string script_of(const SetupPlan& plan) {
  std::string script = fmt::format("# {}\n(\n  set -eu\n", plan.what);
  script +=
      "  appears() {\n"
      "    for i in $(seq $(($2 * 10))); do [ ! -e $1 ] || return 0; sleep 0.1; done\n"
      "    return 1\n  }\n"
      "  absent() {\n"
      "    echo \"$1 did not appear within 10 s\" >&2\n"
      "    exit 1\n  }\n"
      "  wait_for() { appears $1 10 || absent $1; }\n"
      "  bind_driver() {\n"
      "    for again in $(seq 10); do\n"
      "      echo $2 >$1/new_id\n"
      "      ! appears $1/$2 1 || return 0\n"
      "    done\n"
      "    absent $1/$2\n  }\n";
  script += "  taken=0\n  finish() {\n    set +e\n";
  for (const auto& [of, step] : plan.undo)
    script += fmt::format("    [ $taken -le {} ] || [ $taken -ge {} ] || {}", of, plan.keep,
                          line_of(step).substr(2));
  for (const Step& step : plan.at_end) script += "  " + line_of(step);
  script += "  }\n  trap finish EXIT\n  trap 'exit 130' INT TERM HUP\n";
  if (!plan.dax.empty()) script += fmt::format("  dax={}\n", plan.dax);
  const auto matters = [&](size_t step) {
    return step + 1 == plan.keep || std::any_of(plan.undo.begin(), plan.undo.end(),
                                                [&](const auto& undo) { return undo.of == step; });
  };
  for (size_t i = 0; i < plan.steps.size(); ++i) {
    script += line_of(plan.steps[i]);
    if (matters(i)) script += fmt::format("  taken={}\n", i + 1);
  }
  return script + ")\n";
}

Result<std::string> carry_out(const HostFiles& files, const SetupPlan& plan,
                              const SetupHooks& hooks) {
  Names names{.region = "", .dax = plan.dax};
  Result<void> taken;
  size_t steps = 0;
  for (const Step& step : plan.steps) {
    taken = hooks.interrupted() ? interrupted(step.path) : take(files, step, names, hooks);
    if (!taken) break;
    ++steps;
  }
  if (!taken && steps < plan.keep) {
    for (const auto& [of, step] : plan.undo)
      if (of < steps) (void)take(files, step, names, hooks);
  }
  for (const Step& step : plan.at_end) {
    const Result<void> restored = take(files, step, names, hooks);
    if (taken && !restored) taken = restored;
  }
  if (taken) return names.dax;
  return refuse(
      taken.status(),
      fmt::format("{}: {}{}", plan.what, taken.error().message(),
                  taken.status() == Status::SYSTEM ? "; `dmesg` may have the reason" : ""));
}

}  // namespace bowhead::shim
