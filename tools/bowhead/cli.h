// SPDX-License-Identifier: Apache-2.0
// Shared by the commands of `bowhead`: pools and hosts, progress, interruption.
#pragma once

#include <CLI/CLI.hpp>
#include <chrono>
#include <string>
#include <utility>

#include "base/status.h"
#include "pool/pool.h"
#include "tools/program/program.h"

namespace bowhead::cli {

/// fail() for an operation on a pool. If the medium failed, the message says where and why.
ExitCode fail(const Pool& pool, const Error& error, const std::string& about = "");

void add_pool_commands(CLI::App& app, Action& action);
void add_block_commands(CLI::App& app, Action& action);
void add_host_command(CLI::App& app, Action& action);
void add_namespace_commands(CLI::App& app, Action& action);
/// `command_line` as typed, for reports.
void add_replay_command(CLI::App& app, Action& action, const std::string& command_line);
void add_topk_command(CLI::App& app, Action& action);
void add_codec_command(CLI::App& app, Action& action);
void add_devices_command(CLI::App& app, Action& action);
void add_device_command(CLI::App& app, Action& action);
void add_doctor_command(CLI::App& app, Action& action);
void add_litmus_command(CLI::App& app, Action& action);
void add_bench_command(CLI::App& app, Action& action);

/// --host, for commands that open a pool: the host slot to act as.
void add_host_option(CLI::App& command);
/// The value of --host; kAnyHost by default.
uint32_t chosen_host();

/// Opens a pool as that host and warns if the second copy of the superblock is in use. `look`:
/// without --host, opens as an observer, for which read permission suffices. Without `prefault`,
/// since most commands touch few pages and end.
Result<Pool> open_pool(const std::string& locator, const Progress& progress = {}, bool look = false,
                       bool prefault = false);

/// The help line that every command with a locator ends with.
inline constexpr const char* kLocatorHelp =
    "Where the pool is: shm:NAME (memory), numa:NODE/NAME (memory of a NUMA node), "
    "dax:/dev/daxX.Y (a device) or file:/PATH (a file, or a device with a DAX file system); "
    "several joined by + form one pool, in stripes";

/// A progress line on standard error, if that is a terminal and the work lasts more than a second.
/// Copies of the callback refer to this object.
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

/// From its construction on, SIGINT, SIGTERM and SIGHUP, unless they are ignored, wait until this
/// process polls for them, so that a command chooses the points at which it may end. Construct one
/// only, before any thread starts; the signals stay blocked until the process ends.
class Interruption {
 public:
  Interruption();
  /// True if one of the signals came. Does not wait.
  bool came();
  /// 128 + the signal that came.
  int exit_code() const { return 128 + signal_; }

 private:
  int signal_ = 0;
};

/// A pool that a command created. It is destroyed with this object unless keep() was called.
class MadePool {
 public:
  /// Pool::create(). Returns CANCELLED, and leaves no pool, if a signal came.
  static Result<MadePool> make(const std::string& locator, CreateOptions options,
                               Interruption& interruption);
  MadePool(MadePool&& other) noexcept
      : locator_(std::exchange(other.locator_, {})), id_(std::move(other.id_)) {}
  MadePool& operator=(MadePool&&) = delete;
  ~MadePool() { (void)destroy(); }

  void keep() { locator_.clear(); }
  /// Destroys the pool now and reports the result. Another pool at the locator stays: NO_SUCH_POOL.
  Result<void> destroy();

 private:
  MadePool(std::string locator, std::string id)
      : locator_(std::move(locator)), id_(std::move(id)) {}

  std::string locator_;  ///< empty: nothing to destroy
  std::string id_;
};

}  // namespace bowhead::cli
