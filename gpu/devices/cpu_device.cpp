// SPDX-License-Identifier: Apache-2.0
// The CPU as a Device. Streams are threads; memory is the heap's, and known by its ranges.
#include <fmt/format.h>

#include <atomic>
#include <condition_variable>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <map>
#include <mutex>
#include <set>
#include <thread>
#include <utility>
#include <vector>

#include "gpu/devices/cpu_kernels.h"
#include "gpu/devices/device.h"
#include "gpu/devices/pinned_range.h"

namespace bowhead::gpu {
namespace {

// ---- memory ----

struct Range {
  uintptr_t begin = 0;
  size_t size_bytes = 0;
  PointerKind kind = PointerKind::HOST;  ///< as its owner sees it
  bool is_allocated = false;             ///< here, else registered
  const void* owner = nullptr;
};

/// The memory that the CPU devices of this process allocated or registered, without overlap: as a
/// CUDA driver knows the memory of all GPUs of a process.
class Ranges {
 public:
  /// False: it overlaps another range.
  bool add(const Range& range) {
    const std::lock_guard lock(mutex_);
    if (touched(range.begin, range.size_bytes)) return false;
    by_end_[range.begin + range.size_bytes] = range;
    return true;
  }

  /// Forgets the range of `owner` that begins there, and returns it; of no bytes if there is none.
  Range remove(const void* begin, bool is_allocated, const void* owner) {
    const std::lock_guard lock(mutex_);
    const auto found = at_or_behind(address(begin));
    if (found == by_end_.end()) return {};
    const Range range = found->second;
    if (range.begin != address(begin) || range.is_allocated != is_allocated ||
        range.owner != owner) {
      return {};
    }
    by_end_.erase(found);
    return range;
  }

  /// Forgets all of `owner`, and returns them.
  std::vector<Range> remove_all(const void* owner) {
    const std::lock_guard lock(mutex_);
    std::vector<Range> removed;
    for (auto it = by_end_.begin(); it != by_end_.end();) {
      if (it->second.owner == owner) removed.push_back(it->second);
      it = it->second.owner == owner ? by_end_.erase(it) : std::next(it);
    }
    return removed;
  }

  PointerKind classify(const void* pointer, const void* owner) {
    const std::lock_guard lock(mutex_);
    return kind_of(touched(address(pointer), 1), owner);
  }

  /// Whether `owner` may copy from or to there: all of it HOST, or all in one range that it
  /// reaches.
  bool reaches(const void* pointer, size_t size_bytes, const void* owner) {
    const std::lock_guard lock(mutex_);
    const uintptr_t begin = address(pointer);
    const Range* const range = touched(begin, size_bytes);
    if (!range) return true;
    return kind_of(range, owner) != PointerKind::OTHER && range->begin <= begin &&
           size_bytes <= range->begin + range->size_bytes - begin;
  }

 private:
  using Map = std::map<uintptr_t, Range>;

  static uintptr_t address(const void* pointer) { return reinterpret_cast<uintptr_t>(pointer); }

  static PointerKind kind_of(const Range* range, const void* owner) {
    if (!range) return PointerKind::HOST;
    const bool is_others = range->kind == PointerKind::DEVICE && range->owner != owner;
    return is_others ? PointerKind::OTHER : range->kind;
  }

  /// The first range that ends behind `begin`.
  Map::iterator at_or_behind(uintptr_t begin) { return by_end_.upper_bound(begin); }

  /// The first range that has a byte of those, or null.
  const Range* touched(uintptr_t begin, size_t size_bytes) {
    const auto found = at_or_behind(begin);
    if (found == by_end_.end()) return nullptr;
    const Range& range = found->second;
    return range.begin <= begin || range.begin - begin < size_bytes ? &range : nullptr;
  }

  std::mutex mutex_;
  Map by_end_;
};

Ranges& ranges() {
  static Ranges* const all = new Ranges;  // never destroyed: a Device may be static as well
  return *all;
}

// ---- order ----

/// How much of a stream's queued work is done. Outlives the stream in events and waits.
class Timeline {
 public:
  void advance() {
    const std::lock_guard lock(mutex_);
    ++done_;
    changed_.notify_all();
  }
  bool has_reached(uint64_t position) {
    const std::lock_guard lock(mutex_);
    return done_ >= position;
  }
  void wait_for(uint64_t position) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return done_ >= position; });
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  uint64_t done_ = 0;
};

