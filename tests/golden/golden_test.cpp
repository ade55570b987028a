// SPDX-License-Identifier: Apache-2.0
// Golden pools open on any machine and return exactly the values that were put.
#include <gtest/gtest.h>

#include "tests/golden/golden_pool.h"

namespace bowhead::golden {
namespace {

TEST(Golden, OneHost) {
  GoldenPool golden("v2-one-host");
  auto pool = golden.open();
  ASSERT_TRUE(pool) << pool.error().message();
  EXPECT_EQ(golden.lost_in(*pool), std::set<size_t>{});
  EXPECT_EQ(findings_of(*pool), "");
  const auto info = pool->info();
  ASSERT_TRUE(info);
  EXPECT_EQ(info->format_version, 2u);
  EXPECT_EQ(info->blocks, static_cast<int64_t>(golden.blocks().size()));
  EXPECT_EQ(info->puts, golden.blocks().size() + 1);
  EXPECT_EQ(info->removals, 1u);
  EXPECT_FALSE(info->second_superblock_used);
  ASSERT_EQ(info->namespaces.size(), kNamespaces.size());
  for (size_t i = 0; i < kNamespaces.size(); ++i) {
    EXPECT_EQ(info->namespaces[i].name, kNamespaces[i].name);
    EXPECT_EQ(info->namespaces[i].description, kNamespaces[i].description);
  }
  EXPECT_EQ(info->hosts[0].state, "live");
}

/// Frames in blocks: they decode, also from the first planes only, and can be recompressed.
TEST(Golden, Compressed) {
  GoldenPool golden("v2-compressed");
  auto pool = golden.open();
  ASSERT_TRUE(pool) << pool.error().message();
  const auto ns = pool->open_namespace(kCompressedNamespaces[0]);
  ASSERT_TRUE(ns) << ns.error().message();
  const auto blocks = blocks_of_compressed_pool();
  for (const bool recompressed : {false, true}) {
    for (size_t i = 0; i < blocks.size(); ++i) {
      std::vector<std::byte> value(blocks[i].bytes);
      const Span to[] = {{value.data(), value.size()}};
      ASSERT_TRUE(pool->get(*ns, blocks[i].key, to)) << blocks[i].key;
      EXPECT_EQ(value, value_of(blocks[i], i)) << blocks[i].key;
      const auto prefix = pool->get_prefix(*ns, blocks[i].key, 4, to);
      ASSERT_TRUE(prefix) << blocks[i].key;
      EXPECT_EQ(prefix->length_bytes, blocks[i].bytes);
      EXPECT_EQ(prefix->read_bytes < blocks[i].bytes / 3, i < 2) << blocks[i].key;
      EXPECT_EQ(value == value_of(blocks[i], i), i >= 2) << blocks[i].key;
    }
    EXPECT_EQ(findings_of(*pool), "");
    if (!recompressed) {
      EXPECT_TRUE(pool->recompress(0));
    }
  }
}

TEST(Golden, CheckReportsBlocksWithoutAChecksum) {
  GoldenPool golden("v2-one-host");
  auto pool = golden.open();
  ASSERT_TRUE(pool);
  const auto report = pool->check(/*payload=*/true);
  ASSERT_TRUE(report);
  EXPECT_EQ(report->blocks_checked, golden.blocks().size());
  EXPECT_EQ(report->blocks_unverified, 1u);
}

TEST(Golden, RemovedBlocksStayAway) {
  GoldenPool golden("v2-one-host");
  auto pool = golden.open();
  ASSERT_TRUE(pool);
  EXPECT_EQ(pool->length(golden.namespace_of(0), "removed").status(), Status::NOT_FOUND);
}

TEST(Golden, IsUsedOnAndOpensAgain) {
  GoldenPool golden("v2-one-host");
  const std::vector<std::byte> value(5000, std::byte{7});
  for (int round = 0; round < 3; ++round) {
    auto pool = golden.open();
    ASSERT_TRUE(pool) << pool.error().message();
    const auto ns = pool->open_namespace(kNamespaces[0]);
    ASSERT_TRUE(ns);
    EXPECT_EQ(*ns, golden.namespace_of(0));
    const ConstSpan from[] = {{value.data(), value.size()}};
    EXPECT_EQ(pool->put(*ns, fmt::format("new {}", round), from), Status::OK);
    EXPECT_EQ(*pool->length(*ns, "new 0"), value.size());
    EXPECT_EQ(golden.lost_in(*pool), std::set<size_t>{});
    EXPECT_EQ(findings_of(*pool), "");
  }
}

TEST(Golden, TwoHostsReadEachOther) {
  GoldenPool golden("v2-two-hosts");
  for (const uint32_t host : {0u, 1u}) {
    auto pool = golden.open(host);
    ASSERT_TRUE(pool) << pool.error().message();
    EXPECT_EQ(golden.lost_in(*pool), std::set<size_t>{}) << "seen from host " << host;
    EXPECT_EQ(findings_of(*pool), "") << "seen from host " << host;
    EXPECT_EQ(pool->info()->hosts.size(), 2u);
  }
}

TEST(Golden, RepairOfAWholePoolLosesNothing) {
  GoldenPool golden("v2-one-host");
  const auto done = Pool::repair(golden.locator());
  ASSERT_TRUE(done) << done.error().message();
  ASSERT_EQ(done->size(), 1u);
  EXPECT_NE(done->front().find("rebuilt"), std::string::npos);
  auto pool = golden.open();
  ASSERT_TRUE(pool);
  EXPECT_EQ(golden.lost_in(*pool), std::set<size_t>{});
  EXPECT_EQ(findings_of(*pool), "");
}

}  // namespace
}  // namespace bowhead::golden
