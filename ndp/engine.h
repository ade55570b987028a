// SPDX-License-Identifier: Apache-2.0
// Engines carry out requests: in the calling thread, or elsewhere. Who asks cannot tell which but
// by the time it takes.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <utility>

#include "ndp/request.h"

namespace bowhead::ndp {

/// A request for an engine, and its outcome. It stays where it is, with all that it names, from
/// submit() until it is done.
struct Job {
  Request request;
  AnswerRoom room;
  uint64_t time_limit_ms = 0;  ///< from submit() on; 0: as long as the engine allows
  Checkpoint checkpoint = {};  ///< for an engine in the calling thread; others do not ask it

  std::optional<Result<BlocksRead>> answer = {};  ///< once it is done
  uint64_t device_ns = 0;                         ///< then: time that the engine took
  uint64_t modelled_ns = 0;    ///< and that the modelled device takes; 0: there is no model
  bool was_elsewhere = false;  ///< and whether it was not in the calling thread

  uint64_t ticket = 0;        ///< of the engine
  uint64_t submitted_ns = 0;  ///< likewise
};

/// Thread-safe; a job is one thread's. Outcomes are those of ndp::run(), and
///   TIMED_OUT    the job took longer than its time limit
///   CANCELLED    it was cancelled
/// and of an engine elsewhere, where blocks need their offset and stamp,
///   LAPSED         a block did not stay
///   DEVICE_LOST    it does not answer
///   LIMIT_REACHED  it has no room for a request or an answer as large
/// After an error the room holds anything.
class Engine {
 public:
  virtual ~Engine() = default;
  virtual const char* name() const = 0;  ///< "process", "device", ...

  /// Begins these jobs, in their order. Does not wait for them, but an engine in the calling thread
  /// does them here.
  virtual void submit(std::span<Job> jobs) = 0;
  void submit(Job& job) { submit({&job, 1}); }
  /// Whether a job is done, as one that has an answer is, without waiting. Jobs make progress when
  /// any of them is asked for.
  virtual bool poll(Job& job) = 0;
  /// Waits until it is done.
  virtual void wait(Job& job) = 0;
  /// Has it end soon. It is still to be waited for, and may have been done before.
  virtual void cancel(Job& job) = 0;

  /// As ndp::run(), and waits for the answer.
  Result<BlocksRead> run(const Request& request, const AnswerRoom& room) {
    Job job{request, room};
    submit(job);
    wait(job);
    return *std::move(job.answer);
  }
};

/// In the calling thread.
class ProcessEngine final : public Engine {
 public:
  using Engine::submit;
  const char* name() const override { return "process"; }
  void submit(std::span<Job> jobs) override;
  bool poll(Job&) override { return true; }
  void wait(Job&) override {}
  void cancel(Job&) override {}
};

/// Has another engine do the jobs, and does those that the other cannot, since its device does not
/// answer or it has no room for them, in the thread that polls or waits. After a device that took a
/// second or more to be lost, as one that hangs, the other is not asked for ten seconds.
class FallbackEngine final : public Engine {
 public:
  using Engine::submit;
  explicit FallbackEngine(std::unique_ptr<Engine> first) : first_(std::move(first)) {}
  const char* name() const override { return "device or process"; }
  void submit(std::span<Job> jobs) override;
  bool poll(Job& job) override;
  void wait(Job& job) override;
  void cancel(Job& job) override { first_->cancel(job); }

 private:
  void finish(Job& job);

  const std::unique_ptr<Engine> first_;
  ProcessEngine process_;
  std::atomic<uint64_t> shunned_until_ns_{0};  ///< the first one
};

}  // namespace bowhead::ndp
