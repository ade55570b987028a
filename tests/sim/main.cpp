// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cstdio>

#include "tests/sim/run.h"

using namespace bowhead;

int main(int argc, char** argv) {
  CLI::App app{"Runs the pool's code over simulated hosts, from seeds"};
  std::string seeds = "1..1000";
  std::string plant_name;
  bool trace = false, shrink = false;
  app.add_option("--seeds", seeds, "A..B, both included, or one");
  app.add_option("--plant", plant_name, "Plant a bug");
  app.add_flag("--trace", trace, "Print every step");
  app.add_flag("--shrink", shrink, "Make the plan of a failing seed smaller");
  CLI11_PARSE(app, argc, argv);
  uint64_t first = 0, last = 0;
  if (sscanf(seeds.c_str(), "%lu..%lu", &first, &last) != 2) last = first;
  const sim::Plant* plant = sim::find_plant(plant_name);
  sim::Simulator simulator;
  sim::Counts counts{};
  uint64_t failed = 0;
  for (uint64_t seed = first; seed <= last; ++seed) {
    sim::Plan plan = sim::make_plan(seed);
    sim::Outcome outcome = simulator.run(plan, plant, trace && !shrink);
    counts.add(outcome.counts);
    if (!outcome.failure) continue;
    ++failed;
    if (shrink) {
      plan = simulator.shrink(plan, plant, *outcome.failure);
      outcome = simulator.run(plan, plant, trace);
    }
    fmt::print("{}{}{}: {}\n\n", plan.describe(), outcome.last_steps, outcome.failure->kind,
               outcome.failure->text);
    if (failed > 20) break;
  }
  fmt::print("{}\n{} failed\n", counts.text(), failed);
  return failed ? 1 : 0;
}