/// A position in a stream. Without a timeline: long done.
struct Position {
  std::shared_ptr<Timeline> timeline;
  uint64_t count = 0;

  bool is_done() const { return !timeline || timeline->has_reached(count); }
  void wait() const {
    if (timeline) timeline->wait_for(count);
  }
};

/// A thread, and its queued work. Work is never thrown away: on a lost device it does nothing.
class CpuStream {
 public:
  CpuStream() : thread_([this] { run(); }) {}
  ~CpuStream() {
    {
      const std::lock_guard lock(mutex_);
      is_ending_ = true;
    }
    changed_.notify_one();
    thread_.join();
  }

  void queue(std::function<void()> work) {
    {
      const std::lock_guard lock(mutex_);
      queue_.push_back(std::move(work));
      ++queued_;
    }
    changed_.notify_one();
  }

  Position position() {
    const std::lock_guard lock(mutex_);
    return {timeline_, queued_};
  }

 private:
  void run() {
    std::unique_lock lock(mutex_);
    for (;;) {
      changed_.wait(lock, [this] { return is_ending_ || !queue_.empty(); });
      if (queue_.empty()) return;
      std::function<void()> work = std::move(queue_.front());
      queue_.pop_front();
      lock.unlock();
      work();
      work = nullptr;  // destroyed before another thread sees it done
      timeline_->advance();
      lock.lock();
    }
  }

  const std::shared_ptr<Timeline> timeline_ = std::make_shared<Timeline>();
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> queue_;
  uint64_t queued_ = 0;
  bool is_ending_ = false;
  std::thread thread_;  ///< last: it uses the members above
};

struct CpuEvent {
  std::mutex mutex;
  Position position;  ///< guarded by mutex

  Position get() {
    const std::lock_guard lock(mutex);
    return position;
  }
};

// ---- the device ----

class CpuDevice final : public Device {
 public:
  explicit CpuDevice(CpuDeviceOptions options) : options_(std::move(options)) {
    info_ = {.name = "cpu",
             .is_cpu = true,
             .memory_bytes = options_.memory_bytes,
             .link = "none",
             .driver = "none",
             .decodes_lz4 = options_.decodes_lz4,
             .registers_read_only = options_.registers_read_only,
             .pin_fault = PinnedRange::fault()};
  }

  ~CpuDevice() override {
    streams_.clear();  // ends the threads
    default_stream_.reset();
    for (const Range& range : ranges().remove_all(this)) {
      if (range.is_allocated) std::free(reinterpret_cast<void*>(range.begin));
    }
  }

  const DeviceInfo& info() const override { return info_; }

  Result<void*> allocate(size_t size_bytes) override {
    return allocate_as(PointerKind::DEVICE, size_bytes);
  }
  Result<void*> allocate_pinned(size_t size_bytes) override {
    return allocate_as(PointerKind::REGISTERED, size_bytes);
  }

  void free(void* memory) override {
    if (!memory) return;
    const Range range = ranges().remove(memory, true, this);
    BOWHEAD_ASSERT(range.size_bytes != 0);
    if (range.kind == PointerKind::DEVICE) give_back(allocated_bytes_, range.size_bytes);
    std::free(memory);
  }

  Result<PointerKind> classify(const void* pointer) override {
    if (is_lost()) return lost();
    return ranges().classify(pointer, this);
  }

  Result<void> register_host(void* memory, size_t size_bytes, DeviceAccess access) override {
    if (!may_work()) return lost();
    if (auto checked = check_host_range(memory, size_bytes); !checked) return checked;
    if (access == DeviceAccess::READ && !info_.registers_read_only) {
      return Error{Status::NOT_SUPPORTED, "register_host: this device takes no read-only memory"};
    }
    if (!take(registered_bytes_, size_bytes, options_.most_registered_bytes)) {
      return Error{Status::LIMIT_REACHED,
                   fmt::format("register_host: {} bytes more than the {} that may be registered",
                               size_bytes, options_.most_registered_bytes)};
    }
    if (!ranges().add({reinterpret_cast<uintptr_t>(memory), size_bytes, PointerKind::REGISTERED,
                       false, this})) {
      give_back(registered_bytes_, size_bytes);
      return Error{Status::BUSY, fmt::format("register_host: some of the {} bytes at {} are "
                                             "registered already",
                                             size_bytes, memory)};
    }
    if (!info_.pin_fault.empty()) return {};
    auto pinned = PinnedRange::pin(memory, size_bytes, access);
    if (!pinned) {
      (void)ranges().remove(memory, false, this);
      give_back(registered_bytes_, size_bytes);
      return pinned.error();
    }
    const std::lock_guard lock(mutex_);
    pinned_[memory] = std::move(*pinned);
    return {};
  }

