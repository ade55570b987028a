// SPDX-License-Identifier: Apache-2.0
// Pair: a queue pair as the device has it.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "firmware-sim/areas.h"
#include "firmware-sim/task.h"
#include "pool/window.h"

namespace bowhead::device {

/// For the thread that holds the front.
class Pair {
 public:
  /// `completed`, if there is one, is called after completions were sent; it must outlive the pair.
  Pair(Window& window, Areas& areas, uint32_t host, uint32_t number,
       const std::function<void()>& completed);

  /// Commands that have arrived; none while there is no room for what they lead to. `session()` may
  /// be another one then.
  std::span<const core::Message> take();
  /// Numbers the processes that have used the pair.
  uint64_t session() const { return session_; }

  /// Does what concerns the area of a command that does not compute; returns its completion.
  core::Message carry_out(const core::Message& command);
  std::shared_ptr<Area> area() const { return area_; }

  void keep_waiting(std::unique_ptr<Task> task);
  std::unique_ptr<Task> next_waiting();  ///< null: none waits
  Task* waiting(uint64_t id) const;      ///< null: it does not wait
  size_t waiting_count() const { return waiting_.size(); }

  /// Of a command that came in this session.
  void complete(const core::Message& completion) { completions_.push_back(completion); }
  bool send();  ///< False: the channel has no room for all completions

  /// The process is gone: nothing of it is pending any more. Of other hosts it counts as there.
  bool has_lost_its_process() const;
  void let_go();
  /// Frees the area if no command has come, and none was under way, for so long: its process may be
  /// gone, also one of another machine. The next command that needs one is CLOSED, and its process
  /// attaches again.
  void free_if_idle(uint64_t now_ns, uint64_t idle_ns);

 private:
  size_t take_own(size_t count);
  Result<uint64_t> attach(uint64_t bytes);

  static constexpr size_t kTakenAtOnce = 16;
  Window& window_;
  Areas& areas_;
  const uint32_t host_, number_;
  const std::function<void()>& completed_;
  Window::Channel channel_;
  uint64_t peer_session_ = 0, session_ = 0;
  std::shared_ptr<Area> area_;
  bool is_used_ = false;  // since free_if_idle() was called
  uint64_t used_ns_ = 0;  // about when it was last
  std::array<core::Message, kTakenAtOnce> commands_{};
  std::deque<std::unique_ptr<Task>> waiting_;
  uint64_t waiting_bytes_ = 0;
  std::vector<core::Message> completions_;  // to be sent
};

}  // namespace bowhead::device
