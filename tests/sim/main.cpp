// SPDX-License-Identifier: Apache-2.0
// sim: runs seeds, in as many processes as requested, and reports which ones fail.
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <fstream>
#include <string>

#include "tests/sim/run.h"

namespace bowhead::sim {
namespace {

constexpr uint64_t kChunk = 50;  ///< seeds that a job takes at once
constexpr size_t kJobsMax = 256;

struct Options {
  uint64_t first = 0, last = 0;
  size_t jobs = 1;
  std::string state_file;
  const SeededBug* bug = nullptr;
  Focus focus = Focus::ANYTHING;
  bool shrink = false, trace = false;
};

/// Shared by the jobs.
struct Shared {
  std::atomic<uint64_t> next{0}, passed{0}, failed{0};
  struct Job {
    std::atomic<uint64_t> seed{0};   ///< seed that it runs
    std::atomic<uint64_t> chunk{0};  ///< first seed of the chunk that it runs
  };
  std::array<Job, kJobsMax> jobs;
};

/// Prints all information about a failure.
void explain(Simulator& simulator, const Options& options, Plan plan, Outcome outcome) {
  if (options.shrink) {
    plan = simulator.shrink(plan, options.bug, *outcome.failure);
    outcome = simulator.run(plan, options.bug, options.trace);
  }
  const std::string text =
      fmt::format("{}{}seed {} failed: {}: {}\n\n", plan.describe(), outcome.last_steps, plan.seed,
                  outcome.failure->kind, outcome.failure->text);
  std::fwrite(text.data(), 1, text.size(), stdout);
  std::fflush(stdout);
}

void work(const Options& options, Shared& shared, Shared::Job& job) {
  Simulator simulator;
  for (;;) {
    const uint64_t begin = shared.next.fetch_add(kChunk);
    if (begin > options.last) return;
    job.chunk = begin;
    for (uint64_t seed = begin; seed < begin + kChunk && seed <= options.last; ++seed) {
      job.seed = seed;
      const Plan plan = make_plan(seed, options.focus);
      Outcome outcome = simulator.run(plan, options.bug, options.trace && !options.shrink);
      ++(outcome.failure ? shared.failed : shared.passed);
      if (outcome.failure) explain(simulator, options, plan, std::move(outcome));
    }
    job.chunk = UINT64_MAX;
  }
}

/// The state file: all seeds before `next` have been run. Counts are sums over all runs.
struct State {
  uint64_t next = 0, passed = 0, failed = 0;
};

State read_state(const std::string& path, uint64_t first) {
  State state{.next = first};
  std::ifstream in(path);
  if (in) in >> state.next >> state.passed >> state.failed;
  return state;
}

void write_state(const std::string& path, const State& state) {
  if (path.empty()) return;
  const std::string beside = path + ".new";
  std::ofstream(beside) << state.next << ' ' << state.passed << ' ' << state.failed << '\n';
  if (std::rename(beside.c_str(), path.c_str()) != 0) std::perror(path.c_str());
}

/// Waits for the jobs and shows their progress. Returns how many ended abnormally.
uint64_t watch(const Options& options, Shared& shared, const State& before) {
  uint64_t crashed = 0;
  std::vector<pid_t> jobs;
  for (size_t i = 0; i < options.jobs; ++i) {
    shared.jobs[i].chunk = UINT64_MAX;
    const pid_t pid = fork();
    if (pid == 0) {
      work(options, shared, shared.jobs[i]);
      std::fflush(stdout);
      _exit(0);
    }
    jobs.push_back(pid);
  }
  const bool terminal = isatty(STDERR_FILENO) != 0;
  for (size_t running = jobs.size(); running > 0; usleep(100'000)) {
    int status = 0;
    for (pid_t pid = waitpid(-1, &status, WNOHANG); pid > 0; pid = waitpid(-1, &status, WNOHANG)) {
      --running;
      const auto job = static_cast<size_t>(std::find(jobs.begin(), jobs.end(), pid) - jobs.begin());
      if (WIFEXITED(status) && WEXITSTATUS(status) == 0) continue;
      ++crashed;
      fmt::print("seed {} ended its job with status {:#x}\n", shared.jobs[job].seed.load(), status);
    }
    uint64_t next = std::min(shared.next.load(), options.last + 1);
    for (size_t i = 0; i < jobs.size(); ++i) next = std::min(next, shared.jobs[i].chunk.load());
    write_state(options.state_file,
                {next, before.passed + shared.passed, before.failed + shared.failed});
    if (terminal)
      fmt::print(stderr, "\rseed {} of {}: {} passed, {} failed ", next, options.last,
                 shared.passed.load(), shared.failed.load());
  }
  if (terminal) fmt::print(stderr, "\r\033[K");
  return crashed;
}

int run(Options options) {
  void* room =
      mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  BOWHEAD_ASSERT(room != MAP_FAILED);
  auto& shared = *new (room) Shared;
  const State before = read_state(options.state_file, options.first);
  shared.next = before.next;
  const auto start = std::chrono::steady_clock::now();
  const uint64_t crashed = watch(options, shared, before);
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
  const uint64_t passed = shared.passed, failed = shared.failed + crashed;
  fmt::print("{} seeds passed, {} failed, {:.0f} seeds/s\n", before.passed + passed,
             before.failed + failed, static_cast<double>(passed + failed) / seconds.count());
  return before.failed + failed == 0 ? 0 : 1;
}

}  // namespace
}  // namespace bowhead::sim

int main(int argc, char** argv) {
  CLI::App app{"Runs the pool's code over simulated hosts, caches and faults (docs/simulator.md)"};
  bowhead::sim::Options options;
  std::string seeds = "1..1000", bug, focus;
  std::vector<std::string> bugs, focuses;
  for (const auto& known : bowhead::sim::all_seeded_bugs()) bugs.emplace_back(known.name);
  for (const std::string_view known : bowhead::sim::focus_names()) focuses.emplace_back(known);
  app.add_option("--seeds", seeds, "A..B, both included, or one seed")->capture_default_str();
  app.add_option("--jobs", options.jobs, "Processes at work")
      ->check(CLI::Range(size_t{1}, bowhead::sim::kJobsMax))
      ->capture_default_str();
  app.add_option("--state", options.state_file, "File that says how far it got, to go on from");
  app.add_option("--bug", bug, "Run with this seeded bug")->check(CLI::IsMember(bugs));
  app.add_option("--focus", focus, "Kind of plans; without it, those in which --bug is looked for")
      ->check(CLI::IsMember(focuses));
  app.add_flag("--shrink", options.shrink, "Make the plan of a failing seed smaller");
  app.add_flag("--trace", options.trace, "Print every step; with --shrink, of the smallest plan");
  CLI11_PARSE(app, argc, argv);
  char rest = 0;
  const int parsed = std::sscanf(seeds.c_str(), "%lu..%lu%c", &options.first, &options.last, &rest);
  if (parsed == 1 && seeds.find("..") == std::string::npos) options.last = options.first;
  if (parsed < 1 || parsed > 2 || options.last < options.first) {
    fmt::print(stderr, "sim: --seeds {}: give A..B, both numbers, or one number\n", seeds);
    return 2;
  }
  options.bug = bowhead::sim::find_seeded_bug(bug);
  if (options.bug != nullptr) options.focus = options.bug->focus;
  options.focus = bowhead::sim::find_focus(focus).value_or(options.focus);
  return bowhead::sim::run(options);
}
