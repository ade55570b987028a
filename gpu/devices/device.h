// SPDX-License-Identifier: Apache-2.0
// One GPU, or the CPU in its place: memory, streams, copies and kernels, as thin as it gets.
//
// Everything above this header is written once and runs on both: the CPU device has streams that
// run in threads of their own, memory that it calls device memory, and the same kernels
// (kernels.h), executed lane by lane. Addresses and streams are those of CUDA: an engine's pointers
// and its cudaStream_t go in as they are.
//
// Every fault that the driver reports comes back as a status, with a sentence that names the call
// and has the driver's own words. Two statuses may come from all methods and are not repeated:
// GPU_LOST (a kernel made a forbidden access, or the hardware failed: nothing works any more in
// this process, and queued work is not done; but copies that were under way then may still arrive
// until the process ends) and SYSTEM (an unexpected error of the driver).
//
// Thread-safety: all of a Device, and no method changes which GPU is current to the calling thread.
// Its streams, events and memory are ended before it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "base/status.h"
#include "gpu/kernels/kernels.h"

namespace bowhead::gpu {

/// A cudaStream_t; null: the legacy default stream, which neither waits for those of make_stream()
/// nor they for it: engines whose default is one for each thread pass cudaStreamPerThread. For the
/// CPU device: a stream of make_stream(), or null.
using Stream = void*;
using Event = void*;

/// Memory of devices, and pinned memory, begins at a multiple of this; so do the parts of a job's.
inline constexpr size_t kMemoryAlign = 256;
inline size_t memory_aligned(size_t bytes) {
  return (bytes + kMemoryAlign - 1) / kMemoryAlign * kMemoryAlign;
}

/// The memory that a pointer points to, as far as the driver knows.
enum class PointerKind {
  HOST,        ///< memory that is not registered, or no memory at all
  REGISTERED,  ///< host memory that this device reaches: registered, or allocated as such
  DEVICE,      ///< of this device
  OTHER,       ///< of another device
  MANAGED      ///< moves between host and device on its own
};
const char* pointer_kind_name(PointerKind kind);

/// The access of a device to host memory that is registered for it.
enum class DeviceAccess { READ, READ_AND_WRITE };

struct DeviceInfo {
  std::string name;  ///< "NVIDIA H200", "cpu"
  bool is_cpu = false;
  uint64_t memory_bytes = 0;
  std::string link;    ///< to the host, "32.0 GT/s x16" (pcie_link.h); "none" of the CPU device
  std::string driver;  ///< the newest CUDA that it knows, "13.0"; "none" of the CPU device
  bool decodes_lz4 = false;  ///< takes DecodeLz4: built with nvCOMP
  /// Takes DeviceAccess::READ for host memory that cannot be pinned for writing.
  bool registers_read_only = false;
  /// For the CPU device: why the kernel does not let it pin memory, so that it only keeps count of
  /// registrations. "": it pins, as a driver does.
  std::string pin_fault;
};

struct CopyRun {
  void* to = nullptr;
  const void* from = nullptr;
  size_t size_bytes = 0;
};

/// For the CPU in place of a GPU: the limits and faults that a test wants to meet.
struct CpuDeviceOptions {
  uint64_t memory_bytes = uint64_t{16} << 30;  ///< of device memory
  uint64_t most_registered_bytes = UINT64_MAX;
  bool decodes_lz4 = true;
  bool registers_read_only = false;
  /// Called before each registration, by the caller's thread, and before each copy, batch and
  /// kernel, by the stream's. It may block; false: the GPU is lost from here on.
  std::function<bool()> before_work = {};
  /// Whether a graph is being recorded from a stream, asked by each caller's thread: check_stream()
  /// refuses it then, and work that is queued in it all the same is SYSTEM.
  std::function<bool(Stream)> is_recorded = {};
};

class Device {
 public:
  virtual ~Device() = default;

  /// GPU `ordinal`. NOT_SUPPORTED: built without CUDA, there is no driver, or it is too old;
  /// NOT_FOUND: no such GPU.
  static Result<std::unique_ptr<Device>> open(uint32_t ordinal);
  /// The CPU in place of a GPU. CPU devices of a process are to each other what its GPUs are.
  static std::unique_ptr<Device> cpu(CpuDeviceOptions options = {});

  virtual const DeviceInfo& info() const = 0;

  // ---- memory ----

