// SPDX-License-Identifier: Apache-2.0
// Joined media: the contract, how stripes are spread, and media that do not belong together.
#include <bowhead/format/medium.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <fstream>
#include <numeric>
#include <thread>

#include "pool/media/label.h"
#include "pool/media/stripes.h"
#include "tests/media/contract.h"

namespace bowhead {
namespace {

constexpr uint64_t kMiB = 1 << 20;
constexpr uint64_t kGrain = kMediaGrainBytes;

std::string shm_two(const std::string& tag) { return "shm:" + tag + "-a+shm:" + tag + "-b"; }
std::string shm_three(const std::string& tag) { return shm_two(tag) + "+shm:" + tag + "-c"; }

INSTANTIATE_TEST_SUITE_P(
    Joined, MediaContract,
    testing::Values(MediaUnderTest{.name = "two", .locator = shm_two, .least_bytes = 2 * kGrain},
                    MediaUnderTest{
                        .name = "three", .locator = shm_three, .least_bytes = 3 * kGrain}),
    [](const auto& media) { return media.param.name; });

// ---- stripes ----

using Rooms = std::vector<std::optional<uint64_t>>;

/// Every byte of the range lies on one medium, and every byte that a medium has is of the range.
void expect_whole(const Stripes& stripes, size_t media) {
  uint64_t end = 0;
  std::vector<uint64_t> used(media);
  stripes.for_each([&](const Piece& piece) {
    EXPECT_EQ(piece.offset, end);
    EXPECT_EQ(piece.at, used[piece.medium]);
    end += piece.bytes;
    used[piece.medium] += piece.bytes;
  });
  EXPECT_EQ(end, stripes.bytes());
  for (size_t i = 0; i < media; ++i) EXPECT_EQ(used[i], stripes.bytes_on(i));
}

TEST(Stripes, AreSpreadEvenlyAndNoMediumGetsMoreThanItHasRoomFor) {
  const auto counts = [](uint64_t stripes, const Rooms& rooms) {
    std::vector<uint64_t> found;
    const auto spread = Stripes::spread(stripes * kGrain, rooms);
    if (!spread) return found;
    expect_whole(*spread, rooms.size());
    for (size_t i = 0; i < rooms.size(); ++i)
      found.push_back(spread->bytes_on(i) / spread->stripe_bytes());
    return found;
  };
  using Counts = std::vector<uint64_t>;
  constexpr std::optional<uint64_t> kAny;
  EXPECT_EQ(counts(4, {kAny, kAny}), (Counts{2, 2}));
  EXPECT_EQ(counts(5, {kAny, kAny}), (Counts{3, 2}));
  EXPECT_EQ(counts(10, {kAny, 2 * kGrain, kAny}), (Counts{4, 2, 4}));
  EXPECT_EQ(counts(10, {7 * kGrain, 3 * kGrain}), (Counts{7, 3}));
  EXPECT_EQ(counts(10, {8 * kGrain, 9 * kGrain + 4096}), (Counts{5, 5}));
  EXPECT_EQ(counts(11, {7 * kGrain, 3 * kGrain}), Counts{}) << "more than there is";
  EXPECT_EQ(counts(2, {kAny, kAny, kAny}), Counts{}) << "fewer stripes than media";
  EXPECT_EQ(counts(9, {kAny, kGrain - 1}), Counts{}) << "a medium without room";
}

TEST(Stripes, TakeTurnsUntilOneMediumIsFull) {
  const Stripes stripes(kGrain, {4, 1, 2});
  std::string order;
  stripes.for_each([&](const Piece& piece) {
    for (uint64_t i = 0; i < piece.bytes; i += kGrain)
      order += static_cast<char>('0' + piece.medium);
  });
  EXPECT_EQ(order, "0120200");
  expect_whole(stripes, 3);
  const Piece piece = stripes.piece_at(4 * kGrain + 5);
  EXPECT_EQ(piece.medium, 2u);
  EXPECT_EQ(piece.at, kGrain + 5);
  EXPECT_EQ(piece.bytes, kGrain - 5);
}

TEST(Stripes, GrowWithTheRangeSoThatAProcessCanMapThem) {
  for (const uint64_t gib : {1, 32, 33, 1024, 256 * 1024}) {
    const auto stripes = Stripes::spread(gib << 30, {std::nullopt, std::nullopt, std::nullopt});
    ASSERT_TRUE(stripes);
    uint64_t pieces = 0;
    stripes->for_each([&](const Piece&) { ++pieces; });
    EXPECT_LE(pieces, kStripesMax) << gib;
    EXPECT_EQ(stripes->stripe_bytes() == kGrain, gib <= 32);
    EXPECT_GE(stripes->bytes(), gib << 30);
    EXPECT_LT(stripes->bytes(), (gib << 30) + stripes->stripe_bytes());
  }
}

// ---- joined media ----

class JoinedMedia : public testing::Test {
 protected:
  static std::string name(char letter) { return tag() + "-" + letter; }
  static std::string one(char letter) { return "shm:" + name(letter); }
  static std::string join(const std::string& letters) {
    std::string locator;
    for (const char letter : letters) locator += (locator.empty() ? "" : "+") + one(letter);
    return locator;
  }
  static std::string path(char letter) { return "/dev/shm/bowhead-" + name(letter); }
  std::unique_ptr<Media> create(const std::string& letters, uint64_t bytes, uint64_t id = 1) {
    auto media = create_media(join(letters), {.size_bytes = bytes, .pool_id = {id, 2}});
    EXPECT_TRUE(media) << media.error().message();
    return media ? *std::move(media) : nullptr;
  }
  static void expect_refused(const std::string& letters, Status status, const std::string& part) {
    const auto media = open_media(join(letters));
    ASSERT_FALSE(media) << letters;
    EXPECT_EQ(media.status(), status) << media.error().message();
    EXPECT_NE(media.error().message().find(part), std::string::npos) << media.error().message();
  }
  ~JoinedMedia() override {
    for (const char letter : std::string("abcd")) unlink(path(letter).c_str());
  }

