// SPDX-License-Identifier: Apache-2.0
// World: machines with a cache each in front of one memory, processes on them, their threads as
// fibers, one clock, and the scheduler that draws the next event from the seed.
//
// Every access of a thread is a step. Between two steps an event may happen: another thread runs,
// this one is paused, a cache acts (memory.h), a flush takes effect, a fault of the plan is due.
// Time passes with steps, and jumps when all threads sleep. The run is a function of the plan: the
// same plan gives the same steps, which hash() proves.
#pragma once

#include <array>
#include <bit>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "tests/sim/dice.h"
#include "tests/sim/memory.h"
#include "tests/sim/plan.h"
#include "tests/sim/seeded_bugs.h"
#include "tests/support/fiber.h"

namespace bowhead::sim {

enum class Op : uint8_t {
  LOAD,
  LOAD_LINE,
  STORE,
  CAS,
  CAS_FAILED,
  ADD,
  PAYLOAD_IN,
  PAYLOAD_OUT,
  FLUSH,       // issued
  FLUSHED,     // took effect
  FENCE,       // all of the thread's took effect
  FILL,        // by itself: a line came early
  WRITE_BACK,  // by itself
  DROP,        // by itself
  ARRIVE,      // a line in flight reached the memory
  STALL,
  SLEEP,
  KILL,
  CRASH,
  PAUSE,
  STOP,
  BEGIN_LIFE,
  BEGIN,  // of an operation (note())
  END     // of an operation
};

struct Process;
class Model;

struct Thread {
  struct Store {
    uint64_t offset, value;
  };
  static constexpr uint32_t kStoresMax = 8;

  Fiber fiber;
  uint32_t index = 0;
  Process* process = nullptr;  ///< none: the director of the run
  bool alive = false;
  uint64_t wake_ns = 0;
  uint32_t store_count = 0;
  std::array<Store, kStoresMax>
      stores{};  ///< executed by the program, not yet in the cache; in order
  struct Flush {
    uint64_t line;
    bool drops;        ///< the line leaves the cache: always if the program invalidates it
    bool invalidates;  ///< as the program meant it
  };
  std::vector<Flush> flushing;  ///< flushes that have not taken effect
  Operation operation = Operation::NONE;
  uint64_t operation_steps = 0;  ///< since the operation began
  uint64_t stalled_ns = 0;       ///< the same
  bool locked = false;           ///< it took a lock in this operation
  struct Asked {
    uint32_t host;
    uint64_t key_hash;  ///< its first word
  };
  std::vector<Asked> asked;           ///< for removals, in this operation
  bool knew_it_is_over = false;       ///< its host, about this life, when it last took a lock
  bool found_present = false;         ///< in this operation: a put of a key that was stored already
  std::map<uint64_t, uint64_t> runs;  ///< the run words that it loaded, where they were READY
  bool took_word = false;             ///< it has reserved a block since it loaded one
  uint64_t logged_line = 0;           ///< of the word of a log that it wrote last
  bool read_log = false;              ///< of another host, since it looked at the clock
};

struct Machine {
  Cache cache;
  uint32_t index = 0;
  uint32_t host = 0;  ///< the slot that its processes take
  uint64_t boot = 1;
  uint64_t machine_id = 0, hardware_id = 0;
  uint64_t boots_before = 0;  ///< of other machines with the same machine id
  uint64_t paused_until_ns = 0;
  int64_t clock_offset_ns = 0;
  bool innocent = true;  ///< no fault of the plan hit it: the others must not declare it dead
  std::array<Process*, 8> process_locks{};  ///< of the own host's slots
  Process* host_lock = nullptr;
};

/// A process that has the pool open; actors.h says what it does.
struct Process {
  virtual ~Process() = default;
  /// Begins a life: starts its threads. Called by the scheduler.
  virtual void begin() = 0;
  /// Its host's life, as far as it knows; 0: none.
  virtual uint32_t incarnation() const = 0;
  /// It will never come back.
  bool gone() const { return !alive && begin_ns == kForever; }

  uint32_t index = 0;
  Machine* machine = nullptr;
  bool alive = false;
  bool joined = false;           ///< has the pool open in this life
  bool keeps_heartbeat = false;  ///< for its host; it may still be joining
  uint64_t begin_ns = 0;         ///< not alive: begin of its next life; kForever: never
  uint64_t stopped_until_ns = 0;
  uint64_t leaves_for_ns = 0;  ///< it is to leave the pool for this time
  uint64_t steps = 0;          ///< over all lives
  uint32_t lives = 0;
  std::vector<Thread*> threads;
  std::vector<uint8_t> mapped_writable;  ///< by line, of tables and payload; empty: all
  std::map<uint64_t, std::vector<Range>> mapped_sets;  ///< further ones, by their ids
  /// What lies there cannot be seen by this process, and it loads zeros.
  bool is_hole(const Map& map, uint64_t offset) const {
    if (!map.in_further_set(offset)) return false;
    for (const auto& [id, ranges] : mapped_sets) {
      for (const Range& range : ranges) {
        if (offset - range.offset < range.bytes) return false;
      }
    }
    return true;
  }
};

struct Failure {
  std::string kind;  ///< one word: shrinking keeps it
  std::string text;
};

class World {
 public:
  World();
  ~World();
  World(const World&) = delete;
  World& operator=(const World&) = delete;

