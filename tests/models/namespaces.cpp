// SPDX-License-Identifier: Apache-2.0
// Namespaces (core::Namespaces, rules N2 and N4): two hosts register one name with two layouts, and
// a process stores a block of a namespace that another process removes.
#include "tests/models/models.h"

namespace bowhead::models {
namespace {

// ---- registration ----

/// An entry: state, plus 4 for the higher epoch. The layout is that of the host.
constexpr int kNone = 0, kTentative = 1, kConfirmed = 2, kHigher = 4;

struct Register {
  bool weak = true;
  bool dies = false;          ///< host 1 is declared dead, and knows it late or never
  bool say_then_look = true;  ///< TENTATIVE before the look that decides
  bool settle = true;         ///< between the two
  bool acquire = true;        ///< the other host's entry
  bool wait = true;           ///< for a TENTATIVE entry of the higher slot
  bool withdraw = true;       ///< before a TENTATIVE entry of the lower slot
  bool raise_epoch = true;    ///< where an entry of a life that is over was passed over
  bool look_after = true;     ///< at decisions about the own life, before success is reported
};

Model registration(const Register& rules) {
  Model m;
  m.weak = rules.weak;
  const uint32_t entry[] = {m.line({"entry 0", 0, 1u << 1}), m.line({"entry 1", 1, 1u << 0})};
  const uint32_t succeeded[] = {m.word("host 0 succeeded"), m.word("host 1 succeeded")};
  const uint32_t begun = m.word("a decision about host 1 has begun"), over = m.word("done");
  for (uint32_t host = 0; host < 2; ++host) {
    const uint32_t own = entry[host], other = entry[1 - host];
    const int look = m.stage({});
    // args[0]: the own entry.
    m.stages[static_cast<size_t>(look)] = [=](Process& p, Args args) -> Program {
      int dead = 0;
      if (rules.acquire) co_await p.acquire(other);
      const int there = co_await p.load(other);
      if (host == 0 && rules.dies) dead = co_await p.get(over);
      const bool confirmed = (there & 3) == kConfirmed;
      bool tentative = (there & 3) == kTentative;
      int epoch = 0;
      if (tentative && dead) {
        tentative = false;
        epoch = rules.raise_epoch ? kHigher : 0;
      }
      const bool outdated = args[0] != kNone && epoch > (args[0] & kHigher);
      const bool yields = tentative && host == 1 && rules.withdraw;
      if (args[0] != kNone && (confirmed || yields || outdated)) {
        co_await p.store(own, kNone);
        co_await p.publish(own);
        args[0] = kNone;
      }
      if (confirmed) co_return kDone;
      if (tentative && (args[0] == kNone || (host == 0 && rules.wait))) co_return Next{look, args};
      if (args[0] == kNone && rules.say_then_look) {
        args[0] = static_cast<uint8_t>(kTentative + epoch);
        co_await p.store(own, args[0]);
        co_await p.publish(own);
        if (rules.settle) co_await p.settle();
        co_return Next{look, args};
      }
      co_await p.store(own, kConfirmed + ((args[0] & kHigher) | epoch));
      co_await p.publish(own);
      if (host == 1 && rules.dies && rules.look_after) {
        const int doubted = co_await p.get(begun);
        if (doubted) co_return kDone;
      }
      const int both = co_await p.see(succeeded[1 - host]);
      if (both) co_await p.fail("two hosts have registered one name");
      co_await p.note(succeeded[host], 1);
      co_return kDone;
    };
    m.processes.push_back({"host " + std::to_string(host), host, {look, {}}, {}});
  }
  if (rules.dies) {
    m.process("decider", 0, [=](Process& p, Args) -> Program {
      co_await p.set(begun, 1);
      co_await p.settle();
      co_await p.settle();
      co_await p.set(over, 1);
      co_return kDone;
    });
    // The entry that counts is that of the host that reported success.
    m.at_rest = [=](const Rest& rest) -> std::string {
      const int first = rest.line(entry[0], 0), second = rest.line(entry[1], 0);
      const bool higher = (first & 3) == kConfirmed &&
                          ((second & 3) != kConfirmed || (first & kHigher) > (second & kHigher));
      return rest.word(succeeded[0]) && !higher ? "another entry counts than the one reported" : "";
    };
  }
  return m;
}

// ---- removal ----

struct Remove {
  bool kill = false;             ///< the process that puts, which is scavenged
  bool look = true;              ///< at the removals once the entry is written
  bool look_then_commit = true;  ///< and before the block is committed
  bool scavenger_looks = true;
  bool first_count = true;  ///< the index was swept for the count before the walk, not after
};

constexpr int kReserved = 1, kCommitted = 2;

Model removal(const Remove& rules) {
  Model m;
  m.hosts = 1;
  const uint32_t gone = m.word("namespaces_gone"), swept = m.word("namespaces_swept");
  const uint32_t entry = m.word("entry"), block = m.word("block"), ended = m.word("put ended");
  const uint32_t put = m.process("put", 0, [=](Process& p, Args) -> Program {
    const int before = co_await p.get(gone);
    if (!before) {
      co_await p.set(block, kReserved);
      co_await p.set(entry, 1);
      if (!rules.look_then_commit) co_await p.set(block, kCommitted);
      if (rules.look) {
        const int after = co_await p.get(gone);
        if (after) co_await p.add(gone, 1);
      }
      if (rules.look_then_commit) co_await p.set(block, kCommitted);
    }
    co_await p.set(ended, 1);
    co_return kDone;
  });
  const int walk = m.stage({});
  m.stages[static_cast<size_t>(walk)] = [=](Process& p, Args) -> Program {
    const int finished = co_await p.get(ended);
    int count = co_await p.get(gone);
    const int done = co_await p.get(swept);
    if (done == count) {
      if (finished) co_return kDone;
      co_return Next{walk, {}};
    }
    bool left = false;
    const int found = co_await p.get(entry);
    if (found) {
      const int retired = co_await p.swap(block, kCommitted, 0);
      if (retired) co_await p.set(entry, 0);
      left = !retired;
    }
    if (!rules.first_count) count = co_await p.get(gone);
    if (!left) co_await p.swap(swept, done, count);
    co_return Next{walk, {}};
  };
  m.process("remover", 0, [=](Process& p, Args) -> Program {
    co_await p.add(gone, 1);
    co_return Next{walk, {}};
  });
  if (rules.kill) {
    m.kills = 1;
    m.killable = 1u << put;
    const int scavenge = m.stage({});
    m.stages[static_cast<size_t>(scavenge)] = [=](Process& p, Args) -> Program {
      const int alive = co_await p.alive(put);
      const int finished = co_await p.get(ended);
      if (finished) co_return kDone;
      if (alive) co_return Next{scavenge, {}};
      const int reserved = co_await p.get(block);
      if (reserved == kReserved) {
        const int named = co_await p.get(entry);
        const int after = co_await p.get(gone);
        if (named && after && rules.scavenger_looks) co_await p.add(gone, 1);
        co_await p.set(block, named ? kCommitted : 0);
      }
      co_await p.set(ended, 1);
      co_return kDone;
    };
    m.processes.push_back({"scavenger", 0, {scavenge, {}}, {}});
  }
  m.at_rest = [=](const Rest& rest) -> std::string {
    return rest.word(entry) ? "a block of a removed namespace stays" : "";
  };
  return m;
}

}  // namespace

void add_namespaces(std::vector<Case>& cases) {
  const std::string two = "two hosts have registered",
                    stays = "a block of a removed namespace stays";
  const auto add = [&](const char* variant, const std::string& finds, const Register& rules) {
    cases.push_back({"namespace", variant, finds, [=] { return registration(rules); }});
  };
  add("as specified", "", {.weak = false});
  add("weak memory", "", {});
  add("a host dies", "", {.weak = false, .dies = true});
  add("weak memory, a host dies", "", {.dies = true});
  add("not TENTATIVE first", two, {.weak = false, .say_then_look = false});
  add("other entry not acquired", two, {.weak = false, .acquire = false});
  add("higher slot not awaited", two, {.weak = false, .wait = false});
  add("lower slot not yielded to", two, {.weak = false, .withdraw = false});
  add("weak memory, TENTATIVE not settled", two, {.settle = false});
  add("epoch not raised over a dead host", two,
      {.weak = false, .dies = true, .raise_epoch = false});
  add("no look at decisions", two, {.weak = false, .dies = true, .look_after = false});
  const auto removes = [&](const char* variant, const std::string& finds, const Remove& rules) {
    cases.push_back({"removal", variant, finds, [=] { return removal(rules); }});
  };
  removes("as specified", "", {});
  removes("the put is killed", "", {.kill = true});
  removes("no look once the entry is written", stays, {.look = false});
  removes("a look once the block is committed", stays, {.kill = true, .look_then_commit = false});
  removes("the scavenger does not look", stays, {.kill = true, .scavenger_looks = false});
  removes("swept for the count after the walk", stays, {.first_count = false});
}

}  // namespace bowhead::models
