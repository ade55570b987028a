// SPDX-License-Identifier: Apache-2.0
// Generated traces keep the promises of a Trace, follow from the seed, and resemble their workload.
#include "tools/bowhead/replay/generator.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>
#include <sstream>

#include "tools/bowhead/replay/models.h"

namespace bowhead::replay {
namespace {

constexpr Workload kWorkloads[] = {Workload::MULTITURN, Workload::AGENT, Workload::MIXED};

TEST(Generator, TheSameSeedMakesTheSameTraceAndAnotherSeedAnother) {
  for (const Workload workload : kWorkloads) {
    const Trace a = generate_trace(workload, 5, 2000);
    const Trace b = generate_trace(workload, 5, 2000);
    const Trace c = generate_trace(workload, 6, 2000);
    EXPECT_EQ(a.ids, b.ids);
    EXPECT_EQ(a.source, b.source);
    EXPECT_NE(a.ids, c.ids);
    EXPECT_NE(a.source, c.source);
  }
}

TEST(Generator, AShorterTraceIsTheBeginningOfALongerOne) {
  const Trace shorter = generate_trace(Workload::MIXED, 1, 500);
  const Trace longer = generate_trace(Workload::MIXED, 1, 1000);
  EXPECT_EQ(shorter.requests.size(), 500u);
  EXPECT_TRUE(std::equal(shorter.ids.begin(), shorter.ids.end(), longer.ids.begin()));
}

// The parser checks prefixes, block counts and ranges: a trace that it accepts and reads back equal
// is valid.
TEST(Generator, WrittenOutItIsAGoodTrace) {
  for (const Workload workload : kWorkloads) {
    const Trace trace = generate_trace(workload, 3, 3000);
    std::ostringstream text;
    uint64_t last_ms = 0;
    for (const Request& request : trace.requests) {
      EXPECT_GE(request.timestamp_ms, last_ms);
      last_ms = request.timestamp_ms;
      text << "{\"timestamp\":" << request.timestamp_ms
           << ",\"input_length\":" << request.input_tokens
           << ",\"output_length\":" << request.output_tokens << ",\"hash_ids\":[";
      const char* comma = "";
      for (const uint64_t id : trace.ids_of(request)) {
        text << comma << id;
        comma = ",";
      }
      text << "]}\n";
    }
    const auto read = parse_trace(text.str(), "generated", 0);
    ASSERT_TRUE(read) << read.error().message();
    EXPECT_EQ(read->ids, trace.ids);
    EXPECT_EQ(read->dense, trace.dense);
    EXPECT_EQ(read->distinct_blocks, trace.distinct_blocks);
  }
}

TEST(Generator, AgentsReuseMoreThanPeople) {
  const auto reuse = [](Workload workload) {
    const Trace trace = generate_trace(workload, 1, 6000);
    return static_cast<double>(infinite_hits(trace)) / static_cast<double>(trace.ids.size());
  };
  EXPECT_GT(reuse(Workload::MULTITURN), 0.5);
  EXPECT_LT(reuse(Workload::MULTITURN), reuse(Workload::MIXED));
  EXPECT_LT(reuse(Workload::MIXED), reuse(Workload::AGENT));
  EXPECT_LT(reuse(Workload::AGENT), 0.99);
}

TEST(Generator, AgentsShareToolsAndBranch) {
  const Trace trace = generate_trace(Workload::AGENT, 1, 4000);
  std::map<uint64_t, std::set<uint64_t>> followers;
  for (const Request& request : trace.requests) {
    const auto ids = trace.ids_of(request);
    for (size_t i = 1; i < ids.size(); ++i) followers[ids[i - 1]].insert(ids[i]);
  }
  size_t widest = 0;
  size_t forks = 0;
  for (const auto& [id, after] : followers) {
    widest = std::max(widest, after.size());
    forks += after.size() > 1;
  }
  EXPECT_GT(widest, 20u) << "tools, or a project, that many tasks begin with";
  EXPECT_GT(forks, 100u) << "branches, retries, and blocks that were not full when first sent";
}

}  // namespace
}  // namespace bowhead::replay
