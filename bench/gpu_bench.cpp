// SPDX-License-Identifier: Apache-2.0
// One shape of cache after another. In every round each way to move a shape's bytes takes its turn,
// and so does the limit.
#include "bench/gpu_bench.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <memory>
#include <numeric>
#include <utility>
#include <vector>

#include "base/random.h"
#include "bench/gpu_attend_bench.h"
#include "bench/gpu_fetch_bench.h"
#include "bench/gpu_rebuild_bench.h"
#include "bench/gpu_rig.h"
#include "bench/report.h"
#include "bench/team.h"
#include "gpu/jobs/transfers.h"
#include "tools/program/machine.h"

namespace bowhead::bench {
namespace {

using gpu::BlockOfTokens;
using gpu::Path;

constexpr uint32_t kPageTokens = 16;  // a page is a block

struct Shape {
  uint16_t layers = 64, heads = 8;
  uint32_t row_bytes = 160;
  RowOrder order = RowOrder::TOKENS_FIRST;
  uint32_t blocks = 1;

  uint64_t block_bytes() const { return uint64_t{layers} * 2 * heads * kPageTokens * row_bytes; }
  uint64_t bytes() const { return block_bytes() * blocks; }
};

/// A cache of one shape, tokens outside of heads, K and V apart; the pages of its blocks are in
/// random order.
class Cache {
 public:
  Cache(GpuRig& rig, const Shape& shape) : rig_(rig), shape_(shape), pages_(2 * shape.blocks) {}
  Cache(const Cache&) = delete;
  Cache& operator=(const Cache&) = delete;
  ~Cache() {
    transfers_.reset();
    for (const BlockOfTokens& block : blocks_) (void)rig_.pool->remove(ns_, block.key);
    rig_.device->free(memory_);
    rig_.device->free(pinned_);
  }

  Result<void> open() {
    auto memory = rig_.device->allocate(2 * shape_.bytes());
    if (!memory) return memory.error();
    memory_ = static_cast<uint8_t*>(*memory);
    auto pinned = rig_.device->allocate_pinned(2 * shape_.bytes());
    if (!pinned) return pinned.error();
    pinned_ = static_cast<uint8_t*>(*pinned);
    gpu::KvCache cache;
    cache.layout = pairs_layout(NumberFormat::FP32, shape_.layers, shape_.heads,
                                static_cast<uint16_t>(shape_.row_bytes / 4), shape_.order);
    cache.page_tokens = kPageTokens;
    cache.pages = pages_;
    const auto ns = rig_.namespace_of(cache.layout);
    if (!ns) return ns.error();
    ns_ = *ns;
    const size_t token = size_t{shape_.heads} * shape_.row_bytes, page = token * kPageTokens;
    for (uint32_t part = 0; part < 2 * shape_.layers; ++part)
      cache.parts.push_back({memory_ + part * page * pages_, page, token, shape_.row_bytes});
    std::iota(table_.begin(), table_.end(), 0u);
    Random random(1);
    for (uint32_t i = pages_; i > 1; --i) std::swap(table_[i - 1], table_[random.below(i)]);
    for (uint32_t i = 0; i < shape_.blocks; ++i)
      blocks_.push_back({fmt::format("b{}", i), {table_, i * kPageTokens, kPageTokens}});
    auto opened = gpu::Transfers::open(*rig_.pool, *rig_.registration, *rig_.device, cache);
    if (!opened) return opened.error();
    transfers_ = std::make_unique<gpu::Transfers>(std::move(*opened));
    Random bytes(2);
    for (size_t i = 0; i < 2 * shape_.bytes(); i += 8) {
      const uint64_t word = bytes.next();
      std::memcpy(pinned_ + i, &word, std::min<size_t>(8, 2 * shape_.bytes() - i));
    }
    return rig_.copy(memory_, pinned_, 2 * shape_.bytes());
  }

  const gpu::PathCosts& path_costs() const { return transfers_->path_costs(); }

  /// Spills, overwrites and restores: the bytes must be the same as before.
  Result<void> check(Path path) {
    const uint64_t bytes = 2 * shape_.bytes();
    const std::vector<uint8_t> before(pinned_, pinned_ + bytes);
    if (auto moved = move(true, path); !moved) return moved;
    // Blocks have the first half of the table's pages.
    std::memset(pinned_, 0, bytes);
    if (auto copied = rig_.copy(memory_, pinned_, bytes); !copied) return copied;
    if (auto moved = move(false, path); !moved) return moved;
    if (auto copied = rig_.copy(pinned_, memory_, bytes); !copied) return copied;
    const size_t page = size_t{shape_.heads} * shape_.row_bytes * kPageTokens;
    for (uint32_t part = 0; part < 2 * shape_.layers; ++part) {
      for (uint32_t i = 0; i < shape_.blocks; ++i) {
        const size_t at = (size_t{part} * pages_ + table_[i]) * page;
        if (std::memcmp(pinned_ + at, &before[at], page) != 0)
          return Error{Status::DAMAGED, "a restored page is wrong"};
      }
    }
    std::memcpy(pinned_, before.data(), bytes);
    if (auto copied = rig_.copy(memory_, pinned_, bytes); !copied) return copied;
    return forget();
  }

