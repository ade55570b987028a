// SPDX-License-Identifier: Apache-2.0
// CrashAccess: an access policy in which every store to shared metadata is a numbered crash point,
// at which the process can kill itself. SIGKILL leaves the caches unchanged, so only the order of
// the program's stores can vary; a line is not stored atomically, so each of its words is a point.
#pragma once

#include <signal.h>
#include <unistd.h>

#include <cstdint>

#include "pool/core/access.h"

namespace bowhead::test {

enum class Side { BEFORE, AFTER };  ///< of the store

/// The crash point at which to die. One per process; not for several threads.
struct CrashPlan {
  bool armed = false;
  uint64_t points = 0;  ///< points passed since the plan was armed
  uint64_t target = 0;  ///< the first point is 1; 0: never
  Side side = Side::BEFORE;

  void arm(uint64_t point, Side at) { *this = {true, 0, point, at}; }
  void disarm() { armed = false; }
};

class CrashAccess : public core::NativeAccess {
 public:
  using NativeAccess::NativeAccess;
  static CrashPlan& plan() {
    static CrashPlan plan;
    return plan;
  }

  void store(uint64_t offset, uint64_t value) {
    at_point([&] { NativeAccess::store(offset, value); });
  }
  void store_relaxed(uint64_t offset, uint64_t value) {
    at_point([&] { NativeAccess::store_relaxed(offset, value); });
  }
  /// A failing compare-and-swap is also a store, as far as cache lines are concerned.
  bool cas(uint64_t offset, uint64_t& expected, uint64_t desired) {
    bool done = false;
    at_point([&] { done = NativeAccess::cas(offset, expected, desired); });
    return done;
  }
  uint64_t fetch_add(uint64_t offset, uint64_t delta) {
    uint64_t before = 0;
    at_point([&] { before = NativeAccess::fetch_add(offset, delta); });
    return before;
  }
  void store_line(uint64_t offset, const core::Line& line) {
    for (uint64_t i = 0; i < line.size(); ++i) store(offset + i * 8, line[i]);
  }

 private:
  template <class Store>
  static void at_point(Store store) {
    CrashPlan& p = plan();
    const bool here = p.armed && ++p.points == p.target;
    if (here && p.side == Side::BEFORE) die();
    store();
    if (here) die();
  }
  [[noreturn]] static void die() {
    for (;;) kill(getpid(), SIGKILL);
  }
};

}  // namespace bowhead::test
