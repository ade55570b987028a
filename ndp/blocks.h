// SPDX-License-Identifier: Apache-2.0
// The operations on blocks of a pool as they are stored: values, or frames of them, where they lie.
//
// A request is about some heads of one layer, which every block has, and for each of them as many
// queries. Values are read by the layout, and not verified; frames by their directories, and what
// is read of them is verified as frames.h and plane_keys.h say. Blocks may lie in memory that other
// processes write to: the caller checks its leases after the operation. If one has lapsed, answers
// and errors mean nothing, but nothing was written out of bounds.
//
// Every function returns INVALID_ARGUMENT, with a sentence that names the block, for blocks of
// unlike layouts, of other lengths than their layout allows or that hold the same token, for a
// layer or heads that they do not have, and for spans of another size than asked for; NOT_SUPPORTED
// for opaque values, numbers without rows (fp32), and scales that are not in the block or are those
// of channels. DAMAGED and UNSUPPORTED_CODEC as
// Unreadable says, DAMAGED also for a frame that does not fit the layout; what was written to the
// caller's memory then is undefined.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/kv_layout.h"
#include "ndp/frames.h"
#include "ndp/operations.h"
#include "ndp/plane_keys.h"

namespace bowhead::ndp {

/// A block as it is stored.
struct StoredBlock {
  const KvLayout* layout = nullptr;  ///< of its value
  compression::ConstBytes bytes;     ///< a frame, or the value itself
  bool framed = false;
  uint64_t value_bytes = 0;  ///< length of the value
  uint32_t first_token = 0;  ///< position in the sequence
  uint64_t offset = 0;       ///< of its bytes in the pool, for an engine that sees them elsewhere
  uint64_t stamp = 0;        ///< of its header in the pool, likewise
  std::string name = {};     ///< in errors; empty: "block" and its number
  bool lost = false;         ///< its memory failed: it cannot be read
};

/// Some heads of one layer, by their numbers in the blocks.
struct HeadsOfBlocks {
  std::span<const StoredBlock> blocks;  ///< one or more, in any order
  uint32_t layer = 0;
  uint32_t first_head = 0, heads = 1;
  Unreadable unreadable = Unreadable::REFUSE;
};

/// The queries about these heads.
struct HeadQueries {
  std::span<const float> values;  ///< [head][query][channels of keys]
  uint32_t count = 0;             ///< for each head, 1 to kMaxQueries
  float scale = 1;                ///< as Queries::of() has it
  Views views;                    ///< of every head alike
  float soft_cap = 0;             ///< likewise; 0: none
  /// [head][query]: each `group` queries have one answer, the sum of Queries::summed(). For score()
  /// and top_k(): where they have [query], they have answers then, and so have views. Empty: no
  /// sums.
  std::span<const float> weights = {};
  uint32_t group = 0;      ///< 0: all queries of a head
  bool rectified = false;  ///< scores below 0 count as 0

  /// For each head.
  uint32_t answers() const {
    if (weights.empty()) return count;
    return group == 0 ? 1 : count / group;
  }
};

/// What an operation read.
struct BlocksRead {
  /// Numbers of the blocks of which something that was wanted cannot be read, in their order: they
  /// are in no answer.
  std::vector<size_t> left_out;
  /// Of the blocks, as they are stored, but for the first bytes of blocks that no query sees. What
  /// is read again counts again: when a block was left out, of a frame what sinks and a window
  /// share, and by top_k() what heads share that are not searched together: as each has its own
  /// rows, or a query that is not finite, or they have more than kTokensAtOnce tokens, or as the
  /// fewest bytes are read.
  uint64_t bytes = 0;
};

/// scores[head][query][token], tokens counted through the blocks in their order; negative infinity
/// where they are not visible or were left out.
Result<BlocksRead> score(const HeadsOfBlocks& heads, const HeadQueries& queries,
                         std::span<float> scores);

struct BlockHits {
  std::vector<std::vector<Hit>> hits;  ///< [head][answer], the best first
  BlocksRead read;
};
/// The k best keys of each query. Frames of kSearchedTokens or more are searched by their planes,
/// with scores of double precision. Others are decoded, with scores of kScoreTolerance: all where
/// scores are summed; and where the heads of a token lie side by side, those with a tile without
/// bounds (PlaneKeys::head() says which) and, for heads with a query that is not finite, all.
/// `bytes_per_token` above 0: from so many bytes for each visible token, as approximate_top_k(),
/// where they are searched and have bounds; 0: exactly.
inline constexpr uint32_t kSearchedTokens = 256;
Result<BlockHits> top_k(const HeadsOfBlocks& heads, const HeadQueries& queries, uint32_t k,
                        double bytes_per_token = 0, Reading reading = Reading::ONE_PASS);

/// outputs[head][query][channel] and log_sum_exps[head][query]: partials, which Attention merges.
/// Zeros and negative infinity where no token is visible. INVALID_ARGUMENT also: blocks without
/// values.
Result<BlocksRead> attend(const HeadsOfBlocks& heads, const HeadQueries& queries,
                          std::span<float> outputs, std::span<float> log_sum_exps);

/// rows[head][token]: of K (part 0) or V (1), as they are, without scales, of tokens at these
/// positions, in any order, also more than once. Zeros where the block was left out.
/// INVALID_ARGUMENT also: a token that no block has; no such part.
Result<BlocksRead> gather(const HeadsOfBlocks& heads, uint32_t part,
                          std::span<const uint32_t> tokens, std::span<std::byte> rows);

/// least[head][page][channel] and largest, of keys: the pages of each block are of so many tokens,
/// its last one may be shorter. NaN where the block was left out. INVALID_ARGUMENT also: pages of
/// no token.
Result<BlocksRead> digest(const HeadsOfBlocks& heads, uint32_t page_tokens, std::span<float> least,
                          std::span<float> largest);

// The checks of these operations that need no bytes of the blocks, but for the size of answers:
// what an operation with good blocks would return.
Result<void> check_score(const HeadsOfBlocks& heads, const HeadQueries& queries);
Result<void> check_top_k(const HeadsOfBlocks& heads, const HeadQueries& queries, uint32_t k,
                         double bytes_per_token);
Result<void> check_attend(const HeadsOfBlocks& heads, const HeadQueries& queries);
Result<void> check_gather(const HeadsOfBlocks& heads, uint32_t part,
                          std::span<const uint32_t> tokens);
Result<void> check_digest(const HeadsOfBlocks& heads, uint32_t page_tokens);

/// The number of these pages.
Result<uint64_t> pages_of(std::span<const StoredBlock> blocks, uint32_t page_tokens);
/// The tokens of a block by its layout; empty if its length fits no number of tokens.
inline std::optional<uint64_t> tokens_of(const StoredBlock& block) {
  return tokens_in(*block.layout, block.value_bytes);
}

}  // namespace bowhead::ndp
