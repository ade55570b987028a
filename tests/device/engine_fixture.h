// SPDX-License-Identifier: Apache-2.0
// A pool, requests about blocks of it, and a device in a thread.
#pragma once

#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "firmware-sim/device.h"
#include "tests/device/sequence.h"
#include "tests/support/pools.h"

namespace bowhead::test {

inline constexpr uint32_t kQueries = 3;

/// A device in a thread of this process, with a handle of its own.
class DeviceThread {
 public:
  explicit DeviceThread(const std::string& locator, const device::Options& options = {})
      : pool_(Pool::open(locator, {.prefault = false}).value()) {
    auto made = device::Device::make(pool_, options);
    EXPECT_TRUE(made) << made.error().message();
    if (!made) return;
    device_ = std::move(*made);
    thread_ = std::thread([this] {
      const auto served = device_->serve([this] { return stops_.load(); });
      EXPECT_TRUE(served) << served.error().message();
    });
  }
  ~DeviceThread() {
    stops_ = true;
    if (thread_.joinable()) thread_.join();
  }
  device::Device& device() { return *device_; }

 private:
  Pool pool_;
  std::atomic<bool> stops_{false};
  std::unique_ptr<device::Device> device_;
  std::thread thread_;
};

/// A pool, and requests about a sequence of 356 tokens.
class EngineTest : public testing::Test {
 protected:
  EngineTest() : pool_(96u << 20) {
    Random random(7);
    queries_.resize(size_t{2} * kQueries * kChannels);
    for (float& value : queries_) value = (static_cast<float>(random.below(2001)) - 1000) / 512;
    weights_ = {0.5f, -1, 2, 1, 1, 1};
  }
  Pool& pool() { return pool_.pool(); }

  /// One of each operation, and variants.
  std::vector<ndp::Request> requests(const LeasedSequence& sequence) {
    std::vector<ndp::Request> all;
    for (const ndp::Operation operation :
         {ndp::Operation::SCORE, ndp::Operation::TOP_K, ndp::Operation::ATTEND}) {
      ndp::Request request = sequence.request(operation);
      request.queries.values = queries_;
      request.queries.count = kQueries;
      request.queries.scale = 0.125f;
      request.k = 20;
      all.push_back(request);
      request.queries.views = ndp::Visible{30, 333, 4};
      all.push_back(request);
      request.queries.views = std::span<const ndp::Visible>(views_);
      all.push_back(request);
    }
    ndp::Request sums = all[3];
    sums.queries.weights = weights_;
    sums.queries.rectified = true;
    all.push_back(sums);
    ndp::Request more = all[3];
    more.k = 1000;
    all.push_back(more);
    ndp::Request few = all[3];
    few.reading = ndp::Reading::FEWEST_BYTES;
    all.push_back(few);
    few.bytes_per_token = 24;
    all.push_back(few);
    for (const uint32_t part : {0u, 1u}) {
      ndp::Request rows = sequence.request(ndp::Operation::GATHER);
      rows.part = part;
      rows.tokens = tokens_;
      all.push_back(rows);
    }
    ndp::Request pages = sequence.request(ndp::Operation::DIGEST);
    pages.page_tokens = 16;
    all.push_back(pages);
    return all;
  }

  TestPool pool_;
  std::vector<float> queries_, weights_;
  std::vector<ndp::Visible> views_ = {{0, 300, 0}, {10, 301, 2}, {0, 302, 0}};
  std::vector<uint32_t> tokens_ = {0, 355, 7, 7, 310};
};

}  // namespace bowhead::test
