// SPDX-License-Identifier: Apache-2.0
#include "tools/bowhead/replay/histogram.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <random>
#include <vector>

namespace bowhead::replay {
namespace {

TEST(Histogram, BucketsAreInOrderWithoutGapsAndNarrow) {
  for (size_t bucket = 0; bucket + 1 < LatencyHistogram::kBuckets; ++bucket) {
    const uint64_t last = LatencyHistogram::bucket_last_ns(bucket);
    ASSERT_EQ(LatencyHistogram::bucket_of(last), bucket);
    ASSERT_EQ(LatencyHistogram::bucket_of(last + 1), bucket + 1);
    const uint64_t first = bucket == 0 ? 0 : LatencyHistogram::bucket_last_ns(bucket - 1) + 1;
    ASSERT_LE(last - first, first / 32) << bucket;
  }
  EXPECT_EQ(LatencyHistogram::bucket_last_ns(LatencyHistogram::kBuckets - 1), UINT64_MAX);
  EXPECT_EQ(LatencyHistogram::bucket_of(UINT64_MAX), LatencyHistogram::kBuckets - 1);
}

TEST(Histogram, QuantilesAreThoseOfTheSortedValues) {
  std::mt19937_64 random(1);
  auto histogram = std::make_unique<LatencyHistogram>();
  std::vector<uint64_t> values;
  for (int i = 0; i < 5000; ++i) {
    values.push_back(random() >> (random() % 60));
    histogram->record(values.back());
  }
  std::sort(values.begin(), values.end());
  for (const uint32_t permille : {1u, 500u, 900u, 990u, 999u, 1000u}) {
    const uint64_t exact = values[(values.size() * permille + 999) / 1000 - 1];
    const uint64_t found = histogram->quantile_ns(permille);
    EXPECT_GE(found, exact) << permille;
    EXPECT_LE(found - exact, exact / 32) << permille;
  }
  EXPECT_EQ(histogram->quantile_ns(1000), values.back());
}

TEST(Histogram, EmptyAndSingle) {
  auto histogram = std::make_unique<LatencyHistogram>();
  EXPECT_EQ(histogram->quantile_ns(500), 0u);
  histogram->record(1000);
  EXPECT_EQ(histogram->quantile_ns(1), 1000u);
  EXPECT_EQ(histogram->quantile_ns(999), 1000u);
}

TEST(Histogram, MergedIsAsIfRecordedInOne) {
  std::mt19937_64 random(2);
  auto a = std::make_unique<LatencyHistogram>();
  auto b = std::make_unique<LatencyHistogram>();
  auto both = std::make_unique<LatencyHistogram>();
  for (int i = 0; i < 1000; ++i) {
    const uint64_t value = random() % 100000;
    (i % 3 == 0 ? a : b)->record(value);
    both->record(value);
  }
  a->merge(*b);
  EXPECT_EQ(a->counts, both->counts);
  EXPECT_EQ(a->count, both->count);
  EXPECT_EQ(a->sum_ns, both->sum_ns);
  EXPECT_EQ(a->max_ns, both->max_ns);
}

}  // namespace
}  // namespace bowhead::replay
