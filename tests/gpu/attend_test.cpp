// SPDX-License-Identifier: Apache-2.0
// Attention by the warp code, in partials and merged, compared with the formulas in double
// precision and with ndp/ on the same bytes.
#include "gpu/kernels/attend.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <vector>

#include "base/random.h"
#include "gpu/devices/cpu_kernels.h"
#include "gpu/kernels/check.h"
#include "gpu/kernels/floats.h"
#include "ndp/operations.h"
#include "tests/support/attention_oracle.h"

namespace bowhead::gpu {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
// Far tighter than the tolerances of ndp/operations.h.
constexpr double kScoreError = 0x1p-18, kWeightError = 0x1p-14;

uint32_t between(Random& random, uint32_t least, uint32_t most) {
  return least + static_cast<uint32_t>(random.below(most - least + 1));
}
float random_float(Random& random) {  // of -1 to 1
  return static_cast<float>(random.below(1u << 24)) * 0x1p-23f - 1;
}
double value_of(NumberFormat kind, uint16_t bits) {
  return test::oracle_value(kind == NumberFormat::BF16 ? "bf16" : "fp16", bits);
}
uint16_t bits_of(NumberFormat kind, float value) {
  return static_cast<uint16_t>(kind == NumberFormat::BF16 ? bf16_from_float(value)
                                                          : fp16_from_float(value));
}

// 16-byte-aligned, and NaN wherever no value was written.
class Numbers {
 public:
  explicit Numbers(size_t count) : words_((count + 7) / 8 * 8 / 8 + 1, {kNoNumbers, kNoNumbers}) {}
  uint16_t* data() { return reinterpret_cast<uint16_t*>(words_.data()); }
  const uint8_t* bytes() { return reinterpret_cast<const uint8_t*>(words_.data()); }

 private:
  static constexpr uint64_t kNoNumbers = 0x7FFF7FFF7FFF7FFF;
  std::vector<Bytes16> words_;
};

struct Model {
  NumberFormat number = NumberFormat::BF16;
  uint32_t heads = 1, queries_per_head = 1, key_channels = 64, value_channels = 64;
  bool latent = false;  // values are the first channels of keys

  uint32_t query_heads() const { return heads * queries_per_head; }
  uint32_t row() const { return std::max(key_channels, value_channels); }
};

// Sequences in spans of any layout, queries, and the results computed for them.
class Attention {
 public:
  Attention(Random& random, const Model& model, const std::vector<uint32_t>& tokens, float size = 1)
      : random_(random), model_(model) {
    work_.layer = between(random, 0, 2);
    work_.number = model.number;
    work_.heads = model.heads;
    work_.queries_per_head = model.queries_per_head;
    work_.key_channels = model.key_channels;
    work_.value_channels = model.value_channels;
    work_.scale = 1 / std::sqrt(static_cast<float>(model.key_channels));
    work_.sequences = static_cast<uint32_t>(tokens.size());
    add_queries(size);
    for (const uint32_t count : tokens) add_sequence(count, size);
  }

  // The place of a token's key and value, to overwrite them.
  uint16_t* key(uint32_t sequence, uint32_t token, uint32_t head) {
    return const_cast<uint16_t*>(row_at(sequence, token, head, true));
  }
  uint16_t* value(uint32_t sequence, uint32_t token, uint32_t head) {
    return const_cast<uint16_t*>(row_at(sequence, token, head, false));
  }
  uint16_t* query(uint32_t sequence, uint32_t query_head) {
    return queries_->data() +
           (sequence * work_.query_stride_bytes + query_head * work_.query_head_stride_bytes) / 2;
  }
  Attend& work() { return work_; }