  /// Resets everything for a new run. The caller adds the processes.
  void reset(const Plan& plan, const SeededBug* bug, bool print_steps);
  void add_process(Process& process, uint32_t machine);
  /// Runs until `director` has ended, or a failure.
  void run(Thread& director);

  /// Starts a thread that runs entry(argument).
  Thread& start_thread(Process* process, Fiber::Entry entry, void* argument);

  // ---- from inside threads ----
  Thread& current() { return *current_; }
  bool in_thread() const { return current_ != nullptr; }
  /// Precedes every access.
  void step() {
    now_ns_ += step_ns_;
    ++steps_;
    if (--until_event_ == 0) event();
  }
  /// The next `count` steps at once, if no event comes between them.
  bool steps_without_event(uint64_t count) {
    if (until_event_ <= count) return false;
    until_event_ -= count;
    now_ns_ += count * step_ns_;
    steps_ += count;
    return true;
  }
  void record(Op op, uint64_t offset, uint64_t value) {
    mix(op, offset, value);
    note(op, offset, value);
  }
  /// For a line: the record holds its first word.
  void record(Op op, uint64_t offset, const Line& line) {
    uint64_t all = 0;
    for (size_t i = 0; i < line.size(); ++i) all ^= std::rotl(line[i], static_cast<int>(7 * i));
    mix(op, offset, all);
    note(op, offset, line[0]);
  }
  void mix(Op op, uint64_t offset, uint64_t value) {
    hash_ = (hash_ ^ offset ^ value * 0x9E3779B97F4A7C15u ^
             uint64_t{static_cast<uint8_t>(op)} << 56 ^ uint64_t{current_index_} << 32) *
            0xD6E8FEB86659FD93u;
    hash_ ^= hash_ >> 32;
  }
  void note(Op op, uint64_t offset, uint64_t value) {
    ring_[ring_next_++ % ring_.size()] = {now_ns_, offset, value, current_index_, op};
    if (print_steps_) [[unlikely]]
      print_step(ring_[(ring_next_ - 1) % ring_.size()]);
  }
  void sleep_until(uint64_t time_ns);
  void sleep(uint64_t ns) { sleep_until(now_ns_ + ns); }
  /// The thread's last act.
  [[noreturn]] void end_thread();
  /// The process's last act: like a kill, but voluntary.
  [[noreturn]] void end_process(uint64_t again_after_ns);
  [[noreturn]] void fail(const std::string& kind, const std::string& text);
  void begin_operation(Operation operation, uint64_t key = 0, uint64_t number = 0);
  void end_operation(uint64_t result);

  // ---- the parts of accesses (access.h) ----
  uint64_t load(uint64_t offset) {
    for (uint32_t i = current_->store_count; i > 0; --i) {
      if (current_->stores[i - 1].offset == offset) return current_->stores[i - 1].value;
    }
    touch(offset);
    return machine().cache.load(offset);
  }
  /// Only if no store of the thread is still in its store buffer.
  const Line& line(uint64_t offset) {
    touch(offset);
    return machine().cache.line(offset / BH_LINE_BYTES);
  }
  void store(uint64_t offset, uint64_t value) {
    if (plan_.store_buffer == 0) return store_past_buffer(offset, value);
    if (current_->store_count == plan_.store_buffer) commit_store(*current_);
    current_->stores[current_->store_count++] = {offset, value};
  }
  /// Directly into the cache, like locked instructions and non-temporal stores.
  void store_past_buffer(uint64_t offset, uint64_t value) {
    touch(offset);
    machine().cache.store(offset, value);
  }
  void start_flush(uint64_t offset, uint64_t bytes, bool invalidates);
  void fence();
  void drain_stores(Thread& thread);
  /// Whether the own host may write there at this moment (rule R1).
  bool writable(uint64_t offset);
  Place check_writable(uint64_t offset) {
    if (!writable(offset)) [[unlikely]]
      fail_writer(offset);
    return map_->at(offset);
  }

