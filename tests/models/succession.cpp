// SPDX-License-Identifier: Apache-2.0
// Succession when hosts die in turn (core::Hosts::successor(), holdings.h, joining.h): lives are
// decided over, by hosts that are themselves decided over; chains and rings of successions; joining
// hosts take back or wait; adopters say OWN and open. Decisions are atomic here and memory is
// coherent; the model checks which host acts on which words, and when.
#include <algorithm>
#include <vector>

#include "tests/models/models.h"

namespace bowhead::models {
namespace {

constexpr int kHosts = 4, kExtents = 2;  // maximum; a model may use fewer

struct Rules {
  int hosts = 3, extents = 1;
  int decisions = 3, crashes = 2, joins = 2;  ///< at most
  int gone = 0;                               ///< hosts that died before and stay so, a bit each
  bool follow_chain = true;                   ///< a successor that is itself over is not the end
  bool ring = true;                           ///< rule for rings
  bool nested_rings = true;  ///< a ring is remembered while the rest of the chain is followed
  bool s3 = true;  ///< an extent is opened only if no decision about the own life has begun
  bool stop_joining = true;  ///< as a life that is over before it has begun
  bool look_again = true;    ///< after it has said OWN: is it still the successor?
};

struct Life {
  int host = -1;
  int n = 0;
  bool operator==(const Life&) const = default;
};

struct Register {
  uint8_t n : 4, host : 2, accepted : 1, done : 1;
  uint8_t successor;
};

struct Word {
  uint8_t epoch : 4, n : 4;         ///< epoch 0: never written
  uint8_t open : 2, confirmed : 1;  ///< open: not READ_ONLY
  uint8_t from;                     ///< host whose life held it before
};

constexpr uint8_t kNone = 0, kFull = 2;  // and 1: for verified copies only

struct State {
  uint8_t slot[kHosts], fenced[kHosts];
  uint8_t runs[kHosts];      ///< life in which the host runs; 0: down
  uint8_t joining[kHosts];   ///< 0: no; 1: deciding; 2, 3: taking over; 4: said so; then it runs
  uint8_t relabels[kHosts];  ///< extents that it takes into its new life, a bit each
  uint8_t view[kHosts][kHosts];
  Register decide[kHosts][kHosts];
  Word own[kHosts][kExtents];
  uint8_t adopting[kHosts][kExtents];  ///< epoch that the host is about to say OWN with
  uint8_t from[kHosts][kExtents];      ///< and its owner
  uint8_t opening[kHosts][kExtents];   ///< has read the previous holders
  uint16_t before[kHosts][kExtents];   ///< lives, four bits for each host
  uint8_t uses[kHosts][kExtents];
  uint8_t decisions, crashes, joins;
};

/// Calls f with every byte of the state that a model of this size uses.
template <class F>
void each_byte(State& s, const Rules& rules, const F& f) {
  const auto all = [&](auto& thing) {
    auto* bytes = reinterpret_cast<uint8_t*>(&thing);
    for (size_t i = 0; i < sizeof thing; ++i) f(bytes[i]);
  };
  for (int h = 0; h < rules.hosts; ++h) {
    for (uint8_t* byte : {&s.slot[h], &s.fenced[h], &s.runs[h], &s.joining[h], &s.relabels[h]})
      f(*byte);
    for (int d = 0; d < rules.hosts; ++d) {
      f(s.view[h][d]);
      all(s.decide[h][d]);
    }
    for (int e = 0; e < rules.extents; ++e) {
      all(s.own[h][e]);
      all(s.before[h][e]);
      for (uint8_t* byte : {&s.adopting[h][e], &s.from[h][e], &s.opening[h][e], &s.uses[h][e]})
        f(*byte);
    }
  }
  for (uint8_t* byte : {&s.decisions, &s.crashes, &s.joins}) f(*byte);
}

/// One host: its view and its steps.
class Host {
 public:
  Host(State& s, const Rules& rules, int self) : s_(s), r_(rules), self_(self) {}

  bool over(const Life& life) const { return s_.view[self_][life.host] > life.n; }
  bool decided(const Life& life) const { return decision(life) != nullptr; }
  bool truly_over(const Life& life) const {
    for (int h = 0; h < r_.hosts; ++h) {
      const Register& reg = s_.decide[h][life.host];
      if ((reg.done && reg.n >= life.n) || reg.n > life.n) return true;
    }
    return false;
  }
  Life self() const { return {self_, s_.runs[self_]}; }
  bool up() const { return s_.runs[self_] != 0 && s_.joining[self_] == 0; }

