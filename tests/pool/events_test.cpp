// SPDX-License-Identifier: Apache-2.0
// Events: what is reported, in which order, and what a slow reader loses.
#include "pool/events.h"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <poll.h>

#include <atomic>
#include <ctime>
#include <set>
#include <thread>

#include "pool/pool.h"
#include "tests/support/hosts.h"
#include "tests/support/tiny_pool.h"

namespace bowhead::test {
namespace {

struct Seen {
  EventKind kind;
  std::string key, user;
  uint64_t length_bytes;
  bool operator==(const Seen&) const = default;
};

std::vector<Seen> read_all(EventReader& reader, uint64_t* lost) {
  std::vector<Seen> seen;
  *lost = 0;
  const auto visit = [&](const Event& one) {
    seen.push_back(
        {one.kind, std::string(one.key), std::string(one.user_metadata), one.length_bytes});
    return true;
  };
  uint64_t lost_now = 0;
  for (bool more = true; more; *lost += lost_now) more = reader.read(3, visit, &lost_now) > 0;
  return seen;
}

bool readable(const EventReader& reader) {
  pollfd fd = {reader.fd(), POLLIN, 0};
  return ::poll(&fd, 1, 0) == 1;
}

Event event(std::string_view key, std::string_view user = {}) {
  return {EventKind::STORED, 7, key, user, key.size(), 1};
}

TEST(Events, ComeInOrderWithTheirTexts) {
  Events events;
  EXPECT_FALSE(events.wanted());
  const auto reader = *events.open(4096);
  EXPECT_TRUE(events.wanted());
  EXPECT_FALSE(readable(*reader));
  for (int i = 0; i < 10; ++i) events.publish(event(fmt::format("key {}", i), i % 2 ? "user" : ""));
  EXPECT_TRUE(readable(*reader));
  uint64_t lost = 1;
  const auto seen = read_all(*reader, &lost);
  ASSERT_EQ(seen.size(), 10u);
  for (size_t i = 0; i < 10; ++i)
    EXPECT_EQ(seen[i], (Seen{EventKind::STORED, fmt::format("key {}", i), i % 2 ? "user" : "", 5}));
  EXPECT_EQ(lost, 0u);
  EXPECT_FALSE(readable(*reader));
}

TEST(Events, AVisitThatEndsTheCallLeavesTheRest) {
  Events events;
  const auto reader = *events.open(4096);
  for (const char* key : {"a", "b", "c"}) events.publish(event(key));
  uint64_t lost = 0;
  int visits = 0;
  EXPECT_EQ(reader->read(
                9, [&](const Event&) { return ++visits < 2; }, &lost),
            2u);
  EXPECT_TRUE(readable(*reader));
  const auto rest = read_all(*reader, &lost);
  ASSERT_EQ(rest.size(), 1u);
  EXPECT_EQ(rest[0].key, "c");
}

/// The count of lost events comes where the gap is.
TEST(Events, ASlowReaderIsToldHowManyItLost) {
  Events events;
  const auto reader = *events.open(4096);
  const auto other = *events.open(1 << 20);
  for (int i = 0; i < 1000; ++i) events.publish(event(fmt::format("key {}", i)));
  uint64_t lost = 0;
  const auto seen = read_all(*reader, &lost);
  ASSERT_GT(seen.size(), 10u);
  for (size_t i = 0; i < seen.size(); ++i) EXPECT_EQ(seen[i].key, fmt::format("key {}", i));
  EXPECT_EQ(seen.size() + lost, 1000u);
  EXPECT_FALSE(readable(*reader));
  events.publish(event("after"));
  const auto after = read_all(*reader, &lost);
  ASSERT_EQ(after.size(), 1u);
  EXPECT_EQ(after[0].key, "after");
  EXPECT_EQ(lost, 0u);
  EXPECT_EQ(read_all(*other, &lost).size(), 1001u) << "the other reader was fast enough";
}

TEST(Events, AreNotWantedOnceTheReadersAreGone) {
  Events events;
  auto reader = *events.open(4096);
  reader.reset();
  events.publish(event("after the last reader"));
  EXPECT_FALSE(events.wanted());
}

TEST(Events, NoneIsLostOrReadTwiceWhileThreadsPublish) {
  constexpr int kThreads = 3, kEach = 5000;
  Events events;
  const auto reader = *events.open(1 << 14);
  std::atomic<int> running{kThreads};
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < kEach; ++i) events.publish(event(fmt::format("{} {}", t, i)));
      --running;
    });
  }
  uint64_t seen = 0, lost = 0;
  std::vector<int> last(kThreads, -1);
  for (bool more = true; more;) {
    more = running > 0;
    uint64_t now = 0;
    const auto visit = [&](const Event& one) {
      const std::string key(one.key);
      const int t = key[0] - '0', i = std::stoi(key.substr(2));
      EXPECT_GT(i, last[t]);
      last[t] = i;
      ++seen;
      return true;
    };
    while (reader->read(100, visit, &now) > 0 || now > 0) {
      lost += now;
      now = 0;
    }
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(seen + lost, static_cast<uint64_t>(kThreads) * kEach);
}

