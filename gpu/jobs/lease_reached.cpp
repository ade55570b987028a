// SPDX-License-Identifier: Apache-2.0
#include "gpu/jobs/lease_reached.h"

namespace bowhead::gpu {

/// acquire() drops the payload from this CPU's caches before it gives the lease: a device's reads
/// look into them.
Result<ReachedLease> lease_reached(Pool& pool, Registration& registration, NamespaceId ns,
                                   std::string_view key, uint64_t size_bytes, uint64_t lease_ms) {
  auto lease = pool.acquire(ns, key, lease_ms);
  if (!lease) return lease.error();
  Status status = lease->length_bytes > size_bytes   ? Status::BUFFER_TOO_SMALL
                  : lease->length_bytes < size_bytes ? Status::INVALID_ARGUMENT
                                                     : Status::OK;
  if (status == Status::OK) {
    const auto address = registration.reach(lease->offset, size_bytes, DeviceAccess::READ);
    if (address) return ReachedLease{*lease, static_cast<const uint8_t*>(*address)};
    status = address.status();
  }
  (void)pool.release(*lease);  // the fault is reported already
  return status;
}

}  // namespace bowhead::gpu
