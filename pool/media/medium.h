// SPDX-License-Identifier: Apache-2.0
// Medium: one object that has bytes, such as a memory file or a device, by its descriptors. Each
// kind has a driver, which makes, opens and removes its objects; Media (media.h) maps them.
#pragma once

#include <sys/mman.h>
#include <sys/types.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "base/unique_fd.h"

namespace bowhead {

class Media;

/// Sizes of media are multiples of this, and mappings are aligned to it: one huge page.
inline constexpr uint64_t kMediaGrainBytes = 2 << 20;

/// What a medium promises. Filled when it is opened; does not change.
struct MediaTraits {
  std::string kind;              ///< "shm", "file", ...
  std::string description;       ///< for people: path, page size, basis of its persistence
  uint64_t page_bytes = 4096;    ///< grain of protect() and of the mapping
  bool survives_reboot = false;  ///< bytes are there after a reboot in good order
  /// Locks are those of the device node by which it was opened: processes that open it by another
  /// node, as in another container, do not see them.
  bool locks_by_node = false;
  /// Published bytes are there after a power loss (CPU flushes suffice). If false, but
  /// survives_reboot: only the bytes that sync() wrote.
  bool survives_power_loss = false;
};

/// Identifies an object, whatever its name.
struct MediaId {
  uint64_t device = 0;
  uint64_t inode = 0;
  bool operator==(const MediaId&) const = default;
};

/// Which further set of a pool media are (format/medium.h).
struct SetName {
  std::array<uint64_t, 2> pool_id = {};
  uint64_t id = 0;
};

struct MediaCreateOptions {
  uint64_t size_bytes = 0;  ///< a multiple of kMediaGrainBytes, one or more
  /// An existing object at the locator loses its name to the new one: when that is whole, or before
  /// it is made if there is no room for both. Data on a persistent device may be overwritten.
  bool replace = false;
  /// With `replace`: this object alone, of joined ones the first; another is POOL_EXISTS. The
  /// caller has made sure that no process has a pool there open.
  std::optional<MediaId> old = {};
  mode_t mode = 0600;                    ///< permission bits, whatever the umask
  std::array<uint64_t, 2> pool_id = {};  ///< for the labels of joined media
  std::optional<SetName> set = {};       ///< a further set of a pool: all its media have labels
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

/// The use of an opened medium.
enum class MediaUse {
  /// Loads and stores. Refused (SYSTEM) unless the object belongs to this user, to root, or to a
  /// group of this process that may write it; and if every user may write it.
  STORE,
  LOOK,    ///< loads alone: read permission suffices, whatever its owner
  REMOVE,  ///< as STORE where permissions allow, else as LOOK; whatever its owner
};

/// An object that is open, or in the making. Not thread-safe but for const functions.
class Medium {
 public:
  virtual ~Medium() = default;
  Medium(const Medium&) = delete;
  Medium& operator=(const Medium&) = delete;

  /// To be mapped through, whole, with mmap_flags().
  int fd() const { return fd_.get(); }
  int mmap_flags() const { return mmap_flags_; }
  /// A descriptor of the medium's own inode, for byte-range locks. Its open file is not that of
  /// fd(): a mapping holds on to the open file that it was made through, and so does every forked
  /// child that inherits the mapping, for as long as it lives.
  int lock_fd() const { return lock_fd_.get(); }
  uint64_t size_bytes() const { return size_bytes_; }
  const MediaTraits& traits() const { return traits_; }
  bool writable() const { return writable_; }

  virtual std::optional<MediaId> id() const;
  /// False once no name leads to the object any more. Costs a system call.
  virtual bool has_name() const;
  /// Gives an object in the making its name. Without this it goes with the Medium. Returns
  /// POOL_EXISTS (another process was faster), CANCELLED, SYSTEM.
  virtual Result<void> keep(const MediaCreateOptions& options) = 0;

 protected:
  Medium() = default;
  /// Sets lock_fd(), from fd(). Returns SYSTEM.
  Result<void> open_locks();

  UniqueFd fd_;
  UniqueFd lock_fd_;
  uint64_t size_bytes_ = 0;
  MediaTraits traits_;
  bool writable_ = true;
  int mmap_flags_ = MAP_SHARED;
};

/// A kind of medium: turns the rest of a locator, behind its "scheme:", into a Medium. The statuses
/// are those of create_media(), open_media() and remove_media(); sizes were checked before.
struct MediumDriver {
  std::string_view scheme;
  std::string_view usage;  ///< the form of a locator, for messages; empty: not for people
  /// An object in the making: zeros, all its space allocated.
  Result<std::unique_ptr<Medium>> (*make)(const std::string& rest,
                                          const MediaCreateOptions& options);
  Result<std::unique_ptr<Medium>> (*open)(const std::string& rest, MediaUse use);
  Result<void> (*remove)(const std::string& rest, const std::optional<MediaId>& only);
  /// The size of the object, where one has a size before it is made. Null: it is made in any size.
  Result<uint64_t> (*capacity)(const std::string& rest) = nullptr;
  /// All objects of this machine, where machines may name one object differently. Null: one name.
  std::vector<std::string> (*all)() = nullptr;
};

extern const MediumDriver kShmDriver;
extern const MediumDriver kFileDriver;
extern const MediumDriver kNumaDriver;
extern const MediumDriver kDaxDriver;
extern const MediumDriver kDescriptorDriver;

}  // namespace bowhead