// ---- of a pool ----

class PoolEvents : public ::testing::Test {
 protected:
  void open(uint64_t size_bytes, uint32_t evict_high_permille) {
    CreateOptions options;
    options.size_bytes = size_bytes;
    options.evict_high_permille = evict_high_permille;
    ASSERT_TRUE(Pool::create(locator_, options));
    auto pool = Pool::open(locator_);
    ASSERT_TRUE(pool) << pool.error().message();
    pool_.emplace(std::move(*pool));
    ns_ = *pool_->open_namespace({"events", ""});
    reader_ = *pool_->open_events(1 << 20);
  }
  void TearDown() override {
    pool_.reset();
    (void)Pool::destroy(locator_, true);
  }
  Status put(std::string_view key, uint64_t bytes, std::string_view user = {},
             const BlockAttributes& attributes = {}) {
    const std::vector<std::byte> value(bytes, std::byte{1});
    const ConstSpan piece{value.data(), value.size()};
    return pool_->put(ns_, key, {&piece, 1}, user, attributes);
  }
  std::vector<Seen> seen() {
    uint64_t lost = 0;
    auto all = read_all(*reader_, &lost);
    EXPECT_EQ(lost, 0u);
    return all;
  }
  bool stored(std::string_view key) {
    uint8_t present = 0;
    return *pool_->exists(ns_, {&key, 1}, {&present, 1}) == 1;
  }

  std::string locator_ = unique_locator();
  std::optional<Pool> pool_;
  NamespaceId ns_ = 0;
  std::shared_ptr<EventReader> reader_;
};

