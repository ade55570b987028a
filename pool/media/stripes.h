// SPDX-License-Identifier: Apache-2.0
// Stripes: how one range of addresses lies on several media (format/medium.h). Arithmetic only.
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <optional>
#include <vector>

#include "pool/media/medium.h"

namespace bowhead {

/// A process may have some 65,000 mappings. A range takes one for each stripe, twice if a GPU maps
/// it too, and more where parts are read-only.
inline constexpr uint64_t kStripesMax = 16384;

/// A range of a pool's offsets.
struct Range {
  uint64_t offset = 0, bytes = 0;
  uint64_t end() const { return offset + bytes; }
  bool operator==(const Range&) const = default;
};
inline uint64_t bytes_of(const std::vector<Range>& ranges) {
  uint64_t bytes = 0;
  for (const Range& range : ranges) bytes += range.bytes;
  return bytes;
}

/// A part of the range that is contiguous on one medium.
struct Piece {
  size_t medium = 0;
  uint64_t offset = 0;  ///< of the range
  uint64_t at = 0;      ///< in the bytes that the medium has of the range
  uint64_t bytes = 0;
};

class Stripes {
 public:
  /// All on one medium.
  explicit Stripes(uint64_t bytes) : stripe_bytes_(bytes), counts_{1} {}
  /// `counts[i]` stripes on medium i.
  Stripes(uint64_t stripe_bytes, std::vector<uint64_t> counts)
      : stripe_bytes_(stripe_bytes), counts_(std::move(counts)) {}

  /// The size of a stripe for a range of that size.
  static uint64_t stripe_bytes_for(uint64_t range_bytes) {
    return std::max(kMediaGrainBytes, std::bit_ceil(range_bytes / kStripesMax));
  }
  /// Spreads `range_bytes`, rounded up to whole stripes, over media: evenly, but to none more than
  /// it has room for (nullopt: any amount). Empty if they have not enough room together, or if
  /// there are fewer stripes than media.
  static std::optional<Stripes> spread(uint64_t range_bytes,
                                       const std::vector<std::optional<uint64_t>>& rooms);

  uint64_t stripe_bytes() const { return stripe_bytes_; }
  uint64_t bytes_on(size_t medium) const { return counts_[medium] * stripe_bytes_; }
  uint64_t bytes() const {
    return std::accumulate(counts_.begin(), counts_.end(), uint64_t{0}) * stripe_bytes_;
  }
  /// Calls visit(Piece) in the order of offsets. Neighbours on one medium are one piece.
  template <class Visit>
  void for_each(Visit visit) const;
  /// The rest of the range from `offset` on that lies on the medium of this byte.
  Piece piece_at(uint64_t offset) const;

 private:
  uint64_t stripe_bytes_;
  std::vector<uint64_t> counts_;
};

template <class Visit>
void Stripes::for_each(Visit visit) const {
  uint64_t offset = 0;
  for (uint64_t round = 0;;) {
    const auto left = static_cast<size_t>(
        std::count_if(counts_.begin(), counts_.end(), [&](uint64_t c) { return c > round; }));
    if (left == 0) return;
    const uint64_t rounds =
        left > 1 ? 1 : *std::max_element(counts_.begin(), counts_.end()) - round;
    for (size_t i = 0; i < counts_.size(); ++i) {
      if (counts_[i] <= round) continue;
      const Piece piece{i, offset, round * stripe_bytes_, rounds * stripe_bytes_};
      visit(piece);
      offset += piece.bytes;
    }
    round += rounds;
  }
}

inline Piece Stripes::piece_at(uint64_t offset) const {
  Piece found;
  for_each([&](const Piece& piece) {
    if (offset - piece.offset >= piece.bytes) return;
    const uint64_t skipped = offset - piece.offset;
    found = {piece.medium, offset, piece.at + skipped, piece.bytes - skipped};
  });
  return found;
}

inline std::optional<Stripes> Stripes::spread(uint64_t range_bytes,
                                              const std::vector<std::optional<uint64_t>>& rooms) {
  const uint64_t stripe = stripe_bytes_for(range_bytes);
  uint64_t left = range_bytes / stripe + (range_bytes % stripe != 0);
  if (left < rooms.size()) return std::nullopt;
  // The smallest rooms first: what they cannot take is spread over the others.
  std::vector<size_t> order(rooms.size());
  std::iota(order.begin(), order.end(), size_t{0});
  const auto room = [&](size_t i) { return rooms[i] ? *rooms[i] / stripe : UINT64_MAX; };
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return room(a) < room(b); });
  std::vector<uint64_t> counts(rooms.size());
  for (size_t i = 0; i < order.size(); ++i) {
    const uint64_t media_left = order.size() - i;
    uint64_t& count = counts[order[i]];
    count = std::min(room(order[i]), (left + media_left - 1) / media_left);
    if (count == 0) return std::nullopt;
    left -= count;
  }
  if (left != 0) return std::nullopt;
  return Stripes(stripe, std::move(counts));
}

}  // namespace bowhead
