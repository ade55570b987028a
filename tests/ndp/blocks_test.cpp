// SPDX-License-Identifier: Apache-2.0
// Operations on stored blocks give what the same operations on their rows give, whatever the
// layout, as values, as frames and mixed; damage is named, or left out.
#include "ndp/blocks.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <cstring>
#include <map>
#include <memory>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include "base/random.h"
#include "compression/frame.h"
#include "compression/frame_parts.h"
#include "ndp/numbers.h"
#include "ndp/plane_keys.h"
#include "tests/support/tensors.h"

namespace bowhead::test {
namespace {

using namespace ndp;  // NOLINT

/// Blocks of a sequence, as rows and as they are stored.
class Sequence {
 public:
  Sequence(const KvLayout& layout, uint64_t seed) : layout_(layout), random_(seed) {}

  /// Appends a block; there may be a gap before it.
  void add(uint32_t tokens, bool framed) {
    next_ += static_cast<uint32_t>(random_.below(3));
    const uint64_t bytes = payload_bytes(layout_, tokens);
    const auto shape = compression::shape_of(layout_, bytes);
    auto& value = *values_.emplace_back(std::make_unique<std::vector<uint8_t>>());
    if (shape) {
      value = make_tensor(*shape, compression::Content::NORMAL, random_.below(1000));
    } else {  // K and V of unlike lengths
      const compression::Shape any{number_format(layout_), 1, tokens, 8, {}};
      const auto some = make_tensor(any, compression::Content::NORMAL, 1);
      for (uint64_t i = 0; i < bytes; ++i) value.push_back(some[i % some.size()]);
      put_scales(value, tokens);
    }
    StoredBlock block{&layout_, value, false, bytes, next_};
    if (framed && shape) {
      auto& frame = *values_.emplace_back(
          std::make_unique<std::vector<uint8_t>>(compression::frame_bound(*shape)));
      frame.resize(
          compression::Encoder(compression::Profile::FAST).encode(*shape, value, frame).value());
      block.bytes = frame;
      block.framed = true;
    }
    raw_.push_back({value.data(), tokens, next_});
    blocks_.push_back(block);
    next_ += tokens;
  }
  uint32_t end() const { return next_; }
  std::vector<StoredBlock>& blocks() { return blocks_; }
  std::vector<KvSpan> spans(uint32_t layer, uint32_t head) const {
    std::vector<KvSpan> spans;
    const uint32_t value_part = layout_.parts - 1u;
    for (const Raw& raw : raw_) {
      KvSpan span{raw.first, rows_in(layout_, raw.data, raw.tokens, layer, 0, head),
                  rows_in(layout_, raw.data, raw.tokens, layer, value_part, head)};
      span.values.channels = layout_.value_channels;
      span.keys.scales = scales_at(raw.first, layer, 0, head);
      span.values.scales = scales_at(raw.first, layer, value_part, head);
      spans.push_back(span);
    }
    return spans;
  }
  std::vector<KeySpan> keys(uint32_t layer, uint32_t head) const {
    std::vector<KeySpan> keys;
    for (const KvSpan& span : spans(layer, head)) keys.push_back({span.first_token, span.keys});
    return keys;
  }
  size_t tokens() const {
    size_t all = 0;
    for (const Raw& raw : raw_) all += raw.tokens;
    return all;
  }
  uint64_t stored_bytes() const {
    uint64_t all = 0;
    for (const StoredBlock& block : blocks_) all += block.bytes.size();
    return all;
  }
  /// Random ones, from 0.25 on, which this remembers.
  void put_scales(std::vector<uint8_t>& value, uint32_t tokens) {
    for (uint32_t at = 0; at < layout_.layers * layout_.parts * layout_.heads; ++at) {
      const uint32_t layer = at / layout_.heads / layout_.parts;
      const uint32_t part = at / layout_.heads % layout_.parts, head = at % layout_.heads;
      const auto places = scales_of(layout_, tokens, layer, part, head);
      if (!places || (layout_.scales == BH_SCALES_PER_TOKEN && head > 0)) continue;
      auto& scales = scales_[{next_, layer, part, head}];
      for (uint32_t token = 0; token < tokens; ++token) {
        const float scale = 0.25f + static_cast<float>(random_.below(64)) / 64;
        scales.push_back(scale);
        uint8_t* to = &value[places->offset_bytes + token * places->stride_bytes];
        const uint16_t bf16 = to_bf16(scale);
        if (layout_.scale_format == BH_NUMBER_FP32)
          std::memcpy(to, &scale, sizeof scale);
        else
          std::memcpy(to, &bf16, sizeof bf16);
      }
    }
  }
  const float* scales_at(uint32_t first_token, uint32_t layer, uint32_t part, uint32_t head) const {
    if (layout_.scales == BH_SCALES_PER_TOKEN) head = 0;
    const auto at = scales_.find({first_token, layer, part, head});
    return at == scales_.end() ? nullptr : at->second.data();
  }
  /// For tests that change a frame.
  uint8_t* bytes_of(size_t block) { return const_cast<uint8_t*>(blocks_[block].bytes.data()); }

