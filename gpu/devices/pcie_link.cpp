// SPDX-License-Identifier: Apache-2.0
#include "gpu/devices/pcie_link.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <fstream>
#include <optional>

namespace bowhead::gpu {
namespace {

/// The number with which an attribute of a device begins.
std::optional<double> number_in(const std::filesystem::path& attribute) {
  std::ifstream in(attribute);
  double number = 0;
  if (in >> number && number > 0) return number;
  return std::nullopt;
}

}  // namespace

std::string pcie_link(const std::string& bus_id, const std::filesystem::path& devices) {
  std::string name = bus_id;
  std::transform(name.begin(), name.end(), name.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  std::error_code failed;
  // An entry is a link to where the device lies below its port.
  const std::filesystem::path device = std::filesystem::canonical(devices / name, failed);
  if (failed) return "unknown";
  const auto speed = number_in(device / "max_link_speed");
  const auto width = number_in(device / "current_link_width");
  if (!speed || !width) return "unknown";
  const auto above = number_in(device.parent_path() / "max_link_speed");
  return fmt::format("{:.1f} GT/s x{:.0f}", std::min(*speed, above.value_or(*speed)), *width);
}

}  // namespace bowhead::gpu
