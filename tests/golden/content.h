// SPDX-License-Identifier: Apache-2.0
// The content of the golden pools, for the program that made them and the tests that open them. The
// pools are stored, so nothing here may change for an existing pool.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/random.h"
#include "pool/pool.h"

namespace bowhead::golden {

struct Block {
  int name_space;  ///< in kNamespaces
  std::string key;
  size_t bytes;
  bool verified = true;
  uint32_t host = 0;
  bool tensor = false;  ///< bf16 numbers, which compress
};

inline const std::vector<NamespaceDescription> kNamespaces = {
    {"model-a", "dtype=bf16 layout=paged rank=0/1"}, {"model-b", ""}};

/// For the pool of one host with compressed blocks.
inline const std::vector<NamespaceDescription> kCompressedNamespaces = {
    {"model-c",
     "keys",
     {[] {
        KvLayout layout = keys_layout(NumberFormat::BF16, 64);
        layout.rotary = BH_ROTARY_HALVES;
        layout.rotary_channels = 64;
        layout.rotary_base_thousandths = 10'000'000;
        return layout;
      }(),
      CompressionProfile::FAST}}};

/// A key of `bytes` bytes, not all of them text.
inline std::string long_key(size_t bytes) {
  std::string key(bytes, '\0');
  for (size_t i = 0; i < bytes; ++i) key[i] = static_cast<char>(i * 37 + bytes);
  return key;
}

/// The pool of one host. Sizes and keys give slabs of several kinds; keys take one to eight slots.
inline std::vector<Block> blocks_of_one_host() {
  return {{0, "one byte", 1},
          {0, "a page", 4096},
          {0, "a page and a byte", 4097},
          {0, "more than a smallest block", 16385},
          {0, long_key(64), 100},
          {0, long_key(65), 100},
          {0, long_key(512), 100},
          {0, "nobody vouches for it", 300, false},
          {1, "one byte", 1},
          {1, "text", 1000}};
}

/// The pool of two hosts.
inline std::vector<Block> blocks_of_two_hosts() {
  return {{0, "first", 5000},
          {0, "second", 4096},
          {0, "third", 10, true, 1},
          {1, "fourth", 8192, true, 1}};
}

/// Frames of one tile and of several, bytes of no whole token, and an incompressible value.
inline std::vector<Block> blocks_of_compressed_pool() {
  return {{0, "a tile", 65536, true, 0, true},
          {0, "tiles", 640 * 128, true, 0, true},
          {0, "no whole token", 20001, true, 0, true},
          {0, "noise", 16000}};
}

/// The value of the `index`-th block of a list.
inline std::vector<std::byte> value_of(const Block& block, size_t index) {
  std::vector<std::byte> value(block.bytes);
  Random random(1000 + index);
  for (size_t i = 0; block.tensor && i < value.size(); i += 2) {
    // From 1/128 to 2, small numbers as often as large ones, of either sign.
    const auto number = static_cast<uint16_t>((random.next() & 0x83FF) | 0x3C00);
    value[i] = static_cast<std::byte>(number);
    if (i + 1 < value.size()) value[i + 1] = static_cast<std::byte>(number >> 8);
  }
  if (block.tensor) return value;
  for (std::byte& byte : value) byte = static_cast<std::byte>(random.next());
  return value;
}

}  // namespace bowhead::golden
