// SPDX-License-Identifier: Apache-2.0
// What check() finds wrong, and that it says so by name.
#include "gpu/check.h"

#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

namespace bowhead::gpu {
namespace {

// Right in all that check() looks at; the bytes behind the addresses are nobody's business.
class CheckMovePieces : public testing::Test {
 protected:
  CheckMovePieces() {
    work_.parts = parts_.data();
    work_.layers = 3;
    work_.layer_parts = 2;
    work_.heads = 4;
    work_.page_tokens = 16;
    work_.row_bytes = 256;
    work_.unit_bytes = 16;
    work_.blocks = blocks_.data();
    work_.block_count = 2;
    work_.most_tokens = 32;
    work_.some_layers = 3;
  }

  void expect_wrong(const std::string& sentence) {
    const Result<void> result = check(work_);
    ASSERT_FALSE(result) << sentence;
    EXPECT_EQ(result.status(), Status::INVALID_ARGUMENT);
    EXPECT_EQ(result.error().detail, sentence);
  }

  alignas(16) uint8_t memory_[64] = {};
  uint64_t sums_[1] = {};
  uint32_t pages_[1] = {};
  std::vector<PagedPart> parts_ = std::vector<PagedPart>(6, {memory_, 16384, 1024, 256});
  std::vector<MoveBlock> blocks_ = std::vector<MoveBlock>(2, {memory_, sums_, pages_, 0, 32});
  MovePieces work_;
};

TEST_F(CheckMovePieces, FindsNothingWrong) {
  EXPECT_TRUE(check(work_));
  work_.first_layer = 3;
  work_.some_layers = 0;
  EXPECT_TRUE(check(work_));
  work_.blocks = nullptr;
  work_.block_count = 0;
  EXPECT_TRUE(check(work_));
}

TEST_F(CheckMovePieces, NamesWhatIsZeroOrUnknown) {
  const MovePieces right = work_;
  const auto expect = [&](const std::function<void()>& spoil, const std::string& sentence) {
    work_ = right;
    spoil();
    expect_wrong(sentence);
  };
  expect([&] { work_.layers = 0; }, "layers is 0");
  expect([&] { work_.layer_parts = 3; },
         "layer_parts is 3: K and V make 2, latent attention has 1");
  expect([&] { work_.heads = 0; }, "heads is 0: latent attention has 1");
  expect([&] { work_.page_tokens = 0; }, "page_tokens is 0");
  expect([&] { work_.row_bytes = 0; }, "row_bytes is 0");
  expect([&] { work_.order = static_cast<PayloadOrder>(2); }, "order 2 is unknown");
  expect([&] { work_.kind = static_cast<MoveKind>(3); }, "kind 3 is unknown");
  expect([&] { work_.parts = nullptr; }, "parts is null");
  expect([&] { work_.blocks = nullptr; }, "blocks is null");
}

TEST_F(CheckMovePieces, NamesLayersOutOfRange) {
  work_.first_layer = 2;
  work_.some_layers = 2;
  expect_wrong("layers 2 to 4 of 3");
  work_.first_layer = 4;
  work_.some_layers = 0;
  expect_wrong("layers 4 to 4 of 3");
  work_.first_layer = 1;
  work_.some_layers = UINT32_MAX;
  expect_wrong("layers 1 to 4294967296 of 3");
}

TEST_F(CheckMovePieces, NamesWhatIsNoMultipleOfItsUnit) {
  work_.unit_bytes = 32;
  expect_wrong("unit_bytes is 32: 16, 8, 4, 2 or 1");
  work_.unit_bytes = 16;
  work_.row_bytes = 264;
  expect_wrong("row_bytes is 264, no multiple of unit_bytes 16");
  work_.row_bytes = 256;
  parts_[3].page_stride_bytes = 0x1008;
  expect_wrong("page_stride_bytes of part 1 of layer 1 is 0x1008, no multiple of unit_bytes 16");
  work_.unit_bytes = 8;
  EXPECT_TRUE(check(work_));
  parts_[5].head_stride_bytes = 0x104;
  expect_wrong("head_stride_bytes of part 1 of layer 2 is 0x104, no multiple of unit_bytes 8");
  parts_[5].token_stride_bytes = 0x401;
  expect_wrong("token_stride_bytes of part 1 of layer 2 is 0x401, no multiple of unit_bytes 8");
  parts_[0].base = memory_ + 4;
  EXPECT_TRUE(check(work_).error().detail.starts_with("base of part 0 of layer 0 is 0x"));
  parts_[0].base = nullptr;
  expect_wrong("base of part 0 of layer 0 is null");
}

TEST_F(CheckMovePieces, NamesABlock) {
  blocks_[1].tokens = 33;
  expect_wrong("block 1 has 33 tokens, more than most_tokens 32");
  blocks_[1].tokens = 0;
  expect_wrong("block 1 has 0 tokens");
  blocks_[1].tokens = 32;
  blocks_[1].first_token = UINT32_MAX - 31;
  expect_wrong("block 1: tokens 4294967264 and on, 32 of them, do not fit 32 bits");
  blocks_[1].first_token = UINT32_MAX - 32;
  EXPECT_TRUE(check(work_));
  blocks_[1].pages = nullptr;
  expect_wrong("pages of block 1 is null");
  blocks_[1].sums = nullptr;
  expect_wrong("sums of block 1 is null");
  blocks_[1].payload = nullptr;
  expect_wrong("payload of block 1 is null");
  blocks_[0].payload = memory_ + 8;
  EXPECT_TRUE(check(work_).error().detail.starts_with("payload of block 0 is at 0x"));
}

TEST_F(CheckMovePieces, NamesPayloadsThatAreTooLong) {
  work_.most_tokens = (uint32_t{1} << 31) / (256 * 4 * 6);
  EXPECT_TRUE(check(work_));
  ++work_.most_tokens;
  expect_wrong(
      "349526 tokens of 3 layers, 2 parts, 4 heads, 256 bytes make a payload of more than 2 GiB");
  work_.most_tokens = 32;
  work_.block_count = UINT32_MAX;
  expect_wrong("4294967295 blocks of 32 tokens are more than one launch can move");
}

}  // namespace
}  // namespace bowhead::gpu
