// SPDX-License-Identifier: Apache-2.0
// dax:/dev/daxX.Y: memory that the kernel hands out as a device, such as a CXL region.
//
// The device is the object: it is always there, has one size, and no name to lose. What makes it
// a pool's are its bytes. So an object "exists" if the device starts with a superblock or with the
// label of a medium, is removed by overwriting these, and is made by overwriting all of the device
// with zeros. A process that still maps the former pool would read and write the new one; so make()
// is refused while a process of this machine has locks on the device, and the operator must stop
// other machines first.
//
// Own mmap() and sysfs, and not libpmem2, which reads sources of volatile memory through null
// pointers.

#include <bowhead/format/medium.h>
#include <bowhead/format/superblock.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "base/coherence.h"
#include "pool/media/backing_file.h"
#include "pool/media/fault_guard.h"
#include "pool/media/media.h"

namespace bowhead {
namespace {

constexpr uint64_t kStepBytes = 64 << 20;
constexpr uint64_t kCopies[] = {0, BH_SUPERBLOCK_COPY_OFFSET};

Error bad(Status status, std::string text) { return Error{status, std::move(text)}; }

/// What the kernel says of a device.
struct DaxDevice {
  UniqueFd fd;
  uint64_t number = 0;
  uint64_t size_bytes = 0;  ///< whole pages of 2 MiB
  uint64_t page_bytes = 0;
  int node = -1;
  bool persistent = false;
  bool writable = false;
};

template <class T>
T read_value(const std::string& path, T otherwise) {
  T value{};
  return std::ifstream(path) >> value ? value : otherwise;
}

Error cannot_open(const std::string& path, int error_number) {
  if (error_number == ENOENT)
    return bad(Status::NO_SUCH_POOL,
               path + " does not exist; `daxctl list` shows the devices that there are");
  if (error_number == ENXIO || error_number == ENODEV)
    return bad(Status::SYSTEM,
               fmt::format("{0} has no driver now; if its memory is used as a NUMA node, give "
                           "numa:NODE/NAME, else run `daxctl reconfigure-device --mode=devdax {1}`",
                           path, std::filesystem::path(path).filename().string()));
  return system_error(path, error_number);
}

Result<DaxDevice> look_at(const std::string& path, MediaUse use) {
  if (!path.starts_with("/dev/") || path.find('\0') != std::string::npos)
    return bad(Status::BAD_LOCATOR,
               fmt::format("'dax:{}': give the path of a device, such as dax:/dev/dax0.0", path));
  struct stat info {};
  if (lstat(path.c_str(), &info) != 0) return cannot_open(path, errno);
  const std::string folder =
      fmt::format("/sys/dev/char/{}:{}", major(info.st_rdev), minor(info.st_rdev));
  std::error_code ignored;
  const auto subsystem = std::filesystem::read_symlink(folder + "/subsystem", ignored);
  if (!S_ISCHR(info.st_mode) || subsystem.filename() != "dax")
    return bad(Status::NOT_SUPPORTED,
               path + " is not a dax device; `daxctl list` shows the devices that there are");
  DaxDevice device{.number = info.st_rdev};
  device.writable = use != MediaUse::LOOK;
  constexpr int kFlags = O_NOFOLLOW | O_NOCTTY;
  device.fd = open_file(path, (device.writable ? O_RDWR : O_RDONLY) | kFlags);
  if (device.fd.get() < 0) return cannot_open(path, errno);
  struct stat opened {};
  if (fstat(device.fd.get(), &opened) != 0) return system_error(path, errno);
  if (opened.st_rdev != info.st_rdev) return bad(Status::SYSTEM, path + " was replaced meanwhile");
  if (use == MediaUse::STORE) {
    if (auto trusted = check_trust(path, opened); !trusted) return trusted.error();
  }
  device.page_bytes = read_value<uint64_t>(folder + "/align", 0);
  if (device.page_bytes < 4096 || kMediaGrainBytes % device.page_bytes != 0)
    return bad(
        Status::MISALIGNED,
        fmt::format("{} maps in pages of {} bytes, and a pool needs pages of 2 MiB or 4 KiB: "
                    "make the device anew with an alignment of 2 MiB (`daxctl create-device "
                    "--align=2M`, `ndctl create-namespace --mode=devdax --align=2M`)",
                    path, device.page_bytes));
  device.size_bytes =
      read_value<uint64_t>(folder + "/size", 0) / kMediaGrainBytes * kMediaGrainBytes;
  device.node = read_value<int>(folder + "/target_node", -1);
  // Devices of libnvdimm hang below a bus of it; others are of volatile memory.
  const auto place = std::filesystem::canonical(folder, ignored).string();
  device.persistent = place.find("/ndbus") != std::string::npos;
  return device;
}

class DaxMedium final : public Medium {
 public:
  DaxMedium(DaxDevice device, const std::string& path) : number_(device.number) {
    fd_ = std::move(device.fd);
    size_bytes_ = device.size_bytes;
    writable_ = device.writable;
    traits_.kind = "dax";
    traits_.page_bytes = device.page_bytes;
    traits_.locks_by_node = true;
    traits_.survives_reboot = traits_.survives_power_loss = device.persistent;
    traits_.description = fmt::format(
        "{}{}, {}", path, device.node < 0 ? "" : fmt::format(" of NUMA node {}", device.node),
        device.persistent ? "persistent memory: what was published survives a power loss"
                          : "volatile memory: gone when it loses its power");
  }

