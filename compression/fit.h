// SPDX-License-Identifier: Apache-2.0
// The choice of a tile's centre. Only the encoder needs it: any centre decodes.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "compression/centre.h"
#include "compression/number.h"

namespace bowhead::compression {

struct Centre {
  std::vector<int16_t> amplitudes;  ///< by channel; empty: none
  uint8_t width = 0;                ///< bits of each
  uint8_t shift = 0;
  bool turns = false;
};

/// Doubles the unit of a channel, and of the one it rotates with (or itself): then differences from
/// the centre may be twice as large. If no unit is larger, the channel has no centre.
void raise_unit(const Number& number, uint32_t channel, uint32_t partner,
                std::span<uint16_t> exponents, Centre& centre);

class CentreFitter {
 public:
  /// Samples tokens of a tile of floats and returns the centre that saves most bits. Raises the
  /// exponents of channels whose values will lie too far from it.
  const Centre& fit(const Number& number, const void* values, uint32_t tokens, uint32_t channels,
                    std::span<uint16_t> exponents, const Rotary& rotary);
  /// By channel, of the last fit: the one that it may rotate with, or itself.
  std::span<const uint32_t> partners() const { return partners_; }

 private:
  void raise_units(const Number& number, float samples, std::span<uint16_t> exponents);
  void set_turns(uint32_t samples, uint32_t step, const Rotary& rotary);
  void accumulate(const Number& number, const void* values, uint32_t samples, uint32_t step,
                  uint32_t channels, const Rotary& rotary);

  struct TurnKey {
    uint32_t samples = 0, step = 0;
    Rotary rotary;
    bool operator==(const TurnKey&) const = default;
  };

  Centre centre_;
  TurnKey turned_;
  std::vector<float> cosines_, sines_;  // by sample and pair
  std::vector<float> scale_;            // by channel: factor to the unit of its pair
  std::vector<uint32_t> partners_;      // by channel: that of the pair, or itself
  std::vector<float> row_;
  std::vector<float> energy_, mean_, vector_;
};

}  // namespace bowhead::compression
