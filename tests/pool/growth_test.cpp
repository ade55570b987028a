// SPDX-License-Identifier: Apache-2.0
// Pools that grow by further media while they are in use.
#include <bowhead/format/medium.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <functional>
#include <optional>
#include <thread>
#include <vector>

#include "pool/core/layout.h"
#include "tests/support/hosts.h"
#include "tests/support/pools.h"

namespace bowhead::test {
namespace {

constexpr uint64_t kMiB = 1 << 20;
constexpr size_t kValue = 1 << 20;

std::string key_of(uint64_t n) { return "key-" + std::to_string(n); }

/// Further media of a pool, which go with the fixture.
class Growth : public testing::Test {
 protected:
  std::string further(int n) const { return base_ + "-" + std::to_string(n); }
  std::string path(int n) const {
    return "/dev/shm/bowhead-" + further(n).substr(std::string("shm:").size());
  }
  bool exists(int n) const { return access(path(n).c_str(), F_OK) == 0; }
  ~Growth() override {
    for (int n = 0; n < 20; ++n) unlink(path(n).c_str());
  }

  /// Asks again as long as the pool is BUSY: a host can be slow to map the medium.
  Result<uint64_t> grow(Pool& pool, int n, uint64_t size_bytes) const {
    Result<uint64_t> grown = Error{Status::BUSY, ""};
    (void)eventually([&] {
      grown = pool.grow(further(n), {.size_bytes = size_bytes});
      return grown.status() != Status::BUSY;
    });
    return grown;
  }

  /// Both copies of the label of a medium.
  static void damage_label(const std::string& path) {
    std::fstream file(path, std::ios::binary | std::ios::in | std::ios::out);
    for (const std::streamoff copy :
         {std::streamoff{0}, std::streamoff{BH_SUPERBLOCK_COPY_OFFSET}}) {
      file.seekp(copy + static_cast<std::streamoff>(offsetof(bh_medium_label, set_id)));
      file.write("damage", 6);
    }
    ASSERT_TRUE(file.flush());
  }
  static int copy(const std::string& from, const std::string& to) {
    std::ifstream in(from, std::ios::binary);
    std::ofstream out(to, std::ios::binary);
    out << in.rdbuf();
    out.close();
    return in && out ? chmod(to.c_str(), 0600) : -1;
  }

  static CreateOptions options(uint32_t hosts = 1) {
    CreateOptions options;
    options.size_bytes = 96 * kMiB;
    options.max_bytes = 1024 * kMiB;
    options.hosts = hosts;
    options.evict_high_permille = 0;
    options.times = kShortTimes;
    return options;
  }

