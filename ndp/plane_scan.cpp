// SPDX-License-Identifier: Apache-2.0
// docs/ndp-topk.md has the proof.
#include "ndp/plane_scan.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <optional>
#include <type_traits>
#include <utility>
#include <vector>

#include "compression/planes.h"
#include "ndp/checkpoint.h"
#include "ndp/estimates.h"
#include "ndp/kernels.h"
#include "ndp/line_set.h"
#include "ndp/numbers.h"

namespace bowhead::ndp {
namespace {

using namespace compression;

constexpr uint32_t kScannedPlanes = 8;
constexpr uint32_t kComparedTokens = 4096;  ///< at once: their bounds stay in a near cache
/// Tiles stay decoded for exact scores, and for further queries, up to so many bytes; those beyond
/// are decoded anew.
constexpr size_t kKeptBytes = size_t{32} << 20;
constexpr float kInfinity = std::numeric_limits<float>::infinity();
/// One number of each query.
using QueryLanes = std::array<double, kProductQueries>;
using QueryFloats = std::array<float, kProductQueries>;
using QueryIntegers = std::array<int32_t, kProductQueries>;
static_assert(sizeof(QueryLanes) == kProductQueries * sizeof(double));

/// Numbers of queries, with vectors that every target has; and all of them in memory.
typedef float FourFloats __attribute__((vector_size(16)));
typedef int32_t FourIntegers __attribute__((vector_size(16)));
typedef double TwoDoubles __attribute__((vector_size(16)));
template <class Vector>
struct Lanes {
  static constexpr uint32_t kCount = sizeof(Vector) / sizeof(Vector{}[0]);
  static constexpr uint32_t kVectors = kProductQueries / kCount;
  using Element = std::remove_cvref_t<decltype(Vector{}[0])>;

  static Lanes load(const Element* from) {
    Lanes lanes;
    std::memcpy(lanes.of, from, sizeof lanes.of);
    return lanes;
  }
  static Lanes all(Element value) {
    Lanes lanes;
    for (Vector& vector : lanes.of) vector = Vector{} + value;
    return lanes;
  }
  Element lane(uint32_t lane) const { return of[lane / kCount][lane % kCount]; }

  Vector of[kVectors];
};
using Floats = Lanes<FourFloats>;
using Integers = Lanes<FourIntegers>;
using Doubles = Lanes<TwoDoubles>;

FourFloats choose(FourIntegers which, FourFloats yes, FourFloats no) {
  return FourFloats((FourIntegers(yes) & which) | (FourIntegers(no) & ~which));
}

/// The sum of products of a token that is not visible.
constexpr int32_t kNotVisible = std::numeric_limits<int32_t>::min();

/// A whole number at most, or at least, so many; below and above all sums of products, as they are
/// below and above `value`.
int32_t floor_of(double value) {
  return static_cast<int32_t>(std::clamp(std::floor(value) - 1, kNotVisible + 1.0, 0x7FFFFFFFp0));
}
int32_t ceiling_of(double value) {
  return static_cast<int32_t>(std::clamp(std::ceil(value) + 1, kNotVisible + 1.0, 0x7FFFFFFFp0));
}

void make_row(NumberFormat kind, const uint8_t* values, uint32_t channels, double* __restrict row) {
  if (kind == NumberFormat::BF16) {
    for (uint32_t c = 0; c < channels; ++c) {
      uint16_t bits;
      std::memcpy(&bits, values + size_t{c} * 2, 2);
      row[c] = static_cast<double>(std::bit_cast<float>(uint32_t{bits} << 16));
    }
    return;
  }
  const uint32_t bytes = element_bytes(kind);
  for (uint32_t c = 0; c < channels; ++c, values += bytes)
    row[c] = static_cast<double>(load_number(kind, values));
}

/// A tile with a visible token, for all heads.
struct Piece {
  uint32_t block = 0;
  const PlaneKeys* keys = nullptr;        ///< of the first head; those of others lie as these do
  const PlaneKeys::Tile* tile = nullptr;  ///< likewise
  size_t tokens_at = 0;                   ///< among those of all pieces
  bool in_planes = false;         ///< it is scanned in planes: it bounds scores of all heads
  uint32_t estimated_planes = 0;  ///< if scores are estimates: from so many first ones
  bool is_read = false;         ///< the planes that are scanned exactly were counted, and verified
  std::vector<uint8_t> values;  ///< of all channels of the frame, while they are kept
  size_t kept_bytes = 0;

  uint32_t first_position() const { return keys->first_token() + tile->first; }
  ConstBytes bytes() const { return keys->frame().subspan(tile->begin, tile->bytes); }
};

/// What a head has of a piece that is in planes.
struct Part {
  const PlaneTile* planes = nullptr;
  std::optional<PlaneReader> reader;  ///< while it is kept
  bool is_read = false;               ///< rows that estimates are from were counted
};

/// A token that may be among the best.
struct Candidate {
  float low, high;
  size_t token;  ///< counted through the pieces
};

/// Tokens of a piece among those whose bounds are compared together: a score, before the scale, is
/// the sum of products times the unit, and off by so much at most.
struct Bounded {
  size_t tokens_at;  ///< among those of all pieces
  uint32_t tokens;
  QueryLanes units, offs;

