// SPDX-License-Identifier: Apache-2.0
// Queue: order, priorities, announcements, limits, cancellation, drain, and its end.
#include "pool/queue.h"

#include <gtest/gtest.h>
#include <poll.h>

#include <atomic>
#include <future>
#include <set>

namespace bowhead {
namespace {

using std::chrono::milliseconds;

std::unique_ptr<Queue> open_queue(const QueueOptions& options = {}) {
  auto queue = Queue::open(options);
  EXPECT_TRUE(queue) << queue.error().message();
  return std::move(*queue);
}

bool readable(const Queue& queue, int timeout_ms = 0) {
  pollfd fd = {queue.fd(), POLLIN, 0};
  return ::poll(&fd, 1, timeout_ms) == 1;
}

std::vector<JobReport> poll_all(Queue& queue) {
  std::vector<JobReport> all;
  JobReport one[3];
  while (const size_t n = queue.poll(one)) all.insert(all.end(), one, one + n);
  return all;
}

Job nothing() {
  return {.run = [] { return JobResult{}; }};
}

/// A job that runs until it is let go. Declared before the queue, which then ends before it.
class Gate {
 public:
  Job job(uint32_t priority = 0) {
    return {.run =
                [this] {
                  started_.set_value();
                  opened_.wait();
                  return JobResult{};
                },
            .priority = priority};
  }
  void wait_for_start() { started_.get_future().wait(); }
  void open() { open_.set_value(); }

