// SPDX-License-Identifier: Apache-2.0
// The three patterns of stores and loads that sharing between hosts rests on, as steps of the two
// sides, over an access policy. The caller makes both sides run them at the same time, and uses
// each value once.
//
// Each side has an area of kBytes that it alone writes: 2 x kSlots lines, each for one trial.
#pragma once

#include <bowhead/format/common.h>

#include <cstdint>

namespace bowhead {

template <class A>
class LitmusPatterns {
 public:
  static constexpr uint32_t kSlots = 24;
  static constexpr uint64_t kBytes = 2 * kSlots * BH_LINE_BYTES;

  LitmusPatterns(A& access, uint64_t own, uint64_t peer)
      : access_(access), own_(own), peer_(peer) {}

  // ---- message passing: data, then a flag. A reader that sees the flag must see the data ----

  /// Gives the reader old copies of all lines, as its caches may have.
  void fetch_early() const {
    for (uint64_t at = peer_; at < peer_ + kBytes; at += BH_LINE_BYTES) (void)access_.load(at);
  }
  void write_message(uint32_t slot, uint64_t value) {
    fill(second(own_, slot), value);
    access_.publish(second(own_, slot), BH_LINE_BYTES);
    access_.store(first(own_, slot), value);
    access_.publish(first(own_, slot), BH_LINE_BYTES);
  }
  enum class Arrival { NOT_YET, RIGHT, STALE };
  Arrival read_message(uint32_t slot, uint64_t value) const {
    access_.acquire(first(peer_, slot), BH_LINE_BYTES);
    if (access_.load(first(peer_, slot)) != value) return Arrival::NOT_YET;
    access_.acquire(second(peer_, slot), BH_LINE_BYTES);
    for (uint64_t word = 0; word < kDataWords; ++word)
      if (access_.load(second(peer_, slot) + word * 8) != value) return Arrival::STALE;
    return Arrival::RIGHT;
  }

  // ---- store buffering: each side stores its own, then loads the other's. One must see it ----

  /// Returns whether the other's store was seen.
  bool store_and_look(uint32_t slot, uint64_t value) {
    access_.store(first(own_, slot), value);
    barrier(first(own_, slot), first(peer_, slot));
    return access_.load(first(peer_, slot)) == value;
  }

  // ---- a lease against a retirement: as store buffering, with a header that the reader knew ----

  /// The owner, before the trial: stores a valid header.
  void write_header(uint32_t slot, uint64_t value) {
    fill(second(own_, slot), value);
    access_.publish(second(own_, slot), BH_LINE_BYTES);
  }
  /// The reader: names the block in a hazard word; returns whether it saw the header retired.
  bool take_lease(uint32_t slot, uint64_t value) {
    access_.store(first(own_, slot), value);
    barrier(first(own_, slot), second(peer_, slot));
    return access_.load(second(peer_, slot)) == retired(value);
  }
  /// The owner: retires the header; returns whether it saw the hazard.
  bool retire(uint32_t slot, uint64_t value) {
    access_.store(second(own_, slot), retired(value));
    barrier(second(own_, slot), first(peer_, slot));
    return access_.load(first(peer_, slot)) == value;
  }

 private:
  static constexpr uint64_t kDataWords = 7;

  static uint64_t first(uint64_t area, uint32_t slot) { return area + slot * BH_LINE_BYTES; }
  static uint64_t second(uint64_t area, uint32_t slot) { return first(area, kSlots + slot); }
  static uint64_t retired(uint64_t value) { return ~value; }

  void fill(uint64_t line, uint64_t value) {
    for (uint64_t word = 0; word < kDataWords; ++word) access_.store(line + word * 8, value);
  }
  /// Ensures that the store before it is in the memory before the load after it takes place.
  void barrier(uint64_t stored, uint64_t to_load) {
    access_.flush(stored, BH_LINE_BYTES);
    access_.fence();
    access_.invalidate(to_load, BH_LINE_BYTES);
    access_.coherence_fence();
  }

  A& access_;
  const uint64_t own_;
  const uint64_t peer_;
};

}  // namespace bowhead