  Result<void> move(bool spills, Path path) {
    auto job = spills ? transfers_->spill(ns_, blocks_, {.path = path})
                      : transfers_->restore(ns_, blocks_, {.path = path});
    if (!job) return job.error();
    transfers_->wait(**job);
    for (const Status status : transfers_->results(**job)) {
      if (status != Status::OK) return Error{status, "a block failed"};
    }
    return {};
  }
  Result<void> forget() {
    for (const BlockOfTokens& block : blocks_) {
      if (const Status status = rig_.pool->remove(ns_, block.key); status != Status::OK)
        return Error{status, "cannot remove a block"};
    }
    return {};
  }
  /// Copies all bytes in one call.
  Result<void> copy_whole(bool spills) {
    return spills ? rig_.copy(pinned_, memory_, shape_.bytes())
                  : rig_.copy(memory_, pinned_, shape_.bytes());
  }
  /// Copies fragment by fragment, each in its own call.
  Result<void> copy_fragments(bool spills, uint64_t fragment_bytes) {
    return rig_.run([&] {
      Result<void> queued;
      for (uint64_t at = 0; at < shape_.bytes() && queued; at += fragment_bytes) {
        void* const ends[2] = {memory_ + 2 * at, pinned_ + at};  // not contiguous in the cache
        queued = rig_.device->copy(ends[spills ? 1 : 0], ends[spills ? 0 : 1], fragment_bytes,
                                   rig_.stream);
      }
      return queued;
    });
  }

 private:
  GpuRig& rig_;
  NamespaceId ns_ = 0;
  const Shape shape_;
  const uint32_t pages_;
  std::vector<uint32_t> table_ = std::vector<uint32_t>(pages_);
  std::vector<BlockOfTokens> blocks_;
  uint8_t *memory_ = nullptr, *pinned_ = nullptr;
  std::unique_ptr<gpu::Transfers> transfers_;
};

/// GB/s by round of one way to move a shape's bytes; the ways take turns.
struct Way {
  std::function<Result<void>()> move;
  bool stores;  ///< in the pool: blocks are removed afterwards
  std::vector<double> rates = {};
};

Result<void> time_ways(Cache& cache, const Shape& shape, uint32_t rounds, std::vector<Way>& ways) {
  for (uint32_t round = 0; round < rounds; ++round) {
    for (size_t i = 0; i < ways.size(); ++i) {
      Way& way = ways[(round + i) % ways.size()];
      const uint64_t begin_ns = now_ns();
      if (auto moved = way.move(); !moved) return moved;
      way.rates.push_back(static_cast<double>(shape.bytes()) /
                          static_cast<double>(now_ns() - begin_ns));
      if (!way.stores) continue;
      if (auto gone = cache.forget(); !gone) return gone;
    }
  }
  return {};
}

class Runs {
 public:
  Runs(const GpuBenchOptions& options, const Report& report, GpuRig& rig)
      : options_(options), report_(report), rig_(rig) {}

  /// Compares with one copy of the whole, and with a loop of copies.
  Result<void> beside_copies(Shape shape, uint64_t fragment_bytes, double bound) {
    for (const bool spills : {true, false}) {
      Cache cache(rig_, shape);
      if (auto good = prepare(cache, spills); !good) return good;
      std::vector<Way> ways;
      ways.push_back({[&] { return cache.move(spills, Path::CHOOSE); }, spills});
      ways.push_back({[&] { return cache.copy_whole(spills); }, false});
      const bool loop = fragment_bytes < 4096;
      if (loop)
        ways.push_back({[&] { return cache.copy_fragments(spills, fragment_bytes); }, false});
      if (auto good = time_ways(cache, shape, options_.rounds, ways); !good) return good;
      Figure figure = figure_of(spills ? "spill" : "restore", shape, fragment_bytes, ways[0].rates);
      rig_.set_limit(figure, "one pinned copy", ways[0].rates, ways[1].rates, bound);
      report_.add(figure);
      if (!loop) continue;
      figure.row += "_loop";
      rig_.set_limit(figure, "a copy for each", ways[0].rates, ways[2].rates, 10);
      report_.add(figure);
    }
    return {};
  }

