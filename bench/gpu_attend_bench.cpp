// SPDX-License-Identifier: Apache-2.0
#include "bench/gpu_attend_bench.h"

#include <fmt/format.h>

#include <cmath>
#include <cstring>
#include <optional>
#include <utility>
#include <vector>

#include "base/random.h"
#include "bench/team.h"
#include "gpu/jobs/direct_reads.h"
#include "ndp/numbers.h"
#include "ndp/operations.h"

namespace bowhead::bench {
namespace {

constexpr uint32_t kChannels = 128;
constexpr size_t kRowBytes = kChannels * 2;

struct Shape {
  uint32_t sequences = 8, blocks = 16;  // of each sequence
  uint32_t block_tokens = 256;
  uint16_t heads = 8;
  uint32_t queries_per_head = 4;
  RowOrder order = RowOrder::HEADS_FIRST;

  uint32_t query_heads() const { return heads * queries_per_head; }
  KvLayout layout() const { return pairs_layout(NumberFormat::BF16, 1, heads, kChannels, order); }
  uint64_t block_bytes() const { return payload_bytes(layout(), block_tokens); }
  uint64_t bytes() const { return block_bytes() * blocks * sequences; }
};

/// Random bf16 numbers of magnitude 1/2 to 1, of either sign.
void fill(std::byte* to, uint64_t bytes, uint64_t seed) {
  Random random(seed);
  for (uint64_t i = 0; i < bytes; i += 8) {
    const uint64_t word = (random.next() & 0x807F807F807F807F) | 0x3F003F003F003F00;
    std::memcpy(to + i, &word, 8);
  }
}

/// Sequences of one layer in the pool, and one query for each head, in device memory.
class DirectDecode {
 public:
  DirectDecode(GpuRig& rig, const Shape& shape) : rig_(rig), shape_(shape) {}
  DirectDecode(const DirectDecode&) = delete;
  DirectDecode& operator=(const DirectDecode&) = delete;
  ~DirectDecode() {
    if (job_) reads_->wait(*job_);
    reads_.reset();
    for (const auto& sequence : sequences_) {
      for (const auto& block : sequence.blocks) (void)rig_.pool->remove(ns_, block.key);
    }
    for (void* memory : {queries_, outputs_, copy_to_, copy_from_}) rig_.device->free(memory);
  }

