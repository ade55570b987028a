// SPDX-License-Identifier: Apache-2.0
// The operations compared with the oracle, and the rules that they state: for the order of hits,
// for NaN, and for wrong arguments. CMake runs it once for each instruction set.
#include "ndp/operations.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>

#include "ndp/kernels.h"
#include "ndp/numbers.h"
#include "ndp/plane_keys.h"
#include "tests/ndp/check.h"

namespace bowhead::test {
namespace {

using ndp::better;
using ndp::Hit;
using ndp::KeySpan;
using ndp::Queries;
using ndp::Rows;
using ndp::TopK;
using ndp::Visible;

constexpr float kInfinity = std::numeric_limits<float>::infinity();
const float kNan = std::nanf("");

TEST(Operations, AnswerAsTheOracle) {
  for (uint64_t seed = 1; seed <= 6; ++seed) {
    for (const Shape& shape : shapes_to_check(seed)) ASSERT_EQ(check_all(shape, seed), "");
  }
}

TEST(Operations, SumRows) {
  for (const uint32_t channels : {64u, 128u, 576u, 1024u}) {
    ASSERT_EQ(check_dots(channels, 2), "");
    ASSERT_EQ(check_products(channels, 2), "");
  }
}

TEST(Operations, ChooseTheBest) { ASSERT_EQ(check_best(3), ""); }

TEST(Operations, ChooseTheBestOfHitsThatAreEqual) {
  std::vector<Hit> hits = {{1, 4}, {1, 4}, {1, 4}, {3, 2}, {2, 9}};
  ndp::BestHits chooser;
  EXPECT_EQ(chooser.keep(hits, 3), Hit({1, 4}));
  hits.resize(3);
  EXPECT_EQ(hits, std::vector<Hit>({{1, 4}, {3, 2}, {2, 9}}));
}

/// A latent of fp8 with a scale for each 128 channels, and rotary channels of bf16; and others.
TEST(Operations, OfRowsInParts) {
  using enum NumberFormat;
  const Shape of_a_latent{
      .number = FP8_E4M3,
      .queries = 16,
      .key_channels = 128,
      .value_channels = 128,
      .tokens = 130,
      .latent = true,
      .with_scales = true,
      .more_keys = {{FP8_E4M3, 128, true},
                    {FP8_E4M3, 128, true},
                    {FP8_E4M3, 128, true},
                    {BF16, 64, false}},
      .more_values = {{FP8_E4M3, 128, true}, {FP8_E4M3, 128, true}, {FP8_E4M3, 128, true}}};
  for (uint64_t seed = 1; seed <= 3; ++seed) ASSERT_EQ(check_all(of_a_latent, seed), "");
  for (Shape shape : shapes_to_check(7)) {
    shape.latent = false;
    shape.value_channels = (shape.value_channels + 63) / 64 * 64;
    shape.more_keys = {{INT8, 24, true}, {FP16, 1, false}, {shape.number, 65, shape.with_scales}};
    shape.more_values = {{INT8, 64, true}, {FP8_E5M2, 7, false}};
    ASSERT_EQ(check_all(shape, 2), "");
  }
}

TEST(Operations, OfLatentAttention) {
  const Shape shape{
      .queries = 16, .key_channels = 576, .value_channels = 512, .tokens = 130, .latent = true};
  ASSERT_EQ(check_all(shape, 1), "");
}

TEST(Operations, OfManyTokens) {
  const Shape shape{.queries = 4,
                    .key_channels = 128,
                    .value_channels = 128,
                    .tokens = 5000,
                    .most_in_a_span = 600};
  ASSERT_EQ(check_all(shape, 1), "");
}

/// Every bit pattern of every number format, once as a key and once as a value.
TEST(Operations, KnowEveryNumber) {
  for (const NumberFormat number : {NumberFormat::BF16, NumberFormat::FP16, NumberFormat::FP8_E4M3,
                                    NumberFormat::FP8_E5M2, NumberFormat::INT8}) {
    const uint32_t bytes = element_bytes(number);
    const uint32_t count = bytes == 1 ? 256 : 65536;
    std::vector<uint8_t> data(size_t{count} * bytes);
    for (uint32_t i = 0; i < count; ++i) std::memcpy(&data[size_t{i} * bytes], &i, bytes);
    const KeySpan span{0, {number, 1, count, data.data(), bytes}};
    const float one = 1;
    std::vector<float> scores(count);
    ASSERT_TRUE(ndp::score(Queries::of({&one, 1}, 1, 1, 1, number).value(), std::span(&span, 1), {},
                           scores));
    for (uint32_t i = 0; i < count; ++i) {
      const double want = oracle_value(number_name(number), i);
      const bool denormal = std::abs(want) < std::numeric_limits<float>::min();
      const double error = denormal ? 0x1p-126 : std::abs(want) * ndp::kScoreTolerance;
      const bool same = std::isnan(want)   ? std::isnan(scores[i])
                        : std::isinf(want) ? scores[i] == want
                                           : std::abs(scores[i] - want) <= error;
      ASSERT_TRUE(same) << number_name(number) << " " << i << ": " << scores[i] << ", not " << want;
    }
  }
}

/// The largest sums of whole numbers, for every group of queries.
TEST(Operations, OfInt8DoNotOverflow) {
  for (const int key : {-128, -1, 0, 127}) {
    const std::vector<int8_t> rows(size_t{20} * ndp::kMaxChannels, static_cast<int8_t>(key));
    const KeySpan span{
        0, {NumberFormat::INT8, ndp::kMaxChannels, 20, rows.data(), ndp::kMaxChannels, nullptr}};
    for (const uint32_t count : {1u, 2u, 4u, 8u}) {
      for (const float sign : {-1.0f, 1.0f}) {
        const std::vector<float> ones(size_t{count} * ndp::kMaxChannels, sign);
        std::vector<float> scores(count * 20);
        ASSERT_TRUE(
            ndp::score(Queries::of(ones, count, ndp::kMaxChannels, 1, NumberFormat::INT8).value(),
                       std::span(&span, 1), {}, scores));
        const float want = sign * static_cast<float>(key) * ndp::kMaxChannels;
        for (const float score : scores)
          EXPECT_NEAR(score, want, std::abs(want) * ndp::kScoreTolerance);
      }
    }
  }
}

/// As kernels of two terms have them: words of bf16, and bytes of whole numbers times the factor.
TEST(Operations, OfTheLargestAndTheSmallestQueries) {
  constexpr uint32_t kChannels = 64;
  const float most = std::numeric_limits<float>::max();
  const std::vector<float> large(kChannels, most);
  const auto words = Queries::of(large, 1, kChannels, 1, NumberFormat::BF16).value();
  ASSERT_EQ(words.terms(), 2u);
  EXPECT_EQ(words.group(0, 0)[0], 0x7F7F7F7Fu);
  const auto rest = static_cast<double>(ndp::from_bf16(words.group(0, 1)[0] & 0xFFFF));
  EXPECT_NEAR(static_cast<double>(ndp::from_bf16(0x7F7F)) + rest, static_cast<double>(most),
              static_cast<double>(most) * 0x1p-16);
  for (const float size : {1e-36f, 1e-30f, 1.0f, most}) {
    std::vector<float> values(kChannels, size);
    values[1] = size / 3;
    const auto bytes = Queries::of(values, 1, kChannels, 1, NumberFormat::INT8).value();
    const auto number = [&](uint32_t c) {
      const auto part = [&](uint32_t term) {
        return static_cast<int8_t>(bytes.group(0, term)[0] >> c * 8);
      };
      return static_cast<double>(part(0) * 256 + part(1)) * static_cast<double>(*bytes.factors(0));
    };
    for (const uint32_t c : {0u, 1u})
      EXPECT_NEAR(number(c), static_cast<double>(values[c]), static_cast<double>(size) * 0x1p-14);
  }
}

// ---- the order of hits ----

TEST(Order, IsByScoreThenByToken) {
  EXPECT_TRUE(better({2, 9}, {1, 0}));
  EXPECT_TRUE(better({1, 0}, {1, 1}));
  EXPECT_TRUE(better({-0.0f, 0}, {0.0f, 1}));
  EXPECT_TRUE(better({0.0f, 0}, {-0.0f, 1}));
  EXPECT_TRUE(better({-kInfinity, 9}, {kNan, 0}));
  EXPECT_FALSE(better({kNan, 0}, {-kInfinity, 9}));
  EXPECT_TRUE(better({kNan, 0}, {kNan, 1}));
  EXPECT_FALSE(better({1, 1}, {1, 1}));
}

TEST(Order, OfTiesIsTheEarlierTokens) {
  const std::vector<float> ones(64, 1);
  std::vector<uint16_t> rows(size_t{3000} * 64, 0x3F80);
  const auto queries = Queries::of(ones, 1, 64, 1, NumberFormat::BF16).value();
  std::vector<KeySpan> spans;
  for (const uint32_t first : {2000u, 0u, 1000u})
    spans.push_back({first, {NumberFormat::BF16, 64, 1000, &rows[first * 64], 128}});
  auto best = TopK::of(1, 100).value();
  ASSERT_TRUE(best.add(queries, spans, Visible{.begin = 10}));
  ASSERT_EQ(best.hits(0).size(), 100u);
  for (uint32_t i = 0; i < 100; ++i) EXPECT_EQ(best.hits(0)[i], (Hit{64, 10 + i}));
}

// ---- NaN ----

TEST(NotANumber, ComesLast) {
  Problem p({.tokens = 300}, 1);
  p.set_key(7, 3, 0x7FC0);
  const auto queries = p.queries();
  const auto spans = p.key_spans();
  for (const uint32_t k : {299u, 300u}) {
    auto best = TopK::of(1, k).value();
    ASSERT_TRUE(best.add(queries, spans, {}));
    ASSERT_EQ(best.hits(0).size(), k);
    for (uint32_t i = 0; i < 299; ++i) EXPECT_FALSE(std::isnan(best.hits(0)[i].score));
    if (k == 300) {
      EXPECT_EQ(best.hits(0)[299].token, 7u);
    }
  }
}

/// At any place among the numbers, one of which is the largest.
TEST(NotANumber, InAQueryShowsInItsScores) {
  constexpr uint32_t kChannels = 64;
  const std::vector<uint8_t> ones(kChannels * 2, 1);
  for (const NumberFormat number : {NumberFormat::BF16, NumberFormat::FP16, NumberFormat::FP8_E4M3,
                                    NumberFormat::FP8_E5M2, NumberFormat::INT8}) {
    const KeySpan span{0, {number, kChannels, 1, ones.data(), kChannels * 2}};
    for (const uint32_t at : {0u, 30u, kChannels - 1}) {
      std::vector<float> query(kChannels, 1);
      for (const float odd : {kNan, kInfinity}) {
        if (odd == kInfinity && number != NumberFormat::INT8) continue;
        query[at] = odd;
        const auto queries = Queries::of(query, 1, kChannels, 1, number).value();
        for (const ndp::Kernels* kernels : ndp::kernels_here()) {
          std::array<float, ndp::kTileTokens> scores{};
          kernels->score(queries, span.keys, 0, 1, scores.data());
          EXPECT_TRUE(std::isnan(scores[0])) << number_name(number) << " " << at;
        }
      }
    }
  }
}

TEST(NotANumber, InAKeyShowsInItsQueriesOutputs) {
  Problem p({.queries = 2, .tokens = 300}, 1);
  p.set_key(7, 3, 0x7FC0);
  auto attention = ndp::Attention::of(2, 64).value();
  ASSERT_TRUE(attention.add(p.queries(), p.spans(), {}));
  std::vector<float> out(64);
  ASSERT_EQ(attention.output(0, out), Status::OK);
  EXPECT_TRUE(std::isnan(out[0]));
  EXPECT_TRUE(std::isnan(attention.log_sum_exp(1)));
  auto without = ndp::Attention::of(2, 64).value();
  ASSERT_TRUE(without.add(p.queries(), p.spans(), Visible{.begin = 8}));
  ASSERT_EQ(without.output(0, out), Status::OK);
  EXPECT_FALSE(std::isnan(out[0]));
}

/// Neither a key nor a value of a token that another query of the same call sees.
TEST(NotANumber, StaysWithTheQueriesThatSeeIt) {
  for (const uint32_t nan_at : {5u, 69u}) {
    Problem p({.queries = 3, .tokens = 70, .most_in_a_span = 70, .latent = true}, 1);
    p.set_key(nan_at, 3, 0x7FC0);
    const std::vector<Visible> each = {{.end = nan_at}, {}, {.begin = nan_at + 1, .sinks = nan_at}};
    const ndp::Views views = std::span<const Visible>(each);
    auto attention = ndp::Attention::of(3, 64).value();
    auto best = TopK::of(3, 70).value();
    std::vector<float> scores(3 * 70);
    ASSERT_TRUE(attention.add(p.queries(), p.spans(), views));
    ASSERT_TRUE(best.add(p.queries(), p.key_spans(), views));
    ASSERT_TRUE(ndp::score(p.queries(), p.key_spans(), views, scores));
    const auto any_nan = [](std::span<const float> of) {
      return std::any_of(of.begin(), of.end(), [](float x) { return std::isnan(x); });
    };
    for (uint32_t q = 0; q < 3; ++q) {
      std::vector<float> out(64);
      ASSERT_EQ(attention.output(q, out), Status::OK);
      EXPECT_EQ(any_nan(out), q == 1);
      EXPECT_EQ(std::isnan(attention.log_sum_exp(q)), q == 1);
      EXPECT_EQ(std::isnan(best.hits(q).back().score), q == 1);
      EXPECT_EQ(any_nan(std::span(scores).subspan(q * 70, 70)), q == 1);
    }
  }
}

TEST(Views, AreOneForAllOrOneForEach) {
  const Problem p({.queries = 3}, 1);
  const std::vector<Visible> two(2), none;
  for (const std::vector<Visible>& each : {two, none}) {
    const ndp::Views views = std::span<const Visible>(each);
    auto best = TopK::of(3, 1).value();
    auto attention = ndp::Attention::of(3, 64).value();
    std::vector<float> scores(600), mass(200), sums(3);
    const std::string number = std::to_string(each.size()) + " views of 3 queries";
    for (const Result<void>& refused :
         {best.add(p.queries(), p.key_spans(), views), attention.add(p.queries(), p.spans(), views),
          ndp::score(p.queries(), p.key_spans(), views, scores),
          ndp::add_mass(p.queries(), p.key_spans(), views, sums, mass)}) {
      ASSERT_EQ(refused.status(), Status::INVALID_ARGUMENT);
      EXPECT_NE(refused.error().detail.find(number), std::string::npos) << refused.error().detail;
    }
    EXPECT_EQ(ndp::select_pages(p.queries(), {}, views, 1).status(), Status::INVALID_ARGUMENT);
  }
}

/// By the oracle, from every query's scores.
TEST(Sums, AreOfTheScoresOfAGroup) {
  for (const NumberFormat number :
       {NumberFormat::BF16, NumberFormat::FP8_E4M3, NumberFormat::INT8}) {
    for (const bool rectified : {false, true}) {
      for (const float cap : {0.0f, 2.0f}) {
        constexpr uint32_t kQueries = 12, kGroup = 4, kAnswers = kQueries / kGroup;
        const Problem p({.number = number,
                         .queries = kQueries,
                         .tokens = 150,
                         .with_scales = true,
                         .float_queries = true,
                         .soft_cap = cap},
                        7);
        std::vector<float> weights;
        for (uint32_t q = 0; q < kQueries; ++q) weights.push_back(static_cast<float>(q) * 0.3f - 1);
        const Queries sums = p.queries().summed(weights, kGroup, rectified).value();
        ASSERT_EQ(sums.answers(), kAnswers);
        const std::vector<Visible> each = {{.end = 100}, {}, {.begin = 70, .sinks = 3}};
        const ndp::Views views = std::span<const Visible>(each);
        std::vector<float> scores(size_t{kAnswers} * 150);
        const auto spans = p.key_spans();
        ASSERT_TRUE(ndp::score(sums, spans, views, scores));
        auto best = TopK::of(kAnswers, 5).value();
        ASSERT_TRUE(best.add(sums, spans, views));
        for (uint32_t a = 0; a < kAnswers; ++a) {
          std::vector<Hit> order;
          const float* at = &scores[size_t{a} * 150];
          for (const KeySpan& span : spans) {
            for (uint32_t i = 0; i < span.keys.tokens; ++i, ++at) {
              const uint32_t token = span.first_token + i;
              double sum = 0, reach = 0;
              for (uint32_t q = a * kGroup; q < (a + 1) * kGroup; ++q) {
                const double one =
                    oracle_score(p.query(q), p.sequence().keys[token], p.scale(), cap);
                sum += weights[q] * (rectified ? std::max(one, 0.0) : one);
                reach +=
                    std::abs(weights[q]) * oracle_reach(p.query(q), p.sequence().keys[token],
                                                        p.scale(), number == NumberFormat::INT8);
              }
              if (!each[a].has(token)) {
                ASSERT_EQ(*at, -kInfinity);
                continue;
              }
              ASSERT_NEAR(*at, sum, ndp::kScoreTolerance * reach * 1.1) << token;
              order.push_back({*at, token});
            }
          }
          std::sort(order.begin(), order.end(), better);
          const auto hits = best.hits(a);
          ASSERT_EQ(hits.size(), 5u);
          for (size_t i = 0; i < hits.size(); ++i) ASSERT_EQ(hits[i], order[i]);
        }
      }
    }
  }
}

TEST(Sums, AreRefusedWhereTheyMeanNothing) {
  const Problem p({.queries = 4}, 1);
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const std::vector<float> weights(4, 1), few(3, 1), odd = {1, nan, 1, 1};
  EXPECT_EQ(p.queries().summed(few, 2, false).status(), Status::INVALID_ARGUMENT);
  EXPECT_EQ(p.queries().summed(odd, 2, false).status(), Status::INVALID_ARGUMENT);
  EXPECT_EQ(p.queries().summed(weights, 0, false).status(), Status::INVALID_ARGUMENT);
  EXPECT_EQ(p.queries().summed(weights, 3, false).status(), Status::INVALID_ARGUMENT);
  const Queries sums = p.queries().summed(weights, 2, true).value();
  auto best = TopK::of(4, 1).value();
  EXPECT_EQ(best.add(sums, p.key_spans(), {}).status(), Status::INVALID_ARGUMENT);
  auto attention = ndp::Attention::of(4, 64).value();
  EXPECT_EQ(attention.add(sums, p.spans(), {}).status(), Status::INVALID_ARGUMENT);
  EXPECT_EQ(ndp::select_pages(sums, {}, {}, 1).status(), Status::INVALID_ARGUMENT);
  EXPECT_EQ(ndp::exact_top_k(sums, {}, {}, 1).status(), Status::INVALID_ARGUMENT);
}

TEST(SoftCap, HasToBeANumber) {
  for (const float cap : {-1.0f, kInfinity, std::numeric_limits<float>::quiet_NaN()})
    EXPECT_EQ(Queries::of(std::vector<float>(64), 1, 64, 1, NumberFormat::BF16, cap).status(),
              Status::INVALID_ARGUMENT);
}

/// Of every set, for numbers of every size.
TEST(SoftCap, BendsAsTheHyperbolicTangent) {
  for (const ndp::Kernels* kernels : ndp::kernels_here()) {
    for (const float cap : {1e-30f, 0.5f, 30.0f, 1e30f, 1e38f}) {
      for (float size = std::min(1e-6f, 1e-3f / cap); size < std::min(1e3f, 3e38f / cap);
           size *= 1.7f) {
        std::array<float, ndp::kTileTokens> values;
        for (uint32_t i = 0; i < values.size(); ++i)
          values[i] = cap * size * (static_cast<float>(i) - 31.5f) / 32;
        auto capped = values;
        kernels->soft_cap(capped.data(), cap);
        for (uint32_t i = 0; i < values.size(); ++i) {
          const double wanted = double{cap} * std::tanh(double{values[i]} / cap);
          ASSERT_NEAR(capped[i], wanted, std::abs(wanted) * 0x1p-18)
              << kernels->name << " " << values[i] << " at " << cap;
        }
      }
      std::array<float, ndp::kTileTokens> odd{};
      odd[0] = kInfinity;
      odd[1] = -kInfinity;
      odd[2] = std::numeric_limits<float>::quiet_NaN();
      kernels->soft_cap(odd.data(), cap);
      EXPECT_EQ(odd[0], cap);
      EXPECT_EQ(odd[1], -cap);
      EXPECT_TRUE(std::isnan(odd[2]));
      EXPECT_EQ(odd[3], 0);
    }
  }
}

TEST(NotANumber, OpensItsPage) {
  Problem p({.tokens = 64, .most_in_a_span = 1}, 1);
  p.set_key(40, 3, 0x7FC0);
  const auto span = p.key_spans();
  for (const KeySpan& one : span) {
    if (one.first_token != 40) continue;
    const auto digests = ndp::digest(one, 16).value();
    EXPECT_EQ(digests.least[3], -kInfinity);
    EXPECT_EQ(digests.largest[3], kInfinity);
    const auto pages = ndp::select_pages(p.queries(), std::span(&digests, 1), {}, 1).value();
    ASSERT_EQ(pages.size(), 1u);
    EXPECT_EQ(pages[0].score, kInfinity);
  }
}

TEST(Infinity, WinsAndMakesAttentionNotANumber) {
  Problem p({.tokens = 100}, 1);
  p.set_key(7, 3, p.query(0)[3] > 0 ? 0x7F80 : 0xFF80);
  auto best = TopK::of(1, 1).value();
  const auto spans = p.key_spans();
  ASSERT_TRUE(best.add(p.queries(), spans, {}));
  EXPECT_EQ(best.hits(0)[0], (Hit{kInfinity, 7}));
  auto attention = ndp::Attention::of(1, 64).value();
  ASSERT_TRUE(attention.add(p.queries(), p.spans(), {}));
  std::vector<float> out(64);
  ASSERT_EQ(attention.output(0, out), Status::OK);
  EXPECT_TRUE(std::isnan(out[0]));
}

/// Also in the last token, with which some kernel sets pad a group.
TEST(Infinity, OfAValueIsInfiniteInTheOutput) {
  constexpr uint32_t kChannels = 64, kTokens = 3;
  const struct {
    NumberFormat number;
    uint32_t infinity;
  } kinds[] = {
      {NumberFormat::BF16, 0x7F80}, {NumberFormat::FP16, 0x7C00}, {NumberFormat::FP8_E5M2, 0x7C}};
  for (const ndp::Kernels* kernels : ndp::kernels_here()) {
    for (const auto& [number, infinity] : kinds) {
      const uint32_t bytes = element_bytes(number);
      std::vector<uint8_t> data(size_t{kTokens} * kChannels * bytes);
      std::memcpy(&data[(2 * kChannels + 5) * bytes], &infinity, bytes);
      const ndp::Rows values = {number, kChannels, kTokens, data.data(), kChannels * bytes};
      for (const uint32_t queries : {1u, 2u, 4u, 8u}) {
        std::vector<float> weights(queries * ndp::kTileTokens), sums(queries * kChannels);
        for (uint32_t q = 0; q < queries; ++q)
          std::fill_n(&weights[q * ndp::kTileTokens], kTokens, 1.0f);
        kernels->weigh(weights.data(), queries, values, 0, kTokens, sums.data(), kChannels);
        EXPECT_EQ(sums[(queries - 1) * kChannels + 5], kInfinity)
            << kernels->name << " " << number_name(number);
        EXPECT_EQ(sums[4], 0);
      }
    }
  }
}

/// Negative infinity, as in masks, is a weight of zero, also before any other score.
TEST(Infinity, BelowHasNoWeight) {
  Problem p({.tokens = 100}, 1);
  for (uint32_t token = 0; token < 50; ++token)
    p.set_key(token, 3, p.query(0)[3] > 0 ? 0xFF80 : 0x7F80);
  auto all = ndp::Attention::of(1, 64).value(), rest = all, none = all;
  ASSERT_TRUE(all.add(p.queries(), p.spans(), Visible{.end = 50}));
  EXPECT_EQ(all.log_sum_exp(0), -kInfinity);
  ASSERT_TRUE(all.add(p.queries(), p.spans(), Visible{.begin = 50}));
  ASSERT_TRUE(rest.add(p.queries(), p.spans(), Visible{.begin = 50}));
  EXPECT_EQ(all.log_sum_exp(0), rest.log_sum_exp(0));
  ASSERT_TRUE(none.merge(none));
  std::vector<float> out(64, 1);
  ASSERT_EQ(none.output(0, out), Status::OK);
  EXPECT_EQ(out, std::vector<float>(64, 0));
}

// ---- gather ----

TEST(Gather, BringsRowsInAnyOrder) {
  const Problem p({.tokens = 200, .most_in_a_span = 30, .with_scales = true}, 3);
  const auto spans = p.key_spans();
  const std::vector<uint32_t> tokens = {199, 0, 17, 17, 100};
  std::vector<std::byte> out(tokens.size() * 128);
  std::vector<float> scales(tokens.size());
  ASSERT_TRUE(ndp::gather(spans, tokens, out, scales));
  for (size_t i = 0; i < tokens.size(); ++i) {
    for (uint32_t c = 0; c < 64; ++c) {
      uint16_t bits = 0;
      std::memcpy(&bits, &out[i * 128 + c * 2], 2);
      EXPECT_EQ(oracle_value("bf16", bits) * double{scales[i]}, p.sequence().keys[tokens[i]][c]);
    }
  }
  const std::vector<uint32_t> missing = {200, 0, 0, 0, 0};
  EXPECT_EQ(ndp::gather(spans, missing, out).status(), Status::INVALID_ARGUMENT);
  EXPECT_EQ(ndp::gather(spans, tokens, std::span(out).first(100)).status(),
            Status::INVALID_ARGUMENT);
  EXPECT_EQ(ndp::gather({}, tokens, {}).status(), Status::INVALID_ARGUMENT);
}

// ---- spans by a layout ----

/// Of 3 layers and 2 heads, K of 8 channels and V of 4, 5 tokens; the rows are numbered by counting
/// through the payload in its order.
TEST(SpansOfLayouts, LieWhereTheRowsDo) {
  for (const RowOrder order : {RowOrder::HEADS_FIRST, RowOrder::TOKENS_FIRST}) {
    KvLayout layout = pairs_layout(NumberFormat::FP16, 3, 2, 8, order);
    layout.value_channels = 4;
    std::vector<uint16_t> payload(3 * 2 * 5 * (8 + 4));
    const bool heads_first = order == RowOrder::HEADS_FIRST;
    for (size_t at = 0, row = 0; at < payload.size(); ++row) {
      const bool is_key = row / 10 % 2 == 0;
      payload[at] = static_cast<uint16_t>(row + 1);
      at += is_key ? 8 : 4;
    }
    for (uint16_t layer = 0; layer < 3; ++layer) {
      for (uint16_t head = 0; head < 2; ++head) {
        const auto span = ndp::span_of(layout, payload.data(), 5, layer, head, 70);
        ASSERT_TRUE(span);
        EXPECT_EQ(span->first_token, 70u);
        EXPECT_EQ(span->keys.channels, 8u);
        EXPECT_EQ(span->values.channels, 4u);
        EXPECT_EQ(span->values.number, NumberFormat::FP16);
        for (uint32_t token = 0; token < 5; ++token) {
          const uint32_t row = heads_first ? head * 5 + token : token * 2 + head;
          EXPECT_EQ(*reinterpret_cast<const uint16_t*>(span->keys.row(token)),
                    layer * 20 + row + 1);
          EXPECT_EQ(*reinterpret_cast<const uint16_t*>(span->values.row(token)),
                    layer * 20 + 10 + row + 1);
        }
      }
    }
  }
}

TEST(SpansOfLayouts, HaveValuesInTheKeysOfLatentAttention) {
  KvLayout layout = keys_layout(NumberFormat::BF16, 64);
  layout.layers = 2;
  layout.value_channels = 48;
  const std::vector<uint16_t> payload(2 * 5 * 64);
  const auto span = ndp::span_of(layout, payload.data(), 5, 1, 0, 0);
  ASSERT_TRUE(span);
  EXPECT_EQ(span->keys.row(0), reinterpret_cast<const uint8_t*>(&payload[5 * 64]));
  EXPECT_EQ(span->values.row(4), span->keys.row(4));
  EXPECT_EQ(span->values.channels, 48u);
}

TEST(SpansOfLayouts, AreNotOfWhatHasNoRowsOfItsOwn) {
  EXPECT_EQ(ndp::span_of(kOpaqueLayout, nullptr, 5, 0, 0, 0).status(), Status::NOT_SUPPORTED);
  KvLayout layout = keys_layout(NumberFormat::INT8, 64);
  layout.scales = BH_SCALES_PER_TOKEN;
  layout.scale_format = BH_NUMBER_FP32;
  EXPECT_TRUE(ndp::span_of(layout, nullptr, 5, 0, 0, 0));
  layout.scale_place = BH_SCALES_BEHIND_ROW;
  EXPECT_EQ(ndp::span_of(layout, nullptr, 5, 0, 0, 0).status(), Status::NOT_SUPPORTED);
}

/// Of every kind, from the bits that it has.
TEST(SpansOfLayouts, HaveTheirScales) {
  const auto scales_of_kind = [](uint8_t format, const std::vector<uint8_t>& two_scales) {
    KvLayout layout = keys_layout(NumberFormat::INT8, 3);
    layout.scales = BH_SCALES_PER_ROW;
    layout.scale_format = format;
    layout.scale_place = BH_SCALES_BEHIND_PART;
    std::vector<uint8_t> payload(2 * 3 + two_scales.size(), 0x7F);
    std::copy(two_scales.begin(), two_scales.end(), payload.begin() + 2 * 3);
    std::vector<float> both(2), second(1);
    ndp::load_scales(layout, payload.data(), 2, 0, 0, 0, 0, both);
    ndp::load_scales(layout, payload.data(), 2, 0, 0, 0, 1, second);
    EXPECT_EQ(second[0], both[1]);
    return both;
  };
  const std::vector<float> wanted = {1.5f, -0.25f};
  EXPECT_EQ(scales_of_kind(BH_NUMBER_FP32, {0, 0, 0xC0, 0x3F, 0, 0, 0x80, 0xBE}), wanted);
  EXPECT_EQ(scales_of_kind(BH_NUMBER_BF16, {0xC0, 0x3F, 0x80, 0xBE}), wanted);
  EXPECT_EQ(scales_of_kind(BH_NUMBER_FP16, {0x00, 0x3E, 0x00, 0xB4}), wanted);
  EXPECT_EQ(scales_of_kind(BH_NUMBER_FP8_E4M3, {0x3C, 0xA8}), wanted);
  EXPECT_EQ(scales_of_kind(BH_NUMBER_FP8_E5M2, {0x3E, 0xB4}), wanted);
}

// ---- invalid arguments ----

struct Wrong {
  KeySpan span;
  const char* says;
};

TEST(Wrong, IsRefusedAndNamed) {
  const std::vector<uint16_t> data(64 * 10);
  const std::vector<float> query(64, 1);
  const auto queries = Queries::of(query, 1, 64, 1, NumberFormat::BF16).value();
  const Rows good{NumberFormat::BF16, 64, 10, data.data(), 128};
  const auto with = [&](auto change) {
    Rows rows = good;
    change(rows);
    return KeySpan{100, rows};
  };
  const Wrong wrongs[] = {
      {with([](Rows& r) { r.number = NumberFormat::BYTES; }), "number kind"},
      {with([](Rows& r) { r.number = static_cast<NumberFormat>(77); }), "number kind 77"},
      {with([](Rows& r) { r.channels = 0; }), "0 channels"},
      {with([](Rows& r) { r.channels = 1025; }), "1025 channels"},
      {with([](Rows& r) { r.channels = 32; }), "32 channels, while the queries have 64"},
      {with([](Rows& r) { r.number = NumberFormat::FP16; }),
       "they are fp16, while the queries are for bf16"},
      {with([](Rows& r) { r.data = nullptr; }), "null"},
      {with([](Rows& r) { r.stride_bytes = 127; }), "overlap at a stride of 127"},
      {{0xFFFFFFFF, good}, "32 bits"},
      {{9, good}, "both hold token 9"},
  };
  for (const Wrong& wrong : wrongs) {
    const KeySpan spans[] = {{0, good}, wrong.span};
    std::vector<float> scores(20, 5);
    const auto done = ndp::score(queries, spans, {}, scores);
    ASSERT_EQ(done.status(), Status::INVALID_ARGUMENT) << wrong.says;
    EXPECT_NE(done.error().message().find(wrong.says), std::string::npos) << done.error().message();
    EXPECT_NE(done.error().message().find("1"), std::string::npos) << done.error().message();
    EXPECT_EQ(scores, std::vector<float>(20, 5));
    auto best = TopK::of(1, 3).value();
    EXPECT_EQ(best.add(queries, spans, {}).status(), Status::INVALID_ARGUMENT);
    EXPECT_TRUE(best.hits(0).empty());
  }
}

TEST(Wrong, PartsAreRefused) {
  const std::vector<uint16_t> data(64 * 10);
  const std::vector<float> query(1000, 1);
  const auto queries_of = [&](uint32_t count, uint32_t channels, float scale = 1, float cap = 0) {
    return Queries::of(std::span(query).first(size_t{count} * channels), count, channels, scale,
                       NumberFormat::BF16, cap)
        .value();
  };
  const Queries one = queries_of(1, 64), two = one.with(one).value();
  const Rows last{NumberFormat::BF16, 64, 10, data.data(), 128};
  Rows first = last;
  first.more = &last;
  std::vector<float> scores(10);
  const auto says = [&](const Queries& queries, const Rows& keys) {
    const KeySpan span{0, keys};
    const auto done = ndp::score(queries, {&span, 1}, {}, scores);
    auto best = TopK::of(1, 1).value();
    EXPECT_EQ(best.add(queries, {&span, 1}, {}).status(), done.status());
    return done ? "" : done.error().detail;
  };
  const auto expect = [](const std::string& text, const char* part) {
    EXPECT_NE(text.find(part), std::string::npos) << text;
  };
  EXPECT_EQ(says(two, first), "");
  expect(says(one, first), "come in more parts");
  expect(says(two, last), "come in fewer parts");
  Rows shorter = last, more = first, endless = last;
  shorter.tokens = 9;
  more.more = &shorter;
  expect(says(two, more), "a part has 9 tokens, and the first one 10");
  endless.more = &endless;
  const KeySpan span{0, endless};
  expect(ndp::digest(span, 16).error().detail, "parts of 1088 channels together");
  const KeySpan in_parts{0, first};
  std::vector<std::byte> row(128);
  const uint32_t token = 1;
  expect(ndp::gather({&in_parts, 1}, {&token, 1}, row).error().detail, "gather each part");
  // Values: sums of the parts lie side by side.
  Rows narrow = first;
  narrow.channels = 63;
  const ndp::KvSpan values{0, last, narrow};
  auto attention = ndp::Attention::of(1, 127).value();
  expect(attention.add(one, {&values, 1}, {}).error().detail, "a part of 63 channels");
  expect(ndp::exact_top_k(two, {}, {}, 1).error().detail, "rows in parts");
  // Queries.
  const std::vector<float> weights(2, 1);
  const Queries pair = queries_of(2, 8), sums = pair.summed(weights, 2, false).value();
  expect(one.with(pair).error().detail, "1 of the first channels, 2 of the others");
  expect(one.with(queries_of(1, 8, 2)).error().detail, "times 1 and 2");
  expect(one.with(queries_of(1, 8, 1, 30)).error().detail, "capped at 0 and 30");
  expect(pair.with(sums).error().detail, "sum them");
  expect(two.with(one).error().detail, "begin with the last two");
  expect(one.with(queries_of(1, 961)).error().detail, "1025 channels together");
}

TEST(Wrong, SizesAreRefused) {
  const std::vector<float> query(64, 1);
  EXPECT_EQ(Queries::of(query, 1, 63, 1, NumberFormat::BF16).status(), Status::INVALID_ARGUMENT);
  EXPECT_EQ(Queries::of({}, 0, 64, 1, NumberFormat::BF16).status(), Status::INVALID_ARGUMENT);
  EXPECT_EQ(Queries::of(query, 1, 64, 0, NumberFormat::BF16).status(), Status::INVALID_ARGUMENT);
  EXPECT_EQ(Queries::of(query, 1, 64, kNan, NumberFormat::BF16).status(), Status::INVALID_ARGUMENT);
  EXPECT_EQ(Queries::of(query, 1, 64, 1, NumberFormat::BYTES).status(), Status::INVALID_ARGUMENT);
  EXPECT_EQ(TopK::of(1, 0).status(), Status::INVALID_ARGUMENT);
  EXPECT_EQ(TopK::of(0, 1).status(), Status::INVALID_ARGUMENT);
  EXPECT_EQ(TopK::of(1024, TopK::kMaxK).status(), Status::INVALID_ARGUMENT);
  EXPECT_EQ(ndp::Attention::of(1, 0).status(), Status::INVALID_ARGUMENT);
  const auto queries = Queries::of(query, 1, 64, 1, NumberFormat::BF16).value();
  auto attention = ndp::Attention::of(2, 64).value();
  EXPECT_EQ(attention.add(queries, {}, {}).status(), Status::INVALID_ARGUMENT);
  EXPECT_EQ(attention.merge(ndp::Attention::of(2, 63).value()).status(), Status::INVALID_ARGUMENT);
  const Problem p({.tokens = 20}, 1);
  auto spans = p.spans();
  auto narrow = ndp::Attention::of(1, 32).value();
  EXPECT_EQ(narrow.add(p.queries(), spans, {}).status(), Status::INVALID_ARGUMENT);
  --spans[0].values.tokens;
  auto right = ndp::Attention::of(1, 64).value();
  EXPECT_EQ(right.add(p.queries(), spans, {}).status(), Status::INVALID_ARGUMENT);
  const KeySpan key_span = p.key_spans()[0];
  EXPECT_EQ(ndp::digest(key_span, 0).status(), Status::INVALID_ARGUMENT);
}

TEST(Nothing, IsNoError) {
  const std::vector<float> query(64, 1);
  const auto queries = Queries::of(query, 1, 64, 1, NumberFormat::BF16).value();
  auto best = TopK::of(1, 3).value();
  const KeySpan empty{5, {NumberFormat::BF16, 64, 0, nullptr, 128}};
  EXPECT_TRUE(best.add(queries, std::span(&empty, 1), {}));
  EXPECT_TRUE(best.add(queries, {}, {}));
  EXPECT_TRUE(best.hits(0).empty());
  EXPECT_TRUE(ndp::score(queries, {}, {}, {}));
}

}  // namespace
}  // namespace bowhead::test
