// SPDX-License-Identifier: Apache-2.0
// One log of events of a device: records in the order in which they came, until the host clears
// them (CXL r3.2, 8.2.10.2).
#pragma once

#include <cstdint>
#include <deque>
#include <span>
#include <vector>

#include "firmware-sim/cxl_mailbox.h"

namespace bowhead::device {

/// Not thread-safe.
class EventLog {
 public:
  static constexpr uint16_t kRecordsMax = 128;

  explicit EventLog(cxl::EventLogId id) : id_(id) {}

  /// Completes the record (severity, handle) and stores it, or counts it as dropped if the log is
  /// full.
  void add(cxl::GeneralMediaEvent event);
  /// Whether a record has the same address, transaction and descriptor.
  bool has(const cxl::GeneralMediaEvent& event) const;
  /// As many of the oldest records as an output of Get Event Records holds.
  std::vector<std::byte> output() const;
  /// Clears the oldest records, which these handles name in their order; else INVALID_HANDLE, and
  /// nothing is cleared.
  cxl::ReturnCode clear(std::span<const uint16_t> handles);
  /// Clears all; INVALID_INPUT unless records were dropped.
  cxl::ReturnCode clear_all();
  bool empty() const { return records_.empty(); }

 private:
  void forget_dropped();

  const cxl::EventLogId id_;
  std::deque<cxl::GeneralMediaEvent> records_;
  uint16_t next_handle_ = 1;  // never 0
  uint16_t dropped_ = 0;      // stays at its maximum
  uint64_t first_dropped_ = 0, last_dropped_ = 0;
};

}  // namespace bowhead::device
