// SPDX-License-Identifier: Apache-2.0
// Golden pools in files, and files that are not pools.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "tests/golden/golden_pool.h"

namespace bowhead::golden {
namespace {

class File : public testing::Test {
 protected:
  void SetUp() override {
    std::string name = testing::TempDir() + "golden-XXXXXX";
    ASSERT_NE(mkdtemp(name.data()), nullptr);
    folder_ = name;
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  std::string path(const char* name) const { return folder_ + "/" + name; }

  /// The file is not a pool: open says so, with its locator and what to do.
  void expect_refused(const std::string& file, Status status, const char* advice) {
    const std::string locator = "file:" + file;
    const auto opened = Pool::open(locator);
    ASSERT_FALSE(opened);
    EXPECT_EQ(status_name(opened.status()), std::string(status_name(status)));
    EXPECT_NE(opened.error().message().find(locator), std::string::npos)
        << opened.error().message();
    EXPECT_NE(opened.error().message().find(advice), std::string::npos) << opened.error().message();
  }

  std::string folder_;
};

TEST_F(File, GoldenPoolOpens) {
  GoldenPool golden("v2-one-host", "file:" + folder_ + "/");
  auto pool = golden.open();
  ASSERT_TRUE(pool) << pool.error().message();
  EXPECT_EQ(golden.lost_in(*pool), std::set<size_t>{});
  EXPECT_EQ(findings_of(*pool), "");
}

TEST_F(File, CutShort) {
  GoldenPool golden("v2-one-host", "file:" + folder_ + "/");
  const std::string file = golden.locator().substr(5);
  std::filesystem::resize_file(file, 14 << 20);
  expect_refused(file, Status::DAMAGED, "restore it from a copy");
  std::filesystem::resize_file(file, (14 << 20) - 1);
  expect_refused(file, Status::NOT_A_POOL, "cut short");
  std::filesystem::resize_file(file, 2 << 20);
  expect_refused(file, Status::DAMAGED, "restore it from a copy");
}

TEST_F(File, Empty) {
  std::ofstream(path("empty")).flush();
  expect_refused(path("empty"), Status::NOT_A_POOL, "`bowhead pool create --force`");
}

TEST_F(File, Directory) { expect_refused(folder_, Status::NOT_A_POOL, "give the path of a file"); }

TEST_F(File, Device) {
  expect_refused("/dev/null", Status::NOT_SUPPORTED, "give the path of a regular file");
}

TEST_F(File, SymbolicLink) {
  GoldenPool golden("v2-one-host", "file:" + folder_ + "/");
  std::filesystem::create_symlink(golden.locator().substr(5), path("link"));
  expect_refused(path("link"), Status::NOT_SUPPORTED, "give the path it leads to");
}

TEST_F(File, MissingDirectory) {
  expect_refused(path("missing/pool"), Status::NO_SUCH_POOL, "`bowhead pool create`");
  const auto created = Pool::create("file:" + path("missing/pool"), {.size_bytes = 16 << 20});
  ASSERT_FALSE(created);
  EXPECT_EQ(created.status(), Status::SYSTEM);
  EXPECT_NE(created.error().message().find("No such file or directory"), std::string::npos);
}

TEST_F(File, RelativePath) {
  const auto opened = Pool::open("file:pool");
  ASSERT_FALSE(opened);
  EXPECT_EQ(opened.status(), Status::BAD_LOCATOR);
  EXPECT_NE(opened.error().message().find("must begin with /"), std::string::npos);
}

TEST_F(File, NoPermission) {
  if (geteuid() == 0) GTEST_SKIP() << "root may read everything";
  GoldenPool golden("v2-one-host", "file:" + folder_ + "/");
  const std::string file = golden.locator().substr(5);
  ASSERT_EQ(chmod(file.c_str(), 0400), 0);
  expect_refused(file, Status::SYSTEM, "look at its owner and permissions");
}

}  // namespace
}  // namespace bowhead::golden
