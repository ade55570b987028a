// SPDX-License-Identifier: Apache-2.0
// Media: where the bytes of a pool live. The pool knows this interface and no device.
//
// Locators: `shm:NAME` (tmpfs, or hugetlbfs when it has room), `numa:NODE/NAME` (the same on one
// NUMA node), `dax:/dev/daxX.Y` (CXL or persistent memory as a device), `file:/PATH` (fsdax or a
// regular file). Later: several joined with `+`.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "base/status.h"
#include "pool/media/fault_guard.h"
#include "pool/media/medium.h"

namespace bowhead {

/// A whole medium in the addresses of this process, for as long as the object lives.
class MediaMapping {
 public:
  /// Maps its first bytes through `fd`, shared, 2 MiB-aligned, as huge pages need it; readable, and
  /// writable if the medium is. Returns SYSTEM.
  static Result<MediaMapping> map(const Medium& medium, int fd, uint64_t size_bytes);
  MediaMapping() = default;  ///< of nothing: base() is null
  MediaMapping(MediaMapping&& other) noexcept;
  MediaMapping& operator=(MediaMapping&& other) noexcept;
  ~MediaMapping();

  std::byte* base() const { return base_; }
  uint64_t size_bytes() const { return size_bytes_; }

 private:
  std::byte* base_ = nullptr;
  uint64_t size_bytes_ = 0;
};

/// A mapped medium. The mapping is shared, at least 2 MiB aligned, and lives as long as the object;
/// readable, and writable until protect() says otherwise, unless it was opened to LOOK.
/// Thread-safe but for destruction.
class Media {
 public:
  /// Returns SYSTEM.
  static Result<std::unique_ptr<Media>> map(std::unique_ptr<Medium> medium);
  Media(const Media&) = delete;
  Media& operator=(const Media&) = delete;
  ~Media();

  std::byte* base() const { return mapping_.base(); }
  uint64_t size_bytes() const { return mapping_.size_bytes(); }
  const MediaTraits& traits() const { return medium_->traits(); }
  /// False: opened to look, and no range of it can be made writable.
  bool writable() const { return medium_->writable(); }

  /// For byte-range locks (liveness of processes, joining): every process that can map the medium
  /// can take them, in whatever namespace it runs. Of a medium that was opened to LOOK it can be
  /// asked for locks and take none.
  int lock_fd() const { return medium_->lock_fd(); }

  /// A load or a store of the mapping failed (fault_guard.h). The mapping is no longer the
  /// medium's: its stores reach no other process, and its loads may return zeros.
  bool failed() const { return guard_.failed(); }
  /// MEDIA_ERROR with the range and the likely cause, if it failed.
  std::optional<Error> failure() const;

  /// False once no name leads to the object any more: it was removed, and goes with its last
  /// mapping. Costs a system call.
  bool has_name() const;
  std::optional<MediaId> id() const { return medium_->id(); }

  /// Makes [offset, offset+size) read-only or writable for this process. Both must be multiples of
  /// traits().page_bytes. Returns MISALIGNED, INVALID_ARGUMENT (out of range), SYSTEM.
  Result<void> protect(uint64_t offset, uint64_t size, bool writable);

  /// Maps the medium once more: all of it writable if writable(), whatever protect() says, at other
  /// addresses, which forked children do not have. It is for drivers of devices, which pin pages
  /// and want them writable: they refuse pages that protect() closed. The caller guarantees what
  /// protect() would have guaranteed. May outlive this object. Returns SYSTEM.
  Result<MediaMapping> map_again() const;

  /// Makes [offset, offset+size) survive as traits() promises; does nothing where publishing does
  /// that already. Returns INVALID_ARGUMENT (out of range), SYSTEM.
  Result<void> sync(uint64_t offset, uint64_t size);

 private:
  friend Result<std::unique_ptr<Media>> create_media(const std::string& locator,
                                                     const MediaCreateOptions& options);
  Media() = default;

  std::unique_ptr<Medium> medium_;
  MediaMapping mapping_;
  FaultGuard guard_;  ///< of the mapping, which goes after it
};

/// Creates the object behind a locator, with all its space really allocated (a later store never
/// fails for want of memory) and zero-filled, and maps it. The object stays when the mapping goes.
/// Nothing is left behind on failure. Without `replace`, an existing object is POOL_EXISTS.
/// Returns BAD_LOCATOR, NOT_SUPPORTED, POOL_EXISTS, TOO_SMALL, MISALIGNED, MEDIUM_FULL, CANCELLED,
/// SYSTEM (also: `replace`, and the old object belongs to another user); of a device also IN_USE
/// (processes have a former pool there open) and MEDIA_ERROR; the error names the path and says
/// what to do. A device has no name: if this fails once it began, its former content is lost.
Result<std::unique_ptr<Media>> create_media(const std::string& locator,
                                            const MediaCreateOptions& options);

/// Maps an existing object. Returns BAD_LOCATOR, NOT_SUPPORTED, NO_SUCH_POOL, NOT_A_POOL (it is a
/// directory, or empty), SYSTEM.
Result<std::unique_ptr<Media>> open_media(const std::string& locator,
                                          MediaUse use = MediaUse::STORE);

/// Removes the object behind a locator; mappings of it stay valid. Returns BAD_LOCATOR,
/// NOT_SUPPORTED, NO_SUCH_POOL, CLOSED (`only`: the locator leads to another object), SYSTEM.
Result<void> remove_media(const std::string& locator, const std::optional<MediaId>& only = {});

}  // namespace bowhead
