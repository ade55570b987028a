// SPDX-License-Identifier: Apache-2.0
// Child processes for tests of state that processes share.
#pragma once

#include <functional>

namespace bowhead {

/// How a child ended: exit code, or -signal.
inline constexpr int kChildCannot = 77;  ///< returned by a child if the system lacks something

/// Runs `body` in a child, with the default action for every signal, and waits; its return value is
/// the child's exit code.
int run_child(const std::function<int()>& body);

}  // namespace bowhead
