// SPDX-License-Identifier: Apache-2.0
// Pool: KV blocks under their keys, in memory that many processes share.
//
// Thread-safety: every method of an open Pool may be called from any thread at any time; leaving,
// moving and destroying it may not overlap a call. After fork() the child's copy of a handle
// answers FORKED to everything; the child opens the pool anew. Destroying the copy returns its
// share of the pool's memory and files, and leaves alone the objects that the parent's threads
// used: some private memory of the child stays allocated.
//
// If the medium fails (its file is truncated, its filesystem is full, its device returns an error,
// the hardware reports a memory error in metadata), the process lives, and every method of the
// handle returns MEDIA_ERROR from then on, an operation that is under way included, even where it
// had succeeded: nothing it stored after the failure has reached the medium. Pointers of leases and
// reservations may be used until the handle is closed; loads through them may return zeros, which
// release() reports. To other processes and hosts this one has died. A memory error under a block
// costs that block only: it is dropped as damaged, and this handle stores nothing there any more.
//
// A process may die at any instruction: its committed blocks stay, and its unfinished work is
// undone by the next process that needs it.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "pool/events.h"
#include "pool/media/media.h"
#include "pool/types.h"

namespace bowhead {

struct CreateOptions {
  uint64_t size_bytes = 0;           ///< of the whole pool; rounded down to 2 MiB; at least 16 MiB
  uint32_t hosts = 1;                ///< host slots, 1 to 64; each takes its share of the extents
  uint64_t extent_bytes = 0;         ///< power of two, 2 MiB to 64 MiB; 0: size / 1024 within those
  uint64_t min_block_bytes = 16384;  ///< power of two, 4 KiB to 1 MiB: smaller values take as much
  /// Size to which the pool can grow later, by grow(); 0: it cannot. Its metadata keep space for
  /// the extents to come, 80 bytes for each and host slot, which may take a tenth of the pool.
  uint64_t max_bytes = 0;
  uint32_t evict_high_permille = 980;  ///< eviction starts above this share of use; 0: no eviction
  /// Eviction goes on until below this. 0: 20 below the high one, but at least half of it.
  uint32_t evict_low_permille = 0;
  SharingTimes times = {};  ///< between hosts
  /// The object at the locator loses its name to the new pool: once that is whole, or before it is
  /// made if there is no space for both.
  bool replace = false;
  uint32_t mode = 0600;  ///< permission bits, whatever the umask
  Progress progress = {};
  std::function<bool()> cancelled = {};  ///< asked at least every 64 MiB; true: stop, CANCELLED
};

struct GrowOptions {
  uint64_t size_bytes = 0;  ///< of the new media; rounded down to 2 MiB; 0: all of the devices
  /// What is at the locator loses its name, or is overwritten on a device.
  bool replace = false;
  Progress progress = {};
  std::function<bool()> cancelled = {};  ///< asked at least every 64 MiB; true: stop, CANCELLED
};

struct DrainOptions {
  bool undo = false;                     ///< the set takes blocks again; does not wait
  Progress progress = {};                ///< bytes that were moved, and that there are to move
  std::function<bool()> cancelled = {};  ///< asked some times a second; true: stop, CANCELLED
};

struct RepairOptions {
  bool take_over = false;  ///< accepts a pool that another machine did not leave in order
  /// Sets of media that are missing are no part of the pool any more, and their blocks are lost.
  bool give_up_missing = false;
  Progress progress = {};
};

/// The host slot that this machine already has, or a free one.
inline constexpr uint32_t kAnyHost = UINT32_MAX;

struct OpenOptions {
  uint32_t host = kAnyHost;  ///< host slot
  /// Only looks, unless `host` is given: nothing is stored, not even locks or counts, and read
  /// permission suffices. Methods that store, lease or register return READ_ONLY; get() of a
  /// damaged block returns DAMAGED and drops nothing. Media by which the pool has grown, and that
  /// cannot be mapped, are passed over until the pool is opened again: their blocks are absent, and
  /// info() and check() say so.
  bool observe = false;
  /// Memory that this handle may use to mirror the indexes of other hosts, which makes look-ups of
  /// batches faster (docs/sharing.md). Taken when the first batch is looked up; 0, or too little
  /// for one: each look-up reads the indexes themselves.
  uint64_t mirror_bytes = kMirrorBytes;
  /// Touches all pages of the pool in the background, so that no put or get pays for it: a page of
  /// memory is zeroed at its first use on this machine, and mapped at the first use of each
  /// process. Not done by observers, nor of files on a disk, which would be read.
  bool prefault = true;
  Progress progress = {};
  /// Asked some times a second while this waits for other processes and hosts; true: CANCELLED.
  std::function<bool()> cancelled = {};
};

class Pool {
 public:
  Pool(Pool&&) noexcept;
  Pool& operator=(Pool&&) noexcept;
  ~Pool();  ///< closes; reservations and leases still open are undone, but for a forked child

