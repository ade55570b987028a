// SPDX-License-Identifier: Apache-2.0
// What to do about memory that `bowhead devices setup` does not touch, for it and for doctor; and
// the windows of physical addresses in which regions are made.
#pragma once

#include <string>
#include <vector>

#include "driver-shim/inventory.h"

namespace bowhead::shim {

/// Regions are made of whole units of this size, times their ways.
inline constexpr uint64_t kRegionUnitBytes = 256 << 20;

/// The root decoders that take memory of this kind of the device alone, and of no other bridge.
std::vector<const Decoder*> windows_for(const HostFiles& files, const Inventory& inventory,
                                        const MemoryDevice& device, MemoryKind kind);

/// What no region of the window holds.
uint64_t free_bytes(const Inventory& inventory, const Decoder& window);

/// For a region that is not ready: the command that completes it, or removes what was begun. Data
/// of persistent memory stay.
std::string completing(const Region& region);

/// For persistent memory in no region: the commands that make it a devdax. Labels and data stay.
std::string using_persistent(const HostFiles& files, const Inventory& inventory,
                             const MemoryDevice& device);

/// "pools can lie there as numa:1/NAME", of memory of a node that may be -1, not known.
std::string pools_of_node(int node);

}  // namespace bowhead::shim
