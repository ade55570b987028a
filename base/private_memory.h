// SPDX-License-Identifier: Apache-2.0
// Large zeroed memory of this process, in huge pages where the system provides them.
#pragma once

#include <sys/mman.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <utility>

namespace bowhead {

class PrivateMemory {
 public:
  PrivateMemory() = default;
  /// A page is given by the system when it is first stored to.
  explicit PrivateMemory(uint64_t bytes) : bytes_(bytes) {
    void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) return;
    madvise(memory, bytes, MADV_HUGEPAGE);
    data_ = static_cast<std::byte*>(memory);
  }
  ~PrivateMemory() {
    if (data_ != nullptr) munmap(data_, bytes_);
  }
  PrivateMemory(PrivateMemory&& other) noexcept { *this = std::move(other); }
  PrivateMemory& operator=(PrivateMemory&& other) noexcept {
    std::swap(bytes_, other.bytes_);
    std::swap(data_, other.data_);
    return *this;
  }
  PrivateMemory(const PrivateMemory&) = delete;
  PrivateMemory& operator=(const PrivateMemory&) = delete;

  /// Null if the system refused it.
  std::byte* data() const { return data_; }
  /// Stores to all of it: its pages are then of the node of this thread.
  void touch() const {
    if (data_ != nullptr) std::memset(data_, 0, bytes_);
  }
  std::span<uint64_t> words() const { return {reinterpret_cast<uint64_t*>(data_), bytes_ / 8}; }
  std::span<uint8_t> bytes() const { return {reinterpret_cast<uint8_t*>(data_), bytes_}; }

 private:
  uint64_t bytes_ = 0;
  std::byte* data_ = nullptr;
};

}  // namespace bowhead
