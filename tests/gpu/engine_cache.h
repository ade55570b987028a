// SPDX-License-Identifier: Apache-2.0
// An engine's cache in device memory, in the layouts of engines.
#pragma once

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/random.h"
#include "gpu/jobs/cache.h"
#include "tests/gpu/devices.h"

namespace bowhead::gpu {

enum class Layout { NHD, HND, JOINED, ACROSS_LAYERS, LATENT };

struct Sizes {
  uint16_t layers = 3, heads = 4;
  uint32_t page_tokens = 16, pages = 24;
  uint16_t row_bytes = 64;
};

/// Rows of any length.
inline KvLayout rows_layout(uint16_t layers, uint8_t parts, uint16_t heads, uint16_t row_bytes,
                            RowOrder order = RowOrder::HEADS_FIRST) {
  const bool is_even = row_bytes % 2 == 0;
  KvLayout layout = pairs_layout(is_even ? NumberFormat::BF16 : NumberFormat::INT8, layers, heads,
                                 is_even ? row_bytes / 2 : row_bytes, order);
  layout.parts = parts;
  return layout;
}

/// An engine's cache in device memory, and the CPU's knowledge of it.
class EngineCache {
 public:
  EngineCache(Device& device, Layout layout, const Sizes& s, RowOrder order) : device_(device) {
    const bool latent = layout == Layout::LATENT;
    cache_.layout = rows_layout(s.layers, latent ? 1 : 2, latent ? 1 : s.heads, s.row_bytes, order);
    cache_.page_tokens = s.page_tokens;
    cache_.pages = s.pages;
    const uint32_t heads = cache_.layout.heads;
    const size_t row = s.row_bytes, part = row * heads * s.page_tokens;
    const bool tokens_outside = layout != Layout::HND;
    const size_t token = tokens_outside ? row * heads : row;
    const size_t head = tokens_outside ? row : row * s.page_tokens;
    const size_t parts = cache_.layout.parts, layer = part * s.pages * parts;
    size_bytes_ = layer * s.layers;
    memory_ = static_cast<uint8_t*>(device.allocate(size_bytes_).value());
    for (uint32_t l = 0; l < s.layers; ++l) {
      for (uint32_t p = 0; p < parts; ++p) {
        if (layout == Layout::ACROSS_LAYERS)  // [page][layer][part]
          cache_.parts.push_back(
              {memory_ + (l * parts + p) * part, part * parts * s.layers, token, head});
        else if (layout == Layout::JOINED)  // [layer][page][part]
          cache_.parts.push_back({memory_ + l * layer + p * part, part * parts, token, head});
        else  // [layer][part][page]
          cache_.parts.push_back({memory_ + l * layer + p * part * s.pages, part, token, head});
      }
    }
  }
  EngineCache(const EngineCache&) = delete;
  EngineCache& operator=(const EngineCache&) = delete;
  ~EngineCache() { device_.free(memory_); }

  const KvCache& cache() const { return cache_; }

  void write(const std::vector<uint8_t>& bytes) { copy(memory_, bytes.data()); }
  std::vector<uint8_t> read() {
    std::vector<uint8_t> bytes(size_bytes_);
    copy(bytes.data(), memory_);
    return bytes;
  }
  std::vector<uint8_t> random_bytes(uint64_t seed) const {
    Random random(seed);
    std::vector<uint8_t> bytes(size_bytes_);
    for (uint8_t& byte : bytes) byte = static_cast<uint8_t>(random.next());
    return bytes;
  }
  /// The payload of a block by the formula, from `bytes`, a past or present content of the cache.
  std::vector<std::byte> payload(const std::vector<uint8_t>& bytes,
                                 const PagedTokens& range) const {
    std::vector<std::byte> out;
    const bool heads_first = row_order(cache_.layout) == RowOrder::HEADS_FIRST;
    for (const PagedPart& part : cache_.parts) {
      for (uint32_t i = 0; i < cache_.layout.heads * range.tokens; ++i) {
        const uint32_t head = heads_first ? i / range.tokens : i % cache_.layout.heads;
        const uint32_t t =
            range.first_token + (heads_first ? i % range.tokens : i / cache_.layout.heads);
        const uint8_t* row =
            part.base + range.pages[t / cache_.page_tokens] * part.page_stride_bytes +
            t % cache_.page_tokens * part.token_stride_bytes + head * part.head_stride_bytes;
        const auto* from = reinterpret_cast<const std::byte*>(&bytes[row - memory_]);
        out.insert(out.end(), from, from + cache_.row_bytes());
      }
    }
    return out;
  }

 private:
  void copy(void* to, const void* from) {
    const Stream stream = device_.make_stream(0).value();
    EXPECT_DONE(device_.copy(to, from, size_bytes_, stream));
    device_.destroy_stream(stream);
  }

  Device& device_;
  KvCache cache_;
  uint8_t* memory_ = nullptr;
  size_t size_bytes_ = 0;
};

}  // namespace bowhead::gpu
