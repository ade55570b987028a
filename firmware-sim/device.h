// SPDX-License-Identifier: Apache-2.0
// Device: carries out the requests of processes next to the memory that holds the blocks, as a
// process on the machine of a pool. It reads commands from the queue pairs of all hosts, and
// writes answers to memory that it has reserved in the pool (pool/window.h says who writes what).
//
// A command never makes it read outside the payload of the pool, nor write outside the area of its
// queue pair. A bad one is answered with a status and a sentence. Blocks are named by offset and
// stamp; their headers are compared before and after they are read, so an answer is about these
// blocks or is LAPSED.
//
// Its threads are alike. The one that holds the front takes commands, answers small ones at once,
// and lets the others wait, the pairs by turns. A thread that carries out one of those gives the
// front away; at the checkpoints of the operation (ndp/checkpoint.h) it takes the front briefly if
// it is free. So a small command waits some microseconds for a large one, even with one thread.
//
// When a process dies, the area of its pair is freed. When the device dies, its commands are lost;
// the next device begins a new session of the channels, which tells the processes.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>

#include "base/status.h"
#include "firmware-sim/timing.h"
#include "ndp/engine.h"
#include "pool/pool.h"

namespace bowhead::device {

struct Counters {
  uint64_t commands = 0;    ///< answered
  uint64_t refused = 0;     ///< of them, with another status than OK
  uint64_t read_bytes = 0;  ///< of blocks
  uint64_t waiting = 0;     ///< taken, and not begun
  uint64_t pairs = 0;       ///< that have an area for answers now
};

struct Options {
  uint32_t threads = 1;  ///< with the calling one; 1 or more
  /// Carries out requests in the thread that submits them; must outlive the device. A request that
  /// it ends with DEVICE_LOST gets no completion. Null: a ProcessEngine.
  ndp::Engine* engine = nullptr;
  /// Called by its threads after completions were sent, if there is one.
  std::function<void()> completed = {};
  std::optional<Profile> profile = {};  ///< completions say how long this hardware would take
  uint64_t idle_ms = 60'000;            ///< after which the area of an idle queue pair is freed
};

class Device {
 public:
  /// Becomes the device of a pool, which must outlive it and which several processes may have
  /// open. Returns IN_USE (another process is), READ_ONLY, SYSTEM.
  static Result<std::unique_ptr<Device>> make(Pool& pool, const Options& options = {});
  ~Device();

  /// Serves, once, until `stops`, which one of the threads asks about each millisecond, says so.
  /// Returns why it cannot go on: HOST_FENCED, HOST_ID_CONFLICT, MEDIA_ERROR, CLOSED, IN_USE
  /// (Window::heartbeat()), SYSTEM (no thread).
  Result<void> serve(const std::function<bool()>& stops);
  /// Thread-safe, as all that follows.
  Counters counters() const;
  /// There are commands: a device that sleeps looks for them now, and not at its next turn.
  void ring();

 private:
  class Impl;
  explicit Device(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace bowhead::device
