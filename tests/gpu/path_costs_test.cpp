// SPDX-License-Identifier: Apache-2.0
// The faster path is the one whose measured cost is lower, and what was measured is kept.
#include "gpu/path_costs.h"

#include <gtest/gtest.h>

#include "tests/gpu/devices.h"

namespace bowhead::gpu {
namespace {

/// A kernel at 50 GB/s after 10 us; copies at 60 GB/s after 20 us, of which each takes 1 us.
PathCosts costs_of_a_gpu() {
  PathCosts::Direction costs;
  costs.kernel_ns = 10'000;
  costs.kernel_byte_ns = {0.4, 0.2, 0.1, 0.02, 0.02};
  costs.copies_ns = 20'000;
  for (size_t i = 0; i < costs.copy_ns.size(); ++i)
    costs.copy_ns[i] = std::max(1000.0, static_cast<double>(PathCosts::kRunBytes[i]) / 60);
  return {costs, costs};
}

TEST(PathCosts, SendLongRunsByCopiesIfThereAreEnoughBytes) {
  const PathCosts costs = costs_of_a_gpu();
  constexpr uint64_t kMuch = 64 << 20;
  for (const uint64_t run : {1u, 64u, 160u, 4096u, 20480u})
    EXPECT_EQ(costs.faster(true, 16, run, kMuch), Path::KERNEL) << run;
  for (const uint64_t run : {128u << 10, 1u << 20, 2u << 20, 64u << 20})
    EXPECT_EQ(costs.faster(true, 16, run, kMuch), Path::COPIES) << run;
  EXPECT_EQ(costs.faster(true, 16, 256 << 10, 256 << 10), Path::KERNEL);
  EXPECT_EQ(costs.faster(true, 2, 20480, kMuch), Path::COPIES) << "small units";
}

TEST(PathCosts, AreThoseOfTheDirection) {
  PathCosts costs = costs_of_a_gpu();
  costs.restore.kernel_byte_ns.fill(0.001);
  EXPECT_EQ(costs.faster(true, 16, 2 << 20, 64 << 20), Path::COPIES);
  EXPECT_EQ(costs.faster(false, 16, 2 << 20, 64 << 20), Path::KERNEL);
}

TEST(PathCosts, AreKeptAndDoubted) {
  const PathCosts costs = costs_of_a_gpu();
  const auto again = PathCosts::from_json(costs.to_json());
  ASSERT_DONE(again);
  EXPECT_EQ(again->spill.kernel_byte_ns, costs.spill.kernel_byte_ns);
  EXPECT_EQ(again->restore.copy_ns, costs.restore.copy_ns);
  EXPECT_EQ(again->spill.kernel_ns, costs.spill.kernel_ns);
  EXPECT_EQ(again->spill.copies_ns, costs.spill.copies_ns);
  std::string other = costs.to_json();
  other.replace(other.find("\"version\": 1"), 12, "\"version\": 2");
  const std::string cut = costs.to_json().substr(0, 100);
  for (const std::string& text : {std::string(), std::string("[]"), cut, other})
    EXPECT_EQ(PathCosts::from_json(text).status(), Status::DAMAGED) << text;
}

class MeasuredCosts : public EveryDevice {};
INSTANTIATE_TEST_SUITE_P(Devices, MeasuredCosts, kEveryDevice, device_name);

TEST_P(MeasuredCosts, SayThatShortRunsTakeLongerByCopies) {
  const auto costs = measure_path_costs(device());
  ASSERT_DONE(costs);
  for (const PathCosts::Direction& one : {costs->spill, costs->restore}) {
    EXPECT_GT(one.kernel_ns, 0);
    EXPECT_GT(one.copies_ns, 0);
    EXPECT_GT(one.kernel_byte_ns[0], 0);
    EXPECT_GT(one.copy_ns.back(), 0);
    // The twin's copies cost nothing beside its sums.
    if (device().info().is_twin) continue;
    EXPECT_GT(one.copy_ns.front() / 128, one.copy_ns.back() / (2 << 20));
  }
}

TEST_P(MeasuredCosts, AreThoseOfTheFirstTime) {
  const auto first = path_costs(device()), again = path_costs(device());
  ASSERT_DONE(first);
  ASSERT_DONE(again);
  EXPECT_EQ(first->to_json(), again->to_json());
}

TEST(MeasuredCostsOfATwin, NameWhatIsNotThere) {
  const auto twin = Device::twin({.memory_bytes = 4096});
  EXPECT_EQ(measure_path_costs(*twin).status(), Status::NO_SPACE);
}

}  // namespace
}  // namespace bowhead::gpu