  Result<void> open() {
    if (auto allocated = allocate(); !allocated) return allocated;
    gpu::AttentionModel model;
    model.layout = shape_.layout();
    model.queries_per_head = shape_.queries_per_head;
    model.scale = 1 / std::sqrt(float{kChannels});
    const auto ns = rig_.namespace_of(model.layout);
    if (!ns) return ns.error();
    ns_ = *ns;
    if (auto stored = store(); !stored) return stored;
    query_bits_.resize(size_t{shape_.sequences} * shape_.query_heads() * kChannels);
    fill(reinterpret_cast<std::byte*>(query_bits_.data()), query_bits_.size() * 2, 1);
    if (auto copied = rig_.copy(queries_, query_bits_.data(), query_bits_.size() * 2); !copied)
      return copied;
    auto opened = gpu::DirectReads::open(*rig_.pool, *rig_.registration, *rig_.device, model);
    if (!opened) return opened.error();
    reads_.emplace(std::move(*opened));
    auto job = reads_->start(ns_, sequences_, {.stream = rig_.stream, .lease_ms = 600'000});
    if (!job) return job.error();
    job_ = *job;
    return all_read();
  }

  Result<void> attend() {
    return rig_.run([&] {
      return reads_->attend(*job_, 0, {queries_, kRowBytes * shape_.query_heads(), kRowBytes}, {},
                            {outputs_, NumberFormat::FP32, nullptr});
    });
  }
  Result<void> copy() { return rig_.copy(copy_to_, copy_from_, shape_.bytes()); }

  /// Checks that leases held to the end, and that outputs match ndp/.
  Result<void> check() {
    reads_->wait(*job_);
    if (auto read = all_read(); !read) return read;
    std::vector<float> outputs(size_t{shape_.sequences} * shape_.query_heads() * kChannels);
    if (auto copied = rig_.copy(outputs.data(), outputs_, outputs.size() * 4); !copied)
      return copied;
    std::vector<float> right(kChannels);
    for (uint32_t i = 0; i < shape_.sequences * shape_.heads; ++i) {
      const auto attention = by_ndp(i / shape_.heads, i % shape_.heads);
      if (!attention) return attention.error();
      for (uint32_t q = 0; q < shape_.queries_per_head; ++q) {
        (void)attention->output(q, right);
        const float* output = &outputs[(size_t{i} * shape_.queries_per_head + q) * kChannels];
        for (uint32_t c = 0; c < kChannels; ++c) {
          // Values are below 1.
          if (!(std::abs(output[c] - right[c]) <= 2 * ndp::kWeightTolerance))
            return Error{Status::DAMAGED, "attention by direct reads differs from that of ndp/"};
        }
      }
    }
    return {};
  }

 private:
  Result<void> allocate() {
    const size_t query_bytes = shape_.sequences * shape_.query_heads() * kRowBytes;
    const auto take = [&](void*& memory, bool pinned, size_t bytes) -> Result<void> {
      auto taken = pinned ? rig_.device->allocate_pinned(bytes) : rig_.device->allocate(bytes);
      if (!taken) return taken.error();
      memory = *taken;
      return {};
    };
    auto taken = take(queries_, false, query_bytes);
    if (taken) taken = take(outputs_, false, 2 * query_bytes);
    if (taken) taken = take(copy_to_, false, shape_.bytes());
    if (taken) taken = take(copy_from_, true, shape_.bytes());
    // Otherwise its pages would all map the system's one page of zeros.
    if (taken) std::memset(copy_from_, 1, shape_.bytes());
    return taken;
  }

  Result<void> store() {
    std::vector<std::byte> payload(shape_.block_bytes());
    for (uint32_t s = 0; s < shape_.sequences; ++s) {
      auto& blocks = sequences_.emplace_back().blocks;
      for (uint32_t b = 0; b < shape_.blocks; ++b) {
        blocks.push_back({fmt::format("s{}b{}", s, b), shape_.block_tokens});
        fill(payload.data(), payload.size(), 2 + uint64_t{s} * shape_.blocks + b);
        const ConstSpan value{payload.data(), payload.size()};
        const Status put = rig_.pool->put(ns_, blocks.back().key, {&value, 1});
        if (put != Status::OK) return Error{put, "cannot put a block"};
      }
    }
    return {};
  }

  Result<void> all_read() const {
    for (const Status status : reads_->results(*job_)) {
      if (status != Status::OK) return Error{status, "cannot read a block"};
    }
    return {};
  }

  Result<ndp::Attention> by_ndp(uint32_t sequence, uint32_t head) {
    std::vector<float> wanted(size_t{shape_.queries_per_head} * kChannels);
    const size_t first = (size_t{sequence} * shape_.heads + head) * wanted.size();
    for (size_t i = 0; i < wanted.size(); ++i) wanted[i] = ndp::from_bf16(query_bits_[first + i]);
    auto queries = ndp::Queries::of(wanted, shape_.queries_per_head, kChannels,
                                    1 / std::sqrt(float{kChannels}), NumberFormat::BF16);
    auto attention = ndp::Attention::of(shape_.queries_per_head, kChannels);
    if (!queries || !attention) return queries ? attention.error() : queries.error();
    for (uint32_t b = 0; b < shape_.blocks; ++b) {
      auto lease = rig_.pool->acquire(ns_, sequences_[sequence].blocks[b].key, 60'000);
      if (!lease) return lease.error();
      const auto span = ndp::span_of(shape_.layout(), lease->data, shape_.block_tokens, 0, head,
                                     b * shape_.block_tokens);
      auto added = span ? attention->add(*queries, {&*span, 1}, {}) : Result<void>(span.error());
      (void)rig_.pool->release(*lease);
      if (!added) return added.error();
    }
    return attention;
  }

  GpuRig& rig_;
  NamespaceId ns_ = 0;
  const Shape shape_;
  std::vector<gpu::SequenceToRead> sequences_;
  std::vector<uint16_t> query_bits_;
  void *queries_ = nullptr, *outputs_ = nullptr;
  void *copy_to_ = nullptr, *copy_from_ = nullptr;
  std::optional<gpu::DirectReads> reads_;
  std::shared_ptr<gpu::DirectReads::Job> job_;
};

Result<void> measure_shape(GpuRig& rig, const GpuBenchOptions& options, const Report& report,
                           const Shape& shape) {
  {
    DirectDecode first(rig, shape);
    if (auto opened = first.open(); !opened) return opened;
    if (auto done = first.attend(); !done) return done;
    if (auto good = first.check(); !good) return good;
  }
  DirectDecode decode(rig, shape);
  if (auto opened = decode.open(); !opened) return opened;
  if (auto done = decode.attend(); !done) return done;  // what is allocated once, is
  std::vector<double> rates, limits;
  const auto time = [&](std::vector<double>& into, auto work) -> Result<void> {
    const uint64_t begin_ns = now_ns();
    if (auto done = work(); !done) return done;
    into.push_back(static_cast<double>(shape.bytes()) / static_cast<double>(now_ns() - begin_ns));
    return {};
  };
  for (uint32_t round = 0; round < options.rounds; ++round) {
    for (const bool attends : {round % 2 == 0, round % 2 != 0}) {
      auto done = attends ? time(rates, [&] { return decode.attend(); })
                          : time(limits, [&] { return decode.copy(); });
      if (!done) return done;
    }
  }
  Figure figure = rig.figure("attend_direct", rates);
  const bool heads_first = shape.order == RowOrder::HEADS_FIRST;
  figure.what = fmt::format("attend_direct, {}, {} sequences, {} queries a head, {}",
                            bytes_text(shape.bytes()), shape.sequences, shape.queries_per_head,
                            heads_first ? "heads first" : "tokens first");
  figure.parameters["bytes"] = shape.bytes();
  figure.parameters["sequences"] = shape.sequences;
  figure.parameters["heads"] = shape.heads;
  figure.parameters["queries_per_head"] = shape.queries_per_head;
  figure.parameters["block_tokens"] = shape.block_tokens;
  figure.parameters["order"] = heads_first ? "heads first" : "tokens first";
  rig.set_limit(figure, "one pinned copy", rates, limits, 0.85);
  report.add(figure);
  return {};
}

}  // namespace

Result<void> measure_attend(GpuRig& rig, const GpuBenchOptions& options, const Report& report) {
  std::vector<Shape> shapes = {
      {.queries_per_head = 4},
      {.sequences = 1, .blocks = 128, .queries_per_head = 8},
      {.sequences = 1, .blocks = 16, .queries_per_head = 8},
      {.queries_per_head = 16},
      {.block_tokens = 64, .queries_per_head = 8, .order = RowOrder::TOKENS_FIRST}};
  if (options.quick) shapes = {{.sequences = 2, .blocks = 2, .block_tokens = 32, .heads = 2}};
  for (const Shape& shape : shapes) {
    report.progress(fmt::format("attention, {}", bytes_text(shape.bytes())));
    if (auto good = measure_shape(rig, options, report, shape); !good) return good;
  }
  return {};
}

}  // namespace bowhead::bench
