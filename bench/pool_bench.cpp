// SPDX-License-Identifier: Apache-2.0
#include "bench/pool_bench.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>

#include "bench/child.h"
#include "bench/rows.h"

namespace bowhead::bench {
namespace {

struct Row {
  const char* name;
  Result<void> (*run)(Bench&);
};
// The last two share a large pool.
constexpr Row kRows[] = {
    {"copy", run_copy_rows},     {"queue", run_queue_rows},   {"joined", run_joined_rows},
    {"alloc", run_alloc_rows},   {"space", run_space_rows},   {"rpc", run_rpc_rows},
    {"share", run_share_rows},   {"lookup", run_lookup_rows}, {"evict", run_evict_rows},
    {"exists", run_exists_rows}, {"open", run_open_rows}};

/// The whole benchmark; runs in the child.
int measure(const PoolBenchOptions& options, const std::string& locator) {
  const Machine machine = this_machine();
  Report report({"pool", options.quick, options.json, options.command}, machine);
  Bench bench{options, locator, machine, std::move(report), {}};
  bench.report.print_header();
  bench.report.print_heading();
  for (const Row& row : kRows) {
    const auto& chosen = options.rows;
    if (!chosen.empty() && std::find(chosen.begin(), chosen.end(), row.name) == chosen.end())
      continue;
    if (auto result = row.run(bench); !result) return complain(result.error());
  }
  bench.report.progress("");
  return 0;
}

Result<void> check_options(const PoolBenchOptions& options) {
  const auto& names = pool_bench_rows();
  for (const std::string& row : options.rows) {
    if (std::find(names.begin(), names.end(), row) != names.end()) continue;
    return Error{Status::INVALID_ARGUMENT,
                 fmt::format("there is no row '{}'; the rows are {}", row, fmt::join(names, ", "))};
  }
  if (options.rounds < 5) {
    return Error{Status::INVALID_ARGUMENT, "at least 5 rounds, for a median and a spread"};
  }
  return {};
}

}  // namespace

const std::vector<std::string>& pool_bench_rows() {
  static const std::vector<std::string> names = [] {
    std::vector<std::string> list;
    for (const Row& row : kRows) list.emplace_back(row.name);
    return list;
  }();
  return names;
}

int run_pool_bench(const PoolBenchOptions& options) {
  if (auto result = check_options(options); !result) return complain(result.error());
  const std::string locator =
      options.locator.empty() ? fmt::format("shm:bench-{}", getpid()) : options.locator;
  if (auto result = check_unused(locator); !result) return complain(result.error());
  const std::string joined = joined_locator(locator);
  if (joined != locator) {
    if (auto result = check_unused(joined.substr(locator.size() + 1)); !result)
      return complain(result.error());
  }
  return run_in_child([&] { return measure(options, locator); }, {joined, locator});
}

}  // namespace bowhead::bench
