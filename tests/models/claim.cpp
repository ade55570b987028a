// SPDX-License-Identifier: Apache-2.0
// Machines that find one host slot free and want it (Hosts::claim_slot(),
// Membership::check_own_slot()): a splitter of the two copies of the slot line, to which all of
// them write. No machine waits, and no bound on time is assumed: late stores of a machine that was
// paused must not let a second one in.
#include "tests/models/models.h"

namespace bowhead::models {
namespace {

constexpr int kFree = 0, kClosed = 8, kJoining = 16, kLive = 24;  // a claim is 1 or 2

struct Rules {
  bool weak = true;
  bool settle_claim = true;  ///< before it checks whether the other copy is later
  bool look_at_door = true;
  bool settle_door = true;  ///< before it reads its claim again
  bool look_at_claim = true;
  bool acquire = true;
};

Model claim(const Rules& rules) {
  Model m;
  m.weak = rules.weak;
  const uint32_t one = m.line({"the copy of the claim", kAnyone, 3});
  const uint32_t other = m.line({"the other copy", kAnyone, 3});
  const uint32_t inside = m.word("the machine that has the slot");
  for (uint32_t machine = 0; machine < 2; ++machine) {
    const int claim = static_cast<int>(machine) + 1;
    m.process("machine " + std::to_string(machine), machine, [=](Process& p, Args) -> Program {
      co_await p.acquire(one, other);
      const int found_one = co_await p.load(one);
      const int found_other = co_await p.load(other);
      if (found_one != kFree || found_other != kFree) co_return kDone;
      co_await p.store(one, claim);
      co_await p.publish(one);
      if (rules.settle_claim) co_await p.settle();
      if (rules.look_at_door) {
        if (rules.acquire) co_await p.acquire(one, other);
        const int latest_one = co_await p.load(one);
        const int latest_other = co_await p.load(other);
        if (latest_other >= kClosed || latest_one >= kJoining) co_return kDone;
      }
      co_await p.store(other, kClosed + claim);
      co_await p.publish(other);
      if (rules.settle_door) co_await p.settle();
      if (rules.look_at_claim) {
        if (rules.acquire) co_await p.acquire(one);
        const int still = co_await p.load(one);
        if (still != claim) co_return kDone;
      }
      const int before = co_await p.see(inside);
      if (before != 0) co_await p.fail("two machines have one slot");
      co_await p.note(inside, claim);
      co_await p.store(one, kJoining + claim);
      co_await p.publish(one);
      co_await p.store(other, kLive + claim);
      co_await p.publish(other);
      co_return kDone;
    });
  }
  return m;
}

}  // namespace

void add_claim(std::vector<Case>& cases) {
  const std::string broken = "two machines have one slot";
  const auto add = [&](const char* variant, const std::string& finds, const Rules& rules) {
    cases.push_back({"claim", variant, finds, [=] { return claim(rules); }});
  };
  add("as specified", "", {.weak = false});
  add("weak memory", "", {});
  add("the other copy not looked at", broken, {.weak = false, .look_at_door = false});
  add("the claim not looked at again", broken, {.weak = false, .look_at_claim = false});
  add("copies not acquired", broken, {.weak = false, .acquire = false});
  add("weak memory, claim not settled", broken, {.settle_claim = false});
  add("weak memory, other copy not settled", broken, {.settle_door = false});
}

}  // namespace bowhead::models
