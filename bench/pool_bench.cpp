// SPDX-License-Identifier: Apache-2.0
// The benchmark runs in a child, so that its pools are removed however it ends: this process only
// waits for it, or for a signal.
#include "bench/pool_bench.h"

#include <fmt/format.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <exception>

#include "bench/rows.h"
#include "pool/media/media.h"
#include "tools/program/signals.h"

namespace bowhead::bench {
namespace {

constexpr int kExitEnvironment = 3;

struct Row {
  const char* name;
  Result<void> (*run)(Bench&);
};
// The last two share a large pool.
constexpr Row kRows[] = {
    {"copy", run_copy_rows},     {"queue", run_queue_rows},   {"joined", run_joined_rows},
    {"alloc", run_alloc_rows},   {"space", run_space_rows},   {"rpc", run_rpc_rows},
    {"share", run_share_rows},   {"lookup", run_lookup_rows}, {"evict", run_evict_rows},
    {"exists", run_exists_rows}, {"open", run_open_rows}};

/// The whole benchmark; runs in the child.
int measure(const PoolBenchOptions& options, const std::string& locator) {
  const Machine machine = this_machine();
  Report report({"pool", options.quick, options.json, options.command}, machine);
  Bench bench{options, locator, machine, std::move(report), {}};
  bench.report.print_header();
  bench.report.print_heading();
  for (const Row& row : kRows) {
    const auto& chosen = options.rows;
    if (!chosen.empty() && std::find(chosen.begin(), chosen.end(), row.name) == chosen.end())
      continue;
    if (auto result = row.run(bench); !result) return complain(result.error());
  }
  bench.report.progress("");
  return 0;
}

int measure_guarded(const PoolBenchOptions& options, const std::string& locator) {
  try {
    return measure(options, locator);
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

Result<void> check_options(const PoolBenchOptions& options) {
  const auto& names = pool_bench_rows();
  for (const std::string& row : options.rows) {
    if (std::find(names.begin(), names.end(), row) != names.end()) continue;
    return Error{Status::INVALID_ARGUMENT,
                 fmt::format("there is no row '{}'; the rows are {}", row, fmt::join(names, ", "))};
  }
  if (options.rounds < 5) {
    return Error{Status::INVALID_ARGUMENT, "at least 5 rounds, for a median and a spread"};
  }
  return {};
}

/// The pools that are removed at the end must be the benchmark's own.
Result<void> check_unused(const std::string& locator) {
  const auto media = open_media(locator);
  if (media.status() == Status::NO_SUCH_POOL) return {};
  if (!media) return media.error();
  return Error{Status::POOL_EXISTS,
               fmt::format("{} exists, but the benchmark creates its own pools: give an unused "
                           "locator",
                           locator)};
}

}  // namespace

const std::vector<std::string>& pool_bench_rows() {
  static const std::vector<std::string> names = [] {
    std::vector<std::string> list;
    for (const Row& row : kRows) list.emplace_back(row.name);
    return list;
  }();
  return names;
}

int run_pool_bench(const PoolBenchOptions& options) {
  if (auto result = check_options(options); !result) return complain(result.error());
  const std::string locator =
      options.locator.empty() ? fmt::format("shm:bench-{}", getpid()) : options.locator;
  if (auto result = check_unused(locator); !result) return complain(result.error());
  const std::string joined = joined_locator(locator);
  if (joined != locator) {
    if (auto result = check_unused(joined.substr(locator.size() + 1)); !result)
      return complain(result.error());
  }
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
    _exit(measure_guarded(options, locator));
  }
  int code = kExitEnvironment;
  if (child < 0) {
    fmt::print(stderr, "bowhead: fork: {}\n", std::strerror(errno));
  } else {
    code = supervise(child, signals);
  }
  // These exist only if the child was killed.
  (void)Pool::destroy(joined, true).status();
  (void)Pool::destroy(locator, true).status();
  prctl(PR_SET_CHILD_SUBREAPER, 0);
  sigprocmask(SIG_SETMASK, &before, nullptr);
  return code;
}

}  // namespace bowhead::bench
