// SPDX-License-Identifier: Apache-2.0
// SimAccess: the access policy of the pool's core in a simulated process. Every access is a step of
// the World, before which anything may happen.
#pragma once

#include <algorithm>
#include <cstring>
#include <map>
#include <numeric>
#include <span>
#include <utility>
#include <vector>

#include "base/checksum.h"
#include "base/coherence.h"
#include "pool/core/context.h"
#include "pool/pool.h"
#include "tests/sim/model.h"
#include "tests/sim/rules.h"
#include "tests/sim/world.h"

namespace bowhead::sim {

class SimAccess {
 public:
  SimAccess(World& world, Model& model, Rules& rules, Process& process,
            const bh_superblock& superblock)
      : world_(world),
        model_(model),
        rules_(rules),
        process_(process),
        sealer_(superblock.pool_id) {}
  SimAccess(const SimAccess&) = delete;
  SimAccess& operator=(const SimAccess&) = delete;

  /// Between the threads of a simulated process. A mutex whose holder dies dies with the process.
  class Mutex {
   public:
    void lock() {
      while (taken_) running_world()->sleep(1'000);
      taken_ = true;
    }
    void unlock() { taken_ = false; }

   private:
    bool taken_ = false;
  };

  // ---- words ----
  uint64_t load(uint64_t at) const {
    check_word(at);
    world_.step();
    uint64_t value = is_hole(at) ? 0 : world_.load(at);
    if (world_.has_bug()) [[unlikely]] {
      const uint64_t said = lie_about(at, value);
      if (said != value) world_.note_bug();
      value = said;
    }
    world_.record(Op::LOAD, at, value);
    return value;
  }
  uint64_t load_relaxed(uint64_t at) const { return load(at); }
  void store(uint64_t at, uint64_t value) {
    check_word(at);
    world_.step();
    if (is_hole(at) || left_out(Lie::NOT_STORED, at, 8)) return;
    if (at != first_of_part(at) && left_out(Lie::ONLY_FIRST_STORED, at, 8)) return;
    // The holder commits a block or frees it by a store.
    if (const Place place = world_.check_writable(at); place.is_part(BH_PART_BLOCKS)) {
      for (const uint64_t offset : blocks_of(at)) model_.end_hold(process_, offset);
    }
    rules_.check_store(at, value);
    rules_.check_change(at, value);
    world_.store(at, value);
    world_.record(Op::STORE, at, value);
  }
  void store_relaxed(uint64_t at, uint64_t value) { store(at, value); }
  bool cas(uint64_t at, uint64_t& expected, uint64_t desired) {
    if (is_hole(at)) return std::exchange(expected, 0) == 0;
    begin_locked(at);
    const uint64_t value = world_.load(at);
    if (left_out(Lie::NOT_STORED, at, 8)) return true;
    const bool same = value == expected || lie_about_exchange(at, value, expected);
    if (same) {
      if (const SeededBug* bug = world_.bug(Lie::EXCHANGE_IN_TWO);
          bug && bug->concerns(world_.map().at(at))) {
        world_.note_bug();
        rules_.note_exchange(at);
        // Until another process comes in between, or for a while.
        for (int i = 0; i < 300 && world_.load(at) == value; ++i) world_.step();
      }
      rules_.check_change(at, desired);
    }
    // A failing one is a store all the same.
    world_.store_past_buffer(at, same ? desired : value);
    world_.record(same ? Op::CAS : Op::CAS_FAILED, at, same ? desired : value);
    if (same && world_.map().at(at).is_part(BH_PART_LOCKS)) rules_.note_lock();
    if (same && world_.map().at(at).is_part(BH_PART_LOG)) {
      world_.current().logged_line = at / BH_LINE_BYTES;
      rules_.note_logged();
    }
    if (same && world_.map().at(at).is_part(BH_PART_BLOCKS))
      world_.current().took_word = core::StateWord::unpack(desired).state == BH_BLOCK_RESERVED;
    expected = value;
    return same;
  }
  uint64_t fetch_add(uint64_t at, uint64_t delta) {
    if (is_hole(at)) return 0;
    begin_locked(at);
    rules_.note_count(at);
    const uint64_t value = world_.load(at);
    if (left_out(Lie::NOT_STORED, at, 8)) return value;
    world_.store_past_buffer(at, value + delta);
    world_.record(Op::ADD, at, value + delta);
    const bool repeats = world_.bug(Lie::STAMPS_REPEAT) != nullptr &&
                         at == world_.map().layout().part(process_.machine->host, BH_PART_PRIVATE);
    if (repeats) world_.note_bug();
    return repeats ? value / 4 * 4 : value;
  }

