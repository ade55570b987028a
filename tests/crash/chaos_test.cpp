// SPDX-License-Identifier: Apache-2.0
// Chaos: processes use all operations on one pool, and are killed and stopped at random moments. No
// byte read may be wrong, and in the end nothing may be missing.
//
// The seed is printed; BOWHEAD_CHAOS_SEED sets it. The scheduler chooses the moments, so a seed
// repeats the operations, not the run.
#include <fmt/format.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <time.h>

#include <array>
#include <atomic>
#include <cstdlib>
#include <optional>
#include <thread>

#include "base/race.h"
#include "base/random.h"
#include "pool/coded.h"
#include "tests/support/audit.h"
#include "tests/support/pools.h"
#include "tests/support/tiny_pool.h"

namespace bowhead::test {
namespace {

constexpr int kWorkers = 6;
constexpr int kKills = 150;  // in each of the two halves
constexpr uint64_t kKeys = 900;
constexpr uint64_t kPoolBytes = 64 << 20;
constexpr unsigned kDeadlineSeconds = 240;

/// The workers' reports, in shared memory.
struct Board {
  std::atomic<bool> stop{false};
  std::atomic<uint64_t> faults{0};
  char first_fault[300] = {};
  std::atomic<uint64_t> stored{0}, read{0}, removed{0}, leased{0}, lapsed{0}, refused{0}, busy{0};
  std::atomic<uint64_t> recompressed{0};

  void report(const std::string& text) {
    if (faults++ == 0) snprintf(first_fault, sizeof first_fault, "%s", text.c_str());
  }
};

std::string key_of(uint64_t n) {
  std::string key = fmt::format("chaos-{}", n);
  if (n % 11 == 0) key += std::string(n % 450, 'x');
  return key;
}
/// Of the current test; known to the workers, which are forked.
ValueFormat values;

NamespaceDescription description() { return {"chaos", "any bytes", values}; }

/// The content follows from the key only, never from the pool. Half of it is compressible.
std::vector<std::byte> value_of(uint64_t n) {
  static constexpr std::array<size_t, 9> kSizes = {700,     16'384,  20'000,  50'000, 65'536,
                                                   100'000, 131'072, 200'001, 300'000};
  auto value = bytes(kSizes[n % kSizes.size()] - n % 7, n);
  if (n % 2 == 0)
    std::fill(value.begin() + static_cast<long>(value.size() / 2), value.end(), std::byte(n));
  return value;
}

/// Once the time of a lease is over, another thread of this process may store to the block: the
/// lease says LAPSED then, and nothing is made of the bytes.
BOWHEAD_RACY bool shows(const Lease& lease, const std::vector<std::byte>& value) {
  if (lease.length_bytes != value.size()) return false;
  for (size_t i = 0; i < value.size(); ++i) {
    if (lease.data[i] != value[i]) return false;
  }
  return true;
}

// ---- workers ----

/// One thread of a worker process.
class Worker {
 public:
  Worker(Pool& pool, NamespaceId ns, Board& board, uint64_t seed)
      : pool_(pool), ns_(ns), board_(board), random_(seed) {}

  void step() {
    const uint64_t n = random_.below(kKeys);
    switch (random_.below(16)) {
      case 0:
        return remove(n);
      case 1:
        return remove(n);
      case 2:
        return reserve(n);
      case 3:
        return end_reservation();
      case 4:
        return lease(n);
      case 5:
        return end_lease();
      case 6:
        return prefix(n);
      case 7:
        return now_and_then();
      case 8:
      case 9:
      case 10:
        return read(n);
      default:
        return put(n);
    }
  }
  void end() {
    while (!reservations_.empty()) end_reservation();
    while (!leases_.empty()) end_lease();
  }

 private:
  struct Reserved {
    Reservation reservation;
    uint64_t n;
  };
  struct Leased {
    Lease lease;
    uint64_t n;
  };

  /// True if the status is OK; counts expected refusals, reports others.
  bool accept(Status status, std::initializer_list<Status> refusals, const char* what, uint64_t n) {
    if (status == Status::OK) return true;
    if (status == Status::BUSY) ++board_.busy;  // a stopped process holds a lock
    if (status == Status::NO_SPACE) ++board_.refused;
    for (const Status refusal : refusals) {
      if (status == refusal) return false;
    }
    board_.report(fmt::format("{} of key {}: {}", what, n, status_name(status)));
    return false;
  }

