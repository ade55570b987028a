// SPDX-License-Identifier: Apache-2.0
// A GPU through the CUDA runtime.
//
// Calls change nothing of the caller's, which is an engine in the middle of its work:
// - The context is pushed for each call and popped behind it, through the driver: cudaSetDevice()
//   would have to be undone by another, which makes a context on GPU 0 for threads that had none.
// - An error is taken out of the runtime's memory at once, so that the caller's next
//   cudaGetLastError() does not find ours.
// - While another thread records a graph, which forbids all threads calls that might disturb it,
//   ours say that they do not: else they would fail, and the recording with them.
#include <cuda.h>
#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include <array>
#include <utility>

#include "gpu/devices/device.h"
#include "gpu/devices/pcie_link.h"
#include "gpu/kernels/cuda_compat.h"
#include "gpu/kernels/launch.h"

namespace bowhead::gpu {
namespace {

constexpr unsigned kDriverInterface = 12000;  ///< CUDA whose driver calls we mean

/// The driver's errors after a fault that ends all work of this process on the GPU.
bool is_fatal(cudaError_t code) {
  static constexpr std::array kFatal = {cudaErrorIllegalAddress,
                                        cudaErrorLaunchFailure,
                                        cudaErrorLaunchTimeout,
                                        cudaErrorHardwareStackError,
                                        cudaErrorIllegalInstruction,
                                        cudaErrorMisalignedAddress,
                                        cudaErrorInvalidAddressSpace,
                                        cudaErrorInvalidPc,
                                        cudaErrorAssert,
                                        cudaErrorTensorMemoryLeak,
                                        cudaErrorECCUncorrectable,
                                        cudaErrorNvlinkUncorrectable,
                                        cudaErrorContained,
                                        cudaErrorExternalDevice,
                                        cudaErrorMpsClientTerminated,
                                        cudaErrorMpsServerNotReady,
                                        cudaErrorMpsRpcFailure,
                                        cudaErrorDevicesUnavailable,
                                        cudaErrorContextIsDestroyed,
                                        cudaErrorDeviceUninitialized,
                                        cudaErrorCudartUnloading,
                                        cudaErrorSystemNotReady,
                                        cudaErrorUnknown};
  for (const cudaError_t fatal : kFatal) {
    if (code == fatal) return true;
  }
  return false;
}

Status status_of(cudaError_t code) {
  if (is_fatal(code)) return Status::GPU_LOST;
  switch (code) {
    case cudaSuccess:
      return Status::OK;
    case cudaErrorInvalidValue:
    case cudaErrorInvalidDevicePointer:
    case cudaErrorInvalidHostPointer:
    case cudaErrorInvalidResourceHandle:
    case cudaErrorHostMemoryNotRegistered:
      return Status::INVALID_ARGUMENT;
    case cudaErrorMemoryAllocation:
      return Status::NO_SPACE;
    case cudaErrorHostMemoryAlreadyRegistered:
      return Status::BUSY;
    case cudaErrorNoDevice:
    case cudaErrorInvalidDevice:
      return Status::NOT_FOUND;
    case cudaErrorNotSupported:
    case cudaErrorInsufficientDriver:
    case cudaErrorCallRequiresNewerDriver:
    case cudaErrorStubLibrary:
    case cudaErrorSystemDriverMismatch:
    case cudaErrorCompatNotSupportedOnDevice:
    case cudaErrorNoKernelImageForDevice:
    case cudaErrorUnsupportedPtxVersion:
      return Status::NOT_SUPPORTED;
    default:
      return Status::SYSTEM;
  }
}

/// The same for cudaHostRegister(), whose codes mean something else.
Status registration_status_of(cudaError_t code) {
  switch (code) {
    case cudaErrorMemoryAllocation:
    case cudaErrorUnsupportedLimit:
      return Status::LIMIT_REACHED;
    case cudaErrorInvalidValue:
      return Status::NOT_SUPPORTED;
    default:
      return status_of(code);
  }
}

Error error_of(const char* call, cudaError_t code, Status status) {
  return {status,
          fmt::format("{}: {} ({})", call, cudaGetErrorString(code), cudaGetErrorName(code))};
}

/// The codes of both interfaces are the same numbers.
cudaError_t from_driver(CUresult code) { return static_cast<cudaError_t>(code); }

/// The calls into the driver itself, which is not linked but found: it may not be there.
struct Driver {
  decltype(&cuDeviceGet) device_get = nullptr;
  decltype(&cuDevicePrimaryCtxRetain) retain_context = nullptr;
  decltype(&cuDevicePrimaryCtxRelease) release_context = nullptr;
  decltype(&cuCtxPushCurrent) push_context = nullptr;
  decltype(&cuCtxPopCurrent) pop_context = nullptr;

