// SPDX-License-Identifier: Apache-2.0
// A lease of a block that kernels read where it lies.
#pragma once

#include <cstdint>
#include <string_view>

#include "base/status.h"
#include "gpu/jobs/registration.h"
#include "pool/pool.h"

namespace bowhead::gpu {

struct ReachedLease {
  Lease lease;
  const uint8_t* payload = nullptr;  ///< for kernels
};

/// Leases a block of so many bytes whose chunks are registered; requests them if not (BUSY).
/// Thread-safe. Returns the statuses of Pool::acquire() and Registration::reach();
/// BUFFER_TOO_SMALL, INVALID_ARGUMENT: the block is longer or shorter. On failure nothing is
/// leased.
Result<ReachedLease> lease_reached(Pool& pool, Registration& registration, NamespaceId ns,
                                   std::string_view key, uint64_t size_bytes, uint64_t lease_ms);

}  // namespace bowhead::gpu
