// SPDX-License-Identifier: Apache-2.0
// Device::open() where there was no nvcc at build time.
#include "gpu/devices/device.h"

namespace bowhead::gpu {

Result<std::unique_ptr<Device>> Device::open(uint32_t /*ordinal*/) {
  return Error{Status::NOT_SUPPORTED,
               "this Bowhead was built without CUDA; build with -DBOWHEAD_WITH_CUDA=ON"};
}

}  // namespace bowhead::gpu
