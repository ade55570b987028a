// SPDX-License-Identifier: Apache-2.0
// Channel: messages between two hosts, or a host and a device, through shared memory, without a
// lock.
//
// Each side has an area that it alone writes. The first line of an area holds two words: the
// session of the side, and its progress with the messages of the other. The other lines are slots,
// used in turn. A message is one line: seven words of the caller and a tag, stored last, which is
// session:12 | number of the message in the session, from 1:52, high to low. The progress word has
// the same form: session of the peer | number of the last message taken.
//
// A slot needs no seal. The writer stores the tag after the words, so a copy of the line with the
// tag has the words too: a line leaves a cache whole and with a prefix of the stores made (on Arm
// because the tag is stored with release). The reader loads the tag first, with acquire, and then
// the words: from the copy that had the tag, or from one fetched later, where the words are the
// same, since the writer stores to them again only after the reader has reported that it took the
// message, or that it follows a new session. A tag of an older round or session means "no message
// yet". The reader keeps messages that it took in private memory and never reads the slot again.
// While it waits it invalidates the slot each time, since a line may have been fetched early.
//
// A side that died comes back with open() and begins a new session; messages that it had sent and
// the peer had not taken are lost. It resumes the peer's messages after the last progress that it
// had published: those taken since come a second time. (Progress is published at the begin of a
// later poll(), so that messages that a poll returned and the caller did not handle come again.)
// The peer learns of the new session from the tags that open() writes to all slots, when it waits
// for a message; until it has reported that, no slot is free to send. So a restart of the sender
// may lose messages, and one of the receiver may repeat them; otherwise each comes once, in order.
//
// Words of the other side are trusted only so far that a damaged one can stop the channel, but
// cannot cause an access outside the two areas.
#pragma once

#include <bowhead/format/common.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <span>

#include "base/assert.h"
#include "base/coherence.h"

namespace bowhead::core {

/// The words of a message. An answer names its request by an id in the first word.
using Message = std::array<uint64_t, 7>;

/// One side of a channel. One thread at a time may send and one may poll; these may be two, and no
/// other process of the host may use the same areas meanwhile (the caller ensures it).
template <class A>
class Channel {
 public:
  /// Areas of `area_bytes`, whole lines. The peer passes the same areas, exchanged.
  Channel(A& access, uint64_t own_area, uint64_t peer_area, uint64_t area_bytes)
      : access_(access),
        own_area_(own_area),
        peer_area_(peer_area),
        slots_(area_bytes / BH_LINE_BYTES - 1) {
    BOWHEAD_ASSERT(own_area % BH_LINE_BYTES == 0 && peer_area % BH_LINE_BYTES == 0 &&
                   area_bytes % BH_LINE_BYTES == 0 && area_bytes >= 2 * BH_LINE_BYTES);
  }
  Channel(const Channel&) = delete;
  Channel& operator=(const Channel&) = delete;

  /// The number of messages that can be under way to the peer.
  uint64_t slots() const { return slots_; }

  /// Begins a session: before the first send or poll, or to start over. No thread may be in either.
  void open() {
    access_.acquire(own_area_, BH_LINE_BYTES);
    out_ = {};
    out_.session = access_.load(own_area_) % kSessions + 1;
    if (out_.session == kSessions) out_.session = 1;  // 0: never open
    for (uint64_t slot = 0; slot < slots_; ++slot)
      access_.store(slot_line(own_area_, slot) + kTagAt, make_tag(out_.session, 0));
    access_.publish(slot_line(own_area_, 0), slots_ * BH_LINE_BYTES);

    in_ = {};
    in_.session = load_peer_session();
    const uint64_t progress = access_.load(own_area_ + kProgressAt);
    if (session_of(progress) == in_.session) in_.next = cursor(number_of(progress));
    in_.reported = in_.next.number;
    access_.store(own_area_ + kProgressAt, make_tag(in_.session, in_.reported));
    access_.store(own_area_, out_.session);
    access_.publish(own_area_, BH_LINE_BYTES);
  }

  /// How many messages can be sent now: none until the peer has opened its side and polled.
  uint64_t free_slots() {
    if (room() == 0) look_for_room();
    return room();
  }

  /// Sends as many leading `messages` as there are free slots; returns how many. On return
  /// the peer can see them.
  size_t send(std::span<const Message> messages) {
    if (messages.size() > room()) look_for_room();
    const uint64_t count = std::min<uint64_t>(messages.size(), room());
    if (count == 0) return 0;
    const Cursor first = out_.next;
    advance(out_.next);
    for (uint64_t i = 1; i < count; ++i) {
      store_message(out_.next, messages[i]);
      advance(out_.next);
    }
    store_message(first, messages[0]);  // last: a reader that waits for it finds the others
    each_run(own_area_, first.slot, count,
             [&](uint64_t at, uint64_t size) { access_.flush(at, size); });
    access_.coherence_fence();
    return count;
  }
  bool send(const Message& message) { return send(std::span(&message, 1)) == 1; }

