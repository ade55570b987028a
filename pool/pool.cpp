// SPDX-License-Identifier: Apache-2.0
// Pool: the core (pool/core) on real memory, plus the operations outside an open pool: create,
// destroy.
#include "pool/pool.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>

#include "pool/coded.h"
#include "pool/core/access.h"
#include "pool/core/core.h"
#include "pool/core/layout.h"
#include "pool/media/media.h"
#include "pool/periodic.h"

namespace bowhead {

using core::Key;
using core::NativeAccess;

namespace {

constexpr uint64_t kPoolGrain = uint64_t{2} << 20;
constexpr size_t kBatch = core::Lookup<NativeAccess>::kBatch;  ///< keys that the core takes at once

Result<void> check_ttl(uint64_t ttl_ms) {
  if (ttl_ms >= 1 && ttl_ms <= 600'000) return {};
  return Error{Status::INVALID_ARGUMENT, "a lease lasts from 1 to 600,000 ms"};
}

Error with_locator(const std::string& locator, const Error& error) {
  if (error.message().find(locator) != std::string::npos) return error;
  return Error{error.status, locator + ": " + error.message()};
}

struct OpenedMedia {
  std::unique_ptr<Media> media;
  bh_superblock superblock{};
  bool second_used = false;
};

std::span<const std::byte> superblock_bytes(const Media& media, uint32_t copy) {
  const uint64_t at = uint64_t{copy} * BH_SUPERBLOCK_COPY_OFFSET;
  if (media.size_bytes() < at + sizeof(bh_superblock)) return {};
  return {media.base() + at, sizeof(bh_superblock)};
}

/// How often a locator is looked up again because the pool there was destroyed or replaced since.
constexpr int kMostLooks = 100;
Error always_replaced(const std::string& locator) {
  return {Status::BUSY, locator + ": is destroyed or replaced time and again; try later"};
}

/// CLOSED: it was destroyed or replaced since it was opened, and the name leads elsewhere.
Result<void> read_superblock(const std::string& locator, MediaUse use, OpenedMedia& opened) {
  const Media& media = *opened.media;
  auto superblock = core::read_superblock(superblock_bytes(media, 0), superblock_bytes(media, 1),
                                          media.size_bytes(), &opened.second_used);
  if (auto failed = media.failure()) return with_locator(locator, *failed);
  if (!superblock && !media.has_name()) return Status::CLOSED;
  if (!superblock) return with_locator(locator, superblock.error());
  if (use != MediaUse::LOOK) {
    if (auto ok = core::check_writable(*superblock); !ok) return with_locator(locator, ok.error());
  }
  opened.superblock = *superblock;
  return {};
}

Result<OpenedMedia> open_with_superblock(const std::string& locator,
                                         MediaUse use = MediaUse::STORE) {
  for (int look = 0; look < kMostLooks; ++look) {
    auto media = open_media(locator, use);
    if (!media) return with_locator(locator, media.error());
    OpenedMedia opened{.media = std::move(media).value()};
    const auto read = read_superblock(locator, use, opened);
    if (read) return opened;
    if (read.status() != Status::CLOSED) return read.error();
  }
  return always_replaced(locator);
}

std::string pool_id_text(const bh_superblock& superblock) {
  return fmt::format("{:016x}{:016x}", superblock.pool_id[0], superblock.pool_id[1]);
}

bool same_pool(const bh_superblock& a, const bh_superblock& b) {
  return a.pool_id[0] == b.pool_id[0] && a.pool_id[1] == b.pool_id[1];
}

void store_superblock(Media& media, bh_superblock superblock, uint32_t copy) {
  core::seal_superblock(superblock, copy);
  std::memcpy(media.base() + uint64_t{copy} * BH_SUPERBLOCK_COPY_OFFSET, &superblock,
              sizeof superblock);
}

/// Whether that copy on the medium is exactly this superblock.
bool holds_superblock(const Media& media, bh_superblock superblock, uint32_t copy) {
  core::seal_superblock(superblock, copy);
  return std::memcmp(superblock_bytes(media, copy).data(), &superblock, sizeof superblock) == 0;
}

/// Reports a lost name to the processes that have the object mapped. If the medium is not writable,
/// they learn it from the lost name itself (Pool::Impl::destroyed()).
void mark_destroyed(const Media& media, NativeAccess& access) {
  if (!media.writable()) return;
  for (uint32_t copy = 0; copy < BH_SUPERBLOCK_COPIES; ++copy) {
    const uint64_t at = uint64_t{copy} * BH_SUPERBLOCK_COPY_OFFSET;
    access.store(at + offsetof(bh_superblock, magic), BH_SUPERBLOCK_DESTROYED);
    access.publish(at, BH_LINE_BYTES);
  }
}

/// A pool that is about to lose its name.
struct Doomed {
  OpenedMedia opened;
  std::unique_ptr<NativeAccess> access;
};

/// Opens a pool that is to be removed or replaced. `alone`: with all its locks, so that no process
/// of this machine has it open, and none opens it, until the object goes; IN_USE otherwise.
Result<Doomed> open_doomed(const std::string& locator, bool alone) {
  for (int look = 0; look < kMostLooks; ++look) {
    auto media = open_media(locator, MediaUse::REMOVE);
    if (!media) return with_locator(locator, media.error());
    Doomed doomed{.opened = {.media = std::move(media).value()}};
    doomed.access = std::make_unique<NativeAccess>(*doomed.opened.media, choose_flush_kind(true));
    if (alone && doomed.access->lock_all() == core::LockResult::HELD) return Status::IN_USE;
    // The former holder of the locks may have removed or replaced it: then look at the name again.
    if (!doomed.opened.media->has_name()) continue;
    const auto read = read_superblock(locator, MediaUse::REMOVE, doomed.opened);
    if (read) return doomed;
    if (read.status() != Status::CLOSED) return read.error();
  }
  return always_replaced(locator);
}

uint32_t low_permille(const CreateOptions& o) {
  const uint32_t high = o.evict_high_permille;
  if (high == 0 || o.evict_low_permille == 0) return high - std::min(20u, high / 2);
  return o.evict_low_permille;
}

Result<void> check_options(const CreateOptions& o) {
  if ((o.mode & 0600) != 0600 || (o.mode & ~0664u) != 0 || (o.mode & 0060) == 0020)
    return Error{Status::INVALID_ARGUMENT,
                 fmt::format("mode {:04o} suits no pool: its owner reads and writes it (0600), a "
                             "group may read (0040) and write (0060), others may read (0004)",
                             o.mode)};
  if (auto ok = core::check_watermarks(o.evict_high_permille, low_permille(o)); !ok) return ok;
  return core::check_times(o.times);
}

bh_superblock write_new_pool(Media& media, const bh_geometry& geometry,
                             const CreateOptions& options) {
  bh_superblock sb{};
  sb.magic = sb.magic_end = BH_SUPERBLOCK_MAGIC;
  sb.version = BH_FORMAT_VERSION;
  sb.compat = BH_FEATURES_COMPAT;
  sb.incompat = BH_FEATURES_INCOMPAT;
  sb.ro_compat = BH_FEATURES_RO_COMPAT;
  NativeAccess access(
      media, choose_flush_kind(geometry.host_count > 1 || media.traits().survives_power_loss));
  sb.pool_id[0] = access.random();
  sb.pool_id[1] = access.random();
  sb.created_unix_ns = access.unix_ns();
  sb.checksum_kind = BH_CHECKSUM_XXH3_TREE_4K;
  sb.seal_kind = 1;
  sb.evict_high_permille = options.evict_high_permille;
  sb.evict_low_permille = low_permille(options);
  sb.geometry = geometry;
  if (geometry.host_count > 1) {
    sb.heartbeat_ms = options.times.heartbeat_ms;
    sb.dead_ms = options.times.dead_ms;
    sb.grace_ms = options.times.grace_ms;
    sb.settle_ms = options.times.settle_ms;
    sb.reclaim_ms = options.times.reclaim_ms;
  }
  const core::Layout layout(geometry);
  core::write_new_regions(layout, core::Sealer(sb.pool_id),
                          [&](uint64_t at, uint64_t word) { access.store(at, word); });
  for (uint32_t host = 0; host < geometry.host_count; ++host) {
    access.publish(layout.part(host, BH_PART_OWN), 8 * geometry.extent_count);
    access.publish(layout.slot_line(host, 0), sizeof(bh_host_slot));
    access.publish(layout.part(host, BH_PART_HEARTBEAT), sizeof(bh_host_heartbeat));
  }
  // The superblock makes it a pool: it is stored last, and its first copy last of all.
  store_superblock(media, sb, 1);
  store_superblock(media, sb, 0);
  access.publish(0, 2 * BH_SUPERBLOCK_COPY_OFFSET);
  return sb;
}

}  // namespace

namespace {

/// Looks at host slots of a pool before it is opened.
struct SlotView {
  explicit SlotView(const OpenedMedia& opened)
      : access(*opened.media, choose_flush_kind(true)),
        context{access,
                core::Layout(opened.superblock.geometry),
                core::Sealer(opened.superblock.pool_id),
                0,
                {},
                0,
                0,
                0},
        hosts(context) {}
  NativeAccess access;
  core::Context<NativeAccess> context;
  core::Hosts<NativeAccess> hosts;
};

bool never_used(const OpenedMedia& opened, uint32_t host) {
  SlotView view(opened);
  const auto slot = view.hosts.read_slot(host);
  return slot && slot->incarnation == 0;
}

/// Slots that this machine may have had, judged by its own ids. The core decides whether it may
/// have them again.
std::vector<uint32_t> former_slots(const OpenedMedia& opened) {
  SlotView view(opened);
  std::vector<uint32_t> found;
  for (uint32_t h = 0; h < view.hosts.count(); ++h) {
    const auto slot = view.hosts.read_slot(h);
    const auto same = [](uint64_t id, uint64_t own) { return own != 0 && id == own; };
    if (slot && slot->incarnation != 0 &&
        (same(slot->boot_id, view.access.boot_id()) ||
         same(slot->hardware_id, view.access.hardware_id()) ||
         same(slot->machine_id, view.access.machine_id())))
      found.push_back(h);
  }
  return found;
}

/// Slots that no machine has; last those that a machine was about to take, and may have died.
std::vector<uint32_t> free_slots(const OpenedMedia& opened) {
  const uint32_t count = opened.superblock.geometry.host_count;
  SlotView view(opened);
  const auto first = static_cast<uint32_t>(view.access.machine_id() % count);
  std::vector<uint32_t> found, claimed;
  for (uint32_t i = 0; i < count; ++i) {
    const uint32_t h = (first + i) % count;
    const auto slot = view.hosts.read_slot(h);
    if (slot && (slot->incarnation == 0 || slot->state == BH_HOST_LEFT))
      (slot->claim == 0 ? found : claimed).push_back(h);
  }
  found.insert(found.end(), claimed.begin(), claimed.end());
  return found;
}

}  // namespace

class Pool::Impl {
 public:
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
    stop_threads();
    // To the other processes this one is dead; they undo its unfinished work.
    if (!attached_ || media_->failed()) return;
    core_.joining.detach();
    (void)media_->sync(0, media_->size_bytes());
  }

