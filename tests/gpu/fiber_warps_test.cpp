// SPDX-License-Identifier: Apache-2.0
// Fiber warps find their faults: small kernels with one fault each, and the same kernels without
// it.
#include "tests/gpu/fiber_warps.h"

#include <gtest/gtest.h>

#include <array>
#include <functional>
#include <set>
#include <string>

#include "gpu/kernels/warp.h"

namespace bowhead::gpu {
namespace {

/// The first fault of a kernel of so many units, or "".
std::string fault_of(const std::function<void(uint32_t)>& kernel, uint32_t units = 1,
                     uint64_t seed = 1) {
  const auto outcome = fibers::run(
      {.seed = seed}, [&] { run_warps(units, [&](uint32_t unit, uint32_t) { kernel(unit); }); });
  return outcome.faults.empty() ? "" : outcome.faults.front();
}
bool has(const std::string& text, const char* part) { return text.find(part) != std::string::npos; }

alignas(16) std::array<uint32_t, kWarpLanes> words;

uint32_t neighbour() { return (fibers::lane() + 1) % kWarpLanes; }

TEST(FiberWarps, FindALoadOfAnotherLanesStore) {
  const auto kernel = [](bool syncs) {
    return [syncs](uint32_t) {
      store(&words[fibers::lane()], fibers::lane());
      if (syncs) Warp::sync();
      EXPECT_TRUE(!syncs || load(&words[neighbour()]) == neighbour());
      if (!syncs) (void)load(&words[neighbour()]);
    };
  };
  for (uint64_t seed = 0; seed < 20; ++seed) {
    EXPECT_TRUE(has(fault_of(kernel(false), 1, seed), "without a sync")) << seed;
    EXPECT_EQ(fault_of(kernel(true), 1, seed), "");
  }
}

TEST(FiberWarps, FindAStoreToAnotherLanesLoad) {
  const auto kernel = [](bool syncs) {
    return [syncs](uint32_t) {
      (void)load(&words[neighbour()]);
      if (syncs) Warp::sync();
      store(&words[fibers::lane()], 1u);
    };
  };
  for (uint64_t seed = 0; seed < 20; ++seed) {
    EXPECT_TRUE(has(fault_of(kernel(false), 1, seed), "without a sync")) << seed;
    EXPECT_EQ(fault_of(kernel(true), 1, seed), "");
  }
}

/// An exchange of values makes lanes wait, but does not order their stores.
TEST(FiberWarps, FindThatAnExchangeIsNotASync) {
  const auto fault = fault_of([](uint32_t) {
    store(&words[fibers::lane()], fibers::lane());
    Lanes<uint32_t> ones;
    Warp::each([&](uint32_t lane) { ones[lane] = 1; });
    EXPECT_EQ(Warp::sum(ones, kWarpLanes - 1)[0], kWarpLanes);
    (void)load(&words[neighbour()]);
  });
  EXPECT_TRUE(has(fault, "without a sync")) << fault;
}

TEST(FiberWarps, FindWarpsThatShareAByte) {
  std::string fault;
  // One warp may have been drawn to do both.
  for (uint64_t seed = 0; seed < 50 && fault.empty(); ++seed)
    fault = fault_of([](uint32_t unit) { store(&words[fibers::lane()], unit); }, 2, seed);
  EXPECT_TRUE(has(fault, "without a sync")) << fault;
  EXPECT_EQ(fault_of([](uint32_t) { add(words.data(), 1); }, 9), "") << "an atomic operation";
}

TEST(FiberWarps, FindAStoreToAConstant) {
  const auto fault = fault_of([](uint32_t) {
    (void)load_constant(&words[fibers::lane()]);
    store(&words[fibers::lane()], 1u);
  });
  EXPECT_TRUE(has(fault, "constant")) << fault;
}

TEST(FiberWarps, FindALoadOfAnotherTypeThanWasStored) {
  const auto kernel = [](bool keeps) {
    return [keeps](uint32_t) {
      store(&words[fibers::lane()], 1u);
      if (keeps) keep_order();
      (void)load(reinterpret_cast<const uint16_t*>(&words[fibers::lane()]));
    };
  };
  EXPECT_TRUE(has(fault_of(kernel(false)), "keep_order"));
  EXPECT_EQ(fault_of(kernel(true)), "");
}

TEST(FiberWarps, FindLanesThatPart) {
  const auto different = fault_of([](uint32_t) {
    if (fibers::lane() < 7) {
      Warp::sync();
    } else {
      Warp::sync();
    }
  });
  EXPECT_TRUE(has(different, "others wait at")) << different;
  const auto ended = fault_of([](uint32_t) {
    if (fibers::lane() != 3) Warp::sync();
  });
  EXPECT_TRUE(has(ended, "ended")) << ended;
}

TEST(FiberWarps, RunLanesInAnotherOrderForAnotherSeed) {
  std::set<std::string> orders;
  for (uint64_t seed = 0; seed < 20; ++seed) {
    std::string order;
    (void)fault_of([&](uint32_t) { order += static_cast<char>('A' + fibers::lane()); }, 1, seed);
    EXPECT_EQ(order.size(), kWarpLanes);
    orders.insert(order);
  }
  EXPECT_EQ(orders.size(), 20u);
}

}  // namespace
}  // namespace bowhead::gpu
