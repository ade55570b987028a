// SPDX-License-Identifier: Apache-2.0
// What `bowhead-bench gpu` measures on: one device, or the CPU in its place, and a pool that it
// reaches.
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

  /// Queues work in `stream`, and waits until the device is through with it.
  Result<void> run(const std::function<Result<void>()>& queue);
  Result<void> copy(void* to, const void* from, size_t bytes);

  /// A row of GB/s by round, which says on what.
  Figure figure(const char* row, const std::vector<double>& rates) const;
  /// Beside something that was measured in the same rounds. The CPU device's figures are those of a
  /// CPU, of which nothing is wanted.
  void set_limit(Figure& figure, const char* name, const std::vector<double>& rates,
                 const std::vector<double>& limits, double bound) const;
};

}  // namespace bowhead::bench
