// SPDX-License-Identifier: Apache-2.0
// A lease against the owner that retires the block and reuses it (docs/sharing.md: Lease, Reuse;
// core::Leases, Reading::confirm(), Retirement::reap()).
#include "tests/models/models.h"

namespace bowhead::models {
namespace {

constexpr int kOld = 1, kRetired = 2, kNew = 3;  // stamps
constexpr uint32_t kOwner = 0, kReader = 1;      // hosts

struct Rules {
  bool weak = false;
  int settles = 2;             ///< between the retired stamp and the read of the hazards
  bool may_judge = false;      ///< the owner may take a slow reader for dead
  bool publish_hazard = true;  ///< flush and fence before the stamp is read
  bool fence_hazard = true;    ///< the fence of these
  bool confirm = true;         ///< the stamp is compared after the hazard
  bool acquire_header = true;  ///< before that
  bool publish_retired = true;
  bool acquire_hazards = true;
  bool look_after_retiring = true;
  bool release_looks = true;  ///< at the header
};

/// Lines and words of this model.
struct Things {
  uint32_t header, payload, hazard, leased, judged;
};

Things add_things(Model& m) {
  Things t{};
  t.header = m.line({"header", kOwner, 1u << kReader, 1, {kOld}});
  t.payload = m.line({"payload", kOwner, 1u << kReader, 2, {kOld, kOld}});
  t.hazard = m.line({"hazard", kReader, 1u << kOwner});
  t.leased = m.word("leased");
  t.judged = m.word("judged");
  return t;
}

void add_owner(Model& m, const Things& t, const Rules& rules) {
  const int reuse = m.stage([=](Process& p, Args) -> Program {
    const int leased = co_await p.see(t.leased);
    const int judged = co_await p.see(t.judged);
    if (leased && !judged) co_await p.fail("reuses a block that a living reader has leased");
    co_await p.store(t.payload, 0, kNew);
    co_await p.store(t.payload, 1, kNew);
    co_await p.publish(t.payload);
    co_await p.store(t.header, kNew);
    co_await p.publish(t.header);
    co_return kDone;
  });
  const int look = m.stage({});
  m.stages[static_cast<size_t>(look)] = [=](Process& p, Args) -> Program {
    if (rules.acquire_hazards) co_await p.acquire(t.hazard);
    const int named = co_await p.load(t.hazard);
    if (!named) co_return Next{reuse, {}};
    if (!rules.may_judge) co_return Next{look, {}};
    const int judges = co_await p.choose(2);
    if (judges) co_await p.note(t.judged, 1);
    co_return Next{judges ? reuse : look, {}};
  };
  m.process("owner", kOwner, [=](Process& p, Args) -> Program {
    if (!rules.look_after_retiring) {
      co_await p.acquire(t.hazard);
      const int named = co_await p.load(t.hazard);
      if (named) co_return kDone;
    }
    co_await p.store(t.header, kRetired);
    if (rules.publish_retired) co_await p.publish(t.header);
    for (int i = 0; i < rules.settles; ++i) co_await p.settle();
    co_return Next{rules.look_after_retiring ? look : reuse, {}};
  });
}

void add_reader(Model& m, const Things& t, const Rules& rules) {
  const int out = m.stage([=](Process& p, Args) -> Program {
    co_await p.store(t.hazard, 0);
    co_await p.publish(t.hazard);
    co_return kDone;
  });
  const int use = m.stage([=](Process& p, Args) -> Program {
    co_await p.acquire(t.payload);
    const int first = co_await p.load(t.payload, 0);
    const int second = co_await p.load(t.payload, 1);
    if (rules.release_looks) co_await p.acquire(t.header);
    const int stamp = rules.release_looks ? co_await p.load(t.header) : kOld;
    co_await p.note(t.leased, 0);
    if (stamp == kOld && (first != kOld || second != kOld))
      co_await p.fail("a use whose release said OK saw wrong bytes");
    co_return Next{out, {}};
  });
  m.process("reader", kReader, [=](Process& p, Args) -> Program {
    co_await p.acquire(t.header);
    const int entry = co_await p.load(t.header);
    if (entry != kOld) co_return kDone;
    co_await p.store(t.hazard, 1);
    if (rules.publish_hazard) co_await p.flush(t.hazard);
    if (rules.publish_hazard && rules.fence_hazard) co_await p.fence();
    if (rules.confirm) {
      if (rules.acquire_header) co_await p.flush(t.header);
      co_await p.fence();
      const int stamp = co_await p.load(t.header);
      if (stamp != kOld) co_return Next{out, {}};
    }
    co_await p.note(t.leased, 1);
    co_return Next{use, {}};
  });
}

Model lease(const Rules& rules) {
  Model m;
  m.weak = rules.weak;
  m.crashes = rules.may_judge ? 1 : 0;
  m.crashable = 1u << kReader;
  const Things t = add_things(m);
  add_owner(m, t, rules);
  add_reader(m, t, rules);
  return m;
}

}  // namespace

void add_lease(std::vector<Case>& cases) {
  const std::string broken = "that a living reader has leased", wrong = "saw wrong bytes";
  const auto add = [&](const char* variant, const std::string& finds, const Rules& rules) {
    cases.push_back({"lease", variant, finds, [=] { return lease(rules); }});
  };
  add("as specified", "", {});
  add("reader dead or slow", "", {.may_judge = true});
  add("weak memory", "", {.weak = true});
  add("weak memory, reader dead or slow", "", {.weak = true, .may_judge = true});
  add("weak memory, no fence after the hazard", broken, {.weak = true, .fence_hazard = false});
  add("weak memory, settled once", broken, {.weak = true, .settles = 1});
  add("weak memory, not settled", broken, {.weak = true, .settles = 0});
  add("hazard not published", broken, {.publish_hazard = false});
  add("no fence after the hazard", broken, {.fence_hazard = false});
  add("stamp not compared after the hazard", broken, {.confirm = false});
  add("header not acquired", broken, {.acquire_header = false});
  add("retired stamp not published", broken, {.publish_retired = false});
  add("hazards not acquired", broken, {.acquire_hazards = false});
  add("hazards looked at before retiring", broken, {.look_after_retiring = false});
  add("release does not look at the header", wrong, {.may_judge = true, .release_looks = false});
}

}  // namespace bowhead::models
