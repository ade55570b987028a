// SPDX-License-Identifier: Apache-2.0
// allocate + free: batches of blocks, allocated, then freed in another order. A batch is larger
// than a thread's cache of free blocks, so the time includes the search for free blocks.
#include <fmt/format.h>

#include <array>
#include <numeric>
#include <utility>

#include "bench/rows.h"
#include "pool/core/access.h"
#include "pool/core/core.h"
#include "pool/core/layout.h"

namespace bowhead::bench {
namespace {

constexpr uint64_t kBlockBytes = 64u << 10;
constexpr uint32_t kBatch = 256;

struct Plan {
  std::string locator;
  uint32_t rounds;
  uint32_t batches;  // per round and process

  static uint32_t alone(uint32_t round) { return 2 * round; }
  static uint32_t together(uint32_t round) { return 2 * round + 1; }
};

/// The order in which a batch is freed.
std::array<uint32_t, kBatch> shuffled_order() {
  std::array<uint32_t, kBatch> order;
  std::iota(order.begin(), order.end(), 0u);
  Random random(5);
  for (uint32_t i = kBatch; i > 1; --i) std::swap(order[i - 1], order[random.below(i)]);
  return order;
}

/// Times `plan.batches` calls of `batch` in every round, once in the first member only and once in
/// all; leaves the median time of a pair for each section.
template <class Batch>
void measure_batches(Member& me, const Plan& plan, Batch&& batch) {
  std::vector<double> pair_ns(plan.batches);
  const auto work = [&] {
    for (double& ns : pair_ns) {
      const uint64_t begin = now_ns();
      batch();
      ns = static_cast<double>(now_ns() - begin) / kBatch;
    }
  };
  for (uint32_t round = 0; round < plan.rounds; ++round) {
    me.time(Plan::alone(round), [&] {
      if (me.index() == 0) work();
    });
    me.leave(Plan::alone(round), summarize(pair_ns).median);
    me.time(Plan::together(round), work);
    me.leave(Plan::together(round), summarize(pair_ns).median);
  }
}

Result<void> measure_pool(Member& me, const Plan& plan) {
  auto open = open_bench_pool(plan.locator);
  if (!open) return open.error();
  me.leave_text(media_text(open->pool));
  std::vector<Key> keys(kBatch);
  for (uint32_t i = 0; i < kBatch; ++i) keys[i] = make_key(me.index(), i);
  const auto order = shuffled_order();
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
    for (const uint32_t i : order) {
      if (const Status status = open->pool.abort(room[i]); status != Status::OK) failed = status;
    }
  };
  measure_batches(me, plan, batch);
  if (failed != Status::OK) return wrong(fmt::format("reserve or abort: {}", status_name(failed)));
  return {};
}

/// Below the pool: the allocator only, in a process that has joined like any other.
Result<void> measure_allocator(Member& me, const Plan& plan) {
  auto raw = open_raw_pool(plan.locator);
  if (!raw) return raw.error();
  core::NativeAccess access(*raw->media, FlushKind::NONE);
  core::Core<core::NativeAccess> core(access, raw->superblock, 0);
  if (auto joined = core.joining.attach({}); !joined) return joined;
  const auto order = shuffled_order();
  bool failed = false;
  std::array<core::Block, kBatch> blocks;
  const auto batch = [&] {
    for (core::Block& block : blocks) {
      const auto taken = core.allocator().reserve(kBlockBytes);
      failed |= !taken;
      if (taken) block = *taken;
    }
    if (failed) return;
    for (const uint32_t i : order) core.allocator().release(blocks[i]);
  };
  measure_batches(me, plan, batch);
  if (failed) return wrong("the allocator found no block in a pool with free space");
  core.joining.detach();
  return {};
}

struct Subject {
  const char* row;
  const char* what;
  Result<void> (*measure)(Member&, const Plan&);
  bool has_target;
};
constexpr Subject kSubjects[] = {
    {"allocate_free", "allocate + free", measure_allocator, true},
    {"reserve_abort", "reserve + abort", measure_pool, false},
};

Figure figure_of(const Subject& subject, const char* kind, uint32_t processes,
                 const std::vector<double>& values, const char* unit) {
  Figure figure;
  figure.row = fmt::format("{}_{}", subject.row, kind);
  figure.what = fmt::format("{}, {}, {}", subject.what, kind,
                            processes == 1 ? "one process" : "two processes");
  figure.parameters = {{"block_bytes", kBlockBytes}, {"processes", processes}, {"batch", kBatch}};
  figure.value = summarize(values);
  figure.unit = unit;
  return figure;
}

void report_subject(const Bench& bench, const Subject& subject, const Team& team,
                    const Plan& plan) {
  std::vector<double> time_alone, time_together, rate_alone, rate_together;
  const double pairs = static_cast<double>(plan.batches) * kBatch * 1e-6;
  for (uint32_t round = 0; round < plan.rounds; ++round) {
    time_alone.push_back(team.number(0, Plan::alone(round)));
    rate_alone.push_back(pairs / team.seconds(Plan::alone(round)));
    for (uint32_t i = 0; i < team.count(); ++i) {
      time_together.push_back(team.number(i, Plan::together(round)));
    }
    rate_together.push_back(pairs * team.count() / team.seconds(Plan::together(round)));
  }
  Figure alone = figure_of(subject, "time", 1, time_alone, "ns");
  if (subject.has_target) alone.target = Target{60.0, false, false};
  bench.report.add(alone);
  bench.report.add(figure_of(subject, "rate", 1, rate_alone, "M/s"));
  if (team.count() < 2) return;
  bench.report.add(figure_of(subject, "time", 2, time_together, "ns"));
  Figure together = figure_of(subject, "rate", 2, rate_together, "M/s");
  together.limit = Limit{"one process", summarize(rate_alone)};
  together.ratio = ratio_of(rate_together, rate_alone);
  if (subject.has_target) together.target = Target{1.0, true, true};
  bench.report.add(together);
}

}  // namespace

Result<void> run_alloc_rows(Bench& bench) {
  const Plan plan{bench.locator, bench.options.rounds, bench.options.quick ? 200u : 10000u};
  auto pool = BenchPool::create(bench.locator, 256u << 20, 16384);
  if (!pool) return pool.error();
  std::vector<int> cpus = bench.machine.cpus;
  if (cpus.size() > 2) cpus.resize(2);
  for (const Subject& subject : kSubjects) {
    bench.report.progress(subject.what);
    Team team(cpus, 2 * plan.rounds, 2 * plan.rounds);
    auto result = team.run([&](Member& me) { return subject.measure(me, plan); });
    if (!result) return result;
    bench.report.set_media(team.text(0));
    report_subject(bench, subject, team, plan);
  }
  return {};
}

}  // namespace bowhead::bench
