// SPDX-License-Identifier: Apache-2.0
#include "bench/gpu_fetch_bench.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "base/random.h"
#include "bench/team.h"
#include "gpu/jobs/token_source.h"
#include "ndp/operations.h"

namespace bowhead::bench {
namespace {

using gpu::TokenSource;

constexpr uint32_t kHeads = 8, kRowBytes = 256;  // 128 channels of bf16

/// A layer's sequence in the pool, and lists of chosen tokens on the device, as hits.
class Sequence {
 public:
  Sequence(GpuRig& rig, RowOrder order, uint32_t tokens, uint32_t block_tokens)
      : rig_(rig),
        layout_(pairs_layout(NumberFormat::BF16, 1, kHeads, kRowBytes / 2, order)),
        tokens_(tokens),
        block_tokens_(block_tokens),
        k_(tokens * 3 / 200) {}
  Sequence(const Sequence&) = delete;
  Sequence& operator=(const Sequence&) = delete;
  ~Sequence() {
    source_.reset();
    for (const std::string& key : keys_) (void)rig_.pool->remove(ns_, key);
    for (void* memory : {area_, lists_, pinned_}) rig_.device->free(memory);
  }

  uint64_t bytes() const { return uint64_t{2} * kHeads * k_ * kRowBytes; }
  uint32_t k() const { return k_; }

  Result<void> open() {
    const auto ns = rig_.namespace_of(layout_);
    if (!ns) return ns.error();
    ns_ = *ns;
    for (uint32_t i = 0; i < tokens_ / block_tokens_; ++i) {
      if (auto stored = store(i); !stored) return stored;
    }
    const size_t list_bytes = size_t{kHeads} * k_ * sizeof(ndp::Hit);
    auto area = rig_.device->allocate(bytes());
    if (!area) return area.error();
    area_ = *area;
    auto lists = rig_.device->allocate(list_bytes);
    if (!lists) return lists.error();
    lists_ = *lists;
    auto pinned = rig_.device->allocate_pinned(std::max<uint64_t>(bytes(), list_bytes));
    if (!pinned) return pinned.error();
    pinned_ = *pinned;
    choose();
    std::memcpy(pinned_, hits_.data(), list_bytes);
    if (auto copied = rig_.copy(lists_, pinned_, list_bytes); !copied) return copied;
    gpu::KvCache shape;
    shape.layout = layout_;
    const std::vector<uint32_t> table = {0};
    auto source = TokenSource::open(
        *rig_.pool, *rig_.registration, *rig_.device, {ns_, keys_, tokens_, block_tokens_},
        {gpu::dense_cache(shape, static_cast<uint8_t*>(area_), k_), table});
    if (!source) return source.error();
    source_ = std::make_unique<TokenSource>(std::move(*source));
    return {};
  }

  Result<void> fetch() {
    gpu::TokenLists lists;
    lists.tokens = static_cast<const uint8_t*>(lists_) + offsetof(ndp::Hit, token);
    lists.token_stride_bytes = sizeof(ndp::Hit);
    lists.list_stride_bytes = k_ * sizeof(ndp::Hit);
    lists.head_lists = 1;
    lists.most_tokens = k_;
    auto fetch = source_->fetch(lists, 0, 1, rig_.stream);
    if (!fetch) return fetch.error();
    source_->wait(**fetch);
    if (source_->result(**fetch) == Status::OK) return {};
    return Error{source_->result(**fetch), "a fetch failed"};
  }
  Result<void> copy_whole() { return rig_.copy(area_, pinned_, bytes()); }

  /// Compares the fetched tokens with the pool.
  Result<void> check() {
    std::memset(pinned_, 0, bytes());
    if (auto copied = copy_whole(); !copied) return copied;
    if (auto fetched = fetch(); !fetched) return fetched;
    if (auto copied = rig_.copy(pinned_, area_, bytes()); !copied) return copied;
    const auto* row = static_cast<const std::byte*>(pinned_);
    for (uint32_t part = 0; part < 2; ++part) {
      for (uint32_t i = 0; i < kHeads * k_; ++i, row += kRowBytes) {
        const uint32_t token = hits_[i].token, in_block = token % block_tokens_, head = i / k_;
        const KvRows rows = rows_of(layout_, block_tokens_, 0, part, head);
        const auto* in_pool = payloads_[token / block_tokens_] + rows.offset_bytes;
        if (std::memcmp(row, in_pool + in_block * rows.stride_bytes, kRowBytes) != 0)
          return Error{Status::DAMAGED, fmt::format("token {} of head {} is wrong", token, head)};
      }
    }
    return {};
  }

