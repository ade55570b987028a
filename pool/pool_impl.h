// SPDX-License-Identifier: Apache-2.0
// Pool::Impl: the core on the media of an open pool, and the threads of a handle.
#pragma once

#include <bowhead/format/device.h>
#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <bitset>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <thread>

#include "base/thread.h"
#include "pool/coded.h"
#include "pool/core/access.h"
#include "pool/core/core.h"
#include "pool/core/layout.h"
#include "pool/media/media.h"
#include "pool/opened_media.h"
#include "pool/periodic.h"
#include "pool/pool.h"

namespace bowhead {

class Pool::Impl {
 public:
  using Key = core::Key;
  using NativeAccess = core::NativeAccess;
  using Growth = core::Growth<NativeAccess>;

  Impl(std::string locator, OpenedMedia opened, uint32_t host, uint64_t mirror_bytes = kMirrorBytes)
      : locator_(std::move(locator)),
        superblock_(opened.superblock),
        second_used_(opened.second_used),
        media_(std::move(opened.media)),
        access_(*media_, choose_flush_kind(superblock_.geometry.host_count > 1 ||
                                           media_->traits().survives_power_loss)),
        core_(access_, superblock_, host, mirror_bytes),
        coded_(core_),
        host_(host) {
    core_.context().events = &events_;
  }

  ~Impl() {
    const bool alone = superblock_.geometry.host_count == 1;
    worker_.reset();
    if (!alone) heartbeat_thread_.reset();  // in a pool of one host it shows that this one closes
    if (prefault_thread_.joinable()) {
      {
        const std::lock_guard lock(prefault_mutex_);
        prefault_stops_.store(true, std::memory_order_relaxed);
      }
      prefault_wakes_.notify_all();
      prefault_thread_.join();
    }
    // To the other processes this one is dead; they undo its unfinished work.
    if (!attached_ || media_->failed()) return;
    core_.joining.detach();
    (void)media_->sync(0, media_->size_bytes());
  }

  static Result<Pool> open(const std::string& locator, const OpenOptions& options);
  static Result<Pool> open(const std::string& locator, OpenedMedia opened, uint32_t host,
                           const OpenOptions& options) {
    Handle impl(new Impl(locator, std::move(opened), host, options.mirror_bytes));
    if (auto joined = impl->run([&] { return impl->attach(options); }); !joined)
      return with_locator(locator, joined.error());
    if (options.prefault) impl->start_prefault();
    return Pool(std::move(impl));
  }

  /// For a forked child, whose copy of this object may be in the middle of a change by a thread of
  /// the parent: only members that do not change while the pool is open can be destroyed.
  void let_go() {
    // Orders what a thread of the parent read of them. If it held the lock, it is not here.
    const std::unique_lock lock(prefault_mutex_, std::try_to_lock);
    media_->leave_change();
    media_.reset();
  }

  Result<void> attach(const OpenOptions& options) {
    // Mapped read-only.
    if (observing()) return core_.growth.heed_newest(Growth::Missing::PASSED_OVER);
    if (auto ok = protect(); !ok) return ok;
    if (auto ok = make_threads(); !ok) return ok;
    auto joined = core_.joining.attach(
        options.progress, [this] { heartbeat_thread_->resume(); }, options.cancelled);
    attached_ = static_cast<bool>(joined);
    // The process that replaced or destroyed it held the locks that this one waited for.
    if (joined && destroyed()) return Status::CLOSED;
    if (joined && worker_) worker_->resume();
    return joined;
  }

