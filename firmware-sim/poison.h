// SPDX-License-Identifier: Apache-2.0
// The lines of a device's memory that are poisoned, and the poison list: those of them that the
// device tells hosts (CXL r3.2, 8.2.10.9.4.1). Nothing is stored in the memory itself: poison is
// laid over it, and what lies below is unchanged.
//
// Invariants
//   P1 Ranges do not overlap, and are whole lines.
//   P2 Ranges that touch and have the same source are one if both are listed, or neither is.
//   P3 At most kRecordsMax ranges are listed. While a range is not listed, the list has overflowed;
//      it may also have when all are: only a scan clears that.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <vector>

#include "firmware-sim/cxl_mailbox.h"

namespace bowhead::device {

struct PoisonedRange {
  uint64_t offset = 0;  ///< of the first line
  uint64_t bytes = 0;
  cxl::PoisonSource source = cxl::PoisonSource::UNKNOWN;
};

/// Not thread-safe.
class PoisonMap {
 public:
  static constexpr uint32_t kRecordsMax = 1024;  ///< of the poison list

  bool is_poisoned(uint64_t offset, uint64_t bytes) const;
  /// Poisons the lines of a range that are not poisoned yet, and returns these.
  std::vector<PoisonedRange> add(uint64_t offset, uint64_t bytes, cxl::PoisonSource source);
  /// The line is no longer poisoned.
  void clear(uint64_t line_offset);
  /// A scan of this range is complete: its lines are listed, as far as there is room.
  void relist(uint64_t offset, uint64_t bytes);

  /// Ranges within a range, cut to it, without what is before `from`; `count_max` at most.
  std::vector<PoisonedRange> listed(uint64_t offset, uint64_t bytes, uint64_t from,
                                    size_t count_max) const;
  /// The same, whether they are listed or not.
  std::vector<PoisonedRange> all(uint64_t offset, uint64_t bytes, uint64_t from,
                                 size_t count_max) const;

  bool overflowed() const { return overflowed_; }
  size_t ranges() const { return ranges_.size(); }
  uint64_t lines() const { return lines_; }
  uint64_t lines_of(cxl::PoisonSource source) const;

 private:
  struct Range {
    uint64_t end = 0;
    cxl::PoisonSource source = cxl::PoisonSource::UNKNOWN;
    bool listed = false;
  };
  using Ranges = std::map<uint64_t, Range>;

  Ranges::const_iterator first_behind(uint64_t offset) const;
  void insert(uint64_t begin, Range range);
  Ranges::iterator erase(Ranges::iterator at);
  bool try_to_list(uint64_t begin, const Range& range);
  std::vector<PoisonedRange> find(uint64_t offset, uint64_t bytes, uint64_t from, size_t count_max,
                                  bool all) const;

  Ranges ranges_;
  size_t listed_ = 0;
  uint64_t lines_ = 0;
  bool overflowed_ = false;
};

}  // namespace bowhead::device
