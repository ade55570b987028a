// SPDX-License-Identifier: Apache-2.0
#include "bench/child.h"

#include <fmt/format.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <exception>

#include "bench/team.h"
#include "pool/media/media.h"
#include "pool/pool.h"
#include "tools/program/signals.h"

namespace bowhead::bench {
namespace {

constexpr int kExitEnvironment = 3;

int guarded(const std::function<int()>& measure) {
  try {
    return measure();
  } catch (const std::exception& exception) {
    fmt::print(stderr, "bowhead: {}\n", exception.what());
    return kExitEnvironment;
  }
}

/// Waits until the child ends or a signal ends it; afterwards no child is left.
int supervise(pid_t child, const sigset_t& signals) {
  int code = kExitEnvironment;
  for (;;) {
    const int signal = sigwaitinfo(&signals, nullptr);
    if (signal < 0 && errno == EINTR) continue;
    if (signal != SIGCHLD) {
      kill(child, SIGKILL);
      code = 128 + signal;
      break;
    }
    int status = 0;
    const pid_t ended = waitpid(child, &status, WNOHANG);
    if (ended == 0) continue;
    if (WIFEXITED(status)) code = WEXITSTATUS(status);
    if (WIFSIGNALED(status))
      fmt::print(stderr, "bowhead: the benchmark was ended by signal {}\n", WTERMSIG(status));
    break;
  }
  // Its children die with it and become children of this process (subreaper): wait for all of them.
  while (waitpid(-1, nullptr, 0) > 0 || errno == EINTR) {
  }
  return code;
}

}  // namespace

Result<void> check_unused(const std::string& locator) {
  const auto media = open_media(locator);
  if (media.status() == Status::NO_SUCH_POOL) return {};
  if (!media) return media.error();
  return Error{Status::POOL_EXISTS,
               fmt::format("{} exists, but the benchmark creates its own pools: give an unused "
                           "locator",
                           locator)};
}

int run_in_child(const std::function<int()>& measure, const std::vector<std::string>& pools) {
  sigset_t signals = cli::ending_signals();
  sigset_t before;
  sigaddset(&signals, SIGCHLD);
  sigprocmask(SIG_BLOCK, &signals, &before);
  prctl(PR_SET_CHILD_SUBREAPER, 1);
  std::fflush(nullptr);
  const int self = getpid();
  const pid_t child = fork();
  if (child == 0) {
    sigprocmask(SIG_SETMASK, &before, nullptr);
    die_with_parent(self);
    _exit(guarded(measure));
  }
  int code = kExitEnvironment;
  if (child < 0) {
    fmt::print(stderr, "bowhead: fork: {}\n", std::strerror(errno));
  } else {
    code = supervise(child, signals);
  }
  // These exist only if the child was killed.
  for (const std::string& locator : pools) (void)Pool::destroy(locator, true).status();
  prctl(PR_SET_CHILD_SUBREAPER, 0);
  sigprocmask(SIG_SETMASK, &before, nullptr);
  return code;
}

}  // namespace bowhead::bench
