// SPDX-License-Identifier: Apache-2.0
// Checkpoint: a place in an operation at which its thread may do something else for a moment, or
// give the operation up. An operation passes one about every ten microseconds, and between blocks.
//
// Whose operation it is, is a matter of the thread: each runs in one, from run() (ndp/request.h)
// to its end, so that no function on the way has to hand it on. Within `ask` another request may
// run, with its own checkpoint or none.
#pragma once

#include <cstdint>
#include <functional>

#include "base/status.h"

namespace bowhead::ndp {

/// Says whether to go on: OK, or the status that the operation ends with.
using Checkpoint = std::function<Status()>;

/// The thread has this checkpoint as long as the object lives.
class CheckpointScope {
 public:
  /// Must outlive it; empty: none.
  explicit CheckpointScope(const Checkpoint& ask);
  ~CheckpointScope();
  CheckpointScope(const CheckpointScope&) = delete;
  CheckpointScope& operator=(const CheckpointScope&) = delete;

  /// Why the operation was given up; OK: it was not.
  Status status() const;

 private:
  struct State {
    const Checkpoint* ask = nullptr;  // null: none
    uint32_t left = 0;                // until it is asked
    Status status = Status::OK;       // once it is another, all that is left is passed over
  };
  friend bool pass_checkpoint(uint32_t tokens);
  static thread_local State current;
  static void ask();

  const State before_;
};

/// Work on some tokens is done, or about to be. False: the operation was given up, and what is left
/// of it need not be done.
inline bool pass_checkpoint(uint32_t tokens) {
  CheckpointScope::State& state = CheckpointScope::current;
  if (state.ask == nullptr) return true;
  if (state.left > tokens)
    state.left -= tokens;
  else
    CheckpointScope::ask();
  return state.status == Status::OK;
}

}  // namespace bowhead::ndp