  /// Without a thread, pages are touched when they are used.
  void start_prefault() {
    const MediaTraits& traits = media_->traits();
    if (observing() || (traits.survives_reboot && !traits.survives_power_loss)) return;
    prefaulted_bytes_.store(0, std::memory_order_relaxed);
    auto thread = start_thread([this] { prefault_all(); });
    if (!thread) prefaulted_bytes_.store(UINT64_MAX, std::memory_order_relaxed);
    if (thread) prefault_thread_ = std::move(*thread);
  }
  /// Of a pool that can grow, also the media that come later.
  void prefault_all() {
    std::vector<Range> touched;
    do {
      const std::vector<Range> all = ranges_to_touch();
      std::erase_if(touched, [&](const Range& one) { return !contains(all, one); });
      for (const Range& range : all) {
        if (contains(touched, range)) continue;
        prefaulted_bytes_.store(bytes_of(touched), std::memory_order_relaxed);
        if (!prefault(range)) break;
        touched.push_back(range);
      }
      prefaulted_bytes_.store(UINT64_MAX, std::memory_order_relaxed);
      if (touched.size() < all.size()) return;
    } while (core_.growth.possible() && wait_to_touch());
  }
  static bool contains(const std::vector<Range>& ranges, const Range& range) {
    return std::find(ranges.begin(), ranges.end(), range) != ranges.end();
  }
  std::vector<Range> ranges_to_touch() {
    const std::lock_guard lock(prefault_mutex_);
    return media_->ranges();
  }
  /// False: it is time to stop.
  bool wait_to_touch() {
    std::unique_lock lock(prefault_mutex_);
    return !prefault_wakes_.wait_for(lock, std::chrono::seconds(1), [this] {
      return prefault_stops_.load(std::memory_order_relaxed) || media_->failed();
    });
  }
  /// Nothing: it is time to stop.
  std::byte* base_to_touch() {
    if (prefault_stops_.load(std::memory_order_relaxed)) return nullptr;
    const std::lock_guard lock(prefault_mutex_);
    return media_->failed() ? nullptr : media_->base();
  }
  bool prefault(const Range& range) {
    // Little at a time: a change of the mapping's protection waits for it.
    constexpr uint64_t kStepBytes = uint64_t{4} << 20;
    for (uint64_t at = range.offset; at < range.end(); at += kStepBytes) {
      const uint64_t bytes = std::min(kStepBytes, range.end() - at);
      std::byte* const base = base_to_touch();
      if (base == nullptr || !touch_pages({base + at, bytes})) return false;
      prefaulted_bytes_.fetch_add(bytes, std::memory_order_relaxed);
    }
    return true;
  }
  Prefaulted prefaulted() const {
    const uint64_t all = bytes_of(media_->ranges());
    return {std::min(prefaulted_bytes_.load(std::memory_order_relaxed), all), all};
  }

  Result<std::vector<std::string>> repair(const RepairOptions& options, Growth::Missing missing) {
    if (auto ok = protect(); !ok) return ok.error();
    if (auto ok = make_threads(); !ok) return ok.error();
    return core_.joining.repair(
        options.take_over, options.progress, [this] { heartbeat_thread_->resume(); }, missing);
  }

  /// Rule R1: memory of other hosts, and the superblock, can be read and not written. With several
  /// hosts the core asks for extents one by one, as they come and go.
  Result<void> protect() {
    const auto& g = superblock_.geometry;
    const core::Layout layout(g);
    const uint64_t own = g.regions_offset + host_ * g.region_bytes;
    if (auto ok = protect_between(0, own); !ok) return ok;
    if (g.host_count == 1) return {};
    return protect_between(own + g.region_bytes, core::offset_end(g));
  }

  /// Runs an operation. If the medium fails before it is done, it may have read zeros, and its
  /// stores have reached no other process, whatever its result: then the failure is the result. The
  /// guard reports it before the first zero can be read.
  template <class Operation>
  auto run(Operation operation) const -> decltype(operation()) {
    if (left_) return Status::HOST_FENCED;
    if (!media_->failed()) {
      if (auto why = look_for_sets()) {
        if constexpr (std::is_same_v<decltype(operation()), Status>)
          return why->status;
        else
          return *std::move(why);
      }
      auto result = operation();
      if (!media_->failed()) return result;
    }
    const Error failure = with_locator(locator_, *media_->failure());
    if constexpr (std::is_same_v<decltype(operation()), Status>)
      return failure.status;
    else
      return failure;
  }

