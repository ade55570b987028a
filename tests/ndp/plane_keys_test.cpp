// SPDX-License-Identifier: Apache-2.0
// Top-k of keys in frames: exactly what the oracle finds in the decoded keys, whatever they are.
#include "ndp/plane_keys.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "base/random.h"
#include "compression/frame.h"
#include "tests/compression/reseal.h"
#include "tests/compression/tensors.h"
#include "tests/ndp/oracle.h"

namespace bowhead::test {
namespace {

using compression::Content;
using compression::Encoder;
using compression::NumberKind;
using compression::Profile;
using ndp::Hit;
using ndp::PlaneAnswer;
using ndp::PlaneKeys;
using ndp::Queries;
using ndp::Visible;

constexpr NumberKind kKinds[] = {NumberKind::BF16, NumberKind::FP16, NumberKind::FP8_E4M3,
                                 NumberKind::FP8_E5M2, NumberKind::INT8};

std::vector<uint8_t> encode(const compression::Shape& shape, const std::vector<uint8_t>& values,
                            Profile profile) {
  std::vector<uint8_t> frame(frame_bound(shape));
  frame.resize(Encoder(profile).encode(shape, values, frame).value());
  return frame;
}

/// A sequence in frames, and what the oracle sees in it.
class Sequences {
 public:
  Sequences(const compression::Shape& shape, Content content, uint64_t seed) : shape_(shape) {
    sequence_.key_channels = shape.channels;
    add(make_tensor(shape, content, seed), shape.tokens,
        seed % 2 == 0 ? Profile::FAST : Profile::DENSE);
  }
  /// More tokens behind those that there are, in a frame of their own.
  void add(const std::vector<uint8_t>& values, uint32_t tokens, Profile profile) {
    compression::Shape shape = shape_;
    shape.tokens = tokens;
    const uint32_t outer = shape.outer - 1;
    frames_.push_back(std::make_unique<std::vector<uint8_t>>(encode(shape, values, profile)));
    const auto first = static_cast<uint32_t>(sequence_.keys.size());
    blocks_.push_back(
        std::make_unique<PlaneKeys>(PlaneKeys::open(*frames_.back(), outer, first).value()));
    for (size_t i = size_t{outer} * tokens; i < (size_t{outer} + 1) * tokens; ++i) {
      auto& key = sequence_.keys.emplace_back();
      for (uint32_t c = 0; c < shape.channels; ++c)
        key.push_back(
            oracle_value(compression::number_name(shape.number),
                         compression::load_element(shape.number, values, i * shape.channels + c)));
    }
  }
  std::vector<const PlaneKeys*> blocks() const {
    std::vector<const PlaneKeys*> all;
    for (const auto& block : blocks_) all.insert(all.begin(), block.get());
    return all;
  }
  uint64_t frames_bytes() const {
    uint64_t bytes = 0;
    for (const auto& block : blocks_) bytes += block->frame().size() + block->kept_bytes() + 256;
    return bytes;
  }
  const Sequence& sequence() const { return sequence_; }
  const compression::Shape& shape() const { return shape_; }

 private:
  compression::Shape shape_;
  Sequence sequence_;
  std::vector<std::unique_ptr<std::vector<uint8_t>>> frames_;
  std::vector<std::unique_ptr<PlaneKeys>> blocks_;
};

std::vector<float> random_queries(uint32_t count, uint32_t channels, uint64_t seed) {
  Random random(seed);
  std::vector<float> values;
  for (size_t i = 0; i < size_t{count} * channels; ++i)
    values.push_back((static_cast<float>(random.below(2001)) - 1000) / 256);
  return values;
}

/// The oracle's scores, rounded once, in the order of hits as operations.h has it.
std::vector<Hit> expected(const Sequence& sequence, const float* query, float scale,
                          const Visible& visible, uint32_t k) {
  const std::vector<double> wide(query, query + sequence.key_channels);
  std::vector<Hit> hits;
  for (const OracleHit& hit : oracle_order(sequence, wide, static_cast<double>(scale),
                                           {visible.begin, visible.end, visible.sinks}))
    hits.push_back({static_cast<float>(hit.score), hit.token});
  std::sort(hits.begin(), hits.end(), [](const Hit& a, const Hit& b) {
    if (std::isnan(a.score) || std::isnan(b.score))
      return std::isnan(a.score) == std::isnan(b.score) ? a.token < b.token : std::isnan(b.score);
    return a.score != b.score ? a.score > b.score : a.token < b.token;
  });
  hits.resize(std::min<size_t>(hits.size(), k));
  return hits;
}

std::string text_of(const std::vector<Hit>& hits) {
  std::string text;
  for (const Hit& hit : hits)
    text += std::to_string(hit.token) + ":" +
            (std::isnan(hit.score) ? "nan" : std::to_string(hit.score)) + " ";
  return text;
}

bool same(const std::vector<Hit>& a, const std::vector<Hit>& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](const Hit& x, const Hit& y) {
    return x.token == y.token &&
           (x.score == y.score || (std::isnan(x.score) && std::isnan(y.score)));
  });
}

