// SPDX-License-Identifier: Apache-2.0
// The index against a std::map: few buckets, so that they are full and probe sets overflow all the
// time.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <map>
#include <set>
#include <thread>

#include "base/random.h"
#include "tests/support/audit.h"
#include "tests/support/tiny_pool.h"

namespace bowhead::test {
namespace {

using core::Found;
using NativeIndex = core::Index<core::NativeAccess>;

struct HashLess {
  bool operator()(const Hash128& a, const Hash128& b) const {
    return std::pair(a.low, a.high) < std::pair(b.low, b.high);
  }
};

uint64_t payload_offset_of(NativeHandle& handle) {
  return handle.core().context().layout.geometry().payload_offset;
}

/// Its block lies in set 0.
bh_index_entry entry_of(uint64_t payload_offset, const Hash128& hash, uint64_t version) {
  bh_index_entry entry{};
  entry.key_hash[0] = hash.low;
  entry.key_hash[1] = hash.high;
  entry.block_offset = payload_offset;
  entry.stamp = version << 2;
  entry.namespace_id = kNamespace;
  return entry;
}
bool same(const bh_index_entry& a, const bh_index_entry& b) {
  return std::memcmp(&a, &b, offsetof(bh_index_entry, seal)) == 0;
}

/// Keys that crowd a few buckets; many of them have the same tag.
std::vector<Hash128> crowded_keys(Random& random, size_t count) {
  std::vector<Hash128> keys;
  for (size_t i = 0; i < count; ++i) {
    const uint64_t low = random.below(3) == 0 ? random.next() >> 4 : random.next();
    const uint64_t tag = random.below(4) == 0 ? random.below(3) : random.next() & 0xFFFFFFFFu;
    keys.push_back({low, (random.next() & ~uint64_t{0xFFFFFFFFu}) | tag});
  }
  return keys;
}

void lock(NativeIndex& index, const Hash128& hash) {
  uint32_t holder = 0;
  while (!index.try_lock(hash, &holder)) std::this_thread::yield();
}

void expect_sound(core::Core<core::NativeAccess>& core, size_t entries) {
  const IndexAudit found = audit_index(core.context(), /*exact=*/true);
  for (const std::string& text : found.faults) ADD_FAILURE() << text;
  EXPECT_EQ(found.entries.size(), entries);
}

/// A process that inserts, finds and erases keys that no other process uses.
class Actor {
 public:
  Actor(NativeIndex& index, uint64_t payload_offset, std::vector<Hash128> keys, uint64_t seed)
      : index_(index), payload_offset_(payload_offset), keys_(std::move(keys)), random_(seed) {}

  /// "" or the fault.
  std::string step() {
    const Hash128& hash = keys_[random_.below(keys_.size())];
    const auto in_model = model_.find(hash);
    const auto found = index_.find(0, hash, kNamespace);
    if (found.has_value() != (in_model != model_.end()))
      return fmt::format("a key is {} and should not be", found ? "there" : "gone");
    if (!found) return insert(hash);
    if (!same(found->entry, in_model->second)) return "an entry is not what was inserted";
    return random_.below(3) == 0 ? std::string() : erase(hash, *found);
  }
  std::string find_all() {
    for (const auto& [hash, entry] : model_) {
      const auto found = index_.find(0, hash, kNamespace);
      if (!found || !same(found->entry, entry)) return "a key is not found";
    }
    return {};
  }
  size_t size() const { return model_.size(); }
  uint64_t refused() const { return refused_; }

 private:
  std::string insert(const Hash128& hash) {
    const bh_index_entry entry = entry_of(payload_offset_, hash, ++version_);
    lock(index_, hash);
    const bool done = index_.insert(entry);
    index_.unlock(hash);
    if (done) model_[hash] = entry;
    refused_ += !done;
    return {};
  }
  std::string erase(const Hash128& hash, const Found& found) {
    lock(index_, hash);
    Found stale = found;
    stale.entry.stamp ^= 4;
    const bool erased_stale = index_.erase(stale);
    const bool erased = index_.erase(found);
    index_.unlock(hash);
    model_.erase(hash);
    if (erased_stale) return "a missing entry was erased";
    return erased ? "" : "an entry was not erased";
  }