  Machine& machine() { return *current_->process->machine; }
  /// The machine that last wrote the host's slot; none: no machine runs as that host.
  Machine* machine_of(uint32_t host) { return machine_of_[host]; }
  Machine& machine_at(uint32_t index) { return *machines_[index]; }
  void note_slot_written() { machine_of_[machine().host] = &machine(); }
  /// A host's own word, as the host sees it.
  uint64_t peek(uint32_t host, uint64_t offset) const {
    const Machine* machine = machine_of_[host];
    return machine != nullptr ? machine->cache.peek_own(offset)
                              : memory_.read(offset / BH_LINE_BYTES)[offset / 8 % 8];
  }
  /// Two machines run or ran as one host: from here on only copies are right, and the run ends.
  bool cloned() const { return cloned_; }
  /// The current process makes the heartbeat of its host.
  void note_heartbeat();
  Memory& memory() { return memory_; }
  const Map& map() const { return *map_; }
  const Plan& plan() const { return plan_; }
  bool has_bug() const { return bug_ != nullptr; }
  bool bug_does_harm() const { return has_bug() && bug_->harmless_because == nullptr; }
  /// The seeded bug, if it is of this kind.
  const SeededBug* bug(Lie lie) const {
    return bug_ != nullptr && (bug_->lie == lie || bug_->also == lie) &&
                   (bug_->only_in == Operation::NONE || bug_->only_in == current_->operation)
               ? bug_
               : nullptr;
  }
  /// The seeded bug acted.
  void note_bug() { ++bug_acts_; }
  uint64_t bug_acts() const { return bug_acts_; }
  Dice& random() { return random_; }
  uint64_t now_ns() const { return now_ns_; }
  /// The time at which no machine is paused and no process stopped any more.
  uint64_t all_go_on_ns() const;
  uint64_t host_now_ns() { return now_ns_ + machine().clock_offset_ns; }
  std::vector<Process*>& processes() { return processes_; }
  bool faults_left() const { return !faults_.empty(); }
  void cancel_faults() {
    faults_.clear();
    plan_.slow_duties = false;
  }
  /// Faults that count from such a store of this process begin to count.
  void note_store(Since since);

  // ---- after the run ----
  const Failure* failure() const { return failed_ ? &failure_ : nullptr; }
  uint64_t hash() const { return hash_; }
  uint64_t steps() const { return steps_; }
  std::string last_steps(size_t count) const;

 private:
  struct StepRecord {
    uint64_t now_ns, offset, value;
    uint32_t thread;
    Op op;
  };

  bool mapped(uint64_t offset) const;
  [[noreturn]] void fail_writer(uint64_t offset);
  void touch(uint64_t offset) { recent_[recent_next_++ % recent_.size()] = offset / BH_LINE_BYTES; }
  void account();
  void event();
  void cache_event();
  void buffer_event();
  void apply_due_faults();
  void hit(const Fault& fault, Process& process);
  void note_silence(const Process& process);
  void kill(Process& process, bool crash);
  bool fence_left_out();
  void take_effect(Thread& thread, size_t index);
  void commit_store(Thread& thread);
  void yield();
  [[noreturn]] void never_again();
  Thread* pick();
  uint64_t ready_ns(const Thread& thread) const;
  void begin_lives();
  void set_now(uint64_t now_ns);
  std::string step_text(const StepRecord& step) const;
  void print_step(const StepRecord& step) const;

  Plan plan_;
  const SeededBug* bug_ = nullptr;
  uint64_t bug_acts_ = 0;
  std::vector<Fault> faults_;
  std::unique_ptr<Map> map_;
  Dice random_{0};
  Memory memory_;
  std::vector<std::unique_ptr<Machine>> machines_;
  std::vector<Machine*> machine_of_;  ///< by host
  bool cloned_ = false;
  std::vector<std::unique_ptr<Thread>> threads_;
  uint32_t thread_count_ = 0;  ///< of this run; the others are left over from runs before
  std::vector<Process*> processes_;
  Thread* current_ = nullptr;
  uint32_t current_index_ = 0;
  std::vector<Thread*> ready_;  ///< pick() uses it
  bool print_steps_ = false;
  uint64_t now_ns_ = 0;
  uint64_t step_ns_ = 0;
  uint64_t steps_ = 0, steps_at_event_ = 0;
  uint64_t until_event_ = 0;
  uint64_t hash_ = 0;
  std::array<uint64_t, 64> recent_{};  ///< lines that were accessed last: events choose among them
  uint64_t recent_next_ = 0;
  std::array<StepRecord, 512> ring_{};
  uint64_t ring_next_ = 0;
  bool failed_ = false;
  Failure failure_;
};

/// The world whose thread runs now, if any: failed assertions go to it.
World* running_world();

}  // namespace bowhead::sim
