// SPDX-License-Identifier: Apache-2.0
// Top-k of keys in frames: exactly the oracle's result for the decoded keys, whatever the keys are.
#include "ndp/plane_keys.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <chrono>
#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "base/random.h"
#include "compression/frame.h"
#include "compression/frame_parts.h"
#include "ndp/frames.h"
#include "tests/support/attention_oracle.h"
#include "tests/support/reseal.h"
#include "tests/support/tensors.h"

namespace bowhead::test {
namespace {

using compression::Content;
using compression::Encoder;
using compression::Profile;
using ndp::Hit;
using ndp::PlaneAnswer;
using ndp::PlaneKeys;
using ndp::Queries;
using ndp::Reading;
using ndp::Views;
using ndp::Visible;

constexpr NumberFormat kKinds[] = {NumberFormat::BF16, NumberFormat::FP16, NumberFormat::FP8_E4M3,
                                   NumberFormat::FP8_E5M2, NumberFormat::INT8};

std::vector<uint8_t> encode(const compression::Shape& shape, const std::vector<uint8_t>& values,
                            Profile profile) {
  std::vector<uint8_t> frame(frame_bound(shape));
  frame.resize(Encoder(profile).encode(shape, values, frame).value());
  return frame;
}

/// Channels of a frame: those of one head.
struct Head {
  uint32_t first, channels;
};
Head whole(const compression::Shape& shape) { return {0, shape.channels}; }

/// The keys of an outer index for the oracle.
void add_keys(const compression::Shape& shape, const Head& head, const std::vector<uint8_t>& values,
              uint32_t outer, Sequence& sequence) {
  for (size_t i = size_t{outer} * shape.tokens; i < (size_t{outer} + 1) * shape.tokens; ++i) {
    auto& key = sequence.keys.emplace_back();
    for (uint32_t c = head.first; c < head.first + head.channels; ++c)
      key.push_back(
          oracle_value(number_name(shape.number),
                       compression::load_element(shape.number, values, i * shape.channels + c)));
  }
}

/// A sequence in frames, and the same for the oracle.
class Sequences {
 public:
  Sequences(const compression::Shape& shape, Content content, uint64_t seed)
      : Sequences(shape, whole(shape), content, seed) {}
  Sequences(const compression::Shape& shape, const Head& head, Content content, uint64_t seed)
      : shape_(shape), head_(head) {
    sequence_.key_channels = head.channels;
    add(make_tensor(shape, content, seed), shape.tokens,
        seed % 2 == 0 ? Profile::FAST : Profile::DENSE);
  }
  /// Appends tokens, in a frame of their own.
  void add(const std::vector<uint8_t>& values, uint32_t tokens, Profile profile) {
    compression::Shape shape = shape_;
    shape.tokens = tokens;
    const uint32_t outer = shape.outer - 1;
    frames_.push_back(std::make_unique<std::vector<uint8_t>>(encode(shape, values, profile)));
    const auto first = static_cast<uint32_t>(sequence_.keys.size());
    const PlaneKeys all = PlaneKeys::open(*frames_.back(), outer, first).value();
    blocks_.push_back(std::make_unique<PlaneKeys>(all.head(head_.first, head_.channels).value()));
    add_keys(shape, head_, values, outer, sequence_);
  }
  std::vector<const PlaneKeys*> blocks() const {
    std::vector<const PlaneKeys*> all;
    for (const auto& block : blocks_) all.insert(all.begin(), block.get());
    return all;
  }
  uint64_t frames_bytes() const {
    uint64_t bytes = 0;
    for (const auto& block : blocks_) bytes += block->frame().size() + 256;
    return bytes;
  }
  const Sequence& sequence() const { return sequence_; }
  uint32_t channels() const { return head_.channels; }
  NumberFormat number() const { return shape_.number; }