 private:
  struct Raw {
    const uint8_t* data;
    uint32_t tokens, first;
  };
  KvLayout layout_;
  Random random_;
  uint32_t next_ = 0;
  std::vector<std::unique_ptr<std::vector<uint8_t>>> values_;
  std::vector<Raw> raw_;
  std::vector<StoredBlock> blocks_;
  /// By first token, layer, part and head.
  std::map<std::array<uint32_t, 4>, std::vector<float>> scales_;
};

KvLayout keys_of_heads(uint16_t heads, RowOrder order) {
  KvLayout layout = keys_layout(NumberFormat::BF16, 64, heads);
  layout.order = static_cast<uint8_t>(order);
  return layout;
}

std::vector<float> random_values(size_t count, uint64_t seed) {
  Random random(seed);
  std::vector<float> values;
  for (size_t i = 0; i < count; ++i)
    values.push_back((static_cast<float>(random.below(2001)) - 1000) / 512);
  return values;
}

enum class Kind { PAIRS, KEYS_ONLY, LATENT, UNLIKE };
struct Case {
  KvLayout layout;
  std::string text;
};

std::vector<Case> layouts() {
  std::vector<Case> all;
  for (const NumberFormat number : {NumberFormat::BF16, NumberFormat::FP16, NumberFormat::INT8}) {
    for (const RowOrder order : {RowOrder::HEADS_FIRST, RowOrder::TOKENS_FIRST}) {
      for (const Kind kind : {Kind::PAIRS, Kind::KEYS_ONLY, Kind::LATENT, Kind::UNLIKE}) {
        KvLayout layout = pairs_layout(number, 2, 3, 64, order);
        if (kind == Kind::KEYS_ONLY || kind == Kind::LATENT) layout.parts = 1;
        if (kind == Kind::KEYS_ONLY) layout.value_channels = 0;
        if (kind == Kind::LATENT || kind == Kind::UNLIKE) layout.value_channels = 40;
        if (kind != Kind::UNLIKE && number == NumberFormat::BF16) {
          layout.rotary = BH_ROTARY_HALVES;
          layout.rotary_channels = 64;
          layout.rotary_base_thousandths = 10'000'000;
        }
        if (kind == Kind::LATENT) layout.heads = 1;
        all.push_back({layout, to_text(layout)});
      }
    }
  }
  // Scales in the block: of tokens, of rows; and as an indexer's keys have them.
  for (const RowOrder order : {RowOrder::HEADS_FIRST, RowOrder::TOKENS_FIRST}) {
    KvLayout layout = pairs_layout(NumberFormat::INT8, 2, 3, 64, order);
    for (const uint8_t scales : {BH_SCALES_PER_TOKEN, BH_SCALES_PER_ROW}) {
      layout.scales = scales;
      layout.scale_format = BH_NUMBER_BF16;
      layout.scale_place = BH_SCALES_BEHIND_PART;
      all.push_back({layout, to_text(layout)});
    }
    layout = keys_layout(NumberFormat::FP8_E4M3, 128, 2);
    layout.order = static_cast<uint8_t>(order);
    layout.layers = 2;
    layout.value_channels = 100;
    layout.scales = BH_SCALES_PER_ROW;
    layout.scale_format = BH_NUMBER_FP32;
    layout.scale_place = BH_SCALES_BEHIND_ROW;
    all.push_back({layout, to_text(layout)});
  }
  for (const Case& one : all) EXPECT_TRUE(check_layout(one.layout)) << one.text;
  return all;
}

class Blocks : public testing::TestWithParam<size_t> {
 protected:
  Blocks() : layout_(layouts()[GetParam()].layout), sequence_(layout_, GetParam()) {
    for (const auto& [tokens, framed] :
         {std::pair{16u, true}, {300u, true}, {70u, false}, {600u, true}, {1u, true}, {5u, false}})
      sequence_.add(tokens, framed);
    heads_.blocks = sequence_.blocks();
    heads_.layer = 1;
    heads_.heads = layout_.heads > 1 ? 2 : 1;
    heads_.first_head = layout_.heads - heads_.heads;
    values_ = random_values(size_t{heads_.heads} * kQueries * layout_.key_channels, GetParam());
    queries_ = {values_, kQueries, 0.125f, {}};
    views_ = {Visible{}, Visible{100, 500, 7}, Visible{0, 0, 0}, std::span<const Visible>(unlike_)};
  }
  Queries queries(uint32_t head) const {
    const size_t each = size_t{kQueries} * layout_.key_channels;
    return Queries::of(std::span(values_).subspan(head * each, each), kQueries,
                       layout_.key_channels, queries_.scale, number_format(layout_))
        .value();
  }
  /// By token of the sequence and query.
  double exact_score(uint32_t head, uint32_t query, uint32_t token) const {
    for (const KeySpan& span : sequence_.keys(1, heads_.first_head + head)) {
      if (token < span.first_token || token - span.first_token >= span.keys.tokens) continue;
      const uint8_t* row = span.keys.row(token - span.first_token);
      const float* scales = span.keys.scales;
      const double scale = static_cast<double>(scales ? scales[token - span.first_token] : 1);
      double sum = 0;
      for (uint32_t c = 0; c < layout_.key_channels; ++c)
        sum += static_cast<double>(
                   values_[(size_t{head} * kQueries + query) * layout_.key_channels + c]) *
               static_cast<double>(load_number(span.keys.number,
                                               row + size_t{c} * element_bytes(span.keys.number)));
      return sum * scale * static_cast<double>(queries_.scale);
    }
    ADD_FAILURE() << "no token " << token;
    return 0;
  }