  // ---- lines ----
  core::Line load_line(uint64_t at) const {
    check_word(at);
    core::Line line{};
    if (is_hole(at)) return line;
    if (world_.current().store_count == 0 && world_.steps_without_event(line.size())) {
      line = world_.line(at);
    } else {
      for (uint64_t i = 0; i < line.size(); ++i) {
        world_.step();
        line[i] = world_.load(at + i * 8);
      }
    }
    if (world_.has_bug()) [[unlikely]]
      lie_about_line(at, line);
    world_.record(Op::LOAD_LINE, at, line);
    return line;
  }
  void store_line(uint64_t at, const core::Line& line) {
    if (world_.map().at(at).is_part(BH_PART_INDEX)) rules_.check_entry(at, line);
    if (world_.map().at(at).is_part(BH_PART_MAIL)) rules_.note_mail(at, line);
    if (world_.map().at(at).is_part(BH_PART_SLOT)) rules_.note_slot(line);
    for (uint64_t i = 0; i < 8; ++i) store(at + i * 8, line[i]);
  }
  void prefetch(uint64_t at) const {
    world_.step();
    world_.machine().cache.fill(at / BH_LINE_BYTES);
  }
  void prefetch_own(uint64_t) const {}  // changes nothing that a load could see

  // ---- payload ----
  uint64_t write_payload(uint64_t to, std::span<const ConstSpan> value) {
    std::vector<std::byte> bytes;
    for (const ConstSpan& part : value) bytes.insert(bytes.end(), part.data, part.data + part.size);
    return write_bytes(to, bytes);
  }
  uint64_t read_payload(uint64_t from, uint64_t bytes, std::span<const Span> buffers,
                        bool /*used_soon*/ = false) const {
    std::vector<std::byte> copy = read_bytes(from, bytes);
    uint64_t done = 0;
    for (const Span& buffer : buffers) {
      const uint64_t part = std::min<uint64_t>(bytes - done, buffer.size);
      std::memcpy(buffer.data, copy.data() + done, part);
      done += part;
    }
    if (world_.bug(Lie::SUM_OF_SHARED_BYTES) != nullptr) {
      world_.note_bug();
      copy = read_bytes(from, bytes);
    }
    return payload_checksum(copy.data(), copy.size());
  }
  void zero(uint64_t offset, uint64_t bytes) { write_bytes(offset, std::vector<std::byte>(bytes)); }
  uint64_t move_payload(uint64_t to, uint64_t from, uint64_t bytes) {
    const uint64_t checksum = write_bytes(to, read_bytes(from, bytes));
    fence();
    return checksum;
  }
  uint64_t sum_payload(uint64_t from, uint64_t bytes) const {
    const std::vector<std::byte> copy = read_bytes(from, bytes);
    return payload_checksum(copy.data(), copy.size());
  }
  /// In-place work here uses the offset.
  std::byte* payload(uint64_t) const { return nullptr; }
  /// New media are all zero: the first process that maps a set has made them so.
  Result<void> map_set(const SetName& name, const std::string&, const std::vector<Range>& ranges,
                       const std::vector<Range>& own) {
    const bool first = model_.note_set(name.id);
    for (const Range& range : ranges) {
      const bool stored_to = std::find(own.begin(), own.end(), range) != own.end();
      for (uint64_t at = range.offset; at < range.end(); at += BH_LINE_BYTES) {
        const uint64_t line = at / BH_LINE_BYTES;
        if (first) {
          world_.machine().cache.forget(line);
          if (world_.memory().read(line) != core::Line{}) world_.memory().write(line, {});
        }
        if (!stored_to && !process_.mapped_writable.empty()) process_.mapped_writable[line] = 0;
      }
    }
    process_.mapped_sets[name.id] = ranges;
    return {};
  }
  void unmap_set(uint64_t id, const std::vector<Range>&) { process_.mapped_sets.erase(id); }
  void set_writable(uint64_t at, uint64_t bytes, bool writable) {
    for (uint64_t line = at / BH_LINE_BYTES; line < (at + bytes) / BH_LINE_BYTES; ++line)
      process_.mapped_writable[line] = writable;
  }