  static Result<Pool> open(const std::string& locator, const OpenOptions& options);
  static Result<void> destroy(const std::string& locator, bool force, const std::string& only_id);
  static Result<Pool> open(const std::string& locator, OpenedMedia opened, uint32_t host,
                           const OpenOptions& options) {
    Handle impl(new Impl(locator, std::move(opened), host, options.mirror_bytes));
    if (auto joined = impl->run([&] { return impl->attach(options.progress); }); !joined)
      return with_locator(locator, joined.error());
    return Pool(std::move(impl));
  }

  /// For a forked child, whose copy of this object may be in the middle of a change by a thread of
  /// the parent: only members that do not change while the pool is open can be destroyed.
  void let_go() { media_.reset(); }

  Result<void> attach(const Progress& progress) {
    if (observing()) return {};  // mapped read-only
    if (auto ok = protect(); !ok) return ok;
    if (auto ok = make_threads(); !ok) return ok;
    auto joined = core_.joining.attach(progress, [this] { heartbeat_thread_->resume(); });
    attached_ = static_cast<bool>(joined);
    // The process that replaced or destroyed it held the locks that this one waited for.
    if (joined && destroyed()) return Status::CLOSED;
    if (joined && worker_) worker_->resume();
    return joined;
  }

  Result<std::vector<std::string>> repair(bool take_over, const Progress& progress) {
    if (auto ok = protect(); !ok) return ok.error();
    if (auto ok = make_threads(); !ok) return ok.error();
    return core_.joining.repair(take_over, progress, [this] { heartbeat_thread_->resume(); });
  }

