// SPDX-License-Identifier: Apache-2.0
// One number format of keys after another. In every round all operations walk over all of the
// memory, on one core and on all, and so do the limits: reading it, and multiplying with the
// instructions for this format. Each round starts with a different operation.
#include "bench/ndp_bench.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <utility>
#include <vector>

#include "bench/ndp_limits.h"
#include "bench/ndp_work.h"
#include "bench/report.h"
#include "ndp/kernels.h"
#include "tools/program/machine.h"

namespace bowhead::bench {
namespace {

constexpr NumberFormat kKinds[] = {NumberFormat::BF16, NumberFormat::FP16, NumberFormat::FP8_E4M3,
                                   NumberFormat::INT8};
constexpr uint32_t kGroupedQueries = 8;
constexpr uint32_t kLatentChannels = 576, kLatentQueries = 16;

struct Pass {
  Works work;
  std::vector<int> cpus;
  std::vector<double> rates;  ///< 10^9 bytes or multiply-adds a second, by round
};

/// An upper bound on a row: another pass's rate times `factor`.
struct Bound {
  size_t pass;
  double factor;
  const char* name;
};

struct Row {
  size_t pass;
  std::vector<Bound> bounds;  ///< the lowest is the limit
  Figure figure;
};

/// The bytes that each core walks over: a quarter of a size that exceeds any cache, so that four
/// cores that share a cache find nothing in it. Fewer cores share the same memory.
uint64_t share_bytes(const Machine& machine, bool quick) {
  constexpr uint64_t kMiB = 1u << 20;
  if (quick) return 2 * kMiB;
  const uint64_t whole = std::max(128 * kMiB, 4 * machine.last_level_cache_bytes);
  const uint64_t share = whole / std::min<size_t>(machine.cpus.size(), 4);
  return (share + kMiB - 1) / kMiB * kMiB;
}

/// All passes over keys of one format.
class Table {
 public:
  Table(const NdpBenchOptions& options, const Machine& machine, const Report& report,
        const NdpData& data)
      : options_(options),
        report_(report),
        data_(data),
        share_bytes_(share_bytes(machine, options.quick)) {
    const size_t shares = std::min<size_t>(machine.cpus.size(), 4);
    one_ = {&data, {data.share(0, shares * share_bytes_)}};
    all_ = {&data, {}};
    for (size_t i = 0; i < machine.cpus.size(); ++i)
      all_.shares.push_back(data.share(i * share_bytes_, share_bytes_));
    add_rows(one_, {machine.cpus.front()});
    if (machine.cpus.size() > 1) add_rows(all_, machine.cpus);
  }

  Result<void> run() {
    for (Pass& pass : passes_) {
      seconds_of(*pass.work, pass.cpus);
      if (auto good = pass.work->check(); !good) return good;
    }
    for (uint32_t round = 0; round < options_.rounds; ++round) {
      report_.progress(fmt::format("{} keys, round {} of {}", number_name(data_.number()),
                                   round + 1, options_.rounds));
      for (size_t i = 0; i < passes_.size(); ++i) {
        Pass& pass = passes_[(round + i) % passes_.size()];
        const double seconds = seconds_of(*pass.work, pass.cpus);
        pass.rates.push_back(static_cast<double>(pass.work->amount()) / seconds * 1e-9);
      }
    }
    for (Row& row : rows_) report(row);
    return {};
  }

 private:
  size_t add_pass(Works work, const std::vector<int>& cpus) {
    passes_.push_back({std::move(work), cpus, {}});
    return passes_.size() - 1;
  }

  Row& add_row(size_t pass, const char* name, std::string what, std::vector<Bound> bounds) {
    const Pass& of = passes_[pass];
    const char* cores = of.cpus.size() == 1 ? "one core" : "all cores";
    Row row{pass, std::move(bounds), {}};
    row.figure.row = name;
    row.figure.what = fmt::format("{} {}, {}", number_name(data_.number()), what, cores);
    row.figure.unit = "GB/s";
    row.figure.parameters = {{"number", number_name(data_.number())},
                             {"cores", of.cpus.size()},
                             {"channels", kHeadChannels},
                             {"block_tokens", kSpanTokens},
                             {"pass_bytes", of.work->amount()},
                             {"kernels", ndp::kernels().name}};
    rows_.push_back(std::move(row));
    return rows_.back();
  }

