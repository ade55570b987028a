// SPDX-License-Identifier: Apache-2.0
// Chosen tokens copied from payloads of any order to caches of any layout, compared with a loop
// over rows; and that no number in a list makes the kernel access other memory.
#include "gpu/kernels/fetch_tokens.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <numeric>
#include <vector>

#include "base/random.h"
#include "gpu/devices/cpu_kernels.h"
#include "gpu/kernels/check.h"
#include "tests/gpu/random_cache.h"

namespace bowhead::gpu {
namespace {

struct Lists {
  TokenLists descriptor;  // but where they lie
  std::vector<uint32_t> words, counts;
  uint32_t offset = 0;  // of the first token, in words

  uint32_t count(uint32_t list) const {
    return counts.empty() ? descriptor.most_tokens : std::min(counts[list], descriptor.most_tokens);
  }
  uint32_t token(uint32_t list, uint32_t entry) const {
    return words[offset +
                 (list * descriptor.list_stride_bytes + entry * descriptor.token_stride_bytes) / 4];
  }
};

class FetchTest {
 public:
  explicit FetchTest(uint64_t seed) : random_(seed) {
    const bool latent = random_.below(4) == 0;
    model_.layers = between(random_, 1, 4);
    model_.layer_parts = latent ? 1 : 2;
    model_.heads = latent ? 1 : between(random_, 1, 8);
    const uint32_t row_unit = 1u << random_.below(5);
    const uint32_t longest = random_.below(2) == 0 ? 40 : 600;
    model_.row_bytes = row_unit * std::max(1u, between(random_, 1, longest) / row_unit);
    model_.order = random_.below(2) == 0 ? RowOrder::HEADS_FIRST : RowOrder::TOKENS_FIRST;
    unit_ = std::max(1u, row_unit >> random_.below(3));
    tokens_ = between(random_, 1, 200);
    block_tokens_ = between(random_, 1, 70);
    for (uint32_t first = 0; first < tokens_; first += block_tokens_) {
      const uint32_t tokens = std::min(block_tokens_, tokens_ - first);
      const bool is_there = random_.below(6) != 0;
      // Each in an allocation of its exact size: a sanitizer finds reads past its end.
      blocks_.push_back(random_bytes(random_, is_there ? model_.payload_bytes(tokens) : 0));
      payloads_.push_back(is_there ? blocks_.back().data() : nullptr);
    }
    choose_layers();
    choose_lists();
  }

  void run() {
    const uint32_t page_tokens = between(random_, 1, 40);
    const uint32_t pages_needed = (lists_.descriptor.most_tokens + page_tokens - 1) / page_tokens;
    const uint32_t pages = pages_needed + between(random_, 0, 3);
    std::vector<uint32_t> table(pages);
    std::iota(table.begin(), table.end(), 0u);
    for (uint32_t i = pages; i > 1; --i) std::swap(table[i - 1], table[random_.below(i)]);
    table.resize(pages_needed);
    Cache cache(random_, model_, page_tokens, std::max(pages, 1u), unit_);
    std::vector<uint8_t> expected = cache.bytes;
    const uint32_t absent = expect(cache, table, expected);

    const uint32_t counted_before = 1000;
    uint32_t counted = counted_before;
    FetchTokens work;
    cache.describe(model_, work);
    work.payloads = payloads_.data();
    work.tokens = tokens_;
    work.block_tokens = block_tokens_;
    const uint32_t no_page = 0;
    work.pages = table.empty() ? &no_page : table.data();
    work.lists = lists_.descriptor;
    work.lists.tokens = reinterpret_cast<const uint8_t*>(lists_.words.data() + lists_.offset);
    if (!lists_.counts.empty()) work.lists.counts = lists_.counts.data();
    work.first_layer = first_layer_;
    work.some_layers = some_layers_;
    work.absent = &counted;
    const Result<void> good = check(work);
    ASSERT_TRUE(good) << good.error().message();
    run_on_cpu(work);
    EXPECT_EQ(cache.bytes == expected, true);
    EXPECT_EQ(counted - counted_before, absent);
  }