  std::vector<std::byte> read_bytes(uint64_t from, uint64_t bytes) const;
  /// Stores words in any order; they leave for the memory in any order. Returns the checksum.
  uint64_t store_bytes(uint64_t to, std::span<const std::byte> bytes);

  // ---- coherence ----
  void publish(uint64_t at, uint64_t bytes) {
    if (!world_.plan().flushes) return;
    flush(at, bytes);
    fence();
  }
  void flush(uint64_t at, uint64_t bytes) {
    if (!world_.plan().flushes || left_out(Lie::NO_FLUSH, at, bytes)) return;
    if (bytes == 8 && at / BH_LINE_BYTES != world_.current().logged_line &&
        left_out(Lie::ONE_LINE_FLUSHED, at, bytes))
      return;
    world_.step();
    world_.record(Op::FLUSH, at, bytes);
    world_.start_flush(at, bytes, /*invalidates=*/false);
  }
  void acquire(uint64_t at, uint64_t bytes) const {
    if (!world_.plan().flushes || left_out(Lie::NOT_ACQUIRED, at, bytes)) return;
    invalidate(at, bytes);
    fence();
  }
  void invalidate(uint64_t at, uint64_t bytes) const {
    if (!world_.plan().flushes || left_out(Lie::NO_INVALIDATE, at, bytes)) return;
    world_.step();
    world_.record(Op::FLUSH, at, bytes);
    world_.start_flush(at, bytes, /*invalidates=*/true);
  }
  void fence() const {
    world_.step();
    world_.fence();
    world_.record(Op::FENCE, 0, 0);
  }
  void coherence_fence() const {
    if (world_.plan().flushes) fence();
  }
  FlushKind flush_kind() const {
    return !world_.plan().flushes      ? FlushKind::NONE
           : world_.plan().keeps_lines ? FlushKind::CLWB
                                       : FlushKind::CLFLUSHOPT;
  }

  // ---- clock, randomness, waiting ----
  bool media_failed() const { return false; }
  bool payload_lost(uint64_t /*offset*/, uint64_t /*bytes*/) const { return false; }
  uint64_t now_ns() const {
    const uint64_t now_ns = world_.host_now_ns();
    return world_.has_bug() ? lie_about_time(now_ns) : now_ns;
  }
  uint64_t recency_ns() const { return now_ns(); }
  uint64_t unix_ns() const { return now_ns(); }
  uint64_t random() const { return world_.random().next(); }
  void relax(uint32_t round) const {
    world_.step();
    world_.sleep(round < 64 ? 100 : round < 256 ? 1'000 : 20'000);  // pause, yield, sleep
  }
  void sleep_ns(uint64_t ns) const {
    world_.step();
    world_.sleep(ns);
  }