 private:
  static const std::string& tag() {
    static const std::string text = fresh_tag();
    return text;
  }
};

TEST_F(JoinedMedia, StripesLieWhereTheFormatSays) {
  const auto media = create("abc", 7 * kGrain);
  ASSERT_NE(media, nullptr);
  for (uint64_t i = 0; i < 7; ++i)
    std::memset(media->base() + i * kGrain, static_cast<int>('A' + i), kGrain);
  const auto letter_at = [](char of, uint64_t offset) {
    std::ifstream file(path(of), std::ios::binary);
    file.seekg(static_cast<std::streamoff>(offset));
    return static_cast<char>(file.get());
  };
  EXPECT_EQ(letter_at('a', 0), 'A');
  EXPECT_EQ(letter_at('b', BH_LABEL_BYTES), 'B');
  EXPECT_EQ(letter_at('c', BH_LABEL_BYTES), 'C');
  EXPECT_EQ(letter_at('a', kGrain), 'D');
  EXPECT_EQ(letter_at('c', BH_LABEL_BYTES + 2 * kGrain - 1), 'F');
  EXPECT_EQ(letter_at('a', 3 * kGrain - 1), 'G');
  EXPECT_EQ(media->traits().kind, "shm");
  EXPECT_NE(media->traits().description.find(path('b')), std::string::npos);
  EXPECT_NE(media->traits().description.find("in stripes of 2 MiB"), std::string::npos);
}

TEST_F(JoinedMedia, OnlyThoseOfOnePoolInTheirOrderAreOpened) {
  ASSERT_NE(create("abc", 6 * kGrain), nullptr);
  ASSERT_NE(create("d", 4 * kGrain), nullptr);
  expect_refused("ac", Status::NOT_A_POOL, one('c') + " is medium 2 of 3");
  expect_refused("acb", Status::NOT_A_POOL, one('c') + " is medium 2 of 3");
  expect_refused("bac", Status::NOT_A_POOL, one('a') + ": it has no label");
  expect_refused("abd", Status::NOT_A_POOL, one('d') + ": it has no label");
  expect_refused("aba", Status::BAD_LOCATOR, "twice");
  unlink(path('c').c_str());
  expect_refused("abc", Status::NO_SUCH_POOL, path('c'));
  unlink(path('d').c_str());
  ASSERT_NE(create("dc", 6 * kGrain, 7), nullptr);
  expect_refused("abc", Status::NOT_A_POOL, one('c') + " is medium 1 of 2");
}

TEST_F(JoinedMedia, ALabelThatIsDamagedOrAMediumThatIsCutShortIsNamed) {
  ASSERT_NE(create("ab", 8 * kGrain), nullptr);
  const auto flip = [](uint64_t at) {
    std::fstream file(path('b'), std::ios::binary | std::ios::in | std::ios::out);
    file.seekg(static_cast<std::streamoff>(at));
    const char byte = static_cast<char>(file.get() ^ 1);
    file.seekp(static_cast<std::streamoff>(at));
    file.put(byte);
  };
  flip(50);
  EXPECT_TRUE(open_media(join("ab"))) << "the second copy serves";
  flip(65536 + 4080);
  expect_refused("ab", Status::DAMAGED, one('b'));
  flip(50);
  ASSERT_EQ(truncate(path('b').c_str(), 4 * kGrain), 0);
  expect_refused("ab", Status::DAMAGED, one('b') + " has 8388608 bytes");
  ASSERT_EQ(truncate(path('b').c_str(), 5 * kGrain), 0);
  EXPECT_TRUE(open_media(join("ab")));
  ASSERT_EQ(truncate(path('a').c_str(), 2 * kGrain), 0);
  expect_refused("ab", Status::DAMAGED, one('a') + " has 4194304 bytes");
}

TEST_F(JoinedMedia, AFaultNamesItsMedium) {
  const auto media = create("ab", 8 * kGrain);
  ASSERT_NE(media, nullptr);
  ASSERT_EQ(truncate(path('b').c_str(), 2 * kGrain), 0);
  // Stripe 3 is the second on b.
  EXPECT_EQ(*reinterpret_cast<volatile uint8_t*>(media->base() + 3 * kGrain + 4096), 0);
  ASSERT_TRUE(media->failed());
  const std::string text = media->failure()->message();
  EXPECT_NE(text.find(path('b')), std::string::npos) << text;
  EXPECT_NE(text.find("bytes 4198400 to 4202495"), std::string::npos) << text;
  EXPECT_NE(text.find("cut short to 4194304"), std::string::npos) << text;
  EXPECT_EQ(text.find(path('a')), std::string::npos) << text;
}

TEST_F(JoinedMedia, NothingIsLeftIfOneCannotBeMade) {
  ASSERT_NE(create("b", 4 * kGrain), nullptr);
  const auto made = create_media(join("ab"), {.size_bytes = 8 * kGrain});
  EXPECT_EQ(made.status(), Status::POOL_EXISTS);
  EXPECT_EQ(open_media(one('a')).status(), Status::NO_SUCH_POOL);
  EXPECT_TRUE(open_media(one('b')));
  // Another process is faster with a name.
  ASSERT_TRUE(remove_media(one('b')));
  for (const char letter : {'a', 'b'}) {
    MediaCreateOptions options{.size_bytes = 8 * kGrain};
    options.fill = [&](Media&) {
      return create(std::string(1, letter), 4 * kGrain), Result<void>();
    };
    EXPECT_EQ(create_media(join("ab"), options).status(), Status::POOL_EXISTS);
    EXPECT_EQ(open_media(one('a')).status(), letter == 'a' ? Status::OK : Status::NO_SUCH_POOL);
    EXPECT_EQ(open_media(one('b')).status(), letter == 'b' ? Status::OK : Status::NO_SUCH_POOL);
    EXPECT_TRUE(remove_media(one(letter)));
  }
}

TEST_F(JoinedMedia, AMediumInUseIsNotReplaced) {
  ASSERT_NE(create("ab", 8 * kGrain), nullptr);
  const auto used = open_media(join("ab"));
  ASSERT_TRUE(used);
  struct flock lock {};
  lock.l_type = F_RDLCK;
  lock.l_start = int64_t{1} << 62;
  lock.l_len = 1;
  ASSERT_EQ(fcntl((*used)->lock_fd(1), F_OFD_SETLK, &lock), 0);
  for (const std::string letters : {"b", "cb", "bc"}) {
    const auto made = create_media(join(letters), {.size_bytes = 8 * kGrain, .replace = true});
    EXPECT_EQ(made.status(), Status::IN_USE) << letters;
    EXPECT_NE(made.error().message().find(one('b')), std::string::npos) << made.error().message();
  }
  EXPECT_TRUE((*used)->has_name());
  ASSERT_TRUE(remove_media(one('b')));
  EXPECT_FALSE((*used)->has_name());
}

TEST_F(JoinedMedia, APathMayContainAPlus) {
  EXPECT_NE(open_media("file:/nowhere/a+b").error().message().find("/nowhere/a+b"),
            std::string::npos);
  EXPECT_EQ(open_media("shm:a+").status(), Status::BAD_LOCATOR);
  EXPECT_EQ(open_media("shm:a+b").status(), Status::BAD_LOCATOR);
  EXPECT_EQ(open_media("+shm:a").status(), Status::BAD_LOCATOR);
  std::string many = "shm:0";
  for (int i = 1; i <= 64; ++i) many += "+shm:" + std::to_string(i);
  EXPECT_EQ(open_media(many).status(), Status::BAD_LOCATOR);
}

// ---- further sets ----

TEST(FurtherSets, AForkInTheMiddleOfAChangeHurtsNoChild) {
  const std::string tag = "fork-" + std::to_string(getpid());
  const std::string first = "shm:" + tag + "-a", further = "shm:" + tag + "-b";
  const SetName name{{1, 2}, 3};
  const std::vector<Range> places = {{8 * kGrain, kGrain}, {10 * kGrain, kGrain}};
  auto media = create_media(first, {.size_bytes = 4 * kGrain});
  ASSERT_TRUE(media) << media.error().message();
  ASSERT_TRUE((*media)->spread({{0, 4 * kGrain}}, 16 * kGrain));
  ASSERT_TRUE(
      create_media(further, {.size_bytes = 2 * kGrain, .pool_id = name.pool_id, .set = name}));
  std::atomic<bool> over{false};
  std::thread changes([&] {
    while (!over) {
      auto set = open_media(further, MediaUse::STORE, name);
      ASSERT_TRUE(set) << set.error().message();
      EXPECT_TRUE((*media)->add_set(std::move(*set), places));
      EXPECT_TRUE((*media)->remove_set(places));
    }
  });
  for (int n = 0; n < 200; ++n) {
    const pid_t child = fork();
    if (child == 0) {
      (*media)->leave_change();
      media->reset();
      _exit(0);
    }
    int status = -1;
    EXPECT_EQ(waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0);
  }
  over = true;
  changes.join();
  EXPECT_TRUE(remove_media(first));
  EXPECT_TRUE(remove_media(further));
}

}  // namespace
}  // namespace bowhead
