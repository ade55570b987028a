// SPDX-License-Identifier: Apache-2.0
// models: explores the models and prints the results; with --trace, also the traces.
#include <fmt/format.h>
#include <sys/resource.h>

#include <CLI/CLI.hpp>

#include "tests/models/models.h"

namespace bowhead::models {
namespace {

/// True if the result is as expected.
bool report(const Case& one, bool with_trace) {
  const Model model = one.make();
  const Verdict verdict = explore(model);
  const bool expected = verdict.complete &&
                        (one.finds.empty() ? verdict.failure.empty()
                                           : verdict.failure.find(one.finds) != std::string::npos);
  const std::string result =
      !verdict.complete ? "stopped by the limit of states"
      : verdict.failure.empty()
          ? "holds"
          : fmt::format("{} ({} steps)", verdict.failure, verdict.trace.size());
  fmt::print("{:<14} {:<48} {} {:>11} states {:>7.2f} s  {}{}\n", one.model, one.variant,
             model.hosts, verdict.states, verdict.seconds, result,
             expected ? "" : "  <- NOT AS IT MUST BE");
  if (with_trace) {
    for (size_t i = 0; i < verdict.trace.size(); ++i)
      fmt::print("  {:>3} {}\n", i + 1, verdict.trace[i]);
  }
  std::fflush(stdout);
  return expected;
}

int run(bool all, bool with_trace, const std::string& part) {
  bool expected = true;
  for (const Case& one : all_cases()) {
    if (one.large && !all) continue;
    if ((one.model + ", " + one.variant).find(part) == std::string::npos) continue;
    expected &= report(one, with_trace);
  }
  rusage used{};
  getrusage(RUSAGE_SELF, &used);
  fmt::print("{}; {} MiB at most\n", expected ? "all as it must be" : "NOT ALL AS IT MUST BE",
             used.ru_maxrss / 1024);
  return expected ? 0 : 1;
}

}  // namespace
}  // namespace bowhead::models

int main(int argc, char** argv) {
  CLI::App app("Explores models of the protocol between hosts, all states of each.");
  bool all = false, trace = false;
  std::string part;
  app.add_flag("--all", all, "the large ones too (minutes, gigabytes)");
  app.add_flag("--trace", trace, "print the steps to each failure");
  app.add_option("--only", part, "those whose `model, variant` contains this");
  CLI11_PARSE(app, argc, argv);
  return bowhead::models::run(all, trace, part);
}
