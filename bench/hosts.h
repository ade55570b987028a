// SPDX-License-Identifier: Apache-2.0
// Hosts of one pool, for the rows that need several.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "bench/rows.h"

namespace bowhead::bench {

inline constexpr uint64_t kHostsSeries = 50;  ///< of make_key()

/// The pool as a host, with its namespace.
Result<OpenPool> open_as(const std::string& locator, uint32_t host,
                         uint64_t mirror_bytes = kMirrorBytes);

/// A pool with room for `payload_bytes` and a quarter more.
Result<std::unique_ptr<BenchPool>> make_shared_pool(const std::string& locator,
                                                    uint64_t payload_bytes,
                                                    uint64_t min_block_bytes, uint32_t hosts,
                                                    const SharingTimes& times = {},
                                                    uint32_t evict_high_permille = 0);

/// Stores a block of 4 KiB without writing its bytes.
Result<void> fill_one(OpenPool& open, const Key& key);
/// Stores blocks first, first + step, ... below last of kHostsSeries.
Result<void> fill(OpenPool& open, uint64_t first, uint64_t last, uint64_t step);

/// Waits until `open` finds the block, which another host has stored: a heartbeat or two after that
/// host joined, and longer where the machine is busy.
Result<void> await_block(OpenPool& open, const Key& key);

}  // namespace bowhead::bench
