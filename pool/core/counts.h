// SPDX-License-Identifier: Apache-2.0
// Counts: which hosts may have written words of one kind since this process last looked, so that a
// heartbeat need not read the words of all hosts (bh_host_counts). A look costs a line per host.
//
// A count is a hint, and every use must be right if it is wrong:
//   - Its writer raises it after it has published the words, and may die in between; a life that is
//     over may write an old value back; the line may be damaged. Then a change is not seen until
//     the count moves again, or until the words are read in any case: those of one host in turn
//     (in_turn()), or all of them now and then.
//   - Where a fence does not wait for the memory, the count may be there before the words. So they
//     are read once more when they have settled.
//   - Words that are read late are read as by a host that stood still, for which the protocol
//     allows at any place. A step that is right only by words read after some other step (joining,
//     deciding, adopting, claiming, releasing a lease) reads them itself.
//
// Owns: the counts seen, of one kind. Calls: nothing.
#pragma once

#include <array>

#include "pool/core/context.h"

namespace bowhead::core {

template <class A>
class Counts {
 public:
  /// `member`: offset of the count in bh_host_counts.
  Counts(Context<A>& context, size_t member) : c_(context), member_(member) {}
  Counts(const Counts&) = delete;
  Counts& operator=(const Counts&) = delete;

  /// After the words were published. Any thread.
  void raise() const {
    c_.access.fetch_add(at(c_.host), 1);
    c_.access.publish(at(c_.host), 8);
  }

  /// The other hosts, a bit each, whose words are to be read now, after this call: the count moved
  /// since the last call, or the words may not have been in the memory then. At first all. One
  /// thread at a time.
  uint64_t moved() {
    const uint64_t begin_ns = c_.access.now_ns();
    const uint32_t count = c_.layout.geometry().host_count;
    for (uint32_t h = 0; h < count; ++h) c_.invalidate_from(h, at(h), 8);
    c_.access.coherence_fence();
    std::array<uint64_t, BH_HOSTS_MAX> counts;
    for (uint32_t h = 0; h < count; ++h) counts[h] = c_.access.load(at(h));
    // Words that were published before these counts are in the memory by then.
    const uint64_t settle_ns = c_.incoherent() ? uint64_t{c_.times.settle_ms} * 1'000'000 : 0;
    const uint64_t settled_at_ns = c_.access.now_ns() + settle_ns;
    uint64_t hosts = 0;
    for (uint32_t h = 0; h < count; ++h) {
      Seen& seen = seen_[h];
      if (h == c_.host) continue;
      if (counts[h] != seen.count || !seen.looked) seen = {counts[h], settled_at_ns, true, true};
      if (!seen.unsettled) continue;
      hosts |= uint64_t{1} << h;
      seen.unsettled = settle_ns != 0 && begin_ns < seen.settled_at_ns;
    }
    return hosts;
  }

  /// The bit of one host, the next at each call; no bit if it is the own host's turn.
  uint64_t in_turn() {
    const uint32_t host = turn_;
    turn_ = turn_ + 1 == c_.layout.geometry().host_count ? 0 : turn_ + 1;
    return host == c_.host ? 0 : uint64_t{1} << host;
  }

 private:
  struct Seen {
    uint64_t count = 0;
    uint64_t settled_at_ns = 0;
    bool looked = false;
    bool unsettled = false;  ///< no call has named the host since the words settled
  };
  uint64_t at(uint32_t host) const { return c_.layout.part(host, BH_PART_COUNTS) + member_; }

  Context<A>& c_;
  const size_t member_;
  std::array<Seen, BH_HOSTS_MAX> seen_{};
  uint32_t turn_ = 0;
};

}  // namespace bowhead::core
