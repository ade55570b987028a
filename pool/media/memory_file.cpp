// SPDX-License-Identifier: Apache-2.0
// shm:NAME: memory without a disk, on hugetlbfs when it has room, else on tmpfs.
// numa:NODE/NAME: the same with all pages on one NUMA node, such as the node of CXL memory. The
// kernel keeps the binding with the file, so that it holds for every process.
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
#include "pool/media/media.h"
#include "pool/media/numa_node.h"

#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25
#endif

namespace bowhead {
namespace {

constexpr size_t kNameBytesMax = 200;
constexpr const char* kTmpfsDirectory = "/dev/shm";
constexpr uint64_t kHugePageBytes = 2 << 20;

/// Names an object. Objects of the two kinds never share a file.
struct MemoryName {
  std::string name;
  std::optional<int> node = {};  ///< numa:

  std::string file_name() const {
    return node ? fmt::format("bowhead-{}@{}", name, *node) : "bowhead-" + name;
  }
};

/// `locator` is for the message.
Result<MemoryName> parse_name_of(const std::string& locator, const std::string& name) {
  constexpr std::string_view kAllowed =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-";
  if (!name.empty() && name.size() <= kNameBytesMax &&
      name.find_first_not_of(kAllowed) == std::string::npos) {
    return MemoryName{name};
  }
  return Error{Status::BAD_LOCATOR, fmt::format("'{}': a name has 1 to {} of A-Z a-z 0-9 . _ -",
                                                locator, kNameBytesMax)};
}

Result<MemoryName> parse_name(const std::string& rest) {
  return parse_name_of("shm:" + rest, rest);
}

Result<MemoryName> parse_node_and_name(const std::string& rest) {
  const std::string locator = "numa:" + rest;
  const size_t slash = std::min(rest.find('/'), rest.size());
  Result<int> node = parse_node(rest.substr(0, slash));
  if (!node) return Error{node.status(), fmt::format("'{}': {}", locator, node.error().detail)};
  Result<MemoryName> name = parse_name_of(locator, rest.substr(std::min(slash + 1, rest.size())));
  if (name) name->node = *node;
  return name;
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

uint64_t read_number(const std::string& path) {
  uint64_t number = 0;
  std::ifstream(path) >> number;
  return number;
}

uint64_t free_huge_bytes(const std::string& directory, const std::optional<int>& node) {
  const std::string kind = "hugepages/hugepages-2048kB/";
  const uint64_t free_pages = read_number("/sys/kernel/mm/" + kind + "free_hugepages");
  const uint64_t promised_pages = read_number("/sys/kernel/mm/" + kind + "resv_hugepages");
  uint64_t pages = free_pages - std::min(free_pages, promised_pages);
  if (node) {
    pages = std::min(pages, read_number(fmt::format("/sys/devices/system/node/node{}/{}{}", *node,
                                                    kind, "free_hugepages")));
  }
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

Result<uint64_t> free_tmpfs_bytes(const std::optional<int>& node) {
  Result<uint64_t> free_bytes = free_bytes_of(kTmpfsDirectory);
  if (!free_bytes) return free_bytes;
  free_bytes = std::min(*free_bytes, available_memory_bytes());
  if (!node) return free_bytes;
  const Result<uint64_t> of_node = free_bytes_of_node(*node);
  if (!of_node) return of_node.error();
  return std::min(*free_bytes, *of_node);
}

std::string path_in(const std::string& directory, const MemoryName& name) {
  return fmt::format("{}/{}", directory, name.file_name());
}

// The path of the object; the path on tmpfs if there is none.
std::string find_object(const MemoryName& name) {
  for (const std::string& directory : hugetlbfs_directories(F_OK)) {
    if (std::string path = path_in(directory, name); backing_file_exists(path)) return path;
  }
  return path_in(kTmpfsDirectory, name);
}

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

class MemoryFile final : public Medium {
 public:
  static Result<std::unique_ptr<Medium>> make(const MemoryName& name, const std::string& path,
                                              const MediaCreateOptions& options,
                                              uint64_t free_bytes) {
    Result<NewFile> file = NewFile::begin(path, options, free_bytes);
    if (!file) return file.error();
    std::unique_ptr<MemoryFile> medium(new MemoryFile);
    Result<UniqueFd> fd = file->open_again();
    if (!fd) return fd.error();
    medium->fd_ = std::move(*fd);
    medium->size_bytes_ = options.size_bytes;
    medium->describe(name, path);
    if (auto filled = medium->allocate(name, options, *file); !filled) return filled.error();
    if (auto locks = medium->open_locks(); !locks) return locks.error();
    medium->in_making_.emplace(std::move(*file));
    return std::unique_ptr<Medium>(std::move(medium));
  }

  static Result<std::unique_ptr<Medium>> open(const MemoryName& name, MediaUse use) {
    const std::string path = find_object(name);
    Result<OpenedFile> file = open_backing_file(path, use);
    if (!file) return file.error();
    std::unique_ptr<MemoryFile> medium(new MemoryFile);
    medium->fd_ = std::move(file->fd);
    medium->size_bytes_ = file->size_bytes;
    medium->writable_ = file->writable;
    medium->describe(name, path);
    if (auto locks = medium->open_locks(); !locks) return locks.error();
    return std::unique_ptr<Medium>(std::move(medium));
  }

  Result<void> keep(const MediaCreateOptions& options) override {
    Result<void> kept = in_making_->keep(options);
    in_making_.reset();
    return kept;
  }

 private:
  MemoryFile() = default;

  void describe(const MemoryName& name, const std::string& path) {
    struct statfs info;
    const bool huge = fstatfs(fd(), &info) == 0 && info.f_type == HUGETLBFS_MAGIC;
    traits_.kind = name.node ? "numa" : "shm";
    traits_.page_bytes = huge ? kHugePageBytes : static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
    traits_.description = fmt::format(
        "{} on {}{}, gone after a reboot", path, huge ? "hugetlbfs (2 MiB pages)" : "tmpfs",
        name.node ? fmt::format(" in memory of NUMA node {}", *name.node) : "");
  }

  Result<void> allocate(const MemoryName& name, const MediaCreateOptions& options, NewFile& file) {
    const Result<MediaMapping> mapping = MediaMapping::map(*this, fd(), size_bytes_);
    if (!mapping) return mapping.error();
    if (name.node) {
      if (auto bound = bind_to_node(mapping->base(), size_bytes_, *name.node); !bound) return bound;
    }
    HugePageMaker maker{fd(), mapping->base(), traits_.page_bytes != kHugePageBytes};
    if (auto done = file.allocate(options, HugePageMaker::prepare, &maker); !done) return done;
    return name.node ? check_is_on_node(mapping->base(), size_bytes_, *name.node) : Result<void>{};
  }

  std::optional<NewFile> in_making_;
};

Result<std::unique_ptr<Medium>> make(const Result<MemoryName>& name,
                                     const MediaCreateOptions& options) {
  if (!name) return name.error();
  remove_abandoned_files(kTmpfsDirectory);
  for (const std::string& directory : hugetlbfs_directories(W_OK))
    remove_abandoned_files(directory);
  const Result<uint64_t> free_bytes = free_tmpfs_bytes(name->node);
  if (!free_bytes) return free_bytes.error();
  const std::string existing = find_object(*name);
  for (const std::string& directory : hugetlbfs_directories(W_OK)) {
    const std::string path = path_in(directory, *name);
    const uint64_t free_huge = free_huge_bytes(directory, name->node);
    if (backing_file_exists(existing) ? path != existing : free_huge < options.size_bytes) continue;
    auto medium = MemoryFile::make(*name, path, options, free_huge);
    if (medium || path == existing || medium.status() != Status::MEDIUM_FULL) return medium;
  }
  return MemoryFile::make(*name, path_in(kTmpfsDirectory, *name), options, *free_bytes);
}

Result<std::unique_ptr<Medium>> open(const Result<MemoryName>& name, MediaUse use) {
  if (!name) return name.error();
  return MemoryFile::open(*name, use);
}

Result<void> remove(const Result<MemoryName>& name, const std::optional<MediaId>& only) {
  if (!name) return name.error();
  return remove_backing_file(find_object(*name), only);
}

template <Result<MemoryName> (*kParse)(const std::string&)>
constexpr MediumDriver driver(std::string_view scheme, std::string_view usage) {
  return {scheme, usage,
          [](const std::string& rest, const MediaCreateOptions& options) {
            return make(kParse(rest), options);
          },
          [](const std::string& rest, MediaUse use) { return open(kParse(rest), use); },
          [](const std::string& rest, const std::optional<MediaId>& only) {
            return remove(kParse(rest), only);
          }};
}

}  // namespace

const MediumDriver kShmDriver = driver<parse_name>("shm", "shm:NAME");
const MediumDriver kNumaDriver = driver<parse_node_and_name>("numa", "numa:NODE/NAME");

}  // namespace bowhead
