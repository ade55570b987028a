// SPDX-License-Identifier: Apache-2.0
// bowhead doctor
#include "driver-shim/doctor.h"

#include <fmt/format.h>

#include <algorithm>
#include <memory>

#include "driver-shim/device_findings.h"
#include "tools/bowhead/cli.h"
#include "tools/bowhead/json.h"
#include "tools/program/text.h"

namespace bowhead::cli {
namespace {

constexpr const char* kFooter = R"(
Looks at the kernel and its drivers, CXL devices, their regions and dax devices, NUMA nodes, media
errors, huge pages, limits, GPU and clock, with --pool at a pool's device, and names what is missing
or set wrongly: what it is, why it matters, and the command that mends it. Nothing is changed, but
--pool opens the pool as a process that uses it does.

  problem  something cannot work
  hint     works, and could work better, or for more users
  unknown  could not be found out; root can find out more than other users
  ok       as it should be

Exit code 0: no problem was found. 1: problems were found.

Examples:
  bowhead doctor
  bowhead doctor --pool shm:demo
  bowhead doctor --json | jq -r '.findings[] | select(.level == "problem") | .mend')";

constexpr shim::Level kLevels[] = {shim::Level::PROBLEM, shim::Level::HINT, shim::Level::UNKNOWN,
                                   shim::Level::OK};

size_t count_of(const std::vector<shim::Finding>& findings, shim::Level level) {
  return static_cast<size_t>(
      std::count_if(findings.begin(), findings.end(),
                    [&](const shim::Finding& finding) { return finding.level == level; }));
}

std::string report_text(const std::vector<shim::Finding>& findings) {
  std::string text;
  for (const shim::Finding& finding : findings) {
    text += fmt::format("{:<8} {}: {}\n", name_of(finding.level), finding.subject,
                        one_line(finding.what));
    if (!finding.why.empty()) text += fmt::format("         why:  {}\n", finding.why);
    if (!finding.mend.empty()) text += fmt::format("         mend: {}\n", finding.mend);
  }
  return text + fmt::format(
                    "\nproblems: {}, hints: {}, unknown: {}, ok: {}\n",
                    count_of(findings, shim::Level::PROBLEM), count_of(findings, shim::Level::HINT),
                    count_of(findings, shim::Level::UNKNOWN), count_of(findings, shim::Level::OK));
}

std::string report_json(const std::vector<shim::Finding>& findings) {
  Json json = {{"findings", Json::array()}};
  for (const shim::Finding& finding : findings) {
    json["findings"].push_back({{"level", name_of(finding.level)},
                                {"subject", finding.subject},
                                {"what", finding.what},
                                {"why", finding.why},
                                {"mend", finding.mend}});
  }
  for (const shim::Level level : kLevels)
    json["counts"][name_of(level)] = count_of(findings, level);
  return json_text(json, 2) + "\n";
}

struct Arguments {
  std::vector<std::string> pools;
  bool json = false;
};

void add_pool(const std::string& locator, std::vector<shim::Finding>& findings) {
  auto pool = open_pool(locator);
  if (!pool) {
    findings.push_back({shim::Level::PROBLEM, "pool " + locator,
                        "it cannot be opened: " + pool.error().message(),
                        "this user can neither store there nor read", ""});
    return;
  }
  for (shim::Finding& finding : shim::examine_device(*pool, locator))
    findings.push_back(std::move(finding));
}

int run(const Arguments& a) {
  const shim::HostFiles files;
  const shim::Inventory inventory = shim::read_inventory(files);
  const shim::MediaErrors errors = shim::read_media_errors(files, inventory);
  std::vector<Result<shim::Health>> health;
  for (const shim::MemoryDevice& device : inventory.memory_devices)
    health.push_back(shim::read_health(device.name));
  auto findings = shim::examine({.files = files,
                                 .inventory = inventory,
                                 .errors = errors,
                                 .health = health,
                                 .limits = shim::read_limits()});
  for (const std::string& locator : a.pools) add_pool(locator, findings);
  shim::sort_by_urgency(findings);
  print(a.json ? report_json(findings) : report_text(findings));
  return count_of(findings, shim::Level::PROBLEM) == 0 ? kOk : kDamage;
}

}  // namespace

void add_doctor_command(CLI::App& app, Action& action) {
  auto* command = app.add_subcommand("doctor", "Find what is missing or set wrongly on this host");
  auto a = std::make_shared<Arguments>();
  command->add_option("--pool", a->pools,
                      "Also examine this pool's device (bowhead device serve); may be repeated");
  add_host_option(*command);
  command->add_flag("--json", a->json, "Report as JSON");
  command->footer(kFooter);
  command->callback([a, &action] { action = [a] { return run(*a); }; });
}

}  // namespace bowhead::cli
