// SPDX-License-Identifier: Apache-2.0
// The CXL memory of a host as tables and as JSON.
#pragma once

#include <string>
#include <vector>

#include "driver-shim/health.h"
#include "driver-shim/inventory.h"
#include "driver-shim/media_errors.h"
#include "tools/bowhead/json.h"

namespace bowhead::cli {

struct DeviceReport {
  shim::Inventory inventory;
  shim::MediaErrors errors;
  std::vector<Result<shim::Health>> health;  ///< of each memory device
};

std::string devices_text(const DeviceReport& report);
Json devices_json(const DeviceReport& report);
Json media_error_json(const shim::MediaError& error);

}  // namespace bowhead::cli
