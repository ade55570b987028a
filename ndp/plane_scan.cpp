// SPDX-License-Identifier: Apache-2.0
// docs/ndp-topk.md has the proof.
#include "ndp/plane_scan.h"

#include <bowhead/format/frame.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <optional>
#include <vector>

#include "compression/planes.h"
#include "ndp/kernels.h"
#include "ndp/line_set.h"
#include "ndp/numbers.h"
#include "ndp/plane_tile.h"

namespace bowhead::ndp {
namespace {

using namespace compression;

constexpr uint32_t kScannedPlanes = 8;
constexpr float kInfinity = std::numeric_limits<float>::infinity();
/// One number of each query.
using QueryLanes = std::array<double, kProductQueries>;
static_assert(sizeof(QueryLanes) == kProductQueries * sizeof(double));

/// Sums of all queries for one token, with vectors that every target has.
class SumLanes {
 public:
  static SumLanes load(const int32_t* from) {
    SumLanes lanes;
    std::memcpy(lanes.of_, from, sizeof lanes.of_);
    return lanes;
  }
  static SumLanes all(int32_t value) {
    SumLanes lanes;
    for (Four& four : lanes.of_) four = Four{value, value, value, value};
    return lanes;
  }
  int32_t operator[](uint32_t lane) const { return of_[lane / 4][lane % 4]; }
  /// -1 where it is, else 0.
  SumLanes at_least(const SumLanes& other) const {
    return by_fours(other, [](Four a, Four b) { return Four(a >= b); });
  }
  void subtract(const SumLanes& other) {
    *this = by_fours(other, [](Four a, Four b) { return a - b; });
  }
  /// A bit for each lane that is not 0.
  uint8_t bits() const {
    uint32_t bits = 0;
    for (uint32_t lane = 0; lane < kProductQueries; ++lane)
      bits |= ((*this)[lane] != 0 ? 1u : 0u) << lane;
    return static_cast<uint8_t>(bits);
  }
  friend SumLanes choose(const SumLanes& which, const SumLanes& yes, const SumLanes& no) {
    SumLanes chosen;
    for (uint32_t i = 0; i < kFours; ++i)
      chosen.of_[i] = (yes.of_[i] & which.of_[i]) | (no.of_[i] & ~which.of_[i]);
    return chosen;
  }
  friend SumLanes smaller(const SumLanes& a, const SumLanes& b) {
    return choose(a.at_least(b), b, a);
  }
  friend SumLanes larger(const SumLanes& a, const SumLanes& b) {
    return choose(a.at_least(b), a, b);
  }
  /// The middle, rounded down; does not overflow.
  friend SumLanes between(const SumLanes& a, const SumLanes& b) {
    return a.by_fours(b, [](Four x, Four y) { return (x & y) + ((x ^ y) >> 1); });
  }

 private:
  typedef int32_t Four __attribute__((vector_size(16)));
  static constexpr uint32_t kFours = kProductQueries / 4;
  template <class Call>
  SumLanes by_fours(const SumLanes& other, const Call& call) const {
    SumLanes result;
    for (uint32_t i = 0; i < kFours; ++i) result.of_[i] = call(of_[i], other.of_[i]);
    return result;
  }

  Four of_[kFours];
};

/// A tile with a visible token.
struct Piece {
  uint32_t block = 0;
  const PlaneKeys* keys = nullptr;
  const PlaneKeys::Tile* tile = nullptr;
  size_t tokens_at = 0;  ///< among those of all pieces
  bool in_planes = false;
  PlaneTile planes;             ///< opened if in_planes
  std::vector<uint8_t> values;  ///< else its values

  uint32_t first_position() const { return keys->first_token() + tile->first; }
};

/// A token that may be among the best.
struct Candidate {
  float low, high;
  size_t token;  ///< counted through the pieces
};

/// What a query's scores in a tile follow from: sums of products of whole numbers.
struct Lane {
  double unit = 0;  ///< of the sums, before the scale
  double off = 0;   ///< how far scores are from them at most
};

class Scan {
 public:
  Scan(const Queries& queries, const Visible& visible, uint32_t k)
      : queries_(queries), visible_(visible), k_(k) {}
  Status open(std::span<const PlaneKeys* const> blocks);
  /// Some queries, at most kProductQueries.
  Status search(uint32_t first, uint32_t count, PlaneAnswer& answer);
  uint32_t damaged_block() const { return damaged_; }
  uint64_t bytes_read() const {
    uint64_t bytes = 0;
    for (const LineSet& reads : reads_) bytes += reads.bytes();
    return bytes;
  }