  /// Device memory, aligned to kMemoryAlign. NO_SPACE; INVALID_ARGUMENT: no bytes.
  virtual Result<void*> allocate(size_t size_bytes) = 0;
  /// Host memory that this device reaches, aligned to kMemoryAlign. Same statuses.
  virtual Result<void*> allocate_pinned(size_t size_bytes) = 0;
  /// Frees memory of either kind, when no queued work uses it; null: does nothing.
  virtual void free(void* memory) = 0;

  virtual Result<PointerKind> classify(const void* pointer) = 0;
  /// The kind of memory in which a range ends, if kernels reach its first and its last byte.
  /// INVALID_ARGUMENT, in a sentence about `what`: one is in memory of no device or of another one.
  Result<PointerKind> check_reached(std::string_view what, const void* memory, size_t size_bytes);
  /// Makes host memory reachable for kernels and for copies at full speed, on all GPUs of the
  /// process: one Device registers for all. It pins the pages, which takes about a second for each
  /// GiB, and has to stay mapped until it is unregistered; both arguments are multiples of 4 KiB.
  /// LIMIT_REACHED: the driver has no more room for it; NOT_SUPPORTED: not this kind of memory (for
  /// READ_AND_WRITE a read-only mapping, or a file that the kernel never pins for writing), or READ
  /// of a device that does not take it (DeviceInfo::registers_read_only); BUSY: some of it is
  /// registered already; MISALIGNED; INVALID_ARGUMENT: no bytes, or some that are not mapped.
  virtual Result<void> register_host(void* memory, size_t size_bytes,
                                     DeviceAccess access = DeviceAccess::READ_AND_WRITE) = 0;
  /// `memory` as it was registered, mapped or no more, when no queued work uses it.
  /// INVALID_ARGUMENT: it is not. After GPU_LOST the driver may hold the pages until the process
  /// ends.
  virtual Result<void> unregister_host(void* memory) = 0;
  /// Where kernels find registered memory. INVALID_ARGUMENT: it is not.
  virtual Result<void*> device_address(void* registered) = 0;

  // ---- order: work queued in one stream is done in its order ----

  /// `priority`: 0, or below for more urgent work; one that the device does not have is taken as
  /// the nearest that it has.
  virtual Result<Stream> make_stream(int priority) = 0;
  /// Waits until its queued work is done, or the GPU lost. Never null.
  virtual void destroy_stream(Stream stream) = 0;
  /// For a stream that comes from elsewhere. INVALID_ARGUMENT: it is of another device, or is being
  /// recorded as a graph (work queued then would run at any time, and again).
  virtual Result<void> check_stream(Stream stream) = 0;

  virtual Result<Event> make_event() = 0;
  virtual void destroy_event(Event event) = 0;
  /// The event means the work queued in `stream` so far, and no longer what it meant before.
  virtual Result<void> record(Event event, Stream stream) = 0;
  /// Work queued in `stream` from here on waits for what the event means now; the caller does not
  /// wait. An event that was not recorded is done.
  virtual Result<void> wait(Stream stream, Event event) = 0;
  virtual Result<bool> is_done(Event event) = 0;
  /// The caller waits.
  virtual Result<void> synchronize(Event event) = 0;
  /// Calls `callee` once, from a thread of the device's, when the work queued in `stream` so far is
  /// done or the GPU lost. Later work of the stream waits for its return: it only wakes a thread,
  /// and neither calls a Device nor waits for one.
  virtual Result<void> notify(Stream stream, std::function<void()> callee) = 0;

  // ---- work: queued, done later ----
  //
  // A fault that the driver finds at once is this call's; a later one is GPU_LOST.

  /// Between memory of any kind that this device reaches. From or to HOST memory it works, slowly,
  /// and the caller may wait. Neither end may leave the allocation or the registration in which it
  /// begins (Registration::for_chunks()). INVALID_ARGUMENT: it does, or is null, as far as the
  /// driver sees. No bytes: OK, and nothing is looked at.
  virtual Result<void> copy(void* to, const void* from, size_t size_bytes, Stream stream) = 0;
  /// The same for many runs, in any order among themselves, by one call of the driver's where it
  /// has one. `runs` may be gone when it returns. After a failure some may have been queued.
  virtual Result<void> copy_batch(std::span<const CopyRun> runs, Stream stream) = 0;
  /// Launches the kernel for a descriptor (kernels.h). check() (check.h) accepts `work`, which is
  /// copied; its addresses are not read before it runs, and have to stay valid.
  virtual Result<void> launch(const Work& work, Stream stream) = 0;

 protected:
  /// Checks the arguments of register_host(). INVALID_ARGUMENT, MISALIGNED.
  static Result<void> check_host_range(const void* memory, size_t size_bytes);
};

}  // namespace bowhead::gpu
