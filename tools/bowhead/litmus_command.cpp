// SPDX-License-Identifier: Apache-2.0
// bowhead litmus: finds the flush primitive with which two hosts can share a pool.
#include "pool/litmus.h"

#include <fmt/format.h>

#include <memory>

#include "tools/bowhead/cli.h"
#include "tools/bowhead/json.h"
#include "tools/program/numbers.h"
#include "tools/program/text.h"

namespace bowhead::cli {
namespace {

struct Arguments {
  std::string locator;
  std::string host;
  LitmusOptions options;
  bool json = false;
};

constexpr const char* kFooter = R"(
Hosts without hardware coherence share a pool by writing lines back and invalidating them. Which
instruction does that reliably depends on the CPU and the memory device. Start this command on both
hosts within a minute; no other process may have the pool open. It tries every instruction that both
CPUs have, and none at all, in three patterns:

  message passing        one host writes data, then a flag: if the other sees the flag, it
                         must see the data
  store buffering        each host writes, then reads what the other wrote: at least one
                         must see the other's write
  lease against retire   the same, between a reader that takes a lease on a known block and the
                         owner that retires the block

It counts stale reads, measures the cost of a publish (store, write back, fence) and an acquire
(invalidate, fence, load) of a line, and names the cheapest instruction without stale reads. To see
the costs alone, run both sides on one machine, with --host A and --host B: its caches are coherent.

Exit code 0: the instructions in use on these hosts had no stale reads. 1: they had; see the report.

Examples:
  bowhead pool create file:/mnt/cxl/pool --size 4G --hosts 2
  bowhead litmus file:/mnt/cxl/pool --host A        # on one host
  bowhead litmus file:/mnt/cxl/pool --host B        # on the other
  bowhead litmus file:/mnt/cxl/pool --host A --seconds 600 --json)";

std::string tally_text(const LitmusTally& tally) {
  return fmt::format("{} of {}", grouped(tally.stale), grouped(tally.rounds));
}

std::string cost_text(const std::array<double, 2>& ns) {
  return fmt::format("{:.0f} / {:.0f} ns", ns[0], ns[1]);
}

std::string in_use_text(const LitmusReport& report) {
  const char* a = flush_kind_name(report.in_use[0]);
  const char* b = flush_kind_name(report.in_use[1]);
  if (report.in_use[0] == report.in_use[1]) return fmt::format("Both hosts use {}", a);
  return fmt::format("Host A uses {}, host B {}", a, b);
}

/// The recommendation, in sentences.
std::string advice(const LitmusReport& report) {
  const auto recommended = report.recommended();
  if (!recommended) {
    return "Recommended: nothing. Every instruction that both CPUs have showed stale reads: these\n"
           "hosts cannot share this memory safely without hardware coherence. Do not open the "
           "pool\n"
           "from both.\n";
  }
  const char* name = flush_kind_name(*recommended);
  if (report.in_use[0] == *recommended && report.in_use[1] == *recommended) {
    return fmt::format(
        "Recommended: {}, which both hosts use: no stale reads, and none without "
        "them\nis much cheaper.\n",
        name);
  }
  return fmt::format(
      "Recommended: {}, the cheapest without stale reads.\n{}{}\n"
      "Set BOWHEAD_FLUSH={} for every process of both hosts to choose it.\n",
      name, in_use_text(report),
      report.safe_in_use() ? ", which had none either." : ", WHICH HAD STALE READS.", name);
}

std::string about_none(const LitmusReport& report) {
  if (report.one_machine) {
    return "Both sides run on one machine, whose caches are coherent: this shows the cost of the\n"
           "instructions, but nothing about two hosts.\n";
  }
  if (report.results.empty() || report.results.back().kind != FlushKind::NONE ||
      report.results.back().stale()) {
    return "";
  }
  return "There were no stale reads without any instruction either: the hardware may keep these\n"
         "hosts coherent. BOWHEAD_FLUSH=none is cheaper, but safe only if the hardware's maker\n"
         "says so.\n";
}

std::string report_text(const Arguments& arguments, const LitmusReport& report) {
  Table table({"PRIMITIVE", ">MESSAGE PASSING", ">STORE BUFFERING", ">LEASE AGAINST RETIRE",
               ">PUBLISH, A / B", ">ACQUIRE, A / B"});
  for (const LitmusResult& result : report.results) {
    table.add({flush_kind_name(result.kind), tally_text(result.patterns[0]),
               tally_text(result.patterns[1]), tally_text(result.patterns[2]),
               cost_text(result.publish_ns), cost_text(result.acquire_ns)});
  }
  return fmt::format("Stale reads between host A and host B, {}\n\n", arguments.locator) +
         table.text() + "\n" + advice(report) + about_none(report) +
         "Stale reads prove that a primitive is unsafe here; their absence proves nothing: run\n"
         "longer (--seconds), and under the load that the hosts will have.\n";
}

std::string report_json(const Arguments& arguments, const LitmusReport& report) {
  Json json;
  json["locator"] = arguments.locator;
  json["one_machine"] = report.one_machine;
  json["in_use"] = {flush_kind_name(report.in_use[0]), flush_kind_name(report.in_use[1])};
  json["safe_in_use"] = report.safe_in_use();
  const auto recommended = report.recommended();
  json["recommended"] = recommended ? Json(flush_kind_name(*recommended)) : Json(nullptr);
  json["primitives"] = Json::array();
  for (const LitmusResult& result : report.results) {
    Json patterns = Json::array();
    for (uint32_t i = 0; i < kLitmusPatterns; ++i) {
      patterns.push_back({{"name", litmus_pattern_name(static_cast<LitmusPattern>(i))},
                          {"rounds", result.patterns[i].rounds},
                          {"stale", result.patterns[i].stale}});
    }
    json["primitives"].push_back({{"name", flush_kind_name(result.kind)},
                                  {"stale", result.stale()},
                                  {"patterns", patterns},
                                  {"publish_ns", result.publish_ns},
                                  {"acquire_ns", result.acquire_ns}});
  }
  return json_text(json, 2) + "\n";
}

int run(const Arguments& arguments) {
  ProgressLine progress;
  LitmusOptions options = arguments.options;
  options.host = arguments.host == "A" || arguments.host == "a" ? 0 : 1;
  options.progress = progress.callback();
  const auto report = run_litmus(arguments.locator, options);
  progress.clear();
  if (!report) return fail(report.error(), arguments.locator);
  print(arguments.json ? report_json(arguments, *report) : report_text(arguments, *report));
  return report->safe_in_use() ? kOk : kDamage;
}

}  // namespace

void add_litmus_command(CLI::App& app, Action& action) {
  auto* command = app.add_subcommand(
      "litmus", "Find the flush primitive with which two hosts can share a pool");
  auto a = std::make_shared<Arguments>();
  command->add_option("locator", a->locator, kLocatorHelp)->required();
  command->add_option("--host", a->host, "Which of the two hosts this is")
      ->required()
      ->check(CLI::IsMember({"A", "B"}, CLI::ignore_case));
  add_real(*command, "--seconds", a->options.seconds,
           "Duration of the trials in seconds; host A's value counts", {0.1, 86400})
      ->capture_default_str();
  add_real(*command, "--wait", a->options.wait_seconds, "Seconds to wait for the other host",
           {0.1, 86400})
      ->capture_default_str();
  command->add_flag("--json", a->json, "Report as JSON");
  command->footer(kFooter);
  command->callback([a, &action] { action = [a] { return run(*a); }; });
}

}  // namespace bowhead::cli
