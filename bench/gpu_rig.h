// SPDX-License-Identifier: Apache-2.0
// The setting of `bowhead-bench gpu`: one device, or the CPU device, and a pool that it reaches.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/status.h"
#include "bench/gpu_bench.h"
#include "bench/report.h"
#include "gpu/devices/device.h"
#include "gpu/jobs/registration.h"
#include "pool/pool.h"

namespace bowhead::bench {

struct GpuRig {
  std::unique_ptr<gpu::Device> device;
  std::string locator;
  std::unique_ptr<Pool> pool;  ///< registered as a whole
  std::unique_ptr<gpu::Registration> registration;
  gpu::Stream stream = nullptr;

  GpuRig() = default;
  GpuRig(const GpuRig&) = delete;
  GpuRig& operator=(const GpuRig&) = delete;
  ~GpuRig();  ///< the pool is destroyed

  Result<void> open(const GpuBenchOptions& options);
  Result<NamespaceId> namespace_of(const KvLayout& layout);

  /// Queues work in `stream` and waits until the device has finished it.
  Result<void> run(const std::function<Result<void>()>& queue);
  Result<void> copy(void* to, const void* from, size_t bytes);

  /// A row of GB/s by round, with the device's name.
  Figure figure(const char* row, const std::vector<double>& rates) const;
  /// Sets a limit measured in the same rounds. Figures of the CPU device are those of a CPU and
  /// have no target.
  void set_limit(Figure& figure, const char* name, const std::vector<double>& rates,
                 const std::vector<double>& limits, double bound) const;
};

}  // namespace bowhead::bench
