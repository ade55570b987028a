// SPDX-License-Identifier: Apache-2.0
#include "bench/device_bench.h"

#include <fmt/format.h>
#include <sched.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <memory>
#include <numeric>
#include <optional>
#include <vector>

#include "bench/child.h"
#include "bench/hosts.h"
#include "bench/rows.h"
#include "bench/team.h"
#include "driver-shim/mailbox.h"
#include "driver-shim/queue_pair.h"
#include "firmware-sim/device.h"
#include "ndp/engine.h"

namespace bowhead::bench {
namespace {

using driver::QueuePair;
using ndp::Job;

constexpr uint32_t kChannels = 128, kQueries = 8, kBest = 64;
constexpr uint32_t kBlockTokens = 1024;

Result<void> pin(int cpu) {
  cpu_set_t cpus;
  CPU_ZERO(&cpus);
  CPU_SET(cpu, &cpus);
  if (sched_setaffinity(0, sizeof cpus, &cpus) == 0) return {};
  return Error{Status::SYSTEM, "the CPU cannot be chosen"};
}

double seconds_since(uint64_t begun_ns) { return static_cast<double>(now_ns() - begun_ns) * 1e-9; }

/// A device in a process of its own, until the object goes.
class DeviceProcess {
 public:
  DeviceProcess(const std::string& locator, uint32_t host, int cpu) {
    std::fflush(nullptr);
    const int self = getpid();
    pid_ = fork();
    if (pid_ != 0) return;
    die_with_parent(self);
    if (auto pinned = pin(cpu); !pinned) _exit(complain(pinned.error()));
    auto pool = Pool::open(locator, {.host = host, .prefault = false});
    if (!pool) _exit(complain(pool.error()));
    auto device = device::Device::make(*pool);
    if (!device) _exit(complain(device.error()));
    const auto served = (*device)->serve([] { return false; });
    _exit(served ? 0 : complain(served.error()));
  }
  ~DeviceProcess() { end(); }
  DeviceProcess(const DeviceProcess&) = delete;
  DeviceProcess& operator=(const DeviceProcess&) = delete;
  void end() {
    if (pid_ <= 0) return;
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
    pid_ = 0;
  }

 private:
  pid_t pid_ = 0;
};

/// Until the device that is being started answers.
Result<void> await_device(QueuePair& pair) {
  const uint64_t begun_ns = now_ns();
  for (;;) {
    auto answered = pair.ping();
    if (answered || seconds_since(begun_ns) > 20) return answered;
    usleep(200);
  }
}

/// Leased values of one head, of so many tokens, and queries about them.
class Sequence {
 public:
  Sequence(Pool& pool, uint64_t seed) : pool_(pool), seed_(seed) {}
  ~Sequence() {
    for (Lease& lease : leases_) (void)pool_.release(lease);
  }
  Sequence(const Sequence&) = delete;
  Sequence& operator=(const Sequence&) = delete;

