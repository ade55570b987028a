// SPDX-License-Identifier: Apache-2.0
// Batches against calls for single keys: the same results, whatever the batch holds.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <map>
#include <random>
#include <thread>

#include "pool/pool.h"
#include "tests/support/hosts.h"
#include "tests/support/tiny_pool.h"

namespace bowhead::test {
namespace {

std::string value_of(uint32_t seed, size_t bytes) {
  std::mt19937 random(seed);
  std::string value(bytes, '\0');
  for (char& c : value) c = static_cast<char>(random() % 7);  // compresses
  return value;
}

ConstSpan span_of(const std::string& text) {
  return {reinterpret_cast<const std::byte*>(text.data()), text.size()};
}
Span room_of(std::string& text) { return {reinterpret_cast<std::byte*>(text.data()), text.size()}; }

class Batches : public ::testing::TestWithParam<CompressionProfile> {
 protected:
  void SetUp() override {
    CreateOptions options;
    options.size_bytes = 64 << 20;
    options.evict_high_permille = 0;
    ASSERT_TRUE(Pool::create(locator_, options));
    auto pool = Pool::open(locator_);
    ASSERT_TRUE(pool) << pool.error().message();
    pool_.emplace(std::move(*pool));
    NamespaceDescription description{"batches", ""};
    description.values.profile = GetParam();
    const auto ns = pool_->open_namespace(description);
    ASSERT_TRUE(ns) << ns.error().message();
    ns_ = *ns;
  }
  void TearDown() override {
    pool_.reset();
    (void)Pool::destroy(locator_, true);
  }

