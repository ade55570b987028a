// SPDX-License-Identifier: Apache-2.0
// The benchmark of near-data operations runs and reports what docs/bench.md promises, its checks
// find wrong answers, and its limits do the work for which they are timed. No figure is asserted.
#include "bench/ndp_bench.h"

#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "bench/ndp_checks.h"
#include "bench/ndp_data.h"
#include "bench/ndp_limits.h"
#include "ndp/kernels.h"
#include "tests/bench/captured_run.h"
#include "tools/program/machine.h"

namespace bowhead::bench {
namespace {

constexpr NumberFormat kKinds[] = {NumberFormat::BF16, NumberFormat::FP16, NumberFormat::FP8_E4M3,
                                   NumberFormat::INT8};

class NdpBench : public ::testing::Test {
 protected:
  void SetUp() override {
    options_.rounds = 5;
    options_.quick = true;
    options_.json = true;
    options_.command = "the test";
  }

  int run() {
    return captured_([&] { return run_ndp_bench(options_); });
  }
  std::vector<nlohmann::json> lines() const { return captured_.lines(); }

  NdpBenchOptions options_;
  CapturedRun captured_{"ndp-bench-test"};
};

void expect_consistent(const nlohmann::json& line) {
  EXPECT_EQ(line.at("bench"), "ndp");
  EXPECT_EQ(line.at("command"), "the test");
  EXPECT_EQ(line.at("quick"), true);
  for (const char* field : {"commit", "date", "machine", "what"})
    EXPECT_TRUE(line.contains(field)) << field << " in " << line;
  EXPECT_EQ(line.at("value").at("rounds"), 5) << line;
  EXPECT_GT(line.at("value").at("min"), 0) << line;
  const bool is_limit = line.at("row") == "read" || line.at("row") == "multiply";
  EXPECT_EQ(line.at("unit"), line.at("row") == "multiply" ? "G/s" : "GB/s");
  ASSERT_EQ(line.contains("limit"), !is_limit) << line;
  if (is_limit) return;
  EXPECT_GT(line.at("limit").at("median"), 0) << line;
  EXPECT_GT(line.at("ratio").at("median"), 0) << line;
  if (!line.contains("target")) return;
  EXPECT_EQ(line.at("target").at("of"), "ratio");
  EXPECT_EQ(line.at("target").at("met"),
            line.at("ratio").at("median") >= line.at("target").at("bound"));
}

TEST_F(NdpBench, PrintsEveryRowAsDocumented) {
  ASSERT_EQ(run(), 0);
  const size_t cpus = this_machine().cpus.size();
  std::map<std::string, std::multiset<std::string>> rows;  // by number
  std::map<std::string, double> targets;
  for (const auto& line : lines()) {
    expect_consistent(line);
    const auto& parameters = line.at("parameters");
    const std::string number = parameters.at("number"), row = line.at("row");
    const bool all = parameters.at("cores") != 1;
    EXPECT_EQ(parameters.at("cores"), all ? cpus : 1);
    rows[number].insert(row);
    if (!line.contains("target")) continue;
    const std::string which =
        row + std::to_string(parameters.at("queries").get<int>()) + (all ? " all" : " one");
    targets[number + " " + which] = line.at("target").at("bound");
  }
  std::multiset<std::string> of_bf16, of_others;
  for (size_t i = 0; i < (cpus > 1 ? 2 : 1); ++i) {
    of_others.insert({"read", "multiply", "topk", "topk"});
    of_bf16.insert({"read", "multiply", "topk", "topk", "topk_pages", "topk_pages", "attend",
                    "attend_frames", "topk_frames", "topk_frames", "topk_frames_rows",
                    "topk_frames_rows", "score", "digest", "gather"});
  }
  EXPECT_EQ(rows["bf16"], of_bf16);
  for (const char* number : {"fp16", "fp8_e4m3", "int8"}) EXPECT_EQ(rows[number], of_others);
  std::map<std::string, double> wanted = {
      {"bf16 topk1 one", 0.90},       {"bf16 topk8 one", 0.85},
      {"bf16 topk_pages1 one", 0.75}, {"bf16 topk_pages8 one", 0.75},
      {"bf16 topk_frames8 one", 1.5}, {"bf16 topk_frames_rows8 one", 0.5}};
  if (cpus > 1)
    wanted.insert({{"bf16 topk1 all", 0.90},
                   {"bf16 topk8 all", 0.90},
                   {"bf16 topk_pages1 all", 0.75},
                   {"bf16 topk_pages8 all", 0.75},
                   {"bf16 topk_frames8 all", 1.5},
                   {"bf16 topk_frames_rows8 all", 0.5},
                   {"bf16 attend8 all", 0.70}});
  for (const std::string number : {"fp16", "fp8_e4m3", "int8"}) {
    for (const std::string which : {" topk1 one", " topk8 one", " topk1 all", " topk8 all"})
      if (cpus > 1 || which.ends_with("one")) wanted[number + which] = 0.80;
  }
  EXPECT_EQ(targets, wanted);
}

TEST_F(NdpBench, RefusesTooFewRounds) {
  options_.rounds = 4;
  EXPECT_EQ(run(), 2);
  EXPECT_TRUE(lines().empty());
}

class NdpBenchChecks : public ::testing::TestWithParam<NumberFormat> {
 protected:
  void SetUp() override { ASSERT_TRUE(data_.there()); }

