// SPDX-License-Identifier: Apache-2.0
#include "bench/topk_rows.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <nlohmann/json.hpp>
#include <numeric>
#include <span>

#include "base/assert.h"
#include "bench/report.h"
#include "bench/team.h"
#include "compression/lines.h"
#include "ndp/operations.h"
#include "ndp/plane_keys.h"
#include "tools/program/machine.h"

namespace bowhead::bench {
namespace {

using namespace compression;
using namespace tensors;
using ndp::Hit;
using ndp::PlaneAnswer;
using ndp::PlaneKeys;
using ndp::Reading;

constexpr uint64_t kBlockBytes = 64u << 10;
constexpr double kExactShare = 0.015;
constexpr uint32_t kExactFrom = 1024, kNearFrom = 1536;  // positions of queries
constexpr uint32_t kNearWanted = 64;
constexpr double kBits[] = {1, 1.5, 2, 2.15, 2.5, 3, 3.15, 4};
constexpr size_t kMostPositions = 24;  // of a head, for each figure

struct Figure {
  double sum = 0, worst = 0;
  size_t count = 0;

  void add(double value) {
    sum += value;
    worst = std::max(worst, value);
    ++count;
  }
  double mean() const { return sum / static_cast<double>(count); }
};

struct ExactRow {
  Figure share,
      together,  ///< share of the bytes of the visible keys, for a query; for a group, counted once
      one_pass;  ///< and read in one pass
};
struct NearRow {
  Figure recall, mass, of_all, bits;
  std::vector<double> rates;
};
/// Tokens per second: for opening a frame; otherwise for a call with the queries of a group.
struct Rates {
  std::vector<double> open, decode, rows, one_pass, fewest_bytes;
};

template <class Call>
double rate_of(uint32_t tokens, const Call& call) {
  const uint64_t begin = now_ns();
  call();
  return tokens * 1e9 / static_cast<double>(std::max<uint64_t>(now_ns() - begin, 1));
}

/// One head of keys in frames, each at the start of a page as in a pool, and its scores.
class Head {
 public:
  Head(const KvTensor& keys, uint32_t head, const Rotary& rotary, Rates& rates) : keys_(keys) {
    Shape shape{keys.number, 1, 0, keys.channels(), rotary};
    const auto most = static_cast<uint32_t>(kBlockBytes / keys.row_bytes());
    ConstBytes values = keys.head(head);
    for (size_t i = 0; i < values.size(); i += 2)
      values_.push_back(value_of(keys.number, values[i] | uint32_t{values[i + 1]} << 8));
    Encoder encoder(Profile::FAST);
    for (uint32_t first = 0; first < keys.tokens(); first += shape.tokens) {
      shape.tokens = std::min(most, keys.tokens() - first);
      constexpr size_t kPage = 4096;
      auto& room = frames_.emplace_back(frame_bound(shape) + kPage);
      const size_t at = kPage - reinterpret_cast<uintptr_t>(room.data()) % kPage;
      const Bytes frame = Bytes(room).subspan(at);
      const size_t size = encoder.encode(shape, values.first(shape.size_bytes()), frame).value();
      rates.open.push_back(rate_of(shape.tokens, [&] {
        blocks_.push_back(PlaneKeys::open(frame.first(size), 0, first).value());
      }));
      values = values.subspan(shape.size_bytes());
    }
    for (const PlaneKeys& block : blocks_) pointers_.push_back(&block);
  }

  std::span<const PlaneKeys* const> blocks() const { return pointers_; }
  /// The alternative: decodes all frames with one of the first tokens, then searches rows.
  void search_rows(const ndp::Queries& queries, uint32_t seen, uint32_t k, Rates& rates) {
    rows_.resize(keys_.head(0).size());
    std::vector<ndp::KeySpan> blocks;
    for (const PlaneKeys& block : blocks_) {
      if (block.first_token() < seen) blocks.push_back({block.first_token(), rows_of(block)});
    }
    rates.decode.push_back(rate_of(seen, [&] {
      for (size_t b = 0; b < blocks.size(); ++b)
        BOWHEAD_ASSERT(decoder_.decode(blocks_[b].frame(), bytes_of(blocks_[b])) == Status::OK);
    }));
    rates.rows.push_back(rate_of(seen, [&] {
      auto best = ndp::TopK::of(queries.count(), k).value();
      BOWHEAD_ASSERT(best.add(queries, blocks, ndp::Visible{.end = seen}));
      BOWHEAD_ASSERT(!best.hits(0).empty());
    }));
  }
  /// Scores of the first tokens.
  std::vector<double> scores(std::span<const float> query, uint32_t count) const {
    const double scale = static_cast<double>(scale_of(keys_.channels()));
    std::vector<double> scores(count);
    for (uint32_t t = 0; t < count; ++t) {
      for (uint32_t c = 0; c < query.size(); ++c)
        scores[t] += static_cast<double>(query[c]) * values_[size_t{t} * query.size() + c];
      scores[t] *= scale;
    }
    return scores;
  }
  static float scale_of(uint32_t channels) { return 1 / std::sqrt(static_cast<float>(channels)); }