  // By splits of at most the number of tokens that `length` returns for each.
  template <class F>
  void run(F length) {
    splits_.clear();
    first_splits_ = {0};
    for (uint32_t sequence = 0; sequence < work_.sequences; ++sequence) {
      uint32_t token = 0;
      while (token < tokens_[sequence]) {
        const uint32_t count = std::min(std::max<uint32_t>(1, length()), tokens_[sequence] - token);
        uint32_t span = first_spans_[sequence], first = token;
        while (first >= spans_[span].tokens) first -= spans_[span++].tokens;
        splits_.push_back({sequence, span, first, count});
        token += count;
      }
      first_splits_.push_back(static_cast<uint32_t>(splits_.size()));
    }
    const size_t partials = splits_.size() * model_.query_heads();
    outputs_.assign(partials * model_.value_channels / 4 + 1, {});
    log_sum_exps_.assign(partials + 1, 12345);
    work_.spans = spans_.data();
    work_.span_count = static_cast<uint32_t>(spans_.size());
    work_.splits = splits_.data();
    work_.split_count = static_cast<uint32_t>(splits_.size());
    work_.outputs = reinterpret_cast<float*>(outputs_.data());
    work_.log_sum_exps = log_sum_exps_.data();
    const Result<void> good = check(work_);
    ASSERT_TRUE(good) << good.error().message();
    run_on_cpu(work_);
    EXPECT_EQ(log_sum_exps_.back(), 12345);
  }
  const std::vector<AttendSplit>& splits() const { return splits_; }
  uint32_t first_split(uint32_t sequence) const { return first_splits_[sequence]; }

  MergeSource partials() const { return {work_.outputs, work_.log_sum_exps, first_splits_.data()}; }

  // Compares query head `at` over some tokens with an output and a log-sum-exp.
  void expect(uint32_t sequence, uint32_t at, uint32_t first, uint32_t count, const float* output,
              float log_sum_exp) {
    std::vector<double> wanted(model_.key_channels);
    for (uint32_t c = 0; c < model_.key_channels; ++c)
      wanted[c] = value_of(model_.number, query(sequence, at)[c]);
    const test::Sequence head = numbers(sequence, at / model_.queries_per_head, first, count);
    const auto right = test::oracle_attention(head, wanted, work_.scale, {});
    double error = 0;
    for (const auto& one : head.keys)
      error = std::max(error, kScoreError * test::oracle_reach(wanted, one, work_.scale, false));
    if (log_sum_exp != right.log_sum_exp) {  // for no token both are infinite
      ASSERT_NEAR(log_sum_exp, right.log_sum_exp,
                  0x1p-20 * std::max(1.0, std::abs(right.log_sum_exp)) + error);
    }
    for (uint32_t c = 0; c < model_.value_channels; ++c)
      ASSERT_NEAR(output[c], right.output[c], (kWeightError + 2 * error) * right.reach[c])
          << "channel " << c;
  }
  // Compares each split by itself.
  void expect_splits() {
    for (uint32_t sequence = 0; sequence < work_.sequences; ++sequence) {
      uint32_t token = 0;
      for (uint32_t split = first_splits_[sequence]; split < first_splits_[sequence + 1]; ++split) {
        for (uint32_t q = 0; q < model_.query_heads(); ++q) {
          const size_t partial = size_t{split} * model_.query_heads() + q;
          expect(sequence, q, token, splits_[split].tokens,
                 work_.outputs + partial * model_.value_channels, log_sum_exps_[partial]);
        }
        token += splits_[split].tokens;
      }
    }
  }

