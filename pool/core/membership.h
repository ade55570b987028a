// SPDX-License-Identifier: Apache-2.0
// Membership of one host among several: the heartbeat, the own slot line, the succession of dead
// hosts, and the duties of a host for the others.
//
// Owns: the own slot line as this process knows it, the time since when this life is suspected, and
// the touch words and their counts seen last. Calls: Custody, Grants, Growth, Lookup, Mail, Mirror,
// Namespaces, Retirement, Usage.
#pragma once

#include "pool/core/usage.h"

namespace bowhead::core {

template <class A>
class Membership {
 public:
  explicit Membership(const Rooms<A>& rooms)
      : c_(rooms.context),
        extents_(rooms.extents),
        leases_(rooms.leases),
        hosts_(rooms.hosts),
        mirror_(rooms.mirror),
        lookup_(rooms.lookup),
        usage_(rooms.usage),
        retirement_(rooms.retirement),
        space_(rooms.space),
        namespaces_(rooms.namespaces),
        growth_(rooms.growth),
        mail_(rooms.mail),
        grants_(rooms.grants),
        custody_(rooms.custody),
        touch_counts_(rooms.context, offsetof(bh_host_counts, touches)) {}
  Membership(const Membership&) = delete;
  Membership& operator=(const Membership&) = delete;

  /// Publishes the heartbeat, reads the decisions of all hosts, and revokes expired leases. Every
  /// process calls it once per times.heartbeat_ms, in a thread that does nothing else, so that no
  /// work makes a live host look dead: its cost does not grow with the pool. HOST_FENCED,
  /// HOST_ID_CONFLICT: this handle, and those of all other processes of the host, must be closed.
  Result<void> heartbeat();
  /// The other duties of the host: frees blocks that have settled, does the requests of other
  /// hosts, proposes successors of dead hosts, takes extents over. Every process calls it once per
  /// times.heartbeat_ms, in a thread of its own; it may take several heartbeats. In a pool of one
  /// host only changes of its media need it. Returns the same statuses as heartbeat().
  Result<void> work();
  /// Records the word of an operator that a host has stopped writing to the memory for good.
  Result<void> vouch_fenced(uint32_t host);
  /// In a pool of one host, to processes of this machine that do not see its locks.
  void show_life() { (void)hosts_.take_heartbeat(c_.access.now_ns()); }
  /// OK, or the reason why this process may store nothing any more.
  Status standing() const { return c_.ended() ? c_.gone() : Status::OK; }
  /// From here on heartbeat() checks that the slot line is still this one.
  void go_live(const bh_host_slot& slot);
  /// Proposes this host as the successor of suspected hosts, after live hosts of lower slots had
  /// time to; and, if extents are wanted, of slots never used. `locked`: under the host lock.
  void succeed_the_dead(bool locked = false);
  /// A host has at least begun to decide that this life is over. If that host dies in the middle,
  /// the question stays open; then this host decides it, for its own next life.
  bool suspected();

 private:
  Result<void> check_own_slot();
  Error fenced_error() const;
  Error end_by_conflict();
  void drain_sets(uint64_t until_ns);
  void count_touches();
  void take_touches(uint64_t now_ns);

  Context<A>& c_;
  Extents<A>& extents_;
  Leases<A>& leases_;
  Hosts<A>& hosts_;
  Mirror<A>& mirror_;
  Lookup<A>& lookup_;
  Usage<A>& usage_;
  Retirement<A>& retirement_;
  Space<A>& space_;
  Namespaces<A>& namespaces_;
  Growth<A>& growth_;
  Mail<A>& mail_;
  Grants<A>& grants_;
  Custody<A>& custody_;

