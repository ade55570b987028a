// SPDX-License-Identifier: Apache-2.0
// Rules: what must hold at the moment of a store or a lease, whatever comes of it later. Who judges
// knows all caches, as no host does.
#pragma once

#include <cstdint>
#include <unordered_map>
#include <vector>

#include "tests/sim/world.h"

namespace bowhead::sim {

class Rules {
 public:
  void reset(World& world) {
    world_ = &world;
    stamps_.clear();
  }

  /// Before the current thread's process stores `value`.
  void check_store(uint64_t at, uint64_t value) {
    const Place place = world_->map().at(at);
    if (place.kind == Kind::KEY) return world_->note_store(Since::KEY);
    if (place.kind == Kind::HEADER && at % BH_LINE_BYTES == 0) return check_stamp(at, value);
    if (place.kind != Kind::REGION || world_->plan().shape.hosts == 1) return;
    if (place.index == BH_PART_DECIDE) return check_decision(at, value);
    if (place.index == BH_PART_VIEW) return check_view(at, value);
    if (place.index == BH_PART_OWN) return check_own(at, value);
  }

  /// How many lives of each host a host knows to be over.
  std::vector<uint64_t> known_over(uint32_t host) const;
  /// A lease was granted to a host that knew that before.
  void check_lease(uint64_t offset, const std::vector<uint64_t>& known_over);

 private:
  uint64_t peek(uint32_t host, uint64_t at) const {
    return world_->machine_of(host).cache.peek(at);
  }
  uint32_t hosts() const { return world_->plan().shape.hosts; }
  void check_stamp(uint64_t at, uint64_t value);
  void check_decision(uint64_t at, uint64_t value);
  void check_view(uint64_t at, uint64_t value);
  void check_own(uint64_t at, uint64_t value);
  void check_given(uint64_t extent);
  void check_custody(uint64_t extent, bool full);
  void check_acks(uint64_t extent, core::Life life);
  bool is_decided(core::Life life) const;
  bool was_live(core::Life life) const;
  bool says_stopped(core::Life life) const;

  World* world_ = nullptr;
  std::unordered_map<uint64_t, uint64_t> stamps_;  ///< header by stamp
};

}  // namespace bowhead::sim
