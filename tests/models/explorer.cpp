// SPDX-License-Identifier: Apache-2.0
#include "tests/models/explorer.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <memory>
#include <unordered_map>

#include "base/assert.h"
#include "base/checksum.h"

namespace bowhead::models {
namespace {

constexpr uint32_t kFlightMax = 4;  ///< lines of one host in flight at once
constexpr uint64_t kChunkStates = 1 << 16;
constexpr uint8_t kAbsent = 0, kClean = 1, kDirty = 2;

/// The places of the bytes of a state.
struct Places {
  explicit Places(const Model& model) {
    for (const auto& line : model.lines) {
      line_at.push_back(line_bytes);
      line_bytes += line.words;
    }
    size = line_bytes;  // the memory comes first
    for (uint32_t h = 0; h < model.hosts; ++h) {
      flags.push_back(take(static_cast<uint32_t>(model.lines.size())));
      cache.push_back(take(line_bytes));
      flight.push_back(model.weak ? take(1 + kFlightMax * kFlightBytes) : 0);
    }
    words = take(static_cast<uint32_t>(model.words.size()));
    for (size_t p = 0; p < model.processes.size(); ++p) process.push_back(take(kProcessBytes));
    left = take(2);
  }
  uint32_t take(uint32_t bytes) { return size += bytes, size - bytes; }

  static constexpr uint32_t kFlightBytes = 2 + kWordsMax;  // line, marks, words
  static constexpr uint32_t kProcessBytes = 5;             // node, lines to flush, settling
  uint32_t line_bytes = 0, size = 0, words = 0, left = 0;
  std::vector<uint32_t> line_at, flags, cache, flight, process;
};

/// The states of one process, found during the search: for each log, the next step.
class Automaton {
 public:
  static constexpr uint16_t kGone = 0;  ///< done, killed, or its host crashed for good

  Automaton(const Model& model, uint8_t self) : model_(model), self_(self) { nodes_.resize(1); }

  const Op& op(uint16_t node) const { return nodes_[node].op; }
  uint16_t at(const Next& begins) { return intern(begins.stage, begins.args, {}); }
  uint16_t after(uint16_t node, uint8_t result) {
    for (const auto& [seen, next] : nodes_[node].next) {
      if (seen == result) return next;
    }
    std::string log = nodes_[node].log;
    log.push_back(static_cast<char>(result));
    const uint16_t next = intern(nodes_[node].stage, nodes_[node].args, std::move(log));
    nodes_[node].next.emplace_back(result, next);
    return next;
  }

 private:
  struct Node {
    Op op;
    int stage = -1;
    Args args{};
    std::string log;
    std::vector<std::pair<uint8_t, uint16_t>> next;
  };

  uint16_t intern(int stage, Args args, std::string log) {
    for (;;) {
      if (stage < 0) return kGone;
      const std::string key = std::string(reinterpret_cast<const char*>(args.data()), args.size()) +
                              static_cast<char>(stage) + log;
      if (const auto found = known_.find(key); found != known_.end()) return found->second;
      Process process(log, self_);
      const Program program = model_.stages[static_cast<size_t>(stage)](process, args);
      if (!program.handle.done()) {
        BOWHEAD_ASSERT(nodes_.size() < UINT16_MAX);
        nodes_.push_back({process.pending(), stage, args, std::move(log), {}});
        return known_[key] = static_cast<uint16_t>(nodes_.size() - 1);
      }
      const Next next = program.handle.promise().next;
      stage = next.stage;
      args = next.args;
      log.clear();
    }
  }

  const Model& model_;
  uint8_t self_;
  std::vector<Node> nodes_;
  std::unordered_map<std::string, uint16_t> known_;
};

class Search {
 public:
  explicit Search(const Model& model)
      : model_(model), places_(model), state_(places_.size), table_(1 << 16) {
    BOWHEAD_ASSERT(model.lines.size() <= kLinesMax && model.hosts <= kHostsMax &&
                   model.processes.size() <= kProcessesMax);
    for (size_t p = 0; p < model.processes.size(); ++p)
      automata_.emplace_back(model, static_cast<uint8_t>(p));
  }

  Verdict run();

