// SPDX-License-Identifier: Apache-2.0
// Computations on leased blocks through the C ABI: the same answers whether blocks are compressed
// or not, no answer from blocks that did not stay, and a sentence for every wrong request.
#include <bowhead/bowhead_ndp.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "base/random.h"
#include "firmware-sim/device.h"
#include "tests/api/structs.h"

namespace {

using bowhead::test::sized;

constexpr uint32_t kHeads = 4, kChannels = 64, kQueries = 2, kTokens[] = {300, 40, 16};
constexpr uint32_t kAllTokens = 356;

bool error_contains(const char* part) { return std::strstr(bh_last_error(), part) != nullptr; }

#define EXPECT_REFUSED(call, status, part)                \
  do {                                                    \
    EXPECT_EQ(call, status) << bh_last_error();           \
    EXPECT_TRUE(error_contains(part)) << bh_last_error(); \
  } while (0)

/// bf16 numbers between -2 and 2.
std::vector<uint16_t> numbers(size_t count, uint64_t seed) {
  bowhead::Random random(seed);
  std::vector<uint16_t> all;
  for (size_t i = 0; i < count; ++i) {
    const float value = (static_cast<float>(random.below(4001)) - 2000) / 1000;
    uint32_t bits;
    std::memcpy(&bits, &value, 4);
    all.push_back(static_cast<uint16_t>(bits >> 16));
  }
  return all;
}

/// The order of blocks, and where computations run.
struct Setting {
  uint32_t order;
  uint32_t engine;
};

/// A device in a thread, with the pool's own code, which is linked beside the library.
class DeviceThread {
 public:
  explicit DeviceThread(const std::string& locator)
      : pool_(bowhead::Pool::open(locator, {.prefault = false}).value()),
        device_(bowhead::device::Device::make(pool_).value()),
        thread_([this] { EXPECT_TRUE(device_->serve([this] { return stops_.load(); })); }) {}
  ~DeviceThread() {
    stops_ = true;
    thread_.join();
  }

 private:
  bowhead::Pool pool_;
  std::unique_ptr<bowhead::device::Device> device_;
  std::atomic<bool> stops_{false};
  std::thread thread_;
};

class Ndp : public ::testing::TestWithParam<Setting> {
 protected:
  void SetUp() override {
    locator_ = "shm:bowhead-ndp-test-" + std::to_string(getpid());
    auto options = sized<bh_create_options>();
    options.size_bytes = 64u << 20;
    ASSERT_EQ(bh_pool_create(locator_.c_str(), &options), BH_OK) << bh_last_error();
    ASSERT_EQ(bh_pool_open(locator_.c_str(), 0, &pool_), BH_OK) << bh_last_error();
    plain_ = leases_of("plain", BH_PROFILE_NONE);
    coded_ = leases_of("coded", BH_PROFILE_FAST);
    queries_.resize(size_t{kHeads} * kQueries * kChannels);
    bowhead::Random random(9);
    for (float& value : queries_) value = (static_cast<float>(random.below(2001)) - 1000) / 512;
    if (GetParam().engine == BH_NDP_PROCESS) return;
    device_ = std::make_unique<DeviceThread>(locator_);
    ASSERT_EQ(use(GetParam().engine), BH_OK) << bh_last_error();
  }
  bh_status use(uint32_t engine, uint64_t answer_bytes = 0) {
    auto options = sized<bh_ndp_engine_options>();
    options.engine = engine;
    options.answer_bytes = answer_bytes;
    return bh_ndp_use_engine(pool_, &options);
  }
  void TearDown() override {
    device_.reset();
    bh_pool_close(pool_);
    EXPECT_EQ(bh_pool_destroy(locator_.c_str(), 0), BH_OK) << bh_last_error();
  }

  static bh_key key_of(const std::string& text) { return {text.data(), text.size()}; }

