// SPDX-License-Identifier: Apache-2.0
// Which stamps are in the memory (core::Publishing, Hosts::advance_settled()): putters count
// themselves by the parity of a phase; a heartbeat turns the phase and waits until the old parity
// is at rest, and then for the memory. When it says that stamps up to one are settled, headers and
// payloads of all of them must be in the memory, and none may come later.
#include "tests/models/models.h"

namespace bowhead::models {
namespace {

struct Rules {
  bool weak = true;
  int puts = 2, heartbeats = 4,
      heartbeat_threads = 1;     ///< puts of one putter; the other one makes one
  bool kill = false;             ///< the second putter may be killed, and is scavenged
  bool look_again = true;        ///< at the phase, once counted
  bool other_parity = true;      ///< must be at rest before the phase turns
  bool last_before_turn = true;  ///< the last stamp is noted before the phase turns
  bool wait_for_counts = true;
  bool settle = true;
  bool look_then_settle = true;     ///< the clock is read after the counts, not before
  bool publish_then_forget = true;  ///< a scavenger flushes before it clears the counts
};

constexpr uint32_t kPutters = 2;

struct Things {
  std::array<uint32_t, 3> payload{}, header{}, stored{};  // of each put
  std::array<std::array<uint32_t, 2>, kPutters> count{};  // of each putter, by parity
  uint32_t phase = 0, sequence = 0, settled = 0;
  uint32_t puts = 0;
};

Stage put(const Things& t, const Rules& rules, uint32_t putter, uint32_t number, Next then) {
  return [=](Process& p, Args) -> Program {
    co_await p.store(t.payload[number], 1);
    co_await p.publish(t.payload[number]);
    uint32_t count = 0;
    for (;;) {
      const int phase = co_await p.get(t.phase);
      count = t.count[putter][static_cast<size_t>(phase & 1)];
      co_await p.add(count, 1);
      if (!rules.look_again) break;
      const int again = co_await p.get(t.phase);
      if (again == phase) break;
      co_await p.add(count, -1);
    }
    const int before = co_await p.add(t.sequence, 1);
    co_await p.store(t.header[number], before + 1);
    const int settled = co_await p.see(t.settled);
    if (settled > before) co_await p.fail("a stamp comes that was reported settled before");
    co_await p.note(t.stored[number], before + 1);
    co_await p.publish(t.header[number]);
    co_await p.add(count, -1);
    co_return then;
  };
}

/// State of the heartbeat thread from one heartbeat to the next.
enum : size_t { kSettling, kLast, kPhase, kDrained, kHeartbeats };

Stage heartbeat(const Things& t, const Rules& rules, int stage) {
  return [=](Process& p, Args args) -> Program {
    if (args[kHeartbeats]-- == 0) co_return kDone;
    const int phase = co_await p.get(t.phase);
    if (args[kSettling] && args[kPhase] != phase) args[kSettling] = 0;
    bool ripe = args[kSettling] && args[kDrained];
    if (ripe && rules.settle && rules.look_then_settle) co_await p.settle();
    if (args[kSettling] && !args[kDrained]) {
      if (rules.settle && !rules.look_then_settle) co_await p.settle();
      int counted = 0;
      for (const auto& count : t.count) {
        if (counted == 0 && rules.wait_for_counts)
          counted = co_await p.get(count[static_cast<size_t>(~phase & 1)]);
      }
      args[kDrained] = counted == 0;
      ripe = args[kDrained] && !rules.look_then_settle;
    }
    if (ripe) {
      co_await p.note(t.settled, args[kLast]);
      for (uint32_t i = 0; i < t.puts; ++i) {
        const int stored = co_await p.see(t.stored[i]);
        const int header = co_await p.peek(t.header[i]);
        const int payload = co_await p.peek(t.payload[i]);
        if (stored != 0 && stored <= args[kLast] && (header != stored || !payload))
          co_await p.fail("says that a put has settled that is not in the memory");
      }
      args[kSettling] = 0;
    }
    if (args[kSettling]) co_return Next{stage, args};
    int counted = 0;
    for (const auto& count : t.count) {
      if (counted == 0 && rules.other_parity)
        counted = co_await p.get(count[static_cast<size_t>(~phase & 1)]);
    }
    if (counted != 0) co_return Next{stage, args};
    int last = 0;
    if (rules.last_before_turn) last = co_await p.get(t.sequence);
    const int turned = co_await p.swap(t.phase, phase, phase + 1);
    if (!rules.last_before_turn) last = co_await p.get(t.sequence);
    if (turned) {
      args[kSettling] = 1;
      args[kLast] = static_cast<uint8_t>(last);
      args[kPhase] = static_cast<uint8_t>(phase + 1);
      args[kDrained] = 0;
    }
    co_return Next{stage, args};
  };
}

void add_scavenger(Model& m, const Things& t, const Rules& rules, uint32_t killed) {
  const int look = m.stage({});
  m.stages[static_cast<size_t>(look)] = [=](Process& p, Args) -> Program {
    const int alive = co_await p.alive(killed);
    if (alive) co_return Next{look, {}};
    if (rules.publish_then_forget) co_await p.publish(t.header[t.puts - 1]);
    for (const uint32_t count : t.count[kPutters - 1]) co_await p.set(count, 0);
    if (!rules.publish_then_forget) co_await p.publish(t.header[t.puts - 1]);
    co_return kDone;
  };
  m.processes.push_back({"scavenger", 0, {look, {}}, {}});
}

Model settled(const Rules& rules) {
  Model m;
  m.hosts = 1;
  m.weak = rules.weak;
  Things t;
  t.puts = static_cast<uint32_t>(rules.puts) + 1;
  for (uint32_t i = 0; i < t.puts; ++i) {
    const std::string of = " " + std::to_string(i);
    t.payload[i] = m.line({"payload" + of, 0});
    t.header[i] = m.line({"header" + of, 0});
    t.stored[i] = m.word("stored" + of);
  }
  for (uint32_t p = 0; p < kPutters; ++p) {
    for (uint32_t parity = 0; parity < 2; ++parity)
      t.count[p][parity] = m.word("count " + std::to_string(p) + "/" + std::to_string(parity));
  }
  t.phase = m.word("phase");
  t.sequence = m.word("sequence");
  t.settled = m.word("settled");
  Next first = kDone;
  for (uint32_t i = t.puts - 1; i-- > 0;) first = {m.stage(put(t, rules, 0, i, first)), {}};
  m.processes.push_back({"putter 0", 0, first, {}});
  const uint32_t second = m.process("putter 1", 0, put(t, rules, 1, t.puts - 1, kDone));
  for (int i = 0; i < rules.heartbeat_threads; ++i) {
    const int stage = m.stage({});
    m.stages[static_cast<size_t>(stage)] = heartbeat(t, rules, stage);
    Args args{};
    args[kHeartbeats] = static_cast<uint8_t>(rules.heartbeats);
    m.processes.push_back({"heartbeat_thread " + std::to_string(i), 0, {stage, args}, {}});
  }
  if (rules.kill) {
    m.kills = 1;
    m.killable = 1u << second;
    add_scavenger(m, t, rules, second);
  }
  return m;
}

}  // namespace

void add_settled(std::vector<Case>& cases) {
  const std::string early = "not in the memory";
  const auto add = [&](const char* variant, const std::string& finds, const Rules& rules,
                       bool large = false) {
    cases.push_back({"settled", variant, finds, [=] { return settled(rules); }, large});
  };
  add("as specified", "", {.weak = false, .puts = 1});
  add("weak memory", "", {.puts = 1});
  add("weak memory, two puts in turn", "", {.heartbeats = 5}, true);
  add("two heartbeat threads", "",
      {.weak = false, .puts = 0, .heartbeats = 3, .heartbeat_threads = 2});
  add("weak memory, two heartbeat threads", "",
      {.puts = 0, .heartbeats = 3, .heartbeat_threads = 2}, true);
  add("a putter is killed", "", {.weak = false, .puts = 1, .kill = true});
  add("phase not looked at again", early,
      {.weak = false, .puts = 0, .heartbeats = 5, .look_again = false});
  add("other parity not awaited", early,
      {.weak = false, .puts = 0, .heartbeats = 3, .heartbeat_threads = 2, .other_parity = false});
  add("last stamp noted after the turn", early, {.puts = 0, .last_before_turn = false});
  add("counts not awaited", early, {.puts = 0, .wait_for_counts = false});
  add("not settled", early, {.puts = 0, .settle = false});
  add("settled before the counts are looked at", early, {.puts = 0, .look_then_settle = false});
  add("counts of a dead putter cleared first", early,
      {.weak = false, .puts = 0, .kill = true, .publish_then_forget = false});
}

}  // namespace bowhead::models