 private:
  // ---- the current state, state_ ----
  uint8_t* memory(uint32_t line) { return state_.data() + places_.line_at[line]; }
  uint8_t& flag(uint32_t host, uint32_t line) { return state_[places_.flags[host] + line]; }
  uint8_t* cached(uint32_t host, uint32_t line) {
    return state_.data() + places_.cache[host] + places_.line_at[line];
  }
  uint8_t& in_flight(uint32_t host) { return state_[places_.flight[host]]; }
  uint8_t* flight(uint32_t host, uint32_t i) {
    return state_.data() + places_.flight[host] + 1 + i * Places::kFlightBytes;
  }
  uint8_t& word(uint32_t i) { return state_[places_.words + i]; }
  uint16_t get16(uint32_t at) const {
    return static_cast<uint16_t>(state_[at] | state_[at + 1] << 8);
  }
  void set16(uint32_t at, uint16_t value) {
    state_[at] = static_cast<uint8_t>(value);
    state_[at + 1] = static_cast<uint8_t>(value >> 8);
  }
  uint16_t node(uint32_t p) const { return get16(places_.process[p]); }
  uint16_t to_flush(uint32_t p) const { return get16(places_.process[p] + 2); }
  uint8_t& settling(uint32_t p) { return state_[places_.process[p] + 4]; }
  uint8_t& crashes_left() { return state_[places_.left]; }
  uint8_t& kills_left() { return state_[places_.left + 1]; }
  uint32_t words_of(uint32_t line) const { return model_.lines[line].words; }
  bool busy(uint32_t host) const;
  bool own(uint32_t host, uint32_t line) const { return model_.lines[line].writer == host; }

  void begin();
  void fetch_to(uint32_t host, uint32_t line, uint8_t* to);
  bool write_back(uint32_t host, uint32_t line);
  void drop(uint32_t host, uint32_t line);
  bool flush(uint32_t host, uint32_t line);
  bool flush_all(uint32_t p);
  void arrive_in_memory(uint32_t host, uint32_t i);
  void sort_flight(uint32_t host);
  void mark(uint32_t p);
  void drain_marked(uint32_t p);
  void go_on(uint32_t p, uint8_t result);
  void issue_flushes(uint32_t p, uint16_t lines);
  void take_eager_steps(uint32_t p);

  // ---- steps from the current state ----
  void step_process(uint32_t p);
  void step_line(uint32_t p, const Op& op);
  void step_word(uint32_t p, const Op& op);
  void step_action(uint32_t p, const Op& op);
  void step_flushes(uint32_t p);
  void step_cache(uint32_t host, uint32_t line);
  void step_faults();
  void expand(uint32_t from);
  void restore() { std::memcpy(state_.data(), bytes_of(from_), places_.size); }
  template <class F>
  void emit(const F& describe);
  void check_rest();

  // ---- all states ----
  uint8_t* bytes_of(uint64_t i) const {
    return chunks_[i / kChunkStates].get() + i % kChunkStates * places_.size;
  }
  bool is_state(uint64_t i) const {
    return std::memcmp(bytes_of(i), state_.data(), places_.size) == 0;
  }
  uint32_t find_or_add(uint32_t parent);
  void grow();
  std::vector<std::string> trace(uint32_t last, const std::string& last_step);
  std::string describe(uint32_t p, const Op& op, int result) const;

