// SPDX-License-Identifier: Apache-2.0
// The order of a job's steps, and jobs that end early: the CPU device can be held, lost, and made
// to report falsely.
#include <gtest/gtest.h>

#include <chrono>
#include <future>
#include <map>
#include <memory>
#include <thread>

#include "tests/gpu/transfers_fixture.h"

namespace bowhead::gpu {
namespace {

class GatedTransfers : public TransfersTest {};
INSTANTIATE_TEST_SUITE_P(Devices, GatedTransfers, testing::Values("cpu"), device_name);

/// Also in the default stream, which is null.
TEST_P(GatedTransfers, FollowTheEnginesQueuedWork) {
  EngineCache engine(device(), Layout::NHD, {}, RowOrder::HEADS_FIRST);
  Transfers transfers = open(engine);
  const auto pages = shuffled(24, 1);
  const Stream made = device().make_stream(0).value();
  for (const Stream compute : {made, Stream{}}) {
    const auto before = engine.random_bytes(compute == made ? 1 : 3);
    engine.write(engine.random_bytes(2));
    gate_->hold_next(1);
    uint8_t* const memory = engine.cache().parts[0].base;
    ASSERT_DONE(device().copy(memory, before.data(), before.size(), compute));
    auto job = transfers.spill(pool_.ns(), blocks_in(pages, 2), {.after = compute});
    ASSERT_DONE(job);
    EXPECT_FALSE(transfers.poll(**job));
    EXPECT_EQ(pool_.get_status("block 0"), Status::NOT_FOUND);
    gate_->let_go();
    transfers.wait(**job);
    EXPECT_TRUE(transfers.poll(**job));
    EXPECT_EQ(pool_.get("block 1"), engine.payload(before, {pages, 40, 40}));
    for (const char* key : {"block 0", "block 1"})
      ASSERT_EQ(pool_.pool().remove(pool_.ns(), key), Status::OK);
  }
  device().destroy_stream(made);
}

TEST_P(GatedTransfers, LetLayersBeUsedOneByOne) {
  EngineCache engine(device(), Layout::NHD, {}, RowOrder::HEADS_FIRST);
  const auto before = engine.random_bytes(1);
  engine.write(before);
  Transfers transfers = open(engine);
  const auto pages = shuffled(24, 1);
  ASSERT_EQ(run(transfers, true, blocks_in(pages, 5)), kFine);
  for (const Path path : {Path::KERNEL, Path::COPIES}) {
    engine.write(engine.random_bytes(2));
    const Stream compute = device().make_stream(0).value();
    const Event used = device().make_event().value();
    // First come layers 0 and 1, as copies with a kernel that sums them, and then the last one,
    // which is held.
    const size_t before_last = path == Path::KERNEL ? 1 : 2;
    const size_t first = gate_->hold_next(before_last + 1);
    auto job =
        transfers.restore(pool_.ns(), blocks_in(pages, 5), {.path = path, .layers_at_once = 2});
    ASSERT_DONE(job);
    gate_->let_go(before_last);
    gate_->wait_for(first + before_last + 1);
    ASSERT_DONE(transfers.wait_layer(**job, 1, compute));
    ASSERT_DONE(device().record(used, compute));
    ASSERT_DONE(device().synchronize(used));
    const auto after = engine.read();
    const size_t two_layers = engine.payload(before, {pages, 0, 40}).size() / 3 * 2;
    const auto want = engine.payload(before, {pages, 0, 40});
    const auto got = engine.payload(after, {pages, 0, 40});
    EXPECT_TRUE(
        std::equal(want.begin(), want.begin() + static_cast<long>(two_layers), got.begin()));
    EXPECT_NE(want, got);
    EXPECT_EQ(transfers.wait_layer(**job, 3, compute).status(), Status::INVALID_ARGUMENT);
    ASSERT_DONE(transfers.wait_layer(**job, 2, compute));
    ASSERT_DONE(device().record(used, compute));
    std::this_thread::sleep_for(std::chrono::milliseconds(10));  // if it does not wait, it is done
    EXPECT_FALSE(device().is_done(used).value());
    EXPECT_FALSE(transfers.poll(**job));
    gate_->let_go();
    transfers.wait(**job);
    EXPECT_EQ(engine.payload(engine.read(), {pages, 0, 40}), want);
    EXPECT_EQ(transfers.wait_layer(**job, 1, compute).status(), Status::INVALID_ARGUMENT);
    device().destroy_event(used);
    device().destroy_stream(compute);
  }
}

/// The descriptor of a few blocks goes with the kernel's arguments: no copy precedes it.
TEST_P(GatedTransfers, AskTheDeviceOnceForASmallJob) {
  EngineCache engine(device(), Layout::NHD, {3, 4, 16, 80}, RowOrder::HEADS_FIRST);
  engine.write(engine.random_bytes(1));
  Transfers transfers = open(engine);
  const auto pages = shuffled(80, 1);
  const auto asked = [&](bool spills, uint32_t count, Path path) {
    const auto blocks = blocks_in(pages, count);
    const size_t before = gate_->count();
    EXPECT_EQ(run(transfers, spills, blocks, {.path = path}), std::vector(count, Status::OK));
    const size_t calls = gate_->count() - before;
    for (const BlockOfTokens& block : blocks)
      EXPECT_TRUE(spills || pool_.pool().remove(pool_.ns(), block.key) == Status::OK);
    return calls;
  };
  for (const uint32_t count : {1u, MoveFewPieces::kMostBlocks}) {
    EXPECT_EQ(asked(true, count, Path::KERNEL), 1) << count;
    EXPECT_EQ(asked(false, count, Path::KERNEL), 1) << count;
    EXPECT_EQ(asked(true, count, Path::COPIES), 2) << "a batch, and what sums it";
    EXPECT_EQ(asked(false, count, Path::COPIES), 2) << "a batch, and what sums it";
  }
  constexpr uint32_t kMany = MoveFewPieces::kMostBlocks + 1;
  EXPECT_EQ(asked(true, kMany, Path::KERNEL), 2) << "tables, and the kernel";
  EXPECT_EQ(asked(false, kMany, Path::KERNEL), 2) << "tables, and the kernel";
}

TEST_P(GatedTransfers, AreCancelled) {
  EngineCache engine(device(), Layout::NHD, {}, RowOrder::HEADS_FIRST);
  engine.write(engine.random_bytes(1));
  Transfers transfers = open(engine);
  const auto pages = shuffled(24, 1);
  gate_->hold_next(1);
  auto job = transfers.spill(pool_.ns(), blocks_in(pages, 2), {});
  ASSERT_DONE(job);
  transfers.cancel(**job);
  EXPECT_FALSE(transfers.poll(**job));
  gate_->let_go();
  transfers.wait(**job);
  EXPECT_EQ(transfers.results(**job)[1], Status::CANCELLED);
  EXPECT_EQ(pool_.info().blocks, 0);
  EXPECT_EQ(pool_.info().used_bytes, 0);
  EXPECT_EQ(run(transfers, true, blocks_in(pages, 5)), kFine);
  EXPECT_TRUE(pool_.check_clean());
}

TEST_P(GatedTransfers, LoseTheGpuAndNothingElse) {
  const auto pages = shuffled(24, 1);
  {
    EngineCache engine(device(), Layout::NHD, {}, RowOrder::HEADS_FIRST);
    engine.write(engine.random_bytes(1));
    Transfers transfers = open(engine);
    ASSERT_EQ(run(transfers, true, blocks_in(pages, 2)), std::vector(2, Status::OK));
    gate_->lose_from(gate_->count());
    auto job = transfers.spill(pool_.ns(), blocks_in(pages, 4), {});
    if (job) {
      transfers.wait(**job);
      EXPECT_EQ(transfers.results(**job)[0], Status::OK);
      EXPECT_EQ(transfers.results(**job)[3], Status::GPU_LOST);
    } else {
      EXPECT_EQ(job.status(), Status::GPU_LOST);
    }
    EXPECT_EQ(transfers.restore(pool_.ns(), blocks_in(pages, 2), {}).status(), Status::GPU_LOST);
  }
  EXPECT_EQ(pool_.info().blocks, 2);
  EXPECT_EQ(pool_.get_status("block 1"), Status::OK);
  EXPECT_TRUE(pool_.check_clean());
}

/// A driver that registers nothing of the pool.
TEST_P(GatedTransfers, GoByPinnedMemoryBothWays) {
  const auto none = Device::cpu({.most_registered_bytes = 0});
  const RegisteredWith registered(*this, *none);
  const auto refused = registration_->ensure(0, registration_->size_bytes());
  ASSERT_EQ(refused.status(), Status::LIMIT_REACHED);
  {
    EngineCache engine(*none, Layout::NHD, {}, RowOrder::HEADS_FIRST);
    const auto before = engine.random_bytes(1);
    pool_.use_layout(engine.cache().layout);
    auto transfers = Transfers::open(pool_.pool(), *registration_, *none, engine.cache());
    ASSERT_DONE(transfers);
    const auto pages = shuffled(24, 1);
    for (const Path path : {Path::KERNEL, Path::COPIES}) {
      auto blocks = blocks_in(pages, 2);
      for (auto& block : blocks) block.key += path == Path::KERNEL ? " by kernel" : " by copies";
      engine.write(before);
      ASSERT_EQ(run(*transfers, true, blocks, {.path = path}), std::vector(2, Status::OK));
      EXPECT_EQ(pool_.get(blocks[1].key), engine.payload(before, blocks[1].range));
      engine.write(engine.random_bytes(2));
      ASSERT_EQ(run(*transfers, false, blocks, {.path = path}), std::vector(2, Status::OK));
      EXPECT_EQ(engine.payload(engine.read(), blocks[1].range),
                engine.payload(before, blocks[1].range));
    }
    EXPECT_EQ(pool_.info().hosts[0].leases_active, 0);
    EXPECT_EQ(transfers->info().blocks, (std::array<uint64_t, kStagings>{0, 0, 8, 0, 0}));
    EXPECT_EQ(transfers->info().refusal, refused.error().message());
  }
}

/// A driver that takes its time to pin: no job waits for it.
TEST_P(GatedTransfers, GoByPinnedMemoryUntilThePoolIsRegistered) {
  struct PinsWhenTold : WrappedDevice {
    using WrappedDevice::WrappedDevice;
    Result<void> register_host(void* memory, size_t size_bytes, DeviceAccess access) override {
      pinning_allowed.wait();
      return device_.register_host(memory, size_bytes, access);
    }
    std::promise<void> may_pin;
    std::shared_future<void> pinning_allowed = may_pin.get_future().share();
  } slow(device());
  const RegisteredWith registered(*this, slow);
  EngineCache engine(device(), Layout::NHD, {}, RowOrder::HEADS_FIRST);
  const auto before = engine.random_bytes(1);
  engine.write(before);
  pool_.use_layout(engine.cache().layout);
  auto transfers = Transfers::open(pool_.pool(), *registration_, slow, engine.cache());
  ASSERT_DONE(transfers);
  const auto pages = shuffled(24, 1);
  const auto blocks = blocks_in(pages, 2);
  std::shared_ptr<Transfers::Job> job;
  // In another thread, since a call that waits for the driver would wait for ever.
  const auto starts = [&](bool spills) {
    auto started = std::async(std::launch::async, [&] {
      auto made = spills ? transfers->spill(pool_.ns(), blocks, {})
                         : transfers->restore(pool_.ns(), blocks, {});
      if (made) job = *made;
      return made.status();
    });
    const bool returned = started.wait_for(std::chrono::minutes(2)) == std::future_status::ready;
    EXPECT_TRUE(returned) << "it waits for the driver";
    if (!returned) slow.may_pin.set_value();
    return started.get() == Status::OK && returned;
  };
  const auto staging = [&] {
    transfers->wait(*job);
    EXPECT_EQ(transfers->results(*job)[1], Status::OK);
    const auto each = transfers->staging(*job);
    return std::vector(each.begin(), each.end());
  };
  ASSERT_TRUE(starts(true));
  EXPECT_EQ(staging(), std::vector(2, Staging::NOT_YET));
  EXPECT_EQ(pool_.get("block 1"), engine.payload(before, blocks[1].range));
  engine.write(engine.random_bytes(2));
  ASSERT_TRUE(starts(false));
  EXPECT_EQ(staging(), std::vector(2, Staging::NOT_YET));
  EXPECT_EQ(engine.payload(engine.read(), blocks[1].range),
            engine.payload(before, blocks[1].range));
  EXPECT_EQ(registration_->registered_bytes(), 0u);

  slow.may_pin.set_value();
  ASSERT_DONE(registration_->ensure(0, registration_->size_bytes()));
  ASSERT_TRUE(starts(false));
  EXPECT_EQ(staging(), std::vector(2, Staging::NONE));
  EXPECT_EQ(transfers->info().blocks, (std::array<uint64_t, kStagings>{2, 4, 0, 0, 0}));
}

/// Read-only memory is restored from in place, and spilled to through pinned memory.
TEST_P(GatedTransfers, SpillToMemoryForReadingByPinnedMemory) {
  struct ReadsOnly : WrappedDevice {
    using WrappedDevice::WrappedDevice;
    Result<void> register_host(void* memory, size_t size_bytes, DeviceAccess access) override {
      if (access == DeviceAccess::READ_AND_WRITE) return Error{Status::NOT_SUPPORTED, "no"};
      return device_.register_host(memory, size_bytes, access);
    }
  };
  const auto cpu = Device::cpu({.registers_read_only = true});
  ReadsOnly reads_only(*cpu);
  const RegisteredWith registered(*this, reads_only);
  ASSERT_DONE(registration_->ensure(0, registration_->size_bytes()));
  {
    EngineCache engine(*cpu, Layout::NHD, {}, RowOrder::HEADS_FIRST);
    engine.write(engine.random_bytes(1));
    pool_.use_layout(engine.cache().layout);
    auto transfers = Transfers::open(pool_.pool(), *registration_, reads_only, engine.cache());
    ASSERT_DONE(transfers);
    const auto pages = shuffled(24, 1);
    const auto blocks = blocks_in(pages, 3);
    ASSERT_EQ(run(*transfers, true, blocks), std::vector(3, Status::OK));
    ASSERT_EQ(run(*transfers, false, blocks), std::vector(3, Status::OK));
    EXPECT_EQ(transfers->info().blocks, (std::array<uint64_t, kStagings>{3, 0, 3, 0, 0}));
    EXPECT_NE(transfers->info().refusal.find("for reading only"), std::string::npos)
        << transfers->info().refusal;
  }
}

/// With a name of its own: its costs are not known from other tests.
class NamedDevice : public WrappedDevice {
 public:
  NamedDevice(Device& device, const char* name) : WrappedDevice(device), info_(device.info()) {
    info_.name = name;
  }
  const DeviceInfo& info() const override { return info_; }