  void put(uint64_t n) {
    const auto value = value_of(n);
    // In two parts, as engines do.
    const size_t half = value.size() / 2;
    const ConstSpan parts[] = {{value.data(), half}, {value.data() + half, value.size() - half}};
    if (accept(pool_.put(ns_, key_of(n), parts), {Status::NO_SPACE, Status::BUSY}, "put", n))
      ++board_.stored;
  }
  void read(uint64_t n) {
    const auto value = value_of(n);
    std::vector<std::byte> out(value.size() + 10);
    const Span to[] = {{out.data(), out.size()}};
    const auto length = pool_.get(ns_, key_of(n), to);
    if (!accept(length.status(), {Status::NOT_FOUND}, "get", n)) return;
    out.resize(std::min<size_t>(*length, out.size()));
    if (out != value) board_.report(fmt::format("key {} came back wrong", n));
    ++board_.read;
  }
  void remove(uint64_t n) {
    if (accept(pool_.remove(ns_, key_of(n)), {Status::NOT_FOUND, Status::BUSY}, "remove", n))
      ++board_.removed;
  }

  void reserve(uint64_t n) {
    if (reservations_.size() > 2) return end_reservation();
    const auto value = value_of(n);
    auto reservation = pool_.reserve(ns_, key_of(n), value.size());
    if (!accept(reservation.status(), {Status::NO_SPACE}, "reserve", n)) return;
    if (reservation->present) return;
    std::memcpy(reservation->data, value.data(), value.size());
    reservations_.push_back({*reservation, n});
  }
  /// Whatever happened since, stops included: no other process may write to a reservation.
  void end_reservation() {
    if (reservations_.empty()) return;
    Reserved reserved = std::move(reservations_.back());
    reservations_.pop_back();
    const auto value = value_of(reserved.n);
    if (std::memcmp(reserved.reservation.data, value.data(), value.size()) != 0)
      board_.report(fmt::format("another process wrote to a reservation of key {}", reserved.n));
    if (random_.below(4) == 0) {
      accept(pool_.abort(reserved.reservation), {}, "abort", reserved.n);
    } else {
      accept(pool_.commit(reserved.reservation), {Status::NO_SPACE, Status::BUSY}, "commit",
             reserved.n);
    }
  }

  void lease(uint64_t n) {
    if (leases_.size() > 2) return end_lease();
    auto lease = pool_.acquire(ns_, key_of(n), 1 + random_.below(100));
    if (accept(lease.status(), {Status::NOT_FOUND, Status::LIMIT_REACHED, Status::CODED}, "acquire",
               n))
      leases_.push_back({*lease, n});
  }
  void end_lease() {
    if (leases_.empty()) return;
    Leased leased = leases_.front();
    leases_.erase(leases_.begin());
    const auto value = value_of(leased.n);
    const bool right = shows(leased.lease, value);
    const Status status = pool_.release(leased.lease);
    ++(status == Status::LAPSED ? board_.lapsed : board_.leased);
    if (accept(status, {Status::LAPSED}, "release", leased.n) && !right)
      board_.report(fmt::format("a valid lease of key {} showed wrong bytes", leased.n));
  }

  void prefix(uint64_t n) {
    std::vector<std::string> keys;
    for (uint64_t i = 0; i < 16; ++i) keys.push_back(key_of((n + i) % kKeys));
    const std::vector<std::string_view> views(keys.begin(), keys.end());
    const auto found = pool_.longest_prefix(ns_, views);
    accept(found.status(), {}, "longest_prefix", n);
    if (found && *found > views.size()) board_.report("a prefix longer than requested");
  }
  void now_and_then() {
    if (random_.below(8) == 0) accept(pool_.scavenge().status(), {}, "scavenge", 0);
    if (random_.below(8) == 0) recompress();
    if (random_.below(60) != 0) return;
    auto report = pool_.check(/*payload=*/true);
    if (!accept(report.status(), {}, "check", 0)) return;
    for (const CheckFinding& finding : report->findings)
      if (finding.data_lost) board_.report("check: " + finding.what);
  }

  void recompress() {
    const auto done = pool_.recompress(/*cold_ms=*/random_.below(20));
    if (accept(done.status(), {}, "recompress", 0)) board_.recompressed += done->recompressed;
  }

