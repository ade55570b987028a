// SPDX-License-Identifier: Apache-2.0
// bowhead bench pool: the table of bench/pool_bench.h.
#include <fmt/format.h>

#include <memory>

#include "bench/pool_bench.h"
#include "tools/bowhead/cli.h"

namespace bowhead::cli {

void add_bench_command(CLI::App& app, Action& action, const std::string& command_line) {
  auto* bench = app.add_subcommand("bench", "Measure this build on this machine");
  bench->require_subcommand(1);
  auto* command = bench->add_subcommand("pool", "Speed, space and recovery of the pool");
  auto options = std::make_shared<bench::PoolBenchOptions>();
  command->add_option("--pool", options->locator,
                      "Where its pools are made, one after another (default: memory)");
  command->add_option("--row", options->rows, "Only these rows of the table; may be repeated")
      ->check(CLI::IsMember(bench::pool_bench_rows()));
  command->add_option("--rounds", options->rounds, "Rounds of each timed figure")
      ->check(CLI::Range(5, 1000))
      ->capture_default_str();
  command->add_flag("--quick", options->quick, "Small and short, to see that it runs: no result");
  command->add_flag("--json", options->json, "One JSON line per figure");
  command->footer(
      "\nExamples:\n  bowhead bench pool\n"
      "  bowhead bench pool --row copy --row alloc --json");
  options->command = command_line;
  command->callback(
      [options, &action] { action = [options] { return bench::run_pool_bench(*options); }; });
}

}  // namespace bowhead::cli