 private:
  DeviceInfo info_;
};

/// An engine takes all memory of the GPU: costs cannot be measured there.
TEST_P(GatedTransfers, OpenOnADeviceThatIsFull) {
  EngineCache sizes(device(), Layout::NHD, {}, RowOrder::HEADS_FIRST);
  const uint64_t cache_bytes = sizes.random_bytes(0).size();
  // The rest has space for the tables of jobs, but not for the data of the meter.
  const auto cpu = Device::cpu({.memory_bytes = cache_bytes + (32 << 10)});
  NamedDevice full(*cpu, "full");
  const RegisteredWith registered(*this, full);
  {
    EngineCache engine(full, Layout::NHD, {}, RowOrder::HEADS_FIRST);
    pool_.use_layout(engine.cache().layout);
    auto transfers = Transfers::open(pool_.pool(), *registration_, full, engine.cache());
    ASSERT_DONE(transfers);
    EXPECT_NE(transfers->path_costs().assumed_because, "");
    const auto before = engine.random_bytes(1);
    engine.write(before);
    const auto pages = shuffled(24, 1);
    const auto blocks = blocks_in(pages, 2);
    ASSERT_EQ(run(*transfers, true, blocks), std::vector(2, Status::OK));
    EXPECT_EQ(pool_.get(blocks[1].key), engine.payload(before, blocks[1].range));
  }
}

/// The lease ends while the device still reads: the block is not damaged, others wrote to its
/// space.
TEST_P(GatedTransfers, LapseWithTheirLeases) {
  EngineCache engine(device(), Layout::NHD, {}, RowOrder::HEADS_FIRST);
  engine.write(engine.random_bytes(1));
  Transfers transfers = open(engine);
  const auto pages = shuffled(24, 1);
  const auto blocks = blocks_in(pages, 1);
  ASSERT_EQ(run(transfers, true, blocks), std::vector{Status::OK});
  auto lease = pool_.pool().acquire(pool_.ns(), "block 0", 1).value();
  auto* const payload = const_cast<std::byte*>(lease.data);
  ASSERT_EQ(pool_.pool().release(lease), Status::OK);
  gate_->hold_next(1);
  auto job = transfers.restore(pool_.ns(), blocks, {.lease_ms = 1});
  ASSERT_DONE(job);
  ASSERT_EQ(pool_.pool().remove(pool_.ns(), "block 0"), Status::OK);
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  // Until something else takes the space of the block.
  for (int i = 0; pool_.put("other " + std::to_string(i), test::bytes(61440, i)) == Status::OK;
       ++i) {
    if (i == 1000) break;
  }
  payload[0] ^= std::byte{1};
  gate_->let_go();
  transfers.wait(**job);
  EXPECT_EQ(transfers.results(**job)[0], Status::LAPSED);
}

/// Nothing of a layer is stored before it is computed, and everything is when the last one is.
TEST_P(GatedTransfers, StoreLayersAsTheyAreComputed) {
  EngineCache engine(device(), Layout::NHD, {5}, RowOrder::HEADS_FIRST);
  const auto old = engine.random_bytes(1), made = engine.random_bytes(2);
  Transfers transfers = open(engine);
  const auto pages = shuffled(24, 1);
  const Stream compute = device().make_stream(0).value();
  for (const Path path : {Path::KERNEL, Path::COPIES}) {
    engine.write(old);
    auto blocks = blocks_in(pages, 3);
    for (auto& block : blocks) block.key += path == Path::KERNEL ? " by kernel" : " by copies";
    auto job = transfers.spill(pool_.ns(), blocks, {.path = path, .layers_at_once = 2});
    ASSERT_DONE(job);
    const size_t layer_bytes = made.size() / 5;
    uint8_t* const memory = engine.cache().parts[0].base;
    for (uint32_t layer = 0; layer < 5; ++layer) {
      EXPECT_FALSE(transfers.poll(**job));
      transfers.wait(**job);  // for what is ready
      EXPECT_FALSE(transfers.poll(**job));
      gate_->hold_next(1);
      ASSERT_DONE(device().copy(memory + layer * layer_bytes, &made[layer * layer_bytes],
                                layer_bytes, compute));
      ASSERT_DONE(transfers.layer_ready(**job, layer, compute));
      ASSERT_DONE(transfers.layer_ready(**job, layer / 2, compute));  // that was already reported
      std::this_thread::sleep_for(std::chrono::milliseconds(2));      // does it wait for the layer?
      gate_->let_go();
    }
    transfers.wait(**job);
    EXPECT_EQ(transfers.results(**job)[2], Status::OK);
    for (const auto& block : blocks)
      EXPECT_EQ(pool_.get(block.key), engine.payload(made, block.range));
    EXPECT_EQ(transfers.layer_ready(**job, 0, compute).status(), Status::INVALID_ARGUMENT);
  }
  device().destroy_stream(compute);
  EXPECT_TRUE(pool_.check_clean());
}

TEST_P(GatedTransfers, RefuseLayersOfOtherJobs) {
  EngineCache engine(device(), Layout::NHD, {}, RowOrder::HEADS_FIRST);
  engine.write(engine.random_bytes(1));
  Transfers transfers = open(engine);
  const auto pages = shuffled(24, 1);
  auto by_layers = transfers.spill(pool_.ns(), blocks_in(pages, 2), {.layers_at_once = 1});
  ASSERT_DONE(by_layers);
  const auto refused = [](const Result<void>& result, const char* says) {
    EXPECT_EQ(result.status(), Status::INVALID_ARGUMENT);
    EXPECT_NE(message_of(result).find(says), std::string::npos) << message_of(result);
  };
  int other = 0;
  refused(transfers.layer_ready(**by_layers, 3, nullptr), "layer 3 of 3");
  refused(transfers.layer_ready(**by_layers, 0, &other), "not one of this device");
  refused(transfers.wait_layer(**by_layers, 0, nullptr), "a spill");
  // Layers of a cancelled job go nowhere.
  ASSERT_DONE(transfers.layer_ready(**by_layers, 0, nullptr));
  transfers.cancel(**by_layers);
  ASSERT_DONE(transfers.layer_ready(**by_layers, 2, nullptr));
  transfers.wait(**by_layers);
  EXPECT_EQ(transfers.results(**by_layers)[0], Status::CANCELLED);
  EXPECT_EQ(pool_.info().blocks, 0);
  EXPECT_EQ(pool_.info().used_bytes, 0);
  gate_->hold_next(1);
  auto whole = transfers.spill(pool_.ns(), blocks_in(pages, 2), {});
  ASSERT_DONE(whole);
  refused(transfers.layer_ready(**whole, 0, nullptr), "does not wait for layers");
  gate_->let_go();
}

/// After a restore is cancelled, no lease is left.
TEST_P(GatedTransfers, GiveLeasesBackWhenCancelled) {
  EngineCache engine(device(), Layout::NHD, {}, RowOrder::HEADS_FIRST);
  engine.write(engine.random_bytes(1));
  Transfers transfers = open(engine);
  const auto pages = shuffled(24, 1);
  ASSERT_EQ(run(transfers, true, blocks_in(pages, 2)), std::vector(2, Status::OK));
  gate_->hold_next(1);
  auto job = transfers.restore(pool_.ns(), blocks_in(pages, 2), {});
  ASSERT_DONE(job);
  EXPECT_EQ(pool_.info().hosts[0].leases_active, 2);
  transfers.cancel(**job);
  EXPECT_FALSE(transfers.poll(**job));
  EXPECT_EQ(pool_.info().hosts[0].leases_active, 2);
  gate_->let_go();
  transfers.wait(**job);
  EXPECT_EQ(transfers.results(**job)[0], Status::CANCELLED);
  EXPECT_EQ(pool_.info().hosts[0].leases_active, 0);
}

TEST_P(GatedTransfers, EndRunningJobs) {
  EngineCache engine(device(), Layout::NHD, {}, RowOrder::HEADS_FIRST);
  engine.write(engine.random_bytes(1));
  auto transfers = std::make_unique<Transfers>(open(engine));
  const auto pages = shuffled(24, 1);
  const size_t first = gate_->hold_next(1);
  auto job = transfers->spill(pool_.ns(), blocks_in(pages, 2), {});
  auto waiting = transfers->spill(pool_.ns(), blocks_in(pages, 3), {.layers_at_once = 1});
  ASSERT_DONE(job);
  ASSERT_DONE(waiting);
  gate_->wait_for(first + 1);
  auto ended = std::async(std::launch::async, [&] { transfers.reset(); });
  EXPECT_EQ(ended.wait_for(std::chrono::milliseconds(20)), std::future_status::timeout);
  gate_->let_go();
  ended.get();
  EXPECT_EQ(pool_.info().blocks, 0);
  EXPECT_EQ(pool_.info().used_bytes, 0);
  EXPECT_TRUE(pool_.check_clean());
}

/// A job that fails to start returns only when the device has finished its queued work.
TEST_P(GatedTransfers, WaitForTheirQueuedWork) {
  struct NoSecondLaunch : WrappedDevice {
    using WrappedDevice::WrappedDevice;
    Result<void> launch(const Work& work, Stream stream) override {
      if (launches == 0) return Error{Status::SYSTEM, "no launch"};
      --launches;
      return device_.launch(work, stream);
    }
    size_t launches = SIZE_MAX;
  } faulty(device());
  EngineCache engine(device(), Layout::NHD, {}, RowOrder::HEADS_FIRST);
  engine.write(engine.random_bytes(1));
  pool_.use_layout(engine.cache().layout);
  auto transfers = Transfers::open(pool_.pool(), *registration_, faulty, engine.cache());
  ASSERT_DONE(transfers);
  const auto pages = shuffled(24, 1);
  ASSERT_EQ(run(*transfers, true, blocks_in(pages, 5)), kFine);
  faulty.launches = 1;
  const size_t first = gate_->hold_next(1);
  auto started = std::async(std::launch::async, [&] {
    return transfers->restore(pool_.ns(), blocks_in(pages, 5), {.layers_at_once = 1}).status();
  });
  gate_->wait_for(first + 1);
  EXPECT_EQ(started.wait_for(std::chrono::milliseconds(20)), std::future_status::timeout);
  gate_->let_go();
  EXPECT_EQ(started.get(), Status::SYSTEM);
  EXPECT_EQ(pool_.info().hosts[0].leases_active, 0);
  // The same for a layer that is ready: the job ends with that error, when the device has finished.
  faulty.launches = 1;
  auto job = transfers->spill(pool_.ns(), std::vector<BlockOfTokens>{{"b", {pages, 0, 40}}},
                              {.layers_at_once = 1});
  ASSERT_DONE(job);
  gate_->hold_next(1);
  EXPECT_EQ(transfers->layer_ready(**job, 2, nullptr).status(), Status::SYSTEM);
  EXPECT_FALSE(transfers->poll(**job));
  gate_->let_go();
  transfers->wait(**job);
  EXPECT_EQ(transfers->results(**job)[0], Status::SYSTEM);
  EXPECT_EQ(pool_.get_status("b"), Status::NOT_FOUND);
}

/// Space that the device may still write to is not reused.
TEST_P(GatedTransfers, KeepSpaceThatMayStillBeWritten) {
  struct SaysNothing : WrappedDevice {
    using WrappedDevice::WrappedDevice;
    Result<bool> is_done(Event event) override {
      if (is_dumb) return Error{Status::SYSTEM, "what?"};
      return device_.is_done(event);
    }
    bool is_dumb = false;
  } faulty(device());
  EngineCache engine(device(), Layout::NHD, {}, RowOrder::HEADS_FIRST);
  engine.write(engine.random_bytes(1));
  pool_.use_layout(engine.cache().layout);
  auto transfers = Transfers::open(pool_.pool(), *registration_, faulty, engine.cache());
  ASSERT_DONE(transfers);
  const auto pages = shuffled(24, 1);
  gate_->hold_next(1);
  auto job = transfers->spill(pool_.ns(), blocks_in(pages, 2), {});
  ASSERT_DONE(job);
  faulty.is_dumb = true;
  EXPECT_TRUE(transfers->poll(**job));
  EXPECT_EQ(transfers->results(**job)[1], Status::SYSTEM);
  EXPECT_EQ(pool_.info().blocks, 0);
  EXPECT_GT(pool_.info().used_bytes, 0);
  faulty.is_dumb = false;
  gate_->let_go();
  EXPECT_EQ(run(*transfers, true, {{"other", {pages, 80, 40}}}), std::vector{Status::OK});
  EXPECT_EQ(pool_.get("other"), engine.payload(engine.read(), {pages, 80, 40}));
}

/// A driver reports that the GPU is lost as soon as one operation fails: work in flight still
/// arrives.
TEST_P(GatedTransfers, KeepSpaceThatALostGpuStillWritesTo) {
  const auto pages = shuffled(24, 1);
  EngineCache engine(device(), Layout::NHD, {}, RowOrder::HEADS_FIRST);
  engine.write(engine.random_bytes(1));
  auto transfers = std::make_unique<Transfers>(open(engine));
  const Stream other = device().make_stream(0).value();
  const size_t first = gate_->hold_next(1);
  auto job = transfers->spill(pool_.ns(), blocks_in(pages, 2), {.path = Path::KERNEL});
  ASSERT_DONE(job);
  gate_->wait_for(first + 1);  // the kernel is under way
  gate_->lose_from(first + 1);
  ASSERT_DONE(device().copy(engine.cache().parts[0].base, engine.cache().parts[0].base, 1, other));
  while (device().check_stream(other)) std::this_thread::yield();
  ASSERT_TRUE(transfers->poll(**job));
  EXPECT_EQ(transfers->results(**job)[1], Status::GPU_LOST);

  // Other jobs take all free space.
  const size_t size_bytes = engine.payload(engine.random_bytes(1), {pages, 0, 40}).size();
  int others = 0;
  while (pool_.put("other " + std::to_string(others), test::bytes(size_bytes, others)) ==
             Status::OK &&
         others < 100)
    ++others;
  EXPECT_GT(others, 2);
  gate_->let_go();
  transfers.reset();  // waits for the kernel
  for (int i = 0; i < others; ++i)
    EXPECT_EQ(pool_.get("other " + std::to_string(i)), test::bytes(size_bytes, i)) << i;
  EXPECT_EQ(pool_.get_status("block 0"), Status::NOT_FOUND);
  EXPECT_TRUE(pool_.check_clean());
  device().destroy_stream(other);
}

/// An event that could not be recorded keeps its old meaning.
TEST_P(GatedTransfers, TrustNoEventThatWasNotRecorded) {
  struct RecordsNoMore : WrappedDevice {
    using WrappedDevice::WrappedDevice;
    Result<void> record(Event event, Stream stream) override {
      if (records == 0) return Error{Status::SYSTEM, "no record"};
      --records;
      return device_.record(event, stream);
    }
    size_t records = SIZE_MAX;
  } faulty(device());
  EngineCache engine(device(), Layout::NHD, {}, RowOrder::HEADS_FIRST);
  engine.write(engine.random_bytes(1));
  pool_.use_layout(engine.cache().layout);
  auto transfers = Transfers::open(pool_.pool(), *registration_, faulty, engine.cache());
  ASSERT_DONE(transfers);
  const auto pages = shuffled(24, 1);
  auto job = transfers->spill(pool_.ns(), blocks_in(pages, 2), {.layers_at_once = 3});
  ASSERT_DONE(job);
  transfers->wait(**job);  // for its descriptor
  gate_->hold_next(1);
  faulty.records = 2;  // of the stream's place, of the layers; not behind them
  EXPECT_EQ(transfers->layer_ready(**job, 2, nullptr).status(), Status::SYSTEM);
  EXPECT_TRUE(transfers->poll(**job));
  EXPECT_EQ(transfers->results(**job)[1], Status::SYSTEM);
  EXPECT_GT(pool_.info().used_bytes, 0) << "the kernel has not written to it yet";
  gate_->let_go();
}

TEST_P(GatedTransfers, PutUrgentWorkIntoTheUrgentStream) {
  struct Watched : WrappedDevice {
    using WrappedDevice::WrappedDevice;
    Result<Stream> make_stream(int priority) override {
      auto made = device_.make_stream(priority);
      if (made) priorities[*made] = priority;
      return made;
    }
    Result<void> launch(const Work& work, Stream stream) override {
      last = priorities[stream];
      return device_.launch(work, stream);
    }
    std::map<Stream, int> priorities;
    int last = 1;
  } watched(device());
  EngineCache engine(device(), Layout::NHD, {}, RowOrder::HEADS_FIRST);
  engine.write(engine.random_bytes(1));
  pool_.use_layout(engine.cache().layout);
  auto transfers = Transfers::open(pool_.pool(), *registration_, watched, engine.cache());
  ASSERT_DONE(transfers);
  const auto pages = shuffled(24, 1);
  ASSERT_EQ(run(*transfers, true, blocks_in(pages, 5)), kFine);
  EXPECT_EQ(watched.last, 0);
  ASSERT_EQ(run(*transfers, false, blocks_in(pages, 5), {.urgent = true}), kFine);
  EXPECT_LT(watched.last, 0);
}

/// Chunks of 2 MiB, and larger blocks: no copy may cross chunks.
TEST_P(GatedTransfers, CopyNothingAcrossChunks) {
  registration_.reset();
  registration_ = std::move(Registration::create(device(), pool_.pool(), 2 << 20).value());
  EngineCache engine(device(), Layout::NHD, {1, 4, 40, 3, 8192}, RowOrder::TOKENS_FIRST);
  const auto before = engine.random_bytes(1);
  engine.write(before);
  Transfers transfers = open(engine);
  const std::vector<uint32_t> pages = {0, 1, 2};
  const std::vector<BlockOfTokens> blocks = {{"long", {pages, 0, 120}}};
  ASSERT_EQ(run(transfers, true, blocks, {.path = Path::COPIES}), std::vector{Status::OK});
  EXPECT_EQ(pool_.get("long"), engine.payload(before, blocks[0].range));
  engine.write(engine.random_bytes(2));
  ASSERT_EQ(run(transfers, false, blocks, {.path = Path::COPIES}), std::vector{Status::OK});
  EXPECT_EQ(engine.read(), before);
}

/// Blocks for which there is no pinned memory fail alone, and later get some.
TEST_P(GatedTransfers, TakeNoMorePinnedMemoryThanTheyMay) {
  const auto none = Device::cpu({.most_registered_bytes = 0});
  const RegisteredWith registered(*this, *none);
  {
    EngineCache engine(*none, Layout::NHD, {}, RowOrder::HEADS_FIRST);
    const auto before = engine.random_bytes(1);
    engine.write(before);
    const uint64_t block_bytes = engine.cache().payload_bytes(40);
    pool_.use_layout(engine.cache().layout);
    auto transfers = Transfers::open(pool_.pool(), *registration_, *none, engine.cache(),
                                     2 * block_bytes + 16384);
    ASSERT_DONE(transfers);
    const auto pages = shuffled(24, 1);
    const auto blocks = blocks_in(pages, 3);
    EXPECT_EQ(run(*transfers, true, blocks),
              (std::vector{Status::OK, Status::OK, Status::NO_SPACE}));
    EXPECT_EQ(run(*transfers, true, blocks), std::vector(3, Status::OK));
    EXPECT_EQ(pool_.get("block 2"), engine.payload(before, blocks[2].range));
    // Idle memory makes way for a larger request.
    EXPECT_EQ(run(*transfers, true, {{"larger", {pages, 0, 80}}}), std::vector{Status::OK});
  }
  EXPECT_TRUE(pool_.check_clean());
}

}  // namespace
}  // namespace bowhead::gpu
