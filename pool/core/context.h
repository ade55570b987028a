// SPDX-License-Identifier: Apache-2.0
// Context: the pool, and the host, life and process as which the core runs on it.
#pragma once

#include <atomic>
#include <cstdint>

#include "base/coherence.h"
#include "pool/core/layout.h"
#include "pool/core/words.h"
#include "pool/events.h"
#include "pool/types.h"

namespace bowhead::core {

/// Outcome of trying to take a lock that a live process may hold (access policy).
enum class LockResult { TAKEN, HELD };

/// An allocator word and its place; state NONE and place 0 if the slot has no word.
struct SeenWord {
  uint64_t at = 0;
  StateWord word;
};

template <class A>
struct Context {
  A& access;
  const Layout layout;
  const Sealer sealer;
  const uint64_t
      instance;  ///< different for every handle of this process: names thread-local hints
  const SharingTimes times;
  uint32_t host = 0;
  uint32_t incarnation = 0;
  uint32_t process = 0;
  Events* events = nullptr;  ///< null: events are not published
  /// Sets of media with few index entries left, a bit for each in the order of the list: extents of
  /// others are carved first. A hint, read and written without order: where the list has just
  /// changed, other sets may be meant.
  std::atomic<uint64_t> crowded_sets{0};

  /// The pool has one host: the protocol between hosts is not needed.
  bool alone() const { return layout.geometry().host_count == 1; }

  /// This is an observer: it is none of the pool's hosts and stores nothing.
  bool observing() const { return host == layout.geometry().host_count; }

  /// Other hosts read this one's stores through memory that no hardware keeps coherent.
  bool incoherent() const { return !alone() && access.flush_kind() != FlushKind::NONE; }

  /// On return everything published before is in the memory, however weak a fence is on this
  /// machine (protocol assumption H3'). Also a full fence.
  void settle() const {
    access.fence();
    if (incoherent()) access.sleep_ns(uint64_t{times.settle_ms} * 1'000'000);
  }

  /// Later loads see the contents of memory at or after this call; lines that only this host writes
  /// need no acquire.
  void acquire_from(uint32_t writer, uint64_t offset, uint64_t bytes) const {
    if (writer != host) access.acquire(offset, bytes);
  }
  void invalidate_from(uint32_t writer, uint64_t offset, uint64_t bytes) const {
    if (writer != host) access.invalidate(offset, bytes);
  }

  /// A word of a part of the own host's region.
  uint64_t own(uint32_t part, uint64_t index) const { return layout.word(host, part, index); }
  /// The number of a slot's word; Layout::kNoWord if its extent has no words. It is the slot's for
  /// as long as the caller holds the block (E2), else only at some instant during the call.
  uint64_t word_index(uint64_t slot) const {
    return layout.word_index(load_run(layout.extent_of_slot(slot)), slot);
  }
  /// The same as a place; 0 if there is none.
  uint64_t word_at(uint64_t slot) const {
    const uint64_t index = word_index(slot);
    return index == Layout::kNoWord ? 0 : own(BH_PART_BLOCKS, index);
  }
  RunWord load_run(uint64_t extent) const {
    return RunWord::unpack(access.load(own(BH_PART_RUNS, extent)));
  }
  /// Reads the allocator word of a slot. A compare-and-swap from what it returns changes the word
  /// of this slot, or fails (E3).
  SeenWord see(uint64_t slot) const {
    const uint64_t run_at = own(BH_PART_RUNS, layout.extent_of_slot(slot));
    const uint64_t run = access.load(run_at);
    const uint64_t index = layout.word_index(RunWord::unpack(run), slot);
    if (index == Layout::kNoWord) return {};
    const uint64_t at = own(BH_PART_BLOCKS, index);
    const SeenWord seen{at, load_state(at)};
    return access.load(run_at) == run ? seen : SeenWord{};
  }
  /// The same for a slot whose block the caller holds: its word does not change its place (E2).
  SeenWord see_held(uint64_t slot) const {
    const uint64_t at = word_at(slot);
    return at == 0 ? SeenWord{} : SeenWord{at, load_state(at)};
  }
  /// Asks for the lines of a slot's header and allocator word, which the caller will read soon.
  void prefetch_slot(uint64_t slot) const {
    access.prefetch(layout.header(slot));
    if (const uint64_t at = word_at(slot); at != 0) access.prefetch_own(at);
  }
  /// The same for its allocator word and recency.
  void prefetch_recency(uint64_t slot) const {
    const uint64_t index = word_index(slot);
    if (index == Layout::kNoWord) return;
    access.prefetch_own(own(BH_PART_BLOCKS, index));
    access.prefetch_own(own(BH_PART_RECENCY, index));
  }
  /// When the block of a slot was last used, as a number that may be lost or another block's.
  uint64_t load_recency(uint64_t slot) const {
    const uint64_t index = word_index(slot);
    return index == Layout::kNoWord ? 0 : access.load_relaxed(own(BH_PART_RECENCY, index));
  }
  void store_recency(uint64_t slot, uint64_t recency_ns) const {
    const uint64_t index = word_index(slot);
    if (index != Layout::kNoWord) access.store_relaxed(own(BH_PART_RECENCY, index), recency_ns);
  }
  uint64_t private_word(size_t at) const { return layout.part(host, BH_PART_PRIVATE) + at; }

