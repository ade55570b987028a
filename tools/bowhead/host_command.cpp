// SPDX-License-Identifier: Apache-2.0
// bowhead host
#include <fmt/format.h>

#include <chrono>
#include <memory>
#include <thread>

#include "tools/bowhead/cli.h"

namespace bowhead::cli {
namespace {

constexpr auto kStep = std::chrono::milliseconds(100);
constexpr int kStepsToScavenge = 10;

struct HostArguments {
  std::string locator;
  bool leave = false;
};

/// The slot that a handle acts as: the one in which this machine has a process more than before.
std::string slot_text(const PoolInfo& info) {
  if (info.hosts.size() <= 1) return "the only host";
  if (chosen_host() != kAnyHost) return fmt::format("host {}", chosen_host());
  for (const auto& host : info.hosts) {
    if (host.processes_live > 0) return fmt::format("host {}", host.slot);
  }
  return "a host";
}

int run_host(const HostArguments& arguments) {
  Interruption interruption;
  auto pool = open_pool(arguments.locator);
  if (!pool) return fail(pool.error(), arguments.locator);
  const auto info = pool->info();
  if (!info) return fail(*pool, info.error(), arguments.locator);
  print(fmt::format("{} of {} is up\n", slot_text(*info), arguments.locator));
  for (int step = 0; !interruption.came(); ++step) {
    std::this_thread::sleep_for(kStep);
    // Ends when this life of the host is over, or the pool: a restart joins anew.
    if (const auto pressure = pool->pressure(); !pressure)
      return fail(*pool, pressure.error(), arguments.locator);
    if (step % kStepsToScavenge != 0) continue;
    if (const auto found = pool->scavenge(); !found)
      return fail(*pool, found.error(), arguments.locator);
  }
  if (!arguments.leave) return kOk;
  if (const auto left = pool->leave(); !left) return fail(*pool, left.error(), arguments.locator);
  print(fmt::format("left {}\n", arguments.locator));
  return kOk;
}

}  // namespace

void add_host_command(CLI::App& app, Action& action) {
  auto* command = app.add_subcommand("host", "Keep this host in a pool while engines restart");
  auto a = std::make_shared<HostArguments>();
  command->add_option("locator", a->locator, kLocatorHelp)->required();
  add_host_option(*command);
  command->add_flag("--leave", a->leave,
                    "Leave the pool when a signal ends the command, as `bowhead pool leave` does");
  command->footer(R"(
Runs until SIGINT or SIGTERM. In a pool of several hosts, a host whose processes have all ended is
declared dead after --dead-ms, and the others take over its extents. While this command runs, the
host stays: it keeps the heartbeat, does the host's duties, and undoes at once what engines left
half done that were killed. It ends with exit code 3 when the pool is destroyed or the others have
declared the host dead; a service manager then starts it again (bowhead-host@.service).

Example:
  bowhead host file:/mnt/cxl/kv --host 3)");
  command->callback([a, &action] { action = [a] { return run_host(*a); }; });
}

}  // namespace bowhead::cli
