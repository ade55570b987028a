// SPDX-License-Identifier: Apache-2.0
// A death before and after every store to shared metadata, in every operation.
#include <fmt/format.h>

#include "tests/crash/crash_points.h"
#include "tests/support/words.h"

namespace bowhead::test {
namespace {

using core::Key;

void attach(CrashHandle& handle) { ASSERT_TRUE(handle.attach()); }

/// Blocks of several sizes: small ones, a key of many lines, one of two extents, and holes.
void fill_some(World& world) {
  NativeHandle handle(world.pool);
  ASSERT_TRUE(handle.attach());
  for (int i = 0; i < 12; ++i)
    ASSERT_EQ(world.put(handle.core(), fmt::format("a{}", i), 20'000), Status::OK);
  for (int i = 0; i < 5; ++i)
    ASSERT_EQ(world.put(handle.core(), fmt::format("b{}", i), 60'000), Status::OK);
  ASSERT_EQ(world.put(handle.core(), "long" + std::string(400, 'k'), 1000), Status::OK);
  ASSERT_EQ(world.put(handle.core(), "wide", 300'000), Status::OK);
  for (const char* key : {"a3", "a7", "b1"}) {
    ASSERT_EQ(remove(handle.core(), key), Status::OK);
    world.expected.erase(key);
  }
  handle.detach();
}

Act put_of(const std::string& key, uint64_t size) {
  return [key, value = World::value(key, size)](CrashHandle& handle) {
    EXPECT_EQ(put(handle.core(), key, value, World::user(key)), Status::OK);
  };
}

Scenario scenario_of_put(const char* name, const std::string& key, uint64_t size) {
  return {.name = name,
          .prepare =
              [=](World& world) {
                fill_some(world);
                world.may_come(key, size);
              },
          .act = put_of(key, size)};
}

// ---- put ----

TEST(CrashPoints, Put) { run_scenario(scenario_of_put("put", "new", 20'000)); }
TEST(CrashPoints, PutThatCutsAnExtent) {
  run_scenario(scenario_of_put("put that cuts an extent", "new", 33'000));
}
TEST(CrashPoints, PutThatCutsThreeExtents) {
  run_scenario(scenario_of_put("put that cuts three extents", "new", 600'000));
}
TEST(CrashPoints, PutUnderALongKey) {
  run_scenario(scenario_of_put("put under a long key", std::string(500, 'x'), 1000));
}
TEST(CrashPoints, PutThatIsToBeWiped) {
  run_scenario(scenario_of_put("put that is to be wiped", "secret of a put", 20'000));
}
TEST(CrashPoints, PutOfAPresentKey) {
  run_scenario({.name = "put of a present key", .prepare = fill_some, .act = put_of("a5", 20'000)});
}

// ---- attributes ----

constexpr BlockAttributes kOld{.priority = 3, .forks = 7, .expires_unix_s = 70, .group = 700};
constexpr BlockAttributes kNew{.priority = 9, .hard_pin = true, .forks = 1, .group = 900};

BlockAttributes attributes_of(core::Core<core::NativeAccess>& core, const char* key) {
  const auto block = core.inspection.describe(Key(kNamespace, key));
  return block ? block->attributes : BlockAttributes{};
}

void fill_some_with_attributes(World& world) {
  fill_some(world);
  NativeHandle handle(world.pool);
  ASSERT_TRUE(handle.attach());
  for (const char* key : {"a5", "a6"})
    ASSERT_EQ(handle.core().attributes.set(Key(kNamespace, key), kOld), Status::OK);
  handle.detach();
}

TEST(CrashPoints, SetAttributes) {
  run_scenario({.name = "set attributes",
                .prepare = fill_some_with_attributes,
                .act =
                    [](CrashHandle& handle) {
                      EXPECT_EQ(handle.core().attributes.set(Key(kNamespace, "a5"), kNew),
                                Status::OK);
                    },
                .first =
                    [](World&, core::Core<core::NativeAccess>& core) {
                      const BlockAttributes seen = attributes_of(core, "a5");
                      EXPECT_TRUE(seen == kOld || seen == kNew || seen == BlockAttributes{});
                      EXPECT_EQ(attributes_of(core, "a6"), kOld);
                      EXPECT_EQ(attributes_of(core, "a4"), BlockAttributes{});
                    }});
}

// ---- coded values ----

TEST(CrashPoints, PutOfACodedValue) {
  const auto prepare = [](World& world) {
    fill_some(world);
    world.may_come("twice", 40'000);
  };
  run_scenario({.name = "put of a coded value", .prepare = prepare, .act = [](CrashHandle& handle) {
                  const auto value = World::value("twice", 40'000);
                  ConstSpan half;
                  EXPECT_EQ(handle.core().writing.put(Key(kNamespace, "twice"),
                                                      doubled(value, half, World::user("twice"))),
                            Status::OK);
                }});
}

Act replace_by_half(uint64_t size) {
  return [size](CrashHandle& handle) {
    const auto value = World::value("twice", size);
    std::vector<std::byte> stored(size);
    const Span to{stored.data(), stored.size()};
    std::vector<core::Located> cold;
    handle.core().space.for_each_cold(0, [&](const core::Located& located) {
      if (located.header.length_bytes == size && located.header.codec == BH_CODEC_RAW)
        cold.push_back(located);
    });
    ASSERT_EQ(cold.size(), 1u);
    std::string user_metadata;
    ASSERT_TRUE(handle.core().reading.read_stored(cold[0], {&to, 1}, user_metadata));
    EXPECT_EQ(stored, value);
    ConstSpan half;
    const auto content = doubled(value, half, user_metadata);
    EXPECT_EQ(handle.core().space.replace(cold[0], content), Status::OK);
  };
}

void fill_some_and_twice(World& world) {
  fill_some(world);
  NativeHandle handle(world.pool);
  ASSERT_TRUE(handle.attach());
  ASSERT_EQ(world.put(handle.core(), "twice", 120'000), Status::OK);
  handle.detach();
}

TEST(CrashPoints, Replace) {
  run_scenario({.name = "replace by fewer bytes",
                .prepare = fill_some_and_twice,
                .act = replace_by_half(120'000)});
}

/// A death in the middle leaves two blocks of one key; then the machine goes down too.
TEST(CrashPoints, RebootAfterADeathInAReplace) {
  for (uint64_t permille = 500; permille < 1000; permille += 50) {
    const auto prepare = [permille](World& world) {
      fill_some_and_twice(world);
      die_together(world,
                   {{.before = attach, .act = replace_by_half(120'000), .at_permille = permille}});
      world.pool.forget_boot();
    };
    run_scenario({.name = "open after a reboot, after a death in a replacement",
                  .prepare = prepare,
                  .before = {},
                  .act = attach,
                  .every = 29,
                  .nexts = {Next::FRESH}});
  }
}

/// A pool full of slabs for one size, all but one of them empty.
Scenario scenario_of_joining(const char* name, uint64_t old_size, uint64_t new_size) {
  const auto prepare = [=](World& world) {
    NativeHandle handle(world.pool);
    ASSERT_TRUE(handle.attach());
    int count = 0;
    while (world.put(handle.core(), fmt::format("s{}", count), old_size) == Status::OK) ++count;
    for (int i = 1; i < count; ++i) {
      ASSERT_EQ(remove(handle.core(), fmt::format("s{}", i)), Status::OK);
      world.expected.erase(fmt::format("s{}", i));
    }
    world.may_come("new", new_size);
    handle.detach();
  };
  return {.name = name, .prepare = prepare, .act = put_of("new", new_size)};
}
TEST(CrashPoints, PutThatJoinsEmptySlabs) {
  run_scenario(scenario_of_joining("put that joins empty slabs", 120'000, 600'000));
}
TEST(CrashPoints, PutThatJoinsWideSlabs) {
  run_scenario(scenario_of_joining("put that joins slabs of three extents", 600'000, 20'000));
}

// ---- reserve, commit, abort ----

Act reserve_then(const std::string& key, uint64_t size,
                 const std::function<Status(core::Core<CrashAccess>&, Reservation&)>& end) {
  return [=](CrashHandle& handle) {
    auto reservation = handle.core().writing.reserve(Key(kNamespace, key), size, World::user(key));
    ASSERT_TRUE(reservation);
    const auto value = World::value(key, size);
    std::memcpy(reservation->data, value.data(), value.size());
    EXPECT_EQ(end(handle.core(), *reservation), Status::OK);
  };
}

void fill_some_and_expect_new(World& world) {
  fill_some(world);
  world.may_come("new", 20'000);
}

TEST(CrashPoints, ReserveCommit) {
  run_scenario({.name = "reserve and commit",
                .prepare = fill_some_and_expect_new,
                .act = reserve_then("new", 20'000, [](auto& core, Reservation& reservation) {
                  return core.writing.commit(reservation, {});
                })});
}
TEST(CrashPoints, ReserveCommitUnverified) {
  run_scenario({.name = "reserve and commit without a checksum",
                .prepare = fill_some_and_expect_new,
                .act = reserve_then("new", 20'000, [](auto& core, Reservation& reservation) {
                  return core.writing.commit(reservation, {PayloadSum::By::NONE});
                })});
}
TEST(CrashPoints, ReserveAbort) {
  run_scenario({.name = "reserve and abort",
                .prepare = fill_some,
                .act = reserve_then("new", 20'000, [](auto& core, Reservation& reservation) {
                  return core.writing.abort(reservation);
                })});
}

// ---- get, touch ----

TEST(CrashPoints, Get) {
  run_scenario({.name = "get", .prepare = fill_some, .act = [](CrashHandle& handle) {
                  EXPECT_EQ(get(handle.core(), "wide"), World::value("wide", 300'000));
                }});
}

TEST(CrashPoints, GetOfADamagedBlock) {
  const auto prepare = [](World& world) {
    fill_some(world);
    NativeHandle handle(world.pool);
    ASSERT_TRUE(handle.attach());
    const auto located = handle.core().lookup.locate(Key(kNamespace, "b2"));
    ASSERT_TRUE(located);
    handle.access().payload(located->found.entry.block_offset)[777] ^= std::byte{1};
    world.goes("b2");
    handle.detach();
  };
  run_scenario({.name = "get of a damaged block",
                .prepare = prepare,
                .act = [](CrashHandle& handle) { EXPECT_TRUE(get(handle.core(), "b2").empty()); },
                // Only a reader notices the damage, whether or not the reader before it died.
                .first = [](World&, auto& core) { EXPECT_TRUE(get(core, "b2").empty()); }});
}

TEST(CrashPoints, Touch) {
  run_scenario({.name = "touch", .prepare = fill_some, .act = [](CrashHandle& handle) {
                  const std::string_view keys[] = {"a0", "b0", "wide"};
                  uint8_t present[3];
                  uint64_t slots[3];
                  EXPECT_EQ(handle.core().lookup.exists(kNamespace, keys, present, slots), 3u);
                  handle.core().reading.touch_slots(slots);
                }});
}

// ---- remove, evict ----

Scenario scenario_of_remove(const char* name, const std::string& key) {
  return {.name = name,
          .prepare =
              [=](World& world) {
                fill_some(world);
                world.may_go(key);
              },
          .act = [=](CrashHandle& handle) { EXPECT_EQ(remove(handle.core(), key), Status::OK); }};
}
TEST(CrashPoints, Remove) { run_scenario(scenario_of_remove("remove", "a5")); }
TEST(CrashPoints, RemoveAndWipe) {
  Scenario scenario = scenario_of_remove("remove and wipe", "a5");
  scenario.prepare = [](World& world) {
    fill_some(world);
    NativeHandle handle(world.pool);
    ASSERT_TRUE(handle.attach());
    ASSERT_EQ(world.put(handle.core(), "secret of a removal", 20'000), Status::OK);
    handle.detach();
    world.may_go("secret of a removal");
  };
  scenario.act = [](CrashHandle& handle) {
    EXPECT_EQ(remove(handle.core(), "secret of a removal"), Status::OK);
  };
  run_scenario(scenario);
}
TEST(CrashPoints, AbortAndWipe) {
  Scenario scenario = scenario_of_put("abort and wipe", "secret of an abort", 20'000);
  scenario.act = [](CrashHandle& handle) {
    auto& writing = handle.core().writing;
    const std::string key = "secret of an abort";
    auto reserved = writing.reserve(Key(kNamespace, key), 20'000, {}, {}, /*wipe=*/true);
    ASSERT_TRUE(reserved);
    const auto value = World::value(key, 20'000);
    std::memcpy(reserved->data, value.data(), value.size());
    EXPECT_EQ(writing.abort(*reserved), Status::OK);
  };
  run_scenario(scenario);
}
/// What a dead process left is wiped also if the machine goes down before another process looks.
TEST(CrashPoints, RebootAfterADeathBeforeWiping) {
  const auto put_secret = [](World& world) {
    fill_some(world);
    NativeHandle handle(world.pool);
    ASSERT_TRUE(handle.attach());
    ASSERT_EQ(world.put(handle.core(), "secret", 20'000), Status::OK);
    handle.detach();
    world.may_go("secret");
  };
  const auto prepare_put = [](World& world) {
    fill_some(world);
    world.may_come("secret", 20'000);
  };
  const Act remove_secret = [](CrashHandle& handle) {
    EXPECT_EQ(remove(handle.core(), "secret"), Status::OK);
  };
  for (const bool removes : {false, true}) {
    for (uint64_t permille = 0; permille < 1000; permille += 40) {
      const auto prepare = [=](World& world) {
        removes ? put_secret(world) : prepare_put(world);
        die_together(world, {{.before = attach,
                              .act = removes ? remove_secret : put_of("secret", 20'000),
                              .at_permille = permille}});
        world.pool.forget_boot();
      };
      run_scenario({.name = removes ? "open after a reboot, after a death in a removal"
                                    : "open after a reboot, after a death in a put",
                    .prepare = prepare,
                    .before = {},
                    .act = attach,
                    .every = 97,
                    .nexts = {Next::FRESH}});
    }
  }
}
TEST(CrashPoints, RemoveOfALongKey) {
  run_scenario(scenario_of_remove("remove of a long key", "long" + std::string(400, 'k')));
}
TEST(CrashPoints, RemoveOfAWideBlock) {
  run_scenario(scenario_of_remove("remove of a block of two extents", "wide"));
}

void fill_all(World& world, uint64_t size) {
  NativeHandle handle(world.pool, /*eviction=*/false);
  ASSERT_TRUE(handle.attach());
  int count = 0;
  while (world.put(handle.core(), fmt::format("f{}", count), size) == Status::OK) ++count;
  ASSERT_GT(count, 20);
  handle.detach();
}

void may_all_go(World& world) {
  for (auto& [key, expected] : world.expected) expected.must = World::Must::STAY_OR_GO;
}

TEST(CrashPoints, PutThatEvictsAtTheWatermark) {
  const auto prepare = [](World& world) {
    fill_all(world, 60'000);
    may_all_go(world);
    NativeHandle handle(world.pool, /*eviction=*/false);
    ASSERT_TRUE(handle.attach());
    ASSERT_EQ(remove(handle.core(), "f5"), Status::OK);
    world.expected.erase("f5");
    handle.detach();
    world.may_come("new", 60'000);
  };
  run_scenario({.name = "put that evicts at the watermark",
                .shape = {.evict_high_permille = 800, .evict_low_permille = 700},
                .prepare = prepare,
                .act = put_of("new", 60'000),
                .full = true,
                .any_room = true});
}

TEST(CrashPoints, PutIntoAFullPoolEvicts) {
  const auto prepare = [](World& world) {
    fill_all(world, 60'000);
    may_all_go(world);
    world.may_come("new", 60'000);
  };
  run_scenario({.name = "put into a full pool, that evicts",
                .shape = {.evict_high_permille = 1000, .evict_low_permille = 1000},
                .prepare = prepare,
                .act = put_of("new", 60'000),
                .full = true,
                .any_room = true});
}

// ---- emptying extents ----

/// Every extent has a hole, and none is free.
void fill_with_holes(World& world) {
  fill_all(world, 60'000);
  NativeHandle handle(world.pool, /*eviction=*/false);
  ASSERT_TRUE(handle.attach());
  for (int i = 0; i < 48; i += 4) {
    ASSERT_EQ(remove(handle.core(), fmt::format("f{}", i)), Status::OK);
    world.expected.erase(fmt::format("f{}", i));
  }
  handle.detach();
}

TEST(CrashPoints, PutThatMovesBlocks) {
  const auto prepare = [](World& world) {
    fill_with_holes(world);
    world.may_come("new", 300'000);
  };
  run_scenario({.name = "put that moves blocks",
                .prepare = prepare,
                .act = put_of("new", 300'000),
                .full = true});
}

/// A death in the middle of a move leaves two blocks of one key; then the machine goes down too.
TEST(CrashPoints, RebootAfterADeathInAMove) {
  for (uint64_t permille = 40; permille < 120; permille += 8) {
    const auto prepare = [permille](World& world) {
      fill_with_holes(world);
      const Act put_wide = put_of("new", 300'000);
      die_together(world, {{.before = attach, .act = put_wide, .at_permille = permille}});
      world.pool.forget_boot();
    };
    run_scenario({.name = "open after a reboot, after a death in a move",
                  .prepare = prepare,
                  .before = {},
                  .act = attach,
                  .full = true,
                  .every = 29,
                  .nexts = {Next::FRESH}});
  }
}

TEST(CrashPoints, PutIntoAFullPoolOfOtherSizesEvicts) {
  const auto prepare = [](World& world) {
    fill_all(world, 120'000);
    may_all_go(world);
    world.may_come("new", 300'000);
  };
  run_scenario({.name = "put into a full pool of other sizes, that evicts",
                .shape = {.evict_high_permille = 1000, .evict_low_permille = 1000},
                .prepare = prepare,
                .act = put_of("new", 300'000),
                .full = true,
                .any_room = true});
}

/// The oldest blocks are scattered, so that no eviction empties an extent.
TEST(CrashPoints, PutThatEvictsAndMoves) {
  const auto prepare = [](World& world) {
    fill_all(world, 15'000);
    may_all_go(world);
    NativeHandle handle(world.pool, /*eviction=*/false);
    ASSERT_TRUE(handle.attach());
    for (size_t i = 0; i < world.expected.size(); ++i) {
      const std::string key = fmt::format("f{}", i * 37 % world.expected.size());
      ASSERT_FALSE(get(handle.core(), key).empty());
    }
    handle.detach();
    world.may_come("new", 300'000);
  };
  run_scenario(
      {.name = "put that evicts and moves",
       .shape = {.index_bucket_count = 50, .evict_high_permille = 1000, .evict_low_permille = 1000},
       .prepare = prepare,
       .act = put_of("new", 300'000),
       .full = true,
       .any_room = true,
       .every = 17});
}

// ---- leases ----

TEST(CrashPoints, AcquireRelease) {
  run_scenario(
      {.name = "acquire and release", .prepare = fill_some, .act = [](CrashHandle& handle) {
         auto lease = handle.core().reading.acquire(Key(kNamespace, "a5"), 60'000);
         ASSERT_TRUE(lease);
         EXPECT_EQ(handle.core().reading.release(*lease), Status::OK);
       }});
}

TEST(CrashPoints, ReleaseOfARetiredBlock) {
  static Lease lease;  // of the child
  run_scenario({.name = "release of a retired block",
                .prepare =
                    [](World& world) {
                      fill_some(world);
                      world.goes("a5");
                    },
                .before =
                    [](CrashHandle& handle) {
                      attach(handle);
                      auto taken = handle.core().reading.acquire(Key(kNamespace, "a5"), 60'000);
                      ASSERT_TRUE(taken);
                      lease = *taken;
                      ASSERT_EQ(remove(handle.core(), "a5"), Status::OK);
                    },
                .act =
                    [](CrashHandle& handle) {
                      EXPECT_EQ(handle.core().reading.release(lease), Status::LAPSED);
                    }});
}

/// The holder lives on and never releases; the process that revokes its lease dies.
TEST(CrashPoints, RevocationOfAnExpiredLease) {
  static Lease lease;  // of this process
  static uint64_t slot;
  const auto hold = [](World&, auto& core) {
    auto taken = core.reading.acquire(Key(kNamespace, "a5"), 1);
    ASSERT_TRUE(taken);
    lease = *taken;
    slot = core.context().layout.slot_of(lease.offset);
    usleep(1100);
  };
  const auto first = [](World& world, auto& core) {
    NativeHandle other(world.pool);
    ASSERT_TRUE(other.attach());
    const Status removed = remove(other.core(), "a5");
    EXPECT_TRUE(removed == Status::OK || removed == Status::NOT_FOUND);
    EXPECT_EQ(other.core().allocator().word(slot).state, uint32_t{BH_BLOCK_FREE});
    EXPECT_EQ(core.reading.release(lease), Status::LAPSED);
    other.detach();
  };
  run_scenario(
      {.name = "revocation of an expired lease",
       .prepare =
           [](World& world) {
             fill_some(world);
             world.goes("a5");
           },
       .act = [](CrashHandle& handle) { EXPECT_EQ(remove(handle.core(), "a5"), Status::OK); },
       .hold = hold,
       .first = first,
       .nexts = {Next::SURVIVOR, Next::HASTY}});
}

// ---- namespaces ----

TEST(CrashPoints, OpenNamespace) {
  run_scenario(
      {.name = "open a namespace",
       .prepare = fill_some,
       .act =
           [](CrashHandle& handle) {
             EXPECT_TRUE(handle.core().namespaces.open_namespace({"model", "fp16, 8 heads"}));
           },
       .first =
           [](World&, auto& core) {
             // Three fit; a torn entry takes no place.
             for (const char* name : {"model", "second", "third"})
               EXPECT_TRUE(core.namespaces.open_namespace({name, "fp16, 8 heads"})) << name;
           }});
}

TEST(CrashPoints, RemoveNamespace) {
  run_scenario(
      {.name = "remove a namespace",
       .prepare =
           [](World& world) {
             fill_some(world);
             NativeHandle handle(world.pool);
             ASSERT_TRUE(handle.attach());
             ASSERT_TRUE(handle.core().namespaces.open_namespace({"model", "fp16, 8 heads"}));
             handle.detach();
           },
       .act =
           [](CrashHandle& handle) {
             EXPECT_TRUE(handle.core().namespaces.remove_namespace("model"));
           },
       .first =
           [](World&, auto& core) {
             const Status removed = core.namespaces.remove_namespace("model").status();
             EXPECT_TRUE(removed == Status::OK || removed == Status::NOT_FOUND);
             EXPECT_TRUE(core.namespaces.open_namespace({"model", "another description"}));
           }});
}

// ---- coming and going ----

TEST(CrashPoints, FirstOpen) {
  run_scenario({.name = "first open",
                .prepare =
                    [](World& world) {
                      const TinyPool fresh;
                      world.pool.restore(fresh.snapshot());
                    },
                .before = {},
                .act = attach,
                .nexts = {Next::FRESH}});
}

TEST(CrashPoints, OpenAgain) {
  run_scenario({.name = "open again", .prepare = fill_some, .before = {}, .act = attach});
}

TEST(CrashPoints, OpenAfterAReboot) {
  run_scenario({.name = "open after a reboot",
                .prepare =
                    [](World& world) {
                      fill_some(world);
                      world.pool.forget_boot();
                    },
                .before = {},
                .act = attach,
                .nexts = {Next::FRESH}});
}

TEST(CrashPoints, Detach) {
  run_scenario({.name = "detach with a reservation and a lease",
                .prepare = fill_some,
                .before =
                    [](CrashHandle& handle) {
                      attach(handle);
                      ASSERT_TRUE(handle.core().writing.reserve(Key(kNamespace, "new"), 33'000));
                      ASSERT_TRUE(handle.core().reading.acquire(Key(kNamespace, "a5"), 60'000));
                    },
                .act = [](CrashHandle& handle) { handle.detach(); }});
}

TEST(CrashPoints, Repair) {
  const auto prepare = [](World& world) {
    fill_some(world);
    NativeHandle handle(world.pool);
    ASSERT_TRUE(handle.attach());
    const auto located = handle.core().lookup.locate(Key(kNamespace, "b2"));
    ASSERT_TRUE(located);
    handle.access().payload(located->found.entry.block_offset)[777] ^= std::byte{1};
    world.goes("b2");
    handle.detach();
  };
  run_scenario({.name = "repair",
                .prepare = prepare,
                .before = {},
                .act =
                    [](CrashHandle& handle) {
                      EXPECT_TRUE(handle.core().joining.repair(/*take_over=*/false, {}));
                    },
                // After a death before the damaged block is reached, the next reader finds it.
                .first = [](World&, auto& core) { EXPECT_TRUE(get(core, "b2").empty()); },
                .nexts = {Next::FRESH}});
}

// ---- scavenging ----

/// The leftovers of several dead processes, each at this share of its operation.
void leave_much(World& world, uint64_t permille) {
  fill_some(world);
  world.may_come("new", 20'000);
  world.may_come("cut", 33'000);
  world.may_come("run", 600'000);
  world.may_go("a5");
  const Act take_things = [](CrashHandle& handle) {
    ASSERT_TRUE(handle.core().writing.reserve(Key(kNamespace, "taken"), 33'000));
    ASSERT_TRUE(handle.core().reading.acquire(Key(kNamespace, "a6"), 60'000));
  };
  const Act take_and_leave = [](CrashHandle& handle) {
    attach(handle);
    ASSERT_TRUE(handle.core().writing.reserve(Key(kNamespace, "left"), 20'000));
  };
  die_together(
      world,
      {{.before = attach, .act = put_of("new", 20'000), .at_permille = permille},
       {.before = attach, .act = put_of("cut", 33'000), .at_permille = permille},
       {.before = attach, .act = put_of("run", 600'000), .at_permille = permille},
       {.before = attach,
        .act = [](CrashHandle& handle) { EXPECT_EQ(remove(handle.core(), "a5"), Status::OK); },
        .at_permille = permille},
       {.before = attach, .act = take_things},
       {.before = take_and_leave,
        .act = [](CrashHandle& handle) { handle.detach(); },
        .at_permille = permille}});
}

uint64_t dead_processes(const World& world) {
  uint64_t dead = 0;
  for (uint32_t p = 0; p < world.pool.superblock().geometry.process_count; ++p)
    dead += core::ProcessWord::unpack(world.pool.load(world.pool.layout().process(0, p))).state !=
            BH_PROCESS_FREE;
  return dead;
}

/// Many locks: a process that meets a dead process's lock scavenges it.
constexpr TinyShape kManyLocks = {.lock_count = 1024};

TEST(CrashPoints, Scavenge) {
  for (uint64_t permille = 100; permille < 1000; permille += 160) {
    run_scenario({.name = "scavenge six dead processes",
                  .shape = kManyLocks,
                  .prepare =
                      [=](World& world) {
                        leave_much(world, permille);
                        // The last one may have reached the end of its detach().
                        EXPECT_GE(dead_processes(world), 5u);
                      },
                  .before = {},
                  .act = attach,
                  .any_room = true,
                  .nexts = {Next::FRESH}});
  }
}

TEST(CrashPoints, ScavengeAScavenger) {
  for (uint64_t permille = 30; permille < 1000; permille += 60) {
    run_scenario({.name = "scavenge a scavenger",
                  .shape = kManyLocks,
                  .prepare =
                      [=](World& world) {
                        leave_much(world, 600);
                        die_together(world, {{.act = attach, .at_permille = permille}});
                      },
                  .before = {},
                  .act = attach,
                  .any_room = true,
                  .every = 7,
                  .nexts = {Next::FRESH}});
  }
}

/// The first block that looks free in an extent that is being carved goes to the other process.
/// False if there is none.
bool reserve_in_a_cut(World& world) {
  const core::Layout layout = world.pool.layout();
  for (uint64_t slot = 0; slot < layout.slot_limit(); ++slot) {
    const uint64_t extent = layout.extent_of_slot(slot);
    const auto state = core::StateWord::unpack(world.pool.load(layout.extent_state(0, extent)));
    const uint64_t at =
        block_word(layout, 0, slot, [&](uint64_t offset) { return world.pool.load(offset); });
    if (at == 0) continue;
    const auto word = core::StateWord::unpack(world.pool.load(at));
    if (state.state != BH_EXTENT_CARVING || word.state != BH_BLOCK_FREE) continue;
    const uint32_t second = 1 - state.process;
    world.pool.store(at, word.next(BH_BLOCK_RESERVED, second).pack());
    return true;
  }
  return false;
}

/// Two die at once: one carves an extent; the other had a hint from before and has just reserved a
/// block of that extent.
TEST(CrashPoints, ScavengeACutThatAnOldHintMet) {
  const auto prepare = [](World& world) {
    fill_some(world);
    world.may_come("cut", 33'000);
    const Act nothing = [](CrashHandle& handle) {
      handle.core().context().count(BH_COUNTER_PUTS, 0);
    };
    const TinyPool::Image image = world.pool.snapshot();
    bool met = false;
    for (uint64_t permille = 100; permille < 1000 && !met; permille += 20) {
      world.pool.restore(image);
      die_together(world,
                   {{.before = attach, .act = put_of("cut", 33'000), .at_permille = permille},
                    {.before = attach, .act = nothing}});
      met = reserve_in_a_cut(world);
    }
    EXPECT_TRUE(met);
  };
  run_scenario({.name = "scavenge a cut that an old hint met",
                .shape = kManyLocks,
                .prepare = prepare,
                .before = {},
                .act = attach,
                .any_room = true,
                .nexts = {Next::FRESH}});
}

TEST(CrashPoints, ScavengeAMove) {
  for (uint64_t permille = 20; permille < 1000; permille += 140) {
    run_scenario({.name = "scavenge a move",
                  .prepare =
                      [=](World& world) {
                        fill_with_holes(world);
                        world.may_come("new", 300'000);
                        die_together(world, {{.before = attach,
                                              .act = put_of("new", 300'000),
                                              .at_permille = permille}});
                      },
                  .before = {},
                  .act = attach,
                  .full = true,
                  .any_room = true,
                  .nexts = {Next::FRESH}});
  }
}

}  // namespace
}  // namespace bowhead::test