  // The result of ndp/ for the spans of a sequence from `first_span` on, for one head.
  ndp::Attention by_ndp(uint32_t sequence, uint32_t head, uint32_t first_span) {
    std::vector<float> wanted;
    for (uint32_t q = 0; q < model_.queries_per_head; ++q) {
      const uint16_t* row = query(sequence, head * model_.queries_per_head + q);
      for (uint32_t c = 0; c < model_.key_channels; ++c)
        wanted.push_back(static_cast<float>(value_of(model_.number, row[c])));
    }
    const NumberFormat kind = model_.number;
    const auto queries =
        ndp::Queries::of(wanted, model_.queries_per_head, model_.key_channels, work_.scale, kind);
    std::vector<ndp::KvSpan> near;
    uint32_t token = 0;
    for (uint32_t span = first_spans_[sequence]; span < first_spans_[sequence + 1]; ++span) {
      const AttendSpan& at = spans_[span];
      const size_t offset = work_.layer * at.layer_stride_bytes + head * at.head_stride_bytes;
      ndp::KvSpan one{token, {kind, model_.key_channels, at.tokens}, {}};
      one.keys.stride_bytes = std::max(at.token_stride_bytes, size_t{model_.row()} * 2);
      one.values = one.keys;
      one.values.channels = model_.value_channels;
      one.keys.data = at.keys + offset;
      one.values.data = at.values + offset;
      token += at.tokens;
      if (span >= first_spans_[sequence] + first_span) near.push_back(one);
    }
    auto result = ndp::Attention::of(model_.queries_per_head, model_.value_channels);
    EXPECT_TRUE(result->add(*queries, near, {}));
    return *result;
  }
  uint32_t span_count(uint32_t sequence) const {
    return first_spans_[sequence + 1] - first_spans_[sequence];
  }
  uint32_t tokens_before(uint32_t sequence, uint32_t span) const {
    uint32_t tokens = 0;
    for (uint32_t i = 0; i < span; ++i) tokens += spans_[first_spans_[sequence] + i].tokens;
    return tokens;
  }

 private:
  void add_queries(float size) {
    work_.query_head_stride_bytes = (model_.key_channels + 8 * random_.below(3)) * 2;
    work_.query_stride_bytes =
        work_.query_head_stride_bytes * model_.query_heads() + 16 * random_.below(3);
    queries_ = std::make_unique<Numbers>(work_.query_stride_bytes / 2 * work_.sequences);
    work_.queries = queries_->bytes();
    for (uint32_t s = 0; s < work_.sequences; ++s) {
      for (uint32_t q = 0; q < model_.query_heads(); ++q)
        fill(query(s, q), model_.key_channels, size);
    }
  }

  void fill(uint16_t* row, uint32_t channels, float size) {
    for (uint32_t c = 0; c < channels; ++c)
      row[c] = bits_of(model_.number, random_float(random_) * size);
  }

  // Spans as payloads of either order, or as pages with gaps; all layers but one are NaN.
  void add_sequence(uint32_t tokens, float size) {
    if (first_spans_.empty()) first_spans_.push_back(0);
    const uint32_t most = between(random_, 1, 60);
    for (uint32_t first = 0; first < tokens;) {
      AttendSpan span;
      span.tokens = std::min(between(random_, 1, most), tokens - first);
      const size_t row = size_t{model_.row()} * 2, gap = 16 * random_.below(2);
      const bool heads_first = random_.below(2) == 0;
      const uint32_t inner = heads_first ? span.tokens : model_.heads;
      const uint32_t outer = heads_first ? model_.heads : span.tokens;
      const size_t inner_stride = row + gap, outer_stride = inner_stride * inner + gap;
      const size_t part = outer_stride * outer;
      span.token_stride_bytes = heads_first ? inner_stride : outer_stride;
      span.head_stride_bytes = heads_first ? outer_stride : inner_stride;
      span.layer_stride_bytes = model_.latent ? part : 2 * part;
      memory_.push_back(std::make_unique<Numbers>(3 * span.layer_stride_bytes / 2));
      span.keys = memory_.back()->bytes();
      span.values = model_.latent ? span.keys : span.keys + part;
      spans_.push_back(span);
      first += span.tokens;
    }
    first_spans_.push_back(static_cast<uint32_t>(spans_.size()));
    tokens_.push_back(tokens);
    const auto sequence = static_cast<uint32_t>(tokens_.size() - 1);
    for (uint32_t token = 0; token < tokens; ++token) {
      for (uint32_t head = 0; head < model_.heads; ++head) {
        if (!model_.latent) fill(value(sequence, token, head), model_.value_channels, 1);
        fill(key(sequence, token, head), model_.key_channels, size);
      }
    }
  }

