// SPDX-License-Identifier: Apache-2.0
// The pools that the pool fuzzer damages: small, made by the core itself, identical in every run.
#pragma once

#include <memory>
#include <set>
#include <string>
#include <vector>

#include "pool/core/core.h"
#include "tests/fuzz/access.h"

namespace bowhead::fuzz {

using FuzzCore = core::Core<FuzzAccess>;

/// The bytes of version `version` of the value under key `key`: made once, kept.
const std::vector<std::byte>& content(uint32_t key, uint32_t version);

inline constexpr uint32_t kKeys = 32;        ///< keys that the fuzzer uses; it knows their values
inline constexpr uint32_t kStoredKeys = 12;  ///< the first ones of these are in the image
inline constexpr uint32_t kVersions = 4;

std::string key_text(uint32_t key);

/// A stored block and the lines on which its return depends.
struct StoredKey {
  bool in_limbo = false;             ///< its process died: it may be found or not
  std::set<uint64_t> read_lines;     ///< must be found in an open pool
  std::set<uint64_t> rebuild_lines;  ///< must be found after a rebuild
  uint64_t payload_offset = 0, payload_bytes = 0;
};

struct Image {
  explicit Image(const bh_superblock& superblock) : world(superblock) {}
  World world;
  uint64_t namespace_id = 0;
  std::vector<StoredKey> stored;  ///< kStoredKeys
};

/// Pools of one or two hosts (the second host's last blocks lie in its own extents), left cleanly,
/// or with a process of host 0 that died in the middle of every kind of operation.
Image& image(uint32_t hosts, bool died);

}  // namespace bowhead::fuzz
