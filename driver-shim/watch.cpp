// SPDX-License-Identifier: Apache-2.0
#include "driver-shim/watch.h"

#include <fmt/format.h>

#include <algorithm>

namespace bowhead::shim {
namespace {

constexpr auto kPoisonInterval = std::chrono::seconds(5);

/// What of a part is worth an event when it changes, in words.
std::string state_of(const MemoryDevice& device) {
  return fmt::format("serial 0x{:x}, {} MiB volatile, {} MiB persistent{}",
                     device.serial.value_or(0), device.volatile_bytes >> 20,
                     device.persistent_bytes >> 20, device.endpoint.empty() ? ", not linked" : "");
}
std::string state_of(const Region& region) {
  return fmt::format("{} MiB of {}, {}", region.size_bytes >> 20, fmt::join(region.devices, ", "),
                     region.committed ? "committed" : "not committed");
}
std::string state_of(const DaxDevice& dax) {
  return fmt::format("{} MiB, mode {}, {}", dax.size_bytes >> 20, name_of(dax.mode),
                     dax.can_open ? "can be opened" : "cannot be opened: " + dax.why_not);
}
std::string state_of(const NumaNode& node) { return fmt::format("{} MiB", node.size_bytes >> 20); }

const std::string& name_of_part(const MemoryDevice& part) { return part.name; }
const std::string& name_of_part(const Region& part) { return part.name; }
const std::string& name_of_part(const DaxDevice& part) { return part.name; }
std::string name_of_part(const NumaNode& part) { return fmt::format("node{}", part.number); }

template <class Part>
void compare_parts(const char* kind, const std::vector<Part>& before,
                   const std::vector<Part>& after, std::vector<HostEvent>& events) {
  const auto find = [](const std::vector<Part>& parts, const Part& wanted) {
    return std::find_if(parts.begin(), parts.end(), [&](const Part& part) {
      return name_of_part(part) == name_of_part(wanted);
    });
  };
  for (const Part& part : before) {
    if (find(after, part) == after.end())
      events.push_back({"removed", kind, name_of_part(part), state_of(part)});
  }
  for (const Part& part : after) {
    const auto old = find(before, part);
    if (old == before.end())
      events.push_back({"added", kind, name_of_part(part), state_of(part)});
    else if (state_of(*old) != state_of(part))
      events.push_back({"changed", kind, name_of_part(part), state_of(part)});
  }
}

std::string sentence(const MediaError& error) {
  std::string text = fmt::format("{} bytes at 0x{:x} of the device, source {}", error.size_bytes,
                                 error.device_offset, error.source);
  if (!error.dax.empty()) text += fmt::format("; byte {} of /dev/{}", error.dax_offset, error.dax);
  return text;
}

template <class Item>
bool contains(const std::vector<Item>& list, const Item& item) {
  return std::find(list.begin(), list.end(), item) != list.end();
}

/// Whether an error of the same place is listed; the dax device that has the place may change.
bool lists(const MediaErrors& errors, const MediaError& wanted) {
  return std::any_of(errors.found.begin(), errors.found.end(), [&](const MediaError& error) {
    return error.device == wanted.device && error.device_offset == wanted.device_offset &&
           error.size_bytes == wanted.size_bytes;
  });
}

}  // namespace

std::vector<HostEvent> compare(const Inventory& before, const Inventory& after) {
  std::vector<HostEvent> events;
  compare_parts("memory device", before.memory_devices, after.memory_devices, events);
  compare_parts("region", before.regions, after.regions, events);
  compare_parts("dax device", before.dax_devices, after.dax_devices, events);
  compare_parts("node", before.nodes, after.nodes, events);
  return events;
}

std::vector<HostEvent> compare(const MediaErrors& before, const MediaErrors& after) {
  std::vector<HostEvent> events;
  for (const MediaErrors::Gap& gap : after.not_known) {
    if (!contains(before.not_known, gap))
      events.push_back({"not_known", "poison", gap.device, gap.why});
  }
  for (const MediaError& error : before.found) {
    if (!lists(after, error) && after.is_known(error.device))
      events.push_back({"poison_cleared", "memory device", error.device, sentence(error), error});
  }
  for (const MediaError& error : after.found) {
    if (!lists(before, error))
      events.push_back({"poison", "memory device", error.device, sentence(error), error});
  }
  return events;
}

Watch::Watch(const HostFiles& files) : files_(files), inventory_(read_inventory(files)) {}

std::vector<HostEvent> Watch::poll() {
  Inventory inventory = read_inventory(files_);
  std::vector<HostEvent> events = compare(inventory_, inventory);
  inventory_ = std::move(inventory);
  // What a device listed goes with it, and is not cleared.
  std::erase_if(errors_.found, [&](const MediaError& error) {
    return inventory_.memory_device(error.device) == nullptr;
  });
  const auto append = [&](std::vector<HostEvent> more) {
    events.insert(events.end(), more.begin(), more.end());
  };
  const bool poison_is_due = std::chrono::steady_clock::now() >= next_poison_;
  // Drivers may be loaded while this runs.
  MediaErrors errors = errors_;
  if (!tracing_ && poison_is_due) {
    auto tracing = Tracing::start(files_);
    if (tracing)
      tracing_ = std::move(*tracing);
    else
      errors.not_known = {{"", tracing.error().message()}};
  }
  std::vector<TraceEvent> traced;
  if (tracing_ && poison_is_due)
    errors = read_media_errors(files_, inventory_, *tracing_, &traced);
  else if (tracing_)
    traced = tracing_->drain().events;
  errors.keep_unknown(errors_);
  if (poison_is_due) next_poison_ = std::chrono::steady_clock::now() + kPoisonInterval;
  for (const TraceEvent& event : traced) {
    // A list that another program asked for: the next look has it.
    if (!media_error_of(event, inventory_))
      events.push_back({"trace", event.name, event.field("memdev"), "", {}, event.fields});
  }
  append(compare(errors_, errors));
  errors_ = std::move(errors);
  return events;
}

}  // namespace bowhead::shim
