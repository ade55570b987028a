// SPDX-License-Identifier: Apache-2.0
#include "bench/recall_bench.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <iterator>
#include <nlohmann/json.hpp>
#include <numeric>
#include <span>
#include <vector>

#include "bench/report.h"
#include "bench/topk_rows.h"
#include "tools/program/kv_data.h"
#include "tools/program/machine.h"

namespace bowhead::bench {
namespace {

using namespace compression;
using namespace tensors;

constexpr uint32_t kWanted = 64;  // keys of a query
constexpr uint32_t kMostPlanes = 6;
constexpr uint64_t kBlockBytes = 64u << 10;

/// For one number of planes: sums over blocks, and one mean per query head.
struct Precision {
  uint64_t bytes_read = 0;
  std::vector<double> recalls;
};

struct RecallReport {
  uint64_t values = 0, frames_bytes = 0, queries = 0;
  uint32_t block_tokens = 0;
  std::array<Precision, kMostPlanes> precisions;
};

std::vector<float> floats_of(NumberFormat kind, ConstBytes bytes) {
  std::vector<float> values(bytes.size() / 2);
  for (size_t i = 0; i < values.size(); ++i)
    values[i] = static_cast<float>(value_of(kind, bytes[2 * i] | uint32_t{bytes[2 * i + 1]} << 8));
  return values;
}

/// The indices of the highest-scoring of the first `count` keys, sorted. (Dividing scores by the
/// root of the number of channels would not change the order.)
std::vector<uint32_t> best_keys(std::span<const float> query, const std::vector<float>& keys,
                                uint32_t count) {
  std::vector<float> scores(count);
  for (uint32_t k = 0; k < count; ++k)
    scores[k] =
        std::inner_product(query.begin(), query.end(), keys.begin() + k * query.size(), 0.0f);
  std::vector<uint32_t> order(count);
  std::iota(order.begin(), order.end(), 0);
  std::nth_element(order.begin(), order.begin() + kWanted, order.end(),
                   [&](uint32_t a, uint32_t b) {
                     return scores[a] != scores[b] ? scores[a] > scores[b] : a < b;
                   });
  order.resize(kWanted);
  std::sort(order.begin(), order.end());
  return order;
}

size_t common(const std::vector<uint32_t>& a, const std::vector<uint32_t>& b) {
  std::vector<uint32_t> both;
  std::set_intersection(a.begin(), a.end(), b.begin(), b.end(), std::back_inserter(both));
  return both.size();
}

/// Keys and the queries that attend to them, of one number format.
class Recall {
 public:
  /// Queries that see no more keys than wanted are skipped.
  Recall(const KvTensor& keys, const KvTensor& queries, const std::vector<uint32_t>& positions)
      : keys_(keys), queries_(queries), positions_(positions), rotary_(find_rotary(keys)) {
    report_.values = keys_.values.size() / element_bytes(keys_.number);
    report_.block_tokens =
        static_cast<uint32_t>(std::min<uint64_t>(kBlockBytes / keys_.row_bytes(), keys_.tokens()));
    for (const uint32_t position : positions_) report_.queries += position >= kWanted ? 1 : 0;
  }

  Result<RecallReport> run() {
    for (uint32_t head = 0; head < keys_.layers() * keys_.heads(); ++head) {
      const ConstBytes exact = keys_.head(head);
      if (const Status status = decode_prefixes(exact); status != Status::OK) return status;
      const std::vector<float> keys = floats_of(keys_.number, exact);
      const uint32_t group = queries_.heads() / keys_.heads();
      for (uint32_t q = 0; q < group; ++q) measure_queries(keys, head * group + q);
    }
    return report_;
  }

 private:
  /// Decodes a head, block by block, into floats for each number of planes.
  Status decode_prefixes(ConstBytes head) {
    Shape shape{keys_.number, 1, report_.block_tokens, keys_.channels(), rotary_};
    std::vector<uint8_t> frame(frame_bound(shape)), decoded(shape.size_bytes());
    for (auto& prefix : prefixes_) prefix.clear();
    while (!head.empty()) {
      shape.tokens =
          static_cast<uint32_t>(std::min<uint64_t>(shape.tokens, head.size() / keys_.row_bytes()));
      const Bytes out = Bytes(decoded).first(shape.size_bytes());
      const auto size = encoder_.encode(shape, head.first(out.size()), frame);
      if (!size) return size.status();
      report_.frames_bytes += *size;
      for (uint32_t planes = 1; planes <= kMostPlanes; ++planes) {
        ReadReport read;
        const Status status =
            decoder_.decode_prefix(ConstBytes(frame).first(*size), planes, out, &read);
        if (status != Status::OK) return status;
        report_.precisions[planes - 1].bytes_read += read.bytes_read;
        const auto values = floats_of(keys_.number, out);
        prefixes_[planes - 1].insert(prefixes_[planes - 1].end(), values.begin(), values.end());
      }
      head = head.subspan(out.size());
    }
    return Status::OK;
  }

