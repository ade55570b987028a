// SPDX-License-Identifier: Apache-2.0
// Tensors to compress: like those of models, and contents that no model makes. Needs no library:
// neon_check uses it as well.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "compression/frame.h"

namespace bowhead::compression {

enum class Content {
  NORMAL,    ///< channels of different size around centres, like values
  ROTATED,   ///< the same, rotated with the token, like keys
  REPEATED,  ///< few different tokens
  RANDOM,    ///< any bits
  CONSTANT,  ///< one bit pattern
  ZERO,      ///< all zero, also negative
  SPARSE,    ///< zeros, and few large numbers
  SPECIAL,   ///< denormals, infinities, NaN, zeros of both signs
  SMALL,     ///< every value far below one in its channel
};
inline constexpr Content kContents[] = {Content::NORMAL, Content::ROTATED,  Content::REPEATED,
                                        Content::RANDOM, Content::CONSTANT, Content::ZERO,
                                        Content::SPARSE, Content::SPECIAL,  Content::SMALL};

std::vector<uint8_t> make_tensor(const Shape& shape, Content content, uint64_t seed);

uint32_t load_element(NumberFormat kind, const std::vector<uint8_t>& tensor, size_t index);

/// For a test's messages.
std::string describe(const Shape& shape, Content content);

/// For tests whose parameter is a number format.
inline constexpr auto name_of_param = [](const auto& info) -> std::string {
  constexpr const char* kNames[] = {"none", "bf16", "fp16", "e4m3", "e5m2", "int8", "bytes"};
  return kNames[static_cast<size_t>(info.param)];
};

}  // namespace bowhead::compression
