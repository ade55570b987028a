// SPDX-License-Identifier: Apache-2.0
// What a channel's values lie around: one number per channel, or, for keys that rotary position
// embedding turned, one vector per pair of channels that turns with the token.
//
// All arithmetic is on integers, so that every CPU, device and language computes the same row.
// Values are in units of 2^(E - mantissa_bits) of the channel, E being its largest exponent.
#pragma once

#include <cstdint>
#include <span>

#include "compression/lines.h"
#include "compression/number.h"

namespace bowhead::compression {

/// Channel c of each head is turned together with channel c + dim / 2, by
/// base^(-2 c / dim) radians more for every token.
struct Rotary {
  uint16_t dim = 0;    ///< channels of a head; 0: nothing is turned
  uint32_t ratio = 0;  ///< base^(-2 / dim) in units of 2^-32

  bool operator==(const Rotary&) const = default;
};

/// Of a model with this base ("rope theta") and head size. `dim` is even.
Rotary rotary_of(double base, uint32_t dim);

/// What the first pair of a head turns by per token, one radian, in units of 2^-32 turns; and the
/// pair after one that turns by `step`.
inline constexpr uint64_t kTurnOfOneRadian = 683565276;
inline uint64_t next_pair(uint64_t step, const Rotary& rotary) { return step * rotary.ratio >> 32; }

/// Cosine and sine in units of 2^-15, from -32767 to 32767, of a phase in units of 2^-32 turns.
struct Turn {
  int16_t cosine;
  int16_t sine;
};
Turn turn_of(uint32_t phase);

/// The row of a token, and what turns it to the next. One way per instruction set (planes.h).
struct TurningRow {
  uint32_t channels;
  uint32_t half;           ///< of a head: channel c turns together with c + half
  const int16_t* cosines;  ///< of one token's turn, by pair of a head
  const int16_t* sines;    ///< from -32767
  int16_t* state;          ///< by channel, with fraction bits
  const int16_t* right;    ///< shift that makes a state a row; 16: the row is zero there
  int16_t least, most;     ///< of a row
  int16_t* row;
};
using Turner = void (*)(const TurningRow& row);
void turn_row(const TurningRow& row);

/// The rows of a tile's centre, one after the other. Reused from tile to tile: allocates only when
/// the shape grows.
class CentreRows {
 public:
  /// Of a tile: `amplitudes` (empty: all zero) in units of 2^shift, of channels whose largest
  /// exponents are `exponents`. Turning, both of a pair are in units of the larger exponent.
  void start(const Number& number, std::span<const uint16_t> exponents,
             std::span<const int16_t> amplitudes, uint32_t shift, const Rotary& rotary);

  bool all_zero() const { return all_zero_; }
  /// Row of the current token: as many as channels, and 64 more that may be read.
  const int16_t* row() const { return row_.data(); }
  /// To the next token.
  void next(Turner turner) {
    if (turning_.half != 0) turner(turning_);
  }

 private:
  bool all_zero_ = true;
  TurningRow turning_{};
  Lines<int16_t> cosines_, sines_, state_, right_, row_;
};

}  // namespace bowhead::compression
