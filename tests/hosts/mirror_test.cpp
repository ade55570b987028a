// SPDX-License-Identifier: Apache-2.0
// Batches of look-ups over hosts, by the mirror of their indexes: what they find, and how many
// lines of another host's index they load.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/support/counted_hosts.h"

namespace bowhead::test {
namespace {

constexpr uint64_t kSpace = 7;  ///< the core takes any number

PoolInfo::Host host_info(CountedHost& host) {
  PoolInfo info;
  host.core().inspection.fill_info(info);
  return info.hosts[0];
}

class MirrorOfAHost : public testing::Test {
 protected:
  static constexpr uint32_t kHosts = 3;

  std::string key(uint32_t i) const { return "key " + std::to_string(i); }
  void put(CountedHost& host, uint32_t i) {
    const std::vector<std::byte> value(64, std::byte{1});
    const ConstSpan in[] = {{value.data(), value.size()}};
    ASSERT_EQ(host.core().writing.put(core::Key(kSpace, key(i)), in), Status::OK);
  }
  /// The writer logs so many words: one block, again and again, so that the pool does not fill.
  void log(uint64_t words) {
    for (uint64_t i = 0; i < words; ++i) {
      put(writer_, 0);
      ASSERT_EQ(writer_.core().writing.remove(core::Key(kSpace, key(0))), Status::OK);
    }
  }
  /// Which of the keys [first, first + count) a batch of the reader finds, as text of 0 and 1.
  std::string batch(uint32_t first, uint32_t count) {
    std::vector<std::string> texts;
    for (uint32_t i = first; i < first + count; ++i) texts.push_back(key(i));
    const std::vector<std::string_view> keys(texts.begin(), texts.end());
    std::vector<uint8_t> present(count);
    reader_.core().lookup.exists(kSpace, keys, present.data());
    std::string found;
    for (const uint8_t one : present) found += one != 0 ? '1' : '0';
    return found;
  }
  /// The reader has read the indexes of the others.
  void mirror() {
    batch(0, 1);  // only who asks has a mirror
    for (int i = 0; i < 4; ++i) reader_.work();
  }
  /// Lines of the writer's index that the reader has loaded since the last call.
  uint64_t loads() { return reader_.access().take_loads(); }

  void SetUp() override {
    const core::Layout& layout = pool_.layout();
    reader_.access().watch(layout.part(1, BH_PART_INDEX),
                           layout.geometry().parts[BH_PART_INDEX].bytes);
    reader_.work();
  }

