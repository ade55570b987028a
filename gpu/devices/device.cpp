// SPDX-License-Identifier: Apache-2.0
#include "gpu/devices/device.h"

#include <fmt/format.h>
#include <sys/mman.h>

#include <algorithm>
#include <cerrno>

namespace bowhead::gpu {

const char* pointer_kind_name(PointerKind kind) {
  switch (kind) {
    case PointerKind::HOST:
      return "host";
    case PointerKind::REGISTERED:
      return "registered";
    case PointerKind::DEVICE:
      return "device";
    case PointerKind::OTHER:
      return "other";
    case PointerKind::MANAGED:
      return "managed";
  }
  return "unknown";
}

Result<PointerKind> Device::check_reached(std::string_view what, const void* memory,
                                          size_t size_bytes) {
  const auto* const first = static_cast<const std::byte*>(memory);
  const auto* const last = first + std::max<size_t>(size_bytes, 1) - 1;
  PointerKind kind{};
  for (const std::byte* end : {first, last}) {
    const auto found = classify(end);
    if (!found) return found.error();
    kind = *found;
    if (kind == PointerKind::HOST || kind == PointerKind::OTHER)
      return Error{Status::INVALID_ARGUMENT,
                   fmt::format("{}: the {} byte is in {} memory, which this device does not reach",
                               what, end == first ? "first" : "last", pointer_kind_name(kind))};
  }
  return kind;
}

Result<void> Device::check_host_range(const void* memory, size_t size_bytes) {
  constexpr size_t kPageBytes = 4096;
  if (!memory || size_bytes == 0) {
    return Error{Status::INVALID_ARGUMENT, "register_host: there is no memory to register"};
  }
  if (reinterpret_cast<uintptr_t>(memory) % kPageBytes != 0 || size_bytes % kPageBytes != 0) {
    return Error{Status::MISALIGNED,
                 fmt::format("register_host: {} bytes at {}: both have to be multiples of 4 KiB",
                             size_bytes, memory)};
  }
  // A driver may say anything of unmapped memory. This looks at the mappings, and syncs nothing.
  if (msync(const_cast<void*>(memory), size_bytes, MS_ASYNC) != 0 && errno == ENOMEM) {
    return Error{Status::INVALID_ARGUMENT,
                 fmt::format("register_host: some of the {} bytes at {} are not mapped, or no more",
                             size_bytes, memory)};
  }
  return {};
}

}  // namespace bowhead::gpu
