// SPDX-License-Identifier: Apache-2.0
#include "pool/media/backing_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <pwd.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <vector>

namespace bowhead {
namespace {

constexpr int kOpenFlags = O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY;
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

// Opens an existing file, `access` is O_RDWR or O_RDONLY; `info` is of what was opened. No device
// is opened on the way to finding out that it is one.
Result<UniqueFd> open_regular(const std::string& path, int access, struct stat* info) {
  if (lstat(path.c_str(), info) != 0) {
    if (errno == ENOENT) return missing(path);
    return system_error(path, errno);
  }
  if (!S_ISREG(info->st_mode)) return not_regular(path, info->st_mode);
  UniqueFd fd(open(path.c_str(), access | kOpenFlags));
  if (fd.get() < 0 || fstat(fd.get(), info) != 0) return system_error(path, errno);
  if (!S_ISREG(info->st_mode)) return not_regular(path, info->st_mode);
  return fd;
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

// Whoever owns a file can read what is stored into it, and cut it short under a mapping. In
// /dev/shm anybody can put one where a pool is expected.
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

}  // namespace

UniqueFd& UniqueFd::operator=(UniqueFd&& other) noexcept {
  std::swap(fd_, other.fd_);
  return *this;
}

UniqueFd::~UniqueFd() {
  if (fd_ >= 0) close(fd_);
}

int UniqueFd::release() { return std::exchange(fd_, -1); }

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

Result<void> check_range(const Media& media, uint64_t offset, uint64_t size) {
  if (offset % media.traits().page_bytes != 0 || size % media.traits().page_bytes != 0) {
    return Status::MISALIGNED;
  }
  if (offset > media.size_bytes() || size > media.size_bytes() - offset) {
    return Status::INVALID_ARGUMENT;
  }
  return {};
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
                             "restore it from a copy, or make it anew with `bowhead pool create "
                             "--force`",
                             path, size_bytes)};
  }
  if (use == MediaUse::STORE) {
    if (Result<void> trusted = check_trust(path, info); !trusted) return trusted.error();
  }
  return OpenedFile{std::move(*fd), size_bytes, writable};
}

Result<UniqueFd> open_for_locks(int fd, bool writable) {
  const std::string self = fmt::format("/proc/self/fd/{}", fd);
  UniqueFd second(open(self.c_str(), (writable ? O_RDWR : O_RDONLY) | O_CLOEXEC));
  if (second.get() < 0) return system_error(self, errno);
  return second;
}

bool backing_file_exists(const std::string& path) {
  struct stat info;
  return lstat(path.c_str(), &info) == 0;
}

Result<void> remove_backing_file(const std::string& path) {
  struct stat info;
  if (lstat(path.c_str(), &info) == 0 && !S_ISREG(info.st_mode)) {
    return Error{Status::NOT_SUPPORTED, not_regular(path, info.st_mode).detail};
  }
  if (unlink(path.c_str()) == 0) return {};
  if (errno == ENOENT) return missing(path);
  return system_error(path, errno);
}

NewFile::NewFile(std::string path, UniqueFd fd, State state)
    : path_(std::move(path)), fd_(std::move(fd)), state_(state) {}

NewFile::NewFile(NewFile&& other) noexcept
    : path_(std::move(other.path_)),
      fd_(std::move(other.fd_)),
      state_(std::exchange(other.state_, State::DONE)) {}

NewFile::~NewFile() {
  if (state_ == State::NAMED) unlink(path_.c_str());
}

Result<NewFile> NewFile::begin(const std::string& path, const MediaCreateOptions& options,
                               uint64_t free_bytes) {
  struct stat info;
  Result<UniqueFd> old = open_regular(path, O_RDWR, &info);
  if (!old && old.status() == Status::NOT_A_POOL) {
    return Error{Status::NOT_SUPPORTED, old.error().detail};
  }
  if (!old && old.status() != Status::NO_SUCH_POOL) return old.error();
  if (old && !options.replace) {
    return Error{Status::POOL_EXISTS, path + " exists already; replace it by force or remove it"};
  }
  if (old && info.st_uid != geteuid()) {
    return Error{
        Status::SYSTEM,
        fmt::format("{} belongs to {}, who would own the new pool as well; remove it first "
                    "(`bowhead pool destroy`)",
                    path, user_text(info.st_uid))};
  }
  if (old) free_bytes += uint64_t{static_cast<uint64_t>(info.st_blocks)} * 512;
  if (options.size_bytes > free_bytes) return medium_full(path, options.size_bytes, free_bytes);

  UniqueFd fd;
  State state = State::NAMED;
  if (old) {
    fd = std::move(*old);
    if (ftruncate(fd.get(), 0) != 0) return system_error(path, errno);
  } else {
    const std::string directory = directory_of(path);
    fd = UniqueFd(open(directory.c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC, 0600));
    if (fd.get() >= 0) {
      state = State::UNNAMED;
    } else {  // a filesystem without nameless files
      fd = UniqueFd(open(path.c_str(), O_RDWR | kOpenFlags | O_CREAT | O_EXCL, 0600));
      if (fd.get() < 0) return system_error(path, errno);
    }
  }
  NewFile file(path, std::move(fd), state);
  if (fchmod(file.fd(), options.mode) != 0 ||
      ftruncate(file.fd(), static_cast<off_t>(options.size_bytes)) != 0) {
    return system_error(path, errno);
  }
  return file;
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
          return medium_full(path_, options.size_bytes, at + (free_bytes ? *free_bytes : 0));
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

Result<void> NewFile::keep() {
  if (state_ == State::UNNAMED) {
    const std::string self = fmt::format("/proc/self/fd/{}", fd());
    if (linkat(AT_FDCWD, self.c_str(), AT_FDCWD, path_.c_str(), AT_SYMLINK_FOLLOW) != 0) {
      if (errno == EEXIST) return Error{Status::POOL_EXISTS, path_ + " exists already"};
      return system_error(path_, errno);
    }
    state_ = State::NAMED;
  }
  // The name and the allocation are on the disk before anybody relies on them.
  const UniqueFd directory(open(directory_of(path_).c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (fsync(fd()) != 0 || directory.get() < 0 || fsync(directory.get()) != 0) {
    return system_error(path_, errno);
  }
  state_ = State::DONE;
  return {};
}

}  // namespace bowhead
