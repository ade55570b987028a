// SPDX-License-Identifier: Apache-2.0
// Registration: the pool's memory made reachable for a GPU, chunk by chunk.
//
// Registering pins memory: it takes about a second for each GiB, and drivers refuse to do it for a
// whole pool at once. So the memory is divided into chunks. A thread of the Registration registers
// requested chunks, in that order, and the rest, if wanted, behind them; a caller that can do
// without a chunk does not have to wait:
//
//   auto created = Registration::create(*device, pool);
//   auto reached = (*created)->reach(offset, size_bytes, DeviceAccess::READ);  // BUSY: not yet
//   (*created)->for_chunks(offset, size_bytes, queue_copy);   // no copy may leave its chunk
//
// A chunk that the driver refused stays refused, with the driver's error, and is not asked for
// again until retry(): each refusal may take as long as a success.
//
// The mapping that is registered. Drivers pin pages for writing, and the kernel refuses that where
// a mapping is read-only, as the pool's is for memory of other hosts. So the Registration of a pool
// maps it once more (Pool::map_again()), writable as a whole. That gives up a watch for stray
// stores, not the rule that it watched, and only at these addresses:
// - The CPU stores nothing through them. They are given to the driver and, as device_address() and
//   reach() have them, to kernels and copies; no code on the CPU follows them, and forked children
//   do not have them. A wild pointer may hit them, as it may hit any memory of the process; one
//   that was made from the pool's own mapping still faults.
// - A device stores only to room that Pool::reserve() gave, in extents that this host owns: that is
//   the only address in the pool that transfers.cpp gives a kernel or a copy to store to, and
//   check() has compared the kernel's bounds with it. A fault in a kernel is not caught, as no
//   protection of a CPU's mapping would catch it: GPUs have page tables of their own.
// Where pinning for writing is refused all the same (files whose filesystem has to know of each
// write), chunks are registered for reading, if the device can: restores then go straight, spills
// by way of pinned memory.
//
// Thread-safety: all methods, from any thread; destruction may not overlap a call. Destroy it
// before the Device.
#pragma once

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <thread>

#include "base/status.h"
#include "gpu/devices/device.h"
#include "pool/pool.h"

namespace bowhead::gpu {

inline constexpr uint64_t kDefaultChunkBytes = uint64_t{64} << 30;

class Registration {
 public:
  /// For a pool, in chunks of `chunk_bytes`, a multiple of 2 MiB; the last may be shorter.
  /// Registers nothing yet. One is enough for all GPUs of a process (Device::register_host()); it
  /// may outlive the pool. Of a pool that can grow, the payload on the media on which it was made:
  /// the others may go, and what lies there is moved through pinned memory. INVALID_ARGUMENT:
  /// chunk_bytes; the statuses of Pool::map_again().
  static Result<std::unique_ptr<Registration>> create(Device& device, const Pool& pool,
                                                      uint64_t chunk_bytes = kDefaultChunkBytes);
  /// For memory of the caller, which stays mapped; 4 KiB-aligned, a multiple of 4 KiB long.
  /// INVALID_ARGUMENT: no memory, or chunk_bytes; MISALIGNED.
  static Result<std::unique_ptr<Registration>> create(Device& device, Span memory,
                                                      uint64_t chunk_bytes = kDefaultChunkBytes);
  Registration(const Registration&) = delete;
  Registration& operator=(const Registration&) = delete;
  /// Waits for the chunk that its thread is at, and unregisters everything. No queued work may use
  /// it any more.
  ~Registration();

  /// Where kernels find all of those bytes, one behind the other, for such access. Does not wait:
  /// BUSY: some chunk is not registered yet; it is now requested, so try again later, or call
  /// ensure(). Else the error of the first refused chunk: LIMIT_REACHED (the driver has no more
  /// room: use other chunks, or copies through memory that is registered), NOT_SUPPORTED (not this
  /// kind of memory; media by which the pool has grown; or it was registered for reading only, or
  /// the device has chunks apart from each other), GPU_LOST, SYSTEM; INVALID_ARGUMENT (outside of
  /// the memory, or unmapped or registered by another caller since then). Without a lock if all are
  /// registered.
  Result<void*> reach(uint64_t offset, uint64_t size_bytes, DeviceAccess access);

