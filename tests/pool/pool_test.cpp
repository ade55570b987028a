// SPDX-License-Identifier: Apache-2.0
// The pool as its users see it: values that were put are returned, and errors are reported.
#include "pool/pool.h"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <ctime>
#include <deque>
#include <fstream>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include "base/checksum.h"
#include "base/random.h"
#include "tests/support/pools.h"

namespace bowhead {
namespace {

using test::TestPool;

TEST(Pool, ValuesAreReturnedByteForByte) {
  TestPool t(64 << 20);
  for (const size_t size : {1ul, 63ul, 4096ul, 4097ul, 16384ul, 65536ul, 1000001ul, 5000000ul}) {
    const auto value = test::bytes(size, size);
    const std::string key = "key-" + std::to_string(size);
    ASSERT_EQ(t.put(key, value), Status::OK) << size;
    EXPECT_EQ(t.get(key), value) << size;
  }
  EXPECT_TRUE(t.check_clean());
}

TEST(Pool, AnotherProcessSeesPuts) {
  TestPool t(32 << 20);
  const auto value = test::bytes(100000, 7);
  const int status = test::in_child([&] {
    TestPool child(t.locator());
    return child.put("k", value) == Status::OK ? 0 : 1;
  });
  ASSERT_EQ(status, 0);
  EXPECT_EQ(t.get("k"), value);
}

TEST(Pool, PutOfAPresentKeySucceedsAndKeepsTheFirst) {
  TestPool t(32 << 20);
  const auto first = test::bytes(20000, 1), second = test::bytes(20000, 2);
  EXPECT_EQ(t.put("k", first), Status::OK);
  EXPECT_EQ(t.put("k", second), Status::OK);
  EXPECT_EQ(t.get("k"), first);
  EXPECT_EQ(t.info().blocks, 1);
}

TEST(Pool, ScatteredBuffersAreOneValue) {
  TestPool t(32 << 20);
  const auto value = test::bytes(50000, 3);
  const ConstSpan in[] = {
      {value.data(), 1}, {value.data() + 1, 4999}, {value.data() + 5000, 45000}};
  ASSERT_EQ(t.pool().put(t.ns(), "k", in), Status::OK);
  std::vector<std::byte> out(60000);
  const Span to[] = {{out.data(), 33000}, {out.data() + 33000, 7}, {out.data() + 33007, 20000}};
  auto length = t.pool().get(t.ns(), "k", to);
  ASSERT_TRUE(length);
  EXPECT_EQ(*length, value.size());
  EXPECT_EQ(std::memcmp(out.data(), value.data(), value.size()), 0);
}

TEST(Pool, KeysOfAllLengthsAreVerifiedInFull) {
  TestPool t(32 << 20);
  for (size_t n : {1u, 63u, 64u, 65u, 128u, 200u, 511u, 512u}) {
    std::string key(n, 'a');
    ASSERT_EQ(t.put(key, test::bytes(100, n)), Status::OK) << n;
    EXPECT_EQ(t.get(key), test::bytes(100, n)) << n;
    key.back() = 'b';
    EXPECT_EQ(t.get_status(key), Status::NOT_FOUND) << n;
  }
  EXPECT_EQ(t.put(std::string(513, 'x'), test::bytes(1, 1)), Status::KEY_TOO_LONG);
  EXPECT_EQ(t.put("", test::bytes(1, 1)), Status::KEY_TOO_LONG);
}

TEST(Pool, BadValuesAreNamed) {
  TestPool t(32 << 20);
  EXPECT_EQ(t.put("k", {}), Status::VALUE_TOO_LARGE);
  std::vector<std::byte> huge(40 << 20);
  EXPECT_EQ(t.put("k", huge), Status::VALUE_TOO_LARGE);
  ASSERT_EQ(t.put("k", test::bytes(100, 1)), Status::OK);
  std::byte small[10];
  const Span to[] = {{small, sizeof small}};
  EXPECT_EQ(t.pool().get(t.ns(), "k", to).status(), Status::BUFFER_TOO_SMALL);
}

TEST(Pool, ASizeNearTheLargestNumberIsTooLarge) {
  TestPool t(32 << 20);
  for (const uint64_t size : {UINT64_MAX, UINT64_MAX - 4095, UINT64_MAX - 4096, UINT64_MAX / 2 + 1,
                              uint64_t{1} << 32, uint64_t{1} << 30}) {
    EXPECT_EQ(t.pool().reserve(t.ns(), "k", size).status(), Status::VALUE_TOO_LARGE) << size;
    const std::byte any{};
    const ConstSpan value{&any, size};
    EXPECT_EQ(t.pool().put(t.ns(), "k", {&value, 1}), Status::VALUE_TOO_LARGE) << size;
  }
}

TEST(Pool, PiecesThatSumToMoreThanANumberHoldsAreTooLarge) {
  TestPool t(32 << 20);
  const auto compressed =
      t.pool().open_namespace({"compressed", "", {{}, CompressionProfile::FAST}});
  ASSERT_TRUE(compressed);
  const auto value = test::bytes(100, 1);
  const ConstSpan pieces[] = {
      {value.data(), 100}, {value.data(), UINT64_MAX / 2}, {value.data(), UINT64_MAX / 2}};
  EXPECT_EQ(t.pool().put(t.ns(), "k", pieces), Status::VALUE_TOO_LARGE);
  EXPECT_EQ(t.pool().put(*compressed, "k", pieces), Status::VALUE_TOO_LARGE);
}

/// More buffer space than needed: only the bytes of the value are written.
TEST(Pool, BuffersOfMoreThan2To64BytesSuffice) {
  TestPool t(32 << 20);
  const auto value = test::bytes(100, 1);
  ASSERT_EQ(t.put("k", value), Status::OK);
  std::vector<std::byte> out(100);
  const Span buffers[] = {{out.data(), 100}, {out.data(), UINT64_MAX}};
  const auto length = t.pool().get(t.ns(), "k", buffers);
  ASSERT_TRUE(length) << length.error().message();
  EXPECT_EQ(*length, 100u);
  EXPECT_EQ(out, value);
}

TEST(Pool, NamespacesNeverMeet) {
  TestPool t(32 << 20);
  auto other = t.pool().open_namespace({"other", "model B"});
  ASSERT_TRUE(other);
  ASSERT_EQ(t.put("k", test::bytes(100, 1)), Status::OK);
  std::byte out[100];
  const Span to[] = {{out, sizeof out}};
  EXPECT_EQ(t.pool().get(*other, "k", to).status(), Status::NOT_FOUND);
  EXPECT_EQ(t.pool().open_namespace({"other", "model C"}).status(), Status::NAMESPACE_MISMATCH);
  EXPECT_EQ(*t.pool().open_namespace({"other", "model B"}), *other);
}

TEST(Pool, ExistsAndLongestPrefix) {
  TestPool t(64 << 20);
  std::vector<std::string> keys;
  for (int i = 0; i < 300; ++i) keys.push_back("block-" + std::to_string(i));
  for (int i = 0; i < 300; ++i) {
    if (i != 200 && i != 250) {
      ASSERT_EQ(t.put(keys[i], test::bytes(1000, i)), Status::OK);
    }
  }
  const std::vector<std::string_view> views(keys.begin(), keys.end());
  std::vector<uint8_t> present(300);
  EXPECT_EQ(*t.pool().exists(t.ns(), views, present), 298u);
  EXPECT_EQ(present[199], 1);
  EXPECT_EQ(present[200], 0);
  EXPECT_EQ(*t.pool().longest_prefix(t.ns(), views), 200u);
  EXPECT_EQ(*t.pool().longest_prefix(t.ns(), {}), 0u);
}

TEST(Pool, ReserveCommitAbort) {
  TestPool t(32 << 20);
  auto reservation = t.pool().reserve(t.ns(), "k", 30000);
  ASSERT_TRUE(reservation);
  ASSERT_FALSE(reservation->present);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(reservation->data) % 4096, 0u);
  const auto value = test::bytes(30000, 5);
  std::memcpy(reservation->data, value.data(), value.size());
  EXPECT_EQ(t.get_status("k"), Status::NOT_FOUND);
  EXPECT_EQ(t.pool().commit(*reservation), Status::OK);
  EXPECT_EQ(t.get("k"), value);
  EXPECT_EQ(t.pool().commit(*reservation), Status::CLOSED);
  auto again = t.pool().reserve(t.ns(), "k", 30000);
  EXPECT_TRUE(again->present);
  auto aborted = t.pool().reserve(t.ns(), "other", 1000);
  EXPECT_EQ(t.pool().abort(*aborted), Status::OK);
  EXPECT_EQ(t.pool().abort(*aborted), Status::CLOSED);
  EXPECT_EQ(t.info().blocks, 1);
  EXPECT_TRUE(t.check_clean());
}

/// A wrong checksum from the writer is accepted, and readers then find the block damaged.
TEST(Pool, CommitTakesTheSumOfTheWriter) {
  TestPool t(32 << 20);
  const auto value = test::bytes(30000, 5);
  const uint64_t sum = payload_checksum(value.data(), value.size());
  const auto store = [&](const char* key, const PayloadSum& by) {
    auto room = t.pool().reserve(t.ns(), key, value.size());
    ASSERT_TRUE(room);
    std::memcpy(room->data, value.data(), value.size());
    ASSERT_EQ(t.pool().commit(*room, by), Status::OK);
  };
  store("right", {PayloadSum::By::WRITER, sum});
  store("wrong", {PayloadSum::By::WRITER, sum + 1});
  store("none", {PayloadSum::By::NONE});
  EXPECT_EQ(t.get("right"), value);
  EXPECT_EQ(t.get("none"), value);
  auto lease = t.pool().acquire(t.ns(), "right", 60000);
  EXPECT_EQ(lease->checksum, sum);
  EXPECT_EQ(t.pool().release(*lease), Status::OK);
  lease = t.pool().acquire(t.ns(), "none", 60000);
  EXPECT_EQ(lease->checksum, std::nullopt);
  EXPECT_EQ(t.pool().release(*lease), Status::OK);
  EXPECT_EQ(t.get_status("wrong"), Status::NOT_FOUND);
}

TEST(Pool, LeaseKeepsABlockInPlaceUntilItsRelease) {
  TestPool t(32 << 20);
  const auto value = test::bytes(20000, 9);
  ASSERT_EQ(t.put("k", value), Status::OK);
  auto lease = t.pool().acquire(t.ns(), "k", 60000);
  ASSERT_TRUE(lease);
  ASSERT_EQ(t.pool().remove(t.ns(), "k"), Status::OK);
  EXPECT_EQ(t.get_status("k"), Status::NOT_FOUND);
  for (int i = 0; i < 100; ++i)
    ASSERT_EQ(t.put("other" + std::to_string(i), test::bytes(20000, i)), Status::OK);
  EXPECT_EQ(std::memcmp(lease->data, value.data(), value.size()), 0);
  EXPECT_EQ(t.pool().release(*lease), Status::LAPSED);  // removed while held: release reports it
  EXPECT_EQ(t.pool().release(*lease), Status::CLOSED);
  auto good = t.pool().acquire(t.ns(), "other1", 60000);
  EXPECT_EQ(t.pool().release(*good), Status::OK);
}

TEST(Pool, ExpiredLeaseGivesWayAndSaysLapsed) {
  TestPool t(32 << 20);
  ASSERT_EQ(t.put("k", test::bytes(20000, 9)), Status::OK);
  auto lease = t.pool().acquire(t.ns(), "k", 1);
  ASSERT_TRUE(lease);
  usleep(5000);
  ASSERT_EQ(t.pool().remove(t.ns(), "k"), Status::OK);
  EXPECT_EQ(t.info().used_bytes, 0);
  EXPECT_EQ(t.pool().release(*lease), Status::LAPSED);
}

/// Takes leases of "k" until one is refused, which must be because the table is full.
std::vector<Lease> lease_all(TestPool& t, uint64_t ttl_ms) {
  std::vector<Lease> leases;
  for (;;) {
    auto lease = t.pool().acquire(t.ns(), "k", ttl_ms);
    if (!lease) {
      EXPECT_EQ(lease.status(), Status::LIMIT_REACHED);
      return leases;
    }
    leases.push_back(*lease);
  }
}
constexpr uint64_t kLeases = 1024;  // of a small pool

TEST(Pool, AFullLeaseTableIsNamedWithItsSize) {
  TestPool t(32 << 20);
  ASSERT_EQ(t.put("k", test::bytes(20000, 9)), Status::OK);
  std::vector<Lease> leases = lease_all(t, 600'000);
  ASSERT_EQ(leases.size(), kLeases);
  const auto refused = t.pool().acquire(t.ns(), "k", 600'000);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.status(), Status::LIMIT_REACHED);
  EXPECT_EQ(refused.error().message(),
            "the lease table of this host is full: all 1024 leases are held and none has expired; "
            "release some");
  EXPECT_EQ(t.pool().release(leases.back()), Status::OK);
  auto again = t.pool().acquire(t.ns(), "k", 600'000);
  ASSERT_TRUE(again) << again.error().message();
  leases.back() = *again;
  for (Lease& lease : leases) EXPECT_EQ(t.pool().release(lease), Status::OK);
  EXPECT_EQ(t.info().hosts[0].leases_active, 0u);
}

TEST(Pool, ForgottenLeasesGiveWayToNewOnesAndLateReleasesHarmNothing) {
  TestPool t(32 << 20);
  const auto value = test::bytes(20000, 9);
  ASSERT_EQ(t.put("k", value), Status::OK);
  std::vector<Lease> forgotten;
  for (uint64_t i = 0; i < kLeases; ++i) {
    auto lease = t.pool().acquire(t.ns(), "k", 1);
    ASSERT_TRUE(lease) << i;
    forgotten.push_back(*lease);
  }
  usleep(5000);
  std::vector<Lease> leases = lease_all(t, 600'000);
  EXPECT_EQ(leases.size(), kLeases) << "all that were forgotten";
  for (Lease& lease : forgotten) EXPECT_EQ(t.pool().release(lease), Status::LAPSED);
  for (Lease& lease : forgotten) EXPECT_EQ(t.pool().release(lease), Status::CLOSED);
  // The late releases ended none of those that took their places.
  EXPECT_EQ(t.info().hosts[0].leases_active, kLeases);
  ASSERT_EQ(t.pool().remove(t.ns(), "k"), Status::OK);
  EXPECT_NE(t.info().used_bytes, 0);
  EXPECT_EQ(std::memcmp(leases[0].data, value.data(), value.size()), 0);
  for (Lease& lease : leases) EXPECT_EQ(t.pool().release(lease), Status::LAPSED);
  EXPECT_EQ(t.info().used_bytes, 0);
}

TEST(Pool, FullPoolSaysNoSpaceAndKeepsItsBlocks) {
  TestPool t(32 << 20, {.evict_high_permille = 0});
  int stored = 0;
  Status status = Status::OK;
  while (status == Status::OK) {
    status = t.put("k" + std::to_string(stored), test::bytes(100000, stored));
    stored += status == Status::OK;
  }
  EXPECT_EQ(status, Status::NO_SPACE);
  ASSERT_GT(stored, 200);
  for (int i = 0; i < stored; ++i)
    EXPECT_EQ(t.get("k" + std::to_string(i)), test::bytes(100000, i));
  ASSERT_EQ(t.pool().remove(t.ns(), "k5"), Status::OK);
  EXPECT_EQ(t.put("new", test::bytes(100000, 1)), Status::OK);
}

/// Also if nothing is ever evicted otherwise, and though they are pinned.
TEST(Pool, BlocksWhoseTimeToLiveIsOverGiveTheirSpace) {
  TestPool t(32 << 20, {.evict_high_permille = 0});
  const auto value = test::bytes(100'000, 1);
  const ConstSpan in[] = {{value.data(), value.size()}};
  const auto now_s = static_cast<uint32_t>(std::time(nullptr));
  const BlockAttributes short_lived{.hard_pin = true, .expires_unix_s = now_s + 2};
  int stored = 0;
  while (t.pool().put(t.ns(), "k" + std::to_string(stored), in, {}, short_lived) == Status::OK)
    ++stored;
  ASSERT_GT(stored, 200);
  while (static_cast<uint32_t>(std::time(nullptr)) <= now_s + 2)
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  for (int i = 0; i < stored; ++i)
    ASSERT_EQ(t.put("new" + std::to_string(i), value), Status::OK) << i;
}

/// However many there are, and wherever they lie: those of a slab are not over together.
TEST(Pool, ManyBlocksWhoseTimeIsOverGiveTheirSpaceToLargerOnes) {
  TestPool t(160 << 20, {.evict_high_permille = 0});
  const auto value = test::bytes(4000, 1);
  const ConstSpan in[] = {{value.data(), value.size()}};
  const auto now_s = static_cast<uint32_t>(std::time(nullptr));
  int stored = 0;
  const auto put = [&] {
    const uint32_t expires_s = now_s + 3 + static_cast<uint32_t>(stored % 2);
    return t.pool().put(t.ns(), "k" + std::to_string(stored), in, {},
                        {.expires_unix_s = expires_s});
  };
  while (put() == Status::OK) ++stored;
  ASSERT_GT(stored, 2 * 4096);
  while (static_cast<uint32_t>(std::time(nullptr)) <= now_s + 4)
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  EXPECT_EQ(t.put("large", test::bytes(300'000, 1)), Status::OK);
}

TEST(Pool, ExpiredLeasesDoNotKeepSpaceFromOthers) {
  TestPool t(64 << 20, {.extent_bytes = 4 << 20, .evict_high_permille = 0});
  int stored = 0;
  while (t.put("k" + std::to_string(stored), test::bytes(60'000, stored)) == Status::OK) ++stored;
  for (int i = 0; i < stored; i += 2)
    ASSERT_EQ(t.pool().remove(t.ns(), "k" + std::to_string(i)), Status::OK);
  std::vector<Lease> leases;
  for (int i = 1; i < stored; i += 2)
    leases.push_back(*t.pool().acquire(t.ns(), "k" + std::to_string(i), 1));
  usleep(5000);
  for (int i = 0; i < 8; ++i)
    EXPECT_EQ(t.put("large" + std::to_string(i), test::bytes(300'000, i)), Status::OK) << i;
  for (Lease& lease : leases) EXPECT_EQ(t.pool().release(lease), Status::LAPSED);
}

/// They are the emptiest, but a lease keeps each of them: others are emptied.
TEST(Pool, LeasesInNearlyEmptyExtentsDoNotKeepSpaceFromOthers) {
  constexpr uint64_t kExtent = 4 << 20;
  constexpr size_t kValue = 60'000;
  TestPool t(128 << 20, {.extent_bytes = kExtent, .evict_high_permille = 0});
  std::vector<std::pair<uint64_t, std::string>> by_offset;  // of their blocks
  for (int i = 0; t.put("k" + std::to_string(i), test::bytes(kValue, i)) == Status::OK; ++i) {
    auto lease = t.pool().acquire(t.ns(), "k" + std::to_string(i), 600'000);
    ASSERT_TRUE(lease);
    by_offset.emplace_back(static_cast<uint64_t>(lease->data - t.pool().mapping().data),
                           "k" + std::to_string(i));
    ASSERT_EQ(t.pool().release(*lease), Status::OK);
  }
  std::sort(by_offset.begin(), by_offset.end());
  std::vector<Lease> leases;
  for (size_t i = 0; i < by_offset.size(); ++i) {
    const std::string& key = by_offset[i].second;
    const auto extent_of = [&](size_t n) {
      return (by_offset[n].first - by_offset.front().first) / kExtent;
    };
    const uint64_t extent = extent_of(i);
    const bool last = i + 1 == by_offset.size() || extent_of(i + 1) != extent;
    if (extent >= 2 && extent < 8 && last) {
      leases.push_back(*t.pool().acquire(t.ns(), key, 600'000));
    } else if ((extent >= 2 && extent < 8) || i % 2 == 1) {
      ASSERT_EQ(t.pool().remove(t.ns(), key), Status::OK);
    }
  }
  ASSERT_GE(leases.size(), 5u);
  for (int i = 0; i < 8; ++i)
    EXPECT_EQ(t.put("large" + std::to_string(i), test::bytes(300'000, i)), Status::OK) << i;
  for (Lease& lease : leases) EXPECT_EQ(t.pool().release(lease), Status::OK);
}

TEST(Pool, EvictionTakesTheLeastRecentlyUsed) {
  TestPool t(64 << 20);
  const auto hot = test::bytes(65536, 1);
  ASSERT_EQ(t.put("hot", hot), Status::OK);
  for (int i = 0; i < 5000; ++i) {
    ASSERT_EQ(t.put("k" + std::to_string(i), test::bytes(65536, i)), Status::OK);
    ASSERT_EQ(t.get("hot"), hot) << i;
  }
  const PoolInfo info = t.info();
  EXPECT_GT(info.evictions, 3000u);
  EXPECT_EQ(t.get_status("k0"), Status::NOT_FOUND);
  EXPECT_EQ(t.get("k4999"), test::bytes(65536, 4999));
  EXPECT_TRUE(t.check_clean());
}

TEST(Pool, EveryByteFlipIsAMissAndNamedByCheck) {
  TestPool t(32 << 20);
  ASSERT_EQ(t.put("good", test::bytes(40000, 1)), Status::OK);
  ASSERT_EQ(t.put("bad", test::bytes(40000, 2)), Status::OK);
  t.flip_payload("bad", 12345);
  auto report = t.pool().check(true);
  ASSERT_TRUE(report);
  ASSERT_EQ(report->findings.size(), 1u);
  EXPECT_NE(report->findings[0].what.find("'bad'"), std::string::npos);
  EXPECT_EQ(t.get_status("bad"), Status::NOT_FOUND);
  EXPECT_EQ(t.info().damaged, 1u);
  EXPECT_EQ(t.get("good"), test::bytes(40000, 1));
  EXPECT_EQ(t.put("bad", test::bytes(40000, 2)), Status::OK);
  EXPECT_EQ(t.get("bad"), test::bytes(40000, 2));
}

TEST(Pool, HandleFromBeforeForkAnswersForked) {
  TestPool t(32 << 20);
  ASSERT_EQ(t.put("k", test::bytes(1000, 1)), Status::OK);
  const int status = test::in_child([&] {
    if (t.get_status("k") != Status::FORKED) return 1;
    TestPool own(t.locator());
    return own.get("k") == test::bytes(1000, 1) ? 0 : 2;
  });
  EXPECT_EQ(status, 0);
  EXPECT_EQ(t.get("k"), test::bytes(1000, 1));
  EXPECT_EQ(t.info().hosts[0].processes_live, 1u);
}

TEST(Pool, MixedSizesTurnOverManyTimes) {
  TestPool t(128 << 20, {.evict_high_permille = 0});
  Random random(11);
  std::map<std::string, std::pair<size_t, uint64_t>> model;
  uint64_t next = 0, refused = 0;
  for (int i = 0; i < 6000; ++i) {
    const std::string key = "k" + std::to_string(next++);
    const size_t size = 1000 + random.below(700000);
    const Status status = t.put(key, test::bytes(size, next));
    if (status == Status::OK) {
      model[key] = {size, next};
    } else {
      ASSERT_EQ(status, Status::NO_SPACE);
      ++refused;
    }
    while (model.size() > 250 || (status != Status::OK && model.size() > 100)) {
      auto it = model.begin();
      std::advance(it, static_cast<long>(random.below(model.size())));
      ASSERT_EQ(t.get(it->first), test::bytes(it->second.first, it->second.second));
      ASSERT_EQ(t.pool().remove(t.ns(), it->first), Status::OK);
      model.erase(it);
      if (status != Status::OK && random.below(4) == 0) break;
    }
  }
  for (const auto& [key, value] : model)
    ASSERT_EQ(t.get(key), test::bytes(value.first, value.second));
  EXPECT_GT(refused, 0u);
  EXPECT_TRUE(t.check_clean());
}

TEST(Pool, ThreadsPutGetRemoveTogether) {
  TestPool t(64 << 20);
  std::vector<std::thread> threads;
  std::atomic<int> wrong{0};
  for (int id = 0; id < 4; ++id) {
    threads.emplace_back([&, id] {
      Random random(id);
      for (int i = 0; i < 1500; ++i) {
        const uint64_t n = random.below(400);
        const std::string key = "k" + std::to_string(n);
        const size_t size = 5000 + n * 100;
        switch (random.below(4)) {
          case 0:
            (void)t.pool().remove(t.ns(), key);
            break;
          case 1: {
            std::vector<std::byte> out(size);
            const Span to[] = {{out.data(), out.size()}};
            auto got = t.pool().get(t.ns(), key, to);
            if (got && out != test::bytes(size, n)) ++wrong;
            break;
          }
          default:
            if (t.put(key, test::bytes(size, n)) != Status::OK) ++wrong;
        }
      }
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
  EXPECT_TRUE(t.check_clean());
}

/// Block slots get other blocks while they are read. Each key says how long it and its value are.
TEST(Pool, AListShowsOnlyWhatWasStored) {
  TestPool t(16 << 20);
  std::atomic<bool> is_done{false};
  const auto turn_over = [&](uint64_t seed) {
    Random random(seed);
    std::deque<std::string> stored;
    const std::vector<std::byte> value = test::bytes(16000, seed);
    while (!is_done) {
      const uint64_t key_bytes = 40 + random.below(470), value_bytes = 1 + random.below(16000);
      std::string key = fmt::format("{}:{}:{}:", key_bytes, value_bytes, random.next());
      key.resize(key_bytes, static_cast<char>('a' + seed));
      const ConstSpan in{value.data(), value_bytes};
      if (t.pool().put(t.ns(), key, {&in, 1}) == Status::OK) stored.push_back(key);
      if (stored.size() < 8) continue;
      (void)t.pool().remove(t.ns(), stored.front());
      stored.pop_front();
    }
  };
  std::vector<std::thread> writers;
  for (const uint64_t seed : {1, 2}) writers.emplace_back(turn_over, seed);
  const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(2);
  uint64_t listed = 0;
  std::string wrong;
  while (std::chrono::steady_clock::now() < until) {
    ASSERT_EQ(t.pool().list([&](const BlockInfo& block) {
      uint64_t key_bytes = 0, value_bytes = 0;
      const int read = std::sscanf(block.key.c_str(), "%lu:%lu:", &key_bytes, &value_bytes);
      const bool is_padded =
          block.key.find_last_not_of(block.key.back()) < 40;  // behind the numbers
      if (read != 2 || key_bytes != block.key.size() || value_bytes != block.length_bytes ||
          !is_padded)
        wrong = block.key;
      ++listed;
      return true;
    }),
              Status::OK);
  }
  is_done = true;
  for (std::thread& writer : writers) writer.join();
  EXPECT_GT(listed, 0u);
  EXPECT_EQ(wrong, "");
}

/// The memory of a mapping that is in the page table of this process.
uint64_t present_bytes(ConstSpan mapping) {
  const auto begin = reinterpret_cast<uintptr_t>(mapping.data);
  std::ifstream smaps("/proc/self/smaps");
  uint64_t bytes = 0;
  bool inside = false;
  for (std::string line; std::getline(smaps, line);) {
    unsigned long first = 0, end = 0;
    if (std::sscanf(line.c_str(), "%lx-%lx ", &first, &end) == 2)
      inside = first >= begin && end <= begin + mapping.size;
    if (inside && line.starts_with("Rss:")) bytes += std::stoull(line.substr(4)) * 1024;
  }
  return bytes;
}

TEST(Prefault, TouchesAllPagesUnlessToldNotTo) {
  const std::string locator = test::unique_locator();
  ASSERT_TRUE(Pool::create(locator, {.size_bytes = 64 << 20}));
  for (const bool wanted : {false, true}) {
    const auto pool = Pool::open(locator, {.prefault = wanted});
    ASSERT_TRUE(pool);
    if (!wanted) {
      EXPECT_EQ(pool->prefaulted().bytes, pool->mapping().size);
    }
    for (int i = 0; i < 2000 && pool->prefaulted().bytes < pool->prefaulted().of_bytes; ++i)
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    EXPECT_EQ(pool->prefaulted().bytes, pool->mapping().size);
    const uint64_t present = present_bytes(pool->mapping());
    EXPECT_EQ(present > pool->mapping().size / 4 * 3, wanted) << present;
  }
  EXPECT_TRUE(Pool::destroy(locator, false));
}

/// A pool that is closed, left or destroyed while its pages are touched.
TEST(Prefault, EndsWithTheHandle) {
  const std::string locator = test::unique_locator();
  ASSERT_TRUE(Pool::create(locator, {.size_bytes = 512 << 20, .hosts = 2}));
  for (int i = 0; i < 20; ++i) ASSERT_TRUE(Pool::open(locator));
  {
    auto pool = Pool::open(locator);
    ASSERT_TRUE(pool);
    EXPECT_TRUE(pool->leave());
  }
  EXPECT_TRUE(Pool::destroy(locator, false));
}

}  // namespace
}  // namespace bowhead
