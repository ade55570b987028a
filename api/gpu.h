// SPDX-License-Identifier: Apache-2.0
// The handles of the C ABI for GPUs.
#pragma once

#include "api/support.h"
#pragma GCC visibility push(default)
#include <bowhead/bowhead_gpu.h>
#pragma GCC visibility pop

#include <memory>
#include <string>

#include "gpu/devices/device.h"
#include "gpu/jobs/registration.h"

namespace bowhead::api {

/// A registration, and what has to outlive it.
struct RegisteredMemory {
  std::shared_ptr<gpu::Device> device;
  std::unique_ptr<gpu::Registration> registration;
  std::string pool_id;  ///< empty: memory of the caller
};

/// FORKED where the handle is not of this process.
template <class Handle>
bh_status check_handle(const Handle* handle, const char* argument) {
  if (handle == nullptr) return null_argument(argument);
  return handle->forks_at_open == forks() ? BH_OK : finish(Status::FORKED);
}

/// Copies as much of a text as fits, with a zero behind it.
template <size_t Bytes>
void copy_text(const std::string& text, char (&out)[Bytes]) {
  out[text.copy(out, Bytes - 1)] = '\0';
}

}  // namespace bowhead::api

// In the child of a fork the threads of a device are gone, and their locks may be held for ever: a
// handle that is closed there is forgotten, and not destroyed.

struct bh_gpu {
  std::shared_ptr<bowhead::gpu::Device> device;
  unsigned forks_at_open = bowhead::api::forks();
};

struct bh_gpu_memory {
  std::shared_ptr<bowhead::api::RegisteredMemory> memory;
  unsigned forks_at_open = bowhead::api::forks();
};
