// SPDX-License-Identifier: Apache-2.0
// Blocks in custody that their old owner overwrote, and a death of the process that opens their
// extents. The processes are cores in one thread; they do the duties of their host when the test
// says so.
#include <optional>

#include "tests/support/hosts.h"
#include "tests/support/native_core.h"

namespace bowhead::test {
namespace {

/// Only the test declares a host dead, however slow the machine is; the extents of that host come
/// into use when it is fenced.
constexpr SharingTimes kNoTimeLimits{
    .heartbeat_ms = 5, .dead_ms = 600'000, .grace_ms = 20, .settle_ms = 1, .reclaim_ms = 0};

/// One that is destroyed was killed, as far as the others can see: it does not detach.
struct Process {
  Process(const SharedPool& shared, uint32_t host)
      : media(*open_media(shared.locator())),
        access(*media, choose_flush_kind(/*needed=*/true)),
        core(access, shared.superblock(), host) {
    const auto attached = core.joining.attach({});
    EXPECT_TRUE(attached) << attached.error().message();
  }

  Status put(const core::Key& key) {
    const auto value = value_of(key.bytes, Host::kSize);
    const ConstSpan in[] = {{value.data(), value.size()}};
    return core.writing.put(key, in);
  }
  /// Declares the first life of a host dead, and its own host the successor.
  void succeed(uint32_t host) {
    const core::Life self{core.context().host, core.context().incarnation};
    EXPECT_EQ(core.hosts().decide({host, 1}, self.value()), core::Outcome::DECIDED);
    core.hosts().observe(access.now_ns());
  }
  void work_until(const std::function<bool()>& condition) {
    EXPECT_TRUE(eventually([&] {
      EXPECT_TRUE(core.membership.heartbeat());
      EXPECT_TRUE(core.membership.work());
      return condition();
    }));
  }
  /// All extents are in use, except maybe one.
  bool all_open(std::optional<uint64_t> except = {}) {
    for (uint64_t e = 0; e < core.context().layout.extent_end(); ++e) {
      if (core.extents().closed(e) && e != except) return false;
    }
    return true;
  }

  std::unique_ptr<Media> media;
  core::NativeAccess access;
  core::Core<core::NativeAccess> core;
};

/// The process that opens the extents cannot retire the block, since the lock of its key is held
/// all the time, and dies. The next process must find the block before it opens the extent, since
/// extents in FULL custody are not swept again.
TEST(Custody, AnOverwrittenBlockIsRetiredAfterADeath) {
  const SharedPool shared(2, {.evict_high_permille = 0}, kNoTimeLimits);
  const core::Key key(1, "overwritten");
  std::optional<Process> zombie(std::in_place, shared, 0);
  ASSERT_EQ(zombie->put(key), Status::OK);
  const auto located = zombie->core.lookup.locate(key);
  ASSERT_TRUE(located);
  const uint64_t extent = shared.layout().extent_of_slot(located->slot);

  std::optional<Process> first(std::in_place, shared, 1);
  Process second(shared, 1);
  first->succeed(0);
  first->work_until([&] { return first->core.extents().holds(extent); });
  EXPECT_EQ(zombie->core.writing.remove(key), Status::BUSY) << "too late to say that it is removed";
  zombie.reset();
  ASSERT_TRUE(first->core.membership.vouch_fenced(0));

  ASSERT_TRUE(second.core.locks.lock(key.hash, /*wait_ns=*/0));
  ASSERT_FALSE(first->all_open(/*except=*/extent));
  first->work_until([&] { return first->all_open(/*except=*/extent); });
  first.reset();
  second.core.locks.unlock(key.hash);

  second.work_until([&] { return second.all_open(); });
  const CheckReport report = second.core.inspection.check(/*payload=*/true, {});
  for (const CheckFinding& finding : report.findings) ADD_FAILURE() << finding.what;
  PoolInfo info;
  second.core.inspection.fill_info(info);
  EXPECT_EQ(info.blocks, 0) << "its space came back";
}

/// An adoption imported a block, and its process died while it waited for the lock of another one's
/// key. The next adoption takes no block of a namespace that was removed since: the entry that the
/// first one left names a block without a word, and goes before its extent is opened.
TEST(Custody, AnEntryThatAnUnfinishedAdoptionLeftIsErased) {
  const SharedPool shared(2, {.evict_high_permille = 0}, kNoTimeLimits);
  std::optional<Process> zombie(std::in_place, shared, 0);
  const auto ns = zombie->core.namespaces.open_namespace({.name = "removed"});
  ASSERT_TRUE(ns) << ns.error().message();
  const core::Key imported(*ns, "imported"), waiting(1, "waiting");
  ASSERT_EQ(zombie->put(imported), Status::OK);
  ASSERT_EQ(zombie->put(waiting), Status::OK);
  const auto located = zombie->core.lookup.locate(imported);
  ASSERT_TRUE(located);
  zombie.reset();

  std::optional<Process> first(std::in_place, shared, 1);
  Process second(shared, 1);
  ASSERT_TRUE(second.core.locks.lock(waiting.hash, /*wait_ns=*/0));
  first->succeed(0);
  first->work_until(
      [&] { return first->core.allocator().word(located->slot).state == BH_BLOCK_COMMITTED; });
  ASSERT_FALSE(first->core.extents().holds(shared.layout().extent_of_slot(located->slot)));
  first.reset();
  second.core.locks.unlock(waiting.hash);

  const auto removed = second.core.namespaces.remove_namespace("removed");
  ASSERT_TRUE(removed) << removed.error().message();
  ASSERT_TRUE(second.core.membership.vouch_fenced(0));
  second.work_until([&] { return second.all_open(); });
  const CheckReport report = second.core.inspection.check(/*payload=*/true, {});
  for (const CheckFinding& finding : report.findings) ADD_FAILURE() << finding.what;
  PoolInfo info;
  second.core.inspection.fill_info(info);
  EXPECT_EQ(info.blocks, 1) << "the one of the other namespace";
}

/// The process that opens the extents dies when it has put a free one into copy-only custody and
/// not yet opened it, and then the host before is fenced.
TEST(Custody, FreeExtentsThatADeathLeftClosedComeIntoUse) {
  SharingTimes times = kNoTimeLimits;
  times.reclaim_ms = 20;
  const SharedPool shared(2, {.evict_high_permille = 0}, times);
  std::optional<Process> zombie(std::in_place, shared, 0);
  zombie.reset();
  std::optional<Process> first(std::in_place, shared, 1);
  Process second(shared, 1);
  const auto all_in = [&](Process& process, uint32_t custody) {
    for (uint64_t e = 0; e < shared.extents() / 2; ++e) {
      if (!process.core.extents().holds(e) || process.core.extents().own_word(e).custody != custody)
        return false;
    }
    return true;
  };
  first->succeed(0);
  first->work_until([&] { return all_in(*first, BH_CUSTODY_COPY_ONLY) && first->all_open(); });
  for (uint64_t e = 0; e < shared.extents() / 2; ++e) {
    ASSERT_FALSE(first->core.extents().carved(e)) << e;
    first->core.extents().close(e);
  }
  first.reset();
  ASSERT_TRUE(second.core.membership.vouch_fenced(0));
  second.work_until([&] { return all_in(second, BH_CUSTODY_FULL) && second.all_open(); });
  const CheckReport report = second.core.inspection.check(/*payload=*/true, {});
  for (const CheckFinding& finding : report.findings) ADD_FAILURE() << finding.what;
}

}  // namespace
}  // namespace bowhead::test
