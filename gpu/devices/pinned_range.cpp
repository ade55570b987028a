// SPDX-License-Identifier: Apache-2.0
#include "gpu/devices/pinned_range.h"

#include <fmt/format.h>
#include <linux/capability.h>
#include <linux/io_uring.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>
#include <vector>

namespace bowhead::gpu {
namespace {

constexpr size_t kMostBufferBytes = size_t{1} << 30;  ///< of a fixed buffer, by the kernel

/// Its file, or -1 and errno. Never used for I/O: only its fixed buffers matter, which the kernel
/// pins for writing and for long (FOLL_WRITE | FOLL_LONGTERM), as drivers pin registered memory.
int make_ring() {
  io_uring_params params = {};
  return static_cast<int>(syscall(SYS_io_uring_setup, 1, &params));
}

/// 0, or the kernel's error.
int fix_buffers(int ring, const std::vector<iovec>& buffers) {
  const long done = syscall(SYS_io_uring_register, ring, IORING_REGISTER_BUFFERS, buffers.data(),
                            static_cast<unsigned>(buffers.size()));
  return done == 0 ? 0 : errno;
}

/// Whether this process may lock memory without a limit.
bool may_lock_all() {
  __user_cap_header_struct header = {_LINUX_CAPABILITY_VERSION_3, 0};
  __user_cap_data_struct data[_LINUX_CAPABILITY_U32S_3] = {};
  if (syscall(SYS_capget, &header, data) != 0) return false;
  return (data[CAP_TO_INDEX(CAP_IPC_LOCK)].effective & CAP_TO_MASK(CAP_IPC_LOCK)) != 0;
}

Error refused(const char* what, size_t size_bytes, const void* memory, int error_number) {
  const bool is_limit = error_number == ENOMEM || error_number == EMFILE || error_number == ENFILE;
  const bool is_kind = error_number == EFAULT || error_number == EOPNOTSUPP;
  return {is_limit  ? Status::LIMIT_REACHED
          : is_kind ? Status::NOT_SUPPORTED
                    : Status::SYSTEM,
          fmt::format("register_host: the kernel does not {} {} bytes at {}: {}{}", what,
                      size_bytes, memory, std::strerror(error_number),
                      is_kind ? " (a read-only mapping, or a file whose filesystem has to know of "
                                "each write)"
                              : "")};
}

}  // namespace

std::string PinnedRange::fault() {
  const int ring = make_ring();
  if (ring < 0) {
    return fmt::format("the kernel offers no io_uring to pin memory with: {}",
                       std::strerror(errno));
  }
  close(ring);
  rlimit locked = {};
  if (may_lock_all() ||
      (getrlimit(RLIMIT_MEMLOCK, &locked) == 0 && locked.rlim_cur == RLIM_INFINITY)) {
    return {};
  }
  return fmt::format("this process may lock {} bytes of memory only; raise `ulimit -l`",
                     locked.rlim_cur);
}

Result<PinnedRange> PinnedRange::pin(void* memory, size_t size_bytes, DeviceAccess access) {
  PinnedRange pinned;
  if (access == DeviceAccess::READ) {
    if (mlock(memory, size_bytes) != 0) return refused("lock", size_bytes, memory, errno);
    pinned.locked_ = memory;
    pinned.locked_bytes_ = size_bytes;
    return pinned;
  }
  std::vector<iovec> buffers;
  for (size_t at = 0; at < size_bytes; at += kMostBufferBytes) {
    buffers.push_back(
        {static_cast<std::byte*>(memory) + at, std::min(kMostBufferBytes, size_bytes - at)});
  }
  const int ring = make_ring();
  if (ring < 0) return refused("offer an io_uring to pin", size_bytes, memory, errno);
  if (const int error_number = fix_buffers(ring, buffers); error_number != 0) {
    close(ring);
    return refused("pin for writing", size_bytes, memory, error_number);
  }
  pinned.ring_ = ring;
  return pinned;
}

PinnedRange::PinnedRange(PinnedRange&& other) noexcept { *this = std::move(other); }

PinnedRange& PinnedRange::operator=(PinnedRange&& other) noexcept {
  std::swap(ring_, other.ring_);
  std::swap(locked_, other.locked_);
  std::swap(locked_bytes_, other.locked_bytes_);
  return *this;
}

PinnedRange::~PinnedRange() {
  if (ring_ >= 0) {
    // The end of a ring releases its pages some time later, this call does so now.
    (void)syscall(SYS_io_uring_register, ring_, IORING_UNREGISTER_BUFFERS, nullptr, 0U);
    close(ring_);
  }
  // Memory that is not mapped any more is not locked.
  if (locked_ != nullptr) (void)munlock(locked_, locked_bytes_);
}

}  // namespace bowhead::gpu
