// SPDX-License-Identifier: Apache-2.0
// Transfers and jobs of the C ABI: the thread-safe face of gpu::Transfers, which is not, with an
// eventfd.
//
// Invariants:
//   A1 A job is in running_ until it is done, then in unreported_ until bh_gpu_poll() has reported
//      it or its handle was freed.
//   A2 The eventfd is readable if unreported_ is not empty, or the device may be through with a
//      job of running_ that was not polled since.
//   A3 No thread waits for the device under mutex_, but for close(), which no call overlaps.
#pragma once

#include <chrono>
#include <condition_variable>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "api/gpu.h"
#include "base/unique_fd.h"
#include "gpu/jobs/transfers.h"

namespace bowhead::api {

using Clock = std::chrono::steady_clock;

/// Wakes threads and event loops. Rung by threads of the device, so it never waits.
class Bell {
 public:
  static Result<std::shared_ptr<Bell>> make();

  int fd() const { return fd_.get(); }
  void ring();
  /// The eventfd is not readable any more.
  void clear();
  uint64_t rings();
  /// Waits until it has been rung more often than that, or until then.
  void wait(uint64_t rings, Clock::time_point until);

 private:
  UniqueFd fd_;
  std::mutex mutex_;
  std::condition_variable rung_;
  uint64_t rings_ = 0;  ///< guarded by mutex_
};

class SharedTransfers {
 public:
  struct Parts {
    std::shared_ptr<gpu::Device> device;
    std::shared_ptr<RegisteredMemory> memory;
    gpu::Transfers transfers;
    std::shared_ptr<Bell> bell;
  };
  SharedTransfers(bh_pool& pool, Parts parts);

  int fd() const { return bell_->fd(); }

  /// Takes over the job if it starts.
  bh_status start(bool spills, bh_namespace_id ns, std::span<const gpu::BlockOfTokens> blocks,
                  const gpu::JobOptions& options, std::unique_ptr<bh_gpu_job>& job);
  bh_status wait_layer(const bh_gpu_job& job, uint32_t layer, gpu::Stream stream);
  bh_status layer_ready(bh_gpu_job& job, uint32_t layer, gpu::Stream stream);
  bh_status poll(bh_gpu_completion* out, size_t room, size_t& count);
  bool wait(bh_gpu_job& job, Clock::time_point until);
  void cancel(bh_gpu_job& job);
  bh_status results(const bh_gpu_job& job, bh_gpu_result* out, size_t count);
  bh_status get_info(bh_gpu_transfers_info& out);
  void forget(bh_gpu_job& job);

  /// Cancels all jobs and waits for them. The pool is not used any more.
  void close();

 private:
  bh_status check_layer(const bh_gpu_job& job, uint32_t layer, bool of_spill) const;
  bool look(bh_gpu_job& job);
  void settle(bh_gpu_job& job);

  const std::shared_ptr<gpu::Device> device_;
  const std::shared_ptr<RegisteredMemory> memory_;
  const std::shared_ptr<Bell> bell_;
  const uint32_t layers_;
  std::mutex mutex_;                         ///< guards the members below, and the jobs
  bh_pool* pool_;                            ///< null: closed
  std::optional<gpu::Transfers> transfers_;  ///< empty: closed
  std::vector<bh_gpu_job*> running_, unreported_;
};

}  // namespace bowhead::api

struct bh_gpu_transfers {
  std::shared_ptr<bowhead::api::SharedTransfers> shared;
  unsigned forks_at_open = bowhead::api::forks();
};

struct bh_gpu_job {
  std::shared_ptr<bowhead::api::SharedTransfers> shared;
  void* context = nullptr;
  unsigned forks_at_open = bowhead::api::forks();
  bool spills = false;
  bool by_layers = false;
  std::shared_ptr<bowhead::gpu::Transfers::Job> job;
  std::vector<bh_gpu_result> results = {};  ///< filled when it is done
  size_t failed = 0;
  bool is_done = false;
};
