// SPDX-License-Identifier: Apache-2.0
// Frames (compression/frame.h) decoded into device memory. The CPU reads heads, verifies the parts
// of a frame that are needed, and decodes coded streams, except LZ4 where the device does
// (DeviceInfo::decodes_lz4); planes become values on the device.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "base/status.h"
#include "gpu/devices/device.h"

namespace bowhead::gpu {

struct FrameJob {
  /// Memory of any kind that the CPU reads. The device copies registered memory from where it is,
  /// which has to be one registration or allocation, and stay until finish().
  std::span<const uint8_t> frame;
  void* values = nullptr;   ///< of the device; a multiple of an element's bytes
  size_t values_bytes = 0;  ///< size of the frame's values
  uint32_t planes = 0;      ///< as Decoder::decode_prefix() takes them; 0: exact values
};

/// One batch at a time; several decoders work side by side. Memory, pinned and of the device, grows
/// with the largest batch so far: some three times its values in all, four times where the device
/// decodes LZ4. For one thread at a time.
class FrameDecoder {
 public:
  /// The device must outlive it.
  explicit FrameDecoder(Device& device);
  /// Waits for the queued work.
  ~FrameDecoder();
  FrameDecoder(FrameDecoder&&) noexcept;
  FrameDecoder& operator=(FrameDecoder&&) = delete;

  /// Begins a batch: the CPU's part is done when it returns, the rest is queued in `stream`.
  /// Invalid frames are left out, and finish() reports them. BUSY: the last batch is not finished;
  /// INVALID_ARGUMENT: values that are not in memory of the device or not aligned to elements,
  /// streams that may take 4 GiB, the stream of another device or one that is being recorded;
  /// NO_SPACE. After a failure nothing of the batch has to be finished.
  Result<void> start(std::span<const FrameJob> jobs, Stream stream);

  /// Whether the device is through with the batch.
  Result<bool> is_done();
  /// Waits for that. By job, the status that a decoder of frames returns: OK; INVALID_ARGUMENT
  /// (values of another size, too many planes), DAMAGED, UNSUPPORTED_CODEC: then its values are
  /// anything. Valid until the next start(). INVALID_ARGUMENT: no batch was started.
  Result<std::span<const Status>> finish();

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace bowhead::gpu
