// SPDX-License-Identifier: Apache-2.0
// The work that `bowhead-bench ndp` times: operations and their limits, on any number of cores.
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
  /// Compares answers with those of the scalar kernels, after a pass. DAMAGED: some are wrong.
  virtual Result<void> check() { return {}; }
};
using Works = std::unique_ptr<Work>;

Works make_read(const Walk& walk);
/// Multiplies with the instruction for keys of a format; `count` on each core.
Works make_multiply(NumberFormat keys, size_t cores, uint64_t count);

inline constexpr uint32_t kWantedHits = 64;
/// Scores of all keys and the best kWantedHits of each query.
Works make_topk(const Walk& walk, uint32_t queries);
inline constexpr uint32_t kPageTokens = 16;
/// The same for pages of kPageTokens, in random order; and reading these pages.
Works make_topk_of_pages(const Walk& walk, uint32_t queries);
Works make_read_of_pages(const Walk& walk);
/// The best kSequenceHits of each query in sequences of kSequenceTokens, whose blocks are frames of
/// the fast profile: opened and searched in one pass; `plain`: decoded and scanned. amount() counts
/// the decoded bytes.
inline constexpr uint32_t kSequenceTokens = 8192, kSequenceHits = kSequenceTokens * 3 / 200;
Works make_topk_in_frames(const Walk& walk, uint32_t queries, bool plain);
/// Blocks of keys alternate with blocks of their values.
Works make_attend(const Walk& walk, uint32_t queries);
/// As make_attend(), for blocks in frames of the fast profile; amount() counts the decoded bytes.
/// `plain`: only decodes them.
Works make_attend_frames(const Walk& walk, uint32_t queries, bool plain);
Works make_score(const Walk& walk, uint32_t queries, uint32_t channels);
Works make_digest(const Walk& walk);
/// An eighth of the rows, in random order. `plain`: by memcpy from their known places.
Works make_gather(const Walk& walk, bool plain);

/// Runs a pass on threads pinned to the CPUs; returns the seconds from the first one's start to the
/// end of the last one and of merging their answers.
double seconds_of(Work& work, const std::vector<int>& cpus);

}  // namespace bowhead::bench