  Result<void> make(uint32_t tokens) {
    ValueFormat format{pairs_layout(NumberFormat::BF16, 1, 1, kChannels)};
    auto ns = pool_.open_namespace({fmt::format("sequence {}", seed_), "", format});
    if (!ns) return ns.error();
    Random random(seed_);
    std::vector<uint16_t> value;
    for (uint32_t first = 0; first < tokens; first += kBlockTokens) {
      const uint32_t count = std::min(kBlockTokens, tokens - first);
      value.resize(size_t{count} * 2 * kChannels);
      for (uint16_t& number : value)
        number = static_cast<uint16_t>(0x3F00 + random.below(0x100) + (random.below(2) << 15));
      const std::string key = fmt::format("{}", first);
      const ConstSpan in{reinterpret_cast<const std::byte*>(value.data()), value.size() * 2};
      if (const Status status = pool_.put(*ns, key, {&in, 1}); status != Status::OK)
        return Error{status, "put of a block"};
      auto lease = pool_.acquire(*ns, key, 600'000, LeaseOf::STORED);
      if (!lease) return lease.error();
      leases_.push_back(*lease);
      blocks_.push_back({lease->layout,
                         {reinterpret_cast<const uint8_t*>(lease->data), lease->stored_bytes},
                         lease->codec == BH_CODEC_FRAME,
                         lease->length_bytes,
                         first,
                         lease->offset,
                         lease->stamp});
    }
    queries_.resize(size_t{kQueries} * kChannels);
    for (float& number : queries_) number = static_cast<float>(random.below(2001)) / 1000 - 1;
    request_.operation = ndp::Operation::TOP_K;
    request_.heads.blocks = blocks_;
    request_.queries.values = queries_;
    request_.queries.count = kQueries;
    request_.queries.scale = 0.088f;
    request_.k = std::min(kBest, tokens);
    hits_.resize(size_t{kQueries} * request_.k);
    counts_.resize(kQueries);
    return {};
  }
  const std::vector<ndp::StoredBlock>& blocks() const { return blocks_; }
  const ndp::Request& request() const { return request_; }
  /// The same request about one block.
  ndp::Request request(size_t block) const {
    ndp::Request one = request_;
    one.heads.blocks = std::span(blocks_).subspan(block, 1);
    return one;
  }
  ndp::AnswerRoom room() {
    return {std::as_writable_bytes(std::span(hits_)), std::as_writable_bytes(std::span(counts_))};
  }
  /// Takes the answer out of the room.
  std::vector<std::byte> take_answer() {
    const auto bytes = std::as_bytes(std::span(hits_));
    std::vector<std::byte> answer(bytes.begin(), bytes.end());
    std::fill(hits_.begin(), hits_.end(), ndp::Hit{});
    return answer;
  }

 private:
  Pool& pool_;
  const uint64_t seed_;
  std::vector<Lease> leases_;
  std::vector<ndp::StoredBlock> blocks_;
  std::vector<float> queries_;
  ndp::Request request_;
  std::vector<ndp::Hit> hits_;
  std::vector<uint32_t> counts_;
};

/// What all rows share.
struct Rig {
  const DeviceBenchOptions& options;
  const Report& report;
  const std::string locator;
  const int client_cpu, device_cpu;
  uint32_t rounds() const { return options.quick ? 5 : options.rounds; }
};

Figure figure(std::string row, std::string what, const std::vector<double>& values,
              std::string unit) {
  Figure figure;
  figure.row = std::move(row);
  figure.what = std::move(what);
  figure.value = summarize(values);
  figure.unit = std::move(unit);
  return figure;
}

// ---- empty commands ----

Result<void> measure_empty(const Rig& rig, QueuePair& pair, bool coherent) {
  const uint64_t one_by_one = rig.options.quick ? 100 : 100'000;
  const uint64_t together = rig.options.quick ? 1'000 : 2'000'000;
  constexpr uint64_t kDepth = 128;
  std::vector<double> latencies_us, rates;
  for (uint32_t round = 0; round <= rig.rounds(); ++round) {
    uint64_t begun_ns = now_ns();
    if (auto done = pair.ping(one_by_one); !done) return done;
    const double latency_us = seconds_since(begun_ns) * 1e6 / static_cast<double>(one_by_one);
    begun_ns = now_ns();
    if (auto done = pair.ping(together, kDepth); !done) return done;
    const double rate = static_cast<double>(together) / seconds_since(begun_ns) * 1e-6;
    if (round == 0) continue;  // touches everything
    latencies_us.push_back(latency_us);
    rates.push_back(rate);
  }
  const char* flushes = coherent ? "coherent memory" : "memory with flushes";
  Figure one = figure(coherent ? "empty" : "empty_flushed",
                      fmt::format("empty command, one at a time, {}", flushes), latencies_us, "us");
  one.target = Target{coherent ? 0.5 : 2, false, false};
  rig.report.add(one);
  Figure many =
      figure(coherent ? "empty_depth" : "empty_depth_flushed",
             fmt::format("empty commands, {} under way, {}", kDepth, flushes), rates, "M/s");
  many.parameters = {{"depth", kDepth}};
  many.target = Target{coherent ? 10.0 : 2.0, true, false};
  rig.report.add(many);
  return {};
}

/// Two hosts of one machine: the cost of the instructions, not of a link.
Result<void> run_flushed(const Rig& rig) {
  auto made = make_shared_pool(rig.locator, 64u << 20, 4096, 2);
  if (!made) return made.error();
  auto open = open_as(rig.locator, 0);
  if (!open) return open.error();
  const DeviceProcess device(rig.locator, 1, rig.device_cpu);
  auto pair = QueuePair::open(open->pool);
  if (!pair) return pair.error();
  if (auto there = await_device(**pair); !there) return there;
  return measure_empty(rig, **pair, false);
}

// ---- requests ----

/// The same request by both engines in turns; other memory each time, more in all than caches hold.
Result<void> measure_topk(const Rig& rig, Pool& pool, QueuePair& pair) {
  const uint32_t tokens = rig.options.quick ? 2048 : 32768;
  const uint32_t count = rig.options.quick ? 2 : 12;
  std::vector<std::unique_ptr<Sequence>> sequences;
  for (uint32_t i = 0; i < count; ++i) {
    sequences.push_back(std::make_unique<Sequence>(pool, i + 1));
    if (auto made = sequences.back()->make(tokens); !made) return made;
  }
  ndp::ProcessEngine process;
  std::vector<double> here, there;
  for (uint32_t round = 0; round <= rig.rounds(); ++round) {
    double seconds[2] = {};
    std::vector<std::vector<std::byte>> answers[2];
    for (uint32_t turn = 0; turn < 2; ++turn) {
      const uint32_t which = (round + turn) % 2;
      ndp::Engine& engine = which == 0 ? static_cast<ndp::Engine&>(process) : pair;
      for (const auto& sequence : sequences) {
        const uint64_t begun_ns = now_ns();
        const auto read = engine.run(sequence->request(), sequence->room());
        seconds[which] += seconds_since(begun_ns);
        if (!read) return read.error();
        answers[which].push_back(sequence->take_answer());
      }
    }
    if (answers[0] != answers[1]) return wrong("the device found other tokens than the process");
    if (round == 0) continue;
    here.push_back(count / seconds[0]);
    there.push_back(count / seconds[1]);
  }
  Figure topk = figure(
      "topk",
      fmt::format("top-{} of {} queries in {} tokens by the device", kBest, kQueries, tokens),
      there, "1/s");
  topk.parameters = {{"tokens", tokens}, {"queries", kQueries}, {"k", kBest}};
  topk.limit = Limit{"process", summarize(here)};
  topk.ratio = ratio_of(there, here);
  topk.target = Target{0.95, true, true};
  rig.report.add(topk);
  return {};
}

/// The latency that one in a hundred exceeds.
double late_of(std::vector<double>& latencies) {
  const auto at = latencies.begin() + static_cast<std::ptrdiff_t>(latencies.size() * 99 / 100);
  std::nth_element(latencies.begin(), at, latencies.end());
  return *at;
}

Result<void> measure_small(const Rig& rig, Pool& pool, QueuePair& pair) {
  constexpr uint32_t kLarge = 8;
  Sequence few(pool, 100);
  if (auto made = few.make(64); !made) return made;
  std::vector<std::unique_ptr<Sequence>> large;
  std::vector<Job> jobs;
  for (uint32_t i = 0; i < kLarge; ++i) {
    large.push_back(std::make_unique<Sequence>(pool, 101 + i));
    if (auto made = large.back()->make(rig.options.quick ? 2048 : 32768); !made) return made;
    jobs.push_back(Job{large.back()->request(), large.back()->room()});
  }
  const uint32_t count = rig.options.quick ? 10 : 2000;
  uint64_t done = 0;
  double device_us = 0;  // of a small request, on average
  const auto latencies_us = [&](bool loaded) -> Result<std::vector<double>> {
    std::vector<double> all;
    device_us = 0;
    for (uint32_t i = 0; i < count; ++i) {
      for (Job& job : jobs) {
        if (!loaded || !pair.poll(job)) continue;
        if (!*job.answer) return job.answer->error();
        ++done;
        pair.submit(job);
      }
      Job job{few.request(), few.room()};
      const uint64_t begun_ns = now_ns();
      pair.submit(job);
      pair.wait(job);
      all.push_back(seconds_since(begun_ns) * 1e6);
      if (!*job.answer) return job.answer->error();
      device_us += static_cast<double>(job.device_ns) * 1e-3 / count;
    }
    return all;
  };
  std::vector<double> idle, behind, computing_us;
  for (uint32_t round = 0; round <= rig.rounds(); ++round) {
    auto of_idle = latencies_us(false);
    if (!of_idle) return of_idle.error();
    computing_us.push_back(device_us);
    pair.submit(std::span(jobs));
    auto of_behind = latencies_us(true);
    for (Job& job : jobs) pair.wait(job);
    if (!of_behind) return of_behind.error();
    if (round == 0) continue;
    std::nth_element(of_idle->begin(), of_idle->begin() + count / 2, of_idle->end());
    idle.push_back((*of_idle)[count / 2]);
    behind.push_back(late_of(*of_behind));
  }
  Figure small = figure("small",
                        fmt::format("top-64 in 64 tokens behind {} in 32,768: the 99th percentile, "
                                    "beside the median on an idle device",
                                    kLarge),
                        behind, "us");
  small.parameters = {
      {"large", kLarge}, {"large_done", done}, {"idle_device_us", summarize(computing_us).median}};
  small.limit = Limit{"idle", summarize(idle)};
  small.ratio = ratio_of(behind, idle);
  small.target = Target{10, false, true};
  rig.report.add(small);
  return {};
}

/// The blocks with the largest counts.
std::vector<size_t> first_of(const std::vector<uint64_t>& counts, size_t most) {
  std::vector<size_t> order(counts.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return counts[a] > counts[b]; });
  order.resize(most);
  std::sort(order.begin(), order.end());
  return order;
}

/// Adds what the hot list says of each block; returns where to read on.
Result<uint16_t> add_hot(driver::MailboxClient& mailbox, uint16_t head, const Sequence& sequence,
                         std::vector<uint64_t>& counts) {
  for (;;) {
    const auto list = mailbox.read_hot_list(head, false);
    if (!list) return list.error();
    for (const driver::HotListEntry& entry : list->entries) {
      for (size_t b = 0; b < counts.size(); ++b) {
        const ndp::StoredBlock& block = sequence.blocks()[b];
        if (entry.offset >= block.offset && entry.offset < block.offset + block.bytes.size())
          counts[b] += entry.count;
      }
    }
    head = list->next_head;
    if (!list->more) return head;
  }
}

/// Which blocks requests read, as the hotness unit has it. The counters of the pool see none of it:
/// a lease lasts for many requests.
Result<void> measure_hotness(const Rig& rig, Pool& pool, QueuePair& pair) {
  constexpr uint32_t kBlocks = 64, kHot = 8, kEpochMs = 100;
  const uint32_t requests = rig.options.quick ? 100 : 5000;
  Sequence sequence(pool, 300);
  if (auto made = sequence.make(kBlocks * kBlockTokens); !made) return made;
  driver::MailboxClient mailbox(pair);
  cxl::HotnessSetting setting{};
  setting.enabled = 1;
  setting.unit_log2 = 16;
  setting.epoch_ms = kEpochMs;
  std::vector<double> shares;
  uint64_t pool_hits = 0;
  for (uint32_t round = 0; round < rig.rounds(); ++round) {
    if (auto set = mailbox.configure_hotness(setting); !set) return set;
    const auto hotness = mailbox.hotness();
    const auto before = pool.info();
    if (!hotness || !before) return Error{Status::DEVICE_LOST, "it does not tell its hotness"};
    uint16_t head = hotness->head;
    Random random(round + 1);
    std::vector<uint64_t> asked(kBlocks), seen(kBlocks);
    for (uint32_t i = 0; i < requests; ++i) {
      // Low numbers more often than high ones; which blocks these are differs by round.
      const uint64_t rank = random.below(1 + random.below(1 + random.below(kBlocks)));
      const size_t block = (rank * 37 + round) % kBlocks;
      ++asked[block];
      if (auto read = pair.run(sequence.request(block), sequence.room()); !read)
        return read.error();
      if (i % 100 != 0) continue;
      const auto next = add_hot(mailbox, head, sequence, seen);
      if (!next) return next.error();
      head = *next;
    }
    usleep(2 * kEpochMs * 1000);  // the last epoch ends
    if (auto next = add_hot(mailbox, head, sequence, seen); !next) return next.error();
    const auto after = pool.info();
    if (!after) return after.error();
    pool_hits += after->hits - before->hits;
    std::vector<size_t> both;
    const auto wanted = first_of(asked, kHot), found = first_of(seen, kHot);
    std::set_intersection(wanted.begin(), wanted.end(), found.begin(), found.end(),
                          std::back_inserter(both));
    shares.push_back(static_cast<double>(both.size()) / kHot);
  }
  Figure hot = figure("hotness",
                      fmt::format("of the {} most read of {} blocks, the share that the hotness "
                                  "unit puts first",
                                  kHot, kBlocks),
                      shares, "of them");
  hot.parameters = {{"requests", requests}, {"pool_hits", pool_hits}};
  hot.note = fmt::format("of these {} reads the counters of the pool saw {}",
                         requests * rig.rounds(), pool_hits);
  rig.report.add(hot);
  return {};
}

/// From the kill of a device with commands under way to the first answer of its successor.
Result<void> measure_restart(const Rig& rig, Pool& pool, QueuePair& pair,
                             std::optional<DeviceProcess>& device) {
  Sequence sequence(pool, 200);
  if (auto made = sequence.make(rig.options.quick ? 2048 : 32768); !made) return made;
  std::vector<double> times_ms;
  for (uint32_t round = 0; round < rig.rounds(); ++round) {
    std::vector<Job> jobs(16, Job{sequence.request(), sequence.room()});
    pair.submit(std::span(jobs));
    pair.wait(jobs[0]);
    const uint64_t begun_ns = now_ns();
    device->end();
    device.emplace(rig.locator, 0, rig.device_cpu);
    if (auto there = await_device(pair); !there) return there;
    times_ms.push_back(seconds_since(begun_ns) * 1e3);
    for (Job& job : jobs) {
      pair.wait(job);
      if (!*job.answer && job.answer->status() != Status::DEVICE_LOST) return job.answer->error();
    }
  }
  Figure restart = figure(
      "restart", "from the kill of a device to the first answer of the next one", times_ms, "ms");
  restart.target = Target{1000, false, false};
  rig.report.add(restart);
  return {};
}

Result<void> run_coherent(const Rig& rig) {
  const uint64_t pool_bytes = rig.options.quick ? uint64_t{192} << 20 : uint64_t{1} << 30;
  auto made = BenchPool::create(rig.locator, pool_bytes, 16384);
  if (!made) return made.error();
  auto pool = Pool::open(rig.locator);
  if (!pool) return pool.error();
  std::optional<DeviceProcess> device;
  device.emplace(rig.locator, 0, rig.device_cpu);
  auto pair = QueuePair::open(*pool, {.answer_bytes = uint64_t{1} << 20});
  if (!pair) return pair.error();
  if (auto there = await_device(**pair); !there) return there;
  rig.report.progress("empty commands");
  if (auto done = measure_empty(rig, **pair, true); !done) return done;
  rig.report.progress("the best tokens");
  if (auto done = measure_topk(rig, *pool, **pair); !done) return done;
  rig.report.progress("a small request behind large ones");
  if (auto done = measure_small(rig, *pool, **pair); !done) return done;
  rig.report.progress("hotness");
  if (auto done = measure_hotness(rig, *pool, **pair); !done) return done;
  rig.report.progress("a device that is killed");
  return measure_restart(rig, *pool, **pair, device);
}

int measure(const DeviceBenchOptions& options, const std::string& locator) {
  const Machine machine = this_machine();
  Report report({"device", options.quick, options.json, options.command}, machine);
  if (machine.cpus.size() < 2)
    return complain(
        Error{Status::NOT_SUPPORTED, "one CPU: the device and its client need one each"});
  report.set_media(fmt::format("{}, device in a process of its own", locator));
  report.print_header();
  report.print_heading();
  const Rig rig{options, report, locator, machine.cpus[0], machine.cpus[1]};
  if (auto pinned = pin(rig.client_cpu); !pinned) return complain(pinned.error());
  if (auto done = run_coherent(rig); !done) return complain(done.error());
  if (auto done = run_flushed(rig); !done) return complain(done.error());
  report.progress("");
  return 0;
}

}  // namespace

int run_device_bench(const DeviceBenchOptions& options) {
  if (options.rounds < 5)
    return complain(
        Error{Status::INVALID_ARGUMENT, "at least 5 rounds, for a median and a spread"});
  const std::string locator =
      options.locator.empty() ? fmt::format("shm:bench-{}", getpid()) : options.locator;
  if (auto unused = check_unused(locator); !unused) return complain(unused.error());
  return run_in_child([&] { return measure(options, locator); }, {locator});
}

}  // namespace bowhead::bench
