// SPDX-License-Identifier: Apache-2.0
// Private memory of this process, for buffers that passes walk over.
#pragma once

#include <sys/mman.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

namespace bowhead::bench {

/// Touched; in huge pages where the system provides them.
class PrivateMemory {
 public:
  explicit PrivateMemory(uint64_t bytes) : bytes_(bytes) {
    void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) return;
    madvise(memory, bytes, MADV_HUGEPAGE);
    std::memset(memory, 0, bytes);
    data_ = static_cast<std::byte*>(memory);
  }
  ~PrivateMemory() {
    if (data_ != nullptr) munmap(data_, bytes_);
  }
  PrivateMemory(const PrivateMemory&) = delete;
  PrivateMemory& operator=(const PrivateMemory&) = delete;

  /// Null if the allocation failed.
  std::byte* data() const { return data_; }
  std::span<uint64_t> words() const { return {reinterpret_cast<uint64_t*>(data_), bytes_ / 8}; }
  std::span<uint8_t> bytes() const { return {reinterpret_cast<uint8_t*>(data_), bytes_}; }

 private:
  const uint64_t bytes_;
  std::byte* data_ = nullptr;
};

}  // namespace bowhead::bench
