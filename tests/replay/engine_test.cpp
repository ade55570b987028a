// SPDX-License-Identifier: Apache-2.0
// Engine and self-test over a real pool: their counts, and that no wrong byte passes them.
#include "tools/bowhead/replay/engine.h"

#include <gtest/gtest.h>

#include <memory>
#include <numeric>
#include <string>

#include "tests/support/pools.h"
#include "tools/bowhead/replay/replay.h"

namespace bowhead::replay {
namespace {

constexpr uint64_t kBlockBytes = 16384;

class EngineTest : public testing::Test {
 protected:
  Engine engine(const Content& content, uint64_t staging_bytes = 4 * kBlockBytes) {
    return Engine(pool_.pool(), pool_.ns(), content, kBlockBytes, staging_bytes, *stats_);
  }

  test::TestPool pool_{32 << 20};
  std::unique_ptr<EngineStats> stats_ = std::make_unique<EngineStats>();
  Content content_ = Content::generated(1);
};

TEST_F(EngineTest, StoresMissingBlocksAndRestoresThePrefix) {
  Engine e = engine(content_);
  const std::vector<uint64_t> first = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10};  // more than staging holds
  ASSERT_TRUE(e.serve(first, 5000));
  EXPECT_EQ(stats_->blocks_hit, 0u);
  EXPECT_EQ(stats_->blocks_put, 10u);
  EXPECT_EQ(stats_->tokens_saved, 0u);

