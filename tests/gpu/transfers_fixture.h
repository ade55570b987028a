// SPDX-License-Identifier: Apache-2.0
// Transfers between a pool and the caches of engines, on every device.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "base/random.h"
#include "gpu/jobs/transfers.h"
#include "tests/gpu/devices.h"
#include "tests/gpu/engine_cache.h"
#include "tests/support/pools.h"

namespace bowhead::gpu {

class TransfersTest : public EveryDevice {
 protected:
  void SetUp() override {
    EveryDevice::SetUp();
    if (IsSkipped()) return;
    registration_ = std::move(Registration::create(device(), pool_.pool(), 4 << 20).value());
    // Otherwise jobs are staged while the registration runs.
    ASSERT_DONE(registration_->ensure(0, registration_->size_bytes()));
  }
  void TearDown() override { registration_.reset(); }

  /// The registration is with a device of the test's own, and ends before that device does.
  class RegisteredWith {
   public:
    RegisteredWith(TransfersTest& test, Device& device) : test_(test) {
      auto created = Registration::create(device, test.pool_.pool(), 4 << 20);
      test.registration_ = std::move(created).value();
    }
    RegisteredWith(const RegisteredWith&) = delete;
    RegisteredWith& operator=(const RegisteredWith&) = delete;
    ~RegisteredWith() { test_.registration_.reset(); }

   private:
    TransfersTest& test_;
  };

  Transfers open(const EngineCache& engine) {
    pool_.use_layout(engine.cache().layout);
    auto opened = Transfers::open(pool_.pool(), *registration_, device(), engine.cache());
    EXPECT_DONE(opened);
    return std::move(*opened);
  }
  std::vector<Status> run(Transfers& transfers, bool spills,
                          const std::vector<BlockOfTokens>& blocks,
                          const JobOptions& options = {}) {
    auto job = spills ? transfers.spill(pool_.ns(), blocks, options)
                      : transfers.restore(pool_.ns(), blocks, options);
    EXPECT_DONE(job);
    if (!job) return {job.status()};
    transfers.wait(**job);
    const auto results = transfers.results(**job);
    return {results.begin(), results.end()};
  }
  /// Blocks of 40 tokens, contiguous, in pages in random order.
  static std::vector<BlockOfTokens> blocks_in(const std::vector<uint32_t>& pages, uint32_t count) {
    std::vector<BlockOfTokens> blocks;
    for (uint32_t i = 0; i < count; ++i)
      blocks.push_back({"block " + std::to_string(i), {pages, i * 40, 40}});
    return blocks;
  }
  static std::vector<uint32_t> shuffled(uint32_t count, uint64_t seed) {
    std::vector<uint32_t> pages(count);
    std::iota(pages.begin(), pages.end(), 0u);
    Random random(seed);
    for (uint32_t i = count; i > 1; --i) std::swap(pages[i - 1], pages[random.below(i)]);
    return pages;
  }

  test::TestPool pool_{32 << 20};
  std::unique_ptr<Registration> registration_;
};

inline const std::vector<Status> kFine(5, Status::OK);

}  // namespace bowhead::gpu