  // ---- identity and liveness ----
  uint64_t machine_id() const { return process_.machine->machine_id; }
  uint64_t hardware_id() const { return process_.machine->hardware_id; }
  uint64_t boot_id() const {
    const Machine& machine = *process_.machine;
    return 1000 * machine.machine_id + machine.boots_before + machine.boot;
  }
  uint64_t pid() const { return 1 + process_.index; }
  uint64_t pid_namespace() const { return 1; }
  bool locks_by_node() const { return false; }
  core::LockResult lock_process(uint32_t host, uint32_t process) {
    world_.step();
    BOWHEAD_ASSERT(host == process_.machine->host);
    Process*& holder = process_.machine->process_locks[process];
    if (holder != nullptr && holder != &process_) return core::LockResult::HELD;
    holder = &process_;
    return core::LockResult::TAKEN;
  }
  void unlock_process(uint32_t /*host*/, uint32_t process) {
    world_.drain_stores(world_.current());
    world_.step();
    process_.machine->process_locks[process] = nullptr;
  }
  bool process_alive(uint32_t host, uint32_t process) const {
    world_.step();
    const Process* holder =
        host == process_.machine->host ? process_.machine->process_locks[process] : nullptr;
    if (holder != nullptr && holder->stopped_until_ns > world_.now_ns() &&
        world_.bug(Lie::STOPPED_IS_DEAD) != nullptr) {
      world_.note_bug();
      return false;
    }
    return holder != nullptr && holder != &process_;
  }
  core::LockResult lock_host(uint32_t /*host*/, uint64_t wait_ms) {
    const uint64_t deadline_ns = now_ns() + wait_ms * 1'000'000;
    for (uint32_t round = 0;; ++round) {
      world_.step();
      Process*& holder = process_.machine->host_lock;
      if (holder == nullptr || holder == &process_) {
        holder = &process_;
        return core::LockResult::TAKEN;
      }
      if (now_ns() >= deadline_ns) return core::LockResult::HELD;
      relax(round);
    }
  }
  void unlock_host(uint32_t /*host*/) {
    world_.drain_stores(world_.current());
    world_.step();
    process_.machine->host_lock = nullptr;
  }

  World& world() { return world_; }

 private:
  bool is_hole(uint64_t at) const { return process_.is_hole(world_.map(), at); }
  void check_word(uint64_t at) const {
    if (at % 8 != 0 || at / BH_LINE_BYTES >= world_.map().lines()) [[unlikely]]
      world_.fail("range", "a word outside the pool: " + std::to_string(at));
  }
  void begin_locked(uint64_t at) {
    check_word(at);
    world_.step();
    world_.check_writable(at);
    world_.drain_stores(world_.current());
  }
  uint64_t write_bytes(uint64_t to, std::span<const std::byte> bytes) {
    model_.hold(world_, process_, to, bytes.size());
    const uint64_t checksum = store_bytes(to, bytes);
    flush(to, bytes.size());
    return checksum;
  }

  /// Where a block may begin that an allocator word of this host stands for.
  std::vector<uint64_t> blocks_of(uint64_t word_at) const {
    const core::Layout& layout = world_.map().layout();
    const uint32_t host = process_.machine->host;
    const uint64_t index = (word_at - layout.part(host, BH_PART_BLOCKS)) / 8;
    const uint64_t group = index / layout.geometry().words_per_group;
    const uint64_t owner = world_.machine().cache.peek(layout.word(host, BH_PART_GROUPS, group));
    std::vector<uint64_t> offsets;
    if (owner == 0 || owner > layout.extent_limit()) return offsets;
    const auto run = core::RunWord::unpack(
        world_.machine().cache.peek(layout.word(host, BH_PART_RUNS, owner - 1)));
    for (uint64_t slot = layout.first_slot(owner - 1); slot < layout.first_slot(owner); ++slot) {
      if (layout.word_index(run, slot) == index)
        offsets.push_back(layout.geometry().payload_offset + slot * kMinBlockBytes);
    }
    return offsets;
  }

