// SPDX-License-Identifier: Apache-2.0
// What a test allocates: its operator new is replaced.
#pragma once

#include <cstddef>

/// The largest single allocation since it was set to 0.
extern size_t largest_allocation;
