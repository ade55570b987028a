// SPDX-License-Identifier: Apache-2.0
// file:/PATH through libpmem2: a file on fsdax, which keeps published bytes over a power loss, or
// an ordinary one, which keeps the bytes that sync() wrote.

#include <fmt/format.h>
#include <libpmem2.h>
#include <linux/magic.h>
#include <sys/mman.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <cerrno>

#include "pool/media/backing_file.h"
#include "pool/media/medium.h"

namespace bowhead {
namespace {

Error pmem2_error(const std::string& path) {
  return Error{Status::SYSTEM, fmt::format("{}: libpmem2: {}", path, pmem2_errormsg())};
}

struct DeletePmem2 {
  void operator()(pmem2_map* map) const { pmem2_map_delete(&map); }
  void operator()(pmem2_config* config) const { pmem2_config_delete(&config); }
  void operator()(pmem2_source* source) const { pmem2_source_delete(&source); }
};
template <class T>
using Pmem2 = std::unique_ptr<T, DeletePmem2>;

/// True if CPU flushes make stored bytes survive a power loss, false if only msync() does: libpmem2
/// knows once it has mapped a part.
Result<bool> flushes_suffice(int fd, const std::string& path) {
  pmem2_source* source = nullptr;
  pmem2_config* config = nullptr;
  pmem2_map* map = nullptr;
  bool done = pmem2_source_from_fd(&source, fd) == 0;
  const Pmem2<pmem2_source> source_owner(source);
  done = done && pmem2_config_new(&config) == 0;
  const Pmem2<pmem2_config> config_owner(config);
  done = done && pmem2_config_set_length(config, kMediaGrainBytes) == 0 &&
         pmem2_config_set_protection(config, PMEM2_PROT_READ) == 0 &&
         pmem2_config_set_required_store_granularity(config, PMEM2_GRANULARITY_PAGE) == 0 &&
         pmem2_map_new(&map, config, source) == 0;
  const Pmem2<pmem2_map> map_owner(map);
  if (!done) return pmem2_error(path);
  return pmem2_map_get_store_granularity(map) != PMEM2_GRANULARITY_PAGE;
}

class FileMedium final : public Medium {
 public:
  static Result<std::unique_ptr<Medium>> make(const std::string& path,
                                              const MediaCreateOptions& options,
                                              uint64_t free_bytes) {
    Result<NewFile> file = NewFile::begin(path, options, free_bytes);
    if (!file) return file.error();
    if (Result<void> done = file->allocate(options, nullptr, nullptr); !done) return done.error();
    Result<UniqueFd> fd = file->open_again();
    if (!fd) return fd.error();
    auto medium = about({std::move(*fd), options.size_bytes, /*writable=*/true}, path);
    if (!medium) return medium.error();
    (*medium)->in_making_.emplace(std::move(*file));
    return std::unique_ptr<Medium>(std::move(*medium));
  }

  static Result<std::unique_ptr<Medium>> open(const std::string& path, MediaUse use) {
    Result<OpenedFile> file = open_backing_file(path, use);
    if (!file) return file.error();
    auto medium = about(std::move(*file), path);
    if (!medium) return medium.error();
    return std::unique_ptr<Medium>(std::move(*medium));
  }

  Result<void> keep(const MediaCreateOptions& options) override {
    Result<void> kept = in_making_->keep(options);
    in_making_.reset();
    return kept;
  }

 private:
  FileMedium() = default;

  static Result<std::unique_ptr<FileMedium>> about(OpenedFile file, const std::string& path) {
    std::unique_ptr<FileMedium> medium(new FileMedium);
    medium->fd_ = std::move(file.fd);
    medium->size_bytes_ = file.size_bytes;
    medium->writable_ = file.writable;
    if (auto described = medium->describe(path); !described) return described.error();
    if (auto locks = medium->open_locks(); !locks) return locks.error();
    return medium;
  }

  Result<void> describe(const std::string& path) {
    struct statfs info;
    if (fstatfs(fd(), &info) != 0) return system_error(path, errno);
    if (info.f_type == HUGETLBFS_MAGIC) {
      return Error{Status::NOT_SUPPORTED, path + " is on hugetlbfs; use shm:NAME"};
    }
    const bool memory_only = info.f_type == TMPFS_MAGIC || info.f_type == RAMFS_MAGIC;
    const Result<bool> flushes = flushes_suffice(fd(), path);
    if (!flushes) return flushes.error();
    traits_.kind = "file";
    traits_.page_bytes = static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
    traits_.survives_reboot = !memory_only;
    traits_.survives_power_loss = !memory_only && *flushes;
    traits_.description = fmt::format(
        "{}, {}", path,
        traits_.survives_power_loss ? "fsdax: what was published survives a power loss"
        : memory_only               ? "in memory: gone after a reboot"
                      : "regular file: survives a reboot; after a power loss only what sync wrote");
    if (traits_.survives_power_loss) map_synchronously();
    return {};
  }

  /// With MAP_SYNC the filesystem writes back where a page lies before a store can reach the page:
  /// without it, flushed bytes could be lost with their place. A file that is on no DAX filesystem
  /// refuses it, and comes here only if PMEM2_FORCE_GRANULARITY says that flushes suffice.
  void map_synchronously() {
    constexpr int kFlags = MAP_SHARED_VALIDATE | MAP_SYNC;
    void* const trial = mmap(nullptr, kMediaGrainBytes, PROT_READ, kFlags, fd(), 0);
    if (trial == MAP_FAILED) return;
    munmap(trial, kMediaGrainBytes);
    mmap_flags_ = kFlags;
  }

  std::optional<NewFile> in_making_;
};

Result<void> check_path(const std::string& path) {
  if (path.starts_with('/') && path.size() > 1 && path.find('\0') == std::string::npos) return {};
  return Error{Status::BAD_LOCATOR, fmt::format("'file:{}': the path must begin with /", path)};
}

Result<std::unique_ptr<Medium>> make_file(const std::string& path,
                                          const MediaCreateOptions& options) {
  if (Result<void> valid = check_path(path); !valid) return valid.error();
  const size_t slash = path.rfind('/');
  const std::string directory = path.substr(0, slash == 0 ? 1 : slash);
  remove_abandoned_files(directory);
  const Result<uint64_t> free_bytes = free_bytes_of(directory);
  if (!free_bytes) return free_bytes.error();
  return FileMedium::make(path, options, *free_bytes);
}

Result<std::unique_ptr<Medium>> open_file(const std::string& path, MediaUse use) {
  if (Result<void> valid = check_path(path); !valid) return valid.error();
  return FileMedium::open(path, use);
}

Result<void> remove_file(const std::string& path, const std::optional<MediaId>& only) {
  if (Result<void> valid = check_path(path); !valid) return valid.error();
  return remove_backing_file(path, only);
}

}  // namespace

const MediumDriver kFileDriver = {"file", "file:/PATH", make_file, open_file, remove_file};

}  // namespace bowhead
