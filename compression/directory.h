// SPDX-License-Identifier: Apache-2.0
// The directory of a tile in planes, for readers that begin in the middle of it (docs/frame.md).
//
// A tile is divided into steps of at most kStepValues values in their order: so many whole tokens,
// or, where a token has more channels, parts of one. The directory says how many bits of the
// remainder and how many exceptions each step takes: their sums are where the next one begins. It
// may also say how far the values of a channel are from its centre.
#pragma once

#include <bowhead/format/frame.h>

#include <algorithm>
#include <cstdint>

namespace bowhead::compression {

inline constexpr uint32_t kStepValues = BH_FRAME_STEP_VALUES;
inline constexpr uint32_t kMaxStepBitsWidth = 12;       ///< of at most 256 x 10 bits
inline constexpr uint32_t kMaxStepExceptionsWidth = 9;  ///< of at most 256

/// How a tile is divided into steps.
struct Steps {
  uint32_t tokens = 1;     ///< of a step
  uint32_t per_token = 1;  ///< steps of a token, if it has more than one
  uint32_t count = 0;      ///< of the tile

  static Steps of(uint32_t tokens, uint32_t channels) {
    const uint32_t each = std::max(kStepValues / channels, 1u);
    const uint32_t parts = (channels + kStepValues - 1) / kStepValues;
    return {each, parts, (tokens + each - 1) / each * parts};
  }
  /// The directory leaves out the last one: there the streams end.
  uint32_t noted() const { return count - 1; }
  uint32_t of_token(uint32_t token) const { return token / tokens * per_token; }
};

/// Of one step.
struct StepCount {
  uint16_t bits = 0;        ///< in the remainder
  uint16_t exceptions = 0;  ///< bytes
  bool operator==(const StepCount&) const = default;
};

}  // namespace bowhead::compression
