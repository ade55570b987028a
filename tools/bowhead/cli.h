// SPDX-License-Identifier: Apache-2.0
// What the commands of `bowhead` share: pools and hosts, progress, interruption.
#pragma once

#include <CLI/CLI.hpp>
#include <chrono>
#include <string>
#include <utility>

#include "base/status.h"
#include "pool/pool.h"
#include "tools/program/program.h"

namespace bowhead::cli {

/// fail() for an operation on a pool. If the medium failed, that is the message: which bytes of
/// what, and why.
ExitCode fail(const Pool& pool, const Error& error, const std::string& about = "");

void add_pool_commands(CLI::App& app, Action& action);
void add_block_commands(CLI::App& app, Action& action);
/// `command_line` as typed, for reports.
void add_replay_command(CLI::App& app, Action& action, const std::string& command_line);
void add_codec_command(CLI::App& app, Action& action);
void add_litmus_command(CLI::App& app, Action& action);
void add_bench_command(CLI::App& app, Action& action);

/// --host, for commands that open a pool: as which host of it they act.
void add_host_option(CLI::App& command);
/// What it said; kAnyHost by default.
uint32_t chosen_host();

/// Opens a pool as that host and warns if it runs on the second copy of its superblock.
/// `look`: without --host, only look at the pool, for which read permission suffices.
Result<Pool> open_pool(const std::string& locator, const Progress& progress = {},
                       bool look = false);

/// The help line that every command with a locator ends with.
inline constexpr const char* kLocatorHelp =
    "Where the pool is: shm:NAME (memory) or file:/PATH (a file, or a device with a DAX file "
    "system)";

/// A line on standard error that shows how far a thing is, if that is a terminal and the thing
/// lasts more than a second. Copies of the callback refer to this object.
class ProgressLine {
 public:
  ProgressLine();
  ~ProgressLine() { clear(); }
  ProgressLine(const ProgressLine&) = delete;
  ProgressLine& operator=(const ProgressLine&) = delete;

  Progress callback();
  void clear();  ///< before anything else is printed

 private:
  void update(uint64_t done, uint64_t total, const char* what);

  bool terminal_;
  bool shown_ = false;
  std::chrono::steady_clock::time_point start_, last_;
};

/// From its making on, SIGINT, SIGTERM and SIGHUP wait until this process asks for them: a command
/// that makes something decides itself at which points it may end. To be made once, before any
/// thread is started; the signals stay blocked until the process ends.
class Interruption {
 public:
  Interruption();
  /// One of the signals came. Asks without waiting.
  bool came();
  /// 128 + the signal that came.
  int exit_code() const { return 128 + signal_; }

 private:
  int signal_ = 0;
};

/// A pool that a command makes. Unless it is kept, it is destroyed with this object, whichever way
/// the command ends.
class MadePool {
 public:
  /// Pool::create(). Returns CANCELLED, and leaves nothing, if an interruption came.
  static Result<MadePool> make(const std::string& locator, CreateOptions options,
                               Interruption& interruption);
  MadePool(MadePool&& other) noexcept
      : locator_(std::exchange(other.locator_, {})), id_(std::move(other.id_)) {}
  MadePool& operator=(MadePool&&) = delete;
  ~MadePool() { (void)destroy(); }

  void keep() { locator_.clear(); }
  /// Now, to learn whether it went. One that took its place stays: NO_SUCH_POOL.
  Result<void> destroy();

 private:
  MadePool(std::string locator, std::string id)
      : locator_(std::move(locator)), id_(std::move(id)) {}

  std::string locator_;  ///< empty: nothing is to be destroyed
  std::string id_;
};

}  // namespace bowhead::cli
