// SPDX-License-Identifier: Apache-2.0
// The commands of bowhead-bench, for main() and for tests that run them.
#pragma once

#include "tools/program/program.h"

namespace bowhead::bench {

/// `command_line` as typed, for reports; `action` is set once the command line is parsed.
void add_all_commands(CLI::App& app, cli::Action& action, const std::string& command_line);

/// The body of main(); call it once in a process.
int run_command_line(int argc, const char* const* argv);

}  // namespace bowhead::bench