 private:
  void choose_layers() {
    first_layer_ = between(random_, 0, model_.layers);
    some_layers_ = between(random_, 0, model_.layers - first_layer_);
  }

  // Also with numbers that no block has, the same one twice, and empty lists.
  void choose_lists() {
    TokenLists& descriptor = lists_.descriptor;
    descriptor.most_tokens = random_.below(8) == 0 ? 0 : between(random_, 1, 100);
    descriptor.token_stride_bytes = 4 * between(random_, 1, 3);
    descriptor.head_lists = static_cast<uint32_t>(random_.below(2));
    descriptor.layer_lists =
        random_.below(2) == 0 ? 0 : (descriptor.head_lists == 0 ? 1 : model_.heads);
    const uint32_t lists = std::max(model_.layers * descriptor.layer_lists, model_.heads);
    descriptor.list_stride_bytes =
        size_t{descriptor.most_tokens} * descriptor.token_stride_bytes + 4 * random_.below(5);
    lists_.offset = between(random_, 0, 3);
    lists_.words.resize(lists_.offset + lists * descriptor.list_stride_bytes / 4 + 1);
    for (uint32_t& word : lists_.words) word = random_token();
    if (random_.below(3) == 0) return;
    for (uint32_t i = 0; i < lists; ++i) {
      const uint32_t rare = random_.below(2) == 0 ? 0 : UINT32_MAX;
      lists_.counts.push_back(
          random_.below(6) == 0 ? rare : between(random_, 0, descriptor.most_tokens + 3));
    }
  }
  uint32_t random_token() {
    switch (random_.below(12)) {
      case 0:
        return tokens_;
      case 1:
        return static_cast<uint32_t>(random_.next());
      case 2:
        return UINT32_MAX;
      default:
        return static_cast<uint32_t>(random_.below(tokens_));
    }
  }

  // Returns the number of tokens that no block has.
  uint32_t expect(const Cache& cache, const std::vector<uint32_t>& table,
                  std::vector<uint8_t>& expected) const {
    uint32_t absent = 0;
    for (uint32_t layer = 0; layer < some_layers_; ++layer) {
      for (uint32_t head = 0; head < model_.heads; ++head) {
        const uint32_t list =
            layer * lists_.descriptor.layer_lists + head * lists_.descriptor.head_lists;
        for (uint32_t i = 0; i < lists_.count(list); ++i) {
          bool is_there = true;
          for (uint32_t part = 0; part < model_.layer_parts; ++part) {
            const size_t to = cache.row_at(table, first_layer_ + layer, part, i, head);
            const uint8_t* from = row(lists_.token(list, i), first_layer_ + layer, part, head);
            is_there = from != nullptr;
            std::memset(&expected[to], 0, model_.row_bytes);
            if (is_there) std::memcpy(&expected[to], from, model_.row_bytes);
          }
          absent += is_there ? 0 : 1;
        }
      }
    }
    return absent;
  }
  const uint8_t* row(uint32_t token, uint32_t layer, uint32_t part, uint32_t head) const {
    uint32_t first = 0;
    for (const std::vector<uint8_t>& block : blocks_) {
      const uint32_t tokens = std::min(block_tokens_, tokens_ - first);
      if (token >= first && token < first + tokens) {
        if (block.empty()) return nullptr;
        return &block[model_.row_at(tokens, layer, part, token - first, head)];
      }
      first += tokens;
    }
    return nullptr;
  }

