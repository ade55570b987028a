// SPDX-License-Identifier: Apache-2.0
// The CXL memory of a host: memory devices, decoders, regions, dax devices, NUMA nodes; and
// functions that compute next to it.
//
// Every fact here comes from sysfs. libcxl reads the same files, but version 76 (Debian 12) knows
// no regions of volatile memory, and it cannot be pointed at a recorded host.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "driver-shim/host_files.h"

namespace bowhead::shim {

/// What decoders and regions address.
enum class MemoryKind { NONE, VOLATILE, PERSISTENT };

struct MemoryDevice {
  std::string name;  ///< mem0; can be another at the next boot
  std::optional<uint64_t> serial;
  uint64_t volatile_bytes = 0;
  uint64_t persistent_bytes = 0;
  std::string pci_address;  ///< 0000:0d:00.0; "" if it is no PCI function
  int node = -1;            ///< of its PCI slot; -1: not known
  std::string firmware;
  std::string endpoint;  ///< endpoint2; "" if the drivers have not linked it to a host bridge
  std::string security;  ///< of persistent memory: disabled, locked, ...; "" not known
};

enum class DecoderLevel { ROOT, SWITCH, ENDPOINT };

/// A range of physical addresses at one level of the way to the memory.
struct Decoder {
  std::string name;
  DecoderLevel level = DecoderLevel::SWITCH;
  std::string port;    ///< root0, port1, endpoint2
  std::string device;  ///< endpoint: the memory device
  std::optional<uint64_t> start;
  uint64_t size_bytes = 0;
  uint64_t ways = 1;
  std::string region;                  ///< "" none
  MemoryKind mode = MemoryKind::NONE;  ///< endpoint
  uint64_t device_bytes = 0;           ///< endpoint: capacity of the device that it holds
  bool takes_volatile = false;         ///< root: regions of volatile memory can be made in it
  bool takes_persistent = false;
};

struct Region {
  std::string name;
  MemoryKind kind = MemoryKind::NONE;
  std::string window;             ///< the root decoder in whose addresses it lies
  std::optional<uint64_t> start;  ///< addresses: only root may know them
  uint64_t size_bytes = 0;
  uint64_t ways = 1;
  uint64_t granularity_bytes = 0;  ///< of interleave
  bool committed = false;
  std::string driver;                ///< "" none
  std::vector<std::string> devices;  ///< memory devices, in the order of their decoders
  bool system_memory = false;        ///< the firmware made it, and gave it to the kernel at boot
  int node = -1;                     ///< of system memory; -1: not known

  bool ready() const { return committed && !driver.empty(); }
};

enum class DaxMode {
  NONE,     ///< no driver: cannot be opened
  DEVICE,   ///< devdax: can be opened and mapped
  SYSTEM,   ///< system memory of a NUMA node
  UNKNOWN,  ///< another driver
};

struct DaxDevice {
  std::string name;
  std::string path;  ///< /dev/dax0.0; the node exists only in mode DEVICE
  DaxMode mode = DaxMode::NONE;
  std::string driver;
  std::string region;  ///< of CXL; "" none: reserved by firmware, or other persistent memory
  bool persistent = false;
  std::optional<uint64_t> start;
  uint64_t size_bytes = 0;
  uint64_t align_bytes = 0;
  int node = -1;                                      ///< of its memory
  bool can_open = false;                              ///< by this process, to read and write
  std::string why_not;                                ///< "" if it can be opened
  std::optional<uint32_t> owner, group, permissions;  ///< of the node in /dev
};

struct NumaNode {
  int number = 0;
  std::string cpus;  ///< 0-3,8; "" none
  uint64_t size_bytes = 0;
  uint64_t free_bytes = 0;
  uint64_t blocks = 0;          ///< memory blocks that are online
  uint64_t blocks_movable = 0;  ///< of these, in zone Movable: they can be taken offline again
};

/// The device of a pool as a PCI function (docs/device-pci.md).
struct ComputeFunction {
  std::string pci_address;  ///< 0000:01:00.0
  int node = -1;            ///< of its slot; -1: not known
  std::string driver;       ///< vfio-pci: one process has it, with interrupts; "" any process may
};

struct Inventory {
  std::vector<MemoryDevice> memory_devices;
  std::vector<ComputeFunction> compute_functions;
  std::vector<Decoder> decoders;
  std::vector<Region> regions;
  std::vector<DaxDevice> dax_devices;
  std::vector<NumaNode> nodes;

  const MemoryDevice* memory_device(const std::string& name) const;
  const Region* region(const std::string& name) const;
};

/// Reads all of it, but for dax devices without any memory. Opens device nodes; changes nothing.
Inventory read_inventory(const HostFiles& files);

const char* name_of(MemoryKind kind);     ///< none, volatile, persistent
const char* name_of(DecoderLevel level);  ///< root, switch, endpoint
const char* name_of(DaxMode mode);        ///< none, devdax, system-ram, unknown

/// Where sysfs has them.
inline constexpr const char* kCxlDevices = "/sys/bus/cxl/devices";
inline constexpr const char* kDaxDevices = "/sys/bus/dax/devices";
inline std::string cxl(const std::string& name) { return std::string(kCxlDevices) + "/" + name; }

}  // namespace bowhead::shim
