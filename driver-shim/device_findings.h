// SPDX-License-Identifier: Apache-2.0
// The device of a pool (firmware-sim/device.h), as `bowhead doctor` examines it.
#pragma once

#include <string>
#include <vector>

#include "driver-shim/doctor.h"
#include "pool/pool.h"

namespace bowhead::shim {

/// Reads its health and its poison, and times empty commands, through a queue pair. A pool without
/// a device is a hint. Takes some seconds if a device does not answer.
std::vector<Finding> examine_device(Pool& pool, const std::string& locator);

}  // namespace bowhead::shim
