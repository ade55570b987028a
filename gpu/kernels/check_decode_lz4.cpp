// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <cstdint>
#include <limits>
#include <utility>

#include "gpu/kernels/check.h"

namespace bowhead::gpu {
namespace {

template <class... Args>
Error wrong(fmt::format_string<Args...> format, Args&&... args) {
  return Error{Status::INVALID_ARGUMENT, fmt::format(format, std::forward<Args>(args)...)};
}

Result<void> check_array(const char* name, const void* address, uintptr_t multiple) {
  if (address == nullptr) return wrong("{} is null", name);
  if (reinterpret_cast<uintptr_t>(address) % multiple == 0) return {};
  return wrong("{} is at {:#x}, no multiple of {}", name, reinterpret_cast<uintptr_t>(address),
               multiple);
}

Result<void> check_end(const char* name, uint32_t stream, const void* address, size_t size_bytes) {
  constexpr size_t kMostBytes = std::numeric_limits<int32_t>::max();
  if (address == nullptr) return wrong("{} of stream {} is null", name, stream);
  if (size_bytes != 0 && size_bytes <= kMostBytes) return {};
  return wrong("{}_bytes of stream {} is {}: 1 to {}", name, stream, size_bytes, kMostBytes);
}

}  // namespace

Result<void> check(const DecodeLz4& work) {
  if (work.stream_count == 0) return {};
  constexpr uintptr_t kWord = sizeof(size_t);
  if (auto good = check_array("from", work.from, kWord); !good) return good;
  if (auto good = check_array("from_bytes", work.from_bytes, kWord); !good) return good;
  if (auto good = check_array("to", work.to, kWord); !good) return good;
  if (auto good = check_array("to_bytes", work.to_bytes, kWord); !good) return good;
  if (auto good = check_array("decoded_bytes", work.decoded_bytes, kWord); !good) return good;
  if (auto good = check_array("faults", work.faults, sizeof(uint32_t)); !good) return good;
  for (uint32_t i = 0; i < work.stream_count; ++i) {
    if (auto good = check_end("from", i, work.from[i], work.from_bytes[i]); !good) return good;
    if (auto good = check_end("to", i, work.to[i], work.to_bytes[i]); !good) return good;
  }
  return {};
}

}  // namespace bowhead::gpu
