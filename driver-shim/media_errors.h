// SPDX-License-Identifier: Apache-2.0
// Media errors of memory devices: the poison lists that they keep.
//
// The kernel answers a write to trigger_poison_list with one trace event for each entry.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "driver-shim/inventory.h"
#include "driver-shim/trace.h"

namespace bowhead::shim {

struct MediaError {
  std::string device;
  uint64_t device_offset = 0;  ///< of the device's own memory
  uint64_t size_bytes = 0;
  std::string source;  ///< Internal, External, Injected, Vendor, ...: as the kernel names it
  std::string region;  ///< "" none has this memory
  std::string dax;     ///< the dax device that has this memory; "" none
  uint64_t dax_offset = 0;

  bool operator==(const MediaError&) const = default;
};

struct MediaErrors {
  struct Gap {
    std::string device;  ///< "" all
    std::string why;

    bool operator==(const Gap&) const = default;
  };

  std::vector<MediaError> found;
  std::vector<Gap> not_known;  ///< lists that could not be read, or not to their end

  bool is_known(const std::string& device) const;

  /// Adds what was traced while the list of this device was read. Other events go to `others`.
  void take(const std::string& device, Tracing::Drained drained, const Inventory& inventory,
            std::vector<TraceEvent>* others);
  /// Adds what an earlier look found of devices that are not known now.
  void keep_unknown(const MediaErrors& before);
};

/// The entry of a poison list that an event reports; nullopt if it reports none.
std::optional<MediaError> media_error_of(const TraceEvent& event, const Inventory& inventory);

/// Reads the lists of all devices through `tracing`. Other events that it drains go to `others`.
MediaErrors read_media_errors(const HostFiles& files, const Inventory& inventory, Tracing& tracing,
                              std::vector<TraceEvent>* others = nullptr);

/// The same with a buffer of its own; what prevents that is in `not_known`.
MediaErrors read_media_errors(const HostFiles& files, const Inventory& inventory);

}  // namespace bowhead::shim
