// SPDX-License-Identifier: Apache-2.0
// Tokens appended to sequences are stored in the pool as whole blocks, each once and bit for bit.
#include "gpu/jobs/decode_store.h"

#include <gtest/gtest.h>

#include <chrono>
#include <map>
#include <thread>

#include "base/random.h"
#include "tests/gpu/devices.h"
#include "tests/gpu/engine_cache.h"
#include "tests/support/pools.h"

namespace bowhead::gpu {
namespace {

using test::TestPool;

constexpr uint32_t kBlockTokens = 24;  // pages have 16: blocks begin in the middle of one
constexpr uint32_t kPages = 96;

std::string key_of(uint64_t sequence, uint32_t block) {
  return std::to_string(sequence) + "/" + std::to_string(block);
}
std::vector<std::string> keys_of(uint64_t sequence, uint32_t first, uint32_t last) {
  std::vector<std::string> keys;
  for (uint32_t block = first; block < last; ++block) keys.push_back(key_of(sequence, block));
  return keys;
}

class DecodeStoreTest : public EveryDevice {
 protected:
  void SetUp() override {
    EveryDevice::SetUp();
    if (IsSkipped()) return;
    registration_ = std::move(Registration::create(device(), pool_.pool(), 4 << 20).value());
    // Otherwise jobs would register what they touch when they start, and be held there.
    ASSERT_DONE(registration_->ensure(0, registration_->size_bytes()));
    engine_ = std::make_unique<EngineCache>(device(), Layout::NHD, Sizes{.pages = kPages},
                                            RowOrder::HEADS_FIRST);
    bytes_ = engine_->random_bytes(1);
    engine_->write(bytes_);
    pool_.use_layout(engine_->cache().layout);
    auto opened = Transfers::open(pool_.pool(), *registration_, device(), engine_->cache());
    ASSERT_DONE(opened);
    transfers_ = std::make_unique<Transfers>(std::move(*opened));
    block_bytes_ = engine_->cache().payload_bytes(kBlockTokens);
  }
  void TearDown() override {
    transfers_.reset();
    engine_.reset();
    registration_.reset();
  }