  /// Makes a pool, which appears at its locator whole or not at all; its id (PoolInfo::pool_id).
  /// Returns INVALID_ARGUMENT, TOO_SMALL, POOL_EXISTS (with `replace`: another process made one
  /// there meanwhile), IN_USE (replace, but processes have it open), CANCELLED, and the statuses of
  /// create_media(); with `replace` also those of open_media() for the old pool.
  static Result<std::string> create(const std::string& locator, const CreateOptions& options);

  /// Opens a pool; undoes the unfinished work of dead processes and, after a reboot, rebuilds the
  /// allocator from the index. With several hosts two threads run while it is open: one keeps its
  /// heartbeat, the other does its duties (docs/sharing.md). With one host there is a thread that
  /// looks for changes of the media, if it can grow, and one that shows that this process lives, if
  /// it lies on a device. Returns NO_SUCH_POOL, NOT_A_POOL, VERSION_UNKNOWN (it has features that
  /// this build does not know; an observer can open it if it may be read without them), DAMAGED
  /// (both superblocks), BUSY (another process takes long to open or replace it, or the hosts do
  /// not agree), CANCELLED, LIMIT_REACHED (too many processes, no free host slot), HOST_ID_IN_USE,
  /// IN_USE (processes of this machine have it open by another device node, as in another
  /// container), HOST_FENCED (this host was declared dead and processes of it still have the pool
  /// open), INVALID_ARGUMENT (host), and the statuses of open_media(), also for the media by which
  /// the pool has grown.
  static Result<Pool> open(const std::string& locator, const OpenOptions& options = {});

  /// Removes a pool. Returns NO_SUCH_POOL, NOT_A_POOL (unless `force`), IN_USE (unless `force`; of
  /// a device also if another machine or container has the pool open, which takes dead_ms to find
  /// out if a host did not leave).
  /// Processes that have it open keep their mapping: they can read on, and their methods that
  /// store, lease or remove return CLOSED: at once on this host, within a second on others, and
  /// also if the object was removed by other means than this. `only_id`: only the pool with this id
  /// (PoolInfo::pool_id); NO_SUCH_POOL if another has taken its place.
  static Result<void> destroy(const std::string& locator, bool force,
                              const std::string& only_id = {});

  /// Adds media to a pool that was made to grow (CreateOptions::max_bytes), while any process of
  /// any host uses it. They are a set of their own, of one medium or of several joined ones, and
  /// take new blocks once all hosts have mapped them. Other hosts must reach them by the same
  /// locator, or, if they are devices, by any (each has a label). The new extents are this host's;
  /// others get them as they ask for space. Returns how many bytes of payload they have.
  /// NOT_SUPPORTED (the pool cannot grow; or media that survive less than the pool's),
  /// LIMIT_REACHED (beyond its maximum size), MISALIGNED (media that map in larger pages than the
  /// pool's), BUSY (another host changes the media now; or a host does not map them: then nothing
  /// was added), TOO_SMALL, and the statuses of create_media().
  Result<uint64_t> grow(const std::string& locator, const GrowOptions& options = {});

  /// Moves all blocks off a set of media (PoolInfo::sets): from now on it takes no new ones, and
  /// each host moves those that it has there to other extents, which it may have to ask for, or
  /// evicts them where the pool evicts. Returns when there are none left. NOT_FOUND (no such set),
  /// BUSY (another host changes the media now, or a host does not answer), CANCELLED and NO_SPACE
  /// (some blocks stay: there is no room for them elsewhere, or they are pinned or leased): the set
  /// goes on to take no blocks, until `undo`.
  Result<void> drain(uint32_t set, const DrainOptions& options = {});

