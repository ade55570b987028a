// SPDX-License-Identifier: Apache-2.0
// A host joins while another one adopts (Joining::begin_life(), Hosts::acked(),
// Custody::open_custody()): the adopter waits for the acks of all hosts whose slots show them; a
// joining host says so, settles, and only then reads the decisions. So either the adopter waits for
// it, or it leases nothing of a life that is over.
#include "tests/models/models.h"

namespace bowhead::models {
namespace {

constexpr uint32_t kAdopter = 0, kJoiner = 1;  // hosts

struct Rules {
  bool weak = true;
  bool say_then_read = true;    ///< the joiner says JOINING before it reads decisions
  bool settle_joining = true;   ///< and settles between the two
  bool settle_decision = true;  ///< the adopter, before it reads the slots
  bool await_acks = true;
  bool settle_acks = true;      ///< before it reads the hazards
  bool hazard_then_ack = true;  ///< the joiner acks only when its leases are visible
};

Model join(const Rules& rules) {
  Model m;
  m.weak = rules.weak;
  const uint32_t slot = m.line({"slot", kJoiner, 1u << kAdopter});
  const uint32_t ack = m.line({"ack", kJoiner, 1u << kAdopter});
  const uint32_t hazard = m.line({"hazard", kJoiner, 1u << kAdopter});
  const uint32_t decision = m.line({"decision", kAdopter, 1u << kJoiner});
  const uint32_t leased = m.word("leased");
  const int look = m.stage({});
  m.stages[static_cast<size_t>(look)] = [=](Process& p, Args) -> Program {
    co_await p.acquire(slot);
    const int there = co_await p.load(slot);
    if (there && rules.await_acks) {
      co_await p.acquire(ack);
      const int acked = co_await p.load(ack);
      if (!acked) co_return Next{look, {}};
    }
    if (rules.settle_acks) co_await p.settle();
    co_await p.acquire(hazard);
    const int named = co_await p.load(hazard);
    if (named) co_return kDone;
    const int held = co_await p.see(leased);
    if (held) co_await p.fail("opens an extent of which a joining host has leased a block");
    co_return kDone;
  };
  m.process("adopter", kAdopter, [=](Process& p, Args) -> Program {
    co_await p.store(decision, 1);
    co_await p.publish(decision);
    if (rules.settle_decision) co_await p.settle();
    co_return Next{look, {}};
  });
  m.process("joiner", kJoiner, [=](Process& p, Args) -> Program {
    int over = 0;
    if (!rules.say_then_read) {
      co_await p.acquire(decision);
      over = co_await p.load(decision);
    }
    co_await p.store(slot, 1);
    co_await p.publish(slot);
    if (rules.settle_joining) co_await p.settle();
    if (rules.say_then_read) {
      co_await p.acquire(decision);
      over = co_await p.load(decision);
    }
    if (!rules.hazard_then_ack) {
      co_await p.store(ack, 1);
      co_await p.publish(ack);
    }
    if (!over) {
      co_await p.store(hazard, 1);
      co_await p.publish(hazard);
      co_await p.note(leased, 1);
      co_await p.acquire(decision);  // its next heartbeat
      const int now = co_await p.load(decision);
      if (!now) co_return kDone;
    }
    co_await p.store(ack, 1);
    co_await p.publish(ack);
    co_return kDone;
  });
  return m;
}

}  // namespace

void add_join(std::vector<Case>& cases) {
  const std::string broken = "a joining host has leased";
  const auto add = [&](const char* variant, const std::string& finds, const Rules& rules) {
    cases.push_back({"join", variant, finds, [=] { return join(rules); }});
  };
  add("as specified", "", {.weak = false});
  add("weak memory", "", {});
  add("decisions read before JOINING is said", broken, {.weak = false, .say_then_read = false});
  add("acks not awaited", broken, {.weak = false, .await_acks = false});
  add("ack before the leases show", broken, {.weak = false, .hazard_then_ack = false});
  add("weak memory, JOINING not settled", broken, {.settle_joining = false});
  add("weak memory, decision not settled", broken, {.settle_decision = false});
  add("weak memory, acks not settled", broken, {.settle_acks = false});
}

}  // namespace bowhead::models
