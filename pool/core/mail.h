// SPDX-License-Identifier: Apache-2.0
// Mail between hosts: lines in which one host asks another for extents or for the removal of a key,
// and the other reports when that is done.
//
// Owns: the counts of mail seen, and which requests are still to be done; the host's lines. Calls:
// KeyLocks; to do requests: Grants, Retirement.
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
        grants_(rooms.grants),
        mails_(rooms.context, offsetof(bh_host_counts, mails)) {}
  Mail(const Mail&) = delete;
  Mail& operator=(const Mail&) = delete;

  /// Asks for the removal of keys, as many at once as there are lines, and waits for the answers.
  /// done(i, status): OK: the host has removed its blocks of the key, and its life stood after that
  /// (S6). BUSY: it may still remove them.
  template <class Done>
  void ask_to_remove(Life owner, std::span<const Hash128> keys, Done done);
  /// Asks for up to `count` extents, unless an earlier request still stands.
  void ask_for_extents(uint32_t peer, uint64_t count);
  /// Withdraws own requests that were answered, or never will be, and does those of other hosts.
  void read_mail();

 private:
  static constexpr uint64_t kMailLines = BH_MAIL_AREA_BYTES / sizeof(bh_mail);
  static constexpr size_t kRemovalsAtOnce = 16;  ///< of one call; other callers need lines too
  void read_mail_of(uint32_t host);
  void write_line(uint32_t peer, uint64_t index, const bh_mail& mail);
  void change_asked(uint32_t peer, bool asked);
  std::optional<uint64_t> post(uint32_t peer, bh_mail& mail);
  bh_mail read_mail_line(uint32_t host, uint32_t peer, uint64_t index) const;
  static bool asks(const bh_mail& mail) {
    return mail.kind == BH_MAIL_WANT || mail.kind == BH_MAIL_REMOVE;
  }
  static Hash128 mail_lock(uint32_t peer) { return {peer, 0}; }
  template <class Change>
  bool change_mail_line(uint32_t peer, uint64_t index, Change change);
  void withdraw(uint32_t peer, uint64_t index, uint64_t sequence);
  bool do_request(uint32_t peer, uint64_t index, const bh_mail& request);

  Context<A>& c_;
  Hosts<A>& hosts_;
  KeyLocks<A>& locks_;
  Retirement<A>& retirement_;
  Grants<A>& grants_;

  Counts<A> mails_;
  uint64_t unanswered_ = 0;  ///< hosts (a bit each) with a request that is still to be done
};

