// SPDX-License-Identifier: Apache-2.0
#include "gpu/jobs/cache.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <string>

namespace bowhead::gpu {
namespace {

constexpr uint64_t kMostCacheBytes = uint64_t{1} << 56;  // more than any address space

Error refuse(std::string why) { return {Status::INVALID_ARGUMENT, std::move(why)}; }

std::string name_of_part(const KvCache& cache, size_t at) {
  return fmt::format("part {} of layer {}", at % cache.layout.parts, at / cache.layout.parts);
}

struct Dimension {
  const char* name;
  size_t stride_bytes;
  uint32_t count;
};

/// Pages may share their bytes with other parts and layers in between, but a part may not overlap
/// itself: each stride has room for all that is nested in it.
Result<void> check_part(const KvCache& cache, size_t at) {
  const PagedPart& part = cache.parts[at];
  const std::string where = name_of_part(cache, at);
  if (part.base == nullptr) return refuse(where + ": a null pointer");
  std::array<Dimension, 3> dimensions = {{{"pages", part.page_stride_bytes, cache.pages},
                                          {"tokens", part.token_stride_bytes, cache.page_tokens},
                                          {"heads", part.head_stride_bytes, cache.layout.heads}}};
  std::sort(dimensions.begin(), dimensions.end(),
            [](const Dimension& a, const Dimension& b) { return a.stride_bytes < b.stride_bytes; });
  uint64_t needed = cache.row_bytes();
  for (const Dimension& dimension : dimensions) {
    if (dimension.count == 1) continue;
    if (dimension.stride_bytes < needed)
      return refuse(fmt::format("{}: {} overlap, with a stride of {} bytes for {}", where,
                                dimension.name, dimension.stride_bytes, needed));
    const uint64_t steps = dimension.count - 1;
    if (dimension.stride_bytes > (kMostCacheBytes - needed) / steps)
      return refuse(fmt::format("{}: {} with a stride of {} bytes pass the end of any memory",
                                where, dimension.name, dimension.stride_bytes));
    needed += dimension.stride_bytes * steps;
  }
  return {};
}

/// Whether one part begins between two pages of the other, and so in the same allocation: two parts
/// may lie side by side by chance.
bool share_pages(const KvCache& cache, const PagedPart& a, const PagedPart& b) {
  const auto a_at = reinterpret_cast<uintptr_t>(a.base), b_at = reinterpret_cast<uintptr_t>(b.base);
  const PagedPart& first = a_at < b_at ? a : b;
  return std::max(a_at, b_at) - std::min(a_at, b_at) < first.page_stride_bytes * (cache.pages - 1);
}

}  // namespace

uint32_t KvCache::unit_bytes() const {
  uint64_t all = row_bytes() | 16;
  for (const PagedPart& part : parts)
    all |= reinterpret_cast<uintptr_t>(part.base) | part.page_stride_bytes |
           part.token_stride_bytes | part.head_stride_bytes;
  return static_cast<uint32_t>(all & -all);
}

PagedLayers KvCache::paged_layers() const {
  PagedLayers paged;
  paged.layers = layout.layers;
  paged.layer_parts = layout.parts;
  paged.heads = layout.heads;
  paged.page_tokens = page_tokens;
  paged.row_bytes = row_bytes();
  paged.unit_bytes = unit_bytes();
  paged.order = row_order(layout);
  return paged;
}

Result<void> check_rows(const KvLayout& layout) {
  if (auto good = check_layout(layout); !good) return good;
  const auto unsupported = [](std::string why) {
    return Error{Status::NOT_SUPPORTED, "layout, on a GPU: " + std::move(why)};
  };
  if (is_opaque(layout)) return unsupported("opaque values have no rows");
  if (layout.parts == 2 && layout.key_channels != layout.value_channels)
    return unsupported(
        fmt::format("keys of {} channels and values of {}; rows of one length are "
                    "possible",
                    layout.key_channels, layout.value_channels));
  if (layout.scale_place != BH_SCALES_ELSEWHERE)
    return unsupported("scales in the block; elsewhere they may be");
  return {};
}

Result<void> check_stored_layout(Pool& pool, NamespaceId ns, const KvLayout& layout) {
  const auto stored = pool.value_format(ns);
  if (!stored) return stored.error();
  if (const auto differs = difference(stored->layout, layout))
    return Error{Status::LAYOUT_MISMATCH,
                 fmt::format("blocks of this namespace have another layout: {}", *differs)};
  return {};
}

Result<void> check_cache(const KvCache& cache) {
  if (auto good = check_rows(cache.layout); !good) return good;
  if (cache.page_tokens == 0 || cache.pages == 0)
    return refuse(fmt::format("a cache of {} pages of {} tokens: neither may be 0", cache.pages,
                              cache.page_tokens));
  const KvLayout& layout = cache.layout;
  if (cache.parts.size() != size_t{layout.layers} * layout.parts)
    return refuse(fmt::format("{} addresses of parts, while {} layers have {}", cache.parts.size(),
                              layout.layers, size_t{layout.layers} * layout.parts));
  for (size_t i = 0; i < cache.parts.size(); ++i) {
    if (auto good = check_part(cache, i); !good) return good;
  }
  return {};
}

Result<void> check_memory(Device& device, const KvCache& cache) {
  for (size_t i = 0; i < cache.parts.size(); ++i) {
    const PagedPart& part = cache.parts[i];
    const uint8_t* const behind = part.base + (cache.pages - 1) * part.page_stride_bytes +
                                  (cache.page_tokens - 1) * part.token_stride_bytes +
                                  (cache.layout.heads - 1u) * part.head_stride_bytes +
                                  cache.row_bytes();
    const auto reached = device.check_reached(name_of_part(cache, i), part.base,
                                              static_cast<size_t>(behind - part.base));
    if (!reached) return reached.error();
  }
  return {};
}

Result<void> check_tokens(const KvCache& cache, const PagedTokens& range) {
  if (range.tokens == 0) return refuse("a block of no tokens");
  const uint64_t end = uint64_t{range.first_token} + range.tokens;
  const uint64_t needed = (end + cache.page_tokens - 1) / cache.page_tokens;
  if (range.pages.size() < needed)
    return refuse(fmt::format("tokens {} to {} take {} entries of the block table, which has {}",
                              range.first_token, end - 1, needed, range.pages.size()));
  if (cache.payload_bytes(range.tokens) > kMostPayloadBytes)
    return refuse(fmt::format("a block of {} bytes: at most {} are possible",
                              cache.payload_bytes(range.tokens), kMostPayloadBytes));
  for (uint64_t i = range.first_token / cache.page_tokens; i < needed; ++i) {
    if (range.pages[i] >= cache.pages)
      return refuse(fmt::format("entry {} of the block table is page {}, while the cache has {}", i,
                                range.pages[i], cache.pages));
  }
  return {};
}

namespace {

/// Rows that follow each other in the payload, joined where they do so in the cache as well.
class RunMaker {
 public:
  using Each = std::function<void(uint64_t offset, uint8_t* address, uint64_t bytes)>;
  RunMaker(uint64_t offset, const Each& each) : each_(each), offset_(offset) {}

