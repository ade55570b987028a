// SPDX-License-Identifier: Apache-2.0
// Several hosts on one pool: the cost of publishing stores by flushes, and the time until a dead
// host's blocks have a new owner.
//
// The hosts are handles in one process, or processes of this machine, whose caches are coherent: so
// this measures the cost of the instructions, not the latency of a link.
#include <fmt/format.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <numeric>

#include "bench/hosts.h"
#include "pool/core/access.h"
#include "pool/core/layout.h"

namespace bowhead::bench {
namespace {

// ---- the cost of publishing ----

constexpr uint64_t kBlockBytes = uint64_t{256} << 10;
enum Side : uint32_t { COHERENT, FLUSHED };
enum Operation : uint32_t { PUT, GET };

struct Cost {
  std::string locators[2];  ///< by side
  uint64_t blocks;          ///< of one process in one pass
  uint32_t rounds;
  uint32_t processes;

  static uint32_t section(uint32_t round, Operation operation, Side side) {
    return (round * 2 + operation) * 2 + side;
  }
};

/// The pool of one side, opened by its two hosts: one puts, the other gets.
struct Pair {
  OpenPool writer, reader;
};

Result<Pair> open_pair(const Cost& plan, Side side) {
  side == COHERENT ? setenv("BOWHEAD_FLUSH", "none", 1) : unsetenv("BOWHEAD_FLUSH");
  auto writer = open_as(plan.locators[side], 0);
  if (!writer) return writer.error();
  auto reader = open_as(plan.locators[side], 1);
  if (!reader) return reader.error();
  return Pair{std::move(*writer), std::move(*reader)};
}

Result<void> measure_cost(Member& me, const Cost& plan) {
  auto coherent = open_pair(plan, COHERENT);
  if (!coherent) return coherent.error();
  auto flushed = open_pair(plan, FLUSHED);
  if (!flushed) return flushed.error();
  me.leave_text(media_text(flushed->writer.pool));
  Pair* pairs[] = {&*coherent, &*flushed};
  for (Pair* pair : pairs) {
    const uint64_t number = uint64_t{1} << 60;  // used by no other block
    const Key key = make_key(kHostsSeries + me.index(), number);
    if (auto stored = fill_one(pair->writer, key); !stored) return stored;
    if (auto heard = await_block(pair->reader, key); !heard) return heard;
  }
  std::vector<std::byte> from(plan.blocks * kBlockBytes), to(from.size());
  Random random(me.index() + 1);
  for (uint64_t i = 0; i < from.size(); i += 8) {
    const uint64_t word = random.next();
    std::memcpy(from.data() + i, &word, 8);
  }
  Status failed = Status::OK;
  for (uint32_t round = 0; round <= plan.rounds; ++round) {
    const auto key = [&](uint64_t i) {
      return make_key(kHostsSeries + me.index(), uint64_t{round} << 32 | i);
    };
    for (const Operation operation : {PUT, GET}) {
      std::fill(to.begin(), to.end(), std::byte{0});
      for (uint32_t i = 0; i < 2; ++i) {
        const auto side = static_cast<Side>((round + i) % 2);
        Pair& pair = *pairs[side];
        const auto pass = [&] {
          for (uint64_t b = 0; b < plan.blocks; ++b) {
            const ConstSpan in{from.data() + b * kBlockBytes, kBlockBytes};
            const Span out{to.data() + b * kBlockBytes, kBlockBytes};
            const Status status =
                operation == PUT
                    ? pair.writer.pool.put(pair.writer.ns, view(key(b)), {&in, 1})
                    : pair.reader.pool.get(pair.reader.ns, view(key(b)), {&out, 1}).status();
            if (status != Status::OK) failed = status;
          }
        };
        if (round == 0)
          pass();  // checks, and touches every page
        else
          me.time(Cost::section(round - 1, operation, side), pass);
        if (operation == GET && from != to) return wrong("blocks were not returned exactly");
      }
    }
    for (Pair* pair : pairs) {
      for (uint64_t b = 0; b < plan.blocks; ++b) {
        const Status status = pair->writer.pool.remove(pair->writer.ns, view(key(b)));
        if (status != Status::OK) failed = status;
      }
    }
    if (failed != Status::OK)
      return wrong(fmt::format("put, get or remove failed: {}", status_name(failed)));
    usleep(300'000);  // until the removed blocks have settled and are free
  }
  return {};
}

Result<void> run_cost(Bench& bench, const std::vector<int>& cpus) {
  const uint64_t bytes = bench.options.quick ? uint64_t{32} << 20 : uint64_t{512} << 20;
  const auto processes = static_cast<uint32_t>(cpus.size());
  Cost plan{{bench.locator, bench.locator + "-flushed"},
            bytes / kBlockBytes / processes,
            bench.options.rounds,
            processes};
  bench.report.progress(fmt::format("cost of publishing, {} process(es)", processes));
  std::vector<std::unique_ptr<BenchPool>> pools;
  for (const std::string& locator : plan.locators) {
    auto pool = make_shared_pool(locator, 4 * bytes, 16384, 2);
    if (!pool) return pool.error();
    pools.push_back(std::move(*pool));
  }
  Team team(cpus, plan.rounds * 4, 0);
  if (auto result = team.run([&](Member& me) { return measure_cost(me, plan); }); !result)
    return result;
  bench.report.set_media(team.text(0));
  for (const Operation operation : {PUT, GET}) {
    std::vector<double> speed[2];
    for (uint32_t round = 0; round < plan.rounds; ++round) {
      for (const Side side : {COHERENT, FLUSHED})
        speed[side].push_back(static_cast<double>(plan.blocks * kBlockBytes * processes) /
                              team.seconds(Cost::section(round, operation, side)) * 1e-9);
    }
    Figure figure;
    figure.row = operation == PUT ? "put_flushed" : "get_flushed";
    figure.what = fmt::format("{} by flushes, 256 KiB, {}", operation == PUT ? "put" : "get",
                              processes == 1 ? "one core" : fmt::format("{} cores", processes));
    figure.parameters = {{"block_bytes", kBlockBytes}, {"processes", processes}};
    figure.value = summarize(speed[FLUSHED]);
    figure.unit = "GB/s";
    figure.limit = Limit{"declared coherent", summarize(speed[COHERENT])};
    figure.ratio = ratio_of(speed[FLUSHED], speed[COHERENT]);
    const double bound = operation == PUT ? 0.95 : processes == 1 ? 0.75 : 0.90;
    figure.target = Target{bound, true, true};
    bench.report.add(figure);
  }
  return {};
}

// ---- adoption ----

constexpr SharingTimes kSoonDead{.dead_ms = 2000};  // a shorter wait before the timed part

/// Host 1: stores its blocks, reports that by closing the pipe, and lives until it is killed.
[[noreturn]] void live_as_host_1(const std::string& locator, uint64_t blocks, int done) {
  auto open = open_as(locator, 1);
  if (!open || !fill(*open, 0, blocks, 1)) _exit(1);
  const char byte = 1;
  if (write(done, &byte, 1) != 1) _exit(1);
  for (;;) pause();
}

/// The words of all hosts, read behind the pool's back.
class Watcher {
 public:
  explicit Watcher(RawPool raw)
      : raw_(std::move(raw)),
        layout_(raw_.superblock.geometry),
        access_(*raw_.media, FlushKind::NONE) {}

  bool decided() const {
    return core::DecideWord::unpack(access_.load(layout_.word(0, BH_PART_DECIDE, 1))).done;
  }
  bool all_adopted() const {
    for (uint64_t e = core::first_extent_of(layout_, 1); e < core::first_extent_of(layout_, 2);
         ++e) {
      if (core::own_state(access_.load(layout_.word(0, BH_PART_OWN, e))) != BH_OWN_OWN)
        return false;
    }
    return true;
  }

 private:
  RawPool raw_;
  const core::Layout layout_;
  core::NativeAccess access_;
};

/// One death. Seconds from the decision to custody; every block must be found all the while.
Result<double> time_adoption(const std::string& locator, uint64_t blocks) {
  int ends[2];
  if (pipe(ends) != 0) return Error{Status::SYSTEM, "pipe failed"};
  const int self = getpid();
  std::fflush(nullptr);
  const pid_t child = fork();
  if (child == 0) {
    die_with_parent(self);
    live_as_host_1(locator, blocks, ends[1]);
  }
  close(ends[1]);
  char byte = 0;
  const bool filled = read(ends[0], &byte, 1) == 1;
  close(ends[0]);
  auto open = open_as(locator, 0);
  auto raw = open_raw_pool(locator);
  const auto heard =
      filled && open ? await_block(*open, make_key(kHostsSeries, 0)) : Result<void>{};
  kill(child, SIGKILL);
  waitpid(child, nullptr, 0);
  if (!filled) return wrong("host 1 could not store its blocks");
  if (!open) return open.error();
  if (!raw) return raw.error();
  if (!heard) return heard.error();
  const Watcher watcher(std::move(*raw));
  Random random(3);
  std::byte buffer[4096];
  const Span to{buffer, sizeof buffer};
  uint64_t decided_ns = 0;
  const uint64_t deadline_ns = now_ns() + 30'000'000'000;
  while (!watcher.all_adopted()) {
    if (decided_ns == 0 && watcher.decided()) decided_ns = now_ns();
    if (!open->pool.get(open->ns, view(make_key(kHostsSeries, random.below(blocks))), {&to, 1}))
      return wrong("a block of the dead host could not be read");
    usleep(20);  // the heartbeats need this CPU too
    if (now_ns() > deadline_ns) return wrong("no host adopted the dead host's extents");
  }
  const uint64_t end_ns = now_ns();
  for (uint64_t i = 0; i < blocks; ++i) {
    if (!open->pool.get(open->ns, view(make_key(kHostsSeries, i)), {&to, 1}))
      return wrong("a block was lost in the adoption");
  }
  return static_cast<double>(end_ns - decided_ns) * 1e-9;
}

Result<void> run_adoption(Bench& bench) {
  const uint64_t blocks = bench.options.quick ? 5'000 : 100'000;
  std::vector<double> times;
  for (uint32_t round = 0; round < bench.options.rounds; ++round) {
    bench.report.progress(fmt::format("adoption, round {}", round + 1));
    auto pool = make_shared_pool(bench.locator, 2 * blocks * 4096, 4096, 2, kSoonDead);
    if (!pool) return pool.error();
    Team team(bench.one_cpu(), 0, 1);
    auto result = team.run([&](Member& me) -> Result<void> {
      const auto seconds = time_adoption(bench.locator, blocks);
      if (!seconds) return seconds.error();
      me.leave(0, *seconds);
      return {};
    });
    if (!result) return result;
    times.push_back(team.number(0, 0));
  }
  Figure figure;
  figure.row = "adoption";
  figure.what = fmt::format("adoption of {} blocks", blocks);
  figure.parameters = {{"blocks", blocks}};
  figure.value = summarize(times);
  figure.unit = "s";
  figure.target = Target{2.0, false, false};
  bench.report.add(figure);
  return {};
}

}  // namespace

Result<void> run_share_rows(Bench& bench) {
  if (auto result = run_cost(bench, bench.one_cpu()); !result) return result;
  if (bench.machine.cpus.size() > 1) {
    if (auto result = run_cost(bench, bench.machine.cpus); !result) return result;
  }
  return run_adoption(bench);
}

}  // namespace bowhead::bench
