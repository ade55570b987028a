// SPDX-License-Identifier: Apache-2.0
// A searchable tile of keys in planes (docs/frame.md): where its parts lie; and, while a search
// looks at it, its values as the planes read so far show them, and exactly. A search looks at one
// head: where the heads of a token lie side by side, a tile is cut.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "compression/frame_parts.h"

namespace bowhead::ndp {

inline constexpr double kSpreadUnit = 1.0 / 128;

/// Where the remainders and exceptions of some tokens begin in their streams.
struct RestBegin {
  uint32_t bits = 0, exceptions = 0;
};

/// Decoded streams of a tile of which there are cuts: readers of several cuts share them, while one
/// of them has them. Threads may share it.
class SharedStreams {
 public:
  using Plain = std::shared_ptr<const std::vector<uint8_t>>;
  /// Null: it is damaged.
  Plain decoded(uint32_t stream, const compression::StreamSize& size, compression::ConstBytes coded,
                compression::StreamCoder& coder);

 private:
  std::mutex mutex_;
  std::array<std::weak_ptr<const std::vector<uint8_t>>, compression::kMaxStreams> streams_;
};

/// What is read of a tile when it is opened.
struct TileParts {
  const compression::Number* number = nullptr;
  compression::Shape shape;
  uint32_t tokens = 0;
  compression::ConstBytes bytes;
  size_t head_bytes = 0;
  compression::TileHeader head;
  compression::TileParameters parameters;
  compression::Steps steps;
  std::vector<RestBegin> begins;  ///< by step; of integers none
  std::vector<double> units, most_centres;
  compression::CentreMaker centres;
  compression::TurningCentre centre;
  std::array<compression::ConstBytes, compression::kMaxStreams> coded;
  mutable SharedStreams shared;  ///< for cuts
};

/// The head of a tile, and where its streams lie: of all channels, or of some, as where the heads
/// of a token lie side by side. Copies share what was read. Threads may share it.
class PlaneTile {
 public:
  /// Reads and verifies the head of a tile of so many tokens; the bytes must outlive this and its
  /// copies. DAMAGED.
  static Result<PlaneTile> open(const compression::Shape& shape, compression::ConstBytes tile,
                                uint32_t tokens);
  /// The tile with some of its channels. None if they cannot be cut out: rows are cut at bytes, and
  /// a centre that turns at heads.
  std::optional<PlaneTile> cut(uint32_t first_channel, uint32_t channels) const;

  uint32_t tokens() const { return parts_->tokens; }
  uint32_t channels() const { return channels_; }
  bool is_cut() const { return channels_ != parts_->shape.channels; }
  const compression::Number& number() const { return *parts_->number; }
  const compression::StreamSize& stream(uint32_t s) const { return parts_->head.streams[s]; }
  compression::ConstBytes coded(uint32_t stream) const { return parts_->coded[stream]; }
  bool is_coded(uint32_t stream) const {
    return parts_->head.streams[stream].codec >= compression::StreamCodec::LZ4;
  }
  /// Of a cut: a coded stream, as SharedStreams has it.
  SharedStreams::Plain shared(uint32_t stream, compression::StreamCoder& coder) const {
    return parts_->shared.decoded(stream, parts_->head.streams[stream], coded(stream), coder);
  }
  compression::ConstBytes head() const { return parts_->bytes.first(parts_->head_bytes); }

  /// Rows of planes: from a token to the next one; and the part with these channels.
  uint32_t row_stride() const { return bytes_for(parts_->shape.channels); }
  uint32_t row_begin() const { return first_channel_ / 8; }
  uint32_t row_bytes() const { return bytes_for(channels_); }
  /// The frame's bytes that it takes: all of a coded plane, none of one that is all zero.
  compression::ConstBytes row_of(uint32_t plane, uint32_t token) const {
    return bytes_of(plane, uint64_t{token} * row_stride() + row_begin(), row_bytes());
  }
  /// Calls each(bytes) for those that rows of some tokens take, with what lies between two that may
  /// share a line.
  template <class Each>
  void for_rows(uint32_t plane, uint32_t first, uint32_t count, const Each& each) const;

