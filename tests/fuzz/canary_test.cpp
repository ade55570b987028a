// SPDX-License-Identifier: Apache-2.0
// Proves that the pool fuzzer detects faults: each test injects a fault behind its back, and it
// must die of it.
#include <gtest/gtest.h>

#include "tests/fuzz/image.h"
#include "tests/fuzz/input.h"

namespace bowhead::fuzz {
namespace {

constexpr uint32_t kKey = 3;
constexpr uint8_t kGet[] = {0, 5, 0, kKey};  // flags, open, get
constexpr uint8_t kRepair[] = {0, 4, 0};

uint64_t header_of(uint32_t key) { return *image(1, false).stored[key].read_lines.begin(); }

template <class T>
void change(uint64_t at, void (*how)(T&)) {
  World& world = image(1, false).world;
  T value;
  std::memcpy(&value, world.raw() + at, sizeof value);
  how(value);
  std::memcpy(world.raw() + at, &value, sizeof value);
  world.save();
}

/// The value of the key becomes another one, with correct checksums and seals.
void store_other_bytes(uint32_t key) {
  Image& pool = image(1, false);
  const StoredKey& stored = pool.stored[key];
  change<std::byte>(stored.payload_offset, [](std::byte& byte) { byte ^= std::byte{1}; });
  const uint64_t checksum =
      payload_checksum(pool.world.raw() + stored.payload_offset, stored.payload_bytes);
  const core::Sealer sealer(pool.world.superblock.pool_id);
  for (const uint64_t at : stored.rebuild_lines) {
    core::Line line;
    std::memcpy(line.data(), pool.world.raw() + at, sizeof line);
    if (at >= pool.world.payload_offset() || !sealer.check(line, at)) continue;
    if (core::from_line<bh_block_header>(line).length_bytes == stored.payload_bytes) {
      auto header = core::from_line<bh_block_header>(line);
      header.payload_checksum = checksum;
      line = core::to_line(header);
    } else if (core::from_line<bh_index_entry>(line).stored_bytes == stored.payload_bytes) {
      auto entry = core::from_line<bh_index_entry>(line);
      entry.payload_checksum = checksum;
      line = core::to_line(entry);
    }
    sealer.seal(line, at);
    std::memcpy(pool.world.raw() + at, line.data(), sizeof line);
  }
  pool.world.save();
}

TEST(Canary, WholePoolRaisesNoAlarm) {
  EXPECT_EQ(LLVMFuzzerTestOneInput(kGet, sizeof kGet), 0);
  EXPECT_EQ(LLVMFuzzerTestOneInput(kRepair, sizeof kRepair), 0);
}

TEST(CanaryDeathTest, WrongBytes) {
  EXPECT_DEATH(
      {
        store_other_bytes(kKey);
        LLVMFuzzerTestOneInput(kGet, sizeof kGet);
      },
      "never put under this key");
}

TEST(CanaryDeathTest, LostBlock) {
  EXPECT_DEATH(
      {
        change<uint64_t>(header_of(kKey), [](uint64_t& word) { word ^= 16; });
        LLVMFuzzerTestOneInput(kGet, sizeof kGet);
      },
      "a block is lost that was not touched");
}

TEST(CanaryDeathTest, LoadOutsideTheMetadata) {
  EXPECT_DEATH(
      {
        World& world = image(1, false).world;
        (void)FuzzAccess(world, {}).load(world.payload_offset());
      },
      "payload_offset");
}

TEST(CanaryDeathTest, StoreIntoAnotherHostsMemory) {
  EXPECT_DEATH(
      {
        World& world = image(2, false).world;
        FuzzAccess(world, {}).store(world.layout.word(1, BH_PART_TOUCH, 0), 1);
      },
      "");  // a fault: it is mapped read-only
}

TEST(CanaryDeathTest, EndlessWait) {
  EXPECT_DEATH(
      {
        const FuzzAccess access(image(1, false).world, {});
        for (uint32_t round = 0;; ++round) access.relax(round);
      },
      "does not end");
}

}  // namespace
}  // namespace bowhead::fuzz
