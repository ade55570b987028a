// SPDX-License-Identifier: Apache-2.0
// A pool whose stored bytes are damaged, one thing at a time: which blocks are lost, what check
// reports, what repair reports and saves.
//
// Each case runs twice: the damage comes while the pool is in use on this boot (the host's private
// part is valid and trusted), and before the first open after a reboot (all is rebuilt).
#include <gtest/gtest.h>

#include <functional>

#include "tests/golden/golden_pool.h"

namespace bowhead::golden {
namespace {

constexpr size_t kVictim = 3;      // "more than a smallest block"
constexpr size_t kLongVictim = 6;  // the key of 512 bytes

using Lost = std::set<size_t>;

/// The result of an open, and the state after a repair.
struct Expected {
  Lost lost;
  const char* check;  ///< part of the findings; "": clean
};

struct Case {
  const char* name;
  std::function<void(GoldenPool&)> damage;
  Expected in_use;
  Expected after_reboot;
  Lost lost_after_repair;
  const char* repair;  ///< part of repair's report, besides that it rebuilt; "": empty
};

/// Output of a case in test messages.
std::ostream& operator<<(std::ostream& out, const Case& c) { return out << c.name; }

void flip_header(GoldenPool& g, size_t block) { g.flip(g.header_of(block) + 10); }

const std::vector<Case> kCases = {
    {"PayloadByte",
     [](GoldenPool& g) { g.flip(g.payload_of(kVictim) + 7777); },
     {{kVictim}, "lost: the payload of block 'more than a smallest block' (16385 bytes)"},
     {{kVictim}, "lost: the payload of block 'more than a smallest block' (16385 bytes)"},
     {kVictim},
     "dropped 1 damaged block(s)"},
    {"HeaderLine",
     [](GoldenPool& g) { flip_header(g, kVictim); },
     {{kVictim}, "lost: the header of a block is damaged"},
     {{kVictim}, "lost: the header of a block is damaged"},
     {kVictim},
     "dropped 1 damaged block(s)"},
    {"StampOfAHeader",
     [](GoldenPool& g) { g.flip(g.header_of(kVictim)); },
     {{kVictim}, "lost: the header of a block is damaged"},
     {{kVictim}, "lost: the header of a block is damaged"},
     {kVictim},
     "dropped 1 damaged block(s)"},
    {"Key",
     [](GoldenPool& g) { g.flip(g.header_of(kVictim) + offsetof(bh_block_slot, key)); },
     {{kVictim}, "lost: the stored key of a block is damaged"},
     {{kVictim}, "lost: the stored key of a block is damaged"},
     {kVictim},
     "dropped 1 damaged block(s)"},
    {"EndOfALongKey",
     [](GoldenPool& g) {
       g.flip(g.layout().header(g.slot_of(kLongVictim) + 7) + offsetof(bh_block_slot, key) + 63);
     },
     {{kLongVictim}, "lost: the stored key of a block is damaged"},
     {{kLongVictim}, "lost: the stored key of a block is damaged"},
     {kLongVictim},
     "dropped 1 damaged block(s)"},
    {"IndexEntry",
     [](GoldenPool& g) { g.flip(g.entry_of(kVictim) + 20); },
     {{kVictim}, "a committed block is in no index entry"},
     {{}, ""},
     {},
     ""},
    {"DirectoryWord",
     [](GoldenPool& g) {
       uint64_t word = 0;
       g.entry_of(kVictim, &word);
       g.flip(word);
     },
     {{kVictim}, "the index directory does not lead to a stored block"},
     {{}, ""},
     {},
     ""},
    {"DirectoryWordZero",
     [](GoldenPool& g) {
       uint64_t word = 0;
       g.entry_of(kVictim, &word);
       std::memset(g.at(word), 0, 8);
     },
     {{kVictim}, "a committed block is in no index entry"},
     {{}, ""},
     {},
     ""},
    {"ExtentDescriptor",
     [](GoldenPool& g) { g.flip(g.layout().descriptor(g.extent_of(kVictim)) + 8); },
     {{}, "the description of extent"},
     {{}, ""},
     {},
     ""},
    {"OneCopyOfTheHostSlot",
     [](GoldenPool& g) {
       const auto first = g.read<bh_host_slot>(g.layout().slot_line(0, 0));
       const auto second = g.read<bh_host_slot>(g.layout().slot_line(0, 1));
       g.flip(g.layout().slot_line(0, first.turn > second.turn ? 0 : 1));
     },
     {{}, ""},
     {{}, ""},
     {},
     ""},
    {"OwnershipOfAnExtent",
     [](GoldenPool& g) {
       std::memset(g.at(g.layout().word(0, BH_PART_OWN, g.extent_of(kVictim))), 0, 8);
     },
     {{}, "belongs to no host"},
     {{}, ""},
     {},
     ""},
    {"Namespace",
     [](GoldenPool& g) { g.flip(g.layout().name_space(0, 0) + offsetof(bh_namespace, name)); },
     {{}, "the description of a namespace is damaged"},
     {{}, "the description of a namespace is damaged"},
     {},
     "dropped 1 damaged description(s) of namespaces"},
    {"AllocatorWord",
     [](GoldenPool& g) { std::memset(g.at(g.word_of(g.slot_of(kVictim))), 0, 8); },
     {{}, "the allocator does not know of a stored block"},
     {{}, ""},
     {},
     ""},
    {"RunWord",
     [](GoldenPool& g) {
       std::memset(g.at(g.layout().word(0, BH_PART_RUNS, g.extent_of(kVictim))), 0, 8);
     },
     {{}, "the allocator does not know of a stored block"},
     {{}, ""},
     {},
     ""},
    {"RunOfAnotherExtent",
     [](GoldenPool& g) {
       const uint64_t at = g.layout().word(0, BH_PART_RUNS, g.extent_of(kVictim));
       auto run = core::RunWord::unpack(g.read<uint64_t>(at));
       run.first += g.layout().geometry().words_per_group;
       const uint64_t word = run.pack();
       std::memcpy(g.at(at), &word, 8);
     },
     {{}, "may be those of another extent too"},
     {{}, ""},
     {},
     ""},
    {"GroupOfNoExtent",
     [](GoldenPool& g) {
       const uint64_t last = g.layout().group_limit() - 1;
       std::memset(g.at(g.layout().word(0, BH_PART_GROUPS, last)), 0xFF, 8);
     },
     {{}, "allocator words belong to no extent"},
     {{}, ""},
     {},
     ""},
    {"ExtentState",
     [](GoldenPool& g) {
       const uint64_t state = g.layout().extent_state(0, g.extent_of(kVictim));
       std::memset(g.at(state + offsetof(bh_extent_state, block_bytes)), 0xFF, 8);
     },
     {{}, "the allocator does not know of a stored block"},
     {{}, ""},
     {},
     ""},
    {"WholePrivatePart",
     [](GoldenPool& g) {
       const auto& geometry = g.layout().geometry();
       // Not the word with the boot for which it was made: that would be a reboot.
       const uint64_t begin = g.layout().part(0, BH_PART_PROCESSES);
       const uint64_t end = geometry.regions_offset + geometry.region_bytes;
       std::memset(g.at(begin), 0xEE, end - begin);
     },
     {{}, "the allocator does not know of a stored block"},
     {{}, ""},
     {},
     ""},
    {"FirstSuperblock",
     [](GoldenPool& g) { g.flip(100); },
     {{}, "the first copy of the superblock is damaged"},
     {{}, "the first copy of the superblock is damaged"},
     {},
     "wrote superblock copy 0 anew"},
    {"SecondSuperblock",
     [](GoldenPool& g) { g.flip(BH_SUPERBLOCK_COPY_OFFSET + 2000); },
     {{}, "the second copy of the superblock is damaged"},
     {{}, "the second copy of the superblock is damaged"},
     {},
     "wrote superblock copy 1 anew"},
};

class Damage : public testing::TestWithParam<Case> {
 protected:
  GoldenPool golden_{"v2-one-host"};

