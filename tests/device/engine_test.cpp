// SPDX-License-Identifier: Apache-2.0
// What all engines have in common: in the process, on the device with one thread and with several,
// with an injector around them that does nothing, and with the process behind them where there is
// no device. Then what the injector does.
#include "ndp/engine.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <chrono>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "driver-shim/queue_pair.h"
#include "ndp/injector.h"
#include "tests/device/engine_fixture.h"

namespace bowhead::test {
namespace {

using ndp::Fault;
using ndp::Injector;
using ndp::Job;
using ndp::Operation;
using ndp::Request;
using std::chrono::milliseconds;
using std::chrono::steady_clock;

constexpr uint32_t kManyQueries = 256;

enum class Kind {
  PROCESS,
  DEVICE,
  DEVICE_OF_THREADS,
  INJECTOR,
  INJECTOR_OF_DEVICE,
  FALLBACK,
  FALLBACK_OF_DEVICE
};

class EachEngine : public EngineTest, public testing::WithParamInterface<Kind> {
 protected:
  EachEngine() {
    const Kind kind = GetParam();
    if (kind == Kind::DEVICE || kind == Kind::DEVICE_OF_THREADS ||
        kind == Kind::INJECTOR_OF_DEVICE || kind == Kind::FALLBACK_OF_DEVICE)
      device_.emplace(pool_.locator(),
                      device::Options{.threads = kind == Kind::DEVICE_OF_THREADS ? 3u : 1u});
    if (kind == Kind::PROCESS || kind == Kind::INJECTOR) {
      inner_ = std::make_unique<ndp::ProcessEngine>();
    } else {
      // Long requests may take longer than 10 s on a machine that is busy.
      auto pair = driver::QueuePair::open(pool(), {.timeout_ms = 120'000});
      EXPECT_TRUE(pair) << pair.error().message();
      inner_ = std::move(*pair);
    }
    if (kind == Kind::FALLBACK || kind == Kind::FALLBACK_OF_DEVICE)
      inner_ = std::make_unique<ndp::FallbackEngine>(std::move(inner_));
    if (kind == Kind::INJECTOR || kind == Kind::INJECTOR_OF_DEVICE)
      injector_ = std::make_unique<Injector>(*inner_, std::vector<Fault>());
  }
  ndp::Engine& engine() { return injector_ ? *injector_ : *inner_; }
  bool has_device() const { return device_.has_value(); }

  /// Takes some tens of milliseconds.
  Request long_request(const LeasedSequence& sequence) {
    Request request = sequence.request(Operation::TOP_K);
    while (many_.size() < size_t{2} * kManyQueries * kChannels)
      many_.insert(many_.end(), queries_.begin(), queries_.end());
    many_.resize(size_t{2} * kManyQueries * kChannels);
    request.queries.values = many_;
    request.queries.count = kManyQueries;
    request.queries.scale = 0.125f;
    request.k = 5;
    return request;
  }

  std::optional<DeviceThread> device_;
  std::unique_ptr<ndp::Engine> inner_, injector_;
  std::vector<float> many_;
};

std::string kind_name(const testing::TestParamInfo<Kind>& of) {
  constexpr const char* kNames[] = {"Process",          "Device",   "DeviceOfThreads", "Injector",
                                    "InjectorOfDevice", "Fallback", "FallbackOfDevice"};
  return kNames[static_cast<int>(of.param)];
}
INSTANTIATE_TEST_SUITE_P(Engines, EachEngine,
                         testing::Values(Kind::PROCESS, Kind::DEVICE, Kind::DEVICE_OF_THREADS,
                                         Kind::INJECTOR, Kind::INJECTOR_OF_DEVICE, Kind::FALLBACK,
                                         Kind::FALLBACK_OF_DEVICE),
                         kind_name);

TEST_P(EachEngine, AnswersAsTheProcess) {
  for (const auto profile : {CompressionProfile::NONE, CompressionProfile::FAST}) {
    LeasedSequence sequence(pool(), profile == CompressionProfile::NONE ? "plain" : "coded",
                            profile, {300, 40, 16});
    for (const Request& request : requests(sequence)) {
      SCOPED_TRACE(operation_name(request.operation));
      Answer here(request), there(request);
      const auto read_here = ndp::run(request, here.room());
      ASSERT_TRUE(read_here) << read_here.error().message();
      const auto read_there = engine().run(request, there.room());
      ASSERT_TRUE(read_there) << read_there.error().message();
      EXPECT_EQ(read_there->bytes, read_here->bytes);
      EXPECT_EQ(here, there);
    }
  }
}

TEST_P(EachEngine, RefusesWhatTheProcessRefuses) {
  LeasedSequence sequence(pool(), "plain", CompressionProfile::NONE, {300, 40, 16});
  Request good = requests(sequence)[3];
  std::vector<Request> wrong(5, good);
  wrong[0].heads.layer = kLayers;
  wrong[1].heads.first_head = kHeads;
  wrong[2].k = 0;
  wrong[3].queries.scale = -1;
  wrong[4].bytes_per_token = -2;
  for (const Request& request : wrong) {
    Answer here(request), there(request);
    const auto refused_here = ndp::run(request, here.room());
    const auto refused_there = engine().run(request, there.room());
    ASSERT_FALSE(refused_here);
    ASSERT_FALSE(refused_there);
    EXPECT_EQ(refused_there.status(), refused_here.status());
    EXPECT_EQ(refused_there.error().message(), refused_here.error().message());
  }
  Answer answer(good);
  const ndp::AnswerRoom room = answer.room();
  EXPECT_EQ(engine().run(good, {room.first.first(8), room.second}).status(),
            Status::INVALID_ARGUMENT);
  EXPECT_TRUE(engine().run(good, answer.room()));
}

/// More jobs than a queue has places; submitted together, and waited for backwards.
TEST_P(EachEngine, DoesManyJobsAtOnce) {
  LeasedSequence sequence(pool(), "coded", CompressionProfile::FAST, {300, 40, 16});
  const auto all = requests(sequence);
  std::vector<Answer> wanted;
  for (const Request& request : all) {
    wanted.emplace_back(request);
    ASSERT_TRUE(ndp::run(request, wanted.back().room()));
  }
  std::vector<Answer> answers;
  std::vector<Job> jobs;
  for (size_t i = 0; i < 200; ++i) answers.emplace_back(all[i % all.size()]);
  for (size_t i = 0; i < answers.size(); ++i)
    jobs.push_back(Job{all[i % all.size()], answers[i].room()});
  for (int again = 0; again < 2; ++again) {
    engine().submit(std::span(jobs));
    for (size_t i = jobs.size(); i-- > 0;) {
      engine().wait(jobs[i]);
      ASSERT_TRUE(engine().poll(jobs[i]));
      ASSERT_TRUE(jobs[i].answer && *jobs[i].answer) << jobs[i].answer->error().message();
      EXPECT_EQ(answers[i], wanted[i % all.size()]) << i;
      EXPECT_GT(jobs[i].device_ns, 0u);
    }
  }
}

TEST_P(EachEngine, EndsALateJob) {
  LeasedSequence sequence(pool(), "plain", CompressionProfile::NONE, {8192, 4096});
  const Request request = long_request(sequence);
  Answer answer(request);
  for (const uint64_t limit_ms : {uint64_t{1}, uint64_t{600'000}}) {
    Job job{request, answer.room(), limit_ms};
    engine().submit(job);
    engine().wait(job);
    ASSERT_TRUE(job.answer);
    EXPECT_EQ(job.answer->status(), limit_ms == 1 ? Status::TIMED_OUT : Status::OK);
  }
}

TEST_P(EachEngine, CancelsJobs) {
  LeasedSequence sequence(pool(), "plain", CompressionProfile::NONE, {8192, 4096});
  const Request request = long_request(sequence);
  Answer wanted(request);
  ASSERT_TRUE(ndp::run(request, wanted.room()));
  // Where this thread is stopped for long, all may be done before they are cancelled: then again.
  size_t cancelled = 0;
  for (int attempt = 0; attempt < (has_device() ? 30 : 1) && cancelled == 0; ++attempt) {
    std::vector<Answer> answers(6, Answer(request));
    std::vector<Job> jobs;
    for (Answer& answer : answers) jobs.push_back(Job{request, answer.room()});
    engine().submit(std::span(jobs));
    for (size_t i = 0; i < 5; ++i) engine().cancel(jobs[i]);
    for (size_t i = 0; i < jobs.size(); ++i) {
      engine().wait(jobs[i]);
      if (i < 5 && jobs[i].answer->status() == Status::CANCELLED) {
        ++cancelled;
      } else {
        ASSERT_TRUE(*jobs[i].answer) << jobs[i].answer->error().message();
        EXPECT_EQ(answers[i], wanted) << i;
      }
    }
  }
  EXPECT_EQ(cancelled > 0, has_device());  // else all were done before
}

/// An engine in the calling thread has no queue.
class EachQueue : public EachEngine {};
INSTANTIATE_TEST_SUITE_P(Engines, EachQueue,
                         testing::Values(Kind::DEVICE, Kind::DEVICE_OF_THREADS,
                                         Kind::INJECTOR_OF_DEVICE),
                         kind_name);

TEST_P(EachQueue, DoesASmallJobBeforeLargeOnesEnd) {
  LeasedSequence sequence(pool(), "plain", CompressionProfile::NONE, {8192, 4096});
  LeasedSequence few(pool(), "few", CompressionProfile::NONE, {64, 32});
  const Request large = long_request(sequence);
  Request pages = few.request(Operation::DIGEST);
  pages.page_tokens = 16;
  bool before = false;
  for (int attempt = 0; attempt < 30 && !before; ++attempt) {
    std::vector<Answer> answers(6, Answer(large));
    std::vector<Job> jobs;
    for (Answer& answer : answers) jobs.push_back(Job{large, answer.room()});
    engine().submit(std::span(jobs));
    Answer answer(pages);
    const auto read = engine().run(pages, answer.room());
    ASSERT_TRUE(read) << read.error().message();
    before = !engine().poll(jobs.back());
    for (Job& job : jobs) {
      engine().wait(job);
      EXPECT_TRUE(*job.answer) << job.answer->error().message();
    }
  }
  EXPECT_TRUE(before);
}

/// Requests and answers that a device does not read, or write, between two looks at its queues.
TEST_P(EachEngine, AnswersLongRequests) {
  LeasedSequence sequence(pool(), "plain", CompressionProfile::NONE, {300, 40, 16});
  std::vector<uint32_t> many;
  for (uint32_t i = 0; i < 9000; ++i) many.push_back(i * 7 % 356);
  Request rows = sequence.request(Operation::GATHER);
  rows.tokens = many;
  for (const bool good : {true, false}) {
    if (!good) many[5000] = 356;
    Answer here(rows), there(rows);
    const auto read_here = ndp::run(rows, here.room());
    const auto read_there = engine().run(rows, there.room());
    ASSERT_EQ(read_there.status(), read_here.status());
    if (good) {
      EXPECT_EQ(here, there);
    } else {
      EXPECT_EQ(read_there.error().message(), read_here.error().message());
    }
  }
}

// ---- the device is gone, or has no room ----

class FallbackTest : public EngineTest {
 protected:
  FallbackTest() : sequence_(pool(), "plain", CompressionProfile::NONE, {300, 40, 16}) {}
  std::unique_ptr<driver::QueuePair> pair() { return driver::QueuePair::open(pool()).value(); }
  LeasedSequence sequence_;
};

TEST_F(FallbackTest, AnswersWhereThePoolIsFull) {
  auto device_pair = pair();
  std::vector<std::byte> value(1 << 20);
  const NamespaceId ns = pool().open_namespace({"full", ""}).value();
  std::vector<Lease> leases;
  for (int i = 0;; ++i) {
    const ConstSpan in{value.data(), value.size()};
    const std::string key = std::to_string(i);
    if (pool().put(ns, key, {&in, 1}) != Status::OK) break;
    leases.push_back(pool().acquire(ns, key, 600'000).value());
  }
  const DeviceThread device(pool_.locator());
  const Request request = requests(sequence_)[0];
  Answer answer(request), wanted(request);
  ASSERT_TRUE(ndp::run(request, wanted.room()));
  EXPECT_EQ(device_pair->run(request, answer.room()).status(), Status::LIMIT_REACHED);
  ndp::FallbackEngine either(std::move(device_pair));
  const auto read = either.run(request, answer.room());
  EXPECT_TRUE(read) << read.error().message();
  EXPECT_EQ(answer, wanted);
  for (Lease& lease : leases) (void)pool().release(lease);
}

/// Without a device, or by one that dies before it has begun them.
TEST_F(FallbackTest, DoesNoJobThatWasCancelled) {
  const Request request = requests(sequence_)[0];
  ndp::ProcessEngine process;
  Injector injector(process, {{.kind = Fault::Kind::DROP}});
  ndp::FallbackEngine either(pair());
  Answer answer(request);
  Job job{request, answer.room()};
  {
    const DeviceThread device(pool_.locator(), {.engine = &injector});
    either.submit(job);
    for (int i = 0; i < 100; ++i) (void)either.poll(job);
    either.cancel(job);
  }
  either.wait(job);
  EXPECT_EQ(job.answer->status(), Status::CANCELLED);
}

TEST_F(FallbackTest, ManyJobsEndWithoutADevice) {
  const Request request = requests(sequence_)[0];
  Answer answer(request);
  std::vector<Job> jobs(20'000, Job{request, answer.room()});
  const auto asked = pair();
  asked->submit(std::span(jobs));
  for (Job& job : jobs) {
    asked->wait(job);
    ASSERT_EQ(job.answer->status(), Status::DEVICE_LOST);
  }
}

// ---- the injector ----

class InjectorTest : public EngineTest {
 protected:
  InjectorTest() : sequence_(pool(), "plain", CompressionProfile::NONE, {300, 40, 16}) {
    request_ = requests(sequence_)[0];
  }
  /// The statuses of so many requests, one after the other.
  std::vector<Status> statuses(ndp::Engine& engine, size_t count) {
    std::vector<Status> all;
    for (size_t i = 0; i < count; ++i) {
      Answer answer(request_);
      all.push_back(engine.run(request_, answer.room()).status());
    }
    return all;
  }

  LeasedSequence sequence_;
  Request request_;
  ndp::ProcessEngine process_;
};

TEST_F(InjectorTest, FailsAsOftenAsItIsTold) {
  Injector injector(process_, {{.every = 3, .count = 2, .status = Status::DAMAGED}});
  const Status ok = Status::OK, bad = Status::DAMAGED;
  EXPECT_EQ(statuses(injector, 10),
            (std::vector<Status>{ok, ok, bad, ok, ok, bad, ok, ok, ok, ok}));
  EXPECT_EQ(injector.injected(), 2u);
}

TEST_F(InjectorTest, Corrupts) {
  Injector injector(process_, {{.kind = Fault::Kind::CORRUPT, .every = 2}});
  Answer wanted(request_), first(request_), second(request_);
  ASSERT_TRUE(ndp::run(request_, wanted.room()));
  ASSERT_TRUE(injector.run(request_, first.room()));
  ASSERT_TRUE(injector.run(request_, second.room()));
  EXPECT_EQ(first, wanted);
  EXPECT_NE(second, wanted);
}

TEST_F(InjectorTest, Delays) {
  Injector injector(process_, {{.kind = Fault::Kind::DELAY, .delay_ms = 30}});
  const auto begun = steady_clock::now();
  Answer answer(request_);
  Job job{request_, answer.room()};
  injector.submit(job);
  EXPECT_FALSE(injector.poll(job) && steady_clock::now() - begun < milliseconds(30));
  injector.wait(job);
  EXPECT_GE(steady_clock::now() - begun, milliseconds(30));
  EXPECT_TRUE(*job.answer);
}

TEST_F(InjectorTest, Drops) {
  Injector injector(process_, {{.kind = Fault::Kind::DROP, .every = 2}});
  Answer answer(request_);
  std::vector<Job> jobs(4, Job{request_, answer.room(), 40});
  injector.submit(std::span(jobs));
  injector.cancel(jobs[3]);
  for (Job& job : jobs) injector.wait(job);
  EXPECT_TRUE(*jobs[0].answer);
  EXPECT_EQ(jobs[1].answer->status(), Status::TIMED_OUT);
  EXPECT_TRUE(*jobs[2].answer);
  EXPECT_EQ(jobs[3].answer->status(), Status::CANCELLED);
}

/// On a device whose engine is faulty: who asks gets an answer to everything but what is dropped,
/// and that ends by its time limit.
TEST_F(InjectorTest, WorksInADevice) {
  for (const bool small : {false, true}) {
    LeasedSequence few(pool(), small ? "few" : "more", CompressionProfile::NONE, {64});
    Request request = requests(small ? few : sequence_)[0];
    Injector injector(process_, {{.kind = Fault::Kind::DELAY, .every = 5},
                                 {.kind = Fault::Kind::DROP, .every = 7, .count = 1},
                                 {.every = 3, .status = Status::DAMAGED}});
    const DeviceThread device(pool_.locator(), {.engine = &injector});
    const auto pair = driver::QueuePair::open(pool());
    ASSERT_TRUE(pair);
    std::vector<Answer> answers(30, Answer(request));
    std::vector<Job> jobs;
    for (Answer& answer : answers) jobs.push_back(Job{request, answer.room(), 2'000});
    (*pair)->submit(std::span(jobs));
    std::map<Status, uint32_t> counts;
    for (Job& job : jobs) {
      (*pair)->wait(job);
      ++counts[job.answer->status()];
    }
    EXPECT_EQ(counts[Status::TIMED_OUT], 1u);
    EXPECT_EQ(counts[Status::DAMAGED], 8u);  // of 10, which 15 and 30 are not
    EXPECT_EQ(counts[Status::OK], 21u);
    EXPECT_EQ(injector.injected(), 15u);
    Answer answer(request);
    (void)(*pair)->run(request, answer.room());
    EXPECT_TRUE((*pair)->ping());
  }
}

/// What a device drops is lost after the time limit of the pair; the others are answered.
TEST_F(InjectorTest, ADroppedRequestIsLost) {
  Injector injector(process_, {{.kind = Fault::Kind::DROP, .every = 4, .count = 1}});
  const DeviceThread device(pool_.locator(), {.engine = &injector});
  const auto pair = driver::QueuePair::open(pool(), {.timeout_ms = 2'000});
  ASSERT_TRUE(pair);
  std::vector<Answer> answers(8, Answer(request_));
  std::vector<Job> jobs;
  for (Answer& answer : answers) jobs.push_back(Job{request_, answer.room()});
  (*pair)->submit(std::span(jobs));
  std::map<Status, uint32_t> counts;
  for (Job& job : jobs) {
    (*pair)->wait(job);
    ++counts[job.answer->status()];
  }
  EXPECT_EQ(counts[Status::DEVICE_LOST], 1u);
  EXPECT_EQ(counts[Status::OK], 7u);
}

/// Those that wait for long ones are not lost, however many they are.
TEST_F(InjectorTest, ALongQueueIsNotLost) {
  Injector injector(process_, {{.kind = Fault::Kind::DELAY, .delay_ms = 150}});
  class OneByOne final : public ndp::Engine {
   public:
    using Engine::submit;
    explicit OneByOne(ndp::Engine& of) : of_(of) {}
    const char* name() const override { return "one by one"; }
    void submit(std::span<Job> jobs) override {
      for (Job& job : jobs) {
        of_.submit(job);
        of_.wait(job);
      }
    }
    bool poll(Job&) override { return true; }
    void wait(Job&) override {}
    void cancel(Job&) override {}

   private:
    ndp::Engine& of_;
  } slow(injector);
  const DeviceThread device(pool_.locator(), {.engine = &slow});
  const auto pair = driver::QueuePair::open(pool(), {.timeout_ms = 2'000});
  ASSERT_TRUE(pair);
  std::vector<Answer> answers(20, Answer(request_));
  std::vector<Job> jobs;
  for (Answer& answer : answers) jobs.push_back(Job{request_, answer.room()});
  (*pair)->submit(std::span(jobs));
  for (size_t i = jobs.size(); i-- > 0;) {
    (*pair)->wait(jobs[i]);
    EXPECT_TRUE(*jobs[i].answer) << i << ": " << jobs[i].answer->error().message();
  }
}

TEST(ParseFault, KnowsAllOfThem) {
  const auto fault = ndp::parse_fault("drop:100:3");
  ASSERT_TRUE(fault);
  EXPECT_EQ(fault->kind, Fault::Kind::DROP);
  EXPECT_EQ(fault->every, 100u);
  EXPECT_EQ(fault->count, 3u);
  EXPECT_EQ(ndp::parse_fault("corrupt")->every, 1u);
  EXPECT_EQ(ndp::parse_fault("delay:2")->kind, Fault::Kind::DELAY);
  EXPECT_EQ(ndp::parse_fault("fail")->count, 0u);
  for (const char* bad : {"", "dro", "drop:", "drop:0", "drop:1:", "drop:1:2:3", "drop:x",
                          "drop:-1", "drop:1:0", "fail :1", "99999999999999999999"}) {
    const auto refused = ndp::parse_fault(bad);
    ASSERT_FALSE(refused) << bad;
    EXPECT_EQ(refused.status(), Status::INVALID_ARGUMENT);
    EXPECT_NE(refused.error().message().find(fmt::format("'{}'", bad)), std::string::npos);
  }
}

}  // namespace
}  // namespace bowhead::test
