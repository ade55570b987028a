// SPDX-License-Identifier: Apache-2.0
// Pool::open() and Pool::repair(): as which host, and all that this needs to know of the others.
#include <fmt/format.h>

#include <vector>

#include "pool/pool_impl.h"

namespace bowhead {

using core::NativeAccess;

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

Result<std::vector<std::string>> Pool::repair(const std::string& locator,
                                              const RepairOptions& options) {
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
  std::vector<uint32_t> used;
  for (uint32_t host = 0; host < hosts; ++host) {
    if (hosts == 1 || !never_used(*opened, host)) used.push_back(host);
  }
  for (const uint32_t host : used) {
    if (host != used.front()) opened = open_with_superblock(locator);
    if (!opened) return opened.error();
    if (!same_pool(opened->superblock, superblock))
      return Error{Status::BUSY, locator +
                                     ": the pool was replaced by another while it was being "
                                     "repaired; repair that one if it needs it"};
    Impl impl(locator, std::move(opened).value(), host);
    // Once the last one is repaired, no host can be using them.
    const auto missing = !options.give_up_missing ? core::Growth<NativeAccess>::Missing::REFUSED
                         : host == used.back()    ? core::Growth<NativeAccess>::Missing::GIVEN_UP
                                               : core::Growth<NativeAccess>::Missing::PASSED_OVER;
    auto repaired = impl.run([&] { return impl.repair(options, missing); });
    if (!repaired) return with_locator(locator, repaired.error());
    for (std::string& text : *repaired)
      done.push_back(hosts == 1 ? text : fmt::format("host {}: {}", host, text));
    if (auto ok = impl.media().sync(0, impl.media().size_bytes()); !ok) return ok.error();
  }
  return done;
}

}  // namespace bowhead
