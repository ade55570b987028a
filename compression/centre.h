// SPDX-License-Identifier: Apache-2.0
// The centre of a channel, around which its values lie: one number per channel, or, for keys after
// rotary position embedding, one vector per pair of channels that rotates from token to token.
//
// All arithmetic is on integers, so that every CPU, device and language computes the same row.
// Values are in units of 2^(E - mantissa_bits) of the channel, E being its largest exponent.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "compression/lines.h"
#include "compression/number.h"

namespace bowhead::compression {

/// In units of 2^-32 turns.
inline constexpr uint32_t kTurnOfOneRadian = 683565276;

/// Pairs of channels rotate, each by more for every token: the first one by `step`, the next ones
/// by `ratio` of the one before.
struct Rotary {
  uint16_t dim = 0;                  ///< channels of a head that rotate, even; 0: no rotation
  uint32_t ratio = 0;                ///< in units of 2^-32: base^(-2 / dim)
  uint16_t head = 0;                 ///< channels of a head
  uint16_t first = 0;                ///< of a head that rotates
  bool interleaved = false;          ///< pairs are of two that lie side by side; else of two halves
  uint32_t step = kTurnOfOneRadian;  ///< for a token, in units of 2^-32 turns

  uint32_t pairs() const { return dim / 2u; }  ///< of a head
  /// Whole heads rotate, as halves.
  bool is_of_halves() const { return first == 0 && dim == head && !interleaved; }
  bool operator==(const Rotary&) const = default;
};

/// For a model with this base ("rope theta") and head size, whose heads rotate as halves, by one
/// radian. `dim` is even.
Rotary rotary_of(double base, uint32_t dim);

/// The rotation of the pair after one that rotates by `step`.
inline uint64_t next_pair(uint64_t step, const Rotary& rotary) { return step * rotary.ratio >> 32; }

/// Calls each(x, y, pair) for the two channels of each pair of all heads.
template <class Each>
void for_pairs(const Rotary& rotary, uint32_t channels, const Each& each) {
  if (rotary.dim == 0) return;
  const uint32_t apart = rotary.interleaved ? 1 : rotary.pairs();
  for (uint32_t head = rotary.first; head < channels; head += rotary.head) {
    for (uint32_t pair = 0; pair < rotary.pairs(); ++pair) {
      const uint32_t x = head + (rotary.interleaved ? 2 * pair : pair);
      each(x, x + apart, pair);
    }
  }
}

/// Cosine and sine in units of 2^-15, from -32767 to 32767, of a phase in units of 2^-32 turns.
struct Turn {
  int16_t cosine;
  int16_t sine;
};
Turn turn_of(uint32_t phase);
/// The rotation of each pair of a head per token, in the order of the pairs.
std::vector<Turn> turns_of(const Rotary& rotary);

/// The centre at one token, and the rotation to the next. Arrays by channel; 64 more elements may
/// be read.
struct TurningCentre {
  uint32_t channels = 0;
  Rotary rotary;                     ///< of dim 0: no rotation
  const int16_t* cosines = nullptr;  ///< of one token's rotation, by pair of a head; interleaved,
                                     ///< by channel that rotates, so each twice
  const int16_t* sines = nullptr;    ///< likewise, from -32767
  int16_t* state = nullptr;          ///< by channel, with fraction bits
  const int16_t* right = nullptr;    ///< by channel: number of fraction bits
  /// By channel, for instruction sets whose lanes are all shifted alike: half of 2^right, and
  /// 2^15 / 2^right; or both 0 where the state is. Null if some channel has no fraction bits.
  const int16_t *halves = nullptr, *factors = nullptr;

  int16_t at(uint32_t channel) const {
    return static_cast<int16_t>(state[channel] >> right[channel]);
  }
};
/// Of some of its channels: whole heads, or it must not be turned.
inline TurningCentre some_channels(TurningCentre centre, uint32_t first, uint32_t channels) {
  centre.channels = channels;
  centre.state += first;
  centre.right += first;
  if (centre.factors != nullptr) {
    centre.halves += first;
    centre.factors += first;
  }
  return centre;
}
/// Advances to the next token. Exists once more per instruction set (planes.h).
void turn(const TurningCentre& centre);

/// Makes the centres of one tile after another; allocates only when the shape grows.
class CentreMaker {
 public:
  /// The centre of a tile: `amplitudes` (empty: all zero) in units of 2^shift; `exponents` are the
  /// largest exponents of the channels. With rotation, both channels of a pair are in units of the
  /// larger exponent. Valid until the next call.
  TurningCentre make(const Number& number, std::span<const uint16_t> exponents,
                     std::span<const int16_t> amplitudes, uint32_t shift, const Rotary& rotary);

 private:
  /// The rotations of the pairs of a head.
  struct Turns {
    Rotary rotary;
    Lines<int16_t> cosines, sines;
  };
  void set_turns(const Rotary& rotary);

  std::shared_ptr<const Turns> turns_;
  Lines<int16_t> state_, right_, halves_, factors_;
};

}  // namespace bowhead::compression