  /// Rule R1: memory of other hosts, and the superblock, can be read and not written. With several
  /// hosts the core asks for extents one by one, as they come and go.
  Result<void> protect() {
    const auto& g = superblock_.geometry;
    const core::Layout layout(g);
    const uint64_t own = g.regions_offset + host_ * g.region_bytes;
    if (auto ok = protect_between(0, own); !ok) return ok;
    if (g.host_count == 1) return {};
    return protect_between(own + g.region_bytes, layout.extent_offset(g.extent_count));
  }

  /// Runs an operation. If the medium fails before it is done, it may have read zeros, and its
  /// stores have reached no other process, whatever its result: then the failure is the result. The
  /// guard reports it before the first zero can be read.
  template <class Operation>
  auto run(Operation operation) const -> decltype(operation()) {
    if (left_) return Status::HOST_FENCED;
    if (!media_->failed()) {
      auto result = operation();
      if (!media_->failed()) return result;
    }
    const Error failure = with_locator(locator_, *media_->failure());
    if constexpr (std::is_same_v<decltype(operation()), Status>)
      return failure.status;
    else
      return failure;
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

  std::chrono::milliseconds heartbeat_period() const {
    return std::chrono::milliseconds(core::times_of(superblock_).heartbeat_ms);
  }
  /// Before the host joins: without these threads it could neither stay nor leave in order. Either
  /// ends when this life of the host is over: every operation that stores reports why.
  Result<void> make_threads() {
    if (superblock_.geometry.host_count == 1) return {};
    auto heartbeat_thread =
        Periodic::make(heartbeat_period(), [this] { return !!core_.membership.heartbeat(); });
    if (!heartbeat_thread) return heartbeat_thread.error();
    auto worker = Periodic::make(heartbeat_period(), [this] { return !!core_.membership.work(); });
    if (!worker) return worker.error();
    heartbeat_thread_ = std::move(*heartbeat_thread);
    worker_ = std::move(*worker);
    return {};
  }
  void stop_threads() {
    worker_.reset();
    heartbeat_thread_.reset();
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
  core::Core<NativeAccess> core_;
  CodedStore coded_;
  Events events_;
  uint32_t host_;
  bool attached_ = false;
  std::atomic<bool> destroyed_{false};
  std::atomic<uint64_t> looked_at_ns_{0};
  // Relaxed: estimates, which order nothing.
  std::atomic<uint64_t> refused_at_ns_{0};       ///< the last put that found no space; 0: none did
  std::atomic<uint64_t> ns_per_speed_bytes_{0};  ///< of gets; 0: not measured yet
  std::atomic<bool> left_{false};

  // Only with several hosts. Two threads, so that no work delays the heartbeat.
  std::unique_ptr<Periodic> heartbeat_thread_;
  std::unique_ptr<Periodic> worker_;
};

/// A forked child does not have the threads of a handle, but it has their locks and what they wait
/// on, in a state in which destroying them may wait for ever.
void Pool::Close::operator()(Impl* impl) const {
  if (impl->forked())
    impl->let_go();
  else
    delete impl;
}

Pool::Pool(Handle handle) : impl_(std::move(handle)) {}
Pool::Pool(Pool&&) noexcept = default;
Pool& Pool::operator=(Pool&&) noexcept = default;
Pool::~Pool() = default;

// ---- outside an open pool ----

Result<std::string> Pool::create(const std::string& locator, const CreateOptions& options) {
  if (auto ok = check_options(options); !ok) return ok.error();
  // Too small a size is refused as it was given, not as it would be rounded.
  const uint64_t rounded = options.size_bytes / kPoolGrain * kPoolGrain;
  const core::GeometryChoice choice{
      .total_bytes = options.size_bytes < core::kPoolBytesMin ? options.size_bytes : rounded,
      .hosts = options.hosts,
      .extent_bytes = options.extent_bytes,
      .min_block_bytes = options.min_block_bytes,
      .max_bytes = options.max_bytes};
  const auto geometry = core::plan_geometry(choice);
  if (!geometry) return with_locator(locator, geometry.error());
  MediaCreateOptions media_options{.size_bytes = choice.total_bytes,
                                   .mode = static_cast<mode_t>(options.mode)};
  std::optional<Doomed> old;
  if (options.replace) {
    auto doomed = open_doomed(locator, /*alone=*/true);
    // An object that is not a pool has no locks.
    const bool no_pool = doomed.status() == Status::NOT_A_POOL ||
                         doomed.status() == Status::VERSION_UNKNOWN ||
                         doomed.status() == Status::DAMAGED;
    if (doomed.status() == Status::IN_USE)
      return Error{Status::IN_USE,
                   locator + ": processes have this pool open; end them before you replace it"};
    if (!doomed && !no_pool && doomed.status() != Status::NO_SUCH_POOL) return doomed.error();
    media_options.replace = doomed || no_pool;
    if (doomed) {
      old = std::move(doomed).value();
      media_options.old = old->opened.media->id();
    }
  }
  bool replaced = false;
  std::string id;
  media_options.progress = [&](uint64_t done, uint64_t total) {
    if (options.progress) options.progress(done, total, "allocating memory");
    return !(options.cancelled && options.cancelled());
  };
  media_options.fill = [&](Media& media) -> Result<void> {
    // A medium that maps in larger grains than assumed: plan again for them.
    auto coarse = choice;
    coarse.align_bytes = std::max(geometry->region_align_bytes, media.traits().page_bytes);
    const auto planned = core::plan_geometry(coarse);
    if (!planned) return planned.error();
    id = pool_id_text(write_new_pool(media, *planned, options));
    auto synced = media.sync(0, media.size_bytes());
    if (auto failed = media.failure()) return *failed;
    return synced;
  };
  media_options.replaced = [&] {
    replaced = true;
    if (old) mark_destroyed(*old->opened.media, *old->access);
    old.reset();  // and its space is free
  };
  const auto media = create_media(locator, media_options);
  if (media) return id;
  auto error = with_locator(locator, media.error());
  if (replaced) error.detail += "; the pool that was there is gone";
  return error;
}

Result<Pool> Pool::open(const std::string& locator, const OpenOptions& options) {
  // A pool that was destroyed or replaced while it was opened is CLOSED: its name leads elsewhere.
  for (int look = 0; look < kMostLooks; ++look) {
    auto pool = Impl::open(locator, options);
    if (pool.status() != Status::CLOSED) return pool;
  }
  return always_replaced(locator);
}

/// Opens it as the host that the options name.
Result<Pool> Pool::Impl::open(const std::string& locator, const OpenOptions& options) {
  const bool observe = options.observe && options.host == kAnyHost;
  auto opened = open_with_superblock(locator, observe ? MediaUse::LOOK : MediaUse::STORE);
  if (!opened) return opened.error();
  const uint32_t count = opened->superblock.geometry.host_count;
  if (options.host != kAnyHost || observe || count == 1) {
    const uint32_t host = observe ? count : options.host == kAnyHost ? 0 : options.host;
    if (options.host != kAnyHost && host >= count)
      return Error{Status::INVALID_ARGUMENT,
                   fmt::format("{}: host {} is out of range: the pool was made for {} host(s), "
                               "numbered from 0",
                               locator, host, count)};
    return open(locator, std::move(opened).value(), host, options);
  }
  // Any host: one that this machine had, unless another machine runs as it now; else a free one.
  std::vector<uint32_t> hosts = former_slots(*opened);
  const std::vector<uint32_t> free = free_slots(*opened);
  hosts.insert(hosts.end(), free.begin(), free.end());
  for (const uint32_t host : hosts) {
    auto again = open_with_superblock(locator);
    if (!again) return again.error();
    // The slots belong to the pool that was there before.
    if (!same_pool(again->superblock, opened->superblock)) return Status::CLOSED;
    auto pool = open(locator, std::move(again).value(), host, options);
    if (pool || pool.status() != Status::HOST_ID_IN_USE) return pool;
  }
  return Error{Status::LIMIT_REACHED,
               fmt::format("{}: all {} host slots are taken; `bowhead pool info` lists them, "
                           "`bowhead pool leave` frees one, and if none of their machines runs "
                           "any more, `bowhead pool repair --take-over` frees all",
                           locator, count)};
}

Result<void> Pool::destroy(const std::string& locator, bool force, const std::string& only_id) {
  // CLOSED: the name leads to another object than the one that was looked at. Look again.
  for (int look = 0; look < kMostLooks; ++look) {
    auto destroyed = Impl::destroy(locator, force, only_id);
    if (destroyed.status() != Status::CLOSED) return destroyed;
  }
  return always_replaced(locator);
}

Result<void> Pool::Impl::destroy(const std::string& locator, bool force,
                                 const std::string& only_id) {
  auto doomed = open_doomed(locator, /*alone=*/!force);
  if (doomed.status() == Status::IN_USE)
    return Error{Status::IN_USE, locator +
                                     ": processes have this pool open; end them, or destroy "
                                     "it all the same with --force"};
  if (!doomed &&
      !(force && doomed.status() != Status::NO_SUCH_POOL && doomed.status() != Status::BAD_LOCATOR))
    return doomed.error();
  if (!only_id.empty() && (!doomed || pool_id_text(doomed->opened.superblock) != only_id))
    return Error{Status::NO_SUCH_POOL,
                 locator + ": the pool that was here was replaced by another, which stays"};
  const auto removed =
      remove_media(locator, doomed ? doomed->opened.media->id() : std::optional<MediaId>{});
  if (!removed) return with_locator(locator, removed.error());
  if (doomed) mark_destroyed(*doomed->opened.media, *doomed->access);
  return {};
}

Result<std::vector<std::string>> Pool::repair(const std::string& locator, bool take_over,
                                              const Progress& progress) {
  auto opened = open_with_superblock(locator);
  if (!opened) return opened.error();
  if (NativeAccess::is_locked_by_any(opened->media->lock_fd()))
    return Error{Status::IN_USE, locator + ": processes have this pool open; end them first"};
  std::vector<std::string> done;
  Media& media = *opened->media;
  const bh_superblock superblock = opened->superblock;
  for (uint32_t copy = 0; copy < BH_SUPERBLOCK_COPIES; ++copy) {
    if (holds_superblock(media, superblock, copy)) continue;
    store_superblock(media, superblock, copy);
    done.push_back(fmt::format("wrote superblock copy {} anew", copy));
  }
  const uint32_t hosts = superblock.geometry.host_count;
  for (uint32_t host = 0; host < hosts; ++host) {
    if (host > 0) opened = open_with_superblock(locator);
    if (!opened) return opened.error();
    if (!same_pool(opened->superblock, superblock))
      return Error{Status::BUSY, locator +
                                     ": the pool was replaced by another while it was being "
                                     "repaired; repair that one if it needs it"};
    if (hosts > 1 && never_used(*opened, host)) continue;
    Impl impl(locator, std::move(opened).value(), host);
    auto repaired = impl.run([&] { return impl.repair(take_over, progress); });
    if (!repaired) return with_locator(locator, repaired.error());
    for (std::string& text : *repaired)
      done.push_back(hosts == 1 ? text : fmt::format("host {}: {}", host, text));
    if (auto ok = impl.media().sync(0, impl.media().size_bytes()); !ok) return ok.error();
  }
  return done;
}

Result<void> Pool::leave() {
  if (const auto why = impl_->barred()) return *why;
  return impl_->run([&] { return impl_->leave(); });
}

Result<void> Pool::fence(uint32_t host) {
  if (const auto why = impl_->barred()) return *why;
  return impl_->run([&] { return impl_->core().membership.vouch_fenced(host); });
}

// ---- blocks ----

Result<NamespaceId> Pool::open_namespace(const NamespaceDescription& description) {
  if (impl_->forked()) return Status::FORKED;
  if (impl_->destroyed()) return impl_->closed();
  if (description.values.wipe && (impl_->superblock().ro_compat & BH_FEATURE_WIPING) == 0)
    return Error{Status::NOT_SUPPORTED,
                 "the pool was made by a Bowhead that does not overwrite freed blocks: make a new "
                 "pool for this namespace"};
  return impl_->run([&] { return impl_->coded().open_namespace(description); });
}

Result<void> Pool::remove_namespace(std::string_view name) {
  if (const auto why = impl_->barred()) return *why;
  return impl_->run([&] { return impl_->core().namespaces.remove_namespace(name); });
}

Result<ValueFormat> Pool::value_format(NamespaceId ns) {
  if (auto ok = impl_->may_read(ns); !ok) return ok.error();
  return *impl_->coded().format_of(ns);
}

Status Pool::put(NamespaceId ns, std::string_view key, std::span<const ConstSpan> value,
                 std::string_view user_metadata, const BlockAttributes& attributes) {
  if (auto ok = impl_->may_store(ns, key); !ok) return ok.status();
  const Status status = impl_->run(
      [&] { return impl_->coded().put(Key(ns, key), value, user_metadata, attributes); });
  impl_->note_refusal(status);
  return impl_->stored(status);
}

Result<uint64_t> Pool::get(NamespaceId ns, std::string_view key, std::span<const Span> buffers,
                           std::string* user_metadata) {
  if (auto ok = impl_->may_read(ns, key); !ok) return ok.error();
  // Of small gets the clock would be a part that counts.
  const bool timed = core::total_bytes(buffers) >= Impl::kSpeedBytes;
  const uint64_t begun_ns = timed ? impl_->now_ns() : 0;
  auto length =
      impl_->run([&] { return impl_->coded().get(Key(ns, key), buffers, user_metadata); });
  if (length && timed) impl_->note_copied(*length, impl_->now_ns() - begun_ns);
  return length;
}

Result<PrefixRead> Pool::get_prefix(NamespaceId ns, std::string_view key, uint32_t planes,
                                    std::span<const Span> buffers) {
  if (auto ok = impl_->may_read(ns, key); !ok) return ok.error();
  if (planes == 0) return Error{Status::INVALID_ARGUMENT, "no planes show nothing: ask for 1"};
  return impl_->run([&] { return impl_->coded().get_prefix(Key(ns, key), planes, buffers); });
}

Result<StoredValue> Pool::get_stored(NamespaceId ns, std::string_view key, Span buffer) {
  if (auto ok = impl_->may_read(ns, key); !ok) return ok.error();
  return impl_->run([&] { return impl_->coded().get_stored(Key(ns, key), buffer); });
}

Result<uint64_t> Pool::length(NamespaceId ns, std::string_view key) {
  if (auto ok = impl_->may_read(ns, key); !ok) return ok.error();
  return impl_->run([&]() -> Result<uint64_t> {
    const auto located = impl_->core().lookup.locate(Key(ns, key));
    if (!located) return Status::NOT_FOUND;
    return uint64_t{located->header.length_bytes};
  });
}

Result<uint64_t> Pool::exists(NamespaceId ns, std::span<const std::string_view> keys,
                              std::span<uint8_t> present) {
  if (auto ok = impl_->may_read(ns); !ok) return ok.error();
  if (present.size() != keys.size()) return Status::INVALID_ARGUMENT;
  return impl_->run([&]() -> Result<uint64_t> {
    uint64_t count = 0;
    for (size_t at = 0; at < keys.size();) {
      const size_t n = std::min(kBatch, keys.size() - at);
      count += impl_->core().lookup.exists(ns, keys.subspan(at, n), present.data() + at);
      at += n;
    }
    return count;
  });
}

Result<uint64_t> Pool::longest_prefix(NamespaceId ns, std::span<const std::string_view> keys) {
  if (auto ok = impl_->may_read(ns); !ok) return ok.error();
  return impl_->run([&]() -> Result<uint64_t> {
    std::vector<uint64_t> slots;
    bool gap = false;
    while (!gap && slots.size() < keys.size()) {
      uint8_t present[kBatch];
      uint64_t batch[kBatch];
      const size_t n = std::min(kBatch, keys.size() - slots.size());
      impl_->core().lookup.exists(ns, keys.subspan(slots.size(), n), present, batch);
      for (size_t i = 0; i < n && !gap; ++i) {
        gap = present[i] == 0;
        if (!gap) slots.push_back(batch[i]);
      }
    }
    impl_->core().reading.touch_slots(slots);
    return uint64_t{slots.size()};
  });
}

Status Pool::touch(NamespaceId ns, std::span<const std::string_view> keys) {
  if (auto ok = impl_->may_store(ns); !ok) return ok.status();
  return impl_->run([&]() -> Status {
    std::vector<uint64_t> slots(keys.size());
    for (size_t at = 0; at < keys.size();) {
      uint8_t present[kBatch];
      const size_t n = std::min(kBatch, keys.size() - at);
      impl_->core().lookup.exists(ns, keys.subspan(at, n), present, slots.data() + at);
      at += n;
    }
    impl_->core().reading.touch_slots(slots);
    return Status::OK;
  });
}

Result<Reservation> Pool::reserve(NamespaceId ns, std::string_view key, uint64_t length_bytes,
                                  std::string_view user_metadata,
                                  const BlockAttributes& attributes) {
  if (auto ok = impl_->may_store(ns, key); !ok) return ok.error();
  auto reserved = impl_->run([&] {
    const auto format = impl_->coded().format_of(ns);
    return impl_->core().writing.reserve(Key(ns, key), length_bytes, user_metadata, attributes,
                                         format && format->wipe);
  });
  impl_->note_refusal(reserved.status());
  return reserved;
}

Status Pool::commit(Reservation& reservation, const PayloadSum& sum) {
  if (const auto why = impl_->barred()) return why->status;
  const Status status = impl_->run([&] { return impl_->core().writing.commit(reservation, sum); });
  impl_->note_refusal(status);
  return impl_->stored(status);
}

Status Pool::abort(Reservation& reservation) {
  if (const auto why = impl_->barred()) return why->status;
  return impl_->run([&] { return impl_->core().writing.abort(reservation); });
}

Result<Lease> Pool::acquire(NamespaceId ns, std::string_view key, uint64_t ttl_ms, LeaseOf of) {
  if (auto ok = impl_->may_store(ns, key); !ok) return ok.error();
  if (auto ok = check_ttl(ttl_ms); !ok) return ok.error();
  return impl_->run([&] { return impl_->coded().acquire(Key(ns, key), ttl_ms, of); });
}

Status Pool::copy_leased(const Lease& lease, Span to) {
  if (const auto why = impl_->barred()) return why->status;
  return impl_->run([&] { return impl_->core().reading.copy_leased(lease, to); });
}

Status Pool::release(Lease& lease) {
  if (const auto why = impl_->barred()) return why->status;
  return impl_->run([&] { return impl_->core().reading.release(lease); });
}

Status Pool::remove(NamespaceId ns, std::string_view key) {
  if (auto ok = impl_->may_store(ns, key); !ok) return ok.status();
  return impl_->stored(impl_->run([&] { return impl_->core().writing.remove(Key(ns, key)); }));
}

namespace {

/// Calls part(items) for parts of a batch that the core takes at once. Items whose key no block can
/// have get KEY_TOO_LONG and are left out: they are few, so parts end at them.
template <class Item, class Part>
void for_each_part(std::span<Item> items, Part part) {
  for (size_t at = 0; at < items.size();) {
    size_t n = 0;
    while (n < kBatch && at + n < items.size() && Key::valid(items[at + n].key)) ++n;
    if (n > 0) part(items.subspan(at, n));
    at += n;
    if (n < kBatch && at < items.size()) items[at++].status = Status::KEY_TOO_LONG;
  }
}

template <class Item>
Status finish_batch(std::span<Item> items, Status status) {
  if (status == Status::OK) return status;
  for (Item& item : items) item.status = status;
  return status;
}

}  // namespace

Status Pool::put_batch(NamespaceId ns, std::span<PutItem> items) {
  if (auto ok = impl_->may_store(ns); !ok) return finish_batch(items, ok.status());
  return finish_batch(items, impl_->stored(impl_->run([&]() -> Status {
    for_each_part(items, [&](std::span<PutItem> part) { impl_->coded().put_all(ns, part); });
    for (const PutItem& item : items) impl_->note_refusal(item.status);
    return Status::OK;
  })));
}

Status Pool::get_batch(NamespaceId ns, std::span<GetItem> items) {
  for (GetItem& item : items) item.length_bytes = 0;
  if (auto ok = impl_->may_read(ns); !ok) return finish_batch(items, ok.status());
  const Status status = finish_batch(items, impl_->run([&]() -> Status {
    const uint64_t begun_ns = impl_->now_ns();
    for_each_part(items, [&](std::span<GetItem> part) { impl_->coded().get_all(ns, part); });
    uint64_t bytes = 0;
    for (const GetItem& item : items) bytes += item.length_bytes;
    impl_->note_copied(bytes, impl_->now_ns() - begun_ns);
    return Status::OK;
  }));
  if (status != Status::OK) {
    for (GetItem& item : items) item.length_bytes = 0;
  }
  return status;
}

Status Pool::remove_batch(NamespaceId ns, std::span<const std::string_view> keys,
                          std::span<Status> statuses) {
  if (keys.size() != statuses.size()) return Status::INVALID_ARGUMENT;
  const auto remove_all = [&]() -> Status {
    std::vector<Key> valid;
    std::vector<size_t> number;
    for (size_t at = 0; at < keys.size();) {
      valid.clear();
      number.clear();
      for (; at < keys.size() && valid.size() < kBatch; ++at) {
        statuses[at] = Status::KEY_TOO_LONG;
        if (!Key::valid(keys[at])) continue;
        valid.emplace_back(ns, keys[at]);
        number.push_back(at);
      }
      std::vector<Status> removed(valid.size());
      impl_->core().writing.remove_all(valid, removed);
      for (size_t i = 0; i < valid.size(); ++i) statuses[number[i]] = removed[i];
    }
    return Status::OK;
  };
  Status status = impl_->may_store(ns).status();
  if (status == Status::OK) status = impl_->stored(impl_->run(remove_all));
  if (status != Status::OK) std::ranges::fill(statuses, status);
  return status;
}

Result<Prefix> Pool::acquire_prefix(NamespaceId ns, std::span<const std::string_view> keys,
                                    uint64_t ttl_ms, uint64_t group) {
  if (group == 0 || keys.size() % group != 0)
    return Error{Status::INVALID_ARGUMENT,
                 fmt::format("{} keys are no whole number of groups of {}", keys.size(), group)};
  if (auto ok = impl_->may_store(ns); !ok) return ok.error();
  if (auto ok = check_ttl(ttl_ms); !ok) return ok.error();
  const auto stored = longest_prefix(ns, keys);
  if (!stored) return stored.error();
  Prefix prefix;
  Error stopped{Status::OK, {}};
  for (const std::string_view key : keys.first(*stored / group * group)) {
    auto lease = acquire(ns, key, ttl_ms, LeaseOf::STORED);
    if (!lease) {
      stopped = lease.error();
      break;
    }
    prefix.leases.push_back(std::move(*lease));
  }
  for (; prefix.leases.size() % group != 0; prefix.leases.pop_back())
    (void)release(prefix.leases.back());
  const bool lost = stopped.status == Status::NOT_FOUND || stopped.status == Status::COPY_ONLY ||
                    stopped.status == Status::UNSUPPORTED_CODEC;
  if (prefix.leases.empty() && stopped.status != Status::OK && !lost) return stopped;
  for (const Lease& lease : prefix.leases) {
    prefix.length_bytes += lease.length_bytes;
    prefix.stored_bytes += lease.stored_bytes;
  }
  // Each lease made its block the one used last.
  std::vector<uint64_t> slots;
  for (const Lease& lease : prefix.leases)
    slots.push_back(impl_->core().context().layout.slot_of(lease.offset));
  impl_->core().reading.touch_slots(slots);
  prefix.restore_ns = impl_->copy_time_ns(prefix.length_bytes);
  return prefix;
}

Result<std::shared_ptr<EventReader>> Pool::open_events(size_t capacity_bytes) {
  if (impl_->forked()) return Status::FORKED;
  return impl_->events().open(capacity_bytes);
}

Result<Pressure> Pool::pressure() {
  if (const auto why = impl_->barred()) return *why;
  return impl_->run([&]() -> Result<Pressure> {
    if (const Status standing = impl_->core().membership.standing(); standing != Status::OK)
      return standing;
    const auto used = impl_->core().space.used();
    return Pressure{static_cast<uint32_t>(used.space_permille),
                    static_cast<uint32_t>(used.index_permille), impl_->refused_lately()};
  });
}

Result<BlockInfo> Pool::describe(NamespaceId ns, std::string_view key) {
  if (auto ok = impl_->may_read(ns, key); !ok) return ok.error();
  return impl_->run([&] { return impl_->core().inspection.describe(Key(ns, key)); });
}

Result<void> Pool::set_attributes(NamespaceId ns, std::string_view key,
                                  const BlockAttributes& attributes) {
  if (auto ok = impl_->may_store(ns, key); !ok) return ok;
  return impl_->run([&]() -> Result<void> {
    const Key named(ns, key);
    const Status status = impl_->stored(impl_->core().attributes.set(named, attributes));
    const auto elsewhere =
        status == Status::NOT_FOUND ? impl_->core().inspection.writer_of(named) : std::nullopt;
    if (!elsewhere || elsewhere->host == impl_->core().context().host) return status;
    return Error{Status::NOT_SUPPORTED,
                 fmt::format("host {} has the block: only its processes can set the attributes",
                             elsewhere->host)};
  });
}

Error Pool::explain(Status status, NamespaceId ns, std::string_view key) {
  return impl_->explain(status, Key(ns, key));
}

// ---- the whole pool ----

Result<RecompressReport> Pool::recompress(uint64_t cold_ms) {
  if (const auto why = impl_->barred()) return *why;
  return impl_->run([&] { return impl_->coded().recompress(cold_ms); });
}

Status Pool::list(const std::function<bool(const BlockInfo&)>& visit) {
  if (impl_->forked()) return Status::FORKED;
  return impl_->run([&]() -> Status {
    impl_->core().inspection.list(visit);
    return Status::OK;
  });
}

Result<uint64_t> Pool::scavenge() {
  if (const auto why = impl_->barred()) return *why;
  return impl_->run([&]() -> Result<uint64_t> { return impl_->core().recovery.scavenge_dead(); });
}

Result<std::vector<uint64_t>> Pool::heartbeats() const {
  if (impl_->forked()) return Status::FORKED;
  return impl_->run([&]() -> Result<std::vector<uint64_t>> {
    std::vector<uint64_t> of_hosts;
    for (uint32_t host = 0; host < impl_->superblock().geometry.host_count; ++host)
      of_hosts.push_back(impl_->core().inspection.heartbeat_of(host));
    return of_hosts;
  });
}

Result<PoolInfo> Pool::info() {
  if (impl_->forked()) return Status::FORKED;
  return impl_->run([&]() -> Result<PoolInfo> {
    const bh_superblock& sb = impl_->superblock();
    PoolInfo info{};
    info.locator = impl_->locator();
    info.media_kind = impl_->media().traits().kind;
    info.media_description = impl_->media().traits().description;
    info.pool_id = pool_id_text(sb);
    info.format_version = sb.version;
    info.created_unix_ns = sb.created_unix_ns;
    info.compat = sb.compat;
    info.incompat = sb.incompat;
    info.ro_compat = sb.ro_compat;
    info.second_superblock_used = impl_->second_used();
    impl_->core().inspection.fill_info(info);
    return info;
  });
}

Result<std::vector<NamespaceUsage>> Pool::usage() {
  if (impl_->forked()) return Status::FORKED;
  return impl_->run(
      [&]() -> Result<std::vector<NamespaceUsage>> { return impl_->core().inspection.usage(); });
}

Result<CheckReport> Pool::check(bool payload, const Progress& progress) {
  if (impl_->forked()) return Status::FORKED;
  return impl_->run([&]() -> Result<CheckReport> {
    CheckReport report = impl_->core().inspection.check(payload, progress);
    for (uint32_t copy = 0; copy < BH_SUPERBLOCK_COPIES; ++copy) {
      if (holds_superblock(impl_->media(), impl_->superblock(), copy)) continue;
      report.findings.push_back(
          {fmt::format(
               "the {} copy of the superblock is damaged; the other is in use; `bowhead pool "
               "repair` writes it anew",
               copy == 0 ? "first" : "second"),
           false, uint64_t{copy} * BH_SUPERBLOCK_COPY_OFFSET});
    }
    return report;
  });
}

Error Pool::explain(Status status) const {
  if (status == Status::CLOSED && impl_->destroyed()) return impl_->closed();
  if (status == Status::MEDIA_ERROR) return media_failure().value_or(Error{status, {}});
  return {status, {}};
}

std::optional<Error> Pool::media_failure() const {
  auto failure = impl_->media().failure();
  if (failure) failure = with_locator(impl_->locator(), *failure);
  return failure;
}

ConstSpan Pool::mapping() const { return {impl_->media().base(), impl_->media().size_bytes()}; }

Result<MediaMapping> Pool::map_again() const {
  if (impl_->forked()) return Status::FORKED;
  return impl_->media().map_again();
}

}  // namespace bowhead
