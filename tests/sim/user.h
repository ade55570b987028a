// SPDX-License-Identifier: Apache-2.0
// User: a process that has the pool open. Its workers put, get, lease, reserve and remove; its
// other threads make the heartbeat and do the host's other duties. When the work is done it does
// the phases of the run (run.cpp directs them).
#pragma once

#include <array>
#include <memory>
#include <string>
#include <vector>

#include "pool/core/core.h"
#include "tests/sim/access.h"
#include "tests/sim/model.h"
#include "tests/sim/rules.h"
#include "tests/sim/world.h"

namespace bowhead::core {

/// A thread's allocator hints belong to the simulated thread.
template <>
Allocator<sim::SimAccess>::Magazine& Allocator<sim::SimAccess>::magazine_of(uint64_t block_bytes);

}  // namespace bowhead::core

namespace bowhead::sim {

/// Counts of events: a simulator in which nothing happens proves nothing.
struct Counts {
  uint64_t runs, steps, lives, fenced, left;
  uint64_t puts, no_space, busy, hits, remote_hits, misses, removals;
  uint64_t leases, leases_valid, leases_lapsed, reservations;
  uint64_t parts, parts_refused, replacements, not_replaced;
  uint64_t spaces, spaces_refused, spaces_removed, spaces_gone;
  uint64_t grown, drained, shrunk, not_changed;

  void add(const Counts& other);
  std::string text() const;
};

enum class Phase : uint8_t {
  WORK,
  CHECK,   ///< is anything damaged?
  REMOVE,  ///< every key is removed
  LOOK,    ///< does any host find one?
  FILL,    ///< all space is reserved
  EMPTY,   ///< and freed
  LEAVE    ///< in order
};

/// The truth about a namespace that users register and remove.
struct Space {
  uint64_t id = 0;  ///< as a host reported it; 0: not registered since a removal began
  uint64_t removals_begun = 0, removals_ended = 0;
};
inline constexpr uint32_t kSpaces = 2;

/// Shared by all users of a run.
struct Stage {
  World& world;
  Model& model;
  Rules& rules;
  bh_superblock superblock{};
  Phase phase = Phase::WORK;
  uint32_t phase_number = 1;     ///< distinguishes two phases of one kind
  uint64_t keys_found = 0;       ///< LOOK
  bool must_find = false;        ///< the same: every key that was not removed
  uint64_t blocks_reserved = 0;  ///< FILL
  uint64_t blocks_wanted = 0;    ///< the same: until that many were reserved
  std::array<Space, kSpaces> spaces;
  Counts counts{};
};

class User final : public Process {
 public:
  User(Stage& stage, uint32_t operations) : stage_(stage) {
    for (Worker& worker : workers_) worker.operations_left = operations;
  }

  void begin() override;
  /// It has done the work of the phase.
  bool ready() const { return phase_done_ == stage_.phase_number; }
  /// This life of its host; 0: not joined.
  uint32_t incarnation() const override {
    return alive && core_ ? core_->context().incarnation : 0;
  }

  /// It knows of a set of media that blocks move off.
  bool drains() const;

  uint64_t looked_at_ns = 0;  ///< begin of its last complete heartbeat

 private:
  struct Leased {
    Lease lease;
    uint32_t key;
    std::vector<std::byte> bytes;  ///< as first read; empty: not read yet
  };
  struct Reserved {
    Reservation reservation;
    uint32_t key, version;
  };

  /// A thread that puts and gets.
  struct Worker {
    uint32_t operations_left;
    std::vector<Leased> leases;
    std::vector<Reserved> reservations;
    bool rests = false;  ///< it is done, or the process is about to leave
  };
  /// The worker of the current thread.
  Worker& worker() { return workers_[&stage_.world.current() == second_thread_ ? 1 : 0]; }

  void work();
  void work_beside();
  void operate_all();
  void heartbeat();
  void serve();
  void end_soon(const char* name, const Error& error);
  void attach();
  void operate();
  void leave_for(uint64_t duration_ns);
  void change_media();
  void put();
  void get();
  void get_parts();
  void replace();
  void remove();
  std::vector<uint32_t> any_keys();
  void put_batch();
  void get_batch();
  void remove_batch();
  void note_put(uint32_t k, uint32_t version, Status status, std::optional<uint64_t> removals);
  void note_removal(uint32_t k, Status status, const std::vector<Model::Lineage>& lineages);
  std::vector<Model::Lineage> begin_removal(uint32_t k);
  void exists();
  void use_space();
  void open_space(uint32_t n);
  void put_into_space(uint32_t n);
  void remove_space(uint32_t n);
  void lease();
  void read_in_place();
  void release();
  void judge_leased(const char* how, const Leased& leased);
  void reserve();
  void finish_reservation();
  void do_phase(Phase phase);
  void remove_all();
  void check();
  void look();
  void fill();
  void stop_threads();
  bool ended_itself() const;
  bool leave_host();
  void detach();
  void leave();

  void get(uint32_t k);
  void note_stored(uint32_t k, std::optional<uint64_t> removals_before);
  Status replace(const core::Located& located);
  /// Fails if the bytes read are wrong; else returns their version.
  void mark(uint32_t k);
  void check_usage();
  void judge_user(const char* what, uint32_t k, uint32_t version, const std::string& user);
  uint32_t judge(const char* what, uint32_t k, const Model::Seen& seen);

  /// Ends the process if the host was fenced; fails if the status is none of `allowed`.
  void expect(const char* what, const Error& error, std::initializer_list<Status> allowed);
  void expect(const char* what, Status status, std::initializer_list<Status> allowed);
  core::Key key(uint32_t number) const {
    return core::Key(Model::kNamespace, stage_.model.key(number));
  }
  /// All keys are equally likely.
  uint32_t any_key() {
    const Plan& plan = stage_.world.plan();
    if (plan.work == Work::GREEDY)  // the other hosts do not use the keys of the last host
      return machine->host + 1 == plan.shape.hosts ? 2 + static_cast<uint32_t>(below(plan.keys - 2))
                                                   : machine->host;
    if (plan.work == Work::CUSTODY)  // only the first host stores large values
      return static_cast<uint32_t>(below(machine->host == 0 ? plan.keys : plan.larger_from));
    return below(2) == 0 ? 0 : static_cast<uint32_t>(below(plan.keys));
  }
  uint64_t below(uint64_t n) { return stage_.world.random().below(n); }
  bool leads() const { return index % stage_.world.plan().processes_per_host == 0; }

  Stage& stage_;
  std::array<Worker, 2> workers_;
  uint32_t refused_ = 0;     ///< joins
  uint32_t phase_done_ = 0;  ///< number of the last one
  // State of this life.
  bool in_heartbeat_ = false, serving_ = false;
  bool silent_ = false;              ///< both are to stop
  bool parking_ = false;             ///< the second worker is to pause
  bool changing_ = false;            ///< the media; no other duties are done
  Thread* second_thread_ = nullptr;  ///< none: there is one worker
  std::unique_ptr<SimAccess> access_;
  std::unique_ptr<core::Core<SimAccess>> core_;
  std::array<uint64_t, kSpaces> spaces_{};  ///< ids of namespaces; 0: not known
  std::vector<core::Block> taken_;          ///< FILL: of what is in custody
};

}  // namespace bowhead::sim
