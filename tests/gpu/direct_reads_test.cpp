// SPDX-License-Identifier: Apache-2.0
// Attention to blocks of the pool matches the formulas, on the bytes that were put; otherwise a
// status says why not.
#include "gpu/jobs/direct_reads.h"

#include <gtest/gtest.h>

#include <chrono>
#include <cmath>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/random.h"
#include "gpu/kernels/floats.h"
#include "tests/gpu/devices.h"
#include "tests/support/attention_oracle.h"
#include "tests/support/pools.h"

namespace bowhead::gpu {
namespace {

using test::TestPool;

float random_float(Random& random) {  // of -1 to 1
  return static_cast<float>(random.below(1u << 24)) * 0x1p-23f - 1;
}

/// Numbers in device memory, of which the CPU sees copies.
template <class T>
class OnDevice {
 public:
  OnDevice(Device& device, std::vector<T> numbers) : device_(device), count_(numbers.size()) {
    at_ = static_cast<T*>(device.allocate(count_ * sizeof(T)).value());
    copy(at_, numbers.data());
  }
  OnDevice(const OnDevice&) = delete;
  OnDevice& operator=(const OnDevice&) = delete;
  ~OnDevice() { device_.free(at_); }

  T* at() const { return at_; }
  std::vector<T> read() {
    std::vector<T> numbers(count_);
    copy(numbers.data(), at_);
    return numbers;
  }

 private:
  void copy(void* to, const void* from) {
    const Stream stream = device_.make_stream(0).value();
    EXPECT_DONE(device_.copy(to, from, count_ * sizeof(T), stream));
    device_.destroy_stream(stream);
  }

  Device& device_;
  const size_t count_;
  T* at_ = nullptr;
};

constexpr uint32_t kKeyChannels = 64;

AttentionModel model_of(RowOrder order, bool latent) {
  AttentionModel model;
  model.layout = pairs_layout(latent ? NumberFormat::FP16 : NumberFormat::BF16, 2, latent ? 1 : 2,
                              kKeyChannels, order);
  if (latent) {
    model.layout.parts = 1;
    model.layout.value_channels = 48;
  }
  model.queries_per_head = latent ? 5 : 3;
  model.scale = 0.125;
  return model;
}

/// A block's numbers, from which its payload and the input of the formulas are made.
struct Block {
  BlockToRead read;
  std::vector<uint16_t> payload;
};

/// Sequences in a pool, and queries in device memory.
class Decode {
 public:
  Decode(TestPool& pool, Device& device, const AttentionModel& model,
         const std::vector<std::vector<BlockToRead>>& sequences)
      : model_(model), layout_(model.layout) {
    pool.use_layout(layout_);
    for (const auto& sequence : sequences) {
      reads.push_back({sequence});
      auto& blocks = blocks_.emplace_back();
      for (const BlockToRead& read : sequence) {
        blocks.push_back({read, numbers(payload_bytes(layout_, read.tokens) / 2)});
        std::vector<std::byte> bytes(payload_bytes(layout_, read.tokens));
        std::memcpy(bytes.data(), blocks.back().payload.data(), bytes.size());
        EXPECT_EQ(pool.put(read.key, bytes), Status::OK);
      }
    }
    query_bits_ = numbers(sequences.size() * model.query_heads() * kKeyChannels);
    const size_t outputs = sequences.size() * model.query_heads();
    queries_ = std::make_unique<OnDevice<uint16_t>>(device, query_bits_);
    outputs_ = std::make_unique<OnDevice<float>>(
        device, std::vector<float>(outputs * layout_.value_channels, 12345));
    log_sum_exps_ = std::make_unique<OnDevice<float>>(device, std::vector<float>(outputs, 12345));
  }

  DecodeQueries queries() const {
    const size_t row = kKeyChannels * 2;
    return {queries_->at(), row * model_.query_heads(), row};
  }
  DecodeAnswers answers() const {
    return {outputs_->at(), NumberFormat::FP32, log_sum_exps_->at()};
  }