  /// Why this process cannot use the pool any more: it cannot map media by which the pool has
  /// grown.
  std::optional<Error> look_for_sets() const {
    if (!core::grows(superblock_)) return std::nullopt;
    if (!observing()) {
      if (!attached_) return std::nullopt;  // who joins looks for itself
      core_.growth.refresh();
      return superblock_.geometry.host_count == 1 ? core_.growth.missing() : std::nullopt;
    }
    const uint64_t now_ns = access_.recency_ns();
    if (now_ns - sets_looked_at_ns_.load(std::memory_order_relaxed) < kSetsLookNs)
      return std::nullopt;
    sets_looked_at_ns_.store(now_ns, std::memory_order_relaxed);
    const auto heeds = core_.growth.heed_newest(Growth::Missing::PASSED_OVER);
    return heeds ? std::nullopt : std::optional(heeds.error());
  }
  Result<uint64_t> grow(const std::string& locator, const GrowOptions& options);
  Result<void> drain(uint32_t number, const DrainOptions& options);
  Result<void> shrink(uint32_t number);
  /// Changes the sets under the host lock.
  template <class Change>
  auto change_sets(Change change) -> decltype(change());
  bh_set stored_set(uint32_t number);
  SetName name_of(const bh_set& set) const {
    return {{superblock_.pool_id[0], superblock_.pool_id[1]}, set.id};
  }

  Result<void> leave() {
    if (superblock_.geometry.host_count == 1) return {};
    // Threads of one process share its host lock: the thread with duties would let go of it.
    worker_->pause();
    auto left = core_.joining.leave([this] { heartbeat_thread_.reset(); });
    left_ = static_cast<bool>(left);
    if (!left && heartbeat_thread_) worker_->resume();
    return left;
  }

