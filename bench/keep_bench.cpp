// SPDX-License-Identifier: Apache-2.0
#include "bench/keep_bench.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <deque>
#include <nlohmann/json.hpp>
#include <numeric>
#include <span>
#include <vector>

#include "bench/report.h"
#include "ndp/operations.h"
#include "tools/program/kv_data.h"
#include "tools/program/machine.h"

namespace bowhead::bench {
namespace {

using compression::ConstBytes;
using namespace tensors;

constexpr uint32_t kSinks = 4, kWindow = 32;
constexpr std::array<double, 3> kBudgets = {1.0 / 8, 1.0 / 4, 1.0 / 2};

enum Choice : size_t { RECENT, ACCUMULATED, WINDOW, BEST, kChoices };
struct ChoiceText {
  const char *name, *what;
};
constexpr ChoiceText kTexts[kChoices] = {
    {"recent", "the first 4 tokens and the most recent ones"},
    {"accumulated", "half most recent, half by the mass of all queries so far"},
    {"window", "the last 32 (at most half), then by the mass of the last 32 queries"},
    {"best", "by this query's own mass: the best possible"}};

/// For one choice and budget: sums over queries.
struct Loss {
  double error = 0, mass = 0;
};
using Losses = std::array<std::array<Loss, kBudgets.size()>, kChoices>;

struct KeepReport {
  uint64_t queries = 0, heads = 0;
  Losses losses{};
};

std::vector<uint32_t> best_by(const std::vector<float>& mass, uint32_t count, uint32_t most) {
  std::vector<uint32_t> order(count);
  std::iota(order.begin(), order.end(), 0);
  most = std::min(most, count);
  std::partial_sort(order.begin(), order.begin() + most, order.end(), [&](uint32_t a, uint32_t b) {
    return mass[a] != mass[b] ? mass[a] > mass[b] : a < b;
  });
  order.resize(most);
  return order;
}

/// `count` of `visible` tokens: the most recent ones, and of those before them the ones with most
/// mass.
std::vector<uint32_t> recent_and_heavy(const std::vector<float>& mass, uint32_t visible,
                                       uint32_t count, uint32_t recent) {
  recent = std::min(recent, count);
  auto kept = best_by(mass, visible - recent, count - recent);
  for (uint32_t token = visible - recent; token < visible; ++token) kept.push_back(token);
  return kept;
}

/// Keys, values and queries of one head of the cache.
class Head {
 public:
  Head(const KvTensor& keys, const KvTensor& values, const KvTensor& queries, uint32_t index,
       const std::vector<uint32_t>& positions)
      : keys_{keys.number,      keys.channels(), keys.tokens(), keys.head(index).data(),
              keys.row_bytes(), nullptr},
        values_{values.number,      values.channels(),
                values.tokens(),    values.head(index).data(),
                values.row_bytes(), nullptr},
        group_(queries.heads() / keys.heads()),
        positions_(positions),
        total_(keys.tokens(), 0.0f) {
    for (uint32_t q = 0; q < group_; ++q) queries_.push_back(queries.head(index * group_ + q));
  }

  /// Runs all queries in order; evaluates the last quarter of them.
  void run(KeepReport& report) {
    for (uint32_t i = 0; i < positions_.size(); ++i) {
      const auto queries = queries_at(i);
      const uint32_t visible = positions_[i] + 1;
      const auto full = attend(queries, all(visible));
      std::vector<float> mass(keys_.tokens);
      add_mass(queries, full, mass, visible);
      if (i >= positions_.size() / 4 * 3) judge(queries, full, mass, visible, report);
      for (uint32_t token = 0; token < visible; ++token) total_[token] += mass[token];
      window_.push_back(std::move(mass));
      if (window_.size() > kWindow) window_.pop_front();
    }
    ++report.heads;
  }

