// SPDX-License-Identifier: Apache-2.0
// What a heartbeat and the duties read of other hosts: little while nothing changes, at once what
// did change, and after some time also what changed without a count.
#include <gtest/gtest.h>

#include "tests/support/counted_hosts.h"

namespace bowhead::test {
namespace {

using core::Life;

constexpr uint64_t kSpace = 7;  ///< the core takes any number

/// Two of many hosts.
class Beats : public testing::TestWithParam<uint32_t> {
 protected:
  Beats() {
    for (int i = 0; i < 3; ++i) reader_.work();
  }
  uint32_t hosts() const { return GetParam(); }
  void watch(uint32_t part) { reader_.access().watch_words(pool_.layout(), part, 0); }
  uint64_t words() { return reader_.access().take_words(); }
  uint64_t ended(uint32_t host) { return reader_.core().context().view(host).ended; }
  Life life_of(CountedHost& host) {
    const auto& context = host.core().context();
    return {context.host, context.incarnation};
  }
  /// Behind the pool's back: the count of such words does not move.
  void store(uint64_t offset, uint64_t value) {
    std::memcpy(pool_.at(offset), &value, sizeof value);
  }
  /// The decision word of host 1 about a life, which says done.
  void store_decision(Life life) {
    const core::DecideWord word{.inst = life.incarnation,
                                .mbal = 65,
                                .bal = 65,
                                .val = life_of(writer_).value(),
                                .done = true};
    store(pool_.layout().word(1, BH_PART_DECIDE, life.host), word.pack());
  }
  core::OwnWord own_word(uint32_t host, uint64_t extent) {
    return core::OwnWord::unpack(
        pool_.read<uint64_t>(pool_.layout().word(host, BH_PART_OWN, extent)));
  }
  uint64_t held_by_reader() {
    uint64_t held = 0;
    for (uint64_t e = 0; e < pool_.extents(); ++e) {
      const core::OwnWord word = own_word(0, e);
      held += word.state == BH_OWN_OWN && word.incarnation == life_of(reader_).incarnation;
    }
    return held;
  }

  const SharedPool pool_{GetParam(),
                         {.size_bytes = GetParam() * (uint64_t{8} << 20), .evict_high_permille = 0},
                         kPatient};
  CountedHost reader_{pool_, 0};
  CountedHost writer_{pool_, 1};
};

TEST_P(Beats, ReadLittleWhileNothingChanges) {
  struct Row {
    uint32_t part;
    uint64_t words;  ///< at most, at each heartbeat
  };
  // Of decisions: those about the reader, and all of one host in turn.
  for (const Row row : {Row{BH_PART_DECIDE, 3 * hosts()}, Row{BH_PART_OWN, 0},
                        Row{BH_PART_TOUCH, 0}, Row{BH_PART_COUNTS, 4 * hosts()}}) {
    watch(row.part);
    uint32_t more = 0;
    for (int i = 0; i < 10; ++i) {
      reader_.work();
      more += words() > row.words ? 1 : 0;
    }
    EXPECT_LE(more, row.part == BH_PART_OWN ? 1u : 0u) << "part " << row.part;  // now and then all
  }
}

TEST_P(Beats, SeeADecisionAtOnce) {
  for (uint32_t host = 2; host < 8; ++host) {
    ASSERT_EQ(writer_.core().hosts().decide(Life{host, 0}, life_of(writer_).value()),
              core::Outcome::DECIDED);
    EXPECT_EQ(ended(host), 0u);
    reader_.work();
    EXPECT_EQ(ended(host), 1u) << "host " << host;
  }
}

TEST_P(Beats, SeeADecisionInTurnIfItsCountIsLost) {
  store_decision({5, 0});
  uint32_t beats = 0;
  for (; beats < hosts() && ended(5) == 0; ++beats) reader_.work();
  EXPECT_EQ(ended(5), 1u);
}

TEST_P(Beats, EndTheOwnLifeAtOnceIfItsCountIsLost) {
  store_decision(life_of(reader_));
  sleep_ms(kPatient.heartbeat_ms + 2);
  EXPECT_EQ(reader_.core().membership.heartbeat().status(), Status::HOST_FENCED);
}

TEST_P(Beats, TakeAnExtentAtOnce) {
  const uint64_t before = held_by_reader();
  writer_.core().grants.give(1, life_of(reader_));
  reader_.work();
  EXPECT_EQ(held_by_reader(), before + 1);
}

TEST_P(Beats, TakeAnExtentAfterAWhileIfItsCountIsLost) {
  const uint64_t before = held_by_reader(), extent = core::first_extent_of(pool_.layout(), 1);
  const core::OwnWord own = own_word(1, extent);
  ASSERT_EQ(own.state, BH_OWN_OWN);
  const core::OwnWord given{BH_OWN_GIVEN, own.epoch + 1, 0, life_of(reader_).incarnation,
                            life_of(writer_).incarnation};
  store(pool_.layout().word(1, BH_PART_OWN, extent), given.pack());
  uint64_t beats = 0;
  for (; beats <= core::kSurveyHeartbeats && held_by_reader() == before; ++beats) reader_.work();
  EXPECT_EQ(held_by_reader(), before + 1);
}

TEST_P(Beats, TakeTouchesOfAHostThatReadsHere) {
  const core::Key key(kSpace, "key");
  std::vector<std::byte> value(64, std::byte{1});
  const ConstSpan in[] = {{value.data(), value.size()}};
  const Span out[] = {{value.data(), value.size()}};
  ASSERT_EQ(reader_.core().writing.put(key, in), Status::OK);
  writer_.work();
  watch(BH_PART_TOUCH);
  for (int i = 0; i < 12; ++i) reader_.work();
  EXPECT_EQ(words(), 0u);
  for (int round = 0; round < 3; ++round) {
    ASSERT_TRUE(writer_.core().reading.get(key, out));
    for (int i = 0; i < 6; ++i) writer_.work();
    for (int i = 0; i < 12; ++i) reader_.work();
    EXPECT_EQ(words(), pool_.layout().geometry().touch_count) << "those of host 1, once";
  }
}

INSTANTIATE_TEST_SUITE_P(Hosts, Beats, testing::Values(8, 64));

}  // namespace
}  // namespace bowhead::test
