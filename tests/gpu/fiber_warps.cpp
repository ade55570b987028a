// SPDX-License-Identifier: Apache-2.0
#include "tests/gpu/fiber_warps.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>
#include <memory>
#include <string_view>
#include <tuple>
#include <unordered_map>

#include "base/assert.h"
#include "base/random.h"
#include "gpu/kernels/warp.h"
#include "tests/support/fiber.h"

namespace bowhead::gpu::fibers {
namespace {

constexpr uint32_t kMostWarps = 4;
constexpr uint32_t kMostFaults = 8;  // of a launch
/// On average one in this many accesses switches to another lane; 0: none does.
constexpr uint64_t kSwitchPeriods[] = {1, 1, 3, 16, 100, 0};

/// A call of Warp or of keep_order() in a kernel's source.
struct Site {
  std::string name;
  bool is_left_out = false;
};

enum class State { RUNNABLE, WAITING, ENDED };

struct LaneState {
  uint32_t warp = 0, lane = 0;
  uint32_t order = 1;  ///< grows where its earlier store is read as another type
  State state = State::RUNNABLE;
};

/// The 32 lanes of a warp, and the call at which some of them wait for the others.
struct WarpState {
  uint32_t epoch = 1;  ///< grows with each sync
  const Site* site = nullptr;
  uint32_t waiting = 0, ended = 0;
  uint32_t exchanges = 0;  ///< that are complete
  /// Alternating: a lane that is ahead must not overwrite values that others still read.
  std::array<std::array<uint64_t, kWarpLanes>, 2> values;
};

/// The lanes that last accessed a byte. Warps are counted from 1.
struct ByteState {
  static constexpr uint32_t kSeveralWarps = UINT32_MAX;
  uint32_t writer_warp = 0, writer_lane = 0, write_epoch = 0, write_order = 0;
  const void* write_begin = nullptr;
  uint32_t write_bytes = 0;
  uint32_t reader_warp = 0, reader_lanes = 0, read_epoch = 0;
  bool is_constant = false, is_added = false;
};

/// The access state of the memory that a launch touches.
class Shadow {
 public:
  ByteState& at(uintptr_t address) {
    const uintptr_t number = address / kPageBytes;
    if (last_ == nullptr || number != last_number_) {
      auto& page = pages_[number];
      if (!page) page = std::make_unique<Page>();
      last_ = page.get();
      last_number_ = number;
    }
    return (*last_)[address % kPageBytes];
  }

 private:
  static constexpr size_t kPageBytes = 256;
  using Page = std::array<ByteState, kPageBytes>;
  std::unordered_map<uintptr_t, std::unique_ptr<Page>> pages_;
  Page* last_ = nullptr;
  uintptr_t last_number_ = 0;
};

/// A running kernel.
class Launch {
 public:
  Launch(uint64_t seed, Outcome& outcome) : outcome_(outcome), random_(seed) {}

  void run(uint32_t units, const std::function<void(uint32_t, uint32_t)>& body);
  uint32_t lane() const { return now().lane; }
  void access(Access kind, const void* at, size_t size_bytes);
  void sync(const Site& site);
  void keep_order(const Site& site);
  const uint64_t* exchange(uint64_t own, const Site& site);

 private:
  struct Entry {
    Launch* launch;
    uint32_t number;
  };

  const LaneState& now() const { return lanes_[running_]; }
  LaneState& now() { return lanes_[running_]; }
  WarpState& warp() { return warps_[now().warp]; }
  void live();
  void suspend();
  void meet(const Site& site);
  void fault(const std::string& sentence);
  void stop();
  std::string rule_broken(Access kind, const ByteState& byte, const void* at, size_t size) const;
  void note(Access kind, ByteState& byte, const void* at, size_t size);

