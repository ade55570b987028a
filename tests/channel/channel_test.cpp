// SPDX-License-Identifier: Apache-2.0
// The channel on real memory: between threads, between processes, and across deaths of either side.
#include "pool/core/channel.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>

#include <atomic>
#include <memory>
#include <thread>

#include "pool/core/access.h"
#include "pool/media/media.h"
#include "tests/channel/stream.h"
#include "tests/support/pools.h"

namespace bowhead::test {
namespace {

using core::Message;
using core::NativeAccess;
using Side = core::Channel<NativeAccess>;

/// Memory for a channel, and one side at a time in a thread or process.
class Memory {
 public:
  Memory() : locator_(unique_locator()), owner_(getpid()) {
    auto media = create_media(locator_, {.size_bytes = kMediaGrainBytes});
    BOWHEAD_ASSERT(media);
    media_ = std::move(media).value();
  }
  ~Memory() {
    if (owner_ == getpid()) (void)remove_media(locator_);
  }
  const std::string& locator() const { return locator_; }
  uint64_t* words() const { return reinterpret_cast<uint64_t*>(media_->base()); }

 private:
  std::string locator_;
  pid_t owner_;
  std::unique_ptr<Media> media_;
};

class End {
 public:
  End(const Memory& memory, uint32_t which, uint64_t area_bytes, FlushKind kind) {
    auto media = open_media(memory.locator());
    BOWHEAD_ASSERT(media);
    media_ = std::move(media).value();
    access_ = std::make_unique<NativeAccess>(*media_, kind);
    side_ =
        std::make_unique<Side>(*access_, which * area_bytes, (1 - which) * area_bytes, area_bytes);
    side_->open();
  }
  Side& side() { return *side_; }
  void relax(uint32_t round) { access_->relax(round); }

