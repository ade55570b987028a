// SPDX-License-Identifier: Apache-2.0
// A device and the processes that ask it: when one of them dies, the other goes on. What all
// engines have in common is in engine_test.cpp.
#include "firmware-sim/device.h"

#include <gtest/gtest.h>
#include <signal.h>

#include <array>
#include <atomic>
#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "driver-shim/queue_pair.h"
#include "firmware-sim/areas.h"
#include "firmware-sim/pair.h"
#include "firmware-sim/timing.h"
#include "firmware-sim/wire.h"
#include "ndp/engine.h"
#include "ndp/injector.h"
#include "pool/window.h"
#include "tests/device/engine_fixture.h"
#include "tests/support/hosts.h"

namespace bowhead::test {
namespace {

using device::Device;
using driver::QueuePair;
using ndp::Operation;
using ndp::Request;

class DeviceTest : public EngineTest {};

TEST_F(DeviceTest, SaysThatABlockDidNotStay) {
  const DeviceThread device(pool_.locator());
  const auto pair = QueuePair::open(pool());
  ASSERT_TRUE(pair);
  LeasedSequence sequence(pool(), "plain", CompressionProfile::NONE, {300, 40, 16});
  const Request request = requests(sequence)[3];
  Answer answer(request);
  ASSERT_TRUE((*pair)->run(request, answer.room()));
  // Another stamp, another place, another length.
  for (const int what : {0, 1, 2}) {
    std::vector<ndp::StoredBlock> blocks = sequence.blocks();
    Request stale = request;
    stale.heads.blocks = blocks;
    if (what == 0) blocks[1].stamp += 4;
    if (what == 1) blocks[1].offset = blocks[0].offset;
    if (what == 2) blocks[1].offset = uint64_t{1} << 60;
    const auto refused = (*pair)->run(stale, answer.room());
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.status(), Status::LAPSED) << refused.error().message();
    EXPECT_NE(refused.error().message().find("block 1"), std::string::npos);
  }
  ASSERT_EQ(pool().remove(sequence.ns(), "block 2"), Status::OK);
  EXPECT_EQ((*pair)->run(request, answer.room()).status(), Status::LAPSED);
}

TEST_F(DeviceTest, IsOneOfAPool) {
  const DeviceThread device(pool_.locator());
  auto second = Pool::open(pool_.locator(), {.prefault = false}).value();
  EXPECT_EQ(Device::make(second).status(), Status::IN_USE);
}

TEST_F(DeviceTest, IsLostWhereNoneRuns) {
  const auto pair = QueuePair::open(pool());
  ASSERT_TRUE(pair);
  EXPECT_EQ((*pair)->send(1, {}).status(), Status::DEVICE_LOST);
  const auto began = std::chrono::steady_clock::now();
  EXPECT_EQ((*pair)->ping().status(), Status::DEVICE_LOST);
  EXPECT_LT(std::chrono::steady_clock::now() - began, std::chrono::seconds(5));
}

TEST_F(DeviceTest, IsFoundByThoseThatCameBeforeItAndWhenItComesBack) {
  const auto pair = QueuePair::open(pool());
  ASSERT_TRUE(pair);
  LeasedSequence sequence(pool(), "plain", CompressionProfile::NONE, {300, 40, 16});
  const Request request = requests(sequence)[3];
  Answer answer(request), first(request);
  ASSERT_TRUE(ndp::run(request, first.room()));
  for (int life = 0; life < 3; ++life) {
    const DeviceThread device(pool_.locator());
    const auto read = (*pair)->run(request, answer.room());
    ASSERT_TRUE(read) << read.error().message();
    EXPECT_EQ(answer, first);
    EXPECT_TRUE((*pair)->ping());
  }
  EXPECT_EQ((*pair)->run(request, answer.room()).status(), Status::DEVICE_LOST);
}

TEST_F(DeviceTest, ServesThreadsAndProcesses) {
  const DeviceThread device(pool_.locator());
  LeasedSequence sequence(pool(), "coded", CompressionProfile::FAST, {300, 40, 16});
  const auto all = requests(sequence);
  std::vector<Answer> wanted;
  for (const Request& request : all) {
    wanted.emplace_back(request);
    ASSERT_TRUE(ndp::run(request, wanted.back().room()));
  }
  const auto pair = QueuePair::open(pool());
  ASSERT_TRUE(pair);
  std::atomic<uint32_t> wrong = 0;
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (size_t i = 0; i < 40; ++i) {
        const size_t which = (i * 7 + static_cast<size_t>(t)) % all.size();
        Answer answer(all[which]);
        if (!(*pair)->run(all[which], answer.room()) || !(answer == wanted[which])) ++wrong;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0u);
}

TEST_F(DeviceTest, IsNotForTheChildOfAFork) {
  const auto pair = QueuePair::open(pool());
  ASSERT_TRUE(pair);
  LeasedSequence sequence(pool(), "plain", CompressionProfile::NONE, {300, 40, 16});
  const Request request = requests(sequence)[3];
  EXPECT_EQ(in_child([&] {
              Answer answer(request);
              const bool forked = (*pair)->run(request, answer.room()).status() == Status::FORKED &&
                                  (*pair)->ping().status() == Status::FORKED;
              const_cast<std::unique_ptr<QueuePair>&>(*pair).reset();
              return forked ? 0 : 1;
            }),
            0);
  const DeviceThread device(pool_.locator());
  Answer answer(request);
  EXPECT_TRUE((*pair)->run(request, answer.room()));
}

TEST_F(DeviceTest, DoesNoCommandOfTheDeviceBefore) {
  const auto pair = QueuePair::open(pool());
  ASSERT_TRUE(pair);
  driver::MailboxClient mailbox(**pair);
  const auto poisoned = [&] { return mailbox.poison_list(0, 1 << 20).value().records.size(); };
  {
    const DeviceThread device(pool_.locator());
    ASSERT_TRUE((*pair)->ping());  // it knows the pair now, and the pair it
    ASSERT_TRUE(mailbox.inject_poison(4096));
    EXPECT_EQ(poisoned(), 1u);
  }
  const DeviceThread device(pool_.locator());
  ASSERT_TRUE((*pair)->ping());
  EXPECT_EQ(poisoned(), 0u);
}

// While a job is under way a pair is not idle, however long that takes.
TEST_F(DeviceTest, KeepsTheAreaOfAPairWithAJob) {
  ndp::ProcessEngine process;
  ndp::Injector injector(process,
                         {{.kind = ndp::Fault::Kind::DELAY, .count = 1, .delay_ms = 3000}});
  DeviceThread device(pool_.locator(), {.engine = &injector, .idle_ms = 1});
  LeasedSequence sequence(pool(), "plain", CompressionProfile::NONE, {300, 40, 16});
  const Request request = requests(sequence)[3];
  const auto pair = QueuePair::open(pool());
  ASSERT_TRUE(pair);
  Answer late(request), answer(request);
  ndp::Job job{request, late.room()};
  (*pair)->submit(job);
  const auto end = std::chrono::steady_clock::now() + std::chrono::milliseconds(2500);
  while (!(*pair)->poll(job) && std::chrono::steady_clock::now() < end)
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  EXPECT_TRUE((*pair)->run(request, answer.room()));
  (*pair)->wait(job);
  EXPECT_TRUE(*job.answer);
  EXPECT_EQ(late, answer);
  EXPECT_EQ(device.device().counters().refused, 0u);
}

// Also of a process that is on another machine, and dead.
TEST_F(DeviceTest, FreesTheAreaOfAnIdlePair) {
  DeviceThread device(pool_.locator(), {.idle_ms = 1});
  LeasedSequence sequence(pool(), "plain", CompressionProfile::NONE, {300, 40, 16});
  const auto all = requests(sequence);
  const auto pair = QueuePair::open(pool());
  ASSERT_TRUE(pair);
  driver::MailboxClient mailbox(**pair);
  for (int times = 0; times < 3; ++times) {
    // All at once: what was sent before the first one is refused is asked again.
    std::vector<Answer> answers, wanted;
    std::vector<ndp::Job> jobs;
    for (const Request& request : all) {
      wanted.emplace_back(request);
      ASSERT_TRUE(ndp::run(request, wanted.back().room()));
      answers.emplace_back(request);
    }
    for (size_t i = 0; i < all.size(); ++i) jobs.push_back({all[i], answers[i].room()});
    if (times == 2) {
      EXPECT_TRUE(mailbox.identify());
    }
    (*pair)->submit(jobs);
    for (ndp::Job& job : jobs) {
      (*pair)->wait(job);
      EXPECT_TRUE(*job.answer) << job.answer->error().message();
    }
    EXPECT_EQ(answers, wanted);
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(30);
    while (device.device().counters().pairs != 0 && std::chrono::steady_clock::now() < end)
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    EXPECT_EQ(device.device().counters().pairs, 0u);
  }
}

TEST_F(DeviceTest, SaysThatTheMediumFailed) {
  const DeviceThread device(pool_.locator());
  TestPool again(pool_.locator());
  const auto pair = QueuePair::open(again.pool());
  ASSERT_TRUE(pair);
  ASSERT_TRUE((*pair)->ping());
  break_page(again.pool(), Window::open(again.pool())->commands(0, 0));
  EXPECT_EQ((*pair)->ping().status(), Status::MEDIA_ERROR);
}

/// Each answer is right, or none, however often the device is started anew under several threads.
TEST_F(DeviceTest, ComesBackUnderThreads) {
  LeasedSequence sequence(pool(), "plain", CompressionProfile::NONE, {300, 40, 16});
  const auto all = requests(sequence);
  std::vector<Answer> wanted;
  for (const Request& request : all) {
    wanted.emplace_back(request);
    ASSERT_TRUE(ndp::run(request, wanted.back().room()));
  }
  const auto pair = QueuePair::open(pool());
  ASSERT_TRUE(pair);
  std::atomic<uint32_t> right = 0, wrong = 0, refused = 0;
  std::atomic<bool> stops = false;
  std::vector<std::thread> threads;
  for (size_t t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (size_t i = t; !stops; i += 5) {
        const size_t which = i % all.size();
        Answer answer(all[which]);
        const auto read = (*pair)->run(all[which], answer.room());
        if (read)
          ++(answer == wanted[which] ? right : wrong);
        else if (read.status() != Status::DEVICE_LOST)
          ++refused;
      }
    });
  }
  for (int life = 0; life < 40; ++life) {
    const DeviceThread device(pool_.locator());
    std::this_thread::sleep_for(std::chrono::milliseconds(5 + life % 7));
  }
  {
    const DeviceThread device(pool_.locator());
    const uint32_t before = right;
    while (right < before + 20 && wrong + refused == 0)
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    stops = true;
    for (std::thread& thread : threads) thread.join();
  }
  EXPECT_EQ(wrong, 0u);
  EXPECT_EQ(refused, 0u);
}

