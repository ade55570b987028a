// SPDX-License-Identifier: Apache-2.0
// Gets by a queue beside gets by calls: 32 jobs of one 64 KiB block under way, executed by one
// thread, submitted and reported by another that waits for the eventfd. Both have the one CPU that
// the calls have.
#include <fmt/format.h>
#include <poll.h>
#include <sched.h>

#include <array>
#include <cstring>

#include "base/private_memory.h"
#include "bench/rows.h"
#include "pool/queue.h"

namespace bowhead::bench {
namespace {

constexpr uint64_t kBlockBytes = 64u << 10;
constexpr size_t kDepth = 32;

enum class Pass : uint32_t { CALLS, QUEUE };
constexpr uint32_t kPasses = 2;

struct Plan {
  std::string locator;
  int cpu;
  uint64_t block_count;
  uint32_t rounds;

  static uint32_t section(uint32_t round, Pass pass) {
    return round * kPasses + static_cast<uint32_t>(pass);
  }
};

class Getter {
 public:
  Getter(OpenPool& open, const Plan& plan)
      : open_(open), destination_(plan.block_count * kBlockBytes), items_(plan.block_count) {
    buffers_.resize(plan.block_count);
    for (uint64_t i = 0; i < plan.block_count; ++i) {
      keys_.push_back(make_key(1, i));
      if (destination_.data() != nullptr)
        buffers_[i] = {destination_.data() + i * kBlockBytes, kBlockBytes};
    }
    for (uint64_t i = 0; i < plan.block_count; ++i) items_[i] = {view(keys_[i]), {&buffers_[i], 1}};
  }

  Result<void> put_all() {
    if (destination_.data() == nullptr)
      return Error{Status::SYSTEM, "no memory for private buffers"};
    std::vector<std::byte> value(kBlockBytes);
    for (uint64_t i = 0; i < keys_.size(); ++i) {
      std::memset(value.data(), static_cast<int>(i % 251), value.size());
      const ConstSpan piece{value.data(), value.size()};
      const Status status = open_.pool.put(open_.ns, view(keys_[i]), {&piece, 1});
      if (status != Status::OK) return Error{status, "put of a block"};
    }
    return {};
  }

  void run(Pass pass, Queue& queue) { pass == Pass::CALLS ? call() : submit(queue); }

  /// After a pass: every block came, with its own bytes.
  Result<void> check() {
    for (uint64_t i = 0; i < items_.size(); ++i) {
      const auto* bytes = reinterpret_cast<const unsigned char*>(buffers_[i].data);
      if (items_[i].status != Status::OK || bytes[0] != i % 251 ||
          bytes[kBlockBytes - 1] != i % 251)
        return wrong(fmt::format("block {} was not returned exactly", i));
    }
    std::memset(destination_.data(), 0xFF, items_.size() * kBlockBytes);
    for (GetItem& item : items_) item.status = Status::SYSTEM;
    return {};
  }

 private:
  void call() {
    for (GetItem& item : items_) {
      const auto length = open_.pool.get(open_.ns, item.key, item.buffers);
      item.status = length.status();
    }
  }

  void submit(Queue& queue) {
    size_t submitted = 0, reported = 0;
    std::array<JobReport, kDepth> reports;
    while (reported < items_.size()) {
      for (; submitted < items_.size() && submitted - reported < kDepth; ++submitted) {
        GetItem* item = &items_[submitted];
        const Job job = {.run =
                             [this, item] {
                               return JobResult{open_.pool.get_batch(open_.ns, {item, 1})};
                             },
                         .quick = true};
        if (!queue.submit(job)) return;  // check() finds blocks missing
      }
      pollfd readable = {queue.fd(), POLLIN, 0};
      (void)poll(&readable, 1, 10'000);
      reported += queue.poll(reports);
    }
  }

  OpenPool& open_;
  PrivateMemory destination_;
  std::vector<Key> keys_;
  std::vector<Span> buffers_;
  std::vector<GetItem> items_;
};

Result<void> measure(Member& me, const Plan& plan) {
  cpu_set_t cpus;
  CPU_ZERO(&cpus);
  CPU_SET(plan.cpu, &cpus);
  if (sched_setaffinity(0, sizeof cpus, &cpus) != 0)
    return Error{Status::SYSTEM, "the CPU cannot be chosen"};
  auto open = open_bench_pool(plan.locator);
  if (!open) return open.error();
  me.leave_text(media_text(open->pool));
  auto queue = Queue::open({.threads = 1, .jobs_max = kDepth});
  if (!queue) return queue.error();
  Getter getter(*open, plan);
  if (auto result = getter.put_all(); !result) return result;
  for (const Pass pass : {Pass::CALLS, Pass::QUEUE}) {
    getter.run(pass, **queue);
    if (auto result = getter.check(); !result) return result;
  }
  for (uint32_t round = 0; round < plan.rounds; ++round) {
    for (uint32_t i = 0; i < kPasses; ++i) {
      const Pass pass = static_cast<Pass>((round + i) % kPasses);
      me.time(Plan::section(round, pass), [&] { getter.run(pass, **queue); });
      if (auto result = getter.check(); !result) return result;
    }
  }
  return {};
}

}  // namespace

Result<void> run_queue_rows(Bench& bench) {
  const uint64_t walk_bytes =
      bench.options.quick
          ? 16u << 20
          : std::max<uint64_t>(256u << 20, bench.machine.last_level_cache_bytes * 4);
  const Plan plan{bench.locator, bench.machine.cpus[0], walk_bytes / kBlockBytes,
                  bench.options.rounds};
  bench.report.progress("gets by a queue");
  auto pool = BenchPool::create(bench.locator, walk_bytes + walk_bytes / 8 + (64u << 20), 16384);
  if (!pool) return pool.error();
  Team team(bench.one_cpu(), plan.rounds * kPasses, 0);
  if (auto result = team.run([&](Member& me) { return measure(me, plan); }); !result) return result;
  bench.report.set_media(team.text(0));
  std::vector<double> calls, jobs;
  for (uint32_t round = 0; round < plan.rounds; ++round) {
    const auto speed = [&](Pass pass) {
      return static_cast<double>(walk_bytes) / team.seconds(Plan::section(round, pass)) * 1e-9;
    };
    calls.push_back(speed(Pass::CALLS));
    jobs.push_back(speed(Pass::QUEUE));
  }
  Figure figure;
  figure.row = "queue";
  figure.what = fmt::format("gets of {} by a queue of one thread, {} under way",
                            bytes_text(kBlockBytes), kDepth);
  figure.parameters = {{"block_bytes", kBlockBytes}, {"depth", kDepth}, {"walk_bytes", walk_bytes}};
  figure.value = summarize(jobs);
  figure.unit = "GB/s";
  figure.limit = Limit{"calls", summarize(calls)};
  figure.ratio = ratio_of(jobs, calls);
  figure.target = Target{0.95, true, true};
  bench.report.add(figure);
  return {};
}

}  // namespace bowhead::bench
