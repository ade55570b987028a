// SPDX-License-Identifier: Apache-2.0
// The channel between hosts without coherent caches; with the faults that must be detected.
#include <gtest/gtest.h>

#include <memory>

#include "tests/channel/stream.h"
#include "tests/support/cached_hosts.h"

namespace bowhead::test {
namespace {

using core::Message;
using Side = core::Channel<CachedAccess>;

constexpr uint64_t kAreaBytes = 5 * BH_LINE_BYTES;

/// Host 0 sends to host 1; both can die and come back.
class TwoHosts {
 public:
  explicit TwoHosts(uint64_t seed, Fault sender_fault = Fault::NONE,
                    Fault receiver_fault = Fault::NONE)
      : hosts_(2 * kAreaBytes, 2, seed),
        access_{{hosts_, 0, sender_fault}, {hosts_, 1, receiver_fault}},
        random_(seed + 1) {
    start(0);
    start(1);
    hosts_.meanwhile = [this](uint32_t actor) {
      if (deaths_left_ > 0 && random_.below(30) == 0) {
        --deaths_left_;
        die(1 - actor);
      }
      act(1 - actor);
    };
  }

  CachedHosts& hosts() { return hosts_; }
  const Judge& judge() const { return judge_; }
  const std::string& fault() const { return fault_; }

  void start(uint32_t host) {
    busy_[host] = true;
    side_[host] = std::make_unique<Side>(access_[host], host * kAreaBytes, (1 - host) * kAreaBytes,
                                         kAreaBytes);
    side_[host]->open();
    busy_[host] = false;
    if (host == 0) {
      ++life_;
      sent_ = 0;
    } else {
      judge_.resume();
    }
  }
  void die(uint32_t host) {
    if (busy_[host]) return;
    hosts_.lose_cache(host);
    start(host);
  }
  /// Lets hosts die in the middle of the other's operation.
  void let_die(uint64_t times) { deaths_left_ = times; }
  void act(uint32_t host) {
    if (busy_[host]) return;  // it is itself in the middle of an operation
    busy_[host] = true;
    host == 0 ? send() : poll();
    busy_[host] = false;
  }
  void run(uint64_t acts) {
    for (uint64_t i = 0; i < acts && fault_.empty(); ++i)
      act(static_cast<uint32_t>(random_.below(2)));
  }

 private:
  void send() {
    std::vector<Message> messages;
    for (uint64_t i = random_.below(6); i > 0; --i)
      messages.push_back(make_message(life_, sent_ + messages.size() + 1));
    sent_ += side_[0]->send(messages);
  }
  void poll() {
    std::vector<Message> messages(random_.below(6));
    messages.resize(side_[1]->poll(messages));
    for (const Message& message : messages)
      if (const std::string fault = judge_.see(message); fault_.empty()) fault_ = fault;
  }

  CachedHosts hosts_;
  CachedAccess access_[2];
  Random random_;
  std::unique_ptr<Side> side_[2];
  bool busy_[2] = {};
  uint64_t life_ = 0;
  uint64_t sent_ = 0;
  uint64_t deaths_left_ = 0;
  Judge judge_;
  std::string fault_;
};

constexpr uint64_t kSeeds = 300;

TEST(ChannelCaches, EveryMessageComesOnceInOrder) {
  for (uint64_t seed = 0; seed < kSeeds; ++seed) {
    TwoHosts pair(seed);
    pair.hosts().set_surprises(seed % 2 == 0);
    pair.run(500);
    ASSERT_EQ(pair.fault(), "") << seed;
    ASSERT_GT(pair.judge().last(), 100u) << seed;
    ASSERT_EQ(pair.judge().duplicates(), 0u) << seed;
  }
}

TEST(ChannelCaches, HostsDieAndComeBack) {
  uint64_t duplicates = 0;
  for (uint64_t seed = 0; seed < kSeeds; ++seed) {
    TwoHosts pair(seed);
    Random random(seed);
    pair.let_die(20);
    for (uint64_t deaths = 0; deaths < 20; ++deaths) {
      pair.run(random.below(60));
      pair.die(static_cast<uint32_t>(random.below(2)));
      ASSERT_EQ(pair.fault(), "") << seed;
    }
    pair.let_die(0);
    pair.die(0);
    pair.run(500);
    ASSERT_EQ(pair.fault(), "") << seed;
    ASSERT_GT(pair.judge().last(), 100u) << seed;
    duplicates += pair.judge().duplicates();
  }
  EXPECT_GT(duplicates, 0u) << "nothing came twice: the deaths missed the critical steps";
}

/// The number of seeds that detect the fault.
struct Shown {
  uint64_t wrong = 0;
  uint64_t stuck = 0;
};
Shown show(Fault sender, Fault receiver, bool surprises) {
  Shown shown;
  for (uint64_t seed = 0; seed < kSeeds; ++seed) {
    TwoHosts pair(seed, sender, receiver);
    pair.hosts().set_surprises(surprises);
    pair.run(500);
    shown.wrong += !pair.fault().empty();
    shown.stuck += pair.judge().last() < 100;
  }
  return shown;
}

TEST(ChannelCaches, TheOrderOfTheWordsIsNeeded) {
  EXPECT_GT(show(Fault::LAST_WORD_STORED_FIRST, Fault::NONE, true).wrong, 0u);
  EXPECT_GT(show(Fault::NONE, Fault::LAST_WORD_LOADED_LAST, true).wrong, 0u);
}

TEST(ChannelCaches, FlushesAndInvalidatesAreNeededToArriveNotToBeRight) {
  const std::pair<Fault, Fault> faults[] = {
      {Fault::NO_FLUSH, Fault::NONE},      {Fault::NONE, Fault::NO_FLUSH},
      {Fault::NO_INVALIDATE, Fault::NONE}, {Fault::NONE, Fault::NO_INVALIDATE},
      {Fault::NO_FENCE, Fault::NONE},      {Fault::NONE, Fault::NO_FENCE}};
  for (const auto& [sender, receiver] : faults) {
    EXPECT_GT(show(sender, receiver, /*surprises=*/false).stuck, kSeeds / 2);
    EXPECT_EQ(show(sender, receiver, /*surprises=*/true).wrong, 0u);
  }
}

}  // namespace
}  // namespace bowhead::test
