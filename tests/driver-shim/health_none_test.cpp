// SPDX-License-Identifier: Apache-2.0
// A build without libcxl says so.
#include <gtest/gtest.h>

#include "driver-shim/health.h"

namespace bowhead {
namespace {

TEST(HealthNone, SaysThatTheBuildIsWithoutIt) {
  const auto health = shim::read_health("mem0");
  EXPECT_EQ(health.status(), Status::NOT_SUPPORTED);
  EXPECT_NE(health.error().message().find("libcxl"), std::string::npos);
}

}  // namespace
}  // namespace bowhead
