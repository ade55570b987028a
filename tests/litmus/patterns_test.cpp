// SPDX-License-Identifier: Apache-2.0
// The patterns between hosts without coherent caches: as written they are never stale, and each
// flush, invalidate and fence that is left out makes them stale.
#include <gtest/gtest.h>

#include "pool/litmus.h"
#include "pool/litmus_patterns.h"
#include "tests/support/cached_hosts.h"

namespace bowhead::test {
namespace {

using Patterns = LitmusPatterns<CachedAccess>;

/// Two sides. One acts in the middle of the other's operation, or before it, or after it.
class Trial {
 public:
  Trial(uint64_t seed, Fault writer, Fault reader)
      : hosts_(2 * Patterns::kBytes, 2, seed),
        access_{{hosts_, 0, writer}, {hosts_, 1, reader}},
        side_{{access_[0], 0, Patterns::kBytes}, {access_[1], Patterns::kBytes, 0}},
        random_(seed + 1) {
    hosts_.set_surprises(seed % 2 == 0);
  }

  /// Side 0 writes, or owns the block. Returns whether a side missed a store that it had to see.
  bool stale(LitmusPattern pattern, uint32_t slot, uint64_t value) {
    if (pattern == LitmusPattern::LEASE_AGAINST_RETIRE) side_[0].write_header(slot, value);
    side_[1].fetch_early();
    bool seen[2] = {};
    const auto act = [&](uint32_t which) { seen[which] = step(pattern, which, slot, value); };
    bool done[2] = {};
    hosts_.meanwhile = [&](uint32_t actor) {
      if (std::exchange(done[1 - actor], true)) return;
      act(1 - actor);
    };
    const auto first = static_cast<uint32_t>(random_.below(2));
    for (const uint32_t which : {first, 1 - first})
      if (!std::exchange(done[which], true)) act(which);
    hosts_.meanwhile = {};
    if (pattern != LitmusPattern::MESSAGE_PASSING) return !seen[0] && !seen[1];
    if (not_yet_) act(1);  // now that all is written
    return !seen[1] || not_yet_;
  }

 private:
  bool step(LitmusPattern pattern, uint32_t which, uint32_t slot, uint64_t value) {
    Patterns& side = side_[which];
    if (pattern == LitmusPattern::STORE_BUFFERING) return side.store_and_look(slot, value);
    if (pattern == LitmusPattern::LEASE_AGAINST_RETIRE)
      return which == 0 ? side.retire(slot, value) : side.take_lease(slot, value);
    if (which == 0) {
      side.write_message(slot, value);
      return true;
    }
    const auto arrival = side.read_message(slot, value);
    not_yet_ = arrival == Patterns::Arrival::NOT_YET;
    return arrival != Patterns::Arrival::STALE;
  }

  CachedHosts hosts_;
  CachedAccess access_[2];
  Patterns side_[2];
  Random random_;
  bool not_yet_ = false;
};

uint64_t count_stale(LitmusPattern pattern, Fault writer, Fault reader) {
  uint64_t stale = 0;
  for (uint64_t seed = 0; seed < 100; ++seed) {
    Trial trial(seed, writer, reader);
    uint64_t value = 1'000;
    for (uint32_t slot = 0; slot < Patterns::kSlots; ++slot)
      stale += trial.stale(pattern, slot, ++value);
  }
  return stale;
}

class EachPattern : public testing::TestWithParam<LitmusPattern> {};
INSTANTIATE_TEST_SUITE_P(Litmus, EachPattern,
                         testing::Values(LitmusPattern::MESSAGE_PASSING,
                                         LitmusPattern::STORE_BUFFERING,
                                         LitmusPattern::LEASE_AGAINST_RETIRE));

TEST_P(EachPattern, IsNeverStaleAsWritten) {
  EXPECT_EQ(count_stale(GetParam(), Fault::NONE, Fault::NONE), 0u);
}

TEST_P(EachPattern, DetectsEachOmission) {
  const bool message = GetParam() == LitmusPattern::MESSAGE_PASSING;
  for (const Fault fault : {Fault::NO_FLUSH, Fault::NO_FENCE_AFTER_FLUSH, Fault::NO_INVALIDATE,
                            Fault::NO_FENCE_AFTER_INVALIDATE}) {
    const bool of_writer = fault == Fault::NO_FLUSH || fault == Fault::NO_FENCE_AFTER_FLUSH;
    // The writer of a message invalidates nothing, and its reader flushes nothing.
    if (!message || of_writer) {
      EXPECT_GT(count_stale(GetParam(), fault, Fault::NONE), 0u) << static_cast<int>(fault);
    }
    if (!message || !of_writer) {
      EXPECT_GT(count_stale(GetParam(), Fault::NONE, fault), 0u) << static_cast<int>(fault);
    }
  }
}

}  // namespace
}  // namespace bowhead::test
