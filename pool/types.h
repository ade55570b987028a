// SPDX-License-Identifier: Apache-2.0
// The arguments and results of operations: types that the pool and its core share.
#pragma once

#include <bowhead/format/block.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "pool/value_format.h"

namespace bowhead {

/// Called now and then with (done, total, what) by operations of over a second. May be empty.
using Progress = std::function<void(uint64_t done, uint64_t total, const char* what)>;

/// Time limits between hosts (docs/sharing.md). Stored in the pool.
struct SharingTimes {
  uint32_t heartbeat_ms = 100;   ///< between two heartbeats
  uint32_t dead_ms = 3000;       ///< a heartbeat that stands still so long may be declared dead
  uint32_t grace_ms = 1000;      ///< leases of a host declared dead are honoured so long
  uint32_t settle_ms = 20;       ///< a flushed line is in the memory after so long
  uint32_t reclaim_ms = 60'000;  ///< space of a dead host is reused after so long even if no
                                 ///< operator vouches that it has stopped writing; 0: never
};

/// A namespace. Two namespaces share blocks only if both texts are equal.
struct NamespaceDescription {
  std::string name;         ///< 1 to 63 bytes, for people and the command line
  std::string description;  ///< up to 383 bytes: model, dtype, layout, parallel rank, as you like
  /// The layout of values and the profile of puts; values come back bit for bit. The first process
  /// that opens the namespace decides.
  ValueFormat values = {};
};

/// Fingerprint of a description. Operations return INVALID_ARGUMENT for an id that no process of
/// any host has registered in the pool: keys of two models could meet under it.
using NamespaceId = uint64_t;

/// A piece of a caller's buffer.
struct Span {
  std::byte* data = nullptr;
  size_t size = 0;
};
struct ConstSpan {
  const std::byte* data = nullptr;
  size_t size = 0;
};

/// What can be changed about a block while it is stored: advice of its users to each other and to
/// the pool. Eviction heeds pins and the time to live, and nothing else yet. Attributes may be lost
/// when a process or a host dies.
struct BlockAttributes {
  uint8_t priority = 0;  ///< higher: to be kept longer
  /// To be evicted only if no other is found, among some thousand at a time.
  bool soft_pin = false;
  bool hard_pin = false;      ///< not to be evicted
  uint16_t forks = 0;         ///< sequences that refer to the block
  uint32_t parity_group = 0;  ///< blocks that one parity protects; 0: none
  /// When its time to live ends; 0: never. Then the next put of the process that set it, or has
  /// moved the block since, evicts it, pinned or not, unless it is leased.
  uint32_t expires_unix_s = 0;
  uint32_t next_use_unix_s = 0;  ///< when it is expected to be used next; 0: unknown
  uint64_t group = 0;            ///< blocks that belong together, as a session; 0: none