  static Result<std::unique_ptr<DaxMedium>> open(const std::string& path, MediaUse use) {
    Result<DaxDevice> device = look_at(path, use);
    if (!device) return device.error();
    auto medium = std::make_unique<DaxMedium>(std::move(*device), path);
    if (auto locks = medium->open_locks(); !locks) return locks.error();
    auto first = MediaMapping::map(*medium, medium->fd(), kMediaGrainBytes);
    if (!first) return first.error();
    medium->first_ = std::move(*first);
    medium->guard_ =
        FaultGuard(medium->first_.base(), kMediaGrainBytes, medium->traits_.page_bytes);
    (void)medium->holds_pool();
    if (medium->guard_.failed())
      return bad(Status::MEDIA_ERROR, path + ": its first 2 MiB cannot be read");
    return medium;
  }

  /// It starts as a medium of a pool does.
  bool holds_pool() const {
    return std::any_of(std::begin(kCopies), std::end(kCopies), [&](uint64_t at) {
      const uint64_t word = magic(at).load();
      return word == BH_SUPERBLOCK_MAGIC || word == BH_MEDIUM_MAGIC;
    });
  }

  /// Some of its first bytes are not zero.
  bool has_data() const {
    return std::any_of(first_.base(), first_.base() + first_.size_bytes(),
                       [](std::byte byte) { return byte != std::byte{0}; });
  }

  /// A number of its own for each pool, or set of one, that the device has held.
  std::optional<MediaId> id() const override {
    bh_superblock copy;
    for (const uint64_t at : kCopies) {
      std::memcpy(&copy, first_.base() + at, sizeof copy);
      if (copy.magic == BH_SUPERBLOCK_MAGIC || copy.magic == BH_SUPERBLOCK_DESTROYED)
        return MediaId{number_, copy.pool_id[0]};
      bh_medium_label label;
      std::memcpy(&label, first_.base() + at, sizeof label);
      if (label.magic == BH_MEDIUM_MAGIC) return MediaId{number_, label.pool_id[0] ^ label.set_id};
    }
    return MediaId{number_, 0};
  }

  /// Makes the superblocks invalid, so that processes that map the pool notice: they load the same
  /// word. The fence makes the flushes complete before zeros follow.
  void forget_pool() const {
    for (const uint64_t at : kCopies) {
      magic(at).store(BH_SUPERBLOCK_DESTROYED);
      flush_lines(choose_flush_kind(true), first_.base() + at, 64);
    }
    full_fence();
  }

  /// Zeros in all of it, and in the memory itself: a line that stays in a cache could be written
  /// back over what another host stores later.
  Result<void> fill_with_zeros(const MediaCreateOptions& options) {
    const Result<MediaMapping> all = MediaMapping::map(*this, fd(), size_bytes_);
    if (!all) return all.error();
    const FaultGuard guard(all->base(), size_bytes_, traits_.page_bytes);
    const FlushKind flush = choose_flush_kind(true);
    for (uint64_t at = 0; at < size_bytes_;) {
      const uint64_t bytes = std::min(kStepBytes, size_bytes_ - at);
      std::memset(all->base() + at, 0, bytes);
      flush_lines(flush, all->base() + at, bytes);
      full_fence();
      at += bytes;
      if (const auto fault = guard.fault())
        return bad(
            Status::MEDIA_ERROR,
            fmt::format("{}: bytes {} to {} cannot be stored; `cxl list --media-errors` "
                        "names what is damaged",
                        traits_.description, fault->offset, fault->offset + fault->bytes - 1));
      if (options.progress && !options.progress(at, size_bytes_))
        return bad(Status::CANCELLED, traits_.description +
                                          ": interrupted; no pool was made, and what was there is "
                                          "overwritten in part");
    }
    return {};
  }

