// SPDX-License-Identifier: Apache-2.0
// Pools that must not open, and locators that lead to no pool: each with its status, and a sentence
// that names the locator and says what to do. A refusal changes nothing.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <functional>

#include "tests/golden/golden_pool.h"

namespace bowhead::golden {
namespace {

/// The error has this status, names the locator, and its sentence holds `advice`.
void expect_error(const Error& error, Status status, const std::string& locator,
                  const std::string& advice) {
  EXPECT_EQ(status_name(error.status), std::string(status_name(status))) << error.message();
  EXPECT_NE(error.message().find(locator), std::string::npos) << error.message();
  EXPECT_NE(error.message().find(advice), std::string::npos) << error.message();
}

struct Case {
  const char* name;
  std::function<void(GoldenPool&)> damage;
  Status status;
  const char* advice;
  const char* pool = "v2-one-host";
};

std::ostream& operator<<(std::ostream& out, const Case& c) { return out << c.name; }

void change_superblock(GoldenPool& g, const std::function<void(bh_superblock&)>& change) {
  change(g.superblock());
  g.store_superblock();
}

constexpr const char* kRestore = "restore it from a copy, or make it anew";

const std::vector<Case> kCases = {
    {"BothSuperblocksDamaged",
     [](GoldenPool& g) {
       g.flip(300);
       g.flip(BH_SUPERBLOCK_COPY_OFFSET + 300);
     },
     Status::DAMAGED, kRestore},
    {"CopiesInTheWrongPlaces",
     [](GoldenPool& g) {
       std::vector<std::byte> first(g.at(0), g.at(sizeof(bh_superblock)));
       std::memcpy(g.at(0), g.at(BH_SUPERBLOCK_COPY_OFFSET), first.size());
       std::memcpy(g.at(BH_SUPERBLOCK_COPY_OFFSET), first.data(), first.size());
     },
     Status::DAMAGED, kRestore},
    {"Zeros", [](GoldenPool& g) { std::memset(g.at(0), 0, 1 << 20); }, Status::NOT_A_POOL,
     "check the locator"},
    {"Noise",
     [](GoldenPool& g) {
       Random random(3);
       for (uint64_t at = 0; at < (1 << 20); at += 8) {
         const uint64_t word = random.next();
         std::memcpy(g.at(at), &word, sizeof word);
       }
     },
     Status::NOT_A_POOL, "check the locator"},
    {"NewerVersion", [](GoldenPool& g) { change_superblock(g, [](auto& sb) { sb.version = 3; }); },
     Status::VERSION_UNKNOWN, "version 3 "},
    {"OlderVersion", [](GoldenPool&) {}, Status::VERSION_UNKNOWN, "made by a Bowhead before 0.2",
     "v1-one-host"},
    {"NewerVersionInOneCopy",
     [](GoldenPool& g) {
       g.superblock().version = 9;
       core::seal_superblock(g.superblock(), 1);
       std::memcpy(g.at(BH_SUPERBLOCK_COPY_OFFSET), &g.superblock(), sizeof(bh_superblock));
     },
     Status::VERSION_UNKNOWN, "version 9 "},
    {"UnknownIncompat",
     [](GoldenPool& g) { change_superblock(g, [](auto& sb) { sb.incompat = 1 << 5; }); },
     Status::VERSION_UNKNOWN, "upgrade"},
    {"UnknownRoCompat",
     [](GoldenPool& g) { change_superblock(g, [](auto& sb) { sb.ro_compat = 1ull << 63; }); },
     Status::VERSION_UNKNOWN, "upgrade"},
    {"GeometryContradictsItself",
     [](GoldenPool& g) { change_superblock(g, [](auto& sb) { ++sb.geometry.extent_count; }); },
     Status::DAMAGED, kRestore},
    {"PartOutsideTheRegion",
     [](GoldenPool& g) {
       change_superblock(g, [](auto& sb) { sb.geometry.parts[BH_PART_INDEX].offset = 1 << 30; });
     },
     Status::DAMAGED, kRestore},
    {"GrainOfHalfTheAddresses",
     [](GoldenPool& g) {
       change_superblock(g, [](auto& sb) { sb.geometry.region_align_bytes = 1ull << 63; });
     },
     Status::DAMAGED, kRestore},
    {"ParityThatVersionOneLacks",
     [](GoldenPool& g) {
       change_superblock(g, [](auto& sb) { sb.geometry.block_parity_bytes = 64; });
     },
     Status::DAMAGED, kRestore},
    {"UnknownChecksumKind",
     [](GoldenPool& g) { change_superblock(g, [](auto& sb) { sb.checksum_kind = 7; }); },
     Status::DAMAGED, kRestore},
    {"LargerThanItsMedium",
     [](GoldenPool& g) {
       auto larger = core::plan_geometry({.total_bytes = 64 << 20});
       ASSERT_TRUE(larger);
       change_superblock(g, [&](auto& sb) { sb.geometry = *larger; });
     },
     Status::DAMAGED, kRestore},
};

/// The defaults of a created pool: the golden pool has none.
void state_times(bh_superblock& sb) {
  const SharingTimes times;
  sb.heartbeat_ms = times.heartbeat_ms;
  sb.dead_ms = times.dead_ms;
  sb.grace_ms = times.grace_ms;
  sb.settle_ms = times.settle_ms;
  sb.reclaim_ms = times.reclaim_ms;
}

/// Settings with which no pool is created, in an otherwise valid superblock.
Case settings(const char* name, const char* pool, void (*change)(bh_superblock&),
              const char* advice) {
  return {name, [change](GoldenPool& g) { change_superblock(g, change); }, Status::DAMAGED, advice,
          pool};
}
constexpr const char *kOne = "v2-one-host", *kTwo = "v2-two-hosts";
constexpr const char *kWatermarks = "0 <= low <= high <= 1000 permille",
                     *kTimes = "give at least 5 heartbeats and 10 settles";
const std::vector<Case> kSettings = {
    settings(
        "HighWatermarkAboveAll", kOne, [](auto& sb) { sb.evict_high_permille = 1001; },
        kWatermarks),
    settings(
        "LowWatermarkAboveTheHighOne", kOne,
        [](auto& sb) { sb.evict_low_permille = sb.evict_high_permille + 1; }, kWatermarks),
    settings(
        "LowWatermarkWithoutEviction", kOne,
        [](auto& sb) {
          sb.evict_high_permille = 0;
          sb.evict_low_permille = 1;
        },
        kWatermarks),
    settings(
        "HeartbeatOfAPoolOfOneHost", kOne, [](auto& sb) { sb.heartbeat_ms = 100; },
        "no times between hosts"),
    settings(
        "NoHeartbeat", kTwo,
        [](auto& sb) {
          state_times(sb);
          sb.heartbeat_ms = 0;
        },
        kTimes),
    settings(
        "NoSettling", kTwo,
        [](auto& sb) {
          state_times(sb);
          sb.settle_ms = 0;
        },
        kTimes),
    settings(
        "DeadBeforeFiveHeartbeats", kTwo,
        [](auto& sb) {
          state_times(sb);
          sb.dead_ms = 5 * sb.heartbeat_ms - 1;
        },
        kTimes),
    settings(
        "DeadBeforeTenSettles", kTwo,
        [](auto& sb) {
          state_times(sb);
          sb.settle_ms = sb.dead_ms / 10 + 1;
        },
        kTimes),
    settings(
        "HeartbeatWhoseMultipleOverflows", kTwo,
        [](auto& sb) {
          state_times(sb);
          sb.heartbeat_ms = UINT32_MAX;
        },
        kTimes),
};

class Refused : public testing::TestWithParam<Case> {};

TEST_P(Refused, ByOpenAndRepairWhichChangeNothing) {
  GoldenPool golden(GetParam().pool);
  GetParam().damage(golden);
  const uint64_t bytes = golden.layout().geometry().total_bytes;
  const std::vector<std::byte> before(golden.at(0), golden.at(0) + bytes);
  const auto opened = golden.open();
  ASSERT_FALSE(opened);
  expect_error(opened.error(), GetParam().status, golden.locator(), GetParam().advice);
  const auto repaired = Pool::repair(golden.locator(), {.take_over = true});
  ASSERT_FALSE(repaired);
  expect_error(repaired.error(), GetParam().status, golden.locator(), GetParam().advice);
  EXPECT_EQ(Pool::destroy(golden.locator(), /*force=*/false).status(), GetParam().status);
  EXPECT_EQ(std::memcmp(before.data(), golden.at(0), bytes), 0);
}

INSTANTIATE_TEST_SUITE_P(Each, Refused, testing::ValuesIn(kCases),
                         [](const auto& test) { return std::string(test.param.name); });
INSTANTIATE_TEST_SUITE_P(Settings, Refused, testing::ValuesIn(kSettings),
                         [](const auto& test) { return std::string(test.param.name); });

TEST(Accepted, UnknownCompatBitWhichRepairKeeps) {
  GoldenPool golden("v2-one-host");
  change_superblock(golden, [](auto& sb) { sb.compat = 1ull << 40; });
  golden.flip(200);
  ASSERT_TRUE(Pool::repair(golden.locator()));
  auto pool = golden.open();
  ASSERT_TRUE(pool) << pool.error().message();
  EXPECT_EQ(golden.lost_in(*pool), std::set<size_t>{});
  EXPECT_EQ(golden.read<bh_superblock>(0).compat, 1ull << 40);
}

TEST(Accepted, FirstSuperblockDamagedAndSaidSo) {
  GoldenPool golden("v2-one-host");
  golden.flip(0);
  auto pool = golden.open();
  ASSERT_TRUE(pool) << pool.error().message();
  EXPECT_TRUE(pool->info()->second_superblock_used);
  EXPECT_EQ(golden.lost_in(*pool), std::set<size_t>{});
}

// ---- hosts ----

TEST(Host, NumberOutOfRange) {
  GoldenPool golden("v2-one-host");
  const auto opened = golden.open(/*host=*/1);
  ASSERT_FALSE(opened);
  expect_error(opened.error(), Status::INVALID_ARGUMENT, golden.locator(), "numbered from 0");
}

TEST(Host, BothSlotCopiesDamaged) {
  GoldenPool golden("v2-one-host");
  golden.flip(golden.layout().slot_line(0, 0));
  golden.flip(golden.layout().slot_line(0, 1));
  const auto opened = golden.open();
  ASSERT_FALSE(opened);
  expect_error(opened.error(), Status::DAMAGED, golden.locator(), "`bowhead pool repair`");
  const auto done = Pool::repair(golden.locator());
  ASSERT_TRUE(done) << done.error().message();
  EXPECT_NE(fmt::format("{}", fmt::join(*done, "\n")).find("wrote host slot 0 anew"),
            std::string::npos);
  auto pool = golden.open();
  ASSERT_TRUE(pool) << pool.error().message();
  EXPECT_EQ(golden.lost_in(*pool), std::set<size_t>{});
  EXPECT_EQ(findings_of(*pool), "");
}

/// Stamps are never used twice, not even if the record of the host's lives is lost.
TEST(Host, LivesContinueAfterTheStamps) {
  for (const bool zeros : {false, true}) {
    GoldenPool golden("v2-one-host");
    for (int i = 0; i < 3; ++i) {  // as after reboots
      golden.open_and_close();
      const uint64_t recovered =
          golden.layout().part(0, BH_PART_PRIVATE) + offsetof(bh_host_private, recovered_boot_id);
      std::memset(golden.at(recovered), 0, 8);
    }
    uint64_t stamp = 0;
    {
      auto pool = golden.open();
      ASSERT_TRUE(pool);
      const std::byte byte{};
      const ConstSpan from[] = {{&byte, 1}};
      ASSERT_EQ(pool->put(golden.namespace_of(0), "last", from), Status::OK);
      auto lease = pool->acquire(golden.namespace_of(0), "last", 1000);
      ASSERT_TRUE(lease);
      stamp = lease->stamp;
      ASSERT_EQ(pool->release(*lease), Status::OK);
    }
    for (const uint32_t copy : {0u, 1u})
      std::memset(golden.at(golden.layout().slot_line(0, copy)), zeros ? 0 : 1,
                  sizeof(bh_host_slot));
    ASSERT_TRUE(Pool::repair(golden.locator()));
    auto pool = golden.open();
    ASSERT_TRUE(pool);
    const std::byte byte{};
    const ConstSpan from[] = {{&byte, 1}};
    ASSERT_EQ(pool->put(golden.namespace_of(0), "after", from), Status::OK);
    auto lease = pool->acquire(golden.namespace_of(0), "after", 1000);
    ASSERT_TRUE(lease);
    EXPECT_GT(lease->stamp, stamp) << "zeros: " << zeros;
    ASSERT_EQ(pool->release(*lease), Status::OK);
  }
}

/// The state in which another machine leaves a pool when it fails.
void leave_as_another_machine(GoldenPool& golden) {
  for (const uint32_t copy : {0u, 1u}) {
    const uint64_t at = golden.layout().slot_line(0, copy);
    auto slot = golden.read<bh_host_slot>(at);
    slot.state = BH_HOST_LIVE;
    slot.machine_id = 1;
    slot.boot_id = 2;
    golden.write_sealed(at, slot);
  }
}

TEST(Host, AnotherMachineLeftNotInOrder) {
  GoldenPool golden("v2-one-host");
  leave_as_another_machine(golden);
  const auto opened = golden.open();
  ASSERT_FALSE(opened);
  expect_error(opened.error(), Status::HOST_ID_IN_USE, golden.locator(), "--take-over");
  const auto refused = Pool::repair(golden.locator());
  ASSERT_FALSE(refused);
  expect_error(refused.error(), Status::HOST_ID_IN_USE, golden.locator(), "--take-over");
  ASSERT_TRUE(Pool::repair(golden.locator(), {.take_over = true}));
  auto pool = golden.open();
  ASSERT_TRUE(pool) << pool.error().message();
  EXPECT_EQ(golden.lost_in(*pool), std::set<size_t>{});
}

TEST(Host, RepairWhileTheOtherIsOpenIsRefused) {
  GoldenPool golden("v2-one-host");
  auto pool = golden.open();
  ASSERT_TRUE(pool);
  const auto repaired = Pool::repair(golden.locator(), {.take_over = true});
  ASSERT_FALSE(repaired);
  expect_error(repaired.error(), Status::IN_USE, golden.locator(), "end them");
}

// ---- locators ----

void expect_refused_everywhere(const std::string& locator, Status status,
                               const std::string& advice) {
  const auto opened = Pool::open(locator);
  ASSERT_FALSE(opened);
  expect_error(opened.error(), status, locator, advice);
  const auto repaired = Pool::repair(locator);
  ASSERT_FALSE(repaired);
  expect_error(repaired.error(), status, locator, advice);
  const auto destroyed = Pool::destroy(locator, /*force=*/false);
  ASSERT_FALSE(destroyed);
  expect_error(destroyed.error(), status, locator, advice);
}

void expect_not_created(const std::string& locator, Status status, const std::string& advice) {
  const auto created = Pool::create(locator, {.size_bytes = 16 << 20});
  ASSERT_FALSE(created);
  expect_error(created.error(), status, locator, advice);
}

TEST(Locator, WithoutOrWithUnknownScheme) {
  for (const char* locator : {"pool", "/dev/shm/pool", "cxl:/dev/dax0.0", "shm", ""}) {
    expect_refused_everywhere(locator, Status::BAD_LOCATOR, "a locator is shm:NAME");
    expect_not_created(locator, Status::BAD_LOCATOR, "a locator is shm:NAME");
  }
}

TEST(Locator, BadNames) {
  for (const char* locator : {"shm:", "shm:a/b", "shm:..\n", "shm:a b"}) {
    expect_refused_everywhere(locator, Status::BAD_LOCATOR, "a name has 1 to 200 of");
    expect_not_created(locator, Status::BAD_LOCATOR, "a name has 1 to 200 of");
  }
}

TEST(Locator, NothingThere) {
  expect_refused_everywhere("shm:golden-that-does-not-exist", Status::NO_SUCH_POOL,
                            "`bowhead pool create`");
}

TEST(Locator, PoolThatExistsIsNotCreatedAgain) {
  GoldenPool golden("v2-one-host");
  expect_not_created(golden.locator(), Status::POOL_EXISTS, "exists already");
  auto pool = golden.open();
  ASSERT_TRUE(pool);
  EXPECT_EQ(golden.lost_in(*pool), std::set<size_t>{});
}

TEST(Locator, SizesThatArePossible) {
  const std::string locator = "shm:golden-size";
  const auto small = Pool::create(locator, {.size_bytes = 15 << 20});
  ASSERT_FALSE(small);
  expect_error(small.error(), Status::TOO_SMALL, locator, "16 MiB at least");
  const auto extents = Pool::create(locator, {.size_bytes = 16 << 20, .extent_bytes = 3 << 20});
  ASSERT_FALSE(extents);
  expect_error(extents.error(), Status::INVALID_ARGUMENT, locator, "give a power of two");
  const auto blocks = Pool::create(locator, {.size_bytes = 16 << 20, .min_block_bytes = 100});
  ASSERT_FALSE(blocks);
  expect_error(blocks.error(), Status::INVALID_ARGUMENT, locator, "give a power of two");
  const auto hosts = Pool::create(locator, {.size_bytes = 16 << 20, .hosts = 65});
  ASSERT_FALSE(hosts);
  expect_error(hosts.error(), Status::INVALID_ARGUMENT, locator, "1 to 64");
  const auto many = Pool::create(locator, {.size_bytes = 16 << 20, .hosts = 64});
  ASSERT_FALSE(many);
  expect_error(many.error(), Status::TOO_SMALL, locator, "give at least");
}

}  // namespace
}  // namespace bowhead::golden