 private:
  compression::Shape shape_;
  Head head_;
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

/// The oracle's scores, rounded once, in the order of hits of operations.h.
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

constexpr Reading kReadings[] = {Reading::ONE_PASS, Reading::FEWEST_BYTES};

void check_exact(const Sequences& keys, std::vector<float> values, const Views& views, uint32_t k) {
  const uint32_t channels = keys.channels();
  const auto count = static_cast<uint32_t>(values.size() / channels);
  const float scale = 1 / std::sqrt(static_cast<float>(channels));
  const auto queries = Queries::of(values, count, channels, scale, keys.number()).value();
  for (uint32_t q = 0; q < count; ++q)  // for int8 infinities count as NaN
    std::copy_n(queries.floats(q), channels, values.begin() + q * channels);
  for (const Reading reading : kReadings) {
    SCOPED_TRACE(reading == Reading::ONE_PASS ? "in one pass" : "by the fewest bytes");
    const auto answer = exact_top_k(queries, keys.blocks(), views, k, reading);
    ASSERT_TRUE(answer) << answer.error().message();
    ASSERT_EQ(answer->hits.size(), count);
    uint64_t sum = 0;
    for (uint32_t q = 0; q < count; ++q) {
      const auto want =
          expected(keys.sequence(), values.data() + size_t{q} * channels, scale, views.of(q), k);
      ASSERT_TRUE(same(answer->hits[q], want))
          << "query " << q << ": " << text_of(answer->hits[q]) << "\nnot " << text_of(want);
      ASSERT_LE(answer->bytes_read[q], keys.frames_bytes());
      ASSERT_LE(answer->bytes_read[q], answer->bytes_read_together);
      sum += answer->bytes_read[q];
    }
    ASSERT_LE(answer->bytes_read_together, sum);
  }
}

// ---- within a budget ----

/// Bytes that every search needs: heads, first planes, tiles without planes.
uint64_t least_bytes(const Sequences& keys, const Queries& queries, const Visible& visible,
                     Reading reading) {
  const auto answer = approximate_top_k(queries, keys.blocks(), visible, 1, 1e-9, reading).value();
  return *std::max_element(answer.bytes_read.begin(), answer.bytes_read.end());
}

/// Returns the share of the best that were found, over all queries.
double check_approximate(const Sequences& keys, const std::vector<float>& values,
                         const Visible& visible, uint32_t k, double bytes_per_token,
                         Reading reading) {
  const uint32_t channels = keys.channels();
  const auto count = static_cast<uint32_t>(values.size() / channels);
  const auto queries = Queries::of(values, count, channels, 1, keys.number()).value();
  const auto answer =
      approximate_top_k(queries, keys.blocks(), visible, k, bytes_per_token, reading);
  EXPECT_TRUE(answer) << answer.error().message();
  uint32_t seen = 0, found = 0;
  for (uint32_t t = 0; t < keys.sequence().keys.size(); ++t) seen += visible.has(t) ? 1 : 0;
  const auto budget = static_cast<uint64_t>(bytes_per_token * seen);
  const uint64_t most = std::max(budget, least_bytes(keys, queries, visible, reading));
  for (uint32_t q = 0; q < count; ++q) {
    EXPECT_LE(answer->bytes_read[q], most);
    EXPECT_EQ(answer->hits[q].size(), std::min(k, seen));
    EXPECT_TRUE(std::is_sorted(answer->hits[q].begin(), answer->hits[q].end(), ndp::better));
    std::set<uint32_t> tokens;
    for (const Hit& hit : answer->hits[q]) {
      EXPECT_TRUE(visible.has(hit.token));
      tokens.insert(hit.token);
    }
    EXPECT_EQ(tokens.size(), answer->hits[q].size());
    for (const Hit& hit :
         expected(keys.sequence(), values.data() + size_t{q} * channels, 1, visible, k))
      found += tokens.count(hit.token) != 0 ? 1 : 0;
  }
  return found / static_cast<double>(size_t{count} * std::min(k, std::max(seen, 1u)));
}

/// Whole heads of so many channels rotate or a part of them, as halves or interleaved.
compression::Rotary random_rotary(Random& random, uint32_t head) {
  const uint64_t dim = random.below(2) == 0 ? head : 2 * (1 + random.below(head / 2));
  compression::Rotary rotary = compression::rotary_of(10000, static_cast<uint32_t>(dim));
  rotary.head = static_cast<uint16_t>(head);
  rotary.first = static_cast<uint16_t>(random.below(head - dim + 1));
  rotary.interleaved = random.below(3) == 0;
  return rotary;
}

class PlaneKeysTest : public testing::TestWithParam<NumberFormat> {};

TEST_P(PlaneKeysTest, FindTheBestOfEveryContent) {
  for (const Content content : compression::kContents) {
    for (uint64_t seed = 1; seed <= 4; ++seed) {
      Random random(seed * 100 + static_cast<uint64_t>(content));
      compression::Shape shape;
      shape.number = GetParam();
      shape.outer = 1 + static_cast<uint32_t>(random.below(2));
      shape.channels = seed % 2 == 0 ? 64 : 1 + static_cast<uint32_t>(random.below(140));
      shape.tokens = 1 + static_cast<uint32_t>(random.below(1500));
      if (shape.channels == 64 && random.below(2) == 0) shape.rotary = random_rotary(random, 64);
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
        for (const double budget : {1.0, 12.0, 1e9}) {
          for (const Reading reading : kReadings)
            check_approximate(keys, values, visible, k, budget, reading);
        }
        ASSERT_FALSE(HasFailure());
      }
      // A query of each position, and some that see the same.
      std::vector<Visible> each;
      for (size_t q = 0; q * shape.channels < values.size(); ++q)
        each.push_back({q % 3 == 0 ? begin : 0, end - std::min<uint32_t>(end, uint32_t(q / 2)), 3});
      ASSERT_NO_FATAL_FAILURE(check_exact(keys, values, std::span<const Visible>(each), 9));
    }
  }
}

/// Of tokens with several heads side by side: those that planes can be cut at, with and without
/// centres that turn, steps of whole tokens and of parts of them; and any other range of channels.
TEST_P(PlaneKeysTest, FindTheBestOfAHead) {
  Random random(static_cast<uint64_t>(GetParam()));
  for (const uint32_t channels : {8u, 24u, 64u, 80u, 128u}) {
    for (const uint32_t heads : {2u, 3u, 8u, 32u}) {
      compression::Shape shape{GetParam(), 2, 0, heads * channels, {}};
      shape.tokens = 1 + static_cast<uint32_t>(random.below(channels * heads > 600 ? 200 : 700));
      const bool turns = random.below(2) != 0;
      if (turns) shape.rotary = random_rotary(random, channels);
      const auto content = static_cast<Content>(random.below(std::size(compression::kContents)));
      Head head{static_cast<uint32_t>(random.below(heads)) * channels, channels};
      if (random.below(4) == 0) {
        head.first = static_cast<uint32_t>(random.below(shape.channels));
        head.channels = 1 + static_cast<uint32_t>(random.below(
                                std::min(shape.channels - head.first, ndp::kMaxChannels)));
      }
      SCOPED_TRACE(describe(shape, content) + " channels from " + std::to_string(head.first) +
                   ": " + std::to_string(head.channels));
      Sequences keys(shape, head, content, random.below(100));
      compression::Shape next = shape;
      next.tokens = 1 + static_cast<uint32_t>(random.below(150));
      keys.add(make_tensor(next, Content::NORMAL, 5), next.tokens, Profile::FAST);
      const auto values = random_queries(1 + static_cast<uint32_t>(random.below(9)), head.channels,
                                         random.below(100));
      const auto all = static_cast<uint32_t>(keys.sequence().keys.size());
      const auto end = static_cast<uint32_t>(random.below(all + 1));
      for (const Visible& visible : {Visible{}, Visible{end / 2, end, 5}}) {
        const auto k = static_cast<uint32_t>(1 + random.below(40));
        ASSERT_NO_FATAL_FAILURE(check_exact(keys, values, visible, k));
        for (const double budget : {12.0, 1e9}) {
          for (const Reading reading : kReadings)
            check_approximate(keys, values, visible, k, budget, reading);
        }
        ASSERT_FALSE(HasFailure());
      }
    }
  }
}

/// Heads of frames whose tokens have them side by side, with a query each.
class SideBySide {
 public:
  SideBySide(const compression::Shape& shape, std::vector<std::vector<uint8_t>> frames,
             const std::vector<Head>& heads)
      : frames_(std::move(frames)) {
    std::vector<PlaneKeys> whole;
    for (size_t b = 0; b < frames_.size(); ++b)
      whole.push_back(
          PlaneKeys::open(frames_[b], 0, static_cast<uint32_t>(b) * shape.tokens).value());
    for (const Head& head : heads) {
      auto& keys = keys_.emplace_back();
      auto& blocks = blocks_.emplace_back();
      for (const PlaneKeys& all : whole)
        keys.push_back(all.head(head.first, head.channels).value());
      for (const PlaneKeys& one : keys) blocks.push_back(&one);
      queries_.push_back(Queries::of(random_queries(1, head.channels, 1 + head.first), 1,
                                     head.channels, 1, shape.number)
                             .value());
    }
  }
  std::vector<ndp::HeadKeys> heads() const {
    std::vector<ndp::HeadKeys> heads;
    for (size_t i = 0; i < keys_.size(); ++i) heads.push_back({&queries_[i], blocks_[i]});
    return heads;
  }
  /// Other queries for a head.
  void ask(size_t head, const std::vector<float>& values, float scale) {
    const uint32_t channels = queries_[head].channels();
    queries_[head] = Queries::of(values, static_cast<uint32_t>(values.size() / channels), channels,
                                 scale, queries_[head].keys())
                         .value();
  }
  Result<ndp::HeadsAnswer> search(std::optional<double> budget, Reading reading, uint32_t k,
                                  const Views& views = {},
                                  ndp::UnreadableKeys* unreadable = nullptr) const {
    return top_k_of_heads(heads(), views, k, budget, reading, unreadable);
  }
  /// One by one.
  PlaneAnswer exactly(size_t head, uint32_t k, const Views& views = {}) const {
    return exact_top_k(queries_[head], blocks_[head], views, k).value();
  }

