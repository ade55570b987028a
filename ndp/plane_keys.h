// SPDX-License-Identifier: Apache-2.0
// The best keys of queries, from few bits: of keys that lie in frames (compression/frame.h), cut
// into bit-planes, most are ruled out before their low planes are read.
//
// In short: the planes read so far bound a score from both sides. An exact search in one pass reads
// the first eight planes of all tokens, for all queries together, and scores those exactly that
// may still be among the best. One that reads as little as possible reads first planes of all
// tokens, then all planes of the likeliest hits; from then on a token whose upper bound is below
// the k-th highest lower bound is out, and of the others the next plane is read, some tokens at a
// time (as many rows of a plane as make a line). docs/ndp-topk.md has the proof, the cost for real
// keys, and the recall from few bits.
//
// Some tokens have no bounds and are read exactly: those of tiles without a directory
// (docs/frame.md: tiles that are not in planes, or hold infinities or NaN, or were written by an
// older version), and all tokens for a query that holds such numbers or is so large or small that
// floats end. In one pass all queries that are searched together read what one of them does: a tile
// without bounds for one query or head is read exactly for the others too.
//
// Bytes read are counted in whole lines of 64 bytes of memory, as the frames lie there (of the
// first and the last line the bytes of the frame), each line once however often it is looked at:
// heads of frames and tiles, planes (a coded one has no rows: it is read whole), remainders and
// exceptions.
//
// Verified by their checksums are heads, when keys are opened; tiles that are read exactly; and
// first planes, with those that have one checksum with them: by an exact search in one pass of all
// tiles, else of those whose tokens are all visible and that are searched with all channels (within
// a budget, if they have it alone). Lines of other planes and of remainders are not: who must know
// that they are whole decodes the frame.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "compression/frame.h"
#include "ndp/operations.h"
#include "ndp/plane_tile.h"
#include "ndp/rows.h"

namespace bowhead::ndp {

/// The keys of one outer index of a frame. The frame stays where it is, must outlive this and not
/// change. Keeps about 4 KiB for an opened tile of 64 channels, which is 64 KiB of bf16 keys, and
/// nothing that searches decode. Not changed after open(): threads may share it.
class PlaneKeys {
 public:
  /// Verifies the header of the frame and the heads of the searchable tiles of this outer index
  /// that `views` have a token of, and reads nothing else. Searches read other tiles exactly. The
  /// first token of the frame is `first_token` of the sequence. DAMAGED; UNSUPPORTED_CODEC;
  /// INVALID_ARGUMENT: a frame of bytes or without this outer index, positions beyond 32 bits.
  static Result<PlaneKeys> open(compression::ConstBytes frame, uint32_t outer, uint32_t first_token,
                                const Views& views = {});
  /// Some channels of these: a head of frames whose tokens have all heads side by side. Shares what
  /// was read. Planes hold all heads: one search of some channels in one pass verifies them for
  /// those of other channels too. Rows of planes are cut at bytes, and centres that turn at heads:
  /// channels between these bounds have none, and are read exactly. INVALID_ARGUMENT: not so many
  /// channels.
  Result<PlaneKeys> head(uint32_t first_channel, uint32_t channels) const;

  NumberFormat number() const { return shape_.number; }
  uint32_t channels() const { return channels_; }
  uint32_t first_token() const { return first_token_; }
  uint32_t tokens() const { return shape_.tokens; }

  // ---- for searches ----

  struct Tile {
    uint64_t begin = 0, bytes = 0;  ///< in the frame
    uint32_t first = 0;             ///< token of this outer index
    uint32_t tokens = 0;
    bool opened = false;              ///< some of it is wanted
    std::optional<PlaneTile> planes;  ///< if it is searchable, too: then it bounds its tokens
  };
  compression::ConstBytes frame() const { return frame_; }
  /// Of the frame: the header and its table; all of these tiles.
  uint64_t head_bytes() const { return head_bytes_; }
  compression::ConstBytes bytes() const {
    return frame_.subspan(tiles_[0].begin,
                          tiles_.back().begin + tiles_.back().bytes - tiles_[0].begin);
  }
  const compression::Shape& shape() const { return shape_; }
  uint32_t outer() const { return outer_; }
  std::span<const Tile> tiles() const { return tiles_; }
  /// Where these channels begin in a decoded row of the frame.
  size_t row_begin() const { return size_t{first_channel_} * element_bytes(number()); }
  size_t row_bytes() const { return size_t{channels_} * element_bytes(number()); }