  void set_size(uint64_t bytes) { size_bytes_ = bytes; }

  Result<void> keep(const MediaCreateOptions&) override { return {}; }

 private:
  std::atomic_ref<uint64_t> magic(uint64_t at) const {
    return std::atomic_ref(*reinterpret_cast<uint64_t*>(first_.base() + at));
  }

  const uint64_t number_;
  MediaMapping first_;  ///< the page of the superblocks
  FaultGuard guard_;    ///< of that page
};

Error holds_none(const std::string& path) {
  return bad(Status::NO_SUCH_POOL,
             path +
                 " holds no pool; look for a slip in the locator, or make one with "
                 "`bowhead pool create`");
}

Result<std::unique_ptr<Medium>> make_dax(const std::string& path,
                                         const MediaCreateOptions& options) {
  auto medium = DaxMedium::open(path, MediaUse::STORE);
  if (medium.status() == Status::NO_SUCH_POOL)  // the device itself is missing
    return bad(Status::SYSTEM, medium.error().detail);
  if (!medium) return medium.error();
  DaxMedium& device = **medium;
  if (options.size_bytes > device.size_bytes())
    return bad(Status::MEDIUM_FULL,
               fmt::format("{} has {} MiB, and {} MiB are wanted: ask for less", path,
                           device.size_bytes() >> 20, options.size_bytes >> 20));
  const bool exists = device.holds_pool();
  if (exists && !options.replace) return bad(Status::POOL_EXISTS, path + " holds a pool already");
  if (exists && options.old && device.id() != options.old)
    return bad(Status::POOL_EXISTS, path + ": another process made a pool there meanwhile");
  if (!exists && !options.replace && device.traits().survives_reboot && device.has_data())
    return bad(Status::POOL_EXISTS, path +
                                        " is persistent memory and holds data that is no pool's: "
                                        "to overwrite it, use `bowhead pool create --force`");
  // Who names the old pool has its locks.
  if (!options.old && is_locked_by_any(device.lock_fd()))
    return bad(Status::IN_USE,
               path + ": processes still have a former pool there open; end them first");
  if (exists) {
    device.forget_pool();
    if (options.replaced) options.replaced();
  }
  device.set_size(options.size_bytes);
  if (auto filled = device.fill_with_zeros(options); !filled) return filled.error();
  return std::unique_ptr<Medium>(std::move(*medium));
}

Result<std::unique_ptr<Medium>> open_dax(const std::string& path, MediaUse use) {
  auto medium = DaxMedium::open(path, use);
  if (!medium) return medium.error();
  if (!(*medium)->holds_pool()) return holds_none(path);
  return std::unique_ptr<Medium>(std::move(*medium));
}

Result<uint64_t> capacity_of(const std::string& path) {
  const Result<DaxDevice> device = look_at(path, MediaUse::LOOK);
  // The device itself is missing, and not a pool on it.
  if (device.status() == Status::NO_SUCH_POOL) return bad(Status::SYSTEM, device.error().detail);
  if (!device) return device.error();
  return device->size_bytes;
}

/// Devices have the numbers in which this machine found them.
std::vector<std::string> all_devices() {
  std::vector<std::string> paths;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator("/sys/bus/dax/devices", error))
    paths.push_back("/dev/" + entry.path().filename().string());
  std::sort(paths.begin(), paths.end());
  return paths;
}

Result<void> remove_dax(const std::string& path, const std::optional<MediaId>& only) {
  auto medium = DaxMedium::open(path, MediaUse::REMOVE);
  if (!medium) return medium.error();
  if (!(*medium)->holds_pool()) return holds_none(path);
  if (only && (*medium)->id() != only)
    return bad(Status::CLOSED, path + " holds another pool by now");
  (*medium)->forget_pool();
  return {};
}

}  // namespace

Result<bool> device_holds_pool(const std::string& path) {
  const auto medium = DaxMedium::open(path, MediaUse::LOOK);
  if (!medium) return medium.error();
  return (*medium)->holds_pool();
}

const MediumDriver kDaxDriver = {"dax",      "dax:/dev/daxX.Y", make_dax,   open_dax,
                                 remove_dax, capacity_of,       all_devices};

}  // namespace bowhead
