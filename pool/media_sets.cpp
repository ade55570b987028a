// SPDX-License-Identifier: Apache-2.0
// Pool::grow(), Pool::drain(), Pool::shrink().
#include <fmt/format.h>

#include "pool/pool_impl.h"

namespace bowhead {
namespace {

/// To the end of a scope no duties run.
class PausedDuties {
 public:
  explicit PausedDuties(Periodic* worker) : worker_(worker) {
    if (worker_ != nullptr) worker_->pause();
  }
  ~PausedDuties() {
    if (worker_ != nullptr) worker_->resume();
  }
  PausedDuties(const PausedDuties&) = delete;
  PausedDuties& operator=(const PausedDuties&) = delete;

 private:
  Periodic* const worker_;
};

}  // namespace

Result<uint64_t> Pool::grow(const std::string& locator, const GrowOptions& options) {
  if (const auto why = impl_->barred()) return *why;
  return impl_->run([&] { return impl_->grow(locator, options); });
}

Result<uint64_t> Pool::Impl::grow(const std::string& locator, const GrowOptions& options) {
  if (!core_.growth.possible())
    return Error{Status::NOT_SUPPORTED,
                 locator_ +
                     ": the pool cannot grow: it was made without a maximum size (`pool "
                     "create --max-size`)"};
  bh_set set{};
  if (locator.size() >= sizeof set.locator)
    return Error{Status::BAD_LOCATOR,
                 fmt::format("a locator of {} bytes: pools grow by locators of {} bytes at most",
                             locator.size(), sizeof set.locator - 1)};
  locator.copy(set.locator, locator.size());
  const auto wanted = size_or_capacity(locator, options.size_bytes, /*further=*/true);
  if (!wanted) return wanted.error();
  set.bytes = *wanted / kPoolGrain * kPoolGrain;
  const auto& g = superblock_.geometry;
  uint64_t bytes = g.total_bytes;
  for (const bh_set& other : core_.growth.newest_table().sets) bytes += other.bytes;
  if (set.bytes > g.max_bytes - std::min(bytes, g.max_bytes))
    return Error{Status::LIMIT_REACHED,
                 fmt::format("{}: the pool has {} MiB and was made to grow to {} MiB at most: {} "
                             "MiB more are too many",
                             locator, bytes >> 20, g.max_bytes >> 20, set.bytes >> 20)};
  set.id = access_.random() | 1;
  MediaCreateOptions media_options{.size_bytes = set.bytes,
                                   .replace = options.replace,
                                   .mode = media_->mode(),
                                   .pool_id = {superblock_.pool_id[0], superblock_.pool_id[1]},
                                   .set = name_of(set)};
  media_options.progress = [&](uint64_t done, uint64_t total) {
    if (options.progress) options.progress(done, total, "allocating memory");
    return !(options.cancelled && options.cancelled());
  };
  auto media = create_media(locator, media_options);
  if (!media) return with_locator(locator, media.error());
  set.bytes = (*media)->size_bytes();  // whole stripes
  const auto ids = (*media)->ids();
  media->reset();
  bool unused = true;
  const auto added = change_sets([&] { return core_.growth.add(set, &unused, duties()); });
  if (added) return added->extent_count * g.extent_bytes;
  auto error = with_locator(locator, added.error());
  if (unused)
    (void)remove_media(locator, ids);
  else
    error.detail +=
        "; what was made there stays, since some host may use it: once none does, `pool grow "
        "--force` takes its place";
  return error;
}

/// Threads of one process share its host lock: the thread with duties would let go of it.
template <class Change>
auto Pool::Impl::change_sets(Change change) -> decltype(change()) {
  const std::lock_guard one_thread(sets_mutex_);
  const PausedDuties paused(worker_.get());
  const core::HostLock lock(core_.context(), /*locked=*/false, core::kHostLockWaitMs);
  if (!lock.held())
    return Error{Status::BUSY,
                 "another process of this host has been opening the pool, or changing its media, "
                 "for 10 seconds: try again"};
  return change();
}

/// All zero if there is none.
bh_set Pool::Impl::stored_set(uint32_t number) {
  for (const bh_set& set : core_.growth.newest_table().sets) {
    if (set.state != BH_SET_NONE && set.number == number) return set;
  }
  return {};
}

Result<void> Pool::drain(uint32_t set, const DrainOptions& options) {
  if (const auto why = impl_->barred()) return *why;
  return impl_->run([&] { return impl_->drain(set, options); });
}

Result<void> Pool::Impl::drain(uint32_t number, const DrainOptions& options) {
  if (number == 0)
    return Error{Status::INVALID_ARGUMENT,
                 locator_ + ": set 0 is what the pool was made on: it stays for its life"};
  auto begun = change_sets([&] {
    return options.undo ? core_.growth.end_drain(number, duties())
                        : core_.growth.begin_drain(number, duties());
  });
  if (!begun) return with_locator(locator_, begun.error());
  const bh_set stored = stored_set(number);
  const auto set = core::place_set(superblock_.geometry, stored);
  if (options.undo || !set) return {};
  constexpr uint64_t kStuckNs = 10'000'000'000;
  uint64_t all = 0, left = UINT64_MAX, moved_at_ns = access_.now_ns();
  for (;;) {
    const uint64_t now = core_.inspection.used_bytes_on(*set);
    all = std::max(all, now);
    if (options.progress) options.progress(all - now, all, "moving blocks");
    const uint64_t now_ns = access_.now_ns();
    if (now < left) moved_at_ns = now_ns;
    left = std::min(left, now);
    if (core_.growth.hosts_on(core_.growth.table(), number) == 0) return {};
    if (const Status standing = core_.membership.standing(); standing != Status::OK)
      return standing;
    if (options.cancelled && options.cancelled()) return Status::CANCELLED;
    if (now_ns - moved_at_ns >
        kStuckNs + uint64_t{4} * core::times_of(superblock_).dead_ms * 1'000'000)
      return Error{
          Status::NO_SPACE,
          fmt::format("{}: some {} MiB of blocks stay on set {}: there is no room for them "
                      "elsewhere, or they are pinned or leased. Make room and drain it "
                      "again, or let it take blocks again (`pool drain --undo`)",
                      locator_, (now + (1 << 20) - 1) >> 20, number)};
    access_.sleep_ns(20'000'000);
  }
}

Result<void> Pool::shrink(uint32_t set) {
  if (const auto why = impl_->barred()) return *why;
  return impl_->run([&] { return impl_->shrink(set); });
}

Result<void> Pool::Impl::shrink(uint32_t number) {
  if (number == 0)
    return Error{Status::INVALID_ARGUMENT,
                 locator_ + ": set 0 is what the pool was made on: it stays for its life"};
  const bh_set stored = stored_set(number);
  std::string media(stored.locator, strnlen(stored.locator, sizeof stored.locator));
  std::vector<std::optional<MediaId>> ids;
  if (const auto opened = open_media(media, MediaUse::LOOK, name_of(stored))) {
    media = (*opened)->locator();
    ids = (*opened)->ids();
  }
  bool gone = false;
  const auto removed = change_sets([&] { return core_.growth.remove(number, &gone, duties()); });
  if (gone && !ids.empty()) (void)remove_media(media, ids);
  return removed ? removed : with_locator(locator_, removed.error());
}

}  // namespace bowhead