  Result<void> unregister_host(void* memory) override {
    {
      const std::lock_guard lock(mutex_);
      pinned_.erase(memory);  // before another thread can register it
    }
    const Range range = ranges().remove(memory, false, this);
    if (range.size_bytes != 0) give_back(registered_bytes_, range.size_bytes);
    if (is_lost()) return lost();
    if (range.size_bytes == 0) return not_registered("unregister_host", memory);
    return {};
  }

  Result<void*> device_address(void* registered) override {
    if (is_lost()) return lost();
    if (ranges().classify(registered, this) != PointerKind::REGISTERED) {
      return not_registered("device_address", registered);
    }
    return registered;
  }

  Result<Stream> make_stream(int /*priority*/) override {
    if (is_lost()) return lost();
    auto made = std::make_unique<CpuStream>();
    const Stream stream = made.get();
    const std::lock_guard lock(mutex_);
    streams_.emplace(stream, std::move(made));
    return stream;
  }

  void destroy_stream(Stream stream) override {
    std::unique_lock lock(mutex_);
    const auto ending = streams_.extract(stream);
    BOWHEAD_ASSERT(!ending.empty());
    lock.unlock();
  }

  Result<void> check_stream(Stream stream) override {
    if (is_lost()) return lost();
    const std::lock_guard lock(mutex_);
    if (stream && !streams_.contains(stream)) {
      return Error{Status::INVALID_ARGUMENT,
                   fmt::format("stream {} is not one of this device", stream)};
    }
    if (is_recorded(stream)) {
      return Error{Status::INVALID_ARGUMENT,
                   fmt::format("stream {} is being recorded as a graph", stream)};
    }
    return {};
  }

  Result<Event> make_event() override {
    if (is_lost()) return lost();
    return Event{new CpuEvent};
  }
  void destroy_event(Event event) override { delete static_cast<CpuEvent*>(event); }

  Result<void> record(Event event, Stream stream) override {
    return with(stream, [&](CpuStream& queue) {
      CpuEvent& recorded = *static_cast<CpuEvent*>(event);
      const std::lock_guard lock(recorded.mutex);
      recorded.position = queue.position();
    });
  }

  Result<void> wait(Stream stream, Event event) override {
    return with(stream, [&](CpuStream& queue) {
      // The work it waits for was queued before it: no circle of streams can wait for each other.
      queue.queue([position = static_cast<CpuEvent*>(event)->get()] { position.wait(); });
    });
  }

  Result<bool> is_done(Event event) override {
    // As a driver reports it: at once, while running work still runs to its end.
    if (is_lost()) return lost();
    return static_cast<CpuEvent*>(event)->get().is_done();
  }

  Result<void> synchronize(Event event) override {
    static_cast<CpuEvent*>(event)->get().wait();
    if (is_lost()) return lost();
    return {};
  }

  Result<void> notify(Stream stream, std::function<void()> callee) override {
    return with(stream, [&](CpuStream& queue) { queue.queue(std::move(callee)); });
  }

  Result<void> copy(void* to, const void* from, size_t size_bytes, Stream stream) override {
    const CopyRun run = {to, from, size_bytes};
    return copy_batch({&run, 1}, stream);
  }

  Result<void> copy_batch(std::span<const CopyRun> runs, Stream stream) override {
    for (const CopyRun& run : runs) {
      if (run.size_bytes != 0 && !(reaches(run.to, run) && reaches(run.from, run))) {
        return Error{Status::INVALID_ARGUMENT,
                     fmt::format("copy: {} bytes from {} to {} are null, of another device, or in "
                                 "more than one allocation or registration",
                                 run.size_bytes, run.from, run.to)};
      }
    }
    return queue(stream, [copied = std::vector<CopyRun>(runs.begin(), runs.end())] {
      for (const CopyRun& run : copied) {
        if (run.size_bytes != 0) std::memcpy(run.to, run.from, run.size_bytes);
      }
    });
  }