  static Result<Driver> find() {
    Driver driver;
    const auto find_one = [](const char* name, auto& function) {
      cudaDriverEntryPointQueryResult found = cudaDriverEntryPointSymbolNotFound;
      const cudaError_t code = cudaGetDriverEntryPointByVersion(
          name, reinterpret_cast<void**>(&function), kDriverInterface, cudaEnableDefault, &found);
      return code == cudaSuccess && found == cudaDriverEntryPointSuccess;
    };
    if (!find_one("cuDeviceGet", driver.device_get) ||
        !find_one("cuDevicePrimaryCtxRetain", driver.retain_context) ||
        !find_one("cuDevicePrimaryCtxRelease", driver.release_context) ||
        !find_one("cuCtxPushCurrent", driver.push_context) ||
        !find_one("cuCtxPopCurrent", driver.pop_context)) {
      (void)cudaGetLastError();
      return Error{Status::NOT_SUPPORTED, "the CUDA driver is too old; install a newer one"};
    }
    return driver;
  }
};

class CudaDevice final : public Device {
 public:
  /// Takes over the context.
  CudaDevice(const Driver& driver, CUdevice ordinal, CUcontext context, DeviceInfo info)
      : driver_(driver), ordinal_(ordinal), context_(context), info_(std::move(info)) {}

  /// An error of the driver at its end changes nothing.
  ~CudaDevice() override { (void)driver_.release_context(ordinal_); }

  const DeviceInfo& info() const override { return info_; }

  Result<void*> allocate(size_t size_bytes) override {
    if (size_bytes == 0) return no_bytes();
    void* memory = nullptr;
    auto called = call("cudaMalloc", [&] { return cudaMalloc(&memory, size_bytes); });
    if (!called) return called.error();
    return memory;
  }

  Result<void*> allocate_pinned(size_t size_bytes) override {
    if (size_bytes == 0) return no_bytes();
    void* memory = nullptr;
    constexpr unsigned kFlags = cudaHostAllocPortable | cudaHostAllocMapped;
    auto called = call("cudaHostAlloc", [&] { return cudaHostAlloc(&memory, size_bytes, kFlags); });
    if (!called) return called.error();
    return memory;
  }

  void free(void* memory) override {
    if (!memory) return;
    const auto freed = call("cudaFree", [&] {
      cudaPointerAttributes attributes = {};
      const cudaError_t code = cudaPointerGetAttributes(&attributes, memory);
      if (code != cudaSuccess) return code;
      return attributes.type == cudaMemoryTypeHost ? cudaFreeHost(memory) : cudaFree(memory);
    });
    BOWHEAD_ASSERT(freed.status() != Status::INVALID_ARGUMENT);  // a lost GPU keeps its memory
  }

