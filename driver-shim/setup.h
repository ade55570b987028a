// SPDX-License-Identifier: Apache-2.0
// Makes the volatile memory of CXL devices usable: a region for each device, and of each region a
// dax device in mode devdax, or a NUMA node.
//
// All of it is done by writes to sysfs, which a plan lists before anything is done. libcxl 76
// cannot make regions of volatile memory, and libdaxctl would make two of these writes. A plan
// never touches what is in use: regions that exist, persistent memory, memory of a node.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "base/unique_fd.h"
#include "driver-shim/inventory.h"

namespace bowhead::shim {

struct Step {
  enum class Kind {
    MAKE_REGION,  ///< `path` names the region that comes next: $region. Written there, it is made
    WRITE,        ///< `value` to `path`
    WRITE_IF,     ///< the same if `condition` exists
    WAIT,         ///< until `path` exists
    BIND,         ///< the dax device `value` to the driver whose folder is `path`
    FIND_NO_POOL  ///< in the memory of the devdax $dax
  };
  Kind kind = Kind::WRITE;
  std::string path;
  std::string value;
  std::string condition;
};

/// Steps may name $region, and $dax: the dax device of $region.
struct SetupPlan {
  std::string what;  ///< "mem0: a region of 512 MiB, and its dax device as devdax"
  std::string dax;   ///< $dax; "" the first step finds the region that it will belong to
  std::vector<Step> steps;
  size_t keep = 0;  ///< from this step on, what was made stays if a step fails
  struct Undo {
    size_t of = 0;  ///< the step that is undone, if it was taken
    Step step;
  };
  std::vector<Undo> undo;    ///< if a step before `keep` fails
  std::vector<Step> at_end;  ///< whether a step failed or not
};

struct SetupChoice {
  std::vector<std::string> devices;  ///< memory devices; empty: all that can be set up
  bool as_node = false;              ///< a NUMA node and not a devdax
};

struct SetupPlans {
  std::vector<SetupPlan> plans;
  std::vector<std::string> left_alone;  ///< for each device without a plan, why
};

/// What a plan needs of its caller.
struct SetupHooks {
  /// Whether a pool, or a part of one, lies on the devdax at this path.
  std::function<Result<bool>(const std::string& path)> holds_pool;
  /// Asked before each step and while one waits: true ends the plan as a failed step does.
  std::function<bool()> interrupted;
};

/// Waits until the drivers have linked every device that they probe to its host bridge, which
/// continues for a moment after they are loaded; at most 10 s.
void wait_for_probing(const HostFiles& files);

/// Keeps other processes from setting up until the descriptor is closed: plans store what settings
/// of the kernel were. Returns IN_USE (another process does), SYSTEM.
Result<UniqueFd> lock_setup(const HostFiles& files);

/// What there is to do. Returns INVALID_ARGUMENT (a chosen device does not exist), IN_USE (one must
/// not be touched, or cannot be set up), SYSTEM (a driver is missing).
Result<SetupPlans> plan_setup(const HostFiles& files, const Inventory& inventory,
                              const SetupChoice& choice);

/// The plan as a shell script for root that does the same.
std::string script_of(const SetupPlan& plan);

/// Carries the plan out and returns the name of the dax device. If a step fails before the region
/// is in place, what was begun is undone. Returns IN_USE (a pool lies in memory that would become
/// a node; it stays a devdax), CANCELLED (interrupted), SYSTEM: the step that failed, and why.
Result<std::string> carry_out(const HostFiles& files, const SetupPlan& plan,
                              const SetupHooks& hooks);

}  // namespace bowhead::shim