 private:
  Status open_piece(uint32_t block, const PlaneKeys& keys, const PlaneKeys::Tile& tile);
  bool sees_some(uint32_t first, uint32_t count) const;
  bool sees_all(uint32_t first, uint32_t count) const {
    return first + count <= visible_.end &&
           (first >= visible_.begin || first + count <= visible_.sinks);
  }
  Status damaged_unless_ok(const Piece& piece, Status status) {
    if (status != Status::OK) damaged_ = piece.block;
    return status;
  }
  Status load(Piece& piece, uint32_t streams);
  float answer_of(double sum) const {
    return static_cast<float>(sum * static_cast<double>(queries_.scale()));
  }

  Status scan(Piece& piece);
  Status scan_values(Piece& piece);
  void set_lanes(const Piece& piece, uint32_t planes);
  void set_cut(uint32_t lane);
  void raise_least(const Piece& piece);
  void take_candidates(const Piece& piece);
  void add(uint32_t lane, Candidate candidate);
  void shrink(uint32_t lane);

  void want_candidates();
  Status score(Piece& piece);
  void score_rows(const Piece& piece, uint32_t first, uint32_t count, const uint8_t* values);
  auto hits_adder() {
    return [this](uint32_t position, uint32_t lane, float score) {
      hits_[lane].push_back({score, position});
    };
  }
  template <class Each>
  void add_row(const uint8_t* values, uint32_t position, uint8_t lanes, const Each& each);
  template <class Each>
  void finish_rows(const Each& each);

  const Queries& queries_;
  const Visible visible_;
  const uint32_t k_;
  uint32_t channels_ = 0, padded_ = 0;
  std::vector<Piece> pieces_;
  std::vector<LineSet> reads_;   // by block
  std::vector<uint8_t> wanted_;  // by token: bits of the queries whose candidate it is
  StreamCoder coder_;
  std::optional<Decoder> decoder_;
  uint32_t damaged_ = 0;

  // Of the queries that are searched together.
  uint32_t first_query_ = 0, query_count_ = 0;
  bool finite_ = true;
  bool raised_ = false;  // least_, by a tile
  std::vector<QueryLanes> by_channel_;
  std::array<std::vector<Candidate>, kProductQueries> candidates_;
  std::array<float, kProductQueries> least_{};  // k tokens score so much at least
  std::array<std::vector<Hit>, kProductQueries> hits_;

  // Of a tile.
  std::array<Lane, kProductQueries> lanes_;
  std::array<int32_t, kProductQueries> cuts_{};
  Lines<int16_t> numbers_;  // queries as whole numbers
  Lines<int16_t> rows_, centres_;
  Lines<int32_t> sums_;
  std::vector<uint8_t> over_;  // by token: bits of queries whose sum reaches the cut
  std::vector<float> sorted_;
  std::vector<uint8_t> values_;