  Result<PointerKind> classify(const void* pointer) override {
    cudaPointerAttributes attributes = {};
    auto called = call("cudaPointerGetAttributes",
                       [&] { return cudaPointerGetAttributes(&attributes, pointer); });
    if (called.status() == Status::INVALID_ARGUMENT) return PointerKind::HOST;  // knows nothing
    if (!called) return called.error();
    switch (attributes.type) {
      case cudaMemoryTypeHost:
        return attributes.devicePointer ? PointerKind::REGISTERED : PointerKind::HOST;
      case cudaMemoryTypeDevice:
        return attributes.device == ordinal_ ? PointerKind::DEVICE : PointerKind::OTHER;
      case cudaMemoryTypeManaged:
        return PointerKind::MANAGED;
      case cudaMemoryTypeUnregistered:
        break;
    }
    return PointerKind::HOST;
  }

  Result<void> register_host(void* memory, size_t size_bytes, DeviceAccess access) override {
    if (auto checked = check_host_range(memory, size_bytes); !checked) return checked;
    const unsigned flags = cudaHostRegisterPortable | cudaHostRegisterMapped |
                           (access == DeviceAccess::READ ? cudaHostRegisterReadOnly : 0U);
    return call(
        "cudaHostRegister", [&] { return cudaHostRegister(memory, size_bytes, flags); },
        registration_status_of);
  }

  Result<void> unregister_host(void* memory) override {
    return call("cudaHostUnregister", [&] { return cudaHostUnregister(memory); });
  }

  Result<void*> device_address(void* registered) override {
    void* address = nullptr;
    auto called = call("cudaHostGetDevicePointer",
                       [&] { return cudaHostGetDevicePointer(&address, registered, 0); });
    if (!called) return called.error();
    return address;
  }

  Result<Stream> make_stream(int priority) override {
    cudaStream_t stream = nullptr;
    auto called = call("cudaStreamCreateWithPriority", [&] {
      return cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking, priority);
    });
    if (!called) return called.error();
    return Stream{stream};
  }

  void destroy_stream(Stream stream) override {
    BOWHEAD_ASSERT(stream);
    // A lost GPU has nothing to wait for, and its streams nothing to give back.
    (void)call("cudaStreamSynchronize", [&] { return cudaStreamSynchronize(cuda(stream)); });
    (void)call("cudaStreamDestroy", [&] { return cudaStreamDestroy(cuda(stream)); });
  }

  Result<void> check_stream(Stream stream) override {
    int device = ordinal_;
    if (stream) {
      auto called =
          call("cudaStreamGetDevice", [&] { return cudaStreamGetDevice(cuda(stream), &device); });
      if (!called) return called;
    }
    if (device != ordinal_) {
      return Error{Status::INVALID_ARGUMENT,
                   fmt::format("stream {} is of GPU {}, not of GPU {}", stream, device, ordinal_)};
    }
    cudaStreamCaptureStatus capture = cudaStreamCaptureStatusNone;
    auto called = call("cudaStreamIsCapturing",
                       [&] { return cudaStreamIsCapturing(cuda(stream), &capture); });
    if (!called) return called;
    if (capture != cudaStreamCaptureStatusNone) {
      return Error{
          Status::INVALID_ARGUMENT,
          fmt::format("stream {} is being recorded as a graph: the descriptors of jobs hold "
                      "for one time, and not for each that a graph runs",
                      stream)};
    }
    return {};
  }

  Result<Event> make_event() override {
    // A thread that waits for an event sleeps: the cores are the engine's.
    constexpr unsigned kFlags = cudaEventDisableTiming | cudaEventBlockingSync;
    cudaEvent_t event = nullptr;
    auto called =
        call("cudaEventCreateWithFlags", [&] { return cudaEventCreateWithFlags(&event, kFlags); });
    if (!called) return called.error();
    return Event{event};
  }

  void destroy_event(Event event) override {
    // As for streams.
    (void)call("cudaEventDestroy", [&] { return cudaEventDestroy(cuda_event(event)); });
  }

  Result<void> record(Event event, Stream stream) override {
    return call("cudaEventRecord",
                [&] { return cudaEventRecord(cuda_event(event), cuda(stream)); });
  }

