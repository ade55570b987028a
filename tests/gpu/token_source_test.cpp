// SPDX-License-Identifier: Apache-2.0
// Chosen tokens come from the pool by lists on the device, step after step; errors are statuses,
// and absent tokens are zeros.
#include "gpu/jobs/token_source.h"

#include <gtest/gtest.h>

#include <chrono>
#include <cstring>
#include <numeric>
#include <thread>

#include "base/random.h"
#include "ndp/operations.h"
#include "tests/gpu/devices.h"
#include "tests/gpu/engine_cache.h"
#include "tests/support/pools.h"

namespace bowhead::gpu {
namespace {

using test::TestPool;

/// Device memory that the CPU sees only through copies.
class Area {
 public:
  Area(Device& device, size_t size_bytes) : device_(device), size_bytes_(size_bytes) {
    memory_ = static_cast<uint8_t*>(device.allocate(size_bytes).value());
  }
  Area(Device& device, const void* bytes, size_t size_bytes) : Area(device, size_bytes) {
    copy(memory_, bytes);
  }
  Area(const Area&) = delete;
  Area& operator=(const Area&) = delete;
  ~Area() { device_.free(memory_); }

  uint8_t* data() const { return memory_; }
  std::vector<uint8_t> read() const {
    std::vector<uint8_t> bytes(size_bytes_);
    copy(bytes.data(), memory_);
    return bytes;
  }
  void fill(uint8_t byte) {
    const std::vector<uint8_t> bytes(size_bytes_, byte);
    copy(memory_, bytes.data());
  }

 private:
  void copy(void* to, const void* from) const {
    const Stream stream = device_.make_stream(0).value();
    EXPECT_DONE(device_.copy(to, from, size_bytes_, stream));
    device_.destroy_stream(stream);
  }

  Device& device_;
  size_t size_bytes_;
  uint8_t* memory_ = nullptr;
};

constexpr uint8_t kUntouched = 0xA5;

/// A sequence of 3 layers and 4 heads in the pool, in blocks of 40 tokens.
class TokenSourceTest : public EveryDevice {
 protected:
  static constexpr uint32_t kBlockTokens = 40, kTokens = 5 * kBlockTokens - 13;

  void SetUp() override {
    EveryDevice::SetUp();
    if (IsSkipped()) return;
    registration_ = std::move(Registration::create(device(), pool_.pool(), 4 << 20).value());
    ASSERT_DONE(registration_->ensure(0, registration_->size_bytes()));
    stream_ = device().make_stream(0).value();
    store();
  }
  void TearDown() override {
    if (device_ && stream_ != nullptr) device().destroy_stream(stream_);
    registration_.reset();
  }

  static KvCache shape(RowOrder order = RowOrder::HEADS_FIRST) {
    KvCache cache;
    cache.layout = rows_layout(3, 2, 4, 64, order);
    return cache;
  }
  void store(RowOrder order = RowOrder::HEADS_FIRST) {
    pool_.use_layout(shape(order).layout);
    keys_.clear();
    payloads_.clear();
    for (uint32_t i = 0; i < 5; ++i) {
      keys_.push_back("block " + std::to_string(i));
      payloads_.push_back(test::bytes(shape().payload_bytes(tokens_of(i)), i));
      ASSERT_EQ(pool_.put(keys_[i], payloads_[i]), Status::OK);
    }
  }
  static uint32_t tokens_of(uint32_t block) {
    return std::min(kBlockTokens, kTokens - block * kBlockTokens);
  }
  SequenceBlocks blocks() const { return {pool_.ns(), keys_, kTokens, kBlockTokens}; }

  TokenSource open(const FetchTarget& target, uint64_t lease_ms = 30'000) {
    auto opened =
        TokenSource::open(pool_.pool(), *registration_, device(), blocks(), target, lease_ms);
    EXPECT_DONE(opened);
    return std::move(*opened);
  }
  Status run(TokenSource& source, const TokenLists& lists, uint32_t first_layer = 0,
             uint32_t some_layers = 3) {
    auto fetch = source.fetch(lists, first_layer, some_layers, stream_);
    EXPECT_DONE(fetch);
    if (!fetch) return fetch.status();
    source.wait(**fetch);
    EXPECT_TRUE(source.poll(**fetch));
    absent_ = source.absent(**fetch);
    return source.result(**fetch);
  }

