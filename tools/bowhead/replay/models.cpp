// SPDX-License-Identifier: Apache-2.0
// Both caches take O(log n) per block at most: traces of millions of blocks in seconds.
#include "tools/bowhead/replay/models.h"

#include <limits>
#include <set>
#include <utility>
#include <vector>

namespace bowhead::replay {
namespace {

constexpr uint32_t kNone = std::numeric_limits<uint32_t>::max();

// A doubly linked list in arrays, most recent first.
class LruList {
 public:
  explicit LruList(uint32_t blocks) : next_(blocks, kNone), previous_(blocks, kNone), in_(blocks) {}

  bool contains(uint32_t block) const { return in_[block]; }
  uint32_t oldest() const { return tail_; }
  uint64_t size() const { return size_; }

  void push_front(uint32_t block) {
    next_[block] = head_;
    previous_[block] = kNone;
    if (head_ != kNone) previous_[head_] = block;
    head_ = block;
    if (tail_ == kNone) tail_ = block;
    in_[block] = true;
    ++size_;
  }

  void remove(uint32_t block) {
    (previous_[block] == kNone ? head_ : next_[previous_[block]]) = next_[block];
    (next_[block] == kNone ? tail_ : previous_[next_[block]]) = previous_[block];
    in_[block] = false;
    --size_;
  }

 private:
  std::vector<uint32_t> next_, previous_;
  std::vector<bool> in_;
  uint32_t head_ = kNone, tail_ = kNone;
  uint64_t size_ = 0;
};

// For each access, the index of the next access to the same block; the number of accesses if none.
std::vector<uint32_t> next_uses(const Trace& trace) {
  const uint32_t never = static_cast<uint32_t>(trace.dense.size());
  std::vector<uint32_t> next(trace.dense.size(), never);
  std::vector<uint32_t> last(trace.distinct_blocks, never);
  for (size_t i = trace.dense.size(); i-- > 0;) {
    next[i] = last[trace.dense[i]];
    last[trace.dense[i]] = static_cast<uint32_t>(i);
  }
  return next;
}

}  // namespace

uint64_t infinite_hits(const Trace& trace) { return trace.dense.size() - trace.distinct_blocks; }

uint64_t lru_hits(const Trace& trace, uint64_t capacity_blocks) {
  LruList cache(trace.distinct_blocks);
  uint64_t hits = 0;
  for (const Request& request : trace.requests) {
    const auto blocks = trace.dense_of(request);
    size_t prefix = 0;
    while (prefix < blocks.size() && cache.contains(blocks[prefix])) ++prefix;
    hits += prefix;
    for (size_t i = blocks.size(); i-- > 0;) {
      if (cache.contains(blocks[i])) cache.remove(blocks[i]);
      cache.push_front(blocks[i]);
      if (cache.size() > capacity_blocks) cache.remove(cache.oldest());
    }
  }
  return hits;
}

uint64_t best_hits(const Trace& trace, uint64_t capacity_blocks) {
  const std::vector<uint32_t> next = next_uses(trace);
  const uint32_t never = static_cast<uint32_t>(trace.dense.size());
  std::set<std::pair<uint32_t, uint32_t>> by_next_use;  // (next use, block) of each cached block
  uint64_t hits = 0;
  for (uint32_t i = 0; i < never; ++i) {
    const uint32_t block = trace.dense[i];
    // A cached block is filed under its next use, which is now.
    if (by_next_use.erase({i, block}) != 0) ++hits;
    if (next[i] == never) continue;  // never requested again
    by_next_use.emplace(next[i], block);
    if (by_next_use.size() > capacity_blocks) by_next_use.erase(std::prev(by_next_use.end()));
  }
  return hits;
}

}  // namespace bowhead::replay