  Result<void> launch(const Work& work, Stream stream) override {
    return queue(stream, [work] {
      std::visit([](const auto& descriptor) { run_on_cpu(descriptor); }, work);
    });
  }

 private:
  /// Relaxed, everywhere: it guards no data. A thread that sees work done sees by the lock of its
  /// timeline that the device was lost before.
  bool is_lost() const { return is_lost_.load(std::memory_order_relaxed); }

  static Error lost() { return {Status::GPU_LOST, "the CPU device is lost, as a test wants it"}; }

  static Error not_registered(const char* call, const void* memory) {
    return {Status::INVALID_ARGUMENT,
            fmt::format("{}: {} is not registered by this device", call, memory)};
  }

  bool is_recorded(Stream stream) const {
    return options_.is_recorded && options_.is_recorded(stream);
  }

  /// Called before each piece of work: false if the device is lost, or is from now on. Work that
  /// has passed here is under way, and arrives, whatever happens to the device.
  bool may_work() {
    if (is_lost()) return false;
    const bool works = !options_.before_work || options_.before_work();
    if (!works) is_lost_.store(true, std::memory_order_relaxed);
    return works;
  }

  bool reaches(const void* end, const CopyRun& run) {
    return end && ranges().reaches(end, run.size_bytes, this);
  }

  bool take(uint64_t& used, uint64_t size_bytes, uint64_t most) {
    const std::lock_guard lock(mutex_);
    if (size_bytes > most - used) return false;
    used += size_bytes;
    return true;
  }
  void give_back(uint64_t& used, uint64_t size_bytes) {
    const std::lock_guard lock(mutex_);
    used -= size_bytes;
  }

  Result<void*> allocate_as(PointerKind kind, size_t size_bytes) {
    if (is_lost()) return lost();
    if (size_bytes == 0) return Error{Status::INVALID_ARGUMENT, "allocate: no bytes"};
    const bool on_device = kind == PointerKind::DEVICE;
    const Error no_space = {Status::NO_SPACE,
                            fmt::format("allocate: no room for {} bytes", size_bytes)};
    // Host memory is not counted, but cannot be more than a size can say when it is rounded up.
    if (size_bytes > SIZE_MAX / 2) return no_space;
    if (on_device && !take(allocated_bytes_, size_bytes, options_.memory_bytes)) return no_space;
    void* const memory = std::aligned_alloc(
        kMemoryAlign, (size_bytes + kMemoryAlign - 1) / kMemoryAlign * kMemoryAlign);
    if (!memory) {
      if (on_device) give_back(allocated_bytes_, size_bytes);
      return no_space;
    }
    BOWHEAD_ASSERT(
        ranges().add({reinterpret_cast<uintptr_t>(memory), size_bytes, kind, true, this}));
    return memory;
  }

  /// Calls `use` with the stream, unless the device is lost or the stream not its own.
  template <class Use>
  Result<void> with(Stream stream, Use use) {
    if (is_lost()) return lost();
    if (is_recorded(stream)) {
      return Error{Status::SYSTEM,
                   fmt::format("work in stream {}, of which a graph is being recorded", stream)};
    }
    const std::lock_guard lock(mutex_);
    if (!stream) {
      if (!default_stream_) default_stream_ = std::make_unique<CpuStream>();
      use(*default_stream_);
      return {};
    }
    const auto found = streams_.find(stream);
    if (found == streams_.end()) {
      return Error{Status::INVALID_ARGUMENT,
                   fmt::format("stream {} is not one of this device", stream)};
    }
    use(*found->second);
    return {};
  }

  template <class Work>
  Result<void> queue(Stream stream, Work work) {
    return with(stream, [&](CpuStream& queue) {
      queue.queue([this, work = std::move(work)] {
        if (may_work()) work();
      });
    });
  }

  const CpuDeviceOptions options_;
  DeviceInfo info_;
  std::atomic<bool> is_lost_ = false;
  std::mutex mutex_;  ///< guards the members below
  uint64_t allocated_bytes_ = 0, registered_bytes_ = 0;
  std::map<void*, PinnedRange> pinned_;  ///< by where it was registered
  std::map<Stream, std::unique_ptr<CpuStream>> streams_;
  std::unique_ptr<CpuStream> default_stream_;  ///< made at its first use
};

}  // namespace

std::unique_ptr<Device> Device::cpu(CpuDeviceOptions options) {
  return std::make_unique<CpuDevice>(std::move(options));
}

}  // namespace bowhead::gpu