  // Rows that are scored exactly together.
  uint32_t exact_count_ = 0;
  Lines<double> exact_rows_;
  std::array<uint32_t, kExactRows> exact_positions_;
  std::array<uint8_t, kExactRows> exact_lanes_;
};

Status Scan::open(std::span<const PlaneKeys* const> blocks) {
  channels_ = queries_.channels();
  padded_ = padded_channels(channels_);
  numbers_.resize(size_t{kProductQueries} * padded_);
  rows_.resize(size_t{kTileTokens} * padded_);
  centres_.resize(rows_.size());
  exact_rows_.resize(size_t{kExactRows} * channels_);
  size_t tiles = 0;
  for (const PlaneKeys* block : blocks) tiles += block->tiles().size();
  pieces_.reserve(tiles);
  for (uint32_t b = 0; b < blocks.size(); ++b) {
    reads_.emplace_back(blocks[b]->frame());
    for (const PlaneKeys::Tile& tile : blocks[b]->tiles()) {
      const Status status = open_piece(b, *blocks[b], tile);
      if (status != Status::OK) return status;
    }
  }
  return Status::OK;
}

bool Scan::sees_some(uint32_t first, uint32_t count) const {
  const uint32_t last = first + count - 1;
  return first < std::min(visible_.sinks, visible_.end) ||
         (first < visible_.end && last >= visible_.begin &&
          std::max(first, visible_.begin) < visible_.end);
}

Status Scan::open_piece(uint32_t block, const PlaneKeys& keys, const PlaneKeys::Tile& tile) {
  if (!sees_some(keys.first_token() + tile.first, tile.tokens)) return Status::OK;
  Piece& piece = pieces_.emplace_back();
  piece.block = block;
  piece.keys = &keys;
  piece.tile = &tile;
  piece.tokens_at = wanted_.size();
  wanted_.resize(wanted_.size() + tile.tokens);
  reads_[block].add(keys.frame().first(sizeof(bh_frame_header)));
  if (!tile.bounded) return Status::OK;
  const Status status = damaged_unless_ok(piece, piece.planes.open(keys, tile));
  if (status != Status::OK) return status;
  // Rows of whole numbers must fit 16 bits: of centres that encoders make they do.
  piece.in_planes = true;
  const int most = 2 << number_of(keys.number())->magnitude_bits;
  for (uint32_t c = 0; c < channels_; ++c)
    piece.in_planes &= 2 * piece.planes.most_centre(c) + most <= 0x7FFF;
  return Status::OK;
}

Status Scan::load(Piece& piece, uint32_t streams) {
  for (uint32_t stream = 0; stream < streams; ++stream) {
    const Status status = damaged_unless_ok(piece, piece.planes.load(stream, coder_));
    if (status != Status::OK) return status;
  }
  return Status::OK;
}

Status Scan::search(uint32_t first, uint32_t count, PlaneAnswer& answer) {
  first_query_ = first;
  query_count_ = count;
  finite_ = true;
  raised_ = false;
  by_channel_.assign(channels_, QueryLanes{});
  for (uint32_t lane = 0; lane < count; ++lane) {
    candidates_[lane].clear();
    hits_[lane].clear();
    least_[lane] = -kInfinity;
    const float* values = queries_.floats(first + lane);
    for (uint32_t c = 0; c < channels_; ++c) {
      finite_ &= std::isfinite(values[c]);
      by_channel_[c][lane] = static_cast<double>(values[c]);
    }
  }
  for (Piece& piece : pieces_) {
    if (const Status status = scan(piece); status != Status::OK) return status;
  }
  want_candidates();
  for (Piece& piece : pieces_) {
    if (const Status status = score(piece); status != Status::OK) return status;
  }
  finish_rows(hits_adder());
  for (uint32_t lane = 0; lane < count; ++lane) {
    std::vector<Hit>& hits = hits_[lane];
    if (hits.size() > k_) {
      std::nth_element(hits.begin(), hits.begin() + k_, hits.end(), better);
      hits.resize(k_);
    }
    std::sort(hits.begin(), hits.end(), better);
    answer.hits[first + lane] = hits;
  }
  return Status::OK;
}

// ---- the first pass ----

Status Scan::scan(Piece& piece) {
  if (!piece.in_planes || !finite_) return scan_values(piece);
  const PlaneKeys::Tile& tile = *piece.tile;
  PlaneTile& planes = piece.planes;
  const uint32_t count =
      planes.verified_with(std::min(kScannedPlanes, number_of(piece.keys->number())->planes()));
  if (const Status status = damaged_unless_ok(piece, planes.verify(count)); status != Status::OK)
    return status;
  if (const Status status = load(piece, count); status != Status::OK) return status;
  reads_[piece.block].add(planes.head());
  reads_[piece.block].add(planes.planes_verified_with(count));
  set_lanes(piece, count);
  sums_.resize(std::max(sums_.size(), size_t{tile.tokens} * kProductQueries));
  over_.assign(tile.tokens, 0);
  if (!planes.turns()) planes.centres(0, 1, centres_.data());
  for (uint32_t first = 0; first < tile.tokens; first += kTileTokens) {
    const uint32_t tokens = std::min(kTileTokens, tile.tokens - first);
    if (!sees_some(piece.first_position() + first, tokens)) continue;
    planes.differences(first, tokens, count, rows_.data());
    if (planes.turns()) planes.centres(first, tokens, centres_.data());
    kernels().products({numbers_.data(), rows_.data(), centres_.data(), !planes.turns(), tokens,
                        padded_, cuts_.data()},
                       &sums_[size_t{first} * kProductQueries], &over_[first]);
  }
  if (!sees_all(piece.first_position(), tile.tokens)) {
    for (uint32_t i = 0; i < tile.tokens; ++i) {
      if (!visible_.has(piece.first_position() + i)) over_[i] = 0;
    }
  }
  raise_least(piece);
  take_candidates(piece);
  return Status::OK;
}

/// At first every token is a candidate: the k best sums of a whole tile raise the cut much.
void Scan::raise_least(const Piece& piece) {
  const uint32_t tokens = piece.tile->tokens;
  if (raised_ || tokens < 2 * k_ || !sees_all(piece.first_position(), tokens)) return;
  raised_ = true;
  SumLanes low = SumLanes::all(INT32_MAX), high = SumLanes::all(INT32_MIN);
  for (uint32_t i = 0; i < tokens; ++i) {
    const SumLanes sums = SumLanes::load(&sums_[size_t{i} * kProductQueries]);
    low = smaller(low, sums);
    high = larger(high, sums);
  }
  // So many sums as are wanted, at least, are `low` or more.
  for (int halvings = 0; halvings < 10; ++halvings) {
    const SumLanes middle = between(low, high);
    SumLanes counts = SumLanes::all(0);
    for (uint32_t i = 0; i < tokens; ++i)
      counts.subtract(SumLanes::load(&sums_[size_t{i} * kProductQueries]).at_least(middle));
    const SumLanes enough = counts.at_least(SumLanes::all(static_cast<int32_t>(k_)));
    low = choose(enough, middle, low);
    high = choose(enough, high, middle);
  }
  for (uint32_t lane = 0; lane < query_count_; ++lane) {
    const double sum = low[lane] * lanes_[lane].unit;
    least_[lane] = std::max(least_[lane], answer_of(sum - lanes_[lane].off));
    set_cut(lane);
  }
  const SumLanes cuts = SumLanes::load(cuts_.data());
  for (uint32_t i = 0; i < tokens; ++i)
    over_[i] = SumLanes::load(&sums_[size_t{i} * kProductQueries]).at_least(cuts).bits();
}

void Scan::take_candidates(const Piece& piece) {
  const uint32_t tokens = piece.tile->tokens;
  for (uint32_t i = 0; i < tokens; ++i) {
    uint64_t next = 1;
    if (i + 8 <= tokens) std::memcpy(&next, &over_[i], 8);
    if (next == 0) {  // most are
      i += 7;
      continue;
    }
    for (uint32_t bits = over_[i]; bits != 0; bits &= bits - 1) {
      const auto lane = static_cast<uint32_t>(std::countr_zero(bits));
      const double sum = sums_[size_t{i} * kProductQueries + lane] * lanes_[lane].unit;
      add(lane, {answer_of(sum - lanes_[lane].off), answer_of(sum + lanes_[lane].off),
                 piece.tokens_at + i});
    }
  }
}

/// Of a tile whose values are decoded: all tokens are scored. NaN is below all numbers.
Status Scan::scan_values(Piece& piece) {
  const PlaneKeys& keys = *piece.keys;
  const PlaneKeys::Tile& tile = *piece.tile;
  const size_t row_bytes = keys.shape().row_bytes();
  if (piece.values.empty()) {
    piece.values.resize(tile.tokens * row_bytes);
    if (!decoder_) decoder_.emplace();
    const Status status =
        decoder_->decode_tokens(keys.frame(), keys.outer(), tile.first, tile.tokens, piece.values);
    if (damaged_unless_ok(piece, status) != Status::OK) return status;
    reads_[piece.block].add(keys.frame().subspan(tile.begin, tile.bytes));
  }
  const auto add_score = [&](uint32_t token, uint32_t lane, float score) {
    const float bound = std::isnan(score) ? -kInfinity : score;
    add(lane, {bound, bound, piece.tokens_at + token});
  };
  const auto all = static_cast<uint8_t>((1u << query_count_) - 1);
  for (uint32_t i = 0; i < tile.tokens; ++i) {
    if (visible_.has(piece.first_position() + i))
      add_row(&piece.values[i * row_bytes], i, all, add_score);
  }
  finish_rows(add_score);
  return Status::OK;
}

/// Queries, times the units of the channels, as whole numbers; how far their products are off.
///
/// A value is centre + (twice the middle of an interval) / 2 in units, off by half of the interval
/// (docs/ndp-topk.md), a denormal by up to 2^-bias more. Its query a in these units is off by half
/// of `unit`, for rows of at most `most`; sums of products have 31 bits. The rest is what doubles
/// and the definition's sum round.
void Scan::set_lanes(const Piece& piece, uint32_t planes) {
  const Number& number = *number_of(piece.keys->number());
  const PlaneTile& tile = piece.planes;
  const int bias = number.is_float() ? (1 << (number.exponent_bits - 1)) - 1 : 0;
  const double interval = std::ldexp(1.0, static_cast<int>(number.planes() - planes));
  const double limit = std::ldexp(2.0, number.magnitude_bits), least = std::ldexp(1.0, -bias);
  for (uint32_t lane = 0; lane < kProductQueries; ++lane) {
    cuts_[lane] = std::numeric_limits<int32_t>::max();
    int16_t* to = &numbers_[size_t{lane} * padded_];
    std::fill_n(to, padded_, int16_t{0});
    if (lane >= query_count_) continue;
    const float* values = queries_.floats(first_query_ + lane);
    double largest = 0, sizes = 0, products = 0, rows = 0, denormals = 0;
    for (uint32_t c = 0; c < channels_; ++c) {
      const double value = std::abs(static_cast<double>(values[c])), size = value * tile.units()[c];
      const double most = 2 * tile.most_centre(c) + limit;
      largest = std::max(largest, size);
      sizes += size;
      products += size * most;
      rows += most;
      if (number.is_float() && tile.parameters().exponents[c] < number.magnitude_bits)
        denormals += value * least;
    }
    double unit = std::max(largest / 0x7FFE, products / (0x7FFFFFFF - 0x2000000));
    if (!(unit > 0)) unit = 1;
    for (uint32_t c = 0; c < channels_; ++c) {
      const double a = static_cast<double>(values[c]) * tile.units()[c] / unit;
      to[c] = static_cast<int16_t>(a + (a < 0 ? -0.5 : 0.5));
    }
    Lane& made = lanes_[lane];
    made.unit = unit / 2;  // sums are of twice the values
    made.off = sizes * interval / 2 + unit / 4 * rows + denormals;
    made.off += made.off * 0x1p-20 + products * 0x1p-40;
    set_cut(lane);
  }
}

/// The least sum whose score can be `least_`. Scaling and rounding never reverse the order of two
/// numbers: what is below the float before `least_` is below it when it is rounded.
void Scan::set_cut(uint32_t lane) {
  constexpr double kMost = std::numeric_limits<int32_t>::max(), kLeast = -kMost - 1;
  const auto below = static_cast<double>(std::nextafter(least_[lane], -kInfinity));
  const Lane& at = lanes_[lane];
  const double sum = (below / static_cast<double>(queries_.scale()) - at.off) / at.unit;
  cuts_[lane] = static_cast<int32_t>(std::clamp(std::floor(sum) - 1, kLeast, kMost));
}

void Scan::add(uint32_t lane, Candidate candidate) {
  if (candidate.high < least_[lane]) return;
  candidates_[lane].push_back(candidate);
  if (candidates_[lane].size() >= size_t{3} * k_ + 64) shrink(lane);
}

/// Drops candidates that k others outdo.
void Scan::shrink(uint32_t lane) {
  std::vector<Candidate>& all = candidates_[lane];
  if (all.size() <= k_) return;
  sorted_.clear();
  for (const Candidate& candidate : all) sorted_.push_back(candidate.low);
  std::nth_element(sorted_.begin(), sorted_.begin() + (k_ - 1), sorted_.end(), std::greater<>());
  least_[lane] = std::max(least_[lane], sorted_[k_ - 1]);
  std::erase_if(all, [&](const Candidate& candidate) { return candidate.high < least_[lane]; });
}

// ---- exact scores ----

void Scan::want_candidates() {
  std::fill(wanted_.begin(), wanted_.end(), uint8_t{0});
  for (uint32_t lane = 0; lane < query_count_; ++lane) {
    shrink(lane);
    for (const Candidate& candidate : candidates_[lane]) {
      uint8_t& wanted = wanted_[candidate.token];
      wanted = static_cast<uint8_t>(wanted | 1u << lane);
    }
  }
}

/// Tokens of steps with a candidate: the remainder of a step's first token is known.
Status Scan::score(Piece& piece) {
  const uint8_t* wanted = &wanted_[piece.tokens_at];
  const uint32_t tokens = piece.tile->tokens;
  const auto next_wanted = [&](uint32_t token) {
    while (token < tokens && wanted[token] == 0) ++token;
    return token;
  };
  uint32_t token = next_wanted(0);
  if (token == tokens) return Status::OK;
  if (!piece.in_planes || !finite_) {
    score_rows(piece, 0, tokens, piece.values.data());
    return Status::OK;
  }
  const Number& number = *number_of(piece.keys->number());
  if (const Status status = load(piece, number.planes() + 2); status != Status::OK) return status;
  LineSet& reads = reads_[piece.block];
  while (token < tokens) {
    const uint32_t first = piece.planes.step_first(token);
    uint32_t end = token + 1;  // and further tokens of the same step, or of the next one
    for (token = next_wanted(end); token < tokens; token = next_wanted(end)) {
      if (piece.planes.step_first(token) > end) break;
      end = token + 1;
    }
    values_.resize(std::max(values_.size(), (end - first) * piece.keys->shape().row_bytes()));
    piece.planes.exact_rows(first, end - first, values_.data());
    score_rows(piece, first, end - first, values_.data());
    for (uint32_t p = 0; p < number.planes(); ++p)
      reads.add(piece.planes.rows_of(p, first, end - first));
    for (const ConstBytes part : piece.planes.rests_of(first, end)) reads.add(part);
  }
  return Status::OK;
}

void Scan::score_rows(const Piece& piece, uint32_t first, uint32_t count, const uint8_t* values) {
  const size_t row_bytes = piece.keys->shape().row_bytes();
  for (uint32_t i = 0; i < count; ++i) {
    const uint8_t lanes = wanted_[piece.tokens_at + first + i];
    if (lanes == 0) continue;
    add_row(values + i * row_bytes, piece.first_position() + first + i, lanes, hits_adder());
  }
}

/// Calls each(position, lane, score) for this or for earlier rows.
template <class Each>
void Scan::add_row(const uint8_t* values, uint32_t position, uint8_t lanes, const Each& each) {
  double* row = &exact_rows_[size_t{exact_count_} * channels_];
  const NumberFormat kind = queries_.keys();
  if (kind == NumberFormat::BF16) {
    for (uint32_t c = 0; c < channels_; ++c) {
      uint16_t bits;
      std::memcpy(&bits, values + size_t{c} * 2, 2);
      row[c] = static_cast<double>(std::bit_cast<float>(uint32_t{bits} << 16));
    }
  } else {
    const uint32_t bytes = element_bytes(kind);
    for (uint32_t c = 0; c < channels_; ++c, values += bytes)
      row[c] = static_cast<double>(load_number(kind, values));
  }
  exact_positions_[exact_count_] = position;
  exact_lanes_[exact_count_] = lanes;
  if (++exact_count_ == kExactRows) finish_rows(each);
}

template <class Each>
void Scan::finish_rows(const Each& each) {
  std::array<double, kExactRows * kProductQueries> sums;
  kernels().exact(by_channel_[0].data(), exact_rows_.data(), channels_, sums.data());
  for (uint32_t i = 0; i < exact_count_; ++i) {
    for (uint32_t bits = exact_lanes_[i]; bits != 0; bits &= bits - 1) {
      const auto lane = static_cast<uint32_t>(std::countr_zero(bits));
      each(exact_positions_[i], lane, answer_of(sums[size_t{i} * kProductQueries + lane]));
    }
  }
  exact_count_ = 0;
}

}  // namespace

Error damaged_frame(uint32_t block, uint32_t* damaged_block) {
  if (damaged_block != nullptr) *damaged_block = block;
  return Error{
      Status::DAMAGED,
      fmt::format("the frame of block {} is damaged: search the other blocks only", block)};
}

Result<PlaneAnswer> scan_planes(const Queries& queries, std::span<const PlaneKeys* const> blocks,
                                const Visible& visible, uint32_t k, uint32_t* damaged_block) {
  Scan scan(queries, visible, k);
  Status status = scan.open(blocks);
  PlaneAnswer answer;
  answer.hits.resize(queries.count());
  for (uint32_t first = 0; status == Status::OK && first < queries.count();
       first += kProductQueries)
    status = scan.search(first, std::min(kProductQueries, queries.count() - first), answer);
  if (status != Status::OK) return damaged_frame(scan.damaged_block(), damaged_block);
  answer.bytes_read_together = scan.bytes_read();
  answer.bytes_read.assign(queries.count(), answer.bytes_read_together);
  return answer;
}

}  // namespace bowhead::ndp
