// SPDX-License-Identifier: Apache-2.0
// User metadata and attributes of blocks, and the counters of namespaces.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <map>
#include <string>
#include <vector>

#include "pool/core/layout.h"
#include "pool/pool.h"
#include "tests/support/pools.h"
#include "tests/support/tiny_pool.h"

namespace bowhead {
namespace {

using test::TestPool;
using Value = std::vector<std::byte>;

Status put(TestPool& t, std::string_view key, const Value& value, std::string_view user) {
  const ConstSpan in[] = {{value.data(), value.size()}};
  return t.pool().put(t.ns(), key, in, user);
}

/// The user metadata that comes with a get; "!" and the status if there is none.
std::string user_of(TestPool& t, std::string_view key) {
  Value out(1 << 20);
  const Span to[] = {{out.data(), out.size()}};
  std::string user = "not set";
  const auto got = t.pool().get(t.ns(), key, to, &user);
  return got ? user : std::string("!") + status_name(got.status());
}

TEST(UserMetadata, ComeBackWithEveryReadOfTheBlock) {
  TestPool t(16 << 20);
  for (const size_t size : {0, 1, 40, 56, 57, 200, 512}) {
    for (const size_t key_size : {5, 64, 512}) {
      std::string key = fmt::format("{}", size);
      key.resize(key_size, 'k');
      std::string user(size, '\0');
      for (size_t i = 0; i < size; ++i) user[i] = static_cast<char>(i * 31 + key_size);
      ASSERT_EQ(put(t, key, test::bytes(1000, size), user), Status::OK);
      EXPECT_EQ(user_of(t, key), user);
      const auto block = t.pool().describe(t.ns(), key);
      ASSERT_TRUE(block);
      EXPECT_EQ(block->user_metadata, user);
      EXPECT_EQ(block->length_bytes, 1000u);
      auto lease = t.pool().acquire(t.ns(), key, 1000);
      ASSERT_TRUE(lease);
      EXPECT_EQ(lease->user_metadata, user);
      EXPECT_EQ(lease->stamp, block->stamp);
      EXPECT_EQ(t.pool().release(*lease), Status::OK);
      EXPECT_EQ(t.get(key), test::bytes(1000, size));
      uint64_t listed = 0;
      ASSERT_EQ(t.pool().list([&](const BlockInfo& one) {
        listed += one.key == key && one.user_metadata == user;
        return true;
      }),
                Status::OK);
      EXPECT_EQ(listed, 1u);
    }
  }
  EXPECT_TRUE(t.check_clean());
}

TEST(UserMetadata, StayAsTheFirstPutGaveThem) {
  TestPool t(16 << 20);
  ASSERT_EQ(put(t, "k", test::bytes(100, 1), "first"), Status::OK);
  ASSERT_EQ(put(t, "k", test::bytes(100, 1), "second"), Status::OK);
  EXPECT_EQ(user_of(t, "k"), "first");
  ASSERT_EQ(t.pool().remove(t.ns(), "k"), Status::OK);
  ASSERT_EQ(put(t, "k", test::bytes(100, 1), "third"), Status::OK);
  EXPECT_EQ(user_of(t, "k"), "third");
}

TEST(UserMetadata, AreStoredByACommitAndRefusedIfTooLong) {
  TestPool t(16 << 20);
  auto reserved = t.pool().reserve(t.ns(), "k", 100, "in place");
  ASSERT_TRUE(reserved);
  ASSERT_EQ(t.pool().commit(*reserved), Status::OK);
  EXPECT_EQ(user_of(t, "k"), "in place");
  const std::string longest(BH_USER_BYTES_MAX, 'u'), longer(BH_USER_BYTES_MAX + 1, 'u');
  EXPECT_EQ(put(t, "l", test::bytes(100, 1), longest), Status::OK);
  EXPECT_EQ(put(t, "m", test::bytes(100, 1), longer), Status::INVALID_ARGUMENT);
  EXPECT_EQ(t.pool().reserve(t.ns(), "m", 100, longer).status(), Status::INVALID_ARGUMENT);
  EXPECT_EQ(user_of(t, "m"), "!NOT_FOUND");
}

/// The place of a block's key lines in its table.
std::byte* key_line(TestPool& t, std::string_view key, const bh_superblock& sb) {
  const core::Layout layout(sb.geometry);
  const auto block = t.pool().describe(t.ns(), key);
  const uint64_t at = layout.header(layout.slot_of(block->offset)) + offsetof(bh_block_slot, key);
  return const_cast<std::byte*>(t.pool().mapping().data) + at;
}

bh_superblock superblock_of(TestPool& t) {
  bh_superblock sb;
  std::memcpy(&sb, t.pool().mapping().data, sizeof sb);
  return sb;
}

TEST(UserMetadata, ThatAreDamagedMakeTheBlockDamaged) {
  TestPool t(16 << 20);
  const bh_superblock sb = superblock_of(t);
  for (const char* key : {"get", "lease", "described", "kept"})
    ASSERT_EQ(put(t, key, test::bytes(100, 1), "some metadata"), Status::OK);
  for (const char* key : {"get", "lease", "described"}) key_line(t, key, sb)[16] ^= std::byte{1};
  const auto report = t.pool().check(/*payload=*/false);
  ASSERT_TRUE(report);
  EXPECT_EQ(report->findings.size(), 3u);
  for (const CheckFinding& finding : report->findings)
    EXPECT_EQ(finding.what, "the user metadata of a block are damaged");
  EXPECT_EQ(user_of(t, "get"), "!NOT_FOUND");
  EXPECT_EQ(t.pool().acquire(t.ns(), "lease", 1000).status(), Status::NOT_FOUND);
  EXPECT_EQ(t.info().damaged, 2u);
  // Without them it can be read, so that it is not lost.
  EXPECT_EQ(t.pool().describe(t.ns(), "described").status(), Status::DAMAGED);
  const Pool observer = *Pool::open(t.locator(), {.observe = true});
  EXPECT_EQ(const_cast<Pool&>(observer).describe(t.ns(), "described").status(), Status::DAMAGED);
  Value value(100);
  const Span to[] = {{value.data(), value.size()}};
  EXPECT_EQ(t.pool().get(t.ns(), "described", to).value(), 100u);
  EXPECT_EQ(value, test::bytes(100, 1));
  EXPECT_EQ(t.pool().remove(t.ns(), "described"), Status::OK);
  EXPECT_EQ(user_of(t, "kept"), "some metadata");
  EXPECT_TRUE(t.check_clean());
}

// ---- attributes ----

constexpr BlockAttributes kAll{.priority = 255,
                               .soft_pin = true,
                               .hard_pin = true,
                               .forks = 65535,
                               .parity_group = 0xFFFFFFFF,
                               .expires_unix_s = 0xFFFFFFFF,
                               .next_use_unix_s = 0xFFFFFFFE,
                               .group = UINT64_MAX};

TEST(Attributes, BelongToTheBlockForWhichTheyWereSet) {
  TestPool t(16 << 20);
  EXPECT_EQ(t.pool().set_attributes(t.ns(), "k", kAll).status(), Status::NOT_FOUND);
  ASSERT_EQ(put(t, "k", test::bytes(100, 1), ""), Status::OK);
  const auto seen = [&] { return t.pool().describe(t.ns(), "k")->attributes; };
  EXPECT_EQ(seen(), BlockAttributes{});
  for (const BlockAttributes& one :
       {kAll, BlockAttributes{.priority = 1}, BlockAttributes{.soft_pin = true},
        BlockAttributes{.forks = 2}, BlockAttributes{.parity_group = 3},
        BlockAttributes{.expires_unix_s = 4}, BlockAttributes{.next_use_unix_s = 5},
        BlockAttributes{.group = 6}}) {
    ASSERT_TRUE(t.pool().set_attributes(t.ns(), "k", one));
    EXPECT_EQ(seen(), one);
  }
  // The next block takes the same slot.
  ASSERT_EQ(t.pool().remove(t.ns(), "k"), Status::OK);
  ASSERT_EQ(put(t, "k", test::bytes(100, 1), ""), Status::OK);
  EXPECT_EQ(seen(), BlockAttributes{});
  ASSERT_TRUE(t.pool().set_attributes(t.ns(), "k", kAll));
  t.open();
  EXPECT_EQ(seen(), kAll);
}

/// Blocks keep what they have when they are moved, and when they are stored in fewer bytes.
TEST(Attributes, AndUserMetadataStayWithABlockThatIsMoved) {
  const test::TinyPool pool({.extent_count = 4});
  test::NativeHandle handle(pool);
  ASSERT_TRUE(handle.attach());
  auto& core = handle.core();
  std::vector<std::string> keys;
  for (int i = 0; i < 1000; ++i) {
    const std::string key = fmt::format("key {}", i);
    if (test::put(core, key, test::bytes(9000, 1), "of " + key) != Status::OK) break;
    keys.push_back(key);
    ASSERT_EQ(core.attributes.set(core::Key(test::kNamespace, key),
                                  {.group = static_cast<uint64_t>(i + 1)}),
              Status::OK);
  }
  for (size_t i = 0; i < keys.size(); i += 2) {
    ASSERT_EQ(test::remove(core, keys[i]), Status::OK);
    keys[i].clear();
  }
  PoolInfo before{}, after{};
  core.inspection.fill_info(before);
  ASSERT_EQ(test::put(core, "large", test::bytes(200'000, 2)), Status::OK);
  core.inspection.fill_info(after);
  EXPECT_GT(after.moves, before.moves);
  for (size_t i = 0; i < keys.size(); ++i) {
    if (keys[i].empty()) continue;
    const auto block = core.inspection.describe(core::Key(test::kNamespace, keys[i]));
    ASSERT_TRUE(block);
    EXPECT_EQ(block->user_metadata, "of " + keys[i]);
    EXPECT_EQ(block->attributes, BlockAttributes{.group = i + 1});
  }
  handle.detach();
}

// ---- counters of namespaces ----

/// What a namespace has by a look at every block.
NamespaceUsage walk(Pool& pool, NamespaceId ns) {
  NamespaceUsage usage{.id = ns};
  EXPECT_EQ(pool.list([&](const BlockInfo& block) {
    if (block.namespace_id != ns) return true;
    usage.blocks += 1;
    usage.value_bytes += static_cast<int64_t>(block.length_bytes);
    usage.stored_bytes += static_cast<int64_t>(block.stored_bytes);
    return true;
  }),
            Status::OK);
  return usage;
}

NamespaceUsage counted(Pool& pool, NamespaceId ns) {
  const auto all = pool.usage();
  EXPECT_TRUE(all);
  for (const NamespaceUsage& one : *all) {
    if (one.id == ns) return one;
  }
  return {};
}

void expect_right(Pool& pool, NamespaceId ns) {
  const NamespaceUsage by_walk = walk(pool, ns), by_count = counted(pool, ns);
  EXPECT_EQ(by_count.blocks, by_walk.blocks);
  EXPECT_EQ(by_count.value_bytes, by_walk.value_bytes);
  EXPECT_EQ(by_count.stored_bytes, by_walk.stored_bytes);
}

/// Works on random keys of two namespaces, in a pool so small that it evicts and moves.
void work(Pool& pool, const std::vector<NamespaceId>& spaces, uint64_t seed, int operations) {
  Random random(seed);
  const Value value = test::bytes(1 << 18, 1);
  for (int i = 0; i < operations; ++i) {
    const NamespaceId ns = spaces[random.below(spaces.size())];
    const std::string key = fmt::format("{}", random.below(600));
    const uint64_t roll = random.below(10);
    const uint64_t size = 1 + random.below(random.below(8) == 0 ? 1 << 18 : 1 << 15);
    const ConstSpan in[] = {{value.data(), size}};
    Value out(1 << 18);
    const Span to[] = {{out.data(), out.size()}};
    if (roll < 6) (void)pool.put(ns, key, in, roll == 0 ? "with metadata" : "");
    if (roll == 6) (void)pool.remove(ns, key);
    if (roll > 6) (void)pool.get(ns, key, to);
  }
}

TEST(Usage, IsThatOfAWalkOverAllBlocks) {
  TestPool t(16 << 20);
  const NamespaceId other = *t.pool().open_namespace({"other", ""});
  work(t.pool(), {t.ns(), other}, 1, 8000);
  EXPECT_GT(t.info().evictions, 0u);
  for (const NamespaceId ns : {t.ns(), other}) expect_right(t.pool(), ns);
  const NamespaceUsage a = counted(t.pool(), t.ns()), b = counted(t.pool(), other);
  EXPECT_EQ(a.hits + b.hits, t.info().hits);
  EXPECT_EQ(a.misses + b.misses, t.info().misses);
  EXPECT_EQ(a.evictions + b.evictions, t.info().evictions);
  // What the values need; where no other block was free, one can be larger.
  EXPECT_LE(a.block_bytes + b.block_bytes, t.info().used_bytes);
  EXPECT_GT(a.block_bytes + b.block_bytes, t.info().used_bytes / 2);
  t.open();  // the next process goes on
  for (const NamespaceId ns : {t.ns(), other}) expect_right(t.pool(), ns);
}

TEST(Usage, IsRightAgainOnceTheFirstProcessHasOpenedThePoolAfterDeaths) {
  TestPool t(16 << 20);
  const NamespaceId other = *t.pool().open_namespace({"other", ""});
  Random random(7);
  for (int round = 0; round < 12; ++round) {
    std::vector<pid_t> children;
    for (int i = 0; i < 2; ++i) {
      const pid_t pid = fork();
      if (pid == 0) {
        auto pool = Pool::open(t.locator());
        if (!pool) _exit(1);
        for (uint64_t seed = 0;; ++seed)
          work(*pool, {t.ns(), other}, seed * 64 + round * 2 + i, 100);
      }
      children.push_back(pid);
    }
    usleep(static_cast<useconds_t>(20'000 + random.below(60'000)));
    for (const pid_t pid : children) {
      kill(pid, SIGKILL);
      waitpid(pid, nullptr, 0);
    }
    if (round % 2 == 0) continue;  // survivors scavenge
    t.open();
    for (const NamespaceId ns : {t.ns(), other}) expect_right(t.pool(), ns);
  }
  EXPECT_TRUE(t.check_clean());
}

TEST(Usage, OfRemovedNamespacesIsThatOfNone) {
  TestPool t(16 << 20);
  const NamespaceId other = *t.pool().open_namespace({"other", ""});
  work(t.pool(), {other}, 1, 50);
  const uint64_t hits = counted(t.pool(), other).hits, misses = counted(t.pool(), other).misses;
  ASSERT_TRUE(t.pool().remove_namespace("other"));
  EXPECT_EQ(counted(t.pool(), other).id, 0u);
  const NamespaceUsage none = counted(t.pool(), 0);
  EXPECT_EQ(none.blocks, 0);
  EXPECT_EQ(none.value_bytes, 0);
  EXPECT_EQ(none.hits, hits);
  EXPECT_EQ(none.misses, misses);
}

/// A full table counts the rest together.
TEST(Usage, OfNamespacesWithoutALineIsSharedByThem) {
  const test::TinyPool pool;  // six lines in a shard, of which one is for these
  test::NativeHandle handle(pool);
  ASSERT_TRUE(handle.attach());
  auto& core = handle.core();
  const Value value = test::bytes(100, 1);
  const ConstSpan in[] = {{value.data(), value.size()}};
  for (uint64_t ns = 1; ns <= 8; ++ns)
    ASSERT_EQ(core.writing.put(core::Key(ns << 40 | 1, "k"), in), Status::OK);
  std::map<uint64_t, uint64_t> blocks;
  core.usage.for_each(0, [&](const bh_usage& line) { blocks[line.namespace_id] += line.blocks; });
  EXPECT_EQ(blocks.size(), 6u);
  EXPECT_EQ(blocks[0], 3u);
  handle.detach();
}

}  // namespace
}  // namespace bowhead
