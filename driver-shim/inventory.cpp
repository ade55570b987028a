// SPDX-License-Identifier: Apache-2.0
#include "driver-shim/inventory.h"

#include <bowhead/format/pci.h>

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <map>

#include "base/unique_fd.h"

namespace bowhead::shim {
namespace {

MemoryKind kind_of(const std::string& text) {
  if (text == "ram") return MemoryKind::VOLATILE;
  if (text == "pmem") return MemoryKind::PERSISTENT;
  return MemoryKind::NONE;
}

/// Nodes are written as decimal numbers, -1 for none.
int node_of(const HostFiles& files, const std::string& path) {
  const auto node = files.number(path);
  return node && *node < 1 << 16 ? static_cast<int>(*node) : -1;
}

/// Memory device to endpoint.
std::map<std::string, std::string> endpoints_of(const HostFiles& files) {
  std::map<std::string, std::string> endpoints;
  for (const std::string& endpoint : files.names(kCxlDevices, "endpoint"))
    endpoints[files.link_name(cxl(endpoint) + "/uport")] = endpoint;
  return endpoints;
}

MemoryDevice read_memory_device(const HostFiles& files, const std::string& name) {
  const std::string folder = cxl(name);
  MemoryDevice device{.name = name};
  device.serial = files.number(folder + "/serial");
  device.volatile_bytes = files.number(folder + "/ram/size").value_or(0);
  device.persistent_bytes = files.number(folder + "/pmem/size").value_or(0);
  const std::string place = files.resolved(folder);
  const std::string parent = last_component(place.substr(0, place.rfind('/')));
  if (files.exists(std::string(kPciDevices) + "/" + parent)) device.pci_address = parent;
  device.node = node_of(files, folder + "/numa_node");
  device.firmware = files.text(folder + "/firmware_version").value_or("");
  device.security = files.text(folder + "/security/state").value_or("");
  return device;
}

DecoderLevel level_of(const std::string& devtype) {
  if (devtype == "cxl_decoder_root") return DecoderLevel::ROOT;
  return devtype == "cxl_decoder_endpoint" ? DecoderLevel::ENDPOINT : DecoderLevel::SWITCH;
}

Decoder read_decoder(const HostFiles& files, const std::string& name) {
  const std::string folder = cxl(name);
  Decoder decoder{.name = name};
  decoder.level = level_of(files.text(folder + "/devtype").value_or(""));
  const std::string place = files.resolved(folder);
  decoder.port = last_component(place.substr(0, place.rfind('/')));
  if (decoder.level == DecoderLevel::ENDPOINT)
    decoder.device = files.link_name(cxl(decoder.port) + "/uport");
  decoder.start = files.number(folder + "/start");
  decoder.size_bytes = files.number(folder + "/size").value_or(0);
  decoder.ways = files.number(folder + "/interleave_ways").value_or(1);
  decoder.region = files.text(folder + "/region").value_or("");
  decoder.mode = kind_of(files.text(folder + "/mode").value_or(""));
  decoder.device_bytes = files.number(folder + "/dpa_size").value_or(0);
  decoder.takes_volatile =
      files.number(folder + "/cap_ram") == 1 && files.exists(folder + "/create_ram_region");
  decoder.takes_persistent = files.number(folder + "/cap_pmem") == 1;
  return decoder;
}

/// The node that has the memory at an address as a block; -1 if none has.
int node_of_block(const HostFiles& files, uint64_t address) {
  const std::string folder = "/sys/devices/system/memory";
  const auto block_bytes =
      parse_number("0x" + files.text(folder + "/block_size_bytes").value_or(""));
  if (!block_bytes || *block_bytes == 0) return -1;
  const auto nodes =
      files.names(fmt::format("{}/memory{}", folder, address / *block_bytes), "node");
  const auto node = nodes.empty() ? std::nullopt : parse_number(nodes.front().substr(4));
  return node ? static_cast<int>(*node) : -1;
}

Region read_region(const HostFiles& files, const std::string& name,
                   const std::vector<Decoder>& decoders) {
  const std::string folder = cxl(name);
  Region region{.name = name};
  const std::string place = files.resolved(folder);
  region.window = last_component(place.substr(0, place.rfind('/')));
  region.start = files.number(folder + "/resource");
  region.size_bytes = files.number(folder + "/size").value_or(0);
  region.ways = files.number(folder + "/interleave_ways").value_or(1);
  region.granularity_bytes = files.number(folder + "/interleave_granularity").value_or(0);
  region.committed = files.number(folder + "/commit") == 1;
  region.driver = files.link_name(folder + "/driver");
  // Kernels that do not name the kind make persistent ones only.
  region.kind = kind_of(files.text(folder + "/mode").value_or("pmem"));
  for (uint64_t way = 0; way < region.ways; ++way) {
    const std::string target = files.text(fmt::format("{}/target{}", folder, way)).value_or("");
    const auto decoder = std::find_if(decoders.begin(), decoders.end(), [&](const Decoder& d) {
      return d.level == DecoderLevel::ENDPOINT && d.name == target;
    });
    if (decoder != decoders.end()) region.devices.push_back(decoder->device);
  }
  // Of volatile memory, cxl_region leaves out the device below if the kernel has it as its own.
  region.system_memory =
      region.ready() && region.kind == MemoryKind::VOLATILE && !files.exists(cxl("dax_" + name));
  if (region.system_memory && region.start) region.node = node_of_block(files, *region.start);
  return region;
}

/// Tries to open the node, and says why if that fails.
void try_to_open(const HostFiles& files, DaxDevice& device) {
  struct stat info {};
  if (stat(files.at(device.path).c_str(), &info) == 0) {
    device.owner = info.st_uid;
    device.group = info.st_gid;
    device.permissions = info.st_mode & 07777;
  }
  if (device.mode != DaxMode::DEVICE) {
    device.why_not = device.mode == DaxMode::SYSTEM
                         ? fmt::format("it is system memory of NUMA node {}", device.node)
                         : "it has no devdax driver";
    return;
  }
  const UniqueFd fd = open_file(files.at(device.path), O_RDWR | O_NOFOLLOW | O_NOCTTY);
  device.can_open = fd.get() >= 0;
  if (!device.can_open) device.why_not = std::strerror(errno);
}

DaxMode mode_of(const std::string& driver) {
  if (driver.empty()) return DaxMode::NONE;
  if (driver == "device_dax") return DaxMode::DEVICE;
  return driver == "kmem" ? DaxMode::SYSTEM : DaxMode::UNKNOWN;
}

DaxDevice read_dax_device(const HostFiles& files, const std::string& name) {
  const std::string folder = fmt::format("{}/{}", kDaxDevices, name);
  DaxDevice device{.name = name, .path = "/dev/" + name};
  const std::string place = files.resolved(folder);
  device.persistent = !component_with_prefix(place, "ndbus").empty();
  // Regions of libnvdimm have numbers of their own, but for those below a bridge to CXL.
  if (!device.persistent || !component_with_prefix(place, "nvdimm-bridge").empty())
    device.region = component_with_prefix(place, "region");
  device.start = files.number(folder + "/resource");
  device.size_bytes = files.number(folder + "/size").value_or(0);
  device.align_bytes = files.number(folder + "/align").value_or(0);
  device.node = node_of(files, folder + "/target_node");
  device.driver = files.link_name(folder + "/driver");
  device.mode = mode_of(device.driver);
  try_to_open(files, device);
  return device;
}

/// "Node 1 MemTotal:  524288 kB" as bytes.
uint64_t node_bytes(const std::string& meminfo, const std::string& name) {
  const size_t at = meminfo.find(name);
  if (at == std::string::npos) return 0;
  return std::strtoull(meminfo.c_str() + at + name.size(), nullptr, 10) * 1024;
}

NumaNode read_node(const HostFiles& files, const std::string& name) {
  const std::string folder = "/sys/devices/system/node/" + name;
  NumaNode node{.number = static_cast<int>(parse_number(name.substr(4)).value_or(0))};
  node.cpus = files.text(folder + "/cpulist").value_or("");
  const std::string meminfo = files.text(folder + "/meminfo").value_or("");
  node.size_bytes = node_bytes(meminfo, " MemTotal:");
  node.free_bytes = node_bytes(meminfo, " MemFree:");
  for (const std::string& block : files.names(folder, "memory")) {
    if (files.text(fmt::format("{}/{}/state", folder, block)) != "online") continue;
    ++node.blocks;
    // Of a block that is online, the first of its valid zones is the one that it is in.
    const auto zones = files.text(fmt::format("{}/{}/valid_zones", folder, block));
    if (zones && zones->starts_with("Movable")) ++node.blocks_movable;
  }
  return node;
}

template <class List>
auto find_named(const List& list, const std::string& name) {
  const auto found =
      std::find_if(list.begin(), list.end(), [&](const auto& item) { return item.name == name; });
  return found == list.end() ? nullptr : &*found;
}

}  // namespace

const MemoryDevice* Inventory::memory_device(const std::string& name) const {
  return find_named(memory_devices, name);
}

const Region* Inventory::region(const std::string& name) const { return find_named(regions, name); }

Inventory read_inventory(const HostFiles& files) {
  Inventory found;
  const auto endpoints = endpoints_of(files);
  for (const std::string& name : files.names(kCxlDevices, "mem")) {
    found.memory_devices.push_back(read_memory_device(files, name));
    const auto endpoint = endpoints.find(name);
    if (endpoint != endpoints.end()) found.memory_devices.back().endpoint = endpoint->second;
  }
  for (const std::string& name : files.names(kPciDevices)) {
    const std::string folder = std::string(kPciDevices) + "/" + name;
    if (files.number(folder + "/vendor") == BH_PCI_VENDOR &&
        files.number(folder + "/device") == BH_PCI_DEVICE)
      found.compute_functions.push_back(
          {name, node_of(files, folder + "/numa_node"), files.link_name(folder + "/driver")});
  }
  for (const std::string& name : files.names(kCxlDevices, "decoder"))
    found.decoders.push_back(read_decoder(files, name));
  for (const std::string& name : files.names(kCxlDevices, "region"))
    found.regions.push_back(read_region(files, name, found.decoders));
  for (const std::string& name : files.names(kDaxDevices, "dax")) {
    DaxDevice device = read_dax_device(files, name);
    // A region that can be divided keeps an empty device for the next part.
    if (device.size_bytes > 0) found.dax_devices.push_back(std::move(device));
  }
  for (const std::string& name : files.names("/sys/devices/system/node", "node"))
    found.nodes.push_back(read_node(files, name));
  return found;
}

const char* name_of(MemoryKind kind) {
  switch (kind) {
    case MemoryKind::VOLATILE:
      return "volatile";
    case MemoryKind::PERSISTENT:
      return "persistent";
    case MemoryKind::NONE:
      break;
  }
  return "none";
}

const char* name_of(DecoderLevel level) {
  switch (level) {
    case DecoderLevel::ROOT:
      return "root";
    case DecoderLevel::SWITCH:
      return "switch";
    case DecoderLevel::ENDPOINT:
      break;
  }
  return "endpoint";
}

const char* name_of(DaxMode mode) {
  switch (mode) {
    case DaxMode::NONE:
      return "none";
    case DaxMode::DEVICE:
      return "devdax";
    case DaxMode::SYSTEM:
      return "system-ram";
    case DaxMode::UNKNOWN:
      break;
  }
  return "unknown";
}

}  // namespace bowhead::shim
