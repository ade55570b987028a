// SPDX-License-Identifier: Apache-2.0
// The rooms of the core. Each is a class with the state and the invariants of one concern; its file
// states what it owns and which other rooms it calls. All share the parts beneath them: access,
// extents, allocator, index, leases, hosts. Core wires them.
#pragma once

#include <algorithm>
#include <atomic>
#include <bit>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "base/checksum.h"
#include "base/status.h"
#include "pool/core/allocator.h"
#include "pool/core/context.h"
#include "pool/core/extents.h"
#include "pool/core/hosts.h"
#include "pool/core/index.h"
#include "pool/core/leases.h"
#include "pool/types.h"

namespace bowhead::core {

/// A key with its hash. The hash is seeded with the namespace: keys of two namespaces never meet.
struct Key {
  Key(uint64_t ns, std::string_view text) : Key(ns, text, hash128(text.data(), text.size(), ns)) {}
  Key(uint64_t ns, std::string_view text, const Hash128& known_hash)
      : bytes(text), namespace_id(ns), hash(known_hash) {}
  static bool valid(std::string_view text) {
    return !text.empty() && text.size() <= BH_KEY_BYTES_MAX;
  }

  std::string_view bytes;
  uint64_t namespace_id;
  Hash128 hash;
};

/// The host that may have written the lines that an entry leads to: the host of the entry, or, in
/// an extent in custody, any (UINT32_MAX).
inline uint32_t writer_of(uint32_t host, const bh_index_entry& entry) {
  return (entry.flags & BH_ENTRY_COPY_ONLY) != 0 ? UINT32_MAX : host;
}

/// The sum of the sizes; UINT64_MAX if it overflows.
template <class Piece>
uint64_t total_bytes(std::span<const Piece> pieces) {
  uint64_t bytes = 0;
  for (const Piece& piece : pieces) {
    if (__builtin_add_overflow(bytes, piece.size, &bytes)) return UINT64_MAX;
  }
  return bytes;
}

/// The content of a put: a value as it is, or coded in fewer bytes, and what is stored with it.
struct Content {
  std::span<const ConstSpan> stored;  ///< the bytes that go into the pool
  uint64_t length_bytes = 0;          ///< of the value
  uint8_t codec = BH_CODEC_RAW;
  uint8_t profile = BH_PROFILE_NONE;
  std::string_view user_metadata = {};
  BlockAttributes attributes = {};
  bool wipe = false;  ///< before its block is free again

  static Content raw(std::span<const ConstSpan> value, std::string_view user_metadata = {},
                     const BlockAttributes& attributes = {}, bool wipe = false) {
    return {value,         total_bytes(value), BH_CODEC_RAW, BH_PROFILE_NONE,
            user_metadata, attributes,         wipe};
  }
  uint64_t stored_bytes() const { return total_bytes(stored); }
};

/// A block that is stored as it is has as many bytes as its value.
inline bool lengths_agree(const bh_block_header& header) {
  return header.codec != BH_CODEC_RAW || header.stored_bytes == header.length_bytes;
}

/// A committed block whose entry, header and key were all verified.
struct Located {
  Found found;
  bh_block_header header{};
  uint64_t slot = 0;
};

/// Runtime settings from the superblock.
struct Settings {
  uint32_t evict_high_permille = 0;  ///< 0: no eviction
  uint32_t evict_low_permille = 0;
  uint64_t mirror_bytes = kMirrorBytes;  ///< that the mirror of indexes may take at most
  bool newer_features = false;           ///< has_newer_features()
  bool has_rings = false;                ///< BH_FEATURE_RINGS
  std::array<uint64_t, 2> pool_id = {};
};

/// The size of the block that a header needs.
inline uint64_t room_for(const Layout& layout, const bh_block_header& header) {
  const uint64_t key_line_bytes = Layout::key_line_bytes(header);
  return header.codec == BH_CODEC_RAW
             ? layout.block_bytes(header.stored_bytes, key_line_bytes)
             : layout.coded_block_bytes(header.stored_bytes, header.length_bytes, key_line_bytes);
}

template <class A>
class KeyLocks;
template <class A>
class Mirror;
template <class A>
class Lookup;
template <class A>
class Attributes;
template <class A>
class Usage;
template <class A>
class Retirement;
template <class A>
class Reading;
template <class A>
class Writing;
template <class A>
class Space;
template <class A>
class Namespaces;
template <class A>
class Holdings;
template <class A>
class Growth;
template <class A>
class Mail;
template <class A>
class Grants;
template <class A>
class Custody;
template <class A>
class Membership;
template <class A>
class Joining;
template <class A>
class Recovery;
template <class A>
class Inspection;

/// The shared parts and all rooms, for the constructor of a room.
template <class A>
struct Rooms {
  Context<A>& context;
  Extents<A>& extents;
  Allocator<A>& allocator;
  Index<A>& index;
  Leases<A>& leases;
  Hosts<A>& hosts;
  const Settings& settings;
  KeyLocks<A>& locks;
  Mirror<A>& mirror;
  Lookup<A>& lookup;
  Attributes<A>& attributes;
  Usage<A>& usage;
  Retirement<A>& retirement;
  Reading<A>& reading;
  Writing<A>& writing;
  Space<A>& space;
  Namespaces<A>& namespaces;
  Holdings<A>& holdings;
  Growth<A>& growth;
  Mail<A>& mail;
  Grants<A>& grants;
  Custody<A>& custody;
  Membership<A>& membership;
  Joining<A>& joining;
  Recovery<A>& recovery;
  Inspection<A>& inspection;
};

}  // namespace bowhead::core
