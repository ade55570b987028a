// SPDX-License-Identifier: Apache-2.0
// Trust: media of other users, and media that every user may write, can be read but not stored
// into. Needs root, to become other users.
#include <grp.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/media/child.h"
#include "tests/media/contract.h"

namespace bowhead {
namespace {

constexpr uid_t kOwner = 54321, kOther = 54322;
constexpr gid_t kGroup = 54323, kNoGroup = 54324;

/// From here on this process is that user with only that group; ends it on failure.
void become(uid_t user, gid_t group) {
  if (setgroups(0, nullptr) != 0 || setgid(group) != 0 || setuid(user) != 0) _exit(kChildCannot);
}

class Trust : public testing::Test {
 protected:
  void SetUp() override {
    if (geteuid() != 0) GTEST_SKIP() << "needs root";
  }
  /// A medium of kOwner and kGroup.
  void make(mode_t mode) {
    ASSERT_TRUE(create_media(object_.text(), {.size_bytes = kMediaGrainBytes, .mode = mode}));
    ASSERT_EQ(chown(path().c_str(), kOwner, kGroup), 0);
  }
  std::string path() const { return "/dev/shm/bowhead-" + object_.text().substr(4); }
  Status opened_as(uid_t user, gid_t group, MediaUse use) const {
    return static_cast<Status>(run_child([&] {
      become(user, group);
      return static_cast<int>(open_media(object_.text(), use).status());
    }));
  }

  const ScopedLocator object_{"shm:" + fresh_tag()};
};

TEST_F(Trust, TheOwnerAndItsGroupMayStoreIfTheModeLetsThem) {
  make(0660);
  EXPECT_EQ(opened_as(kOwner, kNoGroup, MediaUse::STORE), Status::OK);
  EXPECT_EQ(opened_as(kOther, kGroup, MediaUse::STORE), Status::OK);
  EXPECT_EQ(opened_as(kOther, kNoGroup, MediaUse::STORE), Status::SYSTEM);
  EXPECT_EQ(opened_as(kOther, kNoGroup, MediaUse::LOOK), Status::SYSTEM);
}

TEST_F(Trust, AnotherUsersMediumIsNotStoredInto) {
  make(0600);
  const auto media = open_media(object_.text());  // as root, whom no mode stops
  ASSERT_EQ(media.status(), Status::SYSTEM);
  EXPECT_NE(media.error().message().find("belongs to uid 54321"), std::string::npos)
      << media.error().message();
  EXPECT_TRUE(open_media(object_.text(), MediaUse::LOOK));
  EXPECT_TRUE(open_media(object_.text(), MediaUse::REMOVE));
  const auto replaced =
      create_media(object_.text(), {.size_bytes = kMediaGrainBytes, .replace = true});
  EXPECT_EQ(replaced.status(), Status::SYSTEM);
}

TEST_F(Trust, MediaWritableByEveryUserAreNotStoredInto) {
  make(0600);
  ASSERT_EQ(chmod(path().c_str(), 0666), 0);
  EXPECT_EQ(opened_as(kOwner, kGroup, MediaUse::STORE), Status::SYSTEM);
  EXPECT_EQ(opened_as(kOther, kNoGroup, MediaUse::STORE), Status::SYSTEM);
  EXPECT_EQ(opened_as(kOther, kNoGroup, MediaUse::LOOK), Status::OK);
}

TEST_F(Trust, AUserWithReadPermissionObservesAndCannotStore) {
  make(0644);
  EXPECT_EQ(opened_as(kOther, kNoGroup, MediaUse::STORE), Status::SYSTEM);
  EXPECT_EQ(run_child([&] {
              become(kOther, kNoGroup);
              const auto media = open_media(object_.text(), MediaUse::LOOK);
              if (!media || (*media)->writable()) return 1;
              if ((*media)->protect(0, kMediaGrainBytes, true)) return 2;
              return (*media)->base()[0] == std::byte{0} ? 0 : 3;
            }),
            0);
}

TEST_F(Trust, RootsMediumIsTrusted) {
  ASSERT_TRUE(create_media(object_.text(), {.size_bytes = kMediaGrainBytes, .mode = 0660}));
  ASSERT_EQ(chown(path().c_str(), 0, kGroup), 0);
  EXPECT_EQ(opened_as(kOther, kGroup, MediaUse::STORE), Status::OK);
}

}  // namespace
}  // namespace bowhead