  const NdpData data_{GetParam(), 1u << 20};
  const ndp::Queries queries_ = make_queries(8, kHeadChannels, GetParam());
  const std::vector<ndp::KeySpan> spans_ =
      data_.spans(data_.share(0, data_.bytes()), kHeadChannels, 0);
};

TEST_P(NdpBenchChecks, DataIsNormal) {
  double sum = 0, squares = 0, count = 0;
  for (const ndp::KeySpan& span : spans_) {
    EXPECT_EQ(span.keys.scales != nullptr, GetParam() == NumberFormat::INT8);
    std::vector<float> least(kHeadChannels), largest(kHeadChannels);
    for (uint32_t token = 0; token < kSpanTokens; ++token) {
      ndp::kKernelsScalar.bounds(span.keys, token, 1, least.data(), largest.data());
      for (const float value : least) {
        ASSERT_TRUE(std::isfinite(value));
        sum += value;
        squares += double{value} * value;
        ++count;
      }
    }
  }
  EXPECT_EQ(count, data_.bytes() / element_bytes(GetParam()));
  EXPECT_NEAR(sum / count, 0, 0.02);
  EXPECT_NEAR(squares / count, 1, 0.1);
}

TEST_P(NdpBenchChecks, FindWrongScores) {
  const size_t all = spans_.size() * kSpanTokens;
  std::vector<float> scores(all * queries_.count());
  ASSERT_TRUE(ndp::score(queries_, spans_, {}, scores));
  EXPECT_TRUE(check_scores(queries_, spans_, scores));
  scores[7 * all + kSpanTokens - 1] += 0.01f;
  EXPECT_EQ(check_scores(queries_, spans_, scores).status(), Status::DAMAGED);
}

TEST_P(NdpBenchChecks, FindWrongHits) {
  std::vector<float> scores(spans_.size() * kSpanTokens * queries_.count());
  ASSERT_TRUE(ndp::score(queries_, spans_, {}, scores));
  auto best = ndp::TopK::of(8, 64);
  ASSERT_TRUE(best);
  ASSERT_TRUE(best->add(queries_, spans_, {}));
  const auto found = best->hits(3);
  const std::vector<ndp::Hit> hits(found.begin(), found.end());
  EXPECT_TRUE(check_hits(queries_, spans_, scores, 3, hits));
  const auto refused = [&](std::vector<ndp::Hit> wrong) {
    return check_hits(queries_, spans_, scores, 3, wrong).status() == Status::DAMAGED;
  };
  auto wrong = hits;
  wrong.erase(wrong.begin() + 20);
  EXPECT_TRUE(refused(wrong)) << "one is missing";
  wrong = hits;
  wrong[20].score += 0.01f;
  EXPECT_TRUE(refused(wrong)) << "another score";
  wrong = hits;
  std::swap(wrong.front(), wrong.back());
  EXPECT_TRUE(refused(wrong)) << "another order";
  wrong = hits;
  wrong[1] = wrong[0];
  EXPECT_TRUE(refused(wrong)) << "one twice";
}

TEST_P(NdpBenchChecks, FindWrongAttention) {
  const ndp::KvSpan span = {0, spans_[0].keys, spans_[1].keys};
  const ndp::KvSpan other = {0, spans_[0].keys, spans_[2].keys};
  auto sums = ndp::Attention::of(8, kHeadChannels);
  ASSERT_TRUE(sums);
  ASSERT_TRUE(sums->add(queries_, std::span(&span, 1), {}));
  EXPECT_TRUE(check_attention(queries_, std::span(&span, 1), *sums));
  EXPECT_EQ(check_attention(queries_, std::span(&other, 1), *sums).status(), Status::DAMAGED);
}

TEST_P(NdpBenchChecks, FindWrongDigests) {
  auto digests = ndp::digest(spans_[1], 16);
  ASSERT_TRUE(digests);
  EXPECT_TRUE(check_digests(spans_[1], *digests));
  digests->least.back() *= 0.5f;
  EXPECT_EQ(check_digests(spans_[1], *digests).status(), Status::DAMAGED);
}

INSTANTIATE_TEST_SUITE_P(Kinds, NdpBenchChecks, ::testing::ValuesIn(kKinds),
                         [](const auto& kind) { return std::string(number_name(kind.param)); });

TEST(NdpLimits, ReadEveryWord) {
  PrivateMemory memory(8192);
  ASSERT_NE(memory.data(), nullptr);
  EXPECT_EQ(limit_kernels().read(memory.data(), 8192), 0u);
  for (size_t word = 0; word < 1024; ++word) {
    memory.words()[word] = word + 1;
    ASSERT_EQ(limit_kernels().read(memory.data(), 8192), word + 1);
    memory.words()[word] = 0;
  }
}

TEST(NdpLimits, MultiplyAsOftenAsAsked) {
  for (const NumberFormat kind : kKinds) {
    EXPECT_GE(multiplication(kind).run(100000), 100000u);
    EXPECT_LT(multiplication(kind).run(100000), 101000u);
  }
}

}  // namespace
}  // namespace bowhead::bench