 private:
  std::vector<std::vector<uint8_t>> frames_;
  std::vector<std::vector<PlaneKeys>> keys_;
  std::vector<std::vector<const PlaneKeys*>> blocks_;
  std::vector<Queries> queries_;
};

/// Planes hold all heads: they are read and counted once, and damage of one is met by all.
TEST(Heads, ReadOnceWhatTheyShare) {
  const compression::Shape shape{NumberFormat::BF16, 1, 100, 2048, {}};
  auto frame = encode(shape, make_tensor(shape, Content::NORMAL, 1), Profile::FAST);
  std::vector<Head> heads;
  for (uint32_t first = 0; first < shape.channels; first += 64) heads.push_back({first, 64});
  const SideBySide all(shape, {frame}, heads);
  const auto answer = all.search({}, Reading::ONE_PASS, 4);
  ASSERT_TRUE(answer);
  EXPECT_LE(answer->bytes_read, frame.size());
  for (size_t head = 0; head < heads.size(); ++head)
    EXPECT_EQ(answer->hits[head], all.exactly(head, 4).hits);
  EXPECT_EQ(all.search({}, Reading::FEWEST_BYTES, 4)->hits, answer->hits);

  const auto keys = PlaneKeys::open(frame, 0, 0).value();
  const PlaneKeys::Tile& tile = keys.tiles()[0];
  frame[tile.begin + tile.planes->head().size() + 200] ^= 1;
  const SideBySide first(shape, {frame}, {heads[0]});
  EXPECT_EQ(first.search({}, Reading::ONE_PASS, 4).status(), Status::DAMAGED);
}

/// A head that begins in a byte of the rows has no bounds, and neither has one of zeros: others
/// are searched beside it, whichever comes first.
TEST(Heads, WithAndWithoutBoundsAreSearchedTogether) {
  for (const bool zeros : {false, true}) {
    const uint32_t channels = zeros ? 16 : 12;
    const compression::Shape shape{NumberFormat::BF16, 1, 300, 3 * channels, {}};
    auto values = make_tensor(shape, Content::NORMAL, 1);
    for (size_t i = 0; zeros && i < values.size(); ++i) {
      if (i / 2 % shape.channels / channels == 1) values[i] = 0;
    }
    const auto frame = encode(shape, values, Profile::FAST);
    std::vector<Head> heads = {{0, channels}, {channels, channels}, {2 * channels, channels}};
    do {
      const SideBySide all(shape, {frame, frame}, heads);
      for (const Reading reading : kReadings) {
        const auto exact = all.search({}, reading, 20);
        ASSERT_TRUE(exact) << exact.error().message();
        for (size_t head = 0; head < 3; ++head)
          EXPECT_EQ(exact->hits[head], all.exactly(head, 20).hits);
        const auto near = all.search(4.0, reading, 20);
        ASSERT_TRUE(near) << near.error().message();
        for (size_t head = 0; head < 3; ++head) EXPECT_EQ(near->hits[head][0].size(), 20u);
      }
    } while (std::next_permutation(heads.begin(), heads.end(),
                                   [](const Head& a, const Head& b) { return a.first < b.first; }));
  }
}

/// One head of zeros, as where models are padded, costs the others nothing.
TEST(Heads, OfZerosKeepToTheBudget) {
  const compression::Shape shape{NumberFormat::BF16, 1, 512, 1024, {}};
  auto values = make_tensor(shape, Content::NORMAL, 1);
  for (size_t i = 0; i < values.size(); ++i) {
    if (i / 2 % shape.channels / 64 == 3) values[i] = 0;
  }
  std::vector<Head> heads;
  for (uint32_t first = 0; first < shape.channels; first += 64) heads.push_back({first, 64});
  const SideBySide all(shape, {encode(shape, values, Profile::FAST)}, heads);
  const double budget = 3.0 / 8 * 64;
  const auto near = all.search(budget, Reading::ONE_PASS, 16);
  ASSERT_TRUE(near);
  EXPECT_LE(static_cast<double>(near->bytes_read), budget * shape.tokens * 16);
}

/// The answer and its bytes are those of the keys, not of searches before it.
TEST(Heads, AreSearchedAgainWithTheSameAnswer) {
  const compression::Shape shape{NumberFormat::BF16, 1, 300, 256, {}};
  const auto frame = encode(shape, make_tensor(shape, Content::NORMAL, 1), Profile::FAST);
  const SideBySide all(shape, {frame}, {{0, 64}, {64, 64}, {128, 64}});
  for (const std::optional<double> budget : {std::optional<double>(), std::optional(20.0)}) {
    const auto first = all.search(budget, Reading::ONE_PASS, 16);
    const auto keys = PlaneKeys::open(frame, 0, 0).value().head(192, 64).value();
    (void)all.exactly(1, 300);
    const auto again = all.search(budget, Reading::ONE_PASS, 16);
    ASSERT_TRUE(first && again);
    EXPECT_EQ(first->hits, again->hits);
    EXPECT_EQ(first->bytes_read, again->bytes_read);
  }
}

TEST(Heads, OfMoreTokensThanAreSearchedAtOnceAreInGroups) {
  const compression::Shape shape{NumberFormat::BF16, 1, ndp::kTokensAtOnce / 2, 24, {}};
  const SideBySide heads(shape,
                         {encode(shape, make_tensor(shape, Content::NORMAL, 1), Profile::FAST)},
                         {{0, 8}, {8, 8}, {16, 8}});
  const auto all = heads.heads();
  const auto search = [&](std::span<const ndp::HeadKeys> some) {
    return top_k_of_heads(some, {}, 5, {}, Reading::ONE_PASS).value();
  };
  const ndp::HeadsAnswer answer = search(all);
  const std::span<const ndp::HeadKeys> some(all);
  const uint64_t first_two = search(some.first(2)).bytes_read;
  EXPECT_LT(first_two, search(some.first(1)).bytes_read * 3 / 2);
  EXPECT_EQ(answer.bytes_read, first_two + search(some.last(1)).bytes_read);
  ASSERT_EQ(answer.hits.size(), 3u);
  for (size_t head = 0; head < 3; ++head)
    EXPECT_EQ(answer.hits[head], heads.exactly(head, 5).hits) << head;
}

/// More queries than are searched together, of some heads, and some that are not finite.
TEST(Heads, MayHaveUnlikeQueries) {
  const compression::Shape shape{NumberFormat::BF16, 1, 300, 256, {}};
  const auto first = encode(shape, make_tensor(shape, Content::NORMAL, 1), Profile::FAST);
  const auto second = encode(shape, make_tensor(shape, Content::SPECIAL, 2), Profile::FAST);
  SideBySide all(shape, {first, second}, {{0, 64}, {64, 64}, {128, 64}, {192, 64}});
  Random random(1);
  for (uint32_t round = 0; round < 40; ++round) {
    std::array<uint32_t, 4> counts;
    for (size_t head = 0; head < counts.size(); ++head) {
      counts[head] = 1 + static_cast<uint32_t>(random.below(20));
      auto values = random_queries(counts[head], 64, 100 * round + head);
      for (uint32_t q = 0; q < counts[head]; ++q) {
        if (random.below(4) == 0)
          values[q * 64 + random.below(64)] = std::numeric_limits<float>::infinity();
      }
      all.ask(head, values, head == 2 ? 4.0f : 0.125f);
    }
    const auto end = static_cast<uint32_t>(1 + random.below(600));
    const Visible visible{end / 3, end, 5};
    for (const Reading reading : kReadings) {
      const auto exact = all.search({}, reading, 12, visible);
      const auto near = all.search(20.0, reading, 12, visible);
      ASSERT_TRUE(exact && near);
      for (size_t head = 0; head < counts.size(); ++head) {
        const auto alone = all.exactly(head, 12, visible).hits;
        ASSERT_EQ(exact->hits[head].size(), counts[head]);
        ASSERT_EQ(near->hits[head].size(), counts[head]);
        for (uint32_t q = 0; q < counts[head]; ++q) {
          ASSERT_TRUE(same(exact->hits[head][q], alone[q])) << round << " " << head << " " << q;
          ASSERT_EQ(near->hits[head][q].size(), alone[q].size());
        }
      }
    }
  }
}

TEST(Heads, AreSeenByEachQueryAsItsViewSays) {
  const compression::Shape shape{NumberFormat::BF16, 1, 300, 192, {}};
  const auto frame = encode(shape, make_tensor(shape, Content::NORMAL, 1), Profile::FAST);
  SideBySide all(shape, {frame, frame}, {{0, 64}, {64, 64}, {128, 64}});
  constexpr uint32_t kCount = 11;
  for (size_t head = 0; head < 3; ++head) all.ask(head, random_queries(kCount, 64, head), 1);
  std::vector<Visible> each;
  for (uint32_t q = 0; q < kCount; ++q) each.push_back({q * 31, q * 60, q % 3});
  const Views views{std::span<const Visible>(each)};
  for (const Reading reading : kReadings) {
    const auto exact = all.search({}, reading, 9, views);
    ASSERT_TRUE(exact) << exact.error().message();
    for (size_t head = 0; head < 3; ++head)
      EXPECT_EQ(exact->hits[head], all.exactly(head, 9, views).hits);
    const auto near = all.search(20.0, reading, 9, views);
    ASSERT_TRUE(near) << near.error().message();
    for (size_t head = 0; head < 3; ++head) {
      for (uint32_t q = 0; q < kCount; ++q) {
        for (const Hit& hit : near->hits[head][q]) EXPECT_TRUE(each[q].has(hit.token));
      }
    }
  }
}

/// Of more decoded tiles than are kept.
TEST(Heads, OfManyTilesAreFoundInThoseThatWereDropped) {
  const compression::Shape shape{NumberFormat::BF16, 1, 60'000, 128, {}};
  std::vector<std::vector<uint8_t>> frames;
  std::vector<uint8_t> all_values;
  for (uint64_t seed = 1; seed <= 3; ++seed) {
    auto values = make_tensor(shape, Content::NORMAL, seed);
    for (size_t row = seed * 37; row < shape.tokens;
         row += 300)  // infinities: most are not in planes
      std::memcpy(&values[row * shape.row_bytes()], "\x80\xFF", 2);
    frames.push_back(encode(shape, values, Profile::FAST));
    all_values.insert(all_values.end(), values.begin(), values.end());
  }
  SideBySide all(shape, frames, {{0, 64}, {64, 64}});
  std::array<std::vector<float>, 2> queries;
  for (size_t head = 0; head < 2; ++head) {
    queries[head] = random_queries(1, 64, head + 5);
    queries[head][0] = 1;  // with infinities no hits
    all.ask(head, queries[head], 1);
  }
  const auto answer = all.search({}, Reading::ONE_PASS, 300);
  ASSERT_TRUE(answer) << answer.error().message();
  for (uint32_t head = 0; head < 2; ++head) {
    const auto query = Queries::of(queries[head], 1, 64, 1, NumberFormat::BF16).value();
    ndp::TopK best = ndp::TopK::of(1, 300).value();
    const ndp::Rows rows{NumberFormat::BF16, 64, 3 * shape.tokens, &all_values[head * 128],
                         shape.row_bytes()};
    const ndp::KeySpan span{0, rows};
    ASSERT_TRUE(best.add(query, {&span, 1}, {}));
    std::set<uint32_t> wanted, found;
    for (const Hit& hit : best.hits(0)) wanted.insert(hit.token);
    for (const Hit& hit : answer->hits[head][0]) found.insert(hit.token);
    std::vector<uint32_t> missing;
    std::set_difference(wanted.begin(), wanted.end(), found.begin(), found.end(),
                        std::back_inserter(missing));
    EXPECT_LE(missing.size(), 2u);  // scores of the scan are rounded
  }
}

/// Streams that several heads decode are shared between threads.
TEST(Heads, OfTheSameKeysAreSearchedByThreads) {
  const compression::Shape shape{NumberFormat::BF16, 1, 500, 256, {}};
  const auto frame = encode(shape, make_tensor(shape, Content::REPEATED, 1), Profile::DENSE);
  const SideBySide all(shape, {frame, frame}, {{0, 64}, {64, 64}, {128, 64}, {192, 64}});
  const auto wanted = all.search({}, Reading::ONE_PASS, 20).value().hits;
  std::vector<std::thread> threads;
  std::atomic<uint32_t> wrong = 0;
  for (size_t head = 0; head < 4; ++head) {
    threads.emplace_back([&, head] {
      for (uint32_t i = 0; i < 20; ++i) wrong += all.exactly(head, 20).hits != wanted[head] ? 1 : 0;
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0u);
}

TEST(Heads, SayWhichFrameIsDamaged) {
  const compression::Shape shape{NumberFormat::BF16, 1, 300, 128, {}};
  const auto frame = encode(shape, make_tensor(shape, Content::NORMAL, 1), Profile::FAST);
  auto damaged = frame;
  const auto keys = PlaneKeys::open(frame, 0, 0).value();
  damaged[keys.tiles()[0].begin + keys.tiles()[0].planes->head().size() + 20] ^= 1;
  const SideBySide all(shape, {frame, damaged, frame}, {{0, 64}, {64, 64}});
  ndp::UnreadableKeys unreadable{99};
  const auto answer = all.search({}, Reading::ONE_PASS, 5, {}, &unreadable);
  EXPECT_EQ(answer.status(), Status::DAMAGED);
  EXPECT_EQ(unreadable.block, 1u);
}

TEST(Heads, OfUnlikeFramesAreRefused) {
  const compression::Shape shape{NumberFormat::BF16, 1, 300, 128, {}};
  const auto values = make_tensor(shape, Content::NORMAL, 1);
  const auto frame = encode(shape, values, Profile::FAST), other = frame;
  const auto head_of = [](const std::vector<uint8_t>& of, uint32_t token, const Views& views = {}) {
    return PlaneKeys::open(of, 0, token, views).value().head(0, 64).value();
  };
  const auto queries = Queries::of(random_queries(1, 64, 1), 1, 64, 1, NumberFormat::BF16).value();
  const PlaneKeys keys = head_of(frame, 0);
  const PlaneKeys* block = &keys;
  const ndp::HeadKeys first{&queries, {&block, 1}};
  const auto refused = [&](const PlaneKeys& second) {
    const PlaneKeys* its_block = &second;
    const ndp::HeadKeys both[] = {first, {&queries, {&its_block, 1}}};
    return top_k_of_heads(both, {}, 4, {}, Reading::ONE_PASS).status() == Status::INVALID_ARGUMENT;
  };
  EXPECT_FALSE(refused(head_of(frame, 0)));
  EXPECT_TRUE(refused(head_of(other, 0)));
  EXPECT_TRUE(refused(head_of(frame, 1)));
  const ndp::HeadKeys none[] = {first, {&queries, {}}};
  EXPECT_EQ(top_k_of_heads(none, {}, 4, {}, Reading::ONE_PASS).status(), Status::INVALID_ARGUMENT);
  EXPECT_TRUE(top_k_of_heads({}, {}, 4, {}, Reading::ONE_PASS)->hits.empty());
}

/// Ties at every depth: each key several times, also in other tiles and frames.
TEST_P(PlaneKeysTest, FindTheFirstOfKeysThatRepeat) {
  compression::Shape shape{GetParam(), 1, 40, 64, {}};
  const auto few = make_tensor(shape, Content::NORMAL, 7);
  std::vector<uint8_t> values;
  Random random(3);
  shape.tokens = 700;
  for (uint32_t t = 0; t < shape.tokens; ++t) {
    const auto* key = &few[random.below(40) * shape.row_bytes()];
    values.insert(values.end(), key, key + shape.row_bytes());
  }
  Sequences keys(shape, Content::ZERO, 1);
  keys.add(values, 700, Profile::FAST);
  keys.add(values, 700, Profile::DENSE);
  for (const uint32_t k : {1u, 10u, 33u, 64u, 700u, 1399u, 1400u, 2100u, 5000u})
    ASSERT_NO_FATAL_FAILURE(check_exact(keys, random_queries(3, 64, k), {}, k));
}

/// Queries that are not finite, one among others; queries of zeros and of extreme floats.
TEST_P(PlaneKeysTest, FindTheBestOfAnyQuery) {
  const Sequences keys({GetParam(), 1, 900, 64, {}}, Content::NORMAL, 5);
  for (const float odd :
       {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity(), 0.0f,
        std::numeric_limits<float>::max(), std::numeric_limits<float>::min(),
        std::numeric_limits<float>::denorm_min()}) {
    auto values = random_queries(3, 64, 1);
    values[70] = odd;
    for (uint32_t c = 128; c < 192; ++c) values[c] = odd == 0 ? 0 : values[c] * odd;
    ASSERT_NO_FATAL_FAILURE(check_exact(keys, values, {}, 20));
    for (const Reading reading : kReadings) check_approximate(keys, values, {}, 20, 16, reading);
  }
}

/// Every bit pattern with every exponent above it in its channel: tests the bounds of denormals.
TEST_P(PlaneKeysTest, BoundEveryNumber) {
  const NumberFormat kind = GetParam();
  const uint32_t bytes = element_bytes(kind), patterns = bytes == 1 ? 256 : 4096;
  const compression::Shape shape{kind, 1, patterns, 8, {}};
  for (uint32_t top = 0; top < 6; ++top) {
    std::vector<uint8_t> values;
    for (uint32_t i = 0; i < patterns * 8; ++i) {
      // Small numbers of both signs, which the same query channel distinguishes.
      const uint32_t low = (i / 8) % (patterns / 2) >> top;
      const uint32_t bits = low | (i / 8 >= patterns / 2 ? 1u << (bytes * 8 - 1) : 0);
      values.push_back(static_cast<uint8_t>(bits));
      if (bytes == 2) values.push_back(static_cast<uint8_t>(bits >> 8));
    }
    Sequences keys(shape, Content::ZERO, 2);
    keys.add(values, patterns, Profile::FAST);
    for (const uint32_t k : {1u, 5u, 60u})
      ASSERT_NO_FATAL_FAILURE(check_exact(keys, random_queries(4, 8, top), {}, k));
  }
}

/// Status of opening a frame and searching it.
Status status_of_search(const std::vector<uint8_t>& frame, uint32_t outer, uint32_t channels,
                        NumberFormat kind) {
  const auto keys = PlaneKeys::open(frame, outer, 0);
  if (!keys) return keys.status();
  const PlaneKeys* block = &*keys;
  const auto values = random_queries(2, channels, 1);
  const auto queries = Queries::of(values, 2, channels, 1, kind).value();
  const auto near =
      approximate_top_k(queries, std::span(&block, 1), {}, 30, 12, Reading::FEWEST_BYTES);
  const auto estimates =
      approximate_top_k(queries, std::span(&block, 1), {}, 30, 12, Reading::ONE_PASS);
  const auto exact = exact_top_k(queries, std::span(&block, 1), {}, 30);
  const auto slow = exact_top_k(queries, std::span(&block, 1), {}, 30, Reading::FEWEST_BYTES);
  // Those that read fewer planes may not come across the damage.
  EXPECT_TRUE(slow || slow.status() == exact.status());
  EXPECT_TRUE(near || near.status() == slow.status());
  EXPECT_TRUE(estimates || estimates.status() == exact.status());
  return slow.status();
}

/// Whether a search must find that this byte of a frame is damaged: it is in a head, in the first
/// planes, or in a tile without a directory.
bool is_verified(const std::vector<uint8_t>& frame, uint32_t outer, size_t at) {
  const auto keys = PlaneKeys::open(frame, outer, 0).value();
  if (at < keys.tiles()[0].begin && outer == 0) return true;
  for (const PlaneKeys::Tile& tile : keys.tiles()) {
    if (at < tile.begin || at >= tile.begin + tile.bytes) continue;
    if (!tile.planes) return true;
    return at <
           tile.begin + tile.planes->head().size() + tile.planes->planes_verified_with(3).size();
  }
  return false;
}

TEST_P(PlaneKeysTest, RefuseDamageThatTheyRead) {
  const compression::Shape shape{GetParam(), 2, 600, 64, {}};
  const auto frame = encode(shape, make_tensor(shape, Content::NORMAL, 1), Profile::DENSE);
  Random random(1);
  int verified = 0;
  for (int i = 0; i < 200; ++i) {
    auto damaged = frame;
    const size_t at = random.below(random.below(2) == 0 ? frame.size() : 1000);
    damaged[at] = static_cast<uint8_t>(damaged[at] ^ 1u << random.below(8));
    for (const uint32_t outer : {0u, 1u}) {
      const Status status = status_of_search(damaged, outer, shape.channels, GetParam());
      if (is_verified(frame, outer, at)) {
        ++verified;
        ASSERT_TRUE(status == Status::DAMAGED || status == Status::UNSUPPORTED_CODEC) << at;
      } else {
        ASSERT_TRUE(status == Status::OK || status == Status::DAMAGED) << at;
      }
    }
    damaged.resize(random.below(frame.size()));
    ASSERT_FALSE(PlaneKeys::open(damaged, 0, 0));
  }
  EXPECT_GT(verified, 50);
}

/// Frames with correct checksums that no encoder makes: a search ends, with as many hits as there
/// are; frames without a directory give the best of their decoded values.
TEST_P(PlaneKeysTest, SearchFramesThatNoEncoderMade) {
  const compression::Shape shape{GetParam(), 1, 600, 64, {}};
  const auto frame = encode(shape, make_tensor(shape, Content::NORMAL, 1), Profile::FAST);
  const auto values = random_queries(2, 64, 1);
  const auto queries = Queries::of(values, 2, 64, 1, GetParam()).value();
  std::vector<uint8_t> decoded(shape.size_bytes());
  Random random(2);
  int opened = 0;
  for (int i = 0; i < 100; ++i) {
    auto odd = frame;
    for (int flips = 0; flips < 3; ++flips) odd[28 + random.below(odd.size() - 28)] ^= 4;
    compression::reseal(odd);
    const auto keys = PlaneKeys::open(odd, 0, 0);
    if (!keys) continue;
    ++opened;
    const PlaneKeys* block = &*keys;
    const Reading reading = i % 2 == 0 ? Reading::ONE_PASS : Reading::FEWEST_BYTES;
    const auto exact = exact_top_k(queries, std::span(&block, 1), {}, 30, reading);
    if (!exact) {
      ASSERT_EQ(exact.status(), Status::DAMAGED);
      continue;
    }
    for (const auto& hits : exact->hits) ASSERT_EQ(hits.size(), 30u);
    const auto tiles = keys->tiles();
    if (std::any_of(tiles.begin(), tiles.end(),
                    [](const auto& tile) { return tile.planes.has_value(); }))
      continue;
    ASSERT_EQ(compression::Decoder().decode(odd, decoded), Status::OK);
    Sequence sequence;
    sequence.key_channels = 64;
    add_keys(shape, whole(shape), decoded, 0, sequence);
    for (uint32_t q = 0; q < 2; ++q) {
      const auto want = expected(sequence, values.data() + size_t{q} * 64, 1, {}, 30);
      ASSERT_TRUE(same(exact->hits[q], want))
          << text_of(exact->hits[q]) << "\nnot " << text_of(want);
    }
    ASSERT_TRUE(approximate_top_k(queries, std::span(&block, 1), {}, 30, 12, reading));
  }
  EXPECT_GT(opened, 5);
}

/// A block whose lease lapsed may become another one while it is read: parts of several whole
/// frames, in any order. What comes of it is not used, but nothing is read or written elsewhere.
TEST_P(PlaneKeysTest, AreReadWhileTheyChange) {
#if defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "the race is what it is about";
#endif
  const compression::Shape shape{GetParam(), 1, 600, 64, {}};
  std::vector<std::vector<uint8_t>> frames;
  for (const Profile profile : {Profile::FAST, Profile::DENSE}) {
    for (const Content content : compression::kContents)
      frames.push_back(encode(shape, make_tensor(shape, content, 3), profile));
  }
  std::vector<uint8_t> block(frame_bound(shape)), decoded(shape.size_bytes());
  std::atomic<size_t> at{0};  // of the frame, which ends where the memory does
  std::atomic<bool> stop{false};
  std::thread writer([&] {
    Random random(4);
    while (!stop) {
      // Heads more often than other parts: most of what a reader believes is there.
      const auto& other = frames[random.below(frames.size())];
      const size_t from = at, room = std::min(block.size() - from, other.size());
      const size_t begin = random.below(random.below(2) == 0 ? std::min<size_t>(room, 300) : room);
      std::memcpy(&block[from + begin], &other[begin], 1 + random.below(room - begin));
      std::this_thread::sleep_for(std::chrono::microseconds(random.below(50)));
    }
  });
  const auto values = random_queries(3, 64, 1);
  const auto queries = Queries::of(values, 3, 64, 1, GetParam()).value();
  const auto expect_unreadable = [](Status status) {
    EXPECT_TRUE(ndp::is_unreadable(status) || status == Status::OK) << status_name(status);
  };
  compression::Decoder decoder;
  Random random(5);
  int opened = 0;
  for (int i = 0; i < 2000; ++i) {
    // Begins as a whole frame: few others would be opened.
    const auto& frame = frames[random.below(frames.size())];
    at = block.size() - frame.size();
    const std::span bytes(&block[at], frame.size());
    std::memcpy(bytes.data(), frame.data(), bytes.size());
    expect_unreadable(
        decoder.decode_tokens(bytes, 0, 100, 200, {decoded.data(), 200 * shape.row_bytes()}));
    const auto keys = PlaneKeys::open(bytes, 0, 0);
    if (!keys) continue;
    ++opened;
    const PlaneKeys* one = &*keys;
    const std::span<const PlaneKeys* const> blocks(&one, 1);
    for (const Reading reading : kReadings)
      expect_unreadable(exact_top_k(queries, blocks, {}, 30, reading).status());
    for (const Reading reading : kReadings)
      expect_unreadable(approximate_top_k(queries, blocks, {}, 30, 20, reading).status());
  }
  stop = true;
  writer.join();
  EXPECT_GT(opened, 20);
}

INSTANTIATE_TEST_SUITE_P(Numbers, PlaneKeysTest, testing::ValuesIn(kKinds),
                         compression::name_of_param);

TEST(PlaneSearch, ReadsLittleOfKeysThatLieAroundACentre) {
  compression::Shape shape{NumberFormat::BF16, 1, 2048, 64, compression::rotary_of(10000, 64)};
  Sequences keys(shape, Content::ROTATED, 2);
  const auto values = random_queries(4, 64, 9);
  const auto queries = Queries::of(values, 4, 64, 1, NumberFormat::BF16).value();
  const auto exact = exact_top_k(queries, keys.blocks(), {}, 30, Reading::FEWEST_BYTES).value();
  for (const uint64_t bytes : exact.bytes_read) EXPECT_LT(bytes, shape.size_bytes() / 2);
  for (const Reading reading : kReadings) {
    double before = 0.5;
    for (const double bits : {2.2, 3.2, 5.2}) {
      const double recall = check_approximate(keys, values, {}, 64, bits * 8, reading);
      EXPECT_GE(recall, before);
      before = recall;
    }
    EXPECT_GT(before, 0.95);
  }
}

/// Keys around means, which few channels and windows cut at any token.
TEST(PlaneSearch, FindsTheBestOfAnyPartOfATile) {
  for (const uint32_t channels : {1u, 2u, 3u, 72u, 80u}) {
    for (const bool turns : {false, true}) {
      compression::Shape shape{NumberFormat::BF16, 1, 400, channels, {}};
      if (turns && channels % 2 != 0) continue;
      if (turns) shape.rotary = compression::rotary_of(10000, channels);
      Random random(channels);
      std::vector<uint8_t> values;
      for (uint32_t i = 0; i < shape.tokens * channels; ++i) {
        const float value =
            static_cast<float>(3 + i % channels % 5) + static_cast<float>(random.below(1000)) / 700;
        const uint32_t bits = std::bit_cast<uint32_t>(value) >> 16;
        values.push_back(static_cast<uint8_t>(bits));
        values.push_back(static_cast<uint8_t>(bits >> 8));
      }
      Sequences keys(shape, Content::ZERO, 2);
      keys.add(values, shape.tokens, Profile::FAST);
      SCOPED_TRACE(std::to_string(channels) + (turns ? " channels that turn" : " channels"));
      const auto queries = random_queries(3, channels, channels);
      for (const uint32_t begin : {65u, 130u, 200u, 260u, 465u, 530u, 600u, 660u, 701u}) {
        ASSERT_NO_FATAL_FAILURE(check_exact(keys, queries, Visible{.begin = begin, .sinks = 2}, 9));
        ASSERT_NO_FATAL_FAILURE(
            check_exact(keys, queries, Visible{.begin = begin, .end = begin + 90}, 9));
      }
    }
  }
}

/// Streams that no tile of this size has: opening must not believe them.
TEST(PlaneSearch, RefusesStreamsThatAreTooLong) {
  const compression::Shape shape{NumberFormat::BF16, 1, 100, 64, {}};
  const auto& number = *compression::number_of(shape.number);
  const auto frame = encode(shape, make_tensor(shape, Content::NORMAL, 1), Profile::FAST);
  const auto tile = std::span(frame).subspan(28);
  const uint64_t values = uint64_t{shape.tokens} * shape.channels;
  const uint64_t most[] = {compression::most_remainder_bytes(number, values), values};
  for (const uint32_t rest : {0u, 1u}) {
    for (const uint64_t bytes : {most[rest], most[rest] + 1, uint64_t{1} << 40}) {
      for (const auto codec : {compression::StreamCodec::ZERO, compression::StreamCodec::NIBBLES,
                               compression::StreamCodec::LZ4, compression::StreamCodec::ZSTD}) {
        compression::ByteReader from(tile);
        compression::TileHeader head;
        ASSERT_EQ(read_tile_header(from, shape, shape.tokens, head), Status::OK);
        const uint32_t stream = number.planes() + rest;
        const bool zero = codec == compression::StreamCodec::ZERO;
        // What the stream had is now another one's, or the tile would not be filled.
        const uint64_t had = head.streams[stream].coded_bytes;
        head.streams[stream] = {codec, zero ? 0 : had, bytes};
        std::vector<uint8_t> odd(frame.begin(), frame.begin() + 28);
        odd.resize(odd.size() + 300);
        compression::ByteWriter to(&odd[28]);
        write_tile_header(to, number, head);
        odd.resize(28 + to.size());
        auto end = tile.end();
        if (zero && rest == 1) end -= static_cast<ptrdiff_t>(had);
        odd.insert(odd.end(), tile.begin() + static_cast<ptrdiff_t>(from.at()), end);
        if (zero && rest == 0) {
          const auto at = odd.end() - static_cast<ptrdiff_t>(head.streams[stream + 1].coded_bytes);
          odd.erase(at - static_cast<ptrdiff_t>(had), at);
        }
        compression::reseal(odd);
        const auto keys = PlaneKeys::open(odd, 0, 0);
        ASSERT_EQ(keys.status(), bytes > most[rest] ? Status::DAMAGED : Status::OK)
            << bytes << " bytes of codec " << static_cast<int>(codec);
      }
    }
  }
}

/// Where no token can be ruled out, time grows with tokens and not with their square.
TEST(PlaneSearch, TakesNoLongTimeForBoundsThatAreAllTheSame) {
  compression::Shape shape{NumberFormat::BF16, 1, 60'000, 8, {}};
  const auto frame = encode(shape, make_tensor(shape, Content::NORMAL, 1), Profile::FAST);
  const PlaneKeys keys = PlaneKeys::open(frame, 0, 0).value();
  const PlaneKeys* block = &keys;
  const auto time_of = [&](const std::vector<float>& values) {
    const auto queries = Queries::of(values, 1, 8, 1, NumberFormat::BF16).value();
    const auto begin = std::chrono::steady_clock::now();
    EXPECT_TRUE(exact_top_k(queries, std::span(&block, 1), {}, 16));
    return std::chrono::steady_clock::now() - begin;
  };
  const auto usual = time_of(random_queries(1, 8, 1)) + std::chrono::milliseconds(2);
  auto odd = random_queries(1, 8, 1);
  odd[3] = std::nanf("");
  EXPECT_LT(time_of(std::vector<float>(8)), 100 * usual);
  EXPECT_LT(time_of(odd), 100 * usual);
}

/// Planes hold all heads: a budget does not pay for the others.
TEST(PlaneSearch, KeepsToABudgetForOneHeadOfMany) {
  const compression::Shape shape{NumberFormat::BF16, 1, 256, 1024, {}};
  const auto frame = encode(shape, make_tensor(shape, Content::NORMAL, 1), Profile::FAST);
  const auto queries =
      Queries::of(random_queries(1, 128, 1), 1, 128, 1, NumberFormat::BF16).value();
  for (const Reading reading : kReadings) {
    const PlaneKeys keys = PlaneKeys::open(frame, 0, 0).value().head(256, 128).value();
    const PlaneKeys* block = &keys;
    uint64_t heads = keys.head_bytes();
    for (const PlaneKeys::Tile& tile : keys.tiles()) heads += tile.planes->head().size() + 128;
    constexpr uint64_t kLine = 64;  // that a row of a plane takes
    for (const uint64_t planes : {3, 8}) {
      const uint64_t budget = heads + planes * shape.tokens * kLine;
      const auto answer = approximate_top_k(queries, std::span(&block, 1), {}, 4,
                                            static_cast<double>(budget) / shape.tokens, reading);
      ASSERT_TRUE(answer) << answer.error().message();
      EXPECT_LE(answer->bytes_read[0], budget);
      EXPECT_GT(answer->bytes_read[0], budget / 2);
    }
  }
}

/// Short planes have one checksum with others: a budget does not pay for these.
TEST(PlaneSearch, KeepsToABudgetInShortTiles) {
  for (const uint32_t tokens : {16u, 100u}) {
    const compression::Shape shape{NumberFormat::BF16, 1, tokens, 64, {}};
    const auto frame = encode(shape, make_tensor(shape, Content::NORMAL, 1), Profile::FAST);
    const PlaneKeys keys = PlaneKeys::open(frame, 0, 0).value();
    const PlaneKeys* block = &keys;
    const auto queries =
        Queries::of(random_queries(1, 64, 1), 1, 64, 1, NumberFormat::BF16).value();
    const uint64_t signs = uint64_t{tokens} * 8;
    const uint64_t least = 28 + keys.tiles()[0].planes->head().size() + signs + 2 * 64;
    for (const Reading reading : kReadings) {
      const auto answer =
          approximate_top_k(queries, std::span(&block, 1), {}, 4, 8, reading).value();
      EXPECT_LE(answer.bytes_read[0], std::max<uint64_t>(8 * tokens, least));
    }
  }
}

TEST(PlaneSearch, TakesABudgetWithoutEndWhereNothingIsSeen) {
  const compression::Shape shape{NumberFormat::BF16, 1, 100, 64, {}};
  const auto frame = encode(shape, make_tensor(shape, Content::NORMAL, 1), Profile::FAST);
  const PlaneKeys keys = PlaneKeys::open(frame, 0, 0).value();
  const PlaneKeys* block = &keys;
  const auto queries = Queries::of(random_queries(1, 64, 1), 1, 64, 1, NumberFormat::BF16).value();
  for (const Reading reading : kReadings) {
    const auto none = approximate_top_k(queries, std::span(&block, 1), Visible{0, 0, 0}, 4,
                                        std::numeric_limits<double>::infinity(), reading);
    ASSERT_TRUE(none);
    EXPECT_TRUE(none->hits[0].empty());
  }
}

TEST(PlaneSearch, SaysThatAFrameIsOfANewerVersion) {
  const compression::Shape shape{NumberFormat::BF16, 1, 100, 64, {}};
  auto frame = encode(shape, make_tensor(shape, Content::NORMAL, 1), Profile::FAST);
  frame[28] = 4;  // the layout of its tile
  EXPECT_EQ(PlaneKeys::open(frame, 0, 0).status(), Status::UNSUPPORTED_CODEC);
}

TEST(PlaneSearch, SaysWhichFrameIsDamaged) {
  const compression::Shape shape{NumberFormat::BF16, 1, 300, 64, {}};
  std::vector<std::vector<uint8_t>> frames;
  std::vector<PlaneKeys> opened;
  std::vector<const PlaneKeys*> blocks;
  for (uint32_t b = 0; b < 4; ++b)
    frames.push_back(encode(shape, make_tensor(shape, Content::NORMAL, b), Profile::DENSE));
  for (uint32_t b = 0; b < 4; ++b)
    opened.push_back(PlaneKeys::open(frames[b], 0, b * shape.tokens).value());
  for (const PlaneKeys& keys : opened) blocks.push_back(&keys);
  const auto queries = Queries::of(random_queries(2, 64, 1), 2, 64, 1, NumberFormat::BF16).value();
  for (const uint32_t b : {2u, 0u, 3u}) {
    const auto right = frames[b];
    const PlaneKeys::Tile& tile = opened[b].tiles()[0];
    frames[b][tile.begin + tile.planes->head().size() + 20] ^= 1;  // of its first plane
    for (int search = 0; search < 3; ++search) {
      ndp::UnreadableKeys damaged{99};
      const auto answer =
          search == 0
              ? exact_top_k(queries, blocks, {}, 5, Reading::ONE_PASS, &damaged)
              : approximate_top_k(queries, blocks, {}, 5, 16, kReadings[search - 1], &damaged);
      ASSERT_EQ(answer.status(), Status::DAMAGED);
      EXPECT_EQ(damaged.block, b);
      EXPECT_GT(damaged.bytes_read, 0u);
      EXPECT_NE(answer.error().message().find("block " + std::to_string(b)), std::string::npos);
    }
    frames[b] = right;
    ASSERT_TRUE(exact_top_k(queries, blocks, {}, 5));
  }
}

TEST(PlaneSearch, RefusesInputThatDoesNotFit) {
  const compression::Shape shape{NumberFormat::BF16, 1, 100, 16, {}};
  Sequences keys(shape, Content::NORMAL, 1);
  keys.add(make_tensor(shape, Content::NORMAL, 2), 100, Profile::FAST);
  const auto frame = encode(shape, make_tensor(shape, Content::NORMAL, 3), Profile::FAST);
  const auto refused = [](const auto& result) {
    return result.status() == Status::INVALID_ARGUMENT;
  };
  EXPECT_TRUE(refused(PlaneKeys::open(frame, 1, 0)));
  EXPECT_TRUE(refused(PlaneKeys::open(frame, 0, 0xFFFFFFFF)));
  const auto text =
      encode({NumberFormat::BYTES, 1, 100, 1, {}}, std::vector<uint8_t>(100), Profile::FAST);
  EXPECT_TRUE(refused(PlaneKeys::open(text, 0, 0)));
  const auto whole_rows = PlaneKeys::open(frame, 0, 0).value();
  EXPECT_TRUE(refused(whole_rows.head(0, 0)));
  EXPECT_TRUE(refused(whole_rows.head(8, 9)));
  EXPECT_TRUE(refused(whole_rows.head(0xFFFFFFF8, 16)));
  EXPECT_TRUE(refused(whole_rows.head(8, 8)->head(0, 16)));

  const std::vector<float> ones(32, 1);
  const auto queries = Queries::of(std::span(ones).first(16), 1, 16, 1, NumberFormat::BF16).value();
  const auto wide = Queries::of(ones, 1, 32, 1, NumberFormat::BF16).value();
  const auto halves = Queries::of(ones, 2, 16, 1, NumberFormat::FP16).value();
  const auto blocks = keys.blocks();
  EXPECT_TRUE(exact_top_k(queries, blocks, {}, 1));
  EXPECT_TRUE(refused(exact_top_k(queries, blocks, {}, 0)));
  EXPECT_TRUE(refused(exact_top_k(queries, blocks, {}, ndp::TopK::kMaxK + 1)));
  EXPECT_TRUE(refused(exact_top_k(wide, blocks, {}, 1)));
  EXPECT_TRUE(refused(exact_top_k(halves, blocks, {}, 1)));
  for (const Reading reading : kReadings) {
    EXPECT_TRUE(refused(approximate_top_k(queries, blocks, {}, 1, 0, reading)));
    EXPECT_TRUE(refused(approximate_top_k(queries, blocks, {}, 1, std::nan(""), reading)));
  }
  const auto other = PlaneKeys::open(frame, 0, 199).value();
  const std::vector<const PlaneKeys*> overlapping = {&other, blocks[0]};
  EXPECT_TRUE(refused(exact_top_k(queries, overlapping, {}, 1)));

  EXPECT_TRUE(exact_top_k(queries, {}, {}, 1)->hits[0].empty());
  EXPECT_TRUE(exact_top_k(queries, blocks, Visible{.end = 0}, 1)->hits[0].empty());
  EXPECT_EQ(exact_top_k(queries, blocks, Visible{.end = 0}, 1)->bytes_read[0], 0u);
}

}  // namespace
}  // namespace bowhead::test
