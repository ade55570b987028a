// SPDX-License-Identifier: Apache-2.0
// The process's own matters: its output, its terminal, its signals.
#include "tools/bowhead/cli.h"

#include <fmt/format.h>
#include <poll.h>
#include <pthread.h>
#include <sys/eventfd.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <thread>

#include "pool/media/media.h"

namespace bowhead::cli {
namespace {

int output_error = 0;
uint32_t host_option = kAnyHost;

void note_output_error() {
  if (output_error == 0) output_error = errno;
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
  const std::string line = fmt::format("bowhead: {}\n", message);
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
  if (output_error == 0 || output_error == EPIPE) return code;
  say(fmt::format("cannot write to standard output: {}", strerror(output_error)));
  return kEnvironment;
}

void add_host_option(CLI::App& app) {
  app.add_option("--host", host_option,
                 "Host slot to act as, in a pool of several (default: the one this machine has, or "
                 "a free one)")
      ->check(CLI::Range(0, 63));
}

uint32_t chosen_host() { return host_option; }

Result<Pool> open_pool(const std::string& locator, const Progress& progress, bool look) {
  OpenOptions options;
  options.host = host_option;
  options.observe = look && host_option == kAnyHost;
  options.progress = progress;
  Result<Pool> pool = Pool::open(locator, options);
  if (!pool) return pool;
  const auto info = pool->info();
  if (info && info->second_superblock_used) {
    say(
        fmt::format("{}: the first copy of the superblock is damaged, the second is used; "
                    "`bowhead pool repair {}` mends it",
                    locator, locator));
  }
  return pool;
}

ProgressLine::ProgressLine()
    : terminal_(isatty(STDERR_FILENO) == 1),
      start_(std::chrono::steady_clock::now()),
      last_(start_) {}

Progress ProgressLine::callback() {
  if (!terminal_) return {};
  return [this](uint64_t done, uint64_t total, const char* what) { update(done, total, what); };
}

void ProgressLine::update(uint64_t done, uint64_t total, const char* what) {
  using namespace std::chrono_literals;
  const auto now = std::chrono::steady_clock::now();
  if (now - start_ < 1s || now - last_ < 100ms) return;
  last_ = now;
  shown_ = true;
  const std::string percent =
      total == 0
          ? ""
          : fmt::format("{:3.0f}%  ", 100 * static_cast<double>(done) / static_cast<double>(total));
  const std::string line = fmt::format("\r\033[K{}{}", percent, what);
  std::fwrite(line.data(), 1, line.size(), stderr);
}

void ProgressLine::clear() {
  if (shown_) std::fputs("\r\033[K", stderr);
  shown_ = false;
}

struct InterruptGuard::State {
  int signals = -1;
  int done = -1;
  sigset_t old_mask;
  std::thread thread;
};

InterruptGuard::InterruptGuard(std::function<void()> cleanup) : state_(new State) {
  sigset_t mask;
  sigemptyset(&mask);
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) sigaddset(&mask, signal);
  pthread_sigmask(SIG_BLOCK, &mask, &state_->old_mask);
  state_->signals = signalfd(-1, &mask, SFD_CLOEXEC);
  state_->done = eventfd(0, EFD_CLOEXEC);
  BOWHEAD_ASSERT(state_->signals >= 0 && state_->done >= 0);
  state_->thread = std::thread([state = state_.get(), cleanup = std::move(cleanup)] {
    pollfd fds[2] = {{state->signals, POLLIN, 0}, {state->done, POLLIN, 0}};
    while (poll(fds, 2, -1) < 0) BOWHEAD_ASSERT(errno == EINTR);
    signalfd_siginfo info;
    if ((fds[0].revents & POLLIN) == 0 || read(state->signals, &info, sizeof info) <= 0) return;
    cleanup();
    _exit(128 + static_cast<int>(info.ssi_signo));
  });
}

InterruptGuard::~InterruptGuard() {
  const uint64_t one = 1;
  BOWHEAD_ASSERT(write(state_->done, &one, sizeof one) == sizeof one);
  state_->thread.join();
  close(state_->signals);
  close(state_->done);
  pthread_sigmask(SIG_SETMASK, &state_->old_mask, nullptr);
}

Result<void> create_pool(const std::string& locator, CreateOptions options) {
  ProgressLine progress;
  options.progress = progress.callback();
  const bool was_there = open_media(locator).status() != Status::NO_SUCH_POOL;
  const InterruptGuard guard([&] {
    // What lies at a place that was free is ours: a whole pool, or one that is not a pool yet.
    if (was_there || Pool::destroy(locator, false).status() != Status::NOT_A_POOL) return;
    (void)remove_media(locator);
  });
  return Pool::create(locator, options);
}

}  // namespace bowhead::cli