  /// Removes a set that was drained; its media are no part of the pool any more, and can be
  /// unplugged. NOT_FOUND, INVALID_ARGUMENT (it was not drained), IN_USE (there are blocks on it),
  /// BUSY (another host changes the media now; or the set is gone, but some host may still have it
  /// mapped: then its objects stay, and the message says so), HOST_FENCED (this host was declared
  /// dead meanwhile: the set may be part of the pool yet; also from grow() and drain()).
  Result<void> shrink(uint32_t set);

  /// Repairs all that can be repaired without loss while no process has the pool open: a damaged
  /// superblock copy, allocator state, index directory; drops damaged blocks. Returns a sentence
  /// for each repair. Returns IN_USE, BUSY, and the statuses of open().
  static Result<std::vector<std::string>> repair(const std::string& locator,
                                                 const RepairOptions& options = {});

  /// Registers or finds a namespace. Returns INVALID_ARGUMENT and NOT_SUPPORTED (both also from
  /// check_format(); NOT_SUPPORTED: `wipe` in a pool of an earlier version), NAMESPACE_MISMATCH
  /// (same name, other description or profile, or registered without `wipe`), LAYOUT_MISMATCH
  /// (same name, other layout: the sentence names the field), LIMIT_REACHED, BUSY (another host
  /// registers the name and stopped on the way).
  Result<NamespaceId> open_namespace(const NamespaceDescription& description);

  /// Removes a namespace with all its blocks, whichever host has them. From now on the name can be
  /// registered anew, with any description and layout, under another id. Processes that use the old
  /// id get NAMESPACE_GONE, on this host at once, on others within some heartbeats; until then they
  /// can still read its blocks. The space comes back when the duties of each host have retired the
  /// blocks; in a pool of one host it is back on return, but for blocks in use. Returns NOT_FOUND,
  /// INVALID_ARGUMENT, LIMIT_REACHED (the table of this host is full), BUSY, HOST_FENCED.
  Result<void> remove_namespace(std::string_view name);

  /// The layout of its values, and the profile of puts.
  Result<ValueFormat> value_format(NamespaceId ns);

  /// Stores a value (the concatenation of `value`). A key that is present already is success, and
  /// the stored bytes stay as they are, its attributes and user metadata too: up to 512 bytes kept
  /// with the block and not interpreted. In a compressed namespace the calling thread encodes
  /// it, and stores it plain where a frame would not take a smaller block. A put does not wait for
  /// other hosts: NO_SPACE means that this one has no space now; it asks another for some, which
  /// takes some heartbeats (docs/sharing.md): try again then. Returns KEY_TOO_LONG,
  /// INVALID_ARGUMENT (user metadata of more than 512 bytes), VALUE_TOO_LARGE, NO_SPACE,
  /// INDEX_FULL, LIMIT_REACHED (the pool has given its host 2^40 block generations), BUSY,
  /// HOST_FENCED or HOST_ID_CONFLICT (the other hosts declared this one dead: close the pool and
  /// open it again; also from reserve(), commit(), acquire() and remove()), NAMESPACE_GONE (it was
  /// removed; also from all methods that take a namespace, and commit()), FORKED, READ_ONLY (the
  /// handle only observes; also from all methods that store or lease).
  Status put(NamespaceId ns, std::string_view key, std::span<const ConstSpan> value,
             std::string_view user_metadata = {}, const BlockAttributes& attributes = {});

  /// Copies a value into `buffers` (their concatenation, which may be longer than the value) and
  /// returns its length. All returned bytes were verified by the checksum of the value, in the
  /// caller's buffer, or, for a compressed block, before they were decoded into it. Returns
  /// NOT_FOUND (also for a damaged block, which is dropped and counted), DAMAGED (instead, where
  /// OpenOptions::observe forbids to drop), BUFFER_TOO_SMALL, UNSUPPORTED_CODEC (a newer Bowhead
  /// compressed it), KEY_TOO_LONG, FORKED. On failure the content of the buffers is undefined.
  /// `user_metadata`, unless it is null, gets the user metadata of the same block, verified as
  /// well.
  Result<uint64_t> get(NamespaceId ns, std::string_view key, std::span<const Span> buffers,
                       std::string* user_metadata = nullptr);

