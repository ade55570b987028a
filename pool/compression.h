// SPDX-License-Identifier: Apache-2.0
// How the values of a namespace are compressed (docs/compression.md).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "base/status.h"
#include "compression/centre.h"
#include "compression/number.h"

namespace bowhead {

/// How much work a put does to save bytes. Numbers are those of the format (BH_PROFILE_*).
enum class CompressionProfile : uint8_t { NONE = 0, FAST = 1, BALANCED = 2, DENSE = 3 };

/// What a value looks like, an [outer][tokens][channels] tensor, contiguous and little-endian, and
/// how hard to press it. The tokens follow from a value's length; a value of whose length that
/// cannot be is compressed as plain bytes.
struct Compression {
  CompressionProfile profile = CompressionProfile::NONE;  ///< NONE: the rest means nothing
  compression::NumberKind number = compression::NumberKind::BYTES;
  uint32_t channels = 1;  ///< 1 to 65,535; BYTES: 1
  uint32_t outer = 1;     ///< layers, K and V, heads: whatever lies around the tokens
  /// Of keys after rotary position embedding, by rotary_of(); channels is a multiple of its dim.
  compression::Rotary rotary = {};

  bool operator==(const Compression& other) const {
    if (profile == CompressionProfile::NONE) return other.profile == CompressionProfile::NONE;
    return profile == other.profile && number == other.number && channels == other.channels &&
           outer == other.outer && rotary == other.rotary;
  }
};

/// rotary_of() of what users say; none if both are 0. INVALID_ARGUMENT: a base that is not above 1,
/// or a dim that is odd, 0 or above 65,534.
Result<compression::Rotary> checked_rotary(double base, uint32_t dim);

/// "fast"; "none".
const char* profile_name(CompressionProfile profile);
/// Of FAST, BALANCED, DENSE and NONE.
std::optional<CompressionProfile> profile_named(std::string_view name);

/// "dense, bf16 [2][tokens][128], rotary 128 of base 500000"; "none".
std::string to_text(const Compression& compression);

}  // namespace bowhead