 private:
  std::unique_ptr<Media> media_;
  std::unique_ptr<NativeAccess> access_;
  std::unique_ptr<Side> side_;
};

constexpr uint64_t kBatchMax = 200;

/// Sends messages `from`..`to` of a life in batches of random size.
void send_all(End& end, uint64_t life, uint64_t from, uint64_t to, Random& random) {
  std::vector<Message> messages;
  for (uint32_t round = 0; from <= to;) {
    messages.clear();
    const uint64_t count = std::min(to - from + 1, random.below(kBatchMax) + 1);
    for (uint64_t i = 0; i < count; ++i) messages.push_back(make_message(life, from + i));
    const uint64_t sent = end.side().send(messages);
    from += sent;
    sent == 0 ? end.relax(round++) : void(round = 0);
  }
}

/// Receives messages in batches of random size up to number `to` of life `life`; returns the error.
std::string take_all(End& end, uint64_t life, uint64_t to, Random& random) {
  Judge judge;
  std::vector<Message> messages(kBatchMax);
  for (uint32_t round = 0; judge.life() < life || judge.last() < to;) {
    const uint64_t taken = end.side().poll(std::span(messages).first(random.below(kBatchMax) + 1));
    for (uint64_t i = 0; i < taken; ++i)
      if (const std::string fault = judge.see(messages[i]); !fault.empty()) return fault;
    taken == 0 ? end.relax(round++) : void(round = 0);
  }
  return {};
}

std::string both_ways(End& end, uint32_t which, uint64_t count) {
  std::string fault;
  std::thread sender([&] {
    Random random(which);
    send_all(end, /*life=*/1 + which, 1, count, random);
  });
  Random random(which + 10);
  fault = take_all(end, /*life=*/2 - which, count, random);
  sender.join();
  return fault;
}

class EachKind : public testing::TestWithParam<FlushKind> {};
INSTANTIATE_TEST_SUITE_P(Channel, EachKind, testing::ValuesIn(supported_flush_kinds()),
                         [](const auto& kind) { return flush_kind_name(kind.param); });

TEST_P(EachKind, ThreadsBothWays) {
  for (const uint64_t lines : {2, 3, 32, 64, 257}) {
    const Memory memory;
    const uint64_t count = lines < 32 ? 1'000 : 10'000;
    std::string faults[2];
    std::thread other([&] {
      End end(memory, 1, lines * BH_LINE_BYTES, GetParam());
      faults[1] = both_ways(end, 1, count);
    });
    End end(memory, 0, lines * BH_LINE_BYTES, GetParam());
    faults[0] = both_ways(end, 0, count);
    other.join();
    EXPECT_EQ(faults[0], "") << lines;
    EXPECT_EQ(faults[1], "") << lines;
  }
}

TEST_P(EachKind, ProcessesAskAndAnswer) {
  const Memory memory;
  constexpr uint64_t kCount = 5'000, kBytes = 4096;
  const pid_t child = fork();
  if (child == 0) {
    End end(memory, 1, kBytes, GetParam());
    uint32_t round = 0;
    for (uint64_t done = 0; done < kCount;) {
      Message message;
      if (end.side().poll(std::span(&message, 1)) == 0) {
        end.relax(round++);
        continue;
      }
      message[1] = ~message[1];
      while (!end.side().send(message)) end.relax(round++);
      round = 0;
      ++done;
    }
    _exit(0);
  }
  End end(memory, 0, kBytes, GetParam());
  for (uint64_t id = 1; id <= kCount; ++id) {
    Message message{id, id * 3};
    for (uint32_t round = 0; !end.side().send(message);) end.relax(round++);
    for (uint32_t round = 0; end.side().poll(std::span(&message, 1)) == 0;) end.relax(round++);
    ASSERT_EQ(message[0], id);
    ASSERT_EQ(message[1], ~(id * 3));
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
}

TEST(Channel, AFullWindowTakesNoMore) {
  const Memory memory;
  End from(memory, 0, 4096, FlushKind::NONE);
  EXPECT_EQ(from.side().slots(), 63u);
  std::vector<Message> messages;
  for (uint64_t i = 1; i <= 200; ++i) messages.push_back(make_message(1, i));
  EXPECT_EQ(from.side().send(messages), 0u) << "no receiver has attached";
  End to(memory, 1, 4096, FlushKind::NONE);
  EXPECT_EQ(from.side().send(messages), 63u);
  EXPECT_EQ(from.side().send(messages), 0u);
  EXPECT_EQ(from.side().send(std::span<const Message>()), 0u);
  std::vector<Message> out(200);
  EXPECT_EQ(to.side().poll({}), 0u);
  EXPECT_EQ(to.side().poll(out), 63u);
  EXPECT_EQ(to.side().poll(out), 0u);
  EXPECT_EQ(from.side().send(std::span(messages).subspan(63)), 63u);
  EXPECT_EQ(to.side().poll(std::span(out).subspan(63)), 63u);
  EXPECT_TRUE(std::equal(out.begin(), out.begin() + 126, messages.begin()));
}

TEST(Channel, ARestartedSenderIsFollowed) {
  const Memory memory;
  End to(memory, 1, 4096, FlushKind::NONE);
  EXPECT_EQ(to.side().peer_session(), 0u);
  std::vector<Message> out(63);
  for (uint64_t life = 1; life < 4; ++life) {
    End from(memory, 0, 4096, FlushKind::NONE);
    EXPECT_FALSE(from.side().send(make_message(life, 1)));
    EXPECT_EQ(to.side().poll(out), 0u) << "messages of the dead sender are gone";
    EXPECT_EQ(to.side().peer_session(), life);
    for (uint64_t i = 1; i <= 10; ++i) EXPECT_TRUE(from.side().send(make_message(life, i)));
    EXPECT_EQ(to.side().poll(out), 10u);
    EXPECT_EQ(out[9], make_message(life, 10));
    // Messages that it sends now and that are not received are lost with it.
    for (uint64_t i = 11; i <= 20; ++i) EXPECT_TRUE(from.side().send(make_message(life, i)));
  }
}

TEST(Channel, ARestartedReceiverContinuesAtItsReportedProgress) {
  const Memory memory;
  End from(memory, 0, 4096, FlushKind::NONE);
  uint64_t sent = 0;
  Judge judge;
  for (uint64_t life = 1; life < 20; ++life) {
    End to(memory, 1, 4096, FlushKind::NONE);
    judge.resume();
    for (int i = 0; i < 30; ++i) {
      if (from.side().send(make_message(1, sent + 1))) ++sent;
      Message message;
      if (to.side().poll(std::span(&message, 1)) == 0) continue;
      EXPECT_EQ(judge.see(message), "");
    }
  }
  EXPECT_GT(judge.last(), 200u);
  EXPECT_GT(judge.duplicates(), 0u);
}

TEST(Channel, SessionsWrapAround) {
  const Memory memory;
  memory.words()[0] = 4094;
  End to(memory, 1, 4096, FlushKind::NONE);
  Message out;
  for (const uint64_t session : {4095, 1, 2}) {
    End from(memory, 0, 4096, FlushKind::NONE);
    EXPECT_EQ(to.side().poll(std::span(&out, 1)), 0u);
    EXPECT_EQ(to.side().peer_session(), session);
    EXPECT_TRUE(from.side().send(make_message(session, 1)));
    EXPECT_EQ(to.side().poll(std::span(&out, 1)), 1u);
    EXPECT_EQ(out, make_message(session, 1));
  }
}

TEST(Channel, DamagedWordsOfThePeerLeadNowhere) {
  const Memory memory;
  Random random(5);
  for (int i = 0; i < 2'000; ++i) {
    for (uint64_t word = 0; word < 4096 / 8; ++word)
      memory.words()[4096 / 8 + word] =
          random.below(3) == 0 ? random.next() : random.below(4) << 52;
    End end(memory, 0, 4096, FlushKind::NONE);
    const uint64_t mine = memory.words()[0];
    std::vector<Message> messages(100);
    EXPECT_LE(end.side().send(messages), 63u);
    EXPECT_LE(end.side().send(messages), 63u);
    (void)end.side().poll(messages);
    (void)end.side().poll(messages);
    EXPECT_EQ(memory.words()[0], mine);
  }
}

// ---- deaths ----

/// Survives the processes: the position of each receiver.
struct Log {
  std::atomic<uint64_t> lives{0};
  std::atomic<uint64_t> taken{0};
  char fault[200] = {};
  Judge judge;
};

[[noreturn]] void send_for_ever(const Memory& memory, Log& log, FlushKind kind) {
  End end(memory, 0, 4096, kind);
  const uint64_t life = ++log.lives;
  Random random(life);
  for (uint64_t next = 1;; next += 100) send_all(end, life, next, next + 99, random);
}

/// The judge is in shared memory and survives the receivers.
[[noreturn]] void take_for_ever(const Memory& memory, Log& log, FlushKind kind) {
  End end(memory, 1, 4096, kind);
  Random random(log.taken);
  log.judge.resume();
  std::vector<Message> messages(kBatchMax);
  for (uint32_t round = 0;;) {
    const uint64_t taken = end.side().poll(std::span(messages).first(random.below(kBatchMax) + 1));
    for (uint64_t i = 0; i < taken; ++i) {
      const std::string fault = log.judge.see(messages[i]);
      if (!fault.empty() && log.fault[0] == 0) fault.copy(log.fault, sizeof log.fault - 1);
    }
    log.taken += taken;
    taken == 0 ? end.relax(round++) : void(round = 0);
  }
}

TEST_P(EachKind, EitherProcessDiesAndRestarts) {
  const Memory memory;
  void* shared =
      mmap(nullptr, sizeof(Log), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(shared, MAP_FAILED);
  Log& log = *new (shared) Log;
  const auto start = [&](int which) {
    const pid_t child = fork();
    if (child == 0) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      which == 0 ? send_for_ever(memory, log, GetParam()) : take_for_ever(memory, log, GetParam());
    }
    return child;
  };
  pid_t children[] = {start(0), start(1)};
  const auto flows = [&] {
    const uint64_t before = log.taken;
    for (int ms = 0; ms < 20'000 && log.taken < before + 200; ++ms) usleep(1000);
    return log.taken >= before + 200;
  };
  Random random(3);
  for (int deaths = 0; deaths < 30; ++deaths) {
    EXPECT_TRUE(flows()) << "after death " << deaths;
    usleep(static_cast<useconds_t>(random.below(3000)));
    const uint64_t which = random.below(2);
    kill(children[which], SIGKILL);
    waitpid(children[which], nullptr, 0);
    children[which] = start(static_cast<int>(which));
  }
  EXPECT_TRUE(flows());
  for (const pid_t child : children) {
    kill(child, SIGKILL);
    waitpid(child, nullptr, 0);
  }
  EXPECT_STREQ(log.fault, "");
  munmap(shared, sizeof(Log));
}

}  // namespace
}  // namespace bowhead::test
