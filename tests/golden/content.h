// SPDX-License-Identifier: Apache-2.0
// What golden pools hold: known to the program that made them and to the tests that open them. The
// pools are stored, so nothing here may change for a pool that exists.
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
};

inline const std::vector<NamespaceDescription> kNamespaces = {
    {"model-a", "dtype=bf16 layout=paged rank=0/1"}, {"model-b", ""}};

/// A key of `bytes` bytes, not all of them text.
inline std::string long_key(size_t bytes) {
  std::string key(bytes, '\0');
  for (size_t i = 0; i < bytes; ++i) key[i] = static_cast<char>(i * 37 + bytes);
  return key;
}

/// The pool of one host. Sizes and keys make slabs of several kinds; keys take one to eight slots.
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

/// The value of the `index`-th block of a list.
inline std::vector<std::byte> value_of(const Block& block, size_t index) {
  std::vector<std::byte> value(block.bytes);
  Random random(1000 + index);
  for (std::byte& byte : value) byte = static_cast<std::byte>(random.next());
  return value;
}

}  // namespace bowhead::golden