 private:
  ndp::Queries queries_at(uint32_t i) const {
    std::vector<float> values;
    const size_t row_bytes = keys_.row_bytes();
    for (const ConstBytes head : queries_) {
      for (uint32_t c = 0; c < keys_.channels; ++c) {
        const uint8_t* at = &head[i * row_bytes + c * 2];
        values.push_back(
            static_cast<float>(compression::value_of(keys_.number, at[0] | uint32_t{at[1]} << 8)));
      }
    }
    const float scale = 1 / std::sqrt(static_cast<float>(keys_.channels));
    return ndp::Queries::of(values, group_, keys_.channels, scale, keys_.number).value();
  }
  ndp::KvSpan all(uint32_t visible) const {
    ndp::KvSpan span{0, keys_, values_};
    span.keys.tokens = span.values.tokens = visible;
    return span;
  }
  static ndp::Attention attend(const ndp::Queries& queries, const ndp::KvSpan& span) {
    auto attention = ndp::Attention::of(queries.count(), span.values.channels).value();
    const auto done = attention.add(queries, {&span, 1}, {});
    BOWHEAD_ASSERT(done);
    return attention;
  }
  void add_mass(const ndp::Queries& queries, const ndp::Attention& attention,
                std::vector<float>& mass, uint32_t visible) const {
    std::vector<float> sums;
    for (uint32_t q = 0; q < group_; ++q) sums.push_back(attention.log_sum_exp(q));
    const ndp::KeySpan span{0, keys_};
    const auto done = ndp::add_mass(queries, {&span, 1}, ndp::Visible{.end = visible}, sums, mass);
    BOWHEAD_ASSERT(done);
  }

  std::vector<uint32_t> choose(Choice choice, const std::vector<float>& own, uint32_t visible,
                               uint32_t count) const {
    switch (choice) {
      case RECENT: {
        std::vector<uint32_t> kept;
        for (uint32_t t = 0; t < std::min(kSinks, count); ++t) kept.push_back(t);
        for (uint32_t t = visible - (count - std::min(kSinks, count)); t < visible; ++t)
          kept.push_back(t);
        return kept;
      }
      case ACCUMULATED:
        return recent_and_heavy(total_, visible, count, count / 2);
      case WINDOW: {
        std::vector<float> mass(visible);
        for (const auto& one : window_) {
          for (uint32_t t = 0; t < visible; ++t) mass[t] += one[t];
        }
        return recent_and_heavy(mass, visible, count, std::min(kWindow, count / 2));
      }
      default:
        return best_by(own, visible, count);
    }
  }

  void judge(const ndp::Queries& queries, const ndp::Attention& full, const std::vector<float>& own,
             uint32_t visible, KeepReport& report) const {
    for (size_t c = 0; c < kChoices; ++c) {
      for (size_t b = 0; b < kBudgets.size(); ++b) {
        const auto count = static_cast<uint32_t>(std::ceil(kBudgets[b] * visible));
        const auto kept = choose(static_cast<Choice>(c), own, visible, count);
        Loss& loss = report.losses[c][b];
        for (const uint32_t token : kept) loss.mass += own[token];
        loss.error += error_of(queries, full, kept);
      }
    }
    report.queries += group_;
  }

  /// Sum over the queries of |output of the kept tokens - output| / |output|.
  double error_of(const ndp::Queries& queries, const ndp::Attention& full,
                  const std::vector<uint32_t>& kept) const {
    std::vector<std::byte> keys(kept.size() * keys_.row_bytes());
    std::vector<std::byte> values(kept.size() * values_.row_bytes());
    const ndp::KeySpan key_span{0, keys_}, value_span{0, values_};
    const auto keys_done = ndp::gather({&key_span, 1}, kept, keys);
    const auto values_done = ndp::gather({&value_span, 1}, kept, values);
    BOWHEAD_ASSERT(keys_done && values_done);
    ndp::KvSpan span = all(static_cast<uint32_t>(kept.size()));
    span.keys.data = keys.data();
    span.values.data = values.data();
    span.keys.stride_bytes = keys_.row_bytes();
    span.values.stride_bytes = values_.row_bytes();
    const auto some = attend(queries, span);
    double error = 0;
    std::vector<float> want(values_.channels), got(values_.channels);
    for (uint32_t q = 0; q < group_; ++q) {
      const bool there = full.output(q, want) == Status::OK && some.output(q, got) == Status::OK;
      BOWHEAD_ASSERT(there);
      double off = 0, all_of_it = 0;
      for (size_t c = 0; c < want.size(); ++c) {
        off += std::pow(double{want[c]} - got[c], 2);
        all_of_it += std::pow(want[c], 2);
      }
      error += all_of_it > 0 ? std::sqrt(off / all_of_it) : 0;
    }
    return error;
  }

