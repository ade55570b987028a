// SPDX-License-Identifier: Apache-2.0
#include "tests/sim/world.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>

#include "base/assert.h"

// Turns LeakSanitizer off: its library calls this. A simulated process that dies frees nothing,
// since its stack is not unwound.
extern "C" __attribute__((visibility("default"))) int __lsan_is_turned_off();  // NOLINT
extern "C" int __lsan_is_turned_off() { return 1; }                            // NOLINT

namespace bowhead {

namespace sim {
namespace {

constexpr uint64_t kStartNs = 1'000'000'000;
constexpr uint64_t kOperationStepsMax = 2'000'000;
constexpr uint64_t kStepsMax = 40'000'000;  ///< of up to four hosts

World* the_running_world = nullptr;

}  // namespace

World* running_world() { return the_running_world; }

World::World() = default;
World::~World() = default;

void World::reset(const Plan& plan, const SeededBug* bug, bool print_steps) {
  plan_ = plan;
  bug_ = bug;
  bug_acts_ = 0;
  faults_ = plan.faults;
  map_ = std::make_unique<Map>(small_geometry(plan.shape));
  random_ = Dice(plan.seed);
  memory_.reset(map_->lines());
  while (machines_.size() < plan.machines()) machines_.push_back(std::make_unique<Machine>());
  machine_of_.assign(plan.shape.hosts, nullptr);
  cloned_ = false;
  for (uint32_t i = 0; i < plan.machines(); ++i) {
    Machine& machine = *machines_[i];
    const uint32_t host = plan.slot_of(i);
    const bool other = i == plan.hosts_used() && plan.twin == Twin::SAME_ID;
    machine.index = i;
    machine.machine_id = 1 + host;
    machine.hardware_id = 1 + host + (other ? 1000 : 0);
    machine.boots_before = other ? 500 : 0;
    if (machine_of_[host] == nullptr) machine_of_[host] = &machine;
    machine.cache.reset(memory_, random_, map_->lines(), plan.weak ? kDrainNs : 0);
    machine.host = host;
    machine.boot = 1;
    machine.paused_until_ns = 0;
    machine.clock_offset_ns = static_cast<int64_t>(random_.below(1'000'000'000));
    machine.innocent = true;
    machine.process_locks = {};
    machine.host_lock = nullptr;
  }
  for (const auto& thread : threads_) thread->alive = false;
  thread_count_ = 0;
  processes_.clear();
  current_ = nullptr;
  print_steps_ = print_steps;
  now_ns_ = kStartNs;
  step_ns_ = plan.step_ns;
  steps_ = steps_at_event_ = 0;
  until_event_ = 1;
  hash_ = plan.seed;
  recent_ = {};
  recent_next_ = 0;
  ring_next_ = 0;
  failed_ = false;
}

void World::add_process(Process& process, uint32_t machine) {
  process.index = static_cast<uint32_t>(processes_.size());
  process.machine = machines_[machine].get();
  process.begin_ns = now_ns_;
  // The second machine of a host comes when the first one runs.
  if (machine == plan_.hosts_used()) process.begin_ns += (20 + random_.below(40)) * kMs;
  processes_.push_back(&process);
}

Thread& World::start_thread(Process* process, Fiber::Entry entry, void* argument) {
  // A thread sees the stores of the thread that starts it.
  if (process != nullptr && current_ != nullptr && current_->process == process)
    drain_stores(*current_);
  uint32_t index = 0;
  while (index < thread_count_ && threads_[index]->alive) ++index;
  if (index == threads_.size()) threads_.push_back(std::make_unique<Thread>());
  thread_count_ = std::max(thread_count_, index + 1);
  Thread& thread = *threads_[index];
  thread.index = index;
  thread.process = process;
  thread.alive = true;
  thread.wake_ns = now_ns_;
  thread.store_count = 0;
  thread.flushing.clear();
  thread.operation_steps = 0;
  thread.stalled_ns = 0;
  thread.locked = thread.knew_it_is_over = false;
  thread.operation = Operation::NONE;
  thread.fiber.start(entry, argument);
  if (process != nullptr) process->threads.push_back(&thread);
  return thread;
}

// ---- the scheduler ----

void World::run(Thread& director) {
  the_running_world = this;
  while (!failed_ && director.alive) {
    Thread* thread = pick();
    if (thread == nullptr) {
      failed_ = true;
      failure_ = {"deadlock", "no thread will ever go on"};
      break;
    }
    current_ = thread;
    current_index_ = thread->index | (thread->process == nullptr ? 0 : thread->process->index + 1)
                                         << 16;
    thread->fiber.resume();
    current_ = nullptr;
  }
  the_running_world = nullptr;
}

uint64_t World::ready_ns(const Thread& thread) const {
  if (thread.process == nullptr) return thread.wake_ns;
  return std::max(
      {thread.wake_ns, thread.process->stopped_until_ns, thread.process->machine->paused_until_ns});
}

void World::begin_lives() {
  for (Process* process : processes_) {
    if (process->alive || process->begin_ns > now_ns_) continue;
    process->alive = true;
    process->begin_ns = kForever;
    process->lives += 1;
    process->threads.clear();
    record(Op::BEGIN_LIFE, 0, process->index);
    process->begin();
  }
}

/// One of the runnable threads; time jumps if there is none.
Thread* World::pick() {
  for (;;) {
    begin_lives();
    ready_.clear();
    uint64_t next_ns = UINT64_MAX;
    for (uint32_t i = 0; i < thread_count_; ++i) {
      Thread* thread = threads_[i].get();
      if (!thread->alive) continue;
      const uint64_t at_ns = ready_ns(*thread);
      if (at_ns > now_ns_) {
        next_ns = std::min(next_ns, at_ns);
      } else {
        ready_.push_back(thread);
      }
    }
    if (!ready_.empty()) return ready_[ready_.size() == 1 ? 0 : random_.below(ready_.size())];
    for (const Process* process : processes_) {
      if (!process->alive) next_ns = std::min(next_ns, process->begin_ns);
    }
    if (next_ns == UINT64_MAX) return nullptr;
    set_now(next_ns);
  }
}

void World::set_now(uint64_t now_ns) {
  now_ns_ = now_ns;
  for (uint32_t i = 0; i < plan_.machines(); ++i) machines_[i]->cache.drain_due(now_ns);
}

void World::yield() { current_->fiber.suspend(); }

void World::never_again() {
  for (;;) current_->fiber.suspend();
}

void World::sleep_until(uint64_t time_ns) {
  account();
  drain_stores(*current_);
  record(Op::SLEEP, 0, time_ns - now_ns_);
  current_->wake_ns = time_ns;
  yield();
}

void World::end_thread() {
  account();
  drain_stores(*current_);
  current_->alive = false;
  never_again();
}

void World::end_process(uint64_t again_after_ns) {
  Process& process = *current_->process;
  process.begin_ns = again_after_ns == kForever ? kForever : now_ns_ + again_after_ns;
  kill(process, /*crash=*/false);
  never_again();
}

void World::fail(const std::string& kind, const std::string& text) {
  if (!failed_) failure_ = {kind, text};
  failed_ = true;
  never_again();
}

void World::begin_operation(Operation operation, uint64_t key, uint64_t number) {
  account();
  current_->operation = operation;
  current_->operation_steps = 0;
  current_->stalled_ns = 0;
  current_->locked = false;
  current_->asked.clear();
  current_->found_present = false;
  record(Op::BEGIN, 0, uint64_t{static_cast<uint8_t>(operation)} << 40 | key << 32 | number);
}
void World::end_operation(uint64_t result) {
  record(Op::END, 0, uint64_t{static_cast<uint8_t>(current_->operation)} << 40 | result);
  current_->operation = Operation::NONE;
}

uint64_t World::all_go_on_ns() const {
  uint64_t at_ns = 0;
  for (const Process* process : processes_)
    at_ns = std::max({at_ns, process->stopped_until_ns, process->machine->paused_until_ns});
  return at_ns;
}

// ---- events ----

void World::account() {
  const uint64_t steps = steps_ - steps_at_event_;
  steps_at_event_ = steps_;
  current_->operation_steps += steps;
  if (current_->process != nullptr) current_->process->steps += steps;
}

void World::event() {
  account();
  until_event_ = 1 + random_.below(2 * plan_.steps_per_event);
  if (current_->operation_steps > kOperationStepsMax && !cloned_)
    fail("progress", fmt::format("an operation took {} steps", current_->operation_steps));
  if (steps_ > kStepsMax * std::max(1u, plan_.shape.hosts / 4))
    fail("endless", fmt::format("the run took {} steps", steps_));
  if (!faults_.empty()) apply_due_faults();
  if (plan_.weak) set_now(now_ns_);
  const uint64_t shares = plan_.cache_share + plan_.switch_share + plan_.stall_share;
  const uint64_t roll = random_.below(shares + 2);
  if (roll < plan_.cache_share) return cache_event();
  if (roll < plan_.cache_share + plan_.switch_share) return yield();
  if (roll >= shares) return buffer_event();
  // Short pauses are as likely as long ones, by magnitude. The sum for one operation has a limit: a
  // short one if the host's heartbeat depends on it, since a host that no fault hits must not be
  // declared dead.
  const Operation operation = current_->operation;
  const bool host_waits = operation == Operation::HEARTBEAT || operation == Operation::ATTACH ||
                          operation == Operation::LEAVE || operation == Operation::DETACH;
  // A joining host is missed from the decision on that makes its life the next; its heartbeat
  // begins a moment later.
  const bool slow = plan_.slow_duties && current_->process != nullptr &&
                    (operation == Operation::WORK ||
                     (operation == Operation::ATTACH && current_->process->keeps_heartbeat));
  const uint64_t most_ns = slow         ? 3 * kTimes.dead_ms * kMs
                           : host_waits ? plan_.stall_ns
                                        : 4 * plan_.stall_ns;
  uint64_t ns = 1 + random_.below(most_ns >> random_.below(plan_.stall_magnitudes));
  ns = std::min(ns, most_ns - std::min(most_ns, current_->stalled_ns));
  if (ns == 0) return;
  current_->stalled_ns += ns;
  record(Op::STALL, 0, ns);
  current_->wake_ns = now_ns_ + ns;
  yield();
}

/// A machine's cache acts on a line that was accessed a moment ago.
void World::cache_event() {
  Machine& machine = *machines_[random_.below(plan_.machines())];
  Cache& cache = machine.cache;
  if (cache.anything_on_the_way() && random_.below(2) == 0) {
    record(Op::ARRIVE, 0, machine.host);
    return cache.drain_one();
  }
  const uint64_t line = recent_[random_.below(recent_.size())];
  const uint64_t offset = line * BH_LINE_BYTES;
  switch (cache.state(line)) {
    case Cache::State::ABSENT:
      record(Op::FILL, offset, machine.host);
      return cache.fill(line);
    case Cache::State::CLEAN:
      record(Op::DROP, offset, machine.host);
      return cache.drop(line);
    case Cache::State::DIRTY:
      if (!plan_.flushes) return;
      record(Op::WRITE_BACK, offset, machine.host);
      return cache.write_back(line, now_ns_);
  }
}

/// A flush of a thread takes effect, or a store reaches the cache.
void World::buffer_event() {
  Thread& thread = *threads_[random_.below(thread_count_)];
  if (!thread.alive) return;
  if (!thread.flushing.empty() && random_.below(2) == 0)
    take_effect(thread, random_.below(thread.flushing.size()));
  else if (thread.store_count > 0)
    commit_store(thread);
}

// ---- flushes and fences ----

void World::start_flush(uint64_t offset, uint64_t bytes, bool invalidates) {
  if (bytes == 0) return;
  const bool mistaken = invalidates && bug(Lie::INVALIDATE_KEEPS) != nullptr;
  if (mistaken && plan_.keeps_lines) note_bug();
  const bool drops = !plan_.keeps_lines || (invalidates && !mistaken);
  const uint64_t last = (offset + bytes - 1) / BH_LINE_BYTES;
  for (uint64_t line = offset / BH_LINE_BYTES; line <= last; ++line)
    current_->flushing.push_back({line, drops, invalidates});
}

void World::take_effect(Thread& thread, size_t index) {
  drain_stores(thread);  // a flush follows older stores to its line
  const auto [line, drops, invalidates] = thread.flushing[index];
  thread.flushing[index] = thread.flushing.back();
  thread.flushing.pop_back();
  thread.process->machine->cache.flush(line, now_ns_, drops);
  record(Op::FLUSHED, line * BH_LINE_BYTES, thread.process->machine->host);
}

bool World::fence_left_out() {
  if (current_->flushing.empty()) return bug(Lie::NO_PLAIN_FENCE) != nullptr;
  const SeededBug* flush = bug(Lie::NO_FENCE_AFTER_FLUSH);
  const SeededBug* bug = flush != nullptr ? flush : this->bug(Lie::NO_FENCE_AFTER_INVALIDATE);
  if (bug == nullptr) return false;
  return std::all_of(current_->flushing.begin(), current_->flushing.end(),
                     [&](const Thread::Flush& waiting) {
                       const Place place = map_->at_line(waiting.line);
                       return (waiting.invalidates == (flush == nullptr) && bug->concerns(place)) ||
                              (bug->also_part != 0 && place.is_part(bug->also_part));
                     });
}

void World::fence() {
  if (bug_ != nullptr && fence_left_out()) return note_bug();
  Thread& thread = *current_;
  drain_stores(thread);
  while (!thread.flushing.empty()) {
    take_effect(thread, random_.below(thread.flushing.size()));
    step();
  }
}

void World::commit_store(Thread& thread) {
  const Thread::Store store = thread.stores[0];
  thread.store_count -= 1;
  std::copy_n(thread.stores.begin() + 1, thread.store_count, thread.stores.begin());
  touch(store.offset);
  thread.process->machine->cache.store(store.offset, store.value);
}

void World::drain_stores(Thread& thread) {
  while (thread.store_count > 0) commit_store(thread);
}

bool World::mapped(uint64_t offset) const {
  const auto& lines = current_->process->mapped_writable;
  return lines.empty() || lines[offset / BH_LINE_BYTES] != 0;
}

void World::note_heartbeat() {
  Process& process = *current_->process;
  process.keeps_heartbeat = true;
  for (const Process* other : processes_) {
    if (other->machine == process.machine || other->machine->host != process.machine->host ||
        !other->alive || !other->keeps_heartbeat)
      continue;
    if (plan_.twin != Twin::CLONE)
      fail("identity", fmt::format("processes {} and {} run as host {}, on two machines",
                                   other->index, process.index, process.machine->host));
    cloned_ = true;
    process.machine->innocent = other->machine->innocent = false;
  }
}

bool World::writable(uint64_t offset) {
  const Place place = map_->at(offset);
  const uint32_t host = machine().host;
  if (cloned_) return true;
  if (place.kind == Kind::REGION) return place.host == host;
  if (place.kind == Kind::NOTHING) return false;
  const uint64_t own_at = map_->layout().word(host, BH_PART_OWN, place.index);
  uint64_t word = machine().cache.peek(own_at);
  for (uint32_t i = 0; i < current_->store_count; ++i) {
    if (current_->stores[i].offset == own_at) word = current_->stores[i].value;
  }
  const auto own = core::OwnWord::unpack(word);
  return own.state == BH_OWN_OWN && own.custody != BH_CUSTODY_READ_ONLY && mapped(offset);
}

void World::fail_writer(uint64_t offset) {
  fail("writer", fmt::format("host {} stores to {}, which it does not own", machine().host,
                             map_->describe(offset)));
}

// ---- faults ----

void World::apply_due_faults() {
  Process* process = current_->process;
  if (process == nullptr) return;
  const auto due = std::find_if(faults_.begin(), faults_.end(), [&](const Fault& fault) {
    return fault.since == Since::START && fault.process == process->index &&
           process->steps >= fault.after_steps &&
           (fault.kind != FaultKind::STALL || current_->operation != Operation::HEARTBEAT);
  });
  if (due == faults_.end()) return;
  const Fault fault = *due;
  faults_.erase(due);
  hit(fault, *process);
  if (!current_->alive) never_again();
}

void World::note_store(Since since) {
  account();
  for (size_t i = 0; i < faults_.size(); ++i) {
    Fault fault = faults_[i];
    if (fault.since != since || fault.by != current_->process->index) continue;
    if (fault.process == fault.by) until_event_ = std::min(until_event_, fault.after_steps + 1);
    fault.since = Since::START;
    fault.after_steps += processes_[fault.process]->steps;
    if (fault.each_time)
      faults_.push_back(fault);
    else
      faults_[i] = fault;
  }
}

void World::hit(const Fault& fault, Process& process) {
  Machine& machine = *process.machine;
  const uint64_t until_ns = fault.duration_ns == kForever ? kForever : now_ns_ + fault.duration_ns;
  switch (fault.kind) {
    case FaultKind::KILL:
      process.begin_ns = until_ns;
      kill(process, /*crash=*/false);
      return note_silence(process);
    case FaultKind::CRASH:
      record(Op::CRASH, 0, machine.host);
      machine.innocent = false;
      for (Process* other : processes_) {
        if (other->machine != &machine) continue;
        if (other->alive) kill(*other, /*crash=*/true);
        other->begin_ns = until_ns;
      }
      machine.cache.lose();
      machine.boot += 1;
      return;
    case FaultKind::PAUSE:
      record(Op::PAUSE, 0, machine.host);
      machine.innocent = false;
      machine.paused_until_ns = until_ns;
      if (fault.clock_stops) machine.clock_offset_ns -= static_cast<int64_t>(fault.duration_ns);
      return yield();
    case FaultKind::STOP_PROCESS:
      record(Op::STOP, 0, process.index);
      process.stopped_until_ns = until_ns;
      note_silence(process);
      return yield();
    case FaultKind::STALL:
      record(Op::STALL, 0, fault.duration_ns);
      current_->wake_ns = until_ns;
      return yield();
    case FaultKind::LEAVE:
      machine.innocent = false;
      process.leaves_for_ns = fault.duration_ns;
      return;
  }
}

/// If no other process continues the host's heartbeat, the others may declare it dead.
void World::note_silence(const Process& process) {
  for (const Process* other : processes_) {
    if (other != &process && other->machine == process.machine && other->alive && other->joined &&
        other->stopped_until_ns <= now_ns_)
      return;
  }
  process.machine->innocent = false;
}

/// A dying process's stores reach the cache; any of its flushes may still take effect.
void World::kill(Process& process, bool crash) {
  record(Op::KILL, 0, process.index);
  for (Thread* thread : process.threads) {
    // A thread that ended by itself may belong to another process by now.
    if (!thread->alive || thread->process != &process) continue;
    if (!crash) {
      drain_stores(*thread);
      while (!thread->flushing.empty() && random_.below(4) != 0)
        take_effect(*thread, random_.below(thread->flushing.size()));
    }
    thread->store_count = 0;
    thread->flushing.clear();
    thread->alive = false;
  }
  process.alive = process.joined = false;
  process.leaves_for_ns = 0;
  process.stopped_until_ns = 0;
  auto& locks = process.machine->process_locks;
  std::replace(locks.begin(), locks.end(), &process, static_cast<Process*>(nullptr));
  if (process.machine->host_lock == &process) process.machine->host_lock = nullptr;
}

// ---- messages ----

namespace {

std::string operation_text(uint64_t code) {
  static constexpr const char* kNames[] = {"",      "put",    "get",       "remove",  "exists",
                                           "lease", "read",   "release",   "reserve", "commit",
                                           "abort", "attach", "heartbeat", "work",    "detach",
                                           "leave", "parts",  "replace",   "mark",    "media"};
  return fmt::format("{} key {}: {}", kNames[code >> 40], code >> 32 & 0xFF, code & 0xFFFFFFFF);
}

const char* op_name(Op op) {
  static constexpr const char* kNames[] = {
      "load",       "load line",   "store",  "cas",        "cas failed", "add",
      "payload in", "payload out", "flush",  "flushed",    "fence",      "fill",
      "write back", "drop",        "arrive", "stall",      "sleep",      "KILL",
      "CRASH",      "PAUSE",       "STOP",   "begin life", "BEGIN",      "END"};
  return kNames[static_cast<size_t>(op)];
}

}  // namespace

std::string World::step_text(const StepRecord& step) const {
  const uint32_t thread = step.thread & 0xFFFF, process = step.thread >> 16;
  std::string who = process == 0 ? "director" : fmt::format("p{}/t{}", process - 1, thread);
  std::string what;
  switch (step.op) {
    case Op::FILL:
    case Op::WRITE_BACK:
    case Op::DROP:
    case Op::FLUSHED:
      who = fmt::format("cache {}", step.value);
      what = map_->describe(step.offset);
      break;
    case Op::BEGIN:
    case Op::END:
      what = operation_text(step.value);
      break;
    case Op::FLUSH:
    case Op::PAYLOAD_IN:
    case Op::PAYLOAD_OUT:
      what = fmt::format("{} ({} bytes)", map_->describe(step.offset), step.value);
      break;
    case Op::SLEEP:
    case Op::STALL:
      what = fmt::format("{} ns", step.value);
      break;
    case Op::ARRIVE:
    case Op::CRASH:
    case Op::PAUSE:
      what = fmt::format("host {}", step.value);
      break;
    case Op::KILL:
    case Op::STOP:
    case Op::BEGIN_LIFE:
      what = fmt::format("process {}", step.value);
      break;
    default:
      what = fmt::format("{} {:#x}", map_->describe(step.offset), step.value);
  }
  return fmt::format("{:>12.3f} us  {:<9} {:<11} {}", static_cast<double>(step.now_ns) / 1000, who,
                     op_name(step.op), what);
}

void World::print_step(const StepRecord& step) const {
  std::printf("%s\n", step_text(step).c_str());
}

std::string World::last_steps(size_t count) const {
  const uint64_t kept = std::min<uint64_t>({count, ring_next_, ring_.size()});
  std::string text;
  for (uint64_t i = ring_next_ - kept; i < ring_next_; ++i)
    text += step_text(ring_[i % ring_.size()]) + "\n";
  return text;
}

}  // namespace sim

/// In a simulated process the run fails, with its seed and its last steps.
void assertion_failed(const char* condition, const char* file, int line) {
  const std::string text = fmt::format("assertion failed: {} ({}:{})", condition, file, line);
  if (sim::World* world = sim::running_world(); world != nullptr && world->in_thread())
    world->fail("assertion", text);
  std::fprintf(stderr, "bowhead: %s\n", text.c_str());
  std::abort();
}

}  // namespace bowhead
