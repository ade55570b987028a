// SPDX-License-Identifier: Apache-2.0
// Runs the bowhead binary as a shell would, and gives each test its own pool and folder.
#pragma once

#include <gtest/gtest.h>
#include <sys/types.h>

#include <filesystem>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace bowhead::cli_test {

struct Outcome {
  int code = -1;  ///< exit code; 128 + n for death by signal n, as shells report it
  std::string out;
  std::string err;
};

using Arguments = std::vector<std::string>;

/// Runs `bowhead ARGUMENTS` with `input` on standard input, to its end.
Outcome run(const Arguments& arguments, const std::string& input = "");

/// Runs a script by /bin/sh, with $B for the binary.
Outcome shell(const std::string& script);

/// A run that continues while the test does other things; killed with its children if it still runs
/// at the end. It leads a process group, which ends with it if all its children do.
class Running {
 public:
  explicit Running(const Arguments& arguments);
  ~Running();
  Running(const Running&) = delete;
  Running& operator=(const Running&) = delete;

  pid_t pid() const { return pid_; }
  void signal(int number) const;
  /// Waits for the end; -1 if it does not come within `seconds`.
  int wait(double seconds);
  /// True if no process of its group is left. Waits a moment for processes that are ending.
  bool group_is_gone() const;
  /// Its current children.
  std::vector<pid_t> children() const;

 private:
  pid_t pid_ = -1;
  bool ended_ = false;
};

/// True as soon as `condition` is; false if that takes more than `seconds`, or under a sanitizer
/// several times as long.
bool eventually(double seconds, const std::function<bool()>& condition);

class CliTest : public testing::Test {
 protected:
  CliTest();
  ~CliTest() override;

  std::string path(const std::string& name) const { return (folder_ / name).string(); }
  void write(const std::string& name, const std::string& content) const;
  std::string read(const std::string& name) const;

  /// A pool in a file of `folder_`, or in shared memory; destroyed with the test.
  std::string file_locator() const { return "file:" + path("pool"); }
  std::string shm_locator() const { return shm_; }
  void create(const std::string& locator, const std::string& size = "32M",
              const Arguments& more = {}) const;

  std::filesystem::path folder_;

 private:
  std::string shm_;
};

nlohmann::json json_of(const Outcome& outcome);

}  // namespace bowhead::cli_test
