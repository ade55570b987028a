// SPDX-License-Identifier: Apache-2.0
// All commands of the command line, for main() and for tests that run them.
#pragma once

#include "tools/bowhead/cli.h"

namespace bowhead::cli {

/// `command_line` as typed, for reports; `action` is set once the command line is parsed.
void add_all_commands(CLI::App& app, Action& action, const std::string& command_line);

/// The body of main(); call it once in a process.
int run_command_line(int argc, const char* const* argv);

}  // namespace bowhead::cli