  NativeIndex& index_;
  const uint64_t payload_offset_;
  const std::vector<Hash128> keys_;
  Random random_;
  std::map<Hash128, bh_index_entry, HashLess> model_;
  uint64_t version_ = 0;
  uint64_t refused_ = 0;
};

class IndexOfBuckets : public testing::TestWithParam<uint64_t> {};

TEST_P(IndexOfBuckets, AgreesWithAMap) {
  for (uint64_t seed = 0; seed < 6; ++seed) {
    SCOPED_TRACE(fmt::format("seed {}", seed));
    const TinyPool pool({.index_bucket_count = GetParam()});
    NativeHandle handle(pool);
    ASSERT_TRUE(handle.attach());
    Random random(seed);
    // From half full to twice the capacity.
    const size_t keys = GetParam() * BH_INDEX_ENTRIES * (1 + seed % 4) / 2 + 1;
    Actor actor(handle.core().index(), payload_offset_of(handle), crowded_keys(random, keys), seed);
    for (int i = 0; i < 20'000; ++i) {
      ASSERT_EQ(actor.step(), "") << i;
      if (i % 500 != 499) continue;
      expect_sound(handle.core(), actor.size());
      ASSERT_EQ(actor.find_all(), "") << i;
      if (HasFailure()) return;
    }
    EXPECT_TRUE(seed % 4 != 3 || actor.refused() > 0);
    handle.detach();
  }
}

INSTANTIATE_TEST_SUITE_P(Few, IndexOfBuckets, testing::Values(2, 3, 7, 16, 37));

/// Of any pool: otherwise a key may have fewer places than others, and be refused by an index that
/// is half empty.
TEST(Index, NoProbeSetMeetsABucketTwice) {
  using Probes = NativeIndex::Probes;
  Random random(3);
  for (uint64_t size_mib = 16; size_mib < 4096; size_mib += 1 + size_mib / 16) {
    for (const uint32_t hosts : {1u, 2u, 5u}) {
      const auto geometry = core::plan_geometry(
          {.total_bytes = size_mib << 20, .hosts = hosts, .min_block_bytes = 4096});
      ASSERT_TRUE(geometry) << geometry.error().message();
      const uint64_t buckets = geometry->index_bucket_count;
      for (uint64_t parts = 2; parts <= BH_INDEX_PROBES; ++parts) {
        // The step that returns to the first bucket soonest, if one does so after `parts`.
        const uint64_t step = buckets / parts;
        const auto high = static_cast<uint64_t>(
            (static_cast<unsigned __int128>(step - 1) << 64) / (buckets - 1) + 1);
        std::set<uint64_t> met;
        Probes probe({random.next(), high}, buckets);
        for (uint32_t n = 0; n < BH_INDEX_PROBES; ++n, probe.next()) met.insert(probe.bucket());
        ASSERT_EQ(met.size(), BH_INDEX_PROBES)
            << "step " << step << " in " << buckets << " buckets, " << size_mib << " MiB";
      }
    }
  }
}

// ---- many at once ----

constexpr uint64_t kBuckets =
    13;  // a prime above BH_INDEX_PROBES: no probe set meets a bucket twice
constexpr size_t kPermanent = 30, kKeysPerActor = 40, kActors = 4;

/// Keys that stay while others come and go around them; readers must never miss one.
std::vector<Hash128> put_permanent(NativeIndex& index, uint64_t payload_offset, Random& random) {
  auto keys = crowded_keys(random, kPermanent);
  for (size_t i = 0; i < keys.size(); ++i) {
    lock(index, keys[i]);
    EXPECT_TRUE(index.insert(entry_of(payload_offset, keys[i], 1000 + i)));
    index.unlock(keys[i]);
  }
  return keys;
}
std::string look_for(NativeIndex& index, uint64_t payload_offset,
                     const std::vector<Hash128>& keys) {
  for (size_t i = 0; i < keys.size(); ++i) {
    const auto found = index.find(0, keys[i], kNamespace);
    if (!found) return "a key that stays is not found";
    if (!same(found->entry, entry_of(payload_offset, keys[i], 1000 + i)))
      return "a key that stays is wrong";
  }
  return {};
}

TEST(Index, ThreadsWorkAroundEachOther) {
  const TinyPool pool({.index_bucket_count = kBuckets});
  NativeHandle handle(pool);
  ASSERT_TRUE(handle.attach());
  NativeIndex& index = handle.core().index();
  const uint64_t payload_offset = payload_offset_of(handle);
  Random random(1);
  // The crowd comes first, so that the keys that stay lie further on.
  Actor crowd(index, payload_offset, crowded_keys(random, 40), 9);
  for (int i = 0; i < 200; ++i) ASSERT_EQ(crowd.step(), "");
  const auto permanent = put_permanent(index, payload_offset, random);
  std::vector<Actor> actors;
  for (size_t i = 0; i < kActors; ++i)
    actors.emplace_back(index, payload_offset, crowded_keys(random, kKeysPerActor), i);
  std::vector<std::string> faults(kActors);
  std::vector<std::thread> threads;
  for (size_t a = 0; a < kActors; ++a) {
    threads.emplace_back([&, a] {
      for (int i = 0; i < 100'000 && faults[a].empty(); ++i) {
        faults[a] = actors[a].step();
        if (i % 8 == 0 && faults[a].empty()) faults[a] = look_for(index, payload_offset, permanent);
      }
    });
  }
  for (auto& thread : threads) thread.join();
  size_t entries = permanent.size() + crowd.size();
  for (size_t a = 0; a < kActors; ++a) {
    EXPECT_EQ(faults[a], "");
    EXPECT_EQ(actors[a].find_all(), "");
    entries += actors[a].size();
  }
  expect_sound(handle.core(), entries);
  handle.detach();
}

TEST(Index, ProcessesWorkAroundEachOther) {
  const TinyPool pool({.index_bucket_count = kBuckets});
  NativeHandle handle(pool);
  ASSERT_TRUE(handle.attach());
  Random random(2);
  Actor crowd(handle.core().index(), payload_offset_of(handle), crowded_keys(random, 40), 9);
  for (int i = 0; i < 200; ++i) ASSERT_EQ(crowd.step(), "");
  const auto permanent = put_permanent(handle.core().index(), payload_offset_of(handle), random);
  std::vector<pid_t> children;
  for (size_t a = 0; a < kActors; ++a) {
    const auto keys = crowded_keys(random, kKeysPerActor);
    const pid_t pid = fork();
    if (pid == 0) {
      NativeHandle own(pool);
      if (!own.attach()) _exit(2);
      Actor actor(own.core().index(), payload_offset_of(own), keys, a);
      for (int i = 0; i < 100'000; ++i) {
        std::string fault = actor.step();
        if (fault.empty()) fault = look_for(own.core().index(), payload_offset_of(own), permanent);
        if (!fault.empty()) fmt::print(stderr, "{}\n", fault);
        if (!fault.empty()) _exit(1);
      }
      _exit(actor.find_all().empty() ? 0 : 3);
    }
    children.push_back(pid);
  }
  for (const pid_t pid : children) {
    int status = 0;
    waitpid(pid, &status, 0);
    EXPECT_EQ(status, 0);
  }
  const size_t entries = audit_index(handle.core().context(), /*exact=*/true).entries.size();
  expect_sound(handle.core(), entries);
  EXPECT_EQ(look_for(handle.core().index(), payload_offset_of(handle), permanent), "");
  handle.core().recovery.scavenge_dead();
  handle.detach();
}

}  // namespace
}  // namespace bowhead::test
