// SPDX-License-Identifier: Apache-2.0
#include "firmware-sim/event_log.h"

#include <algorithm>
#include <limits>

namespace bowhead::device {

using cxl::ReturnCode;

bool EventLog::has(const cxl::GeneralMediaEvent& event) const {
  return std::any_of(records_.begin(), records_.end(), [&](const auto& record) {
    return record.physical_address == event.physical_address &&
           record.transaction == event.transaction && record.descriptor == event.descriptor;
  });
}

void EventLog::add(cxl::GeneralMediaEvent event) {
  if (records_.size() == kRecordsMax) {
    if (dropped_ == 0) first_dropped_ = event.timestamp;
    last_dropped_ = event.timestamp;
    if (dropped_ < std::numeric_limits<uint16_t>::max()) ++dropped_;
    return;
  }
  event.id = cxl::kGeneralMediaEvent;
  event.length = sizeof event;
  event.flags[0] = static_cast<uint8_t>(id_);
  event.handle = next_handle_;
  if (++next_handle_ == 0) next_handle_ = 1;
  records_.push_back(event);
}

std::vector<std::byte> EventLog::output() const {
  constexpr size_t kMost =
      (cxl::kPayloadBytesMax - sizeof(cxl::EventsHead)) / sizeof(cxl::GeneralMediaEvent);
  const size_t count = std::min(kMost, records_.size());
  cxl::EventsHead head{};
  if (dropped_ > 0) head.flags |= cxl::EVENTS_DROPPED;
  if (count < records_.size()) head.flags |= cxl::EVENTS_MORE;
  head.dropped = dropped_;
  head.first_dropped = first_dropped_;
  head.last_dropped = last_dropped_;
  head.count = static_cast<uint16_t>(count);
  std::vector<std::byte> output;
  cxl::append(output, head);
  for (size_t i = 0; i < count; ++i) cxl::append(output, records_[i]);
  return output;
}

ReturnCode EventLog::clear(std::span<const uint16_t> handles) {
  if (handles.size() > records_.size()) return ReturnCode::INVALID_HANDLE;
  for (size_t i = 0; i < handles.size(); ++i) {
    if (records_[i].handle != handles[i]) return ReturnCode::INVALID_HANDLE;
  }
  records_.erase(records_.begin(), records_.begin() + static_cast<std::ptrdiff_t>(handles.size()));
  forget_dropped();
  return ReturnCode::SUCCESS;
}

ReturnCode EventLog::clear_all() {
  if (dropped_ == 0) return ReturnCode::INVALID_INPUT;
  records_.clear();
  forget_dropped();
  return ReturnCode::SUCCESS;
}

void EventLog::forget_dropped() { dropped_ = 0, first_dropped_ = 0, last_dropped_ = 0; }

}  // namespace bowhead::device
