// SPDX-License-Identifier: Apache-2.0
#include "tests/cli/run.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <sstream>
#include <thread>

namespace bowhead::cli_test {
namespace {

namespace fs = std::filesystem;

int code_of(int status) { return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status); }

std::vector<char*> argv_of(const Arguments& arguments) {
  std::vector<char*> argv;
  for (const std::string& argument : arguments) argv.push_back(const_cast<char*>(argument.data()));
  argv.push_back(nullptr);
  return argv;
}

void close_pipe(std::array<int, 2>& pipe) {
  for (int& fd : pipe) {
    if (fd >= 0) close(fd);
    fd = -1;
  }
}

// Feeds `input` and reads both outputs until both are closed.
void converse(int in, const std::string& input, int out, int err, Outcome& outcome) {
  size_t fed = 0;
  bool open_out = true;
  bool open_err = true;
  while (open_out || open_err) {
    pollfd fds[3] = {{open_out ? out : -1, POLLIN, 0},
                     {open_err ? err : -1, POLLIN, 0},
                     {fed < input.size() ? in : -1, POLLOUT, 0}};
    if (poll(fds, 3, -1) < 0) continue;
    char buffer[65536];
    const auto drain = [&](pollfd& fd, bool& open, std::string& to) {
      if (fd.revents == 0) return;
      const ssize_t got = ::read(fd.fd, buffer, sizeof buffer);
      if (got > 0) to.append(buffer, static_cast<size_t>(got));
      if (got == 0) open = false;
    };
    drain(fds[0], open_out, outcome.out);
    drain(fds[1], open_err, outcome.err);
    if (fds[2].revents != 0) {
      const ssize_t put = ::write(in, input.data() + fed, input.size() - fed);
      fed = put < 0 ? input.size() : fed + static_cast<size_t>(put);  // it reads no more
      if (fed == input.size()) close(in);
    }
  }
}

Outcome run_program(const Arguments& command, const std::string& input) {
  std::signal(SIGPIPE, SIG_IGN);
  std::array<int, 2> in, out, err;
  EXPECT_EQ(pipe2(in.data(), O_CLOEXEC), 0);
  EXPECT_EQ(pipe2(out.data(), O_CLOEXEC), 0);
  EXPECT_EQ(pipe2(err.data(), O_CLOEXEC), 0);
  auto argv = argv_of(command);
  const pid_t pid = fork();
  if (pid == 0) {
    dup2(in[0], 0);
    dup2(out[1], 1);
    dup2(err[1], 2);
    std::signal(SIGPIPE, SIG_DFL);
    execv(argv[0], argv.data());
    _exit(127);
  }
  close(in[0]);
  close(out[1]);
  close(err[1]);
  in[0] = out[1] = err[1] = -1;
  Outcome outcome;
  if (input.empty()) close(in[1]);
  in[1] = input.empty() ? -1 : in[1];
  converse(in[1], input, out[0], err[0], outcome);
  in[1] = -1;
  close_pipe(out);
  close_pipe(err);
  int status = 0;
  EXPECT_EQ(waitpid(pid, &status, 0), pid);
  outcome.code = code_of(status);
  return outcome;
}

}  // namespace

Outcome run(const Arguments& arguments, const std::string& input) {
  Arguments command = {BOWHEAD_BINARY};
  command.insert(command.end(), arguments.begin(), arguments.end());
  return run_program(command, input);
}

Outcome shell(const std::string& script) {
  return run_program({"/bin/sh", "-c", std::string("B='") + BOWHEAD_BINARY + "'; " + script}, "");
}

Running::Running(const Arguments& arguments) {
  Arguments command = {BOWHEAD_BINARY};
  command.insert(command.end(), arguments.begin(), arguments.end());
  auto argv = argv_of(command);
  pid_ = fork();
  if (pid_ == 0) {
    setpgid(0, 0);
    const int null = open("/dev/null", O_RDWR);
    dup2(null, 1);
    dup2(null, 2);
    execv(argv[0], argv.data());
    _exit(127);
  }
  setpgid(pid_, pid_);
}

Running::~Running() {
  kill(-pid_, SIGKILL);
  if (!ended_) waitpid(pid_, nullptr, 0);
}

void Running::signal(int number) const { kill(pid_, number); }

int Running::wait(double seconds) {
  int code = -1;
  ended_ = eventually(seconds, [&] {
    int status = 0;
    if (waitpid(pid_, &status, WNOHANG) != pid_) return false;
    code = code_of(status);
    return true;
  });
  return code;
}

bool Running::group_is_gone() const {
  return eventually(30, [&] { return kill(-pid_, 0) != 0 && errno == ESRCH; });
}

std::vector<pid_t> Running::children() const {
  const std::string pid = std::to_string(pid_);
  std::ifstream file("/proc/" + pid + "/task/" + pid + "/children");
  std::vector<pid_t> found;
  for (pid_t child; file >> child;) found.push_back(child);
  return found;
}

bool eventually(double seconds, const std::function<bool()>& condition) {
  seconds *= BOWHEAD_TEST_TIMEOUT_FACTOR;
  const auto end = std::chrono::steady_clock::now() + std::chrono::duration<double>(seconds);
  while (!condition()) {
    if (std::chrono::steady_clock::now() > end) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  return true;
}

CliTest::CliTest() {
  static std::atomic<int> count{0};
  const std::string name = "cli-test-" + std::to_string(getpid()) + "-" + std::to_string(count++);
  folder_ = fs::temp_directory_path() / name;
  fs::create_directory(folder_);
  shm_ = "shm:" + name;
}

CliTest::~CliTest() {
  run({"pool", "destroy", "--force", shm_});
  fs::remove_all(folder_);
}

void CliTest::write(const std::string& name, const std::string& content) const {
  std::ofstream(path(name), std::ios::binary) << content;
}

std::string CliTest::read(const std::string& name) const {
  std::ostringstream content;
  content << std::ifstream(path(name), std::ios::binary).rdbuf();
  return content.str();
}

void CliTest::create(const std::string& locator, const std::string& size,
                     const Arguments& more) const {
  Arguments arguments = {"pool", "create", locator, "--size", size};
  arguments.insert(arguments.end(), more.begin(), more.end());
  const Outcome created = run(arguments);
  ASSERT_EQ(created.code, 0) << created.err;
}

nlohmann::json json_of(const Outcome& outcome) {
  auto json = nlohmann::json::parse(outcome.out, nullptr, false);
  EXPECT_FALSE(json.is_discarded()) << outcome.out << outcome.err;
  return json;
}

}  // namespace bowhead::cli_test
