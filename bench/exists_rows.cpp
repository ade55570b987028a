// SPDX-License-Identifier: Apache-2.0
// exists in batches over a pool of a million blocks. The keys of a batch are contiguous, as in a
// request; the blocks that they name are in random order.
#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "bench/rows.h"

namespace bowhead::bench {
namespace {

constexpr uint32_t kBatch = 128;

/// Share of keys that are stored.
enum class Mix : uint32_t { PRESENT, HALF, ABSENT };
constexpr const char* kMixNames[] = {"present", "half present", "absent"};
constexpr uint32_t kMixes = 3;

struct Plan {
  std::string locator;
  uint64_t block_count;
  uint32_t rounds;

  static uint32_t section(uint32_t round, uint32_t mix) { return round * kMixes + mix; }
};

/// As many keys as there are blocks, in random order; the absent ones were never stored.
struct Question {
  std::vector<Key> keys;
  std::vector<std::string_view> views;
  std::vector<uint8_t> expected;
  std::vector<uint8_t> answer;

  Question(const Plan& plan, Mix mix, Random& random) {
    std::vector<uint64_t> order(plan.block_count);
    std::iota(order.begin(), order.end(), uint64_t{0});
    for (uint64_t i = order.size(); i > 1; --i) std::swap(order[i - 1], order[random.below(i)]);
    for (uint64_t i = 0; i < order.size(); ++i) {
      const bool present = mix == Mix::PRESENT || (mix == Mix::HALF && random.below(2) == 0);
      expected.push_back(present);
      keys.push_back(make_key(present ? kLargePoolSeries : kLargePoolSeries + 1, order[i]));
    }
    for (const Key& key : keys) views.push_back(view(key));
    answer.resize(views.size());
  }
};

Status ask(OpenPool& open, Question& question) {
  Status failed = Status::OK;
  for (uint64_t at = 0; at < question.views.size(); at += kBatch) {
    const uint64_t count = std::min<uint64_t>(kBatch, question.views.size() - at);
    const auto found = open.pool.exists(open.ns, std::span(question.views).subspan(at, count),
                                        std::span(question.answer).subspan(at, count));
    if (!found) failed = found.status();
  }
  return failed;
}

Result<void> measure(Member& me, const Plan& plan) {
  auto open = open_bench_pool(plan.locator);
  if (!open) return open.error();
  Random random(me.index() + 7);
  std::vector<Question> questions;
  for (uint32_t mix = 0; mix < kMixes; ++mix) {
    questions.emplace_back(plan, static_cast<Mix>(mix), random);
    if (ask(*open, questions[mix]) != Status::OK) return wrong("exists failed");
    if (questions[mix].answer != questions[mix].expected)
      return wrong("exists gave a wrong answer");
  }
  Status failed = Status::OK;
  for (uint32_t round = 0; round < plan.rounds; ++round) {
    for (uint32_t i = 0; i < kMixes; ++i) {
      const uint32_t mix = (round + i) % kMixes;
      me.time(Plan::section(round, mix), [&] {
        if (const Status status = ask(*open, questions[mix]); status != Status::OK) failed = status;
      });
    }
  }
  if (failed != Status::OK) return wrong("exists failed");
  return {};
}

void report_team(Bench& bench, const Team& team, const Plan& plan) {
  for (uint32_t mix = 0; mix < kMixes; ++mix) {
    std::vector<double> rates;
    for (uint32_t round = 0; round < plan.rounds; ++round) {
      const double seconds = team.seconds(Plan::section(round, mix));
      rates.push_back(static_cast<double>(plan.block_count) / seconds * 1e-6);
    }
    Figure figure;
    figure.row = "exists";
    figure.what =
        fmt::format("exists, {}, {}", kMixNames[mix],
                    team.count() == 1 ? "one core" : fmt::format("each of {} cores", team.count()));
    figure.parameters = {{"keys", kMixNames[mix]},
                         {"batch", kBatch},
                         {"blocks", plan.block_count},
                         {"key_bytes", kKeyBytes},
                         {"block_bytes", bench.large.block_bytes},
                         {"processes", team.count()}};
    figure.value = summarize(rates);
    figure.unit = "M keys/s";
    figure.target = Target{3.0, true, false};
    figure.note = bench.large.note;
    bench.report.add(figure);
  }
}

}  // namespace

Result<void> run_exists_rows(Bench& bench) {
  if (auto result = bench.need_large_pool(); !result) return result;
  const Plan plan{bench.locator, bench.large.block_count, bench.options.rounds};
  std::vector<std::vector<int>> teams = {bench.one_cpu()};
  if (bench.machine.cpus.size() > 1) teams.push_back(bench.machine.cpus);
  for (const std::vector<int>& cpus : teams) {
    bench.report.progress(fmt::format("exists, {} process(es)", cpus.size()));
    Team team(cpus, plan.rounds * kMixes, 0);
    if (auto result = team.run([&](Member& me) { return measure(me, plan); }); !result) {
      return result;
    }
    report_team(bench, team, plan);
  }
  return {};
}

}  // namespace bowhead::bench
