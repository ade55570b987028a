// SPDX-License-Identifier: Apache-2.0
// Runs a benchmark in its own process and captures the JSON lines that it prints.
#pragma once

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

namespace bowhead::bench {

class CapturedRun {
 public:
  explicit CapturedRun(const std::string& name)
      : output_(testing::TempDir() + "bowhead-" + name + "-" + std::to_string(getpid())) {}
  CapturedRun(const CapturedRun&) = delete;
  CapturedRun& operator=(const CapturedRun&) = delete;
  ~CapturedRun() { unlink(output_.c_str()); }

  /// Returns the exit code of `run`, or -1.
  template <class Run>
  int operator()(Run run) {
    const pid_t child = fork();
    if (child == 0) {
      if (freopen(output_.c_str(), "w", stdout) == nullptr) _exit(99);
      const int code = run();
      std::fflush(stdout);
      _exit(code);
    }
    int status = 0;
    waitpid(child, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  }

  std::vector<nlohmann::json> lines() const {
    std::vector<nlohmann::json> lines;
    std::ifstream output(output_);
    for (std::string text; std::getline(output, text);)
      lines.push_back(nlohmann::json::parse(text));
    return lines;
  }

 private:
  const std::string output_;
};

}  // namespace bowhead::bench
