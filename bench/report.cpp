// SPDX-License-Identifier: Apache-2.0
#include "bench/report.h"

#include <fmt/chrono.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <ctime>
#include <exception>
#include <utility>

#include "base/assert.h"

namespace bowhead::bench {
namespace {

constexpr char kRowFormat[] = "{:<42} {:>28} {:>36} {:>18} {:>8} {:>4}";

/// Three significant digits or more, never an exponent.
std::string number(double value) {
  if (value >= 100) return fmt::format("{:.0f}", value);
  if (value >= 10) return fmt::format("{:.1f}", value);
  if (value >= 1) return fmt::format("{:.2f}", value);
  return fmt::format("{:.3f}", value);
}

nlohmann::json to_json(const Summary& summary) {
  return {{"median", summary.median},
          {"min", summary.min},
          {"max", summary.max},
          {"rounds", summary.rounds}};
}

}  // namespace

Summary summarize(std::vector<double> samples) {
  BOWHEAD_ASSERT(!samples.empty());
  std::sort(samples.begin(), samples.end());
  const size_t n = samples.size();
  const double median = n % 2 == 1 ? samples[n / 2] : (samples[n / 2 - 1] + samples[n / 2]) / 2;
  return {median, samples.front(), samples.back(), n};
}

Summary ratio_of(const std::vector<double>& values, const std::vector<double>& limits) {
  BOWHEAD_ASSERT(values.size() == limits.size());
  std::vector<double> ratios;
  for (size_t i = 0; i < values.size(); ++i) ratios.push_back(values[i] / limits[i]);
  return summarize(std::move(ratios));
}

std::optional<bool> Figure::met() const {
  if (!target) return std::nullopt;
  const double measured = target->of_ratio ? ratio.value_or(Summary{}).median : value.median;
  return target->at_least ? measured >= target->bound : measured <= target->bound;
}

int complain(const Error& error) {
  constexpr int kExitWrong = 1, kExitUsage = 2, kExitEnvironment = 3;
  fmt::print(stderr, "bowhead: {}\n", error.message());
  if (error.status == Status::DAMAGED) return kExitWrong;
  const bool usage =
      error.status == Status::INVALID_ARGUMENT || error.status == Status::BAD_LOCATOR;
  return usage ? kExitUsage : kExitEnvironment;
}

int exit_code_of(const std::function<Result<void>()>& measure) {
  Result<void> result;
  try {
    result = measure();
    std::fflush(stdout);
  } catch (const std::exception& exception) {
    result = Error{Status::SYSTEM, exception.what()};
  }
  return result ? 0 : complain(result.error());
}

std::string spread(const Summary& summary, const std::string& unit) {
  return fmt::format("{} ({}..{}){}{}", number(summary.median), number(summary.min),
                     number(summary.max), unit.empty() ? "" : " ", unit);
}

std::string bytes_text(uint64_t bytes) {
  const char* const units[] = {"bytes", "KiB", "MiB", "GiB"};
  size_t unit = 0;
  while (unit < 3 && bytes >= 1024 && bytes % 1024 == 0) {
    bytes /= 1024;
    ++unit;
  }
  return fmt::format("{} {}", bytes, units[unit]);
}

Report::Report(RunDescription run, Machine machine)
    : run_(std::move(run)),
      machine_(std::move(machine)),
      date_(fmt::format("{:%Y-%m-%dT%H:%M:%SZ}", fmt::gmtime(std::time(nullptr)))) {}

void Report::set_media(std::string description) {
  if (description.empty() || description == media_) return;
  media_ = std::move(description);
  progress("");
  if (!run_.json) fmt::print("on {}\n", media_);
  std::fflush(stdout);
}

void Report::progress(const std::string& what) const {
  if (isatty(STDERR_FILENO) == 0) return;
  fmt::print(stderr, "\r\033[K{}{}", what, what.empty() ? "" : " ...");
  std::fflush(stderr);
}

void Report::print_header() const {
  if (run_.json) return;
  fmt::print("machine    {}, {} CPUs usable, last-level cache {}, memory {:.1f} GiB\n",
             machine_.cpu, machine_.cpus.size(), bytes_text(machine_.last_level_cache_bytes),
             static_cast<double>(machine_.memory_bytes) / (1u << 30));
  fmt::print("kernel     {}\nhugepages  {}\ncommit     {}\ndate       {}\ncommand    {}\n",
             machine_.kernel, machine_.hugepages, machine_.commit, date_, run_.command);
  if (run_.quick) fmt::print("quick run: small and short; no result\n");
  fmt::print("\n");
  std::fflush(stdout);
}

void Report::print_heading() const {
  if (run_.json) return;
  fmt::print("{}\n", fmt::format(kRowFormat, "what: median (lowest..highest round)", "figure",
                                 "limit, same rounds", "ratio", "target", "met"));
  std::fflush(stdout);
}

void Report::add(const Figure& figure) const {
  progress("");
  if (run_.json) {
    print_json(figure);
  } else {
    print_row(figure);
  }
  std::fflush(stdout);
}

void Report::print_row(const Figure& figure) const {
  std::string limit;
  if (figure.limit) limit = spread(figure.limit->value, figure.unit) + " " + figure.limit->kind;
  std::string target;
  if (figure.target) {
    target =
        fmt::format("{} {}", figure.target->at_least ? ">=" : "<=", number(figure.target->bound));
  }
  const std::optional<bool> met = figure.met();
  std::string line = fmt::format(kRowFormat, figure.what, spread(figure.value, figure.unit), limit,
                                 figure.ratio ? spread(*figure.ratio, "") : "", target,
                                 met ? (*met ? "yes" : "NO") : "");
  line.erase(line.find_last_not_of(' ') + 1);
  fmt::print("{}\n", line);
  if (!figure.note.empty() && figure.note != last_note_) fmt::print("  {}\n", figure.note);
  last_note_ = figure.note;
}

void Report::print_json(const Figure& figure) const {
  nlohmann::json line = {{"bench", run_.bench},
                         {"row", figure.row},
                         {"what", figure.what},
                         {"parameters", figure.parameters},
                         {"value", to_json(figure.value)},
                         {"unit", figure.unit},
                         {"quick", run_.quick},
                         {"machine",
                          {{"cpu", machine_.cpu},
                           {"cpus", machine_.cpus.size()},
                           {"last_level_cache_bytes", machine_.last_level_cache_bytes},
                           {"memory_bytes", machine_.memory_bytes},
                           {"kernel", machine_.kernel},
                           {"hugepages", machine_.hugepages}}},
                         {"commit", machine_.commit},
                         {"date", date_},
                         {"command", run_.command}};
  if (!media_.empty()) line["media"] = media_;
  if (figure.limit) {
    line["limit"] = to_json(figure.limit->value);
    line["limit"]["kind"] = figure.limit->kind;
  }
  if (figure.ratio) line["ratio"] = to_json(*figure.ratio);
  if (figure.target) {
    line["target"] = {{"bound", figure.target->bound},
                      {"at_least", figure.target->at_least},
                      {"of", figure.target->of_ratio ? "ratio" : "value"},
                      {"met", *figure.met()}};
  }
  if (!figure.note.empty()) line["note"] = figure.note;
  fmt::print("{}\n", line.dump());
}

}  // namespace bowhead::bench
