// SPDX-License-Identifier: Apache-2.0
// The longest put on a full pool: each put makes space by eviction. The machine itself stands still
// now and then; the longest of as many copies of a block, in turns with the puts, shows for how
// long.
#include <fmt/format.h>

#include <algorithm>

#include "bench/rows.h"

namespace bowhead::bench {
namespace {

struct Plan {
  std::string locator;
  uint64_t pool_bytes = uint64_t{9} << 30;
  uint64_t block_bytes = 4096;
  uint64_t block_count = 2'000'000;  ///< fewer than the pool evicts at
  uint32_t rounds = 0;
  uint64_t puts_per_round = 100'000;
};

Result<void> measure(Member& me, const Plan& plan) {
  auto open = open_bench_pool(plan.locator);
  if (!open) return open.error();
  std::vector<std::byte> bytes(plan.block_bytes, std::byte{1}), copy(plan.block_bytes);
  const ConstSpan value{bytes.data(), bytes.size()};
  uint64_t number = 0;
  Status failed = Status::OK;
  const auto put = [&] {
    const Key key = make_key(kLargePoolSeries, number++);
    const Status status = open->pool.put(open->ns, view(key), {&value, 1});
    if (status != Status::OK) failed = status;
  };
  // So many that all blocks are of the state that eviction and puts lead to.
  while (number < plan.block_count * 3 / 2 && failed == Status::OK) put();
  for (uint32_t round = 0; round < plan.rounds; ++round) {
    uint64_t longest_ns = 0, longest_copy_ns = 0, began_ns = now_ns();
    const uint64_t first = began_ns;
    for (uint64_t i = 0; i < plan.puts_per_round; ++i) {
      put();
      const uint64_t ended_ns = now_ns();
      longest_ns = std::max(longest_ns, ended_ns - began_ns);
      std::copy(bytes.begin(), bytes.end(), copy.begin());
      began_ns = now_ns();
      longest_copy_ns = std::max(longest_copy_ns, began_ns - ended_ns);
    }
    me.leave(3 * round, static_cast<double>(longest_ns));
    me.leave(3 * round + 1, static_cast<double>(longest_copy_ns));
    me.leave(3 * round + 2, static_cast<double>(began_ns - first));
  }
  if (failed != Status::OK) return wrong(fmt::format("a put failed: {}", status_name(failed)));
  const auto info = open->pool.info();
  if (!info) return info.error();
  if (info->evictions < number - plan.pool_bytes / plan.block_bytes)
    return wrong(fmt::format("{} puts evicted only {} blocks", number, info->evictions));
  const Key newest = make_key(kLargePoolSeries, number - 1);
  const Span into{copy.data(), copy.size()};
  if (!open->pool.get(open->ns, view(newest), {&into, 1}) || copy != bytes)
    return wrong("the newest block is not there");
  me.leave_text(media_text(open->pool));
  return {};
}

}  // namespace

Result<void> run_evict_rows(Bench& bench) {
  Plan plan{.locator = bench.locator, .rounds = bench.options.rounds};
  std::string note;
  if (bench.options.quick) {
    plan.pool_bytes = uint64_t{64} << 20;
    plan.block_count = 15'000;
    plan.puts_per_round = 5'000;
    note = "quick run: 15,000 blocks";
  } else if (available_memory_bytes() < plan.pool_bytes + (uint64_t{2} << 30)) {
    plan.pool_bytes /= 4;
    plan.block_count /= 4;
    note = fmt::format("memory is short ({} MiB available): 500,000 blocks",
                       available_memory_bytes() >> 20);
  }
  bench.report.progress(fmt::format("filling a pool with {} blocks", plan.block_count));
  auto pool = BenchPool::create(bench.locator, plan.pool_bytes, plan.block_bytes, /*hosts=*/1, {},
                                /*evict_high_permille=*/950);
  if (!pool) return pool.error();
  Team team(bench.one_cpu(), 0, 3 * plan.rounds);
  if (auto result = team.run([&](Member& me) { return measure(me, plan); }); !result) return result;
  bench.report.set_media(team.text(0));
  std::vector<double> longest, copies, each;
  for (uint32_t round = 0; round < plan.rounds; ++round) {
    longest.push_back(team.number(0, 3 * round) / 1e6);
    copies.push_back(team.number(0, 3 * round + 1) / 1e6);
    each.push_back(team.number(0, 3 * round + 2) / 1e3 / static_cast<double>(plan.puts_per_round));
  }
  Figure figure;
  figure.row = "evict_longest";
  figure.what = "longest put while evicting";
  figure.parameters = {{"pool_bytes", plan.pool_bytes},
                       {"blocks", plan.block_count},
                       {"block_bytes", plan.block_bytes},
                       {"puts", plan.puts_per_round}};
  figure.value = summarize(longest);
  figure.unit = "ms";
  figure.limit = Limit{"longest copy of a block, in turns with the puts", summarize(copies)};
  figure.ratio = ratio_of(longest, copies);
  figure.target = Target{2.0, /*at_least=*/false, /*of_ratio=*/false};
  figure.note = note;
  bench.report.add(figure);
  figure.row = "evict_put";
  figure.what = "put while evicting, mean";
  figure.value = summarize(each);
  figure.unit = "us";
  figure.limit.reset();
  figure.ratio.reset();
  figure.target.reset();
  bench.report.add(figure);
  return {};
}

}  // namespace bowhead::bench
