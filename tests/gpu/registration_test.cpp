// SPDX-License-Identifier: Apache-2.0
#include "gpu/registration.h"

#include <chrono>
#include <cstring>
#include <future>
#include <random>

#include "tests/gpu/devices.h"

namespace bowhead::gpu {
namespace {

constexpr uint64_t kChunkBytes = uint64_t{2} << 20;
constexpr uint64_t kPageBytes = 4096;

std::unique_ptr<Registration> make(Device& device, const Mapping& mapping) {
  auto made =
      Registration::create(device, ConstSpan{mapping.data(), mapping.size_bytes()}, kChunkBytes);
  EXPECT_DONE(made);
  return made ? std::move(*made) : nullptr;
}

/// Until the thread has registered so much.
void wait_for(const Registration& registration, uint64_t registered_bytes) {
  while (registration.registered_bytes() < registered_bytes) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

// ---- every device ----

class RegistrationContract : public EveryDevice {
 protected:
  PointerKind kind(const void* pointer) {
    auto classified = device().classify(pointer);
    EXPECT_DONE(classified);
    return classified ? *classified : PointerKind::OTHER;
  }
};
INSTANTIATE_TEST_SUITE_P(Devices, RegistrationContract, kEveryDevice, device_name);

TEST_P(RegistrationContract, RegistersWhatIsTouchedAndUnregistersIt) {
  const Mapping mapping(4 * kChunkBytes + 3 * kPageBytes);
  auto registration = make(device(), mapping);
  EXPECT_EQ(registration->registered_bytes(), 0u);
  EXPECT_EQ(registration->device_address(0).status(), Status::INVALID_ARGUMENT);

  ASSERT_DONE(registration->ensure(2 * kChunkBytes - 1, 2));  // of chunks 1 and 2
  EXPECT_EQ(registration->registered_bytes(), 2 * kChunkBytes);
  EXPECT_EQ(kind(mapping.data()), PointerKind::HOST);
  EXPECT_EQ(kind(mapping.data() + kChunkBytes), PointerKind::REGISTERED);
  EXPECT_EQ(kind(mapping.data() + 3 * kChunkBytes - 1), PointerKind::REGISTERED);
  EXPECT_EQ(kind(mapping.data() + 3 * kChunkBytes), PointerKind::HOST);
  EXPECT_EQ(registration->device_address(kChunkBytes - 1).status(), Status::INVALID_ARGUMENT);

  for (const uint64_t offset : {kChunkBytes, kChunkBytes + 5, 2 * kChunkBytes}) {
    auto address = registration->device_address(offset);
    ASSERT_DONE(address);
    EXPECT_EQ(*address, *device().device_address(mapping.data() + offset));
  }
  auto reached = registration->reach(2 * kChunkBytes - 1, 2);
  ASSERT_DONE(reached);
  EXPECT_EQ(*reached, *registration->device_address(2 * kChunkBytes - 1));
  EXPECT_EQ(registration->reach(mapping.size_bytes(), 1).status(), Status::INVALID_ARGUMENT);
  ASSERT_DONE(registration->ensure(4 * kChunkBytes, 1));  // the short one
  EXPECT_EQ(registration->registered_bytes(), 2 * kChunkBytes + 3 * kPageBytes);
  ASSERT_DONE(registration->ensure(0, mapping.size_bytes()));
  EXPECT_EQ(registration->registered_bytes(), mapping.size_bytes());

  registration.reset();
  for (uint64_t offset = 0; offset < mapping.size_bytes(); offset += kPageBytes) {
    ASSERT_EQ(kind(mapping.data() + offset), PointerKind::HOST) << offset;
  }
}

TEST_P(RegistrationContract, CopiesAcrossChunksInParts) {
  const Mapping mapping(4 * kChunkBytes);
  const auto registration = make(device(), mapping);
  constexpr uint64_t kOffset = kChunkBytes - 1001;
  constexpr uint64_t kSizeBytes = 2 * kChunkBytes + 3003;
  ASSERT_DONE(registration->ensure(kOffset, kSizeBytes));
  std::mt19937 random(1);
  for (uint64_t i = 0; i < kSizeBytes; ++i) {
    mapping.data()[kOffset + i] = static_cast<std::byte>(random());
  }
  auto memory = device().allocate(kSizeBytes);
  auto stream = device().make_stream(0);
  auto event = device().make_event();
  ASSERT_DONE(memory);
  ASSERT_DONE(stream);
  ASSERT_DONE(event);
  std::vector<CopyRun> runs;
  registration->for_chunks(kOffset, kSizeBytes, [&](uint64_t offset, uint64_t size_bytes) {
    auto* const to = static_cast<std::byte*>(*memory) + (offset - kOffset);
    runs.push_back({to, mapping.data() + offset, size_bytes});
  });
  ASSERT_EQ(runs.size(), 4u);
  std::vector<std::byte> got(kSizeBytes);
  ASSERT_DONE(device().copy_batch(runs, *stream));
  ASSERT_DONE(device().copy(got.data(), *memory, kSizeBytes, *stream));
  ASSERT_DONE(device().record(*event, *stream));
  ASSERT_DONE(device().synchronize(*event));
  EXPECT_EQ(std::memcmp(got.data(), mapping.data() + kOffset, kSizeBytes), 0);
  device().free(*memory);
  device().destroy_event(*event);
  device().destroy_stream(*stream);
}

TEST_P(RegistrationContract, RegistersTheRestInTheBackground) {
  const Mapping mapping(9 * kChunkBytes + kPageBytes);
  auto registration = make(device(), mapping);
  registration->register_rest();
  registration->register_rest();  // nothing more to do
  wait_for(*registration, mapping.size_bytes());
  registration->stop();
  registration->stop();
  ASSERT_DONE(registration->ensure(0, mapping.size_bytes()));
  EXPECT_EQ(kind(mapping.data() + mapping.size_bytes() - 1), PointerKind::REGISTERED);
  registration->register_rest();  // finds nothing
  registration.reset();
  EXPECT_EQ(kind(mapping.data()), PointerKind::HOST);
}

TEST_P(RegistrationContract, KeepsWhatWasRefused) {
  const Mapping mapping(4 * kChunkBytes);
  const auto registration = make(device(), mapping);
  std::byte* const others = mapping.data() + 2 * kChunkBytes + kPageBytes;
  ASSERT_DONE(device().register_host(others, kPageBytes));

  const auto refused = registration->ensure(0, 4 * kChunkBytes);
  ASSERT_EQ(refused.status(), Status::BUSY);
  EXPECT_NE(refused.error().detail.find("at 4194304 of the mapping"), std::string::npos)
      << refused.error().detail;
  EXPECT_EQ(registration->registered_bytes(), 2 * kChunkBytes) << "those before it";
  EXPECT_DONE(registration->device_address(kChunkBytes));
  EXPECT_EQ(registration->device_address(2 * kChunkBytes).status(), Status::INVALID_ARGUMENT);
  ASSERT_DONE(registration->ensure(3 * kChunkBytes, 1));

  ASSERT_DONE(device().unregister_host(others));
  const size_t calls = gate_->count();
  registration->retry();  // of limits
  const auto still_refused = registration->ensure(2 * kChunkBytes, 1);
  ASSERT_EQ(still_refused.status(), Status::BUSY);
  EXPECT_EQ(still_refused.error().detail, refused.error().detail);
  EXPECT_EQ(gate_->count(), calls) << "the driver was asked again";
}

TEST_P(RegistrationContract, OutlivesItsMapping) {
  auto mapping = std::make_unique<Mapping>(2 * kChunkBytes);
  auto registration = make(device(), *mapping);
  ASSERT_DONE(registration->ensure(0, kChunkBytes));
  mapping.reset();
  const auto gone = registration->ensure(kChunkBytes, 1);
  EXPECT_EQ(gone.status(), Status::INVALID_ARGUMENT);
  EXPECT_NE(message_of(gone).find("not mapped"), std::string::npos) << message_of(gone);
  registration.reset();
  const Mapping other(kPageBytes);
  ASSERT_DONE(device().register_host(other.data(), kPageBytes));
  ASSERT_DONE(device().unregister_host(other.data()));
}

TEST_P(RegistrationContract, SaysWhatCannotBe) {
  const Mapping mapping(4 * kPageBytes);
  const auto create = [&](const std::byte* data, size_t size_bytes, uint64_t chunk_bytes) {
    return Registration::create(device(), ConstSpan{data, size_bytes}, chunk_bytes).status();
  };
  EXPECT_EQ(create(nullptr, kPageBytes, kChunkBytes), Status::INVALID_ARGUMENT);
  EXPECT_EQ(create(mapping.data(), 0, kChunkBytes), Status::INVALID_ARGUMENT);
  EXPECT_EQ(create(mapping.data(), kPageBytes, 0), Status::INVALID_ARGUMENT);
  EXPECT_EQ(create(mapping.data(), kPageBytes, kPageBytes), Status::INVALID_ARGUMENT);
  EXPECT_EQ(create(mapping.data() + 8, kPageBytes, kChunkBytes), Status::MISALIGNED);
  EXPECT_EQ(create(mapping.data(), 100, kChunkBytes), Status::MISALIGNED);

  const auto registration = make(device(), mapping);
  EXPECT_EQ(registration->ensure(4 * kPageBytes, 1).status(), Status::INVALID_ARGUMENT);
  EXPECT_EQ(registration->ensure(1, 4 * kPageBytes).status(), Status::INVALID_ARGUMENT);
  EXPECT_EQ(registration->ensure(1, UINT64_MAX).status(), Status::INVALID_ARGUMENT);
  EXPECT_EQ(registration->device_address(4 * kPageBytes).status(), Status::INVALID_ARGUMENT);
  ASSERT_DONE(registration->ensure(4 * kPageBytes, 0));
  EXPECT_EQ(registration->registered_bytes(), 0u);
  ASSERT_DONE(registration->ensure(0, 1));
  EXPECT_EQ(registration->registered_bytes(), 4 * kPageBytes);
}

// ---- with the twin's limits and faults ----

TEST(Registration, AsksAgainAfterALimitOnlyWhenTold) {
  const auto gate = std::make_shared<Gate>();
  const auto twin = gated_twin(gate, {.most_registered_bytes = 3 * kChunkBytes});
  const Mapping others(kChunkBytes);
  ASSERT_DONE(twin->register_host(others.data(), kChunkBytes));
  const Mapping mapping(4 * kChunkBytes);
  const auto registration = make(*twin, mapping);
  EXPECT_EQ(registration->ensure(0, 4 * kChunkBytes).status(), Status::LIMIT_REACHED);
  EXPECT_EQ(registration->registered_bytes(), 2 * kChunkBytes);
  const size_t calls = gate->count();
  EXPECT_EQ(calls, 4u) << "one for the others, two chunks, one that was refused";

  ASSERT_DONE(twin->unregister_host(others.data()));
  EXPECT_EQ(registration->ensure(2 * kChunkBytes, 1).status(), Status::LIMIT_REACHED);
  EXPECT_EQ(gate->count(), calls);
  registration->retry();
  ASSERT_DONE(registration->ensure(2 * kChunkBytes, 1));
  EXPECT_EQ(gate->count(), calls + 1);
}

TEST(Registration, LeavesOffInTheBackgroundAtALimit) {
  const auto gate = std::make_shared<Gate>();
  const auto twin = gated_twin(gate, {.most_registered_bytes = 2 * kChunkBytes});
  const Mapping mapping(100 * kChunkBytes);
  const auto registration = make(*twin, mapping);
  registration->register_rest();
  gate->wait_for(3);
  std::this_thread::sleep_for(std::chrono::milliseconds(20));  // it could have gone on by then
  registration->stop();
  EXPECT_EQ(registration->registered_bytes(), 2 * kChunkBytes);
  EXPECT_EQ(gate->count(), 3u);
}

TEST(Registration, GivesWayToTransfers) {
  const auto gate = std::make_shared<Gate>();
  const auto twin = gated_twin(gate);
  const Mapping mapping(8 * kChunkBytes);
  const auto registration = make(*twin, mapping);
  gate->hold_next(2);
  registration->register_rest();
  gate->wait_for(1);  // the thread is at chunk 0
  std::thread transfer(
      [&] { EXPECT_DONE(registration->ensure(5 * kChunkBytes, 3 * kChunkBytes)); });
  const std::thread::id transfer_id = transfer.get_id();
  gate->wait_for(2);  // and the transfer at chunk 5, beside it
  gate->let_go(1);
  wait_for(*registration, kChunkBytes);  // chunk 0 is done
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  EXPECT_EQ(gate->count(), 2u) << "the thread did not wait for the transfer";
  gate->let_go();
  transfer.join();
  wait_for(*registration, 8 * kChunkBytes);
  const auto callers = gate->callers();
  ASSERT_EQ(callers.size(), 8u) << "each chunk once";
  for (size_t i = 0; i < 8; ++i) EXPECT_EQ(callers[i] == transfer_id, i >= 1 && i <= 3) << i;
}

TEST(Registration, WaitsForAChunkThatAnotherThreadIsAt) {
  const auto gate = std::make_shared<Gate>();
  const auto twin = gated_twin(gate);
  const Mapping mapping(kChunkBytes);
  const auto registration = make(*twin, mapping);
  gate->hold_next(1);
  registration->register_rest();
  gate->wait_for(1);
  auto transfer =
      std::async(std::launch::async, [&] { return registration->ensure(0, 1).status(); });
  EXPECT_EQ(transfer.wait_for(std::chrono::milliseconds(20)), std::future_status::timeout);
  gate->let_go();
  EXPECT_EQ(transfer.get(), Status::OK);
  EXPECT_EQ(gate->count(), 1u);
}

TEST(Registration, StopsAndStartsAgain) {
  const auto gate = std::make_shared<Gate>();
  const auto twin = gated_twin(gate);
  const Mapping mapping(6 * kChunkBytes);
  const auto registration = make(*twin, mapping);
  registration->stop();  // nothing to stop
  gate->hold_next(1);
  registration->register_rest();
  gate->wait_for(1);
  auto stopped = std::async(std::launch::async, [&] { registration->stop(); });
  EXPECT_EQ(stopped.wait_for(std::chrono::milliseconds(20)), std::future_status::timeout);
  gate->let_go();
  stopped.get();
  EXPECT_EQ(registration->registered_bytes(), kChunkBytes) << "the chunk that it was at";
  registration->register_rest();
  wait_for(*registration, 6 * kChunkBytes);
}

TEST(Registration, IsDestroyedWhileItRegisters) {
  const auto gate = std::make_shared<Gate>();
  const auto twin = gated_twin(gate);
  const Mapping mapping(64 * kChunkBytes);
  auto registration = make(*twin, mapping);
  gate->hold_next(1);
  registration->register_rest();
  gate->wait_for(1);
  auto destroyed = std::async(std::launch::async, [&] { registration.reset(); });
  EXPECT_EQ(destroyed.wait_for(std::chrono::milliseconds(20)), std::future_status::timeout);
  gate->let_go();
  destroyed.get();
  EXPECT_EQ(gate->count(), 1u);
  EXPECT_EQ(*twin->classify(mapping.data()), PointerKind::HOST);
}

TEST(Registration, RegistersEachChunkOnceForManyThreads) {
  const auto gate = std::make_shared<Gate>();
  const auto twin = gated_twin(gate);
  constexpr uint64_t kChunks = 64;
  const Mapping mapping(kChunks * kChunkBytes);
  const auto registration = make(*twin, mapping);
  std::vector<std::thread> threads;
  for (uint32_t t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      std::mt19937 random(t);
      for (int i = 0; i < 200; ++i) {
        const uint64_t offset = random() % (mapping.size_bytes() - kChunkBytes);
        EXPECT_DONE(registration->ensure(offset, 1 + random() % kChunkBytes));
        auto address = registration->device_address(offset);
        ASSERT_DONE(address);
        EXPECT_EQ(*address, mapping.data() + offset);
      }
    });
  }
  registration->register_rest();
  for (std::thread& thread : threads) thread.join();
  wait_for(*registration, mapping.size_bytes());
  EXPECT_EQ(gate->count(), kChunks);
}

TEST(Registration, OutlivesALostDevice) {
  const auto gate = std::make_shared<Gate>();
  const auto twin = gated_twin(gate);
  const Mapping mapping(100 * kChunkBytes);
  auto registration = make(*twin, mapping);
  ASSERT_DONE(registration->ensure(0, 1));
  gate->lose_from(2);
  registration->register_rest();
  gate->wait_for(3);
  std::this_thread::sleep_for(std::chrono::milliseconds(20));  // it could have gone on by then
  registration->stop();
  EXPECT_EQ(registration->registered_bytes(), 2 * kChunkBytes);
  EXPECT_DONE(registration->ensure(0, 2 * kChunkBytes));
  EXPECT_EQ(registration->ensure(50 * kChunkBytes, 1).status(), Status::GPU_LOST);
  registration.reset();
}

}  // namespace
}  // namespace bowhead::gpu