  /// Verifies the first planes, and those that have one checksum with them. Of a cut tile they hold
  /// other channels too. DAMAGED.
  Status verify(uint32_t planes) const;
  /// How many first planes verify() reads for so many, and their bytes.
  uint32_t verified_with(uint32_t planes) const;
  compression::ConstBytes planes_verified_with(uint32_t planes) const;

  /// By channel.
  std::span<const double> units() const {
    return std::span(parts_->units).subspan(first_channel_, channels_);
  }
  const uint16_t* exponents() const { return parts_->parameters.exponents.data() + first_channel_; }
  /// No centre is further from zero, in units; and whether it turns: else it is the same at each
  /// token.
  double most_centre(uint32_t channel) const {
    return parts_->most_centres[first_channel_ + channel];
  }
  bool turns() const { return parts_->centre.rotary.dim != 0; }
  /// At the first token.
  compression::TurningCentre centre() const {
    return compression::some_channels(parts_->centre, first_channel_, channels_);
  }
  /// By channel: how far values are from the centre on average, in units of kSpreadUnit of half of
  /// the most that they can be; none if the tile does not say.
  std::span<const uint8_t> spreads() const {
    return parts_->head.has_spreads
               ? parts_->parameters.directory.subspan(first_channel_, channels_)
               : std::span<const uint8_t>();
  }

  /// The first token of its step.
  uint32_t step_first(uint32_t token) const { return token - token % parts_->steps.tokens; }
  /// Where a remainder is known: that of the first token of a step begins with this channel, which
  /// is not behind those of a cut.
  uint32_t lead_channel() const {
    return has_parted_tokens()
               ? first_channel_ / compression::kStepValues * compression::kStepValues
               : 0;
  }
  RestBegin rest_begin(uint32_t token) const {
    const uint32_t step = first_step(token);
    return step < parts_->begins.size() ? parts_->begins[step] : RestBegin{};
  }
  /// The tile from that channel on, or from one before it where the centre turns; up to the last
  /// one of this, or, if steps have whole tokens, of all.
  PlaneTile led() const;
  uint32_t first_channel() const { return first_channel_; }
  /// A step is a part of a token.
  bool has_parted_tokens() const { return parts_->steps.per_token > 1; }
  /// Calls each(bytes) for the remainders and exceptions of tokens `first` to before `end`, in
  /// whole steps.
  template <class Each>
  void for_rests(uint32_t first, uint32_t end, const Each& each) const;

 private:
  explicit PlaneTile(std::shared_ptr<const TileParts> parts)
      : parts_(std::move(parts)), channels_(parts_->shape.channels) {}
  static uint32_t bytes_for(uint32_t channels) { return (channels + 7) / 8; }
  compression::ConstBytes bytes_of(uint32_t stream, uint64_t begin, uint64_t bytes) const;
  uint32_t first_step(uint32_t token) const {
    return parts_->steps.of_token(token) + lead_channel() / compression::kStepValues;
  }
  /// Of a token; behind it.
  uint32_t end_step(uint32_t token) const {
    return parts_->steps.of_token(token) +
           (has_parted_tokens() ? (first_channel_ + channels_ - 1) / compression::kStepValues : 0) +
           1;
  }
  std::array<compression::ConstBytes, 2> rests_of_steps(uint32_t first, uint32_t end) const;

  std::shared_ptr<const TileParts> parts_;
  uint32_t first_channel_ = 0, channels_ = 0;
};

template <class Each>
void PlaneTile::for_rows(uint32_t plane, uint32_t first, uint32_t count, const Each& each) const {
  if (count == 0) return;
  if (is_cut() && row_stride() > 64 && !is_coded(plane)) {
    for (uint32_t token = first; token < first + count; ++token) each(row_of(plane, token));
  } else {
    each(bytes_of(plane, uint64_t{first} * row_stride() + row_begin(),
                  uint64_t{count - 1} * row_stride() + row_bytes()));
  }
}

template <class Each>
void PlaneTile::for_rests(uint32_t first, uint32_t end, const Each& each) const {
  const uint32_t together = is_cut() && has_parted_tokens() ? 1 : end - first;
  for (uint32_t token = first; token < end; token += together) {
    for (const compression::ConstBytes part :
         rests_of_steps(first_step(token), end_step(token + together - 1)))
      each(part);
  }
}

/// The centre of some channels of a tile at one token after the other.
class CentreReader {
 public:
  explicit CentreReader(const PlaneTile& tile);
  CentreReader(CentreReader&&) noexcept = default;  // no copies: centre_ points into state_
  CentreReader& operator=(CentreReader&&) noexcept = default;