  const Register* decision(const Life& life) const {
    for (int h = 0; h < r_.hosts; ++h) {
      const Register& reg = s_.decide[h][life.host];
      if (reg.done && reg.n == life.n) return &reg;
    }
    return nullptr;
  }
  bool begun(const Life& life) const {
    for (int h = 0; h < r_.hosts; ++h) {
      if (s_.decide[h][life.host].n >= life.n && s_.decide[h][life.host].n != 0) return true;
    }
    return false;
  }
  Life next_life(const Life& life) const {
    if (const Register* reg = decision(life)) return {reg->host, reg->successor};
    for (int h = 0; h < r_.hosts; ++h) {
      if (s_.decide[h][life.host].n > life.n) return {life.host, life.n + 1};
    }
    return {};
  }
  /// Follows the chain. The successor of the lives of a ring is the next life of its lowest host;
  /// if that life is over too and leads back to the ring, the lives between belong to the ring.
  Life successor(Life life) const {
    std::vector<Life> seen;
    std::vector<size_t> begins;  // of the ring that each life seen belongs to
    for (int steps = 0; steps < 32; ++steps) {
      const Life next = next_life(life);
      if (next.host < 0 || !over(next) || !r_.follow_chain) return next;
      begins.push_back(seen.size());
      seen.push_back(life);
      const auto at = std::find(seen.begin(), seen.end(), next);
      if (at == seen.end()) {
        life = next;
        continue;
      }
      if (!r_.ring) return {};
      const size_t begin = begins[static_cast<size_t>(at - seen.begin())];
      const Life last = *std::min_element(seen.begin() + static_cast<ptrdiff_t>(begin), seen.end(),
                                          [](const Life& a, const Life& b) {
                                            return a.host != b.host ? a.host < b.host : a.n > b.n;
                                          });
      life = {last.host, last.n + 1};
      if (!over(life)) return life;
      std::fill(begins.begin() + static_cast<ptrdiff_t>(begin), begins.end(), begin);
      if (!r_.nested_rings) seen.clear(), begins.clear();
    }
    return {};
  }

  struct Holding {
    Life life;
    int epoch = 0;
  };
  /// According to the words of all hosts but one.
  Holding holding(int e, int but = kHosts) const {
    Holding best;
    int highest = 0;
    for (int h = 0; h < r_.hosts; ++h) {
      const Word& word = s_.own[h][e];
      if (word.epoch == 0 || h == but) continue;
      const int order = word.epoch * 4 + (over({h, word.n}) ? 1 : 2);
      if (order < highest) continue;
      highest = order;
      best = {{h, word.n}, word.epoch};
    }
    return best;
  }

  // ---- its steps; false: nothing to do ----

  bool observe() {
    bool news = false;
    for (int d = 0; d < r_.hosts; ++d) {
      uint8_t ended = s_.view[self_][d];
      for (int h = 0; h < r_.hosts; ++h) {
        const Register& reg = s_.decide[h][d];
        if (reg.done) ended = std::max<uint8_t>(ended, reg.n + 1);
      }
      news |= ended != s_.view[self_][d];
      s_.view[self_][d] = ended;
    }
    if (s_.runs[self_] != 0 && s_.joining[self_] == 0 && over(self())) {
      stop();
      news = true;
    }
    return news;
  }

  /// The life of a host that may be declared over, regardless of time.
  Life suspect(int d) const {
    Life life{d, s_.slot[d]};
    if (!over(life)) return life;
    const Life next = successor(life);
    return next.host == d && next.n > life.n ? next : Life{};
  }
  /// Begins to decide, or continues with the value that it accepted.
  bool decide(const Life& life, const Life& value) {
    Register& mine = s_.decide[self_][life.host];
    uint8_t host = static_cast<uint8_t>(value.host), successor = static_cast<uint8_t>(value.n);
    for (int h = 0; h < r_.hosts; ++h) {
      const Register& reg = s_.decide[h][life.host];
      if (reg.n > life.n || (reg.n == life.n && reg.done)) return false;
      if (reg.n == life.n && reg.accepted) host = reg.host, successor = reg.successor;
    }
    if (mine.n == life.n && mine.accepted) {
      mine.done = 1;
      return true;
    }
    if (s_.decisions == 0) return false;
    --s_.decisions;
    mine = Register{.successor = successor};
    mine.n = static_cast<uint8_t>(life.n) & 15;
    mine.host = host & 3;
    mine.accepted = 1;
    return true;
  }