  /// Like get(), but a compressed value of numbers comes as its first `planes` bit-planes show it
  /// (Decoder::decode_prefix() in compression/frame.h): 1 is the signs alone; a number has at most
  /// 12, and more than it has means all. Values that are not in planes come exactly. Only the bytes
  /// of those planes are read from the pool, and verified by the checksums of the frame, unless the
  /// host of the block died, or stored it a moment ago. Returns also INVALID_ARGUMENT (no planes).
  Result<PrefixRead> get_prefix(NamespaceId ns, std::string_view key, uint32_t planes,
                                std::span<const Span> buffers);

  /// Copies the stored bytes, a frame if the value is compressed, for a reader that decodes them
  /// elsewhere. `buffer` is large enough if the value fits. The copy was verified by the checksum
  /// of the stored bytes, and by no more than that: only get() drops a frame that does not decode.
  /// Same statuses as get().
  Result<StoredValue> get_stored(NamespaceId ns, std::string_view key, Span buffer);

  /// Length of a stored value, as it was put. Returns NOT_FOUND, KEY_TOO_LONG, FORKED.
  Result<uint64_t> length(NamespaceId ns, std::string_view key);

  /// present[i] = 1 if keys[i] is stored, else 0; returns how many are. No recency is changed.
  /// Keys that are too long count as absent. Returns FORKED, INVALID_ARGUMENT (sizes differ).
  Result<uint64_t> exists(NamespaceId ns, std::span<const std::string_view> keys,
                          std::span<uint8_t> present);

  /// How many leading keys are stored without a gap; marks those as used, the first most recently,
  /// so that eviction takes a prefix from its end. Returns FORKED.
  Result<uint64_t> longest_prefix(NamespaceId ns, std::span<const std::string_view> keys);

  /// Reserves space for a value of `length_bytes` under `key`, to be filled in place: it is stored
  /// plain in compressed namespaces too. Returns KEY_TOO_LONG, VALUE_TOO_LARGE, NO_SPACE, BUSY (all
  /// free space is that of a host which died and may still write to it: put() can use that),
  /// HOST_FENCED, HOST_ID_CONFLICT, FORKED, READ_ONLY, INVALID_ARGUMENT (as put()).
  Result<Reservation> reserve(NamespaceId ns, std::string_view key, uint64_t length_bytes,
                              std::string_view user_metadata = {},
                              const BlockAttributes& attributes = {});

  /// Ends a reservation and makes its block, which the caller has filled, visible. OK: the key is
  /// stored; if another process committed it meanwhile, that block stays. Every status but FORKED
  /// ends the reservation: `data` must not be used any more, and after BUSY (the key's lock was
  /// held for two seconds), INDEX_FULL, LIMIT_REACHED (see put()), DAMAGED (memory of the block
  /// failed), HOST_FENCED and HOST_ID_CONFLICT nothing is stored and the space is free again;
  /// reserve anew to try again. CLOSED: this or a copy of it was ended before, or it is of another
  /// handle; nothing is changed. FORKED: it is the parent's, where it stays open. If its key was
  /// `present`: OK, nothing is done.
  Status commit(Reservation& reservation, const PayloadSum& sum = {});

  /// Ends a reservation without storing anything. Returns CLOSED and FORKED, as commit().
  Status abort(Reservation& reservation);

  /// Finds a block and keeps it where it is for `ttl_ms` (1 to 600,000). Returns NOT_FOUND,
  /// COPY_ONLY (its host died; get() copies it), CODED (PLAIN was wanted, and it is compressed,
  /// which any block of a compressed namespace may be; get() decodes it), UNSUPPORTED_CODEC (a
  /// newer Bowhead compressed it), LIMIT_REACHED (the lease table of this host is full, after
  /// expired leases, and those of processes that are gone, were revoked), KEY_TOO_LONG,
  /// INVALID_ARGUMENT, HOST_FENCED, HOST_ID_CONFLICT, FORKED, READ_ONLY.
  Result<Lease> acquire(NamespaceId ns, std::string_view key, uint64_t ttl_ms,
                        LeaseOf of = LeaseOf::PLAIN);