  bool operator==(const BlockAttributes&) const = default;
};

/// An item of Pool::put_batch().
struct PutItem {
  std::string_view key;
  std::span<const ConstSpan> value;
  std::string_view user_metadata = {};
  BlockAttributes attributes = {};
  Status status = Status::OK;  ///< output
};

/// An item of Pool::get_batch().
struct GetItem {
  std::string_view key;
  std::span<const Span> buffers;
  uint64_t length_bytes = 0;   ///< output: of the value, if the status is OK; else 0
  Status status = Status::OK;  ///< output
};

/// Space for a block, invisible to all readers until commit(). Ended by commit() or abort(), by
/// closing the handle or by the death of the process. Copies denote the same reservation: when one
/// was ended, all are. Only the bytes that `data` points to may be changed.
struct Reservation {
  std::byte* data = nullptr;  ///< the payload, 4 KiB-aligned, `length_bytes` long, in the pool
  uint64_t length_bytes = 0;
  uint64_t offset = 0;       ///< of the payload in the pool
  bool present = false;      ///< the key is stored already: nothing was reserved, nothing to do
  uint64_t handle = 0;       ///< internal: the handle that it belongs to
  uint64_t token = 0;        ///< internal: number of this reservation; 0: ended
  uint64_t word_offset = 0;  ///< internal: of the word that has this number
  NamespaceId namespace_id = 0;
  std::string key;
  std::string user_metadata;
  BlockAttributes attributes;
};

/// The source of the checksum of a filled reservation.
struct PayloadSum {
  enum class By {
    POOL,    ///< commit() reads the payload
    WRITER,  ///< the process that stored it summed it on the way, as GPUs do: `checksum` is
             ///< payload_checksum() (base/checksum.h). If it is not, readers find the block damaged
    NONE     ///< there is none: damage is not noticed, and other hosts find the block once it has
             ///< settled, some heartbeats later
  };
  By by = By::POOL;
  uint64_t checksum = 0;
};

/// The blocks that a reader can use.
enum class LeaseOf : uint8_t {
  PLAIN,  ///< plain values
  STORED  ///< any stored bytes: plain values, and frames (compression/frame.h)
};

/// A promise that a block stays where it is until release() or the time limit.
struct Lease {
  const std::byte* data = nullptr;   ///< the stored bytes; never write to them
  uint64_t stored_bytes = 0;         ///< of `data`
  uint64_t length_bytes = 0;         ///< of the value: equal to stored_bytes if it is plain
  uint64_t offset = 0;               ///< of `data` in the pool
  uint64_t stamp = 0;                ///< no other block ever has the same
  uint64_t token = 0;                ///< internal
  uint8_t codec = BH_CODEC_RAW;      ///< BH_CODEC_*: RAW, the value as it is, or FRAME
  const KvLayout* layout = nullptr;  ///< of the value, until the pool is closed
  std::optional<uint64_t> checksum;  ///< payload_checksum() of the stored bytes, if it has one
  std::string user_metadata;         ///< of the block; empty if it has none
};

/// The result of Pool::acquire_prefix().
struct Prefix {
  std::vector<Lease> leases;  ///< of the keys, in order
  uint64_t length_bytes = 0;  ///< of the values together
  uint64_t stored_bytes = 0;
  /// Estimated time to get all of them, by the speed of the gets of this handle so far.
  uint64_t restore_ns = 0;
};

/// The result of Pool::pressure().
struct Pressure {
  uint32_t used_permille = 0;   ///< of the extents of this host
  uint32_t index_permille = 0;  ///< of the index entries that it can use
  bool saturated = false;       ///< within the last second a put found no space or no index entry
};

/// Sums over all processes and hosts since the pool was created, and its present state.
/// Memory that a process may use to mirror the indexes of other hosts, unless told otherwise.
inline constexpr uint64_t kMirrorBytes = uint64_t{1} << 30;

struct PoolInfo {
  struct Namespace {
    NamespaceId id;
    std::string name;
    std::string description;
    ValueFormat values;
  };
  struct Host {
    uint32_t slot;
    std::string state;  ///< "free", "joining", "live", "left", "ended", "damaged"
    uint32_t incarnation;
    uint64_t extents_owned;
    uint64_t extents_free;
    uint64_t extents_custody;  ///< of a dead host, not yet known to have stopped writing
    uint64_t processes_live;
    uint64_t leases_active;
    /// At its last heartbeat: how long ago it had done its duties for the other hosts. Some
    /// heartbeats are normal; much more if its processes keep the heartbeat and hang otherwise.
    uint64_t duties_late_ms;
    uint64_t heartbeat;  ///< changes every heartbeat_ms while a process of the host runs
    /// Of its live processes that this machine sees: how many mirror the indexes of other hosts,
    /// the memory that takes, the fewest hosts that one of them mirrors; how many have no memory
    /// for it.
    uint64_t mirrors, mirror_bytes, mirrored_hosts, mirrors_refused;
    /// What all processes of a live host know: the highest format version, and features (bits of
    /// PoolInfo::compat, incompat and ro_compat). 0: it is not live, or has not stated it.
    uint32_t format_version;
    uint64_t features;
  };
  std::string locator, media_kind, media_description, pool_id;
  uint32_t format_version;
  uint64_t created_unix_ns;
  uint64_t compat, incompat, ro_compat;  ///< features of the pool (docs/format.md), a bit each
  uint64_t size_bytes, payload_bytes, metadata_bytes;
  uint64_t max_bytes;  ///< to which it can grow; size_bytes if it cannot
  /// Media by which the pool has grown, which are part of size_bytes.
  struct MediaSet {
    uint32_t number = 0;  ///< 1 and up; 0 is what the pool was made on
    /// "added" (not all hosts have mapped it yet), "used", "draining"; "missing": this handle, an
    /// observer, could not map it, and goes without its blocks.
    std::string state;
    std::string locator;  ///< as the host that grew the pool named it
    uint64_t bytes = 0, payload_bytes = 0;
    std::string why_missing;
  };
  std::vector<MediaSet> sets;
  uint64_t extent_bytes, extent_count, min_block_bytes;
  uint32_t evict_high_permille, evict_low_permille;
  SharingTimes times;           ///< all 0: a pool of one host
  std::string flush;            ///< how stores are published: "none", "clwb", ...
  bool second_superblock_used;  ///< the first copy is damaged; `repair` mends it
  /// Of this host as they are, with blocks that are being stored; of others as they were some
  /// heartbeats ago (Pool::usage()).
  int64_t used_bytes, blocks;
  uint64_t puts, puts_present, hits, misses, evictions, removals, moves, damaged, bytes_in,
      bytes_out, no_space, scavenged, hits_elsewhere, recompressed;
  std::vector<Namespace> namespaces;
  std::vector<Host> hosts;
};

/// The counters of a namespace, over all hosts. They may be wrong by the operations that were under
/// way in processes that died, until a host is rebuilt or its first process opens the pool; and by
/// what other hosts did during the last heartbeats, so that a number may even be below 0.
struct NamespaceUsage {
  NamespaceId id = 0;  ///< 0: all namespaces that were removed, or for which there was no counter
  int64_t blocks = 0;
  int64_t value_bytes = 0;   ///< as they were put
  int64_t stored_bytes = 0;  ///< of their payloads
  int64_t block_bytes = 0;   ///< the same rounded up to blocks: the space they take of the pool
  uint64_t hits = 0;         ///< gets and leases that found their block
  uint64_t misses = 0;       ///< gets and leases that did not find it
  uint64_t evictions = 0;    ///< of blocks
};

/// The result of one pass of recompress().
struct RecompressReport {
  uint64_t cold_blocks = 0;   ///< that this pass tried to recompress
  uint64_t recompressed = 0;  ///< of those
  uint64_t before_bytes = 0;  ///< of the payloads that were recompressed
  uint64_t after_bytes = 0;
};

/// The result of get_prefix().
struct PrefixRead {
  uint64_t length_bytes = 0;  ///< of the value
  uint64_t read_bytes = 0;    ///< stored bytes that were copied from the pool
};

/// A value as it is stored.
struct StoredValue {
  uint64_t stored_bytes = 0;
  uint64_t length_bytes = 0;  ///< of the value
  bool is_frame = false;      ///< of compression/frame.h; else the value itself
};

/// One thing that check() found wrong.
struct CheckFinding {
  std::string what;  ///< a sentence that names the thing
  bool data_lost;    ///< a committed block cannot be returned; else only housekeeping is off
  uint64_t offset;   ///< in the pool
};

struct CheckReport {
  uint64_t blocks_checked = 0;
  uint64_t bytes_checked = 0;
  uint64_t blocks_unverified = 0;  ///< committed without a checksum: nothing to verify them by
  std::vector<CheckFinding> findings;
  std::vector<std::string> not_checked;  ///< parts, and why, a sentence each
};

/// A block as list() shows it.
struct BlockInfo {
  NamespaceId namespace_id;
  std::string key;
  uint64_t length_bytes;
  uint64_t stored_bytes;  ///< less than the length if it is compressed
  uint64_t offset;
  uint64_t stamp;
  std::string user_metadata;
  BlockAttributes attributes;
};

}  // namespace bowhead
