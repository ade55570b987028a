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
#include "pool/media/drivers.h"

namespace bowhead {
namespace {

Error pmem2_error(const std::string& path) {
  return Error{Status::SYSTEM, fmt::format("{}: libpmem2: {}", path, pmem2_errormsg())};
}

class FileMedia final : public Media {
 public:
  ~FileMedia() override {
    unguard();
    if (map_ != nullptr) pmem2_map_delete(&map_);
    if (reservation_ != nullptr) pmem2_vm_reservation_delete(&reservation_);
  }

  Result<void> map(int fd, const std::string& path, uint64_t size_bytes, bool writable) {
    pmem2_source* source = nullptr;
    pmem2_config* config = nullptr;
    const bool mapped = pmem2_source_from_fd(&source, fd) == 0 && pmem2_config_new(&config) == 0 &&
                        map_with(source, config, size_bytes, writable);
    Error error = mapped ? Error{} : pmem2_error(path);
    pmem2_config_delete(&config);
    pmem2_source_delete(&source);
    if (!mapped) return error;
    base_ = static_cast<std::byte*>(pmem2_map_get_address(map_));
    size_bytes_ = size_bytes;
    writable_ = writable;
    if (auto described = describe(fd, path); !described) return described;
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

  Result<void> protect(uint64_t offset, uint64_t size, bool writable) override {
    if (Result<void> range = check_range(*this, offset, size); !range) return range;
    if (mprotect(base_ + offset, size, writable ? PROT_READ | PROT_WRITE : PROT_READ) != 0) {
      return system_error("cannot change the protection of " + traits_.description, errno);
    }
    return {};
  }

  // msync() and not pmem2's persist function, which has no way to report a failure of the disk.
  Result<void> sync(uint64_t offset, uint64_t size) override {
    if (offset > size_bytes_ || size > size_bytes_ - offset) return Status::INVALID_ARGUMENT;
    if (traits_.survives_power_loss) return {};
    const uint64_t first = offset / traits_.page_bytes * traits_.page_bytes;
    if (msync(base_ + first, offset + size - first, MS_SYNC) != 0) {
      return system_error("cannot write back " + traits_.description, errno);
    }
    return {};
  }

 private:
  // At an address that is a multiple of 2 MiB; pmem2 alone aligns small files to 4 KiB.
  bool map_with(pmem2_source* source, pmem2_config* config, uint64_t size_bytes, bool writable) {
    if (pmem2_vm_reservation_new(&reservation_, nullptr, size_bytes + kMediaGrainBytes) != 0) {
      return false;
    }
    const auto address =
        reinterpret_cast<uintptr_t>(pmem2_vm_reservation_get_address(reservation_));
    return pmem2_config_set_vm_reservation(config, reservation_, -address % kMediaGrainBytes) ==
               0 &&
           pmem2_config_set_length(config, size_bytes) == 0 &&
           pmem2_config_set_protection(
               config, writable ? PMEM2_PROT_READ | PMEM2_PROT_WRITE : PMEM2_PROT_READ) == 0 &&
           pmem2_config_set_required_store_granularity(config, PMEM2_GRANULARITY_PAGE) == 0 &&
           pmem2_map_new(&map_, config, source) == 0;
  }

  Result<void> describe(int fd, const std::string& path) {
    struct statfs info;
    if (fstatfs(fd, &info) != 0) return system_error(path, errno);
    if (info.f_type == HUGETLBFS_MAGIC) {
      return Error{Status::NOT_SUPPORTED, path + " is on hugetlbfs; use shm:NAME"};
    }
    const bool memory_only = info.f_type == TMPFS_MAGIC || info.f_type == RAMFS_MAGIC;
    traits_.kind = "file";
    traits_.page_bytes = static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
    traits_.survives_reboot = !memory_only;
    traits_.survives_power_loss =
        !memory_only && pmem2_map_get_store_granularity(map_) != PMEM2_GRANULARITY_PAGE;
    traits_.description = fmt::format(
        "{}, {}", path,
        traits_.survives_power_loss ? "fsdax: what was published survives a power loss"
        : memory_only               ? "in memory: gone after a reboot"
                      : "regular file: survives a reboot; after a power loss only what sync wrote");
    return {};
  }

  UniqueFd lock_owner_;
  pmem2_vm_reservation* reservation_ = nullptr;
  pmem2_map* map_ = nullptr;
};

Result<void> check_path(const std::string& path) {
  if (path.starts_with('/') && path.size() > 1 && path.find('\0') == std::string::npos) return {};
  return Error{Status::BAD_LOCATOR, fmt::format("'file:{}': the path must begin with /", path)};
}

Result<std::unique_ptr<Media>> create_file(const std::string& path,
                                           const MediaCreateOptions& options) {
  if (Result<void> valid = check_path(path); !valid) return valid.error();
  const size_t slash = path.rfind('/');
  const std::string directory = path.substr(0, slash == 0 ? 1 : slash);
  remove_abandoned_files(directory);
  const Result<uint64_t> free_bytes = free_bytes_of(directory);
  if (!free_bytes) return free_bytes.error();
  Result<NewFile> file = NewFile::begin(path, options, *free_bytes);
  if (!file) return file.error();
  if (Result<void> done = file->allocate(options, nullptr, nullptr); !done) return done.error();
  auto media = std::make_unique<FileMedia>();
  if (Result<void> mapped = media->map(file->fd(), path, options.size_bytes, true); !mapped) {
    return mapped.error();
  }
  if (Result<void> locks = media->open_locks(file->fd(), true); !locks) return locks.error();
  if (options.fill) {
    if (Result<void> filled = options.fill(*media); !filled) return filled.error();
  }
  if (Result<void> kept = file->keep(options); !kept) return kept.error();
  return std::unique_ptr<Media>(std::move(media));
}

Result<std::unique_ptr<Media>> open_file(const std::string& path, MediaUse use) {
  if (Result<void> valid = check_path(path); !valid) return valid.error();
  Result<OpenedFile> file = open_backing_file(path, use);
  if (!file) return file.error();
  auto media = std::make_unique<FileMedia>();
  const int fd = file->fd.get();
  if (Result<void> mapped = media->map(fd, path, file->size_bytes, file->writable); !mapped) {
    return mapped.error();
  }
  if (Result<void> locks = media->open_locks(fd, file->writable); !locks) return locks.error();
  return std::unique_ptr<Media>(std::move(media));
}

Result<void> remove_file(const std::string& path, const std::optional<MediaId>& only) {
  if (Result<void> valid = check_path(path); !valid) return valid.error();
  return remove_backing_file(path, only);
}

}  // namespace

const MediaDriver kFileDriver = {"file", "file:/PATH", create_file, open_file, remove_file};

}  // namespace bowhead
