// SPDX-License-Identifier: Apache-2.0
// Hosts: the host slots of a pool, which lives go on, and which life succeeds which
// (docs/sharing.md).
//
// Invariants
//   H1 Every word here has one writing host. Slot lines are sealed and have two copies, written in
//      turn; heartbeat, decision and ack words are complete in themselves.
//   H2 For each life of a host at most one successor is ever decided (Disk Paxos over the decision
//      words: Gafni and Lamport 2003, with one disk and a settle after each publish).
//   H3 No host acts on a decision before it has seen a word that says done. `view` says which
//      decisions this host acts on; `ack` is published only after `view` and a full fence, so that
//      a host that sees the ack knows that every lease taken here before is visible as a hazard.
//   H4 Time only permits: a host whose heartbeat stands still may be proposed for succession, no
//      more.
//   H5 Each value of the own heartbeat word was recorded in `heartbeats_taken`, which other hosts
//      do not write, before it was stored. So another machine stored any value beyond the record.
//
// Two threads of a process use this class: one keeps the heartbeat (sample(), take_heartbeat(),
// heartbeat_is_foreign(), observe_moved(), publish_heartbeat()), the other does all else. Changes
// that both may make at once are compare-and-swaps of single words. Any process of a host may write
// the heartbeat; two at once do no harm.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <functional>
#include <mutex>
#include <optional>
#include <vector>

#include "pool/core/context.h"
#include "pool/core/counts.h"

namespace bowhead::core {

/// The result of one attempt to decide.
enum class Outcome {
  DECIDED,    ///< there is a decision, for this proposal or another
  BACK_OFF,   ///< another host proposes with a higher ballot
  OVER,       ///< the words are in use for a later life already
  EXHAUSTED,  ///< no ballots are left
};

template <class A>
class Hosts {
 public:
  explicit Hosts(Context<A>& context)
      : c_(context), decisions_(context, offsetof(bh_host_counts, decisions)) {}

  uint32_t count() const { return c_.layout.geometry().host_count; }

  /// The newer of the two good copies, fresh. Empty if both are damaged.
  std::optional<bh_host_slot> read_slot(uint32_t host) const;
  /// Writes the own slot, to the older copy, so that a death in the middle leaves the newer one.
  /// Returns the line as written.
  bh_host_slot write_slot(bh_host_slot line, uint32_t state);
  /// Claims the slot for its next life. Of all machines that read the same `slot` and claim it, at
  /// most one succeeds, however long each stands still in between (J3): it gets the line that the
  /// slot has then. The others get nothing; possibly none succeeds.
  std::optional<bh_host_slot> claim_slot(bh_host_slot slot);

  /// A life that a slot shows is not over. Incarnation 0 is no life: the slot was never used.
  /// The answer may be out of date at once, and misses a life that is agreed on and that the slot
  /// does not show yet. So it may choose which indexes to read, which host to ask and how long to
  /// wait; a step that is right only if the host lives, or only if its life is over, needs an
  /// argument of its own (acked()).
  bool goes_on(Life life) const { return life.incarnation != 0 && !c_.ended(life); }
  /// A slot that cannot be read shows no life.
  bool shows_life(uint32_t host) const {
    const auto slot = read_slot(host);
    return slot && goes_on({host, slot->incarnation});
  }

