// SPDX-License-Identifier: Apache-2.0
// shm:NAME: memory without a disk, on hugetlbfs when it has room, else on tmpfs.
//
// On tmpfs the kernel is asked for huge pages as the space is allocated: a process that maps a pool
// of small pages pays a fault per 4 KiB, which costs more than to copy those bytes.

#include <fcntl.h>
#include <fmt/format.h>
#include <linux/magic.h>
#include <mntent.h>
#include <sys/mman.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <fstream>
#include <limits>
#include <vector>

#include "pool/media/backing_file.h"
#include "pool/media/drivers.h"

#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25
#endif

namespace bowhead {
namespace {

constexpr size_t kNameBytesMax = 200;
constexpr const char* kTmpfsDirectory = "/dev/shm";
constexpr uint64_t kHugePageBytes = 2 << 20;

Result<void> check_name(const std::string& name) {
  constexpr std::string_view kAllowed =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-";
  if (!name.empty() && name.size() <= kNameBytesMax &&
      name.find_first_not_of(kAllowed) == std::string::npos) {
    return {};
  }
  return Error{Status::BAD_LOCATOR, fmt::format("'shm:{}': a name has 1 to {} of A-Z a-z 0-9 . _ -",
                                                name, kNameBytesMax)};
}

// hugetlbfs mounts with 2 MiB pages where this process has that access (W_OK: it can make files).
std::vector<std::string> hugetlbfs_directories(int access_wanted) {
  std::vector<std::string> directories;
  FILE* mounts = setmntent("/proc/mounts", "re");
  if (mounts == nullptr) return directories;
  mntent entry;
  char text[4096];
  while (getmntent_r(mounts, &entry, text, sizeof(text)) != nullptr) {
    struct statfs info;
    if (std::string_view(entry.mnt_type) == "hugetlbfs" && statfs(entry.mnt_dir, &info) == 0 &&
        info.f_bsize == static_cast<long>(kHugePageBytes) &&
        access(entry.mnt_dir, access_wanted | X_OK) == 0) {
      directories.emplace_back(entry.mnt_dir);
    }
  }
  endmntent(mounts);
  return directories;
}

uint64_t read_number(const char* path) {
  uint64_t number = 0;
  std::ifstream(path) >> number;
  return number;
}

uint64_t free_huge_bytes(const std::string& directory) {
  const uint64_t free_pages =
      read_number("/sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages");
  const uint64_t promised_pages =
      read_number("/sys/kernel/mm/hugepages/hugepages-2048kB/resv_hugepages");
  uint64_t pages = free_pages - std::min(free_pages, promised_pages);
  struct statfs info;
  // A mount without a limit of its own reports none of its blocks.
  if (statfs(directory.c_str(), &info) == 0 && info.f_blocks > 0) {
    pages = std::min<uint64_t>(pages, info.f_bavail);
  }
  return pages * kHugePageBytes;
}

// tmpfs promises more than the machine may have: past this, allocation would end in the OOM killer.
uint64_t available_memory_bytes() {
  std::ifstream meminfo("/proc/meminfo");
  uint64_t kib = 0;
  bool found = false;
  for (std::string line; std::getline(meminfo, line);) {
    if (line.starts_with("MemAvailable:") || line.starts_with("SwapFree:")) {
      kib += std::strtoull(line.c_str() + line.find(':') + 1, nullptr, 10);
      found = true;
    }
  }
  return found ? kib * 1024 : std::numeric_limits<uint64_t>::max();
}

Result<uint64_t> free_tmpfs_bytes() {
  const Result<uint64_t> free_bytes = free_bytes_of(kTmpfsDirectory);
  if (!free_bytes) return free_bytes.error();
  return std::min(*free_bytes, available_memory_bytes());
}

std::string path_in(const std::string& directory, const std::string& name) {
  return fmt::format("{}/bowhead-{}", directory, name);
}

// The path of the object; the path on tmpfs if there is none.
std::string find_object(const std::string& name) {
  for (const std::string& directory : hugetlbfs_directories(F_OK)) {
    if (std::string path = path_in(directory, name); backing_file_exists(path)) return path;
  }
  return path_in(kTmpfsDirectory, name);
}

class ShmMedia final : public Media {
 public:
  ~ShmMedia() override { unguard(); }

  Result<void> map(int fd, const std::string& path, uint64_t size_bytes, bool writable) {
    Result<MediaMapping> mapped = MediaMapping::map(fd, path, size_bytes, writable);
    if (!mapped) return mapped.error();
    mapping_ = std::move(*mapped);
    base_ = mapping_.base();
    size_bytes_ = size_bytes;
    writable_ = writable;
    describe(fd, path);
    guard();
    return {};
  }

  Result<void> open_locks(int mapped_fd, bool writable) {
    Result<UniqueFd> fd = open_for_locks(mapped_fd, writable);
    if (!fd) return fd.error();
    lock_owner_ = std::move(*fd);
    lock_fd_ = lock_owner_.get();
    return {};
  }