  /// Copies the leased bytes, stored_bytes of them, without a second look-up, and compares their
  /// checksum. The copy is good only if release() returns OK afterwards. Returns DAMAGED,
  /// BUFFER_TOO_SMALL, CLOSED (the lease was ended, or is of another handle), FORKED.
  Status copy_leased(const Lease& lease, Span to);

  /// Whether everything read through a lease so far was the block's: what release() would return
  /// now, but the lease goes on. OK also means that it has not been revoked.
  Status check_lease(const Lease& lease);

  /// Ends a lease. OK: everything read through it was the block's (also after its time was over, if
  /// no process needed the block, or a place in the lease table, yet). LAPSED: it was revoked, the
  /// host was fenced, memory of the block failed, or the block was removed, evicted or moved: its
  /// bytes stay while the lease holds, but its header no longer proves that they did. Discard all
  /// results computed from it. CLOSED: ended before; for a copy of a released Lease, once another
  /// lease has its place in the table, LAPSED.
  Status release(Lease& lease);

  /// Removes the block of a key; its space is free once no lease holds it. OK: no reader gets that
  /// block any more. For a block of another host that takes until the host has answered:
  /// times.heartbeat_ms as a rule. Returns NOT_FOUND, KEY_TOO_LONG, HOST_FENCED, FORKED, BUSY (the
  /// key's lock was held for two seconds, or the host of the block died or does not answer: try
  /// again; until then it may be removed yet, or not).
  Status remove(NamespaceId ns, std::string_view key);

  /// put(), get() and remove() of many keys, whose memory accesses overlap. Each item gets the
  /// status that the call for its key alone would return; a key may be repeated. OK: every item was
  /// tried. Any other status (FORKED, READ_ONLY, INVALID_ARGUMENT: no such namespace,
  /// NAMESPACE_GONE, CLOSED, HOST_FENCED, MEDIA_ERROR) is also that of each item, whatever it did.
  /// remove_batch() returns INVALID_ARGUMENT, and does nothing, if the sizes differ.
  Status put_batch(NamespaceId ns, std::span<PutItem> items);
  Status get_batch(NamespaceId ns, std::span<GetItem> items);
  Status remove_batch(NamespaceId ns, std::span<const std::string_view> keys,
                      std::span<Status> statuses);

  /// The leading keys that are stored without a gap, each leased for `ttl_ms`, in whatever codec;
  /// they count as used, as by longest_prefix(). Ends before a key of which no lease can be had.
  /// `group`: so many consecutive keys belong together, and only whole groups are leased. Returns
  /// INVALID_ARGUMENT (ttl_ms is out of its range, or the group is 0 or does not divide the number
  /// of keys), LIMIT_REACHED (the lease table is full before the first group), HOST_FENCED, FORKED,
  /// READ_ONLY.
  Result<Prefix> acquire_prefix(NamespaceId ns, std::span<const std::string_view> keys,
                                uint64_t ttl_ms, uint64_t group = 1);

  /// A reader of the events of this handle, with a buffer of so many bytes: blocks that its puts
  /// stored, and blocks of this host that its calls and duties removed, evicted or found damaged.
  /// What other processes and hosts do is reported to their readers. Returns SYSTEM, FORKED.
  Result<std::shared_ptr<EventReader>> open_events(size_t capacity_bytes);

  /// How full the space of this host is, and whether puts are refused. Costs a look at each extent.
  /// Returns CLOSED, HOST_FENCED, HOST_ID_CONFLICT, FORKED, READ_ONLY.
  Result<Pressure> pressure();

  /// Explains why put(), reserve() or remove() of a key has just returned NO_SPACE or BUSY, and
  /// what to do, by the present state of the pool. For other statuses, their sentence.
  Error explain(Status status, NamespaceId ns, std::string_view key);

  /// Marks blocks as used now, the first most recently. Absent keys are skipped.
  Status touch(NamespaceId ns, std::span<const std::string_view> keys);

  /// The block of a key, without its value. Counts no use. Returns NOT_FOUND, KEY_TOO_LONG, FORKED,
  /// and DAMAGED if its user metadata are (its value is not).
  Result<BlockInfo> describe(NamespaceId ns, std::string_view key);

