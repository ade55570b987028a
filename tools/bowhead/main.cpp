// SPDX-License-Identifier: Apache-2.0
// The command line of Bowhead: pools and their blocks, the replay of traces, benchmarks.
#include <csignal>

#include "tools/bowhead/cli.h"

#ifndef BOWHEAD_VERSION
#error "BOWHEAD_VERSION is defined by CMake"
#endif

namespace {

constexpr const char* kFooter = R"(
Examples:
  bowhead pool create shm:demo --size 1G
  echo hello | bowhead put shm:demo greeting
  bowhead get shm:demo greeting
  bowhead ls shm:demo
  bowhead replay --pool shm:demo --workers 2
  bowhead pool destroy shm:demo

Exit codes: 0 all is well, 1 damage found or nothing there, 2 wrong usage, 3 the pool or the system
does not let us, 128+n ended by signal n. Each command explains itself: bowhead COMMAND --help.)";

}  // namespace

int main(int argc, char** argv) {
  // A reader that goes away is an error of a write, not a death in the middle of a command.
  std::signal(SIGPIPE, SIG_IGN);

  CLI::App app{"Bowhead: a pool of memory for the KV caches of large language models", "bowhead"};
  app.set_version_flag("--version", BOWHEAD_VERSION);
  app.require_subcommand(1);
  app.fallthrough();  // --host may stand behind the command
  bowhead::cli::add_host_option(app);
  app.footer(kFooter);
  std::string command_line = "bowhead";
  for (int i = 1; i < argc; ++i) command_line += std::string(" ") + argv[i];
  bowhead::cli::Action action;
  bowhead::cli::add_pool_commands(app, action);
  bowhead::cli::add_block_commands(app, action);
  bowhead::cli::add_replay_command(app, action, command_line);
  bowhead::cli::add_codec_command(app, action);
  bowhead::cli::add_litmus_command(app, action);
  bowhead::cli::add_bench_command(app, action, command_line);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) return app.exit(error);  // --help, --version
    // What it did not understand says more than what it misses.
    const auto unknown = app.remaining(true);
    bowhead::cli::say(unknown.empty() ? error.what()
                                      : "'" + unknown[0] + "' is no command or option here");
    bowhead::cli::say("see `bowhead --help`, or `bowhead COMMAND --help`");
    return bowhead::cli::kUsage;
  }
  return bowhead::cli::finish_output(action());
}