  ViewWord view(uint32_t of) const {
    if (observing()) return {};
    return ViewWord::unpack(access.load(own(BH_PART_VIEW, of)));
  }
  /// This life of a host is over: `view` says so, and every process of this host acts by it.
  bool ended(Life life) const { return view(life.host).ended > life.incarnation; }
  /// The own life is over: a host that others declared dead stops (protocol 5.6). So does a process
  /// whose medium failed, since other processes take it for dead. Read before every commit.
  bool ended() const { return access.media_failed() || ended({host, incarnation}); }
  /// Why the own life ended.
  Status gone() const {
    if (access.media_failed()) return Status::MEDIA_ERROR;
    return view(host).conflict ? Status::HOST_ID_CONFLICT : Status::HOST_FENCED;
  }

  void count(uint32_t counter, uint64_t delta = 1) {
    if (observing()) return;
    access.fetch_add(layout.process(host, process) + offsetof(bh_process, counters) + counter * 8,
                     delta);
  }
  /// A live process of the own host, possibly this one, has this number. Any number may be passed.
  bool alive(uint32_t number) const {
    return number == process ||
           (number < layout.geometry().process_count && access.process_alive(host, number));
  }
  StateWord load_state(uint64_t offset) const { return StateWord::unpack(access.load(offset)); }
  /// CAS from exactly `from` to `to`.
  bool change(uint64_t offset, StateWord from, StateWord to) {
    uint64_t expected = from.pack();
    return access.cas(offset, expected, to.pack());
  }
  bool change(const SeenWord& seen, StateWord to) {
    return seen.at != 0 && change(seen.at, seen.word, to);
  }
  void store_state(uint64_t offset, StateWord to) { access.store(offset, to.pack()); }

  void write_sealed(uint64_t offset, Line line) {
    sealer.seal(line, offset);
    access.store_line(offset, line);
    access.publish(offset, BH_LINE_BYTES);
  }
  /// Copies a line to private memory and checks its seal there (rule R2). Does not acquire.
  bool read_sealed(uint64_t offset, Line& line) const {
    line = access.load_line(offset);
    return sealer.check(line, offset);
  }
};

/// A word that names this process has changed under it: another machine runs as this host. On
/// return this life is over. In a pool of one host that is a bug: an assertion. In hosts.h.
template <class A>
void expect_displaced(Context<A>& context);

/// The scope from taking a stamp until the lines that bear it are published. Each process counts
/// its scopes by the parity of the host's phase; a count that is kept was made in its phase. So
/// once the phase has moved on and the old parity's counts are zero, all earlier scopes have ended.
template <class A>
class Publishing {
 public:
  explicit Publishing(Context<A>& context) : c_(context) {
    if (c_.alone()) return;
    for (;;) {
      const uint64_t phase = c_.access.load(phase_at());
      at_ = count_at(c_, c_.process, phase);
      c_.access.fetch_add(at_, 1);
      if (c_.access.load(phase_at()) == phase) return;
      c_.access.fetch_add(at_, uint64_t{0} - 1);
    }
  }
  ~Publishing() {
    if (!c_.alone()) c_.access.fetch_add(at_, uint64_t{0} - 1);
  }
  Publishing(const Publishing&) = delete;
  Publishing& operator=(const Publishing&) = delete;

  static uint64_t count_at(const Context<A>& context, uint32_t process, uint64_t phase) {
    return context.layout.process(context.host, process) + offsetof(bh_process, publishing) +
           (phase & 1) * 8;
  }

 private:
  uint64_t phase_at() const { return c_.private_word(offsetof(bh_host_private, publish_phase)); }

  Context<A>& c_;
  uint64_t at_ = 0;
};

/// The lock of the host, held to the end of a scope: a live process that kept it would keep all
/// others from opening the pool.
template <class A>
class HostLock {
 public:
  /// `locked`: the caller holds the lock, and keeps it.
  explicit HostLock(Context<A>& context, bool locked = false, uint64_t wait_ms = 0)
      : c_(context),
        taken_(!locked && c_.access.lock_host(c_.host, wait_ms) == LockResult::TAKEN),
        held_(locked || taken_) {}
  ~HostLock() {
    if (taken_) c_.access.unlock_host(c_.host);
  }
  HostLock(const HostLock&) = delete;
  HostLock& operator=(const HostLock&) = delete;
  bool held() const { return held_; }

 private:
  Context<A>& c_;
  const bool taken_, held_;
};

}  // namespace bowhead::core