  /// Puts the blocks of a sequence and leases them.
  std::vector<bh_lease> leases_of(const char* name, uint32_t profile) {
    auto options = sized<bh_namespace_options>();
    options.profile = profile;
    options.layout.number_format = BH_NUMBER_BF16;
    options.layout.order = static_cast<uint8_t>(GetParam().order);
    options.layout.parts = 2;
    options.layout.layers = 2;
    options.layout.heads = kHeads;
    options.layout.key_channels = options.layout.value_channels = kChannels;
    EXPECT_EQ(bh_namespace_open_with(pool_, name, "", &options, &ns_), BH_OK) << bh_last_error();
    std::vector<bh_lease> leases;
    for (uint32_t b = 0; b < std::size(kTokens); ++b) {
      const auto value = numbers(size_t{4} * kHeads * kTokens[b] * kChannels, b);
      const bh_const_iovec piece = {value.data(), value.size() * 2};
      const std::string key = "block-" + std::to_string(b);
      EXPECT_EQ(bh_put(pool_, ns_, key_of(key), &piece, 1), BH_OK) << bh_last_error();
      leases.push_back(sized<bh_lease>());
      EXPECT_EQ(bh_acquire_stored(pool_, ns_, key_of(key), 60'000, &leases.back()), BH_OK)
          << bh_last_error();
    }
    return leases;
  }
  bh_ndp_request request_for(const std::vector<bh_lease>& leases) const {
    auto request = sized<bh_ndp_request>();
    request.layer = 1;
    request.head_count = kHeads;
    request.leases = leases.data();
    request.lease_count = leases.size();
    request.queries = queries_.data();
    request.query_count = kQueries;
    return request;
  }
  bh_status top(const bh_ndp_request& request, uint32_t k = 5, double budget = 0) {
    hits_.assign(size_t{kHeads} * kQueries * std::min(k, 1u << 10), {});
    counts_.assign(kHeads * kQueries, 99);
    return bh_ndp_topk(pool_, &request, k, budget, hits_.data(), counts_.data(), &report_);
  }
  /// Writes to the pool's memory as a fault would.
  void damage(const bh_lease& lease, size_t at) const {
    auto* byte = const_cast<uint8_t*>(static_cast<const uint8_t*>(lease.data)) + at;
    *byte = static_cast<uint8_t>(*byte ^ 1);
  }

  std::string locator_;
  std::unique_ptr<DeviceThread> device_;
  bh_pool* pool_ = nullptr;
  bh_namespace_id ns_ = 0;  // of the compressed blocks
  std::vector<bh_lease> plain_, coded_;
  std::vector<float> queries_;
  std::vector<bh_ndp_hit> hits_;
  std::vector<uint32_t> counts_;
  bh_ndp_report report_ = sized<bh_ndp_report>();
};

TEST_P(Ndp, AnswersAreTheSameForCompressedBlocks) {
  ASSERT_EQ(coded_[0].codec, uint32_t{BH_CODEC_FRAME});
  ASSERT_EQ(plain_[0].codec, uint32_t{BH_CODEC_RAW});
  const std::vector<uint32_t> tokens = {340, 3, 299, 300, 3};
  struct Answers {
    std::vector<bh_ndp_hit> hits;
    std::vector<uint32_t> counts;
    std::vector<float> scores, outputs, sums, least, largest;
    std::vector<uint16_t> rows;
  };
  const auto ask = [&](const std::vector<bh_lease>& leases) {
    Answers of;
    const bh_ndp_request request = request_for(leases);
    EXPECT_EQ(top(request), BH_OK) << bh_last_error();
    of.hits = hits_;
    of.counts = counts_;
    of.scores.resize(size_t{kHeads} * kQueries * kAllTokens);
    EXPECT_EQ(bh_ndp_score(pool_, &request, of.scores.data(), of.scores.size(), &report_), BH_OK);
    of.outputs.resize(size_t{kHeads} * kQueries * kChannels);
    of.sums.resize(kHeads * kQueries);
    EXPECT_EQ(bh_ndp_attend(pool_, &request, of.outputs.data(), of.outputs.size(), of.sums.data(),
                            &report_),
              BH_OK);
    of.rows.resize(kHeads * tokens.size() * kChannels);
    EXPECT_EQ(bh_ndp_gather(pool_, &request, 1, tokens.data(), tokens.size(), of.rows.data(),
                            of.rows.size() * 2, nullptr),
              BH_OK)
        << bh_last_error();
    of.least.resize(size_t{kHeads} * (10 + 2 + 1) * kChannels);  // of 32 tokens
    of.largest.resize(of.least.size());
    EXPECT_EQ(bh_ndp_digest(pool_, &request, 32, of.least.data(), of.largest.data(),
                            of.least.size(), nullptr),
              BH_OK)
        << bh_last_error();
    return of;
  };
  const Answers plain = ask(plain_);
  const uint64_t all = report_.stored_bytes;
  const Answers coded = ask(coded_);
  EXPECT_LT(report_.stored_bytes, all);
  EXPECT_EQ(coded.counts, std::vector<uint32_t>(kHeads * kQueries, 5));
  for (size_t i = 0; i < coded.hits.size(); ++i)
    EXPECT_NEAR(coded.hits[i].score, plain.hits[i].score, 1e-3f);
  EXPECT_EQ(coded.scores, plain.scores);
  EXPECT_EQ(coded.rows, plain.rows);
  EXPECT_EQ(coded.least, plain.least);
  EXPECT_EQ(coded.largest, plain.largest);
  for (size_t i = 0; i < coded.outputs.size(); ++i)
    EXPECT_NEAR(coded.outputs[i], plain.outputs[i], 1e-2f);
  for (size_t i = 0; i < coded.sums.size(); ++i) EXPECT_NEAR(coded.sums[i], plain.sums[i], 1e-3f);

  // The best are those of the scores.
  for (uint32_t i = 0; i < kHeads * kQueries; ++i) {
    const float* scores = &coded.scores[size_t{i} * kAllTokens];
    std::vector<float> order(scores, scores + kAllTokens);
    std::sort(order.begin(), order.end(), std::greater<>());
    for (uint32_t h = 0; h < 5; ++h) {
      const bh_ndp_hit& hit = coded.hits[i * 5 + h];
      EXPECT_NEAR(hit.score, scores[hit.token], 1e-3f);
      EXPECT_NEAR(hit.score, order[h], 1e-3f);
    }
  }
}

TEST_P(Ndp, PositionsAndWindowsAreTheCallers) {
  const std::vector<uint32_t> firsts = {5000, 100, 0};
  bh_ndp_request request = request_for(coded_);
  request.first_tokens = firsts.data();
  const std::vector<bh_ndp_view> views(kQueries, {5100, 5103, 2});
  request.views = views.data();
  request.view_count = 1;
  ASSERT_EQ(top(request, 8), BH_OK) << bh_last_error();
  for (uint32_t i = 0; i < kHeads * kQueries; ++i) {
    EXPECT_EQ(counts_[i], 5u);
    for (uint32_t h = 0; h < 5; ++h) {
      const uint32_t token = hits_[i * 8 + h].token;
      EXPECT_TRUE(token < 2 || (token >= 5100 && token < 5103)) << token;
    }
  }
  request.scale = 2;
  const std::vector<bh_ndp_hit> before = hits_;
  ASSERT_EQ(top(request, 8), BH_OK);
  for (uint32_t h = 0; h < 5; ++h) EXPECT_NEAR(hits_[h].score, before[h].score * 2 * 8, 1e-3f);
  EXPECT_EQ(top(request, 8, 2.5), BH_OK);
  const std::vector<uint32_t> overlapping = {0, 299, 400};
  request.first_tokens = overlapping.data();
  EXPECT_REFUSED(top(request), BH_INVALID_ARGUMENT, "both hold token 299");
}

/// As of a draft: a query of each position.
TEST_P(Ndp, EachQueryHasAViewOfItsOwn) {
  bh_ndp_request request = request_for(coded_);
  const std::vector<bh_ndp_view> views = {{0, 310, 0}, {300, 312, 1}};
  ASSERT_EQ(views.size(), kQueries);
  request.views = views.data();
  request.view_count = kQueries;
  ASSERT_EQ(top(request, 400), BH_OK) << bh_last_error();
  for (uint32_t i = 0; i < kHeads; ++i) {
    EXPECT_EQ(counts_[i * kQueries], 310u);
    EXPECT_EQ(counts_[i * kQueries + 1], 13u);
  }
  request.view_count = 3;
  EXPECT_REFUSED(top(request), BH_INVALID_ARGUMENT, "view_count is 3");
  request.view_count = 0;
  EXPECT_REFUSED(top(request), BH_INVALID_ARGUMENT, "view_count");
  request.views = nullptr;
  request.view_count = 1;
  EXPECT_REFUSED(top(request), BH_INVALID_ARGUMENT, "views is NULL");
}

TEST_P(Ndp, FewestBytesFindTheSameAndReadLess) {
  bh_ndp_request request = request_for(coded_);
  ASSERT_EQ(top(request), BH_OK) << bh_last_error();
  const std::vector<bh_ndp_hit> hits = hits_;
  const uint64_t read_bytes = report_.read_bytes;
  request.flags = BH_NDP_FEWEST_BYTES;
  ASSERT_EQ(top(request), BH_OK) << bh_last_error();
  for (size_t i = 0; i < hits.size(); ++i) {
    EXPECT_EQ(hits_[i].token, hits[i].token);
    EXPECT_EQ(hits_[i].score, hits[i].score);
  }
  // With tokens first each head counts what they share; in one pass they do together.
  if (GetParam().order == BH_ORDER_HEADS_FIRST) {
    EXPECT_LT(report_.read_bytes, read_bytes);
  }
  for (const uint32_t flags : {0u, BH_NDP_FEWEST_BYTES}) {
    request.flags = flags;
    ASSERT_EQ(top(request, 5, 1e6), BH_OK) << bh_last_error();  // of all planes
    for (const bh_ndp_hit& hit : hits_) EXPECT_LT(hit.token, kAllTokens);
    for (const uint32_t count : counts_) EXPECT_EQ(count, 5u);
  }
}

TEST_P(Ndp, SoftCapsBendScores) {
  bh_ndp_request request = request_for(coded_);
  std::vector<float> plain(size_t{kHeads} * kQueries * kAllTokens), capped(plain.size());
  ASSERT_EQ(bh_ndp_score(pool_, &request, plain.data(), plain.size(), nullptr), BH_OK);
  ASSERT_EQ(top(request), BH_OK) << bh_last_error();
  const std::vector<bh_ndp_hit> hits = hits_;
  request.soft_cap = 0.75f;
  ASSERT_EQ(bh_ndp_score(pool_, &request, capped.data(), capped.size(), nullptr), BH_OK);
  for (size_t i = 0; i < plain.size(); ++i)
    EXPECT_NEAR(capped[i], 0.75f * std::tanh(plain[i] / 0.75f), 1e-4f);
  ASSERT_EQ(top(request), BH_OK) << bh_last_error();
  for (size_t i = 0; i < hits.size(); ++i) EXPECT_EQ(hits_[i].token, hits[i].token);
  std::vector<float> outputs(size_t{kHeads} * kQueries * kChannels), sums(kHeads * kQueries);
  ASSERT_EQ(bh_ndp_attend(pool_, &request, outputs.data(), outputs.size(), sums.data(), nullptr),
            BH_OK);
  for (size_t i = 0; i < sums.size(); ++i) {
    double sum = 0;
    for (size_t t = 0; t < kAllTokens; ++t)
      sum += std::exp(static_cast<double>(capped[i * kAllTokens + t]));
    EXPECT_NEAR(sums[i], std::log(sum), 1e-3);
  }
}

TEST_P(Ndp, QueriesMayBeSummed) {
  bh_ndp_request request = request_for(coded_);
  std::vector<float> plain(size_t{kHeads} * kQueries * kAllTokens), sums(kHeads * kAllTokens);
  ASSERT_EQ(bh_ndp_score(pool_, &request, plain.data(), plain.size(), nullptr), BH_OK);
  std::vector<float> weights;
  for (uint32_t i = 0; i < kHeads * kQueries; ++i)
    weights.push_back(1 - 0.25f * static_cast<float>(i));
  request.weights = weights.data();
  request.flags = BH_NDP_RECTIFY;
  ASSERT_EQ(bh_ndp_score(pool_, &request, sums.data(), sums.size(), nullptr), BH_OK)
      << bh_last_error();
  for (uint32_t head = 0; head < kHeads; ++head) {
    for (uint32_t t = 0; t < kAllTokens; ++t) {
      float sum = 0;
      for (uint32_t q = head * kQueries; q < (head + 1) * kQueries; ++q)
        sum += weights[q] * std::max(plain[size_t{q} * kAllTokens + t], 0.0f);
      ASSERT_NEAR(sums[size_t{head} * kAllTokens + t], sum, 1e-4f);
    }
  }
  ASSERT_EQ(top(request, 3), BH_OK) << bh_last_error();
  for (uint32_t head = 0; head < kHeads; ++head) {
    const float* of = &sums[size_t{head} * kAllTokens];
    ASSERT_EQ(counts_[head], 3u);
    EXPECT_EQ(hits_[size_t{head} * 3].score, *std::max_element(of, of + kAllTokens));
  }
  std::vector<float> outputs(size_t{kHeads} * kQueries * kChannels);
  EXPECT_REFUSED(
      bh_ndp_attend(pool_, &request, outputs.data(), outputs.size(), sums.data(), nullptr),
      BH_INVALID_ARGUMENT, "sums");
  request.group = 3;
  EXPECT_REFUSED(top(request), BH_INVALID_ARGUMENT, "groups");
  request.weights = nullptr;
  EXPECT_REFUSED(top(request), BH_INVALID_ARGUMENT, "weights");
}

/// A block that was removed while it was leased: its bytes are there, the answer is no good.
TEST_P(Ndp, NothingIsAnsweredFromABlockThatDidNotStay) {
  std::vector<uint8_t> states(3, 77);
  bh_ndp_request request = request_for(coded_);
  request.states = states.data();
  ASSERT_EQ(top(request), BH_OK) << bh_last_error();
  EXPECT_EQ(states, std::vector<uint8_t>(3, BH_NDP_READ));
  EXPECT_EQ(bh_check_lease(pool_, &coded_[1]), BH_OK);
  ASSERT_EQ(bh_remove(pool_, ns_, key_of("block-1")), BH_OK);
  EXPECT_EQ(bh_check_lease(pool_, &coded_[1]), BH_LAPSED);
  EXPECT_REFUSED(top(request), BH_LAPSED, "lease 1");
  EXPECT_EQ(states, (std::vector<uint8_t>{BH_NDP_READ, BH_NDP_LAPSED, BH_NDP_READ}));
  EXPECT_EQ(bh_release(pool_, &coded_[1]), BH_LAPSED);
  coded_[1] = coded_[2];  // the other two go on
  request.lease_count = 2;
  EXPECT_EQ(top(request), BH_OK) << bh_last_error();
  EXPECT_EQ(bh_release(pool_, &coded_[0]), BH_OK);
  EXPECT_REFUSED(top(request), BH_CLOSED, "lease 0");
}

TEST_P(Ndp, ABlockThatCannotBeReadIsNamedOrLeftOut) {
  std::vector<uint8_t> states(3, 77);
  bh_ndp_request request = request_for(coded_);
  request.states = states.data();
  damage(coded_[0], 27);  // the frame's header
  EXPECT_REFUSED(top(request), BH_DAMAGED, "block 0");
  request.flags = BH_NDP_SKIP;
  ASSERT_EQ(top(request), BH_OK) << bh_last_error();
  EXPECT_EQ(states, (std::vector<uint8_t>{BH_NDP_LEFT_OUT, BH_NDP_READ, BH_NDP_READ}));
  EXPECT_EQ(report_.left_out, 1u);
  for (const bh_ndp_hit& hit : hits_) EXPECT_GE(hit.token, 300u);
  EXPECT_EQ(bh_release(pool_, &coded_[0]), BH_OK);
}

TEST_P(Ndp, WrongRequestsAreRefused) {
  const bh_ndp_request good = request_for(coded_);
  const auto with = [&](auto change) {
    bh_ndp_request request = good;
    change(request);
    return request;
  };
  EXPECT_EQ(bh_ndp_topk(nullptr, &good, 1, 0, hits_.data(), counts_.data(), nullptr),
            BH_INVALID_ARGUMENT);
  EXPECT_EQ(bh_ndp_topk(pool_, nullptr, 1, 0, hits_.data(), counts_.data(), nullptr),
            BH_INVALID_ARGUMENT);
  EXPECT_REFUSED(bh_ndp_topk(pool_, &good, 1, 0, nullptr, nullptr, nullptr), BH_INVALID_ARGUMENT,
                 "'hits'");
  struct Wrong {
    bh_ndp_request request;
    const char* says;
  };
  std::vector<bh_lease> ended = coded_, odd = coded_;
  odd[0].struct_bytes = 3;
  const Wrong wrongs[] = {
      {with([](auto& r) { r.struct_bytes = 8; }), "struct_bytes"},
      {with([](auto& r) { r.flags = 8; }), "flags"},
      {with([](auto& r) { r.flags = BH_NDP_RECTIFY; }), "weights"},
      {with([](auto& r) { r.leases = nullptr; }), "leases"},
      {with([](auto& r) { r.lease_count = 0; }), "lease_count"},
      {with([](auto& r) { r.lease_count = UINT64_MAX; }), "lease_count"},
      {with([&](auto& r) { r.leases = odd.data(); }), "struct_bytes"},
      {with([](auto& r) { r.queries = nullptr; }), "queries"},
      {with([](auto& r) { r.query_count = 0; }), "query_count"},
      {with([](auto& r) { r.query_count = UINT32_MAX; }), "query_count"},
      {with([](auto& r) { r.layer = 2; }), "layer 2"},
      {with([](auto& r) { r.head_count = 0; }), "0 heads"},
      {with([](auto& r) { r.head_count = UINT32_MAX; }), "head_count"},
      {with([](auto& r) { r.first_head = 1; }), "heads from 1"},
      {with([](auto& r) { r.first_head = UINT32_MAX; }), "heads"},
      {with([](auto& r) { r.scale = -1; }), "scale"},
      {with([](auto& r) { r.scale = NAN; }), "scale"},
      {with([](auto& r) { r.soft_cap = -1; }), "capped"},
      {with([](auto& r) { r.soft_cap = NAN; }), "capped"},
  };
  for (const Wrong& wrong : wrongs) {
    const bh_status status = top(wrong.request);
    EXPECT_TRUE(status == BH_INVALID_ARGUMENT || status == BH_NOT_SUPPORTED)
        << wrong.says << ": " << bh_last_error();
    EXPECT_TRUE(error_contains(wrong.says)) << wrong.says << ": " << bh_last_error();
  }
  EXPECT_EQ(top(good, 0), BH_INVALID_ARGUMENT);
  EXPECT_EQ(top(good, UINT32_MAX), BH_INVALID_ARGUMENT);
  EXPECT_EQ(top(good, 1, -1), BH_INVALID_ARGUMENT);
  EXPECT_EQ(top(good, 1, NAN), BH_INVALID_ARGUMENT);
  EXPECT_EQ(top(good, 1, INFINITY), BH_INVALID_ARGUMENT);
  float one = 0;
  EXPECT_EQ(bh_ndp_score(pool_, &good, &one, 1, nullptr), BH_INVALID_ARGUMENT);
  EXPECT_EQ(bh_ndp_score(pool_, &good, &one, SIZE_MAX, nullptr), BH_INVALID_ARGUMENT);
  EXPECT_EQ(bh_ndp_attend(pool_, &good, &one, 1, &one, nullptr), BH_INVALID_ARGUMENT);
  EXPECT_EQ(bh_ndp_digest(pool_, &good, 0, &one, &one, 1, nullptr), BH_INVALID_ARGUMENT);
  EXPECT_EQ(bh_ndp_digest(pool_, &good, 1, &one, &one, 1, nullptr), BH_INVALID_ARGUMENT);
  const uint32_t tokens[] = {0, 356};
  std::vector<uint16_t> rows(size_t{kHeads} * 2 * kChannels);
  EXPECT_REFUSED(bh_ndp_gather(pool_, &good, 0, tokens, 2, rows.data(), rows.size() * 2, nullptr),
                 BH_INVALID_ARGUMENT, "token 356");
  EXPECT_REFUSED(bh_ndp_gather(pool_, &good, 2, tokens, 1, rows.data(), rows.size(), nullptr),
                 BH_INVALID_ARGUMENT, "part 2");
  EXPECT_EQ(bh_ndp_gather(pool_, &good, 0, tokens, SIZE_MAX, rows.data(), 0, nullptr),
            BH_INVALID_ARGUMENT);
  auto small = sized<bh_ndp_report>();
  small.struct_bytes = 4;
  EXPECT_EQ(bh_ndp_topk(pool_, &good, 1, 0, hits_.data(), counts_.data(), &small),
            BH_INVALID_ARGUMENT);
}

TEST_P(Ndp, LeasesOfOtherHandlesAreClosed) {
  bh_pool* other = nullptr;
  ASSERT_EQ(bh_pool_open(locator_.c_str(), 0, &other), BH_OK) << bh_last_error();
  const bh_ndp_request request = request_for(coded_);
  hits_.resize(kHeads * kQueries);
  counts_.resize(kHeads * kQueries);
  EXPECT_REFUSED(bh_ndp_topk(other, &request, 1, 0, hits_.data(), counts_.data(), nullptr),
                 BH_CLOSED, "lease 0");
  EXPECT_EQ(bh_check_lease(other, &coded_[0]), BH_CLOSED);
  bh_pool_close(other);
}

TEST_P(Ndp, TheChildOfAForkIsToldSo) {
  const bh_ndp_request request = request_for(coded_);
  const pid_t child = fork();
  if (child == 0) _exit(top(request) == BH_FORKED ? 0 : 1);
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

TEST_P(Ndp, KeysAreTimesTheScalesInTheBlock) {
  auto options = sized<bh_namespace_options>();
  options.layout.number_format = BH_NUMBER_INT8;
  options.layout.order = static_cast<uint8_t>(GetParam().order);
  options.layout.parts = 1;
  options.layout.layers = options.layout.heads = 1;
  options.layout.key_channels = 4;
  options.layout.scales = BH_SCALES_PER_ROW;
  options.layout.scale_format = BH_NUMBER_BF16;
  options.layout.scale_place = BH_SCALES_BEHIND_ROW;
  bh_namespace_id ns = 0;
  ASSERT_EQ(bh_namespace_open_with(pool_, "scaled", "", &options, &ns), BH_OK) << bh_last_error();
  // Times 8, 1 and 4.
  const uint8_t rows[] = {1, 9, 9, 9, 0x00, 0x41, 2, 9, 9, 9, 0x80, 0x3F, 3, 9, 9, 9, 0x80, 0x40};
  const bh_const_iovec piece = {rows, sizeof rows};
  ASSERT_EQ(bh_put(pool_, ns, key_of("s"), &piece, 1), BH_OK) << bh_last_error();
  std::vector<bh_lease> leases = {sized<bh_lease>()};
  ASSERT_EQ(bh_acquire(pool_, ns, key_of("s"), 60'000, leases.data()), BH_OK);
  bh_ndp_request request = request_for(leases);
  const float query[] = {1, 0, 0, 0};
  request.queries = query;
  request.query_count = request.head_count = 1;
  request.layer = 0;
  request.scale = 1;
  ASSERT_EQ(top(request), BH_OK) << bh_last_error();
  ASSERT_EQ(counts_[0], 3u);
  const std::pair<uint32_t, float> wanted[] = {{2, 12}, {0, 8}, {1, 2}};
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(hits_[i].token, wanted[i].first);
    EXPECT_NEAR(hits_[i].score, wanted[i].second, 1e-2);
  }
  EXPECT_EQ(report_.read_bytes, sizeof rows);
}

TEST_P(Ndp, OpaqueBlocksHaveNoHeads) {
  bh_namespace_id ns = 0;
  ASSERT_EQ(bh_namespace_open(pool_, "text", "bytes", &ns), BH_OK);
  const bh_const_iovec piece = {"text", 4};
  ASSERT_EQ(bh_put(pool_, ns, key_of("t"), &piece, 1), BH_OK);
  std::vector<bh_lease> leases = {sized<bh_lease>()};
  ASSERT_EQ(bh_acquire(pool_, ns, key_of("t"), 60'000, leases.data()), BH_OK);
  bh_ndp_request request = request_for(leases);
  EXPECT_REFUSED(top(request), BH_NOT_SUPPORTED, "opaque");
  leases.push_back(coded_[0]);
  std::swap(leases[0], leases[1]);
  request = request_for(leases);
  EXPECT_REFUSED(top(request), BH_INVALID_ARGUMENT, "block 1");
}

TEST_P(Ndp, SaysWhichEngineDidIt) {
  const bh_ndp_request request = request_for(coded_);
  const bool device = GetParam().engine != BH_NDP_PROCESS;
  ASSERT_EQ(top(request), BH_OK) << bh_last_error();
  EXPECT_EQ(report_.engine, device ? BH_NDP_DEVICE : BH_NDP_PROCESS);
  EXPECT_GT(report_.engine_ns, 0u);
  // Without a device, after either engine.
  device_.reset();
  const auto best = hits_;
  ASSERT_EQ(use(BH_NDP_DEVICE), BH_OK) << bh_last_error();
  EXPECT_REFUSED(top(request), BH_DEVICE_LOST, "bowhead device serve");
  ASSERT_EQ(use(BH_NDP_DEVICE_OR_PROCESS), BH_OK) << bh_last_error();
  ASSERT_EQ(top(request), BH_OK) << bh_last_error();
  EXPECT_EQ(report_.engine, BH_NDP_PROCESS);
  EXPECT_EQ(std::memcmp(best.data(), hits_.data(), best.size() * sizeof(bh_ndp_hit)), 0);
  ASSERT_EQ(bh_ndp_use_engine(pool_, nullptr), BH_OK) << bh_last_error();
  ASSERT_EQ(top(request), BH_OK) << bh_last_error();
  EXPECT_EQ(report_.engine, BH_NDP_PROCESS);
}

TEST_P(Ndp, AnAnswerThatHasNoRoomOnTheDeviceIsTheProcesss) {
  if (device_ == nullptr) device_ = std::make_unique<DeviceThread>(locator_);
  const bh_ndp_request request = request_for(plain_);
  std::vector<float> scores(size_t{kHeads} * kQueries * kAllTokens);
  const auto score = [&] {
    return bh_ndp_score(pool_, &request, scores.data(), scores.size(), &report_);
  };
  ASSERT_EQ(use(BH_NDP_DEVICE, 4096), BH_OK) << bh_last_error();
  EXPECT_REFUSED(score(), BH_LIMIT_REACHED, "has room for 4096");
  ASSERT_EQ(use(BH_NDP_DEVICE_OR_PROCESS, 4096), BH_OK) << bh_last_error();
  ASSERT_EQ(score(), BH_OK) << bh_last_error();
  EXPECT_EQ(report_.engine, BH_NDP_PROCESS);
  ASSERT_EQ(top(request), BH_OK) << bh_last_error();
  EXPECT_EQ(report_.engine, BH_NDP_DEVICE);
}

TEST_P(Ndp, RefusesEnginesThatThereAreNot) {
  EXPECT_EQ(bh_ndp_use_engine(nullptr, nullptr), BH_INVALID_ARGUMENT);
  EXPECT_REFUSED(use(3), BH_INVALID_ARGUMENT, "engine");
  auto options = sized<bh_ndp_engine_options>();
  options.struct_bytes = 4;
  EXPECT_EQ(bh_ndp_use_engine(pool_, &options), BH_INVALID_ARGUMENT);
  EXPECT_EQ(use(BH_NDP_DEVICE, uint64_t{1} << 60), BH_OK);  // its area is the device's to give
  if (device_ != nullptr) {
    EXPECT_NE(top(request_for(plain_)), BH_OK);
  }
}

INSTANTIATE_TEST_SUITE_P(Orders, Ndp,
                         testing::Values(Setting{BH_ORDER_HEADS_FIRST, BH_NDP_PROCESS},
                                         Setting{BH_ORDER_TOKENS_FIRST, BH_NDP_PROCESS},
                                         Setting{BH_ORDER_HEADS_FIRST, BH_NDP_DEVICE},
                                         Setting{BH_ORDER_TOKENS_FIRST, BH_NDP_DEVICE_OR_PROCESS}),
                         [](const auto& of) {
                           return std::string(of.param.order == BH_ORDER_HEADS_FIRST
                                                  ? "HeadsFirst"
                                                  : "TokensFirst") +
                                  (of.param.engine == BH_NDP_PROCESS ? "" : "OnADevice");
                         });

}  // namespace
