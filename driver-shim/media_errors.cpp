// SPDX-License-Identifier: Apache-2.0
#include "driver-shim/media_errors.h"

#include <fmt/format.h>

#include <algorithm>

namespace bowhead::shim {
namespace {

constexpr uint64_t kNoAddress = ~uint64_t{0};

}  // namespace

bool MediaErrors::is_known(const std::string& device) const {
  return std::none_of(not_known.begin(), not_known.end(),
                      [&](const Gap& gap) { return gap.device.empty() || gap.device == device; });
}

void MediaErrors::keep_unknown(const MediaErrors& before) {
  for (const MediaError& error : before.found) {
    if (!is_known(error.device) && std::find(found.begin(), found.end(), error) == found.end())
      found.push_back(error);
  }
}

std::optional<MediaError> media_error_of(const TraceEvent& event, const Inventory& inventory) {
  if (event.name != "cxl_poison" || event.field("trace_type") != "List") return std::nullopt;
  MediaError error{.device = event.field("memdev")};
  error.device_offset = parse_number(event.field("dpa")).value_or(0);
  error.size_bytes = parse_number(event.field("dpa_length")).value_or(0);
  error.source = event.field("source");
  error.region = event.field("region");
  const uint64_t address = parse_number(event.field("hpa")).value_or(kNoAddress);
  for (const DaxDevice& dax : inventory.dax_devices) {
    if (!dax.start || address < *dax.start || address - *dax.start >= dax.size_bytes) continue;
    error.dax = dax.name;
    error.dax_offset = address - *dax.start;
  }
  return error;
}

void MediaErrors::take(const std::string& device, Tracing::Drained drained,
                       const Inventory& inventory, std::vector<TraceEvent>* others) {
  bool overflow = false;
  for (TraceEvent& event : drained.events) {
    auto error = media_error_of(event, inventory);
    if (!error) {
      if (others != nullptr) others->push_back(std::move(event));
      continue;
    }
    overflow |=
        error->device == device && event.field("flags").find("Overflow") != std::string::npos;
    // Another program may have triggered the list as well.
    if (std::find(found.begin(), found.end(), *error) == found.end())
      found.push_back(std::move(*error));
  }
  if (overflow)
    not_known.push_back({device, device + " has more media errors than its list holds"});
  if (drained.lost > 0)
    not_known.push_back({device, fmt::format("{} has more media errors than fit into the trace "
                                             "buffer: events were lost",
                                             device)});
}

MediaErrors read_media_errors(const HostFiles& files, const Inventory& inventory, Tracing& tracing,
                              std::vector<TraceEvent>* others) {
  MediaErrors errors;
  for (const MemoryDevice& device : inventory.memory_devices) {
    const std::string trigger = fmt::format("{}/{}/trigger_poison_list", kCxlDevices, device.name);
    if (!files.exists(trigger)) {
      errors.not_known.push_back(
          {device.name, device.name + " has no poison list that this kernel reads"});
    } else if (auto triggered = files.write(trigger, "1"); !triggered) {
      errors.not_known.push_back({device.name, triggered.error().message()});
    }
    // After each device, so that the buffer has room for the whole list of one.
    errors.take(device.name, tracing.drain(), inventory, others);
  }
  return errors;
}

MediaErrors read_media_errors(const HostFiles& files, const Inventory& inventory) {
  if (inventory.memory_devices.empty()) return {};
  const auto tracing = Tracing::start(files);
  if (!tracing) return {.found = {}, .not_known = {{"", tracing.error().message()}}};
  return read_media_errors(files, inventory, **tracing);
}

}  // namespace bowhead::shim
