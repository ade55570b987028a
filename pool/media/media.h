// SPDX-License-Identifier: Apache-2.0
// Media: where the bytes of a pool live. The pool knows this interface and no device.
//
// Locators: `shm:NAME` (tmpfs, or hugetlbfs when it has room), `numa:NODE/NAME` (the same on one
// NUMA node), `dax:/dev/daxX.Y` (CXL or persistent memory as a device), `file:/PATH` (fsdax or a
// regular file), or several of these joined with `+`: the bytes lie on all of them in stripes
// (stripes.h), so that a large value is read from all at once. For programs: `fd:NUMBER`, memory
// whose descriptor this process was given.
#pragma once

#include <bowhead/format/medium.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"
#include "pool/media/fault_guard.h"
#include "pool/media/medium.h"
#include "pool/media/stripes.h"

namespace bowhead {

/// Media in the addresses of this process, for as long as the object lives.
class MediaMapping {
 public:
  struct Part {
    const Medium* medium = nullptr;
    int fd = -1;          ///< through which it is mapped
    uint64_t offset = 0;  ///< in the medium
    uint64_t place = 0;   ///< in the mapping
    uint64_t bytes = 0;
  };
  /// Maps the parts at their places, shared, 2 MiB-aligned, as huge pages need it; readable, and
  /// writable if their media are. Between them, up to `size_bytes`, are zeros of this process
  /// alone, which take no memory. Returns SYSTEM.
  static Result<MediaMapping> map(const std::vector<Part>& parts, uint64_t size_bytes);
  /// The first bytes of a medium.
  static Result<MediaMapping> map(const Medium& medium, int fd, uint64_t size_bytes) {
    return map({{&medium, fd, 0, 0, size_bytes}}, size_bytes);
  }
  /// Maps these parts too. After an error zeros are at all their places.
  Result<void> add(const std::vector<Part>& parts);
  /// Puts zeros in the place of parts.
  Result<void> remove(const std::vector<Range>& ranges);
  MediaMapping() = default;  ///< of nothing: base() is null
  MediaMapping(MediaMapping&& other) noexcept;
  MediaMapping& operator=(MediaMapping&& other) noexcept;
  ~MediaMapping();

  std::byte* base() const { return base_; }
  uint64_t size_bytes() const { return size_bytes_; }

 private:
  Result<void> map_one(const Part& part);

  std::byte* base_ = nullptr;
  uint64_t size_bytes_ = 0;
};

/// One medium, or several that are joined, mapped. The mapping is shared, at least 2 MiB aligned,
/// and lives as long as the object; readable, and writable until protect() says otherwise, unless
/// it was opened to LOOK. Thread-safe but for destruction.
class Media {
 public:
  Media(const Media&) = delete;
  Media& operator=(const Media&) = delete;
  ~Media();

  std::byte* base() const { return mapping_.base(); }
  /// Of the mapping: of all media together, unless spread() said otherwise.
  uint64_t size_bytes() const { return mapping_.size_bytes(); }
  /// What all of the media promise.
  const MediaTraits& traits() const { return traits_; }
  /// False: opened to look, and no range of it can be made writable.
  bool writable() const;

  size_t media_count() const { return media_.size(); }
  /// The names under which they were opened, or created.
  const std::string& locator() const { return locator_; }
  /// The pool that the labels of joined media name.
  const std::array<uint64_t, 2>& pool_id() const { return pool_id_; }

  // ---- pools that can grow (pool/core/layout.h) ----
  /// Maps anew: these ranges of a mapping of `size_bytes` lie on the media one after the other;
  /// what lies between them reads as zeros. Before any other use. Returns SYSTEM.
  Result<void> spread(const std::vector<Range>& ranges, uint64_t size_bytes);
  /// Maps the media of a further set into the places of its ranges. One thread at a time. Returns
  /// MISALIGNED (they map in larger pages than this one), NOT_SUPPORTED (they survive less),
  /// SYSTEM.
  Result<void> add_set(std::unique_ptr<Media> set, const std::vector<Range>& ranges);
  /// Zeros take the place of a set that has these ranges. Returns SYSTEM.
  Result<void> remove_set(const std::vector<Range>& ranges);
  /// In a forked child, before destruction: a thread of the parent may have been adding or removing
  /// a set. Then the child keeps what it has of the sets, which nobody can destroy any more.
  void leave_change();
  /// What is mapped of the media, in the order of offsets.
  std::vector<Range> ranges() const;

  /// For byte-range locks (liveness of processes, joining): every process that can map the first
  /// medium can take them, in whatever namespace it runs. Of a medium that was opened to LOOK it
  /// can be asked for locks and take none.
  int lock_fd() const { return media_.front()->lock_fd(); }
  /// The same for medium i. Who has the pool open holds a shared lock there.
  int lock_fd(size_t i) const { return media_[i]->lock_fd(); }

  /// A load or a store of the mapping failed (fault_guard.h). The mapping is no longer the
  /// medium's: its stores reach no other process, and its loads may return zeros.
  bool failed() const { return guard_.failed(); }
  /// MEDIA_ERROR with the range and the likely cause, if it failed.
  std::optional<Error> failure() const;
  /// This range holds values alone: memory errors there cost their pages and no more.
  void contain_losses(const Range& values) { guard_.contain(values.offset, values.bytes); }
  /// Memory of the range failed, now or before: what this process stored there since has reached
  /// nobody else, and what it loaded may be zeros.
  bool lost(uint64_t offset, uint64_t bytes) const { return guard_.lost(offset, bytes); }

  /// The permission bits of the first one.
  mode_t mode() const;
  /// False once no name leads to the object any more, or to one of the joined: it was removed, and
  /// goes with its last mapping. Costs a system call for each.
  bool has_name() const;
  /// Of each medium, the first one first.
  std::vector<std::optional<MediaId>> ids() const;

