// SPDX-License-Identifier: Apache-2.0
// Rule S3 (docs/sharing.md): an adopter says OWN, lets that settle, and opens the extent only if no
// host has begun to decide about its own life (Custody::adopt(), open_custody(),
// Membership::suspected()). Its successor looks for the word after the decision has settled. The
// host before both is fenced.
#include "tests/models/models.h"

namespace bowhead::models {
namespace {

constexpr uint32_t kAdopter = 0, kSuccessor = 1;  // hosts
constexpr int kBegun = 1, kDone = 2;

struct Rules {
  bool weak = true;
  bool publish_own = true, settle_own = true;
  bool suspicion = true;        ///< the adopter checks for a decision that has begun
  bool suspicion_begun = true;  ///< not only for one that is done
  bool acquire_decision = true;
  bool settle_begin = true;  ///< the decider, after it has begun
  bool settle_done = true;   ///< and before it looks who held the extent
  bool acquire_own = true;
};

Model adopter(const Rules& rules) {
  Model m;
  m.weak = rules.weak;
  const uint32_t own = m.line({"own", kAdopter, 1u << kSuccessor});
  const uint32_t decision = m.line({"decision", kSuccessor, 1u << kAdopter});
  const uint32_t adopter_uses = m.word("adopter uses"), successor_uses = m.word("successor uses");
  const char* const broken = "two hosts have one extent in full use";
  m.process("adopter", kAdopter, [=](Process& p, Args) -> Program {
    co_await p.store(own, 1);
    if (rules.publish_own) co_await p.publish(own);
    if (rules.settle_own) co_await p.settle();
    if (rules.suspicion) {
      if (rules.acquire_decision) co_await p.acquire(decision);
      const int seen = co_await p.load(decision);
      if (seen >= (rules.suspicion_begun ? kBegun : kDone)) co_return models::kDone;
    }
    co_await p.note(adopter_uses, 1);
    const int other = co_await p.see(successor_uses);
    if (other) co_await p.fail(broken);
    co_return models::kDone;
  });
  m.process("successor", kSuccessor, [=](Process& p, Args) -> Program {
    co_await p.store(decision, kBegun);
    co_await p.publish(decision);
    if (rules.settle_begin) co_await p.settle();
    co_await p.store(decision, kDone);
    co_await p.publish(decision);
    if (rules.settle_done) co_await p.settle();
    if (rules.acquire_own) co_await p.acquire(own);
    const int held = co_await p.load(own);
    if (held) co_return models::kDone;  // the adopter may still write: custody, not full use
    co_await p.note(successor_uses, 1);
    const int other = co_await p.see(adopter_uses);
    if (other) co_await p.fail(broken);
    co_return models::kDone;
  });
  return m;
}

}  // namespace

void add_adopter(std::vector<Case>& cases) {
  const std::string broken = "in full use";
  const auto add = [&](const char* variant, const std::string& finds, const Rules& rules) {
    cases.push_back({"adopter", variant, finds, [=] { return adopter(rules); }});
  };
  add("as specified", "", {.weak = false});
  add("weak memory", "", {});
  add("weak memory, begin not settled", "", {.settle_begin = false});
  add("no rule S3", broken, {.weak = false, .suspicion = false});
  add("weak memory, own word not settled", "", {.settle_own = false});
  add("weak memory, own word and begin not settled", broken,
      {.settle_own = false, .settle_begin = false});
  add("weak memory, decision not settled", broken, {.settle_begin = false, .settle_done = false});
  add("own word not published", broken, {.weak = false, .publish_own = false});
  add("decision not acquired", broken, {.weak = false, .acquire_decision = false});
  add("own word not acquired", broken, {.weak = false, .acquire_own = false});
}

}  // namespace bowhead::models
