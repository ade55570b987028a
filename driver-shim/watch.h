// SPDX-License-Identifier: Apache-2.0
// What happens to the CXL memory of a host: devices come and go, media fail.
#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "driver-shim/inventory.h"
#include "driver-shim/media_errors.h"
#include "driver-shim/trace.h"

namespace bowhead::shim {

struct HostEvent {
  /// added, removed, changed: a part of the inventory. poison, poison_cleared: an entry of a poison
  /// list. trace: an event of the kernel's drivers. not_known: what is not watched, and why.
  std::string what;
  std::string kind;  ///< memory device, region, dax device, node; or the name of the trace event
  std::string name;
  std::string detail;                                            ///< a sentence, or ""
  std::optional<MediaError> error = {};                          ///< of poison and poison_cleared
  std::vector<std::pair<std::string, std::string>> fields = {};  ///< of a trace event
};

/// What differs between two looks.
std::vector<HostEvent> compare(const Inventory& before, const Inventory& after);
std::vector<HostEvent> compare(const MediaErrors& before, const MediaErrors& after);

class Watch {
 public:
  explicit Watch(const HostFiles& files);

  /// The events since the last call; the first call reports the media errors that there are.
  std::vector<HostEvent> poll();

 private:
  const HostFiles files_;
  Inventory inventory_;
  MediaErrors errors_;
  std::unique_ptr<Tracing> tracing_;  ///< null: not available
  std::chrono::steady_clock::time_point next_poison_;
};

}  // namespace bowhead::shim
