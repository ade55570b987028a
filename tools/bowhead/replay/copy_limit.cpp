// SPDX-License-Identifier: Apache-2.0
// Rounds of the kinds alternate, so that a slow moment of the machine affects all of them.
#include "tools/bowhead/replay/copy_limit.h"

#include <algorithm>
#include <atomic>
#include <barrier>
#include <chrono>
#include <cstddef>
#include <cstring>
#include <new>
#include <thread>
#include <utility>

#include "base/private_memory.h"
#include "base/thread.h"
#include "tools/program/machine.h"

namespace bowhead::replay {
namespace {

constexpr uint64_t kFootprintMin = 512ull << 20;
constexpr uint64_t kFootprintLeast = 32ull << 20;

std::vector<PrivateMemory> allocate(uint32_t count, uint64_t bytes) {
  std::vector<PrivateMemory> memory;
  memory.reserve(count);
  for (uint32_t i = 0; i < count; ++i) {
    memory.emplace_back(bytes);
    if (memory.back().data() == nullptr) throw std::bad_alloc();
  }
  return memory;
}

/// work(0), work(1), ... in threads of their own. If one cannot be started, those before it run.
template <class Work>
Result<void> start_threads(uint32_t count, const Work& work, std::vector<std::thread>& threads) {
  threads.reserve(count);
  for (uint32_t i = 0; i < count; ++i) {
    auto thread = start_thread([&work, i] { work(i); });
    if (!thread) return thread.error();
    threads.push_back(std::move(*thread));
  }
  return {};
}

}  // namespace

Result<CopyLimit> measure_copy_limit(uint32_t workers, uint64_t block_bytes, uint64_t moved_bytes,
                                     uint32_t rounds, const std::function<bool()>& stop) {
  const uint64_t cache_bytes = this_machine().last_level_cache_bytes;
  const uint64_t wanted = std::min(moved_bytes, std::max(kFootprintMin, 2 * cache_bytes));
  const uint64_t allowed =
      std::max(kFootprintLeast, std::min(wanted, available_memory_bytes() / 4));
  const uint64_t piece_bytes = std::min(block_bytes, allowed / (2 * workers));
  const uint64_t pieces = allowed / (2 * workers * piece_bytes);
  const uint64_t side_bytes = pieces * piece_bytes;  // of one worker

  CopyLimit limit;
  limit.rounds = rounds;
  limit.footprint_bytes = 2 * workers * side_bytes;
  limit.beyond_cache = limit.footprint_bytes >= 2 * cache_bytes;
  const auto kinds = copy_kinds();
  for (const CopyKind kind : kinds) limit.kinds.push_back({kind, 0});

  using Clock = std::chrono::steady_clock;
  Clock::time_point start;
  uint64_t step = 0;  // of rounds * kinds; the first call of the barrier only starts the clock
  std::atomic<bool> stop_asked = false;
  bool stopping =
      false;  // the same for all threads: changes only while all threads are at the barrier
  const auto at_barrier = [&]() noexcept {
    const double seconds = std::chrono::duration<double>(Clock::now() - start).count();
    if (step > 0) {
      auto& best = limit.kinds[(step - 1) % kinds.size()].gb_per_s;
      best = std::max(best, static_cast<double>(workers * side_bytes) / seconds / 1e9);
    }
    ++step;
    stopping = stop_asked.load();
    start = Clock::now();
  };
  std::barrier barrier(workers, at_barrier);
  std::atomic<uint32_t> finished = 0;
  // Here, where it can be refused: a thread that has begun waits for all others.
  const std::vector<PrivateMemory> memory = allocate(2 * workers, side_bytes);
  enum { WAIT, GO, END };
  std::atomic<int> signal = WAIT;
  const auto copy_all = [&](uint32_t worker) {
    signal.wait(WAIT);
    if (signal.load() == END) return;
    const PrivateMemory& from = memory[2 * worker];
    const PrivateMemory& to = memory[2 * worker + 1];
    from.touch();
    to.touch();
    barrier.arrive_and_wait();
    for (size_t i = 0; i < rounds * kinds.size() && !stopping; ++i) {
      for (uint64_t at = 0; at < side_bytes; at += piece_bytes)
        copy_with(kinds[i % kinds.size()], to.data() + at, from.data() + at, piece_bytes);
      barrier.arrive_and_wait();
    }
    ++finished;
  };
  std::vector<std::thread> threads;
  const auto started = start_threads(workers, copy_all, threads);
  signal.store(started ? GO : END);
  signal.notify_all();
  while (started && finished.load() < workers) {
    if (stop()) stop_asked.store(true);
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  for (std::thread& thread : threads) thread.join();
  if (!started) return started.error();
  for (const auto& kind : limit.kinds)
    limit.best_gb_per_s = std::max(limit.best_gb_per_s, kind.gb_per_s);
  return limit;
}

}  // namespace bowhead::replay
