// SPDX-License-Identifier: Apache-2.0
// The best keys of queries, from few bits: of keys that lie in frames (compression/frame.h), cut
// into bit-planes, most are ruled out before their low planes are read.
//
// In short: the planes read so far bound a score from both sides. First planes are read of all
// tokens, then all planes of the likeliest hits; from then on a token whose upper bound is below
// the k-th highest lower bound is out, and of the others the next plane is read, some tokens at a
// time (as many rows of a plane as make a line). The tokens left in the end are scored exactly.
// docs/ndp-topk.md has the proof, the cost for real keys, and the recall from few bits.
//
// Some tokens have no bounds and are read exactly: those of tiles that are not in planes, or in
// planes that no encoder makes of their values, or that hold infinities or NaN; and all tokens for
// a query that holds such numbers.
//
// Bytes read are counted in whole lines of 64 bytes of memory, as the frames lie there, each line
// once however often it is looked at: heads of frames and tiles, planes (a coded one has no rows:
// it is read whole), remainders and exceptions, and the data that PlaneKeys keeps.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "compression/frame.h"
#include "compression/lines.h"
#include "compression/stream.h"
#include "ndp/operations.h"
#include "ndp/rows.h"

namespace bowhead::ndp {

class PlaneTile;

inline constexpr uint32_t kScaledPlanes = 4;
inline constexpr double kScaleUnit = 1.0 / 128;

/// The keys of one outer index of a frame, made ready for any number of searches: verified, and
/// with a note of where each few tokens' remainders begin, which the frame does not say, and of how
/// its channels spread. The frame stays where it is, must outlive this and not change. Not changed
/// after open(): threads may share it.
class PlaneKeys {
 public:
  /// Verifies the header of the frame and all tiles of this outer index. The first token of the
  /// frame is `first_token` of the sequence. Keeps about 800 bytes for 64 KiB of bf16 keys
  /// (kept_bytes()). DAMAGED; UNSUPPORTED_CODEC; INVALID_ARGUMENT: a frame of bytes, of more than
  /// kMaxChannels channels or without this outer index, positions beyond 32 bits.
  static Result<PlaneKeys> open(compression::ConstBytes frame, uint32_t outer,
                                uint32_t first_token);

  NumberFormat number() const { return shape_.number; }
  uint32_t channels() const { return shape_.channels; }
  uint32_t first_token() const { return first_token_; }
  uint32_t tokens() const { return shape_.tokens; }
  /// Beside the frame.
  size_t kept_bytes() const;

  // ---- for searches ----

  struct Tile {
    uint64_t begin = 0, bytes = 0;  ///< in the frame
    uint32_t first = 0;             ///< token of this outer index
    uint32_t tokens = 0;
    bool bounded = false;    ///< in planes, as an encoder makes them, and all finite
    uint32_t skew = 0;       ///< how many tokens its first group is shorter by
    uint32_t rests_at = 0;   ///< in rests(), a group after the other
    uint32_t scales_at = 0;  ///< in scales(): by planes and channel
  };
  /// Where the remainders and exceptions of a group of tokens begin in their streams.
  struct RestBegin {
    uint32_t bits = 0, exceptions = 0;
  };
  compression::ConstBytes frame() const { return frame_; }
  const compression::Shape& shape() const { return shape_; }
  uint32_t outer() const { return outer_; }
  std::span<const Tile> tiles() const { return tiles_; }
  std::span<const RestBegin> rests() const { return rests_; }
  /// The factors, in units of kScaleUnit, by which the middles that so many planes show (less the
  /// centre) are nearest to the keys; none if they are not kept, where they are about 1.
  std::span<const uint8_t> scales_of(const Tile& tile, uint32_t planes) const {
    if (planes > kScaledPlanes) return {};
    return scales().subspan(tile.scales_at + size_t{planes - 1} * channels(), channels());
  }
  std::span<const uint8_t> scales() const { return scales_; }
  /// As many tokens as have rows of a plane in a line. Groups of a tile begin where lines of its
  /// low planes do, so that a line suffices to find the remainders of its tokens.
  uint32_t group_tokens() const { return group_tokens_of(shape_.channels); }
  uint32_t group_of(const Tile& tile, uint32_t token) const {
    return (token + tile.skew) / group_tokens();
  }
  uint32_t first_of(const Tile& tile, uint32_t group) const {
    return std::max(group * group_tokens(), tile.skew) - tile.skew;
  }
  static uint32_t group_tokens_of(uint32_t channels) {
    const uint32_t row = (channels + 7) / 8;
    return row >= 64 ? 1 : 64 / row;
  }

 private:
  PlaneKeys() = default;
  Status add_tile(Tile tile, std::span<const uint8_t> values, compression::StreamCoder& coder);
  bool all_finite(const Tile& tile, std::span<const uint8_t> values) const;
  void add_rests(const Tile& tile, std::span<const uint8_t> values,
                 std::span<const uint16_t> exponents);
  void add_scales(const Tile& tile, const PlaneTile& planes);

  compression::ConstBytes frame_;
  compression::Shape shape_;
  uint32_t outer_ = 0, first_token_ = 0;
  std::vector<Tile> tiles_;
  compression::Lines<RestBegin> rests_;
  compression::Lines<uint8_t> scales_;
};

struct PlaneAnswer {
  std::vector<std::vector<Hit>> hits;  ///< by query, the best first
  std::vector<uint64_t> bytes_read;    ///< for each query, as if it were the only one
  uint64_t bytes_read_together = 0;    ///< for all: lines that several read count once
};

/// The k best keys of each query, or as many as are visible. A score is the sum, in double, of
/// query times key by channel, in their order, times the scale, rounded to a float: the score that
/// the scalar operations give for the decoded keys, but for their rounding; hits are those of the
/// highest scores by the order of better(), exactly. INVALID_ARGUMENT: k as for TopK; keys of other
/// channels or of another kind than the queries are for; two blocks hold the same token. DAMAGED: a
/// frame has changed since it was opened, that of block number *changed_block (a change that cannot
/// be noticed gives wrong hits).
Result<PlaneAnswer> exact_top_k(const Queries& queries, std::span<const PlaneKeys* const> blocks,
                                const Visible& visible, uint32_t k,
                                uint32_t* changed_block = nullptr);

/// Keys that are likely among the k best, by so many bytes of memory for each visible token of a
/// query: more are read only for the first plane and heads, tiles that have no planes, and a query
/// that is not finite. Scores are estimates. docs/ndp-topk.md says how many of the best are found.
/// INVALID_ARGUMENT also: a budget that is not a number above 0; DAMAGED as above.
Result<PlaneAnswer> approximate_top_k(const Queries& queries,
                                      std::span<const PlaneKeys* const> blocks,
                                      const Visible& visible, uint32_t k, double bytes_per_token,
                                      uint32_t* changed_block = nullptr);

}  // namespace bowhead::ndp
