// SPDX-License-Identifier: Apache-2.0
// The regular file behind a medium: made whole or not at all, and never reached through a symbolic
// link in the last part of its path.
#pragma once

#include <sys/stat.h>
#include <sys/types.h>

#include <memory>
#include <optional>
#include <string>

#include "base/unique_fd.h"
#include "pool/media/medium.h"

namespace bowhead {

/// An Error with the system's text for `error_number`.
Error system_error(const std::string& what, int error_number);

/// Opens the file at `path` and gives its size. Returns NO_SUCH_POOL, NOT_A_POOL (directory, empty,
/// or a size that is no medium's), NOT_SUPPORTED (no regular file), SYSTEM (also: its owner or mode
/// do not suit the use).
struct OpenedFile {
  UniqueFd fd;
  uint64_t size_bytes = 0;
  bool writable = false;
};
Result<OpenedFile> open_backing_file(const std::string& path, MediaUse use);

/// Refuses (SYSTEM) what another user could read, or every user write. `path` is for people.
Result<void> check_trust(const std::string& path, const struct stat& info);

/// Whether an object exists at `path`.
bool backing_file_exists(const std::string& path);

/// Removes it. Returns NO_SUCH_POOL, NOT_SUPPORTED (no regular file), CLOSED (`only`: another file
/// has the name), SYSTEM.
Result<void> remove_backing_file(const std::string& path, const std::optional<MediaId>& only);

/// Removes the unfinished files of killed processes of this user: those with a hidden name that no
/// process has locked.
void remove_abandoned_files(const std::string& directory);

/// A file in the making. Until keep() it goes away with the object: where the filesystem allows, it
/// has no name before. Elsewhere, and for the moment in which it takes the place of another, it has
/// a hidden one (`.bowhead-*`) and a lock, by which remove_abandoned_files() knows it.
class NewFile {
 public:
  /// Begins a file of `size_bytes` for `path`. An existing file stays (`replace`) if `free_bytes`
  /// suffice; it is removed, and options.replaced() called, if only they and its own bytes together
  /// do. Returns POOL_EXISTS, NOT_SUPPORTED, MEDIUM_FULL, SYSTEM.
  static Result<NewFile> begin(const std::string& path, const MediaCreateOptions& options,
                               uint64_t free_bytes);
  NewFile(NewFile&&) noexcept;
  NewFile& operator=(NewFile&&) = delete;
  ~NewFile();

  /// The file, to be mapped. Returns SYSTEM.
  Result<UniqueFd> open_again() const;

  /// Allocates all of it in steps of whole huge pages, calls `prepare` (may be empty) before each
  /// and reports progress after it. Returns MEDIUM_FULL, NOT_SUPPORTED, CANCELLED, SYSTEM.
  using Prepare = void (*)(void* context, uint64_t offset, uint64_t size);
  Result<void> allocate(const MediaCreateOptions& options, Prepare prepare, void* context);

  /// Gives it its name, in the place of the old file (options.replaced()). Returns POOL_EXISTS
  /// (another process was faster), SYSTEM.
  Result<void> keep(const MediaCreateOptions& options);

 private:
  NewFile() = default;
  int fd() const { return fd_.get(); }
  Result<void> look_at_old(const MediaCreateOptions& options, uint64_t free_bytes);
  Result<void> take_free_name();
  Result<void> take_name_of_old();
  bool link_to(const std::string& name) const;

  std::string path_;
  std::string own_name_;        ///< in the making; empty: none
  std::optional<MediaId> old_;  ///< to be replaced
  UniqueFd fd_;
};

/// A process holds a lock of the file, through another open file; also true if the query fails.
bool is_locked_by_any(int fd);

/// Free bytes on the filesystem that holds `directory`; nothing on an error.
Result<uint64_t> free_bytes_of(const std::string& directory);

/// A MEDIUM_FULL error with the numbers.
Error medium_full(const std::string& path, uint64_t wanted_bytes, uint64_t free_bytes);

}  // namespace bowhead