  const SharedPool pool_{kHosts, {.evict_high_permille = 0}, kPatient};
  CountedHost reader_{pool_, 0};
  CountedHost writer_{pool_, 1};
};

TEST_F(MirrorOfAHost, SparesTheLinesOfAbsentKeys) {
  put(writer_, 0);
  EXPECT_EQ(batch(0, 100), "1" + std::string(99, '0'));
  EXPECT_GE(loads(), 100u) << "without a mirror, a line for each key";
  mirror();
  loads();
  EXPECT_EQ(batch(1000, 100), std::string(100, '0'));
  EXPECT_LE(loads(), 1u) << "a tag of 16 bits may be that of another key";
  EXPECT_EQ(batch(0, 1), "1");
  EXPECT_EQ(loads(), 1u) << "the entry";
}

TEST_F(MirrorOfAHost, FindsWhatWasPutJustBefore) {
  mirror();
  for (uint32_t i = 0; i < 50; ++i) {
    put(writer_, i);
    loads();
    EXPECT_EQ(batch(i, 2), "10") << i;
    EXPECT_LE(loads(), 4u) << "the line that changed, and the entry";
  }
  EXPECT_EQ(batch(0, 100), std::string(50, '1') + std::string(50, '0'));
}

TEST_F(MirrorOfAHost, BelievesNoTagOfARemovedBlock) {
  put(writer_, 0);
  mirror();
  ASSERT_EQ(writer_.core().writing.remove(core::Key(kSpace, key(0))), Status::OK);
  EXPECT_EQ(batch(0, 2), "00");
}

// More keys of one bucket than it has entries.
TEST_F(MirrorOfAHost, FindsWhatLiesFurtherOn) {
  constexpr size_t kBlocks = 3 * BH_INDEX_ENTRIES;
  std::vector<uint32_t> of_one_bucket;
  for (uint32_t i = 0; of_one_bucket.size() < 2 * kBlocks; ++i) {
    const core::Key one(kSpace, key(i));
    if (reader_.core().index().primary_bucket(one.hash) == 5) of_one_bucket.push_back(i);
  }
  for (size_t i = 0; i < kBlocks; ++i) put(writer_, of_one_bucket[i]);
  mirror();
  loads();
  for (size_t i = 0; i < 2 * kBlocks; ++i)
    EXPECT_EQ(batch(of_one_bucket[i], 1), i < kBlocks ? "1" : "0") << i;
  EXPECT_LE(loads(), kBlocks + 3) << "an entry each: the mirror has the further buckets too";
}

TEST_F(MirrorOfAHost, IsShownInTheInfo) {
  const auto shown = [&] { return host_info(reader_); };
  EXPECT_EQ(shown().mirrors, 0u);
  mirror();
  EXPECT_EQ(shown().mirrors, 1u);
  EXPECT_EQ(shown().mirrored_hosts, 1u);
  const uint64_t buckets = pool_.superblock().geometry.index_bucket_count;
  EXPECT_EQ(shown().mirror_bytes, (64 + 2 * kHosts) * buckets);
  EXPECT_EQ(shown().mirrors_refused, 0u);
}

TEST(MirrorWithoutMemory, LooksUpByTheIndexes) {
  const SharedPool pool(2, {.evict_high_permille = 0}, kPatient);
  CountedHost reader(pool, 0, /*mirror_bytes=*/1000), writer(pool, 1);
  const std::vector<std::byte> value(64, std::byte{1});
  const ConstSpan in[] = {{value.data(), value.size()}};
  ASSERT_EQ(writer.core().writing.put(core::Key(kSpace, "key"), in), Status::OK);
  const std::string_view keys[] = {"key", "no key"};
  uint8_t present[2];
  for (int i = 0; i < 4; ++i) {
    reader.work();
    EXPECT_EQ(reader.core().lookup.exists(kSpace, keys, present), 1u);
    EXPECT_EQ(present[0], 1);
  }
  const PoolInfo::Host shown = host_info(reader);
  EXPECT_EQ(shown.mirrors_refused, 1u);
  EXPECT_EQ(shown.mirrors + shown.mirror_bytes, 0u);
}

TEST_F(MirrorOfAHost, IsReadAnewWhenTheLogRanOver) {
  mirror();
  const uint64_t words = pool_.superblock().geometry.log_count;
  ASSERT_GE(words, 1024u);
  log(words + 10);
  put(writer_, 1);
  loads();
  EXPECT_EQ(batch(0, 100), "01" + std::string(98, '0'));
  EXPECT_GE(loads(), 100u) << "by its index";
  mirror();
  loads();
  EXPECT_EQ(batch(1000, 100), std::string(100, '0'));
  EXPECT_LE(loads(), 1u) << "mirrored again";
  EXPECT_EQ(batch(0, 2), "01");
}

// A batch reads some words of a log at most; it is right all the same, and the next one goes on.
TEST_F(MirrorOfAHost, IsKeptWhenABatchIsFarBehind) {
  mirror();
  const uint64_t words = pool_.superblock().geometry.log_count;
  log(words * 3 / 4);
  put(writer_, 1);
  loads();
  EXPECT_EQ(batch(0, 100), "01" + std::string(98, '0'));
  EXPECT_GE(loads(), 100u) << "by its index";
  EXPECT_EQ(batch(1000, 100), std::string(100, '0'));
  loads();
  EXPECT_EQ(batch(1000, 100), std::string(100, '0'));
  EXPECT_LE(loads(), 1u) << "mirrored, though its index was not read again";
  EXPECT_EQ(batch(0, 2), "01");
}

// Words come while its index is read.
TEST_F(MirrorOfAHost, IsMirroredWhileItStores) {
  batch(0, 1);
  for (uint32_t i = 0; i < 300; ++i) {
    put(writer_, i);
    if (i % 100 == 0) reader_.work();
  }
  reader_.work();
  loads();
  EXPECT_EQ(batch(1000, 100), std::string(100, '0'));
  EXPECT_LE(loads(), 1u);
  EXPECT_EQ(batch(250, 100), std::string(50, '1') + std::string(50, '0'));
}

// The duties follow the logs, and forget hosts that are gone.
TEST_F(MirrorOfAHost, IsFollowedBetweenBatches) {
  mirror();
  const uint64_t words = pool_.superblock().geometry.log_count;
  for (uint64_t round = 0; round < 4; ++round) {
    log(words / 2);
    reader_.work();
  }
  put(writer_, 1);
  loads();
  EXPECT_EQ(batch(1000, 100), std::string(100, '0'));
  EXPECT_LE(loads(), 3u) << "the log did not run over";
  EXPECT_EQ(batch(0, 2), "01");
}

TEST(LogSequence, GoesOnWhereLapsAreCountedAnew) {
  constexpr uint64_t kCount = 1024, kLaps = uint64_t{1} << 30;
  for (const uint64_t lap : {uint64_t{0}, uint64_t{1}, kLaps - 1, kLaps, kLaps + 1, 5 * kLaps}) {
    for (const uint64_t place : {uint64_t{0}, uint64_t{7}, kCount - 1}) {
      const uint64_t sequence = lap * kCount + place;
      const uint64_t word = core::log_word(sequence, kCount, 99);
      EXPECT_EQ(word & BH_LOG_ALL, 99u);
      for (const uint64_t behind : {uint64_t{0}, kCount, 1000 * kCount}) {
        const uint64_t near = sequence >= behind ? sequence - behind : place;
        EXPECT_EQ(core::log_sequence(word, place, kCount, near), sequence) << lap;
        EXPECT_EQ(core::log_sequence(word, place, kCount, sequence + behind), sequence) << lap;
      }
    }
  }
  EXPECT_EQ(core::log_sequence(0, 7, kCount, 7), 7u) << "never written";
}

}  // namespace
}  // namespace bowhead::test