 private:
  Result<void> store(uint32_t block) {
    const std::string& key = keys_.emplace_back(fmt::format("t{}", block));
    const uint64_t bytes = payload_bytes(layout_, block_tokens_);
    auto reserved = rig_.pool->reserve(ns_, key, bytes);
    if (!reserved) return Error{reserved.status(), "no space for a block"};
    Random random(block);
    for (size_t i = 0; i < bytes; i += 8) {
      const uint64_t word = random.next();
      std::memcpy(reserved->data + i, &word, 8);
    }
    payloads_.push_back(reserved->data);
    if (const Status status = rig_.pool->commit(*reserved); status != Status::OK)
      return Error{status, "cannot store a block"};
    return {};
  }

  /// The best first, which is not the order of tokens.
  void choose() {
    std::vector<uint32_t> all(tokens_);
    std::iota(all.begin(), all.end(), 0u);
    Random random(1);
    for (uint32_t head = 0; head < kHeads; ++head) {
      for (uint32_t i = 0; i < k_; ++i) {
        std::swap(all[i], all[i + random.below(tokens_ - i)]);
        hits_.push_back({0, all[i]});
      }
    }
  }

  GpuRig& rig_;
  const KvLayout layout_;
  NamespaceId ns_ = 0;
  const uint32_t tokens_, block_tokens_, k_;
  std::vector<std::string> keys_;
  std::vector<const std::byte*> payloads_;
  std::vector<ndp::Hit> hits_;  ///< [head][k]
  void *area_ = nullptr, *lists_ = nullptr, *pinned_ = nullptr;
  std::unique_ptr<TokenSource> source_;
};

Result<void> measure(GpuRig& rig, const GpuBenchOptions& options, const Report& report,
                     RowOrder order) {
  const bool heads_first = order == RowOrder::HEADS_FIRST;
  const uint32_t tokens = options.quick ? 4096 : 131'072;
  const uint32_t block_tokens = options.quick ? 64 : 256;
  Sequence sequence(rig, order, tokens, block_tokens);
  if (auto opened = sequence.open(); !opened) return opened;
  if (auto good = sequence.check(); !good) return good;
  std::vector<double> fetches, copies;
  const auto time = [&](std::vector<double>& rates, auto work) {
    const uint64_t begin_ns = now_ns();
    auto done = work();
    rates.push_back(static_cast<double>(sequence.bytes()) /
                    static_cast<double>(now_ns() - begin_ns));
    return done;
  };
  for (uint32_t round = 0; round < 2 * options.rounds; ++round) {
    const bool is_fetch = (round + round / 2) % 2 == 0;
    auto done = is_fetch ? time(fetches, [&] { return sequence.fetch(); })
                         : time(copies, [&] { return sequence.copy_whole(); });
    if (!done) return done;
  }
  Figure figure = rig.figure("fetch_tokens", fetches);
  figure.what = fmt::format("fetch_tokens, {} of {} tokens, {} first", sequence.k(), tokens,
                            heads_first ? "heads" : "tokens");
  figure.parameters["tokens"] = tokens;
  figure.parameters["k"] = sequence.k();
  figure.parameters["bytes"] = sequence.bytes();
  figure.parameters["order"] = heads_first ? "heads first" : "tokens first";
  figure.limit = Limit{"one pinned copy", summarize(copies)};
  figure.ratio = ratio_of(fetches, copies);
  report.add(figure);
  return {};
}

}  // namespace

Result<void> measure_fetch(GpuRig& rig, const GpuBenchOptions& options, const Report& report) {
  report.progress("chosen tokens");
  for (const RowOrder order : {RowOrder::HEADS_FIRST, RowOrder::TOKENS_FIRST}) {
    if (auto good = measure(rig, options, report, order); !good) return good;
  }
  return {};
}

}  // namespace bowhead::bench