  void add_rows(const Walk& walk, const std::vector<int>& cpus) {
    const bool all = cpus.size() > 1;
    const NumberFormat number = data_.number();
    const uint64_t products = options_.quick ? 1u << 24 : 1u << 30;
    const size_t read = add_pass(make_read(walk), cpus);
    const size_t multiply = add_pass(make_multiply(number, cpus.size(), products), cpus);
    add_row(read, "read", "read", {});
    Row& speed =
        add_row(multiply, "multiply", fmt::format("keys: {}", multiplication(number).name), {});
    speed.figure.unit = "G/s";
    speed.figure.parameters.erase("channels");
    speed.figure.parameters.erase("block_tokens");
    speed.figure.parameters.erase("pass_bytes");

    const Bound reading{read, 1, "read"};
    // Each number of a key takes one multiply-add per query.
    const auto roofline = [&](uint32_t queries) {
      return std::vector<Bound>{
          reading, {multiply, element_bytes(number) / static_cast<double>(queries), "multiply"}};
    };
    std::map<uint32_t, size_t> scans_of_rows;  // by number of queries
    for (const uint32_t queries : {1u, kGroupedQueries}) {
      // For bf16 the target is a share of the read speed, except for several queries on one core,
      // which may multiply slower than it reads.
      const bool by_reading = number == NumberFormat::BF16 && (queries == 1 || all);
      scans_of_rows[queries] = add_pass(make_topk(walk, queries), cpus);
      Row& row = add_row(scans_of_rows[queries], "topk",
                         fmt::format("top-{}, {}", kWantedHits, queries_text(queries)),
                         by_reading ? std::vector<Bound>{reading} : roofline(queries));
      row.figure.parameters["queries"] = queries;
      row.figure.parameters["k"] = kWantedHits;
      const double bound = number != NumberFormat::BF16 ? 0.80 : by_reading ? 0.90 : 0.85;
      row.figure.target = Target{bound, true, true};
    }
    if (number != NumberFormat::BF16) return;
    // Keys and values are both multiplied once for each query.
    Row& attend = add_row(add_pass(make_attend(walk, kGroupedQueries), cpus), "attend",
                          fmt::format("attend, {}", queries_text(kGroupedQueries)),
                          roofline(kGroupedQueries));
    attend.figure.parameters["queries"] = kGroupedQueries;
    if (all) attend.figure.target = Target{0.70, true, true};
    add_page_rows(walk, cpus, roofline(kGroupedQueries)[1]);
    add_rows_without_target(walk, cpus, reading, roofline(kLatentQueries));
    for (const uint32_t queries : {1u, kGroupedQueries}) {
      const size_t scan = add_pass(make_topk_in_frames(walk, queries, true), cpus);
      const size_t search = add_pass(make_topk_in_frames(walk, queries, false), cpus);
      const auto add = [&](const char* name, Bound bound, double target) {
        Row& found = add_row(search, name,
                             fmt::format("top-{} of {} in frames, {}", kSequenceHits,
                                         kSequenceTokens, queries_text(queries)),
                             {bound});
        found.figure.parameters["queries"] = queries;
        found.figure.parameters["k"] = kSequenceHits;
        if (queries == kGroupedQueries) found.figure.target = Target{target, true, true};
      };
      add("topk_frames", {scan, 1, "decode and scan"}, 1.5);
      add("topk_frames_rows", {scans_of_rows[queries], 1, "scan of rows"}, 0.5);
    }
    const size_t decode = add_pass(make_attend_frames(walk, kGroupedQueries, true), cpus);
    Row& frames =
        add_row(add_pass(make_attend_frames(walk, kGroupedQueries, false), cpus), "attend_frames",
                fmt::format("attend in frames, {}", queries_text(kGroupedQueries)),
                {{decode, 1, "decode"}});
    frames.figure.parameters["queries"] = kGroupedQueries;
  }

