// SPDX-License-Identifier: Apache-2.0
#include "python/src/metadata.h"

namespace bowhead::python {
namespace {

constexpr std::string_view kMagic = "BHE1";
constexpr uint16_t kNoGroup = 0xffff;
constexpr size_t kHeaderBytes = 14;

/// An unsigned integer, little-endian.
uint32_t integer(std::string_view bytes) {
  uint32_t value = 0;
  for (size_t i = 0; i < bytes.size(); ++i)
    value |= uint32_t{static_cast<uint8_t>(bytes[i])} << (8 * i);
  return value;
}

/// The bytes that a character has behind its first byte; -1: no character begins so.
int further_bytes(uint8_t first) {
  if (first < 0x80) return 0;
  if (first >= 0xc2 && first < 0xe0) return 1;
  if (first >= 0xe0 && first < 0xf0) return 2;
  return first >= 0xf0 && first < 0xf5 ? 3 : -1;
}

bool is_utf8(std::string_view text) {
  for (size_t i = 0; i < text.size(); ++i) {
    const auto first = static_cast<uint8_t>(text[i]);
    const int further = further_bytes(first);
    if (further < 0 || text.size() - i <= static_cast<size_t>(further)) return false;
    for (int k = 1; k <= further; ++k) {
      const auto byte = static_cast<uint8_t>(text[++i]);
      // Behind some first bytes not all are allowed: no longer forms, surrogates, or ends above.
      const uint8_t least = k > 1 ? 0x80 : first == 0xe0 ? 0xa0 : first == 0xf0 ? 0x90 : 0x80;
      const uint8_t most = k > 1 ? 0xbf : first == 0xed ? 0x9f : first == 0xf4 ? 0x8f : 0xbf;
      if (byte < least || byte > most) return false;
    }
  }
  return true;
}

}  // namespace

std::optional<BlockMetadata> BlockMetadata::parse(std::string_view from) {
  if (from.size() < kHeaderBytes || from.substr(0, 4) != kMagic) return std::nullopt;
  const size_t parent_bytes = integer(from.substr(5, 1));
  const size_t lora_bytes = integer(from.substr(7, 1));
  const auto group = static_cast<uint16_t>(integer(from.substr(8, 2)));
  BlockMetadata made = {.hash_bytes = integer(from.substr(4, 1)),
                        .group = group == kNoGroup ? std::nullopt : std::optional(group),
                        .parent = {},
                        .lora = {},
                        .tokens = integer(from.substr(10, 4)),
                        .width = integer(from.substr(6, 1)),
                        .planes = {}};
  const size_t texts_bytes = parent_bytes + lora_bytes;
  if (made.width > 4 || (made.width == 0 && made.tokens != 0) ||
      from.size() != kHeaderBytes + texts_bytes + made.width * made.tokens)
    return std::nullopt;
  made.parent = from.substr(kHeaderBytes, parent_bytes);
  made.lora = from.substr(kHeaderBytes + parent_bytes, lora_bytes);
  made.planes = from.substr(kHeaderBytes + texts_bytes);
  if (!is_utf8(made.lora)) return std::nullopt;
  return made;
}

}  // namespace bowhead::python
