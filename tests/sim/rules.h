// SPDX-License-Identifier: Apache-2.0
// Rules: conditions at the moment of a store or a lease, whatever its consequences. The judge sees
// all caches, as no host does.
#pragma once

#include <cstdint>
#include <map>
#include <unordered_map>
#include <utility>
#include <vector>

#include "tests/sim/model.h"
#include "tests/sim/world.h"

namespace bowhead::sim {

class Rules {
 public:
  void reset(World& world, Model& model) {
    world_ = &world;
    model_ = &model;
    stamps_.clear();
    segments_.clear();
    boots_.clear();
    zombies_ = false;
  }

  /// Before the current thread's process stores `value`.
  void check_store(uint64_t at, uint64_t value) {
    if (world_->cloned()) return;
    const Place place = world_->map().at(at);
    if (place.kind == Kind::KEY) return world_->note_store(Since::KEY);
    if (place.kind == Kind::HEADER && at % BH_LINE_BYTES == 0) return check_stamp(at, value);
    if (place.kind != Kind::REGION || world_->plan().shape.hosts == 1) return;
    if (place.index == BH_PART_DECIDE) return check_decision(at, value);
    if (place.index == BH_PART_OWN) return check_own(at, value);
  }

  /// As check_store(), or an exchange for `value`: words that several processes of a host write.
  void check_change(uint64_t at, uint64_t value) {
    const Place place = world_->map().at(at);
    if (place.kind != Kind::REGION || world_->cloned()) return;
    if (place.index == BH_PART_VIEW) return check_view(at, value);
    if (place.index == BH_PART_BLOCKS || place.index == BH_PART_EXTENTS) check_holder(at, place);
  }
  /// A process is about to exchange one of these words, from which faults may count.
  void note_exchange(uint64_t at) {
    if (world_->map().at(at).is_part(BH_PART_VIEW)) world_->note_store(Since::VIEW);
  }
  /// A process has written a word of its host's log.
  void note_logged() { world_->note_store(Since::LOGGED); }
  /// The current thread's process has taken a lock of its host.
  void note_lock();
  /// Before a host stores a line of its index segment.
  void check_entry(uint64_t at, const core::Line& line);
  /// Before a host stores a line of its slot.
  void note_slot(const core::Line& line);
  /// Before a process adds to a word: its own counters are such words.
  void note_count(uint64_t at);
  /// A life was declared over while its caches could still write: its late stores may hit blocks
  /// that its successor has in custody.
  bool zombies() const { return zombies_; }
  /// Before a host stores a line of its mail.
  void note_mail(uint64_t at, const core::Line& line);
  /// No decision says that the life is over.
  bool stands(core::Life life) const { return hosts() == 1 || !is_decided(life); }

  /// For each host, the number of its lives that a host knows to be over.
  std::vector<uint64_t> known_over(uint32_t host) const;
  /// A lease was granted to a host with that knowledge.
  void check_lease(uint64_t offset, const std::vector<uint64_t>& known_over);

 private:
  uint64_t peek(uint32_t host, uint64_t at) const { return world_->peek(host, at); }
  uint32_t hosts() const { return world_->plan().shape.hosts; }
  void check_stamp(uint64_t at, uint64_t value);
  void check_decision(uint64_t at, uint64_t value);
  void check_view(uint64_t at, uint64_t value);
  void check_holder(uint64_t at, Place place);
  void check_own(uint64_t at, uint64_t value);
  void check_given(uint64_t extent);
  void check_claim(uint64_t extent, const core::OwnWord& claim);
  bool succeeded_itself(uint32_t host, uint32_t first, uint32_t last) const;
  void check_custody(uint64_t extent, bool full);
  void check_acks(uint64_t extent, core::Life life);
  std::vector<std::pair<uint32_t, core::DecideWord>> decisions_of(uint32_t of) const;
  bool is_decided(core::Life life) const;
  bool was_live(core::Life life) const;
  bool says_stopped(core::Life life) const;
  bool may_still_write(core::Life life) const;

  /// Entries that a host wrote in this life, as in its caches.
  struct Segment {
    uint64_t boot = 0;
    uint32_t incarnation = 0;
    std::unordered_map<uint64_t, uint64_t> lineages;  ///< by offset of the entry
    std::unordered_map<uint64_t, uint64_t> standing;  ///< entries of a lineage; 0: no more
  };

  World* world_ = nullptr;
  Model* model_ = nullptr;
  std::unordered_map<uint64_t, uint64_t> stamps_;            ///< header by stamp
  std::unordered_map<uint32_t, Segment> segments_;           ///< by host
  std::map<std::pair<uint32_t, uint32_t>, uint64_t> boots_;  ///< of lives: the machine's
  bool zombies_ = false;
};

}  // namespace bowhead::sim