  Result<void> wait(Stream stream, Event event) override {
    return call("cudaStreamWaitEvent",
                [&] { return cudaStreamWaitEvent(cuda(stream), cuda_event(event), 0); });
  }

  Result<bool> is_done(Event event) override {
    bool done = true;
    auto called = call("cudaEventQuery", [&] {
      const cudaError_t code = cudaEventQuery(cuda_event(event));
      if (code != cudaErrorNotReady) return code;
      (void)cudaGetLastError();
      done = false;
      return cudaSuccess;
    });
    if (!called) return called.error();
    return done;
  }

  Result<void> synchronize(Event event) override {
    return call("cudaEventSynchronize", [&] { return cudaEventSynchronize(cuda_event(event)); });
  }

  /// Not cudaLaunchHostFunc(), which calls nothing once the GPU is lost.
  Result<void> notify(Stream stream, std::function<void()> callee) override {
    auto owned = std::make_unique<std::function<void()>>(std::move(callee));
    const auto run = [](cudaStream_t, cudaError_t, void* callee_at) {
      const std::unique_ptr<std::function<void()>> of(
          static_cast<std::function<void()>*>(callee_at));
      (*of)();
    };
    auto called = call("cudaStreamAddCallback",
                       [&] { return cudaStreamAddCallback(cuda(stream), run, owned.get(), 0); });
    if (called) (void)owned.release();  // `run` has it
    return called;
  }

  Result<void> copy(void* to, const void* from, size_t size_bytes, Stream stream) override {
    const CopyRun run = {to, from, size_bytes};
    if (auto checked = check_run(run); !checked) return checked;
    return call("cudaMemcpyAsync", [&] { return copy_one(run, cuda(stream)); });
  }

  Result<void> copy_batch(std::span<const CopyRun> runs, Stream stream) override {
    for (const CopyRun& run : runs) {
      if (auto checked = check_run(run); !checked) return checked;
    }
    // The default stream takes no batches.
    if (!stream || cuda(stream) == cudaStreamLegacy) {
      return call("cudaMemcpyAsync", [&] {
        for (const CopyRun& run : runs) {
          if (const cudaError_t code = copy_one(run, cuda(stream)); code != cudaSuccess)
            return code;
        }
        return cudaSuccess;
      });
    }
    CopyBatch batch;
    batch.to.reserve(runs.size());
    batch.from.reserve(runs.size());
    batch.sizes.reserve(runs.size());
    for (const CopyRun& run : runs) {
      if (run.size_bytes == 0) continue;
      batch.to.push_back(run.to);
      batch.from.push_back(run.from);
      batch.sizes.push_back(run.size_bytes);
    }
    if (batch.sizes.empty()) return {};
    batch.attributes.srcAccessOrder = cudaMemcpySrcAccessOrderStream;
    batch.attributes.flags = cudaMemcpyFlagPreferOverlapWithCompute;
    return call("cudaMemcpyBatchAsync", [&] { return copy_batch_async(batch, cuda(stream)); });
  }

  Result<void> launch(const Work& work, Stream stream) override {
    return call("cudaLaunchKernel", [&] {
      return std::visit(
          [&](const auto& descriptor) { return launch_kernel(descriptor, cuda(stream)); }, work);
    });
  }

 private:
  static cudaStream_t cuda(Stream stream) { return static_cast<cudaStream_t>(stream); }
  static cudaEvent_t cuda_event(Event event) { return static_cast<cudaEvent_t>(event); }

  static Error no_bytes() { return {Status::INVALID_ARGUMENT, "allocate: no bytes"}; }

  /// The driver takes null for host memory, and would read it.
  static Result<void> check_run(const CopyRun& run) {
    if (run.size_bytes != 0 && !(run.to && run.from)) {
      return Error{Status::INVALID_ARGUMENT, fmt::format("copy: {} bytes from {} to {}: null",
                                                         run.size_bytes, run.from, run.to)};
    }
    return {};
  }

