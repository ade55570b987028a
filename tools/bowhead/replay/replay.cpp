// SPDX-License-Identifier: Apache-2.0
// The parent deals requests through one atomic counter; otherwise it only watches its workers.
#include "tools/bowhead/replay/replay.h"

#include <fmt/format.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <ctime>
#include <new>
#include <optional>
#include <thread>

#include "base/checksum.h"
#include "driver-shim/queue_pair.h"
#include "firmware-sim/device.h"
#include "tools/bowhead/replay/models.h"
#include "tools/program/signals.h"

namespace bowhead::replay {
namespace {

using Clock = std::chrono::steady_clock;

constexpr uint32_t kCopyRounds = 5;
constexpr auto kStopPatience = std::chrono::seconds(2);
constexpr uint64_t kStagingMin = 64ull << 20;
constexpr uint64_t kStagingMax = 256ull << 20;
constexpr uint64_t kPayloadAlign = 4096;

// The report of a worker, which is the only writer.
struct WorkerPage {
  EngineStats stats;
  StepStats steps;
  uint32_t failed_status;  // Status; 0: none
  char failed_text[500];
};

// The page that parent and workers share.
struct Shared {
  std::atomic<uint64_t> next_request;
  std::atomic<uint64_t> served;
  std::atomic<uint32_t> ready;  // number of processes that have opened the pool
  std::atomic<uint32_t> go;
  std::atomic<uint32_t> stop;
  std::atomic<uint32_t> stop_device;
  WorkerPage workers[];
};
static_assert(std::atomic<uint64_t>::is_always_lock_free);

class SharedMapping {
 public:
  explicit SharedMapping(uint32_t processes)
      : size_(sizeof(Shared) + processes * sizeof(WorkerPage)) {
    void* memory = mmap(nullptr, size_, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    shared_ = memory == MAP_FAILED ? nullptr : static_cast<Shared*>(memory);
  }
  ~SharedMapping() {
    if (shared_ != nullptr) munmap(shared_, size_);
  }
  SharedMapping(const SharedMapping&) = delete;
  SharedMapping& operator=(const SharedMapping&) = delete;
  Shared* get() const { return shared_; }

 private:
  size_t size_;
  Shared* shared_;
};

// Takes a pending signal, waiting for up to `wait_ms`; 0 if none came.
int take_signal(long wait_ms) {
  const sigset_t set = cli::ending_signals();
  const timespec wait{wait_ms / 1000, wait_ms % 1000 * 1'000'000};
  const int signal = sigtimedwait(&set, nullptr, &wait);
  return signal > 0 ? signal : 0;
}

NamespaceDescription namespace_of(const Content& content, const ReplayOptions& options) {
  std::string text =
      fmt::format("replay: {}, {} bytes", content.description(), options.block_bytes);
  if (options.values.profile != CompressionProfile::NONE)
    text += ", compression " + to_text(options.values);
  return {fmt::format("replay-{:016x}", hash64(text.data(), text.size())), text, options.values};
}

uint64_t staging_bytes(const Trace& trace, uint64_t block_bytes) {
  return std::clamp(2 * trace.largest_request_blocks() * block_bytes, kStagingMin, kStagingMax);
}

Result<Pool> open_as(const ReplayOptions& options, uint32_t worker) {
  OpenOptions open;
  open.host = options.hosts == 0 ? options.host : worker % options.hosts;
  open.prefault = options.prefault;
  return Pool::open(options.locator, open);
}

// Asks the device of the pool, and computes in the worker what that does not answer.
Result<std::unique_ptr<ndp::Engine>> engine_of(Pool& pool) {
  auto pair = driver::QueuePair::open(pool);
  if (pair)
    return std::unique_ptr<ndp::Engine>(std::make_unique<ndp::FallbackEngine>(*std::move(pair)));
  if (pair.status() == Status::LIMIT_REACHED)  // more workers than queue pairs
    return std::unique_ptr<ndp::Engine>(std::make_unique<ndp::ProcessEngine>());
  return pair.error();
}

Result<void> work(const Trace& trace, const Content& content, const ReplayOptions& options,
                  Shared& shared, uint32_t worker) {
  auto pool = open_as(options, worker);
  if (!pool) return pool.error();
  const auto ns = pool->open_namespace(namespace_of(content, options));
  if (!ns) return ns.error();
  WorkerPage& page = shared.workers[worker];
  Engine engine(*pool, *ns, content, options.block_bytes, staging_bytes(trace, options.block_bytes),
                page.stats);
  std::optional<DecodeSteps> steps;
  if (options.model != nullptr) {
    auto asked = engine_of(*pool);
    if (!asked) return asked.error();
    steps.emplace(*pool, *ns, content, *options.model, options.decode, *std::move(asked),
                  page.steps);
  }
  shared.ready.fetch_add(1);
  while (shared.go.load() == 0 && shared.stop.load() == 0) {
    std::this_thread::sleep_for(std::chrono::microseconds(200));
  }
  while (shared.stop.load(std::memory_order_relaxed) == 0) {
    const uint64_t at = shared.next_request.fetch_add(1);
    if (at >= trace.requests.size()) break;
    const Request& request = trace.requests[at];
    auto served = engine.serve(trace.ids_of(request), request.input_tokens);
    if (served && steps)
      served = steps->serve(trace.ids_of(request), request.output_tokens,
                            hash64(&at, sizeof at, options.seed));
    if (const auto failed = pool->media_failure()) return *failed;
    if (!served) return served;
    shared.served.fetch_add(1, std::memory_order_relaxed);
  }
  return {};
}

// As long as the workers run. Another process may be the device already: then this one ends.
Result<void> be_device(const ReplayOptions& options, Shared& shared) {
  auto pool = open_as(options, 0);
  if (!pool) return pool.error();
  const auto device = device::Device::make(*pool);
  shared.ready.fetch_add(1);
  if (device.status() == Status::IN_USE) return {};
  if (!device) return device.error();
  return (*device)->serve([&] { return shared.stop_device.load(std::memory_order_relaxed) != 0; });
}

// The whole run of a child, which leaves the status of `run` in its page. Never returns, not by an
// exception either: exit handlers, the created pool and the other workers are the parent's.
template <class Run>
[[noreturn]] void child_main(WorkerPage& page, pid_t parent, const Run& run) noexcept {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != parent) _exit(1);
  const auto done = [&]() -> Result<void> {
    try {
      return run();
    } catch (const std::bad_alloc&) {
      return Error{Status::SYSTEM, "the system has no memory left"};
    } catch (const std::exception& error) {
      return Error{Status::SYSTEM, error.what()};
    }
  }();
  if (!done) {
    page.failed_status = static_cast<uint32_t>(done.status());
    const std::string text = done.error().message();
    std::memcpy(page.failed_text, text.data(), std::min(text.size(), sizeof page.failed_text - 1));
  }
  _exit(done ? 0 : 1);
}

// The worker processes, and the device behind them if there is one; the destructor kills those that
// still run.
class Workers {
 public:
  explicit Workers(Shared& shared) : shared_(shared) {}
  ~Workers() { kill_all(); }
  Workers(const Workers&) = delete;
  Workers& operator=(const Workers&) = delete;

