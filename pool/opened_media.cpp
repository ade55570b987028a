// SPDX-License-Identifier: Apache-2.0
#include "pool/opened_media.h"

#include <fmt/format.h>

#include <cctype>
#include <chrono>
#include <cstring>
#include <thread>

#include "pool/core/core.h"
#include "pool/core/layout.h"

namespace bowhead {

using core::NativeAccess;

namespace {

std::span<const std::byte> superblock_bytes(const Media& media, uint32_t copy) {
  const uint64_t at = uint64_t{copy} * BH_SUPERBLOCK_COPY_OFFSET;
  if (media.size_bytes() < at + sizeof(bh_superblock)) return {};
  return {media.base() + at, sizeof(bh_superblock)};
}

/// CLOSED: it was destroyed or replaced since it was opened, and the name leads elsewhere.
Result<void> read_superblock(const std::string& locator, MediaUse use, OpenedMedia& opened) {
  Media& media = *opened.media;
  auto superblock = core::read_superblock(
      superblock_bytes(media, 0), superblock_bytes(media, 1),
      {media.size_bytes(), media.media_count(), media.pool_id()}, &opened.second_used);
  if (auto failed = media.failure()) return with_locator(locator, *failed);
  if (!superblock && !media.has_name()) return Status::CLOSED;
  if (!superblock) return with_locator(locator, superblock.error());
  if (use != MediaUse::LOOK) {
    if (auto ok = core::check_writable(*superblock); !ok) return with_locator(locator, ok.error());
  }
  opened.superblock = *superblock;
  return use == MediaUse::REMOVE ? Result<void>{}
                                 : spread_media(*opened.media, superblock->geometry);
}

/// Joined media get their names, and lose them, one after the other: in between, some of them may
/// be missing or of another pool. Waits for that to end.
constexpr int kMostWaits = 20;
constexpr auto kWait = std::chrono::milliseconds(5);
Result<std::unique_ptr<Media>> open_joined(const std::string& locator, MediaUse use) {
  for (int wait = 0;; ++wait) {
    auto media = open_media(locator, use);
    const bool halfway = media.status() == Status::NO_SUCH_POOL ||
                         media.status() == Status::NOT_A_POOL || media.status() == Status::DAMAGED;
    if (!halfway || wait == kMostWaits || locator.find('+') == std::string::npos) return media;
    std::this_thread::sleep_for(kWait);
  }
}

/// The same for media that could be opened. False: it is time to report what was found.
bool wait_for_the_others(const Media& media, int looks) {
  if (media.media_count() == 1 || looks >= kMostWaits) return false;
  std::this_thread::sleep_for(kWait);
  return true;
}

}  // namespace

Error with_locator(const std::string& locator, const Error& error) {
  const std::string text = error.message();
  const size_t at = text.find(locator);
  // Another name may begin with this one.
  const size_t end = at + locator.size();
  const auto continues = [](char c) {
    return std::isalnum(static_cast<unsigned char>(c)) != 0 ||
           std::string_view("-_./+").find(c) != std::string_view::npos;
  };
  const bool named = at != std::string::npos && (end == text.size() || !continues(text[end]));
  return named ? error : Error{error.status, locator + ": " + text};
}

Error always_replaced(const std::string& locator) {
  return {Status::BUSY, locator + ": is destroyed or replaced time and again; try later"};
}

Result<void> spread_media(Media& media, const bh_geometry& g) {
  if (g.range_bytes != 0) {
    if (auto spread = media.spread(core::ranges_of(g, core::set_0(g)), core::offset_end(g));
        !spread)
      return spread;
  }
  media.contain_losses({g.payload_offset, core::extent_limit(g) * g.extent_bytes});
  return {};
}

Result<OpenedMedia> open_with_superblock(const std::string& locator, MediaUse use) {
  for (int look = 0; look < kMostLooks; ++look) {
    auto media = open_joined(locator, use);
    if (!media) return with_locator(locator, media.error());
    OpenedMedia opened{.media = std::move(media).value()};
    const auto read = read_superblock(locator, use, opened);
    if (read) return opened;
    if (read.status() != Status::CLOSED && !wait_for_the_others(*opened.media, look))
      return read.error();
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

bool holds_superblock(const Media& media, bh_superblock superblock, uint32_t copy) {
  core::seal_superblock(superblock, copy);
  return std::memcmp(superblock_bytes(media, copy).data(), &superblock, sizeof superblock) == 0;
}

void mark_destroyed(const Media& media, NativeAccess& access) {
  if (!media.writable()) return;
  for (uint32_t copy = 0; copy < BH_SUPERBLOCK_COPIES; ++copy) {
    const uint64_t at = uint64_t{copy} * BH_SUPERBLOCK_COPY_OFFSET;
    access.store(at + offsetof(bh_superblock, magic), BH_SUPERBLOCK_DESTROYED);
    access.publish(at, BH_LINE_BYTES);
  }
}

Result<Doomed> open_doomed(const std::string& locator, bool alone) {
  for (int look = 0; look < kMostLooks; ++look) {
    auto media = open_joined(locator, MediaUse::REMOVE);
    if (!media) return with_locator(locator, media.error());
    Doomed doomed{.opened = {.media = std::move(media).value()}};
    doomed.access = std::make_unique<NativeAccess>(*doomed.opened.media, choose_flush_kind(true));
    if (alone && doomed.access->lock_all() == core::LockResult::HELD) return Status::IN_USE;
    // The former holder of the locks may have removed or replaced it: then look at the name again.
    if (!doomed.opened.media->has_name()) continue;
    const auto read = read_superblock(locator, MediaUse::REMOVE, doomed.opened);
    if (read) return doomed;
    if (read.status() != Status::CLOSED && !wait_for_the_others(*doomed.opened.media, look))
      return read.error();
  }
  return always_replaced(locator);
}

Result<void> check_no_heartbeat(const std::string& locator, const Doomed& doomed) {
  if (!doomed.opened.media->traits().locks_by_node) return {};
  const auto opened = open_with_superblock(locator, MediaUse::LOOK);
  if (!opened) return {};  // it goes at this moment
  const bh_superblock& sb = opened->superblock;
  NativeAccess access(*opened->media, choose_flush_kind(true));
  const uint32_t hosts = sb.geometry.host_count;
  core::Core<NativeAccess> core(access, sb, hosts == 1 ? 0 : hosts, 0);
  const auto host = core.hosts().any_that_moves();
  if (!host) return {};
  return Error{Status::IN_USE,
               fmt::format("{}: another machine, or a process by another node of the device, as in "
                           "another container, has this pool open as host {}: its heartbeat moves; "
                           "end it first",
                           locator, *host)};
}

std::vector<Further> further_media(const std::string& locator, const OpenedMedia& doomed) {
  std::vector<Further> further;
  if (!core::grows(doomed.superblock)) return further;
  auto opened = open_with_superblock(locator, MediaUse::LOOK);
  if (!opened || !same_pool(opened->superblock, doomed.superblock)) return further;
  const bh_superblock& sb = opened->superblock;
  NativeAccess access(*opened->media, choose_flush_kind(true));
  const core::Core<NativeAccess> core(access, sb, sb.geometry.host_count, 0);
  for (const bh_set& set : core.growth.newest_table().sets) {
    if (set.state == BH_SET_NONE) continue;
    const std::string of_set(set.locator, strnlen(set.locator, sizeof set.locator));
    const auto media =
        open_media(of_set, MediaUse::LOOK, SetName{{sb.pool_id[0], sb.pool_id[1]}, set.id});
    if (media) further.push_back({(*media)->locator(), (*media)->ids()});
  }
  return further;
}

Result<uint64_t> size_or_capacity(const std::string& locator, uint64_t size_bytes, bool further) {
  if (size_bytes != 0) return size_bytes;
  const auto capacity = media_capacity(locator, further);
  if (!capacity) return with_locator(locator, capacity.error());
  if (*capacity) return **capacity;
  return Error{Status::TOO_SMALL,
               fmt::format("{}: give the size of the {} (`pool {} --size`): only devices have one "
                           "of their own",
                           locator, further ? "new media" : "pool", further ? "grow" : "create")};
}

}  // namespace bowhead