  void expect_open(const Expected& expected) {
    auto pool = golden_.open();
    ASSERT_TRUE(pool) << pool.error().message();
    const std::string findings = findings_of(*pool);
    if (*expected.check == '\0') {
      EXPECT_EQ(findings, "");
    } else {
      EXPECT_NE(findings.find(expected.check), std::string::npos) << findings;
    }
    EXPECT_EQ(golden_.lost_in(*pool), expected.lost);
  }
};

TEST_P(Damage, InUse) {
  golden_.open_and_close();  // the private part now belongs to this boot
  GetParam().damage(golden_);
  expect_open(GetParam().in_use);
}

TEST_P(Damage, AfterReboot) {
  GetParam().damage(golden_);
  expect_open(GetParam().after_reboot);
}

TEST_P(Damage, Repair) {
  golden_.open_and_close();
  const auto used_before = golden_.open()->info()->used_bytes;
  GetParam().damage(golden_);
  const auto done = Pool::repair(golden_.locator());
  ASSERT_TRUE(done) << done.error().message();
  const std::string said = fmt::format("{}", fmt::join(*done, "\n"));
  EXPECT_NE(said.find(GetParam().repair), std::string::npos) << said;
  EXPECT_EQ(done->size(), *GetParam().repair == '\0' ? 1u : 2u) << said;

  auto pool = golden_.open();
  ASSERT_TRUE(pool) << pool.error().message();
  EXPECT_EQ(findings_of(*pool), "");
  EXPECT_FALSE(pool->info()->second_superblock_used);
  EXPECT_EQ(golden_.lost_in(*pool), GetParam().lost_after_repair);
  // The space of the dropped blocks is free again, so they can be stored again.
  const auto& lost = GetParam().lost_after_repair;
  EXPECT_EQ(pool->info()->used_bytes < used_before, !lost.empty());
  for (const size_t i : lost) {
    const auto value = value_of(golden_.blocks()[i], i);
    const ConstSpan from[] = {{value.data(), value.size()}};
    EXPECT_EQ(pool->put(golden_.namespace_of(i), golden_.blocks()[i].key, from), Status::OK);
  }
  EXPECT_EQ(golden_.lost_in(*pool), Lost{});
  EXPECT_EQ(pool->info()->used_bytes, used_before);
  EXPECT_EQ(findings_of(*pool), "");
}

TEST_P(Damage, RepairAfterReboot) {
  GetParam().damage(golden_);
  const auto done = Pool::repair(golden_.locator());
  ASSERT_TRUE(done) << done.error().message();
  auto pool = golden_.open();
  ASSERT_TRUE(pool) << pool.error().message();
  EXPECT_EQ(findings_of(*pool), "");
  EXPECT_EQ(golden_.lost_in(*pool), GetParam().lost_after_repair);
}

INSTANTIATE_TEST_SUITE_P(Each, Damage, testing::ValuesIn(kCases),
                         [](const auto& test) { return std::string(test.param.name); });

/// Half of the blocks are damaged, each in a different way: repair finds all and keeps the rest.
TEST(DamageOfMany, IsRepairedAtOnce) {
  GoldenPool golden("v2-one-host");
  golden.open_and_close();
  golden.flip(golden.payload_of(1) + 1);
  flip_header(golden, 3);
  golden.flip(golden.header_of(5) + offsetof(bh_block_slot, key));
  golden.flip(golden.entry_of(9) + 3);
  auto done = Pool::repair(golden.locator());
  ASSERT_TRUE(done) << done.error().message();
  EXPECT_NE(fmt::format("{}", fmt::join(*done, "\n")).find("dropped 3 damaged block(s)"),
            std::string::npos);
  auto pool = golden.open();
  ASSERT_TRUE(pool);
  EXPECT_EQ(golden.lost_in(*pool), (Lost{1, 3, 5}));
  EXPECT_EQ(findings_of(*pool), "");
  EXPECT_EQ(pool->info()->damaged, 3u);
}

/// A reader that finds damage drops the block and counts it; its key can be stored again.
TEST(DamageOfMany, AReaderDropsADamagedBlock) {
  GoldenPool golden("v2-one-host");
  golden.flip(golden.payload_of(kVictim));
  auto pool = golden.open();
  ASSERT_TRUE(pool);
  EXPECT_EQ(golden.lost_in(*pool), Lost{kVictim});
  EXPECT_EQ(pool->info()->damaged, 1u);
  EXPECT_EQ(findings_of(*pool), "");
}

/// A process died in the middle of a removal, and the remaining header states a length of 4 GiB,
/// sealed: scavenging must not follow it out of the pool.
TEST(DamageOfMany, TheDeadProcessOfABlockWithAnImpossibleLengthIsScavenged) {
  GoldenPool golden("v2-two-hosts");
  golden.open_and_close();
  size_t block = 0;
  while (golden.blocks()[block].host != 0) ++block;
  const uint64_t slot = golden.slot_of(block);
  constexpr uint32_t kDead = 9;
  auto header = golden.read<bh_block_header>(golden.layout().header(slot));
  header.length_bytes = header.stored_bytes = 0xFFFFF000;
  golden.write_sealed(golden.layout().header(slot), header);
  const auto write_word = [&](uint64_t at, uint64_t word) {
    std::memcpy(golden.at(at), &word, sizeof word);
  };
  const uint64_t word_at = golden.word_of(slot);
  const auto word = core::StateWord::unpack(golden.read<uint64_t>(word_at));
  write_word(word_at, word.next(BH_BLOCK_RETIRING, kDead).pack());
  const uint64_t process_at = golden.layout().process(0, kDead);
  const auto process = core::ProcessWord::unpack(golden.read<uint64_t>(process_at));
  write_word(process_at, process.next(BH_PROCESS_LIVE).pack());
  {
    auto pool = golden.open();
    ASSERT_TRUE(pool) << pool.error().message();
    EXPECT_EQ(pool->info()->scavenged, 1u);
    EXPECT_EQ(golden.lost_in(*pool), Lost{block});
    EXPECT_EQ(findings_of(*pool), "");
  }
}

}  // namespace
}  // namespace bowhead::golden