  bool forked() const { return access_.forked(); }
  bool observing() const { return host_ == superblock_.geometry.host_count; }
  /// Why nothing may be stored through this handle; empty if it may.
  std::optional<Error> barred() {
    if (forked()) return Error{Status::FORKED, {}};
    if (observing()) return Error{Status::READ_ONLY, {}};
    if (destroyed()) return closed();
    return std::nullopt;
  }
  Error closed() const {
    return {Status::CLOSED,
            locator_ + ": the pool was destroyed or replaced; close the handle and open it again"};
  }
  /// The result of an operation that stored something, checked after it: bytes stored before the
  /// pool was destroyed are as lost as later ones, but OK may have been right at that time.
  Status stored(Status status) {
    return status == Status::OK && marked_destroyed() ? Status::CLOSED : status;
  }
  /// The pool was destroyed or replaced, or its object removed by other means: no process will find
  /// what is stored from here on. Processes of the host that destroyed it see that at once; other
  /// hosts, and processes that must ask the system, within kLookNs.
  bool destroyed() {
    if (marked_destroyed()) return true;
    const uint64_t now_ns = access_.recency_ns();
    uint64_t looked_ns = looked_at_ns_.load(std::memory_order_relaxed);
    if (now_ns - looked_ns < kLookNs ||
        !looked_at_ns_.compare_exchange_strong(looked_ns, now_ns, std::memory_order_relaxed) ||
        !is_gone())
      return false;
    destroyed_.store(true, std::memory_order_relaxed);
    return true;
  }
  /// Whether a namespace can be read, and be stored to; with a key of it.
  Result<void> may_read(NamespaceId ns) {
    if (forked()) return Status::FORKED;
    return registered(ns);
  }
  Result<void> may_read(NamespaceId ns, std::string_view key) {
    if (auto ok = may_read(ns); !ok) return ok;
    return Key::valid(key) ? Status::OK : Status::KEY_TOO_LONG;
  }
  Result<void> may_store(NamespaceId ns) {
    if (auto why = barred()) return *std::move(why);
    return registered(ns);
  }
  Result<void> may_store(NamespaceId ns, std::string_view key) {
    if (auto ok = may_store(ns); !ok) return ok;
    return Key::valid(key) ? Status::OK : Status::KEY_TOO_LONG;
  }
  /// A put that found no space: others will find none either, for a while.
  void note_refusal(Status status) {
    if (status == Status::NO_SPACE || status == Status::INDEX_FULL)
      refused_at_ns_.store(now_ns(), std::memory_order_relaxed);
  }
  bool refused_lately() const {
    const uint64_t at_ns = refused_at_ns_.load(std::memory_order_relaxed);
    return at_ns != 0 && now_ns() - at_ns < 1'000'000'000;
  }
  uint64_t now_ns() const { return access_.recency_ns(); }
  static constexpr uint64_t kSpeedBytes = 256 * 1024;  ///< that a measured get has at least
  static constexpr uint64_t kSpeedNsAtFirst = 52'000;  ///< 5 GB/s, until a get was measured
  /// Notes the speed of gets: a mean in which old ones count less and less. Small values say more
  /// about look-ups than about copies.
  void note_copied(uint64_t bytes, uint64_t ns) {
    if (bytes < kSpeedBytes) return;
    const uint64_t now = ns * kSpeedBytes / bytes, mean = ns_per_speed_bytes_;
    ns_per_speed_bytes_.store(mean == 0 ? now : (7 * mean + now) / 8, std::memory_order_relaxed);
  }
  uint64_t copy_time_ns(uint64_t bytes) const {
    const uint64_t mean = ns_per_speed_bytes_.load(std::memory_order_relaxed);
    return bytes * (mean == 0 ? kSpeedNsAtFirst : mean) / kSpeedBytes;
  }
  Events& events() { return events_; }
  Error explain(Status status, const Key& key) {
    const bool asks_others = status == Status::NO_SPACE && superblock_.geometry.host_count > 1;
    if (asks_others)
      return {status,
              fmt::format("host {} has no space for this block and asks the other hosts for "
                          "some, of which a process must run: try again after some heartbeats of "
                          "{} ms",
                          host_, core::times_of(superblock_).heartbeat_ms)};
    if (status != Status::BUSY) return {status, status_text(status)};
    const auto why = run([&]() -> Result<std::string> { return why_busy(key); });
    return why ? Error{status, *why} : why.error();
  }
  core::Core<NativeAccess>& core() { return core_; }
  CodedStore& coded() { return coded_; }
  Media& media() { return *media_; }
  /// Queue pairs of this host that this handle has, and behind them the place of the device: the
  /// locks of one handle do not exclude each other.
  struct QueuePlaces {
    std::mutex mutex;
    std::bitset<BH_DEVICE_PAIRS + 1> taken;
  };
  QueuePlaces& queue_places() { return queue_places_; }
  const bh_superblock& superblock() const { return superblock_; }
  bool second_used() const { return second_used_; }
  const std::string& locator() const { return locator_; }

 private:
  Result<void> registered(NamespaceId ns) {
    return run([&]() -> Result<void> {
      if (core_.namespaces.gone(ns))
        return Error{Status::NAMESPACE_GONE,
                     fmt::format("namespace {:#018x} was removed: open it again by its name", ns)};
      if (coded_.format_of(ns)) return {};
      return Error{Status::INVALID_ARGUMENT,
                   fmt::format("no namespace of this pool has id {:#018x}: use the id that opening "
                               "the namespace gave",
                               ns)};
    });
  }

  /// The block may belong to another host, which has not answered; or it must not be written to as
  /// long as the host that died with it may still write (READ_ONLY custody).
  std::string why_busy(const Key& key) {
    const auto writer = core_.inspection.writer_of(key);
    if (!writer) return status_text(Status::BUSY);
    if (writer->may_still_write) {
      const uint32_t reclaim_ms = core::times_of(superblock_).reclaim_ms;
      return fmt::format(
          "host {} owned it when it was declared dead, and may still write there: {}run `bowhead "
          "pool fence {} {}` once its machine has stopped for certain",
          *writer->may_still_write,
          reclaim_ms == 0 ? "" : fmt::format("wait {} ms, or ", reclaim_ms), locator_,
          *writer->may_still_write);
    }
    if (writer->host == host_) return status_text(Status::BUSY);
    return fmt::format(
        "host {}, which has it, did not answer: a process must have the pool open as that host",
        writer->host);
  }