  // ---- seeded bugs (seeded_bugs.h) ----
  bool left_out(Lie lie, uint64_t at, uint64_t bytes) const {
    const SeededBug* bug = world_.bug(lie);
    if (bug == nullptr || !bug->concerns(world_.map().at(at)) || bytes < bug->least_bytes ||
        bytes > bug->most_bytes)
      return false;
    world_.note_bug();
    return true;
  }
  uint64_t first_of_part(uint64_t at) const {
    const Place place = world_.map().at(at);
    return place.kind == Kind::REGION ? world_.map().layout().part(place.host, place.index) : 0;
  }
  bool lie_about_exchange(uint64_t at, uint64_t value, uint64_t expected) const {
    if (!world_.map().at(at).is_part(BH_PART_BLOCKS)) return false;
    const bool lies = (world_.bug(Lie::SEQUENCE_IGNORED) != nullptr &&
                       value >> BH_WORD_STATE_SHIFT == expected >> BH_WORD_STATE_SHIFT) ||
                      (world_.bug(Lie::GONE_IS_THERE) != nullptr && seems_there(value) == expected);
    if (lies) world_.note_bug();
    return lies;
  }
  /// A block's word, if the seeded bug makes a freed block seem present.
  uint64_t seems_there(uint64_t word) const {
    const auto state = core::StateWord::unpack(word);
    const bool gone = state.state == BH_BLOCK_RETIRED || state.state == BH_BLOCK_FREE;
    return gone && world_.current().locked ? state.next(BH_BLOCK_COMMITTED).pack() : word;
  }
  void show_what_is_gone(uint64_t at, core::Line& line) const;
  void show_answer(uint64_t at, uint32_t host, core::Line& line) const;
  uint64_t lie_about(uint64_t at, uint64_t value) const;
  uint64_t lie_about_log(uint64_t at, uint64_t value) const;
  uint64_t lie_about_time(uint64_t now_ns) const;
  void lie_about_line(uint64_t at, core::Line& line) const;

  World& world_;
  Model& model_;
  Rules& rules_;
  Process& process_;
  const core::Sealer sealer_;
  mutable std::map<uint64_t, uint64_t>
      named_stamps_;  ///< by block: checksum of the entry read last
  mutable std::map<uint64_t, core::Line> seen_lines_;  ///< of the own index
  mutable uint64_t lease_stamp_ = 0;                   ///< of the lease line read last
  mutable std::map<uint64_t, uint64_t> laps_;          ///< of other hosts' logs, by word, as seen
  mutable uint64_t settles_seen_ = 0;                  ///< that seem to have passed
};

inline std::vector<std::byte> SimAccess::read_bytes(uint64_t from, uint64_t bytes) const {
  std::vector<std::byte> out((bytes + 7) / 8 * 8);
  world_.record(Op::PAYLOAD_OUT, from, bytes);
  for (uint64_t at = 0; at < bytes; at += 8) {
    check_word(from + at);
    world_.step();
    const uint64_t word = world_.load(from + at);
    std::memcpy(out.data() + at, &word, 8);
  }
  out.resize(bytes);
  return out;
}

inline uint64_t SimAccess::store_bytes(uint64_t to, std::span<const std::byte> bytes) {
  world_.record(Op::PAYLOAD_IN, to, bytes.size());
  const uint64_t words = (bytes.size() + 7) / 8;
  const uint64_t start = world_.random().below(words);
  const uint64_t stride = world_.random().below(2) == 0 ? 1 : words - 1;  // forward or back
  for (uint64_t i = 0, n = start; i < words; ++i, n = (n + stride) % words) {
    const uint64_t at = to + n * 8;
    check_word(at);
    world_.step();
    world_.check_writable(at);
    uint64_t word = n == words - 1 ? world_.load(at) : 0;
    std::memcpy(&word, bytes.data() + n * 8, std::min<uint64_t>(8, bytes.size() - n * 8));
    world_.store_past_buffer(at, word);
  }
  return payload_checksum(bytes.data(), bytes.size());
}

}  // namespace bowhead::sim
