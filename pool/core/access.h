// SPDX-License-Identifier: Apache-2.0
// NativeAccess: the one policy through which pool code touches shared metadata, the clock, and the
// identity and liveness of processes. The core is a template over it; a simulator or a fault
// injector gives another class with the same members (tests/crash does) and no pool code changes.
//
// Offsets are bytes from the start of the pool. Words are aligned 8-byte integers; lines are
// aligned 64 bytes. Metadata is only ever touched as words or lines, payload only through copies
// and pointers.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <mutex>
#include <span>

#include "base/coherence.h"
#include "base/prefetch.h"
#include "base/random.h"
#include "pool/core/context.h"
#include "pool/core/words.h"
#include "pool/media/media.h"
#include "pool/types.h"

namespace bowhead::core {

class NativeAccess {
 public:
  /// `media` must outlive this. `flush` NONE: one coherence domain has the pool to itself.
  NativeAccess(Media& media, FlushKind flush);
  ~NativeAccess();
  NativeAccess(const NativeAccess&) = delete;
  NativeAccess& operator=(const NativeAccess&) = delete;

  using Mutex = std::mutex;  ///< between threads of a process

  // ---- words ----
  // Loads acquire and stores release: a thread that reads a word sees all that the writing process
  // stored before the word. Read-modify-writes are sequentially consistent. Only words of the own
  // host's region may be stored to or modified (rule R1).
  uint64_t load(uint64_t offset) const { return word(offset).load(std::memory_order_acquire); }
  uint64_t load_relaxed(uint64_t offset) const {
    return word(offset).load(std::memory_order_relaxed);
  }
  void store(uint64_t offset, uint64_t value) {
    word(offset).store(value, std::memory_order_release);
  }
  /// For hints: the store may be lost and orders nothing.
  void store_relaxed(uint64_t offset, uint64_t value) {
    word(offset).store(value, std::memory_order_relaxed);
  }
  bool cas(uint64_t offset, uint64_t& expected, uint64_t desired) {
    return word(offset).compare_exchange_strong(expected, desired);
  }
  uint64_t fetch_add(uint64_t offset, uint64_t delta) { return word(offset).fetch_add(delta); }

  // ---- lines ----
  // In ascending word order: a reader may see a prefix of the new words; the seal shows it (R2).
  Line load_line(uint64_t offset) const {
    Line line;
    for (uint64_t i = 0; i < 8; ++i) line[i] = load(offset + i * 8);
    return line;
  }
  void store_line(uint64_t offset, const Line& line) {
    for (uint64_t i = 0; i < 8; ++i) store(offset + i * 8, line[i]);
  }
  void prefetch(uint64_t offset) const { prefetch_line(base_ + offset); }
  /// Of a line that only this host writes: a copy of it is never stale.
  void prefetch_own(uint64_t offset) const { prefetch_line(base_ + offset); }

  // ---- payload ----
  // The copies and sum_payload() return the payload checksum of the bytes stored, or only read.
  /// Copies into a block, past the caches, and starts to publish: a fence() later completes it, on
  /// a pool of one host too.
  uint64_t write_payload(uint64_t to, std::span<const ConstSpan> value);
  /// Copies out of a block, past the caches unless it is `used_soon`: other threads see the copy
  /// after a fence() of the caller. Does not acquire: a stale copy has a wrong sum.
  uint64_t read_payload(uint64_t from, uint64_t bytes, std::span<const Span> buffers,
                        bool used_soon = false) const;
  /// Fills whole lines with zeros, and starts to publish in the same way.
  void zero(uint64_t offset, uint64_t bytes);
  /// Copies from block to block and publishes.
  uint64_t move_payload(uint64_t to, uint64_t from, uint64_t bytes);
  uint64_t sum_payload(uint64_t from, uint64_t bytes) const;
  /// For a caller that works in place.
  std::byte* payload(uint64_t offset) const { return base_ + offset; }

  /// Enforces rule R1 by the mapping: makes the whole pages of a range writable or read-only.
  void set_writable(uint64_t offset, uint64_t bytes, bool writable);

  /// Maps a further set of the pool into its ranges; of these, `own` can be stored to, and the
  /// others can when set_writable() says so. The statuses of open_media() and Media::add_set().
  Result<void> map_set(const SetName& name, const std::string& locator,
                       const std::vector<Range>& ranges, const std::vector<Range>& own);
  /// Puts zeros in its place.
  void unmap_set(uint64_t id, const std::vector<Range>& ranges);

