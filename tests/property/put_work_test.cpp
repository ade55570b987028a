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

/// 512 puts begin an extent. A walk is due once for each 1/64 of the pool.
TEST_F(PutWork, FewLookAtAllExtents) {
  const TinyPool pool(shape(/*eviction=*/false));
  Handle<CountingAccess> handle(pool);
  ASSERT_TRUE(handle.attach());
  handle.access().watch(pool.superblock().geometry, BH_PART_EXTENTS);
  EXPECT_LT(count_above(kExtents / 4, handle, 0, kSlots), 2 * 64 + 2);
  handle.detach();
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