  Result<void> start(const Trace& trace, const Content& content, const ReplayOptions& options) {
    workers_ = options.workers;
    const pid_t self = getpid();
    for (uint32_t i = 0; i < processes_of(options); ++i) {
      const pid_t pid = fork();
      if (pid == 0)
        child_main(shared_.workers[i], self, [&] {
          return i == workers_ ? be_device(options, shared_)
                               : work(trace, content, options, shared_, i);
        });
      if (pid < 0) {
        return Error{Status::SYSTEM,
                     fmt::format("cannot start {}: {}", name_of(i), strerror(errno))};
      }
      pids_.push_back(pid);
    }
    return {};
  }

  /// Of the workers.
  size_t running() const {
    return static_cast<size_t>(
        std::count_if(pids_.begin(),
                      pids_.begin() + static_cast<std::ptrdiff_t>(std::min(workers_, pids_.size())),
                      [](pid_t p) { return p > 0; }));
  }

  // Collects workers that have ended. Returns the reason if one ended badly.
  Result<void> collect() {
    for (size_t i = 0; i < pids_.size(); ++i) {
      int status = 0;
      if (pids_[i] == 0 || waitpid(pids_[i], &status, WNOHANG) != pids_[i]) continue;
      const pid_t pid = pids_[i];
      pids_[i] = 0;
      const WorkerPage& page = shared_.workers[i];
      if (WIFEXITED(status) && WEXITSTATUS(status) == 0) continue;
      if (page.failed_status != 0) {
        return Error{static_cast<Status>(page.failed_status),
                     fmt::format("{}: {}", name_of(i), page.failed_text)};
      }
      return Error{Status::SYSTEM,
                   WIFSIGNALED(status)
                       ? fmt::format("{} (pid {}) was ended by signal {} ({})", name_of(i), pid,
                                     WTERMSIG(status), strsignal(WTERMSIG(status)))
                       : fmt::format("{} (pid {}) ended with code {}", name_of(i), pid,
                                     WEXITSTATUS(status))};
    }
    return {};
  }

