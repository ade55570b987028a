// SPDX-License-Identifier: Apache-2.0
// Several hosts on one pool: look-ups over the indexes of eight hosts, the cost of publishing
// stores by flushes, and the time until a dead host's blocks have a new owner.
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

#include "bench/rows.h"
#include "pool/core/access.h"
#include "pool/core/layout.h"

namespace bowhead::bench {
namespace {

constexpr uint64_t kSeries = 50;  // of make_key()

Result<OpenPool> open_as(const std::string& locator, uint32_t host) {
  OpenOptions options;
  options.host = host;
  auto pool = Pool::open(locator, options);
  if (!pool) return pool.error();
  auto ns = pool->open_namespace({"bench", "bytes"});
  if (!ns) return ns.error();
  return OpenPool{std::move(*pool), *ns};
}

Result<std::unique_ptr<BenchPool>> make_pool(const std::string& locator, uint64_t payload_bytes,
                                             uint64_t min_block_bytes, uint32_t hosts,
                                             const SharingTimes& times = {}) {
  return BenchPool::create(locator, payload_bytes + payload_bytes / 4 + (uint64_t{256} << 20),
                           min_block_bytes, hosts, times);
}

/// Stores a block without writing its bytes.
Result<void> fill_one(OpenPool& open, const Key& key) {
  auto room = open.pool.reserve(open.ns, view(key), 4096);
  if (!room) return room.error();
  const Status status = open.pool.commit(*room);
  return status == Status::OK ? Result<void>{} : status;
}

Result<void> fill(OpenPool& open, uint64_t first, uint64_t last, uint64_t step) {
  for (uint64_t i = first; i < last; i += step) {
    if (auto filled = fill_one(open, make_key(kSeries, i)); !filled) return filled;
  }
  return {};
}

/// Waits until `open` finds the block, which another host has stored: a heartbeat or two after that
/// host joined, and longer where the machine is busy.
Result<void> await_block(OpenPool& open, const Key& key) {
  const std::string_view wanted = view(key);
  uint8_t found = 0;
  for (const uint64_t deadline_ns = now_ns() + 10'000'000'000; now_ns() < deadline_ns;) {
    const auto count = open.pool.exists(open.ns, {&wanted, 1}, {&found, 1});
    if (!count) return count.error();
    if (*count == 1) return {};
    usleep(5'000);
  }
  return wrong("a host did not find another host's block within 10 s");
}

// ---- look-ups over eight hosts ----

constexpr uint32_t kLookupHosts = 8;
constexpr uint64_t kBatch = 128;

struct Lookup {
  std::string locator;
  uint64_t blocks;
  uint32_t rounds;
};

/// As many keys as there are blocks, in random order; or as many that were never stored.
Result<void> look_up(Member& me, const Lookup& plan) {
  std::vector<OpenPool> hosts;
  for (uint32_t host = 0; host < kLookupHosts; ++host) {
    auto open = open_as(plan.locator, host);
    if (!open) return open.error();
    if (auto filled = fill(*open, host, plan.blocks, kLookupHosts); !filled) return filled;
    hosts.push_back(std::move(*open));
  }
  me.leave_text(media_text(hosts[0].pool));
  for (uint32_t host = 1; host < kLookupHosts; ++host) {
    if (auto heard = await_block(hosts[0], make_key(kSeries, host)); !heard) return heard;
  }
  Random random(7);
  std::vector<uint64_t> order(plan.blocks);
  std::iota(order.begin(), order.end(), uint64_t{0});
  for (uint64_t i = order.size(); i > 1; --i) std::swap(order[i - 1], order[random.below(i)]);
  for (const bool present : {true, false}) {
    std::vector<Key> keys;
    std::vector<std::string_view> views;
    for (const uint64_t i : order) keys.push_back(make_key(present ? kSeries : kSeries + 1, i));
    for (const Key& key : keys) views.push_back(view(key));
    std::vector<uint8_t> answer(keys.size());
    uint64_t found = 0;
    const auto ask = [&] {
      found = 0;
      for (uint64_t at = 0; at < views.size(); at += kBatch) {
        const uint64_t count = std::min<uint64_t>(kBatch, views.size() - at);
        found += hosts[0]
                     .pool
                     .exists(hosts[0].ns, std::span(views).subspan(at, count),
                             std::span(answer).subspan(at, count))
                     .value();
      }
    };
    ask();
    if (found != (present ? plan.blocks : 0))
      return wrong(fmt::format("{} of {} keys were found", found, present ? plan.blocks : 0));
    for (uint32_t round = 0; round < plan.rounds; ++round) {
      me.time(round * 2 + (present ? 0 : 1), ask);
      if (found != (present ? plan.blocks : 0)) return wrong("a look-up gave a wrong answer");
    }
  }
  return {};
}

Result<void> run_lookup(Bench& bench) {
  const uint64_t blocks = bench.options.quick ? 40'000 : 1'000'000;
  bench.report.progress(fmt::format("look-ups over {} hosts", kLookupHosts));
  auto pool = make_pool(bench.locator, blocks * 4096, 4096, kLookupHosts);
  if (!pool) return pool.error();
  const Lookup plan{bench.locator, blocks, bench.options.rounds};
  Team team(bench.one_cpu(), plan.rounds * 2, 0);
  if (auto result = team.run([&](Member& me) { return look_up(me, plan); }); !result) return result;
  bench.report.set_media(team.text(0));
  for (const bool present : {true, false}) {
    std::vector<double> rates;
    for (uint32_t round = 0; round < plan.rounds; ++round)
      rates.push_back(static_cast<double>(blocks) / team.seconds(round * 2 + (present ? 0 : 1)) *
                      1e-6);
    Figure figure;
    figure.row = "lookup_hosts";
    figure.what = fmt::format("lookup, {} hosts, {}", kLookupHosts, present ? "present" : "absent");
    figure.parameters = {{"keys", present ? "present" : "absent"},
                         {"hosts", kLookupHosts},
                         {"batch", kBatch},
                         {"blocks", blocks}};
    figure.value = summarize(rates);
    figure.unit = "M keys/s";
    figure.target = Target{2.0, true, false};
    bench.report.add(figure);
  }
  return {};
}

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
    const Key key = make_key(kSeries + me.index(), number);
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
      return make_key(kSeries + me.index(), uint64_t{round} << 32 | i);
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
    auto pool = make_pool(locator, 4 * bytes, 16384, 2);
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
    for (uint64_t e = layout_.first_extent_of(1); e < layout_.first_extent_of(2); ++e) {
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
  const auto heard = filled && open ? await_block(*open, make_key(kSeries, 0)) : Result<void>{};
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
    if (!open->pool.get(open->ns, view(make_key(kSeries, random.below(blocks))), {&to, 1}))
      return wrong("a block of the dead host could not be read");
    usleep(20);  // the heartbeats need this CPU too
    if (now_ns() > deadline_ns) return wrong("no host adopted the dead host's extents");
  }
  const uint64_t end_ns = now_ns();
  for (uint64_t i = 0; i < blocks; ++i) {
    if (!open->pool.get(open->ns, view(make_key(kSeries, i)), {&to, 1}))
      return wrong("a block was lost in the adoption");
  }
  return static_cast<double>(end_ns - decided_ns) * 1e-9;
}

Result<void> run_adoption(Bench& bench) {
  const uint64_t blocks = bench.options.quick ? 5'000 : 100'000;
  std::vector<double> times;
  for (uint32_t round = 0; round < bench.options.rounds; ++round) {
    bench.report.progress(fmt::format("adoption, round {}", round + 1));
    auto pool = make_pool(bench.locator, 2 * blocks * 4096, 4096, 2, kSoonDead);
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
  if (auto result = run_lookup(bench); !result) return result;
  if (auto result = run_cost(bench, bench.one_cpu()); !result) return result;
  if (bench.machine.cpus.size() > 1) {
    if (auto result = run_cost(bench, bench.machine.cpus); !result) return result;
  }
  return run_adoption(bench);
}

}  // namespace bowhead::bench