void check_exact(const Sequences& keys, const std::vector<float>& values, const Visible& visible,
                 uint32_t k) {
  const uint32_t channels = keys.shape().channels;
  const auto count = static_cast<uint32_t>(values.size() / channels);
  const float scale = 1 / std::sqrt(static_cast<float>(channels));
  const auto queries = Queries::of(values, count, channels, scale, keys.shape().number).value();
  const auto answer = exact_top_k(queries, keys.blocks(), visible, k);
  ASSERT_TRUE(answer) << answer.error().message();
  ASSERT_EQ(answer->hits.size(), count);
  uint64_t sum = 0;
  for (uint32_t q = 0; q < count; ++q) {
    const auto want =
        expected(keys.sequence(), values.data() + size_t{q} * channels, scale, visible, k);
    ASSERT_TRUE(same(answer->hits[q], want))
        << "query " << q << ": " << text_of(answer->hits[q]) << "\nnot " << text_of(want);
    ASSERT_LE(answer->bytes_read[q], keys.frames_bytes());
    ASSERT_LE(answer->bytes_read[q], answer->bytes_read_together);
    sum += answer->bytes_read[q];
  }
  ASSERT_LE(answer->bytes_read_together, sum);
}

class PlaneKeysTest : public testing::TestWithParam<NumberKind> {};

TEST_P(PlaneKeysTest, FindTheBestOfEveryContent) {
  for (const Content content : compression::kContents) {
    for (uint64_t seed = 1; seed <= 4; ++seed) {
      Random random(seed * 100 + static_cast<uint64_t>(content));
      compression::Shape shape;
      shape.number = GetParam();
      shape.outer = 1 + static_cast<uint32_t>(random.below(2));
      shape.channels = seed % 2 == 0 ? 64 : 1 + static_cast<uint32_t>(random.below(140));
      shape.tokens = 1 + static_cast<uint32_t>(random.below(1500));
      if (shape.channels == 64 && random.below(2) == 0)
        shape.rotary = compression::rotary_of(10000, 64);
      SCOPED_TRACE(describe(shape, content) + " seed " + std::to_string(seed));
      Sequences keys(shape, content, seed);
      for (uint32_t more = 0; more < random.below(3); ++more) {
        compression::Shape next = shape;
        next.tokens = 1 + static_cast<uint32_t>(random.below(600));
        keys.add(make_tensor(next, content, seed + 10 + more), next.tokens, Profile::FAST);
      }
      const auto values =
          random_queries(1 + static_cast<uint32_t>(random.below(10)), shape.channels, seed);
      const auto all = static_cast<uint32_t>(keys.sequence().keys.size());
      const auto end = static_cast<uint32_t>(random.below(all + 1));
      const auto begin = static_cast<uint32_t>(random.below(end + 1));
      for (const Visible& visible : {Visible{}, Visible{0, end, 0}, Visible{begin, end, 5}}) {
        const auto k = static_cast<uint32_t>(1 + random.below(random.below(2) == 0 ? 20 : 2000));
        ASSERT_NO_FATAL_FAILURE(check_exact(keys, values, visible, k));
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Numbers, PlaneKeysTest, testing::ValuesIn(kKinds),
                         compression::name_of_param);

}  // namespace
}  // namespace bowhead::test
