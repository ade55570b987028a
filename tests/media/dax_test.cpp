// SPDX-License-Identifier: Apache-2.0
// dax: what needs no device.
#include <unistd.h>

#include <fstream>

#include "tests/media/contract.h"

namespace bowhead {
namespace {

constexpr uint64_t kMiB = 1 << 20;

void expect_everywhere(const std::string& locator, Status status, const std::string& text) {
  const auto created = create_media(locator, {.size_bytes = 2 * kMiB, .replace = true});
  EXPECT_EQ(created.status(), status == Status::NO_SUCH_POOL ? Status::SYSTEM : status) << locator;
  EXPECT_NE(created.error().message().find(text), std::string::npos) << created.error().message();
  EXPECT_EQ(open_media(locator).status(), status) << locator;
  EXPECT_EQ(open_media(locator, MediaUse::LOOK).status(), status) << locator;
  EXPECT_EQ(remove_media(locator).status(), status) << locator;
}

TEST(Dax, OnlyDevicesOfItsKindAreTaken) {
  expect_everywhere("dax:dax0.0", Status::BAD_LOCATOR, "dax:/dev/dax0.0");
  expect_everywhere(std::string("dax:/dev/dax\0x", 14), Status::BAD_LOCATOR, "dax:/dev/dax0.0");
  expect_everywhere("dax:/dev/dax4095.7", Status::NO_SUCH_POOL, "does not exist");
  expect_everywhere("dax:/dev/null", Status::NOT_SUPPORTED, "not a dax device");
  expect_everywhere("dax:/dev/shm", Status::NOT_SUPPORTED, "not a dax device");
  const std::string file = "/dev/shm/" + fresh_tag();
  std::ofstream(file) << "kept";
  expect_everywhere("dax:" + file, Status::NOT_SUPPORTED, "not a dax device");
  std::string text;
  EXPECT_TRUE(std::getline(std::ifstream(file), text) && text == "kept");
  unlink(file.c_str());
}

}  // namespace
}  // namespace bowhead
