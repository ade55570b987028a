// SPDX-License-Identifier: Apache-2.0
// Explorer: visits every state that a small model of a protocol can reach, on hosts without
// coherent caches, and reports whether one of them breaks a rule.
//
// A model is a set of lines of memory and of processes, each a coroutine that loads, stores,
// flushes and fences. Everything that the program does not fix happens at any time, in any order: a
// host's cache fetches a line early, writes a dirty one back (also between two stores to it) or
// drops a clean one; a flush takes effect at any time until the process's next fence; processes run
// in any order, with pauses of any length; hosts crash, processes are killed. In weak memory a line
// that was written back is in flight: other lines overtake it, but it never overtakes itself, and a
// fence does not wait for it. Settling does: every line in flight at its begin has arrived at its
// end.
//
// Invariants
//   E1 A program's state is what its awaited steps returned so far (its log) and nothing else: it
//      is run again from the beginning with that log to find the next step. So programs keep all
//      they know in local variables and store nothing outside. A stage that ends in another one
//      forgets its log: two pasts that led to the same arguments are one state.
//   E2 The search is breadth first, so a trace that it prints is as short as any.
#pragma once

#include <array>
#include <concepts>
#include <coroutine>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace bowhead::models {

inline constexpr uint32_t kLinesMax = 16, kWordsMax = 4, kHostsMax = 4, kProcessesMax = 8;
inline constexpr uint32_t kAnyone = UINT32_MAX;

/// The operations that a process awaits. Those in the first row happen together with the step
/// before.
enum class Kind : uint8_t {
  // clang-format off
  FLUSH, NOTE, SEE, PEEK, FAIL,
  DONE, LOAD, STORE, SWAP_LINE, FENCE, SETTLE, CHOOSE, GET, SET, ADD, SWAP, UNTIL, ALIVE, ACT,
  // clang-format on
};

struct Op {
  Kind kind = Kind::DONE;
  uint8_t at = 0;  ///< line, word or process
  uint8_t word = 0;
  uint8_t value = 0;
  uint8_t expected = 0;
  uint16_t lines = 0;
  const char* text = nullptr;
};

using Args = std::array<uint8_t, 6>;

/// The end of a stage: another stage, or the end of the process.
struct Next {
  int stage = -1;
  Args args{};
};
inline constexpr Next kDone{};

struct Program {
  struct promise_type {
    Next next;
    Program get_return_object() {
      return Program{std::coroutine_handle<promise_type>::from_promise(*this)};
    }
    std::suspend_never initial_suspend() noexcept { return {}; }
    std::suspend_always final_suspend() noexcept { return {}; }
    void return_value(Next value) { next = value; }
    void unhandled_exception() { throw; }
  };
  explicit Program(std::coroutine_handle<promise_type> h) : handle(h) {}
  Program(const Program&) = delete;
  Program& operator=(const Program&) = delete;
  ~Program() { handle.destroy(); }
  std::coroutine_handle<promise_type> handle;
};

/// The operations of a program. Lines are memory; words are coherent: shared by processes of one
/// host, or no part of the real memory at all (to record conditions).
class Process {
 public:
  struct Step {
    Process& process;
    Op op;
    bool await_ready() const noexcept { return process.replayed_ < process.log_.size(); }
    void await_suspend(std::coroutine_handle<>) const noexcept { process.pending_ = op; }
    int await_resume() const noexcept {
      return static_cast<uint8_t>(process.log_[process.replayed_++]);
    }
  };

  Process(const std::string& log, uint8_t self) : self_(self), log_(log) {}
  uint8_t self() const { return self_; }
  const Op& pending() const { return pending_; }

  Step load(uint32_t line, uint32_t word = 0) { return step(Kind::LOAD, line, word); }
  Step store(uint32_t line, int value) { return step(Kind::STORE, line, 0, value); }
  Step store(uint32_t line, uint32_t word, int value) {
    return step(Kind::STORE, line, word, value);
  }
  /// Compare-and-swap: returns 1 if the word was `expected`. Dirties the line in any case.
  Step swap_line(uint32_t line, uint32_t word, int expected, int value) {
    Step made = step(Kind::SWAP_LINE, line, word, value);
    made.op.expected = static_cast<uint8_t>(expected);
    return made;
  }
  /// Writes lines back and drops them, at any time until the next fence.
  Step flush(std::convertible_to<uint32_t> auto... lines) { return with(Kind::FLUSH, lines...); }
  Step fence() { return with(Kind::FENCE); }
  /// Flush and fence in one: a writer publishes with it, a reader acquires with it.
  Step publish(std::convertible_to<uint32_t> auto... lines) { return with(Kind::FENCE, lines...); }
  Step acquire(std::convertible_to<uint32_t> auto... lines) { return with(Kind::FENCE, lines...); }
  /// Fence, then time enough for lines in flight to arrive.
  Step settle() { return with(Kind::SETTLE); }
  /// Any of 0 .. count - 1.
  Step choose(uint32_t count) { return step(Kind::CHOOSE, count, 0); }

