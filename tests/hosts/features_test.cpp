// SPDX-License-Identifier: Apache-2.0
// What a pool of another version of Bowhead may be used for: feature masks and reserved space of
// the superblock, labels of media, places kept in the regions, and what live hosts say they know.
#include "base/checksum.h"
#include "tests/support/hosts.h"

namespace bowhead::test {
namespace {

constexpr SharingTimes kPatient{
    .heartbeat_ms = 20, .dead_ms = 600'000, .grace_ms = 100, .settle_ms = 5, .reclaim_ms = 0};

class Features : public testing::Test {
 protected:
  /// Changes the superblock, and seals the copies (a bit each).
  void change(const std::function<void(bh_superblock&)>& change_it, uint32_t copies = 3) {
    for (uint32_t copy = 0; copy < BH_SUPERBLOCK_COPIES; ++copy) {
      if ((copies >> copy & 1) == 0) continue;
      const uint64_t at = uint64_t{copy} * BH_SUPERBLOCK_COPY_OFFSET;
      auto superblock = pool_.read<bh_superblock>(at);
      change_it(superblock);
      core::seal_superblock(superblock, copy);
      std::memcpy(pool_.at(at), &superblock, sizeof superblock);
    }
  }
  std::vector<std::byte> image() const {
    return {pool_.at(0), pool_.at(pool_.superblock().geometry.total_bytes)};
  }
  Result<Pool> open() const { return Pool::open(pool_.locator(), {.host = 0}); }
  Result<Pool> observe() const { return Pool::open(pool_.locator(), {.observe = true}); }
  uint64_t known_at(uint32_t host) const {
    return pool_.layout().part(host, BH_PART_HEARTBEAT) + offsetof(bh_host_heartbeat, known);
  }
  void store(uint64_t offset, uint64_t value) const {
    std::memcpy(pool_.at(offset), &value, sizeof value);
  }
  /// The error has this status, and its sentence names the pool and holds `part`.
  template <class T>
  void expect_refused(const Result<T>& result, Status status, const std::string& part) const {
    ASSERT_FALSE(result) << part;
    const std::string message = result.error().message();
    EXPECT_EQ(status_name(result.status()), std::string(status_name(status))) << message;
    EXPECT_NE(message.find(part), std::string::npos) << message;
    EXPECT_NE(message.find(pool_.locator()), std::string::npos) << message;
  }
  /// Everything that stores is refused, and nothing changes.
  void expect_not_written(Status status, const std::string& part) const {
    const auto before = image();
    expect_refused(open(), status, part);
    expect_refused(Pool::open(pool_.locator()), status, part);
    expect_refused(Pool::repair(pool_.locator(), {.take_over = true}), status, part);
    expect_refused(Pool::destroy(pool_.locator(), /*force=*/false), status, part);
    EXPECT_TRUE(image() == before);
  }
  void fill() {
    Host host = pool_.open(0);
    ASSERT_EQ(host.put("key"), Status::OK);
  }

  SharedPool pool_{2, {.evict_high_permille = 0}, kPatient};
};

TEST_F(Features, UnknownCompatIsIgnored) {
  fill();
  change([](auto& sb) { sb.compat = 1ull << 40; });
  Host host = pool_.open(0);
  EXPECT_EQ(host.get("key"), Status::OK);
  EXPECT_EQ(host.put("another"), Status::OK);
  EXPECT_EQ(host.pool().info()->compat, 1ull << 40);
}

TEST_F(Features, UnknownIncompatIsRefusedByItsNumber) {
  fill();
  change([](auto& sb) { sb.incompat = 1u << 5 | 1u << 17; });
  expect_not_written(Status::VERSION_UNKNOWN, "(incompat, bit 5, 17): upgrade");
  expect_refused(observe(), Status::VERSION_UNKNOWN, "(incompat, bit 5, 17): upgrade");
}

TEST_F(Features, UnknownRoCompatCanBeReadOnly) {
  fill();
  for (const uint32_t copies : {1u, 2u, 3u}) {  // one copy alone: an upgrade was interrupted
    change([](auto& sb) { sb.ro_compat = 0; });
    change([](auto& sb) { sb.ro_compat = 1u << 9; }, copies);
    expect_not_written(Status::VERSION_UNKNOWN, "(ro_compat, bit 9): upgrade");
    const auto before = image();
    auto observer = Host::observe(pool_.locator());
    ASSERT_TRUE(observer) << observer.error().message();
    EXPECT_EQ(observer->get("key"), Status::OK);
    EXPECT_EQ(observer->put("another"), Status::READ_ONLY);
    const auto info = observer->pool().info();
    ASSERT_TRUE(info);
    EXPECT_EQ(info->ro_compat, 1u << 9);
    EXPECT_FALSE(info->second_superblock_used) << "both copies are whole";
    EXPECT_EQ(info->blocks, 1);
    const auto report = observer->pool().check(/*payload=*/true);
    ASSERT_TRUE(report);
    EXPECT_EQ(report->blocks_checked, 1u);
    EXPECT_TRUE(image() == before);
  }
}

TEST_F(Features, ReservedSpaceIsZeroUnlessANewerFeatureMayUseIt) {
  using Change = void (*)(bh_superblock&);
  for (const Change set : {Change{[](auto& sb) { sb.media_count = 1; }},
                           Change{[](auto& sb) { sb.joined_as[0] = 'x'; }},
                           Change{[](auto& sb) { sb.reserved[0] = 1; }},
                           Change{[](auto& sb) { sb.reserved[sizeof sb.reserved - 1] = 0x80; }}}) {
    change(set);
    expect_not_written(Status::DAMAGED, "not written by this program");
    expect_refused(observe(), Status::DAMAGED, "not written by this program");
    change([](auto& sb) { sb.compat = 2; });
    EXPECT_TRUE(open());
    change([](auto& sb) {
      sb.compat = sb.media_count = 0;
      sb.joined_as[0] = 0;
      std::memset(sb.reserved, 0, sizeof sb.reserved);
    });
    EXPECT_TRUE(open());
  }
  // No compatible feature changes the geometry.
  change([](auto& sb) {
    sb.compat = 2;
    sb.geometry.parts[BH_PART_COUNT] = {4096, 64};
  });
  expect_not_written(Status::DAMAGED, "not written by this program");
}

// ---- media ----

bh_medium_label label_of(const bh_superblock& superblock) {
  bh_medium_label label{};
  label.magic = label.magic_end = BH_MEDIUM_MAGIC;
  label.version = BH_FORMAT_VERSION;
  label.medium = 3;
  label.pool_id[0] = superblock.pool_id[0];
  label.pool_id[1] = superblock.pool_id[1];
  label.pool_offset = superblock.geometry.total_bytes;
  label.bytes = 16 << 20;
  label.first_extent = superblock.geometry.extent_count;
  label.extent_count = 7;
  return label;
}

class OtherMedium : public Features {
 protected:
  OtherMedium() {
    auto media = create_media(locator_, {.size_bytes = 16 << 20});
    EXPECT_TRUE(media) << media.error().message();
    media_ = std::move(media).value();
    for (const uint32_t copy : {0u, 1u}) store_label(copy, label_of(pool_.superblock()));
  }
  ~OtherMedium() override { (void)remove_media(locator_); }
  void store_label(uint32_t copy, bh_medium_label label) {
    label.copy = copy;
    label.checksum = hash64(&label, offsetof(bh_medium_label, checksum));
    std::memcpy(copy_at(copy), &label, sizeof label);
  }
  std::byte* copy_at(uint32_t copy) {
    return media_->base() + uint64_t{copy} * BH_SUPERBLOCK_COPY_OFFSET;
  }

  std::string locator_ = unique_locator();
  std::unique_ptr<Media> media_;
};

TEST_F(OtherMedium, IsNotAPoolAndSaysOfWhichPoolItIs) {
  const std::string id = Pool::open(pool_.locator(), {.observe = true})->info()->pool_id;
  const std::string part = locator_ + ": this is medium 3 of pool " + id;
  for (const uint32_t damaged : {0u, 1u, 2u}) {  // no copy, the second, the first
    if (damaged != 0) *copy_at(2 - damaged) ^= std::byte{1};
    for (const bool look : {false, true}) {
      const auto opened = Pool::open(locator_, {.observe = look});
      ASSERT_FALSE(opened);
      EXPECT_EQ(opened.status(), Status::NOT_A_POOL);
      EXPECT_NE(opened.error().message().find(part), std::string::npos) << opened.error().message();
    }
    EXPECT_EQ(Pool::destroy(locator_, /*force=*/false).status(), Status::NOT_A_POOL);
    if (damaged != 0) store_label(2 - damaged, label_of(pool_.superblock()));
  }
}

TEST_F(OtherMedium, IsDamagedIfBothCopiesAre) {
  auto wrong = label_of(pool_.superblock());
  wrong.medium = BH_MEDIA_MAX;  // sealed, and nonsense
  store_label(0, wrong);
  copy_at(1)[100] ^= std::byte{1};
  const auto opened = Pool::open(locator_);
  ASSERT_FALSE(opened);
  EXPECT_EQ(opened.status(), Status::DAMAGED);
  EXPECT_NE(opened.error().message().find("both copies of its label"), std::string::npos)
      << opened.error().message();
}

TEST_F(Features, UnusedPartsAreZeroAndClearedByTheNextLife) {
  { const Host host = pool_.open(0); }
  const auto& parts = pool_.superblock().geometry.parts;
  const uint64_t media = pool_.layout().word(0, BH_PART_MEDIA, BH_MEDIA_MAX - 1);
  const uint64_t rings = pool_.layout().word(0, BH_PART_RINGS, parts[BH_PART_RINGS].bytes / 8 - 1);
  for (const uint64_t at : {media, rings}) {
    store(at, 1);
    const auto report = observe()->check(/*payload=*/false);
    ASSERT_TRUE(report);
    ASSERT_EQ(report->findings.size(), 1u);
    EXPECT_EQ(report->findings[0].offset, at);
    EXPECT_FALSE(report->findings[0].data_lost);
    // They may have a meaning that this version does not know.
    change([](auto& sb) { sb.compat = 1; });
    EXPECT_TRUE(observe()->check(/*payload=*/false)->findings.empty());
    EXPECT_TRUE(Pool::repair(pool_.locator()));
    EXPECT_EQ(pool_.read<uint64_t>(at), 1u);
    change([](auto& sb) { sb.compat = 0; });
    EXPECT_TRUE(Pool::repair(pool_.locator()));
    EXPECT_EQ(pool_.read<uint64_t>(at), 0u);
    EXPECT_TRUE(observe()->check(/*payload=*/false)->findings.empty());
  }
}

// ---- what hosts know ----

constexpr uint64_t kKnownFeatures =
    BH_FEATURES_COMPAT | BH_FEATURES_INCOMPAT | BH_FEATURES_RO_COMPAT;

TEST_F(Features, LiveHostsSayWhatTheyKnow) {
  const Host host = pool_.open(1);
  const auto info = observe()->info();
  ASSERT_TRUE(info);
  EXPECT_EQ(info->hosts[1].format_version, BH_FORMAT_VERSION);
  EXPECT_EQ(info->hosts[1].features, kKnownFeatures);
  EXPECT_EQ(info->hosts[0].format_version, 0u);
}

/// A life is as old as the oldest of its processes.
TEST_F(Features, AnOlderProcessLowersWhatItsHostKnows) {
  constexpr uint64_t kVersion3 = uint64_t{3} << BH_KNOWN_VERSION_SHIFT;
  {
    HostProcess newer(pool_, 0, {});
    store(known_at(0), kVersion3 | kKnownFeatures | 1 << 20);  // as of a later version
    const Host host = pool_.open(0);
    EXPECT_EQ(observe()->info()->hosts[0].format_version, BH_FORMAT_VERSION);
    EXPECT_EQ(observe()->info()->hosts[0].features, kKnownFeatures);
  }
  {
    HostProcess older(pool_, 0, {});
    store(known_at(0), uint64_t{1} << BH_KNOWN_VERSION_SHIFT);
    const Host host = pool_.open(0);
    EXPECT_EQ(observe()->info()->hosts[0].format_version, 1u);
    EXPECT_EQ(observe()->info()->hosts[0].features, 0u);
  }
  // No process of before is left: the life goes on, and knows what this one knows.
  const Host host = pool_.open(0);
  EXPECT_EQ(observe()->info()->hosts[0].format_version, BH_FORMAT_VERSION);
  EXPECT_EQ(pool_.slot(0)->incarnation, 1u);
}

// ---- the maximum size ----

TEST(MaximumSize, KeepsWordsForExtentsToCome) {
  SharedPool pool(2, {.max_bytes = 1 << 30}, kPatient);
  const auto& g = pool.superblock().geometry;
  EXPECT_EQ(g.max_bytes, 1u << 30);
  EXPECT_GE(g.extents_max, g.extent_count + (g.max_bytes - g.total_bytes) / g.extent_bytes);
  EXPECT_EQ(g.parts[BH_PART_OWN].bytes, 8 * g.extents_max);
  Host host = pool.open(0);
  EXPECT_EQ(host.put("key"), Status::OK);
  EXPECT_EQ(host.get("key"), Status::OK);
  const auto info = host.pool().info();
  EXPECT_EQ(info->max_bytes, 1u << 30);
  EXPECT_EQ(info->extent_count, g.extent_count);
  EXPECT_TRUE(host.pool().check(/*payload=*/true)->findings.empty());
}

TEST(MaximumSize, IsRefusedWithTheNumbersThatDoNotFit) {
  const auto refusal = [](const CreateOptions& options) {
    const auto created = Pool::create(unique_locator(), options);
    EXPECT_EQ(created.status(), Status::INVALID_ARGUMENT);
    return created ? std::string{} : created.error().message();
  };
  const std::string less = refusal({.size_bytes = 64 << 20, .max_bytes = 32 << 20});
  EXPECT_NE(less.find("33554432 bytes is less than the size of 67108864 bytes"), std::string::npos)
      << less;
  // 64 hosts keep 5 KiB for each extent of 2 MiB.
  const uint64_t size = uint64_t{1} << 30, max = 64 * size;
  const std::string much = refusal({.size_bytes = size, .hosts = 64, .max_bytes = max});
  EXPECT_NE(much.find(fmt::format("a maximum size of {} bytes takes {} bytes of metadata in a pool "
                                  "of {} bytes",
                                  max, (max - size) / (2 << 20) * 80 * 64, size)),
            std::string::npos)
      << much;
  const std::string beyond = refusal({.size_bytes = size, .max_bytes = uint64_t{1} << 60});
  EXPECT_NE(beyond.find("256 TiB at most"), std::string::npos) << beyond;
}

}  // namespace
}  // namespace bowhead::test