  /// Compares the chosen path with the better of both.
  Result<void> beside_paths(Shape shape, uint64_t fragment_bytes) {
    for (const bool spills : {true, false}) {
      Cache cache(rig_, shape);
      if (auto good = prepare(cache, spills); !good) return good;
      std::vector<Way> ways;
      for (const Path path : {Path::CHOOSE, Path::KERNEL, Path::COPIES})
        ways.push_back({[&cache, spills, path] { return cache.move(spills, path); }, spills});
      if (auto good = time_ways(cache, shape, options_.rounds, ways); !good) return good;
      std::vector<double> better(ways[0].rates.size());
      for (size_t i = 0; i < better.size(); ++i)
        better[i] = std::max(ways[1].rates[i], ways[2].rates[i]);
      Figure figure =
          figure_of(spills ? "spill_path" : "restore_path", shape, fragment_bytes, ways[0].rates);
      figure.parameters["kernel_gb_s"] = summarize(ways[1].rates).median;
      figure.parameters["copies_gb_s"] = summarize(ways[2].rates).median;
      rig_.set_limit(figure, "the better path", ways[0].rates, better, 0.95);
      const std::string& because = cache.path_costs().assumed_because;
      if (!because.empty()) figure.note = "path costs are assumed: " + because;
      report_.add(figure);
    }
    return {};
  }

 private:
  Result<void> prepare(Cache& cache, bool spills) {
    if (auto opened = cache.open(); !opened) return opened;
    for (const Path path : {Path::KERNEL, Path::COPIES}) {
      if (auto good = cache.check(path); !good) return good;
    }
    return spills ? Result<void>() : cache.move(true, Path::CHOOSE);
  }

  Figure figure_of(const char* row, const Shape& shape, uint64_t fragment_bytes,
                   const std::vector<double>& rates) const {
    Figure figure = rig_.figure(row, rates);
    figure.what = fmt::format("{}, {} in runs of {}", row, bytes_text(shape.bytes()),
                              bytes_text(fragment_bytes));
    figure.parameters["fragment_bytes"] = fragment_bytes;
    figure.parameters["blocks"] = shape.blocks;
    figure.parameters["bytes"] = shape.bytes();
    figure.parameters["layers"] = shape.layers;
    return figure;
  }

  const GpuBenchOptions& options_;
  const Report& report_;
  GpuRig& rig_;
  NamespaceId ns_ = 0;
};

Result<void> measure(const GpuBenchOptions& options) {
  if (options.rounds < 5)
    return Error{Status::INVALID_ARGUMENT, "at least 5 rounds, for a median and a spread"};
  GpuRig rig;
  if (auto opened = rig.open(options); !opened) return opened;
  const Report report({"gpu", options.quick, options.json, options.command}, this_machine());
  report.print_header();
  report.print_heading();
  Runs runs(options, report, rig);
  const uint16_t layers = options.quick ? 2 : 64;
  for (const uint32_t blocks : {1u, 4u, 16u, 64u}) {
    if (options.quick && blocks > 4) break;
    report.progress(fmt::format("{} blocks", blocks));
    const Shape shape{.layers = layers, .blocks = blocks};
    if (auto good = runs.beside_copies(shape, 20480, 0.90); !good) return good;
  }
  // The same tokens with heads outside: a run is a head of a token.
  const Shape scattered{
      .layers = layers, .order = RowOrder::HEADS_FIRST, .blocks = options.quick ? 1u : 16u};
  if (auto good = runs.beside_copies(scattered, 160, 0.50); !good) return good;
  for (uint64_t fragment = 128; fragment <= 2u << 20; fragment *= 4) {
    if (options.quick && fragment > 8192) break;
    report.progress(fmt::format("runs of {}", bytes_text(fragment)));
    const uint64_t all = options.quick ? 256u << 10 : 64u << 20;
    Shape shape{.layers = 4, .heads = 1, .row_bytes = static_cast<uint32_t>(fragment / 16)};
    shape.blocks = static_cast<uint32_t>(std::clamp<uint64_t>(all / shape.block_bytes(), 1, 1024));
    if (auto good = runs.beside_paths(shape, fragment); !good) return good;
  }
  if (auto good = measure_fetch(rig, options, report); !good) return good;
  if (auto good = measure_attend(rig, options, report); !good) return good;
  return measure_rebuild(rig, options, report);
}

}  // namespace

int run_gpu_bench(const GpuBenchOptions& options) {
  return exit_code_of([&] { return measure(options); });
}

}  // namespace bowhead::bench
