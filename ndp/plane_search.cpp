// SPDX-License-Identifier: Apache-2.0
// The searches of plane_keys.h. docs/ndp-topk.md has the proof of the exact one, whose steps are
// named here.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <functional>
#include <iterator>
#include <limits>
#include <numeric>
#include <optional>

#include "base/assert.h"
#include "compression/planes.h"
#include "ndp/checkpoint.h"
#include "ndp/estimates.h"
#include "ndp/kernels.h"
#include "ndp/line_set.h"
#include "ndp/numbers.h"
#include "ndp/plane_keys.h"
#include "ndp/plane_scan.h"
#include "ndp/tiles.h"

namespace bowhead::ndp {
namespace {

using namespace compression;

constexpr uint32_t kFirstPlanes = 3;  // that an exact search reads of all tokens
// Within a budget a round spends this share of the rest, and that share of all at least.
constexpr double kRoundShare = 0.5, kLeastRoundShare = 1.0 / 32;
constexpr uint32_t kMostRows = 128;  // at a time: the most that lines of a row hold
constexpr uint32_t kBatch = 8;       // queries at a time: the state of each grows with tokens
constexpr uint32_t kTokensLikeOne =
    16;                             // that take in the first pass as long as one that is read on
constexpr uint8_t kExactly = 0xFF;  // level of tokens that were read exactly

/// A tile with a visible token.
struct Piece {
  size_t index = 0;  ///< of this piece
  uint32_t block = 0;
  const PlaneKeys* keys = nullptr;
  const PlaneKeys::Tile* tile = nullptr;
  size_t tokens_at = 0, groups_at = 0;  ///< among those of all pieces
  uint32_t group = 1;                   ///< tokens with a row of a plane in one line
  bool whole = false;                   ///< all of its tokens are visible
  uint32_t skew = 0;                    ///< how many of them the line of the first one lacks
  const PlaneTile* planes = nullptr;    ///< if it is bounded
  std::optional<PlaneReader> reader;    ///< then, too
  std::vector<uint8_t> values;          ///< if they had to be read exactly

  uint32_t groups() const { return (tile->tokens + group - 1) / group; }
  uint32_t in_group(uint32_t g) const { return std::min(group, tile->tokens - g * group); }
  uint32_t all_planes() const { return number_of(keys->number())->planes(); }
};

uint32_t tokens_in_line(const PlaneKeys& keys) {
  return std::max(64 / static_cast<uint32_t>(plane_bytes(keys.shape().channels, 1)), 1u);
}

/// By the lowest plane: others may be coded.
uint32_t skew_of(const Piece& piece) {
  const ConstBytes row = piece.planes->row_of(piece.all_planes() - 1, 0);
  if (row.empty()) return 0;
  const auto in_line = static_cast<uint32_t>(reinterpret_cast<uintptr_t>(row.data()) % 64);
  const uint32_t stride = piece.planes->row_stride();
  return piece.group - std::min(piece.group, (64 - in_line + stride - 1) / stride);
}

/// The bounds of a query's scores in a tile, by planes that have been read.
struct Reach {
  /// Times the channel's unit, and in units of `one`, a power of two; padded with zeros. As it is,
  /// or times the scales of so many planes.
  std::array<std::vector<float>, kScaledPlanes + 1> query;
  std::array<double, kScaledPlanes + 1> norms{};  ///< of these
  double one = 1;
  double units = 0;   ///< sum of their sizes
  double always = 0;  ///< for rounding, and for numbers smaller than frames take them to be

  double of(const Piece& piece, uint32_t planes) const {
    return std::ldexp(units, static_cast<int>(piece.all_planes() - planes) - 1) + always;
  }
  /// The usual error of middles: as if the bits that planes leave open were spread evenly.
  double spread_of(const Piece& piece, uint32_t planes) const {
    return std::ldexp(norms[planes <= kScaledPlanes ? planes : 0] / std::sqrt(3.0),
                      static_cast<int>(piece.all_planes() - planes) - 1);
  }
};

/// The known bounds of a query's scores.
struct Progress {
  uint32_t query = 0;
  std::vector<uint8_t> levels;              ///< by token: planes that have been read of it
  std::vector<float> centres;               ///< by token: query times centre, as Reach has it
  std::vector<float> middles, lows, highs;  ///< by token; only of visible ones
  std::vector<Reach> reaches;               ///< by piece
  std::vector<LineSet> reads;               ///< by block, of its frame
};

/// A possible next read: the next plane, or its line, of a token, and all that comes with it.
struct Offer {
  float uncertainty = 0;  ///< of its tokens, then for each byte
  uint32_t piece = 0, token = 0;
};

class Search {
 public:
  Search(const Queries& queries, std::span<const PlaneKeys* const> blocks, const Visible& visible,
         uint32_t k)
      : queries_(queries), blocks_(blocks), visible_(visible), k_(k) {}

  Status exact();
  Status approximate(double bytes_per_token);
  /// The answer after one of them returned `status`.
  Result<PlaneAnswer> answer(Status status, UnreadableKeys* unreadable);

 private:
  // ---- of all queries ----

  Status open();
  Status open_piece(Piece piece);
  Status checked(const Piece& piece, Status status);
  Status load(Piece& piece, uint32_t streams) {
    return checked(piece, piece.reader->load(streams, coder_));
  }
  void begin(uint32_t first, uint32_t count);
  /// All bytes of its first planes are wanted.
  static bool verifies(const Piece& piece) { return piece.whole && !piece.planes->is_cut(); }
  Status read_first_planes(uint32_t planes);
  Status read_first_planes(Piece& piece, uint32_t planes);
  void add_reads(const Progress& query) {
    for (size_t b = 0; b < query.reads.size(); ++b) together_[b].add(query.reads[b]);
  }
  void note(Progress& query, std::vector<Hit> hits);

