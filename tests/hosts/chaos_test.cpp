// SPDX-License-Identifier: Apache-2.0
// Chaos among hosts: four hosts work in one pool while their processes are killed, stopped for
// shorter or longer than it takes to be declared dead, leave, come back and are fenced; in one test
// they also grow the pool, and drain and remove what it has grown by. No byte read may be wrong; in
// the end every extent has one owner and all space is back.
//
// The seed is printed; BOWHEAD_CHAOS_SEED sets it, BOWHEAD_CHAOS_EVENTS the number of events. The
// scheduler chooses the moments, so a seed repeats the choices, not the run.
#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstdlib>

#include "base/random.h"
#include "tests/hosts/chaos_worker.h"
#include "tests/support/hosts.h"

namespace bowhead::test {
namespace {

constexpr std::array<uint32_t, 6> kHostOfProcess = {0, 0, 1, 1, 2, 3};
constexpr uint64_t kPoolBytes = 64 << 20;
constexpr uint64_t kHangMs = 45'000;
constexpr unsigned kDeadlineSeconds = 280;

uint64_t from_environment(const char* name, uint64_t otherwise) {
  const char* given = std::getenv(name);
  return given != nullptr ? std::strtoull(given, nullptr, 0) : otherwise;
}

uint64_t now_ms() {
  using std::chrono::steady_clock;
  return static_cast<uint64_t>(
      std::chrono::duration_cast<std::chrono::milliseconds>(steady_clock::now().time_since_epoch())
          .count());
}

// ---- the sender of events ----

class Chaos {
 public:
  Chaos(const std::string& locator, uint64_t seed) : locator_(locator), random_(seed) {
    void* page =
        mmap(nullptr, sizeof(Board), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    BOWHEAD_ASSERT(page != MAP_FAILED);
    board_ = new (page) Board;
    for (size_t i = 0; i < processes_.size(); ++i) {
      processes_[i].host = kHostOfProcess[i];
      processes_[i].number = static_cast<uint32_t>(i);
      processes_[i].leads = i == 0 || kHostOfProcess[i] != kHostOfProcess[i - 1];
    }
  }
  ~Chaos() {
    for (Process& process : processes_) {
      if (process.pid != 0) end(process);
    }
    munmap(board_, sizeof(Board));
  }
  Chaos(const Chaos&) = delete;
  Chaos& operator=(const Chaos&) = delete;

  /// This many events, and up to ten times as many until enough was done between them, however slow
  /// the machine is, and a host was fenced: chance decides which pauses exceed the limit for a
  /// heartbeat.
  void run(uint64_t events) {
    const auto enough = [&](uint64_t sent) {
      return sent >= events && (worked_through(events) || sent >= 10 * events);
    };
    for (uint64_t sent = 0; !enough(sent) && board_->faults == 0;) {
      pass(random_.below(200));
      sent += send();
    }
    calm_down();
    EXPECT_EQ(board_->faults, 0u) << board_->fault_text();
  }
  bool worked_through(uint64_t events) const {
    return board_->stored > events && board_->read > events && board_->leased > events / 10 &&
           board_->fenced > 0;
  }
  Board& board() { return *board_; }
  const std::string& counts() const { return counts_; }

 private:
  struct Process {
    uint32_t host = 0, number = 0;
    bool leads = false;  ///< it leaves for its host
    pid_t pid = 0;       ///< 0: not running
    bool stopped = false;
    uint64_t start_at_ms = 0, go_on_at_ms = 0, moved_at_ms = 0, moves = 0;
  };

  // ---- events by time ----

  /// Lets time pass, and does what is due.
  void pass(uint64_t ms) {
    const uint64_t until_ms = now_ms() + ms;
    do {
      for (Process& process : processes_) look_after(process);
      for (uint32_t h = 0; h < kHosts; ++h) {
        if (back_at_ms_[h] != 0 && now_ms() >= back_at_ms_[h]) {
          board_->away[h] = Away::NO;
          back_at_ms_[h] = 0;
        }
      }
      sleep_ms(2);
    } while (now_ms() < until_ms);
  }

  void look_after(Process& process) {
    const uint64_t now = now_ms();
    if (process.pid == 0) {
      if (now >= process.start_at_ms && board_->fence[process.host] == Fence::NO) start(process);
      return;
    }
    if (process.stopped) {
      if (now >= process.go_on_at_ms) go_on(process);
      return;
    }
    int status = 0;
    if (waitpid(process.pid, &status, WNOHANG) == process.pid) {
      board_->report(fmt::format("a process of host {} ended by itself with status {:#x}",
                                 process.host, status));
      process.pid = 0;
      return;
    }
    const uint64_t moves = board_->progress[process.number].moves;
    if (moves != process.moves) {
      process.moves = moves;
      process.moved_at_ms = now;
    } else if (now - process.moved_at_ms > kHangMs) {
      board_->report(fmt::format("process {} of host {} hangs in {}", process.pid, process.host,
                                 board_->progress[process.number].doing.load()));
      process.moved_at_ms = now;
    }
  }

  void start(Process& process) {
    const uint64_t seed = random_.next();
    process.stopped = false;
    process.moved_at_ms = now_ms();
    process.pid = fork();
    if (process.pid == 0)
      _exit(
          ChaosWorker(locator_, *board_, process.host, process.number, process.leads, seed).run());
  }
  void end(Process& process) {
    kill(process.pid, SIGKILL);
    waitpid(process.pid, nullptr, 0);
    process.pid = 0;
    process.stopped = false;
  }
  void stop(Process& process, uint64_t ms) {
    kill(process.pid, SIGSTOP);
    process.stopped = true;
    process.go_on_at_ms = now_ms() + ms;
  }
  void go_on(Process& process) {
    kill(process.pid, SIGCONT);
    process.stopped = false;
    process.moved_at_ms = now_ms();
  }

  // ---- events ----

  template <class Action>
  void each_of(uint32_t host, Action action) {
    for (Process& process : processes_) {
      if (process.host == host && process.pid != 0) action(process);
    }
  }
  bool is_calm(uint32_t host) const {
    for (const Process& process : processes_) {
      if (process.host == host && (process.pid == 0 || process.stopped)) return false;
    }
    return board_->away[host] == Away::NO;
  }
  void end_all(uint32_t host, uint64_t restart_ms) {
    each_of(host, [&](Process& process) {
      end(process);
      process.start_at_ms = now_ms() + random_.below(restart_ms);
    });
  }
  void stop_all(uint32_t host, uint64_t ms) {
    each_of(host, [&](Process& process) { stop(process, ms); });
  }

  /// Returns 1 if an event happened.
  uint64_t send() {
    Process& process = processes_[random_.below(processes_.size())];
    const uint32_t host = process.host;
    const uint64_t kind = random_.below(20);
    const uint64_t some_ms = random_.below(1000);
    constexpr uint64_t kDead = kChaosTimes.dead_ms, kReclaim = kChaosTimes.reclaim_ms;
    if (kind < 6) {
      if (process.pid == 0) return 0;
      end(process);
      process.start_at_ms = now_ms() + (kind < 4 ? 0 : some_ms);
      ++killed_;
    } else if (!is_calm(host)) {
      return 0;
    } else if (kind < 9) {
      end_all(host, kind == 6 ? 1 : 3 * kDead);
      ++killed_;
    } else if (kind < 11) {
      stop(process, some_ms * 2);
      ++stopped_;
    } else if (kind < 13) {
      stop_all(host, some_ms * kDead / 1000);
      ++stopped_;
    } else if (kind < 16) {
      stop_all(host, kDead + 100 + some_ms + (kind == 15 ? kReclaim : 0));
      ++stopped_long_;
    } else if (kind < 18) {
      board_->away[host] = Away::ASKED;
      back_at_ms_[host] = now_ms() + 200 + some_ms;
      ++left_;
    } else {
      end_all(host, 1 + some_ms);
      fence(host);
      ++fenced_;
    }
    return 1;
  }

  /// Confirms, from another host, that this host, of which no process is left, has stopped writing.
  void fence(uint32_t host) {
    board_->fence[host] = Fence::ASKED;
    for (int i = 0; i < 300 && board_->fence[host] != Fence::DONE; ++i) pass(10);
    // A fence that has begun must end before the host comes back.
    Fence asked = Fence::ASKED;
    board_->fence[host].compare_exchange_strong(asked, Fence::NO);
    while (board_->fence[host] == Fence::DOING && board_->faults == 0) pass(10);
    board_->fence[host] = Fence::NO;
  }

  /// All processes continue, then end by themselves.
  void calm_down() {
    for (Process& process : processes_) {
      if (process.stopped) go_on(process);
    }
    for (uint32_t h = 0; h < kHosts; ++h) board_->away[h] = Away::NO;
    if (board_->faults == 0) pass(500);
    board_->stop = true;
    for (const uint64_t until = now_ms() + kHangMs; now_ms() < until;) {
      bool running = false;
      for (Process& process : processes_) {
        int status = 0;
        if (process.pid != 0 && waitpid(process.pid, &status, WNOHANG) == process.pid) {
          if (status != 0) board_->report(fmt::format("a process ended with {:#x}", status));
          process.pid = 0;
        }
        running |= process.pid != 0;
      }
      if (!running) break;
      sleep_ms(2);
    }
    for (const Process& process : processes_) {
      if (process.pid == 0) continue;
      board_->report(fmt::format("process {} of host {} does not end: it is in {}", process.pid,
                                 process.host, board_->progress[process.number].doing.load()));
    }
    counts_ = fmt::format(
        "{} kills, {} stops, {} of them past being declared dead, {} leaves, {} "
        "fences",
        killed_, stopped_ + stopped_long_, stopped_long_, left_, fenced_);
  }

  const std::string locator_;
  Random random_;
  Board* board_ = nullptr;
  std::array<Process, kHostOfProcess.size()> processes_{};
  std::array<uint64_t, kHosts> back_at_ms_{};
  int killed_ = 0, stopped_ = 0, stopped_long_ = 0, left_ = 0, fenced_ = 0;
  std::string counts_;
};

// ---- afterwards ----

/// Joins, however long the others take to agree.
Host rejoin(const std::string& locator, uint32_t host) {
  std::optional<Host> opened;
  std::string why;
  EXPECT_TRUE(eventually([&] {
    auto result = Host::open(locator, host);
    if (!result) why = result.error().message();
    if (result) opened.emplace(std::move(result).value());
    return opened.has_value();
  })) << why;
  BOWHEAD_ASSERT(opened);
  return std::move(*opened);
}

std::vector<Host> rejoin_all(const std::string& locator) {
  std::vector<Host> hosts;
  for (uint32_t h = 0; h < kHosts; ++h) hosts.push_back(rejoin(locator, h));
  return hosts;
}

/// Whether the life of this host has ended. It hears of that with its next heartbeat.
bool is_over(Host& host) { return host.remove("a key never put") == Status::HOST_FENCED; }

/// The work of this process's hosts, and its results, may belong to a life that has ended: on a
/// busy machine a heartbeat may be late, and the others declare the host dead. Then it joins again,
/// and all is repeated.
void while_all_live(const SharedPool& shared, std::vector<Host>& hosts,
                    const std::function<void()>& look) {
  for (bool all_live = false; !all_live;) {
    look();
    sleep_ms(2 * kChaosTimes.heartbeat_ms);
    all_live = true;
    for (uint32_t h = 0; h < kHosts; ++h) {
      if (!is_over(hosts[h])) continue;
      fmt::print("host {} was declared dead while it looked\n", h);
      { const Host over = std::move(hosts[h]); }
      hosts[h] = rejoin(shared.locator(), h);
      all_live = false;
    }
  }
}

/// The number of blocks of some sizes that one host can have after all others have left, or were
/// declared dead while they did. Removes nothing.
std::vector<uint64_t> measure_room(const SharedPool& shared, std::vector<Host>& hosts) {
  for (uint32_t h = 1; h < kHosts; ++h) {
    const auto left = hosts[h].pool().leave();
    EXPECT_TRUE(left || left.status() == Status::HOST_FENCED) << left.error().message();
  }
  Host host = std::move(hosts.front());
  hosts.clear();
  sleep_ms(2 * kChaosTimes.heartbeat_ms);
  if (is_over(host)) {  // by one of those that are gone now
    { const Host over = std::move(host); }
    host = rejoin(shared.locator(), 0);
  }
  EXPECT_TRUE(eventually([&] { return host.info_of(0).extents_owned == shared.extents(); }));
  EXPECT_TRUE(eventually([&] { return host.info_of(0).extents_custody == 0; }));
  sleep_ms(5 * kChaosTimes.heartbeat_ms);
  return test::measure_room(host);
}

/// By the words of all hosts: the word of the highest epoch gives the owner of the extent, in its
/// present life and without custody. Returns the fault.
std::string owners_fault(const SharedPool& shared) {
  std::string fault;
  for (uint64_t e = 0; e < shared.extents(); ++e) {
    uint64_t highest = 0;
    uint32_t owner = 0, owners = 0;
    core::OwnWord last;
    for (uint32_t h = 0; h < kHosts; ++h) {
      const auto word =
          core::OwnWord::unpack(shared.read<uint64_t>(shared.layout().word(h, BH_PART_OWN, e)));
      if (word.state == BH_OWN_NONE || word.state == BH_OWN_GIVEN || word.epoch < highest) continue;
      owners = word.epoch == highest ? owners + 1 : 1;
      highest = word.epoch;
      owner = h;
      last = word;
    }
    const auto slot = shared.slot(owner);
    if (owners != 1 || last.state != BH_OWN_OWN || last.custody != BH_CUSTODY_FULL || !slot ||
        last.incarnation != slot->incarnation)
      fault += fmt::format("extent {}: {} owners, of host {} state {}, custody {}, life {}\n", e,
                           owners, owner, last.state, last.custody, last.incarnation);
  }
  return fault;
}

/// No process holds a block, a lease or a hazard, and nothing is unfinished.
void expect_all_free(const SharedPool& shared, uint32_t host) {
  const core::Layout& layout = shared.layout();
  const auto state = [&](uint64_t at) {
    return core::StateWord::unpack(shared.read<uint64_t>(at)).state;
  };
  std::array<uint64_t, 16> blocks{};
  const uint64_t words = layout.geometry().word_count;
  for (uint64_t i = 0; i < words; ++i) ++blocks[state(layout.word(host, BH_PART_BLOCKS, i))];
  EXPECT_EQ(blocks[BH_BLOCK_FREE] + blocks[BH_BLOCK_NONE], words)
      << blocks[BH_BLOCK_RESERVED] << " reserved, " << blocks[BH_BLOCK_COMMITTED] << " committed, "
      << blocks[BH_BLOCK_RETIRING] << " retiring, " << blocks[BH_BLOCK_RETIRED] << " retired, "
      << blocks[BH_BLOCK_CLEANING] << " cleaning";
  for (uint64_t e = 0; e < shared.extents(); ++e) {
    const uint32_t kind = state(layout.extent_state(host, e));
    EXPECT_TRUE(kind == BH_EXTENT_FREE || kind == BH_EXTENT_SLAB || kind == BH_EXTENT_PART)
        << "extent " << e << ": " << kind;
  }
  for (uint32_t h = 0; h < kHosts; ++h) {
    for (uint64_t i = 0; i < layout.geometry().lease_count; ++i)
      EXPECT_EQ(shared.read<uint64_t>(layout.word(h, BH_PART_HAZARDS, i)), 0u)
          << "hazard " << i << " of host " << h;
  }
}

/// All hosts must find the same blocks, with the right bytes. Returns the faults, and counts the
/// blocks.
std::string blocks_fault(std::vector<Host>& hosts, const Board& board, uint64_t& present) {
  std::string fault;
  present = 0;
  std::vector<std::byte> out(300'000);
  const Span to[] = {{out.data(), out.size()}};
  for (uint64_t n = 0; n < kKeys; ++n) {
    uint32_t found = 0;
    for (Host& host : hosts) {
      const auto length = host.pool().get(host.ns(), chaos_key(n), to);
      if (!length) {
        if (length.status() != Status::NOT_FOUND)
          fault += fmt::format("key {}: {}\n", n, length.error().message());
        continue;
      }
      ++found;
      // Also of a host that was declared dead.
      EXPECT_EQ(fault_of(n, out.data(), *length, board), "") << "key " << n;
    }
    if (found != 0 && found != kHosts)
      fault += fmt::format("key {} is found by {} hosts\n", n, found);
    present += found != 0;
  }
  return fault;
}

std::string findings(std::vector<Host>& hosts) {
  std::string found;
  for (Host& host : hosts) {
    const auto report = host.pool().check(/*payload=*/true);
    if (!report) found += report.error().message() + "\n";
    if (!report) continue;
    for (const CheckFinding& finding : report->findings) found += finding.what + "\n";
  }
  return found;
}

/// All media by which the pool has grown, when it has no blocks any more.
void remove_sets(Pool& pool) {
  const auto info = pool.info();
  for (const PoolInfo::MediaSet& set : info->sets) {
    std::string why;
    EXPECT_TRUE(eventually([&] {
      auto done = pool.drain(set.number);
      if (done) done = pool.shrink(set.number);
      if (!done) why = done.error().message();
      return done || done.status() == Status::NOT_FOUND || done.status() == Status::HOST_FENCED;
    })) << why;
  }
}

void expect_whole(const SharedPool& shared, const Board& board, const std::vector<uint64_t>& room) {
  std::vector<Host> hosts = rejoin_all(shared.locator());
  std::string fault;
  while_all_live(shared, hosts, [&] {
    fault.clear();
    for (uint32_t h = 0; h < kHosts; ++h) {
      if (!eventually([&] { return hosts[0].info_of(h).extents_custody == 0; }))
        fault += fmt::format("custody of host {} does not end\n", h);
    }
    sleep_ms(10 * kChaosTimes.heartbeat_ms);
    fault += owners_fault(shared);
  });
  EXPECT_EQ(fault, "");
  uint64_t present = 0;
  while_all_live(shared, hosts, [&] {
    fault = blocks_fault(hosts, board, present);
    fault += findings(hosts);
  });
  EXPECT_EQ(fault, "");
  EXPECT_GT(present, 0u);
  while_all_live(shared, hosts, [&] {
    for (uint64_t n = 0; n < kKeys; ++n) {
      EXPECT_TRUE(
          eventually([&] { return hosts[n % kHosts].remove(chaos_key(n)) != Status::BUSY; }));
    }
  });
  while_all_live(shared, hosts, [&] { remove_sets(hosts[0].pool()); });
  EXPECT_TRUE(eventually([&] { return hosts[0].pool().info()->blocks == 0; }))
      << hosts[0].pool().info()->blocks << " blocks are left";
  EXPECT_EQ(measure_room(shared, hosts), room);
  expect_all_free(shared, 0);
}

std::vector<uint64_t> room_of_new_pool(const CreateOptions& options) {
  const SharedPool fresh(kHosts, options, kChaosTimes);
  std::vector<Host> hosts = rejoin_all(fresh.locator());
  return measure_room(fresh, hosts);
}

void run(CreateOptions options, uint64_t events) {
  const uint64_t seed = from_environment("BOWHEAD_CHAOS_SEED", random_u64_from_os());
  events = from_environment("BOWHEAD_CHAOS_EVENTS", events);
  // A process that hangs is killed here.
  alarm(static_cast<unsigned>(std::max<uint64_t>(kDeadlineSeconds, events)));
  fmt::print("BOWHEAD_CHAOS_SEED={} BOWHEAD_CHAOS_EVENTS={}\n", seed, events);
  std::fflush(stdout);
  options.size_bytes = kPoolBytes;
  const auto room = room_of_new_pool(options);
  const SharedPool shared(kHosts, options, kChaosTimes);
  Chaos chaos(shared.locator(), seed);
  const std::string media = fmt::format("shm:chaos-{}-", getpid());
  if (options.max_bytes != 0) media.copy(chaos.board().media, sizeof Board::media - 1);
  chaos.run(events);
  const Board& board = chaos.board();
  fmt::print(
      "{}: {} puts ({} without space), {} gets, {} removals, {} leases ({} lapsed, {} refused "
      "COPY_ONLY), {} times busy, {} times fenced, {} opens, {} recompressed, {} read "
      "in planes, {} times grown, {} times shrunk\n",
      chaos.counts(), board.stored.load(), board.refused.load(), board.read.load(),
      board.removed.load(), board.leased.load(), board.lapsed.load(), board.copy_only.load(),
      board.busy.load(), board.fenced.load(), board.opened.load(), board.recompressed.load(),
      board.planes.load(), board.grown.load(), board.shrunk.load());
  if (events >= 100 && board.faults == 0) {
    EXPECT_TRUE(chaos.worked_through(events));
  }
  if (!testing::Test::HasFailure()) expect_whole(shared, board, room);
  EXPECT_EQ(board.shrunk > 0, options.max_bytes != 0);
  // Those of processes that were killed meanwhile.
  for (uint64_t n = 0; n < board.media_made; ++n) (void)remove_media(fmt::format("{}{}", media, n));
}

TEST(Chaos, OfHostsWithEviction) { run({}, 300); }
TEST(Chaos, OfHostsWithoutEviction) { run({.evict_high_permille = 0}, 100); }
TEST(Chaos, OfHostsThatGrow) { run({.max_bytes = 1 << 30}, 100); }
TEST(Chaos, OfHostsCompressed) {
  host_values = {keys_layout(NumberFormat::BF16, kChaosChannels), CompressionProfile::FAST};
  run({}, 150);
  host_values = {};
}

}  // namespace
}  // namespace bowhead::test
