// SPDX-License-Identifier: Apache-2.0
// The contract of every medium. A test file of a medium instantiates MediaContract with ways to
// name a fresh object of it; the cases are in contract.cpp.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
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
    return media ? *std::move(media) : nullptr;
  }
  std::unique_ptr<Media> open() {
    Result<std::unique_ptr<Media>> media = open_media(locator());
    EXPECT_TRUE(media) << media.error().message();
    return media ? *std::move(media) : nullptr;
  }
  const std::string& locator() const { return object_.text(); }

 private:
  ScopedLocator object_{GetParam().locator(fresh_tag())};
};

}  // namespace bowhead
