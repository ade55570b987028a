// SPDX-License-Identifier: Apache-2.0
// Look-ups of batches over the indexes of many hosts: by the mirror of their indexes, and by
// reading the indexes themselves, in turns; beside a host that puts and evicts at full speed; and
// the cost of the change log, which the mirror follows, to a put.
//
// The hosts that are looked at are handles in a process of their own, on another processor if there
// is one, as they would be on machines of their own. The caches of all are coherent: so this
// measures the cost of the instructions and of memory, not the latency of a link.
#include <fmt/format.h>
#include <sched.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <numeric>

#include "bench/hosts.h"
#include "pool/core/access.h"
#include "pool/core/core.h"

namespace bowhead::bench {
namespace {

/// A process whose puts say nothing in the change log of its host.
class UnloggedAccess : public core::NativeAccess {
 public:
  using NativeAccess::NativeAccess;
};

}  // namespace
}  // namespace bowhead::bench

template <>
inline uint64_t bowhead::core::ChangeLog<bowhead::bench::UnloggedAccess>::append(uint64_t) {
  return 0;
}
template <>
inline void bowhead::core::ChangeLog<bowhead::bench::UnloggedAccess>::publish(uint64_t) {
  c_.access.fence();
}

namespace bowhead::bench {
namespace {

constexpr uint64_t kBatch = 128;
constexpr uint32_t kFirstBatches = 5;
enum Side : uint32_t { MIRROR, INDEXES };

/// The places of a member's sections and numbers.
struct Places {
  uint32_t rounds;
  uint32_t section(uint32_t round, bool present, Side side) const {
    return (round * 2 + (present ? 0 : 1)) * 2 + side;
  }
  uint32_t busy(uint32_t round) const { return rounds * 4 + round; }
  uint32_t sections() const { return rounds * 5; }
};

struct Plan {
  std::string locator;
  uint32_t hosts;
  uint64_t blocks;
  Places places;
  int other_cpu;      ///< for the other hosts; -1: there is none
  uint32_t quiet_ms;  ///< before the first batch after many puts
};

/// Keys in random order, as many as there are blocks: stored ones, or none.
struct Keys {
  Keys(const std::vector<uint64_t>& order, uint64_t series) {
    for (const uint64_t i : order) keys.push_back(make_key(series, i));
    for (const Key& key : keys) views.push_back(view(key));
  }
  std::vector<Key> keys;
  std::vector<std::string_view> views;
};

uint64_t count_present(OpenPool& open, std::span<const std::string_view> keys) {
  uint8_t answers[kBatch];
  uint64_t found = 0;
  for (uint64_t at = 0; at < keys.size(); at += kBatch) {
    const auto batch = keys.subspan(at, std::min<uint64_t>(kBatch, keys.size() - at));
    found += open.pool.exists(open.ns, batch, {answers, batch.size()}).value();
  }
  return found;
}

Result<void> await_mirror(OpenPool& open, const Plan& plan) {
  for (const uint64_t deadline_ns = now_ns() + 120'000'000'000; now_ns() < deadline_ns;) {
    const auto info = open.pool.info();
    if (!info) return info.error();
    if (info->hosts[0].mirrors_refused > 1) return wrong("there is no memory for the mirror");
    if (info->hosts[0].mirrored_hosts + 1 >= plan.hosts) return {};
    usleep(50'000);
  }
  return wrong("the indexes were not mirrored within 120 s");
}

/// A process of other hosts, which is killed when this object goes.
class Others {
 public:
  /// Calls work(begun) there, which writes a byte to `begun` once it has begun, and never returns.
  template <class Work>
  Others(const Plan& plan, Work work) {
    int ends[2];
    if (pipe(ends) != 0) return;
    const int self = getpid();
    std::fflush(nullptr);
    child_ = fork();
    if (child_ == 0) {
      die_with_parent(self);
      close(ends[0]);
      cpu_set_t set;
      CPU_ZERO(&set);
      CPU_SET(plan.other_cpu, &set);
      if (plan.other_cpu >= 0) sched_setaffinity(0, sizeof set, &set);
      work(ends[1]);
      _exit(1);
    }
    close(ends[1]);
    begun_ = ends[0];
  }
  ~Others() {
    if (begun_ >= 0) close(begun_);
    if (child_ <= 0) return;
    kill(child_, SIGKILL);
    waitpid(child_, nullptr, 0);
  }
  Others(const Others&) = delete;
  Others& operator=(const Others&) = delete;

  /// Waits. False if the process ended instead.
  bool begun() const {
    char byte = 0;
    return child_ > 0 && read(begun_, &byte, 1) == 1;
  }

 private:
  pid_t child_ = -1;
  int begun_ = -1;
};

/// All hosts but host 0: store their shares, and stay.
void fill_others(const Plan& plan, int begun) {
  std::vector<OpenPool> hosts;
  for (uint32_t host = 1; host < plan.hosts; ++host) {
    auto open = open_as(plan.locator, host);
    if (!open || !fill(*open, host, plan.blocks, plan.hosts)) return;
    hosts.push_back(std::move(*open));
  }
  const char byte = 1;
  if (write(begun, &byte, 1) != 1) return;
  for (;;) pause();
}

/// Host 1: puts new blocks until it is killed, and evicts old ones.
void put_as_host_1(const Plan& plan, int begun) {
  auto open = open_as(plan.locator, 1);
  if (!open) return;
  for (uint64_t i = 0, stored = 0, refused = 0;; ++i) {
    // A small host can be out of space until what it evicted has settled.
    if (!fill_one(*open, make_key(kHostsSeries + 2, i))) {
      if (++refused > 100'000) return;
      usleep(1000);
      continue;
    }
    const char byte = 1;
    // So many that it evicts.
    if (++stored == plan.blocks && write(begun, &byte, 1) != 1) return;
  }
}

/// The same look-ups while another host puts, and the first batch after a time without any.
Result<void> look_up_beside_puts(Member& me, const Plan& plan, OpenPool& open, const Keys& absent) {
  const Others putting(plan, [&](int begun) { put_as_host_1(plan, begun); });
  if (!putting.begun()) return wrong("the host that puts could not put");
  uint64_t found = 0;
  for (uint32_t round = 0; round < plan.places.rounds; ++round)
    me.time(plan.places.busy(round), [&] { found += count_present(open, absent.views); });
  for (uint32_t i = 0; i < kFirstBatches; ++i) {
    usleep(plan.quiet_ms * 1000);
    const uint64_t began_ns = now_ns();
    found += count_present(open, std::span(absent.views).first(kBatch));
    me.leave(i, static_cast<double>(now_ns() - began_ns));
  }
  if (found != 0) return wrong("a key was found that was never stored");
  return {};
}

Result<void> look_up(Member& me, const Plan& plan) {
  const Others others(plan, [&](int begun) { fill_others(plan, begun); });
  if (!others.begun()) return wrong("the other hosts could not put");
  auto open = open_as(plan.locator, 0);
  if (!open) return open.error();
  if (auto filled = fill(*open, 0, plan.blocks, plan.hosts); !filled) return filled;
  auto unmirrored = open_as(plan.locator, 0, /*mirror_bytes=*/0);
  if (!unmirrored) return unmirrored.error();
  OpenPool* sides[] = {&*open, &*unmirrored};
  me.leave_text(media_text(open->pool));
  for (uint32_t host = 1; host < plan.hosts; ++host) {
    if (auto heard = await_block(*open, make_key(kHostsSeries, host)); !heard) return heard;
  }
  if (auto ready = await_mirror(*open, plan); !ready) return ready;
  Random random(7);
  std::vector<uint64_t> order(plan.blocks);
  std::iota(order.begin(), order.end(), uint64_t{0});
  for (uint64_t i = order.size(); i > 1; --i) std::swap(order[i - 1], order[random.below(i)]);
  const Keys stored(order, kHostsSeries), absent(order, kHostsSeries + 1);
  for (const bool present : {true, false}) {
    const Keys& keys = present ? stored : absent;
    const uint64_t expected = present ? plan.blocks : 0;
    for (OpenPool* side : sides) {
      const uint64_t found = count_present(*side, keys.views);
      if (found != expected) return wrong(fmt::format("{} of {} keys were found", found, expected));
    }
    for (uint32_t round = 0; round < plan.places.rounds; ++round) {
      for (const Side side : {MIRROR, INDEXES}) {
        uint64_t found = 0;
        me.time(plan.places.section(round, present, side),
                [&] { found = count_present(*sides[side], keys.views); });
        if (found != expected) return wrong("a look-up gave a wrong answer");
      }
    }
  }
  if (plan.other_cpu < 0) return {};
  return look_up_beside_puts(me, plan, *open, absent);
}

struct Rates {
  std::vector<double> by_side[2];  // M keys/s
};

/// `idle`: the rates of absent keys without puts.
void report_beside_puts(Bench& bench, const Plan& plan, const Team& team,
                        const std::vector<double>& idle) {
  Figure figure;
  figure.parameters = {
      {"hosts", plan.hosts}, {"batch", kBatch}, {"blocks", plan.blocks}, {"keys", "absent"}};
  figure.unit = "M keys/s";
  std::vector<double> busy;
  for (uint32_t round = 0; round < plan.places.rounds; ++round)
    busy.push_back(static_cast<double>(plan.blocks) / team.seconds(plan.places.busy(round)) * 1e-6);
  figure.row = "lookup_beside_puts";
  figure.what = fmt::format("lookup, {} hosts, absent, beside a host that puts", plan.hosts);
  figure.value = summarize(busy);
  figure.limit = Limit{"without puts", summarize(idle)};
  figure.ratio = ratio_of(busy, idle);
  figure.target = Target{0.5, true, true};
  bench.report.add(figure);
  figure.row = "lookup_after_puts";
  figure.what =
      fmt::format("first batch after {} s of puts, {} hosts", plan.quiet_ms / 1e3, plan.hosts);
  std::vector<double> first_ms;
  for (uint32_t i = 0; i < kFirstBatches; ++i) first_ms.push_back(team.number(0, i) / 1e6);
  figure.value = summarize(first_ms);
  figure.unit = "ms";
  figure.limit.reset();
  figure.ratio.reset();
  figure.target = Target{2.0, false, false};
  bench.report.add(figure);
}

/// Reports the look-ups over `hosts` hosts; returns the rates of the absent keys by the mirror.
Result<void> run_lookup(Bench& bench, uint32_t hosts, Rates* present_of_few, Rates* absent_of_few) {
  const uint64_t blocks = bench.options.quick ? 40'000 : 1'000'000;
  bench.report.progress(fmt::format("look-ups over {} hosts", hosts));
  const bool few = hosts == 8;
  // Each host has tables of its own, and room for a whole extent more.
  auto pool = make_shared_pool(bench.locator, blocks * 4096 + (uint64_t{hosts} << 26), 4096, hosts,
                               SharingTimes{.dead_ms = 60'000}, /*evict_high_permille=*/950);
  if (!pool) return pool.error();
  const auto& cpus = bench.machine.cpus;
  const Plan plan{bench.locator,
                  hosts,
                  blocks,
                  {bench.options.rounds},
                  cpus.size() > 1 ? cpus.back() : -1,
                  bench.options.quick ? 100u : 10'000u};
  Team team(bench.one_cpu(), plan.places.sections(), kFirstBatches);
  if (auto result = team.run([&](Member& me) { return look_up(me, plan); }); !result) return result;
  bench.report.set_media(team.text(0));
  const auto rate = [&](uint32_t section) {
    return static_cast<double>(blocks) / team.seconds(section) * 1e-6;
  };
  Figure figure;
  figure.parameters = {{"hosts", hosts}, {"batch", kBatch}, {"blocks", blocks}};
  figure.unit = "M keys/s";
  std::vector<double> idle;
  for (const bool present : {true, false}) {
    Rates rates;
    for (uint32_t round = 0; round < plan.places.rounds; ++round) {
      for (const Side side : {MIRROR, INDEXES})
        rates.by_side[side].push_back(rate(plan.places.section(round, present, side)));
    }
    const auto& mirror = rates.by_side[MIRROR];
    Rates& of_few = present ? *present_of_few : *absent_of_few;
    figure.row = "lookup_hosts";
    figure.what = fmt::format("lookup, {} hosts, {}", hosts, present ? "present" : "absent");
    figure.parameters["keys"] = present ? "present" : "absent";
    figure.value = summarize(mirror);
    figure.limit = Limit{"by reading the indexes", summarize(rates.by_side[INDEXES])};
    figure.ratio = ratio_of(mirror, rates.by_side[INDEXES]);
    figure.target = few ? Target{present ? 2.0 : 3.0, true, true} : std::optional<Target>{};
    bench.report.add(figure);
    if (few) {
      of_few = rates;
    } else {
      figure.row = "lookup_many_hosts";
      figure.what = fmt::format("the same, against 8 hosts");
      figure.limit = Limit{"over 8 hosts", summarize(of_few.by_side[MIRROR])};
      figure.ratio = ratio_of(mirror, of_few.by_side[MIRROR]);
      figure.target = Target{1 / 1.5, true, true};
      bench.report.add(figure);
    }
    idle = mirror;
  }
  if (plan.other_cpu >= 0) report_beside_puts(bench, plan, team, idle);
  return {};
}

// ---- the change log ----

constexpr uint64_t kBlockBytes = uint64_t{64} << 10, kTurnPuts = 16;

/// A process of host 0, whose duties are done between the pairs.
template <class A>
class Process {
 public:
  static Result<std::unique_ptr<Process>> join(const std::string& locator) {
    auto raw = open_raw_pool(locator);
    if (!raw) return raw.error();
    auto process = std::unique_ptr<Process>(new Process(std::move(*raw)));
    if (auto joined = process->core_.joining.attach({}); !joined) return joined.error();
    return process;
  }
  ~Process() { core_.joining.detach(); }
  Process(const Process&) = delete;
  Process& operator=(const Process&) = delete;

  Status put(uint64_t number, ConstSpan value) {
    const Key key = make_key(kHostsSeries, number);
    return core_.writing.put(core::Key(kSpace, view(key)), {&value, 1});
  }
  Status remove(uint64_t number) {
    const Key key = make_key(kHostsSeries, number);
    return core_.writing.remove(core::Key(kSpace, view(key)));
  }
  bool work() { return core_.membership.heartbeat() && core_.membership.work(); }

 private:
  static constexpr uint64_t kSpace = 7;  ///< the core takes any number

  explicit Process(RawPool raw)
      : raw_(std::move(raw)),
        access_(*raw_.media, choose_flush_kind(true)),
        core_(access_, raw_.superblock, 0) {}
  RawPool raw_;
  A access_;
  core::Core<A> core_;
};

struct Puts {
  std::string locator;
  uint64_t blocks;  ///< of a process in one pair
  uint32_t pairs;
};

/// Two processes of one host take turns of a few puts, so that the ups and downs of the machine
/// meet both.
Result<void> measure_log(Member& me, const Puts& plan) {
  auto logged = Process<core::NativeAccess>::join(plan.locator);
  if (!logged) return logged.error();
  auto unlogged = Process<UnloggedAccess>::join(plan.locator);
  if (!unlogged) return unlogged.error();
  std::vector<std::byte> from(plan.blocks * kBlockBytes, std::byte{1});
  constexpr uint64_t kOtherKeys = uint64_t{1} << 32;
  Status failed = Status::OK;
  const auto put = [&](auto& process, uint64_t base, uint64_t begin) {
    const uint64_t began_ns = now_ns();
    for (uint64_t b = begin; b < begin + kTurnPuts; ++b) {
      const Status status = process.put(base + b, {from.data() + b * kBlockBytes, kBlockBytes});
      if (status != Status::OK) failed = status;
    }
    return static_cast<double>(now_ns() - began_ns);
  };
  const auto remove = [&](auto& process, uint64_t base) {
    for (uint64_t b = 0; b < plan.blocks; ++b) {
      if (const Status status = process.remove(base + b); status != Status::OK) failed = status;
    }
  };
  for (uint32_t pair = 0; pair <= plan.pairs; ++pair) {  // the first warms up
    double logged_ns = 0, unlogged_ns = 0;
    for (uint64_t b = 0; b < plan.blocks; b += kTurnPuts) {
      const bool logged_first = b / kTurnPuts % 2 == 0;
      if (logged_first) logged_ns += put(**logged, 0, b);
      unlogged_ns += put(**unlogged, kOtherKeys, b);
      if (!logged_first) logged_ns += put(**logged, 0, b);
    }
    if (pair > 0) {
      me.leave((pair - 1) * 2, logged_ns);
      me.leave((pair - 1) * 2 + 1, unlogged_ns);
    }
    remove(**logged, 0);
    remove(**unlogged, kOtherKeys);
    if (failed != Status::OK)
      return wrong(fmt::format("put or remove failed: {}", status_name(failed)));
    for (int i = 0; i < 4; ++i) {  // until the removed blocks have settled and are free
      if (!(*logged)->work() || !(*unlogged)->work()) return wrong("a host was declared dead");
      usleep(110'000);
    }
  }
  return {};
}

Result<void> run_log(Bench& bench) {
  const Puts plan{bench.locator, bench.options.quick ? 64u : 2048u, bench.options.quick ? 5u : 15u};
  bench.report.progress("puts with and without change log");
  auto pool = make_shared_pool(bench.locator, 8 * plan.blocks * kBlockBytes, 16384, 2,
                               SharingTimes{.dead_ms = 60'000});
  if (!pool) return pool.error();
  Team team(bench.one_cpu(), 0, plan.pairs * 2);
  if (auto result = team.run([&](Member& me) { return measure_log(me, plan); }); !result)
    return result;
  std::vector<double> rates[2];
  for (uint32_t pair = 0; pair < plan.pairs; ++pair) {
    for (const uint32_t side : {0u, 1u})
      rates[side].push_back(static_cast<double>(plan.blocks) / team.number(0, pair * 2 + side) *
                            1e3);
  }
  Figure figure;
  figure.row = "put_logged";
  figure.what = "put with change log, 64 KiB";
  figure.parameters = {{"block_bytes", kBlockBytes}, {"puts", plan.blocks}};
  figure.value = summarize(rates[0]);
  figure.unit = "M puts/s";
  figure.limit = Limit{"without log", summarize(rates[1])};
  figure.ratio = ratio_of(rates[0], rates[1]);
  figure.target = Target{0.97, true, true};
  bench.report.add(figure);
  return {};
}

}  // namespace

Result<void> run_lookup_rows(Bench& bench) {
  Rates present, absent;  // over 8 hosts
  for (const uint32_t hosts : {8u, bench.options.quick ? 16u : 64u}) {
    if (auto result = run_lookup(bench, hosts, &present, &absent); !result) return result;
  }
  return run_log(bench);
}

}  // namespace bowhead::bench
