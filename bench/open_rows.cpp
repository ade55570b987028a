// SPDX-License-Identifier: Apache-2.0
// The time of open in a fresh process after another one was killed in the middle of its puts, on a
// pool of a million blocks.
#include <fmt/format.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>

#include "base/assert.h"
#include "bench/rows.h"

namespace bowhead::bench {
namespace {

/// Puts and removes until it is killed. The pool has space for a few blocks beside the million.
[[noreturn]] void put_for_ever(const Bench& bench, uint32_t round, std::atomic<uint64_t>& puts) {
  auto open = open_bench_pool(bench.locator);
  if (!open) _exit(1);
  std::vector<std::byte> bytes(bench.large.block_bytes);
  const ConstSpan value{bytes.data(), bytes.size()};
  for (uint64_t i = 0;; ++i) {
    const Key key = make_key(100 + round, i % 10);
    (void)open->pool.remove(open->ns, view(key));
    if (open->pool.put(open->ns, view(key), {&value, 1}) != Status::OK) _exit(1);
    puts.fetch_add(1);
  }
}

/// Forks a process that puts, and kills it at a random moment.
Result<void> crash_a_putter(const Bench& bench, uint32_t round, Random& random) {
  void* memory = mmap(nullptr, sizeof(std::atomic<uint64_t>), PROT_READ | PROT_WRITE,
                      MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  BOWHEAD_ASSERT(memory != MAP_FAILED);
  auto& puts = *new (memory) std::atomic<uint64_t>(0);
  std::fflush(nullptr);
  const int self = getpid();
  const pid_t child = fork();
  if (child == 0) {
    die_with_parent(self);
    put_for_ever(bench, round, puts);
  }
  if (child < 0) return Error{Status::SYSTEM, "fork failed"};
  int status = 0;
  while (puts < 1000 && waitpid(child, &status, WNOHANG) == 0) usleep(1000);
  const bool running = puts >= 1000;
  usleep(static_cast<useconds_t>(random.below(20000)));
  if (running) {
    kill(child, SIGKILL);
    waitpid(child, &status, 0);
  }
  munmap(memory, sizeof(std::atomic<uint64_t>));
  if (!running || !WIFSIGNALED(status)) return wrong("the process that puts failed");
  return {};
}

/// Opens, timed; then checks that the blocks are stored. Leaves the host's incarnation, which
/// increases when the allocator is rebuilt.
Result<void> open_timed(Member& me, const Bench& bench) {
  Result<Pool> pool = Status::SYSTEM;
  me.time(0, [&] { pool = Pool::open(bench.locator); });
  if (!pool) return pool.error();
  auto ns = pool->open_namespace({"bench", "bytes"});
  if (!ns) return ns.error();
  Random random(3);
  for (uint32_t i = 0; i < 10000; ++i) {
    const uint64_t number = random.below(bench.large.block_count);
    const auto length = pool->length(*ns, view(make_key(kLargePoolSeries, number)));
    if (!length || *length != bench.large.block_bytes) {
      return wrong(fmt::format("block {} is lost after a crash", number));
    }
  }
  const auto info = pool->info();
  if (!info) return info.error();
  if (info->blocks < static_cast<int64_t>(bench.large.block_count)) {
    return wrong(fmt::format("the pool counts {} blocks after a crash", info->blocks));
  }
  me.leave(0, info->hosts.at(0).incarnation);
  return {};
}

Result<void> run_row(Bench& bench, bool reboot) {
  Random random(11);
  std::vector<double> times;
  double incarnation = 0;
  for (uint32_t round = 0; round < bench.options.rounds; ++round) {
    bench.report.progress(
        fmt::format("open after a {}, round {}", reboot ? "reboot" : "crash", round + 1));
    if (auto result = crash_a_putter(bench, round, random); !result) return result;
    if (reboot) {
      if (auto result = forget_boot(bench.locator); !result) return result;
    }
    Team team(bench.one_cpu(), 1, 1);
    if (auto result = team.run([&](Member& me) { return open_timed(me, bench); }); !result) {
      return result;
    }
    if (round > 0 && reboot != (team.number(0, 0) > incarnation)) {
      return wrong("the allocator was rebuilt without need, or not rebuilt when needed");
    }
    incarnation = team.number(0, 0);
    times.push_back(team.seconds(0));
  }
  Figure figure;
  figure.row = reboot ? "open_after_reboot" : "open_after_crash";
  figure.what = reboot ? "open after a crash and a reboot" : "open after a crash";
  figure.parameters = {{"pool_bytes", bench.large.pool_bytes},
                       {"blocks", bench.large.block_count},
                       {"block_bytes", bench.large.block_bytes}};
  figure.value = summarize(times);
  figure.unit = "s";
  figure.target = Target{1.0, false, false};
  figure.note = bench.large.note;
  bench.report.add(figure);
  return {};
}

}  // namespace

Result<void> run_open_rows(Bench& bench) {
  if (auto result = bench.need_large_pool(); !result) return result;
  if (auto result = run_row(bench, /*reboot=*/false); !result) return result;
  return run_row(bench, /*reboot=*/true);
}

}  // namespace bowhead::bench