  const uint16_t* row_at(uint32_t sequence, uint32_t token, uint32_t head, bool is_key) const {
    uint32_t span = first_spans_[sequence];
    while (token >= spans_[span].tokens) token -= spans_[span++].tokens;
    const AttendSpan& at = spans_[span];
    return reinterpret_cast<const uint16_t*>(
        (is_key ? at.keys : at.values) + work_.layer * at.layer_stride_bytes +
        token * at.token_stride_bytes + head * at.head_stride_bytes);
  }

  test::Sequence numbers(uint32_t sequence, uint32_t head, uint32_t first, uint32_t count) const {
    test::Sequence result{model_.key_channels, model_.value_channels, {}, {}};
    for (uint32_t token = first; token < first + count; ++token) {
      auto& key = result.keys.emplace_back();
      auto& value = result.values.emplace_back();
      for (uint32_t c = 0; c < model_.key_channels; ++c)
        key.push_back(value_of(model_.number, row_at(sequence, token, head, true)[c]));
      for (uint32_t c = 0; c < model_.value_channels; ++c)
        value.push_back(value_of(model_.number, row_at(sequence, token, head, false)[c]));
    }
    return result;
  }

  Random& random_;
  const Model model_;
  Attend work_;
  std::unique_ptr<Numbers> queries_;
  std::vector<std::unique_ptr<Numbers>> memory_;
  std::vector<AttendSpan> spans_;
  std::vector<uint32_t> first_spans_, tokens_;
  std::vector<AttendSplit> splits_;
  std::vector<uint32_t> first_splits_;
  std::vector<Bytes16> outputs_;
  std::vector<float> log_sum_exps_;
};

// All kernels, with channels that fill their lanes and channels that do not.
Model random_model(Random& random) {
  constexpr uint32_t kChannels[] = {8, 64, 80, 96, 128, 136, 192, 256, 264, 512, 576, 768};
  constexpr uint32_t kQueries[] = {1, 2, 3, 4, 5, 7, 8, 12, 16, 17, 40};
  Model model;
  model.number = random.below(2) == 0 ? NumberFormat::BF16 : NumberFormat::FP16;
  model.heads = between(random, 1, 3);
  model.queries_per_head = kQueries[random.below(std::size(kQueries))];
  model.key_channels = kChannels[random.below(std::size(kChannels))];
  model.value_channels =
      random.below(3) == 0 ? kChannels[random.below(std::size(kChannels))] : model.key_channels;
  model.latent = model.value_channels < model.key_channels && random.below(2) == 0;
  if (model.latent) model.heads = 1;
  return model;
}

struct Merged {
  std::vector<float> outputs, log_sum_exps;
};
Merged merge(const std::vector<MergeSource>& sources, uint32_t sequences, uint32_t heads,
             uint32_t channels) {
  Merged merged;
  merged.outputs.resize(size_t{sequences} * heads * channels);
  merged.log_sum_exps.resize(size_t{sequences} * heads);
  MergePartials work;
  std::copy(sources.begin(), sources.end(), work.sources);
  work.source_count = static_cast<uint32_t>(sources.size());
  work.sequences = sequences;
  work.heads = heads;
  work.channels = channels;
  work.outputs = merged.outputs.data();
  work.log_sum_exps = merged.log_sum_exps.data();
  const Result<void> good = check(work);
  EXPECT_TRUE(good) << good.error().message();
  if (good) run_on_cpu(work);
  return merged;
}

TEST(Attend, MatchesTheFormulas) {
  for (uint64_t seed = 0; seed < 60; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    Random random(seed);
    const Model model = random_model(random);
    std::vector<uint32_t> tokens;
    for (uint32_t i = between(random, 1, 3); i > 0; --i)
      tokens.push_back(random.below(6) == 0 ? 0 : between(random, 1, 90));
    Attention attention(random, model, tokens);
    const uint32_t most = between(random, 1, 120);
    attention.run([&] { return between(random, 1, most); });
    attention.expect_splits();
    if (testing::Test::HasFailure()) return;

    const auto sequences = static_cast<uint32_t>(tokens.size());
    const Merged merged =
        merge({attention.partials()}, sequences, model.query_heads(), model.value_channels);
    for (uint32_t at = 0; at < sequences * model.query_heads(); ++at) {
      const uint32_t sequence = at / model.query_heads();
      attention.expect(sequence, at % model.query_heads(), 0, tokens[sequence],
                       &merged.outputs[size_t{at} * model.value_channels], merged.log_sum_exps[at]);
      if (testing::Test::HasFailure()) return;
    }
  }
}

/// A partial from ndp/, as from an NDP device, merged with one from the kernel gives ndp/'s answer
/// for the whole.
TEST(Attend, MergesWithPartsComputedNextToTheMemory) {
  for (uint64_t seed = 0; seed < 20; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    Random random(seed);
    Model model = random_model(random);
    model.heads = 1;
    Attention attention(random, model, {between(random, 1, 300)});
    const uint32_t spans = attention.span_count(0), ours = between(random, 0, spans);
    const uint32_t our_tokens = attention.tokens_before(0, ours);
    attention.run([&] { return our_tokens; });  // the first split, if there is one
    const std::vector<uint32_t> first_partials = {0, our_tokens == 0 ? 0u : 1u};
    MergeSource own = attention.partials();
    own.first_partials = first_partials.data();

    const uint32_t heads = model.query_heads(), channels = model.value_channels;
    const ndp::Attention near = attention.by_ndp(0, 0, ours), all = attention.by_ndp(0, 0, 0);
    std::vector<Bytes16> outputs(size_t{heads} * channels / 4);
    std::vector<float> log_sum_exps(heads), right(channels);
    for (uint32_t q = 0; q < heads; ++q) {
      float* out = reinterpret_cast<float*>(outputs.data()) + size_t{q} * channels;
      ASSERT_EQ(near.output(q, {out, channels}), Status::OK);
      log_sum_exps[q] = near.log_sum_exp(q);
    }
    const MergeSource theirs = {reinterpret_cast<float*>(outputs.data()), log_sum_exps.data()};
    const Merged merged = merge({theirs, own}, 1, heads, channels);
    for (uint32_t q = 0; q < heads; ++q) {
      ASSERT_EQ(all.output(q, right), Status::OK);
      ASSERT_NEAR(merged.log_sum_exps[q], all.log_sum_exp(q), 1e-3);
      for (uint32_t c = 0; c < channels; ++c)  // values are below 1
        ASSERT_NEAR(merged.outputs[size_t{q} * channels + c], right[c], 2 * ndp::kWeightTolerance);
    }
  }
}

Model plain_model() {
  return {.heads = 2, .queries_per_head = 4, .key_channels = 128, .value_channels = 128};
}

/// Scores of thousands, of either sign, at any place of a split.
TEST(Attend, SurvivesHugeScores) {
  for (const NumberFormat number : {NumberFormat::BF16, NumberFormat::FP16}) {
    Random random(1);
    Model model = plain_model();
    model.number = number;
    Attention attention(random, model, {70, 1}, number == NumberFormat::BF16 ? 1e12f : 100.0f);
    attention.run([] { return 50; });
    for (uint32_t q = 0; q < model.query_heads(); ++q) {
      // The largest by far has all of the weight: score errors are irrelevant here.
      const float* output = attention.work().outputs + size_t{q} * 128;
      for (uint32_t c = 0; c < 128; ++c) ASSERT_LE(std::abs(output[c]), 1.0001f);
      ASSERT_TRUE(std::isfinite(attention.work().log_sum_exps[q]));
    }
    if (number == NumberFormat::FP16) attention.expect_splits();
  }
}

/// NaN in a token affects no other head and no other channel of values.
TEST(Attend, KeepsNaNWithinItsHead) {
  constexpr uint16_t kNoNumber = 0x7FC0, kInfinite = 0x7F80;  // of bf16
  for (const uint16_t what : {kNoNumber, kInfinite}) {
    for (const bool in_key : {true, false}) {
      Random random(2);
      const Model model = plain_model();
      Attention attention(random, model, {100});
      for (uint32_t q = 0; q < model.query_heads(); ++q)
        attention.query(0, q)[7] = bits_of(NumberFormat::BF16, 0.5f);
      (in_key ? attention.key(0, 60, 1) : attention.value(0, 60, 1))[7] = what;
      attention.run([] { return 100; });
      const Merged merged = merge({attention.partials()}, 1, 8, 128);
      for (uint32_t q = 0; q < 8; ++q) {
        const float* out = &merged.outputs[size_t{q} * 128];
        if (q < 4) {
          attention.expect(0, q, 0, 100, out, merged.log_sum_exps[q]);
          continue;
        }
        EXPECT_EQ(std::isnan(merged.log_sum_exps[q]), in_key);
        for (uint32_t c = 0; c < 128; ++c) EXPECT_EQ(!std::isfinite(out[c]), in_key || c == 7);
      }
    }
  }
}

/// A key at negative infinity has no weight, even if there is no other key.
TEST(Attend, GivesNoWeightToNegativeInfinity) {
  Random random(3);
  const Model model = plain_model();
  Attention attention(random, model, {9, 1});
  for (uint32_t q = 0; q < 8; ++q) {
    for (uint32_t s = 0; s < 2; ++s) attention.query(s, q)[0] = bits_of(NumberFormat::BF16, 1);
  }
  for (uint32_t head = 0; head < 2; ++head) {
    for (uint32_t token = 0; token < 8; ++token) attention.key(0, token, head)[0] = 0xFF80;
    attention.key(1, 0, head)[0] = 0xFF80;
  }
  attention.run([] { return 100; });
  const Merged merged = merge({attention.partials()}, 2, 8, 128);
  for (uint32_t q = 0; q < 8; ++q) {
    attention.expect(0, q, 8, 1, &merged.outputs[size_t{q} * 128], merged.log_sum_exps[q]);
    EXPECT_EQ(merged.log_sum_exps[8 + q], -kInfinity);
    for (uint32_t c = 0; c < 128; ++c) EXPECT_EQ(merged.outputs[size_t{8 + q} * 128 + c], 0);
  }
}

// ---- merging ----

// Partials of one head of 132 channels, each with an output that is one number.
class Partials {
 public:
  void add(float output, float log_sum_exp) {
    for (uint32_t i = 0; i < 33; ++i) {
      float four[4] = {output, output, output, output};
      std::memcpy(&outputs_.emplace_back(), four, 16);
    }
    log_sum_exps_.push_back(log_sum_exp);
  }
  MergeSource source(const uint32_t* first_partials) const {
    return {reinterpret_cast<const float*>(outputs_.data()), log_sum_exps_.data(), first_partials};
  }

