// SPDX-License-Identifier: Apache-2.0
// What a channel's values lie around: one number per channel, or, for keys that rotary position
// embedding turned, one vector per pair of channels that turns with the token.
//
// All arithmetic is on integers, so that every CPU, device and language computes the same row.
// Values are in units of 2^(E - mantissa_bits) of the channel, E being its largest exponent.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

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
/// What each pair of a head turns by per token, the first first.
std::vector<Turn> turns_of(const Rotary& rotary);

/// The centre at one token, and what turns it to the next. Arrays by channel: 64 more may be read.
struct TurningCentre {
  uint32_t channels = 0;
  uint32_t half = 0;  ///< of a head: channel c turns together with c + half; 0: nothing turns
  const int16_t* cosines = nullptr;  ///< of one token's turn, by pair of a head
  const int16_t* sines = nullptr;    ///< from -32767
  int16_t* state = nullptr;          ///< by channel, with fraction bits
  const int16_t* right = nullptr;    ///< by channel: how many

  int16_t at(uint32_t channel) const {
    return static_cast<int16_t>(state[channel] >> right[channel]);
  }
};
/// To the next token. Once more per instruction set (planes.h).
void turn(const TurningCentre& centre);

/// The centres of one tile after the other: allocates only when the shape grows.
class CentreMaker {
 public:
  /// Of a tile: `amplitudes` (empty: all zero) in units of 2^shift, of channels whose largest
  /// exponents are `exponents`. Turning, both of a pair are in units of the larger exponent. Valid
  /// until the next one is made.
  TurningCentre make(const Number& number, std::span<const uint16_t> exponents,
                     std::span<const int16_t> amplitudes, uint32_t shift, const Rotary& rotary);

 private:
  void set_turns(const Rotary& rotary);

  Rotary turned_;  ///< whose turns these are
  Lines<int16_t> cosines_, sines_, state_, right_;
};

}  // namespace bowhead::compression
