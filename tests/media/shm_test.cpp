// SPDX-License-Identifier: Apache-2.0
// shm: the contract, and tests of its own.

#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fstream>

#include "tests/media/child.h"
#include "tests/media/contract.h"

namespace bowhead {
namespace {

constexpr uint64_t kMiB = 1 << 20;

std::string shm_locator(const std::string& tag) { return "shm:" + tag; }

INSTANTIATE_TEST_SUITE_P(Shm, MediaContract, testing::Values(MediaUnderTest{"shm", shm_locator}),
                         [](const auto& media) { return media.param.name; });

TEST(Shm, NamesAreChecked) {
  const std::string longest(200, 'n');
  for (const std::string& name :
       {std::string(), std::string("a/b"), std::string("../x"), std::string("a b"),
        std::string("\xC3\xA4"), longest + "n", std::string("a\0b", 3)}) {
    const std::string locator = "shm:" + name;
    EXPECT_EQ(create_media(locator, {.size_bytes = 2 * kMiB}).status(), Status::BAD_LOCATOR)
        << name;
    EXPECT_EQ(open_media(locator).status(), Status::BAD_LOCATOR) << name;
    EXPECT_EQ(remove_media(locator).status(), Status::BAD_LOCATOR) << name;
  }
  EXPECT_EQ(open_media("shm:" + longest).status(), Status::NO_SUCH_POOL);
}

TEST(Shm, DoesNotSurviveAReboot) {
  const ScopedLocator object(shm_locator(fresh_tag()));
  const auto media = create_media(object.text(), {.size_bytes = 2 * kMiB});
  ASSERT_TRUE(media) << media.error().message();
  EXPECT_FALSE((*media)->traits().survives_reboot);
  EXPECT_FALSE((*media)->traits().survives_power_loss);
}

TEST(Shm, IsItsOwnersOnly) {
  const ScopedLocator object(shm_locator(fresh_tag()));
  const auto media = create_media(object.text(), {.size_bytes = 2 * kMiB});
  ASSERT_TRUE(media) << media.error().message();
  struct stat info;
  ASSERT_EQ(fstat((*media)->lock_fd(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0600u);
}

TEST(Shm, AllSpaceIsAllocated) {
  const ScopedLocator object(shm_locator(fresh_tag()));
  const auto media = create_media(object.text(), {.size_bytes = 130 * kMiB});
  ASSERT_TRUE(media) << media.error().message();
  struct stat info;
  ASSERT_EQ(fstat((*media)->lock_fd(), &info), 0);
  EXPECT_EQ(info.st_blocks * 512, 130 * static_cast<int64_t>(kMiB));
}

// The object gets a name only at the end, so even SIGKILL in the middle leaves no memory behind.
TEST(Shm, KilledCreationLeavesNothing) {
  const ScopedLocator object(shm_locator(fresh_tag()));
  MediaCreateOptions options{.size_bytes = 128 * kMiB};
  options.progress = [](uint64_t done, uint64_t total) {
    if (done < total) raise(SIGKILL);
    return true;
  };
  EXPECT_EQ(run_child([&] { return create_media(object.text(), options) ? 1 : 2; }), -SIGKILL);
  EXPECT_EQ(open_media(object.text()).status(), Status::NO_SUCH_POOL);
}

// A private /dev/shm and no hugetlbfs, in a mount namespace of the calling process.
bool mount_small_shm(uint64_t size_bytes) {
  const uid_t uid = geteuid();
  const gid_t gid = getegid();
  if (unshare(uid == 0 ? CLONE_NEWNS : CLONE_NEWNS | CLONE_NEWUSER) != 0) return false;
  if (uid != 0) {
    std::ofstream("/proc/self/setgroups") << "deny";
    std::ofstream("/proc/self/uid_map") << "0 " << uid << " 1";
    std::ofstream("/proc/self/gid_map") << "0 " << gid << " 1";
  }
  const std::string options = "size=" + std::to_string(size_bytes);
  if (mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0) return false;
  std::ifstream mounts("/proc/mounts");
  for (std::string device, directory, type, rest; mounts >> device >> directory >> type;) {
    std::getline(mounts, rest);
    if (type == "hugetlbfs" && mount("tmpfs", directory.c_str(), "tmpfs", 0, nullptr) != 0) {
      return false;
    }
  }
  return mount("tmpfs", "/dev/shm", "tmpfs", 0, options.c_str()) == 0;
}

// The free space is checked first, but other processes may take it meanwhile.
TEST(Shm, SpaceThatGoesAwayMidwayLeavesNothing) {
  const int result = run_child([] {
    if (!mount_small_shm(140 * kMiB)) return kChildCannot;
    MediaCreateOptions options{.size_bytes = 128 * kMiB};
    options.progress = [](uint64_t, uint64_t) {
      const int thief = open("/dev/shm/thief", O_RDWR | O_CREAT | O_CLOEXEC, 0600);
      if (thief < 0 || fallocate(thief, 0, 0, 40 * kMiB) != 0) _exit(3);
      return true;
    };
    const auto media = create_media("shm:x", options);
    if (media.status() != Status::MEDIUM_FULL) return 4;
    if (open_media("shm:x").status() != Status::NO_SUCH_POOL) return 5;
    // All of it is free again, except for the thief's.
    const bool fits = static_cast<bool>(create_media("shm:x", {.size_bytes = 100 * kMiB}));
    return fits ? 0 : 6;
  });
  if (result == kChildCannot) GTEST_SKIP() << "no mount namespaces here";
  EXPECT_EQ(result, 0);
}

TEST(Shm, ReplacingCountsTheSpaceOfTheOld) {
  const int result = run_child([] {
    if (!mount_small_shm(20 * kMiB)) return kChildCannot;
    if (!create_media("shm:x", {.size_bytes = 16 * kMiB})) return 2;
    if (!create_media("shm:x", {.size_bytes = 18 * kMiB, .replace = true})) return 3;
    int replaced = 0;
    MediaCreateOptions options{.size_bytes = 22 * kMiB, .replace = true};
    options.replaced = [&] { ++replaced; };
    if (create_media("shm:x", options).status() != Status::MEDIUM_FULL || replaced != 0) return 4;
    // A process still holds the space of the old pool, which has to be removed first.
    const auto held = open_media("shm:x");
    options.size_bytes = 16 * kMiB;
    if (create_media("shm:x", options).status() != Status::MEDIUM_FULL || replaced != 1) return 5;
    return open_media("shm:x").status() == Status::NO_SUCH_POOL && held ? 0 : 6;
  });
  if (result == kChildCannot) GTEST_SKIP() << "no mount namespaces here";
  EXPECT_EQ(result, 0);
}

// A link placed in the world-writable directory must not redirect any process.
TEST(Shm, SymbolicLinksAreRefused) {
  const int result = run_child([] {
    if (!mount_small_shm(20 * kMiB)) return kChildCannot;
    const int target = open("/dev/shm/target", O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (target < 0 || fallocate(target, 0, 0, 2 * kMiB) != 0 ||
        symlink("/dev/shm/target", "/dev/shm/bowhead-x") != 0) {
      return 1;
    }
    if (open_media("shm:x").status() != Status::NOT_SUPPORTED) return 2;
    const MediaCreateOptions options{.size_bytes = 4 * kMiB, .replace = true};
    if (create_media("shm:x", options).status() != Status::NOT_SUPPORTED) return 3;
    if (remove_media("shm:x").status() != Status::NOT_SUPPORTED) return 4;
    struct stat info;
    return fstat(target, &info) == 0 && info.st_size == 2 * static_cast<off_t>(kMiB) ? 0 : 5;
  });
  if (result == kChildCannot) GTEST_SKIP() << "no mount namespaces here";
  EXPECT_EQ(result, 0);
}

}  // namespace
}  // namespace bowhead