  /// Takes the messages that have arrived, at most as many as `out` holds; returns how many. Those
  /// of the poll before count as handled.
  size_t poll(std::span<Message> out) {
    if (in_.next.number - in_.reported > slots_ / 4) report_progress();
    const bool coherent = access_.flush_kind() == FlushKind::NONE;
    uint64_t taken = 0;
    uint64_t ahead = coherent ? slots_ : 1;  // lines to fetch anew; most polls find nothing
    uint64_t tag = 0;
    while (taken < out.size()) {
      const uint64_t wanted = std::min<uint64_t>({out.size() - taken, ahead, slots_});
      const uint64_t found = take(out.subspan(taken, wanted), tag);
      taken += found;
      if (found < wanted) break;
      ahead = std::max(2 * ahead, in_.expected);
    }
    if (taken != 0) in_.expected = taken;
    if (taken == 0 && !out.empty() && session_of(tag) != in_.session) follow_peer();
    return taken;
  }

  /// The session that open() began, of this side. For the sending thread.
  uint64_t session() const { return out_.session; }

  /// Session of the peer whose messages poll() takes; 0: it has not opened yet. When it changes,
  /// requests to the earlier one may never be answered. For the polling thread.
  uint64_t peer_session() const { return in_.session; }

 private:
  static constexpr uint64_t kProgressAt = 8;  // in an area's first line
  static constexpr uint64_t kTagAt = 56;      // in a slot
  static constexpr uint32_t kNumberBits = 52;
  static constexpr uint64_t kSessions = uint64_t{1} << (64 - kNumberBits);
  static constexpr uint64_t kNumbers = uint64_t{1} << kNumberBits;

  /// The number of messages before this place, and the slot of the next one.
  struct Cursor {
    uint64_t number = 0;
    uint64_t slot = 0;
  };

  static uint64_t make_tag(uint64_t session, uint64_t number) {
    return session << kNumberBits | number;
  }
  static uint64_t session_of(uint64_t tag) { return tag >> kNumberBits; }
  static uint64_t number_of(uint64_t tag) { return tag % kNumbers; }

  Cursor cursor(uint64_t number) const { return {number, number % slots_}; }
  void advance(Cursor& cursor) const {
    ++cursor.number;
    if (++cursor.slot == slots_) cursor.slot = 0;
  }
  static uint64_t slot_line(uint64_t area, uint64_t slot) {
    return area + (slot + 1) * BH_LINE_BYTES;
  }
  /// Calls f(offset, bytes) for the one or two runs of memory in which `count` slots lie.
  template <class F>
  void each_run(uint64_t area, uint64_t first, uint64_t count, const F& f) const {
    const uint64_t straight = std::min(count, slots_ - first);
    if (straight != 0) f(slot_line(area, first), straight * BH_LINE_BYTES);
    if (straight != count) f(slot_line(area, 0), (count - straight) * BH_LINE_BYTES);
  }

  uint64_t room() const { return out_.limit - out_.next.number; }

  void store_message(const Cursor& at, const Message& message) {
    const uint64_t line = slot_line(own_area_, at.slot);
    for (uint64_t i = 0; i < message.size(); ++i) access_.store(line + i * 8, message[i]);
    access_.store(line + kTagAt, make_tag(out_.session, at.number + 1));
  }

  void look_for_room() {
    access_.acquire(peer_area_, BH_LINE_BYTES);
    const uint64_t progress = access_.load(peer_area_ + kProgressAt);
    const uint64_t taken = number_of(progress);
    if (session_of(progress) == out_.session && taken <= out_.next.number)
      out_.limit = std::max(out_.limit, taken + slots_);
  }

  /// Takes messages up to the first slot without one, whose tag it leaves in `tag`.
  uint64_t take(std::span<Message> out, uint64_t& tag) {
    each_run(peer_area_, in_.next.slot, out.size(),
             [&](uint64_t at, uint64_t size) { access_.invalidate(at, size); });
    access_.coherence_fence();
    uint64_t found = 0;
    for (Message& message : out) {
      const uint64_t line = slot_line(peer_area_, in_.next.slot);
      tag = access_.load(line + kTagAt);
      if (tag != make_tag(in_.session, in_.next.number + 1)) break;
      for (uint64_t i = 0; i < message.size(); ++i) message[i] = access_.load(line + i * 8);
      advance(in_.next);
      ++found;
    }
    return found;
  }

  /// The next fence of a poll completes the flush.
  void report_progress() {
    in_.reported = in_.next.number;
    access_.store(own_area_ + kProgressAt, make_tag(in_.session, in_.reported));
    access_.flush(own_area_, BH_LINE_BYTES);
  }

  uint64_t load_peer_session() const {
    access_.acquire(peer_area_, BH_LINE_BYTES);
    return access_.load(peer_area_) % kSessions;
  }

  /// A slot has the tag of a session that this side does not follow: follows it once it is open.
  void follow_peer() {
    const uint64_t session = load_peer_session();
    if (session == in_.session) return;
    in_ = {};
    in_.session = session;
    report_progress();
  }

  struct alignas(BH_LINE_BYTES) Out {
    uint64_t session = 0;
    Cursor next;
    uint64_t limit = 0;  ///< number of the last message that has a free slot
  };
  struct alignas(BH_LINE_BYTES) In {
    uint64_t session = 0;
    Cursor next;
    uint64_t reported = 0;  ///< progress last stored
    uint64_t expected = 0;  ///< messages taken by the last poll that found any
  };

  A& access_;
  const uint64_t own_area_;
  const uint64_t peer_area_;
  const uint64_t slots_;
  Out out_;  // of the sending thread
  In in_;    // of the polling thread
};

}  // namespace bowhead::core
