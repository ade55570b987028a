// SPDX-License-Identifier: Apache-2.0
// Events that the kernel's CXL drivers trace: media events, errors of the link, poison lists.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/status.h"
#include "base/unique_fd.h"
#include "driver-shim/host_files.h"

namespace bowhead::shim {

struct TraceEvent {
  std::string name;                                         ///< cxl_poison, cxl_general_media, ...
  std::vector<std::pair<std::string, std::string>> fields;  ///< as the kernel prints them

  /// The value of a field; "" if the event has none of that name.
  std::string field(std::string_view key) const;
};

/// An event from a line of tracefs; nullopt if the line is none of cxl.
std::optional<TraceEvent> parse_trace_line(std::string_view line);

/// The number of a line such as "CPU:0 [LOST 3 EVENTS]"; 0 for others.
uint64_t lost_events(std::string_view line);

/// A trace buffer of this process's own, below instances/ of tracefs, which records the events of
/// cxl while the object lives. Other users of tracefs are not disturbed.
class Tracing {
 public:
  /// Returns NOT_SUPPORTED (no tracefs is mounted, or the kernel has no such events), SYSTEM
  /// (tracing needs root).
  static Result<std::unique_ptr<Tracing>> start(const HostFiles& files);
  ~Tracing();
  Tracing(const Tracing&) = delete;
  Tracing& operator=(const Tracing&) = delete;

  struct Drained {
    std::vector<TraceEvent> events;
    uint64_t lost = 0;  ///< events for which the buffer had no room
  };
  /// The events since the last call, in their order. Does not wait. An event that the kernel traced
  /// before the call is among them.
  Drained drain();

 private:
  explicit Tracing(std::string folder) : folder_(std::move(folder)) {}

  std::string folder_;  ///< of the instance; removed with this object
  UniqueFd pipe_;
  std::string partial_;  ///< the begin of a line whose rest was not read yet
};

}  // namespace bowhead::shim
