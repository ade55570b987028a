// SPDX-License-Identifier: Apache-2.0
// file: the contract, and tests of its own.

#include <fcntl.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <linux/magic.h>

#include <filesystem>
#include <fstream>
#include <limits>

#include "tests/media/child.h"
#include "tests/media/contract.h"

namespace bowhead {
namespace {

constexpr uint64_t kMiB = 1 << 20;

std::string fresh_path() { return testing::TempDir() + fresh_tag(); }
std::string file_locator(const std::string& tag) { return "file:" + testing::TempDir() + tag; }

INSTANTIATE_TEST_SUITE_P(File, MediaContract, testing::Values(MediaUnderTest{"file", file_locator}),
                         [](const auto& media) { return media.param.name; });

bool in_memory(const std::string& path) {
  struct statfs info;
  return statfs(path.c_str(), &info) == 0 && info.f_type == TMPFS_MAGIC;
}

void expect_everywhere(const std::string& locator, Status create, Status open, Status remove) {
  const MediaCreateOptions options{.size_bytes = 2 * kMiB, .replace = true};
  EXPECT_EQ(create_media(locator, options).status(), create) << locator;
  EXPECT_EQ(open_media(locator).status(), open) << locator;
  EXPECT_EQ(remove_media(locator).status(), remove) << locator;
}

TEST(File, PathsMustBeAbsolute) {
  for (const std::string& path : {std::string(), std::string("/"), std::string("x"),
                                  std::string("./x"), std::string("/tmp/a\0b", 8)}) {
    expect_everywhere("file:" + path, Status::BAD_LOCATOR, Status::BAD_LOCATOR,
                      Status::BAD_LOCATOR);
  }
}

TEST(File, OnlyRegularFilesAreMapped) {
  const std::string directory = fresh_path();
  ASSERT_EQ(mkdir(directory.c_str(), 0700), 0);
  expect_everywhere("file:" + directory, Status::NOT_SUPPORTED, Status::NOT_A_POOL,
                    Status::NOT_SUPPORTED);

  const std::string fifo = directory + "/fifo";
  ASSERT_EQ(mkfifo(fifo.c_str(), 0600), 0);
  expect_everywhere("file:" + fifo, Status::NOT_SUPPORTED, Status::NOT_SUPPORTED,
                    Status::NOT_SUPPORTED);

  const std::string link = directory + "/link";
  ASSERT_EQ(symlink("/dev/null", link.c_str()), 0);
  expect_everywhere("file:" + link, Status::NOT_SUPPORTED, Status::NOT_SUPPORTED,
                    Status::NOT_SUPPORTED);

  expect_everywhere("file:/dev/null", Status::NOT_SUPPORTED, Status::NOT_SUPPORTED,
                    Status::NOT_SUPPORTED);
  EXPECT_EQ(access("/dev/null", F_OK), 0);
  unlink(fifo.c_str());
  unlink(link.c_str());
  rmdir(directory.c_str());
}

TEST(File, EmptyAndCutFilesAreNoPools) {
  const std::string path = fresh_path();
  const ScopedLocator object("file:" + path);
  std::ofstream(path).flush();
  EXPECT_EQ(open_media(object.text()).status(), Status::NOT_A_POOL);
  ASSERT_EQ(truncate(path.c_str(), 3 * kMiB), 0);
  const auto cut = open_media(object.text());
  ASSERT_EQ(cut.status(), Status::NOT_A_POOL);
  EXPECT_NE(cut.error().message().find("cut short"), std::string::npos);
}

TEST(File, MissingDirectoryIsNamed) {
  const std::string directory = fresh_path();
  const auto media = create_media("file:" + directory + "/x", {.size_bytes = 2 * kMiB});
  ASSERT_EQ(media.status(), Status::SYSTEM);
  EXPECT_NE(media.error().message().find(directory), std::string::npos);
}

// A process that has the old file mapped must not find another pool in its mapping.
TEST(File, ReplacingLeavesTheOldFileAsItIs) {
  const std::string path = fresh_path();
  const ScopedLocator object("file:" + path);
  const auto before = create_media(object.text(), {.size_bytes = 2 * kMiB});
  ASSERT_TRUE(before) << before.error().message();
  (*before)->base()[5] = std::byte{7};
  int replaced = 0;
  ASSERT_TRUE(
      create_media(object.text(), {.size_bytes = 4 * kMiB, .replace = true, .replaced = [&] {
                                     EXPECT_FALSE((*before)->has_name());
                                     ++replaced;
                                   }}));
  EXPECT_EQ(replaced, 1);
  EXPECT_EQ((*before)->base()[5], std::byte{7});
  const auto after = open_media(object.text());
  ASSERT_TRUE(after) << after.error().message();
  EXPECT_EQ((*after)->base()[5], std::byte{0});
  struct stat info;
  ASSERT_EQ(stat(path.c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0600u);
}

TEST(File, AnOrdinaryFilePromisesLessThanFsdax) {
  const std::string path = fresh_path();
  const ScopedLocator object("file:" + path);
  const auto media = create_media(object.text(), {.size_bytes = 2 * kMiB});
  ASSERT_TRUE(media) << media.error().message();
  const MediaTraits& traits = (*media)->traits();
  if (in_memory(testing::TempDir())) {
    EXPECT_FALSE(traits.survives_reboot);
  } else if (!traits.survives_power_loss) {
    EXPECT_TRUE(traits.survives_reboot);
    EXPECT_NE(traits.description.find("only what sync wrote"), std::string::npos);
  }
}

// libpmem2 can be made to take any file for fsdax: the traits follow its answer.
TEST(File, LineGranularityMeansThatPublishedBytesSurvive) {
  if (in_memory(testing::TempDir())) GTEST_SKIP() << "the directory for tests is in memory";
  const std::string path = fresh_path();
  const ScopedLocator object("file:" + path);
  EXPECT_EQ(run_child([&] {
              setenv("PMEM2_FORCE_GRANULARITY", "CACHE_LINE", 1);
              const auto media = create_media(object.text(), {.size_bytes = 2 * kMiB});
              return media && (*media)->traits().survives_power_loss ? 0 : 1;
            }),
            0);
}

TEST(File, AFileOfOthersIsTheSystemsRefusal) {
  const std::string path = fresh_path();
  const ScopedLocator object("file:" + path);
  ASSERT_TRUE(create_media(object.text(), {.size_bytes = 2 * kMiB}));
  ASSERT_EQ(chmod(path.c_str(), 0), 0);
  EXPECT_EQ(run_child([&] {
              if (geteuid() == 0 && setuid(65534) != 0) return 1;  // root may open everything
              return open_media(object.text()).status() == Status::SYSTEM ? 0 : 2;
            }),
            0);
}

/// The leftover of a process that is killed while its pool takes the place of another.
TEST(File, AnAbandonedCreationIsRemoved) {
  const std::string directory = fresh_path();
  ASSERT_EQ(mkdir(directory.c_str(), 0700), 0);
  const auto make_file = [](const std::string& path) {
    const int fd = open(path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    EXPECT_GE(fd, 0);
    return fd;
  };
  const std::string abandoned = directory + "/.bowhead-0123", made = directory + "/.bowhead-4567",
                    other = directory + "/bowhead-89ab";
  close(make_file(abandoned));
  close(make_file(other));
  const int maker = make_file(made);
  struct flock lock {};
  lock.l_type = F_WRLCK;
  lock.l_start = std::numeric_limits<off_t>::max() - 1;
  lock.l_len = 1;
  ASSERT_EQ(fcntl(maker, F_OFD_SETLK, &lock), 0);
  const std::string locator = "file:" + directory + "/pool";
  ASSERT_TRUE(create_media(locator, {.size_bytes = 2 * kMiB}));
  EXPECT_FALSE(std::filesystem::exists(abandoned));
  EXPECT_TRUE(std::filesystem::exists(made)) << "a process makes it";
  EXPECT_TRUE(std::filesystem::exists(other));
  close(maker);
  ASSERT_TRUE(create_media(locator, {.size_bytes = 2 * kMiB, .replace = true}));
  EXPECT_FALSE(std::filesystem::exists(made));
  EXPECT_TRUE(remove_media(locator));
  std::filesystem::remove_all(directory);
}

}  // namespace
}  // namespace bowhead
