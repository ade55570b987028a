// SPDX-License-Identifier: Apache-2.0
// What every part of the core needs to know: where it runs and as whom.
#pragma once

#include <cstdint>

#include "pool/core/layout.h"
#include "pool/core/words.h"

namespace bowhead::core {

/// Outcome of trying to take a lock that a live process may hold (access policy).
enum class LockResult { TAKEN, HELD };

template <class A>
struct Context {
  A& access;
  const Layout layout;
  const Sealer sealer;
  const uint64_t
      instance;  ///< different for every handle of this process: names thread-local hints
  uint32_t host = 0;
  uint32_t incarnation = 0;
  uint32_t process = 0;

  /// One host has the pool to itself: nothing of the protocol between hosts is needed.
  bool alone() const { return layout.geometry().host_count == 1; }

  /// A word of a part of the own host's region.
  uint64_t own(uint32_t part, uint64_t index) const { return layout.word(host, part, index); }
  uint64_t block_word(uint64_t slot) const { return own(BH_PART_BLOCKS, slot); }

  void count(uint32_t counter, uint64_t delta = 1) {
    access.fetch_add(layout.process(host, process) + offsetof(bh_process, counters) + counter * 8,
                     delta);
  }
  /// A process of the own host, this one too, has this number now. Any number may be asked.
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

}  // namespace bowhead::core
