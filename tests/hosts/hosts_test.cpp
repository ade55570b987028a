// SPDX-License-Identifier: Apache-2.0
// Hosts of one pool: each finds what another stores, leases hold across hosts, and a host that
// leaves, dies or is late is succeeded without a wrong byte and without lost space.
#include <algorithm>
#include <chrono>
#include <optional>
#include <set>
#include <thread>

#include "tests/support/hosts.h"

namespace bowhead::test {
namespace {

std::string key(const char* name, uint64_t n) { return fmt::format("{}-{}", name, n); }

/// All `count` blocks are returned with the right bytes.
bool all_there(Host& host, const char* name, uint64_t count) {
  for (uint64_t n = 0; n < count; ++n) {
    if (const Status status = host.get(key(name, n)); status != Status::OK) {
      ADD_FAILURE() << key(name, n) << ": " << status_name(status);
      return false;
    }
  }
  return true;
}

/// Puts until there is no space, even after a while: other hosts may first have to give some.
uint64_t fill(Host& host, const char* name) {
  uint64_t stored = 0;
  for (int refusals = 0; refusals < 40;) {
    const Status status = host.put(key(name, stored));
    if (status == Status::OK) {
      ++stored;
      refusals = 0;
      continue;
    }
    EXPECT_EQ(status, Status::NO_SPACE);
    if (status != Status::NO_SPACE) break;
    ++refusals;
    sleep_ms(2 * kShortTimes.heartbeat_ms);
  }
  return stored;
}

/// Number of blocks of Host::kSize that so many extents hold.
uint64_t room_of(const SharedPool& shared, uint64_t extents) {
  const uint64_t block = (Host::kSize + BH_PAYLOAD_ALIGN - 1) / BH_PAYLOAD_ALIGN * BH_PAYLOAD_ALIGN;
  return shared.layout().geometry().extent_bytes / block * extents;
}

/// Waits until the block is found: for a host that has just joined this may take some heartbeats.
Result<Lease> acquire_when_seen(Host& host, std::string_view name) {
  EXPECT_TRUE(eventually([&] { return host.holds(name); }));
  return host.acquire(name);
}

bool ended(Host& observer, uint32_t host) { return observer.info_of(host).state == "ended"; }

// ---- blocks ----

TEST(Hosts, BlocksOfOneHostAreFoundByOthers) {
  SharedPool shared(3);
  Host first = shared.open(0), second = shared.open(1), third = shared.open(2);
  EXPECT_EQ(first.ns(), second.ns());
  for (uint64_t n = 0; n < 30; ++n) ASSERT_EQ(first.put(key("a", n)), Status::OK);
  EXPECT_TRUE(all_there(second, "a", 30));
  EXPECT_TRUE(all_there(third, "a", 30));
  std::vector<std::string> keys;
  for (uint64_t n = 0; n < 40; ++n) keys.push_back(key("a", n));
  const std::vector<std::string_view> views(keys.begin(), keys.end());
  std::vector<uint8_t> present(views.size());
  EXPECT_EQ(*third.pool().exists(third.ns(), views, present), 30u);
  EXPECT_EQ(present[29], 1);
  EXPECT_EQ(present[30], 0);
  ASSERT_EQ(second.put(keys[31]), Status::OK);
  EXPECT_EQ(*third.pool().longest_prefix(third.ns(), views), 30u);
  ASSERT_EQ(second.put(keys[30]), Status::OK);
  EXPECT_EQ(*third.pool().longest_prefix(third.ns(), views), 32u);
  EXPECT_EQ(third.pool().touch(third.ns(), views), Status::OK);
  EXPECT_EQ(first.pool().info()->hits_elsewhere, 60u);
  EXPECT_EQ(first.pool().info()->blocks, 32);
  std::set<std::string> listed;
  EXPECT_EQ(
      third.pool().list([&](const BlockInfo& block) { return listed.insert(block.key).second; }),
      Status::OK);
  EXPECT_EQ(listed.size(), 32u);
}

TEST(Hosts, APutOfAnotherHostsKeyStoresNothing) {
  SharedPool shared(2);
  Host first = shared.open(0), second = shared.open(1);
  ASSERT_EQ(first.put("k"), Status::OK);
  ASSERT_EQ(second.put("k"), Status::OK);
  const auto reserved = second.pool().reserve(second.ns(), "k", Host::kSize);
  ASSERT_TRUE(reserved);
  EXPECT_TRUE(reserved->present);
  EXPECT_EQ(second.pool().info()->puts, 1u);
  EXPECT_EQ(second.pool().info()->puts_present, 1u);
}

TEST(Hosts, ABlockReservedInPlaceIsSeenWhenItIsCommitted) {
  SharedPool shared(2);
  Host first = shared.open(0), second = shared.open(1);
  const auto value = value_of("k", Host::kSize);
  auto reserved = first.pool().reserve(first.ns(), "k", value.size());
  ASSERT_TRUE(reserved);
  std::memcpy(reserved->data, value.data(), value.size());
  EXPECT_FALSE(second.holds("k"));
  ASSERT_EQ(first.pool().commit(*reserved), Status::OK);
  EXPECT_EQ(second.get("k"), Status::OK);
}

TEST(Hosts, ARemovalIsDoneByTheOwner) {
  SharedPool shared(3);
  Host first = shared.open(0), second = shared.open(1), third = shared.open(2);
  for (uint64_t n = 0; n < 100; ++n) ASSERT_EQ(first.put(key("a", n)), Status::OK);
  // One area of mail holds 64 requests, each until it is answered.
  for (uint64_t n = 0; n < 100; ++n) {
    ASSERT_EQ(second.remove(key("a", n)), Status::OK) << n;
    EXPECT_FALSE(first.holds(key("a", n))) << n;
    EXPECT_FALSE(third.holds(key("a", n))) << n;
  }
  EXPECT_EQ(first.pool().info()->blocks, 0u);
  EXPECT_EQ(second.remove("a-0"), Status::NOT_FOUND);
  ASSERT_EQ(first.put("a-0"), Status::OK) << "a request that was done is not done again";
  sleep_ms(20 * kShortTimes.heartbeat_ms);
  EXPECT_EQ(third.get("a-0"), Status::OK);
}

TEST(Hosts, ManyAskForRemovalsAtOnce) {
  SharedPool shared(2);
  Host first = shared.open(0), second = shared.open(1);
  constexpr uint64_t kThreads = 16, kEach = 8;
  for (uint64_t n = 0; n < kThreads * kEach; ++n) ASSERT_EQ(first.put(key("a", n), 1), Status::OK);
  std::vector<std::thread> threads;
  for (uint64_t t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      for (uint64_t n = t * kEach; n < (t + 1) * kEach; ++n) {
        EXPECT_EQ(second.remove(key("a", n)), Status::OK) << n;
        EXPECT_FALSE(second.holds(key("a", n))) << n;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(first.pool().info()->blocks, 0u);
}

TEST(Hosts, ARemovalIsNotDoneIfTheOwnerDoesNotAnswer) {
  SharedPool shared(2);
  HostProcess first(shared, 0, {[](Host& host) { return host.put("k"); }});
  Host second = shared.open(1);
  ASSERT_EQ(first.next(), Status::OK);
  ASSERT_TRUE(eventually([&] { return second.holds("k"); }));
  first.stop();
  EXPECT_EQ(second.remove("k"), Status::BUSY);
  EXPECT_EQ(second.get("k"), Status::OK);
  first.kill_now();
  EXPECT_TRUE(eventually([&] { return second.remove("k") == Status::OK; }))
      << "the host that takes the block over can remove it";
  EXPECT_FALSE(second.holds("k"));
}

TEST(Hosts, ACompressedNamespaceIsCompressedForAll) {
  SharedPool shared(3);
  Host first = shared.open(0), second = shared.open(1);
  const auto ns = first.pool().open_namespace({"coded", "", {{}, CompressionProfile::FAST}});
  ASSERT_TRUE(ns) << ns.error().message();
  EXPECT_EQ(*second.pool().open_namespace({"coded", ""}), *ns);
  const std::vector<std::byte> value(Host::kSize, std::byte{7});
  const ConstSpan in[] = {{value.data(), value.size()}};
  ASSERT_EQ(first.pool().put(*ns, "from-first", in), Status::OK);
  ASSERT_EQ(second.pool().put(*ns, "from-second", in), Status::OK);
  ASSERT_TRUE(eventually([&] {
    return static_cast<bool>(first.pool().length(*ns, "from-second"));
  })) << "a host finds what one that joined has stored from its next heartbeat on";
  for (const char* name : {"from-first", "from-second"}) {
    for (Host* reader : {&first, &second}) {
      std::vector<std::byte> out(value.size());
      const Span to[] = {{out.data(), out.size()}};
      const auto got = reader->pool().get(*ns, name, to);
      ASSERT_TRUE(got) << name << ": " << got.error().message();
      EXPECT_EQ(out, value);
    }
  }
  const auto usage = shared.open(2).pool().usage();
  ASSERT_TRUE(usage);
  const auto coded = std::find_if(usage->begin(), usage->end(),
                                  [&](const NamespaceUsage& one) { return one.id == *ns; });
  ASSERT_NE(coded, usage->end());
  const auto size = static_cast<int64_t>(value.size());
  EXPECT_EQ(coded->blocks, 2);
  EXPECT_EQ(coded->value_bytes, 2 * size);
  EXPECT_LT(coded->block_bytes, size);
  EXPECT_EQ(coded->hits, 4u);
}

TEST(Hosts, MetadataOfABlockAreReadByAllAndAttributesSetByItsHost) {
  SharedPool shared(2);
  std::optional<Host> first = shared.open(0);
  Host second = shared.open(1);
  const auto ns = first->pool().open_namespace({"described", ""});
  ASSERT_TRUE(ns) << ns.error().message();
  EXPECT_EQ(*second.pool().open_namespace({"described", ""}), *ns);
  const std::vector<std::byte> value(Host::kSize, std::byte{7});
  const ConstSpan in[] = {{value.data(), value.size()}};
  ASSERT_EQ(first->pool().put(*ns, "k", in, "of the first host"), Status::OK);
  ASSERT_TRUE(eventually([&] { return static_cast<bool>(second.pool().length(*ns, "k")); }));
  const BlockAttributes set{.priority = 7, .hard_pin = true, .group = 70};
  EXPECT_EQ(second.pool().set_attributes(*ns, "k", set).status(), Status::NOT_SUPPORTED);
  ASSERT_TRUE(first->pool().set_attributes(*ns, "k", set));
  const auto described = [&](Host& host) { return host.pool().describe(*ns, "k"); };
  ASSERT_TRUE(eventually([&] {
    const auto block = described(second);
    return block && block->attributes == set;
  }));
  EXPECT_EQ(described(second)->user_metadata, "of the first host");
  // The successor counts and describes the blocks that it takes over.
  const auto blocks_counted = [&] {
    const auto all = second.pool().usage();
    for (const NamespaceUsage& one : *all) {
      if (one.id == *ns) return one.blocks;
    }
    return int64_t{-1};
  };
  EXPECT_EQ(blocks_counted(), 1);
  first.reset();
  ASSERT_TRUE(eventually([&] {
    return static_cast<bool>(second.pool().set_attributes(*ns, "k", {.forks = 3}));
  })) << "once its extent is open";
  EXPECT_EQ(described(second)->attributes, BlockAttributes{.forks = 3});
  EXPECT_EQ(described(second)->user_metadata, "of the first host");
  EXPECT_EQ(blocks_counted(), 1);
}

// ---- looking ----

TEST(Hosts, AnObserverLeavesNoTrace) {
  SharedPool shared(3);
  {
    Host first = shared.open(0), second = shared.open(1);
    for (uint64_t n = 0; n < 20; ++n) ASSERT_EQ(first.put(key("a", n)), Status::OK);
    ASSERT_EQ(second.put("b"), Status::OK);
  }
  const std::byte* base = shared.at(0);
  const std::vector<std::byte> before(base, base + shared.superblock().geometry.total_bytes);
  {
    auto opened = Host::observe(shared.locator());
    ASSERT_TRUE(opened) << opened.error().message();
    Host& observer = *opened;
    EXPECT_TRUE(all_there(observer, "a", 20));
    EXPECT_EQ(observer.get("b"), Status::OK);
    EXPECT_EQ(observer.get("c"), Status::NOT_FOUND);
    EXPECT_EQ(observer.pool().info()->blocks, 21);
    EXPECT_EQ(observer.info_of(0).state, "live");
    EXPECT_EQ(observer.info_of(2).state, "free");
    EXPECT_TRUE(observer.pool().check(/*payload=*/true)->findings.empty());
    const std::string_view keys[] = {"a-0", "a-1", "a-2", "c", "b"};
    uint8_t present[5];
    EXPECT_EQ(*observer.pool().exists(observer.ns(), keys, present), 4u);
    EXPECT_EQ(*observer.pool().longest_prefix(observer.ns(), keys), 3u);
    EXPECT_EQ(observer.put("c"), Status::READ_ONLY);
    EXPECT_EQ(observer.remove("b"), Status::READ_ONLY);
    EXPECT_EQ(observer.acquire("b").status(), Status::READ_ONLY);
    EXPECT_EQ(observer.pool().reserve(observer.ns(), "c", 1).status(), Status::READ_ONLY);
    EXPECT_EQ(observer.pool().touch(observer.ns(), keys), Status::READ_ONLY);
    EXPECT_EQ(observer.pool().leave().status(), Status::READ_ONLY);
    EXPECT_EQ(observer.pool().fence(0).status(), Status::READ_ONLY);
    EXPECT_EQ(observer.pool().open_namespace({"new", "bytes"}).status(), Status::NOT_FOUND);
  }
  EXPECT_EQ(std::memcmp(before.data(), base, before.size()), 0);
}

TEST(Hosts, AnObserverSeesChanges) {
  SharedPool shared(2);
  HostProcess first(
      shared, 0,
      {[](Host& host) { return host.put("a"); }, [](Host& host) { return host.remove("a"); }});
  Host second = shared.open(1);
  auto observer = Host::observe(shared.locator());
  ASSERT_TRUE(observer) << observer.error().message();
  ASSERT_EQ(first.next(), Status::OK);
  EXPECT_EQ(observer->get("a"), Status::OK);
  ASSERT_EQ(first.next(), Status::OK);
  EXPECT_EQ(observer->get("a"), Status::NOT_FOUND);
  first.kill_now();
  EXPECT_TRUE(eventually([&] { return ended(*observer, 0); }));
}

// ---- leases ----

TEST(Hosts, ALeaseHoldsOnAnotherHostsBlock) {
  SharedPool shared(2);
  Host first = shared.open(0), second = shared.open(1);
  ASSERT_EQ(first.put("k"), Status::OK);
  auto lease = second.acquire("k");
  ASSERT_TRUE(lease) << lease.error().message();
  const auto value = value_of("k", Host::kSize);
  ASSERT_EQ(lease->length_bytes, value.size());
  EXPECT_EQ(std::memcmp(lease->data, value.data(), value.size()), 0);
  EXPECT_EQ(first.info_of(1).leases_active, 1u);
  EXPECT_EQ(second.pool().release(*lease), Status::OK);
  EXPECT_EQ(first.info_of(1).leases_active, 0u);
  EXPECT_EQ(second.pool().release(*lease), Status::CLOSED);
}

TEST(Hosts, ALeaseElsewhereHoldsOffReuse) {
  SharedPool shared(2);
  Host first = shared.open(0), second = shared.open(1);
  ASSERT_EQ(first.put("k"), Status::OK);
  const auto value = value_of("k", Host::kSize);
  auto lease = second.acquire("k");
  ASSERT_TRUE(lease) << lease.error().message();
  ASSERT_EQ(first.remove("k"), Status::OK);
  EXPECT_FALSE(second.holds("k"));
  const uint64_t stored = fill(first, "fill");
  EXPECT_GE(stored, room_of(shared, shared.extents() / 2) - 1);
  EXPECT_EQ(std::memcmp(lease->data, value.data(), value.size()), 0);
  const auto taken = [&] {
    bool found = false;
    EXPECT_EQ(first.pool().list([&](const BlockInfo& block) {
      found |= block.offset == lease->offset;
      return true;
    }),
              Status::OK);
    return found;
  };
  EXPECT_FALSE(taken());
  EXPECT_EQ(second.pool().release(*lease),
            Status::LAPSED);  // removed while held: release reports it
  EXPECT_TRUE(eventually([&] { return first.put("more") == Status::OK; }));
  EXPECT_TRUE(taken()) << "it was the only place left";
}

TEST(Hosts, EvictionSparesBlocksThatAnotherHostLeases) {
  SharedPool shared(2, {});
  Host first = shared.open(0), second = shared.open(1);
  ASSERT_EQ(first.put("k"), Status::OK);
  auto lease = second.acquire("k");
  ASSERT_TRUE(lease) << lease.error().message();
  const uint64_t puts = 3 * room_of(shared, shared.extents());
  for (uint64_t n = 0; n < puts; ++n) ASSERT_EQ(first.put(key("more", n)), Status::OK) << n;
  EXPECT_GT(first.pool().info()->evictions, puts / 3);
  EXPECT_EQ(first.get("k"), Status::OK);
  EXPECT_EQ(second.pool().release(*lease), Status::OK);
}

TEST(Hosts, AnExpiredLeaseLapses) {
  SharedPool shared(2);
  Host first = shared.open(0), second = shared.open(1);
  ASSERT_EQ(first.put("k"), Status::OK);
  auto lease = second.pool().acquire(second.ns(), "k", 10);
  ASSERT_TRUE(lease) << lease.error().message();
  EXPECT_TRUE(eventually([&] { return first.info_of(1).leases_active == 0; }));
  EXPECT_EQ(second.pool().release(*lease), Status::LAPSED);
}

// ---- space ----

TEST(Hosts, SpaceComesFromSlotsThatWereNeverUsed) {
  SharedPool shared(4);
  Host only = shared.open(2);
  EXPECT_EQ(fill(only, "a"), room_of(shared, shared.extents()));
  EXPECT_TRUE(all_there(only, "a", room_of(shared, shared.extents())));
  EXPECT_EQ(only.info_of(2).extents_custody, 0u) << "no host can be writing there";
  Host late = shared.open(0);
  EXPECT_EQ(late.get("a-0"), Status::OK);
  for (uint64_t n = 0; n < room_of(shared, 4); ++n)
    ASSERT_EQ(only.remove(key("a", n)), Status::OK) << n;
  EXPECT_TRUE(eventually([&] { return late.put("late") == Status::OK; }));
}

TEST(Hosts, AHostThatJoinsAFullPoolThatEvictsGetsItsShare) {
  SharedPool shared(2, {});
  Host first = shared.open(0);
  // More than one host holds at first: it takes the other one's extents.
  for (uint64_t n = 0; n < 3 * room_of(shared, shared.extents()); ++n) {
    ASSERT_EQ(first.put(key("a", n)), Status::OK) << n;
    if (n % 10 == 0) sleep_ms(1);
  }
  EXPECT_EQ(first.info_of(0).extents_owned, shared.extents());
  Host late = shared.open(1);
  uint64_t stored = 0;
  EXPECT_TRUE(eventually([&] {
    stored += late.put(key("late", stored)) == Status::OK;
    return late.info_of(1).extents_owned >= shared.extents() / 3;
  }));
  EXPECT_GE(stored, room_of(shared, 1));
  EXPECT_EQ(first.put("more"), Status::OK);
}

/// Alone it takes the extents of all, and its index has entries for twice its share of blocks.
TEST(Hosts, AHostEvictsBeforeItsIndexIsFull) {
  SharedPool shared(16, {.size_bytes = 160 << 20, .min_block_bytes = 4096});
  Host only = shared.open(0);
  const uint64_t entries = shared.superblock().geometry.index_bucket_count * BH_INDEX_ENTRIES;
  uint64_t stored = 0;
  for (uint64_t n = 0; n < 4 * entries; ++n) {
    const Status status = only.put(key("a", n), 4000);
    ASSERT_NE(status, Status::INDEX_FULL) << n << " of " << entries;
    stored += status == Status::OK;
    if (status != Status::OK) sleep_ms(1);  // what was evicted has not settled
  }
  EXPECT_GT(stored, 2 * entries);
  // It evicts to about half of the entries, and on until that has settled: on a busy machine, where
  // heartbeats are late, to less than a third.
  EXPECT_GT(only.pool().info()->used_bytes, entries / 6 * 4096);
}

TEST(Hosts, SpaceComesFromAHostThatHasSome) {
  SharedPool shared(2);
  Host poor = shared.open(0), rich = shared.open(1);
  ASSERT_EQ(rich.put("rich"), Status::OK);
  const uint64_t stored = fill(poor, "a");
  EXPECT_GE(stored, room_of(shared, shared.extents() - 2));
  EXPECT_TRUE(all_there(rich, "a", stored));
  EXPECT_EQ(poor.get("rich"), Status::OK);
  EXPECT_EQ(poor.info_of(0).extents_owned + poor.info_of(1).extents_owned, shared.extents());
}

/// Puts while there is space, or gets some before long.
uint64_t fill_patiently(Host& host, const char* name, uint64_t at_most) {
  uint64_t stored = 0;
  while (stored < at_most && eventually([&] { return host.put(key(name, stored)) == Status::OK; }))
    ++stored;
  return stored;
}

/// A host that took over all extents has space in each of them, but none of them is free.
TEST(Hosts, SpaceComesFromPartlyUsedExtents) {
  SharedPool shared(2);
  HostProcess first(shared, 0, {[](Host& host) { return host.put("k"); }});
  Host rich = shared.open(1);
  ASSERT_EQ(first.next(), Status::OK);
  first.kill_now();
  ASSERT_TRUE(eventually([&] { return rich.info_of(0).extents_owned == 0; }));
  ASSERT_TRUE(rich.pool().fence(0));
  const uint64_t all = room_of(shared, shared.extents()) - 1;
  ASSERT_EQ(fill_patiently(rich, "a", all), all);
  uint64_t kept = 0;
  for (uint64_t n = 0; n < all; ++n) {
    if (n % 4 == 0)
      ++kept;
    else
      ASSERT_EQ(rich.remove(key("a", n)), Status::OK) << n;
  }
  Host poor = shared.open(0);
  EXPECT_EQ(poor.info_of(0).extents_owned, 0u);
  EXPECT_EQ(poor.put("first"), Status::NO_SPACE) << "a put does not wait for others";
  EXPECT_TRUE(eventually([&] { return poor.put("first") == Status::OK; }));
  // Up to the last extents, as the space is halved each time.
  const uint64_t most = all - kept - room_of(shared, 4);
  EXPECT_EQ(fill_patiently(poor, "b", most), most);
  EXPECT_TRUE(all_there(poor, "b", most));
  for (uint64_t n = 0; n < all; n += 4) {
    EXPECT_EQ(poor.get(key("a", n)), Status::OK) << n;
    EXPECT_EQ(rich.get(key("a", n)), Status::OK) << n;
  }
  EXPECT_GT(rich.pool().info()->moves, 0u);
  EXPECT_EQ(poor.info_of(0).extents_owned + poor.info_of(1).extents_owned, shared.extents());
}

/// Also in a pool that evicts: nothing there coalesces slabs whose blocks were all removed.
TEST(Hosts, SpaceComesFromSlabsThatBecameEmpty) {
  SharedPool shared(2, {.size_bytes = 96 << 20});
  Host rich = shared.open(0), poor = shared.open(1);
  ASSERT_TRUE(eventually([&] {
    return rich.info_of(0).extents_owned + rich.info_of(1).extents_owned == shared.extents();
  }));
  // A slab for each size, as long as an extent is free: the share of the host, and no more.
  uint64_t stored = 0;
  while (rich.info_of(0).extents_free > 0 && stored < shared.extents()) {
    ASSERT_EQ(rich.put(key("a", stored), Host::kSize + 16384 * stored), Status::OK) << stored;
    ++stored;
  }
  ASSERT_EQ(rich.info_of(0).extents_free, 0u);
  for (uint64_t n = 0; n < stored; ++n) ASSERT_EQ(rich.remove(key("a", n)), Status::OK) << n;
  // Blocks that cannot be evicted, so that each needs space.
  const auto value = bytes(Host::kSize, 1);
  const ConstSpan in[] = {{value.data(), value.size()}};
  const uint64_t wanted = room_of(shared, shared.extents() * 3 / 4);
  for (uint64_t n = 0; n < wanted; ++n) {
    ASSERT_TRUE(eventually([&] {
      return poor.pool().put(poor.ns(), key("b", n), in, {}, {.hard_pin = true}) == Status::OK;
    })) << n
        << " of " << wanted;
  }
}

// ---- leaving ----

TEST(Hosts, AHostThatLeavesIsSucceededAtOnce) {
  SharedPool shared(2);
  auto first = std::make_unique<Host>(shared.open(0));
  Host second = shared.open(1);
  for (uint64_t n = 0; n < 20; ++n) ASSERT_EQ(first->put(key("a", n)), Status::OK);
  ASSERT_TRUE(first->pool().leave());
  EXPECT_EQ(first->put("late"), Status::HOST_FENCED);
  EXPECT_EQ(first->acquire("a-0").status(), Status::HOST_FENCED);
  first.reset();
  EXPECT_TRUE(eventually([&] { return !all_there(second, "a", 20) || ended(second, 0); }));
  EXPECT_TRUE(all_there(second, "a", 20));
  // After the adoption each exists once, although the index of the host that left still names them.
  // That is no damage, whatever the successor has done to the blocks since.
  EXPECT_TRUE(eventually([&] { return second.remove("a-19") == Status::OK; }));
  EXPECT_TRUE(eventually([&] { return second.pool().info()->blocks == 19; }));
  uint64_t listed = 0;
  EXPECT_EQ(second.pool().list([&](const BlockInfo&) { return ++listed > 0; }), Status::OK);
  EXPECT_EQ(listed, 19u);
  auto observer = Host::observe(shared.locator());
  ASSERT_TRUE(observer);
  for (Pool* pool : {&second.pool(), &observer->pool()}) {
    const auto report = pool->check(/*payload=*/true);
    ASSERT_TRUE(report);
    EXPECT_TRUE(report->findings.empty()) << report->findings[0].what;
    EXPECT_EQ(report->blocks_checked, 19u);
  }
  ASSERT_EQ(second.put("a-19"), Status::OK);
  EXPECT_EQ(fill(second, "b"), room_of(shared, shared.extents()) - 20);
  EXPECT_EQ(second.info_of(1).extents_custody, 0u);
  for (const char* name : {"a-0", "b-0"}) {
    auto lease = second.acquire(name);
    ASSERT_TRUE(lease) << name << ": " << lease.error().message();
    EXPECT_EQ(second.pool().release(*lease), Status::OK);
  }
  Host again = shared.open(0);
  EXPECT_TRUE(all_there(again, "a", 20));
  EXPECT_EQ(again.info_of(0).incarnation, 2u);
}

/// The state LEFT says that all its stores are in the memory: another machine may use its slot, and
/// a later write-back from a cache would damage that machine's data.
TEST(Hosts, AHostThatLeftStoresNothingMore) {
  SharedPool shared(2);
  auto left = std::make_unique<Host>(shared.open(0));
  for (uint64_t n = 0; n < 20; ++n) ASSERT_EQ(left->put(key("a", n)), Status::OK);
  ASSERT_TRUE(left->acquire("a-0"));
  ASSERT_TRUE(left->pool().reserve(left->ns(), "reserved", 100));
  ASSERT_TRUE(left->pool().leave());
  const auto image = [&] {
    return std::vector<std::byte>(shared.at(0),
                                  shared.at(shared.superblock().geometry.total_bytes));
  };
  const auto before = image();
  EXPECT_EQ(left->get("a-1"), Status::HOST_FENCED);
  EXPECT_EQ(left->get("none"), Status::HOST_FENCED);
  EXPECT_EQ(left->put("b"), Status::HOST_FENCED);
  EXPECT_EQ(left->remove("a-1"), Status::HOST_FENCED);
  EXPECT_EQ(left->acquire("a-1").status(), Status::HOST_FENCED);
  EXPECT_EQ(left->pool().info().status(), Status::HOST_FENCED);
  EXPECT_EQ(left->pool().leave().status(), Status::HOST_FENCED);
  left.reset();
  EXPECT_TRUE(image() == before);
}

/// A refused leave changes nothing; in particular, the heartbeat continues.
TEST(Hosts, AHostThatMayNotLeaveLives) {
  SharedPool shared(2);
  HostProcess other(shared, 0, {[](Host& host) { return host.put("k"); }});
  Host second = shared.open(1);
  Host first = shared.open(0);
  ASSERT_EQ(first.pool().leave().status(), Status::IN_USE);
  EXPECT_EQ(other.next(), Status::OK);
  other.kill_now();
  std::this_thread::sleep_for(std::chrono::milliseconds(3 * kShortTimes.dead_ms));
  EXPECT_FALSE(ended(second, 0));
  EXPECT_EQ(first.put("b"), Status::OK);
}

TEST(Hosts, OnlyTheHostItselfLeaves) {
  SharedPool shared(2);
  HostProcess other(shared, 0, {[](Host& host) { return host.put("k"); }});
  {
    Host first = shared.open(0);
    const auto left = first.pool().leave();
    ASSERT_FALSE(left);
    EXPECT_EQ(left.status(), Status::IN_USE) << left.error().message();
  }
  EXPECT_EQ(other.next(), Status::OK);
}

TEST(Hosts, ClosingIsNotLeaving) {
  SharedPool shared(2);
  { ASSERT_EQ(shared.open(0).put("k"), Status::OK); }
  Host again = shared.open(0);
  EXPECT_EQ(again.info_of(0).incarnation, 1u);
  EXPECT_EQ(again.get("k"), Status::OK);
}

// ---- dying ----

/// A host that left stores nothing more: its blocks need no checksum to be taken over.
TEST(Hosts, BlocksWithoutAChecksumStayWhenTheirHostLeaves) {
  SharedPool shared(2);
  Host second = shared.open(1);
  {
    Host first = shared.open(0);
    auto room = first.pool().reserve(first.ns(), "unverified", 100);
    ASSERT_TRUE(room);
    std::memset(room->data, 7, 100);
    ASSERT_EQ(first.pool().commit(*room, {PayloadSum::By::NONE}), Status::OK);
    ASSERT_EQ(first.put("verified"), Status::OK);
    ASSERT_TRUE(first.pool().leave());
  }
  EXPECT_TRUE(eventually([&] { return second.info_of(0).extents_owned == 0; }));
  EXPECT_TRUE(eventually([&] { return second.info_of(1).extents_custody == 0; }));
  EXPECT_EQ(second.get("verified"), Status::OK);
  std::vector<std::byte> value(100);
  const Span to[] = {{value.data(), value.size()}};
  ASSERT_EQ(*second.pool().get(second.ns(), "unverified", to), 100u);
  EXPECT_EQ(value, std::vector<std::byte>(100, std::byte{7}));
  EXPECT_TRUE(second.acquire("unverified"));
}

constexpr SharingTimes with_reclaim(uint32_t reclaim_ms) {
  SharingTimes times = kShortTimes;
  times.reclaim_ms = reclaim_ms;
  return times;
}
constexpr SharingTimes kSlowReclaim = with_reclaim(1500), kNoReclaim = with_reclaim(0);

/// Where a dead host may still write, nothing is stored while there is other space.
TEST(Hosts, SpaceInCustodyIsReusedLast) {
  SharedPool shared(2, {.evict_high_permille = 0}, with_reclaim(100));
  {
    HostProcess first(shared, 0, {[](Host& host) { return host.put("of the first"); }});
    ASSERT_EQ(first.next(), Status::OK);
    first.kill_now();
  }
  Host second = shared.open(1);
  const uint64_t taken = core::first_extent_of(shared.layout(), 1);
  const auto custody_of = [&](uint64_t extent) {
    return core::OwnWord::unpack(
               shared.read<uint64_t>(shared.layout().word(1, BH_PART_OWN, extent)))
        .custody;
  };
  ASSERT_TRUE(eventually([&] { return custody_of(0) == BH_CUSTODY_COPY_ONLY; }));
  for (uint64_t n = 0; n < 40; ++n) {
    ASSERT_EQ(second.put(key("b", n)), Status::OK);
    const auto block = second.pool().describe(second.ns(), key("b", n));
    ASSERT_TRUE(block);
    EXPECT_GE(shared.layout().extent_of_slot(shared.layout().slot_of(block->offset)), taken) << n;
  }
}

/// A host that stood still, and cuts extents that another one has by now before it notices. What it
/// wrote must be gone when it is known to have stopped: a rebuild would cut them by that.
TEST(Hosts, AZombiesDescriptionOfAnExtentDoesNotStay) {
  for (const uint32_t custody : {BH_CUSTODY_READ_ONLY, BH_CUSTODY_COPY_ONLY}) {
    SharedPool shared(2, {.evict_high_permille = 0},
                      with_reclaim(custody == BH_CUSTODY_READ_ONLY ? 0 : 100));
    {
      HostProcess first(shared, 0, {[](Host& host) { return host.put("of the first"); }});
      ASSERT_EQ(first.next(), Status::OK);
      first.kill_now();
    }
    Host second = shared.open(1);
    const auto all_have = [&](uint32_t wanted) {
      for (uint64_t e = 0; e < core::first_extent_of(shared.layout(), 1); ++e) {
        const auto word =
            core::OwnWord::unpack(shared.read<uint64_t>(shared.layout().word(1, BH_PART_OWN, e)));
        if (word.state != BH_OWN_OWN || word.slot == BH_OWN_UNCONFIRMED || word.custody != wanted)
          return false;
      }
      return true;
    };
    ASSERT_TRUE(eventually([&] { return all_have(custody); }));
    // Some of what it stores gets into these extents, if it may.
    for (uint64_t n = 0; second.put(key("b", n)) == Status::OK; ++n) {
    }
    for (uint64_t e = 0; e < core::first_extent_of(shared.layout(), 1); ++e)
      shared.describe_as_one_block(e);
    ASSERT_TRUE(second.pool().fence(0));
    ASSERT_TRUE(eventually([&] { return all_have(BH_CUSTODY_FULL); }));
    EXPECT_EQ(second.get("of the first"), Status::OK);
    // Extents come into use one after another once the word stands.
    EXPECT_TRUE(eventually([&] { return second.pool().check(/*payload=*/true)->findings.empty(); }))
        << second.pool().check(/*payload=*/true)->findings.at(0).what;
    for (uint64_t e = 0; e < core::first_extent_of(shared.layout(), 1); ++e) {
      const auto d = shared.read<bh_extent_descriptor>(shared.layout().descriptor(e));
      EXPECT_NE(d.block_bytes, shared.superblock().geometry.extent_bytes) << "extent " << e;
    }
  }
}

TEST(Hosts, TheBlocksOfADeadHostStayAndItsSpaceIsReused) {
  SharedPool shared(2, {.evict_high_permille = 0}, kSlowReclaim);
  HostProcess first(shared, 0, {[](Host& host) {
                      for (uint64_t n = 0; n < 20; ++n) {
                        if (host.put(key("a", n)) != Status::OK) return Status::NO_SPACE;
                      }
                      return Status::OK;
                    }});
  Host second = shared.open(1);
  ASSERT_EQ(first.next(), Status::OK);
  first.kill_now();
  const auto killed_at = std::chrono::steady_clock::now();
  EXPECT_TRUE(eventually([&] { return !all_there(second, "a", 20) || ended(second, 0); }));
  EXPECT_TRUE(eventually([&] { return second.info_of(0).extents_owned == 0; }));
  // In custody: served by copy, not leased, not reused.
  EXPECT_TRUE(all_there(second, "a", 20));
  EXPECT_EQ(second.acquire("a-3").status(), Status::COPY_ONLY);
  EXPECT_EQ(second.info_of(1).extents_custody, shared.extents() / 2);
  // Reused after kSlowReclaim.reclaim_ms, for copies.
  const uint64_t own_room = room_of(shared, shared.extents() - shared.extents() / 2);
  const uint64_t room = room_of(shared, shared.extents()) - 20;
  for (uint64_t n = 0; n < own_room; ++n) ASSERT_EQ(second.put(key("b", n)), Status::OK);
  ASSERT_TRUE(eventually([&] { return second.put(key("b", own_room)) == Status::OK; }));
  EXPECT_GE(std::chrono::steady_clock::now() - killed_at,
            std::chrono::milliseconds(kSlowReclaim.reclaim_ms));
  for (uint64_t n = own_room + 1; n < room; ++n)
    ASSERT_TRUE(eventually([&] { return second.put(key("b", n)) == Status::OK; })) << n;
  EXPECT_EQ(second.put("one-more"), Status::NO_SPACE);
  EXPECT_TRUE(all_there(second, "a", 20));
  EXPECT_TRUE(all_there(second, "b", room));
  const auto leased = [&](const char* name, uint64_t count) {
    uint64_t got = 0;
    for (uint64_t n = 0; n < count; ++n) {
      auto lease = second.acquire(key(name, n));
      if (lease) {
        EXPECT_EQ(second.pool().release(*lease), Status::OK);
        ++got;
      } else {
        EXPECT_EQ(lease.status(), Status::COPY_ONLY);
      }
    }
    return got;
  };
  EXPECT_EQ(leased("a", 20), 0u);
  EXPECT_EQ(leased("b", room), own_room);
  // Without restriction after an operator confirms it.
  ASSERT_TRUE(second.pool().fence(0));
  EXPECT_TRUE(eventually([&] { return second.info_of(1).extents_custody == 0; }));
  EXPECT_EQ(leased("a", 20), 20u);
  EXPECT_EQ(leased("b", room), room);
}

/// Where the dead host may still write, nothing is reserved: the caller could not verify it.
TEST(Hosts, AReservationTakesSafeSpaceOnly) {
  for (const bool evicts : {true, false}) {
    SCOPED_TRACE(evicts ? "evicts" : "does not evict");
    SharedPool shared(2, {.evict_high_permille = evicts ? 980u : 0u});
    HostProcess first(shared, 0, {[](Host& host) { return host.put("a"); }});
    Host second = shared.open(1);
    ASSERT_EQ(first.next(), Status::OK);
    first.kill_now();
    EXPECT_TRUE(eventually([&] { return second.info_of(0).extents_owned == 0; }));
    const uint64_t own_room = room_of(shared, shared.extents() - shared.extents() / 2);
    for (uint64_t n = 0; n < own_room; ++n) ASSERT_EQ(second.put(key("b", n)), Status::OK);
    ASSERT_TRUE(eventually([&] { return second.put("in custody") == Status::OK; }));
    auto room = second.pool().reserve(second.ns(), "r", Host::kSize);
    if (evicts) {
      ASSERT_TRUE(room) << room.error().message();
      EXPECT_EQ(second.pool().abort(*room), Status::OK);
      continue;
    }
    EXPECT_EQ(room.status(), Status::BUSY);
    ASSERT_TRUE(second.pool().fence(0));
    EXPECT_TRUE(eventually([&] {
      room = second.pool().reserve(second.ns(), "r", Host::kSize);
      return static_cast<bool>(room);
    }));
  }
}

TEST(Hosts, WithoutATimeLimitSpaceWaitsForTheFence) {
  SharedPool shared(2, {.evict_high_permille = 0}, kNoReclaim);
  HostProcess first(shared, 0, {[](Host& host) { return host.put("a"); }});
  Host second = shared.open(1);
  ASSERT_EQ(first.next(), Status::OK);
  first.kill_now();
  EXPECT_TRUE(eventually([&] { return second.info_of(0).extents_owned == 0; }));
  const uint64_t own = fill(second, "b");
  EXPECT_EQ(own, room_of(shared, shared.extents() - shared.extents() / 2));
  ASSERT_TRUE(second.pool().fence(0));
  EXPECT_TRUE(eventually([&] { return second.put("more") == Status::OK; }));
  EXPECT_EQ(second.get("a"), Status::OK);
}

TEST(Hosts, ADeadHostThatComesBackConfirmsItself) {
  SharedPool shared(2, {.evict_high_permille = 0}, kNoReclaim);
  HostProcess first(shared, 0, {[](Host& host) { return host.put("a"); }});
  Host second = shared.open(1);
  ASSERT_EQ(first.next(), Status::OK);
  first.kill_now();
  EXPECT_TRUE(eventually([&] { return second.info_of(1).extents_custody != 0; }));
  Host again = shared.open(0);
  EXPECT_EQ(again.get("a"), Status::OK);
  EXPECT_TRUE(eventually([&] { return second.info_of(1).extents_custody == 0; }));
  auto lease = again.acquire("a");
  ASSERT_TRUE(lease) << lease.error().message();
  EXPECT_EQ(again.pool().release(*lease), Status::OK);
}

TEST(Hosts, ADeathIsOverBeforeTheOthersNotice) {
  SharedPool shared(2);
  HostProcess first(shared, 0, {[](Host& host) { return host.put("a"); }});
  Host second = shared.open(1);
  ASSERT_EQ(first.next(), Status::OK);
  first.kill_now();
  Host again = shared.open(0);
  EXPECT_EQ(again.info_of(0).incarnation, 1u);
  EXPECT_EQ(again.get("a"), Status::OK);
  sleep_ms(2 * kShortTimes.dead_ms);
  EXPECT_EQ(second.info_of(0).state, "live");
}

TEST(Hosts, AHostThatMayComeBackIsNotFenced) {
  SharedPool shared(2);
  HostProcess first(shared, 0, {[](Host& host) { return host.put("a"); }});
  Host second = shared.open(1);
  ASSERT_EQ(first.next(), Status::OK);
  EXPECT_EQ(second.pool().fence(0).status(), Status::BUSY) << "it lives";
  first.kill_now();
  const auto refused = second.pool().fence(0);
  ASSERT_FALSE(refused) << "its life would continue";
  EXPECT_EQ(refused.status(), Status::BUSY);
  EXPECT_NE(refused.error().message().find("try again"), std::string::npos)
      << refused.error().message();
  Host again = shared.open(0);
  EXPECT_EQ(again.info_of(0).incarnation, 1u);
  EXPECT_EQ(again.put("b"), Status::OK);
}

/// The lock of a process says that it lives, whatever the operator says.
TEST(Hosts, AHostIsNotFencedWhileAProcessOfItStandsStillHere) {
  SharedPool shared(2);
  HostProcess first(shared, 0, {[](Host& host) { return host.put("a"); }});
  Host second = shared.open(1);
  ASSERT_EQ(first.next(), Status::OK);
  first.stop();
  ASSERT_TRUE(eventually([&] { return second.info_of(0).state == "ended"; }));
  const auto refused = second.pool().fence(0);
  EXPECT_EQ(refused.status(), Status::IN_USE);
  first.kill_now();
  EXPECT_TRUE(second.pool().fence(0));
}

/// On every host, and for keys of any length.
TEST(Hosts, UsedBytesAreThoseOfTheNamespaces) {
  SharedPool shared(2);
  Host first = shared.open(0), second = shared.open(1);
  for (uint32_t i = 0; i < 40; ++i) {
    Host& host = i % 2 == 0 ? first : second;
    const std::string key(1 + i * 511 / 39, 'k');
    const auto value = value_of(key, 1 + i * 1000);
    const ConstSpan in{value.data(), value.size()};
    ASSERT_EQ(host.pool().put(host.ns(), key, {&in, 1}), Status::OK);
  }
  auto observer = Pool::open(shared.locator(), {.observe = true});
  ASSERT_TRUE(observer);
  for (Pool* pool : {&first.pool(), &second.pool(), &*observer}) {
    int64_t bytes = 0;
    uint64_t blocks = 0;
    const auto usage = pool->usage();
    ASSERT_TRUE(usage);
    for (const NamespaceUsage& of : *usage) {
      bytes += static_cast<int64_t>(of.block_bytes);
      blocks += of.blocks;
    }
    EXPECT_EQ(pool->info()->used_bytes, bytes);
    EXPECT_EQ(pool->info()->blocks, blocks);
  }
}

TEST(Hosts, AProcessThatStandsStillDoesNotStopItsHost) {
  SharedPool shared(2);
  HostProcess first(shared, 0, {[](Host& host) { return host.put("a"); }});
  Host sibling = shared.open(0), second = shared.open(1);
  first.stop();
  sleep_ms(3 * kShortTimes.dead_ms);
  EXPECT_EQ(second.info_of(0).state, "live");
  EXPECT_EQ(sibling.put("b"), Status::OK);
  first.go_on();
  EXPECT_EQ(first.next(), Status::OK);
  EXPECT_EQ(second.get("a"), Status::OK);
}

/// It does not continue with half of its memory: for the others it is dead, and for itself as well.
TEST(Hosts, AHostWhoseMediumFailsIsSucceeded) {
  SharedPool shared(2);
  const uint64_t heartbeat_at = shared.layout().part(0, BH_PART_HEARTBEAT);
  HostProcess first(
      shared, 0,
      {[](Host& host) {
         for (uint64_t n = 0; n < 20; ++n) {
           if (host.put(key("a", n)) != Status::OK) return Status::NO_SPACE;
         }
         return Status::OK;
       },
       [&](Host& host) {
         break_page(host.pool(), heartbeat_at);
         (void)eventually([&] { return host.pool().media_failure().has_value(); });
         return host.put("late");
       },
       [](Host& host) { return host.get("a-0"); }, [](Host& host) { return host.remove("a-0"); }});
  Host second = shared.open(1);
  ASSERT_EQ(first.next(), Status::OK);
  EXPECT_EQ(first.next(), Status::MEDIA_ERROR) << "put";
  EXPECT_TRUE(eventually([&] { return ended(second, 0); }));
  EXPECT_EQ(first.next(), Status::MEDIA_ERROR) << "get";
  EXPECT_EQ(first.next(), Status::MEDIA_ERROR) << "remove";
  EXPECT_TRUE(eventually([&] { return second.info_of(0).extents_owned == 0; }));
  EXPECT_TRUE(all_there(second, "a", 20));
  EXPECT_FALSE(second.holds("late"));
  first.kill_now();
  Host again = shared.open(0);
  EXPECT_TRUE(all_there(again, "a", 20));
}

// ---- being late ----

TEST(Hosts, ALateHostGetsAnErrorAndComesBack) {
  SharedPool shared(2);
  Lease lease;
  Reservation reservation;
  const auto fenced = [](Host& host) {
    return eventually([&] { return host.put("x") == Status::HOST_FENCED; }) ? Status::HOST_FENCED
                                                                            : Status::OK;
  };
  HostProcess first(
      shared, 0,
      {[](Host& host) { return host.put("a"); },
       [&](Host& host) {
         auto reserved = host.pool().reserve(host.ns(), "r", Host::kSize);
         if (reserved) reservation = *reserved;
         auto leased = acquire_when_seen(host, "b");
         if (leased) lease = *leased;
         return !reserved ? reserved.status() : leased.status();
       },
       fenced, [&](Host& host) { return host.pool().commit(reservation); },
       [&](Host& host) { return host.pool().release(lease); },
       [](Host& host) { return host.pool().reserve(host.ns(), "s", 10).status(); },
       [](Host& host) { return host.acquire("b").status(); },
       [](Host& host) { return host.remove("a"); }, [](Host& host) { return host.get("a"); },
       [](Host& host) { return host.get("b"); }});
  Host second = shared.open(1);
  ASSERT_EQ(second.put("b"), Status::OK);
  ASSERT_EQ(first.next(), Status::OK);
  ASSERT_EQ(first.next(), Status::OK);
  first.stop();
  EXPECT_TRUE(eventually([&] { return ended(second, 0); }));
  first.go_on();
  EXPECT_EQ(first.next(), Status::HOST_FENCED) << "put";
  EXPECT_EQ(first.next(), Status::HOST_FENCED) << "commit";
  EXPECT_EQ(first.next(), Status::LAPSED) << "release";
  EXPECT_EQ(first.next(), Status::HOST_FENCED) << "reserve";
  EXPECT_EQ(first.next(), Status::HOST_FENCED) << "acquire";
  EXPECT_EQ(first.next(), Status::HOST_FENCED) << "remove";
  EXPECT_EQ(first.next(), Status::OK) << "get of its own block";
  EXPECT_EQ(first.next(), Status::OK) << "get of another's block";
  EXPECT_FALSE(second.holds("r"));
  const auto refused = Host::open(shared.locator(), 0);
  ASSERT_FALSE(refused) << "a process of the life that is over is still there";
  EXPECT_EQ(refused.status(), Status::HOST_FENCED);
  EXPECT_NE(refused.error().message().find("end them"), std::string::npos)
      << refused.error().message();
  first.kill_now();
  Host again = shared.open(0);
  EXPECT_EQ(again.info_of(0).incarnation, 2u);
  EXPECT_EQ(again.get("a"), Status::OK);
  EXPECT_TRUE(eventually([&] { return again.put("c") == Status::OK; }));
  EXPECT_TRUE(eventually([&] { return second.get("c") == Status::OK; }));
}

Result<Reservation> reserve_one(Host& host, size_t number) {
  return host.pool().reserve(host.ns(), key("r", number), Host::kSize);
}

/// Until one is refused.
std::vector<Reservation> reserve_all(Host& host) {
  std::vector<Reservation> reserved;
  while (auto reservation = reserve_one(host, reserved.size())) reserved.push_back(*reservation);
  return reserved;
}

TEST(Hosts, NoReservationLiesWhereALateHostMayWrite) {
  SharedPool shared(2);
  HostProcess first(shared, 0, {});
  Host second = shared.open(1);
  first.stop();
  // Without evidence that the first one has stopped writing.
  ASSERT_TRUE(eventually([&] {
    return ended(second, 0) && second.info_of(1).extents_custody == shared.extents() / 2;
  }));
  std::vector<Reservation> reserved = reserve_all(second);
  const auto next = [&] { return reserve_one(second, reserved.size()); };
  EXPECT_EQ(reserved.size(), room_of(shared, shared.extents() - shared.extents() / 2))
      << "all of its own memory";
  ASSERT_TRUE(eventually([&] { return second.put("p") == Status::OK; })) << "after reclaim_ms";
  EXPECT_EQ(next().status(), Status::BUSY);
  EXPECT_EQ(second.get("p"), Status::OK);
  // Nor does a block lie there that takes more than one extent.
  const std::vector<std::byte> large(shared.layout().geometry().extent_bytes + 1);
  const ConstSpan value{large.data(), large.size()};
  EXPECT_EQ(second.pool().put(second.ns(), "large", {&value, 1}), Status::NO_SPACE);
  first.kill_now();
  ASSERT_TRUE(second.pool().fence(0));
  EXPECT_TRUE(eventually([&] {
    return second.pool().put(second.ns(), "large", {&value, 1}) == Status::OK;
  }));
  EXPECT_TRUE(eventually([&] { return next().status() == Status::OK; }));
  for (Reservation& one : reserved) EXPECT_EQ(second.pool().commit(one), Status::OK);
}

TEST(Hosts, AReservationEvictsNothingThatCannotHelpIt) {
  SharedPool shared(2, CreateOptions{});
  HostProcess first(shared, 0, {});
  Host second = shared.open(1);
  first.stop();
  ASSERT_TRUE(eventually([&] {
    return ended(second, 0) && second.info_of(1).extents_custody == shared.extents() / 2;
  }));
  std::vector<Reservation> reserved = reserve_all(second);
  const auto next = [&] { return reserve_one(second, reserved.size()); };
  ASSERT_TRUE(eventually([&] { return second.put(key("p", 0)) == Status::OK; }));
  constexpr size_t kPut = 10;
  for (size_t i = 1; i < kPut; ++i) ASSERT_EQ(second.put(key("p", i)), Status::OK);
  for (int tries = 0; tries < 5; ++tries) EXPECT_EQ(next().status(), Status::BUSY);
  for (size_t i = 0; i < kPut; ++i) EXPECT_EQ(second.get(key("p", i)), Status::OK) << i;
  for (Reservation& one : reserved) EXPECT_EQ(second.pool().abort(one), Status::OK);
  first.kill_now();
}

TEST(Hosts, ALeaseOfALateHostDoesNotHoldForever) {
  SharedPool shared(2);
  Lease lease;
  HostProcess first(shared, 0,
                    {[&](Host& host) {
                       auto leased = acquire_when_seen(host, "k");
                       if (leased) lease = *leased;
                       return leased.status();
                     },
                     [&](Host& host) { return host.pool().release(lease); }});
  Host second = shared.open(1);
  ASSERT_EQ(second.put("k"), Status::OK);
  ASSERT_EQ(first.next(), Status::OK);
  ASSERT_EQ(second.remove("k"), Status::OK);
  first.stop();
  EXPECT_EQ(fill(second, "fill"), room_of(shared, shared.extents()))
      << "all of it, what the late host leases included";
  first.go_on();
  EXPECT_EQ(first.next(), Status::LAPSED);
}

}  // namespace
}  // namespace bowhead::test
