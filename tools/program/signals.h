// SPDX-License-Identifier: Apache-2.0
// The signals that end a command in good order.
#pragma once

#include <csignal>

namespace bowhead::cli {

/// SIGINT, SIGTERM and SIGHUP, without those that this process was started to ignore (`nohup`, a
/// background job of a script). While a signal is blocked the system keeps it even if it is
/// ignored, so a command that blocks and asks for these must leave such a one alone.
sigset_t ending_signals();

}  // namespace bowhead::cli