/// Also where commands to an earlier session arrive after this one began.
TEST_F(DeviceTest, APairTakesOnlyWhatWasSentToItsSession) {
  Pool of_device = Pool::open(pool_.locator(), {.prefault = false}).value();
  Window window = Window::open(pool()).value(), device_window = Window::open(of_device).value();
  device::Areas areas(of_device, "answers");
  ASSERT_TRUE(areas.open());
  Window::Channel process(window.access(), window.commands(0, 0), window.completions(0, 0),
                          BH_DEVICE_QUEUE_BYTES);
  process.open();
  const auto send = [&](uint64_t id) {
    ASSERT_TRUE(process.send({id, process.peer_session() << 32 | BH_DEVICE_NOTHING}));
  };
  const auto see_session = [&] {
    core::Message none;
    EXPECT_EQ(process.poll(std::span(&none, 1)), 0u);
  };
  const std::function<void()> nothing;
  for (const uint64_t life : {1, 2, 3}) {
    device::Pair pair(device_window, areas, 0, 0, nothing);
    send(10 * life);  // as the process does not know of it yet
    see_session();
    EXPECT_EQ(process.peer_session(), life);
    send(10 * life + 1);
    std::vector<uint64_t> taken;
    for (int look = 0; look < 3; ++look) {
      for (const core::Message& command : pair.take()) {
        taken.push_back(command[BH_COMMAND_ID]);
        EXPECT_EQ(command[BH_COMMAND_OPCODE], BH_DEVICE_NOTHING);
      }
    }
    EXPECT_EQ(taken, std::vector<uint64_t>{10 * life + 1});
    send(10 * life + 2);  // is not taken in this life
  }
}