  bool survey(int e) {
    const Holding now = holding(e);
    if (now.life.host < 0 || s_.adopting[self_][e] != 0 || now.life == self() || !over(now.life) ||
        !(successor(now.life) == self()))
      return false;
    s_.adopting[self_][e] = static_cast<uint8_t>(now.epoch + 1);
    s_.from[self_][e] = static_cast<uint8_t>(now.life.host);
    return true;
  }
  bool adopt(int e) {
    if (s_.adopting[self_][e] == 0) return false;
    Word word{};
    word.epoch = s_.adopting[self_][e] & 15;
    word.n = s_.runs[self_] & 15;
    word.from = s_.from[self_][e];
    s_.own[self_][e] = word;
    s_.adopting[self_][e] = s_.from[self_][e] = 0;
    return true;
  }
  bool closed(int e) const {
    const Word& word = s_.own[self_][e];
    return word.epoch != 0 && word.n == s_.runs[self_] && !word.open;
  }
  /// Decision words can be reused while a host acts on them. So when its own word is in the memory,
  /// the host checks that it would still adopt. Later it need not: a host that finds itself the
  /// successor also finds this word.
  bool look_again(int e) {
    if (!closed(e) || s_.own[self_][e].confirmed) return false;
    const Life before = holding(e, self_).life;
    const bool still = before.host >= 0 && over(before) && successor(before) == self();
    if (r_.look_again && s_.own[self_][e].from != self_ && !still)
      return decide(self(), {self_, s_.runs[self_] + 1});  // ends its own life
    s_.own[self_][e].confirmed = 1;
    return true;
  }
  bool look_before(int e) {
    if (!closed(e) || !s_.own[self_][e].confirmed || s_.opening[self_][e]) return false;
    if (r_.s3 && begun(self())) return false;
    s_.opening[self_][e] = 1;
    for (int h = 0; h < r_.hosts; ++h) {
      if (h != self_) s_.before[self_][e] |= static_cast<uint16_t>(s_.own[h][e].n << 4 * h);
    }
    return true;
  }
  std::string open(int e) {
    if (!closed(e) || !s_.opening[self_][e]) return kImpossible;
    bool fenced = true;
    for (int h = 0; h < r_.hosts; ++h) {
      const int life = s_.before[self_][e] >> 4 * h & 15;
      fenced &= life == 0 || s_.fenced[h] >= life;
    }
    s_.before[self_][e] = 0;
    s_.opening[self_][e] = 0;
    s_.own[self_][e].open = fenced ? 2 : 1;
    return use(e);
  }

  /// Takes the extent into use by its own word, and checks for other users.
  std::string use(int e) {
    s_.uses[self_][e] = s_.own[self_][e].open;
    const bool living = !truly_over(self());
    for (int h = 0; h < r_.hosts; ++h) {
      if (h == self_ || s_.uses[h][e] == kNone || s_.uses[self_][e] == kNone) continue;
      const bool other_living = !truly_over({h, s_.runs[h]});
      if (living && other_living) return "two living hosts use one extent";
      if (living ? s_.uses[self_][e] == kFull : other_living && s_.uses[h][e] == kFull)
        return "an extent is in full use while another host may write to it";
    }
    return {};
  }

  void stop() {
    s_.runs[self_] = s_.joining[self_] = s_.relabels[self_] = 0;
    for (int e = 0; e < kExtents; ++e) {
      s_.adopting[self_][e] = s_.from[self_][e] = s_.opening[self_][e] = 0;
      s_.before[self_][e] = 0;
      s_.uses[self_][e] = kNone;
    }
  }

  // ---- joining; `runs` is the life that it will have ----

