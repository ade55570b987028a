// SPDX-License-Identifier: Apache-2.0
#include "ndp/engine.h"

#include <algorithm>
#include <chrono>

namespace bowhead::ndp {
namespace {

using Clock = std::chrono::steady_clock;

Result<BlocksRead> run_within(const Job& job, Clock::time_point end) {
  return ndp::run(job.request, job.room, [&] {
    if (Clock::now() > end) return Status::TIMED_OUT;
    return job.checkpoint ? job.checkpoint() : Status::OK;
  });
}

}  // namespace

void ProcessEngine::submit(std::span<Job> jobs) {
  // All of them begin now: a time limit counts what those before take.
  const Clock::time_point submitted = Clock::now();
  for (Job& job : jobs) {
    const Clock::time_point begun = Clock::now();
    job.was_elsewhere = false;
    constexpr uint64_t kMostMs = uint64_t{1} << 32;
    const std::chrono::milliseconds limit(std::min(job.time_limit_ms, kMostMs));
    job.answer = job.time_limit_ms > 0 ? run_within(job, submitted + limit)
                                       : ndp::run(job.request, job.room, job.checkpoint);
    job.device_ns = static_cast<uint64_t>(
        std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now() - begun).count());
  }
}

bool FallbackEngine::finish(Job& job) {
  const Status status = job.answer->status();
  if (status == Status::DEVICE_LOST || status == Status::LIMIT_REACHED) process_.submit(job);
  return true;
}

}  // namespace bowhead::ndp
