// SPDX-License-Identifier: Apache-2.0
// LatencyHistogram: counts of durations with 3 % resolution from 1 ns to centuries.
//
// Plain data, zero means empty: it lies in memory shared by processes. One writer; readers read
// after the writer has ended.
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>

namespace bowhead::replay {

struct LatencyHistogram {
  static constexpr uint32_t kSubBuckets = 32;  ///< per doubling
  static constexpr uint32_t kSubBits = 5;
  static constexpr size_t kBuckets = (64 - kSubBits + 1) * kSubBuckets;

  std::array<uint64_t, kBuckets> counts;
  uint64_t count;
  uint64_t sum_ns;
  uint64_t max_ns;

  static constexpr size_t bucket_of(uint64_t ns) {
    if (ns < kSubBuckets) return ns;
    const uint32_t shift = static_cast<uint32_t>(std::bit_width(ns)) - 1 - kSubBits;
    return shift * kSubBuckets + (ns >> shift);
  }

  /// The longest duration that falls into a bucket.
  static constexpr uint64_t bucket_last_ns(size_t bucket) {
    if (bucket < kSubBuckets) return bucket;
    const uint64_t shift = bucket / kSubBuckets - 1;
    const uint64_t first = (bucket - shift * kSubBuckets) << shift;
    return first + ((uint64_t{1} << shift) - 1);
  }

  void record(uint64_t ns) {
    ++counts[bucket_of(ns)];
    ++count;
    sum_ns += ns;
    if (ns > max_ns) max_ns = ns;
  }

  void merge(const LatencyHistogram& other) {
    for (size_t i = 0; i < kBuckets; ++i) counts[i] += other.counts[i];
    count += other.count;
    sum_ns += other.sum_ns;
    if (other.max_ns > max_ns) max_ns = other.max_ns;
  }

  /// The shortest duration that `permille` of all do not exceed, rounded up to the end of its
  /// bucket and never above the longest; 0 if empty.
  uint64_t quantile_ns(uint32_t permille) const {
    const uint64_t rank = (count * permille + 999) / 1000;
    uint64_t seen = 0;
    for (size_t i = 0; i < kBuckets; ++i) {
      seen += counts[i];
      if (seen >= rank && seen > 0) return bucket_last_ns(i) < max_ns ? bucket_last_ns(i) : max_ns;
    }
    return max_ns;
  }
};

}  // namespace bowhead::replay
