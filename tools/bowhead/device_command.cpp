// SPDX-License-Identifier: Apache-2.0
// bowhead device
#include <bowhead/format/device.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "driver-shim/mailbox.h"
#include "driver-shim/queue_pair.h"
#include "firmware-sim/device.h"
#include "firmware-sim/pci_function.h"
#include "firmware-sim/pci_server.h"
#include "firmware-sim/pool_device.h"
#include "ndp/injector.h"
#include "tools/bowhead/cli.h"
#include "tools/bowhead/json.h"
#include "tools/program/numbers.h"
#include "tools/program/text.h"

namespace bowhead::cli {
namespace {

struct Arguments {
  std::string locator, socket;
  uint32_t count = 1000, threads = 1;
  std::optional<uint64_t> inject, clear;
  std::vector<std::string> faults;
  std::string profile;
  bool interrupts = false, json = false;
};

/// What `serve` and `pci` have in common.
struct Service {
  std::vector<ndp::Fault> faults;
  std::optional<device::Profile> profile;
};

Result<Service> service_of(const Arguments& a) {
  Service service;
  for (const std::string& text : a.faults) {
    const auto fault = ndp::parse_fault(text);
    if (!fault) return fault.error();
    service.faults.push_back(*fault);
  }
  if (!a.profile.empty()) {
    const auto named = device::profile_named(a.profile);
    if (!named) return named.error();
    service.profile = *named;
  }
  return service;
}

int run_serve(const Arguments& a) {
  const auto service = service_of(a);
  if (!service) return fail(service.error());
  Interruption interruption;
  ProgressLine progress;
  auto pool = open_pool(a.locator, progress.callback());
  if (!pool) return fail(pool.error(), a.locator);
  ndp::ProcessEngine engine;
  ndp::Injector injector(engine, service->faults);
  const bool injects = !service->faults.empty();
  const auto device = device::Device::make(
      *pool,
      {.threads = a.threads, .engine = injects ? &injector : nullptr, .profile = service->profile});
  if (!device) return fail(*pool, device.error(), a.locator);
  print(fmt::format("{}: the device is up{}\n", a.locator,
                    injects ? ", with faults that are injected" : ""));
  if (const int code = finish_output(kOk); code != kOk) return code;
  const auto served = (*device)->serve([&] { return interruption.came(); });
  if (!served) return fail(*pool, served.error(), a.locator);
  const device::Counters counters = (*device)->counters();
  print(fmt::format("{} commands, of which {} were refused; {} of blocks were read\n",
                    grouped(counters.commands), grouped(counters.refused),
                    exact_bytes(counters.read_bytes)));
  return kOk;
}

int run_pci(const Arguments& a) {
  const auto service = service_of(a);
  if (!service) return fail(service.error());
  Interruption interruption;
  auto server = device::PciServer::listen(a.socket);
  if (!server) return fail(server.error());
  ndp::ProcessEngine engine;
  ndp::Injector injector(engine, service->faults);
  const bool injects = !service->faults.empty();
  const auto tell = [&](const std::string& text) { say(fmt::format("{}: {}", a.socket, text)); };
  device::PoolDevice device(
      chosen_host(),
      {.threads = a.threads, .engine = injects ? &injector : nullptr, .profile = service->profile},
      tell);
  device::DmaMappings mappings;
  device::PciFunction function(mappings, device, a.interrupts);
  print(fmt::format("{}: the function waits for a machine{}\n", a.socket,
                    injects ? ", with faults that are injected" : ""));
  if (const int code = finish_output(kOk); code != kOk) return code;
  const auto served = server->serve(
      function, mappings, [&] { return interruption.came(); }, tell);
  return served ? kOk : fail(served.error());
}

/// Names of the bits that are set.
std::string operations_of(uint64_t bits) {
  std::vector<std::string> names;
  for (int opcode = BH_DEVICE_SCORE; opcode <= BH_DEVICE_DIGEST; ++opcode) {
    if (bits >> opcode & 1) names.emplace_back(operation_name(static_cast<ndp::Operation>(opcode)));
  }
  return fmt::format("{}", fmt::join(names, ", "));
}

std::vector<std::string> troubles_of(const driver::DeviceHealth& health) {
  std::vector<std::string> all;
  if (health.maintenance_needed) all.emplace_back("maintenance needed");
  if (health.performance_degraded) all.emplace_back("performance degraded");
  if (health.replacement_needed) all.emplace_back("replacement needed");
  if (health.capacity_degraded) all.emplace_back("capacity degraded");
  return all;
}

/// What `info` shows.
struct DeviceInfo {
  driver::DeviceIdentity identity;
  driver::DeviceHealth health;
  cxl::NdpCapabilities capabilities;
  cxl::Counters counters;
  cxl::HotnessInfo hotness;
};

Result<DeviceInfo> info_of(driver::MailboxClient& mailbox) {
  const auto identity = mailbox.identify();
  if (!identity) return identity.error();
  const auto health = mailbox.health();
  if (!health) return health.error();
  const auto capabilities = mailbox.capabilities();
  if (!capabilities) return capabilities.error();
  const auto counters = mailbox.counters();
  if (!counters) return counters.error();
  const auto hotness = mailbox.hotness();
  if (!hotness) return hotness.error();
  return DeviceInfo{*identity, *health, *capabilities, *counters, *hotness};
}

void print_info(const DeviceInfo& info) {
  const auto troubles = troubles_of(info.health);
  const cxl::Counters& counters = info.counters;
  print(fmt::format("firmware    {}\n", info.identity.firmware));
  print(fmt::format("memory      {}\n", exact_bytes(info.capabilities.capacity_bytes)));
  print(fmt::format("operations  {}\n", operations_of(info.capabilities.operations)));
  print(fmt::format("health      {}\n",
                    troubles.empty() ? "ok" : fmt::format("{}", fmt::join(troubles, ", "))));
  print(fmt::format("commands    {}, of which {} were refused; processes now: {}\n",
                    grouped(counters.commands), grouped(counters.refused),
                    grouped(counters.pairs)));
  print(fmt::format("read        {} of blocks\n", exact_bytes(counters.read_bytes)));
  print(fmt::format("poison      {} lines, met {} times\n", grouped(counters.poisoned_lines),
                    grouped(counters.poison_met)));
  if (info.hotness.setting.enabled == 0)
    print("hotness     not counted\n");
  else
    print(fmt::format("hotness     in units of {}, {} epochs of {} ms have ended\n",
                      exact_bytes(uint64_t{1} << info.hotness.setting.unit_log2),
                      grouped(info.hotness.epochs), uint32_t{info.hotness.setting.epoch_ms}));
}

void print_info_json(const Arguments& a, const DeviceInfo& info) {
  print(json_text(Json{{"locator", a.locator},
                       {"firmware", info.identity.firmware},
                       {"memory_bytes", uint64_t{info.capabilities.capacity_bytes}},
                       {"operations", uint64_t{info.capabilities.operations}},
                       {"troubles", troubles_of(info.health)},
                       {"commands", uint64_t{info.counters.commands}},
                       {"refused", uint64_t{info.counters.refused}},
                       {"processes", uint64_t{info.counters.pairs}},
                       {"read_bytes", uint64_t{info.counters.read_bytes}},
                       {"poisoned_lines", uint64_t{info.counters.poisoned_lines}},
                       {"poison_met", uint64_t{info.counters.poison_met}},
                       {"hotness", info.hotness.setting.enabled != 0},
                       {"epochs", uint64_t{info.hotness.epochs}}},
                  2) +
        "\n");
}

int run_info(const Arguments& a) {
  auto pool = open_pool(a.locator);
  if (!pool) return fail(pool.error(), a.locator);
  const auto pair = driver::QueuePair::open(*pool, driver::kSmallQueuePair);
  if (!pair) return fail(*pool, pair.error(), a.locator);
  driver::MailboxClient mailbox(**pair);
  const auto info = info_of(mailbox);
  if (!info) return fail(*pool, info.error(), a.locator);
  a.json ? print_info_json(a, *info) : print_info(*info);
  return kOk;
}

int run_poison(const Arguments& a) {
  auto pool = open_pool(a.locator);
  if (!pool) return fail(pool.error(), a.locator);
  const auto pair = driver::QueuePair::open(*pool, driver::kSmallQueuePair);
  if (!pair) return fail(*pool, pair.error(), a.locator);
  driver::MailboxClient mailbox(**pair);
  const auto capabilities = mailbox.capabilities();
  if (!capabilities) return fail(*pool, capabilities.error(), a.locator);
  Result<void> done;
  if (a.inject) done = mailbox.inject_poison(*a.inject);
  const std::array<std::byte, cxl::kLineBytes> zeros{};
  if (done && a.clear) done = mailbox.clear_poison(*a.clear, zeros);
  if (!done) return fail(*pool, done.error(), a.locator);
  const auto list = mailbox.poison_list(0, uint64_t{capabilities->capacity_bytes} / 64 * 64);
  if (!list) return fail(*pool, list.error(), a.locator);
  Table table({">OFFSET", ">BYTES"});
  Json lines = Json::array();
  for (const driver::PoisonRecord& record : list->records) {
    table.add({grouped(record.offset), grouped(record.bytes)});
    lines.push_back({{"offset", record.offset}, {"bytes", record.bytes}});
  }
  if (a.json)
    print(
        json_text(Json{{"locator", a.locator}, {"poison", lines}, {"more", list->overflowed}}, 2) +
        "\n");
  else
    print(list->records.empty() ? "no poison\n" : table.text());
  return kOk;
}

int run_ping(const Arguments& a) {
  auto pool = open_pool(a.locator);
  if (!pool) return fail(pool.error(), a.locator);
  const auto pair = driver::QueuePair::open(*pool, driver::kSmallQueuePair);
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

using Shared = std::shared_ptr<Arguments>;

void add_service_options(CLI::App& command, const Shared& a) {
  add_host_option(command);
  add_number(command, "--threads", a->threads,
             "Threads that compute: as many as the cores that it may have (default 1)", {1, 1024});
  command
      .add_option("--inject", a->faults,
                  "Have requests fail, to test what asks: fail, corrupt, delay or drop, then of "
                  "how many requests one does, then how often in all; may be repeated")
      ->type_name("KIND[:EVERY[:COUNT]]");
  command
      .add_option("--profile", a->profile,
                  "Say with each answer how long this hardware would take, as a model has it")
      ->type_name("NAME");
}

void add_serve(CLI::App& group, Action& action, const Shared& a) {
  auto* serve = group.add_subcommand("serve", "Be the device of a pool");
  serve->add_option("locator", a->locator, kLocatorHelp)->required();
  add_service_options(*serve, a);
  std::string profiles;
  for (const device::Profile& profile : device::profiles())
    profiles += fmt::format("\n  {:<8} {}", profile.name, profile.description);
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
}

void add_pci(CLI::App& group, Action& action, const Shared& a) {
  auto* pci = group.add_subcommand("pci", "Be the device of a virtual machine, as a PCI function");
  pci->add_option("socket", a->socket, "Path of the Unix socket that the machine connects to")
      ->required();
  add_service_options(*pci, a);
  pci->add_flag(
      "--interrupts", a->interrupts,
      "With an interrupt (MSI-X), for a machine with an IOMMU; QEMU 11 cannot unplug such "
      "a function");
  pci->footer(R"(
Runs until SIGINT or SIGTERM. QEMU connects with
  -device '{"driver":"vfio-user-pci","bus":"pcie.0","rombar":0,
            "socket":{"type":"unix","path":"SOCKET"}}'
and needs memory that it can share, as docs/device-pci.md shows. A process in the machine that asks
the device of a pool on a dax device finds the function, and has it serve that pool: as a host of
its own, so make the pool with --hosts 2 or more.

Example:
  bowhead device pci /run/bowhead/device.sock --host 1 --threads 4)");
  pci->callback([a, &action] { action = [a] { return run_pci(*a); }; });
}

void add_info(CLI::App& group, Action& action, const Shared& a) {
  auto* info = group.add_subcommand("info", "Show what the device of a pool has, and has done");
  info->add_option("locator", a->locator, kLocatorHelp)->required();
  add_host_option(*info);
  info->add_flag("--json", a->json, "As JSON");
  info->footer(R"(
Example:
  bowhead device info shm:demo)");
  info->callback([a, &action] { action = [a] { return run_info(*a); }; });
}

void add_poison(CLI::App& group, Action& action, const Shared& a) {
  auto* poison = group.add_subcommand("poison", "List the memory that the device reads no more");
  poison->add_option("locator", a->locator, kLocatorHelp)->required();
  add_host_option(*poison);
  constexpr uint64_t kAny = std::numeric_limits<int64_t>::max();
  auto* inject = poison->add_option("--inject", a->inject,
                                    "First poison the line of 64 bytes at this offset of the pool: "
                                    "requests for its block are refused, or leave it out");
  inject->transform(whole_number({0, kAny}))->type_name("OFFSET");
  auto* clear = poison->add_option("--clear", a->clear, "First take the poison away there");
  clear->transform(whole_number({0, kAny}))->type_name("OFFSET")->excludes(inject);
  poison->add_flag("--json", a->json, "As JSON");
  poison->footer(R"(
Poison is laid over the memory, which keeps its bytes; it is gone when the device ends.

Examples:
  bowhead device poison shm:demo
  bowhead device poison shm:demo --inject 4194304)");
  poison->callback([a, &action] { action = [a] { return run_poison(*a); }; });
}

void add_ping(CLI::App& group, Action& action, const Shared& a) {
  auto* ping = group.add_subcommand("ping", "Measure how long an empty command takes");
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

}  // namespace

void add_device_command(CLI::App& app, Action& action) {
  auto* group = app.add_subcommand("device", "Compute next to the memory, in a process of its own");
  group->require_subcommand(1);
  group->footer(R"(
Examples:
  bowhead device serve shm:demo &
  bowhead device ping shm:demo
  bowhead topk shm:demo b0 --namespace kv --device
  bowhead device info shm:demo)");
  auto a = std::make_shared<Arguments>();
  add_serve(*group, action, a);
  add_pci(*group, action, a);
  add_info(*group, action, a);
  add_poison(*group, action, a);
  add_ping(*group, action, a);
}

}  // namespace bowhead::cli
