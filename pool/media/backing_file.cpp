// SPDX-License-Identifier: Apache-2.0
#include "pool/media/backing_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <pwd.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <limits>
#include <random>
#include <vector>

namespace bowhead {
namespace {

constexpr int kOpenFlags = O_NOFOLLOW | O_NONBLOCK | O_NOCTTY;
constexpr uint64_t kAllocationStepBytes = 64 << 20;

std::string directory_of(const std::string& path) {
  const size_t slash = path.rfind('/');
  return slash == 0 ? "/" : path.substr(0, slash);
}

Error not_regular(const std::string& path, mode_t mode) {
  const char* what = S_ISDIR(mode)                    ? "a directory; give the path of a file"
                     : S_ISLNK(mode)                  ? "a symbolic link; give the path it leads to"
                     : S_ISCHR(mode) || S_ISBLK(mode) ? "a device; give the path of a regular file"
                                                      : "not a regular file; give one";
  const Status status = S_ISDIR(mode) ? Status::NOT_A_POOL : Status::NOT_SUPPORTED;
  return Error{status, fmt::format("{} is {}", path, what)};
}

Error missing(const std::string& path) {
  return Error{Status::NO_SUCH_POOL,
               path +
                   " does not exist; look for a slip in the locator, or make a pool with "
                   "`bowhead pool create`"};
}

// Opens an existing file; `access` is O_RDWR or O_RDONLY; `info` describes the opened file. A
// device is recognized without being opened.
Result<UniqueFd> open_regular(const std::string& path, int access, struct stat* info) {
  if (lstat(path.c_str(), info) != 0) {
    if (errno == ENOENT) return missing(path);
    return system_error(path, errno);
  }
  if (!S_ISREG(info->st_mode)) return not_regular(path, info->st_mode);
  UniqueFd fd = open_file(path, access | kOpenFlags);
  if (fd.get() < 0 && errno == ENOENT) return missing(path);
  if (fd.get() < 0 || fstat(fd.get(), info) != 0) return system_error(path, errno);
  if (!S_ISREG(info->st_mode)) return not_regular(path, info->st_mode);
  return fd;
}

/// The id of the file that the path leads to, if there is one.
std::optional<MediaId> file_at(const std::string& path) {
  struct stat info {};
  if (lstat(path.c_str(), &info) != 0) return std::nullopt;
  return MediaId{info.st_dev, info.st_ino};
}

constexpr const char* kHiddenPrefix = ".bowhead-";

std::string unused_name(const std::string& directory) {
  std::random_device random;
  return fmt::format("{}/{}{:08x}{:08x}", directory == "/" ? "" : directory, kHiddenPrefix,
                     random(), random());
}

/// The process that makes a file with a hidden name holds this lock as long as it lives. It lies at
/// the end of the range: pools have their locks further in front.
bool lock_as_maker(int fd) {
  struct flock lock {};
  lock.l_type = F_WRLCK;
  lock.l_whence = SEEK_SET;
  lock.l_start = std::numeric_limits<off_t>::max() - 1;
  lock.l_len = 1;
  return fcntl(fd, F_OFD_SETLK, &lock) == 0;
}

std::string user_text(uid_t uid) {
  passwd entry;
  passwd* found = nullptr;
  char text[4096];
  if (getpwuid_r(uid, &entry, text, sizeof text, &found) == 0 && found != nullptr)
    return fmt::format("{} (uid {})", entry.pw_name, uid);
  return fmt::format("uid {}", uid);
}

bool in_group(gid_t gid) {
  if (gid == getegid()) return true;
  std::vector<gid_t> groups(static_cast<size_t>(std::max(0, getgroups(0, nullptr))));
  const int count = getgroups(static_cast<int>(groups.size()), groups.data());
  return count > 0 &&
         std::find(groups.begin(), groups.begin() + count, gid) != groups.begin() + count;
}

}  // namespace

Error system_error(const std::string& what, int error_number) {
  const bool refused = error_number == EACCES || error_number == EPERM || error_number == EROFS;
  return Error{Status::SYSTEM, fmt::format("{}: {}{}", what, std::strerror(error_number),
                                           refused ? "; look at its owner and permissions" : "")};
}

Error medium_full(const std::string& path, uint64_t wanted_bytes, uint64_t free_bytes) {
  return Error{Status::MEDIUM_FULL,
               fmt::format("{}: {} MiB wanted, {} MiB free; ask for less or make room", path,
                           wanted_bytes >> 20, free_bytes >> 20)};
}

// The owner of a file can read the bytes stored into it, and truncate it under a mapping. In
// /dev/shm any user can put a file where a pool is expected.
Result<void> check_trust(const std::string& path, const struct stat& info) {
  if ((info.st_mode & S_IWOTH) != 0) {
    return Error{Status::SYSTEM,
                 fmt::format("{} can be written by every user (mode {:04o}); `chmod o-w` it, or "
                             "make the pool with a --mode that its users' group may write",
                             path, info.st_mode & 07777)};
  }
  const bool shared = (info.st_mode & S_IWGRP) != 0 && in_group(info.st_gid);
  if (info.st_uid == geteuid() || info.st_uid == 0 || shared) return {};
  return Error{Status::SYSTEM,
               fmt::format("{} belongs to {}, who could read and change what this process stores; "
                           "run as that user, or share the pool through a group (`pool create "
                           "--mode 0660`)",
                           path, user_text(info.st_uid))};
}

bool is_locked_by_any(int fd) {
  struct flock lock {};
  lock.l_type = F_WRLCK;
  lock.l_whence = SEEK_SET;  // all bytes
  return fcntl(fd, F_OFD_GETLK, &lock) != 0 || lock.l_type != F_UNLCK;
}

Result<uint64_t> free_bytes_of(const std::string& directory) {
  struct statvfs info;
  if (statvfs(directory.c_str(), &info) != 0) return system_error(directory, errno);
  return uint64_t{info.f_bavail} * info.f_frsize;
}

Result<OpenedFile> open_backing_file(const std::string& path, MediaUse use) {
  struct stat info;
  bool writable = use != MediaUse::LOOK;
  Result<UniqueFd> fd = open_regular(path, writable ? O_RDWR : O_RDONLY, &info);
  if (!fd && use == MediaUse::REMOVE && fd.status() == Status::SYSTEM) {
    writable = false;
    fd = open_regular(path, O_RDONLY, &info);
  }
  if (!fd) return fd.error();
  const uint64_t size_bytes = info.st_size;
  if (size_bytes == 0) {
    return Error{Status::NOT_A_POOL,
                 path +
                     " is empty; remove it, or make a pool of it with `bowhead pool create "
                     "--force`"};
  }
  if (size_bytes % kMediaGrainBytes != 0) {
    return Error{Status::NOT_A_POOL,
                 fmt::format("{} has {} bytes, no multiple of 2 MiB: cut short, or never a pool; "
                             "restore it from a copy, or check the locator",
                             path, size_bytes)};
  }
  if (use == MediaUse::STORE) {
    if (Result<void> trusted = check_trust(path, info); !trusted) return trusted.error();
  }
  return OpenedFile{std::move(*fd), size_bytes, writable};
}

bool backing_file_exists(const std::string& path) {
  struct stat info;
  return lstat(path.c_str(), &info) == 0;
}

Result<void> remove_backing_file(const std::string& path, const std::optional<MediaId>& only) {
  struct stat info;
  const bool exists = lstat(path.c_str(), &info) == 0;
  if (exists && !S_ISREG(info.st_mode)) {
    return Error{Status::NOT_SUPPORTED, not_regular(path, info.st_mode).detail};
  }
  // No system call removes a name only if it leads to a given file: the name can still change hands
  // between this look and unlink().
  if (exists && only && *only != MediaId{info.st_dev, info.st_ino}) {
    return Error{Status::CLOSED, path + " is another pool by now"};
  }
  if (unlink(path.c_str()) == 0) return {};
  if (errno == ENOENT) return missing(path);
  return system_error(path, errno);
}

void remove_abandoned_files(const std::string& directory) {
  std::error_code ignored;
  for (std::filesystem::directory_iterator file(directory, ignored), end; !ignored && file != end;
       file.increment(ignored)) {
    const std::string path = file->path().string();
    if (!file->path().filename().string().starts_with(kHiddenPrefix)) continue;
    struct stat info {};
    const auto fd = open_regular(path, O_RDWR, &info);
    if (fd && info.st_uid == geteuid() && lock_as_maker(fd->get())) unlink(path.c_str());
  }
}

NewFile::NewFile(NewFile&& other) noexcept
    : path_(std::move(other.path_)),
      own_name_(std::exchange(other.own_name_, {})),
      old_(other.old_),
      fd_(std::move(other.fd_)) {}

NewFile::~NewFile() {
  if (!own_name_.empty()) unlink(own_name_.c_str());
}

Result<NewFile> NewFile::begin(const std::string& path, const MediaCreateOptions& options,
                               uint64_t free_bytes) {
  NewFile file;
  file.path_ = path;
  if (Result<void> ready = file.look_at_old(options, free_bytes); !ready) return ready.error();
  // Beyond the limit the kernel would end the process (SIGXFSZ).
  rlimit most{};
  if (getrlimit(RLIMIT_FSIZE, &most) == 0 && options.size_bytes > most.rlim_cur)
    return Error{Status::SYSTEM,
                 fmt::format("{}: {} bytes are more than the limit of {} for a file of this user: "
                             "raise it (`ulimit -f`), or ask for less",
                             path, options.size_bytes, most.rlim_cur)};
  const std::string directory = directory_of(path);
  file.fd_ = open_file(directory, O_TMPFILE | O_RDWR, 0600);
  while (file.fd() < 0) {  // a filesystem without nameless files
    const std::string name = unused_name(directory);
    file.fd_ = open_file(name, O_RDWR | kOpenFlags | O_CREAT | O_EXCL, 0600);
    if (file.fd() < 0) return system_error(path, errno);
    // Another process may have found it before the lock, and taken it for abandoned.
    const bool locked = lock_as_maker(file.fd()) || (errno != EAGAIN && errno != EACCES);
    if (locked && file_at(name)) {
      file.own_name_ = name;
    } else {
      file.fd_ = {};
    }
  }
  if (fchmod(file.fd(), options.mode) != 0 ||
      ftruncate(file.fd(), static_cast<off_t>(options.size_bytes)) != 0) {
    return system_error(path, errno);
  }
  return file;
}

Result<UniqueFd> NewFile::open_again() const {
  UniqueFd fd = open_file(fmt::format("/proc/self/fd/{}", this->fd()), O_RDWR);
  if (fd.get() < 0) return system_error(path_, errno);
  return fd;
}

// The old file keeps its name until the new one is whole, and is never overwritten: processes that
// have it mapped would find another pool there. Without space for both the old file goes first.
Result<void> NewFile::look_at_old(const MediaCreateOptions& options, uint64_t free_bytes) {
  struct stat info {};
  const bool exists = lstat(path_.c_str(), &info) == 0;
  if (!exists && errno != ENOENT) return system_error(path_, errno);
  if (exists && !S_ISREG(info.st_mode)) {
    return Error{Status::NOT_SUPPORTED, not_regular(path_, info.st_mode).detail};
  }
  if (exists && !options.replace) {
    return Error{Status::POOL_EXISTS, path_ + " exists already"};
  }
  if (exists && info.st_uid != geteuid()) {
    return Error{Status::SYSTEM, fmt::format("{} belongs to {}; remove it first (`bowhead pool "
                                             "destroy`)",
                                             path_, user_text(info.st_uid))};
  }
  const MediaId there{info.st_dev, info.st_ino};
  if (exists && options.old && *options.old != there) {
    return Error{Status::POOL_EXISTS, path_ + ": another process made a pool there meanwhile"};
  }
  // A file with another name keeps its space.
  const uint64_t old_bytes =
      exists && info.st_nlink == 1 ? uint64_t{static_cast<uint64_t>(info.st_blocks)} * 512 : 0;
  if (options.size_bytes > free_bytes + old_bytes) {
    return medium_full(path_, options.size_bytes, free_bytes + old_bytes);
  }
  if (exists && options.size_bytes > free_bytes) {
    if (unlink(path_.c_str()) != 0) return system_error(path_, errno);
    if (options.replaced) options.replaced();
  } else if (exists) {
    old_ = there;
  }
  return {};
}

Result<void> NewFile::allocate(const MediaCreateOptions& options, Prepare prepare, void* context) {
  uint64_t step_bytes = kAllocationStepBytes;
  for (uint64_t at = 0; at < options.size_bytes;) {
    const uint64_t bytes = std::min(step_bytes, options.size_bytes - at);
    if (prepare != nullptr) prepare(context, at, bytes);
    if (fallocate(fd(), 0, static_cast<off_t>(at), static_cast<off_t>(bytes)) != 0) {
      switch (errno) {
        case EINTR:  // some filesystems undo the step: a smaller one fits between two signals
          step_bytes = std::max(step_bytes / 2, kMediaGrainBytes);
          continue;
        case ENOSPC:
        case EDQUOT: {
          const Result<uint64_t> free_bytes = free_bytes_of(directory_of(path_));
          struct stat own {};  // its blocks: a step that failed may have added some
          const uint64_t own_bytes =
              fstat(fd(), &own) == 0 ? static_cast<uint64_t>(own.st_blocks) * 512 : at;
          return medium_full(path_, options.size_bytes, own_bytes + (free_bytes ? *free_bytes : 0));
        }
        case EOPNOTSUPP:
          return Error{Status::NOT_SUPPORTED,
                       path_ + ": this filesystem cannot reserve space; use another"};
        default:
          return system_error(path_, errno);
      }
    }
    at += bytes;
    if (options.progress && !options.progress(at, options.size_bytes)) {
      return Error{Status::CANCELLED, path_ + ": interrupted; nothing was made"};
    }
  }
  return {};
}

Result<void> NewFile::keep(const MediaCreateOptions& options) {
  // The bytes are on the disk before the name, and the name before any process relies on it.
  const UniqueFd directory = open_file(directory_of(path_), O_RDONLY | O_DIRECTORY);
  if (directory.get() < 0 || fsync(fd()) != 0) return system_error(path_, errno);
  // The last moment at which an interruption leaves the old file in place.
  if (options.progress && !options.progress(options.size_bytes, options.size_bytes)) {
    return Error{Status::CANCELLED, path_ + ": interrupted; nothing was made"};
  }
  if (Result<void> named = old_ ? take_name_of_old() : take_free_name(); !named) return named;
  if (old_ && options.replaced) options.replaced();
  if (fsync(directory.get()) != 0) {
    const int error_number = errno;
    struct stat own {};
    if (fstat(fd(), &own) == 0 && file_at(path_) == MediaId{own.st_dev, own.st_ino}) {
      unlink(path_.c_str());
    }
    return system_error(path_, error_number);
  }
  return {};
}

Result<void> NewFile::take_free_name() {
  if (link_to(path_)) return {};
  if (errno == EEXIST) {
    return Error{Status::POOL_EXISTS, path_ + ": another process made a pool there meanwhile"};
  }
  return system_error(path_, errno);
}

Result<void> NewFile::take_name_of_old() {
  if (own_name_.empty()) {
    const std::string name = unused_name(directory_of(path_));
    (void)lock_as_maker(fd());  // no other process can have opened a file without a name
    if (!link_to(name)) return system_error(path_, errno);
    own_name_ = name;
  }
  const std::optional<MediaId> there = file_at(path_);
  if (!there) return take_free_name();
  if (there != old_) {
    return Error{Status::POOL_EXISTS, path_ + ": another process made a pool there meanwhile"};
  }
  if (rename(own_name_.c_str(), path_.c_str()) != 0) return system_error(path_, errno);
  own_name_.clear();
  return {};
}

bool NewFile::link_to(const std::string& name) const {
  const std::string self = fmt::format("/proc/self/fd/{}", fd());
  return linkat(AT_FDCWD, self.c_str(), AT_FDCWD, name.c_str(), AT_SYMLINK_FOLLOW) == 0;
}

}  // namespace bowhead