  bool join() {
    if (s_.runs[self_] != 0 || s_.joins == 0 || (r_.gone >> self_ & 1) != 0) return false;
    --s_.joins;
    s_.joining[self_] = 1;
    s_.runs[self_] = s_.slot[self_] + 1;
    return true;
  }
  bool succeed_itself() {
    if (s_.joining[self_] != 1) return false;
    const Life old{self_, s_.runs[self_] - 1};
    if (!decided(old) && !truly_over(old)) return decide(old, self());
    if (decided(old)) {
      observe();
      if (!over(self())) {
        s_.joining[self_] = 2;
        return true;
      }
    }
    s_.runs[self_] += 1;
    return true;
  }
  /// It owns what its old life held, if it succeeded itself.
  bool look_over() {
    if (s_.joining[self_] != 2) return false;
    if (over(self())) {
      stop();
      return true;
    }
    const bool mine = successor({self_, s_.runs[self_] - 1}) == self();
    for (int e = 0; e < r_.extents; ++e) {
      const Life holder = holding(e).life;
      if (mine) {
        s_.relabels[self_] |= static_cast<uint8_t>((holder.host == self_) << e);
      } else if (holder.host == self_) {
        return false;
      }
    }
    s_.joining[self_] = 3;
    return true;
  }
  bool take_over() {
    if (s_.joining[self_] != 3) return false;
    for (int e = 0; e < r_.extents; ++e) {
      if ((s_.relabels[self_] >> e & 1) == 0) continue;
      s_.own[self_][e].n = s_.runs[self_] & 15;
      s_.own[self_][e].confirmed = 1;
    }
    s_.relabels[self_] = 0;
    s_.joining[self_] = 4;
    s_.fenced[self_] = s_.runs[self_] - 1;
    s_.slot[self_] = s_.runs[self_];
    return true;
  }
  std::string begin() {
    if (s_.joining[self_] != 4) return kImpossible;
    observe();
    if (r_.stop_joining && over(self())) {
      stop();
      return {};
    }
    s_.joining[self_] = 0;
    for (int e = 0; e < r_.extents; ++e) {
      const Word& word = s_.own[self_][e];
      if (word.epoch == 0 || word.n != s_.runs[self_] || !word.open) continue;
      if (std::string broken = use(e); !broken.empty()) return broken;
    }
    return {};
  }

