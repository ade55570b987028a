// SPDX-License-Identifier: Apache-2.0
// The contract on memory of a machine that this test is run on for the purpose, such as a guest of
// tests/qemu: BOWHEAD_TEST_MEDIUM is dax:/dev/daxX.Y, whose content is lost, or numa:NODE.
#include <cstdlib>
#include <fstream>

#include "tests/media/contract.h"

namespace bowhead {
namespace {

std::string medium() {
  const char* given = std::getenv("BOWHEAD_TEST_MEDIUM");
  return given == nullptr ? "" : given;
}

/// The device's size, as a pool can use it.
uint64_t device_bytes() {
  const std::string locator = medium();
  if (!locator.starts_with("dax:")) return 0;
  uint64_t bytes = 0;
  std::ifstream("/sys/bus/dax/devices/" + locator.substr(locator.rfind('/') + 1) + "/size") >>
      bytes;
  return bytes / kMediaGrainBytes * kMediaGrainBytes;
}

std::string locator_of(const std::string& tag) {
  return medium().starts_with("dax:") ? medium() : medium() + "/" + tag;
}

std::string missing() {
  return medium().empty() ? "BOWHEAD_TEST_MEDIUM does not name a medium" : "";
}

INSTANTIATE_TEST_SUITE_P(Given, MediaContract,
                         testing::Values(MediaUnderTest{.name = "given",
                                                        .locator = locator_of,
                                                        .missing = missing,
                                                        .device_bytes = device_bytes()}),
                         [](const auto& media) { return media.param.name; });

}  // namespace
}  // namespace bowhead
