// SPDX-License-Identifier: Apache-2.0
// The C ABI of GPUs and of memory that is registered for them.
#include "api/gpu.h"

#include <type_traits>
#include <utility>

using namespace bowhead::api;  // NOLINT: the functions of the ABI are in no namespace
using bowhead::Result;
using bowhead::gpu::Device;
using bowhead::gpu::Registration;

namespace {

bh_status open_gpu(bh_gpu** out, Result<std::unique_ptr<Device>> opened) {
  if (!opened) return fail(opened.error());
  *out = new bh_gpu{std::move(*opened)};
  return BH_OK;
}

bh_status keep_registration(const bh_gpu& gpu, Result<std::unique_ptr<Registration>> created,
                            std::string pool_id, bh_gpu_memory** out) {
  if (!created) return fail(created.error());
  auto memory = std::make_unique<bh_gpu_memory>();
  memory->memory = std::make_shared<RegisteredMemory>(
      RegisteredMemory{gpu.device, std::move(*created), std::move(pool_id)});
  *out = memory.release();
  return BH_OK;
}

}  // namespace

extern "C" {

// ---- GPUs ----

bh_status bh_gpu_open(uint32_t ordinal, bh_gpu** out) {
  return guarded(__func__, [&]() -> bh_status {
    if (out == nullptr) return null_argument("out");
    return open_gpu(out, Device::open(ordinal));
  });
}

bh_status bh_gpu_open_cpu(bh_gpu** out) {
  return guarded(__func__, [&]() -> bh_status {
    if (out == nullptr) return null_argument("out");
    return open_gpu(out, Device::cpu());
  });
}

bh_status bh_gpu_get_info(bh_gpu* gpu, bh_gpu_info* out) {
  return guarded(__func__, [&]() -> bh_status {
    if (const bh_status bad = check_handle(gpu, "gpu"); bad != BH_OK) return bad;
    if (const bh_status bad = check_struct(out, "out"); bad != BH_OK) return bad;
    const bowhead::gpu::DeviceInfo& known = gpu->device->info();
    bh_gpu_info info{};
    info.is_cpu = known.is_cpu ? 1 : 0;
    info.memory_bytes = known.memory_bytes;
    info.decodes_lz4 = known.decodes_lz4 ? 1 : 0;
    info.registers_read_only = known.registers_read_only ? 1 : 0;
    copy_text(known.name, info.name);
    copy_text(known.link, info.link);
    copy_text(known.driver, info.driver);
    copy_text(known.pin_fault, info.pin_fault);
    write_struct(info, out);
    return BH_OK;
  });
}

bh_status bh_gpu_synchronize(bh_gpu* gpu, void* stream) {
  return guarded(__func__, [&]() -> bh_status {
    if (const bh_status bad = check_handle(gpu, "gpu"); bad != BH_OK) return bad;
    Device& device = *gpu->device;
    if (auto good = device.check_stream(stream); !good) return fail(good.error());
    const auto event = device.make_event();
    if (!event) return fail(event.error());
    auto done = device.record(*event, stream);
    if (done) done = device.synchronize(*event);
    device.destroy_event(*event);
    return finish(done);
  });
}

void bh_gpu_close(bh_gpu* gpu) {
  if (gpu != nullptr && gpu->forks_at_open == forks()) delete gpu;
}

// ---- registered memory ----

bh_status bh_gpu_register_pool(bh_gpu* gpu, bh_pool* pool, uint64_t chunk_bytes,
                               bh_gpu_memory** out) {
  return guarded(__func__, [&]() -> bh_status {
    if (const bh_status bad = check_handle(gpu, "gpu"); bad != BH_OK) return bad;
    if (const bh_status bad = check_handle(pool, "pool"); bad != BH_OK) return bad;
    if (out == nullptr) return null_argument("out");
    const auto info = pool->pool.info();
    if (!info) return finish(*pool, info.status());
    return keep_registration(
        *gpu,
        Registration::create(*gpu->device, pool->pool,
                             chunk_bytes == 0 ? bowhead::gpu::kDefaultChunkBytes : chunk_bytes),
        info->pool_id, out);
  });
}

bh_status bh_gpu_register_memory(bh_gpu* gpu, void* data, uint64_t size_bytes,
                                 bh_gpu_memory** out) {
  return guarded(__func__, [&]() -> bh_status {
    if (const bh_status bad = check_handle(gpu, "gpu"); bad != BH_OK) return bad;
    if (data == nullptr) return null_argument("data");
    if (out == nullptr) return null_argument("out");
    auto created = Registration::create(*gpu->device,
                                        bowhead::Span{static_cast<std::byte*>(data), size_bytes});
    if (created) {
      if (auto registered = (*created)->ensure(0, size_bytes); !registered)
        return fail(registered.error());
    }
    return keep_registration(*gpu, std::move(created), "", out);
  });
}

bh_status bh_gpu_memory_ensure(bh_gpu_memory* memory, uint64_t offset, uint64_t size_bytes) {
  return guarded(__func__, [&]() -> bh_status {
    if (const bh_status bad = check_handle(memory, "memory"); bad != BH_OK) return bad;
    return finish(memory->memory->registration->ensure(offset, size_bytes));
  });
}

bh_status bh_gpu_memory_register_rest(bh_gpu_memory* memory) {
  return guarded(__func__, [&]() -> bh_status {
    if (const bh_status bad = check_handle(memory, "memory"); bad != BH_OK) return bad;
    return finish(memory->memory->registration->register_rest());
  });
}

bh_status bh_gpu_memory_retry(bh_gpu_memory* memory) {
  return guarded(__func__, [&]() -> bh_status {
    if (const bh_status bad = check_handle(memory, "memory"); bad != BH_OK) return bad;
    memory->memory->registration->retry();
    return BH_OK;
  });
}

bh_status bh_gpu_memory_get_info(bh_gpu_memory* memory, bh_gpu_memory_info* out) {
  return guarded(__func__, [&]() -> bh_status {
    if (const bh_status bad = check_handle(memory, "memory"); bad != BH_OK) return bad;
    if (const bh_status bad = check_struct(out, "out"); bad != BH_OK) return bad;
    bh_gpu_memory_info info{};
    info.size_bytes = memory->memory->registration->size_bytes();
    info.registered_bytes = memory->memory->registration->registered_bytes();
    write_struct(info, out);
    return BH_OK;
  });
}

void bh_gpu_memory_close(bh_gpu_memory* memory) {
  if (memory != nullptr && memory->forks_at_open == forks()) delete memory;
}

}  // extern "C"
