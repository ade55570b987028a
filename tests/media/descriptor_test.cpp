// SPDX-License-Identifier: Apache-2.0
// fd: memory whose descriptor the process was given.
#include <fcntl.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <string>

#include "base/unique_fd.h"
#include "pool/media/media.h"
#include "tests/media/contract.h"

namespace bowhead {
namespace {

constexpr uint64_t kMiB = 1 << 20;

UniqueFd memory(uint64_t bytes) {
  UniqueFd fd(memfd_create("test", MFD_CLOEXEC));
  EXPECT_EQ(ftruncate(fd.get(), static_cast<off_t>(bytes)), 0);
  return fd;
}

std::string locator_of(const UniqueFd& fd) { return fmt::format("fd:{}", fd.get()); }

TEST(Descriptor, IsMappedAndSharedWithWhoGaveIt) {
  const UniqueFd fd = memory(5 * kMiB);
  auto media = open_media(locator_of(fd));
  ASSERT_TRUE(media) << media.error().message();
  EXPECT_EQ((*media)->size_bytes(), 4 * kMiB);  // whole grains
  EXPECT_TRUE((*media)->writable());
  EXPECT_TRUE((*media)->has_name());  // it never had one
  (*media)->base()[3 * kMiB] = std::byte{42};
  char byte = 0;
  EXPECT_EQ(pread(fd.get(), &byte, 1, 3 * kMiB), 1);
  EXPECT_EQ(byte, 42);
  const auto again = open_media(locator_of(fd), MediaUse::LOOK);
  ASSERT_TRUE(again);
  EXPECT_EQ((*again)->base()[3 * kMiB], std::byte{42});
  EXPECT_FALSE((*again)->writable());
}

TEST(Descriptor, StaysOpenAndCanLoseItsName) {
  const std::string path = "/dev/shm/" + fresh_tag();
  auto fd = UniqueFd(open(path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
  ASSERT_EQ(ftruncate(fd.get(), 2 * kMiB), 0);
  const auto media = open_media(locator_of(fd));
  ASSERT_TRUE(media);
  fd = {};
  EXPECT_TRUE((*media)->has_name());
  unlink(path.c_str());
  EXPECT_FALSE((*media)->has_name());
  EXPECT_TRUE((*media)->map_again());
}

TEST(Descriptor, WhatIsNoMemoryIsRefused) {
  const auto refused = [](const std::string& locator, Status status, const std::string& text) {
    const auto media = open_media(locator);
    ASSERT_EQ(media.status(), status) << locator;
    EXPECT_NE(media.error().message().find(text), std::string::npos) << media.error().message();
  };
  for (const char* text :
       {"fd:", "fd:-1", "fd:3x", "fd:x", "fd: 3", "fd:99999999999", "fd:0", "fd:1", "fd:2"})
    refused(text, Status::BAD_LOCATOR, "number of an open descriptor");
  refused("fd:1000000", Status::SYSTEM, "fd:1000000");
  const UniqueFd none(open("/dev/null", O_RDWR | O_CLOEXEC));
  refused(locator_of(none), Status::NOT_SUPPORTED, "not a memory file");
  refused(locator_of(memory(kMiB)), Status::NOT_A_POOL, "too few");
  const UniqueFd fd = memory(2 * kMiB);
  const UniqueFd reads(open(fmt::format("/proc/self/fd/{}", fd.get()).c_str(), O_RDONLY));
  refused(locator_of(reads), Status::SYSTEM, "not open for reading and writing");
  EXPECT_TRUE(open_media(locator_of(reads), MediaUse::LOOK));
  EXPECT_EQ(create_media(locator_of(fd), {.size_bytes = 2 * kMiB}).status(), Status::NOT_SUPPORTED);
  EXPECT_EQ(remove_media(locator_of(fd)).status(), Status::NOT_SUPPORTED);
}

}  // namespace
}  // namespace bowhead
