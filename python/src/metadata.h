// SPDX-License-Identifier: Apache-2.0
// What block_metadata() of bowhead_kv/events.py wrote into the user metadata of a block.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace bowhead::python {

/// All views are parts of the metadata.
struct BlockMetadata {
  /// Empty if it is of another kind, or not whole.
  static std::optional<BlockMetadata> parse(std::string_view user_metadata);

  uint32_t token(size_t i) const {
    uint32_t id = 0;
    for (size_t plane = 0; plane < width; ++plane)
      id |= uint32_t{static_cast<uint8_t>(planes[plane * tokens + i])} << (8 * plane);
    return id;
  }

  size_t hash_bytes;  ///< leading bytes of the key that are the block's hash
  std::optional<uint16_t> group;
  std::string_view parent;  ///< hash of the block before it; empty: there is none
  std::string_view lora;    ///< UTF-8; empty: none
  size_t tokens;
  size_t width;             ///< bytes of a token id
  std::string_view planes;  ///< of the token ids, one for each byte of an id
};

}  // namespace bowhead::python
