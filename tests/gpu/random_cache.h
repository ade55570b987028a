// SPDX-License-Identifier: Apache-2.0
// Caches of any layout in host memory, for the kernels' tests.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <utility>
#include <vector>

#include "base/random.h"
#include "gpu/kernels/kernels.h"

namespace bowhead::gpu {

inline std::vector<uint8_t> random_bytes(Random& random, size_t size) {
  std::vector<uint8_t> bytes(size);
  for (uint8_t& byte : bytes) byte = static_cast<uint8_t>(random.next());
  return bytes;
}

inline uint32_t between(Random& random, uint32_t least, uint32_t most) {
  return least + static_cast<uint32_t>(random.below(most - least + 1));
}

struct Model {
  uint32_t layers, layer_parts, heads, row_bytes;
  RowOrder order;

  size_t payload_bytes(uint32_t tokens) const {
    return size_t{layers} * layer_parts * heads * tokens * row_bytes;
  }
  size_t row_at(uint32_t tokens, uint32_t layer, uint32_t part, uint32_t token,
                uint32_t head) const {
    const size_t before = size_t{layer} * layer_parts + part;
    return row_bytes * (order == RowOrder::HEADS_FIRST ? (before * heads + head) * tokens + token
                                                       : (before * tokens + token) * heads + head);
  }
};

// Axes nested in any order, with gaps: this includes all layouts of engines, in one allocation.
class Cache {
 public:
  Cache(Random& random, const Model& model, uint32_t page_tokens, uint32_t pages, uint32_t unit)
      : unit_(unit), page_tokens_(page_tokens) {
    const std::array<uint32_t, 5> counts = {model.layers, model.layer_parts, pages, page_tokens,
                                            model.heads};
    std::array<uint32_t, 5> axes = {0, 1, 2, 3, 4};
    for (uint32_t i = 4; i > 0; --i) std::swap(axes[i], axes[random.below(i + 1)]);
    size_t size = model.row_bytes;
    for (const uint32_t axis : axes) {
      strides_[axis] = size + unit * random.below(3);
      size = strides_[axis] * counts[axis];
    }
    start_ = unit * random.below(5);
    bytes = random_bytes(random, start_ + size);
    // Aligned as promised and no better, if the unit is less than 16.
    for (uint32_t i = 0; i < model.layers * model.layer_parts; ++i) {
      parts_.push_back({bytes.data() + start_ + i / model.layer_parts * strides_[0] +
                            i % model.layer_parts * strides_[1],
                        strides_[2], strides_[3], strides_[4]});
    }
  }
  Cache(const Cache&) = delete;
  Cache& operator=(const Cache&) = delete;

  size_t row_at(const std::vector<uint32_t>& pages, uint32_t layer, uint32_t part, uint32_t token,
                uint32_t head) const {
    return start_ + layer * strides_[0] + part * strides_[1] +
           pages[token / page_tokens_] * strides_[2] + token % page_tokens_ * strides_[3] +
           head * strides_[4];
  }

  void describe(const Model& model, PagedLayers& work) const {
    work.parts = parts_.data();
    work.layers = model.layers;
    work.layer_parts = model.layer_parts;
    work.heads = model.heads;
    work.page_tokens = page_tokens_;
    work.row_bytes = model.row_bytes;
    work.unit_bytes = unit_;
    work.order = model.order;
  }

  std::vector<uint8_t> bytes;

 private:
  uint32_t unit_, page_tokens_;
  size_t start_ = 0;
  std::array<size_t, 5> strides_{};
  std::vector<PagedPart> parts_;
};

}  // namespace bowhead::gpu
