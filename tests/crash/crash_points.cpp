// SPDX-License-Identifier: Apache-2.0
#include "tests/crash/crash_points.h"

#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/wait.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>

#include "tests/support/audit.h"
#include "tests/support/thinning.h"

namespace bowhead::test {
namespace {

using core::Key;
using NativeCore = core::Core<core::NativeAccess>;

constexpr unsigned kChildSeconds = 30, kRunSeconds = 60;
constexpr uint64_t kSmall = 15'000, kMiddle = 60'000, kLarge = 600'000;

// ---- the process that dies ----

/// Counts of a child, visible to its parent.
struct Shared {
  uint64_t points = 0;
};
Shared& shared() {
  static auto* page = static_cast<Shared*>(
      mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
  return *page;
}

[[noreturn]] void child(const TinyPool& pool, const Act& before, const Act& act, uint64_t point,
                        Side side) {
  const bool failed_before = testing::Test::HasFailure();
  alarm(kChildSeconds);
  CrashHandle handle(pool);
  if (before) before(handle);
  CrashAccess::plan().arm(point, side);
  act(handle);
  shared().points = CrashAccess::plan().points;
  _exit(testing::Test::HasFailure() && !failed_before ? 1 : 0);
}

/// Checks the child's end: "" if it ended as expected.
std::string wait_for(pid_t pid, bool killed) {
  int status = 0;
  waitpid(pid, &status, 0);
  if (killed && WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL) return {};
  if (!killed && WIFEXITED(status) && WEXITSTATUS(status) == 0) return {};
  if (WIFSIGNALED(status) && WTERMSIG(status) == SIGALRM) return "the child hung";
  return fmt::format("the child ended with status {:#x}", status);
}

std::string run_child(const TinyPool& pool, const Act& before, const Act& act, uint64_t point,
                      Side side) {
  shared().points = 0;  // mapped before the fork
  const pid_t pid = fork();
  if (pid == 0) child(pool, before, act, point, side);
  return wait_for(pid, point != 0);
}

// ---- hangs of this process ----

char running_text[200];
void on_alarm(int) {
  static const char kText[] = "hung: ";
  (void)!write(2, kText, sizeof kText - 1);
  (void)!write(2, running_text, strnlen(running_text, sizeof running_text));
  abort();
}

// ---- what comes next ----

uint64_t count_fitting(NativeCore& core, uint64_t size) {
  std::vector<Reservation> taken;
  for (;;) {
    auto reservation =
        core.writing.reserve(Key(kNamespace, fmt::format("fill-{}", taken.size())), size);
    if (!reservation) break;
    taken.push_back(*reservation);
  }
  for (Reservation& reservation : taken) (void)core.writing.abort(reservation);
  return taken.size();
}

/// With memcmp, which sanitizers do not slow down: most bytes of a run are compared here.
bool equal(const std::vector<std::byte>& a, const std::vector<std::byte>& b) {
  return a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), a.size()) == 0);
}

/// The number of blocks of each of three sizes that fit.
using Room = std::vector<uint64_t>;
Room measure_room(NativeCore& core) {
  Room room;
  for (const uint64_t size : {kSmall, kMiddle, kLarge}) room.push_back(count_fitting(core, size));
  return room;
}
std::string to_text(const Room& room) { return fmt::format("{}+{}+{}", room[0], room[1], room[2]); }

/// The checks after one death.
class Aftermath {
 public:
  Aftermath(const Scenario& scenario, World& world, const std::vector<Room>& rooms,
            const Room& empty_room)
      : scenario_(scenario), world_(world), rooms_(rooms), empty_room_(empty_room) {}

  /// Returns all faults.
  std::vector<std::string> look(NativeHandle& handle, Next next) {
    NativeCore& core = handle.core();
    if (scenario_.first) scenario_.first(world_, core);
    if (next == Next::HASTY) hurry(core);
    core.recovery.scavenge_dead();
    whole(core, "after scavenging");
    if (!scenario_.any_room) {
      room_ = measure_room(core);
      if (next != Next::HASTY && !rooms_.empty() &&
          std::none_of(rooms_.begin(), rooms_.end(), [&](const Room& room) { return same(room); }))
        fault("{} blocks fit, not {} or {}", to_text(room_), to_text(rooms_.front()),
              to_text(rooms_.back()));
      whole(core, "after filling the pool");
    }
    clear(core);
    handle.detach();
    left_in_order();
    counts_are_mended();
    return faults_;
  }
  const Room& room() const { return room_; }

 private:
  template <class... Args>
  void fault(fmt::format_string<Args...> text, Args&&... args) {
    faults_.push_back(fmt::format(text, std::forward<Args>(args)...));
  }

  /// Whether large blocks fit among others depends on the places of those others.
  bool same(const Room& room) const { return room[0] == room_[0] && room[1] == room_[1]; }