  bool huge_pages_only() const { return traits_.page_bytes == kHugePageBytes; }

  Result<void> protect(uint64_t offset, uint64_t size, bool writable) override {
    if (Result<void> range = check_range(*this, offset, size); !range) return range;
    if (mprotect(base_ + offset, size, writable ? PROT_READ | PROT_WRITE : PROT_READ) != 0) {
      return system_error("cannot change the protection of " + traits_.description, errno);
    }
    return {};
  }

  Result<void> sync(uint64_t, uint64_t) override { return {}; }

 private:
  void describe(int fd, const std::string& path) {
    struct statfs info;
    const bool huge = fstatfs(fd, &info) == 0 && info.f_type == HUGETLBFS_MAGIC;
    traits_.kind = "shm";
    traits_.page_bytes = huge ? kHugePageBytes : static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
    traits_.description = fmt::format("{} on {}, gone after a reboot", path,
                                      huge ? "hugetlbfs (2 MiB pages)" : "tmpfs");
    if (!huge) madvise(base_, size_bytes_, MADV_HUGEPAGE);  // a hint: no harm if refused
  }

  UniqueFd lock_owner_;
  MediaMapping mapping_;
};

// Asks for huge pages before the rest is allocated, whatever the policy for faults is. The kernel
// makes a huge page from existing small ones, so each needs a first small page; to gather 512 small
// ones later takes several times as long. Gives up at the first refusal: in fragmented memory each
// attempt is slow.
struct HugePageMaker {
  int fd;
  std::byte* base;
  bool wanted;

  static void prepare(void* self, uint64_t offset, uint64_t size) {
    auto* maker = static_cast<HugePageMaker*>(self);
    if (!maker->wanted) return;
    for (uint64_t at = offset; at < offset + size; at += kHugePageBytes) {
      if (fallocate(maker->fd, 0, static_cast<off_t>(at), 1) != 0) return;
    }
    maker->wanted = madvise(maker->base + offset, size, MADV_COLLAPSE) == 0;
  }
};

Result<std::unique_ptr<Media>> create_at(const std::string& path, const MediaCreateOptions& options,
                                         uint64_t free_bytes) {
  Result<NewFile> file = NewFile::begin(path, options, free_bytes);
  if (!file) return file.error();
  auto media = std::make_unique<ShmMedia>();
  if (Result<void> mapped = media->map(file->fd(), path, options.size_bytes, true); !mapped) {
    return mapped.error();
  }
  HugePageMaker maker{file->fd(), media->base(), !media->huge_pages_only()};
  if (Result<void> done = file->allocate(options, HugePageMaker::prepare, &maker); !done) {
    return done.error();
  }
  if (Result<void> locks = media->open_locks(file->fd(), true); !locks) return locks.error();
  if (options.fill) {
    if (Result<void> filled = options.fill(*media); !filled) return filled.error();
  }
  if (Result<void> kept = file->keep(options); !kept) return kept.error();
  return std::unique_ptr<Media>(std::move(media));
}

Result<std::unique_ptr<Media>> create_shm(const std::string& name,
                                          const MediaCreateOptions& options) {
  if (Result<void> valid = check_name(name); !valid) return valid.error();
  remove_abandoned_files(kTmpfsDirectory);
  for (const std::string& directory : hugetlbfs_directories(W_OK))
    remove_abandoned_files(directory);
  const Result<uint64_t> free_bytes = free_tmpfs_bytes();
  if (!free_bytes) return free_bytes.error();
  const std::string existing = find_object(name);
  for (const std::string& directory : hugetlbfs_directories(W_OK)) {
    const std::string path = path_in(directory, name);
    const uint64_t free_huge = free_huge_bytes(directory);
    if (backing_file_exists(existing) ? path != existing : free_huge < options.size_bytes) continue;
    Result<std::unique_ptr<Media>> media = create_at(path, options, free_huge);
    if (media || path == existing || media.status() != Status::MEDIUM_FULL) return media;
  }
  return create_at(path_in(kTmpfsDirectory, name), options, *free_bytes);
}

Result<std::unique_ptr<Media>> open_shm(const std::string& name, MediaUse use) {
  if (Result<void> valid = check_name(name); !valid) return valid.error();
  const std::string path = find_object(name);
  Result<OpenedFile> file = open_backing_file(path, use);
  if (!file) return file.error();
  auto media = std::make_unique<ShmMedia>();
  const int fd = file->fd.get();
  if (Result<void> mapped = media->map(fd, path, file->size_bytes, file->writable); !mapped) {
    return mapped.error();
  }
  if (Result<void> locks = media->open_locks(fd, file->writable); !locks) return locks.error();
  return std::unique_ptr<Media>(std::move(media));
}

Result<void> remove_shm(const std::string& name, const std::optional<MediaId>& only) {
  if (Result<void> valid = check_name(name); !valid) return valid.error();
  return remove_backing_file(find_object(name), only);
}

}  // namespace

const MediaDriver kShmDriver = {"shm", "shm:NAME", create_shm, open_shm, remove_shm};

}  // namespace bowhead
