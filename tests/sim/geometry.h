// SPDX-License-Identifier: Apache-2.0
// A geometry that users cannot request: so small that full tables, full probe sets and shared lines
// come at once, and a simulated pool costs a few hundred KiB. And its map: the meaning of each line
// of the pool, by which accesses are checked, described, and falsified (seeded_bugs.h).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "pool/core/layout.h"
#include "pool/core/words.h"

namespace bowhead::sim {

inline constexpr uint64_t kExtentBytes = 16384, kMinBlockBytes = 4096;

struct Shape {
  uint32_t hosts = 1;
  uint64_t extents = 8;
  uint64_t buckets = 5;
  uint32_t processes = 3;  ///< process slots
  uint32_t leases = 4;
  uint32_t locks = 2;
  uint64_t worded = UINT64_MAX;  ///< extents for whose slots a host has words; at most all
  uint32_t namespaces = 1;
  uint64_t growth = 0;  ///< extents of each set by which the pool grows; 0: it cannot
};

inline constexpr uint64_t kGrownSets = 3;  ///< that there is room for at once

bh_geometry small_geometry(const Shape& shape);
/// The size of media for `shape.growth` extents.
uint64_t grown_bytes(const Shape& shape);

enum class Kind : uint8_t { NOTHING, REGION, DESCRIPTOR, HEADER, KEY, WORDS, PAYLOAD };

/// The meaning of a line.
struct Place {
  Kind kind = Kind::NOTHING;
  uint8_t host = 0;    ///< REGION: of which host
  uint16_t index = 0;  ///< REGION: part; else: extent

  bool is_part(uint32_t part) const { return kind == Kind::REGION && index == part; }
  /// Only the processes of one host read it.
  bool is_private() const { return kind == Kind::REGION && index >= BH_PART_PRIVATE; }
};

class Map {
 public:
  explicit Map(const bh_geometry& geometry);
  uint64_t lines() const { return places_.size(); }
  Place at_line(uint64_t line) const { return places_[line]; }
  Place at(uint64_t offset) const { return places_[offset / BH_LINE_BYTES]; }
  /// "host 1 hazards[3]", "extent 2 header 1 word 0", for messages.
  std::string describe(uint64_t offset) const;
  const core::Layout& layout() const { return layout_; }
  /// No part of set 0: there only while a process has mapped a further set.
  bool in_further_set(uint64_t offset) const {
    return !further_.empty() && further_[offset / BH_LINE_BYTES];
  }

 private:
  void mark(uint64_t offset, uint64_t bytes, Place place);

  core::Layout layout_;
  std::vector<Place> places_;
  std::vector<bool> further_;  ///< by line; empty: the pool cannot grow
};

}  // namespace bowhead::sim
