// SPDX-License-Identifier: Apache-2.0
#include "tools/bowhead/commands.h"

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

Exit codes: 0 success, 1 damage found or key not found, 2 wrong usage, 3 refused by the pool or the
system, 128+n ended by signal n. Each command has its own help: bowhead COMMAND --help.)";

}  // namespace

void add_all_commands(CLI::App& app, Action& action, const std::string& command_line) {
  app.name("bowhead");
  app.require_subcommand(1);
  app.footer(kFooter);
  add_pool_commands(app, action);
  add_block_commands(app, action);
  add_namespace_commands(app, action);
  add_host_command(app, action);
  add_replay_command(app, action, command_line);
  add_topk_command(app, action);
  add_codec_command(app, action);
  add_devices_command(app, action);
  add_device_command(app, action);
  add_doctor_command(app, action);
  add_litmus_command(app, action);
  add_bench_command(app, action);
}

int run_command_line(int argc, const char* const* argv) {
  CLI::App app{"Bowhead: a pool of memory for the KV caches of large language models"};
  Action action;
  add_all_commands(app, action, typed_line("bowhead", argc, argv));
  return run_program(app, action, argc, argv);
}

}  // namespace bowhead::cli