  double low(uint32_t lane, int32_t sum) const { return sum * units[lane] - offs[lane]; }
  double high(uint32_t lane, int32_t sum) const { return sum * units[lane] + offs[lane]; }
};

/// What the searches of several heads share.
class Shared {
 public:
  void open(std::span<const HeadKeys> heads, const Views& views);
  /// Reads all values of a tile. Statuses are those of the piece's frame.
  Status load_values(Piece& piece);
  /// Reads first planes of a tile, and those that have one checksum with them, of all heads.
  Status read_planes(Piece& piece, const PlaneTile& of_a_head, uint32_t planes);
  Status damaged_unless_ok(const Piece& piece, Status status) {
    if (status != Status::OK) damaged_block = piece.block;
    return status;
  }
  uint64_t bytes_read() const {
    uint64_t bytes = 0;
    for (const LineSet& of_block : reads) bytes += of_block.bytes();
    return bytes;
  }

  /// Tokens whose bounds are compared at once: a tile may begin before there are enough.
  size_t most_compared() const { return std::min(tokens, kComparedTokens + size_t{most_tokens}); }

  std::vector<Piece> pieces;
  size_t tokens = 0;
  uint32_t most_tokens = 0;  ///< of a tile
  bool estimates = false;
  std::vector<LineSet> reads;  ///< by block
  StreamCoder coder{FrameBytes::MAY_CHANGE};
  uint32_t damaged_block = 0;
  size_t kept_bytes = 0;

 private:
  std::optional<Decoder> decoder_;
};

/// Whether all heads can be scanned in planes.
bool are_scannable(std::span<const HeadKeys> heads, size_t block, size_t tile) {
  return std::all_of(heads.begin(), heads.end(), [&](const HeadKeys& head) {
    const PlaneKeys& keys = *head.blocks[block];
    const std::optional<PlaneTile>& planes = keys.tiles()[tile].planes;
    if (!planes) return false;
    // Rows of whole numbers must fit 16 bits: of centres that encoders make they do.
    const int most = 2 << number_of(keys.number())->magnitude_bits;
    for (uint32_t c = 0; c < keys.channels(); ++c) {
      if (2 * planes->most_centre(c) + most > 0x7FFF) return false;
    }
    return true;
  });
}

void Shared::open(std::span<const HeadKeys> heads, const Views& views) {
  for (uint32_t b = 0; b < heads[0].blocks.size(); ++b) {
    const PlaneKeys& keys = *heads[0].blocks[b];
    reads.push_back(lines_of(keys, views.have_some(keys.first_token(), keys.tokens())));
    for (size_t t = 0; t < keys.tiles().size(); ++t) {
      const PlaneKeys::Tile& tile = keys.tiles()[t];
      if (!views.have_some(keys.first_token() + tile.first, tile.tokens)) continue;
      Piece& piece = pieces.emplace_back();
      piece.block = b;
      piece.keys = &keys;
      piece.tile = &tile;
      piece.tokens_at = tokens;
      piece.in_planes = are_scannable(heads, b, t);
      tokens += tile.tokens;
      most_tokens = std::max(most_tokens, tile.tokens);
    }
  }
}

Status Shared::load_values(Piece& piece) {
  if (!piece.values.empty()) return Status::OK;
  const PlaneKeys& keys = *piece.keys;
  const PlaneKeys::Tile& tile = *piece.tile;
  piece.values.resize(tile.tokens * keys.shape().row_bytes());
  if (!decoder_) decoder_.emplace(FrameBytes::MAY_CHANGE);
  reads[piece.block].add(piece.bytes());
  return damaged_unless_ok(piece, decoder_->decode_tokens(keys.frame(), keys.outer(), tile.first,
                                                          tile.tokens, piece.values));
}

Status Shared::read_planes(Piece& piece, const PlaneTile& of_a_head, uint32_t planes) {
  if (piece.is_read) return Status::OK;
  piece.is_read = true;
  reads[piece.block].add(of_a_head.head());
  reads[piece.block].add(of_a_head.planes_verified_with(planes));
  return damaged_unless_ok(piece, of_a_head.verify(planes));
}

/// The search of one head. Tile after tile is scanned, and then scored: by all heads before the
/// next tile, so that they find in a cache what they share.
class Scan {
 public:
  Scan(const HeadKeys& head, const Views& views, uint32_t k, Shared& shared);

  uint32_t queries() const { return queries_.count(); }
  /// Of queries that are searched together.
  size_t batches() const { return batches_.size(); }
  void begin(size_t batch);
  Status scan(size_t piece);
  void choose_candidates();
  Status score(size_t piece);
  /// hits[query]
  void finish(std::vector<std::vector<Hit>>& hits);

  const Part& part(size_t piece) const { return parts_[piece]; }
  void drop(size_t piece) { parts_[piece].reader.reset(); }
  /// Adds rows of a plane that estimates read.
  void add_rows(size_t piece, uint32_t plane, LineSet& reads) const;

 private:
  const Visible& view(uint32_t lane) const { return views_.of(which_[lane]); }
  /// Of lanes that see the token.
  uint8_t lanes_at(uint32_t position) const {
    uint32_t lanes = 0;
    for (uint32_t lane = 0; lane < query_count_; ++lane)
      lanes |= uint32_t{view(lane).has(position)} << lane;
    return static_cast<uint8_t>(lanes);
  }
  void hide_unseen(uint32_t position, uint32_t tokens, int32_t* sums) const;
  Status load(size_t piece, uint32_t streams);
  float answer_of(double sum) const {
    return static_cast<float>(sum * static_cast<double>(queries_.scale()));
  }

  bool is_scanned(const Piece& piece) const { return piece.in_planes && finite_; }
  uint32_t scanned_planes(size_t piece) const;
  Status read_planes(size_t piece, uint32_t planes);
  Status scan_planes(size_t piece);
  Status scan_values(Piece& piece);
  bool set_lanes(size_t piece, uint32_t planes);
  void set_scales(size_t piece, uint32_t planes);
  void compare_bounds();
  void raise_least();
  void sample_lows();
  QueryFloats best_of_sample(uint32_t rank);
  void take_candidates(const Bounded& bounded, const int32_t* sums);
  void add(uint32_t lane, Candidate candidate);
  void shrink(uint32_t lane);
  size_t least_candidates() const { return size_t{3} * k_ + 64; }

