// SPDX-License-Identifier: Apache-2.0
#include "compression/thread_team.h"

#include <algorithm>
#include <atomic>
#include <thread>

namespace bowhead::compression {

ThreadTeam::ThreadTeam(Profile profile, uint32_t threads) {
  if (threads == 0) threads = std::max(std::thread::hardware_concurrency(), 1u);
  for (uint32_t thread = 0; thread < threads; ++thread) {
    encoders_.emplace_back(profile);
    decoders_.emplace_back();
  }
}

void ThreadTeam::encode(std::span<EncodeJob> jobs) {
  share(jobs.size(), [&](size_t thread, size_t job) {
    EncodeJob& one = jobs[job];
    one.size = encoders_[thread].encode(one.shape, one.values, one.frame);
  });
}

void ThreadTeam::decode(std::span<DecodeJob> jobs) {
  share(jobs.size(), [&](size_t thread, size_t job) {
    DecodeJob& one = jobs[job];
    one.status = one.planes == 0
                     ? decoders_[thread].decode(one.frame, one.values)
                     : decoders_[thread].decode_prefix(one.frame, one.planes, one.values);
  });
}

void ThreadTeam::share(size_t jobs, const std::function<void(size_t, size_t)>& work) const {
  // The index of the next job is all that threads share; the joins order the results.
  std::atomic<size_t> next{0};
  const auto take = [&](size_t thread) {
    for (size_t job; (job = next.fetch_add(1, std::memory_order_relaxed)) < jobs;)
      work(thread, job);
  };
  std::vector<std::jthread> others;
  for (size_t thread = 1; thread < std::min<size_t>(threads(), jobs); ++thread)
    others.emplace_back(take, thread);
  take(0);
}

}  // namespace bowhead::compression
