// SPDX-License-Identifier: Apache-2.0
// Operations on rows in frames give the same answers as on the plain rows.
#include "ndp/frames.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "base/random.h"
#include "compression/frame.h"
#include "ndp/operations.h"
#include "tests/support/tensors.h"

namespace bowhead::test {
namespace {

using compression::Content;
using compression::Shape;
using ndp::Attention;
using ndp::FramedKeys;
using ndp::FramedKv;
using ndp::FrameReader;
using ndp::Hit;
using ndp::KeySpan;
using ndp::KvSpan;
using ndp::Queries;
using ndp::TopK;
using ndp::Unreadable;
using ndp::Visible;

constexpr uint32_t kQueries = 3, kChannels = 72, kOuter = 1;  // of two

std::vector<uint8_t> encode(const Shape& shape, const std::vector<uint8_t>& values) {
  std::vector<uint8_t> frame(frame_bound(shape));
  frame.resize(
      compression::Encoder(compression::Profile::FAST).encode(shape, values, frame).value());
  return frame;
}

/// Blocks of a sequence, in frames and plain.
class Both {
 public:
  Both(NumberFormat number, const std::vector<uint32_t>& tokens, uint64_t seed) : number_(number) {
    uint32_t first = 7;
    for (const uint32_t count : tokens) {
      Tensor& keys = add(count, seed++);
      Tensor& values = add(count, seed++);
      framed_.push_back({first,
                         {keys.frame, kOuter, keys.scales.data()},
                         {values.frame, kOuter, values.scales.data()}});
      blocks_.push_back({first, keys.rows, values.rows});
      first += count;
    }
    // In no order, as in a pool.
    std::reverse(framed_.begin(), framed_.end());
    std::reverse(blocks_.begin(), blocks_.end());
  }

  std::vector<FramedKv>& framed() { return framed_; }
  std::vector<KvSpan>& blocks() { return blocks_; }
  std::vector<FramedKeys> framed_keys() const {
    std::vector<FramedKeys> keys;
    for (const FramedKv& block : framed_) keys.push_back({block.first_token, block.keys});
    return keys;
  }
  std::vector<KeySpan> key_blocks() const {
    std::vector<KeySpan> keys;
    for (const KvSpan& block : blocks_) keys.push_back({block.first_token, block.keys});
    return keys;
  }
  /// The keys of a block, to damage them.
  std::vector<uint8_t>& frame(size_t block) {
    return tensors_[(blocks_.size() - 1 - block) * 2]->frame;
  }
  Queries queries() const {
    Random random(1);
    std::vector<float> values(kQueries * kChannels);
    for (float& value : values) value = static_cast<float>(random.below(513)) / 256 - 1;
    return Queries::of(values, kQueries, kChannels, 0.125f, number_).value();
  }

 private:
  struct Tensor {
    std::vector<uint8_t> values, frame;
    std::vector<float> scales;
    ndp::Rows rows;
  };
  Tensor& add(uint32_t tokens, uint64_t seed) {
    auto tensor = std::make_unique<Tensor>();
    const Shape shape{number_, 2, tokens, kChannels, {}};
    tensor->values = make_tensor(shape, Content::NORMAL, seed);
    tensor->frame = encode(shape, tensor->values);
    for (uint32_t t = 0; t < tokens; ++t) tensor->scales.push_back(static_cast<float>(t % 5 + 1));
    tensor->rows = {number_,
                    kChannels,
                    tokens,
                    &tensor->values[kOuter * tokens * shape.row_bytes()],
                    shape.row_bytes(),
                    tensor->scales.data()};
    tensors_.push_back(std::move(tensor));
    return *tensors_.back();
  }

