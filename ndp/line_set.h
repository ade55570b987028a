// SPDX-License-Identifier: Apache-2.0
// The lines of memory that a search has read, of those that some bytes lie in.
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "compression/frame.h"

namespace bowhead::ndp {

class LineSet {
 public:
  /// `apart`: so many bytes were read elsewhere.
  explicit LineSet(compression::ConstBytes bytes, uint64_t apart = 0)
      : first_(line_of(bytes.data())), apart_(apart) {
    if (bytes.empty()) return;
    last_ = line_of(&bytes.back()) - first_;
    words_.resize(last_ / 64 + 1);
    before_ = reinterpret_cast<uintptr_t>(bytes.data()) % 64;
    behind_ = 63 - reinterpret_cast<uintptr_t>(&bytes.back()) % 64;
  }
  void add(compression::ConstBytes some) {
    if (some.empty()) return;
    const uint64_t end = line_of(&some.back()) - first_ + 1;
    for (uint64_t line = line_of(some.data()) - first_; line < end;) {
      const uint64_t shift = line % 64, count = std::min(64 - shift, end - line);
      const uint64_t bits = ~uint64_t{0} >> (64 - count) << shift;
      const uint64_t fresh = bits & ~words_[line / 64];
      if (fresh != 0) bytes_ += 64 * static_cast<uint64_t>(std::popcount(fresh));
      words_[line / 64] |= fresh;
      line += count;
    }
  }
  /// Bytes that adding it would add.
  uint64_t missing(compression::ConstBytes some) const {
    uint64_t bytes = 0;
    for_lines(some,
              [&](size_t word, uint64_t bit) { bytes += (words_[word] & bit) == 0 ? 64 : 0; });
    return bytes;
  }
  void add(const LineSet& other) {
    bytes_ = 0;
    for (size_t i = 0; i < words_.size(); ++i) {
      words_[i] |= other.words_[i];
      bytes_ += 64 * static_cast<uint64_t>(std::popcount(words_[i]));
    }
  }
  /// Of these lines, as far as they are the bytes that this is about; and those that are apart.
  uint64_t bytes() const {
    if (bytes_ == 0) return apart_;
    return apart_ + bytes_ - (has(0) ? before_ : 0) - (has(last_) ? behind_ : 0);
  }

 private:
  bool has(uint64_t line) const { return (words_[line / 64] >> line % 64 & 1) != 0; }
  static uint64_t line_of(const uint8_t* at) { return reinterpret_cast<uintptr_t>(at) / 64; }
  template <class Each>
  void for_lines(compression::ConstBytes bytes, const Each& each) const {
    if (bytes.empty()) return;
    for (uint64_t line = line_of(bytes.data()); line <= line_of(&bytes.back()); ++line)
      each((line - first_) / 64, uint64_t{1} << (line - first_) % 64);
  }

  uint64_t first_, apart_;
  uint64_t bytes_ = 0;                // in whole lines
  uint64_t last_ = 0;                 // from the first one on
  uint64_t before_ = 0, behind_ = 0;  // bytes of these two lines that are not
  std::vector<uint64_t> words_;
};

}  // namespace bowhead::ndp
