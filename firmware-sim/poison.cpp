// SPDX-License-Identifier: Apache-2.0
#include "firmware-sim/poison.h"

#include <algorithm>
#include <iterator>
#include <limits>

#include "base/assert.h"

namespace bowhead::device {
namespace {

using cxl::kLineBytes;

uint64_t line_begin(uint64_t offset) { return offset / kLineBytes * kLineBytes; }

/// Of the line in which the range ends, which lies below 2^64.
uint64_t line_end(uint64_t offset, uint64_t bytes) {
  BOWHEAD_ASSERT(bytes <= std::numeric_limits<uint64_t>::max() - kLineBytes - offset);
  return line_begin(offset + bytes + kLineBytes - 1);
}

}  // namespace

/// The first range that ends behind the offset.
PoisonMap::Ranges::const_iterator PoisonMap::first_behind(uint64_t offset) const {
  auto at = ranges_.upper_bound(offset);
  if (at != ranges_.begin() && std::prev(at)->second.end > offset) --at;
  return at;
}

bool PoisonMap::is_poisoned(uint64_t offset, uint64_t bytes) const {
  if (bytes == 0 || ranges_.empty()) return false;
  const auto at = first_behind(offset);
  return at != ranges_.end() && at->first - std::min(at->first, offset) < bytes;
}

/// Whether there is room for it, if it is not to be one with a range beside it.
bool PoisonMap::try_to_list(uint64_t begin, const Range& range) {
  const auto is_like = [&](const Range& other) {
    return other.listed && other.source == range.source;
  };
  const auto after = ranges_.find(range.end);
  const auto at = ranges_.lower_bound(begin);
  const bool joins = (after != ranges_.end() && is_like(after->second)) ||
                     (at != ranges_.begin() && std::prev(at)->second.end == begin &&
                      is_like(std::prev(at)->second));
  if (joins || listed_ < kRecordsMax) return true;
  overflowed_ = true;
  return false;
}

PoisonMap::Ranges::iterator PoisonMap::erase(Ranges::iterator at) {
  lines_ -= (at->second.end - at->first) / kLineBytes;
  listed_ -= at->second.listed;
  return ranges_.erase(at);
}

/// Of lines that no range has.
void PoisonMap::insert(uint64_t begin, Range range) {
  const auto joins = [&](const Range& other) {
    return other.listed == range.listed && other.source == range.source;
  };
  auto after = ranges_.find(range.end);
  if (after != ranges_.end() && joins(after->second)) {
    range.end = after->second.end;
    erase(after);
  }
  const auto at = ranges_.lower_bound(begin);
  if (at != ranges_.begin() && std::prev(at)->second.end == begin && joins(std::prev(at)->second)) {
    begin = std::prev(at)->first;
    erase(std::prev(at));
  }
  ranges_.emplace(begin, range);
  listed_ += range.listed;
  lines_ += (range.end - begin) / kLineBytes;
}

std::vector<PoisonedRange> PoisonMap::add(uint64_t offset, uint64_t bytes,
                                          cxl::PoisonSource source) {
  std::vector<PoisonedRange> added;
  if (bytes == 0) return added;
  const uint64_t end = line_end(offset, bytes);
  for (uint64_t begin = line_begin(offset); begin < end;) {
    const auto next = first_behind(begin);
    if (next != ranges_.end() && next->first <= begin) {
      begin = next->second.end;
      continue;
    }
    Range range{.end = next == ranges_.end() ? end : std::min(end, next->first), .source = source};
    range.listed = try_to_list(begin, range);
    added.push_back({begin, range.end - begin, source});
    insert(begin, range);
    begin = added.back().offset + added.back().bytes;
  }
  return added;
}

void PoisonMap::clear(uint64_t line_offset) {
  const auto found = first_behind(line_offset);
  if (found == ranges_.end() || found->first > line_offset) return;
  const auto [begin, range] = *found;
  erase(ranges_.find(begin));
  if (begin < line_offset) insert(begin, {line_offset, range.source, range.listed});
  if (line_offset + kLineBytes < range.end) {
    // A range that becomes two needs two records.
    Range rest = range;
    if (rest.listed) rest.listed = try_to_list(line_offset + kLineBytes, rest);
    insert(line_offset + kLineBytes, rest);
  }
}

void PoisonMap::relist(uint64_t offset, uint64_t bytes) {
  overflowed_ = false;
  for (const PoisonedRange& part : all(offset, bytes, offset, ranges_.size())) {
    const auto found = first_behind(part.offset);
    if (found->second.listed) continue;
    const auto [begin, range] = *found;
    erase(ranges_.find(begin));
    Range again = range;
    again.listed = try_to_list(begin, again);
    insert(begin, again);
  }
  overflowed_ = std::any_of(ranges_.begin(), ranges_.end(),
                            [](const auto& range) { return !range.second.listed; });
}

std::vector<PoisonedRange> PoisonMap::find(uint64_t offset, uint64_t bytes, uint64_t from,
                                           size_t count_max, bool all) const {
  std::vector<PoisonedRange> found;
  const uint64_t end = offset + bytes;
  for (auto at = first_behind(std::max(offset, from));
       at != ranges_.end() && std::max(at->first, from) < end && found.size() < count_max; ++at) {
    if (!all && !at->second.listed) continue;
    const uint64_t begin = std::max({at->first, offset, from});
    found.push_back({begin, std::min(end, at->second.end) - begin, at->second.source});
  }
  return found;
}

std::vector<PoisonedRange> PoisonMap::listed(uint64_t offset, uint64_t bytes, uint64_t from,
                                             size_t count_max) const {
  return find(offset, bytes, from, count_max, false);
}

std::vector<PoisonedRange> PoisonMap::all(uint64_t offset, uint64_t bytes, uint64_t from,
                                          size_t count_max) const {
  return find(offset, bytes, from, count_max, true);
}

uint64_t PoisonMap::lines_of(cxl::PoisonSource source) const {
  uint64_t lines = 0;
  for (const auto& [begin, range] : ranges_) {
    if (range.source == source) lines += (range.end - begin) / kLineBytes;
  }
  return lines;
}

}  // namespace bowhead::device