  static constexpr uint32_t kQueries = 3;
  KvLayout layout_;
  Sequence sequence_;
  HeadsOfBlocks heads_;
  std::vector<float> values_;
  HeadQueries queries_;
  const std::vector<Visible> unlike_ = {{0, 350, 0}, {320, 800, 3}, {0, 0, 0}};
  std::vector<Views> views_;
};

TEST_P(Blocks, ScoreAsTheirRowsDo) {
  const size_t all = sequence_.tokens();
  for (const Views& views : views_) {
    queries_.views = views;
    std::vector<float> scores(heads_.heads * kQueries * all), wanted(kQueries * all);
    const auto read = score(heads_, queries_, scores);
    ASSERT_TRUE(read) << read.error().message();
    EXPECT_TRUE(read->left_out.empty());
    EXPECT_EQ(read->bytes > 0, views.any().end > 0);
    EXPECT_LE(read->bytes, sequence_.stored_bytes());
    for (uint32_t head = 0; head < heads_.heads; ++head) {
      ASSERT_TRUE(score(queries(head), sequence_.keys(1, heads_.first_head + head), views, wanted));
      for (size_t i = 0; i < wanted.size(); ++i)
        ASSERT_EQ(scores[head * wanted.size() + i], wanted[i]) << head << " " << i;
    }
  }
}

TEST_P(Blocks, HaveTheBestOfTheirRows) {
  for (const Views& views : views_) {
    queries_.views = views;
    const auto found = top_k(heads_, queries_, 10);
    ASSERT_TRUE(found) << found.error().message();
    ASSERT_EQ(found->hits.size(), size_t{heads_.heads} * kQueries);
    for (uint32_t head = 0; head < heads_.heads; ++head) {
      auto best = TopK::of(kQueries, 10).value();
      ASSERT_TRUE(best.add(queries(head), sequence_.keys(1, heads_.first_head + head), views));
      for (uint32_t q = 0; q < kQueries; ++q) {
        const auto& hits = found->hits[head * kQueries + q];
        const auto wanted = best.hits(q);
        ASSERT_EQ(hits.size(), wanted.size());
        for (size_t i = 0; i < hits.size(); ++i) {
          const double exact = exact_score(head, q, hits[i].token);
          EXPECT_TRUE(views.of(q).has(hits[i].token));
          EXPECT_NEAR(static_cast<double>(hits[i].score), exact, 1e-3 + std::abs(exact) * 1e-3);
          EXPECT_NEAR(static_cast<double>(hits[i].score), static_cast<double>(wanted[i].score),
                      1e-3 + std::abs(exact) * 1e-3);
        }
      }
    }
    const auto near = top_k(heads_, queries_, 10, 1e6);
    ASSERT_TRUE(near) << near.error().message();
    for (size_t i = 0; i < found->hits.size(); ++i)
      EXPECT_EQ(near->hits[i].size(), found->hits[i].size());
  }
}

TEST_P(Blocks, HaveSumsOfScoresAsTheirRowsDo) {
  const std::vector<float> weights = random_values(size_t{heads_.heads} * kQueries, 3);
  queries_.weights = weights;
  queries_.rectified = true;
  queries_.views = Visible{100, 700, 7};
  const size_t all = sequence_.tokens();
  std::vector<float> scores(heads_.heads * all), wanted(all);
  ASSERT_TRUE(score(heads_, queries_, scores));
  const auto found = top_k(heads_, queries_, 10);
  ASSERT_TRUE(found) << found.error().message();
  ASSERT_EQ(found->hits.size(), heads_.heads);
  for (uint32_t head = 0; head < heads_.heads; ++head) {
    const Queries sums =
        queries(head)
            .summed(std::span(weights).subspan(head * kQueries, kQueries), kQueries, true)
            .value();
    const auto keys = sequence_.keys(1, heads_.first_head + head);
    ASSERT_TRUE(score(sums, keys, queries_.views, wanted));
    EXPECT_TRUE(std::equal(wanted.begin(), wanted.end(), &scores[head * all]));
    auto best = TopK::of(1, 10).value();
    ASSERT_TRUE(best.add(sums, keys, queries_.views));
    EXPECT_TRUE(std::ranges::equal(found->hits[head], best.hits(0)));
  }
  std::vector<float> outputs(size_t{heads_.heads} * kQueries * layout_.value_channels),
      lse(size_t{heads_.heads} * kQueries);
  EXPECT_EQ(attend(heads_, queries_, outputs, lse).status(), Status::INVALID_ARGUMENT);
  queries_.group = 2;
  EXPECT_EQ(top_k(heads_, queries_, 10).status(), Status::INVALID_ARGUMENT);
  queries_.group = 1;
  EXPECT_EQ(top_k(heads_, queries_, 10)->hits.size(), heads_.heads * kQueries);
}

TEST_P(Blocks, AttendAsTheirRowsDo) {
  const uint32_t channels = layout_.value_channels;
  std::vector<float> outputs(size_t{heads_.heads} * kQueries * channels);
  std::vector<float> sums(size_t{heads_.heads} * kQueries);
  if (channels == 0) {
    EXPECT_EQ(attend(heads_, queries_, outputs, sums).status(), Status::INVALID_ARGUMENT);
    return;
  }
  for (const Views& views : views_) {
    queries_.views = views;
    const auto read = attend(heads_, queries_, outputs, sums);
    ASSERT_TRUE(read) << read.error().message();
    for (uint32_t head = 0; head < heads_.heads; ++head) {
      auto partial = Attention::of(kQueries, channels).value();
      ASSERT_TRUE(partial.add(queries(head), sequence_.spans(1, heads_.first_head + head), views));
      std::vector<float> wanted(channels);
      for (uint32_t q = 0; q < kQueries; ++q) {
        ASSERT_EQ(partial.output(q, wanted), Status::OK);
        const size_t at = head * kQueries + q;
        for (uint32_t c = 0; c < channels; ++c)
          EXPECT_NEAR(outputs[at * channels + c], wanted[c], 1e-2f + std::abs(wanted[c]) * 1e-2f);
        const float sum = partial.log_sum_exp(q);
        if (std::isinf(sum))
          EXPECT_EQ(sums[at], sum);
        else
          EXPECT_NEAR(sums[at], sum, 1e-2f);
      }
    }
  }
}

TEST_P(Blocks, GiveTheirRows) {
  for (uint32_t part = 0; part < 2; ++part) {
    const uint32_t channels = bowhead::channels(layout_, part);
    const size_t row_bytes = size_t{channels} * element_bytes(number_format(layout_));
    Random random(GetParam());
    std::vector<uint32_t> tokens;
    for (const StoredBlock& block : sequence_.blocks()) {
      for (int i = 0; i < 3; ++i)
        tokens.push_back(block.first_token +
                         static_cast<uint32_t>(random.below(tokens_of(block).value())));
    }
    std::reverse(tokens.begin(), tokens.end());
    std::vector<std::byte> rows(heads_.heads * tokens.size() * row_bytes), wanted;
    const auto read = gather(heads_, part, tokens, rows);
    ASSERT_EQ(static_cast<bool>(read), channels != 0) << read.error().message();
    if (!read) continue;
    wanted.resize(tokens.size() * row_bytes);
    for (uint32_t head = 0; head < heads_.heads; ++head) {
      auto spans = sequence_.keys(1, heads_.first_head + head);
      const auto both = sequence_.spans(1, heads_.first_head + head);
      for (size_t i = 0; part == 1 && i < spans.size(); ++i) spans[i].keys = both[i].values;
      ASSERT_TRUE(gather(spans, tokens, wanted));
      EXPECT_EQ(std::memcmp(&rows[head * wanted.size()], wanted.data(), wanted.size()), 0);
    }
    tokens.push_back(sequence_.end());
    rows.resize(heads_.heads * tokens.size() * row_bytes);
    EXPECT_EQ(gather(heads_, part, tokens, rows).status(), Status::INVALID_ARGUMENT);
  }
}

TEST_P(Blocks, HaveTheBoundsOfTheirPages) {
  const auto pages = static_cast<size_t>(pages_of(sequence_.blocks(), 32).value());
  const size_t channels = layout_.key_channels;
  std::vector<float> least(heads_.heads * pages * channels), largest(least.size());
  const auto read = digest(heads_, 32, least, largest);
  ASSERT_TRUE(read) << read.error().message();
  for (uint32_t head = 0; head < heads_.heads; ++head) {
    size_t at = head * pages * channels;
    for (const KeySpan& span : sequence_.keys(1, heads_.first_head + head)) {
      const auto wanted = digest(span, 32).value();
      for (size_t i = 0; i < wanted.least.size(); ++i, ++at) {
        ASSERT_EQ(least[at], wanted.least[i]);
        ASSERT_EQ(largest[at], wanted.largest[i]);
      }
    }
    EXPECT_EQ(at, (head + 1) * pages * channels);
  }
}

/// Damage in the header of a frame: the block is named, or left out of every operation.
TEST_P(Blocks, NameWhatCannotBeRead) {
  if (!sequence_.blocks()[3].framed) {  // there are none of this layout
    EXPECT_TRUE(layout_.key_channels != layout_.value_channels || layout_.scales != 0);
    return;
  }
  sequence_.bytes_of(3)[sizeof(bh_frame_header) - 1] ^= 1;
  const size_t all = sequence_.tokens(), heads = heads_.heads;
  std::vector<float> scores(heads * kQueries * all), sums(heads * kQueries);
  std::vector<float> outputs(heads * kQueries * layout_.value_channels);
  const std::vector<uint32_t> tokens = {sequence_.blocks()[3].first_token,
                                        sequence_.blocks()[0].first_token};
  std::vector<std::byte> rows(heads * 2 * row_bytes(layout_, 0));
  const auto pages = static_cast<size_t>(pages_of(sequence_.blocks(), 32).value());
  std::vector<float> least(heads * pages * layout_.key_channels), largest(least.size());
  const auto each = [&](const auto& check) {
    check(score(heads_, queries_, scores));
    const auto found = top_k(heads_, queries_, 3);
    check(found ? Result<BlocksRead>(found->read) : Result<BlocksRead>(found.error()));
    if (!outputs.empty()) check(attend(heads_, queries_, outputs, sums));
    check(gather(heads_, 0, tokens, rows));
    check(digest(heads_, 32, least, largest));
  };
  each([](const Result<BlocksRead>& read) {
    ASSERT_EQ(read.status(), Status::DAMAGED);
    EXPECT_NE(read.error().message().find("block 3"), std::string::npos);
  });
  heads_.unreadable = Unreadable::SKIP;
  each([](const Result<BlocksRead>& read) {
    ASSERT_TRUE(read) << read.error().message();
    EXPECT_EQ(read->left_out, std::vector<size_t>{3});
  });
  EXPECT_TRUE(std::isnan(least[(pages - 1 - 2) * layout_.key_channels]));
  for (size_t i = 0; i < row_bytes(layout_, 0); ++i) EXPECT_EQ(rows[i], std::byte{0});
}

/// Where heads lie side by side, a query that is not finite makes its head be decoded. The scores
/// of other heads stay those of double precision.
TEST(NotFinite, QueriesAreNoMatterToOtherHeads) {
  const KvLayout layout = pairs_layout(NumberFormat::BF16, 1, 2, 64, RowOrder::TOKENS_FIRST);
  Sequence sequence(layout, 1);
  sequence.add(600, true);
  auto values = random_values(size_t{2} * 64, 1);
  values[3] = std::nanf("");
  const auto both = top_k({sequence.blocks(), 0, 0, 2}, {values, 1, 1, {}}, 600);
  const auto second =
      top_k({sequence.blocks(), 0, 1, 1}, {std::span(values).subspan(64), 1, 1, {}}, 600);
  ASSERT_TRUE(both && second);
  EXPECT_TRUE(std::isnan(both->hits[0][0].score));
  EXPECT_EQ(both->hits[0].size(), 600u);
  EXPECT_EQ(both->hits[1], second->hits[0]);
}

/// All is read, and counts once; also of a head that is searched.
TEST(BytesRead, AreNoMoreThanAreStored) {
  for (const RowOrder order : {RowOrder::HEADS_FIRST, RowOrder::TOKENS_FIRST}) {
    const KvLayout layout = pairs_layout(NumberFormat::BF16, 1, 8, 64, order);
    Sequence sequence(layout, 1);
    for (const uint32_t tokens : {4u, 16u, 300u}) sequence.add(tokens, true);
    sequence.add(50, false);
    const auto values = random_values(size_t{8} * 64, 1);
    std::vector<float> outputs(size_t{8} * 64), sums(8);
    const auto attended = attend({sequence.blocks(), 0, 0, 8}, {values, 1, 1, {}}, outputs, sums);
    ASSERT_TRUE(attended) << attended.error().message();
    EXPECT_EQ(attended->bytes, sequence.stored_bytes());
  }
  for (const uint8_t scales : {BH_SCALES_PER_TOKEN, BH_SCALES_PER_ROW}) {
    KvLayout layout = pairs_layout(NumberFormat::INT8, 1, 8, 64);
    layout.scales = scales;
    layout.scale_format = BH_NUMBER_FP32;
    layout.scale_place = BH_SCALES_BEHIND_PART;
    Sequence sequence(layout, 1);
    for (const uint32_t tokens : {4u, 300u}) sequence.add(tokens, false);
    const auto values = random_values(size_t{8} * 64, 1);
    std::vector<float> outputs(size_t{8} * 64), sums(8);
    const auto attended = attend({sequence.blocks(), 0, 0, 8}, {values, 1, 1, {}}, outputs, sums);
    ASSERT_TRUE(attended) << attended.error().message();
    EXPECT_EQ(attended->bytes, sequence.stored_bytes());
  }
  for (const uint16_t heads : {uint16_t{1}, uint16_t{8}}) {  // side by side
    const KvLayout keys = keys_of_heads(heads, RowOrder::TOKENS_FIRST);
    Sequence sequence(keys, 1);
    sequence.add(300, true);
    const auto values = random_values(size_t{heads} * 64, 1);
    const auto found = top_k({sequence.blocks(), 0, 0, heads}, {values, 1, 1, {}}, 300);
    EXPECT_EQ(found->read.bytes, sequence.stored_bytes()) << heads << " heads";
  }
}

/// What heads that lie side by side share is paid for once, and the budget is that of all.
TEST(BytesRead, OfHeadsSideBySideAreWithinOneBudget) {
  constexpr uint32_t kHeads = 16, kTokens = 600, kK = 64;
  constexpr double kBudget = 2.5 / 8 * 64;
  std::map<RowOrder, size_t> found_best;
  for (const RowOrder order : {RowOrder::HEADS_FIRST, RowOrder::TOKENS_FIRST}) {
    const KvLayout layout = keys_of_heads(kHeads, order);
    Sequence sequence(layout, 1);
    sequence.add(kTokens, true);
    const auto values = random_values(size_t{kHeads} * 64, 1);
    const HeadsOfBlocks heads{sequence.blocks(), 0, 0, kHeads};
    const auto exact = top_k(heads, {values, 1, 1, {}}, kK);
    const auto near = top_k(heads, {values, 1, 1, {}}, kK, kBudget);
    ASSERT_TRUE(exact && near);
    EXPECT_LE(static_cast<double>(near->read.bytes), kBudget * kTokens * kHeads);
    EXPECT_GT(static_cast<double>(near->read.bytes), 0.5 * kBudget * kTokens * kHeads);
    for (uint32_t head = 0; head < kHeads; ++head) {
      for (const Hit& hit : near->hits[head]) {
        found_best[order] += std::any_of(exact->hits[head].begin(), exact->hits[head].end(),
                                         [&](const Hit& best) { return best.token == hit.token; });
      }
    }
  }
  EXPECT_GT(found_best[RowOrder::HEADS_FIRST], kHeads * kK / 2u);
  EXPECT_GT(found_best[RowOrder::TOKENS_FIRST], found_best[RowOrder::HEADS_FIRST] * 9 / 10);
}

TEST(BytesRead, AreThoseOfTheRowsThatAreGathered) {
  const KvLayout layout = pairs_layout(NumberFormat::BF16, 1, 2, 64);
  Sequence sequence(layout, 1);
  sequence.add(4096, false);
  const uint32_t first = sequence.blocks()[0].first_token;
  const std::vector<uint32_t> tokens = {first + 4095, first + 7, first, first + 7};
  std::vector<std::byte> rows(size_t{2} * 4 * 128);
  EXPECT_EQ(gather({sequence.blocks(), 0, 0, 2}, 1, tokens, rows)->bytes, 2u * 3 * 128);
}

/// Keys of one head cannot be read: the block is in the answer of no head.
TEST(DamagedBlocks, AreLeftOutForAllHeads) {
  const KvLayout layout = pairs_layout(NumberFormat::BF16, 1, 3, 64);
  Sequence sequence(layout, 1);
  for (int i = 0; i < 3; ++i) sequence.add(300, true);
  const auto values = random_values(size_t{3} * 64, 1);
  const HeadQueries ask{values, 1, 1, {}};
  HeadsOfBlocks heads{sequence.blocks(), 0, 0, 3, Unreadable::SKIP};
  const compression::ConstBytes frame = sequence.blocks()[1].bytes;
  const auto keys = PlaneKeys::open(frame, 1, 0).value();  // of the head in the middle
  sequence.bytes_of(1)[keys.tiles()[0].begin + keys.tiles()[0].planes->head().size() + 5] ^= 1;
  const size_t all = sequence.tokens();
  std::vector<float> scores(3 * all);
  const auto scored = score(heads, ask, scores);
  const auto found = top_k(heads, ask, 700);
  ASSERT_TRUE(scored && found);
  EXPECT_EQ(scored->left_out, std::vector<size_t>{1});
  EXPECT_EQ(found->read.left_out, std::vector<size_t>{1});
  for (uint32_t head = 0; head < 3; ++head) {
    EXPECT_EQ(found->hits[head].size(), 600u);
    for (size_t i = 300; i < 600; ++i) EXPECT_TRUE(std::isinf(scores[head * all + i]));
    EXPECT_TRUE(std::isfinite(scores[head * all + 299]) && std::isfinite(scores[head * all + 600]));
  }
}

/// A search stops at damage that it meets. The number of searches does not grow with that of the
/// damaged blocks, and what they read is counted.
TEST(DamagedBlocks, AreAllLeftOutByFewSearches) {
  const KvLayout layout = pairs_layout(NumberFormat::BF16, 1, 1, 64);
  Sequence sequence(layout, 1);
  for (int i = 0; i < 40; ++i) sequence.add(256, true);
  const auto& blocks = sequence.blocks();
  const auto values = random_values(64, 1);
  std::vector<StoredBlock> good;
  std::vector<size_t> damaged;
  for (size_t b = 0; b < blocks.size(); ++b) {
    if (b % 2 == 0) {
      good.push_back(blocks[b]);
      continue;
    }
    damaged.push_back(b);
    const auto keys = PlaneKeys::open(blocks[b].bytes, 0, 0).value();
    const PlaneKeys::Tile& tile = keys.tiles()[0];
    const size_t first_plane = tile.planes->head().size() + 5, last_plane = tile.bytes - 1;
    sequence.bytes_of(b)[tile.begin + (b % 4 == 1 ? first_plane : last_plane)] ^= 1;
  }
  for (const double budget : {0.0, 8.0}) {
    const auto wanted = top_k({good, 0, 0, 1}, {values, 1, 1, {}}, 8, budget);
    const auto found = top_k({blocks, 0, 0, 1, Unreadable::SKIP}, {values, 1, 1, {}}, 8, budget);
    ASSERT_TRUE(wanted && found);
    EXPECT_EQ(found->hits, wanted->hits);
    EXPECT_EQ(found->read.left_out, damaged);
    EXPECT_GT(found->read.bytes, 2 * wanted->read.bytes);
    EXPECT_LT(found->read.bytes, 4 * sequence.stored_bytes());
  }
}

/// The heads of tiles that no query sees: those of other blocks, also between two views, and other
/// tiles of a block.
TEST(DamagedBlocks, AreReadWhereTheDamageIsNotSeen) {
  for (const RowOrder order : {RowOrder::HEADS_FIRST, RowOrder::TOKENS_FIRST}) {
    const KvLayout layout = pairs_layout(NumberFormat::BF16, 1, 2, 64, order);
    Sequence sequence(layout, 1);
    for (int i = 0; i < 3; ++i) sequence.add(600, true);
    const auto& blocks = sequence.blocks();
    const auto values = random_values(size_t{2} * 2 * 64, 1);
    HeadQueries ask{values, 2, 1, {}};
    const HeadsOfBlocks heads{blocks, 0, 0, 2};
    std::vector<float> scores(4 * sequence.tokens());
    const auto damage_first_tile = [&](size_t block) {
      const auto keys = PlaneKeys::open(blocks[block].bytes, 0, 0).value();
      ASSERT_GT(keys.tiles().size(), 1u);
      sequence.bytes_of(block)[keys.tiles()[0].begin + 12] ^= 1;
    };
    const Visible end{blocks[2].first_token + 560};
    const std::vector<Visible> apart = {{0, blocks[1].first_token}, end};
    damage_first_tile(1);
    ask.views = std::span<const Visible>(apart);
    EXPECT_TRUE(score(heads, ask, scores));
    damage_first_tile(2);
    for (const Views& views : {Views(end), Views(std::span<const Visible>(apart))}) {
      ask.views = views;
      for (const double budget : {0.0, 8.0}) {
        for (const Reading reading : {Reading::ONE_PASS, Reading::FEWEST_BYTES}) {
          const auto found = top_k(heads, ask, 10, budget, reading);
          ASSERT_TRUE(found) << found.error().message();
          EXPECT_EQ(found->hits[3].size(), 10u);
        }
      }
    }
    EXPECT_TRUE(score(heads, {values, 2, 1, end}, scores));
    EXPECT_EQ(top_k(heads, {values, 2, 1, {}}, 10).status(), Status::DAMAGED);
  }
}

/// Frames of so many tokens, of which the first numbers are random and the others zero.
class PartlyRandom {
 public:
  PartlyRandom(const KvLayout& layout, uint32_t tokens)
      : shape_(compression::shape_of(layout, payload_bytes(layout, tokens)).value()),
        values_(make_tensor(shape_, compression::Content::NORMAL, 1)) {}
  std::vector<uint8_t> frame(size_t numbers) {
    auto values = values_;
    std::fill(values.begin() + static_cast<ptrdiff_t>(std::min(2 * numbers, values.size())),
              values.end(), uint8_t{0});
    std::vector<uint8_t> frame(compression::frame_bound(shape_));
    frame.resize(encoder_.encode(shape_, values, frame).value());
    return frame;
  }

