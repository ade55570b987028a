// SPDX-License-Identifier: Apache-2.0
// A build without libpmem2 and libnuma: file: and numa: report what is missing, and shm: works.
#include <gtest/gtest.h>
#include <unistd.h>

#include <string>

#include "pool/media/media.h"

namespace bowhead {
namespace {

TEST(FileNone, EveryCallSaysThatTheBuildLacksIt) {
  const std::string path = testing::TempDir() + "bowhead-none-" + std::to_string(getpid());
  const auto created = create_media("file:" + path, {.size_bytes = 2 << 20});
  ASSERT_EQ(created.status(), Status::NOT_SUPPORTED);
  EXPECT_NE(created.error().message().find("libpmem2"), std::string::npos);
  EXPECT_NE(access(path.c_str(), F_OK), 0);
  EXPECT_EQ(open_media("file:" + path).status(), Status::NOT_SUPPORTED);
  EXPECT_EQ(remove_media("file:" + path).status(), Status::NOT_SUPPORTED);
}

TEST(NumaNone, EveryCallSaysThatTheBuildLacksIt) {
  const std::string locator = "numa:0/bowhead-none-" + std::to_string(getpid());
  const auto created = create_media(locator, {.size_bytes = 2 << 20});
  ASSERT_EQ(created.status(), Status::NOT_SUPPORTED);
  EXPECT_NE(created.error().message().find("libnuma"), std::string::npos);
  EXPECT_EQ(open_media(locator).status(), Status::NOT_SUPPORTED);
  EXPECT_EQ(remove_media(locator).status(), Status::NOT_SUPPORTED);
}

TEST(FileNone, SharedMemoryIsThere) {
  const std::string locator = "shm:bowhead-none-" + std::to_string(getpid());
  EXPECT_TRUE(create_media(locator, {.size_bytes = 2 << 20}));
  EXPECT_TRUE(remove_media(locator));
}

}  // namespace
}  // namespace bowhead
