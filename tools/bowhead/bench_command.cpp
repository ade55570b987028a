// SPDX-License-Identifier: Apache-2.0
// bowhead bench: runs bowhead-bench, a program that is built and installed apart from this one.
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>

#include "tools/bowhead/cli.h"

namespace bowhead::cli {
namespace {

constexpr const char* kProgram = "bowhead-bench";

/// Replaces this process with bowhead-bench; returns only if it cannot.
int become_bench(std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), "bowhead bench");  // the name that it shows
  std::vector<char*> argv;
  for (std::string& argument : arguments) argv.push_back(argument.data());
  argv.push_back(nullptr);

  // The copy beside this program comes from the same build.
  std::error_code unknown;
  const auto folder = std::filesystem::read_symlink("/proc/self/exe", unknown).parent_path();
  execv((folder / kProgram).c_str(), argv.data());
  if (errno == ENOENT) execvp(kProgram, argv.data());
  if (errno != ENOENT) {
    say(fmt::format("cannot run {}: {}", kProgram, strerror(errno)));
    return kEnvironment;
  }
  say(
      fmt::format("{} is neither in {} nor on PATH: build the target {}, or install it with `cmake "
                  "--install BUILD --component bench`",
                  kProgram, folder.string(), kProgram));
  return kEnvironment;
}

}  // namespace

void add_bench_command(CLI::App& app, Action& action) {
  auto* command =
      app.add_subcommand("bench", "Measure this build on this machine (runs bowhead-bench)");
  // All further arguments, --help included, are for bowhead-bench.
  command->set_help_flag();
  command->prefix_command();
  command->callback([command, &action] {
    action = [arguments = command->remaining()] { return become_bench(arguments); };
  });
}

}  // namespace bowhead::cli