  // ---- heartbeat ----
  /// A heartbeat is due, and this process is the one to publish it.
  bool take_heartbeat(uint64_t now_ns) {
    return take_turn(offsetof(bh_host_private, heartbeat_at_ns), now_ns);
  }
  /// The same for the host's other duties.
  bool take_duties(uint64_t now_ns) {
    return take_turn(offsetof(bh_host_private, duties_at_ns), now_ns);
  }
  void note_duties_done(uint64_t now_ns) {
    c_.access.store(c_.private_word(offsetof(bh_host_private, duties_done_ns)), now_ns);
  }
  /// A fresh look: the own heartbeat word has a value that no process of this machine stored. So
  /// another machine runs as this host, possibly an exact copy, whose slot line is the same.
  bool heartbeat_is_foreign() const;
  /// Before the first heartbeat of a life.
  void begin_heartbeat(uint64_t now_ns);
  /// States in the heartbeat line what every process of this life knows: what this one knows, and,
  /// if `others` of this life may run, no more than what it says already. Under the host lock.
  void state_known(bool others);
  /// `live`: also publishes which stamps have settled (not while the private part is rebuilt).
  void publish_heartbeat(uint64_t now_ns, bool live);
  /// A fresh look at all decision words: updates view and acks. Any thread.
  void observe(uint64_t now_ns) { observe(now_ns, ~uint64_t{0}); }
  /// The same at each heartbeat, for a line per host: looks at the words about this host, so that a
  /// life that is over ends at its next heartbeat; at the words of hosts whose count moved; and, as
  /// a count may be lost, at those of one host in turn. A decision about another life that is seen
  /// late does no harm (H3). One thread at a time.
  void observe_moved(uint64_t now_ns) {
    observe(now_ns, decisions_.moved() | decisions_.in_turn() | uint64_t{1} << c_.host);
  }
  /// Notes which heartbeats moved, for suspect(), and lets look-ups read the indexes of all hosts
  /// whose life has begun and is not over. Every process does so each heartbeat, in the heartbeat
  /// thread: a process that samples seldom suspects no host.
  void sample(uint64_t now_ns);
  /// From now on look-ups read only the indexes of hosts whose life is not over, and of `holders`
  /// (a bit each): hosts with extents that no successor has adopted yet.
  void forget_hosts_but(uint64_t holders);
  /// The heartbeat of a host moves while it is watched, for watch_ns or until `cancelled` says so.
  bool heartbeat_moves(uint32_t host, uint64_t watch_ns,
                       const std::function<bool()>& cancelled = {}) const;
  /// A host that has not left and whose heartbeat moves while all are watched for dead_ms; of a
  /// pool of one host, whose heartbeat this machine alone sees, for ten heartbeats.
  std::optional<uint32_t> any_that_moves() const;
  /// The same within this machine, of a pool of one host (take_heartbeat()).
  bool local_heartbeat_moves(uint64_t watch_ns) const;
  /// A fresh look: another machine has begun a life in this slot, or runs in this one.
  bool displaced() const;
  /// Another machine may be using the region of this host: nothing in it is ours any more.
  bool region_lost() const;
  /// This life is over: by a decision, or (`conflict`) since another machine runs as this host.
  void end_own_life(bool conflict);
  /// The life of a host, if it may be declared over: the host left, or its heartbeat stood still
  /// for dead_ms plus wait_ms between two samples, with others in between. Also a life that a
  /// decision names and that never began.
  std::optional<Life> suspect(uint32_t host, uint64_t wait_ms = 0) const;

  // ---- agreement ----
  /// Proposes `value` as the successor of a life. One process of a host at a time (host lock).
  Outcome decide(Life life, uint32_t value);
  /// A fresh look: some word says done for this life.
  bool decided(Life life) const { return decision(life).has_value(); }
  /// A fresh look: some host has at least begun to decide about this life.
  bool begun(Life life) const;
  /// A fresh look: this life is not over, and no host will act on a decision that it is over before
  /// everything that it has published so far is in the memory.
  bool stands(Life life) const;
  /// The life that now holds the extents of that life: follows the chain of decisions to a life
  /// that is not over. Empty while a link of it is not decided.
  std::optional<Life> successor(Life life) const;

  /// Some host knows that this life has stopped writing: it said so itself, or an operator did.
  bool fenced(Life life) const;
  void vouch_fenced(Life life);
  /// Every live host treats this life as over.
  bool acked(Life life) const;

  /// Hosts (a bit each) whose leases count: all but those whose life was over grace_ms ago.
  uint64_t hazard_hosts(uint64_t now_ns) const;

 private:
  /// Samples of the heartbeat of a slot while its lives were as noted here.
  struct Seen {
    uint64_t heartbeat = 0;
    uint32_t incarnation = 0;    ///< in the slot
    uint64_t ended = 0;          ///< in the view: a life may follow that the slot does not show
    uint64_t changed_at_ns = 0;  ///< after the sample that found a change
    uint64_t sampled_at_ns = 0;  ///< before the last sample
    uint32_t samples = 0;

    /// Hosts::goes_on() at the last sample.
    bool goes_on() const { return incarnation != 0 && incarnation >= ended; }
  };

  uint64_t decide_at(uint32_t host, uint32_t of) const {
    return c_.layout.word(host, BH_PART_DECIDE, of);
  }
  uint64_t heartbeat_at(uint32_t host) const { return c_.layout.part(host, BH_PART_HEARTBEAT); }
  DecideWord decide_word(uint32_t host, uint32_t of) const {
    return DecideWord::unpack(c_.access.load(decide_at(host, of)));
  }
  void write_decide(uint32_t of, const DecideWord& word) {
    c_.access.store(decide_at(c_.host, of), word.pack());
    c_.access.publish(decide_at(c_.host, of), 8);
    decisions_.raise();
    c_.settle();
  }
  void observe(uint64_t now_ns, uint64_t hosts);
  void refresh_decisions(uint32_t of) const;
  std::optional<uint32_t> decision(Life life) const;
  std::optional<Life> life_of(uint32_t value) const;
  std::optional<Life> next_life(Life life) const;
  bool take_turn(size_t word, uint64_t now_ns);
  ViewWord raise_view(uint32_t host, const ViewWord& to);
  void note_ended(uint32_t host, uint64_t ended, uint64_t now_ns);
  void advance_settled();
  bool all_published(uint64_t phase) const;
  uint64_t ack_at(uint32_t host, uint32_t of) const {
    return c_.layout.word(host, BH_PART_ACK, of);
  }
  void raise_ack(uint32_t of, uint32_t shift, uint64_t value);

