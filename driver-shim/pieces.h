// SPDX-License-Identifier: Apache-2.0
// Pieces: which parts of some memory are taken.
#pragma once

#include <bowhead/format/common.h>

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <map>
#include <optional>

#include "base/assert.h"

namespace bowhead::driver {

/// In whole lines; the first place that is large enough. Not thread-safe.
class Pieces {
 public:
  static uint64_t lines(uint64_t bytes) {
    return std::max<uint64_t>((bytes + BH_LINE_BYTES - 1) / BH_LINE_BYTES, 1) * BH_LINE_BYTES;
  }

  /// All of so many bytes is free.
  void reset(uint64_t bytes) {
    free_.clear();
    if (bytes > 0) free_[0] = bytes;
  }
  std::optional<uint64_t> take(uint64_t bytes) {
    bytes = lines(bytes);
    for (auto it = free_.begin(); it != free_.end(); ++it) {
      if (it->second < bytes) continue;
      const auto [at, size] = *it;
      free_.erase(it);
      if (size > bytes) free_[at + bytes] = size - bytes;
      return at;
    }
    return std::nullopt;
  }
  void give_back(uint64_t at, uint64_t bytes) {
    bytes = lines(bytes);
    auto next = free_.lower_bound(at);
    BOWHEAD_ASSERT(next == free_.end() || at + bytes <= next->first);
    BOWHEAD_ASSERT(next == free_.begin() || std::prev(next)->first + std::prev(next)->second <= at);
    if (next != free_.end() && at + bytes == next->first) {
      bytes += next->second;
      next = free_.erase(next);
    }
    if (next != free_.begin()) {
      const auto before = std::prev(next);
      if (before->first + before->second == at) {
        before->second += bytes;
        return;
      }
    }
    free_[at] = bytes;
  }

 private:
  std::map<uint64_t, uint64_t> free_;  // bytes, by where they begin
};

}  // namespace bowhead::driver
