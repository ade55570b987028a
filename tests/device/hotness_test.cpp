// SPDX-License-Identifier: Apache-2.0
// The hotness unit finds the units that were accessed most, in order, within the error of its
// sampling; and epochs forget.
#include "firmware-sim/hotness.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <thread>

#include "base/random.h"

namespace bowhead::test {
namespace {

using device::HotnessConfig;
using device::HotnessMonitor;
using device::HotUnit;

constexpr uint64_t kLine = 64;
constexpr uint8_t kUnitLog2 = 16;
constexpr uint64_t kUnit = uint64_t{1} << kUnitLog2;

HotnessConfig config(uint8_t sampling_log2, uint32_t threshold) {
  return {.enabled = true,
          .unit_log2 = kUnitLog2,
          .sampling_log2 = sampling_log2,
          .threshold = threshold,
          .epoch_ms = 10};
}

std::vector<HotUnit> decode(const HotnessMonitor::HotList& list) {
  std::vector<HotUnit> units;
  for (const uint64_t entry : list.entries)
    units.push_back({entry >> HotnessMonitor::kCounterBits << list.config.unit_log2,
                     static_cast<uint32_t>(entry)});
  return units;
}

std::vector<HotUnit> read_all(HotnessMonitor& monitor) {
  return decode(monitor.read(monitor.state().head, 10'000, false).value());
}

/// Units drawn with weight 1 / rank; ranks are a random order of the units.
class Zipf {
 public:
  Zipf(size_t units, Random& random) : order_(units), sums_(units) {
    std::iota(order_.begin(), order_.end(), uint64_t{0});
    for (size_t i = units; i > 1; --i) std::swap(order_[i - 1], order_[random.below(i)]);
    double sum = 0;
    for (size_t i = 0; i < units; ++i) sums_[i] = sum += 1.0 / static_cast<double>(i + 1);
  }
  uint64_t draw(Random& random) const {
    const double at = static_cast<double>(random.below(1u << 30)) / (1u << 30) * sums_.back();
    return order_[size_t(std::upper_bound(sums_.begin(), sums_.end(), at) - sums_.begin())];
  }

 private:
  std::vector<uint64_t> order_;
  std::vector<double> sums_;
};

/// A bound that a binomial count with this expectation passes with probability below 1e-8.
double error_of(double expected) { return 6 * std::sqrt(expected) + 6; }

TEST(Hotness, FindsTheHotUnitsOfAZipfDistributionInOrder) {
  constexpr size_t kUnits = 4096;
  constexpr uint8_t kSamplingLog2 = 4;
  constexpr uint32_t kThreshold = 500;
  Random random(1);
  const Zipf zipf(kUnits, random);
  HotnessMonitor monitor(kUnits * kUnit);
  ASSERT_TRUE(monitor.configure(config(kSamplingLog2, kThreshold)));
  std::vector<double> expected(kUnits);
  for (int i = 0; i < 4'000'000; ++i) {
    const uint64_t unit = zipf.draw(random);
    monitor.note(unit * kUnit + random.below(kUnit / kLine) * kLine, kLine);
    expected[unit] += 1.0 / (1 << kSamplingLog2);
  }
  EXPECT_TRUE(read_all(monitor).empty()) << "before the epoch has ended";
  monitor.end_epoch();
  const auto hot = read_all(monitor);
  std::vector<bool> listed(kUnits);
  for (size_t i = 0; i < hot.size(); ++i) {
    const uint64_t unit = hot[i].offset / kUnit;
    listed[unit] = true;
    EXPECT_GT(hot[i].count, kThreshold);
    EXPECT_NEAR(hot[i].count, expected[unit], error_of(expected[unit]));
    // A unit that is clearly hotter comes first.
    for (size_t j = 0; j < i; ++j) {
      const double other = expected[hot[j].offset / kUnit];
      EXPECT_LT(expected[unit] - other, error_of(expected[unit] + other)) << j << " before " << i;
    }
  }
  size_t clearly_hot = 0;
  for (size_t unit = 0; unit < kUnits; ++unit) {
    const bool hot_here = expected[unit] > kThreshold + error_of(expected[unit]);
    clearly_hot += hot_here;
    if (hot_here) {
      EXPECT_TRUE(listed[unit]) << unit << " with " << expected[unit];
    }
    if (expected[unit] < kThreshold - error_of(expected[unit])) {
      EXPECT_FALSE(listed[unit]) << unit << " with " << expected[unit];
    }
  }
  EXPECT_GT(clearly_hot, 20u);
  EXPECT_LT(hot.size(), 200u);

  const auto hottest = monitor.hottest(10);
  ASSERT_EQ(hottest.size(), 10u);
  for (size_t i = 0; i < hottest.size(); ++i)
    EXPECT_EQ(std::tuple(hottest[i].offset, hottest[i].count),
              std::tuple(hot[i].offset, hot[i].count));
}

TEST(Hotness, CountsEveryLineOfARangeWithoutSampling) {
  HotnessMonitor monitor(100 * kUnit);
  ASSERT_TRUE(monitor.configure(config(0, 0)));
  monitor.note(kUnit - 1, 1);               // a line of unit 0
  monitor.note(kUnit - 1, 2);               // a line of 0 and one of 1
  monitor.note(3 * kUnit + 10, 2 * kUnit);  // all lines of 3 and 4, one of 5
  monitor.note(99 * kUnit, 10 * kUnit);     // beyond the capacity
  monitor.note(200 * kUnit, kUnit);         // likewise
  monitor.note(50 * kUnit, 0);
  monitor.end_epoch();
  std::vector<std::pair<uint64_t, uint32_t>> found;
  for (const HotUnit& unit : read_all(monitor)) found.emplace_back(unit.offset / kUnit, unit.count);
  const uint32_t all = kUnit / kLine;
  EXPECT_EQ(found, (std::vector<std::pair<uint64_t, uint32_t>>{
                       {3, all}, {4, all}, {99, all}, {0, 2}, {1, 1}, {5, 1}}));
}

/// Large and small accesses count by their lines: a range is not sampled as one access.
TEST(Hotness, SamplesLargeRangesInProportion) {
  constexpr uint8_t kSamplingLog2 = 8;
  HotnessMonitor monitor(64 * kUnit);
  ASSERT_TRUE(monitor.configure(config(kSamplingLog2, 0)));
  constexpr int kRounds = 2000;
  for (int i = 0; i < kRounds; ++i) {
    monitor.note(8 * kUnit, 4 * kUnit);
    for (int j = 0; j < 16; ++j) monitor.note(20 * kUnit + j * 4096, 4096);
  }
  monitor.end_epoch();
  const double expected = kRounds * double(kUnit / kLine) / (1 << kSamplingLog2);
  const auto hot = read_all(monitor);
  ASSERT_EQ(hot.size(), 5u);
  for (const HotUnit& unit : hot) EXPECT_NEAR(unit.count, expected, error_of(expected));
  EXPECT_NEAR(double(monitor.accessed_lines(8 * kUnit, 4 * kUnit)), 4.0 * kRounds * (kUnit / kLine),
              error_of(4 * expected) * (1 << kSamplingLog2));
}

/// Accesses at a fixed interval do not hide from samples at the same interval.
TEST(Hotness, PeriodicAccessesAreSampled) {
  constexpr uint8_t kSamplingLog2 = 4;
  HotnessMonitor monitor(64 * kUnit);
  ASSERT_TRUE(monitor.configure(config(kSamplingLog2, 0)));
  constexpr int kRounds = 100'000;
  for (int i = 0; i < kRounds; ++i) monitor.note(uint64_t(i % 16) * kUnit, kLine);
  monitor.end_epoch();
  const double expected = kRounds / 16.0 / (1 << kSamplingLog2);
  const auto hot = read_all(monitor);
  EXPECT_EQ(hot.size(), 16u);
  for (const HotUnit& unit : hot) EXPECT_NEAR(unit.count, expected, error_of(expected));
}

TEST(Hotness, EpochsForget) {
  HotnessMonitor monitor(64 * kUnit);
  ASSERT_TRUE(monitor.configure(config(0, 0)));
  monitor.note(7 * kUnit, kLine);
  monitor.end_epoch();
  EXPECT_EQ(monitor.accessed_lines(7 * kUnit, kUnit), 1u);
  const auto first = monitor.read(0, 100, false).value();
  ASSERT_EQ(first.entries.size(), 1u);
  monitor.note(9 * kUnit, kLine);
  monitor.end_epoch();
  EXPECT_EQ(monitor.state().epochs, 2u);
  EXPECT_EQ(monitor.accessed_lines(7 * kUnit, kUnit), 0u);
  ASSERT_EQ(monitor.hottest(10).size(), 1u);
  EXPECT_EQ(monitor.hottest(10)[0].offset, 9 * kUnit);
  const auto second = decode(monitor.read(1, 100, false).value());
  ASSERT_EQ(second.size(), 1u) << "the reader has read the first entry";
  EXPECT_EQ(second[0].offset, 9 * kUnit);
  monitor.end_epoch();
  EXPECT_TRUE(monitor.hottest(10).empty());
}

TEST(Hotness, AFullListKeepsTheHottestAndSaysThatItOverflowed) {
  constexpr uint64_t kUnits = 2000;
  HotnessMonitor monitor(kUnits * kUnit);
  ASSERT_TRUE(monitor.configure(config(0, 0)));
  // Unit n is accessed n times.
  for (uint64_t unit = 0; unit < kUnits; ++unit) {
    monitor.note(unit * kUnit, kLine * (unit % 1000));
    if (unit >= 1000) monitor.note(unit * kUnit, kLine * 1000);
  }
  monitor.end_epoch();
  EXPECT_TRUE(monitor.state().overflow);
  const auto hot = read_all(monitor);
  ASSERT_EQ(hot.size(), size_t{HotnessMonitor::kPlaces} - 1);
  EXPECT_TRUE(std::is_sorted(hot.begin(), hot.end(),
                             [](const auto& a, const auto& b) { return a.count > b.count; }));
  EXPECT_EQ(hot.front().offset, 1999 * kUnit);
  monitor.note(5 * kUnit, kLine);
  monitor.end_epoch();
  EXPECT_EQ(read_all(monitor).size(), hot.size()) << "there is no room";

  // Room for three; the ring goes round.
  EXPECT_TRUE(monitor.read(3, 0, true));
  EXPECT_FALSE(monitor.state().overflow);
  for (uint64_t unit = 10; unit < 14; ++unit) monitor.note(unit * kUnit, kLine * unit);
  monitor.end_epoch();
  EXPECT_TRUE(monitor.state().overflow);
  const auto after = read_all(monitor);
  ASSERT_EQ(after.size(), hot.size());
  EXPECT_EQ(after[0].offset, hot[3].offset);
  EXPECT_EQ(after.back().offset, 11 * kUnit);
  EXPECT_EQ(after[after.size() - 3].offset, 13 * kUnit);
}

TEST(Hotness, AHeadOutsideTheListIsRefused) {
  HotnessMonitor monitor(64 * kUnit);
  ASSERT_TRUE(monitor.configure(config(0, 0)));
  monitor.note(0, 3 * kUnit);
  monitor.end_epoch();
  EXPECT_EQ(monitor.read(4, 10, false).status(), Status::INVALID_ARGUMENT);
  EXPECT_EQ(monitor.read(HotnessMonitor::kPlaces, 10, false).status(), Status::INVALID_ARGUMENT);
  EXPECT_EQ(monitor.read(1, 10, false).value().entries.size(), 2u);
  EXPECT_EQ(monitor.read(0, 10, false).status(), Status::INVALID_ARGUMENT) << "it is read";
  EXPECT_EQ(monitor.read(3, 10, false).value().entries.size(), 0u);
}

TEST(Hotness, TimeEndsEpochs) {
  constexpr uint64_t kMs = 1'000'000;
  HotnessMonitor monitor(64 * kUnit);
  ASSERT_TRUE(monitor.configure(config(0, 0)));
  monitor.advance(1000 * kMs);  // begins the epoch
  monitor.note(0, kLine);
  monitor.advance(1000 * kMs + 10 * kMs - 1);
  EXPECT_EQ(monitor.state().epochs, 0u);
  monitor.advance(1000 * kMs + 10 * kMs);
  EXPECT_EQ(monitor.state().epochs, 1u);
  EXPECT_EQ(monitor.hottest(10).size(), 1u);
  monitor.advance(1050 * kMs);
  EXPECT_EQ(monitor.state().epochs, 2u) << "a late call ends one epoch";
  EXPECT_TRUE(monitor.hottest(10).empty());
}

TEST(Hotness, WhatIsDisabledCountsNothing) {
  HotnessMonitor monitor(64 * kUnit);
  monitor.note(0, kUnit);
  monitor.end_epoch();
  EXPECT_EQ(monitor.state().epochs, 0u);
  ASSERT_TRUE(monitor.configure(config(0, 0)));
  monitor.note(0, kUnit);
  HotnessConfig off = config(0, 0);
  off.enabled = false;
  ASSERT_TRUE(monitor.configure(off));
  monitor.note(0, kUnit);
  ASSERT_TRUE(monitor.configure(config(0, 0)));
  monitor.end_epoch();
  EXPECT_TRUE(monitor.hottest(10).empty()) << "configure() empties counters";
}

TEST(Hotness, RefusesImpossibleConfigurations) {
  HotnessMonitor small(64 << 20), large(uint64_t{1} << 40);
  EXPECT_EQ(small.unit_sizes() & 0xfff, 0u);
  EXPECT_NE(small.unit_sizes() & 1u << 12, 0u);
  EXPECT_EQ(large.unit_sizes() & 1u << 19, 0u);
  EXPECT_NE(large.unit_sizes() & 1u << 20, 0u);
  const auto status = [](HotnessMonitor& monitor, auto change) {
    HotnessConfig changed = config(0, 0);
    change(changed);
    return monitor.configure(changed).status();
  };
  EXPECT_EQ(status(small, [](auto& c) { c.unit_log2 = 12; }), Status::OK);
  EXPECT_EQ(status(large, [](auto& c) { c.unit_log2 = 12; }), Status::INVALID_ARGUMENT);
  EXPECT_EQ(status(small, [](auto& c) { c.unit_log2 = 31; }), Status::INVALID_ARGUMENT);
  EXPECT_EQ(status(small, [](auto& c) { c.unit_log2 = 255; }), Status::INVALID_ARGUMENT);
  EXPECT_EQ(status(small, [](auto& c) { c.sampling_log2 = 16; }), Status::INVALID_ARGUMENT);
  EXPECT_EQ(status(small, [](auto& c) { c.epoch_ms = 0; }), Status::INVALID_ARGUMENT);
  EXPECT_EQ(status(small, [](auto& c) { c.epoch_ms = 4'095'001; }), Status::INVALID_ARGUMENT);
}

TEST(Hotness, AccessesOfPartsOfAUnitAreEstimatedInProportion) {
  // The last unit is half a unit.
  HotnessMonitor monitor(10 * kUnit + kUnit / 2);
  ASSERT_TRUE(monitor.configure(config(0, 0)));
  monitor.note(2 * kUnit, kUnit);
  monitor.note(10 * kUnit, kUnit / 2);
  EXPECT_EQ(monitor.accessed_lines(0, 100 * kUnit), 0u) << "no epoch has ended";
  monitor.end_epoch();
  const uint64_t lines = kUnit / kLine;
  EXPECT_EQ(monitor.accessed_lines(2 * kUnit, kUnit / 4), lines / 4);
  EXPECT_EQ(monitor.accessed_lines(2 * kUnit - 100, kUnit / 2 + 100), lines / 2);
  EXPECT_EQ(monitor.accessed_lines(10 * kUnit, 5 * kUnit), lines / 2);
  EXPECT_EQ(monitor.accessed_lines(0, 100 * kUnit), lines + lines / 2);
  EXPECT_EQ(monitor.accessed_lines(11 * kUnit, kUnit), 0u);
}

/// H1: no count is lost between epochs and threads.
TEST(Hotness, ThreadsLoseNoCount) {
  constexpr uint64_t kUnits = 2;
  constexpr int kThreads = 4, kRounds = 4'000'000;
  HotnessMonitor monitor(kUnits * kUnit);
  ASSERT_TRUE(monitor.configure(config(0, 0)));
  std::atomic<int> running{kThreads};
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < kRounds; ++i) monitor.note(uint64_t(t + i) % kUnits * kUnit, kLine);
      --running;
    });
  }
  uint64_t sum = 0;
  uint16_t head = 0;
  const auto take = [&] {
    monitor.end_epoch();
    const auto list = monitor.read(head, HotnessMonitor::kPlaces, false).value();
    for (const uint64_t entry : list.entries) sum += static_cast<uint32_t>(entry);
    head = static_cast<uint16_t>((head + list.entries.size()) % HotnessMonitor::kPlaces);
  };
  while (running > 0) take();
  for (std::thread& thread : threads) thread.join();
  take();
  EXPECT_FALSE(monitor.state().overflow);
  EXPECT_EQ(sum, uint64_t{kThreads} * kRounds);
}

}  // namespace
}  // namespace bowhead::test
