// SPDX-License-Identifier: Apache-2.0
// The media of a pool with its superblock, before a handle is made of them: to open, to remove or
// to replace it.
#pragma once

#include <bowhead/format/superblock.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/status.h"
#include "pool/core/access.h"
#include "pool/media/media.h"

namespace bowhead {

/// Sizes of pools and of media by which they grow are multiples of this.
inline constexpr uint64_t kPoolGrain = uint64_t{2} << 20;

struct OpenedMedia {
  std::unique_ptr<Media> media;
  bh_superblock superblock{};
  bool second_used = false;  ///< the first copy is damaged
};

/// The same error, with the locator if it does not name it yet.
Error with_locator(const std::string& locator, const Error& error);

/// How often a locator is looked up again because the pool there was destroyed or replaced since.
inline constexpr int kMostLooks = 100;
/// The error after that.
Error always_replaced(const std::string& locator);

/// Opens the media of a pool and reads its superblock; unless they are to be removed, they are
/// mapped at the pool's offsets. Returns NO_SUCH_POOL, NOT_A_POOL, VERSION_UNKNOWN, DAMAGED, BUSY,
/// and the statuses of open_media().
Result<OpenedMedia> open_with_superblock(const std::string& locator,
                                         MediaUse use = MediaUse::STORE);
/// Maps set 0 where a pool that can grow has it.
Result<void> spread_media(Media& media, const bh_geometry& g);

std::string pool_id_text(const bh_superblock& superblock);
bool same_pool(const bh_superblock& a, const bh_superblock& b);

void store_superblock(Media& media, bh_superblock superblock, uint32_t copy);
/// Whether that copy on the medium is exactly this superblock.
bool holds_superblock(const Media& media, bh_superblock superblock, uint32_t copy);

/// A pool that is about to lose its name.
struct Doomed {
  OpenedMedia opened;
  std::unique_ptr<core::NativeAccess> access;
};
/// Opens a pool that is to be removed or replaced. `alone`: with all its locks, so that no process
/// of this machine has it open, and none opens it, until the object goes; IN_USE otherwise.
Result<Doomed> open_doomed(const std::string& locator, bool alone);
/// For devices, which processes reach that this one's locks do not show (of other machines, or by
/// other nodes): IN_USE if the heartbeat of a host moves. Takes dead_ms, or a second, if a host did
/// not leave.
Result<void> check_no_heartbeat(const std::string& locator, const Doomed& doomed);
/// Reports a lost name to the processes that have the object mapped. If the medium is not writable,
/// they learn it from the lost name itself (Pool::Impl::destroyed()).
void mark_destroyed(const Media& media, core::NativeAccess& access);

/// Media by which a pool has grown, for their removal.
struct Further {
  std::string locator;
  std::vector<std::optional<MediaId>> ids;
};
/// Those that can be opened here.
std::vector<Further> further_media(const std::string& locator, const OpenedMedia& doomed);

/// The size that the caller gave, or that of all devices together. `further`: of a further set.
/// Returns TOO_SMALL (nobody gave one), and the statuses of media_capacity().
Result<uint64_t> size_or_capacity(const std::string& locator, uint64_t size_bytes, bool further);

}  // namespace bowhead