  const Model& model_;
  const Places places_;
  std::vector<Automaton> automata_;
  std::vector<uint8_t> state_;
  std::vector<std::unique_ptr<uint8_t[]>> chunks_;  // of states
  std::vector<uint32_t> parents_;
  std::vector<uint32_t> table_;  // number of a state + 1, by hash
  uint64_t from_ = 0;
  std::string failure_, failed_step_;
  uint32_t failed_from_ = 0;
  bool moved_ = false;              // the current state has a successor
  std::optional<uint32_t> wanted_;  // while a trace is made: the state to be described
  std::string found_step_;
  uint64_t steps_ = 0;
};

// ---- memory ----

/// The result of a fetch. A host's own lines in flight come before the memory.
void Search::fetch_to(uint32_t host, uint32_t line, uint8_t* to) {
  std::memcpy(to, memory(line), words_of(line));
  for (uint32_t i = 0; model_.weak && i < in_flight(host); ++i) {
    if (flight(host, i)[0] == line) std::memcpy(to, flight(host, i) + 2, words_of(line));
  }
}

void Search::drop(uint32_t host, uint32_t line) {
  flag(host, line) = kAbsent;
  std::memset(cached(host, line), 0, words_of(line));
}

/// False if the limit of lines in flight is reached: the write-back must wait.
bool Search::write_back(uint32_t host, uint32_t line) {
  if (!model_.weak) {
    std::memcpy(memory(line), cached(host, line), words_of(line));
  } else {
    if (in_flight(host) == kFlightMax) return false;
    uint8_t* entry = flight(host, in_flight(host)++);
    entry[0] = static_cast<uint8_t>(line);
    std::memcpy(entry + 2, cached(host, line), words_of(line));
    sort_flight(host);
  }
  flag(host, line) = kClean;
  // A clean copy has no effect if only this host writes the line, or no process will load it.
  if (own(host, line) || !busy(host)) drop(host, line);
  return true;
}

/// By line: the order of different lines has no meaning.
void Search::sort_flight(uint32_t host) {
  for (uint32_t i = in_flight(host); i-- > 1;) {
    uint8_t *a = flight(host, i - 1), *b = flight(host, i);
    if (a[0] <= b[0]) break;
    std::swap_ranges(a, a + Places::kFlightBytes, b);
  }
}

void Search::arrive_in_memory(uint32_t host, uint32_t i) {
  const uint8_t* entry = flight(host, i);
  std::memcpy(memory(entry[0]), entry + 2, words_of(entry[0]));
  uint8_t* end = flight(host, in_flight(host));
  std::memmove(flight(host, i), flight(host, i + 1),
               static_cast<size_t>(end - flight(host, i)) - Places::kFlightBytes);
  --in_flight(host);
  std::memset(flight(host, in_flight(host)), 0, Places::kFlightBytes);
}

void Search::mark(uint32_t p) {
  for (uint32_t h = 0; h < model_.hosts; ++h) {
    for (uint32_t i = 0; i < in_flight(h); ++i) flight(h, i)[1] |= static_cast<uint8_t>(1u << p);
  }
}

void Search::drain_marked(uint32_t p) {
  for (uint32_t h = 0; h < model_.hosts; ++h) {
    for (uint32_t i = 0; i < in_flight(h);) {
      if ((flight(h, i)[1] >> p & 1) != 0) {
        arrive_in_memory(h, i);
      } else {
        ++i;
      }
    }
  }
}

bool Search::flush(uint32_t host, uint32_t line) {
  if (flag(host, line) == kDirty && !write_back(host, line)) return false;
  drop(host, line);
  return true;
}

bool Search::flush_all(uint32_t p) {
  const uint16_t lines = to_flush(p);
  for (uint32_t line = 0; line < model_.lines.size(); ++line) {
    if ((lines >> line & 1) != 0 && !flush(model_.processes[p].host, line)) return false;
  }
  set16(places_.process[p] + 2, 0);
  return true;
}

// ---- processes ----

/// A process there may still load something.
bool Search::busy(uint32_t host) const {
  for (uint32_t p = 0; p < model_.processes.size(); ++p) {
    if (model_.processes[p].host == host && node(p) != Automaton::kGone) return true;
  }
  return false;
}

void Search::go_on(uint32_t p, uint8_t result) {
  set16(places_.process[p], automata_[p].after(node(p), result));
  take_eager_steps(p);
  const uint32_t host = model_.processes[p].host;
  if (busy(host)) return;
  for (uint32_t line = 0; line < model_.lines.size(); ++line) {
    if (flag(host, line) == kClean) drop(host, line);
  }
}

/// For lines that are not dirty it takes effect at once: that is one of the permitted moments, and
/// at all later ones the cache may drop the line by itself.
void Search::issue_flushes(uint32_t p, uint16_t lines) {
  const uint32_t host = model_.processes[p].host;
  for (uint32_t line = 0; lines >> line != 0; ++line) {
    if ((lines >> line & 1) == 0) continue;
    if (flag(host, line) == kDirty) {
      set16(places_.process[p] + 2, static_cast<uint16_t>(to_flush(p) | 1u << line));
    } else {
      drop(host, line);
    }
  }
}

void Search::take_eager_steps(uint32_t p) {
  for (;;) {
    const Op op = automata_[p].op(node(p));
    uint8_t result = 0;
    if (op.kind == Kind::FENCE || op.kind == Kind::SETTLE || op.kind == Kind::FLUSH)
      issue_flushes(p, op.lines);
    const bool nothing_to_wait_for =
        to_flush(p) == 0 && (op.kind == Kind::FENCE || (op.kind == Kind::SETTLE && !model_.weak));
    if (op.kind > Kind::FAIL && !nothing_to_wait_for) return;
    if (op.kind == Kind::NOTE) word(op.at) = op.value;
    if (op.kind == Kind::SEE) result = word(op.at);
    if (op.kind == Kind::PEEK) result = memory(op.at)[op.word];
    if (op.kind == Kind::FAIL && failure_.empty())
      failure_ = model_.processes[p].name + ": " + op.text;
    set16(places_.process[p], automata_[p].after(node(p), result));
  }
}

void Search::step_process(uint32_t p) {
  const Op op = automata_[p].op(node(p));
  const auto say = [&] { return describe(p, op, -1); };
  switch (op.kind) {
    case Kind::DONE:
      return;
    case Kind::FENCE:
      if (!flush_all(p)) break;
      go_on(p, 0);
      emit(say);
      return;
    case Kind::SETTLE:
      if (settling(p) != 0) {
        drain_marked(p);
        settling(p) = 0;
        go_on(p, 0);
        emit([&] { return model_.processes[p].name + " has settled"; });
        return;
      }
      if (!flush_all(p)) break;
      if (model_.weak) {
        mark(p);
        settling(p) = 1;
      } else {
        go_on(p, 0);
      }
      emit(say);
      return;
    case Kind::CHOOSE:
      for (uint8_t i = 0; i < op.at; ++i) {
        go_on(p, i);
        emit([&] { return describe(p, op, i); });
      }
      return;
    case Kind::ACT:
      step_action(p, op);
      return;
    case Kind::LOAD:
    case Kind::STORE:
    case Kind::SWAP_LINE:
      step_line(p, op);
      return;
    default:
      step_word(p, op);
      return;
  }
  restore();
}

void Search::step_line(uint32_t p, const Op& op) {
  const uint32_t host = model_.processes[p].host;
  uint8_t* line = cached(host, op.at);
  if (op.kind != Kind::LOAD) {
    BOWHEAD_ASSERT(model_.lines[op.at].writer == kAnyone || own(host, op.at));  // rule R1
    if (flag(host, op.at) == kAbsent) fetch_to(host, op.at, line);
    const bool stores = op.kind == Kind::STORE || line[op.word] == op.expected;
    if (stores) line[op.word] = op.value;
    flag(host, op.at) = kDirty;
    go_on(p, stores);
    emit([&] { return describe(p, op, stores); });
    return;
  }
  uint8_t value = line[op.word];
  if (flag(host, op.at) == kAbsent) {
    fetch_to(host, op.at, line);
    value = line[op.word];
    flag(host, op.at) = kClean;
    if (own(host, op.at)) drop(host, op.at);
  }
  go_on(p, value);
  emit([&] { return describe(p, op, value); });
}

void Search::step_word(uint32_t p, const Op& op) {
  uint8_t result = 0;
  if (op.kind == Kind::ALIVE) {
    result = node(op.at) != Automaton::kGone;
  } else {
    uint8_t& value = word(op.at);
    const bool equal = value == op.expected;
    if (op.kind == Kind::UNTIL && !equal) return;
    result = op.kind == Kind::SWAP ? equal : value;
    if (op.kind == Kind::ADD) value = static_cast<uint8_t>(value + op.value);
    if (op.kind == Kind::SET || ((op.kind == Kind::SWAP || op.kind == Kind::UNTIL) && equal))
      value = op.value;
  }
  go_on(p, result);
  emit([&] { return describe(p, op, result); });
}

void Search::step_action(uint32_t p, const Op& op) {
  const Model::Action& action = model_.actions[op.at];
  for (int i = 0; i < action.alternatives; ++i) {
    const std::string broken = action.act({state_.data() + places_.words, model_.words.size()}, i);
    if (broken == kImpossible) {
      restore();
      continue;
    }
    if (failure_.empty()) failure_ = broken;
    go_on(p, 0);
    emit([&] { return model_.processes[p].name + ": " + action.name(i); });
  }
}

void Search::step_flushes(uint32_t p) {
  const uint16_t lines = to_flush(p);
  for (uint32_t line = 0; lines >> line != 0; ++line) {
    if ((lines >> line & 1) == 0) continue;
    if (!flush(model_.processes[p].host, line)) {
      restore();
      continue;
    }
    set16(places_.process[p] + 2, static_cast<uint16_t>(lines & ~(1u << line)));
    emit([&] {
      return model_.processes[p].name + ": its flush of " + model_.lines[line].name +
             " takes effect";
    });
  }
}

void Search::step_cache(uint32_t host, uint32_t line) {
  const auto say = [&](const char* what) {
    return fmt::format("cache of host {} {} {}", host, what, model_.lines[line].name);
  };
  const bool reads = (model_.lines[line].readers >> host & 1) != 0;
  if (flag(host, line) == kDirty) {
    if (!write_back(host, line)) {
      restore();
      return;
    }
    emit([&] { return say("writes back"); });
  } else if (flag(host, line) == kClean) {
    drop(host, line);
    emit([&] { return say("drops"); });
  } else if (reads && !own(host, line) && busy(host)) {
    fetch_to(host, line, cached(host, line));
    flag(host, line) = kClean;
    emit([&] { return say("fetches"); });
  }
}

/// Crashes of hosts, deaths of processes, arrivals of lines in flight.
void Search::step_faults() {
  for (uint32_t h = 0; model_.weak && h < model_.hosts; ++h) {
    for (uint32_t i = 0; i < in_flight(h); ++i) {
      const uint8_t line = flight(h, i)[0];
      if (i != 0 && flight(h, i - 1)[0] == line) continue;  // never overtakes itself
      arrive_in_memory(h, i);
      emit([&] { return model_.lines[line].name + " reaches the memory"; });
    }
  }
  for (uint32_t p = 0; kills_left() != 0 && p < model_.processes.size(); ++p) {
    if ((model_.killable >> p & 1) == 0 || node(p) == Automaton::kGone) continue;
    --kills_left();
    set16(places_.process[p], Automaton::kGone);
    set16(places_.process[p] + 2, 0);
    settling(p) = 0;
    emit([&] { return model_.processes[p].name + " is killed"; });
  }
  for (uint32_t h = 0; crashes_left() != 0 && h < model_.hosts; ++h) {
    if ((model_.crashable >> h & 1) == 0) continue;
    --crashes_left();
    for (uint32_t line = 0; line < model_.lines.size(); ++line) drop(h, line);
    for (uint32_t p = 0; p < model_.processes.size(); ++p) {
      if (model_.processes[p].host != h) continue;
      const auto& reboots = model_.processes[p].reboots;
      set16(places_.process[p], reboots ? automata_[p].at(*reboots) : Automaton::kGone);
      set16(places_.process[p] + 2, 0);
      settling(p) = 0;
      take_eager_steps(p);
    }
    emit([&] { return fmt::format("host {} crashes", h); });
  }
}

// ---- search ----

void Search::begin() {
  for (uint32_t line = 0; line < model_.lines.size(); ++line)
    std::memcpy(memory(line), model_.lines[line].first.data(), words_of(line));
  for (uint32_t i = 0; i < model_.words.size(); ++i) word(i) = model_.words[i].first;
  crashes_left() = static_cast<uint8_t>(model_.crashes);
  kills_left() = static_cast<uint8_t>(model_.kills);
  for (uint32_t p = 0; p < model_.processes.size(); ++p) {
    set16(places_.process[p], automata_[p].at(model_.processes[p].begins));
    take_eager_steps(p);
  }
  find_or_add(0);
}

/// The current state follows the one that is expanded; afterwards that one is current again.
template <class F>
void Search::emit(const F& describe) {
  ++steps_;
  moved_ = true;
  if (wanted_) {
    if (found_step_.empty() && is_state(*wanted_)) found_step_ = describe();
  } else if (failure_.empty()) {
    find_or_add(static_cast<uint32_t>(from_));
  } else if (failed_step_.empty()) {
    failed_step_ = describe();
    failed_from_ = static_cast<uint32_t>(from_);
  }
  restore();
}

void Search::expand(uint32_t from) {
  from_ = from;
  moved_ = false;
  restore();
  for (uint32_t p = 0; p < model_.processes.size(); ++p) {
    step_process(p);
    step_flushes(p);
  }
  for (uint32_t h = 0; h < model_.hosts; ++h) {
    for (uint32_t line = 0; line < model_.lines.size(); ++line) step_cache(h, line);
  }
  step_faults();
}

/// No process can continue: all must be done, and the model's final condition must hold.
void Search::check_rest() {
  for (uint32_t p = 0; p < model_.processes.size(); ++p) {
    if (node(p) == Automaton::kGone || (!moved_ && model_.may_wait)) continue;
    if (!moved_)
      failure_ = "no process can continue: " + model_.processes[p].name + " waits for ever";
    return;
  }
  for (uint32_t h = 0; h < model_.hosts; ++h) {
    if (model_.weak && in_flight(h) != 0) return;
    for (uint32_t line = 0; line < model_.lines.size(); ++line) {
      if (flag(h, line) == kDirty) return;
    }
  }
  if (!model_.at_rest) return;
  failure_ = model_.at_rest({[&](uint32_t line, uint32_t i) { return memory(line)[i]; },
                             [&](uint32_t i) { return word(i); }});
}

uint32_t Search::find_or_add(uint32_t parent) {
  if ((parents_.size() + 1) * 2 > table_.size()) grow();
  const uint64_t mask = table_.size() - 1;
  for (uint64_t at = hash64(state_.data(), places_.size) & mask;; at = (at + 1) & mask) {
    const uint32_t known = table_[at];
    if (known == 0) {
      if (parents_.size() % kChunkStates == 0)
        chunks_.push_back(std::make_unique<uint8_t[]>(kChunkStates * places_.size));
      parents_.push_back(parent);
      std::memcpy(bytes_of(parents_.size() - 1), state_.data(), places_.size);
      return table_[at] = static_cast<uint32_t>(parents_.size());
    }
    if (is_state(known - 1)) return known;
  }
}

void Search::grow() {
  table_.assign(table_.size() * 2, 0);
  const uint64_t mask = table_.size() - 1;
  for (uint32_t i = 0; i < parents_.size(); ++i) {
    uint64_t at = hash64(bytes_of(i), places_.size) & mask;
    while (table_[at] != 0) at = (at + 1) & mask;
    table_[at] = i + 1;
  }
}

std::vector<std::string> Search::trace(uint32_t last, const std::string& last_step) {
  std::vector<std::string> steps{last_step};
  for (uint32_t i = last; i != 0; i = parents_[i]) {
    wanted_ = i;
    found_step_.clear();
    failure_.clear();
    expand(parents_[i]);
    steps.push_back(found_step_);
  }
  std::reverse(steps.begin(), steps.end());
  return steps;
}

std::string Search::describe(uint32_t p, const Op& op, int result) const {
  const std::string& name = model_.processes[p].name;
  const auto at = [&](const auto& things) { return things[op.at].name; };
  switch (op.kind) {
    case Kind::LOAD:
      return fmt::format("{} loads {}[{}]: {}", name, at(model_.lines), op.word, result);
    case Kind::STORE:
      return fmt::format("{} stores {}[{}] = {}", name, at(model_.lines), op.word, op.value);
    case Kind::SWAP_LINE:
      return fmt::format("{} swaps {}[{}] from {} to {}: {}", name, at(model_.lines), op.word,
                         op.expected, op.value, result);
    case Kind::FENCE:
      return name + " fences";
    case Kind::SETTLE:
      return name + " begins to settle";
    case Kind::CHOOSE:
      return fmt::format("{} chooses {}", name, result);
    case Kind::ALIVE:
      return fmt::format("{} sees that {} {}", name, at(model_.processes),
                         result != 0 ? "lives" : "is gone");
    case Kind::GET:
      return fmt::format("{} gets {}: {}", name, at(model_.words), result);
    case Kind::SET:
      return fmt::format("{} sets {} = {}", name, at(model_.words), op.value);
    case Kind::ADD:
      return fmt::format("{} adds {} to {}: {} before", name, static_cast<int8_t>(op.value),
                         at(model_.words), result);
    default:
      return fmt::format("{} swaps {} from {} to {}: {}", name, at(model_.words), op.expected,
                         op.value, result);
  }
}

Verdict Search::run() {
  const auto began = std::chrono::steady_clock::now();
  Verdict verdict;
  begin();
  for (uint32_t i = 0; i < parents_.size() && failure_.empty(); ++i) {
    if (parents_.size() > model_.states_max) {
      verdict.complete = false;
      break;
    }
    expand(i);
    if (failure_.empty()) {
      check_rest();
      failed_from_ = i;
    }
  }
  verdict.failure = failure_;
  verdict.states = parents_.size();
  verdict.steps = steps_;
  if (!failure_.empty())
    verdict.trace = trace(failed_from_, failed_step_.empty() ? "at rest" : failed_step_);
  verdict.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
  return verdict;
}

}  // namespace

Verdict explore(const Model& model) { return Search(model).run(); }

}  // namespace bowhead::models