  // ---- of one ----

  bool bounded(const Piece& piece, const Progress& query) const {
    return piece.planes != nullptr && queries_.is_finite(query.query);
  }
  /// Rounds as the answer does. As rounding never reverses the order of two numbers, bounds of sums
  /// become bounds of answers.
  float answer_of(double sum) const {
    return static_cast<float>(sum * static_cast<double>(queries_.scale()));
  }
  static uint32_t position_of(const Piece& piece, uint32_t token) {
    return piece.keys->first_token() + piece.tile->first + token;
  }
  bool are_seen(const PlaneKeys& keys) const {
    return visible_.has_some(keys.first_token(), keys.tokens());
  }
  bool sees(const Piece& piece, uint32_t token) const {
    return visible_.has(position_of(piece, token));
  }
  Piece& piece_of(size_t token) {
    return *(std::upper_bound(pieces_.begin(), pieces_.end(), token,
                              [](size_t at, const Piece& piece) { return at < piece.tokens_at; }) -
             1);
  }
  /// Calls each(first, count) for tokens of groups that are seen, as many as rows_ has room for.
  template <class Each>
  void for_seen(const Piece& piece, const Each& each) {
    const uint32_t most = kMostRows / piece.group;
    for (uint32_t group = 0; group < piece.groups();) {
      uint32_t end = group;
      while (end < std::min(group + most, piece.groups()) &&
             group_seen_[piece.groups_at + end] != 0)
        ++end;
      const uint32_t first = group * piece.group;
      if (end > group) each(first, std::min(end * piece.group, piece.tile->tokens) - first);
      group = std::max(end, group + 1);
    }
  }
  Reach reach_of(const Piece& piece, const Progress& query) const;
  void look(Piece& piece, uint32_t first, uint32_t count, uint32_t planes, Progress& query);
  void bound(const Piece& piece, uint32_t first, uint32_t count, uint32_t planes, Progress& query);
  void add_centres(Piece& piece, uint32_t first, uint32_t count);
  static uint32_t readable(const Piece& piece, uint32_t token, uint32_t planes, uint32_t most,
                           const LineSet& lines);
  Status read_as_it_is(Piece& piece, Progress& query);
  float score_as_it_is(const Piece& piece, uint32_t token, const Progress& query);
  void make_row(const PlaneKeys& keys, const uint8_t* value);
  float score_of_row(const Progress& query) const;
  Status deepen(Piece& piece, uint32_t token, uint32_t planes, Progress& query);
  std::vector<uint32_t> likeliest(size_t count, const Progress& query) const;
  Status deepen_likeliest(Progress& query);
  float drop_outdone(const Progress& query, std::vector<uint32_t>& open);
  Status deepen_open(Progress& query, std::vector<uint32_t>& open);
  Status score_exactly(size_t token, Progress& query, float& score);
  Status finish(Progress& query);
  uint64_t bytes_of(const Progress& query) const;
  float edge_of(const Progress& query);
  void add_offers(const Piece& piece, float edge, const Progress& query);
  void add_offer(Offer offer, uint32_t level, const Progress& query);
  Status take(const Offer& offer, uint64_t left, Progress& query);
  Status spend(uint64_t budget, Progress& query);
  Status finish_within(uint64_t budget, Progress& query);