  /// Runs one head of queries against its head of keys.
  void measure_queries(const std::vector<float>& keys, uint32_t head) {
    const std::vector<float> queries = floats_of(queries_.number, queries_.head(head));
    std::array<size_t, kMostPlanes> found{};
    for (size_t i = 0; i < positions_.size(); ++i) {
      if (positions_[i] < kWanted) continue;
      const std::span query(queries.data() + i * keys_.channels(), keys_.channels());
      const auto wanted = best_keys(query, keys, positions_[i] + 1);
      for (uint32_t p = 0; p < kMostPlanes; ++p)
        found[p] += common(wanted, best_keys(query, prefixes_[p], positions_[i] + 1));
    }
    for (uint32_t p = 0; p < kMostPlanes; ++p)
      report_.precisions[p].recalls.push_back(static_cast<double>(found[p]) /
                                              static_cast<double>(report_.queries * kWanted));
  }

  const KvTensor& keys_;
  const KvTensor& queries_;
  const std::vector<uint32_t>& positions_;
  const Rotary rotary_;
  Encoder encoder_{Profile::DENSE};
  Decoder decoder_;
  std::array<std::vector<float>, kMostPlanes> prefixes_;
  RecallReport report_;
};

void print_report(const RecallBenchOptions& options, const KvTensor& keys,
                  const RecallReport& report) {
  const char* number = number_name(keys.number);
  if (!options.json)
    fmt::print(
        "{} {}: best {} keys of {} queries of each of {} heads, frames of {} tokens\n"
        "  {:<9} {:>20} {:>15} {:>24}\n",
        keys.set, number, kWanted, report.queries, report.precisions[0].recalls.size(),
        report.block_tokens, "planes", "bits read per value", "of the frames",
        "recall (least..most head)");
  for (uint32_t planes = 1; planes <= kMostPlanes; ++planes) {
    const Precision& precision = report.precisions[planes - 1];
    const auto& heads = precision.recalls;
    const auto [least, most] = std::minmax_element(heads.begin(), heads.end());
    const double mean =
        std::accumulate(heads.begin(), heads.end(), 0.0) / static_cast<double>(heads.size());
    const auto read = static_cast<double>(precision.bytes_read);
    const double bits = read * 8 / static_cast<double>(report.values);
    const double share = read / static_cast<double>(report.frames_bytes);
    if (!options.json) {
      fmt::print("  {:<9} {:>20.2f} {:>15.3f} {:>25}\n",
                 planes == 1 ? "sign" : fmt::format("sign + {}", planes - 1), bits, share,
                 fmt::format("{:.3f} ({:.3f}..{:.3f})", mean, *least, *most));
      continue;
    }
    const nlohmann::json line = {{"bench", "recall"},
                                 {"set", keys.set},
                                 {"number", number},
                                 {"keys_wanted", kWanted},
                                 {"queries", report.queries},
                                 {"heads", heads.size()},
                                 {"block_tokens", report.block_tokens},
                                 {"planes", planes},
                                 {"bits_read_per_value", bits},
                                 {"share_of_frames", share},
                                 {"recall", {{"mean", mean}, {"min", *least}, {"max", *most}}},
                                 {"commit", this_machine().commit},
                                 {"command", options.command}};
    fmt::print("{}\n", line.dump());
  }
}

Result<void> measure(const RecallBenchOptions& options) {
  const auto sets = read_kv_data(options.data);
  if (!sets) return sets.error();
  bool some = false;
  for (const KvSet& set : *sets) {
    for (const KvTensor& keys : set.tensors) {
      const KvTensor* queries = find_tensor(set, KvRole::QUERIES, keys.number);
      if (keys.role != KvRole::KEYS || queries == nullptr) continue;
      if (auto result = check_queries(set, keys, *queries); !result) return result;
      const auto report = Recall(keys, *queries, set.query_positions).run();
      if (!report) return Error{report.status(), set.name + ": its frames do not decode"};
      if (report->queries == 0) continue;
      print_report(options, keys, *report);
      if (auto good =
              measure_top_k(keys, *queries, set.query_positions, options.json, options.command);
          !good)
        return good;
      some = true;
    }
  }
  if (some) return {};
  return Error{Status::INVALID_ARGUMENT,
               fmt::format("{}: no set has keys, and queries that see more than {} of them",
                           options.data, kWanted)};
}

}  // namespace

int run_recall_bench(const RecallBenchOptions& options) {
  return exit_code_of([&] { return measure(options); });
}

}  // namespace bowhead::bench
