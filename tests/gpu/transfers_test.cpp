// SPDX-License-Identifier: Apache-2.0
// Blocks go from an engine's pages to the pool and are restored into other pages unchanged, by
// either path and any layout; errors are statuses, with pages and pool intact.
#include "gpu/jobs/transfers.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstring>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "base/checksum.h"
#include "base/random.h"
#include "tests/gpu/transfers_fixture.h"

namespace bowhead::gpu {
namespace {

INSTANTIATE_TEST_SUITE_P(Devices, TransfersTest, kEveryDevice, device_name);

TEST_P(TransfersTest, RestoreTheSpilledBytes) {
  int run_number = 0;
  for (const Layout layout :
       {Layout::NHD, Layout::HND, Layout::JOINED, Layout::ACROSS_LAYERS, Layout::LATENT}) {
    for (const RowOrder order : {RowOrder::HEADS_FIRST, RowOrder::TOKENS_FIRST}) {
      for (const Path path : {Path::KERNEL, Path::COPIES}) {
        SCOPED_TRACE(run_number);
        EngineCache engine(device(), layout, {}, order);
        const auto before = engine.random_bytes(++run_number);
        engine.write(before);
        Transfers transfers = open(engine);
        const auto pages = shuffled(24, 1), others = shuffled(24, 2);
        auto blocks = blocks_in(pages, 5);
        for (auto& block : blocks) block.key += " of " + std::to_string(run_number);
        ASSERT_EQ(run(transfers, true, blocks, {.path = path}), kFine);
        for (const auto& block : blocks)
          ASSERT_EQ(pool_.get(block.key), engine.payload(before, block.range));

        engine.write(engine.random_bytes(1000));
        for (auto& block : blocks) block.range.pages = others;
        const Path other = path == Path::KERNEL ? Path::COPIES : Path::KERNEL;
        ASSERT_EQ(run(transfers, false, blocks, {.urgent = true, .path = other}), kFine);
        const auto after = engine.read();
        for (uint32_t i = 0; i < blocks.size(); ++i)
          ASSERT_EQ(engine.payload(after, blocks[i].range),
                    engine.payload(before, {pages, i * 40, 40}));
      }
    }
  }
  EXPECT_TRUE(pool_.check_clean());
}

/// Bytes in another order with status OK would be wrong bytes.
TEST_P(TransfersTest, RefuseAnotherLayoutThanTheStoredOne) {
  EngineCache engine(device(), Layout::NHD, {}, RowOrder::HEADS_FIRST);
  const auto before = engine.random_bytes(1);
  engine.write(before);
  const auto pages = shuffled(24, 1);
  const auto blocks = blocks_in(pages, 5);
  Transfers transfers = open(engine);
  ASSERT_EQ(run(transfers, true, blocks), kFine);
  const auto refused = [&](auto change, const std::string& says) {
    KvCache cache = engine.cache();
    change(cache.layout);
    auto other = Transfers::open(pool_.pool(), *registration_, device(), cache);
    ASSERT_DONE(other);
    for (const bool spills : {false, true}) {
      const auto job =
          spills ? other->spill(pool_.ns(), blocks, {}) : other->restore(pool_.ns(), blocks, {});
      EXPECT_EQ(message_of(job),
                "LAYOUT_MISMATCH: blocks of this namespace have another layout: " + says);
    }
  };
  refused([](KvLayout& l) { l.order = BH_ORDER_TOKENS_FIRST; },
          "order is heads first, not tokens first");
  refused([](KvLayout& l) { l.number_format = BH_NUMBER_FP16; }, "number_format is bf16, not fp16");
  refused([](KvLayout& l) { l.heads = 3; }, "heads is 4, not 3");
  refused([](KvLayout& l) { l.block_tokens = 16; }, "block_tokens is 0, not 16");
  EXPECT_TRUE(engine.read() == before);
  const NamespaceId opaque = *pool_.pool().open_namespace({"test", "bytes"});
  EXPECT_EQ(transfers.restore(opaque, blocks, {}).status(), Status::LAYOUT_MISMATCH);
  EXPECT_EQ(transfers.restore(12345, blocks, {}).status(), Status::INVALID_ARGUMENT);
}

/// Also for less than a piece, which no kernel sums.
TEST_P(TransfersTest, WriteNothingButTheirTokens) {
  EngineCache engine(device(), Layout::NHD, {}, RowOrder::HEADS_FIRST);
  const auto before = engine.random_bytes(1);
  Transfers transfers = open(engine);
  const auto pages = shuffled(24, 1);
  for (const uint32_t tokens : {1u, 5u, 33u}) {
    engine.write(before);
    const std::vector<BlockOfTokens> blocks = {{std::to_string(tokens), {pages, 24, tokens}}};
    ASSERT_EQ(run(transfers, true, blocks), std::vector{Status::OK});
    const auto changed = engine.random_bytes(2);
    engine.write(changed);
    ASSERT_EQ(run(transfers, false, blocks), std::vector{Status::OK});
    const auto after = engine.read();
    size_t others = 0;
    for (size_t i = 0; i < after.size(); ++i) others += after[i] != changed[i] ? 1 : 0;
    EXPECT_LE(others, engine.cache().payload_bytes(tokens));
    EXPECT_EQ(engine.payload(after, blocks[0].range), engine.payload(before, blocks[0].range));
  }
}

/// The kernel then has no sum to write.
TEST_P(TransfersTest, TakeBlocksShorterThanAPiece) {
  EngineCache engine(device(), Layout::NHD, {1, 1, 16, 2, 16}, RowOrder::HEADS_FIRST);
  const auto before = engine.random_bytes(1);
  engine.write(before);
  Transfers transfers = open(engine);
  const auto pages = shuffled(2, 1);
  const std::vector<BlockOfTokens> blocks = {{"short", {pages, 0, 20}}};
  ASSERT_EQ(run(transfers, true, blocks, {.path = Path::KERNEL}), std::vector{Status::OK});
  ASSERT_EQ(pool_.get("short"), engine.payload(before, blocks[0].range));
  engine.write(engine.random_bytes(2));
  ASSERT_EQ(run(transfers, false, blocks, {.path = Path::KERNEL}), std::vector{Status::OK});
  EXPECT_EQ(engine.payload(engine.read(), blocks[0].range),
            engine.payload(before, blocks[0].range));
}

/// Parts that are adjacent by chance: no copy may leave the one in which it begins.
TEST_P(TransfersTest, CopyNothingAcrossAllocations) {
  constexpr size_t kPartBytes = 4096;
  Mapping memory(2 * kPartBytes);
  std::vector<std::byte> bytes = test::bytes(2 * kPartBytes, 1);
  std::copy(bytes.begin(), bytes.end(), memory.data());
  KvCache cache;
  cache.layout = rows_layout(1, 2, 1, 64);
  cache.page_tokens = 16;
  cache.pages = 4;
  pool_.use_layout(cache.layout);
  for (std::byte* part : {memory.data(), memory.data() + kPartBytes}) {
    ASSERT_DONE(device().register_host(part, kPartBytes));
    cache.parts.push_back({reinterpret_cast<uint8_t*>(part), 1024, 64, 64});
  }
  {
    auto transfers = Transfers::open(pool_.pool(), *registration_, device(), cache);
    ASSERT_DONE(transfers);
    const std::vector<uint32_t> pages = {0, 1, 2, 3};
    const std::vector<BlockOfTokens> blocks = {{"b", {pages, 0, 64}}};
    EXPECT_EQ(run(*transfers, true, blocks, {.path = Path::COPIES}), std::vector{Status::OK});
    EXPECT_EQ(pool_.get("b"), bytes);
  }
  for (std::byte* part : {memory.data(), memory.data() + kPartBytes})
    EXPECT_DONE(device().unregister_host(part));
}

TEST(Runs, ContinueAcrossPartsThatShareTheirPages) {
  std::vector<uint8_t> memory(3 * 4 * 32);
  KvCache cache;
  cache.layout = rows_layout(2, 2, 1, 8);
  cache.page_tokens = 4;
  cache.pages = 3;
  for (size_t part = 0; part < 4; ++part) cache.parts.push_back({&memory[part * 32], 128, 8, 8});
  const std::vector<uint32_t> pages = {2};
  size_t runs = 0;
  for_runs(cache, {pages, 0, 4}, 0, 2, [&](uint64_t offset, uint8_t* address, uint64_t bytes) {
    EXPECT_EQ(offset, 0);
    EXPECT_EQ(address, &memory[256]);
    EXPECT_EQ(bytes, 128);
    ++runs;
  });
  EXPECT_EQ(runs, 1);
}

/// All runs together are the rows by the formula, in the payload's order, none longer than
/// necessary.
TEST(Runs, AreTheRowsOfThePayload) {
  Random random(1);
  for (int round = 0; round < 500; ++round) {
    const auto below = [&](uint64_t bound) { return static_cast<uint32_t>(random.below(bound)); };
    KvLayout layout =
        rows_layout(static_cast<uint16_t>(1 + below(3)), static_cast<uint8_t>(1 + below(2)),
                    static_cast<uint16_t>(1 + below(4)), 8);
    if (below(2) != 0) layout.order = BH_ORDER_TOKENS_FIRST;
    KvCache cache;
    cache.layout = layout;
    cache.page_tokens = 1 + below(9);
    cache.pages = 8;
    const bool tokens_outside = below(2) != 0;
    const size_t gaps[3] = {8 * below(2), 8 * below(2), 8 * below(2)};
    const size_t inner = 8 + gaps[0];
    const size_t outer = inner * (tokens_outside ? layout.heads : cache.page_tokens) + gaps[1];
    const size_t page = outer * (tokens_outside ? cache.page_tokens : layout.heads) + gaps[2];
    auto* const base = reinterpret_cast<uint8_t*>(uintptr_t{1} << 40);  // not read
    for (size_t part = 0; part < size_t{layout.layers} * layout.parts; ++part)
      cache.parts.push_back({base + part * page * 8, page, tokens_outside ? outer : inner,
                             tokens_outside ? inner : outer});
    std::vector<uint32_t> pages(8);
    for (uint32_t& one : pages) one = below(8);
    const uint32_t first = below(cache.page_tokens * 4);
    const PagedTokens range = {pages, first, 1 + below(cache.page_tokens * 4)};
    std::vector<const uint8_t*> rows, expected;
    const uint32_t layer = below(layout.layers);
    uint64_t next = cache.part_bytes(range.tokens) * layout.parts * layer;
    for_runs(cache, range, layer, 1, [&](uint64_t offset, const uint8_t* address, uint64_t bytes) {
      EXPECT_EQ(offset, next);
      EXPECT_TRUE(rows.empty() || address != rows.back() + 8 || bytes == 0 ||
                  rows.size() == size_t{range.tokens} * layout.heads);
      for (uint64_t at = 0; at < bytes; at += 8) rows.push_back(address + at);
      next += bytes;
    });
    for (uint32_t p = layer * layout.parts; p < (layer + 1) * layout.parts; ++p) {
      for (uint32_t i = 0; i < range.tokens * layout.heads; ++i) {
        const bool heads_first = row_order(layout) == RowOrder::HEADS_FIRST;
        const uint32_t head = heads_first ? i / range.tokens : i % layout.heads;
        const uint32_t token = first + (heads_first ? i % range.tokens : i / layout.heads);
        const PagedPart& part = cache.parts[p];
        expected.push_back(part.base + pages[token / cache.page_tokens] * part.page_stride_bytes +
                           token % cache.page_tokens * part.token_stride_bytes +
                           head * part.head_stride_bytes);
      }
    }
    ASSERT_EQ(rows, expected) << "round " << round;
  }
}

TEST_P(TransfersTest, CountStoredBlocksAsDone) {
  EngineCache engine(device(), Layout::HND, {}, RowOrder::HEADS_FIRST);
  engine.write(engine.random_bytes(1));
  Transfers transfers = open(engine);
  const auto pages = shuffled(24, 1);
  ASSERT_EQ(run(transfers, true, blocks_in(pages, 3)), std::vector(3, Status::OK));
  const auto kept = pool_.get("block 1");
  engine.write(engine.random_bytes(2));
  ASSERT_EQ(run(transfers, true, blocks_in(pages, 5)), kFine);
  EXPECT_EQ(pool_.get("block 1"), kept);
  EXPECT_EQ(pool_.info().blocks, 5);
}

TEST_P(TransfersTest, ReportBlocksThatFail) {
  EngineCache engine(device(), Layout::HND, {}, RowOrder::HEADS_FIRST);
  engine.write(engine.random_bytes(1));
  Transfers transfers = open(engine);
  const auto pages = shuffled(24, 1);
  auto blocks = blocks_in(pages, 5);
  ASSERT_EQ(run(transfers, true, blocks), kFine);
  ASSERT_EQ(pool_.pool().remove(pool_.ns(), "block 0"), Status::OK);
  blocks[1].range.tokens = 20;
  blocks[2].range.tokens = 48;
  auto lease = pool_.pool().acquire(pool_.ns(), "block 3", 1000).value();
  const_cast<std::byte&>(lease.data[100]) ^= std::byte{1};
  ASSERT_EQ(pool_.pool().release(lease), Status::OK);
  // Copies first: the sums left by the kernel are those of whole blocks.
  for (const Path path : {Path::COPIES, Path::KERNEL})
    EXPECT_EQ(run(transfers, false, blocks, {.path = path}),
              (std::vector{Status::NOT_FOUND, Status::BUFFER_TOO_SMALL, Status::INVALID_ARGUMENT,
                           Status::DAMAGED, Status::OK}));
  EXPECT_EQ(pool_.info().hosts[0].leases_active, 0);
}

/// Frames are decoded on the way, together with plain blocks.
TEST_P(TransfersTest, DecodeCompressedBlocks) {
  EngineCache engine(device(), Layout::NHD, {}, RowOrder::HEADS_FIRST);
  auto before = engine.random_bytes(1);
  for (size_t i = 1; i < before.size(); i += 2) before[i] = 0x3F;  // 0.5 to 2, as bf16
  engine.write(before);
  Transfers transfers = open(engine);
  const auto pages = shuffled(24, 1);
  // Rows of 64 bytes are 32 numbers.
  const auto coded =
      pool_.pool().open_namespace({"coded", "", {engine.cache().layout, CompressionProfile::FAST}});
  ASSERT_DONE(coded);
  const auto blocks = blocks_in(pages, 3);
  const auto noise = test::bytes(engine.cache().payload_bytes(40), 3);
  for (size_t i = 0; i < blocks.size(); ++i) {
    const auto value = i == 1 ? noise : engine.payload(before, blocks[i].range);
    const ConstSpan in{value.data(), value.size()};
    ASSERT_EQ(pool_.pool().put(*coded, blocks[i].key, {&in, 1}), Status::OK);
    auto lease = pool_.pool().acquire(*coded, blocks[i].key, 1000);
    ASSERT_EQ(lease.status(), i == 1 ? Status::OK : Status::CODED);
    if (lease) {
      ASSERT_EQ(pool_.pool().release(*lease), Status::OK);
    }
  }
  for (const Path path : {Path::KERNEL, Path::COPIES}) {
    for (const uint32_t layers : {0u, 1u}) {
      engine.write(engine.random_bytes(2));
      auto job = transfers.restore(*coded, blocks, {.path = path, .layers_at_once = layers});
      ASSERT_DONE(job);
      transfers.wait(**job);
      const auto results = transfers.results(**job);
      EXPECT_EQ(std::vector(results.begin(), results.end()), std::vector(3, Status::OK));
      const auto staging = transfers.staging(**job);
      EXPECT_EQ(std::vector(staging.begin(), staging.end()),
                (std::vector{Staging::COMPRESSED, Staging::NONE, Staging::COMPRESSED}));
      const auto after = engine.read();
      for (size_t i = 0; i < blocks.size(); ++i)
        EXPECT_EQ(engine.payload(after, blocks[i].range),
                  i == 1 ? noise : engine.payload(before, blocks[i].range));
    }
  }
  // A length that does not match the pages: neither block is written.
  const std::vector<BlockOfTokens> wrong = {{"block 0", {pages, 0, 39}},
                                            {"block 0", {pages, 0, 41}}};
  auto job = transfers.restore(*coded, wrong, {});
  ASSERT_DONE(job);
  transfers.wait(**job);
  EXPECT_EQ(transfers.results(**job)[0], Status::BUFFER_TOO_SMALL);
  EXPECT_EQ(transfers.results(**job)[1], Status::INVALID_ARGUMENT);
}

/// What lies on the media on which a pool was made goes straight, what came later through pinned
/// memory.
TEST_P(TransfersTest, ReachBlocksOfAPoolThatHasGrown) {
  constexpr uint64_t kMiB = 1 << 20;
  CreateOptions options;
  options.max_bytes = 512 * kMiB;
  options.evict_high_permille = 0;
  test::TestPool grown(64 * kMiB, options);
  const std::string further = grown.locator() + "-further";
  auto registered = Registration::create(device(), grown.pool(), 4 << 20);
  ASSERT_DONE(registered);
  Registration& registration = **registered;
  ASSERT_DONE(registration.register_rest());
  while (registration.registered_bytes() < registration.size_bytes()) usleep(1000);

  EngineCache engine(device(), Layout::NHD, {}, RowOrder::HEADS_FIRST);
  const auto before = engine.random_bytes(1);
  engine.write(before);
  grown.use_layout(engine.cache().layout);
  auto opened = Transfers::open(grown.pool(), registration, device(), engine.cache());
  ASSERT_DONE(opened);
  const auto pages = shuffled(24, 1);
  auto first = blocks_in(pages, 5), later = first;
  for (auto& block : later) block.key += ", later";
  const auto move = [&](bool spills, const std::vector<BlockOfTokens>& blocks, Path path) {
    auto job = spills ? opened->spill(grown.ns(), blocks, {.path = path})
                      : opened->restore(grown.ns(), blocks, {.path = path});
    ASSERT_DONE(job);
    opened->wait(**job);
    for (const Status status : opened->results(**job)) ASSERT_EQ(status, Status::OK);
  };
  move(true, first, Path::KERNEL);
  EXPECT_EQ(opened->info().blocks, (std::array<uint64_t, kStagings>{5, 0, 0, 0, 0}));
  const auto filler = test::bytes(engine.cache().payload_bytes(40), 1);
  for (uint64_t n = 0; grown.put("filler " + std::to_string(n), filler) == Status::OK;) ++n;
  ASSERT_DONE(grown.pool().grow(further, {.size_bytes = 64 * kMiB}));
  move(true, later, Path::KERNEL);
  EXPECT_EQ(opened->info().blocks, (std::array<uint64_t, kStagings>{5, 0, 5, 0, 0}));
  EXPECT_NE(opened->info().refusal.find("has grown"), std::string::npos) << opened->info().refusal;
  for (const auto* blocks : {&first, &later}) {
    for (const Path path : {Path::KERNEL, Path::COPIES}) {
      engine.write(engine.random_bytes(2));
      move(false, *blocks, path);
      const auto after = engine.read();
      for (const BlockOfTokens& block : *blocks)
        ASSERT_EQ(engine.payload(after, block.range), engine.payload(before, block.range));
    }
  }
  EXPECT_TRUE(grown.check_clean());
}

/// If the table of leases is full, blocks are copied.
TEST_P(TransfersTest, RestoreWithoutALease) {
  EngineCache engine(device(), Layout::NHD, {}, RowOrder::HEADS_FIRST);
  const auto before = engine.random_bytes(1);
  engine.write(before);
  Transfers transfers = open(engine);
  const auto pages = shuffled(24, 1);
  const auto blocks = blocks_in(pages, 1);
  ASSERT_EQ(run(transfers, true, blocks), std::vector{Status::OK});
  std::vector<Lease> leases;
  for (;;) {
    auto lease = pool_.pool().acquire(pool_.ns(), "block 0", 600'000);
    if (!lease) {
      ASSERT_EQ(lease.status(), Status::LIMIT_REACHED);
      break;
    }
    leases.push_back(*lease);
  }
  engine.write(engine.random_bytes(2));
  ASSERT_EQ(run(transfers, false, blocks), std::vector{Status::OK});
  EXPECT_EQ(engine.payload(engine.read(), blocks[0].range),
            engine.payload(before, blocks[0].range));
  EXPECT_EQ(transfers.info().blocks, (std::array<uint64_t, kStagings>{1, 0, 0, 1, 0}));
  for (Lease& lease : leases) EXPECT_EQ(pool_.pool().release(lease), Status::OK);
}

TEST_P(TransfersTest, RefuseInvalidArgumentsAndNameThem) {
  EngineCache engine(device(), Layout::NHD, {}, RowOrder::HEADS_FIRST);
  Transfers transfers = open(engine);
  const auto pages = shuffled(24, 1);
  const std::vector<uint32_t> beyond = {3, 24};
  const struct {
    PagedTokens range;
    const char* says;
  } wrongs[] = {
      {{pages, 0, 0}, "no tokens"},
      {{pages, 380, 5}, "take 25 entries of the block table, which has 24"},
      {{beyond, 0, 17}, "entry 1 of the block table is page 24, while the cache has 24"},
      {{pages, 0xFFFFFFFF, 2}, "entries of the block table"},
  };
  for (const auto& wrong : wrongs) {
    const std::vector<BlockOfTokens> blocks = {{"fine", {pages, 0, 40}}, {"wrong", wrong.range}};
    for (const bool spills : {true, false}) {
      const auto job = spills ? transfers.spill(pool_.ns(), blocks, {})
                              : transfers.restore(pool_.ns(), blocks, {});
      ASSERT_EQ(job.status(), Status::INVALID_ARGUMENT) << wrong.says;
      EXPECT_NE(job.error().message().find("block 1"), std::string::npos) << job.error().message();
      EXPECT_NE(job.error().message().find(wrong.says), std::string::npos) << job.error().message();
    }
  }
  EXPECT_EQ(pool_.info().blocks, 0);
  // Addresses outside the cache are refused.
  const auto refused = [&](auto change, const char* says) {
    KvCache cache = engine.cache();
    change(cache);
    const auto opened = Transfers::open(pool_.pool(), *registration_, device(), cache);
    EXPECT_EQ(opened.status(), Status::INVALID_ARGUMENT) << says;
    EXPECT_NE(message_of(opened).find(says), std::string::npos) << message_of(opened);
  };
  uint8_t on_host[64];
  refused([&](KvCache& c) { c.parts[1].base = on_host; },
          "part 1 of layer 0: the first byte is in host memory");
  refused([](KvCache& c) { c.pages = 1000; }, "part 0 of layer 0: the last byte is in host memory");
  refused([](KvCache& c) { c.parts[2].base = nullptr; }, "part 0 of layer 1: a null pointer");
  refused([](KvCache& c) { c.parts.pop_back(); }, "5 addresses of parts, while 3 layers have 6");
  refused([](KvCache& c) { c.pages = 0; }, "neither may be 0");
  refused([](KvCache& c) { c.layout.heads = 0; }, "none of them may be 0");
  refused([](KvCache& c) { c.layout.parts = 3; }, "parts is 3");
  refused([](KvCache& c) { c.parts[3].token_stride_bytes = 32; }, "tokens overlap");
  refused([](KvCache& c) { c.parts[3].page_stride_bytes -= 1; }, "pages overlap");
  refused([](KvCache& c) { c.parts[3].page_stride_bytes = SIZE_MAX / 23 + 1; },
          "pass the end of any memory");
}

}  // namespace
}  // namespace bowhead::gpu
