// SPDX-License-Identifier: Apache-2.0
// bowhead device
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "driver-shim/queue_pair.h"
#include "firmware-sim/device.h"
#include "ndp/injector.h"
#include "tools/bowhead/cli.h"
#include "tools/bowhead/json.h"
#include "tools/program/numbers.h"
#include "tools/program/text.h"

namespace bowhead::cli {
namespace {

struct Arguments {
  std::string locator;
  uint32_t count = 1000, threads = 1;
  std::vector<std::string> faults;
  std::string profile;
  bool json = false;
};

int run_serve(const Arguments& a) {
  std::vector<ndp::Fault> faults;
  for (const std::string& text : a.faults) {
    const auto fault = ndp::parse_fault(text);
    if (!fault) return fail(fault.error());
    faults.push_back(*fault);
  }
  std::optional<device::Profile> profile;
  if (!a.profile.empty()) {
    const auto named = device::profile_named(a.profile);
    if (!named) return fail(named.error());
    profile = *named;
  }
  Interruption interruption;
  ProgressLine progress;
  auto pool = open_pool(a.locator, progress.callback());
  if (!pool) return fail(pool.error(), a.locator);
  ndp::ProcessEngine engine;
  ndp::Injector injector(engine, faults);
  const auto device = device::Device::make(
      *pool,
      {.threads = a.threads, .engine = faults.empty() ? nullptr : &injector, .profile = profile});
  if (!device) return fail(*pool, device.error(), a.locator);
  print(fmt::format("{}: the device is up{}\n", a.locator,
                    faults.empty() ? "" : ", with faults that are injected"));
  if (const int code = finish_output(kOk); code != kOk) return code;
  // A look for signals is a system call: not each time.
  using Clock = std::chrono::steady_clock;
  Clock::time_point looked = Clock::now();
  bool stops = false;
  const auto served = (*device)->serve([&] {
    const Clock::time_point now = Clock::now();
    if (now - looked > std::chrono::milliseconds(1)) {
      stops = interruption.came();
      looked = now;
    }
    return stops;
  });
  if (!served) return fail(*pool, served.error(), a.locator);
  const device::Counters counters = (*device)->counters();
  print(fmt::format("{} commands, of which {} were refused; {} of blocks were read\n",
                    grouped(counters.commands), grouped(counters.refused),
                    exact_bytes(counters.read_bytes)));
  return kOk;
}

int run_ping(const Arguments& a) {
  auto pool = open_pool(a.locator);
  if (!pool) return fail(pool.error(), a.locator);
  // Where several hosts have the pool, only the time limit tells that there is no device.
  constexpr uint64_t kLittle = 4096, kTimeoutMs = 2000;
  const auto pair = driver::QueuePair::open(
      *pool, {.request_bytes = kLittle, .answer_bytes = kLittle, .timeout_ms = kTimeoutMs});
  if (!pair) return fail(*pool, pair.error(), a.locator);
  std::vector<double> times_us;
  for (uint32_t i = 0; i < a.count; ++i) {
    const auto start = std::chrono::steady_clock::now();
    if (const auto answered = (*pair)->ping(); !answered)
      return fail(*pool, answered.error(), a.locator);
    times_us.push_back(
        std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - start)
            .count());
  }
  std::sort(times_us.begin(), times_us.end());
  const double median = times_us[times_us.size() / 2],
               late = times_us[times_us.size() - 1 - times_us.size() / 100];
  if (a.json)
    print(json_text(Json{{"locator", a.locator},
                         {"commands", a.count},
                         {"median_us", median},
                         {"p99_us", late}},
                    2) +
          "\n");
  else
    print(fmt::format("{} empty commands: {:.2f} us each (median), {:.2f} us (99th percentile)\n",
                      grouped(a.count), median, late));
  return kOk;
}

}  // namespace

void add_device_command(CLI::App& app, Action& action) {
  auto* group = app.add_subcommand("device", "Compute next to the memory, in a process of its own");
  group->require_subcommand(1);
  auto a = std::make_shared<Arguments>();

  auto* serve = group->add_subcommand("serve", "Be the device of a pool");
  serve->add_option("locator", a->locator, kLocatorHelp)->required();
  add_host_option(*serve);
  add_number(*serve, "--threads", a->threads,
             "Threads that compute: as many as the cores that it may have (default 1)", {1, 1024});
  serve
      ->add_option("--inject", a->faults,
                   "Have requests fail, to test what asks: fail, corrupt, delay or drop, then of "
                   "how many requests one does, then how often in all; may be repeated")
      ->type_name("KIND[:EVERY[:COUNT]]");
  std::string profiles;
  for (const device::Profile& profile : device::profiles())
    profiles += fmt::format("\n  {:<8} {}", profile.name, profile.description);
  serve
      ->add_option("--profile", a->profile,
                   "Say with each answer how long this hardware would take, as a model has it")
      ->type_name("NAME");
  serve->footer(R"(
Runs until SIGINT or SIGTERM, and answers the requests of processes that have the pool open:
scores, the best keys, attention, rows and bounds of pages, of blocks where they lie. A pool has one
device on a machine. If it ends, requests that are under way fail, and are sent again when it is
back; the pool is not touched by that. Pin it to cores next to the memory, with `numactl` or
`taskset`.

Modelled hardware, for --profile:)" +
                profiles + R"(

Examples:
  bowhead device serve shm:demo
  numactl --cpunodebind=1 bowhead device serve shm:demo --threads 8
  bowhead device serve shm:demo --profile m2ndp
  bowhead device serve shm:demo --inject drop:1000 --inject delay:10)");
  serve->callback([a, &action] { action = [a] { return run_serve(*a); }; });

  auto* ping = group->add_subcommand("ping", "Measure how long an empty command takes");
  ping->add_option("locator", a->locator, kLocatorHelp)->required();
  add_host_option(*ping);
  add_number(*ping, "--count", a->count, "Commands to send, one after the other (default 1000)",
             {1, 10'000'000});
  ping->add_flag("--json", a->json, "As JSON");
  ping->footer(R"(
Example:
  bowhead device ping shm:demo)");
  ping->callback([a, &action] { action = [a] { return run_ping(*a); }; });
}

}  // namespace bowhead::cli
