// SPDX-License-Identifier: Apache-2.0
#include "tools/bowhead/commands.h"

#include <bowhead/bowhead.h>
#include <bowhead/format/superblock.h>
#include <fmt/format.h>

#include <csignal>
#include <new>

#include "bench/machine.h"

#ifndef BOWHEAD_VERSION
#error "BOWHEAD_VERSION is defined by CMake"
#endif

namespace bowhead::cli {
namespace {

constexpr const char* kFooter = R"(
Examples:
  bowhead pool create shm:demo --size 1G
  echo hello | bowhead put shm:demo greeting
  bowhead get shm:demo greeting
  bowhead ls shm:demo
  bowhead replay --pool shm:demo --workers 2
  bowhead pool destroy shm:demo

Exit codes: 0 success, 1 damage found or nothing stored there, 2 wrong usage, 3 the pool or the
system refuses, 128+n ended by signal n. Each command has its own help: bowhead COMMAND --help.)";

/// Says what is wrong with a command line, and where its help is.
int refuse(const CLI::App& app, const CLI::ParseError& error) {
  const CLI::App* command = &app;
  std::string path = app.get_name();
  while (!command->get_subcommands().empty()) {
    command = command->get_subcommands()[0];
    path += " " + command->get_name();
  }
  const auto below = command->get_subcommands([](const CLI::App*) { return true; });
  const std::string what = error.what();
  // What it did not understand says more than what it misses.
  const auto unknown = app.remaining(true);
  if (!unknown.empty()) {
    say(fmt::format("unknown command or option '{}'", unknown[0]));
  } else if (error.get_exit_code() == static_cast<int>(CLI::ExitCodes::ArgumentMismatch)) {
    const bool too_many = what.find("At most") != std::string::npos;
    say(what.substr(0, what.find(':')) + (too_many ? " is given twice" : " needs a value"));
  } else if (!below.empty()) {
    std::string names;
    for (const CLI::App* one : below) names += (names.empty() ? "" : ", ") + one->get_name();
    say(fmt::format("`{}` needs a command: {}", path, names));
  } else {
    say(what);
  }
  say(fmt::format("see `{} --help`", path));
  return kUsage;
}

}  // namespace

void add_all_commands(CLI::App& app, Action& action, const std::string& command_line) {
  app.name("bowhead");
  app.set_version_flag("--version",
                       fmt::format("bowhead {}, commit {}, ABI {}, pool format {}", BOWHEAD_VERSION,
                                   bench::built_commit(), BH_ABI_VERSION, BH_FORMAT_VERSION));
  app.require_subcommand(1);
  app.footer(kFooter);
  add_pool_commands(app, action);
  add_block_commands(app, action);
  add_replay_command(app, action, command_line);
  add_codec_command(app, action);
  add_litmus_command(app, action);
  add_bench_command(app, action, command_line);
}

int run_command_line(int argc, const char* const* argv) {
  // A reader that goes away is an error of a write, not a death in the middle of a command.
  std::signal(SIGPIPE, SIG_IGN);

  std::string command_line = "bowhead";
  for (int i = 1; i < argc; ++i) command_line += std::string(" ") + argv[i];
  CLI::App app{"Bowhead: a pool of memory for the KV caches of large language models"};
  Action action;
  add_all_commands(app, action, command_line);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) return finish_output(app.exit(error));  // --help, --version
    return refuse(app, error);
  }
  try {
    return finish_output(action());
  } catch (const std::bad_alloc&) {
    say("the system has no memory left for this command");
    return kEnvironment;
  }
}

}  // namespace bowhead::cli
