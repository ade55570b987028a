// SPDX-License-Identifier: Apache-2.0
// A grant of an extent (docs/sharing.md: Grant; Grants::give(), claim(), Custody::survey()), while
// a third host decides over the lives of grantor and recipient and succeeds them. The recipient
// looks for decisions about both after its CLAIM has settled.
#include "tests/models/models.h"

namespace bowhead::models {
namespace {

constexpr uint32_t kGrantor = 0, kRecipient = 1, kSuccessor = 2;  // hosts
// Own words: state, and after it how many epochs OWN is above the first.
constexpr int kNone = 0, kGiven = 1, kClaim = 2, kAbandoned = 3, kOwn = 4;
constexpr int kBegun = 1, kDecided = 2;

struct Rules {
  bool weak = true;
  int over = 0b10;                                   ///< lives that are decided over, a bit each
  bool look_at_grantor = true, look_at_self = true;  ///< the recipient, at decisions
  bool publish_claim = true, settle_claim = true;
  bool acquire_decisions = true;
  bool settle_decisions = true;
  bool acquire_own = true;  ///< successor and grantor, before they determine the owner
  bool suspicion = true;    ///< the grantor, before it uses an extent that it took back (S3)
  bool heed_claim = true;   ///< successor and grantor respect a claim of the recipient
};

struct Things {
  std::array<uint32_t, 3> own{}, uses{};
  uint32_t decisions = 0;  // about grantor, about recipient: two words of the successor's line
};

/// The holder of the extent according to a host's words.
int holder(const Rules& rules, const std::array<int, 3>& own) {
  if (own[kSuccessor] >= kOwn && own[kSuccessor] >= own[kGrantor]) return kSuccessor;
  if (own[kGrantor] > kOwn) return kGrantor;
  if (own[kRecipient] == kOwn || (own[kRecipient] == kClaim && rules.heed_claim)) return kRecipient;
  return kGrantor;
}

void add_grantor(Model& m, const Things& t, const Rules& rules) {
  const int use = m.stage([=](Process& p, Args) -> Program {
    co_await p.store(t.own[kGrantor], kOwn + 1);
    co_await p.publish(t.own[kGrantor]);
    co_await p.settle();
    if (rules.suspicion) {
      co_await p.acquire(t.decisions);
      const int suspicion = co_await p.load(t.decisions, 0);
      if (suspicion) co_return kDone;
    }
    co_await p.note(t.uses[kGrantor], 1);
    const int recipient = co_await p.see(t.uses[kRecipient]);
    const int successor = co_await p.see(t.uses[kSuccessor]);
    if (recipient || successor)
      co_await p.fail("takes back an extent that another host has in full use");
    co_return kDone;
  });
  const int survey = m.stage({});
  m.stages[static_cast<size_t>(survey)] = [=](Process& p, Args args) -> Program {
    if (args[0]-- == 0) co_return kDone;
    co_await p.acquire(t.decisions);
    const int mine = co_await p.load(t.decisions, 0);
    const int other = co_await p.load(t.decisions, 1);
    if (mine == kDecided) co_return kDone;
    if (rules.acquire_own) co_await p.acquire(t.own[kRecipient], t.own[kSuccessor]);
    const int recipient = co_await p.load(t.own[kRecipient]);
    const int successor = co_await p.load(t.own[kSuccessor]);
    const bool unclaimed = holder(rules, {kGiven, recipient, successor}) == kGrantor;
    if (unclaimed && (recipient == kAbandoned || other == kDecided)) co_return Next{use, {}};
    co_return Next{survey, args};
  };
  m.process("grantor", kGrantor, [=](Process& p, Args) -> Program {
    co_await p.settle();
    co_await p.store(t.own[kGrantor], kGiven);
    co_await p.publish(t.own[kGrantor]);
    co_return Next{survey, {1}};
  });
}

void add_recipient(Model& m, const Things& t, const Rules& rules) {
  m.process("recipient", kRecipient, [=](Process& p, Args) -> Program {
    co_await p.acquire(t.own[kGrantor]);
    const int given = co_await p.load(t.own[kGrantor]);
    if (given != kGiven) co_return kDone;
    co_await p.store(t.own[kRecipient], kClaim);
    if (rules.publish_claim) co_await p.publish(t.own[kRecipient]);
    if (rules.settle_claim) co_await p.settle();
    if (rules.acquire_decisions) co_await p.acquire(t.decisions);
    bool suspicion = false;
    if (rules.look_at_self) {
      const int self = co_await p.load(t.decisions, 1);
      suspicion = self >= kBegun;
    }
    if (rules.look_at_grantor) {
      const int grantor = co_await p.load(t.decisions, 0);
      suspicion |= grantor >= kBegun;
    }
    co_await p.store(t.own[kRecipient], suspicion ? kAbandoned : kOwn);
    if (!suspicion) {
      co_await p.note(t.uses[kRecipient], 1);
      const int grantor = co_await p.see(t.uses[kGrantor]);
      const int successor = co_await p.see(t.uses[kSuccessor]);
      if (grantor || successor)
        co_await p.fail("claims an extent that another host has in full use");
    }
    co_await p.publish(t.own[kRecipient]);
    co_return kDone;
  });
}

void add_successor(Model& m, const Things& t, const Rules& rules) {
  const int survey = m.stage({});
  m.stages[static_cast<size_t>(survey)] = [=](Process& p, Args args) -> Program {
    if (args[0]-- == 0) co_return kDone;
    if (rules.acquire_own) co_await p.acquire(t.own[kGrantor], t.own[kRecipient]);
    const int grantor = co_await p.load(t.own[kGrantor]);
    const int recipient = co_await p.load(t.own[kRecipient]);
    const int now = holder(rules, {grantor, recipient, kNone});
    if ((rules.over >> now & 1) == 0) co_return Next{survey, args};
    co_await p.store(t.own[kSuccessor], grantor > kOwn ? kOwn + 2 : kOwn + 1);
    co_await p.publish(t.own[kSuccessor]);
    // A host keeps it in custody if another one may still write to it: then it is not in full use.
    if (grantor >= kOwn || recipient == kOwn || (recipient == kClaim && rules.heed_claim))
      co_return kDone;
    co_await p.settle();
    co_await p.note(t.uses[kSuccessor], 1);
    const int first = co_await p.see(t.uses[kGrantor]);
    const int second = co_await p.see(t.uses[kRecipient]);
    if (first || second) co_await p.fail("adopts an extent that another host has in full use");
    co_return kDone;
  };
  m.process("successor", kSuccessor, [=](Process& p, Args) -> Program {
    for (uint32_t of = 0; of < 2; ++of) {
      if ((rules.over >> of & 1) == 0) continue;
      for (const int stored : {kBegun, kDecided}) {
        co_await p.store(t.decisions, of, stored);
        co_await p.publish(t.decisions);
        if (rules.settle_decisions) co_await p.settle();
      }
    }
    co_return Next{survey, {1}};
  });
}

Model grant(const Rules& rules) {
  Model m;
  m.hosts = 3;
  m.weak = rules.weak;
  Things t;
  // Only caches whose early fetches could matter make them: the others acquire before they load.
  t.own[kGrantor] = m.line({"grantor's word", kGrantor, 1u << kSuccessor, 1, {kOwn}});
  t.own[kRecipient] = m.line({"recipient's word", kRecipient, 1u << kGrantor | 1u << kSuccessor});
  t.own[kSuccessor] = m.line({"successor's word", kSuccessor});
  t.decisions = m.line({"decisions", kSuccessor, 1u << kGrantor | 1u << kRecipient, 2});
  for (uint32_t& uses : t.uses) uses = m.word("uses");
  add_grantor(m, t, rules);
  add_recipient(m, t, rules);
  add_successor(m, t, rules);
  return m;
}

}  // namespace

void add_grant(std::vector<Case>& cases) {
  const std::string broken = "another host has in full use";
  const auto add = [&](const char* variant, const std::string& finds, const Rules& rules,
                       bool large = false) {
    cases.push_back({"grant", variant, finds, [=] { return grant(rules); }, large});
  };
  const int grantor = 0b01, recipient = 0b10, both = 0b11;
  add("grantor over", "", {.weak = false, .over = grantor});
  add("recipient over", "", {.weak = false, .over = recipient});
  add("both over", "", {.weak = false, .over = both}, true);
  add("weak memory, grantor over", "", {.over = grantor}, true);
  add("weak memory, recipient over", "", {.over = recipient}, true);
  add("own life not looked at", broken, {.weak = false, .look_at_self = false});
  add("grantor's life not looked at", broken,
      {.weak = false, .over = grantor, .look_at_grantor = false});
  add("claim not published", broken, {.weak = false, .publish_claim = false});
  add("decisions not acquired", broken, {.weak = false, .acquire_decisions = false});
  add("own words not acquired", broken, {.weak = false, .acquire_own = false});
  add("claim not heeded", broken, {.weak = false, .heed_claim = false});
  add("grantor does not look whether it is suspected", broken,
      {.weak = false, .over = both, .suspicion = false});
  add("weak memory, claim not settled", broken, {.settle_claim = false}, true);
  add("weak memory, decisions not settled", broken, {.over = grantor, .settle_decisions = false});
}

}  // namespace bowhead::models