  /// Makes [offset, offset+size) read-only or writable for this process. Both must be multiples of
  /// traits().page_bytes. Returns MISALIGNED, INVALID_ARGUMENT (out of range), SYSTEM.
  Result<void> protect(uint64_t offset, uint64_t size, bool writable);

  /// Maps the medium once more: all of it writable if writable(), whatever protect() says, at other
  /// addresses, which forked children do not have. It is for drivers of devices, which pin pages
  /// and want them writable: they refuse pages that protect() closed. The caller guarantees what
  /// protect() would have guaranteed. May outlive this object. Returns SYSTEM.
  Result<MediaMapping> map_again() const { return map_again({0, size_bytes()}); }
  /// Only this range; zeros where it lies on none of the media, or on a further set.
  Result<MediaMapping> map_again(const Range& range) const;

  /// Makes [offset, offset+size) survive as traits() promises; does nothing where publishing does
  /// that already. Returns INVALID_ARGUMENT (out of range), SYSTEM.
  Result<void> sync(uint64_t offset, uint64_t size);

 private:
  friend Result<std::unique_ptr<Media>> create_media(const std::string& locator,
                                                     const MediaCreateOptions& options);
  friend Result<std::unique_ptr<Media>> open_media(const std::string& locator, MediaUse use,
                                                   const std::optional<SetName>& set);
  Media() : stripes_(0) {}
  /// Returns SYSTEM.
  static Result<std::unique_ptr<Media>> map(std::vector<std::unique_ptr<Medium>> media,
                                            Stripes stripes, bool labelled);
  std::vector<MediaMapping::Part> parts(const std::vector<int>& fds) const;
  std::vector<int> fds() const;
  uint64_t label_bytes(size_t medium) const {
    return medium == 0 && !labelled_ ? 0 : BH_LABEL_BYTES;
  }
  /// Where a byte of the mapping lies: on which media, at which byte of what the pool has there.
  std::pair<const Media*, uint64_t> place_of(uint64_t offset) const;

  std::string locator_;
  std::vector<std::unique_ptr<Medium>> media_;
  Stripes stripes_;
  bool labelled_ = false;  ///< the first medium too: a further set of a pool
  std::vector<Range> ranges_;
  struct Further {
    std::unique_ptr<Media> media;  ///< not mapped by itself
    std::vector<Range> ranges;
  };
  mutable std::mutex further_mutex_;
  std::vector<Further> further_;
  MediaTraits traits_;
  std::array<uint64_t, 2> pool_id_{};
  MediaMapping mapping_;
  FaultGuard guard_;  ///< of the mapping, which goes after it
};

/// Touches pages of a mapping, so that no later load or store pays for their zeroing and mapping;
/// changes nothing in them. False: the kernel does not do that, or a page cannot be had. Of pages
/// that are on a disk it reads them.
bool touch_pages(std::span<std::byte> pages);

/// Creates the object behind a locator, with all its space really allocated (a later store never
/// fails for want of memory) and zero-filled, and maps it. The object stays when the mapping goes.
/// Nothing is left behind on failure. Without `replace`, an existing object is POOL_EXISTS.
/// Returns BAD_LOCATOR, NOT_SUPPORTED, POOL_EXISTS, TOO_SMALL, MISALIGNED, MEDIUM_FULL, CANCELLED,
/// IN_USE (`replace`, and processes have a pool open that lies there), SYSTEM (also: `replace`, and
/// the old object belongs to another user); of a device also MEDIA_ERROR; the error names the path
/// and says what to do. A device has no name: if this fails once it began, its former content is
/// lost. Of joined media the first gets its name first; if the process dies before the others have
/// theirs, it is left alone.
Result<std::unique_ptr<Media>> create_media(const std::string& locator,
                                            const MediaCreateOptions& options);

/// Maps an existing object. Joined media are those that were joined when it was created, in that
/// order. Returns BAD_LOCATOR, NOT_SUPPORTED, NO_SUCH_POOL, NOT_A_POOL (a directory, or empty,
/// or no medium of the others' pool), DAMAGED (a label, or a medium that was cut short),
/// VERSION_UNKNOWN, MEDIA_ERROR, SYSTEM. `set`: these are the media of that further set of a pool,
/// and all of them have labels that say so; NOT_A_POOL otherwise. A device of such a set is looked
/// for among all of this machine if the one of that name is another.
Result<std::unique_ptr<Media>> open_media(const std::string& locator,
                                          MediaUse use = MediaUse::STORE,
                                          const std::optional<SetName>& set = {});

/// The size of the objects behind a locator that have one before they are made, as devices do: the
/// most that create_media() can make of them. Empty if it can be made in any size. `labelled`: as a
/// further set of a pool. Returns BAD_LOCATOR, NOT_SUPPORTED, MISALIGNED, SYSTEM.
Result<std::optional<uint64_t>> media_capacity(const std::string& locator, bool labelled = false);

/// Removes the object behind a locator; mappings of it stay valid. Of joined media all, the first
/// one first; of the others those that are missing are passed over. `only`: the objects with these
/// ids (Media::ids()); others that have their names by now stay. Returns
/// BAD_LOCATOR, NOT_SUPPORTED, NO_SUCH_POOL, CLOSED (`only`: the first name leads to another
/// object), SYSTEM.
Result<void> remove_media(const std::string& locator,
                          const std::vector<std::optional<MediaId>>& only = {});

/// Whether a pool, or a part of one, lies on the devdax /dev/daxX.Y, whatever is damaged in it.
/// Returns MISALIGNED, MEDIA_ERROR, SYSTEM (also: it cannot be opened).
Result<bool> device_holds_pool(const std::string& path);

}  // namespace bowhead