 private:
  Bytes bytes_of(const PlaneKeys& block) {
    return Bytes(rows_).subspan(block.first_token() * keys_.row_bytes(),
                                block.tokens() * keys_.row_bytes());
  }
  ndp::Rows rows_of(const PlaneKeys& block) {
    return {keys_.number, keys_.channels(), block.tokens(), bytes_of(block).data(),
            keys_.row_bytes()};
  }

  const KvTensor& keys_;
  Decoder decoder_;
  Lines<uint8_t> rows_;  // decoded
  std::vector<double> values_;
  std::vector<Lines<uint8_t>> frames_;
  std::vector<PlaneKeys> blocks_;
  std::vector<const PlaneKeys*> pointers_;
};

/// The best by score; of equal ones the first.
std::vector<uint32_t> best_of(const std::vector<double>& scores, uint32_t k) {
  std::vector<uint32_t> order(scores.size());
  std::iota(order.begin(), order.end(), 0u);
  std::sort(order.begin(), order.end(), [&](uint32_t a, uint32_t b) {
    const auto x = static_cast<float>(scores[a]), y = static_cast<float>(scores[b]);
    return x != y ? x > y : a < b;
  });
  order.resize(k);
  return order;
}

class TopKRows {
 public:
  TopKRows(const KvTensor& keys, const KvTensor& queries, const std::vector<uint32_t>& positions)
      : keys_(keys), queries_(queries), positions_(positions) {
    exact_at_ = sampled(kExactFrom);
    near_at_ = sampled(kNearFrom);
  }

  Result<void> run() {
    const Rotary rotary = find_rotary(keys_);
    for (uint32_t h = 0; h < keys_.layers() * keys_.heads(); ++h) {
      Head head(keys_, h, rotary, rates_);
      for (const size_t at : exact_at_) {
        if (auto good = measure_exact(head, h, at); !good) return good;
      }
      for (const size_t at : near_at_) measure_near(head, h, at);
    }
    return {};
  }
  void print(bool json, const std::string& command) const;
  bool any() const { return !exact_at_.empty() && !near_at_.empty(); }

 private:
  std::vector<size_t> sampled(uint32_t from) const {
    std::vector<size_t> all, some;
    for (size_t i = 0; i < positions_.size(); ++i) {
      if (positions_[i] >= from) all.push_back(i);
    }
    const size_t every = (all.size() + kMostPositions - 1) / kMostPositions;
    for (size_t i = 0; i < all.size(); i += every) some.push_back(all[i]);
    return some;
  }
  uint32_t group() const { return queries_.heads() / keys_.heads(); }
  /// The queries of a group of heads at one position.
  std::vector<float> queries_at(uint32_t head, size_t at) const {
    std::vector<float> values;
    for (uint32_t q = 0; q < group(); ++q) {
      const ConstBytes bytes = queries_.head(size_t{head} * group() + q)
                                   .subspan(at * queries_.row_bytes(), queries_.row_bytes());
      for (size_t i = 0; i < bytes.size(); i += 2)
        values.push_back(
            static_cast<float>(value_of(queries_.number, bytes[i] | uint32_t{bytes[i + 1]} << 8)));
    }
    return values;
  }
  ndp::Queries ready(const std::vector<float>& values) const {
    return ndp::Queries::of(values, group(), keys_.channels(), Head::scale_of(keys_.channels()),
                            keys_.number)
        .value();
  }
  Result<void> measure_exact(Head& head, uint32_t h, size_t at);
  void measure_near(const Head& head, uint32_t h, size_t at);
  void print_near(const NearRow& row, double bits, bool one_pass, const nlohmann::json* line) const;
  void print_rates(bool json, nlohmann::json line) const;