  Pool& pool_;
  const NamespaceId ns_;
  Board& board_;
  Random random_;
  std::vector<Reserved> reservations_;
  std::vector<Leased> leases_;
};

/// Opens, works with two threads, closes, and repeats until the end.
int work(const std::string& locator, Board& board, uint64_t seed) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  Random random(seed);
  while (!board.stop) {
    auto pool = Pool::open(locator);
    if (!pool) {
      board.report(pool.error().message());
      return 1;
    }
    auto ns = pool->open_namespace(description());
    if (!ns && ns.status() == Status::BUSY) continue;
    if (!ns) {
      board.report(ns.error().message());
      return 1;
    }
    const uint64_t steps = 200 + random.below(2000);
    const auto run = [&](uint64_t thread_seed) {
      Worker worker(*pool, *ns, board, thread_seed);
      for (uint64_t i = 0; i < steps && !board.stop; ++i) worker.step();
      // Not always: closing undoes open operations.
      if (thread_seed % 2 == 0) worker.end();
    };
    const uint64_t seeds[] = {random.next(), random.next()};
    std::thread second(run, seeds[0]);
    run(seeds[1]);
    second.join();
  }
  return 0;
}

// ---- the killer ----

class Chaos {
 public:
  Chaos(const std::string& locator, uint64_t seed) : locator_(locator), random_(seed) {
    void* page =
        mmap(nullptr, sizeof(Board), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    BOWHEAD_ASSERT(page != MAP_FAILED);
    board_ = new (page) Board;
  }
  ~Chaos() { munmap(board_, sizeof(Board)); }
  Chaos(const Chaos&) = delete;
  Chaos& operator=(const Chaos&) = delete;

  /// At least so many kills, and more until enough was done between them, however slow that is.
  void run(int kills) {
    for (Process& process : processes_) start(process);
    while ((kills_ < kills || !has_worked()) && board_->faults == 0) {
      sleep_us(random_.below(30'000));
      Process& process = processes_[random_.below(kWorkers)];
      if (random_.below(3) == 0) {
        toggle(process);
      } else {
        kill(process.pid, SIGKILL);
        expect_end(process, /*killed=*/true);
        start(process);
        ++kills_;
      }
      look_for_ends();
    }
    board_->stop = true;
    for (Process& process : processes_) {
      if (process.stopped) toggle(process);
      expect_end(process, /*killed=*/false);
    }
    EXPECT_EQ(board_->faults, 0u) << board_->first_fault;
  }
  const Board& board() const { return *board_; }
  int kills() const { return kills_; }
  int stops() const { return stops_; }

 private:
  bool has_worked() const {
    return board_->stored > 300 && board_->read > 300 && board_->leased > 30;
  }
  struct Process {
    pid_t pid = 0;
    bool stopped = false;
  };

  static void sleep_us(uint64_t us) {
    const timespec pause{0, static_cast<long>(us * 1000)};
    nanosleep(&pause, nullptr);
  }
  void start(Process& process) {
    const uint64_t seed = random_.next();
    process = {fork(), false};
    if (process.pid == 0) _exit(work(locator_, *board_, seed));
  }
  void toggle(Process& process) {
    kill(process.pid, process.stopped ? SIGCONT : SIGSTOP);
    process.stopped = !process.stopped;
    stops_ += process.stopped;
  }
  void expect_end(Process& process, bool killed) {
    int status = 0;
    waitpid(process.pid, &status, 0);
    const bool right = killed ? WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL : status == 0;
    if (!right) board_->report(fmt::format("a worker ended with status {:#x}", status));
  }
  /// A worker that ends by itself has failed.
  void look_for_ends() {
    for (Process& process : processes_) {
      int status = 0;
      if (waitpid(process.pid, &status, WNOHANG) != process.pid) continue;
      board_->report(fmt::format("a worker ended by itself with status {:#x}", status));
      start(process);
    }
  }

  const std::string locator_;
  Random random_;
  Board* board_ = nullptr;
  std::array<Process, kWorkers> processes_;
  int kills_ = 0, stops_ = 0;
};

// ---- afterwards ----

/// The number of blocks of each of these sizes that fit.
std::vector<uint64_t> measure_room(core::Core<core::NativeAccess>& core) {
  std::vector<uint64_t> room;
  for (const uint64_t size : {20'000, 200'000, 5'000'000}) {
    std::vector<Reservation> taken;
    for (;;) {
      auto reservation =
          core.writing.reserve(core::Key(kNamespace, fmt::format("fill-{}", taken.size())), size);
      if (!reservation) break;
      taken.push_back(*reservation);
    }
    for (Reservation& reservation : taken) EXPECT_EQ(core.writing.abort(reservation), Status::OK);
    room.push_back(taken.size());
  }
  return room;
}

/// The core behind a pool, without eviction.
NativeHandle handle_of(const std::string& locator) {
  auto media = open_media(locator);
  BOWHEAD_ASSERT(media);
  bh_superblock superblock;
  std::memcpy(&superblock, (*media)->base(), sizeof superblock);
  superblock.evict_high_permille = superblock.evict_low_permille = 0;
  return NativeHandle(locator, superblock);
}

std::vector<uint64_t> room_of_new_pool(const CreateOptions& options) {
  const TestPool fresh(kPoolBytes, options);
  NativeHandle handle = handle_of(fresh.locator());
  EXPECT_TRUE(handle.attach());
  auto room = measure_room(handle.core());
  handle.detach();
  return room;
}

void expect_whole(const std::string& locator, const std::vector<uint64_t>& room) {
  NativeHandle handle = handle_of(locator);
  ASSERT_TRUE(handle.attach());
  core::Core<core::NativeAccess>& core = handle.core();
  core.recovery.scavenge_dead();
  AuditResult found = audit(core);
  for (const std::string& text : found.faults) ADD_FAILURE() << text;
  for (const CheckFinding& finding : core.inspection.check(/*payload=*/true, {}).findings)
    ADD_FAILURE() << finding.what;
  uint64_t ns = 0, present = 0;
  CodedStore store(core);
  auto opened = store.open_namespace(description());
  ASSERT_TRUE(opened);
  ns = *opened;
  for (uint64_t n = 0; n < kKeys; ++n) {
    const std::string key = key_of(n);
    const auto value = value_of(n);
    std::vector<std::byte> out(value.size());
    const Span to[] = {{out.data(), out.size()}};
    const auto length = store.get(core::Key(ns, key), to);
    if (!length) continue;
    ++present;
    EXPECT_EQ(*length, value.size());
    EXPECT_EQ(out, value) << key;
    EXPECT_EQ(core.writing.remove(core::Key(ns, key)), Status::OK);
  }
  EXPECT_EQ(present, found.committed);
  found = audit(core);
  for (const std::string& text : found.faults) ADD_FAILURE() << text;
  EXPECT_EQ(found.committed, 0u);
  EXPECT_EQ(measure_room(core), room);
  handle.detach();
}

void run(const CreateOptions& options) {
  alarm(kDeadlineSeconds);  // a process that hangs is killed here
  const char* given = std::getenv("BOWHEAD_CHAOS_SEED");
  const uint64_t seed = given != nullptr ? std::strtoull(given, nullptr, 0) : random_u64_from_os();
  std::printf("BOWHEAD_CHAOS_SEED=%lu\n", seed);
  std::fflush(stdout);
  const auto room = room_of_new_pool(options);
  TestPool pool(kPoolBytes, options);
  pool.close();
  Chaos chaos(pool.locator(), seed);
  chaos.run(kKills);
  const Board& board = chaos.board();
  std::printf(
      "%d kills, %d stops: %lu puts (%lu without space), %lu gets, %lu removals, %lu leases "
      "(%lu lapsed), %lu times busy, %lu recompressed\n",
      chaos.kills(), chaos.stops(), board.stored.load(), board.refused.load(), board.read.load(),
      board.removed.load(), board.leased.load(), board.lapsed.load(), board.busy.load(),
      board.recompressed.load());
  EXPECT_EQ(board.recompressed > 0, values.profile != CompressionProfile::NONE);
  if (!testing::Test::HasFailure()) expect_whole(pool.locator(), room);
}

TEST(Chaos, WithEviction) { run({}); }
TEST(Chaos, WithoutEviction) { run({.evict_high_permille = 0}); }
TEST(Chaos, Compressed) {
  values.profile = CompressionProfile::FAST;
  run({});
  values = {};
}

}  // namespace
}  // namespace bowhead::test
