// SPDX-License-Identifier: Apache-2.0
// Which centre a tile gets. An encoder's own business: any centre decodes.
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

class CentreFitter {
 public:
  /// Looks at some of the tokens of a tile of floats and says which centre saves most bits.
  const Centre& fit(const Number& number, const void* values, uint32_t tokens, uint32_t channels,
                    std::span<const uint8_t> exponents, const Rotary& rotary);

 private:
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
  std::vector<float> scale_;            // by channel: to the unit of its pair
  std::vector<float> row_;
  std::vector<float> energy_, mean_, vector_;
};

}  // namespace bowhead::compression
