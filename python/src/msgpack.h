// SPDX-License-Identifier: Apache-2.0
// Writes the few forms of msgpack (https://msgpack.org) that events need.
#pragma once

#include <bit>
#include <cstdint>
#include <string>
#include <string_view>

namespace bowhead::python {

class Msgpack {
 public:
  const std::string& bytes() const { return bytes_; }
  void clear() { bytes_.clear(); }

  /// The head of an array or a map: that many values, or keys and values, follow.
  void array(size_t count) { head(count, 0x90, 16, 0, 0xdc); }
  void map(size_t count) { head(count, 0x80, 16, 0, 0xde); }

  void nil() { bytes_.push_back('\xc0'); }
  void text(std::string_view utf8) {
    head(utf8.size(), 0xa0, 32, 0xd9, 0xda);
    bytes_ += utf8;
  }
  void binary(std::string_view value) {
    head(value.size(), 0, 0, 0xc4, 0xc5);
    bytes_ += value;
  }
  void number(uint64_t value) {
    if (value < 0x80) return big_endian(value, 1);
    const int log2 = value <= 0xff ? 0 : value <= 0xffff ? 1 : value <= 0xffffffff ? 2 : 3;
    big_endian(0xcc + static_cast<uint64_t>(log2), 1);
    big_endian(value, 1 << log2);
  }
  void real(double value) {
    big_endian(0xcb, 1);
    big_endian(std::bit_cast<uint64_t>(value), 8);
  }
  void append(const Msgpack& values) { bytes_ += values.bytes_; }

 private:
  /// A length: within the first byte, or in one byte behind `code8` if that is not 0, or in two or
  /// four bytes behind `code16` and the code after it.
  void head(size_t length, unsigned fixed, size_t fixed_end, unsigned code8, unsigned code16) {
    if (length < fixed_end) return big_endian(fixed | length, 1);
    const bool is_8 = code8 != 0 && length <= 0xff;
    const bool is_16 = !is_8 && length <= 0xffff;
    big_endian(is_8 ? code8 : is_16 ? code16 : code16 + 1, 1);
    big_endian(length, is_8 ? 1 : is_16 ? 2 : 4);
  }

  void big_endian(uint64_t value, int count) {
    for (int byte = count - 1; byte >= 0; --byte)
      bytes_.push_back(static_cast<char>(value >> (8 * byte)));
  }

  std::string bytes_;
};

}  // namespace bowhead::python
