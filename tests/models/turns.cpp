// SPDX-License-Identifier: Apache-2.0
// The turns in which hosts write the table of sets (core::Growth, W1, W2): two hosts want to change
// it at once, a third copies what it finds, and a fourth declares the life of the first host over,
// at any moment. That host may be only slow: its wish does not count then, and its table comes
// late. No two hosts may heed different tables of one version: each would take the other's word for
// its own.
#include <algorithm>

#include "tests/models/models.h"

namespace bowhead::models {
namespace {

constexpr int kContents = 4;  // a bit for the change of each writer
constexpr uint32_t kWriters = 2, kCopier = 2, kDecider = 3, kVersions = 6;

struct Rules {
  bool weak = false;
  bool decides = true;
  bool late = false;            ///< host 0 has looked already, and only writes its table
  int rounds = 1;               ///< of the host that copies
  bool settle_wish = true;      ///< before the wishes of others are looked at
  bool heed_wishes = true;      ///< withdraw if another one stands
  bool look_after_read = true;  ///< whether the life that wrote a table is over
  bool above_all = true;        ///< the next version is above those of lives that are over, too
  bool acquire = true;          ///< tables
};

struct Things {
  std::array<uint32_t, kWriters> wish{};
  std::array<uint32_t, kWriters + 1> table{};  ///< version * kContents + content
  uint32_t decision = 0;                       ///< the life of host 0 is over
  std::array<uint32_t, kVersions> heeded{};    ///< with which content
};

/// Two tables have one version: a host that heeds the second breaks the rule.
Process::Step heed(Process& p, const Things& t, int found) {
  return p.note(t.heeded[static_cast<uint32_t>(found / kContents)], found % kContents);
}
Process::Step heeded(Process& p, const Things& t, int found) {
  return p.see(t.heeded[static_cast<uint32_t>(found / kContents)]);
}
bool differs(int before, int found) { return before != 0 && before != found % kContents; }

Stage writer(const Things& t, const Rules& rules, uint32_t h) {
  const uint32_t other = 1 - h, others_table = t.table[other], copy = t.table[kCopier];
  return [=](Process& p, Args) -> Program {
    co_await p.store(t.wish[h], 1);
    co_await p.publish(t.wish[h]);
    if (rules.settle_wish) co_await p.settle();
    co_await p.acquire(t.wish[other], t.decision);
    const int stands = co_await p.load(t.wish[other]);
    int over = co_await p.load(t.decision);
    if (stands != 0 && rules.heed_wishes && !(over != 0 && other == 0)) co_return kDone;
    co_await p.settle();
    if (rules.acquire) co_await p.acquire(others_table, copy);
    const int own = co_await p.load(t.table[h]);
    const int others = co_await p.load(others_table);
    const int copied = co_await p.load(copy);
    if (rules.look_after_read) {
      co_await p.acquire(t.decision);
      over = co_await p.load(t.decision);
    }
    if (over != 0 && h == 0) co_return kDone;  // this life
    const int best = std::max({own, over != 0 ? 0 : others, copied});
    const int highest = rules.above_all ? std::max(best, others) : best;
    const int next = (highest / kContents + 1) * kContents + (best % kContents | 1 << h);
    co_await p.store(t.table[h], next);
    co_await p.publish(t.table[h]);
    const int really_over = co_await p.peek(t.decision);
    if (h == 0 && really_over != 0) co_return kDone;  // nobody counts on what this life heeds
    const int before = co_await heeded(p, t, next);
    if (differs(before, next)) co_await p.fail("two tables of one version");
    co_await heed(p, t, next);
    co_await p.store(t.wish[h], 0);
    co_await p.publish(t.wish[h]);
    co_return kDone;
  };
}

/// The rest of a turn that began before everything else. Table and version are one line, and the
/// version is that of nobody else's table so far.
Stage late_writer(const Things& t) {
  return [=](Process& p, Args) -> Program {
    constexpr int kNext = kContents + 1;
    co_await p.store(t.table[0], kNext);
    co_await p.publish(t.table[0]);
    const int over = co_await p.peek(t.decision);
    if (over != 0) co_return kDone;
    const int before = co_await heeded(p, t, kNext);
    if (differs(before, kNext)) co_await p.fail("two tables of one version");
    co_await heed(p, t, kNext);
    co_await p.store(t.wish[0], 0);
    co_await p.publish(t.wish[0]);
    co_return kDone;
  };
}

Stage copier(const Things& t, const Rules& rules, int stage) {
  return [=](Process& p, Args args) -> Program {
    if (rules.acquire) co_await p.acquire(t.table[0], t.table[1]);
    const int first = co_await p.load(t.table[0]);
    const int second = co_await p.load(t.table[1]);
    int over = 0;
    if (rules.look_after_read) {
      co_await p.acquire(t.decision);
      over = co_await p.load(t.decision);
    }
    const int best = std::max(over != 0 ? 0 : first, second);
    const int own = co_await p.load(t.table[kCopier]);
    if (best / kContents > own / kContents) {
      co_await p.store(t.table[kCopier], best);
      co_await p.publish(t.table[kCopier]);
      const int before = co_await heeded(p, t, best);
      if (differs(before, best)) co_await p.fail("two tables of one version");
      co_await heed(p, t, best);
    }
    if (args[0]-- <= 1) co_return kDone;
    co_return Next{stage, args};
  };
}

Model turns(const Rules& rules) {
  Model m;
  m.hosts = 4;
  m.states_max = 80'000'000;
  m.weak = rules.weak;
  // Every load comes right after the line was acquired: what a cache fetched early would be what
  // the load finds if it comes earlier. So caches need not fetch, but where that is left out.
  const uint32_t fetch = rules.acquire ? 0 : 7;
  Things t;
  for (uint32_t h = 0; h < kWriters; ++h)
    t.wish[h] = m.line({"wish of host " + std::to_string(h), h, 0, 1, {rules.late && h == 0}});
  for (uint32_t h = 0; h <= kWriters; ++h)
    t.table[h] = m.line({"table of host " + std::to_string(h), h, fetch & ~(1u << h)});
  t.decision = m.line({"the life of host 0 is over", kDecider});
  for (uint32_t v = 0; v < kVersions; ++v)
    t.heeded[v] = m.word("heeded as version " + std::to_string(v));
  for (uint32_t h = 0; h < kWriters; ++h)
    m.process("writer " + std::to_string(h), h,
              rules.late && h == 0 ? late_writer(t) : writer(t, rules, h));
  const int copy = m.stage({});
  m.stages[static_cast<size_t>(copy)] = copier(t, rules, copy);
  m.processes.push_back({"copier", kCopier, {copy, {static_cast<uint8_t>(rules.rounds)}}, {}});
  if (rules.decides) {
    m.process("decider", kDecider, [=](Process& p, Args) -> Program {
      co_await p.store(t.decision, 1);
      co_await p.publish(t.decision);
      co_return kDone;
    });
  }
  return m;
}

}  // namespace

void add_turns(std::vector<Case>& cases) {
  const std::string two = "two tables of one version";
  const auto add = [&](const char* variant, const std::string& finds, const Rules& rules,
                       bool large = false) {
    cases.push_back({"turns", variant, finds, [=] { return turns(rules); }, large});
  };
  add("nobody is declared dead", "", {.decides = false});
  add("weak memory, nobody is declared dead", "", {.weak = true, .decides = false});
  add("a late table", "", {.late = true});
  add("a late table, copied twice", "", {.late = true, .rounds = 2}, true);
  add("weak memory, a late table", "", {.weak = true, .late = true});
  add("as specified", "", {}, true);
  add("wishes not heeded", two, {.heed_wishes = false});
  add("weak memory, wish not settled", two, {.weak = true, .settle_wish = false});
  add("no look at the writer's life after the table", two,
      {.late = true, .look_after_read = false});
  add("versions of lives that are over used again", two, {.late = true, .above_all = false});
  add("tables not acquired", two, {.acquire = false});
}

}  // namespace bowhead::models
