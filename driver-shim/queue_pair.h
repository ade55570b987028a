// SPDX-License-Identifier: Apache-2.0
// QueuePair: how a process asks the device of a pool (firmware-sim/device.h). It holds one queue
// pair, memory for requests, and the area for answers that the device gave it.
//
// It has no thread: jobs make progress when a thread submits, polls or waits.
//
// Where the device is a PCI function of this machine (pci_card.h), and no device serves the pool,
// the function is enabled for it: when the pair is opened, and again while jobs are DEVICE_LOST.
//
// Invariants, under the mutex
//   P1 The memory of a command, for its request and its answer, is not reused before the command
//      completes or the device is known to have ended, even if no thread waits for it.
//   P2 Each job ends once: by its completion, by its time limit, or with DEVICE_LOST, when no
//      process of this machine is the device any more, when it does not answer, or when it was
//      started anew again and again.
//   P3 A completion counts for the command that has its number and was sent in the present session
//      of the device. No number is used twice, nor by an earlier process of this pair.
#pragma once

#include <cstdint>
#include <memory>

#include "base/status.h"
#include "driver-shim/mailbox.h"
#include "ndp/engine.h"
#include "pool/pool.h"

namespace bowhead::driver {

struct QueuePairOptions {
  uint64_t request_bytes = uint64_t{1} << 20;  ///< memory for requests that are under way
  uint64_t answer_bytes = uint64_t{4} << 20;   ///< likewise for their answers
  /// Of the command that the device has had longest, and of all that waits while nothing comes or
  /// goes: then they are DEVICE_LOST.
  uint64_t timeout_ms = 10'000;
};
/// For empty commands and mailbox commands. Where several hosts have the pool, only the time limit
/// tells that there is no device.
inline constexpr QueuePairOptions kSmallQueuePair{
    .request_bytes = 8192, .answer_bytes = 8192, .timeout_ms = 2000};

/// Thread-safe. All jobs are done before it goes.
class QueuePair final : public ndp::Engine, public MailboxTransport {
 public:
  using Engine::submit;
  /// The pool must outlive it. A device need not run yet. Returns LIMIT_REACHED (all queue pairs of
  /// this host are taken), NOT_SUPPORTED (a pool of an earlier version), READ_ONLY, and statuses of
  /// Pool::reserve().
  static Result<std::unique_ptr<QueuePair>> open(Pool& pool, const QueuePairOptions& options = {});
  ~QueuePair() override;

  const char* name() const override { return "device"; }
  /// Outcomes also: FORKED: it is the parent's; MEDIA_ERROR: the pool's medium failed. Jobs for
  /// which there is no room yet wait their turn.
  void submit(std::span<ndp::Job> jobs) override;
  bool poll(ndp::Job& job) override;
  void wait(ndp::Job& job) override;
  void cancel(ndp::Job& job) override;

  /// Sends so many empty commands, `depth` of them under way at a time, and waits for all: how long
  /// a command takes without its work. DEVICE_LOST, FORKED, MEDIA_ERROR.
  Result<void> ping(uint64_t count = 1, uint64_t depth = 1);

  /// A mailbox command. DEVICE_LOST: it does not answer, and may have carried it out.
  Result<cxl::Reply> send(uint16_t opcode, std::span<const std::byte> input) override;
  size_t payload_bytes_max() const override { return cxl::kPayloadBytesMax; }

 private:
  class Impl;
  explicit QueuePair(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace bowhead::driver
