// SPDX-License-Identifier: Apache-2.0
// Crash points: a scenario is run once for every store it makes to shared metadata, and dies there,
// before and after; each time the pool must be whole again for whoever comes next.
//
// "Whole" means after every death: every key that was committed is there with exactly its bytes,
// but for those that the scenario may take; the key of the operation is absent or exact; check()
// and the audit (audit.h) find nothing; as many blocks fit as before or as after the operation; and
// once every key is removed, as many fit, small and large, as in a pool in which nothing ever
// happened. Nothing hangs.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "tests/crash/crash_access.h"
#include "tests/support/tiny_pool.h"

namespace bowhead::test {

using CrashHandle = Handle<CrashAccess>;

/// A pool with what is known of its keys.
struct World {
  enum class Must { STAY, STAY_OR_GO, BE_GONE };
  struct Expected {
    std::vector<std::byte> value;
    Must must = Must::STAY;
  };

  explicit World(const TinyShape& shape) : pool(shape) {}

  /// Puts a key with deterministic content, and expects it from now on.
  template <class A>
  Status put(core::Core<A>& core, const std::string& key, uint64_t size);
  /// Expects that a key is absent, or there with the content that put() gives it.
  void may_come(const std::string& key, uint64_t size);
  void may_go(const std::string& key) { expected.at(key).must = Must::STAY_OR_GO; }
  void goes(const std::string& key) { expected.at(key).must = Must::BE_GONE; }
  /// Of a key that begins with "twice", two equal halves (DoublingSink).
  static std::vector<std::byte> value(const std::string& key, uint64_t size);

  TinyPool pool;
  std::map<std::string, Expected> expected;
};

/// Who comes after the death.
enum class Next {
  FRESH,     ///< opens the pool then
  SURVIVOR,  ///< had it open all the time; scavenges
  HASTY      ///< had it open all the time; goes on working first
};

using Act = std::function<void(CrashHandle&)>;

/// What dies. All of it but `prepare` runs in a child process.
struct Scenario {
  const char* name;
  TinyShape shape = {};
  std::function<void(World&)> prepare;
  Act before = [](CrashHandle& handle) { ASSERT_TRUE(handle.attach()); };  ///< never dies
  Act act;                                                                 ///< dies at every point
  bool full = false;      ///< a put may find no space
  bool any_room = false;  ///< how much fits afterwards depends on where it died
  uint64_t every = 1;     ///< only each so-manieth point
  /// What a survivor does before the death.
  std::function<void(World&, core::Core<core::NativeAccess>&)> hold = {};
  /// What the next process does before all else.
  std::function<void(World&, core::Core<core::NativeAccess>&)> first = {};
  std::vector<Next> nexts = {Next::FRESH, Next::SURVIVOR, Next::HASTY};
};

/// Runs a scenario in all ways and reports faults to GoogleTest. Prints the number of points.
void run_scenario(const Scenario& scenario);

/// One process that is to die: at which share (permille) of the points of its act.
struct Death {
  Act before;
  Act act;
  uint64_t at_permille = 1000;  ///< 1000: after the last
};
/// Several processes that have the pool open together, and die one after the other.
void die_together(World& world, const std::vector<Death>& deaths);

}  // namespace bowhead::test