  Step get(uint32_t word) { return step(Kind::GET, word, 0); }
  Step set(uint32_t word, int value) { return step(Kind::SET, word, 0, value); }
  /// Returns the previous value.
  Step add(uint32_t word, int value) { return step(Kind::ADD, word, 0, value); }
  /// Compare-and-swap: returns 1 if the word was `expected`.
  Step swap(uint32_t word, int expected, int value) {
    Step made = step(Kind::SWAP, word, 0, value);
    made.op.expected = static_cast<uint8_t>(expected);
    return made;
  }
  /// Waits until the word is `expected`, and makes it `value`.
  Step until(uint32_t word, int expected, int value) {
    Step made = step(Kind::UNTIL, word, 0, value);
    made.op.expected = static_cast<uint8_t>(expected);
    return made;
  }
  /// One possible alternative of an action.
  Step act(uint32_t action) { return step(Kind::ACT, action, 0); }
  Step alive(uint32_t process) { return step(Kind::ALIVE, process, 0); }

  // These take no time: they happen with the step before.
  Step note(uint32_t word, int value) { return step(Kind::NOTE, word, 0, value); }
  Step see(uint32_t word) { return step(Kind::SEE, word, 0); }
  /// The content of the memory, whatever caches hold.
  Step peek(uint32_t line, uint32_t word = 0) { return step(Kind::PEEK, line, word); }
  Step fail(const char* text) {
    Step made = step(Kind::FAIL, 0, 0);
    made.op.text = text;
    return made;
  }

 private:
  Step step(Kind kind, uint32_t at, uint32_t word, int value = 0) {
    return Step{
        *this,
        {kind, static_cast<uint8_t>(at), static_cast<uint8_t>(word), static_cast<uint8_t>(value)}};
  }
  Step with(Kind kind, std::convertible_to<uint32_t> auto... lines) {
    Step made = step(kind, 0, 0);
    made.op.lines = static_cast<uint16_t>((0u | ... | (1u << lines)));
    return made;
  }

  uint8_t self_;
  const std::string& log_;
  size_t replayed_ = 0;
  Op pending_;
};

inline const std::string kImpossible = "-";

using Stage = std::function<Program(Process&, Args)>;

/// The content of the memory at the end of a run, for a model's final check.
struct Rest {
  std::function<int(uint32_t line, uint32_t word)> line;
  std::function<int(uint32_t word)> word;
};

struct Model {
  struct Line {
    std::string name;
    uint32_t writer = kAnyone;  ///< host; no other host may store to it
    uint32_t readers = 0;       ///< hosts whose caches may fetch it early, a bit each
    uint32_t words = 1;
    std::array<uint8_t, kWordsMax> first{};
  };
  struct Word {
    std::string name;
    uint8_t first = 0;
  };
  /// An atomic step, whatever words it reads and changes; for models that are about the order of
  /// decisions, not about memory.
  struct Action {
    int alternatives = 1;
    /// Returns the broken rule, empty if the run may continue, or kImpossible.
    std::function<std::string(std::span<uint8_t> words, int alternative)> act;
    std::function<std::string(int alternative)> name;
  };
  struct Runs {
    std::string name;
    uint32_t host = 0;
    Next begins;
    std::optional<Next> reboots;  ///< the stage that it begins with after a crash of its host
  };

  uint32_t hosts = 2;
  bool weak = false;
  uint32_t crashes = 0, crashable = 0;  ///< maximum in a run; hosts, a bit each
  uint32_t kills = 0, killable = 0;     ///< maximum in a run; processes, a bit each
  uint64_t states_max = 20'000'000;
  std::vector<Line> lines;
  std::vector<Word> words;
  std::vector<Stage> stages;
  std::vector<Action> actions;
  std::vector<Runs> processes;
  bool may_wait =
      false;  ///< states in which all processes that are not done wait for ever are at rest, too
  /// When all processes are done and all lines are in the memory: the fault, or empty.
  std::function<std::string(const Rest&)> at_rest;

  uint32_t line(Line line) { return lines.push_back(std::move(line)), last(lines); }
  uint32_t word(std::string name, uint8_t first = 0) {
    return words.push_back({std::move(name), first}), last(words);
  }
  int stage(Stage stage) {
    return stages.push_back(std::move(stage)), static_cast<int>(last(stages));
  }
  uint32_t action(Action action) { return actions.push_back(std::move(action)), last(actions); }
  uint32_t process(std::string name, uint32_t host, Stage program) {
    return processes.push_back({std::move(name), host, {stage(std::move(program)), {}}, {}}),
           last(processes);
  }

 private:
  static uint32_t last(const auto& things) { return static_cast<uint32_t>(things.size()) - 1; }
};

struct Verdict {
  bool complete = true;  ///< all states were visited, or one that breaks a rule was found
  std::string failure;   ///< empty: every state keeps the rules
  std::vector<std::string> trace;
  uint64_t states = 0, steps = 0;
  double seconds = 0;
};

Verdict explore(const Model& model);

}  // namespace bowhead::models
