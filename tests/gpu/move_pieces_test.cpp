// SPDX-License-Identifier: Apache-2.0
// Blocks moved to payloads and back, in caches of any layout, compared with loops over rows.
#include "gpu/kernels/move_pieces.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <memory>
#include <numeric>
#include <vector>

#include "base/checksum.h"
#include "base/random.h"
#include "gpu/devices/cpu_kernels.h"
#include "gpu/kernels/check.h"
#include "tests/gpu/random_cache.h"

namespace bowhead::gpu {
namespace {

constexpr uint64_t kNoSum = 0x5EED5EED5EED5EED;

// A few numbers from 0 to `most`, including both.
std::vector<uint32_t> random_cuts(Random& random, uint32_t most) {
  std::vector<uint32_t> cuts = {0, most};
  for (uint64_t more = random.below(4); more > 0; --more) cuts.push_back(between(random, 0, most));
  std::sort(cuts.begin(), cuts.end());
  return cuts;
}

struct Block {
  uint32_t sequence, first_token, tokens;
  std::vector<uint8_t> memory;    // more than the payload, on either side
  std::vector<uint8_t> expected;  // all of it
  size_t payload_at;
  std::vector<uint64_t> sums;
  std::vector<int> moved;  // number of times, by piece

  uint8_t* payload() { return memory.data() + payload_at; }
  size_t payload_bytes() const { return memory.size() - 2 * payload_at; }
  size_t whole_pieces() const { return payload_bytes() / kPieceBytes; }
  size_t pieces_moved() const {
    return static_cast<size_t>(std::count(moved.begin(), moved.end(), 1));
  }
};

using PageLists = std::vector<std::vector<uint32_t>>;

// Sequences with pages of their own among those of a cache.
PageLists random_pages(Random& random, const std::vector<uint32_t>& tokens, uint32_t page_tokens,
                       uint32_t& pages) {
  const auto needed = [&](uint32_t count) { return (count + page_tokens - 1) / page_tokens; };
  pages = between(random, 0, 3);
  for (const uint32_t count : tokens) pages += needed(count);
  std::vector<uint32_t> free(pages);
  std::iota(free.begin(), free.end(), 0);
  for (uint32_t i = pages; i > 1; --i) std::swap(free[i - 1], free[random.below(i)]);
  PageLists lists;
  for (const uint32_t count : tokens) {
    lists.emplace_back(free.end() - needed(count), free.end());
    free.resize(free.size() - needed(count));
  }
  return lists;
}

class MoveTest {
 public:
  explicit MoveTest(uint64_t seed) : random_(seed) {
    do {
      choose();
    } while (model_.payload_bytes(tokens_[0] + tokens_[1]) > 300'000);
    make_blocks();
  }

  void run() {
    uint32_t pages = 0;
    const uint32_t page_tokens = random_page_tokens();
    const PageLists lists = random_pages(random_, tokens_, page_tokens, pages);
    Cache cache(random_, model_, page_tokens, pages, random_unit());
    expect_payloads(cache, lists);
    const std::vector<uint8_t> before = cache.bytes;
    const auto check_payloads = [&](uint32_t layers) {
      for (Block& block : blocks_) expect_moved(block, layers);
    };
    std::vector<std::vector<uint8_t>> untouched;
    for (const Block& block : blocks_) untouched.push_back(block.memory);
    // Only summed, whatever the payloads hold.
    move(cache, lists, MoveKind::SUM_ONLY, [&](uint32_t layers) {
      for (size_t i = 0; i < blocks_.size(); ++i) {
        EXPECT_EQ(blocks_[i].pieces_moved(), whole_pieces_before(blocks_[i], layers));
        EXPECT_EQ(blocks_[i].memory == untouched[i], true);
      }
    });
    move(cache, lists, MoveKind::TO_PAYLOAD, check_payloads);
    EXPECT_EQ(cache.bytes, before);

    // Back to a cache with a different layout.
    const uint32_t other_tokens = random_page_tokens();
    const PageLists other_lists = random_pages(random_, tokens_, other_tokens, pages);
    Cache other(random_, model_, other_tokens, pages, random_unit());
    std::vector<uint8_t> expected = other.bytes;
    copy_rows(cache, lists, other, other_lists, model_.layers, expected);
    const auto check_layers = [&](uint32_t layers) {
      std::vector<uint8_t> so_far = other.bytes;
      copy_rows(cache, lists, other, other_lists, layers, so_far);
      EXPECT_EQ(other.bytes == so_far, true) << "layers before " << layers;
    };
    move(other, other_lists, MoveKind::FROM_PAYLOAD, check_layers);
    EXPECT_EQ(other.bytes == expected, true);
    for (const Block& block : blocks_) EXPECT_EQ(block.memory == block.expected, true);
  }

 private:
  void choose() {
    const bool latent = random_.below(4) == 0;
    model_.layers = between(random_, 1, 5);
    model_.layer_parts = latent ? 1 : 2;
    model_.heads = latent ? 1 : between(random_, 1, 8);
    model_.row_bytes = between(random_, 1, 1152);
    if (random_.below(2) == 0) model_.row_bytes = between(random_, 1, 40);
    row_unit_ = 1u << random_.below(5);
    model_.row_bytes = std::max(model_.row_bytes / row_unit_, 1u) * row_unit_;
    model_.order = random_.below(2) == 0 ? RowOrder::HEADS_FIRST : RowOrder::TOKENS_FIRST;
    tokens_ = {between(random_, 1, 300), between(random_, 1, 40)};
  }

  // For rows that are multiples of 16, and for smaller ones.
  uint32_t random_unit() { return std::max(1u, row_unit_ >> random_.below(3)); }
  uint32_t random_page_tokens() {
    return random_.below(2) == 0 ? between(random_, 1, 64) : 1u << random_.below(7);
  }

  void make_blocks() {
    for (uint32_t sequence = 0; sequence < tokens_.size(); ++sequence) {
      const std::vector<uint32_t> cuts = random_cuts(random_, tokens_[sequence]);
      for (size_t i = 1; i < cuts.size(); ++i) {
        if (cuts[i] == cuts[i - 1] || random_.below(8) == 0) continue;
        Block& block = blocks_.emplace_back();
        block.sequence = sequence;
        block.first_token = cuts[i - 1];
        block.tokens = cuts[i] - cuts[i - 1];
        block.payload_at = 16 * between(random_, 1, 8);
        const size_t bytes = model_.payload_bytes(block.tokens);
        block.memory = random_bytes(random_, bytes + 2 * block.payload_at);
        block.sums.resize(bytes / kPieceBytes + 2);
        block.moved.resize(bytes / kPieceBytes);
      }
    }
  }

  template <class F>  // f(layer, part, token of the block, head)
  void for_rows(uint32_t tokens, uint32_t layers, F f) const {
    for (uint32_t layer = 0; layer < layers; ++layer) {
      for (uint32_t part = 0; part < model_.layer_parts; ++part) {
        for (uint32_t token = 0; token < tokens; ++token) {
          for (uint32_t head = 0; head < model_.heads; ++head) f(layer, part, token, head);
        }
      }
    }
  }

  void expect_payloads(const Cache& cache, const PageLists& lists) {
    for (Block& block : blocks_) {
      block.expected = block.memory;
      for_rows(block.tokens, model_.layers, [&](auto layer, auto part, auto token, auto head) {
        const size_t to = model_.row_at(block.tokens, layer, part, token, head);
        const size_t from =
            cache.row_at(lists[block.sequence], layer, part, block.first_token + token, head);
        std::memcpy(block.expected.data() + block.payload_at + to, cache.bytes.data() + from,
                    model_.row_bytes);
      });
    }
  }

  void copy_rows(const Cache& cache, const PageLists& lists, const Cache& other,
                 const PageLists& other_lists, uint32_t layers, std::vector<uint8_t>& to) const {
    for (const Block& block : blocks_) {
      for_rows(block.tokens, layers, [&](auto layer, auto part, auto token, auto head) {
        const auto row_at = [&](const Cache& in, const PageLists& pages) {
          return in.row_at(pages[block.sequence], layer, part, block.first_token + token, head);
        };
        std::memcpy(to.data() + row_at(other, other_lists),
                    cache.bytes.data() + row_at(cache, lists), model_.row_bytes);
      });
    }
  }

  size_t whole_pieces_before(const Block& block, uint32_t layers) const {
    return block.payload_bytes() / model_.layers * layers / kPieceBytes;
  }

  // Pieces that end before a layer's begin are written, and no other byte.
  void expect_moved(Block& block, uint32_t layers) const {
    const size_t all = block.payload_bytes();
    size_t there = all / model_.layers * layers;
    if (there != all) there -= there % kPieceBytes;
    const auto at = block.payload_at;
    EXPECT_TRUE(std::equal(block.payload(), block.payload() + there, block.expected.data() + at));
    EXPECT_TRUE(
        std::equal(block.memory.begin(), block.memory.begin() + at, block.expected.begin()));
    EXPECT_TRUE(std::equal(block.memory.begin() + at + all, block.memory.end(),
                           block.expected.begin() + at + all));
    EXPECT_EQ(block.pieces_moved(), whole_pieces_before(block, layers));
  }

  // All layers, some at a time; calls `expect`(layers so far).
  template <class F>
  void move(const Cache& cache, const PageLists& lists, MoveKind kind, F expect) {
    MovePieces work;
    cache.describe(model_, work);
    work.kind = kind;
    std::vector<MoveBlock> described;
    for (Block& block : blocks_) {
      described.push_back({block.payload(), block.sums.data(), lists[block.sequence].data(),
                           block.first_token, block.tokens});
      work.most_tokens = std::max(work.most_tokens, block.tokens);
      std::fill(block.moved.begin(), block.moved.end(), 0);
    }
    work.blocks = described.data();
    work.block_count = static_cast<uint32_t>(described.size());
    const std::vector<uint32_t> cuts = random_cuts(random_, model_.layers);
    for (size_t i = 1; i < cuts.size(); ++i) {
      work.first_layer = cuts[i - 1];
      work.some_layers = cuts[i] - cuts[i - 1];
      for (Block& block : blocks_) std::fill(block.sums.begin(), block.sums.end(), kNoSum);
      const Result<void> result = check(work);
      ASSERT_TRUE(result) << result.error().message();
      if (const auto few = few_pieces(work, lists); few && random_.below(2) == 0) {
        const Result<void> good = check(*few);
        ASSERT_TRUE(good) << good.error().message();
        run_on_cpu(*few);
      } else {
        run_on_cpu(work);
      }
      for (Block& block : blocks_) take_sums(block);
      expect(cuts[i]);
    }
    for (const Block& block : blocks_) {
      EXPECT_EQ(std::count(block.moved.begin(), block.moved.end(), 1), block.moved.size());
    }
  }

  // With blocks and pages by value, if they fit.
  std::unique_ptr<MoveFewPieces> few_pieces(const MovePieces& work, const PageLists& lists) const {
    if (work.block_count > MoveFewPieces::kMostBlocks) return nullptr;
    auto few = std::make_unique<MoveFewPieces>();
    few->pieces = work;
    few->pieces.blocks = nullptr;
    uint32_t page = 0;
    for (uint32_t i = 0; i < work.block_count; ++i) {
      const std::vector<uint32_t>& pages = lists[blocks_[i].sequence];
      if (page + pages.size() > MoveFewPieces::kMostPages) return nullptr;
      few->blocks[i] = work.blocks[i];
      few->blocks[i].pages = nullptr;
      few->first_pages[i] = page;
      std::copy(pages.begin(), pages.end(), few->pages + page);
      page += static_cast<uint32_t>(pages.size());
    }
    return few;
  }

  static void take_sums(Block& block) {
    for (size_t piece = 0; piece < block.sums.size(); ++piece) {
      if (block.sums[piece] == kNoSum) continue;
      ASSERT_LT(piece, block.whole_pieces());
      ++block.moved[piece];
      EXPECT_EQ(
          block.sums[piece],
          hash64(block.expected.data() + block.payload_at + piece * kPieceBytes, kPieceBytes));
    }
  }

  Random random_;
  Model model_{};
  uint32_t row_unit_ = 1;
  std::vector<uint32_t> tokens_;  // of sequences
  std::vector<Block> blocks_;
};

TEST(MovePieces, MovesBlocksOfAnyLayoutThereAndBack) {
  for (uint64_t seed = 0; seed < 300; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    MoveTest(seed).run();
    if (testing::Test::HasFailure()) return;
  }
}

TEST(MovePieces, CountsThePiecesOfTheLongestPayload) {
  MovePieces work;
  work.layers = work.layer_parts = 2;
  work.heads = 8;
  work.row_bytes = 256;
  work.some_layers = 2;
  MoveBlock block;
  block.tokens = work.most_tokens = 262'144;  // 2 GiB
  const PieceMover<Bytes16, MoveKind::FROM_PAYLOAD> mover(work, block);
  EXPECT_EQ(mover.first_piece(1), 262'144);
  EXPECT_EQ(mover.first_piece(2), 524'288);
  EXPECT_GE(slots_per_block(work), 524'288);
}

TEST(MovePieces, WaitsForTheLayersOfAPiece) {
  MovePieces work;
  work.layers = 3;
  work.layer_parts = work.heads = 1;
  work.row_bytes = 16;
  MoveBlock block;
  block.tokens = 300;  // layers of 4800 bytes, in four pieces
  const PieceMover<Bytes16, MoveKind::TO_PAYLOAD> there(work, block);
  const PieceMover<Bytes16, MoveKind::FROM_PAYLOAD> back(work, block);
  for (uint32_t layer = 0; layer <= 3; ++layer) {
    EXPECT_EQ(there.first_piece(layer), (std::array{0, 1, 2, 4}[layer])) << "layer " << layer;
    EXPECT_EQ(back.first_piece(layer), (std::array{0, 2, 3, 4}[layer])) << "layer " << layer;
  }
}

}  // namespace
}  // namespace bowhead::gpu