 private:
  compression::Shape shape_;
  std::vector<uint8_t> values_;
  compression::Encoder encoder_{compression::Profile::FAST};
};

/// A block that did not stay: its bytes become those of another good frame of the same length, of
/// more tokens, and back, at any time. Nothing is written or read out of bounds, and no answer is
/// refused for a reason of ours.
TEST(ReplacedBlocks, DoNoHarm) {
#if defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "bytes change while they are read";
#endif
  for (const RowOrder order : {RowOrder::HEADS_FIRST, RowOrder::TOKENS_FIRST}) {
    const KvLayout layout = pairs_layout(NumberFormat::BF16, 1, 2, 64, order);
    PartlyRandom few(layout, 300), many(layout, 512);
    std::map<size_t, std::vector<uint8_t>> by_size;
    for (size_t i = 0; i < 60; ++i) {
      auto frame = few.frame(300 * 4 * 64 - 41 * i);
      by_size[frame.size()] = std::move(frame);
    }
    std::vector<uint8_t> one, other;
    for (size_t i = 0; i < 3000 && one.empty(); ++i) {
      other = many.frame(270 * 4 * 64 + 3 * i);
      if (const auto same = by_size.find(other.size()); same != by_size.end()) one = same->second;
    }
    ASSERT_FALSE(one.empty());
    auto room = one;
    std::atomic<bool> stop = false;
    std::thread writer([&] {
      for (bool turn = true; !stop; turn = !turn) {
        std::memcpy(room.data(), (turn ? other : one).data(), room.size());
        std::this_thread::yield();
      }
    });
    const StoredBlock block{&layout, room, true, payload_bytes(layout, 300), 0};
    const HeadsOfBlocks heads{{&block, 1}, 0, 0, 2, Unreadable::SKIP};
    const auto values = random_values(size_t{2} * 64, 1);
    const HeadQueries ask{values, 1, 1, {}};
    std::vector<uint32_t> tokens(300);
    std::iota(tokens.begin(), tokens.end(), 0u);
    constexpr size_t kScores = 2 * 300, kBounds = size_t{2} * 10 * 64;
    std::vector<float> scores(4 * kScores, 7), least(4 * kBounds, 7), largest(4 * kBounds, 7);
    std::vector<std::byte> rows(size_t{2} * 300 * 128);
    const auto read = [](const auto& result) {
      return result || result.status() == Status::DAMAGED ||
             result.status() == Status::INVALID_ARGUMENT;  // of decoding what is not there
    };
    for (int i = 0; i < 1500; ++i) {
      EXPECT_TRUE(read(score(heads, ask, std::span(scores).first(kScores))));
      EXPECT_TRUE(read(
          digest(heads, 32, std::span(least).first(kBounds), std::span(largest).first(kBounds))));
      if (i % 5 != 0) continue;
      EXPECT_TRUE(read(top_k(heads, ask, 5)));
      EXPECT_TRUE(read(top_k(heads, ask, 5, 10)));
      EXPECT_TRUE(read(gather(heads, 1, tokens, rows)));
    }
    const auto is_7 = [](float value) { return value == 7; };
    EXPECT_TRUE(std::all_of(scores.begin() + kScores, scores.end(), is_7));
    EXPECT_TRUE(std::all_of(least.begin() + kBounds, least.end(), is_7));
    EXPECT_TRUE(std::all_of(largest.begin() + kBounds, largest.end(), is_7));
    stop = true;
    writer.join();
  }
}

std::string name_of(const testing::TestParamInfo<size_t>& info) {
  std::string name = std::to_string(info.param) + "_" + layouts()[info.param].text;
  std::replace_if(
      name.begin(), name.end(), [](unsigned char c) { return std::isalnum(c) == 0; }, '_');
  return name;
}
INSTANTIATE_TEST_SUITE_P(Layouts, Blocks, testing::Range(size_t{0}, layouts().size()), name_of);

/// Any byte of a frame: an operation gives what the rows give, or says DAMAGED.
TEST(DamagedBlocks, GiveNoWrongRows) {
  const KvLayout layout = pairs_layout(NumberFormat::BF16, 1, 3, 64, RowOrder::TOKENS_FIRST);
  Sequence sequence(layout, 1);
  sequence.add(300, true);
  const size_t bytes = sequence.blocks()[0].bytes.size();
  std::vector<uint32_t> tokens(300);
  std::iota(tokens.begin(), tokens.end(), 0u);
  const auto values = random_values(64, 1);
  const HeadsOfBlocks heads{sequence.blocks(), 0, 1, 1};
  const uint32_t first = sequence.blocks()[0].first_token;
  for (uint32_t& token : tokens) token += first;
  std::vector<std::byte> rows(300 * 128), wanted(rows.size());
  ASSERT_TRUE(gather(sequence.keys(0, 1), tokens, wanted));
  Random random(1);
  int damaged = 0;
  for (int i = 0; i < 300; ++i) {
    uint8_t* at = sequence.bytes_of(0) + random.below(bytes);
    const auto bit = static_cast<uint8_t>(1u << random.below(8));
    *at ^= bit;
    const auto read = gather(heads, 0, tokens, rows);
    if (read)
      ASSERT_EQ(rows, wanted);
    else
      ASSERT_EQ(read.status(), Status::DAMAGED) << read.error().message();
    damaged += read ? 0 : 1;
    *at ^= bit;
  }
  EXPECT_GT(damaged, 100);
  EXPECT_LT(damaged, 250);  // the values' part is not read
}

struct Wrong {
  std::vector<StoredBlock> blocks;
  HeadsOfBlocks heads;
  HeadQueries queries;
  Status status;
  const char* says;
};

TEST(WrongBlocks, AreRefusedAndNamed) {
  const KvLayout layout = pairs_layout(NumberFormat::BF16, 1, 2, 16);
  const KvLayout other = pairs_layout(NumberFormat::BF16, 1, 4, 16);
  Sequence sequence(layout, 1), others(other, 1), text(kOpaqueLayout, 1);
  sequence.add(40, true);
  sequence.add(40, false);
  others.add(40, true);
  const std::vector<StoredBlock> good = sequence.blocks();
  const auto values = random_values(32, 1);
  KvLayout scaled = layout;
  scaled.scales = BH_SCALES_PER_TOKEN;
  scaled.scale_format = BH_NUMBER_FP32;
  KvLayout by_channel = scaled;
  by_channel.scales = BH_SCALES_PER_CHANNEL;
  by_channel.scale_place = BH_SCALES_BEHIND_PART;
  KvLayout wide = layout;
  wide.number_format = BH_NUMBER_FP32;

  const HeadQueries ask{std::span(values).first(16), 1, 1, {}};
  const auto with = [&](auto change) {
    auto blocks = good;
    change(blocks);
    return blocks;
  };
  const auto queries = [&](auto change) {
    HeadQueries changed = ask;
    change(changed);
    return changed;
  };
  const auto one_of = [&](const KvLayout& of) {
    return with([&](auto& b) { b.resize(1), b[0].layout = &of; });
  };
  const auto kBad = Status::INVALID_ARGUMENT, kUnsupported = Status::NOT_SUPPORTED;
  const Wrong wrongs[] = {
      {{}, {}, ask, kBad, "no blocks"},
      {good, {{}, 1, 0, 1}, ask, kBad, "layer 1"},
      {good, {{}, 0, 2, 1}, ask, kBad, "1 heads from 2 on of blocks that have 2"},
      {good, {{}, 0, 0xFFFFFFFF, 2}, ask, kBad, "heads"},
      {good, {{}, 0, 0, 0}, ask, kBad, "0 heads"},
      {good, {{}, 0, 0, 2}, ask, kBad, "16 numbers as queries"},
      {good, {}, queries([](HeadQueries& q) { q.scale = 0; }), kBad, "scale"},
      {good, {}, queries([](HeadQueries& q) { q.count = 0; }), kBad, "queries"},
      {with([&](auto& b) { b[1] = others.blocks()[0]; }), {}, ask, kBad, "block 1"},
      {with([&](auto& b) { b[1].first_token = 1; }), {}, ask, kBad, "both hold token"},
      {with([&](auto& b) { b[1].first_token = 0xFFFFFFF0; }), {}, ask, kBad, "32 bits"},
      {with([&](auto& b) { b[1].value_bytes -= 1; }), {}, ask, kBad, "block 1"},
      {with([&](auto& b) { b[1].bytes = b[1].bytes.first(9); }), {}, ask, kBad, "block 1"},
      {with([&](auto& b) { b[0].value_bytes /= 2; }), {}, ask, Status::DAMAGED, "block 0"},
      {one_of(kOpaqueLayout), {}, ask, kUnsupported, "opaque"},
      {one_of(scaled), {}, ask, kUnsupported, "scales"},
      {one_of(by_channel), {}, ask, kUnsupported, "a scale for each channel"},
      {one_of(wide), {}, ask, kUnsupported, "fp32"},
  };
  for (const Wrong& wrong : wrongs) {
    HeadsOfBlocks heads = wrong.heads;
    heads.blocks = wrong.blocks;
    const auto found = top_k(heads, wrong.queries, 1);
    ASSERT_EQ(found.status(), wrong.status) << found.error().message();
    EXPECT_NE(found.error().message().find(wrong.says), std::string::npos)
        << found.error().message();
  }
}

/// As earlier versions wrote them, which knew fewer rotations.
TEST(FramesWithoutRotation, AreThoseOfALayoutWithOne) {
  KvLayout layout = keys_layout(NumberFormat::BF16, 64);
  layout.rotary = BH_ROTARY_INTERLEAVED;
  layout.rotary_channels = 64;
  layout.rotary_base_thousandths = 10'000'000;
  Sequence sequence(layout, 1);
  sequence.add(512, true);
  const std::vector<StoredBlock> turned = sequence.blocks();
  std::vector<StoredBlock> plain = turned;
  const auto info = compression::frame_info(turned[0].bytes).value();
  ASSERT_NE(info.shape.rotary.dim, 0);
  compression::Shape shape = info.shape;
  std::vector<uint8_t> values(shape.size_bytes());
  ASSERT_EQ(compression::Decoder().decode(turned[0].bytes, values), Status::OK);
  shape.rotary = {};
  std::vector<uint8_t> frame(compression::frame_bound(shape));
  frame.resize(
      compression::Encoder(compression::Profile::FAST).encode(shape, values, frame).value());
  plain[0].bytes = frame;
  const auto query = random_values(64, 1);
  const HeadQueries ask{query, 1, 1, {}};
  HeadsOfBlocks heads;
  heads.blocks = turned;
  const auto wanted = top_k(heads, ask, 20);
  heads.blocks = plain;
  const auto found = top_k(heads, ask, 20);
  ASSERT_TRUE(wanted && found);
  EXPECT_EQ(found->hits, wanted->hits);
}

TEST(WrongSizes, AreRefused) {
  const KvLayout layout = pairs_layout(NumberFormat::BF16, 1, 2, 16);
  Sequence sequence(layout, 1);
  sequence.add(40, true);
  const std::vector<StoredBlock> good = sequence.blocks();
  const auto values = random_values(16, 1);
  const HeadQueries ask{values, 1, 1, {}};
  const auto kBad = Status::INVALID_ARGUMENT;
  HeadsOfBlocks heads;
  heads.blocks = good;
  EXPECT_TRUE(top_k(heads, ask, 1));
  EXPECT_EQ(top_k(heads, ask, 0).status(), kBad);
  EXPECT_EQ(top_k(heads, ask, TopK::kMaxK + 1).status(), kBad);
  EXPECT_EQ(top_k(heads, ask, 1, -1).status(), kBad);
  EXPECT_EQ(top_k(heads, ask, 1, std::nan("")).status(), kBad);
  std::vector<float> few(7);
  EXPECT_EQ(score(heads, ask, few).status(), kBad);
  EXPECT_EQ(attend(heads, ask, few, few).status(), kBad);
  EXPECT_EQ(digest(heads, 0, few, few).status(), kBad);
  EXPECT_EQ(digest(heads, 8, few, few).status(), kBad);
  EXPECT_EQ(gather(heads, 2, {}, {}).status(), kBad);
}

}  // namespace
}  // namespace bowhead::test
