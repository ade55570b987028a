// SPDX-License-Identifier: Apache-2.0
// Hosts that must not join or continue, each with its status and a sentence that names the pool and
// says what to do; and a slot line that is damaged while its host runs.
#include <thread>

#include "tests/support/hosts.h"
#include "tests/support/native_core.h"
#include "tests/support/no_threads.h"

namespace bowhead::test {
namespace {

void expect_error(const Error& error, Status status, const std::string& locator,
                  const std::string& advice) {
  EXPECT_EQ(error.status, status) << error.message();
  EXPECT_NE(error.message().find(locator), std::string::npos) << error.message();
  EXPECT_NE(error.message().find(advice), std::string::npos) << error.message();
}

/// Makes a host slot belong to another machine, or to one that left.
void give_to_another_machine(const SharedPool& shared, uint32_t host, uint32_t state) {
  { ASSERT_EQ(shared.open(host).put(fmt::format("of-{}", host)), Status::OK); }
  bh_host_slot slot = *shared.slot(host);
  slot.state = state;
  slot.machine_id = 1;
  slot.boot_id = 2;
  if (state == BH_HOST_LEFT) slot.fenced = slot.incarnation;
  shared.write_slot(host, slot);
}

TEST(Refused, ANumberOutOfRange) {
  SharedPool two(2);
  const auto third = Host::open(two.locator(), 2);
  ASSERT_FALSE(third);
  expect_error(third.error(), Status::INVALID_ARGUMENT, two.locator(), "numbered from 0");
  SharedPool one(1);
  const auto second = Host::open(one.locator(), 1);
  ASSERT_FALSE(second);
  expect_error(second.error(), Status::INVALID_ARGUMENT, one.locator(), "made for 1 host(s)");
}

TEST(Refused, ANumberOutOfRangeAlsoToLook) {
  SharedPool shared(2);
  for (const uint32_t host : {2u, 3u, 64u}) {
    OpenOptions options;
    options.host = host;
    options.observe = true;
    const auto opened = Pool::open(shared.locator(), options);
    ASSERT_FALSE(opened) << host;
    expect_error(opened.error(), Status::INVALID_ARGUMENT, shared.locator(), "numbered from 0");
  }
}

TEST(Refused, AFullPool) {
  SharedPool shared(2);
  for (const uint32_t host : {0u, 1u}) give_to_another_machine(shared, host, BH_HOST_LIVE);
  const auto opened = Host::open(shared.locator(), kAnyHost);
  ASSERT_FALSE(opened);
  expect_error(opened.error(), Status::LIMIT_REACHED, shared.locator(), "`bowhead pool leave`");
}

TEST(Refused, AnIdOfAnotherMachine) {
  SharedPool shared(2);
  give_to_another_machine(shared, 0, BH_HOST_LIVE);
  const auto opened = Host::open(shared.locator(), 0);
  ASSERT_FALSE(opened);
  expect_error(opened.error(), Status::HOST_ID_IN_USE, shared.locator(), "another --host");
  EXPECT_EQ(shared.slot(0)->machine_id, 1u) << "its line is left as it was";
}

TEST(Accepted, AnIdOfAnotherMachineThatLeft) {
  SharedPool shared(2);
  give_to_another_machine(shared, 0, BH_HOST_LEFT);
  Host host = shared.open(0);
  EXPECT_EQ(host.info_of(0).incarnation, 2u);
  EXPECT_EQ(host.put("k"), Status::OK);
  EXPECT_EQ(host.get("of-0"), Status::OK);
}

TEST(Accepted, AnIdOfAnotherMachineThatDiedAndWasFenced) {
  SharedPool shared(2);
  give_to_another_machine(shared, 0, BH_HOST_LIVE);
  Host other = shared.open(1);
  EXPECT_TRUE(eventually([&] { return other.info_of(0).state == "ended"; }));
  const auto refused = Host::open(shared.locator(), 0);
  ASSERT_FALSE(refused) << "that machine may still be writing";
  expect_error(refused.error(), Status::HOST_ID_IN_USE, shared.locator(), "another --host");
  ASSERT_TRUE(other.pool().fence(0));
  auto host = Host::open(shared.locator(), 0);
  ASSERT_TRUE(host) << host.error().message();
  EXPECT_EQ(host->info_of(0).incarnation, 2u);
  EXPECT_EQ(host->get("of-0"), Status::OK);
  EXPECT_TRUE(eventually([&] { return host->put("k") == Status::OK; }));
}

TEST(Accepted, AnyHostIsTheOneThatThisMachineHas) {
  SharedPool shared(3);
  give_to_another_machine(shared, 0, BH_HOST_LIVE);
  { ASSERT_EQ(shared.open(2).put("k"), Status::OK); }
  Host any = shared.open(kAnyHost);
  EXPECT_EQ(any.info_of(2).processes_live, 1u);
  EXPECT_EQ(any.get("k"), Status::OK);
}

TEST(Accepted, AnyHostIsAFreeOne) {
  SharedPool shared(2);
  give_to_another_machine(shared, 1, BH_HOST_LIVE);
  Host any = shared.open(kAnyHost);
  EXPECT_EQ(any.info_of(0).processes_live, 1u);
  EXPECT_EQ(any.put("k"), Status::OK);
}

/// The core only, so that the test drives its heartbeats.
struct LoneCore {
  explicit LoneCore(const SharedPool& shared)
      : media(*open_media(shared.locator())),
        access(*media, choose_flush_kind(/*needed=*/true)),
        core(access, shared.superblock(), /*host=*/0) {}
  std::unique_ptr<Media> media;
  core::NativeAccess access;
  core::Core<core::NativeAccess> core;
};

// ---- fence ----

TEST(Refused, AFenceOfAHostThatCannotBeFenced) {
  SharedPool shared(3);
  Host host = shared.open(1);
  for (const auto& [slot, advice] :
       {std::pair{1u, "this host itself"}, std::pair{3u, "out of range"},
        std::pair{UINT32_MAX, "out of range"}, std::pair{2u, "never used"}}) {
    const auto fenced = host.pool().fence(slot);
    ASSERT_FALSE(fenced) << slot;
    EXPECT_EQ(fenced.status(), Status::INVALID_ARGUMENT);
    EXPECT_NE(fenced.error().message().find(advice), std::string::npos) << fenced.error().message();
  }
}

struct Died {};

/// Dies when the new life is agreed on but the slot does not show it yet.
void die_while_joining(const SharedPool& shared) {
  EXPECT_THROW(LoneCore(shared).core.joining.attach({}, [] { throw Died{}; }), Died);
}

TEST(Refused, AFenceOfALifeThatNoSlotShowsUntilItIsDeclaredDead) {
  SharedPool shared(2);
  Host other = shared.open(1);
  die_while_joining(shared);
  const auto refused = other.pool().fence(0);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.status(), Status::BUSY) << refused.error().message();
  EXPECT_TRUE(eventually([&] { return static_cast<bool>(other.pool().fence(0)); }));
  EXPECT_EQ(shared.open(0).info_of(0).state, "live");
}

TEST(Refused, WithoutThreadsForAHostItDoesNotJoin) {
  const SharedPool pool(2);
  {
    const NoThreads none;
    EXPECT_EQ(Host::open(pool.locator(), 1).status(), Status::SYSTEM);
  }
  EXPECT_EQ(pool.slot(1)->incarnation, 0);  // it was never used
  EXPECT_EQ(pool.open(1).put("key"), Status::OK);
}

TEST(Accepted, AFenceOfALifeThatIsOverWhileTheNextIsJoining) {
  SharedPool shared(2);
  Host other = shared.open(1);
  HostProcess first(shared, 0, {[](Host& host) { return host.put("a"); }});
  ASSERT_EQ(first.next(), Status::OK);
  first.kill_now();
  ASSERT_TRUE(eventually([&] { return other.info_of(0).state == "ended"; }));
  die_while_joining(shared);
  EXPECT_TRUE(other.pool().fence(0));
  EXPECT_EQ(shared.open(0).info_of(0).state, "live");
}

// ---- one id, two machines ----

TEST(Conflict, TwoMachinesWithOneIdAreNoticed) {
  SharedPool shared(2);
  LoneCore host(shared);
  ASSERT_TRUE(host.core.joining.attach({}));
  sleep_ms(kShortTimes.heartbeat_ms);
  ASSERT_TRUE(host.core.membership.heartbeat());
  bh_host_slot other = *shared.slot(0);
  ++other.nonce;
  shared.write_slot(0, other);
  sleep_ms(kShortTimes.heartbeat_ms);
  const auto done = host.core.membership.heartbeat();
  ASSERT_FALSE(done);
  EXPECT_EQ(done.status(), Status::HOST_ID_CONFLICT);
  EXPECT_NE(done.error().message().find("--host"), std::string::npos) << done.error().message();
  host.core.joining.detach();
  EXPECT_EQ(shared.slot(0)->nonce, other.nonce) << "the line is left to the other machine";
}

TEST(Conflict, NothingIsStoredAnyMore) {
  SharedPool shared(2);
  Host host = shared.open(0);
  ASSERT_EQ(host.put("before"), Status::OK);
  auto reserved = host.pool().reserve(host.ns(), "reserved", 1000);
  ASSERT_TRUE(reserved);
  bh_host_slot other = *shared.slot(0);
  ++other.nonce;
  shared.write_slot(0, other);
  Status status = Status::OK;
  uint64_t n = 0;
  EXPECT_TRUE(eventually([&] {
    status = host.put(fmt::format("after-{}", n++), 1000);
    return status != Status::OK;
  }));
  EXPECT_EQ(status, Status::HOST_ID_CONFLICT);
  EXPECT_EQ(host.pool().commit(*reserved), Status::HOST_ID_CONFLICT);
  EXPECT_EQ(host.pool().reserve(host.ns(), "more", 10).status(), Status::HOST_ID_CONFLICT);
  EXPECT_EQ(host.acquire("before").status(), Status::HOST_ID_CONFLICT);
  EXPECT_EQ(host.remove("before"), Status::HOST_ID_CONFLICT);
}

/// Its successor may have blocks in its former space.
TEST(Conflict, NotAByteIsStoredAnyMore) {
  SharedPool shared(2);
  Host host = shared.open(0);
  ASSERT_EQ(host.put("before"), Status::OK);
  bh_host_slot other = *shared.slot(0);
  ++other.nonce;
  shared.write_slot(0, other);
  EXPECT_TRUE(eventually([&] { return host.remove("none") == Status::HOST_ID_CONFLICT; }));
  const auto payload = [&] {
    const bh_geometry& g = shared.layout().geometry();
    const std::byte* first = shared.at(g.payload_offset);
    return std::vector<std::byte>(first, first + g.extent_count * g.extent_bytes);
  };
  const auto before = payload();
  for (int i = 0; i < 200; ++i)
    EXPECT_EQ(host.put(fmt::format("after-{}", i), 1000u << i % 8), Status::HOST_ID_CONFLICT);
  EXPECT_TRUE(payload() == before);
}

// ---- other pools in the place of this one ----

void replace_by_one_host(const std::string& locator) {
  (void)Pool::destroy(locator, /*force=*/true);
  ASSERT_TRUE(Pool::create(locator, {.size_bytes = 64 << 20, .evict_high_permille = 0}));
  auto pool = Pool::open(locator);
  ASSERT_TRUE(pool) << pool.error().message();
  const auto ns = pool->open_namespace({"hosts", "any bytes"});
  const std::vector<std::byte> value(10'000, std::byte{1});
  const ConstSpan in[] = {{value.data(), value.size()}};
  Status status = Status::OK;  // all of it is payload: any other store there is detected
  for (int i = 0; status == Status::OK; ++i) status = pool->put(*ns, fmt::format("k-{}", i), in);
}

void expect_whole(const std::string& locator) {
  auto pool = Pool::open(locator);
  ASSERT_TRUE(pool) << pool.error().message();
  const auto report = pool->check(/*payload=*/true);
  ASSERT_TRUE(report) << report.error().message();
  for (const auto& finding : report->findings) ADD_FAILURE() << finding.what;
}

/// While it tries one slot after another.
TEST(ReplacedMeanwhile, AnOpenAsAnyHostTakesNoSlotOfAnotherPool) {
  SharedPool shared(8, {.evict_high_permille = 0}, {.heartbeat_ms = 100});
  const auto media = open_media(shared.locator());
  const core::NativeAccess access(**media, FlushKind::NONE);
  if (access.machine_id() == 0) GTEST_SKIP() << "this machine has no machine id";
  for (uint32_t host = 1; host < 7; ++host) {
    bh_host_slot slot{};
    slot.incarnation = 1;
    slot.machine_id = access.machine_id();
    slot.boot_id = 2;  // it had them before it booted
    slot.state = BH_HOST_LIVE;
    shared.write_slot(host, slot);
  }
  std::thread replacer([&] {
    sleep_ms(700);
    replace_by_one_host(shared.locator());
  });
  auto opened = Pool::open(shared.locator());
  replacer.join();
  if (opened) {
    const auto ns = opened->open_namespace({"hosts", "any bytes"});
    const std::vector<std::byte> value(50'000, std::byte{2});
    const ConstSpan in[] = {{value.data(), value.size()}};
    const Status put = ns ? opened->put(*ns, "mine", in) : ns.status();
    EXPECT_TRUE(put == Status::OK || put == Status::NO_SPACE || put == Status::CLOSED)
        << status_name(put);
  } else {
    EXPECT_TRUE(opened.status() == Status::NO_SUCH_POOL || opened.status() == Status::BUSY)
        << opened.error().message();
  }
  opened = Status::CLOSED;
  expect_whole(shared.locator());
}

TEST(ReplacedMeanwhile, ARepairMendsNoOtherPool) {
  for (int round = 0; round < 12; ++round) {
    SharedPool shared(8);
    for (uint32_t host = 0; host < 8; ++host) (void)shared.open(host).pool().leave();
    std::thread replacer([&] {
      sleep_ms(round * 25);
      replace_by_one_host(shared.locator());
    });
    const auto repaired = Pool::repair(shared.locator());
    replacer.join();
    if (!repaired) {
      const Status status = repaired.status();
      EXPECT_TRUE(status == Status::BUSY || status == Status::NO_SUCH_POOL ||
                  status == Status::IN_USE || status == Status::CLOSED)
          << repaired.error().message();
    }
    expect_whole(shared.locator());
  }
}

// ---- blocks without a checksum ----

/// Their header may be in the memory before their payload, and no checksum would detect it: until
/// their host reports by its heartbeat that they have settled, other hosts do not find them.
TEST(Unverified, IsReadByOthersWhenItHasSettled) {
  SharedPool shared(2);
  LoneCore writer(shared);
  ASSERT_TRUE(writer.core.joining.attach({}));
  ASSERT_TRUE(writer.core.membership.heartbeat());
  Host reader = shared.open(1);
  if (!writer.core.context().incoherent()) GTEST_SKIP() << "this CPU cannot write lines back";
  const core::Key key(reader.ns(), "k");
  auto reserved = writer.core.writing.reserve(key, 1000);
  ASSERT_TRUE(reserved);
  std::memset(reserved->data, 7, 1000);
  ASSERT_EQ(writer.core.writing.commit(*reserved, {.by = PayloadSum::By::NONE}), Status::OK);
  const auto get = [&] {
    std::vector<std::byte> out(1000);
    const Span to[] = {{out.data(), out.size()}};
    const auto length = reader.pool().get(reader.ns(), "k", to);
    EXPECT_TRUE(!length || out == std::vector<std::byte>(1000, std::byte{7}));
    return length.status();
  };
  EXPECT_EQ(get(), Status::NOT_FOUND);
  EXPECT_TRUE(
      eventually([&] { return writer.core.membership.heartbeat() && get() == Status::OK; }));
  writer.core.joining.detach();
}

// ---- repair, leave ----

TEST(Repaired, APoolHasNoHostAfterwards) {
  SharedPool shared(3);
  { ASSERT_EQ(shared.open(0).put("a"), Status::OK); }
  ASSERT_TRUE(shared.open(1).pool().leave());
  const auto repaired = Pool::repair(shared.locator(), {.take_over = true});
  ASSERT_TRUE(repaired) << repaired.error().message();
  for (const uint32_t host : {0u, 1u}) EXPECT_EQ(shared.slot(host)->state, BH_HOST_LEFT) << host;
  Host other = shared.open(1);
  EXPECT_TRUE(eventually([&] { return other.get("a") == Status::OK; }));
}

/// At any moment at which it waits for others: what it had begun is ended by the next one.
TEST(Refused, AnOpeningThatWasCancelled) {
  SharedPool shared(2);
  Host other = shared.open(1);
  ASSERT_EQ(other.put("of the other"), Status::OK);
  for (int life = 0; life < 5; ++life) {
    const std::string key = "of life " + std::to_string(life);
    Host host = shared.open(0);
    ASSERT_TRUE(eventually([&] { return host.put(key) == Status::OK; }));
    ASSERT_TRUE(host.pool().leave());
    const auto media = open_media(shared.locator());
    core::NativeAccess opener(**media, FlushKind::NONE);
    ASSERT_EQ(opener.lock_host(0, 10'000), core::LockResult::TAKEN);
    bool is_locked = true;
    for (uint64_t looks = 0;; ++looks) {
      OpenOptions options;
      options.host = 0;
      uint64_t looked = 0;
      options.cancelled = [&] { return looked++ >= looks; };
      const auto opened = Host::open(shared.locator(), options);
      if (opened) break;
      EXPECT_EQ(opened.status(), Status::CANCELLED) << opened.error().message();
      if (std::exchange(is_locked, false)) opener.unlock_host(0);
    }
    EXPECT_FALSE(is_locked) << "it waited for the lock";
    EXPECT_TRUE(eventually([&] { return other.get(key) == Status::OK; }));
    EXPECT_EQ(other.get("of the other"), Status::OK);
  }
}

/// However long a process that opens the pool makes it wait.
TEST(Refused, ALeaveThatEndsNoMembership) {
  SharedPool shared(2);
  Host host = shared.open(0);
  const auto media = open_media(shared.locator());
  core::NativeAccess opener(**media, FlushKind::NONE);
  ASSERT_EQ(opener.lock_host(0, 10'000), core::LockResult::TAKEN);
  const auto refused = host.pool().leave();
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.status(), Status::BUSY) << refused.error().message();
  opener.unlock_host(0);
  EXPECT_EQ(host.put("a"), Status::OK);
  EXPECT_TRUE(host.pool().leave());
}

// ---- damage ----

TEST(Damage, ASlotLineOfARunningHostIsRestored) {
  SharedPool shared(2);
  Host first = shared.open(0), second = shared.open(1);
  ASSERT_EQ(first.put("a"), Status::OK);
  const bh_host_slot before = *shared.slot(0);
  for (int round = 0; round < 3; ++round) {
    for (const uint32_t copy : {0u, 1u})
      std::memset(shared.at(shared.layout().slot_line(0, copy)), 0xAB, sizeof(bh_host_slot));
    EXPECT_EQ(second.get("a"), Status::OK);
    EXPECT_EQ(second.put(fmt::format("b-{}", round)), Status::OK);
    EXPECT_TRUE(eventually([&] { return shared.slot(0).has_value(); }));
    EXPECT_EQ(first.put(fmt::format("c-{}", round)), Status::OK);
    EXPECT_EQ(second.get(fmt::format("c-{}", round)), Status::OK);
  }
  EXPECT_EQ(shared.slot(0)->nonce, before.nonce);
  EXPECT_EQ(shared.slot(0)->incarnation, before.incarnation);
  EXPECT_EQ(second.info_of(0).state, "live");
  EXPECT_EQ(second.info_of(1).state, "live");
}

TEST(Damage, TheSlotOfADeadHostStopsNoOtherHost) {
  SharedPool shared(3);
  { ASSERT_EQ(shared.open(0).put("a"), Status::OK); }
  for (const uint32_t copy : {0u, 1u})
    std::memset(shared.at(shared.layout().slot_line(0, copy)), 0xAB, sizeof(bh_host_slot));
  Host second = shared.open(1);
  EXPECT_EQ(second.put("b"), Status::OK);
  EXPECT_EQ(second.info_of(0).state, "damaged");
  Host third = shared.open(2);
  EXPECT_EQ(third.get("b"), Status::OK);
  const auto refused = Host::open(shared.locator(), 0);
  ASSERT_FALSE(refused);
  expect_error(refused.error(), Status::DAMAGED, shared.locator(), "`bowhead pool repair`");
}

}  // namespace
}  // namespace bowhead::test
