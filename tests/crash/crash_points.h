// SPDX-License-Identifier: Apache-2.0
// Crash points: a scenario runs once for every store that it makes to shared metadata, and dies
// there, before and after the store; each time the pool must be intact for the next process.
//
// "Intact" means after every death: every committed key is stored with exactly its bytes, except
// those that the scenario may take; the key of the operation is absent or exact; check() and the
// audit (tests/support/audit.h) find nothing; as many blocks fit as before or as after the
// operation; and once every key is removed, as many blocks fit, small and large, as in a fresh
// pool. Nothing hangs.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "tests/crash/crash_access.h"
#include "tests/support/tiny_pool.h"

namespace bowhead::test {

using CrashHandle = Handle<CrashAccess>;

/// A pool and the expected state of its keys.
struct World {
  enum class Must { STAY, STAY_OR_GO, BE_GONE };
  struct Expected {
    std::vector<std::byte> value;
    Must must = Must::STAY;
  };

  explicit World(const TinyShape& shape) : pool(shape) {}

  /// Puts a key with deterministic content, which is expected from then on.
  template <class A>
  Status put(core::Core<A>& core, const std::string& key, uint64_t size);
  /// Expects that a key is absent, or stored with the content that put() gives it.
  void may_come(const std::string& key, uint64_t size);
  void may_go(const std::string& key) { expected.at(key).must = Must::STAY_OR_GO; }
  void goes(const std::string& key) { expected.at(key).must = Must::BE_GONE; }
  /// For a key that begins with "twice": two equal halves (DoublingSink).
  static std::vector<std::byte> value(const std::string& key, uint64_t size);
  /// The user metadata that put() gives a key: none, or so few that no block is larger for them.
  static std::string user(const std::string& key);

  TinyPool pool;
  std::map<std::string, Expected> expected;
};

/// The next process after the death.
enum class Next {
  FRESH,     ///< a process that opens the pool then
  SURVIVOR,  ///< a process that had it open all the time; scavenges
  HASTY      ///< a process that had it open all the time; first continues to work
};

using Act = std::function<void(CrashHandle&)>;

/// The operation that dies. All of it except `prepare` runs in a child process.
struct Scenario {
  const char* name;
  TinyShape shape = {};
  std::function<void(World&)> prepare;
  Act before = [](CrashHandle& handle) { ASSERT_TRUE(handle.attach()); };  ///< never dies
  Act act;                                                                 ///< dies at every point
  bool full = false;      ///< a put may find no space
  bool any_room = false;  ///< how much fits afterwards depends on where it died
  uint64_t every = 1;     ///< only every n-th point
  /// Runs in a survivor before the death.
  std::function<void(World&, core::Core<core::NativeAccess>&)> hold = {};
  /// Runs in the next process before anything else.
  std::function<void(World&, core::Core<core::NativeAccess>&)> first = {};
  std::vector<Next> nexts = {Next::FRESH, Next::SURVIVOR, Next::HASTY};
};

/// Runs a scenario in all variants and reports faults to GoogleTest. Prints the number of points.
void run_scenario(const Scenario& scenario);

/// A process that is to die, at this share (permille) of the points of its act.
struct Death {
  Act before;
  Act act;
  uint64_t at_permille = 1000;  ///< 1000: after the last
};
/// Several processes that have the pool open at once and die one after the other.
void die_together(World& world, const std::vector<Death>& deaths);

}  // namespace bowhead::test
