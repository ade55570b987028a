// SPDX-License-Identifier: Apache-2.0
// One GPU, or the CPU in its place: memory, streams, copies and kernels, as thin as it gets.
//
// Everything above this header is written once and runs on both: the CPU twin has streams that run
// in threads of their own, memory that it calls device memory, and the same kernels (kernels.h),
// executed lane by lane. Addresses and streams are those of CUDA: an engine's pointers and its
// cudaStream_t go in as they are.
//
// Thread-safety: all of a Device. What is queued in one stream happens in its order.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"
#include "gpu/kernels.h"

namespace bowhead::gpu {

/// A cudaStream_t; null: the default stream. Of the twin: what make_stream() gave.
using Stream = void*;
using Event = void*;

/// What a pointer points to, as far as the driver knows.
enum class PointerKind {
  HOST,        ///< memory that no GPU reaches
  REGISTERED,  ///< host memory that this device reaches: registered, or allocated as such
  DEVICE,      ///< of this device
  OTHER,       ///< of another device
  MANAGED
};
const char* pointer_kind_name(PointerKind kind);

struct DeviceInfo {
  std::string name;  ///< "NVIDIA H200", "cpu"
  bool is_twin = false;
  uint64_t memory_bytes = 0;
  std::string driver;  ///< version, "none" of the twin
};

struct CopyRun {
  void* to = nullptr;
  const void* from = nullptr;
  size_t size_bytes = 0;
};

class Device {
 public:
  virtual ~Device() = default;

  /// GPU `ordinal`. NOT_SUPPORTED: built without CUDA, or there is no driver; NOT_FOUND: no such
  /// GPU; GPU_LOST: the driver does not answer.
  static Result<std::unique_ptr<Device>> open(uint32_t ordinal);
  /// The CPU in place of a GPU.
  static std::unique_ptr<Device> twin();

  virtual const DeviceInfo& info() const = 0;

  // ---- memory ----

  /// Device memory. NO_SPACE.
  virtual Result<void*> allocate(size_t size_bytes) = 0;
  /// Host memory that this device reaches. NO_SPACE.
  virtual Result<void*> allocate_pinned(size_t size_bytes) = 0;
  virtual void free(void* memory) = 0;  ///< of either kind

  virtual Result<PointerKind> classify(const void* pointer) = 0;
  /// Makes host memory reachable for kernels and for copies at full speed. LIMIT_REACHED: the
  /// driver has no more room for it; NOT_SUPPORTED: not this kind of memory; BUSY: some of it is
  /// registered already; GPU_LOST.
  virtual Status register_host(void* memory, size_t size_bytes) = 0;
  virtual Status unregister_host(void* memory) = 0;
  /// Where kernels find registered memory. INVALID_ARGUMENT: it is not.
  virtual Result<void*> device_address(void* registered) = 0;

  // ---- order ----

  /// `priority`: 0, or below for what is more urgent.
  virtual Result<Stream> make_stream(int priority) = 0;
  virtual void destroy_stream(Stream stream) = 0;  ///< when what is queued in it is done
  /// INVALID_ARGUMENT: a stream of another device.
  virtual Status check_stream(Stream stream) = 0;
  virtual Result<Event> make_event() = 0;
  virtual void destroy_event(Event event) = 0;
  virtual Status record(Event event, Stream stream) = 0;
  virtual Status wait(Stream stream, Event event) = 0;  ///< the stream waits, not the caller
  virtual Result<bool> is_done(Event event) = 0;        ///< GPU_LOST also: what came before failed
  virtual Status synchronize(Event event) = 0;
  // ---- work: queued, done later ----

  virtual Status copy(void* to, const void* from, size_t size_bytes, Stream stream) = 0;
  /// The same for many runs, by one call of the driver's where it has one. `runs` may be gone when
  /// it returns.
  virtual Status copy_batch(std::span<const CopyRun> runs, Stream stream) = 0;
  /// Kernels, by what kernels.h calls them. `work` is copied; what it points to has to stay.
  virtual Status launch(const MovePieces& work, Stream stream) = 0;
};

}  // namespace bowhead::gpu