  const KvTensor& keys_;
  const KvTensor& queries_;
  const std::vector<uint32_t>& positions_;
  std::vector<size_t> exact_at_, near_at_;  // of positions
  ExactRow exact_;
  NearRow near_[std::size(kBits)], near_at_once_[std::size(kBits)];  // in one pass
  Rates rates_;
};

Result<void> TopKRows::measure_exact(Head& head, uint32_t h, size_t at) {
  const uint32_t seen = positions_[at] + 1;
  const auto k = static_cast<uint32_t>(std::ceil(kExactShare * seen));
  const std::vector<float> values = queries_at(h, at);
  const ndp::Queries queries = ready(values);
  Result<PlaneAnswer> answer = PlaneAnswer(), fast = PlaneAnswer();
  rates_.one_pass.push_back(rate_of(seen, [&] {
    fast = ndp::exact_top_k(queries, head.blocks(), ndp::Visible{.end = seen}, k);
  }));
  rates_.fewest_bytes.push_back(rate_of(seen, [&] {
    answer = ndp::exact_top_k(queries, head.blocks(), ndp::Visible{.end = seen}, k,
                              Reading::FEWEST_BYTES);
  }));
  if (!answer) return answer.error();
  if (!fast) return fast.error();
  head.search_rows(queries, seen, k, rates_);
  const double plain = static_cast<double>(seen * keys_.row_bytes());
  exact_.one_pass.add(static_cast<double>(fast->bytes_read_together) / plain);
  for (uint32_t q = 0; q < group(); ++q) {
    const std::span query =
        std::span(values).subspan(size_t{q} * keys_.channels(), keys_.channels());
    const auto want = best_of(head.scores(query, seen), k);
    for (uint32_t i = 0; i < k; ++i) {
      if (answer->hits[q][i].token != want[i] || fast->hits[q][i].token != want[i])
        return Error{Status::DAMAGED, "the keys found are not those with the best scores"};
    }
    exact_.share.add(static_cast<double>(answer->bytes_read[q]) / plain);
  }
  exact_.together.add(static_cast<double>(answer->bytes_read_together) / plain);
  return {};
}

void TopKRows::measure_near(const Head& head, uint32_t h, size_t at) {
  const uint32_t seen = positions_[at] + 1, channels = keys_.channels();
  const std::vector<float> values = queries_at(h, at);
  const ndp::Queries queries = ready(values);
  std::vector<std::vector<double>> weights;  // softmax, by query
  std::vector<std::vector<uint32_t>> wanted;
  for (uint32_t q = 0; q < group(); ++q) {
    auto& scores = weights.emplace_back(
        head.scores(std::span(values).subspan(size_t{q} * channels, channels), seen));
    wanted.push_back(best_of(scores, kNearWanted));
    const double most = scores[wanted[q][0]];
    double sum = 0;
    for (double& score : scores) sum += score = std::exp(score - most);
    for (double& score : scores) score /= sum;
  }
  for (size_t i = 0; i < 2 * std::size(kBits); ++i) {
    const size_t b = i / 2;
    const bool one_pass = i % 2 != 0;
    NearRow& row = one_pass ? near_at_once_[b] : near_[b];
    Result<PlaneAnswer> answer = PlaneAnswer();
    row.rates.push_back(rate_of(seen, [&] {
      answer = ndp::approximate_top_k(queries, head.blocks(), ndp::Visible{.end = seen},
                                      kNearWanted, kBits[b] * channels / 8,
                                      one_pass ? Reading::ONE_PASS : Reading::FEWEST_BYTES);
    }));
    for (uint32_t q = 0; q < group(); ++q) {
      double found = 0, mass = 0, all = 0, most = 0;
      for (const Hit& hit : answer->hits[q]) {
        const bool good = std::count(wanted[q].begin(), wanted[q].end(), hit.token) != 0;
        found += good ? 1 : 0;
        mass += good ? weights[q][hit.token] : 0;
        all += weights[q][hit.token];
      }
      for (const uint32_t token : wanted[q]) most += weights[q][token];
      row.recall.add(found / kNearWanted);
      row.mass.add(mass / most);
      row.of_all.add(all);
      row.bits.add(static_cast<double>(answer->bytes_read[q]) * 8 / channels / seen);
    }
  }
}

/// Prints medians.
void TopKRows::print_rates(bool json, nlohmann::json line) const {
  std::vector<double> both;
  for (size_t i = 0; i < rates_.rows.size(); ++i)
    both.push_back(1 / (1 / rates_.decode[i] + 1 / rates_.rows[i]));
  std::vector<std::pair<std::string, const std::vector<double>*>> all = {
      {"open a frame", &rates_.open},          {"decode", &rates_.decode},
      {"decode, search rows", &both},          {"search rows", &rates_.rows},
      {"exactly, one pass", &rates_.one_pass}, {"exactly, fewest bytes", &rates_.fewest_bytes}};
  for (size_t b = 0; b < std::size(kBits); ++b)
    all.emplace_back(fmt::format("search in {} bits", kBits[b]), &near_[b].rates);
  for (size_t b = 0; b < std::size(kBits); ++b)
    all.emplace_back(fmt::format("{} bits, one pass", kBits[b]), &near_at_once_[b].rates);
  if (!json)
    fmt::print("  speed, one thread, queries in groups of {}: medians\n  {:<21} {:>12} {:>18}\n",
               group(), "", "M tokens/s", "GB/s of decoded");
  for (const auto& [step, rates] : all) {
    const Summary rate = summarize(*rates);
    const auto bytes = static_cast<double>(keys_.row_bytes());
    if (json) {
      line["step"] = step;
      line["tokens_per_s"] = {{"median", rate.median}, {"min", rate.min}, {"max", rate.max}};
      line["decoded_bytes_per_s"] = rate.median * bytes;
      fmt::print("{}\n", line.dump());
    } else {
      fmt::print("  {:<21} {:>12.2f} {:>18.3f}\n", step, rate.median * 1e-6,
                 rate.median * bytes * 1e-9);
    }
  }
}

/// As JSON with the members of `line`, if it is given.
void TopKRows::print_near(const NearRow& row, double bits, bool one_pass,
                          const nlohmann::json* line) const {
  if (line == nullptr) {
    fmt::print("  {:<15} {:>20} {:>8.3f} {:>15.3f} {:>12.3f}\n",
               fmt::format("{:g}{}", bits, one_pass ? ", one pass" : ""),
               fmt::format("{:.2f} ({:.2f})", row.bits.mean(), row.bits.worst), row.recall.mean(),
               row.mass.mean(), row.of_all.mean());
    return;
  }
  auto near = *line;
  near["reading"] = one_pass ? "one pass" : "fewest bytes";
  near["keys_wanted"] = kNearWanted;
  near["queries"] = row.recall.count;
  near["budget_bits_per_value"] = bits;
  near["bits_read_per_value"] = {{"mean", row.bits.mean()}, {"max", row.bits.worst}};
  near["recall"] = row.recall.mean();
  near["attention_of_wanted"] = row.mass.mean();
  near["attention"] = row.of_all.mean();
  fmt::print("{}\n", near.dump());
}

void TopKRows::print(bool json, const std::string& command) const {
  const char* number = number_name(keys_.number);
  const auto line = [&](const char* what) {
    return nlohmann::json{{"bench", "top_k"},
                          {"set", keys_.set},
                          {"number", number},
                          {"what", what},
                          {"commit", this_machine().commit},
                          {"command", command}};
  };
  if (json) {
    auto exact = line("exact");
    exact["keys_wanted_share"] = kExactShare;
    exact["queries"] = exact_.share.count;
    exact["share_of_bytes"] = {{"mean", exact_.share.mean()}, {"max", exact_.share.worst}};
    exact["share_of_bytes_in_groups"] = {{"mean", exact_.together.mean()},
                                         {"max", exact_.together.worst}};
    exact["share_of_bytes_in_one_pass"] = {{"mean", exact_.one_pass.mean()},
                                           {"max", exact_.one_pass.worst}};
    fmt::print("{}\n", exact.dump());
  } else {
    fmt::print(
        "{} {}: the best 1.5 % of keys exactly, {} queries from position {} on: {:.3f} of the "
        "bytes of the keys\n  (at most {:.3f}); of queries in groups of {} together {:.3f} (at "
        "most "
        "{:.3f}), in one pass {:.3f} (at most {:.3f})\n  the best {} within a budget, {} queries "
        "from position {} on\n"
        "  {:<15} {:>20} {:>8} {:>15} {:>12}\n",
        keys_.set, number, exact_.share.count, kExactFrom, exact_.share.mean(), exact_.share.worst,
        group(), exact_.together.mean(), exact_.together.worst, exact_.one_pass.mean(),
        exact_.one_pass.worst, kNearWanted, near_[0].recall.count, kNearFrom, "bits per value",
        "read: mean (most)", "recall", "mass of the best", "of all mass");
  }
  const auto near = line("approximate");
  for (const bool one_pass : {false, true}) {
    for (size_t b = 0; b < std::size(kBits); ++b)
      print_near(one_pass ? near_at_once_[b] : near_[b], kBits[b], one_pass,
                 json ? &near : nullptr);
  }
  auto speed = line("speed");
  speed["queries_of_a_call"] = group();
  print_rates(json, std::move(speed));
}

}  // namespace

Result<void> measure_top_k(const KvTensor& keys, const KvTensor& queries,
                           const std::vector<uint32_t>& positions, bool json,
                           const std::string& command) {
  TopKRows rows(keys, queries, positions);
  if (!rows.any()) return {};
  if (auto good = rows.run(); !good) return good;
  rows.print(json, command);
  return {};
}

}  // namespace bowhead::bench
