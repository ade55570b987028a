// SPDX-License-Identifier: Apache-2.0
// Where the allocator word of a block slot lies, for tests that read the bytes of a pool.
#pragma once

#include "pool/core/layout.h"

namespace bowhead::test {

/// Offset of the word; 0 if the extent of the slot has no words. load(offset) returns a word.
template <class Load>
uint64_t block_word(const core::Layout& layout, uint32_t host, uint64_t slot, Load load) {
  const auto run =
      core::RunWord::unpack(load(layout.word(host, BH_PART_RUNS, layout.extent_of_slot(slot))));
  const uint64_t index = layout.word_index(run, slot);
  return index == core::Layout::kNoWord ? 0 : layout.word(host, BH_PART_BLOCKS, index);
}

}  // namespace bowhead::test
