// SPDX-License-Identifier: Apache-2.0
// Mail between hosts: lines in which one host asks another for extents or for the removal of a key,
// and the other reports when that is done.
//
// Owns: nothing in this process; the host's lines. Calls: KeyLocks; to do requests: Grants,
// Retirement.
#pragma once

#include "pool/core/key_locks.h"

namespace bowhead::core {

template <class A>
class Mail {
 public:
  explicit Mail(const Rooms<A>& rooms)
      : c_(rooms.context),
        hosts_(rooms.hosts),
        locks_(rooms.locks),
        retirement_(rooms.retirement),
        grants_(rooms.grants) {}
  Mail(const Mail&) = delete;
  Mail& operator=(const Mail&) = delete;

  /// Waits for the answer. OK: the host has removed its blocks of the key, and its life stood after
  /// that (S6). BUSY: it may still remove them.
  Status ask_to_remove(Life owner, const Hash128& hash);
  /// Asks for up to `count` extents, unless an earlier request still stands.
  void ask_for_extents(uint32_t peer, uint64_t count);
  /// Withdraws own requests that were answered, or never will be, and does those of other hosts.
  void read_mail();

 private:
  static constexpr uint64_t kMailLines = BH_MAIL_AREA_BYTES / sizeof(bh_mail);
  std::optional<uint64_t> post(uint32_t peer, bh_mail& mail);
  bh_mail read_mail_line(uint32_t host, uint32_t peer, uint64_t index) const;
  static bool asks(const bh_mail& mail) {
    return mail.kind == BH_MAIL_WANT || mail.kind == BH_MAIL_REMOVE;
  }
  static Hash128 mail_lock(uint32_t peer) { return {peer, 0}; }
  template <class Change>
  bool change_mail_line(uint32_t peer, uint64_t index, Change change);
  void withdraw(uint32_t peer, uint64_t index, uint64_t sequence);
  void do_request(uint32_t peer, uint64_t index, const bh_mail& request);