  // ---- coherence (base/coherence.h) ----
  /// On return the range is visible beyond this host; in a pool of one host release order suffices.
  void publish(uint64_t offset, uint64_t bytes) {
    if (flush_ == FlushKind::NONE) return;
    flush_lines(flush_, base_ + offset, bytes);
    full_fence();
  }
  /// Starts to publish; a fence() or publish() later completes it.
  void flush(uint64_t offset, uint64_t bytes) {
    if (flush_ != FlushKind::NONE) flush_lines(flush_, base_ + offset, bytes);
  }
  /// Later loads see the contents of memory at or after this call.
  void acquire(uint64_t offset, uint64_t bytes) const {
    if (flush_ == FlushKind::NONE) return;
    invalidate_lines(flush_, base_ + offset, bytes);
    full_fence();
  }
  /// Starts to invalidate; a fence() later completes it.
  void invalidate(uint64_t offset, uint64_t bytes) const {
    if (flush_ != FlushKind::NONE) invalidate_lines(flush_, base_ + offset, bytes);
  }
  /// Full fence, store-load order included, also on a pool of one host.
  void fence() const { full_fence(); }
  /// Orders started flushes and invalidates; free on a pool of one host.
  void coherence_fence() const {
    if (flush_ != FlushKind::NONE) full_fence();
  }
  FlushKind flush_kind() const { return flush_; }

  /// The medium failed under this process (pool/media/fault_guard.h): its stores reach no other
  /// process any more, and its loads may return zeros.
  bool media_failed() const { return media_.failed(); }
  /// Memory of a payload failed (Media::lost()). Asked after what was read or written there.
  bool payload_lost(uint64_t offset, uint64_t bytes) const { return media_.lost(offset, bytes); }

  // ---- clock, randomness, waiting ----
  uint64_t now_ns() const;      ///< CLOCK_BOOTTIME: leases, waits
  uint64_t recency_ns() const;  ///< CLOCK_MONOTONIC: order of use; cheap
  uint64_t unix_ns() const;
  uint64_t random() const;
  void relax(uint32_t round) const;  ///< inside wait loops: pause, then yield, then sleep
  void sleep_ns(uint64_t ns) const;  ///< at least so long, by now_ns()

  // ---- identity and liveness ----
  // A process is alive while it holds the lock of its slot: a byte-range lock of the pool's inode,
  // which the kernel drops when the process has ended, and which means the same in every pid and
  // mount namespace. A stopped process still holds it. A child does not inherit it (fork handler).
  /// The id of the installed system; images carry it, so two machines can share it. 0: unknown.
  uint64_t machine_id() const;
  /// The id that the firmware gives the machine; no image carries it. 0: unknown, or this user may
  /// not read it.
  uint64_t hardware_id() const;
  uint64_t boot_id() const;  ///< 0: it cannot be read
  uint64_t pid() const;
  uint64_t pid_namespace() const;
  /// Containers with device nodes of their own do not see each other's locks (medium.h).
  bool locks_by_node() const { return media_.traits().locks_by_node; }
  LockResult lock_process(uint32_t host, uint32_t process);
  void unlock_process(uint32_t host, uint32_t process);
  bool process_alive(uint32_t host, uint32_t process) const;
  /// The lock under which processes of a host join, leave and rebuild. Waits up to `wait_ms`.
  LockResult lock_host(uint32_t host, uint64_t wait_ms);
  void unlock_host(uint32_t host);
  /// Queue pairs of a host, BH_DEVICE_PAIRS of them, and after these the place of the device: each
  /// belongs to the process that holds its lock.
  LockResult lock_queue(uint32_t host, uint32_t pair);
  void unlock_queue(uint32_t host, uint32_t pair);
  bool queue_held(uint32_t host, uint32_t pair) const;  ///< by another handle
  /// Takes all liveness and host locks of this inode at once, for as long as the medium is open:
  /// then no process has the pool open, and one that opens it waits. On a medium opened read-only
  /// nothing is locked, and HELD only says that some process has the pool open.
  LockResult lock_all();
  /// A lock of this inode is held, other than through `lock_fd`; also true if the query fails.
  static bool is_locked_by_any(int lock_fd);
  /// True in a child of the process that made this object.
  bool forked() const { return *canary_ == 0; }

 private:
  std::atomic_ref<uint64_t> word(uint64_t offset) const {
    return std::atomic_ref<uint64_t>(*reinterpret_cast<uint64_t*>(base_ + offset));
  }

  Media& media_;
  std::byte* base_;
  FlushKind flush_;
  int lock_fd_;
  const volatile uint64_t* canary_;               ///< 1 here, wiped to 0 by the kernel in a child
  std::map<uint64_t, std::vector<int>> set_fds_;  ///< that hold locks, by the ids of further sets
};

}  // namespace bowhead::core