  // Lets the workers finish their current request, then the device end; kills those that take too
  // long.
  void stop() {
    shared_.stop.store(1);
    const auto deadline = Clock::now() + kStopPatience;
    while (running() > 0 && Clock::now() < deadline) {
      (void)collect();
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
    }
    (void)stop_device();
    kill_all();
  }

  // Why it ended badly, if it did.
  Result<void> stop_device() {
    shared_.stop_device.store(1);
    Result<void> ended;
    const auto deadline = Clock::now() + kStopPatience;
    while (pids_.size() > workers_ && pids_[workers_] != 0 && ended && Clock::now() < deadline) {
      ended = collect();
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
    }
    return ended;
  }

  static uint32_t processes_of(const ReplayOptions& options) {
    return options.workers + (options.model != nullptr ? 1 : 0);
  }

 private:
  std::string name_of(size_t i) const {
    return i == workers_ ? "the device" : fmt::format("worker {} of {}", i + 1, workers_);
  }

  void kill_all() {
    for (pid_t& pid : pids_) {
      if (pid == 0) continue;
      kill(pid, SIGKILL);
      while (waitpid(pid, nullptr, 0) < 0 && errno == EINTR) {
      }
      pid = 0;
    }
  }

  Shared& shared_;
  size_t workers_ = 0;
  std::vector<pid_t> pids_;
};

// Runs the workers to the end of the trace. Returns the signal that ended it early, or 0.
Result<int> run_workers(const Trace& trace, const Content& content, const ReplayOptions& options,
                        Shared& shared, ReplayReport& report) {
  Workers workers(shared);
  const auto started = workers.start(trace, content, options);
  if (!started) return started.error();
  Clock::time_point start = Clock::now();
  bool going = false;
  while (workers.running() > 0) {
    if (!going && shared.ready.load() == Workers::processes_of(options)) {
      start = Clock::now();
      shared.go.store(1);
      going = true;
    }
    if (const int signal = take_signal(going ? 20 : 1)) {
      workers.stop();
      report.wall_s = std::chrono::duration<double>(Clock::now() - start).count();
      return signal;
    }
    const auto collected = workers.collect();
    if (!collected) {
      workers.stop();
      return collected.error();
    }
    if (options.progress && going) {
      options.progress(shared.served.load(), trace.requests.size(), "requests replayed");
    }
  }
  report.wall_s = std::chrono::duration<double>(Clock::now() - start).count();
  if (auto ended = workers.stop_device(); !ended) return ended.error();
  return 0;
}

// The number of blocks of `block_bytes` that the pool holds before it evicts.
void set_capacity(const PoolInfo& info, uint64_t block_bytes, ReplayReport& report) {
  const auto round_up = [](uint64_t n, uint64_t to) { return (n + to - 1) / to * to; };
  uint64_t footprint = std::max(info.min_block_bytes, round_up(block_bytes, kPayloadAlign));
  if (footprint > info.extent_bytes) footprint = round_up(footprint, info.extent_bytes);
  const uint64_t blocks = footprint <= info.extent_bytes
                              ? info.extent_count * (info.extent_bytes / footprint)
                              : info.extent_count / (footprint / info.extent_bytes);
  const uint64_t permille = info.evict_high_permille == 0 ? 1000 : info.evict_high_permille;
  report.footprint_bytes = footprint;
  report.capacity_blocks = blocks * permille / 1000;
}

Result<void> look_before(const Content& content, const ReplayOptions& options,
                         ReplayReport& report) {
  auto pool = open_as(options, 0);
  if (!pool) return pool.error();
  const auto ns = pool->open_namespace(namespace_of(content, options));
  if (!ns) return ns.error();
  auto info = pool->info();
  if (!info) return info.error();
  report.before = *std::move(info);
  const Status listed = pool->list([&](const BlockInfo& block) {
    report.warm_blocks += block.namespace_id == *ns;
    return true;
  });
  if (listed != Status::OK) return listed;
  set_capacity(report.before, options.block_bytes, report);
  return {};
}

Result<void> look_after(const Content& content, const ReplayOptions& options,
                        ReplayReport& report) {
  auto pool = open_as(options, 0);
  if (!pool) return pool.error();
  auto info = pool->info();
  if (!info) return info.error();
  report.after = *std::move(info);
  if (!options.self_test) return {};
  const auto ns = pool->open_namespace(namespace_of(content, options));
  if (!ns) return ns.error();
  // The other hosts must answer when their blocks are removed.
  std::vector<Pool> others;
  for (uint32_t host = 1; host < options.hosts; ++host) {
    auto other = open_as(options, host);
    if (!other) return other.error();
    others.push_back(std::move(*other));
  }
  const auto tested = run_self_test(*pool, *ns, content, options.block_bytes, options.seed);
  if (!tested) return tested.error();
  report.self_test = *tested;
  return {};
}

}  // namespace

Result<ReplayReport> run_replay(const Trace& trace, const Content& content,
                                const ReplayOptions& options) {
  ReplayReport report;
  const auto before = look_before(content, options, report);
  if (!before) return before.error();
  const auto interrupted = [&] {
    if (options.progress) options.progress(0, 0, "measuring plain copies");
    if (report.interrupted_by == 0) report.interrupted_by = take_signal(0);
    return report.interrupted_by != 0;
  };
  auto copy_limit =
      measure_copy_limit(options.workers, options.block_bytes,
                         trace.ids.size() * options.block_bytes, kCopyRounds, interrupted);
  if (!copy_limit) return copy_limit.error();
  report.copy_limit = *std::move(copy_limit);
  if (report.interrupted_by != 0) return report;

  SharedMapping mapping(Workers::processes_of(options));
  if (mapping.get() == nullptr) {
    return Error{Status::SYSTEM, fmt::format("no memory for counters: {}", strerror(errno))};
  }
  Shared& shared = *mapping.get();
  const auto ended = run_workers(trace, content, options, shared, report);
  if (!ended) return ended.error();
  report.interrupted_by = *ended;
  for (uint32_t i = 0; i < options.workers; ++i) {
    report.workers.push_back(shared.workers[i].stats);
    report.total.merge(shared.workers[i].stats);
    report.steps.merge(shared.workers[i].steps);
  }
  if (report.interrupted_by != 0) return report;

  const auto after = look_after(content, options, report);
  if (!after) return after.error();
  report.infinite_hits = infinite_hits(trace);
  report.lru_hits = lru_hits(trace, report.capacity_blocks);
  report.best_hits = best_hits(trace, report.capacity_blocks);
  report.interrupted_by = take_signal(0);
  return report;
}

}  // namespace bowhead::replay