  /// The formulas' result for a query head, without the blocks named by `skips`.
  test::OracleAttention right(uint32_t layer, uint32_t sequence, uint32_t query_head,
                              const std::string& skips = "") const {
    const uint32_t head = query_head / model_.queries_per_head;
    test::Sequence all{kKeyChannels, layout_.value_channels, {}, {}};
    for (const Block& block : blocks_[sequence]) {
      if (block.read.key == skips) continue;
      for (uint32_t t = block.read.begin; t < std::min(block.read.tokens, block.read.end); ++t) {
        all.keys.push_back(row(block, layer, 0, t, head, kKeyChannels));
        all.values.push_back(row(block, layer, layout_.parts - 1, t, head, layout_.value_channels));
      }
    }
    std::vector<double> query(kKeyChannels);
    const size_t at = (size_t{sequence} * model_.query_heads() + query_head) * kKeyChannels;
    for (uint32_t c = 0; c < kKeyChannels; ++c) query[c] = value(query_bits_[at + c]);
    return test::oracle_attention(all, query, model_.scale, {});
  }

  /// Compares the results in device memory with the formulas.
  void expect(uint32_t layer, const std::string& skips = "") {
    const auto outputs = outputs_->read(), log_sum_exps = log_sum_exps_->read();
    for (uint32_t at = 0; at < log_sum_exps.size(); ++at) {
      const auto one = right(layer, at / model_.query_heads(), at % model_.query_heads(), skips);
      if (log_sum_exps[at] != one.log_sum_exp) {  // for no token both are infinite
        ASSERT_NEAR(log_sum_exps[at], one.log_sum_exp, 1e-4) << "query head " << at;
      }
      for (uint32_t c = 0; c < layout_.value_channels; ++c)
        ASSERT_NEAR(outputs[size_t{at} * layout_.value_channels + c], one.output[c], 1e-4)
            << "query head " << at;
    }
  }

  const std::vector<uint16_t>& payload(uint32_t sequence, uint32_t block) const {
    return blocks_[sequence][block].payload;
  }

  std::vector<SequenceToRead> reads;

 private:
  std::vector<uint16_t> numbers(size_t count) {
    std::vector<uint16_t> bits(count);
    for (uint16_t& one : bits) {
      const float number = random_float(random_);
      one = static_cast<uint16_t>(number_format(layout_) == NumberFormat::BF16
                                      ? bf16_from_float(number)
                                      : fp16_from_float(number));
    }
    return bits;
  }
  double value(uint16_t bits) const {
    return test::oracle_value(number_format(layout_) == NumberFormat::BF16 ? "bf16" : "fp16", bits);
  }
  std::vector<double> row(const Block& block, uint32_t layer, uint32_t part, uint32_t token,
                          uint32_t head, uint32_t channels) const {
    const size_t before = size_t{layer} * layout_.parts + part;
    const uint32_t tokens = block.read.tokens;
    const size_t at = row_order(layout_) == RowOrder::HEADS_FIRST
                          ? (before * layout_.heads + head) * tokens + token
                          : (before * tokens + token) * layout_.heads + head;
    std::vector<double> numbers(channels);
    for (uint32_t c = 0; c < channels; ++c)
      numbers[c] = value(block.payload[at * kKeyChannels + c]);
    return numbers;
  }

  const AttentionModel model_;
  const KvLayout layout_;
  Random random_{1};
  std::vector<std::vector<Block>> blocks_;
  std::vector<uint16_t> query_bits_;
  std::unique_ptr<OnDevice<uint16_t>> queries_;
  std::unique_ptr<OnDevice<float>> outputs_, log_sum_exps_;
};

class DirectReadsTest : public EveryDevice {
 protected:
  void SetUp() override {
    EveryDevice::SetUp();
    if (IsSkipped()) return;
    registration_ = std::move(Registration::create(device(), pool_.pool(), 4 << 20).value());
    // Otherwise jobs would register what they touch when they start, and be held there.
    ASSERT_DONE(registration_->ensure(0, registration_->size_bytes()));
    stream_ = device().make_stream(0).value();
  }
  void TearDown() override {
    if (stream_ != nullptr) device().destroy_stream(stream_);
    registration_.reset();
  }