 private:
  std::vector<Bytes16> outputs_;
  std::vector<float> log_sum_exps_;
};

TEST(MergePartials, WeighsAnyNumberOfThem) {
  Random random(4);
  for (const uint32_t count : {1u, 2u, 8u, 9u, 31u, 33u, 200u}) {
    for (const float base : {0.0f, 1e4f, -1e4f}) {
      Partials partials;
      double weights = 0, sum = 0;
      for (uint32_t i = 0; i < count; ++i) {
        const float output = random_float(random), log_sum_exp = base + 4 * random_float(random);
        partials.add(output, log_sum_exp);
        weights += std::exp(double{log_sum_exp} - base);
        sum += std::exp(double{log_sum_exp} - base) * output;
      }
      const uint32_t first_partials[] = {0, count};
      const Merged merged = merge({partials.source(first_partials)}, 1, 1, 132);
      EXPECT_NEAR(merged.log_sum_exps[0], base + std::log(weights), 1e-6 * (16 + std::abs(base)));
      for (const float output : merged.outputs) ASSERT_NEAR(output, sum / weights, 1e-5);
    }
  }
}

TEST(MergePartials, PassesOverPartialsOfNoToken) {
  const float no_number = std::nanf("");
  Partials partials;
  partials.add(no_number, -kInfinity);
  partials.add(3, 5);
  partials.add(no_number, -kInfinity);
  const uint32_t of_three[] = {0, 1, 3, 3};
  const Merged merged = merge({partials.source(of_three)}, 3, 1, 132);
  EXPECT_EQ(merged.log_sum_exps, (std::vector{-kInfinity, 5.0f, -kInfinity}));
  for (uint32_t i = 0; i < 3 * 132; ++i) ASSERT_EQ(merged.outputs[i], i / 132 == 1 ? 3 : 0);
  EXPECT_EQ(merge({}, 1, 1, 132).log_sum_exps[0], -kInfinity);
}

TEST(MergePartials, HidesNoNaN) {
  const float no_number = std::nanf("");
  for (const float log_sum_exp : {no_number, kInfinity}) {
    Partials partials;
    partials.add(1, 2);
    partials.add(1, log_sum_exp);
    const uint32_t first_partials[] = {0, 2};
    const Merged merged = merge({partials.source(first_partials)}, 1, 1, 132);
    EXPECT_TRUE(std::isnan(merged.log_sum_exps[0]));
    for (const float output : merged.outputs) ASSERT_TRUE(std::isnan(output));
  }
}

TEST(MergePartials, WritesNumbersOfAnyKind) {
  Partials partials;
  partials.add(1.0f / 3, 0);
  uint16_t out[132] = {};
  MergePartials work;
  work.sources[0] = partials.source(nullptr);
  work.source_count = work.sequences = work.heads = 1;
  work.channels = 132;
  work.outputs = out;
  work.number = NumberFormat::BF16;
  ASSERT_TRUE(check(work));
  run_on_cpu(work);
  for (const uint16_t bits : out) ASSERT_EQ(bits, 0x3EAB);
  work.number = NumberFormat::FP16;
  run_on_cpu(work);
  for (const uint16_t bits : out) ASSERT_EQ(bits, 0x3555);
}

// ---- numbers ----

TEST(Floats, MatchTheirBits) {
  for (uint32_t bits = 0; bits < 65536; ++bits) {
    const auto right = static_cast<float>(test::oracle_value("fp16", bits));
    const float value = float_from_fp16(bits);
    if (std::isnan(right)) {
      ASSERT_TRUE(std::isnan(value)) << bits;
      ASSERT_TRUE(std::isnan(float_from_fp16(fp16_from_float(value)))) << bits;
    } else {
      ASSERT_EQ(value, right) << bits;
      ASSERT_EQ(std::signbit(value), std::signbit(right)) << bits;
      ASSERT_EQ(fp16_from_float(value), bits);
    }
  }
}

/// Between two neighbours the nearer one, and half-way the even one.
TEST(Floats, AreRoundedToTheNearest) {
  for (const NumberFormat kind : {NumberFormat::BF16, NumberFormat::FP16}) {
    const uint32_t infinite = kind == NumberFormat::BF16 ? 0x7F80 : 0x7C00;
    for (uint32_t bits = 0; bits + 1 < infinite; ++bits) {
      const auto low = static_cast<float>(value_of(kind, static_cast<uint16_t>(bits)));
      const auto high = static_cast<float>(value_of(kind, static_cast<uint16_t>(bits + 1)));
      const float middle = low + (high - low) / 2;
      ASSERT_EQ(bits_of(kind, middle), bits + bits % 2) << bits;
      ASSERT_EQ(bits_of(kind, -middle), (bits + bits % 2) | 0x8000) << bits;
      ASSERT_EQ(bits_of(kind, std::nextafter(middle, low)), bits) << bits;
      ASSERT_EQ(bits_of(kind, std::nextafter(middle, high)), bits + 1) << bits;
    }
  }
  EXPECT_EQ(fp16_from_float(65519.99f), 0x7BFF);
  EXPECT_EQ(fp16_from_float(65520), 0x7C00);
  EXPECT_EQ(fp16_from_float(-kInfinity), 0xFC00);
}

}  // namespace
}  // namespace bowhead::gpu
