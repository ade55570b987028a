// SPDX-License-Identifier: Apache-2.0
#include "pool/media/media.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <cerrno>
#include <utility>

#include "pool/media/backing_file.h"

namespace bowhead {
namespace {

const MediumDriver* const kDrivers[] = {&kShmDriver, &kNumaDriver, &kDaxDriver, &kFileDriver};

struct ParsedLocator {
  const MediumDriver* driver;
  std::string rest;
};

Result<ParsedLocator> parse(const std::string& locator) {
  std::string usages;
  for (const MediumDriver* driver : kDrivers) {
    const size_t length = driver->scheme.size();
    if (locator.size() > length && locator.starts_with(driver->scheme) && locator[length] == ':') {
      return ParsedLocator{driver, locator.substr(length + 1)};
    }
    usages += fmt::format("{}{}", usages.empty() ? "" : " or ", driver->usage);
  }
  return Error{Status::BAD_LOCATOR,
               fmt::format("'{}' names no medium: a locator is {}", locator, usages)};
}

Result<void> check_size(const std::string& locator, uint64_t size_bytes) {
  if (size_bytes < kMediaGrainBytes) {
    return Error{
        Status::TOO_SMALL,
        fmt::format("{}: {} bytes are too few; a medium has 2 MiB or more", locator, size_bytes)};
  }
  if (size_bytes % kMediaGrainBytes != 0) {
    return Error{Status::MISALIGNED,
                 fmt::format("{}: {} bytes are no multiple of 2 MiB; {} would be", locator,
                             size_bytes, size_bytes / kMediaGrainBytes * kMediaGrainBytes)};
  }
  return {};
}

}  // namespace

std::optional<MediaId> Medium::id() const {
  struct stat info;
  if (fstat(lock_fd(), &info) != 0) return std::nullopt;
  return MediaId{info.st_dev, info.st_ino};
}

Result<void> Medium::sync(std::byte*, uint64_t) const { return {}; }

Result<void> Medium::open_locks() {
  const std::string self = fmt::format("/proc/self/fd/{}", fd());
  lock_fd_ = open_file(self, writable_ ? O_RDWR : O_RDONLY);
  if (lock_fd() < 0) return system_error("cannot open again " + traits_.description, errno);
  return {};
}

Result<MediaMapping> MediaMapping::map(const Medium& medium, int fd, uint64_t size_bytes) {
  const std::string& path = medium.traits().description;
  const size_t reserved_bytes = size_bytes + kMediaGrainBytes;
  void* reserved =
      mmap(nullptr, reserved_bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (reserved == MAP_FAILED) return system_error("no addresses to map " + path, errno);
  auto* first = static_cast<std::byte*>(reserved);
  const size_t gap = -reinterpret_cast<uintptr_t>(first) % kMediaGrainBytes;
  const int protection = medium.writable() ? PROT_READ | PROT_WRITE : PROT_READ;
  void* mapped = mmap(first + gap, size_bytes, protection, medium.mmap_flags() | MAP_FIXED, fd, 0);
  if (mapped == MAP_FAILED) {
    const int error_number = errno;
    munmap(reserved, reserved_bytes);
    return system_error("cannot map " + path, error_number);
  }
  if (gap > 0) munmap(first, gap);
  munmap(first + gap + size_bytes, kMediaGrainBytes - gap);
  // A hint, for tmpfs: no harm if it is refused.
  (void)madvise(mapped, size_bytes, MADV_HUGEPAGE);
  MediaMapping mapping;
  mapping.base_ = first + gap;
  mapping.size_bytes_ = size_bytes;
  return mapping;
}

MediaMapping::MediaMapping(MediaMapping&& other) noexcept { *this = std::move(other); }

MediaMapping& MediaMapping::operator=(MediaMapping&& other) noexcept {
  std::swap(base_, other.base_);
  std::swap(size_bytes_, other.size_bytes_);
  return *this;
}

MediaMapping::~MediaMapping() {
  if (base_ != nullptr) munmap(base_, size_bytes_);
}

Result<std::unique_ptr<Media>> Media::map(std::unique_ptr<Medium> medium) {
  auto mapping = MediaMapping::map(*medium, medium->fd(), medium->size_bytes());
  if (!mapping) return mapping.error();
  std::unique_ptr<Media> media(new Media);
  media->medium_ = std::move(medium);
  media->mapping_ = std::move(*mapping);
  media->guard_ = FaultGuard(media->base(), media->size_bytes(), media->traits().page_bytes);
  return media;
}

Media::~Media() = default;

std::optional<Error> Media::failure() const {
  const auto fault = guard_.fault();
  if (!fault) return std::nullopt;
  struct stat now {};
  const bool cut = !fault->memory_error && fstat(lock_fd(), &now) == 0 && S_ISREG(now.st_mode) &&
                   static_cast<uint64_t>(now.st_size) < fault->offset + fault->bytes;
  return Error{
      Status::MEDIA_ERROR,
      fmt::format(
          "{}: bytes {} to {} cannot be read or stored ({}); nothing is stored through this handle "
          "any more: close it, {}, and open the pool again",
          traits().description, fault->offset, fault->offset + fault->bytes - 1,
          fault->memory_error ? "the hardware reports an uncorrectable memory error"
          : cut               ? fmt::format("the file was cut short to {} bytes", now.st_size)
                              : "its filesystem is full, or its device returned an error",
          cut ? "restore the file" : "mend the medium")};
}

Result<void> Media::protect(uint64_t offset, uint64_t size, bool writable) {
  if (offset % traits().page_bytes != 0 || size % traits().page_bytes != 0)
    return Status::MISALIGNED;
  if (offset > size_bytes() || size > size_bytes() - offset) return Status::INVALID_ARGUMENT;
  if (mprotect(base() + offset, size, writable ? PROT_READ | PROT_WRITE : PROT_READ) != 0)
    return system_error("cannot change the protection of " + traits().description, errno);
  return {};
}

Result<void> Media::sync(uint64_t offset, uint64_t size) {
  if (offset > size_bytes() || size > size_bytes() - offset) return Status::INVALID_ARGUMENT;
  return medium_->sync(base() + offset, size);
}

Result<MediaMapping> Media::map_again() const {
  // Through an open file of its own: one that a mapping holds on to keeps its locks.
  const std::string self = fmt::format("/proc/self/fd/{}", lock_fd());
  const UniqueFd fd = open_file(self, writable() ? O_RDWR : O_RDONLY);
  if (fd.get() < 0) return system_error("cannot open again " + traits().description, errno);
  auto mapping = MediaMapping::map(*medium_, fd.get(), size_bytes());
  if (!mapping) return mapping;
  if (madvise(mapping->base(), size_bytes(), MADV_DONTFORK) != 0)
    return system_error("cannot keep from children " + traits().description, errno);
  return mapping;
}

Result<std::unique_ptr<Media>> create_media(const std::string& locator,
                                            const MediaCreateOptions& options) {
  const Result<ParsedLocator> parsed = parse(locator);
  if (!parsed) return parsed.error();
  if (const Result<void> size = check_size(locator, options.size_bytes); !size) return size.error();
  auto medium = parsed->driver->make(parsed->rest, options);
  if (!medium) return medium.error();
  auto media = Media::map(*std::move(medium));
  if (!media) return media;
  if (options.fill) {
    if (Result<void> filled = options.fill(**media); !filled) return filled.error();
  }
  if (Result<void> kept = (*media)->medium_->keep(options); !kept) return kept.error();
  return media;
}

Result<std::unique_ptr<Media>> open_media(const std::string& locator, MediaUse use) {
  const Result<ParsedLocator> parsed = parse(locator);
  if (!parsed) return parsed.error();
  auto medium = parsed->driver->open(parsed->rest, use);
  if (!medium) return medium.error();
  return Media::map(*std::move(medium));
}

bool Media::has_name() const {
  struct stat info;
  return fstat(lock_fd(), &info) != 0 || info.st_nlink > 0;
}

Result<void> remove_media(const std::string& locator, const std::optional<MediaId>& only) {
  const Result<ParsedLocator> parsed = parse(locator);
  if (!parsed) return parsed.error();
  return parsed->driver->remove(parsed->rest, only);
}

}  // namespace bowhead