  const std::vector<uint64_t> second = {1, 2, 3, 4, 5, 6, 100, 7};  // 7 is stored, but after a gap
  ASSERT_TRUE(e.serve(second, 4096));
  EXPECT_EQ(stats_->requests, 2u);
  EXPECT_EQ(stats_->blocks_asked, 18u);
  EXPECT_EQ(stats_->blocks_hit, 6u);
  EXPECT_EQ(stats_->blocks_put, 12u);
  EXPECT_EQ(stats_->tokens_saved, 6 * kBlockTokens);
  EXPECT_EQ(stats_->bytes_out, 6 * kBlockBytes);
  EXPECT_EQ(stats_->bytes_verified, 6 * kBlockBytes);
  EXPECT_EQ(stats_->bytes_in, 12 * kBlockBytes);
  EXPECT_EQ(stats_->get.count, 6u);
  EXPECT_EQ(stats_->put.count, 12u);
  EXPECT_EQ(stats_->wrong_blocks, 0u);
}

TEST_F(EngineTest, ALastBlockThatIsNotFullSavesFewerTokens) {
  Engine e = engine(content_);
  const std::vector<uint64_t> ids = {1, 2};
  ASSERT_TRUE(e.serve(ids, 600));
  ASSERT_TRUE(e.serve(ids, 600));
  EXPECT_EQ(stats_->tokens_saved, 600u);
}

TEST_F(EngineTest, NamesEveryWrongBlock) {
  const Content other = Content::generated(2);
  std::vector<uint64_t> ids(70);
  std::iota(ids.begin(), ids.end(), 0);
  Engine writer = engine(other);
  ASSERT_TRUE(writer.serve(ids, 70 * kBlockTokens));
  *stats_ = {};
  Engine reader = engine(content_);
  ASSERT_TRUE(reader.serve(ids, 70 * kBlockTokens));
  EXPECT_EQ(stats_->wrong_blocks, 70u);
  EXPECT_GT(stats_->wrong_bytes, 70 * kBlockBytes * 99 / 100);
  for (uint64_t i = 0; i < EngineStats::kWrongKept; ++i) EXPECT_EQ(stats_->wrong[i].id, i);
}

TEST_F(EngineTest, ABlockOfAnotherLengthIsWrong) {
  std::vector<std::byte> bytes(2 * kBlockBytes);
  for (const uint64_t length : {kBlockBytes - 1, kBlockBytes + 1}) {
    content_.fill(length, bytes.data(), length);
    const ConstSpan value{bytes.data(), length};
    ASSERT_EQ(pool_.pool().put(pool_.ns(), block_key_text(length), std::span(&value, 1)),
              Status::OK);
  }
  Engine e = engine(content_);
  const std::vector<uint64_t> shorter = {kBlockBytes - 1};
  ASSERT_TRUE(e.serve(shorter, kBlockTokens));
  EXPECT_EQ(stats_->wrong_blocks, 1u);
  EXPECT_EQ(stats_->wrong_bytes, 1u);
  EXPECT_EQ(stats_->wrong[0].first_offset, kBlockBytes - 1);
  const std::vector<uint64_t> longer = {kBlockBytes + 1};
  ASSERT_TRUE(e.serve(longer, kBlockTokens));
  EXPECT_EQ(stats_->wrong_blocks, 2u);
}

TEST_F(EngineTest, ADamagedBlockIsAMissAndIsStoredAgain) {
  Engine e = engine(content_);
  const std::vector<uint64_t> ids = {1, 2, 3};
  ASSERT_TRUE(e.serve(ids, 3 * kBlockTokens));
  pool_.flip_payload(block_key_text(2), 77);
  ASSERT_TRUE(e.serve(ids, 3 * kBlockTokens));
  EXPECT_EQ(stats_->blocks_lost, 1u);
  EXPECT_EQ(stats_->blocks_hit, 1u);
  EXPECT_EQ(stats_->wrong_blocks, 0u);
  ASSERT_TRUE(e.serve(ids, 3 * kBlockTokens));
  EXPECT_EQ(stats_->blocks_hit, 4u);
}

TEST_F(EngineTest, TheSelfTestFindsAllItPlantsAndLeavesNothing) {
  Engine e = engine(content_);
  std::vector<uint64_t> ids(200);
  std::iota(ids.begin(), ids.end(), 0);
  ASSERT_TRUE(e.serve(ids, 200 * kBlockTokens));
  const auto report = run_self_test(pool_.pool(), pool_.ns(), content_, kBlockBytes, 1);
  ASSERT_TRUE(report) << report.error().message();
  EXPECT_EQ(report->flipped_injected, 32u);
  EXPECT_EQ(report->flipped_found, 32u);
  EXPECT_EQ(report->delivered_wrong, 0u);
  EXPECT_EQ(report->foreign_injected, 32u);
  EXPECT_EQ(report->foreign_found, 32u);
  EXPECT_TRUE(report->passed());
  *stats_ = {};
  ASSERT_TRUE(e.serve(ids, 200 * kBlockTokens));
  EXPECT_EQ(stats_->wrong_blocks, 0u);
  EXPECT_TRUE(pool_.check_clean());
}

TEST_F(EngineTest, TheSelfTestNeedsBlocks) {
  EXPECT_EQ(run_self_test(pool_.pool(), pool_.ns(), content_, kBlockBytes, 1).status(),
            Status::INVALID_ARGUMENT);
}

TEST(SelfTestReport, PassesOnlyIfAllWasInjectedAndFound) {
  SelfTestReport report{2, 2, 2, 2, 0};
  EXPECT_TRUE(report.passed());
  report.flipped_found = 1;
  EXPECT_FALSE(report.passed());
  report = {2, 2, 2, 1, 0};
  EXPECT_FALSE(report.passed());
  report = {2, 2, 2, 2, 1};
  EXPECT_FALSE(report.passed());
  EXPECT_FALSE(SelfTestReport{}.passed());
}

TEST(BlockKey, ReadsBackWhatItWrites) {
  uint64_t id = 0;
  EXPECT_TRUE(parse_block_key(block_key_text(UINT64_MAX), id));
  EXPECT_EQ(id, UINT64_MAX);
  EXPECT_TRUE(parse_block_key(block_key_text(7), id));
  EXPECT_EQ(id, 7u);
  for (const char* key : {"", "block-", "block-000000000000000g", "blick-0000000000000001",
                          "block-00000000000000011"}) {
    EXPECT_FALSE(parse_block_key(key, id)) << key;
  }
}

}  // namespace
}  // namespace bowhead::replay
