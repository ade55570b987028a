// SPDX-License-Identifier: Apache-2.0
// Clients that ask a device, die, and come back, while the device is killed and started anew: every
// answer is compared, byte by byte, with that of the process. Ends with one line of counts, and
// exit code 1 if an answer was wrong, a request ended with a status that it must not have, or the
// pool is not clean afterwards.
//
//   device_soak SECONDS [SEED]
#include <fmt/format.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "base/random.h"
#include "driver-shim/queue_pair.h"
#include "firmware-sim/device.h"
#include "tests/device/sequence.h"

namespace bowhead::test {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr uint32_t kClients = 3, kThreads = 2, kJobs = 8, kKinds = 6;

/// Counted by all processes.
struct Counts {
  std::atomic<uint64_t> right{0}, wrong{0}, lost{0}, late{0}, cancelled{0}, refused{0};
  std::atomic<uint64_t> device_lives{0}, client_lives{0};
  /// When the device was killed, ns of the steady clock; 0: an answer has come since.
  std::atomic<uint64_t> killed_ns{0};
  std::atomic<uint64_t> longest_gap_ns{0};
};

const std::vector<uint32_t> kTokens = {300, 40, 16, 2048};

/// Puts what all processes ask about.
void fill(Pool& pool) {
  LeasedSequence plain(pool, "plain", CompressionProfile::NONE, kTokens);
  LeasedSequence coded(pool, "coded", CompressionProfile::FAST, kTokens);
}

/// The blocks of a sequence, leased by this process.
class Blocks {
 public:
  Blocks(Pool& pool, const std::string& name, CompressionProfile profile) {
    ValueFormat format{device_layout()};
    format.profile = profile;
    const NamespaceId ns = pool.open_namespace({name, "", format}).value();
    uint32_t next = 0;
    for (size_t i = 0; i < kTokens.size(); ++i) {
      auto lease = pool.acquire(ns, "block " + std::to_string(i), 600'000, LeaseOf::STORED).value();
      blocks_.push_back({lease.layout,
                         {reinterpret_cast<const uint8_t*>(lease.data), lease.stored_bytes},
                         lease.codec == BH_CODEC_FRAME,
                         lease.length_bytes,
                         next,
                         lease.offset,
                         lease.stamp});
      next += kTokens[i];
    }
  }
  ndp::Request request(uint32_t kind, std::span<const float> queries,
                       std::span<const uint32_t> tokens) const {
    ndp::Request request;
    request.heads = {blocks_, 1, 1, 2};
    request.queries.values = queries;
    request.queries.count = static_cast<uint32_t>(queries.size() / 2 / kChannels);
    request.queries.scale = 0.125f;
    request.k = kind == 0 ? 500 : 20;
    request.operation = kind == 0 ? ndp::Operation::TOP_K : static_cast<ndp::Operation>(kind);
    request.tokens = tokens;
    request.page_tokens = 16;
    return request;
  }

 private:
  std::vector<ndp::StoredBlock> blocks_;
};

/// Asks for ever.
void ask(driver::QueuePair& pair, const Blocks& blocks, uint64_t seed, Counts& counts) {
  Random random(seed);
  std::vector<float> queries(size_t{2} * 3 * kChannels);
  for (float& value : queries) value = (static_cast<float>(random.below(2001)) - 1000) / 512;
  const std::vector<uint32_t> tokens = {0, 355, 7, 7, 310, 2000};
  std::vector<ndp::Request> requests;
  std::vector<Answer> wanted;
  for (uint32_t kind = 0; kind < kKinds; ++kind) {
    requests.push_back(blocks.request(kind, queries, tokens));
    wanted.emplace_back(requests.back());
    if (!ndp::run(requests.back(), wanted.back().room())) std::abort();
  }
  for (;;) {
    std::vector<uint32_t> kinds;
    std::vector<Answer> answers;
    for (uint32_t i = 0; i < kJobs; ++i) {
      kinds.push_back(static_cast<uint32_t>(random.below(kKinds)));
      answers.emplace_back(requests[kinds[i]]);
    }
    std::vector<ndp::Job> jobs;
    for (uint32_t i = 0; i < kJobs; ++i)
      jobs.push_back({requests[kinds[i]], answers[i].room(), random.below(4) == 0 ? 50u : 0u});
    pair.submit(std::span(jobs));
    if (random.below(4) == 0) pair.cancel(jobs[random.below(kJobs)]);
    for (uint32_t i = 0; i < kJobs; ++i) {
      pair.wait(jobs[i]);
      const Status status = jobs[i].answer->status();
      if (status == Status::OK) {
        ++(answers[i] == wanted[kinds[i]] ? counts.right : counts.wrong);
        if (const uint64_t killed = counts.killed_ns.exchange(0); killed != 0) {
          const uint64_t gap = now_ns() - killed;
          if (gap > counts.longest_gap_ns) counts.longest_gap_ns = gap;
        }
      } else if (status == Status::DEVICE_LOST) {
        ++counts.lost;
      } else if (status == Status::TIMED_OUT) {
        ++counts.late;
      } else if (status == Status::CANCELLED) {
        ++counts.cancelled;
      } else {
        ++counts.refused;
        fmt::print(stderr, "refused: {}\n", jobs[i].answer->error().message());
      }
    }
  }
}

[[noreturn]] void be_client(const std::string& locator, uint64_t seed, Counts& counts) {
  auto pool = Pool::open(locator, {.prefault = false});
  if (!pool) std::abort();
  const Blocks plain(*pool, "plain", CompressionProfile::NONE);
  const Blocks coded(*pool, "coded", CompressionProfile::FAST);
  const auto pair = driver::QueuePair::open(*pool);
  if (!pair) {  // the one of a process that is ending
    fmt::print(stderr, "a client has no queue pair: {}\n", pair.error().message());
    _exit(1);
  }
  std::vector<std::thread> threads;
  for (uint32_t t = 0; t < kThreads; ++t)
    threads.emplace_back([&, t] { ask(**pair, t % 2 == 0 ? plain : coded, seed + t, counts); });
  for (std::thread& thread : threads) thread.join();
  _exit(0);
}

[[noreturn]] void be_device(const std::string& locator, uint32_t threads) {
  auto pool = Pool::open(locator, {.prefault = false});
  if (!pool) std::abort();
  const auto device = device::Device::make(*pool, {.threads = threads});
  if (!device) std::abort();
  (void)(*device)->serve([] { return false; });
  _exit(0);
}

template <class Body>
pid_t start(const Body& body) {
  const pid_t pid = fork();
  if (pid != 0) return pid;
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  body();
  _exit(0);
}

void end(pid_t pid) {
  kill(pid, SIGKILL);
  waitpid(pid, nullptr, 0);
}

int soak(uint64_t seconds, uint64_t seed) {
  const std::string locator = fmt::format("shm:device-soak-{}", getpid());
  CreateOptions create;
  create.size_bytes = 256u << 20;
  if (auto made = Pool::create(locator, create); !made) {
    fmt::print(stderr, "{}\n", made.error().message());
    return 3;
  }
  const pid_t filler = start([&] {
    auto pool = Pool::open(locator, {.prefault = false}).value();
    fill(pool);
  });
  waitpid(filler, nullptr, 0);
  void* shared =
      mmap(nullptr, sizeof(Counts), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  auto& counts = *new (shared) Counts;
  Random random(seed);
  pid_t device = start([&] { be_device(locator, 1); });
  std::vector<pid_t> clients;
  for (uint32_t i = 0; i < kClients; ++i)
    clients.push_back(start([&] { be_client(locator, seed + i * 100, counts); }));
  const auto until = Clock::now() + std::chrono::seconds(seconds);
  while (Clock::now() < until) {
    std::this_thread::sleep_for(milliseconds(50 + random.below(400)));
    if (random.below(2) == 0) {
      end(device);
      uint64_t none = 0;
      counts.killed_ns.compare_exchange_strong(none, now_ns());
      if (random.below(3) == 0) std::this_thread::sleep_for(milliseconds(random.below(100)));
      const auto threads = static_cast<uint32_t>(1 + random.below(2));
      device = start([&] { be_device(locator, threads); });
      ++counts.device_lives;
    }
    if (random.below(3) == 0) {
      const auto which = static_cast<size_t>(random.below(kClients));
      end(clients[which]);
      const uint64_t of = random.next();
      clients[which] = start([&] { be_client(locator, of, counts); });
      ++counts.client_lives;
    }
  }
  for (const pid_t client : clients) end(client);
  end(device);
  bool clean = false;
  {
    auto pool = Pool::open(locator, {.prefault = false});
    const auto report = pool ? pool->check(true) : pool.error();
    clean = report && report->findings.empty();
  }
  (void)Pool::destroy(locator, true).status();
  fmt::print(
      "{} s: {} right, {} wrong, {} device lost, {} late, {} cancelled, {} refused; {} lives "
      "of the device, {} of clients; {:.0f} ms at most from a kill to a right answer; the "
      "pool is {}\n",
      seconds, counts.right.load(), counts.wrong.load(), counts.lost.load(), counts.late.load(),
      counts.cancelled.load(), counts.refused.load(), counts.device_lives.load(),
      counts.client_lives.load(), static_cast<double>(counts.longest_gap_ns) * 1e-6,
      clean ? "clean" : "DAMAGED");
  return counts.wrong == 0 && counts.refused == 0 && counts.right > 0 && clean ? 0 : 1;
}

}  // namespace
}  // namespace bowhead::test

int main(int argc, char** argv) {
  const uint64_t seconds = argc > 1 ? std::strtoull(argv[1], nullptr, 10) : 0;
  const uint64_t seed = argc > 2 ? std::strtoull(argv[2], nullptr, 10) : 1;
  if (seconds == 0) {
    fmt::print(stderr, "usage: device_soak SECONDS [SEED]\n");
    return 2;
  }
  return bowhead::test::soak(seconds, seed);
}
