// SPDX-License-Identifier: Apache-2.0
// bowhead devices, bowhead devices setup
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <ctime>
#include <memory>
#include <thread>

#include "driver-shim/setup.h"
#include "driver-shim/watch.h"
#include "pool/media/media.h"
#include "tools/bowhead/cli.h"
#include "tools/bowhead/device_report.h"

namespace bowhead::cli {
namespace {

constexpr auto kWatchStep = std::chrono::milliseconds(100);
constexpr int kStepsToPoll = 5;

constexpr const char* kFooter = R"(
Shows memory devices, the regions made of them, the dax devices and NUMA nodes through which
programs use them, and what the devices report of their health and of damaged memory. Health and
media errors need root; what cannot be found out is shown as "not known". Nothing is changed.

With --watch the command runs until a signal ends it, and prints a line for each event: parts that
are added, removed or change; entries of the devices' lists of damaged memory (poison), which are
read every 5 seconds; and events that the kernel's CXL drivers trace.

Examples:
  bowhead devices
  bowhead devices --json | jq '.dax_devices[] | select(.can_open) | .path'
  bowhead devices --watch --json
  bowhead devices setup --help)";

constexpr const char* kSetupFooter = R"(
Makes volatile memory of CXL devices usable, as root: a region for each device, and of each region a
dax device in mode devdax, so that a pool can lie there as dax:/dev/daxX.Y. With --node the memory
becomes a NUMA node, online as movable, for pools as numa:NODE/NAME. A dax device that has no driver
is completed. All is done by writes to sysfs, which --dry-run prints as a shell script.

What is in use is left alone, with the reason: devices that are in a region, memory of NUMA nodes,
dax devices with a driver, and persistent memory, whose labels and data stay. If a step fails or a
signal comes, what was begun for this device is undone; after a failed step the next device follows.
With --node, memory in which a pool of another host lies stays a devdax. Nothing survives a reboot:
run the command at each boot.

Exit code 0: there is memory that pools can use. 3: there is none, a step failed, or a device that
was named cannot be set up.

Examples:
  bowhead devices setup --dry-run
  bowhead devices setup
  bowhead devices setup mem1 --node)";

// --- bowhead devices -----------------------------------------------------------------------------

int show(bool json) {
  const shim::HostFiles files;
  DeviceReport report{.inventory = shim::read_inventory(files)};
  report.errors = shim::read_media_errors(files, report.inventory);
  for (const shim::MemoryDevice& device : report.inventory.memory_devices)
    report.health.push_back(shim::read_health(device.name));
  print(json ? json_text(devices_json(report), 2) + "\n" : devices_text(report));
  return kOk;
}

std::string event_text(const shim::HostEvent& event) {
  const std::time_t now = std::time(nullptr);
  std::tm local{};
  localtime_r(&now, &local);
  std::string text = fmt::format("{:02}:{:02}:{:02} {} {}", local.tm_hour, local.tm_min,
                                 local.tm_sec, event.what, event.kind);
  if (!event.name.empty()) text += " " + event.name;
  if (!event.detail.empty()) text += ": " + event.detail;
  for (const auto& [key, value] : event.fields) text += fmt::format(" {}={}", key, value);
  return text + "\n";
}

Json event_json(const shim::HostEvent& event) {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  Json json = {{"time_unix_ns", std::chrono::nanoseconds(now).count()},
               {"event", event.what},
               {"kind", event.kind},
               {"name", event.name},
               {"detail", event.detail}};
  if (event.error) json["media_error"] = media_error_json(*event.error);
  for (const auto& [key, value] : event.fields) json["fields"][key] = value;
  return json;
}

int watch(bool json) {
  Interruption interruption;
  shim::Watch watch{shim::HostFiles()};
  for (int step = 0; !interruption.came(); ++step) {
    if (step % kStepsToPoll == 0) {
      for (const shim::HostEvent& event : watch.poll())
        print(json ? json_text(event_json(event), -1) + "\n" : event_text(event));
      if (std::fflush(stdout) != 0) return kOk;  // finish_output() reports it
    }
    std::this_thread::sleep_for(kWatchStep);
  }
  return kOk;
}

// --- bowhead devices setup -----------------------------------------------------------------------

struct SetupArguments {
  shim::SetupChoice choice;
  bool dry_run = false;
  bool json = false;
};

