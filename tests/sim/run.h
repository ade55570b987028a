// SPDX-License-Identifier: Apache-2.0
// Simulator: runs plans, one after the other, in one thread. A run works until all is done, lets
// the pool come to rest, and then checks the conditions at rest.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "tests/sim/model.h"
#include "tests/sim/plan.h"
#include "tests/sim/user.h"
#include "tests/sim/world.h"

namespace bowhead::sim {

struct Outcome {
  std::optional<Failure> failure;
  uint64_t hash = 0;      ///< over all steps
  uint64_t bug_acts = 0;  ///< number of times that the seeded bug acted
  Counts counts{};
  std::string last_steps;  ///< before the failure
};

class Simulator {
 public:
  Outcome run(const Plan& plan, const SeededBug* bug = nullptr, bool print_steps = false);

  /// The smallest plan found that fails in the same way.
  Plan shrink(const Plan& plan, const SeededBug* bug, const Failure& failure);

 private:
  void direct();
  void do_phase(Phase phase);
  void check_conflict_found();
  void rest();
  bool all_ready() const;
  bool anybody_ended();
  bool all_in_full_custody();
  bool never_owned(uint64_t extent);
  bool extents_have_owners();
  void write_new_pool(const Plan& plan);
  bool is_full() const;
  uint64_t most_blocks() const;
  void check_space();
  std::string owners();

  World world_;
  Model model_;
  Rules rules_;
  std::unique_ptr<Stage> stage_;
  std::vector<std::unique_ptr<User>> users_;
};

}  // namespace bowhead::sim