  bh_host_slot own_slot_{};        ///< as this process knows it
  std::atomic<bool> live_{false};  ///< joined: own_slot_ is set, the private part is rebuilt
  uint64_t suspected_since_ns_ = 0;
  Counts<A> touch_counts_;
  std::vector<uint64_t> touches_;  ///< touch words as seen last
  uint64_t touches_at_ns_ = 0;
  uint64_t shown_at_ns_ = 0;  ///< when room and usage were flushed last
  uint64_t untaken_ = 0;  ///< hosts (a bit each) that wrote touch words since they were last read
};

template <class A>
Result<void> Membership<A>::heartbeat() {
  if (c_.alone()) return {};
  if (c_.ended()) return fenced_error();
  const uint64_t now_ns = c_.access.now_ns();
  hosts_.sample(now_ns);
  if (!hosts_.take_heartbeat(now_ns)) return {};
  const bool live = live_.load(std::memory_order_acquire);
  if (live) {
    if (auto ok = check_own_slot(); !ok) return ok;
  }
  if (hosts_.heartbeat_is_foreign()) return end_by_conflict();
  hosts_.observe_moved(now_ns);
  if (c_.ended()) return fenced_error();
  if (live) leases_.flush();
  hosts_.publish_heartbeat(now_ns, live);
  if (live) leases_.revoke_expired(now_ns);
  return {};
}

template <class A>
Result<void> Membership<A>::work() {
  if (c_.alone()) {
    growth_.refresh();
    drain_sets(c_.access.now_ns() + uint64_t{c_.times.heartbeat_ms} * 250'000);
    return {};
  }
  if (c_.ended()) return fenced_error();
  retirement_.reap(/*wait=*/false);
  extents_.map_read_only();
  const uint64_t now_ns = c_.access.now_ns();
  growth_.refresh();
  mirror_.keep_up(lookup_.other_hosts(), now_ns + uint64_t{c_.times.heartbeat_ms} * 250'000);
  if (!hosts_.take_duties(now_ns)) return {};
  if (now_ns - shown_at_ns_ >= uint64_t{c_.times.heartbeat_ms} * 5'000'000) {
    shown_at_ns_ = now_ns;
    grants_.show_room();
    usage_.flush();
  }
  growth_.work();
  grants_.note_wanted();
  take_touches(now_ns);
  mail_.read_mail();
  succeed_the_dead();
  namespaces_.work(c_.access.now_ns() + uint64_t{c_.times.heartbeat_ms} * 62'500);
  if (custody_.settle_extents(now_ns, /*locked=*/false))
    hosts_.note_duties_done(c_.access.now_ns());
  drain_sets(c_.access.now_ns() + uint64_t{c_.times.heartbeat_ms} * 250'000);
  return c_.ended() ? fenced_error() : Result<void>{};
}

template <class A>
Result<void> Membership<A>::vouch_fenced(uint32_t host) {
  if (host >= hosts_.count() || host == c_.host)
    return Error{Status::INVALID_ARGUMENT,
                 "host " + std::to_string(host) + " is " +
                     (host == c_.host ? "this host itself" : "out of range")};
  const auto slot = hosts_.read_slot(host);
  hosts_.observe(c_.access.now_ns());
  // If a host died while it joined, its slot may not show lives that are over, or one more that was
  // agreed on; and lines of the slot may be damaged.
  const uint64_t ended = c_.view(host).ended;
  Life life{host, slot ? slot->incarnation : 0u};
  if (ended > life.incarnation) life.incarnation = static_cast<uint32_t>(ended - 1);
  const auto next = hosts_.successor(life);
  const bool may_write =
      (!c_.ended(life) && life.incarnation != 0 && slot->state != BH_HOST_LEFT) ||
      (next && next->host == host && next->incarnation > life.incarnation);
  if (may_write)
    return Error{Status::BUSY, "host " + std::to_string(host) +
                                   " has not been declared dead; if its machine is off, the other "
                                   "hosts do so within seconds: try again then"};
  if (life.incarnation == 0)
    return Error{
        Status::INVALID_ARGUMENT,
        "host slot " + std::to_string(host) +
            (slot ? " was never used" : " cannot be read; `bowhead pool repair` mends it")};
  for (uint32_t p = 0; p < c_.layout.geometry().process_count; ++p) {
    if (c_.access.process_alive(host, p))
      return Error{Status::IN_USE, "a process of host " + std::to_string(host) +
                                       " runs on this machine, and may store: end it first"};
  }
  hosts_.vouch_fenced(life);
  return {};
}

template <class A>
void Membership<A>::go_live(const bh_host_slot& slot) {
  own_slot_ = slot;
  live_.store(true, std::memory_order_release);
}

/// Only this host writes the slot line: another nonce in it means that another machine, or a copy
/// of this one, runs as the same host. But a claim is no life yet, and a machine that comes late
/// with a claim writes the content that the slot had before this life.
template <class A>
Result<void> Membership<A>::check_own_slot() {
  const auto slot = hosts_.read_slot(c_.host);
  const bool ours = slot && slot->nonce == own_slot_.nonce && slot->incarnation == c_.incarnation;
  if (ours && (slot->state == BH_HOST_LEFT || (slot->state == BH_HOST_LIVE && slot->claim == 0))) {
    own_slot_ = *slot;
    return {};
  }
  if (!slot || ours || slot->incarnation < c_.incarnation) {  // or damaged
    if (slot) own_slot_.turn = std::max(own_slot_.turn, slot->turn);
    own_slot_.claim = 0;
    own_slot_ = hosts_.write_slot(own_slot_, BH_HOST_LIVE);
    return {};
  }
  if (hosts_.decided({c_.host, c_.incarnation})) return {};  // observe() sees it too
  hosts_.end_own_life(/*conflict=*/true);
  return fenced_error();
}

template <class A>
Error Membership<A>::fenced_error() const {
  if (c_.access.media_failed()) return Error{Status::MEDIA_ERROR, {}};
  const std::string host = "host " + std::to_string(c_.host);
  if (c_.gone() == Status::HOST_ID_CONFLICT)
    return Error{Status::HOST_ID_CONFLICT, "another machine, or a copy of this one, runs as " +
                                               host + " too; give each its own --host"};
  return Error{Status::HOST_FENCED,
               host +
                   " stood still too long and was declared dead by the others; close the pool "
                   "and open it again to rejoin"};
}

/// A copy of this machine keeps a heartbeat as this host. Both must end, since the private part
/// that they share must be taken for damaged. The copy learns it from the slot line.
template <class A>
Error Membership<A>::end_by_conflict() {
  if (live_.load(std::memory_order_acquire)) {
    own_slot_.nonce = c_.access.random() ^ c_.access.now_ns();
    hosts_.write_slot(own_slot_, own_slot_.state);
  }
  hosts_.end_own_life(/*conflict=*/true);
  return fenced_error();
}

template <class A>
void Membership<A>::succeed_the_dead(bool locked) {
  uint64_t before = 0;  // live hosts that should propose first
  for (uint32_t h = 0; h < c_.host; ++h) before += hosts_.shows_life(h) && !hosts_.suspect(h);
  const uint64_t wait_ms = before * 2 * uint64_t{c_.times.heartbeat_ms};
  for (uint32_t h = 0; h < hosts_.count(); ++h) {
    if (h == c_.host) continue;
    const auto slot = hosts_.read_slot(h);
    const bool unused = slot && slot->incarnation == 0 && grants_.wanted() && !c_.ended({h, 0});
    const auto suspect = unused ? Life{h, 0} : hosts_.suspect(h, wait_ms);
    if (!suspect) continue;
    if (c_.ended()) return;  // a life that is over decides nothing
    // Two hosts that propose in step would outbid each other for ever.
    if (hosts_.begun(*suspect) && c_.access.random() % 4 != 0) continue;
    {
      const HostLock lock(c_, locked);
      if (!lock.held()) return;
      hosts_.decide(*suspect, Life{c_.host, c_.incarnation}.value());
    }
    hosts_.observe(c_.access.now_ns());
    if (unused || c_.ended()) return;  // one at a time
  }
}

template <class A>
bool Membership<A>::suspected() {
  const Life self{c_.host, c_.incarnation};
  if (!hosts_.begun(self)) {
    suspected_since_ns_ = 0;
    return false;
  }
  const uint64_t now_ns = c_.access.now_ns();
  if (suspected_since_ns_ == 0) suspected_since_ns_ = now_ns;
  if (now_ns - suspected_since_ns_ > uint64_t{c_.times.dead_ms} * 1'000'000) {
    hosts_.decide(self, Life{c_.host, c_.incarnation + 1}.value());
    hosts_.observe(c_.access.now_ns());
  }
  return true;
}

template <class A>
void Membership<A>::drain_sets(uint64_t until_ns) {
  for (const Set& set : c_.layout.sets().list) {
    if (!set.drains) continue;
    const auto may_say = growth_.may_say_drained(set);
    const bool drained = space_.drain(set, until_ns);
    if (!may_say) continue;
    if (drained) growth_.clean_extents(set, *may_say);
    const HostLock lock(c_);
    if (!lock.held()) return;
    growth_.say_drained(*may_say, drained);
  }
}

/// Touches of this host's processes since the last call. They are flushed one by one.
template <class A>
void Membership<A>::count_touches() {
  const uint64_t touched_at = c_.private_word(offsetof(bh_host_private, touched));
  if (c_.access.load_relaxed(touched_at) == 0) return;
  c_.access.store(touched_at, 0);
  touch_counts_.raise();
}

template <class A>
void Membership<A>::take_touches(uint64_t now_ns) {
  if (now_ns - touches_at_ns_ < uint64_t{c_.times.heartbeat_ms} * 5'000'000) return;
  touches_at_ns_ = now_ns;
  count_touches();
  untaken_ |= touch_counts_.moved();
  const uint64_t taken = untaken_ & lookup_.other_hosts();
  untaken_ &= ~taken;
  const uint64_t count = c_.layout.geometry().touch_count;
  touches_.resize(count * hosts_.count());
  for (uint64_t left = taken; left != 0; left &= left - 1) {
    const auto host = static_cast<uint32_t>(std::countr_zero(left));
    c_.access.acquire(c_.layout.part(host, BH_PART_TOUCH), 8 * count);
    for (uint64_t i = 0; i < count; ++i) {
      const uint64_t word = c_.access.load_relaxed(c_.layout.word(host, BH_PART_TOUCH, i));
      uint64_t& seen = touches_[host * count + i];
      if (word == seen) continue;
      seen = word;
      const uint64_t slot = touch_slot(word);
      if (slot < c_.layout.slot_limit() && extents_.holds(c_.layout.extent_of_slot(slot)))
        c_.store_recency(slot, c_.access.recency_ns());
    }
  }
}

}  // namespace bowhead::core