  static constexpr uint64_t kLookNs = 1'000'000'000;

  bool marked_destroyed() const {
    return destroyed_.load(std::memory_order_relaxed) ||
           access_.load(offsetof(bh_superblock, magic)) == BH_SUPERBLOCK_DESTROYED;
  }

  /// A fresh look at the first line of the superblock, and at the name.
  bool is_gone() {
    access_.acquire(0, BH_LINE_BYTES);
    return access_.load(offsetof(bh_superblock, magic)) == BH_SUPERBLOCK_DESTROYED ||
           !media_->has_name();
  }

  /// What is done while this process, which has the host lock, waits for other hosts.
  auto duties() {
    return [this] { core_.membership.succeed_the_dead(/*locked=*/true); };
  }
  std::chrono::milliseconds heartbeat_period() const {
    return std::chrono::milliseconds(core::times_of(superblock_).heartbeat_ms);
  }
  /// Before the host joins: without these threads it could neither stay nor leave in order. Either
  /// ends when this life of the host is over: every operation that stores reports why.
  Result<void> make_threads() {
    const bool alone = superblock_.geometry.host_count == 1;
    if (alone && media_->traits().locks_by_node) {
      auto shows_life = Periodic::make(heartbeat_period(), [this] {
        if (marked_destroyed()) return false;  // the memory may be another pool's by now
        core_.membership.show_life();
        return true;
      });
      if (!shows_life) return shows_life.error();
      heartbeat_thread_ = std::move(*shows_life);
    }
    if (alone && !core_.growth.possible()) return {};
    auto worker = Periodic::make(heartbeat_period(), [this] { return !!core_.membership.work(); });
    if (!worker) return worker.error();
    worker_ = std::move(*worker);
    if (alone) return {};
    auto heartbeat_thread =
        Periodic::make(heartbeat_period(), [this] { return !!core_.membership.heartbeat(); });
    if (!heartbeat_thread) return heartbeat_thread.error();
    heartbeat_thread_ = std::move(*heartbeat_thread);
    return {};
  }
  /// Whole grains only: the gaps between parts of one owner are smaller.
  Result<void> protect_between(uint64_t begin, uint64_t end) {
    const uint64_t grain = media_->traits().page_bytes;
    begin = (begin + grain - 1) / grain * grain;
    end = end / grain * grain;
    return end > begin ? media_->protect(begin, end - begin, /*writable=*/false) : Result<void>{};
  }

  std::string locator_;
  bh_superblock superblock_;
  bool second_used_;
  std::unique_ptr<Media> media_;
  NativeAccess access_;
  mutable core::Core<NativeAccess> core_;
  CodedStore coded_;
  Events events_;
  uint32_t host_;
  bool attached_ = false;
  std::atomic<bool> destroyed_{false};
  std::atomic<uint64_t> looked_at_ns_{0};
  static constexpr uint64_t kSetsLookNs = 100'000'000;  ///< of an observer
  mutable std::atomic<uint64_t> sets_looked_at_ns_{0};
  std::mutex sets_mutex_;  ///< changes of the media: threads share the host lock
  // Relaxed: estimates, which order nothing.
  std::atomic<uint64_t> refused_at_ns_{0};       ///< the last put that found no space; 0: none did
  std::atomic<uint64_t> ns_per_speed_bytes_{0};  ///< of gets; 0: not measured yet
  std::atomic<bool> left_{false};
  std::condition_variable prefault_wakes_;
  std::mutex prefault_mutex_;  ///< held while the thread below reads of the media, for let_go()
  std::atomic<bool> prefault_stops_{false};
  std::atomic<uint64_t> prefaulted_bytes_{UINT64_MAX};  ///< no less than all: it is over
  std::thread prefault_thread_;

  // With several hosts two threads, so that no work delays the heartbeat; with one host, and media
  // that can change, the second one.
  std::unique_ptr<Periodic> heartbeat_thread_;
  std::unique_ptr<Periodic> worker_;
  QueuePlaces queue_places_;
};

}  // namespace bowhead
