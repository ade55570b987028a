// SPDX-License-Identifier: Apache-2.0
// Assertions for our own bugs. Always on: a wrong pool is worse than a dead process, and a process
// can die at any instruction without harm to the pool.
#pragma once

namespace bowhead {

/// Prints the failed condition with its file and line, and aborts.
[[noreturn]] void assertion_failed(const char* condition, const char* file, int line);

}  // namespace bowhead

#define BOWHEAD_ASSERT(condition)         \
  (static_cast<bool>(condition) ? (void)0 \
                                : ::bowhead::assertion_failed(#condition, __FILE__, __LINE__))