  Context<A>& c_;
  Counts<A> decisions_;
  mutable std::mutex seen_mutex_;  ///< not held during accesses to the pool
  std::array<Seen, BH_HOSTS_MAX> seen_{};
  // Stamps up to settling_ of the phase before settling_phase_ were all published when draining
  // ended at drained_at_ns_ (0: not yet).
  std::optional<uint64_t> settling_;
  uint64_t settling_phase_ = 0;
  uint64_t drained_at_ns_ = 0;
};

// ---- slots ----

template <class A>
std::optional<bh_host_slot> Hosts<A>::read_slot(uint32_t host) const {
  bh_host_slot best{};
  bool found = false;
  c_.access.acquire(c_.layout.slot_line(host, 0), 2 * sizeof(bh_host_slot));
  for (uint32_t copy = 0; copy < 2; ++copy) {
    Line line;
    const bool good = c_.read_sealed(c_.layout.slot_line(host, copy), line);
    const auto slot = from_line<bh_host_slot>(line);
    if (good && (!found || slot.turn > best.turn)) {
      best = slot;
      found = true;
    }
  }
  return found ? std::optional(best) : std::nullopt;
}

template <class A>
bh_host_slot Hosts<A>::write_slot(bh_host_slot line, uint32_t state) {
  line.state = state;
  line.turn += 1;
  c_.write_sealed(c_.layout.slot_line(c_.host, line.turn & 1), to_line(line));
  return line;
}

/// The first half of a fast mutual exclusion (Lamport 1987), known as a splitter (Moir and Anderson
/// 1995): write X; is Y closed? close Y; is X still mine? X is one copy of the line, with the next
/// turn; Y is the other, with the turn after that. A machine that is late with either write finds a
/// later turn; the live host restores the line that it overwrote (Membership::check_own_slot).
template <class A>
std::optional<bh_host_slot> Hosts<A>::claim_slot(bh_host_slot slot) {
  slot.claim = c_.access.random() | 1;
  const bh_host_slot claimed = write_slot(slot, slot.state);
  c_.settle();
  const auto best = read_slot(c_.host);
  if (!best || best->turn > claimed.turn) return std::nullopt;
  const bh_host_slot closed = write_slot(claimed, claimed.state);
  c_.settle();
  Line line;
  c_.access.acquire(c_.layout.slot_line(c_.host, claimed.turn & 1), BH_LINE_BYTES);
  if (!c_.read_sealed(c_.layout.slot_line(c_.host, claimed.turn & 1), line)) return std::nullopt;
  const auto found = from_line<bh_host_slot>(line);
  if (found.turn != claimed.turn || found.claim != claimed.claim) return std::nullopt;
  return closed;
}

// ---- heartbeat ----

/// The time of the last turn is moved by compare-and-swap: a stopped process stops neither the
/// heartbeat nor the duties of its host.
template <class A>
bool Hosts<A>::take_turn(size_t word, uint64_t now_ns) {
  const uint64_t at = c_.private_word(word);
  uint64_t last_ns = c_.access.load(at);
  const uint64_t due_ns = last_ns + uint64_t{c_.times.heartbeat_ms} * 900'000;
  // A time in the future is from before a reboot.
  return (now_ns >= due_ns || now_ns < last_ns) && c_.access.cas(at, last_ns, now_ns);
}

template <class A>
void Hosts<A>::begin_heartbeat(uint64_t now_ns) {
  c_.access.acquire(heartbeat_at(c_.host), sizeof(bh_host_heartbeat));
  c_.access.store(c_.private_word(offsetof(bh_host_private, heartbeats_taken)),
                  c_.access.load(heartbeat_at(c_.host) + offsetof(bh_host_heartbeat, heartbeat)));
  c_.access.store(c_.private_word(offsetof(bh_host_private, heartbeat_at_ns)), 0);
  c_.access.store(c_.private_word(offsetof(bh_host_private, duties_at_ns)), 0);
  note_duties_done(now_ns);
}

template <class A>
void Hosts<A>::state_known(bool others) {
  const uint64_t at = heartbeat_at(c_.host) + offsetof(bh_host_heartbeat, known);
  const uint64_t stated = c_.access.load(at);
  const uint64_t known = (others ? kKnown.common(KnownWord::unpack(stated)) : kKnown).pack();
  if (known == stated) return;
  c_.access.store(at, known);
  c_.access.publish(at, 8);
}

/// Reads the word first: a process of this machine recorded each value before it stored it (H5).
template <class A>
bool Hosts<A>::heartbeat_is_foreign() const {
  c_.access.acquire(heartbeat_at(c_.host), sizeof(bh_host_heartbeat));
  const uint64_t heartbeat =
      c_.access.load(heartbeat_at(c_.host) + offsetof(bh_host_heartbeat, heartbeat));
  return heartbeat > c_.access.load(c_.private_word(offsetof(bh_host_private, heartbeats_taken)));
}

/// The word grows by a random amount each time: if it grew by one, two machines that began as exact
/// copies would store the same values. So the machine with the smaller value sees a larger one.
template <class A>
void Hosts<A>::publish_heartbeat(uint64_t now_ns, bool live) {
  if (live) advance_settled();
  const uint64_t taken_at = c_.private_word(offsetof(bh_host_private, heartbeats_taken));
  uint64_t taken = c_.access.load(taken_at);
  const uint64_t next = taken + 1 + ((c_.access.random() ^ now_ns) & 0xFFFF);
  if (!c_.access.cas(taken_at, taken, next)) return;  // another process publishes one now
  const uint64_t done_ns =
      c_.access.load(c_.private_word(offsetof(bh_host_private, duties_done_ns)));
  c_.access.store(heartbeat_at(c_.host) + offsetof(bh_host_heartbeat, duties_late_ms),
                  now_ns > done_ns ? (now_ns - done_ns) / 1'000'000 : 0);
  // A process that was stopped before this line does not set the word back.
  const uint64_t at = heartbeat_at(c_.host) + offsetof(bh_host_heartbeat, heartbeat);
  uint64_t heartbeat = c_.access.load(at);
  while (heartbeat < next && !c_.access.cas(at, heartbeat, next)) {
  }
  c_.access.publish(heartbeat_at(c_.host), sizeof(bh_host_heartbeat));
}

/// One cycle: note the last stamp, turn the phase, wait until the old parity's counts are zero,
/// wait settle_ms, publish the stamp. If another process turns the phase, the cycle starts over.
template <class A>
void Hosts<A>::advance_settled() {
  const uint64_t phase_at = c_.private_word(offsetof(bh_host_private, publish_phase));
  uint64_t phase = c_.access.load(phase_at);
  if (settling_ && settling_phase_ != phase) settling_.reset();
  // The clock is read after the counts: a process paused in between only waits longer.
  if (settling_ && drained_at_ns_ == 0 && all_published(phase - 1))
    drained_at_ns_ = c_.access.now_ns();
  if (settling_ && drained_at_ns_ != 0 &&
      c_.access.now_ns() - drained_at_ns_ >= uint64_t{c_.times.settle_ms} * 1'000'000) {
    c_.access.store(heartbeat_at(c_.host) + offsetof(bh_host_heartbeat, settled),
                    uint64_t{c_.incarnation} << BH_STAMP_SEQUENCE_BITS | *settling_);
    settling_.reset();
  }
  // The counts of the other parity must be zero before it is used again.
  if (settling_ || !all_published(phase + 1)) return;
  const uint64_t last = c_.access.load(c_.private_word(offsetof(bh_host_private, stamp_sequence)));
  if (!c_.access.cas(phase_at, phase, phase + 1)) return;
  settling_ = std::min(last, kStampSequenceMax);
  settling_phase_ = phase + 1;
  drained_at_ns_ = 0;
}

template <class A>
bool Hosts<A>::all_published(uint64_t phase) const {
  for (uint32_t p = 0; p < c_.layout.geometry().process_count; ++p) {
    if (c_.access.load(Publishing<A>::count_at(c_, p, phase)) != 0) return false;
  }
  return true;
}

/// At all words of `hosts` (a bit each), and at the words of all hosts about this one.
template <class A>
void Hosts<A>::observe(uint64_t now_ns, uint64_t hosts) {
  const uint64_t all = ~uint64_t{0} >> (BH_HOSTS_MAX - count());
  for (uint32_t h = 0; h < count(); ++h) {
    if ((hosts >> h & 1) != 0)
      c_.invalidate_from(h, decide_at(h, 0), uint64_t{8} * count());
    else
      c_.invalidate_from(h, decide_at(h, c_.host), 8);
  }
  c_.access.coherence_fence();
  for (uint32_t d = 0; d < count(); ++d) {
    uint64_t ended = 0;
    for (uint64_t left = d == c_.host ? all : hosts & all; left != 0; left &= left - 1) {
      const DecideWord word = decide_word(static_cast<uint32_t>(std::countr_zero(left)), d);
      if (word.done) ended = std::max<uint64_t>(ended, uint64_t{word.inst} + 1);
    }
    note_ended(d, ended, now_ns);
  }
}

template <class A>
void Hosts<A>::sample(uint64_t now_ns) {
  uint64_t live = 0;
  for (uint32_t h = 0; h < count(); ++h)
    c_.invalidate_from(h, heartbeat_at(h), sizeof(bh_host_heartbeat));
  c_.access.coherence_fence();
  struct Now {
    uint64_t heartbeat, ended;
    std::optional<uint32_t> incarnation;
  };
  std::array<Now, BH_HOSTS_MAX> now;
  for (uint32_t d = 0; d < count(); ++d) {
    now[d] = {c_.access.load(heartbeat_at(d) + offsetof(bh_host_heartbeat, heartbeat)),
              c_.view(d).ended,
              {}};
    if (const auto slot = read_slot(d)) now[d].incarnation = slot->incarnation;
  }
  // The values read are not older than now_ns and not newer than this, however long it took.
  const uint64_t seen_ns = c_.access.now_ns();
  std::unique_lock guard(seen_mutex_);
  for (uint32_t d = 0; d < count(); ++d) {
    Seen& seen = seen_[d];
    const auto& [heartbeat, ended, incarnation] = now[d];
    // A process that was itself paused starts to count again (protocol 5.7).
    const bool paused = now_ns - seen.sampled_at_ns > uint64_t{c_.times.dead_ms} * 1'000'000 / 2;
    const bool same = heartbeat == seen.heartbeat && ended == seen.ended &&
                      incarnation.value_or(seen.incarnation) == seen.incarnation;
    if (!same || paused)
      seen = {heartbeat, incarnation.value_or(seen.incarnation), ended, seen_ns, now_ns, 0};
    seen.sampled_at_ns = now_ns;
    ++seen.samples;
    if (seen.goes_on()) live |= uint64_t{1} << d;
  }
  guard.unlock();
  const uint64_t probed_at = c_.private_word(offsetof(bh_host_private, probed_hosts));
  uint64_t probed = c_.access.load(probed_at);
  while ((probed | live) != probed && !c_.access.cas(probed_at, probed, probed | live)) {
  }
}

template <class A>
void Hosts<A>::forget_hosts_but(uint64_t holders) {
  const uint64_t probed_at = c_.private_word(offsetof(bh_host_private, probed_hosts));
  uint64_t before = c_.access.load(probed_at), probed = holders;
  for (uint32_t h = 0; h < count(); ++h) {
    if (shows_life(h)) probed |= uint64_t{1} << h;
  }
  // If it fails, a host has joined meanwhile. No order with other words is needed: a look-up that
  // reads an old value misses blocks, or looks in vain, until the next heartbeat.
  if (probed != before) c_.access.cas(probed_at, before, probed & before);
}

template <class A>
bool Hosts<A>::heartbeat_moves(uint32_t host, uint64_t watch_ns,
                               const std::function<bool()>& cancelled) const {
  const uint64_t at = heartbeat_at(host) + offsetof(bh_host_heartbeat, heartbeat);
  c_.access.acquire(heartbeat_at(host), sizeof(bh_host_heartbeat));
  const uint64_t first = c_.access.load(at);
  const uint64_t until_ns = c_.access.now_ns() + watch_ns;
  do {
    c_.access.sleep_ns(uint64_t{c_.times.heartbeat_ms} * 250'000);
    c_.access.acquire(heartbeat_at(host), sizeof(bh_host_heartbeat));
    if (c_.access.load(at) != first) return true;
  } while (c_.access.now_ns() < until_ns && !(cancelled && cancelled()));
  return false;
}

template <class A>
std::optional<uint32_t> Hosts<A>::any_that_moves() const {
  struct Watched {
    uint32_t host;
    uint64_t heartbeat;
  };
  std::vector<Watched> watched;
  const auto sample = [&](uint32_t host) {
    c_.access.acquire(heartbeat_at(host), sizeof(bh_host_heartbeat));
    return c_.access.load(heartbeat_at(host) + offsetof(bh_host_heartbeat, heartbeat));
  };
  for (uint32_t host = 0; host < c_.layout.geometry().host_count; ++host) {
    const auto slot = read_slot(host);
    const bool left =
        slot && slot->claim == 0 && (slot->incarnation == 0 || slot->state == BH_HOST_LEFT);
    if (!left) watched.push_back({host, sample(host)});
  }
  if (watched.empty()) return std::nullopt;
  if (c_.alone()) {
    const bool moves = local_heartbeat_moves(uint64_t{10} * c_.times.heartbeat_ms * 1'000'000);
    return moves ? std::optional<uint32_t>(0) : std::nullopt;
  }
  const uint64_t until_ns = c_.access.now_ns() + uint64_t{c_.times.dead_ms} * 1'000'000;
  do {
    c_.access.sleep_ns(uint64_t{c_.times.heartbeat_ms} * 250'000);
    for (const Watched& one : watched) {
      if (sample(one.host) != one.heartbeat) return one.host;
    }
  } while (c_.access.now_ns() < until_ns);
  return std::nullopt;
}

template <class A>
bool Hosts<A>::local_heartbeat_moves(uint64_t watch_ns) const {
  const uint64_t at = c_.private_word(offsetof(bh_host_private, heartbeat_at_ns));
  const uint64_t first = c_.access.load(at), until_ns = c_.access.now_ns() + watch_ns;
  while (c_.access.load(at) == first) {
    if (c_.access.now_ns() >= until_ns) return false;
    c_.access.sleep_ns(uint64_t{c_.times.heartbeat_ms} * 250'000);
  }
  return true;
}

/// A view only grows: a process that was stopped after it read the decisions may come late, when
/// later lives are over too. Returns the view that stands.
template <class A>
ViewWord Hosts<A>::raise_view(uint32_t host, const ViewWord& to) {
  const uint64_t at = c_.own(BH_PART_VIEW, host);
  uint64_t word = c_.access.load(at);
  while (ViewWord::unpack(word).ended < to.ended) {
    if (c_.access.cas(at, word, to.pack())) return to;
  }
  return ViewWord::unpack(word);
}

template <class A>
void Hosts<A>::end_own_life(bool conflict) {
  raise_view(c_.host, {uint64_t{c_.incarnation} + 1, conflict, c_.access.now_ns() / 1'000'000});
}

template <class A>
bool Hosts<A>::displaced() const {
  const auto slot = read_slot(c_.host);
  return (slot && slot->incarnation > c_.incarnation) || decided({c_.host, c_.incarnation}) ||
         heartbeat_is_foreign();
}

template <class A>
bool Hosts<A>::region_lost() const {
  const auto slot = read_slot(c_.host);
  return c_.view(c_.host).conflict || (slot && slot->incarnation > c_.incarnation);
}

/// The evidence of the other machine may come a little after its stores: a copy of this machine
/// usually shows by its next heartbeat. If none comes, it is a conflict all the same: the private
/// part is not as this host left it. In a pool of one host there is no other machine: a bug.
template <class A>
void expect_displaced(Context<A>& context) {
  Hosts<A> hosts(context);
  const uint64_t until_ns = context.access.now_ns() + uint64_t{context.times.dead_ms} * 1'000'000;
  while (!context.ended() && !hosts.displaced() && context.access.now_ns() < until_ns) {
    BOWHEAD_ASSERT(!context.alone());
    context.access.sleep_ns(uint64_t{context.times.heartbeat_ms} * 1'000'000);
  }
  const bool decided = hosts.decided({context.host, context.incarnation});
  hosts.end_own_life(/*conflict=*/!decided);
}

/// H3: view, full fence, ack. Also publishes the ack for a process that died between the two.
template <class A>
void Hosts<A>::note_ended(uint32_t host, uint64_t ended, uint64_t now_ns) {
  ended = raise_view(host, {.ended = ended, .since_ms = now_ns / 1'000'000}).ended;
  if (ended == 0 || host == c_.host) return;
  c_.access.fence();
  raise_ack(host, 0, ended);
}

template <class A>
void Hosts<A>::raise_ack(uint32_t of, uint32_t shift, uint64_t value) {
  const uint64_t at = ack_at(c_.host, of);
  const uint64_t mask = uint64_t{0xFFFFFFFF} << shift;
  uint64_t word = c_.access.load(at);
  while ((word & mask) < value << shift &&
         !c_.access.cas(at, word, (word & ~mask) | value << shift)) {
  }
  if ((word & mask) < value << shift) c_.access.publish(at, 8);
}

template <class A>
std::optional<Life> Hosts<A>::suspect(uint32_t host, uint64_t wait_ms) const {
  const Seen seen = [&] {
    const std::lock_guard guard(seen_mutex_);
    return seen_[host];
  }();
  const auto slot = read_slot(host);
  if (!slot) return std::nullopt;
  Life life{host, slot->incarnation};
  const bool began = !c_.ended(life);
  if (began && life.incarnation == 0) return std::nullopt;  // never used
  if (!began) {
    const auto next = successor(life);
    if (!next || next->host != host || next->incarnation <= life.incarnation) return std::nullopt;
    life = *next;
  }
  // Another thread takes the samples: they may be about a life before this one, and nothing is
  // known of the time after the last of them.
  const bool of_this_life =
      seen.incarnation == slot->incarnation && seen.ended == c_.view(host).ended;
  const bool still =
      of_this_life && seen.samples >= 3 &&
      seen.sampled_at_ns >= seen.changed_at_ns + (c_.times.dead_ms + wait_ms) * 1'000'000;
  if (still || (began && slot->state == BH_HOST_LEFT)) return life;
  return std::nullopt;
}

// ---- agreement ----

template <class A>
void Hosts<A>::refresh_decisions(uint32_t of) const {
  for (uint32_t h = 0; h < count(); ++h) c_.invalidate_from(h, decide_at(h, of), 8);
  c_.access.coherence_fence();
}

template <class A>
std::optional<uint32_t> Hosts<A>::decision(Life life) const {
  refresh_decisions(life.host);
  for (uint32_t h = 0; h < count(); ++h) {
    const DecideWord word = decide_word(h, life.host);
    if (word.done && word.inst == life.incarnation) return word.val;
  }
  return std::nullopt;
}

template <class A>
bool Hosts<A>::begun(Life life) const {
  refresh_decisions(life.host);
  for (uint32_t h = 0; h < count(); ++h) {
    const DecideWord word = decide_word(h, life.host);
    if (word.inst > life.incarnation || (word.inst == life.incarnation && word.mbal != 0))
      return true;
  }
  return false;
}

/// A decision that has not begun by now takes two settles more. One that has begun may be done, and
/// its word on its way: then the word is there one settle later, and the host that decided looked
/// at nothing before its word had settled.
template <class A>
bool Hosts<A>::stands(Life life) const {
  if (!begun(life)) return true;
  c_.settle();
  refresh_decisions(life.host);
  for (uint32_t h = 0; h < count(); ++h) {
    const DecideWord word = decide_word(h, life.host);
    if (word.inst > life.incarnation || (word.inst == life.incarnation && word.done)) return false;
  }
  return true;
}

/// Protocol 5.8. Each numbered step publishes the own word and settles before it looks.
template <class A>
Outcome Hosts<A>::decide(Life life, uint32_t value) {
  refresh_decisions(life.host);
  uint32_t round = 0;
  for (uint32_t h = 0; h < count(); ++h) {
    const DecideWord word = decide_word(h, life.host);
    if (word.inst > life.incarnation) return Outcome::OVER;
    if (word.inst < life.incarnation) continue;
    if (word.done) return Outcome::DECIDED;
    round = std::max(round, word.mbal >> 6);
  }
  if (round >= BH_DECIDE_ROUND_MAX) return Outcome::EXHAUSTED;
  const uint32_t ballot = (round + 1) << 6 | c_.host;
  DecideWord mine = decide_word(c_.host, life.host);
  if (mine.inst != life.incarnation) mine = {.inst = life.incarnation};
  mine.mbal = ballot;
  write_decide(life.host, mine);  // (1)
  uint32_t accepted_bal = mine.bal;
  if (mine.bal == 0) mine.val = value;
  for (const bool second : {false, true}) {
    refresh_decisions(life.host);  // (2), (4)
    for (uint32_t h = 0; h < count(); ++h) {
      if (h == c_.host) continue;
      const DecideWord word = decide_word(h, life.host);
      if (word.inst > life.incarnation) return Outcome::OVER;
      if (word.inst < life.incarnation) continue;
      if (word.done) return Outcome::DECIDED;
      if (word.mbal > ballot) return Outcome::BACK_OFF;
      if (!second && word.bal > accepted_bal) {
        accepted_bal = word.bal;
        mine.val = word.val;
      }
    }
    if (second) break;
    mine.bal = ballot;
    write_decide(life.host, mine);  // (3)
  }
  mine.done = true;
  write_decide(life.host, mine);  // (5)
  return Outcome::DECIDED;
}

/// A value has ten bits of an incarnation: it means the incarnation with these bits that is nearest
/// to the slot's. It may be ahead by more than one: lives can be decided that never began.
template <class A>
std::optional<Life> Hosts<A>::life_of(uint32_t value) const {
  const uint32_t host = value >> 10;
  if (host >= count()) return std::nullopt;
  const auto slot = read_slot(host);
  if (!slot) return std::nullopt;
  const auto ahead = static_cast<int32_t>((value - slot->incarnation) << 22) >> 22;
  const int32_t incarnation = int32_t{slot->incarnation} + ahead;
  if (incarnation < 0) return std::nullopt;
  return Life{host, static_cast<uint32_t>(incarnation)};
}

/// One link of the chain of decisions. Words are used again for a slot's next life only when the
/// life before holds nothing any more, unless the host succeeded itself and died before its slot
/// said so. So if the decision is gone, the host succeeded itself.
template <class A>
std::optional<Life> Hosts<A>::next_life(Life life) const {
  if (const auto value = decision(life)) return life_of(*value);
  for (uint32_t h = 0; h < count(); ++h) {
    if (decide_word(h, life.host).inst > life.incarnation)
      return Life{life.host, life.incarnation + 1};
  }
  return std::nullopt;
}

/// Follows the chain. Decisions can form a ring: a host becomes the successor of another that does
/// not know yet that its life is over, and that one the successor of the first. Then the ring's
/// lowest slot goes on, with its next life: all hosts see the same ring. The walk ends: a successor
/// that is over lies in no ring yet, or in one that begins earlier.
template <class A>
std::optional<Life> Hosts<A>::successor(Life life) const {
  std::vector<Life> seen;
  std::vector<size_t> ring;  // where the ring of seen[i] begins; i: in none
  for (;;) {
    const auto at = std::find(seen.begin(), seen.end(), life);
    if (at == seen.end()) {
      ring.push_back(seen.size());
      seen.push_back(life);
      const auto next = next_life(life);
      if (!next || !c_.ended(*next)) return next;
      life = *next;
      continue;
    }
    // A ring that leads back into an earlier one is one with it: else the walk would never end.
    const size_t begin = ring[at - seen.begin()];
    std::fill(ring.begin() + begin, ring.end(), begin);
    const Life lowest =
        *std::min_element(seen.begin() + begin, seen.end(), [](const Life& a, const Life& b) {
          return a.host != b.host ? a.host < b.host : a.incarnation > b.incarnation;
        });
    life = {lowest.host, lowest.incarnation + 1};
    if (!c_.ended(life)) return life;
  }
}

template <class A>
bool Hosts<A>::fenced(Life life) const {
  if (life.incarnation == 0) return true;  // the slot was never used
  const auto slot = read_slot(life.host);
  if (slot && slot->fenced >= life.incarnation) return true;
  for (uint32_t h = 0; h < count(); ++h) c_.invalidate_from(h, ack_at(h, life.host), 8);
  c_.access.coherence_fence();
  for (uint32_t h = 0; h < count(); ++h) {
    if (c_.access.load(ack_at(h, life.host)) >> BH_ACK_FENCED_SHIFT > life.incarnation) return true;
  }
  return false;
}

template <class A>
void Hosts<A>::vouch_fenced(Life life) {
  raise_ack(life.host, BH_ACK_FENCED_SHIFT, uint64_t{life.incarnation} + 1);
}

template <class A>
bool Hosts<A>::acked(Life life) const {
  for (uint32_t h = 0; h < count(); ++h) c_.invalidate_from(h, ack_at(h, life.host), 8);
  c_.access.coherence_fence();
  for (uint32_t h = 0; h < count(); ++h) {
    if (h == c_.host) continue;
    const auto slot = read_slot(h);
    // A slot that cannot be read may be that of a live host.
    if (slot && !goes_on({h, slot->incarnation})) continue;
    // A host that joins reads all decisions after it has published JOINING.
    if (h == life.host) continue;
    if ((c_.access.load(ack_at(h, life.host)) & 0xFFFFFFFFu) <= life.incarnation) return false;
  }
  return true;
}

template <class A>
uint64_t Hosts<A>::hazard_hosts(uint64_t now_ns) const {
  uint64_t hosts = 0;
  for (uint32_t h = 0; h < count(); ++h) {
    const ViewWord view = c_.view(h);
    bool over = false;
    if (view.ended != 0) {
      const auto slot = read_slot(h);
      over = slot && slot->incarnation < view.ended &&
             now_ns / 1'000'000 > view.since_ms + c_.times.grace_ms;
    }
    if (!over) hosts |= uint64_t{1} << h;
  }
  return hosts;
}

}  // namespace bowhead::core