  static cudaError_t copy_one(const CopyRun& run, cudaStream_t stream) {
    if (run.size_bytes == 0) return cudaSuccess;
    return cudaMemcpyAsync(run.to, run.from, run.size_bytes, cudaMemcpyDefault, stream);
  }

  /// Calls `function` in the context of this GPU.
  template <class Function>
  Result<void> call(const char* name, Function function,
                    Status (*map_status)(cudaError_t) = status_of) {
    const cudaError_t pushed = from_driver(driver_.push_context(context_));
    if (pushed != cudaSuccess) return error_of("cuCtxPushCurrent", pushed, status_of(pushed));
    cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
    (void)cudaThreadExchangeStreamCaptureMode(&mode);  // swaps: `mode` is the caller's now
    const cudaError_t code = function();
    (void)cudaThreadExchangeStreamCaptureMode(&mode);
    if (code != cudaSuccess) (void)cudaGetLastError();
    CUcontext popped = nullptr;
    // Pops in any case; for a lost GPU it repeats the error in `code`.
    (void)driver_.pop_context(&popped);
    BOWHEAD_ASSERT(!popped || popped == context_);
    if (code != cudaSuccess) return error_of(name, code, map_status(code));
    return {};
  }

  const Driver driver_;
  const CUdevice ordinal_;
  const CUcontext context_;  ///< the primary one, which the engine's runtime uses as well
  const DeviceInfo info_;
};

}  // namespace

Result<std::unique_ptr<Device>> Device::open(uint32_t ordinal) {
  int version = 0;
  if (cudaDriverGetVersion(&version) != cudaSuccess || version == 0) {
    (void)cudaGetLastError();
    return Error{Status::NOT_SUPPORTED, "no CUDA driver is installed on this machine"};
  }
  int count = 0;
  cudaError_t code = cudaGetDeviceCount(&count);
  if (code == cudaSuccess && ordinal >= static_cast<uint32_t>(count)) {
    return Error{Status::NOT_FOUND,
                 fmt::format("no GPU {}: this machine shows {}", ordinal, count)};
  }
  cudaDeviceProp properties = {};
  const char* name = "cudaGetDeviceCount";
  if (code == cudaSuccess) {
    name = "cudaGetDeviceProperties";
    code = cudaGetDeviceProperties(&properties, static_cast<int>(ordinal));
  }
  if (code != cudaSuccess) {
    (void)cudaGetLastError();
    return error_of(name, code, status_of(code));
  }
  auto driver = Driver::find();
  if (!driver) return driver.error();
  CUdevice device = 0;
  CUcontext context = nullptr;
  code = from_driver(driver->device_get(&device, static_cast<int>(ordinal)));
  if (code != cudaSuccess) return error_of("cuDeviceGet", code, status_of(code));
  code = from_driver(driver->retain_context(&context, device));
  if (code != cudaSuccess) return error_of("cuDevicePrimaryCtxRetain", code, status_of(code));
  std::array<char, 32> bus_id = {};  // stays empty where the driver does not say
  if (cudaDeviceGetPCIBusId(bus_id.data(), bus_id.size(), static_cast<int>(ordinal)) != cudaSuccess)
    (void)cudaGetLastError();
  DeviceInfo info = {.name = properties.name,
                     .memory_bytes = properties.totalGlobalMem,
                     .link = pcie_link(bus_id.data()),
                     .driver = fmt::format("{}.{}", version / 1000, version % 1000 / 10),
                     .decodes_lz4 = decodes_lz4(),
                     .registers_read_only = properties.hostRegisterReadOnlySupported != 0};
  return std::unique_ptr<Device>(
      std::make_unique<CudaDevice>(*driver, device, context, std::move(info)));
}

}  // namespace bowhead::gpu
