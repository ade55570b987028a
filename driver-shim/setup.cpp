// SPDX-License-Identifier: Apache-2.0
#include "driver-shim/setup.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <map>
#include <thread>

namespace bowhead::shim {
namespace {

/// Regions are made of whole units of this size, times their ways.
constexpr uint64_t kRegionUnitBytes = 256 << 20;
constexpr auto kWaitMost = std::chrono::seconds(10);
constexpr auto kWaitStep = std::chrono::milliseconds(20);
constexpr const char* kAutoOnline = "/sys/devices/system/memory/auto_online_blocks";

Error refuse(Status status, std::string text) { return Error{status, std::move(text)}; }

std::string cxl(const std::string& name) { return fmt::format("{}/{}", kCxlDevices, name); }
std::string dax_driver(const std::string& driver) { return "/sys/bus/dax/drivers/" + driver; }

Step write(std::string path, std::string value) {
  return {Step::Kind::WRITE, std::move(path), std::move(value), {}};
}

// --- What can be set up --------------------------------------------------------------------------

/// The dax device in words: "dax0.0 in mode devdax".
std::string dax_text(const DaxDevice& dax) {
  if (dax.mode == DaxMode::SYSTEM)
    return fmt::format("{} is memory of NUMA node {}: pools can lie there as numa:{}/NAME",
                       dax.name, dax.node, dax.node);
  if (dax.mode == DaxMode::DEVICE)
    return fmt::format("{0} is a devdax: pools can lie there as dax:/dev/{0}", dax.name);
  return fmt::format("{} has the driver {}", dax.name, dax.driver);
}

/// Why a memory device that is in a region is left alone; "" if only its dax device lacks a driver.
std::string why_region_stays(const Inventory& inventory, const std::string& device,
                             const std::string& name) {
  const Region* region = inventory.region(name);
  if (region == nullptr || !region->committed || region->driver.empty())
    return fmt::format(
        "{0} is in {1}, which is not ready: another program may be making it. If none is, "
        "`cxl destroy-region -f {1}` removes it",
        device, name);
  for (const DaxDevice& dax : inventory.dax_devices) {
    if (dax.region != name) continue;
    if (dax.mode == DaxMode::NONE && !dax.persistent) return "";
    return fmt::format("{} is in {} already; {}", device, name, dax_text(dax));
  }
  return fmt::format(
      "{0} is in {1}, which has no dax device: load dax_cxl (`modprobe dax_cxl`) for volatile "
      "memory, or make a namespace (`ndctl create-namespace --mode=devdax`) of persistent memory",
      device, name);
}

/// The part of the path below the root port, which the host bridge's port begins.
std::string bridge_of(const HostFiles& files, const MemoryDevice& device) {
  const std::string place = files.resolved(cxl(device.endpoint));  // .../root0/port1/endpoint2
  const size_t root = place.rfind("/root");
  if (root == std::string::npos) return "";
  const size_t port = place.find('/', root + 1);
  const std::string name =
      port == std::string::npos ? "" : place.substr(port + 1, place.find('/', port + 1) - port - 1);
  return files.link_name(cxl(name) + "/uport");
}

/// A window of physical addresses that leads to the device, and to no other host bridge.
const Decoder* window_for(const HostFiles& files, const Inventory& inventory,
                          const MemoryDevice& device) {
  const std::string bridge = bridge_of(files, device);
  for (const Decoder& decoder : inventory.decoders) {
    if (decoder.level != DecoderLevel::ROOT || !decoder.takes_volatile || decoder.ways != 1)
      continue;
    const std::string target = files.text(cxl(decoder.name) + "/target_list").value_or("");
    if (files.link_name(fmt::format("{}/dport{}", cxl(decoder.port), target)) == bridge)
      return &decoder;
  }
  return nullptr;
}

/// What a region of a device is made from.
struct Parts {
  const Decoder* window = nullptr;
  const Decoder* decoder = nullptr;  ///< of the endpoint
  uint64_t size_bytes = 0;
};

/// The parts, or IN_USE with the reason why there is nothing to make.
Result<Parts> parts_for(const HostFiles& files, const Inventory& inventory,
                        const MemoryDevice& device) {
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
  if (device.volatile_bytes == 0)
    return stays(fmt::format(
        "{0} has persistent memory only, whose labels and data stay: `cxl create-region -t pmem "
        "{0}` and then `ndctl create-namespace --mode=devdax` make a dax device of it",
        name));
  if (parts.decoder == nullptr) return stays(name + " has no free decoder");
  parts.size_bytes = device.volatile_bytes / kRegionUnitBytes * kRegionUnitBytes;
  if (parts.size_bytes == 0)
    return stays(fmt::format("{} has {} MiB of volatile memory, and a region needs 256", name,
                             device.volatile_bytes >> 20));
  parts.window = window_for(files, inventory, device);
  if (parts.window == nullptr)
    return stays(fmt::format(
        "no root decoder takes volatile memory of {} alone: the firmware has to describe a window "
        "for its host bridge (CFMWS; look for CXL memory in the BIOS), and the kernel must be "
        "Linux 6.3 or newer",
        name));
  return parts;
}

// --- Plans ---------------------------------------------------------------------------------------

/// From a dax device without a driver, or one that a driver takes at once, to the mode.
void add_dax_steps(SetupPlan& plan, bool as_node) {
  const std::string wanted = dax_driver(as_node ? "kmem" : "device_dax");
  const std::string other = dax_driver(as_node ? "device_dax" : "kmem");
  const std::string dax = fmt::format("{}/$dax", kDaxDevices);
  plan.steps.push_back({Step::Kind::WAIT, dax, "", ""});
  plan.steps.push_back({Step::Kind::WRITE_IF, other + "/unbind", "$dax", other + "/$dax"});
  plan.steps.push_back(write(wanted + "/new_id", "$dax"));
  plan.steps.push_back({Step::Kind::WAIT, wanted + "/$dax", "", ""});
}

/// kmem takes a new dax device at once if it is loaded, and its memory becomes that of a node as
/// this policy says. Online and not movable, it could never be taken back.
void add_online_policy(SetupPlan& plan, const HostFiles& files, bool as_node) {
  const auto policy = files.text(kAutoOnline);
  if (!policy) return;
  plan.steps.push_back(write(kAutoOnline, as_node ? "online_movable" : "offline"));
  plan.at_end.push_back(write(kAutoOnline, *policy));
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
  add_online_policy(plan, files, as_node);
  plan.steps.push_back({Step::Kind::READ_REGION, create, "", ""});
  plan.steps.push_back(write(create, "$region"));
  plan.steps.push_back(write(region + "/interleave_granularity", granularity.value_or("256")));
  plan.steps.push_back(write(region + "/interleave_ways", "1"));
  plan.steps.push_back(write(decoder + "/mode", "ram"));
  plan.steps.push_back(write(decoder + "/dpa_size", size));
  plan.steps.push_back(write(region + "/size", size));
  plan.steps.push_back(write(region + "/target0", parts.decoder->name));
  plan.steps.push_back(write(region + "/commit", "1"));
  plan.keep = plan.steps.size();
  plan.steps.push_back(write("/sys/bus/cxl/drivers/cxl_region/bind", "$region"));
  plan.undo = {
      {Step::Kind::WRITE_IF, cxl(parts.window->name) + "/delete_region", "$region", region},
      write(decoder + "/dpa_size", "0")};
  add_dax_steps(plan, as_node);
  return plan;
}

SetupPlan plan_dax(const HostFiles& files, const DaxDevice& dax, bool as_node) {
  SetupPlan plan;
  plan.what = fmt::format("{}: {}", dax.name, as_node ? "memory of a NUMA node" : "a devdax");
  plan.dax = dax.name;
  add_online_policy(plan, files, as_node);
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
  drivers.push_back(as_node ? Driver{"/sys/bus/dax/drivers/kmem", "kmem"}
                            : Driver{"/sys/bus/dax/drivers/device_dax", "device_dax"});
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

Result<void> wait_for(const HostFiles& files, const std::string& path) {
  const auto end = std::chrono::steady_clock::now() + kWaitMost;
  while (!files.exists(path)) {
    if (std::chrono::steady_clock::now() > end)
      return refuse(Status::SYSTEM, path + " did not appear within 10 s");
    std::this_thread::sleep_for(kWaitStep);
  }
  return {};
}

Result<void> take(const HostFiles& files, const Step& step, Names& names) {
  const std::string path = names.in(step.path);
  switch (step.kind) {
    case Step::Kind::READ_REGION: {
      const auto name = files.text(path);
      if (!name || !name->starts_with("region"))
        return refuse(Status::SYSTEM, path + " does not name the next region");
      names = {*name, fmt::format("dax{}.0", name->substr(6))};
      return {};
    }
    case Step::Kind::WAIT:
      return wait_for(files, path);
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
    case Step::Kind::READ_REGION:
      return fmt::format("region=$(cat {})\ndax=dax${{region#region}}.0\n", step.path);
    case Step::Kind::WAIT:
      return fmt::format("until [ -e {} ]; do sleep 0.1; done\n", step.path);
    case Step::Kind::WRITE_IF:
      return fmt::format("[ ! -e {} ] || echo {} >{}\n", step.condition, step.value, step.path);
    case Step::Kind::WRITE:
      break;
  }
  return fmt::format("echo {} >{}\n", step.value, step.path);
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
  for (const MemoryDevice* device : by_serial(inventory)) {
    if (!is_chosen(choice, device->name)) continue;
    const Result<Parts> parts = parts_for(files, inventory, *device);
    if (parts) {
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
  std::string script = "# " + plan.what + "\n";
  if (!plan.dax.empty()) script += fmt::format("dax={}\n", plan.dax);
  for (const Step& step : plan.steps) script += line_of(step);
  for (const Step& step : plan.at_end) script += line_of(step);
  return script;
}

Result<std::string> carry_out(const HostFiles& files, const SetupPlan& plan) {
  Names names{.region = "", .dax = plan.dax};
  Result<void> taken;
  for (size_t i = 0; i < plan.steps.size() && taken; ++i) {
    taken = take(files, plan.steps[i], names);
    // Without a region nothing was begun, and its name stands for nothing.
    if (taken || i >= plan.keep || names.region.empty()) continue;
    for (const Step& step : plan.undo) (void)take(files, step, names);
  }
  for (const Step& step : plan.at_end) {
    const Result<void> restored = take(files, step, names);
    if (taken && !restored) taken = restored;
  }
  if (!taken)
    return refuse(taken.status(), fmt::format("{}: {}; `dmesg` may have the reason", plan.what,
                                              taken.error().message()));
  return names.dax;
}

}  // namespace bowhead::shim