  /// Pages of an engine's cache, scattered over memory.
  void add_page_rows(const Walk& walk, const std::vector<int>& cpus, const Bound& multiplying) {
    const Bound reading{add_pass(make_read_of_pages(walk), cpus), 1, "read of pages"};
    for (const uint32_t queries : {1u, kGroupedQueries}) {
      Row& row = add_row(
          add_pass(make_topk_of_pages(walk, queries), cpus), "topk_pages",
          fmt::format("top-{} of scattered pages, {}", kWantedHits, queries_text(queries)),
          queries == 1 ? std::vector<Bound>{reading} : std::vector<Bound>{reading, multiplying});
      row.figure.parameters["queries"] = queries;
      row.figure.parameters["k"] = kWantedHits;
      row.figure.parameters["page_tokens"] = kPageTokens;
      row.figure.target = Target{0.75, true, true};
    }
  }

  void add_rows_without_target(const Walk& walk, const std::vector<int>& cpus, const Bound& reading,
                               std::vector<Bound> roofline) {
    Row& score = add_row(add_pass(make_score(walk, kLatentQueries, kLatentChannels), cpus), "score",
                         fmt::format("score, {} queries of {}", kLatentQueries, kLatentChannels),
                         std::move(roofline));
    score.figure.parameters["queries"] = kLatentQueries;
    score.figure.parameters["channels"] = kLatentChannels;
    Row& digest = add_row(add_pass(make_digest(walk), cpus), "digest",
                          fmt::format("digest, pages of {}", kPageTokens), {reading});
    digest.figure.parameters["page_tokens"] = kPageTokens;
    const size_t copies = add_pass(make_gather(walk, true), cpus);
    add_row(add_pass(make_gather(walk, false), cpus), "gather", "gather an eighth",
            {{copies, 1, "memcpy"}});
  }

  static std::string queries_text(uint32_t queries) {
    return queries == 1 ? "1 query" : fmt::format("{} queries", queries);
  }

  void report(Row& row) const {
    const std::vector<double>& rates = passes_[row.pass].rates;
    row.figure.value = summarize(rates);
    if (!row.bounds.empty()) {
      std::vector<double> limits(rates.size());
      for (size_t round = 0; round < rates.size(); ++round)
        limits[round] = rate_of(*lowest(row.bounds, round), round);
      row.figure.limit = Limit{limit_name(row.bounds), summarize(limits)};
      row.figure.ratio = ratio_of(rates, limits);
    }
    report_.add(row.figure);
  }

  double rate_of(const Bound& bound, size_t round) const {
    return passes_[bound.pass].rates[round] * bound.factor;
  }
  std::vector<Bound>::const_iterator lowest(const std::vector<Bound>& bounds, size_t round) const {
    return std::min_element(bounds.begin(), bounds.end(), [&](const Bound& a, const Bound& b) {
      return rate_of(a, round) < rate_of(b, round);
    });
  }
  /// The name of the bound that is lowest in most rounds.
  const char* limit_name(const std::vector<Bound>& bounds) const {
    std::vector<size_t> rounds(bounds.size());
    for (size_t round = 0; round < options_.rounds; ++round)
      ++rounds[static_cast<size_t>(lowest(bounds, round) - bounds.begin())];
    return bounds[static_cast<size_t>(std::max_element(rounds.begin(), rounds.end()) -
                                      rounds.begin())]
        .name;
  }

  const NdpBenchOptions& options_;
  const Report& report_;
  const NdpData& data_;
  const uint64_t share_bytes_;
  Walk one_, all_;
  std::vector<Pass> passes_;
  std::vector<Row> rows_;
};

Result<void> measure(const NdpBenchOptions& options) {
  if (options.rounds < 5)
    return Error{Status::INVALID_ARGUMENT, "at least 5 rounds, for a median and a spread"};
  const Machine machine = this_machine();
  const Report report({"ndp", options.quick, options.json, options.command}, machine);
  report.print_header();
  report.print_heading();
  for (const NumberFormat kind : kKinds) {
    report.progress(fmt::format("{} keys", number_name(kind)));
    const uint64_t bytes = machine.cpus.size() * share_bytes(machine, options.quick);
    const NdpData data(kind, bytes);
    if (!data.there())
      return Error{Status::SYSTEM, fmt::format("no memory for keys of {}", bytes_text(bytes))};
    if (auto result = Table(options, machine, report, data).run(); !result) return result;
  }
  report.progress("");
  return {};
}

}  // namespace

int run_ndp_bench(const NdpBenchOptions& options) {
  return exit_code_of([&] { return measure(options); });
}

}  // namespace bowhead::bench