  DecodeStore open(uint64_t most_blocks = 1000) {
    auto opened =
        DecodeStore::open(*transfers_, pool_.ns(), {kBlockTokens, most_blocks * block_bytes_});
    EXPECT_DONE(opened);
    return std::move(*opened);
  }
  /// Polls until this many are done.
  static std::vector<StoredBlock> poll(DecodeStore& store, size_t count) {
    std::vector<StoredBlock> all;
    for (int i = 0; i < 5000 && all.size() < count; ++i) {
      for (StoredBlock& block : store.poll()) all.push_back(std::move(block));
      if (all.size() < count) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    EXPECT_EQ(all.size(), count);
    return all;
  }
  bool goes_by_kernel(size_t blocks) const {
    const KvCache& cache = engine_->cache();
    return transfers_->path_costs().faster(/*spills=*/true, cache.unit_bytes(),
                                           run_bytes(cache, kBlockTokens),
                                           blocks * block_bytes_) == Path::KERNEL;
  }
  void expect_stored(uint64_t sequence, const std::vector<uint32_t>& pages, uint32_t block) {
    EXPECT_TRUE(pool_.get(key_of(sequence, block)) ==
                engine_->payload(bytes_, {pages, block * kBlockTokens, kBlockTokens}))
        << key_of(sequence, block);
  }

  TestPool pool_{32 << 20};
  std::unique_ptr<Registration> registration_;
  std::unique_ptr<EngineCache> engine_;
  std::vector<uint8_t> bytes_;
  std::unique_ptr<Transfers> transfers_;
  uint64_t block_bytes_ = 0;
};
INSTANTIATE_TEST_SUITE_P(Devices, DecodeStoreTest, kEveryDevice, device_name);

/// Appends tokens step by step; the first tokens of some sequences are already stored.
TEST_P(DecodeStoreTest, StoresTheFullBlocksOfManySequences) {
  Random random(1);
  DecodeStore store = open();
  struct Sequence {
    uint32_t tokens, stored_blocks;
    std::vector<uint32_t> pages;
  };
  std::vector<Sequence> sequences;
  std::vector<uint32_t> free_pages;
  for (uint32_t page = 0; page < kPages; ++page)
    free_pages.insert(free_pages.begin() + static_cast<long>(random.below(page + 1)), page);
  for (uint64_t s = 0; s < 6; ++s) {
    const auto stored = static_cast<uint32_t>(random.below(2) * random.below(100));
    ASSERT_DONE(store.begin(s, stored));
    sequences.push_back({stored, stored / kBlockTokens, {}});
  }
  std::map<std::string, StoredBlock> done;
  for (int step = 0; step < 40; ++step) {
    size_t full = 0;
    for (uint64_t s = 0; s < sequences.size(); ++s) {
      Sequence& of = sequences[s];
      const uint32_t before = of.tokens;
      of.tokens = std::min<uint32_t>(of.tokens + static_cast<uint32_t>(random.below(14)), 250);
      while (of.pages.size() * 16 < of.tokens) {
        of.pages.push_back(free_pages.back());
        free_pages.pop_back();
      }
      const auto keys = keys_of(s, before / kBlockTokens, of.tokens / kBlockTokens);
      full += keys.size();
      ASSERT_DONE(store.append(s, of.tokens, of.pages, keys));
    }
    EXPECT_EQ(store.blocks_waiting(), full);
    const size_t before = gate_->count();
    ASSERT_DONE(store.start(std::nullopt));
    EXPECT_EQ(store.blocks_waiting(), 0);
    for (StoredBlock& block : poll(store, full)) {
      EXPECT_EQ(block.status, Status::OK);
      EXPECT_EQ(block.key, key_of(block.sequence, block.block));
      const std::string key = block.key;
      EXPECT_TRUE(done.emplace(key, std::move(block)).second) << key << " is done twice";
    }
    // One job for all of them: the kernel, preceded by its descriptor unless that is small. The
    // costs of copies and kernels are measured: on a busy machine copies may win once.
    if (device().info().is_cpu && goes_by_kernel(full)) {
      EXPECT_EQ(gate_->count() - before,
                full == 0 ? 0 : (full <= MoveFewPieces::kMostBlocks ? 1 : 2));
    }
    EXPECT_EQ(store.bytes_under_way(), 0);
  }
  size_t blocks = 0;
  for (uint64_t s = 0; s < sequences.size(); ++s) {
    const Sequence& of = sequences[s];
    for (uint32_t b = of.stored_blocks; b < of.tokens / kBlockTokens; ++b, ++blocks)
      expect_stored(s, of.pages, b);
    EXPECT_DONE(store.end(s));
  }
  EXPECT_EQ(done.size(), blocks);
  EXPECT_EQ(pool_.info().blocks, blocks);
  EXPECT_GT(blocks, 30);
  EXPECT_TRUE(pool_.check_clean());
}

TEST_P(DecodeStoreTest, CountsStoredBlocksAsDone) {
  DecodeStore store = open();
  const std::vector<uint32_t> pages = {5, 6, 7};
  const auto keys = keys_of(0, 0, 2);
  for (const uint64_t sequence : {0u, 1u}) {
    ASSERT_DONE(store.begin(sequence));
    ASSERT_DONE(store.append(sequence, 48, pages, keys));
    ASSERT_DONE(store.start(std::nullopt));
    for (const StoredBlock& block : poll(store, 2)) EXPECT_EQ(block.status, Status::OK);
  }
  EXPECT_EQ(pool_.info().blocks, 2);
  expect_stored(0, pages, 1);
}

TEST_P(DecodeStoreTest, RefusesInvalidArguments) {
  const auto refused = [](const auto& result, const char* says) {
    EXPECT_EQ(result.status(), Status::INVALID_ARGUMENT) << says;
    EXPECT_NE(message_of(result).find(says), std::string::npos) << message_of(result);
  };
  refused(DecodeStore::open(*transfers_, pool_.ns(), {}), "blocks of 0 tokens");
  refused(DecodeStore::open(*transfers_, pool_.ns(), {1u << 31}), "blocks of 2147483648 tokens");
  DecodeStore store = open();
  const std::vector<uint32_t> pages = {0, 1, kPages};
  const auto two = keys_of(7, 0, 2), one = keys_of(7, 0, 1);
  refused(store.append(7, 1, pages, {}), "sequence 7: it has not begun");
  refused(store.end(7), "sequence 7: it has not begun");
  refused(store.cancel(7), "sequence 7: it has not begun");
  ASSERT_DONE(store.begin(7));
  refused(store.begin(7), "sequence 7: it has begun already");
  refused(store.append(7, 24, pages, two), "sequence 7: 2 keys, while 1 blocks became full");
  refused(store.append(7, 24, pages, {}), "sequence 7: 0 keys, while 1 blocks became full");
  refused(store.append(7, 24, {pages.data(), 1}, one),
          "sequence 7, block 0: tokens 0 to 23 take 2");
  refused(store.append(7, 48, pages, two), "sequence 7, block 1: entry 2 of the block table");
  EXPECT_EQ(store.blocks_waiting(), 0);
  ASSERT_DONE(store.append(7, 24, pages, one));
  refused(store.append(7, 23, pages, {}), "sequence 7: 23 tokens, after it had 24");
  EXPECT_EQ(store.blocks_waiting(), 1);
}

TEST_P(DecodeStoreTest, ReportsABlockThatFails) {
  DecodeStore store = open();
  const std::vector<uint32_t> pages = {5, 6, 7};
  auto keys = keys_of(0, 0, 2);
  keys[0] = std::string(5000, 'k');
  ASSERT_DONE(store.begin(0));
  ASSERT_DONE(store.append(0, 48, pages, keys));
  ASSERT_DONE(store.start(std::nullopt));
  const auto done = poll(store, 2);
  EXPECT_EQ(done[0].status, Status::KEY_TOO_LONG);
  EXPECT_EQ(done[1].status, Status::OK);
  expect_stored(0, pages, 1);
}

// ---- order, and work that ends early: the CPU device can be held ----

class GatedDecodeStore : public DecodeStoreTest {};
INSTANTIATE_TEST_SUITE_P(Devices, GatedDecodeStore, testing::Values("cpu"), device_name);

TEST_P(GatedDecodeStore, DelaysBlocksBeyondTheLimit) {
  DecodeStore store = open(2);
  const std::vector<uint32_t> pages = {1, 2, 3, 4, 5, 6, 7, 8};
  ASSERT_DONE(store.begin(0));
  ASSERT_DONE(store.append(0, 5 * kBlockTokens, pages, keys_of(0, 0, 5)));
  uint32_t next = 0;
  for (const size_t now : {2u, 2u, 1u}) {
    gate_->hold_next(1);
    ASSERT_DONE(store.start(std::nullopt));
    EXPECT_EQ(store.bytes_under_way(), now * block_bytes_);
    const size_t waiting = store.blocks_waiting();
    ASSERT_DONE(store.start(std::nullopt));
    EXPECT_EQ(store.blocks_waiting(), now == 1 ? 0 : waiting);
    EXPECT_TRUE(store.poll().empty());
    gate_->let_go();
    for (const StoredBlock& block : poll(store, now)) {
      EXPECT_EQ(block.block, next);
      expect_stored(0, pages, next++);
    }
  }
  // A block that exceeds the limit of bytes in flight goes alone.
  DecodeStore narrow = open(0);
  ASSERT_DONE(narrow.begin(1));
  ASSERT_DONE(narrow.append(1, 2 * kBlockTokens, pages, keys_of(1, 0, 2)));
  ASSERT_DONE(narrow.start(std::nullopt));
  EXPECT_EQ(narrow.blocks_waiting(), 1);
  EXPECT_EQ(poll(narrow, 1)[0].status, Status::OK);
}

TEST_P(GatedDecodeStore, EndsAndCancelsSequences) {
  DecodeStore store = open(1);
  const std::vector<uint32_t> pages = {1, 2, 3, 4, 5, 6, 7, 8};
  for (const uint64_t sequence : {0u, 1u}) {
    ASSERT_DONE(store.begin(sequence));
    ASSERT_DONE(store.append(sequence, 2 * kBlockTokens + 5, pages, keys_of(sequence, 0, 2)));
  }
  gate_->hold_next(1);
  ASSERT_DONE(store.start(std::nullopt));  // block 0 of sequence 0
  ASSERT_DONE(store.cancel(0));
  ASSERT_DONE(store.end(1));
  EXPECT_EQ(store.append(1, 100, pages, {}).status(), Status::INVALID_ARGUMENT);
  auto done = store.poll();
  ASSERT_EQ(done.size(), 1);
  EXPECT_EQ(done[0].key, key_of(0, 1));
  EXPECT_EQ(done[0].status, Status::CANCELLED);
  // The number is free when all its blocks are done: otherwise a block's sequence would be
  // ambiguous.
  EXPECT_NE(message_of(store.begin(0)).find("1 blocks of the one before"), std::string::npos);
  EXPECT_NE(message_of(store.begin(1)).find("2 blocks of the one before"), std::string::npos);
  gate_->let_go();
  EXPECT_EQ(poll(store, 1)[0].status, Status::OK);
  EXPECT_DONE(store.begin(0));
  for (const uint32_t block : {0u, 1u}) {
    ASSERT_DONE(store.start(std::nullopt));
    EXPECT_EQ(poll(store, 1)[0].key, key_of(1, block));
    expect_stored(1, pages, block);
  }
  EXPECT_DONE(store.begin(1));
  EXPECT_EQ(pool_.info().blocks, 3);
  EXPECT_TRUE(pool_.check_clean());
}

TEST_P(GatedDecodeStore, FollowsTheEnginesQueuedWork) {
  DecodeStore store = open();
  const std::vector<uint32_t> pages = {1, 2};
  const Stream compute = device().make_stream(0).value();
  bytes_ = engine_->random_bytes(2);
  gate_->hold_next(1);
  ASSERT_DONE(device().copy(engine_->cache().parts[0].base, bytes_.data(), bytes_.size(), compute));
  ASSERT_DONE(store.begin(0));
  ASSERT_DONE(store.append(0, kBlockTokens, pages, keys_of(0, 0, 1)));
  ASSERT_DONE(store.start(compute));
  gate_->let_go();
  EXPECT_EQ(poll(store, 1)[0].status, Status::OK);
  expect_stored(0, pages, 0);
  device().destroy_stream(compute);
}

TEST_P(GatedDecodeStore, StoresBlocksInFlightWhenItEnds) {
  const std::vector<uint32_t> pages = {1, 2, 3, 4};
  std::thread opener;
  {
    DecodeStore store = open(1);
    ASSERT_DONE(store.begin(0));
    ASSERT_DONE(store.append(0, 2 * kBlockTokens, pages, keys_of(0, 0, 2)));
    gate_->hold_next(1);
    ASSERT_DONE(store.start(std::nullopt));
    opener = std::thread([&] {
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
      gate_->let_go();
    });
  }
  opener.join();
  EXPECT_EQ(pool_.info().blocks, 1);
  expect_stored(0, pages, 0);
}

TEST_P(GatedDecodeStore, LosesTheGpuAndNothingElse) {
  DecodeStore store = open(1);
  const std::vector<uint32_t> pages = {1, 2, 3, 4};
  ASSERT_DONE(store.begin(0));
  ASSERT_DONE(store.append(0, 2 * kBlockTokens, pages, keys_of(0, 0, 2)));
  const size_t held = gate_->hold_next(1);
  ASSERT_DONE(store.start(std::nullopt));
  gate_->lose_from(held);
  gate_->let_go();
  EXPECT_EQ(poll(store, 1)[0].status, Status::GPU_LOST);
  EXPECT_EQ(store.start(std::nullopt).status(), Status::GPU_LOST);
  EXPECT_EQ(store.blocks_waiting(), 1);
  EXPECT_EQ(pool_.info().blocks, 0);
  EXPECT_TRUE(pool_.check_clean());
}

}  // namespace
}  // namespace bowhead::gpu
