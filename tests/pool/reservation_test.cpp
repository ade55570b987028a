// SPDX-License-Identifier: Apache-2.0
// Reservations: commit() and abort() end one exactly once, whatever they return; an ended handle, a
// copy of one, or an invalid number gets an error and changes nothing.
#include <atomic>
#include <cstring>
#include <thread>

#include "tests/support/pools.h"
#include "tests/support/tiny_pool.h"

namespace bowhead::test {
namespace {

constexpr size_t kBytes = 20'000;

Reservation reserve(Pool& pool, NamespaceId ns, std::string_view key) {
  auto reserved = pool.reserve(ns, key, kBytes);
  EXPECT_TRUE(reserved && !reserved->present) << key;
  return std::move(reserved).value();
}

void fill(const Reservation& room, uint64_t seed) {
  const auto value = bytes(room.length_bytes, seed);
  std::memcpy(room.data, value.data(), value.size());
}

TEST(Reservation, ACopyOfOneThatWasEndedIsClosed) {
  TestPool t(32 << 20);
  Reservation aborted = reserve(t.pool(), t.ns(), "aborted");
  Reservation copy = aborted;
  ASSERT_EQ(t.pool().abort(aborted), Status::OK);
  // The block that was freed last is reserved next.
  Reservation next = reserve(t.pool(), t.ns(), "next");
  ASSERT_EQ(next.offset, copy.offset);
  fill(next, 1);
  Reservation another = copy;
  EXPECT_EQ(t.pool().commit(copy), Status::CLOSED);
  EXPECT_EQ(t.pool().abort(another), Status::CLOSED);
  copy = next;
  EXPECT_EQ(t.pool().commit(next), Status::OK);
  EXPECT_EQ(t.pool().commit(copy), Status::CLOSED);
  EXPECT_EQ(t.get_status("aborted"), Status::NOT_FOUND);
  EXPECT_EQ(t.get("next"), bytes(kBytes, 1));
  EXPECT_TRUE(t.check_clean());
}

TEST(Reservation, OfAHandleThatWasClosedIsClosed) {
  TestPool t(32 << 20);
  Reservation old = reserve(t.pool(), t.ns(), "old");
  t.open();
  Reservation next = reserve(t.pool(), t.ns(), "next");
  fill(next, 1);
  EXPECT_EQ(t.pool().commit(old), Status::CLOSED);
  EXPECT_EQ(t.pool().commit(next), Status::OK);
  EXPECT_EQ(t.get_status("old"), Status::NOT_FOUND);
  EXPECT_EQ(t.get("next"), bytes(kBytes, 1));
}

TEST(Reservation, OfAnotherHandleIsClosedThereAndStaysOpenHere) {
  TestPool first(32 << 20), second(32 << 20);
  Reservation of_first = reserve(first.pool(), first.ns(), "k");
  Reservation of_second = reserve(second.pool(), second.ns(), "k");
  ASSERT_EQ(of_first.offset, of_second.offset);
  Reservation copy = of_first;
  EXPECT_EQ(second.pool().commit(copy), Status::CLOSED);
  fill(of_first, 1);
  EXPECT_EQ(first.pool().commit(of_first), Status::OK);
  EXPECT_EQ(first.get("k"), bytes(kBytes, 1));
  EXPECT_EQ(second.get_status("k"), Status::NOT_FOUND);
  EXPECT_EQ(second.pool().abort(of_second), Status::OK);
}

TEST(Reservation, OfManyCopiesOneIsCommitted) {
  TestPool t(32 << 20);
  for (int round = 0; round < 50; ++round) {
    const Reservation room = reserve(t.pool(), t.ns(), "k" + std::to_string(round));
    fill(room, 1);
    std::atomic<int> committed{0}, closed{0};
    std::vector<std::thread> threads;
    for (int i = 0; i < 3; ++i) {
      threads.emplace_back([&, copy = room]() mutable {
        const Status status = t.pool().commit(copy);
        committed += status == Status::OK;
        closed += status == Status::CLOSED;
      });
    }
    for (std::thread& thread : threads) thread.join();
    EXPECT_EQ(committed, 1);
    EXPECT_EQ(closed, 2);
  }
  EXPECT_TRUE(t.check_clean());
}

/// A commit that fails frees the block, and another attempt reports that it has ended.
void expect_ended(core::Core<core::NativeAccess>& core, Reservation& room, Status status) {
  const uint64_t slot = core.context().layout.slot_of(room.offset);
  Reservation copy = room;
  EXPECT_EQ(core.writing.commit(room, {}), status);
  EXPECT_EQ(room.data, nullptr);
  EXPECT_EQ(core.allocator().word(slot).state, uint32_t{BH_BLOCK_FREE});
  EXPECT_EQ(core.writing.commit(room, {}), Status::CLOSED);
  EXPECT_EQ(core.writing.abort(copy), Status::CLOSED);
}

TEST(Reservation, IsEndedByACommitThatAnswersBusy) {
  const TinyPool tiny;
  NativeHandle handle(tiny), other(tiny);
  ASSERT_TRUE(handle.attach() && other.attach());
  auto room = handle.core().writing.reserve({kNamespace, "k"}, kBytes);
  ASSERT_TRUE(room);
  const Hash128 hash = core::Key(kNamespace, "k").hash;
  uint32_t holder = 0;
  ASSERT_TRUE(other.core().index().try_lock(hash, &holder));
  expect_ended(handle.core(), *room, Status::BUSY);
  other.core().index().unlock(hash);
  EXPECT_FALSE(handle.core().lookup.locate({kNamespace, "k"}));
  other.detach();
  handle.detach();
}

TEST(Reservation, IsEndedByACommitThatFindsTheIndexFull) {
  const TinyPool tiny({.min_block_bytes = 4096, .index_bucket_count = 3});
  NativeHandle handle(tiny);
  ASSERT_TRUE(handle.attach());
  auto& core = handle.core();
  for (int i = 0;; ++i) {
    const std::string key = "k" + std::to_string(i);
    auto room = core.writing.reserve({kNamespace, key}, 100);
    ASSERT_TRUE(room) << "the pool is full before its index is";
    Reservation probe = *room;
    if (core.writing.commit(*room, {}) == Status::OK) continue;
    EXPECT_EQ(core.writing.abort(probe), Status::CLOSED);
    EXPECT_EQ(put(core, key, bytes(100, 1)), Status::INDEX_FULL);
    room = core.writing.reserve({kNamespace, key}, 100);
    ASSERT_TRUE(room);
    expect_ended(core, *room, Status::INDEX_FULL);
    break;
  }
  handle.detach();
}

}  // namespace
}  // namespace bowhead::test
