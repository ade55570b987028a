// SPDX-License-Identifier: Apache-2.0
// The longest silence of a host that adopts, and of one that rebuilds, N blocks, one process each.
//
//     heartbeat_gap [BLOCKS]
//
// Host 0 stores the blocks and is killed. Host 1 adopts them and is killed too; its private part is
// wiped as by a reboot, and its next life rebuilds. This process watches its heartbeat word. Prints
// one line of JSON. Status 1 if a working host was declared dead, 2 if it took too long.
#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <thread>

#include "base/clock.h"
#include "tests/support/hosts.h"

namespace bowhead::test {
namespace {

// A short limit for heartbeats, so that a gap is detected.
constexpr SharingTimes kTimes{
    .heartbeat_ms = 100, .dead_ms = 1000, .grace_ms = 100, .settle_ms = 5, .reclaim_ms = 500};
constexpr uint64_t kBlockBytes = 4096;

/// Watches the heartbeat word of a host from its first change on.
class Watch {
 public:
  Watch(const SharedPool& shared, uint32_t host)
      : at_(reinterpret_cast<uint64_t*>(shared.at(shared.layout().part(host, BH_PART_HEARTBEAT) +
                                                  offsetof(bh_host_heartbeat, heartbeat)))),
        thread_([this] { run(); }) {}
  ~Watch() { stop(); }
  Watch(const Watch&) = delete;
  Watch& operator=(const Watch&) = delete;
  /// The longest time between two changes, or from the last one to now.
  double stop() {
    stop_ = true;
    if (thread_.joinable()) thread_.join();
    return static_cast<double>(longest_ns_) / 1e6;
  }

 private:
  void run() {
    uint64_t seen = load();
    uint64_t moved_at_ns = 0;
    while (!stop_) {
      const uint64_t now = now_ns();
      const uint64_t heartbeat = load();
      if (moved_at_ns != 0) longest_ns_ = std::max(longest_ns_, now - moved_at_ns);
      if (heartbeat != seen) moved_at_ns = now;
      seen = heartbeat;
      const timespec pause{0, 500'000};
      nanosleep(&pause, nullptr);
    }
  }
  uint64_t load() const { return std::atomic_ref(*at_).load(); }

  uint64_t* at_;
  std::atomic<bool> stop_{false};
  uint64_t longest_ns_ = 0;
  std::thread thread_;
};

double seconds_since(uint64_t start_ns) { return static_cast<double>(now_ns() - start_ns) / 1e9; }

bool long_enough(const std::function<bool()>& condition) {
  for (const uint64_t start_ns = now_ns(); seconds_since(start_ns) < 600; sleep_ms(20)) {
    if (condition()) return true;
  }
  return false;
}

/// Puts that find no space request extents and try again.
Status fill(Host& host, uint64_t blocks) {
  const std::byte value[64]{};
  const ConstSpan in[] = {{value, sizeof value}};
  for (uint64_t n = 0; n < blocks;) {
    const Status status = host.pool().put(host.ns(), fmt::format("block {}", n), in);
    if (status == Status::OK)
      ++n;
    else if (status == Status::NO_SPACE)
      sleep_ms(kTimes.heartbeat_ms);
    else
      return status;
  }
  return Status::OK;
}

int measure(uint64_t blocks) {
  const SharedPool shared(3,
                          {.size_bytes = blocks * kBlockBytes * 5 / 3 + (256 << 20),
                           .min_block_bytes = kBlockBytes,
                           .evict_high_permille = 0},
                          kTimes);
  auto* filled = static_cast<std::atomic<int>*>(
      mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
  *filled = -1;
  HostProcess first(shared, 0, {[&](Host& host) {
                      const Status status = fill(host, blocks);
                      *filled = static_cast<int>(status);
                      return status;
                    }});
  HostProcess second(shared, 1, {});
  (void)first.next();
  if (!long_enough([&] { return filled->load() >= 0; }) || *filled != 0) {
    fmt::print(stderr, "the pool cannot be filled: {}\n", filled->load());
    return 2;
  }
  Host looks = *Host::observe(shared.locator());
  const auto used = looks.pool().info()->blocks;

  Watch adopting(shared, 1);
  uint64_t start_ns = now_ns();
  first.kill_now();
  if (!long_enough(
          [&] { return looks.info_of(0).extents_owned == 0 && looks.info_of(0).state == "ended"; }))
    return 2;
  const double adopted_s = seconds_since(start_ns) - static_cast<double>(kTimes.dead_ms) / 1e3;
  sleep_ms(5 * kTimes.dead_ms);  // while it opens and sweeps what it adopted
  const double adopting_ms = adopting.stop();
  const bool adopter_lives = looks.info_of(1).state == "live";

  second.kill_now();
  std::memset(shared.at(shared.layout().part(1, BH_PART_PRIVATE) +
                        offsetof(bh_host_private, recovered_boot_id)),
              0, 8);
  Watch rebuilding(shared, 1);
  start_ns = now_ns();
  HostProcess again(shared, 1, {});
  const double rebuilt_s = seconds_since(start_ns);
  sleep_ms(2 * kTimes.dead_ms);
  const double rebuilding_ms = rebuilding.stop();
  const bool rebuilder_lives = looks.info_of(1).state == "live";
  fmt::print(
      "{{\"blocks\": {}, \"heartbeat_ms\": {}, \"longest_gap_adopting_ms\": {:.1f}, \"adopted_s\": "
      "{:.2f}, \"longest_gap_rebuilding_ms\": {:.1f}, \"rebuilt_s\": {:.2f}, \"blocks_after\": "
      "{}}}\n",
      used, kTimes.heartbeat_ms, adopting_ms, adopted_s, rebuilding_ms, rebuilt_s,
      looks.pool().info()->blocks);
  if (!adopter_lives || !rebuilder_lives)
    fmt::print(stderr, "host 1 was declared dead while it {}\n",
               adopter_lives ? "rebuilt" : "adopted");
  return adopter_lives && rebuilder_lives ? 0 : 1;
}

}  // namespace
}  // namespace bowhead::test

int main(int count, char** arguments) {
  const uint64_t blocks = count > 1 ? std::strtoull(arguments[1], nullptr, 10) : 2'000'000;
  return bowhead::test::measure(std::max<uint64_t>(blocks, 1));
}
