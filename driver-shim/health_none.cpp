// SPDX-License-Identifier: Apache-2.0
// The stub of health.cpp for builds without libcxl.
#include "driver-shim/health.h"

namespace bowhead::shim {

Result<Health> read_health(const std::string&) {
  return Error{Status::NOT_SUPPORTED, "this build is without libcxl"};
}

}  // namespace bowhead::shim
