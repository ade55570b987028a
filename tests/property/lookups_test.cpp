// SPDX-License-Identifier: Apache-2.0
// How often each operation looks a key up. A look-up costs a cache line from memory or several, and
// must not be paid for twice without need. It begins with the directory line of the key's first
// bucket: the access policy of this test counts the loads of it as a whole. A put that stores loads
// it once more, from a cache, to ask for the entry that it will write.
#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "tests/support/tiny_pool.h"

namespace bowhead::test {
namespace {

using core::Content;
using core::Key;

constexpr uint64_t kExpects = 1;  ///< loads by which a put asks for its entry

class CountingAccess : public core::NativeAccess {
 public:
  using NativeAccess::NativeAccess;
  core::Line load_line(uint64_t offset) const {
    loads_ += offset == watched_;
    return NativeAccess::load_line(offset);
  }
  void watch(uint64_t line) { watched_ = line; }
  uint64_t take_loads() { return std::exchange(loads_, 0); }

 private:
  uint64_t watched_ = UINT64_MAX;
  mutable uint64_t loads_ = 0;
};

class Lookups : public testing::Test {
 protected:
  Lookups() {
    EXPECT_TRUE(handle_.attach());
    handle_.access().watch(core().index().first_line(0, key_.hash));
  }
  ~Lookups() override { handle_.detach(); }

  core::Core<CountingAccess>& core() { return handle_.core(); }
  uint64_t looks() { return handle_.access().take_loads(); }

  /// Stores the key, coded, and forgets the look-ups of that.
  void store_coded() {
    ASSERT_EQ(core().writing.put(key_, doubled(value_, half_)), Status::OK);
    looks();
  }

  const TinyPool pool_;
  Handle<CountingAccess> handle_{pool_};
  const Key key_{kNamespace, "a key"};
  const std::vector<std::byte> value_{20'000, std::byte{7}};  ///< two equal halves
  const ConstSpan raw_[1] = {{value_.data(), value_.size()}};
  ConstSpan half_{};  ///< what the coded content refers to
};

TEST_F(Lookups, AreCountedOneByOne) {
  EXPECT_EQ(looks(), 0u);
  EXPECT_FALSE(core().lookup.locate(key_));
  EXPECT_EQ(looks(), 1u);
  store_coded();
  EXPECT_TRUE(core().lookup.locate(key_));
  EXPECT_TRUE(core().lookup.locate(key_));
  EXPECT_EQ(looks(), 2u);
}

TEST_F(Lookups, APutLooksOnceBeforeItStoresAndOnceUnderTheLockOfItsKey) {
  ASSERT_EQ(core().writing.put(key_, raw_), Status::OK);
  EXPECT_EQ(looks(), 2u + kExpects);
  ASSERT_EQ(core().writing.put(key_, raw_), Status::OK);
  EXPECT_EQ(looks(), 1u) << "the key is there";
}

TEST_F(Lookups, ACompressedPutLooksNoMoreOftenAndEncodesInBetween) {
  int encoded = 0;
  const auto encode = [&] {
    ++encoded;
    EXPECT_EQ(looks(), 1u) << "before it encodes";
    return doubled(value_, half_);
  };
  const Content raw = Content::raw(raw_);
  ASSERT_EQ(core().writing.put_made(key_, raw, encode), Status::OK);
  EXPECT_EQ(looks(), 1u + kExpects) << "under the lock";
  EXPECT_EQ(encoded, 1);
  EXPECT_EQ(get(core(), key_.bytes), value_);
  looks();
  ASSERT_EQ(core().writing.put_made(key_, raw, encode), Status::OK);
  EXPECT_EQ(looks(), 1u) << "the key is there";
  EXPECT_EQ(encoded, 1) << "a key that is there needs no frame";
}

TEST_F(Lookups, AReservationLooksAsOftenAsAPut) {
  auto reservation = core().writing.reserve(key_, value_.size());
  ASSERT_TRUE(reservation);
  EXPECT_EQ(looks(), 1u);
  std::memcpy(reservation->data, value_.data(), value_.size());
  ASSERT_EQ(core().writing.commit(*reservation, PayloadSum{}), Status::OK);
  EXPECT_EQ(looks(), 1u) << "under the lock";
}

TEST_F(Lookups, ARestoreOfACompressedBlockIsOne) {
  store_coded();
  auto lease = core().reading.acquire(key_, /*ttl_ms=*/60'000, LeaseOf::STORED);
  ASSERT_TRUE(lease);
  std::vector<std::byte> stored(lease->stored_bytes);
  EXPECT_EQ(core().reading.copy_leased(*lease, {stored.data(), stored.size()}), Status::OK);
  EXPECT_EQ(core().reading.release(*lease), Status::OK);
  EXPECT_EQ(looks(), 1u);
  EXPECT_EQ(stored, std::vector<std::byte>(value_.begin(), value_.begin() + 10'000));
}

TEST_F(Lookups, AGetOfACompressedBlockIsOne) {
  store_coded();
  EXPECT_EQ(get(core(), key_.bytes), value_);
  EXPECT_EQ(looks(), 1u);
}

TEST_F(Lookups, AMissIsOne) {
  EXPECT_FALSE(core().reading.acquire(key_, /*ttl_ms=*/60'000, LeaseOf::STORED));
  EXPECT_EQ(looks(), 1u);
  EXPECT_TRUE(get(core(), key_.bytes).empty());
  EXPECT_EQ(looks(), 1u);
}

TEST_F(Lookups, AnAbsentKeyOfABatchIsOneEvenBesideAKeyThatMayLieFurtherOn) {
  const auto further = [&](std::string_view key) {
    const uint64_t line = core().index().first_line(0, Key(kNamespace, key).hash);
    return pool_.load(line + 8 * BH_INDEX_ENTRIES) != 0;
  };
  std::string crowded;  // an absent key whose bucket has entries further on
  for (int i = 0; crowded.empty(); ++i) {
    ASSERT_LT(i, 80);
    ASSERT_EQ(put(core(), std::to_string(i), value_), Status::OK);
    for (int absent = 0; absent < 100 && crowded.empty(); ++absent) {
      const std::string key = "absent " + std::to_string(absent);
      if (further(key)) crowded = key;
    }
  }
  std::string alone;
  for (int i = 0; alone.empty() || further(alone); ++i) alone = "alone " + std::to_string(i);
  handle_.access().watch(core().index().first_line(0, Key(kNamespace, alone).hash));
  looks();
  const std::string_view keys[] = {alone, crowded};
  uint8_t present[2];
  EXPECT_EQ(core().lookup.exists(kNamespace, keys, present), 0u);
  EXPECT_EQ(looks(), 1u);
}

}  // namespace
}  // namespace bowhead::test
