// SPDX-License-Identifier: Apache-2.0
#include "gpu/devices/pinned_arena.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace bowhead::gpu {

PinnedArena::~PinnedArena() {
  for (const PinnedRoom& room : idle_) free(room);
}

Result<PinnedRoom> PinnedArena::take(size_t size_bytes, bool on_device) {
  auto best = idle_.end();
  for (auto room = idle_.begin(); room != idle_.end(); ++room) {
    const bool fits = room->size_bytes >= size_bytes && (room->device != nullptr) == on_device;
    if (fits && (best == idle_.end() || room->size_bytes < best->size_bytes)) best = room;
  }
  if (best != idle_.end()) {
    const PinnedRoom room = *best;
    idle_.erase(best);
    return room;
  }
  PinnedRoom room;
  room.size_bytes = memory_aligned(size_bytes);
  while (!idle_.empty() && pinned_bytes_ + room.size_bytes > most_pinned_bytes_) {
    free(idle_.back());
    idle_.pop_back();
  }
  if (room.size_bytes > most_pinned_bytes_ - std::min(pinned_bytes_, most_pinned_bytes_))
    return Error{
        Status::NO_SPACE,
        fmt::format("{} bytes of pinned memory, beside {} that jobs have, are more than {}",
                    room.size_bytes, pinned_bytes_, most_pinned_bytes_)};
  auto pinned = device_.allocate_pinned(room.size_bytes);
  if (!pinned) return pinned.error();
  room.pinned = static_cast<std::byte*>(*pinned);
  pinned_bytes_ += room.size_bytes;
  auto address = device_.device_address(room.pinned);
  auto device = address && on_device ? device_.allocate(room.size_bytes) : Result<void*>(nullptr);
  if (!address || !device) {
    free(room);
    return address ? device.error() : address.error();
  }
  room.address = static_cast<uint8_t*>(*address);
  room.device = static_cast<std::byte*>(*device);
  return room;
}

void PinnedArena::give_back(PinnedRoom& room) {
  if (room.pinned != nullptr) idle_.push_back(room);
  room = {};
}

void PinnedArena::free(const PinnedRoom& room) {
  device_.free(room.pinned);
  device_.free(room.device);
  pinned_bytes_ -= room.size_bytes;
}

}  // namespace bowhead::gpu
