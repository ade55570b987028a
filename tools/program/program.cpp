// SPDX-License-Identifier: Apache-2.0
#include "tools/program/program.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <new>
#include <utility>

#include "tools/program/text.h"
#include "tools/program/version.h"

namespace bowhead::cli {
namespace {

int output_error = 0;
bool is_output_error_told = false;

void note_output_error() {
  if (output_error == 0) output_error = errno;
}

/// Says what is wrong with a command line and which command prints its help.
int refuse(const CLI::App& app, const CLI::ParseError& error) {
  const CLI::App* command = &app;
  std::string path = app.get_name();
  while (!command->get_subcommands().empty()) {
    command = command->get_subcommands()[0];
    path += " " + command->get_name();
  }
  const auto below = command->get_subcommands([](const CLI::App*) { return true; });
  const std::string what = error.what();
  // An unknown argument says more than a missing one.
  const auto unknown = app.remaining(true);
  if (!unknown.empty()) {
    say(fmt::format("unknown command or option '{}'", unknown[0]));
  } else if (error.get_exit_code() == static_cast<int>(CLI::ExitCodes::ArgumentMismatch)) {
    const bool too_many = CLI::detail::to_lower(what).find("at most") != std::string::npos;
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

/// Opens what is missing of the standard streams, so that no file takes the number of one and gets
/// what is meant for it. Reading from them or writing to them fails as if they were closed.
void fill_standard_streams() {
  for (const int fd : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
    if (fcntl(fd, F_GETFD) >= 0) continue;
    // The lowest number that is free, which is this one.
    if (open("/dev/null", fd == STDIN_FILENO ? O_WRONLY : O_RDONLY) < 0) return;
  }
}

}  // namespace

ExitCode exit_code(Status status) {
  switch (status) {
    case Status::OK:
      return kOk;
    case Status::NOT_FOUND:
    case Status::DAMAGED:
      return kDamage;
    case Status::INVALID_ARGUMENT:
    case Status::KEY_TOO_LONG:
    case Status::VALUE_TOO_LARGE:
    case Status::TOO_SMALL:
    case Status::MISALIGNED:
    case Status::BAD_LOCATOR:
    case Status::BAD_TRACE:
      return kUsage;
    default:
      return kEnvironment;
  }
}

void say(std::string_view message) {
  std::fflush(stdout);  // in order, where both go to one terminal
  const std::string line = fmt::format("bowhead: {}\n", one_line(message));
  std::fwrite(line.data(), 1, line.size(), stderr);
}

ExitCode fail(const Error& error, const std::string& about) {
  const std::string message = error.message();
  const bool named = about.empty() || message.find(about) != std::string::npos;
  say(named ? message : about + ": " + message);
  return exit_code(error.status);
}

void print(std::string_view text) {
  if (output_error != 0) return;
  if (std::fwrite(text.data(), 1, text.size(), stdout) != text.size()) note_output_error();
}

int finish_output(int code) {
  if (std::fflush(stdout) != 0) note_output_error();
  if (std::ferror(stdout) != 0 && output_error == 0) output_error = EIO;
  if (output_error == 0 || output_error == EPIPE) return code;
  if (!std::exchange(is_output_error_told, true))
    say(fmt::format("cannot write to standard output: {}", strerror(output_error)));
  return kEnvironment;
}

void refuse_old_option(CLI::App& command, const std::string& name, const std::string& now) {
  const auto refuse = [name, now](const std::string&) {
    throw CLI::ValidationError(name, "was removed; use " + now);
  };
  command.add_option_function<std::string>(name, refuse)->expected(0, 1)->group("");
}

std::string typed_line(const std::string& name, int argc, const char* const* argv) {
  std::string line = name;
  for (int i = 1; i < argc; ++i) line += std::string(" ") + argv[i];
  return line;
}

int run_program(CLI::App& app, const Action& action, int argc, const char* const* argv) {
  fill_standard_streams();
  // A reader that goes away must cause a write error, not end the process within a command.
  std::signal(SIGPIPE, SIG_IGN);
  app.set_version_flag("--version", version_text());
  try {
    app.parse(argc, argv);
    return finish_output(action());
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) return finish_output(app.exit(error));  // --help, --version
    return refuse(app, error);
  } catch (const std::bad_alloc&) {
    say("out of memory: the system has none left for this command");
  } catch (const std::exception& error) {
    say(fmt::format("the system refused a resource: {}", error.what()));
  }
  return kEnvironment;
}

}  // namespace bowhead::cli