  /// Waits until the chunks of those bytes are registered, for reading at least. Returns the
  /// statuses of reach(), except BUSY.
  Result<void> ensure(uint64_t offset, uint64_t size_bytes);

  /// Where kernels find the byte at `offset`; only the rest of its chunk lies behind it.
  /// INVALID_ARGUMENT: outside of the memory, or its chunk is not registered.
  Result<void*> device_address(uint64_t offset) const;

  /// Registers everything in the background, in order, behind the requested chunks. Ends early at
  /// LIMIT_REACHED and GPU_LOST. SYSTEM: there is no thread for it.
  Result<void> register_rest();

  /// Lets chunks that were refused with LIMIT_REACHED be requested again, when other memory was
  /// unregistered.
  void retry();

  uint64_t registered_bytes() const {
    return registered_bytes_.load(std::memory_order_relaxed);  // for information
  }
  uint64_t size_bytes() const { return size_bytes_; }

  /// Calls `each(offset, size_bytes)` for the parts of those bytes that are in one chunk each, in
  /// order.
  template <class Each>
  void for_chunks(uint64_t offset, uint64_t size_bytes, Each each) const {
    const uint64_t end = offset + size_bytes;
    while (offset < end) {
      const uint64_t part =
          std::min(end - offset, chunk_bytes_ - (offset - offset_) % chunk_bytes_);
      each(offset, part);
      offset += part;
    }
  }

 private:
  enum class State : uint8_t { UNTRIED, WANTED, REGISTERED, REFUSED };

  struct Chunk {
    /// Written under mutex_. REGISTERED is never left, and is stored with release behind the next
    /// members: a thread that loads it with acquire may use those without the mutex.
    std::atomic<State> state = State::UNTRIED;
    DeviceAccess access = DeviceAccess::READ_AND_WRITE;
    void* device_address = nullptr;
    Result<void> refusal;  ///< guarded by mutex_
  };

  Registration(Device& device, MediaMapping mapping, Span memory, uint64_t offset,
               uint64_t chunk_bytes);

  uint64_t chunk_count() const { return (size_bytes_ - 1) / chunk_bytes_ + 1; }
  uint64_t chunk_size_bytes(uint64_t index) const {
    return std::min(chunk_bytes_, size_bytes_ - index * chunk_bytes_);
  }
  Result<void> check_inside(uint64_t offset, uint64_t size_bytes) const;
  /// Whether it is registered. Acquire: its other fields are there then.
  bool has(uint64_t index) const {
    return chunks_[index].state.load(std::memory_order_acquire) == State::REGISTERED;
  }
  State state_of(uint64_t index) const;
  Result<void> have_thread();
  Result<void> want(uint64_t index);
  Result<void> register_with(Chunk& chunk, std::byte* begin, uint64_t size_bytes);
  void settle(uint64_t index, std::unique_lock<std::mutex>& lock);
  bool find_next(uint64_t& index);
  void run();

  Device& device_;
  const MediaMapping mapping_;  ///< of a pool's; else of nothing
  std::byte* const base_;
  const uint64_t size_bytes_;
  const uint64_t offset_;  ///< in the pool, of the first byte
  const uint64_t chunk_bytes_;
  const std::unique_ptr<Chunk[]> chunks_;
  std::atomic<uint64_t> registered_bytes_ = 0;

  mutable std::mutex mutex_;  ///< guards the members below and, as said there, the chunks
  std::condition_variable changed_;
  std::deque<uint64_t> wanted_;    ///< chunks that are WANTED, but for the one the thread is at
  uint64_t rest_at_ = UINT64_MAX;  ///< where the rest that has not been looked at begins
  bool is_stopping_ = false;
  std::thread thread_;  ///< started when something is to be registered
};

}  // namespace bowhead::gpu
