// SPDX-License-Identifier: Apache-2.0
#include "bench/gpu_rig.h"

#include <fmt/format.h>
#include <unistd.h>

#include <utility>

#include "base/checksum.h"

namespace bowhead::bench {

using gpu::Device;

GpuRig::~GpuRig() {
  if (stream != nullptr) device->destroy_stream(stream);
  registration.reset();
  pool.reset();
  if (!locator.empty()) (void)Pool::destroy(locator, true);
}

Result<void> GpuRig::open(const GpuBenchOptions& options) {
  if (options.cpu_device) {
    device = Device::cpu();
  } else {
    auto opened = Device::open(0);
    if (!opened)
      return Error{opened.status(),
                   opened.error().message() + " (--cpu-device runs it on the CPU)"};
    device = std::move(*opened);
  }
  const auto name = fmt::format("shm:bowhead-bench-gpu-{}", getpid());
  CreateOptions create;
  create.size_bytes = options.quick ? 64u << 20 : 1u << 30;
  create.evict_high_permille = 0;
  if (auto created = Pool::create(name, create); !created) return created.error();
  locator = name;
  auto opened = Pool::open(locator);
  if (!opened) return opened.error();
  pool = std::make_unique<Pool>(std::move(*opened));
  auto registered = gpu::Registration::create(*device, *pool);
  if (!registered) return registered.error();
  registration = std::move(*registered);
  auto made = device->make_stream(0);
  if (!made) return made.error();
  stream = *made;
  return registration->ensure(0, registration->size_bytes());
}

Result<NamespaceId> GpuRig::namespace_of(const KvLayout& layout) {
  const uint64_t name = hash64(&layout, sizeof(layout));
  return pool->open_namespace({fmt::format("bench {:016x}", name), "gpu", {layout}});
}

Result<void> GpuRig::run(const std::function<Result<void>()>& queue) {
  auto event = device->make_event();
  if (!event) return event.error();
  auto done = queue();
  if (done) done = device->record(*event, stream);
  if (done) done = device->synchronize(*event);
  device->destroy_event(*event);
  return done;
}

Result<void> GpuRig::copy(void* to, const void* from, size_t bytes) {
  return run([&] { return device->copy(to, from, bytes, stream); });
}

Figure GpuRig::figure(const char* row, const std::vector<double>& rates) const {
  Figure figure;
  figure.row = row;
  figure.parameters = {{"device", device->info().name},
                       {"driver", device->info().driver},
                       {"cpu_device", device->info().is_cpu}};
  figure.value = summarize(rates);
  figure.unit = "GB/s";
  return figure;
}

void GpuRig::set_limit(Figure& figure, const char* name, const std::vector<double>& rates,
                       const std::vector<double>& limits, double bound) const {
  figure.limit = Limit{name, summarize(limits)};
  figure.ratio = ratio_of(rates, limits);
  if (!device->info().is_cpu) figure.target = Target{bound, true, true};
}

}  // namespace bowhead::bench