  void want_candidates();
  void take_estimates();
  Status score_planes(size_t piece);
  Status score_values(Piece& piece);
  void score_rows(const Piece& piece, uint32_t first, uint32_t count, const uint8_t* values,
                  size_t row_bytes);
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
  const Views views_;
  const uint32_t k_;
  Shared& shared_;
  uint32_t channels_ = 0, padded_ = 0;
  std::vector<std::vector<uint32_t>> batches_;
  std::vector<Part> parts_;                       // by piece
  const std::span<const PlaneKeys* const> keys_;  // by block
  std::vector<uint8_t> wanted_;  // by token: bits of the queries whose candidate it is

  // Of the queries that are searched together.
  std::span<const uint32_t> which_;
  uint32_t query_count_ = 0;
  bool finite_ = true;
  std::vector<QueryLanes> by_channel_, sizes_by_channel_;  // values of queries; their sizes
  std::array<std::vector<Candidate>, kProductQueries> candidates_;
  std::array<float, kProductQueries> least_{};       // k tokens score so much at least
  std::array<size_t, kProductQueries> shrink_at_{};  // so many candidates
  std::array<std::vector<Hit>, kProductQueries> hits_;

  // Of a tile.
  Lines<int16_t> numbers_;  // queries as whole numbers
  QueryLanes units_{};      // of the sums of products, before the scale
  QueryLanes offs_{};       // how far scores are from these at most
  bool scaled_ = false;
  Lines<int16_t> scales_;  // then: of differences, by channel
  Lines<int16_t> rows_;

  // Of tokens whose bounds are to be compared: sums of products, by token and query; and the lower
  // bounds of some.
  UnsetLines<int32_t> sums_;
  size_t sum_tokens_ = 0;  // of them
  std::vector<Bounded> bounded_;
  Lines<float> sample_;
  Lines<int32_t> steps_;
  size_t sample_tokens_ = 0;
  std::vector<uint32_t> reaching_;
  std::vector<uint64_t> ranks_;
  BestHits chooser_;
  std::vector<uint8_t> values_;

