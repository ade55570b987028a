// SPDX-License-Identifier: Apache-2.0
// Observes a test's allocations: operator new is replaced.
#pragma once

#include <cstddef>

/// The largest single allocation since it was set to 0.
extern size_t largest_allocation;
