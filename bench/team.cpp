// SPDX-License-Identifier: Apache-2.0
#include "bench/team.h"

#include <fmt/format.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <exception>
#include <utility>

#include "base/assert.h"

namespace bowhead::bench {

struct alignas(64) Team::Shared {
  pthread_barrier_t barrier;
};

void die_with_parent(int parent_pid) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != parent_pid) _exit(1);  // the parent died before prctl()
}

uint32_t Member::count() const { return team_.count(); }

void Member::time(uint32_t section, const std::function<void()>& work) {
  pthread_barrier_wait(&team_.shared_->barrier);
  const uint64_t begin = now_ns();
  work();
  team_.interval(index_, section) = {begin, now_ns()};
}

void Member::leave(uint32_t place, double number) { team_.slot(index_, place) = number; }

void Member::leave_text(const std::string& text) {
  auto& room = team_.outcomes_[index_].text;
  *fmt::format_to_n(room, sizeof room - 1, "{}", text).out = '\0';
}

Team::Team(std::vector<int> cpus, uint32_t sections, uint32_t numbers)
    : cpus_(std::move(cpus)), sections_(sections), numbers_(numbers) {
  shared_bytes_ = sizeof(Shared) + count() * (sizeof(Outcome) + sections * sizeof(Interval) +
                                              numbers * sizeof(double));
  void* memory =
      mmap(nullptr, shared_bytes_, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  BOWHEAD_ASSERT(memory != MAP_FAILED);
  shared_ = static_cast<Shared*>(memory);
  intervals_ = reinterpret_cast<Interval*>(shared_ + 1);
  numbers_left_ = reinterpret_cast<double*>(intervals_ + uint64_t{count()} * sections);
  outcomes_ = reinterpret_cast<Outcome*>(numbers_left_ + uint64_t{count()} * numbers);
  pthread_barrierattr_t attributes;
  pthread_barrierattr_init(&attributes);
  pthread_barrierattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED);
  pthread_barrier_init(&shared_->barrier, &attributes, count());
  pthread_barrierattr_destroy(&attributes);
}

// The barrier is not destroyed: if a member was killed in it, that would block for ever.
Team::~Team() { munmap(shared_, shared_bytes_); }

Team::Interval& Team::interval(uint32_t member, uint32_t section) const {
  BOWHEAD_ASSERT(member < count() && section < sections_);
  return intervals_[uint64_t{member} * sections_ + section];
}

double& Team::slot(uint32_t member, uint32_t place) const {
  BOWHEAD_ASSERT(member < count() && place < numbers_);
  return numbers_left_[uint64_t{member} * numbers_ + place];
}

double Team::seconds(uint32_t section) const {
  uint64_t begin = UINT64_MAX;
  uint64_t end = 0;
  for (uint32_t i = 0; i < count(); ++i) {
    begin = std::min(begin, interval(i, section).begin_ns);
    end = std::max(end, interval(i, section).end_ns);
  }
  return static_cast<double>(end - begin) * 1e-9;
}

double Team::number(uint32_t member, uint32_t place) const { return slot(member, place); }
std::string Team::text(uint32_t member) const { return outcomes_[member].text; }

int Team::run_member(uint32_t index, int parent_pid,
                     const std::function<Result<void>(Member&)>& body) {
  die_with_parent(parent_pid);
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(cpus_[index], &set);
  sched_setaffinity(0, sizeof set, &set);
  Member member(*this, index);
  Result<void> result;
  try {
    result = body(member);
  } catch (const std::exception& exception) {
    result = Error{Status::SYSTEM, exception.what()};
  }
  if (result) return 0;
  Outcome& outcome = outcomes_[index];
  outcome.status = static_cast<int32_t>(result.status());
  *fmt::format_to_n(outcome.detail, sizeof outcome.detail - 1, "{}", result.error().message()).out =
      '\0';
  return 1;
}

Result<void> Team::run(const std::function<Result<void>(Member&)>& body) {
  std::fflush(nullptr);
  const int self = getpid();
  std::vector<int> pids;
  for (uint32_t i = 0; i < count(); ++i) {
    const pid_t pid = fork();
    if (pid == 0) _exit(run_member(i, self, body));
    if (pid > 0) {
      pids.push_back(pid);
      continue;
    }
    const Error error{Status::SYSTEM, fmt::format("fork: {}", std::strerror(errno))};
    for (const int started : pids) kill(started, SIGKILL);
    (void)wait_for(pids).status();
    return error;
  }
  return wait_for(pids);
}

Result<void> Team::wait_for(std::vector<int> pids) {
  Result<void> result;
  while (!pids.empty()) {
    int status = 0;
    const pid_t ended = waitpid(-1, &status, 0);
    if (ended < 0 && errno == EINTR) continue;
    BOWHEAD_ASSERT(ended > 0);
    const auto found = std::find(pids.begin(), pids.end(), ended);
    if (found == pids.end()) continue;
    pids.erase(found);
    if (status == 0 || !result) continue;
    // The first failure counts; the others would wait for this member for ever.
    result = Error{Status::SYSTEM, fmt::format("a measuring process died, wait status {}", status)};
    for (const int pid : pids) kill(pid, SIGKILL);
  }
  for (uint32_t i = 0; i < count(); ++i) {
    if (outcomes_[i].status != 0) {
      return Error{static_cast<Status>(outcomes_[i].status), outcomes_[i].detail};
    }
  }
  return result;
}

}  // namespace bowhead::bench
