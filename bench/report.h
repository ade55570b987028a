// SPDX-License-Identifier: Apache-2.0
// Figures and their output: a row of the table or a line of JSON, as soon as one is known.
#pragma once

#include <cstdint>
#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "base/status.h"
#include "tools/program/machine.h"

namespace bowhead::bench {

/// Median and spread of the rounds.
struct Summary {
  double median = 0;
  double min = 0;
  double max = 0;
  size_t rounds = 0;
};

/// Needs at least one sample.
Summary summarize(std::vector<double> samples);

/// The limit of the machine, measured in the same rounds as the figure beside it.
struct Limit {
  std::string kind;
  Summary value;
};

struct Target {
  double bound = 0;
  bool at_least = true;   ///< else at most
  bool of_ratio = false;  ///< bounds the ratio to the limit, else the value
};

struct Figure {
  std::string row;                                       ///< stable name for programs
  std::string what;                                      ///< description
  nlohmann::json parameters = nlohmann::json::object();  ///< block_bytes, processes, ...
  Summary value;
  std::string unit;
  std::optional<Limit> limit;
  std::optional<Summary> ratio;  ///< value divided by limit, round by round
  std::optional<Target> target;
  std::string note;

  /// Whether the median meets the target; empty without a target.
  std::optional<bool> met() const;
};

/// Divides round by round, so that a slow moment of the machine affects both.
Summary ratio_of(const std::vector<double>& values, const std::vector<double>& limits);

/// The part of every report that describes its run.
struct RunDescription {
  std::string bench;    ///< "pool", "codec"
  bool quick = false;   ///< smoke test: no result
  bool json = false;    ///< one JSON line per figure instead of a table
  std::string command;  ///< as typed
};

class Report {
 public:
  Report(RunDescription run, Machine machine);

  /// Machine, commit, date, command. Prints nothing for JSON, like print_heading().
  void print_header() const;
  /// The heading of the table that add() prints.
  void print_heading() const;
  void add(const Figure& figure) const;
  bool json() const { return run_.json; }

  /// Shows what is being measured, if stderr is a terminal; the next figure overwrites it.
  void progress(const std::string& what) const;

  /// The medium of the pools for the next figures.
  void set_media(std::string description);

 private:
  void print_row(const Figure& figure) const;
  void print_json(const Figure& figure) const;

  const RunDescription run_;
  const Machine machine_;
  const std::string date_;
  std::string media_;
  mutable std::string last_note_;  // not printed again for the next row
};

/// Prints "bowhead: ..." to stderr; returns the exit code: 1 wrong bytes or a wrong answer, 2
/// invalid options, 3 environment.
int complain(const Error& error);

/// Runs `measure`, which prints to stdout, and reports its error or exception: out of memory, or
/// stdout cannot be written. Returns the exit code.
int exit_code_of(const std::function<Result<void>()>& measure);

/// "10.1 (9.55..10.3) GB/s".
std::string spread(const Summary& summary, const std::string& unit);

/// "256 KiB", "2 MiB".
std::string bytes_text(uint64_t bytes);

}  // namespace bowhead::bench
