// SPDX-License-Identifier: Apache-2.0
// Registration: a mapping of the pool that a GPU reaches, made so chunk by chunk.
//
// Registering pins memory: it takes seconds for each hundred GB, and drivers refuse to do it for a
// whole pool at once. So the mapping is cut into chunks, each is registered when the first transfer
// touches it, and the rest, if wanted, by a thread that makes way for transfers:
//
//   auto created = Registration::create(*device, pool.mapping());
//   auto reached = (*created)->ensure(offset, size_bytes);    // or copy through other memory
//   (*created)->for_chunks(offset, size_bytes, queue_copy);   // no copy may leave its chunk
//
// A chunk that the driver refused stays refused, with what the driver said, and is not asked for
// again until retry(): each refusal may take as long as a success.
//
// Thread-safety: all methods, from any thread; destruction may not overlap a call. Destroy it
// before the Device, and before the mapping goes: what a GPU reaches has to be there.
#pragma once

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <thread>

#include "base/status.h"
#include "gpu/device.h"
#include "pool/pool.h"

namespace bowhead::gpu {

inline constexpr uint64_t kDefaultChunkBytes = uint64_t{64} << 30;

class Registration {
 public:
  /// Of `memory`, mapped for reading and writing and 4 KiB-aligned, a multiple of 4 KiB long, in
  /// chunks of `chunk_bytes`, a multiple of 2 MiB; the last may be shorter. Registers nothing yet.
  /// One is enough for all GPUs of a process (Device::register_host()). INVALID_ARGUMENT: no
  /// memory, or chunk_bytes; MISALIGNED.
  static Result<std::unique_ptr<Registration>> create(Device& device, ConstSpan memory,
                                                      uint64_t chunk_bytes = kDefaultChunkBytes);
  Registration(const Registration&) = delete;
  Registration& operator=(const Registration&) = delete;
  /// Stops the thread, when the chunk that it is at is done, and unregisters everything. Nothing
  /// that is queued may use it any more.
  ~Registration();

  /// Registers the chunks of those bytes that are not yet; waits for those that another thread is
  /// at. Without a lock if all are. Returns what the first chunk was refused with, now or before:
  /// LIMIT_REACHED (the driver has no more room: use other chunks, or copies through memory that is
  /// registered), NOT_SUPPORTED (not this kind of memory), BUSY (somebody else registered some of
  /// it), GPU_LOST, SYSTEM; or INVALID_ARGUMENT (outside of the mapping, or unmapped since then).
  Result<void> ensure(uint64_t offset, uint64_t size_bytes);

  /// Where kernels find the byte at `offset`; only the rest of its chunk lies behind it.
  /// INVALID_ARGUMENT: outside of the mapping, or ensure() did not succeed for it.
  Result<void*> device_address(uint64_t offset) const;

  /// ensure(), and where kernels find all of those bytes, one behind the other. Returns also
  /// NOT_SUPPORTED: the device has the chunks that they are in apart from each other.
  Result<void*> reach(uint64_t offset, uint64_t size_bytes);

  /// Starts a thread that registers everything, in order, and gives way to ensure() between two
  /// chunks. It ends early at LIMIT_REACHED and GPU_LOST. Does nothing while it runs.
  void register_rest();
  /// Stops that thread when the chunk that it is at is done. It may be started again.
  void stop();

  /// Lets chunks be asked for again that were refused with LIMIT_REACHED: something else was
  /// unregistered.
  void retry();

  uint64_t registered_bytes() const {
    return registered_bytes_.load(std::memory_order_relaxed);  // a number for people
  }
  uint64_t size_bytes() const { return size_bytes_; }

  /// Calls `each(offset, size_bytes)` for the parts of those bytes that are in one chunk each, in
  /// order.
  template <class Each>
  void for_chunks(uint64_t offset, uint64_t size_bytes, Each each) const {
    const uint64_t end = offset + size_bytes;
    while (offset < end) {
      const uint64_t part = std::min(end - offset, chunk_bytes_ - offset % chunk_bytes_);
      each(offset, part);
      offset += part;
    }
  }

 private:
  enum class State : uint8_t { UNTRIED, REGISTERING, REGISTERED, REFUSED };

  struct Chunk {
    /// Written under mutex_. REGISTERED is never left, and is stored with release behind
    /// device_address: who loads it with acquire may use that without the mutex.
    std::atomic<State> state = State::UNTRIED;
    void* device_address = nullptr;
    Result<void> refusal;  ///< guarded by mutex_
  };

  Registration(Device& device, std::byte* base, uint64_t size_bytes, uint64_t chunk_bytes);

  uint64_t chunk_count() const { return (size_bytes_ - 1) / chunk_bytes_ + 1; }
  uint64_t chunk_size_bytes(uint64_t index) const {
    return std::min(chunk_bytes_, size_bytes_ - index * chunk_bytes_);
  }
  bool contains(uint64_t offset, uint64_t size_bytes) const {
    return offset <= size_bytes_ && size_bytes <= size_bytes_ - offset;
  }
  Result<void> settle(uint64_t index, std::unique_lock<std::mutex>& lock);
  Result<void*> register_chunk(uint64_t index);
  void run();

  Device& device_;
  std::byte* const base_;
  const uint64_t size_bytes_;
  const uint64_t chunk_bytes_;
  const std::unique_ptr<Chunk[]> chunks_;
  std::atomic<uint64_t> registered_bytes_ = 0;

  std::mutex thread_mutex_;  ///< guards thread_; taken before mutex_
  std::thread thread_;

  mutable std::mutex mutex_;  ///< guards what follows and, as said there, the chunks
  std::condition_variable changed_;
  uint32_t ensuring_ = 0;     ///< calls of ensure() that want a chunk: the thread waits
  bool is_stopping_ = false;  ///< the thread has to end
  bool is_running_ = false;   ///< it has not ended
};

}  // namespace bowhead::gpu