TEST_F(PoolEvents, OfPutsAndRemovals) {
  open(64 << 20, 0);
  ASSERT_EQ(put("a", 20'000, "of a"), Status::OK);
  ASSERT_EQ(put("a", 20'000, "again"), Status::OK);  // present: no event
  ASSERT_EQ(put("b", 30'000), Status::OK);
  auto reserved = pool_->reserve(ns_, "c", 5000, "of c");
  ASSERT_TRUE(reserved);
  ASSERT_EQ(pool_->commit(*reserved), Status::OK);
  ASSERT_EQ(pool_->remove(ns_, "a"), Status::OK);
  ASSERT_TRUE(pool_->remove_namespace("events"));
  auto all = seen();
  ASSERT_EQ(all.size(), 6u);
  EXPECT_EQ(all[0], (Seen{EventKind::STORED, "a", "of a", 20'000}));
  EXPECT_EQ(all[1], (Seen{EventKind::STORED, "b", "", 30'000}));
  EXPECT_EQ(all[2], (Seen{EventKind::STORED, "c", "of c", 5000}));
  EXPECT_EQ(all[3], (Seen{EventKind::REMOVED, "a", "of a", 20'000}));
  if (all[4].key == "c") std::swap(all[4], all[5]);
  EXPECT_EQ(all[4], (Seen{EventKind::REMOVED, "b", "", 30'000}));
  EXPECT_EQ(all[5], (Seen{EventKind::REMOVED, "c", "of c", 5000}));
}

/// Stored less evicted is present.
TEST_F(PoolEvents, OfEvictionsMatchWhatIsStored) {
  open(32 << 20, 980);
  std::set<std::string> expected;
  uint64_t evicted = 0;
  for (int i = 0; i < 200; ++i) {
    ASSERT_EQ(put(fmt::format("key {}", i), 500'000, fmt::format("user {}", i)), Status::OK);
    for (const Seen& one : seen()) {
      EXPECT_EQ(one.user, "user" + one.key.substr(3));
      if (one.kind == EventKind::STORED) {
        expected.insert(one.key);
      } else {
        EXPECT_EQ(one.kind, EventKind::EVICTED);
        EXPECT_EQ(expected.erase(one.key), 1u);
        ++evicted;
      }
    }
  }
  EXPECT_GT(evicted, 50u);
  std::set<std::string> present;
  ASSERT_EQ(pool_->list([&](const BlockInfo& block) {
    present.insert(block.key);
    return true;
  }),
            Status::OK);
  EXPECT_EQ(present, expected);
}

// ---- attributes that act ----

TEST_F(PoolEvents, PinnedBlocksAreNotEvicted) {
  open(32 << 20, 980);
  ASSERT_EQ(put("hard", 500'000, {}, {.hard_pin = true}), Status::OK);
  ASSERT_EQ(put("soft", 500'000, {}, {.soft_pin = true}), Status::OK);
  ASSERT_EQ(put("none", 500'000), Status::OK);
  for (int i = 0; i < 300; ++i) ASSERT_EQ(put(fmt::format("key {}", i), 500'000), Status::OK);
  EXPECT_TRUE(stored("hard"));
  EXPECT_TRUE(stored("soft"));
  EXPECT_FALSE(stored("none"));
  ASSERT_TRUE(pool_->set_attributes(ns_, "hard", {}));
  ASSERT_TRUE(pool_->set_attributes(ns_, "soft", {}));
  for (int i = 0; i < 300; ++i) ASSERT_EQ(put(fmt::format("more {}", i), 500'000), Status::OK);
  EXPECT_FALSE(stored("hard")) << "its pin is gone";
}

/// Victims are chosen some time before they are evicted.
TEST_F(PoolEvents, PinsHoldFromTheMomentTheyAreSet) {
  open(64 << 20, 980);
  std::vector<std::string> names;
  for (int i = 0; i < 5000; ++i) {
    names.push_back(fmt::format("key {}", i));
    ASSERT_EQ(put(names.back(), 16'000), Status::OK);
  }
  std::vector<std::string> pinned;
  for (const std::string& name : names) {
    if (pinned.size() < 300 && pool_->set_attributes(ns_, name, {.hard_pin = true}))
      pinned.push_back(name);
  }
  ASSERT_EQ(pinned.size(), 300u);
  for (int i = 0; i < 2000; ++i) ASSERT_EQ(put(fmt::format("more {}", i), 16'000), Status::OK);
  for (const std::string& name : pinned) EXPECT_TRUE(stored(name)) << name;
}

/// Room for a large block is made of blocks without pins, as long as there are some.
TEST_F(PoolEvents, SoftPinsHoldWhereWholeExtentsAreEmptied) {
  open(64 << 20, 980);
  std::vector<std::string> names;
  for (int i = 0; i < 1000; ++i) names.push_back(fmt::format("soft {}", i));
  for (const std::string& name : names)
    ASSERT_EQ(put(name, 16'000, {}, {.soft_pin = true}), Status::OK);
  for (int i = 0; i < 2500; ++i) ASSERT_EQ(put(fmt::format("free {}", i), 16'000), Status::OK);
  for (int i = 0; i < 15; ++i) ASSERT_EQ(put(fmt::format("large {}", i), 1 << 20), Status::OK);
  for (const std::string& name : names) EXPECT_TRUE(stored(name)) << name;
}

TEST_F(PoolEvents, SoftPinsGiveWayAndHardPinsDoNot) {
  open(32 << 20, 980);
  for (int i = 0; i < 300; ++i)
    ASSERT_EQ(put(fmt::format("soft {}", i), 500'000, {}, {.soft_pin = true}), Status::OK) << i;
  Status status = Status::OK;
  int pinned = 0;
  for (; status == Status::OK && pinned < 300; ++pinned)
    status = put(fmt::format("hard {}", pinned), 500'000, {}, {.hard_pin = true});
  EXPECT_EQ(status, Status::NO_SPACE);
  --pinned;
  EXPECT_GT(pinned, 20);
  for (int i = 0; i < pinned; ++i) EXPECT_TRUE(stored(fmt::format("hard {}", i))) << i;
  const auto pressure = pool_->pressure();
  ASSERT_TRUE(pressure);
  EXPECT_TRUE(pressure->saturated);
  EXPECT_GT(pressure->used_permille, 700u);
}

/// Whether or not there is eviction for space.
TEST_F(PoolEvents, TheNextPutEvictsBlocksWhoseTimeIsOver) {
  for (const uint32_t high : {980u, 0u}) {
    open(64 << 20, high);
    const auto now_s = static_cast<uint32_t>(time(nullptr));
    ASSERT_EQ(put("over", 20'000, {}, {.hard_pin = true, .expires_unix_s = now_s - 1}), Status::OK);
    ASSERT_EQ(put("later", 20'000, {}, {.expires_unix_s = now_s + 3600}), Status::OK);
    ASSERT_EQ(put("set", 20'000), Status::OK);
    ASSERT_EQ(put("changed", 20'000, {}, {.expires_unix_s = now_s + 3600}), Status::OK);
    ASSERT_TRUE(pool_->set_attributes(ns_, "set", {.expires_unix_s = now_s - 1}));
    ASSERT_TRUE(pool_->set_attributes(ns_, "changed", {.expires_unix_s = now_s - 1}));
    ASSERT_EQ(put("prolonged", 20'000, {}, {.expires_unix_s = now_s + 3600}), Status::OK);
    ASSERT_EQ(put("next", 20'000), Status::OK);
    EXPECT_FALSE(stored("over"));
    EXPECT_FALSE(stored("set"));
    EXPECT_FALSE(stored("changed"));
    EXPECT_TRUE(stored("later"));
    EXPECT_TRUE(stored("next"));
    TearDown();
  }
}

/// It is evicted a second or so after the lease ends, and its time is not forgotten.
TEST_F(PoolEvents, ABlockWhoseTimeIsOverStaysWhileItIsLeased) {
  open(64 << 20, 980);
  const auto now_s = static_cast<uint32_t>(time(nullptr));
  ASSERT_EQ(put("leased", 20'000, {}, {.expires_unix_s = now_s + 1}), Status::OK);
  auto lease = pool_->acquire(ns_, "leased", 60'000);
  ASSERT_TRUE(lease);
  while (time(nullptr) <= now_s + 1) std::this_thread::sleep_for(std::chrono::milliseconds(50));
  ASSERT_EQ(put("next", 20'000), Status::OK);
  EXPECT_TRUE(stored("leased"));
  EXPECT_EQ(pool_->release(*lease), Status::OK);
  EXPECT_TRUE(eventually([&] {
    EXPECT_EQ(put("another", 20'000), Status::OK);
    (void)pool_->remove(ns_, "another");
    return !stored("leased");
  }));
}

/// Times that are set again and again, of blocks that are gone too, take no more memory, and none
/// makes one put wait for all.
TEST_F(PoolEvents, ManyTimesToLive) {
  open(64 << 20, 980);
  const auto soon_s = static_cast<uint32_t>(time(nullptr)) + 2;
  ASSERT_EQ(put("same", 20'000), Status::OK);
  for (int i = 0; i < 20'000; ++i)
    ASSERT_TRUE(pool_->set_attributes(ns_, "same", {.expires_unix_s = soon_s + 3600}));
  for (int i = 0; i < 3000; ++i)
    ASSERT_EQ(put(fmt::format("key {}", i), 20'000, {}, {.expires_unix_s = soon_s}), Status::OK);
  while (time(nullptr) <= soon_s) std::this_thread::sleep_for(std::chrono::milliseconds(50));
  EXPECT_TRUE(eventually([&] {
    EXPECT_EQ(put("next", 20'000), Status::OK);
    (void)pool_->remove(ns_, "next");
    return pool_->info()->blocks == 1;
  }));
  EXPECT_TRUE(stored("same"));
}

TEST_F(PoolEvents, ATimeThatWasProlongedIsNotOver) {
  open(64 << 20, 980);
  const auto now_s = static_cast<uint32_t>(time(nullptr));
  ASSERT_EQ(put("prolonged", 20'000, {}, {.expires_unix_s = now_s + 1}), Status::OK);
  ASSERT_TRUE(pool_->set_attributes(ns_, "prolonged", {.expires_unix_s = now_s + 3600}));
  while (time(nullptr) <= now_s + 1) std::this_thread::sleep_for(std::chrono::milliseconds(50));
  ASSERT_EQ(put("next", 20'000), Status::OK);
  EXPECT_TRUE(stored("prolonged"));
}

/// One thread puts a key, another removes it: no end of a block comes before its beginning.
TEST_F(PoolEvents, ComeInTheOrderOfTheBlocks) {
  open(64 << 20, 0);
  std::atomic<bool> stop{false};
  std::thread putter([&] {
    while (!stop) (void)put("key", 5000);
  });
  std::thread remover([&] {
    while (!stop) (void)pool_->remove(ns_, "key");
  });
  std::set<uint64_t> ended;
  uint64_t wrong = 0, lost_all = 0;
  for (int seen = 0; seen < 20'000;) {
    uint64_t lost = 0;
    seen += static_cast<int>(reader_->read(
        1000,
        [&](const Event& one) {
          if (one.kind == EventKind::STORED)
            wrong += ended.count(one.stamp);
          else
            ended.insert(one.stamp);
          return true;
        },
        &lost));
    lost_all += lost;
  }
  stop = true;
  putter.join();
  remover.join();
  EXPECT_EQ(wrong, 0u);
  EXPECT_EQ(lost_all, 0u);
}

// ---- prefixes ----

/// Leased or not, eviction takes a prefix from its end.
TEST_F(PoolEvents, APrefixThatWasLeasedIsEvictedFromItsEnd) {
  open(64 << 20, 980);
  std::vector<std::string> names;
  for (int i = 0; i < 1000; ++i) names.push_back(fmt::format("block {}", i));
  for (const std::string& name : names) ASSERT_EQ(put(name, 16'000), Status::OK);
  const std::vector<std::string_view> keys(names.begin(), names.end());
  auto prefix = pool_->acquire_prefix(ns_, keys, 60'000);
  ASSERT_TRUE(prefix) << prefix.error().message();
  ASSERT_EQ(prefix->leases.size(), 1000u);
  for (Lease& lease : prefix->leases) ASSERT_EQ(pool_->release(lease), Status::OK);
  const auto count = [&](size_t from, size_t to) {
    size_t n = 0;
    for (size_t i = from; i < to; ++i) n += stored(names[i]) ? 1 : 0;
    return n;
  };
  for (int i = 0; count(0, 1000) > 500; ++i)
    ASSERT_EQ(put(fmt::format("more {}", i), 16'000), Status::OK);
  EXPECT_GT(count(0, 500), count(500, 1000) + 200);
}

TEST_F(PoolEvents, APrefixIsLeasedUpToTheFirstGap) {
  open(64 << 20, 0);
  std::vector<std::string> names;
  for (int i = 0; i < 10; ++i) names.push_back(fmt::format("block {}", i));
  for (int i = 0; i < 10; ++i) {
    if (i == 7) continue;
    ASSERT_EQ(put(names[i], 20'000 + i), Status::OK);
  }
  const std::vector<std::string_view> keys(names.begin(), names.end());
  auto prefix = pool_->acquire_prefix(ns_, keys, 10'000);
  ASSERT_TRUE(prefix) << prefix.error().message();
  ASSERT_EQ(prefix->leases.size(), 7u);
  EXPECT_EQ(prefix->length_bytes, 7 * 20'000u + 21);
  EXPECT_EQ(prefix->stored_bytes, prefix->length_bytes);
  EXPECT_GT(prefix->restore_ns, 0u);
  for (size_t i = 0; i < 7; ++i) EXPECT_EQ(prefix->leases[i].length_bytes, 20'000 + i);
  for (Lease& lease : prefix->leases) EXPECT_EQ(pool_->release(lease), Status::OK);

  for (const auto& [group, blocks] : {std::pair(2u, 6u), std::pair(5u, 5u), std::pair(10u, 0u)}) {
    auto grouped = pool_->acquire_prefix(ns_, keys, 10'000, group);
    ASSERT_TRUE(grouped);
    EXPECT_EQ(grouped->leases.size(), blocks) << "groups of " << group;
    for (Lease& lease : grouped->leases) EXPECT_EQ(pool_->release(lease), Status::OK);
  }
  EXPECT_EQ(pool_->acquire_prefix(ns_, keys, 10'000, 3).status(), Status::INVALID_ARGUMENT);
  EXPECT_EQ(pool_->info()->hosts[0].leases_active, 0u) << "half groups were given back";
}

}  // namespace
}  // namespace bowhead::test
