// SPDX-License-Identifier: Apache-2.0
#include "pool/media/media.h"

#include <fmt/format.h>
#include <sys/stat.h>

#include "pool/media/drivers.h"

namespace bowhead {
namespace {

const MediaDriver* const kDrivers[] = {&kShmDriver, &kFileDriver};

struct ParsedLocator {
  const MediaDriver* driver;
  std::string rest;
};

Result<ParsedLocator> parse(const std::string& locator) {
  std::string usages;
  for (const MediaDriver* driver : kDrivers) {
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

std::optional<Error> Media::failure() const {
  const auto fault = guard_.fault();
  if (!fault) return std::nullopt;
  struct stat now {};
  const bool cut = !fault->memory_error && fstat(lock_fd_, &now) == 0 &&
                   static_cast<uint64_t>(now.st_size) < fault->offset + fault->bytes;
  return Error{
      Status::MEDIA_ERROR,
      fmt::format(
          "{}: bytes {} to {} cannot be read or stored ({}); nothing is stored through this handle "
          "any more: close it, {}, and open the pool again",
          traits_.description, fault->offset, fault->offset + fault->bytes - 1,
          fault->memory_error ? "the hardware reports an uncorrectable memory error"
          : cut               ? fmt::format("the file was cut short to {} bytes", now.st_size)
                              : "its filesystem is full, or its device returned an error",
          cut ? "restore the file" : "mend the medium")};
}

Result<std::unique_ptr<Media>> create_media(const std::string& locator,
                                            const MediaCreateOptions& options) {
  const Result<ParsedLocator> parsed = parse(locator);
  if (!parsed) return parsed.error();
  if (const Result<void> size = check_size(locator, options.size_bytes); !size) return size.error();
  return parsed->driver->create(parsed->rest, options);
}

Result<std::unique_ptr<Media>> open_media(const std::string& locator) {
  const Result<ParsedLocator> parsed = parse(locator);
  if (!parsed) return parsed.error();
  return parsed->driver->open(parsed->rest);
}

Result<void> remove_media(const std::string& locator) {
  const Result<ParsedLocator> parsed = parse(locator);
  if (!parsed) return parsed.error();
  return parsed->driver->remove(parsed->rest);
}

}  // namespace bowhead
