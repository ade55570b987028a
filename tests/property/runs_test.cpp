// SPDX-License-Identifier: Apache-2.0
// Runs of words (E1, E2): claimed and released at random they never overlap, all words serve in the
// end, and what is damaged costs words but nothing else. And what words cost of a pool.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <map>
#include <set>
#include <thread>
#include <vector>

#include "base/random.h"
#include "tests/support/audit.h"
#include "tests/support/tiny_pool.h"

namespace bowhead::test {
namespace {

using core::RunWord;
using NativeRuns = core::Runs<core::NativeAccess>;

constexpr uint64_t kMiB = 1 << 20;
constexpr uint64_t kKiB = 1024;
/// 256 slots an extent, in groups of 64; words for 6 extents of 32.
constexpr TinyShape kFewWords = {.extent_bytes = 1024 * kKiB,
                                 .extent_count = 32,
                                 .min_block_bytes = 4 * kKiB,
                                 .worded_extents = 6};

class RunsOf : public testing::Test {
 protected:
  RunsOf() : pool_(kFewWords), handle_(pool_) { EXPECT_TRUE(handle_.attach()); }
  ~RunsOf() override { handle_.detach(); }
  core::Context<core::NativeAccess>& c() { return handle_.core().context(); }

  TinyPool pool_;
  NativeHandle handle_;
};

TEST_F(RunsOf, NeverOverlapAndAllWordsServe) {
  NativeRuns runs(c());
  const core::Layout& layout = c().layout;
  const uint64_t words = layout.geometry().word_count;
  Random random(7);
  std::map<uint64_t, RunWord> held;  // by extent
  uint64_t refused = 0;
  for (int step = 0; step < 20'000; ++step) {
    const uint64_t e = random.below(kFewWords.extent_count);
    if (held.contains(e)) {
      runs.release(e);
      runs.release(e);  // can be repeated
      held.erase(e);
      EXPECT_EQ(c().load_run(e).pack(), 0u);
      continue;
    }
    const uint64_t block_bytes = 4 * kKiB << random.below(10);
    const bool room = runs.has_room_for(block_bytes);
    ASSERT_EQ(runs.claim(e, block_bytes), room);
    if (!room) {
      ++refused;
      EXPECT_EQ(c().load_run(e).pack(), 0u);
      continue;
    }
    const RunWord run = c().load_run(e);
    ASSERT_EQ(run.state, uint32_t{BH_RUN_READY});
    ASSERT_LE(uint64_t{1} << run.shift, std::max<uint64_t>(1, block_bytes / (4 * kKiB)));
    ASSERT_EQ(run.first % layout.run_words(run.shift), 0u);
    ASSERT_LE(run.first + layout.run_words(run.shift), words);
    for (const auto& [other, taken] : held) {
      ASSERT_TRUE(run.first + layout.run_words(run.shift) <= taken.first ||
                  taken.first + layout.run_words(taken.shift) <= run.first)
          << e << " and " << other;
    }
    held[e] = run;
  }
  EXPECT_GT(refused, 100u);
  for (const auto& [e, run] : held) runs.release(e);
  // 6 runs of the smallest blocks, or 24 of blocks of which a group covers an extent.
  for (uint64_t e = 0; e < 6; ++e) EXPECT_TRUE(runs.claim(e, 4 * kKiB));
  EXPECT_FALSE(runs.claim(6, 1024 * kKiB));
  for (uint64_t e = 0; e < 6; ++e) runs.release(e);
  for (uint64_t e = 0; e < 24; ++e) EXPECT_TRUE(runs.claim(e, 16 * kKiB));
  EXPECT_FALSE(runs.claim(24, 16 * kKiB));
  for (uint64_t e = 0; e < 24; ++e) runs.release(e);
}

TEST_F(RunsOf, AreClaimedByOneOfManyThreads) {
  std::vector<std::thread> threads;
  std::vector<std::atomic<uint32_t>> holders(c().layout.group_limit());
  std::atomic<uint64_t> shared{0}, claimed{0};
  for (uint64_t t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      NativeRuns runs(c());
      Random random(t);
      for (int i = 0; i < 20'000; ++i) {
        const uint64_t e = t * 8 + random.below(8);  // of this thread alone (E4)
        if (!runs.claim(e, 4 * kKiB << random.below(3))) continue;
        const RunWord run = c().load_run(e);
        const uint64_t first = run.first / 64, end = first + c().layout.run_words(run.shift) / 64;
        for (uint64_t g = first; g < end; ++g) shared += holders[g].fetch_add(1) != 0;
        for (uint64_t g = first; g < end; ++g) holders[g].fetch_sub(1);
        runs.release(e);
        ++claimed;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(shared, 0u);
  EXPECT_GT(claimed, 10'000u);
  for (uint64_t i = 0; i < c().layout.group_limit(); ++i)
    EXPECT_EQ(c().access.load(c().own(BH_PART_GROUPS, i)), 0u);
}

/// Each slab has one word for each block, wherever its blocks begin.
TEST_F(RunsOf, GiveEveryBlockAWordOfItsOwn) {
  core::Extents<core::NativeAccess>& extents = handle_.core().extents();
  for (uint64_t pages = 1; pages < 700; pages += pages < 40 ? 1 : 37) {
    const auto head = extents.carve(pages * 4 * kKiB, {});
    ASSERT_TRUE(head) << pages;
    const core::Slab slab = extents.read_slab(*head);
    std::set<uint64_t> words;
    for (uint64_t i = 0; i < slab.block_count; ++i) {
      const core::SeenWord seen = c().see(extents.slot_of(slab, i));
      EXPECT_EQ(seen.word.state, uint32_t{BH_BLOCK_FREE});
      EXPECT_TRUE(words.insert(seen.at).second) << pages << ' ' << i;
    }
    EXPECT_TRUE(extents.coalesce(*head));
  }
  for (const std::string& text : audit(handle_.core(), {.deaths = false}).faults)
    ADD_FAILURE() << text;
}

/// Without words an extent stays free; with those of a coalesced slab it can be carved.
TEST_F(RunsOf, NoneLeftIsNoSpace) {
  core::Extents<core::NativeAccess>& extents = handle_.core().extents();
  std::vector<uint64_t> heads;
  while (const auto head = extents.carve(4 * kKiB, {})) heads.push_back(*head);
  EXPECT_EQ(heads.size(), 6u);
  EXPECT_FALSE(extents.carve(512 * kKiB, {}));
  EXPECT_FALSE(extents.carve(1500 * kKiB, {}));
  for (uint64_t e = 0; e < kFewWords.extent_count; ++e)
    EXPECT_EQ(extents.is_free(e), std::ranges::find(heads, e) == heads.end()) << e;
  ASSERT_TRUE(extents.coalesce(heads.back()));
  EXPECT_TRUE(extents.carve(1500 * kKiB, {}));
  EXPECT_TRUE(extents.carve(512 * kKiB, {}));
  for (const std::string& text : audit(handle_.core(), {.deaths = false}).faults)
    ADD_FAILURE() << text;
}

/// The puts that need a carved extent come to one by evicting blocks of another.
TEST(Runs, OtherSizesFindWordsByEviction) {
  TinyShape shape = kFewWords;
  shape.worded_extents = 2;
  shape.index_bucket_count = 200;
  shape.evict_high_permille = 1000;
  shape.evict_low_permille = 900;
  const TinyPool pool(shape);
  NativeHandle handle(pool);
  ASSERT_TRUE(handle.attach());
  for (int i = 0; i < 600; ++i)
    ASSERT_EQ(put(handle.core(), std::to_string(i), std::vector<std::byte>(100)), Status::OK) << i;
  for (int i = 600; i < 620; ++i)
    ASSERT_EQ(put(handle.core(), std::to_string(i), std::vector<std::byte>(200 * kKiB)), Status::OK)
        << i;
  for (const std::string& text : audit(handle.core(), {.deaths = false}).faults)
    ADD_FAILURE() << text;
  handle.detach();
}

/// No bytes of run and owner words lead outside the words of the host, and a rebuild mends them.
TEST_F(RunsOf, DamageLeadsNowhere) {
  core::Extents<core::NativeAccess>& extents = handle_.core().extents();
  ASSERT_EQ(put(handle_.core(), "key", std::vector<std::byte>(5000)), Status::OK);
  const core::Layout& layout = c().layout;
  const uint64_t begin = layout.part(0, BH_PART_BLOCKS);
  const uint64_t end = begin + layout.geometry().parts[BH_PART_BLOCKS].bytes;
  Random random(3);
  for (int i = 0; i < 20'000; ++i) {
    const uint64_t e = random.below(kFewWords.extent_count);
    uint64_t word = random.next() >> random.below(64);
    if (i % 2 == 0)
      word = RunWord{BH_RUN_READY, static_cast<uint32_t>(random.below(256)),
                     random.below(2 * layout.geometry().word_count)}
                 .pack();
    c().access.store(c().own(BH_PART_RUNS, e), word);
    c().access.store(c().own(BH_PART_GROUPS, random.below(layout.group_limit())),
                     random.next() >> random.below(64));
    for (uint64_t slot = layout.first_slot(e); slot < layout.first_slot(e + 1); slot += 15) {
      const uint64_t at = c().see(slot).at;
      ASSERT_TRUE(at == 0 || (at >= begin && at < end));
    }
    if (i % 16 != 0) continue;
    if (const auto head = extents.carve(4 * kKiB << random.below(8), {})) extents.coalesce(*head);
    std::vector<std::byte> value(5000);
    (void)put(handle_.core(), std::to_string(i), value);
  }
  handle_.detach();
  pool_.forget_boot();
  ASSERT_TRUE(handle_.attach());
  const AuditResult result = audit(handle_.core(), {.deaths = true});
  for (const std::string& text : result.faults) ADD_FAILURE() << text;
  EXPECT_GE(result.committed, 1u);
}

/// The share of metadata, the highest with the smallest blocks and most hosts that one plans for.
TEST(Geometry, MetadataIsAtMostThreePercent) {
  const auto share = [](uint64_t bytes, uint32_t hosts, uint64_t block_bytes, uint64_t max_bytes) {
    const auto g = core::plan_geometry({.total_bytes = bytes,
                                        .align_bytes = 4096,
                                        .hosts = hosts,
                                        .min_block_bytes = block_bytes,
                                        .max_bytes = max_bytes,
                                        .grows = max_bytes > bytes});
    EXPECT_TRUE(g);
    return 1 - static_cast<double>(g->extent_count * g->extent_bytes) / static_cast<double>(bytes);
  };
  constexpr uint64_t kTiB = uint64_t{1} << 40;
  for (const uint32_t hosts : {1u, 2u, 4u, 8u, 16u, 64u}) {
    const double found = share(kTiB, hosts, 16 * kKiB, kTiB);
    RecordProperty(fmt::format("metadata_{}_hosts", hosts), fmt::format("{:.4f}", found));
    EXPECT_LE(found, 0.03) << hosts << " hosts";
    const double growing = share(kTiB, hosts, 16 * kKiB, 8 * kTiB);
    RecordProperty(fmt::format("metadata_{}_hosts_growing", hosts), fmt::format("{:.4f}", growing));
    EXPECT_LE(growing, 0.03) << hosts << " hosts, up to 8 TiB";
    EXPECT_GE(growing, found);
  }
}

TEST(Geometry, SetsAreMostlyPayload) {
  constexpr uint64_t kTiB = uint64_t{1} << 40;
  for (const uint32_t hosts : {1u, 2u, 8u, 64u}) {
    const auto g = core::plan_geometry({.total_bytes = kTiB,
                                        .align_bytes = 4096,
                                        .hosts = hosts,
                                        .max_bytes = 8 * kTiB,
                                        .grows = true});
    ASSERT_TRUE(g);
    const core::Set first = core::set_0(*g);
    const auto set = core::plan_set(*g, {&first, 1}, kTiB);
    ASSERT_TRUE(set) << set.error().message();
    const double share =
        static_cast<double>(set->extent_count * g->extent_bytes) / static_cast<double>(kTiB);
    RecordProperty(fmt::format("payload_of_set_{}_hosts", hosts), fmt::format("{:.4f}", share));
    EXPECT_GE(share, 0.97) << hosts;
  }
}

/// Sets come and go in any order and size: no two have a byte of the pool in common, each has room
/// for all that follows from its numbers, and what a table says of it leads to the same set.
TEST(Geometry, SetsShareNothing) {
  for (uint64_t seed = 0; seed < 60; ++seed) {
    Random random(seed);
    const auto hosts = static_cast<uint32_t>(1 + random.below(6));
    const uint64_t total = (64 + random.below(400)) * kMiB;
    const auto g = core::plan_geometry({.total_bytes = total / (2 * kMiB) * (2 * kMiB),
                                        .align_bytes = random.below(2) == 0 ? 4096 : 2 * kMiB,
                                        .hosts = hosts,
                                        .min_block_bytes = uint64_t{4096} << random.below(6),
                                        .max_bytes = total * 8,
                                        .grows = true});
    if (!g) continue;
    std::vector<core::Set> sets = {core::set_0(*g)};
    for (int step = 0; step < 40; ++step) {
      if (sets.size() > 1 && random.below(3) == 0) {
        sets.erase(sets.begin() + 1 + static_cast<ptrdiff_t>(random.below(sets.size() - 1)));
        continue;
      }
      const uint64_t bytes = (2 + random.below(200)) * 2 * kMiB;
      const auto set = core::plan_set(*g, sets, bytes);
      if (!set) continue;
      const bh_set stored{.state = BH_SET_USED,
                          .bytes = bytes,
                          .first_extent = set->first_extent,
                          .extent_count = set->extent_count,
                          .first_bucket = set->first_bucket,
                          .first_word = set->first_word};
      EXPECT_EQ(core::place_set(*g, stored), *set);
      sets.push_back(*set);
      std::vector<Range> all;
      for (const core::Set& one : sets) {
        const std::vector<Range> ranges = core::ranges_of(*g, one);
        all.insert(all.end(), ranges.begin(), ranges.end());
        EXPECT_LE(bytes_of(ranges), one.first_extent == 0 ? g->total_bytes : uint64_t{404} * kMiB);
        const auto has = [&](uint64_t offset, uint64_t size) {
          return std::any_of(ranges.begin(), ranges.end(), [&](const Range& range) {
            return offset >= range.offset && offset + size <= range.end();
          });
        };
        const core::Layout layout(*g);
        for (uint32_t host = 0; host < hosts; ++host) {
          EXPECT_TRUE(has(layout.bucket(host, one.first_bucket),
                          one.bucket_count * sizeof(bh_index_bucket)));
          EXPECT_TRUE(has(layout.word(host, BH_PART_BLOCKS, one.first_word), 8 * one.word_count));
          EXPECT_TRUE(has(layout.word(host, BH_PART_RECENCY, one.first_word), 8 * one.word_count));
          EXPECT_TRUE(has(layout.word(host, BH_PART_GROUPS, one.first_word / g->words_per_group),
                          8 * (one.word_count / g->words_per_group)));
        }
        EXPECT_TRUE(has(layout.descriptor(one.first_extent), g->table_bytes * one.extent_count));
        EXPECT_TRUE(
            has(layout.extent_offset(one.first_extent), g->extent_bytes * one.extent_count));
      }
      std::sort(all.begin(), all.end(),
                [](const Range& a, const Range& b) { return a.offset < b.offset; });
      for (size_t i = 1; i < all.size(); ++i) ASSERT_GE(all[i].offset, all[i - 1].end()) << seed;
      ASSERT_LE(all.back().end(), core::offset_end(*g));
    }
  }
}

/// Whatever a table of sets says, nothing outside of the pool's offsets is mapped.
TEST(Geometry, StoredSetsLieInThePool) {
  const auto g = core::plan_geometry({.total_bytes = 256 * kMiB,
                                      .align_bytes = 4096,
                                      .hosts = 3,
                                      .max_bytes = 4096 * kMiB,
                                      .grows = true});
  ASSERT_TRUE(g);
  const core::Set first = core::set_0(*g);
  const auto good = core::plan_set(*g, {&first, 1}, 300 * kMiB);
  ASSERT_TRUE(good);
  Random random(1);
  int placed = 0;
  for (int i = 0; i < 200'000; ++i) {
    const auto some = [&](uint64_t value) {
      switch (random.below(4)) {
        case 0:
          return random.next() >> random.below(64);
        case 1:
          return value + random.below(8) * 4096;
        default:
          return value;
      }
    };
    const bh_set stored{.state = BH_SET_USED,
                        .bytes = some(300 * kMiB),
                        .first_extent = some(good->first_extent),
                        .extent_count = some(good->extent_count),
                        .first_bucket = some(good->first_bucket),
                        .first_word = some(good->first_word)};
    const auto set = core::place_set(*g, stored);
    if (!set) continue;
    ++placed;
    const std::vector<Range> ranges = core::ranges_of(*g, *set);
    ASSERT_LE(bytes_of(ranges), stored.bytes);
    ASSERT_GE(ranges.front().offset, g->regions_offset);
    for (const Range& range : ranges) ASSERT_LE(range.end(), core::offset_end(*g));
  }
  EXPECT_GT(placed, 1000);
}

/// A table takes a whole grain where extents change owners: 2 MiB on devices and on huge pages.
TEST(Geometry, CoarseGrainsLeaveMostOfAPoolToPayload) {
  const auto payload = [](uint64_t bytes, uint32_t hosts) {
    const auto g =
        core::plan_geometry({.total_bytes = bytes, .align_bytes = 2 * kMiB, .hosts = hosts});
    EXPECT_TRUE(g);
    EXPECT_GE(g->extent_count, 8 * hosts) << bytes << " for " << hosts;
    const double share =
        static_cast<double>(g->extent_count * g->extent_bytes) / static_cast<double>(bytes);
    RecordProperty(fmt::format("payload_{}_hosts_{}_mib", hosts, bytes >> 20),
                   fmt::format("{:.4f}", share));
    return share;
  };
  constexpr uint64_t kGiB = uint64_t{1} << 30;
  for (const uint32_t hosts : {2u, 4u, 8u, 16u}) {
    EXPECT_GE(payload(256 * kMiB * hosts, hosts), 0.75) << hosts;
    EXPECT_GE(payload(kGiB * hosts, hosts), 0.88) << hosts;
    EXPECT_GE(payload(64 * kGiB * hosts, hosts), 0.92) << hosts;
  }
}

TEST(Geometry, WordsAreFourTimesTheShareOrAll) {
  for (const uint32_t hosts : {1u, 3u, 4u, 5u, 8u, 64u}) {
    const auto g = core::plan_geometry(
        {.total_bytes = uint64_t{64} << 30, .align_bytes = 4096, .hosts = hosts});
    ASSERT_TRUE(g);
    const core::Layout layout(*g);
    EXPECT_EQ(layout.has_all_words(core::set_0(*g)), hosts <= 4) << hosts;
    EXPECT_GE(g->word_count * hosts, std::min<uint64_t>(4, hosts) * layout.slot_limit());
    EXPECT_LE((g->word_count - layout.slots_per_extent()) * hosts, 4 * layout.slot_limit());
  }
}

}  // namespace
}  // namespace bowhead::test
