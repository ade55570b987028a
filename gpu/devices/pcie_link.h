// SPDX-License-Identifier: Apache-2.0
// The link of a PCIe device, as Linux describes it.
#pragma once

#include <filesystem>
#include <string>

namespace bowhead::gpu {

/// The best that the device at `bus_id` ("0000:41:00.0", in any case) and the port above it agree
/// on, as "32.0 GT/s x16"; "unknown" where `devices` does not say. The current speed is not that:
/// an idle GPU slows its link down.
std::string pcie_link(const std::string& bus_id,
                      const std::filesystem::path& devices = "/sys/bus/pci/devices");

}  // namespace bowhead::gpu
