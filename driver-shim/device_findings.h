// SPDX-License-Identifier: Apache-2.0
// The device of a pool (firmware-sim/device.h), as `bowhead doctor` examines it.
#pragma once

#include <string>
#include <vector>

#include "driver-shim/doctor.h"
#include "pool/pool.h"

namespace bowhead::shim {

/// Asks it for its health, its poison and some empty commands, through a queue pair. That there is
/// none is a hint. Takes up to some seconds if one does not answer.
std::vector<Finding> examine_device(Pool& pool, const std::string& locator);

}  // namespace bowhead::shim
