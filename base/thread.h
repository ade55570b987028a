// SPDX-License-Identifier: Apache-2.0
// Threads that the system may refuse.
#pragma once

#include <system_error>
#include <thread>
#include <utility>

#include "base/status.h"

namespace bowhead {

/// SYSTEM: the system gives no thread to this user, or no memory for its stack.
template <class Work>
Result<std::thread> start_thread(Work work) {
  try {
    return std::thread(std::move(work));
  } catch (const std::system_error& error) {
    return Error{Status::SYSTEM, "cannot start a thread: " + error.code().message() +
                                     "; raise the limit of processes (ulimit -u, pids.max)"};
  }
}

}  // namespace bowhead
