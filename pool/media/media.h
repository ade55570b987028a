// SPDX-License-Identifier: Apache-2.0
// Media: where the bytes of a pool live. The pool knows this interface and no device.
//
// Locators: `shm:NAME` (tmpfs, or hugetlbfs when it has room), `file:/PATH` (fsdax or a regular
// file). Later: `dax:`, `numa:`, and several joined with `+`.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "base/status.h"
#include "pool/media/fault_guard.h"

namespace bowhead {

/// Sizes of media are multiples of this, and mappings are aligned to it: one huge page.
inline constexpr uint64_t kMediaGrainBytes = 2 << 20;

/// What a medium promises. Filled when it is opened; does not change.
struct MediaTraits {
  std::string kind;              ///< "shm", "file", ...
  std::string description;       ///< for people: path, page size, basis of its persistence
  uint64_t page_bytes = 4096;    ///< grain of protect() and of the mapping
  bool survives_reboot = false;  ///< bytes are there after a reboot in good order
  /// Published bytes are there after a power loss (CPU flushes suffice). If false, but
  /// survives_reboot: only the bytes that sync() wrote.
  bool survives_power_loss = false;
};

/// A whole medium in the addresses of this process, for as long as the object lives.
class MediaMapping {
 public:
  /// Maps the `size_bytes` of the file, shared, 2 MiB-aligned, as huge pages need it; readable, and
  /// `writable` or not. `path` is for people. Returns SYSTEM.
  static Result<MediaMapping> map(int fd, const std::string& path, uint64_t size_bytes,
                                  bool writable = true);
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

/// Identifies an object, whatever its name.
struct MediaId {
  uint64_t device = 0;
  uint64_t inode = 0;
  bool operator==(const MediaId&) const = default;
};

/// A mapped medium. The mapping is shared, at least 2 MiB aligned, and lives as long as the object;
/// readable, and writable until protect() says otherwise, unless it was opened to LOOK.
/// Thread-safe but for destruction.
class Media {
 public:
  virtual ~Media() = default;
  Media(const Media&) = delete;
  Media& operator=(const Media&) = delete;

  std::byte* base() const { return base_; }
  uint64_t size_bytes() const { return size_bytes_; }
  const MediaTraits& traits() const { return traits_; }
  /// False: opened to look, and no range of it can be made writable.
  bool writable() const { return writable_; }

  /// A descriptor of the medium's own inode, for byte-range locks (liveness of processes, joining):
  /// every process that can map the medium can take them, in whatever namespace it runs.
  /// Its open file is not the mapping's, which a forked child would keep open. Of a medium that was
  /// opened to LOOK it can be asked for locks and take none.
  int lock_fd() const { return lock_fd_; }

  /// A load or a store of the mapping failed (fault_guard.h). The mapping is no longer the
  /// medium's: its stores reach no other process, and its loads may return zeros.
  bool failed() const { return guard_.failed(); }
  /// MEDIA_ERROR with the range and the likely cause, if it failed.
  std::optional<Error> failure() const;

  /// False once no name leads to the object any more: it was removed, and goes with its last
  /// mapping. Costs a system call.
  bool has_name() const;

  /// Makes [offset, offset+size) read-only or writable for this process. Both must be multiples of
  /// traits().page_bytes. Returns MISALIGNED, INVALID_ARGUMENT (out of range), SYSTEM.
  virtual Result<void> protect(uint64_t offset, uint64_t size, bool writable) = 0;

  /// Maps the medium once more: all of it writable if writable(), whatever protect() says, at other
  /// addresses, which forked children do not have. It is for drivers of devices, which pin pages
  /// and want them writable: they refuse pages that protect() closed. The caller guarantees what
  /// protect() would have guaranteed. May outlive this object. Returns SYSTEM.
  Result<MediaMapping> map_again() const;

  std::optional<MediaId> id() const;

  /// Makes [offset, offset+size) survive as traits() promises; does nothing where publishing does
  /// that already. Returns SYSTEM.
  virtual Result<void> sync(uint64_t offset, uint64_t size) = 0;

 protected:
  Media() = default;
  /// Call it once base_, size_bytes_ and traits_ are set; unguard() before the mapping goes.
  void guard() { guard_ = FaultGuard(base_, size_bytes_, traits_.page_bytes); }
  void unguard() { guard_.reset(); }

  std::byte* base_ = nullptr;
  uint64_t size_bytes_ = 0;
  MediaTraits traits_;
  bool writable_ = true;
  int lock_fd_ = -1;

 private:
  FaultGuard guard_;
};

struct MediaCreateOptions {
  uint64_t size_bytes = 0;  ///< a multiple of kMediaGrainBytes, one or more
  /// An existing object at the locator loses its name to the new one: when that is whole, or before
  /// it is made if there is no room for both.
  bool replace = false;
  std::optional<MediaId> old = {};  ///< with `replace`: this object alone; another is POOL_EXISTS
  mode_t mode = 0600;               ///< permission bits, whatever the umask
  /// Called at least every 64 MiB with (bytes done, bytes in all), and once more before the object
  /// gets its name. False: stop, CANCELLED.
  std::function<bool(uint64_t done_bytes, uint64_t total_bytes)> progress = {};
  /// Called with the zero-filled medium before it gets its name, so that it appears filled or not
  /// at all. create_media() returns its error.
  std::function<Result<void>(Media& media)> fill = {};
  /// Called when the old object has lost its name (`replace`). Its space is free once no process
  /// maps it.
  std::function<void()> replaced = {};
};

/// Creates the object behind a locator, with all its space really allocated (a later store never
/// fails for want of memory) and zero-filled, and maps it. The object stays when the mapping goes.
/// Nothing is left behind on failure. Without `replace`, an existing object is POOL_EXISTS.
/// Returns BAD_LOCATOR, NOT_SUPPORTED, POOL_EXISTS, TOO_SMALL, MISALIGNED, MEDIUM_FULL, CANCELLED,
/// SYSTEM (also: `replace`, and the old object belongs to another user); the error names the path
/// and says what to do.
Result<std::unique_ptr<Media>> create_media(const std::string& locator,
                                            const MediaCreateOptions& options);

/// The use of an opened medium.
enum class MediaUse {
  /// Loads and stores. Refused (SYSTEM) unless the object belongs to this user, to root, or to a
  /// group of this process that may write it; and if every user may write it.
  STORE,
  LOOK,    ///< loads alone: read permission suffices, whatever its owner
  REMOVE,  ///< as STORE where permissions allow, else as LOOK; whatever its owner
};

/// Maps an existing object. Returns BAD_LOCATOR, NOT_SUPPORTED, NO_SUCH_POOL, NOT_A_POOL (it is a
/// directory, or empty), SYSTEM.
Result<std::unique_ptr<Media>> open_media(const std::string& locator,
                                          MediaUse use = MediaUse::STORE);

/// Removes the object behind a locator; mappings of it stay valid. Returns BAD_LOCATOR,
/// NOT_SUPPORTED, NO_SUCH_POOL, CLOSED (`only`: the locator leads to another object), SYSTEM.
Result<void> remove_media(const std::string& locator, const std::optional<MediaId>& only = {});

}  // namespace bowhead
