// SPDX-License-Identifier: Apache-2.0
// The work that a job has queued on a device, and its outcome.
//
//   queued      until the device is through with the work in front of the mark
//   through     all of it is done: its reads are done, and its stores are visible to this CPU
//   lost        the GPU is lost. A driver says so as soon as one operation failed, and the work
//               that other engines of the GPU have under way may still arrive
//   unknown     the driver does not say whether it is through: the same
//
// A job that is not through may still read and write its arguments and buffers: none of them is
// used again. A job is done once it was finished, whatever its outcome.
//
// Thread-safety: none.
#pragma once

#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "base/status.h"
#include "gpu/devices/device.h"

namespace bowhead::gpu {

class DeviceJob {
 public:
  /// From here on `mark` is the job's, until end().
  void begin(Event mark) { mark_ = mark; }

  /// The work queued in `stream` until here is the job's, too. If that fails, so does the job.
  Result<void> mark(Device& device, Stream stream) {
    auto recorded = device.record(mark_, stream);
    asked_ = recorded.status();
    return recorded;
  }

  /// Whether it is over; always true for a job that began nothing.
  bool poll(Device& device) {
    if (mark_ == nullptr || asked_ != Status::OK) return true;
    const auto done = device.is_done(mark_);
    if (done && !*done) return false;
    asked_ = done.status();
    return true;
  }
  void wait(Device& device) {
    if (mark_ != nullptr && asked_ == Status::OK) asked_ = device.synchronize(mark_).status();
  }
  /// For a job that fails to start: its work that is queued already may still move bytes.
  void drain(Device& device, Stream stream) {
    if (mark_ != nullptr && mark(device, stream)) wait(device);
  }

  /// Once it is over.
  bool is_through() const { return asked_ == Status::OK; }
  /// OK: through. GPU_LOST: lost. SYSTEM: unknown.
  Status outcome() const {
    return asked_ == Status::OK || asked_ == Status::GPU_LOST ? asked_ : Status::SYSTEM;
  }

  /// The job is done. Returns the event, which may be recorded anew whatever it meant; null if
  /// there is none.
  Event end() {
    is_done_ = true;
    return std::exchange(mark_, nullptr);
  }
  bool is_done() const { return is_done_; }

 private:
  Event mark_ = nullptr;       ///< behind all queued work
  Status asked_ = Status::OK;  ///< the device's last answer
  bool is_done_ = false;
};

/// The jobs of one kind that are not done. `Job` has a DeviceJob, `on_device`.
template <class Job>
class RunningJobs {
 public:
  /// `finish` is called once for each job, when it is over: it handles the outcome of the job, and
  /// calls on_device.end().
  RunningJobs(Device& device, std::function<void(Job&)> finish)
      : device_(device), finish_(std::move(finish)) {}

  void add(std::shared_ptr<Job> job) { running_.push_back(std::move(job)); }

  /// Whether the job is done; finishes it first if it is over.
  bool poll(Job& job) {
    if (job.on_device.is_done()) return true;
    if (!job.on_device.poll(device_)) return false;
    finish(job);
    return true;
  }
  /// Waits until it is done.
  void wait(Job& job) {
    if (job.on_device.is_done()) return;
    job.on_device.wait(device_);
    finish(job);
  }
  /// For a job that fails to start: its work in `stream` may still move bytes.
  void abandon(Job& job, Stream stream) {
    job.on_device.drain(device_, stream);
    finish(job);
  }
  std::vector<std::shared_ptr<Job>> all() const { return running_; }

  /// Whether the device may still read and write memory of an ended job, since the driver did not
  /// say that it was through.
  bool may_run() const { return may_run_; }

 private:
  void finish(Job& job) {
    may_run_ = may_run_ || !job.on_device.is_through();
    finish_(job);
    std::erase_if(running_, [&](const auto& one) { return one.get() == &job; });
  }

  Device& device_;
  const std::function<void(Job&)> finish_;
  std::vector<std::shared_ptr<Job>> running_;
  bool may_run_ = false;
};

}  // namespace bowhead::gpu
