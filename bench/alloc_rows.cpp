// SPDX-License-Identifier: Apache-2.0
// allocate + free: batches of reservations made and undone. A batch holds 64 blocks at once, so
// that the block just freed is not simply handed out again.
#include <fmt/format.h>

#include <array>

#include "bench/rows.h"

namespace bowhead::bench {
namespace {

constexpr uint64_t kBlockBytes = 64u << 10;
constexpr uint32_t kBatch = 64;

struct Plan {
  std::string locator;
  uint32_t rounds;
  uint32_t batches;  // per round and process
};

/// Times `batches` calls of `batch`; leaves the median of a pair, in ns, for each round.
template <class Batch>
void measure_batches(Member& me, const Plan& plan, Batch&& batch) {
  std::vector<double> pair_ns(plan.batches);
  for (uint32_t round = 0; round < plan.rounds; ++round) {
    me.time(round, [&] {
      for (double& ns : pair_ns) {
        const uint64_t begin = now_ns();
        batch();
        ns = static_cast<double>(now_ns() - begin) / kBatch;
      }
    });
    me.leave(round, summarize(pair_ns).median);
  }
}

Result<void> measure_pool(Member& me, const Plan& plan) {
  auto open = open_bench_pool(plan.locator);
  if (!open) return open.error();
  me.leave_text(media_text(open->pool));
  std::vector<Key> keys(kBatch);
  for (uint32_t i = 0; i < kBatch; ++i) keys[i] = make_key(me.index(), i);
  Status failed = Status::OK;
  std::array<Reservation, kBatch> room;
  const auto batch = [&] {
    for (uint32_t i = 0; i < kBatch; ++i) {
      auto reserved = open->pool.reserve(open->ns, view(keys[i]), kBlockBytes);
      if (reserved) {
        room[i] = std::move(*reserved);
      } else {
        failed = reserved.status();
      }
    }
    for (Reservation& one : room) {
      if (const Status status = open->pool.abort(one); status != Status::OK) failed = status;
    }
  };
  batch();
  if (failed == Status::OK) measure_batches(me, plan, batch);
  if (failed != Status::OK) return wrong(fmt::format("reserve or abort: {}", status_name(failed)));
  return {};
}

/// Figures of one team; returns its pairs per second, round by round.
std::vector<double> report_team(Bench& bench, const Team& team, const Plan& plan) {
  std::vector<double> medians;
  std::vector<double> throughput;
  for (uint32_t round = 0; round < plan.rounds; ++round) {
    for (uint32_t i = 0; i < team.count(); ++i) medians.push_back(team.number(i, round));
    const double pairs = static_cast<double>(plan.batches) * kBatch * team.count();
    throughput.push_back(pairs / team.seconds(round) * 1e-6);
  }
  const nlohmann::json parameters = {
      {"block_bytes", kBlockBytes}, {"processes", team.count()}, {"batch", kBatch}};
  Figure time;
  time.row = "reserve_abort_time";
  time.what = fmt::format("reserve + abort, {} process(es)", team.count());
  time.parameters = parameters;
  time.value = summarize(medians);
  time.unit = "ns";
  bench.report.add(time);
  Figure rate;
  rate.row = "reserve_abort_rate";
  rate.what = fmt::format("reserve + abort, {} process(es), together", team.count());
  rate.parameters = parameters;
  rate.value = summarize(throughput);
  rate.unit = "M/s";
  bench.report.add(rate);
  return throughput;
}

}  // namespace

Result<void> run_alloc_rows(Bench& bench) {
  const Plan plan{bench.locator, bench.options.rounds, bench.options.quick ? 500u : 20000u};
  auto pool = BenchPool::create(bench.locator, 256u << 20, 16384);
  if (!pool) return pool.error();
  std::vector<std::vector<int>> teams = {bench.one_cpu()};
  if (bench.machine.cpus.size() > 1)
    teams.push_back({bench.machine.cpus[0], bench.machine.cpus[1]});
  for (const std::vector<int>& cpus : teams) {
    bench.report.progress(fmt::format("allocate + free, {} process(es)", cpus.size()));
    Team team(cpus, plan.rounds, plan.rounds);
    if (auto result = team.run([&](Member& me) { return measure_pool(me, plan); }); !result) {
      return result;
    }
    bench.report.set_media(team.text(0));
    report_team(bench, team, plan);
  }
  return {};
}

}  // namespace bowhead::bench
