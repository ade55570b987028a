// SPDX-License-Identifier: Apache-2.0
// The frame of a program with commands: command line, exit codes, errors, standard output.
#pragma once

#include <CLI/CLI.hpp>
#include <functional>
#include <string>
#include <string_view>

#include "base/status.h"

namespace bowhead::cli {

/// Exit codes. Besides these, 128 + n: ended by signal n (130 Ctrl-C, 143 SIGTERM).
enum ExitCode : int {
  kOk = 0,
  kDamage = 1,       ///< damage or wrong bytes found; a key not found
  kUsage = 2,        ///< the command line or an input file is wrong
  kEnvironment = 3,  ///< refused by the pool, the memory or the system
};

ExitCode exit_code(Status status);

/// Prints "bowhead: message" to standard error, preceded by `about` if the message does not name
/// it; returns the exit code of the status.
ExitCode fail(const Error& error, const std::string& about = "");

/// Prints "bowhead: message" to standard error.
void say(std::string_view message);

/// Writes to standard output. Errors are kept for finish_output().
void print(std::string_view text);

/// Flushes standard output. A reader that went away (`bowhead ls ... | head`) is no error; any
/// other failure to write is reported, and the function returns kEnvironment in place of `code`.
int finish_output(int code);

/// The work of a command, run after the whole command line is parsed; returns the exit code.
using Action = std::function<int()>;

/// Adds an option that an earlier version had, with a value or without: it is not in the help, and
/// using it is an error that names `now` as the replacement.
void refuse_old_option(CLI::App& command, const std::string& name, const std::string& now);

/// `name` and the arguments after argv[0]: the command line as typed, for reports.
std::string typed_line(const std::string& name, int argc, const char* const* argv);

/// Runs a program: adds --version to `app`, which has its name and commands, parses, and runs the
/// action that a command's callback has stored in `action`. A wrong command line is refused with a
/// sentence and a pointer to the help. Returns the exit code; call it once in a process.
int run_program(CLI::App& app, const Action& action, int argc, const char* const* argv);

}  // namespace bowhead::cli
