// SPDX-License-Identifier: Apache-2.0
// While an engine records a graph from a stream, no call that names the stream may add to the graph
// or break it: each is refused.
#include <gtest/gtest.h>

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "gpu/jobs/decode_store.h"
#include "gpu/jobs/direct_reads.h"
#include "gpu/jobs/frames.h"
#include "gpu/jobs/token_source.h"
#include "tests/gpu/transfers_fixture.h"

namespace bowhead::gpu {
namespace {

struct Call {
  const char* name;
  std::function<Status(Stream)> make;
};

class RecordedStreams : public TransfersTest {
 protected:
  void SetUp() override {
    device_ = Device::cpu({.is_recorded = [this](Stream one) { return one == recorded_; }});
    registration_ = std::move(Registration::create(device(), pool_.pool(), 4 << 20).value());
    ASSERT_DONE(registration_->ensure(0, registration_->size_bytes()));
    recorded_ = stream_ = device().make_stream(0).value();
  }
  void TearDown() override {
    recorded_ = nullptr;
    device().destroy_stream(stream_);
    TransfersTest::TearDown();
  }

  /// Each is INVALID_ARGUMENT, which only check_stream() returns: a call that reached the stream is
  /// SYSTEM.
  void expect_refused(const std::vector<Call>& calls) {
    for (const Call& call : calls) {
      recorded_ = stream_;
      EXPECT_EQ(call.make(stream_), Status::INVALID_ARGUMENT) << call.name;
      recorded_ = nullptr;
      EXPECT_EQ(call.make(stream_), Status::OK) << call.name << ", no longer recorded";
    }
  }

  Stream stream_ = nullptr;
  std::atomic<Stream> recorded_ = nullptr;  ///< read by the threads that call
};
INSTANTIATE_TEST_SUITE_P(Devices, RecordedStreams, testing::Values("cpu"), device_name);

TEST_P(RecordedStreams, AreRefusedByTheDevice) {
  EXPECT_EQ(device().check_stream(stream_).status(), Status::INVALID_ARGUMENT);
  const Event event = device().make_event().value();
  EXPECT_EQ(device().record(event, stream_).status(), Status::SYSTEM);
  EXPECT_EQ(device().wait(stream_, event).status(), Status::SYSTEM);
  EXPECT_EQ(device().notify(stream_, [] {}).status(), Status::SYSTEM);
  device().destroy_event(event);
}

TEST_P(RecordedStreams, AreRefusedByJobs) {
  EngineCache engine(device(), Layout::NHD, {}, RowOrder::HEADS_FIRST);
  Transfers transfers = open(engine);
  const auto pages = shuffled(24, 1);
  const auto blocks = blocks_in(pages, 2);
  const auto ended = [&](Result<std::shared_ptr<Transfers::Job>> job) {
    if (!job) return job.status();
    transfers.wait(**job);
    return transfers.results(**job)[0];
  };
  const auto by_layers = transfers.spill(pool_.ns(), blocks_in(pages, 5), {.layers_at_once = 1});
  ASSERT_DONE(by_layers);
  expect_refused({
      {"spill", [&](Stream s) { return ended(transfers.spill(pool_.ns(), blocks, {.after = s})); }},
      {"layer_ready", [&](Stream s) { return transfers.layer_ready(**by_layers, 2, s).status(); }},
      {"restore",
       [&](Stream s) { return ended(transfers.restore(pool_.ns(), blocks, {.after = s})); }},
  });
  transfers.wait(**by_layers);
  const auto restore = transfers.restore(pool_.ns(), blocks, {.layers_at_once = 1});
  ASSERT_DONE(restore);
  const auto empty = transfers.restore(pool_.ns(), {}, {.layers_at_once = 1});
  ASSERT_DONE(empty);
  expect_refused({
      {"wait_layer", [&](Stream s) { return transfers.wait_layer(**restore, 1, s).status(); }},
      {"wait_layer of no block",
       [&](Stream s) { return transfers.wait_layer(**empty, 1, s).status(); }},
  });
  transfers.wait(**restore);
}

TEST_P(RecordedStreams, AreRefusedByDecodeStores) {
  EngineCache engine(device(), Layout::NHD, {}, RowOrder::HEADS_FIRST);
  Transfers transfers = open(engine);
  const auto pages = shuffled(24, 1);
  auto store = DecodeStore::open(transfers, pool_.ns(), {.block_tokens = 40}).value();
  ASSERT_DONE(store.begin(1));
  ASSERT_DONE(store.append(1, 40, pages, std::vector<std::string>{"block"}));
  expect_refused({{"start", [&](Stream s) { return store.start(s).status(); }}});
}

TEST_P(RecordedStreams, AreRefusedByFetches) {
  EngineCache engine(device(), Layout::NHD, {}, RowOrder::HEADS_FIRST);
  const std::vector<std::string> keys = {"block"};
  const auto bytes = test::bytes(engine.cache().payload_bytes(40), 1);
  pool_.use_layout(engine.cache().layout);
  ASSERT_EQ(pool_.put("block", bytes), Status::OK);
  const auto pages = shuffled(24, 1);
  auto source = TokenSource::open(pool_.pool(), *registration_, device(),
                                  {pool_.ns(), keys, 40, 40}, {engine.cache(), pages});
  ASSERT_DONE(source);
  auto* const tokens = static_cast<uint8_t*>(device().allocate_pinned(64).value());
  const TokenLists lists{.tokens = tokens, .most_tokens = 1};
  expect_refused({{"fetch", [&](Stream s) { return source->fetch(lists, 0, 1, s).status(); }}});
  source.value() = TokenSource::open(pool_.pool(), *registration_, device(),
                                     {pool_.ns(), keys, 40, 40}, {engine.cache(), pages})
                       .value();  // waits for the fetch
  device().free(tokens);
}

TEST_P(RecordedStreams, AreRefusedByDirectReads) {
  AttentionModel model;
  model.layout = pairs_layout(NumberFormat::BF16, 1, 1, 64);
  model.queries_per_head = 1;
  model.scale = 1;
  pool_.use_layout(model.layout);
  ASSERT_EQ(pool_.put("block", test::bytes(payload_bytes(model.layout, 16), 1)), Status::OK);
  auto reads = DirectReads::open(pool_.pool(), *registration_, device(), model);
  ASSERT_DONE(reads);
  const std::vector<SequenceToRead> sequences = {{{{"block", 16}}}};
  std::shared_ptr<DirectReads::Job> job;
  expect_refused({{"start", [&](Stream s) {
                     auto started = reads->start(pool_.ns(), sequences, {.stream = s});
                     if (started) job = *started;
                     return started.status();
                   }}});
  auto* const memory = static_cast<uint8_t*>(device().allocate(4096).value());
  const DecodeQueries queries{memory, 128, 128};
  const DecodeAnswers answers{memory + 1024, NumberFormat::FP32, nullptr};
  expect_refused(
      {{"attend", [&](Stream) { return reads->attend(*job, 0, queries, {}, answers).status(); }}});
  reads->wait(*job);
  device().free(memory);
}

TEST_P(RecordedStreams, AreRefusedByFrameDecoders) {
  FrameDecoder decoder(device());
  expect_refused({{"start", [&](Stream s) { return decoder.start({}, s).status(); }}});
}

}  // namespace
}  // namespace bowhead::gpu