 private:
  const std::string base_ = "shm:further-" + std::to_string(getpid());
};

/// Stores values until there is no space; how many.
template <class Put>
uint64_t fill(uint64_t from, Put put) {
  uint64_t n = from;
  for (Status status = Status::OK; status == Status::OK; n += status == Status::OK)
    status = put(key_of(n), bytes(kValue, n));
  return n;
}

TEST_F(Growth, TakesBlocksAndKeepsThem) {
  TestPool pool(96 * kMiB, options());
  const auto put = [&](const std::string& key, const std::vector<std::byte>& value) {
    return pool.put(key, value);
  };
  const uint64_t before = fill(0, put);
  const PoolInfo old = pool.info();
  const auto grown = pool.pool().grow(further(0), {.size_bytes = 64 * kMiB});
  ASSERT_TRUE(grown) << grown.error().message();
  const PoolInfo now = pool.info();
  EXPECT_EQ(now.size_bytes, old.size_bytes + 64 * kMiB);
  EXPECT_EQ(now.payload_bytes, old.payload_bytes + *grown);
  EXPECT_EQ(now.max_bytes, 1024 * kMiB);
  ASSERT_EQ(now.sets.size(), 1u);
  EXPECT_EQ(now.sets[0].locator, further(0));
  EXPECT_EQ(now.sets[0].state, "used");
  const uint64_t after = fill(before, put);
  EXPECT_GE((after - before) * kValue, *grown * 9 / 10);
  const auto all_there = [&] {
    for (uint64_t n = 0; n < after; ++n) ASSERT_EQ(pool.get(key_of(n)), bytes(kValue, n)) << n;
    EXPECT_TRUE(pool.check_clean());
  };
  all_there();
  pool.close();
  pool.open();
  all_there();
  // Again, by two joined media.
  ASSERT_TRUE(pool.pool().grow(further(1) + "+" + further(2), {.size_bytes = 64 * kMiB}));
  const uint64_t more = fill(after, put);
  EXPECT_GT(more, after + 40);
  for (uint64_t n = 0; n < more; n += 3)
    EXPECT_TRUE(pool.pool().remove(pool.ns(), key_of(n)) == Status::OK);
  pool.close();
  pool.open();
  for (uint64_t n = 0; n < more; ++n) {
    const std::vector<std::byte> expected =
        n % 3 == 0 ? std::vector<std::byte>{} : bytes(kValue, n);
    ASSERT_EQ(pool.get(key_of(n)), expected) << n;
  }
  EXPECT_TRUE(pool.check_clean());
  pool.close();
  ASSERT_TRUE(Pool::destroy(pool.locator(), false));
  for (int n = 0; n < 3; ++n) EXPECT_FALSE(exists(n)) << n;
}

TEST_F(Growth, OtherProcessesOfTheHostSeeIt) {
  TestPool pool(96 * kMiB, options());
  TestPool other(pool.locator());
  auto watching = Pool::open(pool.locator(), {.observe = true});
  ASSERT_TRUE(watching);
  const uint64_t before = fill(0, [&](const auto& key, const auto& v) { return pool.put(key, v); });
  ASSERT_TRUE(pool.pool().grow(further(0), {.size_bytes = 64 * kMiB}));
  ASSERT_EQ(pool.put("new", bytes(kValue, 1)), Status::OK);
  EXPECT_EQ(other.get("new"), bytes(kValue, 1));
  EXPECT_EQ(other.put("new", bytes(kValue, 2)), Status::OK);  // is there
  EXPECT_EQ(other.info().sets.size(), 1u);
  EXPECT_EQ(other.put("theirs", bytes(kValue, 3)), Status::OK);
  EXPECT_EQ(pool.get("theirs"), bytes(kValue, 3));
  EXPECT_EQ(other.pool().remove(other.ns(), "new"), Status::OK);
  EXPECT_TRUE(pool.get("new").empty());
  std::this_thread::sleep_for(std::chrono::milliseconds(150));
  EXPECT_EQ(watching->info()->sets.size(), 1u);
  EXPECT_EQ(*watching->length(pool.ns(), "theirs"), kValue);
  EXPECT_GT(before, 10u);
}

TEST_F(Growth, IsSeenByOtherHosts) {
  SharedPool shared(3, options());
  Host first = shared.open(0), second = shared.open(1);
  const auto fill_as_host = [](Host& host, uint64_t from) {
    uint64_t n = from;
    while (host.put(key_of(n), kValue) == Status::OK) ++n;
    return n;
  };
  const uint64_t before = fill_as_host(first, 0);
  const auto grown = grow(first.pool(), 0, 128 * kMiB);
  ASSERT_TRUE(grown) << grown.error().message();
  const uint64_t after = fill_as_host(first, before);
  EXPECT_GT(after, before + 50);
  for (uint64_t n = 0; n < after; ++n) ASSERT_EQ(second.get(key_of(n), kValue), Status::OK) << n;
  Host third = shared.open(2);
  for (uint64_t n = 0; n < after; ++n) ASSERT_EQ(third.get(key_of(n), kValue), Status::OK) << n;
  EXPECT_EQ(third.pool().info()->sets.size(), 1u);
  // A host that is full gets extents of the new set.
  const uint64_t theirs = fill_as_host(second, 10'000);
  for (uint64_t n = 0; n < after / 2; ++n) ASSERT_EQ(first.remove(key_of(n)), Status::OK);
  EXPECT_TRUE(eventually([&] { return second.put(key_of(20'000), kValue) == Status::OK; }));
  for (uint64_t n = 10'000; n < theirs; ++n)
    ASSERT_EQ(first.get(key_of(n), kValue), Status::OK) << n;
}

TEST_F(Growth, IsRefused) {
  const auto expect = [&](Pool& pool, const std::string& locator, GrowOptions grow, Status status,
                          const std::string& part) {
    const auto grown = pool.grow(locator, grow);
    EXPECT_EQ(grown.status(), status);
    EXPECT_NE(grown.error().message().find(part), std::string::npos) << grown.error().message();
    EXPECT_EQ(pool.info()->sets.size(), 0u);
    EXPECT_FALSE(exists(0));
  };
  TestPool fixed(64 * kMiB);
  expect(fixed.pool(), further(0), {.size_bytes = 64 * kMiB}, Status::NOT_SUPPORTED, "--max-size");
  TestPool pool(96 * kMiB, options());
  expect(pool.pool(), further(0), {.size_bytes = 2048 * kMiB}, Status::LIMIT_REACHED, "at most");
  expect(pool.pool(), further(0), {}, Status::TOO_SMALL, "--size");
  expect(pool.pool(), further(0), {.size_bytes = 2 * kMiB}, Status::TOO_SMALL, "room");
  expect(pool.pool(), "nonsense", {.size_bytes = 64 * kMiB}, Status::BAD_LOCATOR, "nonsense");
  expect(pool.pool(), pool.locator(), {.size_bytes = 64 * kMiB}, Status::POOL_EXISTS, "");
  EXPECT_TRUE(pool.check_clean());
}

/// Also where the caller insists, a pool in use loses no media.
TEST_F(Growth, MediaInUseAreNotOverwritten) {
  TestPool pool(96 * kMiB, options());
  ASSERT_TRUE(pool.pool().grow(further(0), {.size_bytes = 64 * kMiB}));
  const uint64_t count =
      fill(0, [&](const auto& key, const auto& value) { return pool.put(key, value); });
  const GrowOptions force{.size_bytes = 64 * kMiB, .replace = true};
  EXPECT_EQ(pool.pool().grow(further(0), force).status(), Status::IN_USE);
  EXPECT_EQ(pool.pool().grow(pool.locator(), force).status(), Status::IN_USE);
  TestPool other(96 * kMiB, options());
  EXPECT_EQ(other.pool().grow(further(0), force).status(), Status::IN_USE);
  CreateOptions create = options();
  create.replace = true;
  EXPECT_EQ(Pool::create(further(0), create).status(), Status::IN_USE);
  EXPECT_EQ(Pool::create(pool.locator(), create).status(), Status::IN_USE);
  for (uint64_t n = 0; n < count; ++n) ASSERT_EQ(pool.get(key_of(n)), bytes(kValue, n)) << n;
  // What comes in the place of the pool takes its media along.
  pool.close();
  ASSERT_TRUE(Pool::create(pool.locator(), create));
  EXPECT_FALSE(exists(0));
}

/// Blocks of a pool that has grown by two sets, each of which can be taken away.
struct Spread {
  uint64_t on_set_0 = 0, on_set_1 = 0, all = 0;  ///< keys below
};

template <class Put, class Grow>
Spread spread_over_sets(Put put, Grow grow) {
  Spread spread;
  spread.on_set_0 = fill(0, put);
  grow(0);
  spread.on_set_1 = fill(spread.on_set_0, put);
  grow(1);
  spread.all = fill(spread.on_set_1, put);
  EXPECT_GT(spread.on_set_1, spread.on_set_0 + 20);
  EXPECT_GT(spread.all, spread.on_set_1 + 20);
  return spread;
}

TEST_F(Growth, WithoutAMediumAPoolIsReadOnly) {
  TestPool pool(96 * kMiB, options());
  const auto put = [&](const auto& key, const auto& value) { return pool.put(key, value); };
  const Spread spread = spread_over_sets(
      put, [&](int n) { ASSERT_TRUE(pool.pool().grow(further(n), {.size_bytes = 64 * kMiB})); });
  pool.close();
  // Missing, cut short, of another pool, and damaged.
  const auto whole = path(9);
  const std::pair<const char*, std::function<void()>> cases[] = {
      {"is not there", [&] { ASSERT_EQ(unlink(path(0).c_str()), 0); }},
      {"cut short", [&] { ASSERT_EQ(truncate(path(0).c_str(), 32 * kMiB), 0); }},
      {"not the one", [&] { ASSERT_EQ(copy(path(1), path(0)), 0); }},
      {"damaged", [&] { damage_label(path(0)); }}};
  for (const auto& [why, spoil] : cases) {
    SCOPED_TRACE(why);
    ASSERT_EQ(copy(path(0), whole), 0);
    spoil();
    const auto opened = Pool::open(pool.locator());
    ASSERT_FALSE(opened);
    const std::string message = opened.error().message();
    EXPECT_NE(message.find("set 1"), std::string::npos) << message;
    EXPECT_NE(message.find(further(0)), std::string::npos) << message;
    EXPECT_NE(message.find("--give-up-missing"), std::string::npos) << message;
    EXPECT_FALSE(Pool::repair(pool.locator()));
    auto watching = Pool::open(pool.locator(), {.observe = true});
    ASSERT_TRUE(watching) << watching.error().message();
    const PoolInfo info = *watching->info();
    ASSERT_EQ(info.sets.size(), 2u);
    EXPECT_EQ(info.sets[0].state, "missing");
    EXPECT_NE(info.sets[0].why_missing.find(why), std::string::npos) << info.sets[0].why_missing;
    EXPECT_EQ(info.sets[1].state, "used");
    EXPECT_EQ(info.size_bytes, (96 + 64 + 64) * kMiB);
    std::vector<std::byte> out(kValue);
    const Span to[] = {{out.data(), out.size()}};
    for (uint64_t n = 0; n < spread.all; ++n) {
      const bool there = n < spread.on_set_0 || n >= spread.on_set_1;
      const auto got = watching->get(pool.ns(), key_of(n), to);
      ASSERT_EQ(got.status(), there ? Status::OK : Status::NOT_FOUND) << n;
      if (there) {
        ASSERT_EQ(out, bytes(kValue, n)) << n;
      }
    }
    const auto report = watching->check(true);
    ASSERT_TRUE(report);
    ASSERT_EQ(report->findings.size(), 1u) << report->findings.back().what;
    EXPECT_TRUE(report->findings[0].data_lost);
    EXPECT_NE(report->findings[0].what.find(further(0)), std::string::npos);
    ASSERT_EQ(rename(whole.c_str(), path(0).c_str()), 0);
  }
  // It is back, and nothing is lost.
  pool.open();
  for (uint64_t n = 0; n < spread.all; ++n) ASSERT_EQ(pool.get(key_of(n)), bytes(kValue, n)) << n;
  EXPECT_TRUE(pool.check_clean());
}

TEST_F(Growth, AMediumThatIsGoneForGoodIsGivenUp) {
  TestPool pool(96 * kMiB, options());
  const auto put = [&](const auto& key, const auto& value) { return pool.put(key, value); };
  const Spread spread = spread_over_sets(
      put, [&](int n) { ASSERT_TRUE(pool.pool().grow(further(n), {.size_bytes = 64 * kMiB})); });
  pool.close();
  ASSERT_EQ(unlink(path(0).c_str()), 0);
  const auto repaired = Pool::repair(pool.locator(), {.give_up_missing = true});
  ASSERT_TRUE(repaired) << repaired.error().message();
  EXPECT_NE(repaired->front().find("gave up set 1"), std::string::npos) << repaired->front();
  pool.open();
  EXPECT_TRUE(pool.check_clean());
  ASSERT_EQ(pool.info().sets.size(), 1u);
  EXPECT_EQ(pool.info().sets[0].number, 2u);
  EXPECT_EQ(pool.info().blocks,
            static_cast<int64_t>(spread.all - (spread.on_set_1 - spread.on_set_0)));
  for (uint64_t n = 0; n < spread.all; ++n) {
    const bool there = n < spread.on_set_0 || n >= spread.on_set_1;
    ASSERT_EQ(pool.get(key_of(n)), there ? bytes(kValue, n) : std::vector<std::byte>{}) << n;
  }
  // The pool takes another medium in its place, and the lost values anew.
  ASSERT_TRUE(pool.pool().grow(further(3), {.size_bytes = 64 * kMiB}));
  for (uint64_t n = spread.on_set_0; n < spread.on_set_1; ++n)
    ASSERT_EQ(pool.put(key_of(n), bytes(kValue, n)), Status::OK) << n;
  pool.close();
  pool.open();
  for (uint64_t n = 0; n < spread.all; ++n) ASSERT_EQ(pool.get(key_of(n)), bytes(kValue, n)) << n;
  EXPECT_TRUE(pool.check_clean());
  // Of a pool that misses nothing, nothing is given up.
  pool.close();
  ASSERT_TRUE(Pool::repair(pool.locator(), {.give_up_missing = true}));
  pool.open();
  EXPECT_EQ(pool.info().sets.size(), 2u);
  for (uint64_t n = 0; n < spread.all; ++n) ASSERT_EQ(pool.get(key_of(n)), bytes(kValue, n)) << n;
}

TEST_F(Growth, AMediumOfSeveralHostsIsGivenUp) {
  SharedPool shared(3, options());
  Spread spread;
  {
    Host first = shared.open(0), second = shared.open(1);
    const auto put = [&](const auto& key, const auto&) { return first.put(key, kValue); };
    spread = spread_over_sets(put, [&](int n) { ASSERT_TRUE(grow(first.pool(), n, 64 * kMiB)); });
    ASSERT_EQ(unlink(path(0).c_str()), 0);
    // The hosts have it mapped, and go on.
    EXPECT_EQ(second.get(key_of(spread.on_set_0 + 1), kValue), Status::OK);
    EXPECT_EQ(Pool::repair(shared.locator(), {.give_up_missing = true}).status(), Status::IN_USE);
  }
  ASSERT_FALSE(Pool::open(shared.locator(), {.host = 0}));
  const auto repaired =
      Pool::repair(shared.locator(), {.take_over = true, .give_up_missing = true});
  ASSERT_TRUE(repaired) << repaired.error().message();
  EXPECT_TRUE(std::any_of(repaired->begin(), repaired->end(), [](const std::string& text) {
    return text.find("gave up set 1") != std::string::npos;
  }));
  Host first = shared.open(0), second = shared.open(1), third = shared.open(2);
  EXPECT_EQ(third.pool().info()->sets.size(), 1u);
  // Those after the first may lie on set 0 as well: the host got extents of it meanwhile.
  uint64_t lost = 0;
  for (uint64_t n = 0; n < spread.all; ++n) {
    const Status status = second.get(key_of(n), kValue);
    lost += status == Status::NOT_FOUND;
    ASSERT_TRUE(status == Status::OK || (status == Status::NOT_FOUND && n >= spread.on_set_0)) << n;
  }
  EXPECT_GT(lost, 20u);
  EXPECT_LT(lost, spread.all - spread.on_set_0);
  const auto report = third.pool().check(true);
  ASSERT_TRUE(report);
  EXPECT_TRUE(report->findings.empty()) << report->findings.front().what;
  const auto grown = grow(third.pool(), 3, 64 * kMiB);
  ASSERT_TRUE(grown) << grown.error().message();
  EXPECT_EQ(third.put("new", kValue), Status::OK);
  EXPECT_EQ(first.get("new", kValue), Status::OK);
}

TEST_F(Growth, DamagedTablesAreFoundAndRepaired) {
  TestPool pool(96 * kMiB, options());
  ASSERT_TRUE(pool.pool().grow(further(0), {.size_bytes = 64 * kMiB}));
  ASSERT_EQ(pool.put("kept", bytes(kValue, 1)), Status::OK);
  for (const uint64_t copy : {0, 1}) {
    auto* const base = const_cast<std::byte*>(pool.pool().mapping().data);
    const auto geometry = reinterpret_cast<const bh_superblock*>(base)->geometry;
    base[core::Layout(geometry).set_table(0, copy) + offsetof(bh_set_table, sets) + 8] ^=
        std::byte{1};
    pool.close();
    {
      auto watching = Pool::open(pool.locator(), {.observe = true});
      ASSERT_TRUE(watching);
      const auto report = watching->check(false);
      ASSERT_TRUE(report);
      ASSERT_EQ(report->findings.size(), 1u) << report->findings.back().what;
      EXPECT_FALSE(report->findings[0].data_lost);
      EXPECT_NE(report->findings[0].what.find("table of the sets"), std::string::npos);
    }
    ASSERT_TRUE(Pool::repair(pool.locator()));
    pool.open();
    EXPECT_EQ(pool.get("kept"), bytes(kValue, 1));
    EXPECT_TRUE(pool.check_clean());
    // The table is written in both copies again.
    ASSERT_TRUE(pool.pool().drain(1));
    ASSERT_TRUE(pool.pool().drain(1, {.undo = true}));
  }
}

TEST_F(Growth, SetsAreDrainedAndGo) {
  TestPool pool(96 * kMiB, options());
  TestPool other(pool.locator());
  for (int round = 0; round < 3; ++round) {
    const auto owned = [&] { return pool.info().hosts.at(0).extents_owned; };
    const uint64_t without = owned();
    ASSERT_TRUE(pool.pool().grow(further(round), {.size_bytes = 64 * kMiB}));
    const uint64_t with_first = owned();
    EXPECT_GT(with_first, without);
    ASSERT_TRUE(pool.pool().grow(further(10 + round), {.size_bytes = 64 * kMiB}));
    const uint64_t with_both = owned();
    const auto put = [&](const auto& key, const auto& value) { return pool.put(key, value); };
    const uint64_t all = fill(0, put);
    const uint32_t first = pool.info().sets[0].number, second = pool.info().sets[1].number;
    EXPECT_EQ(pool.pool().shrink(first).status(), Status::INVALID_ARGUMENT);
    // Half of the blocks go, so that the others have room elsewhere.
    for (uint64_t n = 0; n < all; n += 2)
      ASSERT_EQ(other.pool().remove(other.ns(), key_of(n)), Status::OK);
    const auto drained = pool.pool().drain(first);
    ASSERT_TRUE(drained) << drained.error().message();
    EXPECT_EQ(pool.info().sets[0].state, "draining");
    const auto shrunk = other.pool().shrink(first);
    ASSERT_TRUE(shrunk) << shrunk.error().message();
    EXPECT_FALSE(exists(round));
    ASSERT_EQ(pool.info().sets.size(), 1u);
    EXPECT_EQ(owned(), with_both - (with_first - without));
    for (uint64_t n = 0; n < all; ++n) {
      const auto expected = n % 2 == 0 ? std::vector<std::byte>{} : bytes(kValue, n);
      ASSERT_EQ(pool.get(key_of(n)), expected) << n;
      ASSERT_EQ(other.get(key_of(n)), expected) << n;
    }
    EXPECT_TRUE(pool.check_clean());
    // The numbers of the first set are free again, and the second keeps its own.
    ASSERT_TRUE(pool.pool().drain(second, {.undo = true}));
    for (uint64_t n = 1; n < all; n += 2)
      ASSERT_EQ(other.pool().remove(other.ns(), key_of(n)), Status::OK);
    ASSERT_TRUE(pool.pool().drain(second));
    ASSERT_TRUE(pool.pool().shrink(second));
    EXPECT_TRUE(pool.info().sets.empty());
  }
  EXPECT_EQ(pool.pool().drain(0).status(), Status::INVALID_ARGUMENT);
  EXPECT_EQ(pool.pool().drain(77).status(), Status::NOT_FOUND);
  EXPECT_EQ(pool.pool().shrink(77).status(), Status::NOT_FOUND);
  EXPECT_TRUE(pool.check_clean());
}

TEST_F(Growth, ALeasedBlockKeepsItsSet) {
  TestPool pool(96 * kMiB, options());
  fill(0, [&](const auto& key, const auto& value) { return pool.put(key, value); });
  ASSERT_TRUE(pool.pool().grow(further(0), {.size_bytes = 64 * kMiB}));
  ASSERT_EQ(pool.put("leased", bytes(kValue, 7)), Status::OK);
  for (uint64_t n = 0; n < 20; ++n) ASSERT_EQ(pool.pool().remove(pool.ns(), key_of(n)), Status::OK);
  auto lease = pool.pool().acquire(pool.ns(), "leased", 600'000);
  ASSERT_TRUE(lease);
  const auto drained = pool.pool().drain(1, {.cancelled = [] { return true; }});
  EXPECT_EQ(drained.status(), Status::CANCELLED);
  EXPECT_EQ(pool.pool().shrink(1).status(), Status::IN_USE);
  EXPECT_EQ(std::memcmp(lease->data, bytes(kValue, 7).data(), kValue), 0);
  ASSERT_EQ(pool.pool().release(*lease), Status::OK);
  ASSERT_TRUE(pool.pool().drain(1));
  ASSERT_TRUE(pool.pool().shrink(1));
  EXPECT_EQ(pool.get("leased"), bytes(kValue, 7));
}

/// A slab that the lease keeps on the set has room for blocks that are a little smaller.
TEST_F(Growth, ASetThatIsDrainedTakesNoBlock) {
  constexpr size_t kLeased = 36'000, kSmaller = 32'000;
  TestPool pool(96 * kMiB, options());
  const auto put = [&](const auto& key, const auto& value) { return pool.put(key, value); };
  fill(0, put);
  for (int n = 0; pool.put("small " + std::to_string(n), bytes(kSmaller, 1)) == Status::OK; ++n) {
  }
  ASSERT_TRUE(pool.pool().grow(further(0), {.size_bytes = 64 * kMiB}));
  for (int n = 0; n < 50; ++n)
    ASSERT_EQ(pool.put("b" + std::to_string(n), bytes(kLeased, n)), Status::OK);
  auto lease = pool.pool().acquire(pool.ns(), "b5", 600'000);
  ASSERT_TRUE(lease);
  for (int n = 0; n < 50; ++n) {
    if (n == 5) continue;
    ASSERT_EQ(pool.pool().remove(pool.ns(), "b" + std::to_string(n)), Status::OK);
  }
  const auto drained = pool.pool().drain(1, {.cancelled = [] { return true; }});
  ASSERT_EQ(drained.status(), Status::CANCELLED);
  ASSERT_EQ(pool.info().sets[0].state, "draining");
  EXPECT_EQ(pool.put("late", bytes(kSmaller, 1)), Status::NO_SPACE);
  ASSERT_EQ(pool.pool().release(*lease), Status::OK);
}

TEST_F(Growth, AValueMayTakeMostOfTheLargestSet) {
  TestPool pool(96 * kMiB, options());
  ASSERT_EQ(pool.put("large", bytes(120 * kMiB, 1)), Status::VALUE_TOO_LARGE);
  ASSERT_TRUE(pool.pool().grow(further(0), {.size_bytes = 192 * kMiB}));
  EXPECT_EQ(pool.put("large", bytes(120 * kMiB, 1)), Status::OK);
  EXPECT_EQ(pool.get("large"), bytes(120 * kMiB, 1));
  EXPECT_EQ(pool.put("larger", bytes(200 * kMiB, 1)), Status::VALUE_TOO_LARGE);
}

/// A host that grows the pool has all extents of the new set, but its share of the set's entries:
/// of small blocks, more fit there than it has entries for.
TEST_F(Growth, EntriesOfASetAreNotUsedUp) {
  CreateOptions of = options(8);
  of.min_block_bytes = 4096;
  of.evict_high_permille = CreateOptions{}.evict_high_permille;
  TestPool pool(256 * kMiB, of);
  ASSERT_TRUE(grow(pool.pool(), 0, 512 * kMiB));
  const auto value = bytes(3'000, 1);
  for (uint64_t n = 0; n < 60'000; ++n) ASSERT_EQ(pool.put(key_of(n), value), Status::OK) << n;
  EXPECT_EQ(pool.get(key_of(59'999)), value);
  EXPECT_GT(pool.info().evictions, 0u);
  EXPECT_TRUE(pool.check_clean());
}

/// Each host has blocks on a set that goes, and one of them dies meanwhile.
TEST_F(Growth, SetsOfSeveralHostsGo) {
  SharedPool shared(3, options(3));
  std::optional<Host> first = shared.open(0), second = shared.open(1);
  const auto fill_as_host = [](Host& host, uint64_t from) {
    uint64_t n = from;
    while (host.put(key_of(n), kValue) == Status::OK) ++n;
    return n;
  };
  const uint64_t before = fill_as_host(*first, 0);
  fill_as_host(*second, 50'000);
  ASSERT_TRUE(grow(first->pool(), 0, 128 * kMiB));
  // The second host asks for extents of the new set, since it has no space of its own.
  ASSERT_TRUE(eventually([&] { return second->put(key_of(70'000), kValue) == Status::OK; }));
  const uint64_t theirs = fill_as_host(*second, 70'001);
  const uint64_t after = fill_as_host(*first, before);
  ASSERT_TRUE(grow(first->pool(), 1, 256 * kMiB));
  const auto drained = second->pool().drain(1);
  ASSERT_TRUE(drained) << drained.error().message();
  for (uint64_t n = 0; n < after; ++n) ASSERT_EQ(second->get(key_of(n), kValue), Status::OK) << n;
  for (uint64_t n = 70'000; n < theirs; ++n)
    ASSERT_EQ(first->get(key_of(n), kValue), Status::OK) << n;
  const auto shrunk = first->pool().shrink(1);
  ASSERT_TRUE(shrunk) << shrunk.error().message();
  EXPECT_FALSE(exists(0));
  EXPECT_EQ(second->pool().info()->sets.size(), 1u);
  for (uint64_t n = 0; n < after; ++n) ASSERT_EQ(second->get(key_of(n), kValue), Status::OK) << n;
  // The numbers of the set that went are used again, by another host.
  ASSERT_TRUE(grow(second->pool(), 2, 128 * kMiB));
  const uint64_t more = fill_as_host(*second, 90'000);
  EXPECT_GT(more, 90'040u);
  for (uint64_t n = 90'000; n < more; ++n)
    ASSERT_EQ(first->get(key_of(n), kValue), Status::OK) << n;
  const auto checked = first->pool().check(true);
  ASSERT_TRUE(checked);
  for (const auto& finding : checked->findings) ADD_FAILURE() << finding.what;
}

/// Puts, and gets of what both hosts have put, as fast as it can until it is to stop.
struct Traffic {
  Traffic(Host& host, uint64_t first_key, const std::atomic<bool>& is_over)
      : thread([this, &host, first_key, &is_over] {
          for (uint64_t n = first_key; !is_over; ++n) {
            time([&] { return host.put(key_of(n % 16 + first_key), kBytes); });
            time([&] { return host.get(key_of(n % 16 + first_key), kBytes); });
          }
        }) {}
  template <class Operation>
  void time(Operation operation) {
    const auto begin = std::chrono::steady_clock::now();
    const Status status = operation();
    const auto took = std::chrono::steady_clock::now() - begin;
    longest = std::max<std::chrono::duration<double, std::milli>>(longest, took);
    ++operations;
    failures += status != Status::OK;
  }

  static constexpr size_t kBytes = 100'000;
  uint64_t operations = 0, failures = 0;
  std::chrono::duration<double, std::milli> longest{0};
  std::thread thread;  ///< last: it uses the others
};

TEST_F(Growth, OperationsGoOnMeanwhile) {
  SharedPool shared(2, options(2));
  Host first = shared.open(0), second = shared.open(1);
  std::atomic<bool> is_over{false};
  Traffic mine(first, 0, is_over), theirs(second, 100, is_over);
  for (int n = 0; n < 4; ++n) {
    const auto grown = grow(first.pool(), n, 128 * kMiB);
    EXPECT_TRUE(grown) << grown.error().message();
  }
  is_over = true;
  for (Traffic* traffic : {&mine, &theirs}) {
    traffic->thread.join();
    EXPECT_EQ(traffic->failures, 0u);
    EXPECT_GT(traffic->operations, 10u);
    // On an idle machine below 100 ms (docs/media.md).
    RecordProperty("longest_ms", std::to_string(traffic->longest.count()));
    std::printf("%lu operations, the longest took %.2f ms\n", traffic->operations,
                traffic->longest.count());
  }
}

/// As of a pool that was opened (pool_test.cpp), also of media that come later.
TEST_F(Growth, PagesOfNewMediaAreTouched) {
  SharedPool shared(1, options());
  auto pool = Pool::open(shared.locator());
  ASSERT_TRUE(pool);
  const auto grown = pool->grow(further(0), {.size_bytes = 64 * kMiB});
  ASSERT_TRUE(grown) << grown.error().message();
  const auto present = [&] {
    uint64_t bytes = 0;
    std::ifstream smaps("/proc/self/smaps");
    bool inside = false;
    for (std::string line; std::getline(smaps, line);) {
      if (line.find(" /dev/") != std::string::npos)
        inside = line.find(path(0)) != std::string::npos;
      if (inside && line.starts_with("Rss:")) bytes += std::stoull(line.substr(4)) * 1024;
    }
    return bytes;
  };
  for (int i = 0; i < 2000 && present() < 64 * kMiB; ++i) sleep_ms(10);
  EXPECT_GE(present(), 64 * kMiB);
}

/// A set comes while all processes put and get, is drained, and goes, again and again.
TEST_F(Growth, SetsComeAndGoUnderLoad) {
  SharedPool shared(2, options(2));
  Host first = shared.open(0), second = shared.open(1);
  std::atomic<bool> is_over{false};
  std::vector<std::thread> threads;
  for (Host* host : {&first, &second}) {
    threads.emplace_back([host, &is_over, base = host == &first ? 0u : 1000u] {
      for (uint64_t n = 0; !is_over; ++n) {
        const std::string key = key_of(base + n % 40);
        const Status put = host->put(key, kValue);
        EXPECT_TRUE(put == Status::OK || put == Status::NO_SPACE || put == Status::BUSY)
            << static_cast<uint32_t>(put);
        const Status got = host->get(key, kValue);  // it may be moved meanwhile
        EXPECT_TRUE(got == Status::OK || got == Status::NOT_FOUND) << static_cast<uint32_t>(got);
        if (n % 3 == 0) (void)host->remove(key);
      }
    });
  }
  for (int n = 0; n < 5; ++n) {
    Pool& pool = n % 2 == 0 ? first.pool() : second.pool();
    const auto grown = grow(pool, n, 128 * kMiB);
    ASSERT_TRUE(grown) << grown.error().message();
    sleep_ms(200);
    const uint32_t number = pool.info()->sets[0].number;
    const auto drained = pool.drain(number);
    EXPECT_TRUE(drained) << drained.error().message();
    const auto shrunk = pool.shrink(number);
    EXPECT_TRUE(shrunk) << shrunk.error().message();
  }
  is_over = true;
  for (std::thread& thread : threads) thread.join();
  const auto checked = first.pool().check(true);
  ASSERT_TRUE(checked);
  for (const auto& finding : checked->findings) ADD_FAILURE() << finding.what;
}

}  // namespace
}  // namespace bowhead::test
