// SPDX-License-Identifier: Apache-2.0
// QueuePair: how a process asks the device of a pool (firmware-sim/device.h). It holds one queue
// pair, memory for requests, and the area for answers that the device gave it.
//
// Invariants, under the mutex
//   P1 The memory of a command, for its request and its answer, is not reused before the command
//      completes or the device is known to have ended, even if its thread no longer waits.
//   P2 Each command ends once: by its completion, or DEVICE_LOST when the channel says that the
//      device began a new session, or no process of this machine is the device any more.
#pragma once

#include <cstdint>
#include <memory>

#include "base/status.h"
#include "ndp/engine.h"
#include "pool/pool.h"

namespace bowhead::driver {

struct QueuePairOptions {
  uint64_t request_bytes = uint64_t{1} << 20;  ///< memory for requests that are under way
  uint64_t answer_bytes = uint64_t{4} << 20;   ///< likewise for their answers
  uint64_t timeout_ms = 10'000;                ///< of a request: then it is DEVICE_LOST
};

/// What a request cost, as the device says.
struct DeviceTime {
  uint64_t device_ns = 0;
  uint64_t modelled_ns = 0;  ///< of the modelled device; 0: there is no model
};

/// Thread-safe.
class QueuePair final : public ndp::Engine {
 public:
  /// The pool must outlive it. A device need not run yet. Returns LIMIT_REACHED (all queue pairs of
  /// this host are taken), NOT_SUPPORTED (a pool of an earlier version), READ_ONLY, and statuses of
  /// Pool::reserve().
  static Result<std::unique_ptr<QueuePair>> open(Pool& pool, const QueuePairOptions& options = {});
  ~QueuePair() override;

  const char* name() const override { return "device"; }
  /// FORKED: it is the parent's; MEDIA_ERROR: the pool's medium failed.
  Result<ndp::BlocksRead> run(const ndp::Request& request, const ndp::AnswerRoom& room) override;
  /// The same, with the time that it took.
  Result<ndp::BlocksRead> run(const ndp::Request& request, const ndp::AnswerRoom& room,
                              DeviceTime& time);
  /// The empty command: how long a command takes without its work. DEVICE_LOST, FORKED,
  /// MEDIA_ERROR.
  Result<void> ping();

 private:
  class Impl;
  explicit QueuePair(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace bowhead::driver