bool has_usable_memory(const shim::Inventory& inventory) {
  const auto is_usable = [](const shim::DaxDevice& dax) {
    return dax.mode == shim::DaxMode::DEVICE || dax.mode == shim::DaxMode::SYSTEM;
  };
  return std::any_of(inventory.dax_devices.begin(), inventory.dax_devices.end(), is_usable) ||
         std::any_of(inventory.regions.begin(), inventory.regions.end(),
                     [](const shim::Region& region) { return region.system_memory; });
}

int dry_run(const shim::SetupPlans& plans, bool json) {
  Json report = {{"plans", Json::array()}, {"left_alone", plans.left_alone}};
  for (const shim::SetupPlan& plan : plans.plans) {
    report["plans"].push_back({{"what", plan.what}, {"script", script_of(plan)}});
    if (!json) print(script_of(plan));
  }
  if (json) print(json_text(report, 2) + "\n");
  return kOk;
}

/// What fails with one device says nothing about the next.
int carry_out_all(const shim::HostFiles& files, const shim::SetupPlans& plans, bool json) {
  Interruption interruption;
  bool interrupted = false;
  const shim::SetupHooks hooks = {.holds_pool = device_holds_pool, .interrupted = [&] {
                                    return interrupted = interrupted || interruption.came();
                                  }};
  Json report = {
      {"done", Json::array()}, {"failed", Json::array()}, {"left_alone", plans.left_alone}};
  int code = kOk;
  for (const shim::SetupPlan& plan : plans.plans) {
    const auto dax = shim::carry_out(files, plan, hooks);
    if (dax) {
      report["done"].push_back({{"what", plan.what}, {"dax", *dax}});
      if (!json) print(fmt::format("{}: {}\n", plan.what, *dax));
      continue;
    }
    report["failed"].push_back({{"what", plan.what}, {"why", dax.error().message()}});
    code = fail(dax.error());
    if (interrupted) break;
  }
  if (json) print(json_text(report, 2) + "\n");
  return interrupted ? interruption.exit_code() : code;
}

int setup(const SetupArguments& arguments) {
  const shim::HostFiles files;
  shim::wait_for_probing(files);
  // Without dax devices nothing can be locked, nor set up.
  Result<UniqueFd> lock = UniqueFd();
  if (!arguments.dry_run && files.exists(shim::kDaxDevices)) lock = shim::lock_setup(files);
  if (!lock) return fail(lock.error());
  const shim::Inventory inventory = shim::read_inventory(files);
  const auto plans = shim::plan_setup(files, inventory, arguments.choice);
  if (!plans) return fail(plans.error());
  for (const std::string& reason : plans->left_alone) say(reason);
  if (plans->plans.empty() && !has_usable_memory(inventory)) {
    say(inventory.memory_devices.empty()
            ? "this host has no CXL memory device; `bowhead doctor` looks for the reason"
            : "there is nothing to set up, and no dax device to use");
    return kEnvironment;
  }
  return arguments.dry_run ? dry_run(*plans, arguments.json)
                           : carry_out_all(files, *plans, arguments.json);
}

void add_setup_command(CLI::App& devices, Action& action) {
  auto* command = devices.add_subcommand("setup", "Make regions and dax devices of CXL memory");
  auto a = std::make_shared<SetupArguments>();
  command->add_option("device", a->choice.devices,
                      "Memory devices, such as mem0; without any, all that can be set up");
  command->add_flag("--node", a->choice.as_node, "Make the memory a NUMA node, not a devdax");
  command->add_flag("--dry-run", a->dry_run, "Print what would be done as a shell script");
  command->add_flag("--json", a->json, "Report as JSON");
  command->footer(kSetupFooter);
  command->callback([a, &action] { action = [a] { return setup(*a); }; });
}

}  // namespace

void add_devices_command(CLI::App& app, Action& action) {
  struct Arguments {
    bool json = false, watch = false;
  };
  auto* command = app.add_subcommand("devices", "List the CXL memory of this host, set it up");
  auto a = std::make_shared<Arguments>();
  command->add_flag("--json", a->json, "Report as JSON; with --watch, one line for each event");
  command->add_flag("--watch", a->watch, "Print events until a signal ends the command");
  command->footer(kFooter);
  add_setup_command(*command, action);
  command->callback([a, command, &action] {
    if (!command->get_subcommands().empty()) {  // that one's action is set
      if (a->json || a->watch)
        throw CLI::ValidationError(
            "before `setup`, --json and --watch are options of `devices` "
            "alone; write: bowhead devices setup --json");
      return;
    }
    action = [a] { return a->watch ? watch(a->json) : show(a->json); };
  });
}

}  // namespace bowhead::cli
