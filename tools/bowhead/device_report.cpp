// SPDX-License-Identifier: Apache-2.0
#include "tools/bowhead/device_report.h"

#include <fmt/format.h>

#include "tools/program/text.h"

namespace bowhead::cli {
namespace {

std::string or_dash(const std::string& text) { return text.empty() ? "-" : text; }
std::string node_text(int node) { return node < 0 ? "-" : std::to_string(node); }
std::string address_text(const std::optional<uint64_t>& address) {
  return address ? fmt::format("0x{:x}", *address) : "not known";
}
Json address_or_null(const std::optional<uint64_t>& address) {
  return address ? Json(*address) : Json(nullptr);
}
Json or_null(const std::string& text) { return text.empty() ? Json(nullptr) : Json(text); }
Json node_or_null(int node) { return node < 0 ? Json(nullptr) : Json(node); }

/// "dax0.0" below the region; "" none.
std::string dax_of(const shim::Inventory& inventory, const std::string& region) {
  std::string names;
  for (const shim::DaxDevice& dax : inventory.dax_devices) {
    if (dax.region == region) names += (names.empty() ? "" : ", ") + dax.name;
  }
  return names;
}

std::string region_of(const shim::Inventory& inventory, const std::string& device) {
  std::string names;
  for (const shim::Region& region : inventory.regions) {
    for (const std::string& one : region.devices) {
      if (one == device) names += (names.empty() ? "" : ", ") + region.name;
    }
  }
  return names;
}

std::string serial_text(const shim::MemoryDevice& device) {
  return device.serial ? fmt::format("0x{:x}", *device.serial) : "not known";
}

std::string memory_devices_text(const shim::Inventory& inventory) {
  if (inventory.memory_devices.empty()) return "no CXL memory device\n";
  Table table(
      {"DEVICE", "SERIAL", ">VOLATILE", ">PERSISTENT", "PCI", ">NODE", "FIRMWARE", "REGIONS"});
  for (const shim::MemoryDevice& device : inventory.memory_devices) {
    table.add({device.name, serial_text(device), human_bytes(device.volatile_bytes),
               human_bytes(device.persistent_bytes), or_dash(device.pci_address),
               node_text(device.node), or_dash(one_line(device.firmware)),
               or_dash(region_of(inventory, device.name))});
  }
  return table.text();
}

std::string functions_text(const shim::Inventory& inventory) {
  if (inventory.compute_functions.empty()) return "";
  Table table({"FUNCTION THAT COMPUTES", ">NODE", "DRIVER"});
  for (const shim::ComputeFunction& function : inventory.compute_functions)
    table.add({function.pci_address, node_text(function.node), or_dash(function.driver)});
  return "\n" + table.text();
}

std::string regions_text(const shim::Inventory& inventory) {
  if (inventory.regions.empty()) return "";
  Table table({"REGION", "KIND", ">SIZE", ">ADDRESS", "INTERLEAVE", "DEVICES", "STATE", "DAX"});
  for (const shim::Region& region : inventory.regions) {
    std::string devices;
    for (const std::string& device : region.devices)
      devices += (devices.empty() ? "" : ", ") + device;
    const std::string interleave =
        region.ways == 1
            ? "-"
            : fmt::format("{} x {}", region.ways, human_bytes(region.granularity_bytes));
    const char* state = !region.committed       ? "not committed"
                        : region.driver.empty() ? "no driver"
                        : region.system_memory  ? "system memory"
                                                : "ready";
    table.add({region.name, shim::name_of(region.kind), human_bytes(region.size_bytes),
               address_text(region.start), interleave, or_dash(devices), state,
               or_dash(dax_of(inventory, region.name))});
  }
  return "\n" + table.text();
}

std::string dax_text(const shim::Inventory& inventory) {
  if (inventory.dax_devices.empty()) return "\nno dax device\n";
  Table table({"DAX", "MODE", "KIND", ">SIZE", ">ALIGNMENT", ">NODE", "REGION", "CAN BE OPENED"});
  for (const shim::DaxDevice& dax : inventory.dax_devices) {
    table.add({dax.path, shim::name_of(dax.mode), dax.persistent ? "persistent" : "volatile",
               human_bytes(dax.size_bytes), human_bytes(dax.align_bytes), node_text(dax.node),
               or_dash(dax.region), dax.can_open ? "yes" : "no: " + dax.why_not});
  }
  return "\n" + table.text();
}

std::string nodes_text(const shim::Inventory& inventory) {
  Table table({">NODE", "CPUS", ">MEMORY", ">FREE"});
  for (const shim::NumaNode& node : inventory.nodes) {
    table.add({std::to_string(node.number), node.cpus.empty() ? "none" : node.cpus,
               human_bytes(node.size_bytes), human_bytes(node.free_bytes)});
  }
  return inventory.nodes.empty() ? "" : "\n" + table.text();
}

std::string health_text(const shim::Health& health) {
  std::string text = health.warnings.empty() ? "no warning" : "";
  for (const std::string& warning : health.warnings) text += (text.empty() ? "" : "; ") + warning;
  if (health.temperature_celsius)
    text += fmt::format(", {} degrees C", *health.temperature_celsius);
  if (health.life_used_percent)
    text += fmt::format(", {} % of its life used", *health.life_used_percent);
  return fmt::format("{}, {} dirty shutdowns, {} errors corrected", text, health.dirty_shutdowns,
                     health.volatile_errors + health.persistent_errors);
}

std::string condition_text(const DeviceReport& report) {
  std::string text = "\n";
  for (size_t i = 0; i < report.health.size(); ++i) {
    const auto& health = report.health[i];
    text += fmt::format("health of {}: {}\n", report.inventory.memory_devices[i].name,
                        health ? health_text(*health) : "not known: " + health.error().message());
  }
  for (const shim::MediaErrors::Gap& gap : report.errors.not_known)
    text += fmt::format("media errors: not known: {}\n", gap.why);
  if (report.errors.found.empty()) {
    if (report.errors.not_known.empty()) text += "media errors: none\n";
    return text;
  }
  Table table({"MEDIA ERROR IN", ">AT", ">BYTES", "SOURCE", "DAX", ">BYTE OF THE DAX"});
  for (const shim::MediaError& error : report.errors.found) {
    table.add({error.device, address_text(error.device_offset), grouped(error.size_bytes),
               error.source, or_dash(error.dax),
               error.dax.empty() ? "-" : grouped(error.dax_offset)});
  }
  return text + table.text();
}

Json health_json(const shim::Health& health) {
  const auto number = [](const std::optional<int>& value) {
    return value ? Json(*value) : Json(nullptr);
  };
  return {{"warnings", health.warnings},
          {"life_used_percent", number(health.life_used_percent)},
          {"temperature_celsius", number(health.temperature_celsius)},
          {"dirty_shutdowns", health.dirty_shutdowns},
          {"volatile_errors", health.volatile_errors},
          {"persistent_errors", health.persistent_errors}};
}

Json gap_json(const shim::MediaErrors::Gap& gap) {
  return {{"device", or_null(gap.device)}, {"why", gap.why}};
}

Json function_json(const shim::ComputeFunction& function) {
  return {{"pci_address", function.pci_address},
          {"node", node_or_null(function.node)},
          {"driver", or_null(function.driver)}};
}

Json memory_device_json(const shim::MemoryDevice& device) {
  return {{"name", device.name},
          {"serial", device.serial ? Json(fmt::format("{:016x}", *device.serial)) : Json(nullptr)},
          {"volatile_bytes", device.volatile_bytes},
          {"persistent_bytes", device.persistent_bytes},
          {"pci_address", or_null(device.pci_address)},
          {"node", node_or_null(device.node)},
          {"firmware", or_null(device.firmware)},
          {"endpoint", or_null(device.endpoint)},
          {"security", or_null(device.security)}};
}

Json decoder_json(const shim::Decoder& decoder) {
  Json json = {{"name", decoder.name},
               {"level", shim::name_of(decoder.level)},
               {"port", decoder.port},
               {"address", address_or_null(decoder.start)},
               {"size_bytes", decoder.size_bytes},
               {"ways", decoder.ways},
               {"region", or_null(decoder.region)}};
  if (decoder.level == shim::DecoderLevel::ENDPOINT)
    json.update({{"device", or_null(decoder.device)},
                 {"kind", shim::name_of(decoder.mode)},
                 {"device_bytes", decoder.device_bytes}});
  if (decoder.level == shim::DecoderLevel::ROOT)
    json.update({{"takes_volatile", decoder.takes_volatile},
                 {"takes_persistent", decoder.takes_persistent}});
  return json;
}

Json region_json(const shim::Region& region) {
  return {{"name", region.name},
          {"kind", shim::name_of(region.kind)},
          {"window", or_null(region.window)},
          {"address", address_or_null(region.start)},
          {"size_bytes", region.size_bytes},
          {"ways", region.ways},
          {"granularity_bytes", region.granularity_bytes},
          {"committed", region.committed},
          {"driver", or_null(region.driver)},
          {"devices", region.devices},
          {"system_memory", region.system_memory},
          {"node", node_or_null(region.node)}};
}

Json dax_json(const shim::DaxDevice& dax) {
  return {{"name", dax.name},
          {"path", dax.path},
          {"mode", shim::name_of(dax.mode)},
          {"driver", or_null(dax.driver)},
          {"region", or_null(dax.region)},
          {"persistent", dax.persistent},
          {"address", address_or_null(dax.start)},
          {"size_bytes", dax.size_bytes},
          {"align_bytes", dax.align_bytes},
          {"node", node_or_null(dax.node)},
          {"can_open", dax.can_open},
          {"why_not", or_null(dax.why_not)}};
}

Json node_json(const shim::NumaNode& node) {
  return {{"number", node.number},         {"cpus", node.cpus},
          {"size_bytes", node.size_bytes}, {"free_bytes", node.free_bytes},
          {"blocks_online", node.blocks},  {"blocks_movable", node.blocks_movable}};
}

template <class List, class ToJson>
Json array_of(const List& list, ToJson to_json) {
  Json array = Json::array();
  for (const auto& item : list) array.push_back(to_json(item));
  return array;
}

}  // namespace

std::string devices_text(const DeviceReport& report) {
  const shim::Inventory& inventory = report.inventory;
  return memory_devices_text(inventory) + functions_text(inventory) + regions_text(inventory) +
         dax_text(inventory) + nodes_text(inventory) +
         (inventory.memory_devices.empty() ? "" : condition_text(report));
}

Json media_error_json(const shim::MediaError& error) {
  return {{"device", error.device},
          {"device_offset", error.device_offset},
          {"size_bytes", error.size_bytes},
          {"source", error.source},
          {"region", or_null(error.region)},
          {"dax", or_null(error.dax)},
          {"dax_offset", error.dax.empty() ? Json(nullptr) : Json(error.dax_offset)}};
}

Json devices_json(const DeviceReport& report) {
  const shim::Inventory& inventory = report.inventory;
  Json devices = array_of(inventory.memory_devices, memory_device_json);
  for (size_t i = 0; i < report.health.size(); ++i) {
    const auto& health = report.health[i];
    devices[i]["health"] = health ? health_json(*health) : Json(nullptr);
    devices[i]["health_not_known"] = health ? Json(nullptr) : Json(health.error().message());
  }
  return {{"memory_devices", devices},
          {"compute_functions", array_of(inventory.compute_functions, function_json)},
          {"decoders", array_of(inventory.decoders, decoder_json)},
          {"regions", array_of(inventory.regions, region_json)},
          {"dax_devices", array_of(inventory.dax_devices, dax_json)},
          {"nodes", array_of(inventory.nodes, node_json)},
          {"media_errors", array_of(report.errors.found, media_error_json)},
          {"media_errors_not_known", array_of(report.errors.not_known, gap_json)}};
}

}  // namespace bowhead::cli