  Random random_;
  Model model_{};
  uint32_t unit_ = 1, tokens_ = 0, block_tokens_ = 0;
  std::vector<std::vector<uint8_t>> blocks_;
  std::vector<const uint8_t*> payloads_;
  uint32_t first_layer_ = 0, some_layers_ = 0;
  Lists lists_;
};

TEST(FetchTokens, FetchesTheTokensOfListsToAnyLayout) {
  for (uint64_t seed = 0; seed < 1000; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    FetchTest(seed).run();
    if (testing::Test::HasFailure()) return;
  }
}

/// Valid in everything that check() reads.
class CheckFetchTokens : public testing::Test {
 protected:
  CheckFetchTokens() {
    work_.payloads = payloads_;
    work_.tokens = 40;
    work_.block_tokens = 32;
    work_.parts = parts_.data();
    work_.pages = words_;
    work_.layers = 3;
    work_.heads = 4;
    work_.page_tokens = 16;
    work_.row_bytes = 256;
    work_.unit_bytes = 16;
    work_.lists.tokens = reinterpret_cast<const uint8_t*>(words_);
    work_.lists.list_stride_bytes = 4 * 64;
    work_.lists.head_lists = 1;
    work_.lists.most_tokens = 64;
    work_.some_layers = 3;
    work_.absent = words_;
  }

  template <class Spoil>
  void expect(Spoil spoil, const std::string& sentence) {
    const FetchTokens right = work_;
    spoil();
    const Result<void> result = check(work_);
    ASSERT_FALSE(result) << sentence;
    EXPECT_EQ(result.status(), Status::INVALID_ARGUMENT);
    EXPECT_EQ(result.error().detail.substr(0, sentence.size()), sentence);
    work_ = right;
  }

  alignas(16) uint8_t memory_[64] = {};
  uint32_t words_[1] = {};
  const uint8_t* payloads_[2] = {memory_, nullptr};
  std::vector<PagedPart> parts_ = std::vector<PagedPart>(6, {memory_, 16384, 1024, 256});
  FetchTokens work_;
};

TEST_F(CheckFetchTokens, NamesTheFault) {
  EXPECT_TRUE(check(work_));
  expect([&] { work_.heads = 0; }, "heads is 0");
  expect([&] { work_.unit_bytes = 3; }, "unit_bytes is 3");
  expect([&] { work_.row_bytes = 8; }, "row_bytes is 8, no multiple of unit_bytes 16");
  expect([&] { work_.parts = nullptr; }, "parts is null");
  expect([&] { work_.tokens = 0; }, "tokens is 0");
  expect([&] { work_.block_tokens = 0; }, "block_tokens is 0");
  expect([&] { work_.pages = nullptr; }, "pages is null");
  expect([&] { work_.absent = nullptr; }, "absent is null");
  expect([&] { work_.payloads = nullptr; }, "payloads is null");
  payloads_[1] = memory_ + 8;
  expect([] {}, "payload of block 1 is at 0x");
  payloads_[1] = memory_;
  EXPECT_TRUE(check(work_));
  expect([&] { work_.block_tokens = work_.tokens = 1 << 20; },
         "1048576 tokens of 3 layers, 2 parts, 4 heads, 256 bytes make a payload of more than");
}

TEST_F(CheckFetchTokens, NamesTheFaultOfAList) {
  TokenLists& lists = work_.lists;
  expect([&] { work_.first_layer = 2; }, "layers 2 to 5 of 3");
  expect([&] { lists.tokens = nullptr; }, "tokens of lists is null");
  expect([&] { lists.tokens += 2; }, "tokens of lists is 0x");
  expect([&] { lists.counts = reinterpret_cast<const uint32_t*>(memory_ + 1); },
         "counts of lists is 0x");
  expect([&] { lists.token_stride_bytes = 0; }, "token_stride_bytes of lists is 0");
  expect([&] { lists.token_stride_bytes = 6; }, "token_stride_bytes of lists is 0x6, no multiple");
  expect([&] { lists.list_stride_bytes = 6; }, "list_stride_bytes of lists is 0x6, no multiple");
  const std::string too_many = "24 lists of ";
  expect([&] { lists.most_tokens = 1u << 30; }, too_many);
  expect([&] { lists.layer_lists = UINT32_MAX; }, too_many);
  expect([&] { lists.head_lists = UINT32_MAX; }, too_many);
  lists.most_tokens = 0;
  EXPECT_TRUE(check(work_));
}

}  // namespace
}  // namespace bowhead::gpu