  /// The centre at a token, by the last state before it that is known. Kernels may turn it on.
  const compression::TurningCentre& at(uint32_t token);
  /// Space for the states from a token on that is a multiple of kStateTokens, and the note that so
  /// many tokens have theirs.
  int16_t* states_from(uint32_t token) { return &states_[state_of(token)]; }
  void note_states(uint32_t token, uint32_t count);
  /// Of memory that it takes.
  size_t held_bytes() const {
    return (state_.capacity() + states_.capacity() + rows_.capacity()) * sizeof(int16_t);
  }

 private:
  size_t state_of(uint32_t token) const {
    return size_t{token / compression::kStateTokens} * centre_.channels;
  }

  uint32_t tokens_;
  std::vector<int16_t> state_;  // of the centre at some token, with 64 more elements
  compression::TurningCentre centre_;
  std::vector<int16_t> states_;  // of the centre at every kStateTokens-th token
  uint32_t noted_ = 1;           // of them; the others are not known yet
  std::vector<int16_t> rows_;    // of some tokens
};

/// Reads the values of one tile, or of some channels of it. For one thread at a time.
class PlaneReader {
 public:
  explicit PlaneReader(const PlaneTile& tile);

  /// Makes the first streams readable by the calls below. DAMAGED.
  Status load(uint32_t streams, compression::StreamCoder& coder);

  /// Tokens first .. first + count - 1 as the first planes, loaded, show them, in units of the
  /// channel: twice the middle of each value's interval, less the centre; and the centre. Rows as
  /// compression/planes.h has them.
  void differences(uint32_t first, uint32_t count, uint32_t planes, int16_t* twice);
  void centres(uint32_t first, uint32_t count, int16_t* rows);
  /// Twice the middles: the sum, with twice the centre. `first` is a multiple of kStateTokens.
  /// `scales`: of the differences, as compression/planes.h has them; null: none.
  void middles(uint32_t first, uint32_t count, uint32_t planes, const int16_t* scales,
               int16_t* rows);

  /// The values, as their kind, of some tokens from the first one of a step on; all streams are
  /// loaded. Streams that end too early are as if zeros followed.
  void exact_rows(uint32_t first, uint32_t count, uint8_t* values);
  /// Of memory that it takes: decoded streams mostly, but for those that cuts share.
  size_t held_bytes() const {
    return decoded_.capacity() + rows_.capacity() + values_.capacity() + centre_.held_bytes() +
           (led_centre_ ? led_centre_->held_bytes() : 0);
  }
  size_t shared_bytes() const {
    size_t bytes = 0;
    for (const SharedStreams::Plain& stream : shared_) bytes += stream ? stream->capacity() : 0;
    return bytes;
  }

 private:
  using Planes = std::array<const uint8_t*, compression::kMaxPlanes + 1>;

  Status load_one(uint32_t stream, compression::StreamCoder& coder);
  Planes rows_from(uint32_t first, uint32_t count, uint32_t planes);
  void merge(const compression::TileFrame& rows, uint32_t first, uint32_t first_channel,
             uint8_t* values);
  void exact_rows_of_cut(uint32_t first, uint32_t count, uint8_t* values);

  PlaneTile tile_;
  CentreReader centre_;
  std::optional<CentreReader> led_centre_;  // of a cut, from the lead channel or before it on
  std::array<compression::ConstBytes, compression::kMaxStreams> plain_;  // empty: not loaded
  std::array<SharedStreams::Plain, compression::kMaxStreams> shared_;    // of a cut: coded ones
  std::vector<uint8_t> decoded_;  // room for all coded streams, if it is no cut
  size_t decoded_bytes_ = 0;
  std::vector<uint8_t> rows_;    // of planes, of a cut
  std::vector<uint8_t> values_;  // with channels that are not of the cut
};

}  // namespace bowhead::ndp