  /// Sets the attributes of a stored block, all of them. They stay with it when it is moved or
  /// recompressed. Each is set as a whole, but a reader may see some that were set before beside
  /// others that were set now. Returns NOT_FOUND, KEY_TOO_LONG, NOT_SUPPORTED (another host has the
  /// block: only its processes set the attributes), BUSY (the key's lock was held for two seconds,
  /// or the block is of a host which died and may still write to it: try again), HOST_FENCED,
  /// HOST_ID_CONFLICT, FORKED, READ_ONLY.
  Result<void> set_attributes(NamespaceId ns, std::string_view key,
                              const BlockAttributes& attributes);

  /// Calls `visit` for every committed block of every host, in no order; stops when it returns
  /// false.
  Status list(const std::function<bool(const BlockInfo&)>& visit);

  /// Ends this host's membership in order, so that the others may take over its blocks at once.
  /// Reservations and leases of this handle end, and nothing may be stored through their pointers
  /// any more: their blocks are the successor's. Everything but closing and mapping() answers
  /// HOST_FENCED afterwards. Pools of one host have nothing to leave: OK. Returns IN_USE (other
  /// processes of this host have the pool open) and BUSY (one has been opening it for 10 seconds),
  /// and the membership goes on; FORKED.
  Result<void> leave();

  /// The operator vouches that a host which died has stopped writing to the memory for good: its
  /// machine is off, or cut off from the memory. Until then its space serves verified copies only.
  /// Returns INVALID_ARGUMENT (never used, out of range, or this host), BUSY (the hosts have not
  /// declared it dead, or not yet), IN_USE (a process of it runs on this machine), FORKED.
  Result<void> fence(uint32_t host);

  /// Recompresses (DENSE) blocks of this host that are cold (unused for `cold_ms`), if they belong
  /// to a compressed namespace and were stored plain or by a cheaper profile. Readers are
  /// unaffected, except that acquire() returns CODED for a block that was plain. Skips leased
  /// blocks, and evicts nothing. One pass over all blocks, which may move meanwhile: call it until
  /// it finds nothing to do. This handle does not try a block again that did not shrink. Ends early
  /// where there is no space for new blocks. Returns HOST_FENCED, FORKED, READ_ONLY.
  Result<RecompressReport> recompress(uint64_t cold_ms);

  /// Undoes the unfinished work of dead processes now, instead of when it is needed. Returns how
  /// many dead processes were found.
  Result<uint64_t> scavenge();

  Result<PoolInfo> info();
  /// PoolInfo::Host::heartbeat of each host slot, as it is now.
  Result<std::vector<uint64_t>> heartbeats() const;

  /// The counters of every registered namespace, and of all others together (id 0).
  Result<std::vector<NamespaceUsage>> usage();

  /// Reads everything and names each fault; changes nothing. `payload` also verifies every block.
  /// The pool may be in use meanwhile. The allocator of a host can be read only on the machine that
  /// runs it: elsewhere the report says that it was not checked.
  Result<CheckReport> check(bool payload, const Progress& progress = {});

  /// The error for a status that a method of this handle returned. It names the pool if that was
  /// destroyed or replaced (CLOSED) or its medium failed (MEDIA_ERROR).
  Error explain(Status status) const;

  /// MEDIA_ERROR with the range that failed and the likely cause; empty while the medium is well.
  std::optional<Error> media_failure() const;

  /// How much of the media was touched in the background (OpenOptions::prefault), of how much; all
  /// of it if that is over, or not done.
  struct Prefaulted {
    uint64_t bytes, of_bytes;
  };
  Prefaulted prefaulted() const;
  /// Base and length of the mapping, in which stores to memory that this host does not own fault.
  ConstSpan mapping() const;
  /// The pool mapped once more, all of it writable, for registration with devices
  /// (gpu/jobs/registration.h; Media::map_again()). Of a pool that can grow, only the payload on
  /// the media on which it was made, since others may go. Returns FORKED, SYSTEM.
  struct MappedAgain {
    MediaMapping mapping;
    uint64_t offset = 0;  ///< in the pool, of its first byte
  };
  Result<MappedAgain> map_again() const;

 private:
  friend class Window;  ///< for devices and their drivers
  class Impl;
  struct Close {
    void operator()(Impl* impl) const;
  };
  using Handle = std::unique_ptr<Impl, Close>;
  explicit Pool(Handle handle);
  Handle impl_;
};

}  // namespace bowhead
