// SPDX-License-Identifier: Apache-2.0
#include "python/src/blocks.h"

#include <string_view>
#include <unordered_map>
#include <utility>

#include "python/src/metadata.h"

namespace bowhead::python {
namespace {

std::string_view text(const void* data, size_t size_bytes) {
  return {static_cast<const char*>(data), size_bytes};
}

}  // namespace

Blocks::Blocks(Pool& pool, std::optional<bh_namespace_id> ns) : ns_(ns) {
  check(pool.run([this](bh_pool* handle) { return bh_pool_list_blocks(handle, &add, this); }));
  const char* next = bytes_.data();
  for (bh_block_info& block : blocks_) {
    block.key.data = next;
    next += block.key.size_bytes;
    block.user_metadata = next;
    next += block.user_bytes;
  }
}

int Blocks::add(void* context, const bh_block_info* block) {
  Blocks& self = *static_cast<Blocks*>(context);
  if (self.ns_ && block->namespace_id != *self.ns_) return 0;
  self.blocks_.push_back(*block);
  for (const auto part : {text(block->key.data, block->key.size_bytes),
                          text(block->user_metadata, block->user_bytes)})
    self.bytes_.insert(self.bytes_.end(), part.begin(), part.end());
  return 0;
}

void Blocks::sort_by_parent() {
  if (std::exchange(sorted_, true)) return;
  std::unordered_map<std::string_view, size_t> waiting;  // by hash
  std::vector<std::string_view> parents(blocks_.size());
  for (size_t i = next_; i < blocks_.size(); ++i) {
    const bh_block_info& block = blocks_[i];
    const auto metadata = BlockMetadata::parse(text(block.user_metadata, block.user_bytes));
    if (!metadata) continue;
    const std::string_view key = text(block.key.data, block.key.size_bytes);
    waiting.emplace(key.substr(0, metadata->hash_bytes), i);
    parents[i] = metadata->parent;
  }
  std::vector<bh_block_info> sorted;
  sorted.reserve(left());
  std::vector<bool> placed(blocks_.size());
  std::vector<size_t> chain;
  for (size_t i = next_; i < blocks_.size(); ++i) {
    // A block is taken from `waiting` when it is met, so that a chain without an end has one.
    for (size_t at = i; !placed[at];) {
      placed[at] = true;
      chain.push_back(at);
      const auto parent = waiting.extract(parents[at]);
      if (parent.empty()) break;
      at = parent.mapped();
    }
    for (; !chain.empty(); chain.pop_back()) sorted.push_back(blocks_[chain.back()]);
  }
  blocks_ = std::move(sorted);
  next_ = 0;
}

}  // namespace bowhead::python
