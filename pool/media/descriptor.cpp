// SPDX-License-Identifier: Apache-2.0
// fd:NUMBER: a memory file that another process opened, and whose descriptor this one was given, as
// a device is given the memory of a guest. A pool there can be opened, and is made and removed by
// those who know the memory by a name of its own.
//
// Who gave the descriptor vouches for the file: its owner and mode, which other media are judged
// by, say nothing of an anonymous one.

#include <fcntl.h>
#include <fmt/format.h>
#include <linux/magic.h>
#include <sys/stat.h>
#include <sys/vfs.h>

#include <cerrno>
#include <charconv>

#include "pool/media/backing_file.h"
#include "pool/media/medium.h"

namespace bowhead {
namespace {

class DescriptorMedium final : public Medium {
 public:
  static Result<std::unique_ptr<Medium>> open(int given, const std::string& locator, MediaUse use) {
    struct stat info {};
    struct statfs place {};
    const int mode = fcntl(given, F_GETFL);
    if (mode < 0 || fstat(given, &info) != 0 || fstatfs(given, &place) != 0)
      return system_error(locator, errno);
    if (!S_ISREG(info.st_mode))
      return Error{Status::NOT_SUPPORTED, locator + " is not a memory file"};
    std::unique_ptr<DescriptorMedium> medium(new DescriptorMedium);
    medium->writable_ = use != MediaUse::LOOK;
    if (medium->writable_ && (mode & O_ACCMODE) != O_RDWR)
      return Error{Status::SYSTEM, locator + " is not open for reading and writing"};
    medium->size_bytes_ = static_cast<uint64_t>(info.st_size) / kMediaGrainBytes * kMediaGrainBytes;
    if (medium->size_bytes_ == 0)
      return Error{Status::NOT_A_POOL,
                   fmt::format("{} has {} bytes, too few for a pool", locator, info.st_size)};
    const bool huge = place.f_type == HUGETLBFS_MAGIC;
    medium->traits_.kind = "fd";
    if (huge) medium->traits_.page_bytes = static_cast<uint64_t>(place.f_bsize);
    if (medium->traits_.page_bytes > kMediaGrainBytes)
      return Error{Status::MISALIGNED,
                   fmt::format("{} has pages of {} MiB: a pool needs 2 MiB or less", locator,
                               medium->traits_.page_bytes >> 20)};
    medium->traits_.survives_reboot =
        !huge && place.f_type != TMPFS_MAGIC && place.f_type != RAMFS_MAGIC;
    medium->traits_.description = locator + ", memory that another process has opened";
    constexpr int kFirst = 3;  // as open_file()
    medium->fd_ = UniqueFd(fcntl(given, F_DUPFD_CLOEXEC, kFirst));
    if (medium->fd() < 0) return system_error(locator, errno);
    medium->had_name_ = info.st_nlink > 0;
    if (auto locks = medium->open_locks(); !locks) return locks.error();
    return std::unique_ptr<Medium>(std::move(medium));
  }

  bool has_name() const override { return !had_name_ || Medium::has_name(); }
  Result<void> keep(const MediaCreateOptions&) override { return Status::NOT_SUPPORTED; }

 private:
  DescriptorMedium() = default;

  bool had_name_ = false;
};

Result<int> parse_descriptor(const std::string& text) {
  int number = -1;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  // Those below may be written to by any code that prints.
  constexpr int kFirst = 3;
  if (error == std::errc() && end == text.data() + text.size() && number >= kFirst) return number;
  return Error{Status::BAD_LOCATOR,
               fmt::format("'fd:{}': give the number of an open descriptor, 3 or more", text)};
}

Result<std::unique_ptr<Medium>> open_descriptor(const std::string& rest, MediaUse use) {
  const auto number = parse_descriptor(rest);
  if (!number) return number.error();
  return DescriptorMedium::open(*number, "fd:" + rest, use);
}

Error by_its_name(const std::string& rest) {
  return {Status::NOT_SUPPORTED,
          fmt::format("fd:{}: a pool is made and removed by the name of its memory", rest)};
}

Result<std::unique_ptr<Medium>> make_descriptor(const std::string& rest,
                                                const MediaCreateOptions&) {
  return by_its_name(rest);
}

Result<void> remove_descriptor(const std::string& rest, const std::optional<MediaId>&) {
  return by_its_name(rest);
}

}  // namespace

const MediumDriver kDescriptorDriver = {"fd", "", make_descriptor, open_descriptor,
                                        remove_descriptor};

}  // namespace bowhead