  Outcome& outcome_;
  Random random_;
  const std::function<void(uint32_t, uint32_t)>* body_ = nullptr;
  uint32_t units_ = 0, warp_count_ = 0, faults_ = 0;
  uint64_t period_ = 0;
  bool is_broken_ = false;  ///< lanes wait for ever
  std::array<WarpState, kMostWarps> warps_;
  std::vector<LaneState> lanes_;
  std::vector<uint32_t> runnable_;
  uint32_t running_ = 0;
  Shadow shadow_;
};

struct ThreadState {
  Plan plan;
  Outcome* outcome = nullptr;
  uint64_t launches = 0;
  Launch* launch = nullptr;
  std::map<std::tuple<std::string_view, uint32_t, uint32_t>, Site> sites;  ///< of this run
  std::array<sim::Fiber, kMostWarps * kWarpLanes> fibers;
};

ThreadState& of_thread() {
  thread_local std::unique_ptr<ThreadState> state = std::make_unique<ThreadState>();
  return *state;
}

const Site& site_of(const std::source_location& where) {
  ThreadState& thread = of_thread();
  const std::string_view file = where.file_name();
  const auto [found, is_new] = thread.sites.try_emplace({file, where.line(), where.column()});
  Site& site = found->second;
  if (is_new) {
    site.name =
        fmt::format("{}:{}:{}", file.substr(file.rfind('/') + 1), where.line(), where.column());
    site.is_left_out = site.name == thread.plan.omitted;
  }
  return site;
}

Launch& launch() {
  Launch* const current = of_thread().launch;
  BOWHEAD_ASSERT(current != nullptr);
  return *current;
}

void Launch::run(uint32_t units, const std::function<void(uint32_t, uint32_t)>& body) {
  if (units == 0) return;
  units_ = units;
  body_ = &body;
  warp_count_ = std::min(units, 1 + static_cast<uint32_t>(random_.below(kMostWarps)));
  period_ = kSwitchPeriods[random_.below(std::size(kSwitchPeriods))];
  std::vector<Entry> entries;
  for (uint32_t i = 0; i < warp_count_ * kWarpLanes; ++i) {
    lanes_.push_back({i / kWarpLanes, i % kWarpLanes});
    runnable_.push_back(i);
    entries.push_back({this, i});
  }
  auto& fibers = of_thread().fibers;
  for (Entry& entry : entries) {
    fibers[entry.number].start(
        [](void* argument) {
          const auto& entered = *static_cast<Entry*>(argument);
          entered.launch->live();
        },
        &entry);
  }
  while (!runnable_.empty() && !is_broken_) {
    const size_t drawn = random_.below(runnable_.size());
    running_ = runnable_[drawn];
    fibers[running_].resume();
    ++outcome_.switches;
    if (now().state == State::RUNNABLE) continue;
    runnable_[drawn] = runnable_.back();
    runnable_.pop_back();
  }
}

/// The whole run of a lane, on its fiber.
void Launch::live() {
  const uint32_t number = now().warp;
  for (uint32_t unit = number; unit < units_; unit += warp_count_) (*body_)(unit, number);
  now().state = State::ENDED;
  ++warp().ended;
  if (warp().waiting != 0 && warp().waiting + warp().ended == kWarpLanes) {
    fault(fmt::format("lane {} of warp {} has ended while others wait at {}", lane(), number,
                      warp().site->name));
    stop();
  }
  suspend();
}

void Launch::suspend() { of_thread().fibers[running_].suspend(); }

void Launch::fault(const std::string& sentence) {
  if (faults_++ < kMostFaults) outcome_.faults.push_back(sentence);
}

/// The scheduler stops, and all lanes stay where they are for ever: nothing on their stacks may own
/// memory.
void Launch::stop() {
  is_broken_ = true;
  suspend();
}

/// Returns when all 32 lanes of the warp have arrived.
void Launch::meet(const Site& site) {
  WarpState& mine = warp();
  if (mine.waiting != 0 && mine.site != &site) {
    fault(fmt::format("lane {} of warp {} comes to {} while others wait at {}", lane(), now().warp,
                      site.name, mine.site->name));
    stop();
  }
  if (mine.ended != 0) {
    fault(fmt::format("lane {} of warp {} comes to {} while {} others have ended", lane(),
                      now().warp, site.name, mine.ended));
    stop();
  }
  mine.site = &site;
  if (++mine.waiting < kWarpLanes) {
    now().state = State::WAITING;
    return suspend();
  }
  mine.waiting = 0;
  const uint32_t first = now().warp * kWarpLanes;
  for (uint32_t i = first; i < first + kWarpLanes; ++i) {
    if (lanes_[i].state != State::WAITING) continue;
    lanes_[i].state = State::RUNNABLE;
    runnable_.push_back(i);
  }
}

void Launch::sync(const Site& site) {
  if (site.is_left_out) return;
  const uint32_t before = warp().epoch;
  meet(site);
  if (warp().epoch == before) ++warp().epoch;  // the first that goes on
  ++now().order;
}

void Launch::keep_order(const Site& site) {
  if (!site.is_left_out) ++now().order;
}

const uint64_t* Launch::exchange(uint64_t own, const Site& site) {
  if (site.is_left_out) return nullptr;
  const uint32_t number = warp().exchanges;
  auto& values = warp().values[number % 2];
  values[lane()] = own;
  meet(site);
  if (warp().exchanges == number) ++warp().exchanges;
  return values.data();
}

/// The end of an error sentence if the running lane must not access the byte this way; else empty.
std::string Launch::rule_broken(Access kind, const ByteState& byte, const void* at,
                                size_t size) const {
  const uint32_t warp_number = now().warp + 1, epoch = warps_[now().warp].epoch;
  if (byte.is_added && kind != Access::ADD) return "that lanes add to";
  if (byte.writer_warp != 0 && kind != Access::ADD) {
    const bool is_own = byte.writer_warp == warp_number && byte.writer_lane == now().lane;
    if (!is_own && (byte.writer_warp != warp_number || byte.write_epoch == epoch))
      return fmt::format("that lane {} of warp {} stored, without a sync between", byte.writer_lane,
                         byte.writer_warp - 1);
    if (kind == Access::LOAD_CONSTANT) return "as constant that were stored in this launch";
    const bool is_same_type = byte.write_begin == at && byte.write_bytes == size;
    if (is_own && kind == Access::LOAD && !is_same_type && byte.write_order == now().order)
      return "that it stored as another type, without keep_order() between";
  }
  if (kind != Access::STORE) return {};
  if (byte.is_constant) return "that were loaded as constant in this launch";
  const bool by_another_lane = (byte.reader_lanes & ~(1u << now().lane)) != 0;
  if (byte.reader_warp != 0 &&
      (byte.reader_warp != warp_number || (byte.read_epoch == epoch && by_another_lane)))
    return "that another lane loaded, without a sync between";
  return {};
}

void Launch::note(Access kind, ByteState& byte, const void* at, size_t size) {
  const uint32_t warp_number = now().warp + 1, epoch = warp().epoch;
  if (kind == Access::ADD) {
    byte.is_added = true;
  } else if (kind == Access::STORE) {
    byte.writer_warp = warp_number;
    byte.writer_lane = now().lane;
    byte.write_epoch = epoch;
    byte.write_order = now().order;
    byte.write_begin = at;
    byte.write_bytes = static_cast<uint32_t>(size);
  } else {
    byte.is_constant = byte.is_constant || kind == Access::LOAD_CONSTANT;
    const bool by_others = byte.reader_warp != 0 && byte.reader_warp != warp_number;
    byte.reader_warp = by_others ? ByteState::kSeveralWarps : warp_number;
    if (byte.read_epoch != epoch) byte.reader_lanes = 0;
    byte.read_epoch = epoch;
    byte.reader_lanes |= 1u << now().lane;
  }
}

void Launch::access(Access kind, const void* at, size_t size_bytes) {
  constexpr const char* kVerbs[] = {"loads", "loads", "stores", "adds to"};
  if (period_ != 0 && random_.below(period_) == 0) suspend();
  const auto address = reinterpret_cast<uintptr_t>(at);
  bool is_reported = false;
  for (size_t i = 0; i < size_bytes; ++i) {
    ByteState& byte = shadow_.at(address + i);
    if (!is_reported) {
      const std::string broken = rule_broken(kind, byte, at, size_bytes);
      is_reported = !broken.empty();
      if (is_reported)
        fault(fmt::format("lane {} of warp {} {} {} bytes {}", lane(), now().warp,
                          kVerbs[static_cast<int>(kind)], size_bytes, broken));
    }
    note(kind, byte, at, size_bytes);
  }
}

}  // namespace

Outcome run(const Plan& plan, const std::function<void()>& work) {
  ThreadState& thread = of_thread();
  Outcome outcome;
  thread.plan = plan;
  thread.outcome = &outcome;
  thread.launches = 0;
  thread.sites.clear();
  work();
  thread.outcome = nullptr;
  for (const auto& [place, site] : thread.sites) outcome.sites.insert(site.name);
  return outcome;
}

void run_warps(uint32_t units, const std::function<void(uint32_t, uint32_t)>& body) {
  ThreadState& thread = of_thread();
  BOWHEAD_ASSERT(thread.outcome != nullptr && thread.launch == nullptr);
  const auto launch = std::make_unique<Launch>(thread.plan.seed + thread.launches, *thread.outcome);
  ++thread.launches;
  thread.launch = launch.get();
  launch->run(units, body);
  thread.launch = nullptr;
}

uint32_t lane() { return launch().lane(); }
void access(Access kind, const void* at, size_t size_bytes) {
  launch().access(kind, at, size_bytes);
}
void sync(std::source_location where) { launch().sync(site_of(where)); }
void keep_order(std::source_location where) { launch().keep_order(site_of(where)); }
const uint64_t* exchange(uint64_t own, std::source_location where) {
  return launch().exchange(own, site_of(where));
}

}  // namespace bowhead::gpu::fibers
