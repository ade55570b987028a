// SPDX-License-Identifier: Apache-2.0
// Pieces: which parts of some memory are taken.
#pragma once

#include <bowhead/format/common.h>

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <map>
#include <new>
#include <optional>

#include "base/assert.h"

namespace bowhead::driver {

/// In whole lines; the first place that is large enough. Not thread-safe.
class Pieces {
 public:
  static uint64_t lines(uint64_t bytes) {
    return std::max<uint64_t>((bytes + BH_LINE_BYTES - 1) / BH_LINE_BYTES, 1) * BH_LINE_BYTES;
  }

  /// All of so many bytes is free. May throw, unless it is 0.
  void reset(uint64_t bytes) {
    pieces_.clear();
    if (bytes > 0) pieces_[0] = {bytes, false};
  }
  /// Whether there is a place that is large enough.
  bool has(uint64_t bytes) const {
    return std::any_of(pieces_.begin(), pieces_.end(),
                       [&](const auto& piece) { return suits(piece.second, lines(bytes)); });
  }
  /// None: there is no place, or no memory to note it.
  std::optional<uint64_t> take(uint64_t bytes) noexcept {
    bytes = lines(bytes);
    const auto it = std::find_if(pieces_.begin(), pieces_.end(),
                                 [&](const auto& piece) { return suits(piece.second, bytes); });
    if (it == pieces_.end()) return std::nullopt;
    const auto [at, piece] = *it;
    try {
      if (piece.bytes > bytes) pieces_[at + bytes] = {piece.bytes - bytes, false};
    } catch (const std::bad_alloc&) {
      return std::nullopt;
    }
    it->second = {bytes, true};
    return at;
  }
  void give_back(uint64_t at) noexcept {
    auto it = pieces_.find(at);
    BOWHEAD_ASSERT(it != pieces_.end() && it->second.is_taken);
    it->second.is_taken = false;
    if (const auto next = std::next(it); next != pieces_.end() && !next->second.is_taken) {
      it->second.bytes += next->second.bytes;
      pieces_.erase(next);
    }
    if (it == pieces_.begin() || std::prev(it)->second.is_taken) return;
    std::prev(it)->second.bytes += it->second.bytes;
    pieces_.erase(it);
  }

 private:
  struct Piece {
    uint64_t bytes = 0;
    bool is_taken = false;
  };
  static bool suits(const Piece& piece, uint64_t bytes) {
    return !piece.is_taken && piece.bytes >= bytes;
  }

  std::map<uint64_t, Piece> pieces_;  // of all of the memory, by where they begin
};

}  // namespace bowhead::driver
