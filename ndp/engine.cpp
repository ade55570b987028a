// SPDX-License-Identifier: Apache-2.0
#include "ndp/engine.h"

#include <algorithm>
#include <chrono>

#include "base/clock.h"

namespace bowhead::ndp {
namespace {

using Clock = std::chrono::steady_clock;

/// A device that does not run is lost within a fraction of this.
constexpr uint64_t kHangsMs = 1000, kShunnedNs = 10'000'000'000;

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

void FallbackEngine::submit(std::span<Job> jobs) {
  const uint64_t submitted_ns = now_ns();
  for (Job& job : jobs) job.submitted_ns = submitted_ns;
  if (submitted_ns < shunned_until_ns_.load(std::memory_order_relaxed))
    process_.submit(jobs);
  else
    first_->submit(jobs);
}

bool FallbackEngine::poll(Job& job) {
  if (!first_->poll(job)) return false;
  finish(job);
  return true;
}

void FallbackEngine::wait(Job& job) {
  first_->wait(job);
  finish(job);
}

/// Within what is left of its time.
void FallbackEngine::finish(Job& job) {
  const Status status = job.answer->status();
  if (status != Status::DEVICE_LOST && status != Status::LIMIT_REACHED) return;
  const uint64_t now = now_ns(), limit_ms = job.time_limit_ms,
                 waited_ms = (now - job.submitted_ns) / 1'000'000;
  if (status == Status::DEVICE_LOST && waited_ms >= kHangsMs)
    shunned_until_ns_.store(now + kShunnedNs, std::memory_order_relaxed);
  if (limit_ms != 0 && waited_ms >= limit_ms) {
    job.answer = Status::TIMED_OUT;
    return;
  }
  job.time_limit_ms = limit_ms == 0 ? 0 : limit_ms - waited_ms;
  process_.submit(job);
  job.time_limit_ms = limit_ms;
}

}  // namespace bowhead::ndp