  Context<A>& c_;
  Hosts<A>& hosts_;
  KeyLocks<A>& locks_;
  Retirement<A>& retirement_;
  Grants<A>& grants_;
};

template <class A>
Status Mail<A>::ask_to_remove(Life owner, const Hash128& hash) {
  if (c_.ended(owner)) return Status::BUSY;  // its successor is about to take over
  bh_mail mail{};
  mail.kind = BH_MAIL_REMOVE;
  mail.key_hash[0] = hash.low;
  mail.key_hash[1] = hash.high;
  const auto line = post(owner.host, mail);
  if (!line) return Status::BUSY;
  const uint64_t answer_at = c_.layout.mail(owner.host, c_.host, *line);
  const uint64_t deadline_ns = c_.access.now_ns() + kLockWaitNs;
  for (;;) {
    c_.access.acquire(answer_at, BH_LINE_BYTES);
    const bool answered = read_mail_line(owner.host, c_.host, *line).answered == mail.sequence;
    const bool given_up = c_.ended(owner) || c_.ended() || c_.access.now_ns() > deadline_ns;
    if (answered || given_up) withdraw(owner.host, *line, mail.sequence);
    if (answered) return hosts_.stands(owner) ? Status::OK : Status::BUSY;
    if (given_up) return c_.ended() ? c_.gone() : Status::BUSY;
    c_.access.sleep_ns(uint64_t{c_.times.heartbeat_ms} * 50'000);
  }
}

template <class A>
void Mail<A>::read_mail() {
  const bool want_is_old = grants_.want_is_old();
  for (uint32_t h = 0; h < hosts_.count(); ++h) {
    if (h == c_.host) continue;
    const auto slot = hosts_.read_slot(h);
    const bool over = !slot || c_.ended({h, slot->incarnation});
    c_.access.acquire(c_.layout.mail(h, c_.host, 0), BH_MAIL_AREA_BYTES);
    for (uint64_t i = 0; i < kMailLines; ++i) {
      const bh_mail ours = read_mail_line(c_.host, h, i);
      const bh_mail theirs = read_mail_line(h, c_.host, i);
      if (asks(ours) &&
          (over || ours.incarnation != c_.incarnation || ours.sequence == theirs.answered ||
           (ours.kind == BH_MAIL_WANT && want_is_old)))
        withdraw(h, i, ours.sequence);
      if (asks(theirs) && theirs.sequence != ours.answered && !c_.ended({h, theirs.incarnation}))
        do_request(h, i, theirs);
    }
  }
}

template <class A>
void Mail<A>::ask_for_extents(uint32_t peer, uint64_t count) {
  for (uint64_t i = 0; i < kMailLines; ++i) {
    if (read_mail_line(c_.host, peer, i).kind == BH_MAIL_WANT) return;
  }
  bh_mail mail{};
  mail.kind = BH_MAIL_WANT;
  mail.count = count;
  post(peer, mail);
}

/// Returns the line of the request; none if all lines to that host, or their lock, are taken.
template <class A>
std::optional<uint64_t> Mail<A>::post(uint32_t peer, bh_mail& mail) {
  const KeyLock lock(locks_, mail_lock(peer), kShortLockWaitNs);
  if (!lock.held()) return std::nullopt;
  for (uint64_t i = 0; i < kMailLines; ++i) {
    const bh_mail old = read_mail_line(c_.host, peer, i);
    if (asks(old)) continue;
    mail.incarnation = c_.incarnation;
    mail.sequence = c_.access.random();
    mail.answered = old.answered;
    c_.write_sealed(c_.layout.mail(c_.host, peer, i), to_line(mail));
    return i;
  }
  return std::nullopt;
}

/// A line that is not sealed holds no request and no answer.
template <class A>
bh_mail Mail<A>::read_mail_line(uint32_t host, uint32_t peer, uint64_t index) const {
  Line line;
  return c_.read_sealed(c_.layout.mail(host, peer, index), line) ? from_line<bh_mail>(line)
                                                                 : bh_mail{};
}

/// An own line is written under its lock, since its request and its answer are changed by different
/// callers. Without the lock it may be seen half written. False if the lock cannot be had: the next
/// heartbeat tries again. change(line) returns whether it changed the line.
template <class A>
template <class Change>
bool Mail<A>::change_mail_line(uint32_t peer, uint64_t index, Change change) {
  const KeyLock lock(locks_, mail_lock(peer), kShortLockWaitNs);
  if (!lock.held()) return false;
  bh_mail mail = read_mail_line(c_.host, peer, index);
  if (change(mail)) c_.write_sealed(c_.layout.mail(c_.host, peer, index), to_line(mail));
  return true;
}

template <class A>
void Mail<A>::withdraw(uint32_t peer, uint64_t index, uint64_t sequence) {
  change_mail_line(peer, index, [&](bh_mail& mail) {
    if (mail.sequence != sequence) return false;
    const uint64_t answered = mail.answered;
    mail = {};
    mail.answered = answered;
    return true;
  });
}

/// Another process of this host may be doing the same request. Once it has answered, the key may
/// have been put again; so a block is removed only if it was found while there was no answer.
template <class A>
void Mail<A>::do_request(uint32_t peer, uint64_t index, const bh_mail& request) {
  uint64_t last = 0;
  const bool read = change_mail_line(peer, index, [&](const bh_mail& mail) {
    last = mail.answered;
    return false;
  });
  if (!read || last == request.sequence) return;
  const auto not_answered = [&] {
    bool same = false;
    change_mail_line(peer, index, [&](const bh_mail& mail) {
      same = mail.answered == last;
      return false;
    });
    return same;
  };
  if (request.kind == BH_MAIL_REMOVE) {
    const Status removed = retirement_.remove_own(hash_of(request), kShortLockWaitNs, not_answered);
    if (removed != Status::OK && removed != Status::NOT_FOUND) return;  // retry at next heartbeat
  } else {
    grants_.give(request.count, {peer, request.incarnation});
  }
  change_mail_line(peer, index, [&](bh_mail& mail) {
    if (mail.answered != last) return false;
    mail.answered = request.sequence;
    return true;
  });
}

}  // namespace bowhead::core