  std::string locator_ = unique_locator();
  std::optional<Pool> pool_;
  NamespaceId ns_ = 0;
};

/// Random batches, longer than the core takes at once, with repeated keys, keys that no block can
/// have, absent keys, short buffers and values that are refused, against a map.
TEST_P(Batches, AgreeWithAModel) {
  std::mt19937 random(7);
  std::map<std::string, std::string> model;
  const auto any_key = [&]() -> std::string {
    if (random() % 40 == 0) return std::string(random() % 2 * 513, 'k');
    return fmt::format("key {}", random() % 300);
  };
  for (uint32_t round = 0; round < 60; ++round) {
    const size_t count = random() % 300;
    std::vector<std::string> keys(count), values(count), rooms(count);
    std::vector<ConstSpan> pieces(2 * count);
    std::vector<PutItem> puts(count);
    for (size_t i = 0; i < count; ++i) {
      keys[i] = any_key();
      values[i] = value_of(round * 1000 + static_cast<uint32_t>(i), random() % 30'000);
      const size_t cut = values[i].empty() ? 0 : random() % values[i].size();
      pieces[2 * i] = {span_of(values[i]).data, cut};
      pieces[2 * i + 1] = {span_of(values[i]).data + cut, values[i].size() - cut};
      puts[i] = {keys[i], std::span(pieces).subspan(2 * i, 2)};
    }
    ASSERT_EQ(pool_->put_batch(ns_, puts), Status::OK);
    for (size_t i = 0; i < count; ++i) {
      const bool valid = !keys[i].empty() && keys[i].size() <= 512;
      const Status wanted = !valid              ? Status::KEY_TOO_LONG
                            : values[i].empty() ? Status::VALUE_TOO_LARGE
                                                : Status::OK;
      ASSERT_EQ(puts[i].status, wanted) << i;
      if (wanted == Status::OK) model.emplace(keys[i], values[i]);
    }

    std::vector<GetItem> gets(count);
    std::vector<Span> room(count);
    for (size_t i = 0; i < count; ++i) {
      keys[i] = any_key();
      rooms[i].assign(random() % 8 == 0 ? 100 : 30'000, '\xFF');
      room[i] = room_of(rooms[i]);
      gets[i] = {keys[i], {&room[i], 1}};
    }
    ASSERT_EQ(pool_->get_batch(ns_, gets), Status::OK);
    for (size_t i = 0; i < count; ++i) {
      const auto found = model.find(keys[i]);
      const bool valid = !keys[i].empty() && keys[i].size() <= 512;
      const Status wanted = !valid                                   ? Status::KEY_TOO_LONG
                            : found == model.end()                   ? Status::NOT_FOUND
                            : found->second.size() > rooms[i].size() ? Status::BUFFER_TOO_SMALL
                                                                     : Status::OK;
      ASSERT_EQ(gets[i].status, wanted) << i << " of " << count;
      ASSERT_EQ(gets[i].length_bytes, wanted == Status::OK ? found->second.size() : 0);
      if (wanted == Status::OK) {
        ASSERT_EQ(rooms[i].substr(0, gets[i].length_bytes), found->second);
      }
    }

    std::vector<std::string_view> doomed;
    for (size_t i = 0; i < count; i += 2) doomed.push_back(keys[i]);
    std::vector<Status> statuses(doomed.size());
    ASSERT_EQ(pool_->remove_batch(ns_, doomed, statuses), Status::OK);
    for (size_t i = 0; i < doomed.size(); ++i) {
      const bool valid = !doomed[i].empty() && doomed[i].size() <= 512;
      const Status wanted = !valid                                     ? Status::KEY_TOO_LONG
                            : model.erase(std::string(doomed[i])) == 1 ? Status::OK
                                                                       : Status::NOT_FOUND;
      ASSERT_EQ(statuses[i], wanted) << i;
    }
  }
}

/// A batch counts what calls for its keys count.
TEST_P(Batches, CountAsSingleCallsDo) {
  const std::string value = value_of(1, 20'000);
  const ConstSpan piece = span_of(value);
  std::string out(value.size(), '\0');
  const Span room = room_of(out);
  PutItem puts[] = {{"a", {&piece, 1}}, {"b", {&piece, 1}}, {"a", {&piece, 1}}};
  ASSERT_EQ(pool_->put_batch(ns_, puts), Status::OK);
  GetItem gets[] = {{"a", {&room, 1}}, {"c", {&room, 1}}};
  ASSERT_EQ(pool_->get_batch(ns_, gets), Status::OK);
  const auto info = pool_->info();
  ASSERT_TRUE(info);
  EXPECT_EQ(info->puts, 2u);
  EXPECT_EQ(info->puts_present, 1u);
  EXPECT_EQ(info->hits, 1u);
  EXPECT_EQ(info->misses, 1u);
  EXPECT_EQ(info->bytes_in, 2 * value.size());
  EXPECT_EQ(info->bytes_out, value.size());
}

TEST_P(Batches, KeepUserMetadata) {
  const std::string value = value_of(2, 20'000);
  const ConstSpan piece = span_of(value);
  PutItem puts[] = {{"a", {&piece, 1}, "of a"}, {"b", {&piece, 1}}, {"c", {&piece, 1}, "of c"}};
  ASSERT_EQ(pool_->put_batch(ns_, puts), Status::OK);
  for (const PutItem& put : puts)
    EXPECT_EQ(pool_->describe(ns_, put.key)->user_metadata, put.user_metadata) << put.key;
  const std::string longer(513, 'u');
  PutItem refused[] = {{"d", {&piece, 1}, longer}, {"e", {&piece, 1}}};
  ASSERT_EQ(pool_->put_batch(ns_, refused), Status::OK);
  EXPECT_EQ(refused[0].status, Status::INVALID_ARGUMENT);
  EXPECT_EQ(refused[1].status, Status::OK);
}

/// An item that is refused counts as nothing, even if its key is stored.
TEST_P(Batches, RefusedItemsCountAsNothing) {
  const std::string value = value_of(3, 20'000), longer(513, 'u');
  const ConstSpan piece = span_of(value);
  PutItem stored[] = {{"a", {&piece, 1}}};
  ASSERT_EQ(pool_->put_batch(ns_, stored), Status::OK);
  PutItem refused[] = {{"a", {&piece, 1}, longer}, {"a", {}}};
  ASSERT_EQ(pool_->put_batch(ns_, refused), Status::OK);
  EXPECT_EQ(refused[0].status, Status::INVALID_ARGUMENT);
  EXPECT_EQ(refused[1].status, Status::VALUE_TOO_LARGE);
  EXPECT_EQ(pool_->info()->puts_present, 0u);
}

TEST_P(Batches, FailAsAWholeWhenTheHandleOrTheNamespaceDoes) {
  const std::string value = value_of(4, 20'000);
  const ConstSpan piece = span_of(value);
  PutItem puts[] = {{"a", {&piece, 1}}};
  EXPECT_EQ(pool_->put_batch(ns_ + 2, puts), Status::INVALID_ARGUMENT);
  EXPECT_EQ(puts[0].status, Status::INVALID_ARGUMENT);
  std::vector<Status> statuses(1);
  const std::string_view keys[] = {"a", "b"};
  EXPECT_EQ(pool_->remove_batch(ns_, keys, statuses), Status::INVALID_ARGUMENT);
  ASSERT_TRUE(pool_->remove_namespace("batches"));
  EXPECT_EQ(pool_->put_batch(ns_, puts), Status::NAMESPACE_GONE);
  EXPECT_EQ(puts[0].status, Status::NAMESPACE_GONE);
}

/// As a put that follows another one of the same key.
TEST_P(Batches, FindWhatTheyStoredInAFullPool) {
  const std::string value = value_of(1, 20'000);
  const ConstSpan piece = span_of(value);
  int stored = 0;
  while (pool_->put(ns_, fmt::format("{}", stored), {&piece, 1}) == Status::OK) ++stored;
  ASSERT_GT(stored, 1);
  ASSERT_EQ(pool_->remove(ns_, "0"), Status::OK);
  PutItem items[] = {{"new", {&piece, 1}}, {"other", {&piece, 1}}, {"new", {&piece, 1}}};
  ASSERT_EQ(pool_->put_batch(ns_, items), Status::OK);
  EXPECT_EQ(items[0].status, Status::OK);
  EXPECT_EQ(items[1].status, Status::NO_SPACE);
  EXPECT_EQ(items[2].status, Status::OK);
}

/// A batch of values that are together larger than the pool: eviction takes turns with the puts.
TEST_P(Batches, LargerThanThePoolEvict) {
  pool_.reset();
  ASSERT_TRUE(Pool::destroy(locator_, true));
  CreateOptions options;
  options.size_bytes = 32 << 20;
  ASSERT_TRUE(Pool::create(locator_, options));
  auto pool = Pool::open(locator_);
  ASSERT_TRUE(pool);
  const auto ns = pool->open_namespace({"batches", ""});
  std::mt19937 random(1);
  std::string value(1 << 20, '\0');
  for (char& c : value) c = static_cast<char>(random());
  const ConstSpan piece = span_of(value);
  std::vector<std::string> keys(100);
  std::vector<PutItem> puts(100);
  for (size_t i = 0; i < 100; ++i) {
    keys[i] = fmt::format("large {}", i);
    puts[i] = {keys[i], {&piece, 1}};
  }
  ASSERT_EQ(pool->put_batch(*ns, puts), Status::OK);
  for (const PutItem& put : puts) EXPECT_EQ(put.status, Status::OK) << put.key;
  EXPECT_GT(pool->info()->evictions, 50u);
}

/// Keys that were stored when the batch began, and that its own puts evict before their turn.
TEST_P(Batches, StoreAgainWhatTheyEvicted) {
  pool_.reset();
  ASSERT_TRUE(Pool::destroy(locator_, true));
  CreateOptions options;
  options.size_bytes = 32 << 20;
  ASSERT_TRUE(Pool::create(locator_, options));
  auto pool = Pool::open(locator_);
  ASSERT_TRUE(pool);
  const auto ns = pool->open_namespace({"batches", ""});
  const std::string value = value_of(5, 200'000);
  const ConstSpan piece = span_of(value);
  std::vector<std::string> names;
  for (int i = 0; i < 400; ++i) {
    names.push_back(fmt::format("old {}", i));
    ASSERT_EQ(pool->put(*ns, names.back(), {&piece, 1}), Status::OK);
  }
  std::vector<std::string_view> cold;
  for (const std::string& name : names) {
    uint8_t present = 0;
    const std::string_view key = name;
    if (*pool->exists(*ns, {&key, 1}, {&present, 1}) == 1 && cold.size() < 40) cold.push_back(key);
  }
  ASSERT_EQ(cold.size(), 40u);
  std::vector<std::string> fresh;
  for (int i = 0; i < 64; ++i) fresh.push_back(fmt::format("new {}", i));
  std::vector<PutItem> puts;
  for (const std::string& name : fresh) puts.push_back({name, {&piece, 1}});
  for (const std::string_view key : cold) puts.push_back({key, {&piece, 1}});
  ASSERT_EQ(pool->put_batch(*ns, puts), Status::OK);
  for (const PutItem& put : puts) EXPECT_EQ(put.status, Status::OK);
  std::vector<uint8_t> present(cold.size());
  EXPECT_EQ(*pool->exists(*ns, cold, present), cold.size());
}

INSTANTIATE_TEST_SUITE_P(Of, Batches,
                         ::testing::Values(CompressionProfile::NONE, CompressionProfile::FAST),
                         [](const auto& of) {
                           return of.param == CompressionProfile::NONE ? "Plain" : "Compressed";
                         });

void remove_by_threads(Pool& pool, NamespaceId ns, std::span<const std::string_view> keys) {
  constexpr size_t kThreads = 5;
  const size_t share = keys.size() / kThreads;
  std::vector<std::thread> threads;
  for (size_t t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      std::vector<Status> removed(share);
      EXPECT_EQ(pool.remove_batch(ns, keys.subspan(t * share, share), removed), Status::OK);
      for (const Status status : removed) EXPECT_EQ(status, Status::OK);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

/// Blocks of another host: copied, and removed by more requests than there are lines of mail.
TEST(BatchesOfHosts, CopyAndRemoveBlocksOfAnotherHost) {
  const std::string locator = unique_locator();
  CreateOptions options;
  options.size_bytes = 64 << 20;
  options.hosts = 2;
  options.times = kShortTimes;
  ASSERT_TRUE(Pool::create(locator, options));
  auto writer = Pool::open(locator, {.host = 0});
  auto reader = Pool::open(locator, {.host = 1});
  ASSERT_TRUE(writer && reader);
  const auto ns = writer->open_namespace({"batches", ""});
  ASSERT_TRUE(ns);
  ASSERT_TRUE(eventually([&] { return !!reader->open_namespace({"batches", ""}); }));
  constexpr size_t kCount = 200;
  std::vector<std::string> keys(kCount), values(kCount), rooms(kCount);
  std::vector<ConstSpan> pieces(kCount);
  std::vector<Span> room(kCount);
  std::vector<PutItem> puts(kCount);
  std::vector<GetItem> gets(kCount);
  std::vector<std::string_view> views(kCount);
  for (size_t i = 0; i < kCount; ++i) {
    keys[i] = fmt::format("key {}", i);
    views[i] = keys[i];
    values[i] = value_of(static_cast<uint32_t>(i), 5000);
    pieces[i] = span_of(values[i]);
    puts[i] = {keys[i], {&pieces[i], 1}};
    rooms[i].resize(5000);
    room[i] = room_of(rooms[i]);
    gets[i] = {keys[i], {&room[i], 1}};
  }
  puts[7].attributes = {.priority = 3, .hard_pin = true};
  ASSERT_EQ(writer->put_batch(*ns, puts), Status::OK);
  for (const PutItem& put : puts) ASSERT_EQ(put.status, Status::OK);
  for (const size_t i : {6, 7})
    EXPECT_EQ(writer->describe(*ns, keys[i])->attributes, puts[i].attributes);
  ASSERT_TRUE(eventually([&] {
    std::vector<uint8_t> present(kCount);
    return *reader->exists(*ns, views, present) == kCount;
  }));
  ASSERT_EQ(reader->get_batch(*ns, gets), Status::OK);
  for (size_t i = 0; i < kCount; ++i) {
    ASSERT_EQ(gets[i].status, Status::OK) << i;
    ASSERT_EQ(rooms[i], values[i]);
  }
  const std::string_view with_absent[] = {"absent", views[0], "absent too"};
  std::vector<Status> statuses(3);
  ASSERT_EQ(reader->remove_batch(*ns, with_absent, statuses), Status::OK);
  EXPECT_EQ(statuses, (std::vector{Status::NOT_FOUND, Status::OK, Status::NOT_FOUND}));
  statuses.resize(kCount - 1);
  ASSERT_EQ(reader->remove_batch(*ns, std::span(views).subspan(1), statuses), Status::OK);
  for (const Status status : statuses) ASSERT_EQ(status, Status::OK);
  std::vector<uint8_t> present(kCount);
  EXPECT_EQ(*writer->exists(*ns, views, present), 0u);

  // Several callers at once share the lines of mail.
  for (PutItem& put : puts) put.status = Status::OK;
  ASSERT_EQ(writer->put_batch(*ns, puts), Status::OK);
  ASSERT_TRUE(eventually([&] { return *reader->exists(*ns, views, present) == kCount; }));
  remove_by_threads(*reader, *ns, views);
  (void)Pool::destroy(locator, true);
}

}  // namespace
}  // namespace bowhead::test
