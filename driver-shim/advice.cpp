// SPDX-License-Identifier: Apache-2.0
#include "driver-shim/advice.h"

#include <fmt/format.h>

#include <algorithm>

namespace bowhead::shim {
namespace {

/// The part of the path below the root port, which the host bridge's port begins.
std::string bridge_of(const HostFiles& files, const MemoryDevice& device) {
  const std::string place = files.resolved(cxl(device.endpoint));  // .../root0/port1/endpoint2
  const size_t root = place.rfind("/root");
  if (root == std::string::npos) return "";
  const size_t port = place.find('/', root + 1);
  const std::string name =
      port == std::string::npos ? "" : place.substr(port + 1, place.find('/', port + 1) - port - 1);
  return files.link_name(cxl(name) + "/uport");
}

}  // namespace

std::vector<const Decoder*> windows_for(const HostFiles& files, const Inventory& inventory,
                                        const MemoryDevice& device, MemoryKind kind) {
  const std::string bridge = bridge_of(files, device);
  std::vector<const Decoder*> windows;
  for (const Decoder& decoder : inventory.decoders) {
    const bool takes =
        kind == MemoryKind::VOLATILE ? decoder.takes_volatile : decoder.takes_persistent;
    if (decoder.level != DecoderLevel::ROOT || !takes || decoder.ways != 1) continue;
    const std::string target = files.text(cxl(decoder.name) + "/target_list").value_or("");
    if (files.link_name(fmt::format("{}/dport{}", cxl(decoder.port), target)) == bridge)
      windows.push_back(&decoder);
  }
  return windows;
}

uint64_t free_bytes(const Inventory& inventory, const Decoder& window) {
  uint64_t used = 0;
  for (const Region& region : inventory.regions) {
    if (region.window == window.name) used += region.size_bytes;
  }
  return window.size_bytes - std::min(used, window.size_bytes);
}

std::string completing(const Region& region) {
  if (region.committed) return "cxl enable-region " + region.name;
  if (region.kind == MemoryKind::VOLATILE)
    return fmt::format("if no other program is making it: cxl destroy-region -f {}", region.name);
  return "if no other program is making it, `dmesg` may have the reason why it was not completed";
}

std::string using_persistent(const HostFiles& files, const Inventory& inventory,
                             const MemoryDevice& device) {
  const auto windows = windows_for(files, inventory, device, MemoryKind::PERSISTENT);
  return fmt::format(
      "`cxl create-region -m -t pmem -d {} {}` (devices that were interleaved: all of them in one "
      "command, in the order that they had), and then, if its dax device did not come back, "
      "`ndctl create-namespace --mode=devdax --region=REGION`",
      windows.empty() ? "DECODER" : windows.front()->name, device.name);
}

std::string pools_of_node(int node) {
  return fmt::format("pools can lie there as numa:{}/NAME",
                     node < 0 ? "NODE" : std::to_string(node));
}

}  // namespace bowhead::shim
