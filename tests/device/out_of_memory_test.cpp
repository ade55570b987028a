// SPDX-License-Identifier: Apache-2.0
// A process that asks a device runs out of memory, and a device does: each allocation of a request
// fails in turn, with all after it. The request then ends, or is answered rightly; later ones are
// answered, also by a device that is started anew.
#include <gtest/gtest.h>

#include <atomic>
#include <new>

#include "driver-shim/queue_pair.h"
#include "tests/device/engine_fixture.h"
#include "tests/pool/allocations.h"

namespace bowhead::test {
namespace {

using driver::QueuePair;
using ndp::Job;
using ndp::Request;

class OutOfMemory : public EngineTest {
 protected:
  OutOfMemory() : sequence_(pool(), "coded", CompressionProfile::FAST, {300, 40, 16}) {
    for (const size_t kind : {0u, 3u, 13u}) requests_.push_back(requests(sequence_)[kind]);
    for (const Request& request : requests_) {
      wanted_.emplace_back(request);
      EXPECT_TRUE(ndp::run(request, wanted_.back().room()));
    }
  }
  void expect_answers(QueuePair& pair) {
    for (size_t i = 0; i < requests_.size(); ++i) {
      Answer answer(requests_[i]);
      const auto read = pair.run(requests_[i], answer.room());
      ASSERT_TRUE(read) << read.error().message();
      EXPECT_EQ(answer, wanted_[i]);
    }
  }

  LeasedSequence sequence_;
  std::vector<Request> requests_;
  std::vector<Answer> wanted_;
};

TEST_F(OutOfMemory, OfAProcess) {
  const auto pair = QueuePair::open(pool());
  ASSERT_TRUE(pair);
  std::optional<DeviceThread> device;
  device.emplace(pool_.locator());
  expect_answers(**pair);
  for (size_t i = 0; i < requests_.size(); ++i) {
    bool failed = true;
    for (uint64_t left = 0; failed; ++left) {
      SCOPED_TRACE(left);
      Answer answer(requests_[i]);
      Job job{requests_[i], answer.room()};
      allocations_left = left;
      try {
        (*pair)->submit(job);
        (*pair)->wait(job);
      } catch (const std::bad_alloc&) {
        allocations_left = UINT64_MAX;
        FAIL() << "it would leave a job behind";
      }
      failed = allocations_left == 0;
      allocations_left = UINT64_MAX;
      ASSERT_TRUE(job.answer);
      if (*job.answer) {
        EXPECT_EQ(answer, wanted_[i]);
      } else {
        EXPECT_EQ(job.answer->status(), Status::LIMIT_REACHED);
      }
      expect_answers(**pair);
      ASSERT_LT(left, 2000u);
    }
    device.reset();
    device.emplace(pool_.locator());
    expect_answers(**pair);
  }
}

TEST_F(OutOfMemory, OfADevice) {
  const auto pair = QueuePair::open(pool());
  ASSERT_TRUE(pair);
  std::atomic<int64_t> arm = -1;  // how many allocations of the device's thread succeed from now on
  std::atomic<bool> stops = false, armed = false;
  auto handle = Pool::open(pool_.locator(), {.prefault = false}).value();
  const auto device = device::Device::make(handle).value();
  std::thread serves([&] {
    EXPECT_TRUE(device->serve([&] {
      const int64_t left = arm.exchange(-1);
      if (left == -2) allocations_left = UINT64_MAX;
      if (left >= 0) allocations_left = static_cast<uint64_t>(left);
      if (left != -1) armed = left >= 0;
      return stops.load();
    }));
  });
  expect_answers(**pair);
  for (size_t i = 0; i < requests_.size(); ++i) {
    for (int64_t left = 0; left < 60; ++left) {
      SCOPED_TRACE(left);
      arm = left;
      while (!armed) std::this_thread::yield();
      Answer answer(requests_[i]);
      Job job{requests_[i], answer.room(), 100};
      (*pair)->submit(job);
      (*pair)->wait(job);
      arm = -2;
      while (armed) std::this_thread::yield();
      if (*job.answer) {
        EXPECT_EQ(answer, wanted_[i]);
      } else {
        EXPECT_TRUE(job.answer->status() == Status::LIMIT_REACHED ||
                    job.answer->status() == Status::TIMED_OUT)
            << job.answer->error().message();
      }
      expect_answers(**pair);
    }
  }
  stops = true;
  serves.join();
}

}  // namespace
}  // namespace bowhead::test
