// SPDX-License-Identifier: Apache-2.0
// Include it after a file's headers and target: each such file gets its own class.
#pragma once

namespace bowhead::compression {
namespace {

/// A stream of bits, the lowest first. May write up to 8 bytes after its last byte.
class BitSink {
 public:
  explicit BitSink(uint8_t* to) : to_(to), begin_(to) {}
  /// At most 56 bits. Whole bytes are written each time, so that there is no branch on a full word:
  /// how full it is cannot be predicted.
  void add(uint64_t bits, uint32_t count) {
    pending_ |= bits << fill_;
    memcpy(to_, &pending_, 8);
    const uint32_t total = fill_ + count;
    to_ += total / 8;
    pending_ >>= total & ~7u;
    fill_ = total % 8;
  }
  uint64_t count() const { return static_cast<uint64_t>(to_ - begin_) * 8 + fill_; }

 private:
  uint8_t* to_;
  uint8_t* begin_;
  uint64_t pending_ = 0;
  uint32_t fill_ = 0;
};

}  // namespace
}  // namespace bowhead::compression
