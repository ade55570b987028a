// SPDX-License-Identifier: Apache-2.0
// Task: a command that computes, from when the device takes it to its completion.
#pragma once

#include <bowhead/format/device.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "base/status.h"
#include "firmware-sim/areas.h"
#include "firmware-sim/hotness.h"
#include "firmware-sim/mailbox.h"
#include "firmware-sim/timing.h"
#include "firmware-sim/wire.h"
#include "ndp/engine.h"
#include "pool/window.h"

namespace bowhead::device {

/// The device as its tasks see it.
struct Surroundings {
  Window& window;
  Mailbox& mailbox;
  HotnessMonitor& hotness;
  const Profile* profile;  ///< of the device that is modelled; null: none is
};

/// One thread at a time has it; cancel(), is_cancelled() and is_worked_on() are for any thread.
class Task {
 public:
  /// `area`: for the answer, which it keeps until it goes; null: the pair has none.
  Task(const Surroundings& around, const core::Message& command, std::shared_ptr<Area> area);

  /// The request is so long that to read it takes longer than a small task.
  bool is_long() const;
  /// Copies the request out of the pool, and checks it. If it is refused, or a mailbox command, the
  /// task is done.
  void read();
  /// Takes so little time that a device does it at once, whatever else it has to do.
  bool is_small() const;
  /// Memory that it holds while it waits.
  uint64_t held_bytes() const { return input_bytes_; }
  /// Reads it, if that was not done, and has an engine begin it, which may do all of it here. The
  /// task may be done then.
  void begin(ndp::Engine& engine, const ndp::Checkpoint& checkpoint);
  /// Whether it is done, when its engine is asked.
  bool poll(ndp::Engine& engine);
  /// Ends it without an answer.
  void refuse(Status status);

  bool is_done() const { return done_; }
  /// Once it is done. False: the engine lost it, and no completion is sent.
  bool has_completion() const { return has_completion_; }
  const core::Message& completion() const { return completion_; }

  uint64_t id() const { return command_[BH_COMMAND_ID]; }
  bool is_late() const { return deadline_ns_ != 0 && window_.access().recency_ns() > deadline_ns_; }
  /// Relaxed: the flag orders nothing, and a worker that sees it late only works longer.
  void cancel() { cancelled_.store(true, std::memory_order_relaxed); }
  bool is_cancelled() const { return cancelled_.load(std::memory_order_relaxed); }

  /// A worker's work on it has begun, and ended: what it did is seen by who sees that.
  void set_worked_on(bool is) { worked_on_.store(is, std::memory_order_release); }
  bool is_worked_on() const { return worked_on_.load(std::memory_order_acquire); }

 private:
  Result<std::vector<std::byte>> read_input() const;
  Result<void> read_request();
  Result<void> carry_out_mail();
  Result<void> check_blocks() const;
  Result<void> find_room();
  void conclude();
  void mark_lost();
  Result<void> take_answer();
  void note_reads(uint64_t read_bytes);
  void model(const ndp::BlocksRead& read);
  bool is_lost(uint64_t offset, uint64_t bytes) const;
  bool is_readable(uint64_t offset, uint64_t bytes);
  std::span<std::byte> room() const;
  bool is_area_good() const;
  /// Its outcome is this error, with its sentence.
  void end(const Error& error);
  void complete(Status status, uint32_t left_out, uint64_t bytes);

  const Surroundings& around_;
  Window& window_;  // of these
  const core::Message command_;
  const std::shared_ptr<Area> area_;
  uint64_t deadline_ns_ = 0, begun_ns_ = 0;
  uint64_t input_bytes_ = 0;
  std::optional<DecodedRequest> request_;
  std::optional<ndp::Job> job_;
  AnswerPlaces places_{{}};
  core::Message completion_{};
  bool done_ = false, has_completion_ = false;
  std::atomic<bool> cancelled_{false}, worked_on_{false};
};

}  // namespace bowhead::device