  const Queries& queries_;
  const std::span<const PlaneKeys* const> blocks_;
  const Visible visible_;
  const uint32_t k_;
  bool scaled_ = false;  // middles, to be near on average; else they are in the middle of bounds
  std::vector<Piece> pieces_;
  size_t tokens_ = 0, groups_ = 0;
  std::vector<uint32_t> seen_;       // tokens, counted through the pieces
  std::vector<uint8_t> group_seen_;  // whether one of its tokens is
  std::vector<Progress> batch_;
  std::vector<LineSet> together_;
  std::vector<int16_t> rows_;          // of some tokens
  std::vector<double> row_;            // exact values of one
  std::vector<uint8_t> values_;        // of the tokens of a step
  std::array<float, kMostRows> sums_;  // by row
  std::vector<Offer> offers_;
  std::vector<float> sorted_;  // to find a k-th
  StreamCoder coder_{FrameBytes::MAY_CHANGE};
  std::optional<Decoder> decoder_;  // where tiles are read exactly
  uint32_t damaged_ = 0;            // block whose frame is damaged
  PlaneAnswer answer_;
};

// ---- of all queries ----

Status Search::exact() {
  if (const Status status = open(); status != Status::OK) return status;
  for (uint32_t first = 0; first < queries_.count(); first += kBatch) {
    begin(first, std::min(kBatch, queries_.count() - first));
    if (const Status status = read_first_planes(scaled_ ? 1 : kFirstPlanes); status != Status::OK)
      return status;
    for (Progress& query : batch_) {
      if (const Status status = finish(query); status != Status::OK) return status;
    }
  }
  return Status::OK;
}

Result<PlaneAnswer> Search::answer(Status status, UnreadableKeys* unreadable) {
  for (const Progress& query : batch_) add_reads(query);  // also of one that could not be answered
  for (const LineSet& reads : together_) answer_.bytes_read_together += reads.bytes();
  if (status == Status::OK) return std::move(answer_);
  return unreadable_frame(status, {damaged_, answer_.bytes_read_together}, unreadable);
}

/// Notes the block whose frame it was.
Status Search::checked(const Piece& piece, Status status) {
  if (status != Status::OK) damaged_ = piece.block;
  return status;
}

Status Search::open() {
  for (uint32_t b = 0; b < blocks_.size(); ++b) {
    const PlaneKeys& keys = *blocks_[b];
    together_.push_back(lines_of(keys, are_seen(keys)));
    rows_.resize(size_t{kMostRows} * padded_channels(keys.channels()));
    row_.resize(keys.channels());
    for (const PlaneKeys::Tile& tile : keys.tiles()) {
      Piece piece;
      piece.block = b;
      piece.keys = &keys;
      piece.tile = &tile;
      if (const Status status = open_piece(std::move(piece)); status != Status::OK) return status;
    }
  }
  return Status::OK;
}

Status Search::open_piece(Piece piece) {
  piece.index = pieces_.size();
  piece.tokens_at = tokens_;
  piece.groups_at = groups_;
  piece.group = tokens_in_line(*piece.keys);
  const size_t seen_before = seen_.size();
  for (uint32_t token = 0; token < piece.tile->tokens; ++token) {
    if (sees(piece, token)) seen_.push_back(static_cast<uint32_t>(tokens_ + token));
  }
  if (seen_.size() == seen_before) return Status::OK;
  piece.whole = seen_.size() - seen_before == piece.tile->tokens;
  group_seen_.resize(groups_ + piece.groups());
  for (size_t i = seen_before; i < seen_.size(); ++i)
    group_seen_[groups_ + (seen_[i] - tokens_) / piece.group] = 1;
  tokens_ += piece.tile->tokens;
  groups_ += piece.groups();
  if (piece.tile->planes) {
    piece.planes = &*piece.tile->planes;
    piece.reader.emplace(*piece.planes);
    piece.skew = skew_of(piece);
  }
  pieces_.push_back(std::move(piece));
  return Status::OK;
}

void Search::begin(uint32_t first, uint32_t count) {
  batch_.clear();
  for (uint32_t q = first; q < first + count; ++q) {
    Progress& query = batch_.emplace_back();
    query.query = q;
    query.levels.assign(tokens_, 0);
    query.centres.assign(tokens_, 0);
    for (auto* by_token : {&query.middles, &query.lows, &query.highs})
      by_token->assign(tokens_, kNever);
    for (const Piece& piece : pieces_) query.reaches.push_back(reach_of(piece, query));
    for (const PlaneKeys* keys : blocks_) query.reads.push_back(lines_of(*keys, are_seen(*keys)));
  }
}

Status Search::read_first_planes(uint32_t planes) {
  for (Piece& piece : pieces_) {
    if (!pass_checkpoint(piece.tile->tokens)) return Status::CANCELLED;
    for (Progress& query : batch_) {
      if (bounded(piece, query)) continue;
      if (const Status status = read_as_it_is(piece, query); status != Status::OK) return status;
    }
    if (piece.planes == nullptr) continue;
    const uint32_t first = std::min(planes, piece.all_planes());
    const Status status = read_first_planes(
        piece, verifies(piece) && !scaled_ ? piece.planes->verified_with(first) : first);
    if (status != Status::OK) return status;
  }
  return Status::OK;
}

/// For all queries: the planes of a tile show each of them the same.
Status Search::read_first_planes(Piece& piece, uint32_t planes) {
  // Within a budget planes that have one checksum with others are not verified.
  if (verifies(piece) && piece.planes->verified_with(planes) == planes) {
    const Status status = checked(piece, piece.planes->verify(planes));
    if (status != Status::OK) return status;
  }
  if (const Status status = load(piece, planes); status != Status::OK) return status;
  for (Progress& query : batch_) {
    if (!queries_.is_finite(query.query)) continue;
    query.reads[piece.block].add(piece.planes->head());
  }
  for_seen(piece, [&](uint32_t first, uint32_t count) {
    add_centres(piece, first, count);
    piece.reader->differences(first, count, planes, rows_.data());
    for (Progress& query : batch_) {
      if (!queries_.is_finite(query.query)) continue;
      LineSet& reads = query.reads[piece.block];
      for (uint32_t p = 0; p < planes; ++p)
        piece.planes->for_rows(p, first, count, [&](ConstBytes rows) { reads.add(rows); });
      bound(piece, first, count, planes, query);
    }
  });
  return Status::OK;
}

/// A centre that does not turn is the same at all tokens.
void Search::add_centres(Piece& piece, uint32_t first, uint32_t count) {
  const uint32_t rows = piece.planes->turns() ? count : 1;
  const uint32_t padded = padded_channels(piece.keys->channels());
  piece.reader->centres(first, rows, rows_.data());
  for (Progress& query : batch_) {
    if (!queries_.is_finite(query.query)) continue;
    const auto& wanted = query.reaches[piece.index].query[0];
    kernels().dots(wanted.data(), rows_.data(), rows, padded, sums_.data());
    for (uint32_t i = 0; i < count; ++i)
      query.centres[piece.tokens_at + first + i] = sums_[piece.planes->turns() ? i : 0];
  }
}

void Search::note(Progress& query, std::vector<Hit> hits) {
  answer_.hits.push_back(std::move(hits));
  answer_.bytes_read.push_back(bytes_of(query));
  add_reads(query);
}

// ---- of one ----

/// A value lies in an interval of 2^(planes - n) units if n planes have been read, and its middle
/// is off by half of that at most; that of a denormal, which frames take for a number with a one in
/// front, by up to 2^-bias more, unless it is so far below the largest exponent that even so it
/// lies in the unit next to zero. Weighted by the query, these errors add up.
Reach Search::reach_of(const Piece& piece, const Progress& query) const {
  Reach reach;
  if (!bounded(piece, query)) return reach;
  const Number& number = *number_of(piece.keys->number());
  const std::span<const double> units = piece.planes->units();
  const float* values = queries_.floats(query.query);
  const uint32_t channels = piece.keys->channels(), padded = padded_channels(channels);
  const int bias = number.is_float() ? (1 << (number.exponent_bits - 1)) - 1 : 0;
  double most = 0, centres = 0;
  for (uint32_t c = 0; c < channels; ++c) {
    const double value = std::abs(static_cast<double>(values[c]));
    most = std::max(most, value * units[c]);
    reach.units += value * units[c];
    centres += value * units[c] * piece.planes->most_centre(c);
    if (number.is_float() && piece.planes->exponents()[c] < number.magnitude_bits)
      reach.always += std::ldexp(value, -bias);
  }
  if (most > 0) reach.one = std::ldexp(1.0, std::ilogb(most));
  reach.query[0].resize(padded);
  for (uint32_t c = 0; c < channels; ++c)
    reach.query[0][c] = static_cast<float>(static_cast<double>(values[c]) * units[c] / reach.one);
  for (uint32_t planes = 1; scaled_ && planes <= kScaledPlanes; ++planes) {
    auto& scaled = reach.query[planes] = reach.query[0];
    const auto spreads = piece.planes->spreads();
    for (uint32_t c = 0; c < spreads.size(); ++c)
      scaled[c] *= scale_of_differences(spreads[c], planes);
  }
  for (size_t i = 0; scaled_ && i < reach.query.size(); ++i)
    reach.norms[i] =
        reach.one * std::sqrt(std::inner_product(reach.query[i].begin(), reach.query[i].end(),
                                                 reach.query[i].begin(), 0.0));
  // Rounding. In units of the largest, queries (24 bits) times units (powers of two) are exact in
  // float, or so small that a float ends: below 2^-126, off by 2^-150, which the 2^-24 of `units`
  // is far above, as are sums in double here and adding a reach to a middle. Sums of products of
  // rows are off by (padded / 4 + 4) 2^-24 of the sum of their sizes (kernels.h), where differences
  // are at most 2^magnitude_bits; adding both sums is off once more.
  const double sizes = std::ldexp(reach.units, number.magnitude_bits) + centres;
  reach.always +=
      reach.always * 0x1p-20 + reach.units * 0x1p-24 + sizes * (padded / 4 + 6) * 0x1p-24;
  return reach;
}

/// Bounds tokens `first` and so many more by the first planes, which are loaded.
void Search::look(Piece& piece, uint32_t first, uint32_t count, uint32_t planes, Progress& query) {
  piece.reader->differences(first, count, planes, rows_.data());
  bound(piece, first, count, planes, query);
}

/// Bounds them by the differences that rows_ holds.
void Search::bound(const Piece& piece, uint32_t first, uint32_t count, uint32_t planes,
                   Progress& query) {
  BOWHEAD_ASSERT(count <= kMostRows);
  const Reach& reach = query.reaches[piece.index];
  const double off = reach.of(piece, planes);
  const auto& wanted = reach.query[scaled_ && planes <= kScaledPlanes ? planes : 0];
  kernels().dots(wanted.data(), rows_.data(), count, padded_channels(piece.keys->channels()),
                 sums_.data());
  for (uint32_t i = 0; i < count; ++i) {
    const uint32_t token = first + i;
    const size_t at = piece.tokens_at + token;
    query.levels[at] = static_cast<uint8_t>(planes);
    if (!sees(piece, token)) continue;
    const double middle = static_cast<double>(sums_[i] / 2 + query.centres[at]) * reach.one;
    query.middles[at] = answer_of(middle);
    query.lows[at] = answer_of(middle - off);
    query.highs[at] = answer_of(middle + off);
  }
}

/// Reads all of a tile. NaN is below all numbers.
Status Search::read_as_it_is(Piece& piece, Progress& query) {
  const PlaneKeys& keys = *piece.keys;
  const PlaneKeys::Tile& tile = *piece.tile;
  if (piece.values.empty()) {
    piece.values.resize(tile.tokens * keys.shape().row_bytes());
    if (!decoder_) decoder_.emplace(FrameBytes::MAY_CHANGE);
    const Status status = checked(
        piece,
        decoder_->decode_tokens(keys.frame(), keys.outer(), tile.first, tile.tokens, piece.values));
    if (status != Status::OK) return status;
  }
  query.reads[piece.block].add(keys.frame().subspan(tile.begin, tile.bytes));
  std::fill_n(query.levels.begin() + static_cast<ptrdiff_t>(piece.tokens_at), tile.tokens,
              kExactly);
  for (uint32_t token = 0; token < tile.tokens; ++token) {
    if (!sees(piece, token)) continue;
    const float score = score_as_it_is(piece, token, query);
    const size_t at = piece.tokens_at + token;
    query.middles[at] = query.lows[at] = query.highs[at] = std::isnan(score) ? kNever : score;
  }
  return Status::OK;
}

float Search::score_as_it_is(const Piece& piece, uint32_t token, const Progress& query) {
  const PlaneKeys& keys = *piece.keys;
  make_row(keys, &piece.values[token * keys.shape().row_bytes() + keys.row_begin()]);
  return score_of_row(query);
}

void Search::make_row(const PlaneKeys& keys, const uint8_t* value) {
  for (uint32_t c = 0; c < keys.channels(); ++c, value += element_bytes(keys.number()))
    row_[c] = static_cast<double>(load_number(keys.number(), value));
}

float Search::score_of_row(const Progress& query) const {
  const float* values = queries_.floats(query.query);
  double sum = 0;
  for (uint32_t c = 0; c < queries_.channels(); ++c)
    sum += static_cast<double>(values[c]) * row_[c];
  return answer_of(sum);
}

/// Reads the planes that a token still lacks of the first so many, and all that comes with their
/// lines.
Status Search::deepen(Piece& piece, uint32_t token, uint32_t planes, Progress& query) {
  LineSet& lines = query.reads[piece.block];
  uint8_t* levels = &query.levels[piece.tokens_at];
  for (uint32_t p = levels[token]; p < planes; ++p) lines.add(piece.planes->row_of(p, token));
  // As far as the lines of its last row reach; where there is none, as far as they would at most.
  const ConstBytes row = piece.planes->row_of(planes - 1, token);
  const uint32_t bytes = piece.planes->row_bytes(), stride = piece.planes->row_stride();
  const auto at = reinterpret_cast<uintptr_t>(row.data());
  const bool is_row = row.size() == bytes;
  const auto before_row = is_row ? static_cast<uint32_t>(at % 64) : 63;
  const auto behind_row = is_row ? 63 - static_cast<uint32_t>((at + bytes - 1) % 64) : 63;
  const uint32_t begin = token - std::min(token, (before_row + stride - 1) / stride);
  const uint32_t end = std::min(token + 1 + (behind_row + stride - 1) / stride, piece.tile->tokens);
  for (uint32_t first = begin, count = 1; first < end; first += count) {
    const uint32_t level = readable(piece, first, levels[first], planes, lines);
    for (count = 1; first + count < end; ++count) {
      if (readable(piece, first + count, levels[first + count], planes, lines) != level) break;
    }
    if (std::all_of(levels + first, levels + first + count,
                    [&](uint8_t before) { return before == level; }))
      continue;
    if (const Status status = load(piece, level); status != Status::OK) return status;
    look(piece, first, count, level, query);
  }
  return Status::OK;
}

/// How many first planes of a token, from so many to at most so many, are in lines that have been
/// read.
uint32_t Search::readable(const Piece& piece, uint32_t token, uint32_t planes, uint32_t most,
                          const LineSet& lines) {
  for (; planes < most; ++planes) {
    ConstBytes row = piece.planes->row_of(planes, token);
    // Coded planes are read whole, and between its ends a stream has lines to itself.
    if (piece.planes->is_coded(planes) && row.size() > 128) row = row.subspan(row.size() / 2, 1);
    if (lines.missing(row) != 0) break;
  }
  return planes;
}

/// The `count` tokens with the highest middles.
std::vector<uint32_t> Search::likeliest(size_t count, const Progress& query) const {
  std::vector<uint32_t> order = seen_;
  count = std::min(count, order.size());
  std::nth_element(
      order.begin(), order.begin() + static_cast<ptrdiff_t>(count), order.end(),
      [&](uint32_t a, uint32_t b) {
        return query.middles[a] != query.middles[b] ? query.middles[a] > query.middles[b] : a < b;
      });
  order.resize(count);
  return order;
}

/// Step 2: the scores of the k likeliest are then known as well as planes can tell, and bound the
/// k-th highest score from below.
Status Search::deepen_likeliest(Progress& query) {
  for (const uint32_t token : likeliest(k_, query)) {
    if (query.levels[token] == kExactly) continue;
    if (!pass_checkpoint(kTokensLikeOne)) return Status::CANCELLED;
    Piece& piece = piece_of(token);
    const auto within = static_cast<uint32_t>(token - piece.tokens_at);
    const Status status = deepen(piece, within, piece.all_planes(), query);
    if (status != Status::OK) return status;
  }
  return Status::OK;
}

/// Drops the tokens that are out from `open`: k others, which stay, score at least the k-th highest
/// lower bound, which is returned.
float Search::drop_outdone(const Progress& query, std::vector<uint32_t>& open) {
  if (k_ >= open.size()) return kNever;
  sorted_.clear();
  for (const uint32_t token : open) sorted_.push_back(query.lows[token]);
  std::nth_element(sorted_.begin(), sorted_.begin() + (k_ - 1), sorted_.end(), std::greater<>());
  const float least = sorted_[k_ - 1];
  std::erase_if(open, [&](uint32_t token) { return query.highs[token] < least; });
  return least;
}

/// Step 3, until no token that may be wanted has planes left to read.
Status Search::deepen_open(Progress& query, std::vector<uint32_t>& open) {
  for (bool some = true; some;) {
    some = false;
    const float least = drop_outdone(query, open);
    for (const uint32_t token : open) {
      if (query.highs[token] < least) continue;  // since its line came with another one
      Piece& piece = piece_of(token);
      const auto within = static_cast<uint32_t>(token - piece.tokens_at);
      const uint8_t level = query.levels[token];
      if (level >= piece.all_planes()) continue;
      some = true;
      if (!pass_checkpoint(kTokensLikeOne)) return Status::CANCELLED;
      const Status status = deepen(piece, within, level + 1u, query);
      if (status != Status::OK) return status;
    }
  }
  return Status::OK;
}

Status Search::score_exactly(size_t token, Progress& query, float& score) {
  Piece& piece = piece_of(token);
  const auto within = static_cast<uint32_t>(token - piece.tokens_at);
  if (query.levels[token] == kExactly) {
    score = score_as_it_is(piece, within, query);
    return Status::OK;
  }
  const uint32_t remainder = piece.all_planes();
  if (const Status status = load(piece, remainder + 2); status != Status::OK) return status;
  // The remainder of the first token of its step is known.
  const uint32_t first = piece.planes->step_first(within), count = within - first + 1;
  const size_t row_bytes = piece.keys->row_bytes();
  values_.resize(std::max(values_.size(), count * row_bytes));
  piece.reader->exact_rows(first, count, values_.data());
  make_row(*piece.keys, &values_[(count - 1) * row_bytes]);
  LineSet& reads = query.reads[piece.block];
  const auto add = [&](ConstBytes bytes) { reads.add(bytes); };
  for (uint32_t p = 0; p < remainder; ++p) piece.planes->for_rows(p, first, count, add);
  piece.planes->for_rests(first, within + 1, add);
  score = score_of_row(query);
  return Status::OK;
}

/// Steps 2 to 4.
Status Search::finish(Progress& query) {
  if (const Status status = deepen_likeliest(query); status != Status::OK) return status;
  std::vector<uint32_t> open = seen_;
  if (const Status status = deepen_open(query, open); status != Status::OK) return status;
  std::vector<Hit> hits;
  for (const uint32_t token : open) {
    const Piece& piece = piece_of(token);
    Hit hit;
    if (!pass_checkpoint(kTokensLikeOne)) return Status::CANCELLED;
    if (const Status status = score_exactly(token, query, hit.score); status != Status::OK)
      return status;
    hit.token = position_of(piece, static_cast<uint32_t>(token - piece.tokens_at));
    hits.push_back(hit);
  }
  std::sort(hits.begin(), hits.end(), better);
  hits.resize(std::min<size_t>(k_, hits.size()));
  note(query, std::move(hits));
  return Status::OK;
}

// ---- within a budget ----

uint64_t Search::bytes_of(const Progress& query) const {
  uint64_t bytes = 0;
  for (const LineSet& reads : query.reads) bytes += reads.bytes();
  return bytes;
}

/// About twice how likely it is that a token is wrongly among the best, or wrongly not: by how far
/// its middle is from the last of the best, in units of the error of middles. A token that is
/// certain either way is not worth reading.
float uncertainty_of(float apart, float spread) {
  const float x = apart / spread, y = 1 + x * x;
  return y < 32 ? 1 / (y * y) : 0;
}

/// The k-th highest middle.
float Search::edge_of(const Progress& query) {
  sorted_.clear();
  for (const uint32_t token : seen_) sorted_.push_back(query.middles[token]);
  std::nth_element(sorted_.begin(), sorted_.begin() + (k_ - 1), sorted_.end(), std::greater<>());
  return sorted_[k_ - 1];
}

/// Lines of next planes, and next planes that are coded and so have no rows, by the uncertainty of
/// their tokens for each byte.
void Search::add_offers(const Piece& piece, float edge, const Progress& query) {
  if (!bounded(piece, query)) return;
  std::array<float, kMaxPlanes + 1> spreads;
  for (uint32_t p = 1; p <= piece.all_planes(); ++p)
    spreads[p] = answer_of(query.reaches[piece.index].spread_of(piece, p));
  std::array<Offer, kMaxPlanes + 1> whole{};
  for (uint32_t first = 0, end = 0; first < piece.tile->tokens; first = end) {
    end = ((first + piece.skew) / piece.group + 1) * piece.group - piece.skew;
    end = std::min(end, piece.tile->tokens);
    uint32_t level = piece.all_planes();
    Offer offer{0, static_cast<uint32_t>(piece.index), first};
    for (uint32_t token = first; token < end; ++token) {
      const size_t at = piece.tokens_at + token;
      if (!sees(piece, token)) continue;
      if (query.levels[at] < level) {
        level = query.levels[at];
        offer.token = token;
      }
      offer.uncertainty += uncertainty_of(query.middles[at] - edge, spreads[query.levels[at]]);
    }
    if (level == piece.all_planes()) continue;
    if (piece.planes->is_coded(level)) {
      offer.uncertainty += whole[level].uncertainty;
      whole[level] = offer;
    } else {
      add_offer(offer, level, query);
    }
  }
  for (uint32_t level = 1; level < piece.all_planes(); ++level)
    add_offer(whole[level], level, query);
}

void Search::add_offer(Offer offer, uint32_t level, const Progress& query) {
  if (offer.uncertainty == 0) return;
  const Piece& piece = pieces_[offer.piece];
  const uint64_t cost = query.reads[piece.block].missing(piece.planes->row_of(level, offer.token));
  offer.uncertainty /=
      static_cast<float>(std::max<uint64_t>(cost, 1));  // it came with something else
  offers_.push_back(offer);
}

/// Reads it if so many bytes allow that.
Status Search::take(const Offer& offer, uint64_t left, Progress& query) {
  Piece& piece = pieces_[offer.piece];
  const uint32_t level = query.levels[piece.tokens_at + offer.token];
  if (level == piece.all_planes()) return Status::OK;  // it came with something else
  LineSet& reads = query.reads[piece.block];
  const ConstBytes row = piece.planes->row_of(level, offer.token);
  const uint64_t cost = reads.missing(row);
  if (cost > left) return Status::OK;
  if (!piece.planes->is_coded(level)) return deepen(piece, offer.token, level + 1, query);
  if (const Status status = load(piece, level + 1); status != Status::OK) return status;
  reads.add(row);
  for_seen(piece,
           [&](uint32_t first, uint32_t count) { look(piece, first, count, level + 1, query); });
  return Status::OK;
}

/// In rounds: each read changes what is uncertain.
Status Search::spend(uint64_t budget, Progress& query) {
  for (uint64_t bytes = bytes_of(query), before = 0; bytes < budget && bytes != before;) {
    before = bytes;
    const float edge = edge_of(query);
    offers_.clear();
    for (const Piece& piece : pieces_) add_offers(piece, edge, query);
    std::sort(offers_.begin(), offers_.end(),
              [](const Offer& a, const Offer& b) { return a.uncertainty > b.uncertainty; });
    const double some = std::max(kRoundShare * static_cast<double>(budget - bytes),
                                 kLeastRoundShare * static_cast<double>(budget));
    for (const Offer& offer : offers_) {
      if (static_cast<double>(bytes - before) >= some) break;
      const LineSet& reads = query.reads[pieces_[offer.piece].block];
      const uint64_t had = reads.bytes();
      if (!pass_checkpoint(kTokensLikeOne)) return Status::CANCELLED;
      const Status status = take(offer, budget - std::min(budget, bytes), query);
      if (status != Status::OK) return status;
      bytes += reads.bytes() - had;
    }
  }
  return Status::OK;
}

Status Search::finish_within(uint64_t budget, Progress& query) {
  if (k_ < seen_.size()) {
    if (const Status status = spend(budget, query); status != Status::OK) return status;
  }
  std::vector<Hit> hits;
  for (const uint32_t token : likeliest(k_, query)) {
    const Piece& piece = piece_of(token);
    const auto within = static_cast<uint32_t>(token - piece.tokens_at);
    const bool exactly = query.levels[token] == kExactly;
    hits.push_back({exactly ? score_as_it_is(piece, within, query) : query.middles[token],
                    position_of(piece, within)});
  }
  std::sort(hits.begin(), hits.end(), better);
  note(query, std::move(hits));
  return Status::OK;
}

Status Search::approximate(double bytes_per_token) {
  scaled_ = true;
  if (const Status status = open(); status != Status::OK) return status;
  const auto budget =
      static_cast<uint64_t>(std::min(bytes_per_token, 0x1p30) * static_cast<double>(seen_.size()));
  for (uint32_t first = 0; first < queries_.count(); first += kBatch) {
    begin(first, std::min(kBatch, queries_.count() - first));
    if (const Status status = read_first_planes(scaled_ ? 1 : kFirstPlanes); status != Status::OK)
      return status;
    for (Progress& query : batch_) {
      if (const Status status = finish_within(budget, query); status != Status::OK) return status;
    }
  }
  return Status::OK;
}

Result<void> check(const Queries& queries, std::span<const PlaneKeys* const> blocks,
                   const Views& views, uint32_t k) {
  if (auto good = check_single(queries); !good) return good;
  if (auto good = views.check(queries.count()); !good) return good;
  const auto refuse = [](std::string why) {
    return Error{Status::INVALID_ARGUMENT, std::move(why)};
  };
  if (k == 0 || k > TopK::kMaxK)
    return refuse(fmt::format("the {} best keys: 1 to {} are possible", k, TopK::kMaxK));
  if (queries.more() != nullptr) return refuse("queries of rows in parts: frames have rows in one");
  std::vector<HeldTokens> held;
  for (size_t b = 0; b < blocks.size(); ++b) {
    const PlaneKeys& keys = *blocks[b];
    if (keys.channels() != queries.channels() || keys.number() != queries.keys())
      return refuse(
          fmt::format("block {} has keys of {} channels of {}, while the queries are for "
                      "{} of {}",
                      b, keys.channels(), number_name(keys.number()), queries.channels(),
                      number_name(queries.keys())));
    held.push_back({keys.first_token(), keys.tokens(), b});
  }
  return check_apart("block", std::move(held));
}

/// Queries that see the same tokens are searched together: search(queries, visible).
template <class Search>
Result<PlaneAnswer> by_views(const Queries& queries, const Views& views, UnreadableKeys* unreadable,
                             const Search& search) {
  PlaneAnswer all;
  all.hits.resize(queries.count());
  all.bytes_read.resize(queries.count());
  std::vector<bool> searched(queries.count());
  for (uint32_t first = 0; first < queries.count(); ++first) {
    if (searched[first]) continue;
    std::vector<uint32_t> alike;
    for (uint32_t q = first; q < queries.count(); ++q) {
      if (views.of(q) == views.of(first)) alike.push_back(q);
    }
    if (alike.size() == queries.count()) return search(queries, views.of(first));
    auto some = search(queries.some(alike), views.of(first));
    if (!some) {
      if (unreadable != nullptr) unreadable->bytes_read += all.bytes_read_together;
      return some;
    }
    for (size_t i = 0; i < alike.size(); ++i) {
      searched[alike[i]] = true;
      all.hits[alike[i]] = std::move(some->hits[i]);
      all.bytes_read[alike[i]] = some->bytes_read[i];
    }
    all.bytes_read_together += some->bytes_read_together;
  }
  return all;
}

Result<void> check_budget(std::optional<double> bytes_per_token) {
  if (!bytes_per_token || *bytes_per_token > 0) return {};
  return Error{Status::INVALID_ARGUMENT,
               fmt::format("{} bytes for each token: give a number above 0", *bytes_per_token)};
}

/// Of valid input.
Result<PlaneAnswer> search_one(const HeadKeys& head, const Views& views, uint32_t k,
                               std::optional<double> bytes_per_token, Reading reading,
                               UnreadableKeys* unreadable) {
  const Queries& queries = *head.queries;
  if (reading == Reading::ONE_PASS) {
    auto all = scan_heads({&head, 1}, views, k, bytes_per_token, unreadable);
    if (!all) return all.error();
    std::vector<uint64_t> bytes_read(queries.count(), all->bytes_read);
    return PlaneAnswer{std::move(all->hits[0]), std::move(bytes_read), all->bytes_read};
  }
  return by_views(queries, views, unreadable, [&](const Queries& some, const Visible& visible) {
    Search search(some, head.blocks, visible, k);
    return search.answer(bytes_per_token ? search.approximate(*bytes_per_token) : search.exact(),
                         unreadable);
  });
}

/// In one pass any number of heads, else one.
Result<HeadsAnswer> search_some(std::span<const HeadKeys> heads, const Views& views, uint32_t k,
                                std::optional<double> bytes_per_token, Reading reading,
                                UnreadableKeys* unreadable) {
  if (reading == Reading::ONE_PASS) return scan_heads(heads, views, k, bytes_per_token, unreadable);
  auto one = search_one(heads[0], views, k, bytes_per_token, reading, unreadable);
  if (!one) return one.error();
  HeadsAnswer answer{{}, one->bytes_read_together};
  answer.hits.push_back(std::move(one->hits));
  return answer;
}

/// One pass keeps what may be among the best until it has looked at all tokens. Groups of heads
/// are as large as they may be, and alike.
size_t heads_at_once(std::span<const HeadKeys> heads) {
  if (heads.empty()) return 1;
  uint64_t tokens = 0;
  for (const PlaneKeys* keys : heads[0].blocks) tokens += keys->tokens();
  const uint64_t most = std::max<uint64_t>(1, kTokensAtOnce / std::max<uint64_t>(1, tokens));
  const uint64_t groups = (heads.size() + most - 1) / most;
  return (heads.size() + groups - 1) / groups;
}

/// Whether tiles of both lie at the same places.
bool are_alike(const PlaneKeys& a, const PlaneKeys& b) {
  const auto same_tile = [](const PlaneKeys::Tile& x, const PlaneKeys::Tile& y) {
    return x.begin == y.begin && x.bytes == y.bytes && x.first == y.first && x.tokens == y.tokens &&
           x.opened == y.opened;
  };
  return a.frame().data() == b.frame().data() && a.frame().size() == b.frame().size() &&
         a.shape() == b.shape() && a.outer() == b.outer() && a.first_token() == b.first_token() &&
         std::equal(a.tiles().begin(), a.tiles().end(), b.tiles().begin(), b.tiles().end(),
                    same_tile);
}
bool are_alike(const HeadKeys& a, const HeadKeys& b) {
  return std::equal(a.blocks.begin(), a.blocks.end(), b.blocks.begin(), b.blocks.end(),
                    [](const PlaneKeys* x, const PlaneKeys* y) { return are_alike(*x, *y); });
}

}  // namespace

Result<PlaneAnswer> exact_top_k(const Queries& queries, std::span<const PlaneKeys* const> blocks,
                                const Views& views, uint32_t k, Reading reading,
                                UnreadableKeys* unreadable) {
  if (auto good = check(queries, blocks, views, k); !good) return good.error();
  return search_one({&queries, blocks}, views, k, std::nullopt, reading, unreadable);
}

Result<PlaneAnswer> approximate_top_k(const Queries& queries,
                                      std::span<const PlaneKeys* const> blocks, const Views& views,
                                      uint32_t k, double bytes_per_token, Reading reading,
                                      UnreadableKeys* unreadable) {
  if (auto good = check(queries, blocks, views, k); !good) return good.error();
  if (auto good = check_budget(bytes_per_token); !good) return good.error();
  return search_one({&queries, blocks}, views, k, bytes_per_token, reading, unreadable);
}

Result<HeadsAnswer> top_k_of_heads(std::span<const HeadKeys> heads, const Views& views, uint32_t k,
                                   std::optional<double> bytes_per_token, Reading reading,
                                   UnreadableKeys* unreadable) {
  if (auto good = check_budget(bytes_per_token); !good) return good.error();
  for (const HeadKeys& head : heads) {
    if (auto good = check(*head.queries, head.blocks, views, k); !good) return good.error();
    if (!are_alike(head, heads[0]))
      return Error{Status::INVALID_ARGUMENT, "heads of unlike frames: search them one by one"};
  }
  const size_t together = reading == Reading::ONE_PASS ? heads_at_once(heads) : 1;
  HeadsAnswer all;
  for (; !heads.empty(); heads = heads.subspan(std::min(together, heads.size()))) {
    const auto some = heads.first(std::min(together, heads.size()));
    auto answer = search_some(some, views, k, bytes_per_token, reading, unreadable);
    if (!answer) {
      if (unreadable != nullptr) unreadable->bytes_read += all.bytes_read;
      return answer.error();
    }
    std::move(answer->hits.begin(), answer->hits.end(), std::back_inserter(all.hits));
    all.bytes_read += answer->bytes_read;
  }
  return all;
}

}  // namespace bowhead::ndp