  void add(uint8_t* address, uint64_t bytes) {
    if (bytes_ != 0 && address != address_ + bytes_) end_run();
    if (bytes_ == 0) address_ = address;
    bytes_ += bytes;
  }
  void end_run() {
    if (bytes_ != 0) each_(offset_, address_, bytes_);
    offset_ += bytes_;
    bytes_ = 0;
  }

 private:
  const Each& each_;
  uint64_t offset_, bytes_ = 0;
  uint8_t* address_ = nullptr;
};

/// Some rows with a stride between them: at once if there is nothing else between them.
void add_rows(RunMaker& runs, uint8_t* first, size_t stride_bytes, uint32_t count, uint64_t bytes) {
  if (stride_bytes == bytes) return runs.add(first, count * bytes);
  for (uint32_t i = 0; i < count; ++i) runs.add(first + i * stride_bytes, bytes);
}

}  // namespace

void for_runs(const KvCache& cache, const PagedTokens& range, uint32_t first_layer,
              uint32_t some_layers, const RunMaker::Each& each) {
  RunMaker runs(cache.part_bytes(range.tokens) * cache.layout.parts * first_layer, each);
  const bool heads_first = row_order(cache.layout) == RowOrder::HEADS_FIRST;
  const uint64_t heads_bytes = uint64_t{cache.layout.heads} * cache.row_bytes();
  const size_t first_part = size_t{first_layer} * cache.layout.parts;
  for (size_t p = first_part; p < first_part + size_t{some_layers} * cache.layout.parts; ++p) {
    const PagedPart& part = cache.parts[p];
    if (p != first_part && !share_pages(cache, cache.parts[p - 1], part)) runs.end_run();
    const bool joined = part.head_stride_bytes == cache.row_bytes() || cache.layout.heads == 1;
    for (uint32_t head = 0; head < (heads_first ? cache.layout.heads : 1); ++head) {
      const uint32_t end = range.first_token + range.tokens;
      for (uint32_t token = range.first_token, some = 0; token < end; token += some) {
        some = std::min(end - token, cache.page_tokens - token % cache.page_tokens);
        uint8_t* const first = part.base +
                               range.pages[token / cache.page_tokens] * part.page_stride_bytes +
                               token % cache.page_tokens * part.token_stride_bytes;
        if (heads_first) {
          add_rows(runs, first + head * part.head_stride_bytes, part.token_stride_bytes, some,
                   cache.row_bytes());
        } else if (joined) {
          add_rows(runs, first, part.token_stride_bytes, some, heads_bytes);
        } else {
          for (uint32_t t = 0; t < some; ++t)
            add_rows(runs, first + t * part.token_stride_bytes, part.head_stride_bytes,
                     cache.layout.heads, cache.row_bytes());
        }
      }
    }
  }
  runs.end_run();
}

uint64_t run_bytes(const KvCache& cache, uint32_t tokens) {
  const PagedPart& part = cache.parts.front();
  const uint32_t in_page = std::min(tokens, cache.page_tokens);
  const bool heads_first = row_order(cache.layout) == RowOrder::HEADS_FIRST;
  const size_t inner_stride = heads_first ? part.token_stride_bytes : part.head_stride_bytes;
  const size_t outer_stride = heads_first ? part.head_stride_bytes : part.token_stride_bytes;
  const uint32_t inner = heads_first ? in_page : cache.layout.heads;
  const uint32_t outer = heads_first ? cache.layout.heads : in_page;
  if (inner > 1 && inner_stride != cache.row_bytes()) return cache.row_bytes();
  const uint64_t run = uint64_t{inner} * cache.row_bytes();
  // All tokens of a head that are in one page, then the next head: contiguous if the page is all.
  const bool whole = !heads_first || in_page == tokens;
  return whole && (outer == 1 || outer_stride == run) ? run * outer : run;
}

}  // namespace bowhead::gpu