  /// A row of the sequence as stored; zeros if no block has the token.
  std::vector<uint8_t> row(const KvCache& cache, uint32_t token, uint32_t layer, uint32_t part,
                           uint32_t head) const {
    std::vector<uint8_t> bytes(cache.row_bytes());
    if (token >= kTokens) return bytes;
    const uint32_t block = token / kBlockTokens, t = token % kBlockTokens;
    const size_t layer_part = layer * cache.layout.parts + part, tokens = tokens_of(block);
    const size_t number = row_order(cache.layout) == RowOrder::HEADS_FIRST
                              ? (layer_part * cache.layout.heads + head) * tokens + t
                              : (layer_part * tokens + t) * cache.layout.heads + head;
    std::memcpy(bytes.data(), &payloads_[block][number * cache.row_bytes()], cache.row_bytes());
    return bytes;
  }

  TestPool pool_{32 << 20};
  std::unique_ptr<Registration> registration_;
  Stream stream_ = nullptr;
  std::vector<std::string> keys_;
  std::vector<std::vector<std::byte>> payloads_;
  uint32_t absent_ = 0;  ///< of the last run()
};
INSTANTIATE_TEST_SUITE_P(Devices, TokenSourceTest, kEveryDevice, device_name);

/// Lists of 24 tokens on the device: by layer and head, or fewer.
struct Lists {
  Lists(Device& device, uint64_t seed, bool by_head, bool by_layer, uint32_t most = 187)
      : words(12 * 24 * 2) {
    Random random(seed);
    for (uint32_t& word : words) word = static_cast<uint32_t>(random.below(most));
    descriptor.token_stride_bytes = 8;
    descriptor.list_stride_bytes = 24 * 8;
    descriptor.head_lists = by_head ? 1 : 0;
    descriptor.layer_lists = by_layer ? (by_head ? 4 : 1) : 0;
    descriptor.most_tokens = 24;
    put(device);
  }
  void put(Device& device) {
    area = std::make_unique<Area>(device, words.data(), words.size() * 4);
    descriptor.tokens = area->data();
  }
  uint32_t& token(uint32_t layer, uint32_t head, uint32_t i) {
    return words[((layer * descriptor.layer_lists + head * descriptor.head_lists) * 24 + i) * 2];
  }