  const ndp::Rows keys_, values_;
  const uint32_t group_;
  const std::vector<uint32_t>& positions_;
  std::vector<ConstBytes> queries_;
  std::vector<float> total_;               ///< mass of all queries so far, by token
  std::deque<std::vector<float>> window_;  ///< mass of each of the last queries
};

void print_report(const KeepBenchOptions& options, const std::string& set,
                  const KeepReport& report) {
  const auto queries = static_cast<double>(report.queries);
  if (!options.json) {
    fmt::print(
        "{}: {} queries of {} heads; error of the output, and mass of attention kept\n"
        "  {:<12} {:>16} {:>16} {:>16}   chosen\n",
        set, report.queries, report.heads, "tokens kept", "1/8", "1/4", "1/2");
  }
  for (size_t c = 0; c < kChoices; ++c) {
    const auto& of = report.losses[c];
    const auto cell = [&](size_t b) {
      return fmt::format("{:.3f} ({:.1f} %)", of[b].error / queries, of[b].mass / queries * 100);
    };
    if (!options.json) {
      fmt::print("  {:<12} {:>16} {:>16} {:>16}   {}\n", kTexts[c].name, cell(0), cell(1), cell(2),
                 kTexts[c].what);
      continue;
    }
    for (size_t b = 0; b < kBudgets.size(); ++b) {
      const nlohmann::json line = {{"bench", "keep"},
                                   {"set", set},
                                   {"choice", kTexts[c].name},
                                   {"kept", kBudgets[b]},
                                   {"queries", report.queries},
                                   {"heads", report.heads},
                                   {"output_error", of[b].error / queries},
                                   {"mass_kept", of[b].mass / queries},
                                   {"commit", this_machine().commit},
                                   {"command", options.command}};
      fmt::print("{}\n", line.dump());
    }
  }
}

Result<void> check_fit(const KvSet& set, const KvTensor& keys, const KvTensor& values,
                       const KvTensor& queries) {
  if (values.shape != keys.shape)
    return Error{Status::INVALID_ARGUMENT,
                 fmt::format("{}: values of [{}] do not go with keys of [{}]", set.name,
                             fmt::join(values.shape, ", "), fmt::join(keys.shape, ", "))};
  if (!std::is_sorted(set.query_positions.begin(), set.query_positions.end()))
    return Error{Status::INVALID_ARGUMENT,
                 fmt::format("{}: the positions of its queries do not ascend", set.name)};
  return check_queries(set, keys, queries);
}

Result<void> measure(const KeepBenchOptions& options) {
  const auto sets = read_kv_data(options.data);
  if (!sets) return sets.error();
  bool some = false;
  for (const KvSet& set : *sets) {
    const KvTensor* keys = find_tensor(set, KvRole::KEYS, NumberFormat::BF16);
    const KvTensor* values = find_tensor(set, KvRole::VALUES, NumberFormat::BF16);
    const KvTensor* queries = find_tensor(set, KvRole::QUERIES, NumberFormat::BF16);
    if (keys == nullptr || values == nullptr || queries == nullptr) continue;
    if (auto fits = check_fit(set, *keys, *values, *queries); !fits) return fits;
    KeepReport report;
    for (uint32_t head = 0; head < keys->layers() * keys->heads(); ++head)
      Head(*keys, *values, *queries, head, set.query_positions).run(report);
    print_report(options, set.name, report);
    some = true;
  }
  if (some) return {};
  return Error{Status::INVALID_ARGUMENT,
               fmt::format("{}: no set has keys, values and queries of bf16", options.data)};
}

}  // namespace

int run_keep_bench(const KeepBenchOptions& options) {
  return exit_code_of([&] { return measure(options); });
}

}  // namespace bowhead::bench