  DirectReads open(const AttentionModel& model) {
    auto opened = DirectReads::open(pool_.pool(), *registration_, device(), model);
    EXPECT_DONE(opened);
    return std::move(*opened);
  }
  std::shared_ptr<DirectReads::Job> start(DirectReads& reads, const Decode& decode,
                                          uint64_t lease_ms = 30'000) {
    auto job = reads.start(pool_.ns(), decode.reads, {.stream = stream_, .lease_ms = lease_ms});
    EXPECT_DONE(job);
    return job ? *job : nullptr;
  }
  static std::vector<Status> results_of(const DirectReads& reads, const DirectReads::Job& job) {
    const auto results = reads.results(job);
    return {results.begin(), results.end()};
  }
  /// Waits until all queued work is done.
  void drain() {
    const Event event = device().make_event().value();
    EXPECT_DONE(device().record(event, stream_));
    EXPECT_DONE(device().synchronize(event));
    device().destroy_event(event);
  }
  uint64_t leases() { return pool_.info().hosts[0].leases_active; }

  TestPool pool_{32 << 20};
  std::unique_ptr<Registration> registration_;
  Stream stream_ = nullptr;
};
INSTANTIATE_TEST_SUITE_P(Devices, DirectReadsTest, kEveryDevice, device_name);

const AttentionModel kModel = model_of(RowOrder::HEADS_FIRST, false);

/// In many splits, in one, and over no block; windows exclude tokens at either end, and whole
/// blocks.
TEST_P(DirectReadsTest, MatchTheFormulas) {
  for (const bool latent : {false, true}) {
    for (const RowOrder order : {RowOrder::HEADS_FIRST, RowOrder::TOKENS_FIRST}) {
      const AttentionModel model = model_of(order, latent);
      const std::string name = std::to_string(static_cast<int>(order)) + (latent ? "l" : "");
      Decode decode(pool_, device(), model,
                    {{{name + "a", 16}, {name + "b", 300}, {name + "c", 1}},
                     {},
                     {{name + "d", 40, 7, 33}, {name + "e", 5, 5}, {name + "f", 9, 0, 0}},
                     {{name + "g", 77, 70}}});
      DirectReads reads = open(model);
      const auto job = start(reads, decode);
      EXPECT_EQ(results_of(reads, *job), std::vector(7, Status::OK));
      for (const uint32_t layer : {1u, 0u, 1u}) {
        ASSERT_DONE(reads.attend(*job, layer, decode.queries(), {}, decode.answers()));
        drain();
        decode.expect(layer);
      }
      EXPECT_EQ(leases(), 5);
      reads.wait(*job);
      EXPECT_TRUE(reads.poll(*job));
      EXPECT_EQ(results_of(reads, *job), std::vector(7, Status::OK));
      EXPECT_EQ(leases(), 0);
    }
  }
}

/// One half of a sequence is read here, the other elsewhere: merged they give the whole.
TEST_P(DirectReadsTest, MergeWithPartsComputedElsewhere) {
  Decode all(pool_, device(), kModel, {{{"a", 100}, {"b", 50}}, {{"c", 30}, {"d", 20}}});
  std::vector<float> outputs, log_sum_exps;
  for (uint32_t at = 0; at < 2 * kModel.query_heads(); ++at) {
    const uint32_t sequence = at / kModel.query_heads();
    const auto one = all.right(1, sequence, at % kModel.query_heads(), sequence == 0 ? "a" : "c");
    outputs.insert(outputs.end(), one.output.begin(), one.output.end());
    log_sum_exps.push_back(static_cast<float>(one.log_sum_exp));
  }
  const OnDevice<float> other_outputs(device(), outputs), other_sums(device(), log_sum_exps);
  for (SequenceToRead& sequence : all.reads) sequence.blocks.pop_back();  // only a and c
  const MergeSource others[] = {{other_outputs.at(), other_sums.at()}};
  DirectReads reads = open(kModel);
  const auto job = start(reads, all);
  ASSERT_DONE(reads.attend(*job, 1, all.queries(), others, all.answers()));
  reads.wait(*job);
  all.expect(1);
}

/// The second block of a sequence lies in device memory, like an engine's pages.
TEST_P(DirectReadsTest, ReadBlocksThatNeedNoLease) {
  for (const RowOrder order : {RowOrder::HEADS_FIRST, RowOrder::TOKENS_FIRST}) {
    const AttentionModel model = model_of(order, false);
    const std::string name = std::to_string(static_cast<int>(order));
    Decode decode(pool_, device(), model,
                  {{{name + "a", 70}, {name + "b", 80}}, {{name + "c", 3}, {name + "d", 5}}});
    std::vector<std::unique_ptr<OnDevice<uint16_t>>> pages;
    for (uint32_t sequence = 0; sequence < 2; ++sequence) {
      SequenceToRead& read = decode.reads[sequence];
      const uint32_t tokens = read.blocks.back().tokens;
      read.blocks.pop_back();
      const auto& payload = decode.payload(sequence, 1);
      pages.push_back(std::make_unique<OnDevice<uint16_t>>(device(), payload));
      AttendSpan span;
      span.keys = reinterpret_cast<const uint8_t*>(pages.back()->at());
      const size_t part = size_t{tokens} * model.layout.heads * kKeyChannels * 2;
      span.values = span.keys + part;
      span.layer_stride_bytes = 2 * part;
      const bool heads_first = order == RowOrder::HEADS_FIRST;
      span.token_stride_bytes = size_t{kKeyChannels} * 2 * (heads_first ? 1 : model.layout.heads);
      span.head_stride_bytes = size_t{kKeyChannels} * 2 * (heads_first ? tokens : 1);
      span.tokens = tokens;
      read.spans = {span};
    }
    DirectReads reads = open(model);
    const auto job = start(reads, decode);
    EXPECT_EQ(results_of(reads, *job), std::vector(2, Status::OK));
    ASSERT_DONE(reads.attend(*job, 1, decode.queries(), {}, decode.answers()));
    reads.wait(*job);
    decode.expect(1);
  }
}

/// Work that the engine has queued before, and queues after, in the stream.
TEST_P(DirectReadsTest, KeepTheOrderOfTheStream) {
  Decode decode(pool_, device(), kModel, {{{"a", 64}}});
  const size_t bytes = decode.queries().sequence_stride_bytes;
  OnDevice<uint16_t> late(device(), std::vector<uint16_t>(bytes / 2, 0x7FC0));  // no numbers
  DirectReads reads = open(kModel);
  const auto job = start(reads, decode);
  ASSERT_DONE(device().copy(late.at(), decode.queries().data, bytes, stream_));
  DecodeQueries queries = decode.queries();
  queries.data = late.at();
  ASSERT_DONE(reads.attend(*job, 0, queries, {}, decode.answers()));
  reads.wait(*job);
  decode.expect(0);
}

TEST_P(DirectReadsTest, SkipUnreadableBlocks) {
  const Decode strange(pool_, device(), kModel, {{{"short", 8}, {"long", 10}}});
  Decode decode(pool_, device(), kModel, {{{"a", 16}, {"b", 16}}});
  decode.reads[0].blocks = {{"a", 16}, {"absent", 16}, {"short", 9}, {"long", 9}};
  DirectReads reads = open(kModel);
  const auto job = start(reads, decode);
  const std::vector right = {Status::OK, Status::NOT_FOUND, Status::INVALID_ARGUMENT,
                             Status::BUFFER_TOO_SMALL};
  EXPECT_EQ(results_of(reads, *job), right);
  EXPECT_EQ(leases(), 1);
  ASSERT_DONE(reads.attend(*job, 1, decode.queries(), {}, decode.answers()));
  reads.wait(*job);
  decode.expect(1, "b");
  EXPECT_EQ(results_of(reads, *job), right);
  EXPECT_EQ(leases(), 0);
}

TEST_P(DirectReadsTest, EndTheirLeasesThemselves) {
  Decode decode(pool_, device(), kModel, {{{"a", 16}}});
  {
    DirectReads reads = open(kModel);
    const auto job = start(reads, decode);
    ASSERT_DONE(reads.attend(*job, 0, decode.queries(), {}, decode.answers()));
    EXPECT_EQ(leases(), 1);
  }
  EXPECT_EQ(leases(), 0);
}

TEST_P(DirectReadsTest, RefuseMemoryOutOfReach) {
  Decode decode(pool_, device(), kModel, {{{"a", 16}}});
  DirectReads reads = open(kModel);
  const auto job = start(reads, decode);
  std::vector<float> on_host(4096);
  const auto expect = [&](const std::string& sentence, uint32_t layer, const DecodeQueries& queries,
                          std::span<const MergeSource> others, const DecodeAnswers& answers) {
    EXPECT_EQ(message_of(reads.attend(*job, layer, queries, others, answers)),
              "INVALID_ARGUMENT: " + sentence);
  };
  const DecodeQueries queries = decode.queries();
  const DecodeAnswers answers = decode.answers();
  const auto no = [](const std::string& what, const char* byte = "first") {
    return what + ": the " + byte + " byte is in host memory, which this device does not reach";
  };
  expect(no("queries"), 0, {on_host.data(), 256, 128}, {}, answers);
  expect(no("outputs"), 0, queries, {}, {on_host.data(), NumberFormat::FP32, nullptr});
  expect(no("log-sum-exps"), 0, queries, {}, {answers.outputs, NumberFormat::FP32, on_host.data()});
  // Strides that lead out of range.
  expect(no("queries", "last"), 0, {queries.data, 768, 1 << 30}, {}, answers);
  MergeSource other = {on_host.data(), answers.log_sum_exps};
  expect(no("outputs of another partial"), 0, queries, {&other, 1}, answers);
  auto* const outputs = static_cast<float*>(answers.outputs);
  other = {outputs, on_host.data()};
  expect(no("log-sum-exps of another partial"), 0, queries, {&other, 1}, answers);
  const uint32_t first_partials[] = {0, 1};
  other = {outputs, answers.log_sum_exps, first_partials};
  expect("of another partial there is one of each sequence", 0, queries, {&other, 1}, answers);
  const std::vector<MergeSource> many(4, {outputs, answers.log_sum_exps});
  expect("4 other partials: at most 3", 0, queries, many, answers);
  expect("layer 2 of 2", 2, queries, {}, answers);
  expect("queries have strides of 768 and 120 bytes, no multiples of 16", 0,
         {queries.data, 768, 120}, {}, answers);
  reads.wait(*job);
  expect("layer 0 of 2, of a job that is done", 0, queries, {}, answers);
}

TEST_P(DirectReadsTest, RefuseModelsAndBlocksThatMakeNoSense) {
  const auto expect = [&](const std::string& sentence,
                          const std::function<void(AttentionModel&)>& spoil) {
    AttentionModel model = kModel;
    spoil(model);
    EXPECT_EQ(message_of(DirectReads::open(pool_.pool(), *registration_, device(), model)),
              sentence);
  };
  expect("INVALID_ARGUMENT: queries_per_head is 0", [](auto& m) { m.queries_per_head = 0; });
  expect("INVALID_ARGUMENT: layout: parts is 3, but must be 1 or 2",
         [](auto& m) { m.layout.parts = 3; });
  expect(
      "NOT_SUPPORTED: layout, on a GPU: keys of 64 channels and values of 48; rows of one length "
      "are possible",
      [](auto& m) { m.layout.value_channels = 48; });
  expect("NOT_SUPPORTED: keys of int8; direct reads want bf16 or fp16",
         [](auto& m) { m.layout.number_format = BH_NUMBER_INT8; });
  expect("NOT_SUPPORTED: keys with scales: direct reads know none", [](auto& m) {
    m.layout.scales = BH_SCALES_PER_TOKEN;
    m.layout.scale_format = BH_NUMBER_FP32;
  });

  DirectReads reads = open(kModel);
  pool_.use_layout(model_of(RowOrder::TOKENS_FIRST, false).layout);
  EXPECT_EQ(message_of(reads.start(pool_.ns(), {}, {.stream = stream_})),
            "LAYOUT_MISMATCH: blocks of this namespace have another layout: order is tokens first, "
            "not heads first");
  pool_.use_layout(kModel.layout);
  const auto refuse = [&](const BlockToRead& block, const std::string& sentence) {
    const SequenceToRead sequences[] = {{{{"a", 1}}}, {{block}}};
    EXPECT_EQ(message_of(reads.start(pool_.ns(), sequences, {.stream = stream_})),
              "INVALID_ARGUMENT: " + sentence);
  };
  refuse({"a", 0}, "block 1: no tokens");
  refuse({"a", 4, 5}, "block 1: tokens from 5 to 4294967295 of 4");
  refuse({"a", 4, 3, 2}, "block 1: tokens from 3 to 2 of 4");
  refuse({"a", 1u << 22}, "block 1: 4194304 tokens of 1024 bytes, which are more than 2147483648");
  const auto refuse_span = [&](AttendSpan span, const std::string& sentence) {
    const SequenceToRead sequences[] = {{{{"a", 1}}, {span}}};
    EXPECT_EQ(message_of(reads.start(pool_.ns(), sequences, {.stream = stream_})),
              "INVALID_ARGUMENT: " + sentence);
  };
  const OnDevice<uint8_t> page(device(), std::vector<uint8_t>(4096));
  const std::vector<uint8_t> on_host(4096);
  refuse_span({page.at(), page.at(), 2048, 128, 1024, 0}, "a span of no tokens");
  refuse_span({on_host.data(), page.at(), 2048, 128, 1024, 8},
              "keys of a span: the first byte is in host memory, which this device does not reach");
  refuse_span({page.at(), page.at(), 1 << 30, 128, 1024, 8},
              "keys of a span: the last byte is in host memory, which this device does not reach");
  refuse_span(
      {page.at(), on_host.data(), 2048, 128, 1024, 8},
      "values of a span: the first byte is in host memory, which this device does not reach");
  int none = 0;
  EXPECT_EQ(reads.start(pool_.ns(), {}, {.stream = &none}).status(), Status::INVALID_ARGUMENT);
  EXPECT_EQ(leases(), 0);
}

// ---- behaviour that only the CPU device has on request ----

class GatedDirectReads : public DirectReadsTest {};
INSTANTIATE_TEST_SUITE_P(Devices, GatedDirectReads, testing::Values("cpu"), device_name);

/// The lease ends while the device still reads.
TEST_P(GatedDirectReads, LapseWithTheirLeases) {
  Decode decode(pool_, device(), kModel, {{{"a", 16}, {"b", 16}}});
  DirectReads reads = open(kModel);
  gate_->hold_next(3);
  const auto job = start(reads, decode, 1);
  ASSERT_DONE(reads.attend(*job, 0, decode.queries(), {}, decode.answers()));
  ASSERT_FALSE(reads.poll(*job));
  ASSERT_EQ(pool_.pool().remove(pool_.ns(), "a"), Status::OK);
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  // Until something else takes the space of the block.
  for (int i = 0; i < 3000; ++i) {
    if (pool_.put("other " + std::to_string(i), test::bytes(16384, i)) != Status::OK) break;
  }
  gate_->let_go();
  reads.wait(*job);
  EXPECT_EQ(reads.results(*job)[0], Status::LAPSED);
}

TEST_P(GatedDirectReads, SayThatTheDeviceWasLost) {
  Decode decode(pool_, device(), kModel, {{{"a", 16}, {"absent", 16}}});
  ASSERT_EQ(pool_.pool().remove(pool_.ns(), "absent"), Status::OK);
  DirectReads reads = open(kModel);
  const auto job = start(reads, decode);
  drain();
  gate_->lose_from(gate_->count());
  (void)reads.attend(*job, 0, decode.queries(), {}, decode.answers());
  reads.wait(*job);
  EXPECT_EQ(results_of(reads, *job), (std::vector{Status::GPU_LOST, Status::NOT_FOUND}));
  EXPECT_EQ(leases(), 0);
  EXPECT_EQ(reads.start(pool_.ns(), decode.reads, {.stream = stream_}).status(), Status::GPU_LOST);
  EXPECT_EQ(leases(), 0);
}

/// Tables that the device may still read are not given to another job.
TEST_P(GatedDirectReads, KeepTablesThatMayStillBeRead) {
  struct SaysNothing : WrappedDevice {
    using WrappedDevice::WrappedDevice;
    Result<bool> is_done(Event event) override {
      if (says != Status::OK) return Error{says, "what?"};
      return device_.is_done(event);
    }
    void free(void* memory) override {
      ++freed;
      WrappedDevice::free(memory);
    }
    Status says = Status::OK;
    int freed = 0;
  } faulty(device());
  Decode decode(pool_, device(), kModel, {{{"a", 16}}});
  gate_->hold_next(1);
  for (const Status says : {Status::SYSTEM, Status::GPU_LOST}) {
    faulty.says = Status::OK;
    faulty.freed = 0;
    {
      auto reads = DirectReads::open(pool_.pool(), *registration_, faulty, kModel);
      ASSERT_DONE(reads);
      const auto job = reads->start(pool_.ns(), decode.reads, {.stream = stream_});
      ASSERT_DONE(job);
      faulty.says = says;
      EXPECT_TRUE(reads->poll(**job));
      EXPECT_EQ(results_of(*reads, **job), std::vector{says});
      EXPECT_EQ(leases(), 0);
    }
    EXPECT_EQ(faulty.freed, 1) << "the partials that no job has, which are none";
  }
  gate_->let_go();
  device().destroy_stream(std::exchange(stream_, nullptr));  // waits: its memory is freed
}

/// Not yet, in the first moments; later the blocks are registered.
TEST_P(GatedDirectReads, SayThatThePoolIsBeingRegistered) {
  Decode decode(pool_, device(), kModel, {{{"a", 16}}});
  drain();
  const auto registration =
      std::move(Registration::create(device(), pool_.pool(), 64 << 20).value());
  auto reads = DirectReads::open(pool_.pool(), *registration, device(), kModel);
  ASSERT_DONE(reads);
  const auto early = reads->start(pool_.ns(), decode.reads, {.stream = stream_});
  ASSERT_DONE(early);
  EXPECT_EQ(reads->results(**early)[0], Status::BUSY);
  EXPECT_EQ(leases(), 0);
  ASSERT_DONE(registration->ensure(0, registration->size_bytes()));
  const auto job = reads->start(pool_.ns(), decode.reads, {.stream = stream_});
  ASSERT_DONE(job);
  EXPECT_EQ(reads->results(**job)[0], Status::OK);
  ASSERT_DONE(reads->attend(**job, 0, decode.queries(), {}, decode.answers()));
  reads->wait(**job);
  decode.expect(0);
}

/// Then no block can be read by address.
TEST_P(GatedDirectReads, SayThatTheDriverRegistersNothing) {
  const auto none = Device::cpu({.most_registered_bytes = 0});
  const auto registration = std::move(Registration::create(*none, pool_.pool(), 4 << 20).value());
  Decode decode(pool_, *none, kModel, {{{"a", 16}}});
  auto reads = DirectReads::open(pool_.pool(), *registration, *none, kModel);
  ASSERT_DONE(reads);
  auto early = reads->start(pool_.ns(), decode.reads, {});
  ASSERT_DONE(early);
  EXPECT_EQ(reads->results(**early)[0], Status::BUSY);
  EXPECT_EQ(registration->ensure(0, registration->size_bytes()).status(), Status::LIMIT_REACHED);
  auto job = reads->start(pool_.ns(), decode.reads, {});
  ASSERT_DONE(job);
  EXPECT_EQ(reads->results(**job)[0], Status::LIMIT_REACHED);
  EXPECT_EQ(leases(), 0);
  ASSERT_DONE(reads->attend(**job, 0, decode.queries(), {}, decode.answers()));
  reads->wait(**job);
  decode.expect(0, "a");
}

}  // namespace
}  // namespace bowhead::gpu