  std::vector<uint32_t> words;
  TokenLists descriptor;
  std::unique_ptr<Area> area;
};

TEST_P(TokenSourceTest, BringsTheTokensOfListsToAnArea) {
  for (const RowOrder order : {RowOrder::HEADS_FIRST, RowOrder::TOKENS_FIRST}) {
    store(order);
    for (const int kind : {0, 1, 2, 3}) {
      SCOPED_TRACE(kind);
      Area area(device(), 3 * 2 * 4 * 24 * 64);
      const KvCache cache = dense_cache(shape(order), area.data(), 24);
      const std::vector<uint32_t> table = {0};
      TokenSource source = open({cache, table});
      Lists lists(device(), kind, kind % 2 == 1, kind / 2 == 1);
      area.fill(kUntouched);
      // The lists begin with the first layer that is fetched.
      const uint32_t first = kind == 3 ? 1 : 0;
      ASSERT_EQ(run(source, lists.descriptor, first, 2), Status::OK);
      EXPECT_EQ(absent_, 0);
      const auto got = area.read();
      std::vector<uint8_t> want(got.size(), kUntouched);
      auto* to = want.data() + size_t{first} * 2 * 4 * 24 * 64;
      for (uint32_t l = 0; l < 2; ++l) {
        for (uint32_t i = 0; i < 2 * 4 * 24; ++i, to += 64) {
          const uint32_t part = i / 96, head = i / 24 % 4;
          const auto bytes = row(cache, lists.token(l, head, i % 24), first + l, part, head);
          std::copy(bytes.begin(), bytes.end(), to);
        }
      }
      EXPECT_TRUE(got == want);
    }
  }
}

TEST_P(TokenSourceTest, BringsThemToPages) {
  // [layer][page of 16][part][token][head]; the table has pages 2 and 0.
  const size_t part = 16 * 4 * 64, layer = 3 * 2 * part;
  Area area(device(), 3 * layer);
  KvCache cache = shape();
  cache.page_tokens = 16;
  cache.pages = 3;
  for (size_t i = 0; i < 6; ++i)
    cache.parts.push_back({area.data() + i / 2 * layer + i % 2 * part, 2 * part, 256, 64});
  const std::vector<uint32_t> table = {2, 0};
  TokenSource source = open({cache, table});
  Lists lists(device(), 1, true, true);
  const std::vector<uint32_t> numbers = {24, 0, 1, 23, 5, 6, 7, 8, 9, 10, 11, 99};
  const Area counts(device(), numbers.data(), numbers.size() * 4);
  lists.descriptor.counts = reinterpret_cast<const uint32_t*>(counts.data());
  area.fill(kUntouched);
  ASSERT_EQ(run(source, lists.descriptor), Status::OK);
  const auto got = area.read();
  std::vector<uint8_t> want(got.size(), kUntouched);
  for (uint32_t l = 0; l < 3; ++l) {
    for (uint32_t head = 0; head < 4; ++head) {
      for (uint32_t i = 0; i < std::min(24u, numbers[l * 4 + head]); ++i) {
        for (uint32_t p = 0; p < 2; ++p) {
          const auto bytes = row(cache, lists.token(l, head, i), l, p, head);
          std::copy(bytes.begin(), bytes.end(),
                    &want[l * layer + (table[i / 16] * 2 + p) * part + i % 16 * 256 + head * 64]);
        }
      }
    }
  }
  EXPECT_TRUE(got == want);
}

/// With every width of loads, and lists that several warps share.
TEST_P(TokenSourceTest, BringsRowsOfAnyLength) {
  constexpr uint32_t kRows = 150;
  const std::vector<uint32_t> table = {0};
  Random random(1);
  std::vector<uint32_t> tokens(kRows);
  for (uint32_t& token : tokens) token = static_cast<uint32_t>(random.below(kBlockTokens));
  const Area lists(device(), tokens.data(), tokens.size() * 4);
  for (const uint16_t row_bytes : std::initializer_list<uint16_t>{1152, 64, 40, 36, 34, 33}) {
    KvCache of;
    of.layout = rows_layout(1, 2, 2, row_bytes);
    pool_.use_layout(of.layout);
    const std::vector<std::string> key = {"rows of " + std::to_string(row_bytes)};
    const auto payload = test::bytes(of.payload_bytes(kBlockTokens), row_bytes);
    ASSERT_EQ(pool_.put(key[0], payload), Status::OK);
    Area area(device(), size_t{4} * kRows * row_bytes);
    area.fill(kUntouched);
    auto source = TokenSource::open(pool_.pool(), *registration_, device(),
                                    {pool_.ns(), key, kBlockTokens, kBlockTokens},
                                    {dense_cache(of, area.data(), kRows), table});
    ASSERT_DONE(source);
    TokenLists descriptor;
    descriptor.tokens = lists.data();
    descriptor.most_tokens = kRows;
    ASSERT_EQ(run(*source, descriptor, 0, 1), Status::OK);
    const auto got = area.read();
    for (uint32_t i = 0; i < 4 * kRows; ++i) {
      const size_t row = i / kRows * kBlockTokens + tokens[i % kRows];
      ASSERT_EQ(std::memcmp(&got[i * row_bytes], &payload[row * row_bytes], row_bytes), 0) << i;
    }
  }
}

/// Top-k near the memory, its hits to the device, their rows by one kernel: equal to gather().
TEST_P(TokenSourceTest, TakesHitsWhereTheyLie) {
  const KvCache of = shape();
  constexpr uint32_t kChannels = 64, kK = 20;
  std::vector<float> query(kChannels);
  Random random(7);
  for (float& q : query) q = static_cast<float>(random.below(100)) / 100 - 0.5f;
  const auto queries = ndp::Queries::of(query, 1, kChannels, 0.2f, NumberFormat::FP8_E4M3).value();
  std::vector<ndp::KeySpan> keys;
  for (uint32_t i = 0; i < 5; ++i) {
    const size_t tokens = tokens_of(i);
    for (std::byte& byte : payloads_[i]) byte &= std::byte{0x77};  // every one is a number
    ASSERT_EQ(pool_.pool().remove(pool_.ns(), keys_[i]), Status::OK);
    ASSERT_EQ(pool_.put(keys_[i], payloads_[i]), Status::OK);
    const std::byte* second_head = payloads_[i].data() + tokens * 64;
    keys.push_back(
        {i * kBlockTokens, {NumberFormat::FP8_E4M3, kChannels, tokens_of(i), second_head, 64}});
  }
  ndp::TopK best = ndp::TopK::of(1, kK).value();
  ASSERT_DONE(best.add(queries, keys, {}));
  const auto hits = best.hits(0);
  ASSERT_EQ(hits.size(), kK);

  const Area on_device(device(), hits.data(), hits.size_bytes());
  Area area(device(), 3 * 2 * 4 * kK * 64);
  const std::vector<uint32_t> table = {0};
  TokenSource source = open({dense_cache(of, area.data(), kK), table});
  TokenLists lists;
  lists.tokens = on_device.data() + offsetof(ndp::Hit, token);
  lists.token_stride_bytes = sizeof(ndp::Hit);
  lists.most_tokens = kK;
  ASSERT_EQ(run(source, lists, 0, 1), Status::OK);

  std::vector<uint32_t> tokens;
  for (const ndp::Hit& hit : hits) tokens.push_back(hit.token);
  std::vector<std::byte> gathered(kK * 64);
  ASSERT_DONE(ndp::gather(keys, tokens, gathered));
  const auto got = area.read();
  EXPECT_EQ(std::memcmp(&got[kK * 64], gathered.data(), gathered.size()), 0);
}

TEST_P(TokenSourceTest, ReportsAbsentTokens) {
  ASSERT_EQ(pool_.pool().remove(pool_.ns(), keys_[1]), Status::OK);
  for (const uint32_t i : {2u, 3u}) {  // one too long, one too short
    ASSERT_EQ(pool_.pool().remove(pool_.ns(), keys_[i]), Status::OK);
    auto other = payloads_[i];
    other.resize(i == 2 ? other.size() + 64 : other.size() - 64);
    ASSERT_EQ(pool_.put(keys_[i], other), Status::OK);
  }
  Area area(device(), 3 * 2 * 4 * 24 * 64);
  const std::vector<uint32_t> table = {0};
  const KvCache cache = dense_cache(shape(), area.data(), 24);
  TokenSource source = open({cache, table});
  const std::vector<Status> want = {Status::OK, Status::NOT_FOUND, Status::BUFFER_TOO_SMALL,
                                    Status::INVALID_ARGUMENT, Status::OK};
  EXPECT_EQ(std::vector(source.results().begin(), source.results().end()), want);
  Lists lists(device(), 1, false, false, kBlockTokens);
  EXPECT_EQ(run(source, lists.descriptor), Status::OK);
  const std::vector<uint32_t> tokens = {kBlockTokens, 2 * kBlockTokens, 4 * kBlockTokens - 1,
                                        kTokens, UINT32_MAX};
  for (uint32_t i = 0; i < tokens.size(); ++i) lists.token(0, 0, 3 + i) = tokens[i];
  lists.put(device());
  area.fill(kUntouched);
  EXPECT_EQ(run(source, lists.descriptor), Status::NOT_FOUND);
  EXPECT_EQ(absent_, 5 * 3 * 4);
  const auto got = area.read();
  for (uint32_t i = 0; i < got.size(); i += 64) {
    const uint32_t entry = i / 64 % 24;
    const auto bytes = entry >= 3 && entry < 8
                           ? std::vector<uint8_t>(64)
                           : row(cache, lists.token(0, 0, entry), i / 64 / 24 / 8,
                                 i / 64 / 24 / 4 % 2, i / 64 / 24 % 4);
    ASSERT_TRUE(std::equal(bytes.begin(), bytes.end(), &got[i])) << i;
  }
}

TEST_P(TokenSourceTest, SkipsCompressedBlocks) {
  const auto ns = pool_.pool().open_namespace(
      {"compressed", "zeros", {shape().layout, CompressionProfile::FAST}});
  ASSERT_DONE(ns);
  const std::vector<std::byte> zeros(payloads_[0].size());
  const ConstSpan value{zeros.data(), zeros.size()};
  ASSERT_EQ(pool_.pool().put(*ns, keys_[0], {&value, 1}), Status::OK);
  Area area(device(), 3 * 2 * 4 * 24 * 64);
  const std::vector<uint32_t> table = {0};
  auto source = TokenSource::open(pool_.pool(), *registration_, device(),
                                  {*ns, {keys_.data(), 1}, kBlockTokens, kBlockTokens},
                                  {dense_cache(shape(), area.data(), 24), table});
  ASSERT_DONE(source);
  EXPECT_EQ(source->results()[0], Status::CODED);
  Lists lists(device(), 1, false, false, 40);
  EXPECT_EQ(run(*source, lists.descriptor), Status::NOT_FOUND);
  EXPECT_EQ(absent_, 24 * 3 * 4);
}

/// Step after step, for much longer than a lease lasts.
TEST_P(TokenSourceTest, RenewsItsLeases) {
  Area area(device(), 3 * 2 * 4 * 24 * 64);
  const std::vector<uint32_t> table = {0};
  Lists lists(device(), 1, true, true);
  {
    TokenSource source = open({dense_cache(shape(), area.data(), 24), table}, 60);
    for (int step = 0; step < 30; ++step) {
      ASSERT_EQ(run(source, lists.descriptor), Status::OK);
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
      // A put that needs space would revoke an expired lease.
      ASSERT_EQ(pool_.put("other", test::bytes(61440, 1)), Status::OK);
      ASSERT_EQ(pool_.pool().remove(pool_.ns(), "other"), Status::OK);
      ASSERT_EQ(pool_.info().hosts[0].leases_active, 5) << "step " << step;
    }
  }
  EXPECT_EQ(pool_.info().hosts[0].leases_active, 0);
  EXPECT_TRUE(pool_.check_clean());
}

/// Also of blocks that are not in use yet: after a pause all are old.
TEST_P(TokenSourceTest, RenewsAllThatAreOld) {
  Area area(device(), 3 * 2 * 4 * 24 * 64);
  const std::vector<uint32_t> table = {0};
  Lists lists(device(), 1, true, true);
  TokenSource source = open({dense_cache(shape(), area.data(), 24), table}, 600);
  for (const int pause_ms : {450, 250}) {
    std::this_thread::sleep_for(std::chrono::milliseconds(pause_ms));
    ASSERT_EQ(pool_.put("other", test::bytes(61440, 1)), Status::OK);
    ASSERT_EQ(pool_.pool().remove(pool_.ns(), "other"), Status::OK);
    EXPECT_EQ(pool_.info().hosts[0].leases_active, 5);
    EXPECT_EQ(run(source, lists.descriptor), Status::OK);
  }
}

TEST_P(TokenSourceTest, LapsesWithARemovedBlock) {
  Area area(device(), 3 * 2 * 4 * 24 * 64);
  const std::vector<uint32_t> table = {0};
  Lists lists(device(), 1, true, true);
  TokenSource source = open({dense_cache(shape(), area.data(), 24), table}, 1000);
  ASSERT_EQ(run(source, lists.descriptor), Status::OK);
  ASSERT_EQ(pool_.pool().remove(pool_.ns(), keys_[3]), Status::OK);
  // Its bytes stay as long as its lease; its removal is detected at its next renewal.
  Status status = Status::OK;
  for (int step = 0; step < 6 && status == Status::OK; ++step)
    status = run(source, lists.descriptor);
  EXPECT_EQ(status, Status::LAPSED);
  EXPECT_EQ(source.fetch(lists.descriptor, 0, 1, stream_).status(), Status::LAPSED);
}

TEST_P(TokenSourceTest, RefusesUnsupportedRequests) {
  Area area(device(), 3 * 2 * 4 * 24 * 64);
  const std::vector<uint32_t> table = {0}, beyond = {1};
  const KvCache cache = dense_cache(shape(), area.data(), 24);
  const auto refused = [&](const auto& result, const char* says) {
    EXPECT_EQ(result.status(), Status::INVALID_ARGUMENT) << says;
    EXPECT_NE(message_of(result).find(says), std::string::npos) << message_of(result);
  };
  const auto opened = [&](const SequenceBlocks& of, const FetchTarget& target, uint64_t ms = 1000) {
    return TokenSource::open(pool_.pool(), *registration_, device(), of, target, ms);
  };
  refused(opened({pool_.ns(), keys_, kTokens + 14, kBlockTokens}, {cache, table}),
          "5 keys, while 201 tokens are 6 blocks of 40");
  refused(opened({pool_.ns(), keys_, kTokens, 0}, {cache, table}), "in blocks of 0");
  refused(opened(blocks(), {cache, {}}), "a target of no pages");
  refused(opened(blocks(), {cache, beyond}), "entry 0 of the block table is page 1");
  refused(opened(blocks(), {cache, table}, 0), "leases of 0 ms");
  const KvCache reordered = dense_cache(shape(RowOrder::TOKENS_FIRST), area.data(), 24);
  EXPECT_EQ(opened(blocks(), {reordered, table}).status(), Status::LAYOUT_MISMATCH);
  uint8_t host[64];
  refused(opened(blocks(), {dense_cache(shape(), host, 24), table}),
          "part 0 of layer 0: the first byte is in host memory, which this device does not reach");
  EXPECT_EQ(pool_.info().hosts[0].leases_active, 0);

  TokenSource source = open({cache, table});
  const Lists lists(device(), 1, true, true);
  const auto fetched = [&](auto change, uint32_t first_layer = 0, Stream stream = nullptr) {
    TokenLists descriptor = lists.descriptor;
    change(descriptor);
    return source.fetch(descriptor, first_layer, 3, stream == nullptr ? stream_ : stream);
  };
  refused(fetched([](TokenLists& l) { l.tokens = nullptr; }), "tokens of lists is null");
  alignas(4) uint8_t on_host[8];
  refused(fetched([&](TokenLists& l) { l.tokens = on_host; }),
          "tokens of lists: the first byte is in host memory, which this device does not reach");
  const uint32_t counts[12] = {};
  refused(fetched([&](TokenLists& l) { l.counts = counts; }),
          "counts of lists: the first byte is in host memory");
  refused(fetched([](TokenLists& l) { l.list_stride_bytes = 1 << 20; }),
          "tokens of lists: the last byte is in host memory");
  refused(fetched([](TokenLists& l) { l.most_tokens = 25; }),
          "lists of 25 tokens, while the target has room for 24");
  refused(fetched([](TokenLists&) {}, 1), "layers 1 to 4 of 3");
  const auto other = Device::cpu();
  const Stream foreign = other->make_stream(0).value();
  if (device().info().is_cpu) refused(fetched([](TokenLists&) {}, 0, foreign), "stream");
  other->destroy_stream(foreign);
  EXPECT_EQ(run(source, lists.descriptor), Status::OK);
}

/// For lists, registered memory is as good as device memory.
TEST_P(TokenSourceTest, TakesListsInPinnedMemory) {
  Area area(device(), 3 * 2 * 4 * 24 * 64);
  const std::vector<uint32_t> table = {0};
  TokenSource source = open({dense_cache(shape(), area.data(), 24), table});
  Lists lists(device(), 1, true, true);
  ASSERT_EQ(run(source, lists.descriptor), Status::OK);
  const auto want = area.read();
  area.fill(kUntouched);
  void* const pinned = device().allocate_pinned(lists.words.size() * 4).value();
  std::memcpy(pinned, lists.words.data(), lists.words.size() * 4);
  lists.descriptor.tokens = static_cast<const uint8_t*>(pinned);
  EXPECT_EQ(run(source, lists.descriptor), Status::OK);
  EXPECT_TRUE(area.read() == want);
  device().free(pinned);
}

TEST_P(TokenSourceTest, HasSoManyFetchesAtMost) {
  Area area(device(), 3 * 2 * 4 * 24 * 64);
  const std::vector<uint32_t> table = {0};
  TokenSource source = open({dense_cache(shape(), area.data(), 24), table});
  Lists lists(device(), 1, true, true);
  std::vector<std::shared_ptr<TokenSource::Fetch>> fetches;
  for (uint32_t i = 0; i < TokenSource::kMostFetches; ++i)
    fetches.push_back(source.fetch(lists.descriptor, 0, 0, stream_).value());
  EXPECT_EQ(source.fetch(lists.descriptor, 0, 0, stream_).status(), Status::LIMIT_REACHED);
  source.wait(*fetches[0]);
  EXPECT_EQ(run(source, lists.descriptor), Status::OK);
}

// ---- work that ends early: the CPU device can be held ----

class GatedTokenSource : public TokenSourceTest {};
INSTANTIATE_TEST_SUITE_P(Devices, GatedTokenSource, testing::Values("cpu"), device_name);

/// Leases end while the device still reads: if no put needed the blocks, nothing is wrong.
TEST_P(GatedTokenSource, LapsesIfABlockIsNeededMeanwhile) {
  Area area(device(), 3 * 2 * 4 * 24 * 64);
  const std::vector<uint32_t> table = {0};
  Lists lists(device(), 1, true, true);
  for (const bool is_needed : {false, true}) {
    TokenSource source = open({dense_cache(shape(), area.data(), 24), table}, 1);
    gate_->hold_next(1);
    auto fetch = source.fetch(lists.descriptor, 0, 3, stream_);
    ASSERT_DONE(fetch);
    EXPECT_FALSE(source.poll(**fetch));
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    if (is_needed) {
      ASSERT_EQ(pool_.pool().remove(pool_.ns(), keys_[4]), Status::OK);
      for (int i = 0; pool_.put("other " + std::to_string(i), test::bytes(61440, i)) == Status::OK;
           ++i) {
        if (i == 1000) break;
      }
    }
    gate_->let_go();
    source.wait(**fetch);
    EXPECT_EQ(source.result(**fetch), is_needed ? Status::LAPSED : Status::OK);
  }
  EXPECT_EQ(pool_.info().hosts[0].leases_active, 0);
}

TEST_P(GatedTokenSource, EndsWhenItsFetchesHave) {
  Area area(device(), 3 * 2 * 4 * 24 * 64);
  area.fill(kUntouched);
  const std::vector<uint32_t> table = {0};
  Lists lists(device(), 1, true, true);
  std::thread opener;
  {
    TokenSource source = open({dense_cache(shape(), area.data(), 24), table});
    gate_->hold_next(1);
    ASSERT_DONE(source.fetch(lists.descriptor, 0, 3, stream_));
    opener = std::thread([&] {
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
      EXPECT_EQ(pool_.info().hosts[0].leases_active, 5);
      gate_->let_go();
    });
  }
  EXPECT_EQ(pool_.info().hosts[0].leases_active, 0);
  opener.join();
  const auto got = area.read();
  EXPECT_NE(std::count(got.begin(), got.end(), kUntouched), static_cast<long>(got.size()));
}

/// Memory that the device may still use is not reused.
TEST_P(GatedTokenSource, KeepsTablesThatMayStillBeRead) {
  struct SaysNothing : WrappedDevice {
    using WrappedDevice::WrappedDevice;
    Result<bool> is_done(Event) override { return Error{Status::SYSTEM, "what?"}; }
    void free(void* memory) override {
      ++freed;
      WrappedDevice::free(memory);
    }
    int freed = 0;
  } faulty(device());
  Area area(device(), 3 * 2 * 4 * 24 * 64);
  const std::vector<uint32_t> table = {0};
  Lists lists(device(), 1, true, true);
  {
    auto source = TokenSource::open(pool_.pool(), *registration_, faulty, blocks(),
                                    {dense_cache(shape(), area.data(), 24), table});
    ASSERT_DONE(source);
    gate_->hold_next(1);
    auto fetch = source->fetch(lists.descriptor, 0, 3, stream_);
    ASSERT_DONE(fetch);
    EXPECT_TRUE(source->poll(**fetch));
    EXPECT_EQ(source->result(**fetch), Status::SYSTEM);
  }
  EXPECT_EQ(faulty.freed, 0);
  EXPECT_EQ(pool_.info().hosts[0].leases_active, 0);
  gate_->let_go();
  device().destroy_stream(std::exchange(stream_, nullptr));  // waits: its memory is freed
}

TEST_P(GatedTokenSource, LosesTheGpuAndNothingElse) {
  Area area(device(), 3 * 2 * 4 * 24 * 64);
  const std::vector<uint32_t> table = {0};
  Lists lists(device(), 1, true, true);
  {
    TokenSource source = open({dense_cache(shape(), area.data(), 24), table});
    gate_->lose_from(gate_->count());
    auto fetch = source.fetch(lists.descriptor, 0, 3, stream_);
    if (fetch) {
      source.wait(**fetch);
      EXPECT_EQ(source.result(**fetch), Status::GPU_LOST);
    } else {
      EXPECT_EQ(fetch.status(), Status::GPU_LOST);
    }
    EXPECT_EQ(source.fetch(lists.descriptor, 0, 3, stream_).status(), Status::GPU_LOST);
  }
  EXPECT_EQ(pool_.info().hosts[0].leases_active, 0);
  EXPECT_TRUE(pool_.check_clean());
}

}  // namespace
}  // namespace bowhead::gpu
