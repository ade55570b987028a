// SPDX-License-Identifier: Apache-2.0
// Lets a thread run out of memory: operator new is replaced.
#pragma once

#include <cstdint>

/// How many more allocations of this thread succeed. Those after them throw, until it is set anew.
extern thread_local uint64_t allocations_left;