 private:
  PlaneKeys() = default;

  compression::ConstBytes frame_;
  compression::Shape shape_;
  uint64_t head_bytes_ = 0;
  uint32_t outer_ = 0, first_token_ = 0;
  uint32_t first_channel_ = 0, channels_ = 0;
  std::vector<Tile> tiles_;
};

struct PlaneAnswer {
  std::vector<std::vector<Hit>> hits;  ///< by query, the best first
  /// For each query, as if it were the only one; in one pass for all of them.
  std::vector<uint64_t> bytes_read;
  uint64_t bytes_read_together = 0;  ///< for all: lines that several read count once
};

/// The frame that ended a search.
struct UnreadableKeys {
  uint32_t block = 0;       ///< its number
  uint64_t bytes_read = 0;  ///< together, until then
};

/// How a search reads.
enum class Reading {
  ONE_PASS,     ///< fastest
  FEWEST_BYTES  ///< within a budget: of most use
};

/// The k best keys of each query, or as many as are visible. A score is the sum, in double, of
/// query times key by channel, in their order, times the scale, rounded to a float: the score that
/// the scalar operations give for the decoded keys, but for their rounding; hits are those of the
/// highest scores by the order of better(), exactly. Where few bytes are read, queries of unlike
/// views are searched apart, and lines that both read count for both. INVALID_ARGUMENT: k as for
/// TopK; keys of other channels or of another kind than the queries are for; views of other
/// queries; queries that are summed; two blocks hold the same token. DAMAGED, UNSUPPORTED_CODEC:
/// the frame of block number unreadable->block cannot be read (damage that is not noticed gives
/// wrong hits).
Result<PlaneAnswer> exact_top_k(const Queries& queries, std::span<const PlaneKeys* const> blocks,
                                const Views& views, uint32_t k, Reading reading = Reading::ONE_PASS,
                                UnreadableKeys* unreadable = nullptr);

/// Keys that are likely among the k best, by so many bytes of memory for each visible token, all
/// that is read included, also the table of a frame: more are read only for the first plane and
/// heads, tiles that have no planes, and for a query that is not finite or so large or small that
/// floats end. Scores are estimates. In one pass the queries
/// share the budget, for the tokens from the first to the last that one of them sees, and estimates
/// are from the same first planes of all tokens: many times as fast. By the most useful bytes each
/// query has it for itself, and more of the best keys are found. docs/ndp-topk.md says how many.
/// INVALID_ARGUMENT also: a budget that is not a number above 0; DAMAGED as above.
Result<PlaneAnswer> approximate_top_k(const Queries& queries,
                                      std::span<const PlaneKeys* const> blocks, const Views& views,
                                      uint32_t k, double bytes_per_token, Reading reading,
                                      UnreadableKeys* unreadable = nullptr);

/// A head, and keys of it that are searched together with those of other heads: of blocks whose
/// tokens have the heads side by side. All heads are of the same frames, in the same order.
struct HeadKeys {
  const Queries* queries = nullptr;
  std::span<const PlaneKeys* const> blocks;
};

struct HeadsAnswer {
  std::vector<std::vector<std::vector<Hit>>> hits;  ///< by head and query, the best first
  uint64_t bytes_read = 0;                          ///< for all: lines that several read count once
};

/// The answers of exact_top_k(), or, with a budget, of approximate_top_k(), for several heads. In
/// one pass they read together, as many as have up to kTokensAtOnce tokens (what may be among the
/// best takes up to some 400 bytes for each): what these share counts once, and for the budget too,
/// which is then so many bytes for each visible token and head. By the fewest bytes heads are
/// searched one after the other, and what they read is added up. Errors as there; INVALID_ARGUMENT
/// also: heads of other frames.
inline constexpr uint64_t kTokensAtOnce = 1u << 20;
Result<HeadsAnswer> top_k_of_heads(std::span<const HeadKeys> heads, const Views& views, uint32_t k,
                                   std::optional<double> bytes_per_token, Reading reading,
                                   UnreadableKeys* unreadable = nullptr);

}  // namespace bowhead::ndp