template <class A>
template <class Done>
void Mail<A>::ask_to_remove(Life owner, std::span<const Hash128> keys, Done done) {
  struct Request {
    size_t key;
    uint64_t line, sequence, deadline_ns;
  };
  std::array<Request, kRemovalsAtOnce> open;
  size_t open_count = 0, next = 0;
  // Without any answer for so long the host is given up, whatever is left to ask.
  uint64_t patience_ns = c_.access.now_ns() + kLockWaitNs;
  bool gave_up = false;
  while (next < keys.size() || open_count > 0) {
    const bool asks_on = !gave_up && !c_.ended(owner) && !c_.ended();
    while (asks_on && next < keys.size() && open_count < open.size()) {
      bh_mail mail{};
      mail.kind = BH_MAIL_REMOVE;
      mail.key_hash[0] = keys[next].low;
      mail.key_hash[1] = keys[next].high;
      const auto line = post(owner.host, mail);
      if (!line) break;
      open[open_count++] = {next++, *line, mail.sequence, c_.access.now_ns() + kLockWaitNs};
    }
    // The successor is about to take over, or no line was free for all that time.
    if (open_count == 0 && (!asks_on || c_.access.now_ns() > patience_ns)) {
      done(next++, c_.ended() ? c_.gone() : Status::BUSY);
      gave_up = true;
      continue;
    }
    size_t kept = 0;
    for (size_t i = 0; i < open_count; ++i) {
      const Request& one = open[i];
      c_.access.acquire(c_.layout.mail(owner.host, c_.host, one.line), BH_LINE_BYTES);
      const bool answered = read_mail_line(owner.host, c_.host, one.line).answered == one.sequence;
      const bool given_up = c_.ended(owner) || c_.ended() || c_.access.now_ns() > one.deadline_ns;
      if (!answered && !given_up) {
        open[kept++] = one;
        continue;
      }
      withdraw(owner.host, one.line, one.sequence);
      if (answered) {
        patience_ns = c_.access.now_ns() + kLockWaitNs;
        done(one.key, hosts_.stands(owner) ? Status::OK : Status::BUSY);
      } else {
        gave_up = true;
        done(one.key, c_.ended() ? c_.gone() : Status::BUSY);
      }
    }
    if (kept == open_count) c_.access.sleep_ns(uint64_t{c_.times.heartbeat_ms} * 50'000);
    open_count = kept;
  }
}

/// Of hosts that may have written a line since the last call, of those with a request of theirs or
/// ours that stands, and of one in turn.
template <class A>
void Mail<A>::read_mail() {
  const uint64_t asked = c_.access.load(c_.private_word(offsetof(bh_host_private, asked_hosts)));
  const uint64_t others =
      ~uint64_t{0} >> (BH_HOSTS_MAX - hosts_.count()) & ~(uint64_t{1} << c_.host);
  const uint64_t hosts = unanswered_ | asked | mails_.moved() | mails_.in_turn();
  for (uint64_t left = hosts & others; left != 0; left &= left - 1)
    read_mail_of(static_cast<uint32_t>(std::countr_zero(left)));
}

template <class A>
void Mail<A>::read_mail_of(uint32_t host) {
  const bool want_is_old = grants_.want_is_old();
  const auto slot = hosts_.read_slot(host);
  const bool over = !slot || c_.ended({host, slot->incarnation});
  // Cleared before the own lines are read: a process that writes a request later sets it again.
  change_asked(host, false);
  const uint64_t bit = uint64_t{1} << host;
  unanswered_ &= ~bit;
  c_.access.acquire(c_.layout.mail(host, c_.host, 0), BH_MAIL_AREA_BYTES);
  for (uint64_t i = 0; i < kMailLines; ++i) {
    const bh_mail ours = read_mail_line(c_.host, host, i);
    const bh_mail theirs = read_mail_line(host, c_.host, i);
    if (asks(ours) &&
        (over || ours.incarnation != c_.incarnation || ours.sequence == theirs.answered ||
         (ours.kind == BH_MAIL_WANT && want_is_old)))
      withdraw(host, i, ours.sequence);
    if (asks(theirs) && theirs.sequence != ours.answered && !c_.ended({host, theirs.incarnation}) &&
        !do_request(host, i, theirs))
      unanswered_ |= bit;
    if (asks(ours)) change_asked(host, true);
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
  // Removals leave one line for a request for extents.
  const uint64_t lines = mail.kind == BH_MAIL_WANT ? kMailLines : kMailLines - 1;
  for (uint64_t i = 0; i < lines; ++i) {
    const bh_mail old = read_mail_line(c_.host, peer, i);
    if (asks(old)) continue;
    mail.incarnation = c_.incarnation;
    mail.sequence = c_.access.random();
    mail.answered = old.answered;
    write_line(peer, i, mail);
    change_asked(peer, true);
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
  if (change(mail)) write_line(peer, index, mail);
  return true;
}

template <class A>
void Mail<A>::write_line(uint32_t peer, uint64_t index, const bh_mail& mail) {
  c_.write_sealed(c_.layout.mail(c_.host, peer, index), to_line(mail));
  mails_.raise();
}

/// Sets or clears the bit that lets every process of this host look for the answer of a host.
template <class A>
void Mail<A>::change_asked(uint32_t peer, bool asked) {
  const uint64_t at = c_.private_word(offsetof(bh_host_private, asked_hosts));
  const uint64_t bit = uint64_t{1} << peer;
  uint64_t word = c_.access.load(at);
  while ((word & bit) != (asked ? bit : 0) && !c_.access.cas(at, word, word ^ bit)) {
  }
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

/// False if it is still to be done. Another process of this host may be doing the same request.
/// Once it has answered, the key may have been put again; so a block is removed only if it was
/// found while there was no answer.
template <class A>
bool Mail<A>::do_request(uint32_t peer, uint64_t index, const bh_mail& request) {
  uint64_t last = 0;
  const bool read = change_mail_line(peer, index, [&](const bh_mail& mail) {
    last = mail.answered;
    return false;
  });
  if (!read || last == request.sequence) return read;
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
    if (removed != Status::OK && removed != Status::NOT_FOUND) return false;
  } else {
    grants_.give(request.count, {peer, request.incarnation});
  }
  return change_mail_line(peer, index, [&](bh_mail& mail) {
    if (mail.answered != last) return false;
    mail.answered = request.sequence;
    return true;
  });
}

}  // namespace bowhead::core
