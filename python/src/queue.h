// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <unordered_map>

#include "python/src/batches.h"
#include "python/src/pool.h"

namespace bowhead::python {

/// A queue and its jobs. A job keeps keys, buffers and results until it is reported.
///
/// submit(), poll() and cancel() never wait, so they keep the GIL: a thread that releases it may
/// have to wait for it longer than they take.
class Queue : public PartOfPool {
 public:
  Queue(nb::object pool, uint32_t threads, uint32_t jobs_max);
  ~Queue();
  Queue(const Queue&) = delete;
  Queue& operator=(const Queue&) = delete;

  bool is_closed() const { return !handle_.is_open(); }
  int fileno();
  uint64_t submit(const Namespace& ns, std::unique_ptr<Job> job, nb::handle priority);
  nb::object poll(size_t limit);
  bool cancel(uint64_t job);
  bool drain(double timeout_s);
  void close() override;

 private:
  OfPool pool_;
  Guarded<bh_queue> handle_;
  std::unordered_map<Job*, std::unique_ptr<Job>> jobs_;  // submitted and not reported
};

}  // namespace bowhead::python