  // Rows that are scored exactly together.
  uint32_t exact_count_ = 0;
  Lines<double> exact_rows_;
  std::array<uint32_t, kExactRows> exact_positions_;
  std::array<uint8_t, kExactRows> exact_lanes_;
};

Scan::Scan(const HeadKeys& head, const Views& views, uint32_t k, Shared& shared)
    : queries_(*head.queries),
      views_(views),
      k_(k),
      shared_(shared),
      channels_(queries_.channels()),
      padded_(padded_channels(channels_)),
      keys_(head.blocks),
      wanted_(shared.tokens),
      numbers_(size_t{kProductQueries} * padded_),
      scales_(padded_ + 64),
      rows_(size_t{kTileTokens} * padded_),
      sums_(unset_lines<int32_t>(shared.most_compared() * kProductQueries)),
      exact_rows_(size_t{kExactRows} * channels_) {
  // Those that are not finite cost much: not together with others.
  for (const bool finite : {true, false}) {
    std::vector<uint32_t> batch;
    for (uint32_t query = 0; query < queries_.count(); ++query) {
      if (queries_.is_finite(query) == finite) batch.push_back(query);
      if (batch.size() == kProductQueries) batches_.push_back(std::exchange(batch, {}));
    }
    if (!batch.empty()) batches_.push_back(std::move(batch));
  }
  parts_.resize(shared.pieces.size());
  for (size_t i = 0; i < parts_.size(); ++i) {
    const Piece& piece = shared.pieces[i];
    if (!piece.in_planes) continue;
    const auto tile = static_cast<size_t>(piece.tile - piece.keys->tiles().data());
    parts_[i].planes = &*keys_[piece.block]->tiles()[tile].planes;
  }
}

/// scan_planes() skips tokens as here.
void Scan::add_rows(size_t index, uint32_t plane, LineSet& reads) const {
  const Piece& piece = shared_.pieces[index];
  for (uint32_t first = 0; first < piece.tile->tokens; first += kTileTokens) {
    const uint32_t tokens = std::min(kTileTokens, piece.tile->tokens - first);
    if (views_.any().has_some(piece.first_position() + first, tokens))
      parts_[index].planes->for_rows(plane, first, tokens,
                                     [&](ConstBytes rows) { reads.add(rows); });
  }
}

void Scan::begin(size_t batch) {
  which_ = batches_[batch];
  query_count_ = static_cast<uint32_t>(which_.size());
  finite_ = true;
  by_channel_.assign(channels_, QueryLanes{});
  sizes_by_channel_ = by_channel_;
  for (uint32_t lane = 0; lane < query_count_; ++lane) {
    candidates_[lane].clear();
    candidates_[lane].reserve(std::min(least_candidates(), shared_.tokens));
    hits_[lane].clear();
    least_[lane] = -kInfinity;
    shrink_at_[lane] = least_candidates();
    finite_ &= queries_.is_finite(which_[lane]);
    const float* values = queries_.floats(which_[lane]);
    for (uint32_t c = 0; c < channels_; ++c) {
      by_channel_[c][lane] = static_cast<double>(values[c]);
      sizes_by_channel_[c][lane] = std::abs(by_channel_[c][lane]);
    }
  }
}

Status Scan::scan(size_t index) {
  Piece& piece = shared_.pieces[index];
  return is_scanned(piece) ? scan_planes(index) : scan_values(piece);
}

void Scan::choose_candidates() {
  compare_bounds();
  want_candidates();
  if (shared_.estimates) take_estimates();
}

Status Scan::score(size_t index) {
  Piece& piece = shared_.pieces[index];
  if (!is_scanned(piece)) return score_values(piece);
  return shared_.estimates ? Status::OK : score_planes(index);
}

void Scan::finish(std::vector<std::vector<Hit>>& of_queries) {
  finish_rows(hits_adder());
  for (uint32_t lane = 0; lane < query_count_; ++lane) {
    std::vector<Hit>& hits = hits_[lane];
    if (hits.size() > k_) {
      chooser_.keep(hits, k_);
      hits.resize(k_);
    }
    std::sort(hits.begin(), hits.end(), better);
    of_queries[which_[lane]] = std::move(hits);
  }
}

// ---- the first pass ----

uint32_t Scan::scanned_planes(size_t index) const {
  if (shared_.estimates) return shared_.pieces[index].estimated_planes;
  const PlaneTile& tile = *parts_[index].planes;
  return tile.verified_with(std::min(kScannedPlanes, tile.number().planes()));
}

/// A budget does not pay for planes that have one checksum with these, nor for rows that no query
/// sees, nor for other heads: nothing else is verified then.
Status Scan::read_planes(size_t index, uint32_t planes) {
  Piece& piece = shared_.pieces[index];
  Part& part = parts_[index];
  const PlaneTile& tile = *part.planes;
  if (!shared_.estimates) return shared_.read_planes(piece, tile, planes);
  if (tile.verified_with(planes) == planes && !tile.is_cut() &&
      views_.any().has_all(piece.first_position(), piece.tile->tokens))
    return shared_.read_planes(piece, tile, planes);
  if (part.is_read) return Status::OK;
  part.is_read = true;
  shared_.reads[piece.block].add(tile.head());
  for (uint32_t p = 0; p < planes; ++p) add_rows(index, p, shared_.reads[piece.block]);
  return Status::OK;
}

/// Coded streams are read here, and whole.
Status Scan::load(size_t index, uint32_t streams) {
  Part& part = parts_[index];
  const Piece& piece = shared_.pieces[index];
  for (uint32_t s = 0; s < streams; ++s) {
    if (part.planes->is_coded(s)) shared_.reads[piece.block].add(part.planes->coded(s));
  }
  if (!part.reader) part.reader.emplace(*part.planes);
  return shared_.damaged_unless_ok(piece, part.reader->load(streams, shared_.coder));
}

Status Scan::scan_planes(size_t index) {
  Piece& piece = shared_.pieces[index];
  const PlaneKeys::Tile& tile = *piece.tile;
  const uint32_t count = scanned_planes(index);
  if (const Status status = read_planes(index, count); status != Status::OK) return status;
  if (const Status status = load(index, count); status != Status::OK) return status;
  if (!set_lanes(index, count)) return scan_values(piece);
  if (shared_.estimates) set_scales(index, count);
  int32_t* sums = &sums_[sum_tokens_ * kProductQueries];
  for (uint32_t first = 0; first < tile.tokens; first += kTileTokens) {
    const uint32_t tokens = std::min(kTileTokens, tile.tokens - first);
    const uint32_t position = piece.first_position() + first;
    int32_t* of = sums + size_t{first} * kProductQueries;
    if (views_.any().has_some(position, tokens)) {
      parts_[index].reader->middles(first, tokens, count, scaled_ ? scales_.data() : nullptr,
                                    rows_.data());
      kernels().products({numbers_.data(), rows_.data(), tokens, padded_}, of);
      hide_unseen(position, tokens, of);
    } else {
      std::fill_n(of, size_t{tokens} * kProductQueries, kNotVisible);
    }
  }
  sum_tokens_ += tile.tokens;
  bounded_.push_back({piece.tokens_at, tile.tokens, units_, offs_});
  if (sum_tokens_ >= kComparedTokens) compare_bounds();
  return Status::OK;
}

/// Of estimates, which are as near as they can be, and have no bounds.
void Scan::set_scales(size_t index, uint32_t planes) {
  const PlaneTile& tile = *parts_[index].planes;
  offs_.fill(0);
  const std::span<const uint8_t> spreads = tile.spreads();
  scaled_ = !spreads.empty() && planes <= kScaledPlanes && planes < tile.number().planes();
  for (uint32_t c = 0; scaled_ && c < channels_; ++c) {
    const float scale = std::ldexp(scale_of_differences(spreads[c], planes), 15);
    scales_[c] = static_cast<int16_t>(std::min(std::lround(scale), 0x7FFFl));
  }
}

void Scan::hide_unseen(uint32_t position, uint32_t tokens, int32_t* sums) const {
  for (uint32_t lane = 0; lane < query_count_; ++lane) {
    if (view(lane).has_all(position, tokens)) continue;
    for (uint32_t i = 0; i < tokens; ++i) {
      if (!view(lane).has(position + i)) sums[size_t{i} * kProductQueries + lane] = kNotVisible;
    }
  }
}

/// Notes those of the tokens in bounded_ that may be among the best.
void Scan::compare_bounds() {
  raise_least();
  const int32_t* sums = sums_.get();
  for (const Bounded& bounded : bounded_) {
    take_candidates(bounded, sums);
    sums += size_t{bounded.tokens} * kProductQueries;
  }
  sum_tokens_ = 0;
  bounded_.clear();
}

/// The lower bounds of every kStride-th token; -infinity if it is not visible.
constexpr uint32_t kStride = 8;
void Scan::sample_lows() {
  sample_.resize(
      std::max(sample_.size(), (sum_tokens_ / kStride + bounded_.size()) * kProductQueries));
  sample_tokens_ = 0;
  const int32_t* sums = sums_.get();
  for (const Bounded& bounded : bounded_) {
    QueryFloats units, offs;
    for (uint32_t lane = 0; lane < kProductQueries; ++lane) {
      units[lane] = static_cast<float>(bounded.units[lane]);
      offs[lane] = static_cast<float>(bounded.offs[lane]);
    }
    const Floats unit = Floats::load(units.data()), off = Floats::load(offs.data());
    for (uint32_t i = 0; i < bounded.tokens; i += kStride) {
      const Integers of = Integers::load(sums + size_t{i} * kProductQueries);
      Floats low;
      for (uint32_t v = 0; v < Floats::kVectors; ++v) {
        low.of[v] = __builtin_convertvector(of.of[v], FourFloats) * unit.of[v] - off.of[v];
        low.of[v] = choose(of.of[v] > kNotVisible, low.of[v], FourFloats{} - kInfinity);
      }
      std::memcpy(&sample_[sample_tokens_++ * kProductQueries], low.of, sizeof low.of);
    }
    sums += size_t{bounded.tokens} * kProductQueries;
  }
}

/// Of each query a number that at least `rank` of the sample reach, and hardly more do: in steps of
/// the range of its visible ones.
QueryFloats Scan::best_of_sample(uint32_t rank) {
  constexpr int32_t kSteps = 512;
  Floats low = Floats::all(kInfinity), high = Floats::all(-kInfinity);
  for (size_t token = 0; token < sample_tokens_; ++token) {
    const Floats bounds = Floats::load(&sample_[token * kProductQueries]);
    for (uint32_t v = 0; v < Floats::kVectors; ++v) {
      const FourFloats visible =
          choose(bounds.of[v] > -kInfinity, bounds.of[v], FourFloats{} + kInfinity);
      low.of[v] = choose(visible < low.of[v], visible, low.of[v]);
      high.of[v] = choose(bounds.of[v] > high.of[v], bounds.of[v], high.of[v]);
    }
  }
  Floats step;
  for (uint32_t v = 0; v < Floats::kVectors; ++v) {
    step.of[v] = (high.of[v] - low.of[v]) * (1.0f / kSteps);
    step.of[v] = choose(step.of[v] > 0, step.of[v], FourFloats{} + 1);
  }
  steps_.resize(std::max(steps_.size(), sample_tokens_ * kProductQueries));
  for (size_t token = 0; token < sample_tokens_; ++token) {
    const Floats bounds = Floats::load(&sample_[token * kProductQueries]);
    Integers steps;
    for (uint32_t v = 0; v < Floats::kVectors; ++v) {
      const FourIntegers seen = bounds.of[v] > -kInfinity;
      const FourFloats above = choose(seen, bounds.of[v] - low.of[v], FourFloats{});
      steps.of[v] = (__builtin_convertvector(above / step.of[v], FourIntegers) & seen) | ~seen;
    }
    std::memcpy(&steps_[token * kProductQueries], steps.of, sizeof steps.of);
  }
  QueryIntegers from{}, to;
  to.fill(kSteps);
  for (int32_t half = kSteps / 2; half > 0; half /= 2) {
    QueryIntegers middle, counts{};
    for (uint32_t lane = 0; lane < kProductQueries; ++lane)
      middle[lane] = (from[lane] + to[lane]) / 2;
    kernels().count_reaching(steps_.data(), sample_tokens_, middle.data(), counts.data());
    for (uint32_t lane = 0; lane < kProductQueries; ++lane)
      (counts[lane] >= static_cast<int32_t>(rank) ? from : to)[lane] = middle[lane];
  }
  QueryFloats best;
  for (uint32_t lane = 0; lane < kProductQueries; ++lane)
    best[lane] = low.lane(lane) + static_cast<float>(from[lane]) * step.lane(lane);
  return best;
}

/// By the best of a sample, if at least k of all are as good.
void Scan::raise_least() {
  if (sum_tokens_ < size_t{kStride} * k_) return;
  sample_lows();
  const QueryFloats best = best_of_sample(k_ * 5 / 4 / kStride + 3);
  QueryIntegers counts{};
  const int32_t* sums = sums_.get();
  for (const Bounded& bounded : bounded_) {
    QueryIntegers cuts;
    for (uint32_t lane = 0; lane < kProductQueries; ++lane)
      cuts[lane] =
          ceiling_of((static_cast<double>(best[lane]) + bounded.offs[lane]) / bounded.units[lane]);
    kernels().count_reaching(sums, bounded.tokens, cuts.data(), counts.data());
    sums += size_t{bounded.tokens} * kProductQueries;
  }
  for (uint32_t lane = 0; lane < query_count_; ++lane) {
    if (counts[lane] >= static_cast<int32_t>(k_))
      least_[lane] = std::max(least_[lane], answer_of(static_cast<double>(best[lane])));
  }
}

/// Those whose upper bound is not below `least_`. Scaling and rounding never reverse the order of
/// two numbers: what is below the float before `least_` is below it when it is rounded.
void Scan::take_candidates(const Bounded& bounded, const int32_t* sums) {
  QueryIntegers cuts;
  cuts.fill(std::numeric_limits<int32_t>::max());
  for (uint32_t lane = 0; lane < query_count_; ++lane) {
    const auto below = static_cast<double>(std::nextafter(least_[lane], -kInfinity));
    const double high = below / static_cast<double>(queries_.scale());
    cuts[lane] = floor_of((high - bounded.offs[lane]) / bounded.units[lane]);
  }
  reaching_.resize(std::max<size_t>(reaching_.size(), bounded.tokens));
  const uint32_t some =
      kernels().rows_reaching(sums, bounded.tokens, cuts.data(), reaching_.data());
  for (const uint32_t token : std::span(reaching_).first(some)) {
    const int32_t* of = sums + size_t{token} * kProductQueries;
    for (uint32_t lane = 0; lane < query_count_; ++lane) {
      if (of[lane] >= cuts[lane])
        add(lane, {answer_of(bounded.low(lane, of[lane])), answer_of(bounded.high(lane, of[lane])),
                   bounded.tokens_at + token});
    }
  }
}

/// Of a tile whose values are decoded: all tokens are scored. NaN is below all numbers.
Status Scan::scan_values(Piece& piece) {
  if (const Status status = shared_.load_values(piece); status != Status::OK) return status;
  const PlaneKeys& keys = *keys_[piece.block];
  const size_t row_bytes = keys.shape().row_bytes();
  const auto add_score = [&](uint32_t token, uint32_t lane, float score) {
    const float bound = std::isnan(score) ? -kInfinity : score;
    add(lane, {bound, bound, piece.tokens_at + token});
  };
  for (uint32_t i = 0; i < piece.tile->tokens; ++i) {
    if (const uint8_t lanes = lanes_at(piece.first_position() + i); lanes != 0)
      add_row(&piece.values[i * row_bytes + keys.row_begin()], i, lanes, add_score);
  }
  finish_rows(add_score);
  return Status::OK;
}

/// Queries, times the units of the channels, as whole numbers; how far their products are off.
///
/// A value is centre + (twice the middle of an interval) / 2 in units, off by half of the interval
/// (docs/ndp-topk.md), a denormal by up to 2^-bias more. Its query in these units is off by half of
/// `unit`, for rows of at most `most`; sums of products have 31 bits. The rest is what the
/// definition's sum rounds, and bounds do, which are floats: false if they are too large or too
/// small for that.
bool Scan::set_lanes(size_t index, uint32_t planes) {
  const PlaneTile& tile = *parts_[index].planes;
  const Number& number = tile.number();
  const std::span<const double> channel_units = tile.units();
  const int bias = number.is_float() ? (1 << (number.exponent_bits - 1)) - 1 : 0;
  const double interval = std::ldexp(1.0, static_cast<int>(number.planes() - planes));
  const double limit = std::ldexp(2.0, number.magnitude_bits), least = std::ldexp(1.0, -bias);
  Doubles largest{}, sizes{}, products{}, denormals{};
  double rows = 0;
  for (uint32_t c = 0; c < channels_; ++c) {
    const Doubles values = Doubles::load(sizes_by_channel_[c].data());
    const double most = 2 * tile.most_centre(c) + limit;
    const bool denormal = number.is_float() && tile.exponents()[c] < number.magnitude_bits;
    rows += most;
    for (uint32_t v = 0; v < Doubles::kVectors; ++v) {
      const TwoDoubles size = values.of[v] * channel_units[c];
      largest.of[v] = size > largest.of[v] ? size : largest.of[v];
      sizes.of[v] += size;
      products.of[v] += size * most;
      if (denormal) denormals.of[v] += values.of[v] * least;
    }
  }
  QueryLanes inverses{};
  for (uint32_t lane = 0; lane < kProductQueries; ++lane) {
    double unit =
        std::max(largest.lane(lane) / 0x7FFE, products.lane(lane) / (0x7FFFFFFF - 0x2000000));
    if (!(unit > 0)) unit = 1;
    inverses[lane] = 1 / unit;
    units_[lane] = unit / 2;  // sums are of twice the values
    double off = sizes.lane(lane) * interval / 2 + unit / 4 * rows + denormals.lane(lane);
    off += off * 0x1p-20 + products.lane(lane) * 0x1p-21;
    offs_[lane] = off;
    if (lane < query_count_ &&
        (!(products.lane(lane) + off < 0x1p120) || !(off > 0x1p-90 || shared_.estimates)))
      return false;
  }
  // Rounded by a sum whose last bit is 1.
  const Doubles inverse = Doubles::load(inverses.data());
  for (uint32_t c = 0; c < channels_; ++c) {
    const Doubles values = Doubles::load(by_channel_[c].data());
    std::array<uint64_t, kProductQueries> bits;
    for (uint32_t v = 0; v < Doubles::kVectors; ++v) {
      const TwoDoubles a = values.of[v] * channel_units[c] * inverse.of[v] + 0x1.8p52;
      std::memcpy(&bits[v * Doubles::kCount], &a, sizeof a);
    }
    for (uint32_t lane = 0; lane < kProductQueries; ++lane)
      numbers_[size_t{lane} * padded_ + c] = static_cast<int16_t>(bits[lane]);
  }
  return true;
}

void Scan::add(uint32_t lane, Candidate candidate) {
  if (candidate.high < least_[lane]) return;
  std::vector<Candidate>& all = candidates_[lane];
  if (all.size() == all.capacity()) all.reserve(std::min(2 * all.size(), shared_.tokens));
  all.push_back(candidate);
  if (all.size() < shrink_at_[lane]) return;
  shrink(lane);
  // It may have dropped few: all may have nearly the same bounds.
  shrink_at_[lane] = std::max(least_candidates(), 2 * all.size());
}

/// Drops candidates that k others outdo.
void Scan::shrink(uint32_t lane) {
  std::vector<Candidate>& all = candidates_[lane];
  if (all.size() <= k_) return;
  ranks_.resize(std::max(ranks_.size(), all.size()));
  const std::span<uint64_t> ranks = std::span(ranks_).first(all.size());
  for (size_t i = 0; i < all.size(); ++i)
    ranks[i] = rank_of({all[i].low, static_cast<uint32_t>(all[i].token)});
  const uint64_t cut = cut_of_best(ranks, k_);
  float least = kInfinity;
  for (size_t i = 0; i < all.size(); ++i)
    if (ranks[i] >= cut) least = std::min(least, all[i].low);
  least_[lane] = std::max(least_[lane], least);
  std::erase_if(all, [&](const Candidate& candidate) { return candidate.high < least_[lane]; });
}

// ---- exact scores ----

void Scan::want_candidates() {
  std::fill(wanted_.begin(), wanted_.end(), uint8_t{0});
  for (uint32_t lane = 0; lane < query_count_; ++lane) {
    shrink(lane);
    hits_[lane].reserve(candidates_[lane].size());
    for (const Candidate& candidate : candidates_[lane]) {
      uint8_t& wanted = wanted_[candidate.token];
      wanted = static_cast<uint8_t>(wanted | 1u << lane);
    }
  }
}

/// Of candidates in planes: their bounds are the same.
void Scan::take_estimates() {
  for (uint32_t lane = 0; lane < query_count_; ++lane) {
    for (const Candidate& candidate : candidates_[lane]) {
      const Piece& piece =
          *(std::upper_bound(shared_.pieces.begin(), shared_.pieces.end(), candidate.token,
                             [](size_t token, const Piece& of) { return token < of.tokens_at; }) -
            1);
      if (!is_scanned(piece)) continue;
      const auto within = static_cast<uint32_t>(candidate.token - piece.tokens_at);
      hits_[lane].push_back({candidate.low, piece.first_position() + within});
    }
  }
}

Status Scan::score_values(Piece& piece) {
  const auto wanted = wanted_.begin() + static_cast<std::ptrdiff_t>(piece.tokens_at);
  if (std::all_of(wanted, wanted + piece.tile->tokens, [](uint8_t lanes) { return lanes == 0; }))
    return Status::OK;
  if (const Status status = shared_.load_values(piece); status != Status::OK) return status;
  const PlaneKeys& keys = *keys_[piece.block];
  score_rows(piece, 0, piece.tile->tokens, &piece.values[keys.row_begin()],
             keys.shape().row_bytes());
  return Status::OK;
}

/// Tokens of steps with a candidate: the remainder of a step's first token is known.
Status Scan::score_planes(size_t index) {
  const Piece& piece = shared_.pieces[index];
  const PlaneTile& tile = *parts_[index].planes;
  const uint8_t* wanted = &wanted_[piece.tokens_at];
  const uint32_t tokens = piece.tile->tokens, planes = tile.number().planes();
  const auto next_wanted = [&](uint32_t token) {
    while (token < tokens && wanted[token] == 0) ++token;
    return token;
  };
  uint32_t token = next_wanted(0);
  if (token == tokens) return Status::OK;
  if (const Status status = load(index, planes + 2); status != Status::OK) return status;
  const size_t row_bytes = keys_[piece.block]->row_bytes();
  while (token < tokens) {
    const uint32_t first = tile.step_first(token);
    uint32_t end = token + 1;  // and further tokens of the same step, or of the next one
    for (token = next_wanted(end); token < tokens; token = next_wanted(end)) {
      if (tile.step_first(token) > end) break;
      end = token + 1;
    }
    values_.resize(std::max(values_.size(), (end - first) * row_bytes));
    parts_[index].reader->exact_rows(first, end - first, values_.data());
    score_rows(piece, first, end - first, values_.data(), row_bytes);
    const auto add = [&](ConstBytes bytes) { shared_.reads[piece.block].add(bytes); };
    for (uint32_t p = scanned_planes(index); p < planes; ++p)
      tile.for_rows(p, first, end - first, add);
    tile.for_rests(first, end, add);
  }
  return Status::OK;
}

/// Of values from these tokens' first on, row_bytes apart.
void Scan::score_rows(const Piece& piece, uint32_t first, uint32_t count, const uint8_t* values,
                      size_t row_bytes) {
  for (uint32_t i = 0; i < count; ++i) {
    const uint8_t lanes = wanted_[piece.tokens_at + first + i];
    if (lanes == 0) continue;
    add_row(values + i * row_bytes, piece.first_position() + first + i, lanes, hits_adder());
  }
}

/// Calls each(position, lane, score) for this or for earlier rows.
template <class Each>
void Scan::add_row(const uint8_t* values, uint32_t position, uint8_t lanes, const Each& each) {
  make_row(queries_.keys(), values, channels_, &exact_rows_[size_t{exact_count_} * channels_]);
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

LineSet lines_of(const PlaneKeys& keys, bool are_seen) {
  return LineSet(keys.bytes(), are_seen ? keys.head_bytes() : 0);
}

Error unreadable_frame(Status status, const UnreadableKeys& at, UnreadableKeys* to) {
  if (to != nullptr) *to = at;
  const char* why = status == Status::UNSUPPORTED_CODEC
                        ? "has a codec that this build does not know"
                        : "is damaged";
  return Error{
      status, fmt::format("the frame of block {} {}: search the other blocks only", at.block, why)};
}

namespace {

/// The searches of all heads.
class HeadScans {
 public:
  HeadScans(std::span<const HeadKeys> heads, const Views& views, uint32_t k);
  void keep_to(double bytes_per_token);
  Result<HeadsAnswer> search(UnreadableKeys* unreadable);

 private:
  void keep_or_drop(size_t piece);
  Status search_batch(size_t batch, HeadsAnswer& answer);
  /// Calls each(scan, head) for heads that have this batch, until one fails.
  template <class Each>
  Status for_heads(size_t batch, const Each& each) {
    Status status = Status::OK;
    for (size_t head = 0; head < scans_.size() && status == Status::OK; ++head) {
      if (batch < scans_[head].batches()) status = each(scans_[head], head);
    }
    return status;
  }

  const Views views_;
  Shared shared_;
  std::vector<Scan> scans_;
};

HeadScans::HeadScans(std::span<const HeadKeys> heads, const Views& views, uint32_t k)
    : views_(views) {
  shared_.open(heads, views);
  scans_.reserve(heads.size());
  for (const HeadKeys& head : heads) scans_.emplace_back(head, views, k, shared_);
}

/// When all heads have looked at a piece. The first ones are kept: all are looked at in their
/// order.
void HeadScans::keep_or_drop(size_t index) {
  Piece& piece = shared_.pieces[index];
  shared_.kept_bytes -= piece.kept_bytes;
  piece.kept_bytes = piece.values.capacity();
  size_t shared_bytes = 0;
  for (const Scan& scan : scans_) {
    const std::optional<PlaneReader>& reader = scan.part(index).reader;
    if (!reader) continue;
    piece.kept_bytes += reader->held_bytes();
    shared_bytes = std::max(shared_bytes, reader->shared_bytes());
  }
  piece.kept_bytes += shared_bytes;
  if (shared_.kept_bytes + piece.kept_bytes > kKeptBytes) {
    for (Scan& scan : scans_) scan.drop(index);
    piece.values = std::vector<uint8_t>();
    piece.kept_bytes = 0;
  }
  shared_.kept_bytes += piece.kept_bytes;
}

/// The first plane of all tiles, then the next one, and so on, while the budget lasts: of the last
/// ones it pays for some, those that take the fewest bytes for a token.
void HeadScans::keep_to(double bytes_per_token) {
  shared_.estimates = true;
  uint64_t tokens = 0;
  std::vector<LineSet> reads = shared_.reads;
  std::vector<size_t> left;
  for (size_t i = 0; i < shared_.pieces.size(); ++i) {
    const Piece& piece = shared_.pieces[i];
    tokens += views_.any().count_of(piece.first_position(), piece.tile->tokens);
    reads[piece.block].add(piece.in_planes ? piece.tile->planes->head() : piece.bytes());
    if (piece.in_planes) left.push_back(i);
  }
  const double most = bytes_per_token * static_cast<double>(tokens * scans_.size());
  const auto planes_of = [&](size_t i) -> const PlaneTile& {
    return *shared_.pieces[i].tile->planes;
  };
  uint64_t bytes = 0;
  for (const LineSet& of_block : reads) bytes += of_block.bytes();
  for (uint32_t plane = 0; !left.empty(); ++plane) {
    std::erase_if(left, [&](size_t i) { return planes_of(i).number().planes() == plane; });
    std::stable_sort(left.begin(), left.end(), [&](size_t a, size_t b) {
      return planes_of(a).coded(plane).size() * uint64_t{planes_of(b).tokens()} <
             planes_of(b).coded(plane).size() * uint64_t{planes_of(a).tokens()};
    });
    for (const size_t i : left) {
      LineSet& of_block = reads[shared_.pieces[i].block];
      bytes -= of_block.bytes();
      for (const Scan& scan : scans_) scan.add_rows(i, plane, of_block);
      bytes += of_block.bytes();
      if (plane > 0 && static_cast<double>(bytes) > most) return;
      shared_.pieces[i].estimated_planes = plane + 1;
    }
  }
}

Status HeadScans::search_batch(size_t batch, HeadsAnswer& answer) {
  const auto of_all_pieces = [&](const auto& each) {
    for (size_t piece = 0; piece < shared_.pieces.size(); ++piece) {
      if (!pass_checkpoint(shared_.pieces[piece].tile->tokens)) return Status::CANCELLED;
      const Status status = for_heads(batch, [&](Scan& scan, size_t) { return each(scan, piece); });
      if (status != Status::OK) return status;
      keep_or_drop(piece);
    }
    return Status::OK;
  };
  const auto of_all = [&](const auto& each) {
    (void)for_heads(batch, [&](Scan& scan, size_t head) {
      each(scan, head);
      return Status::OK;
    });
  };
  of_all([&](Scan& scan, size_t) { scan.begin(batch); });
  Status status = of_all_pieces([](Scan& scan, size_t piece) { return scan.scan(piece); });
  if (status != Status::OK) return status;
  of_all([](Scan& scan, size_t) { scan.choose_candidates(); });
  status = of_all_pieces([](Scan& scan, size_t piece) { return scan.score(piece); });
  if (status != Status::OK) return status;
  of_all([&](Scan& scan, size_t head) { scan.finish(answer.hits[head]); });
  return Status::OK;
}

Result<HeadsAnswer> HeadScans::search(UnreadableKeys* unreadable) {
  HeadsAnswer answer;
  answer.hits.resize(scans_.size());
  size_t batches = 0;
  for (const Scan& scan : scans_) batches = std::max(batches, scan.batches());
  for (size_t head = 0; head < scans_.size(); ++head)
    answer.hits[head].resize(scans_[head].queries());
  for (size_t batch = 0; batch < batches; ++batch) {
    const Status status = search_batch(batch, answer);
    if (status != Status::OK)
      return unreadable_frame(status, {shared_.damaged_block, shared_.bytes_read()}, unreadable);
  }
  answer.bytes_read = shared_.bytes_read();
  return answer;
}

}  // namespace

Result<HeadsAnswer> scan_heads(std::span<const HeadKeys> heads, const Views& views, uint32_t k,
                               std::optional<double> bytes_per_token, UnreadableKeys* unreadable) {
  if (heads.empty()) return HeadsAnswer{};
  HeadScans scans(heads, views, k);
  if (bytes_per_token) scans.keep_to(*bytes_per_token);
  return scans.search(unreadable);
}

}  // namespace bowhead::ndp
