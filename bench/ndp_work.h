// SPDX-License-Identifier: Apache-2.0
// What `bowhead-bench ndp` times: operations and their limits, on any number of cores at once.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "bench/ndp_data.h"

namespace bowhead::bench {

/// A pass over a walk: begin(), then work() of every core at once, then merge().
class Work {
 public:
  virtual ~Work() = default;
  /// Bytes read, or multiply-adds made, by a pass.
  virtual uint64_t amount() const = 0;
  virtual void begin() {}
  virtual void work(size_t core) = 0;
  virtual void merge() {}
  /// Answers beside those of the scalar kernels, after a pass. DAMAGED: some are wrong.
  virtual Result<void> check() { return {}; }
};
using Works = std::unique_ptr<Work>;

Works make_read(const Walk& walk);
/// With the instruction that multiplies keys of a kind; `count` on each core.
Works make_multiply(NumberFormat keys, size_t cores, uint64_t count);

inline constexpr uint32_t kWantedHits = 64;
/// Scores of all keys and the best kWantedHits of each query.
Works make_topk(const Walk& walk, uint32_t queries);
/// Every second block is of keys, the one behind it of their values.
Works make_attend(const Walk& walk, uint32_t queries);
/// The same of blocks in frames of the fast profile; amount() is of what they hold. `plain`: they
/// are decoded, and nothing else.
Works make_attend_frames(const Walk& walk, uint32_t queries, bool plain);
Works make_score(const Walk& walk, uint32_t queries, uint32_t channels);
inline constexpr uint32_t kPageTokens = 16;
Works make_digest(const Walk& walk);
/// An eighth of the rows, in random order. `plain`: by memcpy from where they are known to lie.
Works make_gather(const Walk& walk, bool plain);

/// A pass on threads pinned to the CPUs; seconds from the first one's start to the last one's end
/// and of merging what they have.
double seconds_of(Work& work, const std::vector<int>& cpus);

}  // namespace bowhead::bench
