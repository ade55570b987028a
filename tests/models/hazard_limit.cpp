// SPDX-License-Identifier: Apache-2.0
// The limit up to which hazards are read (core::Leases::raise_limit()): two processes of a host
// lease at once, and the one that raised the limit is paused before it has published that.
#include "tests/models/models.h"

namespace bowhead::models {
namespace {

constexpr int kOld = 1, kRetired = 2;
constexpr uint32_t kOwner = 0, kReader = 1;  // hosts

struct Rules {
  bool weak = false;
  bool always_flush = true;  ///< the limit's line, also if another process raised it far enough
};

Model hazard_limit(const Rules& rules) {
  Model m;
  m.weak = rules.weak;
  const uint32_t header = m.line({"header", kOwner, 1u << kReader, 1, {kOld}});
  const uint32_t limit = m.line({"limit", kReader, 1u << kOwner});
  const uint32_t hazards = m.line({"hazards", kReader, 1u << kOwner, 2});
  const uint32_t leased = m.word("leased");
  m.process("owner", kOwner, [=](Process& p, Args) -> Program {
    co_await p.store(header, kRetired);
    co_await p.publish(header);
    co_await p.settle();
    co_await p.settle();
    co_await p.acquire(limit);
    const int end = co_await p.load(limit);
    co_await p.acquire(hazards);
    for (int i = 0; i < end; ++i) {
      const int named = co_await p.load(hazards, static_cast<uint32_t>(i));
      if (named) co_return kDone;
    }
    const int held = co_await p.see(leased);
    if (held) co_await p.fail("reuses a block that a living reader has leased");
    co_return kDone;
  });
  const auto take = [=](uint32_t index) {
    return [=](Process& p, Args) -> Program {
      bool raised = false;
      for (;;) {
        const int before = co_await p.load(limit);
        if (before > static_cast<int>(index)) break;
        const int swapped = co_await p.swap_line(limit, 0, before, static_cast<int>(index) + 1);
        if (!swapped) continue;
        raised = true;
        break;
      }
      if (raised || rules.always_flush) co_await p.flush(limit);
      if (raised && !rules.always_flush) co_await p.fence();
      co_await p.store(hazards, index, 1);
      co_await p.publish(hazards);
      co_await p.acquire(header);
      const int stamp = co_await p.load(header);
      if (stamp == kOld) co_await p.note(leased, 1);
      co_return kDone;
    };
  };
  m.process("reader 1", kReader, take(0));
  m.process("reader 2", kReader, take(1));
  return m;
}

}  // namespace

void add_hazard_limit(std::vector<Case>& cases) {
  const auto add = [&](const char* variant, const std::string& finds, const Rules& rules) {
    cases.push_back(
        {"hazard limit", variant, finds, [=] { return hazard_limit(rules); }, rules.weak});
  };
  add("as specified", "", {});
  add("weak memory", "", {.weak = true});
  add("raised by another, not flushed", "that a living reader has leased", {.always_flush = false});
}

}  // namespace bowhead::models