 private:
  std::promise<void> started_, open_;
  std::shared_future<void> opened_ = open_.get_future().share();
};

TEST(Queue, RefusesOptionsOutOfRange) {
  for (const QueueOptions& options : {QueueOptions{0, 1}, QueueOptions{65, 1}, QueueOptions{1, 0},
                                      QueueOptions{1, (1 << 20) + 1}})
    EXPECT_EQ(Queue::open(options).status(), Status::INVALID_ARGUMENT);
}

TEST(Queue, ReportsResultContextAndNumber) {
  const auto queue = open_queue();
  int context = 0;
  Job job = {.run =
                 [] {
                   return JobResult{Status::NAMESPACE_GONE, 3};
                 },
             .context = &context,
             .operation = 7};
  const auto number = queue->submit(job);
  ASSERT_TRUE(number);
  ASSERT_TRUE(readable(*queue, 10'000));
  const auto reports = poll_all(*queue);
  ASSERT_EQ(reports.size(), 1u);
  EXPECT_EQ(reports[0].number, *number);
  EXPECT_EQ(reports[0].context, &context);
  EXPECT_EQ(reports[0].operation, 7u);
  EXPECT_EQ(reports[0].result.status, Status::NAMESPACE_GONE);
  EXPECT_EQ(reports[0].result.failed, 3u);
  EXPECT_FALSE(readable(*queue));
}

TEST(Queue, StartsHigherPrioritiesFirstAndEqualOnesInOrder) {
  Gate gate;
  const auto queue = open_queue();
  ASSERT_TRUE(queue->submit(gate.job()));
  gate.wait_for_start();
  std::vector<int> order;
  const auto add = [&](int name, uint32_t priority) {
    ASSERT_TRUE(queue->submit({.run =
                                   [&order, name] {
                                     order.push_back(name);
                                     return JobResult{};
                                   },
                               .priority = priority}));
  };
  add(1, 0);
  add(2, 255);
  add(3, 7);
  add(4, 255);
  add(5, 0);
  gate.open();
  ASSERT_EQ(queue->drain(milliseconds(10'000)), Status::OK);
  EXPECT_EQ(order, (std::vector<int>{2, 4, 3, 1, 5}));
  EXPECT_EQ(poll_all(*queue).size(), 6u);
}

TEST(Queue, HasALimitUntilItsJobsAreReported) {
  const auto queue = open_queue({1, 2});
  ASSERT_TRUE(queue->submit(nothing()));
  ASSERT_TRUE(queue->submit(nothing()));
  ASSERT_EQ(queue->drain(milliseconds(10'000)), Status::OK);
  const auto third = queue->submit(nothing());
  EXPECT_EQ(third.status(), Status::LIMIT_REACHED);
  EXPECT_NE(third.error().message().find("poll the queue"), std::string::npos);
  JobReport one;
  EXPECT_EQ(queue->poll({&one, 1}), 1u);
  EXPECT_TRUE(queue->submit(nothing()));
}

TEST(Queue, CancelsOnlyWhatHasNotStarted) {
  Gate gate;
  const auto queue = open_queue();
  const auto running = queue->submit(gate.job());
  gate.wait_for_start();
  const auto waiting = queue->submit(nothing());
  EXPECT_EQ(queue->cancel(*running), Status::NOT_FOUND);
  EXPECT_EQ(queue->cancel(*waiting), Status::OK);
  EXPECT_EQ(queue->cancel(*waiting), Status::NOT_FOUND);
  EXPECT_TRUE(readable(*queue)) << "a cancelled job is announced at once";
  JobReport one;
  ASSERT_EQ(queue->poll({&one, 1}), 1u);
  EXPECT_EQ(one.number, *waiting);
  EXPECT_EQ(one.result.status, Status::CANCELLED);
  gate.open();
  EXPECT_EQ(queue->drain(milliseconds(10'000)), Status::OK);
}

/// Though a quick job waits, no worker is about to take it.
TEST(Queue, ACancelledJobIsAnnouncedWhileAllWorkersAreBusy) {
  Gate gate;
  const auto queue = open_queue();
  ASSERT_TRUE(queue->submit(gate.job()));
  gate.wait_for_start();
  Job quick = nothing();
  quick.quick = true;
  const auto first = queue->submit(quick);
  ASSERT_TRUE(queue->submit(quick));
  EXPECT_EQ(queue->cancel(*first), Status::OK);
  EXPECT_TRUE(readable(*queue));
  gate.open();
  EXPECT_EQ(queue->drain(milliseconds(10'000)), Status::OK);
}

TEST(Queue, DrainWaitsForEarlierJobsOnly) {
  Gate first, second;
  const auto queue = open_queue({2, 16});
  ASSERT_TRUE(queue->submit(first.job()));
  first.wait_for_start();
  EXPECT_EQ(queue->drain(milliseconds(20)), Status::BUSY);
  auto drained = std::async(std::launch::async, [&] { return queue->drain(milliseconds(10'000)); });
  EXPECT_EQ(drained.wait_for(milliseconds(20)), std::future_status::timeout);
  ASSERT_TRUE(queue->submit(second.job()));
  second.wait_for_start();
  first.open();
  EXPECT_EQ(drained.get(), Status::OK) << "the second job is later";
  second.open();
}

TEST(Queue, ItsEndCancelsWaitingJobsAndWaitsForRunningOnes) {
  Gate gate;
  auto queue = open_queue();
  std::atomic<bool> ran{false};
  ASSERT_TRUE(queue->submit(gate.job()));
  gate.wait_for_start();
  ASSERT_TRUE(queue->submit({.run = [&] {
    ran = true;
    return JobResult{};
  }}));
  auto closed = std::async(std::launch::async, [&] { queue.reset(); });
  EXPECT_EQ(closed.wait_for(milliseconds(50)), std::future_status::timeout);
  gate.open();
  closed.get();
  EXPECT_FALSE(ran);
}

/// Quick jobs are announced together, but no announcement waits for a job that is not quick (Q2).
TEST(Queue, AnnouncesQuickJobsTogetherAndNoJobLate) {
  Gate before, after;
  const auto queue = open_queue();
  ASSERT_TRUE(queue->submit(before.job()));
  before.wait_for_start();
  Job quick = nothing();
  quick.quick = true;
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(queue->submit(quick));
  ASSERT_TRUE(queue->submit(after.job()));
  before.open();
  after.wait_for_start();
  EXPECT_TRUE(readable(*queue)) << "four jobs have ended, and the fifth takes long";
  EXPECT_EQ(poll_all(*queue).size(), 4u);
  EXPECT_FALSE(readable(*queue));
  after.open();
  EXPECT_TRUE(readable(*queue, 10'000));
}

/// A job of a higher priority that comes between a quick job and the end before it.
TEST(Queue, AnnouncesBeforeAJobThatOvertakesAQuickOne) {
  Gate before, overtaking;
  const auto queue = open_queue();
  ASSERT_TRUE(queue->submit(before.job()));
  before.wait_for_start();
  Job quick = nothing();
  quick.quick = true;
  // Its end sees the next quick job; while it runs, the long one is submitted.
  Job submits = {.run =
                     [&] {
                       EXPECT_TRUE(queue->submit(overtaking.job(9)));
                       return JobResult{};
                     },
                 .quick = true};
  ASSERT_TRUE(queue->submit(submits));
  ASSERT_TRUE(queue->submit(quick));
  before.open();
  overtaking.wait_for_start();
  EXPECT_TRUE(readable(*queue));
  EXPECT_EQ(poll_all(*queue).size(), 2u);
  overtaking.open();
  EXPECT_EQ(queue->drain(milliseconds(10'000)), Status::OK);
}

/// Several submitters and several pollers: each job is reported once, and no poller waits for the
/// eventfd for ever.
TEST(Queue, ReportsEachJobOnceToSeveralPollers) {
  constexpr int kSubmitters = 3, kPollers = 2, kJobs = 4000;
  const auto queue = open_queue({2, 64});
  std::atomic<int> ran{0}, reported{0};
  std::mutex mutex;
  std::set<uint64_t> numbers;
  std::vector<std::thread> threads;
  for (int s = 0; s < kSubmitters; ++s) {
    threads.emplace_back([&, s] {
      for (int i = 0; i < kJobs;) {
        const Job job = {.run =
                             [&] {
                               ++ran;
                               return JobResult{};
                             },
                         .priority = static_cast<uint32_t>(i % 3),
                         .quick = (i + s) % 4 != 0};
        if (queue->submit(job))
          ++i;
        else
          std::this_thread::yield();
      }
    });
  }
  for (int p = 0; p < kPollers; ++p) {
    threads.emplace_back([&] {
      JobReport some[5];
      while (reported < kSubmitters * kJobs) {
        (void)readable(*queue, 20);
        const size_t n = queue->poll(some);
        const std::lock_guard lock(mutex);
        for (size_t i = 0; i < n; ++i) EXPECT_TRUE(numbers.insert(some[i].number).second);
        reported += static_cast<int>(n);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(ran, kSubmitters * kJobs);
  EXPECT_EQ(numbers.size(), static_cast<size_t>(kSubmitters * kJobs));
  EXPECT_FALSE(readable(*queue));
}

/// One poller that waits for nothing but the eventfd.
TEST(Queue, TheEventfdAloneSuffices) {
  const auto queue = open_queue({2, 32});
  int submitted = 0, reported = 0;
  while (reported < 20'000) {
    Job job = nothing();
    job.quick = submitted % 3 != 0;
    while (submitted < 20'000 && queue->submit(job)) ++submitted;
    ASSERT_TRUE(readable(*queue, 30'000)) << reported << " of " << submitted << " reported";
    JobReport some[7];
    reported += static_cast<int>(queue->poll(some));
  }
}

}  // namespace
}  // namespace bowhead
