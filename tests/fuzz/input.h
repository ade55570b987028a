// SPDX-License-Identifier: Apache-2.0
// The input of a fuzz target, from which it takes its decisions: bytes in order, zeros after the
// end.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string_view>

/// The entry of a fuzz target, as libFuzzer calls it. Aborts on a fault.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

namespace bowhead::fuzz {

class Input {
 public:
  Input(const uint8_t* data, size_t size) : left_(reinterpret_cast<const char*>(data), size) {}

  bool empty() const { return left_.empty(); }

  /// The next integer, little-endian.
  template <class T>
  T take() {
    T value = 0;
    const std::string_view bytes = take_bytes(sizeof value);
    if (!bytes.empty()) std::memcpy(&value, bytes.data(), bytes.size());
    return value;
  }

  /// The next `size` bytes, or all remaining ones if they are fewer.
  std::string_view take_bytes(size_t size) {
    const std::string_view bytes = left_.substr(0, size);
    left_.remove_prefix(bytes.size());
    return bytes;
  }

 private:
  std::string_view left_;
};

}  // namespace bowhead::fuzz
