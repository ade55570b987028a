// SPDX-License-Identifier: Apache-2.0
// Pool::create() and Pool::destroy().
#include <fmt/format.h>

#include <algorithm>

#include "base/random.h"
#include "pool/core/access.h"
#include "pool/core/layout.h"
#include "pool/opened_media.h"
#include "pool/pool.h"

namespace bowhead {

using core::NativeAccess;

namespace {

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

bh_superblock write_new_pool(Media& media, const std::string& locator, const bh_geometry& geometry,
                             const CreateOptions& options) {
  bh_superblock sb{};
  sb.magic = sb.magic_end = BH_SUPERBLOCK_MAGIC;
  sb.version = BH_FORMAT_VERSION;
  sb.compat = BH_FEATURES_COMPAT;
  if (media.media_count() > 1) {
    sb.incompat |= BH_FEATURE_JOINED;
    sb.media_count = static_cast<uint32_t>(media.media_count());
    if (locator.size() < sizeof sb.joined_as) locator.copy(sb.joined_as, locator.size());
  }
  if (geometry.range_bytes != 0) sb.incompat |= BH_FEATURE_GROWTH;
  sb.ro_compat = BH_FEATURES_RO_COMPAT;
  NativeAccess access(
      media, choose_flush_kind(geometry.host_count > 1 || media.traits().survives_power_loss));
  sb.pool_id[0] = media.pool_id()[0];
  sb.pool_id[1] = media.pool_id()[1];
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

/// CLOSED: the name leads to another object than the one that was looked at.
Result<void> destroy_once(const std::string& locator, bool force, const std::string& only_id) {
  auto doomed = open_doomed(locator, /*alone=*/!force);
  if (doomed.status() == Status::IN_USE)
    return Error{Status::IN_USE, locator +
                                     ": processes have this pool open; end them, or destroy "
                                     "it all the same with --force"};
  if (!doomed &&
      !(force && doomed.status() != Status::NO_SUCH_POOL && doomed.status() != Status::BAD_LOCATOR))
    return doomed.error();
  if (!force) {
    if (auto unused = check_no_heartbeat(locator, *doomed); !unused) return unused;
  }
  if (!only_id.empty() && (!doomed || pool_id_text(doomed->opened.superblock) != only_id))
    return Error{Status::NO_SUCH_POOL,
                 locator + ": the pool that was here was replaced by another, which stays"};
  const auto further = doomed ? further_media(locator, doomed->opened) : std::vector<Further>{};
  const auto removed = remove_media(
      locator, doomed ? doomed->opened.media->ids() : std::vector<std::optional<MediaId>>{});
  if (!removed) return with_locator(locator, removed.error());
  for (const Further& set : further) (void)remove_media(set.locator, set.ids);
  if (doomed) mark_destroyed(*doomed->opened.media, *doomed->access);
  return {};
}

}  // namespace

Result<std::string> Pool::create(const std::string& locator, const CreateOptions& options) {
  if (auto ok = check_options(options); !ok) return ok.error();
  const auto wanted = size_or_capacity(locator, options.size_bytes, /*further=*/false);
  if (!wanted) return wanted.error();
  const uint64_t size_bytes = *wanted;
  // Too small a size is refused as it was given, not as it would be rounded.
  const uint64_t rounded = size_bytes / kPoolGrain * kPoolGrain;
  const core::GeometryChoice choice{
      .total_bytes = size_bytes < core::kPoolBytesMin ? size_bytes : rounded,
      .hosts = options.hosts,
      .extent_bytes = options.extent_bytes,
      .min_block_bytes = options.min_block_bytes,
      .max_bytes = options.max_bytes,
      .grows = options.max_bytes > rounded};
  const auto geometry = core::plan_geometry(choice);
  if (!geometry) return with_locator(locator, geometry.error());
  MediaCreateOptions media_options{.size_bytes = choice.total_bytes,
                                   .replace = options.replace,
                                   .mode = static_cast<mode_t>(options.mode),
                                   .pool_id = {random_u64_from_os(), random_u64_from_os()}};
  std::optional<Doomed> old;
  std::vector<Further> further;  // of the old pool
  if (options.replace) {
    auto doomed = open_doomed(locator, /*alone=*/true);
    const bool no_pool =
        doomed.status() == Status::NOT_A_POOL || doomed.status() == Status::VERSION_UNKNOWN ||
        doomed.status() == Status::DAMAGED || doomed.status() == Status::NO_SUCH_POOL;
    if (doomed.status() == Status::IN_USE)
      return Error{Status::IN_USE,
                   locator + ": processes have this pool open; end them before you replace it"};
    if (!doomed && !no_pool) return doomed.error();
    if (doomed) {
      if (auto unused = check_no_heartbeat(locator, *doomed); !unused) return unused.error();
      old = std::move(doomed).value();
      further = further_media(locator, old->opened);
      media_options.old = old->opened.media->ids().front();
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
    if (auto spread = spread_media(media, *planned); !spread) return spread;
    id = pool_id_text(write_new_pool(media, locator, *planned, options));
    auto synced = media.sync(0, media.size_bytes());
    if (auto failed = media.failure()) return *failed;
    return synced;
  };
  media_options.replaced = [&] {
    replaced = true;
    if (old) mark_destroyed(*old->opened.media, *old->access);
    for (const Further& set : further) (void)remove_media(set.locator, set.ids);
    old.reset();  // and its space is free
  };
  const auto media = create_media(locator, media_options);
  if (media) return id;
  auto error = with_locator(locator, media.error());
  if (replaced) error.detail += "; the pool that was there is gone";
  return error;
}

Result<void> Pool::destroy(const std::string& locator, bool force, const std::string& only_id) {
  for (int look = 0; look < kMostLooks; ++look) {
    auto destroyed = destroy_once(locator, force, only_id);
    if (destroyed.status() != Status::CLOSED) return destroyed;
  }
  return always_replaced(locator);
}

}  // namespace bowhead
