// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <vector>

#include "python/src/pool.h"

namespace bowhead::python {

/// The blocks that were stored when a list was made, each with its own copy of key and metadata. A
/// pool has millions of them: their objects are made one at a time, when they are asked for.
class Blocks {
 public:
  /// Of one namespace, or of all.
  Blocks(Pool& pool, std::optional<bh_namespace_id> ns);

  size_t left() const { return blocks_.size() - next_; }
  /// There must be one left.
  const bh_block_info& next() { return blocks_[next_++]; }

  /// From the first call on, next() gives a block after the one that its metadata name as its
  /// parent. Needs no GIL.
  void sort_by_parent();

 private:
  static int add(void* context, const bh_block_info* block);

  const std::optional<bh_namespace_id> ns_;
  std::vector<bh_block_info> blocks_;  // pointing into bytes_
  std::vector<char> bytes_;            // key and user metadata of each
  size_t next_ = 0;
  bool sorted_ = false;
};

}  // namespace bowhead::python
