// SPDX-License-Identifier: Apache-2.0
// The contract of every medium. A test file of a medium instantiates MediaContract with ways to
// name a fresh object of it; the cases are in contract.cpp.
#pragma once

#include <bowhead/format/superblock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <memory>
#include <ostream>
#include <string>

#include "pool/media/media.h"

namespace bowhead {

struct MediaUnderTest {
  std::string name;
  /// An unused locator; the tag distinguishes parallel runs.
  std::string (*locator)(const std::string& tag);
  /// Why this machine cannot have such media; empty if it can.
  std::string (*missing)() = [] { return std::string(); };
  uint64_t least_bytes = kMediaGrainBytes;
  /// Of a device: it exists always, holds a medium if it starts like one, and has this size,
  /// whatever was asked for. 0: other media, which are objects with a name.
  uint64_t device_bytes = 0;
};

/// For GoogleTest's output.
inline void PrintTo(const MediaUnderTest& media, std::ostream* out) { *out << media.name; }

/// Differs between processes and calls.
inline std::string fresh_tag() {
  static std::atomic<int> calls = 0;
  return "bowhead-test-" + std::to_string(getpid()) + "-" + std::to_string(calls++);
}

/// Removes what a test left when the test ends.
class ScopedLocator {
 public:
  explicit ScopedLocator(std::string locator) : locator_(std::move(locator)) {}
  ScopedLocator(const ScopedLocator&) = delete;
  ScopedLocator& operator=(const ScopedLocator&) = delete;
  ~ScopedLocator() { (void)remove_media(locator_); }
  const std::string& text() const { return locator_; }

 private:
  const std::string locator_;
};

class MediaContract : public testing::TestWithParam<MediaUnderTest> {
 protected:
  void SetUp() override {
    if (const std::string why = GetParam().missing(); !why.empty()) GTEST_SKIP() << why;
  }
  std::unique_ptr<Media> create(uint64_t size_bytes, bool replace = false) {
    Result<std::unique_ptr<Media>> media =
        create_media(locator(), {.size_bytes = size_bytes, .replace = replace});
    EXPECT_TRUE(media) << media.error().message();
    if (media && is_device()) start_like_a_pool(**media);
    return media ? *std::move(media) : nullptr;
  }
  std::unique_ptr<Media> open() {
    Result<std::unique_ptr<Media>> media = open_media(locator());
    EXPECT_TRUE(media) << media.error().message();
    return media ? *std::move(media) : nullptr;
  }
  const std::string& locator() const { return object_.text(); }

  bool is_device() const { return GetParam().device_bytes != 0; }
  /// The size of an object that was created with this one, when it is opened.
  uint64_t opened_size(uint64_t created_bytes) const {
    return is_device() ? GetParam().device_bytes : created_bytes;
  }
  /// With an id of its own.
  static void start_like_a_pool(Media& media) {
    static std::atomic<uint64_t> pools = 0;
    bh_superblock start = {};
    start.magic = BH_SUPERBLOCK_MAGIC;
    start.pool_id[0] = ++pools;
    std::memcpy(media.base(), &start, sizeof start);
  }
  /// Zeros, but for the start of a pool. Of an opened device, only what was created is.
  bool is_new(const Media& media, uint64_t created_bytes = 0) const {
    return std::all_of(media.base() + (is_device() ? sizeof(bh_superblock) : 0),
                       media.base() + (created_bytes == 0 ? media.size_bytes() : created_bytes),
                       [](std::byte byte) { return byte == std::byte{0}; });
  }

 private:
  ScopedLocator object_{GetParam().locator(fresh_tag())};
};

}  // namespace bowhead
