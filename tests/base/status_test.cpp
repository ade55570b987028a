// SPDX-License-Identifier: Apache-2.0
#include "base/status.h"

#include <gtest/gtest.h>

#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace bowhead {
namespace {

// A second copy, by hand: the numbers are part of the ABI. Append, never change.
const std::vector<std::pair<int, std::string>> kFrozen = {
    {0, "OK"},
    {1, "NOT_FOUND"},
    {2, "NO_SPACE"},
    {3, "INVALID_ARGUMENT"},
    {4, "KEY_TOO_LONG"},
    {5, "VALUE_TOO_LARGE"},
    {6, "BUFFER_TOO_SMALL"},
    {7, "LAPSED"},
    {8, "BUSY"},
    {9, "FORKED"},
    {10, "NO_SUCH_POOL"},
    {11, "NOT_A_POOL"},
    {12, "POOL_EXISTS"},
    {13, "TOO_SMALL"},
    {14, "MISALIGNED"},
    {15, "VERSION_UNKNOWN"},
    {16, "DAMAGED"},
    {17, "NAMESPACE_MISMATCH"},
    {18, "LIMIT_REACHED"},
    {19, "HOST_ID_IN_USE"},
    {20, "HOST_FENCED"},
    {21, "HOST_ID_CONFLICT"},
    {22, "NOT_SUPPORTED"},
    {23, "SYSTEM"},
    {24, "BAD_LOCATOR"},
    {25, "BAD_TRACE"},
    {26, "IN_USE"},
    {27, "CLOSED"},
    {28, "UNSUPPORTED_CODEC"},
    {29, "COPY_ONLY"},
    {30, "GPU_LOST"},
    {31, "CANCELLED"},
    {32, "CODED"},
    {33, "INDEX_FULL"},
    {34, "MEDIA_ERROR"},
    {35, "READ_ONLY"},
    {36, "MEDIUM_FULL"},
    {37, "LAYOUT_MISMATCH"},
    {38, "NAMESPACE_GONE"},
    {39, "DEVICE_LOST"},
    {40, "TIMED_OUT"},
};

TEST(Status, NumbersAreFrozen) {
  for (const auto& [number, name] : kFrozen) {
    EXPECT_EQ(status_name(static_cast<Status>(number)), name) << number;
  }
  std::vector<int> numbers;
#define NUMBER_OF(number, name, text) numbers.push_back(number);
  BH_STATUS_LIST(NUMBER_OF)
#undef NUMBER_OF
  ASSERT_EQ(numbers.size(), kFrozen.size()) << "freeze the new status here";
  for (size_t i = 0; i < numbers.size(); ++i) EXPECT_EQ(numbers[i], static_cast<int>(i));
}

TEST(Status, TextsAreUniqueSentences) {
  std::set<std::string> texts;
  for (const auto& [number, name] : kFrozen) {
    const std::string text = status_text(static_cast<Status>(number));
    EXPECT_GT(text.size(), 10u) << name;
    EXPECT_TRUE(texts.insert(text).second) << name;
  }
}

TEST(Status, UnknownNumbersHaveNames) {
  EXPECT_STREQ(status_name(static_cast<Status>(9999)), "UNKNOWN");
  EXPECT_STREQ(status_text(static_cast<Status>(9999)), "unknown status");
}

TEST(Result, HoldsAValueOrAnError) {
  Result<std::string> value(std::string("x"));
  ASSERT_TRUE(value);
  EXPECT_EQ(value.status(), Status::OK);
  EXPECT_EQ(*value, "x");
  EXPECT_EQ(value->size(), 1u);

  const Result<std::string> named(Error{Status::NO_SPACE, "/x is full"});
  EXPECT_FALSE(named);
  EXPECT_EQ(named.status(), Status::NO_SPACE);
  EXPECT_EQ(named.error().message(), "/x is full");

  const Result<std::string> plain(Status::NO_SPACE);
  EXPECT_EQ(plain.error().message(), status_text(Status::NO_SPACE));
}

TEST(Result, MovesItsValueOut) {
  Result<std::unique_ptr<int>> result(std::make_unique<int>(3));
  const std::unique_ptr<int> value = *std::move(result);
  EXPECT_EQ(*value, 3);
}

TEST(Result, OfNothing) {
  EXPECT_TRUE(Result<void>());
  EXPECT_TRUE(Result<void>(Status::OK));
  EXPECT_EQ(Result<void>(Status::BUSY).status(), Status::BUSY);
}

TEST(ResultDeathTest, TakingAMissingValueAborts) {
  Result<int> failed(Status::BUSY);
  EXPECT_DEATH(failed.value(), "assertion failed.*status.h");
  const Result<int> fine(1);
  EXPECT_DEATH((void)fine.error(), "assertion failed");
}

}  // namespace
}  // namespace bowhead
