// SPDX-License-Identifier: Apache-2.0
// A benchmark runs in a child, so that its pools are removed however it ends: this process only
// waits for it, or for a signal.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "base/status.h"

namespace bowhead::bench {

/// The pools that are removed at the end must be the benchmark's own: POOL_EXISTS.
Result<void> check_unused(const std::string& locator);

/// Runs `measure` in a child, and returns its exit code; 3: it could not run; 128 + the number of
/// the signal that interrupted it. No child is left afterwards, and none of these pools. The caller
/// should be single-threaded.
int run_in_child(const std::function<int()>& measure, const std::vector<std::string>& pools);

}  // namespace bowhead::bench
