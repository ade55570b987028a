// SPDX-License-Identifier: Apache-2.0
// Content: the bytes of a block, regenerated from its id whenever they are needed.
//
// Bytes from a pool are compared with these bytes, never with anything that the pool computed. So a
// pool that returns another block, an older one, or a torn one with a matching checksum is caught.
// Every 8-byte word of every block depends on the id and on its position, so shifted, swapped and
// mixed blocks differ as well.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "base/status.h"

namespace bowhead::replay {

/// Where the bytes of a block differ from its content.
struct Difference {
  uint64_t wrong_bytes = 0;
  uint64_t first_offset = 0;  ///< in the block; only if wrong_bytes > 0
};

/// Immutable; any number of threads may use one.
class Content {
 public:
  /// Bytes of a pseudo-random stream: incompressible.
  static Content generated(uint64_t seed);

  /// Slices of the key and value tensors in the files k.bf16.bin and v.bf16.bin in `directory` and
  /// its folders. The lowest bit of every number comes from the stream, so that blocks differ and
  /// yet compress as the tensors do. Returns SYSTEM (cannot be read), INVALID_ARGUMENT (no such
  /// file, or all are empty).
  static Result<Content> from_tensors(const std::string& directory, uint64_t seed);

  /// For each id one of these blocks of `block_bytes`, a multiple of 64, which are of bf16 numbers;
  /// the lowest bit of each comes from the stream. `name`: for the description.
  static Content from_blocks(std::vector<std::byte> blocks, uint64_t block_bytes, uint64_t seed,
                             const std::string& name);

  /// Writes the content of block `id` from `first` on, a multiple of 64.
  void fill(uint64_t id, std::byte* out, size_t size, uint64_t first = 0) const;

  /// Compares with the content of block `id`, byte for byte.
  Difference compare(uint64_t id, const std::byte* data, size_t size) const;

  /// Everything besides id and size that determines the bytes; equal texts mean equal blocks.
  const std::string& description() const { return description_; }

 private:
  Content() = default;
  template <class Visit>
  void for_each_line(uint64_t id, uint64_t first, size_t size, Visit visit) const;

  uint64_t seed_ = 0;
  uint64_t tensor_lines_ = 0;  // whole 64-byte lines; 0: the stream alone
  uint64_t start_lines_ = 1;   // a block begins at a multiple of so many
  std::vector<std::byte> tensors_;
  std::string description_;
};

}  // namespace bowhead::replay
