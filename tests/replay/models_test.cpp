// SPDX-License-Identifier: Apache-2.0
// The models against slow oracles written from the definitions: LRU as a sorted list of times, the
// best possible by trying every set of blocks that a cache could keep.
#include "tools/bowhead/replay/models.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <map>
#include <random>
#include <vector>

namespace bowhead::replay {
namespace {

Trace trace_of(const std::vector<std::vector<uint32_t>>& requests) {
  Trace trace;
  std::map<uint32_t, uint32_t> dense;
  for (const auto& blocks : requests) {
    Request request;
    request.first_block = static_cast<uint32_t>(trace.ids.size());
    request.block_count = static_cast<uint32_t>(blocks.size());
    for (const uint32_t block : blocks) {
      trace.ids.push_back(block);
      trace.dense.push_back(dense.try_emplace(block, trace.distinct_blocks).first->second);
      trace.distinct_blocks = static_cast<uint32_t>(dense.size());
    }
    trace.requests.push_back(request);
  }
  return trace;
}

// Requests that are paths from the root of a random tree: equal blocks have equal prefixes.
Trace random_trace(std::mt19937_64& random, uint32_t blocks, size_t requests) {
  std::vector<uint32_t> parent(blocks);
  for (uint32_t i = 0; i < blocks; ++i) {
    parent[i] = static_cast<uint32_t>(random() % (i + 1));  // itself: a root
  }
  std::vector<std::vector<uint32_t>> paths;
  for (size_t i = 0; i < requests; ++i) {
    std::vector<uint32_t> path;
    uint32_t block = static_cast<uint32_t>(random() % blocks);
    path.push_back(block);
    while (parent[block] != block) path.push_back(block = parent[block]);
    std::reverse(path.begin(), path.end());
    paths.push_back(path);
  }
  return trace_of(paths);
}

uint64_t slow_lru(const Trace& trace, uint64_t capacity) {
  std::map<uint32_t, uint64_t> used;  // when; higher is more recent
  uint64_t now = 0;
  uint64_t hits = 0;
  for (const Request& request : trace.requests) {
    const auto blocks = trace.dense_of(request);
    bool prefix = true;
    for (const uint32_t block : blocks) {
      prefix = prefix && used.contains(block);
      hits += prefix;
    }
    for (size_t i = 0; i < blocks.size(); ++i) used[blocks[i]] = now + blocks.size() - i;
    now += blocks.size() + 1;
    while (used.size() > capacity) {
      used.erase(std::min_element(used.begin(), used.end(),
                                  [](auto& a, auto& b) { return a.second < b.second; }));
    }
  }
  return hits;
}

// The most hits over all choices of the blocks to keep after each request.
uint64_t slow_best(const Trace& trace, uint64_t capacity) {
  std::map<uint32_t, uint64_t> best = {{0, 0}};  // set of cached blocks -> hits so far
  for (const Request& request : trace.requests) {
    std::map<uint32_t, uint64_t> next;
    for (const auto& [cached, hits] : best) {
      uint32_t have = cached;
      uint64_t gained = 0;
      bool prefix = true;
      for (const uint32_t block : trace.dense_of(request)) {
        prefix = prefix && (cached >> block & 1) != 0;
        gained += prefix;
        have |= 1u << block;
      }
      for (uint32_t keep = have;; keep = (keep - 1) & have) {
        if (static_cast<uint64_t>(std::popcount(keep)) <= capacity) {
          uint64_t& known = next[keep];
          known = std::max(known, hits + gained);
        }
        if (keep == 0) break;
      }
    }
    best = std::move(next);
  }
  uint64_t most = 0;
  for (const auto& [cached, hits] : best) most = std::max(most, hits);
  return most;
}

TEST(Models, KnownByHand) {
  // a b | c d | a b, in a cache of 2 blocks.
  const Trace trace = trace_of({{0, 1}, {2, 3}, {0, 1}});
  EXPECT_EQ(infinite_hits(trace), 2u);
  EXPECT_EQ(lru_hits(trace, 2), 0u);
  EXPECT_EQ(best_hits(trace, 2), 2u);
  EXPECT_EQ(best_hits(trace, 1), 1u);
  EXPECT_EQ(lru_hits(trace, 4), 2u);
}

TEST(Models, LruKeepsThePrefixOfARequestThatDoesNotFit) {
  const Trace trace = trace_of({{0, 1, 2, 3}, {0, 1, 2, 3}});
  EXPECT_EQ(lru_hits(trace, 3), 3u);
  EXPECT_EQ(best_hits(trace, 3), 3u);
}

TEST(Models, NoCapacityNoHits) {
  const Trace trace = trace_of({{0, 1}, {0, 1}});
  EXPECT_EQ(lru_hits(trace, 0), 0u);
  EXPECT_EQ(best_hits(trace, 0), 0u);
}

TEST(Models, AgreeWithSlowOraclesOnSmallTraces) {
  std::mt19937_64 random(1);
  for (int round = 0; round < 60; ++round) {
    const uint32_t blocks = 2 + static_cast<uint32_t>(random() % 7);
    const Trace trace = random_trace(random, blocks, 1 + random() % 20);
    for (uint64_t capacity = 0; capacity <= blocks; ++capacity) {
      ASSERT_EQ(lru_hits(trace, capacity), slow_lru(trace, capacity))
          << "round " << round << " capacity " << capacity;
      ASSERT_EQ(best_hits(trace, capacity), slow_best(trace, capacity))
          << "round " << round << " capacity " << capacity;
    }
    EXPECT_EQ(lru_hits(trace, blocks), infinite_hits(trace));
  }
}

TEST(Models, LruAgreesWithTheSlowOneOnALargerTrace) {
  std::mt19937_64 random(2);
  const Trace trace = random_trace(random, 300, 1500);
  for (const uint64_t capacity : {1, 10, 50, 150, 299, 300}) {
    EXPECT_EQ(lru_hits(trace, capacity), slow_lru(trace, capacity)) << capacity;
    EXPECT_GE(best_hits(trace, capacity), lru_hits(trace, capacity));
    EXPECT_LE(best_hits(trace, capacity), infinite_hits(trace));
  }
}

}  // namespace
}  // namespace bowhead::replay