  NumberFormat number_;
  std::vector<std::unique_ptr<Tensor>> tensors_;
  std::vector<FramedKv> framed_;
  std::vector<KvSpan> blocks_;
};

constexpr uint32_t kWanted = 40;

std::vector<std::vector<Hit>> hits_of(TopK& best) {
  std::vector<std::vector<Hit>> all;
  for (uint32_t q = 0; q < kQueries; ++q) {
    const auto hits = best.hits(q);
    all.emplace_back(hits.begin(), hits.end());
  }
  return all;
}

std::vector<std::vector<Hit>> best_of(const Queries& queries, const std::vector<KeySpan>& blocks,
                                      const Visible& visible) {
  auto best = TopK::of(kQueries, kWanted).value();
  EXPECT_TRUE(best.add(queries, blocks, visible));
  return hits_of(best);
}

/// Outputs and log-sum-exps.
std::vector<float> answer_of(const Attention& attention, uint32_t channels) {
  std::vector<float> all;
  for (uint32_t q = 0; q < kQueries; ++q) {
    std::vector<float> out(channels);
    EXPECT_EQ(attention.output(q, out), Status::OK);
    all.insert(all.end(), out.begin(), out.end());
    all.push_back(attention.log_sum_exp(q));
  }
  return all;
}

std::vector<float> attention_of(const Queries& queries, const std::vector<KvSpan>& blocks,
                                const Visible& visible, uint32_t channels) {
  auto attention = Attention::of(kQueries, channels).value();
  EXPECT_TRUE(attention.add(queries, blocks, visible));
  return answer_of(attention, channels);
}

void check(Both& both, const Visible& visible, uint32_t value_channels) {
  const Queries queries = both.queries();
  FrameReader reader;
  auto best = TopK::of(kQueries, kWanted).value();
  const auto searched = reader.for_keys(
      both.framed_keys(), visible, Unreadable::REFUSE,
      [&](std::span<const KeySpan> rows) { return best.add(queries, rows, visible); });
  ASSERT_TRUE(searched) << searched.error().message();
  EXPECT_TRUE(searched->empty());
  EXPECT_EQ(hits_of(best), best_of(queries, both.key_blocks(), visible));

  auto attention = Attention::of(kQueries, value_channels).value();
  const auto attended = reader.for_keys_and_values(
      both.framed(), visible, Unreadable::REFUSE,
      [&](std::span<const KvSpan> rows) { return attention.add(queries, rows, visible); });
  ASSERT_TRUE(attended) << attended.error().message();
  EXPECT_EQ(answer_of(attention, value_channels),
            attention_of(queries, both.blocks(), visible, value_channels));
}

class FramesTest : public testing::TestWithParam<NumberFormat> {};

TEST_P(FramesTest, AnswerAsRowsDo) {
  Both both(GetParam(), {300, 1, 700, 64}, 5);
  for (const Visible& visible : {Visible{}, Visible{.end = 500}, Visible{400, 900, 0},
                                 Visible{600, 800, 20}, Visible{100, 200, 90}, Visible{.end = 3}})
    ASSERT_NO_FATAL_FAILURE(check(both, visible, kChannels));
}

TEST_P(FramesTest, AnswerLatentAttention) {
  Both both(GetParam(), {300, 100}, 5);
  for (FramedKv& block : both.framed()) {
    block.values = {};
    block.value_channels = 40;
  }
  for (KvSpan& block : both.blocks()) {
    block.values = block.keys;
    block.values.channels = 40;
  }
  check(both, {200, 390, 10}, 40);
}

INSTANTIATE_TEST_SUITE_P(Numbers, FramesTest,
                         testing::Values(NumberFormat::BF16, NumberFormat::FP16,
                                         NumberFormat::FP8_E4M3, NumberFormat::FP8_E5M2,
                                         NumberFormat::INT8),
                         compression::name_of_param);

/// Also if only its last tile is damaged, or the part that gives its shape.
TEST(DamagedFrame, IsNamedAndTheOthersAreAnswered) {
  for (const bool in_head : {false, true}) {
    Both both(NumberFormat::BF16, {300, 2000, 200}, 5);
    const Queries queries = both.queries();
    auto& frame = both.frame(1);
    frame[in_head ? 20 : frame.size() - 3] ^= 1;
    auto best = TopK::of(kQueries, kWanted).value();
    const auto search = [&](Unreadable unreadable) {
      return FrameReader().for_keys(
          both.framed_keys(), {}, unreadable,
          [&](std::span<const KeySpan> rows) { return best.add(queries, rows, {}); });
    };
    const auto refused = search(Unreadable::REFUSE);
    ASSERT_EQ(refused.status(), Status::DAMAGED);
    EXPECT_NE(refused.error().message().find("block 1"), std::string::npos)
        << refused.error().message();

    best = TopK::of(kQueries, kWanted).value();
    const auto skipped = search(Unreadable::SKIP);
    ASSERT_TRUE(skipped) << skipped.error().message();
    EXPECT_EQ(*skipped, std::vector<size_t>{1});
    auto others = both.key_blocks();
    others.erase(others.begin() + 1);
    EXPECT_EQ(hits_of(best), best_of(queries, others, {}));
  }
}

TEST(DamagedFrame, IsNotNoticedWhereNothingIsVisible) {
  Both both(NumberFormat::BF16, {2000}, 5);
  both.frame(0).back() ^= 1;
  uint32_t used = 0;
  const auto read = [&](const Visible& visible) {
    return FrameReader().for_keys(both.framed_keys(), visible, Unreadable::REFUSE,
                                  [&](std::span<const KeySpan>) {
                                    ++used;
                                    return Result<void>();
                                  });
  };
  EXPECT_TRUE(read({.end = 100}));
  EXPECT_EQ(used, 1u);
  EXPECT_TRUE(read({.begin = 5000}));
  EXPECT_EQ(read({}).status(), Status::DAMAGED);
  EXPECT_EQ(used, 1u);
}

TEST(WrongFrames, AreRefusedAndNamed) {
  Both both(NumberFormat::BF16, {100, 100}, 5);
  const auto text = encode({NumberFormat::BYTES, 1, 100, 1, {}}, std::vector<uint8_t>(100));
  const auto longer = encode({NumberFormat::BF16, 2, 101, kChannels, {}},
                             std::vector<uint8_t>(size_t{2} * 101 * kChannels * 2));
  struct Wrong {
    FramedKv block;
    const char* says;
  };
  const FramedKv good = both.framed()[1];
  const auto with = [&](auto change) {
    FramedKv block = good;
    change(block);
    return block;
  };
  const Wrong wrongs[] = {
      {with([&](FramedKv& b) { b.keys.frame = text; }), "a frame of bytes has no keys"},
      {with([](FramedKv& b) { b.keys.outer = 2; }), "outer index 2 of a frame of keys that has 2"},
      {with([](FramedKv& b) { b.values.outer = 9; }), "outer index 9 of a frame of values"},
      {with([&](FramedKv& b) { b.values.frame = longer; }), "keys of 100 tokens and values of 101"},
      {with([](FramedKv& b) { b.values.frame = {}, b.value_channels = 73; }), "73 channels of 72"},
      {with([](FramedKv& b) { b.first_token = 0xFFFFFFFF; }), "32 bits"},
      {with([](FramedKv& b) { b.first_token += 150; }), "both hold token"},
  };
  for (const Wrong& wrong : wrongs) {
    const FramedKv blocks[] = {both.framed()[0], wrong.block};
    const auto done = FrameReader().for_keys_and_values(
        blocks, {}, Unreadable::SKIP, [](std::span<const KvSpan>) -> Result<void> {
          ADD_FAILURE() << "used before all was checked";
          return {};
        });
    ASSERT_EQ(done.status(), Status::INVALID_ARGUMENT) << wrong.says;
    EXPECT_NE(done.error().message().find(wrong.says), std::string::npos) << done.error().message();
    EXPECT_NE(done.error().message().find("1"), std::string::npos) << done.error().message();
  }
}

/// The heads of a token side by side, together more channels than an operation takes.
TEST(WideRows, AreHandedOverWhole) {
  const compression::Shape shape{NumberFormat::BF16, 1, 50, 3000, {}};
  const auto values = make_tensor(shape, compression::Content::NORMAL, 1);
  const auto frame = encode(shape, values);
  const FramedKeys block{7, {frame}};
  uint32_t used = 0;
  const auto done = FrameReader().for_keys(
      {&block, 1}, {.begin = 20}, Unreadable::REFUSE,
      [&](std::span<const KeySpan> spans) -> Result<void> {
        ++used;
        const ndp::Rows head = some_channels(spans[0].keys, 1000, 64);
        EXPECT_EQ(head.channels, 64u);
        for (uint32_t t = 0; t < head.tokens; ++t) {
          const size_t row = 13 + t;  // of the frame
          EXPECT_EQ(
              std::memcmp(head.row(t), &values[row * shape.row_bytes() + 2000], head.row_bytes()),
              0);
        }
        return {};
      });
  EXPECT_TRUE(done) << done.error().message();
  EXPECT_EQ(used, 1u);
}

TEST(WrongUse, EndsTheReading) {
  Both both(NumberFormat::BF16, {100, 100}, 5);
  int calls = 0;
  const auto done = FrameReader().for_keys(both.framed_keys(), {}, Unreadable::SKIP,
                                           [&](std::span<const KeySpan>) -> Result<void> {
                                             ++calls;
                                             return Status::DAMAGED;
                                           });
  EXPECT_EQ(done.status(), Status::DAMAGED);
  EXPECT_EQ(calls, 1);
}

}  // namespace
}  // namespace bowhead::test