 private:
  State& s_;
  const Rules& r_;
  const int self_;
};

const char* const kSteps[] = {"observes",
                              "begins to join",
                              "decides about its old life",
                              "looks at what it held",
                              "takes it over and says so",
                              "begins its life",
                              "crashes"};
const char* const kExtentSteps[] = {"finds that it succeeds the holder of", "says OWN of",
                                    "looks again about", "reads who held", "opens"};
constexpr int kPlain = 7, kOfExtent = 5;

std::string may(bool done) { return done ? std::string() : kImpossible; }

std::string act(State& s, const Rules& rules, int self, int step) {
  Host host(s, rules, self);
  switch (step) {
    case 0:
      return may(s.runs[self] != 0 && host.observe());
    case 1:
      return may(host.join());
    case 2:
      return may(host.succeed_itself());
    case 3:
      return may(host.look_over());
    case 4:
      return may(host.take_over());
    case 5:
      return host.begin();
    case 6:
      if (s.crashes == 0 || s.runs[self] == 0) return kImpossible;
      --s.crashes;
      host.stop();
      return {};
    default:
      break;
  }
  step -= kPlain;
  if (step < kHosts) {  // about that host
    // The host's lock: not while it adopts.
    const bool adopts = s.adopting[self][0] != 0 || s.adopting[self][1] != 0;
    const bool decides = s.runs[self] != 0 && (host.up() || s.joining[self] == 2) && !adopts;
    if (step >= rules.hosts || step == self || !decides || host.over(host.self()))
      return kImpossible;
    const Life life = host.suspect(step);
    return may(life.host >= 0 && host.decide(life, host.self()));
  }
  step -= kHosts;
  const int e = step / kOfExtent;
  // The thread that adopts does not read `view` again.
  if (e >= rules.extents || !host.up()) return kImpossible;
  switch (step % kOfExtent) {
    case 0:
      return may(!host.over(host.self()) && host.survey(e));
    case 1:
      return may(host.adopt(e));
    case 2:
      return may(host.look_again(e));
    case 3:
      return may(host.look_before(e));
    default:
      return host.open(e);
  }
}

std::string name(int step) {
  if (step < kPlain) return kSteps[step];
  step -= kPlain;
  if (step < kHosts) return "decides about host " + std::to_string(step);
  step -= kHosts;
  return kExtentSteps[step % kOfExtent] + std::string(" extent ") +
         std::to_string(step / kOfExtent);
}

/// At rest: the successor of a holder that is over must be able to join, or to be decided over.
std::string lost_extent(const State& s, const Rules& rules) {
  State copy = s;
  for (int h = 0; h < rules.hosts; ++h) {
    Host host(copy, rules, h);
    for (int d = 0; d < rules.hosts; ++d) {
      for (int x = 0; x < rules.hosts; ++x) {
        const Register& reg = s.decide[x][d];
        const int ended =
            reg.n + reg.done;  // a word about a life says that the lives before are over
        copy.view[h][d] = static_cast<uint8_t>(std::max<int>(copy.view[h][d], ended));
      }
    }
    for (int e = 0; e < rules.extents; ++e) {
      const Life holder = host.holding(e).life;
      if (holder.host < 0) return "no host holds an extent";
      if (!host.over(holder)) continue;
      const Life next = host.successor(holder);
      if (next.host < 0) {
        return "no host succeeds the holder of an extent";
      }
      if (s.slot[next.host] > next.n) return "the holder of an extent is an old life";
    }
  }
  return {};
}

Model succession(const Rules& rules) {
  Model m;
  m.hosts = static_cast<uint32_t>(rules.hosts);
  m.may_wait = true;
  m.states_max = 60'000'000;
  State first{};
  for (int h = 0; h < rules.hosts; ++h) first.slot[h] = first.runs[h] = 1;
  for (int e = 0; e < rules.extents; ++e) {
    first.own[e][e] = {1, 1, kFull, 1, static_cast<uint8_t>(e)};
    first.uses[e][e] = kFull;
  }
  for (int h = 0; h < rules.hosts; ++h) {
    if ((rules.gone >> h & 1) == 0) continue;
    first.runs[h] = 0;
    first.uses[h][0] = first.uses[h][1] = kNone;
  }
  first.decisions = static_cast<uint8_t>(rules.decisions);
  first.crashes = static_cast<uint8_t>(rules.crashes);
  first.joins = static_cast<uint8_t>(rules.joins);
  each_byte(first, rules, [&](uint8_t byte) { m.word("", byte); });
  for (int h = 0; h < rules.hosts; ++h) {
    const uint32_t action = m.action({kPlain + kHosts + kExtents * kOfExtent,
                                      [=](std::span<uint8_t> words, int step) {
                                        State s{};
                                        uint8_t* from = words.data();
                                        each_byte(s, rules, [&](uint8_t& b) { b = *from++; });
                                        std::string broken = act(s, rules, h, step);
                                        uint8_t* to = words.data();
                                        each_byte(s, rules, [&](uint8_t& b) { *to++ = b; });
                                        return broken;
                                      },
                                      name});
    const int stage = m.stage({});
    m.stages[static_cast<size_t>(stage)] = [=](Process& p, Args) -> Program {
      co_await p.act(action);
      co_return Next{stage, {}};
    };
    m.processes.push_back({"host " + std::to_string(h), static_cast<uint32_t>(h), {stage, {}}, {}});
  }
  m.at_rest = [=](const Rest& rest) {
    State s{};
    uint32_t i = 0;
    each_byte(s, rules, [&](uint8_t& byte) { byte = static_cast<uint8_t>(rest.word(i++)); });
    return lost_extent(s, rules);
  };
  return m;
}

}  // namespace

void add_succession(std::vector<Case>& cases) {
  const auto add = [&](const char* variant, const std::string& finds, const Rules& rules,
                       bool large = false) {
    cases.push_back({"succession", variant, finds, [=] { return succession(rules); }, large});
  };
  add("as specified, no crash", "", {.decisions = 4, .crashes = 0, .joins = 1}, true);
  add("as specified, one crash", "", {.decisions = 3, .crashes = 1, .joins = 1});
  add("as specified, two crashes", "", {}, true);
  add("no rule for rings", "no host succeeds", {.ring = false});
  add("a ring forgotten before the next", "no host succeeds",
      {.decisions = 4, .crashes = 0, .joins = 1, .nested_rings = false});
  add("no rule S3", "in full use", {.s3 = false});
  add("chain not followed", "an old life", {.follow_chain = false});
  add("joins as a life that is over", "in full use",
      {.decisions = 2, .crashes = 1, .joins = 1, .stop_joining = false});
  const Rules chain{.hosts = 4, .decisions = 4, .crashes = 0, .joins = 1, .gone = 1};
  add("chain through a host that joins", "", chain, true);
  Rules once = chain;
  once.look_again = false;
  add("successor not looked at again", "two living", once, true);
}

}  // namespace bowhead::models