/// The job that waits for it is lost; the next job sends another ATTACH.
TEST_F(DeviceTest, ALostAttachIsSentAgain) {
  Pool of_device = Pool::open(pool_.locator(), {.prefault = false}).value();
  Window window = Window::open(of_device).value();
  ASSERT_TRUE(window.become_device());
  Window::Channel device(window.access(), window.completions(0, 0), window.commands(0, 0),
                         BH_DEVICE_QUEUE_BYTES);
  device.open();
  std::atomic<bool> stops = false;
  std::atomic<uint32_t> attached = 0;
  std::thread takes_and_says_nothing([&] {
    while (!stops) {
      core::Message command{};
      if (device.poll(std::span(&command, 1)) == 1 &&
          (command[BH_COMMAND_OPCODE] & UINT32_MAX) == BH_DEVICE_ATTACH)
        ++attached;
    }
  });
  {
    const auto pair = QueuePair::open(pool(), {.timeout_ms = 100});
    ASSERT_TRUE(pair);
    LeasedSequence sequence(pool(), "plain", CompressionProfile::NONE, {300, 40, 16});
    const Request request = requests(sequence)[3];
    Answer answer(request);
    for (const uint32_t times : {1u, 2u, 3u}) {
      EXPECT_EQ((*pair)->run(request, answer.room()).status(), Status::DEVICE_LOST);
      for (int ms = 0; attached < times && ms < 10'000; ++ms)
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
      EXPECT_EQ(attached, times);
    }
  }
  stops = true;
  takes_and_says_nothing.join();
}

TEST_F(DeviceTest, SaysHowLongTheModelledDeviceTakes) {
  LeasedSequence sequence(pool(), "plain", CompressionProfile::NONE, {300, 40, 16});
  for (const bool models : {false, true}) {
    const auto profile = device::profile_named("m2ndp").value();
    device::Options options;
    if (models) options.profile = profile;
    const DeviceThread device(pool_.locator(), options);
    const auto pair = QueuePair::open(pool());
    ASSERT_TRUE(pair);
    for (const Request& request : requests(sequence)) {
      Answer answer(request);
      ndp::Job job{request, answer.room()};
      (*pair)->submit(job);
      (*pair)->wait(job);
      ASSERT_TRUE(*job.answer) << job.answer->error().message();
      const uint64_t request_bytes = device::encode(request)->size();
      const auto work = device::work_of(request, **job.answer, request_bytes);
      ASSERT_TRUE(work);
      const double wanted_ns =
          models ? device::modelled_ns(profile, *work, device::Place::DEVICE) : 0;
      EXPECT_NEAR(static_cast<double>(job.modelled_ns), wanted_ns, 1);
      EXPECT_EQ(job.modelled_ns != 0, models);
    }
  }
}

TEST_F(DeviceTest, HasAMailbox) {
  const DeviceThread device(pool_.locator());
  const auto pair = QueuePair::open(pool());
  ASSERT_TRUE(pair);
  driver::MailboxClient mailbox(**pair);
  LeasedSequence sequence(pool(), "plain", CompressionProfile::NONE, {300, 40, 16});
  const Request request = requests(sequence)[3];
  Answer answer(request);
  ASSERT_TRUE((*pair)->run(request, answer.room()));

  const auto capabilities = mailbox.capabilities();
  ASSERT_TRUE(capabilities) << capabilities.error().message();
  EXPECT_EQ(uint64_t{capabilities->operations}, 0x3Eu);
  EXPECT_GE(uint64_t{capabilities->capacity_bytes}, uint64_t{96} << 20);
  const auto first = mailbox.counters();
  ASSERT_TRUE(first);
  EXPECT_GT(uint64_t{first->read_bytes}, 0u);
  ASSERT_TRUE((*pair)->run(request, answer.room()));
  const auto second = mailbox.counters();
  ASSERT_TRUE(second);
  EXPECT_EQ(uint64_t{second->read_bytes}, 2 * uint64_t{first->read_bytes});
  EXPECT_GT(uint64_t{second->commands}, uint64_t{first->commands});

  // Of the wrong length, and one that there is not.
  const std::byte some[3] = {};
  const auto wrong = (*pair)->send(static_cast<uint16_t>(cxl::Opcode::GET_LSA), some);
  ASSERT_TRUE(wrong);
  EXPECT_EQ(wrong->code, cxl::ReturnCode::INVALID_PAYLOAD_LENGTH);
  EXPECT_EQ((*pair)->send(0xFFFF, {})->code, cxl::ReturnCode::UNSUPPORTED);
  const std::vector<std::byte> many(cxl::kPayloadBytesMax + 1);
  EXPECT_EQ((*pair)->send(1, many).status(), Status::INVALID_ARGUMENT);
}

/// By every operation: refused, or, if that is wanted, answered without the block.
TEST_F(DeviceTest, HonoursPoison) {
  const DeviceThread device(pool_.locator());
  const auto pair = QueuePair::open(pool());
  ASSERT_TRUE(pair);
  driver::MailboxClient mailbox(**pair);
  for (const auto profile : {CompressionProfile::NONE, CompressionProfile::FAST}) {
    LeasedSequence sequence(pool(), profile == CompressionProfile::NONE ? "plain" : "coded",
                            profile, {300, 40, 16});
    const ndp::StoredBlock& block = sequence.blocks()[1];
    const uint64_t line = (block.offset + block.bytes.size() / 2) / 64 * 64;
    ASSERT_TRUE(mailbox.inject_poison(line));
    std::vector<ndp::StoredBlock> without = sequence.blocks();
    without[1].lost = true;
    for (Request request : requests(sequence)) {
      SCOPED_TRACE(operation_name(request.operation));
      Answer answer(request), wanted(request);
      const auto refused = (*pair)->run(request, answer.room());
      ASSERT_EQ(refused.status(), Status::DAMAGED);
      EXPECT_NE(refused.error().message().find("block 1"), std::string::npos);
      request.heads.unreadable = ndp::Unreadable::SKIP;
      const auto read = (*pair)->run(request, answer.room());
      ASSERT_TRUE(read) << read.error().message();
      EXPECT_EQ(read->left_out, std::vector<size_t>{1});
      request.heads.blocks = without;
      ASSERT_TRUE(ndp::run(request, wanted.room()));
      EXPECT_EQ(answer, wanted);
    }
    const auto listed = mailbox.poison_list(0, line + 64);
    ASSERT_TRUE(listed) << listed.error().message();
    ASSERT_EQ(listed->records.size(), 1u);
    EXPECT_EQ(listed->records[0].offset, line);
    EXPECT_GT(uint64_t{mailbox.counters()->poison_met}, 0u);
    const std::array<std::byte, cxl::kLineBytes> zeros{};
    ASSERT_TRUE(mailbox.clear_poison(line, zeros));
    for (const Request& request : requests(sequence)) {
      Answer answer(request), wanted(request);
      ASSERT_TRUE(ndp::run(request, wanted.room()));
      ASSERT_TRUE((*pair)->run(request, answer.room()));
      EXPECT_EQ(answer, wanted);
    }
  }
  EXPECT_TRUE(pool_.check_clean());
}

TEST_F(DeviceTest, SeesWhatIsRead) {
  const DeviceThread device(pool_.locator());
  const auto pair = QueuePair::open(pool());
  ASSERT_TRUE(pair);
  driver::MailboxClient mailbox(**pair);
  LeasedSequence sequence(pool(), "plain", CompressionProfile::NONE, {300, 40, 16});
  const Request request = requests(sequence)[3];
  Answer answer(request);
  cxl::HotnessSetting setting{};
  setting.enabled = 1;
  setting.unit_log2 = 16;
  setting.epoch_ms = 50;
  ASSERT_TRUE(mailbox.configure_hotness(setting));
  uint16_t head = mailbox.hotness()->head;
  std::vector<driver::HotListEntry> hot;
  while (hot.empty()) {
    ASSERT_TRUE((*pair)->run(request, answer.room()));
    const auto list = mailbox.read_hot_list(head, false);
    ASSERT_TRUE(list) << list.error().message();
    EXPECT_EQ(list->unit_bytes, 65536u);
    head = list->next_head;
    hot = list->entries;
  }
  // Only where the blocks lie.
  for (const driver::HotListEntry& entry : hot) {
    bool found = false;
    for (const ndp::StoredBlock& block : sequence.blocks())
      found |=
          entry.offset < block.offset + block.bytes.size() && block.offset < entry.offset + 65536;
    EXPECT_TRUE(found) << entry.offset;
  }
}

/// Two hosts of this machine, of which one plays another machine: it stores its device's word, and
/// has no lock.
class DeviceOfHosts : public testing::Test {
 protected:
  DeviceOfHosts() {
    CreateOptions options;
    options.size_bytes = 64u << 20;
    options.hosts = 3;
    EXPECT_TRUE(Pool::create(locator_, options));
    for (uint32_t host = 0; host < 3; ++host)
      pools_.push_back(Pool::open(locator_, {.host = host, .prefault = false}).value());
  }
  ~DeviceOfHosts() override {
    pools_.clear();
    (void)Pool::destroy(locator_, true);
  }
  /// Those of the device of a host, as another machine sees them, until the object goes.
  class Heartbeats {
   public:
    Heartbeats(Pool& pool, bool leaves) : window_(Window::open(pool).value()), leaves_(leaves) {
      set(2);
      thread_ = std::thread([this] {
        for (uint64_t number = 1; !stops_; ++number) {
          set(number << 2 | 2);
          std::this_thread::sleep_for(std::chrono::milliseconds(20));
        }
        if (leaves_) set(0);
      });
    }
    ~Heartbeats() {
      stops_ = true;
      thread_.join();
    }

   private:
    void set(uint64_t word) {
      const uint64_t at = window_.device_word(window_.host());
      window_.access().store(at, word);
      window_.access().publish(at, 8);
    }
    Window window_;
    const bool leaves_;
    std::atomic<bool> stops_{false};
    std::thread thread_;
  };

  const std::string locator_ = "shm:device-hosts-" + std::to_string(getpid());
  std::vector<Pool> pools_;
};

TEST_F(DeviceOfHosts, OfAnotherMachineIsSeen) {
  {
    const Heartbeats heartbeats(pools_[1], /*leaves=*/true);
    for (const uint32_t host : {0u, 2u}) {
      const auto refused = Device::make(pools_[host]);
      ASSERT_EQ(refused.status(), Status::IN_USE);
      EXPECT_NE(refused.error().message().find("host 1"), std::string::npos);
    }
  }
  {
    const Heartbeats heartbeats(pools_[1], /*leaves=*/false);  // it dies
  }
  EXPECT_TRUE(Device::make(pools_[2]));
}

TEST_F(DeviceOfHosts, OfAnotherMachineIsKnownToHaveEnded) {
  const auto pair = QueuePair::open(pools_[0], {.timeout_ms = 60'000});
  ASSERT_TRUE(pair);
  EXPECT_EQ((*pair)->ping().status(), Status::DEVICE_LOST);
  std::optional<Heartbeats> heartbeats;
  heartbeats.emplace(pools_[1], /*leaves=*/false);
  std::this_thread::sleep_for(std::chrono::milliseconds(100));  // until it is looked for again
  std::atomic<bool> ended = false;
  std::thread waits([&] {
    EXPECT_EQ((*pair)->ping().status(), Status::DEVICE_LOST);
    ended = true;
  });
  std::this_thread::sleep_for(std::chrono::milliseconds(1500));
  EXPECT_FALSE(ended);  // it may answer yet
  heartbeats.reset();
  waits.join();
}

TEST_F(DeviceOfHosts, EndsWhereALowerHostHasOneToo) {
  const auto device = Device::make(pools_[1]);
  ASSERT_TRUE(device);
  std::optional<Heartbeats> heartbeats;
  const auto begun = std::chrono::steady_clock::now();
  const auto served = (*device)->serve([&] {
    if (!heartbeats && std::chrono::steady_clock::now() - begun > std::chrono::milliseconds(300))
      heartbeats.emplace(pools_[0], true);
    return false;
  });
  EXPECT_EQ(served.status(), Status::IN_USE);
  EXPECT_NE(served.error().message().find("host 0"), std::string::npos);
}

TEST_F(DeviceOfHosts, ServesTheProcessesOfAllHosts) {
  std::atomic<bool> stops = false;
  const auto device = Device::make(pools_[1]);
  ASSERT_TRUE(device);
  std::thread serves([&] { EXPECT_TRUE((*device)->serve([&] { return stops.load(); })); });
  for (size_t host = 0; host < pools_.size(); ++host) {
    Pool& pool = pools_[host];
    const auto pair = QueuePair::open(pool);
    ASSERT_TRUE(pair);
    LeasedSequence sequence(pool, "of host " + std::to_string(host), CompressionProfile::NONE,
                            {300, 40, 16});
    ndp::Request request = sequence.request(Operation::DIGEST);
    request.page_tokens = 16;
    Answer here(request), there(request);
    ASSERT_TRUE(ndp::run(request, here.room()));
    const auto read = (*pair)->run(request, there.room());
    ASSERT_TRUE(read) << read.error().message();
    EXPECT_EQ(here, there);
  }
  stops = true;
  serves.join();
}

/// The memory of its queue pair may be another host's by then: nothing is stored there.
TEST_F(DeviceOfHosts, IsNotAskedByAHostThatLeft) {
  std::atomic<bool> stops = false;
  const auto device = Device::make(pools_[1]);
  ASSERT_TRUE(device);
  std::thread serves([&] { EXPECT_TRUE((*device)->serve([&] { return stops.load(); })); });
  {
    const auto pair = QueuePair::open(pools_[0]);
    ASSERT_TRUE(pair);
    LeasedSequence sequence(pools_[0], "of a host that leaves", CompressionProfile::NONE, {300});
    ndp::Request request = sequence.request(Operation::DIGEST);
    request.page_tokens = 16;
    Answer answer(request);
    ASSERT_TRUE((*pair)->run(request, answer.room()));
    ASSERT_EQ(pools_[0].leave().status(), Status::OK);
    EXPECT_EQ((*pair)->run(request, answer.room()).status(), Status::HOST_FENCED);
    EXPECT_EQ((*pair)->ping().status(), Status::HOST_FENCED);
    EXPECT_EQ((*pair)->send(1, {}).status(), Status::HOST_FENCED);
  }
  stops = true;
  serves.join();
}

/// As a host that was between two processes when another one needed its space.
TEST(QueuePairOfAPoorHost, HasItsMemoryFromAnother) {
  SharedPool shared(2);
  Host rich = shared.open(0);
  uint64_t stored = 0;
  const auto key = [](uint64_t n) { return "block " + std::to_string(n); };
  while (rich.info_of(0).extents_owned < shared.extents()) {
    if (rich.put(key(stored)) == Status::OK) ++stored;
  }
  for (uint64_t n = 0; n < stored; ++n) ASSERT_EQ(rich.remove(key(n)), Status::OK);
  Host poor = shared.open(1);
  const auto pair = QueuePair::open(poor.pool());
  EXPECT_TRUE(pair) << pair.error().message();
}

/// Of memory in no whole lines too.
TEST_F(DeviceTest, TakesARequestThatJustFits) {
  const DeviceThread device(pool_.locator());
  LeasedSequence sequence(pool(), "plain", CompressionProfile::NONE, {300});
  Request request = sequence.request(Operation::GATHER);
  request.tokens = std::span(tokens_).first(1);
  const auto pair = QueuePair::open(pool(), {.request_bytes = 192 + 32 + 4, .answer_bytes = 513});
  ASSERT_TRUE(pair);
  Answer answer(request);
  const auto read = (*pair)->run(request, answer.room());
  EXPECT_TRUE(read) << read.error().message();
}

TEST_F(DeviceTest, SaysThatTheMemoryOfABlockFailed) {
  auto handle = Pool::open(pool_.locator(), {.prefault = false}).value();
  const auto device = Device::make(handle).value();
  std::atomic<bool> stops = false;
  std::thread serves([&] { EXPECT_TRUE(device->serve([&] { return stops.load(); })); });
  const auto pair = QueuePair::open(pool());
  ASSERT_TRUE(pair);
  LeasedSequence sequence(pool(), "plain", CompressionProfile::NONE, {300, 40, 16});
  const Request request = requests(sequence)[3];
  Answer answer(request);
  ASSERT_TRUE((*pair)->run(request, answer.room()));
  fail_memory(handle, sequence.blocks()[1].offset + 4096);
  EXPECT_EQ((*pair)->run(request, answer.room()).status(), Status::DAMAGED);
  stops = true;
  serves.join();
}

/// A queue pair whose memory cannot hold the request, or the answer.
TEST_F(DeviceTest, SaysWhatHasNoRoom) {
  const DeviceThread device(pool_.locator());
  LeasedSequence sequence(pool(), "plain", CompressionProfile::NONE, {300, 40, 16});
  const Request request = requests(sequence)[0];
  for (const driver::QueuePairOptions& options :
       {driver::QueuePairOptions{.request_bytes = 4096, .answer_bytes = 1 << 20},
        driver::QueuePairOptions{.request_bytes = 1 << 20, .answer_bytes = 4096}}) {
    const auto pair = QueuePair::open(pool(), options);
    ASSERT_TRUE(pair);
    Request large = request;
    std::vector<float> many(queries_);
    for (int i = 0; i < 4; ++i) many.insert(many.end(), queries_.begin(), queries_.end());
    large.queries.values = many;
    large.queries.count = kQueries * 5;
    Answer answer(large);
    EXPECT_EQ((*pair)->run(large, answer.room()).status(), Status::LIMIT_REACHED);
    EXPECT_TRUE((*pair)->ping());
  }
}

TEST_F(DeviceTest, AllPairsCanBeTaken) {
  std::vector<std::unique_ptr<QueuePair>> pairs;
  const driver::QueuePairOptions small{.request_bytes = 4096, .answer_bytes = 4096};
  for (uint32_t i = 0; i < BH_DEVICE_PAIRS; ++i) {
    auto pair = QueuePair::open(pool(), small);
    ASSERT_TRUE(pair) << pair.error().message();
    pairs.push_back(std::move(*pair));
  }
  EXPECT_EQ(QueuePair::open(pool(), small).status(), Status::LIMIT_REACHED);
  pairs.pop_back();
  EXPECT_TRUE(QueuePair::open(pool(), small));
}

/// The next process on a pair of one that died gets its own answers, and the device lets go of the
/// memory of the dead one.
TEST_F(DeviceTest, OutlivesItsClients) {
  LeasedSequence sequence(pool(), "plain", CompressionProfile::NONE, {300, 40, 16});
  const Request request = requests(sequence)[3];
  Answer wanted(request);
  ASSERT_TRUE(ndp::run(request, wanted.room()));
  for (int child = 0; child < 3; ++child) {
    const pid_t pid = fork();
    if (pid == 0) {
      auto its_pool = Pool::open(pool_.locator(), {.prefault = false});
      if (!its_pool) _exit(1);
      auto pair = QueuePair::open(*its_pool);
      if (!pair) _exit(2);
      Answer answer(request);
      // The request's blocks are in the mapping of the parent, at these addresses: it is only
      // encoded here.
      for (;;) (void)(*pair)->run(request, answer.room());
    }
    const DeviceThread device(pool_.locator());
    while (device::Counters(const_cast<DeviceThread&>(device).device().counters()).commands < 3)
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    ASSERT_EQ(kill(pid, SIGKILL), 0);
    int status = 0;
    ASSERT_EQ(waitpid(pid, &status, 0), pid);
    const auto pair = QueuePair::open(pool());
    ASSERT_TRUE(pair) << pair.error().message();
    for (int i = 0; i < 5; ++i) {
      Answer answer(request);
      const auto read = (*pair)->run(request, answer.room());
      ASSERT_TRUE(read) << read.error().message();
      EXPECT_EQ(answer, wanted);
    }
  }
  EXPECT_TRUE(pool_.check_clean());
}

}  // namespace
}  // namespace bowhead::test
