// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "pool/media/media.h"

namespace bowhead {
namespace {

TEST(Locator, UnknownSchemesAreRefusedWithTheKnownOnes) {
  for (const char* locator : {"", ":", "shm", "file", "x", "SHM:x", " shm:x", "shmx:y", "/tmp/x"}) {
    const auto media = open_media(locator);
    ASSERT_EQ(media.status(), Status::BAD_LOCATOR) << locator;
    EXPECT_NE(
        media.error().message().find("shm:NAME or numa:NODE/NAME or dax:/dev/daxX.Y or file:/PATH"),
        std::string::npos);
    EXPECT_EQ(create_media(locator, {.size_bytes = 2 << 20}).status(), Status::BAD_LOCATOR);
    EXPECT_EQ(remove_media(locator).status(), Status::BAD_LOCATOR);
  }
}

}  // namespace
}  // namespace bowhead
