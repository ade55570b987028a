// SPDX-License-Identifier: Apache-2.0
// Namespaces of a pool that several hosts share: of two hosts that register a name at once with two
// layouts one gets it; a removed namespace is gone for all hosts, with all its blocks.
#include <atomic>
#include <thread>

#include "tests/support/hosts.h"

namespace bowhead::test {
namespace {

KvLayout layout_of(uint16_t channels) {
  KvLayout layout{};
  layout.number_format = BH_NUMBER_BF16;
  layout.parts = 1;
  layout.layers = layout.heads = 1;
  layout.key_channels = channels;
  return layout;
}

NamespaceDescription description(const std::string& name, uint16_t channels) {
  return {name, "", {layout_of(channels), CompressionProfile::NONE}};
}

Status put(Pool& pool, NamespaceId ns, uint64_t key) {
  const auto value = bytes(Host::kSize, key);
  const ConstSpan in[] = {{value.data(), value.size()}};
  return pool.put(ns, std::to_string(key), in);
}

bool has(Pool& pool, NamespaceId ns) {
  const auto info = pool.info();
  for (const auto& one : info->namespaces) {
    if (one.id == ns) return true;
  }
  return false;
}

/// No block is stored, and all space can be reserved.
bool is_empty(Pool& pool) {
  const auto info = pool.info();
  return info->blocks == 0 && info->used_bytes == 0;
}

TEST(HostNamespaces, OfTwoLayoutsAtOnceOneIsRegistered) {
  SharedPool shared(3);
  Host hosts[] = {shared.open(0), shared.open(1), shared.open(2)};
  for (int round = 0; round < 10; ++round) {
    const std::string name = fmt::format("race {}", round);
    std::optional<Result<NamespaceId>> got[3];
    std::atomic<int> ready{0};
    std::vector<std::thread> threads;
    for (uint16_t h = 0; h < 3; ++h) {
      threads.emplace_back([&, h] {
        ++ready;
        while (ready < 3) std::this_thread::yield();
        got[h] = hosts[h].pool().open_namespace(description(name, h == 2 ? 64 : 32));
      });
    }
    for (auto& thread : threads) thread.join();
    const bool narrow = static_cast<bool>(*got[0]);
    for (int h = 0; h < 3; ++h) {
      const Status expected = (h < 2) == narrow ? Status::OK : Status::LAYOUT_MISMATCH;
      EXPECT_EQ(got[h]->status(), expected) << round << " host " << h;
    }
    if (narrow) {
      EXPECT_EQ(**got[0], **got[1]);
    }
    // One entry is confirmed, and none is left tentative.
    int entries = 0;
    for (uint32_t h = 0; h < 3; ++h) {
      for (uint64_t i = 0; i < shared.layout().geometry().namespace_count; ++i) {
        const auto entry = shared.read<bh_namespace>(shared.layout().name_space(h, i));
        EXPECT_NE(entry.state, entry.id ^ BH_NAMESPACE_TENTATIVE);
        entries += entry.state != 0 && entry.name == name;
      }
    }
    EXPECT_EQ(entries, 1) << round;
  }
}

TEST(HostNamespaces, ARemovedOneIsGoneForAllWithItsBlocks) {
  SharedPool shared(2);
  Host first = shared.open(0), second = shared.open(1);
  const auto ns = first.pool().open_namespace(description("a", 32));
  ASSERT_TRUE(ns) << ns.error().message();
  ASSERT_EQ(*second.pool().open_namespace({"a", ""}), *ns);
  for (uint64_t n = 0; n < 20; ++n)
    ASSERT_EQ(put(n % 2 == 0 ? first.pool() : second.pool(), *ns, n), Status::OK);
  ASSERT_EQ(first.put("other"), Status::OK);
  // The host that removes it is not the one that registered it.
  ASSERT_TRUE(second.pool().remove_namespace("a"));
  EXPECT_EQ(put(second.pool(), *ns, 99), Status::NAMESPACE_GONE);
  EXPECT_EQ(second.pool().reserve(*ns, "r", 100).status(), Status::NAMESPACE_GONE);
  EXPECT_EQ(second.pool().length(*ns, "0").status(), Status::NAMESPACE_GONE);
  EXPECT_EQ(second.pool().remove_namespace("a").status(), Status::NOT_FOUND);
  EXPECT_TRUE(eventually([&] { return put(first.pool(), *ns, 98) == Status::NAMESPACE_GONE; }));
  EXPECT_EQ(first.pool().remove_namespace("a").status(), Status::NOT_FOUND);
  for (Host* host : {&first, &second}) {
    EXPECT_FALSE(has(host->pool(), *ns));
    EXPECT_TRUE(eventually([&] { return host->pool().info()->blocks == 1; }));
    EXPECT_EQ(host->get("other"), Status::OK) << "of another namespace";
  }
  // The name is free: under another id, with another layout.
  const auto again = first.pool().open_namespace(description("a", 64));
  ASSERT_TRUE(again) << again.error().message();
  EXPECT_NE(*again, *ns);
  EXPECT_EQ(*second.pool().open_namespace({"a", ""}), *again);
  EXPECT_EQ(second.pool().open_namespace(description("a", 32)).status(), Status::LAYOUT_MISMATCH);
  EXPECT_EQ(put(second.pool(), *again, 1), Status::OK);
  EXPECT_TRUE(eventually([&] { return first.pool().length(*again, "1").status() == Status::OK; }));
  EXPECT_EQ(put(first.pool(), *ns, 1), Status::NAMESPACE_GONE);
}

TEST(HostNamespaces, PutsBesideARemovalLeaveNoBlock) {
  SharedPool shared(2);
  Host first = shared.open(0), second = shared.open(1);
  for (int round = 0; round < 5; ++round) {
    const auto ns = first.pool().open_namespace({"busy", ""});
    ASSERT_TRUE(ns) << ns.error().message();
    std::vector<std::thread> threads;
    std::atomic<uint64_t> next{0};
    for (Host* host : {&first, &second, &first}) {
      threads.emplace_back([&, host] {
        for (;;) {
          const Status status = put(host->pool(), *ns, next++);
          if (status == Status::NAMESPACE_GONE) return;
          ASSERT_TRUE(status == Status::OK || status == Status::NO_SPACE) << status_name(status);
        }
      });
    }
    sleep_ms(10);
    EXPECT_TRUE(second.pool().remove_namespace("busy"));
    for (auto& thread : threads) thread.join();
    EXPECT_TRUE(eventually([&] { return is_empty(first.pool()) && is_empty(second.pool()); }))
        << round;
  }
}

TEST(HostNamespaces, AReservationOfARemovedOneIsNotCommitted) {
  SharedPool shared(2);
  Host first = shared.open(0), second = shared.open(1);
  auto reservation = first.pool().reserve(first.ns(), "r", Host::kSize);
  ASSERT_TRUE(reservation);
  ASSERT_TRUE(first.pool().remove_namespace("hosts"));
  EXPECT_EQ(first.pool().commit(*reservation), Status::NAMESPACE_GONE);
  EXPECT_TRUE(eventually([&] { return is_empty(first.pool()); }));
}

TEST(HostNamespaces, BlocksOfADeadHostGoToo) {
  SharedPool shared(2);
  Host first = shared.open(0);
  {
    HostProcess dead(shared, 1, {[](Host& host) { return host.put("left behind"); }});
    ASSERT_EQ(dead.next(), Status::OK);
    EXPECT_TRUE(eventually([&] { return first.holds("left behind"); }));
    dead.kill_now();
  }
  ASSERT_TRUE(first.pool().remove_namespace("hosts"));
  EXPECT_TRUE(eventually([&] { return is_empty(first.pool()); }));
  EXPECT_TRUE(eventually([&] { return first.info_of(1).state == "ended"; }));
  sleep_ms(3 * kShortTimes.dead_ms);
  EXPECT_TRUE(eventually([&] { return is_empty(first.pool()); })) << "after the adoption";
  // The next life of the host finds the namespace removed.
  auto again = Host::open(shared.locator(), 1);
  ASSERT_TRUE(again) << again.error().message();
  EXPECT_FALSE(again->holds("left behind"));
}

TEST(HostNamespaces, AFullTableIsRefused) {
  SharedPool shared(2);
  Host first = shared.open(0), second = shared.open(1);
  const uint64_t entries = shared.layout().geometry().namespace_count;
  for (uint64_t i = 1; i < entries; ++i)
    ASSERT_TRUE(first.pool().open_namespace({fmt::format("n{}", i), ""})) << i;
  EXPECT_EQ(first.pool().open_namespace({"one more", ""}).status(), Status::LIMIT_REACHED);
  ASSERT_TRUE(first.pool().open_namespace({"n1", ""}));
  ASSERT_TRUE(second.pool().open_namespace({"one more", ""})) << "another host has a table";
  // A removal by the host of the entry needs no entry.
  EXPECT_EQ(first.pool().remove_namespace("one more").status(), Status::LIMIT_REACHED);
  EXPECT_TRUE(first.pool().remove_namespace("n1"));
  EXPECT_TRUE(second.pool().remove_namespace("n2"));
}

TEST(HostNamespaces, WrongNamesAreRefused) {
  SharedPool shared(2);
  Host host = shared.open(0);
  EXPECT_EQ(host.pool().remove_namespace("nothing").status(), Status::NOT_FOUND);
  EXPECT_EQ(host.pool().remove_namespace("").status(), Status::INVALID_ARGUMENT);
  EXPECT_EQ(host.pool().remove_namespace(std::string(64, 'n')).status(), Status::INVALID_ARGUMENT);
  auto observer = Host::observe(shared.locator());
  ASSERT_TRUE(observer);
  EXPECT_EQ(observer->pool().remove_namespace("hosts").status(), Status::READ_ONLY);
}

/// A process that dies while it registers leaves an entry that says TENTATIVE.
TEST(HostNamespaces, WhatADeadProcessBeganDoesNotBlockOthers) {
  SharedPool shared(2);
  Host first = shared.open(0), second = shared.open(1);
  const auto made = second.pool().open_namespace(description("begun", 32));
  ASSERT_TRUE(made);
  const uint64_t at = [&] {
    for (uint64_t i = 0;; ++i) {
      const uint64_t entry = shared.layout().name_space(1, i);
      if (shared.read<bh_namespace>(entry).id == *made) return entry;
    }
  }();
  const uint64_t index = (at - shared.layout().name_space(1, 0)) / sizeof(bh_namespace);
  const auto write = [&](uint64_t offset, uint64_t word) {
    std::atomic_ref<uint64_t>(*reinterpret_cast<uint64_t*>(shared.at(offset))).store(word);
  };
  const uint64_t tentative = *made ^ BH_NAMESPACE_TENTATIVE;
  // While its host does not withdraw it, it stands.
  write(at + offsetof(bh_namespace, state), tentative);
  EXPECT_EQ(first.pool().open_namespace(description("begun", 64)).status(), Status::BUSY);
  write(shared.layout().part(1, BH_PART_PRIVATE) + offsetof(bh_host_private, namespace_open),
        index + 1);
  EXPECT_TRUE(eventually([&] {
    return shared.read<bh_namespace>(at).state == 0;  // by the duties of host 1
  }));
  EXPECT_TRUE(first.pool().open_namespace(description("begun", 64)));
}

/// A life that is over may still confirm: the entry of the higher epoch counts.
TEST(HostNamespaces, AnEntryOfADeadLifeIsPassedOver) {
  SharedPool shared(2);
  Host first = shared.open(0);
  uint64_t at = 0, id = 0;
  {
    HostProcess dead(shared, 1, {[](Host& host) {
                       return host.pool().open_namespace(description("late", 32)).status();
                     }});
    ASSERT_EQ(dead.next(), Status::OK);
    for (uint64_t i = 0; at == 0; ++i) {
      const auto entry = shared.read<bh_namespace>(shared.layout().name_space(1, i));
      if (std::string(entry.name) != "late") continue;
      at = shared.layout().name_space(1, i) + offsetof(bh_namespace, state);
      id = entry.id;
    }
    dead.kill_now();
  }
  const auto write = [&](uint64_t state) {
    std::atomic_ref<uint64_t>(*reinterpret_cast<uint64_t*>(shared.at(at))).store(id ^ state);
  };
  write(BH_NAMESPACE_TENTATIVE);
  EXPECT_TRUE(eventually([&] { return first.info_of(1).state == "ended"; }));
  const auto mine = first.pool().open_namespace(description("late", 64));
  ASSERT_TRUE(mine) << mine.error().message();
  write(BH_NAMESPACE_CONFIRMED);
  EXPECT_EQ(*first.pool().open_namespace({"late", ""}), *mine);
  EXPECT_EQ(first.pool().open_namespace(description("late", 32)).status(), Status::LAYOUT_MISMATCH);
}

/// The places of the entries of this name in the table of a host.
std::vector<uint64_t> entries_of(const SharedPool& shared, uint32_t host, const char* name) {
  std::vector<uint64_t> found;
  for (uint64_t i = 0; i < shared.layout().geometry().namespace_count; ++i) {
    const uint64_t at = shared.layout().name_space(host, i);
    if (std::string_view(shared.read<bh_namespace>(at).name) == name) found.push_back(at);
  }
  return found;
}

TEST(HostNamespaces, AHostThatHearsOfARemovalNotesItToo) {
  SharedPool shared(2);
  Host first = shared.open(0), second = shared.open(1);
  ASSERT_TRUE(first.pool().open_namespace(description("a", 32)));
  ASSERT_TRUE(second.pool().remove_namespace("a"));
  const auto at = entries_of(shared, 0, "a");
  ASSERT_EQ(at.size(), 1u);
  EXPECT_TRUE(eventually([&] {
    const auto entry = shared.read<bh_namespace>(at[0]);
    return entry.state == (entry.id ^ BH_NAMESPACE_REMOVED);
  }));
}

/// While the host that registered it is away: the removal stands in one entry only.
TEST(HostNamespaces, ADamagedDescriptionBringsNoRemovedOneBack) {
  SharedPool shared(2);
  std::optional<NamespaceId> ns;
  {
    Host first = shared.open(0);
    ns = *first.pool().open_namespace(description("a", 32));
    ASSERT_EQ(put(first.pool(), *ns, 1), Status::OK);
    ASSERT_TRUE(first.pool().leave());
  }
  Host second = shared.open(1);
  ASSERT_TRUE(second.pool().remove_namespace("a"));
  const auto at = entries_of(shared, 1, "a");
  ASSERT_EQ(at.size(), 1u);
  for (const uint64_t offset :
       {offsetof(bh_namespace, id), offsetof(bh_namespace, name), offsetof(bh_namespace, seal)}) {
    std::byte& hit = *shared.at(at[0] + offset);
    hit ^= std::byte{1};
    const Host observer = *Host::observe(shared.locator());
    EXPECT_FALSE(has(const_cast<Host&>(observer).pool(), *ns)) << offset;
    hit ^= std::byte{1};
  }
}

/// Any flipped bit of the word that says what an entry is makes it damaged, and no removal.
TEST(HostNamespaces, ADamagedStateRemovesNoBlock) {
  SharedPool shared(2);
  Host first = shared.open(0), second = shared.open(1);
  const auto ns = first.pool().open_namespace(description("a", 32));
  ASSERT_TRUE(ns);
  ASSERT_EQ(put(first.pool(), *ns, 1), Status::OK);
  const uint64_t at = entries_of(shared, 0, "a").at(0) + offsetof(bh_namespace, state);
  std::atomic_ref<uint64_t> state(*reinterpret_cast<uint64_t*>(shared.at(at)));
  const uint64_t right = state;
  for (int bit = 0; bit < 64; ++bit) {
    state = right ^ uint64_t { 1 } << bit;
    const auto report = second.pool().check(/*payload=*/false);
    ASSERT_TRUE(report);
    EXPECT_FALSE(report->findings.empty()) << bit;
    // Another removal has all hosts look for blocks of removed namespaces.
    const std::string other = "other " + std::to_string(bit);
    if (bit % 16 == 0) {
      ASSERT_TRUE(second.pool().open_namespace(description(other, 32)));
      ASSERT_TRUE(second.pool().remove_namespace(other));
      sleep_ms(5 * kShortTimes.heartbeat_ms);
    }
    state = right;
  }
  EXPECT_EQ(first.pool().length(*ns, "1").status(), Status::OK);
  EXPECT_EQ(put(first.pool(), *ns, 2), Status::OK);
}

TEST(HostNamespaces, WithoutTheNumberOfEntriesAllAreRead) {
  SharedPool shared(2);
  Host first = shared.open(0), second = shared.open(1);
  const auto ns = first.pool().open_namespace(description("a", 32));
  ASSERT_TRUE(ns);
  const uint64_t at =
      shared.layout().part(0, BH_PART_HEARTBEAT) + offsetof(bh_host_heartbeat, namespaces_used);
  for (const uint64_t damaged : {uint64_t{0}, ~uint64_t{0}, uint64_t{1} << 40}) {
    std::memcpy(shared.at(at), &damaged, sizeof damaged);
    EXPECT_TRUE(has(second.pool(), *ns)) << damaged;
  }
}

TEST(HostNamespaces, AnObserverHearsOfARemoval) {
  SharedPool shared(2);
  Host first = shared.open(0);
  auto observer = *Pool::open(shared.locator(), {.observe = true});
  const auto ns = first.pool().open_namespace(description("a", 32));
  ASSERT_TRUE(ns);
  ASSERT_EQ(put(first.pool(), *ns, 1), Status::OK);
  EXPECT_EQ(observer.length(*ns, "1").status(), Status::OK);
  ASSERT_TRUE(first.pool().remove_namespace("a"));
  EXPECT_TRUE(
      eventually([&] { return observer.length(*ns, "1").status() == Status::NAMESPACE_GONE; }));
}

/// A pool of one host has no duties that could come later.
TEST(HostNamespaces, PutsBesideARemovalLeaveNoBlockOnOneHost) {
  SharedPool shared(1);
  Host host = shared.open(0);
  for (int round = 0; round < 30; ++round) {
    const auto ns = host.pool().open_namespace(description("a", 32));
    ASSERT_TRUE(ns);
    std::thread remover([&] { EXPECT_TRUE(host.pool().remove_namespace("a")); });
    for (uint64_t n = 0; put(host.pool(), *ns, n) == Status::OK; ++n) {
    }
    remover.join();
    ASSERT_TRUE(is_empty(host.pool())) << round;
  }
}

/// By processes of several shards, each namespace keeps its own counts.
TEST(HostNamespaces, AFullTableIsCountedByName) {
  SharedPool shared(2);
  Host one = shared.open(0), other = shared.open(0);
  const uint64_t count = shared.layout().geometry().namespace_count - 2;
  std::vector<NamespaceId> all;
  for (uint64_t i = 0; i < count; ++i) {
    all.push_back(*one.pool().open_namespace({"space " + std::to_string(i), ""}));
    const std::vector<std::byte> value(100);
    const ConstSpan in[] = {{value.data(), value.size()}};
    ASSERT_EQ(one.pool().put(all.back(), "k", in), Status::OK);
    ASSERT_EQ(other.pool().put(all.back(), "l", in), Status::OK);
    ASSERT_EQ(other.pool().remove(all.back(), "k"), Status::OK);
  }
  const auto counted = one.pool().usage();
  ASSERT_TRUE(counted);
  for (const NamespaceUsage& usage : *counted) {
    if (std::count(all.begin(), all.end(), usage.id) != 0) {
      EXPECT_EQ(usage.blocks, 1) << usage.id;
    } else {
      EXPECT_EQ(usage.blocks, 0) << usage.id;
    }
  }
}

}  // namespace
}  // namespace bowhead::test
