// SPDX-License-Identifier: Apache-2.0
// Kernels give the same bytes on lanes that run in any order as in a loop over lanes, and touch no
// byte that a sync does not order; and each call that syncs, exchanges or keeps an order is
// necessary: without it a test here fails.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <numeric>
#include <regex>
#include <set>
#include <string>
#include <vector>

#include "base/random.h"
#include "gpu/devices/cpu_kernels.h"
#include "gpu/kernels/attend.h"
#include "gpu/kernels/check.h"
#include "gpu/kernels/floats.h"
#include "gpu/kernels/rebuild_tiles.h"
#include "tests/gpu/fiber_warps.h"
#include "tests/gpu/random_cache.h"

namespace bowhead::gpu {

// The kernels (cpu_kernels.h) on such lanes.
namespace fiber_lanes {
void run_on_cpu(const MovePieces& work);
void run_on_cpu(const MoveFewPieces& work);
void run_on_cpu(const Attend& work);
void run_on_cpu(const MergePartials& work);
void run_on_cpu(const FetchTokens& work);
void run_on_cpu(const RebuildTiles& work);
}  // namespace fiber_lanes

namespace {

using Buffer = std::vector<uint8_t>;
using Runner = std::function<void(const Work&)>;

void on_loop(const Work& work) {
  std::visit([](const auto& one) { run_on_cpu(one); }, work);
}
void on_fibers(const Work& work) {
  std::visit(
      [](const auto& one) {
        if constexpr (requires { fiber_lanes::run_on_cpu(one); }) fiber_lanes::run_on_cpu(one);
      },
      work);
}

template <class T>
void run_checked(const T& work, const Runner& runner) {
  const Result<void> good = check(work);
  ASSERT_TRUE(good) << good.error().message();
  runner(work);
}

template <class T>
Buffer bytes_of(const std::vector<T>& items) {
  Buffer bytes(items.size() * sizeof(T));
  std::memcpy(bytes.data(), items.data(), bytes.size());
  return bytes;
}
void append(Buffer& to, const Buffer& more) { to.insert(to.end(), more.begin(), more.end()); }

// ---- inputs of kernels: each returns all bytes that the kernels wrote ----

struct RebuildShape {
  NumberFormat number;
  bool exact;
  uint32_t channels, turning_channels, tokens;
};

/// Tiles of any bits: also the result of an invalid tile is the same on all lanes.
Buffer rebuild(const RebuildShape& shape, uint64_t seed, const Runner& runner) {
  constexpr uint32_t kTiles = 6;
  Random random(seed);
  const compression::Number& number = *compression::number_of(shape.number);
  const uint32_t plane_bytes = (shape.channels + 7) / 8 * shape.tokens;
  Buffer bytes = random_bytes(random, 1 << 14);
  const auto add = [&](size_t size, bool is_sparse) {
    const auto at = static_cast<uint32_t>(bytes.size());
    for (size_t i = 0; i < size; ++i) {
      const uint64_t bits = random.next();
      bytes.push_back(static_cast<uint8_t>(is_sparse ? bits & bits >> 8 & bits >> 16 : bits));
    }
    return at;
  };
  const size_t tile_bytes = size_t{shape.tokens} * shape.channels * number.element_bytes;
  std::vector<Bytes16> values(kTiles * tile_bytes / sizeof(Bytes16) + 1);
  std::vector<RebuildTile> tiles(kTiles);
  for (uint32_t i = 0; i < kTiles; ++i) {
    RebuildTile& tile = tiles[i];
    for (uint32_t p = 0; p < number.planes(); ++p)
      tile.planes[p] = random.below(9) == 0 ? RebuildTile::kAllZero : add(plane_bytes, p != 0);
    tile.parameters = static_cast<uint32_t>(random.below(1000));
    tile.remainder = add(tile_bytes, false);
    tile.remainder_bytes = static_cast<uint32_t>(tile_bytes);
    tile.exceptions = add(500, false);
    tile.exception_bytes = 500;
    tile.exponent_base = 9;
    tile.exponent_width = 3;
    tile.centre_width = static_cast<uint8_t>(i == 3 ? 0 : 6);
    tile.centre_turns = shape.turning_channels != 0 && i % 2 == 0;
    tile.tokens = shape.tokens;
    tile.values = reinterpret_cast<uint8_t*>(values.data()) + i * tile_bytes;
  }
  bytes.resize((bytes.size() + 3) / 4 * 4 + RebuildTiles::kSlackBytes);
  std::vector<compression::Turn> turns(shape.turning_channels / 2 + 1);
  for (compression::Turn& turn : turns)
    turn = {static_cast<int16_t>(random.next()), static_cast<int16_t>(random.next())};
  std::vector<Bytes16> scratch(rebuild_scratch_bytes(shape.channels, kTiles) / sizeof(Bytes16));
  std::vector<uint32_t> faults(kTiles, 9);
  RebuildTiles work;
  work.number = shape.number;
  work.channels = shape.channels;
  work.exact = shape.exact;
  work.plane_count = shape.exact ? number.planes() : number.planes() / 2;
  work.turning_channels = shape.turning_channels;
  work.turns = turns.data();
  work.bytes = bytes.data();
  work.size_bytes = bytes.size() - RebuildTiles::kSlackBytes;
  work.scratch = reinterpret_cast<uint8_t*>(scratch.data());
  work.tiles = tiles.data();
  work.tile_count = kTiles;
  work.faults = faults.data();
  run_checked(work, runner);
  Buffer wrote = bytes_of(values);
  append(wrote, bytes_of(faults));
  return wrote;
}

/// Moves pieces of three blocks in both directions, with their sums.
Buffer move(MoveKind kind, uint32_t unit_bytes, uint64_t seed, const Runner& runner) {
  Random random(seed);
  const Model model{2, 2, 2, unit_bytes * 5,
                    seed % 2 == 0 ? RowOrder::HEADS_FIRST : RowOrder::TOKENS_FIRST};
  constexpr uint32_t kBlocks = 3, kTokens = 37, kPages = 10;
  Cache cache(random, model, 16, kPages, unit_bytes);
  std::vector<uint32_t> pages(kPages);
  std::iota(pages.begin(), pages.end(), 0u);
  for (uint32_t i = kPages; i > 1; --i) std::swap(pages[i - 1], pages[random.below(i)]);
  const size_t payload_bytes = (model.payload_bytes(kTokens) + 15) / 16 * 16;
  std::vector<Bytes16> payloads(kBlocks * payload_bytes / sizeof(Bytes16));
  for (Bytes16& word : payloads) word = {random.next(), random.next()};
  std::vector<uint64_t> sums(kBlocks * 64, 9);
  std::vector<MoveBlock> blocks;
  for (uint32_t i = 0; i < kBlocks; ++i) {
    // Pages of a block are its own, as in an engine.
    blocks.push_back({reinterpret_cast<uint8_t*>(payloads.data()) + i * payload_bytes,
                      sums.data() + i * 64, pages.data() + i * 3, 5, kTokens});
  }
  MovePieces work;
  cache.describe(model, work);
  work.kind = kind;
  work.blocks = blocks.data();
  work.block_count = kBlocks;
  work.most_tokens = kTokens;
  work.some_layers = model.layers;
  if (seed % 3 != 0) {
    run_checked(work, runner);
  } else {
    MoveFewPieces few;
    few.pieces = work;
    std::copy(blocks.begin(), blocks.end(), few.blocks);
    for (uint32_t i = 0; i < kBlocks; ++i) few.first_pages[i] = i * 3;
    std::copy(pages.begin(), pages.end(), few.pages);
    run_checked(few, runner);
  }
  Buffer wrote = bytes_of(payloads);
  append(wrote, bytes_of(sums));
  append(wrote, cache.bytes);
  return wrote;
}

Buffer fetch(uint64_t seed, const Runner& runner) {
  Random random(seed);
  const Model model{2, 2, 3, 80, RowOrder::HEADS_FIRST};
  constexpr uint32_t kTokens = 90, kBlockTokens = 40, kMost = 30;
  std::vector<Bytes16> payload(3 * model.payload_bytes(kBlockTokens) / sizeof(Bytes16));
  for (Bytes16& word : payload) word = {random.next(), random.next()};
  auto* const first = reinterpret_cast<uint8_t*>(payload.data());
  const std::vector<const uint8_t*> payloads = {first, nullptr,
                                                first + 2 * model.payload_bytes(kBlockTokens)};
  Cache cache(random, model, 16, 2, 16);
  const std::vector<uint32_t> pages = {1, 0};
  std::vector<uint32_t> tokens(model.heads * kMost);
  for (uint32_t& token : tokens) token = static_cast<uint32_t>(random.below(kTokens + 3));
  std::vector<uint32_t> absent(1);
  FetchTokens work;
  cache.describe(model, work);
  work.payloads = payloads.data();
  work.tokens = kTokens;
  work.block_tokens = kBlockTokens;
  work.pages = pages.data();
  work.lists.tokens = reinterpret_cast<const uint8_t*>(tokens.data());
  work.lists.list_stride_bytes = kMost * sizeof(uint32_t);
  work.lists.head_lists = 1;
  work.lists.most_tokens = kMost;
  work.some_layers = model.layers;
  work.absent = absent.data();
  run_checked(work, runner);
  Buffer wrote = cache.bytes;
  append(wrote, bytes_of(absent));
  return wrote;
}

float random_float(Random& random) {  // of -1 to 1
  return static_cast<float>(random.below(1u << 24)) * 0x1p-23f - 1;
}

Buffer attend(uint32_t channels, uint32_t queries_per_head, uint64_t seed, const Runner& runner) {
  Random random(seed);
  constexpr uint32_t kHeads = 2, kTokens = 21, kSplits = 3;
  const uint32_t query_heads = kHeads * queries_per_head, row_bytes = channels * 2;
  const auto numbers = [&](size_t count) {
    std::vector<Bytes16> all(count * 2 / sizeof(Bytes16));
    auto* const at = reinterpret_cast<uint16_t*>(all.data());
    for (size_t i = 0; i < count; ++i)
      at[i] = static_cast<uint16_t>(bf16_from_float(random_float(random)));
    return all;
  };
  const auto queries = numbers(size_t{query_heads} * channels);
  const auto keys = numbers(size_t{2} * kTokens * kHeads * channels);
  const auto values = numbers(size_t{2} * kTokens * kHeads * channels);
  AttendSpan span;
  span.token_stride_bytes = row_bytes;
  span.head_stride_bytes = size_t{kTokens} * row_bytes;
  span.tokens = kTokens;
  std::vector<AttendSpan> spans(2, span);
  for (uint32_t i = 0; i < 2; ++i) {
    const size_t at = size_t{i} * kHeads * kTokens * row_bytes;
    spans[i].keys = reinterpret_cast<const uint8_t*>(keys.data()) + at;
    spans[i].values = reinterpret_cast<const uint8_t*>(values.data()) + at;
  }
  const std::vector<AttendSplit> splits = {{0, 0, 0, 10}, {0, 0, 10, 20}, {0, 1, 9, 12}};
  std::vector<Bytes16> outputs(size_t{kSplits} * query_heads * channels / 4);
  std::vector<float> log_sum_exps(size_t{kSplits} * query_heads, 9);
  Attend work;
  work.queries = reinterpret_cast<const uint8_t*>(queries.data());
  work.query_head_stride_bytes = row_bytes;
  work.query_stride_bytes = size_t{query_heads} * row_bytes;
  work.sequences = 1;
  work.spans = spans.data();
  work.splits = splits.data();
  work.span_count = 2;
  work.split_count = kSplits;
  work.heads = kHeads;
  work.queries_per_head = queries_per_head;
  work.key_channels = work.value_channels = channels;
  work.scale = 1;
  work.outputs = reinterpret_cast<float*>(outputs.data());
  work.log_sum_exps = log_sum_exps.data();
  run_checked(work, runner);
  Buffer wrote = bytes_of(outputs);
  append(wrote, bytes_of(log_sum_exps));
  return wrote;
}

Buffer merge(uint64_t seed, const Runner& runner) {
  Random random(seed);
  constexpr uint32_t kSequences = 3, kHeads = 2, kChannels = 136, kPartials = 80;
  const std::vector<uint32_t> first_partials = {0, 70, 70, kPartials};
  const auto numbers = [&](size_t count) {
    std::vector<Bytes16> all(count / 4 + 1);
    auto* const at = reinterpret_cast<float*>(all.data());
    for (size_t i = 0; i < count; ++i) at[i] = random_float(random);
    return all;
  };
  const auto many = numbers(kPartials * kHeads * kChannels), many_lse = numbers(kPartials * kHeads);
  const auto one = numbers(kSequences * kHeads * kChannels), one_lse = numbers(kSequences * kHeads);
  std::vector<Bytes16> outputs(kSequences * kHeads * kChannels / 4);
  std::vector<float> log_sum_exps(kSequences * kHeads, 9);
  MergePartials work;
  work.sources[0] = {reinterpret_cast<const float*>(many.data()),
                     reinterpret_cast<const float*>(many_lse.data()), first_partials.data()};
  work.sources[1] = {reinterpret_cast<const float*>(one.data()),
                     reinterpret_cast<const float*>(one_lse.data()), nullptr};
  work.source_count = 2;
  work.sequences = kSequences;
  work.heads = kHeads;
  work.channels = kChannels;
  work.outputs = outputs.data();
  work.log_sum_exps = log_sum_exps.data();
  run_checked(work, runner);
  Buffer wrote = bytes_of(outputs);
  append(wrote, bytes_of(log_sum_exps));
  return wrote;
}

struct Kernel {
  const char* name;
  std::function<Buffer(uint64_t seed, const Runner&)> run;
};

/// All kernels of this source, in all their uses of lanes.
std::vector<Kernel> kernels() {
  std::vector<Kernel> all;
  constexpr RebuildShape kShapes[] = {
      {NumberFormat::BF16, true, 128, 64, 20},   // several tokens in a step, whole heads
      {NumberFormat::BF16, true, 2048, 256, 2},  // several steps in a token
      {NumberFormat::BF16, false, 1032, 0, 3},   // the same, and centres that stay
      {NumberFormat::FP16, true, 36, 12, 50},    // no row begins at a word
      {NumberFormat::FP8_E4M3, true, 72, 24, 33}, {NumberFormat::FP8_E5M2, false, 64, 64, 40},
      {NumberFormat::INT8, true, 200, 0, 21}};
  for (const RebuildShape& shape : kShapes)
    all.push_back({"rebuild_tiles", [shape](uint64_t seed, const Runner& runner) {
                     return rebuild(shape, seed, runner);
                   }});
  for (const MoveKind kind : {MoveKind::TO_PAYLOAD, MoveKind::FROM_PAYLOAD, MoveKind::SUM_ONLY}) {
    for (const uint32_t unit : {16u, 4u})
      all.push_back({"move_pieces", [kind, unit](uint64_t seed, const Runner& runner) {
                       return move(kind, unit, seed, runner);
                     }});
  }
  all.push_back({"fetch_tokens", fetch});
  for (const uint32_t channels : {64u, 128u, 256u, 512u, 576u}) {
    for (const uint32_t queries : {1u, 3u, 9u})
      all.push_back({"attend", [channels, queries](uint64_t seed, const Runner& runner) {
                       return attend(channels, queries, seed, runner);
                     }});
  }
  all.push_back({"merge_partials", merge});
  return all;
}

TEST(KernelsOnFibers, GiveTheBytesOfALoopAndRaceNowhere) {
  uint64_t switches = 0;
  for (const Kernel& kernel : kernels()) {
    for (uint64_t seed = 0; seed < 6; ++seed) {
      SCOPED_TRACE(fmt::format("{}, seed {}", kernel.name, seed));
      const Buffer wanted = kernel.run(seed, on_loop);
      Buffer got;
      const auto outcome =
          fibers::run({.seed = seed * 1000}, [&] { got = kernel.run(seed, on_fibers); });
      EXPECT_TRUE(got == wanted);
      EXPECT_EQ(outcome.faults, std::vector<std::string>());
      switches += outcome.switches;
      if (HasFailure()) return;
    }
  }
  EXPECT_GT(switches, 100'000u);
}

/// "rebuild_tiles.h:172", for the calls in the source of kernels.
std::set<std::string> calls_in_text() {
  std::set<std::string> calls;
  const std::regex call(R"(Warp::(sync|sum|largest|running_sum|of_lane)\(|keep_order\(\))");
  for (const auto& entry : std::filesystem::directory_iterator(BOWHEAD_KERNEL_SOURCES)) {
    const std::string name = entry.path().filename().string();
    if (entry.path().extension() != ".h" || name == "warp.h" ||
        name.find("_lanes.h") != std::string::npos)
      continue;
    std::ifstream in(entry.path());
    std::string line;
    for (int number = 1; std::getline(in, line); ++number) {
      const std::string code = line.substr(0, line.find("//"));
      if (std::regex_search(code, call)) calls.insert(fmt::format("{}:{}", name, number));
    }
  }
  return calls;
}

/// Whether a test fails without the call at `site`.
bool is_noticed(const std::string& site, const std::vector<Kernel>& all) {
  for (uint64_t seed = 0; seed < 4; ++seed) {
    for (const Kernel& kernel : all) {
      const Buffer wanted = kernel.run(seed, on_loop);
      Buffer got;
      const auto outcome =
          fibers::run({.seed = seed, .omitted = site}, [&] { got = kernel.run(seed, on_fibers); });
      if (!outcome.faults.empty() || got != wanted) return true;
    }
  }
  return false;
}

TEST(KernelsOnFibers, NeedEachOfTheirSyncsAndExchanges) {
  const std::vector<Kernel> all = kernels();
  std::set<std::string> reached;
  std::map<std::string, std::vector<Kernel>> kernels_by_site;
  for (const Kernel& kernel : all) {
    const auto outcome = fibers::run({}, [&] { (void)kernel.run(0, on_fibers); });
    for (const std::string& site : outcome.sites) {
      reached.insert(site.substr(0, site.rfind(':')));
      kernels_by_site[site].push_back(kernel);
    }
  }
  EXPECT_EQ(reached, calls_in_text()) << "each call is reached here, or a kernel is missing";
  EXPECT_GE(kernels_by_site.size(), 15u);
  for (const auto& [site, reaching] : kernels_by_site)
    EXPECT_TRUE(is_noticed(site, reaching)) << site << " can be deleted, and nothing fails";
}

}  // namespace
}  // namespace bowhead::gpu
