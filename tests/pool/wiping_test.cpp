// SPDX-License-Identifier: Apache-2.0
// Wiping: what was stored for a namespace that asks for it is in the pool's memory no more once its
// memory is free, however the block ended. Looks for the bytes in the whole mapping.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstring>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "base/race.h"
#include "pool/pool.h"
#include "tests/support/hosts.h"
#include "tests/support/pools.h"

namespace bowhead::test {
namespace {

constexpr char kSecret[] = "the secret of a tenant, 32 bytes";
constexpr size_t kSecretBytes = sizeof kSecret - 1;

/// The secret, again and again.
std::string secret_value(size_t bytes) {
  std::string value;
  while (value.size() < bytes) value += kSecret;
  value.resize(bytes);
  return value;
}

/// Whether the secret is anywhere in the pool's memory. Other threads store there meanwhile.
BOWHEAD_RACY bool holds_secret(const Pool& pool) {
  const ConstSpan all = pool.mapping();
  const auto* words = reinterpret_cast<const volatile uint64_t*>(all.data);
  std::vector<uint64_t> copy(all.size / sizeof(uint64_t));
  for (size_t i = 0; i < copy.size(); ++i) copy[i] = words[i];
  return memmem(copy.data(), all.size, kSecret, kSecretBytes) != nullptr;
}

ConstSpan span_of(const std::string& text) {
  return {reinterpret_cast<const std::byte*>(text.data()), text.size()};
}

class Wiping : public ::testing::Test {
 protected:
  void make(const CreateOptions& options = {.size_bytes = 32 << 20, .evict_high_permille = 0}) {
    ASSERT_TRUE(Pool::create(locator_, options));
    open();
    secret_ = open_namespace("secret", {.wipe = true});
    other_ = open_namespace("other", {});
  }
  void TearDown() override {
    pool_.reset();
    (void)Pool::destroy(locator_, true);
  }
  void open() {
    pool_.reset();
    auto pool = Pool::open(locator_);
    ASSERT_TRUE(pool) << pool.error().message();
    pool_.emplace(std::move(*pool));
  }
  NamespaceId open_namespace(const char* name, const ValueFormat& values) {
    const auto ns = pool_->open_namespace({name, "", values});
    EXPECT_TRUE(ns) << ns.error().message();
    return ns ? *ns : 0;
  }
  Status put(NamespaceId ns, const std::string& key, size_t bytes = 20'000) {
    const std::string value = secret_value(bytes);
    const ConstSpan piece = span_of(value);
    return pool_->put(ns, key, {&piece, 1}, kSecret);
  }
  /// Values without the secret, until the pool is full.
  void fill_with_others(size_t bytes = 20'000) {
    const std::string value(bytes, 'x');
    const ConstSpan piece = span_of(value);
    for (int i = 0;; ++i) {
      if (pool_->put(other_, fmt::format("other {}", i), {&piece, 1}) != Status::OK) return;
    }
  }
  /// A process writes to a reserved block and exits before the header is written.
  void die_with_open_reservation(const char* name) {
    const int ended = in_child([&] {
      auto pool = Pool::open(locator_);
      if (!pool) return 1;
      const auto ns = pool->open_namespace({name, "", {}});
      if (!ns) return 2;
      auto reservation = pool->reserve(*ns, "key", 20'000);
      if (!reservation) return 3;
      std::memcpy(reservation->data, secret_value(20'000).data(), 20'000);
      _exit(0);
    });
    ASSERT_EQ(ended, 0);
  }
  bool secret_is_there() const { return holds_secret(*pool_); }

  std::string locator_ = unique_locator();
  std::optional<Pool> pool_;
  NamespaceId secret_ = 0, other_ = 0;
};

/// Shows that the test can find the bytes.
TEST_F(Wiping, NotWithoutBeingAsked) {
  make();
  ASSERT_EQ(put(other_, "key"), Status::OK);
  ASSERT_EQ(pool_->remove(other_, "key"), Status::OK);
  EXPECT_TRUE(secret_is_there());
}

TEST_F(Wiping, ByRemoval) {
  make();
  for (const char* key : {"a", "b", kSecret}) ASSERT_EQ(put(secret_, key), Status::OK);
  EXPECT_TRUE(secret_is_there());
  for (const char* key : {"a", "b", kSecret}) ASSERT_EQ(pool_->remove(secret_, key), Status::OK);
  EXPECT_FALSE(secret_is_there());
}

TEST_F(Wiping, OfLargeValuesAndLongKeys) {
  make();
  const std::string key = secret_value(512);
  ASSERT_EQ(put(secret_, key, 9 << 20), Status::OK);
  ASSERT_EQ(put(secret_, key + "", 100), Status::OK);
  ASSERT_EQ(put(secret_, secret_value(500), 1), Status::OK);
  ASSERT_EQ(pool_->remove(secret_, key), Status::OK);
  ASSERT_EQ(pool_->remove(secret_, secret_value(500)), Status::OK);
  EXPECT_FALSE(secret_is_there());
}

TEST_F(Wiping, ByEviction) {
  make({.size_bytes = 32 << 20});
  for (int i = 0; i < 100; ++i) ASSERT_EQ(put(secret_, fmt::format("{}", i)), Status::OK);
  const std::string value(20'000, 'x');
  const ConstSpan piece = span_of(value);
  const auto present = [&] {
    uint64_t count = 0;
    for (int i = 0; i < 100; ++i)
      count += static_cast<bool>(pool_->length(secret_, fmt::format("{}", i)));
    return count;
  };
  for (int i = 0; present() > 0 && i < 20'000; ++i)
    ASSERT_EQ(pool_->put(other_, fmt::format("other {}", i), {&piece, 1}), Status::OK);
  EXPECT_EQ(present(), 0u);
  EXPECT_FALSE(secret_is_there());
}

TEST_F(Wiping, OfPutsThatFindTheirKeyStored) {
  make();
  const std::string value = secret_value(20'000), plain(20'000, 'x');
  const ConstSpan piece = span_of(value), first = span_of(plain);
  PutItem items[] = {{"key", {&first, 1}}, {"key", {&piece, 1}}, {"key", {&piece, 1}}};
  ASSERT_EQ(pool_->put_batch(secret_, items), Status::OK);
  EXPECT_FALSE(secret_is_there()) << "the later items of the batch wrote their values";
}

TEST_F(Wiping, OfReservations) {
  make();
  const std::string value = secret_value(20'000);
  for (const bool commits : {false, true}) {
    auto reservation = pool_->reserve(secret_, "key", value.size());
    ASSERT_TRUE(reservation);
    std::memcpy(reservation->data, value.data(), value.size());
    EXPECT_TRUE(secret_is_there());
    ASSERT_EQ(commits ? pool_->commit(*reservation) : pool_->abort(*reservation), Status::OK);
    if (commits) {
      EXPECT_TRUE(secret_is_there());
      ASSERT_EQ(pool_->remove(secret_, "key"), Status::OK);
    }
    EXPECT_FALSE(secret_is_there());
  }
  auto open = pool_->reserve(secret_, "left open", value.size());
  ASSERT_TRUE(open);
  std::memcpy(open->data, value.data(), value.size());
  this->open();  // closes the pool, which ends the reservation
  EXPECT_FALSE(secret_is_there());
}

TEST_F(Wiping, OfALeasedBlockOnceItIsReleased) {
  make();
  ASSERT_EQ(put(secret_, "key"), Status::OK);
  auto lease = pool_->acquire(secret_, "key", 60'000);
  ASSERT_TRUE(lease);
  ASSERT_EQ(pool_->remove(secret_, "key"), Status::OK);
  EXPECT_EQ(std::memcmp(lease->data, kSecret, kSecretBytes), 0) << "the lease keeps the bytes";
  EXPECT_EQ(pool_->release(*lease), Status::LAPSED);
  EXPECT_FALSE(secret_is_there());
}

TEST_F(Wiping, OfARemovedNamespace) {
  make();
  for (int i = 0; i < 50; ++i) ASSERT_EQ(put(secret_, fmt::format("{}", i)), Status::OK);
  ASSERT_TRUE(pool_->remove_namespace("secret"));
  EXPECT_FALSE(secret_is_there());
}

TEST_F(Wiping, OfBlocksThatWereMoved) {
  make();
  fill_with_others();
  for (int i = 0;; i += 2) {  // holes everywhere
    if (pool_->remove(other_, fmt::format("other {}", i)) != Status::OK) break;
  }
  for (int i = 0; i < 40; ++i) ASSERT_EQ(put(secret_, fmt::format("{}", i)), Status::OK);
  const uint64_t before = pool_->info()->moves;
  const std::string large(4 << 20, 'x');
  const ConstSpan piece = span_of(large);
  for (int i = 0; i < 3; ++i)
    ASSERT_EQ(pool_->put(other_, fmt::format("large {}", i), {&piece, 1}), Status::OK);
  ASSERT_GT(pool_->info()->moves, before);
  for (int i = 0; i < 40; ++i) ASSERT_EQ(pool_->remove(secret_, fmt::format("{}", i)), Status::OK);
  EXPECT_FALSE(secret_is_there());
}

TEST_F(Wiping, OfCompressedAndRecompressedValues) {
  make();
  const NamespaceId coded = open_namespace(
      "coded", {.layout = kOpaqueLayout, .profile = CompressionProfile::FAST, .wipe = true});
  std::mt19937 random(1);
  std::string value(60'000, '\0');
  for (char& c : value) c = static_cast<char>(random() % 3);
  value.replace(0, kSecretBytes, kSecret);  // in the plain value; the frame has it as a literal
  const ConstSpan piece = span_of(value);
  ASSERT_EQ(pool_->put(coded, "key", {&piece, 1}, kSecret), Status::OK);
  ASSERT_TRUE(pool_->recompress(0));
  ASSERT_EQ(pool_->remove(coded, "key"), Status::OK);
  EXPECT_FALSE(secret_is_there());
}

TEST_F(Wiping, OfWhatADeadProcessLeft) {
  make();
  die_with_open_reservation("secret");
  EXPECT_TRUE(secret_is_there());
  ASSERT_TRUE(pool_->scavenge());
  EXPECT_FALSE(secret_is_there());
}

/// Wiping a large block takes long; a namespace that did not ask for it must not pay.
TEST_F(Wiping, NotOfWhatADeadProcessLeftWithoutBeingAsked) {
  make();
  die_with_open_reservation("other");
  ASSERT_TRUE(pool_->scavenge());
  EXPECT_TRUE(secret_is_there());
}

TEST_F(Wiping, IsAPropertyOfTheNamespace) {
  make();
  EXPECT_TRUE(pool_->value_format(secret_)->wipe);
  EXPECT_FALSE(pool_->value_format(other_)->wipe);
  // Opened without asking: as registered.
  EXPECT_EQ(open_namespace("secret", {}), secret_);
  const auto refused = pool_->open_namespace({"other", "", {.wipe = true}});
  EXPECT_EQ(refused.status(), Status::NAMESPACE_MISMATCH);
  EXPECT_NE(refused.error().message().find("'other'"), std::string::npos);
  this->open();
  EXPECT_TRUE(pool_->value_format(secret_)->wipe) << "also for a process that did not open it";
  ASSERT_EQ(put(secret_, "key"), Status::OK);
  ASSERT_EQ(pool_->remove(secret_, "key"), Status::OK);
  EXPECT_FALSE(secret_is_there());
}

TEST_F(Wiping, ByTheRemovalOfAnotherHost) {
  const SharedPool shared(2);
  auto one = Pool::open(shared.locator(), {.host = 0}),
       two = Pool::open(shared.locator(), {.host = 1});
  ASSERT_TRUE(one && two);
  const NamespaceDescription description{"secret", "", {.wipe = true}};
  const auto ns = one->open_namespace(description);
  ASSERT_TRUE(ns);
  ASSERT_EQ(two->open_namespace(description).status(), Status::OK);
  const std::string value = secret_value(20'000);
  const ConstSpan piece = span_of(value);
  ASSERT_EQ(one->put(*ns, "key", {&piece, 1}, kSecret), Status::OK);
  const auto there = [&] { return holds_secret(*one); };
  EXPECT_TRUE(there());
  ASSERT_EQ(two->remove(*ns, "key"), Status::OK);
  // The owner frees the block when its stores have settled: within some heartbeats.
  for (int i = 0; i < 500 && there(); ++i) usleep(10'000);
  EXPECT_FALSE(there());
}

TEST_F(Wiping, OfLargeBlocksByAProcessThatDidNotStoreThem) {
  const SharedPool shared(2);
  const NamespaceDescription description{"secret", "", {.wipe = true}};
  const int stored = in_child([&] {
    auto pool = Pool::open(shared.locator(), {.host = 0});
    if (!pool) return 1;
    const auto ns = pool->open_namespace(description);
    if (!ns) return 2;
    const std::string value = secret_value(9 << 20);
    const ConstSpan piece = span_of(value);
    return pool->put(*ns, "key", {&piece, 1}) == Status::OK ? 0 : 3;
  });
  ASSERT_EQ(stored, 0);
  auto pool = Pool::open(shared.locator(), {.host = 0});
  ASSERT_TRUE(pool);
  const auto ns = pool->open_namespace(description);
  ASSERT_TRUE(ns);
  const auto there = [&] { return holds_secret(*pool); };
  EXPECT_TRUE(there());
  ASSERT_EQ(pool->remove(*ns, "key"), Status::OK);
  EXPECT_TRUE(eventually([&] { return !there(); }));
}

/// Its blocks are not imported, and no entry leads to them.
TEST_F(Wiping, OfANamespaceThatIsRemovedBetweenADeathAndTheAdoption) {
  const SharedPool shared(2);
  const NamespaceDescription description{"secret", "", {.wipe = true}};
  auto survivor = Pool::open(shared.locator(), {.host = 1});
  ASSERT_TRUE(survivor);
  ASSERT_TRUE(survivor->open_namespace(description));
  const int stored = in_child([&] {
    auto pool = Pool::open(shared.locator(), {.host = 0});
    if (!pool) return 1;
    const auto ns = pool->open_namespace(description);
    if (!ns) return 2;
    const std::string value = secret_value(20'000);
    const ConstSpan piece = span_of(value);
    _exit(pool->put(*ns, "key", {&piece, 1}, kSecret) == Status::OK ? 0 : 3);
  });
  ASSERT_EQ(stored, 0);
  const auto there = [&] { return holds_secret(*survivor); };
  EXPECT_TRUE(there());
  ASSERT_TRUE(survivor->remove_namespace("secret"));
  EXPECT_TRUE(eventually([&] { return !there(); }));
}

}  // namespace
}  // namespace bowhead::test
