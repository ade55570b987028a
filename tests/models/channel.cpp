// SPDX-License-Identifier: Apache-2.0
// One direction of core::Channel: messages in slots that are used in turn, each a line with its tag
// stored last; the receiver reports its progress; the host of either side can crash and begin
// again.
#include "tests/models/models.h"

namespace bowhead::models {
namespace {

constexpr uint32_t kSender = 0, kReceiver = 1;  // hosts

struct Rules {
  bool weak = false;
  uint32_t slots = 2;
  int messages = 3;
  uint32_t crashable = 0;  ///< hosts, a bit each; one crash in a run
  bool tag_last = true;
  bool await_room = true;
  bool read_then_report = true;     ///< words are read before progress is reported
  bool new_session = true;          ///< the sender, when it begins again
  bool progress_of_session = true;  ///< progress counts only for the session that it names
  bool tag_slots = true;            ///< all, when a session begins
};

/// Word of a tag or of progress: session and number.
constexpr int pack(int session, int number) { return session * 8 + number; }

struct Things {
  uint32_t head = 0, progress = 0;          // sender's session; receiver's progress
  std::array<uint32_t, 2> slot{};           // two words of a message, and its tag
  std::array<uint32_t, 4> life{}, taken{};  // of each session: its sender, its progress
};

enum : size_t { kSession, kNext, kLimit, kLife };  // state of a sender
enum : size_t { kFollowed, kNumber, kTold };       // state of a receiver

void add_sender(Model& m, const Things& t, const Rules& rules) {
  const int send = m.stage({});
  m.stages[static_cast<size_t>(send)] = [=](Process& p, Args args) -> Program {
    if (args[kNext] == rules.messages) co_return kDone;
    if (rules.await_room && args[kNext] == args[kLimit]) {
      co_await p.acquire(t.progress);
      const int progress = co_await p.load(t.progress);
      const int number = progress % 8;
      const bool mine = progress / 8 == args[kSession] || !rules.progress_of_session;
      if (!mine || number > args[kNext]) co_return Next{send, args};
      const int taken = co_await p.see(t.taken[args[kSession]]);
      if (taken < number) co_await p.fail("counts a message as taken that was not");
      args[kLimit] = static_cast<uint8_t>(number + static_cast<int>(rules.slots));
      co_return Next{send, args};
    }
    const uint32_t line = t.slot[args[kNext] % rules.slots];
    const int tag = pack(args[kSession], args[kNext] + 1);
    if (!rules.tag_last) co_await p.store(line, 2, tag);
    for (const uint32_t word : {0u, 1u}) co_await p.store(line, word, args[kLife] * 8 + tag % 8);
    if (rules.tag_last) co_await p.store(line, 2, tag);
    co_await p.publish(line);
    args[kNext] += 1;
    co_return Next{send, args};
  };
  const auto open = [=](int life) {
    return [=](Process& p, Args) -> Program {
      if (life == 2) co_await p.settle();  // a boot takes longer
      co_await p.acquire(t.head);
      const int before = co_await p.load(t.head);
      const int session = rules.new_session ? before + 1 : 1;
      for (uint32_t i = 0; i < rules.slots && rules.tag_slots; ++i)
        co_await p.store(t.slot[i], 2, pack(session, 0));
      if (rules.slots == 2) {
        co_await p.publish(t.slot[0], t.slot[1]);
      } else {
        co_await p.publish(t.slot[0]);
      }
      co_await p.note(t.life[static_cast<size_t>(session)], life);
      co_await p.store(t.head, session);
      co_await p.publish(t.head);
      Args args{};
      args[kSession] = static_cast<uint8_t>(session);
      args[kLife] = static_cast<uint8_t>(life);
      co_return Next{send, args};
    };
  };
  const Next first{m.stage(open(1)), {}}, again{m.stage(open(2)), {}};
  m.processes.push_back({"sender", kSender, first, again});
}

void add_receiver(Model& m, const Things& t, const Rules& rules) {
  const int poll = m.stage({});
  const int take = m.stage({});
  m.stages[static_cast<size_t>(poll)] = [=](Process& p, Args args) -> Program {
    if (args[kNumber] != args[kTold]) {
      co_await p.store(t.progress, pack(args[kFollowed], args[kNumber]));
      co_await p.flush(t.progress);
      args[kTold] = args[kNumber];
    }
    co_return Next{take, args};
  };
  m.stages[static_cast<size_t>(take)] = [=](Process& p, Args args) -> Program {
    const uint32_t line = t.slot[args[kNumber] % rules.slots];
    co_await p.acquire(line);
    const int tag = co_await p.load(line, 2);
    const int wanted = pack(args[kFollowed], args[kNumber] + 1);
    if (tag == wanted && args[kFollowed] != 0) {
      if (!rules.read_then_report) {
        co_await p.store(t.progress, wanted);
        co_await p.note(t.taken[args[kFollowed]], args[kNumber] + 1);
        co_await p.publish(t.progress);
      }
      const int first = co_await p.load(line, 0);
      const int second = co_await p.load(line, 1);
      const int life = co_await p.see(t.life[args[kFollowed]]);
      if (first != life * 8 + wanted % 8 || second != first)
        co_await p.fail("takes a message that was not sent");
      args[kNumber] += 1;
      co_await p.note(t.taken[args[kFollowed]], args[kNumber]);
      if (!rules.read_then_report) args[kTold] = args[kNumber];
      const int more = co_await p.choose(2);  // in the same poll
      co_return Next{more ? take : poll, args};
    }
    if (tag / 8 == args[kFollowed]) co_return Next{poll, args};
    co_await p.acquire(t.head);
    const int session = co_await p.load(t.head);
    if (session == args[kFollowed]) co_return Next{poll, args};
    args[kFollowed] = static_cast<uint8_t>(session);
    args[kNumber] = args[kTold] = 0;
    co_await p.store(t.progress, pack(session, 0));
    co_await p.flush(t.progress);
    co_return Next{poll, args};
  };
  const Next open{m.stage([=](Process& p, Args) -> Program {
                    co_await p.settle();  // a boot takes longer
                    co_await p.acquire(t.head);
                    const int session = co_await p.load(t.head);
                    const int progress = co_await p.load(t.progress);
                    Args args{};
                    args[kFollowed] = static_cast<uint8_t>(session);
                    if (progress / 8 == session)
                      args[kNumber] = args[kTold] = static_cast<uint8_t>(progress % 8);
                    co_await p.store(t.progress, pack(session, args[kNumber]));
                    co_await p.publish(t.progress);
                    co_return Next{poll, args};
                  }),
                  {}};
  m.processes.push_back({"receiver", kReceiver, open, open});
}

Model channel(const Rules& rules) {
  Model m;
  m.weak = rules.weak;
  m.crashes = rules.crashable != 0 ? 1 : 0;
  m.crashable = rules.crashable;
  Things t;
  t.head = m.line({"sender's head", kSender, 1u << kReceiver});
  t.progress = m.line({"progress", kReceiver, 1u << kSender});
  for (uint32_t i = 0; i < rules.slots; ++i)
    t.slot[i] = m.line({"slot " + std::to_string(i), kSender, 1u << kReceiver, 3});
  for (uint32_t& word : t.life) word = m.word("life");
  for (uint32_t& word : t.taken) word = m.word("taken");
  add_sender(m, t, rules);
  add_receiver(m, t, rules);
  return m;
}

}  // namespace

void add_channel(std::vector<Case>& cases) {
  const std::string wrong = "that was not sent";
  const auto add = [&](const char* variant, const std::string& finds, const Rules& rules,
                       bool large = false) {
    cases.push_back({"channel", variant, finds, [=] { return channel(rules); }, large});
  };
  const uint32_t sender = 1u << kSender, receiver = 1u << kReceiver;
  add("as specified", "", {});
  add("weak memory", "", {.weak = true, .slots = 1, .messages = 2});
  add("sender crashes", "", {.slots = 1, .messages = 2, .crashable = sender});
  add("receiver crashes", "", {.slots = 1, .messages = 2, .crashable = receiver});
  add("two slots, either crashes", "", {.messages = 3, .crashable = sender | receiver}, true);
  add("weak memory, either crashes", "",
      {.weak = true, .slots = 1, .messages = 2, .crashable = sender | receiver}, true);
  add("tag stored first", wrong, {.slots = 1, .tag_last = false});
  add("room not awaited", wrong, {.slots = 1, .await_room = false});
  add("progress reported before the words are read", wrong,
      {.slots = 1, .read_then_report = false});
  add("session not counted up", wrong,
      {.slots = 1, .messages = 2, .crashable = sender, .new_session = false});
  add("progress believed of any session", wrong,
      {.slots = 1, .messages = 2, .crashable = sender, .progress_of_session = false});
}

}  // namespace bowhead::models