  /// Works on all keys and all locks while the dead process's leftovers are still in the pool.
  void hurry(NativeCore& core) {
    for (int i = 0; i < 12; ++i) {
      const std::string key = fmt::format("hasty-{}", i);
      const auto value = World::value(key, 9000);
      const Status status = test::put(core, key, value, World::user(key));
      if (status == Status::NO_SPACE && scenario_.full) continue;
      if (status != Status::OK) fault("put of {}: {}", key, status_name(status));
      if (!equal(get(core, key), value)) fault("{} does not come back", key);
      if (remove(core, key) != Status::OK) fault("{} cannot be removed", key);
    }
    for (auto& [key, expected] : world_.expected) {
      if (expected.must != World::Must::STAY_OR_GO) continue;
      const Status status = test::put(core, key, expected.value, World::user(key));
      if (status != Status::OK && !(status == Status::NO_SPACE && scenario_.full))
        fault("put of {}: {}", key, status_name(status));
      if (status == Status::OK && !equal(get(core, key), expected.value))
        fault("{} does not come back after it was put again", key);
    }
  }

  void whole(NativeCore& core, const char* when) {
    const AuditResult found = audit(core);
    for (const std::string& text : found.faults) fault("{}: {}", when, text);
    uint64_t present = 0;
    for (const auto& [key, expected] : world_.expected) {
      std::string user;
      const auto value = get(core, key, &user);
      present += !value.empty();
      if (!value.empty() && user != World::user(key))
        fault("{}: {} has wrong user metadata", when, key);
      if (value.empty() ? expected.must == World::Must::STAY
                        : expected.must == World::Must::BE_GONE || !equal(value, expected.value))
        fault("{}: {} is {}", when, key, value.empty() ? "gone" : "wrong, or not gone");
    }
    if (present != found.committed)
      fault("{}: {} keys are there, and {} blocks", when, present, found.committed);
    for (const CheckFinding& finding : core.inspection.check(/*payload=*/true, {}).findings)
      fault("{}: check: {}", when, finding.what);
  }

  /// Removes every key: then nothing may be left.
  void clear(NativeCore& core) {
    for (const auto& [key, expected] : world_.expected) (void)remove(core, key);
    const AuditResult found = audit(core);
    for (const std::string& text : found.faults) fault("after removing all: {}", text);
    if (found.committed != 0) fault("{} blocks are left of no key", found.committed);
    const Room room = measure_room(core);
    if (!empty_room_.empty() && room != empty_room_)
      fault("{} blocks fit in the emptied pool, {} in a new one", to_text(room),
            to_text(empty_room_));
    for (const auto& [key, expected] : world_.expected) {
      if (!is_secret(key)) continue;
      const auto stays = [&](const void* bytes, size_t size) {
        return memmem(world_.pool.base(), world_.pool.superblock().geometry.total_bytes, bytes,
                      size) != nullptr;
      };
      for (size_t at = 0; at + 64 <= expected.value.size(); at += 4096) {
        if (stays(expected.value.data() + at, 64)) fault("byte {} of {} stays", at, key);
      }
      if (stays(key.data(), key.size())) fault("{} stays", key);
    }
  }

  void left_in_order() {
    NativeHandle handle(world_.pool);
    PoolInfo info{};
    handle.core().inspection.fill_info(info);
    if (info.hosts[0].state != "left") fault("the host slot is {}", info.hosts[0].state);
  }

  /// The first process to open the pool leaves no doubt about the counters of namespaces.
  void counts_are_mended() {
    NativeHandle handle(world_.pool);
    if (!handle.attach()) fault("the pool cannot be opened again");
    const AuditResult found = audit(handle.core());
    if (found.usage_doubted) fault("the counters of namespaces are in doubt");
    for (const std::string& text : found.faults) fault("opened again: {}", text);
    handle.detach();
  }

  const Scenario& scenario_;
  World& world_;
  const std::vector<Room>& rooms_;
  const Room& empty_room_;
  Room room_;
  std::vector<std::string> faults_;
};

/// All deaths of one scenario.
class Runner {
 public:
  explicit Runner(const Scenario& scenario) : scenario_(scenario), world_(scenario.shape) {
    NativeHandle handle(world_.pool, /*eviction=*/false);
    EXPECT_TRUE(handle.attach());
    const TinyPool::Image blank = world_.pool.snapshot();
    empty_room_ = measure_room(handle.core());
    handle.detach();
    world_.pool.restore(blank);
    NativeHandle again(world_.pool);  // the process slot in the image belongs to a dead process
    EXPECT_TRUE(again.attach());
    again.detach();
    if (scenario.prepare) scenario.prepare(world_);
    image_ = world_.pool.snapshot();
  }

