// SPDX-License-Identifier: Apache-2.0
// What a put does must not grow with the pool: no put looks at all block slots, whether it evicts,
// finds no space, or finds space that a dead process left; and hardly one looks at all extents, or
// pays for the evictions of many. The access policy of this test counts the words of one table that
// are loaded.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "tests/support/tiny_pool.h"

namespace bowhead::test {
namespace {

class CountingAccess : public core::NativeAccess {
 public:
  using NativeAccess::NativeAccess;
  uint64_t load(uint64_t offset) const {
    loads_ += offset - first_ < bytes_;
    return NativeAccess::load(offset);
  }
  void watch(const bh_geometry& g, uint32_t part = BH_PART_BLOCKS) {
    first_ = core::Layout(g).part(0, part);
    bytes_ = g.parts[part].bytes;
  }
  uint64_t take_loads() { return std::exchange(loads_, 0); }

 private:
  uint64_t first_ = 0, bytes_ = 0;
  mutable uint64_t loads_ = 0;
};

/// 131,072 slots of 4 KiB: several times the slots that a put may look at.
constexpr TinyShape kManySlots = {.extent_bytes = 1 << 20,
                                  .extent_count = 512,
                                  .min_block_bytes = 4096,
                                  .index_bucket_count = 45'000,
                                  .lock_count = 1024};

class PutWork : public testing::Test {
 protected:
  static TinyShape shape(bool eviction) {
    TinyShape shape = kManySlots;
    shape.evict_high_permille = eviction ? 950 : 0;
    shape.evict_low_permille = eviction ? 900 : 0;
    return shape;
  }
  /// Puts `count` blocks of one page, and calls visit(words that it loaded) for each.
  template <class Visit>
  static void put_all(Handle<CountingAccess>& handle, uint64_t first, uint64_t count,
                      Status expected, Visit visit) {
    for (uint64_t i = first; i < first + count; ++i) {
      handle.access().take_loads();
      const Status status = put(handle.core(), std::to_string(i), std::vector<std::byte>(64));
      EXPECT_EQ(status, expected) << i;
      if (status != expected) break;
      visit(handle.access().take_loads());
    }
  }
  /// The most words that one of them loaded.
  static uint64_t most_loads(Handle<CountingAccess>& handle, uint64_t first, uint64_t count,
                             Status expected) {
    uint64_t most = 0;
    put_all(handle, first, count, expected, [&](uint64_t loads) { most = std::max(most, loads); });
    return most;
  }
  /// How many of them loaded more than `limit` words.
  static uint64_t count_above(uint64_t limit, Handle<CountingAccess>& handle, uint64_t first,
                              uint64_t count) {
    uint64_t above = 0;
    put_all(handle, first, count, Status::OK, [&](uint64_t loads) { above += loads > limit; });
    return above;
  }
  static constexpr uint64_t kExtents = 512, kSlots = kExtents * 256;
  static constexpr uint64_t kMost = 40'000;
};

TEST_F(PutWork, IsBoundedWhileItEvicts) {
  const TinyPool pool(shape(/*eviction=*/true));
  Handle<CountingAccess> handle(pool);
  ASSERT_TRUE(handle.attach());
  handle.access().watch(pool.superblock().geometry);
  EXPECT_LT(most_loads(handle, 0, 2 * kSlots, Status::OK), kMost);
  PoolInfo info;
  handle.core().inspection.fill_info(info);
  EXPECT_GT(info.evictions, kSlots);
  handle.detach();
}

TEST_F(PutWork, IsBoundedWhereThereIsNoSpace) {
  const TinyPool pool(shape(/*eviction=*/false));
  Handle<CountingAccess> handle(pool);
  ASSERT_TRUE(handle.attach());
  handle.access().watch(pool.superblock().geometry);
  EXPECT_LT(most_loads(handle, 0, kSlots, Status::OK), kMost);
  EXPECT_LT(most_loads(handle, kSlots, 50, Status::NO_SPACE), kMost);
  handle.detach();
}

/// 512 puts begin an extent, 2,048 go on in one. A walk is due once for each 1/64 of the pool.
TEST_F(PutWork, FewLookAtAllExtents) {
  const TinyPool pool(shape(/*eviction=*/false));
  Handle<CountingAccess> handle(pool);
  ASSERT_TRUE(handle.attach());
  handle.access().watch(pool.superblock().geometry, BH_PART_EXTENTS);
  EXPECT_LT(count_above(kExtents / 4, handle, 0, kSlots), 64 + 2);
  handle.detach();
}

uint64_t carved(const TinyPool& pool) {
  const core::Layout layout = pool.layout();
  uint64_t slabs = 0;
  for (uint64_t e = 0; e < layout.geometry().extent_count; ++e)
    slabs += core::StateWord::unpack(pool.load(layout.extent_state(0, e))).state == BH_EXTENT_SLAB;
  return slabs;
}

/// A slab has 256 blocks of one page, and a thread notes 64 of them at a time.
TEST_F(PutWork, FillsASlabBeforeItCarvesAnother) {
  const TinyPool pool(shape(/*eviction=*/false));
  Handle<CountingAccess> handle(pool);
  ASSERT_TRUE(handle.attach());
  for (const uint64_t blocks : {100u, 1000u, 30'000u}) {
    most_loads(handle, 0, blocks, Status::OK);
    EXPECT_LE(carved(pool), blocks / 256 + 1);
  }
  // Of other sizes, in turns.
  for (uint64_t i = 0; i < 4000; ++i) {
    const std::vector<std::byte> value(4096 * (2 + i % 4));
    ASSERT_EQ(put(handle.core(), "other " + std::to_string(i), value), Status::OK);
  }
  EXPECT_LE(carved(pool), 30'000 / 256 + 1 + 1000 * (3 + 4 + 5 + 6) / 256 + 4);
  handle.detach();
}

uint64_t evictions(Handle<CountingAccess>& handle) {
  PoolInfo info;
  handle.core().inspection.fill_info(info);
  return info.evictions;
}

/// What is evicted for a put may be much larger than what was put.
TEST_F(PutWork, SmallPutsAmongLargeBlocksEvictLittle) {
  const TinyPool pool(shape(/*eviction=*/true));
  Handle<CountingAccess> handle(pool);
  ASSERT_TRUE(handle.attach());
  const std::vector<std::byte> large(200'000);
  uint64_t before = 0;
  for (uint64_t i = 0; before == 0; ++i, before = evictions(handle)) {
    ASSERT_LT(i, 2 * kExtents * 5);
    ASSERT_EQ(put(handle.core(), "large " + std::to_string(i), large), Status::OK);
  }
  // Four times as much as was put, and a block more; for a block of 4 KiB every 13 puts one.
  for (uint64_t i = 0; i < 104; ++i)
    ASSERT_EQ(put(handle.core(), std::to_string(i), std::vector<std::byte>(64)), Status::OK);
  EXPECT_LE(evictions(handle) - before, 104u / 12 + 2);
  handle.detach();
}

/// Nothing can be evicted: puts that have space do not look for victims again and again.
TEST_F(PutWork, FewLookForVictimsWhereAllIsPinned) {
  const TinyPool pool(shape(/*eviction=*/true));
  Handle<CountingAccess> handle(pool);
  ASSERT_TRUE(handle.attach());
  handle.access().watch(pool.superblock().geometry);
  uint64_t above = 0;
  for (uint64_t i = 0; i < kSlots * 98 / 100; ++i) {
    const std::string key = std::to_string(i);
    handle.access().take_loads();
    ASSERT_EQ(put(handle.core(), key, std::vector<std::byte>(64)), Status::OK) << i;
    above += handle.access().take_loads() > 512;
    // The only block without a pin may have been evicted by then.
    const Status set = handle.core().attributes.set(core::Key(kNamespace, key), {.hard_pin = true});
    ASSERT_TRUE(set == Status::OK || set == Status::NOT_FOUND) << i;
  }
  EXPECT_LT(above, kSlots / 1000);
  handle.detach();
}

/// Also by a process that knows only slabs whose blocks have been pinned since.
TEST_F(PutWork, SoftPinsGoLast) {
  TinyShape small = shape(/*eviction=*/true);
  small.evict_high_permille = 300;
  small.evict_low_permille = 290;
  const TinyPool pool(small);
  Handle<CountingAccess> first(pool), second(pool, /*eviction=*/false);
  ASSERT_TRUE(first.attach());
  ASSERT_TRUE(second.attach());
  const auto put_some = [](Handle<CountingAccess>& handle, const std::string& name,
                           uint64_t count) {
    for (uint64_t i = 0; i < count; ++i)
      ASSERT_EQ(put(handle.core(), name + std::to_string(i), std::vector<std::byte>(64)),
                Status::OK);
  };
  put_some(first, "pinned ", kSlots / 3);
  ASSERT_GT(evictions(first), 0u);
  std::vector<std::string> keys;
  for (uint64_t i = 0; i < kSlots / 3; ++i) {
    const std::string key = "pinned " + std::to_string(i);
    if (first.core().attributes.set(core::Key(kNamespace, key), {.soft_pin = true}) == Status::OK)
      keys.push_back(key);
  }
  // The other process puts into slabs of its own.
  put_some(second, "other ", kSlots / 10);
  put_some(first, "more ", 500);
  uint64_t gone = 0;
  for (const std::string& key : keys) gone += get(first.core(), key).empty() ? 1 : 0;
  EXPECT_EQ(gone, 0u) << "of " << keys.size();
  first.detach();
  second.detach();
}

TEST_F(PutWork, EvictionIsSpreadOverPuts) {
  const TinyPool pool(shape(/*eviction=*/true));
  Handle<CountingAccess> handle(pool);
  ASSERT_TRUE(handle.attach());
  most_loads(handle, 0, kSlots, Status::OK);
  handle.access().watch(pool.superblock().geometry);
  EXPECT_LT(count_above(512, handle, kSlots, kSlots), kSlots / 1000);
  handle.detach();
}

}  // namespace
}  // namespace bowhead::test
