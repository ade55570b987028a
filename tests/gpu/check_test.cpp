// SPDX-License-Identifier: Apache-2.0
// The faults that check() finds, and that its message names them.
#include "gpu/kernels/check.h"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <string>
#include <vector>

namespace bowhead::gpu {
namespace {

// Valid in everything that check() reads; the bytes at the addresses do not matter.
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

TEST_F(CheckMovePieces, NamesFieldsThatAreZeroOrUnknown) {
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
  expect([&] { work_.order = static_cast<RowOrder>(2); }, "order 2 is unknown");
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

TEST_F(CheckMovePieces, NamesFieldsThatAreNotMultiplesOfTheUnit) {
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

TEST_F(CheckMovePieces, NamesWorkTooLargeForAKernelsArguments) {
  MoveFewPieces few;
  few.pieces = work_;
  few.pieces.blocks = nullptr;
  std::copy_n(work_.blocks, work_.block_count, few.blocks);
  few.blocks[1].pages = nullptr;
  EXPECT_TRUE(check(few));
  const uint32_t pages =
      (few.blocks[1].first_token + few.blocks[1].tokens - 1) / work_.page_tokens + 1;
  few.first_pages[1] = MoveFewPieces::kMostPages - pages;
  EXPECT_TRUE(check(few));
  ++few.first_pages[1];
  EXPECT_EQ(check(few).error().message(), "block 1 has " + std::to_string(pages) + " pages from " +
                                              std::to_string(few.first_pages[1]) +
                                              " on, while a kernel's arguments hold 768");
  few.first_pages[1] = UINT32_MAX;
  EXPECT_EQ(check(few).status(), Status::INVALID_ARGUMENT);
  few.first_pages[1] = 0;
  few.blocks[1].tokens = 0;
  EXPECT_EQ(check(few).error().message(), "block 1 has 0 tokens");
  few.pieces.block_count = MoveFewPieces::kMostBlocks + 1;
  EXPECT_EQ(check(few).error().message(), "17 blocks, while a kernel's arguments hold 16");
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

class CheckAttend : public testing::Test {
 protected:
  CheckAttend() {
    work_.queries = memory_;
    work_.query_stride_bytes = 4096;
    work_.query_head_stride_bytes = 256;
    work_.sequences = 2;
    work_.spans = spans_;
    work_.splits = splits_;
    work_.span_count = work_.split_count = 2;
    work_.heads = 4;
    work_.queries_per_head = 4;
    work_.key_channels = work_.value_channels = 128;
    work_.scale = 1;
    work_.outputs = reinterpret_cast<float*>(memory_);
    work_.log_sum_exps = reinterpret_cast<float*>(memory_);
  }

  void expect(const std::function<void()>& spoil, const std::string& sentence) {
    const Attend right = work_;
    spoil();
    const Result<void> result = check(work_);
    ASSERT_FALSE(result) << sentence;
    EXPECT_EQ(result.status(), Status::INVALID_ARGUMENT);
    EXPECT_EQ(result.error().detail, sentence);
    work_ = right;
    spans_[1] = {memory_, memory_, 0, 256, 4096, 16};
    splits_[1] = {1, 0, 8, 24};
    ASSERT_TRUE(check(work_));
  }

  alignas(16) uint8_t memory_[64] = {};
  AttendSpan spans_[2] = {{memory_, memory_, 0, 256, 4096, 16},
                          {memory_, memory_, 0, 256, 4096, 16}};
  AttendSplit splits_[2] = {{0, 0, 0, 16}, {1, 0, 8, 24}};
  Attend work_;
};

TEST_F(CheckAttend, NamesAShapeThatNoKernelHas) {
  ASSERT_TRUE(check(work_));
  expect([&] { work_.number = NumberFormat::FP32; }, "number is fp32: bf16 and fp16 are possible");
  expect([&] { work_.heads = 0; }, "heads is 0: latent attention has 1");
  expect([&] { work_.queries_per_head = 0; }, "queries_per_head is 0");
  expect([&] { work_.heads = work_.queries_per_head = 1u << 17; },
         "131072 heads of 131072 queries");
  expect([&] { work_.key_channels = 100; },
         "key_channels is 100: multiples of 8 up to 768 are possible");
  expect([&] { work_.value_channels = 776; },
         "value_channels is 776: multiples of 8 up to 768 are possible");
  expect([&] { work_.value_channels = 0; },
         "value_channels is 0: multiples of 8 up to 768 are possible");
  expect([&] { work_.scale = 0; }, "scale is 0: a finite number above 0");
  expect([&] { work_.scale = std::nanf(""); }, "scale is nan: a finite number above 0");
  expect([&] { work_.split_count = 1u << 30; },
         "1073741824 splits of 4 heads of 4 queries are more than one launch can do");
}

TEST_F(CheckAttend, NamesAnAddress) {
  expect([&] { work_.queries = nullptr; }, "queries is null");
  expect([&] { work_.query_head_stride_bytes = 264; },
         "queries have strides of 4096 and 264 bytes, no multiples of 16");
  expect([&] { work_.outputs = nullptr; }, "outputs is null");
  expect([&] { work_.log_sum_exps = nullptr; }, "log_sum_exps is null");
  expect([&] { work_.spans = nullptr; }, "spans is null");
  expect([&] { work_.splits = nullptr; }, "splits is null");
  expect([&] { spans_[1].keys = nullptr; }, "span 1: keys is null");
  expect([&] { spans_[1].values = nullptr; }, "span 1: values is null");
  expect([&] { spans_[1].tokens = 0; }, "span 1 has 0 tokens");
  expect([&] { spans_[1].head_stride_bytes = 40; },
         "span 1: strides of 0, 256 and 40 bytes are no multiples of 16");
  spans_[1].keys = memory_ + 8;
  EXPECT_TRUE(check(work_).error().detail.starts_with("span 1: keys is 0x"));
}

TEST_F(CheckAttend, NamesAMissingSplit) {
  expect([&] { splits_[1].sequence = 2; }, "split 1 is of sequence 2, of 2");
  expect([&] { splits_[1].tokens = 0; }, "split 1 has 0 tokens");
  expect([&] { splits_[1].tokens = 25; },
         "split 1: tokens 8 to 33 from span 0 on, of 2, are not there");
  expect([&] { splits_[1].first_span = 1; },
         "split 1: tokens 8 to 32 from span 1 on, of 2, are not there");
  expect([&] { splits_[1].first_span = 2; },
         "split 1: tokens 8 to 32 from span 2 on, of 2, are not there");
  expect(
      [&] {
        splits_[1] = {1, 0, 16, 1};
      },
      "split 1: tokens 16 to 17 from span 0 on, of 2, are not there");
  expect([&] { splits_[1].tokens = UINT32_MAX; },
         "split 1: tokens 8 to 4294967303 from span 0 on, of 2, are not there");
}

TEST(CheckMergePartials, NamesTheFault) {
  alignas(16) float memory[16] = {};
  const uint32_t first_partials[] = {0, 3, 2};
  MergePartials work;
  work.sources[1] = work.sources[0] = {memory, memory, nullptr};
  work.source_count = work.sequences = work.heads = 2;
  work.channels = 128;
  work.outputs = memory;
  const auto expect = [&](const std::function<void()>& spoil, const std::string& sentence) {
    const MergePartials right = work;
    spoil();
    const Result<void> result = check(work);
    ASSERT_FALSE(result) << sentence;
    EXPECT_EQ(result.error().detail, sentence);
    work = right;
  };
  ASSERT_TRUE(check(work));
  expect([&] { work.source_count = 5; }, "source_count is 5: at most 4");
  expect([&] { work.channels = 130; }, "channels is 130, no multiple of 4");
  expect([&] { work.sequences = work.heads = 65536; },
         "65536 heads of 65536 sequences are more than one launch can merge");
  expect([&] { work.number = NumberFormat::INT8; },
         "number is int8: bf16, fp16 and fp32 are possible");
  expect([&] { work.outputs = nullptr; }, "outputs is null");
  expect([&] { work.sources[1].outputs = nullptr; }, "source 1: outputs is null");
  expect([&] { work.sources[1].log_sum_exps = nullptr; }, "source 1: log_sum_exps is null");
  expect([&] { work.sources[1].first_partials = first_partials; },
         "source 1: partials of sequence 1 are those from 3 to 2");
}

TEST(CheckDecodeLz4, NamesTheFault) {
  uint8_t memory[16] = {};
  const uint8_t* from[] = {memory, memory + 3};
  uint8_t* to[] = {memory + 5, memory + 9};
  size_t from_bytes[] = {2, 2}, to_bytes[] = {4, 4}, decoded_bytes[2];
  uint32_t faults[2];
  DecodeLz4 work;
  EXPECT_TRUE(check(work));
  work = {from, from_bytes, to, to_bytes, 2, decoded_bytes, faults};
  EXPECT_TRUE(check(work));

  const auto expect = [&](const std::string& sentence) {
    const Result<void> result = check(work);
    ASSERT_FALSE(result) << sentence;
    EXPECT_EQ(result.status(), Status::INVALID_ARGUMENT);
    EXPECT_EQ(result.error().detail, sentence);
  };
  work.faults = nullptr;
  expect("faults is null");
  work.faults = faults;
  from[1] = nullptr;
  expect("from of stream 1 is null");
  from[1] = memory;
  to[0] = nullptr;
  expect("to of stream 0 is null");
  to[0] = memory;
  to_bytes[1] = 0;
  expect("to_bytes of stream 1 is 0: 1 to 2147483647");
  to_bytes[1] = 4;
  from_bytes[0] = size_t{1} << 31;
  expect("from_bytes of stream 0 is 2147483648: 1 to 2147483647");
}

}  // namespace
}  // namespace bowhead::gpu
