// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <list>
#include <utility>
#include <variant>

#include "python/src/batches.h"
#include "python/src/pool.h"

namespace bowhead::python {

struct Job;
using Jobs = std::list<Job>;

struct Job {
  template <class Batch, class... Args>
  explicit Job(std::in_place_type_t<Batch> type, Args&&... args)
      : batch(type, std::forward<Args>(args)...) {}

  std::variant<PutBatch, GetBatch, RemoveBatch, ExistsBatch> batch;
  Jobs::iterator self;
  bh_completion ended = {};  // once it is reported
};

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
  uint64_t submit(const Namespace& ns, Jobs job, nb::handle priority);
  nb::object poll(size_t limit);
  bool cancel(uint64_t job);
  bool drain(double timeout_s);
  void close() override;

 private:
  OfPool pool_;
  Guarded<bh_queue> handle_;
  Jobs jobs_;  // submitted and not reported
};

}  // namespace bowhead::python
