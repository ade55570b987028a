// SPDX-License-Identifier: Apache-2.0
// The C ABI of GPUs on the CPU device, with a gate in front of its work: the handle of the device
// is made here, since the ABI has no gates.
#pragma once

#include <gtest/gtest.h>
#include <poll.h>

#include <array>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "api/gpu.h"
#include "base/kv_layout.h"
#include "base/random.h"
#include "tests/api/structs.h"
#include "tests/gpu/devices.h"
#include "tests/support/pools.h"

namespace bowhead::test {

#define EXPECT_ANSWER(call, status)                                    \
  do {                                                                 \
    const bh_status answer_ = (call);                                  \
    EXPECT_STREQ(bh_status_name(answer_), bh_status_name(BH_##status)) \
        << #call << ": " << bh_last_error();                           \
  } while (false)
#define ASSERT_OK(call) ASSERT_EQ(call, BH_OK) << bh_last_error()
#define EXPECT_OK(call) EXPECT_ANSWER(call, OK)

/// A paged cache in host memory, its axes nested in any order with gaps, and the position of each
/// row by the formula.
class Pages {
 public:
  explicit Pages(Random& random) : Pages(random, layout_of(random)) {}
  Pages(Random& random, const bh_kv_layout& layout) {
    const auto between = [&](uint32_t least, uint32_t most) {
      return least + static_cast<uint32_t>(random.below(most - least + 1));
    };
    cache.layout = layout;
    cache.page_tokens = between(1, 20);
    cache.pages = between(8, 40);
    const std::array<uint32_t, 5> counts = {layout.layers, layout.parts, cache.pages,
                                            cache.page_tokens, layout.heads};
    std::array<uint32_t, 5> axes = {0, 1, 2, 3, 4};
    for (uint32_t i = 4; i > 0; --i) std::swap(axes[i], axes[random.below(i + 1)]);
    size_t size = row_bytes();
    for (const uint32_t axis : axes) {
      strides_[axis] = size + 2 * random.below(3);
      size = strides_[axis] * counts[axis];
    }
    memory = std::make_unique<gpu::Mapping>((size + 4095) / 4096 * 4096);
    for (uint32_t i = 0; i < layout.layers * uint32_t{layout.parts}; ++i) {
      parts.push_back(
          {memory->data() + i / layout.parts * strides_[0] + i % layout.parts * strides_[1],
           strides_[2], strides_[3], strides_[4]});
    }
    cache.parts = parts.data();
    cache.part_count = parts.size();
  }
  Pages(const Pages&) = delete;
  Pages& operator=(const Pages&) = delete;

  static bh_kv_layout layout_of(Random& random) {
    bh_kv_layout layout = pairs_layout(
        NumberFormat::BF16, static_cast<uint16_t>(1 + random.below(5)),
        static_cast<uint16_t>(1 + random.below(4)), static_cast<uint16_t>(1 + random.below(40)),
        random.below(2) == 0 ? RowOrder::HEADS_FIRST : RowOrder::TOKENS_FIRST);
    layout.parts = static_cast<uint8_t>(1 + random.below(2));
    return layout;
  }

  uint32_t row_bytes() const { return bowhead::row_bytes(cache.layout, 0); }
  uint32_t tokens() const { return cache.pages * cache.page_tokens; }

  /// Calls each(offset in the payload, row in the cache) for some layers of a block.
  template <class Each>
  void for_rows(const bh_gpu_block& block, uint32_t first_layer, uint32_t end_layer,
                Each each) const {
    for (uint32_t layer = first_layer; layer < end_layer; ++layer) {
      for (uint32_t part = 0; part < cache.layout.parts; ++part) {
        for (uint32_t head = 0; head < cache.layout.heads; ++head) {
          const KvRows rows = rows_of(cache.layout, block.tokens, layer, part, head);
          for (uint32_t t = 0; t < block.tokens; ++t) {
            const uint32_t token = block.first_token + t;
            each(rows.offset_bytes + t * rows.stride_bytes,
                 memory->data() + layer * strides_[0] + part * strides_[1] +
                     block.pages[token / cache.page_tokens] * strides_[2] +
                     token % cache.page_tokens * strides_[3] + head * strides_[4]);
          }
        }
      }
    }
  }
  /// The payload of a block as its pages have it now.
  std::vector<std::byte> payload(const bh_gpu_block& block) const {
    std::vector<std::byte> out(payload_bytes(cache.layout, block.tokens));
    for_rows(block, 0, cache.layout.layers, [&](uint64_t offset, const std::byte* row) {
      std::memcpy(&out[offset], row, row_bytes());
    });
    return out;
  }
  /// Writes some layers of a block.
  void write(const bh_gpu_block& block, const std::vector<std::byte>& payload, uint32_t first_layer,
             uint32_t end_layer) {
    for_rows(block, first_layer, end_layer, [&](uint64_t offset, std::byte* row) {
      std::memcpy(row, &payload[offset], row_bytes());
    });
  }
  void fill(uint64_t seed) {
    const std::vector<std::byte> content = bytes(memory->size_bytes(), seed);
    std::memcpy(memory->data(), content.data(), content.size());
  }

  bh_gpu_cache cache = sized<bh_gpu_cache>();
  std::vector<bh_gpu_part> parts;
  std::unique_ptr<gpu::Mapping> memory;

 private:
  std::array<size_t, 5> strides_{};
};

/// Blocks of a sequence whose pages are in random order, with the memory that they point to.
struct Blocks {
  Blocks(Random& random, const Pages& pages, uint32_t count, const std::string& name) {
    for (uint32_t page = 0; page < pages.cache.pages; ++page) table.push_back(page);
    for (size_t i = table.size() - 1; i > 0; --i) std::swap(table[i], table[random.below(i + 1)]);
    const uint32_t tokens = std::max<uint32_t>(1, pages.tokens() / count);
    for (uint32_t i = 0; i < count; ++i) keys.push_back(name + " " + std::to_string(i));
    for (uint32_t i = 0; i < count; ++i)
      all.push_back({{keys[i].data(), keys[i].size()},
                     table.data(),
                     table.size(),
                     i * tokens,
                     tokens,
                     nullptr});
  }

  std::vector<uint32_t> table;
  std::vector<std::string> keys;
  std::vector<bh_gpu_block> all;
};

/// A gated CPU device, a pool with a namespace, its memory and a cache, all registered.
class GpuAbi : public testing::Test {
 protected:
  void SetUp() override {
    auto options = sized<bh_create_options>();
    options.size_bytes = 32 << 20;
    ASSERT_OK(bh_pool_create(locator_.c_str(), &options));
    ASSERT_OK(bh_pool_open(locator_.c_str(), BH_ANY_HOST, &pool_));
    gpu_ = new bh_gpu{gpu::gated_cpu_device(gate_)};
    ASSERT_OK(bh_gpu_register_pool(gpu_, pool_, 2 << 20, &memory_));
    ASSERT_OK(bh_gpu_memory_ensure(memory_, 0, size_of(memory_)));
    use(std::make_unique<Pages>(random_, pairs_layout(NumberFormat::BF16, 4, 2, 16)));
  }
  void TearDown() override {
    gate_->let_go();
    bh_gpu_transfers_close(transfers_);
    bh_gpu_memory_close(cache_memory_);
    bh_gpu_memory_close(memory_);
    bh_gpu_close(gpu_);
    bh_pool_close(pool_);
    (void)bh_pool_destroy(locator_.c_str(), 1);
  }

  static uint64_t size_of(bh_gpu_memory* memory) {
    auto info = sized<bh_gpu_memory_info>();
    EXPECT_OK(bh_gpu_memory_get_info(memory, &info));
    return info.size_bytes;
  }

  /// Opens transfers of this cache, and a namespace of its layout.
  void use(std::unique_ptr<Pages> pages) {
    bh_gpu_transfers_close(std::exchange(transfers_, nullptr));
    bh_gpu_memory_close(std::exchange(cache_memory_, nullptr));
    pages_ = std::move(pages);
    ASSERT_OK(bh_gpu_register_memory(gpu_, pages_->memory->data(), pages_->memory->size_bytes(),
                                     &cache_memory_));
    ASSERT_OK(bh_gpu_transfers_open(pool_, gpu_, memory_, &pages_->cache, nullptr, &transfers_));
    ns_ = open_namespace(pages_->cache.layout, BH_PROFILE_NONE);
  }
  bh_namespace_id open_namespace(const bh_kv_layout& layout, uint32_t profile) {
    const std::string name =
        std::to_string(hash64(&layout, sizeof layout)) + std::to_string(profile);
    auto options = sized<bh_namespace_options>();
    options.layout = layout;
    options.profile = profile;
    bh_namespace_id ns = 0;
    EXPECT_OK(bh_namespace_open_with(pool_, name.c_str(), "", &options, &ns));
    return ns;
  }

  bh_gpu_job* start(bool spills, const std::vector<bh_gpu_block>& blocks,
                    const bh_gpu_job_options* options = nullptr) {
    bh_gpu_job* job = nullptr;
    EXPECT_OK((spills ? bh_gpu_spill : bh_gpu_restore)(transfers_, ns_, blocks.data(),
                                                       blocks.size(), options, &job));
    return job;
  }
  /// Waits for the job, frees it, and returns the statuses of its blocks.
  std::vector<std::string> end(bh_gpu_job* job, size_t blocks) {
    EXPECT_OK(bh_gpu_job_wait(job, 20'000));
    std::vector<bh_gpu_result> results(blocks);
    EXPECT_OK(bh_gpu_job_results(job, results.data(), blocks));
    bh_gpu_job_free(job);
    std::vector<std::string> names;
    for (const bh_gpu_result& result : results) names.emplace_back(bh_status_name(result.status));
    return names;
  }
  std::vector<std::string> run(bool spills, const std::vector<bh_gpu_block>& blocks,
                               const bh_gpu_job_options* options = nullptr) {
    return end(start(spills, blocks, options), blocks.size());
  }
  std::vector<std::byte> stored(const bh_gpu_block& block) {
    std::vector<std::byte> out(payload_bytes(pages_->cache.layout, block.tokens));
    const bh_iovec room = {out.data(), out.size()};
    uint64_t length = 0;
    EXPECT_OK(bh_get(pool_, ns_, block.key, &room, 1, &length));
    EXPECT_EQ(length, out.size());
    return out;
  }
  bool is_readable(int timeout_ms) const {
    pollfd one = {bh_gpu_transfers_fd(transfers_), POLLIN, 0};
    return ::poll(&one, 1, timeout_ms) == 1;
  }
  bool is_stored(const bh_gpu_block& block) {
    uint8_t present = 0;
    EXPECT_OK(bh_exists(pool_, ns_, &block.key, 1, &present));
    return present != 0;
  }

  const std::string locator_ = unique_locator();
  const std::shared_ptr<gpu::Gate> gate_ = std::make_shared<gpu::Gate>();
  Random random_{7};
  bh_pool* pool_ = nullptr;
  bh_namespace_id ns_ = 0;
  bh_gpu* gpu_ = nullptr;
  bh_gpu_memory *memory_ = nullptr, *cache_memory_ = nullptr;
  std::unique_ptr<Pages> pages_;
  bh_gpu_transfers* transfers_ = nullptr;
};

}  // namespace bowhead::test
