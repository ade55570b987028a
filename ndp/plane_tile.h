// SPDX-License-Identifier: Apache-2.0
// A searchable tile of keys in planes (docs/frame.md): where its parts lie; and, while a search
// looks at it, its values as the planes read so far show them, and exactly.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "compression/frame_parts.h"

namespace bowhead::ndp {

inline constexpr double kSpreadUnit = 1.0 / 128;

/// Where the remainders and exceptions of some tokens begin in their streams.
struct RestBegin {
  uint32_t bits = 0, exceptions = 0;
};

/// The head of a tile, and where its streams lie. Not changed after open(): threads may share it.
class PlaneTile {
 public:
  PlaneTile() = default;
  PlaneTile(PlaneTile&&) noexcept = default;  // no copies: centre_ points into centres_
  PlaneTile& operator=(PlaneTile&&) noexcept = default;

  /// Reads and verifies the head of a tile of so many tokens; the bytes must outlive this. DAMAGED.
  Status open(const compression::Shape& shape, compression::ConstBytes tile, uint32_t tokens);

  uint32_t tokens() const { return tokens_; }
  uint32_t channels() const { return shape_.channels; }
  const compression::Number& number() const { return *number_; }
  const compression::StreamSize& stream(uint32_t s) const { return head_.streams[s]; }
  compression::ConstBytes coded(uint32_t stream) const { return coded_[stream]; }
  bool is_coded(uint32_t stream) const {
    return head_.streams[stream].codec >= compression::StreamCodec::LZ4;
  }
  /// The frame's bytes that some tokens' rows of a plane take, or `bytes` of another stream: all of
  /// a coded stream, none of one that is all zero.
  compression::ConstBytes rows_of(uint32_t plane, uint32_t first, uint32_t count) const;
  compression::ConstBytes bytes_of(uint32_t stream, uint64_t begin, uint64_t bytes) const;
  compression::ConstBytes head() const { return bytes_.first(head_bytes_); }

  /// Verifies the first planes, and those that have one checksum with them. DAMAGED.
  Status verify(uint32_t planes) const;
  /// How many first planes verify() reads for so many, and their bytes.
  uint32_t verified_with(uint32_t planes) const;
  compression::ConstBytes planes_verified_with(uint32_t planes) const;

  std::span<const double> units() const { return units_; }  ///< by channel
  const uint16_t* exponents() const { return parameters_.exponents.data(); }
  /// No centre is further from zero, in units; and whether it turns: else it is the same at each
  /// token.
  double most_centre(uint32_t channel) const { return most_centres_[channel]; }
  bool turns() const { return centre_.half != 0; }
  /// At the first token.
  const compression::TurningCentre& centre() const { return centre_; }
  /// By channel: how far values are from the centre on average, in units of kSpreadUnit of half of
  /// the most that they can be; none if the tile does not say.
  std::span<const uint8_t> spreads() const {
    return parameters_.directory.first(head_.has_spreads ? shape_.channels : 0);
  }

  /// The first token of its step, and where that begins.
  uint32_t step_first(uint32_t token) const { return token - token % steps_.tokens; }
  RestBegin step_begin(uint32_t token) const {
    const uint32_t step = steps_.of_token(token);
    return step < begins_.size() ? begins_[step] : RestBegin{};
  }
  /// The bytes of remainders and exceptions of tokens `first` to before `end`, in whole steps.
  std::array<compression::ConstBytes, 2> rests_of(uint32_t first, uint32_t end) const;

 private:
  void note_steps();
  void note_most_centres();

  const compression::Number* number_ = nullptr;
  compression::Shape shape_;
  uint32_t tokens_ = 0;
  compression::ConstBytes bytes_;
  size_t head_bytes_ = 0;
  compression::TileHeader head_;
  compression::TileParameters parameters_;
  compression::Steps steps_;
  std::vector<RestBegin> begins_;  // by step
  std::vector<double> units_, most_centres_;
  compression::CentreMaker centres_;
  compression::TurningCentre centre_;
  std::array<compression::ConstBytes, compression::kMaxStreams> coded_;
};

/// Reads the values of one tile. For one thread at a time.
class PlaneReader {
 public:
  explicit PlaneReader(const PlaneTile& tile);
  PlaneReader(PlaneReader&&) noexcept = default;  // no copies: centre_ points into state_
  PlaneReader& operator=(PlaneReader&&) noexcept = default;

  /// Makes the first streams readable by the calls below. DAMAGED.
  Status load(uint32_t streams, compression::StreamCoder& coder);

  /// Tokens first .. first + count - 1 as the first planes, loaded, show them, in units of the
  /// channel: twice the middle of each value's interval, less the centre; and the centre. Rows as
  /// compression/planes.h has them.
  void differences(uint32_t first, uint32_t count, uint32_t planes, int16_t* twice) const;
  void centres(uint32_t first, uint32_t count, int16_t* rows);
  /// Twice the middles: the sum, with twice the centre. `first` is a multiple of kStateTokens.
  void middles(uint32_t first, uint32_t count, uint32_t planes, int16_t* rows);

  /// The values, as their kind, of some tokens from the first one of a step on; all streams are
  /// loaded. Streams that end too early are as if zeros followed.
  void exact_rows(uint32_t first, uint32_t count, uint8_t* values);

 private:
  Status load_one(uint32_t stream, compression::StreamCoder& coder);
  void turn_to(uint32_t token);

  const PlaneTile* tile_;
  std::vector<int16_t> state_;  // of the centre at some token, with 64 more elements
  compression::TurningCentre centre_;
  std::vector<int16_t> states_;  // of the centre at every kStateTokens-th token
  uint32_t noted_ = 1;           // of them; the others are not known yet
  std::array<compression::ConstBytes, compression::kMaxStreams> plain_;  // empty: not loaded
  std::vector<uint8_t> decoded_;  // room for all coded streams
  size_t decoded_bytes_ = 0;
  std::vector<int16_t> centre_rows_;  // of some tokens
};

}  // namespace bowhead::ndp
