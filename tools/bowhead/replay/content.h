// SPDX-License-Identifier: Apache-2.0
// Content: the bytes of a block, made anew from its id whenever they are needed.
//
// What comes out of a pool is compared with these bytes, never with anything that the pool
// computed: a pool that returns another block, an older one, or a torn one with a checksum to match
// is caught. Every 8-byte word of every block depends on the id and on its place, so shifted,
// swapped and mixed blocks are wrong bytes too.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "base/status.h"

namespace bowhead::replay {

/// Where the bytes of a block differ from what they should be.
struct Difference {
  uint64_t wrong_bytes = 0;
  uint64_t first_offset = 0;  ///< in the block; only if wrong_bytes > 0
};

/// Immutable; any number of threads may use one.
class Content {
 public:
  /// Bytes of a pseudo-random stream: nothing in them can be compressed.
  static Content generated(uint64_t seed);

  /// Slices of the key and value tensors in the files k.bf16.bin and v.bf16.bin in `directory` and
  /// in its folders; the lowest bit of every number comes from the stream, so that blocks differ
  /// and yet compress as the tensors do. Returns SYSTEM (cannot be read), INVALID_ARGUMENT (no such
  /// file, or all are empty).
  static Result<Content> from_tensors(const std::string& directory, uint64_t seed);

  /// Writes the content of block `id`.
  void fill(uint64_t id, std::byte* out, size_t size) const;

  /// Compares with the content of block `id`, byte for byte.
  Difference compare(uint64_t id, const std::byte* data, size_t size) const;

  /// What the bytes depend on besides id and size; equal texts mean equal blocks.
  const std::string& description() const { return description_; }

 private:
  Content() = default;
  template <class Visit>
  void for_each_line(uint64_t id, size_t size, Visit visit) const;

  uint64_t seed_ = 0;
  uint64_t tensor_lines_ = 0;  // whole 64-byte lines; 0: the stream alone
  std::vector<std::byte> tensors_;
  std::string description_;
};

}  // namespace bowhead::replay
