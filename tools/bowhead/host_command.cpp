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
constexpr int kStepsToLook = 10;

struct HostArguments {
  std::string locator;
  bool leave = false;
};

int run_host(const HostArguments& arguments) {
  Interruption interruption;
  ProgressLine progress;
  const Progress report = progress.callback();
  auto pool = open_pool(arguments.locator, {}, /*look=*/false, /*prefault=*/true);
  if (!pool) return fail(pool.error(), arguments.locator);
  print(fmt::format("{}: the host is up\n", arguments.locator));
  if (const int code = finish_output(kOk); code != kOk) return code;
  for (int step = 0; !interruption.came(); ++step) {
    std::this_thread::sleep_for(kStep);
    const Pool::Prefaulted touched = pool->prefaulted();
    if (touched.bytes == touched.of_bytes)
      progress.clear();
    else if (report)
      report(touched.bytes, touched.of_bytes, "touching pages");
    if (step % kStepsToLook != 0) continue;
    // Ends when this life of the host is over, or the pool: a restart joins anew.
    if (const auto pressure = pool->pressure(); !pressure)
      return fail(*pool, pressure.error(), arguments.locator);
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
