// SPDX-License-Identifier: Apache-2.0
// Queue: jobs that threads of its own execute, and the order of their reports.
//
// Thread-safety: every method may be called from any thread at any time; destroying the queue may
// not overlap a call. A forked child must neither use nor destroy it: its threads are the parent's.
//
// Invariants, under the mutex
//   Q1 A job is in exactly one place: waiting, running, or ended. Its memory is the job's until
//      poll() has reported it, or the queue is destroyed.
//   Q3 submit() makes all that a job needs until it is reported: from then on nothing is allocated,
//      so a worker cannot fail.
//   Q2 The eventfd is readable if and only if ended jobs were announced and are not yet reported.
//      An ended job that is not announced was ended by a worker that takes a quick job next, and
//      has fewer than kQuickMax such jobs before it: its announcement is late by these at most.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <thread>
#include <vector>

#include "base/status.h"

namespace bowhead {

struct QueueOptions {
  uint32_t threads = 1;      ///< that execute jobs, 1 to 64
  uint32_t jobs_max = 1024;  ///< submitted and not yet reported, 1 to 1,048,576
};

/// The result of a job.
struct JobResult {
  Status status = Status::OK;  ///< CANCELLED: it was not executed
  size_t failed = 0;           ///< items that failed
};

struct Job {
  std::function<JobResult()> run;  ///< must not throw
  uint32_t priority = 0;           ///< higher ones are started first, equal ones in order
  /// It takes some 50 us at most: the report of the job before it may wait for its end.
  bool quick = false;
  void* context = nullptr;  ///< returned in the report
  uint32_t operation = 0;   ///< returned in the report
};

struct JobReport {
  uint64_t number = 0;
  void* context = nullptr;
  uint32_t operation = 0;
  JobResult result;
};

class Queue {
 public:
  /// Returns INVALID_ARGUMENT (an option is out of its range), SYSTEM.
  static Result<std::unique_ptr<Queue>> open(const QueueOptions& options);
  /// Cancels the jobs that have not started, and waits for the others.
  ~Queue();
  Queue(const Queue&) = delete;
  Queue& operator=(const Queue&) = delete;

  /// The eventfd: readable while there are jobs to report.
  int fd() const { return fd_; }
  /// Returns the number of the job, from 1 on; LIMIT_REACHED if jobs_max are not yet reported.
  Result<uint64_t> submit(Job job);
  /// Reports ended jobs in the order in which they ended; how many.
  size_t poll(std::span<JobReport> out);
  /// Ends a waiting job as CANCELLED. Returns NOT_FOUND if it is not waiting.
  Status cancel(uint64_t number);
  /// Waits until all jobs submitted before have ended. Returns BUSY if the time is over.
  Status drain(std::chrono::milliseconds timeout);

 private:
  static constexpr size_t kQuickMax = 16;
  struct Numbered {
    Job job;
    uint64_t number = 0;
    JobResult result = {};  ///< once it has ended
  };
  using Jobs = std::map<uint64_t, Numbered>;  ///< by number, or in the order of their ends

  explicit Queue(uint32_t jobs_max) : jobs_max_(jobs_max) {}
  void work();
  Jobs* next();
  void end(Jobs::node_type one, JobResult result);
  void announce();
  bool unfinished_up_to(uint64_t number) const;

  const uint32_t jobs_max_;
  int fd_ = -1;

  std::mutex mutex_;
  std::condition_variable work_;   ///< for workers: a job waits, or the queue closes
  std::condition_variable ended_;  ///< for drain(): a job ended
  std::map<uint32_t, Jobs, std::greater<>> waiting_;  ///< by priority, each in order
  size_t waiting_count_ = 0;
  Jobs spare_;                     ///< nodes of jobs that were reported
  std::vector<uint64_t> running_;  ///< numbers; as many as there are threads fit (Q3)
  Jobs done_;                      ///< ended jobs that are not reported
  size_t quiet_ = 0;               ///< ended jobs that were not announced
  uint64_t last_number_ = 0, ends_ = 0;
  size_t idle_ = 0;      ///< workers that wait for a job
  size_t drainers_ = 0;  ///< callers in drain()
  bool closing_ = false;

  std::vector<std::thread> threads_;
};

}  // namespace bowhead