  void run() {
    const auto start = std::chrono::steady_clock::now();
    signal(SIGALRM, on_alarm);
    std::map<Next, uint64_t> points;
    for (const Next next : scenario_.nexts) {
      run_once(1, Side::BEFORE, next);  // space before the operation, and after it
      run_once(0, Side::BEFORE, next);
      points[next] = shared().points;
      EXPECT_GT(points[next], 0u);
    }
    if (failures_ > 0) return;
    baseline_ = false;
    uint64_t deaths = 0;
    for (const auto& [next, last] : points) {
      for (uint64_t point = 1; point <= last && failures_ < 3;
           point += scenario_.every * kThinning) {
        run_once(point, Side::BEFORE, next);
        run_once(point, Side::AFTER, next);
        deaths += 2;
      }
    }
    alarm(0);
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
    std::printf("%s: %lu points, %lu deaths, %.1f s\n", scenario_.name, points.begin()->second,
                deaths, seconds.count());
  }

 private:
  void run_once(uint64_t point, Side side, Next next) {
    const std::string text = fmt::format("{}: death {} point {}, then {}\n", scenario_.name,
                                         side == Side::BEFORE ? "before" : "after", point,
                                         next == Next::FRESH      ? "a fresh process"
                                         : next == Next::SURVIVOR ? "a survivor"
                                                                  : "a hasty survivor");
    snprintf(running_text, sizeof running_text, "%s", text.c_str());
    alarm(kRunSeconds);
    world_.pool.restore(image_);
    NativeHandle handle(world_.pool, /*eviction=*/false);
    std::string fault;
    if (next != Next::FRESH && !handle.attach()) fault = "the survivor cannot open the pool";
    if (next != Next::FRESH && scenario_.hold) scenario_.hold(world_, handle.core());
    fault += run_child(world_.pool, scenario_.before, scenario_.act, point, side);
    if (next == Next::FRESH) {
      if (auto attached = handle.attach(); !attached) fault += attached.error().message();
    }
    std::vector<std::string> faults;
    if (fault.empty()) {
      Aftermath aftermath(scenario_, world_, baseline_ ? kNoRooms : rooms_, empty_room_);
      faults = aftermath.look(handle, next);
      if (baseline_) rooms_.push_back(aftermath.room());
    } else {
      faults.push_back(fault);
    }
    if (faults.empty()) return;
    ++failures_;
    for (const std::string& line : faults) ADD_FAILURE() << text << "  " << line;
  }

  static inline const std::vector<Room> kNoRooms = {};
  const Scenario& scenario_;
  World world_;
  TinyPool::Image image_;
  std::vector<Room> rooms_;  ///< space before and after the operation
  Room empty_room_;
  bool baseline_ = true;
  int failures_ = 0;
};

}  // namespace

// ---- World ----

std::vector<std::byte> World::value(const std::string& key, uint64_t size) {
  auto value = bytes(size, core::Key(kNamespace, key).hash.low);
  if (key.starts_with("twice")) std::memcpy(value.data() + size / 2, value.data(), size / 2);
  return value;
}

std::string World::user(const std::string& key) {
  const uint64_t size = key.size() > 16 ? 0 : core::Key(kNamespace, key).hash.low % 3 * 20;
  return std::string(size, key.back());
}

template <class A>
Status World::put(core::Core<A>& core, const std::string& key, uint64_t size) {
  const Status status = test::put(core, key, value(key, size), user(key));
  if (status == Status::OK) expected[key] = {value(key, size), Must::STAY};
  return status;
}
template Status World::put(NativeCore&, const std::string&, uint64_t);

void World::may_come(const std::string& key, uint64_t size) {
  expected[key] = {value(key, size), Must::STAY_OR_GO};
}

void run_scenario(const Scenario& scenario) { Runner(scenario).run(); }

void die_together(World& world, const std::vector<Death>& deaths) {
  const TinyPool::Image image = world.pool.snapshot();
  std::vector<uint64_t> points;
  for (const Death& death : deaths) {  // dry
    world.pool.restore(image);
    ASSERT_EQ(run_child(world.pool, death.before, death.act, 0, Side::BEFORE), "");
    points.push_back(std::max<uint64_t>(1, shared().points * death.at_permille / 1000));
  }
  world.pool.restore(image);
  struct Process {
    pid_t pid;
    int go;
  };
  std::vector<Process> processes;
  for (size_t i = 0; i < deaths.size(); ++i) {
    int ready[2], go[2];
    ASSERT_EQ(pipe(ready), 0);
    ASSERT_EQ(pipe(go), 0);
    const pid_t pid = fork();
    if (pid == 0) {
      const auto before = [&](CrashHandle& handle) {
        if (deaths[i].before) deaths[i].before(handle);
        char byte = 0;
        (void)!write(ready[1], &byte, 1);
        (void)!read(go[0], &byte, 1);
      };
      child(world.pool, before, deaths[i].act, points[i], Side::AFTER);
    }
    processes.push_back({pid, go[1]});
    char byte = 0;
    ASSERT_EQ(read(ready[0], &byte, 1), 1);
    close(ready[0]);
    close(ready[1]);
    close(go[0]);
  }
  for (const Process& process : processes) {
    ASSERT_EQ(write(process.go, "g", 1), 1);
    ASSERT_EQ(wait_for(process.pid, /*killed=*/true), "");
    close(process.go);
  }
}

}  // namespace bowhead::test
